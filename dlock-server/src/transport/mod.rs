// SPDX-License-Identifier: MIT OR Apache-2.0
//! How clients come over each fabric: a module each, behind one trait.
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
//! No raw socket crosses from thread to thread, but a [`Guest`]: its connection in a form that the
//! transport has chosen, who is at the other end, and how long the client waits.

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

/// Every transport; each says whether this primary has it.
const LIST: &[Open] = &[verbs::open, shm::open, sealed::open, tcp::open];

/// Opens a transport, if this primary offers it.
type Open = fn(&Setting<'_>) -> Result<Option<Opened>, StartError>;

/// How long a client waits for the answer to its attach.
const ATTACH_WAIT: Duration = Duration::from_secs(CONTROL_WAIT_S);

/// What a primary has that decides which transports it offers.
pub(crate) struct Setting<'a> {
    pub(crate) config: &'a ServerConfig,
    /// The device that is served on, and its name. Its host says whether the memory is its own.
    pub(crate) device: Option<&'a (Arc<VerbsHost>, String)>,
}

/// A transport, ready to serve.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) transport: Arc<dyn Transport>,
    /// Where its clients come; `None`: to the port of the control connections. Nonblocking.
    pub(crate) listener: Option<UnixListener>,
}

/// Opens all that this primary offers, at least one.
///
/// # Errors
/// A transport that is to be offered cannot be, or none is: no client could come.
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

/// What clients are told of.
pub(crate) fn offers(opened: &[Opened]) -> Offers {
    let transports = opened.iter().map(|opened| &opened.transport);
    transports.fold(Offers::none(), |offers, one| offers.with(one.kind(), one.place()))
}

/// What [`Transport::accept`] comes to; `None`: the peer is refused, and has been told so.
pub(crate) type Accepting<'a> = Pin<Box<dyn Future<Output = Option<Box<dyn Conn>>> + Send + 'a>>;
/// What [`Transport::admit`] comes to; the status is for the client.
pub(crate) type Admitting<'a> = Pin<Box<dyn Future<Output = Result<Admitted, Status>> + Send + 'a>>;

/// One fabric on the control thread.
pub(crate) trait Transport: Debug + Send + Sync {
    /// Which it is.
    fn kind(&self) -> FabricKind;

    /// Where clients attach, as its executor reads it; for most the port that they know.
    fn place(&self) -> &[u8] {
        &[]
    }

    /// What else users are told of it: the name of a device.
    fn detail(&self) -> Option<&str> {
        None
    }

    /// A connection has come to the transport's own listener: looks who it is, shakes hands.
    fn accept(&self, connection: Box<dyn Conn>) -> Accepting<'_> {
        Box::pin(std::future::ready(Some(connection)))
    }

    /// A client wants to attach: makes what it needs before the command thread takes it.
    fn admit<'a>(
        &'a self,
        attach: &'a Attach,
        connection: &'a dyn Conn,
        mailbox: &'a Mailbox,
    ) -> Admitting<'a>;
}

/// What a transport has made for a client.
pub(crate) struct Admitted {
    /// The process at the other end, if it is to map the memory.
    pub(crate) process: Option<Peer>,
    /// Carries its frames over the connection.
    pub(crate) pump: MakePump,
}

/// Makes the pump of a connection, with what was made for the client before.
pub(crate) type MakePump = Box<dyn FnOnce(Box<dyn Line>) -> Box<dyn Pump> + Send>;

/// A client that wants to attach, on its way to the command thread.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) attach: Attach,
    /// The fabric that it has come over, which may be another than it names.
    kind: FabricKind,
    /// The process at the other end, if it is to map the memory.
    pub(crate) process: Option<Peer>,
    /// What it has shown.
    pub(crate) shown: Option<Arc<Shown>>,
    pub(crate) pump: Box<dyn Pump>,
    /// The client waits no longer.
    deadline: Instant,
}

impl Guest {
    /// Of a fabric of this kind, whose first frame has just come.
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

    /// Whether the client has given up: its command channel would have no user, and would end the
    /// one that it has.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        now >= self.deadline
    }

    /// What membership has to know of it.
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
    /// Its number, for telling whether it is one already known.
    pub(crate) pid: Option<i32>,
    /// How to find out whether it is gone; shared by all clients of the process.
    pub(crate) process: Arc<PeerProcess>,
}

/// The frames of one command channel, on the command thread. Nothing here blocks.
pub(crate) trait Pump: Debug + Send {
    /// Has the poll tell of the connection under this token.
    fn open(&mut self, token: Token, registry: &Registry) -> io::Result<()>;

    /// Whether the client has not hung up, as far as this host knows.
    fn is_open(&self) -> bool;

    /// Tells the client what came of its attach, and hands it what it needs. Nothing else was
    /// sent before, so that it fits at once.
    fn answer(
        &mut self,
        attached: &Attached,
        client: ClientId,
        memory: &mut Memory,
    ) -> io::Result<()>;

    /// The poll says that something happened.
    fn event(&mut self, event: &mio::event::Event);

    /// Receives once; `false`: nothing is there now.
    ///
    /// # Errors
    /// The connection has ended.
    fn receive(&mut self, input: &mut FrameBuffer) -> io::Result<bool>;

    /// Receives without having been told that something is there; whether its turn has come. A
    /// notification that is still to come finds nothing then.
    fn peek(&mut self, input: &mut FrameBuffer) -> bool;

    /// Sends what the client takes; the poll, or an arrival, tells when it takes more.
    ///
    /// # Errors
    /// The connection has ended, or the client leaves too much unread.
    fn send(&mut self, output: &mut Output, registry: &Registry) -> io::Result<()>;

    /// Takes the connection out of the poll and closes it. What can still act on the memory then
    /// is to be fenced.
    fn close(self: Box<Self>, registry: &Registry) -> Option<Box<dyn Fence>>;

    /// What the device of the memory calls its queue pairs, if its frames come that way.
    fn device_ids(&self) -> Vec<PeerId> {
        Vec::new()
    }

    /// Something has completed on those queue pairs. All of it is taken at once.
    ///
    /// # Errors
    /// The client is gone, broke the rules, or sends on without reading its replies.
    fn arrived(&mut self, _arrival: &Arrival) -> io::Result<()> {
        Ok(())
    }
}

/// What may still act on the memory for a client whose channel is closed.
pub(crate) trait Fence: Debug + Send {
    /// Makes that impossible. Nothing of the client is undone until this has succeeded.
    ///
    /// # Errors
    /// It is not impossible yet: to be tried again.
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
        };
        let pump = Box::new(StreamPump::new(Box::new(line)));
        let asked = Instant::now();
        let (kind, deadline) = (FabricKind::Tcp, asked + ATTACH_WAIT);
        let guest = Guest { attach, kind, process: None, shown: None, pump, deadline };
        assert!(!guest.is_late(asked) && guest.is_late(asked + ATTACH_WAIT));
        assert_eq!(guest.joining(), Joining::over(kind), "what it has come over counts");
    }
}
