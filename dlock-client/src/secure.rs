// SPDX-License-Identifier: MIT OR Apache-2.0
//! The certificates and the key with which a client uses TLS.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use dlock_core::wire::status::Status;
use dlock_fabric::tls::{FilePassword, KeyPassword, NoPassword, Tls, TlsFiles};

/// The environment variable with the file of the CAs whose primaries the client accepts: PEM. If it
/// is set, clients whose configuration does not mention TLS use TLS; they also need a certificate
/// and a key.
pub const TLS_CA_VARIABLE: &str = "DLOCK_TLS_CA";
/// The environment variable with the file of the client's certificate and its chain: PEM.
pub const TLS_CERT_VARIABLE: &str = "DLOCK_TLS_CERT";
/// The environment variable with the file of the client's private key: PEM.
pub const TLS_KEY_VARIABLE: &str = "DLOCK_TLS_KEY";
/// The environment variable with the file of revocation lists; without it no certificate is
/// revoked.
pub const TLS_CRL_VARIABLE: &str = "DLOCK_TLS_CRL";
/// The environment variable with the file whose first line is the password of the key.
pub const TLS_PASSWORD_VARIABLE: &str = "DLOCK_TLS_KEY_PASSWORD_FILE";

/// Whether a client uses TLS with its primary, and with which certificates and key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TlsUse {
    /// TLS if the environment names files for it ([`TLS_CA_VARIABLE`] and the other variables).
    #[default]
    Environment,
    /// No TLS; the environment is ignored.
    Off,
    /// With these certificates and this key.
    With(Tls),
}

impl TlsUse {
    /// The certificates and the key, loaded again if their files have changed; `None`: no TLS.
    ///
    /// # Errors
    /// `Error`: the environment names files that cannot be used; the log has the file and the
    /// reason.
    pub fn material(&self) -> Result<Option<Tls>, Status> {
        let tls = match self {
            Self::Off => None,
            Self::With(tls) => Some(tls.clone()),
            Self::Environment => of_environment()?,
        };
        if let Some(tls) = tls.as_ref().filter(|tls| tls.changed()) {
            match tls.reload() {
                Ok(()) => log::info!("the TLS files were loaded again"),
                Err(error) => {
                    log::error!("the TLS files stay as they were loaded before: {error}");
                }
            }
        }
        if let Some(tls) = &tls {
            tls.warn_of_endings();
        }
        Ok(tls)
    }
}

/// The files that the environment names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    files: TlsFiles,
    password: Option<PathBuf>,
}

impl Named {
    /// The files that the environment variables name; `None`: they name none.
    ///
    /// # Errors
    /// The name of a variable that is not set.
    fn by(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<Option<Self>, &'static str> {
        let [ca, cert, key, crl, password] = [
            TLS_CA_VARIABLE,
            TLS_CERT_VARIABLE,
            TLS_KEY_VARIABLE,
            TLS_CRL_VARIABLE,
            TLS_PASSWORD_VARIABLE,
        ]
        .map(|name| variable(name).filter(|path| !path.as_os_str().is_empty()));
        if [&ca, &cert, &key, &crl, &password].iter().all(|path| path.is_none()) {
            return Ok(None);
        }
        let files = TlsFiles {
            ca: ca.ok_or(TLS_CA_VARIABLE)?,
            crl,
            cert: cert.ok_or(TLS_CERT_VARIABLE)?,
            key: key.ok_or(TLS_KEY_VARIABLE)?,
        };
        Ok(Some(Self { files, password }))
    }

    fn load(&self) -> Result<Tls, Status> {
        let password: Arc<dyn KeyPassword> = match &self.password {
            Some(path) => Arc::new(FilePassword::new(path.clone())),
            None => Arc::new(NoPassword),
        };
        Tls::load(self.files.clone(), password).map_err(|error| {
            log::error!("TLS, by {TLS_CA_VARIABLE} and its neighbours: {error}");
            Status::Error
        })
    }
}

/// Loads the files that the environment names, once: all clients of the process share them.
fn of_environment() -> Result<Option<Tls>, Status> {
    static LOADED: ArcSwapOption<(Named, Tls)> = ArcSwapOption::const_empty();
    let named = Named::by(|name| dlock_fabric::os::environment::variable(name).map(PathBuf::from));
    let named = named.map_err(|missing| {
        log::error!(
            "the environment names files for TLS, and {missing} is not set: TLS takes \
             {TLS_CA_VARIABLE}, {TLS_CERT_VARIABLE} and {TLS_KEY_VARIABLE}"
        );
        Status::Error
    })?;
    let Some(named) = named else { return Ok(None) };
    if let Some(loaded) = LOADED.load().as_deref().filter(|loaded| loaded.0 == named) {
        return Ok(Some(loaded.1.clone()));
    }
    let tls = named.load()?;
    LOADED.store(Some(Arc::new((named, tls.clone()))));
    Ok(Some(tls))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_tls_takes_must_be_named_or_nothing() {
        let by = |names: &[&str]| Named::by(|name| names.contains(&name).then(|| name.into()));
        assert_eq!(by(&[]), Ok(None));
        let all = [TLS_CA_VARIABLE, TLS_CERT_VARIABLE, TLS_KEY_VARIABLE];
        let named = by(&all).unwrap().unwrap();
        assert_eq!((named.files.crl, named.password), (None, None));
        for missing in all {
            let others: Vec<_> = all.into_iter().filter(|name| *name != missing).collect();
            assert_eq!(by(&others), Err(missing));
        }
        assert_eq!(by(&[TLS_CRL_VARIABLE]), Err(TLS_CA_VARIABLE));
        let empty = Named::by(|name| (name == TLS_CA_VARIABLE).then(PathBuf::new));
        assert_eq!(empty, Ok(None));
    }
}
