// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients that find the successor of their primary by themselves: `dlock_core::session::Failover`
//! decides their next step, as in the library (`dlock-client/src/driver/failover.rs`).

use dlock_core::clock::{Lease, Now, NS};
use dlock_core::lock::{LockEntry, Op};
use dlock_core::operation::{Bounds, Operation, Started};
use dlock_core::session::{Failover, Heard, Task};
use dlock_core::wire::message::Mode;
use dlock_core::wire::status::Status;

use super::state::{Ask, Doing, Life, Sys};

/// How long a primary may be silent: less than a control thread waits for an answer otherwise.
const SILENCE_NS: u64 = NS;

impl Sys {
    /// Tells the failover machine that the client has joined; the first time, creates the machine.
    pub(super) fn is_led(&mut self, c: usize, recovering: bool) {
        let (now_ns, seed) = (self.local_ns(c), self.rng.bits());
        if !self.plan.by_itself {
            return;
        }
        match &mut self.clients[c].failover {
            Some(failover) => failover.came(now_ns, Ok(recovering)),
            new => *new = Some(Failover::new(now_ns, 1, SILENCE_NS, seed)),
        }
    }

    fn local_ns(&self, c: usize) -> u64 {
        self.clients[c].clock.local(self.now).max(0) as u64
    }

    /// Reports something to the client's failover machine, if it has one.
    pub(super) fn lead(&mut self, c: usize, tell: impl FnOnce(&mut Failover, u64)) {
        let now_ns = self.local_ns(c);
        if let Some(failover) = &mut self.clients[c].failover {
            tell(failover, now_ns);
        }
    }

    /// The client's session is over: its failover machine decides the next task. Returns whether
    /// the client waits, or starts anew, before it looks for the primary again.
    pub(super) fn looks_later(&mut self, c: usize) -> bool {
        let now_ns = self.local_ns(c);
        let Some(failover) = &mut self.clients[c].failover else { return false };
        if !failover.is_away() {
            failover.broken(now_ns);
        }
        if let Task::Ask { .. } = failover.next(now_ns) {
            // the primary is dead, and so does not answer; that counts as if it recovered
            failover.asked(now_ns, Heard::Recovers);
        }
        match failover.next(now_ns) {
            Task::Wait { until_ns } => {
                self.control_after(c, (until_ns - now_ns).max(1));
                true
            }
            Task::Reinit { .. } => false,
            Task::Anew { .. } => {
                self.start_anew(c);
                true
            }
            _ => {
                failover.broken(now_ns); // the primary that the client found is gone again
                self.control_after(c, 1);
                true
            }
        }
    }

    /// Whether the client is to claim its locks now, or has no machine that decides it.
    pub(super) fn may_claim(&mut self, c: usize) -> bool {
        let now_ns = self.local_ns(c);
        let Some(failover) = &mut self.clients[c].failover else { return true };
        matches!(failover.next(now_ns), Task::Claim | Task::Confirm)
    }

    /// Does the next task of the failover machine for a client whose session runs; returns when the
    /// next one is due, on the client's clock; `None`: a task was begun.
    pub(super) fn led(&mut self, c: usize) -> Option<u64> {
        let now_ns = self.local_ns(c);
        let failover = self.clients[c].failover.as_mut()?;
        match failover.next(now_ns) {
            Task::Wait { until_ns } => Some(until_ns),
            Task::Heartbeat { until_ns } => {
                self.ask_for(c, Ask::Heartbeat, (until_ns - now_ns).max(1));
                None
            }
            Task::Claim => {
                failover.claimed(now_ns, Status::Success); // all claims are at the primary
                self.led(c)
            }
            Task::Done => {
                self.ask(c, Ask::Done);
                None
            }
            Task::Confirm => {
                let is_all = self.confirm_all(c);
                self.lead(c, |failover, now_ns| failover.confirmed(now_ns, is_all));
                self.led(c)
            }
            Task::Ask { .. } | Task::Reinit { .. } | Task::Anew { .. } => {
                self.break_command(c);
                None
            }
        }
    }

    /// Asks the primary about claimed holds, and undoes operations that are in doubt. Each thread
    /// handles its answer at its next call. Returns `true` if there was nothing to ask, and no
    /// operation is under way that may leave its lock in doubt.
    fn confirm_all(&mut self, c: usize) -> bool {
        let mut is_all = true;
        for l in 0..self.clients[c].threads.len() {
            let t = &self.clients[c].threads[l];
            let Some(entry) = t.entry.as_ref() else { continue };
            is_all &= t.doing == Doing::Idle && !entry.in_doubt();
            if t.doing != Doing::Idle {
                continue;
            }
            match entry.is_to_be_confirmed() {
                true => self.confirm(c, l),
                false if entry.in_doubt() => self.undo(c, l),
                false => {}
            }
        }
        is_all && self.clients[c].life == Life::Up
    }

    fn confirm(&mut self, c: usize, l: usize) {
        if let Some(operation) = self.of_the_library(c, l, Operation::confirm) {
            let no_release = Op::Extend { mode: Mode::Exclusive, lease: Lease::NONE };
            self.thread(c, l).op = no_release;
            self.started(c, l, Started::Running(operation));
        }
    }

    fn undo(&mut self, c: usize, l: usize) {
        if let Some(operation) = self.of_the_library(c, l, Operation::undo) {
            self.calls(c, l, Op::Unlock);
            self.started(c, l, Started::Running(operation));
        }
    }

    fn of_the_library(
        &mut self,
        c: usize,
        l: usize,
        begin: fn(&mut LockEntry, Now, Bounds) -> Option<Operation>,
    ) -> Option<Operation> {
        let now = self.thread_now(c, l);
        let entry = self.thread(c, l).entry.as_mut()?;
        begin(entry, now, Bounds::since(now.local_ns))
    }

    /// Tells the failover machine that the primary has answered a heartbeat.
    pub(super) fn is_heard(&mut self, c: usize, recovering: bool) {
        let heard = if recovering { Heard::Recovers } else { Heard::Serves };
        self.lead(c, |failover, now_ns| failover.heard(now_ns, heard));
    }
}
