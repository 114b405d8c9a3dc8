// SPDX-License-Identifier: MIT OR Apache-2.0
//! One connection from its first frame to its end.
//!
//! ```text
//!   (handshake, if the primary has TLS: `secure.rs`)
//!   first frame   Init | Reinit ─▶ bound to the client: requests and replies until either ends
//!                 Heartbeat     ─▶ whether this primary serves, and the end
//!                 Attach        ─▶ its transport ─▶ Guest ─▶ handed to the command thread
//!                 anything else ─▶ an error reply, and the end
//! ```
//! A connection speaks for the one client it was bound to; no later frame names another. The first
//! request after `Reinit` shows that the client has its answer, and ends the session that the
//! client had before (`dlock_core::membership`). It has no effect if the client has closed the
//! connection by then, as it may while this process stands still. Its answer waits for a device
//! that is out, too.
//!
//! While the command thread waits for an RDMA device that does not work, requests are refused here
//! with `NotReady` and have no effect. A request that the command thread has begun is answered when
//! the device works again, or the connection ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::budget::rate::{Pace, Rate};
use dlock_core::clock::ServerTime;
use dlock_core::counters::Counter;
use dlock_core::ids::{ClientId, Seq};
use dlock_core::limits::{CONTROL_WAIT_S, SLOTS_MAX};
use dlock_core::membership::{gives_lock, Gone};
use dlock_core::wire::codec::Frame;
use dlock_core::wire::control::{Attach, ControlReply, ControlRequest, Told};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::boot_ns;
use dlock_fabric::os::fds::is_open;
use dlock_fabric::tls::Tls;
use log::Level;
use tokio::net::TcpStream;
use tokio::time::{timeout, timeout_at};

use super::table::ConnectionPermit;
use super::wire::{self, Reader, WireError, FIRST_LEN_MAX, LEN_MAX};
use super::{secure, Service};
use crate::command::mailbox::{Event, Mailbox};
use crate::coordinator::Receipts;
use crate::host::clock::ServerClock;
use crate::observe::log_limit::{limited, Cause};
use crate::transport::{Conn, Guest, Transport};

/// Requests of one client on its control connection; further ones wait.
const CONTROL_FRAMES_MAX: Rate = Rate { per_second: 5_000, burst: 10_000 };
/// Requests for locks and objects have a rate of their own: a client may get as many as a primary
/// can have, one by one and without a pause.
const GETS_MAX: Rate = Rate { per_second: 5_000, burst: SLOTS_MAX as u32 };
/// Time from the connection to the end of its first frame.
const FIRST_WAIT: Duration = Duration::from_secs(CONTROL_WAIT_S);

/// Serves a connection of the port: a control connection, or a command channel of one of these
/// transports.
pub(super) async fn serve(
    stream: TcpStream,
    from: SocketAddr,
    permit: ConnectionPermit,
    service: Service,
) {
    let Service { mailbox, at_port: transports, receipts, clock, tls } = service;
    let judge = tls.clone();
    let deadline = tokio::time::Instant::now() + FIRST_WAIT;
    let mut stream: Box<dyn Conn> = match tls {
        None => Box::new(stream),
        Some(tls) => match secure::known(stream, from, &tls, &permit, &mailbox, deadline).await {
            Some(known) => Box::new(known),
            None => return,
        },
    };
    if let Some(shown) = stream.shown() {
        permit.link.is_of(shown);
    }
    let mut reader = Reader::default();
    let first = first(&mut reader, &mut stream, &permit, deadline).await;
    // revocation lists loaded since the handshake were swept through all other connections already
    if secure::is_revoked_since(judge.as_ref(), stream.shown()) {
        return;
    }
    match first {
        Ok(Frame::Control(seq, request)) if opens(&request) => {
            let has_locks = false;
            let session = Session { stream, reader, permit, mailbox, receipts, judge, has_locks };
            session.run(seq, request).await;
        }
        Ok(Frame::Control(seq, ControlRequest::Heartbeat)) => {
            let reply = alive(&mailbox, clock).await;
            if !receipts.may_answer() {
                return; // another primary has taken this one's place
            }
            // the peer may have closed the connection
            let _ = wire::answer(&mut stream, seq, reply).await;
        }
        Ok(Frame::Attach(attach)) => {
            let transport = transports.iter().find(|one| one.kind() == attach.fabric);
            match transport {
                Some(transport) => {
                    let shown = stream.shown().cloned();
                    hand_over(stream, attach, &**transport, &mailbox).await;
                    secure::sweep_if_late(judge.as_ref(), shown.as_ref(), &mailbox).await;
                }
                None => wire::refuse_attach(&mut stream, Status::Error).await,
            }
        }
        Ok(Frame::Control(seq, _)) => {
            mailbox.count(Counter::ClientIdVerifyFail);
            wire::refuse(&mut stream, seq, Status::Error).await;
        }
        Ok(_) => {
            mailbox.count(Counter::BadRequest);
            wire::refuse(&mut stream, Seq(0), Status::Error).await;
        }
        Err(WireError::Frame(seq, error)) => {
            log::debug!("a connection is refused: {error}");
            mailbox.count(Counter::BadRequest);
            wire::refuse(&mut stream, seq, wire::status_of(error)).await;
        }
        Err(error) => log::debug!("a connection has ended before its first frame: {error}"),
    }
}

/// Serves a connection of a transport's own listener: it can only become a command channel.
pub(super) async fn attach(
    stream: Box<dyn Conn>,
    permit: ConnectionPermit,
    mailbox: Arc<Mailbox>,
    transport: Arc<dyn Transport>,
) {
    let accepted = tokio::select! {
        accepted = timeout(FIRST_WAIT, transport.accept(stream)) => accepted.ok().flatten(),
        () = permit.link.closed() => None,
    };
    let Some(mut stream) = accepted else { return };
    let mut reader = Reader::default();
    let deadline = tokio::time::Instant::now() + FIRST_WAIT;
    match first(&mut reader, &mut stream, &permit, deadline).await {
        Ok(Frame::Attach(attach)) => hand_over(stream, attach, &*transport, &mailbox).await,
        Ok(_) | Err(WireError::Frame(..)) => {
            mailbox.count(Counter::BadRequest);
            wire::refuse_attach(&mut stream, Status::Error).await;
        }
        Err(error) => log::debug!("a connection has ended before its first frame: {error}"),
    }
}

/// The first frame, if it comes in time and the place is not needed for another connection.
async fn first(
    reader: &mut Reader,
    stream: &mut (impl tokio::io::AsyncRead + Unpin),
    permit: &ConnectionPermit,
    deadline: tokio::time::Instant,
) -> Result<Frame, WireError> {
    tokio::select! {
        first = timeout_at(deadline, reader.next(stream, FIRST_LEN_MAX, || permit.heard())) => {
            first.unwrap_or(Err(WireError::Slow))
        }
        () = permit.link.closed() => Err(WireError::Ended),
    }
}

fn opens(request: &ControlRequest) -> bool {
    matches!(request, ControlRequest::Init { .. } | ControlRequest::Reinit { .. })
}

/// How much a client has used of its rates.
struct Paces {
    gets: Pace,
    others: Pace,
}

impl Paces {
    fn new() -> Self {
        Self { gets: Pace::new(GETS_MAX), others: Pace::new(CONTROL_FRAMES_MAX) }
    }

    fn of(&mut self, request: &ControlRequest) -> &mut Pace {
        match request {
            ControlRequest::GetLocks(_) | ControlRequest::UpdateLocks(_) => &mut self.gets,
            ControlRequest::ObjectGet { .. } | ControlRequest::ObjectCreate { .. } => {
                &mut self.gets
            }
            _ => &mut self.others,
        }
    }
}

fn may_give(request: &ControlRequest) -> bool {
    matches!(request, ControlRequest::GetLocks(_) | ControlRequest::UpdateLocks(_))
}

/// Answers a peer without a session that asks whether this primary serves.
async fn alive(mailbox: &Mailbox, clock: ServerClock) -> ControlReply {
    let look = Event::look(Vec::new(), |one, _| one.locks().is_recovering());
    match mailbox.ask_unless_out(look).await {
        Ok(Some(recovering)) => {
            let none = ServerTime(0);
            let (now, recovery) = (clock.now(), Told::default());
            ControlReply::Alive { now, recovering, until: none, asked: none, recovery }
        }
        Ok(None) | Err(_) => ControlReply::Error(Status::NotReady),
    }
}

/// Has the transport make what the client needs, and passes the client to the command thread, which
/// decides about it.
async fn hand_over(
    mut stream: Box<dyn Conn>,
    attach: Attach,
    transport: &dyn Transport,
    mailbox: &Mailbox,
) {
    let asked = Instant::now();
    let admitted = match transport.admit(&attach, &*stream, mailbox).await {
        Ok(admitted) => admitted,
        Err(status) => return wire::refuse_attach(&mut stream, status).await,
    };
    match Guest::new(transport.kind(), attach, admitted, stream, asked) {
        Ok(guest) => {
            // A command thread that has ended closes everything anyway.
            let _ = mailbox.send(Event::Attach(guest)).await;
        }
        Err(error) => {
            limited!(Cause::ChannelLost, Level::Warn, "a command channel is lost: {error}");
        }
    }
}

/// A control connection.
struct Session {
    stream: Box<dyn Conn>,
    reader: Reader,
    permit: ConnectionPermit,
    mailbox: Arc<Mailbox>,
    receipts: Receipts,
    /// The TLS whose revocation lists judge the peer's certificate; `None`: there is no TLS.
    judge: Option<Tls>,
    /// Whether the written list of clients says that this one was given a lock.
    has_locks: bool,
}

impl Session {
    async fn run(mut self, seq: Seq, request: ControlRequest) {
        let link = self.permit.link.clone();
        let moves = matches!(request, ControlRequest::Reinit { .. });
        if self.mailbox.is_out() {
            return wire::refuse(&mut self.stream, seq, Status::NotReady).await;
        }
        let open = |reply| Event::Open { request, link, reply };
        let opened = self.mailbox.ask(open).await;
        let session = match opened {
            Ok(Ok(session)) => session,
            // another primary may have taken this one's place, and may know the client
            Ok(Err(_)) if !self.receipts.may_answer() => return,
            Ok(Err(reply)) => return wire::refuse_by(&mut self.stream, seq, reply).await,
            Err(_) => return,
        };
        let client = session.client;
        if !moves {
            self.permit.becomes_clients();
        }
        log::debug!("client {client} is here");
        secure::sweep_if_late(self.judge.as_ref(), self.stream.shown(), &self.mailbox).await;
        // the list of clients is written before the answer: a successor must let an answered client
        // in
        let is_kept = self.receipts.all_kept().await.is_ok();
        let answered = match is_kept {
            true => wire::answer(&mut self.stream, seq, ControlReply::Session(session)).await,
            false => {
                wire::refuse(&mut self.stream, seq, Status::ServerNoResource).await;
                Ok(())
            }
        };
        let why = match answered {
            Ok(()) if !is_kept => Gone::Closed,
            Ok(()) => {
                let link = self.permit.link.clone();
                tokio::select! {
                    () = link.closed() => Gone::Closed,
                    why = self.serve(client, moves) => why,
                }
            }
            Err(error) => wire::gone_by(&error),
        };
        let _ = self.mailbox.send(Event::Lost { client, link: self.permit.link.id, why }).await;
    }

    /// Serves requests, one at a time and in order, until either side ends the connection; returns
    /// how it ended. `moves`: the first request may end the client's session before.
    async fn serve(&mut self, client: ClientId, mut moves: bool) -> Gone {
        let mut paces = Paces::new();
        loop {
            let (seq, request) = match self.reader.next(&mut self.stream, LEN_MAX, || ()).await {
                Ok(Frame::Control(seq, request)) if !opens(&request) => (seq, request),
                Ok(frame) => {
                    limited!(
                        Cause::WrongFrame,
                        Level::Warn,
                        "client {client} has sent a frame that has no place here"
                    );
                    let seq = if let Frame::Control(seq, _) = frame { seq } else { Seq(0) };
                    self.mailbox.count(Counter::BadRequest);
                    wire::refuse(&mut self.stream, seq, Status::Error).await;
                    return Gone::Closed;
                }
                Err(WireError::Frame(seq, error)) => {
                    limited!(
                        Cause::WrongFrame,
                        Level::Warn,
                        "client {client} has sent bytes that are no request: {error}"
                    );
                    self.mailbox.count(Counter::BadRequest);
                    wire::refuse(&mut self.stream, seq, wire::status_of(error)).await;
                    return Gone::Closed;
                }
                Err(error) => {
                    log::debug!("client {client}: {error}");
                    return error.gone();
                }
            };
            let pace = paces.of(&request);
            if let Some(until) = pace.rests_until(boot_ns()) {
                let per_second = CONTROL_FRAMES_MAX.per_second;
                limited!(
                    Cause::FrameRate,
                    Level::Warn,
                    "client {client} sends more than {per_second} requests a second \
                     (CONTROL_FRAMES_MAX): the others wait"
                );
                tokio::time::sleep(Duration::from_nanos(until.saturating_sub(boot_ns()))).await;
            }
            pace.used(boot_ns(), 1);
            if moves && !is_open(self.stream.socket()) {
                return Gone::Closed;
            }
            let leaves = request == ControlRequest::Deinit;
            let gives = !self.has_locks && may_give(&request);
            if gives && !moves && self.receipts.is_failing() {
                let refused = ControlReply::Error(Status::ServerNoResource);
                match wire::answer(&mut self.stream, seq, refused).await {
                    Ok(()) => continue,
                    Err(error) => return wire::gone_by(&error),
                }
            }
            let link = self.permit.link.id;
            let is_heartbeat = request == ControlRequest::Heartbeat;
            let ask = |reply| Event::Control { client, link, request, reply };
            let reply = match is_heartbeat {
                _ if !moves && self.mailbox.is_out() => Ok(None),
                // A heartbeat changes nothing, so it may be answered and be handled later.
                true if !moves => self.mailbox.ask_unless_out(ask).await,
                _ => self.mailbox.ask(ask).await.map(Some),
            };
            moves = false;
            self.permit.becomes_clients(); // the connection of the earlier session is closed
            let Ok(reply) = reply else { return Gone::Closed };
            let reply = reply.unwrap_or(ControlReply::Error(Status::NotReady));
            if gives && gives_lock(&reply) {
                // the list is written before the answer: a successor must wait for a client with a
                // lock
                self.has_locks = self.receipts.all_kept().await.is_ok();
                if !self.has_locks {
                    wire::refuse(&mut self.stream, seq, Status::ServerNoResource).await;
                    return Gone::Closed; // the client handles this like a lost answer
                }
            }
            if !self.receipts.may_answer() {
                // another primary has taken this one's place, and counts the horizons of its
                // clients
                return Gone::Closed;
            }
            if leaves {
                // the client has left in any case; if that could not be written, a successor waits
                // for it in vain
                let _ = self.receipts.all_kept().await;
            }
            match wire::answer(&mut self.stream, seq, reply).await {
                Ok(()) if leaves => return Gone::Closed,
                Ok(()) => {}
                Err(error) => return wire::gone_by(&error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::limits::LOCKS_MAX;

    use super::*;

    #[test]
    fn a_client_gets_all_locks_of_a_primary_one_by_one_without_a_rest() {
        let mut paces = Paces::new();
        let (now_ns, get) = (1_000, ControlRequest::GetLocks(Vec::new()));
        for _ in 0..LOCKS_MAX {
            assert_eq!(paces.of(&get).rests_until(now_ns), None);
            paces.of(&get).used(now_ns, 1);
        }
        let other = ControlRequest::Heartbeat;
        let at_once = (0..).take_while(|_| paces.of(&other).take(now_ns)).count();
        assert_eq!(at_once, CONTROL_FRAMES_MAX.burst as usize, "these have a rate of their own");
    }
}
