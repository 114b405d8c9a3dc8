// SPDX-License-Identifier: MIT OR Apache-2.0
//! The turn of an exclusive ticket of a fair lock, seen and handed on without the arbiter.

use super::*;
use crate::limits::{
    FAIR_GRACE_S, FAR_PAUSE_NS_MAX, TRIES_AT_ONCE_MAX, TRIES_MAX, TRY_AT_ONCE_NS_MAX,
    TRY_PAUSE_NS_MAX, TRY_SAME_HOLD_NS_MAX,
};
use crate::word_op::WordAddr;
use crate::words::Ticket;

const W0: WordAddr = WordAddr::from_index(9 * 4);
const LATE_NS: u64 = FAIR_GRACE_S as u64 * NS / 2;
/// Mine: the second of two that are open.
const TICKET: Ticket = Ticket { tx: 4, ts: 7 };
const READ: WordOp = WordOp::Read { addr: W0 };

/// `nx` is served, and so many tickets are taken.
fn word(nx: u16, mx: u16) -> u64 {
    FairWord::new().with_nx(nx).with_mx(mx).with_ns(7).with_ms(7).into_bits()
}

fn ticket(deadline_s: u32) -> LedgerEntry {
    LedgerEntry::of_ticket(LedgerState::TicketExclusive, TICKET).with_deadline_s(deadline_s, 0)
}

fn claim(deadline_s: u32) -> WordOp {
    WordOp::WriteLedger { handle: Handle(3), value: ticket(deadline_s).into_bits() }
}

/// It has taken its ticket behind another one, and pauses.
fn queued(lease_s: u32) -> (LockEntry, Operation) {
    queued_at(0, lease_s)
}

fn queued_at(ns: u64, lease_s: u32) -> (LockEntry, Operation) {
    queues_behind(entry(LockType::Fair), (ns, lease_s), 3)
}

/// Up to four tickets are before it, of which `nx` is served.
fn queues_behind(mut e: LockEntry, (ns, lease_s): (u64, u32), nx: u16) -> (LockEntry, Operation) {
    e.may_try(true);
    let mut o = begin_at(&mut e, Op::Lock { mode: X, expire_s: lease_s }, ns);
    assert!(matches!(posted(o.next(&mut e))[..], [WordOp::WriteLedger { .. }, WordOp::Faa { .. }]));
    o.outcome(&mut e, values(&[0, word(nx, 4)]), at(ns + 1));
    (e, o)
}

/// Pauses, and looks at `ns`; what is posted.
fn looks(e: &mut LockEntry, o: &mut Operation, ns: u64) -> Vec<WordOp> {
    assert!(matches!(o.next(e), Effect::Pause { .. }));
    o.paused(e, at(ns));
    posted(o.next(e))
}

/// Holds the lock, by a claim, with this word.
fn holder(word: u64) -> LockEntry {
    let (mut e, mut o) = queued(5);
    assert_eq!(looks(&mut e, &mut o, 2), [claim(1_005), READ]);
    o.outcome(&mut e, values(&[0, word]), at(3));
    assert_eq!(done(o.next(&mut e)), Status::Success);
    e
}

/// What follows, but for what is counted.
fn end(o: &mut Operation, e: &mut LockEntry) -> Effect {
    let mut effects = std::iter::repeat_with(|| o.next(e));
    effects.find(|effect| !matches!(effect, Effect::Count(_))).expect("they never end")
}

/// What the companion word says where the arbiter is to be told of a release.
const TOLD: u64 = 1 << 63;
const W1: WordAddr = WordAddr::from_index(4 * 9 + 1);

/// The holder of this word has asked whether the lock can be relayed: it cannot.
fn releases_where_somebody_sleeps(word: u64) -> (LockEntry, Operation) {
    let mut e = holder(word);
    let (mut o, posted) = releases(&mut e);
    assert_eq!(posted, [WordOp::Cas { addr: W1, expect: 0, swap: 4 }]);
    o.outcome(&mut e, values(&[TOLD | 3]), at(5));
    (e, o)
}

fn releases(e: &mut LockEntry) -> (Operation, Vec<WordOp>) {
    let mut o = begin(e, Op::Unlock);
    let posted = posted(o.next(e));
    (o, posted)
}

#[test]
fn a_turn_is_claimed_before_it_is_looked_for_and_seen_without_anybody_else() {
    let before = NS - 10;
    let (mut e, mut o) = queued_at(before, 5);
    assert_eq!(looks(&mut e, &mut o, before + 2), [claim(1_005), READ]);
    o.outcome(&mut e, values(&[0, word(3, 5)]), at(before + 3));
    assert_eq!(looks(&mut e, &mut o, before + 4), [READ], "it is claimed until then already");
    o.outcome(&mut e, values(&[word(3, 5)]), at(before + 5));
    assert_eq!(looks(&mut e, &mut o, NS), [claim(1_006), READ], "the lease counts from this look");
    o.outcome(&mut e, values(&[0, word(4, 5)]), at(NS + 1));
    let Effect::Done(result) = o.next(&mut e) else { panic!("nothing more is to be done") };
    assert_eq!(result.status, Status::Success);
    let Some(View::Fair { nx: 4, mx: 5, time_out: 1_006, .. }) = result.view else {
        panic!("{result:?}")
    };
    assert_eq!((e.deadline_s(), e.ticket()), (1_006, Some(TICKET)));
}

#[test]
fn readers_before_a_ticket_have_their_turn_first() {
    let (mut e, mut o) = queued(5);
    let _ = looks(&mut e, &mut o, 2);
    let readers = FairWord::from_bits(word(4, 5)).with_ns(6).into_bits();
    o.outcome(&mut e, values(&[0, readers]), at(3));
    assert_eq!(looks(&mut e, &mut o, 4), [READ]);
}

/// An earlier claim may be over, and the ticket with it.
#[test]
fn who_has_not_looked_for_a_second_asks_the_arbiter() {
    for (ns, is_late) in [(LATE_NS - 1, false), (LATE_NS, true)] {
        for looked_before in [false, true] {
            let (mut e, mut o) = queued(5);
            let mut base = 0;
            if looked_before {
                base = 500;
                let _ = looks(&mut e, &mut o, base);
                o.outcome(&mut e, values(&[0, word(3, 5)]), at(base + 1));
            }
            let _ = looks(&mut e, &mut o, base + 7);
            o.outcome(&mut e, values(&[word(4, 5)]), at(base + ns));
            if !is_late {
                assert_eq!(done(o.next(&mut e)), Status::Success);
                continue;
            }
            assert_eq!(o.next(&mut e), Effect::WriteLedger(ticket(0)), "it is claimed no more");
            let Effect::Ask { request: Request::Wait { ticket, .. }, .. } = o.next(&mut e) else {
                panic!("it asks");
            };
            assert_eq!(ticket, Some(TICKET));
        }
    }
}

#[test]
fn a_long_lease_is_noted_at_the_turn_and_the_note_is_waited_for() {
    for (lease_s, late) in
        [(CLAIM_LEASE_S_MAX + 1, false), (CLAIM_LEASE_S_MAX + 1, true), (u32::MAX, false)]
    {
        let (mut e, mut o) = queued(lease_s);
        assert_eq!(looks(&mut e, &mut o, 2), [claim(0), READ], "named, and not claimed");
        o.outcome(&mut e, values(&[0, word(4, 5)]), at(3));
        let Effect::WriteLedger(noted) = o.next(&mut e) else { panic!("the note first") };
        let deadline_s = 1_000_u32.saturating_add(lease_s);
        assert_eq!((noted.state(), noted.ticket()), (LedgerState::HeldExclusive, TICKET));
        assert_eq!(noted.deadline_s(0), deadline_s);
        assert!(matches!(o.next(&mut e), Effect::Flush { .. }));
        o.flushed(&mut e, true, at(if late { LATE_NS } else { 4 }));
        match late {
            false => assert_eq!(done(o.next(&mut e)), Status::Success),
            true => {
                assert_eq!(o.next(&mut e), Effect::WriteLedger(ticket(0)));
                assert!(matches!(o.next(&mut e), Effect::Ask { .. }), "it asks");
            }
        }
    }
    let (mut e, mut o) = queued(CLAIM_LEASE_S_MAX);
    assert_eq!(looks(&mut e, &mut o, 2), [claim(1_060), READ], "the longest that is claimed");
}

/// The ledger may say that it is held: asked again with the ticket, it would wait for itself.
#[test]
fn a_lost_note_of_a_long_lease_leaves_a_doubt() {
    let (mut e, mut o) = queued(u32::MAX);
    let _ = looks(&mut e, &mut o, 2);
    o.outcome(&mut e, values(&[0, word(4, 5)]), at(3));
    assert!(matches!(o.next(&mut e), Effect::WriteLedger(_)));
    assert!(matches!(o.next(&mut e), Effect::Flush { .. }));
    o.flushed(&mut e, false, at(4));
    assert_eq!(o.next(&mut e), Effect::Tell(RESOLVE));
    assert_eq!(done(o.next(&mut e)), Status::BadResponse);
    assert!(e.in_doubt());
}

#[test]
fn a_ticket_that_was_skipped_is_taken_anew_once() {
    let (mut e, mut o) = queued(5);
    let _ = looks(&mut e, &mut o, 2);
    o.outcome(&mut e, values(&[0, word(5, 6)]), at(3));
    assert!(matches!(o.next(&mut e), Effect::WriteLedger(entry) if entry == LedgerEntry::new()));
    assert!(matches!(posted(o.next(&mut e))[..], [WordOp::WriteLedger { .. }, WordOp::Faa { .. }]));
    o.outcome(&mut e, values(&[0, word(5, 6)]), at(4));
    let _ = looks(&mut e, &mut o, 5);
    o.outcome(&mut e, values(&[0, word(7, 8)]), at(6));
    assert!(matches!(o.next(&mut e), Effect::WriteLedger(entry) if entry == LedgerEntry::new()));
    assert_eq!(done(end(&mut o, &mut e)), Status::Fail);
}

/// The entry of a ticket whose last look was not answered.
fn ticketed() -> LockEntry {
    let (mut e, mut o) = queued(5);
    let _ = looks(&mut e, &mut o, 2);
    o.outcome(&mut e, Outcome::Unknown, at(3));
    assert_eq!(done(o.next(&mut e)), Status::BadResponse);
    e
}

#[test]
fn a_lost_look_leaves_the_ticket() {
    let mut e = ticketed();
    assert_eq!((e.state(), e.ticket()), (EntryState::ExclusiveTicketed, Some(TICKET)));
    e.rewrite_ledger();
    assert_eq!(e.take_ledger_write(), Some(ticket(0)), "a new channel does not claim it");
}

/// The channel that was to carry the request may have ended before: the primary may have granted
/// the lock to the ticket, for ever if it was asked to.
#[test]
fn a_ticket_that_was_given_up_is_undone_on_the_next_channel() {
    for has_new_channel in [false, true] {
        let mut e = ticketed();
        let mut o = begins(&mut e, Op::Unlock, 4);
        let Effect::WriteLedger(note) = o.next(&mut e) else { panic!("it is named") };
        assert_eq!(note.state(), LedgerState::GivenUpExclusive);
        assert!(matches!(o.next(&mut e), Effect::Tell(Request::Abandon { .. })));
        assert_eq!(done(o.next(&mut e)), Status::Success);
        assert!(!e.in_doubt());
        let grant = |already| LockGrant {
            lock: LockId(5),
            handle: Handle(3),
            slot: Slot(9),
            word: 0,
            already,
        };
        for already in [false, true] {
            let mut e = e.clone();
            e.rebind(&grant(already), 0);
            assert_eq!(e.in_doubt(), already, "a primary that has got it may not have heard");
        }
        if has_new_channel {
            assert_eq!(crate::session::resume(&mut e, false, at(5)), Some(RESOLVE));
            assert!(!e.has_ledger_write(), "what is undone is what the ledger says");
            assert!(e.in_doubt());
        }
        let mut o = begins(&mut e, TAKE, 6);
        let Effect::Ask { request, .. } = o.next(&mut e) else { panic!("it asks") };
        assert_eq!(request == RESOLVE, has_new_channel, "{request:?}");
    }
}

/// It may have been granted, with a lease that outlasts the session.
#[test]
fn a_ticket_that_lapsed_is_asked_to_be_undone() {
    let mut e = ticketed();
    assert!(e.lapse(), "it has a ticket");
    assert_eq!((e.state(), e.in_doubt()), (EntryState::Initialized, true));
    assert_eq!(crate::session::resume(&mut e, false, at(4)), Some(RESOLVE));
}

/// The one before was given up, and its successor is told of this one.
#[test]
fn a_ticket_that_follows_one_that_was_given_up_is_claimed() {
    for mode in [X, S] {
        let mut e = ticketed();
        let mut o = begins(&mut e, Op::Unlock, 4);
        while !matches!(o.next(&mut e), Effect::Done(_)) {}
        let mut o = begins(&mut e, Op::Lock { mode, expire_s: 5 }, 5);
        assert!(matches!(o.next(&mut e), Effect::Ask { request: Request::TakeTicket { .. }, .. }));
        let (word, ticket) = (word(6, 7), Ticket { tx: 6, ts: 0 });
        o.reply(&mut e, Ok(Reply::Queued { word, ticket }), at(6));
        assert!(matches!(o.next(&mut e), Effect::WriteLedger(_)));
        assert!(matches!(o.next(&mut e), Effect::Ask { request: Request::Wait { .. }, .. }));
        let held = e.claim(at(7), crate::ids::Epoch(1)).held.expect("it has a ticket");
        assert_eq!((held.mode, held.is_queued), (mode, true));
    }
}

#[test]
fn who_sees_the_same_turn_for_long_or_looks_too_often_sleeps() {
    let (mut e, mut o) = queued(5);
    let _ = looks(&mut e, &mut o, 2);
    o.outcome(&mut e, values(&[0, word(3, 5)]), at(3));
    let _ = looks(&mut e, &mut o, TRY_SAME_HOLD_NS_MAX);
    o.outcome(&mut e, values(&[word(3, 5)]), at(TRY_SAME_HOLD_NS_MAX));
    assert!(matches!(o.next(&mut e), Effect::Pause { .. }));
    o.paused(&mut e, at(TRY_SAME_HOLD_NS_MAX + 1));
    assert_eq!(o.next(&mut e), Effect::WriteLedger(ticket(0)));
    assert!(matches!(o.next(&mut e), Effect::Ask { .. }));
    let (mut e, mut o) = queued(5);
    for _ in 0..TRIES_MAX {
        let _ = looks(&mut e, &mut o, 2); // by a clock that stands still
        o.outcome(&mut e, values(&[word(3, 5)]), at(2));
    }
    assert_eq!(o.next(&mut e), Effect::WriteLedger(ticket(0)));
    assert!(matches!(o.next(&mut e), Effect::Ask { .. }));
}

/// Looks at `ns`, and finds `nx` served; its number is 4.
fn pause_after(e: &mut LockEntry, o: &mut Operation, ns: u64, nx: u16) -> Effect {
    let _ = looks(e, o, ns);
    o.outcome(e, values(&[word(nx, 9)]), at(ns));
    let effect = o.next(e);
    o.paused(e, at(ns));
    let _ = posted(o.next(e));
    o.outcome(e, values(&[word(nx, 9)]), at(ns)); // so that the next look begins with a pause
    effect
}

fn pause(pause_ns: u64, ahead: u16) -> Effect {
    Effect::Pause { pause_ns, ahead }
}

#[test]
fn who_is_next_looks_all_the_time_and_less_often_if_the_hold_lasts() {
    let (mut e, mut o) = queued(5); // at 1
    assert_eq!(pause_after(&mut e, &mut o, 1, 3), pause(0, 1));
    assert_eq!(pause_after(&mut e, &mut o, TRY_AT_ONCE_NS_MAX, 3), pause(0, 1));
    let long_ns = TRY_AT_ONCE_NS_MAX + 1;
    assert_eq!(pause_after(&mut e, &mut o, long_ns, 3), pause(TRY_AT_ONCE_NS_MAX / 16, 1));
    let long_ns = 16 * TRY_PAUSE_NS_MAX + 16;
    assert_eq!(pause_after(&mut e, &mut o, long_ns, 3), pause(TRY_PAUSE_NS_MAX, 1));

    let (mut e, mut o) = queued(5);
    for _ in 0..TRIES_AT_ONCE_MAX / 2 {
        assert_eq!(pause_after(&mut e, &mut o, 161, 3), pause(0, 1));
    }
    assert_eq!(pause_after(&mut e, &mut o, 161, 3), pause(10, 1), "it has looked often");
}

/// It must be awake when its turn comes.
#[test]
fn who_is_not_next_pauses_until_half_of_the_turn_before_its_own() {
    let (mut e, mut o) = queues_behind(entry(LockType::Fair), (0, 5), 0);
    // one turn has taken 100,000 ns: two are before the last one
    assert_eq!(pause_after(&mut e, &mut o, 100_001, 1), pause(125_000, 3));
    assert_eq!(pause_after(&mut e, &mut o, 130_001, 1), pause(95_000, 3));
    // what is seen late seems longer than it was: 112,500
    assert_eq!(pause_after(&mut e, &mut o, 300_001, 2), pause(56_250, 2));
    let (mut e, mut o) = queues_behind(entry(LockType::Fair), (0, 5), 0);
    assert_eq!(pause_after(&mut e, &mut o, 9_999_000, 1), pause(FAR_PAUSE_NS_MAX, 3));
}

/// All wait for it then: what it has measured may have been its own pauses.
#[test]
fn who_comes_too_late_for_its_turn_pauses_less_the_next_time() {
    for (last, next_ns) in [(1, 93_750), (3, 125_000)] {
        let (mut e, mut o) = queues_behind(entry(LockType::Fair), (0, 5), 0);
        let _ = pause_after(&mut e, &mut o, 100_001, 1);
        let _ = pause_after(&mut e, &mut o, 100_001 + 100_000 * u64::from(last - 1), last);
        let _ = looks(&mut e, &mut o, 400_001);
        o.outcome(&mut e, values(&[word(4, 5)]), at(400_001));
        assert_eq!(done(o.next(&mut e)), Status::Success);
        let (mut o, _) = releases(&mut e);
        o.outcome(&mut e, values(&[word(4, 5)]), at(400_002));
        assert!(matches!(end(&mut o, &mut e), Effect::WriteLedger(_)));
        assert_eq!(done(o.next(&mut e)), Status::Success);
        let (mut e, mut o) = queues_behind(e, (400_003, 5), 1);
        assert_eq!(o.next(&mut e), pause(next_ns, 3));
    }
}

#[test]
fn a_lock_is_handed_on_though_another_ticket_was_taken_meanwhile() {
    let done_of = |expect: u64| {
        let swap = FairWord::from_bits(expect).exclusive_done().into_bits();
        WordOp::Cas { addr: W0, expect, swap }
    };
    let (seen, more) = (word(4, 6), word(4, 7));
    let told = WordOp::Read { addr: W1 };
    let first = [[seen, word(5, 6)], [more, more]];
    for old in first.iter().flat_map(|&[a, b]| [[a, b, 3], [a, b, TOLD | 3]]) {
        let (mut e, mut o) = releases_where_somebody_sleeps(seen);
        assert_eq!(posted(o.next(&mut e)), [done_of(seen), done_of(more), told]);
        o.outcome(&mut e, values(&old), at(5));
        assert_eq!(o.next(&mut e), Effect::WriteLedger(LedgerEntry::new()));
        if old[2] != 3 {
            let wake = Request::Wake { handle: Handle(3) };
            assert_eq!(o.next(&mut e), Effect::Tell(wake), "somebody sleeps");
        }
        let Effect::Done(result) = o.next(&mut e) else { panic!("it is done") };
        let mx = if old[0] == seen { 6 } else { 7 };
        assert!(matches!(result.view, Some(View::Fair { nx: 5, mx: m, .. }) if m == mx));
        assert_eq!((result.status, e.state()), (Status::Success, EntryState::Unlocked));
    }
}

#[test]
fn who_is_overtaken_hands_the_lock_on_from_the_word_that_it_has_found() {
    let (mut e, mut o) = releases_where_somebody_sleeps(word(4, 6));
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[word(4, 9), word(4, 9), TOLD]), at(5));
    assert!(matches!(posted(o.next(&mut e))[..],
        [WordOp::Cas { expect, .. }, _, _] if expect == word(4, 9)));
    o.outcome(&mut e, values(&[word(5, 9), word(5, 9), TOLD]), at(6));
    assert!(matches!(o.next(&mut e), Effect::WriteLedger(_)));
    assert_eq!(done(end(&mut o, &mut e)), Status::Fail, "its hold was over");
}

#[test]
fn only_a_surely_running_lease_of_a_one_sided_client_is_handed_on() {
    let asks = |e: &mut LockEntry, ns| {
        let bounds = Bounds::since(START + ns);
        let Started::Running(mut o) = Operation::begin(e, Op::Unlock, at(ns), bounds) else {
            panic!("it is not decided")
        };
        matches!(o.next(e), Effect::Ask { request: Request::Release { .. }, .. })
    };
    assert!(!asks(&mut holder(word(4, 6)), 4));
    assert!(asks(&mut holder(word(4, 6)), 4 * NS + 2 * NS), "the lease may be over");
    let mut e = holder(word(4, 6));
    e.may_try(false);
    assert!(asks(&mut e, 4), "it is not one-sided any more");
    e = holder(word(4, 5));
    e.may_try(false);
    assert!(!asks(&mut e, 4), "nobody is behind it");
}

/// Gets the free lock at `ns`: its ticket is the last one that was taken.
fn gets(e: &mut LockEntry, ns: u64) {
    let mut o = begin_at(e, Op::Lock { mode: X, expire_s: 5 }, ns);
    let old = match posted(o.next(e)).len() {
        1 => vec![word(4, 4)],
        _ => vec![0, word(4, 4)],
    };
    o.outcome(e, values(&old), at(ns + 1));
    finish(&mut o, e, ns + 1);
}

/// To its end, with the clock at `ns`.
fn finish(o: &mut Operation, e: &mut LockEntry, ns: u64) {
    loop {
        match o.next(e) {
            Effect::Done(result) => return assert_eq!(result.status, Status::Success),
            Effect::ReadClock => o.clock(at(ns)),
            _ => {}
        }
    }
}

fn begin_at(e: &mut LockEntry, op: Op, ns: u64) -> Operation {
    match Operation::begin(e, op, at(ns), bounds()) {
        Started::Running(o) => o,
        Started::Done(result) => panic!("it is decided: {result:?}"),
    }
}

#[test]
fn who_was_followed_unknown_at_its_last_release_releases_as_if_it_were_again() {
    let mut e = entry(LockType::Fair);
    e.may_try(true);
    let (free, last, more) = (word(5, 5), word(4, 5), word(4, 6));
    // the verbs of the release, and what they find
    let scenes: [(usize, &[u64]); 5] = [
        (1, &[last]),
        (1, &[more]),             // another has come
        (3, &[more, more, TOLD]), // and once more
        (3, &[last, free, TOLD]), // not this time
        (1, &[last]),
    ];
    for (n, (verbs, found)) in scenes.into_iter().enumerate() {
        let ns = 10 * n as u64 + 1;
        gets(&mut e, ns);
        let (mut o, posted_now) = releases(&mut e);
        assert_eq!(posted_now.len(), verbs, "release {n}");
        o.outcome(&mut e, values(found), at(ns + 2));
        if found == [more] {
            assert_eq!(posted(o.next(&mut e)).len(), 1, "it is to be relayed");
            o.outcome(&mut e, values(&[TOLD]), at(ns + 3));
            assert_eq!(posted(o.next(&mut e)).len(), 3, "handed on");
            o.outcome(&mut e, values(&[more, word(5, 6), TOLD]), at(ns + 3));
        }
        finish(&mut o, &mut e, ns + 4);
        assert_eq!(e.state(), EntryState::Unlocked, "release {n}");
    }
}
