// SPDX-License-Identifier: MIT OR Apache-2.0
//! What [`Membership`](dlock_core::membership::Membership) wants done, done with sockets, memory
//! and the device.

use dlock_core::control::FabricKind;
use dlock_core::ids::ClientId;
use dlock_core::membership::{Effect, Exit, Fencing, MemberMemory};
use dlock_core::status::Status;
use mio::unix::SourceFd;
use std::mem;
use std::os::fd::AsRawFd;

use super::turns::Who;
use super::{Core, Process, Worker};
use crate::log_limit::{limited, Cause};

impl Worker {
    /// Does everything that is asked for.
    pub(super) fn settle(&mut self) {
        while let Some(effect) = self.members.poll() {
            self.execute(effect);
        }
        self.files.set_taken(self.members.files());
    }

    fn execute(&mut self, effect: Effect) {
        match effect {
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
                self.members.channel_closed(client, channel, unfenced);
            }
            Effect::Switch { client, fabric } => self.switch(client, fabric),
            Effect::Fence { client } => {
                self.close_channels(client, |_| true);
                let unfenced = self.is_unfenced(client);
                let mapped = self.core.memory.is_mapped(client);
                let fencing = Fencing { unfenced, mapped };
                self.members.fence_tried(&mut self.core.primary, client, fencing);
            }
            Effect::Keep(change) => self.roster.tell(change),
            Effect::Revoke { client } => {
                log::debug!("client {client} keeps its slots until it cannot act any more");
                if self.core.primary.is_recovering() {
                    limited!(
                        Cause::Removed,
                        log::Level::Warn,
                        "client {client} is not waited for, and cannot be fenced: a process of it \
                         has the memory mapped; end that process to free what it keeps"
                    );
                }
                self.core.memory.revoke(client, Status::ClientRemoved);
            }
            Effect::Look { client } => {
                let now = self.core.now();
                let Core { primary, memory, .. } = &mut self.core;
                let has_something = primary.has_something(now, memory, client);
                self.members.looked(client, has_something);
            }
            Effect::Lapse { client } => {
                let what = "keeps its leases, and nothing else";
                limited!(Cause::Lapsed, log::Level::Info, "client {client} {what}");
                self.lapses.push_back(self.core.primary.begin_lapse(client));
                self.turns.shares.add(Who::Upkeep);
            }
            Effect::Undo { client, exit } => {
                let level = if exit == Exit::Left { log::Level::Debug } else { log::Level::Info };
                limited!(Cause::Removed, level, "client {client} is removed: {exit}");
                self.undo(client);
            }
            Effect::Forget { client } => self.forget(client),
        }
    }

    /// Goes on with one lapse, by one slice; the work it took.
    pub(super) fn lapse_some(&mut self) -> u32 {
        let Some(mut lapse) = self.lapses.pop_front() else { return 0 };
        let now = self.core.now();
        let Core { primary, memory, sent, .. } = &mut self.core;
        let is_over = primary.lapse(now, memory, &mut lapse, sent);
        let work = lapse.work();
        match is_over {
            true => self.members.lapsed(now, lapse.client(), lapse.lapsed()),
            false => self.lapses.push_back(lapse),
        }
        self.settle();
        self.set_gate(); // a recovery does not wait for it any more
        work
    }

    /// Closes the client's channels whose numbers are among these.
    fn close_channels(&mut self, client: ClientId, is_one: impl Fn(u64) -> bool) {
        let Some(sockets) = self.sockets.get(&client) else { return };
        for token in [sockets.channel, sockets.next_channel].into_iter().flatten() {
            if self.channels.get(&token).is_some_and(|channel| is_one(channel.number)) {
                self.drop_channel(client, token);
            }
        }
    }

    /// The connections of the prepared session are those of the client; what has come on its
    /// channel is served from now on.
    fn switch(&mut self, client: ClientId, fabric: Option<FabricKind>) {
        let sockets = self.sockets.entry(client).or_default();
        sockets.control = sockets.next_control.take();
        sockets.channel = sockets.next_channel.take();
        if let Some(fabric) = fabric {
            let now = self.core.now();
            let Core { primary, memory, sent, .. } = &mut self.core;
            primary.attached(now, memory, client, fabric, sent);
        }
        self.turns.add(client);
    }

    /// Looks no longer at these processes of the client, and closes what tells of their ends.
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
            // Closing it, next, takes it out of the poll as well.
            let _ = self.poll.registry().deregister(&mut SourceFd(&fd.as_raw_fd()));
        }
    }

    fn forget(&mut self, client: ClientId) {
        self.unwatch(client, |_| true);
        self.sockets.remove(&client);
        self.turns.remove(client);
        let Core { primary, memory, .. } = &mut self.core;
        primary.collect_last(memory, client);
        memory.remove_client(client);
        self.may_have_room = true;
        self.set_gate(); // a recovery does not wait for it any more
    }
}
