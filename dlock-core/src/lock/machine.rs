// SPDX-License-Identifier: MIT OR Apache-2.0
//! One operation under way: the part that is the same for all kinds of locks.
//!
//! ```text
//!   Idle ─▶ [Resolving ─▶] Atomic | Rw | Fair ─▶ Wait | Told | Done
//!     └◀──────────── pause ◀───────┘
//! ```

use super::tries::Tries;
use super::{
    atomic, claimed, downgrade, fair, kept, rw, Doubt, EntryState, FirstOp, LockEntry, Op,
    OpResult, Step, View,
};
use crate::clock::{Lease, Now};
use crate::memory::word_op::{Outcome, Values};
use crate::memory::words::Ticket;
use crate::planted::{self, Bug};
use crate::wire::message::{LockType, Mode, Reply, Request, WaitNumber};
use crate::wire::status::Status;

/// One operation under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    pub(super) op: Op,
    pub(super) phase: Phase,
    /// How many compare-and-swaps have been tried so far.
    pub(super) rounds: u32,
    /// The clock as read before the chain that takes the lock was posted.
    pub(super) started: Now,
    /// Whether the operation has queued again after it had lost its place in the queue.
    pub(super) requeued: bool,
    /// The tries of a lock that another client holds.
    pub(super) tries: Tries,
    /// Whether the library asks what became of a claim. If the hold is lost, its program learns
    /// that from its next operation.
    pub(super) is_confirm: bool,
    /// Whether the library renews the lease. If the hold is lost, its program learns that from its
    /// next operation.
    pub(super) is_renewal: bool,
    /// Whether this is a release that leaves the lock held (re-entry): it first asks the primary
    /// whether the client still holds the lock.
    pub(super) is_partial: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// `Resolve` or `Confirm` is under way; the operation itself begins after its answer.
    Resolving,
    /// Nothing is under way: the operation has not begun, or pauses.
    Idle,
    Atomic(atomic::At),
    Rw(rw::At),
    Fair(fair::At),
    /// The client has asked for a downgrade.
    Downgrading,
    /// The client has asked to keep the lock instead of releasing it.
    Keeping,
    /// Queued at the arbiter.
    Wait,
    /// A request without a reply was sent; the operation ends with this result.
    Told(OpResult),
}

impl Machine {
    /// The machine of an operation that is about to begin.
    pub(crate) fn of(op: Op, now: Now) -> Self {
        Self::new(op, Phase::Idle, now)
    }

    /// The operation.
    pub(crate) fn op(&self) -> Op {
        self.op
    }

    /// The machine of an operation whose [first effect](LockEntry::first_op) is under way.
    pub(crate) fn after(op: Op, first: FirstOp, now: Now) -> Self {
        Self::new(op, first.0, now)
    }

    pub(super) fn new(op: Op, phase: Phase, now: Now) -> Self {
        Self {
            op,
            phase,
            rounds: 0,
            started: now,
            requeued: false,
            tries: Tries::default(),
            is_confirm: false,
            is_renewal: false,
            is_partial: false,
        }
    }

    /// Begins the operation itself, once nothing is in doubt.
    pub(super) fn start(&mut self, e: &mut LockEntry, now: Now) -> Step {
        self.phase = Phase::Idle;
        self.started = now;
        if matches!(self.op, Op::Unlock) && e.refs > 1 {
            let mode = match e.state {
                EntryState::SharedLocked => Mode::Shared,
                _ => Mode::Exclusive,
            };
            (self.is_partial, self.op) = (true, Op::Extend { mode, lease: Lease::NONE });
        }
        if matches!(self.op, Op::Unlock) {
            if let Some(step) = kept::start(self, e, now) {
                return step;
            }
        }
        if matches!(self.op, Op::Downgrade) {
            if let Some(step) = downgrade::start(self, e) {
                return step;
            }
        }
        match e.lock_type {
            LockType::Atomic => atomic::start(self, e),
            LockType::Rw => rw::start(self, e),
            LockType::Fair => fair::start(self, e, now),
        }
    }

    /// Handles the outcome of the chain of the last step. `now` was read after the outcome came;
    /// for atomic and read-write locks it may be older.
    pub fn outcome(&mut self, e: &mut LockEntry, outcome: Outcome, now: Now) -> Step {
        let step = self.executed(e, outcome, now);
        self.released_partly(e, step, now)
    }

    /// A release that leaves the lock held has asked whether the client still holds the lock: if
    /// so, ends the release.
    #[inline]
    fn released_partly(&self, e: &mut LockEntry, step: Step, now: Now) -> Step {
        match step {
            Step::Done(OpResult { status: Status::Success, .. }) if self.is_partial => {
                match e.released_partly(now) {
                    Some(result) => Step::Done(result),
                    None => self.done(Status::BadResponse), // the session's clock has changed again
                }
            }
            step => step,
        }
    }

    #[inline]
    fn executed(&mut self, e: &mut LockEntry, outcome: Outcome, now: Now) -> Step {
        let values = match outcome {
            Outcome::Done(values) => values,
            // a refusal with a status of success tells nothing
            Outcome::Unknown | Outcome::Refused(Status::Success | Status::Done) => {
                return self.lose_track(e)
            }
            Outcome::Refused(status) => return self.refused(e, status),
        };
        if values.as_slice().is_empty() {
            return self.lose_track(e); // the executor returned fewer values than the chain has
        }
        self.found(e, values, now)
    }

    fn found(&mut self, e: &mut LockEntry, values: Values, now: Now) -> Step {
        let first = FirstOp(self.phase);
        let Some(old) = e.found(first, values.as_slice()) else { return self.lose_track(e) };
        let ended = e.ends(self.op, first, old, &self.started, &now);
        if let Some(result) = ended {
            return Step::Done(result);
        }
        match self.phase {
            Phase::Atomic(at) => atomic::interfered(self, e, at, old, now),
            Phase::Rw(at) => rw::interfered(self, e, at, old, now),
            Phase::Fair(at) => fair::outcome(self, e, at, values, now),
            _ => self.lose_track(e),
        }
    }

    /// Handles the reply to the request of the last step, or the error because of which there is
    /// none. `now` was read after the reply came.
    pub fn reply(&mut self, e: &mut LockEntry, reply: Result<Reply, Status>, now: Now) -> Step {
        let step = self.answered(e, reply, now);
        self.released_partly(e, step, now)
    }

    fn answered(&mut self, e: &mut LockEntry, reply: Result<Reply, Status>, now: Now) -> Step {
        if let Phase::Told(result) = self.phase {
            return Step::Done(result); // the request has no reply
        }
        let reply = match reply {
            // the primary has not looked at the request
            Ok(Reply::Denied {
                status: status @ (Status::NotReady | Status::Denied | Status::ServerNoResource),
                ..
            }) => return self.refused(e, status),
            Ok(reply) => reply,
            Err(_) => return self.lose_track(e),
        };
        if matches!(self.phase, Phase::Resolving) {
            return self.resolved(e, reply, now);
        }
        if matches!(self.phase, Phase::Downgrading) {
            return downgrade::reply(self, e, reply, now);
        }
        if matches!(self.phase, Phase::Keeping) {
            if let Some(step) = kept::reply(self, e, reply, now) {
                return step;
            }
        }
        match e.lock_type {
            LockType::Atomic => atomic::reply(self, e, reply, now),
            LockType::Rw => rw::reply(self, e, reply, now),
            LockType::Fair => fair::reply(self, e, reply, now),
        }
    }

    /// The request that ends a wait early. The driver sends it when a `Wait` has lasted too long,
    /// ignores its reply, and goes on waiting for the reply to the `Wait` itself.
    pub fn cancel(&self, e: &LockEntry) -> Option<Request> {
        matches!(self.phase, Phase::Wait)
            .then_some(Request::Cancel { handle: e.handle, wait: WaitNumber(e.wait) })
    }

    /// The caller gives the operation up while its answer is still to come (an asynchronous
    /// operation that took too long): the entry is then in doubt, as after a lost answer.
    pub fn abandon(mut self, e: &mut LockEntry) {
        let _ = self.lose_track(e);
    }

    pub(super) fn resolved(&mut self, e: &mut LockEntry, reply: Reply, now: Now) -> Step {
        if matches!(reply, Reply::Denied { status: Status::LockNotGet, .. }) {
            // a client that has not got a lock holds nothing of it
            match (self.is_confirm || self.is_renewal) && e.state.is_held() {
                true => e.lose(), // the program has yet to learn that the hold is lost
                false => e.end(EntryState::Initialized),
            }
            return self.done(Status::LockNotGet);
        }
        if e.is_unconfirmed() {
            return claimed::confirmed(self, e, reply, now);
        }
        if e.is_downgrading() {
            return downgrade::reply(self, e, reply, now);
        }
        if !matches!(reply, Reply::Done { .. }) {
            return self.lose_track(e);
        }
        let doubt = e.doubt;
        e.clear_ledger_entry();
        e.end(EntryState::Initialized);
        match self.op {
            Op::Unlock if doubt == Doubt::Release => {
                Step::Done(e.released(View::zero(e.lock_type)))
            }
            Op::Unlock | Op::Extend { .. } | Op::Downgrade => {
                Step::Done(OpResult::of(Status::Fail))
            }
            Op::TryLock { .. } | Op::Lock { .. } => self.start(e, now),
        }
    }

    /// Handles a lost answer: the result says so, and the entry remembers what may have happened.
    pub(super) fn lose_track(&mut self, e: &mut LockEntry) -> Step {
        let ticketed =
            matches!(e.state, EntryState::ExclusiveTicketed | EntryState::SharedTicketed);
        if matches!(self.op, Op::Unlock) {
            e.end_is_wanted();
        }
        if !matches!(self.phase, Phase::Resolving) {
            e.lease.may_be_endless |= e.state.is_held() && self.lease().is_endless();
            match self.op {
                // asking again with the same ticket changes nothing, and neither does a re-entry
                _ if self.is_reentry(e) || ticketed => {}
                Op::TryLock { .. } | Op::Lock { .. } => {
                    e.end(EntryState::Initialized);
                    if !planted::is(Bug::UnknownIsFailure) {
                        e.doubt = Doubt::Acquire;
                    }
                }
                Op::Unlock => e.doubt = Doubt::Release,
                Op::Extend { .. } | Op::Downgrade => {}
            }
        }
        Step::Done(OpResult::of(Status::BadResponse))
    }

    /// Handles a refusal: the primary has executed nothing.
    pub(super) fn refused(&mut self, e: &mut LockEntry, status: Status) -> Step {
        if matches!(self.op, Op::Unlock) {
            e.end_is_wanted();
        }
        if matches!(self.phase, Phase::Downgrading) {
            return downgrade::refused(self, e, status);
        }
        // these statuses do not tell what became of the hold: the client may come back to it
        let is_untold = matches!(status, Status::NotReady | Status::ClientRemoved);
        if !is_untold && matches!(self.op, Op::Unlock) && e.refs > 0 {
            if fair::had_turn(self.phase) {
                let mode = fair::held_mode(e);
                return Step::Done(fair::released(e, mode, self.started));
            }
            e.clear_ledger_entry();
            return Step::Done(e.lost());
        }
        if let Phase::Rw(rw::At::SteppingBack | rw::At::PuttingBack) = self.phase {
            return self.lose_track(e);
        }
        // keep the entry while in doubt: the arbiter undoes by the ledger, and reads `None` as no
        // claim
        let is_in_doubt = matches!(self.phase, Phase::Resolving);
        let is_ticketed =
            matches!(e.state, EntryState::ExclusiveTicketed | EntryState::SharedTicketed);
        if e.lock_type != LockType::Atomic && e.refs == 0 && !is_ticketed && !is_in_doubt {
            e.clear_ledger_entry();
        }
        if status == Status::Fail && e.lock_type == LockType::Fair {
            e.is_diverted(); // the ticket counters are high
        }
        Step::Done(OpResult::of(status))
    }

    pub(super) fn mode(&self) -> Mode {
        match self.op {
            Op::TryLock { mode, .. } | Op::Lock { mode, .. } | Op::Extend { mode, .. } => mode,
            Op::Unlock => Mode::Exclusive,
            Op::Downgrade => Mode::Shared,
        }
    }

    pub(super) fn lease(&self) -> Lease {
        self.op.lease()
    }

    /// Whether the operation asks for a lock; the others end a hold or move its deadline.
    #[inline]
    pub(super) fn is_acquire(&self) -> bool {
        self.op.is_acquire()
    }

    /// Whether the operation asks for a lock that the client holds: success is then
    /// `AlreadyLocked`.
    pub(super) fn is_reentry(&self, e: &LockEntry) -> bool {
        self.is_acquire() && e.refs > 0
    }

    pub(super) fn waits(&self) -> bool {
        matches!(self.op, Op::Lock { .. })
    }

    /// Queues at the arbiter.
    pub(super) fn wait(&mut self, e: &mut LockEntry, ticket: Option<Ticket>) -> Step {
        self.phase = Phase::Wait;
        let wait = e.next_wait();
        let lease = match e.has_lease(self.op) {
            true => self.lease(),
            false => {
                e.write_waiting(wait);
                Lease::ENDLESS
            }
        };
        Step::Request(Request::Wait { handle: e.handle, mode: self.mode(), lease, wait, ticket })
    }

    /// Asks for a lock that another client may keep without using it.
    pub(super) fn tries_kept(&mut self, e: &mut LockEntry) -> Step {
        match self.wait(e, None) {
            Step::Request(Request::Wait { handle, mode, lease, wait, .. }) => {
                Step::Request(Request::Try { handle, mode, lease, wait })
            }
            step => step,
        }
    }

    pub(super) fn tell(&mut self, request: Request, then: OpResult) -> Step {
        self.phase = Phase::Told(then);
        Step::Request(request)
    }

    pub(super) fn done(&self, status: Status) -> Step {
        Step::Done(OpResult::of(status))
    }
}
