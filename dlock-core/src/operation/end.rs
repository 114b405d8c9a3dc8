// SPDX-License-Identifier: MIT OR Apache-2.0
//! How an operation ends: with its result, or because its caller gives it up; and what the client
//! then gives back.

use super::bounds::LATE_GRANTS_MAX;
use super::{lease, Operation, Stage};
use crate::clock::Now;
use crate::lock::{Begin, LockEntry, Op, OpResult};
use crate::planted::{self, Bug};
use crate::wire::status::Status;

impl Operation {
    /// Ends the operation although its answer is still to come, and undoes what it did. The
    /// executor drops what it waits for, and carries out the remaining effects.
    pub fn give_up(&mut self, entry: &mut LockEntry, status: Status, now: Now) {
        let given_up = OpResult::of(status);
        match self.stage {
            Stage::Undo(_) => return,
            Stage::Done(result) => {
                self.stage = match self.untold(entry, &result) {
                    true => Stage::Undo(given_up),
                    // a hold from before this operation is undone once the caller knows that it was
                    // lost
                    false => Stage::Done(given_up),
                };
                return;
            }
            _ => self.now = now,
        }
        if !planted::is(Bug::GivenUpKept) {
            self.machine.abandon(entry);
        }
        if self.is_renewal() {
            entry.rewrite_ledger(); // the channel of the renewal may have been replaced
            entry.has_renewed(status, now);
        }
        self.stage = Stage::Undo(given_up);
    }

    /// Gives back a hold that this result grants, because the caller will not learn of it. Returns
    /// whether the primary has to undo the hold.
    fn untold(&mut self, entry: &mut LockEntry, result: &OpResult) -> bool {
        let takes = matches!(self.op, Op::TryLock { .. } | Op::Lock { .. });
        if !takes || !lease::is_grant(entry, self.op, result) || planted::is(Bug::GivenUpKept) {
            return false;
        }
        if entry.refs() > 1 {
            // the client had entered its own hold again, so there is nothing to send
            entry.leaves_once();
            return false;
        }
        entry.give_back();
        true
    }

    /// Ends the operation with the machine's `result`, unless that is a grant whose lease may be
    /// over: such a hold is given back. Then an acquire that waits begins anew while it has time;
    /// otherwise the caller gets `Fail`.
    pub(super) fn finish(&mut self, entry: &mut LockEntry, result: OpResult) {
        if self.is_renewal() {
            return self.has_renewed(entry, result);
        }
        if !lease::is_over(entry, self.op, &result, self.now) {
            let result = lease::told(entry, self.op, result, self.now);
            self.stage = match result.status {
                Status::BadResponse => Stage::Undo(result),
                _ if self.replaced => Stage::Undo(result),
                _ => Stage::Done(result),
            };
            return;
        }
        if lease::was_held(entry, self.op) {
            // the caller may rely on its hold until it learns of the end: what is left of the hold
            // is undone later, or ends with its lease
            entry.give_back();
            self.stage = Stage::Done(OpResult::of(Status::Fail));
            return;
        }
        entry.give_back();
        self.late_grants += 1;
        let has_time = self.now.local_ns < self.bounds.grant_until_ns.min(self.now.horizon_ns);
        let waits = matches!(self.op, Op::Lock { .. });
        if waits && has_time && self.late_grants <= LATE_GRANTS_MAX {
            match entry.begin(self.op, self.now) {
                Begin::Run(machine, step) => {
                    self.machine = machine;
                    self.stage = Stage::Step(step);
                    return;
                }
                Begin::Local(_) => {}
            }
        }
        self.stage = Stage::Undo(OpResult::of(Status::Fail));
    }
}
