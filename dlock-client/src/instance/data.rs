// SPDX-License-Identifier: MIT OR Apache-2.0
//! Single operations on locks.

use dlock_core::clock::Lease;
use dlock_core::operation::Bounds;

use dlock_core::ids::LockId;
use dlock_core::lock::{EntryState, Op, OpResult};
use dlock_core::rights::Right;
use dlock_core::wire::message::Mode;
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::boot_ns;
use dlock_fabric::os::threads::uncancelled;

use super::{code, Instance};
use crate::denied;
use crate::perform::{perform, TryLock, Unlock};
use crate::table::{ClientLock, LockSlot, LockSlotGuard};

impl Instance {
    /// Takes a lock for `expire_s` seconds if it is free. With `expire_s` 0 this call only reads
    /// the cached state. If a fair lock is not free, the client gets a ticket (`Again`): call again
    /// with the same mode until the lock is granted.
    ///
    /// # Errors
    /// `ClientNotInit`, `Async`, `LockNotGet`, `Invalid`, `Ticket`, `AlreadyLocked` (re-entry: the
    /// client now holds the lock once more), `Again`, `Fail`, `NotReady`, `BadResponse`.
    ///
    /// # Latency
    /// Without contention at most one round trip; 5 s at most. One round trip more for a fair lock
    /// and a lease above 60 s, unless the primary executes the word operations (tcp, sealed): the
    /// client first writes the ticket to its ledger.
    #[inline]
    pub fn trylock(&self, lock: LockId, mode: Mode, expire_s: u32) -> OpResult {
        self.single(lock, TryLock { mode, lease: Lease::secs(expire_s) })
    }

    /// As [`trylock`](Self::trylock), but waits at the primary for the lock, up to 5 s.
    ///
    /// # Errors
    /// As `trylock`. A refusal that waiting cannot change is returned at once. A client that has
    /// waited in vain for a fair lock keeps its ticket (`Again`).
    ///
    /// # Latency
    /// A hand-over takes one message in each direction, without polling. 5 s at most, and 1 s more
    /// if the primary does not answer that the wait is over. A client that finds the successor of
    /// its primary by itself also waits for the successor: 60 s more at most.
    pub fn lock(&self, lock: LockId, mode: Mode, expire_s: u32) -> OpResult {
        self.across_failover(|| self.single(lock, Op::Lock { mode, lease: Lease::secs(expire_s) }))
    }

    /// Releases a lock (`Success`), or one of several holds of this client (`AlreadyLocked`), or
    /// gives up a ticket.
    ///
    /// # Errors
    /// `ClientNotInit`, `Async`, `LockNotGet`, `AlreadyUnlocked`, `Fail` (the lock was lost),
    /// `NotReady`, `BadResponse` (this client regards the lock as still held). A client that finds
    /// the successor of its primary by itself gets neither of the last two: its hold ends at once,
    /// and it reports that to its next primary.
    ///
    /// # Latency
    /// Without contention at most one round trip; 5 s at most, and 5 s more if other threads use
    /// the lock.
    #[inline]
    pub fn unlock(&self, lock: LockId) -> OpResult {
        self.single(lock, Unlock)
    }

    /// Moves the end of the lease to `expire_s` seconds from now, never back. 0 asks whether
    /// the lock is still held.
    ///
    /// # Errors
    /// `ClientNotInit`, `Async`, `LockNotGet`, `Invalid` (not held in this mode; read-write locks
    /// have no lease), `Fail` (the lock was lost), `NotReady`, `BadResponse`.
    ///
    /// # Latency
    /// One round trip; 5 s at most.
    pub fn extend(&self, lock: LockId, mode: Mode, expire_s: u32) -> OpResult {
        self.single(lock, Op::Extend { mode, lease: Lease::secs(expire_s) })
    }

    #[inline(always)]
    fn single(&self, lock: LockId, kind: impl Copy + Into<Op>) -> OpResult {
        let op = kind.into();
        if let Err(status) = self.admit() {
            return code(status);
        }
        if let Some((lock_slot, mut guard)) = self.at_once(lock) {
            let result = perform(lock_slot, &mut guard, kind, None);
            if result.status == Status::Success {
                if matches!(op, Op::Unlock) {
                    lock_slot.changed.notify_all();
                }
                return result; // the usual case
            }
            return self.concluded(lock_slot, guard, op, result);
        }
        uncancelled(move || self.wait_for(lock, op, boot_ns(), false))
    }

    /// Runs an operation that began at `start_ns`; it may wait for other threads and other clients.
    /// `is_again`: this is the second attempt of a release.
    #[inline(never)]
    fn wait_for(&self, lock: LockId, op: Op, start_ns: u64, is_again: bool) -> OpResult {
        if let Err(status) = self.admit() {
            return code(status);
        }
        match self.locked_since(lock, start_ns) {
            Ok((lock_slot, mut guard)) => {
                let result = perform(lock_slot, &mut guard, op, Some(&Bounds::since(start_ns)));
                self.concluded(lock_slot, guard, op, result)
            }
            // the program does not repeat a release, so this function waits for the lock's slot
            // once more
            Err(Status::BadResponse)
                if matches!(op, Op::Unlock) && self.watch().is_some() && !is_again =>
            {
                self.wait_for(lock, op, boot_ns(), true)
            }
            Err(status) => code(status),
        }
    }

    /// Handles a result as [`told`](Self::told) does. If this client finds the successor of its
    /// primary by itself, a release without a primary also ends the hold. The guard has been locked
    /// all the time, so the hold is no other thread's.
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
        bounds: Option<&Bounds>,
    ) -> OpResult {
        let result = perform(lock_slot, guard, op, bounds);
        self.told(lock_slot, guard, op, result)
    }

    /// Reports the lock's change to listeners, counts a failure, and wakes the threads that wait
    /// for the lock's slot.
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
        if !is_success || matches!(op, Op::Unlock | Op::Downgrade) {
            lock_slot.changed.notify_all(); // threads that this client's own hold has kept out
            if result.status == Status::LockNotGet {
                return code(self.left_or(result.status)); // its client has left meanwhile
            }
        }
        result
    }

    /// Handles a failed result; a separate function, which keeps the path of success short.
    #[cold]
    #[inline(never)]
    fn refused(&self, held: &ClientLock, op: Op, result: &OpResult) {
        self.stats.count(held.entry.lock_type(), op, result);
        if result.status == Status::Denied {
            denied::tell(needed(op), &held.entry.desc().name);
        }
        self.leaves_in_doubt(held);
    }

    /// If the lock's last operation is in doubt, has the failover thread undo it, because the
    /// program may never operate on this lock again. Only clients that find the successor of their
    /// primary by themselves have such a thread.
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
        Op::Downgrade => Right::LockShared,
        Op::Unlock => Right::Get, // a release is never denied
    }
}

/// Whether this client has a place in the queue of a fair lock.
pub(super) fn has_ticket(state: EntryState) -> bool {
    matches!(state, EntryState::ExclusiveTicketed | EntryState::SharedTicketed)
}
