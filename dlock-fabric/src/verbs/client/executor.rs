// SPDX-License-Identifier: MIT OR Apache-2.0
//! The executor for clients with RDMA: the primary's device executes their verbs.
//!
//! ```text
//!   execute, post ──▶ CompletionPump ──one doorbell──▶ the primary's device ──▶ slots, my ledger
//!   send, reply ───▶ Requests ──SEND/RECV──▶ the primary's command thread
//! ```
//! The primary's process takes no part in a chain, and may be stopped meanwhile.
//!
//! *Order.* Operations of one thread reach the memory in order, because all use one queue pair. The
//! chains of a batch are also posted in order; a chain waits for the one before it only if that one
//! has a read. A request is sent when all earlier operations have completed. A later chain can take
//! effect before the primary has seen the request, unless the thread has waited for the reply.
//!
//! *Failure.* A queue pair that has failed ends the session: operations under way are `Unknown`,
//! later ones `Refused(BadResponse)`. A chain that takes too long is also `Unknown`, but the
//! session goes on. In both cases the operations may still take effect later: see
//! [`EFFECT_NS_MAX`].

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use dlock_core::clock::{Now, Refresh};
use dlock_core::counters::{Counter, Told};
use dlock_core::ids::{Handle, Seq};
use dlock_core::limits::{BATCH_MAX, VERBS_RING_SLOTS_MAX};
use dlock_core::memory::exec::{Executor, Listening, OnAnswer, Posted, Single};
use dlock_core::memory::word_op::{Chain, Outcome, Values, WordOp, CHAIN_OPS_MAX};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::wire::control::Attach;
use dlock_core::wire::message::{Reply, Request};
use dlock_core::wire::status::Status;

use super::completion_pump::{CompletionPump, Stop, SEND_SLOTS};
use super::counts::{Counts, WordOpCounts};
use super::memory::Memory;
use super::poster_slot::Claim;
use super::requests::Requests;
use super::ring::{NoRoom, Ring};
use crate::error::FabricError;
use crate::os::clock::{boot_coarse_ns, boot_ns, deadline_in, is_over, ClockEstimate};
use crate::os::fork::Owner;
use crate::os::net;
use crate::server_clock::{self, Ping, SharedEstimate};
use crate::shm::SEND_WAIT;
use crate::stream::inbox::lock;
use crate::tls::session::TlsSession;
use crate::tls::Tls;
use crate::verbs::device::memory::RemoteWord;
use crate::verbs::device::poster::{Notify, PostError, PostedList, Poster, RemoteFetch, RemoteOp};
use crate::verbs::device::timing::effect_ns_max;

/// How long to wait for a reading of the server clock. A stopped primary must not stop clients that
/// operate on its memory.
const CLOCK_WAIT_NS: u64 = 2_000_000;

/// The longest time in nanoseconds after which an operation that an executor posted can still take
/// effect, if neither side ends the session: that of everything that the executor can have under
/// way, each with all its retries. Ending the session (the primary's fence) ends it at once.
pub const EFFECT_NS_MAX: u64 = effect_ns_max(SEND_SLOTS + VERBS_RING_SLOTS_MAX as u32);

/// The device of a client, and how it is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbsOptions {
    /// The device's name; `None`: the first that is usable.
    pub device: Option<String>,
    /// A GID of the device, or its IPv4 address mapped; all zero: none given.
    pub eid: [u8; 16],
    /// Whether chains and messages share one queue pair; the primary must have the same.
    pub shared_qp: bool,
    /// Whether threads sleep rather than poll for completions.
    pub sleep: bool,
    /// TLS for the connection to the primary's port; `None`: no TLS. The queue pairs do not use it.
    pub tls: Option<Tls>,
    /// The deadline of attaching; resolving the port's address may take 2 s more.
    pub until_ns: Option<u64>,
}

/// One session's queue pairs.
#[derive(Debug)]
pub struct VerbsExecutor {
    pub(in crate::verbs) pump: Arc<CompletionPump>,
    pub(super) ring: Mutex<Ring>,
    pub(in crate::verbs) talk: Requests,
    pub(super) broken: Arc<AtomicBool>,
    pub(super) memory: Memory,
    pub(in crate::verbs) clock: SharedEstimate,
    /// The most by which the coarse clock is late.
    pub(super) coarse_lag_ns: u64,
    /// A `Ping` that was not answered in time.
    pub(super) ping: Mutex<Option<Ping>>,
    pub(super) counts: Counts,
    /// The counts that this session has reported to the primary.
    pub(super) told: Mutex<Told>,
    pub(super) owner: Owner,
}

impl VerbsExecutor {
    /// Attaches to the primary at this address; `clock` comes from the control channel. Takes at
    /// most 10 s to connect and 10 s to attach, and some more to resolve the port's address.
    ///
    /// # Errors
    /// `Verbs`: this host has no device to use ([`FabricError::is_absent`]), or the two devices
    /// do not reach each other; `Connect`, `TimedOut`, `Refused`.
    pub fn attach(
        options: &VerbsOptions,
        addr: SocketAddr,
        attach: &Attach,
        clock: ClockEstimate,
    ) -> Result<Self, FabricError> {
        let device = super::attach::Device::open(options)?;
        let socket = OwnedFd::from(net::connect_until(addr, options.until_ns)?);
        let until_ns = device.deadline();
        let session = match &options.tls {
            Some(tls) => Some(TlsSession::shaken(tls, addr.ip(), socket.as_fd(), until_ns)?),
            None => None,
        };
        device.attach(socket, session, attach, clock)
    }

    /// Attaches over a connected stream socket.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn attach_on(
        options: &VerbsOptions,
        socket: OwnedFd,
        attach: &Attach,
        clock: ClockEstimate,
    ) -> Result<Self, FabricError> {
        super::attach::Device::open(options)?.attach(socket, None, attach, clock)
    }

    /// Whether the session goes on, as far as this process knows without a system call.
    pub fn is_alive(&self) -> bool {
        self.owner.is_here() && !self.broken.load(Ordering::SeqCst)
    }

    /// As [`is_alive`](Self::is_alive), and checks the liveness connection: one system call.
    pub fn probe(&self) -> bool {
        let alive = self.talk.probe();
        if !alive {
            self.pump.fail();
        }
        alive
    }

    /// Replaces the estimate of the server clock, if the candidate is more exact than the one in
    /// use is by now, or proves that one wrong. Replies that carry the server's time do this by
    /// themselves.
    pub fn refresh(&self, candidate: ClockEstimate) -> Refresh {
        self.clock.refresh(candidate)
    }

    /// How many operations this executor has posted so far.
    pub fn counters(&self) -> WordOpCounts {
        self.counts.read()
    }

    /// Ends the session: no request can be posted any more, and none under way will complete.
    #[cold]
    fn end(&self) {
        self.pump.fail();
        self.talk.break_off();
    }

    /// The only verb of these chains, if it has a value.
    #[inline]
    fn only_fetch(&self, chains: &[Chain]) -> Option<RemoteFetch> {
        let [chain] = chains else { return None };
        let [word_op] = chain.ops() else { return None };
        self.memory.fetch(word_op)
    }

    #[inline]
    fn claim(&self, verbs: usize, until_ns: u64) -> Result<Claim<'_>, Stop> {
        match self.pump.claim_now(verbs) {
            Some(claim) => Ok(claim),
            None => self.pump.claim(verbs, until_ns),
        }
    }

    /// Posts the valid chains of a batch, refuses the others, and waits for the outcomes.
    fn run(&self, chains: &[Chain], outcomes: &mut [Outcome], until_ns: u64) {
        let verbs = chains.iter().map(|chain| chain.ops().len()).sum();
        let mut claim = match self.claim(verbs, until_ns) {
            Ok(claim) => claim,
            Err(stop) => return outcomes.fill(Outcome::Refused(stop.into())),
        };
        let list = match self.post_list(claim.poster(), chains, outcomes) {
            Ok(list) => list,
            Err(failed) => {
                let status = self.not_posted(failed);
                return outcomes.iter_mut().filter(|o| **o == Outcome::Unknown).for_each(|o| {
                    *o = status.map_or(Outcome::Unknown, Outcome::Refused);
                });
            }
        };
        if list.len == 0 {
            return self.pump.release(claim);
        }
        let Some(mut claim) = self.executed(claim, list.seq, until_ns) else { return };
        let poster = claim.poster();
        let mut seq = list.seq.wrapping_sub(list.len.into());
        for (chain, outcome) in chains.iter().zip(outcomes) {
            if *outcome == Outcome::Unknown {
                *outcome = values_of(chain, poster, seq);
                seq = seq.wrapping_add(chain.ops().len() as u32);
            }
        }
        self.pump.release(claim);
    }

    /// As [`run`](Self::run) for one verb with a value, by the shortest path. A read whose value
    /// was lost is repeated once.
    #[inline]
    fn run_fetch(&self, fetch: &RemoteFetch, until_ns: u64) -> Single {
        match self.run_fetch_once(fetch, until_ns) {
            Single::Unknown
                if fetch.is_read() && self.is_alive() && !is_over(until_ns, self.coarse_lag_ns) =>
            {
                self.run_fetch_once(fetch, until_ns)
            }
            single => single,
        }
    }

    #[inline]
    fn run_fetch_once(&self, fetch: &RemoteFetch, until_ns: u64) -> Single {
        let mut claim = match self.claim(1, until_ns) {
            Ok(claim) => claim,
            Err(stop) => return Single::Refused(stop.into()),
        };
        let strict = self.pump.is_strict() || self.pump.is_ring_busy();
        let seq = match claim.poster().post_fetch(fetch, strict) {
            Ok(seq) => seq,
            Err(failed) => {
                return self.not_posted(failed).map_or(Single::Unknown, Single::Refused);
            }
        };
        self.counts.single(fetch.is_read());
        let Some(mut claim) = self.executed(claim, seq, until_ns) else { return Single::Unknown };
        let value = claim.poster().value(seq);
        self.pump.release(claim);
        value.map_or(Single::Unknown, Single::Done)
    }

    #[cold]
    fn run_one(&self, word_op: &WordOp, until_ns: u64) -> Single {
        let mut outcome = [Outcome::Unknown];
        self.run(&[Chain::one(*word_op)], &mut outcome, until_ns);
        Single::from(&outcome[0])
    }

    /// Ends the session after a list was not posted (returns the status), or only in part (`None`).
    #[cold]
    fn not_posted(&self, failed: PostError) -> Option<Status> {
        self.end();
        match failed {
            PostError::Broken { part: true, .. } => None,
            _ => Some(Status::BadResponse),
        }
    }

    /// Waits for a posted list. Abandons its poster slot if it does not complete in time.
    #[inline]
    fn executed<'a>(&self, mut claim: Claim<'a>, seq: u32, until_ns: u64) -> Option<Claim<'a>> {
        claim.posted(seq);
        let poster_slot = claim.poster_slot();
        let mut ready = || poster_slot.is_done(seq).then_some(());
        let done = match self.pump.look_for(&mut ready) {
            Some(()) => Ok(()),
            None => self.pump.wait(until_ns, ready),
        };
        match done {
            // a completion that is seen after the deadline counts as lost, because the caller's
            // lease relies on the deadline
            Ok(()) if !is_over(until_ns, self.coarse_lag_ns) => return Some(claim),
            Ok(()) | Err(Stop::TimedOut) => self.pump.abandon(claim),
            Err(Stop::Broken) => {
                self.pump.abandon(claim);
                self.end();
            }
        }
        None
    }

    /// Posts the chains with one doorbell. Sets each outcome to `Unknown`, or to the reason why the
    /// chain was not posted.
    #[inline]
    fn post_list(
        &self,
        poster: &mut Poster,
        chains: &[Chain],
        outcomes: &mut [Outcome],
    ) -> Result<PostedList, PostError> {
        let mut batch = poster.batch();
        let strict = self.pump.is_strict() || self.pump.is_ring_busy();
        batch.behind(strict, strict);
        let (mut atomics, mut reads, mut notes) = (0, 0, 0);
        for (chain, outcome) in chains.iter().zip(outcomes.iter_mut()) {
            *outcome = Outcome::Unknown;
            if !chain.ops().iter().all(|word_op| self.memory.remote(word_op).is_some()) {
                *outcome = Outcome::Refused(Status::Invalid);
                continue;
            }
            for word_op in chain.ops() {
                match word_op {
                    WordOp::Cas { .. } | WordOp::Faa { .. } => atomics += 1,
                    WordOp::Read { .. } | WordOp::ReadPair { .. } => reads += 1,
                    WordOp::WriteLedger { .. } => notes += 1,
                }
                if let Some(word_op) = self.memory.remote(word_op) {
                    batch.push(&word_op)?;
                }
            }
            if reads == 0 && !strict {
                batch.next_chain();
            }
        }
        let list = batch.ring(Notify::Yes)?;
        self.counts.add(atomics, reads, notes, u64::from(list.len > 0));
        Ok(list)
    }

    /// The status with which operations are refused now.
    #[inline]
    fn refusal(&self) -> Option<Status> {
        // checked first, because a forked child has no such memory
        (!self.is_alive()).then_some(Status::BadResponse)
    }

    fn post_to_ring(&self, verbs: &[RemoteOp]) -> Result<u64, Status> {
        let until_ns = deadline_in(SEND_WAIT);
        loop {
            let front = {
                let mut ring = lock(&self.ring);
                match ring.post(&self.pump, verbs) {
                    Ok(number) => return Ok(number),
                    Err(NoRoom::TooMany) => return Err(Status::TimedOut),
                    Err(NoRoom::Broken) => None,
                    Err(NoRoom::Busy) => ring.front(),
                }
            };
            let Some(front) = front else {
                self.end();
                return Err(Status::BadResponse);
            };
            let done = || self.pump.is_ring_done(front).then_some(());
            self.pump.wait(until_ns, done).map_err(Status::from)?;
        }
    }

    fn send_message(&self, request: &Request, until_ns: u64) -> Result<Seq, Status> {
        let sent = self.talk.send(request, until_ns);
        match sent {
            Ok(_) => self.counts.message(),
            Err(Status::BadResponse) => self.pump.fail(),
            Err(_) => {}
        }
        sent
    }

    /// Writes a word of this client's ledger without waiting. If the write cannot be posted for 5
    /// s, the session ends.
    fn write(&self, word: RemoteWord, value: u64) {
        let Ok(mut claim) = self.pump.claim_for_note(deadline_in(SEND_WAIT)) else {
            return self.end();
        };
        let strict = self.pump.is_strict() || self.pump.is_ring_busy();
        let mut batch = claim.poster().batch();
        batch.behind(strict, strict);
        let word_op = RemoteOp::Write { word, value };
        match batch.push(&word_op).and_then(|()| batch.ring(Notify::Yes)) {
            Ok(list) => {
                claim.posted(list.seq);
                self.counts.add(0, 0, 1, 1);
                self.pump.release(claim);
            }
            Err(_) => self.end(),
        }
    }
}

/// The values of an executed chain; `before`: the poster's count before the chain.
#[inline]
fn values_of(chain: &Chain, poster: &Poster, before: u32) -> Outcome {
    let mut values = Values::new();
    for (seq, word_op) in (1..).map(|i| before.wrapping_add(i)).zip(chain.ops()) {
        match (word_op, poster.value(seq)) {
            (WordOp::WriteLedger { .. }, _) => values.push(0),
            (WordOp::ReadPair { .. }, Some(value)) => match poster.second_value(seq) {
                Some(second) => {
                    values.push(value);
                    values.push(second);
                }
                None => return Outcome::Unknown,
            },
            (_, Some(value)) => values.push(value),
            (_, None) => return Outcome::Unknown,
        }
    }
    Outcome::Done(values)
}

impl Executor for VerbsExecutor {
    /// Chains beyond [`BATCH_MAX`] are refused. `Refused(BadResponse)`: the session had ended
    /// before the chains were posted; `Unknown`: it ended, or the time was up, after that.
    #[inline]
    fn execute(&self, chains: &[Chain], outcomes: &mut [Outcome], until_ns: u64) {
        let count = chains.len().min(outcomes.len());
        let (outcomes, excess) = outcomes.split_at_mut(count.min(BATCH_MAX));
        excess.fill(Outcome::Refused(Status::Invalid));
        if outcomes.is_empty() {
            return;
        }
        match self.refusal() {
            None => {
                let chains = &chains[..outcomes.len()];
                match (&mut *outcomes, self.only_fetch(chains)) {
                    ([outcome], Some(fetch)) => *outcome = self.run_fetch(&fetch, until_ns).into(),
                    (outcomes, _) => self.run(chains, outcomes, until_ns),
                }
            }
            Some(status) => outcomes.fill(Outcome::Refused(status)),
        }
    }

    #[inline]
    fn execute_one(&self, word_op: &WordOp, until_ns: u64) -> Single {
        if let Some(status) = self.refusal() {
            return Single::Refused(status);
        }
        match self.memory.fetch(word_op) {
            Some(fetch) => self.run_fetch(&fetch, until_ns),
            None => self.run_one(word_op, until_ns),
        }
    }

    fn post(&self, chain: &Chain) -> Posted {
        if let Some(status) = self.refusal() {
            return Posted::Ready(Outcome::Refused(status));
        }
        let mut list = [RemoteOp::Read { word: RemoteWord { addr: 0, rkey: 0 } }; CHAIN_OPS_MAX];
        for (to, word_op) in list.iter_mut().zip(chain.ops()) {
            match self.memory.remote(word_op) {
                Some(word_op) => *to = word_op,
                None => return Posted::Ready(Outcome::Refused(Status::Invalid)),
            }
        }
        let list = &list[..chain.ops().len()];
        match self.post_to_ring(list) {
            Ok(number) => {
                let count = |f: fn(&RemoteOp) -> bool| list.iter().filter(|v| f(v)).count();
                let reads = count(|word_op| {
                    matches!(word_op, RemoteOp::Read { .. } | RemoteOp::ReadPair { .. })
                });
                let notes = count(|word_op| matches!(word_op, RemoteOp::Write { .. }));
                let atomics = list.len() - reads - notes;
                self.counts.add(atomics as u64, reads as u64, notes as u64, 1);
                Posted::Pending(Seq(number))
            }
            Err(status) => Posted::Ready(Outcome::Refused(status)),
        }
    }

    fn poll(&self, posted: Posted) -> Option<Outcome> {
        let number = match posted {
            Posted::Ready(outcome) => return Some(outcome),
            Posted::Pending(seq) => seq.0,
        };
        if !self.owner.is_here() {
            return Some(Outcome::Unknown);
        }
        self.pump.look();
        let outcome = lock(&self.ring).take(&self.pump, number);
        if self.pump.is_broken() {
            self.end();
        }
        outcome
    }

    /// If a ledger write cannot be posted for 5 s the session ends, because the primary must not
    /// rely on the old entry. An entry outside the ledger is ignored.
    fn write_ledger(&self, handle: Handle, entry: LedgerEntry) {
        if self.refusal().is_some() {
            return;
        }
        if let Some(word) = self.memory.entry(handle) {
            self.write(word, entry.into_bits());
        }
    }

    /// Writes the new count of this session to its word of the ledger.
    fn count(&self, counter: Counter) {
        let Some(place) = counter.place().filter(|_| self.refusal().is_none()) else { return };
        let Some(word) = self.memory.count(place) else { return };
        let mut told = lock(&self.told); // the lock keeps the writes of the count in order
        told[place] += 1;
        self.write(word, told[place]);
    }

    fn flush_ledger(&self, until_ns: u64) -> bool {
        // a call that only asks, without waiting, is never late
        let only_asks = boot_ns() >= until_ns;
        match self.refusal() {
            Some(_) => false,
            None => {
                let is_settled = self.pump.settled(false, until_ns).is_ok();
                is_settled && (only_asks || boot_ns() <= until_ns)
            }
        }
    }

    fn send(&self, request: &Request) -> Result<Seq, Status> {
        if let Some(status) = self.refusal() {
            return Err(status);
        }
        let until_ns = deadline_in(SEND_WAIT);
        match self.pump.settled(true, until_ns) {
            Ok(()) => self.send_message(request, until_ns),
            Err(Stop::TimedOut) => Err(Status::TimedOut),
            Err(Stop::Broken) => {
                self.end();
                Err(Status::BadResponse)
            }
        }
    }

    fn reply(&self, seq: Seq, until_ns: u64) -> Result<Option<Reply>, Status> {
        server_clock::reply(&self.clock, self.talk.wait(seq, until_ns))
    }

    fn listen(&self, call: Option<&OnAnswer>) -> Result<Listening, Status> {
        self.talk.listen(call)
    }

    fn inputs(&self) -> [Option<BorrowedFd<'_>>; 2] {
        self.talk.inputs()
    }

    fn has_room(&self) -> bool {
        self.talk.has_room()
    }

    fn forget(&self, seq: Seq) {
        self.talk.forget(seq);
    }

    fn is_cut_off(&self) -> bool {
        !self.probe()
    }

    fn end(&self) {
        if self.owner.is_here() {
            VerbsExecutor::end(self);
        }
    }

    /// # Latency
    /// None; one message round trip, but no more than 2 ms, if the time was not read for about a
    /// second.
    fn now(&self) -> Now {
        self.now_since().1
    }

    #[inline]
    fn now_since(&self) -> (u64, Now) {
        let tracked = || self.clock.tracked();
        let mut clock = tracked();
        let called_ns = boot_ns();
        let mut now_ns = called_ns;
        if clock.estimate.is_stale(now_ns) && self.is_alive() {
            let send = || self.send_message(&Request::Ping, 0);
            let reply = |seq, until_ns| self.reply(seq, until_ns);
            server_clock::ask(&self.clock, &self.ping, now_ns, CLOCK_WAIT_NS, send, reply);
            clock = tracked();
            now_ns = boot_ns();
        }
        (called_ns, clock.at(now_ns))
    }

    #[inline]
    fn local_coarse_ns(&self, _: u64) -> u64 {
        boot_coarse_ns()
    }

    fn is_one_sided(&self) -> bool {
        true
    }

    fn name(&self) -> &'static str {
        "verbs"
    }
}
