// SPDX-License-Identifier: MIT OR Apache-2.0
//! The primary's own lock memory in the CPU domain, and the ledgers of its clients.
//!
//! The steps for one client: [`add_client`](CpuMemory::add_client), then for shm
//! [`share`](CpuMemory::share) at each attach. To evict it: [`revoke`](CpuMemory::revoke), wait
//! until [`detached`](CpuMemory::detached) or its process is gone, undo what it holds, and
//! [`remove_client`](CpuMemory::remove_client).

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};

use dlock_core::counters::{Told, TOLD_MAX};
use dlock_core::ids::{ClientId, Handle};
use dlock_core::lock::Half;
use dlock_core::memory::exec::LockMemory;
use dlock_core::memory::word_op::{Chain, Outcome, Values, WordAddr, WordOp};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::wire::status::Status;

use crate::error::FabricError;
use crate::memory::atomic::SharedWord;
use crate::memory::mapped::{LedgerMemory, SlotMemory};
use crate::memory::owner_mutex::OwnerMutex;

/// Slots and ledgers; operates on them with CPU atomics, as shm clients do.
#[derive(Debug)]
pub struct CpuMemory {
    /// Dropped before the slots, because the mutex lies in their header.
    owner: Option<OwnerMutex>,
    slots: SlotMemory,
    ledgers: HashMap<ClientId, Ledger>,
    ledger_entries: u32,
}

#[derive(Debug)]
struct Ledger {
    memory: LedgerMemory,
    /// How often the ledger was handed out to be mapped.
    attaches: u64,
    /// Whether the ledger was handed out by a descriptor that does not show when it is closed
    /// ([`lend`](LedgerMemory::lend) failed).
    is_given: bool,
    /// Entries from this one on were never written by this primary.
    written: u32,
}

impl Ledger {
    fn writes(&mut self, handle: Handle) {
        self.written = self.written.max(handle.0.saturating_add(1));
    }
}

/// The descriptors that an shm client maps, in the order in which they follow `Attached`.
#[derive(Debug)]
pub struct Shared<'a> {
    /// The header of the slot memory, which clients can only read.
    pub header: BorrowedFd<'a>,
    /// The slots.
    pub slots: BorrowedFd<'a>,
    /// The client's ledger. It counts as mapped until this is dropped.
    pub ledger: OwnedFd,
}

impl CpuMemory {
    /// New memory of `slots` slots; every client's ledger has `ledger_entries` entries.
    ///
    /// # Errors
    /// `TooManySlots`; `Memory` if the system has none.
    pub fn create(slots: u32, ledger_entries: u32) -> Result<Self, FabricError> {
        let slots = SlotMemory::create(slots)?;
        Ok(Self { owner: None, slots, ledgers: HashMap::new(), ledger_entries })
    }

    /// Makes the calling thread the one that serves this memory; it must also drop it. If the
    /// thread or its process ends otherwise, shm clients are refused with `BadResponse` from then
    /// on.
    ///
    /// # Errors
    /// `Memory` if the system cannot watch a thread.
    pub fn serve(&mut self) -> Result<(), FabricError> {
        self.owner = Some(OwnerMutex::lock(&self.slots).map_err(|source| FabricError::Memory {
            what: "watch over the thread that serves shared memory",
            bytes: 0,
            source,
        })?);
        Ok(())
    }

    /// Slots of the memory.
    pub fn slots(&self) -> u32 {
        self.slots.slots()
    }

    /// Entries of every ledger.
    pub fn ledger_entries(&self) -> u32 {
        self.ledger_entries
    }

    /// Gives a client an empty ledger, unless it has one. Its pages are allocated when written.
    ///
    /// # Errors
    /// `Memory` if the system has none.
    pub fn add_client(&mut self, client: ClientId) -> Result<(), FabricError> {
        if !self.ledgers.contains_key(&client) {
            let memory = LedgerMemory::create_private(self.ledger_entries)?;
            let ledger = Ledger { memory, attaches: 0, is_given: false, written: 0 };
            self.ledgers.insert(client, ledger);
        }
        Ok(())
    }

    /// Forgets the ledger of a client that is fenced: later writes of the client are not seen.
    pub fn remove_client(&mut self, client: ClientId) {
        if let Some(ledger) = self.ledgers.remove(&client) {
            ledger.memory.set_gate(Some(Status::ClientRemoved));
        }
    }

    /// The descriptors of the memory for an shm client that attaches. The client's chains are
    /// permitted, and it gets a ledger if it has none.
    ///
    /// # Errors
    /// `Memory` if the system has no memory or descriptors.
    pub fn share(&mut self, client: ClientId) -> Result<Shared<'_>, FabricError> {
        self.add_client(client)?;
        let entries = self.ledger_entries;
        let refused = FabricError::MemoryRefused("it has no descriptor");
        // The client was added above if it was not known.
        let Some(ledger) = self.ledgers.get_mut(&client) else { return Err(refused) };
        if ledger.memory.fd().is_none() {
            // No process has the old ledger mapped, so it does not change while it is copied.
            let memory = LedgerMemory::create(entries)?;
            memory.copy_from(&ledger.memory, ledger.written);
            ledger.memory = memory;
        }
        ledger.memory.set_gate(None);
        let (Some([header, slots]), Some(fd)) = (self.slots.fds(), ledger.memory.fd()) else {
            return Err(refused);
        };
        let lent = ledger.memory.lend().or_else(|_| {
            ledger.is_given = true;
            fd.try_clone_to_owned()
        });
        let bytes = 0;
        let failed = |source| FabricError::Memory { what: "open a ledger anew", bytes, source };
        let lent = lent.map_err(failed)?;
        ledger.attaches += 1;
        Ok(Shared { header, slots, ledger: lent })
    }

    /// Records that the descriptors of the last [`share`](Self::share) were not sent, so that the
    /// ledger does not count as mapped.
    pub fn unshare(&mut self, client: ClientId) {
        if let Some(ledger) = self.ledgers.get_mut(&client) {
            ledger.attaches = ledger.attaches.saturating_sub(1);
        }
    }

    /// Refuses this client's chains with this status from now on. This is no fence: a thread of the
    /// client that has checked the gate before may finish its chain.
    pub fn revoke(&mut self, client: ClientId, status: Status) {
        if let Some(ledger) = self.ledgers.get(&client) {
            ledger.memory.set_gate(Some(status));
        }
    }

    /// Refuses the chains of all shm clients with this status (in recovery, or when the primary
    /// stops), or permits them. Ledger writes are not refused. This is no fence either.
    pub fn set_gate(&mut self, status: Option<Status>) {
        self.slots.set_gate(status);
    }

    /// Whether no thread of this client can touch the memory any more, even if its process lives:
    /// the client never mapped it, has unmapped it in order, or executes another program. True for
    /// unknown clients.
    pub fn detached(&self, client: ClientId) -> bool {
        self.ledgers.get(&client).is_none_or(|ledger| {
            let has_said = ledger.memory.detaches() >= ledger.attaches;
            has_said || !ledger.is_given && !ledger.memory.is_lent()
        })
    }

    /// Executes a chain for a client; `Refused(Invalid)` without any effect if a word lies outside
    /// the memory, or an entry outside the client's ledger. The caller checks which words the
    /// client may touch.
    pub fn execute_chain(&mut self, client: ClientId, chain: &Chain) -> Outcome {
        let mut ledger = None;
        for word_op in chain.ops() {
            if let WordOp::WriteLedger { handle, .. } = *word_op {
                if let Some(written) = self.ledgers.get_mut(&client) {
                    written.writes(handle);
                }
                ledger = self.ledgers.get(&client).map(|ledger| &ledger.memory);
            }
        }
        let mut outcome = Outcome::Unknown;
        execute(&self.slots, ledger, chain, &mut outcome);
        outcome
    }

    /// Writes an entry of a client's ledger for a `Note` frame of a tcp client; `false` if the
    /// ledger has no such entry.
    pub fn write_ledger(&mut self, client: ClientId, handle: Handle, entry: LedgerEntry) -> bool {
        let Some(ledger) = self.ledgers.get_mut(&client) else { return false };
        ledger.writes(handle);
        match ledger.memory.entry(handle) {
            Some(word) => word.store(entry.into_bits()),
            None => return false,
        }
        true
    }

    /// The word at an address of a slot that the primary gave out.
    #[inline]
    fn own(&self, addr: WordAddr) -> &SharedWord {
        match self.slots.word(addr) {
            Some(word) => word,
            None => panic!("the primary used {addr:?} of a memory of {} slots", self.slots()),
        }
    }

    fn entry(&self, client: ClientId, handle: Handle) -> Option<&SharedWord> {
        self.ledgers.get(&client)?.memory.entry(handle)
    }
}

impl Drop for CpuMemory {
    /// Closes the gate: clients may outlive the primary, and must not go on without an arbiter.
    fn drop(&mut self) {
        self.slots.set_gate(Some(Status::BadResponse));
        self.owner = None;
    }
}

impl LockMemory for CpuMemory {
    fn cas(&mut self, addr: WordAddr, expect: u64, swap: u64) -> u64 {
        self.own(addr).cas(expect, swap)
    }
    fn faa(&mut self, addr: WordAddr, add: u64) -> u64 {
        self.own(addr).faa(add)
    }
    fn read(&mut self, addr: WordAddr) -> u64 {
        self.own(addr).load()
    }
    fn set(&mut self, addr: WordAddr, value: u64) {
        self.own(addr).store(value);
    }
    fn wake(&mut self, addr: WordAddr) {
        self.own(addr).wake_all(Half::High);
    }
    fn ledger(&mut self, client: ClientId, handle: Handle) -> LedgerEntry {
        self.entry(client, handle).map_or(LedgerEntry::new(), |word| word.load().into())
    }
    fn told(&mut self, client: ClientId) -> Told {
        self.ledgers.get(&client).map_or([0; TOLD_MAX], |ledger| ledger.memory.told())
    }
    fn set_ledger(&mut self, client: ClientId, handle: Handle, entry: LedgerEntry) {
        if let Some(word) = self.entry(client, handle) {
            word.store(entry.into_bits());
        }
    }
}

/// Executes a chain on memory of this process: all of it, or nothing if any address is wrong.
///
/// The outcome is built where it will be read: a copy of what was just written in smaller pieces
/// costs more than the atomics.
#[inline(always)]
pub(crate) fn execute(
    slots: &SlotMemory,
    ledger: Option<&LedgerMemory>,
    chain: &Chain,
    outcome: &mut Outcome,
) {
    // Most chains are one word operation, whose execution checks the address.
    if let [word_op @ (WordOp::Cas { .. }
    | WordOp::Faa { .. }
    | WordOp::Read { .. }
    | WordOp::WriteLedger { .. })] = chain.ops()
    {
        let value = execute_word_op(slots, ledger, word_op);
        *outcome = const { Outcome::Done(Values::new()) };
        match (value, &mut *outcome) {
            (Some(value), Outcome::Done(values)) => values.push(value),
            _ => *outcome = Outcome::Refused(Status::Invalid),
        }
    } else {
        execute_many(slots, ledger, chain, outcome);
    }
}

#[inline(always)]
fn execute_many(
    slots: &SlotMemory,
    ledger: Option<&LedgerMemory>,
    chain: &Chain,
    outcome: &mut Outcome,
) {
    let exists = |word_op: &WordOp| match *word_op {
        WordOp::Cas { addr, .. } | WordOp::Faa { addr, .. } | WordOp::Read { addr } => {
            slots.word(addr).is_some()
        }
        WordOp::ReadPair { addr } => {
            slots.word(addr).is_some() && slots.word(addr.next()).is_some()
        }
        WordOp::WriteLedger { handle, .. } => {
            ledger.is_some_and(|ledger| ledger.entry(handle).is_some())
        }
    };
    if !chain.ops().iter().all(exists) {
        *outcome = Outcome::Refused(Status::Invalid);
        return;
    }
    *outcome = const { Outcome::Done(Values::new()) };
    let Outcome::Done(values) = outcome else { return };
    values.fill(|values| {
        let mut len = 0;
        for word_op in chain.ops() {
            // Every address was checked above, and memory does not shrink.
            values[len] = execute_word_op(slots, ledger, word_op).unwrap_or(0);
            len += 1;
            if let WordOp::ReadPair { addr } = *word_op {
                values[len] = slots.word(addr.next()).map_or(0, SharedWord::load);
                len += 1;
            }
        }
        len
    });
}

/// Executes a word operation; `None`, and no effect, if its address is wrong.
#[inline]
pub(crate) fn execute_word_op(
    slots: &SlotMemory,
    ledger: Option<&LedgerMemory>,
    word_op: &WordOp,
) -> Option<u64> {
    match *word_op {
        WordOp::Cas { addr, expect, swap } => slots.word(addr).map(|word| word.cas(expect, swap)),
        WordOp::Faa { addr, add } => slots.word(addr).map(|word| word.faa(add)),
        WordOp::Read { addr } | WordOp::ReadPair { addr } => slots.word(addr).map(SharedWord::load),
        WordOp::WriteLedger { handle, value } => {
            ledger.and_then(|ledger| ledger.entry(handle)).map(|entry| {
                entry.store(value);
                0
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::ids::Slot;
    use dlock_core::memory::word_op::Word;
    use dlock_core::memory::words::LedgerState;

    fn client(n: u32) -> ClientId {
        ClientId::new(n).unwrap()
    }

    #[test]
    fn a_chain_with_one_wrong_address_has_no_effect() {
        let mut memory = CpuMemory::create(2, 4).unwrap();
        memory.add_client(client(1)).unwrap();
        let good = WordAddr::new(Slot(0), Word::W0);
        let faa = Chain::one(WordOp::Faa { addr: good, add: 1 });
        for wrong in [
            WordOp::Read { addr: WordAddr::from_index(8) },
            WordOp::WriteLedger { handle: Handle(4), value: 1 },
        ] {
            let outcome = memory.execute_chain(client(1), &faa.then(wrong));
            assert_eq!(outcome, Outcome::Refused(Status::Invalid));
        }
        let note = WordOp::WriteLedger { handle: Handle(0), value: 1 };
        let stranger = memory.execute_chain(client(2), &faa.then(note));
        assert_eq!(stranger, Outcome::Refused(Status::Invalid));
        assert_eq!(memory.read(good), 0);
    }

    #[test]
    fn a_ledger_keeps_its_entries_when_it_is_shared() {
        let mut memory = CpuMemory::create(1, 1_000).unwrap();
        memory.add_client(client(1)).unwrap();
        let entry = LedgerEntry::new().with_state(LedgerState::HeldShared);
        assert!(memory.write_ledger(client(1), Handle(999), entry));
        assert!(!memory.write_ledger(client(1), Handle(1_000), entry));
        memory.add_client(client(2)).unwrap();
        let note = WordOp::WriteLedger { handle: Handle(7), value: entry.into_bits() };
        memory.execute_chain(client(2), &Chain::one(note));
        assert!(memory.detached(client(1)), "nobody has mapped it");
        let _lent = memory.share(client(1)).unwrap().ledger;
        assert_eq!(memory.ledger(client(1), Handle(999)), entry);
        memory.share(client(2)).unwrap();
        assert_eq!(memory.ledger(client(2), Handle(7)), entry, "a chain wrote it");
        assert!(!memory.detached(client(1)));
        memory.unshare(client(1));
        assert!(memory.detached(client(1)));
        memory.clear_ledger(client(1), Handle(999));
        assert_eq!(memory.ledger(client(1), Handle(999)), LedgerEntry::new());
    }

    #[test]
    fn memory_counts_as_mapped_while_a_descriptor_or_a_mapping_of_it_is_left() {
        let mut memory = CpuMemory::create(1, 1).unwrap();
        let lent = memory.share(client(1)).unwrap().ledger;
        let again = memory.share(client(1)).unwrap().ledger;
        assert!(!memory.detached(client(1)));
        // opening the ledger closes its descriptor, and leaves the mapping
        let mapped = LedgerMemory::open(lent, 1).unwrap();
        drop(again);
        assert!(!memory.detached(client(1)), "it is mapped");
        // unmaps without a call of `detach`, as a process does that executes another program
        drop(mapped);
        assert!(memory.detached(client(1)));
    }

    #[test]
    fn an_unknown_client_has_an_empty_ledger() {
        let mut memory = CpuMemory::create(1, 1).unwrap();
        assert_eq!(memory.ledger(client(7), Handle(0)), LedgerEntry::new());
        assert!(!memory.write_ledger(client(7), Handle(0), LedgerEntry::new()));
        assert!(memory.detached(client(7)));
    }
}
