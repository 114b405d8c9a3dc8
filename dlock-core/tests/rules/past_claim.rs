// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lease that was claimed at a successor, and confirmed there, ends when it would have ended
//! without the failover: the successor's deadline for it, which is in whole ticks, comes later.

use crate::common::entry::{entry, executed};
use dlock_core::clock::{Deadline, Lease, Now, ServerTime, NS};
use dlock_core::ids::Epoch;
use dlock_core::lock::{LockEntry, Op};
use dlock_core::memory::words::AtomicWord;
use dlock_core::operation::{Bounds, Effect, Operation, Started};
use dlock_core::token::Token;
use dlock_core::wire::message::{LockType, Mode, Reply, Request};
use dlock_core::wire::status::Status;

const X: Mode = Mode::Exclusive;
const TRY: Op = Op::TryLock { mode: X, lease: Lease::secs(5) };
const QUERY: Op = Op::Extend { mode: X, lease: Lease::NONE };
const EXTEND: Op = Op::Extend { mode: X, lease: Lease::secs(5) };
const LEASED: [LockType; 2] = [LockType::Atomic, LockType::Fair];
/// The deadline of the lease by the successor's clock; the lease ends in the middle of this tick.
const DEADLINE: Deadline = Deadline(9_004 * 16 + 5);

/// The time by the predecessor's clock, `ms` milliseconds after the lock was taken.
fn before(ms: u64) -> Now {
    Now::within(ServerTime(1_000 * NS + ms * NS / 1_000), 3)
}

/// The moment of [`before`] by the successor's clock.
fn after(ms: u64) -> Now {
    let local_ns = before(ms).local_ns;
    Now { local_ns, ..Now::within(ServerTime(8_999_300_000_000 + ms * NS / 1_000), 3) }
}

/// The lock word of a hold with this deadline.
fn word(lock_type: LockType, deadline: Deadline) -> u64 {
    match lock_type {
        LockType::Atomic => AtomicWord::new().with_client(7).with_timeout(deadline).into_bits(),
        _ => 0, // of a fair lock, the turn word
    }
}

/// Carries the operation out, and returns its status. Chains find `old`; the successor says that
/// the hold lasts until `deadline`.
fn run(e: &mut LockEntry, op: Op, now: Now, (old, deadline): (u64, Deadline)) -> Status {
    let mut operation = match Operation::begin(e, op, now, Bounds::since(now.local_ns)) {
        Started::Running(operation) => operation,
        Started::Done(result) => return result.status,
    };
    loop {
        match operation.next(e) {
            Effect::Post { chain, .. } => operation.outcome(e, executed(&chain, old), now),
            Effect::Ask { request: Request::Confirm { .. } | Request::Extend { .. }, .. } => {
                let word = word(e.lock_type(), deadline);
                let granted = Reply::Granted {
                    word,
                    deadline,
                    at: now.time,
                    ticket: None,
                    token: Token::NONE,
                };
                operation.reply(e, Ok(granted), now);
            }
            Effect::Ask { .. } => operation.reply(e, Ok(Reply::Done { word: 0 }), now),
            Effect::ReadClock => operation.clock(now),
            Effect::Done(result) => return result.status,
            _ => {}
        }
    }
}

/// A lock that is held until 5.0625 s after it was taken, and was claimed after 1 s.
fn claimed(lock_type: LockType) -> LockEntry {
    let mut e = entry(lock_type);
    assert_eq!(run(&mut e, TRY, before(0), (0, Deadline::NONE)), Status::Success);
    e.is_claimed(Epoch(1), before(1_000), after(1_000));
    assert_eq!(e.deadline(), DEADLINE);
    e
}

/// The status of a query that finds the hold as the successor has it, until `DEADLINE`.
fn query(e: &mut LockEntry, ms: u64) -> Status {
    let old = word(e.lock_type(), DEADLINE);
    run(e, QUERY, after(ms), (old, DEADLINE))
}

#[test]
fn a_lease_that_was_claimed_is_not_revived_by_asking_whether_it_runs() {
    for lock_type in LEASED {
        let mut e = claimed(lock_type);
        for ms in [2_000, 4_000, 5_050] {
            assert_eq!(query(&mut e, ms), Status::Success, "{lock_type:?} after {ms} ms");
        }
        assert_eq!(query(&mut e, 5_070), Status::Fail, "{lock_type:?}: it is over");
        assert_eq!(e.refs(), 0);
    }
}

/// The word, or the arbiter, says that the lock is still held, and until when; the client's own
/// clock says that the claimed lease is over.
#[test]
fn a_lease_that_was_claimed_is_not_revived_by_another_clock() {
    for lock_type in LEASED {
        let mut e = claimed(lock_type);
        let corrected = |ms| Now { discontinuities: 1, ..after(ms) };
        let old = (word(lock_type, DEADLINE), DEADLINE);
        assert_eq!(query(&mut e, 2_000), Status::Success);
        assert_eq!(run(&mut e, QUERY, corrected(3_000), old), Status::Success);
        assert_eq!(run(&mut e, QUERY, corrected(5_070), old), Status::Fail, "{lock_type:?}");
    }
}

#[test]
fn a_lease_that_was_claimed_and_extended_lasts_as_long_as_was_asked_for() {
    for lock_type in LEASED {
        let mut e = claimed(lock_type);
        assert_eq!(query(&mut e, 2_000), Status::Success);
        // of a fair lock the arbiter tells the deadline
        let old = (word(lock_type, DEADLINE), Deadline(DEADLINE.0 + 144));
        assert_eq!(run(&mut e, EXTEND, after(3_000), old), Status::Success);
        let deadline = e.deadline();
        assert!(deadline > DEADLINE);
        let old = (word(lock_type, deadline), deadline);
        assert_eq!(run(&mut e, QUERY, after(5_070), old), Status::Success, "{lock_type:?}");
        // the same with an extend that moves no deadline
        let mut e = claimed(lock_type);
        let short = Op::Extend { mode: X, lease: Lease::secs(3) };
        let old = (word(lock_type, DEADLINE), DEADLINE);
        assert_eq!(run(&mut e, short, after(2_000), old), Status::Success);
        assert_eq!(e.deadline(), DEADLINE);
        assert_eq!(query(&mut e, 5_070), Status::Success, "{lock_type:?}");
    }
}
