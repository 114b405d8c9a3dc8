// SPDX-License-Identifier: MIT OR Apache-2.0
//! The futures of one client, and the renewals of its leases, which the driver carries out.
//!
//! ```text
//!   future ─ begin: advance_wait once, in the thread that polls; over? its slot is filled
//!      │      └─ else submit ─▶ Tasks ─▶ driver: advance_wait of each, then their wakers
//!      ◀─ slot ───────────────────┘        ▲ nudged: submitted, dropped, a lock slot changed, …
//!   session ─ answers ────────────┘ … or an answer has come that no thread waits for
//! ```
//! The driver waits for no operation: it posts each chain and request, and goes on when the answer
//! has come. To give a lock back to the primary takes a control call; a thread of its own makes
//! that call, and then ends. A future itself never waits.
//!
//! **Dropping a future.** The drop marks the future's [`Slot`]: the result is not wanted. The
//! driver cancels the wait, or releases the lock if the grant has come meanwhile. If the slot
//! already has a guard, the drop hands the guard to the driver, which releases it. The slot's mutex
//! decides which of these happens.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use dlock_core::clock::{Lease, NS};
use dlock_core::ids::LockId;
use dlock_core::limits::KEPT_MAX;
use dlock_core::lock::Due;
use dlock_core::memory::exec::{Executor, Listening, OnAnswer};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::boot_ns;
use dlock_fabric::os::fork::Owner;
use parking_lot::Mutex;

use crate::driver::acquiring::{Acquiring, Granted, Reply};
use crate::driver::asked::Questions;
use crate::driver::kept::{Keeping, Kept};
use crate::driver::renewals::{self, Renew, Renewed, Timers};
use crate::driver::slot::Slot;
use crate::driver::{self, aside, register, Handle, Next, Source};
use crate::error::Error;
use crate::guard::{released, Hold};
use crate::instance::{GuardWait, Instance, LOOK_AGAIN_NS};
use crate::reference::Reference;

/// The most futures of one client that may wait at a time.
pub const FUTURES_MAX: usize = 16_384;
/// The most releases that may be queued; beyond that, the thread that asks for a release carries it
/// out.
const RELEASES_MAX: usize = 16_384;
/// The most operations that one turn advances: other works of the driver have turns in between when
/// many thousand futures end together.
const SLICE_MAX: usize = 256;
/// The time to the next turn if no future waits for anything.
const IDLE_NS: u64 = NS;

/// A hold with its own reference to the lock, so that it borrows nothing.
pub(crate) type OwnedHold = Hold<Arc<Reference>>;

/// The futures of one client.
pub(crate) struct Tasks {
    /// The process whose driver carries the futures out; a forked child has no such driver.
    owner: Owner,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    submitted: Vec<Work>,
    /// Holds that the program wants renewed, until the driver takes them over.
    renewed: HashMap<LockId, Renewed>,
    /// Locks whose holds the driver is to look at in its next turn.
    looked: Vec<LockId>,
    /// Locks that the client keeps, until the driver takes them over.
    kept: Vec<Kept>,
    /// How many acquires, and how many releases, are submitted and not over.
    acquires: usize,
    releases: usize,
    /// The handle of the driver's work for these futures; `None`: there is no such work.
    work: Option<Handle>,
}

/// One operation that the driver carries out: the acquire or the release of a future, or a renewal.
struct Work {
    keeps: Keeps,
    wait: GuardWait,
    slot: Where,
}

/// What a work keeps alive until it is over.
enum Keeps {
    /// The lock, which the client has got.
    Reference(Arc<Reference>),
    /// The client alone.
    Instance(Arc<Instance>),
}

impl Keeps {
    fn instance(&self) -> &Instance {
        match self {
            Self::Reference(reference) => reference.instance(),
            Self::Instance(instance) => instance,
        }
    }
}

/// Where the result of a work is left.
enum Where {
    /// The slot of the acquire's future; if the hold is to be renewed, its lease and terms.
    Acquire(Arc<Slot<Result<Granted, Error>>>, Option<(Lease, Renew)>),
    Renewal(Renewed),
    /// A kept lock is given back: nothing waits for the result.
    GiveBack,
    /// The slot of the release's future; `None`: the result is not wanted.
    Release(Option<Arc<Slot<Result<(), Error>>>>),
}

impl std::fmt::Debug for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tasks").finish_non_exhaustive()
    }
}

impl Tasks {
    pub(crate) fn new() -> Self {
        Self { owner: Owner::current(), state: Mutex::default() }
    }

    /// Whether this process has the driver that carries the futures out: a forked child has not.
    pub(crate) fn is_here(&self) -> bool {
        self.owner.is_here()
    }

    /// Has the driver try every future again.
    pub(crate) fn nudge(&self) {
        if let Some(work) = &self.state.lock().work {
            work.call();
        }
    }

    /// Waits for a guard. `renewal`: the lease, and the terms by which it is renewed from the grant
    /// on, however late the program takes the guard.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        reference: Arc<Reference>,
        wait: GuardWait,
        renewal: Option<(Lease, Renew)>,
    ) -> Result<Acquiring, Error> {
        let slot = Arc::new(Slot::new());
        let acquiring = Acquiring { slot: Arc::clone(&slot), tasks: Arc::clone(self) };
        let keeps = Keeps::Reference(reference);
        match self.begin(Work { keeps, wait, slot: Where::Acquire(slot, renewal) }) {
            Ok(()) => Ok(acquiring),
            Err(refused) => Err(refused.1),
        }
    }

    /// Releases a hold; returns the result.
    pub(crate) async fn release(self: &Arc<Self>, hold: OwnedHold) -> Result<(), Error> {
        let slot = Arc::new(Slot::new());
        match self.submit_release(hold, Some(Arc::clone(&slot))) {
            Ok(()) => Reply { slot }.await,
            Err(hold) => hold.unlock(),
        }
    }

    /// Releases a hold that the program does not want any more; in this thread if the queue of
    /// releases is full.
    pub(super) fn release_unwanted(self: &Arc<Self>, hold: OwnedHold) {
        drop(self.submit_release(hold, None));
    }

    /// Submits a release to the driver; returns the hold if the driver cannot release it.
    fn submit_release(
        self: &Arc<Self>,
        hold: OwnedHold,
        slot: Option<Arc<Slot<Result<(), Error>>>>,
    ) -> Result<(), OwnedHold> {
        let wait = GuardWait::end(hold.lock(), hold.number());
        let keeps = Keeps::Reference(hold.reference());
        match self.begin(Work { keeps, wait, slot: Where::Release(slot) }) {
            Ok(()) => {
                hold.ends_elsewhere();
                Ok(())
            }
            Err(_) => Err(hold),
        }
    }

    /// Begins a work in this thread, as far as it comes without waiting. The driver carries on the
    /// rest. A free lock in shared memory needs no other thread.
    fn begin(self: &Arc<Self>, mut work: Work) -> Result<(), Box<(Work, Error)>> {
        if !self.is_here() {
            return Err(Box::new((work, Error::Disconnected)));
        }
        if let Err(error) = self.state.lock().is_new(&work.slot) {
            return Err(Box::new((work, error)));
        }
        match work.advance(self) {
            true => drop(work.ends(self)),
            false => self.submit(work),
        }
        Ok(())
    }

    fn submit(self: &Arc<Self>, work: Work) {
        let mut state = self.state.lock();
        if self.is_carried_out(&mut state).is_err() {
            drop(state);
            return work.ends_here(self);
        }
        state.submitted.push(work);
    }

    /// Has the driver renew a hold until it ends.
    ///
    /// # Errors
    /// There is no driver, and none can be started.
    pub(crate) fn renew(self: &Arc<Self>, renewed: Renewed) -> Result<(), Error> {
        if !self.is_here() {
            return Err(Error::Disconnected);
        }
        let mut state = self.state.lock();
        self.is_carried_out(&mut state)?;
        state.renewed.insert(renewed.lock, renewed);
        Ok(())
    }

    /// Has the driver look after a lock that the client keeps.
    ///
    /// # Errors
    /// There is no driver, and none can be started.
    pub(crate) fn keep(self: &Arc<Self>, kept: Kept) -> Result<(), Error> {
        if !self.is_here() {
            return Err(Error::Disconnected);
        }
        let mut state = self.state.lock();
        self.is_carried_out(&mut state)?;
        state.kept.push(kept);
        Ok(())
    }

    /// Has the driver look now at the hold of this lock.
    pub(crate) fn look_again(&self, lock: LockId) {
        let mut state = self.state.lock();
        if let Some(work) = &state.work {
            work.call();
            state.looked.push(lock);
        }
    }

    /// Wakes the driver, or starts it, for work that the caller adds to `state` next.
    fn is_carried_out(self: &Arc<Self>, state: &mut State) -> Result<(), Error> {
        if let Some(work) = &state.work {
            work.call();
            return Ok(());
        }
        let registered = register(|work| {
            state.work = Some(work.clone());
            let (tasks, call) = (Arc::clone(self), work.clone());
            Box::new(Futures {
                tasks,
                call: Arc::new(move || call.call()),
                all: VecDeque::new(),
                left: 0,
                timers: Timers::default(),
                questions: Questions::default(),
                keeping: Keeping::default(),
                session: None,
            })
        });
        registered.map_err(|error| {
            log::error!("no thread for futures and renewals: {error}");
            Error::Other(Status::Error)
        })
    }
}

impl State {
    fn is_new(&mut self, slot: &Where) -> Result<(), Error> {
        let (count, max) = match slot {
            Where::Acquire(..) => (&mut self.acquires, FUTURES_MAX),
            Where::Release(_) => (&mut self.releases, RELEASES_MAX),
            Where::Renewal(_) | Where::GiveBack => return Ok(()),
        };
        if *count >= max {
            return Err(Error::TooManyFutures);
        }
        *count += 1;
        Ok(())
    }

    fn is_over(&mut self, slot: &Where) {
        match slot {
            Where::Acquire(..) => self.acquires -= 1,
            Where::Release(_) => self.releases -= 1,
            Where::Renewal(_) | Where::GiveBack => {}
        }
    }
}

/// The driver's work for the futures of one client.
struct Futures {
    tasks: Arc<Tasks>,
    call: OnAnswer,
    /// Those behind were advanced last.
    all: VecDeque<Work>,
    /// How many from the front on are to be advanced before the driver may sleep.
    left: usize,
    /// When to look at each hold next. A hold whose renewal is under way is not among them.
    timers: Timers,
    /// Questions to the primary about the holds of programs that listen.
    questions: Questions,
    /// The locks that the client keeps.
    keeping: Keeping,
    /// The session whose answers the driver listens to.
    session: Option<Arc<dyn Executor>>,
}

impl driver::Work for Futures {
    fn turn(&mut self, has_event: bool, is_called: bool) -> Next {
        let known = self.all.len();
        let mut state = self.tasks.state.lock();
        self.all.extend(state.submitted.drain(..));
        let renewed = std::mem::take(&mut state.renewed);
        let looked = std::mem::take(&mut state.looked);
        let kept = std::mem::take(&mut state.kept);
        drop(state);
        for renewed in renewed.into_values() {
            self.timers.put(0, renewed);
        }
        for lock in looked {
            self.timers.sooner(lock, 0);
        }
        for (lock, at_ns) in self.questions.take_answers() {
            self.timers.sooner(lock, at_ns);
        }
        self.begin_renewals();
        kept.into_iter().for_each(|kept| self.keeping.put(kept));
        self.give_back_kept();
        if self.left == 0 || has_event || is_called || self.all.len() > known {
            self.left = self.all.len();
        }
        for _ in 0..self.left.min(SLICE_MAX) {
            self.left -= 1;
            let Some(mut work) = self.all.pop_front() else { break };
            match work.advance(&self.tasks) {
                false => self.all.push_back(work),
                true => {
                    let renewed = work.ends(&self.tasks);
                    renewed.into_iter().for_each(|renewed| self.timers.put_back(renewed));
                }
            }
        }
        if self.left > 0 {
            return Next::Until(0, Source::None);
        }
        let is_idle = self.questions.is_empty() && self.keeping.is_empty();
        if self.all.is_empty() && self.timers.next_ns().is_none() && is_idle {
            self.listens_to(None);
            let mut state = self.tasks.state.lock();
            if state.submitted.is_empty() && state.renewed.is_empty() && state.kept.is_empty() {
                state.work = None;
                return Next::Over;
            }
        }
        self.waits()
    }
}

impl Futures {
    /// Looks at the holds whose time has come, and begins the renewals that are due.
    fn begin_renewals(&mut self) {
        let now_ns = boot_ns();
        while let Some(renewed) = self.timers.take_due(now_ns) {
            let Some(instance) = renewed.instance.upgrade() else { continue };
            match instance.look_after_hold(&renewed) {
                Due::Over | Due::Lost => self.questions.forget(renewed.lock),
                Due::At(at_ns) => {
                    let (asked, asks_at_ns) = instance.asks_of(&renewed);
                    asked.into_iter().for_each(|asked| self.questions.put(asked));
                    self.timers.put(at_ns.min(asks_at_ns).max(now_ns + 1), renewed);
                }
                Due::Renew => {
                    let wait = GuardWait::renewal(renewed.lock, renewed.hold);
                    let (keeps, slot) = (Keeps::Instance(instance), Where::Renewal(renewed));
                    self.all.push_back(Work { keeps, wait, slot });
                }
            }
        }
    }

    /// Asks about the locks that the client keeps, and begins to give back those that others want.
    fn give_back_kept(&mut self) {
        for (instance, lock) in self.keeping.turn(KEPT_MAX) {
            let wait = GuardWait::give_back(lock);
            let (keeps, slot) = (Keeps::Instance(instance), Where::GiveBack);
            self.all.push_back(Work { keeps, wait, slot });
        }
    }

    /// Has the driver listen to the session for whose answers the futures wait. Returns until
    /// when there is nothing else to do.
    fn waits(&mut self) -> Next {
        let now_ns = boot_ns();
        let soon_ns = now_ns + LOOK_AGAIN_NS;
        let (mut session, mut until_ns) = (None::<Arc<dyn Executor>>, now_ns + IDLE_NS);
        for (wait_until_ns, exec) in self.all.iter().map(|work| work.wait.waits_for(now_ns)) {
            until_ns = until_ns.min(wait_until_ns);
            let Some(exec) = exec else { continue };
            if session.as_ref().is_some_and(|session| !Arc::ptr_eq(session, exec)) {
                until_ns = until_ns.min(soon_ns); // poll the session before a reinit
            }
            session = Some(Arc::clone(exec));
        }
        for (is_soon, exec) in self.questions.sessions() {
            let is_other = session.as_ref().is_some_and(|session| !Arc::ptr_eq(session, exec));
            if is_soon || is_other {
                until_ns = until_ns.min(soon_ns);
            }
            session = Some(Arc::clone(exec));
        }
        for (is_soon, exec) in self.keeping.sessions() {
            if is_soon {
                until_ns = until_ns.min(soon_ns);
            }
            let Some(exec) = exec else { continue };
            if session.as_ref().is_some_and(|session| !Arc::ptr_eq(session, exec)) {
                until_ns = until_ns.min(soon_ns);
            }
            session = Some(Arc::clone(exec));
        }
        if let Some(next_ns) = self.timers.next_ns() {
            until_ns = until_ns.min(next_ns);
        }
        let listening = self.listens_to(session);
        let source = match (listening, &self.session) {
            (Some(Ok(Listening::Inputs)), Some(exec)) => Source::Session(Arc::clone(exec)),
            (Some(Ok(Listening::Again) | Err(_)), _) => {
                until_ns = until_ns.min(soon_ns);
                Source::None
            }
            _ => Source::None,
        };
        Next::Until(until_ns, source)
    }

    /// Listens to this session from now on, and to no other.
    fn listens_to(
        &mut self,
        session: Option<Arc<dyn Executor>>,
    ) -> Option<Result<Listening, Status>> {
        let before = std::mem::replace(&mut self.session, session);
        if let Some(before) = before {
            let is_same = self.session.as_ref().is_some_and(|exec| Arc::ptr_eq(exec, &before));
            if !is_same {
                let _ = before.listen(None); // an error means that the earlier session has ended
            }
        }
        self.session.as_ref().map(|exec| exec.listen(Some(&self.call)))
    }
}

impl Work {
    /// Advances the operation; returns whether it is over.
    fn advance(&mut self, tasks: &Arc<Tasks>) -> bool {
        let instance = self.keeps.instance();
        if matches!(&self.slot, Where::Acquire(slot, _) if slot.is_dropped()) {
            self.wait.cancel();
        }
        let Some((result, number)) = instance.advance_wait(&mut self.wait, tasks) else {
            return false;
        };
        let (lock, mode) = (self.wait.lock(), self.wait.mode());
        match &mut self.slot {
            Where::Acquire(slot, renewal) => {
                let result = match (result.status, self.wait.read()) {
                    _ if self.wait.is_cancelled() => return true,
                    (Status::Success | Status::AlreadyLocked, Some((read, pulse))) => {
                        let Keeps::Reference(reference) = &self.keeps else { return true };
                        let keep = Arc::clone(reference);
                        let hold = Hold::new(keep, lock, mode, number, result.view);
                        let is_renewed = renewal.is_some();
                        let begun = renewal.take().map_or(Ok(()), |(lease, terms)| {
                            renewals::begin(reference, &hold, lease, terms)
                        });
                        match begun {
                            Ok(()) => Ok(Granted { hold, read, pulse, is_renewed }),
                            Err(error) => {
                                tasks.release_unwanted(hold);
                                Err(error)
                            }
                        }
                    }
                    (Status::Fail | Status::Again, _) => Err(Error::TimedOut),
                    (status, _) => Err(Error::of(status)),
                };
                if let Some(Ok(unwanted)) = slot.fill(result) {
                    tasks.release_unwanted(unwanted.hold);
                }
            }
            Where::Renewal(_) | Where::GiveBack => {}
            Where::Release(slot) => {
                let result = released(result.status);
                match slot {
                    Some(slot) => drop(slot.fill(result)),
                    None => result.unwrap_or_else(|e| log::warn!("a lock nobody wants: {e}")),
                }
            }
        }
        true
    }

    /// Carries the work to its end in this thread: a release, or the cancellation of an acquire,
    /// whose future gets an error.
    fn ends_here(mut self, tasks: &Arc<Tasks>) {
        if let Where::Acquire(slot, _) = &self.slot {
            let _ = slot.fill(Err(Error::Other(Status::Error)));
            self.wait.cancel();
        }
        while !self.advance(tasks) {
            std::thread::sleep(Duration::from_nanos(LOOK_AGAIN_NS));
        }
        self.ends(tasks);
    }

    /// Ends the work. For a renewal, returns the hold, which is to be looked at again.
    fn ends(self, tasks: &Tasks) -> Option<Renewed> {
        tasks.state.lock().is_over(&self.slot);
        if let Keeps::Reference(reference) = self.keeps {
            give_back(reference);
        }
        match self.slot {
            Where::Renewal(renewed) => Some(renewed),
            Where::Acquire(..) | Where::Release(_) | Where::GiveBack => None,
        }
    }
}

/// Drops a reference to a lock. If it is the last one, a separate thread gives the lock back to the
/// primary, because that takes a control call.
fn give_back(reference: Arc<Reference>) {
    if let Some(last) = Arc::into_inner(reference) {
        // if no thread can be started, this one gives the lock back
        if let Err(error) = aside("dlock-futures", move || drop(last)) {
            log::warn!("no thread to give a lock back: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::wire::message::Mode;
    use dlock_server::{Server, ServerConfig, VerbsUse};

    use super::*;
    use crate::client::Client;
    use crate::options::Config;

    struct Idle;

    impl driver::Work for Idle {
        fn turn(&mut self, _: bool, _: bool) -> Next {
            Next::Until(u64::MAX, Source::None)
        }
    }

    /// The heartbeats have the same thread.
    #[test]
    fn many_futures_that_are_dropped_together_are_cancelled_in_slices() {
        const COUNT: usize = 3 * SLICE_MAX + 1;
        let server = Server::start(ServerConfig {
            bind: std::net::Ipv4Addr::LOCALHOST.into(),
            port: 0,
            verbs: VerbsUse::Off,
            ..ServerConfig::default()
        });
        let server = server.expect("a primary");
        let config = Config::new().port(server.local_addr().port());
        let [holder, waiter] =
            [0, 1].map(|_| Client::with_config(&config, "127.0.0.1").expect("a client"));
        let held = holder.fair_lock("lock").unwrap();
        let _guard = held.acquire(Mode::Exclusive).guard().unwrap();
        let lock = waiter.fair_lock("lock").unwrap();

        let tasks = Arc::new(Tasks::new());
        register(|handle| {
            tasks.state.lock().work = Some(handle.clone()); // this test is the driver
            Box::new(Idle)
        })
        .unwrap();
        let wait = || {
            GuardWait::new(lock.id(), Mode::Exclusive, Lease::secs(30), Duration::from_secs(600))
        };
        let begin = |_| tasks.acquire(lock.reference(), wait(), None).unwrap();
        let futures: Vec<Acquiring> = (0..COUNT).map(begin).collect();
        let mut driven = Futures {
            tasks: Arc::clone(&tasks),
            call: Arc::new(|| ()),
            all: VecDeque::new(),
            left: 0,
            timers: Timers::default(),
            questions: Questions::default(),
            keeping: Keeping::default(),
            session: None,
        };
        drop(futures);
        let mut left = COUNT;
        while left > 0 {
            driver::Work::turn(&mut driven, false, left == COUNT);
            let now = tasks.state.lock().acquires;
            assert!(left - now <= SLICE_MAX, "{left} and {now}");
            left = now;
        }
    }
}
