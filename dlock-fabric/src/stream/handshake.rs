// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attaching: the first exchange on a connection that becomes a command channel.
//!
//! ```text
//!   client ──Attach{client, secret, fabric}──▶ primary
//!          ◀─Attached (+ descriptors of header, slots and ledger on a Unix socket)─
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use dlock_core::wire::codec::{self, Frame};
use dlock_core::wire::control::{Attach, Attached};
use dlock_core::wire::status::Status;
use rustix::event::PollFlags;

use crate::error::FabricError;
use crate::memory::cpu::Shared;
use crate::os::clock::boot_ns;
use crate::os::fds;
use crate::os::sys::{self, poll_until};
use crate::stream::frames::FrameBuffer;
use crate::tls::session::TlsSession;

/// Attaches over TCP.
pub(crate) fn attach_tcp(
    socket: BorrowedFd<'_>,
    attach: &Attach,
    until_ns: u64,
) -> Result<Attached, FabricError> {
    exchange(&mut Bare { socket, fds: &mut Vec::new() }, attach, until_ns)
}

/// Attaches over TCP with TLS.
pub(crate) fn attach_sealed(
    socket: BorrowedFd<'_>,
    tls: &mut TlsSession,
    attach: &Attach,
    until_ns: u64,
) -> Result<Attached, FabricError> {
    exchange(&mut Sealed { socket, tls }, attach, until_ns)
}

/// Attaches over a Unix socket; returns the answer, and descriptors of header, slots and ledger.
pub(crate) fn attach_shm(
    socket: BorrowedFd<'_>,
    attach: &Attach,
    until_ns: u64,
) -> Result<(Attached, [OwnedFd; 3]), FabricError> {
    let mut fds = Vec::new();
    let attached = exchange(&mut Bare { socket, fds: &mut fds }, attach, until_ns)?;
    let fds = fds.try_into().map_err(|_| FabricError::Unexpected)?;
    Ok((attached, fds))
}

/// Sends the primary's answer, with the memory for an shm client.
///
/// # Errors
/// An error of the socket; `TimedOut` if the client does not read by the deadline.
pub fn answer(
    socket: BorrowedFd<'_>,
    attached: &Attached,
    shared: Option<&Shared<'_>>,
    until_ns: u64,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    codec::encode(&Frame::Attached(*attached), &mut bytes);
    match shared {
        Some(shared) => {
            let fds = [shared.header, shared.slots, shared.ledger.as_fd()];
            fds::send_with_fds(socket, &bytes, &fds, until_ns)
        }
        None => sys::send_all(socket, &bytes, until_ns),
    }
}

/// The connection of an exchange.
trait Wire {
    fn send(&mut self, bytes: &[u8], until_ns: u64) -> io::Result<()>;
    fn receive(&mut self, into: &mut [u8], until_ns: u64) -> io::Result<usize>;
}

/// A socket; descriptors may come with any of its bytes.
struct Bare<'a> {
    socket: BorrowedFd<'a>,
    fds: &'a mut Vec<OwnedFd>,
}

impl Wire for Bare<'_> {
    fn send(&mut self, bytes: &[u8], until_ns: u64) -> io::Result<()> {
        sys::send_all(self.socket, bytes, until_ns)
    }

    fn receive(&mut self, into: &mut [u8], until_ns: u64) -> io::Result<usize> {
        receive(self.socket, into, until_ns, self.fds)
    }
}

struct Sealed<'a> {
    socket: BorrowedFd<'a>,
    tls: &'a mut TlsSession,
}

impl Wire for Sealed<'_> {
    fn send(&mut self, bytes: &[u8], until_ns: u64) -> io::Result<()> {
        self.tls.write_until(self.socket, bytes, until_ns).map_err(|(_, error)| error)
    }

    fn receive(&mut self, into: &mut [u8], until_ns: u64) -> io::Result<usize> {
        match self.tls.read_until(self.socket, into, until_ns)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            len => Ok(len),
        }
    }
}

fn exchange(wire: &mut impl Wire, attach: &Attach, until_ns: u64) -> Result<Attached, FabricError> {
    let mut bytes = Vec::new();
    codec::encode(&Frame::Attach(*attach), &mut bytes);
    wire.send(&bytes, until_ns).map_err(failed)?;

    let mut buffer = FrameBuffer::new();
    loop {
        if let Some((kind, payload)) = buffer.next()? {
            return match codec::decode(kind, payload)? {
                Frame::Attached(attached) if attached.status == Status::Success => Ok(attached),
                Frame::Attached(attached) => Err(FabricError::Refused(attached.status)),
                _ => Err(FabricError::Unexpected),
            };
        }
        // Bytes behind the answer are for the executor.
        let received = wire.receive(buffer.missing()?, until_ns).map_err(failed)?;
        buffer.filled(received);
    }
}

/// Receives some bytes; descriptors may come with any of them.
fn receive(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
    until_ns: u64,
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    loop {
        match fds::receive_with_fds(socket, into, fds)? {
            Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Some(len) => return Ok(len),
            None if boot_ns() >= until_ns => return Err(io::ErrorKind::TimedOut.into()),
            None => {
                poll_until(socket, PollFlags::IN, until_ns)?;
            }
        }
    }
}

fn failed(error: io::Error) -> FabricError {
    match error.kind() {
        io::ErrorKind::TimedOut => FabricError::TimedOut,
        _ => FabricError::Handshake(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::ids::ClientId;
    use dlock_core::wire::codec::HEADER_LEN;
    use dlock_core::wire::control::{FabricKind, Secret};
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use crate::os::clock::deadline_in;

    fn attach() -> Attach {
        let client = ClientId::new(1).expect("a client id");
        Attach {
            client,
            secret: Secret([7; 16]),
            fabric: FabricKind::Shm,
            verbs: None,
            returns: true,
        }
    }

    fn attached(status: Status) -> Attached {
        Attached { slots: 1, ledger_entries: 1, ..Attached::bare(status) }
    }

    /// The result of attaching to a primary that sends these bytes.
    fn attach_to(bytes: &[u8], wait: Duration) -> Result<(), FabricError> {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(bytes).unwrap();
        attach_shm(near.as_fd(), &attach(), deadline_in(wait)).map(drop)
    }

    #[test]
    fn a_primary_that_says_nothing_or_half_of_it_is_waited_for_no_longer_than_the_deadline() {
        let mut whole = Vec::new();
        codec::encode(&Frame::Attached(attached(Status::Success)), &mut whole);
        for len in [0, 3, HEADER_LEN, whole.len() - 1] {
            let result = attach_to(&whole[..len], Duration::from_millis(20));
            assert!(matches!(result, Err(FabricError::TimedOut)), "{result:?}");
        }
    }

    #[test]
    fn a_primary_that_answers_wrongly_is_refused() {
        let wait = Duration::from_secs(10);
        let bytes = |frame: &Frame| {
            let mut bytes = Vec::new();
            codec::encode(frame, &mut bytes);
            bytes
        };
        let result = attach_to(b"SSH-2.0-OpenSSH_9.2", wait);
        assert!(matches!(result, Err(FabricError::Frame(_))), "{result:?}");
        let result = attach_to(&bytes(&Frame::Attach(attach())), wait);
        assert!(matches!(result, Err(FabricError::Unexpected)), "{result:?}");
        // The primary reports success, but passes no memory.
        let result = attach_to(&bytes(&Frame::Attached(attached(Status::Success))), wait);
        assert!(matches!(result, Err(FabricError::Unexpected)), "{result:?}");
        let result = attach_to(&bytes(&Frame::Attached(attached(Status::NotReady))), wait);
        assert!(matches!(result, Err(FabricError::Refused(Status::NotReady))), "{result:?}");
    }

    #[test]
    fn a_primary_that_closes_is_told_from_one_that_is_slow() {
        let (near, far) = UnixStream::pair().unwrap();
        drop(far);
        let until_ns = deadline_in(Duration::from_secs(10));
        let result = attach_shm(near.as_fd(), &attach(), until_ns).map(drop);
        assert!(matches!(result, Err(FabricError::Handshake(_))), "{result:?}");
    }
}
