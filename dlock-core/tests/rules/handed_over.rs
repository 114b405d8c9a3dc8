// SPDX-License-Identifier: MIT OR Apache-2.0
//! When a read-write lock goes from its owner straight to the next in the queue, and when not.

use crate::common::lock::{id, is_denied, is_done, is_granted, World, HANDLE, RESOLVE, WAKE, X};
use dlock_core::arbiter::Sent;
use dlock_core::clock::{Lease, NS};
use dlock_core::limits::LOOK_S;
use dlock_core::memory::words::{LedgerEntry, LedgerState, RwWord};
use dlock_core::wire::message::{LockType, Request, WaitNumber};

const WAIT: Request = Request::Wait {
    handle: HANDLE,
    mode: X,
    lease: Lease::ENDLESS,
    wait: WaitNumber(1),
    ticket: None,
};
const RELEASE: Request = Request::Release { handle: HANDLE, mode: X, ticket: None };

fn owned_by(n: u32) -> RwWord {
    RwWord::new().with_client(n)
}

/// A lock that client 1 owns; these clients wait for it exclusively, in this order.
fn waited_for<const N: usize>(waiters: [u32; N], clients: u32) -> World {
    let mut w = World::new(LockType::Rw, clients);
    w.memory.word = owned_by(1).into_bits();
    for n in waiters {
        assert!(w.ask(n, WAIT).is_empty());
    }
    w
}

fn releases(w: &mut World, n: u32) -> Vec<Sent> {
    let out = w.ask(n, RELEASE);
    assert!(is_done(&out, n), "{out:?}");
    out
}

#[test]
fn each_in_the_queue_is_the_next_owner_and_the_bit_goes_with_the_last() {
    let mut w = waited_for([2, 3], 3);
    assert!(is_granted(&releases(&mut w, 1), 2));
    assert_eq!(w.memory.word, owned_by(2).with_waiters(true).into_bits());
    assert!(is_granted(&releases(&mut w, 2), 3));
    assert_eq!(w.memory.word, owned_by(3).into_bits());
    assert!(!is_granted(&releases(&mut w, 3), 1));
    assert_eq!(w.memory.word, 0);
}

/// The client that frees the lock may end before it sends `Wake`.
#[test]
fn the_next_in_the_queue_has_it_within_a_second_though_nobody_says_that_it_is_free() {
    let mut w = waited_for([2, 3], 3);
    assert!(is_granted(&releases(&mut w, 1), 2));
    w.memory.word = RwWord::new().with_waiters(true).into_bits();
    assert!(is_granted(&w.pass(u64::from(LOOK_S) * NS), 3));
}

#[test]
fn who_does_not_own_it_hands_nothing_over() {
    let mut w = waited_for([2], 3);
    let before = w.memory.word;
    for n in [2, 3] {
        let out = w.ask(n, RELEASE);
        assert!(is_denied(&out) && out.len() == 1, "{out:?}");
        assert_eq!(w.memory.word, before);
    }
}

/// A reader in the count may be about to step back, or may not know yet that there is an owner.
#[test]
fn a_reader_in_the_count_is_waited_for() {
    let mut w = waited_for([2], 3);
    w.memory.word = RwWord::from_bits(w.memory.word).with_rcount(1).into_bits();
    assert!(!is_granted(&releases(&mut w, 1), 2));
    w.memory.word = RwWord::from_bits(w.memory.word).with_rcount(0).into_bits();
    assert!(is_granted(&w.ask(3, WAKE), 2));
}

/// The step that finds the count out also answers the client in doubt, because no later step would
/// look for the share that it left behind.
#[test]
fn a_count_that_is_not_known_is_found_out_first() {
    let mut w = waited_for([2], 4);
    let intent = |n: u32| LedgerEntry::new().with_state(LedgerState::Intent).with_detail(n);
    w.memory.ledgers.insert(id(3), intent(3));
    w.memory.ledgers.insert(id(4), intent(4));
    let word = RwWord::from_bits(w.memory.word);
    w.memory.word = word.with_rcount(1).into_bits();
    assert!(w.ask(3, RESOLVE).is_empty(), "the reader in the count may be either of them");
    // the reader in the count was client 4, which has stepped back
    w.memory.word = word.into_bits();
    w.memory.ledgers.insert(id(4), LedgerEntry::new());
    let out = releases(&mut w, 1);
    assert!(is_done(&out, 3) && is_granted(&out, 2), "{out:?}");
    assert_eq!(w.memory.word, owned_by(2).into_bits());
}
