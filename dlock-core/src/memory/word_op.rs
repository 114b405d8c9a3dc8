// SPDX-License-Identifier: MIT OR Apache-2.0
//! Verbs, chains and outcomes: the narrow waist of the system.
//!
//! ```text
//!   lock algorithm ──chain──▶ executor ──verbs──▶ words of the primary's memory
//!                  ◀─outcome─
//! ```
//! A chain is executed in order for its client; the chains of different clients interleave at
//! the granularity of verbs.

use crate::ids::{Handle, Slot};

/// The four 8-byte words of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Word {
    /// The lock word, or an object's value.
    W0 = 0,
    /// Of a fair lock: the [`TurnWord`](crate::memory::words::TurnWord).
    W1 = 1,
    /// The counter fencing tokens are drawn from; of a fair lock, its lap.
    Fence = 2,
    /// The generation of the slot's occupant, written by the primary alone.
    Gen = 3,
}

/// The address of an 8-byte word: its index in the slot memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WordAddr(u32);

impl WordAddr {
    /// An address in no memory.
    pub const NONE: WordAddr = WordAddr(u32::MAX);

    /// The word after this one.
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
    /// The address of `word` in `slot`.
    pub const fn new(slot: Slot, word: Word) -> Self {
        Self(slot.0 * 4 + word as u32)
    }
    /// From an index that came from outside; its bound is checked by whoever executes it.
    pub const fn from_index(index: u32) -> Self {
        Self(index)
    }
    /// The index of the word, counted from the first slot.
    pub fn index(self) -> u32 {
        self.0
    }
    /// The slot the word lies in.
    pub fn slot(self) -> Slot {
        Slot(self.0 / 4)
    }
    /// Which of its slot's words it is.
    pub fn word(self) -> Word {
        match self.0 % 4 {
            0 => Word::W0,
            1 => Word::W1,
            2 => Word::Fence,
            _ => Word::Gen,
        }
    }
}

impl std::fmt::Debug for WordAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}@{}", self.word(), self.slot().0)
    }
}

/// One operation on one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WordOp {
    /// Compare and swap; its value is the old word, and it took effect iff that is `expect`.
    Cas {
        /// The word.
        addr: WordAddr,
        /// The value it must have.
        expect: u64,
        /// The value it gets.
        swap: u64,
    },
    /// Fetch and add modulo 2^64; its value is the old word.
    Faa {
        /// The word.
        addr: WordAddr,
        /// The addend.
        add: u64,
    },
    /// Read a word.
    Read {
        /// The word.
        addr: WordAddr,
    },
    /// Read a word and the one after it: two values. The last operation of its chain.
    ReadPair {
        /// The first word.
        addr: WordAddr,
    },
    /// Write an entry of the client's own ledger; its value is 0.
    WriteLedger {
        /// The entry.
        handle: Handle,
        /// What it gets.
        value: u64,
    },
}

impl WordOp {
    /// How many values it has.
    #[inline]
    pub fn values_len(&self) -> usize {
        match self {
            WordOp::ReadPair { .. } => 2,
            _ => 1,
        }
    }
}

/// Verbs in one chain.
pub const CHAIN_OPS_MAX: usize = 4;
/// Values of one chain.
pub const CHAIN_VALUES_MAX: usize = 4;

/// A short ordered list of verbs. Never empty once built; plain data, no allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    ops: [WordOp; CHAIN_OPS_MAX],
    len: u8,
}

impl Chain {
    /// A chain of one word operation.
    #[inline]
    pub fn one(word_op: WordOp) -> Self {
        const NONE: WordOp = WordOp::Read { addr: WordAddr::NONE };
        Self { ops: [word_op, NONE, NONE, NONE], len: 1 }
    }

    /// The chain with one more word operation at its end.
    ///
    /// # Panics
    /// If the chain has [`CHAIN_OPS_MAX`] verbs already: algorithms build chains of fixed length.
    #[inline]
    #[must_use]
    pub fn then(mut self, word_op: WordOp) -> Self {
        self.ops[self.len as usize] = word_op;
        self.len += 1;
        self
    }

    /// How many values its outcome has.
    #[inline]
    pub fn values_len(&self) -> usize {
        self.ops().iter().map(WordOp::values_len).sum()
    }

    /// The verbs in order.
    #[inline]
    pub fn ops(&self) -> &[WordOp] {
        &self.ops[..self.len as usize]
    }
}

/// The values of a chain's verbs, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Values {
    values: [u64; CHAIN_VALUES_MAX],
    len: u8,
}

impl Values {
    /// No value yet.
    #[inline]
    pub fn new() -> Self {
        Self { values: [0; CHAIN_VALUES_MAX], len: 0 }
    }
    /// Adds the value of the next word operation.
    #[inline]
    pub fn push(&mut self, value: u64) {
        self.values[self.len as usize] = value;
        self.len += 1;
    }
    /// All values.
    #[inline]
    pub fn as_slice(&self) -> &[u64] {
        &self.values[..self.len as usize]
    }
}

impl Default for Values {
    fn default() -> Self {
        Self::new()
    }
}

impl std::ops::Index<usize> for Values {
    type Output = u64;
    #[inline]
    fn index(&self, i: usize) -> &u64 {
        &self.as_slice()[i]
    }
}

/// What became of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every word operation was executed; their values.
    Done(Values),
    /// The completion was lost: any prefix of the chain may or may not have taken effect.
    Unknown,
    /// Refused before any word operation was executed: not an address this client may touch, or the
    /// primary is recovering.
    Refused(crate::wire::status::Status),
}
