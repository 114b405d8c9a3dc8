// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two sides of lock memory: the client's executor and the primary's own access.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

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
/// *thread* take effect in the order in which the thread gave them, and before the primary sees a
/// later request of that thread; requests arrive in order. But a later chain may overtake a
/// request, because one-sided chains (shm, verbs) do not pass through the primary. Code that needs
/// a request to have taken effect waits for its reply. The requests without a reply are safe:
/// `Wake` asks the arbiter to look at the word as it is when the request arrives, and `Abandon`
/// names a ticket that the ledger has dropped before. If a client has not waited for the reply to a
/// `Resolve`, it sends the `Resolve` again, and waits, before the next chain on that lock.
pub trait Executor: Send + Sync {
    /// Executes up to [`BATCH_MAX`](crate::limits::BATCH_MAX) chains in order, and waits for the
    /// outcomes, until `until_ns` of the client's own clock ([`Now::local_ns`]) at most. `outcomes`
    /// has the length of `chains`. A chain without an outcome in time is `Unknown`.
    ///
    /// # Latency
    /// One round trip for the whole batch; on shm no system call and no allocation.
    fn execute(&self, chains: &[Chain], outcomes: &mut [Outcome], until_ns: u64);

    /// Like [`execute`](Self::execute) for a single word operation, without the copies that a chain
    /// and its outcome take.
    fn execute_one(&self, word_op: &WordOp, until_ns: u64) -> Single {
        let mut outcome = [Outcome::Unknown];
        self.execute(&[Chain::one(*word_op)], &mut outcome, until_ns);
        Single::from(&outcome[0])
    }

    /// Starts one chain and returns at once.
    fn post(&self, chain: &Chain) -> Posted;

    /// Takes the outcome of a posted chain; `None`: the chain has not finished.
    fn poll(&self, posted: Posted) -> Option<Outcome>;

    /// Writes an entry of the client's own ledger without waiting. The write takes effect after
    /// every earlier chain and before every later chain and message of this thread.
    fn write_ledger(&self, handle: Handle, entry: LedgerEntry);

    /// Waits, until `until_ns` at most, until all ledger writes of this thread so far have taken
    /// effect; returns whether they have. With an `until_ns` that has passed (0) it only asks, and
    /// the caller may ask again. `false`: not in time, or not known.
    ///
    /// # Latency
    /// None where ledger writes take effect at once, or in the order of a stream; one round trip on
    /// verbs.
    fn flush_ledger(&self, until_ns: u64) -> bool {
        let _ = until_ns; // the default is for executors whose ledger writes need no flush
        true
    }

    /// Sends a request. The executor keeps the reply until the caller takes or forgets it.
    ///
    /// # Errors
    /// `BadResponse` if the session's connection is gone.
    fn send(&self, request: &Request) -> Result<Seq, Status>;

    /// Takes the reply to a request; waits until `until_ns` at most (0: not at all). `Ok(None)`:
    /// none yet.
    ///
    /// # Errors
    /// `BadResponse` if the session's connection is gone.
    fn reply(&self, seq: Seq, until_ns: u64) -> Result<Option<Reply>, Status>;

    /// Gives up the reply to this request: the executor drops it when it comes.
    fn forget(&self, seq: Seq);

    /// Takes the answers that have come, without waiting. From now on the executor calls `call` for
    /// each answer for which no thread waits; `None`: it no longer calls. One listener of a session
    /// does this for callers that look by themselves, with [`poll`](Self::poll), or with
    /// [`reply`](Self::reply) and no wait.
    ///
    /// # Errors
    /// `BadResponse` if the session's connection is gone; `Invalid` if this executor cannot report
    /// answers, so that callers have to look again and again.
    fn listen(&self, call: Option<&OnAnswer>) -> Result<Listening, Status> {
        let _ = call;
        Err(Status::Invalid)
    }

    /// Two descriptors; one of them becomes readable when more has come ([`Listening::Inputs`]).
    fn inputs(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [None, None]
    }

    /// Whether the executor takes a chain, a request and a ledger write now without waiting for
    /// room.
    fn has_room(&self) -> bool {
        true
    }

    /// Why the executor refuses everything at present; `None`: it refuses nothing. While there is a
    /// reason, nothing of this client is under way.
    fn refusal(&self) -> Option<Status> {
        None
    }

    /// Whether the session's connection is gone, as far as the executor sees. The primary may have
    /// seen that, too, and ended what this client has without a lease: the client must not rely on
    /// such a hold.
    ///
    /// # Latency
    /// One system call where the connection tells it; none on shared memory, where the primary ends
    /// nothing of a client that still has the memory mapped.
    fn is_cut_off(&self) -> bool {
        false
    }

    /// Like [`is_cut_off`](Self::is_cut_off), but asks the connection on every fabric.
    ///
    /// # Latency
    /// One system call.
    fn is_over(&self) -> bool {
        self.is_cut_off()
    }

    /// Ends the session for this client: no call waits any longer, and calls that wait return at
    /// once. An executor whose waits are all short need not do anything.
    fn end(&self) {}

    /// The server clock as this client knows it, with this host's CLOCK_BOOTTIME, and with how
    /// often the estimate of the server clock has turned out to be wrong.
    fn now(&self) -> Now;

    /// [`now`](Self::now), and this host's CLOCK_BOOTTIME at the beginning of the call, which is
    /// earlier than `local_ns` if the executor had to ask the primary for the time.
    fn now_since(&self) -> (u64, Now) {
        let now = self.now();
        (now.local_ns, now)
    }

    /// Like [`now`](Self::now). `before`: the last reading, which is quick to confirm.
    fn now_again(&self, before: Now) -> Now {
        let _ = before;
        self.now()
    }

    /// Whether [`now`](Self::now) answers at once with the best estimate. If not, the executor is
    /// asking the primary for the server clock: call again, for a second at most.
    fn is_clock_ready(&self) -> bool {
        true
    }

    /// This host's CLOCK_BOOTTIME as in [`Now::local_ns`]: late by at most
    /// [`COARSE_NS_MAX`](crate::clock::COARSE_NS_MAX), and cheap to read. `before_ns`: the last
    /// reading, which is quick to confirm.
    fn local_coarse_ns(&self, before_ns: u64) -> u64 {
        let _ = before_ns;
        self.now().local_ns
    }

    /// Counts an event for the primary, which does not see it
    /// ([`Effect::Count`](crate::operation::Effect)); the count may be lost with the session. Does
    /// nothing where the primary executes the chains, because it then counts such events itself.
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

    /// Whether reads are free on this fabric, so that chains may carry more reads than they need.
    fn reads_are_free(&self) -> bool {
        false
    }

    /// Whether clients may sleep on a fair lock's word ([`park`](Self::park)).
    fn may_park(&self) -> bool {
        false
    }

    /// Sleeps, at most `limit_ns`, until this half of a word differs from `value`, or until another
    /// process wakes the clients that sleep on it.
    fn park(&self, addr: WordAddr, half: Half, value: u32, limit_ns: u64) {
        let _ = (addr, half, value, limit_ns);
    }

    /// Wakes all clients that sleep on this half of the word, or on both halves.
    fn wake(&self, addr: WordAddr, half: Half) {
        let _ = (addr, half);
    }

    /// Whether the primary, which executes this client's chains, itself records their effect on
    /// read-write locks in the client's ledger.
    fn chains_are_noted(&self) -> bool {
        false
    }

    /// The name for users and logs: `shm`, `tcp`, …
    fn name(&self) -> &'static str;
}

/// A function that the executor calls when an answer has come. It must not call the executor.
pub type OnAnswer = Arc<dyn Fn() + Send + Sync>;

/// How a listener learns that there is another answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listening {
    /// One of [`Executor::inputs`] becomes readable; then the listener listens again.
    Inputs,
    /// The executor calls `call`: another thread takes the answers.
    Called,
    /// The listener listens again soon, because the executor still has something to send.
    Again,
}

/// The outcome of a single word operation: an [`Outcome`] in two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Single {
    /// The operation was executed; its value.
    Done(u64),
    /// Like [`Outcome::Unknown`].
    Unknown,
    /// Like [`Outcome::Refused`].
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
    /// The chain is executed; its outcome.
    Ready(Outcome),
    /// The chain is under way, under this number.
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
    /// The counts that a client has reported to the primary since its ledger was made; all 0 for a
    /// client whose chains the primary executes.
    fn told(&mut self, client: ClientId) -> Told {
        let _ = client;
        [0; TOLD_MAX]
    }
    /// Write an entry of a client that is fenced, or waits for the answer, or does not yet know the
    /// handle.
    fn set_ledger(&mut self, client: ClientId, handle: Handle, entry: LedgerEntry);
    /// [Write](Self::set_ledger) that the client holds nothing.
    fn clear_ledger(&mut self, client: ClientId, handle: Handle) {
        self.set_ledger(client, handle, LedgerEntry::new());
    }
}
