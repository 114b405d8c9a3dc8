// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits of ended channels that the primary still has to drop.
//!
//! A client may wait for all locks on one channel after another. The primary keeps the waits that
//! each channel leaves behind as a set. If a client has more than [`SETS_MAX`] sets, the two
//! smallest are merged, so that the end of a channel never moves more than a ninth of all locks.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{ClientId, Slot};

/// The most sets of one client.
const SETS_MAX: usize = 8;

/// The slots of locks for which each client was queued. No set is empty.
#[derive(Debug, Default)]
pub(super) struct StaleWaits(BTreeMap<ClientId, Vec<BTreeSet<Slot>>>);

impl StaleWaits {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, client: ClientId, slot: Slot) -> bool {
        self.0.get(&client).is_some_and(|sets| sets.iter().any(|set| set.contains(&slot)))
    }

    /// Adds the waits that an ended channel of this client leaves behind. Returns how many slots
    /// were moved between sets for that (for the work budget).
    pub fn add(&mut self, client: ClientId, waits: BTreeSet<Slot>) -> usize {
        if waits.is_empty() {
            return 0;
        }
        let sets = self.0.entry(client).or_default();
        sets.push(waits);
        if sets.len() <= SETS_MAX {
            return 0;
        }
        sets.sort_unstable_by_key(|set| std::cmp::Reverse(set.len()));
        let smallest = sets.pop().unwrap_or_default();
        let moved = smallest.len();
        if let Some(set) = sets.last_mut() {
            set.extend(smallest);
        }
        moved
    }

    /// The next wait to drop.
    pub fn next(&self) -> Option<(ClientId, Slot)> {
        let (&client, sets) = self.0.first_key_value()?;
        Some((client, *sets.last()?.first()?))
    }

    /// Removes a wait from the list; returns whether it was there.
    pub fn take(&mut self, client: ClientId, slot: Slot) -> bool {
        let Some(sets) = self.0.get_mut(&client) else { return false };
        let was_deaf = sets.iter_mut().any(|set| set.remove(&slot)); // no slot is in two sets
        sets.retain(|set| !set.is_empty());
        if sets.is_empty() {
            self.0.remove(&client);
        }
        was_deaf
    }

    /// Removes all waits of this client from the list: the primary need not drop them any more.
    pub fn forget(&mut self, client: ClientId) {
        self.0.remove(&client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_client_that_is_gone_nothing_is_left_to_be_dropped() {
        let [a, b] = [1, 2].map(|id| ClientId::new(id).unwrap());
        let mut deaf = StaleWaits::default();
        for client in [a, b] {
            deaf.add(client, BTreeSet::from([Slot(3)]));
        }
        deaf.forget(a);
        assert_eq!(deaf.next(), Some((b, Slot(3))));
        assert!(!deaf.contains(a, Slot(3)) && deaf.take(b, Slot(3)) && deaf.is_empty());
    }
}
