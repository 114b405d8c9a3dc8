// SPDX-License-Identifier: MIT OR Apache-2.0
//! What guards are built on: holds that belong to one guard, not to the whole client.
//!
//! ```text
//!   try_guard, wait_guard ─▶ free of other guards? ─▶ TryLock / Lock ─▶ hold number n
//!   end_guard(n), extend_guard(n) ─▶ n is still the hold? ─▶ Unlock / Extend
//!                                                    └ no ─▶ AlreadyUnlocked: it was lost
//! ```
//! Threads of one client that wait for the same lock are served in order, by at most one place
//! in the primary's queue.

use dlock_core::clock::Lease;
use std::sync::Arc;
use std::time::Instant;

use dlock_core::ids::LockId;
use dlock_core::lock::{EntryState, Op, OpResult};
use dlock_core::session::Call;
use dlock_core::token::Token;
use dlock_core::wire::message::Mode;
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::boot_ns;

use super::data::has_ticket;
use super::{code, Instance, ASYNC};
use crate::execute::{Limit, DATA_WAIT};
use crate::table::{Busy, ClientLock, LockSlot, LockSlotGuard, Turn};

/// A result and, if the lock is held now, the number of the hold.
pub(crate) type Attempt = (OpResult, u64);

/// Times that the end of a guard waits for the lock's slot, up to 5 s each.
const END_TRIES_MAX: usize = 2;

impl Instance {
    /// As [`trylock`](Self::trylock), for guards: a lock this client holds already is not
    /// entered again, but for shared holds of a lock that is held shared.
    ///
    /// # Errors
    /// As `trylock`; `Fail` if another guard of this client is in the way, or queued for it.
    #[inline]
    pub(crate) fn try_guard(&self, lock: LockId, mode: Mode, lease: Lease) -> Attempt {
        if let Err(status) = self.admit() {
            return (code(status), 0);
        }
        match self.idle(lock) {
            Ok((lock_slot, mut guard, limit)) => {
                if guard.as_ref().is_some_and(|held| !held.queue.is_empty()) {
                    return (code(Status::Fail), 0);
                }
                if guard.as_ref().is_some_and(|held| in_the_way(held, mode)) {
                    return (code(Status::Fail), 0);
                }
                let result = self.run(lock_slot, &mut guard, Op::TryLock { mode, lease }, &limit);
                self.attempted(lock_slot, &mut guard, result)
            }
            Err(status) => (code(status), 0),
        }
    }

    /// As [`lock`](Self::lock), for guards, waiting for other guards of this client, too.
    pub(crate) fn wait_guard(
        &self,
        lock: LockId,
        mode: Mode,
        lease: Lease,
        deadline: Instant,
    ) -> Attempt {
        let Some(watch) = self.watch() else {
            return self.wait_guard_here(lock, mode, lease, deadline);
        };
        let mut has_kept = false;
        loop {
            let moves = watch.moves();
            let attempt = self.wait_guard_here(lock, mode, lease, deadline);
            let is_without = attempt.0.status.is_without_primary();
            if is_without && watch.has_moved(moves, deadline) {
                has_kept = true; // a ticket, perhaps
                continue;
            }
            let is_held = matches!(attempt.0.status, Status::Success | Status::AlreadyLocked);
            if !is_held && (is_without || has_kept) {
                self.give_ticket_up(lock);
            }
            return attempt;
        }
    }

    /// No guard waits for the turn of a ticket any more.
    fn give_ticket_up(&self, lock: LockId) {
        if let Ok((lock_slot, mut guard, _)) = self.idle(lock) {
            self.give_up_in(lock_slot, &mut guard);
        }
    }

    /// The same of a lock whose slot is locked.
    pub(super) fn give_up_in(&self, lock_slot: &LockSlot, guard: &mut LockSlotGuard<'_>) {
        if guard.as_ref().is_some_and(|held| has_ticket(held.entry.state())) {
            let result = self.run(lock_slot, guard, Op::Unlock, &Limit::NOW);
            if let Some(held) = guard.as_mut().filter(|_| result.status.is_without_primary()) {
                held.release_unheard(result.status); // it was claimed, and is not any more
                self.leaves_in_doubt(held);
            }
        }
    }

    /// The same at one primary: if that is gone, a ticket is kept.
    fn wait_guard_here(
        &self,
        lock: LockId,
        mode: Mode,
        lease: Lease,
        deadline: Instant,
    ) -> Attempt {
        if let Err(status) = self.admit() {
            return (code(status), 0);
        }
        let start = Instant::now();
        let limit = Limit::to(start, deadline);
        let (lock_slot, mut guard) = match self.opened(lock, start + DATA_WAIT) {
            Ok(opened) => opened,
            Err(status) => return (code(status), 0),
        };
        let turn = self.await_turn(lock_slot, &mut guard, lock, mode, deadline);
        if let Err(status) = turn {
            lock_slot.changed.notify_all();
            return (code(status), 0);
        }
        let result = self.run(lock_slot, &mut guard, Op::Lock { mode, lease }, &limit);
        let attempt = self.attempted(lock_slot, &mut guard, result);
        lock_slot.changed.notify_all(); // a shared hold admits others, a failure hands the turn on
        attempt
    }

    /// Until no other guard and no earlier thread of this client is in the way.
    fn await_turn(
        &self,
        lock_slot: &LockSlot,
        guard: &mut LockSlotGuard<'_>,
        lock: LockId,
        mode: Mode,
        deadline: Instant,
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
            if lock_slot.changed.wait_until(guard, deadline).timed_out() {
                break Err(Status::Fail);
            }
        };
        if let (Some(held), Some(mine)) = (guard.as_mut(), mine) {
            held.leave_queue(mine);
        }
        result
    }

    /// Whether neither another guard nor an earlier place in the queue excludes this one.
    pub(super) fn is_turn(
        &self,
        held: &ClientLock,
        mode: Mode,
        mine: Option<Turn>,
    ) -> Result<bool, Status> {
        let is_next = held.queue.front().is_none_or(|&first| Some(first) == mine);
        let is_kept_out = in_the_way(held, mode);
        match held.busy {
            Busy::No => Ok(is_next && !is_kept_out),
            Busy::Waiting => Ok(false),
            Busy::Async => Err(self.refuse(ASYNC)),
        }
    }

    /// The number of the hold; or gives the ticket up: without a guard there is none.
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

    /// The lock slot of a lock that is held by the guard with this number.
    #[inline]
    pub(super) fn of_guard(
        &self,
        lock: LockId,
        hold: u64,
    ) -> Result<(&LockSlot, LockSlotGuard<'_>, Limit), Status> {
        let (lock_slot, guard, limit) = match self.idle(lock) {
            Err(Status::Fail) => return self.of_guard_in_use(lock, hold),
            found => found?,
        };
        match guard.as_ref() {
            Some(held) if held.entry.holds() == hold && held.entry.refs() > 0 => {
                Ok((lock_slot, guard, limit))
            }
            _ => Err(Status::AlreadyUnlocked),
        }
    }

    /// The same of a lock on which an operation is under way: of a future that shares the lock, or
    /// the renewal of the hold. If this hold is over, the operation is not waited for.
    #[cold]
    fn of_guard_in_use(
        &self,
        lock: LockId,
        hold: u64,
    ) -> Result<(&LockSlot, LockSlotGuard<'_>, Limit), Status> {
        let start = Instant::now();
        let deadline = start + DATA_WAIT;
        let (lock_slot, mut guard) = self.opened(lock, deadline)?;
        loop {
            let held = guard.as_ref().filter(|held| held.id == lock);
            let held = held.ok_or_else(|| self.not_got())?;
            match held.busy {
                _ if held.entry.holds() != hold || held.entry.refs() == 0 => {
                    return Err(Status::AlreadyUnlocked);
                }
                Busy::No => return Ok((lock_slot, guard, Limit::since(start))),
                Busy::Async => return Err(self.refuse(ASYNC)),
                Busy::Waiting => {}
            }
            if lock_slot.changed.wait_until(&mut guard, deadline).timed_out() {
                return Err(Status::BadResponse);
            }
        }
    }

    /// [`extend`](Self::extend) for the guard with this number; `AlreadyUnlocked` if its hold
    /// was lost.
    pub(crate) fn extend_guard(
        &self,
        lock: LockId,
        hold: u64,
        mode: Mode,
        lease: Lease,
    ) -> OpResult {
        match self.of_guard(lock, hold) {
            Ok((lock_slot, mut guard, limit)) => {
                self.run(lock_slot, &mut guard, Op::Extend { mode, lease }, &limit)
            }
            Err(status) => code(self.left_or(status)),
        }
    }

    /// What this client knows of the hold of the guard with this number, and of its session.
    /// No message is sent.
    ///
    /// # Errors
    /// `AlreadyUnlocked`, `Fail` (it was lost), `NotReady` (a successor was not told of it yet),
    /// `BadResponse` (the session is past its horizon, or the lock is in doubt).
    pub(crate) fn known_of_guard(&self, lock: LockId, hold: u64) -> Status {
        let (_lock_slot, guard, _) = match self.of_guard(lock, hold) {
            Ok(found) => found,
            Err(status) => return self.left_or(status),
        };
        let Some(held) = guard.as_ref() else { return Status::AlreadyUnlocked };
        match &held.entry {
            entry if entry.is_lost() => Status::Fail,
            // it goes over to the session once a successor has taken the claim
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
    /// it has none.
    pub(crate) fn token_of_guard(&self, lock: LockId, hold: u64) -> Option<Token> {
        let (_lock_slot, guard, _) = self.of_guard(lock, hold).ok()?;
        guard.as_ref()?.entry.token()
    }

    /// The fencing token of what this client holds of the lock, as far as it knows; `None`: it
    /// holds nothing, or has got the lock without tokens.
    pub fn token(&self, lock: LockId) -> Option<Token> {
        let (_lock_slot, guard, _) = self.idle(lock).ok()?;
        guard.as_ref().filter(|held| held.entry.refs() > 0)?.entry.token()
    }

    /// The end of a guard. If the primary cannot be asked, the hold is over all the same: no guard
    /// can end it later. It is not claimed, and is undone before the next operation on the lock, or
    /// as soon as there is a primary if this client finds that by itself.
    #[inline]
    pub(crate) fn end_guard(&self, lock: LockId, hold: u64) -> Status {
        // the hold has no guard any more that could release it later
        let mut tries = std::iter::repeat_with(|| self.of_guard(lock, hold)).take(END_TRIES_MAX);
        let is_free = |found: &Result<_, Status>| !matches!(found, Err(Status::BadResponse));
        match tries.find(is_free).unwrap_or(Err(Status::BadResponse)) {
            Ok((lock_slot, mut guard, limit)) => {
                let result = self.run(lock_slot, &mut guard, Op::Unlock, &limit);
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
fn in_the_way(held: &ClientLock, mode: Mode) -> bool {
    match held.entry.state() {
        EntryState::ExclusiveLocked => true,
        EntryState::SharedLocked => mode == Mode::Exclusive,
        _ => false,
    }
}
