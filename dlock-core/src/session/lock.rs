// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the words of a lock are: at which incarnation of the primary, and by which clock the
//! lock's deadlines count.

use crate::clock::{Now, ServerTime};
use crate::ids::{ClientId, Epoch};
use crate::lock::{LockEntry, Loss};
use crate::planted::{self, Bug};
use crate::wire::control::{Claim, LockDesc, LockGrant};
use crate::wire::message::Request;

/// The incarnation of the primary to which a lock's handle and slot belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    epoch: Epoch,
    /// The clock by which the deadlines count, with the horizon of its session, both as they were
    /// when that session ended; `None`: the clock of the present session.
    old_clock: Option<Now>,
}

/// The incarnation of a lock that no primary has.
const NOWHERE: Epoch = Epoch(u64::MAX);

impl Binding {
    /// The binding of a lock that the client has just got.
    pub fn new(epoch: Epoch) -> Self {
        Self { epoch, old_clock: None }
    }

    /// Whether the lock's words are at this incarnation.
    pub fn is_at(&self, epoch: Epoch) -> bool {
        self.epoch == epoch
    }

    /// The incarnation at which the lock's words are.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Handles that a session with this incarnation replaces the one before, whose clock read
    /// `clock`. Returns whether the lock's words stay where they are; if not, the lock refuses
    /// every operation until the client has claimed it.
    pub fn moves_to(&mut self, epoch: Epoch, clock: Now) -> bool {
        if self.epoch == epoch {
            return true;
        }
        self.old_clock = self.old_clock.or(Some(clock));
        false
    }

    /// Handles that the client has become a new one, without any holds: the hold of this lock is
    /// lost, and the lock is at no incarnation until the client gets it again. `is_taken_away`: an
    /// operator has removed the client under its old id.
    pub fn begins_anew(&mut self, entry: &mut LockEntry, is_taken_away: bool) {
        entry.lose_by(match is_taken_away && !planted::is(Bug::TakenAwayUntold) {
            true => Loss::TakenAway,
            false => Loss::Session,
        });
        *self = Self::new(NOWHERE);
    }

    /// The claim for the successor. `now`: the clock of the new session. A hold without a lease is
    /// lost if the old session's horizon has passed, because the old primary may have given the
    /// lock to another client.
    pub fn claim(&self, entry: &mut LockEntry, now: Now) -> Claim {
        entry.leaves_cache(); // the predecessor knew of it, and no one else
        let old = self.clock(now);
        if self.old_clock.is_some() && old.is_past_horizon() {
            entry.lapse();
        }
        let on_new = planted::is(Bug::ClaimOnNewClock);
        entry.claim(if on_new { now } else { old }, self.epoch)
    }

    /// The clock of the lock's deadlines at the time `now` of the present session's clock.
    pub fn clock(&self, now: Now) -> Now {
        self.old_clock.map_or(now, |old| old.at_local(now.local_ns))
    }

    /// Takes over the place that the successor has given to the lock. `is_lost`: the successor has
    /// refused the claimed hold. `now`: the clock of the new session.
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

    /// Takes over a lock that a get by name has returned, and that the client knows already.
    /// Returns whether the lock is new to the caller: the client had not claimed it at this
    /// incarnation, or an earlier release was not answered. A hold is then lost, or undone before
    /// the next operation. `None`: the client knows a lock of another name by this id.
    ///
    /// A client has one entry for each name, even if the primary gives the lock another id, because
    /// operations on a second entry would not know what the first one holds.
    ///
    /// Call this only with the answer to a request that was sent after the last release of the
    /// lock, on the same channel or on one that has replaced it: only such an answer is surely up
    /// to date.
    pub fn adopt(
        &mut self,
        entry: &mut LockEntry,
        me: ClientId,
        grant: &LockGrant,
        desc: &LockDesc,
        (epoch, anchor_s): (Epoch, u32),
    ) -> Option<bool> {
        if entry.desc().name != desc.name {
            return None; // the client knows another lock by this id, and may go on using it
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
    /// possible: the client had not claimed this lock at this incarnation, or an unanswered release
    /// of it took effect. If so, this lock is at no incarnation until the client gets it again.
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

/// Goes on over a new channel to the same primary. The entry repeats the ledger write that the old
/// channel may have lost ([`LockEntry::take_ledger_write`]), and the returned request undoes what
/// is in doubt. `is_busy`: an operation is under way, which does both at its end.
#[must_use = "the request is to be sent"]
pub fn resume(entry: &mut LockEntry, is_busy: bool, now: Now) -> Option<Request> {
    // the primary took the question along with the old channel: nobody else would say that a
    // program uses what the client kept
    let is_in_use = entry.is_kept() && !entry.is_idle();
    entry.leaves_cache();
    if !is_busy && !planted::is(Bug::NoRepublish) {
        entry.rewrite_ledger();
    }
    let (handle, until) = (entry.handle(), ServerTime(0));
    let in_use = is_in_use.then_some(Request::Listen { handle, knows: true, until });
    entry.undo_request(now).or(in_use)
}
