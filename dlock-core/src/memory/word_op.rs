// SPDX-License-Identifier: MIT OR Apache-2.0
//! Word operations, chains and outcomes: the one interface between lock algorithms and fabrics.
//!
//! ```text
//!   lock algorithm ──chain──▶ executor ──word operations──▶ words of the primary's memory
//!                  ◀─outcome─
//! ```
//! The word operations of a chain are executed in their order. Those of different clients' chains
//! interleave.

use crate::ids::{Handle, Slot};

/// The four 8-byte words of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Word {
    /// The lock word, or an object's value.
    W0 = 0,
    /// The [`TurnWord`](crate::memory::words::TurnWord) of a fair lock; other locks do not use it.
    W1 = 1,
    /// The counter of fencing tokens; in a fair lock, the lap.
    Fence = 2,
    /// The generation of the slot's occupant; only the primary writes it.
    Gen = 3,
}

/// The address of an 8-byte word: its index in the slot memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WordAddr(u32);

impl WordAddr {
    /// An address outside every memory.
    pub const NONE: WordAddr = WordAddr(u32::MAX);

    /// The word after this one.
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
    /// The address of `word` in `slot`.
    pub const fn new(slot: Slot, word: Word) -> Self {
        Self(slot.0 * 4 + word as u32)
    }
    /// From an index that a peer has sent; the code that executes the operation checks the index.
    pub const fn from_index(index: u32) -> Self {
        Self(index)
    }
    /// The index of the word, counted from the first slot.
    pub fn index(self) -> u32 {
        self.0
    }
    /// The slot in which the word lies.
    pub fn slot(self) -> Slot {
        Slot(self.0 / 4)
    }
    /// Which word of its slot this is.
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
    /// Compare and swap. The value is the old word; the swap took effect if and only if that is
    /// `expect`.
    Cas {
        /// The word.
        addr: WordAddr,
        /// The value that the word must have.
        expect: u64,
        /// The value that the word gets.
        swap: u64,
    },
    /// Fetch and add modulo 2^64. The value is the old word.
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
    /// Read a word and the next one: two values. Only as the last operation of a chain.
    ReadPair {
        /// The first word.
        addr: WordAddr,
    },
    /// Write an entry of the client's own ledger. The value is 0.
    WriteLedger {
        /// The entry.
        handle: Handle,
        /// The new value.
        value: u64,
    },
}

impl WordOp {
    /// How many values the operation has.
    #[inline]
    pub fn values_len(&self) -> usize {
        match self {
            WordOp::ReadPair { .. } => 2,
            _ => 1,
        }
    }
}

/// The most word operations of one chain.
pub const CHAIN_OPS_MAX: usize = 4;
/// The most values of one chain.
pub const CHAIN_VALUES_MAX: usize = 4;

/// A short ordered list of word operations; never empty. Plain data, without allocation.
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
    /// If the chain has [`CHAIN_OPS_MAX`] operations already: algorithms build chains of fixed
    /// length.
    #[inline]
    #[must_use]
    pub fn then(mut self, word_op: WordOp) -> Self {
        self.ops[self.len as usize] = word_op;
        self.len += 1;
        self
    }

    /// How many values the outcome of the chain has.
    #[inline]
    pub fn values_len(&self) -> usize {
        self.ops().iter().map(WordOp::values_len).sum()
    }

    /// The word operations in order.
    #[inline]
    pub fn ops(&self) -> &[WordOp] {
        &self.ops[..self.len as usize]
    }
}

/// The values of a chain's word operations, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Values {
    values: [u64; CHAIN_VALUES_MAX],
    len: u8,
}

impl Values {
    /// No value yet.
    #[inline]
    pub const fn new() -> Self {
        Self { values: [0; CHAIN_VALUES_MAX], len: 0 }
    }
    /// Adds the value of the next word operation.
    #[inline]
    pub fn push(&mut self, value: u64) {
        self.values[self.len as usize] = value;
        self.len += 1;
    }
    /// Sets all values in place: `set` writes them in order, and returns how many there are.
    #[inline(always)]
    pub fn fill(&mut self, set: impl FnOnce(&mut [u64; CHAIN_VALUES_MAX]) -> usize) {
        self.len = set(&mut self.values) as u8;
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

/// The outcome of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every word operation was executed; their values.
    Done(Values),
    /// The completion was lost: any number of the first operations may have taken effect.
    Unknown,
    /// The chain was refused before any of its operations was executed: the client may not touch an
    /// address, or the primary is recovering.
    Refused(crate::wire::status::Status),
}
