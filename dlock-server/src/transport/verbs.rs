// SPDX-License-Identifier: MIT OR Apache-2.0
//! verbs: the device that holds the lock memory executes the chains; frames travel over queue
//! pairs.
//!
//! ```text
//!   Attach ─▶ MayAttach? (command thread) ─▶ queue pairs (a thread of the pool) ─▶ Guest
//!   the TCP connection stays open as the liveness connection: its end is the end of the channel
//! ```
//! Making queue pairs takes milliseconds, and seconds if the client's address does not resolve, so
//! neither of the two threads does it. A stranger gets none, and each client has its own place in
//! the queue for them (`admissions.rs`).

use std::io::{self, ErrorKind};
use std::sync::Arc;

use dlock_core::ids::ClientId;
use dlock_core::wire::control::{Attach, Attached, FabricKind, VerbsAttached};
use dlock_core::wire::status::Status;
use dlock_fabric::stream::frames::FrameBuffer;
use dlock_fabric::verbs::{Arrival, MessageError, PeerId};
use dlock_fabric::VerbsPeer;
use mio::{Registry, Token};

use super::admissions::Admissions;
use super::stream::StreamPump;
use super::{Admitted, Admitting, Conn, Fence, Line, Opened, Output, Pump, Setting, Transport};
use crate::command::mailbox::Mailbox;
use crate::error::StartError;
use crate::host::memory::Memory;

/// Bytes of unhandled frames above which a client that leaves its replies unread is disconnected.
const ARRIVED_MAX: usize = 64 * 1024;

/// Opens the transport over queue pairs, if a device holds the memory.
pub(super) fn open(setting: &Setting<'_>) -> Result<Option<Opened>, StartError> {
    let Some(device) = setting.device.filter(|(host, _)| host.has_memory()) else {
        return Ok(None);
    };
    let transport = Arc::new(Verbs { admissions: Admissions::new(device) });
    Ok(Some(Opened { transport, listener: None }))
}

#[derive(Debug)]
struct Verbs {
    admissions: Admissions,
}

impl Transport for Verbs {
    fn kind(&self) -> FabricKind {
        FabricKind::Verbs
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

impl Verbs {
    async fn make(
        &self,
        attach: &Attach,
        connection: &dyn Conn,
        mailbox: &Mailbox,
    ) -> Result<Admitted, Status> {
        let (host, client) = (self.admissions.host.clone(), attach.client);
        let admit = move |wanted: &_| host.admit(client, wanted);
        let made = self.admissions.admit(attach, connection, mailbox, admit).await;
        made.map(|(peer, verbs)| {
            let pump = Box::new(move |line: Box<dyn Line>| -> Box<dyn Pump> {
                let (stream, peer) = (StreamPump::new(line), Box::new(peer));
                Box::new(VerbsPump { stream, peer, verbs, arrived: Vec::new() })
            });
            Admitted { process: None, pump }
        })
    }
}

/// A client's queue pairs, and its liveness connection.
#[derive(Debug)]
struct VerbsPump {
    /// The liveness connection: it is silent after the answer, and its end is the end of the
    /// channel.
    stream: StreamPump,
    peer: Box<VerbsPeer>,
    /// The queue pairs as the client's answer describes them.
    verbs: VerbsAttached,
    /// Frames that came over the queue pairs.
    arrived: Vec<u8>,
}

impl Pump for VerbsPump {
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
        if self.arrived.is_empty() {
            return self.stream.look_for_end();
        }
        let space = input.space();
        let len = space.len().min(self.arrived.len());
        space[..len].copy_from_slice(&self.arrived[..len]);
        input.filled(len);
        self.arrived.drain(..len);
        Ok(true)
    }

    fn peek(&mut self, _: &mut FrameBuffer) -> bool {
        false // frames come from the device, not the socket
    }

    /// Sends each frame as one message. A client that takes no more may take as long as it likes:
    /// it polls for replies when it waits for one, and its queue pairs report when it is gone.
    fn send(&mut self, output: &mut Output, _: &Registry) -> io::Result<()> {
        while let Some(frame) = output.first_frame() {
            let len = frame.len();
            match self.peer.send(frame) {
                Ok(()) => output.taken(len),
                Err(MessageError::Busy) => return output.keep(),
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(())
    }

    fn close(self: Box<Self>, registry: &Registry) -> Option<Box<dyn Fence>> {
        Box::new(self.stream).close(registry);
        Some(self.peer)
    }

    fn device_ids(&self) -> Vec<PeerId> {
        self.peer.ids().to_vec()
    }

    fn arrived(&mut self, arrival: &Arrival) -> io::Result<()> {
        self.peer.take(arrival, &mut self.arrived).map_err(io::Error::other)?;
        match self.arrived.len() > ARRIVED_MAX {
            true => Err(io::Error::new(ErrorKind::TimedOut, "it leaves its replies unread")),
            false => Ok(()),
        }
    }
}

impl Fence for VerbsPeer {
    fn fence(&mut self) -> Result<(), String> {
        VerbsPeer::fence(self).map_err(|error| error.to_string())
    }
}
