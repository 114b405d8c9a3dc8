// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client has, and which part of it outlasts the client's session.
//!
//! | what | lapses | until |
//! |---|---|---|
//! | hold of an atomic or fair lock with a lease | no | the lease's end |
//! | reference of an object with a lease | no | the lease's end |
//! | hold without a lease (read-write, or for ever) | yes | |
//! | ticket, wait, hold that is not known for sure | yes | |
//! | reference of a lock without a hold | kept, as long as anything else is | |
//!
//! A lapse is taken in slices of [`LAPSE_SLICE`] handles, or fewer if their locks have many
//! clients: [`Locks::lapse`] is called until it is done, and others are served between.

use super::{lock_ref, Locks};
use crate::arbiter::{LockRef, Sent};
use crate::budget::work::{Metered, ITEM_WORK_MAX};
use crate::clock::ServerTime;
use crate::ids::{ClientId, Handle};
use crate::memory::exec::LockMemory;
use crate::planted::{self, Bug};
use crate::registry::What;

/// Handles looked at by one call of [`Locks::lapse`].
pub const LAPSE_SLICE: usize = 128;
/// Handles looked at by [`Locks::has_something`]; a client with more of them counts as one that
/// has something.
pub const LOOKS_MAX: usize = 256;

/// The end of what a client's session alone has kept, under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lapse {
    client: ClientId,
    rest: Vec<Handle>,
    lapsed: Lapsed,
    /// Work units of the last slice.
    work: u32,
}

/// What is left after a lapse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lapsed {
    /// Something was ended that the client may believe in.
    pub ended: bool,
    /// The end of the last lease that was kept; `None`: nothing was.
    pub until: Option<ServerTime>,
}

impl Lapse {
    /// Whose it is.
    pub fn client(&self) -> ClientId {
        self.client
    }
    /// The work units of its last slice: at most one
    /// [`ITEM_WORK_MAX`](crate::budget::work::ITEM_WORK_MAX), and one lock or object more.
    pub fn work(&self) -> u32 {
        self.work
    }
    /// What has come out so far: everything, if it is done.
    pub fn lapsed(&self) -> Lapsed {
        self.lapsed
    }
}

/// What a client has under one handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Had {
    Nothing,
    /// A hold whose lease is over.
    Expired,
    /// Something without a lease, or not known for sure.
    Unleased,
    /// Something until then.
    Leased(ServerTime),
}

impl Locks {
    /// Whether this client has a hold, a ticket, a wait, or an object reference whose lease runs.
    /// A client with more than [`LOOKS_MAX`] handles is taken for one that has.
    pub fn has_something(
        &self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        client: ClientId,
    ) -> bool {
        let Some(known) = self.registry.clients.get(client) else { return false };
        if known.handles_len() > LOOKS_MAX {
            return true;
        }
        let mut handles = known.handles().map(|(handle, _)| handle);
        let is_something = |had| matches!(had, Had::Unleased | Had::Leased(_));
        handles.any(|handle| is_something(self.had(now, mem, client, handle)))
    }

    /// Handles that [`has_something`](Self::has_something) looks at.
    pub(crate) fn looks(&self, client: ClientId) -> usize {
        let handles = self.registry.clients.get(client).map_or(0, |known| known.handles_len());
        if handles > LOOKS_MAX {
            1
        } else {
            handles
        }
    }

    /// Begins to end what this client has without a lease. It is fenced.
    pub fn begin_lapse(&self, client: ClientId) -> Lapse {
        let known = self.registry.clients.get(client);
        let rest = known.map(|c| c.handles().map(|(handle, _)| handle).collect());
        Lapse { client, rest: rest.unwrap_or_default(), lapsed: Lapsed::default(), work: 0 }
    }

    /// Goes on with a lapse, by at most [`LAPSE_SLICE`] handles and some
    /// [work](Lapse::work); whether it is done.
    pub fn lapse(
        &mut self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        lapse: &mut Lapse,
        out: &mut Vec<Sent>,
    ) -> bool {
        let client = lapse.client;
        let mut mem = Metered::new(mem);
        for _ in 0..LAPSE_SLICE {
            if mem.work() >= ITEM_WORK_MAX {
                break;
            }
            let Some(handle) = lapse.rest.pop() else { break };
            mem.visited(1 + self.searched(client, handle));
            let had = match self.had(now, &mut mem, client, handle) {
                Had::Leased(_) if planted::is(Bug::LeaseLapses) => Had::Unleased,
                had => had,
            };
            match had {
                Had::Leased(until) => {
                    lapse.lapsed.until = lapse.lapsed.until.max(Some(until));
                }
                // a client that was not told of its grant believes in its ticket still
                Had::Unleased | Had::Expired => {
                    lapse.lapsed.ended = true;
                    self.forget_hold(now, &mut mem, client, handle, out);
                }
                Had::Nothing => {}
            }
        }
        lapse.work = mem.work();
        let is_done = lapse.rest.is_empty();
        if is_done && self.recovering {
            self.has_told(client); // what it claims from now on, it claims as one that is back
            self.recover(&mut mem);
        }
        is_done
    }

    /// Records that ending what the client has under this handle searches.
    fn searched(&self, client: ClientId, handle: Handle) -> usize {
        let known = self.registry.clients.get(client);
        let Some(entry) = known.and_then(|known| known.handle(handle)) else { return 0 };
        match entry.what {
            What::Object(object, _) => {
                let record = self.registry.objects.by_id(object);
                record.map_or(0, |record| record.refs().len())
            }
            _ => self.registry.locks.refs(entry.slot).len() + self.arbiter.searched(entry.slot),
        }
    }

    /// Undoes what the client has of a lock, and keeps its reference.
    fn forget_hold(
        &mut self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        client: ClientId,
        handle: Handle,
        out: &mut Vec<Sent>,
    ) {
        let known = self.registry.clients.get(client);
        let Some(entry) = known.and_then(|known| known.handle(handle)) else { return };
        let What::Lock(..) = entry.what else { return };
        self.claims.remove(&(entry.slot, client));
        if let Some(lock) = lock_ref(&self.registry, entry.slot) {
            // as if it had no reference: its ledger entry counts no more
            let others: Vec<_> = lock.refs.iter().copied().filter(|r| r.0 != client).collect();
            let lock = LockRef { refs: &others, ..lock };
            self.arbiter.forget(now, mem, lock, client, handle, out);
            mem.clear_ledger(client, handle);
        }
    }

    /// What the client has under this handle.
    fn had(
        &self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        client: ClientId,
        handle: Handle,
    ) -> Had {
        let known = self.registry.clients.get(client);
        let Some(entry) = known.and_then(|known| known.handle(handle)) else {
            return Had::Nothing;
        };
        match entry.what {
            What::Lock(..) if self.recovering => self.has_claimed(now, entry.slot, client),
            What::Lock(..) => match lock_ref(&self.registry, entry.slot) {
                Some(lock) => self.arbiter.had(now, mem, lock, client, handle),
                None => Had::Nothing,
            },
            What::Object(object, _) => {
                let record = self.registry.objects.by_id(object);
                let refs = record.map_or(&[][..], |record| record.refs());
                let own = refs.iter().find(|r| r.client == client);
                match own.filter(|r| r.lease_end > now) {
                    Some(r) => Had::Leased(r.lease_end),
                    None => Had::Nothing,
                }
            }
            What::Stale(_) => Had::Nothing,
        }
    }
}
