// SPDX-License-Identifier: MIT OR Apache-2.0
//! Snapshots of locks and clients for the administrator.

use super::{lock_ref, Locks};
use crate::arbiter::fair_view;
use crate::clock::ServerTime;
use crate::ids::{ClientId, LockId, Slot};
use crate::memory::exec::LockMemory;
use crate::memory::word_op::{Word, WordAddr};
use crate::wire::message::LockType;

/// The most clients of one lock whose leases a snapshot reads.
const LEASES_SHOWN_MAX: usize = 64;

/// One lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockSnapshot {
    /// The id of the lock.
    pub lock: LockId,
    /// The name of the lock.
    pub name: Vec<u8>,
    /// The kind of the lock.
    pub lock_type: LockType,
    /// The slot of the lock.
    pub slot: Slot,
    /// The lock word; of a fair lock the low bits of its four counters, as in
    /// [`FairView`](crate::memory::words::FairView).
    pub word: u64,
    /// How many clients have got the lock.
    pub refs: usize,
    /// How many clients are queued at the arbiter.
    pub waiters: usize,
    /// When the last hold is over; `None`: it is free, a hold has no end, or so many clients have
    /// got the lock that what they have is not read.
    pub leases_end: Option<ServerTime>,
}

/// One client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSnapshot {
    /// The id of the client.
    pub client: ClientId,
    /// How many locks and objects the client has got.
    pub handles: usize,
}

/// A count of the clients that are queued at the arbiter, over all locks or a part of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitersSnapshot {
    /// Queued clients.
    pub waiters: usize,
    /// Locks with queued clients.
    pub locks: usize,
    /// The last lock that was counted; `None`: the count has come to the end of the locks.
    pub last: Option<LockId>,
}

fn word(mem: &mut dyn LockMemory, slot: Slot, lock_type: LockType) -> u64 {
    match lock_type {
        LockType::Fair => fair_view(mem, slot).into_bits(),
        _ => mem.read(WordAddr::new(slot, Word::W0)),
    }
}

impl Locks {
    /// Locks with ids above `after` in the order of their ids, at most `max`.
    pub fn locks_snapshot(
        &self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        after: LockId,
        max: usize,
    ) -> Vec<LockSnapshot> {
        let page = self.registry.locks.after(after).take(max);
        let leases_end = |mem: &mut dyn LockMemory, slot| {
            let lock = lock_ref(&self.registry, slot)?;
            let is_short = lock.refs.len() <= LEASES_SHOWN_MAX;
            is_short.then(|| self.arbiter.leases_end(now, mem, lock)).flatten()
        };
        page.map(|record| LockSnapshot {
            lock: record.id(),
            name: record.name().to_vec(),
            lock_type: record.lock_type(),
            slot: record.slot(),
            word: word(mem, record.slot(), record.lock_type()),
            refs: record.refs().len(),
            waiters: self.arbiter.waiters(record.slot()),
            leases_end: leases_end(mem, record.slot()),
        })
        .collect()
    }

    /// Adds to `counted` the waiters of `max` locks at most: those above its last lock.
    pub fn count_waiters(&self, counted: WaitersSnapshot, max: usize) -> WaitersSnapshot {
        let after = counted.last.unwrap_or(LockId(0));
        let (mut sum, mut locks) = (counted, 0);
        sum.last = None;
        for record in self.registry.locks.after(after).take(max) {
            let waiters = self.arbiter.waiters(record.slot());
            sum.waiters += waiters;
            sum.locks += usize::from(waiters > 0);
            (sum.last, locks) = (Some(record.id()), locks + 1);
        }
        sum.last = sum.last.filter(|_| locks == max);
        sum
    }

    /// All clients in the order of their ids.
    pub fn clients_snapshot(&self) -> Vec<ClientSnapshot> {
        let clients = self.registry.clients.iter();
        clients
            .map(|client| ClientSnapshot { client: client.id(), handles: client.handles_len() })
            .collect()
    }

    /// How many (clients, locks, objects) there are.
    pub fn totals(&self) -> (usize, usize, usize) {
        let r = &self.registry;
        (r.clients.len(), r.locks.len(), r.objects.len())
    }
}
