// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a program hears of its holds without asking: that one has begun, cannot be renewed just
//! now, or was lost.
//!
//! ```text
//!          ┌───────────── its program has asked for its end ─────────────┐
//!          ▼                                                             │
//!   nothing ─▶ Granted ─▶ [RenewalFailing ─▶ …] ─▶ Lost ─▶ nothing   Granted
//! ```
//! An event is the difference between what the listener was told last and what the entry is now. So
//! events come in order, a hold that was granted is lost once at most, and a loss is told before
//! the grant of the next hold, whichever operation finds either. The number of the hold, which no
//! other hold of the entry has, says which one an event is about.
//!
//! There is no event of a grant or a release that the program has not asked for: a grant that comes
//! after its call has given up is released before it is told, and an end that the program has not
//! asked for is a loss.

use super::contended::Question;
use super::{Doubt, LockEntry, OpResult};
use crate::clock::Now;
use crate::planted::{self, Bug};

/// Why a hold is over that its program has not released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// Its lease is over, or is about to be.
    Expired,
    /// The session is over that it depended on.
    Session,
    /// An operator has taken it away.
    TakenAway,
    /// A successor of the primary has refused it.
    Conflict,
    /// The lock was found to be another client's, or no one's, while the lease ran by this client's
    /// clock: the clock was wrong, or the client has not heard yet of what an operator has done.
    Unknown,
}

/// What has become of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Heard {
    /// It has begun.
    Granted,
    /// It is over, though its program has not released it.
    Lost(Loss),
    /// A renewal of its lease was not answered. If no later renewal is answered, the hold is lost
    /// shortly before this time of the client's own clock.
    RenewalFailing {
        /// The end of the lease.
        until_ns: u64,
    },
    /// It keeps others waiting.
    Contended {
        /// How many wait for the lock.
        waiters: u32,
        /// If the program has not released the lock by this time of the client's own clock, an
        /// operator has the client removed.
        until_ns: Option<u64>,
    },
}

/// What the listeners of one lock were told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Listening {
    /// The number of the hold that they know.
    pub(super) hold: Option<u64>,
    /// Until when its lease ran for sure, when it was looked at last.
    until_ns: u64,
    is_failing: bool,
    /// What was asked about it.
    pub(super) question: Question,
}

impl Listening {
    /// The number of the hold that its listeners know.
    pub fn hold(&self) -> Option<u64> {
        self.hold
    }

    /// The next event, and the number of the hold that it is about. The caller asks until there is
    /// none, in the same turn as the operation that may have changed the entry. `now`: by the
    /// clock that the deadline is of.
    pub fn next(&mut self, entry: &LockEntry, now: Now) -> Option<(u64, Heard)> {
        let has = entry.hold();
        let Some(known) = self.hold else {
            let hold = has?;
            let until_ns = entry.runs_until_ns(now);
            *self = Self { hold: Some(hold), until_ns, is_failing: false, ..*self };
            return Some((hold, Heard::Granted));
        };
        if has == Some(known) {
            self.until_ns = entry.runs_until_ns(now);
            let is_new = entry.is_renewal_failing() && !self.is_failing;
            self.is_failing = entry.is_renewal_failing();
            return is_new.then_some((known, Heard::RenewalFailing { until_ns: self.until_ns }));
        }
        self.hold = None;
        match entry.loss.filter(|lost| lost.0 == known) {
            _ if planted::is(Bug::LossUntold) => self.next(entry, now),
            Some((_, Loss::Unknown)) if now.local_ns >= self.until_ns => {
                Some((known, Heard::Lost(Loss::Expired)))
            }
            Some((_, loss)) => Some((known, Heard::Lost(loss))),
            None => self.next(entry, now), // its program has asked for the end
        }
    }
}

impl LockEntry {
    /// The number of the hold, as far as this client knows that it has one, and its program has not
    /// asked for its end.
    pub fn hold(&self) -> Option<u64> {
        let is_doubtful =
            matches!(self.doubt, Doubt::Lost | Doubt::Release | Doubt::Acquire | Doubt::Left);
        (self.state.is_held() && !is_doubtful).then_some(self.hold)
    }

    /// The release of a hold that is known to be lost needs no primary: its program is told.
    /// `None`: the hold is not lost, or that was told.
    pub fn loss_told(&mut self) -> Option<OpResult> {
        (self.doubt == Doubt::Lost).then(|| self.lost())
    }

    /// How many holds have begun: the number of the last one, by which its guard is known.
    #[inline]
    pub fn holds(&self) -> u64 {
        self.hold
    }

    /// The client has had so many holds of locks that it has given back: those of this one are
    /// counted from there on, as it may be one of them, got again.
    pub fn counts_from(&mut self, holds: u64) {
        self.hold = self.hold.max(holds);
    }

    /// This entry takes the place of `before`: holds go on to be counted.
    pub(crate) fn after(self, before: &Self) -> Self {
        Self { hold: before.hold, loss: before.loss, ..self }
    }

    /// The hold is over, and its program has not asked for that.
    #[inline]
    pub(super) fn is_over_by(&mut self, loss: Loss) {
        if let Some(hold) = self.hold() {
            self.loss = Some((hold, loss));
        }
    }
}
