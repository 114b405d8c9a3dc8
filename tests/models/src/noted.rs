// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ledger entries that the primary writes for a client when it has executed one of the client's
//! chains. It writes them in the same step, so no other action comes between.

use dlock_core::arbiter::LockRef;
use dlock_core::ids::{ClientId, Handle};
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Chain, Values, Word, WordAddr, WordOp};
use dlock_core::memory::words::LedgerEntry;

use crate::state::{id, Setup, State, CLIENTS, HANDLE};

/// The primary's access to the memory after the chain: only the ledgers, and the lap.
struct Ledgers<'a>(&'a mut [LedgerEntry; CLIENTS], u64);

impl LockMemory for Ledgers<'_> {
    fn cas(&mut self, _: WordAddr, _: u64, _: u64) -> u64 {
        unreachable!("the word is not the arbiter's to change here")
    }
    fn faa(&mut self, _: WordAddr, _: u64) -> u64 {
        unreachable!("the word is not the arbiter's to change here")
    }
    fn read(&mut self, addr: WordAddr) -> u64 {
        assert_eq!(addr.word(), Word::Fence, "what the other words were is told");
        self.1
    }
    fn set(&mut self, _: WordAddr, _: u64) {
        unreachable!("the word is not the arbiter's to change here")
    }
    fn ledger(&mut self, client: ClientId, _: Handle) -> LedgerEntry {
        self.0[client.get() as usize - 1]
    }
    fn set_ledger(&mut self, client: ClientId, _: Handle, entry: LedgerEntry) {
        self.0[client.get() as usize - 1] = entry;
    }
}

impl State {
    /// Handles that the primary has executed the whole chain of this client.
    pub(crate) fn executed(&mut self, i: usize, chain: &Chain, values: &Values, setup: &Setup) {
        if !setup.by_primary {
            return;
        }
        let whose = (id(i), HANDLE);
        let refs = [whose];
        let lock =
            LockRef { slot: self.slot, lock_type: setup.lock_type, tokens: false, refs: &refs };
        let mut noted = LedgerEntry::new();
        for (word_op, &old) in chain.ops().iter().zip(values.as_slice()) {
            match word_op {
                WordOp::WriteLedger { value, .. } => noted = LedgerEntry::from_bits(*value),
                WordOp::Faa { .. } | WordOp::Cas { .. } => {
                    let mut ledgers = Ledgers(&mut self.ledgers, self.fence);
                    self.arbiter.executed_word_op(&mut ledgers, lock, whose, noted, word_op, old);
                }
                WordOp::Read { .. } | WordOp::ReadPair { .. } => {}
            }
        }
    }
}
