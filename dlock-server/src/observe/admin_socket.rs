// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file of the admin endpoint. The kernel decides who may connect, by the file's mode, which is
//! this user's alone from the beginning.
//!
//! It may be removed while it is served, as `/run/user/UID` is when the user logs out. Within
//! [`LOOK_EVERY`] it is made again.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use dlock_fabric::os::named;
use rustix::fs::Mode;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::config::ServerConfig;
use crate::error::StartError;
use crate::host::blocking::on_a_thread;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 16;
/// The time between two checks whether the socket's file is in its place.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The socket's file, removed when this is dropped.
#[derive(Debug)]
pub(crate) struct AdminSocket {
    path: PathBuf,
    mode: u32,
    inode: u64,
}

/// The file of the admin socket, and its listener.
pub(crate) struct AdminListener {
    file: AdminSocket,
    listener: tokio::net::UnixListener,
}

/// Connects to an admin socket, and waits at most `wait` for room in its backlog; with a `wait` of
/// zero it fails at once if there is no room. Reads and writes on the connection wait at most as
/// long; with zero they have no limit.
///
/// # Errors
/// `TimedOut`: the primary is stopped, or busy. `ConnectionRefused`: its process has ended.
pub fn connect_admin(path: &Path, wait: Duration) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    match wait.is_zero() {
        true => socket.set_nonblocking(true)?,
        // this limits connect on Linux as well
        false => socket.set_write_timeout(Some(wait))?,
    }
    let address = SockAddr::unix(path)?;
    loop {
        match socket.connect(&address) {
            Ok(()) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        }
    }
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(wait).filter(|wait| !wait.is_zero()))?;
    Ok(UnixStream::from(OwnedFd::from(socket)))
}

impl AdminSocket {
    /// The configured admin socket and its listener; `None`: none is configured.
    pub(crate) fn of(config: &ServerConfig) -> Result<Option<(Self, UnixListener)>, StartError> {
        let Some(path) = config.admin_socket.as_deref() else { return Ok(None) };
        let mode = if config.admin_for_group { 0o660 } else { 0o600 };
        let opened = Self::bind(path, mode);
        let failed = |source| StartError::AdminSocket { path: path.to_path_buf(), source };
        opened.map(Some).map_err(failed)
    }

    fn bind(path: &Path, mode: u32) -> io::Result<(Self, UnixListener)> {
        // A killed primary leaves its socket behind; a running one answers on it.
        if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
            match connect_admin(path, Duration::ZERO) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path)?;
                }
                // the backlog is full, so a primary is there
                Err(error) if error.kind() != io::ErrorKind::TimedOut => return Err(error),
                _ => return Err(io::ErrorKind::AddrInUse.into()),
            }
        }
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // The file that bind makes gets this mode, too.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600))?;
        socket.bind(&SockAddr::unix(path)?)?;
        let inode = std::fs::symlink_metadata(path)?.ino();
        let file = Self { path: path.to_path_buf(), mode, inode };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok((file, UnixListener::from(OwnedFd::from(socket))))
    }
}

impl AdminListener {
    /// Makes the listener one of the runtime in which this is called.
    ///
    /// # Errors
    /// The runtime cannot wait for it.
    pub(crate) fn new((file, listener): (AdminSocket, UnixListener)) -> io::Result<Self> {
        let listener = tokio::net::UnixListener::from_std(listener)?;
        Ok(Self { file, listener })
    }

    /// The next connection.
    ///
    /// # Errors
    /// The connection cannot be accepted.
    pub(crate) async fn accept(&mut self) -> io::Result<tokio::net::UnixStream> {
        loop {
            tokio::select! {
                accepted = self.listener.accept() => return accepted.map(|(stream, _)| stream),
                () = tokio::time::sleep(LOOK_EVERY) => self.look().await,
            }
        }
    }

    /// Makes the socket's file again if it was removed. If that fails, the next check tries again.
    async fn look(&mut self) {
        let (path, mode) = (self.file.path.clone(), self.file.mode);
        // the file system may not answer, and this thread serves clients
        let made = on_a_thread("admin", move || again(&path, mode)).await;
        if let Ok(Some(made)) = made {
            if let Ok(made) = Self::new(made) {
                *self = made;
                log::warn!("the admin socket {:?} was removed: it is made again", self.file.path);
            }
        }
    }
}

/// Makes a new socket and its folder, if there is no file at this path. `None`: there is a file, or
/// the socket cannot be made.
fn again(path: &Path, mode: u32) -> Option<(AdminSocket, UnixListener)> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        _ => return None,
    }
    if let Some(folder) = path.parent() {
        // the folder may exist already; if it cannot be made, `bind` fails below
        let _ = DirBuilder::new().mode(0o700).create(folder);
    }
    AdminSocket::bind(path, mode).ok()
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        // Only this socket's own file: another program may have put its own there.
        let removed = std::fs::symlink_metadata(&self.path)
            .map_err(|error| named("statx", error))
            .and_then(|found| match found.ino() == self.inode {
                true => std::fs::remove_file(&self.path).map_err(|error| named("unlink", error)),
                false => Ok(()),
            });
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                // the next primary finds that no process serves this file
                log::warn!("the admin socket {:?} is left behind: {error}", self.path);
            }
            _ => {}
        }
    }
}
