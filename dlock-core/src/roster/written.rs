// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which changes of the roster its writer has kept for a successor, and what the writer does next.
//!
//! ```text
//!   changes come ──────────▶ write ── kept ──▶ a client that waits for them gets its answer
//!   250 ms without any       ▲  └─── failed ─▶ the client is refused
//!     └ failed before, or not in its place ┘   └ another primary has the place: replaced
//! ```

use super::place::Whose;

/// How many changes the writer of the roster has handled, and whether the last write succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    changes: u64,
    is_failing: bool,
    is_replaced: bool,
}

/// What the writer of the roster does when no change has come for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// The writer does nothing.
    Rests,
    /// The writer writes the whole roster once more.
    WritesAgain,
}

/// What an operator must hear about an attempt to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Files of the roster were removed or exchanged, and the writer makes them again.
    Removed,
    /// The writer cannot keep the changes, so the primary refuses clients.
    Failing,
    /// The writer cannot see whether another primary has taken the place, so the primary answers no
    /// client.
    Unseen,
}

impl Written {
    /// For a primary that keeps no roster: every change counts as kept.
    pub fn nowhere() -> Self {
        Self { changes: u64::MAX, ..Self::default() }
    }

    /// Whether the first `told` changes are kept; `None`: the writer has not handled them yet.
    pub fn is_kept(&self, told: u64) -> Option<bool> {
        (self.changes >= told).then_some(!self.is_failing)
    }

    /// Whether the last write failed.
    pub fn is_failing(&self) -> bool {
        self.is_failing
    }

    /// Whether another primary has taken the place of this one.
    pub fn is_replaced(&self) -> bool {
        self.is_replaced
    }

    /// Decides what to do when no change has come for a while. `is_in_place`: whether the roster is
    /// where it was.
    pub fn idle(&mut self, whose: Whose, is_in_place: impl FnOnce() -> bool) -> Idle {
        self.is_replaced |= whose == Whose::Anothers;
        match self.is_replaced || !self.is_failing && is_in_place() {
            true => Idle::Rests,
            false => Idle::WritesAgain,
        }
    }

    /// Whether files of the roster were removed or exchanged. The caller asks this before it writes
    /// the roster.
    pub fn is_removed(&self, is_in_place: impl FnOnce() -> bool) -> bool {
        // before the first write, the roster of a primary is not in its place
        self.changes > 0 && !self.is_failing && !is_in_place()
    }

    /// Records a write with `changes` more changes. `was_removed`: [`Written::is_removed`] before
    /// the write; `whose`: which primary had the list after it.
    pub fn wrote(
        &mut self,
        changes: u64,
        is_kept: bool,
        was_removed: bool,
        whose: Whose,
    ) -> Option<Trouble> {
        self.changes += changes;
        self.is_failing = !is_kept;
        match (is_kept, whose) {
            (true, _) => was_removed.then_some(Trouble::Removed),
            (false, Whose::Anothers) => {
                self.is_replaced = true;
                None
            }
            (false, Whose::Unseen) => Some(Trouble::Unseen),
            (false, Whose::Mine) => Some(Trouble::Failing),
        }
    }
}

impl Whose {
    /// Whether a primary may confirm to a client, whose request it has, that it knows the client.
    /// The client relies on its session from the moment in which it asked. That was before this
    /// check, and a primary that takes the place later waits for the client's whole horizon. If
    /// this primary cannot see which primary has the list, another one may have taken it.
    pub fn may_answer(self) -> bool {
        self == Whose::Mine
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_answered_when_all_that_was_told_is_kept() {
        let mut written = Written::default();
        assert_eq!(written.is_kept(0), Some(true));
        assert_eq!(written.is_kept(1), None);
        assert_eq!(written.wrote(3, true, false, Whose::Mine), None);
        assert_eq!((written.is_kept(3), written.is_kept(4)), (Some(true), None));
        assert_eq!(written.wrote(1, false, true, Whose::Mine), Some(Trouble::Failing));
        assert_eq!((written.is_kept(4), written.is_failing()), (Some(false), true));
        assert_eq!(written.idle(Whose::Mine, || true), Idle::WritesAgain);
        assert_eq!(written.wrote(0, true, false, Whose::Mine), None);
        assert_eq!(written.is_kept(4), Some(true));
        assert_eq!(Written::nowhere().is_kept(u64::MAX), Some(true));
    }

    #[test]
    fn files_that_were_removed_are_written_again() {
        let mut written = Written::default();
        assert!(!written.is_removed(|| false), "it has written no list yet");
        written.wrote(1, true, false, Whose::Mine);
        assert_eq!(written.idle(Whose::Mine, || true), Idle::Rests);
        assert_eq!(written.idle(Whose::Mine, || false), Idle::WritesAgain);
        assert!(written.is_removed(|| false) && !written.is_removed(|| true));
        assert_eq!(written.wrote(0, true, true, Whose::Mine), Some(Trouble::Removed));
        written.wrote(1, false, false, Whose::Mine);
        assert!(!written.is_removed(|| false), "its last write has failed");
    }

    /// A primary that was replaced must not even check whether its files are in their place: the
    /// check takes the name of the roster on this host.
    #[test]
    fn a_primary_that_was_replaced_looks_at_nothing_and_writes_nothing_by_itself() {
        let mut idle = Written::default();
        assert_eq!(idle.idle(Whose::Anothers, || unreachable!()), Idle::Rests);
        assert!(idle.is_replaced());
        let mut written = Written::default();
        assert_eq!(written.wrote(1, false, false, Whose::Anothers), None);
        assert!(written.is_replaced() && written.is_failing());
        assert_eq!(written.idle(Whose::Unseen, || unreachable!()), Idle::Rests);
    }

    #[test]
    fn a_primary_that_cannot_see_its_place_answers_no_client_and_tries_again() {
        let mut unseen = Written::default();
        assert_eq!(unseen.wrote(1, false, false, Whose::Unseen), Some(Trouble::Unseen));
        assert!(!unseen.is_replaced());
        assert_eq!(unseen.idle(Whose::Unseen, || true), Idle::WritesAgain);
        let may_answer = [Whose::Mine, Whose::Anothers, Whose::Unseen].map(Whose::may_answer);
        assert_eq!(may_answer, [true, false, false]);
    }
}
