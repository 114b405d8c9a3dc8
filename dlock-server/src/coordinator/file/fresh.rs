// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that the owner of the list replaces as a whole.
//!
//! ```text
//!   NAME.PID-NUMBER.new ──is the place still its own?──▶ rename ──▶ NAME
//! ```
//! A primary may be stopped between any two of these steps, and go on after another primary has
//! taken its place. A primary that takes a place first removes all fresh files, and then reads the
//! files that they were to replace. So a former owner that had found its rename permitted finds no
//! file to rename.

use std::collections::hash_map::RandomState;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::owner::{beside, folder};

/// The end of the name of a fresh file.
const NEW: &str = ".new";

/// A fresh file, which is to replace another one beside it.
pub(crate) struct Fresh {
    pub(super) path: PathBuf,
    file: File,
    of: PathBuf,
}

impl Fresh {
    /// Writes the fresh file under a name that no other primary uses.
    ///
    /// # Errors
    /// The file cannot be written; nothing of it is left.
    pub(crate) fn write(of: &Path, text: &str, mode: u32) -> io::Result<Self> {
        let unique = RandomState::new().build_hasher().finish();
        let path = beside(of, &format!(".{}-{unique:016x}{NEW}", std::process::id()));
        match write_synced(&path, text, mode) {
            Ok(file) => Ok(Self { path, file, of: of.to_path_buf() }),
            Err(error) => {
                let _ = fs::remove_file(&path); // the file may not exist
                Err(error)
            }
        }
    }

    /// Renames the file into its place, if `may` permits that; returns it, open for appending.
    ///
    /// # Errors
    /// The file is not in its place, or may be lost if the host loses power.
    pub(crate) fn put(self, may: impl FnOnce() -> io::Result<()>) -> io::Result<File> {
        let put = may().and_then(|()| fs::rename(&self.path, &self.of));
        if put.is_err() {
            // the file may not exist; the first error is reported
            let _ = fs::remove_file(&self.path);
        }
        put?;
        File::open(folder(&self.of))?.sync_all()?;
        Ok(self.file)
    }
}

/// Removes the fresh files that other primaries have left for this file. Those primaries have
/// ended, or must not go on.
///
/// # Errors
/// The folder cannot be read, or a file in it cannot be removed.
pub(crate) fn remove_unfinished(of: &Path) -> io::Result<()> {
    let no_name = || io::Error::new(io::ErrorKind::InvalidData, "it has no file name");
    let name = of.file_name().ok_or_else(no_name)?;
    let start = [name.as_bytes(), b"."].concat();
    for entry in fs::read_dir(folder(of))? {
        let entry = entry?;
        let name = entry.file_name();
        let rest = name.as_bytes().strip_prefix(&start[..]);
        let middle = rest.and_then(|rest| rest.strip_suffix(NEW.as_bytes()));
        // `PID-NUMBER`: the name of a fresh file of this file, and not of another one whose name
        // begins in the same way
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
