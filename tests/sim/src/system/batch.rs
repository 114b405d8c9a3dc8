// SPDX-License-Identifier: MIT OR Apache-2.0
//! Batches and asynchronous operations, as `dlock-client` drives them.
//!
//! ```text
//!   batch    begin on many locks ─▶ their chains in one doorbell ─▶ all outcomes together
//!            shm: one CPU, chain after chain · tcp: one frame · verbs: one list, one completion
//!   async    begin ─▶ post, nobody waits ─ the program asks now and then ─▶ the next step
//!                                        └ after 5 s it gives up, and what was done is undone
//! ```
//! Others' verbs come between any two of a doorbell. While an asynchronous operation is under
//! way, the client begins nothing else on its locks.

use dlock_core::clock::NS;
use dlock_core::limits::{BATCH_MAX, LOCK_WAIT_S};
use dlock_core::lock::{Op, OpResult};
use dlock_core::status::Status;
use dlock_core::verb::{Chain, Values};

use super::coverage::Action;
use super::plan::Fabric;
use super::state::{Doing, Ev, Life, Sys, Unit};

const ASYNC_WAIT_NS: u64 = LOCK_WAIT_S * NS;

/// A chain of a doorbell: the lock's thread, the number of its step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rung {
    pub lock: u8,
    pub tok: u32,
    pub chain: Chain,
}

impl Sys {
    /// An asynchronous operation is under way: nothing else may begin.
    pub(super) fn is_gated(&self, c: usize) -> bool {
        self.clients[c].threads.iter().any(|t| t.async_until > 0)
    }

    /// Perhaps makes the operation that this thread is about to begin one of a batch, or an
    /// asynchronous one.
    pub(super) fn begins_otherwise(&mut self, c: usize, l: usize, op: Op) -> bool {
        if matches!(op, Op::Lock { .. }) || self.clients[c].life != Life::Up {
            return false;
        }
        if self.clients[c].batch.is_empty() && self.rng.chance(self.plan.batches) {
            self.begin_batch(c, l, op);
        } else if self.rng.chance(self.plan.asynchronous) {
            self.begin_async(c, l, op);
        } else {
            return false;
        }
        true
    }

    /// The same kind of operation on many locks on which nothing is under way.
    fn begin_batch(&mut self, c: usize, l: usize, op: Op) {
        let epoch = self.clients[c].epoch;
        let mut locks = vec![l];
        for other in 0..self.clients[c].threads.len() {
            let t = &self.clients[c].threads[other];
            let idle = t.doing == Doing::Idle && t.epoch == epoch && t.entry.is_some();
            if idle && other != l && locks.len() < BATCH_MAX && self.rng.chance(900) {
                locks.push(other);
            }
        }
        let action = match op {
            Op::Unlock => Action::BatchUnlock,
            Op::Extend { .. } => Action::BatchExtend,
            Op::TryLock { .. } | Op::Lock { .. } => Action::BatchTry,
        };
        self.cover(action, c);
        self.log(|| format!("client {c} begins a batch of {}: {op:?}", locks.len()));
        self.doorbell = Some(Vec::new());
        for l in locks {
            let op = match op {
                Op::TryLock { expire_s, .. } => Op::TryLock { mode: self.mode(l), expire_s },
                op => op,
            };
            self.thread(c, l).action = action;
            self.begin(c, l, op);
        }
        let rungs = self.doorbell.take().unwrap_or_default();
        self.ring(c, rungs);
    }

    /// All chains go out at once.
    fn ring(&mut self, c: usize, rungs: Vec<Rung>) {
        if rungs.is_empty() {
            return;
        }
        if self.clients[c].fabric == Fabric::Shm {
            for rung in &rungs {
                self.thread(c, rung.lock.into()).chain = Some((rung.chain, Values::new()));
                self.clients[c].batch.push_back(rung.lock);
            }
            return self.verb_after(c, rungs[0].lock.into());
        }
        let last = rungs.len() - 1;
        let units = rungs.iter().enumerate().map(|(i, &Rung { lock, tok, chain })| {
            let values = Values::new();
            Unit::Batch { lock, tok, chain, values, more: i < last }
        });
        self.send_all_up(c, &units.collect::<Vec<_>>());
        for rung in rungs {
            self.timer_at(c, rung.lock.into(), self.now + LOCK_WAIT_S * NS);
        }
    }

    /// A chain of a doorbell was executed by the client's CPU: the next one's turn. Nobody looks
    /// at an outcome before the last. False: it is no doorbell's.
    pub(super) fn next_of_batch(&mut self, c: usize, l: usize) -> bool {
        let client = &mut self.clients[c];
        let Some(at) = client.batch.iter().position(|&lock| usize::from(lock) == l) else {
            return false;
        };
        if let Some(&next) = client.batch.get(at + 1) {
            self.verb_after(c, next.into());
            return true;
        }
        for lock in std::mem::take(&mut self.clients[c].batch) {
            self.step_after(c, lock.into(), 50);
        }
        true
    }

    fn begin_async(&mut self, c: usize, l: usize, op: Op) {
        self.cover(Action::Async, c);
        self.log(|| format!("client {c} lock {l}: asynchronously"));
        let until = self.now + ASYNC_WAIT_NS;
        let t = self.thread(c, l);
        (t.action, t.async_until) = (Action::Async, until);
        self.begin(c, l, op);
    }

    /// The program asks some time.
    pub(super) fn poll_later(&mut self, c: usize, l: usize) {
        let ns = match self.rng.below(8) {
            0 => self.rng.below(7_000_000_000),
            1 => self.rng.below(50_000_000),
            _ => self.rng.below(50_000),
        };
        self.step_after(c, l, ns);
    }

    /// The program asks, and nothing has come.
    pub(super) fn polled_in_vain(&mut self, c: usize, l: usize) {
        if self.now < self.thread(c, l).async_until {
            return self.poll_later(c, l);
        }
        self.give_up(c, l);
    }

    fn give_up(&mut self, c: usize, l: usize) {
        self.log(|| format!("client {c} lock {l}: given up"));
        if self.bugs.async_kept {
            return self.finish(c, l, OpResult::of(Status::TimedOut));
        }
        let t = self.thread(c, l);
        if let (Some(machine), Some(entry)) = (t.machine, t.entry.as_mut()) {
            machine.abandon(entry);
        }
        self.write_note(c, l);
        self.finish(c, l, OpResult::of(Status::BadResponse));
    }

    /// A new session: nobody asks for an outcome of the old one any more.
    pub(super) fn forget_async(&mut self, c: usize) {
        for l in 0..self.clients[c].threads.len() {
            let t = self.thread(c, l);
            if t.async_until > 0 && t.machine.is_some() {
                self.give_up(c, l);
            }
        }
    }

    /// The answer is waited for until then; that to an asynchronous operation is asked for.
    pub(super) fn expects(&mut self, c: usize, l: usize, until: u64) {
        match self.thread(c, l).async_until > 0 {
            true => self.poll_later(c, l),
            false => self.timer_at(c, l, until),
        }
    }

    pub(super) fn timer_at(&mut self, c: usize, l: usize, at: u64) {
        let inc = self.clients[c].inc;
        let tok = self.thread(c, l).tok;
        self.at(at, Ev::Timer(c as u8, inc, l as u8, tok));
    }
}
