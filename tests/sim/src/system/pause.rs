// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pauses before another try of a lock that another client holds.

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

    /// The pause is over; `gen` is the session that it began with.
    pub(super) fn paused(&mut self, c: usize, l: usize, gen: u32) {
        let now = self.thread_now(c, l);
        let t = self.thread(c, l);
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
    /// A session of this fabric carries its operations from here on.
    pub(super) fn is_carried_by(&mut self, fabric: Fabric) {
        (self.fabric, self.noted_acked) = (fabric, self.noted);
        if let Some(entry) = &mut self.entry {
            entry.may_try(fabric != Fabric::Tcp);
        }
    }
}
