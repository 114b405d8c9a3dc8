// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlock certs list`: what the CA has issued, when it expires, and what is revoked.

use std::fs;
use std::path::Path;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer};
use time::OffsetDateTime;
use x509_cert::certificate::Rfc5280;
use x509_cert::crl::CertificateList;
use x509_cert::der::Decode;
use x509_cert::time::Time;
use x509_cert::Certificate;

use super::authority::hex;
use super::store::{self, Store};
use crate::failure::{Failure, FAILED};
use crate::table;

/// A certificate is listed as `ends soon` if it has fewer days left than this.
const NEAR_DAYS: i64 = 30;

/// The CA, its list, and every certificate that it issued, as a table.
pub fn table(store: &Store) -> Result<String, Failure> {
    let (ca, list) = (certificate(&store.path(store::CA_CERT))?, list(store)?);
    let entries = list.tbs_cert_list.revoked_certificates.unwrap_or_default();
    let revoked: Vec<Vec<u8>> =
        entries.iter().map(|entry| entry.serial_number.as_bytes().to_vec()).collect();
    let mut rows = vec![["name", "serial", "until", "days", "state"].map(String::from).to_vec()];
    rows.push(row(&ca, &[]));
    let due = list.tbs_cert_list.next_update.ok_or_else(|| {
        broken(&store.path(store::CA_CRL), "it does not say when the next one is due")
    })?;
    let (until, days, state) = end(due);
    let name = "the list of revoked certificates".into();
    rows.push(vec![name, "-".into(), until, days.to_string(), state.into()]);
    let folder = store.path(store::ISSUED);
    let files = fs::read_dir(&folder).map_err(|error| broken(&folder, error))?;
    let mut paths: Vec<_> = files.filter_map(|file| Some(file.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|ext| ext == "crt"));
    let mut issued = paths.iter().map(|path| certificate(path)).collect::<Result<Vec<_>, _>>()?;
    issued.sort_by_key(|issued| issued.tbs_certificate().validity().not_after.to_unix_duration());
    rows.extend(issued.iter().map(|issued| row(issued, &revoked)));
    Ok(table::render(&rows))
}

fn row(certificate: &Certificate, revoked: &[Vec<u8>]) -> Vec<String> {
    let tbs = certificate.tbs_certificate();
    let serial = tbs.serial_number().as_bytes();
    let (until, days, state) = end(tbs.validity().not_after);
    let is_revoked = revoked.iter().any(|revoked| revoked == serial);
    let state = if is_revoked { "revoked" } else { state };
    let name = tbs.subject().to_string();
    let name = name.chars().flat_map(|c| match c.is_control() {
        true => c.escape_default().collect(),
        false => vec![c],
    });
    vec![name.collect(), hex(serial), until, days.to_string(), state.into()]
}

/// The last day of something that is valid until this time, the days that are left, and its state
/// in words.
fn end(time: Time) -> (String, i64, &'static str) {
    let at = super::authority::offset(time);
    let left = at - OffsetDateTime::now_utc();
    let state = match left.whole_days() {
        _ if left.is_negative() => "over",
        days if days < NEAR_DAYS => "ends soon",
        _ => "valid",
    };
    (at.date().to_string(), left.whole_days(), state)
}

fn certificate(path: &Path) -> Result<Certificate, Failure> {
    let text = fs::read(path).map_err(|error| broken(path, error))?;
    let der = CertificateDer::from_pem_slice(&text).map_err(|e| broken(path, store::no_pem(&e)))?;
    Certificate::from_der(&der).map_err(|error| broken(path, error))
}

fn list(store: &Store) -> Result<CertificateList<Rfc5280>, Failure> {
    let path = store.path(store::CA_CRL);
    let der = CertificateRevocationListDer::from_pem_slice(&store.read(&path)?);
    let der = der.map_err(|error| broken(&path, store::no_pem(&error)))?;
    CertificateList::from_der(&der).map_err(|error| broken(&path, error))
}

fn broken(path: &Path, cause: impl std::fmt::Display) -> Failure {
    let remedy = "restore it from a copy, or name the folder of a CA with --dir";
    Failure::new(FAILED, format_args!("{}: {cause}", path.display()), remedy)
}
