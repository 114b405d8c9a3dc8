// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two ways in which a sealed stream carries its bytes.
//!
//! ```text
//!   Tls     the stream's socket, with a TLS session on it
//!   Verbs   queue pairs beside the socket, which is the liveness connection: sealed records
//! ```
//! Each call is a single step that never waits; `WouldBlock`: nothing can be done now.

use std::io;
use std::os::fd::BorrowedFd;

use crate::tls::session::{Socket, TlsSession};
use crate::verbs::SealedEnd;

/// One end of a sealed stream.
#[derive(Debug)]
pub(crate) enum Carrier {
    Tls(Box<TlsSession>),
    Verbs(Box<SealedEnd>),
}

impl Carrier {
    /// Reads bytes that have come; `Ok(0)`: the peer has closed.
    pub(crate) fn read(&mut self, socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tls(session) => session.read(&mut Socket(socket), into),
            Self::Verbs(end) => end.read(into),
        }
    }

    /// Takes bytes to send, as many as there is room for.
    pub(crate) fn write(&mut self, socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tls(session) => session.write(&mut Socket(socket), bytes),
            Self::Verbs(end) => end.write(bytes),
        }
    }

    /// Sends bytes that were taken but have not reached the socket.
    pub(crate) fn flush(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        match self {
            Self::Tls(session) => session.flush(&mut Socket(socket)),
            Self::Verbs(_) => Ok(()),
        }
    }

    /// Whether bytes were taken but have not reached the socket.
    pub(crate) fn has_backlog(&self) -> bool {
        match self {
            Self::Tls(session) => session.has_backlog(),
            Self::Verbs(_) => false,
        }
    }
}
