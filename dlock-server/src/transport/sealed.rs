// SPDX-License-Identifier: MIT OR Apache-2.0
//! sealed: frames of a TLS session over queue pairs that give access to no memory. The primary
//! executes the chains.
//!
//! ```text
//!   Attach, within TLS ─▶ MayAttach? (command thread) ─▶ a queue pair, keys of the TLS exporter
//!   arrivals ─▶ SealedPeer ─▶ frames, as of tcp            the TLS connection stays open: its end
//!                                                          is the end of the channel
//! ```

use std::io;
use std::sync::Arc;

use dlock_core::ids::ClientId;
use dlock_core::wire::control::{Attach, Attached, FabricKind, VerbsAttached};
use dlock_core::wire::status::Status;
use dlock_fabric::stream::frames::FrameBuffer;
use dlock_fabric::verbs::{Arrival, MessageError, PeerId};
use dlock_fabric::SealedPeer;
use mio::{Registry, Token};

use super::admissions::Admissions;
use super::stream::StreamPump;
use super::{Admitted, Admitting, Conn, Fence, Line, Opened, Output, Pump, Setting, Transport};
use crate::command::mailbox::Mailbox;
use crate::error::StartError;
use crate::host::memory::Memory;

/// Offered beside TLS on a host with a device, whether the device or the CPU holds the memory.
pub(super) fn open(setting: &Setting<'_>) -> Result<Option<Opened>, StartError> {
    let Some(device) = setting.device.filter(|_| setting.config.tls.is_some()) else {
        return Ok(None);
    };
    let transport = Arc::new(Sealed { admissions: Admissions::new(device) });
    Ok(Some(Opened { transport, listener: None }))
}

#[derive(Debug)]
struct Sealed {
    admissions: Admissions,
}

impl Transport for Sealed {
    fn kind(&self) -> FabricKind {
        FabricKind::Sealed
    }

    fn detail(&self) -> Option<&str> {
        Some(&self.admissions.name)
    }

    fn admit<'a>(
        &'a self,
        attach: &'a Attach,
        connection: &'a dyn Conn,
        mailbox: &'a Mailbox,
    ) -> Admitting<'a> {
        Box::pin(self.make(attach, connection, mailbox))
    }
}

impl Sealed {
    async fn make(
        &self,
        attach: &Attach,
        connection: &dyn Conn,
        mailbox: &Mailbox,
    ) -> Result<Admitted, Status> {
        // every connection of this port has TLS
        let secrets = connection.seal_secrets(attach.client).ok_or(Status::Error)?;
        let (host, client) = (self.admissions.host.clone(), attach.client);
        let admit = move |wanted: &_| host.admit_sealed(client, wanted, secrets);
        let made = self.admissions.admit(attach, connection, mailbox, admit).await;
        made.map(|(peer, verbs)| {
            let pump = Box::new(move |line: Box<dyn Line>| -> Box<dyn Pump> {
                Box::new(SealedPump { stream: StreamPump::new(line), peer, verbs })
            });
            Admitted { process: None, pump }
        })
    }
}

/// A client's queue pair, and its liveness connection.
#[derive(Debug)]
struct SealedPump {
    /// The liveness connection: it is silent after the answer, and its end is the end of the
    /// channel.
    stream: StreamPump,
    peer: SealedPeer,
    /// The queue pair as the client's answer describes it.
    verbs: VerbsAttached,
}

impl Pump for SealedPump {
    fn open(&mut self, token: Token, registry: &Registry) -> io::Result<()> {
        self.stream.open(token, registry)
    }

    fn is_open(&self) -> bool {
        self.stream.is_open()
    }

    fn answer(
        &mut self,
        attached: &Attached,
        client: ClientId,
        memory: &mut Memory,
    ) -> io::Result<()> {
        let verbs = (attached.status == Status::Success).then_some(self.verbs);
        self.stream.answer(&Attached { verbs, ..*attached }, client, memory)
    }

    fn event(&mut self, event: &mio::event::Event) {
        self.stream.event(event);
    }

    fn receive(&mut self, input: &mut FrameBuffer) -> io::Result<bool> {
        if !self.peer.has_arrived() {
            return self.stream.look_for_end();
        }
        let len = self.peer.read(input.space())?;
        input.filled(len);
        Ok(true)
    }

    fn peek(&mut self, _: &mut FrameBuffer) -> bool {
        false // frames come from the device, not the socket
    }

    /// Seals as much as there is credit for. A client that takes no more may take as long as it
    /// likes, as over verbs.
    fn send(&mut self, output: &mut Output, _: &Registry) -> io::Result<()> {
        while output.unsent() > 0 {
            match self.peer.write(output.front()) {
                Ok(len) => output.taken(len),
                Err(MessageError::Busy) => return output.keep(),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Closes the channel. There is nothing to fence, because the queue pair reaches no memory.
    fn close(self: Box<Self>, registry: &Registry) -> Option<Box<dyn Fence>> {
        Box::new(self.stream).close(registry)
    }

    fn device_ids(&self) -> Vec<PeerId> {
        self.peer.ids().to_vec()
    }

    /// Takes the frames that have arrived. The credit that the client has bounds them.
    fn arrived(&mut self, arrival: &Arrival) -> io::Result<()> {
        Ok(self.peer.take(arrival)?)
    }
}
