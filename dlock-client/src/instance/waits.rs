// SPDX-License-Identifier: MIT OR Apache-2.0
//! The acquire or the release of a guard for futures, from one wait to the next.
//!
//! ```text
//!   New ─▶ Queued (behind other guards of this client) ─▶ Under (waits for an answer) ─▶ Over
//!    ◀─── Away (the primary is gone, and the client looks for its successor) ◀──┘
//!   advance_wait: goes on as far as it can without waiting for its turn or for an answer
//!   cancel: the next advance_wait goes from any of them to Over; then nothing is held or queued
//! ```
//! While a wait is `Under`, its lock slot is as during a thread's wait (`Busy::Waiting`).
//! [`advance`] carries out the effects, as it does for blocking calls. No function of this file
//! blocks: if a thread operates on a lock slot just now, the driver looks at the slot again.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::clock::{Lease, Now};
use dlock_core::ids::{LockId, Seq};
use dlock_core::lock::{Op, OpResult};
use dlock_core::memory::exec::{Executor, Posted};
use dlock_core::memory::word_op::Outcome;
use dlock_core::operation::{Bounds, Operation, Started};
use dlock_core::wire::message::Mode;
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::{boot_ns, deadline_in};

use super::awaits::Awaits;
use super::guards::Attempt;
use super::{code, has_ticket, Instance, ASYNC};
use crate::driver::futures::Tasks;
use crate::driver::heartbeat::Pulse;
use crate::execute::{advance, answered, bounds_of, Advanced, Asked, Chains, DATA_WAIT};
use crate::table::{Busy, LockSlot, LockSlotGuard, LockSlotIndex, Turn};

/// After how long a lock slot, clock or executor in use is looked at again, nanoseconds.
pub(crate) const LOOK_AGAIN_NS: u64 = 2_000_000;
/// After how long an acquire that has no primary looks for one again, nanoseconds.
const AWAY_LOOK_NS: u64 = 20_000_000;
/// After how long a one-sided chain is polled again, nanoseconds: no answer announces its end.
const CHAIN_LOOK_NS: u64 = 100_000;
/// How often such a chain is polled at once: for some microseconds, as long as a round trip takes.
const LOOKS: u32 = 100;
/// How long a release waits for other threads that have the lock in use.
const END_WAIT: Duration = Duration::from_secs(2 * DATA_WAIT.as_secs());

/// The acquire or the release of one guard.
pub(crate) struct GuardWait {
    lock: LockId,
    mode: Mode,
    lease: Lease,
    /// The bounds of the operation; `None`: it has the time of a call, from when it begins.
    bounds: Option<Bounds>,
    until_ns: u64,
    purpose: Purpose,
    stage: Stage,
    /// Whether a lock slot, a clock or an executor that this wait needs is in use just now.
    is_busy: bool,
    /// The executor that was asked for the time: the driver listens for the answer.
    pub(super) asked: Option<Arc<dyn Executor>>,
    /// Whether the future was dropped, so that nothing wants the result.
    is_cancelled: bool,
    /// The clock reading, and the session's pulse, by which the result was decided.
    read: Option<(Now, Arc<Pulse>)>,
    /// Whether the lock had a ticket when the wait's turn came. The ticket is one of a thread,
    /// which asks for the lock once more.
    had_ticket: bool,
    /// How often the client had come back to a primary when the acquire began.
    moves: u64,
}

/// What the operation under way is for.
#[derive(Clone, Copy)]
enum Purpose {
    Take,
    /// The ticket of an acquire is given up; the acquire has this result.
    GiveUp(Attempt),
    /// The hold with this number ends.
    End(u64),
    /// The lease of the hold with this number is renewed.
    Renew(u64),
    /// What the client kept without using it is given back.
    GiveBack,
}

enum Stage {
    New,
    /// An acquire has failed because there is no primary, and the client looks for the successor:
    /// the acquire begins again there. `asked`: the number of the question since which a primary
    /// may have answered.
    Away {
        attempt: Attempt,
        asked: u64,
    },
    /// The acquire is queued behind other guards of this client. It continues when a call changes
    /// that, or at `until_ns`, when the hold that keeps it out may be over.
    Queued {
        lock_slot: LockSlotIndex,
        turn: Turn,
        until_ns: u64,
    },
    Under(Box<Under>),
    Over,
}

/// An operation that has posted a chain or sent a request, and waits for the answer.
struct Under {
    lock_slot: LockSlotIndex,
    operation: Operation,
    awaits: Awaits,
    until_ns: u64,
}

impl GuardWait {
    /// An acquire that begins now.
    pub(crate) fn new(lock: LockId, mode: Mode, lease: Lease, wait: Duration) -> Self {
        let start_ns = boot_ns();
        let until_ns = deadline_in(wait);
        let bounds = Some(Bounds::granted_by(start_ns, until_ns));
        Self {
            lock,
            mode,
            lease,
            bounds,
            until_ns,
            purpose: Purpose::Take,
            stage: Stage::New,
            is_busy: false,
            asked: None,
            is_cancelled: false,
            read: None,
            had_ticket: false,
            moves: 0,
        }
    }

    /// The end of a hold, as a wait.
    pub(crate) fn end(lock: LockId, hold: u64) -> Self {
        let wait = Self::new(lock, Mode::Exclusive, Lease::NONE, END_WAIT);
        Self { purpose: Purpose::End(hold), bounds: None, ..wait }
    }

    /// The renewal of a hold's lease, as a wait.
    pub(crate) fn renewal(lock: LockId, hold: u64) -> Self {
        let wait = Self::new(lock, Mode::Exclusive, Lease::NONE, END_WAIT);
        Self { purpose: Purpose::Renew(hold), bounds: None, ..wait }
    }

    /// The give-back of a lock that the client kept, as a wait.
    pub(crate) fn give_back(lock: LockId) -> Self {
        let wait = Self::new(lock, Mode::Exclusive, Lease::NONE, END_WAIT);
        Self { purpose: Purpose::GiveBack, bounds: None, ..wait }
    }

    /// Records that nothing wants the result any more: what the wait acquires is given back.
    pub(crate) fn cancel(&mut self) {
        self.is_cancelled = true;
    }

    /// Lets the time for the awaited answer end now; for tests.
    #[cfg(test)]
    pub(super) fn expire(&mut self) {
        if let Stage::Under(under) = &mut self.stage {
            under.until_ns = 0;
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled
    }

    pub(crate) fn lock(&self) -> LockId {
        self.lock
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// The clock reading by which the result was decided; `None`: the wait has no result yet.
    pub(crate) fn read(&self) -> Option<(Now, Arc<Pulse>)> {
        self.read.clone()
    }

    fn op(&self) -> Op {
        match self.purpose {
            Purpose::Take => Op::Lock { mode: self.mode, lease: self.lease },
            Purpose::GiveUp(_) | Purpose::End(_) | Purpose::Renew(_) | Purpose::GiveBack => {
                Op::Unlock
            }
        }
    }

    /// Whether no time is left for the operation.
    fn has_no_time(&self) -> bool {
        self.bounds.is_some_and(|bounds| boot_ns() >= bounds.until_ns)
    }

    /// When the wait is to be advanced at the latest, if it is `now_ns` now, and the executor whose
    /// answer it waits for.
    pub(crate) fn waits_for(&self, now_ns: u64) -> (u64, Option<&Arc<dyn Executor>>) {
        let until_ns = match &self.stage {
            Stage::Under(under) => match &under.awaits {
                Awaits::Outcome { exec, .. } if exec.is_one_sided() => {
                    under.until_ns.min(now_ns + CHAIN_LOOK_NS)
                }
                _ => under.until_ns,
            },
            Stage::Away { .. } => now_ns + AWAY_LOOK_NS,
            Stage::Queued { until_ns, .. } => self.until_ns.min(*until_ns),
            _ => self.until_ns,
        };
        let exec = match &self.stage {
            Stage::Under(under) => Some(under.awaits.exec()),
            _ => self.asked.as_ref(),
        };
        (if self.is_busy { until_ns.min(now_ns + LOOK_AGAIN_NS) } else { until_ns }, exec)
    }

    /// Records that the operation has begun, and waits for no answer now.
    pub(super) fn is_over(&mut self) {
        self.stage = Stage::Over;
    }

    /// Records that the wait goes on later, because it needs something that is in use.
    pub(super) fn is_put_off(&mut self) -> Option<Attempt> {
        self.is_busy = true;
        None
    }
}

impl Instance {
    /// Until when this client may rely on what it holds, on its own clock (`boot_ns`); `u64::MAX`:
    /// without end.
    pub(crate) fn horizon_ns(&self) -> u64 {
        self.link.load().pulse.horizon_ns()
    }

    /// As `horizon_ns`, for the session with this pulse; 0: another session has replaced that one.
    pub(crate) fn horizon_ns_of(&self, pulse: &Pulse) -> u64 {
        match std::ptr::eq(pulse, &*self.link.load().pulse) {
            true => pulse.horizon_ns(),
            false => 0,
        }
    }

    /// Goes on as far as possible without waiting for a turn or an answer. Returns the result, if
    /// there is one by now. `tasks` is nudged when another call may bring the wait further.
    pub(crate) fn advance_wait(&self, wait: &mut GuardWait, tasks: &Arc<Tasks>) -> Option<Attempt> {
        (wait.is_busy, wait.asked) = (false, None);
        let Some(watch) = self.watch() else { return self.advance_here(wait, tasks) };
        match wait.stage {
            Stage::Away { attempt, .. } if wait.is_cancelled => return Some(attempt),
            Stage::Away { attempt, asked } => match watch.has_moved_by_now(wait.moves, asked) {
                Some(true) => {
                    wait.stage = Stage::New;
                    wait.bounds = Some(Bounds::granted_by(boot_ns(), wait.until_ns));
                }
                None if boot_ns() < wait.until_ns => return None,
                Some(false) | None => return Some(attempt),
            },
            _ => {}
        }
        if matches!(wait.stage, Stage::New) {
            wait.moves = watch.moves();
        }
        let attempt = self.advance_here(wait, tasks)?;
        let is_acquire = matches!(wait.purpose, Purpose::Take | Purpose::GiveUp(_));
        let is_without = attempt.0.status.is_without_primary();
        if is_acquire && is_without && !wait.is_cancelled && boot_ns() < wait.until_ns {
            wait.stage = Stage::Away { attempt, asked: watch.doubts() };
            wait.purpose = Purpose::Take;
            return None;
        }
        Some(attempt)
    }

    /// [`advance_wait`](Self::advance_wait) at one primary, without looking for a successor.
    fn advance_here(&self, wait: &mut GuardWait, tasks: &Arc<Tasks>) -> Option<Attempt> {
        match wait.stage {
            Stage::New if wait.is_cancelled => {
                wait.stage = Stage::Over;
                Some((code(Status::Fail), 0))
            }
            Stage::New => {
                let Some(index) = self.table.find(wait.lock) else {
                    return Some((code(self.left_or(self.not_got())), 0));
                };
                match wait.purpose {
                    Purpose::End(hold) => self.begin_end(wait, index, hold),
                    Purpose::Renew(hold) => self.begin_renewal(wait, index, hold),
                    Purpose::GiveBack => self.begin_give_back(wait, index),
                    _ => self.take_turn(wait, index, None, tasks),
                }
            }
            Stage::Queued { lock_slot, turn, .. } => {
                self.take_turn(wait, lock_slot, Some(turn), tasks)
            }
            Stage::Under(_) => self.take_answer(wait),
            Stage::Away { .. } | Stage::Over => None,
        }
    }

    fn take_turn(
        &self,
        wait: &mut GuardWait,
        index: LockSlotIndex,
        turn: Option<Turn>,
        tasks: &Arc<Tasks>,
    ) -> Option<Attempt> {
        let lock_slot = self.table.lock_slot(index);
        let Some(mut guard) = lock_slot.try_lock() else { return wait.is_put_off() };
        let is_late = || boot_ns() >= wait.until_ns;
        let refused = match self.may_begin(&mut guard, wait, turn) {
            _ if wait.is_cancelled => Some(Status::Fail),
            Ok(true) if is_ready(&mut wait.asked, &guard) => None,
            Ok(true) if wait.has_no_time() => Some(Status::BadResponse),
            Ok(true) => return wait.is_put_off(),
            Ok(false) if is_late() => Some(Status::Fail),
            Ok(false) => {
                let held = guard.as_mut()?;
                let turn = turn.unwrap_or_else(|| {
                    lock_slot.changed.watch(tasks);
                    held.queue_up()
                });
                let until_ns = held.may_be_over_at_ns();
                wait.stage = Stage::Queued { lock_slot: index, turn, until_ns };
                return None;
            }
            Err(status) => Some(status),
        };
        leave_queue(lock_slot, &mut guard, turn);
        if let Some(status) = refused {
            wait.stage = Stage::Over;
            lock_slot.changed.notify_all();
            return Some((code(status), 0));
        }
        wait.had_ticket = guard.as_ref().is_some_and(|held| has_ticket(held.entry.state()));
        self.begin(wait, index, &mut guard)
    }

    fn may_begin(
        &self,
        guard: &mut LockSlotGuard<'_>,
        wait: &GuardWait,
        turn: Option<Turn>,
    ) -> Result<bool, Status> {
        self.admit()?;
        match guard.as_mut().filter(|held| held.id == wait.lock) {
            Some(held) => self.is_turn(held, wait.mode, turn),
            None => Err(self.not_got()),
        }
    }

    /// Begins to end a hold, as [`end_guard`](Self::end_guard) does.
    fn begin_end(&self, wait: &mut GuardWait, index: LockSlotIndex, hold: u64) -> Option<Attempt> {
        let lock_slot = self.table.lock_slot(index);
        let guard = lock_slot.try_lock();
        let is_late = || boot_ns() >= wait.until_ns;
        let ended = match guard.as_ref().map(|guard| guard.as_ref()) {
            None if is_late() => Status::BadResponse,
            None => return wait.is_put_off(),
            Some(Some(held)) if held.id == wait.lock => match held.busy {
                Busy::Async => self.refuse(ASYNC),
                _ if held.entry.holds() != hold || held.entry.refs() == 0 => {
                    Status::AlreadyUnlocked
                }
                Busy::No if is_ready(&mut wait.asked, guard.as_ref()?) => {
                    return self.begin(wait, index, &mut guard?);
                }
                _ if is_late() => Status::BadResponse,
                _ => return wait.is_put_off(),
            },
            Some(_) => self.not_got(),
        };
        wait.stage = Stage::Over;
        Some((code(self.left_or(ended)), 0))
    }

    /// Begins the operation of a wait.
    fn begin(
        &self,
        wait: &mut GuardWait,
        index: LockSlotIndex,
        guard: &mut LockSlotGuard<'_>,
    ) -> Option<Attempt> {
        wait.is_over();
        let Some(held) = guard.as_mut() else { return Some((code(Status::LockNotGet), 0)) };
        let op = wait.op();
        if let Some(status) = held.unfounded(op) {
            return self.ended(wait, index, guard, code(status));
        }
        let now = match op {
            Op::Unlock => held.clock(op),
            _ => held.fresh(),
        };
        held.last_now = now;
        let bounds = bounds_of(wait.bounds.as_ref(), now.local_ns);
        match Operation::begin(&mut held.entry, op, now, bounds) {
            Started::Done(result) => self.ended(wait, index, guard, result),
            Started::Running(operation) => self.carry_on(wait, (index, guard), operation, None),
        }
    }

    fn take_answer(&self, wait: &mut GuardWait) -> Option<Attempt> {
        let Stage::Under(under) = &mut wait.stage else { return None };
        let lock_slot = self.table.lock_slot(under.lock_slot);
        let Some(mut guard) = lock_slot.try_lock() else { return wait.is_put_off() };
        let is_late = boot_ns() >= under.until_ns;
        let (mut reply, mut outcome) = (Ok(None), None);
        match &under.awaits {
            Awaits::Reply { asked, .. } => reply = asked.exec.reply(asked.seq, 0),
            Awaits::Outcome { seq, exec } => outcome = exec.poll(Posted::Pending(*seq)),
        }
        let has_come = !matches!(reply, Ok(None)) || outcome.is_some();
        let is_grant = matches!(under.awaits, Awaits::Reply { grant: true, .. });
        let gives_up = !has_come && is_grant && wait.is_cancelled;
        if !has_come && !is_late && !gives_up {
            return None;
        }
        let Stage::Under(under) = std::mem::replace(&mut wait.stage, Stage::Over) else {
            return None;
        };
        let Under { lock_slot: index, mut operation, mut awaits, .. } = *under;
        let Some(held) = guard.as_mut().filter(|held| held.id == wait.lock) else {
            awaits.forget();
            return Some((code(self.left_or(Status::LockNotGet)), 0));
        };
        if !has_come && (gives_up || matches!(awaits, Awaits::Outcome { .. })) {
            awaits.forget();
        }
        let is_same_session = Arc::ptr_eq(&held.exec, awaits.exec());
        match awaits {
            Awaits::Reply { mut asked, .. } if !(gives_up && is_same_session) => {
                answered(lock_slot, &mut guard, &mut operation, &mut asked, reply);
                return self.carry_on(wait, (index, &mut guard), operation, Some(asked));
            }
            Awaits::Reply { .. } => {
                held.busy = Busy::No;
                let now = held.unasked();
                operation.give_up(&mut held.entry, Status::TimedOut, now);
            }
            Awaits::Outcome { .. } => {
                held.busy = Busy::No;
                match is_same_session {
                    true => held.outcome(&mut operation, outcome.unwrap_or(Outcome::Unknown)),
                    // an answer of the old session says nothing about the new one, where the
                    // arbiter undoes what the operation did
                    false => {
                        let now = held.unasked();
                        operation.give_up(&mut held.entry, Status::BadResponse, now);
                    }
                }
            }
        }
        self.carry_on(wait, (index, &mut guard), operation, None)
    }

    /// Carries out effects, up to the result or the next wait.
    pub(super) fn carry_on(
        &self,
        wait: &mut GuardWait,
        (index, guard): (LockSlotIndex, &mut LockSlotGuard<'_>),
        mut operation: Operation,
        mut asked: Option<Asked>,
    ) -> Option<Attempt> {
        loop {
            let Some(held) = guard.as_mut() else { return Some((code(Status::LockNotGet), 0)) };
            let advanced = advance(held, &mut operation, &mut asked, Chains::Posted);
            let (awaits, until_ns) = match (advanced, asked.take()) {
                (Advanced::Done(result), _) => return self.ended(wait, index, guard, result),
                (Advanced::Waits { until_ns }, Some(mut asked)) => {
                    // other threads may lock the lock's slot, also if this request waits for no
                    // grant
                    let grant = std::mem::replace(&mut asked.is_wait, true);
                    (Awaits::Reply { asked, grant }, until_ns)
                }
                (Advanced::Posted { seq, until_ns }, before) => {
                    if let Some(outcome) = soon(&*held.exec, seq) {
                        held.outcome(&mut operation, outcome);
                        asked = before;
                        continue;
                    }
                    (Awaits::Outcome { seq, exec: Arc::clone(&held.exec) }, until_ns)
                }
                (Advanced::Pauses { .. }, before) => {
                    // the thread has other waits to carry out: the operation queues at once
                    operation.queues(&mut held.entry);
                    asked = before;
                    continue;
                }
                (Advanced::Waits { .. }, None) => continue,
            };
            held.busy = Busy::Waiting;
            let under = Under { lock_slot: index, operation, awaits, until_ns };
            wait.stage = Stage::Under(Box::new(under));
            return None;
        }
    }

    /// The operation has its result. That is the result of the wait, unless a hold or a ticket is
    /// to be given back first.
    fn ended(
        &self,
        wait: &mut GuardWait,
        index: LockSlotIndex,
        guard: &mut LockSlotGuard<'_>,
        result: OpResult,
    ) -> Option<Attempt> {
        let lock_slot = self.table.lock_slot(index);
        let read = guard.as_ref().map(|held| (held.fresh(), Arc::clone(&held.pulse)));
        if let Purpose::Renew(_) | Purpose::GiveBack = wait.purpose {
            self.tells(guard);
            if let Some(held) = guard.as_ref() {
                self.leaves_in_doubt(held);
            }
            lock_slot.changed.notify_all(); // the caller is the library, which needs no result
            return Some((result, 0));
        }
        let result = self.told(lock_slot, guard, wait.op(), result);
        let is_without = result.status.is_without_primary();
        let Some(held) = guard.as_mut() else { return Some((result, 0)) };
        match wait.purpose {
            Purpose::Take | Purpose::Renew(_) | Purpose::GiveBack => {}
            Purpose::GiveUp(attempt) => {
                if is_without {
                    held.release_unheard(result.status); // the ticket is no longer claimed
                    self.leaves_in_doubt(held);
                }
                lock_slot.changed.notify_all();
                return Some(attempt);
            }
            Purpose::End(_) => {
                let result = match is_without {
                    true => self.unheard(held, result),
                    false => result,
                };
                lock_slot.changed.notify_all();
                return Some((result, 0));
            }
        }
        wait.read = read;
        let attempt = (result, held.entry.holds());
        let is_held = matches!(result.status, Status::Success | Status::AlreadyLocked);
        let keeps_ticket = wait.had_ticket && self.watch().is_some() && is_without;
        let has_ticket = has_ticket(held.entry.state());
        lock_slot.changed.notify_all();
        match is_held {
            true if wait.is_cancelled => {
                log::debug!("lock {}: granted to a future that is gone, and released", wait.lock);
                wait.purpose = Purpose::End(attempt.1);
            }
            false if has_ticket && !keeps_ticket => wait.purpose = Purpose::GiveUp(attempt),
            _ => return Some(attempt),
        }
        wait.bounds = None;
        self.begin(wait, index, guard)
    }
}

/// Whether the clock and the executor of a lock are ready; if not, `asked` is that executor.
pub(super) fn is_ready(asked: &mut Option<Arc<dyn Executor>>, guard: &LockSlotGuard<'_>) -> bool {
    let exec = guard.as_ref().map(|held| &held.exec);
    *asked = exec.filter(|exec| !(exec.is_clock_ready() && exec.has_room())).cloned();
    asked.is_none()
}

/// Polls for the outcome of a one-sided chain, which most often comes at once.
fn soon(exec: &dyn Executor, seq: Seq) -> Option<Outcome> {
    let looks = if exec.is_one_sided() { LOOKS } else { 0 };
    (0..looks).find_map(|_| {
        std::hint::spin_loop();
        exec.poll(Posted::Pending(seq))
    })
}

fn leave_queue(lock_slot: &LockSlot, guard: &mut LockSlotGuard<'_>, turn: Option<Turn>) {
    let Some(turn) = turn else { return };
    if let Some(held) = guard.as_mut() {
        held.leave_queue(turn);
    }
    lock_slot.changed.unwatch();
}
