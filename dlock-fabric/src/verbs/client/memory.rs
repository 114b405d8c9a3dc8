// SPDX-License-Identifier: MIT OR Apache-2.0
//! The primary's memory, as a client addresses it.

use dlock_core::ids::Handle;
use dlock_core::memory::word_op::WordOp;

use crate::verbs::device::memory::{RemoteRegion, RemoteWord};
use crate::verbs::device::poster::{RemoteFetch, RemoteOp};

/// The regions of the primary's memory on which this client may operate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) slots: RemoteRegion,
    pub(super) slots_count: u32,
    pub(super) ledger: RemoteRegion,
    pub(super) ledger_entries: u32,
}

impl Memory {
    /// The verb for a word operation; `None`: its address lies outside the regions.
    #[inline]
    pub(super) fn remote(&self, word_op: &WordOp) -> Option<RemoteOp> {
        Some(match *word_op {
            WordOp::Cas { addr, expect, swap } => {
                RemoteOp::Cas { word: self.word(addr.index())?, expect, swap }
            }
            WordOp::Faa { addr, add } => RemoteOp::Faa { word: self.word(addr.index())?, add },
            WordOp::Read { addr } => RemoteOp::Read { word: self.word(addr.index())? },
            WordOp::ReadPair { addr } => {
                self.word(addr.next().index())?;
                RemoteOp::ReadPair { word: self.word(addr.index())? }
            }
            WordOp::WriteLedger { handle, value } => {
                RemoteOp::Write { word: self.entry(handle)?, value }
            }
        })
    }

    /// As `remote`, for an operation with one value; also `None` for any other operation.
    #[inline]
    pub(super) fn fetch(&self, word_op: &WordOp) -> Option<RemoteFetch> {
        Some(match *word_op {
            WordOp::Cas { addr, expect, swap } => {
                RemoteFetch::cas(self.word(addr.index())?, expect, swap)
            }
            WordOp::Faa { addr, add } => RemoteFetch::faa(self.word(addr.index())?, add),
            WordOp::Read { addr } => RemoteFetch::read(self.word(addr.index())?),
            WordOp::ReadPair { .. } | WordOp::WriteLedger { .. } => return None,
        })
    }

    #[inline]
    fn word(&self, index: u32) -> Option<RemoteWord> {
        (index / 4 < self.slots_count).then(|| self.slots.word(index.into())).flatten()
    }

    /// The word of a count, which lies behind the entries. `None` if the primary has no room for
    /// it.
    pub(super) fn count(&self, place: usize) -> Option<RemoteWord> {
        self.ledger.word(u64::from(self.ledger_entries) + place as u64)
    }

    #[inline]
    pub(super) fn entry(&self, handle: Handle) -> Option<RemoteWord> {
        (handle.0 < self.ledger_entries).then(|| self.ledger.word(handle.0.into())).flatten()
    }
}
