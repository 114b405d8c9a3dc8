// SPDX-License-Identifier: MIT OR Apache-2.0
//! The locks and the clients of a primary: its tables and its arbiter.
//!
//! ```text
//!   control connection ──ControlRequest──▶ control         ──▶ ControlReply
//!   command channel    ──Request─────────▶ command         ──▶ Sent, now or later
//!                      ──Chain (tcp)─────▶ check_chain, [memory executes], executed
//!   membership         ──────────────────▶ add_client, detached, lapse, fenced, then step until
//!                                          nothing is left
//!   clock              ──────────────────▶ step, when next_wakeup has come
//! ```
//! *Fencing comes before cleanup*: [`Locks::fenced`] is called only when nothing of the client can
//! act on lock memory any more.

mod awaited;
mod chain;
mod counting;
mod drain;
mod holds;
mod keepers;
mod listeners;
mod objects;
mod recovery;
mod rights;
mod settlement;
mod snapshot;
mod stale_waits;
mod undo;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use crate::arbiter::Sent;
use awaited::Awaited;
pub use awaited::{Known, Laggard, Progress, Recovered, TELLING_S};
pub use drain::Draining;
pub(crate) use holds::Had;
pub use holds::{Lapse, Lapsed, LAPSE_SLICE, LOOKS_MAX};
pub use snapshot::{ClientSnapshot, LockSnapshot, WaitersSnapshot};
pub use undo::Step;

use crate::arbiter::{Arbiter, Caller, LockRef};
use crate::budget::work::{Metered, FRAME_WORK};
use crate::clock::ServerTime;
use crate::counters::{Counter, Counters, Told};
use crate::ids::{ClientId, Epoch, Handle, LockId, Seq, Slot};
use crate::limits::{BATCH_MAX, DESC_LEN_MAX};
use crate::memory::exec::LockMemory;
use crate::planted::{self, Bug};
use crate::registry::{Client, Registry, What};
use crate::rights::Access;
use crate::roster::Change;
use crate::token::TokenFloor;
use crate::wire::control::{ControlReply, ControlRequest, LockDesc};
use crate::wire::fabric::{Executes, FabricKind};
use crate::wire::message::{Reply, Request};
use crate::wire::status::Status;
use rights::may_request;
use settlement::Claimed;
use stale_waits::StaleWaits;
use undo::Leaving;

/// The configuration of a primary.
#[derive(Clone, Debug)]
pub struct PrimaryConfig {
    /// The incarnation of the primary.
    pub epoch: Epoch,
    /// `trans_mode_t` of the C API; clients must have the same value.
    pub tp_mode: u8,
    /// How many clients must have claimed everything before the primary serves any client; 0: no
    /// recovery.
    pub recovery_clients: u32,
    /// The most clients.
    pub clients_max: usize,
    /// The most locks.
    pub locks_max: usize,
    /// The most objects.
    pub objects_max: usize,
    /// How long a client that has closed its connections keeps what it has without a lease;
    /// `None`: for ever.
    pub absent_grace_ns: Option<u64>,
    /// The number above which this primary's fencing tokens are.
    pub tokens: TokenFloor,
}

/// The locks and objects of a primary, and what clients have of them.
#[derive(Debug)]
pub struct Locks {
    config: PrimaryConfig,
    registry: Registry,
    arbiter: Arbiter,
    /// The number of each client's last request; the primary has executed every request with this
    /// number or a smaller one.
    last_seq: BTreeMap<ClientId, Seq>,
    /// Clients that have ever been able to operate on the words themselves.
    one_sided: BTreeSet<ClientId>,
    recovering: bool,
    /// Clients that have come back and have not said that they have claimed everything.
    reinits: BTreeSet<ClientId>,
    awaited: Awaited,
    /// Clients of the predecessor that never got a lock from it and have not come yet.
    idle: BTreeMap<ClientId, awaited::Proofs>,
    recovered: Option<Recovered>,
    /// Clients that were fenced in this recovery. The primary has dropped their claims, which they
    /// do not know, so it does not adopt them a second time.
    removed: BTreeSet<ClientId>,
    /// The claims, until the recovery is over.
    claims: BTreeMap<(Slot, ClientId), Claimed>,
    leaving: Leaving,
    /// The drain that is under way; `None`: clients may get locks.
    drain: Option<drain::Drain>,
    /// Clients that want to hear when they keep other clients waiting.
    listeners: listeners::Listeners,
    /// Waits of ended channels that the primary still has to drop.
    deaf: StaleWaits,
    /// Clients that were proxied and now operate on the words themselves, each with the handle of
    /// the next lock that has to learn of that.
    changing: BTreeMap<ClientId, Handle>,
    /// Work units since the last [`take_work`](Locks::take_work).
    work: u32,
    counters: Arc<Counters>,
    /// The rules, and the rights of each client.
    access: Access,
    /// How much of each client's own counts the primary has already added to its counters.
    told: BTreeMap<ClientId, Told>,
    /// The last client of the last [`collect_some`](Locks::collect_some); `None`: the next call
    /// begins with the first client.
    collected: Option<ClientId>,
}

impl Locks {
    /// The tables of a primary without clients, locks or objects.
    pub fn new(config: PrimaryConfig) -> Self {
        let mut registry = Registry::new(config.clients_max, config.locks_max, config.objects_max);
        registry.locks.starts_above(config.tokens.start());
        Self {
            registry,
            arbiter: Arbiter::default(),
            last_seq: BTreeMap::new(),
            one_sided: BTreeSet::new(),
            recovering: config.recovery_clients > 0,
            reinits: BTreeSet::new(),
            awaited: Awaited::default(),
            idle: BTreeMap::new(),
            recovered: None,
            removed: BTreeSet::new(),
            claims: BTreeMap::new(),
            leaving: Leaving::default(),
            drain: None,
            listeners: listeners::Listeners::default(),
            deaf: StaleWaits::default(),
            changing: BTreeMap::new(),
            work: 0,
            counters: Arc::default(),
            access: Access::default(),
            told: BTreeMap::new(),
            collected: None,
            config,
        }
    }

    /// The change of the roster that reserves fencing tokens, if one is due; the primary writes it
    /// before it answers more requests. `None` until a client wants the tokens of a lock.
    pub(crate) fn reserve_tokens(&mut self, now: ServerTime) -> Option<Change> {
        let is_asked_for = self.registry.locks.gives_tokens();
        let below = if is_asked_for { self.config.tokens.reserve(now) } else { None };
        below.map(|below| Change::Tokens { below })
    }

    /// When the primary has to renew the reservation of tokens.
    pub(crate) fn next_reserve(&self) -> Option<ServerTime> {
        self.config.tokens.next_reserve()
    }

    /// The configuration.
    pub fn config(&self) -> &PrimaryConfig {
        &self.config
    }

    /// Whether the primary waits for the claims of its predecessor's clients.
    pub fn is_recovering(&self) -> bool {
        self.recovering
    }

    /// The arbiter; models go on with a copy of it after a recovery.
    pub fn arbiter(&self) -> &Arbiter {
        &self.arbiter
    }

    /// Whether there is no room for another client.
    pub fn is_full(&self) -> bool {
        self.registry.clients.is_full()
    }

    /// Adds a client without locks or objects. [`membership`](crate::membership) decides who the
    /// client is, and whether the primary lets it in.
    ///
    /// # Errors
    /// `ServerNoResource`: there is no room. `Error`: the client is already known.
    pub fn add_client(&mut self, client: ClientId) -> Result<(), Status> {
        self.registry.clients.add(client)
    }

    /// Handles that a client has a new command channel: its requests count from 1 again, and its
    /// waits on an earlier channel end.
    pub fn attached(
        &mut self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        client: ClientId,
        fabric: FabricKind,
        out: &mut Vec<Sent>,
    ) {
        self.collect(mem, client); // the new channel may start its counts at 0
        self.last_seq.remove(&client);
        self.detached(now, mem, client, out);
        self.will_attach(client, fabric);
        let is_remote = fabric.executes() == Executes::Primary;
        if !self.one_sided.contains(&client) || planted::is(Bug::RelayTooSoon) && is_remote {
            self.arbiter.proxy(client);
            self.changes(client);
        }
    }

    /// Handles that a channel for a client's prepared session is being made: from now on the client
    /// may reach the memory by this fabric.
    pub fn will_attach(&mut self, client: ClientId, fabric: FabricKind) {
        if fabric.executes() != Executes::Primary {
            self.one_sided.insert(client);
            if !planted::is(Bug::RelayKept) {
                self.arbiter.unproxy(client);
                self.changes(client);
            }
        }
    }

    /// Handles that a command channel of this client has ended. The client's waits end, because a
    /// grant would not reach the client. If there are many waits, [`step`](Self::step) ends the
    /// rest.
    pub fn detached(
        &mut self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        client: ClientId,
        out: &mut Vec<Sent>,
    ) {
        if self.known(client).is_some() {
            self.listeners.channel_ended(client);
            self.is_deaf(now, mem, client, out);
        }
    }

    /// A client for which others have waited too long, although it may hold nothing: it is stopped
    /// between two word operations of one operation, and only that client knows whether it is a
    /// reader. The last check of the lock decides, because the client may go on while this primary
    /// stands still, or waits.
    pub fn hinderer(&self, skip: &dyn Fn(ClientId) -> bool) -> Option<ClientId> {
        self.arbiter.hinderer(skip)
    }

    /// Records that a client was cut off because others have waited too long: what it keeps is from
    /// now on a hold like any other, which ends with its lease or its session.
    pub(crate) fn keeps_no_more(&mut self, client: ClientId) {
        self.arbiter.keeps_no_more(client);
    }

    /// Handles that a client that was cut off is back: before it counts as a hinderer again, it has
    /// as much time as any other client.
    pub fn goes_on(&mut self, now: ServerTime, client: ClientId) {
        self.arbiter.goes_on(now, client);
    }

    /// Handles a request on the control connection of a member, except `Init` and `Reinit`. After
    /// `Deinit` the driver closes the client's channels, and then calls [`fenced`](Self::fenced).
    pub fn control(
        &mut self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        client: ClientId,
        request: ControlRequest,
        out: &mut Vec<Sent>,
    ) -> ControlReply {
        if self.known(client).is_none() {
            return ControlReply::Error(Status::Error);
        }
        let mut mem = Metered::new(mem);
        mem.visited(FRAME_WORK as usize + items(&request));
        let reply = self.controlled(now, &mut mem, client, request, out);
        self.work = self.work.saturating_add(mem.work());
        reply
    }

    fn controlled(
        &mut self,
        now: ServerTime,
        mem: &mut Metered<'_>,
        client: ClientId,
        request: ControlRequest,
        out: &mut Vec<Sent>,
    ) -> ControlReply {
        use ControlRequest as R;
        let in_recovery = match request {
            R::ReinitDone | R::UpdateLocks(_) => true,
            // Served during recovery, too: a client that waits for the claims of other clients must
            // not count as silent.
            R::Heartbeat => !planted::is(Bug::BeatRefused),
            _ => false,
        };
        if self.recovering && !in_recovery {
            return ControlReply::Error(Status::NotReady);
        }
        match request {
            R::Init { .. } | R::Reinit { .. } | R::Operate(_) => ControlReply::Error(Status::Error),
            R::ReinitDone => self.reinit_done(mem, client),
            R::Deinit => {
                // The objects of a client that leaves stay: any client may destroy them.
                self.registry.objects.disown(client);
                ControlReply::Done
            }
            R::Heartbeat => {
                // the membership puts the real values in
                let (until, asked) = (ServerTime(0), ServerTime(0));
                let (recovering, recovery) = (self.recovering, self.have_told());
                ControlReply::Alive { now, recovering, until, asked, recovery }
            }
            R::GetLocks(descs) => {
                mem.visited(self.quota_work(client));
                self.get_locks(mem, client, &descs)
            }
            R::ReleaseLocks(locks) => self.release_locks(now, mem, client, &locks, out),
            R::UpdateLocks(claims) => {
                mem.visited(claims.len() * self.quota_work(client));
                self.update_locks(now, mem, client, &claims)
            }
            R::ObjectCreate { .. }
            | R::ObjectGet { .. }
            | R::ObjectRelease(_)
            | R::ObjectDestroy(_) => self.object(now, mem, client, request),
        }
    }

    fn reinit_done(&mut self, mem: &mut dyn LockMemory, client: ClientId) -> ControlReply {
        if !self.reinits.remove(&client) {
            return ControlReply::Error(Status::Error);
        }
        if self.recovering {
            self.has_told(client);
            self.recover(mem);
        }
        ControlReply::Done
    }

    fn get_locks(
        &mut self,
        mem: &mut dyn LockMemory,
        client: ClientId,
        descs: &[LockDesc],
    ) -> ControlReply {
        if descs.len() > BATCH_MAX || !descs.iter().all(|d| valid_name(&d.name)) {
            return ControlReply::Error(Status::Invalid);
        }
        let results = descs.iter().map(|desc| self.get_lock(mem, client, desc)).collect();
        ControlReply::Locks(results)
    }

    fn release_locks(
        &mut self,
        now: ServerTime,
        mem: &mut Metered<'_>,
        client: ClientId,
        ids: &[LockId],
        out: &mut Vec<Sent>,
    ) -> ControlReply {
        if ids.len() > BATCH_MAX {
            return ControlReply::Error(Status::Invalid);
        }
        let mut statuses = Vec::with_capacity(ids.len());
        for &id in ids {
            let (mut t, locks, _) = self.registry.split(mem);
            statuses.push(match locks.release(&mut t, client, id) {
                Ok(released) => {
                    self.reference_dropped(now, mem, client, released, out);
                    Status::Success
                }
                Err(status) => status,
            });
        }
        ControlReply::Statuses(statuses)
    }

    /// Handles a request on a client's command channel.
    pub fn command(
        &mut self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        client: ClientId,
        seq: Seq,
        request: Request,
        out: &mut Vec<Sent>,
    ) {
        let last = self.last_seq.get(&client).copied().unwrap_or(Seq(0));
        if seq <= last && !planted::is(Bug::RetryExecutedTwice) {
            return; // a repetition: the request was executed, and its answer is under way
        }
        self.last_seq.insert(client, seq);
        let mut answer = |reply| out.push(Sent { client, seq, reply });
        if request == Request::Ping {
            return answer(Reply::Pong { at: now });
        }
        if self.recovering {
            if request.has_reply() {
                answer(Reply::Denied { status: Status::NotReady, word: 0 });
            }
            return;
        }
        let handle = request.handle().unwrap_or(Handle(u32::MAX));
        let entry = self.known(client).and_then(|c| c.handle(handle));
        let mut mem = Metered::new(mem);
        if let Some(entry) = entry {
            self.drop_deaf_wait(now, &mut mem, client, entry.slot, out);
        }
        let slot = entry.filter(|e| matches!(e.what, What::Lock(..))).map(|e| e.slot);
        let lock = slot.and_then(|slot| lock_ref(&self.registry, slot));
        let Some(lock) = lock else {
            self.count(Counter::InvalidOffset);
            if request.has_reply() {
                out.push(Sent {
                    client,
                    seq,
                    reply: Reply::Denied { status: Status::LockNotGet, word: 0 },
                });
            }
            return;
        };
        let lock_type = lock.lock_type;
        let before = out.len();
        let name = self.registry.locks.by_slot(lock.slot).map_or(&[][..], |lock| lock.name());
        let may = match self.refuses(&request) {
            true => Err(Status::NotReady),
            false => may_request(&mut self.access, &self.arbiter, client, name, &request),
        };
        if let Err(status) = may {
            out.push(Sent { client, seq, reply: Reply::Denied { status, word: 0 } });
            return;
        }
        let (from, slot) = (Caller { client, handle, seq }, lock.slot);
        let request = self.as_allowed(client, name, request);
        mem.visited(1 + self.arbiter.searched(slot)); // counts the search for the client's records
        match request {
            Request::Listen { knows, until, .. } => {
                if knows {
                    self.is_in_use(now, &mut mem, (client, slot), out);
                }
                self.listens(now, &mut mem, (slot, from), (knows, until), out);
            }
            _ => {
                self.arbiter.request(now, &mut mem, lock, from, request, out);
                self.may_be_contended(now, &mut mem, slot, out);
            }
        }
        self.work = self.work.saturating_add(mem.work());
        for sent in &out[before..] {
            if sent.seq == seq && sent.client == client {
                self.count_reply(lock_type, &request, &sent.reply);
            }
        }
    }

    /// Takes the work units of requests since the last call. Those of [`step`](Self::step) are not
    /// in them.
    pub fn take_work(&mut self) -> u32 {
        std::mem::take(&mut self.work)
    }

    /// The client, if the primary knows it and it is not leaving.
    fn known(&self, client: ClientId) -> Option<&Client> {
        self.registry.clients.get(client).filter(|_| !self.is_leaving(client))
    }

    /// When [`step`](Self::step) next has something to do, or the next client becomes a laggard
    /// ([`take_laggard`](Self::take_laggard)); a time in the past: now.
    pub fn next_wakeup(&self) -> Option<ServerTime> {
        self.next_step().into_iter().chain(self.lags_at()).min()
    }

    pub(crate) fn next_step(&self) -> Option<ServerTime> {
        let is_busy = self.is_undoing() || !self.deaf.is_empty() || !self.changing.is_empty();
        match is_busy || self.listeners.is_due() {
            true => Some(ServerTime(0)),
            false => {
                let others = self.recovery_is_over().into_iter().chain(self.next_drain());
                self.arbiter.next_wakeup().into_iter().chain(others).min()
            }
        }
    }

    /// Checks that all tables agree, and that no unknown client is queued. Visits everything, so it
    /// is only for tests and the simulator.
    ///
    /// # Errors
    /// Something of a client that has left is still there.
    ///
    /// # Panics
    /// If the tables do not agree with each other.
    pub fn assert_consistent(&self) -> Result<(), String> {
        self.registry.assert_consistent();
        let clients = &self.registry.clients;
        let known = |client: &ClientId| clients.get(*client).is_some();
        if !self.last_seq.keys().all(known) || !self.claims.keys().all(|(_, c)| known(c)) {
            return Err("something is remembered of a client that is gone".to_string());
        }
        if !self.access.is_of(|client| known(&client)) {
            return Err("rights are kept of a client that is gone".to_string());
        }
        let refs = |slot| self.registry.locks.refs(slot);
        let has = |client, slot| refs(slot).iter().any(|r| r.0 == client);
        self.listeners.assert_consistent(has)?;
        let is_deaf = |client, slot| self.is_leaving(client) || self.deaf.contains(client, slot);
        self.arbiter.assert_consistent(&refs, &is_deaf)
    }

    /// Whether this client is queued for the lock of this slot.
    pub fn is_queued(&self, slot: Slot, client: ClientId) -> bool {
        self.arbiter.is_queued(slot, client)
    }

    /// How many clients are queued for the lock of this slot.
    pub fn waiters(&self, slot: Slot) -> usize {
        self.arbiter.waiters(slot)
    }
}

fn items(request: &ControlRequest) -> usize {
    match request {
        ControlRequest::GetLocks(descs) => descs.len(),
        ControlRequest::ReleaseLocks(locks) => locks.len(),
        ControlRequest::UpdateLocks(claims) => claims.len(),
        _ => 0,
    }
}

fn valid_name(name: &[u8]) -> bool {
    (1..=DESC_LEN_MAX).contains(&name.len())
}

fn lock_ref(registry: &Registry, slot: Slot) -> Option<LockRef<'_>> {
    let record = registry.locks.by_slot(slot)?;
    let (lock_type, tokens) = (record.lock_type(), record.tokens());
    Some(LockRef { slot, lock_type, tokens, refs: record.refs() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Deadline;
    use crate::token::Token;

    #[test]
    fn what_is_remembered_of_a_client_that_is_not_known_does_not_fit() {
        let config = PrimaryConfig {
            epoch: Epoch(1),
            tp_mode: 0,
            recovery_clients: 0,
            clients_max: 2,
            locks_max: 2,
            objects_max: 2,
            absent_grace_ns: None,
            tokens: TokenFloor::default(),
        };
        let [known, gone] = [1, 2].map(|id| ClientId::new(id).unwrap());
        for remember in [
            |locks: &mut Locks, client| _ = locks.last_seq.insert(client, Seq(1)),
            |locks: &mut Locks, client| {
                let (mode, since) = (crate::wire::message::Mode::Shared, ServerTime(0));
                let (is_held, deadline, granted_at, place) =
                    (true, Deadline::NEVER, (Epoch(1), Deadline::NONE), None);
                let token = Token::NONE;
                let claim =
                    Claimed { client, mode, is_held, deadline, granted_at, since, place, token };
                locks.claims.insert((Slot(1), client), claim);
            },
        ] {
            let mut locks = Locks::new(config.clone());
            locks.add_client(known).unwrap();
            remember(&mut locks, known);
            assert_eq!(locks.assert_consistent(), Ok(()));
            remember(&mut locks, gone);
            assert!(locks.assert_consistent().is_err());
        }
    }
}
