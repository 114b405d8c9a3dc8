// SPDX-License-Identifier: MIT OR Apache-2.0
//! The locks of one instance. A thread finds a lock by its id without a mutex; each lock has its
//! own.
//!
//! ```text
//!   LockId ──hint (direct-mapped, lock-free, may be wrong)──▶ index ──▶ lock slot
//!         └──map  (RwLock<HashMap>, the truth)─────────────▶ index
//! ```
//! A thread that has locked a lock slot checks that the slot has the wanted lock. A wrong or
//! missing hint costs one look into the map, which corrects the hint. Lock slots never move and are
//! never freed while the instance exists; the slot of a released lock is used for a later lock.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dlock_core::clock::{Now, ServerTime};
use dlock_core::ids::{Epoch, LockId};
use dlock_core::limits::{HANDLES_MAX, LOCK_WAIT_S};
use dlock_core::lock::{Listening, LockEntry, OpResult};
use dlock_core::memory::exec::Executor;
use dlock_core::session::Binding;
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::left_until;
use dlock_fabric::os::threads::uncancelled;
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

use crate::clock::wait_until;
use crate::driver::futures::Tasks;
use crate::driver::heartbeat::Pulse;
use crate::driver::kept::Keeper;

/// The longest time that an operation waits for another thread's operation on the same lock. That
/// operation takes at most its own limit and a second for a cancel.
pub(crate) const LOCK_SLOT_WAIT: Duration = Duration::from_secs(LOCK_WAIT_S + 2);

/// The operation that is under way on a lock while its mutex is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Busy {
    /// No operation.
    No,
    /// A thread or a future waits for an answer, such as a grant, or rests between two tries.
    Waiting,
    /// The instance's asynchronous operation.
    Async,
}

/// A lock that this instance has got.
pub(crate) struct ClientLock {
    /// The id by which the application knows the lock; a recovered primary may have another.
    pub(crate) id: LockId,
    pub(crate) entry: LockEntry,
    /// The executor of the session to which `entry`'s handle and slot belong, or one that refuses
    /// every operation.
    pub(crate) exec: Arc<dyn Executor>,
    /// Whether the lock word is in memory of this host: then chains and clock readings never wait.
    pub(crate) is_local: bool,
    /// The pulse of that session: it has the horizon until which the client may rely on the
    /// session.
    pub(crate) pulse: Arc<Pulse>,
    /// The incarnation of the primary to which `entry`'s handle and slot belong.
    pub(crate) binding: Binding,
    pub(crate) busy: Busy,
    /// Which events the listeners of the lock have had.
    pub(crate) listening: Listening,
    /// The turns of the threads and futures that wait for a guard, in order.
    pub(crate) queue: VecDeque<Turn>,
    /// The last turn that was given out.
    last_turn: Turn,
    /// The index of this lock's slot in the table.
    pub(crate) index: LockSlotIndex,
    /// The last reading of the server clock, for operations that need no fresh one.
    pub(crate) last_now: Now,
    /// What the lock needs to be kept after its release; `None`: it is not cached.
    pub(crate) keeper: Option<Arc<Keeper>>,
    /// Whether the driver looks after the lock, because the client keeps it.
    pub(crate) is_looked_after: bool,
    /// The client's own clock at that reading. [`last_now`](Self::last_now) may have been moved to
    /// a later time since, by the client's own clock.
    pub(crate) read_ns: u64,
}

impl ClientLock {
    pub(crate) fn new(
        id: LockId,
        mut entry: LockEntry,
        exec: Arc<dyn Executor>,
        pulse: Arc<Pulse>,
        epoch: Epoch,
    ) -> Self {
        is_carried_by(&mut entry, &*exec);
        let last_now = Now::exact(ServerTime(0));
        let is_local = exec.reads_are_free();
        Self {
            id,
            entry,
            exec,
            is_local,
            pulse,
            binding: Binding::new(epoch),
            busy: Busy::No,
            listening: Listening::default(),
            queue: VecDeque::new(),
            last_turn: 0,
            index: 0,
            last_now,
            keeper: None,
            is_looked_after: false,
            read_ns: 0,
        }
    }

    /// Ends a hold whose release was refused with this status, or was not answered: see
    /// [`LockEntry::release_unheard`].
    pub(crate) fn release_unheard(&mut self, refused: Status) -> Option<OpResult> {
        let now = self.binding.clock(self.unasked());
        self.entry.release_unheard(refused, now)
    }

    /// Moves the lock to another session, which carries out its operations from now on.
    pub(crate) fn go_over_to(&mut self, exec: Arc<dyn Executor>, pulse: Arc<Pulse>) {
        is_carried_by(&mut self.entry, &*exec);
        self.is_looked_after = false; // questions belong to a session
        self.read_ns = 0; // the new session has a clock of its own
        self.is_local = exec.reads_are_free();
        self.exec = exec;
        self.pulse = pulse;
    }

    /// Has the lock refuse operations, because its primary is gone, until the client has claimed it
    /// at a successor. The horizon stays that of the old session: past it another client may have
    /// the lock, and only the successor's answer to the claim decides.
    pub(crate) fn refuse(&mut self, refuse: Arc<dyn Executor>) {
        self.read_ns = 0;
        self.is_local = refuse.reads_are_free();
        self.exec = refuse;
    }

    /// If the lock is on the session of `old`, replaces its executor by `ended`: the connections of
    /// that session have ended, and are closed.
    pub(crate) fn ends_with(&mut self, old: &Arc<dyn Executor>, ended: &Arc<dyn Executor>) {
        if Arc::ptr_eq(&self.exec, old) {
            self.refuse(Arc::clone(ended));
        }
    }

    /// Takes a place in the queue for a guard.
    pub(crate) fn queue_up(&mut self) -> Turn {
        self.last_turn += 1;
        self.queue.push_back(self.last_turn);
        self.last_turn
    }

    /// Gives up a place in the queue.
    pub(crate) fn leave_queue(&mut self, turn: Turn) {
        self.queue.retain(|&other| other != turn);
    }
}

/// Sets how operations on a lock may be carried out, as this executor permits.
fn is_carried_by(entry: &mut LockEntry, exec: &dyn Executor) {
    entry.may_try(exec.is_one_sided());
    // in a chain that the primary executes, a read costs nothing more
    entry.reads_are_free(exec.reads_are_free() || exec.chains_are_noted());
    entry.may_park(exec.may_park());
    entry.is_by_primary(exec.chains_are_noted());
}

/// A place in the queue of the waiters for a guard of one lock.
pub(crate) type Turn = u64;

/// Wakes threads when the state of a lock slot has changed; also the driver's work for futures, if
/// a future waits for the slot.
#[derive(Default)]
pub(crate) struct Changed {
    threads: Condvar,
    /// How many futures wait; changed under the slot's mutex.
    futures: AtomicU32,
    /// The futures of the instance: one `Tasks` for all its slots.
    tasks: OnceLock<Arc<Tasks>>,
}

impl Changed {
    /// Wakes the waiting threads, and the driver if a future waits. The caller has locked the slot
    /// and changed its state.
    #[inline]
    pub(crate) fn notify_all(&self) {
        self.threads.notify_all();
        if self.futures.load(Ordering::Relaxed) > 0 {
            if let Some(tasks) = self.tasks.get() {
                uncancelled(|| tasks.nudge());
            }
        }
    }

    /// Waits for a change, until `until_ns` at most; returns whether that time has come.
    pub(crate) fn wait_until(&self, guard: &mut LockSlotGuard<'_>, until_ns: u64) -> bool {
        wait_until(&self.threads, guard, until_ns)
    }

    /// Records that one more future waits for changes. The caller has locked the slot.
    pub(crate) fn watch(&self, tasks: &Arc<Tasks>) {
        self.tasks.get_or_init(|| Arc::clone(tasks));
        self.futures.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a future no longer waits; called once for each [`watch`](Self::watch).
    pub(crate) fn unwatch(&self) {
        self.futures.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The place of one lock in the table. It has cache lines of its own, because threads use
/// neighbouring slots at the same time.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct LockSlot {
    held: Mutex<Option<ClientLock>>,
    /// Signalled when `busy` ends, and when a hold ends.
    pub(crate) changed: Changed,
}

pub(crate) type LockSlotGuard<'a> = MutexGuard<'a, Option<ClientLock>>;

impl LockSlot {
    /// The locked slot, if no other thread has it locked now.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<LockSlotGuard<'_>> {
        self.held.try_lock()
    }

    /// The locked slot, as soon as no other thread has it locked.
    #[cfg(test)]
    pub(crate) fn lock(&self) -> LockSlotGuard<'_> {
        self.held.lock()
    }

    /// The locked slot, as soon as no other thread has it locked; `None`: not by `until_ns`.
    #[inline]
    pub(crate) fn lock_until(&self, until_ns: impl FnOnce() -> u64) -> Option<LockSlotGuard<'_>> {
        match self.held.try_lock() {
            Some(guard) => Some(guard),
            None => self.held.try_lock_for(left_until(until_ns())),
        }
    }
}

const SEGMENT_MIN: usize = 64;
/// The number of segments: 64 · (2^12 − 1) lock slots, more than a client can have handles.
const SEGMENTS: usize = 12;
const _: () = assert!(SEGMENT_MIN * ((1 << SEGMENTS) - 1) >= HANDLES_MAX);

/// The size of the first hint table. Each further table is twice as large, so that a table is at
/// most half full.
const HINTS_MIN: usize = 256;
const HINT_TABLES: usize = 10;

/// All locks of one instance.
pub(crate) struct Table {
    segments: [OnceLock<Box<[LockSlot]>>; SEGMENTS],
    hints: [OnceLock<Box<[AtomicU64]>>; HINT_TABLES],
    hint_table: AtomicUsize,
    map: RwLock<Map>,
}

#[derive(Default)]
struct Map {
    index: HashMap<LockId, u32, BuildHasherDefault<IdHasher>>,
    names: HashMap<Vec<u8>, LockId>,
    free: Vec<u32>,
    used: u32,
    /// The largest number of a hold of any lock that was removed.
    holds: u64,
    /// For the primary's id of a lock: the application's id. The two are the same unless a
    /// recovered primary has given another id, or the application knows another lock by that id.
    at_primary: HashMap<LockId, LockId, BuildHasherDefault<IdHasher>>,
}

/// Where a lock's lock slot is: the number of its segment (8 bits), and its place there (24 bits).
pub(crate) type LockSlotIndex = u32;

const PLACE_BITS: u32 = 24;
const _: () = assert!(SEGMENT_MIN << (SEGMENTS - 1) <= 1 << PLACE_BITS);

/// The index of the lock slot that is used after `used` others.
fn index_after(used: u32) -> LockSlotIndex {
    let at = used + SEGMENT_MIN as u32;
    let segment = (at / SEGMENT_MIN as u32).ilog2();
    segment << PLACE_BITS | (at - ((SEGMENT_MIN as u32) << segment))
}

impl Map {
    /// Records that the primary does not know this lock by `at_primary` any more: another lock may
    /// have that id by now.
    fn leaves(&mut self, id: LockId, at_primary: LockId) {
        if self.at_primary.get(&at_primary) == Some(&id) {
            self.at_primary.remove(&at_primary);
        }
    }
}

impl Table {
    pub(crate) fn new() -> Self {
        Self {
            segments: [const { OnceLock::new() }; SEGMENTS],
            hints: [const { OnceLock::new() }; HINT_TABLES],
            hint_table: AtomicUsize::new(0),
            map: RwLock::default(),
        }
    }

    /// The lock slot at this index.
    ///
    /// # Panics
    /// If the table has never given this index out.
    #[inline]
    pub(crate) fn lock_slot(&self, index: LockSlotIndex) -> &LockSlot {
        let lock_slots = self.segments[(index >> PLACE_BITS) as usize].get();
        let place = index & ((1 << PLACE_BITS) - 1);
        &lock_slots.expect("an index that was given out")[place as usize]
    }

    /// The index at which this lock probably is. The caller must check that under the lock slot's
    /// mutex.
    #[inline]
    pub(crate) fn hint(&self, id: LockId) -> Option<LockSlotIndex> {
        let hints = self.hints[self.hint_table.load(Ordering::Relaxed)].get()?;
        let hint = hints[bucket(id, hints.len())].load(Ordering::Relaxed);
        (hint >> 32 == u64::from(id.0 as u32)).then_some(hint as u32)
    }

    /// The index of this lock's lock slot.
    pub(crate) fn find(&self, id: LockId) -> Option<LockSlotIndex> {
        let map = self.map.read();
        let index = *map.index.get(&id)?;
        self.set_hint(id, index); // under the map's lock, so that no older hint overwrites it
        Some(index)
    }

    fn set_hint(&self, id: LockId, index: LockSlotIndex) {
        if let Some(hints) = self.hints[self.hint_table.load(Ordering::Relaxed)].get() {
            let hint = u64::from(id.0 as u32) << 32 | u64::from(index);
            hints[bucket(id, hints.len())].store(hint, Ordering::Relaxed);
        }
    }

    /// Adds a lock whose name is not in the table, under the primary's id for it; or under another
    /// id if the application knows another lock by that id.
    pub(crate) fn insert(&self, mut held: ClientLock) -> (LockId, LockSlotIndex) {
        let (at_primary, name) = (held.entry.lock(), held.entry.desc().name.clone());
        let mut map = self.map.write();
        let others = (1..=i32::MAX).rev().map(LockId);
        let mut free = std::iter::once(at_primary).chain(others);
        let id = free.find(|id| !map.index.contains_key(id)).expect("fewer locks than ids");
        held.id = id;
        held.entry.counts_from(map.holds);
        let index = map.free.pop().unwrap_or_else(|| {
            map.used += 1;
            index_after(map.used - 1)
        });
        self.make_room(index, map.index.len() + 1);
        held.index = index;
        *self.lock_slot(index).held.lock() = Some(held);
        let before = map.index.insert(id, index);
        assert!(before.is_none(), "a lock is in the table once");
        map.names.insert(name, id);
        map.at_primary.insert(at_primary, id);
        self.set_hint(id, index);
        (id, index)
    }

    fn make_room(&self, index: LockSlotIndex, locks: usize) {
        let segment = (index >> PLACE_BITS) as usize;
        self.segments[segment]
            .get_or_init(|| (0..SEGMENT_MIN << segment).map(|_| LockSlot::default()).collect());
        let mut table = self.hint_table.load(Ordering::Relaxed);
        while table + 1 < HINT_TABLES && locks > (HINTS_MIN << table) / 2 {
            table += 1;
        }
        self.hints[table]
            .get_or_init(|| (0..HINTS_MIN << table).map(|_| AtomicU64::new(0)).collect());
        self.hint_table.store(table, Ordering::Relaxed);
    }

    /// Removes a lock; `guard` is that of its lock slot.
    pub(crate) fn remove(&self, index: LockSlotIndex, guard: &mut LockSlotGuard<'_>) {
        if let Some(held) = guard.take() {
            let mut map = self.map.write();
            map.index.remove(&held.id);
            map.names.remove(&held.entry.desc().name);
            map.leaves(held.id, held.entry.lock());
            map.holds = map.holds.max(held.entry.holds());
            map.free.push(index);
        }
    }

    /// The application's id of the lock of this name; the primary's id may be another one.
    pub(crate) fn named(&self, name: &[u8]) -> Option<LockId> {
        self.map.read().names.get(name).copied()
    }

    /// The application's id of the lock that has this id at the primary.
    pub(crate) fn known(&self, at_primary: LockId) -> Option<LockId> {
        self.map.read().at_primary.get(&at_primary).copied()
    }

    /// Records that the primary has the id `now` for a lock of this table, and no longer `before`;
    /// `None`: it has no id for the lock.
    pub(crate) fn rename(&self, id: LockId, before: LockId, now: Option<LockId>) {
        let mut map = self.map.write();
        map.leaves(id, before);
        if let Some(now) = now {
            map.at_primary.insert(now, id);
        }
    }

    /// The ids and indices of all locks, in the order of their indices.
    pub(crate) fn indices(&self) -> Vec<(LockId, LockSlotIndex)> {
        let map = self.map.read();
        let mut all: Vec<_> = map.index.iter().map(|(&id, &index)| (id, index)).collect();
        all.sort_unstable_by_key(|&(_, index)| index);
        all
    }

    /// Whether no lock is in the table.
    pub(crate) fn is_empty(&self) -> bool {
        self.map.read().index.is_empty()
    }
}

#[inline]
fn bucket(id: LockId, len: usize) -> usize {
    // len is a power of two
    mix(id.0 as u32) as usize >> 16 & (len - 1)
}

#[inline]
fn mix(id: u32) -> u64 {
    u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
}

/// A hasher for ids. Ids are hashes or counters already, so it only mixes their bits.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = mix(self.0 as u32 ^ u32::from(byte));
        }
    }
    fn write_i32(&mut self, id: i32) {
        self.0 = mix(id as u32);
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::ids::{ClientId, Handle, Slot};
    use dlock_core::wire::control::{LockDesc, LockGrant};
    use dlock_core::wire::message::LockType;

    use super::*;
    use dlock_fabric::Refuse;

    fn held(id: i32) -> ClientLock {
        let lock_type = LockType::Atomic;
        let desc = LockDesc { name: vec![id as u8], lock_type, lease_s: 0, tokens: false };
        let (handle, slot) = (Handle(0), Slot(0));
        let grant =
            LockGrant { lock: LockId(id), handle, slot, word: 0, already: false, tokens: false };
        let me = ClientId::new(7).unwrap();
        let entry = LockEntry::new(me, 0, lock_type, &grant, desc);
        ClientLock::new(LockId(id), entry, Arc::new(Refuse), Arc::new(Pulse::new(0, 0)), Epoch(1))
    }

    fn id_in(table: &Table, index: LockSlotIndex) -> Option<LockId> {
        let guard = table.lock_slot(index).lock_until(|| 0).unwrap();
        guard.as_ref().map(|held| held.id)
    }

    #[test]
    fn every_lock_is_found_and_a_wrong_hint_is_corrected() {
        let table = Table::new();
        let ids: Vec<i32> =
            (1..3_000).map(|i: i32| i.wrapping_mul(0x5bd1_e995) & 0x7fff_ffff).collect();
        for &id in &ids {
            table.insert(held(id));
        }
        for &id in &ids {
            let index = table.find(LockId(id)).unwrap();
            assert_eq!(id_in(&table, index), Some(LockId(id)));
            assert_eq!(table.hint(LockId(id)), Some(index));
        }
        assert_eq!(table.find(LockId(-1)), None);
        assert_eq!(table.indices().len(), ids.len());
    }

    #[test]
    fn an_id_the_primary_changed_means_the_old_lock() {
        let table = Table::new();
        let (id, index) = table.insert(held(5));
        assert_eq!((id, table.known(LockId(5))), (LockId(5), Some(LockId(5))));
        table.rename(id, LockId(5), Some(LockId(9)));
        assert_eq!((table.known(LockId(9)), table.known(LockId(5))), (Some(id), None));
        let (other, _) = table.insert(held(5));
        assert_ne!(other, id);
        assert_eq!((table.known(LockId(9)), table.known(LockId(5))), (Some(id), Some(other)));
        assert_eq!((table.find(id), table.named(&[5])), (Some(index), Some(other)));
    }

    #[test]
    fn what_is_removed_is_not_known_by_any_id_or_name() {
        let table = Table::new();
        let (id, index) = table.insert(held(5));
        assert_eq!((table.known(LockId(5)), table.named(&[5])), (Some(id), Some(id)));
        table.remove(index, &mut table.lock_slot(index).lock_until(|| 0).unwrap());
        assert_eq!((table.known(LockId(5)), table.named(&[5])), (None, None));
    }

    #[test]
    fn a_released_cell_is_used_again_and_its_old_hint_is_seen_to_be_wrong() {
        let table = Table::new();
        let (_, index) = table.insert(held(5));
        table.remove(index, &mut table.lock_slot(index).lock_until(|| 0).unwrap());
        assert!(table.is_empty());
        assert_eq!(table.insert(held(6)), (LockId(6), index));
        assert_eq!(table.hint(LockId(5)).and_then(|i| id_in(&table, i)), Some(LockId(6)));
        assert_eq!(table.find(LockId(5)), None);
    }
}
