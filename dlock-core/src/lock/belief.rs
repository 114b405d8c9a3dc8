// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client may believe by itself of what it holds: by which clock a lease was judged, and
//! what the end of a session leaves of it.
//!
//! ```text
//!   granted, extended, confirmed ─▶ the entry remembers the clock's number of discontinuities
//!   another number, or another session ─▶ the hold may be over: extend and release ask for it
//! ```

use super::{Doubt, EntryState, LockEntry};
use crate::clock::{Now, ServerTime, NS};
use crate::planted::{self, Bug};

/// The number of no clock, so that a hold counts as one of another clock.
pub(super) const NO_CLOCK: u64 = u64::MAX;

impl LockEntry {
    /// Whether the lease of the hold was judged by a server clock that has turned out to be wrong
    /// since, or by another session's: whoever knew the true time may have taken the lock over.
    /// Asking the primary for it, an extend, settles that. A hold without an end is not affected.
    pub fn is_of_another_clock(&self, now: Now) -> bool {
        self.deadline_s() != u32::MAX && self.clock != now.discontinuities
    }

    /// Whether the hold may be over, as far as the client can tell by itself.
    pub(super) fn maybe_over(&self, now: Now) -> bool {
        now.maybe_expired(self.time_s) || self.is_of_another_clock(now)
    }

    /// The hold or the ticket did not survive: a recovering primary has refused the claim. Who
    /// believes to hold the lock is told by the next operation.
    pub fn lose(&mut self) {
        match self.state.is_held() {
            true => self.doubt = Doubt::Lost,
            false => self.end(EntryState::Initialized),
        }
        self.ledger_write = None;
    }

    /// The primary has ended what this client had without a lease: holds of read-write locks,
    /// holds for ever, tickets. Whether this one was among them; it is lost then.
    pub fn lapse(&mut self) -> bool {
        use EntryState as S;
        let has_nothing = matches!(self.state, S::Initialized | S::Unlocked);
        let may_be_endless = self.may_be_endless || self.deadline_s() == u32::MAX;
        if has_nothing || self.state.is_held() && !may_be_endless {
            return false;
        }
        self.lose();
        true
    }
}

/// The lease that is left of a deadline, for another server clock: rounded up, since a hold is
/// valid through the whole second of its deadline.
pub(super) fn remaining_s(deadline_s: u32, now: Now) -> u32 {
    if deadline_s == u32::MAX {
        return u32::MAX;
    }
    let earliest = now.time.0.saturating_sub(now.uncertainty_ns);
    if planted::is(Bug::ClaimRoundedDown) {
        return deadline_s.saturating_sub(now.time.seconds());
    }
    let left = ServerTime::expiry_of(deadline_s).0.saturating_sub(earliest);
    u32::try_from(left.div_ceil(NS)).unwrap_or(u32::MAX - 1)
}
