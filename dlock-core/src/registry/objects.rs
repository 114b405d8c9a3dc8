// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state objects that exist, their owners, and the clients that have got them.
//!
//! ```text
//!   create ──▶ alive ──destroy──▶ freed, if no client has got it or its lease is over
//!                        └──▶ destroyed: works only for clients that have got it
//!                                ├─ last release, or a release after the lease ──▶ freed
//!                                └─ create after the lease ──▶ alive, in a new slot
//! ```
//! If clients have still got an object when it is freed, its slot is *quarantined*: the clients'
//! handles are stale, the generation has changed, and the slot is reused when the last stale handle
//! is gone. The lease of an object is over when the leases of its creator and of all clients that
//! have got it are over. No event marks that moment; it only changes the results of the calls
//! above.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::handles::{HandleEntry, What};
use super::ids::Ids;
use super::{Clients, Tables};
use crate::clock::{Lease, ServerTime};
use crate::ids::{ClientId, Generation, Handle, ObjectId, Slot};
use crate::planted::{self, Bug};
use crate::wire::control::{ControlRequest, ObjectGrant};
use crate::wire::status::Status;

/// A client that has got an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectRef {
    /// The client.
    pub client: ClientId,
    /// The client's handle for the object.
    pub handle: Handle,
    /// The end of the lease that the client asked for.
    pub lease_end: ServerTime,
}

/// A state object.
#[derive(Debug)]
pub struct ObjectRecord {
    id: ObjectId,
    name: Arc<[u8]>,
    slot: Slot,
    generation: Generation,
    owner: Option<ClientId>,
    destroyed: bool,
    /// The end of the lease that the creator asked for.
    lease_end: ServerTime,
    refs: Vec<ObjectRef>,
}

impl ObjectRecord {
    /// The id of the object, the same for all clients.
    pub fn id(&self) -> ObjectId {
        self.id
    }
    /// The name of the object.
    pub fn name(&self) -> &[u8] {
        &self.name
    }
    /// The slot of the object's value.
    pub fn slot(&self) -> Slot {
        self.slot
    }
    /// The generation of the slot while the object lives.
    pub fn generation(&self) -> Generation {
        self.generation
    }
    /// The client that may destroy the object; `None`: every client.
    pub fn owner(&self) -> Option<ClientId> {
        self.owner
    }
    /// Whether the object was destroyed: it still works for clients that have got it.
    pub fn is_destroyed(&self) -> bool {
        self.destroyed
    }
    /// The clients that have got the object, in no order.
    pub fn refs(&self) -> &[ObjectRef] {
        &self.refs
    }

    fn is_lease_over(&self, now: ServerTime) -> bool {
        now >= self.lease_end && self.refs.iter().all(|r| now >= r.lease_end)
    }

    /// Whether the object may be freed once it is destroyed.
    fn is_freeable(&self, now: ServerTime) -> bool {
        let is_unused = self.refs.is_empty() || planted::is(Bug::ObjectLeaseIgnored);
        is_unused || self.is_lease_over(now)
    }
}

/// All objects.
#[derive(Debug)]
pub struct Objects {
    by_id: BTreeMap<ObjectId, ObjectRecord>,
    by_name: BTreeMap<Arc<[u8]>, ObjectId>,
    owned: BTreeSet<(ClientId, ObjectId)>,
    /// Clients that have left, whose objects now belong to every client ([`disown`](Self::disown)).
    disowned: BTreeSet<ClientId>,
    /// The number of stale handles of each quarantined slot.
    quarantine: BTreeMap<Slot, usize>,
    ids: Ids,
    objects_max: usize,
}

impl Objects {
    /// An empty table with room for `objects_max` objects, quarantined slots included.
    pub fn new(objects_max: usize) -> Self {
        Self {
            by_id: BTreeMap::new(),
            by_name: BTreeMap::new(),
            owned: BTreeSet::new(),
            disowned: BTreeSet::new(),
            quarantine: BTreeMap::new(),
            ids: Ids::new(),
            objects_max,
        }
    }

    /// Creates an object. The client owns it, but has not got it yet.
    ///
    /// # Errors
    /// `ObjectCreated`: the object exists and no other client owns it (its lease is extended).
    /// `ObjectExisted`: another client owns it. `ObjectDestroyed`: it is destroyed, but clients
    /// have still got it. `ObjectTooMany`: there is no room. `ClientRemoved`: the client is not
    /// known.
    pub fn create(
        &mut self,
        t: &mut Tables<'_>,
        now: ServerTime,
        client: ClientId,
        name: &[u8],
        lease: Lease,
        init: u64,
    ) -> Result<ObjectId, Status> {
        t.clients.get(client).ok_or(Status::ClientRemoved)?;
        let lease_end = lease_end(now, lease);
        let Some(id) = self.id_of(name) else {
            return self.create_new(t, client, name, lease_end, init);
        };
        // Names and ids are in both tables or in none.
        let record = self.by_id.get_mut(&id).expect("an object with a name");
        if !record.destroyed {
            if is_anothers(record, client, &self.disowned) {
                return Err(Status::ObjectExisted);
            }
            record.lease_end = record.lease_end.max(lease_end);
            return Err(Status::ObjectCreated);
        }
        if !record.is_freeable(now) {
            return Err(Status::ObjectDestroyed);
        }
        self.recycle(t, id, client, lease_end, init)?;
        Ok(id)
    }

    /// Gives the client the object of this name; extends the lease if the client has got it
    /// already.
    ///
    /// # Errors
    /// `ObjectNotCreate`: there is no such object. `ObjectDestroyed`: it is destroyed.
    /// `ServerNoResource`: the client has no room for another handle. `ClientRemoved`: the client
    /// is not known.
    pub fn get(
        &mut self,
        t: &mut Tables<'_>,
        now: ServerTime,
        client: ClientId,
        name: &[u8],
        lease: Lease,
    ) -> Result<ObjectGrant, Status> {
        let has_room = t.clients.has_object_room(client)?;
        let object = self.id_of(name).ok_or(Status::ObjectNotCreate)?;
        // Names and ids are in both tables or in none.
        let record = self.by_id.get_mut(&object).expect("an object with a name");
        if record.destroyed {
            return Err(Status::ObjectDestroyed);
        }
        let (slot, generation) = (record.slot, record.generation);
        let lease_end = lease_end(now, lease);
        if let Some(r) = record.refs.iter_mut().find(|r| r.client == client) {
            r.lease_end = r.lease_end.max(lease_end);
            return Ok(ObjectGrant { object, handle: r.handle, slot, generation });
        }
        if !has_room {
            return Err(Status::ServerNoResource);
        }
        let what = What::Object(object, generation);
        let handle = t.clients.add_handle(client, HandleEntry { slot, what });
        record.refs.push(ObjectRef { client, handle, lease_end });
        Ok(ObjectGrant { object, handle, slot, generation })
    }

    /// Drops a client's reference to an object, and its stale handles of the same id. Stale handles
    /// alone are enough: their object was destroyed and freed after the lease.
    ///
    /// # Errors
    /// `ObjectNotGet` if the client has neither a reference nor a stale handle.
    pub fn release(
        &mut self,
        t: &mut Tables<'_>,
        now: ServerTime,
        client: ClientId,
        object: ObjectId,
    ) -> Result<(), Status> {
        let stale = t.clients.remove_stale(client, object);
        for slot in &stale {
            self.leave_quarantine(t, *slot);
        }
        let record = self.by_id.get_mut(&object);
        let found = record.and_then(|record| {
            let at = record.refs.iter().position(|r| r.client == client)?;
            Some((record, at))
        });
        let Some((record, at)) = found else {
            return if stale.is_empty() { Err(Status::ObjectNotGet) } else { Ok(()) };
        };
        let dropped = record.refs.swap_remove(at);
        t.clients.remove_handle(client, dropped.handle);
        let is_over = record.destroyed && record.is_freeable(now);
        if is_over && !planted::is(Bug::ObjectNotFreed) {
            self.free(t, object);
        }
        Ok(())
    }

    /// Destroys an object: no client can get it any more.
    ///
    /// # Errors
    /// `ObjectNotCreate`: no such object. `ObjectInvalidOwner`: another client owns it.
    /// `ObjectDestroyed`: it is destroyed already.
    pub fn destroy(
        &mut self,
        t: &mut Tables<'_>,
        now: ServerTime,
        client: ClientId,
        object: ObjectId,
    ) -> Result<(), Status> {
        let record = self.by_id.get_mut(&object).ok_or(Status::ObjectNotCreate)?;
        if is_anothers(record, client, &self.disowned) {
            return Err(Status::ObjectInvalidOwner);
        }
        if record.destroyed {
            return Err(Status::ObjectDestroyed);
        }
        record.destroyed = true;
        if record.is_freeable(now) {
            self.free(t, object);
        }
        Ok(())
    }

    /// Drops one reference or stale handle of a client that leaves or is fenced. Returns how many
    /// records were visited.
    ///
    /// # Panics
    /// If the handle is not one of an object.
    pub(crate) fn drop_handle(
        &mut self,
        t: &mut Tables<'_>,
        now: ServerTime,
        client: ClientId,
        handle: Handle,
    ) -> usize {
        let entry = t.clients.remove_handle(client, handle);
        let object = match entry.what {
            What::Lock(..) => panic!("{handle:?} is a lock's"),
            What::Stale(_) => {
                self.leave_quarantine(t, entry.slot);
                return 1;
            }
            What::Object(object, _) => object,
        };
        // A handle and the reference in its object are made together.
        let record = self.by_id.get_mut(&object).expect("an object with a handle");
        let visited = 2 * record.refs.len();
        record.refs.retain(|r| r.client != client);
        if record.destroyed && record.is_freeable(now) {
            self.free(t, object);
        }
        visited
    }

    /// Takes the ownership of one object from a client that leaves or is fenced; the client's
    /// references were dropped before. The object is freed if no client has got it, unless its
    /// owner was [disowned](Self::disown); otherwise it has no owner any more. Returns how many
    /// records were visited; `None`: the client owns nothing.
    pub(crate) fn drop_next_owned(
        &mut self,
        t: &mut Tables<'_>,
        now: ServerTime,
        client: ClientId,
    ) -> Option<usize> {
        let object = self.owned_by(client).next()?;
        self.owned.remove(&(client, object));
        // Names and owners are in both tables or in none.
        let record = self.by_id.get_mut(&object).expect("an object with an owner");
        record.owner = None;
        let visited = 1 + 2 * record.refs.len();
        let is_unwanted = record.refs.is_empty() && !self.disowned.contains(&client);
        if is_unwanted || record.destroyed && record.is_freeable(now) {
            self.free(t, object);
        }
        Some(visited)
    }

    /// Drops everything that a client has and owns.
    #[cfg(test)]
    pub fn drop_client(&mut self, t: &mut Tables<'_>, now: ServerTime, client: ClientId) {
        let Some(known) = t.clients.get(client) else { return };
        let handles = known.handles().filter(|(_, e)| !matches!(e.what, What::Lock(..)));
        let handles: Vec<Handle> = handles.map(|(handle, _)| handle).collect();
        for handle in handles {
            self.drop_handle(t, now, client, handle);
        }
        while self.drop_next_owned(t, now, client).is_some() {}
        self.forget_client(client);
    }

    /// Makes every client an owner of this client's objects: each client may get or destroy them,
    /// and they stay when this client is dropped. This client may not own further objects.
    pub fn disown(&mut self, client: ClientId) {
        self.disowned.insert(client);
    }

    /// Forgets a client that has left and owns nothing.
    pub(crate) fn forget_client(&mut self, client: ClientId) {
        self.disowned.remove(&client);
    }

    /// Whether a client owns an object.
    pub fn owns_any(&self, client: ClientId) -> bool {
        self.owned_by(client).next().is_some()
    }

    fn owned_by(&self, client: ClientId) -> impl Iterator<Item = ObjectId> + '_ {
        let range = (client, ObjectId(i32::MIN))..=(client, ObjectId(i32::MAX));
        self.owned.range(range).map(|&(_, object)| object)
    }

    fn id_of(&self, name: &[u8]) -> Option<ObjectId> {
        self.by_name.get(name).copied()
    }

    /// How many clients have got the object of this request.
    pub(crate) fn refs_of(&self, request: &ControlRequest) -> usize {
        use ControlRequest as R;
        let object = match request {
            R::ObjectCreate { name, .. } | R::ObjectGet { name, .. } => self.id_of(name),
            R::ObjectRelease(object) | R::ObjectDestroy(object) => Some(*object),
            _ => None,
        };
        object.and_then(|object| self.by_id.get(&object)).map_or(0, |record| record.refs.len())
    }

    /// Whether an object of this name exists and is not destroyed, so that it cannot be created
    /// again.
    pub(crate) fn is_alive(&self, name: &[u8]) -> bool {
        let record = self.id_of(name).and_then(|id| self.by_id.get(&id));
        record.is_some_and(|record| !record.destroyed)
    }

    /// The object of this id.
    pub fn by_id(&self, object: ObjectId) -> Option<&ObjectRecord> {
        self.by_id.get(&object)
    }
    /// All objects in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &ObjectRecord> + '_ {
        self.by_id.values()
    }
    /// How many objects there are, including destroyed ones that are not freed yet.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }
    /// Whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
    /// How many slots are quarantined.
    pub fn quarantined(&self) -> usize {
        self.quarantine.len()
    }

    /// Whether there is room for another object. Quarantined slots count, because locks need the
    /// slots that are left.
    fn has_room(&self) -> bool {
        self.by_id.len() + self.quarantine.len() < self.objects_max
    }

    fn create_new(
        &mut self,
        t: &mut Tables<'_>,
        client: ClientId,
        name: &[u8],
        lease_end: ServerTime,
        init: u64,
    ) -> Result<ObjectId, Status> {
        if !self.has_room() {
            return Err(Status::ObjectTooMany);
        }
        let id = self.ids.pick(None, name).ok_or(Status::ObjectTooMany)?;
        let given = t.slots.give(t.mem, init, 0).ok_or(Status::ObjectTooMany)?;
        self.ids.uses(id);
        let ((slot, generation), id, name) = (given, ObjectId(id), Arc::from(name));
        self.by_name.insert(Arc::clone(&name), id);
        self.owned.insert((client, id));
        let (owner, destroyed, refs) = (Some(client), false, Vec::new());
        let record = ObjectRecord { id, name, slot, generation, owner, destroyed, lease_end, refs };
        self.by_id.insert(id, record);
        Ok(id)
    }

    /// Creates a destroyed object anew, under its id but in a new slot.
    fn recycle(
        &mut self,
        t: &mut Tables<'_>,
        object: ObjectId,
        client: ClientId,
        lease_end: ServerTime,
        init: u64,
    ) -> Result<(), Status> {
        if !self.has_room() {
            return Err(Status::ObjectTooMany);
        }
        let (slot, generation) = t.slots.give(t.mem, init, 0).ok_or(Status::ObjectTooMany)?;
        // The caller has just found the object.
        let record = self.by_id.get_mut(&object).expect("a destroyed object");
        if let Some(owner) = record.owner.replace(client) {
            self.owned.remove(&(owner, object));
        }
        self.owned.insert((client, object));
        let old = std::mem::replace(&mut record.slot, slot);
        let refs = std::mem::take(&mut record.refs);
        (record.generation, record.lease_end, record.destroyed) = (generation, lease_end, false);
        self.vacate(t, old, &refs);
        Ok(())
    }

    fn free(&mut self, t: &mut Tables<'_>, object: ObjectId) {
        if let Some(record) = self.by_id.remove(&object) {
            self.ids.frees(object.0);
            self.by_name.remove(&record.name);
            if let Some(owner) = record.owner {
                self.owned.remove(&(owner, object));
            }
            self.vacate(t, record.slot, &record.refs);
        }
    }

    /// Empties the slot of an object. The handles of clients that have got the object are stale
    /// from now on.
    fn vacate(&mut self, t: &mut Tables<'_>, slot: Slot, refs: &[ObjectRef]) {
        t.slots.retire(t.mem, slot);
        if refs.is_empty() {
            t.slots.free(slot);
            return;
        }
        if planted::is(Bug::ObjectSlotReusedEarly) {
            for r in refs {
                t.clients.remove_handle(r.client, r.handle);
            }
            return t.slots.free(slot);
        }
        self.quarantine.insert(slot, refs.len());
        for r in refs {
            if let Some(superseded) = t.clients.make_stale(r.client, r.handle) {
                self.leave_quarantine(t, superseded);
            }
        }
    }

    /// Counts one stale handle less for a quarantined slot; frees the slot after the last one.
    fn leave_quarantine(&mut self, t: &mut Tables<'_>, slot: Slot) {
        // Every stale handle refers to a quarantined slot.
        let handles = self.quarantine.get_mut(&slot).expect("a quarantined slot");
        *handles -= 1;
        if *handles == 0 {
            self.quarantine.remove(&slot);
            t.slots.free(slot);
        }
    }

    /// See [`Registry::assert_consistent`](super::Registry::assert_consistent).
    pub(super) fn assert_consistent(&self, clients: &Clients, handles: usize, stale: usize) {
        assert!(self.by_id.len() + self.quarantine.len() <= self.objects_max);
        assert_eq!(self.by_name.len(), self.by_id.len());
        assert!(self.ids.are(self.by_id.keys().map(|id| id.0)));
        let (mut refs, mut owned) = (0, 0);
        for (&id, record) in &self.by_id {
            assert!(id.0 > 0 && id == record.id);
            assert_eq!(self.id_of(&record.name), Some(id));
            assert!(!record.destroyed || !record.refs.is_empty(), "{id:?} is not freed");
            if let Some(owner) = record.owner {
                assert!(clients.get(owner).is_some() && self.owned.contains(&(owner, id)));
                owned += 1;
            }
            let what = What::Object(id, record.generation);
            for r in &record.refs {
                let entry = clients.get(r.client).and_then(|c| c.handle(r.handle));
                assert_eq!(entry, Some(HandleEntry { slot: record.slot, what }));
            }
            refs += record.refs.len();
        }
        assert_eq!((refs, owned), (handles, self.owned.len()));
        assert_eq!(self.quarantine.values().sum::<usize>(), stale);
        let entries = clients.iter().flat_map(|c| c.handles());
        for (_, entry) in entries.filter(|(_, e)| matches!(e.what, What::Stale(_))) {
            assert!(self.quarantine.contains_key(&entry.slot));
        }
    }
}

/// Whether another client owns the object.
fn is_anothers(record: &ObjectRecord, client: ClientId, disowned: &BTreeSet<ClientId>) -> bool {
    record.owner.is_some_and(|owner| owner != client && !disowned.contains(&owner))
}

fn lease_end(now: ServerTime, lease: Lease) -> ServerTime {
    now.plus_ns(lease.ns())
}
