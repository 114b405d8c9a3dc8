// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients that find the successor of their primary by themselves: one thread of each carries out
//! what [`Failover`] decides.
//!
//! ```text
//!   thread ── next ──▶ ask, heartbeat, reinit, claim, done, confirm ──▶ instance
//!     │ ▲ asks at once when an operation has failed, or the primary has closed the connection
//!     ▼ │
//!   Watch ◀── a lock call that has failed waits: has the client moved, or is the primary there?
//! ```
//! The thread takes no signals, holds the instance only while it does something, and ends with it.
//! A forked child has no such thread, and no session.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dlock_core::session::{Failover, Heard, Task, ADDRESSES_MAX, ADMISSION_NS};
use dlock_core::status::Status;
use dlock_fabric::clock::boot_ns;
use dlock_fabric::fork::Owner;
use dlock_fabric::threads::spawn_without_signals;
use dlock_fabric::wake::{Wake, Woken};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::control::{LineMark, Patience, ShutdownHandle};
use crate::execute::left_ns;
use crate::host::Address;
use crate::instance::Instance;

/// How long a `lock` call waits for a failover before it is refused: longer than a primary of
/// `dlockd` waits for absent clients by default.
pub(crate) const FAILOVER_WAIT: Duration = Duration::from_secs(60);
/// After a round of claims that were not all taken.
const AGAIN_PAUSE: Duration = Duration::from_millis(10);
/// From one line of the log to the next while there is no primary.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// What a client does about the silence of its primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Where its primaries are; at the first it begins.
    pub(crate) addresses: Vec<Address>,
    /// How long the primary may be silent.
    pub(crate) silence: Duration,
}

/// What calls know of the failover of their client.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Whose thread carries it out.
    owner: Owner,
    plan: Plan,
    state: Mutex<State>,
    changed: Condvar,
    /// What its thread sleeps on.
    wake: Wake,
    refused: Mutex<BeforeRefused>,
}

/// What its program does before a successor goes on that has refused claims.
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
    /// Times that it has come back, to the same primary or another.
    moves: u64,
    /// Heartbeats sent while it was here, and the last of them that was answered.
    asked: u64,
    answered: u64,
    /// The primary is to be asked at once.
    is_doubted: bool,
    /// An operation has left something in doubt.
    is_unsettled: bool,
    is_over: bool,
}

impl Watch {
    pub(crate) fn new(plan: Plan, wake: Wake) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { owner: Owner::current(), plan, state, changed, wake, refused: Mutex::default() }
    }

    /// Whether this process made it. A forked child has no thread that finds a primary, and its
    /// copy of the mutex may be locked for ever.
    pub(crate) fn is_here(&self) -> bool {
        self.owner.is_here()
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What the thread is to do before a successor goes on that has refused claims of holds.
    pub(crate) fn before_refused(&self, act: Arc<dyn Fn() + Send + Sync>) {
        self.refused.lock().0 = Some(act);
    }

    /// Does that. It may take long, and may put another in its place: the mutex is not held.
    fn refused(&self) {
        let act = self.refused.lock().0.clone();
        if let Some(act) = act {
            act();
        }
    }

    /// Times that the client has come back.
    pub(crate) fn moves(&self) -> u64 {
        self.state.lock().moves
    }

    /// A call has failed as calls fail without a primary. It is worth a second try if the client
    /// has come back since it had done so `moves` times; this waits for that, but not if the
    /// primary answers.
    pub(crate) fn has_moved(&self, moves: u64, deadline: Instant) -> bool {
        let mut state = self.state.lock();
        let asked = state.asked;
        state.is_doubted = true;
        self.wake.wake();
        loop {
            if state.is_over {
                return false;
            }
            if !state.is_away {
                match () {
                    () if state.moves > moves => return true,
                    () if state.answered > asked => return false,
                    () => {}
                }
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return false;
            }
        }
    }

    /// An operation has left something in doubt: [`Failover::left_in_doubt`].
    pub(crate) fn leaves_in_doubt(&self) {
        self.change(|state| (state.is_doubted, state.is_unsettled) = (true, true));
        self.wake.wake();
    }

    /// The client has left.
    pub(crate) fn end(&self) {
        self.change(|state| state.is_over = true);
        self.wake.wake();
    }

    /// The thread has nothing to do until then, unless a call doubts that the primary is there, or
    /// this connection to it ends.
    fn sleep(&self, until_ns: u64, line: Option<&ShutdownHandle>) -> Doubt {
        let deadline = Instant::now() + left_ns(until_ns);
        loop {
            {
                let mut state = self.state.lock();
                match () {
                    () if std::mem::take(&mut state.is_doubted) => return Doubt::OfCall,
                    () if state.is_over => return Doubt::None,
                    () => {}
                }
            }
            match self.wake.sleep(line.map(ShutdownHandle::fd), deadline) {
                Woken::Called => {} // for one of these, or for one that was seen before
                Woken::Ended => return Doubt::OfConnection,
                Woken::Late => return Doubt::None,
            }
        }
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

/// Why the primary is asked before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    None,
    /// A call has failed.
    OfCall,
    /// The connection has ended.
    OfConnection,
}

/// Starts the thread of a client. Without one it stays where it is.
pub(crate) fn look_after(client: &Arc<Instance>, watch: &Arc<Watch>) {
    let (client, watch) = (Arc::downgrade(client), Arc::clone(watch));
    let over = Arc::clone(&watch);
    let started = spawn_without_signals("dlock-failover", move || run(&client, &watch));
    if let Err(error) = started {
        over.end();
        log::error!(
            "this client will not find a successor of its primary: the thread dlock-failover \
             cannot be started ({error}); when its primary ends, its calls fail until the program \
             starts it anew; raise the limit of threads (ulimit -u, TasksMax= of the unit) and \
             start the program again"
        );
    }
}

/// What is to be said when it has come back, and from time to time before.
struct Away {
    since: Instant,
    held: usize,
    said: Instant,
}

fn run(client: &Weak<Instance>, watch: &Watch) {
    let plan = watch.plan();
    let silence_ns = u64::try_from(plan.silence.as_nanos()).unwrap_or(u64::MAX);
    let seed = boot_ns() ^ u64::from(std::process::id()) << 40;
    let mut failover = Failover::new(boot_ns(), plan.addresses.len(), silence_ns, seed);
    let mut away: Option<Away> = None;
    let mut reasons = vec![None; plan.addresses.len()];
    let mut ended: Option<LineMark> = None;
    while !watch.is_over() {
        if std::mem::take(&mut watch.state.lock().is_unsettled) {
            failover.left_in_doubt(boot_ns());
        }
        let task = failover.next(boot_ns());
        if let Task::Wait { until_ns } = task {
            // One that has ended is asked once; if the client stays, something else ends it.
            let is_watched = |line: &ShutdownHandle| {
                !failover.is_away() && !ended.as_ref().is_some_and(|ended| line.is(ended))
            };
            let line = client.upgrade().and_then(|client| client.line()).filter(is_watched);
            match watch.sleep(until_ns, line.as_ref()) {
                Doubt::None => continue,
                Doubt::OfCall => {}
                Doubt::OfConnection => ended = line.map(|line| line.mark()),
            }
            failover.doubted(boot_ns());
            continue;
        }
        let Some(client) = client.upgrade() else { break };
        if let Some((address, reason)) = carry_out(&client, watch, &mut failover, task) {
            reasons[address] = Some(reason);
        }
        let is_away = failover.is_away();
        match (is_away, away.take()) {
            (true, None) => {
                let held = client.held();
                log::warn!("client {} has lost its primary, and looks for it", client.id());
                let now = Instant::now();
                away = Some(Away { since: now, held, said: now });
            }
            (false, Some(before)) => {
                let (kept, after) = (client.held(), before.since.elapsed().as_millis());
                let (id, held) = (client.id(), before.held);
                let epoch = client.epoch();
                log::warn!(
                    "client {id} is back after {after} ms, at incarnation {epoch}: of {held} holds \
                     it has kept {}",
                    kept.min(held)
                );
                watch.change(|state| state.moves += 1);
                reasons.fill(None);
            }
            (true, Some(mut before)) => {
                if before.said.elapsed() >= SAY_EVERY {
                    before.said = Instant::now();
                    let (id, since) = (client.id(), before.since.elapsed().as_secs());
                    let known: Vec<&str> = reasons.iter().flatten().map(String::as_str).collect();
                    let why = match known[..] {
                        [] => "none has answered yet".to_owned(),
                        _ => known.join("; "),
                    };
                    log::warn!("client {id} is without a primary for {since} s now: {why}");
                }
                away = Some(before);
            }
            (false, None) => {}
        }
        watch.change(|state| state.is_away = is_away);
    }
    watch.end();
}

/// Why the client has not come to this address, if it has not.
fn carry_out(
    client: &Instance,
    watch: &Watch,
    failover: &mut Failover,
    task: Task,
) -> Option<(usize, String)> {
    let plan = watch.plan();
    // it may have many clients to let in, but it must be there
    let wait = Duration::from_nanos(ADMISSION_NS);
    let (silence, connect) = (Some(plan.silence), plan.silence.min(wait));
    let patience = Patience { wait, silence, connect, until: None };
    match task {
        Task::Wait { .. } => {}
        Task::Heartbeat { until_ns } => {
            watch.change(|state| state.asked += 1);
            let silence = Some(left_ns(until_ns));
            let Some(heard) = client.hears(Patience { silence, ..patience }) else {
                failover.broken(boot_ns());
                return None;
            };
            if heard != Heard::Nothing {
                watch.change(|state| state.answered = state.asked);
            }
            failover.heard(boot_ns(), heard);
            if heard == Heard::Recovers && !client.has_told() {
                failover.broken(boot_ns()); // the program has come back to this one by hand
            }
        }
        Task::Ask { address, wait_ns } => {
            client.try_give_up_ended(); // the question takes a descriptor
            let peer = &plan.addresses[address];
            let heard = client.asks(peer, Duration::from_nanos(wait_ns));
            failover.asked(boot_ns(), *heard.as_ref().unwrap_or(&Heard::Nothing));
            return heard
                .err()
                .map(|why| (address, format!("no primary answers at {peer}: {why}")));
        }
        Task::Reinit { address } | Task::Anew { address } => {
            let peer = &plan.addresses[address];
            let (status, what) = match task {
                Task::Anew { .. } => (client.begin_anew_at(peer, patience), "not taken anew"),
                _ => (client.reinit_at(peer, patience, log::Level::Debug), "not back"),
            };
            let came = match status {
                Status::Success => Ok(client.is_at_recovering()),
                status => Err(status),
            };
            failover.came(boot_ns(), came);
            if matches!(task, Task::Anew { .. }) && came.is_ok() && client.may_have_lost() {
                watch.refused(); // other clients may have it already
            }
            return came.err().map(|status| (address, format!("{what} at {peer}: {status}")));
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

/// The addresses that a program gives its client: the one it names, then the others.
pub(crate) fn addresses(first: &Address, others: &[Address]) -> Vec<Address> {
    let mut all = vec![first.clone()];
    for other in others {
        if !all.contains(other) {
            all.push(other.clone());
        }
    }
    if all.len() > ADDRESSES_MAX {
        let unused = all.split_off(ADDRESSES_MAX);
        log::warn!(
            "a client knows {ADDRESSES_MAX} primaries at most; not used: {}",
            listed(&unused)
        );
    }
    all
}

fn listed(addresses: &[Address]) -> String {
    addresses.iter().map(Address::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::mpsc;

    use super::*;

    fn nowhere() -> Watch {
        Watch::new(Plan { addresses: Vec::new(), silence: Duration::ZERO }, Wake::new().unwrap())
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
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
        assert!(!watch.has_moved(1, Instant::now()), "not in time");
        let waits = {
            let watch = Arc::clone(&watch);
            std::thread::spawn(move || watch.has_moved(1, soon()))
        };
        while watch.sleep(boot_ns() + 1_000_000_000, None) != Doubt::OfCall {}
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
        while watch.sleep(boot_ns() + 1_000_000_000, None) != Doubt::OfCall {}
        watch.change(|state| (state.asked, state.answered) = (4, 4));
        assert!(!waits.join().unwrap());
        watch.end();
        let until = soon();
        assert!(!watch.has_moved(0, until), "nobody looks for the primary any more");
        assert!(Instant::now() < until, "it was not waited for");
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
