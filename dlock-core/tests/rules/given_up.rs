// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fair tickets: which request is believed, what of a ticket a client may change by its ledger, and
//! what is left of one that was given up.

use crate::common::lock;
use crate::common::lock::{
    expiry, id, is_denied, is_done, is_granted, World, HANDLE, S, START_S, WAKE, X,
};
use dlock_core::exec::LockMemory;
use dlock_core::ids::{ClientId, Handle, Slot};
use dlock_core::limits::{FAIR_LANE_DIVERT, FAIR_LANE_MAX};
use dlock_core::message::{LockType, Mode, Reply, Request};
use dlock_core::word_op::WordAddr;
use dlock_core::words::{FairWord, LedgerEntry, LedgerState, Ticket};

fn lanes_at(number: u16) -> u64 {
    FairWord::new().with_nx(number).with_mx(number).into_bits()
}

fn poll(mode: Mode, ticket: Ticket, expire_s: u32) -> Request {
    Request::Poll { handle: HANDLE, mode, ticket, expire_s }
}

/// A ticket from the arbiter that has not its turn, or is shared.
fn queued(w: &mut World, n: u32, mode: Mode) -> Ticket {
    let out = w.ask(n, Request::TakeTicket { handle: HANDLE, mode, expire_s: 9 });
    let Reply::Queued { ticket, .. } = out[0].reply else { panic!("{out:?}") };
    ticket
}

/// The ledger of client `n`, whose notes the primary executes, says this now.
fn notes(w: &mut World, n: u32, state: LedgerState, ticket: Ticket) {
    w.writes(n, state, ticket, 0);
    let entry = w.memory.ledgers[&id(n)];
    w.call(|arbiter, _, memory, lock, _, _| arbiter.noted(memory, lock, (id(n), HANDLE), entry));
}

#[test]
fn a_ticket_that_its_ledger_gives_up_is_not_granted() {
    for waits in [true, false] {
        let mut w = World::new(LockType::Fair, 2);
        let ticket = w.take(1, X, LedgerState::GivenUpExclusive, 0);
        let out = match waits {
            true => w.wait(1, X, ticket),
            false => w.ask(1, poll(X, ticket, 60)),
        };
        assert!(is_denied(&out), "{out:?}");
    }
}

/// It would be taken for one that was released.
#[test]
fn a_share_is_granted_only_when_its_ledger_names_it() {
    let mut w = World::new(LockType::Fair, 2);
    let ticket = queued(&mut w, 1, S);
    assert!(is_denied(&w.ask(1, poll(S, ticket, 60))));
    w.writes(1, LedgerState::TicketShared, ticket, 0);
    assert!(is_granted(&w.ask(1, poll(S, ticket, 60)), 1));
}

/// The message that says so was lost. Somebody is between intent and publication all the time.
#[test]
fn a_ticket_that_the_ledger_alone_gives_up_is_skipped_after_the_next_was_asked_for() {
    let mut w = World::new(LockType::Fair, 5);
    w.writes(5, LedgerState::Intent, Ticket { tx: 0, ts: 1 }, 0);
    let held = w.take(1, X, LedgerState::HeldExclusive, 600);
    w.take(2, X, LedgerState::GivenUpExclusive, 0);
    let next = w.take(3, X, LedgerState::TicketExclusive, 0);
    let another = queued(&mut w, 2, X);
    w.writes(2, LedgerState::TicketExclusive, another, 0);
    assert!(w.wait(3, X, next).is_empty());
    assert!(is_granted(&w.release(1, X, held), 3));
}

#[test]
fn a_grant_that_is_asked_for_again_is_not_shortened() {
    let mut w = World::new(LockType::Fair, 2);
    let ticket = w.take(1, X, LedgerState::TicketExclusive, 0);
    for (expire_s, lease_s) in [(60, 60), (20, 60), (90, 90)] {
        let out = w.ask(1, poll(X, ticket, expire_s));
        let Reply::Granted { deadline_s, .. } = out[0].reply else { panic!("{out:?}") };
        assert_eq!(deadline_s - START_S, lease_s);
    }
}

#[test]
fn a_note_takes_no_place_in_the_queue_away() {
    let mut w = World::new(LockType::Fair, 2);
    w.arbiter.proxy(id(1));
    let held = w.take(2, X, LedgerState::HeldExclusive, 600);
    let next = queued(&mut w, 1, X);
    notes(&mut w, 1, LedgerState::TicketExclusive, next);
    assert!(w.wait(1, X, next).is_empty());
    notes(&mut w, 1, LedgerState::TicketExclusive, next);
    assert!(is_granted(&w.release(2, X, held), 1));
}

/// What it has is known without its ledger.
#[test]
fn a_granted_share_lasts_as_long_as_its_lease_whatever_its_client_notes() {
    let mut w = World::new(LockType::Fair, 2);
    w.arbiter.proxy(id(1));
    let share = queued(&mut w, 1, S);
    notes(&mut w, 1, LedgerState::TicketShared, share);
    assert!(is_granted(&w.ask(1, poll(S, share, 60)), 1));
    notes(&mut w, 1, LedgerState::None, share);
    let next = w.take(2, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(2, X, next).is_empty());
    let rest = expiry(60) - w.now.0;
    assert!(w.pass(rest - 1).is_empty());
    assert!(is_granted(&w.pass(1), 2));
}

/// The numbers have come round, so that by its number it seems to wait.
#[test]
fn a_share_that_had_its_turn_is_taken_off_as_soon_as_it_is_given_up() {
    let mut w = World::new(LockType::Fair, 3);
    w.memory.word = lanes_at(FAIR_LANE_MAX + 9);
    let ticket = w.take(1, S, LedgerState::TicketShared, 0);
    w.ask(3, WAKE); // the arbiter sees it at its turn
    let nx = FAIR_LANE_MAX + 8;
    w.memory.word = w.word().with_nx(nx).with_mx(nx).into_bits();
    w.take(2, X, LedgerState::TicketExclusive, 0);
    assert!(!w.word().is_served(ticket.tx));
    w.ask(1, Request::Abandon { handle: HANDLE, mode: S, ticket });
    assert_eq!(w.word().open_shared(), 0);
}

/// Between the reading of the word and that of the ledgers a writer and a reader behind it come.
struct Racing<'a> {
    memory: &'a mut lock::Memory,
    then: Option<(FairWord, LedgerEntry)>,
}

impl LockMemory for Racing<'_> {
    fn read(&mut self, addr: WordAddr) -> u64 {
        let word = self.memory.read(addr);
        if let Some((word, entry)) = self.then.take() {
            self.memory.word = word.into_bits();
            self.memory.ledgers.insert(id(1), entry);
        }
        word
    }
    fn cas(&mut self, addr: WordAddr, expect: u64, swap: u64) -> u64 {
        self.memory.cas(addr, expect, swap)
    }
    fn faa(&mut self, addr: WordAddr, add: u64) -> u64 {
        self.memory.faa(addr, add)
    }
    fn set(&mut self, addr: WordAddr, value: u64) {
        self.memory.set(addr, value);
    }
    fn ledger(&mut self, client: ClientId, handle: Handle) -> LedgerEntry {
        self.memory.ledger(client, handle)
    }
    fn set_ledger(&mut self, client: ClientId, handle: Handle, entry: LedgerEntry) {
        self.memory.set_ledger(client, handle, entry);
    }
}

#[test]
fn a_share_that_was_taken_after_the_arbiter_read_the_word_has_not_had_its_turn() {
    let mut w = World::new(LockType::Fair, 2);
    w.memory.word = lanes_at(FAIR_LANE_MAX + 5);
    let held = w.word().next();
    let taken = w.word().exclusive_taken();
    let share = taken.next();
    let entry = LedgerEntry::of_ticket(LedgerState::TicketShared, share);
    w.writes(2, LedgerState::HeldExclusive, held, 600);
    w.call(|arbiter, now, memory, lock, _, out| {
        let mut racing = Racing { memory, then: Some((taken.shared_taken(), entry)) };
        arbiter.tick(now, &mut racing, lock, out);
    });
    assert!(w.wait(1, S, share).is_empty(), "it is behind a writer");
    assert!(is_granted(&w.release(2, X, held), 1));
}

/// It has the answer to its request on its way, and its ledger names what it has given up before.
#[test]
fn a_ticket_before_the_one_that_was_asked_for_keeps_no_lane_from_starting_again() {
    let mut w = World::new(LockType::Fair, 3);
    w.memory.word = lanes_at(FAIR_LANE_DIVERT);
    w.writes(1, LedgerState::GivenUpExclusive, Ticket { tx: 7, ts: 0 }, 0);
    w.writes(3, LedgerState::HeldExclusive, Ticket { tx: 8, ts: 0 }, 1); // in its release
    let out = w.ask(1, Request::TakeTicket { handle: HANDLE, mode: X, expire_s: 9 });
    assert!(is_granted(&out, 1), "{out:?}");
    assert_eq!(w.word().nx(), FAIR_LANE_MAX);
    w.memory.ledgers.remove(&id(3));
    assert_eq!(queued(&mut w, 2, X).tx, 0);
}

/// It comes twice, and the number is another's by then.
#[test]
fn an_abandon_that_was_served_gives_up_nothing_more() {
    let mut w = World::new(LockType::Fair, 3);
    let ticket = Ticket { tx: 0, ts: 0 };
    w.writes(1, LedgerState::GivenUpExclusive, ticket, 0);
    w.memory.word = lanes_at(FAIR_LANE_DIVERT);
    let abandon = Request::Abandon { handle: HANDLE, mode: X, ticket };
    w.ask(1, abandon);
    let out = w.ask(2, Request::TakeTicket { handle: HANDLE, mode: X, expire_s: 9 });
    assert!(is_granted(&out, 2), "{out:?}");
    w.writes(2, LedgerState::HeldExclusive, ticket, 600);
    let word = w.word();
    assert_eq!((word.nx(), word.mx()), (0, 1), "the lane has started again");
    w.ask(1, abandon);
    assert_eq!(w.word(), word);
}

/// Its ledger has said so before, and the ticket was skipped by then.
#[test]
fn who_gives_a_ticket_up_does_not_wait_for_it_any_more() {
    let mut w = World::new(LockType::Fair, 2);
    let held = w.take(1, X, LedgerState::HeldExclusive, 600);
    let ticket = w.take(2, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(2, X, ticket).is_empty());
    w.writes(2, LedgerState::GivenUpExclusive, ticket, 0);
    assert!(is_done(&w.release(1, X, held), 1));
    assert!(!w.word().is_open(ticket.tx), "it is skipped");
    let told = w.ask(2, Request::Abandon { handle: HANDLE, mode: X, ticket });
    assert!(matches!(told[0].reply, Reply::Cancelled { .. }), "{told:?}");
    assert_eq!(w.arbiter.waiters(Slot(0)), 0);
}
