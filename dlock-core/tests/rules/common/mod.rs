// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lock memory for tests: words and ledgers in maps.

pub mod entry;
pub mod lock;
pub mod site;
pub mod world;

use std::collections::HashMap;

use dlock_core::counters::{Told, COUNTERS};
use dlock_core::ids::{ClientId, Handle};
use dlock_core::locks::Locks;
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Chain, Outcome, Values, WordAddr, WordOp};
use dlock_core::memory::words::LedgerEntry;

#[derive(Default)]
pub struct Memory {
    pub words: HashMap<u32, u64>,
    pub ledgers: HashMap<(ClientId, Handle), LedgerEntry>,
    pub mapped: std::collections::HashSet<ClientId>,
    pub told: HashMap<ClientId, Told>,
}

impl LockMemory for Memory {
    fn cas(&mut self, addr: WordAddr, expect: u64, swap: u64) -> u64 {
        let word = self.words.entry(addr.index()).or_default();
        let old = *word;
        if old == expect {
            *word = swap;
        }
        old
    }
    fn faa(&mut self, addr: WordAddr, add: u64) -> u64 {
        let word = self.words.entry(addr.index()).or_default();
        let old = *word;
        *word = old.wrapping_add(add);
        old
    }
    fn read(&mut self, addr: WordAddr) -> u64 {
        *self.words.entry(addr.index()).or_default()
    }
    fn set(&mut self, addr: WordAddr, value: u64) {
        self.words.insert(addr.index(), value);
    }
    fn ledger(&mut self, client: ClientId, handle: Handle) -> LedgerEntry {
        self.ledgers.get(&(client, handle)).copied().unwrap_or_default()
    }
    fn told(&mut self, client: ClientId) -> Told {
        self.told.get(&client).copied().unwrap_or_default()
    }
    fn set_ledger(&mut self, client: ClientId, handle: Handle, entry: LedgerEntry) {
        match entry == LedgerEntry::new() {
            true => _ = self.ledgers.remove(&(client, handle)),
            false => _ = self.ledgers.insert((client, handle), entry),
        }
    }
}

impl dlock_core::membership::MemberMemory for Memory {
    fn is_mapped(&self, client: ClientId) -> bool {
        self.mapped.contains(&client)
    }
    fn execute_chain(&mut self, client: ClientId, chain: &Chain) -> Outcome {
        let mut values = Values::new();
        for word_op in chain.ops() {
            let value = match *word_op {
                WordOp::Cas { addr, expect, swap } => self.cas(addr, expect, swap),
                WordOp::Faa { addr, add } => self.faa(addr, add),
                WordOp::Read { addr } => self.read(addr),
                WordOp::ReadPair { addr } => {
                    values.push(self.read(addr));
                    self.read(addr.next())
                }
                WordOp::WriteLedger { handle, value } => {
                    self.ledgers.insert((client, handle), LedgerEntry::from_bits(value));
                    0
                }
            };
            values.push(value);
        }
        Outcome::Done(values)
    }
}

/// What has counted until now.
pub fn stats(locks: &mut Locks, memory: &mut Memory) -> [u64; COUNTERS] {
    locks.collect_all(memory);
    locks.counters().read()
}
