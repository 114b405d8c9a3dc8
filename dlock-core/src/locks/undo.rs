// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work that the primary does in slices: it undoes what fenced clients had, and checks locks at
//! their deadlines.
//!
//! ```text
//!   fenced ──▶ leaving: it cannot act any more ──step, step, …──▶ gone: id and place are free
//!                       one reference after the other:
//!                       locks ─▶ objects ─▶ what it owns
//!   detached ──▶ deaf: the primary drops its waits, lock by lock
//! ```
//! If a proxied client operates on the words itself from now on, the primary enters that in the
//! client's locks in the same way, one by one; a lock that is used earlier learns of the change
//! then.
//!
//! Between two steps the primary serves other clients. A lock of the leaving client becomes free,
//! or the next waiter's, as soon as the client's reference to it is undone. Until the last
//! reference is undone the client is known: its id, its ledger and its place stay taken.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::{lock_ref, Locks};
use crate::arbiter::Sent;
use crate::budget::work::{Metered, QUANTUM};
use crate::clock::ServerTime;
use crate::ids::{ClientId, Handle, Slot};
use crate::memory::exec::LockMemory;
use crate::registry::{Released, What};

/// How many waits of an ended channel are dropped at once, so that a client with few waits has none
/// left when the call returns.
const DEAF_AT_ONCE: usize = 16;
/// The limit of work units for that; the last wait may exceed it.
const DEAF_WORK: u32 = 4 * QUANTUM;
/// How many of a client's locks learn at once that the client is no longer proxied. One is enough,
/// because most clients attach before they get any lock.
const TOLD_AT_ONCE: usize = 1;

/// The result of a [`step`](Locks::step).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Work units; at most the budget plus one
    /// [`ITEM_WORK_MAX`](crate::budget::work::ITEM_WORK_MAX).
    pub work: u32,
    /// Whether there is more to do now.
    pub more: bool,
    /// A client of which nothing is left; the driver now forgets its ledger.
    pub gone: Option<ClientId>,
}

/// Clients that are leaving.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    /// The next handle of each client to undo.
    next: BTreeMap<ClientId, Handle>,
    /// The client that had the last turn.
    last: Option<ClientId>,
}

impl Leaving {
    pub fn is_empty(&self) -> bool {
        self.next.is_empty()
    }
    pub fn contains(&self, client: ClientId) -> bool {
        self.next.contains_key(&client)
    }

    /// The leaving client to undo next, and its handle: the clients take turns.
    fn turn(&mut self) -> Option<(ClientId, Handle)> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let later = self.next.range((after, Bound::Unbounded)).next();
        let (&client, &handle) = later.or_else(|| self.next.first_key_value())?;
        self.last = Some(client);
        Some((client, handle))
    }
}

impl Locks {
    /// Handles that a client is fenced: [`step`](Self::step) undoes what the client has. From now
    /// on other clients do not see it. `true`: the client had nothing, and is forgotten already.
    pub fn fenced(&mut self, client: ClientId) -> bool {
        let Some(known) = self.known(client) else { return false };
        let has_nothing = known.handles_len() == 0 && !self.registry.objects.owns_any(client);
        self.reinits.remove(&client);
        self.deaf.forget(client); // a reference and its wait are undone together
        self.changing.remove(&client); // no lock of the client need learn of a change
        if self.recovering {
            self.removed.insert(client);
            self.has_told(client); // the client has nothing left to claim
        }
        if has_nothing {
            self.forget_client(client);
        } else {
            self.leaving.next.insert(client, Handle(0));
        }
        has_nothing
    }

    /// Whether the client is fenced, but not yet undone.
    pub fn is_leaving(&self, client: ClientId) -> bool {
        self.leaving.contains(client)
    }

    /// Whether a place will be free soon, because a client is leaving.
    pub fn is_undoing(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Does work that is due, lock by lock: expiry, graces, recounts, and undoing what fenced
    /// clients had. Ends when the budget is used up, when a client is undone, or when nothing more
    /// is due.
    pub fn step(
        &mut self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        budget: u32,
        out: &mut Vec<Sent>,
    ) -> Step {
        let mut mem = Metered::new(mem);
        self.recover(&mut mem);
        let mut gone = None;
        while gone.is_none() && mem.work() < budget {
            let looked = self.look(now, &mut mem, out);
            let dropped = self.drop_next_deaf_wait(now, &mut mem, out);
            let told = self.tell_next(&mut mem) || self.drain_next(now, &mut mem, out);
            let heard = self.tell_next_listener(now, &mut mem, out);
            let Some((client, at)) = self.leaving.turn() else {
                if looked || dropped || told || heard {
                    continue;
                }
                break;
            };
            gone = self.undo_next(now, &mut mem, client, at, out).then_some(client);
        }
        let more = self.next_step().is_some_and(|at| at <= now);
        Step { work: mem.work(), more, gone }
    }

    /// Does all work that is due; for tests and models.
    pub fn tick(&mut self, now: ServerTime, mem: &mut dyn LockMemory, out: &mut Vec<Sent>) {
        while self.step(now, mem, u32::MAX, out).more {}
    }

    /// Checks the next lock whose deadline has passed; returns whether there was one.
    fn look(&mut self, now: ServerTime, mem: &mut Metered<'_>, out: &mut Vec<Sent>) -> bool {
        let Some(slot) = self.arbiter.pop_due(now) else { return false };
        mem.visited(1 + self.arbiter.searched(slot));
        match lock_ref(&self.registry, slot) {
            Some(lock) => self.arbiter.tick(now, mem, lock, out),
            None => self.arbiter.destroyed(slot),
        }
        true
    }

    /// Drops the client's waits, because a grant can no longer reach it.
    pub(super) fn is_deaf(
        &mut self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        client: ClientId,
        out: &mut Vec<Sent>,
    ) {
        let mut mem = Metered::new(mem);
        let mut waits = self.arbiter.take_waits(client);
        for _ in 0..DEAF_AT_ONCE {
            if mem.work() >= DEAF_WORK {
                break;
            }
            let Some(slot) = waits.pop_first() else { break };
            self.drop_wait(now, &mut mem, client, slot, out);
        }
        mem.visited(self.deaf.add(client, waits));
        self.work = self.work.saturating_add(mem.work());
    }

    fn drop_next_deaf_wait(
        &mut self,
        now: ServerTime,
        mem: &mut Metered<'_>,
        out: &mut Vec<Sent>,
    ) -> bool {
        let Some((client, slot)) = self.deaf.next() else { return false };
        self.drop_deaf_wait(now, mem, client, slot, out);
        true
    }

    /// Enters in a client's locks that the client is no longer proxied, if that is so. If there are
    /// many locks, [`step`](Self::step) does so for most of them.
    pub(super) fn changes(&mut self, client: ClientId) {
        if !self.arbiter.is_changing(client) {
            return;
        }
        let mut next = Some(Handle(0));
        for _ in 0..TOLD_AT_ONCE {
            next = next.and_then(|next| self.tell_one(client, next));
        }
        self.told_until(client, next);
    }

    fn tell_next(&mut self, mem: &mut Metered<'_>) -> bool {
        let Some((&client, &next)) = self.changing.first_key_value() else { return false };
        mem.visited(1 + self.arbiter.changing_len());
        let next = self.tell_one(client, next);
        self.told_until(client, next);
        true
    }

    fn told_until(&mut self, client: ClientId, next: Option<Handle>) {
        match next {
            Some(next) => _ = self.changing.insert(client, next),
            None => {
                self.changing.remove(&client);
                self.arbiter.settled(client);
            }
        }
    }

    /// Tells the lock of the first handle from `at` on. Returns the number after that handle;
    /// `None`: there is no such handle.
    fn tell_one(&mut self, client: ClientId, at: Handle) -> Option<Handle> {
        let known = self.registry.clients.get(client)?;
        let handle = known.handle_from(at)?;
        if let Some(entry) = known.handle(handle) {
            self.arbiter.tell(entry.slot);
        }
        Some(Handle(handle.0 + 1))
    }

    /// Drops the wait of an ended channel for this lock, if there is one. This comes before any
    /// request of a later channel about the lock.
    pub(super) fn drop_deaf_wait(
        &mut self,
        now: ServerTime,
        mem: &mut Metered<'_>,
        client: ClientId,
        slot: Slot,
        out: &mut Vec<Sent>,
    ) {
        if self.deaf.take(client, slot) {
            self.drop_wait(now, mem, client, slot, out);
        }
    }

    fn drop_wait(
        &mut self,
        now: ServerTime,
        mem: &mut Metered<'_>,
        client: ClientId,
        slot: Slot,
        out: &mut Vec<Sent>,
    ) {
        mem.visited(1 + self.arbiter.searched(slot));
        if let Some(lock) = lock_ref(&self.registry, slot) {
            self.arbiter.drop_waits(now, mem, lock, client, out);
        }
    }

    /// Undoes one reference of a leaving client: the first from handle `at` on. `true`: the client
    /// is undone.
    fn undo_next(
        &mut self,
        now: ServerTime,
        mem: &mut Metered<'_>,
        client: ClientId,
        at: Handle,
        out: &mut Vec<Sent>,
    ) -> bool {
        mem.visited(1);
        let known = self.registry.clients.get(client);
        let next = known.and_then(|known| known.handle_from(at).map(|at| (at, known.handle(at))));
        if let Some((handle, entry)) = next {
            self.leaving.next.insert(client, Handle(handle.0 + 1));
            match entry.map(|entry| entry.what) {
                Some(What::Lock(..)) => self.undo_lock(now, mem, client, handle, out),
                Some(What::Object(..) | What::Stale(_)) => {
                    let (mut t, _, objects) = self.registry.split(mem);
                    let visited = objects.drop_handle(&mut t, now, client, handle);
                    mem.visited(visited);
                }
                None => {}
            }
            return false;
        }
        let (mut t, _, objects) = self.registry.split(mem);
        if let Some(visited) = objects.drop_next_owned(&mut t, now, client) {
            mem.visited(visited);
            return false;
        }
        self.leaving.next.remove(&client);
        self.forget_client(client);
        true
    }

    fn undo_lock(
        &mut self,
        now: ServerTime,
        mem: &mut Metered<'_>,
        client: ClientId,
        handle: Handle,
        out: &mut Vec<Sent>,
    ) {
        let (mut t, locks, _) = self.registry.split(mem);
        let released = locks.drop_handle(&mut t, client, handle);
        self.reference_dropped(now, mem, client, released, out);
    }

    /// Forgets a client without handles or objects.
    fn forget_client(&mut self, client: ClientId) {
        self.registry.objects.forget_client(client);
        self.registry.clients.remove(client);
        self.last_seq.remove(&client);
        self.one_sided.remove(&client);
        self.access.leave(client);
        self.listeners.forget(client);
        self.arbiter.gone(client);
    }

    /// Undoes at the arbiter what the client had of a lock, after its reference was removed.
    pub(super) fn reference_dropped(
        &mut self,
        now: ServerTime,
        mem: &mut Metered<'_>,
        client: ClientId,
        released: Released,
        out: &mut Vec<Sent>,
    ) {
        // count the records that are searched for the client: the lock's references, and its queue
        let refs = self.registry.locks.refs(released.slot).len();
        mem.visited(1 + refs + self.arbiter.searched(released.slot));
        self.claims.remove(&(released.slot, client));
        self.deaf.take(client, released.slot);
        self.listeners.forget_lock(client, released.slot);
        self.arbiter.waits_no_more(client, released.slot);
        if released.destroyed {
            self.arbiter.destroyed(released.slot);
            self.registry.slots.free(released.slot);
        } else if let Some(lock) = lock_ref(&self.registry, released.slot) {
            self.arbiter.forget(now, mem, lock, client, released.handle, out);
        }
        mem.clear_ledger(client, released.handle);
    }
}
