// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of certificates and keys: the file, the cause and the remedy.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::certificate::printable;
use super::{OpensslFault, CHAIN_CERTIFICATES_MAX, RSA_BITS_MIN};

/// Why a TLS configuration could not be loaded, or a peer's certificate was refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The file does not exist.
    #[error("{path} does not exist; check the path in the configuration")]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The system refuses to read the file.
    #[error("cannot read {path}: {source}; give this user the right to read it (chown, chmod)")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The path is that of a folder, a pipe or a device.
    #[error("{path} is not a regular file; name a PEM file")]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file is empty.
    #[error("{path} is empty; was it written completely?")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file became larger while it was read.
    #[error("{path} was written to while it was read; replace such files by renaming")]
    Growing {
        /// The file.
        path: PathBuf,
    },
    /// The file has more bytes than any such file needs.
    #[error("{path} has more than {bytes_max} bytes; is it the right file?")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The most bytes that such a file may have.
        bytes_max: u64,
    },
    /// The PEM breaks off or is not base64.
    #[error("the PEM of {path} is damaged ({cause}); copy the file again")]
    Pem {
        /// The file.
        path: PathBuf,
        /// The decoder's error.
        cause: String,
    },
    /// The file has no item of the kind that is needed.
    #[error("{path} holds no {what} in PEM; is it the right file? (DER must be converted first)")]
    Nothing {
        /// The file.
        path: PathBuf,
        /// A certificate, a revocation list, a private key.
        what: &'static str,
    },
    /// The file has too many items.
    #[error("{path} holds more than {max} of kind {what}; remove those that are not needed")]
    TooMany {
        /// The file.
        path: PathBuf,
        /// Certificates, revocation lists, private keys.
        what: &'static str,
        /// The limit: [`super::CA_CERTIFICATES_MAX`], [`super::CRLS_MAX`], or one key.
        max: usize,
    },
    /// The content of a PEM block is not valid.
    #[error("{path} holds a {what} that cannot be parsed ({cause}); make it again")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// A certificate, a revocation list, a private key.
        what: &'static str,
        /// The parser's error.
        cause: String,
    },
    /// The CA file holds a certificate that is not a CA's.
    #[error(
        "{path} holds the certificate of {subject}, which is no CA; put the CA's certificate \
             there (X.509 v3, with basicConstraints CA:TRUE, as openssl req -x509 makes it), and \
             others into the certificate file"
    )]
    NotACa {
        /// The CA file.
        path: PathBuf,
        /// The subject of the certificate.
        subject: String,
    },
    /// No CA of the CA file is valid now.
    #[error("no CA of {path} is valid now ({subject}: {cause}); renew the CA's certificate")]
    NoCurrentCa {
        /// The CA file.
        path: PathBuf,
        /// The subject of one of them.
        subject: String,
        /// Expired, or not yet valid.
        cause: &'static str,
    },
    /// The own certificate is not valid now.
    #[error("the certificate of {path} ({subject}) is {cause}; renew it, or set the clock")]
    NotCurrent {
        /// The certificate file.
        path: PathBuf,
        /// The subject of the certificate.
        subject: String,
        /// Expired, or not yet valid.
        cause: &'static str,
    },
    /// The own certificate is a CA's.
    #[error("the first certificate of {path} ({subject}) is a CA's; put this process's own first")]
    CaAsEndEntity {
        /// The certificate file.
        path: PathBuf,
        /// The subject of the certificate.
        subject: String,
    },
    /// More certificates in the certificate file than peers accept.
    #[error(
        "{path} holds {found} certificates, and peers accept {CHAIN_CERTIFICATES_MAX}; leave \
             out those that do not lead to the CA, and the CA's own"
    )]
    ChainTooLong {
        /// The certificate file.
        path: PathBuf,
        /// The number of certificates.
        found: usize,
    },
    /// An RSA key is too short.
    #[error(
        "{path}: the key of {subject} is RSA with {bits} bits, and {RSA_BITS_MIN} is the \
             least; make a new key and certificate"
    )]
    WeakKey {
        /// The file.
        path: PathBuf,
        /// The subject of its certificate.
        subject: String,
        /// The size of the key.
        bits: u32,
    },
    /// A kind of key that is not supported.
    #[error(
        "{path}: keys of this kind are not supported ({cause}); use ECDSA with P-256 or \
             P-384, Ed25519, or RSA with 2048 to 8192 bits"
    )]
    UnsupportedKey {
        /// The file.
        path: PathBuf,
        /// The kind of the key.
        cause: String,
    },
    /// The key is not that of the certificate.
    #[error(
        "the key of {key} does not belong to the certificate of {cert}; was only one of them \
             replaced?"
    )]
    KeyMismatch {
        /// The key file.
        key: PathBuf,
        /// The certificate file.
        cert: PathBuf,
    },
    /// The key is encrypted, and there is no password.
    #[error(
        "the key of {path} is encrypted, and no password was given; configure the password, \
             or decrypt the key (openssl pkey)"
    )]
    PasswordMissing {
        /// The key file.
        path: PathBuf,
    },
    /// The password does not decrypt the key.
    #[error("the password does not decrypt the key of {path}; check password and file")]
    PasswordWrong {
        /// The key file.
        path: PathBuf,
    },
    /// The password could not be read.
    #[error("no password could be had for the key: {0}; see the program that provides it")]
    Password(String),
    /// The encryption of the key is not supported.
    #[error(
        "the key of {path} is encrypted in a way that is not supported ({cause}); convert \
             it: openssl pkcs8 -topk8 -v2 aes-256-cbc -v2prf hmacWithSHA256"
    )]
    UnsupportedEncryption {
        /// The key file.
        path: PathBuf,
        /// The encryption.
        cause: String,
    },
    /// Decrypting the key would take too long.
    #[error(
        "the key of {path} is encrypted with {cause}: it would take minutes to open; convert it: \
             openssl pkcs8 -topk8 -v2 aes-256-cbc -v2prf hmacWithSHA256"
    )]
    CostlyEncryption {
        /// The key file.
        path: PathBuf,
        /// The excessive parameter.
        cause: &'static str,
    },
    /// The key needs OpenSSL, which cannot be used.
    #[error(
        "{cause}. A program of the C API has such keys loaded by OpenSSL's libcrypto 3 or 1.1.1, \
             which cannot be used ({why}); install it (Debian, Ubuntu: libssl3 or libssl1.1; \
             openEuler, Fedora: openssl-libs), or convert the key"
    )]
    LibcryptoForKey {
        /// The reason why the key needs OpenSSL; it names the file.
        cause: String,
        /// The error of the loader of shared libraries.
        why: &'static str,
    },
    /// A revocation list is out of date.
    #[error(
        "the revocation list of {issuer} in {path} is out of date since its next update was \
             due; fetch or issue a new one"
    )]
    StaleCrl {
        /// The CRL file.
        path: PathBuf,
        /// The issuer of the list.
        issuer: String,
    },
    /// No revocation list is of a trusted CA.
    #[error(
        "{path} holds no revocation list of a CA of {ca}, so that every peer would be \
             refused; add the list of each CA"
    )]
    CrlOfAnotherCa {
        /// The CRL file.
        path: PathBuf,
        /// The CA file.
        ca: PathBuf,
    },
    /// A revocation list is not signed by its CA.
    #[error("the revocation list of {issuer} in {path} is not signed by that CA; fetch it again")]
    CrlSignature {
        /// The CRL file.
        path: PathBuf,
        /// The issuer that the list names.
        issuer: String,
    },
    /// The certificate of this process is revoked.
    #[error("the certificate of {cert} ({subject}) is revoked by {crl}; get a new one")]
    Revoked {
        /// The certificate file.
        cert: PathBuf,
        /// The CRL file.
        crl: PathBuf,
        /// The subject of the certificate.
        subject: String,
    },
    /// A `cert_verify_cb` needs OpenSSL, which cannot be used.
    #[error(
        "cert_verify_cb needs OpenSSL's libcrypto 3 or 1.1.1, and it cannot be used \
             ({0}); install it (Debian, Ubuntu: libssl3 or libssl1.1; openEuler, Fedora: \
             openssl-libs), or leave cert_verify_cb NULL"
    )]
    Libcrypto(String),
    /// rustls refuses the loaded configuration.
    #[error("the configuration was refused: {0}; see the files named in it")]
    Config(#[source] rustls::Error),
    /// A peer's certificate has no name.
    #[error("the peer's certificate {0}; give it a subject or a subject alternative name")]
    NoIdentity(&'static str),
    /// A handshake failed: this side or the peer refused.
    #[error("TLS: {}; {remedy}", cause(source))]
    Handshake {
        /// The error of rustls.
        source: rustls::Error,
        /// The remedy.
        remedy: &'static str,
    },
}

impl TlsError {
    /// Whether the error is one of the key's password.
    pub(super) fn is_of_password(&self) -> bool {
        matches!(
            self,
            Self::PasswordMissing { .. } | Self::PasswordWrong { .. } | Self::Password(_)
        )
    }

    pub(crate) fn unreadable(path: &Path, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::NotFound => Self::Missing { path: path.into() },
            _ => Self::Unreadable { path: path.into(), source },
        }
    }
}

/// An error of a handshake, with its remedy.
impl From<rustls::Error> for TlsError {
    fn from(source: rustls::Error) -> Self {
        let remedy = remedy(&source);
        Self::Handshake { source, remedy }
    }
}

/// The text of an error, printable because it may have names that the peer chose.
pub(super) fn cause(error: &rustls::Error) -> String {
    use rustls::{CertificateError, Error, OtherError};
    match error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) => {
            printable(&format!("invalid peer certificate: {inner}"))
        }
        other => printable(&other.to_string()),
    }
}

fn remedy(error: &rustls::Error) -> &'static str {
    use rustls::{AlertDescription as Alert, CertificateError as Cert, Error, OtherError};
    match error {
        Error::InvalidCertificate(cert) => match cert {
            Cert::Expired | Cert::ExpiredContext { .. } => {
                "renew the peer's certificate, or its CA's, or set the clocks"
            }
            Cert::NotValidYet | Cert::NotValidYetContext { .. } => {
                "set the clocks, or wait until the peer's certificate is valid"
            }
            Cert::Revoked => "the peer's certificate was revoked: it needs a new one",
            Cert::UnknownIssuer => {
                "add the peer's CA to the CA file, or the missing intermediate certificates to \
                 the peer's certificate file"
            }
            Cert::UnknownRevocationStatus => {
                "add the revocation list of each CA in the peer's chain to the CRL file"
            }
            Cert::ExpiredRevocationList | Cert::ExpiredRevocationListContext { .. } => {
                "fetch or issue a new revocation list"
            }
            Cert::InvalidPurpose | Cert::InvalidPurposeContext { .. } => {
                "give the peer a certificate whose key usage has digital signature, and whose \
                 extended key usage allows its role"
            }
            Cert::NotValidForName | Cert::NotValidForNameContext { .. } => {
                "connect to the right host, or add the name to the server's certificate"
            }
            Cert::Other(OtherError(inner)) => {
                if let Some(fault) = inner.downcast_ref::<OpensslFault>() {
                    return fault.remedy();
                }
                match inner.downcast_ref::<webpki::Error>() {
                    Some(webpki::Error::UnsupportedCertVersion) => {
                        "issue the peer's certificate as X.509 v3: dlock certs does, and openssl \
                         x509 -req with -extfile; v1 is for primaries and clients in C programs"
                    }
                    _ => "give the peer another certificate",
                }
            }
            _ => "give the peer another certificate",
        },
        Error::InvalidCertRevocationList(_) => "fetch or issue a new revocation list",
        Error::NoCertificatesPresented => "configure certificate and key of the peer",
        Error::PeerIncompatible(_) => "the peer must speak TLS 1.3 with TLS_AES_256_GCM_SHA384",
        Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => {
            "is TLS configured on both sides, and is that port a dlock primary's?"
        }
        Error::AlertReceived(Alert::ProtocolVersion | Alert::HandshakeFailure) => {
            "the peer must speak TLS 1.3 with TLS_AES_256_GCM_SHA384"
        }
        Error::AlertReceived(_) => "the peer refuses: its log says why",
        _ => "see the log of the peer, too",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::PeerFault;
    use rustls::pki_types::{ServerName, UnixTime};
    use rustls::{AlertDescription, CertRevocationListError, CertificateError, Error};

    #[test]
    fn what_happened_in_a_handshake_is_told_with_what_to_do() {
        let time = |s| UnixTime::since_unix_epoch(std::time::Duration::from_secs(s));
        let errors = [
            Error::InvalidCertificate(CertificateError::UnknownIssuer),
            Error::InvalidCertificate(CertificateError::Revoked),
            Error::InvalidCertificate(CertificateError::ExpiredContext {
                time: time(20),
                not_after: time(10),
            }),
            Error::InvalidCertificate(CertificateError::ExpiredRevocationListContext {
                time: time(20),
                next_update: time(10),
            }),
            Error::InvalidCertificate(CertificateError::NotValidForNameContext {
                expected: ServerName::try_from("primary.example").unwrap(),
                presented: vec!["evil\nERROR forged".into()],
            }),
            PeerFault::WeakKey(1024).into(),
            Error::InvalidCertRevocationList(CertRevocationListError::BadSignature),
            Error::NoCertificatesPresented,
            Error::AlertReceived(AlertDescription::CertificateUnknown),
        ];
        let text: Vec<String> = errors.map(|e| TlsError::from(e).to_string()).into();
        let expected = [
            "TLS: invalid peer certificate: UnknownIssuer; add the peer's CA to the CA file, or \
             the missing intermediate certificates to the peer's certificate file",
            "TLS: invalid peer certificate: Revoked; the peer's certificate was revoked: it needs \
             a new one",
            "TLS: invalid peer certificate: certificate expired: verification time 20 (UNIX), but \
             certificate is not valid after 10 (10 seconds ago); renew the peer's certificate, or \
             its CA's, or set the clocks",
            "TLS: invalid peer certificate: certificate revocation list expired: verification time \
             20 (UNIX), but CRL is not valid after 10 (10 seconds ago); fetch or issue a new \
             revocation list",
            "TLS: invalid peer certificate: certificate not valid for name \"primary.example\"; \
             certificate is only valid for evil\\nERROR forged; connect to the right host, or add \
             the name to the server's certificate",
            "TLS: invalid peer certificate: an RSA key of 1024 bits, and 2048 is the least; give \
             the peer another certificate",
            "TLS: invalid certificate revocation list: BadSignature; fetch or issue a new \
             revocation list",
            "TLS: peer sent no certificates; configure certificate and key of the peer",
            "TLS: received fatal alert: CertificateUnknown; the peer refuses: its log says why",
        ];
        assert_eq!(text, expected);
    }
}
