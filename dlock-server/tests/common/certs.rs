// SPDX-License-Identifier: MIT OR Apache-2.0
//! A CA and its certificates, as files that are removed with it.
#![allow(dead_code)] // every test program uses a part of it

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use base64ct::{Base64, Encoding};
use dlock_fabric::tls::{NoPassword, Tls, TlsFiles};
use rcgen::{
    date_time_ymd, BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SerialNumber,
};

/// A folder with `ca.pem`, and `NAME.pem` and `NAME.key` of each holder of a certificate.
pub struct Ca {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    serials: AtomicU64,
}

impl Ca {
    pub fn new(name: &str) -> Self {
        static FOLDERS: AtomicU32 = AtomicU32::new(0);
        let n = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("dlock-tls-{}-{n}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        fs::write(folder.join("ca.pem"), pem("CERTIFICATE", certificate.der())).unwrap();
        Self { folder, issuer: Issuer::new(params, key), serials: AtomicU64::new(1) }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Issues a certificate, for both roles.
    pub fn issue(&self, name: &str) -> TlsFiles {
        self.issue_with(name, CertificateParams::new(vec![name.to_string()]).unwrap())
    }

    /// Issues a certificate with these parameters, such as its dates.
    pub fn issue_with(&self, name: &str, mut params: CertificateParams) -> TlsFiles {
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        params.serial_number = Some(self.serials.fetch_add(1, Ordering::Relaxed).into());
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file = |suffix: &str| self.folder.join(format!("{name}.{suffix}"));
        fs::write(file("pem"), pem("CERTIFICATE", certificate.der())).unwrap();
        fs::write(file("key"), pem("PRIVATE KEY", &key.serialize_der())).unwrap();
        TlsFiles { ca: self.folder.join("ca.pem"), crl: None, cert: file("pem"), key: file("key") }
    }

    /// The serial number of the last certificate issued.
    pub fn last_serial(&self) -> u64 {
        self.serials.load(Ordering::Relaxed) - 1
    }

    /// Writes a revocation list of these serial numbers; returns its file.
    pub fn revokes(&self, serials: &[u64]) -> PathBuf {
        let entry = |&serial: &u64| RevokedCertParams {
            serial_number: serial.into(),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let number: SerialNumber = self.serials.fetch_add(1, Ordering::Relaxed).into();
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2999, 1, 1),
            crl_number: number,
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(entry).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).unwrap();
        let path = self.folder.join("crl.pem");
        fs::write(&path, pem("X509 CRL", list.der())).unwrap();
        path
    }

    pub fn tls(&self, name: &str) -> Tls {
        load(self.issue(name))
    }

    /// A certificate, loaded with an empty revocation list: [`revokes`](Self::revokes) replaces it.
    pub fn tls_with_list(&self, name: &str) -> Tls {
        let mut files = self.issue(name);
        files.crl = Some(self.revokes(&[]));
        load(files)
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = Base64::encode_string(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

impl Drop for Ca {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder); // a file or folder that is left over does no harm
    }
}

pub fn load(files: TlsFiles) -> Tls {
    Tls::load(files, Arc::new(NoPassword)).unwrap()
}
