// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fair locks: shares that outlast a lap of the exclusive lane, and the end of the shared lane.

#[path = "common/lock.rs"]
mod lock;

use dlock_core::clock::NS;
use dlock_core::ids::Slot;
use dlock_core::limits::FAIR_LANE_DIVERT;
use dlock_core::message::{LockType, Reply, Request};
use dlock_core::word_op::{Word, WordAddr, WordOp};
use dlock_core::words::{FairWord, LedgerEntry, LedgerState, Ticket};
use lock::{id, is_granted, World, HANDLE, S, START_S, X};

/// A ticket of client `n`, by itself or from the arbiter, as it is to be.
fn take_exclusive(w: &mut World, n: u32) -> Ticket {
    if w.word().mx() < FAIR_LANE_DIVERT && w.word().ms() < FAIR_LANE_DIVERT {
        return w.take(n, X, LedgerState::TicketExclusive, 0);
    }
    let out = w.ask(n, Request::TakeTicket { handle: HANDLE, mode: X, expire_s: 30 });
    let Reply::Queued { ticket, .. } = out[0].reply else { panic!("{out:?} {:?}", w.word()) };
    w.writes(n, LedgerState::TicketExclusive, ticket, 0);
    ticket
}

/// A chain of client `n`, which the primary executes, takes a share that is served at once, and its
/// note follows.
fn take_share_by_chain(w: &mut World, n: u32, lease_s: u32) -> Ticket {
    let old = w.memory.word;
    w.memory.word = w.word().shared_taken().into_bits();
    w.call(|arbiter, _, _, lock, _, _| {
        let addr = WordAddr::new(lock.slot, Word::W0);
        let word_op = WordOp::Faa { addr, add: FairWord::TAKE_SHARED };
        let intent = LedgerEntry::new().with_state(LedgerState::Intent);
        arbiter.executed_word_op(
            lock,
            id(n),
            intent.with_deadline_s(START_S + lease_s, START_S),
            &word_op,
            old,
        );
    });
    let ticket = FairWord::from_bits(old).next();
    w.writes(n, LedgerState::HeldShared, ticket, lease_s);
    let entry = w.memory.ledgers[&id(n)];
    w.call(|arbiter, _, _, _, _, _| arbiter.noted(Slot(0), id(n), entry));
    ticket
}

fn give_up(w: &mut World, n: u32, ticket: Ticket) {
    w.writes(n, LedgerState::GivenUpExclusive, ticket, 0);
    w.ask(n, Request::Abandon { handle: HANDLE, mode: X, ticket });
    w.memory.ledgers.remove(&id(n));
}

/// Others give a lap of exclusive tickets up while one reader holds its share.
fn a_share_outlasts_a_lap(is_proxied: bool) {
    let mut w = World::new(LockType::Fair, 4);
    for _ in 0..9 {
        let ticket = take_exclusive(&mut w, 2);
        give_up(&mut w, 2, ticket);
    }
    let share = match is_proxied {
        true => {
            w.arbiter.proxy(id(1));
            take_share_by_chain(&mut w, 1, 600)
        }
        false => w.take(1, S, LedgerState::HeldShared, 600),
    };
    assert_eq!(share.tx, w.word().nx());
    let mut laps = 0;
    // to the number before the share's own, of the next lap
    for _ in 0..200_000 {
        let before = w.word().mx();
        let ticket = take_exclusive(&mut w, 2);
        give_up(&mut w, 2, ticket);
        laps += u32::from(ticket.tx < before && ticket.tx == 0);
        if laps > 0 && w.word().mx() == share.tx - 1 {
            break;
        }
    }
    println!("{} laps, {:?}, share {share:?}", laps, w.word());
    assert_eq!(w.word().open_shared(), 1);
    let next = take_exclusive(&mut w, 3);
    let out = w.wait(3, X, next);
    assert!(out.is_empty(), "granted beside a share whose lease runs: {out:?}");
    assert!(w.pass(500 * NS).is_empty(), "granted beside a share whose lease runs");
    assert_eq!(w.word().open_shared(), 1);
    let out = w.release(1, S, share);
    assert!(is_granted(&out, 3), "{out:?}");
}

#[test]
fn a_share_of_a_client_of_its_own_outlasts_a_lap() {
    a_share_outlasts_a_lap(false);
}

#[test]
fn a_share_of_a_proxied_client_outlasts_a_lap() {
    a_share_outlasts_a_lap(true);
}

/// As for the exclusive lane: a fetch-and-add that carried would change the next lane of the word.
#[test]
fn the_shared_lane_has_room_for_an_addition_of_each_client_that_does_not_know() {
    let mut w = World::new(LockType::Fair, 3);
    let mut inside = None;
    w.memory.word = FairWord::new().with_ns(0xeff0).with_ms(0xeff0).into_bits();
    for i in 0..9_000 {
        let n = 1 + i % 2;
        // readers that overlap: one comes before the other goes
        let ticket = if w.word().ms() < FAIR_LANE_DIVERT {
            w.take(n, S, LedgerState::HeldShared, 60)
        } else {
            let out = w.ask(n, Request::TakeTicket { handle: HANDLE, mode: S, expire_s: 30 });
            let Reply::Queued { ticket, .. } = out[0].reply else { panic!("{out:?}") };
            w.writes(n, LedgerState::TicketShared, ticket, 0);
            assert!(is_granted(&w.wait(n, S, ticket), n));
            w.writes(n, LedgerState::HeldShared, ticket, 60);
            ticket
        };
        if let Some((n, ticket)) = inside.replace((n, ticket)) {
            w.release(n, S, ticket);
            w.memory.ledgers.remove(&id(n));
        }
        let word = w.word();
        if word.ms() == u16::MAX {
            // a client that has just got the lock, or has not used it since the lane was low
            w.take_by_addition(3);
            assert_eq!(w.word().mx(), word.mx(), "a share has become an exclusive ticket");
        }
    }
}

trait Addition {
    fn take_by_addition(&mut self, n: u32);
}

impl Addition for World {
    /// What `Faa` does, carry and all.
    fn take_by_addition(&mut self, n: u32) {
        let old = self.word();
        self.memory.word += FairWord::TAKE_SHARED;
        self.writes(n, LedgerState::HeldShared, old.next(), 60);
    }
}

/// As `laps.rs: the_lane_does_not_start_again_past_a_share_that_no_ledger_names`, with the client's
/// note: then no record is left, and only its live ticket tells.
#[test]
fn the_lane_does_not_start_again_past_a_noted_share_of_a_proxied_client() {
    use dlock_core::limits::{FAIR_LANE_MAX, FAIR_LANE_RING_END};
    let mut w = World::new(LockType::Fair, 3);
    w.arbiter.proxy(id(1));
    let near = FAIR_LANE_RING_END - 9;
    w.memory.word = FairWord::new().with_nx(near).with_mx(near).into_bits();
    take_share_by_chain(&mut w, 1, 600);
    w.memory.word = w.word().with_nx(FAIR_LANE_MAX).with_mx(FAIR_LANE_MAX).into_bits();
    w.writes(3, LedgerState::HeldExclusive, Ticket { tx: 7, ts: 0 }, 1); // in its release
    let head = take_exclusive(&mut w, 2);
    assert_eq!(head.tx, FAIR_LANE_MAX);
    w.memory.ledgers.remove(&id(3));
    assert!(w.wait(2, X, head).is_empty(), "the share is inside");
    assert_eq!(take_exclusive(&mut w, 3).tx, head.tx + 1);
    assert_eq!(w.word().open_shared(), 1);
}
