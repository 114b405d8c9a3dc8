// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drives one operation on one lock from its first step to its result.
//!
//! ```text
//!   begin ─▶ [note] ─▶ Chain    ─execute─▶ outcome ─▶ [note] ─▶ …  ─▶ Done
//!                      Request  ──send───▶ reply
//!                      Confirm  ─publish─▶ (are all notes out?)
//!                      Wait     ──send───▶ (the cell's mutex is free meanwhile) ─▶ reply
//!                               after the caller's bound: Cancel, then one second for the reply
//! ```
//! Without a reply a call ends after [`DATA_WAIT`], whatever of it was waited for: other threads,
//! the time, a chain, a request. Nothing takes more than [`STEPS_MAX`] steps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::clock::Now;
use dlock_core::exec::{Executor, Single};
use dlock_core::ids::Seq;
use dlock_core::limits::{FAIR_GRACE_S, LOCK_WAIT_S};
use dlock_core::lock::{Begin, LockEntry, Machine, Op, OpResult, Step};
use dlock_core::message::{LockType, Reply, Request};
use dlock_core::status::Status;
use dlock_core::verb::{Outcome, Values};
use dlock_fabric::clock::{monotonic_coarse_ns, monotonic_ns};
use parking_lot::MutexGuard;

use crate::table::{Busy, Cell, CellGuard, Held};

/// The bound of a data-path call.
pub(crate) const DATA_WAIT: Duration = Duration::from_secs(LOCK_WAIT_S);
/// The same in nanoseconds.
pub(crate) const DATA_WAIT_NS: u64 = DATA_WAIT.as_nanos() as u64;
/// How long a note may take to be published: the arbiter skips a ticket that nobody claims after
/// twice this.
pub(crate) const PUBLISH_WAIT: Duration = Duration::from_secs(FAIR_GRACE_S as u64 / 2);
/// How long a cancelled wait may take to be answered.
const CANCEL_WAIT: Duration = Duration::from_secs(1);
/// Steps of one operation. The machines bound themselves; this bounds a primary that misleads
/// them.
pub(crate) const STEPS_MAX: usize = 64;

/// How long a call may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// The monotonic clock when it began; `None`: just now, and nothing was waited for.
    start_ns: Option<u64>,
    /// How long after that a grant may be waited for.
    grant_ns: u64,
}

impl Limit {
    /// Of a call that begins now.
    pub(crate) const NOW: Self = Self { start_ns: None, grant_ns: DATA_WAIT_NS };

    /// Of a call that began then.
    pub(crate) fn since(start: Instant) -> Self {
        Self { start_ns: Some(ns_of(start)), grant_ns: DATA_WAIT_NS }
    }

    /// Of a call that began at `start` and may wait until `deadline` for a grant.
    pub(crate) fn to(start: Instant, deadline: Instant) -> Self {
        let grant = deadline.saturating_duration_since(start).as_nanos();
        Self { grant_ns: u64::try_from(grant).unwrap_or(u64::MAX), ..Self::since(start) }
    }

    /// The same, from now on if nothing was waited for yet.
    pub(crate) fn started(&self) -> Self {
        self.begun(monotonic_ns())
    }

    /// The same, from this moment on if nothing was waited for before.
    #[inline]
    fn begun(&self, now_ns: u64) -> Self {
        Self { start_ns: Some(self.start_ns.unwrap_or(now_ns)), ..*self }
    }

    /// How long a chain may take now, unless no time is left.
    #[inline]
    fn left(&self) -> Option<Duration> {
        match self.start_ns {
            None => Some(DATA_WAIT),
            Some(_) => {
                let now_ns = monotonic_ns();
                let left_ns = self.until_ns(now_ns).saturating_sub(now_ns);
                (left_ns > 0).then(|| Duration::from_nanos(left_ns))
            }
        }
    }

    /// Until when a chain that is posted at `now_ns` may take.
    #[inline]
    fn until_ns(&self, now_ns: u64) -> u64 {
        let start_ns = self.start_ns.unwrap_or(now_ns);
        let end_ns = start_ns.saturating_add(self.grant_ns.max(DATA_WAIT_NS));
        end_ns.min(now_ns.saturating_add(DATA_WAIT_NS))
    }

    fn bounds(&self) -> Bounds {
        let now = Instant::now();
        let spent = self.start_ns.map_or(0, |start_ns| monotonic_ns().saturating_sub(start_ns));
        let start = now.checked_sub(Duration::from_nanos(spent)).unwrap_or(now);
        let grant = Duration::from_nanos(self.grant_ns);
        Bounds { grant: start + grant, data: start + grant.max(DATA_WAIT) }
    }
}

/// What the monotonic clock was then.
fn ns_of(then: Instant) -> u64 {
    let ago = u64::try_from(then.elapsed().as_nanos()).unwrap_or(u64::MAX);
    monotonic_ns().saturating_sub(ago)
}

/// Runs `op` on the lock in a cell that no other operation is under way on.
#[inline]
pub(crate) fn perform(cell: &Cell, guard: &mut CellGuard<'_>, op: Op, limit: &Limit) -> OpResult {
    let Some(held) = guard.as_mut() else { return OpResult::of(Status::LockNotGet) };
    if !held.is_local {
        return perform_remotely(cell, guard, op, limit);
    }
    let now = held.clock(op);
    let Some(cas) = held.entry.fast(op, now) else { return begin(cell, guard, op, now, limit) };
    match held.exec.execute_one(&cas.verb(), now.local_ns + DATA_WAIT_NS) {
        Single::Done(old) if old == cas.expect => held.entry.fast_done(cas),
        single => interfered(cell, guard, op, now, limit, single.into()),
    }
}

/// The same where the clock may have to be asked for, and a chain is waited for: a call that has
/// no time left does not begin.
#[inline(never)]
fn perform_remotely(cell: &Cell, guard: &mut CellGuard<'_>, op: Op, limit: &Limit) -> OpResult {
    let Some(held) = guard.as_mut() else { return OpResult::of(Status::LockNotGet) };
    let (came_ns, at_ns) = match held.is_timeless(op) {
        true => {
            let coarse_ns = monotonic_coarse_ns(); // the call is bounded by some ms less
            (coarse_ns, coarse_ns)
        }
        false => {
            let (came_ns, now) = held.exec.now_since();
            held.last_now = now;
            (came_ns, now.local_ns)
        }
    };
    let (begun, now) = (limit.begun(came_ns), held.last_now);
    let Some(cas) = held.entry.fast(op, now) else { return begin(cell, guard, op, now, &begun) };
    let until_ns = begun.until_ns(at_ns);
    if until_ns <= at_ns {
        return OpResult::of(Status::BadResponse);
    }
    match held.exec.execute_one(&cas.verb(), until_ns) {
        Single::Done(old) if old == cas.expect => held.entry.fast_done(cas),
        single => interfered(cell, guard, op, now, &begun, single.into()),
    }
}

/// The first verb of an operation did not decide it: goes on from there. `now` is from before
/// the verb was executed, since leases count from there.
#[cold]
#[inline(never)]
fn interfered(
    cell: &Cell,
    guard: &mut CellGuard<'_>,
    op: Op,
    now: Now,
    limit: &Limit,
    outcome: Outcome,
) -> OpResult {
    let Some(held) = guard.as_mut() else { return OpResult::of(Status::LockNotGet) };
    match held.entry.begin(op, now) {
        Begin::Local(result) => result,
        Begin::Run(mut machine, _) => {
            let step = held.outcome(&mut machine, outcome, now);
            drive(cell, guard, machine, step, limit.bounds())
        }
    }
}

/// The general case.
#[inline(never)]
fn begin(cell: &Cell, guard: &mut CellGuard<'_>, op: Op, now: Now, limit: &Limit) -> OpResult {
    let Some(held) = guard.as_mut() else { return OpResult::of(Status::LockNotGet) };
    let Some(left) = limit.left() else { return OpResult::of(Status::BadResponse) };
    let (mut machine, step) = match held.entry.begin(op, now) {
        Begin::Local(result) => {
            held.write_note();
            return result;
        }
        Begin::Run(machine, step) => (machine, step),
    };
    held.write_note();
    let Step::Chain(chain) = &step else {
        return drive(cell, guard, machine, step, limit.bounds());
    };
    let mut outcome = Outcome::Unknown;
    let (chains, outcomes) = (std::slice::from_ref(chain), std::slice::from_mut(&mut outcome));
    held.exec.execute(chains, outcomes, left);
    // the machine has the time of the post; what a fair lock decides now needs the time of now
    let now = if held.entry.lock_type() == LockType::Fair { held.exec.now() } else { now };
    let step = held.outcome(&mut machine, outcome, now);
    match step {
        Step::Done(result) if result.status != Status::BadResponse => result,
        step => drive(cell, guard, machine, step, limit.bounds()),
    }
}

impl Held {
    /// Releasing an atomic or a read-write lock decides nothing by the clock.
    #[inline]
    fn is_timeless(&self, op: Op) -> bool {
        matches!(op, Op::Unlock) && self.entry.lock_type() != LockType::Fair
    }

    /// The server clock, as fresh as the operation needs it.
    #[inline]
    fn clock(&mut self, op: Op) -> Now {
        if !self.is_timeless(op) {
            self.last_now = self.exec.now();
        }
        self.last_now
    }

    /// Writes what the entry wants to have in the ledger.
    #[inline]
    pub(crate) fn write_note(&mut self) {
        if let Some(note) = self.entry.take_note() {
            self.exec.note(self.entry.handle(), note);
        }
    }

    /// Takes the outcome of a chain. A session that was gone before the chain was sent has
    /// refused nothing: what became of the lock is as unknown as after a lost answer.
    #[inline]
    pub(crate) fn outcome(&mut self, machine: &mut Machine, outcome: Outcome, now: Now) -> Step {
        let outcome = match outcome {
            Outcome::Refused(Status::BadResponse | Status::TimedOut) => Outcome::Unknown,
            outcome => outcome,
        };
        let step = machine.outcome(&mut self.entry, outcome, now);
        self.write_note();
        step
    }

    /// Takes the reply to a request.
    pub(crate) fn reply(&mut self, machine: &mut Machine, reply: Result<Reply, Status>) -> Step {
        let now = self.exec.now();
        let step = machine.reply(&mut self.entry, reply, now);
        self.write_note();
        step
    }

    /// Goes on after a [`Step::Confirm`], once the note is out.
    pub(crate) fn confirm(&mut self, machine: &mut Machine, until: Instant) -> Step {
        let wait = match self.is_local {
            true => PUBLISH_WAIT, // nothing is waited for
            false => left(until).unwrap_or_default().min(PUBLISH_WAIT),
        };
        let is_published = self.exec.publish(wait);
        self.confirmed(machine, is_published)
    }

    /// Goes on after a [`Step::Confirm`]. Whether a note that was not confirmed is out is as
    /// unknown as what became of a lost chain: the ticket is given up, and the arbiter undoes it.
    pub(crate) fn confirmed(&mut self, machine: &mut Machine, is_published: bool) -> Step {
        let outcome = match is_published {
            true => Outcome::Done(Values::new()),
            false => Outcome::Unknown,
        };
        let now = self.exec.now();
        self.outcome(machine, outcome, now)
    }

    /// Makes sure that nothing of what this client did to the lock can take effect any more: its
    /// slot and its ledger entry may be given to another lock.
    ///
    /// # Errors
    /// `NotReady`, `BadResponse`: it cannot be known, so the lock must not be released.
    pub(crate) fn settle(&mut self, until: Instant) -> Result<(), Status> {
        let now = self.exec.now();
        let Some((mut machine, Step::Request(request))) = self.entry.undo(now) else {
            let wait = left(until).unwrap_or_default().min(PUBLISH_WAIT);
            return self.exec.publish(wait).then_some(()).ok_or(Status::BadResponse);
        };
        let reply = ask(&*self.exec, &request, until);
        match (self.reply(&mut machine, reply), self.entry.in_doubt()) {
            (_, false) => Ok(()),
            (Step::Done(OpResult { status: Status::NotReady, .. }), _) => Err(Status::NotReady),
            _ => Err(Status::BadResponse),
        }
    }

    /// An answer is lost: has the arbiter undo whatever the operation did, as soon as it reads
    /// this; nobody waits for it. The next operation on the lock makes sure of it.
    pub(crate) fn undo_lost(&mut self) {
        let now = self.exec.now();
        if let Some((_, Step::Request(request))) = self.entry.undo(now) {
            if let Ok(seq) = self.exec.send(&request) {
                self.exec.forget(seq);
            }
        }
    }
}

/// All further steps, and the end of every operation that lost an answer.
#[inline(never)]
fn drive(
    cell: &Cell,
    guard: &mut CellGuard<'_>,
    mut machine: Machine,
    mut step: Step,
    bounds: Bounds,
) -> OpResult {
    for _ in 0..STEPS_MAX {
        let Some(held) = guard.as_mut() else { return OpResult::of(Status::LockNotGet) };
        step = match step {
            Step::Done(result) => {
                if result.status == Status::BadResponse {
                    held.undo_lost();
                }
                return result;
            }
            Step::Confirm => held.confirm(&mut machine, bounds.data),
            Step::Chain(chain) => {
                let mut outcome = [Outcome::Unknown];
                if let Some(left) = left(bounds.data) {
                    held.exec.execute(&[chain], &mut outcome, left.min(DATA_WAIT));
                }
                let now = held.exec.now();
                held.outcome(&mut machine, outcome[0], now)
            }
            Step::Request(request @ Request::Wait { .. }) => {
                let reply = wait_for_grant(cell, guard, &machine, &request, bounds.grant);
                let Some(held) = guard.as_mut() else { return OpResult::of(Status::LockNotGet) };
                held.reply(&mut machine, reply)
            }
            Step::Request(request) => {
                let reply = ask(&*held.exec, &request, bounds.data.min(Instant::now() + DATA_WAIT));
                held.reply(&mut machine, reply)
            }
        };
    }
    give_up(guard, machine)
}

fn give_up(guard: &mut CellGuard<'_>, machine: Machine) -> OpResult {
    if let Some(held) = guard.as_mut() {
        abandon(held, machine);
    }
    OpResult::of(Status::BadResponse)
}

/// Ends an operation whose answer will not be waited for.
pub(crate) fn abandon(held: &mut Held, machine: Machine) {
    let entry: &mut LockEntry = &mut held.entry;
    machine.abandon(entry);
    held.write_note();
    held.undo_lost();
}

/// Until when one operation may wait for what.
struct Bounds {
    grant: Instant,
    data: Instant,
}

/// The time left, unless none is.
pub(crate) fn left(until: Instant) -> Option<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left)
}

/// Sends a request and waits for its reply; to one that has none, any reply will do.
fn ask(exec: &dyn Executor, request: &Request, until: Instant) -> Result<Reply, Status> {
    let seq = exec.send(request)?;
    if !request.has_reply() {
        return Ok(Reply::Done { word: 0 });
    }
    await_reply(exec, seq, until)
}

/// The reply to a request that was sent; forgets the request if there is none in time.
pub(crate) fn await_reply(exec: &dyn Executor, seq: Seq, until: Instant) -> Result<Reply, Status> {
    match exec.reply(seq, left(until).unwrap_or_default())? {
        Some(reply) => Ok(reply),
        None => {
            exec.forget(seq);
            Err(Status::BadResponse)
        }
    }
}

/// Queues at the arbiter until `until`. Other threads may look at the cell meanwhile.
fn wait_for_grant(
    cell: &Cell,
    guard: &mut CellGuard<'_>,
    machine: &Machine,
    request: &Request,
    until: Instant,
) -> Result<Reply, Status> {
    let held = guard.as_mut().ok_or(Status::LockNotGet)?;
    let exec = Arc::clone(&held.exec);
    let seq = exec.send(request)?;
    let cancel = machine.cancel(&held.entry);
    held.busy = Busy::Waiting;
    let reply = MutexGuard::unlocked(guard, || {
        let reply = exec.reply(seq, left(until).unwrap_or_default());
        match (reply, cancel) {
            (Ok(None), Some(cancel)) => cancelled(&*exec, seq, &cancel),
            (reply, _) => reply,
        }
    });
    if let Ok(None) = reply {
        exec.forget(seq);
    }
    if let Some(held) = guard.as_mut() {
        held.busy = Busy::No;
        cell.changed.notify_all();
        if !Arc::ptr_eq(&held.exec, &exec) {
            return Err(Status::BadResponse); // a reinit came between: the grant may not count
        }
    }
    reply?.ok_or(Status::BadResponse)
}

/// Ends a wait that has lasted too long: its own reply comes before the cancel's.
fn cancelled(exec: &dyn Executor, wait: Seq, cancel: &Request) -> Result<Option<Reply>, Status> {
    let seq = exec.send(cancel)?;
    let reply = exec.reply(wait, CANCEL_WAIT);
    exec.forget(seq);
    reply
}
