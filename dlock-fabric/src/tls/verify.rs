// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules by which a peer's certificate is accepted, the same for clients and servers.
//!
//! ```text
//!   chain of the peer ─▶ number of certificates ─▶ size of RSA keys ─▶ webpki: signatures, dates,
//!      CA flag, path length, extended key usage, CRLs ─▶ dates of the CA itself ─▶ key usage
//!      ─▶ a server's name, where one is expected
//! ```
//! Up to webpki's verdict nothing is allocated for what the peer sent. A `cert_verify_cb`
//! (`store_ctx.rs`) replaces webpki, the check of the CA's dates and of the key usage. In other
//! programs of the C API, OpenSSL judges peers that these rules refuse, unless the revocation lists
//! are the reason; its verdict decides.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    verify_tls13_signature, verify_tls13_signature_with_raw_key, WebPkiSupportedAlgorithms,
};
use rustls::pki_types::{
    CertificateDer, ServerName, SubjectPublicKeyInfoDer, TrustAnchor, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertRevocationListError, CertificateError, DigitallySignedStruct, DistinguishedName, Error,
    OtherError, PeerIncompatible, SignatureScheme,
};
use thiserror::Error as ThisError;
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, KeyUsage, RevocationCheckDepth,
    RevocationOptionsBuilder, UnknownStatusPolicy, VerifiedPath,
};
use x509_cert::der::Decode;
use x509_cert::Certificate;

use super::certificate::{self, Period};
use super::openssl_key;
use super::store_ctx::{OpensslFault, OpensslJudge};
use super::{CHAIN_CERTIFICATES_MAX, RSA_BITS_MIN};

/// The side of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRole {
    /// The peer connected: its certificate must allow `clientAuth`.
    Client,
    /// The peer accepted the connection: its certificate must allow `serverAuth`.
    Server,
}

/// Faults of a peer's certificate for which rustls has no names. Found inside of
/// [`CertificateError::Other`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum PeerFault {
    /// More certificates than [`CHAIN_CERTIFICATES_MAX`].
    #[error("it presents {0} certificates, and {CHAIN_CERTIFICATES_MAX} is the most")]
    ChainTooLong(usize),
    /// An RSA key with fewer bits than [`RSA_BITS_MIN`].
    #[error("an RSA key of {0} bits, and {RSA_BITS_MIN} is the least")]
    WeakKey(u32),
    /// The key usage has no digital signature.
    #[error("its key usage does not allow digital signatures")]
    KeyUsage,
    /// The certificate is that of a CA.
    #[error("it is a CA's certificate, not that of a client or server")]
    CaAsEndEntity,
    /// A certificate in the chain issues others but is not that of a CA.
    #[error("it was issued by a certificate that is not a CA's")]
    IssuerNotCa,
    /// The chain has more CAs below one of its CAs than that one allows.
    #[error("its chain is longer than one of its CAs allows")]
    PathLength,
}

impl From<PeerFault> for Error {
    fn from(fault: PeerFault) -> Self {
        CertificateError::Other(OtherError(Arc::new(fault))).into()
    }
}

/// The trust and the limits by which a peer's certificate is judged.
#[derive(Debug)]
pub struct PeerRules {
    anchors: Vec<(TrustAnchor<'static>, Period)>,
    /// The anchors in the form of webpki.
    trusted: Vec<TrustAnchor<'static>>,
    /// The revocation lists; `None`: there is no CRL file.
    crls: Option<Vec<CertRevocationList<'static>>>,
    algorithms: WebPkiSupportedAlgorithms,
    /// OpenSSL as the judge of peers that the rules refuse; `None`: only the rules judge.
    openssl: Option<OpensslJudge>,
}

impl PeerRules {
    /// Trusts these CAs, each in its period. With `openssl`, its callback judges everything, or
    /// OpenSSL judges what the rules refuse.
    pub fn new(
        anchors: Vec<(TrustAnchor<'static>, Period)>,
        crls: Option<Vec<CertRevocationList<'static>>>,
        algorithms: WebPkiSupportedAlgorithms,
        openssl: Option<OpensslJudge>,
    ) -> Self {
        let trusted = anchors.iter().map(|(anchor, _)| anchor.clone()).collect();
        Self { anchors, trusted, crls, algorithms, openssl }
    }

    /// Judges a chain; `name` is that of a server, if it has to match.
    pub fn verify(
        &self,
        role: PeerRole,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: Option<&ServerName<'_>>,
        now: UnixTime,
    ) -> Result<(), Error> {
        match &self.openssl {
            Some(openssl) if openssl.has_callback() => {
                refuse_out_of_bounds(end_entity, intermediates)?;
                openssl.judge(role, end_entity, intermediates)?;
            }
            _ => self.verify_without_callback(role, end_entity, intermediates, now)?,
        }
        let Some(name) = name else { return Ok(()) };
        let certificate = EndEntityCert::try_from(end_entity).map_err(pki_error)?;
        certificate.verify_is_valid_for_subject_name(name).map_err(pki_error)
    }

    /// Judges a chain by the rules of this module, and by OpenSSL if they refuse and it is allowed.
    /// The callback is not called, and no name is compared. The verdict of the revocation lists is
    /// final, because OpenSSL would use an older list if the newest one has expired.
    pub fn verify_without_callback(
        &self,
        role: PeerRole,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        refuse_out_of_bounds(end_entity, intermediates)?;
        let verdict = self.verify_by_rules(role, end_entity, intermediates, now);
        let (Some(openssl), Err(by_rules)) = (&self.openssl, &verdict) else { return verdict };
        if is_of_lists(by_rules) {
            return verdict;
        }
        match openssl.verify(role, end_entity, intermediates) {
            Ok(()) => Ok(()),
            Err(error) => Err(more_telling(by_rules, error)),
        }
    }

    fn verify_by_rules(
        &self,
        role: PeerRole,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let certificate = EndEntityCert::try_from(end_entity).map_err(pki_error)?;
        let statuses = (UnknownStatusPolicy::Deny, ExpirationPolicy::Enforce);
        self.verify_path(role, &certificate, intermediates, now, statuses).map_err(pki_error)?;
        let parsed = Certificate::from_der(end_entity).map_err(|_| bad_encoding())?;
        match certificate::may_sign_handshakes(&parsed).map_err(|_| bad_encoding())? {
            true => Ok(()),
            false => Err(PeerFault::KeyUsage.into()),
        }
    }

    /// Whether a revocation list names a certificate of this chain. Certificates and lists may be
    /// out of date.
    pub fn is_revoked(
        &self,
        role: PeerRole,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> bool {
        if self.crls.is_none() {
            return false;
        }
        let by_openssl = || {
            let openssl = self.openssl.as_ref();
            openssl.is_some_and(|openssl| openssl.is_revoked(role, end_entity, intermediates))
        };
        self.is_revoked_by_rules(role, end_entity, intermediates, now).unwrap_or_else(by_openssl)
    }

    /// `None`: the rules do not find a chain.
    fn is_revoked_by_rules(
        &self,
        role: PeerRole,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Option<bool> {
        let certificate = EndEntityCert::try_from(end_entity).ok()?;
        // webpki reports an expired certificate before a revoked one, so go back to when it was
        // valid; each certificate of the chain may have expired.
        let mut at = now;
        for _ in 0..=CHAIN_CERTIFICATES_MAX {
            let statuses = (UnknownStatusPolicy::Allow, ExpirationPolicy::Ignore);
            match self.verify_path(role, &certificate, intermediates, at, statuses) {
                Err(webpki::Error::CertRevoked) => return Some(true),
                Err(webpki::Error::CertExpired { not_after, .. }) if not_after < at => {
                    at = not_after;
                }
                Err(_) => return None,
                Ok(()) => return Some(false),
            }
        }
        None
    }

    fn verify_path(
        &self,
        role: PeerRole,
        certificate: &EndEntityCert<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        (unknown, expired): (UnknownStatusPolicy, ExpirationPolicy),
    ) -> Result<(), webpki::Error> {
        let usage = match role {
            PeerRole::Client => KeyUsage::client_auth(),
            PeerRole::Server => KeyUsage::server_auth(),
        };
        let crls: Vec<&CertRevocationList<'_>> = self.crls.iter().flatten().collect();
        let revocation = match self.crls {
            None => None,
            // Without any list the status of no certificate is known.
            Some(_) => Some(
                RevocationOptionsBuilder::new(&crls)
                    .map_err(|_| webpki::Error::UnknownRevocationStatus)?
                    .with_depth(RevocationCheckDepth::Chain)
                    .with_status_policy(unknown)
                    .with_expiration_policy(expired)
                    .build(),
            ),
        };
        let current = |path: &VerifiedPath<'_>| self.refuse_anchor_out_of_date(path, now);
        certificate
            .verify_for_usage(
                self.algorithms.all,
                &self.trusted,
                intermediates,
                now,
                usage,
                revocation,
                Some(&current),
            )
            .map(drop)
    }

    /// Checks the dates of the CA: webpki checks those of all other certificates.
    fn refuse_anchor_out_of_date(
        &self,
        path: &VerifiedPath<'_>,
        now: UnixTime,
    ) -> Result<(), webpki::Error> {
        let mut error = webpki::Error::UnknownIssuer;
        for (_, period) in self.anchors.iter().filter(|(anchor, _)| anchor == path.anchor()) {
            let Period { not_before, not_after } = *period;
            error = match now {
                now if now < not_before => webpki::Error::CertNotValidYet { time: now, not_before },
                now if now > not_after => webpki::Error::CertExpired { time: now, not_after },
                _ => return Ok(()),
            };
        }
        Err(error)
    }

    fn verify_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if self.openssl.is_none() {
            return verify_tls13_signature(message, certificate, signed, &self.algorithms);
        }
        // Only the key is parsed, because webpki may not be able to parse the certificate.
        let spki = certificate::public_key(certificate).map_err(|_| bad_encoding())?;
        if self.algorithms.supported_schemes().contains(&signed.scheme) {
            let spki = SubjectPublicKeyInfoDer::from(spki);
            return verify_tls13_signature_with_raw_key(message, &spki, signed, &self.algorithms);
        }
        openssl_key::verify(spki, signed.scheme, message, signed.signature())
            .map(|()| HandshakeSignatureValid::assertion())
    }

    /// The schemes with which peers may sign.
    fn schemes(&self) -> Vec<SignatureScheme> {
        let mut schemes = self.algorithms.supported_schemes();
        if self.openssl.is_some() {
            let more = openssl_key::schemes().filter(|scheme| !schemes.contains(scheme));
            schemes.extend(more.collect::<Vec<_>>());
        }
        schemes
    }
}

/// The more helpful of two errors: that of the rules, unless they do not understand the
/// certificate.
fn more_telling(by_rules: &Error, by_openssl: Error) -> Error {
    match (by_rules, &by_openssl) {
        (by_rules, Error::InvalidCertificate(CertificateError::Other(OtherError(inner)))) => {
            match inner.downcast_ref::<OpensslFault>() {
                Some(OpensslFault::Absent { why, .. }) => {
                    let rules = super::error::cause(by_rules);
                    OpensslFault::Absent { rules, why }.into()
                }
                _ if is_other(by_rules) => by_openssl,
                _ => by_rules.clone(),
            }
        }
        (by_rules, _) if is_other(by_rules) => by_openssl,
        (by_rules, _) => by_rules.clone(),
    }
}

fn is_other(error: &Error) -> bool {
    matches!(error, Error::InvalidCertificate(CertificateError::Other(_)))
}

/// Whether a chain is refused because of the revocation lists.
fn is_of_lists(error: &Error) -> bool {
    use CertificateError as Bad;
    match error {
        Error::InvalidCertificate(error) => matches!(
            error,
            Bad::Revoked
                | Bad::UnknownRevocationStatus
                | Bad::ExpiredRevocationList
                | Bad::ExpiredRevocationListContext { .. }
        ),
        error => matches!(error, Error::InvalidCertRevocationList(_)),
    }
}

/// Refuses more certificates, or weaker keys, than are accepted from any peer.
fn refuse_out_of_bounds(
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Result<(), Error> {
    let presented = intermediates.len() + 1;
    if presented > CHAIN_CERTIFICATES_MAX {
        return Err(PeerFault::ChainTooLong(presented).into());
    }
    [end_entity].into_iter().chain(intermediates).try_for_each(refuse_weak_key)
}

fn refuse_weak_key(certificate: &CertificateDer<'_>) -> Result<(), Error> {
    match certificate::public_key(certificate).and_then(certificate::rsa_bits) {
        Ok(Some(bits)) if bits < RSA_BITS_MIN => Err(PeerFault::WeakKey(bits).into()),
        Ok(_) => Ok(()),
        Err(_) => Err(bad_encoding()),
    }
}

fn bad_encoding() -> Error {
    CertificateError::BadEncoding.into()
}

fn tls12() -> Error {
    // The configurations allow only TLS 1.3, so rustls never calls this.
    PeerIncompatible::ServerDoesNotSupportTls12Or13.into()
}

/// The error of rustls for an error of webpki; rustls' own translation is private.
fn pki_error(error: webpki::Error) -> Error {
    use webpki::Error as Pki;
    match error {
        Pki::BadDer | Pki::BadDerTime | Pki::TrailingData(_) => bad_encoding(),
        Pki::CertNotValidYet { time, not_before } => {
            CertificateError::NotValidYetContext { time, not_before }.into()
        }
        Pki::CertExpired { time, not_after } => {
            CertificateError::ExpiredContext { time, not_after }.into()
        }
        Pki::InvalidCertValidity => CertificateError::Expired.into(),
        Pki::UnknownIssuer => CertificateError::UnknownIssuer.into(),
        Pki::CertNotValidForName(context) => CertificateError::NotValidForNameContext {
            expected: context.expected,
            presented: context.presented,
        }
        .into(),
        Pki::CertRevoked => CertificateError::Revoked.into(),
        Pki::UnknownRevocationStatus => CertificateError::UnknownRevocationStatus.into(),
        Pki::CrlExpired { time, next_update } => {
            CertificateError::ExpiredRevocationListContext { time, next_update }.into()
        }
        Pki::IssuerNotCrlSigner => CertRevocationListError::IssuerInvalidForCrl.into(),
        Pki::InvalidCrlSignatureForPublicKey => CertRevocationListError::BadSignature.into(),
        Pki::InvalidSignatureForPublicKey => CertificateError::BadSignature.into(),
        Pki::UnsupportedSignatureAlgorithmContext(context) => {
            CertificateError::UnsupportedSignatureAlgorithmContext {
                signature_algorithm_id: context.signature_algorithm_id,
                supported_algorithms: context.supported_algorithms,
            }
            .into()
        }
        Pki::UnsupportedSignatureAlgorithmForPublicKeyContext(context) => {
            CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext {
                signature_algorithm_id: context.signature_algorithm_id,
                public_key_algorithm_id: context.public_key_algorithm_id,
            }
            .into()
        }
        Pki::UnsupportedCriticalExtension => CertificateError::UnhandledCriticalExtension.into(),
        Pki::RequiredEkuNotFoundContext(_) | Pki::EmptyEkuExtension => {
            CertificateError::InvalidPurpose.into()
        }
        Pki::CaUsedAsEndEntity => PeerFault::CaAsEndEntity.into(),
        Pki::EndEntityUsedAsCa => PeerFault::IssuerNotCa.into(),
        Pki::PathLenConstraintViolated | Pki::MaximumPathDepthExceeded => {
            PeerFault::PathLength.into()
        }
        other => CertificateError::Other(OtherError(Arc::new(other))).into(),
    }
}

/// Judges a server's certificate for a client.
#[derive(Debug)]
pub struct JudgeServers {
    /// The rules to judge by.
    pub rules: Arc<PeerRules>,
    /// The name for which the certificate must be valid; `None`: any name.
    pub name: Option<ServerName<'static>>,
}

impl ServerCertVerifier for JudgeServers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.rules
            .verify(PeerRole::Server, end_entity, intermediates, self.name.as_ref(), now)
            .map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.rules.verify_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.rules.schemes()
    }
}

/// Judges a client's certificate for a server; a client must have one.
#[derive(Debug)]
pub struct JudgeClients {
    /// The rules to judge by.
    pub rules: Arc<PeerRules>,
}

impl ClientCertVerifier for JudgeClients {
    /// No names: a client has one certificate and need not choose, and unknown peers learn nothing.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.rules
            .verify(PeerRole::Client, end_entity, intermediates, None, now)
            .map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.rules.verify_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.rules.schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{
        date_time_ymd, BasicConstraints, CertificateParams, CertificateRevocationListParams,
        DnType, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams,
    };
    use webpki::OwnedCertRevocationList;

    use super::*;
    use crate::tls::material::provider;

    /// The first of January of a year.
    fn at(year: i32) -> UnixTime {
        let seconds = date_time_ymd(year, 1, 1).unix_timestamp();
        UnixTime::since_unix_epoch(Duration::from_secs(seconds.try_into().unwrap()))
    }

    fn params(serial: u64, years: std::ops::Range<i32>) -> CertificateParams {
        let mut params = CertificateParams::new(vec!["node".to_string()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, format!("node {serial}"));
        params.serial_number = Some(serial.into());
        params.not_before = date_time_ymd(years.start, 1, 1);
        params.not_after = date_time_ymd(years.end, 1, 1);
        params
    }

    /// A certificate may expire while its peer is connected, and be revoked afterwards.
    #[test]
    fn a_revocation_is_found_of_what_has_ended_since() {
        let mut root = params(1, 2000..2090);
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        root.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let root_der = root.self_signed(&key).unwrap().der().clone();
        let root = Issuer::new(root, key);
        let mut middle = params(2, 2000..2030);
        middle.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        middle.key_usages = root.key_usages().to_vec();
        let key = KeyPair::generate().unwrap();
        let middle_der = middle.signed_by(&key, &root).unwrap().der().clone();
        let middle = Issuer::new(middle, key);
        let leaf_of = |serial| {
            let key = KeyPair::generate().unwrap();
            params(serial, 2000..2020).signed_by(&key, &middle).unwrap().der().clone()
        };
        let revoked = |serial: u64| RevokedCertParams {
            serial_number: serial.into(),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = |serials: &[u64], issuer: &Issuer<'_, KeyPair>| {
            let list = CertificateRevocationListParams {
                this_update: date_time_ymd(2024, 1, 1),
                next_update: date_time_ymd(2025, 1, 1),
                crl_number: 1.into(),
                issuing_distribution_point: None,
                revoked_certs: serials.iter().copied().map(revoked).collect(),
                key_identifier_method: KeyIdMethod::Sha256,
            };
            let list = list.signed_by(issuer).unwrap();
            CertRevocationList::from(OwnedCertRevocationList::from_der(list.der()).unwrap())
        };
        let rules = |lists| {
            let anchor = webpki::anchor_from_trusted_cert(&root_der).unwrap().to_owned();
            let period = Period { not_before: at(2000), not_after: at(2090) };
            let algorithms = provider().signature_verification_algorithms;
            PeerRules::new(vec![(anchor, period)], Some(lists), algorithms, None)
        };
        let (good, bad) = (leaf_of(10), leaf_of(11));
        let is_revoked = |rules: &PeerRules, leaf: &CertificateDer<'_>, now| {
            rules.is_revoked(PeerRole::Client, leaf, std::slice::from_ref(&middle_der), now)
        };
        let of_leaf = rules(vec![list(&[], &root), list(&[11], &middle)]);
        for year in [2010, 2025, 2050] {
            // while it is valid, after it has ended, and after its issuer has ended, too
            assert!(is_revoked(&of_leaf, &bad, at(year)), "{year}");
            assert!(!is_revoked(&of_leaf, &good, at(year)), "{year}");
        }
        let of_middle = rules(vec![list(&[2], &root), list(&[], &middle)]);
        assert!(
            [2010, 2025, 2050].map(|year| is_revoked(&of_middle, &good, at(year))) == [true; 3]
        );
    }
}
