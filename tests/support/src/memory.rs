// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lock memory and ledgers in maps, with the word operations of clients.

use std::collections::{HashMap, HashSet};

use dlock_core::counters::Told;
use dlock_core::ids::{ClientId, Handle};
use dlock_core::membership::MemberMemory;
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Chain, Outcome, Values, WordAddr, WordOp};
use dlock_core::memory::words::LedgerEntry;

/// Lock memory, in which words and ledger entries are 0 until they are set.
#[derive(Debug, Default)]
pub struct Memory {
    /// The words, by their index in memory.
    pub words: HashMap<u32, u64>,
    /// The ledgers.
    pub ledgers: HashMap<(ClientId, Handle), LedgerEntry>,
    /// The clients that have mapped the memory.
    pub mapped: HashSet<ClientId>,
    /// The counts that clients have reported.
    pub told: HashMap<ClientId, Told>,
}

impl Memory {
    /// The value of a word.
    pub fn peek(&self, addr: WordAddr) -> u64 {
        self.words.get(&addr.index()).copied().unwrap_or(0)
    }

    /// Executes a chain for a client.
    pub fn execute(&mut self, client: ClientId, chain: &Chain) -> Values {
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
        values
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
        self.peek(addr)
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

impl MemberMemory for Memory {
    fn is_mapped(&self, client: ClientId) -> bool {
        self.mapped.contains(&client)
    }
    fn execute_chain(&mut self, client: ClientId, chain: &Chain) -> Outcome {
        Outcome::Done(self.execute(client, chain))
    }
}
