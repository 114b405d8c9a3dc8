// SPDX-License-Identifier: MIT OR Apache-2.0
//! An executor that injects faults by seed into a real one.
//!
//! ```text
//!   instance ─▶ Faulty ─▶ shm | tcp | verbs ─▶ primary
//!     delays    before and after a chain, up to longer than a lease
//!     lost      outcomes are `Unknown`: not executed, executed, or executed later (before the
//!               next thing this client does, as a connection in order would)
//!     late      replies, completions and flushes that come later than they are asked for
//!     twice     requests that change nothing when they are repeated
//!     break     a moment in which messages are swallowed, then everything is refused until reinit
//! ```
//! Only what the contract of [`Executor`] permits is injected: a message is lost only by a break,
//! and a ledger write only where it travels (shared memory loses none).

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use dlock_core::clock::Now;
use dlock_core::counters::Counter;
use dlock_core::ids::{Handle, Seq};
use dlock_core::memory::exec::{Executor, Posted, Single};
use dlock_core::memory::word_op::{Chain, Outcome, WordOp};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::wire::message::{Reply, Request};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::{boot_ns, deadline_in, left_until};
use parking_lot::Mutex;

use crate::rng::Rng;

/// The longest delay, which is longer than the leases of the programs.
pub const DELAY_MAX: Duration = Duration::from_millis(2_500);
/// How long a caller waits for the reply to a swallowed request before it is told of the break.
const SWALLOWED_WAIT: Duration = Duration::from_millis(20);
/// Numbers above this belong to swallowed requests; the numbers of an executor count from 0.
const SWALLOWED: u64 = 1 << 62;

thread_local! {
    /// The library's last reading of its clock in this thread, if no answer has come since; 0:
    /// none.
    static CHECKED: Cell<u64> = const { Cell::new(0) };
    /// The largest uncertainty of the server clock in these readings.
    static UNSURE: Cell<u64> = const { Cell::new(0) };
}

/// The last reading of the clock by the library in this thread, if no answer has come since; 0:
/// none.
pub fn checked_ns() -> u64 {
    CHECKED.get()
}

/// The largest uncertainty of the server clock that this thread's library has read since this was
/// called last, nanoseconds.
pub fn take_unsure_ns() -> u64 {
    UNSURE.take()
}

fn has_read(now: &Now) {
    CHECKED.set(now.local_ns);
    UNSURE.set(UNSURE.get().max(now.uncertainty_ns));
}

/// How often each fault is injected, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// How often a chain is delayed by up to 3 ms.
    pub delay: u32,
    /// How often a chain is delayed by up to [`DELAY_MAX`].
    pub long: u32,
    /// How often the outcome of a chain is lost.
    pub lost: u32,
    /// How often a reply, completion or flush comes late.
    pub late: u32,
    /// How often a request is sent twice.
    pub twice: u32,
    /// How often the executor breaks.
    pub breaks: u32,
}

impl Rates {
    /// A random one of several mixtures.
    pub fn drawn(rng: &mut Rng) -> Self {
        let all = Self { delay: 50, long: 1, lost: 10, late: 30, twice: 100, breaks: 2 };
        match rng.below(5) {
            0 => Self { delay: 200, long: 12, ..Self::default() },
            1 => Self { lost: 60, delay: 20, ..Self::default() },
            2 => Self { late: 150, twice: 300, ..Self::default() },
            3 => Self { breaks: 15, late: 30, ..Self::default() },
            _ => all,
        }
    }
}

/// What happens to a chain: it passes, or a fault is injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Passes,
    NeverExecuted,
    AnswerLost,
    ExecutedLater,
}

struct State {
    rng: Rng,
    /// Chains that are executed before the client's next operation.
    later: Vec<Chain>,
    /// Replies that have come, each with the time before which the client does not see it.
    replies: HashMap<Seq, (u64, Reply)>,
    /// Posted chains whose outcome is lost; in `held`, those whose outcome is not visible before
    /// this time.
    lost: HashSet<Seq>,
    held: HashMap<Seq, u64>,
    swallowed: u64,
}

/// An executor that injects faults into another one.
pub struct Faulty {
    inner: Arc<dyn Executor>,
    rates: Rates,
    state: Mutex<State>,
    /// A break has begun: messages are swallowed, and soon all operations are refused.
    is_breaking: AtomicBool,
    is_broken: AtomicBool,
    /// The file in which all operations are logged.
    trace: Option<File>,
}

impl Faulty {
    /// Injects faults, chosen by this seed. With all rates 0, it only records when the clock is
    /// read.
    pub fn new(inner: Arc<dyn Executor>, seed: u64, rates: Rates) -> Self {
        let state = State {
            rng: Rng::new(seed),
            later: Vec::new(),
            replies: HashMap::new(),
            lost: HashSet::new(),
            held: HashMap::new(),
            swallowed: 0,
        };
        let (is_breaking, is_broken) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { inner, rates, state: Mutex::new(state), is_breaking, is_broken, trace: None }
    }

    /// The same executor, which also logs all operations in this file.
    pub fn traced(self, trace: File) -> Self {
        Self { trace: Some(trace), ..self }
    }

    fn trace(&self, what: impl FnOnce() -> String) {
        if let Some(mut trace) = self.trace.as_ref() {
            // a failure to write the trace is ignored
            let _ = trace.write_all(format!("{} {}\n", boot_ns(), what()).as_bytes());
        }
    }

    /// Whether all operations are refused, which lasts until a reinit.
    pub fn is_broken(&self) -> bool {
        self.is_broken.load(SeqCst)
    }

    fn chance(&self, per_mille: u32) -> bool {
        per_mille > 0 && self.state.lock().rng.chance(per_mille)
    }

    fn drawn_below(&self, n: u64) -> u64 {
        self.state.lock().rng.below(n)
    }

    fn delay(&self) {
        if self.chance(self.rates.delay) {
            sleep(Duration::from_micros(self.drawn_below(3_000)));
        }
        if self.chance(self.rates.long) {
            sleep(self.long_delay());
        }
    }

    fn long_delay(&self) -> Duration {
        let max = u64::try_from(DELAY_MAX.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(self.drawn_below(max))
    }

    /// Begins a break at random; returns whether the executor is broken.
    fn breaks(&self) -> bool {
        if self.is_breaking.load(SeqCst) {
            self.is_broken.store(true, SeqCst);
        } else if self.chance(self.rates.breaks) {
            self.is_breaking.store(true, SeqCst);
            self.trace(|| "breaks".into());
            // refuse operations at once, or only after one was swallowed
            self.is_broken.store(self.chance(500), SeqCst);
        }
        self.is_broken()
    }

    /// Executes the chains that were to be executed later.
    fn catch_up(&self) {
        let later = std::mem::take(&mut self.state.lock().later);
        if self.is_broken() {
            return; // a chain that was to be executed later is lost with the connection
        }
        for chain in later {
            self.inner.execute(&[chain], &mut [Outcome::Unknown], deadline_in(DELAY_MAX));
        }
    }

    /// The fate of the next chain.
    fn fate(&self) -> Fate {
        if self.is_breaking.load(SeqCst) && !self.inner.reads_are_free() {
            return Fate::NeverExecuted;
        }
        match self.chance(self.rates.lost) {
            false => Fate::Passes,
            true => match self.drawn_below(3) {
                0 => Fate::NeverExecuted,
                1 => Fate::AnswerLost,
                _ => Fate::ExecutedLater,
            },
        }
    }

    /// Executes chains. All of them pass, or those from a random one on have another fate.
    fn execute_some<C, O: Copy + std::fmt::Debug>(
        &self,
        (chains, outcomes): (&[C], &mut [O]),
        (unknown, refused): (O, O),
        chain: impl Fn(&C) -> Chain + Copy,
        execute: impl Fn(&[C], &mut [O]),
    ) {
        self.catch_up();
        if self.breaks() {
            return outcomes.fill(refused);
        }
        self.delay();
        let fate = self.fate();
        let from = match fate {
            Fate::Passes => chains.len(),
            _ => self.drawn_below(chains.len() as u64) as usize,
        };
        let executed = if fate == Fate::AnswerLost { chains.len() } else { from };
        if executed > 0 {
            execute(&chains[..executed], &mut outcomes[..executed]);
        }
        outcomes[from..].fill(unknown);
        self.trace(|| {
            let chains: Vec<_> = chains.iter().map(chain).collect();
            format!("{fate:?} from {from}: {chains:?} {outcomes:?}")
        });
        if fate == Fate::ExecutedLater {
            self.state.lock().later.extend(chains[from..].iter().map(chain));
        }
        self.delay();
        CHECKED.set(0);
    }

    fn swallow(&self) -> Seq {
        let mut state = self.state.lock();
        state.swallowed += 1;
        Seq(SWALLOWED + state.swallowed)
    }

    /// Returns a reply if its time comes by `until_ns`; otherwise keeps it until then.
    fn hand_over(&self, seq: Seq, until_ns: u64, due_ns: u64, reply: Reply) -> Option<Reply> {
        sleep(left_until(due_ns.min(until_ns)));
        if due_ns <= until_ns.max(boot_ns()) {
            return Some(reply);
        }
        self.trace(|| format!("{seq:?} comes later"));
        self.state.lock().replies.insert(seq, (due_ns, reply));
        None
    }
}

/// Whether a repetition of a request changes nothing. A repeated `Resolve` would: a later chain may
/// overtake the repetition, which then undoes what the chain did.
fn is_repeatable(request: &Request) -> bool {
    matches!(request, Request::Ping | Request::Wake { .. })
        || matches!(request, Request::Abandon { .. } | Request::Cancel { .. })
}

impl Executor for Faulty {
    fn execute(&self, chains: &[Chain], outcomes: &mut [Outcome], until_ns: u64) {
        let others = (Outcome::Unknown, Outcome::Refused(Status::BadResponse));
        let execute = |chains: &[Chain], outcomes: &mut [Outcome]| {
            self.inner.execute(chains, outcomes, until_ns);
        };
        self.execute_some((chains, outcomes), others, |&chain| chain, execute);
    }

    fn execute_one(&self, word_op: &WordOp, until_ns: u64) -> Single {
        let mut single = [Single::Unknown];
        let others = (Single::Unknown, Single::Refused(Status::BadResponse));
        let execute = |verbs: &[WordOp], singles: &mut [Single]| {
            singles[0] = self.inner.execute_one(&verbs[0], until_ns);
        };
        let word_op = std::slice::from_ref(word_op);
        self.execute_some((word_op, &mut single), others, |&word_op| Chain::one(word_op), execute);
        single[0]
    }

    fn post(&self, chain: &Chain) -> Posted {
        self.trace(|| format!("posts {chain:?}"));
        self.catch_up();
        if self.breaks() {
            return Posted::Ready(Outcome::Refused(Status::BadResponse));
        }
        self.delay();
        let fate = self.fate();
        CHECKED.set(0);
        match fate {
            Fate::NeverExecuted => return Posted::Ready(Outcome::Unknown),
            Fate::ExecutedLater => {
                self.state.lock().later.push(*chain);
                return Posted::Ready(Outcome::Unknown);
            }
            Fate::Passes | Fate::AnswerLost => {}
        }
        let is_late = self.chance(self.rates.late);
        let delay = self.long_delay();
        match (self.inner.post(chain), fate) {
            (Posted::Ready(_), Fate::AnswerLost) => Posted::Ready(Outcome::Unknown),
            (Posted::Pending(seq), Fate::AnswerLost) => {
                self.state.lock().lost.insert(seq);
                Posted::Pending(seq)
            }
            (Posted::Pending(seq), _) if is_late => {
                self.state.lock().held.insert(seq, deadline_in(delay));
                Posted::Pending(seq)
            }
            (posted, _) => posted,
        }
    }

    fn poll(&self, posted: Posted) -> Option<Outcome> {
        CHECKED.set(0);
        if let Posted::Pending(seq) = posted {
            if self.state.lock().held.get(&seq).is_some_and(|&due_ns| due_ns > boot_ns()) {
                return None;
            }
        }
        let outcome = self.inner.poll(posted)?;
        self.trace(|| format!("{posted:?} came to {outcome:?}"));
        let Posted::Pending(seq) = posted else { return Some(outcome) };
        let mut state = self.state.lock();
        state.held.remove(&seq);
        Some(if state.lost.remove(&seq) { Outcome::Unknown } else { outcome })
    }

    fn write_ledger(&self, handle: Handle, entry: LedgerEntry) {
        self.catch_up();
        let is_lost = self.is_breaking.load(SeqCst) && !self.inner.reads_are_free();
        self.trace(|| format!("notes {handle:?} {entry:?}, lost: {is_lost}"));
        if !is_lost {
            self.inner.write_ledger(handle, entry);
        }
    }

    fn flush_ledger(&self, until_ns: u64) -> bool {
        self.delay();
        let is_flushed = self.inner.flush_ledger(until_ns);
        CHECKED.set(0);
        is_flushed && !self.is_breaking.load(SeqCst) && !self.chance(self.rates.late)
    }

    fn send(&self, request: &Request) -> Result<Seq, Status> {
        self.catch_up();
        if self.breaks() {
            return Err(Status::BadResponse);
        }
        if self.is_breaking.load(SeqCst) {
            return Ok(self.swallow());
        }
        self.delay();
        let seq = self.inner.send(request)?;
        self.trace(|| format!("sends {seq:?} {request:?}"));
        if is_repeatable(request) && self.chance(self.rates.twice) {
            self.trace(|| "and once more".into());
            if let Ok(again) = self.inner.send(request) {
                self.inner.forget(again);
            }
        }
        Ok(seq)
    }

    fn reply(&self, seq: Seq, until_ns: u64) -> Result<Option<Reply>, Status> {
        CHECKED.set(0);
        if seq.0 > SWALLOWED {
            sleep(left_until(until_ns).min(SWALLOWED_WAIT));
            self.is_broken.store(true, SeqCst);
        }
        if self.is_broken() || seq.0 > SWALLOWED {
            return Err(Status::BadResponse);
        }
        let held = self.state.lock().replies.remove(&seq);
        if let Some((due_ns, reply)) = held {
            return Ok(self.hand_over(seq, until_ns, due_ns, reply));
        }
        let reply = self.inner.reply(seq, until_ns)?;
        self.trace(|| format!("gets {seq:?} {reply:?}"));
        CHECKED.set(0);
        let Some(reply) = reply else { return Ok(None) };
        if !self.chance(self.rates.late) {
            return Ok(Some(reply));
        }
        let delay = match self.chance(100) {
            true => self.long_delay(),
            false => Duration::from_micros(self.drawn_below(5_000)),
        };
        Ok(self.hand_over(seq, until_ns, deadline_in(delay), reply))
    }

    fn forget(&self, seq: Seq) {
        let was_held = {
            let mut state = self.state.lock();
            state.held.remove(&seq);
            state.lost.remove(&seq);
            state.replies.remove(&seq).is_some()
        };
        if !was_held && seq.0 <= SWALLOWED {
            self.inner.forget(seq);
        }
    }

    fn refusal(&self) -> Option<Status> {
        self.inner.refusal()
    }

    fn is_cut_off(&self) -> bool {
        self.inner.is_cut_off()
    }

    fn end(&self) {
        self.inner.end();
    }

    fn count(&self, counter: Counter) {
        self.inner.count(counter);
    }

    fn now(&self) -> Now {
        let now = self.inner.now();
        has_read(&now);
        now
    }

    fn now_since(&self) -> (u64, Now) {
        let (called_ns, now) = self.inner.now_since();
        has_read(&now);
        (called_ns, now)
    }

    fn local_coarse_ns(&self, before_ns: u64) -> u64 {
        let now_ns = self.inner.local_coarse_ns(before_ns);
        CHECKED.set(now_ns);
        now_ns
    }

    fn is_one_sided(&self) -> bool {
        self.inner.is_one_sided()
    }

    fn reads_are_free(&self) -> bool {
        self.inner.reads_are_free()
    }

    fn chains_are_noted(&self) -> bool {
        self.inner.chains_are_noted()
    }

    fn name(&self) -> &'static str {
        self.inner.name()
    }
}
