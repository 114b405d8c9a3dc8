// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fair lock of two words, as a model of its rules before there is code.
//!
//! ```text
//!   w0  tickets taken    fetch-and-add alone         a newcomer never disturbs a release
//!   w1  tickets done     compare-and-swap alone      a release never disturbs a newcomer
//! ```
//! Every word operation is a step, of clients and of the arbiter; time passes at any moment; a
//! client may die, stand still, or lose an answer. Unlike the other models this one contains the
//! protocol, and does not call the machines of the core.

mod arbiter;
mod client;
mod rules;
mod setups;
mod words;

use stateright::{Checker, Model, Property};

use arbiter::Arbiter;
use client::{Call, Client};
pub use rules::Rule;
pub use setups::{turn_bugs, turns, turns_large};
use words::{Memory, Mode, CLIENTS};

/// One small system.
#[derive(Clone, Debug)]
pub struct TurnSetup {
    /// The name of the setup in tables.
    pub name: &'static str,
    /// The calls of each client.
    pub scripts: [Vec<Call>; CLIENTS],
    /// Whether the primary executes this client's chains, each as a whole.
    pub is_proxied: [bool; CLIENTS],
    /// The client that may die; `None`: none may.
    pub mortal: Option<usize>,
    /// How often an answer may be lost.
    pub losses: u8,
    /// How often time may pass while a client could go on.
    pub ticks: u8,
    /// The number from which on the arbiter gives the tickets.
    pub divert: u8,
    /// Whether waiters may depend on time: if not, they must be served although no time passes.
    pub timer: bool,
    /// The rule that is switched off; `None`: none.
    pub without: Option<Rule>,
}

/// One state: everything that decides which actions and states can follow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TurnState {
    memory: Memory,
    clients: [Client; CLIENTS],
    arbiter: Arbiter,
    now: u8,
    losses: u8,
    ticks: u8,
    wrong: Option<&'static str>,
}

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TurnAction {
    /// A client goes on.
    Step(usize),
    /// The arbiter takes a client's request.
    Serve(usize),
    /// The arbiter looks at the lock again.
    Look,
    /// The arbiter's next word operation.
    Arbiter,
    /// Time passes.
    Tick,
    /// A client dies.
    Die(usize),
    /// A client that has died is fenced.
    Forget(usize),
    /// The answer that a client waits for is lost.
    Lose(usize),
    /// A client that is held back gets a ticket.
    Give(usize),
    /// A client stands in the way of the next lap, and is fenced.
    Fence(usize),
}

impl TurnAction {
    fn is_accident(self) -> bool {
        matches!(self, Self::Tick | Self::Die(_) | Self::Lose(_) | Self::Give(_) | Self::Fence(_))
    }
}

impl TurnSetup {
    fn script(&self, i: usize) -> &[Call] {
        &self.scripts[i]
    }
}

impl TurnState {
    fn is_over(&self, setup: &TurnSetup) -> bool {
        let is_done = |i: usize| {
            let c = &self.clients[i];
            c.gone || c.chain.is_none() && c.asked.is_none() && c.at >= setup.script(i).len()
        };
        (0..CLIENTS).all(is_done)
    }

    fn two_hold(&self) -> bool {
        let holds: Vec<Mode> = self.clients.iter().filter_map(|c| c.relies(self.now)).collect();
        holds.len() > 1 && holds.contains(&Mode::X)
    }

    /// Whether more tickets are done than were taken.
    fn is_miscounted(&self) -> bool {
        let Memory { w0, w1, .. } = &self.memory;
        w1.nx > w0.mx || w1.ns > w0.ms
    }

    fn step(&mut self, i: usize, setup: &TurnSetup) {
        let Self { memory, clients, now, .. } = self;
        let with = (setup.is_proxied[i], setup.divert, setup.without);
        let wrong = clients[i].step(i, setup.script(i), memory, *now, with);
        self.wrong = self.wrong.or(wrong);
    }

    fn arbiter_steps(&mut self, setup: &TurnSetup) {
        let replies = self.arbiter.step(&mut self.memory, self.now, (setup.divert, setup.without));
        for (client, reply) in replies {
            let c = &mut self.clients[client];
            if c.asked.is_some() && !c.gone {
                c.answer = Some(reply);
            }
        }
    }

    fn forget(&mut self, i: usize) {
        self.arbiter.kept.forget(i);
        self.memory.ledgers[i].claim = None;
        let (at, gone) = (0, true);
        self.clients[i] = Client { at, gone, ..Client::default() };
    }

    fn may_be_served(&self, i: usize) -> bool {
        let c = &self.clients[i];
        let kept = &self.arbiter.kept;
        let is_queued = kept.queue.iter().any(|waiter| waiter.0 == i) || kept.held_back[i];
        let resolves = c.asked == Some(arbiter::Request::Resolve);
        self.arbiter.look.is_none()
            && !c.gone
            && c.asked.is_some()
            && c.answer.is_none()
            && (!is_queued || resolves)
    }

    fn is_fenced(&self, i: usize) -> bool {
        let c = &self.clients[i];
        let stale = |waiter: &(usize, Mode, words::Ticket)| waiter.0 == i;
        c.gone
            && self.memory.ledgers[i].claim.is_none()
            && c.chain.is_none()
            && self.arbiter.kept.granted[i].is_none()
            && !self.arbiter.kept.queue.iter().any(stale)
    }

    /// Whether the client's ledger entry is over, and keeps the ticket counters from starting
    /// again.
    fn stands_in_the_way(&self, i: usize, setup: &TurnSetup) -> bool {
        let Memory { w0, ledgers, .. } = &self.memory;
        let is_high = w0.mx >= setup.divert || w0.ms >= setup.divert;
        let is_granted = self.arbiter.kept.granted[i].is_some_and(|grant| grant.2 > self.now);
        let is_over = ledgers[i].claim.is_some() && !ledgers[i].runs(self.now) && !is_granted;
        let is_free = self.arbiter.look.is_none() && !self.arbiter.kept.held_back[i];
        is_high && is_over && is_free && !self.clients[i].gone
    }

    fn fence(&mut self, i: usize, setup: &TurnSetup) {
        self.arbiter.kept.forget(i);
        self.memory.ledgers[i].claim = None;
        self.clients[i].fenced(setup.script(i));
    }

    fn has_to_look(&self) -> bool {
        let kept = &self.arbiter.kept;
        !kept.queue.is_empty() || kept.held_back.contains(&true)
    }

    /// Whether all clients finish from here on, if each living client and the arbiter go on and
    /// time passes.
    fn ends_well(&self, setup: &TurnSetup) -> bool {
        let mut s = self.clone();
        for _ in 0..64 {
            if s.is_over(setup) {
                return true;
            }
            for i in 0..CLIENTS {
                while s.clients[i].can_step(setup.script(i)) {
                    s.step(i, setup);
                    if s.wrong.is_some() {
                        return true; // the search reports a wrong answer at the step that gets it
                    }
                }
                if s.clients[i].gone && s.arbiter.look.is_none() {
                    s.forget(i);
                }
                while s.arbiter.look.is_some() {
                    s.arbiter_steps(setup);
                }
                if s.may_be_served(i) {
                    let request = s.clients[i].asked.expect("it has asked");
                    s.arbiter.serve(i, request);
                }
                while s.arbiter.look.is_some() {
                    s.arbiter_steps(setup);
                }
            }
            if !setup.timer {
                return s.is_over(setup);
            }
            s.now += 1;
            if s.has_to_look() {
                s.arbiter.begin();
            }
        }
        false
    }
}

impl Model for TurnSetup {
    type State = TurnState;
    type Action = TurnAction;

    fn init_states(&self) -> Vec<TurnState> {
        vec![TurnState {
            memory: Memory::default(),
            clients: Default::default(),
            arbiter: Arbiter::default(),
            now: 1,
            losses: self.losses,
            ticks: self.ticks,
            wrong: None,
        }]
    }

    fn actions(&self, s: &TurnState, actions: &mut Vec<TurnAction>) {
        if s.wrong.is_some() || s.two_hold() {
            return;
        }
        for i in 0..CLIENTS {
            let c = &s.clients[i];
            if c.can_step(self.script(i)) {
                actions.push(TurnAction::Step(i));
            }
            if s.may_be_served(i) {
                actions.push(TurnAction::Serve(i));
            }
            let is_mortal = self.mortal == Some(i) && !c.gone && c.at < self.script(i).len();
            if is_mortal {
                actions.push(TurnAction::Die(i));
            }
            if c.gone && s.arbiter.look.is_none() && !s.is_fenced(i) {
                actions.push(TurnAction::Forget(i));
            }
            let awaits = c.chain.as_ref().is_some_and(|chain| chain.done > 0) || c.answer.is_some();
            if s.losses > 0 && awaits && !c.gone {
                actions.push(TurnAction::Lose(i));
            }
        }
        match s.arbiter.look {
            Some(_) => actions.push(TurnAction::Arbiter),
            None => {
                if self.timer && s.has_to_look() {
                    actions.push(TurnAction::Look);
                }
                let held_back = s.arbiter.kept.held_back;
                let given = (0..CLIENTS).filter(|&i| held_back[i] && !s.clients[i].gone);
                actions.extend(given.map(TurnAction::Give));
                let fenced = (0..CLIENTS).filter(|&i| s.stands_in_the_way(i, self));
                actions.extend(fenced.map(TurnAction::Fence));
            }
        }
        let is_busy = actions.iter().any(|a| !a.is_accident() && *a != TurnAction::Look);
        if s.ticks > 0 || !is_busy && !s.is_over(self) && s.now < 20 {
            actions.push(TurnAction::Tick);
        }
    }

    fn next_state(&self, last: &TurnState, action: TurnAction) -> Option<TurnState> {
        let mut s = last.clone();
        match action {
            TurnAction::Step(i) => s.step(i, self),
            TurnAction::Serve(i) => s.arbiter.serve(i, s.clients[i].asked?),
            TurnAction::Look => s.arbiter.begin(),
            TurnAction::Arbiter => s.arbiter_steps(self),
            TurnAction::Tick => {
                s.now += 1;
                s.ticks = s.ticks.saturating_sub(1);
            }
            TurnAction::Die(i) => {
                let c = &mut s.clients[i];
                (c.gone, c.asked, c.answer) = (true, None, None);
            }
            TurnAction::Forget(i) => s.forget(i),
            TurnAction::Give(i) => match s.clients[i].asked {
                Some(arbiter::Request::Take(mode)) => s.arbiter.give(i, mode),
                _ => return None,
            },
            TurnAction::Fence(i) => s.fence(i, self),
            TurnAction::Lose(i) => {
                s.losses -= 1;
                let script = self.script(i);
                s.clients[i].loses(script);
            }
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("exclusion", |_, s: &TurnState| !s.two_hold()),
            Property::always("what is told holds", |_, s: &TurnState| s.wrong.is_none()),
            Property::always("counts", |_, s: &TurnState| !s.is_miscounted()),
            Property::always("everything ends", |m: &TurnSetup, s: &TurnState| {
                let mut actions = Vec::new();
                m.actions(s, &mut actions);
                let goes_on = |a: &TurnAction| !a.is_accident() && *a != TurnAction::Look;
                actions.iter().any(goes_on) || s.wrong.is_some() || s.ends_well(m)
            }),
        ]
    }
}

/// The result of a search.
#[derive(Debug)]
pub struct TurnReport {
    /// The number of states.
    pub states: usize,
    /// The greatest distance of a state from the start.
    pub depth: usize,
    /// The property that does not hold, and the trace to that state.
    pub broken: Option<(&'static str, String)>,
}

/// Explores all states of a setup, until a property is broken.
pub fn explore_turns(setup: &TurnSetup, threads: usize) -> TurnReport {
    let finish = stateright::HasDiscoveries::AnyFailures;
    let checker = setup.clone().checker().threads(threads).finish_when(finish).spawn_bfs().join();
    let found = checker.discoveries().into_iter().next();
    let broken = found.map(|(name, path)| {
        let lines = path.into_vec().into_iter().map(|(state, action)| {
            let TurnState { memory: m, clients, now, .. } = &state;
            let holds: Vec<_> = clients.iter().map(|c| c.holds).collect();
            format!("t={now} {:?} {:?} lap {} holds {holds:?}\n  {action:?}", m.w0, m.w1, m.lap)
        });
        (name, lines.collect::<Vec<_>>().join("\n"))
    });
    TurnReport { states: checker.unique_state_count(), depth: checker.max_depth(), broken }
}
