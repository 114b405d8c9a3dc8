// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who the clients are, kept outside this process: for whoever comes after it.
//!
//! ```text
//!   command thread ──Change──▶ writer thread ──▶ Keeper: a file, or whatever holds it
//!        │ its number                 │ kept
//!        ▼                            ▼
//!   control thread: a client is answered once it is kept that it is one
//! ```
//! Written when clients come and go, and never on the way to a lock. What comes while the last
//! changes are being written is written together.

mod file;
mod owner;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use dlock_core::control::Secret;
use dlock_core::ids::{ClientId, Identity};
use dlock_core::primary::Known;
use log::Level;
use tokio::sync::watch;

use crate::log_limit::{limited, Cause};
pub(crate) use file::FileKeeper;
pub(crate) use owner::{owner, signature, Taking};

/// What is kept of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Its proofs: that of its session, and behind it that of the session before, which it may take
    /// for its own if an answer was lost.
    pub(crate) secrets: Vec<Secret>,
    /// The proof of the session that was prepared last, and the one that was shown for it.
    pub(crate) prepared: Option<(Secret, Secret)>,
    /// Whose certificate registered it; `None`: none did.
    pub(crate) identity: Option<Identity>,
    /// Its session horizon, seconds; 0: unlimited.
    pub(crate) horizon_s: u32,
    /// It was given a lock, or may have been: it may rely on it.
    pub(crate) has_locks: bool,
    /// The processes of this host that have mapped the memory for it.
    pub(crate) processes: Vec<Process>,
    /// Primaries that have started since one of them heard of it; counted up to
    /// [`UNSEEN_MAX`] + 1.
    pub(crate) unseen: u32,
}

/// A process of this host, for as long as the host runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its number.
    pub(crate) pid: i32,
    /// When it started, in ticks since the host did, as its number may be another's by now; 0: that
    /// is not known.
    pub(crate) started: u64,
}

/// Processes that are kept of a client; more, and it counts as one whose end cannot be seen.
const PROCESSES_MAX: usize = 8;

/// Primaries that may start, one after the other, without hearing of a client that was never given
/// a lock: the next one forgets it. A client whose answer to `Init` was lost never comes.
pub(crate) const UNSEEN_MAX: u32 = 8;

/// Between two looks whether another primary has taken the place of this one, and two attempts to
/// keep what could not be kept.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// All clients.
pub(crate) type Clients = BTreeMap<ClientId, Kept>;

/// Something that has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A primary has started with these clients.
    Started,
    /// A client was let in, with this certificate.
    Joined { client: ClientId, secret: Secret, horizon_s: u32, identity: Option<Identity> },
    /// It has a session prepared beside its own, for which it has shown this proof; `None`: that of
    /// its session. What was prepared before it has given up.
    Prepared { client: ClientId, secret: Secret, horizon_s: u32, proof: Option<Secret> },
    /// The session that was prepared last is its own.
    Moved { client: ClientId },
    /// It is about to hear that it was given its first lock.
    HasLocks { client: ClientId },
    /// A process has mapped the memory for it.
    Mapped { client: ClientId, process: Process },
    /// It is a client no more.
    Left { client: ClientId },
    /// These are all.
    Only { clients: Vec<ClientId> },
}

impl Change {
    /// Makes the change.
    pub(crate) fn apply(&self, clients: &mut Clients) {
        match self {
            Change::Started => clients.retain(|_, kept| {
                kept.unseen = (kept.unseen + 1).min(UNSEEN_MAX + 1);
                kept.has_locks || kept.unseen <= UNSEEN_MAX
            }),
            Change::Joined { client, secret, horizon_s, identity } => {
                let kept = clients.entry(*client).or_default();
                (kept.secrets, kept.horizon_s) = (vec![*secret], *horizon_s);
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
                kept.horizon_s = match (kept.horizon_s, *horizon_s) {
                    (0, _) | (_, 0) => 0,
                    (old, new) => old.max(new),
                };
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
        }
    }
}

/// Whatever holds the clients: a file on this host, or a service that hosts share.
pub(crate) trait Keeper: Send + 'static {
    /// Keeps these changes; `clients`: what they make of everything.
    ///
    /// # Errors
    /// They may not be kept. Everything is told again with the next ones.
    fn keep(&mut self, changes: &[Change], clients: &Clients) -> io::Result<()>;

    /// Whether this primary is the one whose clients these are. Asked often.
    fn is_mine(&self) -> bool;
}

/// Where the clients are of a primary with this state file.
pub(crate) fn list_of(state_file: &Path) -> PathBuf {
    owner::beside(state_file, ".clients")
}

/// What the predecessor's clients are to a recovery, those first that were heard of last.
pub(crate) fn known(clients: &Clients) -> Vec<Known> {
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
    /// Whether nothing of it can rely on its locks any more: its processes of this host have ended.
    pub(crate) fn is_dead(&self) -> bool {
        let is_complete = (1..PROCESSES_MAX).contains(&self.processes.len());
        is_complete && self.processes.iter().all(|process| process.has_ended())
    }
}

/// The way to the writer thread. Without one nothing is kept.
#[derive(Debug)]
pub(crate) struct Roster {
    changes: Option<Sender<Change>>,
    /// How many were told.
    told: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// How many changes are kept, or could not be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Written {
    changes: u64,
    is_failing: bool,
    /// Another primary has taken the place of this one.
    is_replaced: bool,
}

/// Waits for the writer thread.
#[derive(Clone, Debug)]
pub(crate) struct Receipts {
    told: Arc<AtomicU64>,
    written: watch::Receiver<Written>,
}

impl Receipts {
    /// Waits until everything is kept that was told until now.
    ///
    /// # Errors
    /// It cannot be.
    pub(crate) async fn all_kept(&self) -> Result<(), ()> {
        let change = self.told.load(Ordering::Acquire);
        let mut written = self.written.clone();
        let written = written.wait_for(|written| written.changes >= change).await;
        match written {
            Ok(written) if !written.is_failing => Ok(()),
            _ => Err(()),
        }
    }
}

impl Receipts {
    /// Whether what was told last could not be kept; it is tried again and again.
    pub(crate) fn is_failing(&self) -> bool {
        self.written.borrow().is_failing
    }

    /// Waits until another primary has taken the place of this one.
    pub(crate) async fn replaced(&self) {
        let mut written = self.written.clone();
        if written.wait_for(|written| written.is_replaced).await.is_err() {
            std::future::pending::<()>().await; // this one ends
        }
    }
}

impl Roster {
    /// Begins with these clients.
    ///
    /// # Errors
    /// There can be no thread.
    pub(crate) fn start(
        keeper: Option<Box<dyn Keeper>>,
        clients: Clients,
    ) -> io::Result<(Self, Receipts)> {
        let (progress, written) = watch::channel(Written::default());
        let told = Arc::new(AtomicU64::new(0));
        let receipts = Receipts { told: Arc::clone(&told), written };
        let Some(keeper) = keeper else {
            // every change is kept as well as it will ever be
            let all = Written { changes: u64::MAX, ..Written::default() };
            progress.send_replace(all);
            return Ok((Self { changes: None, told, thread: None }, receipts));
        };
        let (sender, receiver) = channel();
        let work = move || write(keeper, clients, &receiver, &progress);
        let thread = Builder::new().name("dlock-roster".to_string()).spawn(work)?;
        Ok((Self { changes: Some(sender), told, thread: Some(thread) }, receipts))
    }

    /// Tells of a change.
    pub(crate) fn tell(&self, change: Change) {
        self.told.fetch_add(1, Ordering::Release);
        if let Some(changes) = &self.changes {
            let _ = changes.send(change); // a writer that has ended keeps nothing
        }
    }
}

impl Drop for Roster {
    /// What was told is kept.
    fn drop(&mut self) {
        self.changes = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic was reported when it happened
        }
    }
}

fn write(
    mut keeper: Box<dyn Keeper>,
    mut clients: Clients,
    changes: &Receiver<Change>,
    progress: &watch::Sender<Written>,
) {
    let mut written = Written::default();
    loop {
        let first = match changes.recv_timeout(LOOK_EVERY) {
            Ok(first) => Some(first),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                if !written.is_replaced && !keeper.is_mine() {
                    written.is_replaced = true;
                    progress.send_replace(written);
                }
                if !written.is_failing || written.is_replaced {
                    continue;
                }
                None // once more
            }
        };
        let together: Vec<Change> = first.into_iter().chain(changes.try_iter()).collect();
        together.iter().for_each(|change| change.apply(&mut clients));
        written.changes += together.len() as u64;
        let kept = keeper.keep(&together, &clients);
        written.is_failing = kept.is_err();
        written.is_replaced |= kept.is_err() && !keeper.is_mine();
        if let Err(error) = kept {
            limited!(
                Cause::Roster,
                Level::Error,
                "clients are refused: who they are cannot be kept: {error}"
            );
        }
        progress.send_replace(written);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

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

    struct Slow(Arc<Mutex<(Vec<usize>, bool)>>);

    impl Keeper for Slow {
        fn keep(&mut self, changes: &[Change], _: &Clients) -> io::Result<()> {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let mut seen = self.0.lock().unwrap();
            seen.0.push(changes.len());
            match seen.1 {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => Ok(()),
            }
        }

        fn is_mine(&self) -> bool {
            !self.0.lock().unwrap().1
        }
    }

    /// A disk that is full for a while.
    struct Full(Arc<AtomicU64>);

    impl Keeper for Full {
        fn keep(&mut self, _: &[Change], _: &Clients) -> io::Result<()> {
            let left =
                self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
            left.map_or(Ok(()), |_| Err(io::ErrorKind::StorageFull.into()))
        }

        fn is_mine(&self) -> bool {
            true
        }
    }

    #[tokio::test]
    async fn what_could_not_be_kept_is_kept_as_soon_as_it_can_be() {
        let fails = Arc::new(AtomicU64::new(3));
        let keeper: Box<dyn Keeper> = Box::new(Full(Arc::clone(&fails)));
        let (roster, mut receipts) = Roster::start(Some(keeper), Clients::new()).unwrap();
        roster.tell(joined(1, 1));
        assert_eq!(receipts.all_kept().await, Err(()));
        let kept = receipts.written.wait_for(|written| !written.is_failing).await;
        assert_eq!(kept.unwrap().changes, 1, "nobody has told anything more");
        assert_eq!(fails.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn changes_are_kept_together_and_who_waits_is_told_or_refused() {
        let seen = Arc::new(Mutex::new((Vec::new(), false)));
        let keeper: Box<dyn Keeper> = Box::new(Slow(Arc::clone(&seen)));
        let (roster, receipts) = Roster::start(Some(keeper), Clients::new()).unwrap();
        (0..100).for_each(|n| roster.tell(joined(n + 1, 1)));
        assert_eq!(receipts.all_kept().await, Ok(()));
        assert!(seen.lock().unwrap().0.len() < 50, "they are written together");
        seen.lock().unwrap().1 = true;
        roster.tell(joined(1, 2));
        assert_eq!(receipts.all_kept().await, Err(()));
        assert!(receipts.is_failing());
        receipts.replaced().await;
        seen.lock().unwrap().1 = false;
        roster.tell(joined(1, 3));
        assert_eq!(receipts.all_kept().await, Ok(()));
        assert!(!receipts.is_failing());
        drop(roster);
        assert_eq!(seen.lock().unwrap().0.iter().sum::<usize>(), 102);
        let (none, receipts) = Roster::start(None, Clients::new()).unwrap();
        none.tell(joined(1, 1));
        assert_eq!(receipts.all_kept().await, Ok(()));
    }
}
