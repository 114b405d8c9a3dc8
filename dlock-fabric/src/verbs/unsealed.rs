// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes that a sealed queue pair has received and that were not read yet, at the client or at
//! the primary.

use crate::tls::sealing::{Opener, SealError};

/// How many bytes a record counts in addition to its plaintext, because opening it costs as much as
/// reading that many bytes.
const RECORD_WEIGHT: usize = 64;

/// The plaintext of records, as a stream of bytes.
#[derive(Debug)]
pub(super) struct Unsealed {
    opener: Opener,
    bytes: Vec<u8>,
    /// How many bytes at the front were read.
    taken: usize,
    /// How many records were opened since the buffer was empty.
    records: usize,
    /// The limit of unread bytes. Above it the peer gets no credit for more.
    max: usize,
}

impl Unsealed {
    /// Opens records with `opener`; up to `max` bytes may be unread.
    pub(super) fn new(opener: Opener, max: usize) -> Self {
        Self { opener, bytes: Vec::new(), taken: 0, records: 0, max }
    }

    /// Opens the next record; returns whether the unread bytes now exceed the limit.
    ///
    /// # Errors
    /// The record is not the next one of the stream.
    pub(super) fn open(&mut self, record: &mut [u8]) -> Result<bool, SealError> {
        if self.taken > self.max {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        self.bytes.extend_from_slice(self.opener.open(record)?);
        self.records += 1;
        Ok(self.bytes.len() - self.taken + self.records * RECORD_WEIGHT > self.max)
    }

    /// Whether there are no unread bytes.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Reads as many bytes as fit; returns how many.
    pub(super) fn read(&mut self, into: &mut [u8]) -> usize {
        let waiting = &self.bytes[self.taken..];
        let len = waiting.len().min(into.len());
        into[..len].copy_from_slice(&waiting[..len]);
        self.taken += len;
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            (self.taken, self.records) = (0, 0);
        }
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::sealing::{SealSecrets, Sealer};
    use dlock_core::ids::ClientId;

    fn pair() -> (Sealer, Opener) {
        let secrets = || {
            let fill = |into: &mut [u8], _: &[u8]| {
                into.fill(3);
                Ok::<_, ()>(())
            };
            SealSecrets::export(ClientId::new(7).unwrap(), fill).unwrap()
        };
        (secrets().of_client().0, secrets().of_primary().1)
    }

    /// Opening a record costs the receiver work, however little the record carries.
    #[test]
    fn records_with_little_in_them_count_for_more_than_their_bytes() {
        let (mut sealer, opener) = pair();
        let mut unsealed = Unsealed::new(opener, 1_000);
        let mut record = Vec::new();
        for n in 1..=16 {
            sealer.seal(b"x", &mut record).unwrap();
            assert_eq!(unsealed.open(&mut record).unwrap(), n * (1 + RECORD_WEIGHT) > 1_000);
        }
        assert_eq!(unsealed.read(&mut [0; 64]), 16);
        sealer.seal(b"x", &mut record).unwrap();
        assert_eq!(unsealed.open(&mut record), Ok(false), "nothing waited");
        assert_eq!(sealer.seal(b"", &mut record), Err(SealError::Length { len: 0 }));
    }

    #[test]
    fn what_was_taken_does_not_wait_any_more() {
        let (mut sealer, opener) = pair();
        let mut unsealed = Unsealed::new(opener, 1_000);
        let mut record = Vec::new();
        for _ in 0..2 {
            sealer.seal(&[7; 400], &mut record).unwrap();
            assert_eq!(unsealed.open(&mut record), Ok(false));
        }
        assert_eq!(unsealed.read(&mut [0; 500]), 500);
        sealer.seal(&[7; 400], &mut record).unwrap();
        assert_eq!(unsealed.open(&mut record), Ok(false), "700 bytes in three records");
        sealer.seal(&[7; 400], &mut record).unwrap();
        assert_eq!(unsealed.open(&mut record), Ok(true));
    }
}
