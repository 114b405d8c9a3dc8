// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations on a lock, and their results.

use super::View;
use crate::clock::Lease;
use crate::wire::message::Mode;
use crate::wire::status::Status;

/// An operation on a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Take the lock now or not at all. Fair locks: take a ticket, or look whether the ticket that
    /// the client has is at its turn.
    TryLock {
        /// The mode wanted.
        mode: Mode,
        /// The lease; [`Lease::NONE`]: only return the cached state.
        lease: Lease,
    },
    /// Take the lock; if need be, wait for it at the arbiter.
    Lock {
        /// The mode wanted.
        mode: Mode,
        /// The lease; [`Lease::NONE`]: only return the cached state.
        lease: Lease,
    },
    /// Release the lock, or give the ticket up.
    Unlock,
    /// Move the end of the lease; with [`Lease::NONE`]: ask whether the client still holds the
    /// lock.
    Extend {
        /// The mode in which the client holds the lock.
        mode: Mode,
        /// The new lease; it begins now.
        lease: Lease,
    },
    /// Make the client's exclusive hold a share, without a moment at which it has neither. A share
    /// stays one.
    Downgrade,
}

impl Op {
    /// Whether the operation asks for a lock; the others end a hold or move its deadline.
    #[inline]
    pub(super) fn is_acquire(self) -> bool {
        matches!(self, Op::TryLock { .. } | Op::Lock { .. })
    }

    /// Whether the operation asks for a share of the lock.
    #[inline(always)]
    pub(super) fn is_shared(self) -> bool {
        let mode = Mode::Shared;
        matches!(self, Op::TryLock { mode: m, .. } | Op::Lock { mode: m, .. } if m == mode)
    }

    pub(crate) fn lease(self) -> Lease {
        match self {
            Op::TryLock { lease, .. } | Op::Lock { lease, .. } | Op::Extend { lease, .. } => lease,
            Op::Unlock | Op::Downgrade => Lease::NONE,
        }
    }
}

/// The result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpResult {
    /// The status that the caller gets.
    pub status: Status,
    /// The lock's public state; `None`: the operation writes no state to the caller's result.
    pub view: Option<View>,
}

impl OpResult {
    /// A status without a state.
    pub fn of(status: Status) -> Self {
        Self { status, view: None }
    }
}
