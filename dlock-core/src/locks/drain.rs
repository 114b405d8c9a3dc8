// SPDX-License-Identifier: MIT OR Apache-2.0
//! A drain: no client gets a lock any more, until no lock is held.
//!
//! ```text
//!   begins ──▶ waits:   lock by lock; each queued client gets the answer `NotReady`
//!              ──▶ holds: lock by lock, up to the first that is held; the drain looks again later
//!              ──▶ idle
//! ```
//! The primary refuses with `NotReady`: chains that take a lock, and `Wait`, `Poll`, `Steal` and
//! `TakeTicket`. It serves releases, extends and questions, so a hold lasts for as long as its
//! client wants. A ticket of a fair lock that was taken before the drain still comes to its turn.
//!
//! During a drain the primary must execute every word operation itself: it offers no other fabric,
//! and [`Membership::drains`](crate::membership::Membership) cuts off the clients that reach the
//! memory themselves and come back by themselves; the drain is not over while there are others.
//! Because no lock can be taken anew otherwise, a lock that was found free stays free: the drain
//! looks at each lock once.

use super::{lock_ref, Had, Locks};
use crate::arbiter::Sent;
use crate::budget::work::Metered;
use crate::clock::{ServerTime, NS};
use crate::ids::{ClientId, Handle, LockId, Slot};
use crate::memory::exec::LockMemory;
use crate::memory::word_op::WordOp;
use crate::memory::words::{AtomicWord, RwWord};
use crate::planted::{self, Bug};
use crate::wire::message::{LockType, Request};

/// The time between two looks at a lock that is held.
const LOOK_EVERY_NS: u64 = NS / 10;

/// A drain under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    /// The waits of the locks up to this one have ended.
    Waits(LockId),
    /// The locks up to this one are free; the drain looks at the next one at this time.
    Holds(LockId, ServerTime),
    /// No lock is held.
    Idle,
}

/// The progress of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draining {
    /// The primary is ending the waits.
    EndsWaits,
    /// A client holds this lock, or held it at the last look; other locks may be held as well.
    Held(LockId),
    /// No lock is held.
    Idle,
}

impl Locks {
    /// Begins a drain, or ends it.
    pub(crate) fn drain(&mut self, is_on: bool) {
        self.drain = match self.drain {
            Some(drain) if is_on => Some(drain),
            _ => is_on.then_some(Drain::Waits(LockId(i32::MIN))),
        };
    }

    /// Whether a drain is under way, so that no client gets a lock.
    pub fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    /// The progress of the drain; `None`: there is none.
    pub fn draining(&self) -> Option<Draining> {
        Some(match self.drain? {
            Drain::Waits(_) => Draining::EndsWaits,
            Drain::Holds(before, _) => match self.registry.locks.after(before).next() {
                Some(lock) => Draining::Held(lock.id()),
                None => Draining::Idle,
            },
            Drain::Idle => Draining::Idle,
        })
    }

    /// The name of a lock.
    pub fn name_of(&self, lock: LockId) -> Option<&[u8]> {
        self.registry.locks.by_id(lock).map(|record| record.name())
    }

    /// When the drain next has something to do.
    pub(super) fn next_drain(&self) -> Option<ServerTime> {
        match self.drain? {
            Drain::Waits(_) if !self.recovering => Some(ServerTime(0)),
            Drain::Holds(_, at) if !self.recovering => Some(at),
            _ => None,
        }
    }

    /// Whether a drain refuses this request, because the request may get its client a lock.
    pub(super) fn refuses(&self, request: &Request) -> bool {
        let gets = matches!(
            request,
            Request::Wait { .. }
                | Request::Poll { .. }
                | Request::Steal { .. }
                | Request::Try { .. }
                | Request::TakeTicket { .. }
        );
        self.is_draining() && gets && !planted::is(Bug::DrainQueues)
    }

    /// Whether a drain refuses this word operation, because it takes a lock.
    pub(super) fn refuses_op(&self, client: ClientId, lock_type: LockType, op: &WordOp) -> bool {
        let takes = match (lock_type, *op) {
            (LockType::Atomic, WordOp::Cas { expect, swap, .. }) => {
                swap != 0 && AtomicWord::from_bits(expect).client() != client.get()
            }
            (LockType::Rw, WordOp::Cas { expect, swap, .. }) => {
                RwWord::from_bits(expect).client() != RwWord::from_bits(swap).client()
                    && expect == 0
            }
            (LockType::Rw, WordOp::Faa { add, .. }) => add == 1,
            (LockType::Fair, WordOp::Faa { .. }) => true,
            _ => false,
        };
        self.is_draining() && takes && !planted::is(Bug::DrainTakes)
    }

    /// Goes on with the drain by one lock; returns whether there was something to do.
    pub(super) fn drain_next(
        &mut self,
        now: ServerTime,
        mem: &mut Metered<'_>,
        out: &mut Vec<Sent>,
    ) -> bool {
        if self.next_drain().is_none_or(|at| at > now) {
            return false;
        }
        let Some(drain @ (Drain::Waits(before) | Drain::Holds(before, _))) = self.drain else {
            return false;
        };
        let next = self.registry.locks.after(before).next();
        let next = next.map(|lock| (lock.id(), lock.slot()));
        mem.visited(1);
        self.drain = Some(match (drain, next) {
            (Drain::Waits(_), Some((id, slot))) => {
                self.end_waits(now, mem, slot, out);
                Drain::Waits(id)
            }
            (Drain::Waits(_), None) => Drain::Holds(LockId(i32::MIN), now),
            (_, None) => Drain::Idle,
            (_, Some((id, slot))) => match self.holder(now, mem, slot).is_none() {
                true => Drain::Holds(id, now),
                false => {
                    self.asks_keepers(now, mem, slot, out);
                    Drain::Holds(before, now.plus_ns(LOOK_EVERY_NS))
                }
            },
        });
        true
    }

    fn end_waits(
        &mut self,
        now: ServerTime,
        mem: &mut Metered<'_>,
        slot: Slot,
        out: &mut Vec<Sent>,
    ) {
        mem.visited(self.arbiter.searched(slot));
        if let Some(lock) = lock_ref(&self.registry, slot) {
            self.arbiter.end_waits(now, mem, lock, out);
        }
    }

    /// A client that may hold the lock.
    fn holder(&self, now: ServerTime, mem: &mut Metered<'_>, slot: Slot) -> Option<ClientId> {
        let lock = lock_ref(&self.registry, slot)?;
        mem.visited(lock.refs.len() + self.arbiter.searched(slot));
        let mut refs = lock.refs.iter();
        let holds = |&&(client, handle): &&(ClientId, Handle)| {
            self.arbiter.may_hold(now, mem, lock, client, handle)
        };
        refs.find(holds).map(|&(client, _)| client)
    }

    /// The id of the lock of this name, and the clients that may hold it; `None`: there is no such
    /// lock.
    pub(crate) fn holders(
        &mut self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        name: &[u8],
    ) -> Option<(LockId, Vec<ClientId>)> {
        let lock = self.registry.locks.by_name(name)?.id();
        let refs = self.registry.locks.by_id(lock)?.refs();
        let mut clients: Vec<ClientId> = refs.iter().map(|&(client, _)| client).collect();
        clients.retain(|&client| self.has_still(now, mem, client, lock));
        Some((lock, clients))
    }

    /// Whether a client may hold this lock.
    pub(crate) fn has_still(
        &mut self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        client: ClientId,
        lock: LockId,
    ) -> bool {
        let Some(record) = self.registry.locks.by_id(lock) else { return false };
        let Some(lock) = lock_ref(&self.registry, record.slot()) else { return false };
        let mut mem = Metered::new(mem);
        mem.visited(lock.refs.len() + self.arbiter.searched(lock.slot));
        let handle = lock.refs.iter().find(|r| r.0 == client).map(|r| r.1);
        let has = handle.is_some_and(|handle| match self.recovering {
            true => !matches!(self.has_claimed(now, lock.slot, client), Had::Nothing),
            false => self.arbiter.may_hold(now, &mut mem, lock, client, handle),
        });
        self.work = self.work.saturating_add(mem.work());
        has
    }
}
