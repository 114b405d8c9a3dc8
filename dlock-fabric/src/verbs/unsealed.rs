// SPDX-License-Identifier: MIT OR Apache-2.0
//! What has come over a sealed queue pair and waits to be taken, at either end.

use crate::sealing::{Opener, SealError};

/// The plaintext of records, as a stream of bytes.
#[derive(Debug)]
pub(super) struct Unsealed {
    opener: Opener,
    bytes: Vec<u8>,
    /// How many of them, at the front, were taken.
    taken: usize,
    /// Bytes that may wait; from there on the peer gets no credit for more.
    max: usize,
}

impl Unsealed {
    /// Opens records with this; so many bytes may wait.
    pub(super) fn new(opener: Opener, max: usize) -> Self {
        Self { opener, bytes: Vec::new(), taken: 0, max }
    }

    /// Takes the next record; whether too much waits by now.
    ///
    /// # Errors
    /// It is not the one that is due.
    pub(super) fn open(&mut self, record: &mut [u8]) -> Result<bool, SealError> {
        if self.taken > self.max {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        self.bytes.extend_from_slice(self.opener.open(record)?);
        Ok(self.bytes.len() - self.taken > self.max)
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Gives out what fits; how much.
    pub(super) fn read(&mut self, into: &mut [u8]) -> usize {
        let waiting = &self.bytes[self.taken..];
        let len = waiting.len().min(into.len());
        into[..len].copy_from_slice(&waiting[..len]);
        self.taken += len;
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            self.taken = 0;
        }
        len
    }
}
