// SPDX-License-Identifier: MIT OR Apache-2.0
//! The results that a caller gets, and what the checker does with them: it judges by the request,
//! the result, the time, and the client's own clock alone.

use dlock_core::clock::{Deadline, Lease, Now, DRIFT_PPM};
use dlock_core::lock::{Op, OpResult, View};
use dlock_core::memory::word_op::{Outcome, Word, WordAddr};
use dlock_core::memory::words::{FairView, RwWord, TurnWord};
use dlock_core::operation::{lease, Operation};
use dlock_core::wire::message::{LockType, Mode, Request};
use dlock_core::wire::status::Status;

use super::clock::Clock;
use super::plan::Fault;
use super::state::{code, Doing, Sys};

/// How much longer a claimed lease may last by a result, because the clocks drift apart from the
/// claim on.
const CLAIM_MARGIN_NS: u64 = 20_000_000;

impl Sys {
    /// Checks a result that says that the client had the lock, which another client may have.
    fn judged_had_it(&self, l: usize, who: u64) -> Result<(), String> {
        match self.is_judged(l, who) {
            true => self.oracle.had_it(l, who),
            false => Ok(()),
        }
    }

    /// Whether the client can know that another one has its lock: a hold without a lease may end
    /// unnoticed if the client has no horizon (docs/leases.md).
    pub(super) fn is_judged(&self, l: usize, who: u64) -> bool {
        self.plan.horizon_s > 0 || self.oracle.had_a_lease(l, who)
    }

    /// The violation if an operation reports that it has released a fair lock, and the lock's words
    /// do not show it: the arbiter would have to repair that. Numbers are not compared where a
    /// fault moves lanes on or starts them again, nor for a fenced client, which may learn late of
    /// a lock whose place belongs to another one.
    pub(super) fn unreleased(&self, c: usize, l: usize, result: &OpResult) -> Option<String> {
        let t = &self.clients[c].threads[l];
        let entry = t.entry.as_ref()?;
        let is_current = t.epoch == self.epoch && self.clients[c].epoch == self.epoch;
        let is_release = t.op == Op::Unlock && result.status == Status::Success;
        let is_there = is_current && self.alive && !self.was_fenced(c);
        if !is_release || !is_there || entry.refs() > 0 || self.plan.faults.contains(&Fault::Lap) {
            return None;
        }
        let Some(View::Fair { nx, ns, mx, ms, .. }) = result.view else { return None };
        let is_same_lap = !self.memory.words.is_empty() && self.fair_lap(entry.slot()) == t.lap;
        if !is_same_lap || (nx, ns, mx, ms) == (0, 0, 0, 0) {
            return None;
        }
        let (taken, turn) = self.fair_words(entry.slot());
        // with both counters at their start a new lap may have begun
        let is_low = turn.nx() > 0 || turn.ns() > TurnWord::START.ns();
        let view = FairView::of(taken, turn);
        let before = |lane: u16, told: u16| lane.wrapping_sub(told) > u16::MAX / 2;
        // a downgrade takes a share back, and the sum of both counters does not change
        let is_less = before(view.nx().wrapping_add(view.ns()), nx.wrapping_add(ns));
        let is_behind = (before(view.nx(), nx) || is_less) && is_low;
        (is_behind && !taken.is_high())
            .then(|| format!("released: client {c} is told {nx} of lock {l}, which is at {turn:?}"))
    }

    /// Passes a client's result to the checker.
    pub(super) fn told(&mut self, c: usize, l: usize, result: OpResult) {
        self.mix(code(result.status) ^ (c as u64) << 40 ^ (l as u64) << 48);
        self.log(|| format!("client {c} lock {l} finished: {:?} {:?}", result.status, result.view));
        let who = self.who(c);
        let lawful = self.is_lawful(c, l, result.status);
        if let Err(why) = lawful.and_then(|()| self.is_drained(c, l, result.status)) {
            self.fail(why);
        }
        if self.is_without_promise(c) {
            return self.oracle.untold(l, who);
        }
        let t = &self.clients[c].threads[l];
        let is_renewal = t.operation.as_ref().is_some_and(Operation::is_renewal);
        if is_renewal && !self.renewal_told(c, l, result) {
            return;
        }
        let t = &self.clients[c].threads[l];
        let is_unheard = t.operation.as_ref().is_some_and(Operation::is_unheard) && !is_renewal;
        if is_unheard && t.entry.as_ref().is_some_and(|entry| entry.state().is_held()) {
            if result.status == Status::Success {
                // an answer of the successor confirms the hold that the client knows
                self.oracle.confirmed(l, who);
                let now = self.thread_now(c, l);
                let entry = self.clients[c].threads[l].entry.as_ref();
                if entry.is_some_and(|entry| lease::runs(entry, now)) {
                    let at = (self.now, CLAIM_MARGIN_NS);
                    let verdict = self.oracle.not_revived(l, who, at);
                    verdict.unwrap_or_else(|why| self.fail(why));
                }
            }
            return;
        }
        let (op, refs) = (t.op, t.entry.as_ref().map_or(0, |e| e.refs()));
        let granted = matches!(result.status, Status::Success | Status::AlreadyLocked);
        if t.past_queue && result.status == Status::Success && self.plan.locks[l] == LockType::Rw {
            self.fail(format!(
                "queue: client {c} saw that somebody waits for lock {l}, and took it"
            ));
        }
        let (mode, lease) = match op {
            Op::TryLock { mode, lease } | Op::Lock { mode, lease } => (mode, lease),
            Op::Extend { mode, lease } => (mode, lease),
            Op::Downgrade => (Mode::Shared, Lease::NONE),
            Op::Unlock => return self.told_release(c, l, (result.status, refs)),
        };
        if self.is_by_a_wrong_clock(c, l) {
            return self.oracle.untold(l, who);
        }
        if !lease.is_none() {
            self.oracle.asked_anew(l, who); // this counts even if the answer is lost
        }
        let is_query = lease.is_none() && !keeps(op);
        if !granted || is_query {
            if refs == 0 {
                self.oracle.untold(l, who); // a success from the cache is no grant
            }
            return;
        }
        let goes_on = keeps(op) || result.status == Status::AlreadyLocked;
        let had_it = if goes_on { self.judged_had_it(l, who) } else { Ok(()) };
        let time_out = match result.view {
            Some(
                View::Atomic { time_out, .. }
                | View::Fair { time_out, .. }
                | View::Rw { time_out, is_leased: true, .. },
            ) => Some(time_out.at),
            _ => None,
        };
        let verdict = had_it
            .and_then(|()| self.is_within_horizon(c, l, time_out))
            .and_then(|()| self.runs(c, l, time_out))
            .and_then(|()| self.runs_truly(c, l, time_out))
            .and_then(|()| self.lasts_as_asked(c, l, time_out, lease))
            .and_then(|()| self.relies(c, l, op, mode, time_out))
            .and_then(|()| self.token_told(c, l, mode, !goes_on || op == Op::Downgrade));
        if let Err(why) = verdict {
            self.fail(why);
        }
        if !goes_on {
            // the program had asked to renew an earlier hold, not this one
            self.renewal_unwanted(c, l);
            self.may_renew(c, l, op);
        }
    }

    /// Handles the result of a release, after which `refs` holds are left.
    fn told_release(&mut self, c: usize, l: usize, (status, refs): (Status, u32)) {
        let who = self.who(c);
        let verdict = match status {
            _ if self.is_by_a_wrong_clock(c, l) => Ok(()),
            Status::Success | Status::AlreadyLocked => self.judged_had_it(l, who),
            _ => Ok(()),
        };
        if let Err(why) = verdict {
            self.fail(why);
        }
        // a release that was not answered may have taken effect
        let is_unanswered = matches!(status, Status::BadResponse | Status::TimedOut);
        if refs == 0 || refs == 1 && is_unanswered {
            self.oracle.untold(l, who);
        }
    }

    /// Checks the answer to a release that the lock was lost. Only the end of its lease takes a
    /// lock from a client that is at the primary which granted it, within its horizon, and not
    /// fenced. (A client that leaves the lock held reports the loss as soon as the lease may be
    /// over.)
    pub(super) fn told_lost(&mut self, c: usize, l: usize) {
        let (now, t) = (self.thread_now(c, l), &self.clients[c].threads[l]);
        let is_heard = !t.operation.as_ref().is_some_and(Operation::is_unheard);
        let is_last = t.entry.as_ref().is_some_and(|entry| entry.refs() == 0);
        let is_first = self.alive && self.epoch == 1 && t.epoch == 1;
        let keeps = is_first && now.local_ns < t.horizon_ns && !self.was_fenced(c);
        if t.op != Op::Unlock || !is_heard || !is_last || !keeps || self.is_by_a_wrong_clock(c, l) {
            return;
        }
        let verdict = self.oracle.has_lost_it(l, self.who(c), self.now + CLAIM_MARGIN_NS);
        verdict.unwrap_or_else(|why| self.fail(why));
    }

    /// Checks that a hold which the program believes in is undone only after the program has
    /// learned of its loss. (Except in batches: an earlier item may have found that the hold is
    /// lost, and a later one have its own attempt undone, before the batch reports.)
    pub(super) fn is_told_first(&mut self, c: usize, l: usize, request: Request) {
        let is_alone = self.thread(c, l).operation.is_some();
        let is_undo = is_alone && matches!(request, Request::Resolve { .. });
        if is_undo && self.oracle.was_told(l, self.who(c)) {
            self.fail(format!("told: client {c} has lock {l} undone, and does not know that yet"));
        }
    }

    /// Checks that a client reports a hold without a lease only within its horizon, by its own
    /// clock.
    fn is_within_horizon(
        &self,
        c: usize,
        l: usize,
        time_out: Option<Deadline>,
    ) -> Result<(), String> {
        let (now, t) = (self.thread_now(c, l), &self.clients[c].threads[l]);
        let has_lease = time_out.is_some_and(|time_out| time_out < Deadline::NEVER);
        // the result was decided in a session without a horizon, and that session was replaced
        // during the ledger write of the share
        let is_noted = matches!(t.doing, Doing::Writes(..)) && t.last_now.horizon_ns == u64::MAX;
        match !has_lease && !is_noted && now.local_ns >= t.horizon_ns {
            true => Err(format!(
                "horizon: client {c} is told at {} that it holds lock {l}, and its horizon was {}",
                now.local_ns, t.horizon_ns
            )),
            false => Ok(()),
        }
    }

    /// Checks that success means a running lease, by the client's own bounded clock now: by its
    /// present estimate of the server clock, or by the last reading.
    fn runs(&self, c: usize, l: usize, time_out: Option<Deadline>) -> Result<(), String> {
        let Some(time_out) = time_out.filter(|&time_out| time_out < Deadline::NEVER) else {
            return Ok(());
        };
        let (now, before) = (self.thread_now(c, l), self.clients[c].threads[l].last_now);
        let passed_ns = now.local_ns.saturating_sub(before.local_ns);
        let drift_ns = passed_ns / 1_000_000 * DRIFT_PPM;
        let later = Now::within(before.time.plus_ns(passed_ns), before.uncertainty_ns + drift_ns);
        match now.maybe_expired(time_out) && later.maybe_expired(time_out) {
            true => Err(format!(
                "lease: client {c} is told that it holds lock {l} until {time_out:?}, at {now:?}"
            )),
            false => Ok(()),
        }
    }

    /// Checks that a lease lasts at least as long as requested, from the second in which the call
    /// began.
    fn lasts_as_asked(
        &self,
        c: usize,
        l: usize,
        time_out: Option<Deadline>,
        lease: Lease,
    ) -> Result<(), String> {
        let t = &self.clients[c].threads[l];
        let ((epoch, at), is_here) = (t.called, t.epoch == self.epoch);
        let asked = at.tick().0.saturating_add(lease.0);
        match time_out {
            // an answer of a successor, whose clock may differ, is not judged, nor what a client
            // keeps of the predecessor
            Some(time_out)
                if time_out.0 < asked && epoch == self.epoch && is_here && !lease.is_none() =>
            {
                Err(format!("lease: client {c} asked for lock {l} until {asked}: {time_out:?}"))
            }
            _ => Ok(()),
        }
    }

    /// The clock by which the deadline in a result on this lock counts.
    fn clock_of(&self, c: usize, l: usize) -> Clock {
        let (client, t) = (&self.clients[c], &self.clients[c].threads[l]);
        let is_old = t.moves && t.epoch != client.epoch;
        t.old_clock.filter(|_| is_old).unwrap_or(client.clock)
    }

    fn relies(
        &mut self,
        c: usize,
        l: usize,
        op: Op,
        mode: Mode,
        time_out: Option<Deadline>,
    ) -> Result<(), String> {
        let who = self.who(c);
        self.oracle.not_revived(l, who, (self.now, CLAIM_MARGIN_NS))?;
        let refs = self.clients[c].threads[l].entry.as_ref().map_or(0, |e| e.refs());
        let expiry = time_out.map(Deadline::expiry);
        let until = expiry.map_or(u64::MAX, |at| self.clock_of(c, l).gives_up_at(at));
        // a successor's clock does not tell when a lease of its predecessor ends
        let t = &self.clients[c].threads[l];
        let is_of_epoch = t.called.0 == self.epoch && t.epoch == self.epoch;
        self.oracle.granted(l, who, mode, self.now, until, is_of_epoch && self.alive)?;
        if let Some(at) = expiry.filter(|_| is_of_epoch) {
            let end = if at.0 == u64::MAX { u64::MAX } else { self.true_time(at) };
            self.oracle.leased(l, who, mode, self.now, end)?;
        }
        let entry = self.clients[c].threads[l].entry.as_ref();
        // a kept lock is entered again with the same ticket
        let is_kept = entry.is_some_and(|entry| entry.is_kept());
        let first = refs == 1 && !keeps(op) && !is_kept;
        let relies = self.oracle.relies(l, who, self.now);
        if first && relies && self.plan.locks[l] == LockType::Fair {
            return self.in_order(c, l, mode);
        }
        Ok(())
    }

    fn in_order(&mut self, c: usize, l: usize, mode: Mode) -> Result<(), String> {
        let t = &self.clients[c].threads[l];
        let Some((entry, ticket)) = t.entry.as_ref().and_then(|e| Some((e, e.ticket()?))) else {
            return Ok(());
        };
        if t.epoch != self.epoch || !self.alive {
            return Ok(());
        }
        if let Some(place) = entry.earlier_place().filter(|_| mode == Mode::Exclusive) {
            self.oracle.served_late(l, self.epoch, place)?;
        }
        let generation = *self.memory.word(WordAddr::new(entry.slot(), Word::Gen));
        self.oracle.served(l, (self.epoch, generation), mode, (ticket.lap, ticket.tx))
    }
}

/// Whether the operation keeps a hold that the client has.
fn keeps(op: Op) -> bool {
    matches!(op, Op::Extend { .. } | Op::Downgrade)
}

/// Whether a reader's chain found the waiters bit.
pub(super) fn shared_past_a_queue(op: Op, outcome: &Outcome) -> bool {
    let shared =
        matches!(op, Op::TryLock { mode: Mode::Shared, .. } | Op::Lock { mode: Mode::Shared, .. });
    let Outcome::Done(values) = outcome else { return false };
    shared && values.as_slice().get(1).is_some_and(|&old| RwWord::from_bits(old).waiters())
}
