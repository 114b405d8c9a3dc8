// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operators who take away what clients hold, or have the primary give no locks.

use std::collections::BTreeSet;

use dlock_core::clock::ServerTime;
use dlock_core::ids::ClientId;
use dlock_core::lock::Op;
use dlock_core::membership::Exit;
use dlock_core::primary::{Draining, Event, Primary};
use dlock_core::wire::control::{Act, Whose};
use dlock_core::wire::message::LockType;
use dlock_core::wire::status::Status;

use super::control::desc;
use super::plan::Fabric;
use super::server::World;
use super::state::Sys;

/// The acts of the operators.
#[derive(Clone, Debug, Default)]
pub struct Operators {
    /// Whether a drain was requested.
    is_wanted: bool,
    /// Since when no client waits in the drain, on the server clock.
    since: Option<ServerTime>,
    /// Clients that were removed with their leases. Nothing is promised to such a client until it
    /// knows.
    removed: BTreeSet<ClientId>,
}

impl World {
    /// An operator takes something away, or begins or ends a drain; it may concern this client.
    pub(super) fn operates(&mut self, c: usize) {
        let (grace_s, now) = (self.sys.rng.pick(&[0, 0, 1, 4]), self.sys.rng.chance(500));
        let id = self.sys.clients[c].id;
        let l = self.sys.rng.below(self.sys.plan.locks.len() as u64) as usize;
        let name = desc(&self.sys, c, l).name;
        let client = id.filter(|_| self.sys.rng.chance(300));
        let whose = match (self.sys.rng.below(8), id) {
            (0 | 1, Some(id)) => Whose::Client(id),
            (2..=4, _) => Whose::Holders { name, client },
            (5, _) => Whose::Departed,
            _ => return self.drains(!self.sys.operators.is_wanted),
        };
        self.acts(Act::TakeAway { whose, grace_s, now });
    }

    /// An operator begins a drain, or ends it.
    pub(super) fn drains(&mut self, is_on: bool) {
        self.sys.operators.is_wanted = is_on;
        self.sys.operators.since = None;
        self.acts(Act::Drain { is_on });
    }

    /// Ends a drain after the faults.
    pub(super) fn drain_ends(&mut self) {
        if self.sys.operators.is_wanted {
            self.drains(false);
        }
    }

    fn acts(&mut self, act: Act) {
        if self.primary.is_none() {
            return;
        }
        self.sys.log(|| format!("OPERATOR {act:?}"));
        if let Act::TakeAway { whose: Whose::Client(client), now: true, .. } = act {
            self.gives_up_missing(client);
        }
        self.tells(Event::Operate { act, by: "an operator".into() });
        self.finish_turn();
        self.schedule_tick();
    }

    /// An operator says that a client which a recovery waits for has ended: nothing is promised to
    /// it any more.
    fn gives_up_missing(&mut self, client: ClientId) {
        let progress = self.primary.as_ref().and_then(|primary| primary.locks().progress());
        if !progress.is_some_and(|so_far| so_far.missing.iter().any(|one| one.0 == client)) {
            return;
        }
        let sys = &mut self.sys;
        sys.operators.removed.insert(client);
        for c in (0..sys.clients.len()).filter(|&c| sys.clients[c].id == Some(client)) {
            let who = sys.who(c);
            sys.oracle.gone(who);
        }
    }

    /// A client is removed; an operator may have ended its leases as well.
    pub(super) fn is_removed(&mut self, client: ClientId, exit: Exit) {
        if exit == Exit::OperatorNow {
            self.sys.operators.removed.insert(client);
            if let Some(s) = self.sys.session(client) {
                let who = u64::from(s.client) << 32 | u64::from(s.inc);
                self.sys.oracle.gone(who);
            }
        }
    }

    /// Checks after each turn of the primary that the lock words are right and that a drain lets no
    /// client wait.
    pub(super) fn words_and_acts(&mut self) {
        self.nothing_waits_in_a_drain();
        self.counts_waiters();
        self.waiters_bits();
        self.readers_are_counted();
    }

    /// Checks that no client waits once a drain has ended the waits.
    fn nothing_waits_in_a_drain(&mut self) {
        let draining = self.primary.as_ref().and_then(|one| one.locks().draining());
        let has_ended_waits = matches!(draining, Some(Draining::Held(_) | Draining::Idle));
        if !has_ended_waits {
            return self.sys.operators.since = None;
        }
        let now = self.sys.server_now();
        self.sys.operators.since.get_or_insert(now);
        for l in 0..self.sys.plan.locks.len() {
            let waiters = |one: &Primary| {
                let slot = self.sys.slot_of(l, one)?;
                Some(one.locks().waiters(slot)).filter(|&waiters| waiters > 0)
            };
            if self.primary.as_ref().and_then(waiters).is_some() {
                return self.sys.fail(format!("drain: a client waits for lock {l}"));
            }
        }
    }
}

impl Sys {
    /// Whether an operator has ended this client's leases and the client does not know that yet.
    pub(super) fn is_without_promise(&self, c: usize) -> bool {
        self.clients[c].id.is_some_and(|id| self.operators.removed.contains(&id))
    }

    /// Checks that a client whose chains the primary executes gets no lock in a drain. A ticket of
    /// a fair lock that was taken before the drain may still be granted.
    pub(super) fn is_drained(&self, c: usize, l: usize, status: Status) -> Result<(), String> {
        let t = &self.clients[c].threads[l];
        let asks = match t.op {
            Op::TryLock { lease, .. } | Op::Lock { lease, .. } => !lease.is_none(),
            Op::Extend { .. } | Op::Unlock | Op::Downgrade => false,
        };
        // a client that keeps a lock enters it until it hears that the lock is wanted
        let is_new = t.entry.as_ref().is_some_and(|entry| entry.refs() == 1 && !entry.is_kept());
        let began_in_it = |at: ServerTime| t.called.0 == self.epoch && t.called.1 > at;
        let is_refused = self.operators.since.is_some_and(began_in_it) && t.fabric == Fabric::Tcp;
        let gets = status == Status::Success && asks && is_new;
        match gets && is_refused && self.plan.locks[l] != LockType::Fair {
            true => Err(format!("drain: client {c} gets lock {l}")),
            false => Ok(()),
        }
    }
}
