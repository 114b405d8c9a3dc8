// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fair locks: shares that outlast a lap of the exclusive lane, and the end of the shared lane.

use crate::common::lock;
use crate::common::lock::{id, is_done, is_granted, World, HANDLE, S, START_S, X};
use dlock_core::clock::NS;
use dlock_core::limits::{FAIR_LANE_DIVERT, FAIR_LANE_MAX};
use dlock_core::message::{LockType, Reply, Request};
use dlock_core::word_op::{Word, WordAddr, WordOp};
use dlock_core::words::{FairWord, LedgerEntry, LedgerState, Ticket};

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
    w.call(|arbiter, _, memory, lock, _, _| {
        let addr = WordAddr::new(lock.slot, Word::W0);
        let word_op = WordOp::Faa { addr, add: FairWord::TAKE_SHARED };
        let intent = LedgerEntry::new().with_state(LedgerState::Intent);
        arbiter.executed_word_op(
            memory,
            lock,
            (id(n), HANDLE),
            intent.with_deadline_s(START_S + lease_s, START_S),
            &word_op,
            old,
        );
    });
    let ticket = FairWord::from_bits(old).next();
    w.writes(n, LedgerState::HeldShared, ticket, lease_s);
    let entry = w.memory.ledgers[&id(n)];
    w.call(|arbiter, _, memory, lock, _, _| arbiter.noted(memory, lock, (id(n), HANDLE), entry));
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

/// A client stops before its ledger says that its share was released, and its next one, which
/// nobody looks at in between, has the same place in the shared lane.
#[test]
fn a_share_is_not_taken_for_one_that_was_released_a_lap_of_the_shared_lane_before() {
    let mut w = World::new(LockType::Fair, 3);
    w.memory.word = FairWord::new().with_ns(9).with_ms(9).into_bits();
    let first = w.take(1, S, LedgerState::HeldShared, 600);
    assert!(is_done(&w.release(1, S, first), 1));
    let mut has_started_again = false;
    while !has_started_again || w.word().ms() != first.ts {
        if w.word().ms() < FAIR_LANE_DIVERT {
            w.memory.word = w.word().shared_taken().shared_done(1).into_bits();
            continue;
        }
        has_started_again = true;
        let out = w.ask(2, Request::TakeTicket { handle: HANDLE, mode: S, expire_s: 30 });
        let Reply::Queued { ticket, .. } = out[0].reply else { panic!("{out:?}") };
        w.writes(2, LedgerState::TicketShared, ticket, 0);
        assert!(is_granted(&w.wait(2, S, ticket), 2));
        assert!(is_done(&w.release(2, S, ticket), 2));
        w.memory.ledgers.remove(&id(2));
    }
    let again = w.take(1, S, LedgerState::HeldShared, 600);
    assert_eq!(again.ts, first.ts);
    let next = w.take(3, X, LedgerState::TicketExclusive, 0);
    assert!(w.wait(3, X, next).is_empty(), "granted beside a share whose lease runs: {again:?}");
    assert!(is_granted(&w.release(1, S, again), 3));
}

/// Its client asks for what it had before the exclusive lane has moved on.
#[test]
fn shares_stay_inside_when_the_shared_lane_starts_again() {
    let mut w = World::new(LockType::Fair, 3);
    w.memory.word = FairWord::new().with_ns(FAIR_LANE_DIVERT).with_ms(FAIR_LANE_DIVERT).into_bits();
    let share = w.take(1, S, LedgerState::HeldShared, 600);
    w.ask(2, Request::TakeTicket { handle: HANDLE, mode: S, expire_s: 30 });
    let word = w.word();
    assert_eq!((word.ns(), word.ms(), word.open_exclusive()), (0, 2, 0));
    assert!(word.is_served(share.tx));
    assert_eq!(w.extend(1, S, share, 700), Some(700));
    assert!(is_done(&w.release(1, S, share), 1));
}

/// The lane starts again while exclusive tickets of the ring are open, the numbers of the ring have
/// come round to the share's own, and more than half a lap of readers has come and gone.
#[test]
fn a_share_stays_inside_when_the_lane_starts_again_behind_a_queue() {
    use dlock_core::limits::FAIR_LANE_MAX;
    let mut w = World::new(LockType::Fair, 4);
    w.arbiter.proxy(id(1));
    w.memory.word =
        FairWord::new().with_nx(FAIR_LANE_MAX + 9).with_mx(FAIR_LANE_MAX + 9).into_bits();
    let share = take_share_by_chain(&mut w, 1, 600);
    w.ask(2, lock::WAKE); // the arbiter sees it at its turn
    w.memory.word = w
        .word()
        .with_nx(FAIR_LANE_MAX + 8)
        .with_mx(FAIR_LANE_MAX + 8)
        .with_ns(40_000)
        .with_ms(40_001)
        .into_bits();
    w.writes(4, LedgerState::HeldExclusive, Ticket { tx: 7, ts: 0 }, 1); // in its release
    let head = take_exclusive(&mut w, 2);
    assert_eq!(head.tx + 1, share.tx);
    w.memory.ledgers.remove(&id(4));
    assert_eq!(take_exclusive(&mut w, 3).tx, 0, "the lane starts again");
    assert!(w.wait(2, X, head).is_empty(), "granted beside a share whose lease runs");
    assert!(w.pass(500 * NS).is_empty());
    assert!(is_granted(&w.release(1, S, share), 2));
}

/// As the test before the last, with a writer that holds the lock while the lane comes to its end.
#[test]
fn no_two_shares_are_the_same_where_the_shared_lane_comes_round_behind_a_writer() {
    let mut w = World::new(LockType::Fair, 4);
    w.memory.word = FairWord::new().with_ns(u16::MAX - 1).with_ms(u16::MAX - 1).into_bits();
    let held = w.take(4, X, LedgerState::HeldExclusive, 600);
    let shares = [1, 2, 3].map(|n| {
        let out = w.ask(n, Request::TakeTicket { handle: HANDLE, mode: S, expire_s: 30 });
        let Reply::Queued { ticket, .. } = out[0].reply else { panic!("{out:?}") };
        w.writes(n, LedgerState::TicketShared, ticket, 0);
        assert!(w.wait(n, S, ticket).is_empty());
        ticket
    });
    assert_eq!(shares.map(|t| t.ts), [u16::MAX - 1, u16::MAX, 0]);
    assert_ne!(shares[0].tx, shares[2].tx);
    let out = w.release(4, X, held);
    assert!([1, 2, 3].iter().all(|&n| is_granted(&out, n)), "{out:?}");
    assert_eq!(w.word().open_exclusive(), 0);
    for (n, share) in (1..).zip(shares) {
        assert!(is_done(&w.release(n, S, share), n));
    }
    assert_eq!(w.word().open_shared(), 0);
}

/// From there on only the arbiter serves shares.
#[test]
fn no_number_is_left_out_for_a_share_where_the_exclusive_lane_nears_its_end() {
    for (mx, left_out) in [(FAIR_LANE_DIVERT - 1, 1), (FAIR_LANE_DIVERT, 0)] {
        let mut w = World::new(LockType::Fair, 2);
        let last = FairWord::new().with_ns(u16::MAX).with_ms(u16::MAX);
        w.memory.word = last.with_nx(mx - 1).with_mx(mx - 1).into_bits();
        w.take(1, X, LedgerState::HeldExclusive, 60);
        let out = w.ask(2, Request::TakeTicket { handle: HANDLE, mode: S, expire_s: 30 });
        let Reply::Queued { ticket, .. } = out[0].reply else { panic!("{out:?}") };
        assert_eq!(ticket, Ticket { tx: mx + left_out, ts: u16::MAX });
        assert_eq!(w.word().mx(), mx + left_out);
    }
}

/// Its number may be an ended exclusive ticket's that a ledger still names.
#[test]
fn a_share_is_taken_where_the_lane_is_once_that_is_in_the_ring() {
    let mut w = World::new(LockType::Fair, 3);
    w.memory.word = FairWord::new().with_nx(FAIR_LANE_MAX).with_mx(FAIR_LANE_MAX).into_bits();
    w.writes(1, LedgerState::GivenUpExclusive, Ticket { tx: FAIR_LANE_MAX - 1, ts: 0 }, 0);
    w.writes(2, LedgerState::GivenUpExclusive, Ticket { tx: FAIR_LANE_MAX, ts: 0 }, 0);
    let out = w.ask(3, Request::TakeTicket { handle: HANDLE, mode: S, expire_s: 30 });
    let Reply::Queued { ticket, .. } = out[0].reply else { panic!("{out:?}") };
    assert_eq!(ticket, Ticket { tx: FAIR_LANE_MAX, ts: 0 });
}
