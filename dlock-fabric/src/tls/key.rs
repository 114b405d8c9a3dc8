// SPDX-License-Identifier: MIT OR Apache-2.0
//! The private key: PKCS#8, PKCS#1, SEC1 and encrypted PKCS#8, in memory that is wiped.
//!
//! ```text
//!   file ─▶ the one PRIVATE KEY block ─▶ base64 ─▶ [password ─▶ PBES2] ─▶ [SEC1 ─▶ PKCS#8] ─▶ ring
//!             every buffer has its size from the beginning and is wiped when it is dropped
//! ```
//! In programs of the C API, OpenSSL loads keys that this file refuses (`openssl_key.rs`).

use std::path::Path;
use std::sync::{Arc, OnceLock};

use base64ct::{Base64, Encoding};
use pkcs8::pkcs5::pbes2::Kdf;
use pkcs8::pkcs5::EncryptionScheme;
use pkcs8::{EncryptedPrivateKeyInfoRef, ObjectIdentifier, PrivateKeyInfoRef, SecretDocument};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer};
use rustls::sign::SigningKey;
use x509_cert::der::asn1::{AnyRef, OctetStringRef};
use x509_cert::der::Decode;
use x509_cert::spki::AlgorithmIdentifierRef;
use zeroize::Zeroizing;

use super::{files, openssl_key, KeyPassword, TlsError, KEY_FILE_BYTES_MAX};

/// The limit for PBKDF2 rounds: some seconds of one core.
const PBKDF2_ROUNDS_MAX: u32 = 10_000_000;
/// The limits for scrypt: memory, and work in multiples of it.
const SCRYPT_BYTES_MAX: u64 = 256 << 20;
const SCRYPT_PARALLEL_MAX: u16 = 16;

const EC_PUBLIC_KEY: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const P256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7");
const P384: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.132.0.34");

const WHAT: &str = "private key";
const BEGIN: &[u8] = b"-----BEGIN ";
const END: &[u8] = b"-----END ";
const DASHES: &[u8] = b"-----";

/// Loads the only private key of the file. If `by_openssl` allows it, OpenSSL loads keys whose kind
/// or encryption is not supported here.
pub fn load(
    path: &Path,
    password: &dyn KeyPassword,
    by_openssl: bool,
) -> Result<Arc<dyn SigningKey>, TlsError> {
    let text = files::read_secret(path, KEY_FILE_BYTES_MAX)?;
    let block = only_key(path, &text)?;
    let password = AskedOnce { password, answer: OnceLock::new() };
    match understood(path, &block, &password) {
        Err(cause @ (TlsError::UnsupportedKey { .. } | TlsError::UnsupportedEncryption { .. }))
            if by_openssl =>
        {
            openssl_key::load(path, &text, &password, &cause)
        }
        result => result,
    }
}

fn understood(
    path: &Path,
    block: &Block<'_>,
    password: &dyn KeyPassword,
) -> Result<Arc<dyn SigningKey>, TlsError> {
    let der = decoded(path, block)?;
    match block.label {
        b"PRIVATE KEY" => pkcs8(path, &der),
        b"ENCRYPTED PRIVATE KEY" => pkcs8(path, &decrypted(path, &der, password)?),
        b"RSA PRIVATE KEY" => signing_key(path, &PrivatePkcs1KeyDer::from(&der[..]).into()),
        b"EC PRIVATE KEY" => sec1(path, &der),
        other => {
            let cause = String::from_utf8_lossy(other).into_owned();
            Err(TlsError::UnsupportedKey { path: path.into(), cause })
        }
    }
}

/// Asks for the password once per load.
#[derive(Debug)]
struct AskedOnce<'a> {
    password: &'a dyn KeyPassword,
    answer: OnceLock<Option<Zeroizing<Vec<u8>>>>,
}

impl KeyPassword for AskedOnce<'_> {
    fn password(&self) -> Result<Option<Zeroizing<Vec<u8>>>, TlsError> {
        if let Some(answer) = self.answer.get() {
            return Ok(answer.clone());
        }
        let answer = self.password.password()?;
        Ok(self.answer.get_or_init(|| answer).clone())
    }
}

/// A block of a PEM file.
struct Block<'a> {
    label: &'a [u8],
    body: &'a [u8],
}

/// The only block whose label ends in `PRIVATE KEY`; other blocks, such as parameters, are skipped.
fn only_key<'a>(path: &Path, text: &'a [u8]) -> Result<Block<'a>, TlsError> {
    let broken = |cause: &str| TlsError::Pem { path: path.into(), cause: cause.into() };
    let mut found = None;
    let mut rest = text;
    while let Some(at) = position(rest, BEGIN) {
        rest = &rest[at + BEGIN.len()..];
        let label_len = position(rest, DASHES).ok_or_else(|| broken("a BEGIN line breaks off"))?;
        let label = &rest[..label_len];
        rest = &rest[label_len + DASHES.len()..];
        let body_len = position(rest, END).ok_or_else(|| broken("there is no END line"))?;
        let body = &rest[..body_len];
        rest = &rest[body_len + END.len()..];
        if !rest.strip_prefix(label).is_some_and(|rest| rest.starts_with(DASHES)) {
            return Err(broken("the END line does not fit the BEGIN line"));
        }
        if label.ends_with(b"PRIVATE KEY") && found.replace(Block { label, body }).is_some() {
            return Err(TlsError::TooMany { path: path.into(), what: WHAT, max: 1 });
        }
    }
    found.ok_or(TlsError::Nothing { path: path.into(), what: WHAT })
}

fn position(text: &[u8], pattern: &[u8]) -> Option<usize> {
    text.windows(pattern.len()).position(|window| window == pattern)
}

fn decoded(path: &Path, block: &Block<'_>) -> Result<Zeroizing<Vec<u8>>, TlsError> {
    if position(block.body, b"Proc-Type:").is_some() {
        let cause = "the format of OpenSSL before PKCS#8".into();
        return Err(TlsError::UnsupportedEncryption { path: path.into(), cause });
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(block.body.len()));
    bytes.extend(block.body.iter().filter(|byte| !byte.is_ascii_whitespace()));
    let len = match Base64::decode_in_place(&mut bytes) {
        Ok(der) => der.len(),
        Err(_) => {
            return Err(TlsError::Pem { path: path.into(), cause: "it is not base64".into() })
        }
    };
    bytes.truncate(len); // the bytes behind are wiped with the whole capacity of the buffer
    Ok(bytes)
}

fn decrypted(
    path: &Path,
    der: &[u8],
    password: &dyn KeyPassword,
) -> Result<Zeroizing<Vec<u8>>, TlsError> {
    let unsupported = |cause: String| TlsError::UnsupportedEncryption { path: path.into(), cause };
    let info = EncryptedPrivateKeyInfoRef::from_der(der).map_err(|e| unsupported(e.to_string()))?;
    if !matches!(info.encryption_algorithm, EncryptionScheme::Pbes2(_)) {
        return Err(unsupported("PBES1".into()));
    }
    refuse_costly(&info.encryption_algorithm)
        .map_err(|cause| TlsError::CostlyEncryption { path: path.into(), cause })?;
    let password =
        password.password()?.ok_or_else(|| TlsError::PasswordMissing { path: path.into() })?;
    let mut bytes = Zeroizing::new(info.encrypted_data.as_bytes().to_vec());
    let decrypted = info.encryption_algorithm.decrypt_in_place(&*password, &mut bytes);
    let len = match decrypted {
        Ok(key) => key.len(),
        Err(pkcs8::pkcs5::Error::DecryptFailed) => {
            return Err(TlsError::PasswordWrong { path: path.into() })
        }
        Err(error) => return Err(unsupported(error.to_string())),
    };
    bytes.truncate(len);
    // The padding is right for one in 256 wrong passwords.
    match PrivateKeyInfoRef::from_der(&bytes) {
        Ok(_) => Ok(bytes),
        Err(_) => Err(TlsError::PasswordWrong { path: path.into() }),
    }
}

fn refuse_costly(scheme: &EncryptionScheme) -> Result<(), &'static str> {
    let EncryptionScheme::Pbes2(parameters) = scheme else { return Ok(()) };
    match &parameters.kdf {
        Kdf::Pbkdf2(pbkdf2) if pbkdf2.iteration_count > PBKDF2_ROUNDS_MAX => {
            Err("too many rounds of PBKDF2")
        }
        Kdf::Scrypt(scrypt) => {
            let bytes = scrypt.cost_parameter.saturating_mul(128 * u64::from(scrypt.block_size));
            let costly = bytes > SCRYPT_BYTES_MAX || scrypt.parallelization > SCRYPT_PARALLEL_MAX;
            if costly {
                Err("scrypt with too much memory or work")
            } else {
                Ok(())
            }
        }
        _ => Ok(()),
    }
}

fn pkcs8(path: &Path, der: &[u8]) -> Result<Arc<dyn SigningKey>, TlsError> {
    signing_key(path, &PrivatePkcs8KeyDer::from(der).into())
}

/// Converts the key, because ring takes only PKCS#8. rustls would convert it in memory that is not
/// wiped.
fn sec1(path: &Path, der: &[u8]) -> Result<Arc<dyn SigningKey>, TlsError> {
    let malformed = |error: x509_cert::der::Error| TlsError::Malformed {
        path: path.into(),
        what: WHAT,
        cause: error.to_string(),
    };
    let mut result = Err(TlsError::UnsupportedKey { path: path.into(), cause: String::new() });
    for curve in [&P256, &P384] {
        let parameters = Some(AnyRef::from(curve));
        let algorithm = AlgorithmIdentifierRef { oid: EC_PUBLIC_KEY, parameters };
        let key = OctetStringRef::new(der).map_err(malformed)?;
        let key = PrivateKeyInfoRef::new(algorithm, key);
        let key = SecretDocument::encode_msg(&key).map_err(malformed)?;
        result = pkcs8(path, key.as_bytes());
        if result.is_ok() {
            break;
        }
    }
    result
}

fn signing_key(path: &Path, der: &PrivateKeyDer<'_>) -> Result<Arc<dyn SigningKey>, TlsError> {
    any_supported_type(der)
        .map_err(|error| TlsError::UnsupportedKey { path: path.into(), cause: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pkcs8::pkcs5::pbes2;

    const KEY: &str = "-----BEGIN EC PRIVATE KEY-----\nAAEC\n-----END EC PRIVATE KEY-----\n";

    fn found(text: &str) -> Result<(String, Vec<u8>), TlsError> {
        let path = Path::new("node.key");
        let block = only_key(path, text.as_bytes())?;
        let label = String::from_utf8_lossy(block.label).into_owned();
        Ok((label, decoded(path, &block)?.to_vec()))
    }

    #[test]
    fn the_one_key_of_a_file_is_found_between_other_text() {
        let expected = ("EC PRIVATE KEY".to_string(), vec![0, 1, 2]);
        let parameters = "-----BEGIN EC PARAMETERS-----\nAA==\n-----END EC PARAMETERS-----\n";
        let certificate = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
        for text in [
            KEY.to_string(),
            KEY.replace('\n', "\r\n"),
            format!("Bag Attributes\n  friendlyName: x\n{parameters}{KEY}\nmore\n{certificate}"),
            KEY.replace("AAEC", "A A\n\tEC "),
        ] {
            assert_eq!(found(&text).unwrap(), expected, "{text}");
        }
        assert!(matches!(found(certificate), Err(TlsError::Nothing { .. })));
        assert!(matches!(found(&KEY.repeat(2)), Err(TlsError::TooMany { max: 1, .. })));
    }

    #[test]
    fn blocks_that_are_not_whole_are_refused() {
        for text in [
            "-----BEGIN ",
            "-----BEGIN PRIVATE KEY",
            "-----BEGIN PRIVATE KEY-----\nAAEC\n",
            "-----BEGIN PRIVATE KEY-----\nAAEC\n-----END ",
            "-----BEGIN PRIVATE KEY-----\nAAEC\n-----END EC PRIVATE KEY-----\n",
            "-----BEGIN PRIVATE KEY-----\nAAE\n-----END PRIVATE KEY-----\n",
            "-----BEGIN PRIVATE KEY-----\nAAEC=\n-----END PRIVATE KEY-----\n",
            "-----BEGIN PRIVATE KEY-----\nA!EC\n-----END PRIVATE KEY-----\n",
        ] {
            assert!(matches!(found(text), Err(TlsError::Pem { .. })), "{text}");
        }
    }

    #[test]
    fn the_work_to_decrypt_a_key_is_bounded() {
        let pbkdf2 = |rounds| {
            let kdf = pbes2::Pbkdf2Params::hmac_sha256(rounds, b"salt").unwrap().into();
            let encryption = pbes2::EncryptionScheme::Aes256Cbc { iv: [0; 16] };
            EncryptionScheme::Pbes2(pbes2::Parameters { kdf, encryption })
        };
        assert!(refuse_costly(&pbkdf2(PBKDF2_ROUNDS_MAX)).is_ok());
        assert!(refuse_costly(&pbkdf2(PBKDF2_ROUNDS_MAX + 1)).is_err());
        let scrypt = |log_n, parallel| {
            let params = pkcs8::pkcs5::scrypt::Params::new(log_n, 8, parallel).unwrap();
            let kdf = pbes2::ScryptParams::from_params_and_salt(params, b"salt").unwrap().into();
            let encryption = pbes2::EncryptionScheme::Aes256Cbc { iv: [0; 16] };
            EncryptionScheme::Pbes2(pbes2::Parameters { kdf, encryption })
        };
        // 128 * 8 bytes for each step: 2^18 of them are 256 MiB.
        assert!(refuse_costly(&scrypt(18, 1)).is_ok());
        assert!(refuse_costly(&scrypt(19, 1)).is_err());
        assert!(refuse_costly(&scrypt(10, 16)).is_ok());
        assert!(refuse_costly(&scrypt(10, 17)).is_err());
    }
}
