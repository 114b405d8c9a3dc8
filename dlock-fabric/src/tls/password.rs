// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sources of the password of an encrypted key.

use std::fmt;
use std::path::PathBuf;

use zeroize::Zeroizing;

use super::files;
use super::{TlsError, KEY_FILE_BYTES_MAX};

/// Gives the password each time that an encrypted key is loaded; the password is wiped after use.
/// Not asked for a key that is not encrypted.
pub trait KeyPassword: Send + Sync + fmt::Debug {
    /// The password; `None` if there is none.
    ///
    /// # Errors
    ///
    /// The reason why the password cannot be read; [`TlsError::Password`] is for the
    /// implementation's own.
    fn password(&self) -> Result<Option<Zeroizing<Vec<u8>>>, TlsError>;
}

/// No password: an encrypted key is refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPassword;

impl KeyPassword for NoPassword {
    fn password(&self) -> Result<Option<Zeroizing<Vec<u8>>>, TlsError> {
        Ok(None)
    }
}

/// A password in memory, wiped when it is dropped.
pub struct FixedPassword(Zeroizing<Vec<u8>>);

impl FixedPassword {
    /// Takes the password over.
    pub fn new(password: Vec<u8>) -> Self {
        Self(Zeroizing::new(password))
    }
}

impl fmt::Debug for FixedPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FixedPassword(…)")
    }
}

impl KeyPassword for FixedPassword {
    fn password(&self) -> Result<Option<Zeroizing<Vec<u8>>>, TlsError> {
        Ok(Some(self.0.clone()))
    }
}

/// A password in a file of its own: the first line. The file is read each time.
#[derive(Clone, Debug)]
pub struct FilePassword(PathBuf);

impl FilePassword {
    /// Does not read the file yet.
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }
}

impl KeyPassword for FilePassword {
    fn password(&self) -> Result<Option<Zeroizing<Vec<u8>>>, TlsError> {
        let text = files::read_secret(&self.0, KEY_FILE_BYTES_MAX)?;
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        Ok(Some(Zeroizing::new(line.strip_suffix(b"\r").unwrap_or(line).to_vec())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_told_by_debug() {
        let password = FixedPassword::new(b"correct horse".to_vec());
        assert_eq!(format!("{password:?}"), "FixedPassword(…)");
        assert_eq!(password.password().unwrap().unwrap().as_slice(), b"correct horse");
        assert!(NoPassword.password().unwrap().is_none());
    }
}
