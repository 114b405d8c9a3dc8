// SPDX-License-Identifier: MIT OR Apache-2.0
//! A CA in a folder, as `dlock certs` makes it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use dlock_fabric::tls::{NoPassword, Tls, TlsFiles};

use crate::failure::Failure;

/// The folder of a CA.
pub struct Ca(PathBuf);

impl Ca {
    /// Makes a CA, and certificates for a primary of this name and for these clients.
    pub fn make(folder: &str, primary: Option<&str>, clients: &[&str]) -> Result<Self, Failure> {
        certs(&["init", "--dir", folder])?;
        if let Some(name) = primary {
            certs(&["server", name, "--dir", folder])?;
        }
        for name in clients {
            certs(&["client", name, "--dir", folder])?;
        }
        Ok(Self(folder.into()))
    }

    /// The files of a peer with the certificate of this name that trusts this CA.
    pub fn files(&self, name: &str) -> TlsFiles {
        self.files_trusting(name, self)
    }

    /// The files of a peer with the certificate of this name that trusts another CA.
    pub fn files_trusting(&self, name: &str, other: &Ca) -> TlsFiles {
        let file = |name: String| self.0.join(name);
        TlsFiles {
            ca: Path::new(&other.0).join("ca.crt"),
            crl: None,
            cert: file(format!("{name}.crt")),
            key: file(format!("{name}.key")),
        }
    }
}

/// Loads these files.
pub fn load(files: TlsFiles) -> Result<Tls, Failure> {
    Tls::load(files, Arc::new(NoPassword)).map_err(Failure::plain)
}

/// Runs `dlock certs`.
fn certs(arguments: &[&str]) -> Result<(), Failure> {
    let program = std::env::current_exe().map_err(Failure::plain)?;
    let mut command = Command::new(program);
    command.arg("certs").args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    match command.status().map_err(Failure::plain)?.success() {
        true => Ok(()),
        false => Err(Failure::plain(format!("dlock certs {} has failed", arguments.join(" ")))),
    }
}
