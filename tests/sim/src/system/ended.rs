// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client's thread does when an operation is over, or its hold was ended.

use dlock_core::clock::Now;
use dlock_core::lock::{EntryState, LockEntry, Op, OpResult};
use dlock_core::operation::Operation;
use dlock_core::session::{self, Failover, Heartbeats};
use dlock_core::wire::status::Status;

use super::control::Stage as ControlStage;
use super::coverage::Action;
use super::state::{Doing, Sys};

impl Sys {
    /// The primary has ended the client's holds without a lease. If an operation is under way on
    /// such a hold, the hold counts as lost only when the operation is over.
    pub(super) fn lapse(&mut self, c: usize, l: usize) {
        let who = self.who(c);
        let t = self.thread(c, l);
        let Some(entry) = t.entry.as_mut() else { return };
        let begins = t.first.is_some() || t.doing == Doing::Batch;
        if t.operation.is_some() || begins {
            let has = !matches!(entry.state(), EntryState::Initialized | EntryState::Unlocked);
            t.lapse |= has || begins;
            if has && entry.deadline().is_never() {
                self.oracle.ended(l, who);
            }
        } else if entry.lapse() {
            self.oracle.ended(l, who);
        }
    }

    /// Forgets the handle of the lock, because the client believes that it has none.
    pub(super) fn forget_lock(&mut self, c: usize, l: usize) {
        let who = self.who(c);
        self.oracle.untold(l, who);
        self.enter(c, l, Doing::Nothing);
        let t = self.thread(c, l);
        (t.entry, t.operation, t.first, t.lapse) = (None, None, None, false);
        t.cached.asks_nothing();
        self.clients[c].releases.retain(|&r| usize::from(r) != l);
    }

    /// The recovery is over: drops the handles of the locks that the client has not claimed. Its
    /// programs get these locks again.
    pub(super) fn gives_claims_up(&mut self, c: usize) {
        let epoch = self.clients[c].epoch;
        for l in 0..self.clients[c].threads.len() {
            let t = &self.clients[c].threads[l];
            if t.entry.is_some() && t.epoch != epoch {
                self.forget_lock(c, l);
            }
        }
    }

    /// The program stops waiting for the answer to its release. The request may have reached the
    /// primary or not; later requests on this connection are read after it.
    pub(super) fn release_unanswered(&mut self, c: usize, l: usize) {
        let t = self.thread(c, l);
        if let Some(entry) = &mut t.entry {
            entry.leaves();
        }
        t.doing = Doing::Idle;
        let ns = self.rng.pick(&[1_000, 100_000, 50_000_000]);
        self.step_after(c, l, ns);
        self.clients[c].control = ControlStage::Sleep;
        self.control_soon(c, false);
    }

    /// Handles the result of the thread's operation. The result of an asynchronous operation is
    /// checked and returned when the program polls.
    pub(super) fn done(&mut self, c: usize, l: usize, result: OpResult) {
        let now = self.thread_now(c, l);
        let t = self.thread(c, l);
        let is_at_once = result.status == Status::BadResponse || t.action == Action::Abandon;
        if t.async_until == 0 || t.judged || !t.polled && is_at_once {
            return self.finish(c, l, result);
        }
        if !t.polled {
            self.enter(c, l, Doing::Untold);
            return self.poll_later(c, l);
        }
        t.judged = true;
        if let (Some(operation), Some(entry)) = (t.operation.as_mut(), t.entry.as_ref()) {
            operation.told_late(entry, now);
        }
        self.effect(c, l);
    }

    /// Returns the result of the operation to the caller.
    pub(super) fn finish(&mut self, c: usize, l: usize, result: OpResult) {
        if let Some(why) = self.unreleased(c, l, &result) {
            self.fail(why);
        }
        if result.status == Status::Fail {
            self.told_lost(c, l);
        }
        let result = self.unheard(c, l, result);
        self.told(c, l, result);
        self.hears(c, l);
        let entry = self.clients[c].threads[l].entry.as_ref();
        if entry.is_some_and(LockEntry::is_to_be_undone) {
            self.leaves_in_doubt(c);
        }
        let t = self.thread(c, l);
        let is_renewal = t.operation.as_ref().is_some_and(Operation::is_renewal);
        (t.operation, t.first, t.chain, t.outcome) = (None, None, None, None);
        (t.asked, t.answer, t.ping, t.pinged) = (None, None, None, false);
        (t.async_until, t.polled, t.judged) = (0, false, false);
        (t.at_once, t.past_queue) = (false, false);
        self.enter(c, l, Doing::Idle);
        let t = self.thread(c, l);
        let (lapses, moves) = (std::mem::take(&mut t.lapse), std::mem::take(&mut t.moves));
        if lapses {
            self.lapse(c, l);
        }
        if lapses || moves {
            // writes the ledger entry again, and undoes what is left of a lapsed hold
            self.moves(c, l);
        }
        if result.status == Status::LockNotGet {
            match self.thread(c, l).entry.as_ref().is_some_and(LockEntry::has_left) {
                // a release may have taken effect: the program gets the handle again
                true => _ = self.enter(c, l, Doing::Control),
                false => self.forget_lock(c, l),
            }
            return self.control_wake(c);
        }
        self.may_keep(c, l);
        match is_renewal {
            true => self.resumes(c, l),
            false => self.finished(c, l, result.status),
        }
    }

    /// Turns a release without an answer into a success, if the client's own clock shows that it is
    /// safe to do so. Only clients with failover do that.
    fn unheard(&mut self, c: usize, l: usize, result: OpResult) -> OpResult {
        let is_by_itself = self.plan.by_itself;
        let (now, who) = (self.unheard_now(c, l), self.who(c));
        let t = self.thread(c, l);
        let is_release = t.op == Op::Unlock && t.async_until == 0 && is_by_itself;
        if !is_release || !result.status.is_without_primary() {
            return result;
        }
        let released = t.entry.as_mut().and_then(|entry| entry.release_unheard(result.status, now));
        self.leaves_in_doubt(c);
        let is_judged = self.is_judged(l, who) && !self.is_by_a_wrong_clock(c, l);
        if is_judged && released.is_some_and(|released| released.status == Status::Success) {
            // a client without a horizon does not know that the primary cut it off, and its leases
            // go on
            let horizon = match now.horizon_ns {
                u64::MAX => u64::MAX,
                _ => self.oracle.horizon_of(l, who),
            };
            if let Err(why) = self.oracle.released_unheard(l, who, (self.now, horizon)) {
                self.fail(why);
            }
        }
        released.unwrap_or(result)
    }

    /// The clock for the lock's deadline, with the horizon of the lock's session: of the lock's own
    /// primary, also when the client has come to a later one.
    pub(super) fn unheard_now(&self, c: usize, l: usize) -> Now {
        let (now, t) = (self.client_now(c), &self.clients[c].threads[l]);
        let horizon_ns = t.horizon_ns;
        match t.old_clock {
            Some(clock) => Now { local_ns: now.local_ns, horizon_ns, ..clock.now(self.now) },
            None => Now { horizon_ns, ..now },
        }
    }

    /// Schedules the request that undoes an operation in doubt, if the client has failover. Without
    /// failover, the next operation on the lock does it.
    fn leaves_in_doubt(&mut self, c: usize) {
        if self.plan.by_itself {
            self.lead(c, Failover::left_in_doubt);
            self.control_wake(c);
        }
    }

    /// The client has got a lock again that it had at this primary before: sends the request that
    /// undoes what may be left of the earlier operations.
    pub(super) fn undoes_what_is_left(&mut self, c: usize, l: usize) {
        let now = self.thread_now(c, l);
        let entry = self.thread(c, l).entry.as_mut();
        if let Some(request) = entry.and_then(|entry| entry.undo_request(now)) {
            self.tell(c, l, request);
        }
    }

    /// Moves all threads to the new session; `old`: the heartbeats of the session before it.
    pub(super) fn move_all(&mut self, c: usize, old: Heartbeats) {
        let epoch = self.clients[c].epoch;
        for l in 0..self.clients[c].threads.len() {
            let t = self.thread(c, l);
            match t.doing {
                Doing::Nothing | Doing::Idle | Doing::Control => self.moves(c, l),
                Doing::Reply { is_wait: true } if t.async_until == 0 => self.moves(c, l),
                _ => {
                    // the lock moves to the new session when its operation is over; that operation
                    // may belong to a session before the last one
                    let is_of_the_last = !std::mem::replace(&mut t.moves, true);
                    if t.epoch == epoch && (is_of_the_last || old.horizon_ns() == 0) {
                        t.horizon_ns = old.horizon_ns();
                    }
                }
            }
        }
    }

    /// A new session with the same primary, while no operation is under way on this lock: the
    /// client writes its ledger entry again, and what is in doubt is undone.
    pub(super) fn moves(&mut self, c: usize, l: usize) {
        let (gen, epoch, now) = (self.clients[c].gen, self.clients[c].epoch, self.thread_now(c, l));
        let fabric = self.clients[c].fabric;
        let t = self.thread(c, l);
        if t.epoch != epoch {
            if let Some(asked) = &mut t.asked {
                // marks the request as one of no session, so that its answer does not count
                asked.gen = u32::MAX;
            }
            return;
        }
        t.gen = gen;
        t.is_carried_by(fabric);
        if t.entry.is_some() {
            self.takes_horizon(c, l);
        }
        let now = Now { horizon_ns: self.clients[c].threads[l].horizon_ns, ..now };
        let t = self.thread(c, l);
        let Some(entry) = t.entry.as_mut() else { return };
        let is_waiting = matches!(t.doing, Doing::Reply { .. });
        let undo = session::resume(entry, is_waiting, now);
        let write = if is_waiting { None } else { entry.take_ledger_write() };
        if let Some(write) = write {
            self.write_ledger(c, l, write);
        }
        if let Some(request) = undo {
            self.tell(c, l, request);
        }
    }
}
