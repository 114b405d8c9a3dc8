// SPDX-License-Identifier: MIT OR Apache-2.0
//! One client of one primary, with the calls, codes and order of checks of the C API.
//!
//! ```text
//!   lock call ─▶ gate (open? async pending? left?) ─▶ table: LockId → lock slot ─▶ execute.rs
//!   life-cycle call ─▶ lifecycle (a reinit locks it alone) ─▶ lock slot ─▶ control connection
//! ```
//! Mutexes are locked in this order: lifecycle, pending, lock slots by index, control.

mod asynchronous;
mod awaits;
mod batch;
mod data;
mod events;
mod failover;
mod given_up;
mod guards;
mod kept;
mod locks;
mod membership;
mod new_session;
mod objects;
mod operate;
mod renewals;
mod waits;

#[cfg(test)]
mod confirm_tests;
#[cfg(test)]
mod late_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tries_tests;
#[cfg(test)]
mod waits_tests;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use dlock_core::counters::{Counter, COUNTERS};
use dlock_core::ids::{ClientId, Epoch, LockId, ObjectId};
use dlock_core::lock::OpResult;
use dlock_core::memory::exec::Executor;
use dlock_core::operation::Bounds;
use dlock_core::session::{refusal, Call, Gate};
use dlock_core::wire::control::{ControlReply, ControlRequest, Secret};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::{boot_ns, deadline_in, left_until};
use dlock_fabric::os::fork;
use dlock_fabric::verbs::WordOpCounts;
use dlock_fabric::VerbsPath;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use data::has_ticket;

pub use asynchronous::AsyncOp;
pub(crate) use waits::{GuardWait, LOOK_AGAIN_NS};

use crate::attach::Wrap;
use crate::config::ClientConfig;
use crate::control::{CallError, Control, Patience, ShutdownHandle, CONTROL_WAIT};
use crate::driver::failover::Watch;
use crate::driver::futures::Tasks;
use crate::driver::heartbeat::{Pulse, SharedControl};
use crate::driver::kept::Driven;
use crate::events::Feeds;
use crate::execute::DATA_WAIT_NS;
use crate::host::Removal;
use crate::logged_once::LoggedOnce;
use crate::stats::Stats;
use crate::table::{Busy, IdHasher, LockSlot, LockSlotGuard, Table};

/// The parts of a session with the primary. A reinit replaces them all at once.
pub(crate) struct SessionState {
    exec: Arc<dyn Executor>,
    /// The same executor, with its own type, if it is that of verbs.
    verbs: Option<Arc<VerbsPath>>,
    /// This client's id at the primary.
    client: ClientId,
    epoch: Epoch,
    anchor_s: u32,
    secret: Secret,
    recovering: bool,
    /// How often the primary has ended what this client had without a lease; see `Terms::lapses`.
    lapses: u32,
    /// Operations may ask the primary how many readers are inside a fair lock.
    asks_readers: bool,
    /// The horizon of this session, and the times of its heartbeats.
    pulse: Arc<Pulse>,
}

/// The client serves data-path calls.
const OPEN: u8 = Gate::Open as u8;
/// An asynchronous operation is pending.
const ASYNC: u8 = Gate::Async as u8;
/// The client has left.
const LEFT: u8 = Gate::Left as u8;

fn gate(raw: u8) -> Gate {
    match raw {
        OPEN => Gate::Open,
        ASYNC => Gate::Async,
        _ => Gate::Left,
    }
}

/// One client of one primary.
///
/// Threads may share an instance. Operations on different locks run at the same time; operations on
/// one lock run one after the other. If an instance is dropped, the primary sees a disconnect; only
/// [`deinit`](Instance::deinit) tells it that the client leaves.
pub struct Instance {
    id: ClientId,
    /// The process that made this instance. A forked child has a copy, and must not use it.
    process: AtomicU64,
    config: ClientConfig,
    /// Tests only: a function that wraps the executor of each session.
    wrap: Option<Wrap>,
    gate: AtomicU8,
    table: Arc<Table>,
    link: ArcSwap<SessionState>,
    control: SharedControl,
    /// The horizons of earlier sessions on which operations may still be under way, each with the
    /// primary's incarnation. If the primary ends what the client had in such a session, the
    /// client makes the horizon over, so that no operation reports a hold that is lost.
    earlier: Mutex<Vec<(Epoch, Weak<Pulse>)>>,
    /// Closes the control connection without waiting for a call under way on it. `None` while the
    /// client looks for a primary, and after the client has left.
    line: Mutex<Option<ShutdownHandle>>,
    lifecycle: RwLock<()>,
    pending: Mutex<Option<asynchronous::Pending>>,
    objects: RwLock<HashMap<ObjectId, objects::Got, BuildHasherDefault<IdHasher>>>,
    stats: Stats,
    /// The listeners to this client's events.
    feeds: Feeds,
    /// This client has told the primary of the session everything (all claims). The thread that
    /// tells sets it under the read lock of `lifecycle`; each new session clears it under the write
    /// lock.
    has_told: AtomicBool,
    /// A claim has shown that a hold is lost, and this client has not yet told the primary that all
    /// claims are made.
    has_refused: AtomicBool,
    /// A primary has said that an operator removed this client.
    is_taken_away: AtomicBool,
    /// The last such answer.
    removal: Mutex<Option<Removal>>,
    /// Reasons, already logged, why this client has not come back to a primary.
    said: LoggedOnce,
    /// What the driver does for this client.
    driven: Driven,
    /// Set for a client that finds the successor of its primary by itself.
    watch: Option<Arc<Watch>>,
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Instance");
        out.field("id", &self.id).field("fabric", &self.fabric()).finish_non_exhaustive()
    }
}

impl Instance {
    /// The id that the primary gave this client at `init`. If no primary knows the client any more
    /// and it begins anew, the new primary gives it another id, which this function does not
    /// return.
    pub fn id(&self) -> ClientId {
        self.id
    }

    /// The incarnation of the primary at which this client has its session. The number grows with
    /// each incarnation.
    pub fn epoch(&self) -> u64 {
        self.link.load().epoch.0
    }

    /// The name of the executor in use, such as `verbs`, `shm` or `tcp`.
    pub fn fabric(&self) -> &'static str {
        self.link.load().exec.name()
    }

    /// The work of the driver for this client.
    pub(crate) fn tasks(&self) -> &Arc<Tasks> {
        &self.driven.tasks
    }

    /// How an operator has removed this client, if a primary has said so when the client came back.
    pub fn removal(&self) -> Option<Removal> {
        self.removal.lock().clone()
    }

    fn learns_of(&self, removal: Option<&Removal>) {
        if let Some(removal) = removal {
            *self.removal.lock() = Some(removal.clone());
            self.is_taken_away.store(true, Ordering::Relaxed);
        }
    }

    /// The verbs, messages and doorbells of this session so far; `None` if it does not run over
    /// verbs.
    pub fn word_op_counts(&self) -> Option<WordOpCounts> {
        self.link.load().verbs.as_ref().map(|path| path.counters())
    }

    /// The debug counters of the C API, by their index.
    pub fn stats(&self) -> [u64; COUNTERS] {
        self.stats.read()
    }

    /// Sets all counters to 0.
    pub fn clear_stats(&self) {
        self.stats.clear();
    }

    /// Whether this process made the instance. A forked child has a copy of the secret, and must
    /// not take over the session and the holds of its parent.
    fn is_here(&self) -> bool {
        self.process.load(Ordering::Relaxed) == fork::process()
    }

    /// The first checks of every data-path call.
    #[inline]
    fn admit(&self) -> Result<(), Status> {
        match self.gate.load(Ordering::Relaxed) {
            OPEN => Ok(()),
            gate => Err(self.refuse(gate)),
        }
    }

    #[cold]
    fn refuse(&self, raw: u8) -> Status {
        let status = gate(raw).refuses(Call::Operation).unwrap_or(Status::Async);
        if status == Status::Async {
            self.stats.add(Counter::Async);
        }
        status
    }

    /// Refuses a get or release of locks if the client has left.
    fn present(&self) -> Result<(), Status> {
        self.check(Call::Locks)
    }

    /// The first check of calls that are no operations.
    fn check(&self, call: Call) -> Result<(), Status> {
        gate(self.gate.load(Ordering::Relaxed)).refuses(call).map_or(Ok(()), Err)
    }

    /// The lock slot of a lock that this client has got. `None` if another thread operates on the
    /// lock, or if the table has no hint for `id`, or a wrong one.
    #[inline(always)]
    fn at_once(&self, id: LockId) -> Option<(&LockSlot, LockSlotGuard<'_>)> {
        let lock_slot = self.table.lock_slot(self.table.hint(id)?);
        let guard = lock_slot.try_lock()?;
        let is_idle = guard.as_ref().is_some_and(|held| held.id == id && held.busy == Busy::No);
        is_idle.then_some((lock_slot, guard))
    }

    /// The lock slot of a lock that this client has got, once no other operation is under way on
    /// it, and the bounds of the call; `None`: the call begins when its operation does. If another
    /// thread waits for the lock at the primary, this function does not wait but returns `Fail`.
    #[inline]
    fn idle(&self, id: LockId) -> Result<(&LockSlot, LockSlotGuard<'_>, Option<Bounds>), Status> {
        if let Some((lock_slot, guard)) = self.at_once(id) {
            return Ok((lock_slot, guard, None));
        }
        let start_ns = boot_ns();
        let (lock_slot, guard) = self.opened(id, start_ns + DATA_WAIT_NS)?;
        match guard.as_ref().map(|held| held.busy) {
            Some(Busy::Waiting) => Err(Status::Fail),
            Some(Busy::Async) => Err(self.refuse(ASYNC)),
            _ => Ok((lock_slot, guard, Some(Bounds::since(start_ns)))),
        }
    }

    /// The lock slot of a lock that this client has got, once no other operation is under way on
    /// it. The call began at `start_ns`.
    #[cold]
    fn locked_since(
        &self,
        id: LockId,
        start_ns: u64,
    ) -> Result<(&LockSlot, LockSlotGuard<'_>), Status> {
        let until_ns = start_ns + DATA_WAIT_NS;
        let (lock_slot, mut guard) = self.opened(id, until_ns)?;
        loop {
            let held = guard.as_ref().filter(|held| held.id == id);
            let held = held.ok_or_else(|| self.not_got())?;
            match held.busy {
                Busy::No => return Ok((lock_slot, guard)),
                Busy::Async => return Err(self.refuse(ASYNC)),
                Busy::Waiting => {}
            }
            if lock_slot.changed.wait_until(&mut guard, until_ns) {
                // another thread of this client waited for the lock all the time
                return Err(match guard.as_ref() {
                    Some(held) if held.busy != Busy::Waiting => Status::BadResponse,
                    Some(held) if has_ticket(held.entry.state()) => Status::Again,
                    _ => Status::Fail,
                });
            }
        }
    }

    /// The lock slot of a lock that this client has got, even while an asynchronous operation is
    /// under way on it.
    fn opened(&self, id: LockId, until_ns: u64) -> Result<(&LockSlot, LockSlotGuard<'_>), Status> {
        let index = self.table.find(id).ok_or_else(|| self.not_got())?;
        let lock_slot = self.table.lock_slot(index);
        let guard = lock_slot.lock_until(|| until_ns).ok_or(Status::BadResponse)?;
        match guard.as_ref() {
            Some(held) if held.id == id => Ok((lock_slot, guard)),
            _ => Err(self.not_got()), // another thread released it meanwhile
        }
    }

    #[cold]
    fn not_got(&self) -> Status {
        self.stats.add(Counter::LockNotGet);
        self.left_or(Status::LockNotGet) // the end of the client may have taken the lock
    }

    /// Keeps the session as it is while the guard lives: a reinit waits until the guard is dropped.
    /// This call waits until `until_ns` for a reinit under way.
    fn lifecycle_until(&self, until_ns: u64) -> Result<RwLockReadGuard<'_, ()>, Status> {
        self.lifecycle.try_read_for(left_until(until_ns)).ok_or(Status::BadResponse)
    }

    /// A control call. One is made at a time; waiting for the turn and for the answer takes
    /// [`CONTROL_WAIT`] at most in all.
    fn call(&self, request: ControlRequest) -> Result<ControlReply, Status> {
        self.call_until(request, deadline_in(CONTROL_WAIT))
    }

    fn call_until(&self, request: ControlRequest, until_ns: u64) -> Result<ControlReply, Status> {
        let mut control =
            self.control.try_lock_for(left_until(until_ns)).ok_or(Status::BadResponse)?;
        let control = control.as_mut().ok_or(Status::BadResponse)?;
        call_on(control, request, until_ns)
    }

    fn call_with(
        &self,
        request: ControlRequest,
        patience: Patience,
    ) -> Result<ControlReply, Status> {
        let until_ns = patience.deadline();
        // another thread's call may hold the connection while it waits for a primary that is gone
        let wait = patience.silence.map_or(patience.wait, |silence| silence.min(patience.wait));
        let mut control = self.control.try_lock_for(wait).ok_or(Status::BadResponse)?;
        let control = control.as_mut().ok_or(Status::BadResponse)?;
        answered(control.call_while_there(request, until_ns, patience.silence))
    }
}

/// A control call on a connection that the caller has locked. A refusal becomes an error.
fn call_on(
    control: &mut Control,
    request: ControlRequest,
    until_ns: u64,
) -> Result<ControlReply, Status> {
    answered(control.call(request, until_ns))
}

fn answered(answer: Result<ControlReply, CallError>) -> Result<ControlReply, Status> {
    match answer {
        Ok(ControlReply::Error(status)) => Err(refusal(status)),
        Ok(reply) => Ok(reply),
        Err(error) => Err(error.status()),
    }
}

/// The status of a call whose answer, if it succeeds, is `Done`.
fn done(reply: Result<ControlReply, Status>) -> Status {
    match reply {
        Ok(ControlReply::Done) => Status::Success,
        Ok(_) => Status::BadResponse,
        Err(status) => status,
    }
}

/// The result of an operation that has only a status.
fn code(status: Status) -> OpResult {
    OpResult::of(status)
}
