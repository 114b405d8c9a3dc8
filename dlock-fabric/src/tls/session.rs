// SPDX-License-Identifier: MIT OR Apache-2.0
//! TLS on a socket, in steps that never wait: shared by the connections of the primary's control
//! and command threads and by a client's control connection and command channel.
//!
//! ```text
//!   write ─▶ rustls: one record ─▶ backlog ─▶ flush ─▶ socket     backlog: what has no room there
//!   read  ◀─ rustls: plaintext ◀─ one read of the socket ◀─────── socket
//! ```
//! *Backlog.* Bytes that [`TlsSession::write`] has taken may not be at the socket yet. While
//! [`TlsSession::has_backlog`], the caller calls [`TlsSession::flush`] when the socket has room.
//! The backlog is one record at most, and an alert or a key update: no more bytes are taken while
//! there is one.
//!
//! *Plaintext.* One record may have more plaintext than the reader has room for. The next calls
//! return the rest, before the socket is read again; polling the socket does not show it.
//!
//! *Bounds.* Each call reads the socket once. A peer sends at most [`HANDSHAKE_BYTES_MAX`] bytes
//! before it is verified. rustls limits what a verified peer may send without data (key updates,
//! empty records), and changes keys before they have sealed too much.
//!
//! *Ends.* `close_notify` is neither sent nor required: frames show by themselves whether they are
//! complete, and a forked child that drops its copy of a connection must not send anything.

use std::io::{self, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use dlock_core::ids::ClientId;
use rustix::event::PollFlags;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, ServerConnection};

use crate::error::FabricError;
use crate::os::clock::boot_ns;
use crate::os::sys::{poll_until, receive_now, send_now};
use crate::tls::sealing::{SealSecrets, EXPORTER_LABEL};
use crate::tls::{PeerChain, PeerIdentity, Tls, TlsError};

/// Bytes that a peer may send before it is verified.
pub const HANDSHAKE_BYTES_MAX: usize = 64 * 1024;
/// Plaintext bytes that are sealed at a time: those of one record.
const SEALED_MAX: usize = 16 * 1024;

/// One side of a TLS connection, without its socket.
#[derive(Debug)]
pub struct TlsSession {
    connection: Connection,
    /// Bytes that have come during the handshake.
    shaken: usize,
    /// Bytes of plaintext that were not returned yet.
    plaintext: usize,
    /// Whether the last read of the socket returned less than there was room for.
    is_emptied: bool,
}

/// The state of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shake {
    /// The handshake is done: the peer is verified.
    Done,
    /// The handshake waits for input of the socket.
    Reads,
    /// The handshake waits for room at the socket.
    Writes,
}

impl TlsSession {
    /// The server side of an accepted connection.
    ///
    /// # Errors
    /// rustls refuses the configuration.
    pub fn accept(tls: &Tls) -> Result<Self, TlsError> {
        Ok(Self::new(ServerConnection::new(tls.server())?.into()))
    }

    /// The client side of a connection to the primary at this address.
    ///
    /// # Errors
    /// rustls refuses the configuration.
    pub fn connect(tls: &Tls, primary: IpAddr) -> Result<Self, TlsError> {
        // the name is neither sent to the primary nor compared with its certificate
        let name = ServerName::from(primary);
        Ok(Self::new(ClientConnection::new(tls.client(), name)?.into()))
    }

    /// As [`connect`](Self::connect), and does the handshake.
    pub(crate) fn shaken(
        tls: &Tls,
        primary: IpAddr,
        socket: BorrowedFd<'_>,
        until_ns: u64,
    ) -> Result<Self, FabricError> {
        let mut session = Self::connect(tls, primary)?;
        session.shake_until(socket, until_ns).map_err(FabricError::Handshake)?;
        Ok(session)
    }

    fn new(connection: Connection) -> Self {
        Self { connection, shaken: 0, plaintext: 0, is_emptied: false }
    }

    /// Goes on with the handshake as far as possible.
    ///
    /// # Errors
    /// This side or the peer refuses (an alert was sent if the socket had room), or the peer has
    /// closed.
    pub fn shake(&mut self, io: &mut (impl Read + Write)) -> io::Result<Shake> {
        loop {
            match self.flush(io) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Shake::Writes),
                flushed => flushed?,
            }
            if !self.connection.is_handshaking() {
                return Ok(Shake::Done);
            }
            match self.take(io) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Shake::Reads),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                taken => taken?,
            }
        }
    }

    /// Does the handshake, by a deadline.
    ///
    /// # Errors
    /// As [`shake`](Self::shake), and `TimedOut`.
    pub fn shake_until(&mut self, socket: BorrowedFd<'_>, until_ns: u64) -> io::Result<()> {
        loop {
            let events = match self.shake(&mut Socket(socket))? {
                Shake::Done => return Ok(()),
                Shake::Reads => PollFlags::IN,
                Shake::Writes => PollFlags::OUT,
            };
            wait(socket, events, until_ns)?;
        }
    }

    /// The identity of the peer, once the handshake is done.
    ///
    /// # Errors
    /// The peer's certificate has no name.
    pub fn peer(&self) -> Result<PeerIdentity, TlsError> {
        PeerIdentity::of(self.connection.peer_certificates().unwrap_or_default())
    }

    /// The certificates that the peer has sent, its own first.
    pub fn chain(&self) -> PeerChain {
        let chain = self.connection.peer_certificates().unwrap_or_default();
        PeerChain(chain.iter().map(|certificate| certificate.clone().into_owned()).collect())
    }

    /// The secrets for sealing this client's data path over queue pairs.
    ///
    /// # Errors
    /// The handshake is not done.
    pub fn seal_secrets(&self, client: ClientId) -> Result<SealSecrets, TlsError> {
        SealSecrets::export(client, |into, context| {
            let exported =
                self.connection.export_keying_material(into, EXPORTER_LABEL, Some(context));
            exported.map(drop).map_err(TlsError::from)
        })
    }

    /// Returns plaintext; reads the socket once if none is ready. `Ok(0)`: the peer has closed.
    ///
    /// # Errors
    /// `WouldBlock`: nothing has come. `Interrupted`: bytes have come, but no plaintext; call
    /// again. Other errors: the connection has ended, or the bytes are not TLS.
    pub fn read(&mut self, io: &mut (impl Read + Write), into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        if self.plaintext == 0 {
            match self.take(io) {
                // Closed without `close_notify`, as by a peer that was killed.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                taken => taken?,
            }
        } else {
            // more bytes may have come since the socket was read, so it does not count as emptied
            self.is_emptied = false;
        }
        match self.connection.reader().read(into) {
            Ok(len) => {
                self.plaintext = self.plaintext.saturating_sub(len);
                Ok(len)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                Err(ErrorKind::Interrupted.into())
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Seals as many bytes as fit into a record, and sends as much as the socket takes.
    ///
    /// # Errors
    /// `WouldBlock`: there is a backlog, and no byte was taken. Other errors: the connection has
    /// ended.
    pub fn write(&mut self, io: &mut impl Write, bytes: &[u8]) -> io::Result<usize> {
        self.flush(io)?;
        let len = self.connection.writer().write(&bytes[..bytes.len().min(SEALED_MAX)])?;
        match self.flush(io) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(len),
            flushed => flushed.map(|()| len),
        }
    }

    /// Sends the backlog.
    ///
    /// # Errors
    /// `WouldBlock`: a part of it is left. Other errors: the connection has ended.
    pub fn flush(&mut self, io: &mut impl Write) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Plain(io)) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether bytes wait for room at the socket.
    pub fn has_backlog(&self) -> bool {
        self.connection.wants_write()
    }

    /// Whether there may be more to read that polling the socket does not show.
    pub fn may_have_more(&self) -> bool {
        self.plaintext > 0 || !self.is_emptied
    }

    /// As [`read`](Self::read), by a deadline.
    ///
    /// # Errors
    /// `TimedOut`, or the connection has ended.
    pub fn read_until(
        &mut self,
        socket: BorrowedFd<'_>,
        into: &mut [u8],
        until_ns: u64,
    ) -> io::Result<usize> {
        loop {
            match self.read(&mut Socket(socket), into) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let events =
                        if self.has_backlog() { PollFlags::OUT } else { PollFlags::empty() };
                    wait(socket, PollFlags::IN | events, until_ns)?;
                    self.flush_some(socket)?;
                }
                read => return read,
            }
        }
    }

    /// Sends all bytes, by a deadline. An error comes with the number of bytes sealed before it.
    ///
    /// # Errors
    /// `TimedOut`, or the connection has ended.
    pub fn write_until(
        &mut self,
        socket: BorrowedFd<'_>,
        bytes: &[u8],
        until_ns: u64,
    ) -> Result<(), (usize, io::Error)> {
        let mut sealed = 0;
        loop {
            let step = match bytes.len() - sealed {
                0 => self.flush(&mut Socket(socket)).map(|()| None),
                _ => self.write(&mut Socket(socket), &bytes[sealed..]).map(Some),
            };
            match step {
                Ok(None) => return Ok(()),
                Ok(Some(len)) => sealed += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    wait(socket, PollFlags::OUT, until_ns).map_err(|error| (sealed, error))?;
                }
                Err(error) => return Err((sealed, error)),
            }
        }
    }

    fn flush_some(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        match self.flush(&mut Socket(socket)) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            flushed => flushed,
        }
    }

    /// Reads the socket once. If the bytes are not TLS, sends an alert if there is room.
    fn take(&mut self, io: &mut (impl Read + Write)) -> io::Result<()> {
        let mut once = Once { io, is_short: false };
        let len = self.connection.read_tls(&mut once)?;
        self.is_emptied = once.is_short;
        if len == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if self.connection.is_handshaking() {
            self.shaken += len;
            if self.shaken > HANDSHAKE_BYTES_MAX {
                let what = format!("a handshake of more than {HANDSHAKE_BYTES_MAX} bytes");
                return Err(io::Error::new(ErrorKind::InvalidData, what));
            }
        }
        match self.connection.process_new_packets() {
            Ok(state) => self.plaintext = state.plaintext_bytes_to_read(),
            Err(error) => {
                let _ = self.flush(io); // sends the alert; if that fails, the first error counts
                return Err(io::Error::new(ErrorKind::InvalidData, TlsError::from(error)));
            }
        }
        if self.connection.wants_write() && !self.connection.is_handshaking() {
            match self.flush(io) {
                // bytes without room at the socket are the backlog now
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                flushed => flushed?,
            }
        }
        Ok(())
    }
}

/// One read of the socket; records whether it has emptied it.
struct Once<'a, T> {
    io: &'a mut T,
    is_short: bool,
}

impl<T: Read> Read for Once<'_, T> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.io.read(into);
        self.is_short = match &read {
            Ok(len) => *len < into.len(),
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        };
        read
    }
}

/// Writes one buffer at a time. For several, the standard library uses `writev`, which has no
/// `MSG_NOSIGNAL`: SIGPIPE would kill a C program when a connection has ended.
struct Plain<'a, T>(&'a mut T);

impl<T: Write> Write for Plain<'_, T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A socket that is used without waiting, whether it is nonblocking or not.
#[derive(Debug)]
pub struct Socket<'a>(pub BorrowedFd<'a>);

impl Read for Socket<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        receive_now(self.0, into)?.ok_or_else(|| ErrorKind::WouldBlock.into())
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        send_now(self.0, bytes)?.ok_or_else(|| ErrorKind::WouldBlock.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn wait(socket: BorrowedFd<'_>, events: PollFlags, until_ns: u64) -> io::Result<()> {
    if boot_ns() >= until_ns {
        return Err(ErrorKind::TimedOut.into());
    }
    poll_until(socket, events, until_ns).map(drop)
}

/// Compares configurations by the files that they name.
impl PartialEq for Tls {
    fn eq(&self, other: &Self) -> bool {
        self.files() == other.files()
    }
}

impl Eq for Tls {}
