// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients whose every word operation the primary executes itself: what they have is known for
//! sure, and what they note counts only as far as it agrees.
//!
//! ```text
//!   a client becomes one, or is none any more ──▶ changing ──all its locks told──▶ settled
//! ```
//! What is known of a client stands with each lock, and it may have got all of them: they are
//! told one by one, and a lock that is used before is told then. A lock may be told twice: a client
//! that has mapped the shared memory never becomes proxied again.

use std::collections::BTreeSet;

use super::{Arbiter, LockState};
use crate::ids::{ClientId, Slot};
use crate::planted::{self, Bug};

/// Who is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Proxied {
    clients: BTreeSet<ClientId>,
    /// Clients some of whose locks may not have been told.
    changing: BTreeSet<ClientId>,
}

impl Proxied {
    pub fn contains(&self, client: ClientId) -> bool {
        self.clients.contains(&client)
    }

    /// How many a lock is told of.
    pub fn changing_len(&self) -> usize {
        self.changing.len()
    }

    /// Tells a lock of all whose change it may not know.
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
    /// From now on every word operation of this client is executed by the primary (a tcp client
    /// that has never mapped the memory), so that what it has is known without its ledger.
    pub fn proxy(&mut self, client: ClientId) {
        self.proxied.clients.insert(client);
    }

    /// The client operates on the words itself: its ledger is what is known of it.
    pub fn unproxy(&mut self, client: ClientId) {
        if self.proxied.clients.remove(&client) {
            self.proxied.changing.insert(client);
        }
    }

    /// Whether locks of this client are to be [told](Self::tell) of a change.
    pub fn is_changing(&self, client: ClientId) -> bool {
        self.proxied.changing.contains(&client)
    }

    /// Tells this lock of the clients that are changing.
    pub fn tell(&mut self, slot: Slot) {
        if let Some(state) = self.locks.get_mut(&slot) {
            self.proxied.tell_now(state);
        }
        self.drop_if_empty(slot);
    }

    /// Every lock that the client has got was told.
    pub fn settled(&mut self, client: ClientId) {
        self.proxied.changing.remove(&client);
    }
}
