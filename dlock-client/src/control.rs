// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control connection: one request at a time, each answered within 10 s or not at all.
//!
//! ```text
//!   call ──frame seq n──▶ primary
//!        ◀─ seq < n ──── the late reply to a call that gave up: dropped
//!                        or the reply to a heartbeat of the library: extends the horizon
//!        ◀─ seq n ────── the answer
//!        ◀─ any other ── the connection is broken for good
//!           (no frame at all: the peer is no dlock primary)
//! ```
//! With TLS the handshake comes first, and the TLS session encrypts requests and answers. A forked
//! child has a copy of the connection, and must not use it.
//!
//! A call that times out leaves the connection usable: a late reply is known by its number.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use dlock_core::clock::ServerTime;
use dlock_core::ids::Seq;
use dlock_core::limits::{CONTROL_WAIT_S, FRAME_LEN_MAX};
use dlock_core::session::{was_heard, Heard, ASK_NS_MIN};
use dlock_core::wire::codec::{self, Frame};
use dlock_core::wire::control::{ControlReply, ControlRequest, Told};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::{boot_ns, deadline_in, left_until};
use dlock_fabric::os::fds::is_open;
use dlock_fabric::os::fork::{self, NotInherited};
use dlock_fabric::stream::frames::FrameBuffer;
use dlock_fabric::tls::session::{Socket, TlsSession};
use dlock_fabric::tls::Tls;

use crate::ask::ask;
use crate::driver::heartbeat::Pulse;
use crate::host::{connected, Address, Unreached};
use crate::refused::{is_retry, level_of, reason, refused, sealed};

/// The time for a control call, and for a connect.
pub(crate) const CONTROL_WAIT: Duration = Duration::from_secs(CONTROL_WAIT_S);

/// The least time for a first connect: the system repeats its first packet after 1 s and 3 s.
const ARRIVAL_CONNECT_MIN: Duration = Duration::from_secs(3);

/// Why a call got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallError {
    /// Sending or receiving failed, or took too long.
    Transport,
    /// The answer is no frame: the peer is no dlock primary.
    Foreign,
    /// The answer is no valid frame, or not one for this call.
    Protocol,
}

impl CallError {
    /// The status of the C API for this error in all calls but `client_init` and `client_reinit`.
    pub(crate) fn status(self) -> Status {
        Status::BadResponse
    }

    /// The status of the C API for this error in `client_init` and `client_reinit`.
    pub(crate) fn status_of_init(self) -> Status {
        match self {
            CallError::Transport | CallError::Foreign => Status::Error,
            CallError::Protocol => Status::BadResponse,
        }
    }
}

/// One control connection.
#[derive(Debug)]
pub(crate) struct Control {
    stream: ShutdownHandle,
    /// The TLS session of the connection, if TLS is used.
    tls: Option<Box<TlsSession>>,
    /// The certificates and the key for further connections of this client.
    material: Option<Tls>,
    peer: SocketAddr,
    next: u64,
    /// Bytes received and not yet consumed: at most one frame and the bytes that came with it.
    received: FrameBuffer,
    broken: bool,
    /// The level at which the client logs that the peer is no primary, or refuses this client.
    level: log::Level,
    /// Why the client cannot use this peer.
    pub(crate) why: Option<String>,
    /// The horizon that the answers extend.
    pulse: Option<Arc<Pulse>>,
    /// Unanswered heartbeats of the library: their numbers, and when the client sent them.
    beats: VecDeque<(Seq, u64)>,
    /// The last heartbeat of the library that was answered, and what the answer means.
    pub(crate) heard: Option<(Seq, Heard)>,
    asked: ServerTime, // the time of an operator's demand, as last logged
    // how far the recovery of the primary is, as the primary has told last
    pub(crate) recovery: Told,
}

/// The first bytes that a peer with TLS sends in answer to plain frames: an alert (RFC 8446).
const TLS_ALERT: [u8; 2] = [0x15, 3];
const WANTS_TLS: &str = "it speaks TLS alone: configure TLS, or set DLOCK_TLS_CA, _CERT and _KEY";
/// How many heartbeats of the library may be unanswered; beyond that the library sends none.
const BEATS_OUT_MAX: usize = 8;

/// The connection itself, for threads that end it while another thread's call is under way.
#[derive(Clone, Debug)]
pub(crate) struct ShutdownHandle {
    stream: Arc<NotInherited<TcpStream>>,
    /// The process that has made the connection; a forked child does not use it.
    process: u64,
}

impl ShutdownHandle {
    /// Whether this process has made the connection.
    pub(crate) fn is_here(&self) -> bool {
        self.process == fork::process()
    }

    /// Sends as many bytes as there is room for, and returns their number; 0: there is no room now.
    /// With TLS, a record counts as sent once the session has it.
    fn try_send(&self, tls: Option<&mut TlsSession>, bytes: &[u8]) -> std::io::Result<usize> {
        match tls {
            None => self.at_once(|mut stream| stream.write(bytes)),
            // if the socket takes only a part of the TLS record, `write` counts it as sent; the
            // session sends the rest before the bytes of the next call
            Some(tls) => or_nothing(tls.write(&mut Socket(self.stream.as_fd()), bytes)),
        }
    }

    /// Receives the bytes that have come, and returns their number; 0: none now.
    fn try_receive(
        &self,
        tls: Option<&mut TlsSession>,
        bytes: &mut [u8],
    ) -> std::io::Result<usize> {
        match tls {
            None => self.at_once(|mut stream| match stream.read(bytes) {
                Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
                received => received,
            }),
            Some(tls) => match tls.read(&mut Socket(self.stream.as_fd()), bytes) {
                Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
                received => or_nothing(received),
            },
        }
    }

    fn at_once(
        &self,
        act: impl FnOnce(&TcpStream) -> std::io::Result<usize>,
    ) -> std::io::Result<usize> {
        self.stream.set_nonblocking(true)?;
        let done = act(&self.stream);
        self.stream.set_nonblocking(false)?;
        or_nothing(done)
    }

    /// The socket, for waiting on its events.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether the peer has closed the connection, or the connection is broken.
    pub(crate) fn has_ended(&self) -> bool {
        !is_open(self.stream.as_fd())
    }

    /// A mark by which this connection can be recognized later; the mark does not keep it open.
    pub(crate) fn mark(&self) -> LineMark {
        LineMark(Arc::downgrade(&self.stream))
    }

    /// Whether this mark is one of this connection.
    pub(crate) fn is(&self, mark: &LineMark) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.stream), mark.0.as_ptr())
    }

    /// Ends the call under way, and every later one.
    pub(crate) fn end(&self) {
        if self.is_here() {
            // a connection that has ended already is fine
            let _ = self.stream.shutdown(Shutdown::Both);
        }
    }
}

/// A mark of one connection, which may be closed by now.
#[derive(Clone, Debug)]
pub(crate) struct LineMark(Weak<NotInherited<TcpStream>>);

fn or_nothing(done: std::io::Result<usize>) -> std::io::Result<usize> {
    match done {
        Err(e) if is_retry(e.kind()) => Ok(0),
        done => done,
    }
}

/// How long a client waits for a primary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// The time for each answer.
    pub(crate) wait: Duration,
    /// After this silence the client asks the primary on a separate connection whether it is there.
    /// If that question is not answered either, the wait ends. `None`: the client does not ask.
    pub(crate) silence: Option<Duration>,
    /// The time to connect, and the same time again for the TLS handshake.
    pub(crate) connect: Duration,
    /// When connecting and every answer must be over; `u64::MAX`: each has only its own limit.
    pub(crate) until_ns: u64,
}

impl Patience {
    /// The patience of a program's call.
    pub(crate) const OF_CALL: Self =
        Self { wait: CONTROL_WAIT, silence: None, connect: CONTROL_WAIT, until_ns: u64::MAX };

    /// The patience of a client that joins for the first time. `silence` is set if it knows several
    /// addresses of primaries.
    pub(crate) fn of_arrival(silence: Option<Duration>, until_ns: u64) -> Self {
        let connect = silence
            .map_or(CONTROL_WAIT, |silence| silence.max(ARRIVAL_CONNECT_MIN).min(CONTROL_WAIT));
        Self { silence, connect, until_ns, ..Self::OF_CALL }
    }

    /// When the wait for the answer to a request made now ends.
    pub(crate) fn deadline(&self) -> u64 {
        self.bounded(self.wait)
    }

    /// When a connect, or a handshake, that begins now must be over.
    fn connect_deadline(&self) -> u64 {
        self.bounded(self.connect)
    }

    fn bounded(&self, wait: Duration) -> u64 {
        deadline_in(wait).min(self.until_ns)
    }
}

impl Control {
    /// Connects and, with TLS, does the handshake, each within [`Patience::connect`]. A failure is
    /// logged at this level.
    ///
    /// # Errors
    /// `NotReady` if no process listens at the address, `Error` for every other cause.
    pub(crate) fn connect(
        address: &Address,
        patience: Patience,
        level: log::Level,
        tls: Option<&Tls>,
    ) -> Result<Self, Unreached> {
        let (stream, peer) = connected(address, patience.connect_deadline(), level)?;
        let unreached = |level, what, why| {
            log::log!(level, "no {what} to the primary at {peer}: {why}");
            Unreached { why, ..Status::Error.into() }
        };
        stream
            .set_nodelay(true)
            .map_err(|error| unreached(level, "connection", format!("setsockopt: {error}")))?;
        let material = tls.cloned();
        let until_ns = patience.connect_deadline();
        let tls = tls.map(|tls| sealed(&stream, peer, until_ns, tls).map(Box::new)).transpose();
        let tls = tls.map_err(|error| {
            unreached(level_of(&error, level), "TLS connection", reason(&error))
        })?;
        let stream = ShutdownHandle {
            stream: Arc::new(NotInherited::new(stream)),
            process: fork::process(),
        };
        let (received, beats) = (FrameBuffer::new(), VecDeque::new());
        Ok(Self {
            stream,
            tls,
            material,
            peer,
            next: 1,
            received,
            broken: false,
            level: if level == log::Level::Warn { log::Level::Error } else { level },
            why: None,
            pulse: None,
            beats,
            heard: None,
            asked: ServerTime(0),
            recovery: Told::default(),
        })
    }

    /// Whether the connection is broken: it is not used again.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// A handle that can end the connection.
    pub(crate) fn line(&self) -> ShutdownHandle {
        self.stream.clone()
    }

    /// The address of the primary.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Sends a request, and waits for the answer until `until_ns`.
    pub(crate) fn call(
        &mut self,
        request: ControlRequest,
        until_ns: u64,
    ) -> Result<ControlReply, CallError> {
        self.call_while_there(request, until_ns, None)
    }

    /// As [`call`](Self::call), but stops waiting if the primary is gone: see
    /// [`Patience::silence`].
    pub(crate) fn call_while_there(
        &mut self,
        request: ControlRequest,
        until_ns: u64,
        silence: Option<Duration>,
    ) -> Result<ControlReply, CallError> {
        self.beat_if_due();
        if self.broken || !self.stream.is_here() {
            return Err(CallError::Transport);
        }
        let seq = Seq(self.next);
        self.next += 1;
        let mut bytes = Vec::new();
        codec::encode(&Frame::Control(seq, request), &mut bytes);
        if bytes.len() > FRAME_LEN_MAX {
            return Err(CallError::Protocol);
        }
        let sent_ns = boot_ns();
        let answer =
            self.send(&bytes, until_ns).and_then(|()| self.answer_to(seq, until_ns, silence));
        if let Ok(reply) = &answer {
            self.tell_of_operator(reply);
        }
        match (&answer, &self.pulse) {
            (Ok(reply), Some(pulse)) if was_heard(reply) => pulse.answered(sent_ns),
            (Err(CallError::Foreign), _) => {
                self.broken = true;
                let peer = self.peer;
                log::log!(
                    self.level,
                    "the peer at {peer} is no dlock primary, or one that wants TLS (DLOCK_TLS_CA): \
                     check address and port"
                );
            }
            (Err(CallError::Protocol), _) => self.broken = true,
            _ => {}
        }
        answer
    }

    /// From now on the answers extend the horizon of this pulse.
    pub(crate) fn extends(&mut self, pulse: &Arc<Pulse>) {
        self.pulse = Some(Arc::clone(pulse));
    }

    /// Sends the session's heartbeat if it is due. Each call does so before its own request,
    /// because calls that follow one another leave the driver no turn.
    fn beat_if_due(&mut self) {
        let Some(pulse) = self.pulse.clone() else { return };
        let now_ns = boot_ns();
        if pulse.is_due(now_ns) {
            pulse.sent(now_ns);
            self.beat();
        }
    }

    /// Sends a heartbeat if there is room for it, without waiting for the answer. Returns the
    /// heartbeat's number; `None`: none was sent.
    pub(crate) fn beat(&mut self) -> Option<Seq> {
        if self.broken || !self.stream.is_here() || self.beats.len() >= BEATS_OUT_MAX {
            return None;
        }
        let seq = Seq(self.next);
        let mut bytes = Vec::new();
        codec::encode(&Frame::Control(seq, ControlRequest::Heartbeat), &mut bytes);
        let sent_ns = boot_ns();
        match self.stream.try_send(self.tls.as_deref_mut(), &bytes) {
            Ok(sent) if sent == bytes.len() => {
                self.next += 1;
                self.beats.push_back((seq, sent_ns));
                return Some(seq);
            }
            Ok(0) => {}
            // a frame that is sent in part breaks the connection
            Ok(_) | Err(_) => self.broken = true,
        }
        None
    }

    /// Reads the answers that have come, without waiting: those to heartbeats extend the horizon.
    pub(crate) fn take_beats(&mut self) {
        if self.broken || self.beats.is_empty() || !self.stream.is_here() {
            return;
        }
        match self.stream.try_receive(self.tls.as_deref_mut(), self.received.space()) {
            Ok(received) => self.received.filled(received),
            Err(_) => self.broken = true,
        }
        if let Some(tls) = self.tls.as_deref_mut().filter(|tls| tls.has_backlog()) {
            let flushed = tls.flush(&mut Socket(self.stream.stream.as_fd()));
            self.broken |= or_nothing(flushed.map(|()| 0)).is_err();
        }
        loop {
            match self.next_reply() {
                Ok(Some((seq, reply))) => self.late(seq, &reply),
                Ok(None) => return,
                Err(_) => return self.broken = true,
            }
        }
    }

    /// Handles an answer that no call waits for. The answer to a heartbeat of the library extends
    /// the horizon.
    fn late(&mut self, seq: Seq, reply: &ControlReply) {
        while let Some(&(beat, sent_ns)) = self.beats.front() {
            if beat.0 > seq.0 {
                return;
            }
            self.beats.pop_front();
            if beat != seq {
                continue;
            }
            self.heard = Some((seq, Heard::of(reply)));
            self.tell_of_operator(reply);
            if let (ControlReply::Alive { .. }, Some(pulse)) = (reply, &self.pulse) {
                pulse.answered(sent_ns);
            }
        }
    }

    /// Records how far the recovery of the primary is. Logs once that an operator wants something
    /// back.
    fn tell_of_operator(&mut self, reply: &ControlReply) {
        let ControlReply::Alive { now, asked, recovery, .. } = *reply else { return };
        self.recovery = recovery;
        if std::mem::replace(&mut self.asked, asked) != asked && asked > now {
            log::warn!(
                "an operator wants back what this client holds: it is removed in {} s unless it \
                 has released that or left; the primary's log says which lock, and who wants it",
                (asked.0 - now.0) / dlock_core::clock::NS
            );
        }
    }

    fn send(&mut self, mut bytes: &[u8], until_ns: u64) -> Result<(), CallError> {
        let whole = bytes.len();
        if let Some(tls) = &mut self.tls {
            time_left(until_ns)?;
            let sent = tls.write_until(self.stream.stream.as_fd(), bytes, until_ns);
            return match sent {
                Ok(()) => Ok(()),
                Err((0, error)) if error.kind() == ErrorKind::TimedOut => Err(CallError::Transport),
                Err((_, error)) => Err(self.lost_by("TLS", &error)),
            };
        }
        while !bytes.is_empty() {
            let left = match time_left(until_ns) {
                Ok(left) => left,
                Err(e) if bytes.len() == whole => return Err(e), // the frame was not begun
                Err(e) => return Err(self.broken_by(e)),
            };
            let mut stream = &**self.stream.stream;
            if let Err(error) = stream.set_write_timeout(Some(left)) {
                // a frame that is sent in part cannot be taken back
                self.broken |= bytes.len() < whole;
                return Err(refused(self.peer, "setsockopt", &error));
            }
            match stream.write(bytes) {
                Ok(0) => return Err(self.broken_by(CallError::Transport)),
                Ok(n) => bytes = &bytes[n..],
                Err(e) if is_retry(e.kind()) => {}
                Err(e) => return Err(self.broken_by(refused(self.peer, "sendto", &e))),
            }
        }
        Ok(())
    }

    /// The error of a call whose connection has ended, or whose peer does not use TLS. A primary
    /// that refuses this client says so in its first answer.
    fn lost_by(&mut self, call: &str, error: &std::io::Error) -> CallError {
        if error.kind() == ErrorKind::InvalidData {
            return self.shown(reason(error));
        }
        self.broken_by(refused(self.peer, call, error))
    }

    /// Logs and keeps why the peer cannot be used; the connection is broken from now on.
    fn shown(&mut self, why: String) -> CallError {
        log::log!(self.level, "no session with the primary at {}: {why}", self.peer);
        self.why = Some(why);
        self.broken_by(CallError::Transport)
    }

    /// Why a call got no answer, in a few words.
    pub(crate) fn why(&self, error: CallError) -> String {
        self.why.clone().unwrap_or_else(|| error.status_of_init().to_string())
    }

    /// Marks the connection as broken, because it has ended or a frame is sent in part.
    fn broken_by(&mut self, error: CallError) -> CallError {
        self.broken = true;
        error
    }

    fn answer_to(
        &mut self,
        seq: Seq,
        until_ns: u64,
        silence: Option<Duration>,
    ) -> Result<ControlReply, CallError> {
        let look_again = || silence.map_or(until_ns, deadline_in);
        let mut look = look_again();
        loop {
            while let Some((number, reply)) = self.next_reply()? {
                if number == seq {
                    return Ok(reply);
                }
                if number.0 > seq.0 {
                    return Err(CallError::Protocol);
                }
                self.late(number, &reply);
            }
            match (self.receive(look.min(until_ns)), silence) {
                (Ok(()), _) => {}
                (Err(_), Some(silence)) if !self.broken && look < until_ns => {
                    let wait = silence.max(Duration::from_nanos(ASK_NS_MIN));
                    if ask(&self.peer.into(), wait, self.material.as_ref()).is_err() {
                        return Err(CallError::Transport);
                    }
                    look = look_again();
                }
                (Err(error), _) => return Err(error),
            }
        }
    }

    /// The next whole reply in the buffer.
    fn next_reply(&mut self) -> Result<Option<(Seq, ControlReply)>, CallError> {
        let next = self.received.next().map_err(|_| CallError::Foreign)?;
        let Some((kind, payload)) = next else { return Ok(None) };
        match codec::decode(kind, payload) {
            Ok(Frame::ControlReply(seq, reply)) => Ok(Some((seq, reply))),
            Ok(_) | Err(_) => Err(CallError::Protocol),
        }
    }

    fn receive(&mut self, until_ns: u64) -> Result<(), CallError> {
        let left = time_left(until_ns)?;
        if let Some(tls) = &mut self.tls {
            let (socket, into) = (self.stream.stream.as_fd(), self.received.space());
            return match tls.read_until(socket, into, until_ns) {
                Ok(0) => Err(self.broken_by(CallError::Transport)),
                Ok(received) => {
                    self.received.filled(received);
                    Ok(())
                }
                // the caller's deadline decides whether the wait goes on
                Err(error) if error.kind() == ErrorKind::TimedOut => Ok(()),
                Err(error) => Err(self.lost_by("TLS", &error)),
            };
        }
        let mut stream = &**self.stream.stream;
        if let Err(error) = stream.set_read_timeout(Some(left)) {
            return Err(refused(self.peer, "setsockopt", &error));
        }
        match stream.read(self.received.space()) {
            Ok(0) => {
                if self.received.starts_with(&TLS_ALERT) {
                    return Err(self.shown(WANTS_TLS.into()));
                }
                Err(self.broken_by(CallError::Transport))
            }
            Ok(received) => {
                self.received.filled(received);
                Ok(())
            }
            Err(e) if is_retry(e.kind()) => Ok(()),
            Err(e) => Err(self.broken_by(refused(self.peer, "recvfrom", &e))),
        }
    }
}

fn time_left(until_ns: u64) -> Result<Duration, CallError> {
    let left = left_until(until_ns);
    if left.is_zero() {
        return Err(CallError::Transport);
    }
    Ok(left.max(Duration::from_micros(1_000)))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use dlock_core::wire::codec::HEADER_LEN;

    use super::*;

    fn connect(addr: SocketAddr) -> Result<Control, Unreached> {
        Control::connect(&addr.into(), Patience::OF_CALL, log::Level::Warn, None)
    }

    #[test]
    fn a_client_that_comes_gives_a_primary_time_to_connect_within_its_own() {
        let (now_ns, second) = (boot_ns(), Duration::from_secs(1));
        let of = |silence, until_ns| {
            let end_ns = Patience::of_arrival(silence, until_ns).connect_deadline();
            Duration::from_nanos(end_ns - now_ns)
        };
        for silence in [second / 10, second] {
            assert!((3 * second..8 * second).contains(&of(Some(silence), u64::MAX)));
            assert_eq!(of(Some(silence), now_ns + 2 * NS), 2 * second);
        }
        assert!(of(Some(8 * second), u64::MAX) >= 8 * second);
        assert!(of(Some(60 * second), u64::MAX) < 60 * second);
        assert!(of(None, u64::MAX) >= CONTROL_WAIT);
    }

    fn reply(seq: u64, reply: ControlReply) -> Vec<u8> {
        let mut out = Vec::new();
        codec::encode(&Frame::ControlReply(Seq(seq), reply), &mut out);
        out
    }

    /// A primary that answers each frame it reads with the next bytes of a script.
    fn scripted(script: Vec<Vec<u8>>) -> (SocketAddr, thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for bytes in script {
                let mut head = [0; HEADER_LEN];
                stream.read_exact(&mut head).unwrap();
                let mut payload = vec![0; codec::header(&head).unwrap().len];
                stream.read_exact(&mut payload).unwrap();
                stream.write_all(&bytes).unwrap();
            }
        });
        (addr, server)
    }

    fn soon() -> u64 {
        deadline_in(Duration::from_secs(10))
    }

    #[test]
    fn a_late_reply_is_dropped_and_does_not_poison_the_next_call() {
        let late = reply(1, ControlReply::Error(Status::Fail));
        let (cut, rest) = late.split_at(5);
        let answer = [rest, &reply(2, ControlReply::Done)].concat();
        let (addr, server) = scripted(vec![cut.to_vec(), answer]);
        let mut control = connect(addr).unwrap();
        let short = deadline_in(Duration::from_secs(1)); // time enough for the request to be sent
        assert_eq!(control.call(ControlRequest::Heartbeat, short), Err(CallError::Transport));
        assert_eq!(control.call(ControlRequest::Deinit, soon()), Ok(ControlReply::Done));
        server.join().unwrap();
    }

    const NS: u64 = 1_000_000_000;

    #[test]
    fn a_refusal_extends_the_horizon_unless_the_primary_may_not_know_the_client() {
        for (status, extends) in [(Status::ObjectNotCreate, true), (Status::Error, false)] {
            let (addr, server) = scripted(vec![reply(1, ControlReply::Error(status))]);
            let mut control = connect(addr).unwrap();
            let pulse = Arc::new(Pulse::new(400 * NS, boot_ns()));
            let before = pulse.horizon_ns();
            control.extends(&pulse);
            let answer = control.call(ControlRequest::ReinitDone, soon());
            assert_eq!(answer, Ok(ControlReply::Error(status)));
            assert_eq!(pulse.horizon_ns() > before, extends, "{status}");
            server.join().unwrap();
        }
    }

    #[test]
    fn a_call_sends_the_heartbeat_that_is_due_before_its_own_request() {
        let (now, asked, recovery) = (ServerTime(1), ServerTime(0), Told::default());
        let alive =
            reply(1, ControlReply::Alive { now, recovering: false, until: now, asked, recovery });
        let refused = ControlReply::Error(Status::Error); // an error as answer extends no horizon
        let (addr, server) = scripted(vec![alive, reply(2, refused.clone())]);
        let mut control = connect(addr).unwrap();
        let pulse = Arc::new(Pulse::new(4 * NS, boot_ns().saturating_sub(2 * NS)));
        let before = pulse.horizon_ns();
        control.extends(&pulse);
        assert!(pulse.is_due(boot_ns()));
        assert_eq!(control.call(ControlRequest::ReinitDone, soon()), Ok(refused));
        assert!(pulse.horizon_ns() > before && !pulse.is_due(boot_ns()));
        server.join().unwrap();
    }

    #[test]
    fn a_forked_child_does_not_speak_on_its_parents_connection() {
        let (addr, server) = scripted(vec![reply(1, ControlReply::Done)]);
        let mut control = connect(addr).unwrap();
        control.stream.process ^= 1; // as if this were a forked child
        assert_eq!(control.call(ControlRequest::Deinit, soon()), Err(CallError::Transport));
        control.line().end();
        control.stream.process ^= 1;
        assert_eq!(control.call(ControlRequest::Heartbeat, soon()), Ok(ControlReply::Done));
        server.join().unwrap();
    }

    #[test]
    fn a_call_without_any_time_left_leaves_the_connection_usable() {
        let (addr, server) = scripted(vec![reply(2, ControlReply::Done)]);
        let mut control = connect(addr).unwrap();
        assert_eq!(control.call(ControlRequest::Heartbeat, boot_ns()), Err(CallError::Transport));
        assert_eq!(control.call(ControlRequest::Deinit, soon()), Ok(ControlReply::Done));
        server.join().unwrap();
    }

    #[test]
    fn an_answer_to_a_question_not_asked_breaks_the_connection() {
        let (addr, server) = scripted(vec![reply(9, ControlReply::Done)]);
        let mut control = connect(addr).unwrap();
        assert_eq!(control.call(ControlRequest::Deinit, soon()), Err(CallError::Protocol));
        assert_eq!(control.call(ControlRequest::Deinit, soon()), Err(CallError::Transport));
        server.join().unwrap();
    }

    #[test]
    fn garbage_is_a_foreign_peer_and_a_closed_connection_a_transport_error() {
        let (addr, server) = scripted(vec![vec![0xee; 64]]);
        let mut control = connect(addr).unwrap();
        assert_eq!(control.call(ControlRequest::Deinit, soon()), Err(CallError::Foreign));
        assert_eq!(control.call(ControlRequest::Deinit, soon()), Err(CallError::Transport));
        assert_eq!(CallError::Foreign.status_of_init(), Status::Error);
        assert_eq!(CallError::Foreign.status(), Status::BadResponse);
        server.join().unwrap();

        let (addr, server) = scripted(vec![Vec::new()]);
        let mut control = connect(addr).unwrap();
        assert_eq!(control.call(ControlRequest::Deinit, soon()), Err(CallError::Transport));
        assert_eq!(CallError::Transport.status_of_init(), Status::Error);
        server.join().unwrap();
    }

    #[test]
    fn nobody_listening_is_not_ready() {
        // on an address of this process alone, where no other process takes the port
        let [_, a, b, c] = std::process::id().to_be_bytes();
        let own = std::net::Ipv4Addr::new(127, a | 0x80, b, c);
        let addr = TcpListener::bind((own, 0)).unwrap().local_addr().unwrap();
        assert_eq!(connect(addr).unwrap_err().status, Status::NotReady);
    }

    #[test]
    fn why_no_primary_answers_is_told() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let (foreign, answers) = scripted(vec![vec![0xee; 64]]);
        let (closed, closes) = scripted(vec![Vec::new()]);
        let [_, a, b, c] = std::process::id().to_be_bytes();
        let own = std::net::Ipv4Addr::new(127, a | 0x80, b, c);
        let refused = TcpListener::bind((own, 0)).unwrap().local_addr().unwrap();
        let (soon, long) = (Duration::from_millis(300), Duration::from_secs(30));
        for (peer, wait, told) in [
            (silent.local_addr().unwrap().to_string(), soon, "stopped or busy"),
            (foreign.to_string(), long, "no dlock primary"),
            (closed.to_string(), long, "has closed"),
            (refused.to_string(), long, "refused"),
            ("no.such.invalid".to_string(), long, "host 'no.such.invalid'"),
        ] {
            let why = ask(&peer.parse().unwrap(), wait, None).unwrap_err();
            assert!(why.contains(told), "{peer}: {why}");
        }
        answers.join().unwrap();
        closes.join().unwrap();
    }
}
