// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clients that a primary knows, and their handles. [`membership`](crate::membership) decides
//! which clients are present, and which the primary lets in.

use std::collections::BTreeMap;

use super::handles::{HandleEntry, Handles};
use crate::ids::{ClientId, Handle, ObjectId, Slot};
use crate::wire::status::Status;

/// A client as the primary knows it.
#[derive(Debug)]
pub struct Client {
    id: ClientId,
    handles: Handles,
}

impl Client {
    /// The id of the client.
    pub fn id(&self) -> ClientId {
        self.id
    }
    /// The lock or object of a handle.
    pub fn handle(&self, handle: Handle) -> Option<HandleEntry> {
        self.handles.at(handle)
    }
    /// The client's handle for a slot; the handle may be stale.
    pub fn handle_of(&self, slot: Slot) -> Option<Handle> {
        self.handles.of(slot)
    }
    /// All handles of the client, in order.
    pub fn handles(&self) -> impl Iterator<Item = (Handle, HandleEntry)> + '_ {
        self.handles.iter()
    }
    /// The first number from `from` on that is, or was, a handle of the client.
    pub fn handle_from(&self, from: Handle) -> Option<Handle> {
        self.handles.number_from(from)
    }
    /// How many locks the client has got.
    pub fn locks_len(&self) -> usize {
        self.handles.locks_len()
    }
    /// How many handles the client has.
    pub fn handles_len(&self) -> usize {
        self.handles.len()
    }
}

/// All clients.
#[derive(Debug)]
pub struct Clients {
    by_id: BTreeMap<ClientId, Client>,
    clients_max: usize,
    locks_max: usize,
    objects_max: usize,
}

impl Clients {
    /// An empty table with these limits: clients, and locks and objects of each client.
    pub fn new(clients_max: usize, locks_max: usize, objects_max: usize) -> Self {
        Self { by_id: BTreeMap::new(), clients_max, locks_max, objects_max }
    }

    /// Adds a client without handles.
    ///
    /// # Errors
    /// `ServerNoResource` if there is no room; `Error` if a client has the id already.
    pub fn add(&mut self, id: ClientId) -> Result<(), Status> {
        if self.by_id.contains_key(&id) {
            return Err(Status::Error);
        }
        if self.is_full() {
            return Err(Status::ServerNoResource);
        }
        self.by_id.insert(id, Client { id, handles: Handles::default() });
        Ok(())
    }

    /// Forgets a client.
    ///
    /// # Panics
    /// If the client has handles: the references of locks and objects must be dropped first.
    pub fn remove(&mut self, id: ClientId) -> bool {
        let removed = self.by_id.remove(&id);
        if let Some(client) = &removed {
            assert_eq!(client.handles.len(), 0, "{id:?} still has handles");
        }
        removed.is_some()
    }

    /// The client of this id.
    pub fn get(&self, id: ClientId) -> Option<&Client> {
        self.by_id.get(&id)
    }
    /// All clients in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &Client> + '_ {
        self.by_id.values()
    }
    /// How many clients there are.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }
    /// Whether no client is known.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
    /// Whether there is no room for another client.
    pub fn is_full(&self) -> bool {
        self.by_id.len() >= self.clients_max
    }

    /// Whether a client has room for the handle of another lock.
    pub(super) fn has_lock_room(&self, id: ClientId) -> Result<bool, Status> {
        let client = self.by_id.get(&id).ok_or(Status::ClientRemoved)?;
        Ok(!client.handles.is_full_of_locks(self.locks_max))
    }

    /// Whether a client has room for the handle of another object.
    pub(super) fn has_object_room(&self, id: ClientId) -> Result<bool, Status> {
        let client = self.by_id.get(&id).ok_or(Status::ClientRemoved)?;
        Ok(!client.handles.is_full_of_objects(self.objects_max))
    }

    /// A new handle. The caller has checked that the client has room for it.
    pub(super) fn add_handle(&mut self, id: ClientId, entry: HandleEntry) -> Handle {
        self.handles_mut(id).add(entry)
    }

    pub(super) fn remove_handle(&mut self, id: ClientId, handle: Handle) -> HandleEntry {
        self.handles_mut(id).remove(handle)
    }

    /// See [`Handles::make_stale`].
    pub(super) fn make_stale(&mut self, id: ClientId, handle: Handle) -> Option<Slot> {
        self.handles_mut(id).make_stale(handle)
    }

    /// See [`Handles::remove_stale`].
    pub(super) fn remove_stale(&mut self, id: ClientId, object: ObjectId) -> Vec<Slot> {
        match self.by_id.get_mut(&id) {
            Some(client) => client.handles.remove_stale(object),
            None => Vec::new(),
        }
    }

    fn handles_mut(&mut self, id: ClientId) -> &mut Handles {
        // Only known clients have references, which are dropped before the client is.
        let client = self.by_id.get_mut(&id).unwrap_or_else(|| panic!("{id:?} is not known"));
        &mut client.handles
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(raw: u32) -> ClientId {
        ClientId::new(raw).unwrap()
    }

    #[test]
    fn a_full_house_takes_nobody() {
        let mut clients = Clients::new(1, 10, 10);
        assert_eq!(clients.add(id(9)), Ok(()));
        assert_eq!(clients.add(id(9)), Err(Status::Error));
        assert_eq!(clients.add(id(8)), Err(Status::ServerNoResource));
        assert!(clients.remove(id(9)) && !clients.remove(id(9)));
        assert_eq!(clients.add(id(8)), Ok(()));
    }
}
