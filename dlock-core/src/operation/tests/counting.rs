// SPDX-License-Identifier: MIT OR Apache-2.0
//! The counts that a client keeps for the primary, and its questions for the number of readers.

use super::*;
use crate::clock::{Deadline, Lease};
use crate::memory::words::Ticket;
use crate::token::Token;

/// Carries an operation out whose first chain has this outcome. Returns the counter that the client
/// increases for the primary, and the final status.
fn counted(e: &mut LockEntry, op: Op, outcome: Outcome) -> (Option<Counter>, Status) {
    let mut o = begin(e, op);
    let _ = posted(o.next(e));
    o.outcome(e, outcome, at(1));
    let mut counter = None;
    loop {
        match o.next(e) {
            Effect::Count(one) => assert_eq!(counter.replace(one), None),
            Effect::WriteLedger(_) | Effect::Tell(_) => {}
            Effect::Ask { .. } => {
                o.reply(e, Ok(Reply::Denied { status: Status::Fail, word: 0 }), at(2))
            }
            Effect::Post { .. } => o.outcome(e, values(&[0, 0]), at(2)),
            Effect::Done(result) => return (counter, result.status),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_the_client_decides_by_itself_is_counted_for_the_primary_once() {
    let mine = |e: &mut LockEntry, op, old| counted(e, op, values(&[old]));
    let extend = Op::Extend { mode: X, lease: Lease::secs(5) };
    let fail = |counter| (Some(counter), Status::Fail);
    let e = &mut entry(LockType::Atomic);
    assert_eq!(mine(e, TAKE, others_word()), fail(Counter::AtomicTryLockFail));
    assert_eq!(mine(e, TAKE, 0), (None, Status::Success));
    let e = &mut held(LockType::Atomic);
    assert_eq!(mine(e, Op::Unlock, others_word()), fail(Counter::AtomicUnlockFail));
    let e = &mut held(LockType::Atomic);
    assert_eq!(mine(e, extend, others_word()), fail(Counter::AtomicExtendFail));
    let e = &mut entry(LockType::Rw);
    assert_eq!(mine(e, TAKE, 1), fail(Counter::RwTryLockExFail));
    let shared = Op::TryLock { mode: S, lease: Lease::secs(5) };
    let owned = values(&[0, 8 << 32]);
    assert_eq!(counted(e, shared, owned), fail(Counter::RwTryLockShFail));
    let queued = values(&[0, TakenWord::new().with_mx(1).into_bits(), 0, 0]);
    let e = &mut entry(LockType::Fair);
    assert_eq!(counted(e, TAKE, queued), (Some(Counter::Again), Status::Again));
}

#[test]
fn what_the_arbiter_decides_it_counts_itself() {
    let waiters =
        AtomicWord::new().with_client(8).with_timeout(Deadline::at_s(9_999)).with_waiters(true);
    let e = &mut entry(LockType::Atomic);
    assert_eq!(counted(e, LOCK, values(&[waiters.into_bits()])), (None, Status::Fail));
    let e = &mut held(LockType::Atomic);
    assert_eq!(counted(e, Op::Unlock, Outcome::Unknown).0, None, "nothing is known");
}

/// The number of readers in the view of a result.
fn readers(effect: Effect) -> u32 {
    match effect {
        Effect::Done(OpResult { view: Some(View::Fair { t_value: Some(t), .. }), .. }) => t >> 26,
        other => panic!("{other:?}"),
    }
}

/// Takes a shared ticket behind a writer and two readers.
fn behind_a_writer(e: &mut LockEntry) -> Operation {
    let mut o = begin(e, Op::TryLock { mode: S, lease: Lease::secs(5) });
    let _ = posted(o.next(e));
    let taken = TakenWord::new().with_mx(1).with_ms(2).into_bits();
    o.outcome(e, values(&[0, taken, 0, 0]), at(1));
    assert!(matches!(o.next(e), Effect::WriteLedger(_)), "it may not come back");
    o
}

#[test]
fn readers_that_the_word_does_not_tell_are_asked_for_if_wanted() {
    let ticket = Some(Ticket { lap: 0, tx: 1, ts: 2 });
    let count = Request::CountReaders { handle: Handle(3), mode: S, ticket };
    let mut e = entry(LockType::Fair);
    let mut o = behind_a_writer(&mut e);
    assert_eq!(o.next(&mut e), Effect::Count(Counter::Again));
    assert_eq!(readers(o.next(&mut e)), 0, "it was not asked to tell them");

    let mut e = entry(LockType::Fair);
    e.asks_readers(true);
    let mut o = behind_a_writer(&mut e);
    assert!(matches!(o.next(&mut e), Effect::Ask { request, .. } if request == count));
    o.reply(&mut e, Ok(Reply::Done { word: 2 }), at(3));
    assert_eq!(o.next(&mut e), Effect::Count(Counter::Again));
    assert_eq!(readers(o.next(&mut e)), 2);

    // without an answer, or with an error, the result counts as it is
    for answer in [None, Some(Err(Status::BadResponse))] {
        let mut e = entry(LockType::Fair);
        e.asks_readers(true);
        let mut o = behind_a_writer(&mut e);
        assert!(matches!(o.next(&mut e), Effect::Ask { request, .. } if request == count));
        match answer {
            Some(reply) => o.reply(&mut e, reply, at(3)),
            None => {
                o.deadline(&e, false, at(3));
                assert_eq!(o.next(&mut e), Effect::Forget);
            }
        }
        assert_eq!(o.next(&mut e), Effect::Count(Counter::Again));
        assert_eq!(done(o.next(&mut e)), Status::Again);
        assert!(!e.in_doubt());
    }
}

#[test]
fn readers_are_not_asked_for_when_the_time_is_up() {
    let until_ns = bounds().until_ns;
    for (local_ns, asks) in [(until_ns - 1, true), (until_ns, false), (until_ns + 1, false)] {
        let mut e = entry(LockType::Fair);
        e.asks_readers(true);
        let mut o = behind_a_writer(&mut e);
        o.now = Now { local_ns, ..at(2) };
        let effect = o.next(&mut e);
        assert_eq!(matches!(effect, Effect::Ask { .. }), asks, "{effect:?}");
    }
}

/// The first grant comes too late, and the arbiter refuses the second wait. The arbiter counts that
/// itself, so the client must not.
#[test]
fn what_the_arbiter_was_asked_for_twice_it_counts_itself() {
    let mut e = entry(LockType::Atomic);
    let (mut o, _) = waiting(&mut e, Bounds::waiting(START, 100 * NS));
    let word = AtomicWord::new().with_client(7).with_timeout(Deadline::at_s(1_005)).into_bits();
    let late = Reply::Granted {
        word,
        deadline: Deadline::at_s(1_005),
        at: ServerTime(START),
        ticket: None,
        token: Token::NONE,
    };
    o.reply(&mut e, Ok(late), at(20 * NS));
    let mut waits = 1;
    loop {
        match o.next(&mut e) {
            Effect::Ask { request: RESOLVE, .. } => {
                o.reply(&mut e, Ok(Reply::Done { word: 0 }), at(20 * NS));
            }
            Effect::Ask { .. } => {
                waits += 1;
                let denied = Reply::Denied { status: Status::Fail, word: 0 };
                o.reply(&mut e, Ok(denied), at(20 * NS));
            }
            Effect::Post { .. } => o.outcome(&mut e, values(&[others_word()]), at(20 * NS)),
            Effect::WriteLedger(_) | Effect::Tell(_) => {}
            Effect::Done(result) => break assert_eq!(result.status, Status::Fail),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(waits, 2);
}
