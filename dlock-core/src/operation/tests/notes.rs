// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notes of a fair lock that are late, and intents that stand.

use super::*;
use crate::limits::{CLAIM_SLACK_S, NOTE_LATE_NS};
use crate::lock::NotedBy;
use crate::word_op::WordAddr;
use crate::words::Ticket;

const W0: WordAddr = WordAddr::from_index(9 * 4);
const ADD: WordOp = WordOp::Faa { addr: W0, add: FairWord::TAKE_EXCLUSIVE };
const READ: WordOp = WordOp::Read { addr: W0 };

fn fair() -> LockEntry {
    let mut e = entry(LockType::Fair);
    e.may_try(true);
    e.noted_by(NotedBy::ClientLate);
    e
}

/// So many exclusive tickets are done, and so many were taken.
fn word(nx: u16, mx: u16) -> u64 {
    FairWord::new().with_nx(nx).with_mx(mx).into_bits()
}

fn intent(stamp: u32, deadline_s: u32) -> WordOp {
    let intent = LedgerEntry::intent(X, true, stamp).with_deadline_s(deadline_s, 0);
    WordOp::WriteLedger { handle: Handle(3), value: intent.into_bits() }
}

fn names(state: LedgerState, tx: u16, deadline_s: u32) -> LedgerEntry {
    LedgerEntry::of_ticket(state, Ticket { tx, ts: 0 }).with_deadline_s(deadline_s, 0)
}

/// What follows, but for what is written or counted.
fn after_notes(o: &mut Operation, e: &mut LockEntry) -> Effect {
    let is_aside = |effect: &Effect| matches!(effect, Effect::WriteLedger(_) | Effect::Count(_));
    std::iter::repeat_with(|| o.next(e)).find(|effect| !is_aside(effect)).expect("an effect")
}

/// Holds ticket 0 since the start, for 5 s; nothing is noted but its intent.
fn held_by_intent() -> LockEntry {
    let mut e = fair();
    let deadline_s = 1_005 + CLAIM_SLACK_S;
    assert_eq!(at_once(&mut e, TAKE, 0, word(0, 0)), [intent(1, deadline_s), ADD]);
    e
}

#[test]
fn a_lock_that_is_taken_again_and_again_is_noted_by_one_intent() {
    let mut e = held_by_intent();
    for n in 0..4 {
        assert!(e.late_note().is_some() && !e.has_ledger_write());
        let [WordOp::Cas { .. }] = at_once(&mut e, Op::Unlock, 10, word(n, n + 1))[..] else {
            panic!("one compare-and-swap")
        };
        assert_eq!(at_once(&mut e, TAKE, 20, word(n + 1, n + 1)), [ADD]);
        assert_eq!(e.ticket(), Some(Ticket { tx: n + 1, ts: 0 }));
    }
}

#[test]
fn what_nothing_has_followed_is_written_once() {
    let mut e = held_by_intent();
    let first = e.late_note();
    assert_eq!(e.take_late_note(), Some(names(LedgerState::HeldExclusive, 0, 1_005)));
    assert_eq!((e.take_late_note(), e.late_note()), (None, None));
    let _ = at_once(&mut e, Op::Unlock, 10, word(0, 1));
    assert!(e.late_note().is_some() && e.late_note() != first, "another note");
    assert_eq!(e.take_late_note(), Some(LedgerEntry::new()));
    let anew = at_once(&mut e, TAKE, 20, word(1, 1));
    assert_eq!(anew, [intent(2, 1_007), ADD], "the ledger says nothing any more");
}

/// Between the two writes it would name a ticket that its client does not have any more.
#[test]
fn a_ticket_that_is_taken_leaves_no_earlier_note_to_be_written() {
    let mut e = held_by_intent();
    let _ = at_once(&mut e, Op::Unlock, 10, word(0, 1));
    let mut o = begins(&mut e, LOCK, 20);
    assert_eq!(posted(o.next(&mut e)), [ADD]);
    assert_eq!(e.late_note(), None);
}

#[test]
fn an_intent_is_written_anew_where_the_last_one_does_not_claim_enough_or_far_too_much() {
    for (ns, lease_s, stands) in [
        (2 * NS, 5, true),
        (2 * NS + 1, 5, true), // 1,007.000000001 is before the end of second 1,007
        (3 * NS, 5, false),
        (20, 7, true),
        (20, 8, false),
        (20, 4, false), // for two seconds more than this lease, and no more
        (NS, 4, true),
        (20, CLAIM_LEASE_S_MAX + 1, false),
    ] {
        let mut e = held_by_intent();
        let _ = at_once(&mut e, Op::Unlock, 10, word(0, 1));
        let mut o = begins(&mut e, Op::TryLock { mode: X, expire_s: lease_s }, ns);
        let is_written = posted(o.next(&mut e)).len() == 2;
        assert_eq!(!is_written, stands, "{lease_s} s at {ns}");
    }
    let mut e = held_by_intent();
    let _ = at_once(&mut e, Op::Unlock, 10, word(0, 1));
    let mut o = begins(&mut e, Op::TryLock { mode: S, expire_s: 5 }, 20);
    assert_eq!(posted(o.next(&mut e)).len(), 2, "it is of an exclusive ticket");
}

/// The arbiter decides by what the ledger says.
#[test]
fn a_note_that_is_late_is_written_before_a_request() {
    let mut e = held_by_intent();
    let mut o = begins(&mut e, Op::Unlock, 4 * NS + 2 * NS); // its lease may be over
    let noted = names(LedgerState::HeldExclusive, 0, 1_005);
    assert_eq!(o.next(&mut e), Effect::WriteLedger(noted));
    assert!(matches!(o.next(&mut e), Effect::Ask { request: Request::Release { .. }, .. }));
    let mut e = held_by_intent();
    let mut o = begins(&mut e, Op::Extend { mode: X, expire_s: 9 }, 10);
    assert_eq!(o.next(&mut e), Effect::WriteLedger(noted), "should the chain be lost");
    assert!(matches!(posted(o.next(&mut e))[..], [WordOp::WriteLedger { .. }, READ]));
    o.outcome(&mut e, values(&[0, word(0, 1)]), at(20));
    assert_eq!(done(o.next(&mut e)), Status::Success);
    let _ = at_once(&mut e, Op::Unlock, 30, word(0, 1));
    assert_eq!(at_once(&mut e, TAKE, 40, word(1, 1)).len(), 2, "its ledger says something else");
}

#[test]
fn an_intent_stands_no_more_once_a_note_is_written() {
    let mut e = fair();
    let long = Op::TryLock { mode: X, expire_s: CLAIM_LEASE_S_MAX };
    let _ = at_once(&mut e, long, 0, word(0, 0));
    let ns = u64::from(CLAIM_LEASE_S_MAX + 1) * NS; // its lease may be over
    let mut o = begins(&mut e, Op::Unlock, ns);
    assert!(matches!(o.next(&mut e), Effect::WriteLedger(_)));
    assert!(matches!(o.next(&mut e), Effect::Ask { .. }));
    o.reply(&mut e, Ok(Reply::Done { word: word(1, 1) }), at(ns + 1));
    assert_eq!(done(after_notes(&mut o, &mut e)), Status::Success);
    // the intent claimed two seconds more
    let short = Op::TryLock { mode: X, expire_s: 1 };
    assert_eq!(at_once(&mut e, short, ns + 2, word(1, 1)).len(), 2);
}

/// It would be written over the note of a share that was lost.
#[test]
fn a_share_leaves_no_earlier_note_to_be_written() {
    let mut e = held_by_intent();
    let _ = at_once(&mut e, Op::Unlock, 10, word(0, 1));
    let mut o = begins(&mut e, Op::TryLock { mode: S, expire_s: 5 }, 20);
    assert_eq!(posted(o.next(&mut e)).len(), 2);
    assert_eq!(e.late_note(), None);
}

#[test]
fn a_hold_that_is_found_over_is_not_noted() {
    let mut e = held_by_intent();
    let mut o = begins(&mut e, Op::Unlock, 10);
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[word(1, 1)]), at(20));
    assert_eq!(o.next(&mut e), Effect::WriteLedger(LedgerEntry::new()));
    assert_eq!(e.late_note(), None);
    assert_eq!(done(after_notes(&mut o, &mut e)), Status::Fail);
}

#[test]
fn what_is_given_back_is_named_before_it_is_undone() {
    let mut e = fair();
    let mut o = begins(&mut e, TAKE, 0);
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[0, word(0, 0)]), at(NS / 2));
    assert_eq!(done(o.next(&mut e)), Status::Success);
    o.told_late(&e, at(6 * NS)); // nobody had asked for it
    let noted = names(LedgerState::HeldExclusive, 0, 1_005);
    assert_eq!(o.next(&mut e), Effect::WriteLedger(noted));
    assert_eq!(o.next(&mut e), Effect::Tell(RESOLVE));
    assert_eq!(done(o.next(&mut e)), Status::Fail);
}

#[test]
fn after_a_lost_answer_the_intent_stands_no_more() {
    let mut e = held_by_intent();
    let _ = at_once(&mut e, Op::Unlock, 10, word(0, 1));
    let mut o = begins(&mut e, TAKE, 20);
    assert_eq!(posted(o.next(&mut e)), [ADD]);
    o.outcome(&mut e, Outcome::Unknown, at(30));
    assert_eq!(o.next(&mut e), Effect::Tell(RESOLVE), "by what the ledger says: an intent");
    assert_eq!(done(o.next(&mut e)), Status::BadResponse);
    let mut o = begins(&mut e, TAKE, 40);
    assert!(matches!(o.next(&mut e), Effect::Ask { request: RESOLVE, .. }));
    o.reply(&mut e, Ok(Reply::Done { word: 0 }), at(50));
    assert!(matches!(o.next(&mut e), Effect::WriteLedger(_)));
    assert_eq!(posted(o.next(&mut e)).len(), 2);
}

/// A release whose answer is lost is undone by the ticket that the ledger names.
#[test]
fn after_a_lost_release_the_hold_is_named() {
    let mut e = held_by_intent();
    let mut o = begins(&mut e, Op::Unlock, 10);
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, Outcome::Unknown, at(20));
    assert_eq!(o.next(&mut e), Effect::WriteLedger(names(LedgerState::HeldExclusive, 0, 1_005)));
    assert_eq!(o.next(&mut e), Effect::Tell(RESOLVE));
}

#[test]
fn a_chain_that_was_refused_leaves_no_intent() {
    for is_standing in [false, true] {
        let mut e = fair();
        if is_standing {
            e = held_by_intent();
            let _ = at_once(&mut e, Op::Unlock, 10, word(0, 1));
        }
        let mut o = begins(&mut e, TAKE, 20);
        assert_eq!(posted(o.next(&mut e)).len(), 2 - usize::from(is_standing));
        o.outcome(&mut e, Outcome::Refused(Status::NotReady), at(30));
        assert_eq!(o.next(&mut e), Effect::WriteLedger(LedgerEntry::new()));
        assert!(matches!(o.next(&mut e), Effect::Count(_) | Effect::Done(_)));
        assert_eq!(e.late_note(), None);
    }
}

/// A note that was late is not lost with the chain that was to follow it.
#[test]
fn a_refused_chain_leaves_the_ledger_as_the_lock_is() {
    for op in [Op::TryLock { mode: S, expire_s: 5 }, Op::TryLock { mode: X, expire_s: 61 }] {
        let mut e = held_by_intent();
        let _ = e.take_late_note();
        let _ = at_once(&mut e, Op::Unlock, 10, word(0, 1));
        let mut o = begins(&mut e, op, 20);
        assert_eq!(posted(o.next(&mut e)).len(), 2);
        o.outcome(&mut e, Outcome::Refused(Status::NotReady), at(30));
        assert_eq!(o.next(&mut e), Effect::WriteLedger(LedgerEntry::new()), "{op:?}");
    }
    let mut e = held_by_intent();
    let mut o = begins(&mut e, Op::Unlock, 10);
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, Outcome::Refused(Status::NotReady), at(20));
    assert!(matches!(o.next(&mut e), Effect::Count(_) | Effect::Done(_)));
    let noted = names(LedgerState::HeldExclusive, 0, 1_005);
    assert_eq!(e.take_late_note(), Some(noted), "it is held still");
}

/// Nothing was noted of it: asked for by that ticket, the arbiter would not know whose it is.
#[test]
fn a_ticket_whose_look_was_lost_is_named() {
    let mut e = fair();
    let mut o = begins(&mut e, LOCK, 1);
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[0, word(0, 1)]), at(2));
    assert!(matches!(o.next(&mut e), Effect::Pause { .. }));
    o.paused(&mut e, at(3));
    assert_eq!(posted(o.next(&mut e)), [READ]);
    o.outcome(&mut e, Outcome::Unknown, at(4));
    let named = LedgerEntry::of_ticket(LedgerState::TicketExclusive, Ticket { tx: 1, ts: 0 });
    assert_eq!(o.next(&mut e), Effect::WriteLedger(named));
    assert_eq!(e.state(), EntryState::ExclusiveTicketed);
}

/// A hold by an intent ends at the intent's deadline.
#[test]
fn a_look_that_the_intent_does_not_claim_enough_for_claims_by_itself() {
    let mut e = held_by_intent(); // until 1,007
    let _ = at_once(&mut e, Op::Unlock, 10, word(0, 1));
    let last = 3 * NS - 10; // five seconds from here are claimed, and a little later not
    let mut o = begins(&mut e, LOCK, last);
    assert_eq!(posted(o.next(&mut e)), [ADD]);
    o.outcome(&mut e, values(&[word(1, 2)]), at(last));
    assert!(matches!(o.next(&mut e), Effect::Pause { .. }));
    o.paused(&mut e, at(last + 20));
    let claim = names(LedgerState::TicketExclusive, 2, 1_008).into_bits();
    let claim = WordOp::WriteLedger { handle: Handle(3), value: claim };
    assert_eq!(posted(o.next(&mut e)), [claim, READ]);
}

/// Its turn would be taken for one that the intent claims.
#[test]
fn a_lease_that_is_not_claimed_neither_stands_nor_is_taken_under_an_intent() {
    let mut e = fair();
    let mut o = begins(&mut e, Op::Lock { mode: X, expire_s: CLAIM_LEASE_S_MAX + 1 }, 1);
    let _ = posted(o.next(&mut e));
    o.outcome(&mut e, values(&[0, word(0, 1)]), at(2));
    assert!(matches!(o.next(&mut e), Effect::Pause { .. }));
    o.paused(&mut e, at(3));
    let named = names(LedgerState::TicketExclusive, 1, 0).into_bits();
    let named = WordOp::WriteLedger { handle: Handle(3), value: named };
    assert_eq!(posted(o.next(&mut e)), [named, READ]);
    let mut e = fair();
    let longest = |more_s| Op::TryLock { mode: X, expire_s: CLAIM_LEASE_S_MAX + more_s };
    let _ = at_once(&mut e, longest(0), 0, word(0, 0));
    let _ = at_once(&mut e, Op::Unlock, 10, word(0, 1));
    let mut o = begins(&mut e, longest(1), 20);
    assert_eq!(posted(o.next(&mut e)).len(), 2);
}

/// What is written of a lock's old place is nobody's at its new one.
#[test]
fn a_lock_that_has_another_place_has_no_note_left() {
    let grant =
        LockGrant { lock: LockId(5), handle: Handle(8), slot: Slot(9), word: 0, already: false };
    let ends: [fn(&mut LockEntry, &LockGrant); 2] =
        [|e, grant| e.rebind(grant, 0), |e, _| e.lose()];
    for end in ends {
        let mut e = held_by_intent();
        let _ = at_once(&mut e, Op::Unlock, 10, word(0, 1));
        end(&mut e, &grant);
        assert_eq!((e.late_note(), e.has_ledger_write()), (None, false));
        assert_eq!(e.take_late_note(), None);
    }
    let moves: [fn(&mut LockEntry, &LockGrant); 2] =
        [|e, grant| e.rebind(grant, 0), |e, _| e.noted_by(NotedBy::ClientLate)];
    for end in moves {
        let mut e = held_by_intent();
        let _ = at_once(&mut e, Op::Unlock, 10, word(0, 1));
        end(&mut e, &grant);
        assert_eq!(at_once(&mut e, TAKE, 20, word(1, 1)).len(), 2, "no intent stands there");
    }
}

#[test]
fn another_channel_is_told_what_the_entry_has() {
    let mut e = held_by_intent();
    e.rewrite_ledger();
    let noted = names(LedgerState::HeldExclusive, 0, 1_005);
    assert_eq!((e.late_note(), e.take_ledger_write()), (None, Some(noted)));
    let mut e = held_by_intent();
    let _ = at_once(&mut e, Op::Unlock, 10, word(0, 1));
    e.rewrite_ledger();
    assert_eq!((e.late_note(), e.take_ledger_write()), (None, Some(LedgerEntry::new())));
    assert_eq!(at_once(&mut e, TAKE, 20, word(1, 1)).len(), 2);
}

#[test]
fn where_notes_are_cheap_they_are_not_late() {
    let mut e = held_by_intent();
    let _ = at_once(&mut e, Op::Unlock, 10, word(0, 1));
    e.noted_by(NotedBy::Client);
    let mut o = begins(&mut e, TAKE, 20);
    assert_eq!(posted(o.next(&mut e)), [intent(2, 1_005), ADD]);
    o.outcome(&mut e, values(&[0, word(1, 1)]), at(30));
    assert!(matches!(o.next(&mut e), Effect::WriteLedger(_)));
}

/// By the intent, as long as that claims the whole lease and the ticket is to be named later.
#[test]
fn a_turn_that_comes_soon_is_looked_for_without_a_claim() {
    for (ns, is_claimed) in [(NOTE_LATE_NS, false), (NOTE_LATE_NS + 1, true)] {
        let mut e = fair();
        let mut o = begins(&mut e, LOCK, 1);
        let _ = posted(o.next(&mut e));
        o.outcome(&mut e, values(&[0, word(0, 1)]), at(2));
        for ns in [3, ns] {
            assert!(matches!(o.next(&mut e), Effect::Pause { .. }));
            o.paused(&mut e, at(ns));
            if ns > 3 && is_claimed {
                break;
            }
            assert_eq!(posted(o.next(&mut e)), [READ], "at {ns}");
            let nx = u16::from(ns > 3);
            o.outcome(&mut e, values(&[word(nx, 2)]), at(ns));
        }
        if is_claimed {
            let claim = names(LedgerState::TicketExclusive, 1, 1_005).into_bits();
            let claim = WordOp::WriteLedger { handle: Handle(3), value: claim };
            assert_eq!(posted(o.next(&mut e)), [claim, READ]);
            o.outcome(&mut e, values(&[0, word(1, 2)]), at(ns));
            assert_eq!(done(o.next(&mut e)), Status::Success);
            let _ = at_once(&mut e, Op::Unlock, ns + 1, word(1, 2));
            assert_eq!(at_once(&mut e, TAKE, ns + 2, word(2, 2)).len(), 2, "that is written over");
            continue;
        }
        assert_eq!(done(o.next(&mut e)), Status::Success);
        assert_eq!(e.take_late_note(), Some(names(LedgerState::HeldExclusive, 1, 1_005)));
    }
}

#[test]
fn nothing_of_a_batch_is_late() {
    let mut e = fair();
    let mut batch = Batch::new(bounds());
    let place = batch.place(&e);
    batch.push(TAKE, place);
    let mut entries = Only(&mut e);
    let Some((0, Effect::Post { .. })) = batch.next(&mut entries) else { panic!("a chain") };
    batch.outcome(0, entries.0, values(&[0, word(0, 0)]), at(1));
    let noted = Effect::WriteLedger(names(LedgerState::HeldExclusive, 0, 1_005));
    assert_eq!(batch.next(&mut entries), Some((0, noted)));
    assert_eq!((batch.next(&mut entries), batch.is_done()), (None, true));
}

struct Only<'a>(&'a mut LockEntry);

impl Entries for Only<'_> {
    fn entry(&mut self, _: usize) -> &mut LockEntry {
        self.0
    }
    fn now(&mut self, _: usize) -> Now {
        at(2)
    }
}
