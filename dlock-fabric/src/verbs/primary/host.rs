// SPDX-License-Identifier: MIT OR Apache-2.0
//! The primary's device: admits clients, and receives from them.
//!
//! ```text
//!   any thread      admit(client) ──▶ protection domain, registrations, queue pairs ──▶ VerbsPeer
//!                   admit_sealed(client) ──▶ a queue pair without access to memory ──▶ SealedPeer
//!   command thread  poll ──▶ Arrival ──by its PeerId──▶ VerbsPeer::take ──▶ a message, or credit
//!                   arm, poll, sleep on fd, take_events
//! ```
//! Clients share a few completion queues: polling one per client would cost too much, and a single
//! one would be larger than devices permit. A queue has room for everything that its clients' queue
//! pairs can complete, so it never overruns; a new one is made when all are full.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dlock_core::ids::ClientId;
use dlock_core::wire::control::{VerbsAttach, VerbsAttached, VerbsEndpoint, VerbsRegion};
use dlock_core::wire::status::Status;

use super::health::Health;
use super::nic_memory::{Ledgers, NicMemory};
use super::peer::VerbsPeer;
use super::sealed::SealedPeer;
use crate::error::FabricError;
use crate::tls::sealing::{SealSecrets, OVERHEAD};
use crate::verbs::device::completion::{Channel, Completion, Cq};
use crate::verbs::device::context::{devices, Context};
use crate::verbs::device::error::VerbsError;
use crate::verbs::device::memory::{Access, Mr, Pages, Pd, RemoteRegion};
use crate::verbs::device::messages::{
    MessageSpec, Messages, MESSAGE_BYTES, RECORD_BYTES, RECORD_INLINE, RING_SLOTS,
};
use crate::verbs::device::port_selection::{choose, Gid, PortSelection};
use crate::verbs::device::qp::{random_psn, Endpoint, Qp, QpSpec};

/// The entries of one completion queue; a device may permit fewer.
const QUEUE_ENTRIES: u32 = 4_096;
/// The most arrivals of one [`VerbsHost::poll`].
pub const ARRIVALS_MAX: usize = 256;
/// How many completions are taken from one queue at a time.
const POLLED: usize = 16;

/// One queue pair of a peer, in an [`Arrival`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerId(pub(super) u32);

/// One completion of a client's queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Arrival(pub(super) Completion);

impl Arrival {
    /// The peer of the completion. An arrival of an unknown peer must be ignored.
    pub fn peer(&self) -> PeerId {
        PeerId(self.0.qp_num())
    }
}

/// An open device that serves clients of one primary.
#[derive(Debug)]
pub struct VerbsHost {
    /// The lock memory, if it is in the NIC domain.
    served: Option<Served>,
    queues: Arc<Queues>,
    context: Arc<Context>,
}

/// The memory on which clients operate by themselves.
#[derive(Debug)]
struct Served {
    slots: Arc<Pages>,
    ledgers: Arc<Ledgers>,
    health: Arc<Health>,
    shared_qp: bool,
}

/// The completion queues of all peers.
#[derive(Debug)]
pub(super) struct Queues {
    state: Mutex<State>,
    channel: Arc<Channel>,
    context: Arc<Context>,
}

#[derive(Debug, Default)]
struct State {
    queues: Vec<Arc<Cq>>,
    /// Completions of other queue pairs that `purge` has taken from a queue; the next poll returns
    /// them first.
    backlog: VecDeque<Completion>,
}

impl VerbsHost {
    /// The port that `device` and `eid` (all zero: none) name, or else the first usable one.
    ///
    /// # Errors
    /// `Verbs`: there is no such port; the error says why.
    pub fn choose(device: Option<&str>, eid: &[u8; 16]) -> Result<PortSelection, FabricError> {
        let found = devices()?;
        Ok(choose(&found, device, eid).map_err(VerbsError::from)?)
    }

    /// Opens the device and makes the lock memory on it: `slots` slots, and ledgers of
    /// `ledger_entries` entries. `shared_qp`: chains and messages of a client share one queue pair.
    ///
    /// # Errors
    /// `Verbs`; `TooManySlots`.
    pub fn open(
        choice: &PortSelection,
        slots: u32,
        ledger_entries: u32,
        shared_qp: bool,
    ) -> Result<(Arc<Self>, NicMemory), FabricError> {
        let context = Context::open(choice)?;
        let memory = NicMemory::new(&context, slots, ledger_entries)?;
        let (slots, ledgers) = (Arc::clone(memory.pages()), Arc::clone(memory.ledgers()));
        let health = Arc::clone(memory.health());
        let served = Some(Served { slots, ledgers, health, shared_qp });
        Ok((Self::over(context, served)?, memory))
    }

    /// Opens the device only for sealed frames; the lock memory is not on it.
    ///
    /// # Errors
    /// `Verbs`.
    pub fn open_for_frames(choice: &PortSelection) -> Result<Arc<Self>, FabricError> {
        Self::over(Context::open(choice)?, None)
    }

    fn over(context: Arc<Context>, served: Option<Served>) -> Result<Arc<Self>, FabricError> {
        let channel = Channel::new(&context)?;
        let state = Mutex::default();
        let queues = Arc::new(Queues { state, channel, context: Arc::clone(&context) });
        Ok(Arc::new(Self { served, queues, context }))
    }

    /// Whether the lock memory is on the device.
    pub fn has_memory(&self) -> bool {
        self.served.is_some()
    }

    /// Whether the thread that operates on the memory waits for a device that does not answer.
    /// After about half a minute the memory has failed.
    pub fn is_out(&self) -> bool {
        self.served.as_ref().is_some_and(|served| served.health.is_out())
    }

    /// Whether the device did not answer for a while, since this function was called last.
    pub fn take_was_out(&self) -> bool {
        self.served.as_ref().is_some_and(|served| served.health.take_was_out())
    }

    /// Gives the memory up: an operation that waits for the device fails at once.
    pub fn give_up(&self) {
        if let Some(served) = &self.served {
            served.health.give_up();
        }
    }

    /// The device, its port and its address.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Makes everything with which a client operates on the memory by itself; the client can do so
    /// as soon as it has the answer. The caller has added the client to the memory before.
    ///
    /// # Errors
    /// `Refused(ClientRemoved)` if the client has no ledger; `Refused(Invalid)` if the client
    /// shares its queue pair and this primary does not, or the other way round, or if the memory is
    /// not on the device; `Verbs`.
    ///
    /// # Latency
    /// May block for seconds: never on the command thread.
    pub fn admit(
        &self,
        client: ClientId,
        attach: &VerbsAttach,
    ) -> Result<(VerbsPeer, VerbsAttached), FabricError> {
        let Some(served) = &self.served else { return Err(FabricError::Refused(Status::Invalid)) };
        if attach.messages.is_none() != served.shared_qp {
            return Err(FabricError::Refused(Status::Invalid));
        }
        let ledger =
            served.ledgers.of(client).ok_or(FabricError::Refused(Status::ClientRemoved))?;
        let pd = Pd::new(&self.context)?;
        let slots = Mr::register(&pd, served.slots.clone(), Access::ReadAtomic)?;
        let ledger = Mr::register(&pd, ledger, Access::ReadWrite)?;
        let ring = MessageSpec {
            slots: RING_SLOTS,
            peer_slots: attach.ring_slots,
            bytes: attach.message_bytes.min(MESSAGE_BYTES),
        };
        let carrier = self.queues.qp(&pd, &ring, MESSAGE_BYTES, served.shared_qp)?;
        let messages = Messages::new(&carrier, ring)?;
        let chains = match served.shared_qp {
            true => None,
            false => Some(self.queues.make(&pd, (1, 1), 0, true)?),
        };
        let mut attached = VerbsAttached {
            chains: carrier.endpoint().into(),
            messages: None,
            slots: slots.remote().into(),
            ledger: ledger.remote().into(),
            ring_slots: ring.slots,
            message_bytes: ring.bytes,
        };
        match (&chains, &attach.messages) {
            (Some(chains), Some(theirs)) => {
                chains.post_canary()?;
                chains.connect(&attach.chains.into())?;
                carrier.connect(&(*theirs).into())?;
                attached.messages = Some(attached.chains);
                attached.chains = chains.endpoint().into();
            }
            _ => carrier.connect(&attach.chains.into())?,
        }
        let qps = [Some(carrier), chains].into_iter().flatten().collect();
        let queues = Arc::clone(&self.queues);
        Ok((VerbsPeer::new(client, messages, qps, vec![slots, ledger], queues), attached))
    }

    /// Makes a queue pair for sealed frames, without access to any memory.
    ///
    /// # Errors
    /// `Refused(Invalid)` if the client wants queue pairs of another kind; `Verbs`.
    ///
    /// # Latency
    /// As [`admit`](Self::admit).
    pub fn admit_sealed(
        &self,
        client: ClientId,
        attach: &VerbsAttach,
        secrets: SealSecrets,
    ) -> Result<(SealedPeer, VerbsAttached), FabricError> {
        let bytes = attach.message_bytes.min(RECORD_BYTES);
        if attach.messages.is_some() || bytes as usize <= OVERHEAD {
            return Err(FabricError::Refused(Status::Invalid));
        }
        let pd = Pd::new(&self.context)?;
        let ring = MessageSpec { slots: RING_SLOTS, peer_slots: attach.ring_slots, bytes };
        let qp = self.queues.qp(&pd, &ring, RECORD_INLINE, false)?;
        let messages = Messages::new(&qp, ring)?;
        qp.connect(&attach.chains.into())?;
        let attached = VerbsAttached {
            chains: qp.endpoint().into(),
            messages: None,
            slots: VerbsRegion::EMPTY,
            ledger: VerbsRegion::EMPTY,
            ring_slots: ring.slots,
            message_bytes: bytes,
        };
        let queues = Arc::clone(&self.queues);
        let peer = VerbsPeer::new(client, messages, vec![qp], Vec::new(), queues);
        Ok((SealedPeer::new(peer, secrets, bytes), attached))
    }

    /// Takes arrivals of all clients, [`ARRIVALS_MAX`] at most; returns how many. If it returns
    /// that number, poll again before sleeping.
    ///
    /// # Errors
    /// `Call` if the device has failed: no more arrivals will come.
    pub fn poll(&self, arrivals: &mut Vec<Arrival>) -> Result<usize, VerbsError> {
        self.queues.poll(arrivals)
    }

    /// A descriptor that becomes readable when a completion comes after [`arm`](Self::arm), and
    /// stays so until [`take_events`](Self::take_events).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.queues.channel.as_fd()
    }

    /// To be called before sleeping: arm, poll once more, and sleep only if no arrival has come.
    ///
    /// # Errors
    /// `Call` if the device has failed.
    pub fn arm(&self) -> Result<(), VerbsError> {
        self.queues.state().queues.iter().try_for_each(|queue| queue.arm(false))
    }

    /// Takes the events that made [`fd`](Self::fd) readable; returns whether there were any.
    ///
    /// # Errors
    /// `Call` if the device has failed.
    pub fn take_events(&self) -> Result<bool, VerbsError> {
        // each queue has at most one event per `arm`
        let events_max = self.queues.state().queues.len() + 1;
        for taken in 0..events_max {
            if !self.queues.channel.take_event()? {
                return Ok(taken > 0);
            }
        }
        Ok(true)
    }
}

impl Queues {
    fn state(&self) -> MutexGuard<'_, State> {
        // no thread panics while it has this mutex locked
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a queue pair for these rings, with `inline_bytes` bytes inline.
    fn qp(
        &self,
        pd: &Arc<Pd>,
        ring: &MessageSpec,
        inline_bytes: u32,
        serves: bool,
    ) -> Result<Arc<Qp>, VerbsError> {
        self.make(pd, (ring.send_slots(), ring.slots.into()), inline_bytes, serves)
    }

    /// Makes a queue pair that completes in one of the queues, with these numbers of slots for
    /// sending and for receiving.
    fn make(
        &self,
        pd: &Arc<Pd>,
        (send_slots, recv_slots): (u32, u32),
        inline_bytes: u32,
        serves: bool,
    ) -> Result<Arc<Qp>, VerbsError> {
        let on = |queue: &Arc<Cq>| {
            let (send_cq, recv_cq) = (Arc::clone(queue), Arc::clone(queue));
            let psn = random_psn();
            let spec =
                QpSpec { send_cq, recv_cq, send_slots, recv_slots, inline_bytes, serves, psn };
            Qp::new(pd, spec)
        };
        // The newest queue has the most room.
        let queues: Vec<_> = self.state().queues.iter().rev().cloned().collect();
        for queue in &queues {
            match on(queue) {
                Err(VerbsError::QueueTooSmall { .. }) => {}
                result => return result,
            }
        }
        let entries = QUEUE_ENTRIES.min(self.context.device().completions_max);
        let queue = Cq::new(&self.context, entries, Some(&self.channel))?;
        let qp = on(&queue)?;
        self.state().queues.push(queue);
        Ok(qp)
    }

    fn poll(&self, arrivals: &mut Vec<Arrival>) -> Result<usize, VerbsError> {
        let mut state = self.state();
        let before = arrivals.len();
        let State { queues, backlog } = &mut *state;
        let from_backlog = backlog.len().min(ARRIVALS_MAX);
        arrivals.extend(backlog.drain(..from_backlog).map(Arrival));
        for queue in queues.iter() {
            let mut some = [Completion::default(); POLLED];
            while arrivals.len() - before + POLLED <= ARRIVALS_MAX {
                let len = queue.poll(&mut some)?;
                arrivals.extend(some[..len].iter().copied().map(Arrival));
                if len < POLLED {
                    break;
                }
            }
        }
        // The next poll begins with another queue.
        if queues.len() > 1 {
            queues.rotate_left(1);
        }
        Ok(arrivals.len() - before)
    }

    /// Drops completions of queue pairs that are destroyed, because their numbers may be reused.
    pub(super) fn purge(&self, ids: &[PeerId]) {
        let mut state = self.state();
        let State { queues, backlog } = &mut *state;
        let mut some = [Completion::default(); POLLED];
        for queue in queues.iter() {
            // At most as many completions as the queue can hold are taken: a completion of another
            // queue pair that is added meanwhile lies behind them and may stay.
            let mut left = queue.entries() as usize;
            while left > 0 {
                match queue.poll(&mut some) {
                    Ok(len) if len > 0 => {
                        backlog.extend(&some[..len]);
                        left = left.saturating_sub(len);
                    }
                    _ => break,
                }
            }
        }
        backlog.retain(|completion| !ids.contains(&PeerId(completion.qp_num())));
    }
}

impl From<Endpoint> for VerbsEndpoint {
    fn from(endpoint: Endpoint) -> Self {
        let Endpoint { qp_num, psn, gid, lid, mtu, reads } = endpoint;
        Self { qp_num, psn, gid: gid.0, lid, mtu, reads }
    }
}

impl From<VerbsEndpoint> for Endpoint {
    fn from(endpoint: VerbsEndpoint) -> Self {
        let VerbsEndpoint { qp_num, psn, gid, lid, mtu, reads } = endpoint;
        Self { qp_num, psn, gid: Gid(gid), lid, mtu, reads }
    }
}

impl From<RemoteRegion> for VerbsRegion {
    fn from(region: RemoteRegion) -> Self {
        let RemoteRegion { base, bytes, rkey } = region;
        Self { base, bytes, rkey }
    }
}

impl From<VerbsRegion> for RemoteRegion {
    fn from(region: VerbsRegion) -> Self {
        let VerbsRegion { base, bytes, rkey } = region;
        Self { base, bytes, rkey }
    }
}
