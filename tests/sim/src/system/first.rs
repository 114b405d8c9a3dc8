// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations up to their first chain: the work of the library before it builds an [`Operation`].
//!
//! ```text
//!   begin ─▶ First: the chain ─▶ Writes: a ledger entry ─▶ Written: the clock ─▶ result
//! ```

use dlock_core::clock::Now;
use dlock_core::lock::Op;
use dlock_core::memory::words::LedgerEntry;
use dlock_core::operation::{Bounds, First, Follows, Started};
use dlock_core::wire::status::Status;

use super::state::{Doing, Sys};
use super::told::shared_past_a_queue;

impl Sys {
    /// Begins an operation as the library does.
    pub(super) fn first(&mut self, c: usize, l: usize, op: Op, now: Now, bounds: Bounds) {
        let t = &mut self.clients[c].threads[l];
        let Some(entry) = t.entry.as_mut() else { return };
        let mut first = First::new(entry, op, now, bounds);
        let follows = first.begin(entry);
        t.first = Some(first);
        self.follow(c, l, follows);
    }

    /// Handles the end of the first chain.
    pub(super) fn first_ended(&mut self, c: usize, l: usize) {
        let now = self.thread_now(c, l);
        let t = self.thread(c, l);
        let (Some(first), Some(entry)) = (t.first.as_mut(), t.entry.as_mut()) else { return };
        let Some(outcome) = t.outcome.take() else { return };
        if first.needs_clock(entry, t.last_now) {
            t.last_now = now;
        }
        let last_now = Now { horizon_ns: t.horizon_ns, ..t.last_now };
        t.past_queue = shared_past_a_queue(t.op, &outcome);
        let follows = first.outcome(entry, outcome, last_now);
        if let Follows::Done(result) = &follows {
            let status = result.status;
            self.released_at_once(c, l, status);
        }
        self.follow(c, l, follows);
    }

    fn follow(&mut self, c: usize, l: usize, follows: Follows) {
        match follows {
            Follows::Done(result) => self.finish(c, l, result),
            Follows::Post(chain) => {
                let until_ns = self.thread(c, l).first.as_ref().map_or(0, First::until_ns);
                self.post(c, l, chain, until_ns, Doing::First);
            }
            Follows::Write(write) => {
                self.enter(c, l, Doing::Writes(write));
                self.step_soon(c, l);
            }
            Follows::Running(operation) => {
                self.thread(c, l).first = None;
                self.started(c, l, Started::Running(operation));
            }
        }
    }

    /// Writes the ledger; other events may come before the clock is read.
    pub(super) fn writes(&mut self, c: usize, l: usize, write: LedgerEntry) {
        self.write_ledger(c, l, write);
        self.enter(c, l, Doing::Written);
        self.step_soon(c, l);
    }

    pub(super) fn written(&mut self, c: usize, l: usize) {
        let now = self.thread_now(c, l);
        let t = self.thread(c, l);
        let (Some(first), Some(entry)) = (t.first.as_mut(), t.entry.as_mut()) else { return };
        if first.needs_clock(entry, t.last_now) {
            t.last_now = now;
        }
        let last_now = Now { horizon_ns: t.horizon_ns, ..t.last_now };
        let follows = first.written(entry, last_now);
        self.follow(c, l, follows);
    }

    /// Checks a release by the first chain, which may have changed the memory of a dead primary. A
    /// client without a horizon does not learn that it was cut off.
    fn released_at_once(&mut self, c: usize, l: usize, status: Status) {
        let is_release = self.clients[c].threads[l].op == Op::Unlock && status == Status::Success;
        if is_release && self.plan.horizon_s > 0 && !self.is_by_a_wrong_clock(c, l) {
            let verdict = self.oracle.released_at_once(l, self.who(c), self.now);
            verdict.unwrap_or_else(|why| self.fail(why));
        }
    }
}
