// SPDX-License-Identifier: MIT OR Apache-2.0
//! The transports: how clients come over each fabric. Each is a module, behind one trait.
//!
//! ```text
//!   control thread   Transport::accept ─▶ first frame: Attach ─▶ Transport::admit ─▶ Guest
//!                                                                                     │ mailbox
//!   command thread   membership says yes or no ◀──────────────────────────────────────┘
//!                      yes ─▶ Pump::open, answer ─▶ receive, send ─▶ close ─▶ Fence::fence
//!                      no ──▶ Pump::answer (the refusal), and it is dropped
//! ```
//! A transport knows sockets and devices, and nothing of locks, members or turns. A new one is a
//! module with its `open`, and its line in [`LIST`].
//!
//! Between threads goes no raw socket, but a [`Guest`]: a connection in the form that the transport
//! has chosen, the identity of the peer, and how long the client waits.

mod admissions;
mod connection;
mod output;
mod sealed;
mod shm;
mod stream;
mod tcp;
pub(crate) mod tls;
mod verbs;

use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::os::unix::net::UnixListener;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::ids::ClientId;
use dlock_core::limits::CONTROL_WAIT_S;
use dlock_core::membership::Joining;
use dlock_core::wire::control::{Attach, Attached, FabricKind};
use dlock_core::wire::fabric::{listed, Offers};
use dlock_core::wire::status::Status;
use dlock_fabric::os::fds::PeerProcess;
use dlock_fabric::stream::frames::FrameBuffer;
use dlock_fabric::verbs::{Arrival, PeerId};
use dlock_fabric::VerbsHost;
use mio::{Registry, Token};

use crate::command::mailbox::Mailbox;
use crate::config::ServerConfig;
use crate::error::StartError;
use crate::host::memory::Memory;
pub(crate) use connection::{Conn, Line, Shown};
pub(crate) use output::{Output, STALL_MAX};
#[cfg(test)]
pub(crate) use stream::StreamPump;

/// Opens each transport, if this primary offers it.
const LIST: &[Open] = &[verbs::open, shm::open, sealed::open, tcp::open];

/// Opens a transport, if this primary offers it.
type Open = fn(&Setting<'_>) -> Result<Option<Opened>, StartError>;

/// How long a client waits for the answer to its attach.
const ATTACH_WAIT: Duration = Duration::from_secs(CONTROL_WAIT_S);

/// The facts that decide which transports a primary offers.
pub(crate) struct Setting<'a> {
    pub(crate) config: &'a ServerConfig,
    /// The device that is served on, and its name. Its host says whether it holds the memory.
    pub(crate) device: Option<&'a (Arc<VerbsHost>, String)>,
}

/// A transport, ready to serve.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) transport: Arc<dyn Transport>,
    /// The socket to which its clients connect, nonblocking. `None`: they connect to the port of
    /// the control connections.
    pub(crate) listener: Option<UnixListener>,
}

/// Opens all transports that this primary offers, at least one.
///
/// # Errors
/// A transport that is to be offered cannot be opened; or none is offered, so that no client could
/// come.
pub(crate) fn open_all(setting: &Setting<'_>) -> Result<Vec<Opened>, StartError> {
    let opened = LIST.iter().map(|open| open(setting));
    let opened: Vec<Opened> = opened.filter_map(Result::transpose).collect::<Result<_, _>>()?;
    if opened.is_empty() {
        let (on, off): (Vec<_>, Vec<_>) =
            setting.config.kinds().partition(|&kind| setting.config.allows(kind));
        let (on, off) = (listed(on, "and"), listed(off, "and"));
        let why = format!("{off} are off, and {on} cannot be used here: clients need one of them");
        return Err(StartError::Config(why));
    }
    Ok(opened)
}

/// The transports as the answer to `Init` and `Reinit` names them.
pub(crate) fn offers(opened: &[Opened]) -> Offers {
    let transports = opened.iter().map(|opened| &opened.transport);
    transports.fold(Offers::none(), |offers, one| offers.with(one.kind(), one.place()))
}

/// The future of [`Transport::accept`]; `None`: the peer is refused.
pub(crate) type Accepting<'a> = Pin<Box<dyn Future<Output = Option<Box<dyn Conn>>> + Send + 'a>>;
/// The future of [`Transport::admit`]; the status is for the client.
pub(crate) type Admitting<'a> = Pin<Box<dyn Future<Output = Result<Admitted, Status>> + Send + 'a>>;

/// One fabric on the control thread.
pub(crate) trait Transport: Debug + Send + Sync {
    /// The fabric.
    fn kind(&self) -> FabricKind;

    /// Where clients attach, in the form that the fabric's executor reads; empty: at the port that
    /// they know.
    fn place(&self) -> &[u8] {
        &[]
    }

    /// Further detail for users: the name of a device.
    fn detail(&self) -> Option<&str> {
        None
    }

    /// Identifies the peer of a new connection to the transport's own listener.
    fn accept(&self, connection: Box<dyn Conn>) -> Accepting<'_> {
        Box::pin(std::future::ready(Some(connection)))
    }

    /// Makes the resources with which a client attaches, before the command thread takes it.
    fn admit<'a>(
        &'a self,
        attach: &'a Attach,
        connection: &'a dyn Conn,
        mailbox: &'a Mailbox,
    ) -> Admitting<'a>;
}

/// The resources that a transport has made for a client.
pub(crate) struct Admitted {
    /// The process at the other end, if it will map the memory.
    pub(crate) process: Option<Peer>,
    /// Makes the pump that carries the client's frames over the connection.
    pub(crate) pump: MakePump,
}

/// Makes the pump of a connection, from the resources that were made for its client.
pub(crate) type MakePump = Box<dyn FnOnce(Box<dyn Line>) -> Box<dyn Pump> + Send>;

/// A client that wants to attach, on its way to the command thread.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) attach: Attach,
    /// The fabric over which it has come; its request may name another.
    kind: FabricKind,
    /// The process at the other end, if it will map the memory.
    pub(crate) process: Option<Peer>,
    /// The certificate that the peer has shown in its TLS handshake.
    pub(crate) shown: Option<Arc<Shown>>,
    pub(crate) pump: Box<dyn Pump>,
    /// When the client stops waiting for the answer.
    deadline: Instant,
}

impl Guest {
    /// A client whose first frame came at `asked`, over a fabric of this kind.
    ///
    /// # Errors
    /// The connection is lost.
    pub(crate) fn new(
        kind: FabricKind,
        attach: Attach,
        admitted: Admitted,
        connection: Box<dyn Conn>,
        asked: Instant,
    ) -> io::Result<Self> {
        let Admitted { process, pump } = admitted;
        let shown = connection.shown().cloned();
        let pump = pump(connection.into_line()?);
        Ok(Self { attach, kind, process, shown, pump, deadline: asked + ATTACH_WAIT })
    }

    /// Whether the client has given up waiting. Its new command channel would have no user, and
    /// would end the one that the client has.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        now >= self.deadline
    }

    /// The facts about the client that membership must know.
    pub(crate) fn joining(&self) -> Joining {
        let joining = match &self.process {
            Some(peer) => Joining::by(self.kind, peer.pid, peer.process.is_known()),
            None => Joining::over(self.kind),
        };
        joining.shown(self.shown.as_ref().map(|shown| shown.identity))
    }
}

/// The process at the other end of a connection.
#[derive(Debug)]
pub(crate) struct Peer {
    /// The process id, which tells whether the process is known already.
    pub(crate) pid: Option<i32>,
    /// Tells whether the process has ended; shared by all clients of the process.
    pub(crate) process: Arc<PeerProcess>,
}

/// The frames of one command channel, on the command thread. Nothing here blocks.
pub(crate) trait Pump: Debug + Send {
    /// Registers the connection with the poll under this token.
    fn open(&mut self, token: Token, registry: &Registry) -> io::Result<()>;

    /// Whether the client has not hung up, as far as this host knows.
    fn is_open(&self) -> bool;

    /// Answers the attach, and hands the client what it needs. Nothing was sent before, so the
    /// answer fits into the socket at once.
    fn answer(
        &mut self,
        attached: &Attached,
        client: ClientId,
        memory: &mut Memory,
    ) -> io::Result<()>;

    /// Handles an event of the poll.
    fn event(&mut self, event: &mio::event::Event);

    /// Receives once; `false`: there is nothing to receive now.
    ///
    /// # Errors
    /// The connection has ended.
    fn receive(&mut self, input: &mut FrameBuffer) -> io::Result<bool>;

    /// Receives although no event was reported; returns whether the client is to get a turn. The
    /// event may still come later, and then finds nothing to receive.
    fn peek(&mut self, input: &mut FrameBuffer) -> bool;

    /// Sends as much as the client takes; an event or an arrival reports when it takes more.
    ///
    /// # Errors
    /// The connection has ended, or the client leaves too much unread.
    fn send(&mut self, output: &mut Output, registry: &Registry) -> io::Result<()>;

    /// Takes the connection out of the poll and closes it. Returns the fence for what can still act
    /// on the memory.
    fn close(self: Box<Self>, registry: &Registry) -> Option<Box<dyn Fence>>;

    /// The device's ids of its queue pairs, if its frames come over them.
    fn device_ids(&self) -> Vec<PeerId> {
        Vec::new()
    }

    /// Takes a completion on those queue pairs, and everything that came with it.
    ///
    /// # Errors
    /// The client is gone, broke the rules, or sends on without reading its replies.
    fn arrived(&mut self, _arrival: &Arrival) -> io::Result<()> {
        Ok(())
    }
}

/// Something that may still act on the memory for a client whose channel is closed.
pub(crate) trait Fence: Debug + Send {
    /// Makes it unable to act. Until this has succeeded, nothing of the client is undone.
    ///
    /// # Errors
    /// It may still act: the call is to be repeated.
    fn fence(&mut self) -> Result<(), String>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::wire::control::Secret;
    use std::os::unix::net::UnixStream;

    fn open_on_a_host_without_a_device(config: &ServerConfig) -> Result<Offers, StartError> {
        open_all(&Setting { config, device: None }).map(|opened| offers(&opened))
    }

    #[test]
    fn what_the_configuration_turns_off_is_not_opened() {
        let offered = |config: &ServerConfig| {
            let offers = open_on_a_host_without_a_device(config).unwrap();
            FabricKind::ALL.into_iter().filter(|&kind| offers.has(kind)).collect::<Vec<_>>()
        };
        let all: Vec<FabricKind> = FabricKind::without_device().collect();
        assert_eq!(offered(&ServerConfig::default()), all);
        for off in FabricKind::ALL {
            let left: Vec<_> = all.iter().copied().filter(|&kind| kind != off).collect();
            assert_eq!(offered(&ServerConfig::default().without(off)), left, "without {off}");
        }
    }

    #[test]
    fn the_place_of_shared_memory_is_a_socket() {
        let offers = open_on_a_host_without_a_device(&ServerConfig::default()).unwrap();
        assert!(offers.place(FabricKind::Shm).is_some_and(|place| !place.is_empty()));
    }

    #[test]
    fn any_fabric_is_enough_to_start_and_none_is_refused() {
        let without = |kinds: Vec<FabricKind>| {
            let config = kinds.into_iter().fold(ServerConfig::default(), ServerConfig::without);
            open_on_a_host_without_a_device(&config)
        };
        for alone in FabricKind::without_device() {
            let others = FabricKind::ALL.into_iter().filter(|&kind| kind != alone).collect();
            assert!(without(others).unwrap().has(alone), "{alone}");
        }
        let error = without(FabricKind::without_device().collect()).unwrap_err().to_string();
        let off = listed(FabricKind::without_device(), "and");
        let said = format!("{off} are off, and verbs cannot be used here");
        assert!(error.starts_with(&said), "{error}");
    }

    #[test]
    fn a_guest_waits_as_long_as_its_client_does() {
        let (line, _other) = UnixStream::pair().unwrap();
        let attach = Attach {
            client: ClientId::new(1).unwrap(),
            secret: Secret([0; 16]),
            fabric: FabricKind::Shm,
            verbs: None,
            returns: true,
        };
        let pump = Box::new(StreamPump::new(Box::new(line)));
        let asked = Instant::now();
        let (kind, deadline) = (FabricKind::Tcp, asked + ATTACH_WAIT);
        let guest = Guest { attach, kind, process: None, shown: None, pump, deadline };
        assert!(!guest.is_late(asked) && guest.is_late(asked + ATTACH_WAIT));
        assert_eq!(guest.joining(), Joining::over(kind), "what it has come over counts");
    }
}
