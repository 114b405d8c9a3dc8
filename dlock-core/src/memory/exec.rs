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
/// One object serves all threads of a client instance. Of one *thread*, chains and notes take
/// effect in the order in which they were given, and before the primary sees a later request;
/// requests arrive in their order. But a later chain may overtake a request: where chains are
/// one-sided (shm, verbs), they do not pass through the primary. Whoever needs a request to have
/// taken effect waits for its reply. The client's state machines do: of the requests that have
/// none, `Wake` asks the arbiter to look at the word as it is by then, and `Abandon` names the
/// ticket that the ledger has dropped before; a `Resolve` that was not waited for is sent again,
/// and waited for, before the next chain on its lock.
pub trait Executor: Send + Sync {
    /// Executes up to [`BATCH_MAX`](crate::limits::BATCH_MAX) chains, the first chain's verbs
    /// before the second's, and waits for the outcomes, at most `wait`. `outcomes` has the
    /// length of `chains`. What has no outcome in time is `Unknown`.
    ///
    /// # Latency
    /// One round trip for the whole batch; on shm no system call and no allocation.
    fn execute(&self, chains: &[Chain], outcomes: &mut [Outcome], wait: Duration);

    /// As [`execute`](Self::execute) for a single word operation on a word, without the copies that
    /// a chain and its outcome take. It is waited for until `until_ns` of this host's
    /// CLOCK_BOOTTIME: the caller has just read that.
    fn execute_one(&self, word_op: &WordOp, until_ns: u64) -> Single {
        let wait = Duration::from_nanos(until_ns.saturating_sub(self.now().local_ns));
        let mut outcome = [Outcome::Unknown];
        self.execute(&[Chain::one(*word_op)], &mut outcome, wait);
        Single::from(&outcome[0])
    }

    /// Starts one chain and returns at once.
    fn post(&self, chain: &Chain) -> Posted;

    /// The outcome of a posted chain, once; `None`: not finished.
    fn poll(&self, posted: Posted) -> Option<Outcome>;

    /// Writes an entry of my ledger without waiting. It takes effect after every chain and
    /// before every later chain and message of this thread.
    fn write_ledger(&self, handle: Handle, entry: LedgerEntry);

    /// Whether all notes that this thread has given so far have taken effect, waiting at most
    /// `wait` for them; with 0, it only asks, and may be asked again. `false`: not in time, or it
    /// cannot be known.
    ///
    /// # Latency
    /// None where notes take effect at once, or in the order of a stream; one round trip on
    /// verbs.
    fn flush_ledger(&self, wait: Duration) -> bool {
        let _ = wait; // an executor whose notes are out when `note` returns has none to wait for
        true
    }

    /// Sends a request. Its reply is kept until it is asked for or forgotten.
    ///
    /// # Errors
    /// `BadResponse` if the session's connection is gone.
    fn send(&self, request: &Request) -> Result<Seq, Status>;

    /// The reply to a request, waiting at most `wait` (zero: not at all). `Ok(None)`: not yet.
    ///
    /// # Errors
    /// `BadResponse` if the session's connection is gone.
    fn reply(&self, seq: Seq, wait: Duration) -> Result<Option<Reply>, Status>;

    /// The reply to this request is not wanted any more; it is dropped when it comes.
    fn forget(&self, seq: Seq);

    /// Takes the answers that have come, without waiting. From now on `call` is called for each
    /// answer that no thread waits for; `None`: no longer. One listener of a session does so for
    /// those that look by themselves, with [`poll`](Self::poll), or [`reply`](Self::reply) and no
    /// wait.
    ///
    /// # Errors
    /// `BadResponse` if the session's connection is gone; `Invalid` if this executor cannot tell:
    /// those that wait have to look again and again.
    fn listen(&self, call: Option<&OnAnswer>) -> Result<Listening, Status> {
        let _ = call;
        Err(Status::Invalid)
    }

    /// The descriptors of which one is readable when more has come ([`Listening::Inputs`]).
    fn inputs(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [None, None]
    }

    /// Whether a chain, a request and a note can be given now without waiting for room.
    fn has_room(&self) -> bool {
        true
    }

    /// Why everything is refused just now, if it is: nothing of this client is under way then.
    fn refusal(&self) -> Option<Status> {
        None
    }

    /// Whether the session's connection is seen to be gone now. The primary may see it, too, and
    /// end what this client has without a lease: such a hold must not be relied on.
    ///
    /// # Latency
    /// One system call where the connection tells it; none on shared memory, where nothing that
    /// is mapped is ended.
    fn is_cut_off(&self) -> bool {
        false
    }

    /// As [`is_cut_off`](Self::is_cut_off), and asks the connection also where that does not.
    ///
    /// # Latency
    /// One system call.
    fn is_over(&self) -> bool {
        self.is_cut_off()
    }

    /// The session is over for this client: nothing is waited for any more, and whoever waits is
    /// told at once. An executor whose waits are all short need not do anything.
    fn end(&self) {}

    /// The server clock as this client knows it, this host's CLOCK_BOOTTIME, and how often the
    /// former has turned out to be wrong.
    fn now(&self) -> Now;

    /// [`now`](Self::now), and what this host's CLOCK_BOOTTIME was when it was called: before
    /// `local_ns` by as much as it took to ask for the time.
    fn now_since(&self) -> (u64, Now) {
        let now = self.now();
        (now.local_ns, now)
    }

    /// As [`now`](Self::now). `before`: what was read last, which is quick to confirm.
    fn now_again(&self, before: Now) -> Now {
        let _ = before;
        self.now()
    }

    /// Whether [`now`](Self::now) will answer at once with what can be known. If not, the server
    /// clock is being asked for: look again, for a second at most.
    fn is_clock_ready(&self) -> bool {
        true
    }

    /// This host's CLOCK_BOOTTIME as [`Now::local_ns`] has it, late by at most
    /// [`COARSE_NS_MAX`](crate::clock::COARSE_NS_MAX), and cheap to read. `before_ns`: what was
    /// read last, which is quicker to confirm.
    fn local_coarse_ns(&self, before_ns: u64) -> u64 {
        let _ = before_ns;
        self.now().local_ns
    }

    /// Counts an event for the primary, which does not see it
    /// ([`Effect::Count`](crate::operation::Effect)); may be lost with the session. Nothing where
    /// the primary executes the chains: it counts them itself.
    ///
    /// # Latency
    /// None.
    fn count(&self, counter: Counter) {
        let _ = counter;
    }

    /// Whether chains reach the words without the primary: then who waits for a lock may
    /// [try again](crate::lock::LockEntry::may_try) before it queues there. Where the primary
    /// executes them, it may as well wait.
    fn is_one_sided(&self) -> bool {
        false
    }

    /// Reads are free here, so that chains may carry more of them than they need.
    fn reads_are_free(&self) -> bool {
        false
    }

    /// Whether clients of this lock may sleep on a fair lock's word ([`park`](Self::park)).
    fn may_park(&self) -> bool {
        false
    }

    /// Sleeps until this half of a word has another value than this, or clients that sleep on it
    /// are woken, for `limit_ns` at most.
    fn park(&self, addr: WordAddr, half: Half, value: u32, limit_ns: u64) {
        let _ = (addr, half, value, limit_ns);
    }

    /// Wakes all clients that sleep on this word: on its lower half, or on both.
    fn wake(&self, addr: WordAddr, half: Half) {
        let _ = (addr, half);
    }

    /// Whether the primary notes in the ledger what the chains of this client on read-write locks
    /// have taken and released: it executes them.
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
    /// It is called: another thread takes what comes.
    Called,
    /// It listens again soon: something waits to be sent.
    Again,
}

/// What became of a single word operation: an [`Outcome`] in two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Single {
    /// Executed; its value.
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
    /// Executed already.
    Ready(Outcome),
    /// Under way, under this number.
    Pending(Seq),
}

/// The primary's own access to lock memory and ledgers: the same verbs, executed at once, in
/// the one atomicity domain of the memory.
pub trait LockMemory {
    /// Compare and swap; the old word.
    fn cas(&mut self, addr: WordAddr, expect: u64, swap: u64) -> u64;
    /// Fetch and add; the old word.
    fn faa(&mut self, addr: WordAddr, add: u64) -> u64;
    /// Read a word.
    fn read(&mut self, addr: WordAddr) -> u64;
    /// Set a word nobody else operates on now (a slot being given out or taken back).
    fn set(&mut self, addr: WordAddr, value: u64);
    /// [Set](Self::set) several words, in this order: one round trip where there are any.
    fn set_all(&mut self, words: &[(WordAddr, u64)]) {
        words.iter().for_each(|&(addr, value)| self.set(addr, value));
    }
    /// Wakes all clients that sleep on this word, on either half: where clients share this memory.
    fn wake(&mut self, addr: WordAddr) {
        let _ = addr;
    }
    /// Read an entry of a client's ledger; an unknown client's is empty.
    fn ledger(&mut self, client: ClientId, handle: Handle) -> LedgerEntry;
    /// What a client has counted for the primary since its ledger was made, as it says itself; all
    /// 0 of a client whose chains the primary executes.
    fn told(&mut self, client: ClientId) -> Told {
        let _ = client;
        [0; TOLD_MAX]
    }
    /// Write an entry of a client that is fenced, or that waits for the answer, or that does not
    /// know the handle yet.
    fn set_ledger(&mut self, client: ClientId, handle: Handle, entry: LedgerEntry);
    /// [Write](Self::set_ledger) that nothing is held.
    fn clear_ledger(&mut self, client: ClientId, handle: Handle) {
        self.set_ledger(client, handle, LedgerEntry::new());
    }
}
