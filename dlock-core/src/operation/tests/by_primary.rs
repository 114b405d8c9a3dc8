// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations whose chains the primary executes, and notes in the ledger.

use super::*;
use crate::lock::NotedBy;
use crate::words::{RwWord, Ticket};

/// More than a waiter claims ahead of its turn: where the client notes, it waits for the note.
const LONG_S: u32 = CLAIM_LEASE_S_MAX + 1;

fn noted(lock_type: LockType) -> LockEntry {
    let mut e = entry(lock_type);
    e.noted_by(NotedBy::Primary);
    e
}

/// The operation is one chain, which finds this, and nothing else.
fn at_once(e: &mut LockEntry, op: Op, found: u64) -> Vec<WordOp> {
    let mut o = begin(e, op);
    let posted = posted(o.next(e));
    o.outcome(e, values(&vec![found; posted.len()]), at(1));
    let mut next = o.next(e);
    if next == Effect::ReadClock {
        o.clock(at(2));
        next = o.next(e);
    }
    assert_eq!(done(next), Status::Success, "{op:?}");
    assert!(!e.has_ledger_write() && e.late_note().is_none());
    posted
}

fn take(mode: Mode) -> Op {
    Op::TryLock { mode, expire_s: LONG_S }
}

#[test]
fn a_lock_is_taken_and_released_by_one_chain_each_and_nothing_is_written_beside() {
    let fair = FairWord::new();
    for (mode, taken) in [(X, fair.exclusive_taken()), (S, fair.shared_taken())] {
        let mut e = noted(LockType::Fair);
        for _ in 0..3 {
            let posted = at_once(&mut e, take(mode), 0);
            let [WordOp::WriteLedger { value, .. }, WordOp::Faa { .. }] = posted[..] else {
                panic!("{posted:?}")
            };
            let intent = LedgerEntry::from_bits(value);
            assert_eq!(intent.state(), LedgerState::Intent);
            assert_eq!(intent.deadline_s(0), 1_000 + LONG_S, "the lease that is noted");
            let posted = at_once(&mut e, Op::Unlock, taken.into_bits());
            assert!(matches!(posted[..], [.., WordOp::Cas { .. }]), "{posted:?}");
        }
    }
    let mut e = noted(LockType::Rw);
    at_once(&mut e, take(S), 0);
    at_once(&mut e, Op::Unlock, 1);
}

#[test]
fn who_has_to_wait_asks_the_primary_with_nothing_between() {
    let held = FairWord::new().exclusive_taken();
    for mode in [X, S] {
        let mut e = noted(LockType::Fair);
        let mut o = begin(&mut e, Op::Lock { mode, expire_s: LONG_S });
        let _ = posted(o.next(&mut e));
        o.outcome(&mut e, values(&[0, held.into_bits()]), at(1));
        let mut next = o.next(&mut e);
        if next == Effect::ReadClock {
            o.clock(at(2));
            next = o.next(&mut e);
        }
        let Effect::Ask { request: Request::Wait { ticket, .. }, .. } = next else {
            panic!("{next:?}")
        };
        assert_eq!(ticket, Some(Ticket { tx: 1, ts: 0 }));
    }
}

/// The reader steps back: its ledger says that it intends to be one.
#[test]
fn a_reader_that_is_not_inside_is_not_taken_for_one() {
    let mut e = noted(LockType::Rw);
    let mut o = begin(&mut e, take(S));
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[0, RwWord::new().with_client(8).into_bits()]), at(1));
    let posted = posted(o.next(&mut e));
    assert!(matches!(posted[..], [WordOp::Faa { .. }, WordOp::WriteLedger { .. }]), "{posted:?}");
}

/// It may have been passed over.
#[test]
fn a_ticket_whose_answer_came_late_is_asked_for() {
    let mut e = noted(LockType::Fair);
    let mut o = begin(&mut e, take(X));
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[0, 0]), at(NS));
    let is_poll = |e: &Effect| matches!(e, Effect::Ask { request: Request::Poll { .. }, .. });
    let mut effects = std::iter::repeat_with(|| match o.next(&mut e) {
        Effect::ReadClock => {
            o.clock(at(NS));
            Effect::ReadClock
        }
        other => other,
    });
    assert!(effects.by_ref().take(5).any(|effect| is_poll(&effect)));
}

const LOCK_TYPES: [LockType; 3] = [LockType::Atomic, LockType::Rw, LockType::Fair];

/// A lock of this kind that was free, and is held.
fn held_at_once(lock_type: LockType, by: NotedBy) -> LockEntry {
    let mut e = entry(lock_type);
    e.noted_by(by);
    let result = finish(&mut e, TAKE, 0);
    assert_eq!(result.status, Status::Success);
    e
}

/// The word of a lock that it holds, while others wait.
fn waited_for(lock_type: LockType) -> u64 {
    let deadline_s = at(0).deadline(5);
    match lock_type {
        LockType::Atomic => {
            let word = AtomicWord::new().with_client(7).with_timeout(deadline_s);
            word.with_waiters(true).into_bits()
        }
        LockType::Rw => RwWord::new().with_client(7).with_waiters(true).into_bits(),
        LockType::Fair => FairWord::new().exclusive_taken().exclusive_taken().into_bits(),
    }
}

fn is_release(effect: &Effect) -> bool {
    matches!(effect, Effect::Ask { request: Request::Release { .. }, .. })
}

/// The first effect of a release.
fn releases(e: &mut LockEntry) -> (Operation, Effect) {
    assert_eq!(
        e.fast(Op::Unlock, at(2)).is_some(),
        e.lock_type() != LockType::Fair && {
            let mut copy = e.clone();
            let mut o = begin(&mut copy, Op::Unlock);
            !is_release(&o.next(&mut copy))
        }
    );
    let mut o = begin(e, Op::Unlock);
    let effect = o.next(e);
    (o, effect)
}

fn ends(mut o: Operation, e: &mut LockEntry, word: u64) {
    o.reply(e, Ok(Reply::Done { word }), at(3));
    let effects = std::iter::repeat_with(|| o.next(e));
    let result = effects.take(5).find(|effect| matches!(effect, Effect::Done(_)));
    assert_eq!(done(result.expect("it ends")), Status::Success);
}

/// Its chain finds that others wait, and it asks the primary; the word that this leaves.
fn releases_in_vain_first(e: &mut LockEntry) -> u64 {
    let lock_type = e.lock_type();
    let (mut o, first) = releases(e);
    let chain = posted(first);
    o.outcome(e, values(&vec![waited_for(lock_type); chain.len()]), at(2));
    assert!(is_release(&o.next(e)), "{lock_type:?}");
    let others = match lock_type {
        LockType::Fair => FairWord::new().with_nx(1).with_mx(2).into_bits(),
        _ => others_word(),
    };
    ends(o, e, others);
    others
}

#[test]
fn while_others_wait_a_release_asks_at_once_and_when_nobody_does_no_more() {
    for lock_type in LOCK_TYPES {
        let mut e = held_at_once(lock_type, NotedBy::Primary);
        let others = releases_in_vain_first(&mut e);
        // the word that each release leaves: with others, with others, free
        for word in [others, others, 0] {
            assert_eq!(finish(&mut e, TAKE, 0).status, Status::Success);
            let (o, first) = releases(&mut e);
            assert!(is_release(&first), "{lock_type:?}: {first:?}");
            ends(o, &mut e, word);
        }
        assert_eq!(finish(&mut e, TAKE, 0).status, Status::Success);
        let (_, first) = releases(&mut e);
        assert!(!is_release(&first), "{lock_type:?}: nobody has waited");
    }
}

/// Readers inside a lock do not wait for each other's release.
#[test]
fn a_reader_with_others_inside_does_not_count_as_waited_for() {
    let share = Op::TryLock { mode: S, expire_s: 5 };
    let inside = |n| FairWord::new().with_ms(n).into_bits();
    for (left, asks) in [
        (FairWord::new().with_ns(1).with_ms(3), false),
        (FairWord::new().with_ns(1).with_ms(3).with_mx(1), true),
    ] {
        let mut e = entry(LockType::Fair);
        e.noted_by(NotedBy::Primary);
        assert_eq!(finish(&mut e, share, inside(0)).status, Status::Success);
        let mut o = begin(&mut e, Op::Unlock);
        let first = o.next(&mut e);
        assert!(!is_release(&first), "{first:?}");
        o.outcome(&mut e, values(&[0, inside(3) | 1 << 16]), at(2)); // somebody is behind
        assert!(is_release(&o.next(&mut e)));
        ends(o, &mut e, left.into_bits());
        assert_eq!(finish(&mut e, share, inside(0)).status, Status::Success);
        let (_, first) = releases(&mut e);
        assert_eq!(is_release(&first), asks, "{left:?}");
    }
}

/// One that reaches the words itself has released the lock before it could ask.
#[test]
fn where_the_client_notes_a_release_begins_with_its_chain() {
    for lock_type in LOCK_TYPES {
        let mut e = held_at_once(lock_type, NotedBy::Client);
        releases_in_vain_first(&mut e);
        assert_eq!(finish(&mut e, TAKE, 0).status, Status::Success);
        let (_, first) = releases(&mut e);
        assert!(!is_release(&first), "{lock_type:?}");
    }
}
