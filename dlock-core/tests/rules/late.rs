// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fair ticket whose note is published late, or by a client that knows the time badly.

use dlock_core::clock::{Now, ServerTime, NS};
use dlock_core::lock::{Begin, LockEntry, Machine, Op, Step};
use dlock_core::message::{LockType, Mode, Reply, Request};
use dlock_core::status::Status;
use dlock_core::word_op::{Outcome, Values};
use dlock_core::words::{FairWord, LedgerState};

use crate::common::entry::{entry, old_word};

// a shorter lease is claimed by the intent, and its note not waited for
const TRY: Op = Op::TryLock { mode: Mode::Exclusive, expire_s: 61 };
const LOCK: Op = Op::Lock { mode: Mode::Exclusive, expire_s: 61 };

/// Takes the first ticket of a free lock, and publishes it at once.
fn ticket(entry: &mut LockEntry, op: Op, now: Now) -> Machine {
    let Begin::Run(mut machine, Step::Chain(_)) = entry.begin(op, now) else { panic!() };
    assert_eq!(machine.outcome(entry, old_word(0), now), Step::Confirm);
    machine
}

fn status(step: Step) -> Status {
    match step {
        Step::Done(result) => result.status,
        other => panic!("{other:?}"),
    }
}

/// A busy machine may have made the only exchange that told the time take seconds.
#[test]
fn who_knows_the_time_badly_publishes_in_time_all_the_same() {
    for op in [TRY, LOCK] {
        let mut entry = entry(LockType::Fair);
        let rough = |ns| Now::within(ServerTime(1_000 * NS + ns), 3 * NS);
        let mut machine = ticket(&mut entry, op, rough(0));
        let published = Outcome::Done(Values::new());
        let step = machine.outcome(&mut entry, published, rough(1_000));
        assert_eq!(status(step), Status::Success);
    }
}

#[test]
fn a_better_estimate_of_the_time_is_no_passing_of_time() {
    let mut entry = entry(LockType::Fair);
    let before = Now::within(ServerTime(1_000 * NS), 9 * NS);
    let mut machine = ticket(&mut entry, TRY, before);
    // the same moment, as it turns out later
    let after = Now { time: ServerTime(1_005 * NS), uncertainty_ns: 5, ..before };
    let step = machine.outcome(&mut entry, Outcome::Done(Values::new()), after);
    assert_eq!(status(step), Status::Success);
}

