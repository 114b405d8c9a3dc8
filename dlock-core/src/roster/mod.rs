// SPDX-License-Identifier: MIT OR Apache-2.0
//! The roster: the list of clients that a primary keeps for its successor.
//!
//! ```text
//!   Membership ──Effect::Keep(Change)──▶ driver: keeps it, then answers ──▶ Clients
//!   a successor: Clients ──known()──▶ Locks::awaits
//! ```
//! This module does not write the roster: the driver does. The successor must know what a client
//! was answered, so the driver keeps a change before it sends the answer to which the change
//! belongs ([`written`]). [`place`] decides which primary has the roster, [`list`] and [`epoch`]
//! with what a primary starts.

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

/// How many processes of one client a roster has; a client with more processes counts as one whose
/// end cannot be seen.
pub const PROCESSES_MAX: usize = 8;

/// How many primaries may start in a row without hearing of a client that never got a lock; the
/// next one forgets it. A client whose answer to `Init` was lost never comes.
pub const UNSEEN_MAX: u32 = 8;

/// The clients of a roster.
pub type Clients = BTreeMap<ClientId, Kept>;

/// What a roster has of one client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The client's proofs: the secret of its session, and behind it that of the session before,
    /// which the client may take for its own if an answer was lost.
    pub secrets: Vec<Secret>,
    /// The secret of the session that was prepared last, and the secret that the client had shown
    /// for it.
    pub prepared: Option<(Secret, Secret)>,
    /// The identity of the certificate that registered the client; `None`: no certificate did.
    pub identity: Option<Identity>,
    /// The client's session horizon, seconds; 0: unlimited.
    pub horizon_s: u32,
    /// Whether the client got a lock, or may have got one: it may rely on that lock.
    pub has_locks: bool,
    /// The processes of this client that have mapped the lock memory (they run on the primary's
    /// host); [`PROCESSES_MAX`] at most.
    pub processes: Vec<Process>,
    /// How many primaries have started since one of them last heard of the client; counted up to
    /// [`UNSEEN_MAX`] + 1.
    pub unseen: u32,
}

/// A process of the primary's host, identified for as long as the host runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// The process id.
    pub pid: i32,
    /// When the process started, in ticks since the host started, because the process id may belong
    /// to another process by now; 0: not known.
    pub started: u64,
}

/// A change of the roster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A primary has started with these clients.
    Started,
    /// The primary has let a client in that has shown this certificate.
    Joined {
        /// The client.
        client: ClientId,
        /// The client's secret.
        secret: Secret,
        /// The client's session horizon, seconds; 0: unlimited.
        horizon_s: u32,
        /// The identity of the certificate that the client has shown; `None`: no certificate.
        identity: Option<Identity>,
    },
    /// The client has a session prepared beside its present one. An earlier prepared session is
    /// given up.
    Prepared {
        /// The client.
        client: ClientId,
        /// The secret of the prepared session.
        secret: Secret,
        /// The session horizon that the client asks for, seconds; 0: unlimited.
        horizon_s: u32,
        /// The secret that the client has shown; `None`: that of its present session.
        proof: Option<Secret>,
    },
    /// The session that was prepared last has become the client's session.
    Moved {
        /// The client.
        client: ClientId,
    },
    /// The client is about to hear that it got its first lock ([`Known::has_locks`]).
    HasLocks {
        /// The client.
        client: ClientId,
    },
    /// A process has mapped the lock memory for the client.
    Mapped {
        /// The client.
        client: ClientId,
        /// The process.
        process: Process,
    },
    /// The client is no longer a client of this primary.
    Left {
        /// The client.
        client: ClientId,
    },
    /// The roster has these clients, and no others.
    Only {
        /// The clients.
        clients: Vec<ClientId>,
    },
    /// All [tokens](crate::token) that the primary gives are below this number, until the next such
    /// change.
    Tokens {
        /// The number.
        below: u64,
    },
}

impl Change {
    /// The change that lets this client in; the client is about to hear of it.
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

    /// Applies the change to the clients of a roster.
    pub fn apply(&self, clients: &mut Clients) {
        match self {
            Change::Started => clients.retain(|_, kept| {
                kept.unseen = (kept.unseen + 1).min(UNSEEN_MAX + 1);
                kept.has_locks || kept.unseen <= UNSEEN_MAX
            }),
            Change::Joined { client, secret, horizon_s, identity } => {
                let is_back = clients.contains_key(client);
                let kept = clients.entry(*client).or_default();
                // a client that comes back may not receive this answer
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
                // the longer of the two horizons, until it is known which one counts
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
            Change::Tokens { .. } => {} // tokens concern no single client
        }
    }
}

/// The longer one of two session horizons, seconds; 0: unlimited.
fn longer_s(a: u32, b: u32) -> u32 {
    match (a, b) {
        (0, _) | (_, 0) => 0,
        (a, b) => a.max(b),
    }
}

/// The clients of the predecessor, as a recovery takes them; those first that were heard of last.
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
    /// Whether nothing of the client can rely on its locks any more: all its processes on this host
    /// have ended, by what `has_ended` says of each.
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

    /// A client whose answer to `Init` was lost with its primary does not know its id: it neither
    /// comes back nor leaves.
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

    /// The client never hears that its new session replaced the old one, and comes back with the
    /// old secret again and again. Its primary accepts that as a proof, and so must each successor.
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

    /// The answer may be lost with the primary, and then the client relies on the horizon that it
    /// knows.
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

    /// Sessions that are prepared and given up must not push out the proof that the client uses.
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
