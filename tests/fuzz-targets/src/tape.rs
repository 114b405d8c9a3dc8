// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fuzzer's bytes as a sequence of choices. After the last byte, every choice is 0.

use dlock_core::clock::Lease;

/// The bytes that were not read yet.
#[derive(Debug)]
pub struct Tape<'a>(&'a [u8]);

impl<'a> Tape<'a> {
    /// A tape of all these bytes.
    pub fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    /// Whether all bytes were read.
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// The next bytes, at most `len`.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(len.min(self.0.len()));
        self.0 = tail;
        head
    }

    /// A byte.
    pub fn u8(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// A number of 16 bits.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    /// A number of 32 bits.
    pub fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }

    /// A number of 64 bits.
    pub fn u64(&mut self) -> u64 {
        u64::from(self.u32()) | u64::from(self.u32()) << 32
    }

    /// One of `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.u8()) % n.max(1)
    }

    /// A choice between yes and no.
    pub fn flip(&mut self) -> bool {
        self.u8() & 1 == 1
    }

    /// A lease with a number of seconds as in [`seconds`](Self::seconds).
    pub fn lease(&mut self) -> Lease {
        Lease::secs(self.seconds())
    }

    /// A number of seconds: a short time, a long time, or a random number.
    pub fn seconds(&mut self) -> u32 {
        match self.u8() {
            255 => self.u32(),
            254 => u32::MAX,
            253 => u32::MAX - 1,
            small => u32::from(small % 64),
        }
    }
}
