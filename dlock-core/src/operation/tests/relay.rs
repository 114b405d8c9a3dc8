// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fair lock that is handed on by its companion word, as its clients do it.

mod handed;

use super::*;
use crate::limits::{CLIENTS_MAX, FAIR_GRACE_S, FAIR_LANE_DIVERT, FAIR_LANE_MAX, TRIES_MAX};
use crate::word_op::WordAddr;
use crate::words::{Ticket, TurnWord};

const W0: WordAddr = WordAddr::from_index(9 * 4);
const W1: WordAddr = WordAddr::from_index(9 * 4 + 1);
const READ: WordOp = WordOp::Read { addr: W0 };
const READ_TURN: WordOp = WordOp::Read { addr: W1 };
const LATE_NS: u64 = FAIR_GRACE_S as u64 * NS / 2;
/// Mine.
const TICKET: Ticket = Ticket { tx: 4, ts: 7 };
const TOLD: u64 = 1 << 63;
const ENDED: u64 = 1 << 62;

/// `nx` is served, and so many tickets are taken.
fn word(nx: u16, mx: u16) -> u64 {
    FairWord::new().with_nx(nx).with_mx(mx).with_ns(7).with_ms(7).into_bits()
}

fn relayed(mx: u16) -> u64 {
    FairWord::from_bits(word(0, mx)).relayed().into_bits()
}

fn cas(addr: WordAddr, expect: u64, swap: u64) -> WordOp {
    WordOp::Cas { addr, expect, swap }
}

fn one_sided() -> LockEntry {
    let mut e = entry(LockType::Fair);
    e.may_try(true);
    e
}

fn begins(e: &mut LockEntry, op: Op, ns: u64) -> Operation {
    match Operation::begin(e, op, at(ns), Bounds::since(START + ns)) {
        Started::Running(o) => o,
        Started::Done(result) => panic!("it is decided: {result:?}"),
    }
}

/// The next effect that is neither a note nor counted.
fn next(o: &mut Operation, e: &mut LockEntry) -> Effect {
    loop {
        match o.next(e) {
            Effect::Count(_) | Effect::WriteLedger(_) => {}
            effect => return effect,
        }
    }
}

fn asked(effect: Effect) -> Request {
    match effect {
        Effect::Ask { request, .. } => request,
        other => panic!("{other:?} is no request"),
    }
}

/// Its ticket is taken while the lock is relayed; what it does then.
fn takes(e: &mut LockEntry, op: Op) -> Operation {
    let mut o = begins(e, op, 0);
    let n = posted(o.next(e)).len();
    let mut old = vec![0; n];
    old[n - 1] = relayed(4);
    o.outcome(e, values(&old), at(1));
    o
}

/// What is looked at, apart from the claim that comes before.
fn looks(e: &mut LockEntry, o: &mut Operation, ns: u64) -> Vec<WordOp> {
    assert!(matches!(next(o, e), Effect::Pause { .. }));
    o.paused(e, at(ns));
    let mut ops = posted(o.next(e));
    ops.retain(|word_op| !matches!(word_op, WordOp::WriteLedger { .. }));
    ops
}

/// As [`looks`], and this is found.
fn finds(e: &mut LockEntry, o: &mut Operation, ns: u64, reads: &[WordOp], found: &[u64]) {
    assert!(matches!(next(o, e), Effect::Pause { .. }));
    o.paused(e, at(ns));
    let ops = posted(o.next(e));
    let first = ops.len() - reads.len();
    assert_eq!(ops[first..], *reads, "at {ns}");
    let all: Vec<u64> = std::iter::repeat_n(0, first).chain(found.iter().copied()).collect();
    o.outcome(e, values(&all), at(ns + 1));
}

/// Holds the relayed lock.
fn holder() -> LockEntry {
    let mut e = one_sided();
    let mut o = takes(&mut e, LOCK);
    finds(&mut e, &mut o, 2, &[READ_TURN], &[4]);
    assert_eq!(done(next(&mut o, &mut e)), Status::Success);
    assert_eq!(e.ticket(), Some(TICKET));
    e
}

/// Holds the lock, which is not relayed, with one ticket behind.
fn followed() -> LockEntry {
    let mut e = one_sided();
    let mut o = begins(&mut e, LOCK, 0);
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[0, word(3, 4)]), at(1));
    finds(&mut e, &mut o, 2, &[READ], &[word(4, 6)]);
    assert_eq!(done(next(&mut o, &mut e)), Status::Success);
    e
}

fn releases(e: &mut LockEntry) -> (Operation, Vec<WordOp>) {
    let mut o = begins(e, Op::Unlock, 3);
    let ops = posted(o.next(e));
    (o, ops)
}

/// To its end, which is a success.
fn is_released(mut o: Operation, e: &mut LockEntry, mx: u16) {
    let Effect::Done(result) = next(&mut o, e) else { panic!("it is released") };
    assert_eq!((result.status, e.state()), (Status::Success, EntryState::Unlocked));
    let Some(View::Fair { nx: 5, mx: m, .. }) = result.view else { panic!("{result:?}") };
    assert_eq!(m, mx);
}

#[test]
fn a_lock_is_relayed_once_its_companion_word_has_the_number_that_is_served() {
    let (w, more) = (word(4, 6), word(4, 7));
    for (found, mx) in [([w, relayed(6)], 6), ([more, more], 7)] {
        let mut e = followed();
        let (mut o, ops) = releases(&mut e);
        assert_eq!(ops, [cas(W1, 0, 4)]);
        o.outcome(&mut e, values(&[2]), at(4)); // another number is there
        assert_eq!(posted(o.next(&mut e)), [cas(W1, 2, 4)]);
        o.outcome(&mut e, values(&[2]), at(5));
        let begin = [cas(W0, w, relayed(6)), cas(W0, more, relayed(7))];
        assert_eq!(posted(o.next(&mut e)), begin);
        o.outcome(&mut e, values(&found), at(6));
        assert_eq!(posted(o.next(&mut e)), [cas(W1, 4, 5)]);
        o.outcome(&mut e, values(&[4]), at(7));
        is_released(o, &mut e, mx);
    }
}

#[test]
fn a_lock_is_not_relayed_if_its_word_was_not_found() {
    let mut e = followed();
    let (mut o, _) = releases(&mut e);
    o.outcome(&mut e, values(&[0]), at(4));
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[word(4, 9), word(4, 9)]), at(5));
    assert_eq!(posted(o.next(&mut e)), [cas(W1, 4, 4)], "once more, from the word that is there");
    o.outcome(&mut e, values(&[4]), at(6));
    assert!(matches!(posted(o.next(&mut e))[..],
        [WordOp::Cas { addr: W0, expect, .. }, _] if expect == word(4, 9)));
    o.outcome(&mut e, values(&[word(5, 9), word(5, 9)]), at(7));
    assert_eq!(done(next(&mut o, &mut e)), Status::Fail, "its hold was over");
}

#[test]
fn who_may_be_late_does_not_begin_a_relay() {
    for at_begin in [false, true] {
        let mut e = followed();
        let (mut o, _) = releases(&mut e);
        let over = 4 * NS + 2 * NS;
        o.outcome(&mut e, values(&[0]), at(if at_begin { 5 } else { over }));
        if at_begin {
            let _ = posted(o.next(&mut e));
            o.outcome(&mut e, values(&[word(4, 6), relayed(6)]), at(over));
        }
        assert!(matches!(asked(next(&mut o, &mut e)), Request::Release { .. }), "{at_begin}");
    }
}

/// The arbiter may be about to start the lane again there, and to clear the companion word.
/// Its other clients would not know what the word says.
#[test]
fn no_lock_of_an_older_primary_is_relayed() {
    let mut e = followed();
    e.may_relay(false);
    let (_, ops) = releases(&mut e);
    let w = FairWord::from_bits(word(4, 6));
    let [this, more] = [w, w.exclusive_taken()];
    let done = |w: FairWord| cas(W0, w.into_bits(), w.exclusive_done().into_bits());
    assert_eq!(ops, [done(this), done(more), READ_TURN]);
    e = followed();
    e.may_relay(true);
    assert!(matches!(releases(&mut e).1[..], [WordOp::Cas { addr: W1, .. }]));
}

#[test]
fn no_relay_begins_where_the_lane_ends() {
    for (mx, begins_one) in [(FAIR_LANE_DIVERT - 2, true), (FAIR_LANE_DIVERT - 1, false)] {
        let mut e = one_sided();
        let nx = mx - 2;
        let mut o = begins(&mut e, LOCK, 0);
        let _ = posted(o.next(&mut e));
        o.outcome(&mut e, values(&[0, word(nx - 1, nx)]), at(1));
        finds(&mut e, &mut o, 2, &[READ], &[word(nx, mx)]);
        assert_eq!(done(next(&mut o, &mut e)), Status::Success);
        let (_, ops) = releases(&mut e);
        assert_eq!(matches!(ops[..], [WordOp::Cas { addr: W1, .. }]), begins_one, "{mx:#x}");
    }
}

#[test]
fn no_number_of_the_ring_is_handed_on_by_the_companion_word() {
    for (tx, is_passed) in [(FAIR_LANE_MAX - 2, true), (FAIR_LANE_MAX - 1, false)] {
        let mut e = one_sided();
        let mut o = begins(&mut e, LOCK, 0);
        let _ = posted(o.next(&mut e));
        o.outcome(&mut e, values(&[0, relayed(tx)]), at(1));
        finds(&mut e, &mut o, 2, &[READ_TURN], &[u64::from(tx)]);
        assert_eq!(done(next(&mut o, &mut e)), Status::Success);
        let mut o = begins(&mut e, Op::Unlock, 3);
        let is_posted = matches!(next(&mut o, &mut e), Effect::Post { .. });
        assert_eq!(is_posted, is_passed, "{tx:#x}");
    }
}

#[test]
fn a_relayed_lock_is_released_by_one_compare_and_swap_where_others_follow() {
    let mut e = holder();
    let (mut o, ops) = releases(&mut e);
    assert_eq!(ops, [cas(W1, 4, 5)], "another took a ticket since its last one");
    o.outcome(&mut e, values(&[4]), at(4));
    is_released(o, &mut e, 5);
    // its next ticket is not the next one: others have come
    let mut o = begins(&mut e, LOCK, 5);
    assert!(matches!(posted(o.next(&mut e))[..], [WordOp::WriteLedger { .. }, _]));
    o.outcome(&mut e, values(&[0, relayed(6)]), at(6));
    finds(&mut e, &mut o, 7, &[READ_TURN], &[6]);
    assert_eq!(done(next(&mut o, &mut e)), Status::Success);
    assert_eq!(releases(&mut e).1, [cas(W1, 6, 7)]);
}

/// Ends the relay, as nobody seems to follow, and finds this.
fn ends_relay(found: [u64; 2]) -> (LockEntry, Operation) {
    let mut e = holder();
    let (mut o, _) = releases(&mut e);
    o.outcome(&mut e, values(&[4]), at(4));
    is_released(o, &mut e, 5);
    let mut o = begins(&mut e, LOCK, 5);
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[0, relayed(5)]), at(6));
    finds(&mut e, &mut o, 7, &[READ_TURN], &[5]);
    assert_eq!(done(next(&mut o, &mut e)), Status::Success);
    let mut o = begins(&mut e, Op::Unlock, 8);
    let ops = posted(o.next(&mut e));
    assert_eq!(ops, [cas(W0, relayed(6), word(6, 6)), cas(W1, 5, 6)]);
    o.outcome(&mut e, values(&found), at(9));
    (e, o)
}

#[test]
fn a_relay_ends_where_nobody_follows() {
    for (found, is_followed) in [([relayed(6), 5], false), ([relayed(7), 5], true)] {
        let (mut e, mut o) = ends_relay(found);
        assert_eq!(done(next(&mut o, &mut e)), Status::Success);
        assert_eq!(e.is_followed(), is_followed);
    }
    let (mut e, mut o) = ends_relay([relayed(7), TOLD | 5]);
    assert!(matches!(asked(next(&mut o, &mut e)), Request::Release { .. }));
}

/// The relay may have begun when the arbiter was to be told already.
#[test]
fn who_ends_a_relay_where_somebody_sleeps_says_so() {
    for (found, wakes) in [(TOLD | 5, true), (ENDED | 5, false), (5, false)] {
        let (mut e, mut o) = ends_relay([relayed(6), found]);
        let mut effect = next(&mut o, &mut e);
        if wakes {
            assert_eq!(effect, Effect::Tell(Request::Wake { handle: Handle(3) }));
            effect = next(&mut o, &mut e);
        }
        assert_eq!(done(effect), Status::Success, "{found:#x}");
    }
}

#[test]
fn who_is_to_tell_of_a_release_asks_for_it() {
    for found in [TOLD | 4, ENDED | 4, 5, TOLD | 5] {
        let mut e = holder();
        let (mut o, _) = releases(&mut e);
        o.outcome(&mut e, values(&[found]), at(4));
        assert!(matches!(asked(next(&mut o, &mut e)), Request::Release { .. }), "{found:#x}");
        // the arbiter has ended the relay, if the hold was still its own
        o.reply(&mut e, Ok(Reply::Done { word: word(5, 6) }), at(5));
        is_released(o, &mut e, 6);
    }
    // where the word was not found either
    let mut e = followed();
    let (mut o, _) = releases(&mut e);
    o.outcome(&mut e, values(&[0]), at(4));
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[relayed(6), relayed(6)]), at(5));
    assert!(matches!(asked(next(&mut o, &mut e)), Request::Release { .. }));
}

#[test]
fn a_turn_is_looked_for_in_the_companion_word() {
    let mut e = one_sided();
    let mut o = takes(&mut e, LOCK);
    finds(&mut e, &mut o, 2, &[READ_TURN], &[3]);
    finds(&mut e, &mut o, 3, &[READ_TURN], &[4]);
    let Effect::Done(result) = next(&mut o, &mut e) else { panic!("it is held") };
    assert!(matches!(result.view, Some(View::Fair { nx: 4, mx: 5, time_out: 1_005, .. })));
}

#[test]
fn who_looks_at_the_word_of_a_relayed_lock_goes_on_at_the_companion_word() {
    let mut e = one_sided();
    let mut o = begins(&mut e, LOCK, 0);
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[0, word(2, 4)]), at(1));
    finds(&mut e, &mut o, 2, &[READ], &[relayed(5)]);
    finds(&mut e, &mut o, 3, &[READ_TURN], &[3]);
    for may_be_over in [TOLD | 4, ENDED | 4] {
        finds(&mut e, &mut o, 4, &[READ_TURN], &[may_be_over]);
        finds(&mut e, &mut o, 5, &[READ], &[relayed(5)]);
    }
    finds(&mut e, &mut o, 6, &[READ_TURN], &[TOLD | 4]);
    finds(&mut e, &mut o, 7, &[READ], &[word(4, 6)]);
    assert_eq!(done(next(&mut o, &mut e)), Status::Success);
    assert!(matches!(releases(&mut e).1[..], [WordOp::Cas { addr: W0, .. }, ..]), "not relayed");
}

/// Between two words that both tell nothing.
#[test]
fn who_learns_nothing_queues_at_last() {
    let mut e = one_sided();
    let mut o = takes(&mut e, LOCK);
    for n in 0..TRIES_MAX {
        match n % 2 {
            0 => finds(&mut e, &mut o, 2, &[READ_TURN], &[TOLD | 3]),
            _ => finds(&mut e, &mut o, 2, &[READ], &[relayed(6)]),
        }
    }
    let Request::Wait { ticket: Some(TICKET), .. } = asked(next(&mut o, &mut e)) else {
        panic!("it waits")
    };
}

#[test]
fn a_ticket_that_was_passed_over_is_taken_anew() {
    for turn in [5, 6, 9] {
        let mut e = one_sided();
        let mut o = takes(&mut e, LOCK);
        finds(&mut e, &mut o, 2, &[READ_TURN], &[turn]);
        assert!(matches!(posted(next(&mut o, &mut e)).last(), Some(WordOp::Faa { .. })), "{turn}");
    }
}

const MS: u64 = NS / 1_000;

/// Many tickets are before its own, and each look finds another turn, 5 ms after the one before; up
/// to `until_ns`. The turn found last.
fn waits_long(until_ns: u64) -> (LockEntry, Operation, u64) {
    let mut e = one_sided();
    let mut o = begins(&mut e, LOCK, 0);
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[0, relayed(LONG)]), at(1));
    let (mut turn, mut exact_ns) = (1, 0);
    for ns in (1..).map(|n| n * 5 * MS).take_while(|&ns| ns <= until_ns) {
        turn += 1;
        match ns - exact_ns < LATE_NS / 4 {
            true => finds(&mut e, &mut o, ns, &[READ_TURN], &[turn]),
            false => {
                finds(&mut e, &mut o, ns, &[READ_TURN, READ], &[turn, relayed(LONG + 1)]);
                exact_ns = ns;
            }
        }
    }
    (e, o, turn)
}

const LONG: u16 = 604;

/// The lock may not be relayed any more: the companion word goes on saying what it said.
#[test]
fn only_both_words_show_that_a_ticket_has_not_its_turn() {
    let _ = waits_long(LATE_NS);
    let quarter = LATE_NS / 4;
    // the outcome of the look at its turn comes so late, after looks until then
    for (looked_until, seen_ns, is_late) in [
        (10 * MS, LATE_NS - 1, false),
        (10 * MS, LATE_NS, true), // though it has looked since, at the companion word
        (quarter + 10 * MS, quarter + LATE_NS - 1, false),
        (quarter + 10 * MS, quarter + LATE_NS, true),
    ] {
        let (mut e, mut o, _) = waits_long(looked_until);
        assert_eq!(looks(&mut e, &mut o, looked_until + MS), [READ_TURN]);
        o.outcome(&mut e, values(&[u64::from(LONG)]), at(seen_ns));
        match (is_late, next(&mut o, &mut e)) {
            (false, effect) => assert_eq!(done(effect), Status::Success, "{seen_ns}"),
            (true, effect) => assert!(matches!(asked(effect), Request::Wait { .. }), "{seen_ns}"),
        }
    }
}

#[test]
fn a_look_at_both_words_finds_a_lock_that_is_relayed_no_more() {
    for (word, is_held) in [(word(LONG, LONG + 1), true), (word(60, LONG + 1), false)] {
        let (mut e, mut o, turn) = waits_long(LATE_NS / 4 - 5 * MS);
        finds(&mut e, &mut o, LATE_NS / 4, &[READ_TURN, READ], &[turn, word]);
        match is_held {
            true => assert_eq!(done(next(&mut o, &mut e)), Status::Success),
            false => assert_eq!(looks(&mut e, &mut o, LATE_NS / 4 + MS), [READ]),
        }
    }
}

#[test]
fn shares_before_a_ticket_are_counted_in_the_word() {
    let shares = |mx, ns| FairWord::from_bits(relayed(mx)).with_ns(ns).into_bits();
    let mut e = one_sided();
    let mut o = begins(&mut e, LOCK, 0);
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[0, shares(4, 6)]), at(1));
    let both = [READ_TURN, READ];
    finds(&mut e, &mut o, 2, &both, &[4, shares(5, 6)]);
    finds(&mut e, &mut o, 3, &both, &[4, shares(5, 7)]);
    assert_eq!(done(next(&mut o, &mut e)), Status::Success);
}

#[test]
fn who_does_not_wait_looks_once() {
    let shared = Op::TryLock { mode: S, expire_s: 5 };
    for (op, turn, status) in [
        (TAKE, 4, Status::Success),
        (TAKE, 3, Status::Again),
        (shared, 4, Status::Success),
        (shared, 3, Status::Again),
    ] {
        let mut e = one_sided();
        let mut o = takes(&mut e, op);
        assert_eq!(posted(next(&mut o, &mut e)), [READ_TURN]);
        o.outcome(&mut e, values(&[turn]), at(2));
        let end = loop {
            match next(&mut o, &mut e) {
                Effect::Flush { .. } => o.flushed(&mut e, true, at(2)),
                Effect::ReadClock => o.clock(at(2)),
                effect => break effect,
            }
        };
        assert_eq!(done(end), status, "{op:?} at {turn}");
    }
}

/// However far its last number lies back.
#[test]
fn a_ticket_of_a_relayed_lock_is_not_served_by_the_word_alone() {
    for mx in [2, CLIENTS_MAX as u16, CLIENTS_MAX as u16 + 1, 0x7fff] {
        for op in [TAKE, LOCK] {
            let mut e = one_sided();
            let mut o = begins(&mut e, op, 0);
            let _ = posted(o.next(&mut e));
            o.outcome(&mut e, values(&[0, relayed(mx)]), at(1));
            if op == LOCK {
                assert!(matches!(next(&mut o, &mut e), Effect::Pause { .. }));
                o.paused(&mut e, at(2));
            }
            let ops = posted(next(&mut o, &mut e));
            assert_eq!(ops.last(), Some(&READ_TURN), "{op:?} {mx}");
        }
    }
}

#[test]
fn who_does_not_wait_asks_where_the_companion_word_does_not_tell() {
    for (turn, one_sided) in [(TOLD | 4, true), (ENDED | 4, true), (5, true), (0, false)] {
        let mut e = entry(LockType::Fair);
        e.may_try(one_sided);
        let mut o = takes(&mut e, TAKE);
        if one_sided {
            assert_eq!(posted(next(&mut o, &mut e)), [READ_TURN]);
            o.outcome(&mut e, values(&[turn]), at(2));
        }
        assert!(matches!(asked(next(&mut o, &mut e)), Request::Poll { .. }), "{turn:#x}");
    }
}

#[test]
fn a_lease_of_a_relayed_lock_is_extended_by_the_arbiter() {
    let mut e = holder();
    let mut o = begins(&mut e, Op::Extend { mode: X, expire_s: 9 }, 5);
    assert!(matches!(posted(o.next(&mut e))[..], [WordOp::WriteLedger { .. }, READ]));
    o.outcome(&mut e, values(&[0, relayed(6)]), at(6));
    assert!(matches!(asked(next(&mut o, &mut e)), Request::Extend { .. }));
    let (word, ticket) = (word(4, 6), Some(TICKET));
    let at_s = ServerTime(START);
    o.reply(&mut e, Ok(Reply::Granted { word, deadline_s: 1_009, at: at_s, ticket }), at(7));
    assert_eq!(next(&mut o, &mut e), Effect::ReadClock);
    o.clock(at(8));
    assert_eq!(done(next(&mut o, &mut e)), Status::Success);
    assert!(matches!(releases(&mut e).1[..], [WordOp::Cas { addr: W1, expect: 4, .. }]));
}

/// Its numbers are those of another primary.
#[test]
fn a_successor_knows_nothing_of_a_relay() {
    let mut e = holder();
    let grant =
        LockGrant { lock: LockId(6), handle: Handle(3), slot: Slot(9), word: 0, already: false };
    e.rebind(&grant, 0);
    let fresh = one_sided();
    let state = |e: &LockEntry| {
        let debug = format!("{e:?}");
        let at = debug.find("turn: TurnWord").expect("the companion word");
        debug[at..].split("diverted").next().map(str::to_owned)
    };
    assert_eq!(state(&e), state(&fresh));
    assert_eq!(TurnWord::new().into_bits(), 0);
}
