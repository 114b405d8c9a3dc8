// SPDX-License-Identifier: MIT OR Apache-2.0
//! The primary as one state machine without I/O: events in, effects out.
//!
//! ```text
//!   connections, processes, operators, time ──Event──▶ handle ─┬─▶ Membership   who may act
//!   connections, processes, memory, log    ◀──Effect── poll  ◀─┴─▶ Locks        what they have
//! ```
//! The driver passes one event after the other to `handle`, and after each executes what
//! [`Primary::poll`] returns, in order, until there is nothing more. The driver decides nothing,
//! and need not remember anything: all that an event entails comes out as effects, answers last.
//! The driver reports three of the effects by an event ([`Event::Done`]), because the machine goes
//! on only when the client cannot act any more: *fencing comes before undoing*.
//!
//! Equal events at equal times, with equal values of the memory, give equal effects and equal
//! state: the machine walks only ordered tables, and random values are part of the event. So the
//! events can be kept in a log, and applied elsewhere.

mod event;
mod operator;

use std::collections::VecDeque;

pub use crate::locks::{
    ClientSnapshot, Draining, Known, LockSnapshot, PrimaryConfig, Progress, Recovered, Sent,
    WaitersSnapshot,
};
pub use event::{Effect, Event};

use crate::clock::ServerTime;
use crate::counters::Counter;
use crate::ids::{ClientId, Handle};
use crate::locks::{Lapse, Locks};
use crate::membership::{
    Caller, Draws, Fencing, Joining, MemberMemory, Membership, Opened, Rules, Task,
};
use crate::memory::word_op::{Chain, Outcome, WordOp};
use crate::memory::words::LedgerEntry;
use crate::planted::{self, Bug};
use crate::rights::Refusal;
use crate::wire::control::{Attach, ControlRequest, FabricKind, Offers, UNLIMITED};
use crate::wire::fabric::Executes;
use crate::wire::status::Status;

/// A primary.
#[derive(Debug)]
pub struct Primary {
    members: Membership,
    locks: Locks,
    /// The lapses under way.
    lapses: VecDeque<Lapse>,
    /// What the machine does when the members have no more tasks.
    next: VecDeque<Next>,
    /// The task whose effect the driver is executing, and will report.
    reported: Option<Task>,
    effects: VecDeque<Effect>,
    sent: Vec<Sent>,
    /// Whether the driver was last told that the memory refuses chains.
    is_gated: bool,
    undone_at_once: u32,
    /// Work units of upkeep since the last [`take_upkeep`](Self::take_upkeep).
    upkeep: u32,
    /// The clients that the last act of an operator concerned.
    operated: Vec<ClientId>,
    /// Whether the machine has already reported that no lock is held in a drain.
    was_idle: bool,
}

/// The rest of an event, which follows all that the beginning of the event entails.
#[derive(Debug)]
enum Next {
    Open { request: ControlRequest, caller: Caller, draws: Draws, is_again: bool },
    Serve { client: ClientId, control: u64, request: ControlRequest },
    Attach { attach: Attach, joining: Joining },
    Tell(Effect),
}

impl Primary {
    /// A primary without clients and locks.
    pub fn new(config: PrimaryConfig, rules: Rules) -> Self {
        Self {
            members: Membership::new(rules),
            locks: Locks::new(config),
            lapses: VecDeque::new(),
            next: VecDeque::new(),
            reported: None,
            effects: VecDeque::new(),
            sent: Vec::new(),
            is_gated: false,
            undone_at_once: rules.undone_at_once,
            upkeep: 0,
            operated: Vec::new(),
            was_idle: false,
        }
    }

    /// The next effect for the driver.
    pub fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Handles an event.
    pub fn handle<M: MemberMemory>(&mut self, now: ServerTime, mem: &mut M, event: Event) {
        let Self { members, locks, sent, next, .. } = self;
        match event {
            Event::Command { client, seq, request } => {
                locks.command(now, mem, client, seq, request, sent);
            }
            Event::Chain { client, chain } => self.chain(now, mem, client, &chain),
            Event::Note { client, handle, entry } => self.note(mem, client, handle, entry),

            Event::Awaits { known, deadline_s } => locks.awaits(now, &known, deadline_s),
            Event::AwaitsUnlisted => locks.awaits_unlisted(),
            Event::Hurries => locks.hurries(),
            Event::PredecessorEnded { client } => {
                members.predecessors_process_ended(locks, client);
            }

            Event::Open { request, caller, draws } => {
                next.push_back(Next::Open { request, caller, draws, is_again: false });
            }
            Event::NoMemory { client, is_new } => members.has_no_memory(now, client, is_new),
            Event::Heard { client, control } => members.heard(now, client, control),
            Event::Shown { client, control } => _ = members.is_shown(now, locks, client, control),
            Event::Control { client, control, request } => {
                // the old session cannot do anything any more when this request is served
                members.is_shown(now, locks, client, control);
                next.push_back(Next::Serve { client, control, request });
            }
            Event::ControlEnded { client, control, why } => {
                members.control_ended(now, locks, (client, control), why);
            }
            Event::Listened => members.listened(),
            Event::Revoked { client, connection } => members.revoked(client, connection),
            Event::Rules(rules) => {
                locks.set_rules(rules);
                members.rules_changed(locks);
            }
            Event::Operate { act, by } => _ = self.operate(now, mem, act, by),

            Event::Attach { attach, joining } => {
                let client = attach.client;
                next.push_back(match members.begin_attach(now, locks, &attach, joining) {
                    Status::Success => Next::Attach { attach, joining },
                    status => Next::Tell(Effect::Attached { client, channel: Err(status) }),
                });
            }
            Event::ChannelEnded { client, channel, unfenced } => {
                if members.serves(client, channel) {
                    locks.detached(now, mem, client, sent);
                }
                members.channel_ended(client, channel, unfenced);
            }
            Event::Done { unfenced } => self.done(now, mem, unfenced),
            Event::ProcessEnded { client, process } => members.process_ended(client, process),

            Event::Tick => self.tick(now),
            Event::Upkeep { budget } => _ = self.upkeep(now, mem, budget),
            Event::Retry => members.retry(),
            Event::Collect => locks.collect_all(mem),
            Event::CollectSome { clients } => locks.collect_some(mem, clients),
            Event::ClearCounters => locks.clear_stats(mem),
        }
        self.go_on(now, mem);
    }

    /// Does what the event entails, up to an effect that the driver must report first.
    fn go_on<M: MemberMemory>(&mut self, now: ServerTime, mem: &mut M) {
        loop {
            self.tell(now);
            if self.reported.is_some() {
                return;
            }
            if let Some(task) = self.members.next_task() {
                self.execute(now, mem, task);
            } else if let Some(next) = self.next.pop_front() {
                self.resume(now, mem, next);
            } else {
                return;
            }
        }
    }

    /// Turns what has come out of the members and the locks so far into effects.
    fn tell(&mut self, now: ServerTime) {
        self.effects.extend(self.locks.reserve_tokens(now).map(Effect::Keep));
        self.effects.extend(self.sent.drain(..).map(Effect::Send));
        let is_recovering = self.locks.is_recovering();
        if std::mem::replace(&mut self.is_gated, is_recovering) != is_recovering {
            self.effects.push_back(Effect::Gate { is_closed: is_recovering });
        }
        self.tell_idle();
        if let Some((recovered, change)) = self.members.take_recovered(&mut self.locks) {
            self.effects.extend([Effect::Recovered(recovered), Effect::Keep(change)]);
        }
    }

    fn execute<M: MemberMemory>(&mut self, now: ServerTime, mem: &mut M, task: Task) {
        let Self { members, locks, effects, .. } = self;
        let effect = match task {
            Task::Listen => Effect::Listen,
            Task::CloseControl { client, control } => Effect::CloseControl { client, control },
            Task::CloseChannel { client, channel, .. } => {
                self.reported = Some(task);
                Effect::CloseChannel { client, channel }
            }
            Task::Fence { client } => {
                self.reported = Some(task);
                Effect::Fence { client }
            }
            Task::Switch { client, .. } => {
                self.reported = Some(task);
                Effect::Switch { client }
            }
            Task::Keep(change) => Effect::Keep(change),
            Task::Revoke { client } => {
                let is_told = locks.is_recovering() || members.remover(client).is_some();
                effects.extend(is_told.then_some(Effect::Unfenced { client }));
                Effect::Revoke { client, status: members.revoked_with(client) }
            }
            Task::Judge { client, asked } => {
                let has = asked.lock.is_none_or(|lock| locks.has_still(now, mem, client, lock));
                locks.wants_no_more(client);
                return members.judged(client, &asked, has || planted::is(Bug::GivenBackRemoved));
            }
            Task::Look { client } => {
                let has_something = locks.has_something(now, mem, client);
                return members.looked(client, has_something);
            }
            Task::Lapse { client } => {
                self.lapses.push_back(locks.begin_lapse(client));
                Effect::Lapses { client }
            }
            Task::Undo { client, exit } => {
                effects.push_back(Effect::Removes { client, exit });
                return self.undo(now, mem, client);
            }
            Task::Forget { client } => {
                locks.collect_last(mem, client);
                Effect::Forget { client }
            }
        };
        self.effects.push_back(effect);
    }

    fn resume<M: MemberMemory>(&mut self, now: ServerTime, mem: &mut M, next: Next) {
        let Self { members, locks, sent, .. } = self;
        let then = match next {
            Next::Open { request, caller, draws, is_again } => {
                let opened = members.open(now, locks, mem, &request, &caller, draws);
                match opened {
                    // the first call makes room, and the second one takes it
                    Ok(Opened::Wait) if !is_again => {
                        Next::Open { request, caller, draws, is_again: true }
                    }
                    opened => Next::Tell(Effect::Opened { control: caller.control, opened }),
                }
            }
            Next::Serve { client, control, request: ControlRequest::Operate(act) } => {
                let reply = self.operate_for(now, mem, (client, control), act);
                Next::Tell(Effect::Answer { control, reply })
            }
            Next::Serve { client, control, request } => {
                let who = (client, control);
                let reply = members.control(now, locks, mem, who, request, sent);
                Next::Tell(Effect::Answer { control, reply })
            }
            Next::Attach { attach, joining } => {
                let (client, fabric) = (attach.client, attach.fabric);
                let channel = members.finish_attach(&attach, joining);
                match channel {
                    Ok(channel) if channel.is_prepared => locks.will_attach(client, fabric),
                    Ok(_) => locks.attached(now, mem, client, fabric, sent),
                    Err(_) => {}
                }
                Next::Tell(Effect::Attached { client, channel })
            }
            Next::Tell(effect) => return self.effects.push_back(effect),
        };
        self.next.push_front(then); // goes on once the effects of this step are carried out
    }

    /// Handles that the driver has executed the effect that it must report.
    fn done<M: MemberMemory>(&mut self, now: ServerTime, mem: &mut M, unfenced: bool) {
        let Self { members, locks, sent, .. } = self;
        match self.reported.take() {
            Some(Task::CloseChannel { client, channel, serves }) => {
                if serves && channel.is_some() {
                    locks.detached(now, mem, client, sent);
                }
                members.channel_closed(client, channel, unfenced);
            }
            Some(Task::Fence { client }) => {
                locks.detached(now, mem, client, sent);
                let fencing = Fencing { unfenced, mapped: mem.is_mapped(client) };
                members.fence_tried(locks, client, fencing);
            }
            Some(Task::Switch { client, fabric: Some(fabric) }) => {
                locks.attached(now, mem, client, fabric, sent);
            }
            _ => {}
        }
    }

    /// Executes a chain, if its client may have that done.
    fn chain<M: MemberMemory>(
        &mut self,
        now: ServerTime,
        mem: &mut M,
        client: ClientId,
        chain: &Chain,
    ) {
        let locks = &mut self.locks;
        let checked = locks.check_chain(now, mem, client, chain);
        let outcome = match checked {
            Ok(_) => mem.execute_chain(client, chain),
            Err(status) => Outcome::Refused(status),
        };
        match (checked, &outcome) {
            (Ok(is_told), Outcome::Done(values)) => {
                if is_told {
                    locks.executed(mem, client, chain, values);
                }
                locks.count_chain(now, client, chain, values);
            }
            // only a fair lock without room for a ticket returns `Fail`
            (Err(Status::Fail), _) => locks.count(Counter::FairQueueLimit),
            (Err(Status::Denied), _) => locks.chain_was_denied(mem, client, chain),
            _ => {}
        }
        self.effects.push_back(Effect::Outcome(outcome));
    }

    /// Writes an entry of a client's ledger for the client. Does not write one of a lock that the
    /// client has given back meanwhile.
    fn note<M: MemberMemory>(
        &mut self,
        mem: &mut M,
        client: ClientId,
        handle: Handle,
        entry: LedgerEntry,
    ) {
        let chain = Chain::one(WordOp::WriteLedger { handle, value: entry.into_bits() });
        match self.locks.check_note(mem, client, handle, entry) {
            Ok(()) => {
                if let Outcome::Done(values) = mem.execute_chain(client, &chain) {
                    self.locks.executed(mem, client, &chain, &values);
                }
            }
            Err(Status::Denied) => self.locks.chain_was_denied(mem, client, &chain),
            Err(_) => {}
        }
    }

    /// Does everything whose time has come, except for upkeep.
    fn tick(&mut self, now: ServerTime) {
        let is_due = self.next_wakeup().is_some_and(|at| at <= now);
        let Self { members, locks, effects, .. } = self;
        if is_due {
            members.tick(now, locks);
        }
        if let Some(client) = members.hinderer(locks) {
            effects.push_back(Effect::Hinders { client });
            members.hinders(client);
            locks.keeps_no_more(client);
        }
        if let Some(laggard) = locks.take_laggard(now) {
            let client = laggard.client;
            let until = members.until(client).filter(|&until| until != UNLIMITED);
            effects.push_back(Effect::Lags { client, until });
            members.lags(now, laggard);
        }
    }

    /// Does a slice of upkeep; returns its work units.
    fn upkeep<M: MemberMemory>(&mut self, now: ServerTime, mem: &mut M, budget: u32) -> u32 {
        let Self { members, locks, sent, lapses, .. } = self;
        let mut work = 0;
        if let Some(mut lapse) = lapses.pop_front() {
            let is_done = locks.lapse(now, mem, &mut lapse, sent);
            work = lapse.work();
            match is_done {
                true => members.lapsed(now, lapse.client(), lapse.lapsed()),
                false => lapses.push_back(lapse),
            }
        }
        let step = locks.step(now, mem, budget.saturating_sub(work), sent);
        if let Some(client) = step.gone {
            members.undone(client);
        }
        work += step.work;
        self.upkeep = self.upkeep.saturating_add(work);
        work
    }

    /// Undoes what a client has, a part of it at once: nothing of the client can act any more.
    fn undo<M: MemberMemory>(&mut self, now: ServerTime, mem: &mut M, client: ClientId) {
        if self.locks.fenced(client) {
            return self.members.undone(client);
        }
        self.effects.push_back(Effect::Revoke { client, status: Status::ClientRemoved });
        let mut done = 0;
        while done < self.undone_at_once && self.locks.is_leaving(client) {
            done += self.upkeep(now, mem, self.undone_at_once - done).max(1);
        }
    }

    /// When [`Event::Tick`], or upkeep, next has something to do; a time that has passed: now.
    pub fn next_wakeup(&self) -> Option<ServerTime> {
        let lapses = (!self.lapses.is_empty()).then_some(ServerTime(0));
        let (locks, members) = (&self.locks, self.members.next_wakeup(&self.locks));
        let due = [lapses, locks.next_wakeup(), members, locks.next_reserve()];
        due.into_iter().flatten().min()
    }

    /// Whether [`Event::Upkeep`] has something to do.
    pub fn has_upkeep(&self, now: ServerTime) -> bool {
        !self.lapses.is_empty() || self.locks.next_step().is_some_and(|at| at <= now)
    }

    /// Whether a lapse is under way.
    pub fn is_lapsing(&self) -> bool {
        !self.lapses.is_empty()
    }

    /// The work units of upkeep since the last call.
    pub fn take_upkeep(&mut self) -> u32 {
        std::mem::take(&mut self.upkeep)
    }

    /// The work units of requests since the last call.
    pub fn take_work(&mut self) -> u32 {
        self.locks.take_work()
    }

    /// Takes the refusals since the last call, for want of a right or because of a quota; they are
    /// for the log.
    pub fn take_refusals(&mut self) -> Vec<Refusal> {
        self.locks.take_refusals()
    }

    /// The members of this primary.
    pub fn members(&self) -> &Membership {
        &self.members
    }

    /// The locks of this primary, and what it keeps of their clients.
    pub fn locks(&self) -> &Locks {
        &self.locks
    }

    /// Whether a client may have a command channel. The transport asks this before it makes what
    /// takes time for the channel; [`Event::Attach`] then decides.
    pub fn may_attach(&self, attach: &Attach, joining: Joining) -> Status {
        self.members.may_attach(&self.locks, attach, joining)
    }

    /// The part of `offers` that this client gets: no memory in which it may not do everything.
    pub fn offers(&self, client: ClientId, offers: &Offers) -> Offers {
        let may_map = self.locks.may_map(client) && !self.locks.is_draining();
        let is_for = |kind: FabricKind| may_map || kind.executes() == Executes::Primary;
        let others = FabricKind::ALL.into_iter().filter(|&kind| !is_for(kind));
        others.fold(offers.clone(), Offers::without)
    }

    #[doc(hidden)] // public for tests of single rules
    pub fn parts(&mut self) -> (&mut Membership, &mut Locks) {
        (&mut self.members, &mut self.locks)
    }

    /// Checks that everything in this machine fits together; for tests and the simulator.
    ///
    /// # Errors
    /// The first disagreement.
    pub fn assert_consistent(&self) -> Result<(), String> {
        self.members.assert_consistent()?;
        self.locks.assert_consistent()
    }
}
