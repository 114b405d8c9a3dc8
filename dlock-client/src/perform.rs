// SPDX-License-Identifier: MIT OR Apache-2.0
//! A call on a lock up to the outcome of its first effect, which decides most calls.
//!
//! ```text
//!   perform ─▶ first effect: a word operation or a chain ─▶ result
//!                └▶ Operation: execute::carry_out
//! ```
//! The part of a call that may block runs [uncancelled]. A first effect on memory of this host does
//! not block.

use dlock_core::clock::Lease;
use dlock_core::lock::{FirstOp, Op, OpResult};
use dlock_core::memory::exec::Single;
use dlock_core::memory::word_op::Outcome;
use dlock_core::operation::{self, needs_clock, Bounds, Operation, Started};
use dlock_core::wire::message::Mode;
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::boot_ns;
use dlock_fabric::os::threads::uncancelled;

use crate::execute::{bounds_of, carry_out, CLOCK_WAIT_NS, DATA_WAIT_NS};
use crate::table::{ClientLock, LockSlot, LockSlotGuard};

/// A try of a lock. It is a type of its own, so that the code for it is compiled for no other
/// operation.
#[derive(Clone, Copy)]
pub(crate) struct TryLock {
    pub(crate) mode: Mode,
    pub(crate) lease: Lease,
}

/// A release, of a type of its own like [`TryLock`].
#[derive(Clone, Copy)]
pub(crate) struct Unlock;

impl From<TryLock> for Op {
    #[inline(always)]
    fn from(TryLock { mode, lease }: TryLock) -> Self {
        Op::TryLock { mode, lease }
    }
}

impl From<Unlock> for Op {
    #[inline(always)]
    fn from(_: Unlock) -> Self {
        Op::Unlock
    }
}

/// Runs an operation on the lock of this slot. No other operation may be under way on that lock.
#[inline(always)]
pub(crate) fn perform(
    lock_slot: &LockSlot,
    guard: &mut LockSlotGuard<'_>,
    kind: impl Copy + Into<Op>,
    bounds: Option<&Bounds>,
) -> OpResult {
    let op = kind.into();
    let Some(held) = guard.as_mut() else { return OpResult::of(Status::LockNotGet) };
    if !held.is_local {
        return uncancelled(move || perform_remotely(lock_slot, guard, op, bounds));
    }
    held.clock_at_first(op);
    let first = first_effect(held, op, bounds);
    go_on(lock_slot, guard, kind, bounds, first)
}

/// Executes the first effect, and returns the result if it has decided the operation; otherwise the
/// effect and its outcome, or `None` if the first effect is not a single word operation. The caller
/// has read the clock by [`ClientLock::clock_at_first`].
#[inline(always)]
fn first_effect(
    held: &mut ClientLock,
    op: Op,
    bounds: Option<&Bounds>,
) -> Result<OpResult, Option<(FirstOp, Outcome)>> {
    let until_ns = effect_until_ns(bounds, held.last_now.local_ns).ok_or(None)?;
    let (word_op, first) = held.entry.first_op(op, &held.last_now).ok_or(None)?;
    let needs_clock = needs_clock(op, &held.entry, held.last_now);
    let single = held.exec.execute_one(&word_op, until_ns);
    if let Single::Done(old) = single {
        // usually no tick of the clock has passed between the two readings
        if held.is_clock_as_read(needs_clock) {
            let now = &held.last_now;
            if let Some(result) = operation::ended(&mut held.entry, op, first, old, now, now) {
                return Ok(result);
            }
        }
    }
    Err(Some((first, single.into())))
}

/// Until when a first effect that begins now may take; `None`: the call has no time left. A call
/// without bounds begins now.
#[inline(always)]
fn effect_until_ns(bounds: Option<&Bounds>, now_ns: u64) -> Option<u64> {
    match bounds {
        None => Some(now_ns.saturating_add(DATA_WAIT_NS)),
        Some(bounds) => (now_ns < bounds.until_ns).then(|| bounds.chain_until_ns(now_ns)),
    }
}

/// Goes on after [`first_effect`].
#[inline(always)]
fn go_on(
    lock_slot: &LockSlot,
    guard: &mut LockSlotGuard<'_>,
    kind: impl Copy + Into<Op>,
    bounds: Option<&Bounds>,
    first: Result<OpResult, Option<(FirstOp, Outcome)>>,
) -> OpResult {
    match first {
        Ok(result) => result,
        Err(None) => begin_with_more(lock_slot, guard, kind, bounds),
        Err(Some(first)) => begun(lock_slot, guard, kind.into(), bounds, first),
    }
}

/// Goes on after a first effect that did not end the operation, or after which the clock must be
/// read again.
#[inline(never)]
fn begun(
    lock_slot: &LockSlot,
    guard: &mut LockSlotGuard<'_>,
    op: Op,
    bounds: Option<&Bounds>,
    (first, outcome): (FirstOp, Outcome),
) -> OpResult {
    let Some(held) = guard.as_mut() else { return OpResult::of(Status::LockNotGet) };
    let (begun, bounds) = held.clock_begun(op, bounds);
    let mut operation = Operation::after(&held.entry, op, first, begun, bounds);
    held.outcome(&mut operation, outcome);
    uncancelled(|| carry_out(lock_slot, guard, Started::Running(operation)))
}

/// Begins an operation whose first effect is not a single word operation.
#[inline(never)]
fn begin_with_more(
    lock_slot: &LockSlot,
    guard: &mut LockSlotGuard<'_>,
    kind: impl Copy + Into<Op>,
    bounds: Option<&Bounds>,
) -> OpResult {
    let op = kind.into();
    let Some(held) = guard.as_mut() else { return OpResult::of(Status::LockNotGet) };
    if let Some(status) = held.unfounded(op) {
        return OpResult::of(status); // only an operation on a held lock is refused so
    }
    if let Some(until_ns) = effect_until_ns(bounds, held.last_now.local_ns) {
        if let Some(first) = held.entry.first_chain(op, &held.last_now) {
            return begin_with_chain(lock_slot, guard, op, bounds, (first, until_ns));
        }
    }
    begin_operation(lock_slot, guard, op, bounds)
}

/// Begins an operation that has no first effect.
#[inline(never)]
fn begin_operation(
    lock_slot: &LockSlot,
    guard: &mut LockSlotGuard<'_>,
    op: Op,
    bounds: Option<&Bounds>,
) -> OpResult {
    let Some(held) = guard.as_mut() else { return OpResult::of(Status::LockNotGet) };
    let (now, bounds) = held.clock_begun(op, bounds);
    let started = Operation::begin(&mut held.entry, op, now, bounds);
    uncancelled(|| carry_out(lock_slot, guard, started))
}

/// Begins an operation whose first effect is a chain.
#[inline(always)]
fn begin_with_chain(
    lock_slot: &LockSlot,
    guard: &mut LockSlotGuard<'_>,
    op: Op,
    bounds: Option<&Bounds>,
    (first, until_ns): (FirstOp, u64),
) -> OpResult {
    let Some(held) = guard.as_mut() else { return OpResult::of(Status::LockNotGet) };
    let needs_clock = needs_clock(op, &held.entry, held.last_now);
    let mut outcome = Outcome::Unknown;
    held.execute_chain(&held.entry.chain_of(op, first), &mut outcome, until_ns);
    if let Outcome::Done(values) = &outcome {
        if held.is_clock_as_read(needs_clock) {
            let (values, now) = (values.as_slice(), &held.last_now);
            let ended = operation::ended_by(&mut held.entry, op, first, values, now, now);
            if let Some(result) = ended {
                held.write_ledger();
                return result;
            }
        }
    }
    begun(lock_slot, guard, op, bounds, (first, outcome))
}

#[inline(never)]
fn perform_remotely(
    lock_slot: &LockSlot,
    guard: &mut LockSlotGuard<'_>,
    op: Op,
    bounds: Option<&Bounds>,
) -> OpResult {
    let Some(held) = guard.as_mut() else { return OpResult::of(Status::LockNotGet) };
    let Some(bounds) = begins_remotely(held, op, bounds) else {
        return OpResult::of(Status::BadResponse);
    };
    let first = first_effect(held, op, Some(&bounds));
    go_on(lock_slot, guard, op, Some(&bounds), first)
}

/// Reads the clock for an executor that may have to ask the primary for the time and to wait for a
/// chain. Returns the bounds of the call. `None`: the call has no time left, or too little to
/// wait for the clock, and does not begin.
fn begins_remotely(held: &mut ClientLock, op: Op, bounds: Option<&Bounds>) -> Option<Bounds> {
    let left_ns = bounds.map_or(u64::MAX, |bounds| bounds.until_ns.saturating_sub(boot_ns()));
    let is_by_itself = held.entry.needs_no_server_clock(op);
    let may_ask = is_by_itself || left_ns >= CLOCK_WAIT_NS || held.exec.is_clock_ready();
    if left_ns == 0 || !may_ask {
        return None;
    }
    if is_by_itself {
        return Some(bounds_of(bounds, held.clock(op).local_ns));
    }
    let (came_ns, now) = held.exec.now_since();
    held.last_now = held.within_horizon(now);
    Some(bounds_of(bounds, came_ns))
}
