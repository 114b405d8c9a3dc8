// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients that keep locks after their release: which they may keep, and what a drain asks of them.
//!
//! ```text
//!   Keep ─▶ as_allowed ─▶ arbiter           drain ─▶ asks_keepers ─ Contended ─▶ given back
//! ```

use super::{lock_ref, Locks};
use crate::arbiter::Sent;
use crate::budget::work::Metered;
use crate::clock::{Lease, ServerTime};
use crate::ids::{ClientId, Slot};
use crate::memory::exec::LockMemory;
use crate::planted::{self, Bug};
use crate::rights::Right;
use crate::wire::message::Request;

/// The most keepers of one lock that one look of a drain asks.
const ASKED_MAX: usize = 32;

impl Locks {
    /// The request as the arbiter executes it. In a drain a client keeps no lock, and it never
    /// keeps a lock that it may not acquire: both are released.
    pub(super) fn as_allowed(&self, client: ClientId, name: &[u8], request: Request) -> Request {
        let Request::Keep { handle, mode, ticket, .. } = request else { return request };
        let may = self.access.allows(client, Right::to_lock(mode), name);
        let is_calm = !self.is_draining() || planted::is(Bug::DrainKeeps);
        match may && is_calm {
            true => request,
            false => Request::Keep { handle, mode, ticket, lease: Lease::NONE },
        }
    }

    /// Tells clients that may keep this lock without using it that it is wanted.
    pub(super) fn asks_keepers(
        &mut self,
        now: ServerTime,
        mem: &mut Metered<'_>,
        slot: Slot,
        out: &mut Vec<Sent>,
    ) {
        let Some(lock) = lock_ref(&self.registry, slot) else { return };
        let keepers = self.arbiter.keepers(lock);
        let mut asked: Vec<ClientId> =
            keepers.into_iter().filter(|&client| self.listeners.asks(client, slot)).collect();
        asked.truncate(ASKED_MAX);
        for client in asked {
            self.tell_listener(now, mem, client, slot, out);
        }
    }

    /// How many clients may keep the lock of this slot without using it.
    pub fn keepers(&self, slot: Slot) -> usize {
        lock_ref(&self.registry, slot).map_or(0, |lock| self.arbiter.keepers(lock).len())
    }

    /// Records that a client uses the lock that it keeps.
    pub(super) fn is_in_use(
        &mut self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        (client, slot): (ClientId, Slot),
        out: &mut Vec<Sent>,
    ) {
        if let Some(lock) = lock_ref(&self.registry, slot) {
            self.arbiter.in_use(now, mem, lock, client, out);
        }
    }
}
