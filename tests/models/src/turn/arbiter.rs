// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arbiter looks at the lock again and again. Each word operation of a look is a step, and a
//! look ends with one decision.

use super::client::LEASE;
use super::rules::Rule;
use super::words::{Entry, Memory, Mode, Taken, Ticket, Turn, Values, WordOp, CLIENTS};

/// A client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    Wait(Mode, Ticket),
    Release(Mode, Ticket),
    Extend(Mode, Ticket),
    /// A ticket, because the numbers are too high for clients to take one.
    Take(Mode),
    /// An answer was lost: the client holds nothing and waits for nothing.
    Resolve,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    Granted {
        until: u8,
        turn: Turn,
    },
    /// The client's ticket.
    Ticket(Ticket),
    /// The ticket counters have started again, so the client takes a ticket by itself.
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
    /// The ticket counters start again: `w1` is set to 0, then the lap is raised, then `w0` is set
    /// to 0.
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

/// The decision of a look. It counts once the look's compare-and-swap has succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    turn: Turn,
    next: Kept,
    replies: Vec<(usize, Reply)>,
}

/// What the arbiter keeps between two looks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Kept {
    /// The clients that wait at the arbiter, in the order of arrival.
    pub queue: Vec<(usize, Mode, Ticket)>,
    /// For each client: what the arbiter has granted or extended, and until when.
    pub granted: [Option<(Mode, Ticket, u8)>; CLIENTS],
    /// The exclusive number at the head for which the arbiter knew no client; and the stamps of the
    /// ledger entries that may belong to it.
    pub head: Option<(u8, [Option<u8>; CLIENTS])>,
    /// Tickets that the arbiter has given, until their clients wait with them.
    pub given: Vec<(usize, Mode, Ticket)>,
    /// The clients that ask for a ticket and are held back until the counters have started again.
    pub held_back: [bool; CLIENTS],
    /// Shared tickets below this number count as done, except those of these clients.
    pub passed: Option<(u8, [bool; CLIENTS])>,
}

impl Kept {
    /// Forgets everything about this client.
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
    /// The client and the request for which the arbiter looks at the lock at present.
    pub serving: Option<(usize, Request)>,
}

impl Arbiter {
    /// Begins to serve a request.
    pub fn serve(&mut self, client: usize, request: Request) {
        self.serving = Some((client, request));
        self.look = Some(Look::W0);
    }

    /// Gives a ticket to a client that was held back for long enough.
    pub fn give(&mut self, client: usize, mode: Mode) {
        self.serving = Some((client, Request::Take(mode)));
        self.look = Some(Look::Give(mode));
    }

    /// Begins a look that serves no request.
    pub fn begin(&mut self) {
        self.look = Some(Look::W0);
    }

    /// Executes the next word operation of the look under way; returns the answers at its end.
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

    /// Whether the counters may start again: a number is high, the lock is idle, and no ledger has
    /// an entry except those of clients that are held back.
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

    /// Whether the client may still have this ticket.
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

    /// Refuses waiting clients whose places are gone.
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

    /// Whether this client may rely on a shared ticket at the head now.
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

    /// Counts shared tickets as done, grants, and passes the head, as far as possible; returns
    /// whether the head has changed.
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

    /// Passes the exclusive number at the head, for which no client is known, if no client may own
    /// it. Returns whether it did.
    fn pass_head(&mut self, view: &View, shares: u8, divert: u8, rule: Option<Rule>) -> bool {
        let nx = self.turn.nx;
        let intent = |i: usize| {
            let entry = view.ledgers[i];
            let may = entry.claim == Some(Mode::X) && entry.runs(view.clock);
            // from the divert point on, a number belongs only to the client to which the arbiter
            // gave it
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
