// SPDX-License-Identifier: MIT OR Apache-2.0
//! Standbys: `dlock_core::standby` decides when one takes the place of the primary, and
//! `dlock_core::roster::place` decides whether it gets the place. This module probes, fences and
//! locks as `dlock-server/src/coordinator/standby.rs` and `file/owner.rs` do, and plays the
//! operator.
//!
//! ```text
//!   next ─▶ Wait · Probe ─▶ heard, unheard · Fence ─▶ the primary ends, or the command fails
//!      └──▶ TakeOver ─▶ a successor starts, or fails to; a new standby watches it
//! ```
//! Two primaries never serve at a time; and one serves again in a bounded time.

use dlock_core::clock::NS;
use dlock_core::roster::place::{Attempt, Signature, Step, Whose};
use dlock_core::standby::{Ground, Standby, Task, PAUSE_NS};

use super::server::World;
use super::state::{Ev, Sys};

/// Time between two looks whether the primary's process has ended.
const LOOK_NS: u64 = 10_000_000;
/// The longest time of the fencing command.
const FENCE_NS_MAX: u64 = 2 * NS;
/// How many of a thousand fencing commands fail.
const FENCE_FAILS: u32 = 200;
/// How many of a thousand fencing commands report success although the primary still answers.
const FENCE_LIES: u32 = 200;
/// Of a thousand starts in the place of the primary, those that fail.
const START_FAILS: u32 = 200;
/// Of a thousand primaries that end, those that leave no lock file; and for how long at most.
const REMOVED: u32 = 100;
const REMOVED_NS: u64 = NS / 2;
/// How long after the end of the primary fencing commands and starts may fail.
const FAULTY_NS: u64 = 5 * NS;
/// The time in which an operator who knows that the primary is gone says so.
const OPERATOR_NS: u64 = NS;
/// The longest time without a serving primary, in addition to the silence that the standby bears.
const UNSERVED_NS_MAX: u64 =
    FAULTY_NS + PAUSE_NS.1 + FENCE_NS_MAX + 2 * OPERATOR_NS + 2 * REMOVED_NS + NS;

/// The result of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pending {
    Nothing,
    /// `asked`: the signature of the list when the probe began.
    Probe {
        is_heard: bool,
        asked: Option<Signature>,
    },
    Fence,
}

/// The lock file of the list of clients.
#[derive(Debug)]
pub(crate) struct Place {
    signature: Signature,
    /// The standby that owns the lock file and does not serve yet; `None`: a primary owns it, or
    /// the last primary did.
    owner: Option<usize>,
    /// The time until which the lock file does not exist.
    removed_until: u64,
    /// The number of steps of all standbys so far.
    steps: u32,
}

impl Place {
    /// The lock file of the first primary.
    pub fn new() -> Self {
        Self { signature: Signature(String::new()), owner: None, removed_until: 0, steps: 0 }
    }

    /// The signature in the lock file; `None`: the file does not exist.
    fn there(&self, now: u64) -> Option<Signature> {
        (self.removed_until <= now).then(|| self.signature.clone())
    }

    /// Another process takes the lock file, and writes its signature into it.
    fn sign(&mut self, by: String, owner: Option<usize>) {
        (self.signature, self.owner, self.removed_until) = (Signature(by), owner, 0);
    }
}

/// A standby of the present primary.
#[derive(Debug)]
pub(crate) struct Watch {
    machine: Standby,
    /// The number of the event that the standby awaits.
    tok: u32,
    /// The standby's present task, when that ends, and its result.
    doing: Option<(Task, u64, Pending)>,
    silence_ns: u64,
    /// Whether the standby is on the primary's host and sees the end of its process.
    is_local: bool,
    /// When the standby last heard the primary, or began to watch.
    heard: u64,
    /// Until when the standby cannot reach the primary.
    pub(super) apart_until: u64,
    /// Whether the fencing command reported success although the primary runs; the next probe is
    /// answered at once.
    is_lied_to: bool,
    /// Since when no primary serves. Some time later an operator promotes the standby.
    dead_since: Option<u64>,
}

impl Watch {
    fn new(sys: &mut Sys, place: &Place) -> Self {
        let silence_ns = sys.rng.pick(&[NS / 10, NS / 2, NS, 3 * NS]);
        let (is_local, fences) = (sys.rng.chance(400), sys.rng.chance(600));
        Self {
            machine: Standby::new(sys.now, silence_ns, fences, place.there(sys.now)),
            tok: 0,
            doing: None,
            silence_ns,
            is_local,
            heard: sys.now,
            apart_until: 0,
            is_lied_to: false,
            dead_since: None,
        }
    }
}

impl World {
    /// Standbys begin to watch the first primary.
    pub(super) fn stand_by(&mut self) {
        if !self.sys.plan.standby {
            return;
        }
        for w in 0..1 + usize::from(self.sys.rng.chance(500)) {
            let watch = Watch::new(&mut self.sys, &self.place);
            self.watches.push(watch);
            self.watch_at(w, self.sys.now);
        }
    }

    /// Sets the next step of the standby.
    fn watch_at(&mut self, w: usize, at: u64) {
        self.place.steps += 1;
        self.watches[w].tok = self.place.steps;
        self.sys.at(at, Ev::Standby(self.place.steps));
    }

    /// The primary has ended; returns whether a standby takes its place.
    pub(super) fn primary_is_watched(&mut self) -> bool {
        let now = self.sys.now;
        if self.watches.is_empty() {
            return false;
        }
        for w in 0..self.watches.len() {
            self.watches[w].dead_since = Some(now);
            if self.watches[w].is_local {
                let ns = self.sys.rng.below(LOOK_NS);
                self.watch_at(w, now + ns);
            }
        }
        if self.sys.rng.chance(REMOVED) {
            self.place.removed_until = now + self.sys.rng.below(REMOVED_NS);
        }
        let ns = self.sys.rng.below(OPERATOR_NS);
        self.sys.at(now + ns, Ev::Operator);
        true
    }

    /// Whether a living process that can serve in the place of the primary has that place.
    fn is_place_held(&self) -> bool {
        let is_there = self.place.there(self.sys.now).is_some();
        is_there && (self.sys.alive || self.place.owner.is_some())
    }

    /// Handles an event that a standby awaited.
    pub(super) fn watches(&mut self, tok: u32) {
        let now = self.sys.now;
        let Some(w) = self.watches.iter().position(|watch| watch.tok == tok) else { return };
        let (is_held, there) = (self.is_place_held(), self.place.there(now));
        let watch = &mut self.watches[w];
        let over_ns = watch.silence_ns * 2 + UNSERVED_NS_MAX;
        if let Some(since) = watch.dead_since.filter(|since| now - since > over_ns) {
            return self.sys.fail(format!("standby: none serves since {since}: {watch:?}"));
        }
        // the lock file names the process to look at
        if watch.is_local && !is_held && there.is_some() {
            watch.machine.ended(now);
        }
        let Some((task, due, pending)) = watch.doing.take() else { return self.watch_next(w) };
        if now >= due {
            match pending {
                Pending::Nothing => {}
                Pending::Probe { is_heard: true, asked } => {
                    watch.machine.heard(now, asked.as_ref(), there.as_ref());
                    // an answer comes too late once the standby takes the place
                    if watch.machine.silent_ns(now) == 0 {
                        watch.heard = now;
                    }
                }
                Pending::Probe { is_heard: false, .. } => watch.machine.unheard(now),
                Pending::Fence => self.fenced(w),
            }
        } else if !watch.machine.is_over(task, now) {
            return self.does(w, task, due, pending);
        }
        self.watch_next(w);
    }

    fn watch_next(&mut self, w: usize) {
        let (now, asked) = (self.sys.now, self.place.there(self.sys.now));
        let watch = &mut self.watches[w];
        let task = watch.machine.next(now);
        let trip_ns = match std::mem::take(&mut watch.is_lied_to) {
            true => 1_000,
            false => self.sys.takes(20_000),
        };
        match task {
            Task::Wait { until_ns } => self.does(w, task, until_ns, Pending::Nothing),
            Task::Probe { until_ns } => {
                let answers_at = self.sys.frozen_until.max(now).saturating_add(trip_ns);
                let reaches = self.sys.alive && watch.apart_until <= now;
                let is_heard = reaches && answers_at < until_ns;
                let due = if is_heard { answers_at } else { until_ns };
                self.does(w, task, due, Pending::Probe { is_heard, asked });
            }
            Task::Fence => {
                let ns = self.sys.rng.below(FENCE_NS_MAX);
                self.does(w, task, now + ns, Pending::Fence);
            }
            Task::TakeOver(ground) => self.takes_over(w, ground),
        }
    }

    /// Sets a task until `due`; meanwhile the standby looks whether the primary's process has
    /// ended.
    fn does(&mut self, w: usize, task: Task, due: u64, pending: Pending) {
        let (now, watch) = (self.sys.now, &mut self.watches[w]);
        watch.doing = Some((task, due, pending));
        let looks = watch.is_local && !self.sys.alive;
        let at = if looks { due.min(now + LOOK_NS) } else { due };
        self.watch_at(w, at.max(now + 1));
    }

    /// Handles the end of the fencing command.
    fn fenced(&mut self, w: usize) {
        let (now, is_calm) = (self.sys.now, self.sys.calm);
        let may_end = self.everybody_comes();
        let fails = self.may_fail(w) && self.sys.rng.chance(FENCE_FAILS);
        let lies = !is_calm && self.sys.rng.chance(FENCE_LIES);
        let watch = &mut self.watches[w];
        let answers = self.sys.alive && self.sys.frozen_until <= now && watch.apart_until <= now;
        let is_done = match self.sys.alive {
            true if lies && answers => {
                watch.is_lied_to = true;
                true
            }
            true => !fails && may_end && !is_calm,
            false => !fails,
        };
        if is_done && self.sys.alive && !watch.is_lied_to {
            self.sys.log(|| "the primary is fenced".to_string());
            self.crash_primary();
        }
        let is_seen = self.is_place_held();
        let watch = &mut self.watches[w];
        watch.machine.fenced(now, is_done, watch.is_local && is_seen);
    }

    /// Whether commands and starts may still fail.
    fn may_fail(&self, w: usize) -> bool {
        let faulty_until = self.watches[w].dead_since.map(|since| since + FAULTY_NS);
        !self.sys.calm && faulty_until.is_none_or(|until| self.sys.now < until)
    }

    /// An operator tells every standby that the primary is gone; that may be wrong.
    pub(super) fn promotes(&mut self) {
        for w in 0..self.watches.len() {
            self.promotes_one(w);
        }
        if !self.sys.alive && !self.watches.is_empty() {
            // the operator looks again, in case no standby has taken over
            self.sys.at(self.sys.now + OPERATOR_NS, Ev::Operator);
        }
    }

    fn promotes_one(&mut self, w: usize) {
        let (now, is_alive) = (self.sys.now, self.sys.alive);
        let there = self.place.there(now);
        let watch = &mut self.watches[w];
        let is_silent = now - watch.heard >= watch.silence_ns;
        if is_alive && is_silent {
            return; // the primary may be frozen: the operator checks
        }
        let promoted = watch.machine.promoted(now, there.as_ref());
        self.sys.log(|| format!("an operator promotes the standby {w}: {promoted:?}"));
        if promoted.is_ok() && is_alive {
            return self.sys.fail("standby: promoted, and the silence is not over".to_string());
        }
        if !is_alive {
            self.watch_at(w, now);
        }
    }

    fn takes_over(&mut self, w: usize, ground: Ground) {
        let (now, there, is_held) =
            (self.sys.now, self.place.there(self.sys.now), self.is_place_held());
        let is_owner = self.place.owner == Some(w);
        let machine = &mut self.watches[w].machine;
        let whose = if is_owner { Whose::Mine } else { Whose::Anothers };
        let place = machine.has_place().then_some(whose);
        let taking = match machine.takes(now, there.as_ref(), place) {
            Ok(taking) => taking,
            Err(denied) => {
                self.sys.log(|| format!("standby {w} does not take over: {denied:?}"));
                return self.watch_next(w);
            }
        };
        let attempt = match is_held && !is_owner {
            true => Attempt::Held,
            false => Attempt::Locked { is_in_place: true },
        };
        let is_taken = match taking.step(attempt) {
            Step::Sign | Step::Again => true,
            Step::Replace => taking.may_replace(there.as_ref()),
            Step::Refuse => false,
        };
        if is_taken && self.sys.alive {
            return self.sys.fail(format!("standby: two primaries: {ground:?}"));
        }
        let fails = self.may_fail(w) && self.sys.rng.chance(START_FAILS);
        if !is_taken || fails {
            let has_place = is_taken && (is_owner || self.sys.rng.chance(500));
            if has_place {
                self.place.sign(format!("standby {}", self.place.steps), Some(w));
            }
            self.watches[w].machine.failed(now, has_place);
            return self.watch_next(w);
        }
        self.sys.log(|| format!("standby {w} takes over: {ground:?}"));
        self.successor();
        self.place.sign(format!("primary {}", self.sys.epoch), None);
        self.watches.iter_mut().for_each(|watch| watch.dead_since = None);
        self.watches[w] = Watch::new(&mut self.sys, &self.place);
        self.watch_at(w, now);
    }
}
