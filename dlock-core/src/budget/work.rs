// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work units: the unit in which the primary's work is counted, shared and bounded.
//!
//! One unit is one access to lock memory, or one record visited. The primary counts units, not
//! time: a unit takes some 0.1 µs in CPU memory, and a round trip in device memory.

use crate::counters::Told;
use crate::ids::{ClientId, Handle};
use crate::limits::CLIENTS_MAX;
use crate::memory::exec::LockMemory;
use crate::memory::word_op::{Chain, WordAddr};
use crate::memory::words::LedgerEntry;

/// The work units of one client's turn: about one batch of 31 single word operations.
pub const QUANTUM: u32 = 64;
/// The work units of handling a frame or a control request, without the operations that it carries.
pub const FRAME_WORK: u32 = 4;
/// How many waits of a read-write lock are granted before other work comes; the lock is handled
/// again at once.
pub const GRANTS_PER_LOOK: usize = 32;
/// The most work units on one lock or object in one undivided step, except for fair locks: the
/// records of all clients, their places in the queue, and their ledger entries, read twice.
pub const ITEM_WORK_MAX: u32 = 6 * CLIENTS_MAX as u32;

/// The work units of executing a chain.
pub fn of_chain(chain: &Chain) -> u32 {
    1 + chain.ops().len() as u32
}

/// Lock memory that counts accesses to it, and the records that its user reports as visited.
pub struct Metered<'a> {
    mem: &'a mut dyn LockMemory,
    work: u32,
}

impl<'a> Metered<'a> {
    /// A meter for this memory, at 0.
    pub fn new(mem: &'a mut dyn LockMemory) -> Self {
        Self { mem, work: 0 }
    }
    /// The work counted so far.
    pub fn work(&self) -> u32 {
        self.work
    }
    /// Counts records that were visited.
    pub fn visited(&mut self, records: usize) {
        self.work = self.work.saturating_add(u32::try_from(records).unwrap_or(u32::MAX));
    }
}

impl LockMemory for Metered<'_> {
    fn cas(&mut self, addr: WordAddr, expect: u64, swap: u64) -> u64 {
        self.visited(1);
        self.mem.cas(addr, expect, swap)
    }
    fn faa(&mut self, addr: WordAddr, add: u64) -> u64 {
        self.visited(1);
        self.mem.faa(addr, add)
    }
    fn read(&mut self, addr: WordAddr) -> u64 {
        self.visited(1);
        self.mem.read(addr)
    }
    fn set(&mut self, addr: WordAddr, value: u64) {
        self.visited(1);
        self.mem.set(addr, value);
    }
    fn set_all(&mut self, words: &[(WordAddr, u64)]) {
        self.visited(words.len());
        self.mem.set_all(words);
    }
    fn wake(&mut self, addr: WordAddr) {
        self.visited(1);
        self.mem.wake(addr);
    }
    fn ledger(&mut self, client: ClientId, handle: Handle) -> LedgerEntry {
        self.visited(1);
        self.mem.ledger(client, handle)
    }
    fn told(&mut self, client: ClientId) -> Told {
        self.visited(1);
        self.mem.told(client)
    }
    fn set_ledger(&mut self, client: ClientId, handle: Handle, entry: LedgerEntry) {
        self.visited(1);
        self.mem.set_ledger(client, handle, entry);
    }
}
