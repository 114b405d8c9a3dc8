// SPDX-License-Identifier: MIT OR Apache-2.0
//! What futures are built on: the acquire of a guard, from one wait to the next.
//!
//! ```text
//!   New ─▶ Queued (behind other guards of this client) ─▶ Granting (queued at the arbiter) ─▶ Over
//!   advance_wait: as far as it comes without waiting for its turn or its grant
//!   cancel_wait:  from any of them to Over; nothing is held or queued then
//! ```
//! While a wait is `Granting` its lock slot is as during a thread's wait (`Busy::Waiting`). The
//! effects are carried out by [`advance`], as those of blocking calls are.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::clock::Now;
use dlock_core::ids::LockId;
use dlock_core::lock::{Op, OpResult};
use dlock_core::message::Mode;
use dlock_core::operation::{Operation, Started};
use dlock_core::status::Status;
use dlock_fabric::clock::boot_ns;

use super::guards::Attempt;
use super::{code, has_ticket, Instance};
use crate::execute::{advance, answered, await_reply, left_ns, Advanced, Asked, Limit};
use crate::heartbeat::Pulse;
use crate::table::{Busy, LockSlot, LockSlotGuard, LockSlotIndex, Turn};
use crate::tasks::Tasks;

/// The acquire of one guard.
pub(crate) struct GuardWait {
    lock: LockId,
    mode: Mode,
    expire_s: u32,
    limit: Limit,
    deadline: Instant,
    stage: Stage,
    /// The clock when the result was decided.
    read: Option<(Now, Arc<Pulse>)>,
    /// The lock had a ticket when its turn came: a thread's, which asks for it once more.
    had_ticket: bool,
}

enum Stage {
    New,
    Queued { lock_slot: LockSlotIndex, turn: Turn },
    Granting(Box<Granting>),
    Over,
}

/// What is waited for at the arbiter.
struct Granting {
    lock_slot: LockSlotIndex,
    operation: Operation,
    asked: Asked,
    until_ns: u64,
}

impl GuardWait {
    /// Of a call that begins now.
    pub(crate) fn new(lock: LockId, mode: Mode, expire_s: u32, wait: Duration) -> Self {
        let start = Instant::now();
        let deadline = start + wait;
        let limit = Limit::to(start, deadline);
        Self {
            lock,
            mode,
            expire_s,
            limit,
            deadline,
            stage: Stage::New,
            read: None,
            had_ticket: false,
        }
    }

    pub(crate) fn lock(&self) -> LockId {
        self.lock
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// The clock by which the result was decided, if it has one.
    pub(crate) fn read(&self) -> Option<(Now, Arc<Pulse>)> {
        self.read.clone()
    }

    fn op(&self) -> Op {
        Op::Lock { mode: self.mode, expire_s: self.expire_s }
    }

    /// When it is to be advanced at the latest, and the request whose reply it waits for.
    pub(crate) fn waits_for(&self) -> (Duration, Option<&Asked>) {
        match &self.stage {
            Stage::Granting(granting) => (left_ns(granting.until_ns), Some(&granting.asked)),
            _ => (self.deadline.saturating_duration_since(Instant::now()), None),
        }
    }
}

impl Instance {
    /// Until when this client may rely on what it holds, on the local clock (`boot_ns`);
    /// `u64::MAX`: without end.
    pub(crate) fn horizon_ns(&self) -> u64 {
        self.link.load().pulse.horizon_ns()
    }

    /// The same of what it holds on the session of this pulse; 0: another one has taken its place.
    pub(crate) fn horizon_ns_of(&self, pulse: &Pulse) -> u64 {
        match std::ptr::eq(pulse, &*self.link.load().pulse) {
            true => pulse.horizon_ns(),
            false => 0,
        }
    }

    /// Goes on as far as possible without waiting for a turn or a grant: the result, if there is
    /// one by now. `tasks` is nudged when another call may bring it further.
    pub(crate) fn advance_wait(&self, wait: &mut GuardWait, tasks: &Arc<Tasks>) -> Option<Attempt> {
        match wait.stage {
            Stage::New => {
                let Some(index) = self.table.find(wait.lock) else {
                    return Some((code(self.left_or(self.not_got())), 0));
                };
                self.take_turn(wait, index, None, tasks)
            }
            Stage::Queued { lock_slot, turn } => self.take_turn(wait, lock_slot, Some(turn), tasks),
            Stage::Granting(_) => self.take_grant(wait),
            Stage::Over => None,
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
        let mut guard = lock_slot.lock();
        let refused = match self.may_begin(&guard, wait, turn) {
            Ok(true) => None,
            Ok(false) if Instant::now() >= wait.deadline => Some(Status::Fail),
            Ok(false) => {
                if let (None, Some(held)) = (turn, guard.as_mut()) {
                    lock_slot.changed.watch(tasks);
                    wait.stage = Stage::Queued { lock_slot: index, turn: held.queue_up() };
                }
                return None;
            }
            Err(status) => Some(status),
        };
        leave_queue(lock_slot, &mut guard, turn);
        wait.stage = Stage::Over;
        if let Some(status) = refused {
            lock_slot.changed.notify_all();
            return Some((code(status), 0));
        }
        let Some(held) = guard.as_mut() else { return Some((code(Status::LockNotGet), 0)) };
        wait.had_ticket = has_ticket(held.entry.state());
        if let Some(status) = held.unfounded(wait.op()) {
            return Some(self.ended(lock_slot, &mut guard, wait, code(status)));
        }
        let now = held.now();
        held.last_now = now;
        let bounds = wait.limit.bounds(now.local_ns);
        match Operation::begin(&mut held.entry, wait.op(), now, bounds) {
            Started::Done(result) => Some(self.ended(lock_slot, &mut guard, wait, result)),
            Started::Running(operation) => {
                self.carry_on(wait, (index, &mut guard), Box::new(operation), None)
            }
        }
    }

    fn may_begin(
        &self,
        guard: &LockSlotGuard<'_>,
        wait: &GuardWait,
        turn: Option<Turn>,
    ) -> Result<bool, Status> {
        self.admit()?;
        match guard.as_ref().filter(|held| held.id == wait.lock) {
            Some(held) => self.is_turn(held, wait.mode, turn),
            None => Err(self.not_got()),
        }
    }

    fn take_grant(&self, wait: &mut GuardWait) -> Option<Attempt> {
        let Stage::Granting(granting) = &wait.stage else { return None };
        let reply = granting.asked.exec.reply(granting.asked.seq, Duration::ZERO);
        if matches!(reply, Ok(None)) && boot_ns() < granting.until_ns {
            return None;
        }
        let Stage::Granting(mut granting) = std::mem::replace(&mut wait.stage, Stage::Over) else {
            return None;
        };
        let lock_slot = self.table.lock_slot(granting.lock_slot);
        let mut guard = lock_slot.lock();
        if guard.as_ref().is_none_or(|held| held.id != wait.lock) {
            granting.forget();
            return Some((code(self.left_or(Status::LockNotGet)), 0));
        }
        let Granting { lock_slot: index, mut operation, mut asked, .. } = *granting;
        answered(lock_slot, &mut guard, &mut operation, &mut asked, reply);
        self.carry_on(wait, (index, &mut guard), Box::new(operation), Some(asked))
    }

    /// From effect to effect, up to the result or the next wait for a grant.
    fn carry_on(
        &self,
        wait: &mut GuardWait,
        (index, guard): (LockSlotIndex, &mut LockSlotGuard<'_>),
        mut operation: Box<Operation>,
        mut asked: Option<Asked>,
    ) -> Option<Attempt> {
        let lock_slot = self.table.lock_slot(index);
        loop {
            let until_ns = match advance(guard, &mut operation, &mut asked) {
                Advanced::Done(result) => return Some(self.ended(lock_slot, guard, wait, result)),
                Advanced::Waits { until_ns } => until_ns,
                Advanced::Pauses { .. } => {
                    // the thread that polls this future has others to poll
                    if let Some(held) = guard.as_mut() {
                        operation.queues(&mut held.entry);
                    }
                    continue;
                }
            };
            match asked.take() {
                Some(asked) if asked.is_wait => {
                    if let Some(held) = guard.as_mut() {
                        held.busy = Busy::Waiting;
                    }
                    let operation = *operation;
                    let granting = Granting { lock_slot: index, operation, asked, until_ns };
                    wait.stage = Stage::Granting(Box::new(granting));
                    return None;
                }
                Some(mut other) => {
                    await_reply(lock_slot, guard, &mut operation, &mut other, until_ns);
                    asked = Some(other);
                }
                None => {}
            }
        }
    }

    fn ended(
        &self,
        lock_slot: &LockSlot,
        guard: &mut LockSlotGuard<'_>,
        wait: &mut GuardWait,
        result: OpResult,
    ) -> Attempt {
        wait.read = guard.as_ref().map(|held| (held.now(), Arc::clone(&held.pulse)));
        let result = self.told(lock_slot, guard, wait.op(), result);
        let attempt = self.attempted(lock_slot, guard, result);
        if !wait.had_ticket && self.watch().is_some() && attempt.0.status.is_without_primary() {
            self.give_up_in(lock_slot, guard); // it is not asked for once more
        }
        lock_slot.changed.notify_all();
        attempt
    }

    /// Ends a wait whose caller has gone: a grant that has come is released, and what is
    /// queued is taken out, at the arbiter by a message that is sent before this returns.
    pub(crate) fn cancel_wait(&self, mut wait: GuardWait) {
        let mut attempt = match std::mem::replace(&mut wait.stage, Stage::Over) {
            Stage::New | Stage::Over => return,
            Stage::Queued { lock_slot, turn } => {
                let lock_slot = self.table.lock_slot(lock_slot);
                leave_queue(lock_slot, &mut lock_slot.lock(), Some(turn));
                lock_slot.changed.notify_all();
                return;
            }
            Stage::Granting(granting) => {
                let reply = granting.asked.exec.reply(granting.asked.seq, Duration::ZERO);
                self.cancel_grant(&mut wait, granting, reply.transpose())
            }
        };
        // the grant was late, and the lock is waited for anew
        if let Stage::Granting(granting) = std::mem::replace(&mut wait.stage, Stage::Over) {
            attempt = self.cancel_grant(&mut wait, granting, None);
        }
        if let Some((result, number)) = attempt {
            if matches!(result.status, Status::Success | Status::AlreadyLocked) {
                let status = self.end_guard(wait.lock, number);
                log::debug!("lock {}: granted to nobody, and released: {status}", wait.lock);
            }
        }
    }

    fn cancel_grant(
        &self,
        wait: &mut GuardWait,
        mut granting: Box<Granting>,
        came: Option<Result<dlock_core::message::Reply, Status>>,
    ) -> Option<Attempt> {
        let lock_slot = self.table.lock_slot(granting.lock_slot);
        let mut guard = lock_slot.lock();
        let Some(held) = guard.as_mut().filter(|held| held.id == wait.lock) else {
            granting.forget();
            return None;
        };
        if came.is_none() {
            granting.forget();
        }
        let Granting { lock_slot: index, mut operation, mut asked, .. } = *granting;
        let is_same_session = Arc::ptr_eq(&held.exec, &asked.exec);
        match came {
            None if is_same_session => {
                held.busy = Busy::No;
                let now = held.now();
                operation.give_up(&mut held.entry, Status::TimedOut, now);
            }
            came => answered(lock_slot, &mut guard, &mut operation, &mut asked, came.transpose()),
        }
        self.carry_on(wait, (index, &mut guard), Box::new(operation), None)
    }
}

impl Granting {
    /// Its reply is not wanted any more.
    fn forget(&mut self) {
        self.asked.take_ping();
        self.asked.exec.forget(self.asked.seq);
    }
}

fn leave_queue(lock_slot: &LockSlot, guard: &mut LockSlotGuard<'_>, turn: Option<Turn>) {
    let Some(turn) = turn else { return };
    if let Some(held) = guard.as_mut() {
        held.leave_queue(turn);
    }
    lock_slot.changed.unwatch();
}
