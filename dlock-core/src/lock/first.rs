// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first effect of an operation, computed before a [`Machine`](super::Machine) exists. It alone
//! decides most operations.
//!
//! ```text
//!   first_op     one word operation  None ─▶ a Machine does the operation from its beginning
//!   first_chain  several             Some ─▶ the caller executes it
//!                                            ├ found what it expected ─▶ ends: the result
//!                                            └ found something else  ─▶ a Machine goes on
//! ```
//! A `Machine` takes its own first step by the same functions (for atomic locks [`atomic::first`]
//! and [`atomic::ends`]), so both decide alike. The caller builds a `Machine` only if it needs one.

use super::machine::Phase;
use super::{atomic, fair, rw, Doubt, LockEntry, Op, OpResult};
use crate::clock::Now;
use crate::memory::word_op::{Chain, WordOp};
use crate::planted::{self, Bug};
use crate::wire::message::LockType;

/// The first effect of an operation. It decides the operation if no other client interferes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstOp(pub(super) Phase);

impl FirstOp {
    /// Whether the lease that this effect begins surely runs; true if it begins no lease. `begun`,
    /// `now`: the clock before and after the effect.
    #[inline(always)]
    pub(crate) fn runs(&self, begun: &Now, now: &Now) -> bool {
        let Phase::Atomic(at) = self.0 else { return true };
        let Some(deadline) = at.begins_until() else { return true };
        let is_same_clock = begun.discontinuities == now.discontinuities;
        let runs = is_same_clock && !now.maybe_expired(deadline);
        deadline.is_never() || runs || planted::is(Bug::LateSuccess)
    }
}

impl LockEntry {
    /// The first effect of an operation that is about to begin, if that is a single word operation;
    /// `None`: the operation needs a chain, a request or nothing at all.
    #[inline(always)]
    pub fn first_op(&self, op: Op, now: &Now) -> Option<(WordOp, FirstOp)> {
        if self.lock_type == LockType::Fair || !self.fits(op, now) || self.counts(op) {
            return None;
        }
        match self.lock_type {
            _ if op.is_shared() => None,
            LockType::Atomic => {
                let (at, word_op) = atomic::first(op, self, now)?;
                Some((word_op, FirstOp(Phase::Atomic(at))))
            }
            LockType::Rw => {
                let at = rw::first(op, self)?;
                Some((rw::cas(self, at), FirstOp(Phase::Rw(at))))
            }
            LockType::Fair => None,
        }
    }

    /// The first effect of an operation that is about to begin, if that is a
    /// [chain](Self::chain_of); `None`: the operation needs a request or nothing at all.
    #[inline(always)]
    pub fn first_chain(&mut self, op: Op, now: &Now) -> Option<FirstOp> {
        if !self.fits(op, now) {
            return None;
        }
        Some(FirstOp(match self.lock_type {
            LockType::Fair => Phase::Fair(fair::first(op, self, now)?),
            _ => self.first_phase(op, now)?,
        }))
    }

    /// The phase that an operation on an atomic or read-write lock begins with, if its first effect
    /// is a chain.
    #[inline(always)]
    fn first_phase(&mut self, op: Op, now: &Now) -> Option<Phase> {
        match self.lock_type {
            LockType::Rw if self.is_told_after_a_write(op, now) => None,
            LockType::Rw => rw::first_of_chain(op, self).map(Phase::Rw),
            _ if op.is_shared() => None,
            _ => atomic::first(op, self, now).map(|(at, _)| Phase::Atomic(at)),
        }
    }

    /// Whether the client writes a new share into its ledger before its program learns of it, and
    /// judges the session's horizon by the clock as read after that write.
    #[inline(always)]
    fn is_told_after_a_write(&self, op: Op, now: &Now) -> bool {
        op.is_shared() && !self.means.by_primary && now.horizon_ns != u64::MAX
    }

    /// The chain of the operation's [first effect](Self::first_chain).
    #[inline(always)]
    pub fn chain_of(&self, op: Op, FirstOp(phase): FirstOp) -> Chain {
        match phase {
            Phase::Atomic(at) => atomic::chain_of(self, at),
            Phase::Rw(at) => rw::chain_of(self, at),
            _ => fair::first_chain(op, self),
        }
    }

    /// Whether the operation can begin with a first effect: it takes a lock of which the client has
    /// nothing, or ends a hold, and nothing else has to be done before.
    #[inline(always)]
    fn fits(&self, op: Op, now: &Now) -> bool {
        let fits = match op {
            Op::TryLock { lease, .. } | Op::Lock { lease, .. } => {
                self.refs == 0 && !lease.is_none()
            }
            Op::Unlock => self.refs == 1,
            Op::Extend { .. } | Op::Downgrade => false,
        };
        let is_settled = self.doubt == Doubt::None && !self.has_ledger_write();
        fits && is_settled && self.kept.is_out(now) && !now.is_past_horizon()
    }

    /// Whether the operation needs a chain instead of a single word operation: to take a token, or
    /// to count the end of a hold.
    #[inline(always)]
    fn counts(&self, op: Op) -> bool {
        match op {
            Op::Unlock => self.counts_end && self.lock_type == LockType::Rw,
            _ => self.desc.tokens,
        }
    }

    /// The value of the word that decides, from what a chain has found. A token that the chain took
    /// goes to the entry.
    #[inline]
    pub(crate) fn found(&mut self, FirstOp(phase): FirstOp, values: &[u64]) -> Option<u64> {
        match phase {
            Phase::Atomic(at) => atomic::found(self, at, values),
            Phase::Rw(at) => rw::found(self, at, values),
            _ => values.first().copied(),
        }
    }

    /// The result, if the first effect, which found `old`, decides the operation; `None`: the word
    /// was not as expected. `begun`: the clock from before the effect; `now`: as for
    /// [`Machine::outcome`](super::Machine::outcome).
    #[inline(always)]
    pub(crate) fn ends(
        &mut self,
        op: Op,
        first: FirstOp,
        old: u64,
        begun: &Now,
        now: &Now,
    ) -> Option<OpResult> {
        match first.0 {
            Phase::Atomic(at) => atomic::ends(op, self, at, old, (begun, now)),
            Phase::Rw(at) => rw::ends(self, at, old, now),
            _ => None,
        }
    }

    /// Like [`ends`](Self::ends), for an effect that was a chain and found `values`.
    #[inline(always)]
    pub(crate) fn ends_by(
        &mut self,
        op: Op,
        first: FirstOp,
        values: &[u64],
        begun: &Now,
        now: &Now,
    ) -> Option<OpResult> {
        if let Phase::Fair(at) = first.0 {
            return fair::ends(op, self, at, values, (begun, now));
        }
        self.ends_by_chain(op, first, values, begun, now)
    }

    #[inline(always)]
    fn ends_by_chain(
        &mut self,
        op: Op,
        first: FirstOp,
        values: &[u64],
        begun: &Now,
        now: &Now,
    ) -> Option<OpResult> {
        let old = self.found(first, values)?;
        let share = match first.0 {
            Phase::Rw(at) => rw::share_ends(self, at, old, now),
            _ => None,
        };
        share.or_else(|| self.ends(op, first, old, begun, now))
    }
}
