// SPDX-License-Identifier: MIT OR Apache-2.0
//! Leases shorter than a second, on real fabrics. Other clients take the same lock by the C API,
//! with leases of whole seconds.

mod common;

use std::io::{BufRead, BufReader};
use std::mem;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{client, eventually, fabrics, got, join, lock, server, status, X};
use dlock_client::raw::OpResult;
use dlock_client::{Client, Config, Error, FabricChoice, Lock, LockType, Renew, Wait};
use dlock_client::{LEASE_MIN, WAIT_DEFAULT};
use dlock_core::wire::status::Status;

const LEASED: [LockType; 3] = [LockType::Atomic, LockType::Rw, LockType::Fair];
const SHORT: Duration = Duration::from_millis(300);

/// Two leases of 0.25 s and 60 s end at least 59.75 s apart. Rounded to seconds, the distance would
/// be 59 s.
#[test]
fn a_lease_is_not_rounded_to_seconds() {
    let server = server();
    for fabric in fabrics() {
        let mine = client(&server, fabric);
        for lock_type in LEASED {
            let [short, long] = ["short", "long"]
                .map(|name| lock(&mine, &format!("{name} {lock_type:?}"), lock_type));
            let held = |lock: &Lock, ms| lock.acquire(X).lease(Duration::from_millis(ms)).owned();
            let mut first = held(&short, 250).unwrap();
            let second = held(&long, 60_000).unwrap();
            let apart_ms = second.lease_end_ms().unwrap() - first.lease_end_ms().unwrap();
            assert!(apart_ms >= 59_750 - 63, "{fabric:?} {lock_type:?}: {apart_ms}");
            // the extension is less than a second, so it would be lost in whole seconds
            let before_ms = first.lease_end_ms().unwrap();
            first.extend(Duration::from_millis(750)).unwrap();
            assert!(first.lease_end_ms().unwrap() >= before_ms + 500 - 63);
        }
        let lock = lock(&mine, "refused", LockType::Atomic);
        let refused = lock.acquire(X).lease(LEASE_MIN / 2).guard();
        assert!(matches!(refused, Err(Error::Invalid(_))));
    }
}

/// A busy machine may miss a renewal of so short a lease; then the hold is lost, and taken anew.
#[test]
fn a_short_lease_is_renewed_many_times() {
    let server = server();
    for fabric in fabrics() {
        let mine = client(&server, fabric);
        let all = [(LockType::Atomic, 300), (LockType::Rw, 300), (LockType::Fair, 500)];
        for (lock_type, ms) in all {
            let lease = Duration::from_millis(ms);
            let lock = lock(&mine, &format!("renewed {lock_type:?}"), lock_type);
            eventually(60, "a hold that lasts for five leases", || {
                let guard = lock.acquire(X).lease(lease).renew(Renew::new()).guard().unwrap();
                thread::sleep(5 * lease);
                !guard.is_known_lost()
            });
        }
    }
}

/// Not a test by itself: a child that holds the lock named by its parent, until it is killed.
#[test]
fn child_that_holds() {
    let Ok(job) = std::env::var("DLOCK_TEST_HOLD") else { return };
    let (addr, lock_type) = job.split_once(' ').unwrap();
    let addr: SocketAddr = addr.parse().unwrap();
    let config = Config::new().port(addr.port()).fabric(FabricChoice::Tcp);
    let client = Client::with_config(&config, &addr.ip().to_string()).unwrap();
    let lock_type = LEASED.into_iter().find(|one| format!("{one:?}") == lock_type).unwrap();
    let lock = lock(&client, &job, lock_type);
    loop {
        let renewed = lock.acquire(X).lease(SHORT).renew(Renew::new()).guard().unwrap();
        println!("\nheld");
        while !renewed.is_known_lost() {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The end of a connection does not prove that the process has ended, so the waiter gets the lock
/// when the lease is over.
#[test]
fn a_short_lease_of_a_killed_client_is_taken_over_by_one_that_waits() {
    let server = server();
    for lock_type in LEASED {
        let job = format!("{} {lock_type:?}", server.local_addr());
        let mut holder = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_holds", "--nocapture"])
            .env("DLOCK_TEST_HOLD", &job)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "held"));
        let other = client(&server, FabricChoice::Tcp);
        let lock = lock(&other, &job, lock_type);
        assert!(matches!(lock.acquire(X).lease(SHORT).wait(Wait::No).guard(), Err(Error::Held)));
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let guard = lock.acquire(X).lease(SHORT).wait(Wait::Forever).guard();
                guard.map(|_| Instant::now())
            });
            thread::sleep(3 * SHORT); // the holder renews its lease meanwhile
            let killed = Instant::now();
            holder.kill().unwrap();
            holder.wait().unwrap();
            let took = waits.join().unwrap().unwrap().saturating_duration_since(killed);
            println!("{lock_type:?}: taken over {} ms after the kill", took.as_millis());
            assert!(took < WAIT_DEFAULT, "{took:?}");
        });
    }
}

/// Some holders vanish; then the end of the lease ends their hold.
#[test]
fn clients_with_leases_of_seconds_and_shorter_ones_exclude_each_other() {
    const ROUNDS: usize = 12;
    let server = server();
    for fabric in fabrics() {
        for lock_type in LEASED {
            let is_inside = AtomicBool::new(false);
            let works = || {
                assert!(!is_inside.swap(true, Ordering::SeqCst), "{fabric:?} {lock_type:?}");
                thread::sleep(Duration::from_millis(1));
                is_inside.store(false, Ordering::SeqCst);
            };
            let name = format!("mixed {lock_type:?}");
            let by_seconds = join(&server, fabric);
            let id = got(&by_seconds, &name, lock_type);
            let mine = client(&server, fabric);
            let lock = lock(&mine, &name, lock_type);
            thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let taken: OpResult = by_seconds.lock(id, X, 60);
                        if status(taken) == Status::Success {
                            works();
                            assert_eq!(status(by_seconds.unlock(id)), Status::Success);
                        }
                    }
                });
                for round in 0..ROUNDS {
                    if round % 4 == 3 {
                        let vanishes = client(&server, fabric);
                        let lock = self::lock(&vanishes, &name, lock_type);
                        mem::forget(lock.acquire(X).lease(SHORT).owned().unwrap());
                        continue;
                    }
                    let guard = lock.acquire(X).lease(Duration::from_millis(2_500)).owned();
                    let guard = guard.unwrap();
                    works();
                    guard.unlock().unwrap();
                }
            });
        }
    }
}
