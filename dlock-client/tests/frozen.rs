// SPDX-License-Identifier: MIT OR Apache-2.0
//! A primary whose process is stopped: it refuses nothing, closes nothing, and answers nothing.

mod common;

use dlock_core::clock::Lease;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use common::{fabrics, got, own_address, server_at, status, ChildPrimary, S, X};
use dlock_client::raw::{AsyncOp, Instance, OpResult, View};
use dlock_client::{
    ClientConfig, Error, FabricChoice, LockId, LockType, Mode, ObjectId, Status, Wait,
};
use dlock_server::ServerConfig;
use Status::*;

/// The bound of a data-path call.
const BOUND: Duration = Duration::from_secs(5);
/// The fastest of [`CLIENTS`] calls may end this much later than a sleep of [`BOUND`]. It is less
/// than any other wait in a call.
const MARGIN: Duration = Duration::from_millis(800);
const CLIENTS: usize = 4;

/// Not a test by itself: the primary, in a child process that is stopped.
#[test]
fn child_that_serves_until_its_input_ends() {
    common::serve_as_child();
}

struct Primary(ChildPrimary);

impl Primary {
    fn start() -> Self {
        Self(ChildPrimary::start("child_that_serves_until_its_input_ends"))
    }

    fn join(&self) -> Instance {
        Instance::init(&self.config(FabricChoice::Tcp), "127.0.0.1").unwrap()
    }

    fn config(&self, fabric: FabricChoice) -> ClientConfig {
        self.0.config(fabric)
    }

    fn freeze(&self) {
        self.0.freeze();
    }

    fn thaw(&self) {
        self.0.thaw();
    }
}

/// A call that is tried: on a lock that is free, on a lock that is held, and on an object.
type Call = fn(&Instance, LockId, LockId, ObjectId) -> Status;
const CALLS: [(&str, Call); 6] = [
    ("trylock", |a, free, _, _| a.trylock(free, X, 60).status),
    ("lock of the same lock by another thread", |a, free, _, _| a.lock(free, X, 60).status),
    ("unlock", |a, _, held, _| a.unlock(held).status),
    ("extend of the same lock by another thread", |a, _, held, _| a.extend(held, X, 60).status),
    ("batch of both", |a, free, held, _| {
        let mut out = [OpResult::of(Done); 2];
        assert_eq!(a.batch_trylock(&[(free, X, 60), (held, X, 60)], &mut out), Success);
        assert_eq!(out[0].status, out[1].status);
        out[0].status
    }),
    ("faa", |a, _, _, object| a.faa(object, 1).unwrap_err()),
];

#[test]
fn a_call_ends_after_five_seconds_whatever_of_it_has_to_be_waited_for() {
    let primary = Primary::start();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let a = primary.join();
            let free = got(&a, &format!("free {n}"), LockType::Atomic);
            let held = got(&a, &format!("held {n}"), LockType::Atomic);
            assert_eq!(status(a.trylock(held, X, 60)), Success);
            a.object_create(format!("object {n}").as_bytes(), Lease::secs(60), 0).unwrap();
            let object = a.object_get(format!("object {n}").as_bytes(), Lease::secs(60)).unwrap();
            (a, free, held, object)
        })
        .collect();
    // lets the clients' clocks become old, so that they ask for the time first; the test is right
    // without that, too
    thread::sleep(Duration::from_millis(1_500));
    primary.freeze();
    for round in ["first", "second"] {
        let (slept, took): (Duration, Vec<Vec<Duration>>) = thread::scope(|scope| {
            // measures how late this machine is
            let sleep = || {
                let start = Instant::now();
                thread::sleep(BOUND);
                start.elapsed()
            };
            let sleeps = [(); CLIENTS].map(|()| scope.spawn(sleep));
            let calls: Vec<Vec<_>> = CALLS
                .iter()
                .map(|&(what, call)| {
                    let call_one = move |(a, free, held, object): &(Instance, _, _, _)| {
                        let start = Instant::now();
                        let ends = call(a, *free, *held, *object);
                        assert_eq!(ends, BadResponse, "{what}");
                        start.elapsed()
                    };
                    clients.iter().map(|client| scope.spawn(move || call_one(client))).collect()
                })
                .collect();
            let joined = |calls: Vec<thread::ScopedJoinHandle<'_, Duration>>| {
                calls.into_iter().map(|call| call.join().unwrap()).collect()
            };
            let took = calls.into_iter().map(joined).collect();
            (sleeps.map(|sleep| sleep.join().unwrap()).into_iter().max().unwrap(), took)
        });
        for ((what, _), took) in CALLS.iter().zip(took) {
            let in_time = *took.iter().min().unwrap() < slept + MARGIN;
            assert!(in_time, "{round} {what}: {took:?}, and a sleep {slept:?}");
        }
    }
}

#[test]
fn a_heartbeat_that_is_not_answered_holds_no_reinit_up() {
    const HEARTBEAT_S: u32 = 100;
    const REINIT_MAX: Duration = Duration::from_secs(60);
    let primary = Primary::start();
    let a = primary.join();
    let id = got(&a, "carried over", LockType::Atomic);
    assert_eq!(status(a.trylock(id, X, 600)), Success);
    primary.freeze();
    let bind = own_address();
    let config = ServerConfig { bind, recovery_clients: 1, ..Default::default() };
    let _successor = server_at(primary.0.port, config);
    thread::scope(|scope| {
        let heartbeat = scope.spawn(|| a.heartbeat(HEARTBEAT_S));
        // lets the heartbeat get the connection, so that other calls must wait for it; the test is
        // right without that, too
        thread::sleep(Duration::from_millis(200));
        let start = Instant::now();
        assert_eq!(a.reinit(&bind.to_string()), Success);
        assert!(start.elapsed() < REINIT_MAX, "{:?}", start.elapsed());
        assert_eq!(heartbeat.join().unwrap(), BadResponse);
    });
    assert_eq!(a.update_all_locks(), Success);
    assert_eq!(a.reinit_done(), Success);
    assert_eq!(status(a.extend(id, X, 0)), Success);
    assert_eq!([status(a.unlock(id)), a.deinit()], [Success; 2]);
}

#[test]
fn a_long_wait_ends_with_the_session_it_is_of() {
    const LEASE: Duration = Duration::from_secs(600);
    const ENDS_MAX: Duration = Duration::from_secs(60);
    for fabric in fabrics() {
        for leaves in [true, false] {
            let primary = Primary::start();
            let join = || primary.0.client(fabric);
            let (holder, waiter) = (join(), join());
            let held = holder.atomic_lock("waited for").unwrap();
            let wanted = waiter.atomic_lock("waited for").unwrap();
            std::mem::forget(
                held.acquire(Mode::Exclusive).lease(LEASE).wait(Wait::No).guard().unwrap(),
            );
            let bind = own_address();
            let config = ServerConfig { bind, recovery_clients: 1, ..Default::default() };
            let _successor = server_at(primary.0.port, config);
            thread::scope(|scope| {
                let wait = scope.spawn(|| {
                    wanted.acquire(Mode::Exclusive).lease(LEASE).wait(10 * LEASE).guard().map(drop)
                });
                // gives the waiter time to queue; the test is right without that, too
                thread::sleep(Duration::from_millis(200));
                primary.freeze();
                let start = Instant::now();
                match leaves {
                    true => assert_eq!(waiter.clone().leave(), Err(Error::Disconnected)),
                    false => waiter.reconnect(&bind.to_string()).unwrap(),
                }
                while !wait.is_finished() && start.elapsed() < ENDS_MAX {
                    thread::sleep(Duration::from_millis(5));
                }
                let has_ended = wait.is_finished();
                drop(primary); // the end of the primary ends the wait in any case
                assert!(wait.join().unwrap().is_err());
                assert!(has_ended, "{fabric:?}: it has waited on");
            });
        }
    }
}

#[test]
fn a_long_wait_that_cannot_even_begin_is_no_long_wait() {
    const LONG: Duration = Duration::from_secs(600);
    let primary = Primary::start();
    let client = primary.0.client(FabricChoice::Tcp);
    let locks = [client.atomic_lock("free").unwrap(), client.atomic_lock("another").unwrap()];
    primary.freeze();
    thread::scope(|scope| {
        let waits = locks.map(|lock| {
            scope.spawn(move || {
                lock.acquire(Mode::Exclusive).lease(LONG).wait(LONG).guard().map(drop).unwrap_err()
            })
        });
        let start = Instant::now();
        while !waits.iter().all(|wait| wait.is_finished()) && start.elapsed() < LONG / 10 {
            thread::sleep(Duration::from_millis(5));
        }
        let have_ended = waits.iter().all(|wait| wait.is_finished());
        drop(primary); // the end of the primary ends the waits in any case
        assert_eq!(waits.map(|wait| wait.join().unwrap()), [const { Error::Disconnected }; 2]);
        assert!(have_ended, "they have waited on");
    });
}

#[test]
fn a_release_that_was_not_answered_succeeds_when_it_is_repeated() {
    let primary = Primary::start();
    let a = primary.join();
    let (one, two) = (got(&a, "one", LockType::Atomic), got(&a, "two", LockType::Fair));
    primary.freeze();
    assert_eq!(a.release_lock(one), BadResponse);
    primary.thaw();
    assert_eq!(a.release_lock(one), Success, "the primary knows it no more");
    assert_eq!(a.release_lock(one), Error, "nor does the client");
    assert_eq!(a.release_lock(two), Success);
    assert_eq!(a.deinit(), Success);
}

/// After the horizon the primary may have a successor, where another client has the lock or changes
/// the object.
#[test]
fn past_the_horizon_no_release_and_no_operation_on_an_object_succeeds() {
    const HORIZON_S: u32 = 5;
    let past = |fabric| {
        let primary = Primary::start();
        let config = ClientConfig { horizon_s: Some(HORIZON_S), ..primary.config(fabric) };
        let a = Instance::init(&config, "127.0.0.1").unwrap();
        let holds = [
            ("atomic", LockType::Atomic, X),
            ("rw", LockType::Rw, X),
            ("rw, shared", LockType::Rw, S),
            ("fair", LockType::Fair, X),
            ("fair, shared", LockType::Fair, S),
        ];
        let holds = holds.map(|(name, kind, mode)| {
            let id = got(&a, name, kind);
            assert_eq!(status(a.trylock(id, mode, 600)), Success);
            (name, id)
        });
        a.object_create(b"object", Lease::secs(600), 0).unwrap();
        let object = a.object_get(b"object", Lease::secs(600)).unwrap();
        assert_eq!(a.faa(object, 1), Ok(0));
        primary.freeze();
        // longer than the horizon, counted from the last answer
        thread::sleep(Duration::from_secs(u64::from(HORIZON_S) + 1));
        for (name, id) in holds {
            assert_eq!(a.unlock(id).status, BadResponse, "{fabric:?}: {name}");
        }
        assert_eq!(a.faa(object, 1), Err(BadResponse), "{fabric:?}");
        assert_eq!(a.cas(object, 1, 2), BadResponse, "{fabric:?}");
        assert_eq!(a.snapshot(object), Err(BadResponse), "{fabric:?}");
    };
    thread::scope(|scope| {
        for fabric in fabrics() {
            scope.spawn(move || past(fabric));
        }
    });
}

#[test]
fn a_wait_at_a_frozen_primary_ends_with_the_bound_of_the_call() {
    for fabric in fabrics() {
        let primary = Primary::start();
        let join = || Instance::init(&primary.config(fabric), "127.0.0.1").unwrap();
        let (holder, waiters) = (join(), [join(), join(), join(), join()]);
        let held = got(&holder, "held", LockType::Atomic);
        assert_eq!(status(holder.trylock(held, X, 600)), Success);
        let (slept, took) = thread::scope(|scope| {
            let waits: Vec<_> = waiters
                .iter()
                .map(|waiter| {
                    scope.spawn(move || {
                        let wanted = got(waiter, "held", LockType::Atomic);
                        let start = Instant::now();
                        assert_eq!(status(waiter.lock(wanted, X, 600)), BadResponse);
                        start.elapsed()
                    })
                })
                .collect();
            let sleep = scope.spawn(|| {
                let start = Instant::now();
                thread::sleep(BOUND);
                start.elapsed()
            });
            // gives the waiters time to queue; a waiter that is not queued must end in time, too
            thread::sleep(Duration::from_millis(500));
            primary.freeze();
            let took: Vec<_> = waits.into_iter().map(|wait| wait.join().unwrap()).collect();
            (sleep.join().unwrap(), took)
        });
        let in_time = *took.iter().min().unwrap() < slept + MARGIN;
        assert!(in_time, "{fabric:?}: {took:?}, and a sleep {slept:?}");
    }
}

#[test]
fn an_asynchronous_operation_is_asked_for_without_waiting() {
    /// Shorter than any wait in a call.
    const AT_ONCE: Duration = Duration::from_millis(500);
    let primary = Primary::start();
    for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
        let a = primary.join();
        let id = got(&a, &format!("{lock_type:?}"), lock_type);
        // lets the client's clock become old, so that it must ask for the server clock; the test is
        // right without that, too
        thread::sleep(Duration::from_millis(1_500));
        primary.freeze();
        let op = AsyncOp::TryLock { mode: X, expire_s: 600 };
        let mut least = Duration::MAX;
        let mut timed = |call: &mut dyn FnMut() -> Status| {
            let start = Instant::now();
            let status = call();
            least = least.min(start.elapsed());
            status
        };
        assert_eq!(a.request_async(id, op), Success);
        while timed(&mut || status(a.result_check())) == AsyncAgain {}
        assert!(least < AT_ONCE, "{lock_type:?}: {least:?}");
        primary.thaw();
    }
}

#[test]
fn no_look_at_an_asynchronous_operation_waits_for_the_primary() {
    /// Shorter than the second for which a call waits for the server clock.
    const AT_ONCE: Duration = Duration::from_millis(800);
    for fabric in fabrics() {
        let primary = Primary::start();
        let clients: Vec<Instance> = (0..CLIENTS)
            .map(|_| Instance::init(&primary.config(fabric), "127.0.0.1").unwrap())
            .collect();
        let ids: Vec<LockId> = clients.iter().map(|a| got(a, "free", LockType::Fair)).collect();
        primary.freeze();
        let took: Vec<Duration> = thread::scope(|scope| {
            let polls: Vec<_> = clients
                .iter()
                .zip(ids)
                .map(|(a, id)| {
                    scope.spawn(move || {
                        let op = AsyncOp::TryLock { mode: X, expire_s: 600 };
                        assert_eq!(a.request_async(id, op), Success);
                        let mut longest = Duration::ZERO;
                        loop {
                            let start = Instant::now();
                            let result = status(a.result_check());
                            longest = longest.max(start.elapsed());
                            if result != AsyncAgain {
                                return longest;
                            }
                            // programs, too, pause between two looks
                            thread::sleep(Duration::from_millis(5));
                        }
                    })
                })
                .collect();
            polls.into_iter().map(|poll| poll.join().unwrap()).collect()
        });
        let least = *took.iter().min().unwrap();
        assert!(least < AT_ONCE, "{fabric:?}: {took:?}");
    }
}

fn wall_clock_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn success_means_a_running_lease_however_long_the_primary_stood_still() {
    const LEASE_S: u32 = 1;
    let primary = Primary::start();
    // the primary stands still for so many seconds past the lease: shorter and longer than a call
    // lasts
    for (lock_type, past_s) in
        [(LockType::Atomic, 2), (LockType::Fair, 2), (LockType::Atomic, 5), (LockType::Fair, 5)]
    {
        let (a, b) = (primary.join(), primary.join());
        let name = format!("{lock_type:?} {past_s}");
        let (mine, theirs) = (got(&a, &name, lock_type), got(&b, &name, lock_type));
        for reenters in [false, true] {
            if reenters {
                assert_eq!(status(a.trylock(mine, X, LEASE_S)), Success);
            }
            primary.freeze();
            let result = thread::scope(|scope| {
                let call = scope.spawn(|| (a.trylock(mine, X, LEASE_S), wall_clock_s()));
                thread::sleep(Duration::from_secs(u64::from(LEASE_S) + past_s));
                primary.thaw();
                call.join().unwrap()
            });
            match (result.0.status, result.0.view) {
                (Fail | BadResponse, _) => {}
                // the primary may have extended a re-entry after it went on
                (Success | AlreadyLocked, Some(View::Fair { time_out, .. })) => {
                    // allows for a thread that reads its clock late
                    assert!(result.1 <= u64::from(time_out.seconds()) + 2, "{name}: {result:?}");
                    let unlocked = [(); 2].map(|()| status(a.unlock(mine)));
                    assert!(unlocked.contains(&Success), "{name}: {unlocked:?}");
                }
                other => panic!("{name}: {other:?}"),
            }
            // the lock was given back, so the other client can have it
            assert_eq!(status(b.lock(theirs, X, 60)), Success, "{name}");
            assert_eq!(status(b.unlock(theirs)), Success);
        }
    }
}

/// At a stopped primary, it takes 10 s to give a lock object back.
#[test]
fn a_get_waits_for_no_lock_object_that_is_dropped() {
    let fabrics = fabrics();
    thread::scope(|scope| {
        for fabric in fabrics {
            scope.spawn(move || {
                let primary = ChildPrimary::start("child_that_serves_until_its_input_ends");
                let a = primary.client(fabric);
                let locks = [1, 2, 3].map(|n| a.atomic_lock(format!("lock {n}")).unwrap());
                primary.freeze();
                thread::scope(|scope| {
                    for lock in locks {
                        scope.spawn(move || drop(lock));
                    }
                    thread::sleep(Duration::from_millis(200));
                    let start = Instant::now();
                    assert_eq!(a.atomic_lock("other").err(), Some(Error::Disconnected));
                    let took = start.elapsed();
                    assert!(took < Duration::from_secs(20), "{fabric:?}: {took:?}");
                });
                primary.thaw();
            });
        }
    });
}
