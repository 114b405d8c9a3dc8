// SPDX-License-Identifier: MIT OR Apache-2.0
//! The turns of the command thread: who has the next one, and what is done in it.
//!
//! ```text
//!   Client     its control requests, then the frames of its command channel
//!   Strangers  connections without a client yet: Init, Attach, questions
//!   Upkeep     locks whose time has come, and undoing what fenced clients had
//! ```
//! Each of these has its own queue and its share of the thread ([`dlock_core::budget::shares`]),
//! counted in work units. The queues are bounded, because each connection has at most one request
//! and one notice of its end under way. Nothing here waits. The only decision is the order within
//! one client: control requests before frames, as in the simulator.

use std::collections::{HashMap, VecDeque};

use dlock_core::budget::shares::Shares;
use dlock_core::budget::work::{FRAME_WORK, QUANTUM};
use dlock_core::ids::ClientId;
use dlock_core::primary;

use super::Worker;
use crate::command::mailbox::Event;

/// Turns in one round, before the poll is asked again.
const TURNS_PER_ROUND: usize = 256;
/// Work units of a turn if each is a round trip to a device.
const NIC_QUANTUM: u32 = 16;
/// Work units of a new connection, or of an administrator's question: mostly system calls.
const CONNECTION_WORK: u32 = 64;

/// A party that gets turns of the command thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    /// A client that was let in.
    Client(ClientId),
    /// All connections without a client, together.
    Strangers,
    /// The primary's own work: expiry, undoing.
    Upkeep,
}

/// The queues, and the order of the turns.
pub(super) struct Turns {
    pub(super) shares: Shares<Who>,
    /// Control requests of clients, and the ends of their connections, in their order.
    requests: HashMap<ClientId, VecDeque<Event>>,
    strangers: VecDeque<Event>,
}

/// Work units of a turn.
pub(crate) fn quantum(memory_is_a_devices: bool) -> u32 {
    if memory_is_a_devices {
        NIC_QUANTUM
    } else {
        QUANTUM
    }
}

impl Turns {
    pub(super) fn new(memory_is_a_devices: bool) -> Self {
        Self {
            shares: Shares::new(quantum(memory_is_a_devices)),
            requests: HashMap::new(),
            strangers: VecDeque::new(),
        }
    }

    /// Gives this client a turn, because it has something to do.
    pub(super) fn add(&mut self, client: ClientId) {
        self.shares.add(Who::Client(client));
    }

    fn add_stranger(&mut self, event: Event) {
        self.strangers.push_back(event);
        self.shares.add(Who::Strangers);
    }

    /// Removes a client that is no longer a member. Requests of its connections are still answered.
    pub(super) fn remove(&mut self, client: ClientId) {
        self.shares.remove(Who::Client(client));
        for event in self.requests.remove(&client).into_iter().flatten() {
            self.add_stranger(event);
        }
    }
}

impl Worker {
    /// Puts an event of the control thread into the queue of its client, or into that of the
    /// strangers.
    pub(super) fn queue(&mut self, event: Event) {
        if let Event::Control { client, link, .. } = event {
            // the client counts as heard from now on: its request may wait long for its turn
            self.core.handle(primary::Event::Heard { client, control: link });
        }
        match event {
            Event::Control { client, .. } | Event::Lost { client, .. }
                if self.sockets.contains_key(&client) =>
            {
                self.turns.requests.entry(client).or_default().push_back(event);
                self.turns.add(client);
            }
            event => self.turns.add_stranger(event),
        }
    }

    /// Gives each client with pending work one turn. Returns whether any client had some.
    pub(super) fn serve_turns(&mut self) -> bool {
        let turns = self.turns.shares.len().min(TURNS_PER_ROUND);
        for _ in 0..turns {
            let Some(turn) = self.turns.shares.next_turn() else { break };
            let (work, more) = match turn.who {
                Who::Client(client) => self.serve_client(client, turn.budget),
                Who::Strangers => self.serve_strangers(turn.budget),
                Who::Upkeep => self.upkeep(turn.budget),
            };
            match turn.who {
                Who::Client(client) if !self.sockets.contains_key(&client) => {
                    self.turns.remove(client);
                }
                who => self.turns.shares.done(who, work, more),
            }
            self.deliver();
        }
        turns > 0
    }

    fn serve_client(&mut self, client: ClientId, budget: u32) -> (u32, bool) {
        let mut work = 0;
        while work < budget {
            let queue = self.turns.requests.get_mut(&client);
            let Some(event) = queue.and_then(VecDeque::pop_front) else { break };
            self.event(event);
            work += self.core.primary.take_work().max(FRAME_WORK);
        }
        let waits = match self.turns.requests.get(&client) {
            Some(queue) if queue.is_empty() => {
                self.turns.requests.remove(&client);
                false
            }
            queue => queue.is_some(),
        };
        if waits || work >= budget {
            return (work, true);
        }
        let token = self.sockets.get(&client).and_then(|sockets| sockets.channel);
        let Some(token) = token else { return (work, false) };
        let (more_work, more) = self.serve_channel(token, budget - work);
        (work + more_work, more)
    }

    fn serve_strangers(&mut self, budget: u32) -> (u32, bool) {
        let mut work = 0;
        while work < budget {
            let Some(event) = self.turns.strangers.pop_front() else { return (work, false) };
            self.event(event);
            work += self.core.primary.take_work() + CONNECTION_WORK;
        }
        (work, !self.turns.strangers.is_empty())
    }

    /// Does one slice of the primary's own work.
    fn upkeep(&mut self, budget: u32) -> (u32, bool) {
        self.core.handle(primary::Event::Upkeep { budget });
        let work = self.core.primary.take_upkeep();
        self.settle();
        (work, self.core.primary.has_upkeep(self.core.now()))
    }
}
