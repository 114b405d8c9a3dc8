// SPDX-License-Identifier: MIT OR Apache-2.0
//! Holds of a read-write lock that have a lease: the arbiter keeps them, and ends them.

use crate::common::lock::*;
use dlock_core::arbiter::Sent;
use dlock_core::clock::{Deadline, Lease, ServerTime, NS};
use dlock_core::memory::word_op::{Word, WordAddr, WordOp};
use dlock_core::memory::words::{LedgerEntry, LedgerState, RwWord};
use dlock_core::wire::message::{LockType, Mode, Reply, Request, WaitNumber};

const LEASE_S: u32 = 9;
const LEASE: Lease = Lease::secs(LEASE_S);

fn world() -> World {
    World::new(LockType::Rw, 3)
}

/// The end of a hold with a lease that began at the start.
fn end() -> ServerTime {
    ServerTime(expiry(LEASE_S))
}

fn now_or_never(mode: Mode) -> Request {
    Request::Steal { handle: HANDLE, mode, lease: LEASE }
}

fn wait(mode: Mode, lease: Lease) -> Request {
    Request::Wait { handle: HANDLE, mode, lease, wait: WaitNumber(1), ticket: None }
}

fn release(mode: Mode) -> Request {
    Request::Release { handle: HANDLE, mode, ticket: None }
}

fn extend(mode: Mode, lease: Lease) -> Request {
    Request::Extend { handle: HANDLE, mode, ticket: None, lease }
}

fn deadline(out: &[Sent]) -> Option<Deadline> {
    match out {
        [Sent { reply: Reply::Granted { deadline, .. }, .. }] => Some(*deadline),
        _ => None,
    }
}

impl World {
    fn rw(&self) -> RwWord {
        RwWord::from_bits(self.memory.word)
    }

    fn until(&mut self, at: ServerTime) -> Vec<Sent> {
        self.pass(at.0 - self.now.0)
    }
}

/// No client asks for the lock, and the holder does nothing.
#[test]
fn a_hold_ends_at_the_end_of_its_lease_and_not_before() {
    for mode in [X, S] {
        let mut w = world();
        assert_eq!(deadline(&w.ask(1, now_or_never(mode))), Some(until(LEASE_S)));
        let held = w.memory.word;
        assert_ne!(held, 0);
        w.until(ServerTime(end().0 - 1));
        assert_eq!(w.memory.word, held, "{mode:?}");
        w.until(end());
        assert_eq!(w.memory.word, 0, "{mode:?}");
        assert_eq!(w.arbiter.next_wakeup(), None);
    }
}

#[test]
fn who_waits_gets_the_lock_at_the_end_of_the_lease_and_not_before() {
    for (mode, waits, lease) in [(S, X, LEASE), (X, S, Lease::ENDLESS), (X, X, Lease::ENDLESS)] {
        let mut w = world();
        w.ask(1, now_or_never(mode));
        assert!(w.ask(2, wait(waits, lease)).is_empty());
        assert!(w.until(ServerTime(end().0 - 1)).is_empty(), "{mode:?}");
        assert!(is_granted(&w.until(end()), 2), "{mode:?}");
    }
}

/// The client's process was stopped, and goes on after the end of its lease, when another client
/// has the lock.
#[test]
fn a_late_release_and_a_late_extend_are_told_the_loss_and_change_nothing() {
    for (mode, others) in [(X, X), (X, S), (S, X), (S, S)] {
        for late in [release(mode), extend(mode, LEASE), extend(mode, Lease::NONE)] {
            let mut w = world();
            w.ask(1, now_or_never(mode));
            w.until(end());
            assert!(is_granted(&w.ask(2, now_or_never(others)), 2));
            let word = w.memory.word;
            assert!(is_denied(&w.ask(1, late)), "{mode:?} {others:?}");
            assert_eq!(w.memory.word, word, "{mode:?} {others:?}");
        }
    }
}

/// The timer of the arbiter may be late.
#[test]
fn a_hold_that_is_over_is_not_extended_before_its_end_was_noticed() {
    for mode in [X, S] {
        let mut w = world();
        w.ask(1, now_or_never(mode));
        w.now = end();
        assert!(is_denied(&w.ask(1, extend(mode, LEASE))));
        assert_eq!(w.memory.word, 0);
    }
}

#[test]
fn a_share_that_was_released_is_not_subtracted_again_at_the_end_of_its_lease() {
    let mut w = world();
    w.ask(1, now_or_never(S));
    assert!(is_done(&w.ask(1, release(S)), 1));
    assert!(is_denied(&w.ask(1, release(S))));
    w.memory.word = w.rw().with_rcount(1).into_bits(); // another client adds itself
    w.until(end());
    assert_eq!(w.rw().rcount(), 1);
}

/// A client requests its next hold after the answer to the release of its last one, or to a
/// `Resolve`, and its requests are executed in order. So a release ends the hold for which it was
/// sent, or none.
#[test]
fn after_a_resolve_nothing_is_left_of_a_hold_and_a_new_one_has_its_own_end() {
    for mode in [X, S] {
        let mut w = world();
        w.ask(1, now_or_never(mode));
        w.pass(NS);
        assert!(is_done(&w.ask(1, RESOLVE), 1));
        assert_eq!(w.memory.word, 0);
        assert_eq!(deadline(&w.ask(1, now_or_never(mode))), Some(until(LEASE_S + 1)));
        w.until(end());
        assert_ne!(w.memory.word, 0, "the end of the first hold");
    }
}

#[test]
fn an_extend_moves_the_end_and_never_back() {
    for mode in [X, S] {
        let mut w = world();
        w.ask(1, now_or_never(mode));
        w.pass(NS);
        assert_eq!(deadline(&w.ask(1, extend(mode, Lease::NONE))), Some(until(LEASE_S)));
        assert_eq!(deadline(&w.ask(1, extend(mode, LEASE))), Some(until(LEASE_S + 1)));
        assert_eq!(deadline(&w.ask(1, extend(mode, Lease::secs(1)))), Some(until(LEASE_S + 1)));
        w.until(end());
        assert_ne!(w.memory.word, 0);
        w.pass(NS);
        assert_eq!(w.memory.word, 0);
    }
}

#[test]
fn what_cannot_be_granted_at_once_is_denied() {
    let mut w = world();
    assert!(is_granted(&w.ask(1, now_or_never(S)), 1));
    assert!(is_denied(&w.ask(1, now_or_never(S))), "it has a share");
    assert!(is_granted(&w.ask(2, now_or_never(S)), 2));
    assert!(is_denied(&w.ask(3, now_or_never(X))));
    assert!(w.ask(3, wait(X, LEASE)).is_empty());
    assert_eq!(w.rw().rcount(), 2);
    w.refs.push((id(4), HANDLE));
    assert!(is_denied(&w.ask(4, now_or_never(S))), "past the queue");
    assert!(is_done(&w.ask(1, release(S)), 1));
    assert!(is_granted(&w.ask(2, release(S)), 3), "the last one hands it over");
}

/// The arbiter keeps a hold with a lease, and the client's ledger says nothing of it.
#[test]
fn a_recount_counts_the_shares_that_have_a_lease() {
    let mut w = world();
    w.ask(1, now_or_never(S));
    w.memory.word = w.rw().with_rcount(2).into_bits();
    let leaving = LedgerEntry::new().with_state(LedgerState::Leaving).with_detail(3);
    w.memory.ledgers.insert(id(2), leaving);
    w.forget(2);
    assert_eq!(w.rw(), RwWord::new().with_rcount(1), "client 1 reads");
    w.until(end());
    assert_eq!(w.memory.word, 0);
}

/// A client with a leased share may not subtract it, or another share, by a word operation.
#[test]
fn a_client_whose_chains_the_primary_executes_cannot_change_the_count_beside_its_lease() {
    let mut w = world();
    w.arbiter.proxy(id(1));
    w.ask(1, now_or_never(S));
    let addr = WordAddr::new(dlock_core::ids::Slot(0), Word::W0);
    for add in [1, u64::MAX] {
        let word_op = WordOp::Faa { addr, add };
        let seen = w.memory.word;
        let may = w.arbiter.may(addr.slot(), LockType::Rw, id(1), seen, &word_op);
        assert!(may.is_err(), "{add}");
    }
}

#[test]
fn the_shares_that_are_over_leave_by_one_change_of_the_word() {
    let mut w = World::new(LockType::Rw, 500);
    for n in 1..=500 {
        assert!(is_granted(&w.ask(n, now_or_never(S)), n));
    }
    assert_eq!(w.rw().rcount(), 500);
    w.until(end());
    assert_eq!(w.memory.word, 0);
    assert!(w.work <= 4 * 500, "{}", w.work);
}
