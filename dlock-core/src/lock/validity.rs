// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client may conclude on its own about what it holds: by which clock a lease was judged,
//! and which holds the end of a session ends.
//!
//! ```text
//!   granted, extended, confirmed ─▶ the entry remembers the clock's number of discontinuities
//!   another number, or another session ─▶ the hold may be over: extend and release ask the primary
//! ```

use super::{Doubt, EntryState, LockEntry, Loss, Op, OpResult};
use crate::clock::{Deadline, Lease, Now, NS};
use crate::planted::{self, Bug};
use crate::token::Token;
use crate::wire::message::LockType;
use crate::wire::status::Status;

/// A number that no clock has: a hold with it counts as one of another clock.
pub(super) const NO_CLOCK: u64 = u64::MAX;

/// Until when a hold lasts, and by which clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Term {
    /// The deadline; with a ticket: the time of queuing.
    pub(super) time: Deadline,
    /// [`Now::discontinuities`] of the clock by which the lease was last granted or confirmed;
    /// [`NO_CLOCK`]: of a clock that is not the session's.
    pub(super) clock: u64,
    /// When the lease was last granted or confirmed, on this host's clock.
    pub(super) since_ns: u64,
    /// For a hold that was claimed at a successor, and neither granted nor extended since: when the
    /// lease has surely ended, and (`runs_until_ns`) until when it surely runs, on this host's
    /// clock. `u64::MAX`: the deadline decides.
    pub(super) until_ns: u64,
    pub(super) runs_until_ns: u64,
    /// Read-write locks: the arbiter keeps the hold, which was acquired with a lease.
    pub(super) by_arbiter: bool,
    /// The client has asked for an endless lease, and the answer was lost.
    pub(super) may_be_endless: bool,
}

impl Term {
    pub(super) const NONE: Self = Self {
        time: Deadline::NONE,
        clock: NO_CLOCK,
        since_ns: 0,
        until_ns: u64::MAX,
        runs_until_ns: u64::MAX,
        by_arbiter: false,
        may_be_endless: false,
    };

    /// The term of a lock of this type that is not held.
    pub(super) fn of(lock_type: LockType) -> Self {
        match lock_type {
            LockType::Rw => Self { time: Deadline::NEVER, ..Self::NONE },
            LockType::Atomic | LockType::Fair => Self::NONE,
        }
    }
}

impl LockEntry {
    /// Whether this is a read-write lock whose hold, if there is one, has no lease: the client
    /// operates on the word itself. The arbiter keeps a hold with a lease.
    #[inline(always)]
    pub(super) fn is_on_word(&self) -> bool {
        self.lock_type == LockType::Rw && !self.lease.by_arbiter
    }

    /// Whether a lease is asked for, or the hold has one.
    #[inline(always)]
    pub fn has_lease(&self, op: Op) -> bool {
        self.lock_type != LockType::Rw || self.takes_leases && self.is_leased(op)
    }

    /// [`has_lease`](Self::has_lease) of a read-write lock whose acquires may ask for leases.
    #[inline(never)]
    fn is_leased(&self, op: Op) -> bool {
        self.lease.by_arbiter || op.is_acquire() && !op.lease().is_endless()
    }

    /// The lease of the hold now counts by this clock.
    #[inline]
    pub(super) fn is_judged_by(&mut self, now: &Now) {
        (self.lease.clock, self.lease.since_ns) = (now.discontinuities, now.local_ns);
        (self.lease.until_ns, self.lease.runs_until_ns) = (u64::MAX, u64::MAX);
    }

    /// The hold goes on until `deadline`, as the answer to an extend says. An extend without a
    /// lease that finds the known deadline makes no lease longer, also not a claimed one. But its
    /// caller learns of the deadline, so a later claim lasts until then.
    pub(super) fn goes_on(&mut self, deadline: Deadline, lease: Lease, now: &Now) {
        let runs_until_ns = self.lease.runs_until_ns;
        self.is_judged_by(now);
        if lease.is_none() && deadline == self.lease.time {
            self.lease.runs_until_ns = runs_until_ns;
        }
        self.lasts_until(deadline);
    }

    /// Sets the deadline of the hold. A hold of a read-write lock that the arbiter does not keep
    /// has none, even if an answer names one.
    pub(super) fn lasts_until(&mut self, deadline: Deadline) {
        self.lease.time = if self.is_on_word() { Deadline::NEVER } else { deadline };
    }

    /// Whether the lease of the hold was judged by a server clock that has turned out to be wrong
    /// since, or by the clock of another session: a client that knew the true time may have taken
    /// the lock over. An extend asks the primary, and settles that. A hold without an end is not
    /// affected.
    #[inline]
    pub fn is_of_another_clock(&self, now: Now) -> bool {
        self.deadline() != Deadline::NEVER && self.lease.clock != now.discontinuities
    }

    /// Whether the hold may be over, as far as the client can tell on its own.
    pub(super) fn maybe_over(&self, now: Now) -> bool {
        let is_over = now.maybe_expired(self.lease.time) || self.is_past_claim(now);
        is_over || self.is_of_another_clock(now)
    }

    /// Whether the lease that the client claimed at a successor may be over. The successor's
    /// deadline for the claim is in whole ticks of another clock, and up to a tick later than the
    /// lease.
    #[inline]
    pub fn is_past_claim(&self, now: Now) -> bool {
        now.local_ns >= self.lease.runs_until_ns && !planted::is(Bug::ClaimRevived)
    }

    /// The result of a release that was refused with `refused`, or had no answer. If that status
    /// means that there is no primary (`None` for other statuses), the hold or the ticket is over
    /// for this client all the same, and the client undoes it before its next operation. The
    /// release succeeds while no other client can have the lock: the lease and the session's
    /// horizon surely run. Later it is `Fail`, because the primary, or its successor, may have
    /// given the lock to another client. `None` also means that nothing has changed, and that the
    /// next operation tells what the client holds. `now`: read by the clock of the hold's deadline.
    pub fn release_unheard(&mut self, refused: Status, now: Now) -> Option<OpResult> {
        use EntryState as S;
        if !refused.is_without_primary() || matches!(self.doubt, Doubt::Left | Doubt::Lost) {
            return None;
        }
        let is_sure = self.surely_has(now) || planted::is(Bug::UnheardSucceeds);
        match self.state {
            S::Initialized | S::Unlocked => return Some(OpResult::of(Status::AlreadyUnlocked)),
            _ if self.is_idle() => return Some(OpResult::of(Status::AlreadyUnlocked)),
            _ if self.refs > 1 => {
                self.leaves_once();
                let status = if is_sure { Status::AlreadyLocked } else { Status::Fail };
                return Some(OpResult::of(status));
            }
            _ if planted::is(Bug::UnheardForgotten) => self.end(S::Unlocked),
            _ => {
                let loss = self.loss;
                self.give_back();
                self.loss = loss; // the program has asked for the end
            }
        }
        Some(match is_sure {
            true => OpResult { status: Status::Success, view: Some(self.cache) },
            false => OpResult::of(Status::Fail),
        })
    }

    /// Whether no decision of the operation depends on a clock: the last release of an atomic or a
    /// read-write lock, unless the client keeps the lock.
    #[inline(always)]
    pub fn is_timeless(&self, op: Op) -> bool {
        matches!(op, Op::Unlock)
            && self.refs <= 1
            && self.lock_type != LockType::Fair
            && !self.is_kept()
    }

    /// Whether no decision of the operation depends on the server clock. This also includes a
    /// release that leaves a read-write lock held: the session's horizon alone decides it.
    #[inline]
    pub fn needs_no_server_clock(&self, op: Op) -> bool {
        let has_no_lease = match self.lock_type {
            LockType::Atomic => self.refs <= 1,
            LockType::Rw => self.refs <= 1 || self.is_on_word(),
            LockType::Fair => false,
        };
        matches!(op, Op::Unlock) && has_no_lease && !self.is_kept()
    }

    /// The result of a release that leaves the lock held (re-entry): `AlreadyLocked` only while no
    /// other client can have the lock, and `Fail` once the lease or the horizon may be over.
    /// `None`: the client has to ask the primary.
    pub(super) fn released_partly(&mut self, now: Now) -> Option<OpResult> {
        let is_sure = self.surely_has(now) || planted::is(Bug::PartlyUnjudged);
        let may_be_told = self.is_unconfirmed() || self.is_of_another_clock(now);
        if !is_sure && may_be_told && !now.is_past_horizon() {
            return None;
        }
        self.leaves_once();
        let status = if is_sure { Status::AlreadyLocked } else { Status::Fail };
        Some(OpResult::of(status))
    }

    /// Takes one acquire off a hold that stays held.
    pub(crate) fn leaves_once(&mut self) {
        assert!(self.refs > 1, "a release that ends the hold is carried out");
        self.refs -= 1;
    }

    /// Whether it is sure that no other client can have what this one has.
    pub(super) fn surely_has(&self, now: Now) -> bool {
        let may_be_lost = match self.doubt {
            Doubt::Claimed { may_be_lost } => may_be_lost,
            _ => self.state.is_held() && self.is_of_another_clock(now),
        };
        !may_be_lost && now.local_ns < self.runs_until_ns(now) && !now.is_past_horizon()
    }

    /// Whether this client holds the lock, and no other client can have it. It may be so, too,
    /// while the claim of the hold is not confirmed: a successor has taken it, and keeps it unless
    /// another claim is in the way.
    pub fn is_surely_held(&self, now: Now) -> bool {
        let is_known = matches!(self.doubt, Doubt::None | Doubt::Claimed { .. } | Doubt::Downgrade);
        is_known && self.state.is_held() && self.surely_has(now)
    }

    /// Gives up a hold that is lost, or whose lease may be over, although the program has not
    /// released it: it keeps no other acquire of this client out. The program is told by its next
    /// call for the hold. Returns whether there was such a hold.
    pub fn gives_up_what_is_over(&mut self, now: Now) -> bool {
        let is_over = self.is_known_over(now);
        if is_over {
            self.give_back();
        }
        is_over
    }

    /// Whether the hold is lost, or its lease may be over.
    pub fn is_known_over(&self, now: Now) -> bool {
        let may_be_over = self.hold().is_some() && now.local_ns >= self.runs_until_ns(now);
        self.is_lost() || may_be_over
    }

    /// The [token](Self::token), unless the hold is known to be over.
    pub fn token_now(&self, now: Now) -> Option<Token> {
        self.token().filter(|_| !self.is_known_over(now))
    }

    /// Until when the lease surely runs, on this host's clock; `u64::MAX`: it has no end, or
    /// nothing is held. The lease of a claim ends when it would have ended at the predecessor.
    pub fn runs_until_ns(&self, now: Now) -> u64 {
        if !self.state.is_held() || self.deadline().is_never() {
            return u64::MAX;
        }
        if self.is_unconfirmed() {
            return self.lease.runs_until_ns;
        }
        let latest_ns = now.time.0.saturating_add(now.uncertainty_ns);
        let end_ns = match planted::is(Bug::LocalEndInSeconds) {
            true => self.lease.time.expiry().0.div_ceil(NS).saturating_mul(NS),
            false => self.lease.time.expiry().0,
        };
        let until_ns = now.local_ns.saturating_add(end_ns.saturating_sub(latest_ns));
        until_ns.min(self.lease.runs_until_ns)
    }

    /// The hold or the ticket did not survive: a recovering primary has refused the claim. A
    /// program that believes to hold the lock learns of the loss from its next operation.
    pub fn lose(&mut self) {
        self.lose_by(Loss::Conflict);
    }

    /// Like [`lose`](Self::lose), for another reason.
    pub(crate) fn lose_by(&mut self, loss: Loss) {
        if self.has_left() {
            return; // nothing is held, and the entry stays `Left`
        }
        self.is_over_by(loss);
        match self.state.is_held() {
            true if self.is_idle() => self.leaves_cache(),
            true => self.doubt = Doubt::Lost,
            false => self.end(EntryState::Initialized),
        }
        self.write = None;
        self.renewal_ends();
    }

    /// Whether the hold was lost, and the caller has not learnt that yet.
    pub fn is_lost(&self) -> bool {
        self.doubt == Doubt::Lost
    }

    /// The client holds nothing of the lock, has asked the primary to give it back, and has no
    /// answer. Until the client gets the lock again, an operation on its slot might change another
    /// lock.
    pub fn leaves(&mut self) {
        self.end(EntryState::Initialized);
        self.write = None;
        self.doubt = Doubt::Left;
    }

    /// Whether the client has asked the primary to give the lock back, and has no answer.
    pub fn has_left(&self) -> bool {
        self.doubt == Doubt::Left
    }

    /// Whether the result of this operation would come from what the client remembers of a hold
    /// without a lease. A client whose session is over must not rely on that.
    fn rests_on_session(&self, op: Op) -> bool {
        let takes = match op {
            Op::TryLock { lease, .. } | Op::Lock { lease, .. } => !lease.is_none(),
            Op::Unlock | Op::Extend { .. } | Op::Downgrade => false,
        };
        takes && self.is_on_word() && (self.refs > 0 || self.is_idle())
    }

    /// The status with which to refuse an operation that enters a hold without a lease again;
    /// `None`: the operation may go on. The client would decide it from what it remembers, but such
    /// a hold lasts only as long as the session: afterwards the primary may have given the lock to
    /// another client. `is_cut_off`: whether the session's connection is
    /// [gone](crate::memory::exec::Executor::is_cut_off), or the horizon has passed. `refusal`: why
    /// the executor [refuses](crate::memory::exec::Executor::refusal) everything at present, if it
    /// does.
    #[inline]
    pub fn unfounded(
        &self,
        op: Op,
        is_cut_off: impl FnOnce() -> bool,
        refusal: impl FnOnce() -> Option<Status>,
    ) -> Option<Status> {
        if !self.rests_on_session(op) {
            return None;
        }
        match is_cut_off() {
            true => Some(Status::BadResponse),
            false => refusal(),
        }
    }

    /// Handles that the primary has ended what this client had without a lease: holds of read-write
    /// locks, endless holds, tickets. Returns whether this hold was among them; then it is lost. A
    /// pending ledger write is dropped: it might change another client's hold, and what is left of
    /// this lock is written anew, or undone.
    pub fn lapse(&mut self) -> bool {
        use EntryState as S;
        self.write = None;
        let has_nothing = matches!(self.state, S::Initialized | S::Unlocked);
        let may_be_endless = self.lease.may_be_endless || self.deadline().is_never();
        if has_nothing || self.state.is_held() && !may_be_endless {
            return false;
        }
        let is_held = self.state.is_held();
        self.lose_by(Loss::Session);
        if !is_held && !planted::is(Bug::LapsedGrantKept) {
            // the ticket may have been granted, with a lease that outlasts the session
            self.doubt = Doubt::Acquire;
        }
        true
    }
}
