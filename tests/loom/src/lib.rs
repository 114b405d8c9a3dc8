// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words of the shared memory for `loom`: as `dlock_fabric::memory::atomic::SharedWord`, word
//! operation by word operation.
//!
//! loom treats a sequentially consistent access as acquire and release only; a fence before and
//! after each access gives it back what the language promises.
#![forbid(unsafe_code)]

use dlock_core::clock::Now;
use dlock_core::ids::{ClientId, Handle};
use dlock_core::lock::{Half, LockEntry, Op};
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Chain, Outcome, Values, Word, WordAddr, WordOp};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::operation::{Bounds, Effect, Operation, Started};
use dlock_core::wire::message::Request;
use dlock_core::wire::status::Status;
use loom::sync::atomic::{fence, AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};

/// As `dlock_fabric::memory::atomic::SharedWord`.
#[derive(Debug)]
pub struct SharedWord(AtomicU64);

impl SharedWord {
    /// A word with this value.
    pub fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }
    fn ordered<T>(access: impl FnOnce() -> T) -> T {
        fence(Ordering::SeqCst);
        let value = access();
        fence(Ordering::SeqCst);
        value
    }
    /// Compares and swaps; returns the old word.
    pub fn cas(&self, expect: u64, swap: u64) -> u64 {
        let (order, word) = (Ordering::SeqCst, &self.0);
        Self::ordered(|| match word.compare_exchange(expect, swap, order, order) {
            Ok(old) | Err(old) => old,
        })
    }
    /// Fetches and adds; returns the old word.
    pub fn faa(&self, add: u64) -> u64 {
        Self::ordered(|| self.0.fetch_add(add, Ordering::SeqCst))
    }
    /// Reads the word.
    pub fn load(&self) -> u64 {
        Self::ordered(|| self.0.load(Ordering::SeqCst))
    }
    /// Sets the word.
    pub fn store(&self, value: u64) {
        Self::ordered(|| self.0.store(value, Ordering::SeqCst));
    }
}

/// One slot, and a ledger of one entry for each of two clients (1 and 2).
#[derive(Clone, Debug)]
pub struct Shared {
    /// `w0` of the slot.
    pub word: Arc<SharedWord>,
    /// `w1` of the slot: the turn of a fair lock.
    pub turn: Arc<SharedWord>,
    /// The fence word of the slot: the lap of a fair lock.
    pub fence: Arc<SharedWord>,
    /// The ledgers.
    pub ledgers: Arc<[SharedWord; 2]>,
    /// Threads that sleep on `w1`, as in the kernel.
    sleepers: Arc<(Mutex<()>, Condvar)>,
}

impl Default for Shared {
    fn default() -> Self {
        let ledgers = [SharedWord::new(0), SharedWord::new(0)];
        let [word, turn, fence] = [(); 3].map(|()| Arc::new(SharedWord::new(0)));
        let sleepers = Arc::new((Mutex::new(()), Condvar::new()));
        Self { word, turn, fence, ledgers: Arc::new(ledgers), sleepers }
    }
}

impl Shared {
    fn ledger_of(&self, client: ClientId) -> &SharedWord {
        &self.ledgers[client.get() as usize - 1]
    }

    fn at(&self, addr: WordAddr) -> &SharedWord {
        match addr.word() {
            Word::W1 => &self.turn,
            Word::Fence => &self.fence,
            _ => &self.word,
        }
    }

    /// Executes a chain in the way of the shm executor.
    pub fn execute(&self, client: ClientId, chain: &Chain) -> Outcome {
        let mut values = Values::new();
        for word_op in chain.ops() {
            let value = match *word_op {
                WordOp::Cas { addr, expect, swap } => self.at(addr).cas(expect, swap),
                WordOp::Faa { addr, add } => self.at(addr).faa(add),
                WordOp::Read { addr } => self.at(addr).load(),
                WordOp::ReadPair { addr } => {
                    values.push(self.at(addr).load());
                    self.at(addr.next()).load()
                }
                WordOp::WriteLedger { value, .. } => {
                    self.ledger_of(client).store(value);
                    0
                }
            };
            values.push(value);
        }
        Outcome::Done(values)
    }

    /// Sleeps like a futex until it is woken, unless this half of `w1` has another value. A wake-up
    /// that never comes is a deadlock, which loom reports.
    pub fn park(&self, half: Half, value: u32) {
        let (mutex, condvar) = &*self.sleepers;
        let guard = mutex.lock().unwrap();
        let word = self.turn.load();
        let found = if half == Half::Low { word as u32 } else { (word >> 32) as u32 };
        if found == value {
            drop(condvar.wait(guard).unwrap());
        }
    }

    /// Wakes all threads that sleep on `w1`.
    pub fn wake_all(&self) {
        let (mutex, condvar) = &*self.sleepers;
        drop(mutex.lock().unwrap());
        condvar.notify_all();
    }

    /// Writes a ledger entry in the way of the shm executor.
    pub fn write_ledger(&self, client: ClientId, entry: LedgerEntry) {
        self.ledger_of(client).store(entry.into_bits());
    }
}

/// Carries out an operation as far as it needs no arbiter. At each request, `goes_on` decides
/// whether the operation continues as if the request had no answer. `None`: it did not continue.
pub fn carry_out(
    shared: &Shared,
    me: ClientId,
    entry: &mut LockEntry,
    op: Op,
    now: Now,
    mut goes_on: impl FnMut(Request) -> bool,
) -> Option<Status> {
    let mut operation = match Operation::begin(entry, op, now, Bounds::since(now.local_ns)) {
        Started::Done(result) => return Some(result.status),
        Started::Running(operation) => operation,
    };
    loop {
        match operation.next(entry) {
            Effect::Done(result) => return Some(result.status),
            Effect::Post { chain, .. } => {
                operation.outcome(entry, shared.execute(me, &chain), now);
            }
            Effect::WriteLedger(write) => shared.write_ledger(me, write),
            Effect::Ask { request, .. } => match goes_on(request) {
                true => operation.reply(entry, Err(Status::BadResponse), now),
                false => return None,
            },
            Effect::Tell(request) if !goes_on(request) => return None,
            Effect::Tell(_) | Effect::Forget | Effect::Count(_) => {}
            Effect::ReadClock => operation.clock(now),
            Effect::Pause { .. } | Effect::Park { .. } => operation.queues(entry),
            Effect::Wake { .. } => shared.wake_all(),
            Effect::Probe { .. } | Effect::Await { .. } => operation.deadline(entry, false, now),
        }
    }
}

/// The primary's access to the memory.
impl LockMemory for Shared {
    fn cas(&mut self, addr: WordAddr, expect: u64, swap: u64) -> u64 {
        self.at(addr).cas(expect, swap)
    }
    fn faa(&mut self, addr: WordAddr, add: u64) -> u64 {
        self.at(addr).faa(add)
    }
    fn read(&mut self, addr: WordAddr) -> u64 {
        self.at(addr).load()
    }
    fn wake(&mut self, _: WordAddr) {
        self.wake_all();
    }
    fn set(&mut self, addr: WordAddr, value: u64) {
        unreachable!("{addr:?} of a lock in use is set to {value}");
    }
    fn ledger(&mut self, client: ClientId, _: Handle) -> LedgerEntry {
        LedgerEntry::from_bits(self.ledger_of(client).load())
    }
    fn set_ledger(&mut self, client: ClientId, _: Handle, entry: LedgerEntry) {
        self.ledger_of(client).store(entry.into_bits());
    }
}
