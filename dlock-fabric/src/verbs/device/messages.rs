// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages over a queue pair: SEND into a bounded ring of receive buffers, with credits.
//!
//! ```text
//!   send ──▶ slot of my send ring, or inline ──SEND + credits──▶ buffer of the peer's ring
//!   take ◀── copies the message out, posts the buffer again, and returns credits with the next
//!            message, or by a bare one (see `credits`)
//! ```
//! All buffers are posted before the queue pair connects, and a message is sent only if a buffer of
//! the peer is known to be free. So a receiver is never "not ready".
//!
//! A receiver with enough unread messages [holds](Messages::hold) the buffers of further ones: it
//! does not post them again, so that the peer soon has no credit for more. It still takes the
//! credits that the peer returns.

use std::sync::Arc;

use super::completion::{Completion, WorkId};
use super::credits::{Credits, RING_SLOTS_MIN};
use super::error::VerbsError;
use super::ffi::{self, ibv_recv_wr, ibv_send_wr, ibv_sge};
use super::memory::{Access, Mr, Pages};
use super::qp::Qp;
use crate::tls::sealing::SealError;

/// How many receive buffers a message ring has: for requests at a primary, for replies at a client.
pub const RING_SLOTS: u16 = 16;
/// The size of a message buffer, bytes; the longest frame of the arbiter needs less than half.
pub const MESSAGE_BYTES: u32 = 128;
/// The size of a buffer for sealed records, bytes: half of a batch of the largest size.
pub const RECORD_BYTES: u32 = 2_048;
/// The size of a sealed record that is copied into the work request, bytes: enough for a chain or
/// an answer.
pub const RECORD_INLINE: u32 = 192;

/// The sizes of a pair of rings; both ends must agree on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageSpec {
    /// The receive buffers of this end; at least [`RING_SLOTS_MIN`].
    pub slots: u16,
    /// The receive buffers of the peer; at least [`RING_SLOTS_MIN`].
    pub peer_slots: u16,
    /// The size of a buffer in bytes: that of the longest message.
    pub bytes: u32,
}

impl MessageSpec {
    /// How many slots of the queue pair's send queue this channel needs.
    pub fn send_slots(&self) -> u32 {
        u32::from(self.peer_slots).next_power_of_two()
    }
}

/// The meaning of a completion of this channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message was appended to `into`.
    Message,
    /// Credits came back: more messages may be sent now.
    Credit,
    /// Sent messages have left: more messages may be sent now.
    Sent,
}

/// Why a message was not sent, or the channel has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// No room now: poll, and try again after an [`Event`].
    #[error("the peer has no free buffer, or the send queue is full")]
    Busy,
    /// The message is longer than a buffer.
    #[error("a message of {len} bytes exceeds {max}")]
    TooLong {
        /// The length of the message.
        len: usize,
        /// The most bytes that a message may have.
        max: u32,
    },
    /// The queue pair is in error.
    #[error("the queue pair has failed (status or error {code})")]
    Broken {
        /// The completion's status, or the system's error number.
        code: u32,
    },
    /// A record is not authentic or not the next one, or the sequence numbers are used up.
    #[error(transparent)]
    Sealed(#[from] SealError),
    /// The peer broke the protocol; the queue pair was put in error.
    #[error("the peer broke the message protocol: {0}")]
    Peer(&'static str),
}

/// One end of a message channel; used by one thread at a time.
#[derive(Debug)]
pub struct Messages {
    spec: MessageSpec,
    credits: Credits,
    send_owner: u16,
    recv_owner: u16,
    mask: u32,
    posted: u32,
    settled: u32,
    signalled: u32,
    /// Buffers whose messages were taken, and that are held; `None`: buffers are not held.
    held: Option<Vec<u32>>,
    broken: Option<u32>,
    lkey: u32,
    /// First the receive buffers, then the send buffers.
    pages: Arc<Pages>,
    qp: Arc<Qp>,
}

impl Messages {
    /// Makes the rings and posts all receive buffers; before [`Qp::connect`].
    ///
    /// # Errors
    /// `QueueTooSmall` if the queue pair, or a ring, has too few slots; `Call`.
    pub fn new(qp: &Arc<Qp>, spec: MessageSpec) -> Result<Self, VerbsError> {
        let wanted = u32::from(spec.slots.min(spec.peer_slots));
        if wanted < RING_SLOTS_MIN.into() {
            return Err(VerbsError::QueueTooSmall { wanted: RING_SLOTS_MIN.into(), has: wanted });
        }
        if u32::from(spec.slots) > qp.recv_slots() {
            let (wanted, has) = (spec.slots.into(), qp.recv_slots());
            return Err(VerbsError::QueueTooSmall { wanted, has });
        }
        let slots = u64::from(spec.slots) + u64::from(spec.send_slots());
        let bytes = slots.saturating_mul(u64::from(spec.bytes));
        let pages = Pages::new(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        let mr = Mr::register(qp.pd(), pages.clone(), Access::Local)?;
        let send_owner = qp.take_share(spec.send_slots())?.owner;
        let recv_owner = qp.take_share(0)?.owner;
        let lkey = mr.lkey();
        qp.keep(Arc::new(mr));
        let messages = Self {
            credits: Credits::new(spec.slots, spec.peer_slots),
            send_owner,
            recv_owner,
            mask: spec.send_slots() - 1,
            posted: 0,
            settled: 0,
            signalled: 0,
            held: None,
            broken: None,
            lkey,
            pages,
            qp: Arc::clone(qp),
            spec,
        };
        for slot in 0..u32::from(spec.slots) {
            let posted = messages.post_buffer(slot);
            posted.map_err(|code| {
                let source = std::io::Error::from_raw_os_error(code);
                VerbsError::call("post a receive buffer", source)
            })?;
        }
        Ok(messages)
    }

    /// The owner numbers of this channel in completions: of sent and of received messages.
    pub fn owners(&self) -> [u16; 2] {
        [self.send_owner, self.recv_owner]
    }

    /// Whether there are a credit and a slot for a message, so that [`send`](Self::send) accepts
    /// one.
    pub fn may_send(&self) -> bool {
        self.broken.is_none() && self.credits.may_send() && self.has_slot()
    }

    /// Adds credits that are not owed; a hostile peer may do that.
    #[cfg(test)]
    pub(in crate::verbs) fn forge(&mut self, credits: u32) {
        for _ in 0..credits {
            self.credits.freed();
        }
    }

    /// Posts a bare credit return even if no credits are owed, or with bytes in it; a hostile peer
    /// may do that.
    #[cfg(test)]
    pub(in crate::verbs) fn post_bare(&mut self, bytes: &[u8]) {
        self.post(bytes, false).unwrap();
    }

    /// Posts an empty SEND without an immediate value, which returns no credits; a hostile peer may
    /// do that.
    #[cfg(test)]
    pub(in crate::verbs) fn post_without_credits(&mut self) {
        let mut request = ibv_send_wr {
            wr_id: WorkId { owner: self.send_owner, len: 1, seq: self.posted }.bits(),
            opcode: ffi::IBV_WR_SEND,
            send_flags: ffi::IBV_SEND_SOLICITED,
            ..ibv_send_wr::empty()
        };
        // SAFETY: one request without entries, on the stack until the call returns.
        unsafe { self.qp.post_send(&mut request) }.unwrap();
    }

    /// Records the count up to which messages have left, if other code takes the completions of the
    /// send queue.
    pub(in crate::verbs) fn settle_sent(&mut self, seq: u32) {
        if seq.wrapping_sub(self.settled) <= self.posted.wrapping_sub(self.settled) {
            self.settled = seq;
        }
    }

    fn has_slot(&self) -> bool {
        self.posted.wrapping_sub(self.settled) <= self.mask
    }

    /// Sends one message. The receiver may sleep on a channel that is armed for solicited events.
    ///
    /// # Errors
    /// `Busy`, `TooLong`: nothing was sent. `Broken`.
    pub fn send(&mut self, message: &[u8]) -> Result<(), MessageError> {
        let max = self.spec.bytes;
        let fits = u32::try_from(message.len()).is_ok_and(|len| len <= max);
        if !fits {
            return Err(MessageError::TooLong { len: message.len(), max });
        }
        self.check()?;
        if !self.may_send() {
            return Err(MessageError::Busy);
        }
        self.post(message, true)
    }

    /// Holds the buffers of later messages: they are not posted again.
    pub fn hold(&mut self) {
        self.held.get_or_insert_default();
    }

    /// Posts the held buffers again, and returns their credits. Buffers of later messages are
    /// posted as soon as the message is taken.
    ///
    /// # Errors
    /// `Broken`.
    pub fn release(&mut self) -> Result<(), MessageError> {
        let Some(slots) = self.held.take() else { return Ok(()) };
        self.check()?;
        for slot in slots {
            self.free(slot)?;
        }
        self.return_credits()
    }

    /// Handles a completion of this channel; appends a message to `into`.
    ///
    /// # Errors
    /// `Broken`; `Peer`. The channel has ended.
    ///
    /// # Panics
    /// If the completion is not of this channel: see [`owners`](Self::owners).
    pub fn take(
        &mut self,
        completion: &Completion,
        into: &mut Vec<u8>,
    ) -> Result<Event, MessageError> {
        let WorkId { owner, seq, .. } = completion.work();
        assert!(self.owners().contains(&owner), "not of this channel");
        if !completion.is_success() {
            self.broken.get_or_insert(completion.status());
        }
        self.check()?;
        let event = if owner == self.send_owner {
            self.settled = seq;
            Event::Sent
        } else {
            self.receive(completion, seq, into)?
        };
        self.return_credits()?;
        Ok(event)
    }

    /// Whether credits must be returned for which there was no room.
    pub(in crate::verbs) fn is_owing(&self) -> bool {
        self.broken.is_none() && self.credits.must_return()
    }

    /// Returns credits if enough are owed and there is room.
    ///
    /// # Errors
    /// `Broken`.
    pub(in crate::verbs) fn return_credits(&mut self) -> Result<(), MessageError> {
        match self.credits.must_return() && self.has_slot() {
            true => self.post(&[], false),
            false => Ok(()),
        }
    }

    fn receive(
        &mut self,
        completion: &Completion,
        slot: u32,
        into: &mut Vec<u8>,
    ) -> Result<Event, MessageError> {
        // bit 31 distinguishes a message, which may be empty, from a bare return
        let Some(word) = completion.immediate() else {
            return Err(self.peer("a message without credits"));
        };
        let is_message = word & MESSAGE != 0;
        if !is_message && (word == 0 || completion.bytes() > 0) {
            return Err(self.peer("a bare return that is none"));
        }
        if is_message {
            // the device refuses a message that does not fit into the buffer
            let len = completion.bytes().min(self.spec.bytes as usize);
            self.pages.get(slot as usize * self.spec.bytes as usize, len, into);
        }
        match &mut self.held {
            Some(held) if is_message => held.push(slot),
            _ => self.free(slot)?,
        }
        if !self.credits.returned(word & !MESSAGE) {
            return Err(self.peer("more credits than it got"));
        }
        Ok(if is_message { Event::Message } else { Event::Credit })
    }

    /// Posts a buffer again after its message was taken.
    fn free(&mut self, slot: u32) -> Result<(), MessageError> {
        self.post_buffer(slot).map_err(|code| self.fail(code))?;
        self.credits.freed();
        Ok(())
    }

    fn check(&self) -> Result<(), MessageError> {
        match self.broken {
            None => Ok(()),
            Some(code) => Err(MessageError::Broken { code }),
        }
    }

    fn fail(&mut self, code: i32) -> MessageError {
        let code = code.unsigned_abs();
        self.broken = Some(code);
        // the error is ignored: the queue pair is in the error state already, or the device has
        // failed
        let _ = self.qp.to_error();
        MessageError::Broken { code }
    }

    fn peer(&mut self, why: &'static str) -> MessageError {
        let _ = self.fail(libc::EPROTO);
        MessageError::Peer(why)
    }

    fn post(&mut self, message: &[u8], is_message: bool) -> Result<(), MessageError> {
        let slot = self.posted & self.mask;
        let inline = message.len() <= self.qp.inline_bytes();
        let addr = if inline {
            message.as_ptr() as u64
        } else {
            let at = (u32::from(self.spec.slots) + slot) as usize * self.spec.bytes as usize;
            self.pages.put(at, message);
            std::ptr::from_ref(&self.pages.words()[0]) as u64 + at as u64
        };
        let seq = self.posted.wrapping_add(1);
        let signalled = seq.wrapping_sub(self.signalled) > self.mask / 4;
        // `send` has checked the length
        let mut sge = ibv_sge { addr, length: message.len() as u32, lkey: self.lkey };
        let mut request = ibv_send_wr {
            wr_id: WorkId { owner: self.send_owner, len: 1, seq }.bits(),
            sg_list: &mut sge,
            num_sge: i32::from(!message.is_empty()),
            opcode: ffi::IBV_WR_SEND_WITH_IMM,
            send_flags: ffi::IBV_SEND_SOLICITED
                | if inline { ffi::IBV_SEND_INLINE } else { 0 }
                | if signalled { ffi::IBV_SEND_SIGNALED } else { 0 },
            ..ibv_send_wr::empty()
        };
        let returned = u32::from(self.credits.send());
        request.imm_data = (returned | if is_message { MESSAGE } else { 0 }).to_be();
        // SAFETY: one request with one entry, both on the stack until the call returns; inline
        // bytes are copied by it, others lie in a registration that the queue pair keeps.
        if let Err(failed) = unsafe { self.qp.post_send(&mut request) } {
            return Err(self.fail(failed.code));
        }
        self.posted = seq;
        if signalled {
            self.signalled = seq;
        }
        Ok(())
    }

    fn post_buffer(&self, slot: u32) -> Result<(), i32> {
        let at = u64::from(slot) * u64::from(self.spec.bytes);
        let base = std::ptr::from_ref(&self.pages.words()[0]) as u64;
        let mut sge = ibv_sge { addr: base + at, length: self.spec.bytes, lkey: self.lkey };
        let mut request = ibv_recv_wr {
            wr_id: WorkId { owner: self.recv_owner, len: 1, seq: slot }.bits(),
            next: std::ptr::null_mut(),
            sg_list: &mut sge,
            num_sge: 1,
        };
        // SAFETY: one request with one entry, both on the stack until the call returns; the
        // buffer lies in a registration that the queue pair keeps, and is read only after the
        // completion of this request.
        unsafe { self.qp.post_recv(&mut request) }.map_err(|failed| failed.code)
    }
}

/// The bit of the immediate value that distinguishes a message from a bare return of credits.
const MESSAGE: u32 = 1 << 31;
