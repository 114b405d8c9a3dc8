// SPDX-License-Identifier: MIT OR Apache-2.0
//! The API for Rust programs.

mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::{client, fabrics, server};
use dlock_client::Mode::{Exclusive, Shared};
use dlock_client::Wait::No;
use dlock_client::{Client, Config, Error, Wait};

const LEASE: Duration = Duration::from_secs(60);

#[test]
fn a_guard_releases_on_drop_and_unlock_tells_how_it_went() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (client(&server, fabric), client(&server, fabric));
        let (mine, other) = (a.atomic_lock("g").unwrap(), b.atomic_lock("g").unwrap());
        assert_eq!(mine.id(), other.id());
        let mut guard = mine.acquire(Exclusive).wait(No).guard().unwrap();
        assert_eq!(other.acquire(Exclusive).wait(No).guard().unwrap_err(), Error::Held);
        let before = guard.lease_end_ms().unwrap();
        guard.extend(LEASE * 2).unwrap();
        assert!(guard.lease_end_ms() >= Some(before + 29_000));
        guard.check().unwrap();
        drop(guard);
        other.acquire(Exclusive).wait(No).guard().unwrap().unlock().unwrap();
        assert!(matches!(
            mine.acquire(Exclusive).lease(Duration::ZERO).wait(No).guard(),
            Err(Error::Invalid(_))
        ));
    }
}

#[test]
fn a_guard_whose_lease_ended_says_that_the_lock_is_lost() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (client(&server, fabric), client(&server, fabric));
        let (mine, other) = (a.atomic_lock("lost").unwrap(), b.atomic_lock("lost").unwrap());
        let mut guard =
            mine.acquire(Exclusive).lease(Duration::from_millis(500)).wait(No).guard().unwrap();
        let taken = other.acquire(Exclusive).wait(LEASE).guard().unwrap();
        assert_eq!(guard.check(), Err(Error::Lost));
        assert_eq!(guard.extend(LEASE), Err(Error::Lost));
        assert_eq!(guard.unlock(), Err(Error::Lost));
        taken.unlock().unwrap();
    }
}

#[test]
fn everything_that_a_client_holds_is_released_at_once() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (client(&server, fabric), client(&server, fabric));
        let names = ["all-1", "all-2"];
        let mine = names.map(|name| a.atomic_lock(name).unwrap());
        let shared = a.rw_lock("all-3").unwrap();
        a.fair_lock("all-4").unwrap(); // a lock that is not held is not counted
        let guards = mine.each_ref().map(|lock| lock.acquire(Exclusive).guard().unwrap());
        let reads = shared.acquire(Shared).guard().unwrap();
        assert_eq!(a.unlock_all(), Ok(3));
        assert_eq!(a.unlock_all(), Ok(0), "nothing is held any more");
        for name in names {
            let other = b.atomic_lock(name).unwrap();
            other.acquire(Exclusive).wait(No).guard().unwrap().unlock().unwrap();
        }
        let writer = b.rw_lock("all-3").unwrap();
        writer.acquire(Exclusive).wait(No).guard().unwrap().unlock().unwrap();
        assert!(guards.into_iter().all(|guard| guard.unlock().is_err()));
        assert!(reads.unlock().is_err());
    }
}

#[test]
fn guards_of_one_client_exclude_each_other() {
    let server = server();
    for fabric in fabrics() {
        let a = client(&server, fabric);
        let (one, two) = (a.atomic_lock("own").unwrap(), a.clone().atomic_lock("own").unwrap());
        let guard = one.acquire(Exclusive).guard().unwrap();
        assert_eq!(two.acquire(Exclusive).wait(No).guard().unwrap_err(), Error::Held);
        let start = Instant::now();
        let short = Duration::from_millis(50);
        assert_eq!(two.acquire(Exclusive).wait(short).guard().unwrap_err(), Error::TimedOut);
        assert!(start.elapsed() >= short);
        thread::scope(|scope| {
            let waiter = scope
                .spawn(|| two.acquire(Exclusive).wait(LEASE).guard().map(|guard| guard.unlock()));
            thread::sleep(short);
            guard.unlock().unwrap();
            assert_eq!(waiter.join().unwrap().map_err(|_| ()), Ok(Ok(())));
        });
        // dropping one lock object does not take the lock from the other
        drop(one);
        two.acquire(Exclusive).wait(No).guard().unwrap().unlock().unwrap();
    }
}

#[test]
fn threads_of_one_client_count_without_losing_any() {
    const EACH: u64 = 300;
    let server = server();
    for fabric in fabrics() {
        let a = client(&server, fabric);
        let lock = a.fair_lock("counted").unwrap();
        let mut count = 0_u64;
        let shared = std::sync::atomic::AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let guard = lock.acquire(Exclusive).guard().unwrap();
                        // only the lock makes this read and this write one step
                        let seen = shared.load(std::sync::atomic::Ordering::Relaxed);
                        shared.store(seen + 1, std::sync::atomic::Ordering::Relaxed);
                        guard.unlock().unwrap();
                    }
                });
            }
        });
        count += shared.into_inner();
        assert_eq!(count, 4 * EACH);
    }
}

#[test]
fn readers_share_and_writers_do_not() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (client(&server, fabric), client(&server, fabric));
        let (mine, other) = (a.rw_lock("rw").unwrap(), b.rw_lock("rw").unwrap());
        let (r1, r2) =
            (mine.acquire(Shared).wait(No).guard().unwrap(), mine.acquire(Shared).guard().unwrap());
        let r3 = other.acquire(Shared).wait(No).guard().unwrap();
        assert_eq!(mine.acquire(Exclusive).wait(No).guard().unwrap_err(), Error::Held);
        assert_eq!(other.acquire(Exclusive).wait(No).guard().unwrap_err(), Error::Held);
        r1.unlock().unwrap();
        drop(r3);
        assert_eq!(other.acquire(Exclusive).wait(No).guard().unwrap_err(), Error::Held);
        r2.unlock().unwrap();
        let writer = other.acquire(Exclusive).guard().unwrap();
        assert_eq!(writer.mode(), Exclusive);
        let short = Duration::from_millis(30);
        assert_eq!(mine.acquire(Shared).wait(short).guard().unwrap_err(), Error::TimedOut);
        assert_eq!(mine.acquire(Shared).wait(No).guard().unwrap_err(), Error::Held);
        writer.unlock().unwrap();
        mine.acquire(Exclusive).wait(No).guard().unwrap().unlock().unwrap();
    }
}

#[test]
fn a_fair_lock_that_was_not_granted_leaves_no_ticket_behind() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (client(&server, fabric), client(&server, fabric));
        let (mine, other) = (a.fair_lock("fair").unwrap(), b.fair_lock("fair").unwrap());
        let guard = mine.acquire(Exclusive).wait(No).guard().unwrap();
        let short = Duration::from_millis(30);
        assert_eq!(other.acquire(Exclusive).wait(No).guard().unwrap_err(), Error::Held);
        assert_eq!(other.acquire(Shared).wait(No).guard().unwrap_err(), Error::Held);
        assert_eq!(other.acquire(Exclusive).wait(short).guard().unwrap_err(), Error::TimedOut);
        assert_eq!(other.acquire(Shared).wait(short).guard().unwrap_err(), Error::TimedOut);
        guard.unlock().unwrap();
        mine.acquire(Exclusive).guard().unwrap().unlock().unwrap();
        common::eventually(60, "abandoned tickets are skipped at once", || {
            let guard = mine.acquire(Exclusive).wait(No).guard().unwrap();
            assert_eq!(other.acquire(Exclusive).wait(No).guard().unwrap_err(), Error::Held);
            let start = Instant::now();
            guard.unlock().unwrap();
            mine.acquire(Exclusive).guard().unwrap().unlock().unwrap();
            start.elapsed() < Duration::from_secs(1)
        });
        let r1 = mine.acquire(Shared).guard().unwrap();
        let r2 = other.acquire(Shared).guard().unwrap();
        assert_eq!(other.acquire(Exclusive).wait(No).guard().unwrap_err(), Error::Held);
        drop((r1, r2));
    }
}

#[test]
fn the_last_lock_object_gives_the_lock_back() {
    let server = server();
    for fabric in fabrics() {
        let a = client(&server, fabric);
        let lock = a.atomic_lock("given back").unwrap();
        let id = lock.id();
        let clone = lock.clone();
        drop(lock);
        assert_eq!(clone.acquire(Exclusive).wait(No).guard().unwrap().unlock(), Ok(()));
        drop(clone);
        assert_eq!(a.instance().release_lock(id), dlock_client::Status::Error, "gone already");
        assert!(matches!(a.atomic_lock(""), Err(Error::Invalid(_))));
        a.leave().unwrap();
    }
}

#[test]
fn fair_readers_share_and_writers_do_not() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (client(&server, fabric), client(&server, fabric));
        let (mine, other) = (a.fair_lock("fair rw").unwrap(), b.fair_lock("fair rw").unwrap());
        let (r1, r2) = (
            mine.acquire(Shared).wait(No).guard().unwrap(),
            other.acquire(Shared).guard().unwrap(),
        );
        assert_eq!((r1.mode(), r2.mode()), (Shared, Shared));
        assert_eq!(other.acquire(Exclusive).wait(No).guard().unwrap_err(), Error::Held);
        r2.unlock().unwrap();
        assert_eq!(other.acquire(Exclusive).wait(No).guard().unwrap_err(), Error::Held);
        r1.unlock().unwrap();
        let writer = other.acquire(Exclusive).guard().unwrap();
        assert_eq!(writer.mode(), Exclusive);
        assert_eq!(mine.acquire(Shared).wait(No).guard().unwrap_err(), Error::Held);
        writer.unlock().unwrap();
        assert!(matches!(
            mine.acquire(Shared).lease(Duration::ZERO).wait(No).guard(),
            Err(Error::Invalid(_))
        ));
    }
}

#[test]
fn an_owned_guard_keeps_its_lock_and_its_client_and_releases_in_another_thread() {
    let server = server();
    for fabric in fabrics() {
        let b = client(&server, fabric);
        let other = b.atomic_lock("owned").unwrap();
        let a = client(&server, fabric);
        let lock = a.atomic_lock("owned").unwrap();
        let mut guard = lock.acquire(Exclusive).wait(No).owned().unwrap();
        assert_eq!(lock.acquire(Exclusive).wait(No).owned().unwrap_err(), Error::Held);
        drop((lock, a)); // the guard alone keeps the lock, and the client
        assert_eq!(other.acquire(Exclusive).wait(No).guard().unwrap_err(), Error::Held);
        let thread = thread::spawn(move || {
            guard.extend(LEASE * 2).unwrap();
            guard.check().unwrap();
            guard.unlock()
        });
        assert_eq!(thread.join().unwrap(), Ok(()));
        drop(other.acquire(Exclusive).owned().unwrap());
        other.acquire(Exclusive).wait(No).owned().unwrap().unlock().unwrap();
    }
}

#[test]
fn owned_guards_share_and_exclude_as_borrowed_ones_do() {
    let server = server();
    let short = Duration::from_millis(30);
    for fabric in fabrics() {
        let (a, b) = (client(&server, fabric), client(&server, fabric));
        let (mine, other) = (a.rw_lock("owned rw").unwrap(), b.rw_lock("owned rw").unwrap());
        let readers = [
            mine.acquire(Shared).wait(No).owned().unwrap(),
            other.acquire(Shared).owned().unwrap(),
        ];
        assert_eq!(other.acquire(Exclusive).wait(short).owned().unwrap_err(), Error::TimedOut);
        assert_eq!(readers.map(|reader| reader.unlock()), [Ok(()), Ok(())]);
        let writer = other.acquire(Exclusive).owned().unwrap();
        assert_eq!(mine.acquire(Shared).wait(short).owned().unwrap_err(), Error::TimedOut);
        assert_eq!(
            (mine.acquire(Exclusive).wait(No).owned().unwrap_err(), writer.mode()),
            (Error::Held, Exclusive)
        );
        drop(writer);
        let (mine, other) = (a.fair_lock("owned f").unwrap(), b.fair_lock("owned f").unwrap());
        let readers = [
            mine.acquire(Shared).wait(No).owned().unwrap(),
            other.acquire(Shared).owned().unwrap(),
        ];
        assert_eq!(mine.acquire(Exclusive).wait(No).owned().unwrap_err(), Error::Held);
        assert_eq!(readers.map(|reader| reader.unlock()), [Ok(()), Ok(())]);
        let writer = other.acquire(Exclusive).wait(LEASE).owned().unwrap();
        assert_eq!(mine.acquire(Shared).wait(short).owned().unwrap_err(), Error::TimedOut);
        assert!(writer.lease_end_ms().is_some());
        drop(writer);
        mine.acquire(Exclusive).owned().unwrap().unlock().unwrap();
    }
}

#[test]
fn a_configuration_out_of_bounds_is_refused_before_anything_is_connected() {
    let refused = |config: Config| Client::with_config(&config, "127.0.0.1").unwrap_err();
    assert!(matches!(refused(Config::new().port(0)), Error::Invalid(_)));
    assert!(matches!(refused(Config::new().horizon(Duration::ZERO)), Error::Invalid(_)));
}

#[test]
fn objects_count_and_are_given_back() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (client(&server, fabric), client(&server, fabric));
        assert_eq!(a.object("counter", LEASE).unwrap_err(), Error::NoObject);
        let mine = a.create_object("counter", LEASE, 5).unwrap();
        let other = b.create_object("counter", LEASE, 9).unwrap();
        assert_eq!(mine.fetch_add(1), Ok(5));
        assert_eq!(other.load(), Ok(6));
        assert_eq!(other.compare_exchange(5, 1), Err(Error::Changed));
        assert_eq!(other.compare_exchange(6, 1), Ok(()));
        assert_eq!(other.destroy(), Err(Error::NotOwner));
        assert_eq!(mine.destroy(), Ok(()));
        drop((mine, other));
        assert_eq!(a.object("counter", LEASE).unwrap_err(), Error::NoObject);
    }
}

#[test]
fn a_client_that_left_says_so() {
    let server = server();
    for fabric in fabrics() {
        let a = client(&server, fabric);
        let lock = a.atomic_lock("left").unwrap();
        let guard = lock.acquire(Exclusive).wait(No).guard().unwrap();
        a.heartbeat(Duration::from_millis(10)).unwrap();
        a.reconnect("127.0.0.1").unwrap();
        a.clone().leave().unwrap();
        assert_eq!(guard.unlock(), Err(Error::Left));
        assert_eq!(lock.acquire(Exclusive).wait(No).guard().unwrap_err(), Error::Left);
        assert!(a.leave().is_err());
        let b = client(&server, fabric);
        b.atomic_lock("left")
            .unwrap()
            .acquire(Exclusive)
            .wait(No)
            .guard()
            .unwrap()
            .unlock()
            .unwrap();
    }
}

/// A thread that gets a lock while another one drops the last object of it can use the lock.
#[test]
fn a_lock_that_is_got_while_another_thread_drops_it_can_be_used() {
    let server = server();
    for fabric in fabrics() {
        let a = client(&server, fabric);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let lock = a.atomic_lock("same").unwrap();
                        let held = lock.acquire(Exclusive).wait(No).guard().err();
                        assert!(matches!(held, None | Some(Error::Held)), "{fabric:?}: {held:?}");
                    }
                });
            }
        });
    }
}

#[test]
fn an_acquire_is_refused_what_its_lock_or_its_hold_does_not_have() {
    let server = server();
    for fabric in fabrics() {
        let client = client(&server, fabric);
        let (atomic, rw) = (client.atomic_lock("a").unwrap(), client.rw_lock("r").unwrap());
        for wait in [No, Wait::For(LEASE), Wait::Forever] {
            let shared = atomic.acquire(Shared).wait(wait).guard().map(drop);
            assert!(matches!(shared, Err(Error::Invalid(_))), "{shared:?}");
            let leased = rw.acquire(Shared).lease(LEASE).wait(wait).guard().unwrap();
            assert!(leased.lease_end_ms() > Some(0));
            leased.unlock().unwrap();
        }
        let mut guard = rw.acquire(Exclusive).guard().unwrap();
        assert_eq!((guard.lease_end_ms(), guard.check()), (None, Ok(())));
        assert!(matches!(guard.extend(LEASE), Err(Error::Invalid(_))));
        assert_eq!(guard.unlock(), Ok(()), "it is held as before");
    }
}

#[test]
fn a_wait_for_ever_lasts_until_the_lock_is_free() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (client(&server, fabric), client(&server, fabric));
        let (mine, other) = (a.fair_lock("ever").unwrap(), b.fair_lock("ever").unwrap());
        let held = mine.acquire(Exclusive).guard().unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| other.acquire(Shared).wait(Wait::Forever).guard().map(drop));
            thread::sleep(Duration::from_millis(20)); // the wait has probably begun by then
            held.unlock().unwrap();
            assert_eq!(waits.join().unwrap(), Ok(()));
        });
    }
}
