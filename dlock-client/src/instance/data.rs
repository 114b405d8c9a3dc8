// SPDX-License-Identifier: MIT OR Apache-2.0
//! Single operations on locks.

use dlock_core::clock::Lease;
use std::time::Instant;

use dlock_core::ids::LockId;
use dlock_core::lock::{EntryState, Op, OpResult};
use dlock_core::rights::Right;
use dlock_core::wire::message::Mode;
use dlock_core::wire::status::Status;
use dlock_fabric::os::threads::uncancelled;

use super::{code, Instance};
use crate::denied;
use crate::execute::Limit;
use crate::perform::perform;
use crate::table::{ClientLock, LockSlot, LockSlotGuard};

impl Instance {
    /// Takes a lock if it is free, for `expire_s` seconds. With `expire_s` 0 only the cached
    /// state is read. A fair lock that is not free gives a ticket (`Again`): ask again with the
    /// same mode until it is served.
    ///
    /// # Errors
    /// `ClientNotInit`, `Async`, `LockNotGet`, `Invalid`, `Ticket`, `AlreadyLocked` (re-entry: it
    /// is held once more), `Again`, `Fail`, `NotReady`, `BadResponse`.
    ///
    /// # Latency
    /// At most one round trip where there is no contention; 5 s at most. One more for a fair lock
    /// and a lease above 60 s, unless the primary executes the word operations (tcp, sealed): the
    /// ticket is noted first.
    #[inline]
    pub fn trylock(&self, lock: LockId, mode: Mode, expire_s: u32) -> OpResult {
        self.single(lock, Op::TryLock { mode, lease: Lease::secs(expire_s) })
    }

    /// As [`trylock`](Self::trylock), but waits up to 5 s at the primary for its turn.
    ///
    /// # Errors
    /// As `trylock`. What waiting cannot cure is answered at once. A fair lock keeps its ticket
    /// when the time is up (`Again`).
    ///
    /// # Latency
    /// A hand-over is one message in each direction; nothing is polled. 5 s at most, and 1 s more
    /// if the primary does not answer that the wait is over. A client that finds the successor of
    /// its primary by itself waits for that, too: 60 s more at most.
    pub fn lock(&self, lock: LockId, mode: Mode, expire_s: u32) -> OpResult {
        self.across_failover(|| self.single(lock, Op::Lock { mode, lease: Lease::secs(expire_s) }))
    }

    /// Releases a lock, or one of several holds (`AlreadyLocked`), or a ticket.
    ///
    /// # Errors
    /// `ClientNotInit`, `Async`, `LockNotGet`, `AlreadyUnlocked`, `Fail` (it was lost),
    /// `NotReady`, `BadResponse` (it is still held as far as this client knows). A client that
    /// finds the successor of its primary by itself gets neither: its hold is over at once, and its
    /// next primary learns it.
    ///
    /// # Latency
    /// At most one round trip where there is no contention; 5 s at most, and 5 s more where other
    /// threads have the lock in use.
    #[inline]
    pub fn unlock(&self, lock: LockId) -> OpResult {
        self.single(lock, Op::Unlock)
    }

    /// Moves the end of the lease to `expire_s` seconds from now, never back. 0 asks whether
    /// the lock is still held.
    ///
    /// # Errors
    /// `ClientNotInit`, `Async`, `LockNotGet`, `Invalid` (not held in this mode; read-write
    /// locks have no lease), `Fail` (it was lost), `NotReady`, `BadResponse`.
    ///
    /// # Latency
    /// One round trip; 5 s at most.
    pub fn extend(&self, lock: LockId, mode: Mode, expire_s: u32) -> OpResult {
        self.single(lock, Op::Extend { mode, lease: Lease::secs(expire_s) })
    }

    #[inline(always)]
    fn single(&self, lock: LockId, op: Op) -> OpResult {
        if let Err(status) = self.admit() {
            return code(status);
        }
        if let Some((lock_slot, mut guard)) = self.at_once(lock) {
            let result = perform(lock_slot, &mut guard, op, &Limit::NOW);
            if result.status == Status::Success {
                if matches!(op, Op::Unlock) {
                    lock_slot.changed.notify_all();
                }
                return result; // most often
            }
            return self.concluded(lock_slot, guard, op, result);
        }
        uncancelled(move || self.wait_for(lock, op, Instant::now(), false))
    }

    /// An operation that began at `start` and may wait for other threads and other clients.
    #[inline(never)]
    fn wait_for(&self, lock: LockId, op: Op, start: Instant, is_again: bool) -> OpResult {
        if let Err(status) = self.admit() {
            return code(status);
        }
        match self.locked_since(lock, start) {
            Ok((lock_slot, mut guard)) => {
                let result = perform(lock_slot, &mut guard, op, &Limit::since(start));
                self.concluded(lock_slot, guard, op, result)
            }
            // the program does not ask for a release once more: the lock's slot is waited for again
            Err(Status::BadResponse)
                if matches!(op, Op::Unlock) && self.watch().is_some() && !is_again =>
            {
                self.wait_for(lock, op, Instant::now(), true)
            }
            Err(status) => code(status),
        }
    }

    /// A result is told. A release without a primary ends the hold here, if this client finds the
    /// successor by itself. The lock slot was locked all the time, so that it is no other thread's
    /// hold.
    #[inline(never)]
    fn concluded(
        &self,
        lock_slot: &LockSlot,
        mut guard: LockSlotGuard<'_>,
        op: Op,
        result: OpResult,
    ) -> OpResult {
        let result = self.told(lock_slot, &mut guard, op, result);
        match matches!(op, Op::Unlock) && result.status.is_without_primary() {
            true => uncancelled(|| self.release_unheard(lock_slot, guard, result)),
            false => result,
        }
    }

    pub(super) fn run(
        &self,
        lock_slot: &LockSlot,
        guard: &mut LockSlotGuard<'_>,
        op: Op,
        limit: &Limit,
    ) -> OpResult {
        let result = perform(lock_slot, guard, op, limit);
        self.told(lock_slot, guard, op, result)
    }

    /// Counts a result, and wakes those who may go on after it.
    pub(super) fn told(
        &self,
        lock_slot: &LockSlot,
        guard: &mut LockSlotGuard<'_>,
        op: Op,
        result: OpResult,
    ) -> OpResult {
        let is_success = result.status == Status::Success;
        self.tells(guard);
        if let Some(held) = guard.as_mut().filter(|_| !is_success) {
            uncancelled(|| self.refused(held, op, &result));
        }
        if !is_success || matches!(op, Op::Unlock) {
            lock_slot.changed.notify_all(); // threads that wait for this client's own hold to end
        }
        result
    }

    /// Apart, so that what succeeds does not carry it.
    #[cold]
    #[inline(never)]
    fn refused(&self, held: &ClientLock, op: Op, result: &OpResult) {
        self.stats.count(held.entry.lock_type(), op, result);
        if result.status == Status::Denied {
            denied::tell(needed(op), &held.entry.desc().name);
        }
        self.leaves_in_doubt(held);
    }

    /// The program may never operate on this lock again: what is left of it is undone, if something
    /// of this client does so by itself.
    pub(super) fn leaves_in_doubt(&self, held: &ClientLock) {
        if let Some(watch) = self.watch().filter(|_| held.entry.is_to_be_undone()) {
            watch.leaves_in_doubt();
        }
    }
}

/// The right that an operation needs.
fn needed(op: Op) -> Right {
    match op {
        Op::TryLock { mode, .. } | Op::Lock { mode, .. } | Op::Extend { mode, .. } => {
            Right::to_lock(mode)
        }
        Op::Unlock => Right::Get, // is never denied
    }
}

/// Whether a place in a fair lock's queue is kept.
pub(super) fn has_ticket(state: EntryState) -> bool {
    matches!(state, EntryState::ExclusiveTicketed | EntryState::SharedTicketed)
}
