// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fair lock: the client's side.

use super::*;
use crate::clock::{Deadline, Lease};
use crate::limits::{CLAIM_LEASE_MAX, FAIR_DIVERT, FAIR_GRACE};
use crate::lock::Half;
use crate::memory::word_op::WordAddr;
use crate::memory::words::{LedgerEntry, Ticket};

const W0: WordAddr = WordAddr::new(Slot(9), Word::W0);
const W1: WordAddr = WordAddr::new(Slot(9), Word::W1);
const LOOK: WordOp = WordOp::ReadPair { addr: W1 };

fn fair() -> LockEntry {
    let mut e = entry(LockType::Fair);
    e.may_try(true);
    e
}

fn taken(mx: u32, ms: u32) -> u64 {
    TakenWord::new().with_mx(mx).with_ms(ms).into_bits()
}

fn turn(nx: u32, ns: u32) -> TurnWord {
    TurnWord::new().with_nx(nx).with_ns(ns)
}

/// The ledger entry that a chain writes.
fn claim(word_op: WordOp) -> LedgerEntry {
    match word_op {
        WordOp::WriteLedger { value, .. } => LedgerEntry::from_bits(value),
        other => panic!("{other:?}"),
    }
}

fn try_for(mode: Mode, lease: Lease) -> Op {
    Op::TryLock { mode, lease }
}

/// Begins an acquire whose first chain finds these words.
fn takes(e: &mut LockEntry, op: Op, found: [u64; 3], ns: u64) -> Operation {
    let mut o = begin(e, op);
    let [ledger, WordOp::Faa { addr: W0, .. }, LOOK] = posted(o.next(e))[..] else { panic!() };
    assert!(claim(ledger).claims().is_some());
    o.outcome(e, values(&[0, found[0], found[1], found[2]]), at(ns));
    o
}

/// A lock that the client holds since the start under the first ticket.
fn holds(mode: Mode, lease: Lease) -> LockEntry {
    let mut e = fair();
    let mut o = takes(&mut e, try_for(mode, lease), [0; 3], 1);
    assert_eq!(done(o.next(&mut e)), Status::Success);
    e
}

/// The ticket may have been granted since then, with a lease that outlasts the session.
#[test]
fn a_ticket_that_lapsed_is_undone_before_another_one_is_taken() {
    let mut e = fair();
    let mut o = takes(&mut e, try_for(X, Lease::secs(1)), [taken(1, 0), 0, 0], 1);
    while !matches!(o.next(&mut e), Effect::Done(OpResult { status: Status::Again, .. })) {}
    assert!(e.lapse() && e.in_doubt());
    let mut o = begin(&mut e, try_for(X, Lease::secs(1)));
    assert!(matches!(o.next(&mut e), Effect::Ask { request: Request::Resolve { .. }, .. }));
}

/// The status of the result, after all effects that come before it.
fn finally(o: &mut Operation, e: &mut LockEntry) -> Status {
    let mut effects = std::iter::repeat_with(|| o.next(e));
    done(effects.find(|effect| matches!(effect, Effect::Done(_))).unwrap())
}

/// The deadline in a result that says that the lock is held.
fn ends(effect: Effect) -> Deadline {
    match effect {
        Effect::Done(OpResult {
            status: Status::Success,
            view: Some(View::Fair { time_out, .. }),
        }) => time_out.at,
        other => panic!("{other:?}"),
    }
}

fn asked(effect: Effect) -> Request {
    match effect {
        Effect::Ask { request, .. } => request,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_free_lock_is_taken_and_released_by_one_chain_each() {
    for mode in [X, S] {
        let mut e = fair();
        let mut o = begin(&mut e, try_for(mode, Lease::secs(5)));
        let chain = posted(o.next(&mut e));
        let add = TakenWord::addend(mode);
        let [ledger, WordOp::Faa { addr: W0, add: added }, LOOK] = chain[..] else {
            panic!("{chain:?}")
        };
        assert_eq!((claim(ledger).claims(), added), (Some(mode), add));
        assert_eq!(claim(ledger).deadline(), at(0).deadline(Lease::secs(5)));
        o.outcome(&mut e, values(&[0, taken(7, 3), turn(7, 3).into_bits(), 9]), at(1));
        assert_eq!(done(o.next(&mut e)), Status::Success);
        let mut o = begin(&mut e, Op::Unlock);
        let chain = posted(o.next(&mut e));
        let WordOp::Cas { addr: W1, expect, swap } = chain[0] else { panic!("{chain:?}") };
        assert_eq!(expect, turn(7, 3).into_bits());
        assert_eq!(swap, turn(7, 3).done(mode).into_bits());
        assert_eq!(chain.len(), if mode == X { 2 } else { 1 });
        o.outcome(&mut e, values(&vec![expect; chain.len()]), at(2));
        if mode == S {
            let none = LedgerEntry::new();
            assert_eq!(
                o.next(&mut e),
                Effect::WriteLedger(none),
                "when it is done, and not before"
            );
        }
        assert_eq!(done(o.next(&mut e)), Status::Success);
        assert!(!e.has_ledger_write());
    }
}

#[test]
fn each_ticket_has_a_stamp_of_its_own() {
    let mut e = holds(X, Lease::secs(5));
    let mut stamps = vec![];
    for round in 1..4 {
        let word = turn(round - 1, 0).into_bits();
        let mut o = begin(&mut e, Op::Unlock);
        let _ = posted(o.next(&mut e));
        o.outcome(&mut e, values(&[word, 0]), at(2));
        assert_eq!(done(o.next(&mut e)), Status::Success);
        let mut o = begin(&mut e, TAKE);
        stamps.push(claim(posted(o.next(&mut e))[0]).stamp());
        o.outcome(&mut e, values(&[0, taken(round, 0), turn(round, 0).into_bits(), 0]), at(3));
        assert_eq!(done(o.next(&mut e)), Status::Success);
    }
    assert!(stamps.windows(2).all(|two| two[0] != two[1]), "{stamps:?}");
}

/// The claim may be over at the primary, which could have passed the ticket over.
#[test]
fn a_turn_that_is_seen_after_the_claim_is_over_is_asked_for() {
    let mut e = fair();
    let mut o = takes(&mut e, TAKE, [0; 3], 6 * NS);
    assert!(matches!(asked(o.next(&mut e)), Request::Poll { .. }));
    let mut e = fair();
    let mut o = takes(&mut e, LOCK, [0; 3], 6 * NS);
    assert!(matches!(asked(o.next(&mut e)), Request::Wait { ticket: Some(_), .. }));
}

/// The arbiter may have read the ledger after the claim was over, and may be about to pass the
/// ticket over.
#[test]
fn a_claim_that_is_over_is_not_renewed_by_its_client() {
    let op = Op::Lock { mode: X, lease: Lease::secs(1) };
    let claimed = at(0).deadline(Lease::secs(1));
    let is_over = |ns: &u64| at(*ns).maybe_expired(claimed);
    let end = claimed.expiry().0 - START;
    assert!(is_over(&end) && !is_over(&(end - 1_000)));
    // the claim is over when the first chain ends, or when the first look does
    for (first, looks) in [(end, 0), (end - 1_000, 1)] {
        let mut e = fair();
        let (mut now, mut looked) = (first, 0);
        let mut o = takes(&mut e, op, [taken(1, 0), 0, 0], now);
        let request = loop {
            match o.next(&mut e) {
                Effect::Pause { .. } => o.paused(&mut e, at(now)),
                Effect::Post { chain, .. } => {
                    (looked, now) = (looked + 1, end + looked);
                    o.outcome(&mut e, values(&vec![0; chain.values_len()]), at(now));
                }
                effect => break asked(effect),
            }
        };
        assert!(matches!(request, Request::Wait { ticket: Some(_), .. }));
        assert_eq!(looked, looks, "none once the claim is over");
    }
}

#[test]
fn a_ticket_behind_others_is_kept_for_a_grace_if_its_client_does_not_wait() {
    let mut e = fair();
    let mut o = takes(&mut e, TAKE, [taken(1, 0), 0, 0], 1);
    let Effect::WriteLedger(entry) = o.next(&mut e) else { panic!() };
    assert_eq!(entry.deadline(), at(0).deadline(FAIR_GRACE));
    assert_eq!(o.next(&mut e), Effect::Count(Counter::Again));
    assert_eq!(done(o.next(&mut e)), Status::Again);
    // the second call looks once; if the turn has not come, the client asks the arbiter
    let mut o = begins(&mut e, TAKE, NS);
    let chain = posted(o.next(&mut e));
    let [ledger, LOOK] = chain[..] else { panic!("{chain:?}") };
    assert_eq!(claim(ledger).deadline(), at(NS).deadline(Lease::secs(5)));
    o.outcome(&mut e, values(&[0, 0, 0]), at(NS + 1));
    assert!(matches!(asked(o.next(&mut e)), Request::Poll { .. }));
}

#[test]
fn a_turn_that_comes_is_relied_on_until_the_new_claim_ends() {
    let mut e = fair();
    let mut o = begins(&mut e, LOCK, NS - 2_000);
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[0, taken(1, 0), 0, 0]), at(NS - 1_000));
    let mut looks = 0;
    loop {
        match o.next(&mut e) {
            Effect::Pause { .. } => o.paused(&mut e, at(NS)),
            Effect::Post { chain, .. } => {
                looks += 1;
                let word = if looks == 2 { turn(1, 0) } else { turn(0, 0) };
                let mut all = vec![0; chain.values_len()];
                let at_turn = all.len() - 2;
                all[at_turn] = word.into_bits();
                o.outcome(&mut e, values(&all), at(NS + looks));
            }
            done => break assert_eq!(ends(done), at(NS).deadline(Lease::secs(5))),
        }
    }
}

#[test]
fn a_long_lease_is_claimed_once_the_turn_is_there() {
    let long_s = Lease(CLAIM_LEASE_MAX.0 + 1);
    for (after_ns, held) in [(2, true), (CLAIM_LEASE_MAX.ns() + NS, false)] {
        let mut e = fair();
        let mut o = takes(&mut e, try_for(X, long_s), [0; 3], 1);
        let chain = posted(o.next(&mut e));
        let [ledger, LOOK] = chain[..] else { panic!("{chain:?}") };
        assert_eq!(claim(ledger).deadline(), at(0).deadline(long_s));
        o.outcome(&mut e, values(&[0, 0, 0]), at(after_ns));
        match held {
            true => assert_eq!(done(o.next(&mut e)), Status::Success),
            false => assert!(matches!(asked(o.next(&mut e)), Request::Poll { .. })),
        }
    }
}

/// The ledger write of the extension may have come after the arbiter passed the turn on.
#[test]
fn an_extend_whose_outcome_is_late_is_for_the_arbiter_to_confirm() {
    let extend = Op::Extend { mode: X, lease: Lease::secs(9) };
    let mut e = holds(X, Lease::secs(5));
    let mut o = begins(&mut e, extend, NS);
    let chain = posted(o.next(&mut e));
    assert!(matches!(chain[..], [WordOp::WriteLedger { .. }, LOOK]), "{chain:?}");
    o.outcome(&mut e, values(&[0, 0, 0]), at(2 * NS));
    assert_eq!(ends(o.next(&mut e)), at(NS).deadline(Lease::secs(9)));
    let mut e = holds(X, Lease::secs(5));
    let mut o = begins(&mut e, extend, NS);
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[0, 0, 0]), at(6 * NS));
    assert!(
        matches!(asked(o.next(&mut e)), Request::Extend { lease, .. } if lease == Lease::secs(9))
    );
    // the turn was passed on, or belongs to another lap
    for [word, lap] in [[turn(1, 0).into_bits(), 0], [0, 7]] {
        let mut e = holds(X, Lease::secs(5));
        let mut o = begins(&mut e, extend, NS);
        let _ = posted(o.next(&mut e));
        o.outcome(&mut e, values(&[0, word, lap]), at(2 * NS));
        assert_eq!(o.next(&mut e), Effect::WriteLedger(LedgerEntry::new()));
        assert_eq!(finally(&mut o, &mut e), Status::Fail);
    }
}

fn first_of_release(e: &mut LockEntry, ns: u64) -> (Operation, Effect) {
    let mut o = begins(e, Op::Unlock, ns);
    let effect = o.next(e);
    (o, effect)
}

#[test]
fn a_hold_that_may_be_over_is_released_by_the_arbiter() {
    for mode in [X, S] {
        let mut e = holds(mode, Lease::secs(5));
        let (mut o, effect) = first_of_release(&mut e, 6 * NS);
        assert!(matches!(asked(effect), Request::Release { .. }));
        o.reply(&mut e, Ok(Reply::Denied { status: Status::Fail, word: 0 }), at(6 * NS));
        assert_eq!(o.next(&mut e), Effect::WriteLedger(LedgerEntry::new()));
        assert_eq!(finally(&mut o, &mut e), Status::Fail);
    }
}

/// The first chain has cleared the ledger entry, but could not pass the turn on, because another
/// client sleeps on the word.
#[test]
fn a_release_that_found_its_turn_is_a_success_if_a_second_chain_does_not() {
    let parked = turn(0, 0).with_parked(true).into_bits();
    let past = turn(1, 0).into_bits();
    for second in [values(&[past, 0]), Outcome::Refused(Status::Invalid)] {
        let mut e = holds(X, Lease::secs(5));
        let (mut o, effect) = first_of_release(&mut e, 2);
        assert_eq!(posted(effect).len(), 2, "and none");
        o.outcome(&mut e, values(&[parked, 0]), at(3));
        let _ = posted(o.next(&mut e));
        o.outcome(&mut e, second, at(6 * NS));
        assert_eq!(finally(&mut o, &mut e), Status::Success);
        assert_eq!((e.refs(), e.in_doubt()), (0, false));
    }
}

#[test]
fn a_turn_that_is_awaited_at_the_arbiter_is_passed_on_by_it() {
    let told = turn(0, 0).with_told(true).into_bits();
    // the client has seen `told` before the release: no chain of the release has found the turn
    let mut e = fair();
    let mut o = takes(&mut e, TAKE, [0, told, 0], 1);
    assert_eq!(done(o.next(&mut e)), Status::Success);
    let (mut o, effect) = first_of_release(&mut e, 2);
    assert!(matches!(asked(effect), Request::Release { .. }));
    o.reply(&mut e, Ok(Reply::Denied { status: Status::Fail, word: 0 }), at(3));
    assert_eq!(o.next(&mut e), Effect::WriteLedger(LedgerEntry::new()));
    assert_eq!(finally(&mut o, &mut e), Status::Fail, "no compare-and-swap found the turn");
    // The chain of the release found its turn and cleared the ledger entry; the arbiter may have
    // passed the turn on since.
    for reply in [
        Reply::Done { word: turn(1, 0).into_bits() },
        Reply::Denied { status: Status::Fail, word: turn(1, 0).into_bits() },
    ] {
        for (ns, mode) in [(3, X), (3, S), (6 * NS, X), (6 * NS, S)] {
            let mut e = holds(mode, Lease::secs(5));
            let (mut o, effect) = first_of_release(&mut e, 2);
            let chain = posted(effect);
            o.outcome(&mut e, values(&vec![told; chain.len()]), at(ns));
            assert!(matches!(asked(o.next(&mut e)), Request::Release { .. }));
            o.reply(&mut e, Ok(reply), at(ns + 1));
            // a shared hold may have been counted as done at the same turn, so its lease must still
            // run
            let is_late = mode == S && ns > 5 * NS && matches!(reply, Reply::Denied { .. });
            let expected = if is_late { Status::Fail } else { Status::Success };
            assert_eq!(finally(&mut o, &mut e), expected, "{mode:?} {ns} {reply:?}");
        }
    }
}

#[test]
fn a_share_is_released_from_what_others_have_left() {
    let mut e = holds(S, Lease::secs(5));
    let (mut o, effect) = first_of_release(&mut e, 2);
    let _ = posted(effect);
    o.outcome(&mut e, values(&[turn(0, 1).into_bits()]), at(3));
    let chain = posted(o.next(&mut e));
    let (expect, swap) = (turn(0, 1).into_bits(), turn(0, 2).into_bits());
    assert_eq!(chain, [WordOp::Cas { addr: W1, expect, swap }]);
    o.outcome(&mut e, values(&[expect]), at(4));
    assert_eq!(o.next(&mut e), Effect::WriteLedger(LedgerEntry::new()));
    assert_eq!(done(o.next(&mut e)), Status::Success);
    // the turn belongs to another ticket
    let mut e = holds(S, Lease::secs(5));
    let (mut o, effect) = first_of_release(&mut e, 2);
    let _ = posted(effect);
    o.outcome(&mut e, values(&[turn(1, 1).into_bits()]), at(3));
    assert_eq!(o.next(&mut e), Effect::WriteLedger(LedgerEntry::new()));
    assert_eq!(finally(&mut o, &mut e), Status::Fail);
}

#[test]
fn a_release_in_doubt_is_resolved_without_being_asked() {
    for mode in [X, S] {
        let mut e = holds(mode, Lease::secs(5));
        let mut o = begin(&mut e, Op::Unlock);
        let _ = posted(o.next(&mut e));
        o.outcome(&mut e, Outcome::Unknown, at(1));
        assert_eq!(o.next(&mut e), Effect::Tell(RESOLVE));
        assert_eq!(done(o.next(&mut e)), Status::BadResponse);
        assert!(e.in_doubt());
    }
}

#[test]
fn a_place_that_is_given_up_says_none_first() {
    let mut e = fair();
    let mut o = takes(&mut e, TAKE, [taken(1, 0), 0, 0], 1);
    while !matches!(o.next(&mut e), Effect::Done(_)) {}
    let mut o = begin(&mut e, Op::Unlock);
    assert_eq!(o.next(&mut e), Effect::WriteLedger(LedgerEntry::new()));
    let Effect::Tell(Request::Abandon { ticket, .. }) = o.next(&mut e) else { panic!() };
    assert_eq!(ticket, Ticket { lap: 0, tx: 1, ts: 0 });
    assert_eq!(done(o.next(&mut e)), Status::Success);
}

#[test]
fn a_high_number_is_no_ticket() {
    let mut e = fair();
    let mut o = takes(&mut e, LOCK, [taken(FAIR_DIVERT, 0), 0, 0], 1);
    assert!(matches!(asked(o.next(&mut e)), Request::TakeTicket { mode: X, .. }));
    // the counters have started again from 0, so the client takes a ticket by itself
    o.reply(&mut e, Ok(Reply::Done { word: 0 }), at(NS));
    let chain = posted(o.next(&mut e));
    assert!(matches!(chain[..], [_, WordOp::Faa { .. }, LOOK]), "{chain:?}");
    o.outcome(&mut e, values(&[0, 0, 0, 77]), at(NS + 1));
    assert_eq!(ends(o.next(&mut e)), at(NS).deadline(Lease::secs(5)));
    // or the arbiter gives the client a ticket
    let mut e = fair();
    let mut o = takes(&mut e, LOCK, [taken(FAIR_DIVERT, 0), 0, 0], 1);
    let _ = asked(o.next(&mut e));
    let ticket = Ticket { lap: 0, tx: FAIR_DIVERT + 1, ts: 0 };
    o.reply(&mut e, Ok(Reply::Queued { word: 0, ticket }), at(NS));
    let Request::Wait { ticket: waits, .. } = asked(o.next(&mut e)) else { panic!() };
    assert_eq!(waits, Some(ticket));
}

/// Makes the entry that of a client on shared memory, which may sleep on the word.
fn parks(e: &mut LockEntry) {
    e.may_park(true);
    e.reads_are_free(true);
}

/// Carries a wait out until its first effect that is neither a look nor a pause.
fn up_to_park(o: &mut Operation, e: &mut LockEntry, word: TurnWord) -> (u64, Effect) {
    let mut ns = 10;
    loop {
        match o.next(e) {
            Effect::Pause { .. } => o.paused(e, at(ns)),
            Effect::Post { chain, .. } => {
                if let [WordOp::Cas { .. }] = chain.ops() {
                    return (ns, Effect::Post { chain, until_ns: 0 });
                }
                let mut all = vec![0; chain.values_len()];
                let at_turn = all.len() - 2;
                all[at_turn] = word.into_bits();
                o.outcome(e, values(&all), at(ns));
            }
            other => return (ns, other),
        }
        ns += 1_000;
    }
}

#[test]
fn who_sleeps_on_the_word_says_so_in_it_first() {
    let mut e = fair();
    parks(&mut e);
    let mut o = begin(&mut e, LOCK);
    let chain = posted(o.next(&mut e));
    let mut all = vec![0; Chain::values_len(&chain_of(&chain))];
    all[1] = taken(1, 0);
    o.outcome(&mut e, values(&all), at(1));
    let (ns, effect) = up_to_park(&mut o, &mut e, turn(0, 0));
    let parked = turn(0, 0).with_parked(true).into_bits();
    assert!(matches!(effect, Effect::Post { .. }), "{ns} {effect:?}");
    assert_eq!(posted(effect), [WordOp::Cas { addr: W1, expect: 0, swap: parked }]);
    o.outcome(&mut e, values(&[0]), at(ns));
    let Effect::Park { addr: W1, half: Half::High, value: 0, .. } = o.next(&mut e) else {
        panic!()
    };
    o.paused(&mut e, at(ns + NS / 1_000));
    let chain = posted(o.next(&mut e));
    let mut all = vec![0; chain_of(&chain).values_len()];
    let at_turn = all.len() - 2;
    all[at_turn] = turn(1, 0).into_bits();
    o.outcome(&mut e, values(&all), at(ns + NS / 1_000 + 1));
    assert_eq!(done(o.next(&mut e)), Status::Success);
}

fn chain_of(ops: &[WordOp]) -> Chain {
    ops[1..].iter().fold(Chain::one(ops[0]), |chain, &word_op| chain.then(word_op))
}

#[test]
fn who_passes_the_turn_on_wakes_those_that_sleep() {
    for (mode, half, clears) in [(X, Half::High, true), (S, Half::Low, false)] {
        let mut e = holds(mode, Lease::secs(5));
        parks(&mut e);
        let (mut o, effect) = first_of_release(&mut e, 2);
        let chain = posted(effect);
        let parked = turn(0, 0).with_parked(true);
        o.outcome(&mut e, values(&vec![parked.into_bits(); chain.len()]), at(3));
        let chain = posted(o.next(&mut e));
        let WordOp::Cas { expect, swap, .. } = chain[0] else { panic!() };
        assert_eq!(expect, parked.into_bits());
        assert_eq!(TurnWord::from_bits(swap).parked(), !clears);
        o.outcome(&mut e, values(&vec![expect; chain.len()]), at(4));
        let effects = std::iter::repeat_with(|| o.next(&mut e));
        let wakes: Vec<Half> = effects
            .take_while(|effect| !matches!(effect, Effect::Done(_)))
            .filter_map(|effect| match effect {
                Effect::Wake { addr: W1, half } => Some(half),
                _ => None,
            })
            .collect();
        assert_eq!(wakes, [half]);
    }
}

#[test]
fn nobody_sleeps_on_a_word_that_is_told() {
    let mut e = fair();
    parks(&mut e);
    let mut o = begin(&mut e, LOCK);
    let chain = posted(o.next(&mut e));
    let mut all = vec![0; chain_of(&chain).values_len()];
    all[1] = taken(1, 0);
    o.outcome(&mut e, values(&all), at(1));
    let (_, effect) = up_to_park(&mut o, &mut e, turn(0, 0).with_told(true));
    assert!(matches!(asked(effect), Request::Wait { .. }));
}
