// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lease that the library renews for its program, and the end of a hold that it cannot renew.
//!
//! ```text
//!   granted ─ a third of the lease ─▶ Renew ─ answered ─▶ a third of the lease ─▶ Renew …
//!                                      │  ▲
//!                       no answer, no primary: a pause that grows
//!                                      └──┴─ LOST_AHEAD_NS before the end of the lease ─▶ Lost
//! ```
//! A renewal is an [extend](Op::Extend) that the library posts. It belongs to one hold, and ends
//! with that hold: the entry forgets it wherever the hold ends, and also where the program has
//! asked for the end and had no answer. A failover and a new session do not end the hold, so they
//! do not end the renewal. A renewal whose outcome the library no longer waits for is an extend
//! whose answer was lost: the next operation learns from the word whether it took effect.

use super::{EntryState, LockEntry, Loss, Machine, Op, OpResult, Step};
use crate::clock::{Lease, Now, NS};
use crate::planted::{self, Bug};
use crate::wire::message::Mode;
use crate::wire::status::Status;

/// How long before the end of its lease a hold that is not renewed counts as lost, nanoseconds: the
/// program is to hear of the loss while the lease still runs.
pub const LOST_AHEAD_NS: u64 = 50_000_000;
/// How long the library waits for the outcome of one renewal at most: nanoseconds, and `WAIT` as a
/// divisor of the lease. An operation of the program on the same lock may have to wait as long.
const WAIT_NS_MAX: u64 = NS;
const WAIT: u64 = 4;
/// A renewal begins after the lease divided by this.
const EVERY: u64 = 3;
/// The first pause after a renewal without an answer, and the longest pause, as divisors of the
/// lease.
const PAUSES: (u64, u64) = (24, 6);

/// The renewal of one hold. Times are on the client's own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Renewal {
    lease: Lease,
    /// No renewal begins after this time.
    until_ns: u64,
    /// When the next renewal begins.
    next_ns: u64,
    /// How many renewals in a row have had no answer.
    fails: u32,
}

/// What the library has to do for a hold that it renews, or of whose loss its program wants to
/// hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing more: the hold is over, or was lost.
    Over,
    /// Nothing before this time of the client's own clock.
    At(u64),
    /// Renew the lease: [`Operation::renew`](crate::operation::Operation::renew).
    Renew,
    /// The hold now counts as lost: its lease, or the session's horizon, is about to end.
    Lost,
}

impl Renewal {
    fn lease_ns(&self) -> u64 {
        self.lease.ns()
    }

    fn pause_ns(&self) -> u64 {
        let (first, longest) = (self.lease_ns() / PAUSES.0, self.lease_ns() / PAUSES.1);
        first.saturating_mul(1 << self.fails.min(8)).min(longest)
    }
}

impl LockEntry {
    /// Makes the library renew the lease of the hold, by `lease` each time, but not beyond `max_ns`
    /// nanoseconds from now on. The caller calls it in one turn with the grant. Does nothing for a
    /// hold without an end.
    pub fn renews(&mut self, lease: Lease, max_ns: u64, now: Now) {
        if !self.state.is_held() || self.deadline().is_never() || lease.is_none() {
            return;
        }
        let mut renewal =
            Renewal { lease, until_ns: now.local_ns.saturating_add(max_ns), next_ns: 0, fails: 0 };
        renewal.next_ns = now.local_ns.saturating_add(renewal.lease_ns() / EVERY);
        self.renewal = Some(renewal);
    }

    /// Whether the library renews the lease of the hold.
    pub fn is_renewed(&self) -> bool {
        self.renewal.is_some()
    }

    /// What the library has to do now for a hold that it renews, or of whose loss its program wants
    /// to hear in time. `now`: read by the clock of the hold's deadline.
    pub fn due(&mut self, is_listened_to: bool, now: Now) -> Due {
        let is_endless = self.deadline().is_never();
        if is_endless {
            self.renewal = None; // a call of the program has made the lease endless
        }
        if self.hold().is_none() || self.renewal.is_none() && !is_listened_to {
            return Due::Over;
        }
        let (end_ns, loss) = match is_endless {
            true => (now.horizon_ns, Loss::Session),
            false => (self.runs_until_ns(now), Loss::Expired),
        };
        let lost_ns = end_ns.saturating_sub(LOST_AHEAD_NS);
        if now.local_ns >= lost_ns && !planted::is(Bug::LostUndeclared) {
            self.lose_by(loss);
            return Due::Lost;
        }
        let Some(renewal) = self.renewal else { return Due::At(lost_ns) };
        let is_within = now.local_ns < renewal.until_ns || planted::is(Bug::RenewalUnbounded);
        match is_within {
            true if now.local_ns >= renewal.next_ns && now.is_past_horizon() => {
                self.has_renewed(Status::NotReady, now); // past the horizon nothing is posted
                Due::At(self.renewal.map_or(lost_ns, |renewal| renewal.next_ns.min(lost_ns)))
            }
            true if now.local_ns >= renewal.next_ns => Due::Renew,
            true => Due::At(renewal.next_ns.min(lost_ns)),
            false => Due::At(lost_ns),
        }
    }

    /// Whether the last renewal had no answer.
    pub(super) fn is_renewal_failing(&self) -> bool {
        self.renewal.is_some_and(|renewal| renewal.fails > 0)
    }

    /// When the hold counts as lost if it is not renewed.
    fn lost_ns(&self, now: Now) -> u64 {
        self.runs_until_ns(now).saturating_sub(LOST_AHEAD_NS)
    }

    /// The renewal that is due: its machine, its first step, and until when to wait for its
    /// outcome.
    pub(crate) fn renew(&mut self, now: Now) -> Option<(Machine, Step, u64)> {
        let renewal = self.renewal?;
        let mode = match self.state {
            EntryState::SharedLocked => Mode::Shared,
            _ => Mode::Exclusive,
        };
        let op = Op::Extend { mode, lease: renewal.lease };
        let mut machine = Machine { is_renewal: true, ..Machine::of(op, now) };
        let step = self.first_step(&mut machine, now);
        let wait_ns = (renewal.lease_ns() / WAIT).min(WAIT_NS_MAX);
        let until_ns = now.local_ns.saturating_add(wait_ns).min(self.lost_ns(now));
        Some((machine, step, until_ns))
    }

    /// The program does not want a renewal now: the library asks it again, as after a renewal
    /// without an answer.
    pub fn renewal_declined(&mut self, now: Now) {
        self.has_renewed(Status::NotReady, now);
    }

    /// Handles the end of a renewal, and sets the time of the next one.
    pub(crate) fn has_renewed(&mut self, status: Status, now: Now) {
        let Some(renewal) = &mut self.renewal else { return };
        let wait_ns = match status {
            Status::Success => {
                renewal.fails = 0;
                renewal.lease_ns() / EVERY
            }
            _ => {
                let pause_ns = renewal.pause_ns();
                renewal.fails = renewal.fails.saturating_add(1);
                pause_ns
            }
        };
        renewal.next_ns = now.local_ns.saturating_add(wait_ns);
        if status != Status::Success && planted::is(Bug::RenewalTriedOnce) {
            renewal.until_ns = 0;
        }
    }

    /// Ends the renewal of a hold that is over.
    #[inline]
    pub(super) fn renewal_ends(&mut self) {
        if !planted::is(Bug::RenewalOutlives) {
            self.renewal = None;
        }
    }

    /// Handles that an operation has found its hold to be over. The program learns that from this
    /// operation, or, if the operation is a renewal, from its next one.
    pub(super) fn lost_by(&mut self, machine: &Machine) -> OpResult {
        if !machine.is_renewal {
            return self.lost();
        }
        let write = self.write.take(); // keeps the pending write that claims nothing any more
        self.lose_by(Loss::Unknown);
        self.write = write;
        OpResult::of(Status::Fail)
    }

    /// The program has asked for the end of the hold, and had no answer that tells whether it is
    /// over: the library does not renew the hold any more.
    pub(crate) fn end_is_wanted(&mut self) {
        if self.refs <= 1 && !planted::is(Bug::RenewedAfterUnlock) {
            self.renewal = None;
        }
    }
}
