// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the entry wants to have in the client's ledger.
//!
//! ```text
//!   machine, or a new channel ─ write ─▶ take_ledger_write ─▶ executor, before anything follows
//! ```

use super::validity::NO_CLOCK;
use super::{Doubt, EntryState, LockEntry};
use crate::memory::words::{LedgerEntry, LedgerState};
use crate::wire::message::{LockType, Mode, WaitNumber};

impl LockEntry {
    /// A new channel to the same primary: what the old one carried last may be lost, so the
    /// ledger is told again what this client has. [`take_ledger_write`](Self::take_ledger_write)
    /// has it. While an operation is under way the entry does not know: then it is called when that
    /// is over.
    pub fn rewrite_ledger(&mut self) {
        use EntryState as S;
        self.lease.clock = NO_CLOCK; // the new channel has an estimate of its own
        let is_fair = self.lock_type == LockType::Fair;
        let mode = match self.state {
            _ if self.doubt != Doubt::None => return, // it is asked to be undone
            S::Initialized | S::Unlocked => return self.clear_ledger_entry(),
            S::ExclusiveLocked if !is_fair => return self.clear_ledger_entry(), // the word names it
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

    /// To be written before anything follows.
    pub(super) fn write(&mut self, entry: LedgerEntry) {
        self.write = Some(entry);
    }

    /// Of a share that is not in the count, a ticket that is done, or was never taken.
    pub(super) fn clear_ledger_entry(&mut self) {
        let stamp = if self.lock_type == LockType::Rw { self.stamp } else { 0 };
        self.write(LedgerEntry::new().with_detail(stamp));
    }

    /// The ledger entry to write now, once.
    pub fn take_ledger_write(&mut self) -> Option<LedgerEntry> {
        self.write.take()
    }

    /// Whether something is to be written to the ledger.
    #[inline]
    pub fn has_ledger_write(&self) -> bool {
        self.write.is_some()
    }
}
