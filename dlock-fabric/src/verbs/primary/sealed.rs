// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client with a sealed data path: one queue pair without access to memory, and a stream of bytes
//! in each direction.
//!
//! ```text
//!   Arrival ─▶ VerbsPeer ── a record ─▶ Opener ─▶ bytes, ARRIVED_MAX and a ring at most
//!   bytes ─▶ Sealer ── a record ─▶ VerbsPeer, as far as there is credit
//! ```

use std::io::{self, ErrorKind};

use super::host::{Arrival, PeerId};
use super::peer::VerbsPeer;
use crate::tls::sealing::{SealSecrets, Sealer, OVERHEAD};
use crate::verbs::device::messages::{Event, MessageError, RECORD_BYTES, RING_SLOTS};
use crate::verbs::unsealed::Unsealed;

/// From this many unread bytes on, the client gets no credit for more.
const ARRIVED_MAX: usize = 32 * 1024;

/// The primary's end for one client; owned by one thread. Dropping it cuts the client off.
#[derive(Debug)]
pub struct SealedPeer {
    peer: VerbsPeer,
    sealer: Sealer,
    arrived: Unsealed,
    /// The most plaintext in a record, bytes.
    plaintext_max: usize,
    record: Vec<u8>,
}

impl SealedPeer {
    /// How many bytes are registered with the device for each client.
    pub const RING_BYTES: u64 = 2 * RING_SLOTS as u64 * RECORD_BYTES as u64;

    pub(super) fn new(peer: VerbsPeer, secrets: SealSecrets, record_bytes: u32) -> Self {
        let (sealer, opener) = secrets.of_primary();
        let plaintext_max = record_bytes as usize - OVERHEAD;
        let arrived = Unsealed::new(opener, ARRIVED_MAX);
        Self { peer, sealer, arrived, plaintext_max, record: Vec::new() }
    }

    /// The ids in [`Arrival::peer`].
    pub fn ids(&self) -> [PeerId; 2] {
        self.peer.ids()
    }

    /// Handles an arrival of this peer.
    ///
    /// # Errors
    /// The channel has ended: a record is not the next one, the queue pair has failed, or the
    /// client broke the protocol.
    ///
    /// # Panics
    /// If the arrival is of another peer.
    pub fn take(&mut self, arrival: &Arrival) -> Result<(), MessageError> {
        self.record.clear();
        if self.peer.take(arrival, &mut self.record)? == Event::Message
            && self.arrived.open(&mut self.record)?
        {
            self.peer.hold();
        }
        Ok(())
    }

    /// Reads received bytes and returns their number; 0: there are none now.
    ///
    /// # Errors
    /// The channel has ended.
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize, MessageError> {
        let len = self.arrived.read(into);
        if self.arrived.is_empty() {
            self.peer.release()?;
        }
        Ok(len)
    }

    /// Whether there are received bytes that were not read.
    pub fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Seals and sends as many bytes as fit into a record; returns how many. After an arrival there
    /// may be more room.
    ///
    /// # Errors
    /// `Busy`: nothing was sent. Other errors: the channel has ended.
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, MessageError> {
        if !self.peer.may_send() {
            return Err(match self.peer.is_broken() {
                true => MessageError::Broken { code: libc::ENOTCONN as u32 },
                false => MessageError::Busy,
            });
        }
        let len = bytes.len().min(self.plaintext_max);
        if len == 0 {
            return Ok(0);
        }
        self.sealer.seal(&bytes[..len], &mut self.record)?;
        self.peer.send(&self.record).map(|()| len)
    }
}

impl From<MessageError> for io::Error {
    fn from(error: MessageError) -> Self {
        let kind = match error {
            MessageError::Busy => ErrorKind::WouldBlock,
            MessageError::Sealed(_) | MessageError::Peer(_) => ErrorKind::InvalidData,
            _ => ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
