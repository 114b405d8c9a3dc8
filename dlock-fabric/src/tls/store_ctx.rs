// SPDX-License-Identifier: MIT OR Apache-2.0
//! OpenSSL's judgement of peers, for programs of the C API: a program's own `cert_verify_cb`, or
//! `X509_verify_cert` for peers that the rules of `verify.rs` refuse.
//!
//! ```text
//!   files ─▶ X509, X509_CRL, parsed once ─┐ per handshake
//!                                         ▼
//!   peer's chain ─▶ X509_STORE_CTX { store, leaf, untrusted, purpose } ─▶ cert_verify_cb(ctx, crl)
//!                                                   no cert_verify_cb: ─▶ X509_verify_cert(ctx)
//! ```
//! A callback decides instead of the rules of `verify.rs`: a result below 0 refuses; 0 and more
//! accept. rustls checks that the peer has the key of the leaf. Each handshake has a store of its
//! own, because a callback may add certificates to the store and set flags on it.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_long, c_ulong, c_void, CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::{fmt, mem};

use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use rustls::{CertificateError, Error, OtherError};
use thiserror::Error as ThisError;

use super::libcrypto::{
    ErrorMark, Libcrypto, OpensslStack, Owned, X509Crl, X509Store, X509StoreCtx, X509,
};
use super::{PeerRole, TlsError};

/// `X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL` (<openssl/x509_vfy.h>): a list must cover
/// every certificate in the chain.
const CRL_CHECK: c_ulong = 0x4 | 0x8;
/// `X509_V_FLAG_NO_CHECK_TIME`: certificates and lists that are out of date are valid.
const NO_CHECK_TIME: c_ulong = 0x20_0000;
/// `X509_V_OK`: the chain is valid.
const OK: c_int = 0;
/// `X509_V_ERR_UNABLE_TO_GET_CRL`: a certificate's issuer has no list.
const NO_LIST: c_int = 3;
/// `X509_V_ERR_CERT_REVOKED`: a list names a certificate.
const REVOKED: c_int = 23;
/// The OpenSSL security level with at least 2048 bits for RSA keys, as in the rest of this module,
/// and without SHA-1 signatures.
const AUTH_LEVEL: c_int = 2;

/// `tls_cert_verify_callback_func_t`: takes an `X509_STORE_CTX` and the path of the revocation
/// lists; accepts by 0 or more. It may unwind, so that a panic or an exception in it is not
/// undefined.
pub type CertVerifyFn = unsafe extern "C-unwind" fn(*mut c_void, *const c_char) -> c_int;

/// The reason why OpenSSL or a `cert_verify_cb` did not accept a peer. Found inside of
/// [`CertificateError::Other`].
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum OpensslFault {
    /// The callback refused: its result, and OpenSSL's error if there is one: number, depth in the
    /// chain, and text.
    #[error("cert_verify_cb refuses it ({answer}){}", openssl_error(.found))]
    Refused {
        /// The result, below 0.
        answer: i32,
        /// The error in the `X509_STORE_CTX` afterwards.
        found: Option<(i32, i32, String)>,
    },
    /// The callback panicked.
    #[error("cert_verify_cb panicked instead of answering")]
    Panicked,
    /// OpenSSL had no memory, or refused its arguments.
    #[error("{0} of libcrypto failed, so that the peer could not be judged")]
    Libcrypto(&'static str),
    /// `X509_verify_cert` refused: number, depth in the chain, and text.
    #[error("OpenSSL refuses it: error {0} at depth {1}, {2}")]
    Unverified(i32, i32, String),
    /// The rules of this library refuse the peer, and there is no OpenSSL to judge it.
    #[error(
        "{rules}; a program of the C API accepts what OpenSSL does, and OpenSSL's libcrypto 3 or \
         1.1.1 cannot be used ({why})"
    )]
    Absent {
        /// The reason why the rules refuse the peer.
        rules: String,
        /// The error of the loader of shared libraries.
        why: &'static str,
    },
}

impl OpensslFault {
    /// The remedy.
    pub(super) fn remedy(&self) -> &'static str {
        match self {
            Self::Refused { .. } | Self::Panicked => {
                "see what cert_verify_cb of this program checks, or give the peer another \
                 certificate"
            }
            Self::Absent { .. } => {
                "install it (Debian, Ubuntu: libssl3 or libssl1.1; openEuler, Fedora: \
                 openssl-libs), or give the peer another certificate"
            }
            Self::Libcrypto(_) | Self::Unverified(..) => "give the peer another certificate",
        }
    }
}

fn openssl_error(found: &Option<(i32, i32, String)>) -> String {
    match found {
        Some((error, depth, text)) => format!(": error {error} at depth {depth}, {text}"),
        None => String::new(),
    }
}

impl From<OpensslFault> for Error {
    fn from(fault: OpensslFault) -> Self {
        CertificateError::Other(OtherError(Arc::new(fault))).into()
    }
}

/// A program's function that judges peers in place of the library.
#[derive(Clone)]
pub struct CertVerifyCallback {
    function: CertVerifyFn,
    crl_path: Arc<CStr>,
    libcrypto: Arc<Libcrypto>,
}

impl CertVerifyCallback {
    /// Loads libcrypto for the callback. `crl` is the path that is passed to it; `None`: `""`.
    ///
    /// # Errors
    /// [`TlsError::Libcrypto`]: no libcrypto can be used.
    ///
    /// # Safety
    /// While this, a clone or a [`Tls`](super::Tls) with it exists, the function may be called on
    /// any thread, on several at a time. It does not take ownership of its arguments.
    pub unsafe fn new(function: CertVerifyFn, crl: Option<&Path>) -> Result<Self, TlsError> {
        let libcrypto = Libcrypto::for_callback(function as *const c_void)?.into();
        let path = crl.map_or(&[][..], |path| path.as_os_str().as_bytes());
        // A path with a NUL names no file, so the lists could not have been loaded.
        let crl_path = CString::new(path).unwrap_or_default().into();
        Ok(Self { function, crl_path, libcrypto })
    }
}

impl fmt::Debug for CertVerifyCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertVerifyCallback")
            .field("crl_path", &self.crl_path)
            .finish_non_exhaustive()
    }
}

/// Judges peers with OpenSSL, by the CAs and lists of the files. Without a callback, libcrypto is
/// loaded only when a peer has to be judged.
#[derive(Debug)]
pub struct OpensslJudge {
    callback: Option<CertVerifyCallback>,
    cas: Vec<CertificateDer<'static>>,
    /// The revocation lists; `None`: there is no CRL file.
    crls: Option<Vec<CertificateRevocationListDer<'static>>>,
    trusted: OnceLock<Result<Trusted, OpensslFault>>,
}

/// The CAs and lists as OpenSSL objects.
#[derive(Debug)]
struct Trusted {
    libcrypto: Libcrypto,
    cas: Vec<Owned<X509>>,
    crls: Option<Vec<Owned<X509Crl>>>,
}

impl OpensslJudge {
    /// Trusts these CAs; with lists, certificates that the lists cover and do not revoke.
    ///
    /// # Errors
    /// With a callback: libcrypto refuses its arguments.
    pub fn new(
        callback: Option<CertVerifyCallback>,
        cas: Vec<CertificateDer<'static>>,
        crls: Option<Vec<CertificateRevocationListDer<'static>>>,
    ) -> Result<Self, TlsError> {
        let judge = Self { callback, cas, crls, trusted: OnceLock::new() };
        if judge.has_callback() {
            judge.trusted().map_err(|fault| TlsError::Config(fault.into()))?;
        }
        Ok(judge)
    }

    /// Whether a program's callback judges in place of everything else.
    pub fn has_callback(&self) -> bool {
        self.callback.is_some()
    }

    /// Whether a chain is accepted: by the callback if there is one, else by OpenSSL's
    /// verification.
    ///
    /// # Errors
    /// The reason; without libcrypto [`OpensslFault::Absent`].
    pub fn judge(
        &self,
        role: PeerRole,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Result<(), Error> {
        self.with_context(role, end_entity, intermediates, |trusted, ctx| match &self.callback {
            Some(callback) => ask(callback, trusted, ctx),
            None => verify(trusted, ctx),
        })?
    }

    /// Whether OpenSSL verifies a chain, without the callback.
    ///
    /// # Errors
    /// As [`Self::judge`].
    pub fn verify(
        &self,
        role: PeerRole,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Result<(), Error> {
        self.with_context(role, end_entity, intermediates, verify)?
    }

    /// Whether a list revokes a certificate of a chain that OpenSSL otherwise verifies.
    /// Certificates and lists may be out of date.
    pub fn is_revoked(
        &self,
        role: PeerRole,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> bool {
        let found = self.with_context(role, end_entity, intermediates, |trusted, ctx| {
            let libcrypto = &trusted.libcrypto;
            ERROR_OF.set(Some(libcrypto.X509_STORE_CTX_get_error));
            // SAFETY: an initialised context, whose parameters are its own, and a function that
            // only uses its arguments.
            unsafe {
                let param = (libcrypto.X509_STORE_CTX_get0_param)(ctx.raw());
                (libcrypto.X509_VERIFY_PARAM_set_flags)(param, NO_CHECK_TIME);
                (libcrypto.X509_STORE_CTX_set_verify_cb)(ctx.raw(), pass_unlisted);
                (libcrypto.X509_verify_cert)(ctx.raw());
            }
            trusted.error_in(ctx)
        });
        matches!(found, Ok(Some((REVOKED, ..))))
    }

    fn trusted(&self) -> Result<&Trusted, OpensslFault> {
        let trusted = self.trusted.get_or_init(|| {
            let libcrypto = match &self.callback {
                Some(callback) => *callback.libcrypto,
                None => Libcrypto::found()
                    .map_err(|why| OpensslFault::Absent { rules: String::new(), why })?,
            };
            let _mark = ErrorMark::set(libcrypto);
            let cas: Option<Vec<_>> =
                self.cas.iter().map(|der| libcrypto.certificate(der)).collect();
            let list = |der: &CertificateRevocationListDer<'_>| libcrypto.list(der);
            let crls = self.crls.as_ref().map(|crls| crls.iter().map(list).collect::<Option<_>>());
            let crls = crls.map(|crls| crls.ok_or(OpensslFault::Libcrypto("d2i_X509_CRL")));
            let cas = cas.ok_or(OpensslFault::Libcrypto("d2i_X509"))?;
            Ok(Trusted { libcrypto, cas, crls: crls.transpose()? })
        });
        trusted.as_ref().map_err(Clone::clone)
    }

    /// Calls `act` with a context for a chain.
    fn with_context<R>(
        &self,
        role: PeerRole,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        act: impl FnOnce(&Trusted, &Owned<X509StoreCtx>) -> R,
    ) -> Result<R, Error> {
        let trusted = self.trusted()?;
        // Declared in this order because they are dropped in the reverse one: the context borrows
        // the others.
        let _mark = ErrorMark::set(trusted.libcrypto);
        let store = trusted.store()?;
        let chain = [end_entity].into_iter().chain(intermediates);
        let chain: Option<Vec<_>> = chain.map(|der| trusted.libcrypto.certificate(der)).collect();
        let chain = chain.ok_or(CertificateError::BadEncoding)?;
        let leaf = chain.first().ok_or(CertificateError::BadEncoding)?;
        let untrusted = trusted.untrusted(&chain)?;
        let ctx = trusted.context(role, &store, leaf, &untrusted)?;
        Ok(act(trusted, &ctx))
    }
}

/// Asks a program's callback.
fn ask(
    callback: &CertVerifyCallback,
    trusted: &Trusted,
    ctx: &Owned<X509StoreCtx>,
) -> Result<(), Error> {
    let (function, path) = (callback.function, &callback.crl_path);
    // SAFETY: the program's function, by the promise of `CertVerifyCallback::new`, with a
    // context and a C string that outlive the call.
    let asked = || unsafe { function(ctx.raw().cast(), path.as_ptr()) };
    let answer = catch_unwind(AssertUnwindSafe(asked)).map_err(|payload| {
        mem::forget(payload); // the payload is leaked, because dropping it might panic again
        OpensslFault::Panicked
    })?;
    let found = trusted.error_in(ctx);
    if answer < 0 {
        return Err(OpensslFault::Refused { answer, found }.into());
    }
    if let Some(found) = found {
        warn_of_acceptance(answer, found);
    }
    Ok(())
}

/// OpenSSL's verification, with the error names of rustls for the most frequent errors.
fn verify(trusted: &Trusted, ctx: &Owned<X509StoreCtx>) -> Result<(), Error> {
    // SAFETY: an initialised context.
    if unsafe { (trusted.libcrypto.X509_verify_cert)(ctx.raw()) } == 1 {
        return Ok(());
    }
    let failed = OpensslFault::Libcrypto("X509_verify_cert");
    let (error, depth, text) = trusted.error_in(ctx).ok_or(failed)?;
    Err(match error {
        NO_LIST => CertificateError::UnknownRevocationStatus.into(),
        9 => CertificateError::NotValidYet.into(), // X509_V_ERR_CERT_NOT_YET_VALID
        10 => CertificateError::Expired.into(),    // X509_V_ERR_CERT_HAS_EXPIRED
        12 => CertificateError::ExpiredRevocationList.into(), // X509_V_ERR_CRL_HAS_EXPIRED
        // X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT, X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT and those
        // that follow it
        2 | 18..=21 => CertificateError::UnknownIssuer.into(),
        REVOKED => CertificateError::Revoked.into(),
        26 => CertificateError::InvalidPurpose.into(), // X509_V_ERR_INVALID_PURPOSE
        _ => OpensslFault::Unverified(error, depth, text).into(),
    })
}

/// Accepts a certificate without a list, so that a revoked one later in the chain is found.
unsafe extern "C" fn pass_unlisted(is_right: c_int, ctx: *mut X509StoreCtx) -> c_int {
    let unlisted = ERROR_OF.get().is_some_and(|error_of| {
        // SAFETY: the context that OpenSSL verifies, and the function of the same library.
        unsafe { error_of(ctx) == NO_LIST }
    });
    c_int::from(is_right == 1 || unlisted)
}

thread_local! {
    /// `X509_STORE_CTX_get_error` of the library with which this thread verifies.
    static ERROR_OF: Cell<Option<ErrorOf>> = const { Cell::new(None) };
}

type ErrorOf = unsafe extern "C" fn(*mut X509StoreCtx) -> c_int;

impl Trusted {
    /// A store with the CAs and lists, which all stores share; OpenSSL counts the references.
    fn store(&self) -> Result<Owned<X509Store>, OpensslFault> {
        let libcrypto = &self.libcrypto;
        // SAFETY: no arguments.
        let raw = unsafe { (libcrypto.X509_STORE_new)() };
        let store = Owned::new(raw, libcrypto.X509_STORE_free);
        let store = store.ok_or(OpensslFault::Libcrypto("X509_STORE_new"))?;
        let mut added = 1;
        for ca in &self.cas {
            // SAFETY: both objects are of this library; the store takes a reference of its own.
            added &= unsafe { (libcrypto.X509_STORE_add_cert)(store.raw(), ca.raw()) };
        }
        for crl in self.crls.iter().flatten() {
            // SAFETY: both objects are of this library; the store takes a reference of its own.
            added &= unsafe { (libcrypto.X509_STORE_add_crl)(store.raw(), crl.raw()) };
        }
        if self.crls.is_some() {
            // SAFETY: a store of this library.
            added &= unsafe { (libcrypto.X509_STORE_set_flags)(store.raw(), CRL_CHECK) };
        }
        (added == 1).then_some(store).ok_or(OpensslFault::Libcrypto("X509_STORE"))
    }

    /// The whole chain, including the leaf, as libssl passes it. The stack does not own the
    /// certificates.
    fn untrusted(&self, chain: &[Owned<X509>]) -> Result<Owned<OpensslStack>, OpensslFault> {
        let libcrypto = &self.libcrypto;
        // SAFETY: no arguments.
        let raw = unsafe { (libcrypto.OPENSSL_sk_new_null)() };
        let stack = Owned::new(raw, libcrypto.OPENSSL_sk_free);
        let stack = stack.ok_or(OpensslFault::Libcrypto("OPENSSL_sk_new_null"))?;
        for certificate in chain {
            let item = certificate.raw().cast_const().cast();
            // SAFETY: a stack of this library, and an item for it.
            if unsafe { (libcrypto.OPENSSL_sk_push)(stack.raw(), item) } <= 0 {
                return Err(OpensslFault::Libcrypto("OPENSSL_sk_push"));
            }
        }
        Ok(stack)
    }

    /// A context as libssl sets it up: with the purpose of the peer's side, and a security level.
    fn context(
        &self,
        role: PeerRole,
        store: &Owned<X509Store>,
        leaf: &Owned<X509>,
        untrusted: &Owned<OpensslStack>,
    ) -> Result<Owned<X509StoreCtx>, OpensslFault> {
        let libcrypto = &self.libcrypto;
        let purpose = match role {
            PeerRole::Client => c"ssl_client",
            PeerRole::Server => c"ssl_server",
        };
        let failed = OpensslFault::Libcrypto;
        // SAFETY: no arguments.
        let raw = unsafe { (libcrypto.X509_STORE_CTX_new)() };
        let ctx = Owned::new(raw, libcrypto.X509_STORE_CTX_free);
        let ctx = ctx.ok_or(failed("X509_STORE_CTX_new"))?;
        let (store, leaf, untrusted) = (store.raw(), leaf.raw(), untrusted.raw());
        // SAFETY: objects of this library, all of which outlive the context in `judge`.
        if unsafe { (libcrypto.X509_STORE_CTX_init)(ctx.raw(), store, leaf, untrusted) } != 1 {
            return Err(failed("X509_STORE_CTX_init"));
        }
        // SAFETY: an initialised context, and a C string.
        if unsafe { (libcrypto.X509_STORE_CTX_set_default)(ctx.raw(), purpose.as_ptr()) } != 1 {
            return Err(failed("X509_STORE_CTX_set_default"));
        }
        // SAFETY: an initialised context has parameters, which are its own.
        unsafe {
            let param = (libcrypto.X509_STORE_CTX_get0_param)(ctx.raw());
            (libcrypto.X509_VERIFY_PARAM_set_auth_level)(param, AUTH_LEVEL);
        }
        Ok(ctx)
    }

    /// Number, depth and text of the error in a context.
    fn error_in(&self, ctx: &Owned<X509StoreCtx>) -> Option<(i32, i32, String)> {
        let libcrypto = &self.libcrypto;
        // SAFETY: both calls get an initialised context.
        let (error, depth) = unsafe {
            let error = (libcrypto.X509_STORE_CTX_get_error)(ctx.raw());
            (error, (libcrypto.X509_STORE_CTX_get_error_depth)(ctx.raw()))
        };
        if error == OK {
            return None;
        }
        // SAFETY: any number has a text, which is a constant of the library.
        let text = unsafe { (libcrypto.X509_verify_cert_error_string)(c_long::from(error)) };
        if text.is_null() {
            return Some((error, depth, "unknown".into()));
        }
        // SAFETY: not null: a C string that stays.
        let text = unsafe { CStr::from_ptr(text) };
        Some((error, depth, text.to_string_lossy().into_owned()))
    }
}

/// Logs once that a callback accepts a peer that OpenSSL refuses: it may have its reasons, or it
/// returned the result of `X509_verify_cert`.
fn warn_of_acceptance(answer: i32, found: (i32, i32, String)) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        let found = openssl_error(&Some(found));
        log::warn!(
            "cert_verify_cb accepts a peer ({answer}) that OpenSSL refuses{found}; if that is not \
             meant, return a negative value to refuse: 0 accepts, also the 0 of X509_verify_cert"
        );
    }
}
