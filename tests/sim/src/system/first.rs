// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations up to their first chain: what the library does before it builds an
//! [`Operation`].
//!
//! ```text
//!   begin ─▶ First: the chain ─▶ Writes: a ledger entry ─▶ Written: the clock ─▶ told
//! ```

use dlock_core::clock::Now;
use dlock_core::lock::{FastCas, Op, Step};
use dlock_core::memory::word_op::{Chain, Outcome};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::operation::{Bounds, First, Follows, Operation, Started};
use dlock_core::wire::status::Status;

use super::plan::Fabric;
use super::state::{Doing, Sys};
use super::told::shared_past_a_queue;

impl Sys {
    /// As the library begins.
    pub(super) fn first(&mut self, c: usize, l: usize, op: Op, now: Now, bounds: Bounds) {
        let t = &mut self.clients[c].threads[l];
        let is_local = t.fabric == Fabric::Shm;
        let Some(entry) = t.entry.as_mut() else { return };
        let mut first = match First::of(entry, op, now, bounds, is_local) {
            Ok(first) => first,
            Err(result) => return self.finish(c, l, result),
        };
        match first.step(entry, now) {
            Step::Chain(chain) if !entry.has_ledger_write() => {
                t.first = Some(first);
                let until_ns = bounds.chain_until_ns(now.local_ns);
                self.post(c, l, chain, until_ns, Doing::First);
            }
            step => self.started(c, l, Started::Running(first.run(step, now))),
        }
    }

    /// The first chain has been executed.
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
        self.follow(c, l, follows);
    }

    /// What the library does after the first chain.
    fn follow(&mut self, c: usize, l: usize, follows: Follows) {
        match follows {
            Follows::Done(result) => self.finish(c, l, result),
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

    /// The ledger is written; others may come before the clock is read.
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

    /// The first word operation has been executed, or not.
    pub(super) fn fast_ended(&mut self, c: usize, l: usize, fast: (FastCas, Now, Bounds)) {
        let (cas, begun, bounds) = fast;
        let (now, coarse) = (self.thread_now(c, l), self.coarse_ns(c));
        let t = &mut self.clients[c].threads[l];
        let (Some(outcome), Some(entry)) = (t.outcome.take(), t.entry.as_mut()) else { return };
        let as_of_now = Now { horizon_ns: t.horizon_ns, ..begun };
        if matches!(outcome, Outcome::Done(values) if values[0] == cas.expect) {
            if let Some(result) = entry.fast_end(cas, as_of_now, || coarse) {
                self.released_by_one(c, l, result.status);
                return self.finish(c, l, result);
            }
        }
        let again = match outcome {
            Outcome::Done(values) => {
                entry.fast_again(t.op, cas, values[0], as_of_now.at_local(coarse))
            }
            _ => None,
        };
        if let Some(again) = again {
            let until_ns = bounds.chain_until_ns(begun.local_ns);
            let doing = Doing::Fast { cas: again, begun, bounds };
            return self.post(c, l, Chain::one(again.word_op()), until_ns, doing);
        }
        let started = Operation::after_fast(entry, t.op, outcome, begun, now, bounds);
        self.started(c, l, started);
    }

    /// A release by one word operation is told, which may have changed the memory of a dead
    /// primary. A client without a horizon does not learn that it was cut off.
    fn released_by_one(&mut self, c: usize, l: usize, status: Status) {
        let is_release = self.clients[c].threads[l].op == Op::Unlock && status == Status::Success;
        if is_release && self.plan.horizon_s > 0 && !self.is_by_a_wrong_clock(c, l) {
            let verdict = self.oracle.released_by_one(l, self.who(c), self.now);
            verdict.unwrap_or_else(|why| self.fail(why));
        }
    }
}
