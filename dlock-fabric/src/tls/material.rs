// SPDX-License-Identifier: MIT OR Apache-2.0
//! From files to configurations; refuses everything that can be known to be wrong.

use std::cmp::Reverse;
use std::path::Path;
use std::sync::Arc;

use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{ring, CryptoProvider};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, ServerName, TrustAnchor, UnixTime,
};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertRevocationListError, CertificateError, ClientConfig, Error, ServerConfig, SignatureScheme,
};
use webpki::{CertRevocationList, OwnedCertRevocationList};
use x509_cert::der::asn1::AnyRef;
use x509_cert::der::{Decode, Encode};
use x509_cert::Certificate;

use super::certificate::{self, CrlHead, Period};
use super::endings::Ending;
use super::store_ctx::OpensslJudge;
use super::verify::{JudgeClients, JudgeServers, PeerRules};
use super::{
    files, key, KeyPassword, Leniency, PeerRole, TlsError, TlsFiles, CA_CERTIFICATES_MAX,
    CERTIFICATE_FILE_BYTES_MAX, CHAIN_CERTIFICATES_MAX, CRLS_MAX, CRL_FILE_BYTES_MAX, RSA_BITS_MIN,
};

/// The result of loading the files.
pub struct Loaded {
    /// The configuration for accepting connections.
    pub server: Arc<ServerConfig>,
    /// The configuration for connecting to primaries.
    pub client: Arc<ClientConfig>,
    rules: Arc<PeerRules>,
    /// The own certificate and key; `None`: the password has not opened the key yet.
    own: Option<Arc<CertifiedKey>>,
    /// The ends of certificates and lists.
    pub endings: Vec<Ending>,
}

impl Loaded {
    /// Whether the key has not been opened yet: see [`super::Tls::lacks_key`].
    pub fn lacks_key(&self) -> bool {
        self.own.is_none()
    }

    /// The configuration for connecting to a server with this name: see
    /// [`super::Tls::client_expecting`].
    pub fn client_expecting(&self, name: ServerName<'static>) -> Arc<ClientConfig> {
        let mut config = ClientConfig::clone(&self.client);
        let judge = JudgeServers { rules: self.rules.clone(), name: Some(name) };
        config.dangerous().set_certificate_verifier(Arc::new(judge));
        Arc::new(config)
    }

    /// Judges the chain of a connected peer: see [`super::Tls::check`].
    pub fn check(&self, role: PeerRole, chain: &[CertificateDer<'_>]) -> Result<(), TlsError> {
        let (first, others) = chain.split_first().ok_or(TlsError::NoIdentity("is missing"))?;
        let verdict = self.rules.verify(role, first, others, None, UnixTime::now());
        verdict.map_err(TlsError::from)
    }

    pub fn is_revoked(&self, role: PeerRole, chain: &[CertificateDer<'_>]) -> bool {
        let Some((first, others)) = chain.split_first() else { return false };
        self.rules.is_revoked(role, first, others, UnixTime::now())
    }
}

/// Loads the files, and checks each of them and that they fit together.
pub fn load(
    files: &TlsFiles,
    password: &dyn KeyPassword,
    leniency: &Leniency,
    now: UnixTime,
) -> Result<Loaded, TlsError> {
    let (rules, endings) = load_rules(files, leniency, now)?;
    let own = match load_own(files, password, leniency, &rules, now) {
        Err(error) if error.is_of_password() && leniency.key_may_wait() => {
            log::warn!(
                "{error}. The key is tried again for each connection: until then all are refused"
            );
            None
        }
        own => Some(own?),
    };
    configure(files, rules, own, endings)
}

/// Loads the files in place of `old`; returns what is in force then, and the error of the own
/// certificate or key, if they cannot be used. New CAs and lists do not wait for these: they may
/// revoke a peer.
pub fn reload(
    files: &TlsFiles,
    password: &dyn KeyPassword,
    leniency: &Leniency,
    now: UnixTime,
    old: &Loaded,
) -> Result<(Loaded, Result<(), TlsError>), TlsError> {
    let (rules, endings) = load_rules(files, leniency, now)?;
    let (own, result) = match load_own(files, password, leniency, &rules, now) {
        Ok(own) => (Some(own), Ok(())),
        Err(error @ TlsError::CrlSignature { .. }) => return Err(error),
        Err(error) => (old.own.clone(), Err(error)),
    };
    Ok((configure(files, rules, own, endings)?, result))
}

fn load_rules(
    files: &TlsFiles,
    leniency: &Leniency,
    now: UnixTime,
) -> Result<(Arc<PeerRules>, Vec<Ending>), TlsError> {
    let cas = load_cas(&files.ca, leniency, now)?;
    let remedy = "renew it, and the certificates that it issued";
    let mut endings = Ending::of_certificates(&files.ca, &cas.ders, "CA", remedy);
    let (crls, lists) = match &files.crl {
        Some(path) => load_crls(path, &files.ca, &cas, now).map(|(a, b)| (Some(a), Some(b)))?,
        None => (None, None),
    };
    if let (Some(path), Some(lists)) = (&files.crl, &lists) {
        endings.extend(Ending::of_lists(path, lists));
    }
    let openssl = match leniency {
        Leniency::Strict => None,
        Leniency::AsOpenssl { callback, .. } => {
            Some(OpensslJudge::new(callback.clone(), cas.ders, lists)?)
        }
    };
    let algorithms = provider().signature_verification_algorithms;
    Ok((Arc::new(PeerRules::new(cas.anchors, crls, algorithms, openssl)), endings))
}

fn load_own(
    files: &TlsFiles,
    password: &dyn KeyPassword,
    leniency: &Leniency,
    rules: &PeerRules,
    now: UnixTime,
) -> Result<Arc<CertifiedKey>, TlsError> {
    let chain = load_chain(&files.cert, leniency, now)?;
    let key = key::load(&files.key, password, leniency.allows_openssl())?;
    let first = chain.first().ok_or(TlsError::NoIdentity("is missing"))?;
    let public = certificate::public_key(first)
        .map_err(|error| malformed(&files.cert, "certificate", error.to_string()))?;
    if key.public_key().is_some_and(|key| key.as_ref() != public) {
        return Err(TlsError::KeyMismatch { key: files.key.clone(), cert: files.cert.clone() });
    }
    let own = CertifiedKey::new(chain, key);
    check_own(files, rules, &own.cert, now)?;
    Ok(Arc::new(own))
}

/// *ring* with TLS_AES_256_GCM_SHA384 only.
pub(super) fn provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![ring::cipher_suite::TLS13_AES_256_GCM_SHA384],
        ..ring::default_provider()
    }
}

fn configure(
    files: &TlsFiles,
    rules: Arc<PeerRules>,
    own: Option<Arc<CertifiedKey>>,
    mut endings: Vec<Ending>,
) -> Result<Loaded, TlsError> {
    let presented = own.as_ref().map_or(&[][..], |own| &own.cert[..]);
    let remedy = "renew it, or peers refuse it";
    endings.extend(Ending::of_certificates(&files.cert, presented, "certificate of", remedy));
    let provider = Arc::new(provider());
    let resolver = Arc::new(Own(own.clone()));
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .map_err(TlsError::Config)?
        .with_client_cert_verifier(Arc::new(JudgeClients { rules: rules.clone() }))
        .with_cert_resolver(resolver.clone());
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    server.max_early_data_size = 0;
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(TlsError::Config)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(JudgeServers {
            rules: rules.clone(),
            name: None,
        }))
        .with_client_cert_resolver(resolver);
    client.resumption = Resumption::disabled();
    client.enable_early_data = false;
    // a server name would be sent in the clear, and primaries do not use it
    client.enable_sni = false;
    Ok(Loaded { server: Arc::new(server), client: Arc::new(client), rules, own, endings })
}

/// Presents the own certificate and key in all handshakes; without them handshakes fail.
#[derive(Debug)]
struct Own(Option<Arc<CertifiedKey>>);

impl ResolvesServerCert for Own {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.clone()
    }
}

impl ResolvesClientCert for Own {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        self.0.clone()
    }

    fn has_certs(&self) -> bool {
        self.0.is_some()
    }
}

/// The content of a CA file.
struct Cas {
    /// The CAs in the form of webpki.
    anchors: Vec<(TrustAnchor<'static>, Period)>,
    /// All CAs, including those that only OpenSSL trusts.
    ders: Vec<CertificateDer<'static>>,
    /// The names of all CAs in the form of webpki: DER without tag and length.
    subjects: Vec<Vec<u8>>,
}

fn load_cas(path: &Path, leniency: &Leniency, now: UnixTime) -> Result<Cas, TlsError> {
    let ders = load_certificates(path, "CA certificate", CA_CERTIFICATES_MAX)?;
    let (mut anchors, mut subjects) = (Vec::with_capacity(ders.len()), Vec::new());
    let mut excluded = Vec::new();
    for der in &ders {
        let malformed = |cause: String| malformed(path, "certificate", cause);
        let parsed = Certificate::from_der(der).map_err(|error| malformed(error.to_string()))?;
        let subject = certificate::subject(&parsed);
        refuse_weak_key(path, &parsed)?;
        let name = parsed.tbs_certificate().subject().to_der();
        let name = name.and_then(|name| Ok(AnyRef::from_der(&name)?.value().to_vec()));
        subjects.push(name.map_err(|error| malformed(error.to_string()))?);
        let period = Period::from(parsed.tbs_certificate().validity());
        if let Some(cause) = period.excludes(now) {
            log::warn!("{}: the CA {subject} is {cause}", path.display());
            excluded.push((subject.clone(), cause));
        }
        match certificate::is_ca(&parsed).map_err(|error| malformed(error.to_string()))? {
            true => {
                let anchor = webpki::anchor_from_trusted_cert(der);
                let anchor = anchor.map_err(|error| malformed(error.to_string()))?;
                anchors.push((anchor.to_owned(), period));
            }
            // A root of X.509 v1, or a peer's own certificate: OpenSSL judges what it may sign.
            false if leniency.allows_openssl() => {}
            false => return Err(TlsError::NotACa { path: path.into(), subject }),
        }
    }
    match excluded.pop() {
        Some((subject, cause))
            if excluded.len() + 1 == ders.len() && !leniency.allows_openssl() =>
        {
            Err(TlsError::NoCurrentCa { path: path.into(), subject, cause })
        }
        _ => Ok(Cas { anchors, ders, subjects }),
    }
}

fn load_chain(
    path: &Path,
    leniency: &Leniency,
    now: UnixTime,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    // Up to twice the limit, so that the error has the count. More are those of an unsuitable file.
    let chain = load_certificates(path, "certificate", 2 * CHAIN_CERTIFICATES_MAX)?;
    if chain.len() > CHAIN_CERTIFICATES_MAX {
        return Err(TlsError::ChainTooLong { path: path.into(), found: chain.len() });
    }
    for (place, der) in chain.iter().enumerate() {
        let malformed =
            |error: x509_cert::der::Error| malformed(path, "certificate", error.to_string());
        let parsed = Certificate::from_der(der).map_err(malformed)?;
        refuse_weak_key(path, &parsed)?;
        if leniency.allows_openssl() {
            continue; // the peer judges the rest of the own certificate; `check_own` warns of it
        }
        let subject = certificate::subject(&parsed);
        if place == 0 && certificate::is_ca(&parsed).map_err(malformed)? {
            return Err(TlsError::CaAsEndEntity { path: path.into(), subject });
        }
        let period = Period::from(parsed.tbs_certificate().validity());
        if let Some(cause) = period.excludes(now) {
            return Err(TlsError::NotCurrent { path: path.into(), subject, cause });
        }
    }
    Ok(chain)
}

fn load_certificates(
    path: &Path,
    what: &'static str,
    max: usize,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = files::read(path, CERTIFICATE_FILE_BYTES_MAX)?;
    sections(path, what, max, CertificateDer::pem_slice_iter(&bytes))
}

/// Revocation lists in the form of webpki, and as they are in the file.
type Lists = (Vec<CertRevocationList<'static>>, Vec<CertificateRevocationListDer<'static>>);

fn load_crls(path: &Path, ca: &Path, cas: &Cas, now: UnixTime) -> Result<Lists, TlsError> {
    const WHAT: &str = "revocation list";
    let bytes = files::read(path, CRL_FILE_BYTES_MAX)?;
    let ders =
        sections(path, WHAT, CRLS_MAX, CertificateRevocationListDer::pem_slice_iter(&bytes))?;
    let mut crls = Vec::with_capacity(ders.len());
    for (place, der) in ders.iter().enumerate() {
        let head = CrlHead::of(der).map_err(|error| malformed(path, WHAT, error.to_string()))?;
        let list = OwnedCertRevocationList::from_der(der)
            .map_err(|error| malformed(path, WHAT, format!("{}: {error}", head.issuer)))?;
        if head.next_update.is_none_or(|next| next <= now) {
            return Err(TlsError::StaleCrl { path: path.into(), issuer: head.issuer });
        }
        crls.push((head.this_update, place, CertRevocationList::from(list)));
    }
    // webpki uses the first list of an issuer. If the file has several, that must be the newest; of
    // two of the same second, the one that comes later in the file.
    crls.sort_by_key(|(this_update, place, _)| Reverse((*this_update, *place)));
    let crls: Vec<_> = crls.into_iter().map(|(_, _, list)| list).collect();
    let issued_by = |ca: &Vec<u8>| crls.iter().any(|crl| crl.issuer() == ca.as_slice());
    let without = cas.subjects.iter().filter(|ca| !issued_by(ca)).count();
    if without == cas.subjects.len() {
        return Err(TlsError::CrlOfAnotherCa { path: path.into(), ca: ca.into() });
    }
    if without > 0 {
        let (path, all) = (path.display(), cas.subjects.len());
        log::warn!("{path} has no list of {without} of {all} CAs: their certificates are refused");
    }
    Ok((crls, ders))
}

/// The items in a PEM file of certificates or lists.
fn sections<T>(
    path: &Path,
    what: &'static str,
    max: usize,
    items: impl Iterator<Item = Result<T, pem::Error>>,
) -> Result<Vec<T>, TlsError> {
    let mut found = Vec::new();
    for item in items {
        if found.len() == max {
            return Err(TlsError::TooMany { path: path.into(), what, max });
        }
        let cause = |error: pem::Error| certificate::printable(&format!("{error:?}"));
        found.push(item.map_err(|e| TlsError::Pem { path: path.into(), cause: cause(e) })?);
    }
    match found.is_empty() {
        true => Err(TlsError::Nothing { path: path.into(), what }),
        false => Ok(found),
    }
}

fn malformed(path: &Path, what: &'static str, cause: String) -> TlsError {
    TlsError::Malformed { path: path.into(), what, cause }
}

fn refuse_weak_key(path: &Path, parsed: &Certificate) -> Result<(), TlsError> {
    let malformed = |error| malformed(path, "certificate", format!("its key: {error}"));
    let spki = parsed.tbs_certificate().subject_public_key_info().to_der().map_err(malformed)?;
    match certificate::rsa_bits(&spki).map_err(malformed)? {
        Some(bits) if bits < RSA_BITS_MIN => {
            let subject = certificate::subject(parsed);
            Err(TlsError::WeakKey { path: path.into(), subject, bits })
        }
        _ => Ok(()),
    }
}

/// Judges the own certificate as peers with the same CA file would. Peers may have another CA file,
/// so only a revocation is an error.
fn check_own(
    files: &TlsFiles,
    rules: &PeerRules,
    chain: &[CertificateDer<'_>],
    now: UnixTime,
) -> Result<(), TlsError> {
    let Some((first, others)) = chain.split_first() else { return Ok(()) };
    let judge = |role| rules.verify_without_callback(role, first, others, now);
    let error = match (judge(PeerRole::Client), judge(PeerRole::Server)) {
        (Ok(()), _) | (_, Ok(())) => return Ok(()),
        (Err(error), _) => error,
    };
    let (cert, crl) = (files.cert.clone(), files.crl.clone().unwrap_or_default());
    let name = |issuer: bool| {
        let parsed = Certificate::from_der(first).ok();
        parsed.map_or_else(String::new, |parsed| match issuer {
            true => certificate::readable(parsed.tbs_certificate().issuer()),
            false => certificate::subject(&parsed),
        })
    };
    match error {
        Error::InvalidCertificate(CertificateError::Revoked) => {
            Err(TlsError::Revoked { cert, crl, subject: name(false) })
        }
        Error::InvalidCertRevocationList(CertRevocationListError::BadSignature) => {
            Err(TlsError::CrlSignature { path: crl, issuer: name(true) })
        }
        error => {
            let (cert, ca) = (cert.display(), files.ca.display());
            let error = TlsError::from(error);
            log::warn!("{cert} would be refused by peers that use {ca}: {error}");
            Ok(())
        }
    }
}
