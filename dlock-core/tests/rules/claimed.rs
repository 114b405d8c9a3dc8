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
