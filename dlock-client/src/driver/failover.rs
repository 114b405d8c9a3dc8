// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients that find the successor of their primary by themselves: the driver carries out what
//! [`Failover`] decides.
//!
//! ```text
//!   driver ── next ──▶ heartbeat, whose answer it does not wait for ────────────▶ instance
//!     │ ▲     └──────▶ a thread of its own: ask, reinit, claim, done, confirm ──▶ instance
//!     │ │ asks at once when an operation has failed, or the primary has closed the connection
//!     ▼ │
//!   Watch ◀── a lock call that has failed waits: has the client moved, or is the primary there?
//! ```
//! While a client has its primary, only the driver works for it. Connecting and claiming take long:
//! a separate thread does this, from one pause to the next. The driver and that thread keep the
//! instance alive only while they act.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use dlock_core::clock::NS;
use dlock_core::ids::Seq;
use dlock_core::session::{Failover, Heard, Task, ADMISSION_NS};
use dlock_core::wire::control::Told;
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::{boot_ns, left_until};
use dlock_fabric::os::fork::Owner;
use dlock_fabric::os::wake::Watched;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::clock::wait_until;
use crate::control::{LineMark, Patience, ShutdownHandle};
use crate::driver::heartbeat::BUSY_RETRY_NS;
use crate::driver::{aside, register, Handle, Next, Source, Work};
use crate::events::Event;
use crate::host::Address;
use crate::instance::Instance;

/// How long a `lock` call waits for a failover: longer than `dlockd` waits for absent clients.
pub(crate) const FAILOVER_WAIT: Duration = Duration::from_secs(60);
/// The pause after a round of claims if the primary has not taken all of them.
const AGAIN_PAUSE: Duration = Duration::from_millis(10);
/// The pause after a thread could not be started.
const NO_THREAD_PAUSE_NS: u64 = 1_000_000_000;
/// The time from one line of the log to the next while there is no primary.
const SAY_EVERY_NS: u64 = 5 * NS;

/// How a client handles the silence of its primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The addresses of the client's primaries; the client begins at the first.
    pub(crate) addresses: Vec<Address>,
    /// How long the primary may be silent.
    pub(crate) silence: Duration,
}

/// The state of a client's failover, for the calls of the client.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The process whose driver carries the failover out.
    owner: Owner,
    plan: Plan,
    state: Mutex<State>,
    changed: Condvar,
    /// The handle of the driver's work for the failover.
    work: OnceLock<Handle>,
    refused: Mutex<BeforeRefused>,
}

/// The function of the program that the client calls before it confirms a successor that has
/// refused claims.
#[derive(Default)]
struct BeforeRefused(Option<Arc<dyn Fn() + Send + Sync>>);

impl std::fmt::Debug for BeforeRefused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BeforeRefused").field(&self.0.is_some()).finish()
    }
}

#[derive(Debug, Default)]
struct State {
    is_away: bool,
    /// The number of times that the client has come back, to the same primary or another.
    moves: u64,
    /// The number of heartbeats sent while the client had its primary, and the number of the last
    /// of them that was answered.
    asked: u64,
    answered: u64,
    /// Whether the primary is to be asked at once.
    is_doubted: bool,
    /// Whether an operation has left its outcome in doubt.
    is_unsettled: bool,
    is_over: bool,
}

impl State {
    /// As [`Watch::has_moved_by_now`]. `asked`: the number of the last heartbeat before the call
    /// failed.
    fn has_moved(&self, moves: u64, asked: u64) -> Option<bool> {
        match () {
            () if self.is_over => Some(false),
            () if self.is_away => None,
            () if self.moves > moves => Some(true),
            () if self.answered > asked => Some(false),
            () => None,
        }
    }
}

impl Watch {
    pub(crate) fn new(plan: Plan) -> Self {
        let (owner, state, changed) = (Owner::current(), Mutex::default(), Condvar::new());
        Self { owner, plan, state, changed, work: OnceLock::new(), refused: Mutex::default() }
    }

    /// Whether this process has made the client. In a forked child the failover does not run, and
    /// the child's copy of the mutex may be locked for ever.
    pub(crate) fn is_here(&self) -> bool {
        self.owner.is_here()
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Sets the function that the client calls if a successor has refused claims of holds, before
    /// the client tells that successor that it has made all claims.
    pub(crate) fn before_refused(&self, act: Arc<dyn Fn() + Send + Sync>) {
        self.refused.lock().0 = Some(act);
    }

    /// Calls the function set by [`before_refused`](Self::before_refused), if there is one. The
    /// function may take long, and may set another one, so the mutex is free meanwhile.
    fn refused(&self) {
        let act = self.refused.lock().0.clone();
        if let Some(act) = act {
            act();
        }
    }

    /// The number of times that the client has come back.
    pub(crate) fn moves(&self) -> u64 {
        self.state.lock().moves
    }

    /// Has the driver ask the primary at once whether it is there, because a call has failed as if
    /// no primary were. Returns the number of the last heartbeat before that one.
    pub(crate) fn doubts(&self) -> u64 {
        let mut state = self.state.lock();
        state.is_doubted = true;
        self.call();
        state.asked
    }

    /// The result of [`has_moved`](Self::has_moved), without waiting; `None`: the driver does not
    /// know it yet.
    pub(crate) fn has_moved_by_now(&self, moves: u64, asked: u64) -> Option<bool> {
        self.state.lock().has_moved(moves, asked)
    }

    /// Whether to repeat a call that has failed as if no primary were there: only if the client has
    /// come back to a primary more than `moves` times. Waits until `until_ns` for the client to
    /// come back, or for an answer of the primary, which says that the client has not moved.
    pub(crate) fn has_moved(&self, moves: u64, until_ns: u64) -> bool {
        let asked = self.doubts();
        let mut state = self.state.lock();
        loop {
            if let Some(has_moved) = state.has_moved(moves, asked) {
                return has_moved;
            }
            if wait_until(&self.changed, &mut state, until_ns) {
                return false;
            }
        }
    }

    /// Records that an operation has left its outcome in doubt; see [`Failover::left_in_doubt`].
    pub(crate) fn leaves_in_doubt(&self) {
        self.change(|state| (state.is_doubted, state.is_unsettled) = (true, true));
        self.call();
    }

    /// Records that the client has left.
    pub(crate) fn end(&self) {
        self.change(|state| state.is_over = true);
        self.call();
    }

    /// Calls the driver's work for the failover.
    fn call(&self) {
        if let Some(work) = self.work.get() {
            work.call();
        }
    }

    /// Whether a call has doubted, since this function was last called, that there is a primary.
    fn take_doubt(&self) -> bool {
        std::mem::take(&mut self.state.lock().is_doubted)
    }

    fn is_over(&self) -> bool {
        self.state.lock().is_over
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        MutexGuard::unlock_fair(state);
        self.changed.notify_all();
    }
}

/// Has the driver carry out the failover of a client. If this fails, the client finds no successor
/// by itself.
pub(crate) fn look_after(client: &Arc<Instance>, watch: &Arc<Watch>) {
    let seeker = Arc::new(Place { seeker: Mutex::new(Seeker::new(watch)), is_aside: false.into() });
    let seeks = Seeks { client: Arc::downgrade(client), watch: Arc::clone(watch), seeker };
    let registered = register(|work| {
        let _ = watch.work.set(work.clone()); // a client has one such work
        Box::new(seeks)
    });
    if let Err(error) = registered {
        watch.end();
        log::error!(
            "this client will not find a successor of its primary: the thread dlock-client cannot \
             be started ({error}); when its primary ends, its calls fail until the program starts \
             it anew; raise the limit of threads (ulimit -u, TasksMax= of the unit) and start the \
             program again"
        );
    }
}

/// The driver's work for the failover of one client.
struct Seeks {
    client: Weak<Instance>,
    watch: Arc<Watch>,
    seeker: Arc<Place>,
}

/// The failover of a client; either the driver or a separate thread carries it on.
struct Place {
    seeker: Mutex<Seeker>,
    /// Whether the separate thread carries the failover on.
    is_aside: AtomicBool,
}

/// How far the failover of a client has come.
struct Seeker {
    failover: Failover,
    away: Option<Away>,
    /// For each address, the reason why the client has not come to the primary there.
    reasons: Vec<Option<String>>,
    /// The control connection that the driver watches.
    watched: Option<LineMark>,
    /// A control connection whose end the driver has seen already: it is not watched again.
    ended: Option<LineMark>,
    asked: Option<Asked>,
    /// How far the recovery of the primary is, as reported to listeners.
    recovery: Told,
}

/// A heartbeat whose answer is awaited.
#[derive(Clone, Copy)]
struct Asked {
    /// `None`: the heartbeat could not be sent yet.
    seq: Option<Seq>,
    until_ns: u64,
    /// The whole time from the heartbeat to `until_ns`.
    silence: Duration,
}

/// The times and numbers for the log while the client has no primary.
struct Away {
    since_ns: u64,
    held: usize,
    said_ns: u64,
}

impl Work for Seeks {
    fn turn(&mut self, has_event: bool, _: bool) -> Next {
        let client = self.client.upgrade().filter(|_| !self.watch.is_over());
        let Some(client) = client else {
            self.watch.end();
            return Next::Over;
        };
        if self.seeker.is_aside.load(Ordering::SeqCst) {
            return Next::Until(u64::MAX, Source::None); // the thread calls when it ends
        }
        let mut seeker = self.seeker.seeker.lock();
        if has_event && seeker.asked.is_none() {
            // the primary is asked once: if the client stays with this connection, its end is not
            // reported again
            seeker.ended = seeker.watched.take();
            seeker.failover.doubted(boot_ns());
        }
        match seeker.goes_on(&client, &self.watch) {
            Some(next) => next,
            None => self.goes_aside(&mut seeker),
        }
    }
}

impl Seeks {
    /// Starts the thread for the steps that take long.
    fn goes_aside(&self, seeker: &mut Seeker) -> Next {
        let (client, watch) = (self.client.clone(), Arc::clone(&self.watch));
        let place = Arc::clone(&self.seeker);
        place.is_aside.store(true, Ordering::SeqCst);
        let started = aside("dlock-failover", move || {
            let work = || place.seeker.lock().goes_aside(&client, &watch);
            // the panic hook has reported a panic; the step is tried again
            let _ = catch_unwind(AssertUnwindSafe(work));
            place.is_aside.store(false, Ordering::SeqCst);
            watch.call();
        });
        let Err(error) = started else { return Next::Until(u64::MAX, Source::None) };
        self.seeker.is_aside.store(false, Ordering::SeqCst);
        log::error!(
            "no thread to look for a primary, it is tried again: {error}; raise the limit of \
             threads (ulimit -u, TasksMax= of the unit)"
        );
        seeker.watched = None;
        Next::Until(boot_ns().saturating_add(NO_THREAD_PAUSE_NS), Source::None)
    }
}

impl Seeker {
    fn new(watch: &Watch) -> Self {
        let Plan { addresses, silence } = watch.plan();
        let silence_ns = u64::try_from(silence.as_nanos()).unwrap_or(u64::MAX);
        let seed = boot_ns() ^ u64::from(std::process::id()) << 40;
        let failover = Failover::new(boot_ns(), addresses.len(), silence_ns, seed);
        let reasons = vec![None; addresses.len()];
        Self {
            failover,
            away: None,
            reasons,
            watched: None,
            ended: None,
            asked: None,
            recovery: Told::default(),
        }
    }

    fn next(&mut self, watch: &Watch) -> Task {
        if std::mem::take(&mut watch.state.lock().is_unsettled) {
            self.failover.left_in_doubt(boot_ns());
        }
        self.failover.next(boot_ns())
    }

    /// Carries the failover on as far as possible without waiting; `None`: the next step may take
    /// long.
    fn goes_on(&mut self, client: &Instance, watch: &Watch) -> Option<Next> {
        loop {
            let asked = match (self.asked, self.asked.is_none().then(|| self.next(watch))) {
                (Some(asked), _) => asked,
                (None, Some(Task::Wait { until_ns })) => {
                    if watch.take_doubt() {
                        self.failover.doubted(boot_ns());
                        continue;
                    }
                    let is_watched = |line: &ShutdownHandle| {
                        let ended = self.ended.as_ref();
                        !self.failover.is_away() && !ended.is_some_and(|ended| line.is(ended))
                    };
                    let line = client.line().filter(is_watched);
                    self.watched = line.as_ref().map(ShutdownHandle::mark);
                    let source =
                        line.map_or(Source::None, |line| Source::Control(line, Watched::End));
                    return Some(Next::Until(until_ns, source));
                }
                (None, Some(Task::Heartbeat { until_ns })) => {
                    watch.change(|state| state.asked += 1);
                    Asked { seq: None, until_ns, silence: left_until(until_ns) }
                }
                (None, _) => return None,
            };
            let (seq, heard) = client.beats(asked.seq);
            self.asked = Some(Asked { seq, ..asked });
            match heard {
                Ok(None) if boot_ns() >= asked.until_ns => return None,
                Ok(None) => {
                    let again_ns = boot_ns().saturating_add(BUSY_RETRY_NS);
                    let line = client.line().filter(|_| seq.is_some());
                    return Some(match line {
                        Some(line) => {
                            Next::Until(asked.until_ns, Source::Control(line, Watched::Input))
                        }
                        None => Next::Until(again_ns.min(asked.until_ns), Source::None),
                    });
                }
                Ok(Some(heard)) => self.is_heard(client, watch, Some(heard)),
                Err(Ended) => self.is_heard(client, watch, None),
            }
            self.is_noted(client, watch);
        }
    }

    /// Carries out the steps that take long, up to the next pause of the failover.
    fn goes_aside(&mut self, client: &Weak<Instance>, watch: &Watch) {
        while !watch.is_over() {
            let Some(client) = client.upgrade() else { return };
            match self.asked {
                Some(asked) => {
                    let patience = patience(watch, asked.silence);
                    let heard = client.hears(patience, asked.seq.is_some());
                    self.is_heard(&client, watch, heard);
                }
                None => match self.next(watch) {
                    Task::Wait { .. } | Task::Heartbeat { .. } => return,
                    task => {
                        let failed = carry_out(&client, watch, &mut self.failover, task);
                        if let Some((address, reason)) = failed {
                            self.reasons[address] = Some(reason);
                        }
                        client.tells_all(None);
                    }
                },
            }
            self.is_noted(&client, watch);
        }
    }

    /// Handles the answer of the primary, or its silence; `None`: a connection has ended.
    fn is_heard(&mut self, client: &Instance, watch: &Watch, heard: Option<Heard>) {
        self.asked = None;
        let Some(heard) = heard else {
            self.recovery = Told::default();
            return self.failover.broken(boot_ns());
        };
        if heard != Heard::Nothing {
            watch.change(|state| state.answered = state.asked);
        }
        self.failover.heard(boot_ns(), heard);
        let recovery = if heard == Heard::Recovers { client.recovery() } else { Told::default() };
        let Told { told, of } = recovery;
        if std::mem::replace(&mut self.recovery, recovery) != recovery && of > 0 {
            client.tells_of_primary(Event::Recovering { told, of });
        }
        if heard == Heard::Recovers && !client.has_told() {
            self.failover.broken(boot_ns()); // the program itself has come back to this primary
        }
    }

    /// Records for the calls whether the client has its primary, and logs each change.
    fn is_noted(&mut self, client: &Instance, watch: &Watch) {
        let is_away = self.failover.is_away();
        match (is_away, self.away.take()) {
            (true, None) => {
                let held = client.held();
                log::warn!("client {} has lost its primary, and looks for it", client.id());
                let now_ns = boot_ns();
                self.away = Some(Away { since_ns: now_ns, held, said_ns: now_ns });
            }
            (false, Some(before)) => {
                let kept = client.held();
                let after = (boot_ns() - before.since_ns) / 1_000_000;
                let (id, held) = (client.id(), before.held);
                let epoch = client.epoch();
                log::warn!(
                    "client {id} is back after {after} ms, at incarnation {epoch}: of {held} holds \
                     it has kept {}",
                    kept.min(held)
                );
                watch.change(|state| state.moves += 1);
                self.reasons.fill(None);
                client.tells_of_primary(Event::Serving);
            }
            (true, Some(mut before)) => {
                let now_ns = boot_ns();
                if now_ns - before.said_ns >= SAY_EVERY_NS {
                    before.said_ns = now_ns;
                    let (id, since) = (client.id(), (now_ns - before.since_ns) / NS);
                    let Told { told, of } = self.recovery;
                    let known = self.reasons.iter().flatten().map(String::as_str);
                    let why = match known.collect::<Vec<_>>()[..] {
                        _ if of > 0 => format!(
                            "one recovers, and {told} of {of} clients have told it what they hold"
                        ),
                        [] => "none has answered yet".to_owned(),
                        ref known => known.join("; "),
                    };
                    log::warn!("client {id} is without a primary for {since} s now: {why}");
                }
                self.away = Some(before);
            }
            (false, None) => {}
        }
        watch.change(|state| state.is_away = is_away);
    }
}

/// A connection of the session has ended.
pub(crate) struct Ended;

/// The patience with a successor: it may have many clients to admit, but it must not be silent.
fn patience(watch: &Watch, silence: Duration) -> Patience {
    let wait = Duration::from_nanos(ADMISSION_NS);
    let connect = watch.plan().silence.min(wait);
    Patience { wait, silence: Some(silence), connect, until_ns: u64::MAX }
}

/// Carries out one step. If the client has not come to an address, returns the address's index and
/// the reason.
fn carry_out(
    client: &Instance,
    watch: &Watch,
    failover: &mut Failover,
    task: Task,
) -> Option<(usize, String)> {
    let plan = watch.plan();
    let patience = patience(watch, plan.silence);
    match task {
        Task::Wait { .. } | Task::Heartbeat { .. } => {} // the driver carries these tasks out
        Task::Ask { address, wait_ns } => {
            // the question needs a descriptor, which an ended connection may free
            client.try_give_up_ended();
            let peer = &plan.addresses[address];
            let heard = client.asks(peer, Duration::from_nanos(wait_ns));
            failover.asked(boot_ns(), *heard.as_ref().unwrap_or(&Heard::Nothing));
            let no_answer = |why| (address, format!("no primary answers at {peer}: {why}"));
            return heard.err().map(no_answer);
        }
        Task::Reinit { address } | Task::Anew { address } => {
            let peer = &plan.addresses[address];
            let (result, what) = match task {
                Task::Anew { .. } => (client.begin_anew_at(peer, patience), "not taken anew"),
                _ => (client.reinit_at(peer, patience, log::Level::Debug), "not back"),
            };
            let came = result.as_ref().map(|()| client.is_at_recovering());
            let came = came.map_err(|unreached| unreached.status);
            failover.came(boot_ns(), came);
            if came == Ok(true) {
                client.tells_of_primary(Event::Recovering { told: 0, of: 0 });
            }
            if matches!(task, Task::Anew { .. }) && came.is_ok() && client.may_have_lost() {
                watch.refused(); // other clients may have the locks already
            }
            let unreached = result.err();
            return unreached.map(|one| (address, format!("{what} at {peer}: {}", one.why)));
        }
        Task::Claim => {
            let status = client.update_all_locks_within(patience);
            if status == Status::Again {
                std::thread::sleep(AGAIN_PAUSE);
            }
            failover.claimed(boot_ns(), status);
        }
        Task::Done => {
            if client.may_have_lost() {
                watch.refused();
            }
            let status = client.reinit_done_within(patience);
            failover.said(boot_ns(), status);
        }
        Task::Confirm => failover.confirmed(boot_ns(), client.confirm_all(plan.silence)),
    }
    None
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::mpsc;

    use dlock_core::session::ADDRESSES_MAX;

    use dlock_fabric::os::clock::deadline_in;

    use super::*;
    use crate::host::addresses;

    fn nowhere() -> Watch {
        Watch::new(Plan { addresses: Vec::new(), silence: Duration::ZERO })
    }

    fn soon() -> u64 {
        deadline_in(Duration::from_secs(60))
    }

    #[test]
    fn the_address_of_the_program_is_the_first_and_none_is_there_twice() {
        let of = |port| Address::from(SocketAddr::from(([127, 0, 0, 1], port)));
        let twice = [of(1), of(2), of(1), of(3), of(1)];
        assert_eq!(addresses(&of(2), &twice), [of(2), of(1), of(3)]);
        let many: Vec<Address> = (10..60).map(of).collect();
        assert_eq!(addresses(&of(2), &many).len(), ADDRESSES_MAX);
    }

    #[test]
    fn a_call_that_failed_is_tried_again_once_the_client_has_moved_and_not_before() {
        let watch = Arc::new(nowhere());
        let moves = watch.moves();
        watch.change(|state| (state.is_away, state.moves) = (false, 1));
        assert!(watch.has_moved(moves, soon()), "it has moved since");
        assert!(!watch.has_moved(1, 0), "not in time");
        let waits = {
            let watch = Arc::clone(&watch);
            std::thread::spawn(move || watch.has_moved(1, soon()))
        };
        while !watch.take_doubt() {
            std::thread::yield_now();
        }
        watch.change(|state| state.is_away = true);
        watch.change(|state| (state.asked, state.answered, state.moves) = (5, 5, 2));
        assert!(!waits.is_finished(), "it is away still");
        watch.change(|state| state.is_away = false);
        assert!(waits.join().unwrap());
    }

    #[test]
    fn a_call_that_failed_though_the_primary_answers_is_not_tried_again() {
        let watch = Arc::new(nowhere());
        watch.change(|state| (state.asked, state.answered) = (3, 3));
        let waits = {
            let watch = Arc::clone(&watch);
            std::thread::spawn(move || watch.has_moved(0, soon()))
        };
        while !watch.take_doubt() {
            std::thread::yield_now();
        }
        watch.change(|state| (state.asked, state.answered) = (4, 4));
        assert!(!waits.join().unwrap());
        watch.end();
        let until_ns = soon();
        assert!(!watch.has_moved(0, until_ns), "nobody looks for the primary any more");
        assert!(boot_ns() < until_ns, "it was not waited for");
    }

    #[test]
    fn what_is_done_before_a_successor_goes_on_may_be_replaced_while_it_is_done() {
        let (watch, (told, tells)) = (Arc::new(nowhere()), mpsc::channel());
        let again = Arc::downgrade(&watch);
        watch.before_refused(Arc::new(move || {
            let told = told.clone();
            again.upgrade().unwrap().before_refused(Arc::new(move || told.send(2).unwrap()));
        }));
        let acts = Arc::clone(&watch);
        let acts = std::thread::spawn(move || (0..2).for_each(|_| acts.refused()));
        assert_eq!(tells.recv_timeout(Duration::from_secs(60)), Ok(2), "the mutex is held");
        acts.join().unwrap();
    }
}
