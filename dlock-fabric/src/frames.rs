// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cuts a stream of bytes into frames.

use dlock_core::codec::{self, FrameError, Kind, HEADER_LEN};
use dlock_core::limits::FRAME_LEN_MAX;

/// Bytes to begin with: most frames are short, and there is a buffer per connection.
const BYTES_FIRST: usize = 4 * 1024;

/// Collects bytes and gives whole frames back, in order. Holds at most one frame of the largest
/// size, and grows to that only when a header announces a large frame.
#[derive(Debug)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

impl Default for FrameBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl FrameBuffer {
    /// An empty buffer.
    pub fn new() -> Self {
        Self { bytes: vec![0; BYTES_FIRST], begin: 0, end: 0 }
    }

    /// Where to put the next bytes; empty only while a whole frame of the largest size waits to be
    /// taken by [`next`](Self::next).
    pub fn space(&mut self) -> &mut [u8] {
        if self.end == self.bytes.len() {
            self.make_room(HEADER_LEN);
        }
        &mut self.bytes[self.end..]
    }

    /// So many bytes were put at the front of [`space`](Self::space).
    pub fn filled(&mut self, len: usize) {
        self.end = (self.end + len).min(self.bytes.len());
    }

    /// Whether bytes of an unfinished frame are here.
    pub fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    /// The next whole frame's kind and payload.
    ///
    /// # Errors
    /// As [`codec::header`]: the stream cannot be used any further.
    #[allow(clippy::should_implement_trait)] // lends from itself, which an iterator cannot
    pub fn next(&mut self) -> Result<Option<(Kind, &[u8])>, FrameError> {
        let Some(head) = self.bytes[self.begin..self.end].first_chunk::<HEADER_LEN>() else {
            self.make_room(HEADER_LEN);
            return Ok(None);
        };
        let header = codec::header(head)?;
        let len = HEADER_LEN + header.len;
        if self.end - self.begin < len {
            self.make_room(len);
            return Ok(None);
        }
        let payload = self.begin + HEADER_LEN;
        self.begin += len;
        Ok(Some((header.kind, &self.bytes[payload..payload + header.len])))
    }

    /// Moves what is here to the front, and makes sure that a frame of `len` bytes fits.
    fn make_room(&mut self, len: usize) {
        debug_assert!(len <= FRAME_LEN_MAX);
        if self.begin > 0 {
            self.bytes.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
        }
        if self.bytes.len() < len {
            self.bytes.resize(FRAME_LEN_MAX, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::codec::{encode, Frame};
    use dlock_core::control::ControlRequest;
    use dlock_core::ids::{Handle, Seq};
    use dlock_core::words::LedgerEntry;

    fn frames() -> (Vec<u8>, usize) {
        let mut bytes = Vec::new();
        for n in 0..50u64 {
            encode(&Frame::Note(Handle(n as u32), LedgerEntry::from_bits(n)), &mut bytes);
            let name = vec![b'x'; 500];
            let request = ControlRequest::ObjectGet { name, lease_s: 1 };
            encode(&Frame::Control(Seq(n + 1), request), &mut bytes);
        }
        (bytes, 100)
    }

    #[test]
    fn frames_come_out_whole_however_the_bytes_come_in() {
        let (bytes, count) = frames();
        for step in [1, 7, 8, 9, 4_000, usize::MAX] {
            let mut buffer = FrameBuffer::new();
            let (mut rest, mut again, mut seen) = (&bytes[..], Vec::new(), 0);
            while !rest.is_empty() {
                let space = buffer.space();
                assert!(!space.is_empty());
                let len = space.len().min(step).min(rest.len());
                space[..len].copy_from_slice(&rest[..len]);
                buffer.filled(len);
                rest = &rest[len..];
                while let Some((kind, payload)) = buffer.next().unwrap() {
                    encode(&codec::decode(kind, payload).unwrap(), &mut again);
                    seen += 1;
                }
            }
            assert_eq!(seen, count);
            assert_eq!(again, bytes);
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn a_frame_of_the_largest_size_fits_and_a_larger_one_is_refused() {
        let mut head = Vec::new();
        encode(&Frame::Note(Handle(0), LedgerEntry::new()), &mut head);
        let largest = (FRAME_LEN_MAX - HEADER_LEN) as u32;
        head[4..8].copy_from_slice(&largest.to_le_bytes());
        let mut buffer = FrameBuffer::new();
        let mut put = |bytes: &[u8]| {
            buffer.space()[..bytes.len()].copy_from_slice(bytes);
            buffer.filled(bytes.len());
            buffer.next().map(|frame| frame.map(|(_, payload)| payload.len()))
        };
        assert_eq!(put(&head[..8]), Ok(None));
        assert_eq!(put(&vec![0; largest as usize]), Ok(Some(largest as usize)));
        head[4..8].copy_from_slice(&(largest + 1).to_le_bytes());
        assert_eq!(put(&head[..8]), Err(FrameError::TooLong(largest + 1)));
    }
}
