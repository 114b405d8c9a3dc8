// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens the files of the state. Other users may be able to write their folder:
//!
//! ```text
//!   a link          is not followed: it could lead to any file that this user may write
//!   a pipe, …       is neither waited for nor used
//! ```
//! Only the state file may be a link, of this user or root: the list of clients is beside the file
//! to which it leads.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::owner::folder;

/// The most links of a path that are followed, as many as the system follows.
const LINKS_MAX: u32 = 40;
/// Mode bits that let others change what is in a folder.
const OTHERS_WRITE: u32 = 0o022;

/// Opens a file of the state with these options.
///
/// # Errors
/// The file is not a regular one, or cannot be opened.
pub(crate) fn opened(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = match options.custom_flags(flags).open(path) {
        // a pipe without a reader, or a socket
        Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => return Err(odd()),
        Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            return Err(invalid("it is a symbolic link: put the file itself there"));
        }
        opened => opened?,
    };
    if !file.metadata()?.is_file() {
        return Err(odd());
    }
    Ok(file)
}

/// The file to which this path leads through links of this user or root; it need not exist.
/// Primaries that come by different links find the same files beside it.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    let mut path = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        let is_own = |link: fs::Metadata| is_own(link.uid());
        match (fs::symlink_metadata(&path).is_ok_and(is_own), fs::read_link(&path)) {
            (true, Ok(target)) => path = folder(&path).join(target),
            _ => break,
        }
    }
    path
}

/// What is wrong with the folder of this file, if other users may put files there.
pub(crate) fn others_may_write(path: &Path) -> Option<String> {
    let folder = folder(path);
    let found = fs::metadata(folder).ok()?;
    let who = match found.mode() & OTHERS_WRITE {
        0 if is_own(found.uid()) => return None,
        0 => format!("the user {}", found.uid()),
        _ => "others (chmod go-w)".to_string(),
    };
    Some(format!("the folder {} can be written by {who}", folder.display()))
}

/// Whether files of this user are trusted: root, or the user of this process.
pub(super) fn is_own(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

fn odd() -> io::Error {
    invalid("it is no file; move it away, or name another state file (--state-file)")
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::file::{epoch, list_of, FileKeeper, Ownership};
    use crate::testing::TempFolder;
    use dlock_core::roster::place::Taking;
    use std::os::unix::fs::{symlink, PermissionsExt};
    use std::sync::Arc;

    /// Another user has put something else in the place of a file: each test case is one file and
    /// one kind of replacement.
    #[test]
    fn what_is_no_regular_file_is_refused_and_neither_waited_for_nor_followed() {
        type Put = (&'static str, fn(&Path, &Path));
        let put: [Put; 4] = [
            ("a link", |path, target| {
                fs::write(target, "precious").unwrap();
                symlink(target, path).unwrap();
            }),
            ("a dangling link", |path, target| symlink(target, path).unwrap()),
            ("a pipe", |path, _| {
                let made = std::process::Command::new("mkfifo").arg(path).status();
                assert!(made.unwrap().success());
            }),
            ("a folder", |path, _| fs::create_dir(path).unwrap()),
        ];
        for (what, put) in put {
            for name in ["state.clients.lock", "state.clients.taking", "state.clients"] {
                let folder = TempFolder::new("odd");
                let [state, target] = ["state", "target"].map(|name| folder.path().join(name));
                put(&folder.path().join(name), &target);
                let list = list_of(&state);
                let begun = match name {
                    // only a primary that takes the place of another one opens this file
                    "state.clients.taking" => {
                        let _other = Ownership::take(&list, &Taking::IfFree).unwrap();
                        Ownership::take(&list, &Taking::FromAnother(None)).map(drop)
                    }
                    _ => Ownership::take(&list, &Taking::IfFree)
                        .and_then(|taken| FileKeeper::open(&list, Arc::new(taken)).map(drop)),
                };
                let error = begun.expect_err(&format!("{what} as {name}"));
                assert_ne!(error.kind(), io::ErrorKind::NotFound, "{what} as {name}");
                match what {
                    "a link" => assert_eq!(fs::read(&target).unwrap(), b"precious"),
                    _ => assert!(!target.exists(), "{what} as {name}"),
                }
            }
        }
    }

    #[test]
    fn a_state_file_may_be_a_link_of_this_user_and_is_else_a_file() {
        let folder = TempFolder::new("state-link");
        let [link, target] = ["link", "target"].map(|name| folder.path().join(name));
        symlink("target", &link).unwrap();
        assert_eq!(resolved(&link), target);
        let place = Ownership::take(&list_of(&link), &Taking::IfFree).unwrap();
        // the state file is reached by a link of another user, which is not followed
        epoch::begin(Some((&link, &place)), None).unwrap_err();
        assert!(!target.exists());
        fs::write(&target, "epoch 1\n").unwrap();
        epoch::begin(Some((&link, &place)), None).unwrap_err();
        assert_eq!(fs::read_to_string(&target).unwrap(), "epoch 1\n");
    }

    #[test]
    fn a_folder_that_others_may_write_is_told_of() {
        let folder = TempFolder::new("others");
        let path = folder.path().join("state");
        let mode = |mode| fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode));
        mode(0o755).unwrap();
        assert_eq!(others_may_write(&path), None);
        mode(0o775).unwrap();
        assert!(others_may_write(&path).unwrap().contains("others"));
        mode(0o1777).unwrap();
        assert!(others_may_write(&path).is_some());
    }
}
