// SPDX-License-Identifier: MIT OR Apache-2.0
//! A call up to its first word operation or chain, which decides most of them.
//!
//! ```text
//!   perform ─▶ fast: one word operation, at most twice ─▶ result
//!           ├▶ at_once: First, one chain ─▶ result
//!           └▶ Operation: execute::carry_out
//! ```

use dlock_core::clock::Now;
use dlock_core::lock::{FastCas, Op, OpResult, Step};
use dlock_core::memory::exec::Single;
use dlock_core::memory::word_op::Outcome;
use dlock_core::operation::{Bounds, First, Follows, Operation, Started};
use dlock_core::wire::status::Status;

use crate::backoff::before_second_try;
use crate::execute::{carry_out, Limit, CLOCK_WAIT, DATA_WAIT_NS};
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
        return perform_remotely(lock_slot, guard, op, limit);
    }
    let now = held.clock(op);
    let Some(cas) = held.entry.fast(op, now) else {
        let bounds = limit.bounds(now.local_ns);
        return at_once(lock_slot, guard, op, now, bounds);
    };
    let until_ns = now.local_ns + DATA_WAIT_NS;
    let single = held.exec.execute_one(&cas.word_op(), until_ns);
    if let Some(result) = decided(held, cas, single, now) {
        return result;
    }
    let bounds = limit.bounds(now.local_ns);
    interfered(lock_slot, guard, op, now, bounds, Tried { cas, single, until_ns })
}

/// The same where the clock may have to be asked for, and a chain is waited for: a call that has
/// no time left does not begin.
#[inline(never)]
fn perform_remotely(
    lock_slot: &LockSlot,
    guard: &mut LockSlotGuard<'_>,
    op: Op,
    limit: &Limit,
) -> OpResult {
    let Some(held) = guard.as_mut() else { return OpResult::of(Status::LockNotGet) };
    let (left, is_by_itself) = (limit.left(), held.entry.needs_no_server_clock(op));
    let may_ask = is_by_itself || left >= CLOCK_WAIT || held.exec.is_clock_ready();
    if left.is_zero() || !may_ask {
        return OpResult::of(Status::BadResponse); // the clock is not waited for either
    }
    let (came_ns, now) = match is_by_itself {
        true => (None, held.clock(op)),
        false => {
            let (came_ns, now) = held.exec.now_since();
            let now = held.within_horizon(now);
            held.last_now = now;
            (Some(came_ns), now)
        }
    };
    let bounds = limit.bounds(came_ns.unwrap_or(now.local_ns));
    let Some(cas) = held.entry.fast(op, now) else {
        return at_once(lock_slot, guard, op, now, bounds);
    };
    let until_ns = bounds.chain_until_ns(now.local_ns);
    if until_ns <= now.local_ns {
        return OpResult::of(Status::BadResponse);
    }
    let single = held.exec.execute_one(&cas.word_op(), until_ns);
    match decided(held, cas, single, now) {
        Some(result) => result,
        None => interfered(lock_slot, guard, op, now, bounds, Tried { cas, single, until_ns }),
    }
}

/// A first word operation, what it came to, and until when it was waited for.
struct Tried {
    cas: FastCas,
    single: Single,
    until_ns: u64,
}

/// What a word operation has decided: nothing, if the word was not as expected.
#[inline]
fn decided(held: &mut ClientLock, cas: FastCas, single: Single, begun: Now) -> Option<OpResult> {
    if single != Single::Done(cas.expect) {
        return None;
    }
    let ClientLock { entry, exec, pulse, .. } = held;
    let begun = Now { horizon_ns: pulse.horizon_ns(), ..begun }; // as it is by now
    entry.fast_end(cas, begun, || exec.local_coarse_ns(begun.local_ns))
}

/// The first word operation once more, if another held the lock.
#[inline]
fn fast_again(
    held: &ClientLock,
    op: Op,
    cas: FastCas,
    single: Single,
    begun: Now,
) -> Option<FastCas> {
    match single {
        Single::Done(found) if found != cas.expect && matches!(op, Op::Lock { .. }) => {
            if held.is_local {
                before_second_try();
            }
            let now =
                held.within_horizon(begun).at_local(held.exec.local_coarse_ns(begun.local_ns));
            held.entry.fast_again(op, cas, found, now)
        }
        _ => None,
    }
}

/// The first word operation did not decide the call: executes it once more if another held the
/// lock, and goes on from there. `begun` is from before it was executed, since leases count from
/// there.
#[cold]
#[inline(never)]
fn interfered(
    lock_slot: &LockSlot,
    guard: &mut LockSlotGuard<'_>,
    op: Op,
    begun: Now,
    bounds: Bounds,
    Tried { cas, mut single, until_ns }: Tried,
) -> OpResult {
    let Some(held) = guard.as_mut() else { return OpResult::of(Status::LockNotGet) };
    if let Some(again) = fast_again(held, op, cas, single, begun) {
        single = held.exec.execute_one(&again.word_op(), until_ns);
        if let Some(result) = decided(held, cas, single, begun) {
            return result;
        }
    }
    let outcome = Outcome::from(single);
    let now = match outcome {
        Outcome::Unknown => held.clock_unanswered(),
        _ => held.now(),
    };
    let started = Operation::after_fast(&mut held.entry, op, outcome, begun, now, bounds);
    carry_out(lock_slot, guard, started)
}

/// Most operations are decided by their first chain.
#[inline(never)]
fn at_once(
    lock_slot: &LockSlot,
    guard: &mut LockSlotGuard<'_>,
    op: Op,
    mut now: Now,
    bounds: Bounds,
) -> OpResult {
    let Some(held) = guard.as_mut() else { return OpResult::of(Status::LockNotGet) };
    if !held.entry.is_settled() || held.unfounded(op).is_some() {
        return slowly(lock_slot, guard, op, now, bounds);
    }
    if let Some(result) = First::decided(&mut held.entry, op, now, bounds) {
        return result;
    }
    let mut first = First::new(&held.entry, op, now, bounds, held.is_local);
    let step = first.step(&mut held.entry, now);
    let chain = match &step {
        Step::Chain(chain) if !held.entry.has_ledger_write() => chain,
        _ => return carry_out(lock_slot, guard, Started::Running(first.run(step, now))),
    };
    let until_ns = bounds.chain_until_ns(now.local_ns);
    let outcome = held.execute(chain, until_ns);
    now = match outcome {
        Outcome::Unknown => held.clock_unanswered(),
        _ => held.clock_after(first.needs_clock(&held.entry, now)),
    };
    let mut follows = first.outcome(&mut held.entry, outcome, now);
    while let Follows::Write(write) = follows {
        held.exec.write_ledger(held.entry.handle(), write);
        now = held.clock_after(first.needs_clock(&held.entry, now));
        follows = first.written(&mut held.entry, now);
    }
    match follows {
        Follows::Running(operation) => carry_out(lock_slot, guard, Started::Running(operation)),
        Follows::Done(result) => result,
        Follows::Write(_) => unreachable!("it was written"),
    }
}

/// The general case.
#[inline(never)]
fn slowly(
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
    let started = Operation::begin(&mut held.entry, op, now, bounds);
    carry_out(lock_slot, guard, started)
}
