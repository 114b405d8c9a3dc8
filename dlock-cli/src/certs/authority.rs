// SPDX-License-Identifier: MIT OR Apache-2.0
//! The CA: it signs certificates and the list of revoked ones.

use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    PublicKeyData, RevokedCertParams, SerialNumber,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivatePkcs8KeyDer};
use time::{Date, Duration, OffsetDateTime};
use x509_cert::crl::CertificateList;
use x509_cert::der::oid::AssociatedOid;
use x509_cert::der::{Decode, Encode};
use x509_cert::ext::pkix::{AuthorityKeyIdentifier, CrlNumber};
use x509_cert::ext::Extension;
use x509_cert::name::Name;
use x509_cert::time::Time;
use x509_cert::Certificate;
use zeroize::Zeroizing;

use super::store::{self, Store};
use crate::failure::{Failure, FAILED};

/// Certificates are valid from this much earlier on, because the clocks of hosts differ.
const CLOCKS_DIFFER: Duration = Duration::minutes(5);

/// What a certificate is for.
pub enum Holder {
    /// A primary on these hosts. As a standby it is a client as well.
    Server(Vec<String>),
    /// A client of a primary.
    Client,
}

/// A CA that can sign.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// The subject of the CA, DER.
    subject: Vec<u8>,
    /// The id of the CA's key, which differs from that of another CA of the same name.
    key_id: Vec<u8>,
    not_after: OffsetDateTime,
}

/// A certificate and its key.
pub struct Issued {
    /// The certificate's serial number in hexadecimal.
    pub serial: String,
    pub cert_pem: String,
    pub key_pem: Zeroizing<String>,
    /// The last day on which the certificate is valid.
    pub until: Date,
}

impl Authority {
    /// Makes a CA, and its certificate in PEM. Without a name it gets one that no other CA has,
    /// because lists of revoked certificates are found by the CA's name.
    pub fn make(name: Option<&str>, days: u32) -> Result<(Self, String), Failure> {
        let key = KeyPair::generate().map_err(not_made)?;
        // the bytes behind the first one of a public key are as good as random; the first one tells
        // the format
        let unique = || format!("dlock CA {}", hex(key.public_key_raw().get(1..5).unwrap_or(&[])));
        let mut params = ca_params(&name.map_or_else(unique, String::from));
        params.not_before = OffsetDateTime::now_utc() - CLOCKS_DIFFER;
        params.not_after = OffsetDateTime::now_utc() + Duration::days(days.into());
        let not_after = params.not_after;
        let certificate = params.self_signed(&key).map_err(not_made)?;
        let parsed = Certificate::from_der(certificate.der()).map_err(not_made)?;
        let subject = parsed.tbs_certificate().subject().to_der().map_err(not_made)?;
        let pem = store::pem("CERTIFICATE", certificate.der()).to_string();
        let key_id = params.key_identifier(&key);
        Ok((Self { issuer: Issuer::new(params, key), subject, key_id, not_after }, pem))
    }

    /// Loads the CA of the folder.
    pub fn load(store: &Store) -> Result<Self, Failure> {
        let path = store.path(store::CA_CERT);
        let foreign = |cause: &str| {
            let remedy = "name the folder of a CA that 'dlock certs init' made";
            Failure::new(FAILED, format_args!("{}: {cause}", path.display()), remedy)
        };
        let der = CertificateDer::from_pem_slice(&store.read(&path)?)
            .map_err(|error| foreign(&store::no_pem(&error)))?;
        let parsed = Certificate::from_der(&der).map_err(|error| foreign(&error.to_string()))?;
        let tbs = parsed.tbs_certificate();
        let text = Zeroizing::new(store.read(&store.path(store::CA_KEY))?);
        let key = PrivatePkcs8KeyDer::from_pem_slice(&text)
            .map_err(|_| foreign("its ca.key is not a private key in PEM"))?;
        let key = KeyPair::try_from(&key).map_err(|error| foreign(&error.to_string()))?;
        let spki = tbs.subject_public_key_info().to_der().map_err(not_made)?;
        if spki != key.subject_public_key_info() {
            return Err(foreign("ca.key is not the key of this certificate"));
        }
        let not_after = offset(tbs.validity().not_after);
        if not_after <= OffsetDateTime::now_utc() {
            return Err(foreign("the CA has expired"));
        }
        let name = tbs.subject().common_name().map_err(|error| foreign(&error.to_string()))?;
        let name = name.ok_or_else(|| foreign("the CA has no common name"))?;
        let params = ca_params(&name.value());
        let key_id = params.key_identifier(&key);
        let subject = tbs.subject().to_der().map_err(not_made)?;
        Ok(Self { issuer: Issuer::new(params, key), subject, key_id, not_after })
    }

    /// A certificate for `name`, with a key of its own.
    pub fn issue(&self, name: &str, holder: &Holder, days: u32) -> Result<Issued, Failure> {
        let (hosts, usages) = match holder {
            Holder::Server(hosts) => (
                hosts.clone(),
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
            ),
            Holder::Client => (Vec::new(), vec![ExtendedKeyUsagePurpose::ClientAuth]),
        };
        let mut params = CertificateParams::new(hosts).map_err(not_made)?;
        params.distinguished_name = named(name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages;
        params.use_authority_key_identifier_extension = true;
        params.not_before = OffsetDateTime::now_utc() - CLOCKS_DIFFER;
        let wanted = OffsetDateTime::now_utc() + Duration::days(days.into());
        params.not_after = wanted.min(self.not_after);
        let key = KeyPair::generate().map_err(not_made)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(not_made)?;
        let parsed = Certificate::from_der(certificate.der()).map_err(not_made)?;
        self.refuse_foreign(&parsed.tbs_certificate().issuer().to_der().map_err(not_made)?)?;
        Ok(Issued {
            serial: hex(parsed.tbs_certificate().serial_number().as_bytes()),
            cert_pem: store::pem("CERTIFICATE", certificate.der()).to_string(),
            key_pem: store::pem("PRIVATE KEY", key.serialized_der()),
            until: params.not_after.date(),
        })
    }

    /// Refuses a CA that was not made here. The issuer's name is rebuilt from the common name: if
    /// the CA's name has more in it, its certificates would name another issuer.
    fn refuse_foreign(&self, issuer: &[u8]) -> Result<(), Failure> {
        match issuer == self.subject {
            true => Ok(()),
            false => Err(Failure::new(
                FAILED,
                "the CA of this folder was not made by 'dlock certs init'",
                "use the tool that made it; any certificates in PEM work with dlock",
            )),
        }
    }

    /// The revoked certificates, and the number of the list that names them.
    pub fn revoked(&self, store: &Store) -> Result<(Vec<RevokedCertParams>, u64), Failure> {
        let path = store.path(store::CA_CRL);
        let broken = |cause: String| {
            let remedy =
                "restore it from a host: without it, what was revoked would be valid again";
            Failure::new(FAILED, format_args!("{}: {cause}", path.display()), remedy)
        };
        let text = store.read(&path).map_err(|failure| broken(failure.to_string()))?;
        let der = CertificateRevocationListDer::from_pem_slice(&text)
            .map_err(|error| broken(store::no_pem(&error)))?;
        let list = CertificateList::<x509_cert::certificate::Rfc5280>::from_der(&der)
            .map_err(|error| broken(error.to_string()))?;
        let list = list.tbs_cert_list;
        let extensions = list.crl_extensions.unwrap_or_default();
        if !self.is_issuer(&list.issuer, &extensions) {
            return Err(broken("it is the list of another CA".into()));
        }
        let entries = list.revoked_certificates.unwrap_or_default();
        let entries = entries.iter().map(|entry| RevokedCertParams {
            serial_number: SerialNumber::from_slice(entry.serial_number.as_bytes()),
            revocation_time: offset(entry.revocation_date),
            reason_code: None,
            invalidity_date: None,
        });
        let number = extensions
            .iter()
            .filter(|extension| extension.extn_id == CrlNumber::OID)
            .find_map(|extension| CrlNumber::from_der(extension.extn_value.as_bytes()).ok())
            .and_then(|number| u64::from_str_radix(&hex(number.0.as_bytes()), 16).ok())
            .ok_or_else(|| broken("it has no number".into()))?;
        Ok((entries.collect(), number))
    }

    /// The entry that revokes the certificate in this file, from now on.
    pub fn revocation(&self, path: &Path) -> Result<RevokedCertParams, Failure> {
        let broken = |cause: String| {
            let remedy = "name a certificate of this CA; the folder 'issued' has a copy of each";
            Failure::new(FAILED, format_args!("{}: {cause}", path.display()), remedy)
        };
        let text = std::fs::read(path).map_err(|error| broken(error.to_string()))?;
        let der = CertificateDer::from_pem_slice(&text).map_err(|e| broken(store::no_pem(&e)))?;
        let parsed = Certificate::from_der(&der).map_err(|error| broken(error.to_string()))?;
        let tbs = parsed.tbs_certificate();
        if tbs.subject() == tbs.issuer() {
            return Err(broken("it is a CA's own, which no list can revoke".into()));
        }
        let extensions = tbs.extensions().map_or(&[][..], |extensions| extensions);
        if !self.is_issuer(tbs.issuer(), extensions) {
            return Err(broken("another CA issued it".into()));
        }
        Ok(RevokedCertParams {
            serial_number: SerialNumber::from_slice(tbs.serial_number().as_bytes()),
            revocation_time: OffsetDateTime::now_utc(),
            reason_code: None,
            invalidity_date: None,
        })
    }

    /// Whether this CA issued something with this issuer and these extensions: name and key must
    /// match.
    fn is_issuer(&self, issuer: &Name, extensions: &[Extension]) -> bool {
        let key_id = extensions
            .iter()
            .find(|extension| extension.extn_id == AuthorityKeyIdentifier::OID)
            .and_then(|ext| AuthorityKeyIdentifier::from_der(ext.extn_value.as_bytes()).ok())
            .and_then(|id| id.key_identifier);
        issuer.to_der().is_ok_and(|issuer| issuer == self.subject)
            && key_id.is_some_and(|id| id.as_bytes() == self.key_id)
    }

    /// The list of revoked certificates in PEM.
    pub fn crl(
        &self,
        revoked: &[RevokedCertParams],
        number: u64,
        days: u32,
    ) -> Result<String, Failure> {
        let params = CertificateRevocationListParams {
            this_update: OffsetDateTime::now_utc() - CLOCKS_DIFFER,
            next_update: OffsetDateTime::now_utc() + Duration::days(days.into()),
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: None,
            revoked_certs: revoked.to_vec(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.issuer).map_err(not_made)?;
        Ok(store::pem("X509 CRL", list.der()).to_string())
    }

    /// The CA's key in PEM.
    pub fn key_pem(&self) -> Zeroizing<String> {
        store::pem("PRIVATE KEY", self.issuer.key().serialized_der())
    }

    /// The CA's name.
    pub fn name(&self) -> String {
        Name::from_der(&self.subject).map(|name| name.to_string()).unwrap_or_default()
    }

    /// The last day on which the CA's certificate is valid.
    pub fn until(&self) -> Date {
        self.not_after.date()
    }
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn ca_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

/// A time of a certificate.
pub fn offset(time: Time) -> OffsetDateTime {
    OffsetDateTime::UNIX_EPOCH + Duration::seconds(time.to_unix_duration().as_secs() as i64)
}

fn not_made(error: impl std::fmt::Display) -> Failure {
    Failure::plain(format_args!("a certificate could not be made: {error}"))
}
