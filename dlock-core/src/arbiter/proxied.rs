// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients whose every word operation the primary executes itself. The primary knows for sure what
//! they have, and their ledger entries count only as far as they agree with that.
//!
//! ```text
//!   a client is no longer proxied ──▶ changing ──all its locks told──▶ settled
//! ```
//! What the primary knows of a client stands with each lock, and the client may have got all locks.
//! So the arbiter tells them one by one that the client is no longer proxied; a lock that is used
//! earlier is told then. A lock may be told twice, which does no harm: a client that has mapped the
//! shared memory never becomes proxied again.

use std::collections::BTreeSet;

use super::{Arbiter, LockState};
use crate::ids::{ClientId, Slot};
use crate::planted::{self, Bug};

/// The proxied clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Proxied {
    clients: BTreeSet<ClientId>,
    /// Clients that are no longer proxied, while some of their locks do not know that yet.
    changing: BTreeSet<ClientId>,
}

impl Proxied {
    pub fn contains(&self, client: ClientId) -> bool {
        self.clients.contains(&client)
    }

    /// How many changing clients there are; a lock that is used has to learn of each.
    pub fn changing_len(&self) -> usize {
        self.changing.len()
    }

    /// Tells a lock of all clients that are no longer proxied, if it may not know that.
    pub fn tell(&self, state: &mut LockState) {
        if !planted::is(Bug::UsedUntold) {
            self.tell_now(state);
        }
    }

    fn tell_now(&self, state: &mut LockState) {
        for &client in &self.changing {
            state.rw.unproxy(client);
        }
    }

    pub fn forget(&mut self, client: ClientId) {
        self.clients.remove(&client);
        self.changing.remove(&client);
    }
}

impl Arbiter {
    /// From now on the primary executes every word operation of this client (a tcp client that has
    /// never mapped the memory), so that it knows what the client has without the client's ledger.
    pub fn proxy(&mut self, client: ClientId) {
        self.proxied.clients.insert(client);
    }

    /// From now on the client operates on the words itself, and its ledger tells what it has.
    pub fn unproxy(&mut self, client: ClientId) {
        if self.proxied.clients.remove(&client) {
            self.proxied.changing.insert(client);
        }
    }

    /// Whether some locks of this client still have to [learn](Self::tell) that the client is no
    /// longer proxied.
    pub fn is_changing(&self, client: ClientId) -> bool {
        self.proxied.changing.contains(&client)
    }

    /// Tells this lock of all changing clients.
    pub fn tell(&mut self, slot: Slot) {
        if let Some(state) = self.locks.get_mut(&slot) {
            self.proxied.tell_now(state);
        }
        self.drop_if_empty(slot);
    }

    /// Records that every lock of this client knows that the client is no longer proxied.
    pub fn settled(&mut self, client: ClientId) {
        self.proxied.changing.remove(&client);
    }
}
