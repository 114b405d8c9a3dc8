// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations whose chains the primary executes; the primary also writes their effect into the
//! ledger.

use super::*;
use crate::clock::Lease;
use crate::memory::words::RwWord;

fn noted(lock_type: LockType) -> LockEntry {
    let mut e = entry(lock_type);
    e.is_by_primary(true);
    e
}

/// A reader that finds a writer steps back, and its chain clears the ledger entry, which says that
/// it intends to read.
#[test]
fn a_reader_that_is_not_inside_is_not_taken_for_one() {
    let mut e = noted(LockType::Rw);
    let mut o = begin(&mut e, Op::TryLock { mode: S, lease: Lease::secs(5) });
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[0, RwWord::new().with_client(8).into_bits()]), at(1));
    let posted = posted(o.next(&mut e));
    assert!(matches!(posted[..], [WordOp::Faa { .. }, WordOp::WriteLedger { .. }]), "{posted:?}");
}

/// The claim of the ticket may be over by then, and the arbiter may have passed the ticket over.
#[test]
fn a_ticket_whose_answer_came_late_is_asked_for() {
    let mut e = noted(LockType::Fair);
    let mut o = begin(&mut e, TAKE);
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[0; 4]), at(6 * NS));
    let effects = std::iter::repeat_with(|| o.next(&mut e));
    let is_poll = |e: &Effect| matches!(e, Effect::Ask { request: Request::Poll { .. }, .. });
    assert!(effects.take(3).any(|effect| is_poll(&effect)));
}

const LOCK_TYPES: [LockType; 3] = [LockType::Atomic, LockType::Rw, LockType::Fair];

/// A lock of this kind that was free and that the client now holds.
fn held_at_once(lock_type: LockType, by_primary: bool) -> LockEntry {
    let mut e = entry(lock_type);
    e.is_by_primary(by_primary);
    let result = finish(&mut e, TAKE, 0);
    assert_eq!(result.status, Status::Success);
    e
}

/// The word of a lock that the client holds while other clients wait.
fn waited_for(lock_type: LockType) -> u64 {
    let deadline = at(0).deadline(Lease::secs(5));
    match lock_type {
        LockType::Atomic => {
            let word = AtomicWord::new().with_client(7).with_timeout(deadline);
            word.with_waiters(true).into_bits()
        }
        LockType::Rw => RwWord::new().with_client(7).with_waiters(true).into_bits(),
        LockType::Fair => TurnWord::new().with_told(true).into_bits(),
    }
}

fn is_release(effect: &Effect) -> bool {
    matches!(effect, Effect::Ask { request: Request::Release { .. }, .. })
}

/// Begins a release; returns the operation and its first effect.
fn releases(e: &mut LockEntry) -> (Operation, Effect) {
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

/// Releases a lock by a chain, which finds that other clients wait, and then asks the primary.
/// Returns the word that this leaves.
fn releases_in_vain_first(e: &mut LockEntry) -> u64 {
    let lock_type = e.lock_type();
    let (mut o, first) = releases(e);
    let chain = posted(first);
    o.outcome(e, values(&vec![waited_for(lock_type); chain.len()]), at(2));
    assert!(is_release(&o.next(e)), "{lock_type:?}");
    let others = match lock_type {
        LockType::Fair => TurnWord::new().with_nx(1).with_told(true).into_bits(),
        _ => others_word(),
    };
    ends(o, e, others);
    others
}

#[test]
fn while_others_wait_a_release_asks_at_once_and_when_nobody_does_no_more() {
    for lock_type in LOCK_TYPES {
        let mut e = held_at_once(lock_type, true);
        let others = releases_in_vain_first(&mut e);
        // the words that the releases leave: other clients wait, other clients wait, free
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

/// A client that operates on the words itself begins with its chain: it would not save a message by
/// asking the primary first.
#[test]
fn where_the_client_notes_a_release_begins_with_its_chain() {
    for lock_type in LOCK_TYPES {
        let mut e = held_at_once(lock_type, false);
        releases_in_vain_first(&mut e);
        assert_eq!(finish(&mut e, TAKE, 0).status, Status::Success);
        let (_, first) = releases(&mut e);
        assert!(!is_release(&first), "{lock_type:?}");
    }
}
