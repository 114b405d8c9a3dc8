// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keys that *ring* does not support, for programs of the C API: libcrypto loads and uses them.
//!
//! ```text
//!   key file ─▶ PEM_read_bio_PrivateKey ─ encrypted? ─▶ KeyPassword
//!                     ▼
//!                  EVP_PKEY ─▶ EVP_DigestSign: CertificateVerify of this side
//!   peer's SubjectPublicKeyInfo ─▶ EVP_DigestVerify: that of the other side
//! ```
//! Beyond ring: encryptions of PEM and PKCS#8 other than PBES2 with AES and SHA-2, P-521, RSA keys
//! for PSS only, Ed448.

use std::ffi::{c_char, c_int, c_ulong, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::sign::{Signer, SigningKey};
use rustls::{CertificateError, Error, OtherError, SignatureAlgorithm, SignatureScheme};
use x509_cert::der::Decode;
use x509_cert::spki::{ObjectIdentifier, SubjectPublicKeyInfoRef};

use super::libcrypto::{ErrorMark, EvpMd, EvpMdCtx, EvpPkey, EvpPkeyCtx, Libcrypto, Owned};
use super::store_ctx::OpensslFault;
use super::{KeyPassword, TlsError};

/// `ERR_PACK(ERR_LIB_EVP, 0, ERR_R_UNSUPPORTED)` of OpenSSL 3: no provider that is loaded has it.
const EVP_UNSUPPORTED: c_ulong = 0x0308_010c;

/// A signature scheme.
#[derive(Debug)]
struct Scheme {
    id: SignatureScheme,
    algorithm: SignatureAlgorithm,
    /// The algorithm of the keys of this scheme.
    oid: ObjectIdentifier,
    curve: Option<ObjectIdentifier>,
    /// Bits of the SHA-2 hash; 0: the key determines it.
    hash: u16,
}

/// The schemes of TLS 1.3 (RFC 8446, 4.2.3), for each kind of key in order of preference.
static SCHEMES: [Scheme; 11] = {
    use SignatureAlgorithm as Of;
    use SignatureScheme as Id;
    const fn oid(text: &str) -> ObjectIdentifier {
        ObjectIdentifier::new_unwrap(text)
    }
    const fn scheme(
        id: SignatureScheme,
        algorithm: SignatureAlgorithm,
        key: &str,
        curve: Option<&str>,
        hash: u16,
    ) -> Scheme {
        let curve = match curve {
            Some(curve) => Some(oid(curve)),
            None => None,
        };
        Scheme { id, algorithm, oid: oid(key), curve, hash }
    }
    const RSA: &str = "1.2.840.113549.1.1.1";
    const PSS: &str = "1.2.840.113549.1.1.10";
    const EC: &str = "1.2.840.10045.2.1";
    [
        scheme(Id::ECDSA_NISTP256_SHA256, Of::ECDSA, EC, Some("1.2.840.10045.3.1.7"), 256),
        scheme(Id::ECDSA_NISTP384_SHA384, Of::ECDSA, EC, Some("1.3.132.0.34"), 384),
        scheme(Id::ECDSA_NISTP521_SHA512, Of::ECDSA, EC, Some("1.3.132.0.35"), 512),
        scheme(Id::ED25519, Of::ED25519, "1.3.101.112", None, 0),
        scheme(Id::ED448, Of::ED448, "1.3.101.113", None, 0),
        scheme(Id::RSA_PSS_SHA256, Of::RSA, RSA, None, 256),
        scheme(Id::RSA_PSS_SHA384, Of::RSA, RSA, None, 384),
        scheme(Id::RSA_PSS_SHA512, Of::RSA, RSA, None, 512),
        // rsa_pss_pss_*: for keys that are marked as for PSS only; rustls has no names for these
        scheme(Id::Unknown(0x0809), Of::RSA, PSS, None, 256),
        scheme(Id::Unknown(0x080a), Of::RSA, PSS, None, 384),
        scheme(Id::Unknown(0x080b), Of::RSA, PSS, None, 512),
    ]
};

/// The schemes that can be verified and signed with.
pub fn schemes() -> impl Iterator<Item = SignatureScheme> {
    SCHEMES.iter().map(|scheme| scheme.id)
}

impl Scheme {
    fn is_of(&self, key: &SubjectPublicKeyInfoRef<'_>) -> bool {
        let algorithm = &key.algorithm;
        algorithm.oid == self.oid
            && self.curve.is_none_or(|curve| algorithm.parameters_oid() == Ok(curve))
    }

    fn digest(&self, libcrypto: &Libcrypto) -> *const EvpMd {
        // SAFETY: no arguments; the answers are constants of the library.
        unsafe {
            match self.hash {
                256 => (libcrypto.EVP_sha256)(),
                384 => (libcrypto.EVP_sha384)(),
                512 => (libcrypto.EVP_sha512)(),
                _ => null(),
            }
        }
    }

    /// A context that is initialised for this scheme, with the padding of RSA set.
    fn context(
        &self,
        libcrypto: &Libcrypto,
        key: &Owned<EvpPkey>,
        init: Init,
    ) -> Option<Owned<EvpMdCtx>> {
        // SAFETY: no arguments.
        let ctx = Owned::new(unsafe { (libcrypto.EVP_MD_CTX_new)() }, libcrypto.EVP_MD_CTX_free)?;
        let mut of_key: *mut EvpPkeyCtx = null_mut();
        let digest = self.digest(libcrypto);
        // SAFETY: the context is new, the key is valid, and `of_key` is a place for the key's
        // context, which belongs to the new context.
        let mut done = unsafe { init(ctx.raw(), &mut of_key, digest, null_mut(), key.raw()) };
        if self.algorithm == SignatureAlgorithm::RSA {
            let salt = [(c"rsa_padding_mode", c"pss"), (c"rsa_pss_saltlen", c"digest")];
            for (name, value) in salt {
                if done == 1 {
                    // SAFETY: the context was initialised just now, and the texts are C strings.
                    done = unsafe {
                        (libcrypto.EVP_PKEY_CTX_ctrl_str)(of_key, name.as_ptr(), value.as_ptr())
                    };
                }
            }
        }
        (done == 1).then_some(ctx)
    }
}

/// `EVP_DigestSignInit` or `EVP_DigestVerifyInit`.
type Init = unsafe extern "C" fn(
    *mut EvpMdCtx,
    *mut *mut EvpPkeyCtx,
    *const EvpMd,
    *mut c_void,
    *mut EvpPkey,
) -> c_int;

/// Verifies a signature of a peer.
pub fn verify(
    spki: &[u8],
    scheme: SignatureScheme,
    message: &[u8],
    signature: &[u8],
) -> Result<(), Error> {
    let key = SubjectPublicKeyInfoRef::from_der(spki).map_err(|_| CertificateError::BadEncoding)?;
    let known = SCHEMES.iter().find(|known| known.id == scheme && known.is_of(&key));
    let known = known.ok_or(CertificateError::BadSignature)?;
    let libcrypto = Libcrypto::found().map_err(|why| {
        let rules = format!("its key signs with {scheme:?}, which needs OpenSSL");
        OpensslFault::Absent { rules, why }
    })?;
    let _mark = ErrorMark::set(libcrypto);
    let key = libcrypto.public_key(spki).ok_or(CertificateError::BadEncoding)?;
    let ctx = known.context(&libcrypto, &key, libcrypto.EVP_DigestVerifyInit);
    let ctx = ctx.ok_or(OpensslFault::Libcrypto("EVP_DigestVerifyInit"))?;
    // SAFETY: the context is initialised, and each pointer leads to the number of bytes that
    // follows it.
    let verified = unsafe {
        let (signature, message) = ((signature.as_ptr(), signature.len()), message);
        let of = (message.as_ptr(), message.len());
        (libcrypto.EVP_DigestVerify)(ctx.raw(), signature.0, signature.1, of.0, of.1)
    };
    match verified {
        1 => Ok(()),
        _ => Err(CertificateError::BadSignature.into()),
    }
}

/// Loads by OpenSSL the private key of a PEM file that ring cannot use; `cause` is the reason that
/// ring gives.
pub fn load(
    path: &Path,
    text: &[u8],
    password: &dyn KeyPassword,
    cause: &TlsError,
) -> Result<Arc<dyn SigningKey>, TlsError> {
    let libcrypto = Libcrypto::found()
        .map_err(|why| TlsError::LibcryptoForKey { cause: cause.to_string(), why })?;
    let _mark = ErrorMark::set(libcrypto);
    let unsupported =
        |cause: &str| TlsError::UnsupportedKey { path: path.into(), cause: cause.into() };
    let len = c_int::try_from(text.len()).map_err(|_| unsupported("it is too long"))?;
    // SAFETY: `len` bytes, which outlive the BIO.
    let bio = unsafe { (libcrypto.BIO_new_mem_buf)(text.as_ptr().cast(), len) };
    if bio.is_null() {
        return Err(unsupported("OpenSSL has no memory"));
    }
    let mut asked = Asked { path, password, was_asked: false, error: None };
    let of = std::ptr::from_mut(&mut asked).cast();
    // SAFETY: the BIO is valid, and not used afterwards; the callback gets its own data; no older
    // key is reused.
    let raw = unsafe {
        let raw = (libcrypto.PEM_read_bio_PrivateKey)(bio, null_mut(), give_password, of);
        (libcrypto.BIO_free)(bio);
        raw
    };
    let key = match (Owned::new(raw, libcrypto.EVP_PKEY_free), asked.error) {
        (_, Some(error)) => return Err(error),
        (None, None) if asked.was_asked => {
            // SAFETY: no arguments.
            return Err(match unsafe { (libcrypto.ERR_peek_last_error)() } {
                EVP_UNSUPPORTED => TlsError::UnsupportedEncryption {
                    path: path.into(),
                    cause: "by a cipher that this OpenSSL has switched off, as DES, RC2 and RC4"
                        .into(),
                },
                _ => TlsError::PasswordWrong { path: path.into() },
            });
        }
        (None, None) => return Err(unsupported("OpenSSL does not read it")),
        (Some(key), None) => key,
    };
    let key = OpensslKey::of(libcrypto, key);
    key.map(|key| Arc::new(key) as _).ok_or_else(|| unsupported("TLS 1.3 has no signature for it"))
}

/// The data that OpenSSL passes to [`give_password`].
struct Asked<'a> {
    path: &'a Path,
    password: &'a dyn KeyPassword,
    was_asked: bool,
    error: Option<TlsError>,
}

/// A `pem_password_cb` of OpenSSL: copies the password of an [`Asked`] into the buffer.
unsafe extern "C" fn give_password(
    place: *mut c_char,
    size: c_int,
    _is_for_writing: c_int,
    asked: *mut c_void,
) -> c_int {
    // SAFETY: `load` passes its own `Asked`, and waits for the return.
    let Some(asked) = (unsafe { asked.cast::<Asked<'_>>().as_mut() }) else { return -1 };
    asked.was_asked = true;
    if asked.error.is_some() {
        return -1; // OpenSSL tries another decoder after this refusal
    }
    let password = match asked.password.password() {
        Ok(Some(password)) => password,
        Ok(None) => {
            asked.error = Some(TlsError::PasswordMissing { path: asked.path.into() });
            return -1;
        }
        Err(error) => {
            asked.error = Some(error);
            return -1;
        }
    };
    match c_int::try_from(password.len()) {
        Ok(len) if len <= size => {
            // SAFETY: `place` has this size, and does not overlap the password.
            unsafe { place.copy_from_nonoverlapping(password.as_ptr().cast(), password.len()) };
            len
        }
        _ => -1,
    }
}

/// A private key in libcrypto.
#[derive(Debug)]
struct OpensslKey {
    libcrypto: Libcrypto,
    key: Arc<Owned<EvpPkey>>,
    spki: Vec<u8>,
    algorithm: SignatureAlgorithm,
}

impl OpensslKey {
    /// `None`: TLS 1.3 has no signature scheme for this key.
    fn of(libcrypto: Libcrypto, key: Owned<EvpPkey>) -> Option<Self> {
        // SAFETY: the key is valid; without a place, the call only returns the number of bytes that
        // it needs.
        let len = unsafe { (libcrypto.i2d_PUBKEY)(key.raw(), null_mut()) };
        let mut spki = vec![0; usize::try_from(len).ok()?];
        let mut end = spki.as_mut_ptr();
        // SAFETY: the key is valid, and the place has that size.
        let written = unsafe { (libcrypto.i2d_PUBKEY)(key.raw(), &mut end) };
        let parsed = SubjectPublicKeyInfoRef::from_der(&spki).ok().filter(|_| written == len)?;
        let algorithm = SCHEMES.iter().find(|scheme| scheme.is_of(&parsed))?.algorithm;
        Some(Self { libcrypto, key: Arc::new(key), spki, algorithm })
    }
}

impl SigningKey for OpensslKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let spki = SubjectPublicKeyInfoRef::from_der(&self.spki).ok()?;
        let _mark = ErrorMark::set(self.libcrypto);
        let can_sign = |scheme: &&Scheme| {
            // A PSS key may be restricted to one hash.
            let init = self.libcrypto.EVP_DigestSignInit;
            scheme.is_of(&spki) && scheme.context(&self.libcrypto, &self.key, init).is_some()
        };
        let offered = SCHEMES.iter().filter(|scheme| offered.contains(&scheme.id));
        let scheme = offered.into_iter().find(can_sign)?;
        Some(Box::new(OpensslSigner { libcrypto: self.libcrypto, key: self.key.clone(), scheme }))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(SubjectPublicKeyInfoDer::from(&self.spki[..]))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.algorithm
    }
}

/// A private key in libcrypto, with the scheme to sign with.
#[derive(Debug)]
struct OpensslSigner {
    libcrypto: Libcrypto,
    key: Arc<Owned<EvpPkey>>,
    scheme: &'static Scheme,
}

impl Signer for OpensslSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let failed =
            |function| Error::Other(OtherError(Arc::new(OpensslFault::Libcrypto(function))));
        let _mark = ErrorMark::set(self.libcrypto);
        let init = self.libcrypto.EVP_DigestSignInit;
        let ctx = self.scheme.context(&self.libcrypto, &self.key, init);
        let ctx = ctx.ok_or_else(|| failed("EVP_DigestSignInit"))?;
        let sign = self.libcrypto.EVP_DigestSign;
        let (at, bytes) = (message.as_ptr(), message.len());
        let mut len = 0;
        // SAFETY: the context is initialised, and `at` points to `bytes` bytes. Without a place for
        // the signature, the call only returns its size.
        if unsafe { sign(ctx.raw(), null_mut(), &mut len, at, bytes) } != 1 {
            return Err(failed("EVP_DigestSign"));
        }
        let mut signature = vec![0; len];
        // SAFETY: as above; the place for the signature has that size.
        if unsafe { sign(ctx.raw(), signature.as_mut_ptr(), &mut len, at, bytes) } != 1 {
            return Err(failed("EVP_DigestSign"));
        }
        signature.truncate(len);
        Ok(signature)
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme.id
    }
}
