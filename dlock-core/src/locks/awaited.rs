// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clients for which a recovery waits, and for how long.
//!
//! ```text
//!   counted: a number of clients, for as long as it takes
//!   known:   each until it has claimed everything, or is proved dead, or an operator ends the
//!            wait, or the deadline and its own horizon have passed and it has not come
//!   lost:    the clients are not known: all that come, until an operator ends the wait
//!   idle:    the clients that were never given a lock: the recovery does not wait for them
//! ```
//! A client with a horizon neither operates on its locks nor relies on them beyond the horizon,
//! counted from the last answer of the predecessor, which answers nothing after its successor has
//! started. A client without a horizon cannot learn that its locks are given to others, so the
//! recovery waits for it without end. A client that comes back with a shorter horizon may not have
//! heard of the new one: until the horizon at the predecessor has passed, nothing of the client
//! ends because of silence. A client that never got a lock has nothing to claim, and may not even
//! know that the predecessor had let it in: it may come at any time, and the primary lets it in by
//! its proof.
//!
//! A client that is here but does not say that it has claimed everything has as long as the
//! deadline, and at least [`TELLING_S`], from when it came ([`Locks::take_laggard`]).

use std::collections::{BTreeMap, BTreeSet};

use super::Locks;
use crate::clock::{ServerTime, NS};
use crate::ids::{ClientId, Identity};
use crate::memory::exec::LockMemory;
use crate::planted::{self, Bug};
use crate::wire::control::{Secret, Told};
use crate::wire::status::Status;

/// A client of the predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The client.
    pub client: ClientId,
    /// The secrets by which the client may prove who it is.
    pub secrets: [Secret; 3],
    /// The identity of the certificate that registered the client; `None`: there was none.
    pub identity: Option<Identity>,
    /// The horizon of the client's session, seconds; 0: unlimited.
    pub horizon_s: u32,
    /// Whether the predecessor gave the client a lock, so that the client may rely on a hold.
    pub has_locks: bool,
}

/// The progress of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Clients for which the recovery waits, or has waited.
    pub expected: u32,
    /// How many of the expected clients have come.
    pub back: u32,
    /// How many of the expected clients have claimed everything.
    pub told: u32,
    /// How many claims there are so far.
    pub claims: usize,
    /// The clients that have not come, each with the time until which the recovery waits for it;
    /// `None`: without end.
    pub missing: Vec<(ClientId, Option<ServerTime>)>,
    /// Whether there may be other clients, because the roster was lost.
    pub is_unlisted: bool,
}

/// The result of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// How many clients have claimed everything.
    pub clients: usize,
    /// For how many clients the recovery stopped waiting.
    pub given_up: usize,
    /// How many claims there were.
    pub claims: usize,
    /// How many claims were not granted, because another client had the lock.
    pub lost: usize,
}

/// A client that has not claimed everything in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Laggard {
    /// The client.
    pub client: ClientId,
    /// Whether an operator has ended the wait for this client, although it has no horizon.
    pub is_hurried: bool,
}

#[derive(Debug, Default)]
pub(super) struct Awaited {
    /// Clients that have not claimed everything, each with the time until which the recovery waits
    /// for it.
    missing: BTreeMap<ClientId, ServerTime>,
    /// Until when each client relies on what it has, by its session at the predecessor.
    promised: BTreeMap<ClientId, ServerTime>,
    proofs: BTreeMap<ClientId, Proofs>,
    /// Clients that have come but have not claimed everything, each with the time at which it came.
    telling: BTreeSet<(ServerTime, ClientId)>,
    /// The laggards among the clients in `telling`: those that [`Locks::take_laggard`] has
    /// returned.
    late: BTreeSet<(ServerTime, ClientId)>,
    /// How long each client has to claim everything, seconds.
    telling_s: u32,
    /// The primary has read every request that had come by this time. Only this time decides that a
    /// missing client is late, because the primary itself may have stood still.
    heard: ServerTime,
    /// Clients whose session ended but whose memory access could not be revoked; the recovery
    /// treats them as absent.
    given_up: BTreeSet<ClientId>,
    /// Whether there may be clients that are not listed: then only an operator ends the recovery.
    is_unlisted: bool,
    /// Whether an operator has ended the wait for missing clients.
    is_hurried: bool,
    /// Clients that have said that they claimed everything, or for which the recovery need not
    /// wait.
    told: BTreeSet<ClientId>,
}

/// The proof that a client of the predecessor must show.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proofs {
    /// The client shows one of these secrets.
    secrets: [Secret; 3],
    /// The identity of the certificate that registered the client.
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

    /// How many clients have nothing more to claim.
    fn answered(&self) -> usize {
        self.told.len() + self.given_up.len()
    }
}

/// How long a client that has come has at least to claim everything, seconds.
pub const TELLING_S: u32 = 30;

const NEVER: ServerTime = ServerTime(u64::MAX);

impl Locks {
    /// Begins a recovery that waits for these clients, even if `recovery_clients` of
    /// [`PrimaryConfig`](super::PrimaryConfig) is 0. `now`: a time at which the predecessor answers
    /// nothing any more; the recovery gives up no client before `deadline_s` has passed since then.
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

    /// Begins a recovery without a roster, because the roster was lost: no client gets a lock
    /// before an operator ends the wait ([`hurries`](Self::hurries)). Until then clients may come
    /// back.
    pub fn awaits_unlisted(&mut self) {
        self.awaited.is_unlisted = true;
        self.recovering = true;
    }

    /// Whether the primary may adopt an unknown client from the predecessor: it shows this proof,
    /// on a connection with this certificate.
    ///
    /// # Errors
    /// `ClientRemoved`: the primary may not. `Error`: the proof or the certificate is wrong.
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

    /// Whether the client is in the roster of the predecessor.
    pub(crate) fn is_of_predecessor(&self, client: ClientId) -> bool {
        self.proofs(client).is_some()
    }

    fn proofs(&self, client: ClientId) -> Option<&Proofs> {
        self.idle.get(&client).or_else(|| self.awaited.proofs.get(&client))
    }

    /// Handles that a client of the predecessor has ended, with every process that could rely on
    /// its locks: the recovery does not wait for the client, and the client does not come back.
    pub fn is_dead(&mut self, client: ClientId) {
        if self.idle.remove(&client).is_some() {
            return;
        }
        if self.recovering && self.registry.clients.get(client).is_none() {
            self.removed.insert(client);
            self.has_told(client);
        }
    }

    /// Handles that an operator removes a client of the predecessor that has not come: the client
    /// may not come any more. If its leases end `at_once`, the recovery does not wait for the
    /// client; else it waits until the client's horizon, on which no lease relies any more. Returns
    /// whether the recovery waited for this client.
    pub(crate) fn removes_missing(&mut self, client: ClientId, at_once: bool) -> bool {
        let promised = self.awaited.promised.get(&client).copied();
        let is_here = self.registry.clients.get(client).is_some();
        let waits = self.awaited.missing.get_mut(&client);
        let Some(until) = waits.filter(|_| self.recovering && !is_here) else { return false };
        *until = promised.map_or(*until, |promised| promised.min(*until));
        match at_once {
            true => self.is_dead(client),
            false if planted::is(Bug::RemovedReturns) => {}
            false => _ = self.removed.insert(client),
        }
        true
    }

    /// Handles that a client of the predecessor has come, or that a member has come back: the
    /// client may say once that it has claimed everything.
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
            // the recovery waits for its claims
            self.awaited.missing.entry(client).or_insert(NEVER);
        }
    }

    /// Until when a client of the predecessor may rely on what it has, by its session there.
    pub(crate) fn promised_until(&self, client: ClientId) -> Option<ServerTime> {
        let is_kept = !planted::is(Bug::PredecessorsPromise);
        self.awaited.promised.get(&client).copied().filter(|_| is_kept)
    }

    /// Clients of the predecessor that never got a lock, and have not come yet.
    pub fn idle(&self) -> impl Iterator<Item = ClientId> + '_ {
        self.idle.keys().copied()
    }

    /// Whether the client is one of [`idle`](Self::idle).
    pub fn is_idle(&self, client: ClientId) -> bool {
        self.idle.contains_key(&client)
    }

    /// Takes a client that has come but has not claimed everything in time;
    /// [`membership`](crate::membership) decides what happens to it. Each client is returned once,
    /// and again if an operator ends the wait.
    pub fn take_laggard(&mut self, now: ServerTime) -> Option<Laggard> {
        self.lags_at().filter(|&at| at <= now)?;
        let laggard = self.awaited.telling.pop_first()?;
        self.awaited.late.insert(laggard);
        Some(Laggard { client: laggard.1, is_hurried: self.awaited.is_hurried })
    }

    /// When the next client becomes a laggard.
    pub(super) fn lags_at(&self) -> Option<ServerTime> {
        let telling_ns = u64::from(self.awaited.telling_s) * NS;
        self.awaited.telling.first().map(|(since, _)| since.plus_ns(telling_ns))
    }

    /// Ends the wait for missing clients, and after the deadline also for clients that have come
    /// but not claimed everything. Locks may then go to other clients while such a client still
    /// relies on them.
    pub fn hurries(&mut self) {
        let awaited = &mut self.awaited;
        awaited.is_hurried = true;
        awaited.telling.append(&mut awaited.late);
    }

    /// Handles that a client cannot be fenced, although everything of it is to end and it relies on
    /// nothing but its claims: one of its processes has the memory mapped, and may be stopped. The
    /// memory refuses the client's chains. The recovery treats the client as one that has not come
    /// and that may come back. The leases that the client has claimed stay.
    pub fn gives_up(&mut self, client: ClientId) {
        let is_open = self.recovering && !self.has_claimed_all(client);
        if is_open && !planted::is(Bug::StoppedAwaited) {
            self.awaited.given_up.insert(client);
        }
    }

    /// Whether the recovery has given the client up, and the client has not come back.
    pub(super) fn is_given_up(&self, client: ClientId) -> bool {
        self.awaited.given_up.contains(&client)
    }

    /// Records that a client of the predecessor has nothing more to claim; that may end the
    /// recovery.
    pub(super) fn has_told(&mut self, client: ClientId) {
        let awaited = &mut self.awaited;
        awaited.missing.remove(&client);
        awaited.given_up.remove(&client);
        awaited.told.insert(client);
        awaited.telling.retain(|(_, telling)| *telling != client);
        awaited.late.retain(|(_, late)| *late != client);
    }

    /// Whether the client has nothing to claim, or has claimed everything.
    pub fn has_told_all(&self, client: ClientId) -> bool {
        !self.recovering || self.has_claimed_all(client)
    }

    pub(super) fn has_claimed_all(&self, client: ClientId) -> bool {
        self.awaited.told.contains(&client)
    }

    /// Records that the primary has read every request that had come by this time: a client that
    /// has not come by then is missing.
    pub fn has_heard(&mut self, until: ServerTime) {
        self.awaited.heard = self.awaited.heard.max(until);
    }

    /// Whether a client has come and may claim.
    fn is_here(&self, client: ClientId) -> bool {
        let is_known = self.registry.clients.get(client).is_some();
        is_known && !self.is_given_up(client)
    }

    /// Whether the recovery waits for no client any more.
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

    /// Whether only an operator can end the recovery.
    fn waits_for_operator(&self) -> bool {
        self.awaited.is_unlisted && !self.awaited.is_hurried
    }

    /// When the recovery may end without another request. At that time the driver reads all
    /// requests that have come, and reports that by [`has_heard`](Self::has_heard).
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

    /// When the recovery is over; `None`: not yet. The primary's next step ends it.
    pub(super) fn recovery_is_over(&self) -> Option<ServerTime> {
        self.recovery_due().filter(|&due| due <= self.awaited.heard)
    }

    /// Ends the recovery if it waits for no client any more.
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

    /// Takes the clients that were given up when the recovery ended: the primary has not kept what
    /// they had claimed without a lease.
    pub(crate) fn take_given_up(&mut self) -> BTreeSet<ClientId> {
        std::mem::take(&mut self.awaited.given_up)
    }

    /// Takes the result of the recovery, once.
    pub fn take_recovered(&mut self) -> Option<Recovered> {
        self.recovered.take()
    }

    /// The progress of the recovery; `None`: the primary is not in recovery.
    pub fn progress(&self) -> Option<Progress> {
        if !self.recovering {
            return None;
        }
        let absent = self.awaited.missing.iter().filter(|(&client, _)| !self.is_here(client));
        let missing: Vec<_> =
            absent.map(|(&client, &until)| (client, (until != NEVER).then_some(until))).collect();
        let Told { told, of } = self.have_told();
        let known = self.awaited.missing.len() as u32 + told;
        Some(Progress {
            expected: of,
            back: known - missing.len() as u32,
            told,
            claims: self.claims.len(),
            missing,
            is_unlisted: self.awaited.is_unlisted,
        })
    }

    /// How many clients have claimed everything, and for how many the recovery waits or has waited.
    pub(super) fn have_told(&self) -> Told {
        let told = self.awaited.told.len() as u32;
        let known = self.awaited.missing.len() as u32 + told;
        match self.recovering && !planted::is(Bug::ProgressUntold) {
            true => Told { told, of: known.max(self.config.recovery_clients) },
            false => Told::default(),
        }
    }
}
