// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lock at the successor of its primary: what it is told, and what it makes of that.
//!
//! ```text
//!   held, or queued ─claim─▶ a place at the successor ─▶ Claimed ─Confirm─▶ Granted: held still
//!                                                          ▲  │             Queued: with a ticket
//!                                   answer lost, NOT_READY └──┘             Denied: lost
//! ```
//! All claims to a lock are decided together, once every client has told its own. So nothing that
//! is claimed is relied on, and no word of the lock is touched, before the successor was asked.

use super::validity::NO_CLOCK;
use super::{Doubt, EntryState, LockEntry, Machine, Op, OpResult, Phase, Step, View};
use crate::clock::{Deadline, Lease, Now, NS};
use crate::ids::{ClientId, Epoch};
use crate::planted::{self, Bug};
use crate::token::Token;
use crate::wire::control::{Claim, HeldClaim, LockGrant, Place};
use crate::wire::message::{LockType, Mode, Reply, Request};
use crate::wire::status::Status;

const MS: u64 = NS / 1_000;

impl LockEntry {
    /// What to tell a recovering primary. `now`: by the clock that the deadlines are of; `epoch`:
    /// the incarnation of which the lock's place was.
    pub fn claim(&self, now: Now, epoch: Epoch) -> Claim {
        let (granted_at, deadline) = match self.doubt {
            Doubt::Release => (Epoch(0), Deadline::NONE), // it may be released: any other is later
            _ => self.granted_at(epoch),
        };
        let held = self.claimed_mode().map(|mode| HeldClaim {
            mode,
            is_queued: !self.state.is_held(),
            left_ns: self.left_ns(now),
            age_ms: self.age_ms(now),
            epoch: granted_at,
            deadline,
            fair: self.place(epoch),
            token: self.token().filter(|_| self.keeps_token(now)).unwrap_or(Token::NONE),
        });
        Claim { lock: self.lock, desc: self.desc.clone(), held }
    }

    /// Whether the token of the hold counts at a successor: no other client can have got the lock.
    fn keeps_token(&self, now: Now) -> bool {
        let is_sure = self.doubt != Doubt::Release && self.surely_has(now);
        is_sure || planted::is(Bug::DoubtfulTokenClaimed)
    }

    /// How it has the lock, or asks for it. A hold whose release was not answered counts: its
    /// caller may believe in it, and it is undone before the next operation. Of an acquire that was
    /// not answered nothing does.
    fn claimed_mode(&self) -> Option<Mode> {
        use EntryState as S;
        match self.state {
            _ if !matches!(self.doubt, Doubt::None | Doubt::Claimed { .. } | Doubt::Release) => {
                None
            }
            S::ExclusiveLocked | S::ExclusiveTicketed => Some(Mode::Exclusive),
            S::SharedLocked | S::SharedTicketed => Some(Mode::Shared),
            S::Initialized | S::Unlocked => None,
        }
    }

    /// The longest that the lease may still run, in nanoseconds, which is what another server can
    /// count on its own clock; `u64::MAX`: the lease has no end. A hold is valid through the whole
    /// tick of its deadline.
    fn left_ns(&self, now: Now) -> u64 {
        let earliest_ns = now.time.0.saturating_sub(now.uncertainty_ns);
        let left_ns = match (self.lease.until_ns, self.deadline()) {
            (u64::MAX, Deadline::NEVER) => return u64::MAX,
            (u64::MAX, deadline) => deadline.expiry().0.saturating_sub(earliest_ns),
            (until_ns, _) => return until_ns.saturating_sub(now.local_ns),
        };
        match planted::is(Bug::ClaimRoundedDown) {
            true => left_ns.saturating_sub(NS),
            false => left_ns,
        }
    }

    /// A hold that may be released is older than any other.
    fn age_ms(&self, now: Now) -> u32 {
        if self.doubt == Doubt::Release {
            return u32::MAX;
        }
        let age_ms = now.local_ns.saturating_sub(self.lease.since_ns) / MS;
        u32::try_from(age_ms).unwrap_or(u32::MAX)
    }

    /// The incarnation that granted or confirmed the hold last, and its deadline by that one's
    /// clock.
    fn granted_at(&self, epoch: Epoch) -> (Epoch, Deadline) {
        self.granted_at.unwrap_or((epoch, self.deadline()))
    }

    fn place(&self, epoch: Epoch) -> Option<Place> {
        let is_fair = self.lock_type == LockType::Fair;
        let here = Place { epoch, ticket: self.fair.ticket };
        is_fair.then(|| self.fair.place.unwrap_or(here))
    }

    /// What the lock has at the incarnation `epoch` was claimed at a successor. Its lease is
    /// counted by the successor's clock from now on; `old` and `new` are of the same moment.
    pub fn is_claimed(&mut self, epoch: Epoch, old: Now, new: Now) {
        if self.claimed_mode().is_none() {
            return;
        }
        self.fair.place = self.place(epoch);
        if self.state.is_held() {
            self.granted_at = Some(self.granted_at(epoch));
        }
        if !self.keeps_token(old) {
            self.token = Token::NONE; // the answer to `Confirm` has another one
        }
        let may_be_lost = old.is_past_horizon() || self.may_be_lost_by_clock(old);
        if self.state.is_held() && self.lock_type != LockType::Rw {
            let left_ns = self.left_ns(old);
            self.lease.until_ns = old.local_ns.saturating_add(left_ns);
            self.lease.runs_until_ns = self.runs_until_ns(old);
            self.lease.time = new.time.deadline_of_rest(left_ns);
        }
        match &mut self.doubt {
            doubt @ Doubt::None => *doubt = Doubt::Claimed { may_be_lost },
            Doubt::Claimed { may_be_lost: before } => *before |= may_be_lost,
            _ => {} // it is undone
        }
    }

    /// Whether a lease that is claimed for the first time was judged by another clock.
    fn may_be_lost_by_clock(&self, old: Now) -> bool {
        !self.is_unconfirmed() && self.state.is_held() && self.is_of_another_clock(old)
    }

    /// Adopts what a primary says after a reinit: a new place, the same holds.
    pub fn rebind(&mut self, grant: &LockGrant, anchor_s: u32) {
        self.lock = grant.lock;
        self.handle = grant.handle;
        self.slot = grant.slot;
        self.anchor_s = anchor_s;
        self.lease.clock = NO_CLOCK;
        self.renewal = self.renewal.filter(|_| !planted::is(Bug::RenewalEndsWithSession));
        self.counts_end = grant.tokens;
        self.see_lanes(grant.word);
        self.write = None;
        if self.has_left() || grant.already && self.doubt == Doubt::None && !self.state.is_held() {
            self.doubt = Doubt::Acquire; // got, but of before something may be left
        }
    }

    /// Whose it is.
    pub fn client(&self) -> ClientId {
        self.me
    }

    /// Whose it is: a client that begins anew has another id.
    pub fn is_of(&mut self, me: ClientId) {
        self.me = me;
    }

    /// The request that an operation begins with if something is in doubt.
    pub(super) fn settles_doubt(&self) -> Request {
        let handle = self.handle;
        match (self.doubt, self.claimed_mode()) {
            (Doubt::Claimed { .. }, Some(mode)) => Request::Confirm { handle, mode },
            _ => Request::Resolve { handle },
        }
    }

    /// Asks what a successor makes of a hold that was claimed, without the program; `None` if there
    /// is none.
    pub(crate) fn confirm(&self, now: Now) -> Option<(Machine, Step)> {
        let mode = self.claimed_mode().filter(|_| self.is_unconfirmed() && self.state.is_held())?;
        let ask = Op::Extend { mode, lease: Lease::NONE };
        let machine = Machine { is_confirm: true, ..Machine::new(ask, Phase::Resolving, now) };
        Some((machine, Step::Request(self.settles_doubt())))
    }

    /// Fair: the place of its ticket, if that was taken at an earlier incarnation.
    pub fn earlier_place(&self) -> Option<Place> {
        self.fair.place
    }

    /// Whether the successor is still to be asked what it makes of a claim.
    pub fn is_unconfirmed(&self) -> bool {
        matches!(self.doubt, Doubt::Claimed { .. })
    }

    /// It is as it was claimed.
    fn confirmed(&mut self, word: u64, deadline: Deadline, now: Now) {
        self.word = word;
        self.granted_at = None;
        self.doubt = Doubt::None;
        let claimed = (self.lease.until_ns, self.lease.runs_until_ns);
        self.is_judged_by(&now);
        if self.lock_type != LockType::Rw {
            self.lease.time = deadline;
            (self.lease.until_ns, self.lease.runs_until_ns) = claimed;
        }
        let shown = self.shown(deadline);
        match &mut self.cache {
            View::Atomic { time_out, .. } | View::Fair { time_out, .. } => {
                *time_out = shown;
            }
            View::Rw { .. } => {}
        }
    }
}

/// The answer to a [`Request::Confirm`], with which the operation begins.
pub(super) fn confirmed(m: &mut Machine, e: &mut LockEntry, reply: Reply, now: Now) -> Step {
    let is_held = e.state.is_held();
    match reply {
        Reply::Granted { word, deadline, ticket, token, .. } if is_held => {
            let mut new = token;
            if let (Some(ticket), Some(mode)) = (ticket, e.claimed_mode()) {
                e.has_place(ticket, word, mode);
                new = Token::of_fair(mode, ticket);
            }
            e.token = e.token.some().unwrap_or(new);
            e.confirmed(word, deadline, now);
            match m.is_confirm {
                true => m.done(Status::Success),
                false => begin(m, e, now),
            }
        }
        Reply::Queued { word, ticket } if !is_held => {
            if let Some(mode) = e.claimed_mode() {
                e.has_place(ticket, word, mode);
            }
            e.doubt = Doubt::None;
            begin(m, e, now)
        }
        Reply::Denied { .. } if is_held && m.is_confirm => {
            e.lose();
            m.done(Status::Fail)
        }
        Reply::Denied { .. } if is_held => Step::Done(e.lost_by(m)),
        Reply::Denied { .. } => {
            e.end(EntryState::Initialized);
            match m.op {
                Op::TryLock { .. } | Op::Lock { .. } => m.start(e, now),
                Op::Unlock | Op::Extend { .. } => Step::Done(OpResult::of(Status::Success)),
            }
        }
        _ => m.lose_track(e),
    }
}

/// The operation itself, now that nothing is in doubt.
fn begin(m: &mut Machine, e: &mut LockEntry, now: Now) -> Step {
    match e.decided(m.op, now) {
        Some(local) => Step::Done(local),
        None => m.start(e, now),
    }
}
