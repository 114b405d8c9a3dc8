// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lock cache, client side: a lock that the client keeps after its release.
//!
//! ```text
//!   held ─ Unlock: Keep ─ Granted ─▶ idle ─ Lock, TryLock ─▶ in use      (no message)
//!                                     ▲  ◀────── Unlock ────────┘        (no message)
//!   Contended:  idle ─▶ given back (Resolve)      in use ─▶ wanted ─ Unlock ─▶ released
//! ```
//! At the primary a kept lock is a hold like any other. Only the client knows that its program has
//! released it: then the entry says that the lock is held and has no references (`refs`), and the
//! functions for the program say that it is not held. So claims, ledger and leases are those of a
//! hold.
//!
//! * The client serves an acquire only while its hold surely lasts, for the whole lease that the
//!   program asks for, and while it has not heard that others want the lock.
//! * The client asks once by [`Request::Listen`] whether others want what it keeps. The question
//!   belongs to the channel. So a new channel, a new session and a failover end the keeping.
//! * A lock that others want is not kept again for a while ([`KEEP_AGAIN_NS`]), and for longer each
//!   time that the client gives it back unused.

use super::machine::Phase;
use super::{atomic, fair, rw, Doubt, EntryState, LockEntry, Machine, Op, OpResult, Step, View};
use crate::clock::{Deadline, Lease, Now, ServerTime};
use crate::limits::{KEEP_AGAIN_DOUBLED_MAX, KEEP_AGAIN_NS};
use crate::memory::words::AtomicWord;
use crate::planted::{self, Bug};
use crate::wire::message::{LockType, Mode, Reply, Request};
use crate::wire::status::Status;

/// What the client has of a lock beyond the holds of its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Cache {
    /// From when on an operation has to look at the other fields, on the client's own clock; 0:
    /// always; `u64::MAX`: never, because the lock is not cached.
    from_ns: u64,
    /// From when on a release may keep the lock.
    again_ns: u64,
    is_on: bool,
    kept: Kept,
    /// How many acquires were served since the client has kept the lock.
    hits: u64,
    /// How often in a row the client gave the lock back unused.
    unused: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kept {
    No,
    Yes,
    /// Others want the lock: its next release gives it back.
    Wanted,
}

impl Cache {
    pub(super) const OFF: Self =
        Self { from_ns: u64::MAX, again_ns: 0, is_on: false, kept: Kept::No, hits: 0, unused: 0 };

    /// Whether the lock is not kept, and this is no time to keep it.
    #[inline(always)]
    pub(super) fn is_out(&self, now: &Now) -> bool {
        now.local_ns < self.from_ns
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    fn rests(&mut self) {
        self.kept = Kept::No;
        self.from_ns = if self.is_on { self.again_ns } else { u64::MAX };
    }
}

/// What the client does now that others want what it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Nothing: the client does not keep the lock any more.
    No,
    /// Its program does not use the lock. The client gives it back: the caller carries out
    /// [`Operation::undo`](crate::operation::Operation::undo).
    GiveBack,
    /// Its program uses the lock: the caller sends this request, and waits for no answer.
    InUse(Request),
}

impl LockEntry {
    /// Says whether the client keeps the lock after its release, until others want it.
    pub fn caches(&mut self, does: bool) {
        self.kept.is_on = does;
        match self.kept.kept {
            Kept::No => self.kept.rests(),
            Kept::Yes | Kept::Wanted => {}
        }
    }

    /// Whether the client keeps the lock, in use or not.
    pub fn is_kept(&self) -> bool {
        self.kept.kept != Kept::No
    }

    /// Whether the client keeps the lock without using it.
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        self.refs == 0 && self.state.is_held()
    }

    /// How many acquires the client has served since it keeps the lock.
    pub fn hits(&self) -> u64 {
        self.kept.hits
    }

    /// The request with which the client asks whether others want what it keeps; `None`: it keeps
    /// nothing, or knows that they do.
    pub fn asks_for_others(&self) -> Option<Request> {
        let until = ServerTime(0);
        (self.kept.kept == Kept::Yes).then_some(Request::Listen {
            handle: self.handle,
            knows: false,
            until,
        })
    }

    /// Handles that others want what the client keeps, or that it cannot learn whether they do.
    pub fn is_wanted(&mut self, now: Now) -> Wanted {
        if self.kept.kept != Kept::Yes || planted::is(Bug::WantedIgnored) {
            return Wanted::No;
        }
        let Cache { hits, unused, .. } = &mut self.kept;
        *unused = if *hits > 0 { 0 } else { KEEP_AGAIN_DOUBLED_MAX.min(*unused + 1) };
        let pause_ns = KEEP_AGAIN_NS << *unused;
        self.kept.again_ns = now.local_ns.saturating_add(pause_ns);
        self.kept.kept = Kept::Wanted;
        if self.is_idle() {
            self.leaves_cache();
            return Wanted::GiveBack;
        }
        let (handle, until) = (self.handle, ServerTime(0));
        Wanted::InUse(Request::Listen { handle, knows: true, until })
    }

    /// The client keeps the lock no longer: a hold that no program uses is undone before the next
    /// operation, and a hold in use is one like any other.
    pub fn leaves_cache(&mut self) {
        if self.is_idle() && !planted::is(Bug::IdleForgotten) {
            self.end(EntryState::Unlocked);
            self.doubt = Doubt::Acquire;
        }
        self.kept.rests();
    }

    /// The results of operations on a kept lock that need no primary. An acquire that the client
    /// cannot serve gives the lock back first.
    pub(super) fn served(&mut self, op: Op, now: Now) -> Option<OpResult> {
        match op {
            Op::TryLock { lease, .. } | Op::Lock { lease, .. }
                if self.refs > 0 || lease.is_none() =>
            {
                None
            }
            Op::TryLock { mode, lease } | Op::Lock { mode, lease } => {
                if self.serves(mode, lease, now) {
                    return Some(self.enters(mode, now));
                }
                self.leaves_cache();
                None
            }
            Op::Unlock if self.refs == 0 => Some(OpResult::of(Status::AlreadyUnlocked)),
            Op::Unlock if self.refs == 1 && self.may_rest(now) => Some(self.rests()),
            Op::Extend { .. } | Op::Downgrade if self.refs == 0 => {
                Some(OpResult::of(Status::Invalid))
            }
            Op::Downgrade => {
                self.leaves_cache(); // the share is kept no longer
                None
            }
            Op::Unlock | Op::Extend { .. } => None,
        }
    }

    /// Whether the client holds the lock in this mode for the whole lease.
    fn serves(&self, mode: Mode, lease: Lease, now: Now) -> bool {
        let is_of_mode = match mode {
            Mode::Exclusive => self.state == EntryState::ExclusiveLocked,
            Mode::Shared => self.state == EntryState::SharedLocked,
        };
        let covers = now.deadline(lease) <= self.deadline() || planted::is(Bug::CacheOutlivesLease);
        is_of_mode && covers && self.may_rest(now)
    }

    /// Whether the hold surely lasts, and others do not want it.
    fn may_rest(&self, now: Now) -> bool {
        let is_sure = self.surely_has(now) && !self.maybe_over(now);
        let is_sure = is_sure || planted::is(Bug::ServedUnsure);
        self.kept.kept == Kept::Yes && self.doubt == Doubt::None && is_sure
    }

    /// The program acquires what the client keeps.
    fn enters(&mut self, mode: Mode, now: Now) -> OpResult {
        self.kept.hits += 1;
        let view = match self.lock_type {
            LockType::Atomic => atomic::view(self),
            LockType::Rw => rw::view_of_kept(self, mode, now),
            LockType::Fair => fair::view_of_kept(self, mode),
        };
        self.grant(mode, view)
    }

    /// The program releases the lock, and the client keeps it.
    fn rests(&mut self) -> OpResult {
        self.refs = 0;
        self.renewal_ends();
        let view = View::zero(self.lock_type);
        self.cache = view;
        OpResult { status: Status::Success, view: Some(view) }
    }

    /// Whether the client keeps the lock after this release, if no other client wants it. An
    /// exclusive hold with a token is not kept: each hold has a token of its own.
    fn may_keep(&self, now: Now) -> bool {
        let is_bounded = !self.deadline().is_never() || now.horizon_ns != u64::MAX;
        let is_counted = self.desc.tokens && self.state == EntryState::ExclusiveLocked;
        let is_one = self.refs == 1 && self.kept.kept == Kept::No && self.doubt == Doubt::None;
        let is_time = self.kept.is_on && now.local_ns >= self.kept.again_ns;
        is_one
            && is_time
            && is_bounded
            && (!is_counted || planted::is(Bug::TokenKept))
            && !self.lease.may_be_endless
            && self.surely_has(now)
    }

    /// The lease for which the client asks: twice as long as the hold's, so that acquires with such
    /// a lease are served for as long.
    fn kept_lease(&self, now: Now) -> Lease {
        if self.deadline().is_never() {
            return Lease::ENDLESS;
        }
        let held_ns = now.local_ns.saturating_sub(self.lease.since_ns);
        let left_ns = self.runs_until_ns(now).saturating_sub(now.local_ns);
        Lease::at_least_ns(left_ns.saturating_add(held_ns).saturating_mul(2))
    }

    /// The arbiter lets the client keep the lock.
    fn has_kept(&mut self, word: u64, deadline: Deadline, now: Now) -> OpResult {
        let deadline = match self.lock_type {
            LockType::Atomic => AtomicWord::from_bits(word).timeout(),
            LockType::Rw | LockType::Fair => deadline,
        };
        match self.lock_type {
            LockType::Atomic | LockType::Rw => self.word = word,
            LockType::Fair => fair::sees_turn(self, word),
        }
        self.is_judged_by(&now);
        self.lasts_until(deadline);
        (self.kept.kept, self.kept.from_ns, self.kept.hits) = (Kept::Yes, 0, 0);
        self.rests()
    }

    /// The hold is over: the client keeps nothing.
    #[inline(always)]
    pub(super) fn keeps_nothing(&mut self) {
        if self.kept.kept != Kept::No {
            self.kept.rests();
        }
    }
}

/// Begins a release that may keep the lock; `None`: the client does not keep it.
pub(super) fn start(m: &mut Machine, e: &mut LockEntry, now: Now) -> Option<Step> {
    if e.kept.is_out(&now) || !e.may_keep(now) {
        return None;
    }
    let mode = match e.state {
        EntryState::SharedLocked => Mode::Shared,
        _ => Mode::Exclusive,
    };
    let ticket = (e.lock_type == LockType::Fair).then_some(e.fair.ticket);
    m.phase = Phase::Keeping;
    let (handle, lease) = (e.handle, e.kept_lease(now));
    Some(Step::Request(Request::Keep { handle, mode, ticket, lease }))
}

/// Handles the answer to [`Request::Keep`], if it is not that to a release.
pub(super) fn reply(m: &mut Machine, e: &mut LockEntry, reply: Reply, now: Now) -> Option<Step> {
    match (m.op, reply) {
        (Op::Unlock, Reply::Granted { word, deadline, .. }) => {
            Some(Step::Done(e.has_kept(word, deadline, now)))
        }
        (Op::Unlock, Reply::Done { .. }) => {
            // others want the lock: like a kept lock that was not used
            e.kept.again_ns = now.local_ns.saturating_add(KEEP_AGAIN_NS);
            e.kept.from_ns = e.kept.again_ns;
            None
        }
        _ => None,
    }
}
