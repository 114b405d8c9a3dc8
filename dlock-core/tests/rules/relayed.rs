// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fair lock that its clients hand on by the companion word: the arbiter's side.

use crate::common::lock::{id, is_denied, is_done, is_granted, Memory, World, HANDLE, WAKE};
use dlock_core::arbiter::Caller;
use dlock_core::exec::LockMemory;
use dlock_core::ids::{ClientId, Handle, Slot};
use dlock_core::limits::{FAIR_LANE_DIVERT, FAIR_LANE_MAX};
use dlock_core::message::{LockType, Mode, Reply, Request, WaitNumber};
use dlock_core::status::Status;
use dlock_core::word_op::{Word, WordAddr, WordOp};
use dlock_core::words::{FairWord, LedgerEntry, LedgerState, Ticket, TurnWord};

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;
const CLAIMED: LedgerState = LedgerState::TicketExclusive;

fn turn(w: &World) -> TurnWord {
    TurnWord::from_bits(w.memory.companion)
}

fn is_relayed(w: &World) -> bool {
    FairWord::from_bits(w.memory.word).is_relayed()
}

/// What a holder does that hands the lock on by the companion word from now on.
fn relays(w: &mut World) {
    let word = w.word();
    w.memory.companion = TurnWord::new().with_nx(word.nx()).into_bits();
    w.memory.word = word.relayed().into_bits();
}

/// A holder's compare-and-swap; whether it has handed the lock on.
fn passes(memory: &mut Memory, tx: u16) -> bool {
    let [mine, next] = [tx, tx + 1].map(|nx| TurnWord::new().with_nx(nx).into_bits());
    memory.cas(WordAddr::new(Slot(0), Word::W1), mine, next) == mine
}

/// Of three tickets that are claimed the first was released: the second has its turn.
fn relayed() -> (World, [Ticket; 3]) {
    let mut w = World::new(LockType::Fair, 5);
    let tickets = [1, 2, 3].map(|n| w.take(n, X, CLAIMED, 30));
    relays(&mut w);
    assert!(passes(&mut w.memory, 0));
    w.memory.ledgers.remove(&id(1));
    (w, tickets)
}

#[test]
fn the_arbiter_ends_a_relay_before_it_looks() {
    let (mut w, [_, second, third]) = relayed();
    assert!(w.wait(3, X, third).is_empty());
    assert!(!is_relayed(&w) && w.word().is_turn_of(second));
    assert!(turn(&w).told(), "client 3 sleeps");
    assert!(!passes(&mut w.memory, 1), "so client 2 has to ask");
    let out = w.release(2, X, second);
    assert!(is_done(&out, 2) && is_granted(&out, 3));
    assert!(!turn(&w).told());
}

#[test]
fn nobody_is_to_be_told_where_nobody_sleeps() {
    let (mut w, [_, second, third]) = relayed();
    w.ask(4, WAKE);
    assert!(!is_relayed(&w) && w.word().is_turn_of(second));
    assert!(!turn(&w).told() && turn(&w).ended(), "who looks there goes on at the word");
    assert!(!passes(&mut w.memory, 1), "the word tells");
    let poll = Request::Poll { handle: HANDLE, mode: X, ticket: third, expire_s: 9 };
    assert!(matches!(w.ask(3, poll)[..], [ref sent] if matches!(sent.reply, Reply::Queued { .. })));
    assert!(w.arbiter.next_wakeup().is_some(), "client 2 may hold it, and outstay its lease");
}

#[test]
fn what_is_asked_of_a_relayed_lock_is_answered_by_whose_turn_it_is() {
    let (mut w, [first, second, third]) = relayed();
    assert!(is_denied(&w.release(1, X, first)), "it was handed on");
    let (mut w2, _) = relayed();
    assert_eq!(w2.extend(2, X, second, 50), Some(50));
    let (mut w3, _) = relayed();
    assert_eq!(w3.extend(3, X, third, 50), None);
    assert!(is_granted(&w.wait(2, X, second), 2));
    let (mut w, _) = relayed();
    assert!(w.forget(2).is_empty());
    assert!(w.word().is_turn_of(third), "client 2 is gone");
}

/// It knows of no sleeper when it begins, and goes on when nobody sleeps any more.
#[test]
fn a_relay_that_begins_while_somebody_sleeps_keeps_its_number() {
    let mut w = World::new(LockType::Fair, 4);
    w.memory.word = FairWord::new().with_nx(7).with_mx(7).into_bits();
    let [first, second] = [1, 2].map(|n| w.take(n, X, CLAIMED, 30));
    w.memory.companion = TurnWord::new().with_nx(first.tx).into_bits();
    assert!(w.wait(2, X, second).is_empty());
    w.memory.word = w.word().relayed().into_bits();
    assert!(!passes(&mut w.memory, first.tx));
    let cancel = Request::Cancel { handle: HANDLE, wait: WaitNumber(1) };
    w.ask(2, cancel);
    assert!(w.word().is_turn_of(first));
    // and once more, with nobody there when it goes on
    w.memory.word = w.word().relayed().into_bits();
    w.ask(3, WAKE);
    assert!(w.word().is_turn_of(first));
}

/// Somebody else is faster than each compare-and-swap of the arbiter.
struct Racing<'a, F>(&'a mut Memory, F);

impl<F: FnMut(&mut Memory, WordAddr)> LockMemory for Racing<'_, F> {
    fn cas(&mut self, addr: WordAddr, expect: u64, swap: u64) -> u64 {
        (self.1)(self.0, addr);
        self.0.cas(addr, expect, swap)
    }
    fn faa(&mut self, addr: WordAddr, add: u64) -> u64 {
        self.0.faa(addr, add)
    }
    fn read(&mut self, addr: WordAddr) -> u64 {
        self.0.read(addr)
    }
    fn set(&mut self, addr: WordAddr, value: u64) {
        self.0.set(addr, value);
    }
    fn ledger(&mut self, client: ClientId, handle: Handle) -> LedgerEntry {
        self.0.ledger(client, handle)
    }
    fn set_ledger(&mut self, client: ClientId, handle: Handle, entry: LedgerEntry) {
        self.0.set_ledger(client, handle, entry);
    }
}

#[test]
fn a_lock_that_is_handed_on_while_its_relay_ends_stays_handed_on() {
    let (mut w, [_, second, third]) = relayed();
    w.call(|arbiter, now, memory, lock, _, out| {
        let mut holder = second.tx;
        let passes_once = |memory: &mut Memory, _| {
            if holder != third.tx {
                assert!(passes(memory, holder));
                holder = third.tx;
            }
        };
        arbiter.tick(now, &mut Racing(memory, passes_once), lock, out);
    });
    assert!(!is_relayed(&w) && w.word().is_turn_of(third));
}

#[test]
fn a_holder_that_is_faster_than_the_arbiter_once_is_told_the_next_time() {
    let mut w = World::new(LockType::Fair, 5);
    let [first, second, third] = [1, 2, 3].map(|n| w.take(n, X, CLAIMED, 30));
    relays(&mut w);
    let (wait, ticket) = (WaitNumber(1), Some(third));
    let sleeps = Request::Wait { handle: HANDLE, mode: X, expire_s: 30, wait, ticket };
    w.call(|arbiter, now, memory, lock, seq, out| {
        let mut is_first = true;
        let passes_once = |memory: &mut Memory, _| {
            if std::mem::take(&mut is_first) {
                assert!(passes(memory, first.tx));
            }
        };
        let from = Caller { client: id(3), handle: HANDLE, seq };
        arbiter.request(now, &mut Racing(memory, passes_once), lock, from, sleeps, out);
    });
    assert!(!is_relayed(&w) && w.word().is_turn_of(second));
    assert!(turn(&w).told() && turn(&w).nx() == second.tx);
    assert!(!passes(&mut w.memory, second.tx), "client 3 sleeps");
}

#[test]
fn tickets_that_are_taken_while_a_relay_ends_are_kept() {
    let (mut w, [_, second, _]) = relayed();
    w.call(|arbiter, now, memory, lock, _, out| {
        let mut left = 3;
        let takes = |memory: &mut Memory, addr: WordAddr| {
            if addr.word() == Word::W0 && left > 0 {
                left -= 1;
                memory.faa(addr, FairWord::TAKE_EXCLUSIVE);
            }
        };
        arbiter.tick(now, &mut Racing(memory, takes), lock, out);
    });
    assert!(!is_relayed(&w) && w.word().is_turn_of(second) && w.word().mx() == 6);
}

/// Where the lane starts again no number may stay that comes once more.
#[test]
fn the_companion_word_has_no_number_of_an_earlier_lap() {
    let take = Request::TakeTicket { handle: HANDLE, mode: X, expire_s: 9 };
    let high = FairWord::new().with_nx(FAIR_LANE_DIVERT).with_mx(FAIR_LANE_DIVERT);
    for (is_named, number) in [(false, 0), (true, 77)] {
        let mut w = World::new(LockType::Fair, 3);
        w.memory.companion = TurnWord::new().with_nx(77).into_bits();
        w.memory.word = high.into_bits();
        if is_named {
            w.writes(2, LedgerState::HeldExclusive, Ticket { tx: 7, ts: 0 }, 0);
        }
        w.ask(1, take);
        assert_eq!(turn(&w).nx(), number, "named: {is_named}");
        assert_eq!(w.word().mx() == 1, !is_named);
    }
    // where somebody sleeps, it goes on saying so
    let mut w = World::new(LockType::Fair, 4);
    w.memory.companion = TurnWord::new().with_nx(77).into_bits();
    w.memory.word = FairWord::new().with_nx(FAIR_LANE_MAX).with_mx(FAIR_LANE_MAX).into_bits();
    let held = w.take(2, X, LedgerState::HeldExclusive, 600);
    let last = w.take(3, X, CLAIMED, 0);
    assert!(held.tx == FAIR_LANE_MAX && w.wait(3, X, last).is_empty());
    w.ask(1, take);
    assert!(turn(&w).told() && turn(&w).nx() == 0 && w.word().mx() == 1);
    // nor when nobody sleeps any more
    w.release(2, X, held);
    w.release(3, X, last);
    assert!(!turn(&w).told() && turn(&w).nx() == 0);
}

/// Before, the arbiter looked for ever: a number that no lane comes to is the mark of a relay.
#[test]
fn garbage_in_the_words_ends_in_a_lock_that_is_not_relayed() {
    let ticket = Ticket { tx: 5, ts: 0 };
    let words = [(0xffff, 0xfffe), (0xffff, 0x8000), (0xffff, 0xffff), (0x8000, 0x9000)];
    for (nx, turn) in words.into_iter().chain([(0xfffe, 0), (0xffff, 6), (0xffff, 7)]) {
        for told in [false, true] {
            let mut w = World::new(LockType::Fair, 4);
            w.memory.word = FairWord::new().with_nx(nx).with_mx(6).into_bits();
            w.memory.companion =
                TurnWord::new().with_nx(turn).with_told(told).into_bits() | 77 << 16;
            w.writes(3, LedgerState::TicketExclusive, ticket, 0);
            w.wait(3, X, ticket);
            w.pass(3_000_000);
            assert!(!is_relayed(&w), "{nx:#x} {turn:#x}");
            let is_looked_at_soon =
                w.arbiter.next_wakeup().is_some_and(|at| at.0 <= w.now.0 + 1_000);
            assert!(!is_looked_at_soon, "{nx:#x} {turn:#x}: {:?}", w.word());
        }
    }
}

#[test]
fn a_client_whose_chains_the_primary_executes_may_take_a_ticket_of_a_relayed_lock() {
    let (w, _) = relayed();
    let addr = WordAddr::new(Slot(0), Word::W0);
    let may =
        |word: u64, word_op: WordOp| w.arbiter.may(Slot(0), LockType::Fair, id(4), word, &word_op);
    for add in [FairWord::TAKE_EXCLUSIVE, FairWord::TAKE_SHARED] {
        assert_eq!(may(w.memory.word, WordOp::Faa { addr, add }), Ok(()));
    }
    let full = FairWord::from_bits(w.memory.word).with_mx(FAIR_LANE_MAX).into_bits();
    let add = FairWord::TAKE_EXCLUSIVE;
    assert_eq!(may(full, WordOp::Faa { addr, add }), Err(Status::Fail));
    // it hands nothing on by itself
    let word = w.word();
    for (expect, swap) in [
        (w.memory.word, word.exclusive_done().into_bits()),
        (word.into_bits(), word.relayed().into_bits()),
        (w.memory.word, w.memory.word),
    ] {
        let cas = WordOp::Cas { addr, expect, swap };
        assert_eq!(may(w.memory.word, cas), Err(Status::Invalid), "{expect:#x} → {swap:#x}");
    }
}

#[test]
fn shares_of_a_relayed_lock_have_their_turn_at_the_arbiter() {
    let mut w = World::new(LockType::Fair, 4);
    let first = w.take(1, X, CLAIMED, 30);
    let share = w.take(2, S, LedgerState::TicketShared, 0);
    relays(&mut w);
    assert!(w.wait(2, S, share).is_empty());
    assert!(!passes(&mut w.memory, first.tx));
    let out = w.release(1, X, first);
    assert!(is_done(&out, 1) && is_granted(&out, 2));
}
