// SPDX-License-Identifier: MIT OR Apache-2.0
//! Word operations that the primary executes for a client: whether it may, and what it does after
//! them.
//!
//! ```text
//!   chain ─▶ may ─ yes ─▶ executed ─▶ executed_word_op ─▶ what a proxied client has
//!                                                     └─▶ its ledger says so: no write follows
//! ```
//! The primary knows at once what such an operation did. So for a read-write lock it writes into
//! the client's ledger what the client would have to write next, and the client writes nothing
//! ([`LockEntry::is_by_primary`](crate::lock::LockEntry::is_by_primary)).

use super::{fair, rw, Arbiter, LockRef};
use crate::ids::{ClientId, Handle, Slot};
use crate::memory::exec::LockMemory;
use crate::memory::word_op::WordOp;
use crate::memory::words::{LedgerEntry, LedgerState, RwWord, TakenWord, TurnWord};
use crate::planted::{self, Bug};
use crate::wire::message::{LockType, Mode};
use crate::wire::status::Status;

impl Arbiter {
    /// Checks whether the primary may execute this word operation for a client, on the word of a
    /// read-write or fair lock that is `seen` now.
    ///
    /// # Errors
    /// `Invalid`: no client makes such a change to a lock of this kind, or this client may not make
    /// it now. `Fail`: the ticket counters of a fair lock have no room now.
    pub fn may(
        &self,
        slot: Slot,
        lock_type: LockType,
        client: ClientId,
        seen: u64,
        word_op: &WordOp,
    ) -> Result<(), Status> {
        let (state, proxied) = (self.locks.get(&slot), self.proxied.contains(client));
        match (lock_type, *word_op) {
            // a hold with a lease is not its client's to end, or to add to
            (LockType::Rw, WordOp::Faa { .. })
                if proxied && state.is_some_and(|s| s.rw.leased(client).is_some()) =>
            {
                Err(Status::Invalid)
            }
            (LockType::Rw, WordOp::Faa { add, .. }) => {
                let has_share = state.is_some_and(|s| s.rw.knows(client));
                rw::may_add(seen, add, proxied.then_some(has_share))
            }
            (LockType::Fair, WordOp::Faa { add, .. }) => fair::may_take(seen, add),
            (LockType::Fair, WordOp::Cas { expect, swap, .. }) => {
                let known = proxied.then_some(state.map(|s| &s.fair));
                fair::may_pass_on(expect, swap, client, known)
            }
            _ => Err(Status::Invalid),
        }
    }

    /// Handles that the primary has executed a word operation on the word of a lock for this client
    /// (a tcp client), and found `old`: the primary now knows what the client has taken or given
    /// back, and writes it into the client's ledger. `noted`: what the same chain has written into
    /// that ledger before.
    pub fn executed_word_op(
        &mut self,
        mem: &mut dyn LockMemory,
        lock: LockRef<'_>,
        (client, handle): (ClientId, Handle),
        noted: LedgerEntry,
        word_op: &WordOp,
        old: u64,
    ) {
        let proxied = self.proxied.contains(client);
        let intent = Some(noted).filter(|noted| noted.state() == LedgerState::Intent);
        let note = match (lock.lock_type, *word_op) {
            (LockType::Rw, WordOp::Faa { add, .. }) => {
                if proxied {
                    let state = self.state(lock.slot);
                    match add {
                        1 => _ = state.rw.shares.insert(client),
                        _ => state.rw.gave_back(client),
                    }
                }
                let is_inside = add == 1 && RwWord::from_bits(old).admits_reader();
                let intent = intent.filter(|_| is_inside);
                intent.map(|intent| intent.with_state(LedgerState::HeldShared))
            }
            (LockType::Fair, WordOp::Faa { add, .. }) => {
                if proxied {
                    let mode = match add {
                        TakenWord::TAKE_EXCLUSIVE => Mode::Exclusive,
                        _ => Mode::Shared,
                    };
                    let entry = mem.ledger(client, handle);
                    let (taken, slot) = (TakenWord::from_bits(old), lock.slot);
                    let fair = &mut self.state(slot).fair;
                    fair::issued(mem, fair, slot, client, (mode, taken), entry);
                }
                None
            }
            (LockType::Fair, WordOp::Cas { addr, expect, .. }) if old == expect => {
                if TurnWord::from_bits(old).parked() {
                    mem.wake(addr);
                }
                if let Some(state) = self.locks.get_mut(&lock.slot).filter(|_| proxied) {
                    fair::passed_on(&mut state.fair, client);
                }
                None
            }
            _ => None,
        };
        if let Some(note) = note.filter(|_| !planted::is(Bug::PrimaryNotesNothing)) {
            mem.set_ledger(client, handle, note);
        }
        self.drop_if_empty(lock.slot);
    }
}
