// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arbiter keeps nothing of a lock that it need not know any more.

use crate::common::lock::{id, World, HANDLE, START_S, X};
use dlock_core::clock::{Deadline, Lease};
use dlock_core::memory::word_op::{Word, WordAddr, WordOp};
use dlock_core::memory::words::{AtomicWord, LedgerEntry};
use dlock_core::wire::message::{LockType, Request, WaitNumber};

/// The primary executes an addition of client 1 that finds `old`.
fn adds(w: &mut World, old: u64, add: u64) {
    w.call(|arbiter, _, memory, lock, _, _| {
        let add = WordOp::Faa { addr: WordAddr::new(lock.slot, Word::W0), add };
        arbiter.executed_word_op(memory, lock, (id(1), HANDLE), LedgerEntry::new(), &add, old);
    });
}

#[test]
fn a_share_that_was_given_back_leaves_nothing() {
    let mut w = World::new(LockType::Rw, 1);
    w.arbiter.proxy(id(1));
    let fresh = w.arbiter.clone();
    adds(&mut w, 0, 1);
    assert!(w.arbiter != fresh, "it has one");
    adds(&mut w, 1, u64::MAX);
    assert!(w.arbiter == fresh, "{:?}", w.arbiter);
}

#[test]
fn a_lock_that_is_gone_is_not_looked_at_again() {
    let mut w = World::new(LockType::Atomic, 2);
    w.memory.word =
        AtomicWord::new().with_client(1).with_timeout(Deadline::at_s(START_S + 9)).into_bits();
    let wait = Request::Wait {
        handle: HANDLE,
        mode: X,
        lease: Lease::secs(9),
        wait: WaitNumber(1),
        ticket: None,
    };
    assert!(w.ask(2, wait).is_empty());
    assert!(w.arbiter.next_wakeup().is_some(), "when the lease is over");
    w.call(|arbiter, _, _, lock, _, _| arbiter.destroyed(lock.slot));
    assert_eq!(w.arbiter.next_wakeup(), None);
    w.call(|arbiter, _, _, lock, _, _| assert_eq!(arbiter.waiters(lock.slot), 0));
}
