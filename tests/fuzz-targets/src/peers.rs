// SPDX-License-Identifier: MIT OR Apache-2.0
//! Both ends of a TLS session in memory, with bytes on their way between them.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::OnceLock;

use dlock_fabric::tls::session::{Shake, TlsSession};
use dlock_fabric::tls::Tls;

use crate::certs::Ca;

/// One end of a connection in memory.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    /// Bytes that have arrived, and were not read yet.
    pub(crate) arrived: VecDeque<u8>,
    /// Bytes that this end has sent, and that are still on their way.
    pub(crate) sent: VecDeque<u8>,
    /// How many bytes this end has read.
    pub(crate) taken: usize,
    /// How many bytes may be on their way at most.
    pub(crate) room: usize,
    /// Whether the other end has closed the connection.
    pub(crate) is_closed: bool,
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.arrived.is_empty() && !self.is_closed {
            return Err(ErrorKind::WouldBlock.into());
        }
        let len = self.arrived.read(into)?;
        self.taken += len;
        Ok(len)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.room.saturating_sub(self.sent.len());
        match room {
            0 => Err(ErrorKind::WouldBlock.into()),
            _ => self.sent.write(&bytes[..bytes.len().min(room)]),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Both ends of a connection.
#[derive(Debug)]
pub(crate) struct Peers {
    pub(crate) client: TlsSession,
    pub(crate) primary: TlsSession,
}

impl Peers {
    /// Two ends before their handshake.
    pub(crate) fn new() -> Self {
        static TLS: OnceLock<Tls> = OnceLock::new();
        let tls = TLS.get_or_init(|| Ca::new("fuzz").tls("peer"));
        let client = TlsSession::connect(tls, IpAddr::V4(Ipv4Addr::LOCALHOST));
        let primary = TlsSession::accept(tls);
        Self { client: client.expect("a client"), primary: primary.expect("a primary") }
    }

    /// The same ends after their handshake.
    pub(crate) fn shaken(mut self) -> Self {
        let whole = || Wire { room: usize::MAX, ..Wire::default() };
        let (mut at_client, mut at_primary) = (whole(), whole());
        for _ in 0..10 {
            let client = self.client.shake(&mut at_client).expect("a handshake");
            at_primary.arrived.append(&mut at_client.sent);
            let primary = self.primary.shake(&mut at_primary).expect("a handshake");
            at_client.arrived.append(&mut at_primary.sent);
            if (client, primary) == (Shake::Done, Shake::Done) {
                return self;
            }
        }
        panic!("a handshake takes a few flights");
    }
}
