// SPDX-License-Identifier: MIT OR Apache-2.0
//! A release that leaves the lock held says so only while no other client can have the lock.

use dlock_core::clock::{Deadline, Lease, Now, ServerTime, NS, TICK_NS};
use dlock_core::ids::Epoch;
use dlock_core::lock::{LockEntry, Op};
use dlock_core::memory::word_op::Outcome;
use dlock_core::memory::words::AtomicWord;
use dlock_core::operation::{Bounds, Effect, Operation, Started};
use dlock_core::token::Token;
use dlock_core::wire::message::{LockType, Mode, Reply, Request};
use dlock_core::wire::status::Status;

use crate::common::entry::{entry, executed};

const X: Mode = Mode::Exclusive;
const TRY: Op = Op::TryLock { mode: X, lease: Lease::secs(5) };
const TYPES: [LockType; 3] = [LockType::Atomic, LockType::Rw, LockType::Fair];
/// The lease of a hold that was taken at [`taken`] runs through the whole second of its deadline.
const END_NS: u64 = 1_005 * NS + TICK_NS;
const EPSILON_NS: u64 = 3;

fn at(ns: u64) -> Now {
    Now::within(ServerTime(ns), EPSILON_NS)
}

fn taken() -> Now {
    at(1_000 * NS)
}

/// The lock word while this client holds the lock.
fn mine(lock_type: LockType) -> u64 {
    match lock_type {
        LockType::Atomic => {
            AtomicWord::new().with_client(7).with_timeout(Deadline::at_s(1_005)).into_bits()
        }
        _ => 0, // of a fair lock, the turn word
    }
}

/// What the client's question finds: a lock word, or no answer.
#[derive(Clone, Copy)]
enum Says {
    Word(u64),
    Nothing,
}

/// Carries the operation out. Returns its status, and whether it asked the memory or the primary.
fn run(e: &mut LockEntry, op: Op, now: Now, says: Says) -> (Status, bool) {
    let mut operation = match Operation::begin(e, op, now, Bounds::since(now.local_ns)) {
        Started::Running(operation) => operation,
        Started::Done(result) => return (result.status, false),
    };
    let mut has_asked = false;
    loop {
        match operation.next(e) {
            Effect::Post { chain, .. } => {
                has_asked = true;
                let outcome = match says {
                    Says::Word(old) => executed(&chain, old),
                    Says::Nothing => Outcome::Unknown,
                };
                operation.outcome(e, outcome, now);
            }
            Effect::Ask { request, .. } => {
                has_asked = true;
                let is_known = matches!(request, Request::Confirm { .. } | Request::Extend { .. });
                let reply = match says {
                    Says::Word(word) if is_known => {
                        let deadline = Deadline::at_s(1_005);
                        Ok(Reply::Granted {
                            word,
                            deadline,
                            at: now.time,
                            ticket: None,
                            token: Token::NONE,
                        })
                    }
                    Says::Word(_) => panic!("{request:?}"),
                    Says::Nothing => Err(Status::BadResponse),
                };
                operation.reply(e, reply, now);
            }
            Effect::ReadClock => operation.clock(now),
            Effect::Done(result) => return (result.status, has_asked),
            _ => {}
        }
    }
}

/// A lock that the client has entered twice.
fn held_twice(lock_type: LockType) -> LockEntry {
    let mut e = entry(lock_type);
    assert_eq!(run(&mut e, TRY, taken(), Says::Word(0)).0, Status::Success);
    let again = run(&mut e, TRY, taken(), Says::Word(mine(lock_type)));
    assert_eq!(again.0, Status::AlreadyLocked, "{lock_type:?}");
    assert_eq!(e.refs(), 2);
    e
}

#[test]
fn it_is_no_success_once_the_lease_may_be_over() {
    for lock_type in TYPES {
        let told = |ns| {
            let mut e = held_twice(lock_type);
            let told = run(&mut e, Op::Unlock, at(ns), Says::Nothing);
            assert_eq!(e.refs(), 1);
            told
        };
        let after_lease = match lock_type {
            LockType::Rw => Status::AlreadyLocked, // a read-write hold has no lease here
            LockType::Atomic | LockType::Fair => Status::Fail,
        };
        let is_sure_at = END_NS - EPSILON_NS - 1;
        assert_eq!(told(is_sure_at), (Status::AlreadyLocked, false), "{lock_type:?}");
        assert_eq!(told(is_sure_at + 1), (after_lease, false), "{lock_type:?}");
    }
}

#[test]
fn it_is_no_success_past_the_horizon() {
    for lock_type in TYPES {
        let horizon_ns = 1_002 * NS;
        let told = |ns| {
            let mut e = held_twice(lock_type);
            let now = Now { horizon_ns, ..at(ns) };
            (run(&mut e, Op::Unlock, now, Says::Nothing).0, e.refs())
        };
        assert_eq!(told(horizon_ns - 1), (Status::AlreadyLocked, 1), "{lock_type:?}");
        assert_eq!(told(horizon_ns), (Status::BadResponse, 2), "{lock_type:?}");
    }
}

/// The lease was judged by a clock that has turned out to be wrong, so the client asks whether it
/// still holds the lock.
#[test]
fn it_asks_whether_the_hold_is_there_where_the_clock_was_another_one() {
    for lock_type in [LockType::Atomic, LockType::Fair] {
        let now = Now { discontinuities: 1, ..at(1_001 * NS) };
        let mut e = held_twice(lock_type);
        let is_there = run(&mut e, Op::Unlock, now, Says::Word(mine(lock_type)));
        assert_eq!((is_there, e.refs()), ((Status::AlreadyLocked, true), 1), "{lock_type:?}");
        let mut e = held_twice(lock_type);
        let unanswered = run(&mut e, Op::Unlock, now, Says::Nothing);
        assert_eq!((unanswered, e.refs()), ((Status::BadResponse, true), 2), "{lock_type:?}");
    }
    let now = Now { discontinuities: 1, ..at(1_001 * NS) };
    let mut e = held_twice(LockType::Atomic);
    let others = AtomicWord::new().with_client(8).with_timeout(Deadline::at_s(1_009)).into_bits();
    assert_eq!(run(&mut e, Op::Unlock, now, Says::Word(others)), (Status::Fail, true));
    assert_eq!(e.refs(), 0);
}

/// A client that is past its horizon when it claims may have lost what it claims.
#[test]
fn it_asks_the_successor_where_a_claim_is_not_sure() {
    for lock_type in TYPES {
        for (horizon_ns, has_asked) in [(u64::MAX, false), (1_001 * NS, true)] {
            let mut e = held_twice(lock_type);
            let old = Now { horizon_ns, ..at(1_001 * NS) };
            e.is_claimed(Epoch(1), old, at(1_001 * NS));
            let told = run(&mut e, Op::Unlock, at(1_002 * NS), Says::Word(mine(lock_type)));
            assert_eq!(told, (Status::AlreadyLocked, has_asked), "{lock_type:?}");
            assert_eq!(e.refs(), 1);
        }
    }
}
