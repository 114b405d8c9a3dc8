// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pause before another try of a lock that another client holds.

use super::{Operation, Stage};
use crate::clock::Now;
use crate::lock::{LockEntry, Machine, Step};
use crate::wire::status::Status;

impl Operation {
    /// Continues the operation after a pause; `now` was read after the pause.
    pub fn paused(&mut self, entry: &mut LockEntry, now: Now) {
        self.pause_ends(entry, now, Machine::paused);
    }

    fn pause_ends(
        &mut self,
        entry: &mut LockEntry,
        now: Now,
        goes_on: impl FnOnce(&mut Machine, &mut LockEntry, Now) -> Step,
    ) {
        if !matches!(self.stage, Stage::Pausing) {
            return;
        }
        self.read(now);
        self.steps = 0; // the tries have a limit of their own
        let has_time = now.local_ns < self.bounds.grant_until_ns;
        self.stage = Stage::Step(match has_time {
            _ if now.is_past_horizon() => self.machine.reply(entry, Err(Status::BadResponse), now),
            true => goes_on(&mut self.machine, entry, now),
            false => self.machine.queues(entry),
        });
    }

    /// Queues at once: the executor makes no pause and no other try.
    pub fn queues(&mut self, entry: &mut LockEntry) {
        if matches!(self.stage, Stage::Pausing) {
            self.stage = Stage::Step(self.machine.queues(entry));
        }
    }
}
