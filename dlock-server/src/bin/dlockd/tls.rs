// SPDX-License-Identifier: MIT OR Apache-2.0
//! The TLS settings of the file and of the command line.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use dlock_fabric::tls::{FilePassword, KeyPassword, NoPassword, Tls, TlsFiles};
use serde::Deserialize;

/// The keys of `[tls]`, and the options of the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, clap::Args)]
#[serde(deny_unknown_fields)]
pub(crate) struct TlsPaths {
    /// Speak TLS, with clients that have a certificate of a CA in this PEM file
    #[arg(long = "tls-ca", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Refuse the certificates that the revocation lists in this PEM file name
    #[arg(long = "tls-crl", value_name = "FILE")]
    pub(crate) crl: Option<PathBuf>,
    /// This primary's certificate, and those between it and the CA, in PEM
    #[arg(long = "tls-cert", value_name = "FILE")]
    pub(crate) cert: Option<PathBuf>,
    /// The private key of the certificate, in PEM
    #[arg(long = "tls-key", value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// The first line of this file is the password of the private key
    #[arg(long = "tls-key-password-file", value_name = "FILE")]
    pub(crate) key_password_file: Option<PathBuf>,
}

impl TlsPaths {
    /// These paths, and those of `others` where one is missing.
    pub(crate) fn over(&self, others: Self) -> Self {
        let one = |mine: &Option<PathBuf>, other: Option<PathBuf>| mine.clone().or(other);
        Self {
            ca: one(&self.ca, others.ca),
            crl: one(&self.crl, others.crl),
            cert: one(&self.cert, others.cert),
            key: one(&self.key, others.key),
            key_password_file: one(&self.key_password_file, others.key_password_file),
        }
    }

    /// Loads the files; `None`: TLS is not configured.
    ///
    /// # Errors
    /// A file is missing, or cannot be used.
    pub(crate) fn load(self) -> Result<Option<Tls>, String> {
        if self == Self::default() {
            return Ok(None);
        }
        let missing = |key: &str| {
            format!(
                "TLS needs a CA file, a certificate and its key: set {key} in [tls], or --tls-{key}"
            )
        };
        let files = TlsFiles {
            ca: self.ca.ok_or_else(|| missing("ca"))?,
            crl: self.crl,
            cert: self.cert.ok_or_else(|| missing("cert"))?,
            key: self.key.ok_or_else(|| missing("key"))?,
        };
        let password: Arc<dyn KeyPassword> = match self.key_password_file {
            Some(path) => Arc::new(FilePassword::new(path)),
            None => Arc::new(NoPassword),
        };
        let tls = Tls::load(files, password).map_err(|error| format!("TLS: {error}"))?;
        Ok(Some(tls))
    }
}

/// Refuses an address where strangers can connect, unless TLS is on or `insecure` is set.
pub(crate) fn check(bind: IpAddr, tls: Option<&Tls>, insecure: bool) -> Result<(), String> {
    match tls.is_some() || insecure || bind.to_canonical().is_loopback() {
        true => Ok(()),
        false => Err(format!(
            "listening on {bind} without TLS lets everybody who reaches the port take locks: \
             configure [tls] (ca, cert, key), or say insecure = true (--insecure) if the network \
             keeps strangers out"
        )),
    }
}

/// The same for the HTTP endpoint, which shows numbers, and takes nothing.
pub(crate) fn check_http(
    http: Option<SocketAddr>,
    tls: Option<&Tls>,
    insecure: bool,
) -> Result<(), String> {
    match http.map(|address| check(address.ip(), tls, insecure)) {
        None | Some(Ok(())) => Ok(()),
        Some(Err(_)) => Err(format!(
            "showing metrics at {} without TLS lets every host that reaches the port read them: \
             choose 127.0.0.1, configure [tls] (ca, cert, key), or say insecure = true \
             (--insecure) if the network keeps strangers out",
            http.map(|address| address.to_string()).unwrap_or_default()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_needs_neither_tls_nor_a_word() {
        for address in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(check(address, None, false), Ok(()), "{address}");
            assert_eq!(check_http(Some((address, 1).into()), None, false), Ok(()), "{address}");
        }
        for address in ["0.0.0.0", "::", "10.0.0.1", "fe80::1", "::ffff:10.0.0.1"] {
            let refused = check(address.parse().unwrap(), None, false).unwrap_err();
            assert!(refused.contains("insecure = true"), "{refused}");
            let http = Some(SocketAddr::new(address.parse().unwrap(), 1));
            assert!(check_http(http, None, false).is_err_and(|why| why.contains("metrics")));
            assert_eq!(check_http(http, None, true), Ok(()), "{address}");
            assert_eq!(check(address.parse().unwrap(), None, true), Ok(()), "{address}");
        }
    }

    #[test]
    fn what_is_missing_is_named_and_nothing_is_no_tls() {
        assert!(TlsPaths::default().load().unwrap().is_none());
        let ca = TlsPaths { ca: Some("ca.pem".into()), ..TlsPaths::default() };
        let why = ca.clone().load().unwrap_err();
        assert!(why.contains("set cert in [tls], or --tls-cert"), "{why}");
        let rest = TlsPaths {
            ca: Some("other.pem".into()),
            cert: Some("cert.pem".into()),
            key: Some("key.pem".into()),
            ..TlsPaths::default()
        };
        let both = ca.over(rest);
        assert_eq!(both.ca, Some("ca.pem".into()));
        assert!(both.load().unwrap_err().contains("ca.pem"));
    }
}
