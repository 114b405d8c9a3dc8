// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients that hold a fair lock by what they have written before they took a ticket: the arbiter's
//! side.

use crate::common::lock::{
    expiry, id, is_denied, is_done, is_granted, World, HANDLE, S, START_S, X,
};
use dlock_core::clock::NS;
use dlock_core::limits::{FAIR_GRACE_S, FAIR_READERS_MAX};
use dlock_core::message::{LockType, Mode, Reply, Request};
use dlock_core::words::{LedgerEntry, LedgerState, Ticket};

const GRACE_NS: u64 = FAIR_GRACE_S as u64 * NS;
const CLAIMED_S: u32 = 30;

/// Client `n` takes a ticket, and names it nowhere.
fn intends(w: &mut World, n: u32, mode: Mode, claims: bool, stamp: u32) -> Ticket {
    let ticket = w.take(n, mode, LedgerState::Intent, 0);
    let intent = LedgerEntry::intent(mode, claims, stamp);
    w.memory.ledgers.insert(id(n), intent.with_deadline_s(START_S + CLAIMED_S, START_S));
    ticket
}

/// Client 2 has the exclusive ticket behind, and waits.
fn waits_behind(w: &mut World) -> Ticket {
    let next = w.take(2, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(2, X, next).is_empty());
    next
}

/// When client 2 gets the lock exclusively, behind client 1, which stands still behind its intent.
fn granted_at(mode: Mode, claims: bool, other: Option<Mode>) -> u64 {
    let mut w = World::new(LockType::Fair, 3);
    intends(&mut w, 1, mode, claims, 1);
    if let Some(other) = other {
        w.memory.ledgers.insert(id(1), LedgerEntry::new());
        let intent = LedgerEntry::intent(other, true, 1);
        w.memory.ledgers.insert(id(3), intent.with_deadline_s(START_S + CLAIMED_S, START_S));
    }
    let start = w.now.0;
    waits_behind(&mut w);
    while !is_granted(&w.pass(NS / 4), 2) {
        assert!(w.now.0 < start + 100 * NS, "it is never granted");
    }
    w.now.0 - start
}

#[test]
fn what_an_intent_claims_is_kept_until_its_deadline_and_nothing_else_is_for_long() {
    let lease_ns = expiry(CLAIMED_S) - u64::from(START_S) * NS;
    for mode in [X, S] {
        assert_eq!(granted_at(mode, true, None), lease_ns, "{mode:?}");
        assert_eq!(granted_at(mode, false, None), GRACE_NS, "{mode:?}: it waits for its note");
        // an unnamed ticket may be client 3's if the mode is that of its intent
        let other = if mode == X { S } else { X };
        assert_eq!(granted_at(mode, false, Some(mode)), lease_ns, "{mode:?}");
        assert_eq!(granted_at(mode, false, Some(other)), GRACE_NS, "{mode:?}");
    }
}

#[test]
fn a_client_that_goes_on_is_waited_for_no_longer() {
    let mut w = World::new(LockType::Fair, 3);
    let mine = intends(&mut w, 1, X, true, 1);
    waits_behind(&mut w);
    assert!(w.pass(2 * GRACE_NS).is_empty());
    // it has another intent: it does not hold what it took under the first one
    w.memory.ledgers.insert(id(1), LedgerEntry::intent(X, true, 2).with_detail(CLAIMED_S));
    assert!(is_granted(&w.pass(NS / 50), 2));
    assert!(!w.word().is_open(mine.tx));
}

#[test]
fn a_share_that_may_have_been_passed_over_is_not_extended() {
    let mut w = World::new(LockType::Fair, 3);
    let share = intends(&mut w, 1, S, true, 1);
    let next = waits_behind(&mut w);
    let lease_ns = expiry(CLAIMED_S) - w.now.0;
    assert!(is_granted(&w.pass(lease_ns), 2));
    w.writes(2, LedgerState::HeldExclusive, next, 600);
    w.writes(1, LedgerState::HeldShared, share, CLAIMED_S);
    assert_eq!(w.extend(1, S, share, 600), None);
}

/// No share can come of an intent for an exclusive ticket.
#[test]
fn who_intended_an_exclusive_ticket_when_shares_were_passed_over_is_no_suspect() {
    let mut w = World::new(LockType::Fair, 3);
    intends(&mut w, 1, S, true, 1);
    let next = waits_behind(&mut w);
    w.memory.ledgers.insert(id(3), LedgerEntry::intent(X, true, 1).with_detail(CLAIMED_S));
    let lease_ns = expiry(CLAIMED_S) - w.now.0;
    assert!(is_granted(&w.pass(lease_ns), 2));
    w.release(2, X, next);
    w.memory.ledgers.remove(&id(2));
    // it has given that up, and the arbiter has not looked since
    let share = w.take(3, S, LedgerState::HeldShared, CLAIMED_S);
    assert!(w.extend(3, S, share, 600).is_some());
}

#[test]
fn a_suspect_extends_what_it_has_taken_since() {
    for mode in [X, S] {
        let mut w = World::new(LockType::Fair, 3);
        intends(&mut w, 1, S, true, 1);
        let next = waits_behind(&mut w);
        let lease_ns = expiry(CLAIMED_S) - w.now.0;
        assert!(is_granted(&w.pass(lease_ns), 2));
        // another intent, which the arbiter sees
        w.memory.ledgers.insert(id(1), LedgerEntry::intent(mode, true, 2).with_detail(CLAIMED_S));
        w.release(2, X, next);
        w.memory.ledgers.remove(&id(2));
        let state = if mode == X { LedgerState::HeldExclusive } else { LedgerState::HeldShared };
        let ticket = w.take(1, mode, state, CLAIMED_S);
        assert!(w.extend(1, mode, ticket, 600).is_some(), "{mode:?}");
    }
}

const READERS: u32 = FAIR_READERS_MAX as u32;

/// As many readers as fit, client 1 between intent and publication, and one more that waits.
fn crowd(claims: bool) -> (World, Ticket) {
    let mut w = World::new(LockType::Fair, READERS + 2);
    let share = intends(&mut w, 1, S, claims, 1);
    for n in 2..READERS + 2 {
        w.take(n, S, LedgerState::HeldShared, 600);
    }
    let last = w.take(READERS + 2, S, LedgerState::TicketShared, 0);
    assert!(w.wait(READERS + 2, S, last).is_empty());
    (w, share)
}

#[test]
fn of_a_crowd_a_share_that_was_named_and_released_meanwhile_is_not_passed_over() {
    for claims in [false, true] {
        let (mut w, share) = crowd(claims);
        w.writes(1, LedgerState::HeldShared, share, 600);
        w.memory.word = w.word().shared_done(1).into_bits();
        w.memory.ledgers.remove(&id(1));
        assert!(w.pass(3 * GRACE_NS).is_empty());
        assert_eq!(u32::from(w.word().open_shared()), READERS + 1);
    }
}

#[test]
fn of_a_crowd_a_share_that_an_intent_claims_is_passed_over_after_its_deadline() {
    let (mut w, share) = crowd(true);
    let left = expiry(CLAIMED_S) - w.now.0;
    assert!(w.pass(left - 1).is_empty());
    assert_eq!(u32::from(w.word().open_shared()), READERS + 2);
    w.pass(2 * GRACE_NS);
    assert_eq!(u32::from(w.word().open_shared()), READERS + 1);
    w.writes(1, LedgerState::TicketShared, share, 0);
    assert!(is_denied(&w.wait(1, S, share)[..1]));
}

#[test]
fn of_a_crowd_a_share_whose_client_stands_still_is_passed_over_after_a_grace() {
    let (mut w, _) = crowd(false);
    assert!(w.pass(GRACE_NS - 1).is_empty());
    assert_eq!(u32::from(w.word().open_shared()), READERS + 2);
    w.pass(1);
    assert_eq!(u32::from(w.word().open_shared()), READERS + 1);
}

/// A reader may be inside before it has noted that, and its note may be late.
#[test]
fn a_share_that_nobody_names_is_inside_if_an_intent_claims_it() {
    let inside = |claims, mode| {
        let mut w = World::new(LockType::Fair, 4);
        w.take(2, S, LedgerState::HeldShared, 60);
        intends(&mut w, 1, S, claims, 1);
        let intent = LedgerEntry::intent(mode, true, 2);
        w.memory.ledgers.insert(id(3), intent.with_deadline_s(START_S + CLAIMED_S, START_S));
        match w.ask(4, Request::CountReaders { handle: HANDLE })[0].reply {
            Reply::Done { word } => word,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(inside(true, X), 2);
    assert_eq!(inside(true, S), 2, "one share, and two that may have it");
    assert_eq!(inside(false, X), 1, "it waits for its note");
}

/// Its note was late, and it comes back with it: the share was passed over since.
#[test]
fn who_was_away_does_not_come_back_to_a_share_that_it_only_intended() {
    let mut w = World::new(LockType::Fair, 4);
    let mine = intends(&mut w, 1, S, true, 1);
    w.take(3, S, LedgerState::HeldShared, 600);
    w.pass(u64::from(CLAIMED_S) * 2 * NS);
    for _ in 0..2 {
        w.lapse(1); // and once more, before it has come back
    }
    waits_behind(&mut w);
    w.pass(5 * GRACE_NS);
    assert_eq!(w.word().open_shared(), 1, "the other one's");
    w.writes(1, LedgerState::HeldShared, mine, CLAIMED_S);
    assert!(is_denied(&w.release(1, S, mine)));
    assert!(w.forget(1).is_empty());
    assert_eq!(w.word().open_shared(), 1);
    // what it takes from then on is its own
    let mut w = World::new(LockType::Fair, 4);
    intends(&mut w, 1, S, true, 1);
    w.lapse(1);
    let mine = intends(&mut w, 1, S, true, 2);
    w.pass(1);
    waits_behind(&mut w);
    w.writes(1, LedgerState::HeldShared, mine, CLAIMED_S);
    assert!(is_done(&w.release(1, S, mine), 1));
}
