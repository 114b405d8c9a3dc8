// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a caller is told when time has passed since its operation was decided.

use dlock_core::clock::{Deadline, Lease, Now, ServerTime, NS};
use dlock_core::lock::{LockEntry, Op, OpResult};
use dlock_core::memory::word_op::{Outcome, Values};
use dlock_core::operation::{Batch, Bounds, Effect, Entries, Operation, Started};
use dlock_core::wire::message::{LockType, Mode, Reply, Request};
use dlock_core::wire::status::Status;

use crate::common::entry::{entry, old_word};

const TRY: Op = Op::TryLock { mode: Mode::Exclusive, lease: Lease::secs(2) };

fn at(seconds: u64) -> Now {
    Now::within(ServerTime((1_000 + seconds) * NS), 3)
}

/// Takes a free atomic lock, and stops before the caller gets the result.
fn taken(entry: &mut LockEntry) -> Operation {
    let started = Operation::begin(entry, TRY, at(0), Bounds::since(at(0).local_ns));
    let Started::Running(mut operation) = started else { panic!() };
    assert!(matches!(operation.next(entry), Effect::Post { .. }));
    operation.outcome(entry, old_word(0), at(0));
    assert_eq!(status(operation.next(entry)), Status::Success);
    operation
}

fn status(effect: Effect) -> Status {
    match effect {
        Effect::Done(result) => result.status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_grant_that_is_asked_for_after_its_lease_is_given_back() {
    let mut e = entry(LockType::Atomic);
    let mut operation = taken(&mut e);
    operation.told_late(&e, at(1));
    assert_eq!(status(operation.next(&mut e)), Status::Success, "the lease still runs");
    operation.told_late(&e, at(9));
    assert!(matches!(operation.next(&mut e), Effect::Tell(Request::Resolve { .. })));
    assert_eq!(status(operation.next(&mut e)), Status::Fail);
    assert_eq!((e.refs(), e.in_doubt()), (0, true));
}

#[test]
fn a_grant_that_nobody_was_told_of_is_given_back_with_its_operation() {
    let mut e = entry(LockType::Atomic);
    let mut operation = taken(&mut e);
    operation.give_up(&mut e, Status::TimedOut, at(1));
    assert!(matches!(operation.next(&mut e), Effect::Tell(Request::Resolve { .. })));
    assert_eq!(status(operation.next(&mut e)), Status::TimedOut);
    assert_eq!(e.refs(), 0);
}

#[test]
fn a_late_extend_undoes_nothing_before_its_caller_is_told() {
    let mut e = entry(LockType::Atomic);
    let mut first = taken(&mut e);
    assert_eq!(status(first.next(&mut e)), Status::Success);
    let op = Op::Extend { mode: Mode::Exclusive, lease: Lease::secs(2) };
    let started = Operation::begin(&mut e, op, at(1), Bounds::since(at(1).local_ns));
    let Started::Running(mut operation) = started else { panic!() };
    let Effect::Post { chain, .. } = operation.next(&mut e) else { panic!() };
    let dlock_core::memory::word_op::WordOp::Cas { expect, .. } = chain.ops()[0] else { panic!() };
    operation.outcome(&mut e, old_word(expect), at(9));
    assert_eq!(status(operation.next(&mut e)), Status::Fail);
    assert!(e.in_doubt(), "its next operation asks for the undo");
}

#[test]
fn a_hold_without_a_lease_is_entered_again_without_a_clock() {
    let mut e = entry(LockType::Rw);
    let op = Op::TryLock { mode: Mode::Exclusive, lease: Lease::secs(2) };
    let started = Operation::begin(&mut e, op, at(0), Bounds::since(at(0).local_ns));
    let Started::Running(mut operation) = started else { panic!() };
    assert!(matches!(operation.next(&mut e), Effect::Post { .. }));
    operation.outcome(&mut e, old_word(0), at(0));
    while !matches!(operation.next(&mut e), Effect::Done(_)) {}
    let unknown = Now { local_ns: at(1).local_ns, ..Now::within(ServerTime(0), u64::MAX) };
    let again = Operation::begin(&mut e, op, unknown, Bounds::since(unknown.local_ns));
    assert!(matches!(again, Started::Done(OpResult { status: Status::AlreadyLocked, .. })));
}

struct Locks(Vec<LockEntry>, Now);

impl Entries for Locks {
    fn entry(&mut self, place: usize) -> &mut LockEntry {
        &mut self.0[place]
    }
    fn now(&mut self, _: usize) -> Now {
        self.1
    }
}

#[test]
fn an_item_whose_lease_ends_while_the_others_take_long_is_told_as_failed() {
    let mut locks = Locks(vec![entry(LockType::Atomic), entry(LockType::Atomic)], at(0));
    let mut batch = Batch::new(Bounds::since(at(0).local_ns));
    for place in 0..2 {
        let at = batch.place(&locks.0[place]);
        batch.push(TRY, at);
    }
    for item in 0..2 {
        assert!(matches!(batch.next(&mut locks), Some((i, Effect::Post { .. })) if i == item));
    }
    let [first, second] = &mut locks.0[..] else { panic!() };
    batch.outcome(0, first, old_word(0), at(0));
    batch.outcome(1, second, Outcome::Unknown, at(9));
    locks.1 = at(9);
    let mut told = 0;
    while let Some((_, effect)) = batch.next(&mut locks) {
        assert!(matches!(effect, Effect::Tell(Request::Resolve { .. })), "{effect:?}");
        told += 1;
    }
    assert_eq!((told, batch.is_done()), (2, true));
    let statuses: Vec<_> = batch.results().map(|(_, _, result)| result.status).collect();
    assert_eq!(statuses, [Status::Fail, Status::BadResponse]);
}

/// While the loss of the first item is told to the arbiter, the lease of the second one ends, too.
#[test]
fn the_items_of_a_batch_are_judged_again_after_each_message() {
    let mut locks = Locks(vec![entry(LockType::Atomic), entry(LockType::Atomic)], at(0));
    let mut batch = Batch::new(Bounds::since(at(0).local_ns));
    for (place, lease) in [(0, Lease::secs(6)), (1, Lease::secs(2))] {
        let at = batch.place(&locks.0[place]);
        batch.push(Op::TryLock { mode: Mode::Exclusive, lease }, at);
    }
    for item in 0..2 {
        assert!(matches!(batch.next(&mut locks), Some((i, Effect::Post { .. })) if i == item));
    }
    for item in 0..2 {
        batch.outcome(item, &mut locks.0[item], old_word(0), at(0));
    }
    for (now_s, item) in [(4, 1), (9, 0)] {
        locks.1 = at(now_s);
        let told = batch.next(&mut locks);
        let is_undone =
            matches!(told, Some((i, Effect::Tell(Request::Resolve { .. }))) if i == item);
        assert!(is_undone, "at {now_s}: {told:?}");
    }
    assert!(batch.next(&mut locks).is_none());
    let statuses: Vec<_> = batch.results().map(|(_, _, result)| result.status).collect();
    assert_eq!(statuses, [Status::Fail; 2]);
}

#[test]
fn a_hold_that_was_extended_is_not_given_back_because_nobody_asked_for_the_result() {
    let mut e = entry(LockType::Atomic);
    taken(&mut e);
    let extend = Op::Extend { mode: Mode::Exclusive, lease: Lease::secs(9) };
    let started = Operation::begin(&mut e, extend, at(1), Bounds::since(at(1).local_ns));
    let Started::Running(mut operation) = started else { panic!() };
    let Effect::Post { chain, .. } = operation.next(&mut e) else { panic!() };
    let dlock_core::memory::word_op::WordOp::Cas { expect, .. } = chain.ops()[0] else { panic!() };
    operation.outcome(&mut e, old_word(expect), at(1));
    assert_eq!(status(operation.next(&mut e)), Status::Success);
    operation.give_up(&mut e, Status::BadResponse, at(1));
    assert_eq!((e.refs(), e.in_doubt()), (1, false));
}

#[test]
fn a_decision_needs_the_clock_unless_no_lease_and_no_horizon_is_in_it() {
    let lock_types = [LockType::Atomic, LockType::Rw, LockType::Fair];
    for (horizon_ns, acquire, release) in [
        (u64::MAX, [true, false, true], [false, false, true]),
        (9_000 * NS, [true, true, true], [true, true, true]),
    ] {
        for (i, lock_type) in lock_types.into_iter().enumerate() {
            let now = Now { horizon_ns, ..at(0) };
            let mut e = entry(lock_type);
            let begin = |e: &mut LockEntry, op| match Operation::begin(
                e,
                op,
                now,
                Bounds::since(now.local_ns),
            ) {
                Started::Running(operation) => operation,
                Started::Done(result) => panic!("{result:?}"),
            };
            let mut operation = begin(&mut e, TRY);
            assert_eq!(operation.needs_clock(&e), acquire[i], "{lock_type:?}");
            for _ in 0..9 {
                match operation.next(&mut e) {
                    Effect::Post { chain, .. } => {
                        let mut values = Values::new();
                        (0..chain.values_len()).for_each(|_| values.push(0));
                        operation.outcome(&mut e, Outcome::Done(values), now);
                    }
                    Effect::ReadClock => operation.clock(now),
                    Effect::Done(_) => break,
                    _ => {}
                }
            }
            let operation = begin(&mut e, Op::Unlock);
            assert_eq!(operation.needs_clock(&e), release[i], "{lock_type:?}");
        }
    }
}

/// An extend in the same batch finds that another client has taken the lock over.
#[test]
fn an_item_whose_hold_a_later_item_has_found_lost_is_told_as_failed() {
    let mut locks = Locks(vec![entry(LockType::Atomic)], at(0));
    let mut batch = Batch::new(Bounds::since(at(0).local_ns));
    let place = batch.place(&locks.0[0]);
    batch.push(TRY, place);
    batch.push(Op::Extend { mode: Mode::Exclusive, lease: Lease::secs(9) }, place);
    let others = dlock_core::memory::words::AtomicWord::new()
        .with_client(8)
        .with_timeout(Deadline::at_s(1_900));
    for (item, old) in [(0, 0), (1, others.into_bits())] {
        let Some((posted, Effect::Post { .. })) = batch.next(&mut locks) else { panic!() };
        assert_eq!(posted, item);
        assert!(batch.next(&mut locks).is_none());
        batch.outcome(item, &mut locks.0[0], old_word(old), at(0));
    }
    while let Some((_, effect)) = batch.next(&mut locks) {
        assert!(matches!(effect, Effect::Count(_)), "{effect:?}");
    }
    let told: Vec<Status> = batch.results().map(|(_, _, result)| result.status).collect();
    assert_eq!(told, [Status::Fail; 2]);
}

/// The second re-entry comes too late: the first one is found lost, and the caller, which held the
/// lock before the batch, is told of that before anything is undone.
#[test]
fn a_hold_from_before_the_batch_is_not_undone_before_all_items_are_told() {
    for late_from in [1, 0] {
        let mut locks = Locks(vec![entry(LockType::Atomic)], at(0));
        assert_eq!(status(taken(&mut locks.0[0]).next(&mut locks.0[0])), Status::Success);
        let mut batch = Batch::new(Bounds::since(at(0).local_ns));
        let place = batch.place(&locks.0[0]);
        (0..2).for_each(|_| batch.push(TRY, place));
        while let Some((item, effect)) = batch.next(&mut locks) {
            assert!(!matches!(effect, Effect::Tell(_) | Effect::Ask { .. }), "{effect:?}");
            let Effect::Post { chain, .. } = effect else { continue };
            let dlock_core::memory::word_op::WordOp::Cas { expect, .. } = chain.ops()[0] else {
                panic!()
            };
            let now = if item < late_from { at(0) } else { at(9) };
            batch.outcome(item, &mut locks.0[0], old_word(expect), now);
        }
        let told: Vec<Status> = batch.results().map(|(_, _, result)| result.status).collect();
        assert_eq!(told, [Status::Fail; 2]);
        assert!(locks.0[0].in_doubt(), "its next operation asks for the undo");
    }
}

#[test]
fn a_hold_whose_extend_was_given_up_is_not_undone_before_its_caller_is_told() {
    let mut e = entry(LockType::Atomic);
    taken(&mut e);
    let extend = Op::Extend { mode: Mode::Exclusive, lease: Lease::secs(2) };
    let started = Operation::begin(&mut e, extend, at(0), Bounds::since(at(0).local_ns));
    let Started::Running(mut operation) = started else { panic!() };
    let Effect::Post { chain, .. } = operation.next(&mut e) else { panic!() };
    let dlock_core::memory::word_op::WordOp::Cas { expect, .. } = chain.ops()[0] else { panic!() };
    operation.outcome(&mut e, old_word(expect), at(9));
    assert_eq!(status(operation.next(&mut e)), Status::Fail, "it came too late");
    operation.give_up(&mut e, Status::TimedOut, at(9));
    assert_eq!(status(operation.next(&mut e)), Status::TimedOut);
    assert!(e.in_doubt(), "its next operation asks for the undo");
}

#[test]
fn a_hold_from_before_the_batch_is_entered_again_and_one_of_the_batch_is_not() {
    for (was_held, second) in [(true, Status::AlreadyLocked), (false, Status::Fail)] {
        let mut locks = Locks(vec![entry(LockType::Atomic)], at(0));
        if was_held {
            taken(&mut locks.0[0]);
        }
        let mut batch = Batch::new(Bounds::since(at(0).local_ns));
        let place = batch.place(&locks.0[0]);
        (0..2).for_each(|_| batch.push(TRY, place));
        while let Some((item, effect)) = batch.next(&mut locks) {
            let Effect::Post { chain, .. } = effect else { continue };
            let dlock_core::memory::word_op::WordOp::Cas { expect, .. } = chain.ops()[0] else {
                panic!()
            };
            batch.outcome(item, &mut locks.0[0], old_word(expect), at(0));
        }
        let told: Vec<Status> = batch.results().map(|(_, _, result)| result.status).collect();
        assert_eq!(told[1], second);
    }
}

/// The status of each item of a batch on one atomic lock. `outcomes`: what each chain finds, and
/// when; the primary undoes what it is asked to undo.
fn told_of(e: LockEntry, ops: &[Op], mut outcomes: Vec<(Outcome, Now)>) -> Vec<Status> {
    let mut locks = Locks(vec![e], at(0));
    let mut batch = Batch::new(Bounds::since(at(0).local_ns));
    let place = batch.place(&locks.0[0]);
    ops.iter().for_each(|&op| batch.push(op, place));
    while let Some((item, effect)) = batch.next(&mut locks) {
        match effect {
            Effect::Post { .. } => {
                let (outcome, now) = outcomes.remove(0);
                batch.outcome(item, &mut locks.0[0], outcome, now);
            }
            Effect::Ask { request, .. } => {
                assert!(matches!(request, Request::Resolve { .. }), "{request:?}");
                batch.reply(item, &mut locks.0[0], Ok(Reply::Done { word: 0 }), at(0));
            }
            _ => {}
        }
    }
    assert!(batch.is_done() && outcomes.is_empty(), "{outcomes:?}");
    batch.results().map(|(_, _, result)| result.status).collect()
}

/// The lock word while client 7 holds the lock of this entry.
fn own_word(e: &LockEntry) -> u64 {
    let word = dlock_core::memory::words::AtomicWord::new().with_client(7);
    word.with_timeout(e.deadline()).into_bits()
}

/// The extend finds another client's word. The loss is told, and nothing has to be undone.
#[test]
fn an_item_takes_a_lock_anew_that_an_earlier_one_has_found_lost_for_sure() {
    let mut e = entry(LockType::Atomic);
    assert_eq!(status(taken(&mut e).next(&mut e)), Status::Success);
    let others = dlock_core::memory::words::AtomicWord::new()
        .with_client(8)
        .with_timeout(Deadline::at_s(1_900));
    let extend = Op::Extend { mode: Mode::Exclusive, lease: Lease::secs(9) };
    let outcomes = vec![(old_word(others.into_bits()), at(0)), (old_word(0), at(0))];
    assert_eq!(told_of(e, &[extend, TRY], outcomes), [Status::Fail, Status::Success]);
}

/// The lock was free before the batch, so no caller relies on what the first item may have got.
#[test]
fn an_item_takes_a_lock_anew_of_which_an_earlier_one_does_not_know_whether_it_took_it() {
    let outcomes = vec![(Outcome::Unknown, at(0)), (old_word(0), at(0))];
    let told = told_of(entry(LockType::Atomic), &[TRY, TRY], outcomes);
    assert_eq!(told, [Status::BadResponse, Status::Success]);
}

/// An earlier item enters the hold again, and its outcome comes too late: the hold is lost, and in
/// doubt.
#[test]
fn a_query_is_answered_though_an_earlier_item_has_found_the_hold_lost() {
    let query = Op::TryLock { mode: Mode::Exclusive, lease: Lease::NONE };
    let mut e = entry(LockType::Atomic);
    assert_eq!(status(taken(&mut e).next(&mut e)), Status::Success);
    let own = own_word(&e);
    let outcomes = vec![(old_word(own), at(9))];
    let told = told_of(e.clone(), &[TRY, query], outcomes);
    assert_eq!(told, [Status::Fail, Status::Success]);
}
