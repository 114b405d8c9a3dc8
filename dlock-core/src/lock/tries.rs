// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tries: a client that finds a lock held asks for it again a few times before it queues.
//!
//! ```text
//!   chain ─ held by another ─▶ Again ─▶ pause ─▶ paused ─▶ the chain again
//!                 └ tried for long enough ─────────────┴─▶ Wait
//! ```
//! While no client is queued, a release is one compare-and-swap and an acquire another, and no
//! message is sent. A queued client cannot be overtaken, because the word is not free until the
//! arbiter has handed the lock to all that are queued. So an operation that has lost against
//! [`TRIES_HOLDS_MAX`] holds of other clients queues, and gets its turn. An operation that has
//! found the same hold for [`TRY_SAME_HOLD_NS_MAX`] queues, too, and sleeps for as long as the hold
//! lasts.

use super::machine::Phase;
use super::{fair, rw, LockEntry, Machine, Step};
use crate::clock::Now;
use crate::limits::{
    FAR_PAUSE_NS_MAX, TRIES_AT_ONCE_MAX, TRIES_HOLDS_MAX, TRIES_MAX, TRY_AT_ONCE_NS_MAX,
    TRY_PAUSE_NS_MAX, TRY_PAUSE_NS_SHORT, TRY_SAME_HOLD_NS_MAX,
};
use crate::memory::word_op::{Chain, WordOp};
use crate::memory::words::{RwWord, TurnWord};
use crate::planted::{self, Bug};
use crate::wire::message::{LockType, Mode};

/// What an operation has found in its tries so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Tries {
    /// How often the client has found the lock held.
    lost: u16,
    /// In how many different holds.
    holds: u16,
    /// The word as found last.
    found: u64,
    /// When the client first found that word, on its own clock; `None`: in the last try.
    since_ns: Option<u64>,
    /// How long that word has been there.
    held_ns: u64,
}

impl Tries {
    /// How long to pause: the longer the hold has lasted, the longer it may still last. A pause of
    /// a quarter of that time makes the client late by an eighth on average. That is accepted where
    /// the client has lost the lock to other clients meanwhile, so that many compete.
    fn pause_ns(&self) -> u64 {
        match self.holds > 1 {
            true => (self.held_ns / 4).min(TRY_PAUSE_NS_MAX),
            false => self.of_one_hold_ns(),
        }
    }

    /// Whether the hold is so short that the client looks at the word without a pause. A count
    /// bounds those looks, too, where a look takes less time than over a network.
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

    /// Handles that the exclusive ticket with number `tx` has its turn. If the client was late for
    /// the turn, shortens its estimate of how long turns take.
    pub(super) fn came_to(&self, tx: u32, pace: &mut Pace) {
        if self.lost > 0 && tx > TurnWord::from_bits(self.found).nx() + 1 {
            pace.overslept();
        }
    }

    /// How long the turn found last has lasted, as far as this client has seen.
    pub(super) fn seen_ns(&self, now: Now) -> u64 {
        now.local_ns.saturating_sub(self.since_ns.unwrap_or(now.local_ns))
    }

    /// How often the client has found the lock held.
    pub(super) fn lost(&self) -> u16 {
        self.lost
    }

    /// A look at a fair lock has found this turn, and `ahead` other turns come before this
    /// client's. Returns how long to pause, nanoseconds.
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

/// What the client has seen of this lock lately; 0, false: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Pace {
    /// How long a turn takes, nanoseconds.
    turn_ns: u64,
    /// Whether the last release has shown that another client follows: one had taken a later
    /// ticket, or waited at the primary.
    followed: bool,
}

/// A duration that is seen late seems longer than it was, so the shortest one counts for a while.
fn lately(lately_ns: u64, took_ns: u64) -> u64 {
    match lately_ns {
        0 => took_ns,
        _ => took_ns.min(lately_ns + lately_ns.div_ceil(8)),
    }
}

impl Pace {
    /// This client paused during the turns of others and came too late for its own, while others
    /// waited for it: turns are shorter than estimated.
    fn overslept(&mut self) {
        self.turn_ns -= self.turn_ns / 4;
    }

    /// A release has shown whether another client follows.
    pub(super) fn followed(&mut self, was: bool) {
        self.followed = was;
    }

    #[inline]
    pub(super) fn is_followed(self) -> bool {
        self.followed
    }

    /// How long to pause, nanoseconds, while `ahead` turns come before this client's, of which the
    /// first has lasted for `held_ns`. A client that is next looks all the time, and less often if
    /// the hold lasts long. A client further back leaves the processor to the others until about
    /// half of the turn before its own: it must be awake when its turn comes, because from then on
    /// all wait for it.
    pub(super) fn before_turn_ns(self, ahead: u16, held_ns: u64) -> u64 {
        let often_ns = (held_ns / 16).min(TRY_PAUSE_NS_MAX);
        let quarters = (3 * u64::from(ahead.saturating_sub(1))).saturating_sub(1);
        let far_ns = (self.turn_ns / 4).saturating_mul(quarters).saturating_sub(held_ns);
        often_ns.max(far_ns.min(FAR_PAUSE_NS_MAX))
    }
}

impl Machine {
    /// Another client holds the lock, as the word `found` says: begin anew after a pause, or queue.
    pub(super) fn again_or_wait(&mut self, e: &mut LockEntry, found: u64) -> Step {
        let tries = &mut self.tries;
        tries.lost = tries.lost.saturating_add(1);
        if tries.holds == 0 || found != tries.found {
            tries.holds += 1;
            (tries.found, tries.since_ns, tries.held_ns) = (found, None, 0);
        }
        // a kept lock is given back only if its client is asked
        let may_try = e.means.may_try && !RwWord::from_bits(found).kept();
        let may_try = may_try && tries.lost < TRIES_MAX && tries.holds < TRIES_HOLDS_MAX;
        match may_try || e.means.may_try && planted::is(Bug::TriesForEver) {
            true => Step::Again { pause_ns: tries.pause_ns(), ahead: 0 },
            false => self.wait(e, None),
        }
    }

    /// Goes on after the pause before another try; `now` was read after the pause.
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
            // a reader that adds itself to a held lock disturbs the owner, so it reads first
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

    /// Queues instead of trying again.
    pub fn queues(&mut self, e: &mut LockEntry) -> Step {
        match e.lock_type {
            LockType::Fair => fair::queues(self, e),
            LockType::Atomic | LockType::Rw => self.wait(e, None),
        }
    }
}

impl LockEntry {
    /// Says whether an operation that waits for the lock may try again before it queues: it may
    /// where its chains reach the word without the primary.
    pub fn may_try(&mut self, may: bool) {
        self.means.may_try = may;
    }
}
