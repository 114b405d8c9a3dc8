// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whom a recovery waits for, and for how long.
//!
//! ```text
//!   counted: so many clients, for as long as it takes
//!   known:   each until it has told everything, or is proved dead, or the operator does not want
//!            to wait, or the deadline and its own horizon have passed and it is not here
//!   lost:    the clients are not known: all that come, until the operator does not want to wait
//!   idle:    the clients that were never given a lock: the recovery does not wait for them
//! ```
//! A client with a horizon neither operates on its locks nor relies on them beyond that, counted
//! from the last answer of the predecessor. The predecessor answers nothing any more when its
//! successor starts. A client without a horizon cannot know that its locks are given to others: it
//! is waited for without end. One that comes back with a shorter horizon may not hear of that:
//! until the horizon of its predecessor's session has passed, nothing of it ends for its silence.
//! Who has never been given a lock has nothing to tell, and may never have heard that it was let
//! in: it may come at any time, and is let in again by its proof.
//!
//! Who is here and does not say that it has told everything is given as long as the deadline, and
//! at least [`TELLING_S`], from when it came ([`Locks::take_laggard`]).

use std::collections::{BTreeMap, BTreeSet};

use super::Locks;
use crate::clock::{ServerTime, NS};
use crate::ids::{ClientId, Identity};
use crate::memory::exec::LockMemory;
use crate::planted::{self, Bug};
use crate::wire::control::Secret;
use crate::wire::status::Status;

/// A client of the predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Who it is.
    pub client: ClientId,
    /// Its proofs: those that it may still use.
    pub secrets: [Secret; 3],
    /// Whose certificate registered it; `None`: none did.
    pub identity: Option<Identity>,
    /// Its session horizon, seconds; 0: unlimited.
    pub horizon_s: u32,
    /// It has been given a lock, and may rely on what it did with it.
    pub has_locks: bool,
}

/// How far a recovery is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Clients that are waited for, or were.
    pub expected: u32,
    /// Of these, those that are here.
    pub back: u32,
    /// Those that have told everything.
    pub told: u32,
    /// What was claimed of locks until now.
    pub claims: usize,
    /// Who is not here, and until when it is waited for; `None`: without end.
    pub missing: Vec<(ClientId, Option<ServerTime>)>,
    /// There may be others: the list of clients was lost.
    pub is_unlisted: bool,
}

/// What came of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Clients that have told everything.
    pub clients: usize,
    /// Clients that were not waited for any longer.
    pub given_up: usize,
    /// What was claimed of locks.
    pub claims: usize,
    /// Of these, those that were not granted: another client had the lock.
    pub lost: usize,
}

/// A client that has not told everything in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Laggard {
    /// Who.
    pub client: ClientId,
    /// An operator does not want to wait for it, although it has no horizon.
    pub is_hurried: bool,
}

#[derive(Debug, Default)]
pub(super) struct Awaited {
    /// Those known that have not told everything, and until when they are waited for.
    missing: BTreeMap<ClientId, ServerTime>,
    /// Until when they rely on what they have by their sessions at the predecessor.
    promised: BTreeMap<ClientId, ServerTime>,
    proofs: BTreeMap<ClientId, Proofs>,
    /// Those that are here and have not told everything, and since when.
    telling: BTreeSet<(ServerTime, ClientId)>,
    /// Of these, those that [`Locks::take_laggard`] has named.
    late: BTreeSet<(ServerTime, ClientId)>,
    /// How long each of them may take.
    telling_s: u32,
    /// Everything was heard that had come by then: who is missing is not given up for a time at
    /// which the primary itself stood still.
    heard: ServerTime,
    /// Those that may not act any more, and cannot be fenced: as if they were not here.
    given_up: BTreeSet<ClientId>,
    /// There may be others than those that are known: only an operator ends the recovery.
    is_unlisted: bool,
    /// Not to wait any longer for those that are not here.
    is_hurried: bool,
    /// Clients that have said that they have told everything, or are not to be waited for.
    told: BTreeSet<ClientId>,
}

/// What a client of the predecessor must show.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proofs {
    /// One of these.
    secrets: [Secret; 3],
    /// The certificate that it was registered with.
    identity: Option<Identity>,
}

impl From<&Known> for Proofs {
    fn from(known: &Known) -> Self {
        Self { secrets: known.secrets, identity: known.identity }
    }
}

impl Awaited {
    fn is_telling(&self, client: ClientId) -> bool {
        self.telling.iter().chain(&self.late).any(|(_, telling)| *telling == client)
    }

    /// Clients of which nothing more is to come.
    fn answered(&self) -> usize {
        self.told.len() + self.given_up.len()
    }
}

/// How long a client that is here may take at least until it has told everything, seconds.
pub const TELLING_S: u32 = 30;

const NEVER: ServerTime = ServerTime(u64::MAX);

impl Locks {
    /// Begins a recovery in which these are waited for, by [`PrimaryConfig::recovery_clients`] or
    /// not. `now`: the predecessor answers nothing any more; none is given up before
    /// `deadline_s` has passed since.
    ///
    /// [`PrimaryConfig::recovery_clients`]: super::PrimaryConfig::recovery_clients
    pub fn awaits(&mut self, now: ServerTime, known: &[Known], deadline_s: u32) {
        self.awaited.telling_s = deadline_s.max(TELLING_S);
        let has_locks = |known: &&Known| known.has_locks || planted::is(Bug::IdleAwaited);
        let idle = known.iter().filter(|known| !has_locks(known)).take(self.config.clients_max);
        self.idle.extend(idle.map(|known| (known.client, known.into())));
        for known in known.iter().filter(has_locks) {
            let least_s = match planted::is(Bug::DeadlineAlone) {
                true => deadline_s,
                false => deadline_s.max(known.horizon_s),
            };
            let until = match known.horizon_s {
                0 => NEVER,
                _ => now.plus_ns(u64::from(least_s) * NS),
            };
            self.awaited.missing.insert(known.client, until);
            if known.horizon_s > 0 {
                let promised = now.plus_ns(u64::from(known.horizon_s) * NS);
                self.awaited.promised.insert(known.client, promised);
            }
            self.awaited.proofs.insert(known.client, known.into());
        }
        self.recovering |= !self.awaited.missing.is_empty();
    }

    /// The list of the predecessor's clients was lost: no client is given a lock before an operator
    /// does not want to wait ([`hurries`](Self::hurries)). Clients may come back until then.
    pub fn awaits_unlisted(&mut self) {
        self.awaited.is_unlisted = true;
        self.recovering = true;
    }

    /// Whether a client that is not known here may come from the predecessor, with this proof, on
    /// a connection that has shown this certificate.
    ///
    /// # Errors
    /// `ClientRemoved`: it may not. `Error`: it is not the one that it says it is.
    pub fn may_adopt(
        &self,
        client: ClientId,
        proof: Secret,
        identity: Option<Identity>,
    ) -> Result<(), Status> {
        let is_late = !self.recovering && !self.is_idle(client);
        match self.proofs(client) {
            _ if is_late || self.removed.contains(&client) => Err(Status::ClientRemoved),
            None if !self.awaited.proofs.is_empty() && !self.awaited.is_unlisted => {
                Err(Status::ClientRemoved)
            }
            Some(known) if !known.secrets.contains(&proof) => Err(Status::Error),
            Some(known) if known.identity != identity => Err(Status::Error),
            _ => Ok(()),
        }
    }

    /// Whether the list of the predecessor's clients has this one.
    pub(crate) fn is_of_predecessor(&self, client: ClientId) -> bool {
        self.proofs(client).is_some()
    }

    fn proofs(&self, client: ClientId) -> Option<&Proofs> {
        self.idle.get(&client).or_else(|| self.awaited.proofs.get(&client))
    }

    /// This client of the predecessor has ended, and with it everything that could rely on its
    /// locks: it is not waited for, and does not come back.
    pub fn is_dead(&mut self, client: ClientId) {
        if self.idle.remove(&client).is_some() {
            return;
        }
        if self.recovering && self.registry.clients.get(client).is_none() {
            self.removed.insert(client);
            self.has_told(client);
        }
    }

    /// A client of the predecessor is here, or a member once more: it may say once that it has told
    /// its claims.
    pub fn came_back(&mut self, now: ServerTime, client: ClientId) {
        self.reinits.insert(client);
        self.idle.remove(&client);
        if !planted::is(Bug::ReturnedGivenUp) {
            self.awaited.given_up.remove(&client);
        }
        if self.recovering && !self.has_claimed_all(client) && !self.awaited.is_telling(client) {
            self.awaited.telling.insert((now, client));
        }
        if self.recovering && self.awaited.is_unlisted && !self.has_claimed_all(client) {
            self.awaited.missing.entry(client).or_insert(NEVER); // what it tells is waited for
        }
    }

    /// Until when a client of the predecessor may rely on what it has by its session there.
    pub(crate) fn promised_until(&self, client: ClientId) -> Option<ServerTime> {
        let is_kept = !planted::is(Bug::PredecessorsPromise);
        self.awaited.promised.get(&client).copied().filter(|_| is_kept)
    }

    /// Clients of the predecessor that were never given a lock, and have not come yet.
    pub fn idle(&self) -> impl Iterator<Item = ClientId> + '_ {
        self.idle.keys().copied()
    }

    /// Whether this is one of them.
    pub fn is_idle(&self, client: ClientId) -> bool {
        self.idle.contains_key(&client)
    }

    /// A client that is here, has had as long as the deadline to tell everything, and has not said
    /// that it has: [`membership`](crate::membership) decides what becomes of it. Each is
    /// named once, and once more if an operator does not want to wait.
    pub fn take_laggard(&mut self, now: ServerTime) -> Option<Laggard> {
        self.lags_at().filter(|&at| at <= now)?;
        let laggard = self.awaited.telling.pop_first()?;
        self.awaited.late.insert(laggard);
        Some(Laggard { client: laggard.1, is_hurried: self.awaited.is_hurried })
    }

    /// When the next client lags.
    pub(super) fn lags_at(&self) -> Option<ServerTime> {
        let telling_ns = u64::from(self.awaited.telling_s) * NS;
        self.awaited.telling.first().map(|(since, _)| since.plus_ns(telling_ns))
    }

    /// An operator does not want to wait for those that are not here, nor, beyond the deadline, for
    /// those that do not tell everything. What they held may be given to others while they rely
    /// on it.
    pub fn hurries(&mut self) {
        let awaited = &mut self.awaited;
        awaited.is_hurried = true;
        awaited.telling.append(&mut awaited.late);
    }

    /// Everything of this client is to end, which relies on nothing that it has not told, and it
    /// cannot be fenced: a process of it has the memory mapped, and may be stopped. Its chains are
    /// refused there. A recovery waits for it as for one that has not come, and may come back. The
    /// leases that it has claimed are kept.
    pub fn gives_up(&mut self, client: ClientId) {
        let is_open = self.recovering && !self.has_claimed_all(client);
        if is_open && !planted::is(Bug::StoppedAwaited) {
            self.awaited.given_up.insert(client);
        }
    }

    /// Whether it was given up, and has not come back.
    pub(super) fn is_given_up(&self, client: ClientId) -> bool {
        self.awaited.given_up.contains(&client)
    }

    /// One of the predecessor's clients has nothing more to claim: perhaps it was the last.
    pub(super) fn has_told(&mut self, client: ClientId) {
        let awaited = &mut self.awaited;
        awaited.missing.remove(&client);
        awaited.given_up.remove(&client);
        awaited.told.insert(client);
        awaited.telling.retain(|(_, telling)| *telling != client);
        awaited.late.retain(|(_, late)| *late != client);
    }

    /// Whether this client has nothing to tell, or has told it.
    pub fn has_told_all(&self, client: ClientId) -> bool {
        !self.recovering || self.has_claimed_all(client)
    }

    pub(super) fn has_claimed_all(&self, client: ClientId) -> bool {
        self.awaited.told.contains(&client)
    }

    /// Everything was heard that had come by then: who has not come by then has not come.
    pub fn has_heard(&mut self, until: ServerTime) {
        self.awaited.heard = self.awaited.heard.max(until);
    }

    /// Whether a client is here and may tell something.
    fn is_here(&self, client: ClientId) -> bool {
        let is_known = self.registry.clients.get(client).is_some();
        is_known && !self.is_given_up(client)
    }

    /// Whether no client is waited for any more.
    fn all_have_told(&self) -> bool {
        let early = u64::from(planted::is(Bug::RecoveryEarly));
        let told = self.awaited.answered() as u64 + early;
        let is_counted = told >= self.config.recovery_clients.into() || self.awaited.is_hurried;
        let mut missing = self.awaited.missing.iter();
        let is_over = |(&client, &until): (&ClientId, &ServerTime)| {
            let is_late = until <= self.awaited.heard || self.awaited.is_hurried;
            is_late && !self.is_here(client)
        };
        is_counted && !self.waits_for_operator() && missing.all(is_over)
    }

    /// Whether nothing but an operator ends the recovery.
    fn waits_for_operator(&self) -> bool {
        self.awaited.is_unlisted && !self.awaited.is_hurried
    }

    /// When the recovery may be over although nothing comes; the driver listens then, and says so
    /// by [`has_heard`](Self::has_heard).
    pub fn recovery_due(&self) -> Option<ServerTime> {
        if !self.recovering || self.waits_for_operator() {
            return None;
        }
        let mut due = Some(ServerTime(0));
        for (&client, &until) in &self.awaited.missing {
            let until = if self.awaited.is_hurried { ServerTime(0) } else { until };
            due = due.filter(|_| !self.is_here(client) && until != NEVER).map(|due| due.max(until));
        }
        let told = self.awaited.answered();
        let early = usize::from(planted::is(Bug::RecoveryEarly));
        let wanted = self.config.recovery_clients as usize;
        due.filter(|_| told + early >= wanted || self.awaited.is_hurried)
    }

    /// The recovery is over as soon as the primary has its next step.
    pub(super) fn recovery_is_over(&self) -> Option<ServerTime> {
        self.recovery_due().filter(|&due| due <= self.awaited.heard)
    }

    /// Ends the recovery if no client is waited for any more.
    pub(super) fn recover(&mut self, mem: &mut dyn LockMemory) {
        if self.recovering && self.all_have_told() {
            let given_up = self.awaited.missing.len();
            let (claims, lost) = self.settle_all(mem);
            let clients = self.awaited.told.len();
            self.recovered = Some(Recovered { clients, given_up, claims, lost });
            let given_up = std::mem::take(&mut self.awaited.given_up);
            self.awaited = Awaited { given_up, ..Awaited::default() };
        }
    }

    /// The clients that were given up when the recovery ended, once: what they had claimed without
    /// a lease was not kept.
    pub(crate) fn take_given_up(&mut self) -> BTreeSet<ClientId> {
        std::mem::take(&mut self.awaited.given_up)
    }

    /// What came of the recovery, once.
    pub fn take_recovered(&mut self) -> Option<Recovered> {
        self.recovered.take()
    }

    /// How far the recovery is; `None`: there is none.
    pub fn progress(&self) -> Option<Progress> {
        if !self.recovering {
            return None;
        }
        let absent = self.awaited.missing.iter().filter(|(&client, _)| !self.is_here(client));
        let missing: Vec<_> =
            absent.map(|(&client, &until)| (client, (until != NEVER).then_some(until))).collect();
        let told = self.awaited.told.len() as u32;
        let known = self.awaited.missing.len() as u32 + told;
        Some(Progress {
            expected: known.max(self.config.recovery_clients),
            back: known - missing.len() as u32,
            told,
            claims: self.claims.len(),
            missing,
            is_unlisted: self.awaited.is_unlisted,
        })
    }
}
