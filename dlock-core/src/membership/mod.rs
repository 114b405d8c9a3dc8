// SPDX-License-Identifier: MIT OR Apache-2.0
//! The members of a primary, and what ends a membership: the primary's side of sessions, without
//! I/O.
//!
//! ```text
//!            Init ──▶ Present ──connection ends──▶ Absent ──grace (closed), place needed──┐
//!                      ▲ │ │└───────silent past its horizon───────┴────────────────────┐ │
//!                      │ │ └Deinit, process ended, operator─▶ Ending(All) ◀─ any state │ │
//!                      │ └cut off─▶ Ending(Fence) ──past its horizon───┼──────────────▶▼ ▼
//!          Reinit ─────┤             │ fenced                          │  Ending(Lapse | Evict)
//!          (from Absent, Ending(Evict│Fence│Lapse), Fenced, Lingering) │               │
//!                      │             ▼                                 │ fenced        │ fenced
//!                      │           Fenced ──past its horizon──┐        │               │
//!                      │                                      ▼        │               │
//!                      └──────── Lingering ◀─leases left── Lapsing ◀───┼───────────────┤
//!                                    │                        │ none   │               │ Evict:
//!                                    └────last lease over───▶ ▼        ▼               ▼ nothing
//!                                                          Undoing ──undone──▶ forgotten
//! ```
//! *Ending* is where fencing comes before undoing: a tcp client cannot act once its channel is
//! closed, a verbs client once its queue pairs are fenced, a shared-memory client once it has
//! unmapped the memory or its processes have ended. Until then the client is *quarantined*: the
//! memory refuses its chains, and everything that it has stays as it is.
//!
//! The answers to a client, by the client's state:
//!
//! | state | `Init`¹ | `Reinit` | requests² | `Attach` | others' `Init`, no place free |
//! |---|---|---|---|---|---|
//! | Present | | Success⁵ | served | served³ | `ServerNoResource` |
//! | Absent | | Success⁵ | `Error` | served³ | takes its place if it has nothing |
//! | Ending(Evict) | | Success | `Error` | `ClientRemoved` | waits |
//! | Ending(Fence), Ending(Lapse) | | Success | `Error` | `ClientRemoved` | `ServerNoResource` |
//! | Fenced | | Success⁶ | `Error` | `ClientRemoved` | `ServerNoResource` |
//! | Lapsing | | `NotReady` | `Error` | `ClientRemoved` | `ServerNoResource` |
//! | Lingering | | Success | `Error` | `ClientRemoved` | `ServerNoResource` |
//! | Ending(All) | | `ClientRemoved` | `Error` | `ClientRemoved` | `ServerNoResource` |
//! | Undoing | | `ClientRemoved` | `Error` | `ClientRemoved` | waits |
//! | not known | Success⁴ | `ClientRemoved`⁴ | `Error` | `ClientRemoved` | |
//!
//! ¹ The client is always a new one. ² On a control connection that is not, or no longer, the
//! client's. ³ As far as fabric, secret and recovery permit. ⁴ In recovery `NotReady` and Success.
//! ⁵ The new session is prepared beside the present one, and `prepared.rs` says when that one ends;
//! a member with a prepared session keeps its place. ⁶ `NotReady` for a client that has kept others
//! waiting, because it would do so again. The answer to a wrong secret is `Error` in every state,
//! and so is that to the right one on a connection whose certificate is not the one that registered
//! the client. Where the primary has [rules](crate::rights), the answer to `Init` with a
//! certificate that no rule names is `Denied`, and so is that to `Attach` by a client that would
//! reach the memory itself, but is not allowed everything there.
//!
//! The horizon: every answer to `Init`, `Reinit`, `Attach` and `Heartbeat` of a client carries the
//! server time until which the primary does not act on that client's silence. Only requests on the
//! control connection extend it. Neither the end of a connection nor fencing cuts it short, because
//! the client may live, and rely on it: a member that is *cut off* before its horizon is fenced,
//! and keeps everything until then. Without a horizon (drop-in programs) silence ends nothing but
//! queue places; if the client's host has closed the connection, what has no lease ends with the
//! grace.
//!
//! The primary counts a client's silence only up to the time at which it has read its sockets:
//! before an end that is due, it reads every request that had come when it found the end due
//! ([`Effect::Listen`](crate::primary::Effect::Listen)). If the primary itself stood still,
//! requests of its clients may lie in its sockets. So what is due happens at the end of the first
//! listening that begins after that time, however long the primary stood still before, and never
//! earlier than it is due.
//!
//! [`Primary`](crate::primary::Primary) owns the members, and carries out their tasks in order.

mod admission;
mod ending;
mod excluded;
mod files;
mod member;
mod prepared;
mod recovering;
mod rules;
mod taken;
mod task;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub use admission::{Admission, Caller, Channel, Draws, Joining, JoiningProcess, Opened};
pub(crate) use ending::Fencing;
pub use excluded::Connection;
pub use files::{FILES_PER_CLIENT, FILES_PER_MAPPING};
pub use member::{Ending, State};
pub use prepared::{PREPARED_S, SHOW_WAIT_NS};
pub use rules::{Orphans, Rules};
pub(crate) use taken::Asked;
pub use taken::REMEMBERED_MAX;
pub use task::Exit;
pub(crate) use task::Task;

use crate::arbiter::Sent;
use crate::clock::ServerTime;
use crate::counters::Counter;
use crate::ids::ClientId;
use crate::locks::Locks;
use crate::memory::exec::LockMemory;
use crate::memory::word_op::{Chain, Outcome};
use crate::planted::{self, Bug};
use crate::roster::Change;
use crate::wire::about::About;
use crate::wire::control::{ControlReply, ControlRequest, UNLIMITED};
use crate::wire::status::Status;
use member::Member;

/// How many random numbers the primary draws for one client id before admission fails (C API).
pub const ID_ATTEMPTS_MAX: usize = 6;
/// How many absent clients one search for a place checks.
pub const EVICTION_LOOKS_MAX: usize = 8;
/// How many processes may have the memory mapped for one client.
pub const PROCESSES_MAX: usize = 4;
/// How many members one [`Event::Tick`](crate::primary::Event::Tick) handles.
pub const TICK_MAX: usize = 64;
/// The longest session horizon, in seconds (a day); a client that asks for more gets this.
pub const HORIZON_S_MAX: u32 = 86_400;
/// The session horizon, in seconds, of a client that asks for none, at a primary that recovers by
/// itself ([`Rules::recovers_by_itself`]).
pub const HORIZON_S_DEFAULT: u32 = 30;

/// The operations on the primary's memory that members need in addition to those of [`LockMemory`].
pub trait MemberMemory: LockMemory {
    /// Whether a process of this client may have the memory mapped: the primary has handed it out,
    /// and the client has not unmapped it in order. Whether the process lives does not matter.
    fn is_mapped(&self, client: ClientId) -> bool;

    /// Executes a chain for a client whose chains the primary executes. The caller has checked that
    /// the client may touch these words.
    fn execute_chain(&mut self, client: ClientId, chain: &Chain) -> Outcome;
}

/// Why a control connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// The client's host has closed or reset it, or the primary has closed it: the client can know.
    Closed,
    /// The client's host does not answer.
    Silent,
}

/// All members of a primary.
#[derive(Clone, Debug)]
pub struct Membership {
    rules: Rules,
    members: BTreeMap<ClientId, Member>,
    /// The deadlines at which the primary acts on a member even if no event comes.
    due: BTreeSet<(ServerTime, ClientId)>,
    /// The primary has read every request that had come by this time.
    listened: ServerTime,
    /// When the membership asked the driver to listen; `None`: no listening is under way.
    listens: Option<ServerTime>,
    tasks: VecDeque<Task>,
    /// The search for a place goes on with the absent clients above this id.
    looked_at: Option<ClientId>,
    /// How many processes were watched so far; the number of the last one.
    processes: u64,
    /// How many descriptors the members take because processes have mapped the memory for them.
    mapping_files: u64,
    /// The operator that has removed each removed client, for the answer to the client.
    removers: BTreeMap<ClientId, (Arc<str>, bool)>,
}

impl Membership {
    /// A membership without members.
    pub(crate) fn new(rules: Rules) -> Self {
        Self {
            rules,
            members: BTreeMap::new(),
            due: BTreeSet::new(),
            listened: ServerTime(0),
            listens: None,
            tasks: VecDeque::new(),
            looked_at: None,
            processes: 0,
            mapping_files: 0,
            removers: BTreeMap::new(),
        }
    }

    /// Takes the next task.
    pub(crate) fn next_task(&mut self) -> Option<Task> {
        self.tasks.pop_front()
    }

    /// The state of a member; `None`: the client is not known.
    pub fn state(&self, client: ClientId) -> Option<State> {
        self.members.get(&client).map(|member| member.state)
    }

    /// What this client tells of itself; `None`: the client is not known.
    pub fn about(&self, client: ClientId) -> Option<&About> {
        self.members.get(&client).map(|member| &member.about)
    }

    /// All members in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (ClientId, State)> + '_ {
        self.members.iter().map(|(&client, member)| (client, member.state))
    }

    /// How many members there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether the primary has no member.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Until when the primary does not act on this client's silence; `None`: the client is not
    /// known.
    pub fn until(&self, client: ClientId) -> Option<ServerTime> {
        self.members.get(&client).map(|member| member.until)
    }

    /// Whether this control connection speaks for this client.
    pub fn speaks(&self, client: ClientId, control: u64) -> bool {
        self.members.get(&client).is_some_and(|member| member.control == Some(control))
    }

    /// Handles a client's request other than `Init` and `Reinit`, on its control connection.
    #[allow(clippy::too_many_arguments)] // the arguments of the primary's `control`, and the client
    pub(crate) fn control(
        &mut self,
        now: ServerTime,
        locks: &mut Locks,
        mem: &mut dyn LockMemory,
        (client, control): (ClientId, u64),
        request: ControlRequest,
        out: &mut Vec<Sent>,
    ) -> ControlReply {
        if !self.speaks(client, control) {
            return ControlReply::Error(Status::Error);
        }
        let leaves = request == ControlRequest::Deinit;
        let mut reply = locks.control(now, mem, client, request, out);
        self.is_given(client, &reply);
        self.with(client, |member| member.heard(now));
        if let (ControlReply::Alive { until, asked, .. }, Some(told)) =
            (&mut reply, self.until(client))
        {
            (*until, *asked) = (told, self.asked_until(client).unwrap_or(ServerTime(0)));
        }
        if locks.has_told_all(client) {
            self.with(client, |member| member.owes_claims = false);
        }
        // A recovering primary refuses `Deinit`, but the client has nothing to claim any more.
        let is_refused = reply == ControlReply::Error(Status::NotReady) && locks.is_recovering();
        let leaves = leaves && !(is_refused && planted::is(Bug::LeaverAwaited));
        if leaves && (reply == ControlReply::Done || is_refused) {
            // The driver closes the connection after it has sent the answer.
            self.with(client, |member| member.control = None);
            // A successor need not wait for this client, even if the client leaves during recovery.
            if !planted::is(Bug::LeaverKept) {
                self.tasks.push_back(Task::Keep(Change::Left { client }));
            }
            self.end(client, Ending::All(Exit::Left));
        }
        reply
    }

    /// Handles the end of a control connection. Does nothing if the connection no longer speaks for
    /// the client.
    pub(crate) fn control_ended(
        &mut self,
        now: ServerTime,
        locks: &mut Locks,
        (client, control): (ClientId, u64),
        why: Gone,
    ) {
        let prepared = self.members.get(&client).and_then(|member| member.prepared);
        if prepared.is_some_and(|prepared| prepared.control == control) {
            return self.give_up_prepared(client);
        }
        if !self.speaks(client, control) {
            return;
        }
        locks.count(Counter::ClientDisconnect);
        self.with(client, |member| {
            member.control = None;
            if member.state == State::Present {
                member.state = State::Absent { since: now, is_closed: why == Gone::Closed };
            }
        });
        self.look_at_processes(client);
    }

    /// Handles the end of a watched process ([`Channel::watch`]).
    pub(crate) fn process_ended(&mut self, client: ClientId, process: u64) {
        self.with(client, |member| {
            let known = member.processes.iter_mut().filter(|p| p.number == process);
            known.for_each(|p| p.has_ended = true);
        });
        self.look_at_processes(client);
    }

    /// Whether this command channel is the one of the client's session.
    pub(crate) fn serves(&self, client: ClientId, channel: u64) -> bool {
        self.members.get(&client).is_some_and(|member| member.channel == Some(channel))
    }

    /// Handles that a command channel has ended by itself. `unfenced`: whether its queue pairs
    /// could not be fenced.
    #[doc(hidden)] // public for tests of single rules
    pub fn channel_ended(&mut self, client: ClientId, channel: u64, unfenced: bool) {
        self.with(client, |member| {
            member.forget_channel(Some(channel));
            member.unfenced |= unfenced;
        });
        // A shared-memory client closes its channel after it has unmapped the memory, or the
        // channel closes because the client has died.
        self.look_at_processes(client);
    }

    /// Handles the result of [`Task::CloseChannel`]. `unfenced`: whether queue pairs could not be
    /// fenced; those of an old session must not act while the primary serves a new one.
    #[doc(hidden)] // public for tests of single rules
    pub fn channel_closed(&mut self, client: ClientId, channel: Option<u64>, unfenced: bool) {
        let next = self.with(client, |member| {
            member.forget_channel(channel);
            member.unfenced = unfenced;
            // A later channel that has taken the place of the closed one.
            member.channel.filter(|_| member.prepared.is_none() && member.channel > channel)
        });
        if let (true, Some(next @ Some(_))) = (unfenced, next) {
            self.tasks.push_back(Task::CloseChannel { client, channel: next, serves: true });
        }
    }

    fn look_at_processes(&mut self, client: ClientId) {
        let Some(member) = self.members.get(&client) else { return };
        if member.is_dead() {
            self.end(client, Ending::All(Exit::Died));
        } else if let State::Ending(_) = member.state {
            self.tasks.push_back(Task::Fence { client });
        }
    }

    /// A client that keeps others waiting and may be [cut off](Self::hinders) for that; `None`:
    /// there is none.
    pub(crate) fn hinderer(&self, locks: &Locks) -> Option<ClientId> {
        let may_go = |state| matches!(state, State::Present | State::Absent { .. });
        locks.hinderer(&|client| !self.state(client).is_some_and(may_go))
    }

    /// Cuts off a client that keeps others waiting in the middle of an operation: it is fenced, and
    /// keeps only its leases once its horizon has passed. Until then it may not come back, because
    /// it would keep others waiting again.
    #[doc(hidden)] // public for tests of single rules
    pub fn hinders(&mut self, client: ClientId) {
        self.cut_off(client, Exit::Hindered);
    }

    /// Records that a reply gives the client a lock, if it is its first.
    fn is_given(&mut self, client: ClientId, reply: &ControlReply) {
        let Some(member) = self.members.get_mut(&client) else { return };
        let is_first = !member.has_locks && gives_lock(reply);
        if is_first && !planted::is(Bug::LocksUntold) {
            member.has_locks = true;
            self.tasks.push_back(Task::Keep(Change::HasLocks { client }));
        }
    }

    /// Whether a member waits to be fenced. No event may say that fencing has become possible, so
    /// the driver must try again from time to time.
    pub fn has_quarantined(&self) -> bool {
        self.members.values().any(|member| matches!(member.state, State::Ending(_)))
    }

    /// Tries again to fence every member that waits to be fenced.
    pub(crate) fn retry(&mut self) {
        let waits = |member: &Member| matches!(member.state, State::Ending(_));
        let clients = self.members.iter().filter(|(_, member)| waits(member));
        self.tasks.extend(clients.map(|(&client, _)| Task::Fence { client }));
    }

    /// Records a sign of life: a request has come on this control connection, and waits for its
    /// turn.
    pub(crate) fn heard(&mut self, now: ServerTime, client: ClientId, control: u64) {
        self.with(client, |member| {
            let is_prepared = member.prepared.is_some_and(|prepared| prepared.control == control);
            if member.control == Some(control) || is_prepared {
                member.heard(now);
            }
        });
    }

    /// Handles that the driver has done [`Task::Listen`].
    pub(crate) fn listened(&mut self) {
        if let Some(asked) = self.listens.take() {
            self.listened = self.listened.max(asked);
        }
    }

    /// When [`tick`](Self::tick) next has something to do.
    pub(crate) fn next_wakeup(&self, locks: &Locks) -> Option<ServerTime> {
        let first = self.next_due(locks)?;
        let member = self.due.first().map(|&(first, _)| first);
        // Deadlines later than the last listening wait for the one under way.
        (self.listens.is_none() || member.is_some_and(|first| first <= self.listened))
            .then_some(first)
    }

    /// The first deadline of a member, or of the recovery.
    fn next_due(&self, locks: &Locks) -> Option<ServerTime> {
        let member = self.due.first().map(|&(first, _)| first);
        member.into_iter().chain(locks.recovery_due()).min()
    }

    /// Acts on at most [`TICK_MAX`] members whose deadline is not later than the last completed
    /// listening, and tells the recovery up to what time requests were read. If a later deadline
    /// has passed since, asks the driver to listen again ([`Task::Listen`]).
    pub(crate) fn tick(&mut self, now: ServerTime, locks: &mut Locks) {
        if planted::is(Bug::SilenceUnheard) {
            self.listened = now;
        }
        let is_deaf = planted::is(Bug::RecoveryDeaf);
        locks.has_heard(if is_deaf { now } else { self.listened });
        for _ in 0..TICK_MAX {
            match self.due.first().filter(|(at, _)| *at <= self.listened) {
                Some(&(_, client)) => self.is_due(self.listened, client),
                None => {
                    let next = self.next_due(locks);
                    if next.is_some_and(|at| self.listened < at && at <= now)
                        && self.listens.is_none()
                    {
                        self.listens = Some(now);
                        self.tasks.push_back(Task::Listen);
                    }
                    return;
                }
            }
        }
    }

    /// Acts on a member whose deadline has passed. `at`: the primary has read every request that
    /// had come by this time.
    fn is_due(&mut self, at: ServerTime, client: ClientId) {
        if self.give_up_late(at, client) || self.ask_is_over(at, client) {
            return;
        }
        let Some(member) = self.members.get(&client) else { return };
        let channel = member.channel;
        let is_past_horizon = acts_at(member) <= at;
        match member.state {
            State::Absent { .. } if is_past_horizon && member.lags => {
                self.end(client, Ending::All(Exit::Laggard));
            }
            State::Present | State::Absent { .. } if is_past_horizon => {
                self.end(client, Ending::Lapse(Exit::Horizon));
            }
            State::Absent { is_closed, .. } if ends_with_grace(&self.rules, member, is_closed) => {
                let ending = match self.rules.orphans {
                    Orphans::Lease if planted::is(Bug::OrphansEnd) => Ending::All(Exit::Grace),
                    Orphans::Lease => Ending::Lapse(Exit::Grace),
                    Orphans::Grace => Ending::All(Exit::Grace),
                };
                self.end(client, ending);
            }
            State::Absent { .. } => {
                // Ends the member's queue places, and nothing else.
                self.with(client, |member| member.is_quiet = true);
                self.tasks.push_back(Task::CloseChannel { client, channel, serves: true });
            }
            State::Fenced(_) | State::Ending(Ending::Fence(_)) => self.cut_off_is_over(client),
            State::Lingering { .. } => self.undo(client, Exit::LeasesOver),
            State::Present | State::Ending(_) | State::Lapsing(_) | State::Undoing => {
                self.with(client, |_| ()); // recomputes the deadline: there is none in this state
            }
        }
    }

    /// Changes a member, and updates its deadline in the list of deadlines (`due`).
    fn with<T>(&mut self, client: ClientId, f: impl FnOnce(&mut Member) -> T) -> Option<T> {
        let member = self.members.get_mut(&client)?;
        let result = f(member);
        let due = due(&self.rules, member);
        if due != member.due {
            if let Some(old) = std::mem::replace(&mut member.due, due) {
                self.due.remove(&(old, client));
            }
            self.due.extend(due.map(|at| (at, client)));
        }
        Some(result)
    }

    /// Checks that the list of deadlines agrees with the members' states; for tests and the
    /// simulator.
    ///
    /// # Errors
    /// The first disagreement.
    pub fn assert_consistent(&self) -> Result<(), String> {
        for (client, member) in &self.members {
            let may_move = matches!(member.state, State::Present | State::Absent { .. });
            if member.prepared.is_some() && !may_move {
                return Err(format!("a session is prepared for {client:?}: {member:?}"));
            }
            let listed: Vec<_> = self.due.iter().filter(|d| d.1 == *client).map(|d| d.0).collect();
            if member.due != due(&self.rules, member) || !listed.iter().eq(member.due.iter()) {
                return Err(format!("{client:?} is due at {listed:?}, and is {member:?}"));
            }
        }
        match self.due.len() <= self.members.len() {
            true => Ok(()),
            false => Err("something is due for nobody".to_string()),
        }
    }
}

/// Whether this reply gives its client a lock. The primary must have kept that the client has locks
/// before it sends the reply ([`Change::HasLocks`]).
pub fn gives_lock(reply: &ControlReply) -> bool {
    matches!(reply, ControlReply::Locks(results) if results.iter().any(Result::is_ok))
}

/// When the primary acts on a member's silence.
fn acts_at(member: &Member) -> ServerTime {
    match planted::is(Bug::HorizonEarly) && member.until != UNLIMITED {
        true => {
            let half = u64::from(member.horizon_s) * crate::clock::NS / 2;
            ServerTime(member.until.0.saturating_sub(half))
        }
        false => member.until,
    }
}

/// Whether what an absent member has ends with the grace. A closed connection may have been reset
/// on the way, so a client with a horizon keeps everything until its horizon, unless the operator
/// has chosen otherwise ([`Orphans::Grace`]). A recovering primary waits for a client that has not
/// yet claimed everything as if the client had not come.
fn ends_with_grace(rules: &Rules, member: &Member, is_closed: bool) -> bool {
    let may_rely = member.until != UNLIMITED && rules.orphans == Orphans::Lease;
    let is_awaited = member.owes_claims && !planted::is(Bug::ClaimsUnawaited);
    is_closed && !is_awaited && (!may_rely || planted::is(Bug::GraceBeforeHorizon))
}

/// The time at which the primary acts on a member even if no event comes.
fn due(rules: &Rules, member: &Member) -> Option<ServerTime> {
    let grace_ns = match planted::is(Bug::NoAbsentGrace) {
        true => Some(0),
        false => rules.grace_ns,
    };
    let horizon = Some(acts_at(member)).filter(|&until| until != UNLIMITED);
    let earlier = |a: Option<ServerTime>, b: Option<ServerTime>| match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    let of_state = match member.state {
        State::Present => horizon,
        // A client with a prepared session is coming back: the grace does not apply.
        State::Absent { .. } if member.prepared.is_some() => horizon,
        State::Absent { since, is_closed } => {
            let grace = grace_ns.map(|grace| since.plus_ns(grace));
            let is_last = ends_with_grace(rules, member, is_closed);
            earlier(horizon, grace.filter(|_| is_last || !member.is_quiet))
        }
        State::Fenced(_) | State::Ending(Ending::Fence(_)) if planted::is(Bug::CutOffByLast) => {
            horizon
        }
        State::Fenced(_) | State::Ending(Ending::Fence(_)) => Some(member.bounded),
        State::Lingering { until } => Some(until),
        State::Ending(_) | State::Lapsing(_) | State::Undoing => None,
    };
    let of_others = earlier(
        member.prepared.map(|prepared| prepared.ends),
        member.asked.as_ref().map(|asked| asked.until),
    );
    earlier(of_state, of_others)
}
