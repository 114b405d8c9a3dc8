// SPDX-License-Identifier: MIT OR Apache-2.0
//! Futures of the Rust API, on an executor of this file and on tokio's.

mod common;

use std::future::{Future, IntoFuture};
use std::pin::{pin, Pin};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use common::site::Site;
use common::{client, eventually, fabrics, server};
use dlock_client::Mode::{Exclusive, Shared};
use dlock_client::Wait::No;
use dlock_client::{Client, Config, Error, FabricChoice, Lock, LockType, Mode, OwnedGuard};

const LEASE: Duration = Duration::from_secs(600);
const LONG: Duration = Duration::from_secs(300);
/// The seconds within which everything here ends, even on a busy machine.
const BOUND_S: u64 = 60;

/// A waker that unparks a thread, and counts the wake-ups.
struct Unpark(Thread, AtomicUsize);

impl Unpark {
    fn here() -> Arc<Self> {
        Arc::new(Self(thread::current(), AtomicUsize::new(0)))
    }
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, SeqCst);
        self.0.unpark();
    }
}

/// A minimal executor: polls the future on this thread, and parks in between.
fn block_on<T>(future: impl IntoFuture<Output = T>) -> T {
    let mut future = pin!(future.into_future());
    let waker = Waker::from(Unpark::here());
    let start = Instant::now();
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park_timeout(Duration::from_secs(BOUND_S)),
        }
        assert!(start.elapsed().as_secs() < BOUND_S, "the future was not woken");
    }
}

type Acquire = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// An acquire with a lease that is long enough for a busy machine, if the lock has leases.
fn acquire(lock: &Lock, mode: Mode) -> dlock_client::Acquire<'_> {
    match lock.lock_type() {
        LockType::Rw => lock.acquire(mode),
        LockType::Atomic | LockType::Fair => lock.acquire(mode).lease(LEASE),
    }
}

/// A kind of hold.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    mode: Mode,
    lock: fn(&Client, &'static str) -> Result<Lock, Error>,
}

impl Kind {
    fn lock(self, client: &Client) -> Lock {
        (self.lock)(client, self.name).unwrap()
    }

    /// A future that takes a hold of this kind.
    fn wait(self, client: &Client, wait: Duration) -> Acquire {
        let lock = self.lock(client);
        Box::pin(async move { acquire(&lock, self.mode).wait(wait).await.map(drop) })
    }

    /// Another client's attempt to take the same lock exclusively.
    fn try_exclusive(self, client: &Client) -> Result<OwnedGuard, Error> {
        acquire(&self.lock(client), Exclusive).wait(No).owned()
    }
}

fn kinds() -> [Kind; 5] {
    let of = |name, mode, lock| Kind { name, mode, lock };
    [
        of("atomic", Exclusive, |client, name| client.atomic_lock(name)),
        of("rw read", Shared, |client, name| client.rw_lock(name)),
        of("rw write", Exclusive, |client, name| client.rw_lock(name)),
        of("fair read", Shared, |client, name| client.fair_lock(name)),
        of("fair write", Exclusive, |client, name| client.fair_lock(name)),
    ]
}

#[test]
fn a_future_takes_the_lock_and_its_guard_keeps_others_out() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (client(&server, fabric), client(&server, fabric));
        let (mine, other) = (a.atomic_lock("f").unwrap(), b.atomic_lock("f").unwrap());
        let mut guard = block_on(acquire(&mine, Exclusive)).unwrap();
        assert_eq!(acquire(&other, Exclusive).wait(No).guard().unwrap_err(), Error::Held);
        guard.check().unwrap();
        assert_eq!(block_on(guard.unlock_async()), Ok(()));
        acquire(&other, Exclusive).wait(No).guard().unwrap().unlock().unwrap();
        let refused = block_on(mine.acquire(Exclusive).lease(Duration::ZERO)).map(drop);
        assert!(matches!(refused, Err(Error::Invalid(_))));
        let (mine, other) = (a.rw_lock("f rw").unwrap(), b.rw_lock("f rw").unwrap());
        let readers =
            [block_on(acquire(&mine, Shared)).unwrap(), block_on(acquire(&mine, Shared)).unwrap()];
        assert_eq!(acquire(&other, Exclusive).wait(No).guard().unwrap_err(), Error::Held);
        assert_eq!(readers.map(|reader| block_on(reader.unlock_async())), [Ok(()), Ok(())]);
        acquire(&other, Exclusive).wait(No).guard().unwrap().unlock().unwrap();
    }
}

#[test]
fn a_wait_that_is_granted_too_late_or_not_at_all_says_so() {
    let server = server();
    for fabric in fabrics() {
        for kind in kinds() {
            let (a, b) = (client(&server, fabric), client(&server, fabric));
            let held = kind.try_exclusive(&b).unwrap();
            let short = Duration::from_millis(30);
            let start = Instant::now();
            assert_eq!(block_on(kind.wait(&a, short)), Err(Error::TimedOut));
            assert!(start.elapsed() >= short);
            held.unlock().unwrap();
            eventually(BOUND_S, kind.name, || kind.try_exclusive(&b).is_ok());
        }
    }
}

#[test]
fn a_waiting_future_is_woken_by_the_hand_over() {
    let server = server();
    for fabric in fabrics() {
        for kind in kinds() {
            let (a, b) = (client(&server, fabric), client(&server, fabric));
            let held = kind.try_exclusive(&b).unwrap();
            let mut future = kind.wait(&a, LONG);
            let waker = Waker::from(Unpark::here());
            let mut context = Context::from_waker(&waker);
            assert!(future.as_mut().poll(&mut context).is_pending());
            held.unlock().unwrap();
            assert_eq!(block_on(future), Ok(()), "{}", kind.name);
        }
    }
}

#[test]
fn a_future_that_waits_does_not_keep_another_one_from_its_lock() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (client(&server, fabric), client(&server, fabric));
        let held = b.atomic_lock("held").unwrap();
        let guard = acquire(&held, Exclusive).guard().unwrap();
        let (wanted, free) = (a.atomic_lock("held").unwrap(), a.atomic_lock("free").unwrap());
        let mut waiting = Box::pin(acquire(&wanted, Exclusive).wait(LONG).into_future());
        let waker = Waker::from(Unpark::here());
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        for _ in 0..20 {
            block_on(block_on(acquire(&free, Exclusive)).unwrap().unlock_async()).unwrap();
        }
        guard.unlock().unwrap();
        block_on(waiting).unwrap().unlock().unwrap();
    }
}

#[test]
fn tasks_of_one_client_on_one_thread_count_without_losing_any() {
    const TASKS: u64 = 40;
    const EACH: u64 = 5;
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (client(&server, fabric), client(&server, fabric));
        let shared = Arc::new(AtomicU64::new(0));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let count = async |lock: Lock, shared: Arc<AtomicU64>| {
            for _ in 0..EACH {
                let guard = acquire(&lock, Exclusive).wait(LONG).await.unwrap();
                // only the lock makes this read and this write one step
                let seen = shared.load(SeqCst);
                tokio::task::yield_now().await;
                shared.store(seen + 1, SeqCst);
                guard.unlock_async().await.unwrap();
            }
        };
        runtime.block_on(async {
            let mut tasks = Vec::new();
            for i in 0..TASKS {
                let lock = if i % 2 == 0 { &a } else { &b }.fair_lock("counted").unwrap();
                let shared = Arc::clone(&shared);
                let task: Pin<Box<dyn Future<Output = ()> + Send>> =
                    Box::pin(async move { count(lock, shared).await });
                tasks.push(tokio::spawn(task));
            }
            for task in tasks {
                task.await.unwrap();
            }
        });
        assert_eq!(shared.load(SeqCst), TASKS * EACH);
    }
}

/// Drops a waiting future at a moment that `round` chooses, while the holder may release the lock
/// at the same time; then nothing is held, and nothing is queued.
fn drop_while_waiting(fabric: dlock_client::FabricChoice, kind: &Kind, rounds: u32, races: bool) {
    let server = server();
    let [a, b, c] = [(); 3].map(|()| client(&server, fabric));
    for round in 0..rounds {
        let held = kind.try_exclusive(&b).unwrap();
        let mut future = kind.wait(&a, LONG);
        let waker = Waker::from(Unpark::here());
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        // by the round, the future has not begun, or is on its way, or is queued
        let spins = u64::from(round) * 40_000 / u64::from(rounds);
        let until = Instant::now() + Duration::from_nanos(spins * 25);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        if races {
            let barrier = Arc::new(std::sync::Barrier::new(2));
            let other = Arc::clone(&barrier);
            let dropper = thread::spawn(move || {
                other.wait();
                if round % 3 > 0 {
                    for _ in 0..round % 50 {
                        thread::yield_now();
                    }
                }
                drop(future);
            });
            barrier.wait();
            held.unlock().unwrap();
            dropper.join().unwrap();
        } else {
            drop(future);
            held.unlock().unwrap();
        }
        let what = format!("{} is free again, round {round}", kind.name);
        eventually(BOUND_S, &what, || match kind.try_exclusive(&c) {
            Ok(free) => {
                free.unlock().unwrap();
                true
            }
            Err(error) => {
                assert_eq!(error, Error::Held);
                false
            }
        });
        // the client whose future was dropped can take the lock anew, too
        assert_eq!(block_on(kind.wait(&a, LONG)), Ok(()), "{}", kind.name);
    }
}

#[test]
fn a_dropped_future_leaves_nothing_held_and_nothing_queued() {
    for fabric in fabrics() {
        for kind in kinds() {
            drop_while_waiting(fabric, &kind, 12, false);
        }
    }
}

#[test]
fn a_grant_at_the_very_moment_of_the_drop_is_released() {
    for fabric in fabrics() {
        for kind in kinds() {
            drop_while_waiting(fabric, &kind, 20, true);
        }
    }
}

#[test]
fn a_free_lock_in_shared_memory_is_granted_and_released_by_the_first_poll() {
    let server = server();
    let a = client(&server, FabricChoice::Shm);
    for kind in kinds() {
        let waker = Waker::from(Unpark::here());
        let mut context = Context::from_waker(&waker);
        let lock = kind.lock(&a);
        let polled = pin!(acquire(&lock, kind.mode).into_future()).poll(&mut context);
        let Poll::Ready(Ok(guard)) = polled else { panic!("{}: {polled:?}", kind.name) };
        let released = pin!(guard.unlock_async()).poll(&mut context);
        assert_eq!(released, Poll::Ready(Ok(())), "{}", kind.name);
    }
}

#[test]
fn a_guard_that_was_granted_and_not_asked_for_is_released_with_its_future() {
    let server = server();
    for fabric in fabrics() {
        for kind in kinds() {
            let (a, b) = (client(&server, fabric), client(&server, fabric));
            let first = kind.try_exclusive(&b).unwrap();
            let mut future = kind.wait(&a, LONG);
            let unpark = Unpark::here();
            let waker = Waker::from(Arc::clone(&unpark));
            assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            first.unlock().unwrap();
            eventually(BOUND_S, "the grant is there", || unpark.1.load(SeqCst) > 0);
            let blocked = kind.try_exclusive(&b).map(drop);
            assert_eq!(blocked, Err(Error::Held), "{}", kind.name);
            drop(future);
            eventually(BOUND_S, kind.name, || kind.try_exclusive(&b).is_ok());
        }
    }
}

#[test]
fn a_dropped_future_that_was_queued_behind_a_guard_of_its_own_client_lets_the_next_one_on() {
    let server = server();
    for fabric in fabrics() {
        let a = client(&server, fabric);
        let lock = a.atomic_lock("local").unwrap();
        let guard = block_on(acquire(&lock, Exclusive)).unwrap();
        let waker = Waker::from(Unpark::here());
        let mut context = Context::from_waker(&waker);
        let mut first = Box::pin(acquire(&lock, Exclusive).wait(LONG).into_future());
        let mut second = Box::pin(acquire(&lock, Exclusive).wait(LONG).into_future());
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(second.as_mut().poll(&mut context).is_pending());
        // futures begin in the order of their polls: once the third has ended, the first two are
        // queued
        let third = acquire(&lock, Exclusive).wait(Duration::from_millis(1));
        assert_eq!(block_on(third).map(drop), Err(Error::TimedOut));
        drop(first);
        guard.unlock().unwrap();
        let second: OwnedGuard = block_on(second).unwrap();
        thread::scope(|scope| {
            let thread = scope
                .spawn(|| acquire(&lock, Exclusive).wait(LONG).guard().map(|guard| guard.unlock()));
            block_on(second.unlock_async()).unwrap();
            assert_eq!(thread.join().unwrap().map_err(drop), Ok(Ok(())));
        });
    }
}

#[test]
fn a_guard_whose_lease_ended_before_its_future_was_polled_is_not_handed_out() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (client(&server, fabric), client(&server, fabric));
        let (mine, other) = (a.atomic_lock("late").unwrap(), b.atomic_lock("late").unwrap());
        let first = acquire(&other, Exclusive).guard().unwrap();
        let short = mine.acquire(Exclusive).lease(Duration::from_secs(1)).wait(LONG);
        let mut future = Box::pin(short.into_future());
        let unpark = Unpark::here();
        let waker = Waker::from(Arc::clone(&unpark));
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        first.unlock().unwrap();
        eventually(BOUND_S, "the grant is there", || unpark.1.load(SeqCst) > 0);
        // another client gets the lock as soon as the lease of the grant is over
        let guard = acquire(&other, Exclusive).wait(LONG).guard().unwrap();
        assert_eq!(block_on(future).map(drop), Err(Error::Lost));
        guard.unlock().unwrap();
    }
}

#[test]
fn futures_of_a_client_that_leaves_end() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (client(&server, fabric), client(&server, fabric));
        let held = b.atomic_lock("left").unwrap();
        let guard = acquire(&held, Exclusive).guard().unwrap();
        let lock = a.atomic_lock("left").unwrap();
        let waker = Waker::from(Unpark::here());
        let mut context = Context::from_waker(&waker);
        let mut waiting = Box::pin(acquire(&lock, Exclusive).wait(LONG).into_future());
        let mut queued = Box::pin(acquire(&lock, Exclusive).wait(LONG).into_future());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert!(queued.as_mut().poll(&mut context).is_pending());
        a.leave().unwrap();
        for future in [waiting, queued] {
            let error = block_on(future).map(drop).unwrap_err();
            assert!(matches!(error, Error::Left | Error::Disconnected), "{error:?}");
        }
        guard.unlock().unwrap();
    }
}

#[test]
fn a_waiting_future_survives_a_reconnect_or_says_that_it_was_cut_off() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (client(&server, fabric), client(&server, fabric));
        let held = b.atomic_lock("again").unwrap();
        let guard = acquire(&held, Exclusive).guard().unwrap();
        let lock = a.atomic_lock("again").unwrap();
        let waker = Waker::from(Unpark::here());
        let mut waiting = Box::pin(acquire(&lock, Exclusive).wait(LONG).into_future());
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        a.reconnect("127.0.0.1").unwrap();
        guard.unlock().unwrap();
        match block_on(waiting) {
            Ok(guard) => guard.unlock().unwrap(),
            Err(error) => assert_eq!(error, Error::Disconnected),
        }
        // the ended wait has left no hold and no place in the queue
        eventually(BOUND_S, "it is free", || acquire(&held, Exclusive).wait(No).guard().is_ok());
        block_on(acquire(&lock, Exclusive)).unwrap().unlock().unwrap();
    }
}

#[test]
fn serves_as_child() {
    common::serve_as_child();
}

#[test]
fn futures_at_a_frozen_primary_end_and_can_be_dropped() {
    for fabric in fabrics() {
        let primary = common::ChildPrimary::start("serves_as_child");
        let (a, b) = (primary.client(fabric), primary.client(fabric));
        let guard = acquire(&b.atomic_lock("held").unwrap(), Exclusive).owned().unwrap();
        let lock = a.atomic_lock("held").unwrap();
        let free = a.fair_lock("free").unwrap();
        let waker = Waker::from(Unpark::here());
        let mut waiting = Box::pin(acquire(&lock, Exclusive).into_future());
        let mut dropped = Box::pin(acquire(&free, Exclusive).wait(LONG).into_future());
        primary.freeze();
        let start = Instant::now();
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let polled = dropped.as_mut().poll(&mut Context::from_waker(&waker));
        // a lock that is free in shared memory needs no answer
        assert!(polled.is_pending() || fabric == FabricChoice::Shm);
        drop((polled, dropped));
        let error = block_on(waiting).map(drop).unwrap_err();
        assert!(matches!(error, Error::TimedOut | Error::Disconnected), "{error:?}");
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
        primary.thaw();
        guard.unlock().unwrap();
        eventually(BOUND_S, "the primary serves again, and nothing is left", || {
            let other =
                acquire(&b.fair_lock("free").unwrap(), Exclusive).wait(No).owned().map(drop);
            other.is_ok() && block_on(acquire(&lock, Exclusive)).map(drop).is_ok()
        });
    }
}

#[test]
fn futures_wait_for_the_successor_of_their_primary() {
    for fabric in fabrics() {
        let mut site = Site::new(&format!("futures-{}", fabric.name()));
        let at = site.address();
        let config = Config::new().port(at.port()).fabric(fabric).primaries([at]);
        let [a, b] = [(); 2].map(|()| Client::with_config(&config, &at.ip().to_string()).unwrap());
        let waker = Waker::from(Unpark::here());
        let mut context = Context::from_waker(&waker);
        for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
            let name = format!("{lock_type:?}");
            let [mine, other] =
                [&a, &b].map(|client| client.lock_with_tokens(&name, lock_type).unwrap());
            let guard = acquire(&mine, Exclusive).owned().unwrap();
            let token = guard.token();
            let mut early = Box::pin(acquire(&other, Exclusive).wait(LONG).into_future());
            let mut dropped = Box::pin(acquire(&other, Exclusive).wait(LONG).into_future());
            assert!(early.as_mut().poll(&mut context).is_pending());
            site.stop();
            let mut late = Box::pin(acquire(&other, Exclusive).wait(LONG).into_future());
            assert!(late.as_mut().poll(&mut context).is_pending());
            assert!(dropped.as_mut().poll(&mut context).is_pending());
            let short = acquire(&other, Exclusive).wait(Duration::from_millis(50));
            assert!(block_on(short).is_err(), "it ends at its time");
            drop(dropped);
            site.start();
            drop(guard);
            let first = block_on(early).unwrap();
            assert!(token.is_some() && first.token() > token);
            first.unlock().unwrap();
            block_on(late).unwrap().unlock().unwrap();
            acquire(&mine, Exclusive).wait(LONG).guard().unwrap().unlock().unwrap();
        }
    }
}

#[test]
fn a_guard_is_not_lost_while_a_future_of_its_client_shares_the_lock() {
    let server = server();
    for fabric in fabrics() {
        let a = client(&server, fabric);
        let lock = a.lock_with_tokens("shared", LockType::Fair).unwrap();
        thread::scope(|scope| {
            for i in 0..4 {
                let lock = &lock;
                scope.spawn(move || {
                    for round in 0..50 {
                        let lease = Duration::from_secs(30 + (7 * round + 13 * i) % 100);
                        let mut guard = block_on(lock.acquire(Shared).lease(lease)).unwrap();
                        assert!(!guard.is_known_lost());
                        assert!(guard.token().is_some());
                        guard.extend(LEASE).unwrap();
                        guard.unlock().unwrap();
                    }
                });
            }
        });
    }
}

#[test]
fn the_futures_can_be_spawned_on_any_runtime() {
    fn is_send<T: Send>(_: &T) {}
    let server = server();
    let a = client(&server, FabricChoice::Tcp);
    let lock = a.fair_lock("send").unwrap();
    let future = acquire(&lock, Shared);
    is_send(&future);
    let guard = block_on(future).unwrap();
    is_send(&guard.unlock_async());
}

#[test]
fn a_future_that_may_not_wait_says_who_is_in_the_way_and_leaves_nothing() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (client(&server, fabric), client(&server, fabric));
        for kind in kinds() {
            let held = kind.try_exclusive(&b).unwrap();
            let lock = kind.lock(&a);
            let refused = block_on(acquire(&lock, kind.mode).wait(No)).map(drop);
            assert_eq!(refused, Err(Error::Held), "{}", kind.name);
            held.unlock().unwrap();
            kind.try_exclusive(&b).unwrap().unlock().unwrap();
        }
    }
}
