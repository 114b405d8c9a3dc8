// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arbiter: one look at a time, each word operation a step, and one decision at its end.

use super::client::LEASE;
use super::rules::Rule;
use super::words::{Entry, Memory, Mode, Taken, Ticket, Turn, Values, WordOp, CLIENTS};

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    Wait(Mode, Ticket),
    Release(Mode, Ticket),
    Extend(Mode, Ticket),
    /// A ticket, where numbers are not for clients to take.
    Take(Mode),
    /// An answer was lost: it holds nothing and waits for nothing.
    Resolve,
}

/// What it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    Granted {
        until: u8,
        turn: Turn,
    },
    /// Its place.
    Ticket(Ticket),
    /// The lanes have started again: it takes a ticket itself.
    Anew,
    Refused,
    Done,
}

/// A look under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Look {
    W0,
    W1(Taken),
    Ledgers(View, usize),
    Cas(View, Box<Decision>),
    /// The arbiter takes a ticket for the client that it serves.
    Give(Mode),
    /// The lanes start again: `w1` is to be 0, then the lap is raised, then `w0` is to be 0.
    LapW1(View),
    LapFence,
    LapRead,
    LapW0(Taken),
}

/// What a look has read so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct View {
    pub w0: Taken,
    pub w1: Turn,
    pub lap: u8,
    pub clock: u8,
    pub ledgers: [Entry; CLIENTS],
}

/// What a look has decided: it counts when its compare-and-swap has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    turn: Turn,
    next: Kept,
    replies: Vec<(usize, Reply)>,
}

/// What the arbiter keeps between two looks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Kept {
    /// Who sleeps, in the order of arrival.
    pub queue: Vec<(usize, Mode, Ticket)>,
    /// What it has granted or extended itself, and until when.
    pub granted: [Option<(Mode, Ticket, u8)>; CLIENTS],
    /// The exclusive number at the head when no client was known to have it, and the stamps of the
    /// intents that may own it.
    pub head: Option<(u8, [Option<u8>; CLIENTS])>,
    /// Tickets that it has given, until their clients wait with them.
    pub given: Vec<(usize, Mode, Ticket)>,
    /// Who asks for a ticket and is held back until the lanes have started again.
    pub held_back: [bool; CLIENTS],
    /// Shares below this number are done, but for those of these clients.
    pub passed: Option<(u8, [bool; CLIENTS])>,
}

impl Kept {
    /// Nothing is known of this client any more.
    pub fn forget(&mut self, client: usize) {
        self.queue.retain(|waiter| waiter.0 != client);
        self.given.retain(|given| given.0 != client);
        self.held_back[client] = false;
        self.granted[client] = None;
    }
}

/// The arbiter of the lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Arbiter {
    pub kept: Kept,
    pub look: Option<Look>,
    /// Whose request the look under way serves.
    pub serving: Option<(usize, Request)>,
}

impl Arbiter {
    /// Begins to serve a request.
    pub fn serve(&mut self, client: usize, request: Request) {
        self.serving = Some((client, request));
        self.look = Some(Look::W0);
    }

    /// Gives a client that is held back a ticket: it has waited for long enough.
    pub fn give(&mut self, client: usize, mode: Mode) {
        self.serving = Some((client, Request::Take(mode)));
        self.look = Some(Look::Give(mode));
    }

    /// Begins to look without being asked.
    pub fn begin(&mut self) {
        self.look = Some(Look::W0);
    }

    /// One word operation of the look under way; at its end the answers.
    pub fn step(
        &mut self,
        memory: &mut Memory,
        now: u8,
        (divert, rule): (u8, Option<Rule>),
    ) -> Vec<(usize, Reply)> {
        let Some(look) = self.look.take() else { return Vec::new() };
        match look {
            Look::W0 => self.look = Some(Look::W1(memory.w0)),
            Look::W1(w0) => {
                let view =
                    View { w0, w1: memory.w1, lap: memory.lap, clock: now, ..View::default() };
                self.look = Some(Look::Ledgers(view, 0));
            }
            Look::Ledgers(mut view, at) => {
                view.ledgers[at] = memory.ledgers[at];
                if rule == Some(Rule::ClockBeforeLedgers) {
                    view.clock = now;
                }
                if at + 1 < CLIENTS {
                    self.look = Some(Look::Ledgers(view, at + 1));
                    return Vec::new();
                }
                let decision = self.decide(&view, divert, rule);
                if self.may_start_again(&view, &decision, divert, rule) {
                    self.look = Some(Look::LapW1(view));
                    return self.commit(decision);
                }
                if decision.turn == view.w1 {
                    return self.commit(decision);
                }
                self.look = Some(Look::Cas(view, Box::new(decision)));
            }
            Look::Cas(view, decision) => {
                if memory.w1 == view.w1 || rule == Some(Rule::OneCas) {
                    memory.w1 = decision.turn;
                    return self.commit(*decision);
                }
                self.look = Some(Look::W0);
            }
            Look::Give(mode) => {
                let Some((client, _)) = self.serving.take() else { return Vec::new() };
                let (lap, tx, ts) = (memory.lap, memory.w0.mx, memory.w0.ms);
                memory.execute(client, WordOp::Take(mode), &mut Values::default());
                self.kept.held_back[client] = false;
                self.kept.given.push((client, mode, Ticket { lap, tx, ts }));
                return vec![(client, Reply::Ticket(Ticket { lap, tx, ts }))];
            }
            Look::LapW1(view) => {
                if memory.w1 == view.w1 {
                    memory.w1 = Turn::default();
                    self.look = Some(Look::LapFence);
                }
            }
            Look::LapFence => {
                memory.lap += 1;
                self.look = Some(Look::LapRead);
            }
            Look::LapRead => self.look = Some(Look::LapW0(memory.w0)),
            Look::LapW0(seen) => {
                if memory.w0 != seen {
                    self.look = Some(Look::LapRead);
                    return Vec::new();
                }
                memory.w0 = Taken::default();
                let held_back = std::mem::take(&mut self.kept).held_back;
                let anew = (0..CLIENTS).filter(|&i| held_back[i]).map(|i| (i, Reply::Anew));
                return anew.collect();
            }
        }
        Vec::new()
    }

    /// Whether the lanes may start again: a number is high, the lock is idle, and no ledger has an
    /// entry but those of clients that are held back.
    fn may_start_again(&self, view: &View, d: &Decision, divert: u8, rule: Option<Rule>) -> bool {
        let is_high = view.w0.mx >= divert || view.w0.ms >= divert;
        let is_idle = (view.w0.mx, view.w0.ms) == (view.w1.nx, view.w1.ns) && d.turn == view.w1;
        let is_free = |i: usize| {
            view.ledgers[i].claim.is_none()
                || d.next.held_back[i]
                || rule == Some(Rule::LapAfterEntries) && !view.ledgers[i].runs(view.clock)
        };
        let is_kept = d.next.given.is_empty() && d.next.queue.is_empty();
        is_high && is_idle && is_kept && d.replies.is_empty() && (0..CLIENTS).all(is_free)
    }

    fn commit(&mut self, decision: Decision) -> Vec<(usize, Reply)> {
        self.kept = decision.next;
        self.serving = None;
        decision.replies
    }

    fn decide(&self, view: &View, divert: u8, rule: Option<Rule>) -> Decision {
        let next = self.kept.clone();
        let mut d = Decision { turn: view.w1, next, replies: Vec::new() };
        if let Some((client, request)) = self.serving {
            d.serve(view, client, request, rule);
        }
        d.refuse_the_past(view, rule);
        while d.advance(view, divert, rule) {}
        d.refuse_the_past(view, rule);
        d.turn.told = !d.next.queue.is_empty();
        for (_, reply) in &mut d.replies {
            if let Reply::Granted { turn, .. } = reply {
                *turn = d.turn;
            }
        }
        d
    }
}

impl Decision {
    fn grant(&mut self, client: usize, mode: Mode, ticket: Ticket, clock: u8) {
        let until = clock + LEASE;
        self.next.granted[client] = Some((mode, ticket, until));
        self.replies.push((client, Reply::Granted { until, turn: self.turn }));
    }

    /// Whether a share of this client was counted as done.
    fn is_passed(&self, client: usize, ticket: Ticket, rule: Option<Rule>) -> bool {
        let passed = self.next.passed.filter(|_| rule != Some(Rule::PassedIsRefused));
        passed.is_some_and(|(below, live)| ticket.ts < below && !live[client])
    }

    /// Whether a ticket may be its client's still.
    fn stands(
        &self,
        view: &View,
        client: usize,
        mode: Mode,
        ticket: Ticket,
        rule: Option<Rule>,
    ) -> bool {
        ticket.lap == view.lap
            && ticket.tx == self.turn.nx
            && (mode == Mode::X || !self.is_passed(client, ticket, rule))
    }

    fn serve(&mut self, view: &View, client: usize, request: Request, rule: Option<Rule>) {
        match request {
            Request::Take(_) => self.next.held_back[client] = true,
            Request::Wait(mode, ticket) => {
                self.next.given.retain(|given| given.0 != client);
                self.next.queue.push((client, mode, ticket));
            }
            Request::Extend(mode, ticket) => {
                if self.stands(view, client, mode, ticket, rule) {
                    self.grant(client, mode, ticket, view.clock);
                } else {
                    self.next.granted[client] = None;
                    self.replies.push((client, Reply::Refused));
                }
            }
            Request::Release(mode, ticket) => {
                self.next.granted[client] = None;
                let reply = match self.stands(view, client, mode, ticket, rule) {
                    true => {
                        match mode {
                            Mode::X => self.turn.nx += 1,
                            Mode::S => self.turn.ns += 1,
                        }
                        if let (Mode::S, Some((_, live))) = (mode, &mut self.next.passed) {
                            live[client] = false;
                        }
                        Reply::Done
                    }
                    false => Reply::Refused,
                };
                self.replies.push((client, reply));
            }
            Request::Resolve => {
                self.next.forget(client);
                self.replies.push((client, Reply::Done));
            }
        }
    }

    /// Sleepers whose places are gone are told so.
    fn refuse_the_past(&mut self, view: &View, rule: Option<Rule>) {
        let (turn, lap) = (self.turn, view.lap);
        let gone = |d: &Self, &(client, mode, ticket): &(usize, Mode, Ticket)| {
            ticket.is_past(turn, lap) || mode == Mode::S && d.is_passed(client, ticket, rule)
        };
        let (past, queue) = self.next.queue.iter().partition(|waiter| gone(self, waiter));
        let past: Vec<(usize, Mode, Ticket)> = past;
        self.next.queue = queue;
        self.replies.extend(past.iter().map(|waiter| (waiter.0, Reply::Refused)));
    }

    /// The known ticket of a client, and whether its claim runs.
    fn known(&self, view: &View, client: usize) -> Option<(Mode, Ticket)> {
        let waiting = self.next.queue.iter().chain(&self.next.given);
        let queued = waiting.into_iter().find(|waiter| waiter.0 == client);
        let granted = self.next.granted[client].filter(|grant| grant.2 > view.clock);
        queued.map(|&(_, mode, ticket)| (mode, ticket)).or(granted.map(|g| (g.0, g.1)))
    }

    /// Whether this client may rely on a share at the head now.
    fn may_share(&self, view: &View, client: usize) -> bool {
        match self.known(view, client) {
            Some((mode, ticket)) => mode == Mode::S && ticket.tx == self.turn.nx,
            None => {
                let entry = view.ledgers[client];
                let is_held_back = self.next.held_back[client];
                entry.claim == Some(Mode::S) && entry.runs(view.clock) && !is_held_back
            }
        }
    }

    /// Grants, passes and counts what can be; whether the head has changed.
    fn advance(&mut self, view: &View, divert: u8, rule: Option<Rule>) -> bool {
        let nx = self.turn.nx;
        let mut live: [bool; CLIENTS] = std::array::from_fn(|i| self.may_share(view, i));
        if rule == Some(Rule::LiveSharesStay) {
            live = std::array::from_fn(|i| live[i] && self.known(view, i).is_some());
        }
        let shares = live.iter().filter(|&&may| may).count() as u8;
        let known = (0..CLIENTS).find_map(|i| match self.known(view, i) {
            Some((Mode::X, ticket)) if ticket.tx == nx => Some((i, ticket)),
            _ => None,
        });
        let is_open = view.w0.mx > nx;
        let end = match known {
            Some((_, ticket)) => Some(ticket.ts),
            None if is_open => None,
            None => Some(view.w0.ms),
        };
        if let Some(end) = end.filter(|&end| end > self.turn.ns + shares) {
            self.turn.ns = end - shares;
            self.next.passed = Some((end, live));
        }
        let turn = self.turn;
        let ready = |&(_, mode, ticket): &(usize, Mode, Ticket)| {
            ticket.tx == nx && (mode == Mode::S || ticket.ts == turn.ns)
        };
        let (granted, queue) = self.next.queue.iter().partition(|waiter| ready(waiter));
        let granted: Vec<(usize, Mode, Ticket)> = granted;
        self.next.queue = queue;
        for (client, mode, ticket) in granted {
            match mode == Mode::S && self.is_passed(client, ticket, rule) {
                true => self.replies.push((client, Reply::Refused)),
                false => self.grant(client, mode, ticket, view.clock),
            }
        }
        if known.is_some() || !is_open {
            self.next.head = None;
            return false;
        }
        self.pass_head(view, shares, divert, rule)
    }

    /// No client is known to have the number at the head.
    fn pass_head(&mut self, view: &View, shares: u8, divert: u8, rule: Option<Rule>) -> bool {
        let nx = self.turn.nx;
        let intent = |i: usize| {
            let entry = view.ledgers[i];
            let may = entry.claim == Some(Mode::X) && entry.runs(view.clock);
            // above the divert point a number belongs to the client that the arbiter gave it to
            let may = may && !self.next.held_back[i] && nx < divert;
            (may && self.known(view, i).is_none()).then_some(entry.stamp)
        };
        let intents: [Option<u8>; CLIENTS] = std::array::from_fn(intent);
        let seen = self.next.head.filter(|head| head.0 == nx).map(|head| head.1);
        let may_own: [Option<u8>; CLIENTS] = match seen {
            Some(seen) => {
                std::array::from_fn(|i| seen[i].filter(|&stamp| intents[i] == Some(stamp)))
            }
            None => intents,
        };
        let is_claimed =
            may_own.iter().any(Option::is_some) && rule != Some(Rule::HeadMayBeClaimed);
        if is_claimed || shares > 0 && rule != Some(Rule::HeadAfterShares) {
            self.next.head = Some((nx, may_own));
            return false;
        }
        self.turn.nx += 1;
        self.next.head = None;
        true
    }
}
