// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules of the primary: what the names in a client's certificate permit, and how much.
//! `dlock_core::rights` decides. This module computes the expected answer from the rules alone, and
//! compares.
//!
//! ```text
//!   draw ─▶ Law ─▶ primary: set_rules          client: without the right no grant, and `Denied`
//!    ▲      │                                  primary: a refused request changes nothing,
//!    └ SIGHUP now and then; none at the end    and a quota is neither passed nor cut short
//! ```

use std::collections::BTreeMap;

use dlock_core::clock::Deadline;
use dlock_core::ids::{ClientId, Identity, Slot};
use dlock_core::lock::Op;
use dlock_core::membership::{Ending, State};
use dlock_core::primary::Event;
use dlock_core::rights::{Quotas, Right, Rule, ANY_NAME};
use dlock_core::wire::control::{ControlReply, ControlRequest, LockGrant};
use dlock_core::wire::message::{Reply, Request};
use dlock_core::wire::status::Status;

use super::control::desc;
use super::plan::Fabric;
use super::rng::Rng;
use super::server::World;
use super::state::Sys;

/// The number of identities; a client's number determines its identity.
const IDENTITIES: usize = 2;
/// The most rules that one primary has.
const RULES_MAX: u64 = 4;
/// Of a thousand sets of rules, those that permit every client everything under some prefixes.
const GENEROUS: u32 = 500;

/// The primary's rules in force, which decide what each client may do.
#[derive(Debug, Default)]
pub(crate) struct Law {
    rules: Vec<Rule>,
    /// How often the rules have changed.
    version: u32,
    /// The locks that each client has got at this primary.
    got: Vec<(ClientId, usize)>,
    /// The client of the simulator that each client id was given to. A member without a session
    /// has one too: its primary had no memory for the session.
    pub(super) of: BTreeMap<ClientId, u8>,
}

/// The identity in a client's certificate.
fn identity(c: usize) -> usize {
    c % IDENTITIES
}

fn name(identity: usize) -> String {
    format!("CN=i{identity}")
}

impl Law {
    fn of(&self, identity: usize) -> impl Iterator<Item = &Rule> {
        let name = name(identity);
        let is_for = move |rule: &&Rule| rule.names.iter().any(|n| *n == name || n == ANY_NAME);
        self.rules.iter().filter(is_for)
    }

    /// Whether a client id was given to a client with the certificate of client `c`.
    fn is_of(&self, id: ClientId, c: usize) -> bool {
        self.of.get(&id).is_some_and(|&client| identity(client.into()) == identity(c))
    }

    fn gives(&self, c: usize, right: Right, of: &[u8]) -> bool {
        let covers = |rule: &&Rule| rule.prefixes.iter().any(|prefix| of.starts_with(prefix));
        let mut rules = self.of(identity(c)).filter(covers);
        self.rules.is_empty() || rules.any(|rule| rule.rights.has(right))
    }

    fn names(&self, c: usize) -> bool {
        self.rules.is_empty() || self.of(identity(c)).next().is_some()
    }

    fn bound(&self, c: usize, of: fn(&Quotas) -> Option<u32>) -> Option<usize> {
        let bounds = self.of(identity(c)).filter_map(|rule| of(&rule.quotas));
        bounds.min().map(|max| max as usize)
    }

    /// Draws another set of rules.
    fn draw(rng: &mut Rng) -> Vec<Rule> {
        let whose: [&[usize]; 3] = [&[0], &[1], &[0, 1]];
        let prefixes: [&[&str]; 5] = [&[""], &["a"], &["b", "o"], &["a", "o0"], &["o", "b", "c"]];
        let bound = |rng: &mut Rng, max| match rng.chance(300) {
            true => Some(rng.range(1, max) as u32),
            false => None,
        };
        let mut rules = Vec::new();
        for _ in 0..rng.range(1, RULES_MAX) {
            let names = match rng.below(4) {
                0 => vec![ANY_NAME.to_string()],
                _ => rng.pick(&whose).iter().map(|&i| name(i)).collect(),
            };
            let prefixes = rng.pick(&prefixes).iter().map(|p| p.as_bytes().to_vec()).collect();
            let rights = Right::ALL.into_iter().filter(|_| rng.chance(500)).collect();
            let quotas = Quotas {
                clients_max: bound(rng, 4),
                locks_max: bound(rng, 6),
                objects_max: bound(rng, 2),
                waits_max: bound(rng, 2),
            };
            rules.push(Rule { names, prefixes, rights, quotas });
        }
        if rng.chance(GENEROUS) {
            rules.push(Rule {
                names: vec![ANY_NAME.to_string()],
                prefixes: rng.pick(&prefixes).iter().map(|p| p.as_bytes().to_vec()).collect(),
                rights: Right::ALL.into_iter().collect(),
                quotas: Quotas::default(),
            });
        }
        rules
    }
}

/// The state that a refusal must not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Print(u64, (usize, usize, usize));

/// The state before a request, with which the state after a refusal is compared.
#[derive(Debug)]
pub(crate) struct Before {
    print: Print,
    waits: Option<usize>,
}

fn is_refusal(status: Status) -> bool {
    matches!(status, Status::Denied | Status::ServerNoResource)
}

impl Sys {
    /// A client's certificate: its identity, and the names in it.
    pub(super) fn certificate(&self, c: usize) -> (Option<Identity>, Vec<String>) {
        match self.plan.rules {
            true => (Some(Identity([identity(c) as u8; 32])), vec![name(identity(c))]),
            false => (None, Vec::new()),
        }
    }

    /// The access rules that are in force, for a primary that starts.
    pub(super) fn rules_of_now(&self) -> Vec<Rule> {
        self.law.rules.clone()
    }

    /// Draws the access rules of the first primary.
    pub(super) fn first_rules(&mut self) {
        if self.plan.rules {
            self.law.rules = Law::draw(&mut self.rng);
            let rules = format!("{:?}", self.law.rules);
            self.log(|| rules);
        }
    }

    /// Records the rules under which a call begins.
    pub(super) fn called_under(&mut self, c: usize, l: usize) {
        let version = self.law.version;
        let t = self.thread(c, l);
        t.law = (version, t.entry.as_ref().map_or(Deadline::NONE, |entry| entry.deadline()));
    }

    /// Checks a client's result against the rules, if they have not changed since the call.
    pub(super) fn is_lawful(&self, c: usize, l: usize, status: Status) -> Result<(), String> {
        let t = &self.clients[c].threads[l];
        let (mode, lease, extends) = match t.op {
            Op::TryLock { mode, lease } | Op::Lock { mode, lease } => (mode, lease, false),
            Op::Extend { mode, lease } => (mode, lease, true),
            Op::Unlock if status == Status::Denied => {
                return Err(format!("rights: client {c} is not allowed to give lock {l} back"));
            }
            Op::Unlock | Op::Downgrade => return Ok(()),
        };
        // a client that operates on the memory itself is fenced by new rules, but may be faster
        if !self.plan.rules || t.law.0 != self.law.version || t.fabric != Fabric::Tcp {
            return Ok(());
        }
        let may = self.law.gives(c, Right::to_lock(mode), &desc(self, c, l).name);
        let refs = t.entry.as_ref().map_or(0, |e| e.refs());
        let deadline = t.entry.as_ref().map_or(Deadline::NONE, |e| e.deadline());
        let is_new = if extends { deadline > t.law.1 } else { refs == 1 };
        let is_granted = status == Status::Success && !lease.is_none() && is_new;
        match (may, status) {
            (true, Status::Denied) => {
                Err(format!("rights: client {c} may take lock {l} ({mode:?}), and is denied it"))
            }
            (false, _) if is_granted => {
                Err(format!("rights: client {c} may not take lock {l} ({mode:?}), and is told it"))
            }
            _ => Ok(()),
        }
    }

    fn print(&mut self, totals: (usize, usize, usize)) -> Print {
        let words = self.memory.words.iter();
        let ledgers = self.memory.ledgers.iter().flat_map(|(_, ledger)| ledger.iter());
        let mix = |sum: u64, &value: &u64| {
            (sum ^ value).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29)
        };
        Print(words.chain(ledgers).fold(1, mix), totals)
    }
}

impl World {
    /// Has the primary read its rules again. They are drawn anew; `is_last`: there are none.
    pub(super) fn set_rules(&mut self, is_last: bool) {
        if !self.sys.plan.rules {
            return;
        }
        let rules = if is_last { Vec::new() } else { Law::draw(&mut self.sys.rng) };
        self.sys.log(|| format!("RULES {rules:?}"));
        self.sys.law.rules.clone_from(&rules);
        self.sys.law.version += 1;
        if self.primary.is_none() {
            return;
        }
        let before = self.states();
        self.tells(Event::Rules(rules));
        let is_cut =
            |state| matches!(state, Some(State::Ending(Ending::Fence(_) | Ending::Lapse(_))));
        for (id, state) in before {
            if is_cut(self.state(id)) && !is_cut(Some(state)) {
                self.is_cut_off(id);
            }
        }
        self.finish_turn();
        self.schedule_tick();
    }

    /// Checks the answer to a client that joins: the rules decide whether it is let in.
    pub(super) fn is_let_in(&mut self, c: usize, result: Result<(), Status>, full: bool) {
        if !self.sys.plan.rules {
            return;
        }
        let lives = |state| !matches!(state, State::Undoing | State::Ending(Ending::All(_)));
        let is_of = |id| self.sys.law.is_of(id, c);
        let members = self.states();
        let has = members.iter().filter(|&&(id, state)| lives(state) && is_of(id)).count();
        let max = self.sys.law.bound(c, |quotas| quotas.clients_max);
        let why = match result {
            Ok(()) if !self.sys.law.names(c) => "is let in, and no rule names it",
            Ok(()) if max.is_some_and(|max| has > max) => "is let in beyond clients_max",
            Err(Status::Denied) if self.sys.law.names(c) => "is denied, and a rule names it",
            Err(Status::ServerNoResource) if !full && max.is_none_or(|max| has < max) => {
                "is refused, and clients_max is not reached"
            }
            _ => return,
        };
        let rules = format!("{:?}", self.sys.law.rules);
        self.sys.fail(format!("rights: client {c} {why}: {has} of {max:?}, {rules}"));
    }

    /// Checks that a client which operates on the memory itself has every right on every lock.
    pub(super) fn may_reach(&mut self, c: usize, fabric: Fabric) {
        let law = &self.sys.law;
        let needed = [Right::Get, Right::LockShared, Right::LockExclusive, Right::Objects];
        let everywhere = |rule: &Rule| rule.prefixes.iter().any(Vec::is_empty);
        let gives = |right: &Right| {
            let mut rules = law.of(identity(c)).filter(|rule| everywhere(rule));
            rules.any(|rule| rule.rights.has(*right))
        };
        let may = law.rules.is_empty() || needed.iter().all(gives);
        if self.sys.plan.rules && fabric != Fabric::Tcp && !may {
            self.sys.fail(format!("rights: client {c} reaches memory that is not all its to use"));
        }
    }

    /// A copy of the primary's state before it serves a request, if the plan has rules.
    pub(super) fn before(&mut self, c: usize, lock: Option<usize>) -> Option<Before> {
        let totals = self.primary.as_ref().filter(|_| self.sys.plan.rules)?.locks().totals();
        let print = self.sys.print(totals);
        let waits = lock.map(|_| self.waits_of(c));
        Some(Before { print, waits })
    }

    /// The number of locks that the clients of an identity have got, with or without those of
    /// ending clients.
    fn locks_of(&self, c: usize, with_ending: bool) -> usize {
        let lives = |id: ClientId| {
            let state = self.state(id);
            let ends = matches!(state, None | Some(State::Undoing | State::Ending(Ending::All(_))));
            with_ending || !ends
        };
        let is_of = |id| self.sys.law.is_of(id, c);
        let got = self.sys.law.got.iter().filter(|&&(id, _)| is_of(id) && lives(id));
        got.count()
    }

    /// The number of locks for which the clients of an identity are queued.
    fn waits_of(&self, c: usize) -> usize {
        let Some(primary) = &self.primary else { return 0 };
        // every slot: a client that has crashed is queued until the primary knows of the crash
        let slots = self.sys.plan.locks_max + self.sys.plan.objects_max;
        let slots: Vec<_> = (0..slots as u32).map(Slot).collect();
        let its = self.sys.sessions.iter().filter(|s| identity(s.client.into()) == identity(c));
        its.map(|s| slots.iter().filter(|&&slot| primary.locks().is_queued(slot, s.id)).count())
            .sum()
    }

    /// Checks the answer, if there is one yet, to a request on a command channel.
    pub(super) fn was_lawful(
        &mut self,
        c: usize,
        request: &Request,
        before: Before,
        refused: Option<Status>,
    ) {
        let Some(totals) = self.primary.as_ref().map(|primary| primary.locks().totals()) else {
            return;
        };
        let refused = refused.filter(|&status| is_refusal(status));
        if refused.is_some() && self.sys.print(totals) != before.print {
            let why = format!("rights: client {c} is refused {request:?}, and something changes");
            return self.sys.fail(why);
        }
        let queues = matches!(request, Request::Wait { .. } | Request::TakeTicket { .. });
        let max = self.sys.law.bound(c, |quotas| quotas.waits_max);
        let (Some(had), Some(max)) = (before.waits.filter(|_| queues), max) else { return };
        let has = self.waits_of(c);
        if refused.is_none() && has > had && has > max {
            self.sys
                .fail(format!("quota: client {c} waits for {has} locks, and {max} is the most"));
        }
        if refused == Some(Status::ServerNoResource) && had < max {
            self.sys
                .fail(format!("quota: client {c} may wait for {max} locks, and is refused {had}"));
        }
    }

    /// Checks the answers to requests for locks.
    pub(super) fn were_given(
        &mut self,
        (c, id): (usize, ClientId),
        grants: &[(u8, Result<LockGrant, Status>)],
        before: Before,
    ) {
        for &(l, ref grant) in grants {
            let may = self.sys.law.gives(c, Right::Get, &desc(&self.sys, c, l.into()).name);
            let why = match grant {
                Ok(_) if !may => "is given",
                Err(Status::Denied) if may => "is denied",
                Err(status) if !may && *status != Status::Denied => "is not denied",
                _ => continue,
            };
            return self.sys.fail(format!("rights: client {c} {why} lock {l}: {may}, {grant:?}"));
        }
        let mut new = 0;
        for (l, _) in grants.iter().filter(|(_, grant)| grant.is_ok()) {
            let got = (id, usize::from(*l));
            if !self.sys.law.got.contains(&got) {
                self.sys.law.got.push(got);
                new += 1;
            }
        }
        let (max, has) =
            (self.sys.law.bound(c, |quotas| quotas.locks_max), self.locks_of(c, false));
        if let Some(max) = max.filter(|&max| new > 0 && has > max) {
            self.sys.fail(format!("quota: client {c}: its identity has {has} locks of {max}"));
        }
        let is_short = grants.iter().any(|(_, g)| matches!(g, Err(Status::ServerNoResource)));
        let has_all = self.locks_of(c, true);
        if is_short && max.is_none_or(|max| has_all < max) && !self.sys.plan.limits {
            self.sys.fail(format!("quota: client {c} is refused: {has_all} locks of {max:?}"));
        }
        let all_refused = grants.iter().all(|(_, g)| g.as_ref().is_err_and(|&s| is_refusal(s)));
        if all_refused && !grants.is_empty() {
            self.left_as_it_was(c, before.print);
        }
    }

    /// Records that a client has got a handle of the lock at this primary, or has released it.
    pub(super) fn is_given(&mut self, id: ClientId, l: u8, has: bool) {
        self.sys.law.got.retain(|&got| got != (id, usize::from(l)));
        if has {
            self.sys.law.got.push((id, usize::from(l)));
        }
    }

    /// Forgets which locks a client has got; `None`: of all clients.
    pub(super) fn has_nothing(&mut self, id: Option<ClientId>) {
        self.sys.law.got.retain(|got| id.is_some_and(|id| got.0 != id));
    }

    /// Checks an answer of the primary to a request about an object.
    pub(super) fn object_lawful(
        &mut self,
        c: usize,
        request: &ControlRequest,
        reply: &ControlReply,
        before: Before,
    ) {
        let name = match request {
            ControlRequest::ObjectCreate { name, .. } | ControlRequest::ObjectGet { name, .. } => {
                name
            }
            _ => return,
        };
        let may = self.sys.law.gives(c, Right::Objects, name);
        let is_denied = *reply == ControlReply::Error(Status::Denied);
        let served = matches!(reply, ControlReply::Created(_) | ControlReply::Object(_));
        if is_denied && may || served && !may {
            return self.sys.fail(format!("rights: client {c} asks {request:?}: {reply:?}"));
        }
        if matches!(reply, ControlReply::Error(status) if is_refusal(*status)) {
            self.left_as_it_was(c, before.print);
        }
    }

    fn left_as_it_was(&mut self, c: usize, before: Print) {
        let Some(totals) = self.primary.as_ref().map(|primary| primary.locks().totals()) else {
            return;
        };
        if self.sys.print(totals) != before {
            self.sys.fail(format!("rights: client {c} is refused, and something changes"));
        }
    }
}

/// The status of a refusal; `None`: the reply is not one.
pub(super) fn refusal(reply: &Reply) -> Option<Status> {
    match reply {
        Reply::Denied { status, .. } => Some(*status),
        _ => None,
    }
}
