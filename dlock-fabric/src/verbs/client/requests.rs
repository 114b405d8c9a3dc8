// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client's requests and their replies over SEND/RECV, for all of its threads.
//!
//! ```text
//!   threads ──send──▶ Messages ──SEND, if there is credit──▶ the primary's ring
//!   threads ◀─wait(seq)── Inbox ◀── the leader ◀── Cq of my ring, or its channel
//!                                            └──── liveness connection: its end is the session's
//! ```
//! The liveness connection is the TCP connection of the attach exchange; no more bytes are sent on
//! it. Its end shows that the primary's process has died. The device does not show that: for the
//! queue pairs of a dead process it answers nothing.
//!
//! Mutexes are locked in this order: `rx` (by the leader alone), `out`, `inbox`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dlock_core::ids::Seq;
use dlock_core::memory::exec::{Listening, OnAnswer};
use dlock_core::wire::codec::{self, Cut, Frame, HEADER_LEN};
use dlock_core::wire::message::Request;
use dlock_core::wire::status::Status;

use super::completion_pump::CompletionPump;
use crate::os::clock::{boot_ns, deadline_in};
use crate::os::fork::{NotInherited, Owner};
use crate::os::sys::{self, receive_now, SPIN};
use crate::stream::inbox::{lock, Answer, Broken, Expected, Follow, Inbox, NoAnswer, Receiver};
use crate::stream::tell_of_rubbish;
use crate::verbs::device::completion::{Channel, Completion, Cq};
use crate::verbs::device::messages::{Event, MessageError, Messages};

/// How long to wait for messages before taking completions of the send queue again, if that is
/// needed.
const HELP: Duration = Duration::from_millis(10);
/// The number of no request: a thread that waits for credit waits for this number.
const CREDIT: Seq = Seq(0);
/// How many completions are taken at a time.
const POLLED: usize = 8;

/// The message side of one session.
#[derive(Debug)]
pub(in crate::verbs) struct Requests {
    rx: Mutex<Vec<u8>>,
    out: Mutex<Out>,
    inbox: Mutex<Inbox>,
    broken: Arc<AtomicBool>,
    /// How long to poll before sleeping.
    spin: Duration,
    liveness: NotInherited<OwnedFd>,
    owner: Owner,
    channel: Arc<Channel>,
    cq: Arc<Cq>,
    /// The pump that takes the completions of the send queue.
    pump: Arc<CompletionPump>,
}

#[derive(Debug)]
struct Out {
    messages: Messages,
    frame: Vec<u8>,
    last_seq: u64,
}

impl Requests {
    pub(super) fn new(
        messages: Messages,
        (cq, channel): (Arc<Cq>, Arc<Channel>),
        pump: Arc<CompletionPump>,
        liveness: OwnedFd,
        broken: Arc<AtomicBool>,
        sleep: bool,
    ) -> Self {
        Self {
            rx: Mutex::default(),
            out: Mutex::new(Out { messages, frame: Vec::new(), last_seq: 0 }),
            inbox: Mutex::default(),
            broken,
            spin: if sleep { Duration::ZERO } else { SPIN },
            liveness: NotInherited::new(liveness),
            owner: Owner::current(),
            channel,
            cq,
            pump,
        }
    }

    /// Sends a request, waiting for credit until the deadline.
    ///
    /// # Errors
    /// `BadResponse`: the session has ended; `TimedOut`: the primary frees no buffer, or too many
    /// answers are outstanding. Nothing was sent, nor will be.
    pub(in crate::verbs) fn send(&self, request: &Request, until_ns: u64) -> Result<Seq, Status> {
        let expected = if request.has_reply() { Expected::Reply } else { Expected::Nothing };
        loop {
            self.pump.look();
            if self.is_broken() {
                return Err(Status::BadResponse);
            }
            let mut out = lock(&self.out);
            out.messages.settle_sent(self.pump.messages_sent());
            if out.messages.may_send() {
                return self.send_now(&mut out, request, expected);
            }
            drop(out);
            let now_ns = boot_ns();
            if now_ns >= until_ns {
                return Err(Status::TimedOut);
            }
            self.wait_for_credit(until_ns.min(deadline_in(HELP)));
        }
    }

    fn send_now(&self, out: &mut Out, request: &Request, expects: Expected) -> Result<Seq, Status> {
        let seq = Seq(out.last_seq + 1);
        lock(&self.inbox).expect(seq, expects).map_err(|_| Status::TimedOut)?;
        out.last_seq = seq.0;
        out.frame.clear();
        codec::encode(&Frame::Request(seq, *request), &mut out.frame);
        // there is room, so only a broken queue pair can refuse the message
        out.messages.send(&out.frame).map(|()| seq).map_err(|_| {
            let mut inbox = lock(&self.inbox);
            inbox.forget(seq);
            self.broken.store(true, Ordering::SeqCst);
            inbox.wake_all();
            self.shut_down();
            Status::BadResponse
        })
    }

    fn wait_for_credit(&self, until_ns: u64) {
        let inbox = lock(&self.inbox);
        let mut inbox = match inbox.led {
            true => inbox.follow(CREDIT, until_ns),
            false => self.lead(inbox, until_ns),
        };
        inbox.pass_on(false);
    }

    /// Waits for the answer to `seq`, as [`Receiver::await_answer`].
    pub(super) fn wait(&self, seq: Seq, until_ns: u64) -> Result<Option<Answer>, Broken> {
        match self.owner.is_here() {
            true => self.await_answer(seq, until_ns),
            false => Err(Broken),
        }
    }

    /// Listens to answers that no thread waits for, as [`Receiver::listen_now`].
    pub(super) fn listen(&self, call: Option<&OnAnswer>) -> Result<Listening, Status> {
        match self.owner.is_here() {
            true => self.listen_now(call).map_err(|Broken| Status::BadResponse),
            false => Err(Status::BadResponse),
        }
    }

    /// The descriptors that report more input, as
    /// [`Executor::inputs`](dlock_core::memory::exec::Executor::inputs).
    pub(super) fn inputs(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [Some(self.channel.as_fd()), Some(self.liveness.as_fd())]
    }

    /// Whether there are credit and a send slot for a message.
    pub(super) fn has_room(&self) -> bool {
        self.pump.look();
        let mut out = lock(&self.out);
        out.messages.settle_sent(self.pump.messages_sent());
        self.is_broken() || out.messages.may_send()
    }

    /// Drops the answer to `seq`, even if it comes later.
    pub(super) fn forget(&self, seq: Seq) {
        if self.owner.is_here() {
            lock(&self.inbox).forget(seq);
        }
    }

    /// Checks, without waiting, whether the primary has ended the session; returns whether it goes
    /// on.
    pub(super) fn probe(&self) -> bool {
        if self.owner.is_here() && !self.is_broken() && !self.is_line_alive() {
            self.break_off();
        }
        self.owner.is_here() && !self.is_broken()
    }

    /// Ends the session: wakes all threads, and the primary.
    pub(super) fn break_off(&self) {
        self.broken.store(true, Ordering::SeqCst);
        self.shut_down();
        lock(&self.inbox).wake_all();
    }

    fn shut_down(&self) {
        let _ = rustix::net::shutdown(self.liveness.as_fd(), rustix::net::Shutdown::Both);
    }

    /// Whether the liveness connection is open, and the peer has sent nothing on it.
    fn is_line_alive(&self) -> bool {
        matches!(receive_now(self.liveness.as_fd(), &mut [0]), Ok(None))
    }

    fn sleep(&self, until_ns: u64) -> Result<(), Broken> {
        let fds = [self.channel.as_fd(), self.liveness.as_fd()];
        let [event, liveness] = sys::readable_until(fds, until_ns).map_err(|_| Broken)?;
        if liveness && !self.is_line_alive() {
            return Err(Broken);
        }
        if event {
            self.channel.take_event().map_err(|_| Broken)?;
        }
        Ok(())
    }

    /// Files messages that have come; returns whether there were any completions.
    fn receive(&self, message: &mut Vec<u8>) -> Result<bool, Broken> {
        let mut some = [Completion::default(); POLLED];
        let len = self.cq.poll(&mut some).map_err(|_| Broken)?;
        for completion in &some[..len] {
            message.clear();
            let taken = lock(&self.out).messages.take(completion, message);
            let event = taken.map_err(|error| {
                if matches!(error, MessageError::Peer(_)) {
                    tell_of_rubbish(&error);
                }
                Broken
            })?;
            match event {
                Event::Message => self.file(message).map_err(|error| {
                    tell_of_rubbish(&error);
                    Broken
                })?,
                Event::Credit | Event::Sent => {}
            }
        }
        if len > 0 {
            lock(&self.inbox).wake(CREDIT);
        }
        Ok(len > 0)
    }

    /// Returns credits for which there was no send slot before: no other event tells the receiving
    /// thread that messages of this side have left. Returns whether all credits are returned.
    fn settle(&self) -> Result<bool, Broken> {
        if !lock(&self.out).messages.is_owing() {
            return Ok(true);
        }
        self.pump.look();
        let mut out = lock(&self.out);
        out.messages.settle_sent(self.pump.messages_sent());
        out.messages.return_credits().map_err(|_| Broken)?;
        Ok(!out.messages.is_owing())
    }

    /// Files a message, which must be exactly one frame.
    fn file(&self, message: &[u8]) -> Result<(), NoAnswer> {
        let Ok(Cut::Whole(header)) = codec::cut(message) else { return Err(NoAnswer) };
        let payload = &message[HEADER_LEN..];
        if header.len != payload.len() {
            return Err(NoAnswer);
        }
        lock(&self.inbox).file(header.kind, payload, boot_ns())
    }
}

impl Receiver for Requests {
    fn inbox(&self) -> &Mutex<Inbox> {
        &self.inbox
    }

    #[inline]
    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    fn take_all(&self) -> bool {
        let mut rx = lock(&self.rx);
        let mut take = || {
            self.channel.take_event().map_err(|_| Broken)?;
            self.cq.arm(false).map_err(|_| Broken)?;
            while self.receive(&mut rx)? {}
            self.settle()
        };
        match take() {
            Ok(is_settled) if self.is_line_alive() => return !is_settled,
            Ok(_) | Err(Broken) => self.break_off(),
        }
        false
    }

    fn receive_for_all(&self, until_ns: u64) -> MutexGuard<'_, Inbox> {
        let mut rx = lock(&self.rx);
        let spin_until_ns = deadline_in(self.spin).min(until_ns);
        let mut armed = false;
        loop {
            match self.receive(&mut rx) {
                Ok(true) => break,
                Ok(false) => {}
                Err(Broken) => {
                    self.break_off();
                    break;
                }
            }
            let now_ns = boot_ns();
            if now_ns >= until_ns || self.is_broken() {
                break;
            }
            let Ok(is_settled) = self.settle() else {
                self.break_off();
                break;
            };
            let wake = if is_settled { until_ns } else { until_ns.min(deadline_in(HELP)) };
            if now_ns < spin_until_ns {
                std::thread::yield_now();
            } else if !armed {
                // poll once more before sleeping
                armed = true;
                if self.cq.arm(false).is_err() {
                    self.break_off();
                }
            } else if self.sleep(wake).is_ok() {
                armed = false;
            } else {
                self.break_off();
            }
        }
        lock(&self.inbox)
    }
}

impl Drop for Requests {
    /// Ends the session, even if a forked child has a copy of the descriptor.
    fn drop(&mut self) {
        if self.owner.is_here() {
            self.shut_down();
        }
    }
}
