// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations up to their first effect: the work of the library before it builds an [`Operation`].
//!
//! ```text
//!   first ─▶ First: the effect ─▶ Writes: a ledger entry ─▶ result
//!                               └▶ an Operation goes on
//! ```

use dlock_core::clock::Now;
use dlock_core::lock::{Op, OpResult};
use dlock_core::memory::word_op::{Chain, Outcome};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::operation::{ended_by, needs_clock, Bounds, Operation};
use dlock_core::wire::status::Status;

use super::state::{Doing, Sys};
use super::told::shared_past_a_queue;

impl Sys {
    /// Begins an operation as the library does.
    pub(super) fn first(&mut self, c: usize, l: usize, op: Op, now: Now, bounds: Bounds) {
        let t = &mut self.clients[c].threads[l];
        let Some(entry) = t.entry.as_mut() else { return };
        let has_time = now.local_ns < bounds.until_ns;
        let found = match entry.first_op(op, &now).filter(|_| has_time) {
            Some((word_op, first)) => Some((Chain::one(word_op), first)),
            None if has_time => {
                entry.first_chain(op, &now).map(|first| (entry.chain_of(op, first), first))
            }
            None => None,
        };
        match found {
            Some((chain, first)) => {
                t.first = Some((first, now, bounds));
                self.post(c, l, chain, bounds.chain_until_ns(now.local_ns), Doing::First);
            }
            None => {
                let started = Operation::begin(entry, op, now, bounds);
                self.started(c, l, started);
            }
        }
    }

    /// Handles the end of a call's first effect: the call is over, or an operation goes on.
    pub(super) fn first_ended(&mut self, c: usize, l: usize) {
        let now = self.thread_now(c, l);
        let t = self.thread(c, l);
        let (Some((first, begun, bounds)), Some(entry)) = (t.first, t.entry.as_mut()) else {
            return;
        };
        let Some(outcome) = t.outcome.take() else { return };
        if needs_clock(t.op, entry, begun) {
            t.last_now = now;
        }
        let last_now = Now { horizon_ns: t.horizon_ns, ..t.last_now };
        t.past_queue = shared_past_a_queue(t.op, &outcome);
        if let Outcome::Done(values) = &outcome {
            let values = values.as_slice();
            if let Some(result) = ended_by(entry, t.op, first, values, &begun, &last_now) {
                let write = entry.take_ledger_write();
                self.released_at_once(c, l, result.status);
                match write {
                    Some(write) => {
                        self.enter(c, l, Doing::Writes(write, result));
                        self.step_soon(c, l);
                    }
                    None => self.finish(c, l, result),
                }
                return;
            }
        }
        let mut operation = Operation::after(entry, t.op, first, begun, bounds);
        operation.outcome(entry, outcome, last_now);
        (t.first, t.operation) = (None, Some(operation));
        self.effect(c, l);
    }

    /// Writes the ledger entry that a call's first effect leaves to be written, and then returns
    /// the result to the program.
    pub(super) fn writes(&mut self, c: usize, l: usize, write: LedgerEntry, result: OpResult) {
        self.write_ledger(c, l, write);
        self.finish(c, l, result);
    }

    /// Checks the success of a release that a call's first effect has made, possibly in the memory
    /// of a dead primary. Releases of clients without a horizon are not checked: such a client does
    /// not learn that it was cut off.
    fn released_at_once(&mut self, c: usize, l: usize, status: Status) {
        let is_release = self.clients[c].threads[l].op == Op::Unlock && status == Status::Success;
        if is_release && self.plan.horizon_s > 0 && !self.is_by_a_wrong_clock(c, l) {
            let verdict = self.oracle.released_at_once(l, self.who(c), self.now);
            verdict.unwrap_or_else(|why| self.fail(why));
        }
    }
}
