// SPDX-License-Identifier: MIT OR Apache-2.0
//! How an operation that finds the lock held tries again before it queues, and for how long.

use super::*;
use crate::clock::{Deadline, Lease};
use crate::limits::{
    TRIES_AT_ONCE_MAX, TRIES_HOLDS_MAX, TRIES_MAX, TRY_AT_ONCE_NS_MAX, TRY_PAUSE_NS_MAX,
    TRY_PAUSE_NS_SHORT, TRY_SAME_HOLD_NS_MAX,
};
use crate::memory::words::RwWord;

const LOCK_SHARED: Op = Op::Lock { mode: S, lease: Lease::secs(5) };

fn trying(lock_type: LockType) -> LockEntry {
    let mut e = entry(lock_type);
    e.may_try(true);
    e
}

/// A hold of another client. Holds with different numbers have different words.
fn hold(lock_type: LockType, number: u64) -> u64 {
    match lock_type {
        LockType::Rw => RwWord::new().with_client(8 + number as u32).into_bits(),
        _ => AtomicWord::new()
            .with_client(8)
            .with_timeout(Deadline::at_s(9_999 + number as u32))
            .into_bits(),
    }
}

fn pause_ns(effect: Effect) -> u64 {
    match effect {
        Effect::Pause { pause_ns, .. } => pause_ns,
        other => panic!("{other:?} is no pause"),
    }
}

fn is_wait(effect: &Effect) -> bool {
    matches!(effect, Effect::Ask { request: Request::Wait { .. }, .. })
}

/// Carries an operation out up to a pause or to its wait; every chain finds this word.
fn tries(o: &mut Operation, e: &mut LockEntry, word: u64) -> Effect {
    loop {
        match o.next(e) {
            Effect::Post { chain, .. } => {
                o.outcome(e, values(&vec![word; chain.values_len()]), at(1));
            }
            Effect::WriteLedger(_) => {}
            Effect::ReadClock => o.clock(at(1)),
            effect => return effect,
        }
    }
}

#[test]
fn a_lock_that_another_one_has_released_meanwhile_is_taken_by_the_next_try() {
    for lock_type in [LockType::Atomic, LockType::Rw] {
        for op in [LOCK, LOCK_SHARED] {
            if (lock_type, op) == (LockType::Atomic, LOCK_SHARED) {
                continue;
            }
            let mut e = trying(lock_type);
            let mut o = begin(&mut e, op);
            let effect = tries(&mut o, &mut e, hold(lock_type, 0));
            assert_eq!(pause_ns(effect), 0, "the first one comes at once");
            o.paused(&mut e, at(5));
            assert_eq!(done(tries(&mut o, &mut e, 0)), Status::Success, "{lock_type:?}");
        }
    }
}

#[test]
fn who_may_not_try_queues_at_once_and_who_does_not_wait_fails() {
    for lock_type in [LockType::Atomic, LockType::Rw] {
        let mut e = entry(lock_type);
        let mut o = begin(&mut e, LOCK);
        assert!(is_wait(&tries(&mut o, &mut e, hold(lock_type, 0))));
        let mut e = trying(lock_type);
        let mut o = begin(&mut e, TAKE);
        let failed = std::iter::repeat_with(|| tries(&mut o, &mut e, hold(lock_type, 0)));
        let mut ends = failed.filter(|effect| !matches!(effect, Effect::Count(_)));
        assert_eq!(done(ends.next().unwrap()), Status::Fail);
    }
}

#[test]
fn who_has_lost_against_so_many_holds_queues() {
    for lock_type in [LockType::Atomic, LockType::Rw] {
        let mut e = trying(lock_type);
        let mut o = begin(&mut e, LOCK);
        for number in 1..u64::from(TRIES_HOLDS_MAX) {
            let effect = tries(&mut o, &mut e, hold(lock_type, number));
            assert_eq!(pause_ns(effect), 0, "a hold that was found just now");
            o.paused(&mut e, at(number));
        }
        assert!(is_wait(&tries(&mut o, &mut e, hold(lock_type, 0))), "{lock_type:?}");
    }
}

/// The limit also holds for a client whose clock stands still.
#[test]
fn who_has_tried_so_often_queues_whatever_it_finds() {
    let mut e = trying(LockType::Atomic);
    let mut o = begin(&mut e, LOCK);
    for _ in 1..TRIES_MAX {
        let effect = tries(&mut o, &mut e, hold(LockType::Atomic, 0));
        assert_eq!(pause_ns(effect), 0);
        o.paused(&mut e, at(5));
    }
    assert!(is_wait(&tries(&mut o, &mut e, hold(LockType::Atomic, 0))));
}

#[test]
fn who_has_lost_the_lock_to_others_pauses_for_a_quarter_of_the_hold() {
    let mut e = trying(LockType::Atomic);
    let mut o = begin(&mut e, LOCK);
    for n in 0..2 {
        assert!(matches!(tries(&mut o, &mut e, hold(LockType::Atomic, n)), Effect::Pause { .. }));
        o.paused(&mut e, at(1_000));
    }
    let second = hold(LockType::Atomic, 1);
    for (ns, pause) in [(400_000, 100_000), (8_000_000, TRY_PAUSE_NS_MAX)] {
        assert!(matches!(tries(&mut o, &mut e, second), Effect::Pause { .. }));
        o.paused(&mut e, at(1_000 + ns));
        assert_eq!(pause_ns(tries(&mut o, &mut e, second)), pause);
        o.paused(&mut e, at(1_000 + ns));
    }
}

/// Makes so many tries, all of which find this hold, that the client begins to pause between them.
fn tires(o: &mut Operation, e: &mut LockEntry, same: u64) {
    for _ in 0..TRIES_AT_ONCE_MAX {
        assert!(matches!(tries(o, e, same), Effect::Pause { .. }));
        o.paused(e, at(1_000));
    }
}

#[test]
fn who_finds_the_same_hold_looks_all_the_time_at_first() {
    let mut e = trying(LockType::Atomic);
    let mut o = begin(&mut e, LOCK);
    let same = hold(LockType::Atomic, 0);
    let first = 1_000;
    for n in 1..TRIES_AT_ONCE_MAX {
        assert_eq!(pause_ns(tries(&mut o, &mut e, same)), 0, "{n}");
        o.paused(&mut e, at(first + 500 * u64::from(n - 1)));
    }
    assert_ne!(pause_ns(tries(&mut o, &mut e, same)), 0, "often enough");

    let mut o = begin(&mut e, LOCK);
    assert_eq!(pause_ns(tries(&mut o, &mut e, same)), 0);
    o.paused(&mut e, at(first));
    assert_eq!(pause_ns(tries(&mut o, &mut e, same)), 0);
    o.paused(&mut e, at(first + TRY_AT_ONCE_NS_MAX - 1));
    assert_eq!(pause_ns(tries(&mut o, &mut e, same)), 0);
    o.paused(&mut e, at(first + TRY_AT_ONCE_NS_MAX));
    assert_ne!(pause_ns(tries(&mut o, &mut e, same)), 0, "long enough");
}

#[test]
fn who_finds_the_same_hold_pauses_longer_and_longer_and_then_queues() {
    let mut e = trying(LockType::Atomic);
    let mut o = begin(&mut e, LOCK);
    let same = hold(LockType::Atomic, 0);
    let first = 1_000;
    tires(&mut o, &mut e, same);
    for (ns, pause) in [
        (first + 400, 100),
        (first + 4 * TRY_PAUSE_NS_SHORT, TRY_PAUSE_NS_SHORT),
        (first + 12 * TRY_PAUSE_NS_SHORT, TRY_PAUSE_NS_SHORT),
        (first + 32 * TRY_PAUSE_NS_SHORT, 2 * TRY_PAUSE_NS_SHORT),
        (first + 16 * TRY_PAUSE_NS_MAX, TRY_PAUSE_NS_MAX),
        (first + TRY_SAME_HOLD_NS_MAX - 1, TRY_PAUSE_NS_MAX),
    ] {
        assert!(matches!(tries(&mut o, &mut e, same), Effect::Pause { .. }));
        o.paused(&mut e, at(ns));
        let effect = tries(&mut o, &mut e, same);
        assert_eq!(pause_ns(effect), pause, "{ns}");
        o.paused(&mut e, at(ns));
    }
    // a new hold of another client is looked at without pauses, as the first one was
    assert_eq!(pause_ns(tries(&mut o, &mut e, hold(LockType::Atomic, 1))), 0);
    let later = first + TRY_SAME_HOLD_NS_MAX;
    o.paused(&mut e, at(later));
    assert!(matches!(tries(&mut o, &mut e, hold(LockType::Atomic, 1)), Effect::Pause { .. }));
    o.paused(&mut e, at(later + TRY_SAME_HOLD_NS_MAX));
    assert!(is_wait(&o.next(&mut e)));
}

#[test]
fn who_does_not_pause_queues() {
    let mut e = trying(LockType::Atomic);
    let mut o = begin(&mut e, LOCK);
    assert!(matches!(tries(&mut o, &mut e, others_word()), Effect::Pause { .. }));
    assert!(o.is_waiting());
    o.queues(&mut e);
    assert!(!o.is_waiting() && is_wait(&o.next(&mut e)));
    o.queues(&mut e);
    o.paused(&mut e, at(9));
    assert!(o.is_waiting(), "for the grant");
}

/// A wait at the primary ends at once if no time is left, or reports what there is to report.
#[test]
fn who_has_no_time_left_after_a_pause_queues() {
    let until_ns = bounds().grant_until_ns - START;
    for (ns, tries_again) in [(until_ns - 1, true), (until_ns, false), (until_ns + 1, false)] {
        let mut e = trying(LockType::Atomic);
        let mut o = begin(&mut e, LOCK);
        assert!(matches!(tries(&mut o, &mut e, others_word()), Effect::Pause { .. }));
        o.paused(&mut e, at(ns));
        assert_eq!(is_wait(&o.next(&mut e)), !tries_again, "{ns}");
    }
}

#[test]
fn a_pause_that_lasts_past_the_horizon_or_into_another_session_ends_the_call() {
    let past = Now { horizon_ns: START + 5, ..at(5) };
    let ends: [fn(&mut Operation, &mut LockEntry, Now); 2] =
        [|o, e, past| o.paused(e, past), |o, e, _| o.replaced(e, at(5))];
    for end in ends {
        let mut e = trying(LockType::Rw);
        let mut o = begin(&mut e, LOCK);
        assert!(matches!(tries(&mut o, &mut e, hold(LockType::Rw, 0)), Effect::Pause { .. }));
        end(&mut o, &mut e, past);
        let told = std::iter::repeat_with(|| o.next(&mut e)).find(|effect| {
            !matches!(effect, Effect::WriteLedger(_) | Effect::Tell(_) | Effect::Count(_))
        });
        assert_eq!(done(told.unwrap()), Status::BadResponse);
    }
}

/// A reader that adds itself to a lock with an owner is in the way of the client that takes the
/// lock next, so the reader looks first.
#[test]
fn a_reader_looks_before_it_tries_again() {
    let mut e = trying(LockType::Rw);
    let mut o = begin(&mut e, LOCK_SHARED);
    let same = hold(LockType::Rw, 0);
    assert!(matches!(tries(&mut o, &mut e, same), Effect::Pause { .. }));
    for found in [same, RwWord::new().with_waiters(true).with_rcount(1).into_bits()] {
        o.paused(&mut e, at(5));
        let ops = posted(o.next(&mut e));
        assert!(matches!(ops[..], [WordOp::Read { .. }]), "{ops:?}");
        o.outcome(&mut e, values(&[found]), at(6));
        assert!(matches!(o.next(&mut e), Effect::Pause { .. }), "{found:x}");
    }
    o.paused(&mut e, at(7));
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[RwWord::new().with_rcount(2).into_bits()]), at(8));
    let ops = posted(o.next(&mut e));
    assert!(matches!(ops[..], [WordOp::WriteLedger { .. }, WordOp::Faa { .. }]), "{ops:?}");
}

/// Other readers add themselves and step back while the owner holds the lock. For a reader that
/// waits for the owner, that is one hold all the time.
#[test]
fn readers_that_step_back_are_no_other_hold() {
    let mut e = trying(LockType::Rw);
    let mut o = begin(&mut e, LOCK_SHARED);
    let word = RwWord::from_bits(hold(LockType::Rw, 0));
    for rcount in 0..3 * u32::from(TRIES_HOLDS_MAX) {
        let found = word.with_rcount(1 + rcount % 5).into_bits();
        assert!(matches!(tries(&mut o, &mut e, found), Effect::Pause { .. }), "{rcount}");
        o.paused(&mut e, at(5));
    }
}

/// The reader queues at the arbiter, because otherwise the waiting clients would not be woken.
#[test]
fn a_reader_that_leaves_a_free_lock_with_waiters_queues_and_wakes_them_so() {
    let mut e = trying(LockType::Rw);
    let mut o = begin(&mut e, LOCK_SHARED);
    let free = RwWord::new().with_waiters(true);
    assert_eq!(posted(o.next(&mut e)).len(), 2);
    o.outcome(&mut e, values(&[0, free.into_bits()]), at(1));
    assert_eq!(posted(o.next(&mut e)).len(), 2);
    o.outcome(&mut e, values(&[free.with_rcount(1).into_bits(), 0]), at(2));
    assert!(matches!(o.next(&mut e), Effect::WriteLedger(_)));
    assert!(is_wait(&o.next(&mut e)));
}

#[test]
fn tries_are_no_steps() {
    let mut e = trying(LockType::Atomic);
    let mut o = begin(&mut e, LOCK);
    for number in 1..u64::from(TRIES_HOLDS_MAX) {
        assert!(matches!(
            tries(&mut o, &mut e, hold(LockType::Atomic, number)),
            Effect::Pause { .. }
        ));
        assert!(o.steps <= 1, "{}", o.steps);
        o.paused(&mut e, at(number));
    }
}
