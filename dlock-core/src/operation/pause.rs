// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pause before another try of a lock that another client holds.

use super::{Operation, Stage};
use crate::clock::Now;
use crate::lock::{LockEntry, Machine, Step};
use crate::status::Status;

impl Operation {
    /// The pause is over; `now` was read after it.
    pub fn paused(&mut self, entry: &mut LockEntry, now: Now) {
        self.pause_ends(entry, now, Machine::paused);
    }

    /// The pause is over, since a holder has [handed](super::First::hands_on_to) the lock on to the
    /// ticket under which this operation [listens](Self::listens). `since_ns`: the clock reading
    /// that it has told, or an earlier one; `now` was read after it was told. Not of a session that
    /// is known to be over.
    pub fn handed(&mut self, entry: &mut LockEntry, since_ns: u64, now: Now) {
        self.pause_ends(entry, now, |machine, entry, now| machine.handed(entry, since_ns, now));
    }

    /// In a pause: the number of the exclusive ticket to which the lock may be
    /// [handed](Self::handed).
    pub fn listens(&self, entry: &LockEntry) -> Option<u16> {
        matches!(self.stage, Stage::Pausing).then(|| self.machine.listens(entry)).flatten()
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
        self.steps = 0; // the tries have a bound of their own
        let has_time = now.local_ns < self.bounds.grant_until_ns;
        self.stage = Stage::Step(match has_time {
            _ if now.is_past_horizon() => self.machine.reply(entry, Err(Status::BadResponse), now),
            true => goes_on(&mut self.machine, entry, now),
            false => self.machine.queues(entry),
        });
    }

    /// There is no pause, and no other try.
    pub fn queues(&mut self, entry: &mut LockEntry) {
        if matches!(self.stage, Stage::Pausing) {
            self.stage = Stage::Step(self.machine.queues(entry));
        }
    }

    /// As [`First::hands_on_to`](super::First::hands_on_to), for a chain that is posted.
    pub fn hands_on_to(&self, entry: &LockEntry) -> Option<(u16, u64)> {
        matches!(self.stage, Stage::Posted).then(|| self.machine.hands_on_to(entry)).flatten()
    }
}
