// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lock cache on real fabrics: a client keeps a lock after its release, and gives it to others
//! as soon as they want it.

mod common;

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{client, fabrics, lock, server, S, X};
use dlock_client::{Error, Lock, LockType, Mode, Wait};

const SOON: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_secs(20);
const KINDS: [(LockType, Mode); 5] = [
    (LockType::Atomic, X),
    (LockType::Rw, X),
    (LockType::Rw, S),
    (LockType::Fair, X),
    (LockType::Fair, S),
];

fn cycle(lock: &Lock, mode: Mode) {
    let acquire = lock.acquire(mode).wait(SOON);
    let acquire = if lock.lock_type() == LockType::Rw { acquire } else { acquire.lease(LEASE) };
    acquire.guard().unwrap().unlock().unwrap();
}

/// Acquires and releases the lock until this client keeps it.
fn kept(lock: &Lock, mode: Mode) {
    lock.cache(true).unwrap();
    let end = Instant::now() + SOON;
    while lock.cache_hits().is_none() {
        assert!(Instant::now() < end, "it is not kept");
        cycle(lock, mode);
    }
}

#[test]
fn a_kept_lock_serves_its_client_and_goes_to_others_that_want_it() {
    let server = server();
    for fabric in fabrics() {
        for (lock_type, mode) in KINDS {
            let [mine, other] = [0, 1].map(|_| client(&server, fabric));
            let name = format!("kept {fabric:?} {lock_type:?} {mode:?}");
            let (its, others) = (lock(&mine, &name, lock_type), lock(&other, &name, lock_type));
            kept(&its, mode);
            let before = its.cache_hits().unwrap();
            (0..100).for_each(|_| cycle(&its, mode));
            assert_eq!(its.cache_hits(), Some(before + 100), "{name}");
            cycle(&others, X); // nothing but its being wanted ends the keeping
            assert_eq!(its.cache_hits(), None, "{name}");
            cycle(&its, mode);
        }
    }
}

#[test]
fn a_try_gets_an_idle_lock_and_not_one_in_use() {
    let server = server();
    for fabric in fabrics() {
        for (lock_type, mode) in KINDS {
            let [mine, other] = [0, 1].map(|_| client(&server, fabric));
            let name = format!("tried {fabric:?} {lock_type:?} {mode:?}");
            let (its, others) = (lock(&mine, &name, lock_type), lock(&other, &name, lock_type));
            let tries = || others.acquire(X).wait(Wait::No).guard().map(drop);
            kept(&its, mode);
            // a fair lock's first try takes a ticket, and its client gives it up again
            let got = (0..50).find_map(|_| tries().ok());
            assert_eq!(got, Some(()), "{name}");
            kept(&its, mode);
            let held = its.acquire(mode).wait(SOON).guard().unwrap();
            assert_eq!(tries(), Err(Error::Held), "{name}");
            let waits = thread::scope(|scope| {
                let waiter = scope.spawn(|| others.acquire(X).wait(SOON).guard().map(drop));
                thread::sleep(Duration::from_millis(50));
                assert!(!waiter.is_finished(), "{name}: it is in use");
                held.unlock().unwrap();
                waiter.join().unwrap()
            });
            assert_eq!(waits, Ok(()), "{name}");
        }
    }
}

#[test]
fn clients_that_keep_a_lock_exclude_each_other() {
    let server = server();
    for fabric in fabrics() {
        for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
            let name = format!("counted {fabric:?} {lock_type:?}");
            // the number of writers times a million, and that of readers
            let (inside, cycles, over) =
                (AtomicI64::new(0), AtomicU64::new(0), AtomicBool::new(false));
            let hits = AtomicU64::new(0);
            thread::scope(|scope| {
                for c in 0..3 {
                    let client = client(&server, fabric);
                    for t in 0..2 {
                        let lock = lock(&client, &name, lock_type);
                        lock.cache(c < 2).unwrap();
                        let (inside, cycles, over, hits) = (&inside, &cycles, &over, &hits);
                        scope.spawn(move || {
                            let mut turn = c + t;
                            while !over.load(Ordering::Relaxed) {
                                turn += 1;
                                let is_shared = lock_type != LockType::Atomic && turn % 3 == 0;
                                let (mode, mine) = if is_shared { (S, 1) } else { (X, 1_000_000) };
                                let guard = lock.acquire(mode).wait(SOON).guard().unwrap();
                                let before = inside.fetch_add(mine, Ordering::SeqCst);
                                match is_shared {
                                    true => assert!(before < 1_000_000, "{before}"),
                                    false => assert_eq!(before, 0),
                                }
                                thread::yield_now();
                                inside.fetch_sub(mine, Ordering::SeqCst);
                                guard.unlock().unwrap();
                                cycles.fetch_add(1, Ordering::Relaxed);
                                hits.fetch_max(lock.cache_hits().unwrap_or(0), Ordering::Relaxed);
                                if turn % 50 < 10 {
                                    thread::sleep(Duration::from_millis(20)); // others leave it
                                }
                            }
                        });
                    }
                }
                thread::sleep(Duration::from_secs(3));
                over.store(true, Ordering::Relaxed);
            });
            let (cycles, hits) = (cycles.into_inner(), hits.into_inner());
            assert!(cycles > 100, "{name}: {cycles} cycles, {hits} hits");
        }
    }
}
