// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that are replaced as a whole by who has the place.
//!
//! ```text
//!   NAME.PID-NUMBER.new ──is the place still its own?──▶ rename ──▶ NAME
//! ```
//! A primary may be stopped anywhere in this, and go on after its place was taken. Who takes the
//! place removes its fresh files before it reads those that they were for: the rename of a primary
//! that had looked before then finds nothing.

use std::collections::hash_map::RandomState;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::owner::{beside, folder};

/// The end of the name of a file that is not in its place yet.
const NEW: &str = ".new";

/// A file that is to take the place of another one beside it.
pub(crate) struct Fresh {
    pub(super) path: PathBuf,
    file: File,
    of: PathBuf,
}

impl Fresh {
    /// Under a name that no other primary gives.
    ///
    /// # Errors
    /// It cannot be written; nothing is left of it.
    pub(crate) fn write(of: &Path, text: &str, mode: u32) -> io::Result<Self> {
        let unique = RandomState::new().build_hasher().finish();
        let path = beside(of, &format!(".{}-{unique:016x}{NEW}", std::process::id()));
        match write_synced(&path, text, mode) {
            Ok(file) => Ok(Self { path, file, of: of.to_path_buf() }),
            Err(error) => {
                let _ = fs::remove_file(&path); // it may not exist
                Err(error)
            }
        }
    }

    /// Puts it there, if nothing speaks against that; the file, open for more at its end.
    ///
    /// # Errors
    /// It is not there, or may be lost with the power of the host.
    pub(crate) fn put(self, may: impl FnOnce() -> io::Result<()>) -> io::Result<File> {
        let put = may().and_then(|()| fs::rename(&self.path, &self.of));
        if put.is_err() {
            let _ = fs::remove_file(&self.path); // it may not exist; the first error is reported
        }
        put?;
        File::open(folder(&self.of))?.sync_all()?;
        Ok(self.file)
    }
}

/// Removes what primaries have not finished for this file: they have ended, or must not go on.
///
/// # Errors
/// The folder cannot be read, or a file in it not be removed.
pub(crate) fn remove_unfinished(of: &Path) -> io::Result<()> {
    let no_name = || io::Error::new(io::ErrorKind::InvalidData, "it has no file name");
    let name = of.file_name().ok_or_else(no_name)?;
    let start = [name.as_bytes(), b"."].concat();
    for entry in fs::read_dir(folder(of))? {
        let entry = entry?;
        let name = entry.file_name();
        let rest = name.as_bytes().strip_prefix(&start[..]);
        let middle = rest.and_then(|rest| rest.strip_suffix(NEW.as_bytes()));
        // `PID-NUMBER`: its own, and not that of a file whose name begins with this one's
        if middle.is_some_and(|middle| middle.contains(&b'-') && !middle.contains(&b'.')) {
            match fs::remove_file(entry.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

fn write_synced(path: &Path, text: &str, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    Ok(file)
}
