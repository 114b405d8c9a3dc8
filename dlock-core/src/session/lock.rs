// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a lock's words are: at which incarnation of the primary, and by which clock its deadlines
//! count.

use crate::clock::Now;
use crate::ids::{ClientId, Epoch};
use crate::lock::{LockEntry, Loss};
use crate::planted::{self, Bug};
use crate::wire::control::{Claim, LockDesc, LockGrant};
use crate::wire::message::Request;

/// The incarnation of the primary to which a lock's handle and slot belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    epoch: Epoch,
    /// The clock by which the deadlines count, and its session's horizon, as they were when that
    /// session ended; `None`: those of the present session.
    old_clock: Option<Now>,
}

/// The incarnation of a lock that no primary has.
const NOWHERE: Epoch = Epoch(u64::MAX);

impl Binding {
    /// The binding of a lock that was just got.
    pub fn new(epoch: Epoch) -> Self {
        Self { epoch, old_clock: None }
    }

    /// Whether the lock's words are at this incarnation.
    pub fn is_at(&self, epoch: Epoch) -> bool {
        self.epoch == epoch
    }

    /// The incarnation at which the lock is.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Handles that a session with this incarnation replaces the one before, whose clock read
    /// `clock`. Returns whether the lock stays where it is; if not, it refuses every operation
    /// until it is claimed.
    pub fn moves_to(&mut self, epoch: Epoch, clock: Now) -> bool {
        if self.epoch == epoch {
            return true;
        }
        self.old_clock = self.old_clock.or(Some(clock));
        false
    }

    /// Handles that the client has become a new one, without any holds: the hold is lost, and the
    /// lock is at no incarnation until it is got again. `is_taken_away`: an operator has removed
    /// the client that it was.
    pub fn begins_anew(&mut self, entry: &mut LockEntry, is_taken_away: bool) {
        entry.lose_by(match is_taken_away && !planted::is(Bug::TakenAwayUntold) {
            true => Loss::TakenAway,
            false => Loss::Session,
        });
        *self = Self::new(NOWHERE);
    }

    /// The claim for the successor. `now` is the clock of the session. A hold without a lease is
    /// lost if the old session's horizon has passed, because its primary may have given it to
    /// another client.
    pub fn claim(&self, entry: &mut LockEntry, now: Now) -> Claim {
        let old = self.clock(now);
        if self.old_clock.is_some() && old.is_past_horizon() {
            entry.lapse();
        }
        let on_new = planted::is(Bug::ClaimOnNewClock);
        entry.claim(if on_new { now } else { old }, self.epoch)
    }

    /// The clock of the lock's deadlines at the time `now` of the session's clock.
    pub fn clock(&self, now: Now) -> Now {
        self.old_clock.map_or(now, |old| old.at_local(now.local_ns))
    }

    /// Adopts the place that the successor gave. `is_lost`: the successor has refused the claimed
    /// hold. `now` is the clock of the session.
    pub fn bind(
        &mut self,
        entry: &mut LockEntry,
        grant: &LockGrant,
        (epoch, anchor_s): (Epoch, u32),
        is_lost: bool,
        now: Now,
    ) {
        if self.epoch != epoch {
            match is_lost {
                true => entry.lose(),
                false => entry.is_claimed(self.epoch, self.clock(now), now),
            }
        }
        entry.rebind(grant, anchor_s);
        *self = Self::new(epoch);
    }

    /// Adopts a lock that a get by name has returned, and that the client knows already. Returns
    /// whether it is new to the caller: it was not claimed at this incarnation, or an earlier
    /// release was not answered. A hold is lost then, or is undone before the next operation.
    /// `None`: the caller knows a lock of another name by this id.
    ///
    /// A client has one entry for each name, even if the primary gives the lock another id:
    /// operations on a second entry would not know what the first one holds.
    ///
    /// Only for the answer to a request that was sent after the last release of the lock, on the
    /// same channel or on one that has replaced it: only that answer is sure to be up to date.
    pub fn adopt(
        &mut self,
        entry: &mut LockEntry,
        me: ClientId,
        grant: &LockGrant,
        desc: &LockDesc,
        (epoch, anchor_s): (Epoch, u32),
    ) -> Option<bool> {
        if entry.desc().name != desc.name {
            return None; // the caller knows another lock by this id, and may go on using it
        }
        entry.may_want_tokens(grant, desc);
        let is_same = grant.already && self.is_at(epoch) && !entry.has_left();
        if is_same || planted::is(Bug::LeftUsed) {
            return Some(false);
        }
        let is_of_type = entry.lock_type() == desc.lock_type;
        match is_of_type && (grant.already || entry.state().is_held()) {
            true => {
                entry.lose();
                entry.rebind(grant, anchor_s);
                entry.is_of(me);
            }
            false => {
                let new = LockEntry::new(me, anchor_s, desc.lock_type, grant, desc.clone());
                *entry = new.after(entry);
            }
        }
        *self = Self::new(epoch);
        Some(true)
    }

    /// Handles that the primary has given this lock's id to another lock. Returns whether that is
    /// possible: this lock was not claimed at this incarnation, or its unanswered release took
    /// effect. If so, it is at no incarnation until it is got again.
    pub fn loses_place(&mut self, entry: &LockEntry, epoch: Epoch) -> bool {
        if !self.is_at(epoch) {
            return true;
        }
        if entry.has_left() {
            self.epoch = NOWHERE;
        }
        entry.has_left()
    }
}

/// Goes on over a new channel to the same primary: ledger writes that the old channel may have lost
/// are repeated ([`LockEntry::take_ledger_write`]), and the returned request undoes what is in
/// doubt. `is_busy`: an operation is under way, which does both at its end.
#[must_use = "the request is to be sent"]
pub fn resume(entry: &mut LockEntry, is_busy: bool, now: Now) -> Option<Request> {
    if !is_busy && !planted::is(Bug::NoRepublish) {
        entry.rewrite_ledger();
    }
    entry.undo_request(now)
}
