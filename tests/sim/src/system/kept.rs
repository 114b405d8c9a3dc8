// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checker: a client that is queued with a ticket at its turn is granted the lock, because no other
//! client can hold it.

use dlock_core::clock::NS;
use dlock_core::limits::{FAIR_GRACE, LOOK_S};
use dlock_core::lock::EntryState;
use dlock_core::memory::words::{Ticket, TurnWord};
use dlock_core::wire::message::LockType;
use dlock_core::wire::message::Mode;

use super::state::{Doing, Thread};
use super::World;

/// The longest time until a ticket at its turn is granted: the time to the primary's next look, and
/// one grace, which an unclaimed ticket before it costs.
const KEPT_NS_MAX: u64 = LOOK_S as u64 * NS + FAIR_GRACE.ns();

/// A waiting ticket that has its turn: since when, its client, and the ticket.
pub type Kept = Option<(u64, usize, Ticket)>;

impl World {
    /// Checks that an exclusive ticket whose turn has come is granted within `KEPT_NS_MAX`.
    pub fn nobody_is_kept_waiting(&mut self) {
        let locks = self.sys.plan.locks.len();
        for l in (0..locks).filter(|&l| self.sys.plan.locks[l] == LockType::Fair) {
            let found = self.has_its_turn(l);
            let since = match (self.kept[l], found) {
                (Some((since, c, ticket)), Some(now)) if (c, ticket) == now => since,
                _ => self.sys.now,
            };
            self.kept[l] = found.map(|(c, ticket)| (since, c, ticket));
            if self.sys.now - since > KEPT_NS_MAX {
                let why = format!("liveness: lock {l}: a turn has come, and is not granted");
                return self.sys.fail(why);
            }
        }
    }

    /// The client whose exclusive ticket has its turn, if it is queued and the primary runs.
    fn has_its_turn(&self, l: usize) -> Option<(usize, Ticket)> {
        let primary = self.primary.as_ref()?;
        let sys = &self.sys;
        let slot = sys.slot_of(l, primary)?;
        let turn = TurnWord::from_bits(sys.lock_word(slot, sys.plan.locks[l]));
        let is_calm = sys.put_off_until <= sys.now;
        let waits = |t: &Thread| matches!(t.doing, Doing::Reply { is_wait: true });
        let mut all = sys.clients.iter().enumerate().filter(|(_, c)| waits(&c.threads[l]));
        all.find_map(|(c, client)| {
            let t = &client.threads[l];
            let is_queued = client.up.is_empty() && primary.locks().is_queued(slot, client.id?);
            let entry = t.entry.as_ref().filter(|e| e.state() == EntryState::ExclusiveTicketed)?;
            let ticket = entry.ticket().filter(|&ticket| turn.serves(Mode::Exclusive, ticket))?;
            let is_told = t.answer.is_some() || !client.down.is_empty();
            (is_calm && is_queued && !is_told).then_some((c, ticket))
        })
    }
}
