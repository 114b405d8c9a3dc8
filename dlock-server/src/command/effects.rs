// SPDX-License-Identifier: MIT OR Apache-2.0
//! What [`Membership`](dlock_core::membership::Membership) wants done, done with sockets, memory
//! and the device.

use dlock_core::ids::ClientId;
use dlock_core::membership::{Effect, Exit, Fencing, MemberMemory};
use dlock_core::primary::LAPSE_SLICE;
use dlock_core::status::Status;
use mio::unix::SourceFd;
use std::os::fd::AsRawFd;

use super::turns::Who;
use super::{Core, Worker};
use crate::log_limit::{limited, Cause};

impl Worker {
    /// Does everything that is asked for.
    pub(super) fn settle(&mut self) {
        while let Some(effect) = self.members.poll() {
            self.execute(effect);
        }
    }

    fn execute(&mut self, effect: Effect) {
        match effect {
            Effect::CloseControl { client, control } => {
                let sockets = self.sockets.get_mut(&client);
                let link = sockets.and_then(|s| s.control.take_if(|link| link.id == control));
                if let Some(link) = link {
                    link.close();
                }
            }
            Effect::CloseChannel { client } => {
                self.close_channel(client);
                let unfenced = self.is_unfenced(client);
                self.members.channel_closed(client, unfenced);
            }
            Effect::Fence { client } => {
                self.close_channel(client);
                let unfenced = self.is_unfenced(client);
                let mapped = self.core.memory.is_mapped(client);
                self.members.fence_tried(client, Fencing { unfenced, mapped });
            }
            Effect::Revoke { client } => {
                log::debug!("client {client} keeps its slots until it cannot act any more");
                self.core.memory.revoke(client, Status::ClientRemoved);
            }
            Effect::Look { client } => {
                let now = self.core.now();
                let Core { primary, memory, .. } = &mut self.core;
                let has_something = primary.has_something(now, memory, client);
                self.members.looked(client, has_something);
            }
            Effect::Lapse { client } => {
                log::info!("client {client} keeps its leases, and nothing else");
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
        match primary.lapse(now, memory, &mut lapse, sent) {
            true => self.members.lapsed(now, lapse.client(), lapse.lapsed()),
            false => self.lapses.push_back(lapse),
        }
        self.settle();
        self.set_gate(); // a recovery does not wait for it any more
        LAPSE_SLICE as u32
    }

    fn close_channel(&mut self, client: ClientId) {
        let channel = self.sockets.get(&client).and_then(|sockets| sockets.channel);
        if let Some(token) = channel {
            self.drop_channel(client, token);
        }
    }

    fn forget(&mut self, client: ClientId) {
        if let Some(sockets) = self.sockets.remove(&client) {
            for one in &sockets.processes {
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
        self.turns.remove(client);
        let Core { primary, memory, .. } = &mut self.core;
        primary.collect_last(memory, client);
        memory.remove_client(client);
        self.may_have_room = true;
        self.set_gate(); // a recovery does not wait for it any more
    }
}
