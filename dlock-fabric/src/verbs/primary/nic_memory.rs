// SPDX-License-Identifier: MIT OR Apache-2.0
//! The primary's own lock memory in the NIC domain, and the ledgers of its clients.
//!
//! ```text
//!   verbs client ──NIC atomics──▶ slots ◀──NIC atomics, by the loopback── primary, for itself
//!                ──NIC writes───▶ its ledger ◀──CPU loads──               and for tcp clients
//!                                 a tcp client's ledger ◀──CPU stores──
//! ```
//! *Slots.* NIC atomics and CPU atomics are not atomic with each other. So the CPU never operates
//! on a word of a slot, not even to set it, because a client can at any time operate on any slot
//! within its registration.
//!
//! *Ledgers.* An entry has one writer: its client's device, or the primary if the client has none
//! or is fenced. So the CPU may load it. The arbiter relies on the order in which the primary sees
//! a word and a ledger: a client's chain writes its ledger entry before its addition, and a primary
//! that sees the addition must see the entry. It does, because both are operations of one queue
//! pair, which the device executes in order. The primary saw the addition by a word operation of
//! the same device, whose completion the device wrote to memory after the entry. Writes of one
//! device without relaxed ordering (which is never requested here) become visible to the CPU in
//! order, and the entry is loaded after the completion. SoftRoCE executes in the kernel, where the
//! same follows from the lock of its atomics.

use std::collections::hash_map::{Entry, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dlock_core::counters::{Told, TOLD_MAX};
use dlock_core::ids::{ClientId, Handle};
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Chain, Outcome, Values, WordAddr, WordOp, CHAIN_OPS_MAX};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::wire::status::Status;

use super::health::Health;
use super::loopback::{Loopback, LIST_MAX};
use crate::error::FabricError;
use crate::memory::mapped::SLOTS_LIMIT;
use crate::verbs::device::context::Context;
use crate::verbs::device::memory::{Pages, RemoteWord};
use crate::verbs::device::poster::RemoteOp;

/// The payload with which a thread ends when its device is lost, because an operation on the memory
/// could return no value. The thread ends by `std::panic::resume_unwind`, so that no panic is
/// printed; its outermost function catches the payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "its RDMA device does not work: {0}; is its interface up, and the device there? (rdma link)"
)]
pub struct DeviceLost(String);

impl DeviceLost {
    /// Ends the thread.
    fn raise(reason: String) -> ! {
        std::panic::resume_unwind(Box::new(Self(reason)))
    }
}

/// The ledgers of clients. The thread that admits a verbs client registers that client's ledger.
#[derive(Debug, Default)]
pub(super) struct Ledgers(Mutex<HashMap<ClientId, Arc<Pages>>>);

impl Ledgers {
    pub(super) fn of(&self, client: ClientId) -> Option<Arc<Pages>> {
        self.lock().get(&client).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClientId, Arc<Pages>>> {
        // No thread panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const _: () = assert!(CHAIN_OPS_MAX <= LIST_MAX);
/// The filler of a list behind its verbs.
const NOTHING: RemoteOp = RemoteOp::Read { word: RemoteWord { addr: 0, rkey: 0 } };

/// The slots and the ledgers; operates on the slots with the atomics of the device.
#[derive(Debug)]
pub struct NicMemory {
    loopback: Loopback,
    pages: Arc<Pages>,
    slots: u32,
    ledgers: Arc<Ledgers>,
    ledger_entries: u32,
}

impl NicMemory {
    pub(super) fn new(
        context: &Arc<Context>,
        slots: u32,
        ledger_entries: u32,
    ) -> Result<Self, FabricError> {
        let pages = Pages::new(Self::bytes(slots)?)?;
        let loopback = Loopback::new(context, &pages)?;
        let ledgers = Arc::default();
        Ok(Self { loopback, pages, slots, ledgers, ledger_entries })
    }

    fn bytes(slots: u32) -> Result<usize, FabricError> {
        let bytes = (slots as usize).checked_mul(32).filter(|_| slots <= SLOTS_LIMIT);
        bytes.ok_or(FabricError::TooManySlots { slots, max: SLOTS_LIMIT })
    }

    /// The state of the device, for other threads.
    pub(super) fn health(&self) -> &Arc<Health> {
        self.loopback.health()
    }

    /// The memory of the slots, to be registered for clients.
    pub(super) fn pages(&self) -> &Arc<Pages> {
        &self.pages
    }

    /// The ledgers, to be registered for their clients.
    pub(super) fn ledgers(&self) -> &Arc<Ledgers> {
        &self.ledgers
    }

    /// The number of slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// The number of entries of each ledger.
    pub fn ledger_entries(&self) -> u32 {
        self.ledger_entries
    }

    /// Gives a client an empty ledger, unless it has one. The system allocates the pages when they
    /// are written, or all at once when the ledger is registered for a verbs client.
    ///
    /// # Errors
    /// `Verbs` if the system has no memory.
    pub fn add_client(&mut self, client: ClientId) -> Result<(), FabricError> {
        let mut ledgers = self.ledgers.lock();
        if let Entry::Vacant(vacant) = ledgers.entry(client) {
            vacant.insert(Pages::new((self.ledger_entries as usize + TOLD_MAX) * 8)?);
        }
        Ok(())
    }

    /// Forgets the ledger of a client that was fenced.
    pub fn remove_client(&mut self, client: ClientId) {
        self.ledgers.lock().remove(&client);
    }

    /// Executes a chain for a client whose chains the primary executes. `Refused(Invalid)`, without
    /// any effect, if a word lies outside the memory, or an entry outside the client's ledger. The
    /// caller checks which words the client may touch.
    ///
    /// # Latency
    /// One doorbell and one completion for every run of verbs between ledger writes.
    pub fn execute_chain(&mut self, client: ClientId, chain: &Chain) -> Outcome {
        let exists = |word_op: &WordOp| match *word_op {
            WordOp::Cas { addr, .. } | WordOp::Faa { addr, .. } | WordOp::Read { addr } => {
                self.word(addr).is_some()
            }
            WordOp::ReadPair { addr } => {
                self.word(addr).is_some() && self.word(addr.next()).is_some()
            }
            WordOp::WriteLedger { handle, .. } => self.with_entry(client, handle, |_| ()).is_some(),
        };
        if !chain.ops().iter().all(exists) {
            return Outcome::Refused(Status::Invalid);
        }
        let mut values = Values::new();
        for run in chain.ops().chunk_by(|a, b| is_note(a) == is_note(b)) {
            if is_note(&run[0]) {
                for word_op in run {
                    let WordOp::WriteLedger { handle, value } = *word_op else { continue };
                    self.write_ledger(client, handle, value.into());
                    values.push(0);
                }
            } else {
                self.execute_run(run, &mut values);
            }
        }
        Outcome::Done(values)
    }

    /// Writes an entry of a client's ledger for a `Note` frame; `false` if the ledger has no such
    /// entry.
    pub fn write_ledger(&mut self, client: ClientId, handle: Handle, entry: LedgerEntry) -> bool {
        self.with_entry(client, handle, |word| word.store(entry.into_bits())).is_some()
    }

    /// The word itself, for a test that breaks the rule that the CPU operates on no word.
    #[cfg(test)]
    pub(in crate::verbs) fn cpu_word(&self, addr: WordAddr) -> &crate::memory::atomic::SharedWord {
        &self.pages.words()[addr.index() as usize]
    }

    fn execute_run(&mut self, run: &[WordOp], values: &mut Values) {
        let mut list = [NOTHING; LIST_MAX];
        let mut len = 0;
        for word_op in run {
            list[len] = match *word_op {
                WordOp::Cas { addr, expect, swap } => {
                    RemoteOp::Cas { word: self.own(addr), expect, swap }
                }
                WordOp::Faa { addr, add } => RemoteOp::Faa { word: self.own(addr), add },
                WordOp::Read { addr } => RemoteOp::Read { word: self.own(addr) },
                WordOp::ReadPair { addr } => {
                    list[len] = RemoteOp::Read { word: self.own(addr) };
                    len += 1;
                    RemoteOp::Read { word: self.own(addr.next()) }
                }
                // the caller has divided the chain at its ledger writes
                WordOp::WriteLedger { .. } => continue,
            };
            len += 1;
        }
        let found = self.run(&list[..len]);
        found[..len].iter().for_each(|&value| values.push(value));
    }

    fn run(&mut self, verbs: &[RemoteOp]) -> [u64; LIST_MAX] {
        match self.loopback.run(verbs) {
            Ok(values) => values,
            Err(reason) => DeviceLost::raise(reason),
        }
    }

    fn word(&self, addr: WordAddr) -> Option<RemoteWord> {
        // the last page may have room for more slots
        let exists = addr.slot().0 < self.slots;
        exists.then(|| self.loopback.slots().word(addr.index().into())).flatten()
    }

    /// The word at this address, which lies in a slot that the primary gave out.
    fn own(&self, addr: WordAddr) -> RemoteWord {
        match self.word(addr) {
            Some(word) => word,
            None => panic!("the primary used {addr:?} of a memory of {} slots", self.slots),
        }
    }

    fn with_entry<T>(
        &self,
        client: ClientId,
        handle: Handle,
        f: impl FnOnce(&crate::memory::atomic::SharedWord) -> T,
    ) -> Option<T> {
        if handle.0 >= self.ledger_entries {
            return None;
        }
        self.ledgers.lock().get(&client)?.words().get(handle.0 as usize).map(f)
    }
}

fn is_note(word_op: &WordOp) -> bool {
    matches!(word_op, WordOp::WriteLedger { .. })
}

impl LockMemory for NicMemory {
    fn cas(&mut self, addr: WordAddr, expect: u64, swap: u64) -> u64 {
        let word = self.own(addr);
        self.run(&[RemoteOp::Cas { word, expect, swap }])[0]
    }
    fn faa(&mut self, addr: WordAddr, add: u64) -> u64 {
        let word = self.own(addr);
        self.run(&[RemoteOp::Faa { word, add }])[0]
    }
    fn read(&mut self, addr: WordAddr) -> u64 {
        let word = self.own(addr);
        self.run(&[RemoteOp::Read { word }])[0]
    }
    fn set(&mut self, addr: WordAddr, value: u64) {
        let word = self.own(addr);
        self.run(&[RemoteOp::Write { word, value }]);
    }
    fn set_all(&mut self, words: &[(WordAddr, u64)]) {
        for words in words.chunks(LIST_MAX) {
            let mut list = [NOTHING; LIST_MAX];
            for (to, &(addr, value)) in list.iter_mut().zip(words) {
                *to = RemoteOp::Write { word: self.own(addr), value };
            }
            self.run(&list[..words.len()]);
        }
    }
    fn ledger(&mut self, client: ClientId, handle: Handle) -> LedgerEntry {
        let entry = self.with_entry(client, handle, |word| word.load().into());
        entry.unwrap_or_default()
    }
    /// Reads the client's counts, which lie behind the entries.
    fn told(&mut self, client: ClientId) -> Told {
        let ledgers = self.ledgers.lock();
        let counts = ledgers
            .get(&client)
            .and_then(|ledger| ledger.words().get(self.ledger_entries as usize..)?.get(..TOLD_MAX));
        counts.map_or([0; TOLD_MAX], |words| std::array::from_fn(|place| words[place].load()))
    }
    fn set_ledger(&mut self, client: ClientId, handle: Handle, entry: LedgerEntry) {
        self.with_entry(client, handle, |word| word.store(entry.into_bits()));
    }
}
