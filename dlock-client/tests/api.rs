// SPDX-License-Identifier: MIT OR Apache-2.0
//! The API for Rust programs.

mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::{client, fabrics, server};
use dlock_client::{Client, Config, Error, Mode};

const LEASE: Duration = Duration::from_secs(60);

#[test]
fn a_guard_releases_on_drop_and_unlock_tells_how_it_went() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (client(&server, fabric), client(&server, fabric));
        let (mine, other) = (a.atomic_lock("g").unwrap(), b.atomic_lock("g").unwrap());
        assert_eq!(mine.id(), other.id());
        let mut guard = mine.try_lock(LEASE).unwrap();
        assert_eq!(other.try_lock(LEASE).unwrap_err(), Error::Held);
        let before = guard.deadline_s();
        guard.extend(LEASE * 2).unwrap();
        assert!(guard.deadline_s() >= before + 59);
        guard.check().unwrap();
        drop(guard);
        other.try_lock(LEASE).unwrap().unlock().unwrap();
        assert!(matches!(mine.try_lock(Duration::ZERO), Err(Error::Invalid(_))));
    }
}

#[test]
fn a_guard_whose_lease_ended_says_that_the_lock_is_lost() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (client(&server, fabric), client(&server, fabric));
        let (mine, other) = (a.atomic_lock("lost").unwrap(), b.atomic_lock("lost").unwrap());
        let mut guard = mine.try_lock(Duration::from_millis(1)).unwrap();
        let taken = other.lock_timeout(LEASE, LEASE).unwrap();
        assert_eq!(guard.check(), Err(Error::Lost));
        assert_eq!(guard.extend(LEASE), Err(Error::Lost));
        assert_eq!(guard.unlock(), Err(Error::Lost));
        taken.unlock().unwrap();
    }
}

#[test]
fn guards_of_one_client_exclude_each_other() {
    let server = server();
    for fabric in fabrics() {
        let a = client(&server, fabric);
        let (one, two) = (a.atomic_lock("own").unwrap(), a.clone().atomic_lock("own").unwrap());
        let guard = one.lock(LEASE).unwrap();
        assert_eq!(two.try_lock(LEASE).unwrap_err(), Error::Held);
        let start = Instant::now();
        let short = Duration::from_millis(50);
        assert_eq!(two.lock_timeout(LEASE, short).unwrap_err(), Error::TimedOut);
        assert!(start.elapsed() >= short);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| two.lock_timeout(LEASE, LEASE).map(|guard| guard.unlock()));
            thread::sleep(short);
            guard.unlock().unwrap();
            assert_eq!(waiter.join().unwrap().map_err(|_| ()), Ok(Ok(())));
        });
        // dropping one lock object does not take the lock from the other
        drop(one);
        two.try_lock(LEASE).unwrap().unlock().unwrap();
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
                        let guard = lock.write(LEASE).unwrap();
                        // a read and a write that only the lock makes one
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
        let (r1, r2) = (mine.try_read().unwrap(), mine.read().unwrap());
        let r3 = other.try_read().unwrap();
        assert_eq!(mine.try_write().unwrap_err(), Error::Held);
        assert_eq!(other.try_write().unwrap_err(), Error::Held);
        r1.unlock().unwrap();
        drop(r3);
        assert_eq!(other.try_write().unwrap_err(), Error::Held);
        r2.unlock().unwrap();
        let writer = other.write().unwrap();
        assert_eq!(writer.mode(), Mode::Exclusive);
        let short = Duration::from_millis(30);
        assert_eq!(mine.read_timeout(short).unwrap_err(), Error::TimedOut);
        assert_eq!(mine.try_read().unwrap_err(), Error::Held);
        writer.unlock().unwrap();
        mine.try_write().unwrap().unlock().unwrap();
    }
}

#[test]
fn a_fair_lock_that_was_not_granted_leaves_no_ticket_behind() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (client(&server, fabric), client(&server, fabric));
        let (mine, other) = (a.fair_lock("fair").unwrap(), b.fair_lock("fair").unwrap());
        let guard = mine.try_write(LEASE).unwrap();
        let short = Duration::from_millis(30);
        assert_eq!(other.try_write(LEASE).unwrap_err(), Error::Held);
        assert_eq!(other.try_read(LEASE).unwrap_err(), Error::Held);
        assert_eq!(other.write_timeout(LEASE, short).unwrap_err(), Error::TimedOut);
        assert_eq!(other.read_timeout(LEASE, short).unwrap_err(), Error::TimedOut);
        guard.unlock().unwrap();
        mine.write(LEASE).unwrap().unlock().unwrap();
        common::eventually(60, "abandoned tickets are skipped at once", || {
            let guard = mine.try_write(LEASE).unwrap();
            assert_eq!(other.try_write(LEASE).unwrap_err(), Error::Held);
            let start = Instant::now();
            guard.unlock().unwrap();
            mine.write(LEASE).unwrap().unlock().unwrap();
            start.elapsed() < Duration::from_secs(1)
        });
        let r1 = mine.read(LEASE).unwrap();
        let r2 = other.read(LEASE).unwrap();
        assert_eq!(other.try_write(LEASE).unwrap_err(), Error::Held);
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
        assert_eq!(clone.try_lock(LEASE).unwrap().unlock(), Ok(()));
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
        let (r1, r2) = (mine.try_read(LEASE).unwrap(), other.read(LEASE).unwrap());
        assert_eq!((r1.mode(), r2.mode()), (Mode::Shared, Mode::Shared));
        assert_eq!(other.try_write(LEASE).unwrap_err(), Error::Held);
        r2.unlock().unwrap();
        assert_eq!(other.try_write(LEASE).unwrap_err(), Error::Held);
        r1.unlock().unwrap();
        let writer = other.write(LEASE).unwrap();
        assert_eq!(writer.mode(), Mode::Exclusive);
        assert_eq!(mine.try_read(LEASE).unwrap_err(), Error::Held);
        writer.unlock().unwrap();
        assert!(matches!(mine.try_read(Duration::ZERO), Err(Error::Invalid(_))));
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
        let mut guard = lock.try_lock_owned(LEASE).unwrap();
        assert_eq!(lock.try_lock_owned(LEASE).unwrap_err(), Error::Held);
        drop((lock, a)); // the guard is all there is
        assert_eq!(other.try_lock(LEASE).unwrap_err(), Error::Held);
        let thread = thread::spawn(move || {
            guard.extend(LEASE * 2).unwrap();
            guard.check().unwrap();
            guard.unlock()
        });
        assert_eq!(thread.join().unwrap(), Ok(()));
        drop(other.lock_owned(LEASE).unwrap());
        other.try_lock_owned(LEASE).unwrap().unlock().unwrap();
    }
}

#[test]
fn owned_guards_share_and_exclude_as_borrowed_ones_do() {
    let server = server();
    let short = Duration::from_millis(30);
    for fabric in fabrics() {
        let (a, b) = (client(&server, fabric), client(&server, fabric));
        let (mine, other) = (a.rw_lock("owned rw").unwrap(), b.rw_lock("owned rw").unwrap());
        let readers = [mine.try_read_owned().unwrap(), other.read_owned().unwrap()];
        assert_eq!(other.write_timeout_owned(short).unwrap_err(), Error::TimedOut);
        assert_eq!(readers.map(|reader| reader.unlock()), [Ok(()), Ok(())]);
        let writer = other.write_owned().unwrap();
        assert_eq!(mine.read_timeout_owned(short).unwrap_err(), Error::TimedOut);
        assert_eq!(
            (mine.try_write_owned().unwrap_err(), writer.mode()),
            (Error::Held, Mode::Exclusive)
        );
        drop(writer);
        let (mine, other) = (a.fair_lock("owned f").unwrap(), b.fair_lock("owned f").unwrap());
        let readers = [mine.try_read_owned(LEASE).unwrap(), other.read_owned(LEASE).unwrap()];
        assert_eq!(mine.try_write_owned(LEASE).unwrap_err(), Error::Held);
        assert_eq!(readers.map(|reader| reader.unlock()), [Ok(()), Ok(())]);
        let writer = other.write_timeout_owned(LEASE, LEASE).unwrap();
        assert_eq!(mine.read_timeout_owned(LEASE, short).unwrap_err(), Error::TimedOut);
        assert!(writer.deadline_s() > 0);
        drop(writer);
        mine.write_owned(LEASE).unwrap().unlock().unwrap();
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
        let guard = lock.try_lock(LEASE).unwrap();
        a.heartbeat(Duration::from_millis(10)).unwrap();
        a.reconnect("127.0.0.1").unwrap();
        a.clone().leave().unwrap();
        assert_eq!(guard.unlock(), Err(Error::Left));
        assert_eq!(lock.try_lock(LEASE).unwrap_err(), Error::Left);
        assert!(a.leave().is_err());
        let b = client(&server, fabric);
        b.atomic_lock("left").unwrap().try_lock(LEASE).unwrap().unlock().unwrap();
    }
}

/// Who gets a lock while another thread gives back the last reference to it has got it.
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
                        let held = lock.try_lock(LEASE).err();
                        assert!(matches!(held, None | Some(Error::Held)), "{fabric:?}: {held:?}");
                    }
                });
            }
        });
    }
}
