// SPDX-License-Identifier: MIT OR Apache-2.0
//! A primary that waits to take the place of another one: when it may do so, without I/O.
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
//! While the fencing command runs the standby does not probe the primary. If an operator promotes
//! the standby meanwhile, the command ends, and the standby probes once more.
//!
//! Silence is no proof: a primary that this standby cannot hear may serve others. So the standby
//! needs a further reason to take over; [`Ground`] names it.

use crate::planted::{self, Bug};
use crate::roster::place::{self, Signature, Taking, Whose};

/// How long the primary may be silent, if the configuration does not say.
pub const SILENCE_NS: u64 = 1_000_000_000;
/// How many probes the standby sends in that time.
pub const PROBES_PER_SILENCE: u64 = 4;
/// The first pause after a fencing command or a start that has failed, and the longest pause.
pub const PAUSE_NS: (u64, u64) = (50_000_000, 30_000_000_000);

/// Why no other process is primary any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// The process of the primary has ended.
    Ended,
    /// The operator's fencing command says that no other process is primary, and the primary is
    /// silent.
    Fenced,
    /// An operator says that no other process is primary, and the primary is silent.
    Promoted,
}

/// The next task of the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Do nothing before `until_ns`, except to look whether the old process has ended.
    Wait {
        /// The end of the pause.
        until_ns: u64,
    },
    /// Ask the primary whether it serves. Report [`Standby::heard`], or, at `until_ns`,
    /// [`Standby::unheard`].
    Probe {
        /// Until when to wait for the answer.
        until_ns: u64,
    },
    /// Run the fencing command. Report [`Standby::fenced`].
    Fence,
    /// Begin to serve. If that fails, report [`Standby::failed`].
    TakeOver(Ground),
}

/// Why the standby does not take the place of the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The primary has just answered.
    Heard,
    /// The standby has heard the primary, but no primary has signed the lock file of the roster, so
    /// the standby does not know the primary's clients. A primary that was never heard has no
    /// clients either.
    Unowned,
    /// Another primary has already taken the place.
    Replaced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Watches,
    Fences,
    /// The fencing command has succeeded, or an operator has ended it; the standby probes the
    /// primary once more.
    Doubts(Ground),
    Takes(Ground),
    /// The standby has taken the place of the primary, but its start there has failed: it tries
    /// again.
    Owns(Ground),
}

/// One primary that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standby {
    silence_ns: u64,
    /// Whether there is a fencing command.
    fences: bool,
    stage: Stage,
    /// Whether the primary was ever heard, and (`heard_ns`) when last; before that: when the watch
    /// began.
    was_heard: bool,
    heard_ns: u64,
    /// The signature of the roster when the primary was last heard.
    heard_as: Option<Signature>,
    /// When the next probe begins.
    next_ns: u64,
    /// No fencing and no start before this time; and (`failures`) how many of them have failed in a
    /// row.
    attempt_ns: u64,
    failures: u32,
}

impl Standby {
    /// Begins to watch. `fences`: whether there is a fencing command; `there`: the signature of the
    /// roster.
    pub fn new(now_ns: u64, silence_ns: u64, fences: bool, there: Option<Signature>) -> Self {
        Self {
            silence_ns: silence_ns.max(PROBES_PER_SILENCE),
            fences,
            stage: Stage::Watches,
            was_heard: false,
            heard_ns: now_ns,
            heard_as: there,
            next_ns: now_ns,
            attempt_ns: now_ns,
            failures: 0,
        }
    }

    /// Whether the primary has been silent for longer than it may be.
    pub fn is_silent(&self, now_ns: u64) -> bool {
        self.silent_ns(now_ns) >= self.silence_ns
    }

    /// How long the primary has been silent; if it was never heard, since the watch began.
    pub fn silent_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.heard_ns)
    }

    /// Whether the primary was ever heard.
    pub fn was_heard(&self) -> bool {
        self.was_heard
    }

    /// The next task.
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

    /// Whether the executor must stop what it does for this task: the process of the primary has
    /// ended meanwhile, or an operator has decided.
    pub fn is_over(&mut self, task: Task, now_ns: u64) -> bool {
        match self.next(now_ns) {
            Task::TakeOver(_) => true,
            Task::Fence => false,
            Task::Wait { .. } | Task::Probe { .. } => task == Task::Fence,
        }
    }

    /// Handles the proof that the process of the primary has ended.
    pub fn ended(&mut self, now_ns: u64) {
        let is_its_own = matches!(self.stage, Stage::Owns(_));
        if now_ns >= self.attempt_ns && !is_its_own {
            self.stage = Stage::Takes(Ground::Ended);
        }
    }

    /// Handles an answer of the primary. Returns the ground, if any, by which the primary seemed to
    /// be gone. `asked`, `there`: the signature of the roster when the standby asked, and now. A
    /// primary that was replaced meanwhile may still answer for a moment, but does not have the
    /// roster any more.
    pub fn heard(
        &mut self,
        now_ns: u64,
        asked: Option<&Signature>,
        there: Option<&Signature>,
    ) -> Option<Ground> {
        if asked == there {
            self.heard_as = there.cloned();
        }
        let lied = match self.stage {
            Stage::Watches => {
                self.failures = 0;
                None
            }
            Stage::Doubts(ground) => {
                self.pauses(now_ns);
                Some(ground)
            }
            // an answer at these stages comes too late to count
            Stage::Fences | Stage::Takes(_) | Stage::Owns(_) => return None,
        };
        (self.was_heard, self.heard_ns, self.stage) = (true, now_ns, Stage::Watches);
        self.next_ns = now_ns.saturating_add(self.quarter_ns());
        lied
    }

    /// Handles that the primary has not answered in time, or cannot be reached.
    pub fn unheard(&mut self, now_ns: u64) {
        match self.stage {
            Stage::Doubts(ground) => self.stage = Stage::Takes(ground),
            Stage::Watches => {
                self.next_ns = now_ns.saturating_add(self.quarter_ns());
                // a primary that was never heard is not fenced, because it may be about to begin
                let is_over = self.is_silent(now_ns) && self.was_heard;
                if is_over && self.fences && now_ns >= self.attempt_ns {
                    self.stage = Stage::Fences;
                }
            }
            Stage::Fences | Stage::Takes(_) | Stage::Owns(_) => {}
        }
    }

    /// Handles the end of the fencing command. `is_here`: the standby sees the process of the
    /// primary, and it has not ended; then the primary is not gone, although the command says so.
    pub fn fenced(&mut self, now_ns: u64, has_succeeded: bool, is_here: bool) {
        if self.stage != Stage::Fences {
            return;
        }
        match has_succeeded && !is_here {
            true if planted::is(Bug::FenceTrusted) => self.stage = Stage::Takes(Ground::Fenced),
            true => self.stage = Stage::Doubts(Ground::Fenced),
            false => {
                self.pauses(now_ns);
                self.stage = Stage::Watches;
            }
        }
    }

    /// Handles that an operator says that the primary is gone. `there`: the signature of the
    /// roster.
    ///
    /// # Errors
    /// `Unowned`, `Heard`: nothing has changed.
    pub fn promoted(&mut self, now_ns: u64, there: Option<&Signature>) -> Result<(), Denied> {
        if self.is_unowned(there) {
            return Err(Denied::Unowned);
        }
        let is_unheard = planted::is(Bug::PromotedUnheard) && !self.was_heard;
        let may = self.is_silent(now_ns) || is_unheard;
        self.stage = match self.stage {
            stage if !may => stage,
            Stage::Watches => Stage::Takes(Ground::Promoted),
            // the last probe was before the command began
            Stage::Fences => Stage::Doubts(Ground::Promoted),
            stage @ (Stage::Doubts(_) | Stage::Takes(_) | Stage::Owns(_)) => stage,
        };
        may.then_some(()).ok_or(Denied::Heard)
    }

    /// How to take the place of the primary, for [`Task::TakeOver`]. `there`: the signature of the
    /// roster; `place`: which primary has the place that this standby had taken before, if it had.
    ///
    /// # Errors
    /// `Unowned`, `Replaced`: the standby does not take the place, and watches on. A place that it
    /// had taken before belongs to another primary now.
    pub fn takes(
        &mut self,
        now_ns: u64,
        there: Option<&Signature>,
        place: Option<Whose>,
    ) -> Result<Taking, Denied> {
        let (Stage::Takes(ground) | Stage::Owns(ground)) = self.stage else {
            return Err(Denied::Heard);
        };
        let is_ended = ground == Ground::Ended;
        let heard_as = self.heard_as.as_ref();
        let denied = match place {
            Some(Whose::Anothers) => Some(Denied::Replaced),
            Some(Whose::Mine | Whose::Unseen) => None,
            None if self.is_unowned(there) => Some(Denied::Unowned),
            None => (!is_ended && place::is_replaced(heard_as, there)).then_some(Denied::Replaced),
        };
        if let Some(denied) = denied {
            self.failed(now_ns, false);
            return Err(denied);
        }
        Ok(match is_ended {
            true => Taking::IfFree,
            false => Taking::FromAnother(self.heard_as.clone()),
        })
    }

    /// Whether this standby cannot know the clients of the primary it watches: it has heard that
    /// primary, but no primary has signed the roster that this standby sees (`there`), and the
    /// standby has not taken that roster over itself.
    fn is_unowned(&self, there: Option<&Signature>) -> bool {
        self.was_heard && !self.has_place() && there.is_none()
    }

    /// Handles that the start in the place of the primary has failed. `has_place`: the standby had
    /// taken that place before, and tries again; otherwise it watches on.
    pub fn failed(&mut self, now_ns: u64, has_place: bool) {
        let (Stage::Takes(ground) | Stage::Owns(ground)) = self.stage else { return };
        self.pauses(now_ns);
        self.stage = if has_place { Stage::Owns(ground) } else { Stage::Watches };
        self.next_ns = now_ns;
    }

    /// Whether the standby has the place, but does not serve in it yet.
    pub fn has_place(&self) -> bool {
        matches!(self.stage, Stage::Owns(_))
    }

    /// Sets the pause before the next attempt: twice the last one.
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
mod tests;
