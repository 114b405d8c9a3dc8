// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a fair lock that an operation returns to its caller.

use super::{Fair, LockEntry, OpResult, View};
use crate::limits::FAIR_READERS_MAX;
use crate::memory::words::{FairView, TakenWord};
use crate::wire::message::{Mode, Request};
use crate::wire::status::Status;

#[inline]
fn view(e: &LockEntry, numbers: FairView, readers: u32) -> View {
    View::Fair {
        nx: numbers.nx(),
        ns: numbers.ns(),
        mx: numbers.mx(),
        ms: numbers.ms(),
        time_out: e.shown(e.lease.time),
        t_value: Some(readers.min(u32::from(FAIR_READERS_MAX)) << 26),
    }
}

/// The number of shares that are not done; `None`: exclusive tickets stand between them, so that
/// the words do not tell which of them hold the lock.
#[inline]
fn open_shares(e: &LockEntry) -> Option<u32> {
    let Fair { taken, turn, .. } = e.fair;
    (taken.mx() <= turn.nx()).then(|| taken.ms().saturating_sub(turn.ns()))
}

/// The lock after an operation that leaves it held. This client counts among the readers.
#[inline]
pub(super) fn word_view(e: &LockEntry, mode: Mode) -> View {
    let readers = match mode {
        Mode::Exclusive => 0,
        Mode::Shared => open_shares(e).unwrap_or(1).max(1),
    };
    view(e, FairView::of(e.fair.taken, e.fair.turn), readers)
}

#[inline]
pub(super) fn released_view(e: &LockEntry, mode: Mode) -> View {
    let readers = match mode {
        Mode::Exclusive => 0,
        Mode::Shared => open_shares(e).unwrap_or(0),
    };
    view(e, FairView::of(e.fair.taken, e.fair.turn), readers)
}

/// The turns, with this client's ticket in place of the next ones, and the time of queuing.
pub(super) fn ticket_view(e: &LockEntry) -> View {
    let Fair { ticket, turn, .. } = e.fair;
    let mine = TakenWord::new().with_mx(ticket.tx).with_ms(ticket.ts);
    // the readers inside as far as the word tells: if this client is next, the shares before its
    // own
    let inside = match turn.nx() == ticket.tx {
        true => ticket.ts.saturating_sub(turn.ns()),
        false => 0,
    };
    view(e, FairView::of(mine, turn), inside)
}

impl LockEntry {
    /// Says whether views of a fair lock count the readers that hold it even where the client has
    /// to ask the primary for that. Otherwise views have what the words tell.
    pub fn asks_readers(&mut self, asks: bool) {
        self.means.asks_readers = asks;
    }

    /// The request for the number of readers that hold the lock, for the view of this result. A
    /// client that does not hold the lock sends its ticket, so that the primary does not count that
    /// one.
    pub(crate) fn count_readers(&self, mode: Mode, result: &OpResult) -> Request {
        let ticket = (result.status == Status::Again).then_some(self.fair.ticket);
        Request::CountReaders { handle: self.handle, mode, ticket }
    }

    /// Whether the view of this result needs the number of readers, the words do not tell it, and
    /// the client may ask the primary. `mode`: the mode in which the operation asks for the lock,
    /// or held it.
    pub(crate) fn wants_readers(&self, mode: Mode, result: &OpResult) -> bool {
        let Some(View::Fair { t_value: Some(_), .. }) = result.view else { return false };
        if !self.means.asks_readers {
            return false;
        }
        let Fair { ticket, turn, .. } = self.fair;
        match (result.status, mode) {
            // shares before this place hold the lock, or stand behind an exclusive ticket
            (Status::Again, _) => turn.nx() != ticket.tx && turn.ns() < ticket.ts,
            // no reader holds the lock, or the next reader has not asked
            (_, Mode::Exclusive) => false,
            (_, Mode::Shared) => open_shares(self).is_none(),
        }
    }
}

impl OpResult {
    /// This result with the number of readers that hold a fair lock.
    pub(crate) fn with_readers(mut self, readers: u64) -> Self {
        if let Some(View::Fair { t_value: Some(t_value), .. }) = &mut self.view {
            *t_value = (readers.min(u64::from(FAIR_READERS_MAX)) as u32) << 26;
        }
        self
    }
}
