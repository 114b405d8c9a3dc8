// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attaches a client's queue pairs to those of a primary.
//!
//! ```text
//!   open the device, make queue pairs ─▶ Attach{endpoints} ──TCP──▶ primary: admit
//!   rings, posters, connect ◀────────── Attached{endpoints, keys} ◀─┘
//!   the connection stays open: the liveness connection
//! ```
//! The primary connects its ends before it answers, so the first message can follow at once.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use dlock_core::limits::VERBS_RING_SLOTS_MAX;
use dlock_core::wire::control::{Attach, Attached, FabricKind, VerbsAttach, VerbsAttached};

use super::completion_pump::{CompletionPump, CompletionPumpParts, RING_VERBS, SEND_SLOTS};
use super::executor::{VerbsExecutor, VerbsOptions};
use super::memory::Memory;
use super::requests::Requests;
use super::ring::Ring;
use crate::error::FabricError;
use crate::os::clock::{coarse_lag_ns, ClockEstimate};
use crate::os::fork::Owner;
use crate::os::net;
use crate::server_clock::SharedEstimate;
use crate::stream::handshake;
use crate::tls::session::TlsSession;
use crate::verbs::device::completion::{Channel, Cq};
use crate::verbs::device::context::{devices, Context};
use crate::verbs::device::error::VerbsError;
use crate::verbs::device::memory::Pd;
use crate::verbs::device::messages::{MessageSpec, Messages, MESSAGE_BYTES, RING_SLOTS};
use crate::verbs::device::port_selection::choose;
use crate::verbs::device::poster::Poster;
use crate::verbs::device::qp::{random_psn, Qp, QpSpec, WORD_OP_BYTES};

/// The send slots for messages: the primary's ring may be this large.
const MESSAGE_SLOTS: u32 = VERBS_RING_SLOTS_MAX as u32;

/// A device, and queue pairs that are not connected yet.
#[derive(Debug)]
pub(super) struct Device {
    sends: (Arc<Cq>, Arc<Channel>),
    receives: (Arc<Cq>, Arc<Channel>),
    chains: Arc<Qp>,
    /// The queue pair for messages; the same as `chains` if it is shared.
    messages: Arc<Qp>,
    shared_qp: bool,
    sleep: bool,
    until_ns: Option<u64>,
}

impl Device {
    pub(super) fn open(options: &VerbsOptions) -> Result<Self, FabricError> {
        let found = devices()?;
        let choice =
            choose(&found, options.device.as_deref(), &options.eid).map_err(VerbsError::from)?;
        let context = Context::open(&choice)?;
        let pd = Pd::new(&context)?;
        let queue = |entries| -> Result<_, VerbsError> {
            let channel = Channel::new(&context)?;
            Ok((Cq::new(&context, entries, Some(&channel))?, channel))
        };
        let sends = queue(SEND_SLOTS + MESSAGE_SLOTS)?;
        let receives = queue(u32::from(RING_SLOTS) + 1)?;
        let qp = |send_slots, recv_slots: u16, inline_bytes| {
            let spec = QpSpec {
                send_cq: Arc::clone(&sends.0),
                recv_cq: Arc::clone(&receives.0),
                send_slots,
                recv_slots: recv_slots.into(),
                inline_bytes,
                serves: false,
                psn: random_psn(),
            };
            Qp::new(&pd, spec)
        };
        let (chains, messages) = if options.shared_qp {
            // a longer message is not inlined: room for one in each of hundreds of slots would be
            // too much
            let qp = qp(SEND_SLOTS + MESSAGE_SLOTS, RING_SLOTS, WORD_OP_BYTES)?;
            (Arc::clone(&qp), qp)
        } else {
            let messages = qp(MESSAGE_SLOTS, RING_SLOTS, MESSAGE_BYTES)?;
            (qp(SEND_SLOTS, 1, WORD_OP_BYTES)?, messages)
        };
        let VerbsOptions { shared_qp, sleep, until_ns, .. } = *options;
        Ok(Self { sends, receives, chains, messages, shared_qp, sleep, until_ns })
    }

    /// The deadline of attaching.
    pub(super) fn deadline(&self) -> u64 {
        net::connect_deadline(self.until_ns)
    }

    /// Attaches over this connection; with its TLS session, if TLS is used.
    pub(super) fn attach(
        self,
        socket: OwnedFd,
        tls: Option<TlsSession>,
        attach: &Attach,
        clock: ClockEstimate,
    ) -> Result<VerbsExecutor, FabricError> {
        let options = VerbsAttach {
            chains: self.chains.endpoint().into(),
            messages: (!self.shared_qp).then(|| self.messages.endpoint().into()),
            ring_slots: RING_SLOTS,
            message_bytes: MESSAGE_BYTES,
        };
        let attach = Attach { fabric: FabricKind::Verbs, verbs: Some(options), ..*attach };
        let until_ns = self.deadline();
        let attached = match tls {
            Some(mut tls) => handshake::attach_sealed(socket.as_fd(), &mut tls, &attach, until_ns)?,
            None => handshake::attach_tcp(socket.as_fd(), &attach, until_ns)?,
        };
        let primary = attached.verbs.ok_or(FabricError::Unexpected)?;
        let memory = memory_of(&attached, &primary)?;
        self.connect(socket, &primary, memory, clock)
    }

    fn connect(
        self,
        socket: OwnedFd,
        primary: &VerbsAttached,
        memory: Memory,
        clock: ClockEstimate,
    ) -> Result<VerbsExecutor, FabricError> {
        let ring = Poster::new(&self.chains, RING_VERBS)?;
        let broken = Arc::new(AtomicBool::new(false));
        let spec = MessageSpec {
            slots: RING_SLOTS,
            peer_slots: primary.ring_slots,
            bytes: primary.message_bytes.min(MESSAGE_BYTES),
        };
        let messages = Messages::new(&self.messages, spec)?;
        let pump = Arc::new(CompletionPump::new(CompletionPumpParts {
            chains: Arc::clone(&self.chains),
            ring_owner: ring.owner(),
            messages: (self.messages.qp_num(), messages.owners()[0]),
            cq: self.sends.0,
            channel: self.sends.1,
            broken: Arc::clone(&broken),
            sleep: self.sleep,
        })?);
        match (&primary.messages, self.shared_qp) {
            (None, true) => self.chains.connect_until(&primary.chains.into(), self.until_ns)?,
            (Some(theirs), false) => {
                self.chains.connect_until(&primary.chains.into(), self.until_ns)?;
                self.messages.connect_until(&(*theirs).into(), self.until_ns)?;
            }
            _ => return Err(FabricError::Unexpected),
        }
        let (of_sends, broken_too) = (Arc::clone(&pump), Arc::clone(&broken));
        let talk = Requests::new(messages, self.receives, of_sends, socket, broken_too, self.sleep);
        Ok(VerbsExecutor {
            pump,
            ring: Mutex::new(Ring::new(ring)),
            talk,
            broken,
            memory,
            clock: SharedEstimate::new(clock),
            coarse_lag_ns: coarse_lag_ns(),
            ping: Mutex::new(None),
            counts: Default::default(),
            told: Mutex::default(),
            owner: Owner::current(),
        })
    }
}

/// The regions on which the primary lets this client operate. If an address is wrong, the device
/// only ends the session.
fn memory_of(attached: &Attached, primary: &VerbsAttached) -> Result<Memory, FabricError> {
    let refused = |why| Err(FabricError::MemoryRefused(why));
    let (slots, ledger) = (primary.slots, primary.ledger);
    if slots.bytes / 32 < attached.slots.into() || slots.base % 8 != 0 {
        return refused("its slots are not what it says");
    }
    if ledger.bytes / 8 < attached.ledger_entries.into() || ledger.base % 8 != 0 {
        return refused("its ledger is not what it says");
    }
    Ok(Memory {
        slots: slots.into(),
        slots_count: attached.slots,
        ledger: ledger.into(),
        ledger_entries: attached.ledger_entries,
    })
}
