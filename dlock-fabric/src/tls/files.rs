// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bounded reads of files, and detection of changes to them.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use zeroize::Zeroizing;

use super::{TlsError, TlsFiles};

/// Permission bits that the file of a secret should not have. The group may read it: the daemon's.
const TOO_OPEN: u32 = 0o037;

/// Reads a file of at most `bytes_max` bytes.
pub fn read(path: &Path, bytes_max: u64) -> Result<Zeroizing<Vec<u8>>, TlsError> {
    let (file, metadata) = open(path)?;
    read_open(path, file, &metadata, bytes_max)
}

/// As [`read`], and warns if users other than the owner and its group may read the file.
pub fn read_secret(path: &Path, bytes_max: u64) -> Result<Zeroizing<Vec<u8>>, TlsError> {
    let (file, metadata) = open(path)?;
    if metadata.mode() & TOO_OPEN != 0 {
        let mode = metadata.mode() & 0o7777;
        let path = path.display();
        log::warn!("{path} holds a secret, and its mode is {mode:04o}; chmod 600 or 640 {path}");
    }
    read_open(path, file, &metadata, bytes_max)
}

fn open(path: &Path) -> Result<(File, Metadata), TlsError> {
    let unreadable = |source: io::Error| TlsError::unreadable(path, source);
    // O_NONBLOCK: opening a named pipe would wait for a writer. It has no effect on regular files.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    match metadata.is_file() {
        true => Ok((file, metadata)),
        false => Err(TlsError::NotAFile { path: path.into() }),
    }
}

/// The buffer has its final size from the beginning, because growing it would leave copies in
/// memory.
fn read_open(
    path: &Path,
    file: File,
    metadata: &Metadata,
    bytes_max: u64,
) -> Result<Zeroizing<Vec<u8>>, TlsError> {
    let too_large = || TlsError::TooLarge { path: path.into(), bytes_max };
    if metadata.len() > bytes_max {
        return Err(too_large());
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(metadata.len() as usize + 1));
    let mut limited = file.take(metadata.len() + 1);
    limited.read_to_end(&mut bytes).map_err(|source| TlsError::unreadable(path, source))?;
    if bytes.len() as u64 > metadata.len() {
        return Err(TlsError::Growing { path: path.into() });
    }
    match bytes.is_empty() {
        true => Err(TlsError::Empty { path: path.into() }),
        false => Ok(bytes),
    }
}

/// The metadata by which a change of a file is detected.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The stamps of all files of a configuration; `None`: the file does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamps(Vec<Option<Stamp>>);

impl Stamps {
    /// The stamps now. To be taken before the files are read, so that a change meanwhile is
    /// detected.
    pub fn of(files: &TlsFiles) -> Self {
        Self(files.all().map(|path| fs::metadata(path).ok().map(Stamp::from)).collect())
    }
}

impl From<Metadata> for Stamp {
    fn from(metadata: Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_bound_is_read_and_one_byte_more_is_not() {
        let path = std::env::temp_dir().join(format!("dlock-tls-read-{}", std::process::id()));
        fs::write(&path, [7; 100]).unwrap();
        let (whole, over) = (read(&path, 100), read(&path, 99));
        fs::remove_file(&path).unwrap();
        assert_eq!(whole.unwrap().as_slice(), [7; 100]);
        assert!(matches!(over, Err(TlsError::TooLarge { bytes_max: 99, .. })));
        assert!(matches!(read(&path, 100), Err(TlsError::Missing { .. })));
    }
}
