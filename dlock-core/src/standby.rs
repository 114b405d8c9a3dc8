// SPDX-License-Identifier: MIT OR Apache-2.0
//! A primary that waits to take the place of another: when it may, without I/O.
//!
//! ```text
//!   Watches ── Probe ──▶ heard ─▶ Watches
//!     │  │      silent for too long, and there is a fencing command
//!     │  └────────▶ Fence ── it has failed ─▶ Watches, after a pause that grows
//!     │               └───── it has succeeded ─▶ Probe once more ── heard ─▶ Watches
//!     │                                              │ silent
//!     │ the old process has ended, or an operator    │
//!     │ says so of a silent one                      │
//!     └───────────────────▶ TakeOver ◀───────────────┘
//!                              │ has the place, but cannot serve yet
//!                              └──▶ Owns ── after a pause that grows ─▶ TakeOver
//! ```
//! While the fencing command runs the primary is not asked: an operator's word ends the command,
//! and has the primary asked once more, too.
//!
//! Silence is no proof: a primary that cannot be heard here may serve others. So it takes more to
//! take over, and what it was is the [`Ground`].

use crate::planted::{self, Bug};

/// How long the primary may be silent, where nothing else is said.
pub const SILENCE_NS: u64 = 1_000_000_000;
/// Probes in that time.
pub const PROBES_PER_SILENCE: u64 = 4;
/// The pause after a fencing command that has failed, or a start that has, and the longest.
pub const PAUSE_NS: (u64, u64) = (50_000_000, 30_000_000_000);

/// Why no other process is primary any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// Its process has ended.
    Ended,
    /// The operator's fencing command says so, and it is silent.
    Fenced,
    /// An operator says so, and it is silent.
    Promoted,
}

/// What the executor does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Nothing before then, but to look whether the old process has ended.
    Wait {
        /// Until when.
        until_ns: u64,
    },
    /// Ask the primary whether it serves. Report [`Standby::heard`], or, at the time given,
    /// [`Standby::unheard`].
    Probe {
        /// Until when its answer is waited for.
        until_ns: u64,
    },
    /// Run the fencing command. Report [`Standby::fenced`].
    Fence,
    /// Serve. If that fails, report [`Standby::failed`].
    TakeOver(Ground),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Watches,
    Fences,
    /// The fencing command has succeeded, or an operator has ended it; the primary is asked once
    /// more.
    Doubts(Ground),
    Takes(Ground),
    /// It has taken the place of the primary, and its start there has failed: it tries again.
    Owns(Ground),
}

/// One primary in waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standby {
    silence_ns: u64,
    /// There is a fencing command.
    fences: bool,
    stage: Stage,
    /// Whether it was heard at all, and when last, or when this began.
    was_heard: bool,
    heard_ns: u64,
    /// The next probe.
    next_ns: u64,
    /// No fencing and no start before this time, and how often they have failed in turn.
    attempt_ns: u64,
    failures: u32,
}

impl Standby {
    /// Begins to watch. `fences`: there is a fencing command.
    pub fn new(now_ns: u64, silence_ns: u64, fences: bool) -> Self {
        Self {
            silence_ns: silence_ns.max(PROBES_PER_SILENCE),
            fences,
            stage: Stage::Watches,
            was_heard: false,
            heard_ns: now_ns,
            next_ns: now_ns,
            attempt_ns: now_ns,
            failures: 0,
        }
    }

    /// Whether the primary has been silent for longer than is borne.
    pub fn is_silent(&self, now_ns: u64) -> bool {
        self.silent_ns(now_ns) >= self.silence_ns
    }

    /// For how long the primary has been silent; since this began, if it was never heard.
    pub fn silent_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.heard_ns)
    }

    /// Whether the primary was ever heard.
    pub fn was_heard(&self) -> bool {
        self.was_heard
    }

    /// What to do next.
    pub fn next(&mut self, now_ns: u64) -> Task {
        match self.stage {
            Stage::Owns(_) if now_ns < self.attempt_ns => Task::Wait { until_ns: self.attempt_ns },
            Stage::Takes(ground) | Stage::Owns(ground) => Task::TakeOver(ground),
            Stage::Fences => Task::Fence,
            Stage::Watches if now_ns < self.next_ns => Task::Wait { until_ns: self.next_ns },
            Stage::Watches | Stage::Doubts(_) => {
                Task::Probe { until_ns: now_ns.saturating_add(self.quarter_ns()) }
            }
        }
    }

    /// The process of the primary has ended: that is proved.
    pub fn ended(&mut self, now_ns: u64) {
        let is_its_own = matches!(self.stage, Stage::Owns(_));
        if now_ns >= self.attempt_ns && !is_its_own {
            self.stage = Stage::Takes(Ground::Ended);
        }
    }

    /// The primary has answered, although this said that it is gone, if anything did.
    pub fn heard(&mut self, now_ns: u64) -> Option<Ground> {
        let lied = match self.stage {
            Stage::Watches => {
                self.failures = 0;
                None
            }
            Stage::Doubts(ground) => {
                self.pauses(now_ns);
                Some(ground)
            }
            Stage::Fences | Stage::Takes(_) | Stage::Owns(_) => return None, // late
        };
        (self.was_heard, self.heard_ns, self.stage) = (true, now_ns, Stage::Watches);
        self.next_ns = now_ns.saturating_add(self.quarter_ns());
        lied
    }

    /// The primary has not answered in time, or cannot be reached.
    pub fn unheard(&mut self, now_ns: u64) {
        match self.stage {
            Stage::Doubts(ground) => self.stage = Stage::Takes(ground),
            Stage::Watches => {
                self.next_ns = now_ns.saturating_add(self.quarter_ns());
                // one that was never there is not fenced: it may be about to begin
                let is_over = self.is_silent(now_ns) && self.was_heard;
                if is_over && self.fences && now_ns >= self.attempt_ns {
                    self.stage = Stage::Fences;
                }
            }
            Stage::Fences | Stage::Takes(_) | Stage::Owns(_) => {}
        }
    }

    /// The fencing command has ended.
    pub fn fenced(&mut self, now_ns: u64, has_succeeded: bool) {
        if self.stage != Stage::Fences {
            return;
        }
        match has_succeeded {
            true if planted::is(Bug::FenceTrusted) => self.stage = Stage::Takes(Ground::Fenced),
            true => self.stage = Stage::Doubts(Ground::Fenced),
            false => {
                self.pauses(now_ns);
                self.stage = Stage::Watches;
            }
        }
    }

    /// An operator says that the primary is gone. `false`: it was heard just now, and nothing has
    /// changed.
    pub fn promoted(&mut self, now_ns: u64) -> bool {
        let is_unheard = planted::is(Bug::PromotedUnheard) && !self.was_heard;
        let may = self.is_silent(now_ns) || is_unheard;
        self.stage = match self.stage {
            stage if !may => stage,
            Stage::Watches => Stage::Takes(Ground::Promoted),
            // it was last asked before the command began
            Stage::Fences => Stage::Doubts(Ground::Promoted),
            stage @ (Stage::Doubts(_) | Stage::Takes(_) | Stage::Owns(_)) => stage,
        };
        may
    }

    /// Its start in the place of the primary has failed. `has_place`: it had taken that place
    /// before, and tries again. If not, it watches on.
    pub fn failed(&mut self, now_ns: u64, has_place: bool) {
        let (Stage::Takes(ground) | Stage::Owns(ground)) = self.stage else { return };
        self.pauses(now_ns);
        self.stage = if has_place { Stage::Owns(ground) } else { Stage::Watches };
        self.next_ns = now_ns;
    }

    /// Whether the place is its own, and it does not serve in it yet.
    pub fn has_place(&self) -> bool {
        matches!(self.stage, Stage::Owns(_))
    }

    /// The pause before the next attempt: twice that of the last.
    fn pauses(&mut self, now_ns: u64) {
        let pause_ns = PAUSE_NS.0.saturating_mul(1 << self.failures.min(16)).min(PAUSE_NS.1);
        self.failures = self.failures.saturating_add(1);
        self.attempt_ns = now_ns.saturating_add(pause_ns);
    }

    fn quarter_ns(&self) -> u64 {
        self.silence_ns / PROBES_PER_SILENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Probes without an answer, until something else is to be done.
    fn silent(standby: &mut Standby, now_ns: &mut u64) -> Task {
        for _ in 0..1_024 {
            match standby.next(*now_ns) {
                Task::Wait { until_ns } => *now_ns = until_ns,
                Task::Probe { until_ns } => {
                    *now_ns = until_ns;
                    standby.unheard(*now_ns);
                }
                task => return task,
            }
        }
        standby.next(*now_ns)
    }

    #[test]
    fn silence_alone_never_makes_a_primary() {
        let (mut standby, mut now) = (Standby::new(0, SILENCE_NS, false), 0);
        assert_eq!(standby.heard(now), None);
        let task = silent(&mut standby, &mut now);
        assert!(matches!(task, Task::Wait { .. } | Task::Probe { .. }), "{task:?}");
        assert!(standby.is_silent(now));
        assert!(standby.promoted(now), "an operator may");
        assert_eq!(standby.next(now), Task::TakeOver(Ground::Promoted));
    }

    #[test]
    fn one_that_answers_is_not_replaced_whoever_says_so() {
        let mut standby = Standby::new(0, SILENCE_NS, true);
        for n in 0..100 {
            let now = n * 250 * MS;
            assert!(matches!(standby.next(now), Task::Probe { .. }));
            assert_eq!(standby.heard(now), None);
            assert!(!standby.promoted(now + 200 * MS));
        }
    }

    #[test]
    fn a_silent_one_is_fenced_and_asked_once_more() {
        let (mut standby, mut now) = (Standby::new(0, SILENCE_NS, true), 0);
        standby.heard(now);
        assert_eq!(silent(&mut standby, &mut now), Task::Fence);
        assert!((SILENCE_NS..2 * SILENCE_NS).contains(&now), "{now}");
        standby.fenced(now, true);
        assert!(matches!(standby.next(now), Task::Probe { .. }));
        assert_eq!(standby.heard(now + MS), Some(Ground::Fenced), "the command has lied");
        now += 2 * MS;
        assert_eq!(silent(&mut standby, &mut now), Task::Fence);
        standby.fenced(now, true);
        assert_eq!(silent(&mut standby, &mut now), Task::TakeOver(Ground::Fenced));
    }

    #[test]
    fn a_fencing_command_that_fails_is_run_again_less_and_less_often() {
        let (mut standby, mut now) = (Standby::new(0, SILENCE_NS, true), 0);
        standby.heard(now);
        let mut last = 0;
        for n in 0..10 {
            assert_eq!(silent(&mut standby, &mut now), Task::Fence);
            let pause = (PAUSE_NS.0 << n.min(16)).min(PAUSE_NS.1) / 2;
            assert!(n == 0 || now - last >= pause, "{n}: {}", now - last);
            assert!(now - last <= PAUSE_NS.1 + SILENCE_NS);
            last = now;
            standby.fenced(now, false);
        }
        // it has answered meanwhile: what failed before is of another silence
        standby.heard(now);
        let mut turns = [0; 2];
        for turn in &mut turns {
            assert_eq!(silent(&mut standby, &mut now), Task::Fence);
            standby.fenced(now, false);
            *turn = now;
        }
        assert!(turns[1] - turns[0] < PAUSE_NS.1 / 2, "{turns:?}");
    }

    /// It may serve again for as long as the command hangs.
    #[test]
    fn an_operator_ends_a_command_that_hangs_and_the_primary_is_asked_once_more() {
        for serves in [false, true] {
            let (mut standby, mut now) = (Standby::new(0, SILENCE_NS, true), 0);
            standby.heard(now);
            assert_eq!(silent(&mut standby, &mut now), Task::Fence);
            now += 8 * SILENCE_NS;
            assert!(standby.promoted(now));
            assert!(matches!(standby.next(now), Task::Probe { .. }));
            standby.fenced(now, true); // late
            if serves {
                assert_eq!(standby.heard(now), Some(Ground::Promoted));
                assert!(matches!(standby.next(now), Task::Wait { .. }));
            } else {
                assert_eq!(silent(&mut standby, &mut now), Task::TakeOver(Ground::Promoted));
            }
        }
    }

    #[test]
    fn one_that_was_never_there_is_not_fenced() {
        let (mut standby, mut now) = (Standby::new(0, SILENCE_NS, true), 0);
        let task = silent(&mut standby, &mut now);
        assert!(!matches!(task, Task::Fence | Task::TakeOver(_)), "{task:?}");
        assert!(!standby.was_heard());
        assert!(standby.promoted(now));
    }

    /// A standby that has just begun has not asked the primary yet, which may serve.
    #[test]
    fn an_operator_waits_until_the_silence_is_over_also_of_one_that_was_never_heard() {
        for was_heard in [false, true] {
            let mut standby = Standby::new(0, SILENCE_NS, true);
            if was_heard {
                standby.heard(0);
            }
            for now in [0, 1, SILENCE_NS - 1] {
                assert!(!standby.promoted(now), "at {now}");
                assert!(!matches!(standby.next(now), Task::TakeOver(_)), "at {now}");
            }
            assert!(standby.promoted(SILENCE_NS));
            assert_eq!(standby.next(SILENCE_NS), Task::TakeOver(Ground::Promoted));
        }
    }

    /// Its start has failed behind the moment in which it took the place.
    #[test]
    fn one_that_has_the_place_tries_again_whatever_it_hears() {
        for ground in [Ground::Ended, Ground::Fenced, Ground::Promoted] {
            let mut standby =
                Standby { stage: Stage::Takes(ground), ..Standby::new(0, SILENCE_NS, true) };
            let (mut now, mut pauses) = (0, Vec::new());
            for _ in 0..12 {
                assert_eq!(standby.next(now), Task::TakeOver(ground));
                standby.failed(now, true);
                assert!(standby.has_place());
                standby.ended(now);
                standby.heard(now);
                standby.unheard(now);
                standby.promoted(now);
                let Task::Wait { until_ns } = standby.next(now) else { panic!("{standby:?}") };
                pauses.push(until_ns - now);
                now = until_ns;
            }
            assert!(pauses.is_sorted() && pauses.last() == Some(&PAUSE_NS.1), "{pauses:?}");
            // another standby has taken the place from it
            standby.failed(now, false);
            assert!(!standby.has_place());
            assert!(matches!(standby.next(now), Task::Probe { .. }));
        }
    }

    #[test]
    fn one_whose_process_has_ended_is_replaced_at_once() {
        for stage in [Stage::Watches, Stage::Fences, Stage::Doubts(Ground::Fenced)] {
            let mut standby = Standby { stage, ..Standby::new(0, SILENCE_NS, true) };
            standby.ended(0);
            assert_eq!(standby.next(0), Task::TakeOver(Ground::Ended));
            standby.heard(1);
            standby.unheard(1);
            standby.fenced(1, false);
            assert_eq!(standby.next(1), Task::TakeOver(Ground::Ended), "late reports");
            standby.failed(2, false);
            for now in [2, PAUSE_NS.0] {
                standby.ended(now);
                assert!(matches!(standby.next(now), Task::Probe { .. }), "it watches on");
            }
            standby.ended(2 + PAUSE_NS.0);
            assert_eq!(standby.next(2 + PAUSE_NS.0), Task::TakeOver(Ground::Ended));
        }
    }

    /// The host has been up for an hour when the standby starts.
    #[test]
    fn the_silence_of_a_primary_that_was_never_heard_counts_from_the_start_of_the_standby() {
        let start_ns = 3_600_000 * MS;
        let mut standby = Standby::new(start_ns, SILENCE_NS, true);
        for passed_ns in [0, 1, SILENCE_NS - 1] {
            assert!(!standby.promoted(start_ns + passed_ns), "after {passed_ns} ns");
            let task = standby.next(start_ns + passed_ns);
            assert!(!matches!(task, Task::TakeOver(_)), "after {passed_ns} ns");
        }
        assert!(standby.promoted(start_ns + SILENCE_NS));
    }
}
