// SPDX-License-Identifier: MIT OR Apache-2.0
//! One operation on one lock, from the call to its result, without I/O.
//!
//! ```text
//!            ┌────────────────────────── next ◀──────────────────────────┐
//!            ▼                                                           │
//!   Post ─ outcome ▶   Pause, Park ─ paused ▶   Ask, Probe, Await ─ reply | deadline ▶   Done
//!   WriteLedger, Wake, Tell, Forget, Count: carried out at once, then `next` again
//! ```
//! [`Operation::next`] returns the one effect that the executor carries out next. For `Post`,
//! `Pause`, `Park`, `Ask`, `Probe`, `ReadClock` and `Await` the executor reports the end of the
//! effect by an event, then calls `next` again. All rules of the protocol between a call and its
//! result are here, for blocking calls, [batches](Batch), asynchronous calls, the simulator, the
//! models and the fuzzers alike:
//!
//! * A ledger entry is written before the chain or request that follows it.
//! * A chain that was refused because its session is over has an unknown outcome, and so has every
//!   outcome or reply after the session's horizon. Past the horizon nothing begins.
//! * A wait that lasts too long is cancelled; its own reply still counts for [`CANCEL_WAIT_NS`]
//!   more. In the last [`PROBE_NS`] of a wait the client asks whether the primary is there. If
//!   there is no answer, the client sends no cancel: the call ends in time.
//! * **Success means a running lease.** No call returns success unless the lease still runs by the
//!   client's own bounded clock, read after the answer ([`lease`]). Otherwise the client asks the
//!   arbiter to undo the grant, and the call fails or goes on waiting.
//! * The arbiter undoes what a lost answer may have left behind ([`Request::Resolve`]). The client
//!   asks for that at once, without waiting, and again before the next operation on the lock.
//! * An operation takes at most [`STEPS_MAX`] steps, and no longer than its [`Bounds`]. Tries of a
//!   lock that another client holds have a limit of their own ([`Effect::Pause`]).

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
pub use first::{ended, ended_by};

use crate::clock::Now;
use crate::counters::Counter;
use crate::lock::{EntryState, Half, LockEntry, Machine, Op, OpResult, Step};
use crate::memory::word_op::{Chain, Outcome, WordAddr};
use crate::memory::words::LedgerEntry;
use crate::planted::{self, Bug};
use crate::wire::message::{Mode, Reply, Request};
use crate::wire::status::Status;

/// The next step for the executor. Times are on the client's own clock ([`Now::local_ns`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Execute the chain and report [`Operation::outcome`]: `Unknown` if there is no outcome in
    /// time.
    Post {
        /// The chain.
        chain: Chain,
        /// When to stop waiting for the outcome.
        until_ns: u64,
    },
    /// Write this client's ledger entry of the lock; the write takes effect before any later
    /// effect.
    WriteLedger(LedgerEntry),
    /// Send a request and wait for its reply: report [`Operation::reply`], or
    /// [`Operation::deadline`] if there is no reply by `until_ns`.
    Ask {
        /// The request.
        request: Request,
        /// When to stop waiting for the reply.
        until_ns: u64,
    },
    /// Send a [`Request::Ping`], and go on waiting for the reply to the last `Ask`, as after an
    /// `Await`. At `until_ns` report by [`Operation::deadline`] whether the primary has answered
    /// the ping.
    Probe {
        /// When to stop waiting.
        until_ns: u64,
    },
    /// Go on waiting for the reply to the last `Ask`.
    Await {
        /// When to stop waiting.
        until_ns: u64,
    },
    /// Another client holds the lock, and may release it soon: wait for `pause_ns`, and report
    /// [`Operation::paused`]; or report [`Operation::queues`] at once.
    Pause {
        /// Nanoseconds.
        pause_ns: u64,
        /// How many turns of other clients come before this one's: the processor is better left to
        /// those clients. 0: the lock has no turns, and the operation may succeed at any moment.
        ahead: u16,
    },
    /// Sleep until this half of the word is no longer `value`, or until another process wakes the
    /// sleepers; then report [`Operation::paused`]. Or report [`Operation::queues`] at once.
    Park {
        /// The word to sleep on.
        addr: WordAddr,
        /// The half of the word.
        half: Half,
        /// The value that this half has.
        value: u32,
        /// The longest sleep, nanoseconds.
        limit_ns: u64,
    },
    /// Wake all clients that sleep on this word: on its lower half, or on both halves.
    Wake {
        /// The word.
        addr: WordAddr,
        /// Which halves of the word; [`Half::High`]: both halves.
        half: Half,
    },
    /// Send a request; the client does not wait for a reply.
    Tell(Request),
    /// Read the clock and report [`Operation::clock`]: the operation is about to return a grant,
    /// and the effects since the last reading may have taken long.
    ReadClock,
    /// Stop waiting for the reply to the last `Ask`; the executor ignores it if it comes.
    Forget,
    /// Add one to this counter for the primary, which does not see what the client decides by
    /// itself on the primary's memory. A primary that executes the chains counts by itself.
    Count(Counter),
    /// The operation is over.
    Done(OpResult),
}

/// The state of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// The machine's step still has to become an effect.
    Step(Step),
    Posted,
    Pausing,
    /// The client waits for a reply. `wait`: it is the reply to a `Wait`, which can be cancelled.
    Asked {
        wait: bool,
    },
    /// A wait is nearly over: next, the client asks whether the primary is there.
    Probe,
    /// The client has asked the primary whether it is there, and waits for the answer.
    Probing,
    /// A wait has lasted too long: next, the client sends its cancel.
    Cancel(Request),
    /// The client has sent the cancel.
    Cancelled,
    /// The client has asked how many readers hold the lock; this is the result without their
    /// number.
    Counting(OpResult),
    /// The number of readers has not come: the executor forgets the reply, then this result counts.
    Uncounted(OpResult),
    /// The client waits for the reply once more.
    Awaiting,
    /// The client reads the clock before it returns this result.
    Reading(OpResult),
    /// No reply has come in time: the executor forgets it, then the machine goes on.
    Unanswered,
    /// The result is known; next, the client undoes what is in doubt.
    Undo(OpResult),
    Done(OpResult),
}

/// One operation under way. The caller passes its [`LockEntry`] to every function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    op: Op,
    bounds: Bounds,
    machine: Machine,
    stage: Stage,
    /// The client's clock at the last event.
    now: Now,
    steps: u32,
    late_grants: u32,
    /// Whether effects were carried out since the clock was read.
    has_acted: bool,
    /// Whether the session was replaced while the operation waited for a reply.
    replaced: bool,
    /// Whether the library began the operation: its program does not hear the result.
    is_unheard: bool,
    /// The mode in which the operation asks for the lock, or held it.
    mode: Mode,
    /// Whether the client has asked the arbiter, which counts its own decisions.
    has_asked: bool,
    /// The counter that the primary still has to add one to.
    count: Option<Counter>,
    /// Whether the client has asked how many readers hold the lock.
    has_asked_readers: bool,
}

/// The first part of an operation: it has decided the operation, or the operation runs.
#[allow(clippy::large_enum_variant)] // not boxed: an operation allocates nothing
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Started {
    /// Decided without the primary.
    Done(OpResult),
    /// Call [`Operation::next`] for the effects.
    Running(Operation),
}

impl Operation {
    /// Begins an operation. `now` was read before anything is posted: leases count from there. A
    /// call that has no time left, or whose session is past its horizon, ends at once.
    pub fn begin(entry: &mut LockEntry, op: Op, now: Now, bounds: Bounds) -> Started {
        if bounds.until_ns <= now.local_ns || now.is_past_horizon() {
            if matches!(op, Op::Unlock) {
                entry.end_is_wanted();
            }
            return Started::Done(OpResult::of(Status::BadResponse));
        }
        if let Some(result) = entry.decided(op, now) {
            return Started::Done(lease::told(entry, op, result, now));
        }
        let (mut machine, mode) = (Machine::of(op, now), mode_of(op, entry));
        let stage = Stage::Step(entry.first_step(&mut machine, now));
        Started::Running(Self { mode, ..Self::new(op, machine, stage, now, bounds) })
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

    /// How long the operation may take.
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Whether the next decision needs the clock as read after the event. If not, an older reading
    /// is good enough.
    #[inline]
    pub fn needs_clock(&self, entry: &LockEntry) -> bool {
        needs_clock(self.op, entry, self.now)
    }

    /// The next effect. After an effect that waits, the executor reports the event first.
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
                        // this write comes before the undo of a hold that is given back
                        self.has_acted = true;
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

    /// [`Bug::LedgerLate`], a planted bug: chains and requests are carried out before the ledger
    /// write.
    fn is_ledger_late(&self) -> bool {
        planted::is(Bug::LedgerLate)
            && matches!(self.stage, Stage::Step(Step::Chain(_) | Step::Request(_)))
    }

    /// Turns a step of the machine that `next` does not handle into an effect; `None`: look at the
    /// stage again.
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

    /// Whether the client reads the clock once more before it returns this result: a ledger write
    /// may take as long as a socket blocks, and the process may have been stopped after it.
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

    /// Whether the client asks the primary how many readers hold the lock, because this result's
    /// view needs their number and the word does not tell it.
    fn wants_readers(&self, entry: &LockEntry, result: &OpResult) -> bool {
        let has_time = self.now.local_ns < self.bounds.until_ns;
        !self.has_asked_readers
            && has_time
            && !self.replaced
            && entry.wants_readers(self.mode, result)
    }

    /// Handles the reading for [`Effect::ReadClock`].
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

    /// Handles the outcome of the chain that was posted. `now` was read after the outcome came,
    /// unless [`needs_clock`](Self::needs_clock) returned `false`.
    pub fn outcome(&mut self, entry: &mut LockEntry, outcome: Outcome, now: Now) {
        if !matches!(self.stage, Stage::Posted) {
            return;
        }
        self.read(now);
        let outcome = believed(outcome, now);
        self.stage = Stage::Step(self.machine.outcome(entry, outcome, now));
    }

    /// Handles the reply, or the error because of which there will be none.
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

    /// Handles that no reply has come by `until_ns`. `is_answered`: the client has sent a
    /// [`Probe`](Effect::Probe), and the primary has answered it.
    pub fn deadline(&mut self, entry: &LockEntry, is_answered: bool, now: Now) {
        self.read(now);
        let cancel = self.machine.cancel(entry);
        self.stage = match (self.stage, cancel) {
            (Stage::Asked { wait: true }, Some(_)) if now.local_ns < self.bounds.grant_until_ns => {
                Stage::Probe
            }
            // a primary that does not answer the ping does not answer a cancel either
            (Stage::Probing, _) if !is_answered => Stage::Unanswered,
            (Stage::Asked { wait: true } | Stage::Probing, Some(cancel)) => Stage::Cancel(cancel),
            (Stage::Counting(result), _) => Stage::Uncounted(result),
            (Stage::Asked { .. } | Stage::Probing | Stage::Awaiting, _) => Stage::Unanswered,
            (stage, _) => stage,
        };
    }

    /// Handles that the session was replaced while the operation waited for a reply, which then may
    /// not count, or paused.
    pub fn replaced(&mut self, entry: &mut LockEntry, now: Now) {
        self.replaced = true;
        if matches!(self.stage, Stage::Pausing) {
            self.read(now);
            self.stage = Stage::Step(self.machine.reply(entry, Err(Status::BadResponse), now));
            return;
        }
        self.reply(entry, Err(Status::BadResponse), now);
    }

    /// Judges the result again, because the program learns of it later than the operation decided
    /// it (the program had not asked, or others of its batch took longer): the client gives back a
    /// grant whose lease may be over by now. Then the remaining effects follow, up to another
    /// [`Effect::Done`].
    pub fn told_late(&mut self, entry: &LockEntry, now: Now) {
        let Stage::Done(result) = self.stage else { return };
        if lease::is_over(entry, self.op, &result, now) && !planted::is(Bug::ToldLate) {
            self.read(now);
            self.stage = Stage::Step(Step::Done(result));
        }
    }

    /// Whether the executor still has to report the event of the last effect.
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

    /// Whether the operation waits for nothing any more: only effects that end it are left.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Undo(_) | Stage::Done(_))
    }
}

/// Whether a decision after an event needs the clock as read then; `last` is the last reading.
#[inline(always)]
pub fn needs_clock(op: Op, entry: &LockEntry, last: Now) -> bool {
    let has_horizon = last.horizon_ns != u64::MAX;
    if planted::is(Bug::StaleClock) {
        return has_horizon;
    }
    match entry.is_timeless(op) {
        true => has_horizon && !planted::is(Bug::ReleaseUnjudged),
        false => entry.has_lease(op) || has_horizon,
    }
}

/// The outcome of a chain as it counts at `now`.
#[inline]
fn believed(outcome: Outcome, now: Now) -> Outcome {
    match outcome {
        // a session that was over before the chain was sent has refused nothing
        Outcome::Refused(Status::BadResponse | Status::TimedOut)
            if !planted::is(Bug::DoorbellLost) =>
        {
            Outcome::Unknown
        }
        // the primary may have undone what the chain did before its outcome came
        _ if now.is_past_horizon() => Outcome::Unknown,
        outcome => outcome,
    }
}

/// The mode in which the operation asks for the lock, or the client holds it.
fn mode_of(op: Op, entry: &LockEntry) -> Mode {
    match op {
        Op::TryLock { mode, .. } | Op::Lock { mode, .. } | Op::Extend { mode, .. } => mode,
        Op::Unlock if entry.state() == EntryState::SharedLocked => Mode::Shared,
        Op::Unlock => Mode::Exclusive,
        Op::Downgrade => Mode::Shared,
    }
}
