// SPDX-License-Identifier: MIT OR Apache-2.0
//! The futures of one client: who carries them out, and who wakes them.
//!
//! ```text
//!   future ─ submit ─▶ Tasks ─▶ operator: advance_wait of each, then their wakers
//!          ◀─ slot ──────┘         ▲ nudged: submitted, dropped, a lock slot has changed, …
//!   session ─ answers ─▶ listener ─┘ … or an answer has come that no thread waits for
//! ```
//! The operator carries out one operation after the other, by the code of blocking calls; only
//! turns and grants, which may take long, are waited for all at once. The listener does nothing
//! but receive. Both threads start with the first future that needs them and end [`IDLE`] after
//! the last; they take no signals. No future ever waits itself.
//!
//! **Dropping a future.** Its [`Slot`] says that the result is not wanted; the operator cancels the
//! wait, or releases the lock if the grant has come meanwhile. A guard that is in the slot already
//! goes back to the operator, which releases it. One mutex decides which of these it is.

use std::future::Future;
use std::pin::Pin;
use std::ptr::addr_eq;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use dlock_core::clock::Now;
use dlock_core::exec::Executor;
use dlock_core::status::Status;
use dlock_fabric::threads::spawn_without_signals;
use parking_lot::{Condvar, Mutex};

use crate::error::Error;
use crate::guard::Hold;
use crate::heartbeat::Pulse;
use crate::instance::GuardWait;
use crate::reference::Reference;

/// The most futures of one client that may wait at a time.
pub const FUTURES_MAX: usize = 4_096;
/// The most releases that may be queued; further ones are carried out by the thread that asks.
const RELEASES_MAX: usize = 4_096;
/// How long a thread stays that has nothing to do.
const IDLE: Duration = Duration::from_secs(1);
/// How long the listener listens before it looks whether it still has to.
const LISTEN_WAIT: Duration = Duration::from_millis(100);
/// Until answers are looked for again, on a session that cannot tell when they come.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A hold that is not borrowed.
pub(crate) type OwnedHold = Hold<Arc<Reference>>;

/// The futures of one client.
pub(crate) struct Tasks {
    /// In a forked child there are none of its threads.
    process: u32,
    state: Mutex<State>,
    /// The operator sleeps here.
    work: Condvar,
    /// The listener sleeps here while there is nothing to listen to.
    session: Condvar,
}

#[derive(Default)]
struct State {
    submitted: Vec<Work>,
    /// Acquires submitted and not over, and releases submitted.
    acquires: usize,
    releases: usize,
    is_nudged: bool,
    has_operator: bool,
    has_listener: bool,
    listen_to: Option<Arc<dyn Executor>>,
}

enum Work {
    Acquire(Acquire),
    Release(OwnedHold, Option<Arc<Slot<Result<(), Error>>>>),
}

struct Acquire {
    reference: Arc<Reference>,
    wait: GuardWait,
    slot: Arc<Slot<Result<Granted, Error>>>,
}

/// A hold that its future has not returned yet.
struct Granted {
    hold: OwnedHold,
    /// The clock when it was granted, and the session that has granted it: where another one has
    /// taken the place of that, the lock may be another client's.
    read: Now,
    pulse: Arc<Pulse>,
}

impl std::fmt::Debug for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tasks").finish_non_exhaustive()
    }
}

impl Tasks {
    pub(crate) fn new() -> Self {
        let process = std::process::id();
        Self { process, state: Mutex::default(), work: Condvar::new(), session: Condvar::new() }
    }

    /// Whether this process is the one whose threads carry the futures out, no forked child of it.
    fn is_here(&self) -> bool {
        std::process::id() == self.process
    }

    /// Something may go on.
    pub(crate) fn nudge(&self) {
        self.state.lock().is_nudged = true;
        self.work.notify_all();
    }

    /// Waits for a guard.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        reference: Arc<Reference>,
        wait: GuardWait,
    ) -> Result<Acquiring, Error> {
        let slot = Arc::new(Slot::new());
        let acquiring = Acquiring { slot: Arc::clone(&slot), tasks: Arc::clone(self) };
        let work = Work::Acquire(Acquire { reference, wait, slot });
        match self.submit(work) {
            Ok(()) => Ok(acquiring),
            Err(refused) => Err(refused.1),
        }
    }

    /// Releases a hold, and tells how it went.
    pub(crate) async fn release(self: &Arc<Self>, hold: OwnedHold) -> Result<(), Error> {
        let slot = Arc::new(Slot::new());
        match self.submit(Work::Release(hold, Some(Arc::clone(&slot)))) {
            Ok(()) => Reply { slot }.await,
            Err(refused) => match *refused {
                (Work::Release(hold, _), _) => hold.unlock(),
                (Work::Acquire(_), error) => Err(error),
            },
        }
    }

    /// Releases a hold that is not wanted any more: here, if there is no room for it.
    fn release_unwanted(self: &Arc<Self>, hold: OwnedHold) {
        drop(self.submit(Work::Release(hold, None)));
    }

    fn submit(self: &Arc<Self>, work: Work) -> Result<(), Box<(Work, Error)>> {
        if !self.is_here() {
            return Err(Box::new((work, Error::Disconnected)));
        }
        let mut state = self.state.lock();
        let (count, max) = match work {
            Work::Acquire(_) => (&mut state.acquires, FUTURES_MAX),
            Work::Release(..) => (&mut state.releases, RELEASES_MAX),
        };
        if *count >= max {
            return Err(Box::new((work, Error::TooManyFutures)));
        }
        *count += 1;
        if !state.has_operator {
            let tasks = Arc::clone(self);
            if let Err(error) = spawn_without_signals("dlock-futures", move || operate(&tasks)) {
                log::error!("no thread for futures: {error}");
                match work {
                    Work::Acquire(_) => state.acquires -= 1,
                    Work::Release(..) => state.releases -= 1,
                }
                return Err(Box::new((work, Error::Other(Status::Error))));
            }
            state.has_operator = true;
        }
        state.submitted.push(work);
        state.is_nudged = true;
        drop(state);
        self.work.notify_all();
        Ok(())
    }

    /// What was submitted, once nudged or at `until`; `None`: the operator is to end.
    fn next(&self, until: Instant, is_idle: bool) -> Option<Vec<Work>> {
        let mut state = self.state.lock();
        while !state.is_nudged {
            if self.work.wait_until(&mut state, until).timed_out() && !state.is_nudged {
                if is_idle {
                    state.has_operator = false;
                    return None;
                }
                break;
            }
        }
        state.is_nudged = false;
        Some(std::mem::take(&mut state.submitted))
    }

    /// From now on the listener listens to this session, or to none.
    fn listen_to(self: &Arc<Self>, exec: Option<&Arc<dyn Executor>>) {
        let mut state = self.state.lock();
        let had_none = state.listen_to.is_none();
        state.listen_to = exec.cloned();
        if exec.is_none() {
            return;
        }
        if !state.has_listener {
            let tasks = Arc::clone(self);
            match spawn_without_signals("dlock-listener", move || listen(&tasks)) {
                Ok(()) => state.has_listener = true,
                Err(error) => log::error!("no thread for answers: {error}"),
            }
        }
        drop(state);
        // one that cannot tell when answers come is looked at again and again, but not at once
        if had_none {
            self.session.notify_all();
        }
    }

    /// The session to listen to, once there is one; `None`: the listener is to end.
    fn session(&self) -> Option<Arc<dyn Executor>> {
        let mut state = self.state.lock();
        loop {
            if let Some(exec) = &state.listen_to {
                return Some(Arc::clone(exec));
            }
            let is_over = self.session.wait_for(&mut state, IDLE).timed_out();
            if is_over && state.listen_to.is_none() {
                state.has_listener = false;
                return None;
            }
        }
    }
}

/// The operator's thread.
fn operate(tasks: &Arc<Tasks>) {
    let mut acquires: Vec<Acquire> = Vec::new();
    let mut until = Instant::now();
    while let Some(submitted) = tasks.next(until, acquires.is_empty()) {
        for work in submitted {
            match work {
                Work::Acquire(acquire) => acquires.push(acquire),
                Work::Release(hold, slot) => {
                    let result = hold.unlock();
                    tasks.state.lock().releases -= 1;
                    match slot {
                        Some(slot) => drop(slot.fill(result)),
                        None => result.unwrap_or_else(|e| log::warn!("a lock nobody wants: {e}")),
                    }
                }
            }
        }
        let before = acquires.len();
        acquires.retain_mut(|acquire| !acquire.advance(tasks));
        tasks.state.lock().acquires -= before - acquires.len();
        until = Instant::now() + tasks.earliest(&acquires);
    }
}

impl Tasks {
    /// Has the listener listen for what is waited for; until when there is nothing to do.
    fn earliest(self: &Arc<Self>, acquires: &[Acquire]) -> Duration {
        let mut session: Option<&Arc<dyn Executor>> = None;
        let mut earliest = IDLE;
        for (wait, asked) in acquires.iter().map(|acquire| acquire.wait.waits_for()) {
            earliest = earliest.min(wait);
            if let Some(asked) = asked {
                if session.is_some_and(|session| !Arc::ptr_eq(session, &asked.exec)) {
                    earliest = earliest.min(LOOK_AGAIN); // of the session before a reinit
                }
                session = Some(&asked.exec);
            }
        }
        self.listen_to(session);
        earliest
    }
}

impl Acquire {
    /// Goes on; whether it is over.
    fn advance(&mut self, tasks: &Arc<Tasks>) -> bool {
        let (lock, mode) = (self.wait.lock(), self.wait.mode());
        if self.slot.is_dropped() {
            let over = GuardWait::new(lock, mode, 0, Duration::ZERO);
            let wait = std::mem::replace(&mut self.wait, over);
            self.reference.instance().cancel_wait(wait);
            return true;
        }
        let attempt = self.reference.instance().advance_wait(&mut self.wait, tasks);
        let Some((result, number)) = attempt else { return false };
        let result = match (result.status, self.wait.read()) {
            (Status::Success | Status::AlreadyLocked, Some((read, pulse))) => {
                let reference = Arc::clone(&self.reference);
                let hold = Hold::new(reference, lock, mode, number, result.view);
                Ok(Granted { hold, read, pulse })
            }
            (Status::Fail | Status::Again, _) => Err(Error::TimedOut),
            (status, _) => Err(Error::of(status)),
        };
        drop(self.slot.fill(result)); // a hold that is not wanted is released here
        true
    }
}

/// The listener's thread.
fn listen(tasks: &Tasks) {
    let mut seen = u64::MAX;
    let mut last: Option<Weak<dyn Executor>> = None;
    while let Some(exec) = tasks.session() {
        let is_last = |last: &Weak<dyn Executor>| addr_eq(last.as_ptr(), Arc::as_ptr(&exec));
        let is_same = last.as_ref().is_some_and(is_last);
        if !is_same {
            seen = u64::MAX; // no count of answers
            last = Some(Arc::downgrade(&exec));
        }
        match exec.listen(seen, LISTEN_WAIT) {
            Ok(count) if count == seen => {}
            Ok(count) => {
                seen = count;
                tasks.nudge();
            }
            Err(_) => {
                drop(exec);
                tasks.nudge();
                let mut state = tasks.state.lock();
                let _ = tasks.session.wait_for(&mut state, LOOK_AGAIN);
            }
        }
    }
}

/// Where a result is left for a future.
struct Slot<T>(Mutex<SlotState<T>>);

enum SlotState<T> {
    Awaited(Option<Waker>),
    Filled(T),
    /// Taken, or not wanted any more.
    Closed,
}

impl<T> Slot<T> {
    fn new() -> Self {
        Self(Mutex::new(SlotState::Awaited(None)))
    }

    fn is_dropped(&self) -> bool {
        matches!(*self.0.lock(), SlotState::Closed)
    }

    /// Leaves the result; back comes one that is not wanted.
    fn fill(&self, result: T) -> Option<T> {
        let mut state = self.0.lock();
        match &mut *state {
            SlotState::Awaited(waker) => {
                let waker = waker.take();
                *state = SlotState::Filled(result);
                drop(state);
                if let Some(waker) = waker {
                    waker.wake();
                }
                None
            }
            SlotState::Filled(_) | SlotState::Closed => Some(result),
        }
    }

    /// The result is not wanted any more; back comes one that was left.
    fn close(&self) -> Option<T> {
        match std::mem::replace(&mut *self.0.lock(), SlotState::Closed) {
            SlotState::Filled(result) => Some(result),
            SlotState::Awaited(_) | SlotState::Closed => None,
        }
    }

    fn poll(&self, context: &Context<'_>) -> Poll<T> {
        let mut state = self.0.lock();
        if let SlotState::Awaited(waker) = &mut *state {
            match waker {
                Some(waker) => waker.clone_from(context.waker()),
                None => *waker = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, SlotState::Closed) {
            SlotState::Filled(result) => Poll::Ready(result),
            SlotState::Awaited(_) | SlotState::Closed => Poll::Pending, // polled after its end
        }
    }
}

/// The future of a guard. Dropped before its end, it leaves nothing held and nothing queued.
pub(crate) struct Acquiring {
    slot: Arc<Slot<Result<Granted, Error>>>,
    tasks: Arc<Tasks>,
}

impl std::fmt::Debug for Acquiring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acquiring").finish_non_exhaustive()
    }
}

impl Future for Acquiring {
    type Output = Result<OwnedHold, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.slot.poll(context).map(|result| {
            let Granted { hold, read, pulse } = result?;
            match hold.may_be_told(read, &pulse) {
                true => Ok(hold),
                false => {
                    self.tasks.release_unwanted(hold);
                    Err(Error::Lost)
                }
            }
        })
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        match self.slot.close() {
            None if self.tasks.is_here() => self.tasks.nudge(), // it may be waiting
            None => {}
            Some(Err(_)) => {}
            Some(Ok(granted)) => self.tasks.release_unwanted(granted.hold),
        }
    }
}

/// The future of a release. Dropped before its end, the release takes place all the same.
struct Reply {
    slot: Arc<Slot<Result<(), Error>>>,
}

impl Future for Reply {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.slot.poll(context)
    }
}
