// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lock after a failover: what its client claims at the successor of the primary, and what the
//! client makes of the answer.
//!
//! ```text
//!   held, or queued ─claim─▶ a place at the successor ─▶ Claimed ─Confirm─▶ Granted: still held
//!                                                          ▲  │             Queued: has a ticket
//!                                   answer lost, NOT_READY └──┘             Denied: lost
//! ```
//! The successor decides all claims to a lock together, once every client has made its own. So
//! before the successor has confirmed a claim, the client does not rely on what it claimed, and
//! touches no word of the lock.

use super::validity::NO_CLOCK;
use super::{Doubt, EntryState, LockEntry, Machine, Op, OpResult, Phase, Step, View};
use crate::clock::{Deadline, Lease, Now, NS};
use crate::ids::{ClientId, Epoch};
use crate::memory::words::RwWord;
use crate::planted::{self, Bug};
use crate::token::Token;
use crate::wire::control::{Claim, HeldClaim, LockGrant, Place};
use crate::wire::message::{LockType, Mode, Reply, Request};
use crate::wire::status::Status;

const MS: u64 = NS / 1_000;

impl LockEntry {
    /// The claim for a recovering primary. `now`: read by the clock of the entry's deadlines;
    /// `epoch`: the incarnation in which the entry's slot was given.
    pub fn claim(&self, now: Now, epoch: Epoch) -> Claim {
        let (granted_at, deadline) = match self.doubt {
            // the lock may be released, so every other claim must count as later
            Doubt::Release => (Epoch(0), Deadline::NONE),
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

    /// Whether the token of the hold counts at a successor: no other client can have got the lock
    /// since.
    fn keeps_token(&self, now: Now) -> bool {
        let may_be_another = matches!(self.doubt, Doubt::Release | Doubt::Downgrade);
        let is_sure = !may_be_another && self.surely_has(now);
        is_sure || planted::is(Bug::DoubtfulTokenClaimed)
    }

    /// The mode in which the client holds the lock or waits for it. A hold whose release was not
    /// answered counts, because its caller may still rely on it; the client undoes it before the
    /// next operation. An acquire without an answer does not count.
    fn claimed_mode(&self) -> Option<Mode> {
        use EntryState as S;
        match self.state {
            _ if matches!(self.doubt, Doubt::Acquire | Doubt::Lost | Doubt::Left) => None,
            _ if self.is_downgrading() && planted::is(Bug::DowngradeUnclaimed) => {
                Some(Mode::Exclusive)
            }
            S::ExclusiveLocked | S::ExclusiveTicketed => Some(Mode::Exclusive),
            S::SharedLocked | S::SharedTicketed => Some(Mode::Shared),
            S::Initialized | S::Unlocked => None,
        }
    }

    /// The longest time for which the lease may still run, in nanoseconds; another server can count
    /// this time on its own clock. `u64::MAX`: the lease has no end. A hold is valid through the
    /// whole tick of its deadline.
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

    /// How long ago the hold began. A hold that may be released counts as older than any other.
    fn age_ms(&self, now: Now) -> u32 {
        if self.doubt == Doubt::Release {
            return u32::MAX;
        }
        let age_ms = now.local_ns.saturating_sub(self.lease.since_ns) / MS;
        u32::try_from(age_ms).unwrap_or(u32::MAX)
    }

    /// The incarnation that last granted or confirmed the hold, and the hold's deadline by the
    /// clock of that incarnation.
    fn granted_at(&self, epoch: Epoch) -> (Epoch, Deadline) {
        self.granted_at.unwrap_or((epoch, self.deadline()))
    }

    fn place(&self, epoch: Epoch) -> Option<Place> {
        let is_fair = self.lock_type == LockType::Fair;
        let here = Place { epoch, ticket: self.fair.ticket };
        is_fair.then(|| self.fair.place.unwrap_or(here))
    }

    /// The client has claimed at a successor what it has of the lock from the incarnation `epoch`.
    /// From now on the lease counts by the successor's clock. `old` and `new`: the same moment on
    /// both clocks.
    pub fn is_claimed(&mut self, epoch: Epoch, old: Now, new: Now) {
        if self.claimed_mode().is_none() {
            return;
        }
        self.fair.place = self.place(epoch);
        if self.state.is_held() {
            self.granted_at = Some(self.granted_at(epoch));
        }
        if !self.keeps_token(old) {
            self.token = Token::NONE; // the answer to `Confirm` brings a new token
        }
        let may_be_lost = old.is_past_horizon() || self.may_be_lost_by_clock(old);
        if self.state.is_held() {
            let left_ns = self.left_ns(old);
            self.lease.until_ns = old.local_ns.saturating_add(left_ns);
            self.lease.runs_until_ns = self.runs_until_ns(old);
            self.lease.time = new.time.deadline_of_rest(left_ns);
        }
        match &mut self.doubt {
            doubt @ (Doubt::None | Doubt::Downgrade) => *doubt = Doubt::Claimed { may_be_lost },
            Doubt::Claimed { may_be_lost: before } => *before |= may_be_lost,
            _ => {} // any other doubt is undone before the next operation
        }
    }

    /// Whether this is the first claim of a hold, and the hold's lease was judged by another clock.
    fn may_be_lost_by_clock(&self, old: Now) -> bool {
        !self.is_unconfirmed() && self.state.is_held() && self.is_of_another_clock(old)
    }

    /// Takes over what a primary answers after a reinit: the slot and handle are new, the holds
    /// stay.
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
            // something of the client's earlier use of the lock may be left
            self.doubt = Doubt::Acquire;
        }
    }

    /// The client that this entry belongs to.
    pub fn client(&self) -> ClientId {
        self.me
    }

    /// Sets the client that this entry belongs to: a client that begins anew has another id.
    pub fn is_of(&mut self, me: ClientId) {
        self.me = me;
    }

    /// The request with which an operation on an entry in doubt begins.
    pub(super) fn settles_doubt(&self) -> Request {
        let handle = self.handle;
        match (self.doubt, self.claimed_mode()) {
            (Doubt::Claimed { .. }, Some(mode)) => Request::Confirm { handle, mode },
            (Doubt::Downgrade, _) => self.downgrades(),
            _ => Request::Resolve { handle },
        }
    }

    /// Asks what a successor makes of a claimed hold, without a call of the program; `None` if the
    /// entry has no such hold.
    pub(crate) fn confirm(&self, now: Now) -> Option<(Machine, Step)> {
        let mode = self.claimed_mode().filter(|_| self.is_to_be_confirmed())?;
        let ask = Op::Extend { mode, lease: Lease::NONE };
        let machine = Machine { is_confirm: true, ..Machine::new(ask, Phase::Resolving, now) };
        Some((machine, Step::Request(self.settles_doubt())))
    }

    /// Fair locks: the place of the ticket, if the ticket was taken at an earlier incarnation.
    pub fn earlier_place(&self) -> Option<Place> {
        self.fair.place
    }

    /// Whether the client still has to ask the successor what it makes of a claim.
    pub fn is_unconfirmed(&self) -> bool {
        matches!(self.doubt, Doubt::Claimed { .. })
    }

    /// Whether the library asks what became of the hold, without a call of the program.
    pub fn is_to_be_confirmed(&self) -> bool {
        self.state.is_held() && (self.is_unconfirmed() || self.is_downgrading())
    }

    /// The successor has confirmed the claimed hold.
    fn confirmed(&mut self, word: u64, deadline: Deadline, now: Now) {
        self.word = word;
        self.granted_at = None;
        self.doubt = Doubt::None;
        let claimed = (self.lease.until_ns, self.lease.runs_until_ns);
        self.is_judged_by(&now);
        // a hold without an end is kept by the successor as one without a lease
        self.lease.by_arbiter &= !deadline.is_never();
        self.lasts_until(deadline);
        (self.lease.until_ns, self.lease.runs_until_ns) = claimed;
        let shown = self.shown(deadline);
        match &mut self.cache {
            View::Atomic { time_out, .. } | View::Fair { time_out, .. } => {
                *time_out = shown;
            }
            View::Rw { time_out, is_leased, client_id, rcount } => {
                if *is_leased {
                    *time_out = shown;
                }
                if self.state == EntryState::SharedLocked {
                    (*client_id, *rcount) = (0, RwWord::from_bits(word).rcount());
                }
            }
        }
    }
}

/// Handles the answer to a [`Request::Confirm`], with which an operation on a claim begins.
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
                _ => Step::Done(OpResult::of(Status::Success)),
            }
        }
        _ => m.lose_track(e),
    }
}

/// Begins the operation itself, now that nothing is in doubt.
pub(super) fn begin(m: &mut Machine, e: &mut LockEntry, now: Now) -> Step {
    match e.decided(m.op, now) {
        Some(local) => Step::Done(local),
        None => m.start(e, now),
    }
}
