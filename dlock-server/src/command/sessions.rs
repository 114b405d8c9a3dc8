// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admission, requests, departure and loss of clients: the sockets and processes around
//! [`Primary`](dlock_core::primary::Primary), which decides.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

use dlock_core::ids::{ClientId, Identity};
use dlock_core::membership::{self, Admission, Caller, Connection, Gone, Opened, State};
use dlock_core::primary::{Effect, Event};
use dlock_core::roster::Change;
use dlock_core::wire::control::{
    Attach, Attached, ControlReply, ControlRequest, FabricKind, Session,
};
use dlock_core::wire::fabric::Executes;
use dlock_core::wire::status::Status;
use log::Level;
use mio::unix::SourceFd;
use mio::{Interest, Token};

use super::{Process, Waiting, Worker};
use crate::command::channel::Channel;
use crate::command::mailbox::{ClientSeen, ConnectionHandle, ShownBy};
use crate::coordinator::file;
use crate::host::capacity::Bound;
use crate::host::random;
use crate::observe::log_limit::{limited, Cause};
use crate::transport::{Guest, Peer, Pump};

impl Worker {
    /// `Init` or `Reinit`: lets a client in, or lets it wait until room is made.
    pub(super) fn open(&mut self, who: Waiting) {
        let draws = match random::draws() {
            Ok(draws) => draws,
            Err(error) => {
                limited!(Cause::NoResource, Level::Error, "no client can be let in: {error}");
                let _ = who.reply.send(Err(ControlReply::Error(Status::Error)));
                return;
            }
        };
        let shown = who.link.shown();
        let identity = shown.map(|shown| shown.identity);
        let names = shown.map(|shown| shown.names.clone()).unwrap_or_default();
        let caller = Caller { control: who.link.id, identity, names };
        let event = Event::Open { request: who.request.clone(), caller, draws };
        let Some(Effect::Opened { opened, .. }) = self.handle(event) else { return };
        match opened {
            Ok(Opened::Admitted(admission)) => {
                let entered = self.enter(admission, &who.request, who.link);
                let _ = who.reply.send(entered.map_err(ControlReply::Error));
            }
            Ok(Opened::Wait) => {
                // Each connection has at most one waiting client, so the queue is bounded. A place
                // becomes free when a client is forgotten.
                self.may_have_room = !self.core.primary.locks().is_undoing();
                self.waiting.push_back(who);
            }
            Err(status) => {
                if status == Status::ServerNoResource && !self.tell_of_refusals() {
                    let capacity = self.capacity;
                    limited!(Cause::NoResource, Level::Warn, "a client is refused: {capacity}");
                }
                let refusal = self.core.primary.refusal(&who.request, status);
                let _ = who.reply.send(Err(refusal));
            }
        }
    }

    /// Tries again to let in the clients that wait for room.
    pub(super) fn open_waiting(&mut self) {
        if !std::mem::take(&mut self.may_have_room) {
            return;
        }
        for _ in 0..self.waiting.len() {
            if let Some(who) = self.waiting.pop_front() {
                self.open(who);
            }
        }
    }

    /// The certificates that the peers of all connections have shown in their TLS handshakes.
    pub(super) fn shown(&self) -> Vec<ShownBy> {
        let channels = self.channels.values().filter_map(|channel| {
            let shown = channel.shown.clone()?;
            Some((channel.client, Connection::Channel(channel.number), shown))
        });
        let links = self.sockets.iter().flat_map(|(&client, sockets)| {
            let links = sockets.control.iter().chain(&sockets.next_control);
            links.filter_map(move |link| {
                Some((client, Connection::Control(link.id), link.shown()?.clone()))
            })
        });
        links.chain(channels).collect()
    }

    /// Logs the requests that were refused for lack of a right or because of a quota; returns
    /// whether there were any.
    pub(super) fn tell_of_refusals(&mut self) -> bool {
        let refusals = self.core.primary.take_refusals();
        for refusal in &refusals {
            limited!(Cause::Rules, Level::Warn, "{refusal}");
        }
        !refusals.is_empty()
    }

    /// Logs that a client got no lock because the lock table is full.
    pub(super) fn tell_of_full_table(&self, client: ClientId, reply: &ControlReply) {
        let ControlReply::Locks(results) = reply else { return };
        let (_, locks, _) = self.core.primary.locks().totals();
        let max = self.core.primary.locks().config().locks_max;
        if locks >= max && results.contains(&Err(Status::ServerNoResource)) {
            limited!(
                Cause::LocksFull,
                Level::Warn,
                "client {client} gets no further lock: the primary has its {max} locks \
                 (locks_max in dlockd.toml); raise it, or let clients release those that they do \
                 not need (dlock locks)"
            );
        }
    }

    /// Adds an admitted client to the memory, and makes its answer.
    fn enter(
        &mut self,
        admission: Admission,
        request: &ControlRequest,
        link: Arc<ConnectionHandle>,
    ) -> Result<Session, Status> {
        let client = admission.client;
        let sockets = self.sockets.entry(client).or_default();
        match admission.prepared_by {
            Some(_) => sockets.next_control = Some(link),
            None => sockets.control = Some(link),
        }
        if let Err(error) = self.core.memory.add_client(client) {
            limited!(Cause::NoResource, Level::Error, "client {client} cannot be let in: {error}");
            let is_new = matches!(request, ControlRequest::Init { .. });
            self.handle(Event::NoMemory { client, is_new });
            return Err(Status::ServerNoResource);
        }
        Ok(Session {
            version: admission.version,
            client,
            secret: admission.secret,
            epoch: self.core.primary.locks().config().epoch,
            anchor_s: self.core.clock.anchor_s(),
            now: self.core.now(),
            recovering: admission.recovering,
            offers: self.core.primary.offers(client, &self.offers),
            terms: admission.terms,
        })
    }

    /// Handles a request on a control connection that is bound to a client.
    pub(super) fn control(
        &mut self,
        client: ClientId,
        link: u64,
        request: ControlRequest,
    ) -> ControlReply {
        let answer = self.handle(Event::Control { client, control: link, request });
        let Some(Effect::Answer { reply, .. }) = answer else {
            return ControlReply::Error(Status::Error); // unreachable: every request is answered
        };
        self.tell_of_full_table(client, &reply);
        reply
    }

    /// Handles the end of a control connection.
    pub(super) fn lost(&mut self, client: ClientId, link: u64, why: Gone) {
        self.handle(Event::ControlEnded { client, control: link, why });
        if let Some(sockets) = self.sockets.get_mut(&client) {
            for control in [&mut sockets.control, &mut sockets.next_control] {
                drop(control.take_if(|control| control.id == link));
            }
        }
        // The poll may not have reported the end of the process yet.
        self.look_at_process(client);
    }

    /// All clients, as operators see them.
    pub(super) fn clients(&self) -> Vec<ClientSeen> {
        let members = self.core.primary.members();
        let clients = self.core.primary.locks().clients_snapshot().into_iter();
        clients
            .map(|snapshot| {
                let (client, sockets) = (snapshot.client, self.sockets.get(&snapshot.client));
                let channel = sockets.and_then(|sockets| self.channels.get(&sockets.channel?));
                let control = sockets.and_then(|sockets| sockets.control.as_ref());
                ClientSeen {
                    snapshot,
                    is_present: members.state(client) == Some(State::Present),
                    about: members.about(client).cloned().unwrap_or_default(),
                    fabric: channel.map(|channel| channel.fabric),
                    shown: control.and_then(|control| control.shown().cloned()),
                }
            })
            .collect()
    }

    /// Handles a connection that wants to be a client's command channel.
    pub(super) fn attach(&mut self, guest: Guest) {
        let (attach, joining, shown) = (guest.attach, guest.joining(), guest.shown.clone());
        let (client, fabric) = (attach.client, attach.fabric);
        if guest.is_late(Instant::now()) {
            return log::debug!("client {client} does not wait for its command channel any more");
        }
        if !guest.pump.is_open() {
            // the client has closed the connection while this process stood still
            return self.refuse(guest, Status::Error);
        }
        let channel = match self.handle(Event::Attach { attach, joining }) {
            Some(Effect::Attached { channel: Ok(channel), .. }) => channel,
            Some(Effect::Attached { channel: Err(status), .. }) => {
                return self.refuse(guest, status);
            }
            _ => return, // unreachable: every attach is answered
        };
        let attached = Attached {
            status: Status::Success,
            slots: self.core.memory.slots(),
            ledger_entries: self.core.memory.ledger_entries(),
            clock_offset_ns: match fabric.executes() {
                // shared memory: the client is on this host, and has the same local clock
                Executes::Client => self.core.clock.offset_ns(),
                Executes::Primary | Executes::Device => 0,
            },
            verbs: None,
            until: channel.until,
        };
        if let (Some(number), Some(peer)) = (channel.watch, guest.process) {
            self.watch(client, number, peer);
        }
        // The channel is added before the client is answered, because its first frame may come at
        // once.
        let Some(token) = self.add_channel(client, channel, fabric, guest.pump) else { return };
        let Some(channel) = self.channels.get_mut(&token) else { return };
        channel.shown = shown;
        if let Err(error) = channel.answer(&attached, &mut self.core.memory) {
            log::warn!("client {client} did not take its command channel: {error}");
            self.end_channel(token, "it did not take it");
        }
    }

    fn refuse(&mut self, mut guest: Guest, status: Status) {
        let client = guest.attach.client;
        // While the primary recovers, a client asks again and again.
        let level = match status {
            Status::NotReady => Level::Debug,
            _ => Level::Warn,
        };
        let capacity = self.capacity;
        let why = match (status, capacity.bound) {
            (Status::ServerNoResource, Bound::OpenFiles { .. }) => format!("; {capacity}"),
            _ => String::new(),
        };
        limited!(
            Cause::AttachRefused,
            level,
            "a command channel of client {client} is refused: {status}{why}"
        );
        // the connection is closed in any case, so it does no harm if the answer is lost
        let _ = guest.pump.answer(&Attached::bare(status), client, &mut self.core.memory);
    }

    /// Whether a client may attach. Its transport asks before it makes queue pairs, which takes
    /// time.
    pub(super) fn may_attach_now(&self, attach: &Attach, identity: Option<Identity>) -> Status {
        let joining = membership::Joining::over(attach.fabric).shown(identity);
        self.core.primary.may_attach(attach, joining)
    }

    fn add_channel(
        &mut self,
        client: ClientId,
        made: membership::Channel,
        fabric: FabricKind,
        mut pump: Box<dyn Pump>,
    ) -> Option<Token> {
        let (token, number) = (self.token(), made.number);
        let ids = pump.device_ids();
        if let Err(error) = pump.open(token, self.poll.registry()) {
            log::error!("client {client} has no command channel: {error}");
            if let Some(fence) = pump.close(self.poll.registry()) {
                self.fence(client, fence);
            }
            self.channel_ended(client, number);
            return None;
        }
        if let Some(nic) = &mut self.nic {
            nic.add(ids, token);
        }
        self.channels.insert(token, Channel::new((client, number), fabric, pump, self.frames));
        self.turns.add(client);
        let sockets = self.sockets.entry(client).or_default();
        match made.is_prepared {
            true => sockets.next_channel = Some(token),
            false => sockets.channel = Some(token),
        }
        Some(token)
    }

    /// Closes a channel that has failed or was closed by its client, and tells the primary.
    pub(super) fn end_channel(&mut self, token: Token, why: &str) {
        let Some(channel) = self.channels.get(&token) else { return };
        let (client, number) = (channel.client, channel.number);
        log::debug!("the command channel of client {client} has ended: {why}");
        self.drop_channel(client, token);
        self.channel_ended(client, number);
        // An shm client hangs up when it has unmapped the memory, or when it has died.
        self.look_at_process(client);
    }

    fn channel_ended(&mut self, client: ClientId, channel: u64) {
        let unfenced = self.unfenced.contains_key(&client);
        self.handle(Event::ChannelEnded { client, channel, unfenced });
    }

    /// Closes a channel, and fences its client if the channel leaves something that can act.
    pub(super) fn drop_channel(&mut self, client: ClientId, token: Token) {
        self.blocked.remove(&token);
        let channel = self.channels.remove(&token);
        if let (Some(nic), Some(channel)) = (&mut self.nic, &channel) {
            nic.remove(channel.device_ids());
        }
        if let Some(fence) = channel.and_then(|channel| channel.close(self.poll.registry())) {
            self.fence(client, fence);
        }
        if let Some(sockets) = self.sockets.get_mut(&client) {
            for channel in [&mut sockets.next_channel, &mut sockets.channel] {
                channel.take_if(|channel| *channel == token);
            }
        }
    }

    /// Watches a process of the client, so that its end is noticed.
    fn watch(&mut self, client: ClientId, number: u64, peer: Peer) {
        let process = file::process(peer.pid);
        self.roster.tell(Change::Mapped { client, process });
        let processes = self.sockets.get(&client).map(|sockets| &sockets.processes[..]);
        let gone = processes.unwrap_or_default().iter().filter(|one| one.process.is_gone());
        let gone: Vec<u64> = gone.map(|one| one.number).collect();
        for &process in &gone {
            self.handle(Event::ProcessEnded { client, process });
        }
        self.unwatch(client, |one| gone.contains(&one.number));
        // If another client belongs to the same process, one pidfd reports its end for both. An
        // equal process id means the same process as long as the known one has not ended.
        let is_same =
            |one: &&Process| peer.pid.is_some() && one.pid == peer.pid && !one.process.is_gone();
        let known = self.sockets.values().flat_map(|sockets| &sockets.processes).find(is_same);
        let known = known.and_then(|one| Some((Arc::clone(&one.process), one.token?)));
        if let Some((process, token)) = known {
            let process = Process { number, pid: peer.pid, process, token: Some(token) };
            self.sockets.entry(client).or_default().processes.push(process);
            self.pidfds.entry(token).or_default().push(client);
            return;
        }
        let token = self.token();
        let fd = peer.process.pidfd().map(|fd| fd.as_raw_fd());
        let polled = fd.is_some_and(|fd| {
            let registry = self.poll.registry();
            registry.register(&mut SourceFd(&fd), token, Interest::READABLE).is_ok()
        });
        if polled {
            self.pidfds.insert(token, vec![client]);
        } else {
            self.blind = true;
        }
        let (pid, token) = (peer.pid, polled.then_some(token));
        let process = Process { number, pid, process: peer.process, token };
        self.sockets.entry(client).or_default().processes.push(process);
    }

    /// Tells the primary which processes of the client have ended.
    pub(super) fn look_at_process(&mut self, client: ClientId) {
        let processes = self.sockets.get(&client).map(|sockets| &sockets.processes[..]);
        let gone = processes.unwrap_or_default().iter().filter(|one| one.process.is_gone());
        let gone: Vec<u64> = gone.map(|one| one.number).collect();
        for process in gone {
            self.handle(Event::ProcessEnded { client, process });
        }
    }

    /// Looks at the processes without a pidfd, and has the primary retry what it could not do.
    pub(super) fn look_at_processes(&mut self) {
        let is_blind = |process: &Process| process.token.is_none();
        let sockets = self.sockets.iter();
        let unseen = sockets.filter(|(_, sockets)| sockets.processes.iter().any(is_blind));
        let unseen: Vec<ClientId> = unseen.map(|(&client, _)| client).collect();
        self.blind = !unseen.is_empty();
        for client in unseen {
            self.look_at_process(client);
        }
        self.handle(Event::Retry);
    }
}
