// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tries: who finds a lock held asks for it again before it queues.
//!
//! ```text
//!   chain ─ held by another ─▶ Again ─▶ pause ─▶ paused ─▶ the chain again
//!                 └ tried for long enough ─────────────┴─▶ Wait
//! ```
//! While nobody sleeps in the queue, a release is one compare-and-swap and an acquire another, and
//! no message is sent. Who is queued is not passed: the word is not free then until the arbiter
//! has handed the lock to each of them. So an operation that has lost against [`TRIES_HOLDS_MAX`]
//! holds of others queues, and has its turn. One that found the same hold for
//! [`TRY_SAME_HOLD_NS_MAX`] queues, too: it sleeps as long as the hold may last.

use super::machine::Phase;
use super::{fair, rw, LockEntry, Machine, Step};
use crate::clock::Now;
use crate::limits::{
    FAR_PAUSE_NS_MAX, TRIES_AT_ONCE_MAX, TRIES_HOLDS_MAX, TRIES_MAX, TRY_AT_ONCE_NS_MAX,
    TRY_PAUSE_NS_MAX, TRY_PAUSE_NS_SHORT, TRY_SAME_HOLD_NS_MAX,
};
use crate::memory::word_op::{Chain, WordOp};
use crate::memory::words::TurnWord;
use crate::planted::{self, Bug};
use crate::wire::message::{LockType, Mode};

/// What an operation has found, try by try.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Tries {
    /// How often the lock was found held.
    lost: u16,
    /// In how many different ways.
    holds: u16,
    /// The word that was found last.
    found: u64,
    /// When that was first found, on the client's own clock; `None`: just now.
    since_ns: Option<u64>,
    /// For how long it has been there.
    held_ns: u64,
}

impl Tries {
    /// How long to pause: the longer the hold has lasted, the longer it may last. Who pauses for a
    /// quarter of it is late by an eighth of it: that is for those who have lost the lock to others
    /// meanwhile, and so are many.
    fn pause_ns(&self) -> u64 {
        match self.holds > 1 {
            true => (self.held_ns / 4).min(TRY_PAUSE_NS_MAX),
            false => self.of_one_hold_ns(),
        }
    }

    /// Whether a hold is so short that it is looked at all the time. Where a look takes less time
    /// than over a network, fewer of them do.
    fn is_at_once(&self) -> bool {
        self.held_ns < TRY_AT_ONCE_NS_MAX && self.lost < TRIES_AT_ONCE_MAX
    }

    /// How long to pause while every try has found the same hold.
    fn of_one_hold_ns(&self) -> u64 {
        if self.is_at_once() {
            return 0;
        }
        let late_ns = (self.held_ns / 16).max(TRY_PAUSE_NS_SHORT);
        (self.held_ns / 4).min(late_ns).min(TRY_PAUSE_NS_MAX)
    }

    /// The ticket of this exclusive number has its turn.
    pub(super) fn came_to(&self, tx: u32, pace: &mut Pace) {
        if self.lost > 0 && tx > TurnWord::from_bits(self.found).nx() + 1 {
            pace.overslept();
        }
    }

    /// For how long the turn that was found last has lasted, as far as was seen.
    pub(super) fn seen_ns(&self, now: Now) -> u64 {
        now.local_ns.saturating_sub(self.since_ns.unwrap_or(now.local_ns))
    }

    /// How often the lock was found held.
    pub(super) fn lost(&self) -> u16 {
        self.lost
    }

    /// Of a fair lock this turn was found, and so many others have theirs before this client: how
    /// long to pause.
    pub(super) fn sees_turn(
        &mut self,
        turn: TurnWord,
        ahead: u16,
        now: Now,
        pace: &mut Pace,
    ) -> u64 {
        self.lost = self.lost.saturating_add(1);
        let found = turn.with_told(false).with_parked(false).into_bits();
        let before = TurnWord::from_bits(self.found);
        if self.since_ns.is_none() || found != self.found {
            if let Some(since_ns) = self.since_ns {
                let turns = u64::from(turn.nx().saturating_sub(before.nx())).max(1);
                let took_ns = now.local_ns.saturating_sub(since_ns) / turns;
                pace.turn_ns = lately(pace.turn_ns, took_ns);
            }
            (self.found, self.since_ns) = (found, Some(now.local_ns));
        }
        self.held_ns = self.seen_ns(now);
        match ahead <= 1 && self.is_at_once() {
            true => 0,
            false => pace.before_turn_ns(ahead, self.held_ns),
        }
    }
}

/// What has been seen of a fair lock lately: nanoseconds; 0, false: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Pace {
    /// A turn.
    turn_ns: u64,
    /// At the last release that knew of no later ticket another had been taken; of one that asked
    /// the primary: somebody waited.
    followed: bool,
}

/// What is seen late seems longer than it was: the shortest counts, for a while.
fn lately(lately_ns: u64, took_ns: u64) -> u64 {
    match lately_ns {
        0 => took_ns,
        _ => took_ns.min(lately_ns + lately_ns.div_ceil(8)),
    }
}

impl Pace {
    /// Who paused while others had their turns has come too late for its own: the others wait.
    fn overslept(&mut self) {
        self.turn_ns -= self.turn_ns / 4;
    }

    /// A release that knew of no later ticket is over: whether another had been taken.
    pub(super) fn followed(&mut self, was: bool) {
        self.followed = was;
    }

    #[inline]
    pub(super) fn is_followed(self) -> bool {
        self.followed
    }

    /// How long not to look, with so many turns before one's own, of which the first has lasted
    /// for `held_ns`. Who is next looks all the time, and less often if the hold lasts. Who is not
    /// leaves the processor to the others until about half of the turn before its own: it must be
    /// awake when its turn comes, since then all wait for it.
    pub(super) fn before_turn_ns(self, ahead: u16, held_ns: u64) -> u64 {
        let often_ns = (held_ns / 16).min(TRY_PAUSE_NS_MAX);
        let quarters = (3 * u64::from(ahead.saturating_sub(1))).saturating_sub(1);
        let far_ns = (self.turn_ns / 4).saturating_mul(quarters).saturating_sub(held_ns);
        often_ns.max(far_ns.min(FAR_PAUSE_NS_MAX))
    }
}

impl Machine {
    /// The lock was found held by another, in this word: begin anew after a pause, or queue.
    pub(super) fn again_or_wait(&mut self, e: &mut LockEntry, found: u64) -> Step {
        let tries = &mut self.tries;
        tries.lost = tries.lost.saturating_add(1);
        if tries.holds == 0 || found != tries.found {
            tries.holds += 1;
            (tries.found, tries.since_ns, tries.held_ns) = (found, None, 0);
        }
        let may_try = e.means.may_try && tries.lost < TRIES_MAX && tries.holds < TRIES_HOLDS_MAX;
        match may_try || e.means.may_try && planted::is(Bug::TriesForEver) {
            true => Step::Again { pause_ns: tries.pause_ns(), ahead: 0 },
            false => self.wait(e, None),
        }
    }

    /// The pause before another try is over; `now` was read after it.
    pub fn paused(&mut self, e: &mut LockEntry, now: Now) -> Step {
        if e.lock_type == LockType::Fair {
            return fair::paused(self, e, now);
        }
        let since_ns = *self.tries.since_ns.get_or_insert(now.local_ns);
        self.tries.held_ns = now.local_ns.saturating_sub(since_ns);
        let is_long = self.tries.held_ns >= TRY_SAME_HOLD_NS_MAX;
        if is_long && !planted::is(Bug::TriesForEver) {
            return self.queues(e);
        }
        match (e.lock_type, self.mode()) {
            // a reader that adds itself to a held lock disturbs its owner
            (LockType::Rw, Mode::Shared) => {
                self.phase = Phase::Rw(rw::At::Looking);
                Step::Chain(Chain::one(WordOp::Read { addr: e.w0() }))
            }
            _ => {
                self.rounds = 0;
                self.start(e, now)
            }
        }
    }

    /// Instead of another try.
    pub fn queues(&mut self, e: &mut LockEntry) -> Step {
        match e.lock_type {
            LockType::Fair => fair::queues(self, e),
            LockType::Atomic | LockType::Rw => self.wait(e, None),
        }
    }
}

impl LockEntry {
    /// Whether an operation that waits for the lock may try again before it queues: where its
    /// chains reach the word without the primary.
    pub fn may_try(&mut self, may: bool) {
        self.means.may_try = may;
    }
}
