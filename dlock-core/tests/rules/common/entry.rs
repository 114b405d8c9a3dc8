// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client's entry of one lock, and the outcomes of its chains.

#![allow(dead_code, reason = "every program uses a part of it")]

use dlock_core::ids::{ClientId, Handle, LockId, Slot};
use dlock_core::lock::LockEntry;
use dlock_core::memory::word_op::{Chain, Outcome, Values, WordOp};
use dlock_core::wire::control::{LockDesc, LockGrant};
use dlock_core::wire::message::LockType;

/// The entry of client 7 for a lock of this kind whose handle it has just got; the lock is free.
pub fn entry(lock_type: LockType) -> LockEntry {
    let (handle, slot) = (Handle(3), Slot(9));
    let grant = LockGrant { lock: LockId(5), handle, slot, word: 0, already: false, tokens: false };
    let desc = LockDesc { name: vec![1], lock_type, lease_s: 0, tokens: false };
    LockEntry::new(ClientId::new(7).unwrap(), 0, lock_type, &grant, desc)
}

/// The outcome of an executed chain whose word operations all found `old`.
pub fn executed(chain: &Chain, old: u64) -> Outcome {
    let mut values = Values::new();
    for word_op in chain.ops() {
        values.push(if matches!(word_op, WordOp::WriteLedger { .. }) { 0 } else { old });
        if matches!(word_op, WordOp::ReadPair { .. }) {
            values.push(0);
        }
    }
    Outcome::Done(values)
}

/// The outcome of one executed word operation that found this word.
pub fn old_word(word: u64) -> Outcome {
    let mut values = Values::new();
    values.push(word);
    Outcome::Done(values)
}
