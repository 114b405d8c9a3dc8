// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first effect of an operation, computed before a [`Machine`](super::Machine) exists. It alone
//! decides most operations.
//!
//! ```text
//!   first_op    (atomic, rw)  None ─▶ a Machine does the operation from its beginning
//!   first_turn  (fair)        Some ─▶ the caller executes a compare-and-swap; fair: a chain
//!                                     ├ found what it expected ─▶ ends: the result
//!                                     └ found something else  ─▶ a Machine goes on from there
//! ```
//! A `Machine` takes its own first step by the same functions (for atomic locks [`atomic::first`]
//! and [`atomic::ends`]), so both decide alike. The caller builds a `Machine` only if it needs one.

use super::machine::Phase;
use super::{atomic, fair, rw, Doubt, LockEntry, Op, OpResult};
use crate::clock::Now;
use crate::memory::word_op::{Chain, WordOp};
use crate::planted::{self, Bug};
use crate::wire::message::{LockType, Mode};

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
            LockType::Atomic => {
                let (at, word_op) = atomic::first(op, self, now)?;
                Some((word_op, FirstOp(Phase::Atomic(at))))
            }
            LockType::Rw => {
                let (at, word_op) = rw::first(op, self)?;
                Some((word_op, FirstOp(Phase::Rw(at))))
            }
            LockType::Fair => None,
        }
    }

    /// The first effect of an operation on a fair lock that is about to begin: [a
    /// chain](Self::chain_of).
    #[inline(always)]
    pub fn first_turn(&mut self, op: Op, now: &Now) -> Option<FirstOp> {
        if self.lock_type != LockType::Fair || !self.fits(op, now) {
            return None;
        }
        Some(FirstOp(Phase::Fair(fair::first(op, self, now)?)))
    }

    /// The chain of the operation's [first turn](Self::first_turn).
    #[inline(always)]
    pub fn chain_of(&self, op: Op) -> Chain {
        fair::first_chain(op, self)
    }

    /// Whether the operation can begin with a first effect: it takes a lock of which the client has
    /// nothing, or ends a hold, and nothing else has to be done before.
    #[inline(always)]
    fn fits(&self, op: Op, now: &Now) -> bool {
        let fits = match op {
            Op::TryLock { mode, lease } | Op::Lock { mode, lease } => {
                let is_first = mode == Mode::Exclusive || self.lock_type == LockType::Fair;
                self.refs == 0 && !lease.is_none() && is_first
            }
            Op::Unlock => self.refs == 1,
            Op::Extend { .. } => false,
        };
        let is_settled = self.doubt == Doubt::None && !self.has_ledger_write();
        fits && is_settled && !now.is_past_horizon()
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
        let old = self.found(first, values)?;
        self.ends(op, first, old, begun, now)
    }
}
