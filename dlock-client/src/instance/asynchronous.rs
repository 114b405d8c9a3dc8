// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one asynchronous operation an instance may have under way.
//!
//! ```text
//!   request_async ─▶ begin ─▶ effects until the operation has to wait ─▶ pending (gate: ASYNC)
//!   result_check  ─▶ poll ─ no answer ─▶ AsyncAgain, after 5 s TimedOut
//!                         └ outcome or reply ─▶ effects ─▶ … ─▶ the result (gate: OPEN)
//! ```
//! An operation that timed out leaves its lock in doubt. The client asks the arbiter to undo what
//! the operation did or still does. The next operation on the lock waits for that, unless the
//! failover thread has done so before.

use dlock_core::clock::Lease;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use dlock_core::counters::Counter;
use dlock_core::ids::{LockId, Seq};
use dlock_core::lock::{Op, OpResult};
use dlock_core::memory::exec::{Executor, Posted};
use dlock_core::operation::{Bounds, Operation, Started};
use dlock_core::session::Call;
use dlock_core::wire::message::{LockType, Mode};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::{boot_ns, deadline_in};

use super::data::has_ticket;
use super::{code, Instance, ASYNC, OPEN};
use crate::execute::{self, Advanced, Chains, DATA_WAIT, DATA_WAIT_NS};
use crate::table::{Busy, ClientLock, LockSlotGuard};

/// What [`Instance::request_async`] can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncOp {
    /// As [`Instance::trylock`].
    TryLock {
        /// The mode wanted.
        mode: Mode,
        /// Lease in seconds, not 0.
        expire_s: u32,
    },
    /// As [`Instance::unlock`].
    Unlock,
    /// As [`Instance::extend`].
    Extend {
        /// The mode in which the lock is held.
        mode: Mode,
        /// Lease in seconds from now; 0 asks whether the lock is still held.
        expire_s: u32,
    },
}

impl AsyncOp {
    fn op(self) -> Op {
        match self {
            Self::TryLock { mode, expire_s } => Op::TryLock { mode, lease: Lease::secs(expire_s) },
            Self::Unlock => Op::Unlock,
            Self::Extend { mode, expire_s } => Op::Extend { mode, lease: Lease::secs(expire_s) },
        }
    }
}

/// The asynchronous operation under way.
pub(super) struct Pending {
    lock: LockId,
    lock_type: LockType,
    operation: Operation,
    waits_for: WaitsFor,
    exec: Arc<dyn Executor>,
    deadline_ns: u64,
}

/// What the operation waits for.
#[derive(Clone, Copy)]
enum WaitsFor {
    Chain(Seq),
    Reply(Seq),
    /// The operation is over: its result waits until the program asks for it.
    Nothing(OpResult),
}

impl Instance {
    /// Starts an operation and returns at once. [`result_check`](Self::result_check) returns the
    /// operation's result; until it does, all other data-path calls answer `Async`.
    ///
    /// Giving up the ticket of a fair lock is done at once: `Success`, and no operation is under
    /// way.
    ///
    /// # Errors
    /// `Invalid`, `ClientNotInit`, `Async` (an operation is under way), `LockNotGet`, and errors
    /// that the client decides without the primary: `Invalid`, `Ticket`, `AlreadyLocked`,
    /// `AlreadyUnlocked`. `BadResponse`: the client could not send the operation.
    ///
    /// # Latency
    /// None.
    pub fn request_async(&self, lock: LockId, op: AsyncOp) -> Status {
        if matches!(op, AsyncOp::TryLock { expire_s: 0, .. }) {
            return Status::Invalid;
        }
        let mut pending = self.pending.lock();
        if let Err(status) = self.admit() {
            return status;
        }
        let (lock_slot, mut guard) = match self.locked_since(lock, boot_ns()) {
            Ok(locked) => locked,
            Err(status) => return status,
        };
        let Some(held) = guard.as_mut() else { return self.not_got() };
        let lock_type = held.entry.lock_type();
        match start(held, op.op()) {
            Start::Decided(result) => {
                self.stats.count_async(lock_type, op.op(), &result);
                self.leaves_in_doubt(held);
                lock_slot.changed.notify_all();
                result.status
            }
            Start::Under(under_way) => {
                held.busy = Busy::Async;
                *pending = Some(under_way);
                self.turn_gate(OPEN, ASYNC);
                Status::Success
            }
        }
    }

    /// The result of the asynchronous operation.
    ///
    /// # Errors
    /// `ClientNotInit`, `NoAsync`, `AsyncAgain` (no result yet: call again), `TimedOut` (given up
    /// after 5 s and undone); otherwise the status of the operation.
    ///
    /// # Latency
    /// None.
    pub fn result_check(&self) -> OpResult {
        let mut slot = self.pending.lock();
        if let Err(status) = self.check(Call::Other) {
            return code(status);
        }
        let Some(pending) = slot.as_mut() else {
            self.stats.add(Counter::NoAsync);
            return code(Status::NoAsync);
        };
        let Ok((lock_slot, mut guard)) = self.opened(pending.lock, deadline_in(DATA_WAIT)) else {
            *slot = None; // the client is leaving
            self.turn_gate(ASYNC, OPEN);
            return code(Status::NoAsync);
        };
        if !pending.exec.is_clock_ready() {
            return code(Status::AsyncAgain); // there is no clock yet by which to judge the answer
        }
        let result = match pending.check(&mut guard) {
            Some(result) => result,
            None if boot_ns() < pending.deadline_ns => return code(Status::AsyncAgain),
            None => {
                self.stats.add(Counter::TimedOut);
                pending.give_up(&mut guard, Status::TimedOut)
            }
        };
        if result.status != Status::TimedOut {
            self.stats.count_async(pending.lock_type, pending.operation.op(), &result);
        }
        if let Some(held) = guard.as_mut() {
            held.busy = Busy::No;
            self.leaves_in_doubt(held);
        }
        *slot = None;
        self.turn_gate(ASYNC, OPEN);
        lock_slot.changed.notify_all();
        result
    }

    /// Makes the time of the operation pass, as if 5 s were over.
    #[cfg(test)]
    pub(super) fn expire_async(&self) {
        if let Some(pending) = self.pending.lock().as_mut() {
            pending.deadline_ns = boot_ns();
        }
    }

    /// Opens or closes the gate, unless the client has left.
    fn turn_gate(&self, from: u8, to: u8) {
        let _ = self.gate.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether an asynchronous operation is under way on this lock.
    pub(super) fn is_async_on(&self, lock: LockId) -> bool {
        self.pending.lock().as_ref().is_some_and(|pending| pending.lock == lock)
    }

    /// Replaces the executor of the asynchronous operation, if its session has ended: the next
    /// `result_check` returns what the ended executor answers.
    pub(super) fn end_async(&self, old: &Arc<dyn Executor>, ended: &Arc<dyn Executor>) {
        if let Some(pending) = self.pending.lock().as_mut() {
            if Arc::ptr_eq(&pending.exec, old) {
                pending.exec = Arc::clone(ended);
            }
        }
    }

    /// Forgets the asynchronous operation, if there is one; the arbiter later undoes what it did.
    pub(super) fn forget_async(&self) {
        let mut slot = self.pending.lock();
        let Some(mut pending) = slot.take() else { return };
        if let Ok((lock_slot, mut guard)) = self.opened(pending.lock, deadline_in(DATA_WAIT)) {
            pending.give_up(&mut guard, Status::TimedOut);
            if let Some(held) = guard.as_mut() {
                held.busy = Busy::No;
            }
            lock_slot.changed.notify_all();
        }
        self.turn_gate(ASYNC, OPEN);
    }
}

#[allow(clippy::large_enum_variant)] // not boxed: there is one such value, which is moved once
enum Start {
    Decided(OpResult),
    Under(Pending),
}

fn start(held: &mut ClientLock, op: Op) -> Start {
    if let Some(status) = held.unfounded(op) {
        return Start::Decided(code(status));
    }
    // a result that needs no primary would be no operation under way
    held.keeps_no_longer();
    let had_ticket = has_ticket(held.entry.state());
    let now = held.fresh();
    held.last_now = now;
    let bounds = Bounds::since(now.local_ns);
    let mut operation = match Operation::begin(&mut held.entry, op, now, bounds) {
        Started::Done(result) => return Start::Decided(result),
        Started::Running(operation) => operation,
    };
    let waits_for = advance(held, &mut operation);
    if let WaitsFor::Nothing(result) = waits_for {
        let is_decided = had_ticket && op == Op::Unlock;
        if is_decided || result.status == Status::BadResponse {
            return Start::Decided(result);
        }
    }
    Start::Under(Pending {
        lock: held.id,
        lock_type: held.entry.lock_type(),
        operation,
        waits_for,
        exec: Arc::clone(&held.exec),
        deadline_ns: boot_ns().saturating_add(DATA_WAIT_NS),
    })
}

/// Carries out effects until the operation has to wait or has its result.
fn advance(held: &mut ClientLock, operation: &mut Operation) -> WaitsFor {
    let mut asked = None;
    loop {
        match (execute::advance(held, operation, &mut asked, Chains::Posted), &asked) {
            (Advanced::Done(result), _) => return WaitsFor::Nothing(result),
            (Advanced::Posted { seq, .. }, _) => return WaitsFor::Chain(seq),
            (Advanced::Waits { .. }, Some(asked)) => return WaitsFor::Reply(asked.seq),
            (Advanced::Waits { .. }, None) => {
                operation.deadline(&held.entry, false, held.fresh());
            }
            (Advanced::Pauses { .. }, _) => operation.queues(&mut held.entry),
        }
    }
}

impl Pending {
    /// The result, if there is one by now.
    fn check(&mut self, guard: &mut LockSlotGuard<'_>) -> Option<OpResult> {
        let held = guard.as_mut()?;
        let is_decided = matches!(self.waits_for, WaitsFor::Nothing(_));
        if !is_decided && !Arc::ptr_eq(&held.exec, &self.exec) {
            // another session has replaced the operation's: an answer of the old one says nothing
            // about the new one, where the arbiter undoes what the operation did
            return Some(self.give_up(guard, Status::BadResponse));
        }
        loop {
            match self.waits_for {
                WaitsFor::Nothing(_) => {
                    // The result was known when the operation was started, and the program asks for
                    // it only now.
                    self.operation.told_late(&held.entry, held.fresh());
                    match advance(held, &mut self.operation) {
                        WaitsFor::Nothing(result) => return Some(result),
                        waits_for => self.waits_for = waits_for,
                    }
                    continue;
                }
                WaitsFor::Chain(seq) => {
                    let outcome = self.exec.poll(Posted::Pending(seq))?;
                    held.outcome(&mut self.operation, outcome);
                }
                WaitsFor::Reply(seq) => {
                    let reply = match self.exec.reply(seq, 0) {
                        Ok(None) => return None,
                        Ok(Some(reply)) => Ok(reply),
                        Err(status) => Err(status),
                    };
                    let now = held.fresh();
                    self.operation.reply(&mut held.entry, reply, now);
                    held.may_be_kept();
                }
            }
            self.waits_for = advance(held, &mut self.operation);
        }
    }

    /// Drops the answer; the arbiter is to undo what the operation did.
    fn give_up(&mut self, guard: &mut LockSlotGuard<'_>, status: Status) -> OpResult {
        match self.waits_for {
            WaitsFor::Chain(seq) | WaitsFor::Reply(seq) => self.exec.forget(seq),
            WaitsFor::Nothing(_) => {} // the program has not seen the result
        }
        if let Some(held) = guard.as_mut() {
            let now = held.fresh();
            self.operation.give_up(&mut held.entry, status, now);
            self.waits_for = advance(held, &mut self.operation);
        }
        code(status)
    }
}
