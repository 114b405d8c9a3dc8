// SPDX-License-Identifier: MIT OR Apache-2.0
//! Holds that belong to one guard, not to the whole client.
//!
//! ```text
//!   try_guard, wait_guard ─▶ no other guard in the way? ─▶ TryLock / Lock ─▶ hold number n
//!   end_guard(n), extend_guard(n) ─▶ n is still the hold? ─▶ Unlock / Extend
//!                                                    └ no ─▶ AlreadyUnlocked: the hold was lost
//! ```
//! Threads of one client that wait for the same lock get it in order. Together they have at most
//! one place in the primary's queue.

use std::sync::Arc;

use dlock_core::clock::{Lease, NS};
use dlock_core::ids::LockId;
use dlock_core::lock::{EntryState, Op, OpResult, TimeOut};
use dlock_core::operation::Bounds;
use dlock_core::session::Call;
use dlock_core::token::Token;
use dlock_core::wire::message::Mode;
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::boot_ns;

use super::data::has_ticket;
use super::{code, Instance, ASYNC};
use crate::execute::DATA_WAIT_NS;
use crate::table::{Busy, ClientLock, LockSlot, LockSlotGuard, Turn};

/// A result and, if the lock is held now, the number of the hold.
pub(crate) type Attempt = (OpResult, u64);

/// How often the end of a guard waits for the lock's slot, up to 5 s each time.
const END_TRIES_MAX: usize = 2;

/// How often a thread that waits for another guard of its client looks whether the session is over.
const LOOK_EVERY_NS: u64 = NS;

impl Instance {
    /// As [`trylock`](Self::trylock), for guards. If this client holds the lock already, a guard
    /// does not enter it again; only shared holds can share it.
    ///
    /// # Errors
    /// As `trylock`; `Fail` if another guard of this client holds the lock, or waits for it.
    #[inline]
    pub(crate) fn try_guard(&self, lock: LockId, mode: Mode, lease: Lease) -> Attempt {
        if let Err(status) = self.admit() {
            return (code(status), 0);
        }
        match self.idle(lock) {
            Ok((lock_slot, mut guard, bounds)) => {
                if guard.as_ref().is_some_and(|held| !held.queue.is_empty()) {
                    return (code(Status::Fail), 0);
                }
                if guard.as_mut().is_some_and(|held| in_the_way(held, mode)) {
                    return (code(Status::Fail), 0);
                }
                let op = Op::TryLock { mode, lease };
                let mut result = self.run(lock_slot, &mut guard, op, bounds.as_ref());
                if guard.as_ref().is_some_and(|held| held.entry.is_behind_a_keeper()) {
                    result = self.run(lock_slot, &mut guard, op, bounds.as_ref());
                }
                self.attempted(lock_slot, &mut guard, result)
            }
            Err(status) => (code(status), 0),
        }
    }

    /// As [`lock`](Self::lock), for guards: also waits for other guards of this client.
    pub(crate) fn wait_guard(
        &self,
        lock: LockId,
        mode: Mode,
        lease: Lease,
        until_ns: u64,
    ) -> Attempt {
        let Some(watch) = self.watch() else {
            return self.wait_guard_here(lock, mode, lease, until_ns);
        };
        let mut has_kept = false;
        loop {
            let moves = watch.moves();
            let attempt = self.wait_guard_here(lock, mode, lease, until_ns);
            let is_without = attempt.0.status.is_without_primary();
            if is_without && watch.has_moved(moves, until_ns) {
                has_kept = true; // the client may have kept a ticket
                continue;
            }
            let is_held = matches!(attempt.0.status, Status::Success | Status::AlreadyLocked);
            if !is_held && (is_without || has_kept) {
                self.give_ticket_up(lock);
            }
            return attempt;
        }
    }

    /// Gives up a ticket that no guard waits for any more.
    fn give_ticket_up(&self, lock: LockId) {
        if let Ok((lock_slot, mut guard, _)) = self.idle(lock) {
            self.give_up_in(lock_slot, &mut guard);
        }
    }

    /// As [`give_ticket_up`](Self::give_ticket_up), for a lock whose slot the caller has locked.
    pub(super) fn give_up_in(&self, lock_slot: &LockSlot, guard: &mut LockSlotGuard<'_>) {
        if guard.as_ref().is_some_and(|held| has_ticket(held.entry.state())) {
            let result = self.run(lock_slot, guard, Op::Unlock, None);
            if let Some(held) = guard.as_mut().filter(|_| result.status.is_without_primary()) {
                held.release_unheard(result.status); // the ticket had been claimed, and now is not
                self.leaves_in_doubt(held);
            }
        }
    }

    /// [`wait_guard`](Self::wait_guard) at one primary: if the primary is gone, the client keeps
    /// its ticket.
    fn wait_guard_here(&self, lock: LockId, mode: Mode, lease: Lease, until_ns: u64) -> Attempt {
        if let Err(status) = self.admit() {
            return (code(status), 0);
        }
        let start_ns = boot_ns();
        let bounds = Bounds::granted_by(start_ns, until_ns);
        let (lock_slot, mut guard) = match self.opened(lock, start_ns + DATA_WAIT_NS) {
            Ok(opened) => opened,
            Err(status) => return (code(status), 0),
        };
        let turn = self.await_turn(lock_slot, &mut guard, lock, mode, until_ns);
        if let Err(status) = turn {
            lock_slot.changed.notify_all();
            return (code(status), 0);
        }
        let result = self.run(lock_slot, &mut guard, Op::Lock { mode, lease }, Some(&bounds));
        let attempt = self.attempted(lock_slot, &mut guard, result);
        // a shared hold lets other guards in; after a failure, the next one takes its turn
        lock_slot.changed.notify_all();
        attempt
    }

    /// Waits until no other guard and no earlier thread of this client is in the way.
    fn await_turn(
        &self,
        lock_slot: &LockSlot,
        guard: &mut LockSlotGuard<'_>,
        lock: LockId,
        mode: Mode,
        until_ns: u64,
    ) -> Result<(), Status> {
        let mut mine = None;
        let result = loop {
            let Some(held) = guard.as_mut().filter(|held| held.id == lock) else {
                return Err(self.not_got());
            };
            match self.is_turn(held, mode, mine) {
                Ok(true) => break Ok(()),
                Ok(false) => {}
                Err(status) => break Err(status),
            }
            mine.get_or_insert_with(|| held.queue_up());
            let look_ns = held.may_be_over_at_ns().min(boot_ns() + LOOK_EVERY_NS).min(until_ns);
            if lock_slot.changed.wait_until(guard, look_ns) && look_ns == until_ns {
                break Err(Status::Fail);
            }
        };
        if let (Some(held), Some(mine)) = (guard.as_mut(), mine) {
            held.leave_queue(mine);
        }
        result
    }

    /// Whether neither another guard nor an earlier place in this client's queue is in the way.
    pub(super) fn is_turn(
        &self,
        held: &mut ClientLock,
        mode: Mode,
        mine: Option<Turn>,
    ) -> Result<bool, Status> {
        let is_next = held.queue.front().is_none_or(|&first| Some(first) == mine);
        let is_kept_out = in_the_way(held, mode);
        match held.busy {
            Busy::No if is_next && is_kept_out => self.is_still_connected(held).map(|()| false),
            Busy::No => Ok(is_next && !is_kept_out),
            Busy::Waiting => Ok(false),
            Busy::Async => Err(self.refuse(ASYNC)),
        }
    }

    /// Checks, for a wait that asks the primary nothing, that the session is not over, if only the
    /// program could bring the client back.
    fn is_still_connected(&self, held: &ClientLock) -> Result<(), Status> {
        let removed = held.exec.refusal().filter(|status| *status == Status::ClientRemoved);
        match self.watch().is_none() && held.exec.is_over() {
            true => Err(removed.unwrap_or(Status::BadResponse)),
            false => Ok(()),
        }
    }

    /// The result with the number of the hold. Gives up the ticket of a failed attempt, because no
    /// guard has it.
    #[inline]
    pub(super) fn attempted(
        &self,
        lock_slot: &LockSlot,
        guard: &mut LockSlotGuard<'_>,
        result: OpResult,
    ) -> Attempt {
        let Some(held) = guard.as_mut() else { return (result, 0) };
        match result.status {
            Status::Success | Status::AlreadyLocked => {}
            status if self.watch().is_some() && status.is_without_primary() => return (result, 0),
            _ if has_ticket(held.entry.state()) => {
                self.give_up_in(lock_slot, guard);
                return (result, 0);
            }
            _ => {}
        }
        (result, held.entry.holds())
    }

    /// The lock slot of a lock that the guard with this hold number holds.
    #[inline]
    pub(super) fn of_guard(
        &self,
        lock: LockId,
        hold: u64,
    ) -> Result<(&LockSlot, LockSlotGuard<'_>, Option<Bounds>), Status> {
        let (lock_slot, guard, bounds) = match self.idle(lock) {
            Err(Status::Fail) => return self.of_guard_in_use(lock, hold),
            found => found?,
        };
        match guard.as_ref() {
            Some(held) if held.entry.holds() == hold && held.entry.refs() > 0 => {
                Ok((lock_slot, guard, bounds))
            }
            _ => Err(Status::AlreadyUnlocked),
        }
    }

    /// As [`of_guard`](Self::of_guard), for a lock on which an operation is under way: that of a
    /// future that shares the lock, or a renewal of the hold. If this hold is over, the caller does
    /// not wait for the operation.
    #[cold]
    fn of_guard_in_use(
        &self,
        lock: LockId,
        hold: u64,
    ) -> Result<(&LockSlot, LockSlotGuard<'_>, Option<Bounds>), Status> {
        let start_ns = boot_ns();
        let until_ns = start_ns + DATA_WAIT_NS;
        let (lock_slot, mut guard) = self.opened(lock, until_ns)?;
        loop {
            let held = guard.as_ref().filter(|held| held.id == lock);
            let held = held.ok_or_else(|| self.not_got())?;
            match held.busy {
                _ if held.entry.holds() != hold || held.entry.refs() == 0 => {
                    return Err(Status::AlreadyUnlocked);
                }
                Busy::No => return Ok((lock_slot, guard, Some(Bounds::since(start_ns)))),
                Busy::Async => return Err(self.refuse(ASYNC)),
                Busy::Waiting => {}
            }
            if lock_slot.changed.wait_until(&mut guard, until_ns) {
                return Err(Status::BadResponse);
            }
        }
    }

    /// [`extend`](Self::extend) for the guard with this hold number; `AlreadyUnlocked` if its hold
    /// was lost.
    pub(crate) fn extend_guard(
        &self,
        lock: LockId,
        hold: u64,
        mode: Mode,
        lease: Lease,
    ) -> OpResult {
        match self.of_guard(lock, hold) {
            Ok((lock_slot, mut guard, bounds)) => {
                self.run(lock_slot, &mut guard, Op::Extend { mode, lease }, bounds.as_ref())
            }
            Err(status) => code(self.left_or(status)),
        }
    }

    /// Makes the exclusive hold with this number a share; `AlreadyUnlocked` if the hold was lost.
    /// Returns also whether it is a share now, or may be one.
    pub(crate) fn downgrade_guard(&self, lock: LockId, hold: u64) -> (OpResult, bool) {
        match self.of_guard(lock, hold) {
            Ok((lock_slot, mut guard, bounds)) => {
                let result = self.run(lock_slot, &mut guard, Op::Downgrade, bounds.as_ref());
                let state = guard.as_ref().map(|held| held.entry.state());
                (result, state == Some(EntryState::SharedLocked))
            }
            Err(status) => (code(self.left_or(status)), false),
        }
    }

    /// What this client knows of the hold with this number, and of its session. It sends no
    /// message.
    ///
    /// # Errors
    /// `AlreadyUnlocked`, `Fail` (the hold was lost), `NotReady` (the client has not yet claimed it
    /// at a successor), `BadResponse` (the session is past its horizon, or the lock is in doubt).
    pub(crate) fn known_of_guard(&self, lock: LockId, hold: u64) -> Status {
        let (_lock_slot, guard, _) = match self.of_guard(lock, hold) {
            Ok(found) => found,
            Err(status) => return self.left_or(status),
        };
        let Some(held) = guard.as_ref() else { return Status::AlreadyUnlocked };
        match &held.entry {
            entry if entry.is_known_over(held.clock_of_deadline()) => Status::Fail,
            // the hold moves to the new session once a successor has accepted its claim
            _ if !Arc::ptr_eq(&held.pulse, &self.link.load().pulse) => Status::NotReady,
            entry if entry.in_doubt() && !entry.is_surely_held(held.clock_of_deadline()) => {
                Status::BadResponse
            }
            _ if held.pulse.horizon_ns() <= boot_ns() => Status::BadResponse,
            _ => Status::Success,
        }
    }

    /// Whether the guard with this number holds the lock, and no other client can have it.
    pub(crate) fn surely_has_guard(&self, lock: LockId, hold: u64) -> bool {
        let Ok((_lock_slot, guard, _)) = self.of_guard(lock, hold) else { return false };
        guard.as_ref().is_some_and(|held| held.entry.is_surely_held(held.clock_of_deadline()))
    }

    /// The fencing token of this hold, as far as this client knows it; `None`: the hold is over, or
    /// has no token.
    pub(crate) fn token_of_guard(&self, lock: LockId, hold: u64) -> Option<Token> {
        let (_lock_slot, guard, _) = self.of_guard(lock, hold).ok()?;
        let held = guard.as_ref()?;
        held.entry.token_now(held.clock_of_deadline())
    }

    /// The end of this hold's lease, as this client knows it now; `None`: the hold is over, or
    /// another thread uses the lock for long.
    pub(crate) fn lease_end_of_guard(&self, lock: LockId, hold: u64) -> Option<TimeOut> {
        let (_lock_slot, guard, _) = self.of_guard(lock, hold).ok()?;
        Some(guard.as_ref()?.entry.lease_end())
    }

    /// The fencing token of this client's hold of the lock, as far as the client knows it; `None`:
    /// the hold is over, or has no token.
    pub fn token(&self, lock: LockId) -> Option<Token> {
        let (_lock_slot, guard, _) = self.idle(lock).ok()?;
        let held = guard.as_ref().filter(|held| held.entry.refs() > 0)?;
        held.entry.token_now(held.clock_of_deadline())
    }

    /// Ends the hold of a guard. If the primary cannot be asked, the hold ends all the same,
    /// because no guard could end it later: the client does not claim the hold. The arbiter undoes
    /// it before the next operation on the lock; or, if this client finds the successor by itself,
    /// as soon as there is a primary.
    #[inline]
    pub(crate) fn end_guard(&self, lock: LockId, hold: u64) -> Status {
        // no guard is left that could release the hold later, so this waits twice
        let mut tries = std::iter::repeat_with(|| self.of_guard(lock, hold)).take(END_TRIES_MAX);
        let is_free = |found: &Result<_, Status>| !matches!(found, Err(Status::BadResponse));
        match tries.find(is_free).unwrap_or(Err(Status::BadResponse)) {
            Ok((lock_slot, mut guard, bounds)) => {
                let result = self.run(lock_slot, &mut guard, Op::Unlock, bounds.as_ref());
                match result.status.is_without_primary() {
                    true => self.released_unheard(lock_slot, guard, result).status,
                    false => result.status,
                }
            }
            Err(status) => self.left_or(status),
        }
    }

    pub(super) fn left_or(&self, status: Status) -> Status {
        self.check(Call::Other).map_or_else(|left| left, |()| status)
    }
}

/// Whether a hold of this client keeps a new guard out.
#[inline]
fn in_the_way(held: &mut ClientLock, mode: Mode) -> bool {
    held.entry.takes_leases(); // only guards give holds of a read-write lock a lease
    let is_held = match held.entry.state() {
        EntryState::ExclusiveLocked => true,
        EntryState::SharedLocked => mode == Mode::Exclusive,
        _ => false,
    };
    is_held && !held.gives_up_what_is_over()
}

impl ClientLock {
    /// Gives up a hold that is over though its guard has not ended, if no operation is under way on
    /// the lock. Returns whether there was such a hold.
    fn gives_up_what_is_over(&mut self) -> bool {
        let now = self.clock_of_deadline();
        self.busy == Busy::No && self.entry.gives_up_what_is_over(now)
    }

    /// When the hold of a guard, which keeps this client's other guards out, may be over, on this
    /// host's clock. `u64::MAX`: only its guard, or the operation under way, ends it.
    pub(super) fn may_be_over_at_ns(&self) -> u64 {
        match self.busy {
            Busy::No => self.entry.runs_until_ns(self.clock_of_deadline()),
            Busy::Waiting | Busy::Async => u64::MAX,
        }
    }
}
