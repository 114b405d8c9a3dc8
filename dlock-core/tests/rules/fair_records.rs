// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the arbiter of a fair lock remembers of tickets ends in time: none of it counts against a
//! later ticket, nor keeps a lane from starting again.

use crate::common::lock::{id, is_done, is_granted, World, HANDLE, RESOLVE, S, WAKE, X};
use dlock_core::clock::NS;
use dlock_core::limits::{FAIR_LANE_DIVERT, FAIR_LANE_MAX};
use dlock_core::message::{LockType, Reply, Request};
use dlock_core::words::{FairWord, LedgerState, Ticket};

fn lanes_at(number: u16) -> u64 {
    FairWord::new().with_nx(number).with_mx(number).into_bits()
}

fn lapses(w: &mut World, n: u32) {
    w.refs.retain(|r| r.0 != id(n));
    w.call(|arbiter, now, memory, lock, _, out| {
        arbiter.lapse(now, memory, lock, id(n), HANDLE, out)
    });
    w.memory.ledgers.remove(&id(n));
    w.refs.push((id(n), HANDLE));
}

/// A lap later it takes a ticket of the same number.
#[test]
fn an_abandon_counts_whatever_its_client_abandoned_a_lap_ago() {
    let mut w = World::new(LockType::Fair, 5);
    // a ticket that nobody claims would have a grace
    w.writes(5, LedgerState::Intent, Ticket { tx: 0, ts: 1 }, 0);
    for lap in 0..2 {
        w.memory.word = lanes_at(2);
        let held = w.take(2, X, LedgerState::HeldExclusive, 600);
        let ticket = w.take(1, X, LedgerState::TicketExclusive, 0);
        let next = w.take(3, X, LedgerState::TicketExclusive, 0);
        assert!(w.wait(3, X, next).is_empty());
        w.writes(1, LedgerState::GivenUpExclusive, ticket, 0);
        w.ask(1, Request::Abandon { handle: HANDLE, mode: X, ticket });
        w.memory.ledgers.remove(&id(1));
        w.ask(2, WAKE); // its ledger was seen to have dropped it
        let out = w.release(2, X, held);
        assert!(is_granted(&out, 3), "lap {lap}: {out:?} {:?}", w.word());
        w.memory.ledgers.remove(&id(2));
        assert!(is_done(&w.release(3, X, next), 3));
        w.memory.ledgers.remove(&id(3));
        w.ask(2, WAKE);
    }
}

/// It knows of that, so that it names it no more.
#[test]
fn what_a_client_of_tcp_ends_itself_does_not_keep_the_lane_in_the_ring() {
    let release = |ticket| Request::Release { handle: HANDLE, mode: X, ticket: Some(ticket) };
    let abandon = |ticket| Request::Abandon { handle: HANDLE, mode: X, ticket };
    let ends: [&dyn Fn(Ticket) -> Request; 2] = [&release, &abandon];
    for end in ends {
        let mut w = World::new(LockType::Fair, 2);
        w.arbiter.proxy(id(1));
        let take = Request::TakeTicket { handle: HANDLE, mode: X, expire_s: 30 };
        let Reply::Granted { ticket: Some(ticket), .. } = w.ask(1, take)[0].reply else {
            panic!("it is free")
        };
        w.ask(1, end(ticket));
        assert_eq!(w.word().open_exclusive(), 0);
        w.memory.word = lanes_at(FAIR_LANE_DIVERT);
        assert_eq!(w.cycle(2).tx, 0, "{:?}", end(ticket));
    }
}

/// Numbers of the ring come from the arbiter, which forgets then that it has ended one like it.
#[test]
fn what_was_ended_of_a_client_of_tcp_takes_no_number_of_the_ring() {
    let mut w = World::new(LockType::Fair, 5);
    w.writes(5, LedgerState::Intent, Ticket { tx: 0, ts: 1 }, 0); // the lane stays in the ring
    w.arbiter.proxy(id(1));
    w.memory.word = lanes_at(FAIR_LANE_DIVERT);
    let out = w.ask(1, Request::TakeTicket { handle: HANDLE, mode: X, expire_s: 30 });
    assert!(is_granted(&out, 1));
    lapses(&mut w, 1);
    w.memory.word = lanes_at(FAIR_LANE_DIVERT);
    assert_eq!(w.cycle(2).tx, FAIR_LANE_MAX);
}

/// The client may come back on any fabric and name the ended ticket, until it names another.
#[test]
fn a_client_that_lapsed_keeps_the_lane_in_the_ring() {
    let mut w = World::new(LockType::Fair, 2);
    w.arbiter.proxy(id(1));
    let out = w.ask(1, Request::TakeTicket { handle: HANDLE, mode: X, expire_s: 30 });
    assert!(is_granted(&out, 1));
    lapses(&mut w, 1);
    w.memory.word = lanes_at(FAIR_LANE_DIVERT);
    assert_eq!(w.cycle(2).tx, FAIR_LANE_MAX);
    let next = w.ask(1, Request::TakeTicket { handle: HANDLE, mode: X, expire_s: 30 });
    assert!(is_granted(&next, 1), "it believes in no other");
    lapses(&mut w, 1);
    w.memory.word = lanes_at(5);
    let held = w.take(1, X, LedgerState::HeldExclusive, 600);
    w.arbiter.unproxy(id(1));
    lapses(&mut w, 1);
    w.memory.word = lanes_at(FAIR_LANE_DIVERT);
    assert_eq!((held.tx, w.cycle(2).tx), (5, FAIR_LANE_MAX));
}

/// Where the shared lane comes round: with a client that may come out with any ticket, one that
/// nobody claims would stay at the head for a grace.
#[test]
fn the_number_that_is_left_out_for_a_share_is_skipped_at_once() {
    let mut w = World::new(LockType::Fair, 5);
    let end = u16::MAX;
    w.memory.word = FairWord::new().with_ns(end).with_ms(end).into_bits();
    let held = w.take(1, X, LedgerState::HeldExclusive, 600);
    let out = w.ask(2, Request::TakeTicket { handle: HANDLE, mode: S, expire_s: 30 });
    let Reply::Queued { ticket: share, .. } = out[0].reply else { panic!("{out:?}") };
    w.writes(2, LedgerState::TicketShared, share, 0);
    assert_eq!((share.tx, w.word().mx()), (held.tx + 2, held.tx + 2), "one is left out");
    assert!(w.wait(2, S, share).is_empty());
    let next = w.take(3, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(3, X, next).is_empty());
    w.writes(5, LedgerState::Intent, Ticket { tx: 0, ts: 1 }, 0);
    let out = w.release(1, X, held);
    assert!(is_granted(&out, 2), "{out:?} {:?}", w.word());
    w.memory.ledgers.remove(&id(1));
    w.writes(2, LedgerState::HeldShared, share, 60);
    let out = w.release(2, S, share);
    assert!(is_granted(&out, 3), "{out:?} {:?}", w.word());
}

/// The share of client 1, which stopped between its intent and its note, was passed over. Then the
/// client came out with it, lapses, comes back and names that share again.
#[test]
fn a_share_that_was_passed_over_is_not_taken_off_after_a_lapse_of_its_client() {
    for ends in 0..3 {
        let (mut w, late, first) = World::passed_over();
        assert!(is_done(&w.release(2, X, first), 2));
        w.memory.ledgers.remove(&id(2));
        let held = w.take(3, S, LedgerState::HeldShared, 600);
        w.writes(1, LedgerState::HeldShared, late, 20);
        lapses(&mut w, 1);
        assert_eq!(w.word().open_shared(), 1, "the other one's is not taken off in the lapse");
        w.writes(1, LedgerState::HeldShared, late, 20);
        let next = w.take(4, X, LedgerState::TicketExclusive, 0);
        assert!(w.wait(4, X, next).is_empty());
        match ends {
            0 => _ = w.ask(1, RESOLVE),
            1 => _ = w.forget(1),
            _ => assert!(w.pass(500 * NS).is_empty(), "the other reader is inside"),
        }
        assert_eq!(w.word().open_shared(), 1, "the other one's: {ends}");
        assert!(is_granted(&w.release(3, S, held), 4));
    }
}

/// It came out with another share since, and nobody has looked.
#[test]
fn a_share_after_one_that_was_passed_over_is_taken_off_with_its_owner() {
    let (mut w, late, first) = World::passed_over();
    w.writes(1, LedgerState::TicketShared, late, 0);
    assert!(is_done(&w.release(2, X, first), 2));
    w.memory.ledgers.remove(&id(2));
    let share = w.take(1, S, LedgerState::HeldShared, 600);
    assert_ne!(share, late);
    w.forget(1);
    assert_eq!(w.word().open_shared(), 0, "it was its own for sure");
}

/// Its note of the ticket is on its way, and its ledger names the one before, which is done.
#[test]
fn a_ticket_that_was_given_out_is_its_clients_whatever_its_ledger_names() {
    let mut w = World::new(LockType::Fair, 3);
    let before = w.take(1, X, LedgerState::HeldExclusive, 600);
    w.memory.word = w.word().exclusive_done().into_bits();
    let held = w.take(2, X, LedgerState::HeldExclusive, 600);
    let out = w.ask(1, Request::TakeTicket { handle: HANDLE, mode: X, expire_s: 30 });
    let Reply::Queued { ticket, .. } = out[0].reply else { panic!("{out:?}") };
    assert_ne!(ticket, before);
    let next = w.take(3, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(3, X, next).is_empty());
    let out = w.release(2, X, held);
    assert!(is_done(&out, 2) && !is_granted(&out, 3), "{out:?}");
    w.writes(1, LedgerState::TicketExclusive, ticket, 0);
    w.memory.ledgers.remove(&id(2));
    assert!(is_granted(&w.wait(1, X, ticket), 1));
}

#[test]
fn a_grant_whose_client_goes_before_it_has_written_it_down_is_ended() {
    let mut w = World::new(LockType::Fair, 4);
    w.writes(4, LedgerState::Intent, Ticket { tx: 0, ts: 1 }, 0); // its ticket may be the next
    let held = w.take(1, X, LedgerState::HeldExclusive, 600);
    let ticket = w.take(2, X, LedgerState::TicketExclusive, 0);
    let next = w.take(3, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(2, X, ticket).is_empty() && w.wait(3, X, next).is_empty());
    assert!(is_granted(&w.release(1, X, held), 2));
    w.memory.ledgers.remove(&id(1));
    w.memory.ledgers.remove(&id(2));
    assert!(is_granted(&w.forget(2), 3));
}

#[test]
fn an_exclusive_grant_whose_answer_was_lost_is_released_by_a_resolve() {
    let mut w = World::new(LockType::Fair, 2);
    let take = Request::TakeTicket { handle: HANDLE, mode: X, expire_s: 30 };
    assert!(is_granted(&w.ask(1, take), 1));
    assert!(is_done(&w.ask(1, RESOLVE), 1), "its ledger does not show it yet");
    assert_eq!(w.word().nx(), w.word().mx(), "the lock is free");
    assert!(is_granted(&w.ask(2, take), 2));
}

#[test]
fn a_share_that_nobody_took_is_not_released() {
    let mut w = World::new(LockType::Fair, 2);
    w.writes(1, LedgerState::HeldShared, Ticket { tx: 0, ts: 0 }, 60);
    assert!(is_done(&w.ask(1, RESOLVE), 1));
    assert_eq!(w.memory.word, 0, "no more shares are done than were taken");
}
