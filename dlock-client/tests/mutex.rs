// SPDX-License-Identifier: MIT OR Apache-2.0
//! `Mutex`: re-entrant for its thread, in order among the threads of a program, exclusive among
//! programs. Its loss is reported.

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{client, fabrics, server};
use dlock_client::{Error, Mutex, Wait};

const SOON: Duration = Duration::from_millis(50);

/// Waits until so many threads are about to lock, and gives the last one time to wait.
fn until(counter: &AtomicU32, threads: u32) {
    let end = Instant::now() + Duration::from_secs(20);
    while counter.load(Ordering::SeqCst) < threads {
        assert!(Instant::now() < end, "a thread does not start");
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(SOON); // the thread most likely waits by now
}

#[test]
fn a_thread_may_lock_again_and_others_wait_for_its_last_guard() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (client(&server, fabric), client(&server, fabric));
        let (mine, same, other) = (a.mutex("m"), a.mutex("m"), b.mutex("m"));
        let (mine, same, other) = (mine.unwrap(), same.unwrap(), other.unwrap());
        let outer = mine.lock().unwrap();
        let inner = same.lock().unwrap();
        assert_eq!(outer.token(), inner.token(), "one hold");
        assert!(outer.token().is_some());
        // another thread of the program, and another program, cannot lock
        thread::scope(|scope| {
            let mine = &mine;
            scope.spawn(move || {
                assert!(!mine.is_owner());
                assert_eq!(mine.try_lock().err(), Some(Error::Held));
                assert_eq!(mine.lock_for(SOON).err(), Some(Error::TimedOut));
            });
        });
        assert_eq!(other.try_lock().err(), Some(Error::Held));
        drop(outer);
        assert!(mine.is_owner() && inner.check().is_ok(), "the order of the drops does not matter");
        assert_eq!(other.try_lock().err(), Some(Error::Held));
        let first = inner.token().unwrap();
        inner.unlock().unwrap();
        assert!(!mine.is_owner());
        let next = other.lock_for(Duration::from_secs(20)).unwrap();
        assert!(next.token().unwrap() > first, "another hold");
    }
}

#[test]
fn threads_of_a_program_are_served_in_order() {
    const THREADS: u32 = 6;
    let server = server();
    for fabric in fabrics() {
        let user = client(&server, fabric);
        let mutex = user.mutex("in order").unwrap();
        let (begun, served) = (AtomicU32::new(0), std::sync::Mutex::new(Vec::new()));
        let held = mutex.lock().unwrap();
        thread::scope(|scope| {
            for number in 0..THREADS {
                let (mutex, begun, served) = (&mutex, &begun, &served);
                scope.spawn(move || {
                    begun.fetch_add(1, Ordering::SeqCst);
                    let _held = mutex.lock().unwrap();
                    served.lock().unwrap().push(number);
                });
                until(begun, number + 1);
            }
            held.unlock().unwrap();
        });
        let served = served.into_inner().unwrap();
        assert_eq!(served, (0..THREADS).collect::<Vec<_>>(), "{fabric:?}");
    }
}

#[test]
fn threads_of_programs_exclude_each_other() {
    let server = server();
    for fabric in fabrics() {
        let programs = [0, 1].map(|_| client(&server, fabric));
        let (inside, rounds) = (AtomicU32::new(0), 40);
        thread::scope(|scope| {
            for program in &programs {
                for _ in 0..3 {
                    let inside = &inside;
                    scope.spawn(move || {
                        let mutex: Mutex = program.mutex("exclusive").unwrap();
                        for _ in 0..rounds {
                            let _held = mutex.lock().unwrap();
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            let _deeper = mutex.lock_for(Wait::No).unwrap();
                            assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                        }
                    });
                }
            }
        });
    }
}

#[test]
fn after_a_loss_nothing_goes_on_silently() {
    let server = server();
    for fabric in fabrics() {
        let user = client(&server, fabric);
        let mutex = user.mutex("lost").unwrap();
        let outer = mutex.lock().unwrap();
        let inner = mutex.lock().unwrap();
        // ends the hold without the mutex
        let (_, id) = user.instance().get_lock(dlock_client::LockDesc {
            name: b"lost".to_vec(),
            lock_type: dlock_client::LockType::Fair,
            lease_s: 0,
            tokens: true,
        });
        let _ = user.instance().unlock(id.unwrap());
        assert_eq!(mutex.lock().err(), Some(Error::Lost), "not deeper");
        assert_eq!(inner.check(), Err(Error::Lost));
        assert_eq!(inner.token(), None);
        assert_eq!(inner.unlock(), Err(Error::Lost));
        assert_eq!(mutex.try_lock().err(), Some(Error::Lost), "a guard is left");
        assert_eq!(outer.unlock(), Err(Error::Lost));
        mutex.lock().unwrap().unlock().unwrap();
    }
}

#[test]
fn a_wait_that_ends_leaves_the_queue_to_the_next() {
    let server = server();
    let user = client(&server, fabrics()[0]);
    let mutex = user.mutex("left").unwrap();
    let begun = AtomicU32::new(0);
    let held = mutex.lock().unwrap();
    thread::scope(|scope| {
        let (mutex, begun) = (&mutex, &begun);
        let first = scope.spawn(move || {
            begun.fetch_add(1, Ordering::SeqCst);
            mutex.lock_for(SOON * 4).err()
        });
        until(begun, 1);
        let second = scope.spawn(move || {
            begun.fetch_add(1, Ordering::SeqCst);
            mutex.lock().map(|held| held.unlock()).err()
        });
        until(begun, 2);
        assert_eq!(first.join().unwrap(), Some(Error::TimedOut));
        held.unlock().unwrap();
        assert_eq!(second.join().unwrap(), None);
    });
}
