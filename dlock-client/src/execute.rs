// SPDX-License-Identifier: MIT OR Apache-2.0
//! Carries out the effects of one blocking operation; [`Operation`] decides what they are.
//!
//! ```text
//!   carry_out ─▶ Operation ─next─▶ effect ─executor─▶ event ─▶ next ─▶ …
//! ```
//! While the operation waits for a grant, the lock slot's mutex is free and other threads see
//! `Busy::Waiting`.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::clock::NS;
use dlock_core::ids::Seq;
use dlock_core::limits::LOCK_WAIT_S;
use dlock_core::lock::{Half, Op, OpResult};
use dlock_core::memory::exec::{Executor, Posted};
use dlock_core::memory::word_op::{Chain, Outcome, WordAddr};
use dlock_core::operation::{Bounds, Effect, Operation, Started, CHAIN_WAIT_NS, FLUSH_WAIT_NS};
use dlock_core::session;
use dlock_core::wire::message::{Reply, Request};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::boot_ns;
use parking_lot::MutexGuard;

use crate::backoff::{pass, Pause, Trying};
use crate::table::{Busy, ClientLock, LockSlot, LockSlotGuard};

/// The longest that an executor waits for the server clock, nanoseconds.
pub(crate) const CLOCK_WAIT_NS: u64 = NS;
/// How long a data-path call may take.
pub(crate) const DATA_WAIT: Duration = Duration::from_secs(LOCK_WAIT_S);
/// [`DATA_WAIT`] in nanoseconds.
pub(crate) const DATA_WAIT_NS: u64 = CHAIN_WAIT_NS;

/// The bounds of a call. A call without any begins at `now_ns`, when its operation does, because it
/// has not waited for other threads.
#[inline]
pub(crate) fn bounds_of(bounds: Option<&Bounds>, now_ns: u64) -> Bounds {
    bounds.copied().unwrap_or_else(|| Bounds::since(now_ns))
}

/// A request whose reply an operation waits for.
pub(crate) struct Asked {
    pub(crate) seq: Seq,
    pub(crate) exec: Arc<dyn Executor>,
    /// The request waits for a grant: meanwhile other threads may lock the lock's slot.
    pub(crate) is_wait: bool,
    /// A probe of the primary (`Ping`) that was sent and not yet answered.
    ping: Option<Seq>,
}

/// Carries out the effects of an operation, one after the other, up to its result.
pub(crate) fn carry_out(
    lock_slot: &LockSlot,
    guard: &mut LockSlotGuard<'_>,
    mut started: Started,
) -> OpResult {
    let operation = match &mut started {
        Started::Done(result) => return *result,
        Started::Running(operation) => operation,
    };
    let mut asked: Option<Asked> = None;
    let mut trying: Option<Trying> = None;
    loop {
        let Some(held) = guard.as_mut() else { return OpResult::of(Status::LockNotGet) };
        match advance(held, operation, &mut asked, Chains::Awaited) {
            Advanced::Done(result) => return result,
            Advanced::Posted { .. } => {} // cannot happen: chains are awaited
            Advanced::Waits { until_ns } => {
                trying = None;
                if let Some(asked) = &mut asked {
                    await_reply(lock_slot, guard, operation, asked, until_ns);
                }
            }
            Advanced::Pauses { rest } => {
                let trying = trying.get_or_insert_with(Trying::now);
                trying.pauses = trying.pauses.saturating_add(1);
                pauses(lock_slot, guard, operation, rest, *trying);
                if let Rest::Park { .. } = rest {
                    trying.since_ns = boot_ns();
                }
            }
        }
    }
}

/// What a thread does between two tries of a lock that another client holds.
#[derive(Clone, Copy)]
pub(crate) enum Rest {
    /// The thread lets some time pass.
    Pass(Pause),
    /// The thread sleeps until this half of the word is no longer `value`, until it is woken, or
    /// for `limit_ns` ([`Effect::Park`]).
    Park { addr: WordAddr, half: Half, value: u32, limit_ns: u64 },
}

/// Rests before another try. Meanwhile the lock slot's mutex is free, and other threads see
/// `Busy::Waiting`.
fn pauses(
    lock_slot: &LockSlot,
    guard: &mut LockSlotGuard<'_>,
    operation: &mut Operation,
    rest: Rest,
    trying: Trying,
) {
    let Some(held) = guard.as_mut() else { return };
    let exec = Arc::clone(&held.exec);
    held.busy = Busy::Waiting;
    MutexGuard::unlocked(guard, || match rest {
        Rest::Pass(pause) => pass(pause, trying),
        Rest::Park { addr, half, value, limit_ns } => exec.park(addr, half, value, limit_ns),
    });
    let Some(held) = guard.as_mut() else { return };
    held.busy = Busy::No;
    lock_slot.changed.notify_all();
    match Arc::ptr_eq(&held.exec, &exec) {
        true => {
            let now = held.fresh();
            operation.paused(&mut held.entry, now);
        }
        false => {
            let now = held.unasked();
            operation.replaced(&mut held.entry, now); // a reinit came between
        }
    }
}

/// How far an operation has come.
pub(crate) enum Advanced {
    /// The operation has come to its result.
    Done(OpResult),
    /// The operation waits for the reply to its request.
    Waits { until_ns: u64 },
    /// The operation waits for the outcome of the chain that it has posted.
    Posted { seq: Seq, until_ns: u64 },
    /// The operation rests before another try.
    Pauses { rest: Rest },
}

/// How chains are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chains {
    /// The thread waits for the outcome of each.
    Awaited,
    /// The thread posts each, and does not wait.
    Posted,
}

/// Carries out effects until the operation has its result or has to wait; `asked` is the request
/// under way, if there is one.
pub(crate) fn advance(
    held: &mut ClientLock,
    operation: &mut Operation,
    asked: &mut Option<Asked>,
    chains: Chains,
) -> Advanced {
    loop {
        match operation.next(&mut held.entry) {
            Effect::Done(result) => return Advanced::Done(result),
            Effect::Post { ref chain, until_ns } => {
                let outcome = match chains {
                    Chains::Awaited => held.execute(chain, until_ns),
                    Chains::Posted => match held.exec.post(chain) {
                        Posted::Ready(outcome) => outcome,
                        Posted::Pending(seq) => return Advanced::Posted { seq, until_ns },
                    },
                };
                held.outcome(operation, outcome);
            }
            Effect::Ask { request, until_ns } => match held.exec.send(&request) {
                Ok(seq) => {
                    let is_wait = matches!(request, Request::Wait { .. } | Request::Try { .. });
                    let exec = Arc::clone(&held.exec);
                    *asked = Some(Asked { seq, exec, is_wait, ping: None });
                    return Advanced::Waits { until_ns };
                }
                Err(status) => held.reply(operation, Err(status)),
            },
            Effect::Probe { until_ns } => {
                if let Some(asked) = asked {
                    asked.ping = asked.exec.send(&Request::Ping).ok();
                }
                return Advanced::Waits { until_ns };
            }
            Effect::Await { until_ns } => return Advanced::Waits { until_ns },
            Effect::Pause { pause_ns, ahead } => {
                let pause = Pause { pause_ns, ahead, is_local: held.is_local };
                return Advanced::Pauses { rest: Rest::Pass(pause) };
            }
            Effect::Park { addr, half, value, limit_ns } => {
                return Advanced::Pauses { rest: Rest::Park { addr, half, value, limit_ns } };
            }
            Effect::Wake { addr, half } => held.exec.wake(addr, half),
            Effect::Forget => {
                if let Some(asked) = asked.take() {
                    asked.exec.forget(asked.seq);
                }
            }
            Effect::WriteLedger(entry) => held.exec.write_ledger(held.entry.handle(), entry),
            Effect::Tell(request) => tell(&*held.exec, &request),
            Effect::ReadClock => operation.clock(held.fresh()),
            Effect::Count(counter) => held.exec.count(counter),
        }
    }
}

/// Waits for the reply to a request. For a grant it frees the lock slot's mutex meanwhile.
pub(crate) fn await_reply(
    lock_slot: &LockSlot,
    guard: &mut LockSlotGuard<'_>,
    operation: &mut Operation,
    asked: &mut Asked,
    until_ns: u64,
) {
    let Some(held) = guard.as_mut() else { return };
    let wait = || asked.exec.reply(asked.seq, until_ns);
    let reply = match asked.is_wait {
        false => wait(),
        true => {
            held.busy = Busy::Waiting;
            MutexGuard::unlocked(guard, wait)
        }
    };
    answered(lock_slot, guard, operation, asked, reply);
}

/// Reports to the operation that the reply has come, or has not come in time (`Ok(None)`). If the
/// wait had freed the lock slot's mutex, the caller has locked it again.
pub(crate) fn answered(
    lock_slot: &LockSlot,
    guard: &mut LockSlotGuard<'_>,
    operation: &mut Operation,
    asked: &mut Asked,
    reply: Result<Option<Reply>, Status>,
) {
    let is_answered = asked.take_ping();
    let Some(held) = guard.as_mut() else { return };
    if asked.is_wait {
        held.busy = Busy::No;
        lock_slot.changed.notify_all();
        if !Arc::ptr_eq(&held.exec, &asked.exec) {
            let now = held.unasked();
            return operation.replaced(&mut held.entry, now); // a reinit came between
        }
    }
    match reply {
        Ok(Some(reply)) => held.reply(operation, Ok(reply)),
        Ok(None) => {
            let now = held.unasked();
            operation.deadline(&held.entry, is_answered, now);
        }
        Err(status) => held.reply(operation, Err(status)),
    }
}

impl Asked {
    /// Whether the primary has answered the probe. If it has not, the probe is given up.
    pub(crate) fn take_ping(&mut self) -> bool {
        let Some(ping) = self.ping.take() else { return false };
        match self.exec.reply(ping, 0) {
            Ok(Some(_)) => true,
            _ => {
                self.exec.forget(ping);
                false
            }
        }
    }
}

/// Sends a request without waiting for its reply.
pub(crate) fn tell(exec: &dyn Executor, request: &Request) {
    if let Ok(seq) = exec.send(request) {
        exec.forget(seq);
    }
}

impl ClientLock {
    /// Why this operation must not rely on a hold that the primary may have ended; `None`: it may.
    #[inline]
    pub(crate) fn unfounded(&self, op: Op) -> Option<Status> {
        let is_cut_off = || self.exec.is_cut_off() || boot_ns() >= self.pulse.horizon_ns();
        self.entry.unfounded(op, is_cut_off, || self.exec.refusal())
    }

    #[inline]
    pub(crate) fn execute(&self, chain: &Chain, until_ns: u64) -> Outcome {
        match chain.ops() {
            // a single word operation, which needs no copy
            [word_op] if word_op.values_len() == 1 => {
                self.exec.execute_one(word_op, until_ns).into()
            }
            _ => {
                let mut outcome = Outcome::Unknown;
                self.execute_chain(chain, &mut outcome, until_ns);
                outcome
            }
        }
    }

    /// Executes a chain. The caller reads the outcome where the executor has written it.
    #[inline(always)]
    pub(crate) fn execute_chain(&self, chain: &Chain, outcome: &mut Outcome, until_ns: u64) {
        // a chain on memory of this host does not wait
        if self.is_local || until_ns > boot_ns() {
            self.exec.execute(slice::from_ref(chain), slice::from_mut(outcome), until_ns);
        }
    }

    /// Reports the outcome of a chain to the operation that posted it.
    pub(crate) fn outcome(&mut self, operation: &mut Operation, outcome: Outcome) {
        let now = match outcome {
            Outcome::Unknown => self.unasked(),
            _ => self.clock_after(operation.needs_clock(&self.entry)),
        };
        operation.outcome(&mut self.entry, outcome, now);
    }

    fn reply(&mut self, operation: &mut Operation, reply: Result<Reply, Status>) {
        let now = self.fresh();
        operation.reply(&mut self.entry, reply, now);
        self.may_be_kept();
    }

    /// Looks whether the client has come to keep the lock, after the answer to a request.
    #[inline]
    pub(crate) fn may_be_kept(&mut self) {
        if self.entry.is_kept() && !self.is_looked_after {
            self.is_kept_now();
        }
    }

    /// Writes the entry's pending change to the ledger, if there is one.
    #[inline(always)]
    pub(crate) fn write_ledger(&mut self) {
        if let Some(write) = self.entry.take_ledger_write() {
            self.exec.write_ledger(self.entry.handle(), write);
        }
    }

    /// Goes on over another channel to the same primary: sends again what the old channel may have
    /// lost.
    pub(crate) fn resume(&mut self) {
        let now = self.fresh();
        let request = session::resume(&mut self.entry, self.busy != Busy::No, now);
        self.write_ledger();
        if let Some(request) = request {
            tell(&*self.exec, &request);
        }
    }

    /// Asks the primary to undo what an earlier use of this lock by this client may have left
    /// there, for example a ledger entry. The client has just got the lock, and its program may
    /// never operate on it: without this request such an entry would keep other clients waiting.
    pub(crate) fn undo_what_is_left(&mut self) {
        // the request does not depend on the time, so the last reading is recent enough
        if let Some(request) = self.entry.undo_request(self.last_now) {
            tell(&*self.exec, &request);
        }
    }
}

/// Makes sure that nothing that this client did to the lock can take effect any more. After the
/// release the primary may give the slot and the ledger entry to another lock.
///
/// # Errors
/// `NotReady`, `BadResponse`: this client cannot be sure, so it must not release the lock.
pub(crate) fn settle(
    lock_slot: &LockSlot,
    guard: &mut LockSlotGuard<'_>,
    until_ns: u64,
) -> Result<(), Status> {
    let Some(held) = guard.as_mut() else { return Err(Status::LockNotGet) };
    held.entry.leaves_cache();
    if let Some(status) = held.exec.refusal() {
        return Err(status);
    }
    let now = held.fresh();
    let bounds = Bounds { grant_until_ns: until_ns, until_ns };
    let Some(operation) = Operation::undo(&mut held.entry, now, bounds) else {
        let flush_ns = now.local_ns.saturating_add(FLUSH_WAIT_NS);
        let is_flushed = held.exec.flush_ledger(until_ns.min(flush_ns));
        return is_flushed.then_some(()).ok_or(Status::BadResponse);
    };
    let result = carry_out(lock_slot, guard, Started::Running(operation));
    match guard.as_ref().map(|held| held.entry.in_doubt()) {
        Some(false) => Ok(()),
        _ if result.status == Status::NotReady => Err(Status::NotReady),
        _ => Err(Status::BadResponse),
    }
}
