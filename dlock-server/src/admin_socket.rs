// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file of the admin endpoint. The kernel decides who may connect, by the file's mode, which is
//! this user's alone from the beginning.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::config::ServerConfig;
use crate::error::StartError;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 16;

/// The file; removed when this is dropped.
#[derive(Debug)]
pub(crate) struct AdminSocket {
    path: PathBuf,
    inode: u64,
}

impl AdminSocket {
    /// The one that is configured, and its listener.
    pub(crate) fn of(config: &ServerConfig) -> Result<Option<(Self, UnixListener)>, StartError> {
        let Some(path) = config.admin_socket.as_deref() else { return Ok(None) };
        let mode = if config.admin_for_group { 0o660 } else { 0o600 };
        let opened = Self::bind(path, mode);
        let failed = |source| StartError::AdminSocket { path: path.to_path_buf(), source };
        opened.map(Some).map_err(failed)
    }

    fn bind(path: &Path, mode: u32) -> io::Result<(Self, UnixListener)> {
        // A primary that was killed leaves its socket; one that runs answers there.
        if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
            match UnixStream::connect(path) {
                Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path)?;
                }
                Err(error) => return Err(error),
            }
        }
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // The file that bind makes has this mode, too.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600))?;
        socket.bind(&SockAddr::unix(path)?)?;
        let inode = std::fs::symlink_metadata(path)?.ino();
        let file = Self { path: path.to_path_buf(), inode };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok((file, UnixListener::from(OwnedFd::from(socket))))
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        // Only if it is still this one: somebody may have put another in its place.
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path); // left behind, it is found to be stale
        }
    }
}
