// SPDX-License-Identifier: MIT OR Apache-2.0
//! The executor for clients on the primary's own host: CPU atomics in the caller's thread.
//!
//! `execute`, `post` and `write_ledger` take no lock, allocate nothing and make no system call.
//! They cost the atomics and a read of three words that rarely change (is the session broken, is
//! the gate of the memory closed, is that of this client). Messages go over the Unix socket on
//! which the memory came.
//!
//! A request and a later chain of the same thread take different ways: the chain may take effect
//! before the primary has seen the request, unless the reply was awaited.

pub(crate) mod spare;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use dlock_core::clock::{ClockEstimate, Now, ServerTime, NS};
use dlock_core::counters::Counter;
use dlock_core::ids::{Handle, Seq};
use dlock_core::limits::LOCK_WAIT_S;
use dlock_core::lock::Half;
use dlock_core::memory::exec::{Executor, Listening, OnAnswer, Posted, Single};
use dlock_core::memory::word_op::{Chain, Outcome, WordAddr, WordOp};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::wire::codec::{self, Frame};
use dlock_core::wire::control::{Attach, FabricKind};
use dlock_core::wire::message::{Reply, Request};
use dlock_core::wire::status::Status;

use crate::error::FabricError;
use crate::memory::cpu::{execute, execute_word_op};
use crate::memory::mapped::{LedgerMemory, SlotMemory};
use crate::os::clock::{self, deadline_in};
use crate::os::fds::Credentials;
use crate::os::fork::Owner;
use crate::os::net;
use crate::server_clock::{self, SharedEstimate};
use crate::shm::spare::Spare;
use crate::stream::handshake;
use crate::stream::inbox::Expected;
use crate::stream::{NotSent, Stream};

/// How long sending a message may take if the primary does not read.
pub(crate) const SEND_WAIT: Duration = Duration::from_secs(LOCK_WAIT_S);
/// How long to wait for an answer to each `Ping` while attaching.
const CLOCK_WAIT: Duration = Duration::from_millis(10);
/// `Ping`s while attaching, at most.
const CLOCK_TRIES_MAX: u32 = 3;

/// One session's memory, mapped, and its message channel.
#[derive(Debug)]
pub struct ShmExecutor {
    slots: SlotMemory,
    ledger: LedgerMemory,
    stream: Stream,
    owner: Owner,
    clock: SharedEstimate,
    /// Half of the time by which the coarse clock may be late, nanoseconds.
    half_lag_ns: u64,
    _spare: Arc<Spare>,
}

impl ShmExecutor {
    /// Attaches to the primary that listens on this abstract Unix socket; `clock` comes from the
    /// control channel. Takes at most 10 s to connect and 10 s to attach.
    ///
    /// # Errors
    /// `Connect`, `Peer` (the primary runs as another user), `TimedOut`, `Refused`, or the memory
    /// is not as announced.
    pub fn attach(
        sock_name: &[u8],
        attach: &Attach,
        clock: ClockEstimate,
    ) -> Result<Self, FabricError> {
        Self::attach_trusting(sock_name, attach, clock, &[], None)
    }

    /// As [`attach`](Self::attach), but the primary may also run as one of these users, and the
    /// attach ends at `until_ns` at the latest.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn attach_trusting(
        sock_name: &[u8],
        attach: &Attach,
        clock: ClockEstimate,
        users: &[u32],
        until_ns: Option<u64>,
    ) -> Result<Self, FabricError> {
        let socket = OwnedFd::from(net::connect_abstract_until(sock_name, until_ns)?);
        Self::attach_to(socket, attach, clock, users, until_ns)
    }

    /// Attaches over a connected Unix stream socket.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn attach_on(
        socket: OwnedFd,
        attach: &Attach,
        clock: ClockEstimate,
    ) -> Result<Self, FabricError> {
        Self::attach_to(socket, attach, clock, &[], None)
    }

    fn attach_to(
        socket: OwnedFd,
        attach: &Attach,
        clock: ClockEstimate,
        users: &[u32],
        until_ns: Option<u64>,
    ) -> Result<Self, FabricError> {
        let spare = Spare::of_process();
        spare.release();
        let attached = Self::attach_with(socket, attach, clock, (users, until_ns), &spare);
        spare.keep();
        attached
    }

    fn attach_with(
        socket: OwnedFd,
        attach: &Attach,
        clock: ClockEstimate,
        (users, until_ns): (&[u32], Option<u64>),
        spare: &Arc<Spare>,
    ) -> Result<Self, FabricError> {
        let peer = Credentials::of_peer(socket.as_fd()).map_err(FabricError::Handshake)?;
        if !peer.may_be_mapped(users) {
            return Err(FabricError::Peer { uid: peer.uid });
        }
        let until_ns = net::connect_deadline(until_ns);
        let attach = Attach { fabric: FabricKind::Shm, verbs: None, ..*attach };
        let (attached, fds) = handshake::attach_shm(socket.as_fd(), &attach, until_ns)?;
        let [header, slots, ledger] = fds;
        let ledger = LedgerMemory::open(ledger, attached.ledger_entries)?;
        let slots = match SlotMemory::open(header, slots, attached.slots) {
            Ok(slots) => slots,
            Err(error) => {
                ledger.detach();
                return Err(error);
            }
        };
        let clock = clock.on_one_host(attached.clock_offset_ns);
        if !clock.allows(attached.clock_offset_ns) {
            log::info!(
                "client {}: this process has another CLOCK_BOOTTIME than the primary (it is in \
                 another time namespace): the primary's clock is known to {} ns",
                attach.client,
                clock.half_trip_ns
            );
        }
        let exec = Self {
            slots,
            ledger,
            stream: Stream::new(socket),
            owner: Owner::current(),
            clock: SharedEstimate::new(clock),
            half_lag_ns: clock::coarse_lag_ns().div_ceil(2),
            _spare: Arc::clone(spare),
        };
        exec.asks_for_time();
        Ok(exec)
    }

    /// Whether the session exists, as far as this process knows without a system call. `false` at
    /// once if the primary has evicted this client; a primary that died is noticed by
    /// [`probe`](Self::probe) or by the next message.
    pub fn is_alive(&self) -> bool {
        self.refusal().is_none()
    }

    /// As [`is_alive`](Self::is_alive), and checks the socket: one system call.
    pub fn probe(&self) -> bool {
        self.stream.probe() && self.is_alive()
    }

    /// The reading for `local_ns`. The coarse clock is enough unless its error could change the
    /// second, because the C API shows whole seconds; then the exact clock is read.
    #[inline]
    fn now_at(&self, local_ns: u64) -> Now {
        let clock = self.clock.tracked();
        let read = clock.at(local_ns);
        let earliest = read.time.0.wrapping_sub(read.uncertainty_ns);
        let latest = read.time.0.wrapping_add(2 * self.half_lag_ns + read.uncertainty_ns);
        if earliest / NS == latest / NS {
            let time = ServerTime(read.time.0.wrapping_add(self.half_lag_ns));
            return Now { time, uncertainty_ns: self.half_lag_ns + read.uncertainty_ns, ..read };
        }
        clock.at(clock::boot_ns())
    }

    /// Asks for the time again while exchanges take long because a machine is busy. Operations do
    /// not ask: a wide estimate is as correct as a narrow one.
    fn asks_for_time(&self) {
        for _ in 0..CLOCK_TRIES_MAX {
            if !self.clock.get().is_stale(clock::boot_ns()) {
                return;
            }
            let Ok(seq) = self.send(&Request::Ping) else { return };
            if matches!(self.reply(seq, deadline_in(CLOCK_WAIT)), Ok(None)) {
                self.forget(seq);
            }
        }
    }

    /// The status with which a chain is refused now.
    #[inline]
    fn refusal(&self) -> Option<Status> {
        // Checked first: a forked child has no such memory.
        if !self.owner.is_here() || self.stream.is_broken() {
            return Some(Status::BadResponse);
        }
        match self.ledger.gate() {
            None => self.slots.gate(),
            closed => closed,
        }
    }
}

impl Executor for ShmExecutor {
    #[inline]
    fn execute(&self, chains: &[Chain], outcomes: &mut [Outcome], _until_ns: u64) {
        for (chain, outcome) in chains.iter().zip(outcomes) {
            match self.refusal() {
                None => execute(&self.slots, Some(&self.ledger), chain, outcome),
                Some(status) => *outcome = Outcome::Refused(status),
            }
        }
    }

    #[inline]
    fn execute_one(&self, word_op: &WordOp, _until_ns: u64) -> Single {
        match self.refusal() {
            None => execute_word_op(&self.slots, Some(&self.ledger), word_op)
                .map_or(Single::Refused(Status::Invalid), Single::Done),
            Some(status) => Single::Refused(status),
        }
    }

    #[inline]
    fn post(&self, chain: &Chain) -> Posted {
        let mut outcome = Outcome::Unknown;
        self.execute(std::slice::from_ref(chain), std::slice::from_mut(&mut outcome), u64::MAX);
        Posted::Ready(outcome)
    }

    fn poll(&self, posted: Posted) -> Option<Outcome> {
        match posted {
            Posted::Ready(outcome) => Some(outcome),
            // no chain was posted with such a number on this executor
            Posted::Pending(_) => Some(Outcome::Unknown),
        }
    }

    /// Ignores an entry outside the ledger, and every entry once this client was evicted. A primary
    /// in recovery still takes ledger writes.
    #[inline]
    fn write_ledger(&self, handle: Handle, entry: LedgerEntry) {
        if self.owner.is_here() && self.ledger.gate().is_none() {
            if let Some(word) = self.ledger.entry(handle) {
                word.store(entry.into_bits());
            }
        }
    }

    fn count(&self, counter: Counter) {
        if self.owner.is_here() && self.ledger.gate().is_none() {
            self.ledger.count(counter);
        }
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
        !self.owner.is_here() || self.stream.is_broken()
    }

    fn is_over(&self) -> bool {
        !self.owner.is_here() || !self.stream.probe()
    }

    fn end(&self) {
        self.stream.end();
    }

    #[inline]
    fn now(&self) -> Now {
        self.now_at(clock::boot_coarse_ns())
    }

    #[inline]
    fn now_again(&self, before: Now) -> Now {
        self.now_at(clock::boot_coarse_again_ns(before.local_ns))
    }

    #[inline]
    fn local_coarse_ns(&self, before_ns: u64) -> u64 {
        clock::boot_coarse_again_ns(before_ns)
    }

    fn is_one_sided(&self) -> bool {
        true
    }

    fn reads_are_free(&self) -> bool {
        true
    }

    fn may_park(&self) -> bool {
        true
    }

    fn park(&self, addr: WordAddr, half: Half, value: u32, limit_ns: u64) {
        if let Some(word) = self.slots.word(addr).filter(|_| self.refusal().is_none()) {
            word.park(half, value, Duration::from_nanos(limit_ns));
        }
    }

    fn wake(&self, addr: WordAddr, half: Half) {
        if let Some(word) = self.slots.word(addr).filter(|_| self.owner.is_here()) {
            word.wake_all(half);
        }
    }

    fn name(&self) -> &'static str {
        "shm"
    }
}

impl Drop for ShmExecutor {
    /// Tells the primary that this session cannot touch the memory any more.
    fn drop(&mut self) {
        if self.owner.is_here() {
            self.ledger.detach();
        }
    }
}

/// Sends a request over either kind of stream.
pub(crate) fn send_request(stream: &Stream, request: &Request) -> Result<Seq, Status> {
    let expected = if request.has_reply() { Expected::Reply } else { Expected::Nothing };
    let sent = stream.send(expected, deadline_in(SEND_WAIT), |seq, bytes| {
        codec::encode(&Frame::Request(seq, *request), bytes);
    });
    sent.map_err(|error| match error {
        NotSent::Broken => Status::BadResponse,
        NotSent::Full => Status::TimedOut,
    })
}
