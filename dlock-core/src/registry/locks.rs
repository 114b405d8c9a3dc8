// SPDX-License-Identifier: MIT OR Apache-2.0
//! The locks that exist, and the clients that have got them.
//!
//! ```text
//!   first get ──▶ exists ──▶ last reference dropped ──▶ destroyed: its slot is retired,
//!                                                       and freed by the caller
//! ```
//! The caller frees the slot of a destroyed lock (`Slots::free`) after it has dropped everything
//! else that it keeps under that slot, and before the next lock is created.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::handles::{HandleEntry, What};
use super::ids::Ids;
use super::{Clients, Tables};
use crate::ids::{ClientId, Handle, LockId, Slot};
use crate::memory::word_op::{Word, WordAddr};
use crate::memory::words::{TakenWord, TurnWord};
use crate::planted::{self, Bug};
use crate::token::{fence_above, LEAP_MAX};
use crate::wire::control::{LockDesc, LockGrant};
use crate::wire::message::LockType;
use crate::wire::status::Status;

/// A lock.
#[derive(Debug)]
pub struct LockRecord {
    id: LockId,
    name: Arc<[u8]>,
    lock_type: LockType,
    lease_s: u32,
    slot: Slot,
    tokens: bool,
    refs: Vec<(ClientId, Handle)>,
}

impl LockRecord {
    /// The id of the lock, the same for all clients.
    pub fn id(&self) -> LockId {
        self.id
    }
    /// The name of the lock.
    pub fn name(&self) -> &[u8] {
        &self.name
    }
    /// The type of the lock.
    pub fn lock_type(&self) -> LockType {
        self.lock_type
    }
    /// The lease that the first user asked for, in seconds; the primary never enforces it.
    pub fn lease_s(&self) -> u32 {
        self.lease_s
    }
    /// The slot of the lock's words.
    pub fn slot(&self) -> Slot {
        self.slot
    }
    /// Whether a client that has got the lock, or had got it, wants [tokens](crate::token).
    pub fn tokens(&self) -> bool {
        self.tokens
    }
    /// The clients that have got the lock, each with its handle; never empty, in no order.
    pub fn refs(&self) -> &[(ClientId, Handle)] {
        &self.refs
    }
}

/// A reference that was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the slot of a destroyed lock must be freed"]
pub struct Released {
    /// The lock.
    pub lock: LockId,
    /// The client's handle of the lock.
    pub handle: Handle,
    /// The slot of the lock's words.
    pub slot: Slot,
    /// Whether this was the last reference: then the lock is gone, and its retired slot has to be
    /// freed.
    pub destroyed: bool,
}

/// All locks.
#[derive(Debug)]
pub struct Locks {
    by_id: BTreeMap<LockId, LockRecord>,
    /// A tree, because a hash table sometimes moves all of its entries in one insertion.
    by_name: BTreeMap<Arc<[u8]>, LockId>,
    /// Indexed by the number of the slot.
    by_slot: Vec<Option<LockId>>,
    ids: Ids,
    locks_max: usize,
    /// The highest fence counter of the locks that were destroyed: a new lock of the same name must
    /// go on above it.
    fence_floor: u64,
    /// Whether a client has ever wanted tokens of a lock.
    gives_tokens: bool,
}

impl Locks {
    /// An empty table with room for `locks_max` locks, in a memory of `slots` slots.
    pub fn new(locks_max: usize, slots: usize) -> Self {
        Self {
            by_id: BTreeMap::new(),
            by_name: BTreeMap::new(),
            by_slot: vec![None; slots],
            ids: Ids::new(),
            locks_max,
            fence_floor: 0,
            gives_tokens: false,
        }
    }

    /// Whether a client has ever wanted tokens of a lock.
    pub fn gives_tokens(&self) -> bool {
        self.gives_tokens
    }

    /// Sets the even number below which all tokens of earlier incarnations are.
    pub fn starts_above(&mut self, fence_floor: u64) {
        self.fence_floor = fence_floor;
    }

    /// Gives the client a reference to the lock of this name; creates the lock if it does not
    /// exist.
    ///
    /// # Errors
    /// `Error` if the lock has another type; `ServerNoResource` if there is no room for the lock or
    /// the handle; `ClientRemoved` if the client is not known. Nothing changes on errors.
    pub fn get(
        &mut self,
        t: &mut Tables<'_>,
        client: ClientId,
        desc: &LockDesc,
    ) -> Result<LockGrant, Status> {
        self.get_or_create(t, client, desc, None)
    }

    /// Like [`get`](Self::get), for a claim in recovery: a new lock gets the id `wished` if that is
    /// positive and free.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn insert_claimed(
        &mut self,
        t: &mut Tables<'_>,
        client: ClientId,
        wished: LockId,
        desc: &LockDesc,
    ) -> Result<LockGrant, Status> {
        self.get_or_create(t, client, desc, Some(wished))
    }

    /// Drops a client's reference.
    ///
    /// # Errors
    /// `Error` if the client has no reference to the lock.
    pub fn release(
        &mut self,
        t: &mut Tables<'_>,
        client: ClientId,
        lock: LockId,
    ) -> Result<Released, Status> {
        let slot = self.by_id.get(&lock).ok_or(Status::Error)?.slot;
        let handle = t.clients.get(client).and_then(|c| c.handle_of(slot)).ok_or(Status::Error)?;
        Ok(self.drop_handle(t, client, handle))
    }

    /// Drops all references of a client.
    #[cfg(test)]
    pub fn drop_client(&mut self, t: &mut Tables<'_>, client: ClientId) -> Vec<Released> {
        let Some(known) = t.clients.get(client) else { return Vec::new() };
        let handles = known.handles().filter(|(_, e)| matches!(e.what, What::Lock(..)));
        let handles: Vec<Handle> = handles.map(|(handle, _)| handle).collect();
        handles.into_iter().map(|handle| self.drop_handle(t, client, handle)).collect()
    }

    /// The lock of this id.
    pub fn by_id(&self, lock: LockId) -> Option<&LockRecord> {
        self.by_id.get(&lock)
    }
    /// The lock in this slot.
    pub fn by_slot(&self, slot: Slot) -> Option<&LockRecord> {
        let lock = (*self.by_slot.get(slot.0 as usize)?)?;
        self.by_id.get(&lock)
    }
    /// The lock of this name.
    pub fn by_name(&self, name: &[u8]) -> Option<&LockRecord> {
        self.by_id.get(self.by_name.get(name)?)
    }
    /// The clients that have got the lock in this slot, each with its handle.
    pub fn refs(&self, slot: Slot) -> &[(ClientId, Handle)] {
        self.by_slot(slot).map_or(&[], LockRecord::refs)
    }
    /// All locks in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &LockRecord> + '_ {
        self.by_id.values()
    }
    /// The locks with ids above this one, in order.
    pub fn after(&self, lock: LockId) -> impl Iterator<Item = &LockRecord> + '_ {
        let above = (Bound::Excluded(lock), Bound::Unbounded);
        self.by_id.range(above).map(|(_, record)| record)
    }
    /// How many locks there are.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }
    /// Whether there is no lock.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    fn get_or_create(
        &mut self,
        t: &mut Tables<'_>,
        client: ClientId,
        desc: &LockDesc,
        wished: Option<LockId>,
    ) -> Result<LockGrant, Status> {
        let has_room = t.clients.has_lock_room(client)?;
        let known = self.by_name(&desc.name);
        if let Some(record) = known {
            let lock = record.id;
            if record.lock_type != desc.lock_type {
                return Err(Status::Error);
            }
            let slot = record.slot;
            if let Some(handle) = t.clients.get(client).and_then(|c| c.handle_of(slot)) {
                let word = t.mem.read(WordAddr::new(slot, Word::W0));
                let tokens = self.wants_tokens(lock, desc.tokens);
                return Ok(LockGrant { lock, handle, slot, word, already: true, tokens });
            }
        }
        if !has_room {
            return Err(Status::ServerNoResource);
        }
        let lock = match known {
            Some(record) => record.id,
            None => self.create(t, desc, wished).ok_or(Status::ServerNoResource)?,
        };
        // The lock was just found or created.
        let tokens = self.wants_tokens(lock, desc.tokens);
        let record = self.by_id.get_mut(&lock).expect("the lock");
        let slot = record.slot;
        let what = What::Lock(lock, record.lock_type);
        let handle = t.clients.add_handle(client, HandleEntry { slot, what });
        t.mem.clear_ledger(client, handle);
        record.refs.push((client, handle));
        let word = t.mem.read(WordAddr::new(slot, Word::W0));
        Ok(LockGrant { lock, handle, slot, word, already: false, tokens })
    }

    /// Creates a lock without references; the caller adds the first one. `None`: there is no room.
    fn create(
        &mut self,
        t: &mut Tables<'_>,
        desc: &LockDesc,
        wished: Option<LockId>,
    ) -> Option<LockId> {
        if self.by_id.len() >= self.locks_max {
            return None;
        }
        let id = self.ids.pick(wished.map(|l| l.0), &desc.name)?;
        let (slot, _) = t.slots.give(t.mem, 0, self.fence_floor)?;
        if desc.lock_type == LockType::Fair {
            t.mem.set(WordAddr::new(slot, Word::W0), TakenWord::START.into_bits());
            t.mem.set(WordAddr::new(slot, Word::W1), TurnWord::START.into_bits());
        }
        self.ids.uses(id);
        let (id, name) = (LockId(id), Arc::from(desc.name.as_slice()));
        self.by_name.insert(Arc::clone(&name), id);
        let (lock_type, lease_s) = (desc.lock_type, desc.lease_s);
        self.by_slot[slot.0 as usize] = Some(id);
        let (tokens, refs) = (desc.tokens, Vec::new());
        let record = LockRecord { id, name, lock_type, lease_s, slot, tokens, refs };
        self.by_id.insert(id, record);
        Some(id)
    }

    /// Records that a client wants tokens of a lock (`wants`), which then gives them until it is
    /// destroyed. Returns whether it gives them.
    fn wants_tokens(&mut self, lock: LockId, wants: bool) -> bool {
        self.gives_tokens |= wants;
        let record = self.by_id.get_mut(&lock);
        record.is_some_and(|record| {
            record.tokens |= wants;
            record.tokens
        })
    }

    /// Drops the reference of a client, given its handle.
    ///
    /// # Panics
    /// If the handle is not one of a lock.
    pub(crate) fn drop_handle(
        &mut self,
        t: &mut Tables<'_>,
        client: ClientId,
        handle: Handle,
    ) -> Released {
        let HandleEntry { slot, what } = t.clients.remove_handle(client, handle);
        let What::Lock(lock, _) = what else { panic!("{handle:?} is no lock's") };
        // A handle and the reference in its lock are made and dropped together.
        let record = self.by_id.get_mut(&lock).expect("a lock with a handle");
        let at = record.refs.iter().position(|&r| r == (client, handle));
        record.refs.swap_remove(at.expect("a reference with a handle"));
        let last = usize::from(planted::is(Bug::SlotReusedEarly));
        let destroyed = record.refs.len() <= last;
        if destroyed {
            self.destroy(t, lock);
        }
        Released { lock, handle, slot, destroyed }
    }

    fn destroy(&mut self, t: &mut Tables<'_>, lock: LockId) {
        if let Some(record) = self.by_id.remove(&lock) {
            self.ids.frees(lock.0);
            self.by_name.remove(&record.name);
            self.by_slot[record.slot.0 as usize] = None;
            let [fence, w0] =
                [Word::Fence, Word::W0].map(|word| t.mem.read(WordAddr::new(record.slot, word)));
            let above = fence_above(record.lock_type, fence, w0);
            // a number far above was not reached by counting: the word is damaged
            if above.saturating_sub(self.fence_floor) <= LEAP_MAX {
                self.fence_floor = self.fence_floor.max(above);
            }
            t.slots.retire(t.mem, record.slot);
        }
    }

    /// See [`Registry::assert_consistent`](super::Registry::assert_consistent).
    pub(super) fn assert_consistent(&self, clients: &Clients, handles: usize) {
        assert!(self.by_id.len() <= self.locks_max);
        assert_eq!(self.by_name.len(), self.by_id.len());
        assert!(self.ids.are(self.by_id.keys().map(|id| id.0)));
        assert_eq!(self.by_slot.iter().flatten().count(), self.by_id.len());
        let mut refs = 0;
        for (&id, record) in &self.by_id {
            assert!(id.0 > 0 && id == record.id);
            assert_eq!(self.by_name(&record.name).map(LockRecord::id), Some(id));
            assert_eq!(self.by_slot(record.slot).map(LockRecord::id), Some(id));
            assert!(!record.refs.is_empty(), "{id:?} has no reference");
            for &(client, handle) in &record.refs {
                let entry = clients.get(client).and_then(|c| c.handle(handle));
                let what = What::Lock(id, record.lock_type);
                assert_eq!(entry, Some(HandleEntry { slot: record.slot, what }));
            }
            refs += record.refs.len();
        }
        // There are as many references as handles, and each reference has its handle: so no
        // reference is listed twice.
        assert_eq!(refs, handles);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Memory;
    use super::super::Registry;
    use super::*;
    use crate::memory::exec::LockMemory;
    use crate::memory::words::LedgerEntry;

    struct World {
        reg: Registry,
        mem: Memory,
    }

    impl World {
        /// A registry with the clients 1 to 3, and room for `locks_max` locks.
        fn new(locks_max: usize) -> Self {
            let mut reg = Registry::new(3, locks_max, 2);
            for raw in 1..=3 {
                reg.clients.add(client(raw)).unwrap();
            }
            Self { reg, mem: Memory::default() }
        }
        fn get(&mut self, raw: u32, desc: &LockDesc) -> Result<LockGrant, Status> {
            let (mut t, locks, _) = self.reg.split(&mut self.mem);
            locks.get(&mut t, client(raw), desc)
        }
        fn claim(&mut self, raw: u32, wished: i32, desc: &LockDesc) -> Result<LockGrant, Status> {
            let (mut t, locks, _) = self.reg.split(&mut self.mem);
            locks.insert_claimed(&mut t, client(raw), LockId(wished), desc)
        }
        fn release(&mut self, raw: u32, lock: LockId) -> Result<Released, Status> {
            let (mut t, locks, _) = self.reg.split(&mut self.mem);
            let released = locks.release(&mut t, client(raw), lock)?;
            if released.destroyed {
                t.slots.free(released.slot);
            }
            self.reg.assert_consistent();
            Ok(released)
        }
    }

    fn client(raw: u32) -> ClientId {
        ClientId::new(raw).unwrap()
    }

    fn desc(name: &str, lock_type: LockType) -> LockDesc {
        LockDesc { name: name.as_bytes().to_vec(), lock_type, lease_s: 5, tokens: false }
    }

    #[test]
    fn a_name_is_one_lock_for_all_clients() {
        let mut w = World::new(9);
        let d = desc("lock desc 1", LockType::Atomic);
        let a = w.get(1, &d).unwrap();
        assert_eq!((a.lock, a.handle, a.word), (LockId(1_252_963_582), Handle(0), 0));
        w.mem.set(WordAddr::new(a.slot, Word::W0), 99);
        let b = w.get(2, &d).unwrap();
        assert_eq!((b.lock, b.slot, b.word, b.already), (a.lock, a.slot, 99, false));
        let again = w.get(1, &d).unwrap();
        assert_eq!(again, LockGrant { word: 99, already: true, ..a });
        assert_eq!(w.reg.locks.refs(a.slot), [(client(1), Handle(0)), (client(2), Handle(0))]);
        let record = w.reg.locks.by_slot(a.slot).unwrap();
        assert_eq!((record.id(), record.name(), record.lease_s()), (a.lock, &d.name[..], 5));
        assert_eq!(w.reg.locks.by_name(&d.name).unwrap().lock_type(), LockType::Atomic);
        w.reg.assert_consistent();
    }

    #[test]
    fn locks_are_listed_from_any_id_on() {
        let mut w = World::new(9);
        for name in ["a", "b", "c"] {
            w.get(1, &desc(name, LockType::Atomic)).unwrap();
        }
        let all: Vec<LockId> = w.reg.locks.iter().map(LockRecord::id).collect();
        for (i, &lock) in all.iter().enumerate() {
            let after: Vec<LockId> = w.reg.locks.after(lock).map(LockRecord::id).collect();
            assert_eq!(after, all[i + 1..]);
        }
        assert_eq!(w.reg.locks.after(LockId(i32::MAX)).count(), 0);
        assert_eq!(w.reg.locks.after(LockId(i32::MIN)).count(), 3);
    }

    #[test]
    fn another_type_is_refused_even_to_whoever_has_the_lock() {
        let mut w = World::new(9);
        w.get(1, &desc("a", LockType::Atomic)).unwrap();
        for raw in [1, 2] {
            assert_eq!(w.get(raw, &desc("a", LockType::Rw)), Err(Status::Error));
        }
        w.reg.assert_consistent();
    }

    #[test]
    fn the_last_release_destroys_the_lock_and_its_generation() {
        let mut w = World::new(9);
        let d = desc("a", LockType::Fair);
        let grant = w.get(1, &d).unwrap();
        w.get(2, &d).unwrap();
        let generation = w.mem.word(grant.slot, Word::Gen);
        assert!(!w.release(1, grant.lock).unwrap().destroyed);
        assert_eq!(w.mem.word(grant.slot, Word::Gen), generation);
        assert_eq!(w.release(1, grant.lock), Err(Status::Error));
        assert!(w.release(2, grant.lock).unwrap().destroyed);
        assert_ne!(w.mem.word(grant.slot, Word::Gen), generation);
        assert_eq!(w.release(2, grant.lock), Err(Status::Error));
        assert!(w.reg.locks.is_empty() && w.reg.locks.by_slot(grant.slot).is_none());
    }

    #[test]
    fn a_lock_that_is_created_again_counts_its_fence_on() {
        let mut w = World::new(9);
        let d = desc("a", LockType::Atomic);
        let first = w.get(1, &d).unwrap();
        w.mem.faa(WordAddr::new(first.slot, Word::Fence), 41);
        w.mem.set(WordAddr::new(first.slot, Word::W0), 77);
        let _ = w.release(1, first.lock).unwrap();
        let second = w.get(1, &d).unwrap();
        assert_eq!((second.lock, second.word), (first.lock, 0));
        assert_ne!(second.slot, first.slot);
        assert_eq!(w.mem.word(second.slot, Word::Fence), 42, "even, and above");
        w.mem.set(WordAddr::new(second.slot, Word::Fence), u64::MAX - 9);
        let _ = w.release(1, second.lock).unwrap();
        let third = w.get(1, &d).unwrap();
        assert_eq!(w.mem.word(third.slot, Word::Fence), 42, "a damaged one does not count");
    }

    #[test]
    fn a_full_table_refuses_new_locks_and_no_known_one() {
        let mut w = World::new(2);
        let (a, b) = (desc("a", LockType::Atomic), desc("b", LockType::Atomic));
        let first = w.get(1, &a).unwrap();
        w.get(1, &b).unwrap();
        let c = desc("c", LockType::Atomic);
        assert_eq!(w.get(1, &c), Err(Status::ServerNoResource));
        assert!(w.get(2, &a).is_ok());
        let _ = w.release(1, first.lock).unwrap();
        let _ = w.release(2, first.lock).unwrap();
        assert!(w.get(2, &c).is_ok());
        w.reg.assert_consistent();
    }

    #[test]
    fn a_client_without_room_for_handles_creates_nothing() {
        let mut w = World::new(4);
        w.reg.clients = Clients::new(1, 1, 1);
        w.reg.clients.add(client(1)).unwrap();
        let a = desc("a", LockType::Atomic);
        w.get(1, &a).unwrap();
        let refused = w.get(1, &desc("b", LockType::Atomic));
        assert_eq!(refused, Err(Status::ServerNoResource));
        assert!(w.get(1, &a).unwrap().already);
        let unknown = w.get(7, &a);
        assert_eq!(unknown, Err(Status::ClientRemoved));
        w.reg.assert_consistent();
    }

    #[test]
    fn a_reused_handle_has_an_empty_ledger_entry() {
        let mut w = World::new(4);
        let a = w.get(1, &desc("a", LockType::Rw)).unwrap();
        w.mem.ledgers.insert((client(1), a.handle), LedgerEntry::from_bits(u64::MAX));
        let _ = w.release(1, a.lock).unwrap();
        let b = w.get(1, &desc("b", LockType::Rw)).unwrap();
        assert_eq!(b.handle, a.handle);
        assert_eq!(w.mem.ledger(client(1), b.handle), LedgerEntry::new());
    }

    #[test]
    fn a_dropped_client_leaves_only_what_others_have() {
        let mut w = World::new(9);
        let names = ["a", "b", "c"].map(|n| desc(n, LockType::Rw));
        let grants = names.each_ref().map(|d| w.get(1, d).unwrap());
        w.get(2, &names[1]).unwrap();
        let (mut t, locks, _) = w.reg.split(&mut w.mem);
        let dropped = locks.drop_client(&mut t, client(1));
        for released in dropped.iter().filter(|r| r.destroyed) {
            t.slots.free(released.slot);
        }
        assert_eq!(dropped.iter().map(|r| r.lock).collect::<Vec<_>>(), grants.map(|g| g.lock));
        assert_eq!(dropped.iter().map(|r| r.destroyed).collect::<Vec<_>>(), [true, false, true]);
        assert!(w.reg.clients.remove(client(1)));
        assert_eq!(w.reg.locks.refs(grants[1].slot), [(client(2), Handle(0))]);
        w.reg.assert_consistent();
    }

    #[test]
    fn a_claimed_lock_has_its_wished_id_if_that_is_free() {
        let mut w = World::new(9);
        let (a, b) = (desc("a", LockType::Rw), desc("b", LockType::Rw));
        assert_eq!(w.claim(1, 5, &a).unwrap().lock, LockId(5));
        assert_eq!(w.claim(2, 6, &a).unwrap().lock, LockId(5));
        let hash = super::super::name_hash(b"b") as i32;
        assert_eq!(w.claim(1, 5, &b).unwrap().lock, LockId(hash));
        assert!(w.claim(1, 5, &b).unwrap().already);
        assert_eq!(w.claim(1, -3, &desc("c", LockType::Rw)).unwrap().lock.0, hash + 1);
        assert_eq!(w.claim(3, 5, &desc("a", LockType::Fair)), Err(Status::Error));
        w.reg.assert_consistent();
    }
}
