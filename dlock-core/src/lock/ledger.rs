// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the entry writes into the client's ledger.
//!
//! ```text
//!   machine, or a new channel ─ write ─▶ take_ledger_write ─▶ executor, before anything follows
//! ```

use super::validity::NO_CLOCK;
use super::{Doubt, EntryState, LockEntry};
use crate::memory::words::{LedgerEntry, LedgerState};
use crate::wire::message::{LockType, Mode, WaitNumber};

impl LockEntry {
    /// Prepares the ledger write for a new channel to the same primary: the old channel may have
    /// lost its last ledger write. [`take_ledger_write`](Self::take_ledger_write) returns the
    /// write. While an operation is under way the entry does not know what it has; then the caller
    /// calls this function after the operation.
    pub fn rewrite_ledger(&mut self) {
        use EntryState as S;
        self.lease.clock = NO_CLOCK; // the new channel has a clock estimate of its own
        self.fair.claim_clock = NO_CLOCK; // and the claim of a ticket was cut with the old one
        let is_fair = self.lock_type == LockType::Fair;
        let mode = match self.state {
            _ if self.doubt != Doubt::None => return, // the next operation undoes it
            S::Initialized | S::Unlocked => return self.clear_ledger_entry(),
            // the word names the client
            S::ExclusiveLocked if !is_fair => return self.clear_ledger_entry(),
            S::SharedLocked if !is_fair && !self.is_on_word() => return self.clear_ledger_entry(),
            S::ExclusiveLocked | S::ExclusiveTicketed => Mode::Exclusive,
            S::SharedLocked | S::SharedTicketed => Mode::Shared,
        };
        let held = LedgerEntry::new().with_state(LedgerState::HeldShared);
        self.write(match is_fair {
            true => self.claimed_entry(mode),
            false => held.with_detail(self.stamp),
        });
    }

    pub(super) fn write_waiting(&mut self, wait: WaitNumber) {
        let waiting = LedgerEntry::new().with_state(LedgerState::Waiting);
        self.write(waiting.with_detail(wait.0));
    }

    /// Sets the ledger entry to write before the next chain or request.
    pub(super) fn write(&mut self, entry: LedgerEntry) {
        self.write = Some(entry);
    }

    /// Makes the ledger name nothing: the share is not in the count, or the ticket is done or was
    /// not taken.
    pub(super) fn clear_ledger_entry(&mut self) {
        let stamp = if self.lock_type == LockType::Rw { self.stamp } else { 0 };
        self.write(LedgerEntry::new().with_detail(stamp));
    }

    /// Takes out the ledger entry that is to be written now.
    pub fn take_ledger_write(&mut self) -> Option<LedgerEntry> {
        self.write.take()
    }

    /// Whether a ledger entry is to be written.
    #[inline]
    pub fn has_ledger_write(&self) -> bool {
        self.write.is_some()
    }
}
