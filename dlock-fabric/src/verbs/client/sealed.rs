// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client's end of a sealed data path: a stream of bytes each way over one queue pair.
//!
//! ```text
//!   Attach{queue pair} ──TLS──▶ primary            keys: of this TLS session's exporter
//!   Attached{queue pair} ◀─────┘                   the connection stays open: its end ends it
//!   write ─▶ Sealer ─ a record ─▶ Messages ──SEND──▶            as far as there is credit
//!   read ◀── Opener ◀─ a record ── Messages ◀── completions ◀── the primary
//! ```
//! The queue pair gives neither side access to memory of the other. One thread at a time sleeps for
//! completions: the leader of the stream. A thread that waits for credit polls, so that it takes no
//! event from the leader.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use dlock_core::wire::control::{Attach, FabricKind, VerbsAttach, VerbsAttached};

use super::executor::VerbsOptions;
use crate::error::FabricError;
use crate::os::clock::ClockEstimate;
use crate::os::net;
use crate::stream::handshake;
use crate::stream::Stream;
use crate::tcp::TcpExecutor;
use crate::tls::sealing::{SealSecrets, Sealer, OVERHEAD};
use crate::tls::session::TlsSession;
use crate::tls::Tls;
use crate::verbs::device::completion::{Channel, Completion, Cq};
use crate::verbs::device::context::{devices, Context};
use crate::verbs::device::error::VerbsError;
use crate::verbs::device::memory::Pd;
use crate::verbs::device::messages::{
    Event, MessageError, MessageSpec, Messages, RECORD_BYTES, RECORD_INLINE, RING_SLOTS,
};
use crate::verbs::device::port_selection::choose;
use crate::verbs::device::qp::{random_psn, Qp, QpSpec};
use crate::verbs::unsealed::Unsealed;

/// How many completions are taken at a time.
const POLLED: usize = 8;
/// From this many unread bytes on, the primary gets no credit for more.
const ARRIVED_MAX: usize = 64 * 1024;
/// The send slots for messages: the primary's ring may be this large.
const SEND_SLOTS: u32 = dlock_core::limits::VERBS_RING_SLOTS_MAX as u32;

impl TcpExecutor {
    /// Attaches to the primary at this address over a sealed queue pair that carries the frames of
    /// tcp. Takes as long as [`attach_sealed`](Self::attach_sealed), and some more to resolve the
    /// port's address.
    ///
    /// # Errors
    /// As [`attach_sealed`](Self::attach_sealed); `Verbs`: this host has no usable device, or the
    /// two devices do not reach each other.
    pub fn attach_over_verbs(
        options: &VerbsOptions,
        addr: SocketAddr,
        tls: &Tls,
        attach: &Attach,
        clock: ClockEstimate,
    ) -> Result<Self, FabricError> {
        let qp = open(options)?;
        let until_ns = net::connect_deadline(options.until_ns);
        let socket = OwnedFd::from(net::connect_until(addr, options.until_ns)?);
        let mut session = TlsSession::shaken(tls, addr.ip(), socket.as_fd(), until_ns)?;
        let verbs = wanted(&qp);
        let attach = Attach { fabric: FabricKind::Sealed, verbs: Some(verbs), ..*attach };
        let secrets = session.seal_secrets(attach.client)?;
        let attached = handshake::attach_sealed(socket.as_fd(), &mut session, &attach, until_ns)?;
        let primary = attached.verbs.ok_or(FabricError::Unexpected)?;
        let end = SealedEnd::connect(&qp, &primary, secrets, options.until_ns)?;
        Ok(Self::over(&attach, Stream::over_verbs(socket, end), clock))
    }
}

/// Makes a queue pair that is not connected yet.
pub(in crate::verbs) fn open(options: &VerbsOptions) -> Result<Arc<Qp>, FabricError> {
    let found = devices()?;
    let choice =
        choose(&found, options.device.as_deref(), &options.eid).map_err(VerbsError::from)?;
    let context = Context::open(&choice)?;
    let channel = Channel::new(&context)?;
    let cq = Cq::new(&context, SEND_SLOTS + u32::from(RING_SLOTS), Some(&channel))?;
    let spec = QpSpec {
        send_cq: Arc::clone(&cq),
        recv_cq: cq,
        send_slots: SEND_SLOTS,
        recv_slots: RING_SLOTS.into(),
        inline_bytes: RECORD_INLINE,
        serves: false,
        psn: random_psn(),
    };
    Ok(Qp::new(&Pd::new(&context)?, spec)?)
}

/// The description of the queue pair that the client sends to the primary.
pub(in crate::verbs) fn wanted(qp: &Qp) -> VerbsAttach {
    VerbsAttach {
        chains: qp.endpoint().into(),
        messages: None,
        ring_slots: RING_SLOTS,
        message_bytes: RECORD_BYTES,
    }
}

/// The client's end of the sealed path. Each call is a single step that never waits.
#[derive(Debug)]
pub(crate) struct SealedEnd {
    messages: Messages,
    sealer: Sealer,
    arrived: Unsealed,
    /// The most plaintext in a record, bytes.
    plaintext_max: usize,
    record: Vec<u8>,
    /// Whether the next completion raises an event.
    is_armed: bool,
    cq: Arc<Cq>,
    channel: Arc<Channel>,
}

impl SealedEnd {
    /// Connects the queue pair to that of the primary.
    pub(in crate::verbs) fn connect(
        qp: &Arc<Qp>,
        primary: &VerbsAttached,
        secrets: SealSecrets,
        until_ns: Option<u64>,
    ) -> Result<Self, FabricError> {
        let bytes = primary.message_bytes.min(RECORD_BYTES);
        if primary.messages.is_some() || bytes as usize <= OVERHEAD {
            return Err(FabricError::Unexpected);
        }
        let spec = MessageSpec { slots: RING_SLOTS, peer_slots: primary.ring_slots, bytes };
        let messages = Messages::new(qp, spec)?;
        qp.connect_until(&primary.chains.into(), until_ns)?;
        let cq = Arc::clone(qp.recv_cq());
        let channel = cq.channel().cloned().ok_or(FabricError::Unexpected)?;
        let (sealer, opener) = secrets.of_client();
        Ok(Self {
            messages,
            sealer,
            arrived: Unsealed::new(opener, ARRIVED_MAX),
            plaintext_max: bytes as usize - OVERHEAD,
            record: Vec::new(),
            is_armed: false,
            cq,
            channel,
        })
    }

    /// The channel on which to sleep for completions.
    pub(crate) fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// Seals and sends as many bytes as fit into a record; returns how many.
    ///
    /// # Errors
    /// `WouldBlock`: the primary has no free buffer. Other errors: the path has ended.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.messages.may_send() {
            self.look()?; // the completions that have come may bring credit
        }
        if !self.messages.may_send() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let len = bytes.len().min(self.plaintext_max);
        if len == 0 {
            return Ok(0);
        }
        self.sealer.seal(&bytes[..len], &mut self.record).map_err(io::Error::other)?;
        self.messages.send(&self.record)?;
        Ok(len)
    }

    /// Reads received bytes and returns their number.
    ///
    /// # Errors
    /// `WouldBlock`: there are none now. Other errors: the path has ended.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.arrived.is_empty() {
            self.look()?;
        }
        if self.arrived.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let len = self.arrived.read(into);
        if self.arrived.is_empty() {
            self.messages.release()?;
        }
        Ok(len)
    }

    /// Takes the completions that have come.
    fn look(&mut self) -> io::Result<()> {
        let mut some = [Completion::default(); POLLED];
        let len = self.cq.poll(&mut some).map_err(io::Error::other)?;
        for completion in &some[..len] {
            self.record.clear();
            if self.messages.take(completion, &mut self.record)? == Event::Message
                && self.arrived.open(&mut self.record).map_err(MessageError::from)?
            {
                self.messages.hold();
            }
        }
        Ok(())
    }

    /// Arms the queue before the caller sleeps; `true`: it was not armed before, so poll once more.
    ///
    /// # Errors
    /// The path has ended.
    pub(crate) fn arm(&mut self) -> io::Result<bool> {
        if self.is_armed {
            return Ok(false);
        }
        self.cq.arm(false).map_err(io::Error::other)?;
        self.is_armed = true;
        Ok(true)
    }

    /// Takes the event that has come, if any; returns whether there was one.
    ///
    /// # Errors
    /// The path has ended.
    pub(crate) fn take_event(&mut self) -> io::Result<bool> {
        let taken = self.channel.take_event().map_err(io::Error::other)?;
        self.is_armed &= !taken;
        Ok(taken)
    }
}
