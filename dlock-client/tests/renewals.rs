// SPDX-License-Identifier: MIT OR Apache-2.0
//! Leases that the library renews, on real fabrics. A hold lasts exactly as long as its guard, also
//! over a failover. A hold that cannot be renewed is reported as lost before its lease ends.

mod common;

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use common::site::Site;
use common::{client, eventually, fabrics, lock, server, S, X};
use dlock_client::{Client, Config, Error, FabricChoice, LockType, Mode, Renew, Wait};

const LEASE: Duration = Duration::from_secs(3);
/// Longer than a lease of [`LEASE`] can last without a renewal.
const LONGER: Duration = Duration::from_millis(3_500);

/// The holds that can be renewed.
const KINDS: [(LockType, Mode); 3] =
    [(LockType::Atomic, X), (LockType::Fair, X), (LockType::Fair, S)];

/// Takes the lock for another client, and releases it.
fn taken(other: &Client, name: &str, lock_type: LockType) -> Result<(), Error> {
    let lock = lock(other, name, lock_type);
    let guard = lock.acquire(X).lease(LEASE).wait(Wait::No).guard()?;
    guard.unlock()
}

/// Whether another client can have the lock now.
fn is_free(other: &Client, name: &str, lock_type: LockType) -> bool {
    match taken(other, name, lock_type) {
        Err(Error::Held) => false,
        result => result.map(|()| true).unwrap(),
    }
}

fn each(test: &str, check: impl Fn(&str, FabricChoice, LockType, Mode) + Sync) {
    thread::scope(|scope| {
        for fabric in fabrics() {
            for (lock_type, mode) in KINDS {
                let name = format!("{test} {fabric:?} {lock_type:?} {mode:?}");
                let check = &check;
                scope.spawn(move || check(&name, fabric, lock_type, mode));
            }
        }
    });
}

#[test]
fn the_end_of_the_lease_that_a_guard_tells_moves_with_its_renewals() {
    let server = server();
    each("told end", |name, fabric, lock_type, mode| {
        let client = client(&server, fabric);
        let lock = lock(&client, name, lock_type);
        let guard =
            lock.acquire(mode).lease(LEASE).renew(Renew::new()).wait(Wait::No).guard().unwrap();
        let first_ms = guard.lease_end_ms().unwrap();
        eventually(60, "it is renewed", || guard.lease_end_ms() >= Some(first_ms + 500));
        assert!(guard.unlock().is_ok());
    });
}

#[test]
fn a_hold_is_renewed_until_its_guard_ends_and_no_longer() {
    let server = server();
    each("renewed", |name, fabric, lock_type, mode| {
        let [mine, other] = [0, 1].map(|_| client(&server, fabric));
        let held = lock(&mine, name, lock_type);
        let mut guard = held.acquire(mode).lease(LEASE).renew(Renew::new()).guard().unwrap();
        let begun = Instant::now();
        while begun.elapsed() < LONGER {
            // calls of the program do not disturb the renewals, nor the reverse
            guard.check().unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(!guard.is_known_lost(), "{name}");
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(LONGER); // the renewals go on without any call of the program
        assert!(!is_free(&other, name, lock_type), "{name}: it is held");
        guard.unlock().unwrap();
        eventually(60, "it is released", || is_free(&other, name, lock_type));
        // the next hold is taken without renewals
        let guard = held.acquire(mode).lease(LEASE).guard().unwrap();
        thread::sleep(LONGER);
        eventually(60, "its lease is over", || is_free(&other, name, lock_type));
        assert!(guard.unlock().is_err(), "{name}");
    });
}

#[test]
fn a_renewal_ends_at_its_bound_and_the_hold_is_lost_before_its_lease() {
    let server = server();
    each("bounded", |name, fabric, lock_type, mode| {
        let [mine, other] = [0, 1].map(|_| client(&server, fabric));
        let renew = Renew::new().at_most(LONGER);
        let guard = lock(&mine, name, lock_type).acquire(mode).lease(LEASE).renew(renew).owned();
        let guard = guard.unwrap();
        thread::sleep(LONGER);
        assert!(!guard.is_known_lost(), "{name}: it was renewed");
        while !guard.is_known_lost() {
            assert!(!is_free(&other, name, lock_type), "{name}: it is known before the end");
            thread::sleep(Duration::from_millis(1));
        }
        eventually(60, "the lease ends", || is_free(&other, name, lock_type));
        assert_eq!(guard.unlock(), Err(Error::Lost), "{name}");
    });
}

#[test]
fn a_program_that_says_no_is_not_renewed() {
    let server = server();
    each("alive", |name, fabric, lock_type, mode| {
        let mine = client(&server, fabric);
        let is_alive = Arc::new(AtomicBool::new(true));
        let alive = Arc::clone(&is_alive);
        let renew = Renew::new().while_alive(move || alive.load(Ordering::SeqCst));
        let held = lock(&mine, name, lock_type);
        let guard = held.acquire(mode).lease(LEASE).renew(renew).guard().unwrap();
        thread::sleep(LONGER);
        assert!(!guard.is_known_lost(), "{name}");
        is_alive.store(false, Ordering::SeqCst);
        eventually(60, "it is lost", || guard.is_known_lost());
        assert_eq!(guard.unlock(), Err(Error::Lost), "{name}");
    });
}

#[test]
fn what_has_no_lease_is_not_renewed() {
    let server = server();
    let mine = client(&server, fabrics()[0]);
    let rw = lock(&mine, "rw", LockType::Rw);
    let refused = rw.acquire(X).renew(Renew::new()).guard();
    assert!(matches!(refused, Err(Error::Invalid(_))));
}

/// The primary is gone for less than the lease, and a renewal is due meanwhile.
#[test]
fn a_renewal_goes_on_over_failovers() {
    const LEASE: Duration = Duration::from_secs(6);
    const GONE: Duration = Duration::from_millis(2_200);
    for fabric in fabrics() {
        let mut site = Site::new(&format!("renewals-{}", fabric.name()));
        let at = site.address();
        let config = || {
            let config = Config::new().port(at.port()).fabric(fabric).primaries([at]);
            config.silence(Duration::from_millis(200)).horizon(Duration::from_secs(30))
        };
        let ip = at.ip().to_string();
        let [mine, other] = [0, 1].map(|_| Client::with_config(&config(), &ip).unwrap());
        let locks = KINDS.map(|(lock_type, mode)| {
            let name = format!("{lock_type:?} {mode:?}");
            (lock(&mine, &name, lock_type), mode, name)
        });
        let guards: Vec<_> = locks
            .iter()
            .map(|(lock, mode, _)| {
                lock.acquire(*mode).lease(LEASE).renew(Renew::new()).guard().unwrap()
            })
            .collect();
        for _ in 0..2 {
            site.stop();
            thread::sleep(GONE);
            site.start();
            thread::sleep(LEASE + Duration::from_secs(1));
            for (guard, (lock, _, name)) in guards.iter().zip(&locks) {
                assert!(!guard.is_known_lost(), "{name} over {}", fabric.name());
                eventually(60, "it is served", || match taken(&other, name, lock.lock_type()) {
                    Err(Error::Held) => true,
                    Err(Error::NotReady | Error::Disconnected | Error::TimedOut) => false,
                    found => panic!("{name} over {}: {found:?}", fabric.name()),
                });
            }
        }
        for guard in guards {
            guard.unlock().unwrap();
        }
    }
}

#[test]
fn a_future_that_is_renewed_stays_held() {
    let server = server();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    for fabric in fabrics() {
        let [mine, other] = [0, 1].map(|_| client(&server, fabric));
        let name = format!("future {fabric:?}");
        let held = lock(&mine, &name, LockType::Fair);
        let acquire = held.acquire(X).lease(LEASE).renew(Renew::new());
        let guard = runtime.block_on(async { acquire.await }).unwrap();
        thread::sleep(LONGER);
        assert!(!is_free(&other, &name, LockType::Fair), "{name}");
        runtime.block_on(guard.unlock_async()).unwrap();
        eventually(60, "it is released", || is_free(&other, &name, LockType::Fair));
    }
}

/// The driver carries the acquires of futures out, so it must not wait for one of them when it
/// begins a renewal.
#[test]
fn futures_that_share_a_renewed_hold_do_not_stop_the_driver() {
    let server = server();
    for fabric in fabrics() {
        let mine = client(&server, fabric);
        for lock_type in [LockType::Rw, LockType::Fair] {
            let name = format!("shared {fabric:?} {lock_type:?}");
            let shared = |nth: u64| {
                let held = lock(&mine, &name, lock_type);
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                for round in 0..200 {
                    let lease = LEASE + Duration::from_millis(100 * nth + round);
                    let acquire = held.acquire(S).lease(lease).renew(Renew::new());
                    let guard = runtime.block_on(async { acquire.await });
                    let guard = guard.unwrap_or_else(|error| panic!("{name}: {error}"));
                    guard.unlock().unwrap_or_else(|error| panic!("{name}: {error}"));
                }
            };
            let shared = &shared;
            thread::scope(|scope| (0..3).for_each(|nth| _ = scope.spawn(move || shared(nth))));
        }
    }
}

#[test]
fn a_grant_that_its_program_takes_late_is_renewed_from_the_grant_on() {
    let server = server();
    each("late", |name, fabric, lock_type, mode| {
        let [mine, other] = [0, 1].map(|_| client(&server, fabric));
        let others = lock(&other, name, lock_type);
        let before = others.acquire(X).lease(LEASE).renew(Renew::new()).guard().unwrap();
        let held = lock(&mine, name, lock_type);
        let acquire = held.acquire(mode).lease(LEASE).renew(Renew::new());
        let mut future = pin!(acquire.into_future());
        let mut context = Context::from_waker(Waker::noop());
        assert!(future.as_mut().poll(&mut context).is_pending(), "{name}: it waits");
        before.unlock().unwrap();
        thread::sleep(2 * LONGER); // the program does not poll its future meanwhile
        assert!(!is_free(&other, name, lock_type), "{name}: it is held");
        let Poll::Ready(guard) = future.as_mut().poll(&mut context) else {
            panic!("{name}: it was granted long ago");
        };
        guard.unwrap_or_else(|error| panic!("{name}: {error}")).unlock().unwrap();
        eventually(60, "it is released", || is_free(&other, name, lock_type));
    });
}

/// A guard whose lease is over keeps neither other programs nor other threads of its own program
/// out.
#[test]
fn a_guard_that_outlives_its_lease_keeps_no_other_guard_of_its_client_out() {
    const SHORT: Duration = Duration::from_millis(500);
    let server = server();
    each("outlives", |name, fabric, lock_type, mode| {
        let [mine, other] = [0, 1].map(|_| client(&server, fabric));
        let held = lock(&mine, name, lock_type);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let next = |way: &str| {
            let acquire = held.acquire(X).lease(LEASE).renew(Renew::new());
            match way {
                "waits" => acquire.wait(Wait::For(Duration::from_secs(60))).guard().map(Ok),
                _ => runtime.block_on(async { acquire.await }).map(Err),
            }
        };
        for way in ["waits", "awaits"] {
            let mut stuck = held.acquire(mode).lease(SHORT).guard().unwrap();
            let guard = next(way).unwrap_or_else(|error| panic!("{name} {way}: {error}"));
            assert_eq!(stuck.check(), Err(Error::Lost), "{name} {way}: it is told");
            assert!(stuck.unlock().is_err(), "{name} {way}");
            assert!(!is_free(&other, name, lock_type), "{name} {way}: the later guard has it");
            match guard {
                Ok(guard) => guard.unlock().unwrap(),
                Err(guard) => guard.unlock().unwrap(),
            }
            eventually(60, "it is released", || is_free(&other, name, lock_type));
        }
        let stuck = held.acquire(mode).lease(SHORT).guard().unwrap();
        eventually(60, "a try succeeds", || {
            held.acquire(X).lease(LEASE).wait(Wait::No).guard().map(|guard| guard.unlock()).is_ok()
        });
        assert!(stuck.unlock().is_err(), "{name}");
    });
}
