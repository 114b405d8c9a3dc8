// SPDX-License-Identifier: MIT OR Apache-2.0
//! Common parts of the unit tests of the tables. They call private functions, so they cannot be in
//! `tests/support`.

mod churn;

use std::collections::BTreeMap;

use crate::ids::{ClientId, Handle, Slot};
use crate::memory::exec::LockMemory;
use crate::memory::word_op::{Word, WordAddr};
use crate::memory::words::LedgerEntry;

/// Words are zero until they are set; ledger entries can be written by tests.
#[derive(Default)]
pub struct Memory {
    words: BTreeMap<u32, u64>,
    pub ledgers: BTreeMap<(ClientId, Handle), LedgerEntry>,
}

impl Memory {
    pub fn word(&mut self, slot: Slot, word: Word) -> u64 {
        self.read(WordAddr::new(slot, word))
    }
}

impl LockMemory for Memory {
    fn cas(&mut self, addr: WordAddr, expect: u64, swap: u64) -> u64 {
        let old = self.read(addr);
        if old == expect {
            self.set(addr, swap);
        }
        old
    }
    fn faa(&mut self, addr: WordAddr, add: u64) -> u64 {
        let old = self.read(addr);
        self.set(addr, old.wrapping_add(add));
        old
    }
    fn read(&mut self, addr: WordAddr) -> u64 {
        self.words.get(&addr.index()).copied().unwrap_or(0)
    }
    fn set(&mut self, addr: WordAddr, value: u64) {
        self.words.insert(addr.index(), value);
    }
    fn ledger(&mut self, client: ClientId, handle: Handle) -> LedgerEntry {
        self.ledgers.get(&(client, handle)).copied().unwrap_or_default()
    }
    fn set_ledger(&mut self, client: ClientId, handle: Handle, entry: LedgerEntry) {
        match entry == LedgerEntry::new() {
            true => _ = self.ledgers.remove(&(client, handle)),
            false => _ = self.ledgers.insert((client, handle), entry),
        }
    }
}

/// A generator of test values (splitmix64): the same on every run.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}
