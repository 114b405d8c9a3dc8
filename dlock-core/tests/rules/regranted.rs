// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client tells of a hold that it has got anew after a failover, and what it may note of a
//! hold when its rights are taken away.

use crate::common::entry::{entry, executed};
use dlock_core::clock::{Now, ServerTime, NS};
use dlock_core::ids::Epoch;
use dlock_core::lock::{LockEntry, Op};
use dlock_core::message::{LockType, Mode, Reply};
use dlock_core::operation::{Bounds, Effect, Operation, Started};
use dlock_core::status::Status;

const TRY: Op = Op::TryLock { mode: Mode::Exclusive, expire_s: 600 };
const QUERY: Op = Op::Extend { mode: Mode::Exclusive, expire_s: 0 };

fn at(seconds: u64) -> Now {
    Now::within(ServerTime(seconds * NS), 3)
}

/// Its result; each chain finds a free lock, and the primary answers so.
fn run(e: &mut LockEntry, op: Op, now: Now, reply: Reply) -> Status {
    let mut operation = match Operation::begin(e, op, now, Bounds::since(now.local_ns)) {
        Started::Running(operation) => operation,
        Started::Done(result) => return result.status,
    };
    loop {
        match operation.next(e) {
            Effect::Post { chain, .. } => operation.outcome(e, executed(&chain, 0), now),
            Effect::Ask { .. } => operation.reply(e, Ok(reply), now),
            Effect::ReadClock => operation.clock(now),
            Effect::Done(result) => return result.status,
            _ => {}
        }
    }
}

/// The hold of the first primary was lost at the second, and another one was granted there: a third
/// one ranks the claims to the lock by that.
#[test]
fn a_claim_of_a_new_hold_tells_when_that_one_was_granted() {
    let denied = Reply::Denied { status: Status::Fail, word: 0 };
    for is_told in [false, true] {
        let mut e = entry(LockType::Atomic);
        assert_eq!(run(&mut e, TRY, at(1_000), denied), Status::Success);
        e.is_claimed(Epoch(1), at(1_001), at(1_001));
        if is_told {
            e.lose(); // the claim was refused
        }
        assert_eq!(run(&mut e, QUERY, at(1_002), denied), Status::Fail, "it is lost");
        assert_eq!(run(&mut e, TRY, at(1_003), Reply::Done { word: 0 }), Status::Success);
        let held = e.claim(at(1_004), Epoch(2)).held.expect("it holds the lock");
        assert_eq!((held.epoch, held.deadline_s), (Epoch(2), at(1_003).deadline(600)));
    }
}
