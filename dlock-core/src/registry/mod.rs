// SPDX-License-Identifier: MIT OR Apache-2.0
//! The primary's tables: the clients that it knows, the locks and objects that exist, and which
//! client has got which of them.
//!
//! ```text
//!   Clients ── ClientId ─▶ Client ── Handle ─▶ (Slot, lock | object | stale object)
//!                                 └─ Slot ───▶ Handle          (may this chain touch it?)
//!   Locks ──── name | LockId | Slot ─▶ LockRecord ─▶ [(ClientId, Handle)]
//!   Objects ── name | ObjectId ──────▶ ObjectRecord ─▶ [(ClientId, Handle, lease)]
//!   Slots ──── which slots of the lock memory are in use, and their generations
//! ```
//! A client's handle is made and dropped together with the client's reference in the lock or
//! object. A slot is reused only when no handle refers to it any more.

mod clients;
mod handles;
mod ids;
mod locks;
mod objects;
mod slots;

#[cfg(test)]
pub(crate) mod tests;

pub use clients::{Client, Clients};
pub use handles::{HandleEntry, What, STALE_HANDLES_MAX};
pub use ids::name_hash;
pub use locks::{LockRecord, Locks, Released};
pub use objects::{ObjectRecord, ObjectRef, Objects};
pub use slots::Slots;

use crate::memory::exec::LockMemory;

/// The tables that every change of locks or objects also changes.
pub struct Tables<'a> {
    /// The words of the slots, and the ledgers.
    pub mem: &'a mut dyn LockMemory,
    /// The clients with their handles.
    pub clients: &'a mut Clients,
    /// The slots.
    pub slots: &'a mut Slots,
}

/// All tables of one primary.
#[derive(Debug)]
pub struct Registry {
    /// The clients with their handles.
    pub clients: Clients,
    /// The slots.
    pub slots: Slots,
    /// The locks.
    pub locks: Locks,
    /// The state objects.
    pub objects: Objects,
}

impl Registry {
    /// Empty tables, with as many slots as locks and objects together.
    ///
    /// # Panics
    /// If the slots could not be numbered: far above every limit of [`limits`](crate::limits).
    pub fn new(clients_max: usize, locks_max: usize, objects_max: usize) -> Self {
        let slots = locks_max + objects_max;
        Self {
            // Objects that are freed keep their slots while a client has a stale handle of them.
            clients: Clients::new(clients_max, locks_max, slots),
            slots: Slots::new(slots),
            locks: Locks::new(locks_max, slots),
            objects: Objects::new(objects_max),
        }
    }

    /// The locks, the objects, and the other tables that their changes need.
    pub fn split<'a>(
        &'a mut self,
        mem: &'a mut dyn LockMemory,
    ) -> (Tables<'a>, &'a mut Locks, &'a mut Objects) {
        let tables = Tables { mem, clients: &mut self.clients, slots: &mut self.slots };
        (tables, &mut self.locks, &mut self.objects)
    }

    /// Checks that the tables agree with each other. Visits every entry, so it is only for tests
    /// and the simulator.
    ///
    /// # Panics
    /// If they do not agree, or if the slot of a destroyed lock was not freed.
    pub fn assert_consistent(&self) {
        let (mut locks, mut objects, mut stale) = (0, 0, 0);
        for client in self.clients.iter() {
            for (handle, entry) in client.handles() {
                assert_eq!(client.handle_of(entry.slot), Some(handle));
                match entry.what {
                    What::Lock(..) => locks += 1,
                    What::Object(..) => objects += 1,
                    What::Stale(_) => stale += 1,
                }
            }
        }
        self.locks.assert_consistent(&self.clients, locks);
        self.objects.assert_consistent(&self.clients, objects, stale);
        assert_eq!(self.slots.occupied(), self.locks.len() + self.objects.len());
        assert_eq!(self.slots.retired(), self.objects.quarantined(), "a slot was not freed");
    }
}
