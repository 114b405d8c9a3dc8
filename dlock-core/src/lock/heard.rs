// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a program hears of its holds without asking: a hold has begun, its lease cannot be renewed
//! at present, it keeps others waiting, or it was lost.
//!
//! ```text
//!          ┌───────────── its program has asked for its end ─────────────┐
//!          ▼                                                             │
//!   nothing ─▶ Granted ─▶ [RenewalFailing ─▶ …] ─▶ Lost ─▶ nothing   Granted
//! ```
//! An event is the difference between what the listener heard last and what the entry is now. So
//! events come in order, a hold that was granted is lost once at most, and the listener hears of a
//! loss before the grant of the next hold, whichever operation finds either. Each event names the
//! number of its hold, which no other hold of the entry has.
//!
//! There is no event of a grant or a release that the program has not asked for. A grant that comes
//! after its call has given up is released without an event; an end that the program has not asked
//! for is a loss.

use super::contended::Question;
use super::{Doubt, LockEntry, OpResult};
use crate::clock::Now;
use crate::planted::{self, Bug};
use crate::token::Token;

/// Why a hold is over that its program has not released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// The lease of the hold is over, or is about to be.
    Expired,
    /// The session that the hold depended on is over.
    Session,
    /// An operator has taken the lock away. A client that does not come back by itself does not
    /// hear so: its hold ends as `Expired` or `Session`.
    TakenAway,
    /// A successor of the primary has refused the claim to the hold.
    Conflict,
    /// The client found the lock free or held by another client while its own lease ran by its own
    /// clock: the clock was wrong, or the client has not heard yet of what an operator has done.
    Unknown,
}

/// What has happened to a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Heard {
    /// The hold has begun.
    Granted,
    /// The hold is over, though its program has not released it.
    Lost(Loss),
    /// A renewal of the hold's lease was not answered. If no later renewal is answered, the hold is
    /// lost shortly before `until_ns`.
    RenewalFailing {
        /// The end of the lease, on the client's own clock.
        until_ns: u64,
    },
    /// Other clients wait for the lock.
    Contended {
        /// How many wait for the lock.
        waiters: u32,
        /// If the program has not released the lock by this time of the client's own clock, an
        /// operator has the client removed; `None`: no operator has set such a time.
        until_ns: Option<u64>,
    },
}

/// What the listeners of one lock have heard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Listening {
    /// The number of the hold of which the listeners know.
    pub(super) hold: Option<u64>,
    /// The fencing token of the hold of which the listeners knew last.
    token: Token,
    /// Until when the lease of that hold surely ran, when the listeners last looked.
    until_ns: u64,
    is_failing: bool,
    /// What the client has asked about that hold.
    pub(super) question: Question,
}

impl Listening {
    /// The number of the hold of which the listeners know.
    pub fn hold(&self) -> Option<u64> {
        self.hold
    }

    /// The fencing token of the hold that the last event was about.
    pub fn token(&self) -> Option<Token> {
        self.token.some()
    }

    /// The next event, and the number of the hold that it is about. The caller asks until there is
    /// none, in the same turn as the operation that may have changed the entry. `now`: read by the
    /// clock of the entry's deadline.
    pub fn next(&mut self, entry: &LockEntry, now: Now) -> Option<(u64, Heard)> {
        let has = entry.hold();
        let Some(known) = self.hold else {
            let hold = has?;
            let (until_ns, token) = (entry.runs_until_ns(now), entry.token().unwrap_or_default());
            *self = Self { hold: Some(hold), token, until_ns, is_failing: false, ..*self };
            return Some((hold, Heard::Granted));
        };
        if has == Some(known) {
            self.until_ns = entry.runs_until_ns(now);
            self.token = entry.token().unwrap_or(self.token); // a downgrade gives another one
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
            None => self.next(entry, now), // the program has asked for the end
        }
    }
}

impl LockEntry {
    /// The number of the hold; `None` if the client has no hold, as far as it knows, or if its
    /// program has asked for the end of the hold.
    pub fn hold(&self) -> Option<u64> {
        let is_doubtful =
            matches!(self.doubt, Doubt::Lost | Doubt::Release | Doubt::Acquire | Doubt::Left);
        (self.state.is_held() && !self.is_idle() && !is_doubtful).then_some(self.hold)
    }

    /// Ends a hold that is known to be lost: its release needs no primary, and the program gets
    /// this result. `None`: the hold is not lost, or the program has heard of the loss.
    pub fn loss_told(&mut self) -> Option<OpResult> {
        (self.doubt == Doubt::Lost).then(|| self.lost())
    }

    /// How many holds have begun. This is the number of the last hold, by which its guard knows it.
    #[inline]
    pub fn holds(&self) -> u64 {
        self.hold
    }

    /// Makes the holds of this lock count from `holds` on, the number of holds that the client has
    /// had of locks which it gave back: this lock may be one of them, got again.
    pub fn counts_from(&mut self, holds: u64) {
        self.hold = self.hold.max(holds);
    }

    /// This entry takes the place of `before`: its holds go on counting from there.
    pub(crate) fn after(self, before: &Self) -> Self {
        let mut entry = Self { hold: before.hold, loss: before.loss, ..self };
        entry.caches(before.kept.is_on());
        entry
    }

    /// The hold is over, and its program has not asked for that.
    #[inline]
    pub(super) fn is_over_by(&mut self, loss: Loss) {
        if let Some(hold) = self.hold() {
            self.loss = Some((hold, loss));
        }
    }
}
