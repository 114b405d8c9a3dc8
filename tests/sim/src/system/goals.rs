// SPDX-License-Identifier: MIT OR Apache-2.0
//! The next operation of a thread: any while there are faults; then those that prove that nothing
//! is stuck and nothing is left behind.

use dlock_core::clock::{Lease, TICKS_PER_S};
use dlock_core::lock::{EntryState, LockEntry, Op};
use dlock_core::wire::message::{LockType, Mode};
use dlock_core::wire::status::Status;

use super::coverage::Action;
use super::state::{Doing, Goal, Life, Sys};

/// How often a thread tries to acquire its lock after the faults: the first attempt may fail
/// because its place in the queue was lost during the faults.
const ATTEMPTS_MAX: u32 = 4;
/// The longest rest of a program.
const REST_NS_MAX: u64 = 10_000_000_000;

/// What the client has of a lock, as far as it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Has {
    Nothing,
    Ticket(Mode),
    Hold(Mode),
}

/// A thread waits at most this long for the end of another client's reliance, because some leases
/// last years.
const NEAR_NS_MAX: u64 = 20_000_000_000;

impl Sys {
    fn has(&self, c: usize, l: usize) -> Has {
        match self.clients[c].threads[l].entry.as_ref().map(|e| e.state()) {
            Some(EntryState::ExclusiveLocked) => Has::Hold(Mode::Exclusive),
            Some(EntryState::SharedLocked) => Has::Hold(Mode::Shared),
            Some(EntryState::ExclusiveTicketed) => Has::Ticket(Mode::Exclusive),
            Some(EntryState::SharedTicketed) => Has::Ticket(Mode::Shared),
            _ => Has::Nothing,
        }
    }

    /// Continues the thread.
    pub(super) fn thread_steps(&mut self, c: usize, l: usize) {
        let t = &self.clients[c].threads[l];
        match t.doing {
            Doing::Nothing | Doing::Control => {}
            Doing::Idle if self.goal == Goal::Any => self.anything(c, l),
            Doing::Idle => self.towards_goal(c, l),
            Doing::Effect => self.effect(c, l),
            Doing::Writes(write, result) => self.writes(c, l, write, result),
            Doing::Pause(gen) => self.paused(c, l, gen),
            Doing::Batch => self.batch_steps(c),
            Doing::Untold => self.polled(c, l),
            _ if t.async_until > 0 && t.chain.is_none() && !t.at_once => self.polled(c, l),
            _ if self.has_event(c, l) => self.event(c, l),
            _ => {}
        }
    }

    pub(super) fn mode(&mut self, l: usize) -> Mode {
        let may = self.plan.locks[l] != LockType::Atomic;
        match may && self.rng.chance(self.plan.shared) {
            true => Mode::Shared,
            false => Mode::Exclusive,
        }
    }

    fn lease(&mut self, l: usize) -> Lease {
        let may_lack = self.plan.rw_leases && self.plan.locks[l] == LockType::Rw;
        match self.rng.chance(self.plan.endless) {
            true => Lease::ENDLESS,
            // some holds have no lease, where the plan wants that
            false if may_lack && self.rng.chance(400) => Lease::ENDLESS,
            false if self.rng.below(100) == 0 => Lease::NONE,
            // also leases shorter than the C API allows, down to two ticks
            false if self.rng.below(4) == 0 => Lease(self.rng.range(2, TICKS_PER_S.into()) as u32),
            false => Lease::secs(self.rng.range(1, self.plan.lease_max_s.into()) as u32),
        }
    }

    fn acquire(&mut self, mode: Mode, lease: Lease) -> Op {
        match self.rng.chance(self.plan.wait) {
            true => Op::Lock { mode, lease },
            false => Op::TryLock { mode, lease },
        }
    }

    /// Whether the client may release the lock's handle: only if nothing about the lock is
    /// unanswered or in doubt, because requests on the command channel and a release on the control
    /// connection could overtake each other.
    fn may_release(&mut self, c: usize, l: usize) -> bool {
        let t = self.thread(c, l);
        let doubt = t.unflushed || t.entry.as_ref().is_some_and(|e| e.in_doubt());
        self.rng.chance(self.plan.churn) && (!doubt || self.bugs.release_in_doubt)
    }

    fn anything(&mut self, c: usize, l: usize) {
        let life = self.clients[c].life;
        if !matches!(life, Life::Up | Life::Broken) {
            return;
        }
        if self.is_gated(c) {
            return self.step_after(c, l, 20_000);
        }
        let op = match self.has(c, l) {
            Has::Nothing => {
                let has_left = self.thread(c, l).entry.as_ref().is_some_and(LockEntry::has_left);
                let releases_again = has_left && self.rng.chance(300);
                if life == Life::Up && (releases_again || self.may_release(c, l)) {
                    self.thread(c, l).doing = Doing::Control;
                    self.clients[c].releases.push_back(l as u8);
                    return self.control_wake(c);
                }
                match self.rng.below(100) {
                    0 => Op::Unlock,
                    1 => Op::Extend { mode: self.mode(l), lease: Lease::secs(1) },
                    _ => {
                        let (mode, lease) = (self.mode(l), self.lease(l));
                        self.acquire(mode, lease)
                    }
                }
            }
            Has::Ticket(mode) => match self.rng.chance(self.plan.impatience / 2) {
                true => Op::Unlock,
                false => {
                    let lease = self.lease(l);
                    self.acquire(mode, lease)
                }
            },
            Has::Hold(mode) => {
                if self.downgrades(c, l, mode) {
                    Op::Downgrade
                } else if self.rng.chance(self.plan.extend) {
                    Op::Extend { mode, lease: self.lease(l) }
                } else if self.rng.chance(self.plan.reentry) {
                    let lease = self.lease(l);
                    self.acquire(mode, lease)
                } else {
                    Op::Unlock
                }
            }
        };
        if self.begins_otherwise(c, l, op) {
            return;
        }
        let action = self.action(c, l, op);
        self.thread(c, l).action = action;
        self.cover(action, c);
        self.begin(c, l, op);
    }

    /// Whether the program makes its exclusive hold a share, or asks again what became of that.
    fn downgrades(&mut self, c: usize, l: usize, mode: Mode) -> bool {
        let entry = self.thread(c, l).entry.as_ref();
        let is_open = mode == Mode::Exclusive || entry.is_some_and(LockEntry::in_doubt);
        let may = self.plan.downgrades > 0 && self.plan.locks[l] != LockType::Atomic;
        may && is_open && self.rng.chance(self.plan.downgrades)
    }

    /// The action of an operation in the coverage report.
    pub(super) fn action(&self, c: usize, l: usize, op: Op) -> Action {
        match (op, self.has(c, l)) {
            (Op::Unlock, Has::Ticket(_)) => Action::Abandon,
            (Op::Unlock, _) => Action::Unlock,
            (Op::Extend { .. } | Op::Downgrade, _) => Action::Extend,
            (_, Has::Hold(_)) => Action::Reentry,
            (_, Has::Ticket(_)) => Action::Ask,
            (Op::TryLock { mode: Mode::Exclusive, .. }, _) => Action::TryExclusive,
            (Op::TryLock { .. }, _) => Action::TryShared,
            (Op::Lock { mode: Mode::Exclusive, .. }, _) => Action::LockExclusive,
            (Op::Lock { .. }, _) => Action::LockShared,
        }
    }

    /// An operation is over: schedules the next one.
    pub(super) fn finished(&mut self, c: usize, l: usize, status: Status) {
        if self.goal != Goal::Any {
            let failed = !matches!(status, Status::Success | Status::AlreadyLocked);
            let ns = match (status, failed) {
                (Status::NotReady | Status::BadResponse, _) => 50_000_000,
                (_, true) => 1_000_000,
                _ => 2_000,
            };
            if matches!(status, Status::NotReady | Status::BadResponse) {
                let t = self.thread(c, l);
                // an attempt without an answer does not count
                t.attempts = t.attempts.saturating_sub(1);
            }
            return self.step_after(c, l, ns);
        }
        if matches!(self.has(c, l), Has::Hold(_)) {
            self.cover(Action::Hold, c);
        }
        let near = |sys: &mut Sys| {
            let end = sys.oracle.next_end(l, sys.now)?;
            let jitter = sys.rng.pick(&[0, 1_000, 300_000, 20_000_000]);
            let at = (end + sys.rng.below(2 * jitter + 1)).saturating_sub(jitter);
            Some(at.saturating_sub(sys.now).min(NEAR_NS_MAX))
        };
        let overstays = self.rng.chance(self.plan.overstay);
        let rests = self.rng.chance(self.plan.rests);
        let ns = match self.has(c, l) {
            Has::Hold(_) | Has::Nothing if rests => self.rng.below(REST_NS_MAX),
            Has::Hold(_) if overstays => match self.rng.below(3) {
                0 => self.rng.below(1_500_000_000 * u64::from(self.plan.lease_max_s)),
                _ => near(self).unwrap_or(500_000_000),
            },
            Has::Hold(_) => match self.rng.below(4) {
                0 => self.rng.below(3_000_000),
                _ => self.takes(2_000),
            },
            Has::Ticket(_) => match self.rng.below(10) {
                0 => self.rng.below(3_000_000_000),
                1..=3 => self.rng.below(50_000_000),
                _ => self.takes(5_000),
            },
            Has::Nothing if overstays => near(self).unwrap_or(100_000),
            Has::Nothing => match self.rng.below(8) {
                0 => self.rng.below(20_000_000),
                _ => self.takes(1_500),
            },
        };
        let slowly = match self.clients[c].life {
            Life::Up => 0,
            _ => self.rng.below(50_000_000),
        };
        let at = self.now.saturating_add(ns + slowly);
        self.thread(c, l).renewed.resumes_at(at);
        self.step_after(c, l, ns + slowly);
    }

    /// After the faults: drain, then each client is granted once, then nothing is left.
    fn towards_goal(&mut self, c: usize, l: usize) {
        let (goal, has) = (self.goal, self.has(c, l));
        let t = self.thread(c, l);
        if t.goal >= goal {
            if has != Has::Nothing && goal == Goal::Acquire {
                self.begin(c, l, Op::Unlock);
            }
            return; // the thread has reached the goal, and rests until there is another one
        }
        if self.clients[c].life != Life::Up {
            return self.step_after(c, l, 100_000_000);
        }
        if goal != Goal::Acquire && self.empties_cache(c, l) {
            return;
        }
        let lock = |mode| Op::Lock { mode, lease: Lease::secs(30) };
        match goal {
            Goal::Any => {}
            Goal::Drain | Goal::Free => match has {
                Has::Nothing => self.thread(c, l).goal = goal,
                _ => self.begin(c, l, Op::Unlock),
            },
            Goal::Acquire => match has {
                Has::Hold(_) => {
                    self.thread(c, l).goal = goal;
                    self.begin(c, l, Op::Unlock);
                }
                Has::Ticket(mode) => self.attempt(c, l, lock(mode)),
                Has::Nothing => {
                    let mode = self.mode(l);
                    self.attempt(c, l, lock(mode));
                }
            },
            Goal::Rest => match has {
                _ if c > 0 => self.thread(c, l).goal = goal,
                Has::Hold(_) => {
                    self.thread(c, l).swept = true;
                    self.begin(c, l, Op::Unlock);
                }
                Has::Nothing if self.thread(c, l).swept => self.thread(c, l).goal = goal,
                _ => self.attempt(c, l, lock(Mode::Exclusive)),
            },
        }
    }

    fn attempt(&mut self, c: usize, l: usize, op: Op) {
        let t = self.thread(c, l);
        t.attempts += 1;
        if t.attempts > ATTEMPTS_MAX {
            let state = format!("{:?} {:?}", t.doing, t.entry.as_ref().map(|e| e.state()));
            return self.fail(format!("liveness: client {c} was refused lock {l}: {state}"));
        }
        self.begin(c, l, op);
    }
}
