// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lock memory and ledgers of one epoch, as plain values, and the primary's access to them.

use dlock_core::ids::{ClientId, Handle};
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{WordAddr, WordOp};
use dlock_core::memory::words::LedgerEntry;

use super::state::Sys;

/// The most handles that a client may have in this simulator.
pub const HANDLES: usize = 48;

/// The memory of one primary.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// The words of all slots.
    pub words: Vec<u64>,
    /// The ledgers of the admitted clients.
    pub ledgers: Vec<(ClientId, [u64; HANDLES])>,
}

impl Memory {
    /// `slots` slots of zeros.
    pub fn new(slots: usize) -> Self {
        Self { words: vec![0; slots * 4], ledgers: Vec::new() }
    }

    /// Gives a client an empty ledger, unless it has one.
    pub fn add_client(&mut self, client: ClientId) {
        if self.ledger(client).is_none() {
            self.ledgers.push((client, [0; HANDLES]));
        }
    }

    /// Removes the ledger of a client.
    pub fn remove_client(&mut self, client: ClientId) {
        self.ledgers.retain(|(c, _)| *c != client);
    }

    /// A client's ledger.
    pub fn ledger(&mut self, client: ClientId) -> Option<&mut [u64; HANDLES]> {
        self.ledgers.iter_mut().find(|(c, _)| *c == client).map(|(_, ledger)| ledger)
    }

    /// An entry of a ledger; 0 if it does not exist.
    pub fn entry(&mut self, client: ClientId, handle: Handle) -> u64 {
        self.ledger(client).and_then(|l| l.get(handle.0 as usize).copied()).unwrap_or(0)
    }

    /// Writes an entry of a ledger, if it exists.
    pub fn write_ledger(&mut self, client: ClientId, handle: Handle, value: u64) {
        if let Some(entry) = self.ledger(client).and_then(|l| l.get_mut(handle.0 as usize)) {
            *entry = value;
        }
    }

    /// The word at this address.
    pub fn word(&mut self, addr: WordAddr) -> &mut u64 {
        &mut self.words[addr.index() as usize]
    }

    /// Executes one word operation of a client; returns its value.
    pub fn execute(&mut self, client: ClientId, word_op: &WordOp) -> u64 {
        match *word_op {
            WordOp::Cas { addr, expect, swap } => {
                let word = self.word(addr);
                let old = *word;
                if old == expect {
                    *word = swap;
                }
                old
            }
            WordOp::Faa { addr, add } => {
                let word = self.word(addr);
                let old = *word;
                *word = old.wrapping_add(add);
                old
            }
            WordOp::Read { addr } | WordOp::ReadPair { addr } => *self.word(addr),
            WordOp::WriteLedger { handle, value } => {
                self.write_ledger(client, handle, value);
                0
            }
        }
    }
}

/// The primary's access.
impl LockMemory for Sys {
    fn cas(&mut self, addr: WordAddr, expect: u64, swap: u64) -> u64 {
        self.others();
        let old = *self.memory.word(addr);
        if self.bugs.split_cas {
            self.others(); // atomics of the card do not exclude the CPU's
        }
        if old == expect {
            *self.memory.word(addr) = swap;
        }
        self.mix(old);
        self.log(|| format!("  primary cas {addr:?} {expect:#x} → {swap:#x}: {old:#x}"));
        old
    }
    fn faa(&mut self, addr: WordAddr, add: u64) -> u64 {
        self.others();
        let word = self.memory.word(addr);
        let old = *word;
        *word = old.wrapping_add(add);
        old
    }
    fn read(&mut self, addr: WordAddr) -> u64 {
        self.others();
        *self.memory.word(addr)
    }
    fn set(&mut self, addr: WordAddr, value: u64) {
        self.others();
        *self.memory.word(addr) = value;
    }
    fn ledger(&mut self, client: ClientId, handle: Handle) -> LedgerEntry {
        self.others();
        LedgerEntry::from_bits(self.memory.entry(client, handle))
    }
    fn set_ledger(&mut self, client: ClientId, handle: Handle, entry: LedgerEntry) {
        self.memory.write_ledger(client, handle, entry.into_bits());
    }
}
