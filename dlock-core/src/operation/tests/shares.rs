// SPDX-License-Identifier: MIT OR Apache-2.0
//! Late notes of shares: a count does not tell whose they are.

use super::*;
use crate::limits::CLAIM_SLACK_S;
use crate::lock::NotedBy;
use crate::message::LockType::{Fair, Rw};
use crate::word_op::WordAddr;
use crate::words::{RwWord, Ticket};

const W0: WordAddr = WordAddr::from_index(9 * 4);
const SHARE: Op = Op::TryLock { mode: S, expire_s: 5 };
const LOST: Outcome = Outcome::Unknown;

fn late(lock_type: LockType) -> LockEntry {
    let mut e = entry(lock_type);
    e.noted_by(NotedBy::ClientLate);
    e
}

fn write(entry: LedgerEntry) -> WordOp {
    WordOp::WriteLedger { handle: Handle(3), value: entry.into_bits() }
}

fn rw(state: LedgerState, stamp: u32) -> LedgerEntry {
    LedgerEntry::new().with_state(state).with_detail(stamp)
}

fn fair(state: LedgerState, ts: u16, deadline_s: u32) -> LedgerEntry {
    LedgerEntry::of_ticket(state, Ticket { tx: 0, ts }).with_deadline_s(deadline_s, 0)
}

fn intent(lock_type: LockType) -> WordOp {
    write(match lock_type {
        Rw => rw(LedgerState::Intent, 1),
        _ => LedgerEntry::intent(S, true, 1).with_deadline_s(1_005 + CLAIM_SLACK_S, 0),
    })
}

fn adds(lock_type: LockType) -> WordOp {
    let add = if lock_type == Rw { 1 } else { FairWord::TAKE_SHARED };
    WordOp::Faa { addr: W0, add }
}

fn takes_off(lock_type: LockType, before: u64) -> WordOp {
    match lock_type {
        Rw => WordOp::Faa { addr: W0, add: u64::MAX },
        _ => {
            let swap = FairWord::from_bits(before).shared_done(1).into_bits();
            WordOp::Cas { addr: W0, expect: before, swap }
        }
    }
}

/// The word with one reader inside, after as many are done.
fn with_me(lock_type: LockType, done: u16) -> u64 {
    match lock_type {
        Rw => RwWord::new().with_rcount(1).into_bits(),
        _ => FairWord::new().with_ns(done).with_ms(done + 1).into_bits(),
    }
}

/// The free word, after as many are done.
fn free(lock_type: LockType, done: u16) -> u64 {
    match lock_type {
        Rw => 0,
        _ => FairWord::new().with_ns(done).with_ms(done).into_bits(),
    }
}

/// What is noted of the share that is held, the first one of its client.
fn held_entry(lock_type: LockType) -> LedgerEntry {
    match lock_type {
        Rw => rw(LedgerState::HeldShared, 1),
        _ => fair(LedgerState::HeldShared, 0, 1_005),
    }
}

fn none(lock_type: LockType) -> LedgerEntry {
    let stamp = if lock_type == Rw { 1 } else { 0 };
    rw(LedgerState::None, stamp)
}

fn held(lock_type: LockType) -> LockEntry {
    let mut e = late(lock_type);
    let posted = at_once(&mut e, SHARE, 0, free(lock_type, 0));
    assert_eq!(posted, [intent(lock_type), adds(lock_type)]);
    e
}

/// What a release does whose chain comes to this.
fn after_release(e: &mut LockEntry, outcome: Outcome) -> Vec<Effect> {
    let mut o = begin(e, Op::Unlock);
    let _ = posted(o.next(e));
    o.outcome(e, outcome, at(1));
    effects(&mut o, e)
}

fn effects(o: &mut Operation, e: &mut LockEntry) -> Vec<Effect> {
    let mut all = Vec::new();
    loop {
        let effect = o.next(e);
        let is_last = matches!(effect, Effect::Done(_) | Effect::Ask { .. } | Effect::Post { .. });
        all.push(effect);
        if is_last {
            return all;
        }
    }
}

#[test]
fn a_share_that_is_taken_again_and_again_is_noted_by_one_intent() {
    for lock_type in [Rw, Fair] {
        let mut e = held(lock_type);
        for n in 0..4 {
            assert!(e.late_note().is_some() && !e.has_ledger_write(), "{lock_type:?}");
            let word = with_me(lock_type, n);
            assert_eq!(at_once(&mut e, Op::Unlock, 0, word), [takes_off(lock_type, word)]);
            assert!(e.late_note().is_some() && !e.has_ledger_write(), "{lock_type:?}");
            assert_eq!(at_once(&mut e, SHARE, 0, free(lock_type, n + 1)), [adds(lock_type)]);
        }
    }
}

#[test]
fn what_nothing_has_followed_is_written_and_then_a_release_says_that_it_leaves() {
    for lock_type in [Rw, Fair] {
        let mut e = held(lock_type);
        assert_eq!(e.take_late_note(), Some(held_entry(lock_type)));
        let leaving = posted(begin(&mut e, Op::Unlock).next(&mut e));
        let WordOp::WriteLedger { value, .. } = leaving[0] else { panic!("{leaving:?}") };
        assert_eq!(LedgerEntry::from_bits(value).state(), LedgerState::Leaving);
        let mut e = held(lock_type);
        let _ = at_once(&mut e, Op::Unlock, 0, with_me(lock_type, 0));
        assert_eq!(e.take_late_note(), Some(none(lock_type)));
        let anew = at_once(&mut e, SHARE, 0, free(lock_type, 1));
        assert!(matches!(anew[..], [WordOp::WriteLedger { .. }, WordOp::Faa { .. }]), "{anew:?}");
        assert_ne!(anew[0], intent(lock_type), "a stamp of its own");
    }
}

/// It may be taken off already: who undoes what the ledger names would take another's.
#[test]
fn a_share_whose_release_is_not_answered_is_not_noted_as_held() {
    for lock_type in [Rw, Fair] {
        let mut e = held(lock_type);
        let after = after_release(&mut e, LOST);
        assert!(!after.iter().any(|effect| matches!(effect, Effect::WriteLedger(_))), "{after:?}");
        assert!(after.contains(&Effect::Tell(RESOLVE)), "{after:?}");
        assert_eq!(e.late_note(), None, "{lock_type:?}");
    }
}

#[test]
fn a_release_that_is_refused_leaves_the_note_of_the_share() {
    for lock_type in [Rw, Fair] {
        let mut e = held(lock_type);
        let after = after_release(&mut e, Outcome::Refused(Status::NotReady));
        assert!(matches!(after[..], [.., Effect::Done(_)]), "{after:?}");
        assert_eq!(e.take_late_note(), Some(held_entry(lock_type)), "it is held still");
    }
}

/// The arbiter takes a share off only if the ledger names it.
#[test]
fn a_share_is_named_before_its_release_is_asked_for() {
    let mut e = held(Fair);
    let mut o = begin(&mut e, Op::Unlock);
    let _ = posted(o.next(&mut e));
    let behind = FairWord::from_bits(with_me(Fair, 0)).exclusive_taken().into_bits();
    o.outcome(&mut e, values(&[behind]), at(1));
    assert_eq!(o.next(&mut e), Effect::WriteLedger(held_entry(Fair)));
    assert!(matches!(o.next(&mut e), Effect::Ask { request: Request::Release { .. }, .. }));
}

#[test]
fn a_hold_of_the_other_mode_takes_an_intent_of_its_own() {
    for (first, other) in [(SHARE, TAKE), (TAKE, SHARE)] {
        let mut e = late(Fair);
        let _ = at_once(&mut e, first, 0, 0);
        let word = match first {
            SHARE => FairWord::new().shared_taken(),
            _ => FairWord::new().exclusive_taken(),
        };
        let _ = at_once(&mut e, Op::Unlock, 0, word.into_bits());
        let mut o = begin(&mut e, other);
        assert_eq!(posted(o.next(&mut e)).len(), 2, "{other:?}");
    }
}

/// The step back says so in its chain: nothing may be noted after it.
#[test]
fn a_reader_that_steps_back_leaves_no_intent() {
    let mut e = held(Rw);
    let _ = at_once(&mut e, Op::Unlock, 0, with_me(Rw, 0));
    let mut o = begin(&mut e, SHARE);
    assert_eq!(posted(o.next(&mut e)), [adds(Rw)]);
    let others = RwWord::new().with_client(8).into_bits();
    o.outcome(&mut e, values(&[others]), at(1));
    assert_eq!(posted(o.next(&mut e)), [takes_off(Rw, 0), write(none(Rw))]);
    o.outcome(&mut e, values(&[others + 1, 0]), at(2));
    assert!(matches!(effects(&mut o, &mut e)[..], [.., Effect::Done(_)]));
    assert_eq!((e.late_note(), e.has_ledger_write()), (None, false));
    let mut o = begin(&mut e, SHARE);
    assert_eq!(posted(o.next(&mut e)).len(), 2);
}

/// It is counted still: so says its intent.
#[test]
fn a_step_back_that_is_refused_leaves_the_intent() {
    let mut e = late(Rw);
    let mut o = begin(&mut e, SHARE);
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[0, RwWord::new().with_client(8).into_bits()]), at(1));
    assert_eq!(posted(o.next(&mut e))[0], takes_off(Rw, 0));
    o.outcome(&mut e, Outcome::Refused(Status::NotReady), at(2));
    let after = effects(&mut o, &mut e);
    assert!(!after.iter().any(|effect| matches!(effect, Effect::WriteLedger(_))), "{after:?}");
    assert!(e.in_doubt());
}

/// Somebody has taken it off already: what was taken off too much is put back, and noted.
#[test]
fn a_share_that_is_lost_is_noted_as_gone_once_the_count_is_right_again() {
    let mut e = held(Rw);
    let mut o = begin(&mut e, Op::Unlock);
    assert_eq!(posted(o.next(&mut e)), [takes_off(Rw, 0)]);
    o.outcome(&mut e, values(&[0]), at(1));
    assert_eq!(posted(o.next(&mut e)), [adds(Rw)]);
    o.outcome(&mut e, values(&[u64::MAX]), at(2));
    let after = effects(&mut o, &mut e);
    assert!(matches!(after[..], [.., Effect::Done(OpResult { status: Status::Fail, .. })]));
    assert_eq!(e.take_late_note(), Some(none(Rw)));
}

#[test]
fn an_answer_that_was_lost_ends_the_intent() {
    for lock_type in [Rw, Fair] {
        let mut e = held(lock_type);
        let _ = at_once(&mut e, Op::Unlock, 0, with_me(lock_type, 0));
        let mut o = begin(&mut e, SHARE);
        assert_eq!(posted(o.next(&mut e)), [adds(lock_type)]);
        o.outcome(&mut e, LOST, at(1));
        let after = effects(&mut o, &mut e);
        assert!(after.contains(&Effect::Tell(RESOLVE)), "{after:?}");
        let mut o = begin(&mut e, SHARE);
        let asked = effects(&mut o, &mut e);
        assert!(matches!(asked[..], [.., Effect::Ask { request: RESOLVE, .. }]), "{asked:?}");
        o.reply(&mut e, Ok(Reply::Done { word: 0 }), at(2));
        let next = effects(&mut o, &mut e);
        let Some(Effect::Post { chain, .. }) = next.last() else { panic!("{next:?}") };
        assert_eq!(chain.ops().len(), 2, "{lock_type:?}");
    }
}

/// Its release found no primary, which ended it meanwhile: what the count has is another's.
#[test]
fn a_share_that_lapsed_is_not_noted_when_its_client_comes_back() {
    for lock_type in [Rw, Fair] {
        for has_lapsed in [false, true] {
            let mut e = held(lock_type);
            assert_eq!(
                e.release_unheard(Status::NotReady, at(2)).map(|result| result.status),
                Some(Status::Success)
            );
            if has_lapsed {
                assert!(!e.lapse(), "nothing is held");
            }
            assert_eq!(crate::session::resume(&mut e, false, at(9)), Some(RESOLVE));
            let noted = (!has_lapsed).then(|| held_entry(lock_type));
            assert_eq!(e.take_ledger_write(), noted, "{lock_type:?}: what is undone");
        }
    }
}
