// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data path over RDMA verbs, attached at once or later.
//!
//! ```text
//!   session ── primary serves ────▶ attached ─▶ everything goes to the VerbsExecutor
//!           └─ primary recovers ──▶ every operation first tries to attach, RETRY apart, and is
//!                                   refused with NotReady as long as the primary refuses that
//! ```
//! A recovering primary cannot refuse one-sided verbs at its memory, so it gives no client access
//! before the recovery has ended. Until then the client keeps ledger writes, and does them once it
//! has a ledger. The time for attaching, 5 s at most, is part of the operation's time.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::time::Duration;

use dlock_core::clock::Now;
use dlock_core::counters::Counter;
use dlock_core::ids::{Handle, Seq};
use dlock_core::memory::exec::{Executor, Listening, OnAnswer, Posted, Single};
use dlock_core::memory::word_op::{Chain, Outcome, WordOp};
use dlock_core::memory::words::LedgerEntry;
use dlock_core::wire::control::Attach;
use dlock_core::wire::message::{Reply, Request};
use dlock_core::wire::status::Status;
use parking_lot::Mutex;

use super::counts::WordOpCounts;
use super::executor::{VerbsExecutor, VerbsOptions};
use crate::error::FabricError;
use crate::os::clock::{boot_coarse_ns, boot_ns, deadline_in, left_until, ClockEstimate};
use crate::shm::SEND_WAIT;

/// The pause between two attempts to attach to a primary that recovers, nanoseconds.
const RETRY_NS: u64 = 20_000_000;
/// How long the primary may take to answer with the time.
const CLOCK_WAIT: Duration = Duration::from_secs(1);
/// The number of a request that the client itself refused.
const REFUSED: Seq = Seq(u64::MAX);

/// A data path that attaches now or later.
#[derive(Debug)]
pub struct VerbsPath {
    options: VerbsOptions,
    primary: SocketAddr,
    attach: Attach,
    clock: ClockEstimate,
    attached: OnceLock<VerbsExecutor>,
    waiting: Mutex<Waiting>,
}

/// The state of a path that has not attached yet, because a primary in recovery gives no access to
/// its memory: the ledger writes to do after attaching, and the last refusal.
#[derive(Debug)]
struct Waiting {
    /// When the last attempt began, on the local clock.
    asked_ns: Option<u64>,
    /// Why the last attempt failed.
    refusal: Status,
    notes: HashMap<Handle, LedgerEntry>,
}

impl VerbsPath {
    /// Attaches to a primary that serves; to a primary that recovers, later.
    ///
    /// # Errors
    /// As [`VerbsExecutor::attach`], except `NotReady`.
    pub fn open(
        options: VerbsOptions,
        primary: SocketAddr,
        attach: Attach,
        clock: ClockEstimate,
        recovering: bool,
    ) -> Result<Self, FabricError> {
        let waiting = Waiting { asked_ns: None, refusal: Status::NotReady, notes: HashMap::new() };
        let (attached, waiting) = (OnceLock::new(), Mutex::new(waiting));
        let path = Self { options, primary, attach, clock, attached, waiting };
        if !recovering {
            match path.try_attach(path.options.until_ns) {
                Ok(executor) => drop(path.attached.set(executor)),
                Err(FabricError::Refused(Status::NotReady)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(path)
    }

    fn try_attach(&self, until_ns: Option<u64>) -> Result<VerbsExecutor, FabricError> {
        let options = VerbsOptions { until_ns, ..self.options.clone() };
        VerbsExecutor::attach(&options, self.primary, &self.attach, self.clock)
    }

    /// Asks the primary for the server clock, once the session is in use. The time from the control
    /// channel came through two threads of the primary. This reading is more exact, and is used
    /// while a stopped primary does not answer.
    pub fn ask_the_time(&self) {
        if let Some(executor) = self.attached.get() {
            ask_the_time(executor, deadline_in(CLOCK_WAIT));
        }
    }

    /// How many verbs, messages and doorbells this path has posted so far.
    pub fn counters(&self) -> WordOpCounts {
        self.attached.get().map(VerbsExecutor::counters).unwrap_or_default()
    }

    /// The executor, or the status of an operation without one.
    #[inline]
    fn executor(&self) -> Result<&VerbsExecutor, Status> {
        match self.attached.get() {
            Some(executor) => Ok(executor),
            None => self.attach_late(),
        }
    }

    /// The executor, attached within an operation that has time until `until_ns`.
    #[cold]
    fn attach_within(&self, until_ns: u64) -> Result<&VerbsExecutor, Status> {
        let executor = self.attach_late()?;
        // `NotReady` is safe to retry, because nothing was posted.
        match boot_ns() <= until_ns {
            true => Ok(executor),
            false => Err(Status::NotReady),
        }
    }

    #[cold]
    fn attach_late(&self) -> Result<&VerbsExecutor, Status> {
        let came_ns = boot_ns();
        let until_ns = deadline_in(SEND_WAIT);
        let Some(mut waiting) = self.waiting.try_lock_for(SEND_WAIT) else {
            return Err(Status::NotReady);
        };
        if let Some(executor) = self.attached.get() {
            return Ok(executor);
        }
        // another thread has tried to attach since this call began
        if waiting.asked_ns.is_some_and(|asked_ns| asked_ns >= came_ns) {
            return Err(waiting.refusal);
        }
        if let Some(asked_ns) = waiting.asked_ns {
            std::thread::sleep(left_until(asked_ns.saturating_add(RETRY_NS)));
        }
        waiting.asked_ns = Some(boot_ns());
        let attached = self.try_attach(Some(until_ns));
        match attached {
            Ok(executor) => {
                ask_the_time(&executor, until_ns.min(deadline_in(CLOCK_WAIT)));
                for (handle, entry) in waiting.notes.drain() {
                    executor.write_ledger(handle, entry);
                }
                Ok(self.attached.get_or_init(|| executor))
            }
            Err(error) => {
                waiting.refusal = match error {
                    FabricError::Refused(Status::NotReady) => Status::NotReady,
                    _ => Status::BadResponse,
                };
                log::debug!("no data path yet: {error}");
                Err(waiting.refusal)
            }
        }
    }
}

fn ask_the_time(executor: &VerbsExecutor, until_ns: u64) {
    if let Ok(seq) = executor.send(&Request::Ping) {
        if !matches!(executor.reply(seq, until_ns), Ok(Some(_))) {
            executor.forget(seq);
        }
    }
}

impl Executor for VerbsPath {
    #[inline]
    fn execute(&self, chains: &[Chain], outcomes: &mut [Outcome], until_ns: u64) {
        if let Some(executor) = self.attached.get() {
            return executor.execute(chains, outcomes, until_ns);
        }
        match self.attach_within(until_ns) {
            Ok(executor) => executor.execute(chains, outcomes, until_ns),
            Err(status) => outcomes.fill(Outcome::Refused(status)),
        }
    }

    #[inline]
    fn execute_one(&self, word_op: &WordOp, until_ns: u64) -> Single {
        if let Some(executor) = self.attached.get() {
            return executor.execute_one(word_op, until_ns);
        }
        match self.attach_within(until_ns) {
            Ok(executor) => executor.execute_one(word_op, until_ns),
            Err(status) => Single::Refused(status),
        }
    }

    fn post(&self, chain: &Chain) -> Posted {
        match self.executor() {
            Ok(executor) => executor.post(chain),
            Err(status) => Posted::Ready(Outcome::Refused(status)),
        }
    }

    fn poll(&self, posted: Posted) -> Option<Outcome> {
        match (self.attached.get(), posted) {
            (Some(executor), posted) => executor.poll(posted),
            (None, Posted::Ready(outcome)) => Some(outcome),
            // no chain was posted on this path before it has attached
            (None, Posted::Pending(_)) => Some(Outcome::Unknown),
        }
    }

    fn write_ledger(&self, handle: Handle, entry: LedgerEntry) {
        if let Some(executor) = self.attached.get() {
            return executor.write_ledger(handle, entry);
        }
        let mut waiting = self.waiting.lock();
        match self.attached.get() {
            Some(executor) => executor.write_ledger(handle, entry),
            None => drop(waiting.notes.insert(handle, entry)),
        }
    }

    fn flush_ledger(&self, until_ns: u64) -> bool {
        self.attached.get().is_some_and(|executor| executor.flush_ledger(until_ns))
    }

    fn send(&self, request: &Request) -> Result<Seq, Status> {
        match self.executor() {
            Ok(executor) => executor.send(request),
            Err(Status::NotReady) => Ok(REFUSED),
            Err(_) => Err(Status::BadResponse),
        }
    }

    fn reply(&self, seq: Seq, until_ns: u64) -> Result<Option<Reply>, Status> {
        match self.attached.get() {
            Some(executor) if seq != REFUSED => executor.reply(seq, until_ns),
            _ => Ok(Some(Reply::Denied { status: Status::NotReady, word: 0 })),
        }
    }

    fn listen(&self, call: Option<&OnAnswer>) -> Result<Listening, Status> {
        self.attached.get().ok_or(Status::Invalid)?.listen(call)
    }

    fn inputs(&self) -> [Option<BorrowedFd<'_>>; 2] {
        self.attached.get().map_or([None, None], Executor::inputs)
    }

    fn has_room(&self) -> bool {
        self.attached.get().is_none_or(Executor::has_room)
    }

    fn forget(&self, seq: Seq) {
        if let Some(executor) = self.attached.get() {
            if seq != REFUSED {
                executor.forget(seq);
            }
        }
    }

    fn refusal(&self) -> Option<Status> {
        match self.attached.get() {
            Some(_) => None,
            None => Some(self.waiting.lock().refusal),
        }
    }

    fn is_cut_off(&self) -> bool {
        self.attached.get().is_some_and(Executor::is_cut_off)
    }

    fn end(&self) {
        if let Some(executor) = self.attached.get() {
            Executor::end(executor);
        }
    }

    fn count(&self, counter: Counter) {
        if let Some(executor) = self.attached.get() {
            executor.count(counter);
        }
    }

    #[inline]
    fn now(&self) -> Now {
        match self.attached.get() {
            Some(executor) => executor.now(),
            None => self.clock.at(boot_ns()),
        }
    }

    #[inline]
    fn now_since(&self) -> (u64, Now) {
        match self.attached.get() {
            Some(executor) => executor.now_since(),
            None => {
                let now_ns = boot_ns();
                (now_ns, self.clock.at(now_ns))
            }
        }
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
