// SPDX-License-Identifier: MIT OR Apache-2.0
//! An operation up to its first chain: most are decided by that, and need no [`Operation`].
//!
//! ```text
//!   of ─▶ step ─▶ Chain ─ executed ─▶ outcome ─▶ Done
//!           │                           ├▶ Write ─ written ─▶ the same three
//!           └▶ anything else: run       └▶ Running
//! ```
//! It decides exactly what the operation would: it is made of the same parts, and what is not the
//! usual it leaves to it. The chain stays where the caller has it. The clock is read after a ledger
//! write that follows.

use super::{believed, lease, mode_of, needs_clock, Bounds, Operation, Stage};
use crate::clock::Now;
use crate::lock::{FastCas, LockEntry, Machine, Op, OpResult, Step};
use crate::memory::word_op::Outcome;
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
    /// Memory of this host executes the chain.
    is_local: bool,
    /// Decided, and its ledger write is being carried out.
    result: Option<OpResult>,
}

/// What follows the first chain.
#[allow(clippy::large_enum_variant)] // nothing is allocated
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Follows {
    /// The operation is over.
    Done(OpResult),
    /// Write this to the ledger, and report [`First::written`].
    Write(LedgerEntry),
    /// Ask it for its effects.
    Running(Operation),
}

impl First {
    /// Begins an operation as [`Operation::begin`] does. `is_local`: see
    /// [`Operation::needs_clock`].
    ///
    /// # Errors
    /// The result, if it is decided without a chain.
    #[inline]
    pub fn of(
        entry: &mut LockEntry,
        op: Op,
        now: Now,
        bounds: Bounds,
        is_local: bool,
    ) -> Result<Self, OpResult> {
        match Self::decided(entry, op, now, bounds) {
            Some(result) => Err(result),
            None => Ok(Self::new(entry, op, now, bounds, is_local)),
        }
    }

    /// The result of an operation that is decided without a chain.
    #[inline]
    pub fn decided(entry: &mut LockEntry, op: Op, now: Now, bounds: Bounds) -> Option<OpResult> {
        if bounds.until_ns <= now.local_ns || now.is_past_horizon() {
            return Some(OpResult::of(Status::BadResponse));
        }
        let result = entry.decided(op, now)?;
        Some(lease::told(entry, op, result, now))
    }

    /// One that is not [decided](Self::decided).
    #[inline]
    pub fn new(entry: &LockEntry, op: Op, now: Now, bounds: Bounds, is_local: bool) -> Self {
        let mode = mode_of(op, entry);
        Self { machine: Machine::of(op, now), bounds, op, mode, is_local, result: None }
    }

    /// The first step. A chain that nothing is to be written [before](LockEntry::has_ledger_write)
    /// is executed; with anything else the operation [runs](Self::run).
    #[inline]
    pub fn step(&mut self, entry: &mut LockEntry, now: Now) -> Step {
        entry.first_step(&mut self.machine, now)
    }

    /// The operation from this step on.
    pub fn run(&self, step: Step, now: Now) -> Operation {
        let mut operation =
            Operation::new(self.op, self.machine, Stage::Step(step), now, self.bounds);
        operation.mode = self.mode;
        operation
    }

    /// Whether the decision needs the clock as it is after the chain, or the ledger write; where
    /// not, an older reading will do. See [`Operation::needs_clock`].
    #[inline]
    pub fn needs_clock(&self, entry: &LockEntry, last: Now) -> bool {
        needs_clock(self.op, entry, last, self.is_local)
    }

    /// The outcome of the chain; `now` as for [`Operation::outcome`].
    #[inline]
    pub fn outcome(&mut self, entry: &mut LockEntry, outcome: Outcome, now: Now) -> Follows {
        let step = self.machine.outcome(entry, believed(outcome, now), now);
        self.follow(entry, step, now)
    }

    /// The ledger write has taken effect; `now` was read after it, if it is
    /// [needed](Self::needs_clock).
    #[inline]
    pub fn written(&mut self, entry: &mut LockEntry, now: Now) -> Follows {
        match self.result {
            Some(result) => self.ends(entry, result, now),
            None => self.goes_on(Step::Done(OpResult::of(Status::BadResponse)), now),
        }
    }

    #[inline]
    fn follow(&mut self, entry: &mut LockEntry, step: Step, now: Now) -> Follows {
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

/// The first effect of an operation and what it decides: see [`LockEntry::fast`].
impl LockEntry {
    /// The word was as `cas` expected: the operation is done, if its lease still runs, and the
    /// session's horizon has not passed, when `local_ns` (the client's own clock, late by at most
    /// [`COARSE_NS_MAX`](crate::clock::COARSE_NS_MAX)) is read now. `None`: go on by
    /// [`Operation::after_fast`].
    #[inline]
    pub fn fast_end(
        &mut self,
        cas: FastCas,
        begun: Now,
        local_ns: impl FnOnce() -> u64,
    ) -> Option<OpResult> {
        let has_horizon = begun.horizon_ns != u64::MAX && !planted::is(Bug::FastReleaseUnjudged);
        let has_end = cas.deadline_s.is_some() || has_horizon;
        let deadline_s = cas.deadline_s.unwrap_or(u32::MAX);
        match has_end && !lease::runs_coarsely(deadline_s, begun, local_ns()) {
            true => None,
            false => Some(self.fast_done(cas, begun)),
        }
    }
}
