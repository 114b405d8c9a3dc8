// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asynchronous operations: a thread executes the effects up to one that must be awaited, and goes
//! on when its program polls.
//!
//! ```text
//!   begin ─▶ effects ─▶ Chain
//! Reply ─ the program polls now and then ─▶ event ─▶ …
//!                                              └ after 5 s it gives up
//! ```
//! While such an operation is under way, the client begins no other on its locks.

use dlock_core::lock::Op;
use dlock_core::operation::CHAIN_WAIT_NS;
use dlock_core::wire::status::Status;

use super::coverage::Action;
use super::state::{Doing, Life, Sys};

impl Sys {
    /// Whether an asynchronous operation is under way, so that no other may begin.
    pub(super) fn is_gated(&self, c: usize) -> bool {
        self.clients[c].threads.iter().any(|t| t.async_until > 0)
    }

    /// Begins some operations as a part of a batch, and some asynchronously, as the plan wants it;
    /// returns whether this one was begun.
    pub(super) fn begins_otherwise(&mut self, c: usize, l: usize, op: Op) -> bool {
        if matches!(op, Op::Lock { .. } | Op::Downgrade) || self.clients[c].life != Life::Up {
            return false;
        }
        let alone = self.clients[c].batch.is_none() && self.is_connected(c, l);
        if alone && self.rng.chance(self.plan.batches) {
            self.begin_batch(c, l, op);
        } else if self.rng.chance(self.plan.asynchronous) {
            self.begin_async(c, l, op);
        } else {
            return false;
        }
        true
    }

    fn begin_async(&mut self, c: usize, l: usize, op: Op) {
        self.cover(Action::Async, c);
        self.log(|| format!("client {c} lock {l}: asynchronously"));
        let until = self.now + CHAIN_WAIT_NS;
        let t = self.thread(c, l);
        (t.action, t.async_until) = (Action::Async, until);
        self.begin(c, l, op);
    }

    /// Schedules the next poll of the program.
    pub(super) fn poll_later(&mut self, c: usize, l: usize) {
        let ns = match self.rng.below(8) {
            0 => self.rng.below(7_000_000_000),
            1 => self.rng.below(50_000_000),
            _ => self.rng.below(50_000),
        };
        self.step_after(c, l, ns);
    }

    /// The program polls its asynchronous operation on this lock, which goes on if the awaited
    /// event has come.
    pub(super) fn polled(&mut self, c: usize, l: usize) {
        let is_over = self.now >= self.thread(c, l).async_until;
        self.thread(c, l).polled = true;
        if self.thread(c, l).doing == Doing::Untold {
            self.effect(c, l);
        } else if self.has_event(c, l) {
            self.event(c, l);
        } else if is_over {
            self.give_up(c, l);
        } else {
            self.poll_later(c, l);
        }
    }

    fn give_up(&mut self, c: usize, l: usize) {
        self.log(|| format!("client {c} lock {l}: given up"));
        let now = self.thread_now(c, l);
        let t = &mut self.clients[c].threads[l];
        (t.asked, t.answer, t.outcome, t.judged) = (None, None, None, true);
        if let (Some(operation), Some(entry)) = (t.operation.as_mut(), t.entry.as_mut()) {
            operation.give_up(entry, Status::TimedOut, now);
        }
        self.effect(c, l);
    }

    /// Gives up the client's asynchronous operations that wait for an event of its old session,
    /// because a new session has begun.
    pub(super) fn forget_async(&mut self, c: usize) {
        for l in 0..self.clients[c].threads.len() {
            let t = &self.clients[c].threads[l];
            if t.async_until > 0 && t.operation.is_some() && !t.judged {
                self.give_up(c, l);
            }
        }
    }
}
