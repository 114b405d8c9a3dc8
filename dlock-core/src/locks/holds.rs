// SPDX-License-Identifier: MIT OR Apache-2.0
//! The holds of a client, and which of them outlast the client's session.
//!
//! | what | lapses | until |
//! |---|---|---|
//! | hold with a lease | no | the lease's end |
//! | reference of an object with a lease | no | the lease's end |
//! | hold without a lease, or with an endless one | yes | |
//! | ticket, wait, hold that is not known for sure | yes | |
//! | reference of a lock without a hold | kept, as long as anything else is | |
//!
//! The primary does a lapse in slices of [`LAPSE_SLICE`] handles, or fewer if their locks have many
//! clients: the driver calls [`Locks::lapse`] until the lapse is done, and serves other clients
//! between the slices.

use super::{lock_ref, Locks};
use crate::arbiter::{LockRef, Sent};
use crate::budget::work::{Metered, ITEM_WORK_MAX};
use crate::clock::ServerTime;
use crate::ids::{ClientId, Handle};
use crate::memory::exec::LockMemory;
use crate::planted::{self, Bug};
use crate::registry::What;

/// The most handles that one call of [`Locks::lapse`] checks.
pub const LAPSE_SLICE: usize = 128;
/// The most handles that [`Locks::has_something`] checks; a client with more handles counts as
/// having something.
pub const LOOKS_MAX: usize = 256;

/// A lapse under way: it ends everything that only a client's session has kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lapse {
    client: ClientId,
    rest: Vec<Handle>,
    lapsed: Lapsed,
    /// Work units of the last slice.
    work: u32,
}

/// The result of a lapse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lapsed {
    /// Whether the lapse has ended anything on which the client may rely.
    pub ended: bool,
    /// The end of the last lease that stays; `None`: no lease stays.
    pub until: Option<ServerTime>,
}

impl Lapse {
    /// The client.
    pub fn client(&self) -> ClientId {
        self.client
    }
    /// The work units of the last slice: at most [`ITEM_WORK_MAX`], and those of one more lock or
    /// object.
    pub fn work(&self) -> u32 {
        self.work
    }
    /// The result so far; complete when the lapse is done.
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
    /// Something without a lease, or in an unknown state.
    Unleased,
    /// Something with a lease until this time.
    Leased(ServerTime),
}

impl Locks {
    /// Whether this client has a hold, a ticket, a wait, or an object reference whose lease runs.
    /// `true` also for a client with more than [`LOOKS_MAX`] handles.
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

    /// How many handles [`has_something`](Self::has_something) checks.
    pub(crate) fn looks(&self, client: ClientId) -> usize {
        let handles = self.registry.clients.get(client).map_or(0, |known| known.handles_len());
        if handles > LOOKS_MAX {
            1
        } else {
            handles
        }
    }

    /// Begins the lapse of a client, which must already be fenced.
    pub fn begin_lapse(&self, client: ClientId) -> Lapse {
        let known = self.registry.clients.get(client);
        let rest = known.map(|c| c.handles().map(|(handle, _)| handle).collect());
        Lapse { client, rest: rest.unwrap_or_default(), lapsed: Lapsed::default(), work: 0 }
    }

    /// Goes on with a lapse, by at most [`LAPSE_SLICE`] handles and a limited amount of
    /// [work](Lapse::work); returns whether it is done.
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
                // A client that has not received its grant still relies on its ticket.
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
            self.has_told(client); // later claims are those of a client that has come back
            self.recover(&mut mem);
        }
        is_done
    }

    /// How many registry records `lapse` visits for this handle (for the work budget).
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

    /// Undoes what the client has of a lock, but keeps the client's reference to the lock.
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
            // Without its reference, the arbiter does not count the ledger entry of this client,
            // which still names the hold that is undone here.
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
