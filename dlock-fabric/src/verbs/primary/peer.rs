// SPDX-License-Identifier: MIT OR Apache-2.0
//! One admitted client at the primary: its queue pairs, registrations and messages.

use std::sync::Arc;

use dlock_core::ids::ClientId;

use super::host::{Arrival, PeerId, Queues};
use crate::verbs::device::error::VerbsError;
use crate::verbs::device::memory::Mr;
use crate::verbs::device::messages::{Event, MessageError, Messages};
use crate::verbs::device::qp::{Qp, CANARY};

/// The primary's end for one client; owned by one thread. Dropping it fences the client.
#[derive(Debug)]
pub struct VerbsPeer {
    client: ClientId,
    ids: [PeerId; 2],
    broken: bool,
    // dropped in this order: the queue pairs before the memory on which they operate
    messages: Option<Messages>,
    qps: Vec<Arc<Qp>>,
    keys: Vec<Mr>,
    queues: Arc<Queues>,
}

impl VerbsPeer {
    pub(super) fn new(
        client: ClientId,
        messages: Messages,
        qps: Vec<Arc<Qp>>,
        keys: Vec<Mr>,
        queues: Arc<Queues>,
    ) -> Self {
        let id = |qp: Option<&Arc<Qp>>| PeerId(qp.map_or(0, |qp| qp.qp_num()));
        let ids = [id(qps.first()), id(qps.last())];
        Self { client, ids, broken: false, messages: Some(messages), qps, keys, queues }
    }

    /// The id of the client.
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// The ids that [`Arrival::peer`] returns for this client; twice the same if the queue pair is
    /// shared.
    pub fn ids(&self) -> [PeerId; 2] {
        self.ids
    }

    /// Whether the session has failed: no message can be received or sent any more. Operations that
    /// the client has posted on its other queue pair may take effect until the client is fenced.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Handles an arrival of this peer; appends a message, which is one frame, to `into`.
    ///
    /// # Errors
    /// `Broken`, `Peer`: the session has ended, and the client must be fenced.
    ///
    /// # Panics
    /// If the arrival is of another peer.
    pub fn take(&mut self, arrival: &Arrival, into: &mut Vec<u8>) -> Result<Event, MessageError> {
        assert!(self.ids.contains(&arrival.peer()), "an arrival of another peer");
        let completion = &arrival.0;
        let taken = match &mut self.messages {
            None => Err(MessageError::Broken { code: completion.status() }),
            Some(_) if completion.work().owner == CANARY => Err(match completion.is_success() {
                true => MessageError::Peer("a message on the queue pair of chains"),
                false => MessageError::Broken { code: completion.status() },
            }),
            Some(messages) => messages.take(completion, into),
        };
        self.broken |= taken.is_err();
        taken
    }

    /// Whether [`send`](Self::send) has room now.
    pub fn may_send(&self) -> bool {
        !self.broken && self.messages.as_ref().is_some_and(Messages::may_send)
    }

    /// Sends one frame.
    ///
    /// # Errors
    /// `Busy`, `TooLong`: nothing was sent; after `Busy`, try again after an [`Event::Credit`],
    /// [`Event::Message`] or [`Event::Sent`]. `Broken`, `Peer`: the session has ended.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), MessageError> {
        let Some(messages) = self.messages.as_mut().filter(|_| !self.broken) else {
            return Err(MessageError::Broken { code: libc::ENOTCONN as u32 });
        };
        let sent = messages.send(frame);
        let over = !matches!(sent, Ok(()) | Err(MessageError::Busy | MessageError::TooLong { .. }));
        self.broken |= over;
        sent
    }

    /// Holds the buffers of received messages back until [`release`](Self::release), so that the
    /// client soon has no credit for more.
    pub(super) fn hold(&mut self) {
        if let Some(messages) = &mut self.messages {
            messages.hold();
        }
    }

    /// Ends [`hold`](Self::hold).
    ///
    /// # Errors
    /// `Broken`: the session has ended.
    pub(super) fn release(&mut self) -> Result<(), MessageError> {
        let released = self.messages.as_mut().map_or(Ok(()), Messages::release);
        self.broken |= released.is_err();
        released
    }

    /// Fences this client. On success the queue pairs are destroyed, the registrations are gone,
    /// and no operation that the client ever posted takes effect any more.
    ///
    /// # Errors
    /// `Call` if the device fails. Then nothing of the client may be undone; call again.
    ///
    /// # Latency
    /// A few milliseconds on SoftRoCE; it does not wait for the peer.
    pub fn fence(&mut self) -> Result<(), VerbsError> {
        if self.qps.is_empty() {
            return Ok(());
        }
        self.broken = true;
        self.messages = None;
        for qp in &mut self.qps {
            // if this fails, destroying may still succeed, and that is enough
            let _ = qp.to_error();
            // only the messages shared the queue pair, and they are dropped
            let qp = Arc::get_mut(qp).expect("a queue pair of its peer alone");
            qp.destroy()?;
        }
        self.qps.clear();
        self.queues.purge(&self.ids);
        self.keys.clear();
        Ok(())
    }
}

impl Drop for VerbsPeer {
    fn drop(&mut self) {
        // if this fails, the queue pairs keep their registrations for ever
        let _ = self.fence();
    }
}
