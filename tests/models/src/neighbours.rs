// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients that hand a fair lock on to each other. What they tell counts for less time than passes
//! in one step of a model's time.

use dlock_core::lock::EntryState;

use crate::client::Around;
use crate::state::{Doing, Event, Setup, State};

impl State {
    /// It pauses, and the lock was handed on to it.
    pub(crate) fn can_hear(&self, i: usize, setup: &Setup) -> bool {
        let c = &self.clients[i];
        let is_paused = matches!(c.doing, Doing::Pause) && self.can_step(i, setup);
        let listens = || c.operation.as_ref().and_then(|operation| operation.listens(&c.entry));
        is_paused && self.handed.is_some() && listens() == self.handed
    }

    pub(crate) fn hear(&mut self, i: usize, around: &Around<'_>) {
        self.handed = None; // no other client has this ticket
        self.event(i, around, |operation, entry, now| {
            operation.handed(entry, now.local_ns, now);
        });
        if self.clients[i].entry.state() == EntryState::ExclusiveLocked {
            (around.seen)(Event::Handed);
            let ticket = self.clients[i].entry.ticket();
            if ticket.is_some_and(|ticket| ticket.tx != self.fair_word().nx()) {
                (around.seen)(Event::HandedAhead);
            }
            self.saw_turn(i, around);
        }
        self.settle(i, around);
    }
}
