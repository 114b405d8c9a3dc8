// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits of futures, on an executor that answers on demand.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::clock::{Deadline, Lease, ServerTime, NS};
use dlock_core::ids::{LockId, Seq};
use dlock_core::lock::{Due, EntryState};
use dlock_core::memory::words::{AtomicWord, TakenWord};
use dlock_core::token::Token;
use dlock_core::wire::message::{LockType, Mode, Reply, Request};

use super::tests::{instance, others_hold, ME};
use super::*;
use crate::driver::failover::Plan;
use crate::driver::futures::Tasks;
use crate::driver::renewals::{Renew, Renewed};
use dlock_fabric::os::clock::{boot_ns, deadline_in};
use dlock_test_support::fake::Fake;

const LOCK: LockId = LockId(1);
const X: Mode = Mode::Exclusive;
const LONG: Duration = Duration::from_secs(600);
const DEADLINE_S: u32 = 1_600;

/// An instance whose wait is queued at the arbiter.
fn waiting() -> (Instance, Arc<Fake>, GuardWait, Arc<Tasks>) {
    let (instance, fake) = instance(&[LockType::Atomic]);
    fake.words.lock().insert(0, others_hold());
    fake.answer(|request| (!matches!(request, Request::Wait { .. })).then_some(DONE));
    let (mut wait, tasks) = (GuardWait::new(LOCK, X, Lease::secs(5), LONG), Arc::new(Tasks::new()));
    assert!(instance.advance_wait(&mut wait, &tasks).is_none());
    assert!(instance.advance_wait(&mut wait, &tasks).is_none(), "nothing has come");
    assert!(matches!(fake.requests.lock()[..], [Request::Wait { .. }]));
    (instance, fake, wait, tasks)
}

const DONE: Reply = Reply::Done { word: 0 };

fn mine() -> u64 {
    AtomicWord::new().with_client(ME).with_timeout(Deadline::at_s(DEADLINE_S)).into_bits()
}

/// The arbiter grants the first wait.
fn grant(fake: &Fake) {
    fake.words.lock().insert(0, mine());
    let at = ServerTime(1_000 * NS);
    let granted = Reply::Granted {
        word: mine(),
        deadline: Deadline::at_s(DEADLINE_S),
        at,
        ticket: None,
        token: Token::NONE,
    };
    fake.deliver(granted);
}

#[test]
fn a_grant_that_came_just_before_the_drop_is_released_by_the_word_itself() {
    let (instance, fake, wait, tasks) = waiting();
    grant(&fake);
    instance.cancel_wait(wait, &tasks);
    assert_eq!(fake.word(0), 0, "the grant was taken, and released");
    assert_eq!(fake.requests.lock().len(), 1, "nothing is in doubt");
    assert_eq!(instance.try_guard(LOCK, X, Lease::secs(5)).0.status, Status::Success);
}

#[test]
fn a_drop_just_before_the_grant_has_the_arbiter_undo_the_wait_before_anything_else() {
    let (instance, fake, wait, tasks) = waiting();
    instance.cancel_wait(wait, &tasks);
    grant(&fake); // the grant was on its way
    let requests = fake.requests.lock().clone();
    assert!(matches!(requests[..], [Request::Wait { .. }, Request::Resolve { .. }]));
    assert_eq!(fake.forgotten.lock().len(), 2, "neither of the two is waited for");
    // the test does what the arbiter does for the `Resolve`
    fake.words.lock().clear();
    let (taken, number) = instance.try_guard(LOCK, X, Lease::secs(5));
    assert_eq!(taken.status, Status::Success);
    let requests = fake.requests.lock().clone();
    assert!(matches!(requests[2..], [Request::Resolve { .. }]), "and that it is done is asked");
    assert_eq!(instance.end_guard(LOCK, number), Status::Success);
}

#[test]
fn a_wait_that_is_granted_is_a_hold_of_its_own() {
    let (instance, fake, mut wait, tasks) = waiting();
    assert_eq!(
        instance.try_guard(LOCK, X, Lease::secs(5)).0.status,
        Status::Fail,
        "it is queued for"
    );
    grant(&fake);
    let (result, number) = instance.advance_wait(&mut wait, &tasks).unwrap();
    assert_eq!(result.status, Status::Success);
    assert!(wait.read().is_some());
    assert_eq!(instance.try_guard(LOCK, X, Lease::secs(5)).0.status, Status::Fail);
    assert_eq!(instance.end_guard(LOCK, number), Status::Success);
    assert_eq!(fake.word(0), 0);
}

#[test]
fn a_wait_whose_time_is_up_is_cancelled_as_one_of_a_thread() {
    let (instance, fake) = instance(&[LockType::Atomic]);
    fake.words.lock().insert(0, others_hold());
    fake.answer(|request| match request {
        Request::Wait { .. } => None,
        Request::Ping => Some(Reply::Pong { at: ServerTime(1_000 * NS) }),
        _ => Some(DONE),
    });
    let tasks = Arc::new(Tasks::new());
    let mut wait = GuardWait::new(LOCK, X, Lease::secs(5), Duration::from_millis(1));
    let start = Instant::now();
    let is_cancelled = || fake.requests.lock().iter().any(|r| matches!(r, Request::Cancel { .. }));
    while !is_cancelled() {
        assert!(instance.advance_wait(&mut wait, &tasks).is_none());
        assert!(start.elapsed() < LONG);
    }
    fake.deliver(Reply::Cancelled { word: others_hold() });
    let (result, _) = instance.advance_wait(&mut wait, &tasks).unwrap();
    assert_eq!(result.status, Status::Fail);
    assert!(!fake.requests.lock().iter().any(|r| matches!(r, Request::Resolve { .. })));
}

#[test]
fn a_dropped_wait_of_a_session_that_was_replaced_is_undone_at_the_new_one() {
    let (instance, fake, wait, tasks) = waiting();
    let other = Arc::new(Fake::new());
    {
        let (_, mut guard) = instance.opened(LOCK, deadline_in(LONG)).unwrap();
        let held = guard.as_mut().unwrap();
        let (exec, pulse) = (other.clone(), Arc::clone(&held.pulse));
        held.go_over_to(exec, pulse);
    }
    instance.cancel_wait(wait, &tasks);
    assert_eq!(fake.requests.lock().len(), 1, "nothing is said to the old one");
    assert!(matches!(other.requests.lock()[..], [Request::Resolve { .. }]));
}

#[test]
fn a_wait_behind_a_guard_of_its_own_client_keeps_its_place_and_gives_it_up() {
    let (instance, fake) = instance(&[LockType::Atomic]);
    let (taken, held) = instance.try_guard(LOCK, X, Lease::secs(5));
    assert_eq!(taken.status, Status::Success);
    let tasks = Arc::new(Tasks::new());
    let [mut first, mut second] = [(); 2].map(|()| GuardWait::new(LOCK, X, Lease::secs(5), LONG));
    assert!(instance.advance_wait(&mut first, &tasks).is_none());
    assert!(instance.advance_wait(&mut second, &tasks).is_none());
    assert_eq!(instance.end_guard(LOCK, held), Status::Success);
    assert!(instance.advance_wait(&mut second, &tasks).is_none(), "it is the turn of the first");
    assert_eq!(
        instance.try_guard(LOCK, X, Lease::secs(5)).0.status,
        Status::Fail,
        "nobody barges in"
    );
    instance.cancel_wait(first, &tasks);
    let (result, number) = instance.advance_wait(&mut second, &tasks).unwrap();
    assert_eq!(result.status, Status::Success);
    assert_eq!(instance.end_guard(LOCK, number), Status::Success);
    assert_eq!(
        instance.try_guard(LOCK, X, Lease::secs(5)).0.status,
        Status::Success,
        "the queue is empty"
    );
    assert!(fake.requests.lock().is_empty());
}

/// The operation began in a session that was replaced since. Requests of the new session have the
/// same numbers, so answers of the new session must not be taken for answers of the old one.
#[test]
fn an_asynchronous_operation_of_a_session_that_was_replaced_is_undone_at_the_new_one() {
    let (instance, fake) = instance(&[LockType::Atomic]);
    fake.slow.store(true, std::sync::atomic::Ordering::SeqCst);
    let take = AsyncOp::TryLock { mode: X, expire_s: 5 };
    assert_eq!(instance.request_async(LOCK, take), Status::Success);
    let other = Arc::new(Fake::new());
    {
        let (_, mut guard) = instance.opened(LOCK, deadline_in(LONG)).unwrap();
        let held = guard.as_mut().unwrap();
        let (exec, pulse) = (other.clone(), Arc::clone(&held.pulse));
        held.go_over_to(exec, pulse);
    }
    fake.slow.store(false, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(instance.result_check().status, Status::BadResponse);
    assert!(fake.requests.lock().is_empty(), "nothing is said to the old one");
    assert!(matches!(other.requests.lock()[..], [Request::Resolve { .. }]));
    assert_eq!(instance.result_check().status, Status::NoAsync);
    assert_eq!(instance.trylock(LOCK, X, 5).status, Status::Success);
    assert_eq!(instance.unlock(LOCK).status, Status::Success);
}

/// At the end of the data path the primary drops requests that it has not read. If a `Wake` were
/// among them, the next sleeper would not learn that the lock was released.
#[test]
fn who_leaves_is_heard_before_its_data_path_ends() {
    let pong = Reply::Pong { at: ServerTime(0) };
    for one_sided in [true, false] {
        let (instance, fake) = instance(&[LockType::Fair]);
        fake.one_sided.store(one_sided, SeqCst);
        fake.answer(move |request| matches!(request, Request::Ping).then_some(pong));
        instance.deinit();
        let heard: &[Request] = if one_sided { &[Request::Ping] } else { &[] };
        assert_eq!(*fake.requests.lock(), heard, "the primary has served what came before");
        assert_eq!(fake.reply(Seq(1), 0), Ok(None), "the answer was waited for");
    }
}

/// While a client is cut off, the primary may end its holds without a lease, and another client may
/// have the lock: a wait must not enter such a hold once more.
#[test]
fn a_wait_enters_nothing_again_while_the_session_is_cut_off() {
    let (instance, fake) = instance(&[LockType::Rw]);
    assert_eq!(instance.try_guard(LOCK, Mode::Shared, Lease::ENDLESS).0.status, Status::Success);
    let enters = || {
        let mut wait = GuardWait::new(LOCK, Mode::Shared, Lease::ENDLESS, LONG);
        instance.advance_wait(&mut wait, &Arc::new(Tasks::new())).unwrap().0.status
    };
    assert_eq!(enters(), Status::AlreadyLocked);
    fake.gone.store(true, SeqCst);
    assert_eq!(enters(), Status::BadResponse);
}

/// The caller gets the error and does not ask again, so a ticket would stay without an owner.
#[test]
fn a_wait_that_ends_without_a_primary_keeps_no_ticket() {
    let (mut instance, fake) = instance(&[LockType::Fair]);
    let plan = Plan { addresses: Vec::new(), silence: LONG };
    instance.watch = Some(Arc::new(Watch::new(plan)));
    fake.words.lock().insert(0, TakenWord::new().with_mx(1).into_bits());
    fake.answer(|_| None);
    let tasks = Arc::new(Tasks::new());
    let mut wait = GuardWait::new(LOCK, X, Lease::secs(5), Duration::from_millis(1));
    let start = Instant::now();
    let result = loop {
        match instance.advance_wait(&mut wait, &tasks) {
            Some((result, _)) => break result,
            None => assert!(start.elapsed() < LONG),
        }
    };
    assert_eq!(result.status, Status::BadResponse, "nothing answers");
    let guard = instance.table.lock_slot(instance.table.find(LOCK).unwrap()).lock();
    assert_eq!(guard.as_ref().unwrap().entry.state(), EntryState::Initialized);
}

/// An acquire begins again at a successor. A renewal must not: it would enter the hold once more,
/// and would not be tried again in time.
#[test]
fn a_renewal_without_a_primary_is_over_and_due_again() {
    let (mut instance, fake) = instance(&[LockType::Atomic]);
    let plan = Plan { addresses: Vec::new(), silence: LONG };
    instance.watch = Some(Arc::new(Watch::new(plan)));
    let instance = Arc::new(instance);
    let (result, hold) = instance.try_guard(LOCK, X, Lease::secs(600));
    assert_eq!(result.status, Status::Success);
    let terms = Renew::new();
    assert_eq!(instance.renew_guard(LOCK, hold, Lease::secs(1), &terms), Status::Success);
    let renewed = Renewed { instance: Arc::downgrade(&instance), lock: LOCK, hold, terms };
    let start = Instant::now();
    while instance.look_after_hold(&renewed) != Due::Renew {
        assert!(start.elapsed() < LONG, "after a third of a second");
    }
    fake.gone.store(true, SeqCst);
    let mut wait = GuardWait::renewal(LOCK, hold);
    let (result, _) = instance.advance_wait(&mut wait, &Arc::new(Tasks::new())).unwrap();
    assert_eq!(result.status, Status::BadResponse);
    assert!(matches!(instance.look_after_hold(&renewed), Due::At(_) | Due::Renew));
    let guard = instance.table.lock_slot(instance.table.find(LOCK).unwrap()).lock();
    assert_eq!(guard.as_ref().unwrap().entry.refs(), 1);
}

/// The session of the chain was replaced, so the outcome of the chain says nothing about the lock
/// any more.
#[test]
fn a_chain_of_a_wait_whose_session_was_replaced_is_undone_at_the_new_one() {
    let (instance, fake) = instance(&[LockType::Atomic]);
    fake.slow.store(true, SeqCst);
    let (mut wait, tasks) = (GuardWait::new(LOCK, X, Lease::secs(5), LONG), Arc::new(Tasks::new()));
    assert!(instance.advance_wait(&mut wait, &tasks).is_none(), "the chain is out");
    assert!(instance.advance_wait(&mut wait, &tasks).is_none());
    assert_eq!(instance.try_guard(LOCK, X, Lease::secs(5)).0.status, Status::Fail, "it is in use");
    let other = Arc::new(Fake::new());
    {
        let (_, mut guard) = instance.opened(LOCK, deadline_in(LONG)).unwrap();
        let held = guard.as_mut().unwrap();
        let (exec, pulse) = (other.clone(), Arc::clone(&held.pulse));
        held.go_over_to(exec, pulse);
    }
    wait.cancel();
    assert!(instance.advance_wait(&mut wait, &tasks).is_none(), "nothing has come");
    fake.gone.store(true, SeqCst);
    fake.slow.store(false, SeqCst);
    wait.expire();
    let (result, _) = instance.advance_wait(&mut wait, &tasks).unwrap();
    assert_eq!(result.status, Status::BadResponse);
    assert!(fake.requests.lock().is_empty(), "nothing is said to the old one");
    assert!(matches!(other.requests.lock()[..], [Request::Resolve { .. }]));
    assert_eq!(instance.try_guard(LOCK, X, Lease::secs(5)).0.status, Status::Success);
}

#[test]
fn the_end_of_a_hold_waits_for_its_chain_and_for_nothing_else() {
    let (instance, fake) = instance(&[LockType::Atomic]);
    let (taken, hold) = instance.try_guard(LOCK, X, Lease::secs(5));
    assert_eq!(taken.status, Status::Success);
    let tasks = Arc::new(Tasks::new());
    let mut wrong = GuardWait::end(LOCK, hold + 1);
    let (result, _) = instance.advance_wait(&mut wrong, &tasks).unwrap();
    assert_eq!(result.status, Status::AlreadyUnlocked, "it is another's");
    let mut end = GuardWait::end(LOCK, hold);
    let (lock_slot, guard) = instance.opened(LOCK, deadline_in(LONG)).unwrap();
    assert!(instance.advance_wait(&mut end, &tasks).is_none(), "a thread operates on it");
    let now_ns = boot_ns();
    assert!(end.waits_for(now_ns).0 <= now_ns + LOOK_AGAIN_NS, "it looks again");
    drop(guard);
    let (result, _) = instance.advance_wait(&mut end, &tasks).unwrap();
    assert_eq!((result.status, fake.word(0)), (Status::Success, 0));
    assert!(lock_slot.try_lock().unwrap().as_ref().unwrap().entry.refs() == 0);
}

#[test]
fn a_wait_that_needs_the_time_listens_for_the_answer() {
    let (instance, fake) = instance(&[LockType::Atomic]);
    let tasks = Arc::new(Tasks::new());
    let exec: Arc<dyn Executor> = fake.clone();
    let listens = |wait: &GuardWait| {
        wait.waits_for(boot_ns()).1.is_some_and(|listened| Arc::ptr_eq(listened, &exec))
    };
    fake.clockless.store(true, SeqCst);
    let mut wait = GuardWait::new(LOCK, X, Lease::secs(5), LONG);
    assert!(instance.advance_wait(&mut wait, &tasks).is_none());
    assert!(listens(&wait), "otherwise the time that is told is too old to be of use");
    fake.clockless.store(false, SeqCst);
    let (taken, hold) = instance.advance_wait(&mut wait, &tasks).unwrap();
    assert_eq!(taken.status, Status::Success);
    fake.clockless.store(true, SeqCst);
    let mut end = GuardWait::end(LOCK, hold);
    assert!(instance.advance_wait(&mut end, &tasks).is_none());
    assert!(listens(&end));
    fake.clockless.store(false, SeqCst);
    let (ended, _) = instance.advance_wait(&mut end, &tasks).unwrap();
    assert_eq!((ended.status, fake.word(0)), (Status::Success, 0));
    assert!(!listens(&end));
}

impl Instance {
    /// Cancels a wait, and advances it until it is over.
    pub(super) fn cancel_wait(&self, mut wait: GuardWait, tasks: &Arc<Tasks>) {
        wait.cancel();
        while self.advance_wait(&mut wait, tasks).is_none() {
            std::thread::yield_now();
        }
    }
}

/// A program may give any `Duration`.
#[test]
fn a_wait_longer_than_the_clock_can_count_has_no_end() {
    let wait = GuardWait::new(LOCK, Mode::Exclusive, Lease::NONE, Duration::MAX);
    assert_eq!(wait.waits_for(boot_ns()).0, u64::MAX);
    let bounds = Bounds::granted_by(boot_ns(), u64::MAX);
    assert_eq!((bounds.grant_until_ns, bounds.until_ns), (u64::MAX, u64::MAX));
}
