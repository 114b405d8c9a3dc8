// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the arbiter of a fair lock makes of requests and ledgers that name another ticket than the
//! one that counts, and of shares that may have been taken off.

use crate::common::lock::{expiry, id, is_denied, is_granted, World, HANDLE, S, WAKE, X};
use dlock_core::clock::{ServerTime, NS};
use dlock_core::limits::{FAIR_GRACE_S, FAIR_READERS_MAX};
use dlock_core::message::{LockType, Mode, Reply, Request};
use dlock_core::words::{FairWord, LedgerEntry, LedgerState, Ticket};

const GRACE_NS: u64 = FAIR_GRACE_S as u64 * NS;

/// The ticket that client `n` gets by a request, behind others.
fn asks_for_a_ticket(w: &mut World, n: u32, mode: Mode) -> Ticket {
    let out = w.ask(n, Request::TakeTicket { handle: HANDLE, mode, expire_s: 30 });
    let [sent] = &out[..] else { panic!("{out:?}") };
    let Reply::Queued { ticket, .. } = sent.reply else { panic!("{out:?}") };
    ticket
}

#[test]
fn an_abandon_of_an_earlier_ticket_leaves_the_wait_for_a_later_one() {
    let mut w = World::new(LockType::Fair, 3);
    let held = w.take(2, X, LedgerState::HeldExclusive, 600);
    let earlier = w.take(1, X, LedgerState::TicketExclusive, 0);
    w.writes(1, LedgerState::GivenUpExclusive, earlier, 0);
    let later = asks_for_a_ticket(&mut w, 1, X);
    w.writes(1, LedgerState::TicketExclusive, later, 0);
    assert!(w.wait(1, X, later).is_empty());
    let out = w.ask(1, Request::Abandon { handle: HANDLE, mode: X, ticket: earlier });
    assert!(out.is_empty(), "{out:?}");
    assert!(is_granted(&w.release(2, X, held), 1));
}

/// A proxied client's ledger counts for nothing but the ticket that it has.
#[test]
fn a_proxied_client_gives_up_nobody_elses_ticket() {
    let mut w = World::new(LockType::Fair, 3);
    let held = w.take(2, X, LedgerState::HeldExclusive, 600);
    let next = w.take(3, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(3, X, next).is_empty());
    w.arbiter.proxy(id(1));
    w.writes(1, LedgerState::GivenUpExclusive, next, 0);
    asks_for_a_ticket(&mut w, 1, X);
    assert!(is_granted(&w.release(2, X, held), 3));
}

#[test]
fn a_ticket_that_is_named_is_not_given_up_by_asking_for_another_one() {
    let mut w = World::new(LockType::Fair, 3);
    let held = w.take(1, X, LedgerState::HeldExclusive, 600);
    let next = w.take(2, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(2, X, next).is_empty());
    let out = w.ask(1, Request::TakeTicket { handle: HANDLE, mode: X, expire_s: 30 });
    assert!(!is_granted(&out, 2), "{out:?}");
    assert_eq!(w.word().nx(), held.tx);
}

#[test]
fn a_share_of_a_proxied_client_counts_until_it_is_known_to_be_released() {
    let mut w = World::new(LockType::Fair, 2);
    w.arbiter.proxy(id(1));
    let share = w.executes_a_share(1, 600);
    w.writes(1, LedgerState::Leaving, share, 600);
    let out = w.ask(2, Request::CountReaders { handle: HANDLE });
    assert!(matches!(out[..], [ref sent] if sent.reply == Reply::Done { word: 1 }), "{out:?}");
}

/// It names the ticket at the head, which is another client's.
#[test]
fn a_proxied_client_does_not_hold_what_it_has_no_ticket_for() {
    let mut w = World::new(LockType::Fair, 3);
    let head = w.take(2, X, LedgerState::TicketExclusive, 0);
    w.arbiter.proxy(id(1));
    let mine = asks_for_a_ticket(&mut w, 1, X);
    assert!(w.wait(1, X, mine).is_empty());
    w.writes(1, LedgerState::HeldExclusive, head, 600);
    assert!(is_granted(&w.pass(3 * GRACE_NS), 1), "the head does nothing, and had its grace");
}

#[test]
fn a_share_takes_no_exclusive_number() {
    let mut w = World::new(LockType::Fair, 1);
    w.ask(1, Request::TakeTicket { handle: HANDLE, mode: S, expire_s: 30 });
    assert_eq!(w.word(), FairWord::new().shared_taken());
}

/// It was passed over while its client had written its intent alone; the client names it since.
#[test]
fn a_share_that_was_passed_over_and_is_not_held_is_not_taken_off_a_second_time() {
    let mut w = World::new(LockType::Fair, 3);
    let late = w.take(1, S, LedgerState::Intent, 0);
    let held = w.take(3, S, LedgerState::HeldShared, 600);
    let next = w.take(2, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(2, X, next).is_empty());
    assert!(w.pass(2 * GRACE_NS).is_empty());
    assert_eq!(w.word().open_shared(), 1, "one was passed over");
    w.writes(1, LedgerState::TicketShared, late, 0);
    assert!(w.pass(5 * GRACE_NS).is_empty(), "client 3 is inside");
    assert_eq!(w.word().open_shared(), 1);
    assert!(is_granted(&w.release(3, S, held), 2));
}

/// Its record is all that is known of the ticket that it was given since.
#[test]
fn a_client_that_came_out_without_a_share_keeps_the_ticket_that_it_is_given() {
    let (mut w, _, first) = World::passed_over();
    w.memory.ledgers.remove(&id(1)); // it has given up, with nothing
    let ticket = asks_for_a_ticket(&mut w, 1, X);
    let out = w.wait(1, X, ticket);
    assert!(!is_denied(&out), "{out:?}");
    assert!(is_granted(&w.release(2, X, first), 1));
}

/// Its client has come out with it meanwhile, has released it, and begins anew.
#[test]
fn nobody_is_suspected_for_a_share_that_was_not_passed_over() {
    let mut w = World::new(LockType::Fair, 2);
    w.take(1, S, LedgerState::Intent, 0);
    let next = w.take(2, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(2, X, next).is_empty());
    assert!(w.pass(GRACE_NS - 1).is_empty());
    let begins = LedgerEntry::of_ticket(LedgerState::Intent, Ticket { tx: 0, ts: 1 });
    w.memory.moves = Some((id(1), begins, w.word().shared_done(1).into_bits()));
    assert!(is_granted(&w.pass(1), 2));
    w.writes(2, LedgerState::HeldExclusive, next, 600);
    let share = w.take(1, S, LedgerState::TicketShared, 0);
    assert!(w.wait(1, S, share).is_empty(), "it waits");
    assert!(is_granted(&w.release(2, X, next), 1));
}

/// One more is let in then; the next one has to wait for the next.
#[test]
fn readers_that_wait_are_not_looked_at_again_in_the_moment_in_which_a_lease_ends() {
    const READERS: u32 = FAIR_READERS_MAX as u32;
    let mut w = World::new(LockType::Fair, READERS + 3);
    for n in 1..=READERS {
        w.take(n, S, LedgerState::HeldShared, if n == 1 { 5 } else { 600 });
    }
    for n in READERS + 1..=READERS + 2 {
        let share = w.take(n, S, LedgerState::TicketShared, 0);
        assert!(w.wait(n, S, share).is_empty());
    }
    w.now = ServerTime(expiry(5));
    w.arbiter.pop_due(w.now);
    let out = w.ask(READERS + 3, WAKE);
    assert!(is_granted(&out, READERS + 1) && !is_granted(&out, READERS + 2), "{out:?}");
    assert!(w.arbiter.next_wakeup().is_some_and(|at| at > w.now));
}
