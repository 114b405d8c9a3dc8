// SPDX-License-Identifier: MIT OR Apache-2.0
//! A turn that is told by the holder before.

use super::*;
use crate::limits::{CAS_ROUNDS_MAX, CLAIM_LEASE_S_MAX, HAND_ON_NS_MAX, NOTE_LATE_NS};
use crate::lock::NotedBy;

const LOCAL: u64 = START;

/// As over verbs; its place is as old as everything.
fn neighbour() -> LockEntry {
    let mut e = one_sided();
    e.noted_by(NotedBy::ClientLate);
    e.is_got_at(0);
    e
}

/// It has taken its ticket, 4, and pauses; the lock is relayed.
fn pauses(e: &mut LockEntry, op: Op) -> Operation {
    let mut o = takes(e, op);
    assert!(matches!(next(&mut o, e), Effect::Pause { .. }));
    o
}

/// Holds the lock since `ns`, and was told so.
fn handed(ns: u64) -> LockEntry {
    let mut e = neighbour();
    let mut o = pauses(&mut e, LOCK);
    assert_eq!(o.listens(&e), Some(4));
    o.handed(&mut e, LOCAL + ns, at(ns));
    assert_eq!(done(next(&mut o, &mut e)), Status::Success);
    assert_eq!((e.state(), e.refs()), (EntryState::ExclusiveLocked, 1));
    e
}

/// The release is refused so, until it asks for something else than another try.
fn refused(e: &mut LockEntry, found: u64) -> (Operation, u32, Effect) {
    let mut o = begins(e, Op::Unlock, 100);
    for n in 0.. {
        match next(&mut o, e) {
            Effect::Post { chain, .. } if chain.ops() == [cas(W1, 4, 5)] => {
                o.outcome(e, values(&[found]), at(101));
            }
            effect => return (o, n, effect),
        }
    }
    unreachable!()
}

#[test]
fn who_is_handed_the_lock_has_it_with_a_lease_from_then_on() {
    let e = handed(NOTE_LATE_NS - 1);
    assert_eq!(e.deadline_s(), at(NOTE_LATE_NS - 1).deadline(5));
    assert_eq!(e.ticket(), Some(TICKET));
}

#[test]
fn that_counts_for_a_moment_and_of_the_lock_that_has_this_place() {
    let cases = [(0, 0, true), (0, HAND_ON_NS_MAX, true), (0, HAND_ON_NS_MAX + 1, false)];
    for (since, now, counts) in cases {
        let mut e = neighbour();
        let mut o = pauses(&mut e, LOCK);
        o.handed(&mut e, LOCAL + since, at(now));
        let is_held = matches!(next(&mut o, &mut e), Effect::Done(_));
        assert_eq!(is_held, counts, "{now}");
    }
    // however long its pause was: it is claimed by an intent for so long
    let mut e = neighbour();
    let mut o = pauses(&mut e, LOCK);
    o.handed(&mut e, LOCAL + NOTE_LATE_NS, at(NOTE_LATE_NS));
    assert!(matches!(next(&mut o, &mut e), Effect::Post { .. }));
    // of another clock
    let mut e = neighbour();
    let mut o = pauses(&mut e, LOCK);
    o.handed(&mut e, LOCAL + 6, at(5));
    assert_eq!(posted(next(&mut o, &mut e)), [READ_TURN]);
    // another lock had the place, or one of the same name
    for (got, counts) in [(LOCAL + 1, true), (LOCAL + 2, false), (u64::MAX, false)] {
        let mut e = neighbour();
        e.is_got_at(got);
        let mut o = pauses(&mut e, LOCK);
        o.handed(&mut e, LOCAL + 1, at(3));
        assert_eq!(matches!(next(&mut o, &mut e), Effect::Done(_)), counts, "{got}");
    }
}

/// Its deadline is of the clock in use then, which is another one than when the call began.
#[test]
fn a_hold_that_is_handed_on_is_judged_by_the_clock_in_use_then() {
    let mut e = neighbour();
    let mut o = pauses(&mut e, LOCK);
    let now = Now { discontinuities: 1, ..at(1) };
    o.handed(&mut e, LOCAL + 1, now);
    assert_eq!(done(next(&mut o, &mut e)), Status::Success);
    assert!(!e.is_of_another_clock(now));
}

#[test]
fn a_place_that_is_given_anew_is_handed_nothing_of_before() {
    let mut e = neighbour();
    let grant =
        LockGrant { lock: LockId(5), handle: Handle(3), slot: Slot(9), word: 0, already: false };
    e.rebind(&grant, 0);
    let mut o = pauses(&mut e, LOCK);
    o.handed(&mut e, LOCAL + 1, at(2));
    assert_eq!(posted(next(&mut o, &mut e)), [READ_TURN]);
}

/// What is written with the ticket does not outlast a session before its turn.
#[test]
fn only_an_intent_claims_a_turn_that_is_handed_on() {
    let mut e = neighbour();
    e.noted_by(NotedBy::Client);
    let mut o = pauses(&mut e, LOCK);
    o.handed(&mut e, LOCAL + 3, at(3));
    assert!(matches!(posted(next(&mut o, &mut e))[..], [WordOp::WriteLedger { .. }, READ_TURN]));
    // one that looks for longer names its ticket
    let mut e = neighbour();
    let mut o = pauses(&mut e, LOCK);
    o.paused(&mut e, at(NOTE_LATE_NS - 1));
    assert_eq!(posted(next(&mut o, &mut e)), [READ_TURN]);
    o.outcome(&mut e, values(&[2]), at(NOTE_LATE_NS));
    assert!(matches!(next(&mut o, &mut e), Effect::Pause { .. }));
    assert_eq!(o.listens(&e), Some(4));
    o.paused(&mut e, at(NOTE_LATE_NS + 1));
    assert!(matches!(posted(next(&mut o, &mut e))[..], [WordOp::WriteLedger { .. }, READ_TURN]));
    o.outcome(&mut e, values(&[0, 2]), at(NOTE_LATE_NS + 2));
    assert!(matches!(next(&mut o, &mut e), Effect::Pause { .. }));
    assert_eq!(o.listens(&e), None);
    o.handed(&mut e, LOCAL + NOTE_LATE_NS, at(NOTE_LATE_NS + 3));
    assert_eq!(posted(next(&mut o, &mut e)), [READ_TURN]);
}

#[test]
fn only_an_exclusive_ticket_that_looks_for_its_turn_listens() {
    let shared = Op::Lock { mode: S, expire_s: 5 };
    let mut e = neighbour();
    let mut o = begins(&mut e, shared, 0);
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[0, relayed(4)]), at(1));
    assert_eq!(o.listens(&e), None);
    // a lease that is not claimed
    let mut e = neighbour();
    let mut o = begins(&mut e, Op::Lock { mode: X, expire_s: CLAIM_LEASE_S_MAX + 1 }, 0);
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[0, relayed(4)]), at(1));
    assert!(matches!(next(&mut o, &mut e), Effect::Pause { .. }));
    o.handed(&mut e, LOCAL + 2, at(2));
    assert!(matches!(next(&mut o, &mut e), Effect::Post { .. }), "it looks");
    // a share is open before it
    let mut e = neighbour();
    let mut o = begins(&mut e, LOCK, 0);
    let _ = posted(o.next(&mut e));
    let open = FairWord::from_bits(relayed(4)).with_ns(6).into_bits();
    o.outcome(&mut e, values(&[0, open]), at(1));
    assert!(matches!(next(&mut o, &mut e), Effect::Pause { .. }));
    assert_eq!(o.listens(&e), None);
    o.handed(&mut e, LOCAL + 2, at(2));
    assert!(matches!(next(&mut o, &mut e), Effect::Post { .. }), "it looks");
    // a primary that does not relay
    let mut e = neighbour();
    e.may_relay(false);
    let o = pauses(&mut e, LOCK);
    assert_eq!(o.listens(&e), None);
}

#[test]
fn a_release_that_names_the_next_ticket_hands_the_lock_on() {
    let mut e = handed(2);
    let mut o = begins(&mut e, Op::Unlock, 100);
    assert_eq!(o.hands_on_to(&e), None, "it is not posted");
    assert_eq!(posted(next(&mut o, &mut e)), [cas(W1, 4, 5)]);
    assert_eq!(o.hands_on_to(&e), Some((5, LOCAL + 2)), "since it was granted");
    o.outcome(&mut e, values(&[4]), at(500));
    assert_eq!(o.hands_on_to(&e), None);
    is_released(o, &mut e, 5);
    // one that begins or ends a relay, or asks, does not
    let mut e = followed();
    let (mut o, _) = releases(&mut e);
    assert_eq!(o.hands_on_to(&e), None);
    o.outcome(&mut e, values(&[0]), at(4));
    let _ = posted(o.next(&mut e));
    assert_eq!(o.hands_on_to(&e), None);
}

/// The release before is on its way: its number is there soon, or never.
#[test]
fn a_release_that_comes_too_early_is_tried_again_and_then_given_up() {
    let mut e = handed(2);
    let mut o = begins(&mut e, Op::Unlock, 100);
    for found in [2, 3] {
        assert_eq!(posted(next(&mut o, &mut e)), [cas(W1, 4, 5)]);
        o.outcome(&mut e, values(&[found]), at(101));
    }
    assert_eq!(posted(next(&mut o, &mut e)), [cas(W1, 4, 5)]);
    o.outcome(&mut e, values(&[4]), at(102));
    is_released(o, &mut e, 5);

    let mut e = handed(2);
    let (mut o, tries, effect) = refused(&mut e, 3);
    assert_eq!(tries, CAS_ROUNDS_MAX);
    let abandon = Request::Abandon { handle: Handle(3), mode: X, ticket: TICKET };
    assert_eq!(effect, Effect::Tell(abandon));
    let Effect::Done(result) = next(&mut o, &mut e) else { panic!("it is over") };
    assert_eq!((result.status, e.state()), (Status::Success, EntryState::Unlocked));
    let Some(View::Fair { nx: 3, .. }) = result.view else { panic!("{result:?}") };
    let mut moved = e.clone();
    assert_eq!(crate::session::resume(&mut moved, false, at(150)), Some(RESOLVE));
    let mut o = begins(&mut e, LOCK, 200);
    assert!(matches!(asked(next(&mut o, &mut e)), Request::TakeTicket { .. }), "behind that");
}

/// What it has given up stays named.
#[test]
fn a_ticket_that_is_given_up_is_named_before_that_is_told() {
    let mut e = handed(2);
    let mut o = begins(&mut e, Op::Unlock, 100);
    let mut note = None;
    loop {
        match o.next(&mut e) {
            Effect::Post { .. } => o.outcome(&mut e, values(&[3]), at(101)),
            Effect::WriteLedger(entry) => note = Some(entry),
            Effect::Tell(_) => break,
            other => panic!("{other:?}"),
        }
    }
    let note = note.expect("it is noted");
    assert_eq!((note.state(), note.ticket()), (LedgerState::GivenUpExclusive, TICKET));
}

/// The arbiter has taken the number back into the word.
#[test]
fn a_release_that_finds_that_somebody_sleeps_looks_at_both_words() {
    for (turn, word, asks) in
        [(4 | TOLD, relayed(6), true), (4 | ENDED, word(4, 6), false), (4, relayed(6), false)]
    {
        let mut e = handed(2);
        let (mut o, tries, effect) = refused(&mut e, 3 | TOLD);
        assert_eq!((tries, posted(effect)), (1, vec![READ_TURN, READ]));
        o.outcome(&mut e, values(&[3 | TOLD, super::word(3, 6)]), at(102));
        assert_eq!(posted(next(&mut o, &mut e)), [READ_TURN, READ], "not yet");
        o.outcome(&mut e, values(&[turn, word]), at(103));
        match next(&mut o, &mut e) {
            Effect::Ask { request: Request::Release { .. }, .. } => assert!(asks),
            Effect::Post { .. } => assert!(!asks),
            other => panic!("{other:?}"),
        }
    }
    let mut e = handed(2);
    let (mut o, _, _) = refused(&mut e, 3 | ENDED);
    let mut late = (o.clone(), e.clone());
    o.outcome(&mut e, values(&[9, word(9, 9)]), at(102));
    assert_eq!(done(next(&mut o, &mut e)), Status::Fail, "it was ended");
    // long ago: more than half a lane further
    late.0.outcome(&mut late.1, values(&[0xF000, word(0xF000, 0xF001)]), at(102));
    assert_eq!(done(next(&mut late.0, &mut late.1)), Status::Fail);
}

#[test]
fn a_lease_is_extended_while_the_release_before_is_on_its_way() {
    let extend = Op::Extend { mode: X, expire_s: 20 };
    for (turn, word, status) in [
        (3, relayed(6), Status::Success),
        (4, relayed(6), Status::Success),
        (3 | TOLD, super::word(3, 6), Status::Success),
        (5, relayed(6), Status::Fail),
    ] {
        let mut e = handed(2);
        let mut o = begins(&mut e, extend, 100);
        let ops = posted(next(&mut o, &mut e));
        let [WordOp::WriteLedger { value, .. }, READ_TURN, READ] = ops[..] else {
            panic!("{ops:?}")
        };
        let note = LedgerEntry::from_bits(value);
        assert_eq!((note.state(), note.ticket()), (LedgerState::HeldExclusive, TICKET));
        o.outcome(&mut e, values(&[0, turn, word]), at(101));
        assert_eq!(done(next(&mut o, &mut e)), status, "{turn:x}");
        if status == Status::Success {
            assert_eq!(e.deadline_s(), at(100).deadline(20));
            assert_eq!(e.refs(), 1);
        }
    }
    // too late: the arbiter decides
    let mut e = handed(2);
    let mut o = begins(&mut e, extend, 100);
    let _ = posted(next(&mut o, &mut e));
    o.outcome(&mut e, values(&[0, 3, relayed(6)]), at(7 * NS));
    assert!(matches!(asked(next(&mut o, &mut e)), Request::Extend { .. }));
}

/// Its lease may be over: it does not name its own number any more, and the arbiter says who has
/// the turn, if that has come.
#[test]
fn a_late_release_looks_and_asks_the_arbiter() {
    let mut e = handed(2);
    let mut o = begins(&mut e, Op::Unlock, 7 * NS);
    assert_eq!(posted(next(&mut o, &mut e)), [READ_TURN, READ]);
    o.outcome(&mut e, values(&[3, relayed(6)]), at(7 * NS));
    assert_eq!(posted(next(&mut o, &mut e)), [READ_TURN, READ], "not yet");
    o.outcome(&mut e, values(&[4, relayed(6)]), at(7 * NS));
    assert!(matches!(asked(next(&mut o, &mut e)), Request::Release { .. }));
}

/// The arbiter may be about to end the relay: its mark is not taken for the holder's own number.
#[test]
fn an_extension_does_not_go_by_what_the_arbiter_has_marked() {
    let mut e = handed(2);
    let mut o = begins(&mut e, Op::Extend { mode: X, expire_s: 20 }, 100);
    let _ = posted(next(&mut o, &mut e));
    o.outcome(&mut e, values(&[0, 4 | TOLD, relayed(6)]), at(101));
    assert_eq!(done(next(&mut o, &mut e)), Status::Success);
    let mut o = begins(&mut e, Op::Unlock, 200);
    assert_eq!(posted(next(&mut o, &mut e)), [cas(W1, 4, 5)]);
}

/// The clock has turned out to be three seconds ahead since the call began.
#[test]
fn the_deadline_of_a_hold_that_is_handed_on_is_of_the_clock_in_use_then() {
    let mut e = neighbour();
    let mut o = pauses(&mut e, LOCK);
    let now = Now { time: ServerTime(START - 3 * NS), discontinuities: 1, ..at(1) };
    o.handed(&mut e, LOCAL + 1, now);
    assert_eq!(done(next(&mut o, &mut e)), Status::Success);
    assert_eq!(e.deadline_s(), now.deadline(5));
}
