// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tickets of a fair lock that are claimed ahead of their turn, and who is told of a release: the
//! arbiter's side.

use crate::common::lock::{
    expiry, id, is_denied, is_done, is_granted, World, HANDLE, RESOLVE, WAKE,
};
use dlock_core::clock::NS;
use dlock_core::limits::{FAIR_GRACE_S, LOOK_S};
use dlock_core::message::{LockType, Mode, Reply, Request, WaitNumber};
use dlock_core::words::{LedgerState, Ticket};

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;
const CLAIMED: LedgerState = LedgerState::TicketExclusive;
const GRACE_NS: u64 = FAIR_GRACE_S as u64 * NS;

/// Client 1 has a claimed ticket at its turn, until then; client 2 sleeps behind it.
fn claimed(lease_s: u32) -> (World, Ticket, Ticket) {
    let mut w = World::new(LockType::Fair, 3);
    let first = w.take(1, X, CLAIMED, lease_s);
    let second = w.take(2, X, CLAIMED, 0);
    assert!(w.wait(2, X, second).is_empty());
    (w, first, second)
}

#[test]
fn a_claimed_turn_is_held_until_its_deadline_and_no_longer() {
    let (mut w, ..) = claimed(30);
    let left = expiry(30) - w.now.0;
    assert!(w.pass(left - 1).is_empty(), "it may be held");
    assert!(is_granted(&w.pass(1), 2));
}

/// Its owner may have seen its turn, and written a later deadline, since the ledger was read.
#[test]
fn a_claim_that_is_over_at_its_turn_is_not_ended_before_the_grace() {
    let mut w = World::new(LockType::Fair, 3);
    let holder = w.take(3, X, LedgerState::HeldExclusive, 600);
    w.take(1, X, CLAIMED, 1);
    let second = w.take(2, X, CLAIMED, 0);
    assert!(w.wait(2, X, second).is_empty());
    let over = expiry(1) + NS - w.now.0;
    assert!(w.pass(over).is_empty());
    assert!(is_done(&w.release(3, X, holder), 3));
    assert!(w.pass(GRACE_NS - 1).is_empty());
    assert!(is_granted(&w.pass(1), 2));
}

#[test]
fn a_claim_ahead_of_its_turn_holds_nothing_up() {
    let mut w = World::new(LockType::Fair, 3);
    let first = w.take(2, X, CLAIMED, 0);
    w.take(1, X, CLAIMED, 600);
    assert!(is_granted(&w.wait(2, X, first), 2));
    // readers before it are inside
    let mut w = World::new(LockType::Fair, 4);
    let reader = w.take(3, S, LedgerState::HeldShared, 5);
    w.take(1, X, CLAIMED, 600);
    let third = w.take(2, X, CLAIMED, 0);
    assert!(w.wait(2, X, third).is_empty());
    let until = expiry(5) - w.now.0;
    w.pass(until);
    assert_eq!(w.word().ns(), reader.ts + 1, "the reader's lease is over");
}

#[test]
fn a_claim_of_a_proxied_client_counts_for_nothing() {
    let mut w = World::new(LockType::Fair, 3);
    w.arbiter.proxy(id(1));
    let take = Request::TakeTicket { handle: HANDLE, mode: X, expire_s: 1 };
    let holder = w.take(3, X, LedgerState::HeldExclusive, 600);
    let out = w.ask(1, take);
    let Reply::Queued { ticket, .. } = out[0].reply else { panic!("{out:?}") };
    w.writes(1, CLAIMED, ticket, 600);
    let second = w.take(2, X, CLAIMED, 0);
    assert!(w.wait(2, X, second).is_empty());
    assert!(is_done(&w.release(3, X, holder), 3));
    assert_eq!(w.extend(1, X, ticket, 0), None, "it was not granted");
    assert!(is_granted(&w.pass(10 * NS), 2), "a turn that nobody asks for, as ever");
}

#[test]
fn who_has_claimed_its_turn_may_extend_and_release_through_the_arbiter() {
    let (mut w, first, second) = claimed(30);
    assert_eq!(w.extend(2, X, second, 40), None, "not its turn");
    assert_eq!(w.extend(1, X, first, 0), Some(30));
    assert_eq!(w.extend(1, X, first, 50), Some(50));
    let out = w.release(1, X, first);
    assert!(is_done(&out, 1) && is_granted(&out, 2));
    assert!(is_denied(&w.release(1, X, first)));
}

#[test]
fn a_claimed_turn_that_is_waited_for_is_granted_and_one_that_is_undone_is_passed_on() {
    let (mut w, first, _) = claimed(30);
    assert!(is_granted(&w.wait(1, X, first), 1));
    let (mut w, ..) = claimed(30);
    let out = w.ask(1, RESOLVE);
    assert!(is_done(&out, 1) && is_granted(&out, 2));
    let (mut w, ..) = claimed(30);
    assert!(is_granted(&w.forget(1), 2));
}

#[test]
fn the_companion_word_says_whether_a_release_is_to_be_told() {
    let (mut w, first, second) = claimed(30);
    assert!(w.memory.is_told(), "client 2 sleeps");
    // handed on by client 1 itself
    w.memory.word = w.word().exclusive_done().into_bits();
    w.memory.ledgers.remove(&id(1));
    assert!(is_granted(&w.ask(1, WAKE), 2));
    assert!(!w.memory.is_told(), "nobody sleeps");
    assert!(is_done(&w.release(2, X, second), 2));
    assert!(w.arbiter.next_wakeup().is_none() && first != second);
    // a look by a request without a wait is not worth telling
    let mut w = World::new(LockType::Fair, 3);
    w.take(1, X, LedgerState::HeldExclusive, 30);
    let second = w.take(2, X, CLAIMED, 0);
    let poll = Request::Poll { handle: HANDLE, mode: X, ticket: second, expire_s: 9 };
    w.ask(2, poll);
    assert!(!w.memory.is_told());
    assert!(w.wait(2, X, second).is_empty());
    assert!(w.memory.is_told());
    let cancel = Request::Cancel { handle: HANDLE, wait: WaitNumber(1) };
    w.ask(2, cancel);
    assert!(!w.memory.is_told(), "it waits no more");
}

#[test]
fn a_ticket_that_is_to_be_skipped_is_told_of() {
    for mode in [X, S] {
        let mut w = World::new(LockType::Fair, 3);
        w.take(1, X, LedgerState::HeldExclusive, 30);
        let state = if mode == X { CLAIMED } else { LedgerState::TicketShared };
        let second = w.take(2, mode, state, 0);
        let third = w.take(3, X, CLAIMED, 30);
        w.ask(2, Request::Abandon { handle: HANDLE, mode, ticket: second });
        assert!(w.memory.is_told());
        w.memory.word = w.word().exclusive_done().into_bits();
        w.memory.ledgers.remove(&id(1));
        w.ask(1, WAKE);
        assert!(w.word().is_turn_of(third), "{mode:?}: skipped, and client 3 looks by itself");
        assert!(!w.memory.is_told());
    }
}

/// Who has handed the lock on may have died before it said so.
#[test]
fn a_release_that_was_not_told_is_seen_by_the_next_look() {
    let (mut w, ..) = claimed(600);
    assert!(w.pass(3 * GRACE_NS).is_empty());
    w.memory.word = w.word().exclusive_done().into_bits();
    w.memory.ledgers.remove(&id(1));
    let told = w.pass(GRACE_NS.max(u64::from(LOOK_S) * NS));
    assert!(is_granted(&told, 2));
}
