// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client that waits far behind in the queue of a fair lock, and its neighbours: those of the
//! same user on this host that wait for the same lock.
//!
//! ```text
//!   unlock ─ others wait ─▶ released ─▶ Place::serves ─ was my own turn announced? ─▶ trust
//!   lock ─ others are before it ─▶ pass ─ trust ─▶ Place::sleep: until it is next
//!                                       └ none ──▶ pass::pass: looks now and then
//! ```
//! Only a client whose turns were announced lately sleeps: those before it in the queue are its
//! neighbours then. A client that no neighbour has woken from its sleep looks at the word from time
//! to time again, until its turns are announced.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

use dlock_core::control::LockDesc;
use dlock_core::ids::{Epoch, LockId, Slot};
use dlock_core::lock::{OpResult, View};
use dlock_core::message::LockType;
use dlock_core::status::Status;
use dlock_core::words::Ticket;
use dlock_fabric::neighbours::{Neighbours, Place, Slept, SLEEP_MAX};

use crate::pass::{pass, Pause};
use crate::table::ClientLock;

/// Announced turns after which a client relies on being told.
const TRUST: u8 = 3;
/// So many more are not worth more.
const TRUST_MAX: u8 = 8;
/// What an unannounced turn takes off.
const MISSED: u8 = 2;
/// What is taken off for a sleep that lasted until its time was over: the whole queue may have
/// waited for this client.
const OVERSLEPT: u8 = 4;

/// What a client knows of its neighbours at one lock.
#[derive(Debug)]
pub(crate) struct Neighbour {
    /// Of the lock's name. Programs that were built with different versions of the standard library
    /// may hash differently: then they do not understand each other's hints.
    name: DefaultHasher,
    trust: u8,
}

/// Where a waiter is to be told that it is next.
#[derive(Clone, Copy)]
pub(crate) struct Bed {
    place: &'static Place,
    mark: u16,
    tx: u16,
}

impl Neighbour {
    pub(crate) fn of(desc: &LockDesc) -> Self {
        let mut name = DefaultHasher::new();
        desc.name.hash(&mut name);
        Self { name, trust: 0 }
    }

    /// Tells the lock from others in the same place: those of another primary, and those that had
    /// its name before.
    fn mark(&self, lock: LockId, epoch: Epoch) -> u16 {
        let mut mark = self.name.clone();
        (lock.0, epoch.0).hash(&mut mark);
        mark.finish() as u16
    }

    /// Whether the turn that has ended was announced.
    fn counts(&mut self, was_told: bool) {
        self.trust = match was_told {
            true => (self.trust + 1).min(TRUST_MAX),
            false => self.trust.saturating_sub(MISSED),
        };
    }

    fn place(slot: Slot) -> Option<&'static Place> {
        Some(Neighbours::own()?.place(slot.0))
    }
}

impl ClientLock {
    /// The exclusive ticket of a fair lock was released, with this result: its neighbours are told.
    pub(crate) fn tells_neighbours(&mut self, ticket: Ticket, result: &OpResult) {
        let Some(View::Fair { nx, mx, .. }) = result.view else { return };
        let next = ticket.tx.wrapping_add(1);
        let is_empty = mx == next && !self.entry.is_followed();
        if result.status != Status::Success || nx != next || is_empty {
            return; // nobody waits, or the arbiter has given the turn to a later ticket
        }
        if let Some(place) = Neighbour::place(self.entry.slot()) {
            let was_told = place.serves(self.mark(), next);
            self.neighbour.counts(was_told);
        }
    }

    /// The ticket whose release is to be told to neighbours: that of a fair lock which is reached
    /// over a network without the primary.
    #[inline]
    pub(crate) fn ticket_to_tell(&self) -> Option<Ticket> {
        let is_fair = self.entry.lock_type() == LockType::Fair;
        let is_told = is_fair && !self.is_local && self.exec.is_one_sided();
        self.entry.ticket().filter(|_| is_told)
    }

    pub(crate) fn mark(&self) -> u16 {
        self.neighbour.mark(self.entry.lock(), self.binding.epoch())
    }

    /// Where this client may sleep, with so many turns of others before its own.
    pub(crate) fn bed(&self, ahead: u16) -> Option<Bed> {
        if ahead <= 1 || self.neighbour.trust < TRUST {
            return None;
        }
        let tx = self.ticket_to_tell()?.tx;
        let place = Neighbour::place(self.entry.slot())?;
        Some(Bed { place, mark: self.mark(), tx })
    }

    /// It has slept; what its neighbours have told it is what it goes by the next time.
    pub(crate) fn has_slept(&mut self, slept: Slept) {
        if slept == Slept::Late {
            self.neighbour.trust = self.neighbour.trust.saturating_sub(OVERSLEPT);
        }
    }
}

impl Bed {
    /// Lets time pass until it is the next one's turn, or so.
    pub(crate) fn pass(self, pause: Pause, since: Instant) -> Slept {
        let Self { place, mark, tx } = self;
        // as long as the turns before may take, if one of them is slower than they were lately
        let time = (4 * pause.time + SLEEP_MAX / 2).min(SLEEP_MAX);
        let slept = place.sleep(mark, tx, tx.wrapping_sub(pause.ahead), time);
        if slept == Slept::No {
            pass(pause, since); // the word says otherwise
        }
        slept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_of_a_name_a_lock_and_a_primary() {
        let desc = LockDesc { name: b"a".to_vec(), lock_type: LockType::Fair, lease_s: 0 };
        let other = Neighbour::of(&LockDesc { name: b"b".to_vec(), ..desc.clone() });
        let (lock, epoch) = (LockId(5), Epoch(1 << 40));
        let mark = Neighbour::of(&desc).mark(lock, epoch);
        assert_eq!(mark, Neighbour::of(&desc).mark(lock, epoch));
        assert_ne!(mark, other.mark(lock, epoch));
        assert_ne!(mark, Neighbour::of(&desc).mark(LockId(6), epoch));
        assert_ne!(mark, Neighbour::of(&desc).mark(lock, Epoch(1 + (1 << 40))));
    }

    #[test]
    fn only_who_was_told_lately_relies_on_it() {
        let desc = LockDesc { name: b"a".to_vec(), lock_type: LockType::Fair, lease_s: 0 };
        let mut neighbour = Neighbour::of(&desc);
        for n in 1..=20 {
            neighbour.counts(true);
            assert_eq!(neighbour.trust >= TRUST, n >= 3);
        }
        for missed in 1..=4 {
            neighbour.counts(false);
            assert_eq!(neighbour.trust >= TRUST, missed < 3);
        }
        assert_eq!(neighbour.trust, 0);
    }
}
