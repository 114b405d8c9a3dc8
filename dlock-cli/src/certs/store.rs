// SPDX-License-Identifier: MIT OR Apache-2.0
//! The folder of a CA: whole files with the right modes, one writer at a time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use base64ct::{Base64, Encoding};
use rustix::fs::{flock, FlockOperation};
use rustix::io::Errno;
use rustls_pki_types::pem;
use zeroize::Zeroizing;

use crate::failure::{Failure, FAILED};

/// The CA's certificate, which all hosts need.
pub const CA_CERT: &str = "ca.crt";
/// The CA's private key, which no host needs.
pub const CA_KEY: &str = "ca.key";
/// The list of revoked certificates, which all hosts need.
pub const CA_CRL: &str = "ca.crl";
/// The folder of copies of all certificates.
pub const ISSUED: &str = "issued";

const LINE_CHARS: usize = 64;

/// How long another process may keep the folder locked; `dlock certs` needs less than a second.
const OTHERS_MAX: Duration = Duration::from_secs(10);
/// The time between two attempts to lock the folder.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A folder that this process alone changes, until it is dropped.
pub struct Store {
    folder: PathBuf,
    _locked: File,
}

impl Store {
    /// Opens the folder; makes it if there is none.
    pub fn create(folder: &Path) -> Result<Self, Failure> {
        fs::create_dir_all(folder.join(ISSUED)).map_err(|error| failed(folder, &error))?;
        Self::open(folder)
    }

    /// Opens the folder, which must exist.
    pub fn open(folder: &Path) -> Result<Self, Failure> {
        let locked = File::open(folder).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Failure::new(
                FAILED,
                format_args!("there is no folder {}", folder.display()),
                "make a CA with 'dlock certs init', or name its folder with --dir",
            ),
            _ => failed(folder, &error),
        })?;
        let until = Instant::now() + OTHERS_MAX;
        while let Err(error) = flock(&locked, FlockOperation::NonBlockingLockExclusive) {
            if error != Errno::WOULDBLOCK && error != Errno::INTR {
                return Err(failed(folder, &error.into()));
            }
            if Instant::now() >= until {
                let folder = folder.display();
                return Err(Failure::new(
                    FAILED,
                    format_args!("another process has had the folder {folder} for {OTHERS_MAX:?}"),
                    format_args!("end that process, which may be stopped: lsof {folder}"),
                ));
            }
            thread::sleep(LOOK_AGAIN);
        }
        Ok(Self { folder: folder.into(), _locked: locked })
    }

    /// The path of a file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Fails if one of the files exists.
    pub fn refuse_existing(&self, names: &[&str], remedy: &str) -> Result<(), Failure> {
        // A link that leads nowhere counts: it would be replaced.
        let there = |name: &&&str| self.path(name).symlink_metadata().is_ok();
        match names.iter().find(there) {
            None => Ok(()),
            Some(name) => {
                let path = self.path(name);
                Err(Failure::new(FAILED, format_args!("{} exists", path.display()), remedy))
            }
        }
    }

    /// The content of a file.
    pub fn read(&self, path: &Path) -> Result<Vec<u8>, Failure> {
        fs::read(path).map_err(|error| failed(path, &error))
    }

    /// Writes a file that all users may read.
    pub fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        self.replace(name, text, 0o644)
    }

    /// Writes a file that only its owner may read.
    pub fn write_secret(&self, name: &str, text: &str) -> Result<(), Failure> {
        self.replace(name, text, 0o600)
    }

    /// Replaces the file as a whole, because a running dlockd may read it at any time.
    fn replace(&self, name: &str, text: &str, mode: u32) -> Result<(), Failure> {
        let path = self.path(name);
        let new = self.path(&format!("{name}.new"));
        let write = || {
            match fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                // whether or not there was such a file, a new one is made, since the old one may
                // have another mode
                _ => {}
            }
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(mode).open(&new)?;
            // The umask may have taken rights away.
            file.set_permissions(fs::Permissions::from_mode(mode))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)
        };
        write().map_err(|error| failed(&path, &error))
    }
}

/// A PEM block, wiped when it is dropped: it may be a key.
pub fn pem(label: &str, der: &[u8]) -> Zeroizing<String> {
    let body = Zeroizing::new(Base64::encode_string(der));
    let lines = body.len() / LINE_CHARS + 1;
    let mut text = Zeroizing::new(String::new());
    // reserved at once: a text that grows leaves unwiped copies behind
    text.reserve(body.len() + lines + 2 * (label.len() + 20));
    text.push_str(&format!("-----BEGIN {label}-----\n"));
    let mut rest = body.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(LINE_CHARS));
        text.push_str(line);
        text.push('\n');
        rest = more;
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

/// Why a file has no block of PEM.
pub fn no_pem(error: &pem::Error) -> String {
    match error {
        pem::Error::NoItemsFound => "it is empty, or has no such block of PEM".to_string(),
        error => format!("it is no PEM file: {error}"),
    }
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    let remedy = "check the path (--dir) and this user's rights";
    Failure::new(FAILED, format_args!("{}: {error}", path.display()), remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pem_is_as_everybody_writes_it() {
        let text = pem("CERTIFICATE", &[0xff; 60]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "-----BEGIN CERTIFICATE-----");
        assert_eq!([lines[1].len(), lines[2].len()], [64, 16]);
        assert_eq!(lines[3], "-----END CERTIFICATE-----");
        assert!(text.ends_with('\n') && text.len() <= text.capacity());
        assert_eq!(pem("X", &[]).as_str(), "-----BEGIN X-----\n-----END X-----\n");
    }
}
