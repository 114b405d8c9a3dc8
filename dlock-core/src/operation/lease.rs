// SPDX-License-Identifier: MIT OR Apache-2.0
//! The invariant *success means a running lease*, and the one place where it is asserted.
//!
//! ```text
//!   posted ──── answer ──── clock read ──── told            deadline + 1 tick
//!     └─ the lease counts from here   └─ now + ε must lie before ──┘
//! ```
//! A holder gives up ε early: its lease runs as long as the true time cannot have reached the end
//! of the tick that the deadline names. A hold without a lease (of a read-write lock, or for
//! ever) runs until the session's horizon: the primary may end it then.
//!
//! A server clock that turns out to have been wrong (`Now::discontinuities` changes) ends the
//! belief in every lease that was judged by it: another client may have judged the deadline by the
//! same wrong clock, and taken the lock over. The next operation on such a hold asks: an atomic
//! lock's by its compare-and-swap, a fair lock's by a request to the arbiter.

use crate::clock::{Deadline, Lease, Now};
use crate::lock::{EntryState, LockEntry, Op, OpResult};
use crate::planted::{self, Bug};
use crate::wire::status::Status;

/// Whether this result says that the caller holds the lock, and it does.
#[inline(always)]
pub(super) fn is_grant(entry: &LockEntry, op: Op, result: &OpResult) -> bool {
    says_held(op, result) && is_held(entry)
}

/// Whether this result says that the caller holds the lock.
#[inline(always)]
pub(super) fn says_held(op: Op, result: &OpResult) -> bool {
    match (op, result.status) {
        (Op::TryLock { lease: Lease::NONE, .. } | Op::Lock { lease: Lease::NONE, .. }, _) => false,
        (Op::Unlock, _) => false, // partial releases say `AlreadyLocked`
        (_, Status::Success | Status::AlreadyLocked) => true,
        _ => false,
    }
}

/// Whether the caller held the lock before this operation, which has made it no shorter.
pub(super) fn was_held(entry: &LockEntry, op: Op) -> bool {
    (matches!(op, Op::Extend { .. }) || entry.refs() > 1) && !planted::is(Bug::ReentryUndone)
}

/// Whether the entry is held.
#[inline(always)]
pub(super) fn is_held(entry: &LockEntry) -> bool {
    matches!(entry.state(), EntryState::ExclusiveLocked | EntryState::SharedLocked)
}

/// Whether the lease of this entry's hold still runs for sure; of a hold without one, whether the
/// session's horizon has not passed.
#[inline(always)]
pub fn runs(entry: &LockEntry, now: Now) -> bool {
    match entry.deadline() {
        // there may be no server clock at all while a new session has not taken the lock over
        Deadline::NEVER => !now.is_past_horizon(),
        deadline => {
            let is_over = now.maybe_expired(deadline) || entry.is_past_claim(now);
            !is_over && !entry.is_of_another_clock(now)
        }
    }
}

/// Whether this result would say success for a lease that may be over.
#[inline]
pub(super) fn is_over(entry: &LockEntry, op: Op, result: &OpResult, now: Now) -> bool {
    is_grant(entry, op, result) && !runs(entry, now) && !planted::is(Bug::LateSuccess)
}

/// The result as the caller is told it.
///
/// # Panics
/// If it says success for a lease that may be over: the caller would rely on a lock that is
/// another's.
#[inline(always)]
pub(super) fn told(entry: &LockEntry, op: Op, result: OpResult, now: Now) -> OpResult {
    let is_late = is_grant(entry, op, &result) && !runs(entry, now);
    assert!(!is_late || planted::is(Bug::LateSuccess), "success means a running lease");
    result
}

/// Whether a hold may still be told when the client's own clock says `local_ns`: its result was
/// decided earlier, at the reading `read`, and its program asks only now (a future that was not
/// polled). `deadline`: of its lease, if it has one.
pub fn may_be_told(deadline: Option<Deadline>, read: Now, local_ns: u64) -> bool {
    let later = read.at_local(local_ns);
    let is_over = |deadline: Deadline| !deadline.is_never() && later.maybe_expired(deadline);
    let runs = !deadline.is_some_and(is_over) && !later.is_past_horizon();
    runs || planted::is(Bug::LateSuccess)
}
