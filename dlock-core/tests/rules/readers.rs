// SPDX-License-Identifier: MIT OR Apache-2.0
//! Readers at the arbiter: whose share is taken off the count, when, and how often.

use crate::common::lock::{id, World};
use dlock_core::clock::NS;
use dlock_core::memory::words::{LedgerEntry, LedgerState, RwWord};
use dlock_core::wire::message::LockType;

/// The arbiter counts again: by its first look alone, the share that was left behind would be that
/// of the reader.
#[test]
fn a_recount_does_not_count_a_reader_that_leaves_meanwhile() {
    let mut w = World::new(LockType::Rw, 3);
    let shares = |n| RwWord::new().with_waiters(true).with_rcount(n).into_bits();
    let noted = |state| LedgerEntry::new().with_state(state).with_detail(3);
    w.memory.ledgers.insert(id(2), noted(LedgerState::HeldShared));
    w.memory.ledgers.insert(id(3), noted(LedgerState::Leaving));
    w.memory.word = shares(2);
    w.memory.moves = Some((id(2), noted(LedgerState::None), shares(1)));
    w.forget(3);
    assert_eq!(w.memory.moves, None);
    w.pass(NS);
    assert_eq!(w.memory.word, 0);
}
