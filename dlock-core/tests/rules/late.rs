// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fair lock, and a client whose estimate of the server clock is bad.

use dlock_core::clock::{Lease, Now, ServerTime, NS};
use dlock_core::lock::{Begin, LockEntry, Machine, Op, Step};
use dlock_core::memory::word_op::Chain;
use dlock_core::wire::message::{LockType, Mode};
use dlock_core::wire::status::Status;

use crate::common::entry::{entry, executed};

// the lease is longer than the first claim, which is made before the turn is known
const TRY: Op = Op::TryLock { mode: Mode::Exclusive, lease: Lease::secs(61) };
const LOCK: Op = Op::Lock { mode: Mode::Exclusive, lease: Lease::secs(61) };

/// Takes the first ticket of a free lock; returns the machine, and the chain that writes the claim
/// for the whole lease.
fn ticket(entry: &mut LockEntry, op: Op, now: Now) -> (Machine, Chain) {
    let Begin::Run(mut machine, Step::Chain(chain)) = entry.begin(op, now) else { panic!() };
    match machine.outcome(entry, executed(&chain, 0), now) {
        Step::Chain(chain) => (machine, chain),
        other => panic!("{other:?}"),
    }
}

fn status(step: Step) -> Status {
    match step {
        Step::Done(result) => result.status,
        other => panic!("{other:?}"),
    }
}

/// On a busy machine the only exchange that told the time may have taken seconds.
#[test]
fn who_knows_the_time_badly_claims_in_time_all_the_same() {
    for op in [TRY, LOCK] {
        let mut entry = entry(LockType::Fair);
        let rough = |ns| Now::within(ServerTime(1_000 * NS + ns), 3 * NS);
        let (mut machine, chain) = ticket(&mut entry, op, rough(0));
        let step = machine.outcome(&mut entry, executed(&chain, 0), rough(1_000));
        assert_eq!(status(step), Status::Success);
    }
}

#[test]
fn a_better_estimate_of_the_time_is_no_passing_of_time() {
    let mut entry = entry(LockType::Fair);
    let before = Now::within(ServerTime(1_000 * NS), 9 * NS);
    let (mut machine, chain) = ticket(&mut entry, TRY, before);
    // the same moment by a better estimate, which came later
    let after = Now { time: ServerTime(1_005 * NS), uncertainty_ns: 5, ..before };
    let step = machine.outcome(&mut entry, executed(&chain, 0), after);
    assert_eq!(status(step), Status::Success);
}
