// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command thread at an RDMA device: frames of verbs and sealed clients, and fencing.
//!
//! ```text
//!   completion queue ── Arrival ──▶ the channel of its queue pair ──▶ frames, or room to send
//!   before sleeping: arm ─▶ look once more ─▶ sleep in the poll ─▶ take the events
//! ```

use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use dlock_core::counters::Counter;
use dlock_core::ids::ClientId;
use dlock_fabric::verbs::{Arrival, PeerId, VerbsError};
use dlock_fabric::VerbsHost;
use log::Level;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use super::{Worker, NIC};
use crate::observe::log_limit::{limited, Cause};
use crate::transport::Fence;

/// The device, as far as the command thread serves it.
#[derive(Debug)]
pub(super) struct Nic {
    host: Arc<VerbsHost>,
    /// The channel of each queue pair.
    channels: HashMap<PeerId, Token>,
    arrivals: Vec<Arrival>,
}

impl Nic {
    /// Registers the device with the poll, so that its completions wake the command thread.
    pub(super) fn new(host: Arc<VerbsHost>, registry: &Registry) -> io::Result<Self> {
        let fd = host.fd().as_raw_fd();
        registry.register(&mut SourceFd(&fd), NIC, Interest::READABLE)?;
        Ok(Self { host, channels: HashMap::new(), arrivals: Vec::new() })
    }

    /// Assigns arrivals on these queue pairs to the channel `token`.
    pub(super) fn add(&mut self, ids: Vec<PeerId>, token: Token) {
        self.channels.extend(ids.into_iter().map(|id| (id, token)));
    }

    /// Removes queue pairs, whose channel has ended.
    pub(super) fn remove(&mut self, ids: Vec<PeerId>) {
        for id in ids {
            self.channels.remove(&id);
        }
    }
}

impl Worker {
    /// Hands arrivals to their channels; returns whether there were any.
    ///
    /// # Errors
    /// The device has failed.
    pub(super) fn take_arrivals(&mut self) -> Result<bool, String> {
        let Some(nic) = &mut self.nic else { return Ok(false) };
        let mut arrivals = std::mem::take(&mut nic.arrivals);
        arrivals.clear();
        let polled = nic.host.poll(&mut arrivals);
        for arrival in &arrivals {
            self.arrived(arrival);
        }
        let some = !arrivals.is_empty();
        if let Some(nic) = &mut self.nic {
            nic.arrivals = arrivals; // the memory of the taken arrivals is used again
        }
        match polled {
            Ok(_) => Ok(some),
            Err(error) => self.lost_device(&error).map(|()| true),
        }
    }

    /// Handles the failure of the device. If the device does not hold the memory, only its channels
    /// end, and their clients can come back over another transport.
    ///
    /// # Errors
    /// The device holds the memory, so the primary cannot go on.
    fn lost_device(&mut self, error: &VerbsError) -> Result<(), String> {
        let why = format!("its RDMA device has failed: {error}");
        let Some(nic) = self.nic.take_if(|nic| !nic.host.has_memory()) else { return Err(why) };
        log::error!("sealed channels end, and no more are made: {why}");
        for token in nic.channels.into_values() {
            self.end_channel(token, "its device has failed");
        }
        Ok(())
    }

    fn arrived(&mut self, arrival: &Arrival) {
        // An arrival for a channel that has ended is dropped.
        let token = self.nic.as_ref().and_then(|nic| nic.channels.get(&arrival.peer()).copied());
        let Some(token) = token else { return };
        let Some(channel) = self.channels.get_mut(&token) else { return };
        match channel.arrived(arrival) {
            Ok(()) => self.turns.add(channel.client),
            Err(error) => {
                if error.kind() == io::ErrorKind::InvalidData {
                    let client = channel.client;
                    limited!(Cause::BrokenSeal, Level::Warn, "client {client} is cut off: {error}");
                    self.core.primary.locks().count(Counter::BadRequest);
                }
                self.end_channel(token, &error.to_string());
            }
        }
    }

    /// Arms the device, so that the next arrival wakes the poll; `false`: something has arrived
    /// meanwhile.
    pub(super) fn may_sleep_at_the_device(&mut self) -> Result<bool, String> {
        let Some(nic) = &self.nic else { return Ok(true) };
        if let Err(error) = nic.host.arm() {
            return self.lost_device(&error).map(|()| true);
        }
        self.take_arrivals().map(|some| !some)
    }

    /// Takes the device's wake-up events from the poll; the next turn of the loop takes the
    /// arrivals.
    pub(super) fn woken_by_the_device(&self) -> io::Result<()> {
        match &self.nic {
            Some(nic) => nic.host.take_events().map(drop).map_err(io::Error::other),
            None => Ok(()),
        }
    }

    /// Logs that the device did not work for a while. It works again, since this thread goes on.
    pub(super) fn tell_of_an_outage(&self) {
        if self.nic.as_ref().is_some_and(|nic| nic.host.take_was_out()) {
            log::warn!(
                "the RDMA device did not answer for a while: requests were refused meanwhile"
            );
        }
    }

    /// Fences what can still act on the memory for a client. Until that succeeds, nothing of the
    /// client is undone.
    pub(super) fn fence(&mut self, client: ClientId, mut fence: Box<dyn Fence>) {
        if let Err(error) = fence.fence() {
            log::warn!("client {client} cannot be cut off from the memory yet: {error}");
            self.unfenced.entry(client).or_default().push(fence);
        }
    }

    /// Tries again to fence a client; returns whether something may still act for it.
    pub(super) fn is_unfenced(&mut self, client: ClientId) -> bool {
        let Some(fences) = self.unfenced.get_mut(&client) else { return false };
        fences.retain_mut(|fence| fence.fence().is_err());
        if !fences.is_empty() {
            return true;
        }
        self.unfenced.remove(&client);
        false
    }

    /// Tries again to fence clients, and looks at the processes of those that are fenced now.
    pub(super) fn fence_again(&mut self) {
        let clients: Vec<ClientId> = self.unfenced.keys().copied().collect();
        for client in clients {
            if !self.is_unfenced(client) {
                self.look_at_process(client);
            }
        }
    }
}
