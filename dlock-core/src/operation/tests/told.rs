// SPDX-License-Identifier: MIT OR Apache-2.0
//! Results that come late: what the caller still gets as a success after the horizon, after a
//! lease, or from a batch. And views of locks with readers that the word does not show.

use super::*;
use crate::clock::Lease;

/// A hold without a lease ends with the horizon; a lease outlasts it.
#[test]
fn a_hold_without_a_lease_is_not_told_past_the_horizon() {
    let until = |ns: u64| Now { horizon_ns: START + 10, ..at(ns) };
    let endless = Op::TryLock { mode: X, lease: Lease::ENDLESS };
    let told = [(LockType::Rw, TAKE), (LockType::Atomic, endless), (LockType::Atomic, TAKE)];
    for (lock_type, op) in told {
        let mut e = entry(lock_type);
        let Started::Running(mut o) = Operation::begin(&mut e, op, until(0), bounds()) else {
            panic!("it begins")
        };
        let _ = posted(o.next(&mut e));
        o.outcome(&mut e, values(&[0]), until(9));
        assert_eq!(done(o.next(&mut e)), Status::Success);
        o.told_late(&e, until(10));
        if (lock_type, op) == (LockType::Atomic, TAKE) {
            assert_eq!(done(o.next(&mut e)), Status::Success, "its lease runs");
            continue;
        }
        assert_eq!(o.next(&mut e), Effect::Tell(RESOLVE));
        assert_eq!(done(o.next(&mut e)), Status::Fail, "{lock_type:?}");
    }
}

#[test]
fn a_share_whose_ledger_write_lasts_past_the_horizon_is_given_back() {
    let until = |ns: u64| Now { horizon_ns: START + 10, ..at(ns) };
    let mut e = entry(LockType::Rw);
    let share = Op::TryLock { mode: S, lease: Lease::secs(5) };
    let Started::Running(mut o) = Operation::begin(&mut e, share, until(0), bounds()) else {
        panic!("it begins")
    };
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[0, 0]), until(9));
    assert!(matches!(o.next(&mut e), Effect::WriteLedger(_)));
    assert_eq!(o.next(&mut e), Effect::ReadClock);
    o.clock(until(10));
    assert_eq!(o.next(&mut e), Effect::Tell(RESOLVE));
    assert_eq!(done(o.next(&mut e)), Status::Fail);
}

/// The client has no horizon, but a lapse ended its session while it wrote its ledger.
#[test]
fn a_share_of_a_session_that_has_ended_is_given_back() {
    for (horizon_ns, status) in [(u64::MAX, Status::Success), (0, Status::Fail)] {
        let mut e = entry(LockType::Rw);
        let mut o = begin(&mut e, Op::TryLock { mode: S, lease: Lease::secs(5) });
        let _ = posted(o.next(&mut e));
        o.outcome(&mut e, values(&[0, 0]), at(1));
        assert!(matches!(o.next(&mut e), Effect::WriteLedger(_)));
        assert_eq!(o.next(&mut e), Effect::ReadClock);
        o.clock(Now { horizon_ns, ..at(2) });
        let mut effect = o.next(&mut e);
        if status == Status::Fail {
            assert_eq!(effect, Effect::Tell(RESOLVE));
            effect = o.next(&mut e);
        }
        assert_eq!(done(effect), status);
    }
}

/// The caller gets the results of a batch together, and other items may have taken until after the
/// horizon.
#[test]
fn a_batch_gives_back_what_the_horizon_has_ended_meanwhile() {
    let (mut batch, mut rig) = batch(vec![entry(LockType::Rw)], &[(TAKE, 0)]);
    rig.1.horizon_ns = START + 10;
    let Some((0, Effect::Post { .. })) = batch.next(&mut rig) else { panic!("it posts") };
    batch.outcome(0, rig.entry(0), values(&[0]), at(9));
    rig.1.local_ns = START + 10;
    assert_eq!(batch.next(&mut rig), Some((0, Effect::Tell(RESOLVE))));
    assert_eq!(batch.next(&mut rig), None);
    assert_eq!(codes(&batch), [Status::Fail]);
}

#[test]
fn an_unlock_is_of_the_mode_that_is_held() {
    for mode in [X, S] {
        let mut e = entry(LockType::Fair);
        let op = Op::TryLock { mode, lease: Lease::secs(5) };
        let taken = finish(&mut e, op, 0);
        assert_eq!(taken.status, Status::Success);
        assert_eq!(mode_of(Op::Unlock, &e), mode);
        assert_eq!(mode_of(op, &e), mode);
    }
}

#[test]
fn what_is_given_up_twice_was_given_up_for_the_first_reason() {
    let mut e = entry(LockType::Atomic);
    let mut o = begin(&mut e, TAKE);
    let _ = posted(o.next(&mut e));
    o.give_up(&mut e, Status::TimedOut, at(1));
    o.give_up(&mut e, Status::BadResponse, at(2));
    assert_eq!(o.next(&mut e), Effect::Tell(RESOLVE));
    assert_eq!(done(o.next(&mut e)), Status::TimedOut);
}

/// A future may be polled long after the grant.
#[test]
fn a_hold_is_told_later_only_while_its_lease_or_its_session_lasts() {
    use crate::operation::lease::may_be_told;
    let read = Now { horizon_ns: START + 50 * NS, ..at(0) };
    let deadline = read.deadline(Lease::secs(5));
    assert!(may_be_told(Some(deadline), read, read.local_ns));
    assert!(!may_be_told(Some(deadline), read, read.local_ns + 6 * NS));
    assert!(may_be_told(None, read, START + 49 * NS));
    assert!(!may_be_told(None, read, START + 50 * NS));
}

#[test]
fn a_result_that_is_told_late_is_counted_once() {
    let mut e = entry(LockType::Atomic);
    let mut o = begin(&mut e, TAKE);
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[others_word()]), at(1));
    assert_eq!(o.next(&mut e), Effect::Count(Counter::AtomicTryLockFail));
    assert_eq!(done(o.next(&mut e)), Status::Fail);
    o.told_late(&e, at(2));
    assert_eq!(done(o.next(&mut e)), Status::Fail);
}

/// The grant comes after its lease to a call that has 1 ns left, or nothing.
#[test]
fn a_late_grant_is_waited_for_anew_only_while_there_is_time() {
    for (left_ns, is_asked) in [(1, true), (0, false)] {
        let mut e = entry(LockType::Atomic);
        let until = Bounds::waiting(START, 100 * NS);
        let Started::Running(mut o) = Operation::begin(&mut e, LOCK, at(0), until) else {
            panic!("it begins")
        };
        let _ = posted(o.next(&mut e));
        let now = at(until.grant_until_ns - START - left_ns);
        o.outcome(&mut e, values(&[0]), now);
        match o.next(&mut e) {
            Effect::Ask { request: RESOLVE, .. } => assert!(is_asked),
            other => assert_eq!((other, is_asked), (Effect::Tell(RESOLVE), false)),
        }
    }
}

/// The hold existed before the operation, so giving the operation up must not undo the hold.
#[test]
fn an_extension_that_is_given_up_before_it_is_told_leaves_the_hold() {
    let mut e = held(LockType::Atomic);
    let mut o = begin(&mut e, Op::Extend { mode: X, lease: Lease::secs(9) });
    let WordOp::Cas { expect, .. } = posted(o.next(&mut e))[0] else { panic!("it moves the end") };
    o.outcome(&mut e, values(&[expect]), at(3));
    assert_eq!(done(o.next(&mut e)), Status::Success);
    o.give_up(&mut e, Status::TimedOut, at(4));
    assert_eq!(done(o.next(&mut e)), Status::TimedOut);
    assert_eq!((e.state(), e.in_doubt()), (EntryState::ExclusiveLocked, false));
}

#[test]
fn a_refusal_that_is_given_up_before_it_is_told_leaves_nothing_in_doubt() {
    let mut e = entry(LockType::Atomic);
    let mut o = begin(&mut e, TAKE);
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[others_word()]), at(1));
    assert!(matches!(o.next(&mut e), Effect::Count(_)));
    assert_eq!(done(o.next(&mut e)), Status::Fail);
    o.give_up(&mut e, Status::TimedOut, at(2));
    assert_eq!(done(o.next(&mut e)), Status::TimedOut);
    assert!(!e.in_doubt());
}

/// An earlier item of the batch has released the client's former hold, so nothing but the new hold
/// is undone.
#[test]
fn what_a_batch_has_taken_anew_and_cannot_tell_is_undone_at_once() {
    let e = held(LockType::Atomic);
    let (mut batch, mut rig) = batch(vec![e], &[(Op::Unlock, 0), (TAKE, 0)]);
    for found in [None, Some(0)] {
        let Some((i, Effect::Post { chain, .. })) = batch.next(&mut rig) else {
            panic!("it posts")
        };
        let WordOp::Cas { expect, .. } = chain.ops()[0] else { panic!("{chain:?}") };
        batch.outcome(i, rig.entry(0), values(&[found.unwrap_or(expect)]), at(9));
    }
    rig.1 = at(100 * NS);
    assert_eq!(batch.next(&mut rig), Some((1, Effect::Tell(RESOLVE))));
    assert_eq!(batch.next(&mut rig), None);
}

/// For later items of the batch, the lock counts as held by another client.
#[test]
fn a_read_write_lock_that_a_batch_has_taken_exclusively_is_taken() {
    for mode in [X, S] {
        let again = Op::TryLock { mode, lease: Lease::secs(5) };
        let (mut batch, mut rig) = batch(vec![entry(LockType::Rw)], &[(TAKE, 0), (again, 0)]);
        let Some((0, Effect::Post { .. })) = batch.next(&mut rig) else { panic!("it posts") };
        batch.outcome(0, rig.entry(0), values(&[0]), at(1));
        assert_eq!(batch.next(&mut rig), None);
        assert_eq!(codes(&batch), [Status::Success, Status::Fail], "{mode:?}");
        assert_eq!(rig.entry(0).refs(), 1);
    }
}
