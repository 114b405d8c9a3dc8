// SPDX-License-Identifier: MIT OR Apache-2.0
//! Futures of the Rust API, on an executor of this file and on tokio's.

mod common;

use std::future::Future;
use std::pin::{pin, Pin};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use common::{client, eventually, fabrics, server};
use dlock_client::{AtomicLock, Client, Error, FabricChoice, FairLock, OwnedGuard, RwLock};

const LEASE: Duration = Duration::from_secs(600);
const LONG: Duration = Duration::from_secs(300);
/// What must not hang takes less.
const BOUND_S: u64 = 60;

/// Wakes a thread, and counts how often.
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

/// The smallest runtime there is.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
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

type Exclusive = Result<Box<dyn FnOnce()>, Error>;

/// A kind of hold: how a future takes it, and how another client asks for it exclusively.
struct Kind {
    name: &'static str,
    wait: fn(&Client, &'static str, Duration) -> Acquire,
    try_exclusive: fn(&Client, &'static str) -> Exclusive,
}

fn kinds() -> [Kind; 5] {
    let atomic: fn(&Client, &'static str) -> _ = |client, name| {
        let guard = client.atomic_lock(name).unwrap().try_lock_owned(LEASE)?;
        Ok(Box::new(move || guard.unlock().unwrap()) as Box<dyn FnOnce()>)
    };
    let rw: fn(&Client, &'static str) -> _ = |client, name| {
        let guard = client.rw_lock(name).unwrap().try_write_owned()?;
        Ok(Box::new(move || guard.unlock().unwrap()) as Box<dyn FnOnce()>)
    };
    let fair: fn(&Client, &'static str) -> _ = |client, name| {
        let guard = client.fair_lock(name).unwrap().try_write_owned(LEASE)?;
        Ok(Box::new(move || guard.unlock().unwrap()) as Box<dyn FnOnce()>)
    };
    let on_atomic = |client: &Client, name, wait| -> Acquire {
        let lock: AtomicLock = client.atomic_lock(name).unwrap();
        Box::pin(async move { lock.lock_timeout_async(LEASE, wait).await.map(drop) })
    };
    let on_rw_read = |client: &Client, name, wait| -> Acquire {
        let lock: RwLock = client.rw_lock(name).unwrap();
        Box::pin(async move { lock.read_timeout_async(wait).await.map(drop) })
    };
    let on_rw_write = |client: &Client, name, wait| -> Acquire {
        let lock: RwLock = client.rw_lock(name).unwrap();
        Box::pin(async move { lock.write_timeout_async(wait).await.map(drop) })
    };
    let on_fair_read = |client: &Client, name, wait| -> Acquire {
        let lock: FairLock = client.fair_lock(name).unwrap();
        Box::pin(async move { lock.read_timeout_async(LEASE, wait).await.map(drop) })
    };
    let on_fair_write = |client: &Client, name, wait| -> Acquire {
        let lock: FairLock = client.fair_lock(name).unwrap();
        Box::pin(async move { lock.write_timeout_async(LEASE, wait).await.map(drop) })
    };
    [
        Kind { name: "atomic", wait: on_atomic, try_exclusive: atomic },
        Kind { name: "rw read", wait: on_rw_read, try_exclusive: rw },
        Kind { name: "rw write", wait: on_rw_write, try_exclusive: rw },
        Kind { name: "fair read", wait: on_fair_read, try_exclusive: fair },
        Kind { name: "fair write", wait: on_fair_write, try_exclusive: fair },
    ]
}

#[test]
fn a_future_takes_the_lock_and_its_guard_keeps_others_out() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (client(&server, fabric), client(&server, fabric));
        let (mine, other) = (a.atomic_lock("f").unwrap(), b.atomic_lock("f").unwrap());
        let mut guard = block_on(mine.lock_async(LEASE)).unwrap();
        assert_eq!(other.try_lock(LEASE).unwrap_err(), Error::Held);
        guard.check().unwrap();
        assert_eq!(block_on(guard.unlock_async()), Ok(()));
        other.try_lock(LEASE).unwrap().unlock().unwrap();
        let refused = block_on(mine.lock_async(Duration::ZERO)).map(drop);
        assert!(matches!(refused, Err(Error::Invalid(_))));
        let (mine, other) = (a.rw_lock("f rw").unwrap(), b.rw_lock("f rw").unwrap());
        let readers = [block_on(mine.read_async()).unwrap(), block_on(mine.read_async()).unwrap()];
        assert_eq!(other.try_write().unwrap_err(), Error::Held);
        assert_eq!(readers.map(|reader| block_on(reader.unlock_async())), [Ok(()), Ok(())]);
        other.try_write().unwrap().unlock().unwrap();
    }
}

#[test]
fn a_wait_that_is_granted_too_late_or_not_at_all_says_so() {
    let server = server();
    for fabric in fabrics() {
        for kind in kinds() {
            let (a, b) = (client(&server, fabric), client(&server, fabric));
            let release = (kind.try_exclusive)(&b, kind.name).unwrap();
            let short = Duration::from_millis(30);
            let start = Instant::now();
            assert_eq!(block_on((kind.wait)(&a, kind.name, short)), Err(Error::TimedOut));
            assert!(start.elapsed() >= short);
            release();
            eventually(BOUND_S, kind.name, || (kind.try_exclusive)(&b, kind.name).is_ok());
        }
    }
}

#[test]
fn a_waiting_future_is_woken_by_the_hand_over() {
    let server = server();
    for fabric in fabrics() {
        for kind in kinds() {
            let (a, b) = (client(&server, fabric), client(&server, fabric));
            let release = (kind.try_exclusive)(&b, kind.name).unwrap();
            let mut future = (kind.wait)(&a, kind.name, LONG);
            let waker = Waker::from(Unpark::here());
            let mut context = Context::from_waker(&waker);
            assert!(future.as_mut().poll(&mut context).is_pending());
            release();
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
        let guard = held.lock(LEASE).unwrap();
        let (wanted, free) = (a.atomic_lock("held").unwrap(), a.atomic_lock("free").unwrap());
        let mut waiting = Box::pin(wanted.lock_timeout_async(LEASE, LONG));
        let waker = Waker::from(Unpark::here());
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        for _ in 0..20 {
            block_on(block_on(free.lock_async(LEASE)).unwrap().unlock_async()).unwrap();
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
        let count = async |lock: FairLock, shared: Arc<AtomicU64>| {
            for _ in 0..EACH {
                let guard = lock.write_timeout_async(LEASE, LONG).await.unwrap();
                // a read and a write that only the lock makes one
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
        let release = (kind.try_exclusive)(&b, kind.name).unwrap();
        let mut future = (kind.wait)(&a, kind.name, LONG);
        let waker = Waker::from(Unpark::here());
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        // from "not begun" over "on its way" to "queued"
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
            release();
            dropper.join().unwrap();
        } else {
            drop(future);
            release();
        }
        let what = format!("{} is free again, round {round}", kind.name);
        eventually(BOUND_S, &what, || match (kind.try_exclusive)(&c, kind.name) {
            Ok(release) => {
                release();
                true
            }
            Err(error) => {
                assert_eq!(error, Error::Held);
                false
            }
        });
        // and the client itself can take it anew
        assert_eq!(block_on((kind.wait)(&a, kind.name, LONG)), Ok(()), "{}", kind.name);
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
fn a_guard_that_was_granted_and_not_asked_for_is_released_with_its_future() {
    let server = server();
    for fabric in fabrics() {
        for kind in kinds() {
            let (a, b) = (client(&server, fabric), client(&server, fabric));
            let mut future = (kind.wait)(&a, kind.name, LONG);
            let unpark = Unpark::here();
            let waker = Waker::from(Arc::clone(&unpark));
            assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            eventually(BOUND_S, "the grant is there", || unpark.1.load(SeqCst) > 0);
            let blocked = (kind.try_exclusive)(&b, kind.name).map(drop);
            assert_eq!(blocked, Err(Error::Held), "{}", kind.name);
            drop(future);
            eventually(BOUND_S, kind.name, || (kind.try_exclusive)(&b, kind.name).is_ok());
        }
    }
}

#[test]
fn a_dropped_future_that_was_queued_behind_a_guard_of_its_own_client_lets_the_next_one_on() {
    let server = server();
    for fabric in fabrics() {
        let a = client(&server, fabric);
        let lock = a.atomic_lock("local").unwrap();
        let guard = block_on(lock.lock_async(LEASE)).unwrap();
        let waker = Waker::from(Unpark::here());
        let mut context = Context::from_waker(&waker);
        let mut first = Box::pin(lock.lock_timeout_async(LEASE, LONG));
        let mut second = Box::pin(lock.lock_timeout_async(LEASE, LONG));
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(second.as_mut().poll(&mut context).is_pending());
        // futures begin in their order: once this one has ended, they are queued
        let third = lock.lock_timeout_async(LEASE, Duration::from_millis(1));
        assert_eq!(block_on(third).map(drop), Err(Error::TimedOut));
        drop(first);
        guard.unlock().unwrap();
        let second: OwnedGuard = block_on(second).unwrap();
        thread::scope(|scope| {
            let thread = scope.spawn(|| lock.lock_timeout(LEASE, LONG).map(|guard| guard.unlock()));
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
        let mut future = Box::pin(mine.lock_async(Duration::from_secs(1)));
        let unpark = Unpark::here();
        let waker = Waker::from(Arc::clone(&unpark));
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        eventually(BOUND_S, "the grant is there", || unpark.1.load(SeqCst) > 0);
        // until the lease is over: another client can take the lock
        let guard = other.lock_timeout(LEASE, LONG).unwrap();
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
        let guard = held.lock(LEASE).unwrap();
        let lock = a.atomic_lock("left").unwrap();
        let waker = Waker::from(Unpark::here());
        let mut context = Context::from_waker(&waker);
        let mut waiting = Box::pin(lock.lock_timeout_async(LEASE, LONG));
        let mut queued = Box::pin(lock.lock_timeout_async(LEASE, LONG));
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
        let guard = held.lock(LEASE).unwrap();
        let lock = a.atomic_lock("again").unwrap();
        let waker = Waker::from(Unpark::here());
        let mut waiting = Box::pin(lock.lock_timeout_async(LEASE, LONG));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        a.reconnect("127.0.0.1").unwrap();
        guard.unlock().unwrap();
        match block_on(waiting) {
            Ok(guard) => guard.unlock().unwrap(),
            Err(error) => assert_eq!(error, Error::Disconnected),
        }
        // nothing of it is left
        eventually(BOUND_S, "it is free", || held.try_lock(LEASE).is_ok());
        block_on(lock.lock_async(LEASE)).unwrap().unlock().unwrap();
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
        let guard = b.atomic_lock("held").unwrap().lock_owned(LEASE).unwrap();
        let lock = a.atomic_lock("held").unwrap();
        let free = a.fair_lock("free").unwrap();
        let waker = Waker::from(Unpark::here());
        let mut waiting = Box::pin(lock.lock_async(LEASE));
        let mut dropped = Box::pin(free.write_timeout_async(LEASE, LONG));
        primary.freeze();
        let start = Instant::now();
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert!(dropped.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(dropped);
        let error = block_on(waiting).map(drop).unwrap_err();
        assert!(matches!(error, Error::TimedOut | Error::Disconnected), "{error:?}");
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
        primary.thaw();
        guard.unlock().unwrap();
        eventually(BOUND_S, "the primary serves again, and nothing is left", || {
            let other = b.fair_lock("free").unwrap().try_write_owned(LEASE).map(drop);
            other.is_ok() && block_on(lock.lock_async(LEASE)).map(drop).is_ok()
        });
    }
}

#[test]
fn the_futures_can_be_spawned_on_any_runtime() {
    fn is_send<T: Send>(_: &T) {}
    let server = server();
    let a = client(&server, FabricChoice::Tcp);
    let lock = a.fair_lock("send").unwrap();
    let future = lock.read_async(LEASE);
    is_send(&future);
    let guard = block_on(future).unwrap();
    is_send(&guard.unlock_async());
}
