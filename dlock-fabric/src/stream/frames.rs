// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cuts a stream of bytes into frames.
//!
//! ```text
//!   a channel:       space() ─▶ read as much as there is ─▶ filled(len) ─▶ next(), until None
//!   a handshake:     missing() ─▶ read no byte of what comes behind the frame ─▶ the same
//! ```

use dlock_core::limits::FRAME_LEN_MAX;
use dlock_core::wire::codec::{self, Cut, FrameError, Kind, HEADER_LEN};

/// The initial size: most frames are short, and each connection has a buffer.
const BYTES_FIRST: usize = 4 * 1024;

/// Collects bytes and returns whole frames, in order. Holds at most one frame of the largest size,
/// and grows to that only when a header announces a large frame.
#[derive(Debug)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
    /// Frames with larger payloads are refused.
    payload_max: usize,
}

impl Default for FrameBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl FrameBuffer {
    /// An empty buffer.
    pub fn new() -> Self {
        Self { bytes: Vec::new(), begin: 0, end: 0, payload_max: FRAME_LEN_MAX }
    }

    /// Refuses payloads of more bytes from now on.
    pub fn bound(&mut self, payload_max: usize) {
        self.payload_max = payload_max;
    }

    /// The free room for the next bytes; empty only while a whole frame of the largest size waits
    /// for [`next`](Self::next).
    pub fn space(&mut self) -> &mut [u8] {
        if self.end == self.bytes.len() || self.bytes.len() < BYTES_FIRST {
            self.make_room(BYTES_FIRST);
        }
        &mut self.bytes[self.end..]
    }

    /// Room for exactly the missing bytes of the next frame: first of the header, then of the
    /// payload. Empty if a whole frame waits for [`next`](Self::next).
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn missing(&mut self) -> Result<&mut [u8], FrameError> {
        let Cut::Part(len) = self.cut()? else { return Ok(&mut []) };
        self.make_room(len);
        let end = self.begin + len;
        Ok(&mut self.bytes[self.end..end])
    }

    /// Adds `len` bytes that were put at the front of [`space`](Self::space) or
    /// [`missing`](Self::missing).
    pub fn filled(&mut self, len: usize) {
        self.end = (self.end + len).min(self.bytes.len());
    }

    /// Whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    /// Whether the buffer begins with these bytes.
    pub fn starts_with(&self, bytes: &[u8]) -> bool {
        self.bytes[self.begin..self.end].starts_with(bytes)
    }

    /// Takes the next whole frame: its kind and payload.
    ///
    /// # Errors
    /// As [`codec::header`]: the stream cannot be used any further.
    // not an iterator: each frame is lent from the buffer, which an iterator cannot do
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<(Kind, &[u8])>, FrameError> {
        match self.cut()? {
            Cut::Part(len) => {
                self.make_room(len);
                Ok(None)
            }
            Cut::Whole(header) => {
                let payload = self.begin + HEADER_LEN;
                self.begin = payload + header.len;
                Ok(Some((header.kind, &self.bytes[payload..self.begin])))
            }
        }
    }

    /// Frees the memory of a large frame, if the buffer is empty.
    pub fn shrink(&mut self) {
        if self.is_empty() && self.bytes.len() > BYTES_FIRST {
            *self = Self { payload_max: self.payload_max, ..Self::new() };
        }
    }

    fn cut(&self) -> Result<Cut, FrameError> {
        let cut = codec::cut(&self.bytes[self.begin..self.end])?;
        let (Cut::Part(len) | Cut::Whole(codec::Header { len, .. })) = cut;
        let payload = if let Cut::Part(_) = cut { len - HEADER_LEN } else { len };
        match payload > self.payload_max {
            // the length in a header has 32 bits, so the cast loses nothing
            true => Err(FrameError::TooLong(payload as u32)),
            false => Ok(cut),
        }
    }

    /// Moves the bytes to the front, and makes room for a frame of `len` bytes.
    fn make_room(&mut self, len: usize) {
        debug_assert!(len <= FRAME_LEN_MAX);
        if self.begin > 0 {
            self.bytes.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
        }
        if self.bytes.len() < len {
            let room = if len > BYTES_FIRST { FRAME_LEN_MAX } else { len };
            self.bytes.resize(room, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::clock::Lease;
    use dlock_core::ids::{Handle, Seq};
    use dlock_core::memory::words::LedgerEntry;
    use dlock_core::wire::codec::{encode, Frame};
    use dlock_core::wire::control::ControlRequest;

    fn frames() -> (Vec<u8>, usize) {
        let mut bytes = Vec::new();
        for n in 0..50u64 {
            encode(&Frame::Note(Handle(n as u32), LedgerEntry::from_bits(n)), &mut bytes);
            let name = vec![b'x'; 500];
            let request = ControlRequest::ObjectGet { name, lease: Lease(1) };
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
    fn what_is_missing_of_a_frame_is_no_byte_of_the_next_one() {
        let (bytes, count) = frames();
        for step in [1, 7, usize::MAX] {
            let mut buffer = FrameBuffer::new();
            let (mut rest, mut again) = (&bytes[..], Vec::new());
            for _ in 0..count {
                loop {
                    let missing = buffer.missing().unwrap();
                    if missing.is_empty() {
                        break;
                    }
                    let len = missing.len().min(step);
                    missing[..len].copy_from_slice(&rest[..len]);
                    buffer.filled(len);
                    rest = &rest[len..];
                }
                let (kind, payload) = buffer.next().unwrap().expect("a whole frame");
                encode(&codec::decode(kind, payload).unwrap(), &mut again);
                assert!(buffer.is_empty(), "bytes behind the frame");
            }
            assert!(rest.is_empty() && again == bytes);
        }
    }

    #[test]
    fn a_bound_refuses_what_a_header_announces_before_there_is_memory_for_it() {
        let mut frame = Vec::new();
        encode(&Frame::Note(Handle(0), LedgerEntry::new()), &mut frame);
        let payload = frame.len() - HEADER_LEN;
        for (bound, fits) in [(payload, true), (payload - 1, false)] {
            let mut buffer = FrameBuffer::new();
            buffer.bound(bound);
            buffer.space()[..frame.len()].copy_from_slice(&frame);
            buffer.filled(HEADER_LEN);
            assert_eq!(buffer.missing().is_ok(), fits);
            buffer.filled(payload);
            assert_eq!(buffer.next().is_ok(), fits);
        }
    }

    #[test]
    fn memory_of_a_large_frame_is_given_back_when_nothing_is_there() {
        let mut head = Vec::new();
        encode(&Frame::Note(Handle(0), LedgerEntry::new()), &mut head);
        head[4..8].copy_from_slice(&10_000_u32.to_le_bytes());
        let mut buffer = FrameBuffer::new();
        buffer.missing().unwrap().copy_from_slice(&head[..HEADER_LEN]);
        buffer.filled(HEADER_LEN);
        assert_eq!(buffer.missing().unwrap().len(), 10_000);
        buffer.shrink();
        assert_eq!(buffer.missing().unwrap().len(), 10_000, "a frame is on its way");
        buffer.filled(10_000);
        assert!(buffer.next().unwrap().is_some());
        buffer.shrink();
        assert!(buffer.bytes.is_empty());
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
