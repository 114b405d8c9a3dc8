// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client's estimate of the server clock turns out to be wrong (`Now::discontinuities` changes).
//! Holds that were judged by it may be over, so the client asks before it relies on them again.

use dlock_core::clock::{Deadline, Lease, Now, ServerTime, NS};
use dlock_core::ids::Handle;
use dlock_core::lock::{LockEntry, Op};
use dlock_core::memory::word_op::WordOp;
use dlock_core::operation::{Bounds, Effect, Operation, Started};
use dlock_core::token::Token;
use dlock_core::wire::message::{LockType, Mode, Reply, Request};
use dlock_core::wire::status::Status;

use crate::common::entry::{entry, executed, old_word};

const X: Mode = Mode::Exclusive;
const TRY: Op = Op::TryLock { mode: X, lease: Lease::secs(600) };
const EXTEND: Op = Op::Extend { mode: X, lease: Lease::secs(600) };

/// The moment at which all tests happen, by a clock with so many discontinuities; no deadline is
/// near.
fn after(discontinuities: u64) -> Now {
    Now { discontinuities, ..Now::within(ServerTime(1_000 * NS), 3) }
}

fn begin(entry: &mut LockEntry, op: Op, now: Now) -> Operation {
    match Operation::begin(entry, op, now, Bounds::since(now.local_ns)) {
        Started::Running(operation) => operation,
        Started::Done(result) => panic!("{result:?}"),
    }
}

/// Carries the operation out to its end. Returns its status, and the requests that the arbiter got
/// without a reply.
fn end(operation: &mut Operation, entry: &mut LockEntry, now: Now) -> (Status, Vec<Request>) {
    let mut told = Vec::new();
    loop {
        match operation.next(entry) {
            Effect::Done(result) => return (result.status, told),
            Effect::WriteLedger(_) | Effect::Count(_) => {}
            Effect::ReadClock => operation.clock(now),
            Effect::Tell(request) => told.push(request),
            Effect::Post { chain, .. } => operation.outcome(entry, executed(&chain, 0), now),
            other => panic!("{other:?}"),
        }
    }
}

/// A lock that the client has taken at `now`.
fn held(lock_type: LockType, now: Now) -> LockEntry {
    let mut e = entry(lock_type);
    let mut o = begin(&mut e, TRY, now);
    let Effect::Post { chain, .. } = o.next(&mut e) else { panic!() };
    o.outcome(&mut e, executed(&chain, 0), now);
    assert_eq!(end(&mut o, &mut e, now).0, Status::Success);
    e
}

fn release() -> Request {
    Request::Release {
        handle: Handle(3),
        mode: X,
        ticket: Some(dlock_core::memory::words::Ticket { lap: 0, tx: 0, ts: 0 }),
    }
}

#[test]
fn a_hold_of_the_clock_in_use_is_extended_and_released_by_its_client() {
    for op in [EXTEND, Op::Unlock] {
        let mut e = held(LockType::Fair, after(4));
        assert!(!e.is_of_another_clock(after(4)));
        let mut o = begin(&mut e, op, after(4));
        assert!(matches!(o.next(&mut e), Effect::Post { .. }), "{op:?}");
    }
}

#[test]
fn a_fair_hold_of_a_clock_that_was_wrong_is_asked_for_at_the_arbiter() {
    for op in [EXTEND, TRY, Op::Unlock] {
        let mut e = held(LockType::Fair, after(0));
        assert!(e.is_of_another_clock(after(1)));
        let mut o = begin(&mut e, op, after(1));
        match (op, o.next(&mut e)) {
            (Op::Unlock, Effect::Ask { request: Request::Release { .. }, .. }) => {}
            (_, Effect::Ask { request: Request::Extend { .. }, .. }) => {}
            (_, other) => panic!("{op:?}: {other:?}"),
        }
    }
}

#[test]
fn a_fair_hold_that_the_arbiter_confirms_is_of_the_clock_in_use() {
    let mut e = held(LockType::Fair, after(0));
    let mut o = begin(&mut e, EXTEND, after(1));
    assert!(matches!(o.next(&mut e), Effect::Ask { .. }));
    let at = after(1).time;
    o.reply(
        &mut e,
        Ok(Reply::Granted {
            word: 1 << 16,
            deadline: Deadline::at_s(1_600),
            at,
            ticket: None,
            token: Token::NONE,
        }),
        after(1),
    );
    assert_eq!(end(&mut o, &mut e, after(1)).0, Status::Success);
    assert!(!e.is_of_another_clock(after(1)));
}

#[test]
fn an_atomic_hold_of_a_clock_that_was_wrong_is_asked_for_by_a_compare_and_swap() {
    // no other client has taken the lock: its word still names this client
    let mut e = held(LockType::Atomic, after(0));
    assert!(e.is_of_another_clock(after(1)));
    let mut o = begin(&mut e, Op::Extend { mode: X, lease: Lease::NONE }, after(1));
    let Effect::Post { chain, .. } = o.next(&mut e) else { panic!() };
    let WordOp::Cas { expect, .. } = chain.ops()[0] else { panic!() };
    o.outcome(&mut e, old_word(expect), after(1));
    assert_eq!(end(&mut o, &mut e, after(1)), (Status::Success, vec![]));
    assert!(!e.is_of_another_clock(after(1)));
    // the client takes a lock over whose holder's lease is over only by the wrong clock
    let mut e = held(LockType::Atomic, after(0));
    let mut o = begin(&mut e, TRY, after(1));
    assert!(matches!(o.next(&mut e), Effect::Post { .. }));
    o.outcome(&mut e, old_word(8 << 32 | u64::from(Deadline::at_s(9_999).0)), after(1));
    assert_eq!(end(&mut o, &mut e, after(1)).0, Status::Fail);
    assert_eq!(e.refs(), 0);
}

#[test]
fn a_grant_whose_clock_turns_out_wrong_before_it_is_told_is_given_back() {
    let resolve = Request::Resolve { handle: Handle(3) };
    let mut e = entry(LockType::Atomic);
    let mut o = begin(&mut e, TRY, after(0));
    let Effect::Post { chain, .. } = o.next(&mut e) else { panic!() };
    o.outcome(&mut e, executed(&chain, 0), after(1));
    assert_eq!(end(&mut o, &mut e, after(1)), (Status::Fail, vec![resolve]));
    assert_eq!((e.refs(), e.in_doubt()), (0, true));
    // the result was decided before the clock turned out to be wrong, and the program asks for it
    // only now
    let mut e = entry(LockType::Atomic);
    let mut o = begin(&mut e, TRY, after(0));
    assert!(matches!(o.next(&mut e), Effect::Post { .. }));
    o.outcome(&mut e, old_word(0), after(0));
    assert_eq!(end(&mut o, &mut e, after(0)).0, Status::Success);
    o.told_late(&e, after(1));
    assert_eq!(end(&mut o, &mut e, after(1)), (Status::Fail, vec![resolve]));
}

/// The new deadline was computed by a clock that turned out to be wrong while the answer was under
/// way.
#[test]
fn an_extend_is_judged_by_the_clock_that_its_deadline_is_of() {
    for op in [EXTEND, TRY] {
        let mut e = held(LockType::Atomic, after(0));
        let mut o = begin(&mut e, op, after(0));
        let Effect::Post { chain, .. } = o.next(&mut e) else { panic!() };
        let WordOp::Cas { expect, .. } = chain.ops()[0] else { panic!() };
        o.outcome(&mut e, old_word(expect), after(1));
        assert_eq!(end(&mut o, &mut e, after(1)).0, Status::Fail, "{op:?}");
    }
}

#[test]
fn a_grant_of_the_arbiter_is_of_the_clock_in_use_when_it_comes() {
    let mut e = entry(LockType::Atomic);
    let mut o = begin(&mut e, Op::Lock { mode: X, lease: Lease::secs(600) }, after(0));
    assert!(matches!(o.next(&mut e), Effect::Post { .. }));
    o.outcome(&mut e, old_word(8 << 32 | u64::from(Deadline::at_s(9_999).0)), after(0));
    assert!(matches!(o.next(&mut e), Effect::Ask { request: Request::Wait { .. }, .. }));
    let at = after(1).time;
    let word = 7 << 32 | u64::from(Deadline::at_s(1_600).0);
    o.reply(
        &mut e,
        Ok(Reply::Granted {
            word,
            deadline: Deadline::at_s(1_600),
            at,
            ticket: None,
            token: Token::NONE,
        }),
        after(1),
    );
    assert_eq!(end(&mut o, &mut e, after(1)), (Status::Success, vec![]));
}

#[test]
fn a_new_channel_has_a_clock_of_its_own() {
    let mut e = held(LockType::Fair, after(0));
    e.rewrite_ledger();
    assert!(e.is_of_another_clock(after(0)));
    assert!(e.take_ledger_write().is_some());
    let mut o = begin(&mut e, Op::Unlock, after(0));
    assert!(matches!(o.next(&mut e), Effect::Ask { request, .. } if request == release()));
}

#[test]
fn what_has_no_lease_depends_on_no_clock() {
    let mut e = entry(LockType::Rw);
    let mut o = begin(&mut e, TRY, after(0));
    assert!(matches!(o.next(&mut e), Effect::Post { .. }));
    o.outcome(&mut e, old_word(0), after(1));
    assert_eq!(end(&mut o, &mut e, after(1)).0, Status::Success);
    assert!(!e.is_of_another_clock(after(2)));
}
