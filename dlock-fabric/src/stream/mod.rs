// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client's end of a command channel, for all threads of one client instance.
//!
//! ```text
//!   threads ──request/post/write_ledger──▶ Out (frames in the order of their numbers) ──▶ socket
//!   threads ◀─wait(seq)── Inbox: answers by number ◀── the leader ◀────────────── socket
//! ```
//! *Sending.* A frame is appended to `Out` under its lock and sent as far as the socket takes it,
//! so that frames never interleave. The next thread sends the rest. No thread holds the lock while
//! it sleeps.
//!
//! *Receiving.* One of the waiting threads, the leader, reads for all; see `Inbox`.
//!
//! *Breaking.* When the peer closes, or sends an invalid frame, the stream is broken for good: all
//! waiting threads return at once, and an invalid frame is logged. A peer that does not read breaks
//! nothing; calls end at their deadlines.
//!
//! *Sealed.* Both directions share one `Carrier`: a thread that reads may have to write (answer a
//! key update of TLS, return credit), and the other way round. It has a mutex of its own, for
//! single steps that never wait. Bytes that it has sealed and the socket has not taken count as
//! backlog.
//!
//! *Over queue pairs* the leader sleeps for completions, and sends waiting bytes when credit comes;
//! a sender without credit polls. The socket only shows whether the peer has ended.
//!
//! Lock order: `rx` (held by the leader alone), `out`, `carrier`, `inbox`. Only `rx` is held by a
//! sleeping thread.

pub(crate) mod carrier;
pub mod frames;
pub mod handshake;
pub(crate) mod inbox;

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dlock_core::ids::Seq;
use dlock_core::limits::FRAME_LEN_MAX;
use dlock_core::memory::exec::{Listening, OnAnswer};
use dlock_core::wire::status::Status;
use rustix::event::PollFlags;
use rustix::net::{shutdown, Shutdown};

use crate::os::clock::{boot_ns, deadline_in, left_until};
use crate::os::fork::{NotInherited, Owner};
use crate::os::net::is_end;
use crate::os::sys::{self, poll_until, receive_now, send_now, SPIN};
use crate::stream::carrier::Carrier;
use crate::stream::frames::FrameBuffer;
use crate::stream::inbox::{lock, Answer, Broken, Expected, Inbox, Receiver};
use crate::tls::session::TlsSession;
use crate::verbs::{Channel, SealedEnd};

/// Bytes that may wait to be sent; beyond them callers wait for room.
const OUT_MAX: usize = 4 * FRAME_LEN_MAX;
/// How long a frame may take to reach the socket before its sender goes on.
const LINGER: Duration = Duration::from_secs(1);
/// How long to poll for a completion before sleeping: a round trip of a software device, and many
/// of a real one.
const SPIN_DEVICE: Duration = Duration::from_micros(200);
/// Pause between two checks for credit of a queue pair.
const CREDIT_PAUSE: Duration = Duration::from_micros(200);

/// The reason why no byte of a frame was sent, or will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotSent {
    /// The stream is broken, so nothing can be sent any more.
    Broken,
    /// The peer has not made room in time, or too many answers are outstanding.
    Full,
}

#[derive(Debug)]
pub(crate) struct Stream {
    fd: NotInherited<OwnedFd>,
    /// The carrier that seals the bytes; `None`: they are not sealed.
    carrier: Option<Mutex<Carrier>>,
    /// The completion channel on which the leader sleeps; `None`: it sleeps on the socket.
    channel: Option<Arc<Channel>>,
    owner: Owner,
    broken: AtomicBool,
    /// Whether bytes wait in `out`: a sleeping thread should wait for room, too.
    backlog: AtomicBool,
    out: Mutex<Out>,
    rx: Mutex<FrameBuffer>,
    inbox: Mutex<Inbox>,
}

#[derive(Debug, Default)]
struct Out {
    bytes: Vec<u8>,
    /// How many bytes at the front were sent already.
    sent: usize,
    /// All bytes appended so far, and all bytes sent.
    appended_total: u64,
    sent_total: u64,
    last_seq: u64,
    /// Whether some of the sent bytes are sealed but not at the socket.
    is_held: bool,
}

impl Stream {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self::carried(fd, None, None)
    }

    /// A stream over a TLS connection whose handshake is finished.
    pub(crate) fn sealed(fd: OwnedFd, tls: TlsSession) -> Self {
        Self::carried(fd, Some(Carrier::Tls(Box::new(tls))), None)
    }

    /// A stream over queue pairs, beside this liveness connection.
    pub(crate) fn over_verbs(fd: OwnedFd, end: SealedEnd) -> Self {
        let channel = Arc::clone(end.channel());
        Self::carried(fd, Some(Carrier::Verbs(Box::new(end))), Some(channel))
    }

    fn carried(fd: OwnedFd, carrier: Option<Carrier>, channel: Option<Arc<Channel>>) -> Self {
        Self {
            fd: NotInherited::new(fd),
            carrier: carrier.map(Mutex::new),
            channel,
            owner: Owner::current(),
            broken: AtomicBool::new(false),
            backlog: AtomicBool::new(false),
            out: Mutex::default(),
            rx: Mutex::new(FrameBuffer::new()),
            inbox: Mutex::default(),
        }
    }

    /// Whether the stream is known to be broken.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Sends a frame made by `encode`, and registers the answer that it will get. `Ok`: the frame
    /// is on its way, but possibly not yet at the socket when the deadline comes.
    pub(crate) fn send(
        &self,
        expected: Expected,
        until_ns: u64,
        encode: impl FnOnce(Seq, &mut Vec<u8>),
    ) -> Result<Seq, NotSent> {
        let mut out = self.room(until_ns)?;
        let seq = Seq(out.last_seq + 1);
        self.expect(seq, expected)?;
        out.last_seq = seq.0;
        let linger = until_ns.min(deadline_in(LINGER));
        self.append(out, linger, |bytes| encode(seq, bytes));
        Ok(seq)
    }

    /// Sends a frame that has no number and no answer.
    pub(crate) fn send_plain(&self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<(), NotSent> {
        let until_ns = deadline_in(LINGER);
        let out = self.room(until_ns)?;
        self.append(out, until_ns, encode);
        Ok(())
    }

    /// Waits for the answer to `seq`, as [`Receiver::await_answer`].
    pub(crate) fn wait(&self, seq: Seq, until_ns: u64) -> Result<Option<Answer>, Broken> {
        match self.owner.is_here() {
            true => self.await_answer(seq, until_ns),
            false => Err(Broken),
        }
    }

    /// Listens to answers that no thread waits for, as [`Receiver::listen_now`].
    pub(crate) fn listen(&self, call: Option<&OnAnswer>) -> Result<Listening, Status> {
        match self.owner.is_here() {
            true => self.listen_now(call).map_err(|Broken| Status::BadResponse),
            false => Err(Status::BadResponse),
        }
    }

    /// The descriptors that report more input, as
    /// [`Executor::inputs`](dlock_core::memory::exec::Executor::inputs).
    pub(crate) fn inputs(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [Some(self.fd.as_fd()), self.channel.as_ref().map(|channel| channel.as_fd())]
    }

    /// Whether a frame that is sent now need not wait for earlier ones.
    pub(crate) fn has_room(&self) -> bool {
        self.is_broken() || !self.has_backlog()
    }

    /// Drops the answer to `seq`, also when it comes later.
    pub(crate) fn forget(&self, seq: Seq) {
        if self.owner.is_here() {
            lock(&self.inbox).forget(seq);
        }
    }

    /// Breaks the stream; all waiting threads return.
    pub(crate) fn end(&self) {
        if self.owner.is_here() {
            self.break_off();
        }
    }

    /// Checks, without waiting, whether the peer has closed; returns whether the stream still
    /// works.
    pub(crate) fn probe(&self) -> bool {
        if !self.owner.is_here() {
            return false;
        }
        let inbox = lock(&self.inbox);
        if !inbox.led && !self.is_broken() {
            self.lead(inbox, 0).pass_on(true);
        } else {
            drop(inbox);
        }
        if self.channel.is_some() && !self.is_broken() && !self.is_line_alive() {
            self.break_off();
        }
        !self.is_broken()
    }

    /// `Out`, locked, with room for one more frame.
    fn room(&self, until_ns: u64) -> Result<MutexGuard<'_, Out>, NotSent> {
        if !self.owner.is_here() {
            return Err(NotSent::Broken);
        }
        loop {
            let mut out = lock(&self.out);
            if !self.is_broken() && out.waiting().len() >= OUT_MAX {
                self.flush(&mut out);
            }
            if self.is_broken() {
                return Err(NotSent::Broken);
            }
            if out.waiting().len() < OUT_MAX {
                return Ok(out);
            }
            drop(out);
            if boot_ns() >= until_ns {
                return Err(NotSent::Full);
            }
            self.sleep_until_writable(until_ns);
        }
    }

    fn expect(&self, seq: Seq, expected: Expected) -> Result<(), NotSent> {
        lock(&self.inbox).expect(seq, expected).map_err(|_| NotSent::Full)
    }

    /// Appends a frame, and sends until the frame is at the socket or the deadline has come.
    fn append<'a>(
        &'a self,
        mut out: MutexGuard<'a, Out>,
        until_ns: u64,
        encode: impl FnOnce(&mut Vec<u8>),
    ) {
        let before = out.bytes.len();
        encode(&mut out.bytes);
        out.appended_total += (out.bytes.len() - before) as u64;
        let goal = out.appended_total;
        loop {
            self.flush(&mut out);
            let is_sent = out.sent_total >= goal && !out.is_held;
            if is_sent || self.is_broken() || boot_ns() >= until_ns {
                return;
            }
            drop(out);
            self.sleep_until_writable(until_ns);
            out = lock(&self.out);
        }
    }

    /// Sends as much as the socket takes.
    fn flush(&self, out: &mut Out) {
        let mut carrier = self.carrier.as_ref().map(lock);
        let mut lost = None;
        loop {
            let sent = match (&mut carrier, out.waiting()) {
                (None, []) => break,
                (None, waiting) => send_now(self.fd.as_fd(), waiting),
                (Some(carrier), []) => match or_not_now(carrier.flush(self.fd.as_fd())) {
                    Ok(_) => break,
                    Err(error) => Err(error),
                },
                (Some(carrier), waiting) => or_not_now(carrier.write(self.fd.as_fd(), waiting)),
            };
            match sent {
                Ok(Some(len)) => {
                    out.sent += len;
                    out.sent_total += len as u64;
                }
                Ok(None) => break,
                Err(error) => {
                    lost = Some(error);
                    break;
                }
            }
        }
        out.is_held = carrier.as_ref().is_some_and(|carrier| carrier.has_backlog());
        if out.waiting().is_empty() {
            out.bytes.clear();
            out.sent = 0;
        } else if out.sent >= OUT_MAX {
            out.bytes.drain(..out.sent);
            out.sent = 0;
        }
        // Before `carrier` is unlocked: a reader that finds bytes to send sets this afterwards.
        self.backlog.store(!out.bytes.is_empty() || out.is_held, Ordering::Release);
        drop(carrier);
        if let Some(error) = lost {
            self.lost(&error);
        }
    }

    /// Receives bytes that are there; `None`: nothing yet.
    fn receive_now(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let Some(carrier) = &self.carrier else { return receive_now(self.fd.as_fd(), into) };
        let mut carrier = lock(carrier);
        let received = loop {
            match carrier.read(self.fd.as_fd(), into) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                received => break or_not_now(received),
            }
        };
        if carrier.has_backlog() {
            self.backlog.store(true, Ordering::Release);
        }
        received
    }

    fn has_backlog(&self) -> bool {
        self.backlog.load(Ordering::Acquire)
    }

    fn sleep_until_writable(&self, until_ns: u64) {
        if self.channel.is_some() {
            std::thread::sleep(left_until(until_ns).min(CREDIT_PAUSE));
        } else if let Err(error) = poll_until(self.fd.as_fd(), PollFlags::OUT, until_ns) {
            self.lost(&error);
        }
    }

    /// As [`sys::receive_until`], and sends waiting bytes while it sleeps.
    fn receive(&self, into: &mut [u8], until_ns: u64) -> io::Result<Option<usize>> {
        let spin = if self.channel.is_some() { SPIN_DEVICE } else { SPIN };
        let spin_until_ns = deadline_in(spin).min(until_ns);
        loop {
            if let Some(len) = self.receive_now(into)? {
                return Ok(Some(len));
            }
            if self.channel.is_some() && self.has_backlog() {
                // the completion may have brought credit, so waiting bytes can be sent
                self.flush(&mut lock(&self.out));
            }
            let now_ns = boot_ns();
            if now_ns >= until_ns || self.is_broken() {
                return Ok(None);
            }
            if now_ns < spin_until_ns {
                std::thread::yield_now();
                continue;
            }
            if let Some(channel) = &self.channel {
                self.sleep_for_completion(channel, until_ns)?;
                continue;
            }
            let mut events = PollFlags::IN;
            if self.has_backlog() {
                events |= PollFlags::OUT;
            }
            if poll_until(self.fd.as_fd(), events, until_ns)?.contains(PollFlags::OUT) {
                self.flush(&mut lock(&self.out));
            }
        }
    }

    /// A step of the queue pair; `false` if the stream has none.
    fn of_verbs(&self, step: fn(&mut SealedEnd) -> io::Result<bool>) -> io::Result<bool> {
        match self.carrier.as_ref().map(lock).as_deref_mut() {
            Some(Carrier::Verbs(end)) => step(end),
            Some(Carrier::Tls(_)) | None => Ok(false),
        }
    }

    /// Sleeps on a channel once its next completion makes an event; for the leader alone.
    fn sleep_for_completion(&self, channel: &Channel, until_ns: u64) -> io::Result<()> {
        if self.of_verbs(SealedEnd::arm)? {
            return Ok(()); // a completion may have come before the queue was armed: poll again
        }
        let fds = [channel.as_fd(), self.fd.as_fd()];
        let [event, liveness] = sys::readable_until(fds, until_ns)?;
        if liveness && !self.is_line_alive() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if event {
            self.of_verbs(SealedEnd::take_event)?;
        }
        Ok(())
    }

    /// Whether the liveness connection is open, without unread bytes: the primary sends none on it.
    fn is_line_alive(&self) -> bool {
        matches!(receive_now(self.fd.as_fd(), &mut [0]), Ok(None))
    }

    /// Breaks the stream: wakes all threads, and shuts the socket down.
    fn break_off(&self) {
        self.broken.store(true, Ordering::Release);
        self.shut_down();
        lock(&self.inbox).wake_all();
    }

    /// Breaks the stream because of this error.
    fn lost(&self, error: &io::Error) {
        match error.kind() {
            _ if self.is_broken() => {}
            ErrorKind::InvalidData => tell_of_rubbish(error),
            kind if is_end(kind) => {}
            _ => log::error!("a command channel is given up: {error}"),
        }
        self.break_off();
    }

    fn shut_down(&self) {
        let _ = shutdown(self.fd.as_fd(), Shutdown::Both);
    }
}

impl Receiver for Stream {
    fn inbox(&self) -> &Mutex<Inbox> {
        &self.inbox
    }

    fn is_broken(&self) -> bool {
        Stream::is_broken(self)
    }

    /// The leader may have been asleep since before there was a backlog.
    fn needs_help(&self) -> bool {
        self.has_backlog()
    }

    fn help(&self, until_ns: u64) {
        self.sleep_until_writable(until_ns);
        self.flush(&mut lock(&self.out));
    }

    fn take_all(&self) -> bool {
        let mut rx = lock(&self.rx);
        if self.has_backlog() {
            self.flush(&mut lock(&self.out));
        }
        while !self.is_broken() {
            let received = self.receive_now(rx.space());
            let is_all = matches!(received, Ok(None));
            drop(self.file(&mut rx, received));
            if is_all && self.is_armed() {
                break;
            }
        }
        self.has_backlog()
    }

    fn receive_for_all(&self, until_ns: u64) -> MutexGuard<'_, Inbox> {
        let mut rx = lock(&self.rx);
        if self.has_backlog() {
            self.flush(&mut lock(&self.out));
        }
        let received = self.receive(rx.space(), until_ns);
        self.file(&mut rx, received)
    }
}

impl Stream {
    /// Whether the descriptors will report the next input; if not, it may have come already.
    fn is_armed(&self) -> bool {
        if self.channel.is_none() {
            return true;
        }
        let has_event = self.of_verbs(SealedEnd::take_event);
        match has_event.and_then(|has_event| Ok(has_event | self.of_verbs(SealedEnd::arm)?)) {
            Ok(is_to_look) if self.is_line_alive() => return !is_to_look,
            Ok(_) => self.break_off(),
            Err(error) => self.lost(&error),
        }
        false
    }

    /// Files received bytes.
    fn file(
        &self,
        rx: &mut FrameBuffer,
        received: io::Result<Option<usize>>,
    ) -> MutexGuard<'_, Inbox> {
        match received {
            Ok(None) => lock(&self.inbox),
            Ok(Some(len)) if len > 0 => {
                rx.filled(len);
                let mut inbox = lock(&self.inbox);
                if let Err(error) = inbox.deliver(rx) {
                    drop(inbox);
                    tell_of_rubbish(&error);
                    self.break_off();
                    inbox = lock(&self.inbox);
                }
                inbox
            }
            Ok(_) => {
                self.break_off();
                lock(&self.inbox)
            }
            Err(error) => {
                self.lost(&error);
                lock(&self.inbox)
            }
        }
    }
}

impl Drop for Stream {
    /// Closes the connection even if a forked child has a copy of the descriptor. The child's copy
    /// is dropped without a shutdown.
    fn drop(&mut self) {
        if self.owner.is_here() {
            self.shut_down();
        }
    }
}

/// Logs that a command channel has carried bytes that no primary sends: they were changed on their
/// way, or the peer is not a primary.
pub(crate) fn tell_of_rubbish(what: &dyn Display) {
    log::error!(
        "a command channel is given up: {what}; the primary does not send that: look for who is in \
         between, and whether both are of one version"
    );
}

/// Returns `None` for an operation that is not possible without waiting.
fn or_not_now<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

impl Out {
    fn waiting(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }
}
