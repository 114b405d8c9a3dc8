// SPDX-License-Identifier: MIT OR Apache-2.0
//! An executor for tests between an instance and a real one: it can hold up chains and replies,
//! lose ledger writes, and shift the clock.
//!
//! ```text
//!   instance ─▶ Late ─▶ the executor ─▶ a primary
//!               hold(point, n): the next but n to pass there is held until let_go
//! ```

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Duration;

use dlock_core::clock::{Now, ServerTime};
use dlock_core::counters::Counter;
use dlock_core::ids::{Handle, Seq};
use dlock_core::memory::exec::{Executor, Posted, Single};
use dlock_core::memory::word_op::{Chain, Outcome, WordOp};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::wire::message::{Reply, Request};
use dlock_core::wire::status::Status;
use parking_lot::{Condvar, Mutex};

/// How long a test may be held up before it fails.
const STUCK: Duration = Duration::from_secs(120);
/// The number of a posted chain that is held here, and executed when it is polled.
const LATE: Seq = Seq(u64::MAX);

/// A place at which a chain or a reply can be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// A chain, before it is executed.
    Chain,
    /// A posted chain, which is executed when it is polled, and not before.
    Poll,
    /// A reply that has come, before it is returned.
    Reply,
}

#[derive(Default)]
struct Gate {
    /// The point at which a chain or reply is to be held next, and how many pass there before it.
    next: Option<(Point, u32)>,
    is_held: bool,
    is_open: bool,
    posted: Option<Chain>,
}

/// An executor that can hold up what passes through it.
pub struct Late {
    inner: Arc<dyn Executor>,
    /// How far the clock is ahead of the primary's, nanoseconds.
    ahead_ns: i64,
    /// Whether ledger writes are lost.
    pub mute: AtomicBool,
    gate: Mutex<Gate>,
    changed: Condvar,
}

impl Late {
    /// An executor in front of `inner`, with a clock that is `ahead_ns` ahead of the primary's.
    pub fn new(inner: Arc<dyn Executor>, ahead_ns: i64) -> Self {
        let (gate, changed) = (Mutex::default(), Condvar::new());
        Self { inner, ahead_ns, mute: AtomicBool::new(false), gate, changed }
    }

    /// Holds up the next chain or reply at this point until [`let_go`](Self::let_go), after `pass`
    /// others.
    pub fn hold(&self, point: Point, pass: u32) {
        *self.gate.lock() = Gate { next: Some((point, pass)), ..Gate::default() };
    }

    /// Waits until a chain or reply is held, or `is_over` returns true; returns whether one is
    /// held.
    pub fn is_reached(&self, mut is_over: impl FnMut() -> bool) -> bool {
        let mut gate = self.gate.lock();
        while !gate.is_held && !is_over() {
            self.changed.wait_for(&mut gate, Duration::from_millis(1));
        }
        gate.is_held
    }

    /// Lets the held chain or reply go on.
    pub fn let_go(&self) {
        let mut gate = self.gate.lock();
        gate.is_open = true;
        gate.next = None;
        self.changed.notify_all();
    }

    fn pass(&self, point: Point) {
        let mut gate = self.gate.lock();
        match gate.next {
            Some((at, 0)) if at == point => {}
            Some((at, n)) if at == point => return gate.next = Some((at, n - 1)),
            _ => return,
        }
        gate.next = None;
        gate.is_held = true;
        self.changed.notify_all();
        while !gate.is_open {
            let stuck = self.changed.wait_for(&mut gate, STUCK).timed_out();
            assert!(!stuck, "nobody has let go");
        }
    }
}

impl Executor for Late {
    fn execute(&self, chains: &[Chain], outcomes: &mut [Outcome], until_ns: u64) {
        self.pass(Point::Chain);
        self.inner.execute(chains, outcomes, until_ns);
    }

    fn execute_one(&self, word_op: &WordOp, until_ns: u64) -> Single {
        self.pass(Point::Chain);
        self.inner.execute_one(word_op, until_ns)
    }

    fn post(&self, chain: &Chain) -> Posted {
        self.pass(Point::Chain);
        let mut gate = self.gate.lock();
        if matches!(gate.next, Some((Point::Poll, 0))) {
            gate.posted = Some(*chain);
            return Posted::Pending(LATE);
        }
        drop(gate);
        self.inner.post(chain)
    }

    fn poll(&self, posted: Posted) -> Option<Outcome> {
        if posted != Posted::Pending(LATE) {
            return self.inner.poll(posted);
        }
        self.pass(Point::Poll);
        let chain = self.gate.lock().posted.take()?;
        let mut outcome = [Outcome::Unknown];
        self.inner.execute(
            &[chain],
            &mut outcome,
            self.inner.now().local_ns + STUCK.as_nanos() as u64,
        );
        Some(outcome[0])
    }

    fn write_ledger(&self, handle: Handle, entry: LedgerEntry) {
        if !self.mute.load(SeqCst) {
            self.inner.write_ledger(handle, entry);
        }
    }

    fn flush_ledger(&self, until_ns: u64) -> bool {
        self.inner.flush_ledger(until_ns)
    }

    fn send(&self, request: &Request) -> Result<Seq, Status> {
        self.inner.send(request)
    }

    fn reply(&self, seq: Seq, until_ns: u64) -> Result<Option<Reply>, Status> {
        let reply = self.inner.reply(seq, until_ns);
        self.pass(Point::Reply);
        reply
    }

    fn forget(&self, seq: Seq) {
        self.inner.forget(seq);
    }

    fn is_cut_off(&self) -> bool {
        self.inner.is_cut_off()
    }

    fn is_over(&self) -> bool {
        self.inner.is_over()
    }

    fn end(&self) {
        self.inner.end();
    }

    fn count(&self, counter: Counter) {
        self.inner.count(counter);
    }

    fn now(&self) -> Now {
        let now = self.inner.now();
        Now { time: ServerTime(now.time.0.wrapping_add_signed(self.ahead_ns)), ..now }
    }

    fn now_since(&self) -> (u64, Now) {
        let (called_ns, _) = self.inner.now_since();
        (called_ns, self.now())
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
