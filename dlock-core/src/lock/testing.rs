// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entry that the unit tests of several modules begin with: client 7, nothing held.

use super::LockEntry;
use crate::ids::{ClientId, Handle, LockId, Slot};
use crate::wire::control::{LockDesc, LockGrant};
use crate::wire::message::LockType;

pub(crate) fn grant() -> LockGrant {
    let (lock, handle, slot) = (LockId(5), Handle(3), Slot(9));
    LockGrant { lock, handle, slot, word: 0, already: false, tokens: false }
}

pub(crate) fn entry(lock_type: LockType) -> LockEntry {
    let desc = LockDesc { name: vec![1], lock_type, lease_s: 0, tokens: false };
    LockEntry::new(ClientId::new(7).unwrap(), 0, lock_type, &grant(), desc)
}
