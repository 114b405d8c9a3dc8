// SPDX-License-Identifier: MIT OR Apache-2.0
//! The executor for clients on any host: chains travel as frames, and the primary's command thread
//! executes them. The frames may travel over any stream of bytes: TCP, or sealed queue pairs
//! (`verbs/client/sealed.rs`).
//!
//! Chains, ledger writes and requests share one ordered stream, so they reach the primary in the
//! order in which they were given. A ledger write is written to the socket before the call returns,
//! unless the primary has not read for a second: then the next call sends it.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use dlock_core::clock::{Now, Refresh, NS};
use dlock_core::ids::{Handle, Seq};
use dlock_core::limits::BATCH_MAX;
use dlock_core::memory::exec::{Executor, Listening, OnAnswer, Posted, Single};
use dlock_core::memory::word_op::{Chain, Outcome, WordOp};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::wire::codec::{self, Frame};
use dlock_core::wire::control::{Attach, FabricKind};
use dlock_core::wire::message::{Reply, Request};
use dlock_core::wire::status::Status;

use crate::error::FabricError;
use crate::os::clock::{boot_coarse_ns, boot_ns, deadline_in, ClockEstimate};
use crate::os::net;
use crate::server_clock::{self, Ping, SharedEstimate};
use crate::shm::{send_request, SEND_WAIT};
use crate::stream::handshake;
use crate::stream::inbox::{Answer, Expected};
use crate::stream::{NotSent, Stream};
use crate::tls::session::TlsSession;
use crate::tls::Tls;

/// How long a reading of the server clock may take.
const CLOCK_WAIT_NS: u64 = NS;

/// The command channel of one session.
#[derive(Debug)]
pub struct TcpExecutor {
    kind: FabricKind,
    stream: Stream,
    clock: SharedEstimate,
    /// A `Ping` that was not answered in time.
    ping: Mutex<Option<Ping>>,
}

impl TcpExecutor {
    /// Attaches to the primary at this address; `clock` comes from the control channel. Takes at
    /// most 10 s to connect and 10 s to attach.
    ///
    /// # Errors
    /// `Connect`, `TimedOut`, `Refused`, or the answer is not valid.
    pub fn attach(
        addr: SocketAddr,
        attach: &Attach,
        clock: ClockEstimate,
    ) -> Result<Self, FabricError> {
        Self::attach_until(addr, None, attach, clock, None)
    }

    /// Attaches, with TLS if `tls` is given, until `until_ns` at most.
    ///
    /// # Errors
    /// As [`attach`](Self::attach) and [`attach_sealed`](Self::attach_sealed).
    pub fn attach_until(
        addr: SocketAddr,
        tls: Option<&Tls>,
        attach: &Attach,
        clock: ClockEstimate,
        until_ns: Option<u64>,
    ) -> Result<Self, FabricError> {
        let until_ns = net::connect_deadline(until_ns);
        let socket = OwnedFd::from(net::connect_until(addr, Some(until_ns))?);
        let attach = Attach { fabric: FabricKind::Tcp, verbs: None, ..*attach };
        let stream = match tls {
            None => {
                handshake::attach_tcp(socket.as_fd(), &attach, until_ns)?;
                Stream::new(socket)
            }
            Some(tls) => {
                let mut session = TlsSession::shaken(tls, addr.ip(), socket.as_fd(), until_ns)?;
                handshake::attach_sealed(socket.as_fd(), &mut session, &attach, until_ns)?;
                Stream::sealed(socket, session)
            }
        };
        Ok(Self::over(&attach, stream, clock))
    }

    /// Attaches with TLS; the peer must be a primary of the same CA.
    ///
    /// # Errors
    /// As [`attach`](Self::attach), and `Tls`.
    pub fn attach_sealed(
        addr: SocketAddr,
        tls: &Tls,
        attach: &Attach,
        clock: ClockEstimate,
    ) -> Result<Self, FabricError> {
        Self::attach_until(addr, Some(tls), attach, clock, None)
    }

    /// Attaches over a connected stream socket.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn attach_on(
        socket: OwnedFd,
        attach: &Attach,
        clock: ClockEstimate,
    ) -> Result<Self, FabricError> {
        Self::attach_over(FabricKind::Tcp, socket, attach, clock)
    }

    /// As [`attach_on`](Self::attach_on), for another fabric that carries these frames.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn attach_over(
        kind: FabricKind,
        socket: OwnedFd,
        attach: &Attach,
        clock: ClockEstimate,
    ) -> Result<Self, FabricError> {
        let attach = Attach { fabric: kind, verbs: None, ..*attach };
        handshake::attach_tcp(socket.as_fd(), &attach, deadline_in(net::CONNECT_WAIT))?;
        Ok(Self::over(&attach, Stream::new(socket), clock))
    }

    /// An executor over a stream on which the primary has answered `attach`.
    pub(crate) fn over(attach: &Attach, stream: Stream, clock: ClockEstimate) -> Self {
        let clock = SharedEstimate::new(clock);
        Self { kind: attach.fabric, stream, clock, ping: Mutex::default() }
    }

    /// Takes a new estimate of the server clock, if it is more exact than the one in use is by now,
    /// or proves the one in use wrong. Replies that carry the server's time do this by themselves.
    pub fn refresh(&self, candidate: ClockEstimate) -> Refresh {
        self.clock.refresh(candidate)
    }

    /// Whether the session exists, as far as this process knows without a system call.
    pub fn is_alive(&self) -> bool {
        !self.stream.is_broken()
    }

    /// As [`is_alive`](Self::is_alive), and checks the socket: one system call.
    pub fn probe(&self) -> bool {
        self.stream.probe()
    }

    fn start(&self, chains: &[Chain], until_ns: u64) -> Result<Seq, Status> {
        let encode = |seq: Seq, bytes: &mut Vec<u8>| codec::encode_batch(seq, chains, bytes);
        self.start_batch(chains.len(), until_ns, encode)
    }

    fn start_batch(
        &self,
        count: usize,
        until_ns: u64,
        encode: impl FnOnce(Seq, &mut Vec<u8>),
    ) -> Result<Seq, Status> {
        let sent = self.stream.send(Expected::Outcomes(count), until_ns, encode);
        sent.map_err(|error| match error {
            NotSent::Broken => Status::BadResponse,
            NotSent::Full => Status::TimedOut,
        })
    }

    /// Executes single word operations in one frame.
    fn execute_until(&self, verbs: &[WordOp], singles: &mut [Single], until_ns: u64) {
        let count = verbs.len().min(singles.len());
        let (singles, excess) = singles.split_at_mut(count.min(BATCH_MAX));
        excess.fill(Single::Refused(Status::Invalid));
        if singles.is_empty() {
            return;
        }
        let verbs = &verbs[..singles.len()];
        let encode = |seq: Seq, bytes: &mut Vec<u8>| codec::encode_word_ops(seq, verbs, bytes);
        let seq = match self.start_batch(verbs.len(), until_ns, encode) {
            Ok(seq) => seq,
            Err(status) => return singles.fill(Single::Refused(status)),
        };
        match self.stream.wait(seq, until_ns) {
            Ok(Some(Answer::Outcomes(answer))) if answer.len() == singles.len() => {
                for (single, outcome) in singles.iter_mut().zip(&answer) {
                    *single = outcome.into();
                }
            }
            _ => {
                self.stream.forget(seq);
                singles.fill(Single::Unknown);
            }
        }
    }
}

impl Executor for TcpExecutor {
    /// Chains beyond [`BATCH_MAX`] are refused. `Refused(BadResponse)`: the connection was gone
    /// before the chains were sent; `Unknown`: it was lost, or the time was up, after that.
    fn execute(&self, chains: &[Chain], outcomes: &mut [Outcome], until_ns: u64) {
        let count = chains.len().min(outcomes.len());
        let (outcomes, excess) = outcomes.split_at_mut(count.min(BATCH_MAX));
        excess.fill(Outcome::Refused(Status::Invalid));
        if outcomes.is_empty() {
            return;
        }
        let seq = match self.start(&chains[..outcomes.len()], until_ns) {
            Ok(seq) => seq,
            Err(status) => return outcomes.fill(Outcome::Refused(status)),
        };
        match self.stream.wait(seq, until_ns) {
            Ok(Some(Answer::Outcomes(answer))) if answer.len() == outcomes.len() => {
                outcomes.copy_from_slice(&answer);
            }
            _ => {
                self.stream.forget(seq);
                outcomes.fill(Outcome::Unknown);
            }
        }
    }

    fn execute_one(&self, word_op: &WordOp, until_ns: u64) -> Single {
        let mut single = [Single::Unknown];
        self.execute_until(std::slice::from_ref(word_op), &mut single, until_ns);
        single[0]
    }

    fn post(&self, chain: &Chain) -> Posted {
        match self.start(std::slice::from_ref(chain), deadline_in(SEND_WAIT)) {
            Ok(seq) => Posted::Pending(seq),
            Err(status) => Posted::Ready(Outcome::Refused(status)),
        }
    }

    fn poll(&self, posted: Posted) -> Option<Outcome> {
        let seq = match posted {
            Posted::Ready(outcome) => return Some(outcome),
            Posted::Pending(seq) => seq,
        };
        match self.stream.wait(seq, 0) {
            Ok(Some(Answer::Outcomes(answer))) => {
                Some(answer.first().copied().unwrap_or(Outcome::Unknown))
            }
            Ok(None) => None,
            Ok(Some(_)) | Err(_) => {
                self.stream.forget(seq);
                Some(Outcome::Unknown)
            }
        }
    }

    fn write_ledger(&self, handle: Handle, entry: LedgerEntry) {
        // If the stream is broken, the primary learns nothing more of this session anyway.
        let _ = self.stream.send_plain(|bytes| {
            codec::encode(&Frame::Note(handle, entry), bytes);
        });
    }

    fn send(&self, request: &Request) -> Result<Seq, Status> {
        send_request(&self.stream, request)
    }

    fn reply(&self, seq: Seq, until_ns: u64) -> Result<Option<Reply>, Status> {
        server_clock::reply(&self.clock, self.stream.wait(seq, until_ns))
    }

    fn listen(&self, call: Option<&OnAnswer>) -> Result<Listening, Status> {
        self.stream.listen(call)
    }

    fn inputs(&self) -> [Option<BorrowedFd<'_>>; 2] {
        self.stream.inputs()
    }

    fn has_room(&self) -> bool {
        self.stream.has_room()
    }

    fn forget(&self, seq: Seq) {
        self.stream.forget(seq);
    }

    fn is_cut_off(&self) -> bool {
        !self.probe()
    }

    fn end(&self) {
        self.stream.end();
    }

    /// # Latency
    /// None; one round trip if the time was not read for about a second. Only one call waits for a
    /// primary that does not answer, for 1 s at most.
    fn now(&self) -> Now {
        self.now_since().1
    }

    #[inline]
    fn now_since(&self) -> (u64, Now) {
        let tracked = || self.clock.tracked();
        let mut clock = tracked();
        let called_ns = boot_ns();
        let mut now_ns = called_ns;
        if clock.estimate.is_stale(now_ns) {
            let send = || self.send(&Request::Ping);
            let reply = |seq, until_ns| self.reply(seq, until_ns);
            server_clock::ask(&self.clock, &self.ping, now_ns, CLOCK_WAIT_NS, send, reply);
            clock = tracked();
            now_ns = boot_ns();
        }
        (called_ns, clock.at(now_ns))
    }

    fn is_clock_ready(&self) -> bool {
        let send = || self.send(&Request::Ping);
        let reply = |seq, until_ns| self.reply(seq, until_ns);
        server_clock::is_ready(&self.clock, &self.ping, boot_ns(), CLOCK_WAIT_NS, send, reply)
    }

    #[inline]
    fn local_coarse_ns(&self, _: u64) -> u64 {
        boot_coarse_ns()
    }

    fn chains_are_noted(&self) -> bool {
        true
    }

    fn name(&self) -> &'static str {
        self.kind.name()
    }
}
