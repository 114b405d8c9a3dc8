// SPDX-License-Identifier: MIT OR Apache-2.0
//! TLS for everything that these programs start: one certificate, which all of them show.

use std::path::PathBuf;
use std::sync::OnceLock;

use dlock_client::{TLS_CA_VARIABLE, TLS_CERT_VARIABLE, TLS_KEY_VARIABLE};
use dlock_fabric::tls::{Tls, TlsFiles};

use super::certs::{load, Ca};

static FILES: OnceLock<TlsFiles> = OnceLock::new();

/// From now on, every primary and every client of this process and its children uses TLS. The files
/// are removed when the returned value is dropped.
pub fn begin() -> Ca {
    let ca = Ca::new("chaos");
    let is_first = FILES.set(ca.issue("127.0.0.1")).is_ok();
    assert!(is_first, "once per process");
    ca
}

/// The environment that tells a child which TLS files to use. In these tests, primaries read it as
/// well.
pub fn environment() -> Vec<(&'static str, PathBuf)> {
    files().map_or_else(Vec::new, |TlsFiles { ca, cert, key, .. }| {
        vec![(TLS_CA_VARIABLE, ca), (TLS_CERT_VARIABLE, cert), (TLS_KEY_VARIABLE, key)]
    })
}

/// Whether these tests use TLS.
pub fn is_on() -> bool {
    files().is_some()
}

/// The certificate, key and CA of the primaries here; `None`: they do not use TLS.
pub fn tls() -> Option<Tls> {
    files().map(load)
}

fn files() -> Option<TlsFiles> {
    let file = |name| std::env::var_os(name).map(PathBuf::from);
    let from_parent = || {
        let (ca, cert, key) =
            (file(TLS_CA_VARIABLE)?, file(TLS_CERT_VARIABLE)?, file(TLS_KEY_VARIABLE)?);
        Some(TlsFiles { ca, crl: None, cert, key })
    };
    FILES.get().cloned().or_else(from_parent)
}
