// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients coming, asking, leaving and vanishing.
//!
//! ```text
//!   Init ──▶ member ──Attach──▶ + channel (+ process)
//!              │  ▲                   control connection lost ─▶ absent ─ grace ─▶ doomed
//!              │  └─ Reinit: old channels closed first          Deinit ──────────▶ doomed
//!              ▼                                                 room needed ─────▶ doomed
//!           doomed ── nothing of it can act ──▶ fenced: what it holds is undone, it is forgotten
//! ```
//! A tcp client cannot act once its channel is closed, and a verbs client once its queue pairs are
//! fenced, which closing its channel does. An shm client can while a process of its
//! has the memory mapped: it is fenced when it has unmapped it or when the process is gone.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::control::{
    Attach, Attached, ControlReply, ControlRequest, FabricKind, Secret, Session,
};
use dlock_core::ids::ClientId;
use dlock_core::primary::Admitted;
use dlock_core::status::Status;
use dlock_fabric::{handshake, VerbsPeer};
use log::Level;
use mio::unix::SourceFd;
use mio::{Interest, Token};
use std::os::fd::{AsFd, AsRawFd};

use super::{Core, Member, Worker};
use crate::channel::{Channel, CHANNELS_MAX};
use crate::log_limit::{limited, Cause};
use crate::mailbox::{Joining, Link, Peer, Socket};
use crate::random::Random;

/// Processes that may have the memory mapped for one client.
const PROCESSES_MAX: usize = 4;
/// An answer to `Attach` is the first on its connection, so that it fits at once.
const ANSWER_WAIT: Duration = Duration::ZERO;

impl Worker {
    /// `Init` or `Reinit`: lets a client in, evicting an absent one if there is no room.
    pub(super) fn open(
        &mut self,
        request: &ControlRequest,
        link: Arc<Link>,
    ) -> Result<Session, Status> {
        let mut random = Random::new().map_err(|error| {
            limited!(Cause::NoResource, Level::Error, "no client can be let in: {error}");
            Status::Error
        })?;
        let secret = Secret(random.bytes());
        if let ControlRequest::Reinit { client, .. } = request {
            if self.members.get(client).is_some_and(|member| member.left) {
                return Err(Status::ClientRemoved);
            }
        }
        let mut draw = || random.number();
        let mut admitted = self.core.primary.admit(request, &mut draw, secret);
        let has_to = !self.core.primary.is_undoing(); // else a place is free soon
        if admitted == Err(Status::ServerNoResource) && has_to && self.evict_one() {
            admitted = self.core.primary.admit(request, &mut draw, secret);
        }
        if admitted == Err(Status::ServerNoResource) {
            let capacity = self.capacity;
            limited!(Cause::NoResource, Level::Warn, "a client is refused: {capacity}");
        }
        self.enter(admitted?, link)
    }

    /// Makes room for a client by removing an absent one, if one can be fenced.
    fn evict_one(&mut self) -> bool {
        let candidate = self.core.primary.eviction_candidate(&|client| !self.fenceable(client));
        let Some(client) = candidate else { return false };
        limited!(
            Cause::Removed,
            Level::Info,
            "client {client} is removed: it is absent, and its place is needed"
        );
        self.fence(client);
        true
    }

    /// The client's old connections end before the new session is answered.
    fn enter(&mut self, admitted: Admitted, link: Arc<Link>) -> Result<Session, Status> {
        let client = admitted.client;
        if let Err(error) = self.core.memory.add_client(client) {
            limited!(Cause::NoResource, Level::Error, "client {client} cannot be let in: {error}");
            self.fence(client);
            return Err(Status::ServerNoResource);
        }
        self.close_channel(client);
        self.doomed.remove(&client);
        let member = self.members.entry(client).or_default();
        if let Some(old) = member.link.replace(link) {
            old.close();
        }
        Ok(Session {
            version: admitted.version,
            client,
            secret: admitted.secret,
            epoch: self.core.primary.config().epoch,
            anchor_s: self.core.primary.config().anchor_s,
            now: self.core.now(),
            recovering: admitted.recovering,
            shm_socket: self.shm_socket.clone(),
            tcp: self.tcp,
            verbs: self.nic.is_some(),
        })
    }

    /// A request on a bound connection.
    pub(super) fn control(
        &mut self,
        client: ClientId,
        link: u64,
        request: ControlRequest,
    ) -> ControlReply {
        // A connection that was replaced meanwhile speaks for nobody.
        let bound = |member: &Member| member.link.as_ref().is_some_and(|l| l.id == link);
        if !self.members.get(&client).is_some_and(bound) {
            return ControlReply::Error(Status::Error);
        }
        let leaves = request == ControlRequest::Deinit;
        let now = self.core.now();
        let Core { primary, memory, sent, .. } = &mut self.core;
        let reply = primary.control(now, memory, client, request, sent);
        self.set_gate();
        if leaves && reply == ControlReply::Done {
            if let Some(member) = self.members.get_mut(&client) {
                member.left = true;
            }
            self.fence_when_possible(client);
        }
        reply
    }

    /// A control connection has ended. A client that never comes back is removed later, or at
    /// once if its process is gone.
    pub(super) fn lost(&mut self, client: ClientId, link: u64) {
        let Some(member) = self.members.get_mut(&client) else { return };
        if member.link.as_ref().is_some_and(|l| l.id == link) {
            member.link = None;
            if !member.left {
                self.core.primary.absent(self.core.clock.now(), client);
                self.look_at_process(client);
            }
        }
    }

    /// A connection wants to be a client's command channel.
    pub(super) fn attach(&mut self, socket: Socket, attach: Attach, joining: Joining) {
        let client = attach.client;
        let mut status = self.may_attach(&attach, &joining);
        if status == Status::Success {
            self.close_channel(client);
            if self.is_unfenced(client) {
                status = Status::Error; // its old queue pairs could still act
            }
        }
        let attached = Attached {
            status,
            slots: self.core.memory.slots(),
            ledger_entries: self.core.memory.ledger_entries(),
            clock_offset_ns: match attach.fabric {
                FabricKind::Shm => self.core.clock.offset_ns(),
                FabricKind::Tcp | FabricKind::Verbs => 0,
            },
            verbs: None,
        };
        let deadline = Instant::now() + ANSWER_WAIT;
        if status != Status::Success {
            // A client in recovery asks again and again.
            let level = match status {
                Status::NotReady => Level::Debug,
                _ => Level::Warn,
            };
            limited!(
                Cause::AttachRefused,
                level,
                "a command channel of client {client} is refused: {status}"
            );
            let refusal = Attached { slots: 0, ledger_entries: 0, clock_offset_ns: 0, ..attached };
            // The connection is closed whether the answer arrives or not.
            let _ = handshake::answer(socket.as_fd(), &refusal, None, deadline);
            return;
        }
        let now = self.core.now();
        let Core { primary, memory, sent, .. } = &mut self.core;
        primary.attached(now, memory, client, attach.fabric, sent);
        let (attached, fabric, peer) = match joining {
            Joining::Shm(peer) => return self.share(client, socket, attached, peer, deadline),
            Joining::Tcp => (attached, FabricKind::Tcp, None),
            Joining::Verbs(joined) => {
                let (peer, verbs) = *joined;
                (Attached { verbs: Some(verbs), ..attached }, FabricKind::Verbs, Some(peer))
            }
        };
        // Known before the client knows of it: its first frame may come at once.
        let added = self.add_channel(client, fabric, socket, peer.map(Box::new));
        let Some(token) = added else { return };
        let Some(channel) = self.channels.get(&token) else { return };
        if let Err(error) = handshake::answer(channel.as_fd(), &attached, None, deadline) {
            self.end_channel(token, &format!("it did not take its command channel: {error}"));
        }
    }

    /// Whether a verbs client may attach, before queue pairs are made for it.
    pub(super) fn may_attach_now(&self, attach: &Attach) -> Status {
        self.may_attach_as(attach, |_| self.may_attach_verbs())
    }

    /// The memory cannot refuse verbs clients: in recovery they are not let near it.
    fn may_attach_verbs(&self) -> Status {
        match &self.nic {
            None => Status::Error,
            Some(_) if self.core.primary.is_recovering() => Status::NotReady,
            Some(_) => Status::Success,
        }
    }

    fn may_attach(&self, attach: &Attach, joining: &Joining) -> Status {
        self.may_attach_as(attach, |member| match (attach.fabric, joining) {
            (FabricKind::Tcp, Joining::Tcp) if self.tcp => Status::Success,
            (FabricKind::Verbs, Joining::Verbs(_)) => self.may_attach_verbs(),
            // A process that cannot be told from others could never be fenced.
            (FabricKind::Shm, Joining::Shm(peer)) if peer.process.is_known() => {
                let full = member.processes.len() >= PROCESSES_MAX;
                match full && !member.processes.iter().any(|(p, _)| p.pid == peer.pid) {
                    true => Status::ServerNoResource,
                    false => Status::Success,
                }
            }
            _ => Status::Error,
        })
    }

    /// What holds for every fabric, and then for this one.
    fn may_attach_as(&self, attach: &Attach, fabric: impl FnOnce(&Member) -> Status) -> Status {
        let Some(member) = self.members.get(&attach.client) else {
            return Status::ClientRemoved;
        };
        if !self.core.primary.authentic(attach.client, attach.secret) {
            return Status::Error;
        }
        if member.channels + 1 >= CHANNELS_MAX {
            return Status::ServerNoResource;
        }
        if member.left || self.doomed.contains(&attach.client) {
            return Status::ClientRemoved;
        }
        fabric(member)
    }

    /// Answers an shm client with the memory. Its process is watched before it has the memory.
    fn share(
        &mut self,
        client: ClientId,
        socket: Socket,
        attached: Attached,
        peer: Peer,
        deadline: Instant,
    ) {
        self.watch(client, peer);
        let sent = match self.core.memory.share(client) {
            Some(Ok(shared)) => {
                handshake::answer(socket.as_fd(), &attached, Some(&shared), deadline)
            }
            Some(Err(error)) => {
                return limited!(
                    Cause::NoResource,
                    Level::Error,
                    "client {client} cannot have the memory: {error}"
                );
            }
            None => return, // shm was not offered
        };
        match sent {
            Ok(()) => drop(self.add_channel(client, FabricKind::Shm, socket, None)),
            Err(error) => {
                self.core.memory.unshare(client);
                limited!(
                    Cause::NotTaken,
                    Level::Warn,
                    "client {client} did not take the memory: {error}"
                );
            }
        }
    }

    fn add_channel(
        &mut self,
        client: ClientId,
        fabric: FabricKind,
        socket: Socket,
        verbs: Option<Box<VerbsPeer>>,
    ) -> Option<Token> {
        let token = self.token();
        let member = self.members.get_mut(&client)?;
        member.channels += 1;
        let whose = (client, member.channels);
        let channel = Channel::new(whose, fabric, socket, token, self.poll.registry());
        let mut channel = match channel {
            Ok(channel) => channel,
            Err(error) => {
                limited!(
                    Cause::NoResource,
                    Level::Error,
                    "client {client} has no command channel: {error}"
                );
                if let Some(peer) = verbs {
                    self.fence_verbs(client, peer);
                }
                return None;
            }
        };
        if let Some(peer) = verbs {
            if let Some(nic) = &mut self.nic {
                nic.add(&peer, token);
            }
            channel = channel.carried_by(peer);
        }
        self.channels.insert(token, channel);
        self.turns.add(client);
        member.channel = Some(token);
        Some(token)
    }

    /// A channel has ended by itself.
    pub(super) fn end_channel(&mut self, token: Token, why: &str) {
        let Some(channel) = self.channels.remove(&token) else { return };
        let client = channel.client;
        log::debug!("the command channel of client {client} has ended: {why}");
        self.blocked.remove(&token);
        if let Some(peer) = channel.close(self.poll.registry()) {
            self.fence_verbs(client, peer);
        }
        if let Some(member) = self.members.get_mut(&client) {
            if member.channel == Some(token) {
                member.channel = None;
            }
        }
        self.waits_no_more(client);
        // An shm client hangs up when it has unmapped the memory, or when it has died.
        self.look_at_process(client);
    }

    fn close_channel(&mut self, client: ClientId) {
        let token = self.members.get_mut(&client).and_then(|member| member.channel.take());
        let Some(token) = token else { return };
        self.blocked.remove(&token);
        let channel = self.channels.remove(&token);
        if let Some(peer) = channel.and_then(|channel| channel.close(self.poll.registry())) {
            self.fence_verbs(client, peer);
        }
        self.waits_no_more(client);
    }

    /// A client's channel is gone: it is granted nothing that it would not hear of.
    fn waits_no_more(&mut self, client: ClientId) {
        let now = self.core.now();
        let Core { primary, memory, sent, .. } = &mut self.core;
        primary.detached(now, memory, client, sent);
    }

    /// Finds out when this process ends.
    fn watch(&mut self, client: ClientId, peer: Peer) {
        let token = self.token();
        // The same number is the same process while the one known is not gone.
        let is_same = |(known, _): &&(Peer, _)| {
            peer.pid.is_some() && known.pid == peer.pid && !known.process.is_gone()
        };
        let Some(member) = self.members.get(&client) else { return };
        if member.processes.iter().any(|known| is_same(&known)) {
            return;
        }
        // Another client of the same process: one descriptor tells of its end to both.
        let known = self.members.values().flat_map(|member| &member.processes).find(is_same);
        let known = known.and_then(|(known, token)| Some((known.process.clone(), (*token)?)));
        let Some(member) = self.members.get_mut(&client) else { return };
        if let Some((process, token)) = known {
            member.processes.push((Peer { process, ..peer }, Some(token)));
            self.pidfds.entry(token).or_default().push(client);
            return;
        }
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
        member.processes.push((peer, polled.then_some(token)));
    }

    /// Something may have changed with a client's processes: if none is left, the client cannot
    /// come back; if it must be fenced, perhaps it can be now.
    pub(super) fn look_at_process(&mut self, client: ClientId) {
        let Some(member) = self.members.get(&client) else { return };
        let known = !member.processes.is_empty();
        if known && member.processes.iter().all(|(peer, _)| peer.process.is_gone()) {
            limited!(
                Cause::Removed,
                Level::Info,
                "client {client} is removed: its process has ended"
            );
            if !member.left {
                self.core.primary.absent(self.core.clock.now(), client);
            }
            self.fence(client);
        } else if self.doomed.contains(&client) && self.fenceable(client) {
            self.fence(client);
        }
    }

    /// Looks at everything that nothing notifies of.
    pub(super) fn look_at_processes(&mut self) {
        let blind = |member: &Member| member.processes.iter().any(|(_, token)| token.is_none());
        let unseen: Vec<ClientId> =
            self.members.iter().filter(|(_, m)| blind(m)).map(|(&client, _)| client).collect();
        self.blind = !unseen.is_empty();
        let doomed: Vec<ClientId> = self.doomed.iter().copied().collect();
        for client in unseen.into_iter().chain(doomed) {
            self.look_at_process(client);
        }
    }

    /// Whether nothing of this client can act once its channel is closed and its queue pairs, if
    /// it has some, are fenced.
    fn fenceable(&self, client: ClientId) -> bool {
        let gone = |member: &Member| {
            !member.processes.is_empty()
                && member.processes.iter().all(|(peer, _)| peer.process.is_gone())
        };
        self.core.memory.detached(client) || self.members.get(&client).is_some_and(gone)
    }

    /// Fences a client now, or as soon as that is possible.
    pub(super) fn fence_when_possible(&mut self, client: ClientId) {
        if self.fenceable(client) {
            return self.fence(client);
        }
        log::debug!("client {client} keeps its slots until its process has ended");
        self.core.memory.revoke(client, Status::ClientRemoved);
        self.doomed.insert(client);
    }

    /// Closes everything of a client, undoes what it holds, and forgets it. Nothing of it can
    /// act any more: it is [`fenceable`](Self::fenceable), or it has never attached.
    fn fence(&mut self, client: ClientId) {
        self.close_channel(client);
        if self.is_unfenced(client) {
            self.doomed.insert(client);
            return;
        }
        self.doomed.remove(&client);
        if let Entry::Occupied(member) = self.members.entry(client) {
            let member = member.remove();
            if let Some(link) = member.link.filter(|_| !member.left) {
                link.close();
            }
            for (peer, token) in &member.processes {
                let (Some(token), Some(fd)) = (token, peer.process.pidfd()) else { continue };
                if let Some(clients) = self.pidfds.get_mut(token) {
                    clients.retain(|other| *other != client);
                    if !clients.is_empty() {
                        continue;
                    }
                }
                self.pidfds.remove(token);
                // Closing it, next, takes it out of the poll as well.
                let _ = self.poll.registry().deregister(&mut SourceFd(&fd.as_raw_fd()));
            }
        }
        self.turns.remove(client);
        self.undo(client);
        self.set_gate(); // a recovery does not wait for it any more
    }
}
