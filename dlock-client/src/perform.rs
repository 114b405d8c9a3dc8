// SPDX-License-Identifier: MIT OR Apache-2.0
//! A call up to its first chain, which decides most of them.
//!
//! ```text
//!   perform ─▶ First: one chain, a ledger write ─▶ result
//!                └▶ Operation: execute::carry_out
//! ```
//! A part of a call that may block runs [uncancelled]. A first chain on memory of this host does
//! not block.

use dlock_core::clock::Now;
use dlock_core::lock::{Op, OpResult};
use dlock_core::memory::exec::Single;
use dlock_core::memory::word_op::Outcome;
use dlock_core::operation::{needs_clock, Bounds, First, Follows, Operation, Started};
use dlock_core::wire::status::Status;
use dlock_fabric::os::threads::uncancelled;

use crate::execute::{carry_out, Limit, CLOCK_WAIT};
use crate::table::{ClientLock, LockSlot, LockSlotGuard};

/// Runs `op` on the lock in a slot that no other operation is under way on.
#[inline]
pub(crate) fn perform(
    lock_slot: &LockSlot,
    guard: &mut LockSlotGuard<'_>,
    op: Op,
    limit: &Limit,
) -> OpResult {
    let Some(held) = guard.as_mut() else { return OpResult::of(Status::LockNotGet) };
    if !held.is_local {
        return uncancelled(|| perform_remotely(lock_slot, guard, op, limit));
    }
    let now = held.clock(op);
    begin(lock_slot, guard, op, now, limit.bounds(now.local_ns))
}

#[inline(always)]
fn begin(
    lock_slot: &LockSlot,
    guard: &mut LockSlotGuard<'_>,
    op: Op,
    now: Now,
    bounds: Bounds,
) -> OpResult {
    let Some(held) = guard.as_mut() else { return OpResult::of(Status::LockNotGet) };
    if let Some(status) = held.unfounded(op) {
        return OpResult::of(status);
    }
    let first = held.entry.first_op(op, &now).filter(|_| now.local_ns < bounds.until_ns);
    let Some((word_op, first)) = first else {
        return begin_with_more(lock_slot, guard, op, now, bounds);
    };
    let single = held.exec.execute_one(&word_op, bounds.chain_until_ns(now.local_ns));
    let after = match single {
        Single::Unknown => held.clock_unanswered(),
        _ => held.clock_after(needs_clock(op, &held.entry, now)),
    };
    if let Single::Done(old) = single {
        if let Some(result) = First::ended(&mut held.entry, op, first, old, &now, &after) {
            return result;
        }
    }
    let mut first = First::after(&held.entry, op, first, now, bounds);
    let follows = first.outcome(&mut held.entry, single.into(), after);
    go_on(lock_slot, guard, first, follows)
}

/// What one word operation does not decide.
#[inline(never)]
fn begin_with_more(
    lock_slot: &LockSlot,
    guard: &mut LockSlotGuard<'_>,
    op: Op,
    now: Now,
    bounds: Bounds,
) -> OpResult {
    let Some(held) = guard.as_mut() else { return OpResult::of(Status::LockNotGet) };
    let mut first = First::new(&held.entry, op, now, bounds);
    let follows = match first.begin(&mut held.entry) {
        Follows::Post(chain) => {
            let outcome = held.execute(&chain, first.until_ns());
            let after = match outcome {
                Outcome::Unknown => held.clock_unanswered(),
                _ => held.clock_after(first.needs_clock(&held.entry, now)),
            };
            first.outcome(&mut held.entry, outcome, after)
        }
        follows => follows,
    };
    go_on(lock_slot, guard, first, follows)
}

#[inline(never)]
fn go_on(
    lock_slot: &LockSlot,
    guard: &mut LockSlotGuard<'_>,
    mut first: First,
    follows: Follows,
) -> OpResult {
    let Some(held) = guard.as_mut() else { return OpResult::of(Status::LockNotGet) };
    match held.ends(&mut first, follows) {
        Ok(result) => result,
        Err(operation) => uncancelled(|| carry_out(lock_slot, guard, Started::Running(operation))),
    }
}

impl ClientLock {
    /// The end of an operation after its first chain: its result, or what goes on.
    #[inline]
    #[allow(clippy::result_large_err)] // it is no error, and rare
    pub(crate) fn ends(
        &mut self,
        first: &mut First,
        mut follows: Follows,
    ) -> Result<OpResult, Operation> {
        loop {
            match follows {
                Follows::Done(result) => return Ok(result),
                Follows::Running(operation) => return Err(operation),
                Follows::Write(write) => {
                    self.exec.write_ledger(self.entry.handle(), write);
                    let now = self.clock_after(first.needs_clock(&self.entry, self.last_now));
                    follows = first.written(&mut self.entry, now);
                }
                Follows::Post(_) => unreachable!("a first chain is executed once"),
            }
        }
    }
}

#[inline(never)]
fn perform_remotely(
    lock_slot: &LockSlot,
    guard: &mut LockSlotGuard<'_>,
    op: Op,
    limit: &Limit,
) -> OpResult {
    match guard.as_mut().and_then(|held| begins_remotely(held, op, limit)) {
        Some((now, bounds)) => begin(lock_slot, guard, op, now, bounds),
        None => OpResult::of(Status::BadResponse),
    }
}

/// The clock and the bounds of a call where the clock may have to be asked for, and a chain is
/// waited for. `None`: it has no time left, and does not begin; the clock is not waited for either.
fn begins_remotely(held: &mut ClientLock, op: Op, limit: &Limit) -> Option<(Now, Bounds)> {
    let (left, is_by_itself) = (limit.left(), held.entry.needs_no_server_clock(op));
    let may_ask = is_by_itself || left >= CLOCK_WAIT || held.exec.is_clock_ready();
    if left.is_zero() || !may_ask {
        return None;
    }
    if is_by_itself {
        let now = held.clock(op);
        return Some((now, limit.bounds(now.local_ns)));
    }
    let (came_ns, now) = held.exec.now_since();
    held.last_now = held.within_horizon(now);
    Some((held.last_now, limit.bounds(came_ns)))
}
