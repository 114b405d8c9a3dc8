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
use crate::roster::place::{self, Signature, Taking, Whose};

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

/// Why the place of the primary is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The primary has answered just now.
    Heard,
    /// The primary was there, and the lock file of its list is signed by none: who its clients are
    /// is not known here. A primary that was never there has no clients either.
    Unowned,
    /// Another primary has taken the place already.
    Replaced,
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
    /// How the list was signed then.
    heard_as: Option<Signature>,
    /// The next probe.
    next_ns: u64,
    /// No fencing and no start before this time, and how often they have failed in turn.
    attempt_ns: u64,
    failures: u32,
}

impl Standby {
    /// Begins to watch. `fences`: there is a fencing command; `there`: how the list is signed.
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

    /// Whether the executor gives up what it does for this task: the process of the primary has
    /// ended meanwhile, or an operator has decided.
    pub fn is_over(&mut self, task: Task, now_ns: u64) -> bool {
        match self.next(now_ns) {
            Task::TakeOver(_) => true,
            Task::Fence => false,
            Task::Wait { .. } | Task::Probe { .. } => task == Task::Fence,
        }
    }

    /// The process of the primary has ended: that is proved.
    pub fn ended(&mut self, now_ns: u64) {
        let is_its_own = matches!(self.stage, Stage::Owns(_));
        if now_ns >= self.attempt_ns && !is_its_own {
            self.stage = Stage::Takes(Ground::Ended);
        }
    }

    /// The primary has answered, although this said that it is gone, if anything did. `asked`: how
    /// the list was signed when it was asked, `there`: how it is signed now. A primary that was
    /// replaced meanwhile answers for a moment, and is not the one that has the list.
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

    /// The fencing command has ended. `is_here`: the process of the primary is seen, and has not
    /// ended; then the primary is not gone, although the command says so.
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

    /// An operator says that the primary is gone. `there`: how the list is signed.
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
            // it was last asked before the command began
            Stage::Fences => Stage::Doubts(Ground::Promoted),
            stage @ (Stage::Doubts(_) | Stage::Takes(_) | Stage::Owns(_)) => stage,
        };
        may.then_some(()).ok_or(Denied::Heard)
    }

    /// How the place of the primary is taken, which [`Task::TakeOver`] asks for. `there`: how the
    /// list is signed; `place`: whose the place is that was taken before, if one was.
    ///
    /// # Errors
    /// `Unowned`, `Replaced`: it is not taken, and the standby watches on. A place that was taken
    /// before is another's now.
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

    /// Whether the primary was there, and its clients are not known here.
    fn is_unowned(&self, there: Option<&Signature>) -> bool {
        self.was_heard && !self.has_place() && there.is_none()
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
mod tests;
