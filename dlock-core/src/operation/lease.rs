// SPDX-License-Identifier: MIT OR Apache-2.0
//! The invariant *success means a running lease*, and the one place where it is asserted.
//!
//! ```text
//!   posted ──── answer ──── clock read ──── result          deadline + 1 tick
//!     └─ the lease counts from here   └─ now + ε must lie before ──┘
//! ```
//! A holder stops relying on its hold ε early, because its clock may be behind by ε: a lease runs
//! as long as the true time cannot have reached the end of the deadline's tick. A hold without a
//! lease (of a read-write lock, or an endless one) runs until the session's horizon, because the
//! primary may end it then.
//!
//! If a server clock turns out to have been wrong (`Now::discontinuities` changes), every lease
//! that was judged by that clock becomes doubtful: another client may have judged the deadline by
//! the same wrong clock, and taken the lock over. The next operation on such a hold asks: of an
//! atomic lock by its compare-and-swap, of a fair lock by a request to the arbiter.

use crate::clock::{Deadline, Lease, Now};
use crate::lock::{EntryState, LockEntry, Op, OpResult};
use crate::planted::{self, Bug};
use crate::wire::status::Status;

/// Whether this result says that the caller holds the lock, and the entry is held.
#[inline(always)]
pub(super) fn is_grant(entry: &LockEntry, op: Op, result: &OpResult) -> bool {
    says_held(op, result) && is_held(entry)
}

/// Whether this result says that the caller holds the lock.
#[inline(always)]
pub(super) fn says_held(op: Op, result: &OpResult) -> bool {
    match (op, result.status) {
        (Op::TryLock { lease: Lease::NONE, .. } | Op::Lock { lease: Lease::NONE, .. }, _) => false,
        (Op::Unlock, _) => false, // partial releases return `AlreadyLocked`
        (_, Status::Success | Status::AlreadyLocked) => true,
        _ => false,
    }
}

/// Whether the caller held the lock before this operation, which at most lengthened the hold.
pub(super) fn was_held(entry: &LockEntry, op: Op) -> bool {
    (matches!(op, Op::Extend { .. } | Op::Downgrade) || entry.refs() > 1)
        && !planted::is(Bug::ReentryUndone)
}

/// Whether the entry is held.
#[inline(always)]
pub(super) fn is_held(entry: &LockEntry) -> bool {
    matches!(entry.state(), EntryState::ExclusiveLocked | EntryState::SharedLocked)
}

/// Whether the lease of this entry's hold surely runs; for a hold without a lease, whether the
/// session's horizon has not passed.
#[inline(always)]
pub fn runs(entry: &LockEntry, now: Now) -> bool {
    match entry.deadline() {
        // a session that has not taken the lock over yet may have no server clock
        Deadline::NEVER => !now.is_past_horizon(),
        deadline => {
            let is_over = now.maybe_expired(deadline) || entry.is_past_claim(now);
            !is_over && !entry.is_of_another_clock(now)
        }
    }
}

/// Whether this result would be success for a lease that may be over.
#[inline]
pub(super) fn is_over(entry: &LockEntry, op: Op, result: &OpResult, now: Now) -> bool {
    is_grant(entry, op, result) && !runs(entry, now) && !planted::is(Bug::LateSuccess)
}

/// Returns the result unchanged, after a last check.
///
/// # Panics
/// If the result is success for a lease that may be over: the caller would rely on a lock that
/// another client may have.
#[inline(always)]
pub(super) fn told(entry: &LockEntry, op: Op, result: OpResult, now: Now) -> OpResult {
    let is_late = is_grant(entry, op, &result) && !runs(entry, now);
    assert!(!is_late || planted::is(Bug::LateSuccess), "success means a running lease");
    result
}

/// Whether a program that asks only now may still be given a hold that was granted earlier (its
/// future was not polled in between). True while the lease surely runs; without a lease, before the
/// session's horizon.
///
/// `deadline`: the deadline of the lease; `None`: it has none. `read`: the reading of the server
/// clock at the grant. `local_ns`: the client's own clock now.
pub fn may_be_told(deadline: Option<Deadline>, read: Now, local_ns: u64) -> bool {
    let later = read.at_local(local_ns);
    let is_over = |deadline: Deadline| !deadline.is_never() && later.maybe_expired(deadline);
    let runs = !deadline.is_some_and(is_over) && !later.is_past_horizon();
    runs || planted::is(Bug::LateSuccess)
}
