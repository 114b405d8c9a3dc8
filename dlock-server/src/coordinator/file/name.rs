// SPDX-License-Identifier: MIT OR Apache-2.0
//! The name of a state on this host, which its primary keeps even if the folder is removed.
//!
//! ```text
//!   @dlock-state-UID-DEVICE-INODE-HASH     two abstract Unix sockets, bound by the primary
//!     DEVICE, INODE   1: the topmost folder of the file system: it cannot be removed
//!                     2: the folder of the lock file, as it was at the start
//!     HASH            the path of the lock file from there, without links; in 2 with the time at
//!                     which the folder was made: another folder may get its INODE later
//! ```
//! The first name outlasts the folder. The second one is the same by every path that leads to the
//! folder, also where the folder is mounted a second time (`mount --bind`, a container's volume).
//! Another network namespace does not see the sockets, and a primary of another user has other
//! names: there the lock file alone counts.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use dlock_fabric::os::fds::Credentials;
use log::Level;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;

use super::files::is_own;
use super::owner::{busy, folder};
use crate::observe::log_limit::{limited, Cause};

/// Connections that may wait; each is of a primary that asks which process has the name.
const BACKLOG: i32 = 16;

/// The sockets, bound for as long as the primary's process lives.
#[derive(Debug)]
pub(super) struct Name([OwnedFd; 2]);

impl Name {
    /// Takes the name of the state with this lock file; `None`: the name cannot be used, because
    /// the process that has it is another user's, or has given the state up.
    ///
    /// # Errors
    /// `ResourceBusy`: another process has the name. Or the name cannot be made, for example
    /// because the folder does not exist.
    pub(super) fn take(lock: &Path) -> io::Result<Option<Self>> {
        let [lasting, by_any_path] = addresses(lock)?;
        let Some(lasting) = bound(&lasting)? else { return Ok(None) };
        let Some(by_any_path) = bound(&by_any_path)? else { return Ok(None) };
        Ok(Some(Self([lasting, by_any_path])))
    }

    /// Accepts the waiting connections, to make room for further ones.
    pub(super) fn answer(&self) {
        self.0.iter().for_each(|socket| while net::accept(socket).is_ok() {});
    }

    /// Gives the name up, even if a child process has inherited the descriptors.
    pub(super) fn give_up(&self) {
        for socket in &self.0 {
            // an error means that the socket is closed already
            let _ = net::shutdown(socket, net::Shutdown::Both);
        }
    }
}

/// As [`Name::take`], for one of the two addresses.
fn bound(address: &SocketAddrUnix) -> io::Result<Option<OwnedFd>> {
    let socket = socket()?;
    match net::bind(&socket, address) {
        Ok(()) => {}
        Err(Errno::ADDRINUSE) => return held(address),
        Err(error) => return Err(error.into()),
    }
    net::listen(&socket, BACKLOG)?;
    Ok(Some(socket))
}

fn socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// The result if the address is taken: an error; or `None` if it cannot be used.
fn held(address: &SocketAddrUnix) -> io::Result<Option<OwnedFd>> {
    let asked = socket()?;
    match net::connect(&asked, address) {
        Ok(()) => {}
        // only a forked child of a primary that gave the name up still has the socket
        Err(Errno::CONNREFUSED) => return Ok(None),
        // the backlog is full, so a primary has the name
        Err(Errno::AGAIN) => return Err(in_use("")),
        Err(error) => return Err(error.into()),
    }
    let Credentials { pid, uid, .. } = Credentials::of_peer(asked.as_fd())?;
    let process = pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
    if !is_own(uid) {
        limited!(
            Cause::Name,
            Level::Warn,
            "another user ({uid}){process} has taken the name by which the primary of this state \
             is known on this host: end that process; until then leave the state folder alone"
        );
        return Ok(None);
    }
    Err(in_use(&process))
}

/// The error if another primary has the state.
pub(super) fn in_use(process: &str) -> io::Error {
    busy(&format!("another primary has it{process}, and may be stopped: end that process first"))
}

/// The two addresses of the name of this state.
fn addresses(lock: &Path) -> io::Result<[SocketAddrUnix; 2]> {
    let mut top = fs::canonicalize(folder(lock))?;
    let name = Path::new(lock.file_name().unwrap_or_default());
    let path = top.join(name);
    let of_folder = fs::metadata(&top)?;
    let mut of_top = of_folder.clone();
    while let Some(above) = top.parent() {
        let of_above = fs::metadata(above)?;
        if of_above.dev() != of_top.dev() {
            break;
        }
        (top, of_top) = (above.to_path_buf(), of_above);
    }
    let from_top = path.strip_prefix(&top).unwrap_or(&path);
    let address = |folder: &fs::Metadata, path: &Path| {
        let hash = fnv(path.as_os_str().as_bytes());
        let (uid, device, inode) = (geteuid().as_raw(), folder.dev(), folder.ino());
        let name = format!("dlock-state-{uid}-{device:x}-{inode:x}-{hash:016x}");
        SocketAddrUnix::new_abstract_name(name.as_bytes())
    };
    let made = of_folder.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let made_ns = made.map_or(0, |since| since.as_nanos());
    // a path below `folder`, so that the addresses differ if the folder is the topmost one
    let below = Path::new("folder").join(made_ns.to_string()).join(name);
    Ok([address(&of_top, from_top)?, address(&of_folder, &below)?])
}

/// FNV-1a, 64 bits: the same in every version of this program.
fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::super::owner::is_busy;
    use super::*;
    use crate::testing::TempFolder;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_name_of_a_state_is_one_by_every_path_and_outlasts_its_folder() {
        let folder = TempFolder::new("name");
        let state = folder.path().join("above/state");
        fs::create_dir_all(&state).unwrap();
        symlink(folder.path().join("above"), folder.path().join("link")).unwrap();
        let first = Name::take(&state.join("list")).unwrap().unwrap();
        let by_link = folder.path().join("link/state/list");
        let why = Name::take(&by_link).unwrap_err();
        let process = format!("process {}", std::process::id());
        assert!(is_busy(&why) && why.to_string().contains(&process), "{why}");
        Name::take(&state.join("other")).unwrap().expect("the name of another state");
        fs::remove_dir_all(folder.path().join("above")).unwrap();
        assert_eq!(Name::take(&by_link).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::create_dir_all(&state).unwrap();
        for _ in 0..2 * BACKLOG {
            assert!(is_busy(&Name::take(&by_link).unwrap_err()), "also if many have asked");
        }
        first.answer();
        let why = Name::take(&by_link).unwrap_err().to_string();
        assert!(why.contains(&process), "{why}");
        drop(first);
        Name::take(&by_link).unwrap().expect("it is free");
    }

    /// A child that was forked has the socket as well until it executes its program.
    #[test]
    fn a_name_that_was_given_up_keeps_no_primary_away() {
        let folder = TempFolder::new("name-given-up");
        let list = folder.path().join("list");
        let name = Name::take(&list).unwrap().unwrap();
        let inherited = name.0.each_ref().map(|socket| socket.try_clone().unwrap());
        name.give_up();
        drop(name);
        assert!(Name::take(&list).unwrap().is_none());
        drop(inherited);
        Name::take(&list).unwrap().expect("it is free");
    }
}
