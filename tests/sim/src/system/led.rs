// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients that find the successor of their primary by themselves: what they do next is decided by
//! `dlock_core::session::Failover`, as in the library (`dlock-client/src/driver/failover.rs`).

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
    /// The client has become one.
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

    /// Tells the machine, if the client has one.
    pub(super) fn lead(&mut self, c: usize, tell: impl FnOnce(&mut Failover, u64)) {
        let now_ns = self.local_ns(c);
        if let Some(failover) = &mut self.clients[c].failover {
            tell(failover, now_ns);
        }
    }

    /// Its session is over: whether it waits before it looks for the primary.
    pub(super) fn looks_later(&mut self, c: usize) -> bool {
        let now_ns = self.local_ns(c);
        let Some(failover) = &mut self.clients[c].failover else { return false };
        if !failover.is_away() {
            failover.broken(now_ns);
        }
        if let Task::Ask { .. } = failover.next(now_ns) {
            failover.asked(now_ns, Heard::Recovers); // one that is not there refuses it, too
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
                failover.broken(now_ns); // it has come to a primary, which is gone again
                self.control_after(c, 1);
                true
            }
        }
    }

    /// Whether it is to tell its locks now, or what is left of them has no other way.
    pub(super) fn may_claim(&mut self, c: usize) -> bool {
        let now_ns = self.local_ns(c);
        let Some(failover) = &mut self.clients[c].failover else { return true };
        matches!(failover.next(now_ns), Task::Claim | Task::Confirm)
    }

    /// What the machine wants of a client whose session runs; `None`: nothing before that time, on
    /// the client's clock. `true`: it was begun.
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
                failover.claimed(now_ns, Status::Success); // all are told
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

    /// Asks what became of holds that were claimed, and undoes what is in doubt. The answers come
    /// to the threads: whether they came is seen the next time. `true`: nothing was to be asked,
    /// and no lock is in use, whose operation may leave it in doubt.
    fn confirm_all(&mut self, c: usize) -> bool {
        let mut is_all = true;
        for l in 0..self.clients[c].threads.len() {
            let t = &self.clients[c].threads[l];
            let Some(entry) = t.entry.as_ref() else { continue };
            is_all &= t.doing == Doing::Idle && !entry.in_doubt();
            if t.doing != Doing::Idle {
                continue;
            }
            match entry.is_unconfirmed() && entry.state().is_held() {
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

    /// The primary has answered a heartbeat.
    pub(super) fn is_heard(&mut self, c: usize, recovering: bool) {
        let heard = if recovering { Heard::Recovers } else { Heard::Serves };
        self.lead(c, |failover, now_ns| failover.heard(now_ns, heard));
    }
}
