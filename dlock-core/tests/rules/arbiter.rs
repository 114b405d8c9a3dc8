// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the arbiter decides about expiry and ownership, one rule at a time.

use crate::common::lock::{expiry, id, is_denied, is_done, is_granted, until, World};
use crate::common::lock::{HANDLE, RESOLVE, S, START_S, WAKE, X};
use dlock_core::clock::{Deadline, Lease, ServerTime, NS};
use dlock_core::limits::LOOK_S;
use dlock_core::memory::word_op::{Word, WordAddr, WordOp};
use dlock_core::memory::words::{AtomicWord, LedgerEntry, LedgerState, RwWord, Ticket};
use dlock_core::wire::message::{LockType, Mode, Reply, Request, WaitNumber};

const STEAL: Request = Request::Steal { handle: HANDLE, mode: X, lease: Lease::secs(30) };

#[test]
fn an_expired_hold_goes_to_who_asks_for_it_and_no_earlier() {
    let mut w = World::new(LockType::Atomic, 3);
    let held = AtomicWord::new().with_client(2).with_timeout(Deadline::at_s(START_S + 3));
    w.memory.word = held.into_bits();
    w.now = ServerTime(expiry(3) - 1);
    assert!(is_denied(&w.ask(1, STEAL)));
    assert_eq!(w.memory.word, held.into_bits());
    w.now = ServerTime(expiry(3));
    assert!(is_granted(&w.ask(1, STEAL), 1));
    let stolen = held.with_client(1).with_timeout(w.now.deadline(Lease::secs(30)));
    assert_eq!(w.memory.word, stolen.into_bits());
    w.memory.word = 0;
    assert!(is_granted(&w.ask(1, STEAL), 1), "it is free");
}

#[test]
fn an_expired_hold_goes_to_the_first_in_the_queue_and_not_to_who_asks_for_it() {
    let mut w = World::new(LockType::Atomic, 3);
    w.memory.word =
        AtomicWord::new().with_client(2).with_timeout(Deadline::at_s(START_S + 3)).into_bits();
    assert!(w.ask(3, wait_as(X, 1)).is_empty());
    w.now = ServerTime(expiry(3));
    let out = w.ask(1, STEAL);
    assert!(is_granted(&out, 3) && !is_granted(&out, 1), "{out:?}");
}

fn wait_as(mode: Mode, number: u32) -> Request {
    let wait = WaitNumber(number);
    let lease = if mode == X { Lease::secs(9) } else { Lease::ENDLESS };
    Request::Wait { handle: HANDLE, mode, lease, wait, ticket: None }
}

fn is_cancelled(out: &[dlock_core::arbiter::Sent], n: u32) -> bool {
    out.iter().any(|s| s.client == id(n) && matches!(s.reply, Reply::Cancelled { .. }))
}

#[test]
fn a_cancelled_wait_for_a_read_write_lock_is_granted_to_nobody() {
    let mut w = World::new(LockType::Rw, 2);
    w.memory.word = RwWord::new().with_client(1).into_bits();
    assert!(w.ask(2, wait_as(X, 1)).is_empty());
    let out = w.ask(2, Request::Cancel { handle: HANDLE, wait: WaitNumber(1) });
    assert!(is_cancelled(&out, 2) && is_done(&out, 2), "{out:?}");
    assert!(is_done(&w.release(1, X, Ticket::default()), 1));
    assert_eq!(w.memory.word, 0);
}

#[test]
fn what_is_looked_at_is_counted_as_work() {
    let mut w = World::new(LockType::Fair, 21);
    w.take(1, X, 600);
    for n in 2..=21 {
        let ticket = w.take(n, X, 0);
        w.wait(n, X, ticket);
    }
    w.ask(1, WAKE);
    assert!(w.arbiter.work() >= 21 + 20, "ledgers and records: {}", w.arbiter.work());
}

#[test]
fn the_next_client_of_an_id_is_known_by_its_own_ledger() {
    let mut w = World::new(LockType::Fair, 2);
    w.arbiter.proxy(id(1));
    w.arbiter.gone(id(1));
    let ticket = w.take(1, X, 50);
    assert_eq!(w.extend(1, X, ticket, Lease::NONE), Some(until(50)));
}

#[test]
fn a_cancel_ends_the_wait_that_it_names_and_no_other() {
    let cancel = |wait| Request::Cancel { handle: HANDLE, wait: WaitNumber(wait) };
    let mut w = World::new(LockType::Atomic, 3);
    w.memory.word =
        AtomicWord::new().with_client(1).with_timeout(Deadline::at_s(START_S + 60)).into_bits();
    assert!(w.ask(2, wait_as(X, 1)).is_empty() && w.ask(3, wait_as(X, 2)).is_empty());
    for (n, wait, ends) in [(1, 1, false), (3, 1, false), (2, 2, false), (3, 2, true)] {
        let out = w.ask(n, cancel(wait));
        assert!(is_done(&out, n), "{out:?}");
        assert_eq!(is_cancelled(&out, n), ends, "{n} cancels {wait}: {out:?}");
        assert_eq!(out.len(), 1 + usize::from(ends));
    }
    assert!(is_granted(&w.pass(70 * NS), 2));
}

/// The reader's session ended before the reader could send its `Wake`.
#[test]
fn a_reader_that_left_without_a_word_keeps_nobody_waiting() {
    let mut w = World::new(LockType::Rw, 2);
    w.memory.word = RwWord::new().with_rcount(1).into_bits();
    assert!(w.ask(2, wait_as(X, 2)).is_empty());
    w.memory.word = RwWord::from_bits(w.memory.word).with_rcount(0).into_bits();
    assert!(w.pass(u64::from(LOOK_S) * NS - 1).is_empty());
    assert!(is_granted(&w.pass(1), 2));
}

/// A client that may map the memory changes its ledger by itself, so the arbiter goes by the ledger
/// alone.
#[test]
fn a_share_of_a_client_with_a_ledger_is_not_remembered() {
    let mut w = World::new(LockType::Rw, 2);
    w.call(|arbiter, _, memory, lock, _, _| {
        let addr = WordAddr::new(lock.slot, Word::W0);
        let word_op = WordOp::Faa { addr, add: 1 };
        arbiter.executed_word_op(memory, lock, (id(1), HANDLE), LedgerEntry::new(), &word_op, 0);
    });
    // the client has given the share back by itself, as its ledger says
    assert!(is_granted(&w.ask(1, wait_as(X, 1)), 1));
}

#[test]
fn a_client_that_was_granted_waits_for_nothing() {
    let mut w = World::new(LockType::Atomic, 3);
    assert!(is_granted(&w.ask(1, wait_as(X, 1)), 1));
    assert!(w.ask(2, wait_as(X, 1)).is_empty() && w.ask(3, wait_as(X, 1)).is_empty());
    let release = Request::Release { handle: HANDLE, mode: X, ticket: None };
    assert!(is_granted(&w.ask(1, release), 2));
    let waits = [1, 2, 3].map(|n| w.arbiter.take_waits(id(n)).len());
    assert_eq!(waits, [0, 0, 1]);
}

/// The reader was granted the lock by a message, and has not written that into its ledger yet.
#[test]
fn a_recount_counts_a_reader_whose_ledger_says_that_it_waits() {
    let mut w = World::new(LockType::Rw, 3);
    w.memory.word = RwWord::new().with_client(2).into_bits();
    let waiting = LedgerEntry::new().with_state(LedgerState::Waiting).with_detail(1);
    w.memory.ledgers.insert(id(1), waiting);
    assert!(w.ask(1, wait_as(S, 1)).is_empty());
    let release = Request::Release { handle: HANDLE, mode: X, ticket: None };
    assert!(is_granted(&w.ask(2, release), 1));
    let leaving = LedgerEntry::new().with_state(LedgerState::Leaving).with_detail(3);
    w.memory.ledgers.insert(id(3), leaving);
    w.memory.word = RwWord::new().with_rcount(2).into_bits();
    w.forget(3);
    let word = RwWord::from_bits(w.memory.word);
    assert_eq!((word.rcount(), word.waiters()), (1, false));
}

/// The client's ledger does not say yet that the share was given back, when the client begins to
/// operate on the word itself.
#[test]
fn a_granted_share_that_was_given_back_is_not_counted_again() {
    let mut w = World::new(LockType::Rw, 2);
    w.arbiter.proxy(id(1));
    let waiting = LedgerEntry::new().with_state(LedgerState::Waiting).with_detail(1);
    w.memory.ledgers.insert(id(1), waiting);
    assert!(is_granted(&w.ask(1, wait_as(S, 1)), 1));
    let old = std::mem::take(&mut w.memory.word);
    executes(&mut w, 1, old, |addr| WordOp::Faa { addr, add: u64::MAX });
    w.arbiter.unproxy(id(1));
    let leaving = LedgerEntry::new().with_state(LedgerState::Leaving).with_detail(3);
    w.memory.ledgers.insert(id(2), leaving);
    w.memory.word = RwWord::new().with_rcount(1).into_bits();
    w.forget(2);
    assert_eq!(w.memory.word, 0, "nobody is inside");
}

fn executes(w: &mut World, n: u32, old: u64, word_op: impl FnOnce(WordAddr) -> WordOp) {
    executes_noted(w, n, LedgerEntry::new(), old, word_op);
}

fn executes_noted(
    w: &mut World,
    n: u32,
    noted: LedgerEntry,
    old: u64,
    word_op: impl FnOnce(WordAddr) -> WordOp,
) {
    w.call(|arbiter, _, memory, lock, _, _| {
        let word_op = word_op(WordAddr::new(lock.slot, Word::W0));
        arbiter.executed_word_op(memory, lock, (id(n), HANDLE), noted, &word_op, old);
    });
}

#[test]
fn waits_outlast_a_client_that_maps_the_memory_from_now_on() {
    let mut w = World::new(LockType::Rw, 3);
    w.arbiter.proxy(id(1));
    w.memory.word = RwWord::new().with_client(3).into();
    assert!(w.ask(2, wait_as(X, 1)).is_empty());
    w.arbiter.unproxy(id(1));
    let release = Request::Release { handle: HANDLE, mode: X, ticket: None };
    assert!(is_granted(&w.ask(3, release), 2));
}

#[test]
fn what_the_last_call_took_is_no_part_of_the_state() {
    let mut w = World::new(LockType::Fair, 3);
    let before = w.arbiter.clone();
    w.ask(1, WAKE);
    assert!(w.arbiter == before && w.arbiter.work() != before.work());
}

/// While a client is between two word operations, the arbiter cannot know the count.
#[test]
fn a_client_in_doubt_is_waited_for_once_however_often_it_asks() {
    let mut w = World::new(LockType::Rw, 2);
    w.memory.word = RwWord::new().with_rcount(1).into_bits();
    let intent = |n: u32| LedgerEntry::new().with_state(LedgerState::Intent).with_detail(n);
    w.memory.ledgers.insert(id(1), intent(1));
    w.memory.ledgers.insert(id(2), intent(2));
    assert!(w.ask(2, RESOLVE).is_empty());
    for _ in 0..3 {
        let told = w.ask(2, RESOLVE);
        assert!(told.len() == 1 && matches!(told[0].reply, Reply::Cancelled { .. }), "{told:?}");
    }
    w.memory.ledgers.insert(id(1), LedgerEntry::new());
    let told = w.pass(u64::from(LOOK_S) * NS);
    assert!(is_done(&told, 2) && told.len() == 1, "{told:?}");
}
