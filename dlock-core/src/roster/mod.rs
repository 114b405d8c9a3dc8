// SPDX-License-Identifier: MIT OR Apache-2.0
//! The list of clients that a primary keeps for its successor.
//!
//! ```text
//!   Membership ──Effect::Keep(Change)──▶ driver: keeps it, then answers ──▶ Clients
//!   a successor: Clients ──known()──▶ Locks::awaits
//! ```
//! What this module does not do: write it down. What a client was answered, the successor must
//! know: a change is kept before the answer that it belongs to is sent ([`written`]). [`place`]
//! decides whose the list is, [`list`] and [`epoch`] with what a primary starts.

pub mod epoch;
pub mod list;
pub mod place;
pub mod written;

use std::collections::BTreeMap;

use crate::ids::{ClientId, Identity};
use crate::locks::Known;
use crate::membership::Admission;
use crate::planted::{self, Bug};
use crate::wire::control::Secret;

/// Processes that are kept of a client; more, and it counts as one whose end cannot be seen.
pub const PROCESSES_MAX: usize = 8;

/// Primaries that may start, one after the other, without hearing of a client that was never given
/// a lock: the next one forgets it. A client whose answer to `Init` was lost never comes.
pub const UNSEEN_MAX: u32 = 8;

/// All clients.
pub type Clients = BTreeMap<ClientId, Kept>;

/// What is kept of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Its proofs: that of its session, and behind it that of the session before, which it may take
    /// for its own if an answer was lost.
    pub secrets: Vec<Secret>,
    /// The proof of the session that was prepared last, and the one that was shown for it.
    pub prepared: Option<(Secret, Secret)>,
    /// Whose certificate registered it; `None`: none did.
    pub identity: Option<Identity>,
    /// Its session horizon, seconds; 0: unlimited.
    pub horizon_s: u32,
    /// It was given a lock, or may have been: it may rely on it.
    pub has_locks: bool,
    /// The processes of the primary's host that have mapped the memory for it.
    pub processes: Vec<Process>,
    /// Primaries that have started since one of them heard of it; counted up to
    /// [`UNSEEN_MAX`] + 1.
    pub unseen: u32,
}

/// A process of the primary's host, for as long as the host runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// When it started, in ticks since the host did, as its number may be another's by now; 0: that
    /// is not known.
    pub started: u64,
}

/// Something that has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A primary has started with these clients.
    Started,
    /// A client was let in, with this certificate.
    Joined {
        /// Who.
        client: ClientId,
        /// Its proof.
        secret: Secret,
        /// Its session horizon, seconds; 0: unlimited.
        horizon_s: u32,
        /// Whose certificate it has shown.
        identity: Option<Identity>,
    },
    /// It has a session prepared beside its own, for which it has shown this proof; `None`: that of
    /// its session. What was prepared before it has given up.
    Prepared {
        /// Who.
        client: ClientId,
        /// The proof of the session that is prepared.
        secret: Secret,
        /// The session horizon that it asks for, seconds; 0: unlimited.
        horizon_s: u32,
        /// The proof that it has shown.
        proof: Option<Secret>,
    },
    /// The session that was prepared last is its own.
    Moved {
        /// Who.
        client: ClientId,
    },
    /// It is about to hear that it was given its first lock ([`Known::has_locks`]).
    HasLocks {
        /// Who.
        client: ClientId,
    },
    /// A process has mapped the memory for it.
    Mapped {
        /// For whom.
        client: ClientId,
        /// Which.
        process: Process,
    },
    /// It is a client no more.
    Left {
        /// Who.
        client: ClientId,
    },
    /// These are all.
    Only {
        /// Who.
        clients: Vec<ClientId>,
    },
    /// All [tokens](crate::token) that are given are below this number, until the next such change.
    Tokens {
        /// The number.
        below: u64,
    },
}

impl Change {
    /// A client is about to hear that it was let in.
    pub(crate) fn admitted(admission: &Admission, identity: Option<Identity>) -> Self {
        let Admission { client, secret, terms, .. } = *admission;
        let horizon_s = terms.horizon_s;
        match admission.prepared_by {
            Some(proof) => {
                let proof = Some(proof).filter(|_| !planted::is(Bug::ProofNotKept));
                Change::Prepared { client, secret, horizon_s, proof }
            }
            None => Change::Joined { client, secret, horizon_s, identity },
        }
    }

    /// Makes the change.
    pub fn apply(&self, clients: &mut Clients) {
        match self {
            Change::Started => clients.retain(|_, kept| {
                kept.unseen = (kept.unseen + 1).min(UNSEEN_MAX + 1);
                kept.has_locks || kept.unseen <= UNSEEN_MAX
            }),
            Change::Joined { client, secret, horizon_s, identity } => {
                let is_back = clients.contains_key(client);
                let kept = clients.entry(*client).or_default();
                // one that comes back may not hear of this answer
                let before_s = if is_back { kept.horizon_s } else { *horizon_s };
                (kept.secrets, kept.horizon_s) = (vec![*secret], longer_s(before_s, *horizon_s));
                (kept.prepared, kept.identity, kept.unseen) = (None, *identity, 0);
            }
            Change::Prepared { client, secret, horizon_s, proof } => {
                let kept = clients.entry(*client).or_default();
                kept.unseen = 0;
                let proof = proof.or(kept.secrets.first().copied()).unwrap_or(*secret);
                if kept.secrets.is_empty() {
                    kept.secrets.push(proof);
                }
                kept.prepared = Some((*secret, proof));
                // the longer one of both, until it is known which counts
                kept.horizon_s = longer_s(kept.horizon_s, *horizon_s);
            }
            Change::Moved { client } => {
                let Some(kept) = clients.get_mut(client) else { return };
                if let Some((secret, proof)) = kept.prepared.take() {
                    kept.secrets = vec![secret, proof];
                    kept.secrets.dedup();
                }
            }
            Change::HasLocks { client } => {
                if let Some(kept) = clients.get_mut(client) {
                    kept.has_locks = true;
                }
            }
            Change::Mapped { client, process } => {
                if let Some(kept) = clients.get_mut(client) {
                    if !kept.processes.contains(process) && kept.processes.len() < PROCESSES_MAX {
                        kept.processes.push(*process);
                    }
                }
            }
            Change::Left { client } => _ = clients.remove(client),
            Change::Only { clients: all } => clients.retain(|client, _| all.contains(client)),
            Change::Tokens { .. } => {} // it is of no client
        }
    }
}

/// The longer one of two session horizons.
fn longer_s(a: u32, b: u32) -> u32 {
    match (a, b) {
        (0, _) | (_, 0) => 0,
        (a, b) => a.max(b),
    }
}

/// What the predecessor's clients are to a recovery, those first that were heard of last.
pub fn known(clients: &Clients) -> Vec<Known> {
    let mut all: Vec<(&ClientId, &Kept)> = clients.iter().collect();
    all.sort_by_key(|(_, kept)| kept.unseen);
    let known = |(&client, kept): (&ClientId, &Kept)| {
        let first = *kept.secrets.first()?;
        let before = kept.secrets.get(1).copied();
        let prepared = kept.prepared.map(|(secret, _)| secret);
        let secrets = [first, before.unwrap_or(first), prepared.unwrap_or(first)];
        let Kept { horizon_s, has_locks, .. } = *kept;
        Some(Known { client, secrets, identity: kept.identity, horizon_s, has_locks })
    };
    all.into_iter().filter_map(known).collect()
}

impl Kept {
    /// Whether nothing of it can rely on its locks any more: its processes of this host have ended,
    /// by what `has_ended` says of each.
    pub fn is_dead(&self, has_ended: impl FnMut(Process) -> bool) -> bool {
        let is_complete = (1..PROCESSES_MAX).contains(&self.processes.len());
        is_complete && self.processes.iter().copied().all(has_ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u32) -> ClientId {
        ClientId::new(n).unwrap()
    }

    fn joined(n: u32, secret: u8) -> Change {
        let secret = Secret([secret; 16]);
        Change::Joined { client: id(n), secret, horizon_s: 9, identity: None }
    }

    fn prepared(n: u32, secret: u8, horizon_s: u32) -> Change {
        shown(n, secret, horizon_s, None)
    }

    fn shown(n: u32, secret: u8, horizon_s: u32, proof: Option<u8>) -> Change {
        let [secret, proof] = [Some(secret), proof].map(|n| n.map(|n| Secret([n; 16])));
        Change::Prepared { client: id(n), secret: secret.unwrap(), horizon_s, proof }
    }

    fn proofs(clients: &Clients) -> [u8; 3] {
        known(clients)[0].secrets.map(|secret| secret.0[0])
    }

    #[test]
    fn a_client_has_its_processes_for_as_long_as_it_is_one() {
        let mut clients = Clients::new();
        let process = Process { pid: 7, started: 8 };
        let mapped = Change::Mapped { client: id(1), process };
        mapped.apply(&mut clients);
        assert!(clients.is_empty(), "it is no client");
        for change in [joined(1, 1), mapped.clone(), mapped] {
            change.apply(&mut clients);
        }
        assert_eq!(clients[&id(1)].processes, [process]);
        Change::HasLocks { client: id(9) }.apply(&mut clients);
        assert!(!clients.contains_key(&id(9)) && !known(&clients)[0].has_locks);
        Change::HasLocks { client: id(1) }.apply(&mut clients);
        joined(1, 2).apply(&mut clients);
        assert!(known(&clients)[0].has_locks, "of an earlier session of it");
        joined(2, 1).apply(&mut clients);
        Change::Left { client: id(1) }.apply(&mut clients);
        joined(3, 1).apply(&mut clients);
        Change::Only { clients: vec![id(3), id(4)] }.apply(&mut clients);
        assert!(clients.keys().eq([&id(3)]));
    }

    /// A client whose answer to `Init` was lost with its primary never comes, and never leaves.
    #[test]
    fn a_client_without_locks_that_no_primary_hears_of_is_forgotten_and_others_are_not() {
        let mut clients = Clients::new();
        for n in 1..=4 {
            joined(n, 1).apply(&mut clients);
        }
        Change::HasLocks { client: id(2) }.apply(&mut clients);
        for _ in 0..UNSEEN_MAX {
            Change::Started.apply(&mut clients);
        }
        assert_eq!(clients.len(), 4, "it may have been down for a while");
        prepared(3, 2, 9).apply(&mut clients);
        joined(4, 2).apply(&mut clients);
        joined(5, 1).apply(&mut clients);
        let order = known(&clients).into_iter().map(|known| known.client);
        assert!(order.eq([3, 4, 5, 1, 2].map(id)), "those first that were heard of last");
        Change::Started.apply(&mut clients);
        assert!(clients.keys().eq([2, 3, 4, 5].map(id).iter()), "{clients:?}");
        for _ in 0..3 * UNSEEN_MAX {
            Change::Started.apply(&mut clients);
        }
        assert!(clients.keys().eq([id(2)].iter()), "it may rely on its locks");
    }

    /// It has not heard that its session is the new one, and comes back by the one before, again
    /// and again: its primary takes that for a proof, and so must the next one.
    #[test]
    fn a_client_keeps_the_proof_that_it_uses_however_often_its_answer_is_lost() {
        let mut clients = Clients::new();
        joined(1, 1).apply(&mut clients);
        for secret in 2..=9 {
            shown(1, secret, 9, Some(1)).apply(&mut clients);
            shown(1, 10 + secret, 9, Some(1)).apply(&mut clients);
            assert_eq!(proofs(&clients)[2], 10 + secret);
            assert!(proofs(&clients).contains(&1), "{secret}");
            Change::Moved { client: id(1) }.apply(&mut clients);
            assert_eq!(proofs(&clients), [10 + secret, 1, 10 + secret]);
        }
    }

    /// Its answer may be lost with the primary: it goes on relying on the horizon that it knows.
    #[test]
    fn a_client_that_comes_back_keeps_the_longer_horizon_and_what_is_known_of_it() {
        let (mut clients, client, process) =
            (Clients::new(), id(1), Process { pid: 7, started: 8 });
        let identity = Some(Identity([3; 32]));
        let joined =
            |horizon_s| Change::Joined { client, secret: Secret([1; 16]), horizon_s, identity };
        joined(9).apply(&mut clients);
        Change::Mapped { client, process }.apply(&mut clients);
        for (horizon_s, longest_s) in [(2, 9), (12, 12), (0, 0), (5, 0)] {
            joined(horizon_s).apply(&mut clients);
            assert_eq!(clients[&client].horizon_s, longest_s);
        }
        assert_eq!(clients[&client].processes, [process], "its end would not be seen");
        assert_eq!(known(&clients)[0].identity, identity);
        let (secret, terms) = (Secret([1; 16]), crate::wire::control::Terms::UNLIMITED);
        let admission =
            Admission { client, secret, version: 1, recovering: false, terms, prepared_by: None };
        let admitted = Change::admitted(&admission, identity);
        assert_eq!(admitted, Change::Joined { client, secret, horizon_s: 0, identity });
    }

    #[test]
    fn a_client_is_dead_if_all_its_processes_are_known_and_have_ended() {
        let of = |len: usize| Kept {
            processes: (0..len as i32).map(|pid| Process { pid, started: 1 }).collect(),
            ..Kept::default()
        };
        assert!(!of(0).is_dead(|_| true), "it has none here");
        assert!(of(1).is_dead(|_| true) && of(PROCESSES_MAX - 1).is_dead(|_| true));
        assert!(!of(2).is_dead(|process| process.pid == 1), "one lives");
        assert!(!of(PROCESSES_MAX).is_dead(|_| true), "there may be one more");
    }

    /// Sessions that are prepared and given up must not push the proof out that it uses.
    #[test]
    fn a_client_keeps_the_proof_of_its_session_whatever_is_prepared_beside_it() {
        let mut clients = Clients::new();
        joined(1, 1).apply(&mut clients);
        for secret in 2..=9 {
            prepared(1, secret, 9).apply(&mut clients);
        }
        assert_eq!(proofs(&clients), [1, 1, 9]);
        Change::Moved { client: id(1) }.apply(&mut clients);
        assert_eq!(proofs(&clients), [9, 1, 9], "an answer may be lost: it uses the old one");
        prepared(1, 10, 9).apply(&mut clients);
        assert_eq!(proofs(&clients), [9, 1, 10]);
        joined(1, 11).apply(&mut clients);
        assert_eq!(proofs(&clients), [11; 3]);
        Change::Moved { client: id(7) }.apply(&mut clients);
        for (horizon_s, longest_s) in [(5, 9), (12, 12), (0, 0), (5, 0)] {
            prepared(1, 12, horizon_s).apply(&mut clients);
            assert_eq!(clients[&id(1)].horizon_s, longest_s);
        }
    }
}
