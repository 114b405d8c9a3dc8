// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clients a primary knows.
//!
//! ```text
//!   admit | adopt ──▶ Present ──connection lost──▶ Absent since t ──fenced──▶ removed
//!                        └◀─────── reinit ──────────┘
//! ```

use std::collections::{BTreeMap, BTreeSet};

use super::handles::{HandleEntry, Handles};
use crate::clock::ServerTime;
use crate::control::Secret;
use crate::ids::{ClientId, Handle, ObjectId, Slot};
use crate::status::Status;

/// Random numbers drawn for one client id before admission fails (C API).
pub const ID_ATTEMPTS_MAX: usize = 6;

/// Whether a client has a control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It has.
    Present,
    /// It lost it, and may come back.
    Absent {
        /// When.
        since: ServerTime,
    },
}

/// A client as the primary knows it.
#[derive(Debug)]
pub struct Client {
    id: ClientId,
    secret: Secret,
    presence: Presence,
    handles: Handles,
}

impl Client {
    /// Who it is.
    pub fn id(&self) -> ClientId {
        self.id
    }
    /// The proof it was given.
    pub fn secret(&self) -> Secret {
        self.secret
    }
    /// Whether this is the proof; takes the same time whatever the answer.
    pub fn is_authentic(&self, secret: Secret) -> bool {
        let differing = self.secret.0.iter().zip(secret.0).fold(0, |acc, (a, b)| acc | (a ^ b));
        differing == 0
    }
    /// Whether it has a control connection.
    pub fn presence(&self) -> Presence {
        self.presence
    }
    /// What a handle of it stands for.
    pub fn handle(&self, handle: Handle) -> Option<HandleEntry> {
        self.handles.at(handle)
    }
    /// The handle under which it knows a slot, stale ones included.
    pub fn handle_of(&self, slot: Slot) -> Option<Handle> {
        self.handles.of(slot)
    }
    /// All its handles in order.
    pub fn handles(&self) -> impl Iterator<Item = (Handle, HandleEntry)> + '_ {
        self.handles.iter()
    }
    /// The first number from this one on that is, or was, one of its handles.
    pub fn handle_from(&self, from: Handle) -> Option<Handle> {
        self.handles.number_from(from)
    }
    /// How many handles it has.
    pub fn handles_len(&self) -> usize {
        self.handles.len()
    }
}

/// All clients.
#[derive(Debug)]
pub struct Clients {
    by_id: BTreeMap<ClientId, Client>,
    absent: BTreeSet<(ServerTime, ClientId)>,
    clients_max: usize,
    locks_max: usize,
    objects_max: usize,
}

impl Clients {
    /// Room for so many clients, with handles of so many locks and objects each.
    pub fn new(clients_max: usize, locks_max: usize, objects_max: usize) -> Self {
        let (by_id, absent) = (BTreeMap::new(), BTreeSet::new());
        Self { by_id, absent, clients_max, locks_max, objects_max }
    }

    /// A new client under a random id.
    ///
    /// # Errors
    /// `ServerNoResource` if there is no room; `Error` if no id was found.
    pub fn admit(
        &mut self,
        secret: Secret,
        random: &mut dyn FnMut() -> u32,
    ) -> Result<ClientId, Status> {
        if self.is_full() {
            return Err(Status::ServerNoResource);
        }
        let id = (0..ID_ATTEMPTS_MAX)
            .filter_map(|_| ClientId::new(random() & ClientId::MAX))
            .find(|id| !self.by_id.contains_key(id))
            .ok_or(Status::Error)?;
        self.insert(id, secret);
        Ok(id)
    }

    /// A client that another primary admitted, under the id it has.
    ///
    /// # Errors
    /// `ServerNoResource` if there is no room; `Error` if the id is known here.
    pub fn adopt(&mut self, id: ClientId, secret: Secret) -> Result<(), Status> {
        if self.by_id.contains_key(&id) {
            return Err(Status::Error);
        }
        if self.is_full() {
            return Err(Status::ServerNoResource);
        }
        self.insert(id, secret);
        Ok(())
    }

    /// Forgets a client.
    ///
    /// # Panics
    /// If it has handles: the references of locks and objects must be dropped first.
    pub fn remove(&mut self, id: ClientId) -> bool {
        self.mark_present(id);
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
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
    /// Whether there is no room for another one.
    pub fn is_full(&self) -> bool {
        self.by_id.len() >= self.clients_max
    }

    /// The client has lost its control connection; nothing if it had lost it before.
    pub fn mark_absent(&mut self, id: ClientId, now: ServerTime) {
        if let Some(client) = self.by_id.get_mut(&id) {
            if client.presence == Presence::Present {
                client.presence = Presence::Absent { since: now };
                self.absent.insert((now, id));
            }
        }
    }

    /// The client has a control connection.
    pub fn mark_present(&mut self, id: ClientId) {
        if let Some(client) = self.by_id.get_mut(&id) {
            if let Presence::Absent { since } = client.presence {
                client.presence = Presence::Present;
                self.absent.remove(&(since, id));
            }
        }
    }

    /// The absent client to evict if room is needed: the lowest id that is not to be skipped.
    pub fn absent_candidate(&self, skip: &dyn Fn(ClientId) -> bool) -> Option<ClientId> {
        self.absent.iter().map(|&(_, id)| id).filter(|&id| !skip(id)).min()
    }

    /// The client that has been absent for the longest time, and since when.
    pub fn longest_absent(&self) -> Option<(ClientId, ServerTime)> {
        self.absent.first().map(|&(since, id)| (id, since))
    }

    /// The clients that have been absent for at least `grace_ns`, the longest first.
    pub fn absent_before(
        &self,
        now: ServerTime,
        grace_ns: u64,
    ) -> impl Iterator<Item = ClientId> + '_ {
        let over = move |since: ServerTime| since.plus_ns(grace_ns) <= now;
        self.absent.iter().take_while(move |(since, _)| over(*since)).map(|&(_, id)| id)
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

    /// A new handle for a client that has room for it.
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
        // References exist for known clients only: they are dropped before the client is.
        let client = self.by_id.get_mut(&id).unwrap_or_else(|| panic!("{id:?} is not known"));
        &mut client.handles
    }

    fn insert(&mut self, id: ClientId, secret: Secret) {
        let presence = Presence::Present;
        let client = Client { id, secret, presence, handles: Handles::default() };
        self.by_id.insert(id, client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: Secret = Secret([7; 16]);

    fn id(raw: u32) -> ClientId {
        ClientId::new(raw).unwrap()
    }

    fn draw(numbers: &[u32]) -> impl FnMut() -> u32 + '_ {
        let mut numbers = numbers.iter();
        move || *numbers.next().expect("no more than the allowed attempts")
    }

    #[test]
    fn an_id_is_31_bits_not_zero_and_not_in_use() {
        let mut clients = Clients::new(10, 10, 10);
        assert_eq!(clients.admit(SECRET, &mut draw(&[0x8000_0005])), Ok(id(5)));
        let mut numbers = draw(&[0, 0x8000_0000, 5, 0x8000_0005, 0, 6]);
        assert_eq!(clients.admit(SECRET, &mut numbers), Ok(id(6)));
        let mut numbers = draw(&[0, 5, 6, 5, 6, 0]);
        assert_eq!(clients.admit(SECRET, &mut numbers), Err(Status::Error));
        assert_eq!(clients.len(), 2);
    }

    #[test]
    fn a_full_house_admits_and_adopts_nobody() {
        let mut clients = Clients::new(1, 10, 10);
        assert_eq!(clients.adopt(id(9), SECRET), Ok(()));
        assert_eq!(clients.adopt(id(9), SECRET), Err(Status::Error));
        assert_eq!(clients.adopt(id(8), SECRET), Err(Status::ServerNoResource));
        let refused = clients.admit(SECRET, &mut || 3);
        assert_eq!(refused, Err(Status::ServerNoResource));
        assert!(clients.remove(id(9)) && !clients.remove(id(9)));
        assert_eq!(clients.admit(SECRET, &mut || 3), Ok(id(3)));
    }

    #[test]
    fn only_the_secret_of_the_client_is_authentic() {
        let mut clients = Clients::new(1, 10, 10);
        clients.adopt(id(9), SECRET).unwrap();
        let client = clients.get(id(9)).unwrap();
        assert!(client.is_authentic(SECRET));
        for i in 0..16 {
            let mut other = SECRET;
            other.0[i] ^= 0x80;
            assert!(!client.is_authentic(other));
        }
    }

    #[test]
    fn absence_counts_from_its_beginning_and_ends_with_the_return() {
        let mut clients = Clients::new(9, 10, 10);
        for raw in [3, 1, 2] {
            clients.adopt(id(raw), SECRET).unwrap();
        }
        assert_eq!(clients.longest_absent(), None);
        clients.mark_absent(id(3), ServerTime(10));
        clients.mark_absent(id(2), ServerTime(20));
        clients.mark_absent(id(3), ServerTime(30));
        assert_eq!(clients.longest_absent(), Some((id(3), ServerTime(10))));
        assert_eq!(clients.absent_candidate(&|_| false), Some(id(2)));
        assert_eq!(clients.absent_candidate(&|c| c == id(2)), Some(id(3)));
        clients.mark_present(id(3));
        assert_eq!(clients.get(id(3)).unwrap().presence(), Presence::Present);
        assert_eq!(clients.longest_absent(), Some((id(2), ServerTime(20))));
        assert!(clients.remove(id(2)));
        assert_eq!(clients.longest_absent(), None);
        assert_eq!(clients.absent_candidate(&|_| false), None);
    }
}
