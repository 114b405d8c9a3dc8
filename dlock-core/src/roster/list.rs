// SPDX-License-Identifier: MIT OR Apache-2.0
//! The roster with which a primary begins: its own, joined with the roster of a predecessor that
//! had another state file.
//!
//! ```text
//!   own list ──┬─ a predecessor with another state file is later ──▶ joined with its list
//!              └─ a lost list is back ─▶ its clients are added
//! ```

use super::{Change, Clients, UNSEEN_MAX};

/// The contents of a roster (the list of a primary's clients).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List {
    /// The clients.
    pub clients: Clients,
    /// Where the clients come from.
    pub origin: Origin,
}

/// Where the clients of a roster come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The epoch of the roster's primary; `None`: the roster is of an earlier version.
    pub epoch: Option<u64>,
    /// The epochs of primaries with other state files, all of whose clients are in this roster.
    pub after: Vec<u64>,
    /// `Some`: these are not all clients, because the roster of the primary of this epoch was lost,
    /// and no recovery has ended since.
    pub lost: Option<u64>,
    /// All [tokens](crate::token) that were given are below this number.
    pub tokens_below: u64,
}

/// Another state file, of a primary whose process does not live on this host as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Other {
    /// The last epoch in the state file.
    pub epoch: u64,
    /// Whether the process ran on this host, and has ended.
    pub has_ended: bool,
}

/// The other roster that a primary also begins with, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joins {
    /// The roster of a later primary: [`List::joined`].
    Later(usize),
    /// The roster that was lost, and is back: [`List::restored`].
    Lost(usize),
}

impl Other {
    /// The roster of this state file. `list`: as it was read; `None`: there is none.
    pub fn list(&self, list: Option<List>) -> List {
        let lost = Origin { lost: Some(self.epoch), ..Origin::default() };
        let mut list = list.unwrap_or(List { origin: lost, ..List::default() });
        // a primary that may live on another host may get other clients later
        let is_all = self.has_ended && list.origin.lost.is_none();
        list.origin.after.extend(is_all.then_some(self.epoch));
        list
    }
}

impl List {
    /// The roster of a primary that starts. `read`: the roster as it was read (`None`: there is
    /// none); `last`: the last epoch in the state file.
    pub fn begun(read: Option<List>, last: Option<u64>) -> List {
        let is_new = read.is_none();
        let mut list = read.unwrap_or_default();
        list.origin.epoch = list.origin.epoch.max(last);
        if is_new {
            // a primary writes a roster before its first epoch: if there is an epoch, there was a
            // roster
            list.origin.lost = list.origin.epoch;
        }
        list
    }

    /// The other roster, if any, with which this one has to be joined.
    pub fn joins(&self, others: &[Other]) -> Option<Joins> {
        let others = || others.iter().enumerate();
        let later = others().filter(|(_, other)| Some(other.epoch) > self.origin.epoch);
        let lost = || others().find(|(_, other)| Some(other.epoch) == self.origin.lost);
        match later.max_by_key(|(_, other)| other.epoch) {
            Some((n, _)) => Some(Joins::Later(n)),
            None => lost().map(|(n, _)| Joins::Lost(n)),
        }
    }

    /// This roster joined with a later one.
    pub fn joined(mut self, later: List) -> List {
        let tokens_below = self.origin.tokens_below.max(later.origin.tokens_below);
        self.origin.tokens_below = tokens_below;
        let Origin { epoch, .. } = self.origin;
        let Origin { after, lost, .. } = later.origin;
        if epoch.is_some_and(|epoch| after.contains(&epoch)) {
            // the later primary knew all clients of this one; some may have left since
            let origin = Origin { epoch, after, lost, tokens_below };
            return List { clients: later.clients, origin };
        }
        self.clients.extend(later.clients);
        self.origin.lost = lost.or(self.origin.lost);
        self.origin.after.extend(after);
        self
    }

    /// Adds the clients of the roster that was lost, now that it is back; `false`: `lost` itself
    /// lacks clients.
    pub fn restored(&mut self, lost: List) -> bool {
        self.origin.tokens_below = self.origin.tokens_below.max(lost.origin.tokens_below);
        if lost.origin.lost.is_some() {
            return false;
        }
        for (client, kept) in lost.clients {
            // a client that is already known has come since, so its later entry counts
            self.clients.entry(client).or_insert(kept);
        }
        self.origin.after.extend(lost.origin.after);
        self.origin.lost = None;
        true
    }

    /// Applies a change of the roster.
    pub fn apply(&mut self, change: &Change) {
        self.origin.apply(change);
        change.apply(&mut self.clients);
    }
}

impl Origin {
    /// Applies a change of the roster.
    pub fn apply(&mut self, change: &Change) {
        match change {
            // a recovery has ended, so that no clients are missing any more
            Change::Only { .. } => self.lost = None,
            Change::Tokens { below } => self.tokens_below = self.tokens_below.max(*below),
            _ => {}
        }
    }

    /// The last epoch of primaries with other state files.
    pub fn last_other(&self) -> Option<u64> {
        self.after.iter().copied().max()
    }
}

/// The shortest list of changes that makes these clients; those first that were heard of first.
pub fn history(clients: &Clients) -> Vec<Change> {
    let mut changes = Vec::new();
    for unseen in (0..=UNSEEN_MAX + 1).rev() {
        for (&client, kept) in clients.iter().filter(|(_, kept)| kept.unseen == unseen) {
            let horizon_s = kept.horizon_s;
            let prepared = |(secret, proof)| Change::Prepared {
                client,
                secret,
                horizon_s,
                proof: Some(proof),
            };
            let joined =
                |secret| Change::Joined { client, secret, horizon_s, identity: kept.identity };
            match kept.secrets[..] {
                [] => {}
                [own] => changes.push(joined(own)),
                [own, before, ..] => {
                    let moved = Change::Moved { client };
                    changes.extend([joined(before), prepared((own, before)), moved]);
                }
            }
            changes.extend(kept.prepared.map(prepared));
            changes.extend(kept.has_locks.then_some(Change::HasLocks { client }));
            let processes = kept.processes.iter();
            changes.extend(processes.map(|&process| Change::Mapped { client, process }));
        }
        if unseen > 0 && !changes.is_empty() {
            changes.push(Change::Started);
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ClientId;
    use crate::roster::{Kept, Process};
    use crate::wire::control::Secret;

    fn id(n: u32) -> ClientId {
        ClientId::new(n).unwrap()
    }

    fn list(epoch: u64, clients: &[u32]) -> List {
        let kept = |&n: &u32| (id(n), Kept { horizon_s: epoch as u32, ..Kept::default() });
        let clients = clients.iter().map(kept).collect();
        List { clients, origin: Origin { epoch: Some(epoch), ..Origin::default() } }
    }

    fn ids(list: &List) -> Vec<u32> {
        list.clients.keys().map(|client| client.get()).collect()
    }

    #[test]
    fn a_list_that_is_missing_beside_an_epoch_was_lost() {
        assert_eq!(List::begun(None, None), List::default(), "a first start");
        assert_eq!(List::begun(None, Some(7)).origin.lost, Some(7));
        let own = List::begun(Some(list(5, &[1])), Some(7));
        assert_eq!((own.origin.epoch, own.origin.lost), (Some(7), None));
        // the operator has removed the state file, as the message about a damaged state file
        // advises
        assert_eq!(List::begun(Some(list(5, &[1])), None).origin.epoch, Some(5));
    }

    #[test]
    fn the_list_of_the_latest_predecessor_is_joined_or_the_one_that_was_lost() {
        let other = |epoch| Other { epoch, has_ended: true };
        let mut own = list(5, &[1]);
        assert_eq!(own.joins(&[other(4), other(5)]), None);
        assert_eq!(own.joins(&[other(6), other(8), other(7)]), Some(Joins::Later(1)));
        assert_eq!(List::default().joins(&[other(1)]), Some(Joins::Later(0)));
        own.origin.lost = Some(4);
        assert_eq!(own.joins(&[other(3), other(4)]), Some(Joins::Lost(1)));
        assert_eq!(own.joins(&[other(4), other(6)]), Some(Joins::Later(1)));
    }

    #[test]
    fn a_later_list_that_had_all_clients_of_the_own_one_takes_its_place() {
        let mut later = list(8, &[2]);
        let joined = list(5, &[1]).joined(later.clone());
        assert_eq!((ids(&joined), joined.origin.epoch), (vec![1, 2], Some(5)));
        later.origin.after = vec![5];
        assert_eq!(ids(&list(5, &[1]).joined(later.clone())), [2], "client 1 has left since");
        // for a client in both lists, the later list counts
        let both = list(5, &[1]).joined(list(8, &[1]));
        assert_eq!(both.clients[&id(1)].horizon_s, 8);
        // if either list lacks lost clients, so does the joined list
        let mut own = list(5, &[1]);
        own.origin.lost = Some(3);
        assert_eq!(own.clone().joined(list(8, &[2])).origin.lost, Some(3));
        later.origin = Origin { lost: Some(4), ..Origin::default() };
        assert_eq!(own.joined(later).origin.lost, Some(4));
    }

    #[test]
    fn a_list_that_was_lost_and_is_there_again_adds_its_clients() {
        let mut own = list(5, &[1, 2]);
        own.origin.lost = Some(4);
        let other = Other { epoch: 4, has_ended: true };
        assert!(!own.restored(other.list(None)), "it is still lost");
        assert_eq!(own.origin.lost, Some(4));
        assert!(own.restored(other.list(Some(list(4, &[2, 3])))));
        assert_eq!((ids(&own), own.origin.lost), (vec![1, 2, 3], None));
        assert_eq!(own.clients[&id(2)].horizon_s, 5, "it has come since");
        assert_eq!((own.origin.after.clone(), own.origin.last_other()), (vec![4], Some(4)));
    }

    #[test]
    fn the_clients_of_a_primary_that_may_live_elsewhere_are_not_known_to_be_all() {
        let after = |has_ended, read| Other { epoch: 4, has_ended }.list(read).origin.after;
        assert_eq!(after(true, Some(list(4, &[]))), [4]);
        assert!(after(false, Some(list(4, &[]))).is_empty());
        assert!(after(true, None).is_empty(), "its list was lost");
    }

    #[test]
    fn a_recovery_that_ends_makes_a_list_complete() {
        let mut own = list(5, &[1, 2]);
        own.origin.lost = Some(4);
        own.apply(&Change::Left { client: id(1) });
        assert_eq!(own.origin.lost, Some(4));
        own.apply(&Change::Only { clients: vec![] });
        assert_eq!((ids(&own), own.origin.lost), (vec![], None));
    }

    #[test]
    fn no_token_that_any_of_the_lists_has_reserved_is_given_again() {
        let reserves = |mut list: List, below| {
            list.apply(&Change::Tokens { below });
            list
        };
        let own = reserves(reserves(list(5, &[1]), 70), 60);
        assert_eq!(own.origin.tokens_below, 70);
        let mut later = reserves(list(8, &[2]), 90);
        assert_eq!(own.clone().joined(later.clone()).origin.tokens_below, 90);
        later.origin.after = vec![5];
        assert_eq!(own.clone().joined(later).origin.tokens_below, 90);
        let mut restored = own;
        assert!(restored.restored(reserves(list(4, &[3]), 80)));
        assert_eq!(restored.origin.tokens_below, 80);
    }

    #[test]
    fn the_history_of_clients_makes_the_same_clients() {
        let secret = |n| Secret([n; 16]);
        let process = Process { pid: 7, started: 8 };
        let mut clients = Clients::new();
        for (n, unseen) in [(1, 0), (2, 3), (3, UNSEEN_MAX), (4, 0)] {
            let kept = Kept {
                secrets: vec![secret(n as u8)],
                horizon_s: n,
                has_locks: n == 2,
                processes: [process].repeat(usize::from(n == 1)),
                unseen,
                ..Kept::default()
            };
            clients.insert(id(n), kept);
        }
        let four = clients.get_mut(&id(4)).unwrap();
        four.secrets.push(secret(9));
        four.prepared = Some((secret(8), secret(9)));
        let mut made = Clients::new();
        history(&clients).iter().for_each(|change| change.apply(&mut made));
        assert_eq!(made, clients);
        assert!(history(&Clients::new()).is_empty());
    }
}
