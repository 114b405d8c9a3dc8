// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recounts of a read-write lock's readers: what is counted, which clients are answered, and which
//! client hinders the others.

use crate::common::lock::{id, is_done, is_granted, World, HANDLE, RESOLVE, S, WAKE};
use dlock_core::clock::{Lease, NS};
use dlock_core::limits::HINDRANCE_S;
use dlock_core::memory::words::{LedgerEntry, LedgerState, RwWord};
use dlock_core::wire::message::{LockType, Request, WaitNumber};

const HINDRANCE_NS: u64 = HINDRANCE_S as u64 * NS;

fn entry(state: LedgerState, detail: u32) -> LedgerEntry {
    LedgerEntry::new().with_state(state).with_detail(detail)
}

fn wait(mode: dlock_core::wire::message::Mode, n: u32) -> Request {
    let wait = WaitNumber(n);
    Request::Wait { handle: HANDLE, mode, lease: Lease::ENDLESS, wait, ticket: None }
}

fn readers(w: &World) -> u32 {
    RwWord::from_bits(w.memory.word).rcount()
}

fn counts(w: &mut World, readers: u32) {
    w.memory.word = RwWord::from_bits(w.memory.word).with_rcount(readers).into_bits();
}

/// Client `n` dies while it leaves; its share is still counted.
fn dies(w: &mut World, n: u32) {
    w.memory.ledgers.insert(id(n), entry(LedgerState::Leaving, 3));
    w.forget(n);
    w.memory.ledgers.remove(&id(n));
}

/// Client 1 had a share, has released it, and is about to wait for its next one.
#[test]
fn a_grant_does_not_count_for_a_later_wait() {
    let mut w = World::new(LockType::Rw, 3);
    assert!(is_granted(&w.ask(1, wait(S, 1)), 1));
    w.memory.ledgers.insert(id(1), entry(LedgerState::Waiting, 2));
    dies(&mut w, 2);
    assert_eq!(readers(&w), 0, "the count was of the client that has died");
    // a grant of the wait that the ledger names counts
    let mut w = World::new(LockType::Rw, 3);
    assert!(is_granted(&w.ask(1, wait(S, 1)), 1));
    w.memory.ledgers.insert(id(1), entry(LedgerState::Waiting, 1));
    counts(&mut w, 2);
    dies(&mut w, 2);
    assert_eq!(readers(&w), 1);
}

/// Client 2 is between two word operations, and the count waits for it.
fn in_doubt(w: &mut World) {
    w.memory.ledgers.insert(id(1), entry(LedgerState::Leaving, 5));
    w.memory.ledgers.insert(id(2), entry(LedgerState::Intent, 7));
    counts(w, 1);
    assert!(w.ask(1, RESOLVE).is_empty(), "it waits for client 2");
}

#[test]
fn a_client_whose_session_lapses_is_not_answered_when_the_count_is_known() {
    for lapses in [false, true] {
        let mut w = World::new(LockType::Rw, 3);
        in_doubt(&mut w);
        if lapses {
            w.lapse(1);
        }
        w.memory.ledgers.remove(&id(2));
        let out = w.pass(NS);
        assert_eq!(is_done(&out, 1), !lapses, "{out:?}");
        assert_eq!(readers(&w), 0);
    }
}

/// A recount in between has succeeded without this client.
#[test]
fn a_client_hinders_anew_after_a_recount_that_succeeded() {
    let mut w = World::new(LockType::Rw, 5);
    assert!(is_granted(&w.ask(4, wait(S, 1)), 4), "one reader is inside all the time");
    w.memory.ledgers.insert(id(4), entry(LedgerState::Waiting, 1));
    w.memory.ledgers.insert(id(1), entry(LedgerState::Intent, 7));
    for n in [2, 3] {
        counts(&mut w, 2);
        dies(&mut w, n);
        w.pass(HINDRANCE_NS * 3 / 4);
        assert_eq!(w.arbiter.hinderer(&|_| false), None, "client {n} has died just now");
        counts(&mut w, 1); // client 1 has taken itself off the count again
        w.pass(2 * NS);
        assert!(!RwWord::from_bits(w.memory.word).waiters(), "the count is known");
    }
    counts(&mut w, 2);
    dies(&mut w, 5);
    w.pass(HINDRANCE_NS + NS);
    assert_eq!(w.arbiter.hinderer(&|_| false), Some(id(1)));
}

/// Client 4 changes its entry after every look, so no two readings are the same.
#[test]
fn a_client_that_stops_is_noted_although_another_one_goes_on() {
    let mut w = World::new(LockType::Rw, 4);
    w.memory.ledgers.insert(id(1), entry(LedgerState::Intent, 7));
    counts(&mut w, 1);
    w.memory.moves = Some((id(4), entry(LedgerState::Intent, 100), w.memory.word));
    dies(&mut w, 2);
    let end = w.now.plus_ns(2 * HINDRANCE_NS);
    for stamp in 101.. {
        let Some(at) = w.arbiter.next_wakeup().filter(|&at| at <= end) else { break };
        w.memory.moves = Some((id(4), entry(LedgerState::Intent, stamp), w.memory.word));
        w.pass(at.0.saturating_sub(w.now.0));
    }
    assert_eq!(w.arbiter.hinderer(&|_| false), Some(id(1)));
    w.ask(3, WAKE);
}

/// Client 1 had a share, has released it, and its ledger names its next wait, which it has not
/// requested yet. Client 2 reads.
#[test]
fn the_grant_of_an_earlier_wait_takes_no_share_of_another_client_off() {
    for dies in [false, true] {
        let mut w = World::new(LockType::Rw, 2);
        assert!(is_granted(&w.ask(1, wait(S, 1)), 1));
        w.memory.ledgers.insert(id(1), entry(LedgerState::Waiting, 2));
        w.memory.ledgers.insert(id(2), entry(LedgerState::HeldShared, 0));
        let _ = if dies { w.forget(1) } else { w.ask(1, RESOLVE) };
        assert_eq!(readers(&w), 1, "client 2 reads");
    }
}
