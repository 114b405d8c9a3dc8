// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a fair lock's operations tell their callers of the lock.

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

/// Shares that are not done, if no exclusive ticket tells them apart.
#[inline]
fn open_shares(e: &LockEntry) -> Option<u32> {
    let Fair { taken, turn, .. } = e.fair;
    (taken.mx() <= turn.nx()).then(|| taken.ms().saturating_sub(turn.ns()))
}

/// The lock after an operation that leaves it held. Of readers: this client is among them.
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

/// The turns with my ticket in place of the next ones, and the time of queuing.
pub(super) fn ticket_view(e: &LockEntry) -> View {
    let Fair { ticket, turn, .. } = e.fair;
    let mine = TakenWord::new().with_mx(ticket.tx).with_ms(ticket.ts);
    // the readers inside, as far as the word tells: those before me if I am next
    let inside = match turn.nx() == ticket.tx {
        true => ticket.ts.saturating_sub(turn.ns()),
        false => 0,
    };
    view(e, FairView::of(mine, turn), inside)
}

impl LockEntry {
    /// Whether views of a fair lock tell the readers inside even where the primary has to be asked
    /// for them. Without, they tell what the words tell.
    pub fn asks_readers(&mut self, asks: bool) {
        self.means.asks_readers = asks;
    }

    /// The request for the number of readers inside, which the view of this result is to tell. A
    /// client that is not inside sends its ticket, so that the primary does not count it.
    pub(crate) fn count_readers(&self, mode: Mode, result: &OpResult) -> Request {
        let ticket = (result.status == Status::Again).then_some(self.fair.ticket);
        Request::CountReaders { handle: self.handle, mode, ticket }
    }

    /// Whether the view of this result is to tell the readers inside, the words do not, and the
    /// primary may be asked. `mode`: how the lock is asked for, or was held.
    pub(crate) fn wants_readers(&self, mode: Mode, result: &OpResult) -> bool {
        let Some(View::Fair { t_value: Some(_), .. }) = result.view else { return false };
        if !self.means.asks_readers {
            return false;
        }
        let Fair { ticket, turn, .. } = self.fair;
        match (result.status, mode) {
            // a place behind others: shares before it are inside, or behind an exclusive ticket
            (Status::Again, _) => turn.nx() != ticket.tx && turn.ns() < ticket.ts,
            (_, Mode::Exclusive) => false, // no reader is inside, or the next has not asked
            (_, Mode::Shared) => open_shares(self).is_none(),
        }
    }
}

impl OpResult {
    /// The same with this number of readers inside a fair lock.
    pub(crate) fn with_readers(mut self, readers: u64) -> Self {
        if let Some(View::Fair { t_value: Some(t_value), .. }) = &mut self.view {
            *t_value = (readers.min(u64::from(FAIR_READERS_MAX)) as u32) << 26;
        }
        self
    }
}
