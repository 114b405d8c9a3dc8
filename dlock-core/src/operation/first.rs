// SPDX-License-Identifier: MIT OR Apache-2.0
//! The beginning of every operation, up to the outcome of its first chain, which decides most of
//! them.
//!
//! ```text
//!   begin ─▶ Post ─ outcome ─▶ Done
//!        │                  ├▶ Write ─ written ─▶ Done | Running
//!        │                  └▶ Running
//!        └▶ Done | Running
//! ```
//! `First` is made of the same parts as [`Operation`], and decides nothing differently: it ends an
//! operation whose machine returns success, and leaves all others to an [`Operation`]. The clock is
//! read after a ledger write that follows the chain.

use super::{believed, lease, mode_of, needs_clock, Bounds, Operation, Stage};
use crate::clock::Now;
use crate::lock::{FirstOp, LockEntry, Machine, Op, OpResult, Step};
use crate::memory::word_op::{Chain, Outcome};
use crate::memory::words::LedgerEntry;
use crate::planted::{self, Bug};
use crate::wire::message::Mode;
use crate::wire::status::Status;

/// An operation up to the outcome of its first chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct First {
    machine: Machine,
    bounds: Bounds,
    op: Op,
    mode: Mode,
    /// The result, while its ledger write is under way.
    result: Option<OpResult>,
}

/// What comes after a step of [`First`].
#[allow(clippy::large_enum_variant)] // nothing is allocated
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Follows {
    /// The operation is over.
    Done(OpResult),
    /// Execute the chain, and report [`First::outcome`].
    Post(Chain),
    /// Write this to the ledger, and report [`First::written`].
    Write(LedgerEntry),
    /// Call [`Operation::next`] for the effects.
    Running(Operation),
}

impl First {
    /// An operation that is to [begin](Self::begin). `now` was read before anything is posted:
    /// leases count from there.
    #[inline]
    pub fn new(entry: &LockEntry, op: Op, now: Now, bounds: Bounds) -> Self {
        let mode = mode_of(op, entry);
        Self { machine: Machine::of(op, now), bounds, op, mode, result: None }
    }

    /// Begins the operation. A call that has no time left, or whose session is past its horizon,
    /// ends at once.
    #[inline]
    pub fn begin(&mut self, entry: &mut LockEntry) -> Follows {
        let now = self.machine.started();
        if self.bounds.until_ns <= now.local_ns || now.is_past_horizon() {
            if matches!(self.op, Op::Unlock) {
                entry.end_is_wanted();
            }
            return Follows::Done(OpResult::of(Status::BadResponse));
        }
        if let Some((word_op, first)) = entry.first_op(self.op, &now) {
            *self = Self::after(entry, self.op, first, now, self.bounds);
            return Follows::Post(Chain::one(word_op));
        }
        match entry.first_turn(self.op, &now) {
            Some(first) => {
                *self = Self::after(entry, self.op, first, now, self.bounds);
                Follows::Post(entry.chain_of(self.op))
            }
            None => self.begin_with_more(entry, now),
        }
    }

    /// The result of an operation whose [first effect](LockEntry::first_op) has found `old`; `now`
    /// as for [`Operation::outcome`]. `None`: go on with [`after`](Self::after), and report the
    /// outcome. This is the part of [`outcome`](Self::outcome) that copies nothing.
    #[inline(always)]
    pub fn ended(
        entry: &mut LockEntry,
        op: Op,
        first: FirstOp,
        old: u64,
        begun: &Now,
        now: &Now,
    ) -> Option<OpResult> {
        if now.is_past_horizon() || !first.runs(begun, now) {
            return None;
        }
        let result = entry.ends(op, first, old, begun, now)?;
        Some(lease::told(entry, op, result, *now))
    }

    /// Like [`ended`](Self::ended), for a [chain](LockEntry::first_turn) that has found `values`.
    /// Only a release leaves a ledger entry to write.
    #[inline(always)]
    pub fn ended_by(
        entry: &mut LockEntry,
        op: Op,
        first: FirstOp,
        values: &[u64],
        begun: &Now,
        now: &Now,
    ) -> Option<OpResult> {
        if now.is_past_horizon() || !first.runs(begun, now) {
            return None;
        }
        let result = entry.ends_by(op, first, values, begun, now)?;
        assert!(!entry.has_ledger_write() || op == Op::Unlock, "a grant is told at once");
        Some(lease::told(entry, op, result, *now))
    }

    /// The beginning of an operation whose [first effect](LockEntry::first_op) is under way.
    #[inline]
    pub fn after(entry: &LockEntry, op: Op, first: FirstOp, begun: Now, bounds: Bounds) -> Self {
        let (machine, mode) = (Machine::after(op, first, begun), mode_of(op, entry));
        Self { machine, bounds, op, mode, result: None }
    }

    /// Begins an operation that needs more than one word operation even if no other client
    /// interferes.
    #[inline(never)]
    fn begin_with_more(&mut self, entry: &mut LockEntry, now: Now) -> Follows {
        if let Some(result) = entry.decided(self.op, now) {
            return Follows::Done(lease::told(entry, self.op, result, now));
        }
        match entry.first_step(&mut self.machine, now) {
            Step::Chain(chain) if !entry.has_ledger_write() => Follows::Post(chain),
            step => self.goes_on(step, now),
        }
    }

    /// When to stop waiting for the outcome of the first chain.
    #[inline]
    pub fn until_ns(&self) -> u64 {
        self.bounds.chain_until_ns(self.machine.started().local_ns)
    }

    /// The operation from this step on.
    pub(super) fn run(&self, step: Step, now: Now) -> Operation {
        let stage = Stage::Step(step);
        let operation = Operation::new(self.op, self.machine, stage, now, self.bounds);
        Operation { mode: self.mode, ..operation }
    }

    /// Whether the decision needs the clock as read after the chain, or after the ledger write. If
    /// not, an older reading is good enough. See [`Operation::needs_clock`].
    #[inline]
    pub fn needs_clock(&self, entry: &LockEntry, last: Now) -> bool {
        needs_clock(self.op, entry, last)
    }

    /// Handles the outcome of the chain; `now` as for [`Operation::outcome`].
    #[inline]
    pub fn outcome(&mut self, entry: &mut LockEntry, outcome: Outcome, now: Now) -> Follows {
        if let (Outcome::Done(values), Some(first)) = (&outcome, self.machine.first_op()) {
            let (begun, values) = (self.machine.started(), values.as_slice());
            let ended = Self::ended_by(entry, self.op, first, values, &begun, &now);
            if let Some(result) = ended {
                return Follows::Done(result);
            }
        }
        let step = self.machine.outcome(entry, believed(outcome, now), now);
        let result = match step {
            Step::Done(result) if self.is_usual(entry, &result, now) => result,
            step => return self.goes_on(step, now),
        };
        match entry.take_ledger_write() {
            Some(write) => {
                self.result = Some(result);
                Follows::Write(write)
            }
            None => self.ends(entry, result, now),
        }
    }

    /// Handles that the ledger write has taken effect; `now` was read after it, if the decision
    /// [needs](Self::needs_clock) that.
    #[inline]
    pub fn written(&mut self, entry: &mut LockEntry, now: Now) -> Follows {
        match self.result {
            Some(result) => self.ends(entry, result, now),
            None => self.goes_on(Step::Done(OpResult::of(Status::BadResponse)), now),
        }
    }

    #[inline]
    fn is_usual(&self, entry: &LockEntry, result: &OpResult, now: Now) -> bool {
        let has_time = now.local_ns < self.bounds.until_ns;
        matches!(result.status, Status::Success)
            && !entry.has_wake()
            && !(has_time && entry.wants_readers(self.mode, result))
    }

    #[inline]
    fn ends(&self, entry: &LockEntry, result: OpResult, now: Now) -> Follows {
        if lease::is_over(entry, self.op, &result, now) && !planted::is(Bug::ToldLate) {
            return self.goes_on(Step::Done(result), now);
        }
        Follows::Done(lease::told(entry, self.op, result, now))
    }

    #[cold]
    #[inline(never)]
    fn goes_on(&self, step: Step, now: Now) -> Follows {
        Follows::Running(self.run(step, now))
    }
}
