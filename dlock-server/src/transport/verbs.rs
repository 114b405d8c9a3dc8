// SPDX-License-Identifier: MIT OR Apache-2.0
//! verbs: the device of the lock memory executes the chains; frames travel over queue pairs.
//!
//! ```text
//!   Attach ─▶ MayAttach? (command thread) ─▶ queue pairs (a thread of the pool) ─▶ Guest
//!   the TCP connection stays open as the liveness connection: its end is the end of the channel
//! ```
//! Making queue pairs takes milliseconds, and seconds if the client's address does not resolve:
//! that is for neither of the two threads. A stranger costs nothing, a client a place in a short
//! queue.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use dlock_core::control::{Attach, Attached, FabricKind, VerbsAttach, VerbsAttached};
use dlock_core::ids::ClientId;
use dlock_core::status::Status;
use dlock_fabric::fds::is_open;
use dlock_fabric::frames::FrameBuffer;
use dlock_fabric::verbs::{Arrival, MessageError, PeerId};
use dlock_fabric::{FabricError, VerbsHost, VerbsPeer};
use log::Level;
use mio::{Registry, Token};
use tokio::sync::Semaphore;

use super::stream::StreamPump;
use super::{Admitted, Admitting, Conn, Fence, Line, Opened, Output, Pump, Setting, Transport};
use crate::error::StartError;
use crate::log_limit::{limited, Cause};
use crate::mailbox::{Event, Mailbox};
use crate::memory::Memory;

/// Clients whose queue pairs are made at a time.
pub(crate) const ADMISSIONS_MAX: usize = 4;
/// Bytes of frames above which a client that leaves its replies unread is disconnected.
const ARRIVED_MAX: usize = 64 * 1024;

/// Offered if the memory is a device's.
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

/// Where queue pairs are made.
#[derive(Debug)]
pub(super) struct Admissions {
    pub(super) host: Arc<VerbsHost>,
    pub(super) name: String,
    room: Semaphore,
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

impl Admissions {
    /// On this device.
    pub(super) fn new((host, name): &(Arc<VerbsHost>, String)) -> Self {
        Self { host: host.clone(), name: name.clone(), room: Semaphore::new(ADMISSIONS_MAX) }
    }

    /// Has `make` make the queue pairs of a client that may attach.
    ///
    /// # Errors
    /// What the client is told.
    pub(super) async fn admit<T: Send + 'static>(
        &self,
        attach: &Attach,
        connection: &dyn Conn,
        mailbox: &Mailbox,
        make: impl FnOnce(&VerbsAttach) -> Result<T, FabricError> + Send + 'static,
    ) -> Result<T, Status> {
        let identity = connection.identity();
        let wanted: VerbsAttach = attach.verbs.ok_or(Status::Error)?;
        if mailbox.is_out() {
            return Err(Status::NotReady);
        }
        let may = |reply| Event::MayAttach { attach: *attach, identity, reply };
        match mailbox.ask(may).await {
            Ok(Status::Success) => {}
            Ok(status) => return Err(status),
            Err(_) => return Err(Status::Error),
        }
        let (client, fabric) = (attach.client, attach.fabric);
        let _place = self.room.acquire().await;
        if !is_open(connection.socket()) {
            return Err(Status::NotReady); // it has given up: others are waiting for their turn
        }
        match tokio::task::spawn_blocking(move || make(&wanted)).await {
            Ok(Ok(made)) => Ok(made),
            Ok(Err(error)) => {
                limited!(
                    Cause::NoResource,
                    Level::Warn,
                    "client {client} cannot attach over {fabric}: {error}"
                );
                Err(match error {
                    FabricError::Verbs(error) if error.is_exhausted() => Status::ServerNoResource,
                    _ => Status::Error,
                })
            }
            Err(error) => {
                log::error!("the thread that makes queue pairs has ended: {error}");
                Err(Status::Error)
            }
        }
    }
}

/// A client's queue pairs, and its liveness connection.
#[derive(Debug)]
struct VerbsPump {
    /// Nothing is sent on it after the answer, and its end is the end of the channel.
    stream: StreamPump,
    peer: Box<VerbsPeer>,
    /// What the client is told of them.
    verbs: VerbsAttached,
    /// Frames that came over them.
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
        false // its frames arrive
    }

    /// Sends each frame as one message. A client that takes no more has all the time it wants: it
    /// looks for replies when it waits for one, and its queue pairs tell when it is gone.
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
