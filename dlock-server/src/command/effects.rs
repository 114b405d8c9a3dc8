// SPDX-License-Identifier: MIT OR Apache-2.0
//! Executes the effects of [`Primary`](dlock_core::primary::Primary) with sockets, memory and the
//! device. Nothing is decided here.

use dlock_core::ids::ClientId;
use dlock_core::membership::Exit;
use dlock_core::primary::{Effect, Event, Recovered};
use dlock_core::wire::status::Status;
use mio::unix::SourceFd;
use std::mem;
use std::os::fd::AsRawFd;

use super::turns::Who;
use super::{Core, Process, Worker};
use crate::observe::acts;
use crate::observe::log_limit::{limited, Cause};

impl Worker {
    /// Hands an event to the primary, executes the effects, and returns the answer to the event, if
    /// it has one.
    pub(super) fn handle(&mut self, event: Event) -> Option<Effect> {
        self.core.handle(event);
        self.settle()
    }

    /// Executes all pending effects; returns the answer among them, if there is one.
    pub(super) fn settle(&mut self) -> Option<Effect> {
        let mut answer = None;
        while let Some(effect) = self.core.primary.poll() {
            match effect.is_answer() {
                true => answer = Some(effect),
                false => self.execute(effect),
            }
        }
        self.files.set_taken(self.core.primary.members().files());
        // undoing that the effects have done at once counts as upkeep
        let work = self.core.primary.take_upkeep();
        if work > 0 {
            self.turns.shares.charge(Who::Upkeep, work);
        }
        answer
    }

    fn execute(&mut self, effect: Effect) {
        match effect {
            Effect::Send(sent) => self.core.sent.push(sent),
            Effect::Listen => self.inbox.listen(),
            Effect::CloseControl { client, control } => {
                let Some(sockets) = self.sockets.get_mut(&client) else { return };
                for link in [&mut sockets.control, &mut sockets.next_control] {
                    if let Some(link) = link.take_if(|link| link.id == control) {
                        link.close();
                    }
                }
            }
            Effect::CloseChannel { client, channel } => {
                self.close_channels(client, |number| Some(number) == channel);
                let unfenced = self.is_unfenced(client);
                self.core.handle(Event::Done { unfenced });
            }
            Effect::Fence { client } => {
                self.close_channels(client, |_| true);
                let unfenced = self.is_unfenced(client);
                self.core.handle(Event::Done { unfenced });
            }
            Effect::Switch { client } => {
                self.switch(client);
                self.core.handle(Event::Done { unfenced: false });
            }
            Effect::Keep(change) => self.roster.tell(change),
            Effect::Revoke { client, status } => {
                log::debug!("client {client} keeps its slots until it cannot act any more");
                self.core.memory.revoke(client, status);
            }
            // shm clients execute their own chains, so the memory refuses them during a recovery
            Effect::Gate { is_closed } => {
                self.core.memory.set_gate(is_closed.then_some(Status::NotReady));
            }
            Effect::Forget { client } => self.forget(client),
            Effect::Operated { .. } => acts::log_of(&effect),
            Effect::Idle => self.inbox.is_idle(),
            Effect::Hinders { .. }
            | Effect::Lags { .. }
            | Effect::Unfenced { .. }
            | Effect::Lapses { .. }
            | Effect::Removes { .. }
            | Effect::Recovered(_) => log_of(&effect),
            Effect::Outcome(_)
            | Effect::Opened { .. }
            | Effect::Answer { .. }
            | Effect::Attached { .. } => unreachable!("{effect:?} is an answer"),
        }
    }

    /// Closes the client's channels for whose numbers `is_one` returns true.
    fn close_channels(&mut self, client: ClientId, is_one: impl Fn(u64) -> bool) {
        let Some(sockets) = self.sockets.get(&client) else { return };
        for token in [sockets.channel, sockets.next_channel].into_iter().flatten() {
            if self.channels.get(&token).is_some_and(|channel| is_one(channel.number)) {
                self.drop_channel(client, token);
            }
        }
    }

    /// Makes the connections of the prepared session those of the client. Frames that have arrived
    /// on its channel are served from now on.
    fn switch(&mut self, client: ClientId) {
        let sockets = self.sockets.entry(client).or_default();
        sockets.control = sockets.next_control.take();
        sockets.channel = sockets.next_channel.take();
        self.turns.add(client);
    }

    /// Stops watching these processes of the client, and closes pidfds that no other client needs.
    pub(super) fn unwatch(&mut self, client: ClientId, which: impl Fn(&Process) -> bool) {
        let Some(sockets) = self.sockets.get_mut(&client) else { return };
        let (unwatched, watched) = mem::take(&mut sockets.processes).into_iter().partition(which);
        sockets.processes = watched;
        let unwatched: Vec<Process> = unwatched;
        for one in &unwatched {
            let (Some(token), Some(fd)) = (one.token, one.process.pidfd()) else { continue };
            if let Some(clients) = self.pidfds.get_mut(&token) {
                clients.retain(|other| *other != client);
                if !clients.is_empty() {
                    continue;
                }
            }
            self.pidfds.remove(&token);
            // The descriptor is closed next, which takes it out of the poll as well.
            let _ = self.poll.registry().deregister(&mut SourceFd(&fd.as_raw_fd()));
        }
    }

    fn forget(&mut self, client: ClientId) {
        self.unwatch(client, |_| true);
        self.sockets.remove(&client);
        self.turns.remove(client);
        self.core.memory.remove_client(client);
        self.may_have_room = true;
    }
}

impl Core {
    /// Passes an event to the primary.
    pub(super) fn handle(&mut self, event: Event) {
        self.primary.handle(self.clock.now(), &mut self.memory, event);
    }
}

/// Logs an effect, if it is one for the log.
fn log_of(effect: &Effect) {
    use log::Level::{Debug, Info, Warn};
    match *effect {
        Effect::Hinders { client } => limited!(
            Cause::Removed,
            Warn,
            "client {client} keeps others waiting in the middle of an operation: it is fenced, \
             and keeps nothing but its leases when its session horizon has passed"
        ),
        Effect::Lags { client, until } => {
            let then = match until {
                Some(_) => "it is given up when its session horizon has passed",
                None => "without a session horizon it is waited for all the same",
            };
            limited!(
                Cause::Removed,
                Warn,
                "client {client} is here, and has not said in time that it has told everything: \
                 {then}"
            );
        }
        Effect::Unfenced { client } => limited!(
            Cause::Removed,
            Warn,
            "client {client} cannot be fenced, and keeps what it holds: a process of it has the \
             memory mapped; end that process to free it"
        ),
        Effect::Lapses { client } => {
            let what = "keeps its leases, and nothing else";
            limited!(Cause::Lapsed, Info, "client {client} {what}");
        }
        Effect::Removes { client, exit } => {
            let level = if exit == Exit::Left { Debug } else { Info };
            limited!(Cause::Removed, level, "client {client} is removed: {exit}");
        }
        Effect::Recovered(Recovered { clients, given_up, claims, lost }) => log::info!(
            "recovered: {clients} clients are back or have ended, {given_up} were not waited for \
             any longer; of {claims} holds and tickets {lost} are lost to other clients"
        ),
        _ => {}
    }
}
