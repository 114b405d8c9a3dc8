// SPDX-License-Identifier: MIT OR Apache-2.0
//! One operation on one lock, from the call to its result, without I/O.
//!
//! ```text
//!            ┌────────────────────────── next ◀──────────────────────────┐
//!            ▼                                                           │
//!   Post ─ outcome ▶   Pause, Park ─ paused ▶   Ask, Probe, Await ─ reply | deadline ▶   Done
//!   WriteLedger, Wake, Tell, Forget, Count: carried out at once, then `next` again
//! ```
//! [`Operation::next`] tells the one effect that the executor carries out next. `Post`, `Pause`,
//! `Park`, `Ask`, `Probe`, `ReadClock` and `Await` wait for something: the executor reports it by
//! an event and calls `next` again. All rules of the protocol that lie between a call and its
//! result are here, for blocking calls, [batches](Batch), asynchronous calls, the simulator, the
//! models and the fuzzers alike:
//!
//! * A ledger entry is written before the chain or request that follows it.
//! * A chain that was refused because its session is over has an unknown outcome, and so has
//!   whatever comes after the session's horizon; past it nothing begins.
//! * A wait that lasts too long is cancelled; its own reply still counts, for
//!   [`CANCEL_WAIT_NS`] more. A primary that answers nothing in the last [`PROBE_NS`] before is
//!   not asked to cancel: the call ends in time.
//! * **Success means a running lease.** No call says success unless the lease, by the client's
//!   own bounded clock read after the answer, still runs ([`lease`]). Otherwise the arbiter is
//!   asked to undo the grant, and the call fails or goes on waiting.
//! * What a lost answer may have left behind is undone ([`Request::Resolve`]): at once, without
//!   waiting for it, and for sure before the next operation on the lock.
//! * An operation takes at most [`STEPS_MAX`] steps, and no longer than its [`Bounds`]. Tries of a
//!   lock that another client holds are counted apart ([`Effect::Pause`]).

mod background;
mod batch;
mod bounds;
mod end;
mod first;
pub mod lease;
mod pause;
#[cfg(test)]
mod tests;

pub use batch::{Batch, Entries};
pub use bounds::{
    Bounds, CANCEL_WAIT_NS, CHAIN_WAIT_NS, FLUSH_WAIT_NS, LATE_GRANTS_MAX, PROBE_NS, STEPS_MAX,
};
pub use first::{First, Follows};

use crate::clock::Now;
use crate::counters::Counter;
use crate::lock::{EntryState, Half, LockEntry, Machine, Op, OpResult, Step};
use crate::memory::word_op::{Chain, Outcome, WordAddr};
use crate::memory::words::LedgerEntry;
use crate::planted::{self, Bug};
use crate::wire::message::{LockType, Mode, Reply, Request};
use crate::wire::status::Status;

/// What the executor does next. Times are on the client's own clock ([`Now::local_ns`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Execute the chain and report [`Operation::outcome`]; `Unknown` if it has none in time.
    Post {
        /// The chain.
        chain: Chain,
        /// Until when its outcome is waited for.
        until_ns: u64,
    },
    /// Write my ledger entry of the lock, ordered before whatever follows.
    WriteLedger(LedgerEntry),
    /// Send a request and wait for its reply: report [`Operation::reply`], or
    /// [`Operation::deadline`] when the time has come.
    Ask {
        /// The request.
        request: Request,
        /// Until when its reply is waited for.
        until_ns: u64,
    },
    /// Send a [`Request::Ping`], and go on waiting for the reply to the last `Ask` as after an
    /// `Await`: when the time has come, report by [`Operation::deadline`] whether it was answered.
    Probe {
        /// Until when.
        until_ns: u64,
    },
    /// Go on waiting for the reply to the last `Ask`.
    Await {
        /// Until when.
        until_ns: u64,
    },
    /// Another client holds the lock, and may release it soon: wait for so long, and report
    /// [`Operation::paused`]; or report [`Operation::queues`] at once.
    Pause {
        /// Nanoseconds.
        pause_ns: u64,
        /// Turns of others before its own: the processor is better left to them. 0: there are no
        /// turns, and it may win at any moment.
        ahead: u16,
    },
    /// Sleep until this half of this word has another value, or clients that sleep on it are woken,
    /// and report [`Operation::paused`]; or report [`Operation::queues`] at once.
    Park {
        /// The word.
        addr: WordAddr,
        /// Which half of it.
        half: Half,
        /// The value that it has.
        value: u32,
        /// For so long at most, nanoseconds.
        limit_ns: u64,
    },
    /// Wake all clients that sleep on this word: on its lower half, or on both.
    Wake {
        /// The word.
        addr: WordAddr,
        /// [`Half::High`]: both.
        half: Half,
    },
    /// Send a request whose reply, if it has one, nobody waits for.
    Tell(Request),
    /// Read the clock and report [`Operation::clock`]: a grant is to be told, and what was carried
    /// out since the last reading may have taken long.
    ReadClock,
    /// The reply to the last `Ask` is not wanted any more.
    Forget,
    /// Count this for the primary, which does not see what the client decides on its memory by
    /// itself. Where the primary executes the chains it counts by itself.
    Count(Counter),
    /// The operation is over.
    Done(OpResult),
}

/// Where an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// The machine's step is to be turned into an effect.
    Step(Step),
    Posted,
    Pausing,
    /// A reply is waited for. `wait`: it is that of a `Wait`, which can be cancelled.
    Asked {
        wait: bool,
    },
    /// A wait is nearly over: the primary is to be asked whether it is there.
    Probe,
    /// It was asked.
    Probing,
    /// A wait lasted too long: its cancel is to be sent.
    Cancel(Request),
    /// Its cancel was sent.
    Cancelled,
    /// The readers inside are asked for; this is the result.
    Counting(OpResult),
    /// The answer has not come: it is to be forgotten, then this result counts.
    Uncounted(OpResult),
    /// The reply is waited for once more.
    Awaiting,
    /// The clock is to be read before this result is told.
    Reading(OpResult),
    /// No reply has come in time: it is to be forgotten, then this result counts.
    Unanswered,
    /// The result is known; what is in doubt is to be undone.
    Undo(OpResult),
    Done(OpResult),
}

/// One operation under way. Its [`LockEntry`] is passed to every call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    op: Op,
    bounds: Bounds,
    machine: Machine,
    stage: Stage,
    /// The client's clock as of the last event.
    now: Now,
    steps: u32,
    late_grants: u32,
    /// Something was carried out since the clock was read.
    has_acted: bool,
    /// The session was replaced while a reply was waited for.
    replaced: bool,
    /// It is of the library, not of its program.
    is_unheard: bool,
    /// How the lock is asked for, or was held.
    mode: Mode,
    /// The arbiter was asked: it counts what it has decided.
    has_asked: bool,
    /// What is to be counted for the primary.
    count: Option<Counter>,
    /// The readers inside were asked for.
    has_asked_readers: bool,
}

/// The first part of an operation: decided at once, or to be carried on.
#[allow(clippy::large_enum_variant)] // an operation allocates nothing
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Started {
    /// Decided without the primary.
    Done(OpResult),
    /// Ask it for its effects.
    Running(Operation),
}

impl Operation {
    /// Begins an operation. `now` is from before anything is posted: leases count from there.
    /// A call that has no time left, or whose session is past its horizon, does not begin.
    pub fn begin(entry: &mut LockEntry, op: Op, now: Now, bounds: Bounds) -> Started {
        let mut first = First::new(entry, op, now, bounds);
        match first.begin(entry) {
            Follows::Done(result) => Started::Done(result),
            Follows::Running(operation) => Started::Running(operation),
            Follows::Post(chain) => Started::Running(first.run(Step::Chain(chain), now)),
            Follows::Write(_) => unreachable!("no outcome was reported"),
        }
    }

    fn new(op: Op, machine: Machine, stage: Stage, now: Now, bounds: Bounds) -> Self {
        Self {
            op,
            bounds,
            machine,
            stage,
            now,
            steps: 0,
            late_grants: 0,
            has_acted: false,
            replaced: false,
            is_unheard: false,
            mode: Mode::Exclusive,
            has_asked: false,
            count: None,
            has_asked_readers: false,
        }
    }

    /// The operation.
    pub fn op(&self) -> Op {
        self.op
    }

    /// How long it may take.
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Whether its next decision needs the clock as it is after the event. Where not, an older
    /// reading will do.
    #[inline]
    pub fn needs_clock(&self, entry: &LockEntry) -> bool {
        needs_clock(self.op, entry, self.now)
    }

    /// The next effect. After one that waits for something, only once that was reported.
    pub fn next(&mut self, entry: &mut LockEntry) -> Effect {
        if !self.is_ledger_late() {
            if let Some(write) = entry.take_ledger_write() {
                self.has_acted = true;
                return Effect::WriteLedger(write);
            }
        }
        if let Some((addr, half)) = entry.take_wake() {
            return Effect::Wake { addr, half };
        }
        loop {
            match self.stage {
                Stage::Step(Step::Chain(ref chain)) if self.steps < STEPS_MAX => {
                    let until_ns = self.bounds.chain_until_ns(self.now.local_ns);
                    let effect = Effect::Post { chain: *chain, until_ns };
                    self.steps += 1;
                    self.stage = Stage::Posted;
                    return effect;
                }
                Stage::Step(Step::Done(ref result)) => {
                    let result = *result;
                    if self.wants_readers(entry, &result) {
                        return self.ask_readers(entry, result);
                    }
                    if self.is_stale(entry, &result) {
                        self.stage = Stage::Reading(result);
                        return Effect::ReadClock;
                    }
                    let is_success = matches!(result.status, Status::Success);
                    if !is_success && !self.has_asked && !self.is_unheard {
                        let (kind, mode) = (entry.lock_type(), self.mode);
                        self.count = Counter::of_decision(kind, self.op, mode, result.status);
                    }
                    self.finish(entry, result);
                    if let Some(write) = entry.take_ledger_write() {
                        self.has_acted = true; // before what it gives back is undone
                        return Effect::WriteLedger(write);
                    }
                }
                Stage::Step(Step::Again { pause_ns, ahead }) => {
                    self.stage = Stage::Pausing;
                    return Effect::Pause { pause_ns, ahead };
                }
                Stage::Step(Step::Park { addr, half, value, limit_ns }) => {
                    self.stage = Stage::Pausing;
                    return Effect::Park { addr, half, value, limit_ns };
                }
                Stage::Step(step) => {
                    if let Some(effect) = self.follow(entry, step) {
                        return effect;
                    }
                }
                Stage::Probe => {
                    self.stage = Stage::Probing;
                    return Effect::Probe { until_ns: self.bounds.grant_until_ns };
                }
                Stage::Cancel(request) => {
                    self.stage = Stage::Cancelled;
                    return Effect::Tell(request);
                }
                Stage::Cancelled => {
                    self.stage = Stage::Awaiting;
                    let until_ns = self.now.local_ns.saturating_add(CANCEL_WAIT_NS);
                    return Effect::Await { until_ns };
                }
                Stage::Unanswered => {
                    let step = self.machine.reply(entry, Err(Status::BadResponse), self.now);
                    self.stage = Stage::Step(step);
                    return Effect::Forget;
                }
                Stage::Uncounted(result) => {
                    self.stage = Stage::Step(Step::Done(result));
                    return Effect::Forget;
                }
                Stage::Undo(result) => {
                    if self.replaced {
                        entry.rewrite_ledger(); // the old channel may have lost a ledger write
                    }
                    self.stage = Stage::Done(result);
                    if let (false, Some(request)) = (self.is_unheard, entry.undo_request(self.now))
                    {
                        return Effect::Tell(request);
                    }
                }
                Stage::Done(result) => {
                    return match (entry.take_ledger_write(), self.count.take()) {
                        (Some(write), count) => {
                            self.count = count;
                            Effect::WriteLedger(write)
                        }
                        (None, Some(counter)) => Effect::Count(counter),
                        (None, None) => Effect::Done(result),
                    };
                }
                Stage::Posted
                | Stage::Pausing
                | Stage::Asked { .. }
                | Stage::Counting(_)
                | Stage::Probing
                | Stage::Reading(_)
                | Stage::Awaiting => {
                    unreachable!("an effect is waited for, and was not reported: {:?}", self.stage)
                }
            }
        }
    }

    /// [`Bug::LedgerLate`]: what follows a ledger write is carried out before it.
    fn is_ledger_late(&self) -> bool {
        planted::is(Bug::LedgerLate)
            && matches!(self.stage, Stage::Step(Step::Chain(_) | Step::Request(_)))
    }

    /// Turns what the machine wants, if it is not the usual, into an effect; `None`: look again.
    fn follow(&mut self, entry: &mut LockEntry, step: Step) -> Option<Effect> {
        self.steps += 1;
        if self.steps > STEPS_MAX {
            self.give_up(entry, Status::BadResponse, self.now);
            return entry.take_ledger_write().map(Effect::WriteLedger);
        }
        let until_ns = self.bounds.chain_until_ns(self.now.local_ns);
        match step {
            Step::Chain(_) | Step::Done(_) | Step::Again { .. } | Step::Park { .. } => {
                unreachable!("`next` has done it")
            }
            Step::Request(request) if !request.has_reply() => {
                let step = self.machine.reply(entry, Ok(Reply::Done { word: 0 }), self.now);
                self.stage = Stage::Step(step);
                Some(Effect::Tell(request))
            }
            Step::Request(request) => {
                let wait = matches!(request, Request::Wait { .. });
                self.has_asked |= !matches!(request, Request::Resolve { .. });
                self.stage = Stage::Asked { wait };
                let until_ns = match wait {
                    true => self.bounds.probe_ns(self.now.local_ns),
                    false => until_ns,
                };
                Some(Effect::Ask { request, until_ns })
            }
        }
    }

    /// Whether the clock is to be read once more before this result is told: a ledger write may
    /// take as long as a socket blocks, and a process may stand still after it.
    fn is_stale(&self, entry: &LockEntry, result: &OpResult) -> bool {
        self.has_acted && lease::is_grant(entry, self.op, result) && !planted::is(Bug::ToldLate)
    }

    #[cold]
    fn ask_readers(&mut self, entry: &LockEntry, result: OpResult) -> Effect {
        self.has_asked_readers = true;
        self.stage = Stage::Counting(result);
        let request = entry.count_readers(self.mode, &result);
        Effect::Ask { request, until_ns: self.bounds.chain_until_ns(self.now.local_ns) }
    }

    /// Whether the primary is to be asked for the readers inside, which this result's view tells
    /// and the word does not.
    fn wants_readers(&self, entry: &LockEntry, result: &OpResult) -> bool {
        let has_time = self.now.local_ns < self.bounds.until_ns;
        !self.has_asked_readers
            && has_time
            && !self.replaced
            && entry.wants_readers(self.mode, result)
    }

    /// The clock as it is now.
    pub fn clock(&mut self, now: Now) {
        if let Stage::Reading(result) = self.stage {
            self.read(now);
            self.stage = Stage::Step(Step::Done(result));
        }
    }

    fn read(&mut self, now: Now) {
        self.now = now;
        self.has_acted = false;
    }

    /// The outcome of the chain that was posted. `now` was read after it came, unless
    /// [`needs_clock`](Self::needs_clock) says that it need not.
    pub fn outcome(&mut self, entry: &mut LockEntry, outcome: Outcome, now: Now) {
        if !matches!(self.stage, Stage::Posted) {
            return;
        }
        self.read(now);
        let outcome = believed(outcome, now);
        self.stage = Stage::Step(self.machine.outcome(entry, outcome, now));
    }

    /// The reply that was waited for, or why there will be none.
    pub fn reply(&mut self, entry: &mut LockEntry, reply: Result<Reply, Status>, now: Now) {
        if let Stage::Counting(result) = self.stage {
            self.read(now);
            self.stage = Stage::Step(Step::Done(match reply {
                Ok(Reply::Done { word: readers }) => result.with_readers(readers),
                _ => result,
            }));
            return;
        }
        if !matches!(self.stage, Stage::Asked { .. } | Stage::Probing | Stage::Awaiting) {
            return;
        }
        self.read(now);
        let reply = if now.is_past_horizon() { Err(Status::BadResponse) } else { reply };
        self.stage = Stage::Step(self.machine.reply(entry, reply, now));
    }

    /// The reply has not come until the time told. `is_answered`: a [`Probe`](Effect::Probe) was
    /// sent, and answered.
    pub fn deadline(&mut self, entry: &LockEntry, is_answered: bool, now: Now) {
        self.read(now);
        let cancel = self.machine.cancel(entry);
        self.stage = match (self.stage, cancel) {
            (Stage::Asked { wait: true }, Some(_)) if now.local_ns < self.bounds.grant_until_ns => {
                Stage::Probe
            }
            // a primary that answers nothing will not answer a cancel either
            (Stage::Probing, _) if !is_answered => Stage::Unanswered,
            (Stage::Asked { wait: true } | Stage::Probing, Some(cancel)) => Stage::Cancel(cancel),
            (Stage::Counting(result), _) => Stage::Uncounted(result),
            (Stage::Asked { .. } | Stage::Probing | Stage::Awaiting, _) => Stage::Unanswered,
            (stage, _) => stage,
        };
    }

    /// The session was replaced while a reply was waited for, which may not count, or in a pause.
    pub fn replaced(&mut self, entry: &mut LockEntry, now: Now) {
        self.replaced = true;
        if matches!(self.stage, Stage::Pausing) {
            self.read(now);
            self.stage = Stage::Step(self.machine.reply(entry, Err(Status::BadResponse), now));
            return;
        }
        self.reply(entry, Err(Status::BadResponse), now);
    }

    /// The result, which was decided earlier, is told only now (the program had not asked for it;
    /// others of its batch took longer): a grant whose lease may be over by now is given back.
    /// Then the effects that are left, up to another [`Effect::Done`].
    pub fn told_late(&mut self, entry: &LockEntry, now: Now) {
        let Stage::Done(result) = self.stage else { return };
        if lease::is_over(entry, self.op, &result, now) && !planted::is(Bug::ToldLate) {
            self.read(now);
            self.stage = Stage::Step(Step::Done(result));
        }
    }

    /// Whether the last effect is one that is to be reported, and was not.
    pub fn is_waiting(&self) -> bool {
        matches!(
            self.stage,
            Stage::Posted
                | Stage::Pausing
                | Stage::Asked { .. }
                | Stage::Counting(_)
                | Stage::Probing
                | Stage::Reading(_)
                | Stage::Awaiting
        )
    }

    /// Whether nothing is waited for any more: only effects that end it are left.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Undo(_) | Stage::Done(_))
    }
}

/// Whether what follows an event needs the clock as it is then; `last` is the last reading.
#[inline]
pub fn needs_clock(op: Op, entry: &LockEntry, last: Now) -> bool {
    let has_horizon = last.horizon_ns != u64::MAX;
    if planted::is(Bug::StaleClock) {
        return has_horizon;
    }
    match entry.is_timeless(op) {
        true => has_horizon && !planted::is(Bug::ReleaseUnjudged),
        false => entry.lock_type() != LockType::Rw || has_horizon,
    }
}

/// What the outcome of a chain is worth that comes `now`.
#[inline]
fn believed(outcome: Outcome, now: Now) -> Outcome {
    match outcome {
        // a session that was gone before the chain was sent has refused nothing
        Outcome::Refused(Status::BadResponse | Status::TimedOut)
            if !planted::is(Bug::DoorbellLost) =>
        {
            Outcome::Unknown
        }
        // what it did may have been undone before it came
        _ if now.is_past_horizon() => Outcome::Unknown,
        outcome => outcome,
    }
}

/// How the lock is asked for, or is held.
fn mode_of(op: Op, entry: &LockEntry) -> Mode {
    match op {
        Op::TryLock { mode, .. } | Op::Lock { mode, .. } | Op::Extend { mode, .. } => mode,
        Op::Unlock if entry.state() == EntryState::SharedLocked => Mode::Shared,
        Op::Unlock => Mode::Exclusive,
    }
}
