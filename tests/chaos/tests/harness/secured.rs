// SPDX-License-Identifier: MIT OR Apache-2.0
//! TLS for everything that these programs start: one certificate, which all of them show.

use std::path::PathBuf;
use std::sync::OnceLock;

use dlock_client::{TLS_CA_VARIABLE, TLS_CERT_VARIABLE, TLS_KEY_VARIABLE};
use dlock_fabric::tls::{Tls, TlsFiles};

use super::certs::{load, Ca};

static FILES: OnceLock<TlsFiles> = OnceLock::new();

/// From now on every primary and every client of this process and its children speaks TLS. The
/// files are gone with what is returned.
pub fn begin() -> Ca {
    let ca = Ca::new("chaos");
    let is_first = FILES.set(ca.issue("127.0.0.1")).is_ok();
    assert!(is_first, "once per process");
    ca
}

/// What a child is told of it: the environment of a client, which a primary reads here, too.
pub fn environment() -> Vec<(&'static str, PathBuf)> {
    files().map_or_else(Vec::new, |TlsFiles { ca, cert, key, .. }| {
        vec![(TLS_CA_VARIABLE, ca), (TLS_CERT_VARIABLE, cert), (TLS_KEY_VARIABLE, key)]
    })
}

/// Whether there is TLS.
pub fn is_on() -> bool {
    files().is_some()
}

/// What a primary here shows and trusts.
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
