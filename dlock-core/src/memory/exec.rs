// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two sides of lock memory: the client's executor and the primary's own access.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Now;
use crate::counters::{Counter, Told, TOLD_MAX};
use crate::ids::{ClientId, Handle, Seq};
use crate::lock::Half;
use crate::memory::word_op::{Chain, Outcome, Values, WordAddr, WordOp};
use crate::memory::words::LedgerEntry;
use crate::wire::message::{Reply, Request};
use crate::wire::status::Status;

/// The client's end of one session's data path: executes chains and carries messages.
///
/// One executor serves all threads of a client instance. The chains and ledger writes of one
/// *thread* take effect in the order in which they were given, and before the primary sees a later
/// request of that thread; requests arrive in order. But a later chain may overtake a request,
/// because one-sided chains (shm, verbs) do not pass through the primary. Code that needs a request
/// to have taken effect waits for its reply. The requests without a reply are safe: `Wake` asks the
/// arbiter to look at the word as it is when the request arrives, and `Abandon` names a ticket that
/// the ledger has dropped before. A `Resolve` whose reply was not awaited is sent again, and
/// awaited, before the next chain on its lock.
pub trait Executor: Send + Sync {
    /// Executes up to [`BATCH_MAX`](crate::limits::BATCH_MAX) chains in order, and waits for the
    /// outcomes, at most `wait`. `outcomes` has the length of `chains`. A chain without an outcome
    /// in time is `Unknown`.
    ///
    /// # Latency
    /// One round trip for the whole batch; on shm no system call and no allocation.
    fn execute(&self, chains: &[Chain], outcomes: &mut [Outcome], wait: Duration);

    /// As [`execute`](Self::execute) for a single word operation, without the copies that a chain
    /// and its outcome take. Waits until `until_ns` of this host's CLOCK_BOOTTIME, which the caller
    /// has just read.
    fn execute_one(&self, word_op: &WordOp, until_ns: u64) -> Single {
        let wait = Duration::from_nanos(until_ns.saturating_sub(self.now().local_ns));
        let mut outcome = [Outcome::Unknown];
        self.execute(&[Chain::one(*word_op)], &mut outcome, wait);
        Single::from(&outcome[0])
    }

    /// Starts one chain and returns at once.
    fn post(&self, chain: &Chain) -> Posted;

    /// The outcome of a posted chain, once; `None`: the chain is not finished.
    fn poll(&self, posted: Posted) -> Option<Outcome>;

    /// Writes an entry of the client's own ledger without waiting. The write takes effect after
    /// every earlier chain and before every later chain and message of this thread.
    fn write_ledger(&self, handle: Handle, entry: LedgerEntry);

    /// Waits, at most `wait`, for all ledger writes of this thread so far to take effect; returns
    /// whether they have. With a `wait` of 0 it only asks, and may be asked again. `false`: not in
    /// time, or not known.
    ///
    /// # Latency
    /// None where ledger writes take effect at once, or in the order of a stream; one round trip on
    /// verbs.
    fn flush_ledger(&self, wait: Duration) -> bool {
        let _ = wait; // the default is for executors whose ledger writes need no flush
        true
    }

    /// Sends a request. The reply is kept until the caller takes or forgets it.
    ///
    /// # Errors
    /// `BadResponse` if the session's connection is gone.
    fn send(&self, request: &Request) -> Result<Seq, Status>;

    /// The reply to a request, waiting at most `wait` (zero: not at all). `Ok(None)`: not yet.
    ///
    /// # Errors
    /// `BadResponse` if the session's connection is gone.
    fn reply(&self, seq: Seq, wait: Duration) -> Result<Option<Reply>, Status>;

    /// Gives the reply to this request up: it is dropped when it comes.
    fn forget(&self, seq: Seq);

    /// Takes the answers that have come, without waiting. From now on the executor calls `call` for
    /// each answer that no thread waits for; `None`: no longer. One listener of a session does this
    /// for callers that look by themselves, with [`poll`](Self::poll), or [`reply`](Self::reply)
    /// without a wait.
    ///
    /// # Errors
    /// `BadResponse` if the session's connection is gone; `Invalid` if this executor cannot tell,
    /// so that callers have to look again and again.
    fn listen(&self, call: Option<&OnAnswer>) -> Result<Listening, Status> {
        let _ = call;
        Err(Status::Invalid)
    }

    /// The descriptors of which one becomes readable when more has come ([`Listening::Inputs`]).
    fn inputs(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [None, None]
    }

    /// Whether a chain, a request and a ledger write can be given now without waiting for room.
    fn has_room(&self) -> bool {
        true
    }

    /// The reason why everything is refused just now; `None`: nothing is refused. While there is
    /// one, nothing of this client is under way.
    fn refusal(&self) -> Option<Status> {
        None
    }

    /// Whether the session's connection is seen to be gone now. The primary may see that, too, and
    /// end what this client has without a lease: such a hold must not be relied on.
    ///
    /// # Latency
    /// One system call where the connection tells it; none on shared memory, where nothing that
    /// is mapped is ended.
    fn is_cut_off(&self) -> bool {
        false
    }

    /// As [`is_cut_off`](Self::is_cut_off), but asks the connection also on fabrics on which that
    /// does not.
    ///
    /// # Latency
    /// One system call.
    fn is_over(&self) -> bool {
        self.is_cut_off()
    }

    /// Ends the session for this client: no call waits any longer, and waiting calls return at
    /// once. An executor whose waits are all short need do nothing.
    fn end(&self) {}

    /// The server clock as this client knows it, this host's CLOCK_BOOTTIME, and how often the
    /// estimate of the server clock has turned out to be wrong.
    fn now(&self) -> Now;

    /// [`now`](Self::now), and this host's CLOCK_BOOTTIME at the beginning of the call: it is
    /// earlier than `local_ns` if the primary had to be asked for the time.
    fn now_since(&self) -> (u64, Now) {
        let now = self.now();
        (now.local_ns, now)
    }

    /// As [`now`](Self::now). `before`: the last reading, which is quick to confirm.
    fn now_again(&self, before: Now) -> Now {
        let _ = before;
        self.now()
    }

    /// Whether [`now`](Self::now) answers at once with all that can be known. If not, the server
    /// clock is being asked for: call again, for a second at most.
    fn is_clock_ready(&self) -> bool {
        true
    }

    /// This host's CLOCK_BOOTTIME as in [`Now::local_ns`], late by at most
    /// [`COARSE_NS_MAX`](crate::clock::COARSE_NS_MAX), and cheap to read. `before_ns`: the last
    /// reading, which is quicker to confirm.
    fn local_coarse_ns(&self, before_ns: u64) -> u64 {
        let _ = before_ns;
        self.now().local_ns
    }

    /// Counts an event for the primary, which does not see it
    /// ([`Effect::Count`](crate::operation::Effect)); the count may be lost with the session. Does
    /// nothing where the primary executes the chains, because it counts such events itself.
    ///
    /// # Latency
    /// None.
    fn count(&self, counter: Counter) {
        let _ = counter;
    }

    /// Whether chains reach the words without the primary. If so, an acquire that finds the lock
    /// held may [try again](crate::lock::LockEntry::may_try) before it queues at the primary.
    fn is_one_sided(&self) -> bool {
        false
    }

    /// Whether reads are free on this fabric, so that chains may carry more of them than they need.
    fn reads_are_free(&self) -> bool {
        false
    }

    /// Whether clients may sleep on a fair lock's word ([`park`](Self::park)).
    fn may_park(&self) -> bool {
        false
    }

    /// Sleeps, at most `limit_ns`, until this half of a word differs from `value` or the clients
    /// that sleep on it are woken.
    fn park(&self, addr: WordAddr, half: Half, value: u32, limit_ns: u64) {
        let _ = (addr, half, value, limit_ns);
    }

    /// Wakes all clients that sleep on this half of the word, or on both halves.
    fn wake(&self, addr: WordAddr, half: Half) {
        let _ = (addr, half);
    }

    /// Whether the primary, which executes this client's chains, records their effect on read-write
    /// locks in the client's ledger itself.
    fn chains_are_noted(&self) -> bool {
        false
    }

    /// The name for people and logs: `shm`, `tcp`, …
    fn name(&self) -> &'static str;
}

/// A function that the executor calls when an answer has come. It must not call the executor.
pub type OnAnswer = Arc<dyn Fn() + Send + Sync>;

/// How a listener learns of the next answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listening {
    /// By [`Executor::inputs`]; then it listens again.
    Inputs,
    /// `call` is called: another thread takes the answers.
    Called,
    /// The listener listens again soon: something waits to be sent.
    Again,
}

/// The outcome of a single word operation: an [`Outcome`] in two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Single {
    /// Executed; the value of the operation.
    Done(u64),
    /// As [`Outcome::Unknown`].
    Unknown,
    /// As [`Outcome::Refused`].
    Refused(Status),
}

impl From<&Outcome> for Single {
    fn from(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Done(values) => {
                values.as_slice().first().map_or(Single::Unknown, |&old| Single::Done(old))
            }
            Outcome::Unknown => Single::Unknown,
            Outcome::Refused(status) => Single::Refused(*status),
        }
    }
}

impl From<Single> for Outcome {
    #[inline]
    fn from(single: Single) -> Self {
        match single {
            Single::Done(old) => {
                let mut values = Values::new();
                values.push(old);
                Outcome::Done(values)
            }
            Single::Unknown => Outcome::Unknown,
            Single::Refused(status) => Outcome::Refused(status),
        }
    }
}

/// A chain that was started by [`Executor::post`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// Executed already; the outcome.
    Ready(Outcome),
    /// Under way, under this number.
    Pending(Seq),
}

/// The primary's own access to lock memory and ledgers. Word operations are executed at once, in
/// the memory's one domain of atomicity.
pub trait LockMemory {
    /// Compare and swap; the old word.
    fn cas(&mut self, addr: WordAddr, expect: u64, swap: u64) -> u64;
    /// Fetch and add; the old word.
    fn faa(&mut self, addr: WordAddr, add: u64) -> u64;
    /// Read a word.
    fn read(&mut self, addr: WordAddr) -> u64;
    /// Set a word on which no client operates now (of a slot that is given out or taken back).
    fn set(&mut self, addr: WordAddr, value: u64);
    /// [Set](Self::set) several words, in this order: one round trip on a device's memory.
    fn set_all(&mut self, words: &[(WordAddr, u64)]) {
        words.iter().for_each(|&(addr, value)| self.set(addr, value));
    }
    /// Wakes all clients that sleep on this word, on either half; does nothing where clients do not
    /// share this memory.
    fn wake(&mut self, addr: WordAddr) {
        let _ = addr;
    }
    /// Read an entry of a client's ledger; empty if the client is not known.
    fn ledger(&mut self, client: ClientId, handle: Handle) -> LedgerEntry;
    /// The counts that a client reports to the primary, since its ledger was made; all 0 for a
    /// client whose chains the primary executes.
    fn told(&mut self, client: ClientId) -> Told {
        let _ = client;
        [0; TOLD_MAX]
    }
    /// Write an entry of a client that is fenced, or waits for the answer, or does not know the
    /// handle yet.
    fn set_ledger(&mut self, client: ClientId, handle: Handle, entry: LedgerEntry);
    /// [Write](Self::set_ledger) that nothing is held.
    fn clear_ledger(&mut self, client: ClientId, handle: Handle) {
        self.set_ledger(client, handle, LedgerEntry::new());
    }
}
