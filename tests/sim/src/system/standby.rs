// SPDX-License-Identifier: MIT OR Apache-2.0
//! A primary in waiting: `dlock_core::standby` decides when it takes the place of the primary.
//! What is here asks, fences and says what an operator says, as `dlock-server/src/standby.rs` does.
//!
//! ```text
//!   next ─▶ Wait · Probe ─▶ heard, unheard · Fence ─▶ the primary ends, or the command fails
//!      └──▶ TakeOver ─▶ a successor starts, or fails to; a new standby watches it
//! ```
//! Never two that serve; and one serves again in a bounded time.

use dlock_core::clock::NS;
use dlock_core::standby::{Ground, Standby, Task, PAUSE_NS};

use super::server::World;
use super::state::{Ev, Sys};

/// Between two looks whether the process of the primary has ended.
const LOOK_NS: u64 = 10_000_000;
/// How long the fencing command takes at most.
const FENCE_NS_MAX: u64 = 2 * NS;
/// Of a thousand fencing commands, so many fail, and so many lie about a primary that answers.
const FENCE_FAILS: u32 = 200;
const FENCE_LIES: u32 = 200;
/// Of a thousand starts in the place of the primary, so many fail.
const START_FAILS: u32 = 200;
/// An operator who has found out that the primary is gone says so in this time.
const OPERATOR_NS: u64 = NS;
/// Nobody serves for so long at most, beside what silence is borne.
const UNSERVED_NS_MAX: u64 = PAUSE_NS.1 + FENCE_NS_MAX + 2 * OPERATOR_NS + NS;

/// What was begun, and is to be reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    Nothing,
    Probe { is_heard: bool },
    Fence,
}

/// The standby of the primary of now.
#[derive(Debug)]
pub(crate) struct Watch {
    machine: Standby,
    /// The number of the event that is waited for.
    tok: u32,
    pending: Pending,
    silence_ns: u64,
    /// It sees the end of the primary's process.
    is_local: bool,
    /// When the primary was heard last, or this began.
    heard: u64,
    /// It does not reach the primary until then.
    pub(super) apart_until: u64,
    /// The fencing command has lied: the next probe is answered at once.
    is_lied_to: bool,
    /// Since when nobody serves, and when an operator is to say so.
    dead_since: Option<u64>,
}

impl Watch {
    pub fn new(sys: &mut Sys) -> Self {
        let silence_ns = sys.rng.pick(&[NS / 10, NS / 2, NS, 3 * NS]);
        let (is_local, fences) = (sys.rng.chance(400), sys.rng.chance(600));
        Self {
            machine: Standby::new(sys.now, silence_ns, fences),
            tok: 0,
            pending: Pending::Nothing,
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
    /// A standby begins to watch.
    pub(super) fn stands_by(&mut self) {
        if !self.sys.plan.standby {
            return;
        }
        let tok = self.watch.as_ref().map_or(0, |watch| watch.tok);
        self.watch = Some(Watch { tok, ..Watch::new(&mut self.sys) });
        self.watch_at(self.sys.now);
    }

    /// The standby looks again then.
    fn watch_at(&mut self, at: u64) {
        if let Some(watch) = &mut self.watch {
            watch.tok += 1;
            let tok = watch.tok;
            self.sys.at(at, Ev::Standby(tok));
        }
    }

    /// The primary has ended. Whether a standby takes its place.
    pub(super) fn primary_is_watched(&mut self) -> bool {
        let now = self.sys.now;
        let Some(watch) = &mut self.watch else { return false };
        watch.dead_since = Some(now);
        if watch.is_local {
            let ns = self.sys.rng.below(LOOK_NS);
            self.watch_at(now + ns);
        }
        let ns = self.sys.rng.below(OPERATOR_NS);
        self.sys.at(now + ns, Ev::Operator);
        true
    }

    /// Something that the standby waited for has come.
    pub(super) fn watches(&mut self, tok: u32) {
        let now = self.sys.now;
        let is_alive = self.sys.alive;
        let Some(watch) = self.watch.as_mut().filter(|watch| watch.tok == tok) else { return };
        let over_ns = watch.silence_ns * 2 + UNSERVED_NS_MAX;
        if let Some(since) = watch.dead_since.filter(|since| now - since > over_ns) {
            return self.sys.fail(format!("standby: nobody serves since {since}: {watch:?}"));
        }
        if watch.is_local && !is_alive {
            watch.machine.ended(now);
        }
        match std::mem::replace(&mut watch.pending, Pending::Nothing) {
            Pending::Nothing => {}
            Pending::Probe { is_heard: true } => {
                watch.heard = now;
                watch.machine.heard(now);
            }
            Pending::Probe { is_heard: false } => watch.machine.unheard(now),
            Pending::Fence => self.fenced(),
        }
        self.watch_next();
    }

    fn watch_next(&mut self) {
        let now = self.sys.now;
        let Some(watch) = &mut self.watch else { return };
        let task = watch.machine.next(now);
        let trip_ns = match std::mem::take(&mut watch.is_lied_to) {
            true => 1_000,
            false => self.sys.takes(20_000),
        };
        match task {
            Task::Wait { until_ns } => {
                let looks = watch.is_local && !self.sys.alive;
                let at = if looks { until_ns.min(now + LOOK_NS) } else { until_ns };
                self.watch_at(at.max(now + 1));
            }
            Task::Probe { until_ns } => {
                let answers_at = self.sys.frozen_until.max(now).saturating_add(trip_ns);
                let reaches = self.sys.alive && watch.apart_until <= now;
                let is_heard = reaches && answers_at < until_ns;
                watch.pending = Pending::Probe { is_heard };
                self.watch_at(if is_heard { answers_at } else { until_ns });
            }
            Task::Fence => {
                watch.pending = Pending::Fence;
                let ns = self.sys.rng.below(FENCE_NS_MAX);
                self.watch_at(now + ns);
            }
            Task::TakeOver(ground) => self.takes_over(ground),
        }
    }

    /// The fencing command has ended.
    fn fenced(&mut self) {
        let (now, is_calm) = (self.sys.now, self.sys.calm);
        let may_end = self.everybody_comes();
        let fails = !is_calm && self.sys.rng.chance(FENCE_FAILS);
        let lies = !is_calm && self.sys.rng.chance(FENCE_LIES);
        let Some(watch) = &mut self.watch else { return };
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
        if let Some(watch) = &mut self.watch {
            watch.machine.fenced(now, is_done);
        }
    }

    /// An operator says that the primary is gone. The operator may be wrong.
    pub(super) fn promotes(&mut self) {
        let (now, is_alive) = (self.sys.now, self.sys.alive);
        let Some(watch) = &mut self.watch else { return };
        let is_silent = now - watch.heard >= watch.silence_ns;
        if is_alive && is_silent {
            return; // it may stand still: this operator looks first
        }
        let may = watch.machine.promoted(now);
        self.sys.log(|| format!("an operator promotes the standby: {may}"));
        if may && is_alive {
            return self.sys.fail("standby: promoted, and the silence is not over".to_string());
        }
        if !is_alive {
            if !may {
                self.sys.at(now + OPERATOR_NS, Ev::Operator);
            }
            self.watch_at(now);
        }
    }

    fn takes_over(&mut self, ground: Ground) {
        let now = self.sys.now;
        if self.sys.alive {
            return self.sys.fail(format!("standby: two primaries: {ground:?}"));
        }
        let fails = !self.sys.calm && self.sys.rng.chance(START_FAILS);
        let has_place = self.sys.rng.chance(500);
        let Some(watch) = &mut self.watch else { return };
        if fails {
            watch.machine.failed(now, has_place);
            self.sys.at(now + OPERATOR_NS, Ev::Operator);
            return self.watch_next();
        }
        self.sys.log(|| format!("the standby takes over: {ground:?}"));
        self.successor();
        self.stands_by();
    }
}
