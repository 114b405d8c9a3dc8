// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the administrator sees.

use super::Locks;
use crate::arbiter::fair_view;
use crate::ids::{ClientId, LockId, Slot};
use crate::memory::exec::LockMemory;
use crate::memory::word_op::{Word, WordAddr};
use crate::wire::message::LockType;

/// One lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockSnapshot {
    /// Its id.
    pub lock: LockId,
    /// Its name.
    pub name: Vec<u8>,
    /// Its kind.
    pub lock_type: LockType,
    /// Where it is.
    pub slot: Slot,
    /// Its word; of a fair lock the low bits of its four numbers, as
    /// [`FairView`](crate::memory::words::FairView) has them.
    pub word: u64,
    /// Clients that have got it.
    pub refs: usize,
    /// Clients queued at the arbiter.
    pub waiters: usize,
}

/// One client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSnapshot {
    /// Its id.
    pub client: ClientId,
    /// Locks and objects it has got.
    pub handles: usize,
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
        mem: &mut dyn LockMemory,
        after: LockId,
        max: usize,
    ) -> Vec<LockSnapshot> {
        let page = self.registry.locks.after(after).take(max);
        page.map(|record| LockSnapshot {
            lock: record.id(),
            name: record.name().to_vec(),
            lock_type: record.lock_type(),
            slot: record.slot(),
            word: word(mem, record.slot(), record.lock_type()),
            refs: record.refs().len(),
            waiters: self.arbiter.waiters(record.slot()),
        })
        .collect()
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
