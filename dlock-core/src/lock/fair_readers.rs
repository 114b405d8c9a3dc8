// SPDX-License-Identifier: MIT OR Apache-2.0
//! The readers inside a fair lock, where its view tells them and the word does not.

use super::super::{EntryState, LockEntry, OpResult, View};
use crate::lane;
use crate::limits::FAIR_READERS_MAX;
use crate::message::Mode;
use crate::status::Status;
use crate::words::FairWord;

impl LockEntry {
    /// Whether views of a fair lock tell the readers inside even where the primary has to be asked
    /// for them. Without, they tell what the word tells.
    pub fn asks_readers(&mut self, asks: bool) {
        self.asks_readers = asks;
    }

    /// Whether the view of this result is to tell the readers inside, the word does not, and the
    /// primary may be asked. `mode`: how the lock is asked for, or was held; `was_asked`: the
    /// arbiter has decided.
    pub(crate) fn wants_readers(&self, mode: Mode, was_asked: bool, result: &OpResult) -> bool {
        if !self.asks_readers {
            return false;
        }
        let Some(View::Fair { nx, ns, mx, ms, t_value: Some(_), .. }) = result.view else {
            return false;
        };
        if result.status == Status::Again {
            // a place behind others: shares before it are inside, or behind an exclusive ticket
            let w = FairWord::from_bits(self.word);
            let is_next = lane::distance(w.nx(), self.ticket.tx) == 0;
            return !is_next && lane::distance(w.ns(), self.ticket.ts) != 0;
        }
        let w = FairWord::new().with_nx(nx).with_ns(ns).with_mx(mx).with_ms(ms);
        match (mode, self.state) {
            (Mode::Exclusive, _) => false, // nobody else is inside, or the next has not asked
            (Mode::Shared, EntryState::SharedLocked) if w.open_exclusive() == 0 => {
                was_asked && w.open_shared() > 1
            }
            (Mode::Shared, EntryState::SharedLocked) => lane::plus(self.ticket.ts, 1) != ms,
            (Mode::Shared, _) => w.open_exclusive() != 0 && w.open_shared() != 0,
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
