// SPDX-License-Identifier: MIT OR Apache-2.0
//! A private CA for tests, which also issues wrong certificates.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::{fs, process};

use base64ct::{Base64, Encoding};
use dlock_fabric::tls::{NoPassword, Tls, TlsError, TlsFiles};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    PublicKeyData, RevocationReason, RevokedCertParams, SanType, SerialNumber, SignatureAlgorithm,
};
use time::{Duration, OffsetDateTime};

/// The key usages of a client and of a server.
pub const BOTH: [ExtendedKeyUsagePurpose; 2] =
    [ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];

static SERIAL: AtomicU64 = AtomicU64::new(1);

pub fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

pub fn serial() -> SerialNumber {
    SerialNumber::from(SERIAL.fetch_add(1, Ordering::Relaxed))
}

pub fn key() -> KeyPair {
    KeyPair::generate().expect("P-256")
}

/// A PEM block.
pub fn pem(label: &str, der: &[u8]) -> String {
    let text = Base64::encode_string(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|l| std::str::from_utf8(l).expect("ASCII")).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// The content of the last block of a PEM text.
pub fn der(pem: &str) -> Vec<u8> {
    let body = pem.rsplit("-----BEGIN ").next().expect("one").split("-----").nth(1).expect("body");
    Base64::decode_vec(&body.split_whitespace().collect::<String>()).expect("base64")
}

pub fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls/fixtures").join(name);
    fs::read_to_string(path).expect("it is in the repository")
}

/// Parameters of a correct certificate: valid for an hour, with both usages.
pub fn good(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = rcgen::string::Ia5String::try_from(format!("{name}.example"))
        .map(|name| vec![SanType::DnsName(name)])
        .unwrap_or_default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = now() - Duration::hours(1);
    params.not_after = now() + Duration::hours(1);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = BOTH.to_vec();
    params.serial_number = Some(serial());
    params.use_authority_key_identifier_extension = true;
    params
}

/// Parameters of a CA's certificate.
pub fn good_ca(name: &str) -> CertificateParams {
    let mut params = good(name);
    params.subject_alt_names.clear();
    params.extended_key_usages.clear();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// A certificate authority: the root, or one below it.
pub struct Ca {
    pub issuer: Issuer<'static, KeyPair>,
    pub der: Vec<u8>,
    /// The certificate of this CA and those above it, except the root's.
    pub above: Vec<Vec<u8>>,
}

impl Ca {
    pub fn root(name: &str) -> Self {
        Self::root_with(good_ca(name))
    }

    pub fn root_with(params: CertificateParams) -> Self {
        let key = key();
        let der = params.self_signed(&key).expect("it signs itself").der().to_vec();
        Self { issuer: Issuer::new(params, key), der, above: Vec::new() }
    }

    pub fn intermediate(&self, params: CertificateParams) -> Self {
        let key = key();
        let der = params.signed_by(&key, &self.issuer).expect("it is signed").der().to_vec();
        let above = [std::slice::from_ref(&der), &self.above[..]].concat();
        Self { issuer: Issuer::new(params, key), der, above }
    }

    pub fn pem(&self) -> String {
        pem("CERTIFICATE", &self.der)
    }

    pub fn issue(&self, params: &CertificateParams) -> Identity {
        self.issue_for(params, key())
    }

    pub fn issue_for(&self, params: &CertificateParams, key: KeyPair) -> Identity {
        let leaf = params.signed_by(&key, &self.issuer).expect("it is signed").der().to_vec();
        Identity { chain: [&[leaf], &self.above[..]].concat(), key }
    }

    /// A revocation list valid for an hour.
    pub fn crl(&self, revoked: &[&CertificateParams]) -> String {
        self.crl_until(revoked, now() + Duration::hours(1))
    }

    pub fn crl_until(&self, revoked: &[&CertificateParams], until: OffsetDateTime) -> String {
        self.crl_of(revoked, now() - Duration::hours(2), until)
    }

    pub fn crl_of(
        &self,
        revoked: &[&CertificateParams],
        since: OffsetDateTime,
        until: OffsetDateTime,
    ) -> String {
        let entry = |params: &&CertificateParams| RevokedCertParams {
            serial_number: params.serial_number.clone().expect("all have one"),
            revocation_time: now() - Duration::minutes(1),
            reason_code: Some(RevocationReason::KeyCompromise),
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: since,
            next_update: until,
            crl_number: serial(),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().map(entry).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        pem("X509 CRL", params.signed_by(&self.issuer).expect("it is signed").der())
    }
}

/// A chain and the key of its first certificate.
pub struct Identity {
    pub chain: Vec<Vec<u8>>,
    pub key: KeyPair,
}

impl Identity {
    pub fn cert_pem(&self) -> String {
        self.chain.iter().map(|der| pem("CERTIFICATE", der)).collect()
    }

    pub fn key_pem(&self) -> String {
        pem("PRIVATE KEY", self.key.serialized_der())
    }
}

/// The public half of an RSA key that is too short; there is no private half.
pub struct WeakKey(Vec<u8>);

impl WeakKey {
    pub fn new() -> Self {
        Self(der(&fixture("rsa1024-public.pem")))
    }
}

impl PublicKeyData for WeakKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_RSA_SHA256
    }
}

/// A folder with the four files of a configuration; removed at the end.
pub struct Folder {
    path: PathBuf,
    pub files: TlsFiles,
}

impl Folder {
    pub fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("dlock-tls-{}-{number}", process::id()));
        fs::create_dir_all(&path).expect("a folder");
        let files = TlsFiles {
            ca: path.join("ca.crt"),
            crl: None,
            cert: path.join("node.crt"),
            key: path.join("node.key"),
        };
        Self { path, files }
    }

    /// A folder with correct files: this CA, this identity, and this list if there is one.
    pub fn with(ca: &Ca, identity: &Identity, crl: Option<&str>) -> Self {
        let mut folder = Self::new();
        folder.write(&folder.files.ca, &ca.pem());
        folder.write(&folder.files.cert, &identity.cert_pem());
        folder.write(&folder.files.key, &identity.key_pem());
        if let Some(crl) = crl {
            let path = folder.path("crl.pem");
            folder.write(&path, crl);
            folder.files.crl = Some(path);
        }
        folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Replaces a file by renaming, as programs should.
    pub fn write(&self, path: &Path, text: &str) {
        let new = path.with_extension("new");
        fs::write(&new, text).expect("a file");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&new, mode).expect("the owner's");
        fs::rename(&new, path).expect("its place");
    }

    pub fn load(&self) -> Result<Tls, TlsError> {
        Tls::load(self.files.clone(), Arc::new(NoPassword))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path); // a file or folder that is left over does no harm
    }
}
