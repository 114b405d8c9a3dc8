// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notes in the ledger that may come later: where each costs packets, most are never sent.
//!
//! ```text
//!   Intent ─▶ held ─▶ released ─▶ taken again ─▶ …      the ledger says Intent all the time
//!               └ note_late ─▶ Held  └ note_late ─▶ None
//! ```
//! A hold that a fetch-and-add has taken (of a fair lock, or a share of a read-write lock), and
//! that it is free again, may be noted late: until then the ledger says that there may be one
//! (`Intent`), as it does of a client that is stopped right after its fetch-and-add. What follows
//! soon replaces a note that has not been written; before a request, which is answered by what the
//! ledger says, it is written; and who drives the operations writes what is left
//! ([`LockEntry::take_late_note`]) within [`NOTE_LATE_NS`](crate::limits::NOTE_LATE_NS) or two.
//!
//! A *share* is a number in a count, which does not tell whose it is. So when the answer to its
//! release is lost, the note that it is held is never written: who undoes what the ledger names
//! would take another's off.
//!
//! Where the primary executes the chains, it notes itself what they have taken or released
//! ([`NotedBy::Primary`]): then nothing follows a chain, neither soon nor late.
//!
//! An intent *stands* until anything else is written, or may have been: a hold of the same mode can
//! be taken under it once more, without writing it anew, and a share that was taken under it can be
//! released under it.

use super::{EntryState, LockEntry};
use crate::limits::CLAIM_SLACK_S;
use crate::message::{LockType, Mode};
use crate::planted::{self, Bug};
use crate::words::{LedgerEntry, LedgerState};

/// Who writes to the ledger what a chain has taken or released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NotedBy {
    /// The client, at once.
    #[default]
    Client,
    /// The client, late if it may be: where each note costs packets.
    ClientLate,
    /// The primary, which has executed the chain, in the same step. See
    /// [`VERSION_NOTES`](crate::control::VERSION_NOTES).
    Primary,
}

/// What the ledger is told, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Notes {
    by: NotedBy,
    /// What is to be written now.
    now: Option<LedgerEntry>,
    /// What is to be written if nothing else is.
    late: Option<LedgerEntry>,
    /// How many notes were late.
    late_count: u32,
    /// What the ledger says, if more can be taken under it.
    stands: Option<Intent>,
}

/// Of holds of this mode, until this deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Intent {
    mode: Mode,
    until_s: u32,
}

impl Notes {
    /// To be written before anything follows.
    pub(super) fn write(&mut self, entry: LedgerEntry) {
        (self.now, self.late) = (Some(entry), None);
    }

    /// To be written if nothing follows soon.
    pub(super) fn write_late(&mut self, entry: LedgerEntry) {
        if self.by != NotedBy::ClientLate {
            return self.write(entry);
        }
        (self.now, self.late) = (None, Some(entry));
        self.late_count = self.late_count.wrapping_add(1);
    }

    /// A chain has taken what this says. Where the primary has noted that, nothing is to be
    /// written.
    pub(super) fn follow(&mut self, entry: LedgerEntry) {
        match self.by {
            NotedBy::Client | NotedBy::ClientLate => self.write_late(entry),
            NotedBy::Primary => self.is_replaced(),
        }
    }

    /// Whether what was to [`follow`](Self::follow) has taken effect already.
    pub(super) fn are_in_effect(&self) -> bool {
        self.by == NotedBy::Primary
    }

    /// A chain writes something else.
    pub(super) fn is_replaced(&mut self) {
        self.late = None;
        if !planted::is(Bug::IntentStandsOn) {
            self.stands = None;
        }
    }

    /// What follows is answered by what the ledger says.
    pub(super) fn hurry(&mut self) {
        if self.now.is_none() {
            self.now = self.late.take();
        }
    }

    /// Nothing is to be written any more: it was of another primary, or of another lock.
    pub(super) fn forget(&mut self) {
        (self.now, self.late, self.stands) = (None, None, None);
    }

    /// The answer to a release of a share is lost.
    pub(super) fn may_be_released(&mut self) {
        if planted::is(Bug::ShareNotedReleased) {
            self.hurry();
        }
        self.is_replaced();
    }

    /// Until when an intent with this lease claims the turn, and then more tickets.
    pub(super) fn claimed_s(&self, until_s: u32) -> u32 {
        match self.by {
            NotedBy::ClientLate => until_s.saturating_add(CLAIM_SLACK_S),
            NotedBy::Client | NotedBy::Primary => until_s,
        }
    }

    /// The chain that follows writes an intent of holds of this mode, until this deadline.
    pub(super) fn intends(&mut self, mode: Mode, until_s: u32) {
        self.is_replaced();
        self.stands = (self.by == NotedBy::ClientLate).then_some(Intent { mode, until_s });
    }

    /// The hold is taken under the intent that stands, which claims the lock until then and not for
    /// much longer; false if none does.
    pub(super) fn intends_again(&mut self, mode: Mode, until_s: u32) -> bool {
        let is_short = self.stands.is_some_and(|its| its.until_s <= self.claimed_s(until_s));
        let stands = is_short && self.claims_until(mode, until_s);
        if stands {
            (self.now, self.late) = (None, None);
        }
        stands
    }

    /// Whether an intent stands that claims the lock in this mode until then.
    pub(super) fn claims_until(&self, mode: Mode, until_s: u32) -> bool {
        self.stands.is_some_and(|its| its.mode == mode && until_s <= its.until_s)
    }

    /// Whether what is held, in this mode, is released under the intent that it was taken under.
    pub(super) fn stands_for(&self, mode: Mode) -> bool {
        self.claims_until(mode, 0)
    }
}

impl LockEntry {
    /// Who notes what its chains do from here on.
    pub fn noted_by(&mut self, by: NotedBy) {
        (self.notes.by, self.notes.stands) = (by, None);
    }

    /// Whether a release asks the primary at once: it would execute the chain, too, and at the last
    /// release others waited, so that it is likely to be asked after that.
    pub(super) fn asks_at_once(&self) -> bool {
        self.notes.by == NotedBy::Primary && self.pace.is_followed()
    }

    /// How many notes were late so far, if one is; it is looked at once in a while, and written
    /// if it is the same as then.
    pub fn late_note(&self) -> Option<u32> {
        self.notes.late.map(|_| self.notes.late_count)
    }

    /// The note that is late, to be written now. Not while an operation is under way.
    pub fn take_late_note(&mut self) -> Option<LedgerEntry> {
        let note = self.notes.late.take();
        if note.is_some() {
            self.notes.is_replaced();
        }
        note
    }

    /// A chain was refused: of a lock that is neither held nor queued for, nothing that the ledger
    /// may say is so.
    pub(super) fn intends_nothing(&mut self) {
        let is_idle = matches!(self.state, EntryState::Initialized | EntryState::Unlocked);
        if self.notes.by == NotedBy::ClientLate && is_idle {
            self.notes.is_replaced();
            self.clear_ledger_entry();
        }
    }

    /// A look was lost: the ticket may have been looked for by the intent alone.
    pub(super) fn names_ticket(&mut self) {
        let is_known = !self.is_unconfirmed() && self.state == EntryState::ExclusiveTicketed;
        if self.notes.by == NotedBy::ClientLate && is_known {
            let named = LedgerEntry::of_ticket(LedgerState::TicketExclusive, self.ticket);
            self.notes.write(named);
        }
    }

    /// The ledger entry to write now, once.
    pub fn take_ledger_write(&mut self) -> Option<LedgerEntry> {
        let write = self.notes.now.take();
        if write.is_some() {
            self.notes.is_replaced();
        }
        write
    }

    /// Whether something is to be written to the ledger.
    #[inline]
    pub fn has_ledger_write(&self) -> bool {
        self.notes.now.is_some()
    }

    /// What follows is a request that no chain comes before.
    pub(crate) fn hurry_note(&mut self) {
        self.notes.hurry();
    }

    /// Of a ticket that is done, or was never taken.
    pub(super) fn clear_ledger_entry(&mut self) {
        self.notes.write(self.cleared());
    }

    fn cleared(&self) -> LedgerEntry {
        let stamp = if self.lock_type == LockType::Rw { self.stamp } else { 0 };
        LedgerEntry::new().with_detail(stamp)
    }

    /// The same, if no other follows soon.
    pub(super) fn clear_ledger_entry_late(&mut self) {
        self.notes.write_late(self.cleared());
    }
}
