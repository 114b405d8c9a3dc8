// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pauses before another try for a lock that another client holds, and sleep on its word.

use dlock_core::clock::Now;
use dlock_core::limits::TRIES_MAX;

use super::plan::Fabric;
use super::state::{Doing, Sys, Thread};

impl Sys {
    pub(super) fn pause(&mut self, c: usize, l: usize, pause_ns: u64) {
        let t = self.thread(c, l);
        if t.async_until > 0 {
            if let (Some(operation), Some(entry)) = (t.operation.as_mut(), t.entry.as_mut()) {
                operation.queues(entry);
            }
            return self.effect(c, l);
        }
        t.pauses = t.pauses.saturating_add(1);
        if t.pauses > TRIES_MAX {
            return self.fail(format!("liveness: client {c} tries lock {l}, and does not queue"));
        }
        let gen = t.gen;
        self.enter(c, l, Doing::Pause(gen));
        let ns = self.takes(20);
        self.step_after(c, l, pause_ns + ns);
    }

    /// Lets a waiter sleep on the word until it is woken, at most for `limit_ns`.
    pub(super) fn parks(&mut self, c: usize, l: usize, limit_ns: u64) {
        if self.thread(c, l).async_until > 0 {
            return self.pause(c, l, 0);
        }
        let gen = self.thread(c, l).gen;
        self.enter(c, l, Doing::Pause(gen));
        self.thread(c, l).is_parked = true;
        // the waiter may find the word changed before it sleeps, or be woken by a signal
        let ns = match self.rng.chance(100) {
            true => self.takes(20),
            false => limit_ns,
        };
        self.step_after(c, l, ns);
    }

    /// Wakes all waiters that sleep on the word of this lock.
    pub(super) fn wakes(&mut self, l: usize) {
        for c in 0..self.clients.len() {
            let t = self.thread(c, l);
            if std::mem::take(&mut t.is_parked) {
                if let Doing::Pause(gen) = t.doing {
                    self.enter(c, l, Doing::Pause(gen));
                    self.step_soon(c, l);
                }
            }
        }
    }

    /// Whether no message is under way about a lock whose handle is to be released. While one is,
    /// the slot must not be reused for another lock.
    pub(super) fn is_settled(&mut self, c: usize, l: usize) -> bool {
        !self.is_connected(c, l) || self.is_flushed(c, l)
    }

    /// Goes on after a pause; `gen`: the session in which the pause began.
    pub(super) fn paused(&mut self, c: usize, l: usize, gen: u32) {
        let now = self.thread_now(c, l);
        let t = self.thread(c, l);
        t.is_parked = false;
        let (Some(operation), Some(entry)) = (t.operation.as_mut(), t.entry.as_mut()) else {
            return;
        };
        match gen == t.gen {
            true => {
                t.last_now = now;
                operation.paused(entry, now);
            }
            false => {
                let (local_ns, horizon_ns) = (now.local_ns, t.horizon_ns);
                operation.replaced(entry, Now { local_ns, horizon_ns, ..t.last_now });
            }
        }
        self.effect(c, l);
    }
}

impl Thread {
    /// Has a session of this fabric carry the thread's operations from now on.
    pub(super) fn is_carried_by(&mut self, fabric: Fabric) {
        (self.fabric, self.noted_acked) = (fabric, self.noted);
        if let Some(entry) = &mut self.entry {
            entry.may_try(fabric != Fabric::Tcp);
            entry.may_park(fabric == Fabric::Shm);
            entry.reads_are_free(fabric == Fabric::Shm);
            entry.is_by_primary(fabric == Fabric::Tcp);
        }
    }
}
