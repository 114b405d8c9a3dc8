// SPDX-License-Identifier: MIT OR Apache-2.0
//! An executor for tests: words in a map, and answers that the test chooses.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use dlock_core::clock::{Now, ServerTime, NS};
use dlock_core::ids::{Handle, Seq};
use dlock_core::memory::exec::{Executor, Posted};
use dlock_core::memory::word_op::{Chain, Outcome, Values, WordOp};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::wire::message::{Reply, Request};
use dlock_core::wire::status::Status;
use parking_lot::Mutex;

/// The local clock, which counts the time for which the machine is suspended; nanoseconds.
fn local_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * NS + now.tv_nsec as u64
}

type Answers = dyn Fn(&Request) -> Option<Reply> + Send;

/// An executor without a primary: words in a map, and answers that the test chooses.
pub struct Fake {
    /// The words, by their numbers.
    pub words: Mutex<HashMap<u32, u64>>,
    /// Whether chains are executed, but their outcomes lost.
    pub deaf: AtomicBool,
    /// How long a chain takes, nanoseconds.
    delay_ns: AtomicU64,
    /// Whether posted chains are never executed.
    pub slow: AtomicBool,
    /// Whether flushes of the ledger fail.
    pub mute: AtomicBool,
    /// The number of flushes of the ledger.
    pub publishes: AtomicU64,
    /// Whether the fake reports that chains reach the words without the primary, and that each word
    /// operation has a cost.
    pub one_sided: AtomicBool,
    /// Whether the fake reports that the words are in the memory of this host.
    pub local: AtomicBool,
    /// The ledger entries that were written within chains.
    pub chained: Mutex<Vec<LedgerEntry>>,
    /// The ledger entries that were written alone.
    pub notes: Mutex<Vec<LedgerEntry>>,
    /// Whether the connection has ended.
    pub gone: AtomicBool,
    /// Whether the server clock is still unknown, while the client asks for it.
    pub clockless: AtomicBool,
    /// The requests that were sent.
    pub requests: Mutex<Vec<Request>>,
    /// The requests whose replies were given up.
    pub forgotten: Mutex<Vec<Seq>>,
    /// How many calls have executed chains.
    pub executes: AtomicU64,
    answers: Mutex<Box<Answers>>,
    replies: Mutex<HashMap<Seq, Reply>>,
    seq: AtomicU64,
}

impl Default for Fake {
    fn default() -> Self {
        Self::new()
    }
}

impl Fake {
    /// A fake whose words are all 0; it answers every request with `Done`.
    pub fn new() -> Self {
        Self {
            words: Mutex::default(),
            deaf: AtomicBool::new(false),
            delay_ns: AtomicU64::new(0),
            slow: AtomicBool::new(false),
            mute: AtomicBool::new(false),
            publishes: AtomicU64::new(0),
            one_sided: AtomicBool::new(false),
            local: AtomicBool::new(false),
            chained: Mutex::default(),
            notes: Mutex::default(),
            gone: AtomicBool::new(false),
            clockless: AtomicBool::new(false),
            requests: Mutex::default(),
            forgotten: Mutex::default(),
            executes: AtomicU64::new(0),
            answers: Mutex::new(Box::new(|_| Some(Reply::Done { word: 0 }))),
            replies: Mutex::default(),
            seq: AtomicU64::new(0),
        }
    }

    /// Sets how long a chain takes.
    pub fn delay(&self, delay: Duration) {
        self.delay_ns.store(delay.as_nanos() as u64, SeqCst);
    }

    /// Sets the function that answers requests from now on, at the moment at which they are sent.
    /// Where it returns `None` the request has no answer, unless [`deliver`](Self::deliver) gives
    /// one.
    pub fn answer(&self, answers: impl Fn(&Request) -> Option<Reply> + Send + 'static) {
        *self.answers.lock() = Box::new(answers);
    }

    /// Answers the first request, or replaces its answer.
    pub fn deliver(&self, reply: Reply) {
        self.replies.lock().insert(Seq(1), reply);
    }

    /// The value of the word with this number.
    pub fn word(&self, index: u32) -> u64 {
        self.words.lock().get(&index).copied().unwrap_or(0)
    }

    fn run(&self, chain: &Chain) -> Outcome {
        if self.gone.load(SeqCst) {
            return Outcome::Refused(Status::BadResponse);
        }
        let mut words = self.words.lock();
        let (mut values, mut pair) = (Values::new(), None);
        for word_op in chain.ops() {
            values.push(match *word_op {
                WordOp::Cas { addr, expect, swap } => {
                    let word = words.entry(addr.index()).or_default();
                    let old = *word;
                    if old == expect {
                        *word = swap;
                    }
                    old
                }
                WordOp::Faa { addr, add } => {
                    let word = words.entry(addr.index()).or_default();
                    let old = *word;
                    *word = old.wrapping_add(add);
                    old
                }
                WordOp::Read { addr } => words.get(&addr.index()).copied().unwrap_or(0),
                WordOp::ReadPair { addr } => {
                    pair = Some(words.get(&addr.next().index()).copied().unwrap_or(0));
                    words.get(&addr.index()).copied().unwrap_or(0)
                }
                WordOp::WriteLedger { value, .. } => {
                    self.chained.lock().push(LedgerEntry::from_bits(value));
                    0
                }
            });
        }
        // the values of the two words that are read together come last
        pair.into_iter().for_each(|value| values.push(value));
        if self.deaf.load(SeqCst) {
            return Outcome::Unknown;
        }
        Outcome::Done(values)
    }
}

impl Executor for Fake {
    fn is_clock_ready(&self) -> bool {
        !self.clockless.load(SeqCst)
    }

    fn execute(&self, chains: &[Chain], outcomes: &mut [Outcome], _until_ns: u64) {
        self.executes.fetch_add(1, SeqCst);
        std::thread::sleep(Duration::from_nanos(self.delay_ns.load(SeqCst)));
        for (chain, outcome) in chains.iter().zip(outcomes) {
            *outcome = self.run(chain);
        }
    }

    fn post(&self, chain: &Chain) -> Posted {
        if self.slow.load(SeqCst) {
            return Posted::Pending(Seq(self.seq.fetch_add(1, SeqCst) + 1));
        }
        Posted::Ready(self.run(chain))
    }

    fn poll(&self, posted: Posted) -> Option<Outcome> {
        match posted {
            Posted::Ready(outcome) => Some(outcome),
            Posted::Pending(_) => None,
        }
    }

    fn write_ledger(&self, _handle: Handle, entry: LedgerEntry) {
        self.notes.lock().push(entry);
    }

    fn is_one_sided(&self) -> bool {
        self.one_sided.load(SeqCst)
    }

    fn reads_are_free(&self) -> bool {
        self.local.load(SeqCst)
    }

    fn flush_ledger(&self, _until_ns: u64) -> bool {
        self.publishes.fetch_add(1, SeqCst);
        !self.mute.load(SeqCst)
    }

    fn send(&self, request: &Request) -> Result<Seq, Status> {
        if self.gone.load(SeqCst) {
            return Err(Status::BadResponse);
        }
        let seq = Seq(self.seq.fetch_add(1, SeqCst) + 1);
        self.requests.lock().push(*request);
        if let Some(reply) = (self.answers.lock())(request) {
            self.replies.lock().insert(seq, reply);
        }
        Ok(seq)
    }

    /// Never waits: a request without an answer by now gets none later.
    fn reply(&self, seq: Seq, _until_ns: u64) -> Result<Option<Reply>, Status> {
        Ok(self.replies.lock().remove(&seq))
    }

    fn forget(&self, seq: Seq) {
        self.forgotten.lock().push(seq);
    }

    fn is_cut_off(&self) -> bool {
        self.gone.load(SeqCst)
    }

    fn now(&self) -> Now {
        Now { local_ns: local_ns(), ..Now::exact(ServerTime(1_000 * NS)) }
    }

    fn name(&self) -> &'static str {
        "fake"
    }
}
