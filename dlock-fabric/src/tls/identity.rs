// SPDX-License-Identifier: MIT OR Apache-2.0
//! The identity of a peer, from its verified certificate.
//!
//! ```text
//!   subject, RDN by RDN ──┐
//!                         ├─▶ SHA-256 ─▶ the identity that a client id is bound to
//!   alternative names ────┘
//! ```
//!
//! Key, serial number, dates and issuer do not count, so a renewed certificate is the same peer.
//! This means that all CAs of the CA file are trusted equally: each can issue a certificate for any
//! name. The string type in the subject does not count either (tools differ), nor does the order of
//! alternative names; upper and lower case do.

use std::fmt;
use std::net::IpAddr;

use ring::digest::{Context, SHA256};
use rustls::pki_types::CertificateDer;
use x509_cert::attr::AttributeTypeAndValue;
use x509_cert::der::oid::db::rfc4519::COMMON_NAME;
use x509_cert::der::{Decode, Encode, Error, Tag, Tagged};
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::Certificate;

use super::certificate::printable;
use super::TlsError;

/// Separates this use of SHA-256 from others.
const DOMAIN: &[u8] = b"dlock peer identity 1";

/// The identity of a peer. Equal for end-entity certificates with equal subject and subject
/// alternative names. A client id is bound to it.
#[derive(Clone)]
pub struct PeerIdentity {
    digest: [u8; 32],
    names: Vec<PeerName>,
}

/// A name in a certificate, unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerName {
    /// The whole subject as in RFC 4514: `CN=node1,O=Example`. Absent if the subject is empty.
    Subject(String),
    /// A common name of the subject.
    CommonName(String),
    /// An alternative name: a DNS name.
    Dns(String),
    /// An alternative name: an IP address.
    Ip(IpAddr),
    /// An alternative name: a URI, as used by SPIFFE.
    Uri(String),
    /// An alternative name: an e-mail address.
    Email(String),
}

impl PeerIdentity {
    /// The identity in the chain of a peer, the end-entity certificate first, as
    /// `peer_certificates()` of a connection gives it after the handshake.
    ///
    /// # Errors
    ///
    /// [`TlsError::NoIdentity`] if there is no certificate, or no name in it.
    pub fn of(certs: &[CertificateDer<'_>]) -> Result<Self, TlsError> {
        let first = certs.first().ok_or(TlsError::NoIdentity("is missing"))?;
        let certificate =
            Certificate::from_der(first).map_err(|_| TlsError::NoIdentity("cannot be parsed"))?;
        Self::of_parsed(&certificate)
    }

    fn of_parsed(certificate: &Certificate) -> Result<Self, TlsError> {
        let unreadable = |_| TlsError::NoIdentity("has names that cannot be parsed");
        let tbs = certificate.tbs_certificate();
        let subject = tbs.subject();
        let alternative = tbs.get_extension::<SubjectAltName>().map_err(unreadable)?;
        let alternative = alternative.map(|(_, names)| names.0).unwrap_or_default();
        if subject.is_empty() && alternative.is_empty() {
            return Err(TlsError::NoIdentity("names nobody"));
        }
        let mut names = Vec::new();
        let mut rdns = Vec::new();
        for rdn in subject.iter_rdn() {
            names.extend(rdn.iter().filter_map(common_name));
            let parts: Result<Vec<Vec<u8>>, _> = rdn.iter().map(canonical).collect();
            let mut parts = parts.map_err(unreadable)?;
            parts.sort();
            rdns.push(joined(&parts));
        }
        if !subject.is_empty() {
            names.insert(0, PeerName::Subject(subject.to_string()));
        }
        names.extend(alternative.iter().filter_map(PeerName::of));
        let encoded: Result<Vec<Vec<u8>>, _> = alternative.iter().map(Encode::to_der).collect();
        let mut alternative = encoded.map_err(unreadable)?;
        alternative.sort();
        alternative.dedup();
        let mut context = Context::new(&SHA256);
        for part in [DOMAIN, &joined(&rdns), &joined(&alternative)] {
            context.update(part);
        }
        let mut digest = [0; 32];
        // a digest of SHA-256 has the 32 bytes of the array
        digest.copy_from_slice(context.finish().as_ref());
        Ok(Self { digest, names })
    }

    /// 32 bytes to store; equal for equal identities.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// The names as written in rules: `CN=`, `DNS:`, `IP:`, `URI:` or `email:` and the value in the
    /// certificate; and `subject:` and the whole subject as in RFC 4514.
    pub fn rule_names(&self) -> Vec<String> {
        self.names.iter().map(PeerName::rule_name).collect()
    }

    /// The names in the certificate, for rules and logs. The peer has chosen the values; `Display`
    /// makes them printable.
    pub fn names(&self) -> &[PeerName] {
        &self.names
    }
}

impl PartialEq for PeerIdentity {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for PeerIdentity {}

impl std::hash::Hash for PeerIdentity {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

/// The subject; the first alternative name if the subject is empty.
impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.names.first() {
            Some(name) => name.fmt(f),
            None => f.write_str("a peer without a name that can be shown"),
        }
    }
}

impl fmt::Debug for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerIdentity").field("names", &self.names).finish_non_exhaustive()
    }
}

impl PeerName {
    fn of(name: &GeneralName) -> Option<Self> {
        match name {
            GeneralName::DnsName(name) => Some(Self::Dns(name.to_string())),
            GeneralName::Rfc822Name(name) => Some(Self::Email(name.to_string())),
            GeneralName::UniformResourceIdentifier(uri) => Some(Self::Uri(uri.to_string())),
            GeneralName::IpAddress(bytes) => {
                let bytes = bytes.as_bytes();
                let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
                v4.or(<[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok().map(Self::Ip)
            }
            _ => None,
        }
    }

    /// The name as written in rules. Different names never give the same text: else a common name
    /// could look like a whole subject.
    fn rule_name(&self) -> String {
        match self {
            Self::Subject(name) => format!("subject:{name}"),
            Self::CommonName(name) => format!("CN={name}"),
            Self::Dns(name) => format!("DNS:{name}"),
            Self::Ip(address) => format!("IP:{address}"),
            Self::Uri(uri) => format!("URI:{uri}"),
            Self::Email(address) => format!("email:{address}"),
        }
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Subject(name) => f.write_str(&printable(name)),
            Self::CommonName(name) => write!(f, "CN={}", printable(name)),
            Self::Dns(name) => write!(f, "DNS:{}", printable(name)),
            Self::Ip(address) => write!(f, "IP:{address}"),
            Self::Uri(uri) => write!(f, "URI:{}", printable(uri)),
            Self::Email(address) => write!(f, "email:{}", printable(address)),
        }
    }
}

fn is_text(tag: Tag) -> bool {
    matches!(tag, Tag::Utf8String | Tag::PrintableString | Tag::Ia5String)
}

fn common_name(part: &AttributeTypeAndValue) -> Option<PeerName> {
    let text = part.oid == COMMON_NAME && is_text(part.value.tag());
    let value = text.then(|| std::str::from_utf8(part.value.value()).ok()).flatten();
    value.map(|value| PeerName::CommonName(value.into()))
}

/// The encoding of type and value; equal for all string types with the same bytes.
fn canonical(part: &AttributeTypeAndValue) -> Result<Vec<u8>, Error> {
    let tag = part.value.tag();
    let kind = if is_text(tag) { Tag::Utf8String } else { tag };
    let value = part.value.value().to_vec();
    Ok(joined(&[part.oid.as_bytes().to_vec(), kind.to_der()?, value]))
}

/// The parts as one byte string; different parts never give the same string.
fn joined(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut out = (parts.len() as u64).to_be_bytes().to_vec();
    for part in parts {
        out.extend((part.len() as u64).to_be_bytes());
        out.extend(part);
    }
    out
}
