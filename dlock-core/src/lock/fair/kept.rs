// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fair locks that their client, or another one, keeps after a release ([`super::super::kept`]).

use super::view::word_view;
use super::{EntryState, LockEntry, View};
use crate::memory::words::TurnWord;
use crate::wire::message::Mode;

/// The view of a kept hold that the program acquires.
pub(in crate::lock) fn view_of_kept(e: &LockEntry, mode: Mode) -> View {
    word_view(e, mode)
}

impl LockEntry {
    /// Whether the client has a ticket whose turn it has not seen, behind a client that may keep
    /// the lock without using it: another try asks the arbiter, which asks that client.
    pub fn is_behind_a_keeper(&self) -> bool {
        let is_ticketed =
            matches!(self.state, EntryState::ExclusiveTicketed | EntryState::SharedTicketed);
        is_ticketed && self.fair.turn.told()
    }
}

/// The turn as the arbiter has told it.
pub(in crate::lock) fn sees_turn(e: &mut LockEntry, turn: u64) {
    e.fair.turn = TurnWord::from_bits(turn);
}
