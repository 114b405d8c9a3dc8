// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs act while the library finds the successor of their primary: they end guards, and some
//! recover by hand at the same time.

mod common;

use std::time::Duration;

use common::site::{by_itself, Site};
use common::{config, eventually, fabrics, got, status, X};
use dlock_client::raw::Instance;
use dlock_client::{Client, Config, FabricChoice, FabricKind, LockId, LockType, Mode, Status::*};

const LEASE: Duration = Duration::from_secs(600);
const WAIT: Duration = Duration::from_secs(20);

fn client(site: &Site, fabric: FabricChoice) -> Client {
    let config = Config::new().port(site.port).fabric(fabric).primaries([site.address()]);
    let config = config.silence(Duration::from_millis(200)).without_horizon();
    Client::with_config(&config, &site.address().ip().to_string()).unwrap()
}

/// A guard ends before its client is at the successor, or while the successor waits for another
/// client. Its hold ends in both cases.
#[test]
fn a_guard_that_ends_during_a_failover_releases_its_lock() {
    for fabric in fabrics() {
        let mut site = Site::new(&format!("guard-{}", fabric.name()));
        for recovers in [false, true] {
            let why = format!("{}, recovers: {recovers}", fabric.name());
            let (a, b) = (client(&site, fabric), client(&site, fabric));
            let (atomic, rw, fair) =
                (a.atomic_lock("a").unwrap(), a.rw_lock("r").unwrap(), a.fair_lock("f").unwrap());
            let (atomic_b, rw_b, fair_b) =
                (b.atomic_lock("a").unwrap(), b.rw_lock("r").unwrap(), b.fair_lock("f").unwrap());
            let guards = (
                atomic.acquire(Mode::Exclusive).lease(LEASE).guard().unwrap(),
                rw.acquire(Mode::Exclusive).guard().unwrap(),
                fair.acquire(Mode::Exclusive).lease(LEASE).guard().unwrap(),
            );
            // a client that comes back by hand, and for which the successor waits
            let ip = site.address().ip().to_string();
            let late = Instance::init(&config(site.address(), fabric), &ip).unwrap();
            if recovers {
                got(&late, "late", LockType::Atomic);
            }
            site.stop();
            if recovers {
                site.start();
                eventually(60, "both are back", || site.clients() == 2);
            }
            let _ = (guards.0.unlock(), guards.1.unlock(), guards.2.unlock());
            if recovers {
                assert_eq!(late.reinit(&ip), Success);
                assert_eq!((late.update_all_locks(), late.reinit_done()), (Success, Success));
            } else {
                site.start();
            }
            drop(atomic_b.acquire(Mode::Exclusive).lease(LEASE).wait(WAIT).guard().expect(&why));
            drop(rw_b.acquire(Mode::Exclusive).wait(WAIT).guard().expect(&why));
            drop(fair_b.acquire(Mode::Exclusive).lease(LEASE).wait(WAIT).guard().expect(&why));
            if !recovers {
                assert_eq!(late.reinit(&ip), Success);
            }
            assert_eq!(late.deinit(), Success);
            assert!(a.leave().is_ok() && b.leave().is_ok());
        }
    }
}

/// A program recovers by hand, in the right order. But the successor dies, too, and the library
/// still makes the claims at the next one when the program calls `reinit_done`.
#[test]
fn a_program_that_says_done_while_the_library_tells_its_locks_loses_none() {
    const LOCKS: usize = 1_000;
    let fabric = fabrics()[0];
    for ms in [0, 4, 8, 12, 16, 24] {
        let mut site = Site::new(&format!("by-hand-{ms}"));
        let ip = site.address().ip().to_string();
        let (a, b) = (site.client(fabric), site.client(fabric));
        let locks: Vec<LockId> =
            (0..LOCKS).map(|n| got(&a, &format!("lock {n}"), LockType::Atomic)).collect();
        let last = got(&b, &format!("lock {}", LOCKS - 1), LockType::Atomic);
        for &lock in &locks {
            assert_eq!(status(a.trylock(lock, X, 600)), Success);
        }
        site.stop();
        site.start();
        eventually(60, "it is back", || a.reinit(&ip) == Success);
        a.update_all_locks();
        site.stop();
        site.start();
        std::thread::sleep(Duration::from_millis(ms));
        a.reinit_done();
        eventually(60, "a is served", || status(a.extend(locks[0], X, 600)) == Success);
        eventually(60, "b is served", || status(b.trylock(last, X, 600)) == Fail);
        let lost = locks.iter().filter(|&&lock| status(a.extend(lock, X, 600)) != Success).count();
        assert_eq!(lost, 0, "after {ms} ms");
        assert_eq!([a.deinit(), b.deinit()], [Success; 2]);
    }
}

/// A program comes back by hand and then makes no claims: the library makes them.
#[test]
fn a_program_that_comes_back_by_hand_and_stops_there_is_recovered_by_the_library() {
    let fabric = FabricChoice::Only(FabricKind::Tcp);
    let mut site = Site::new("half");
    let at = site.address();
    let (a, b) = (by_itself(at, fabric), by_itself(at, fabric));
    let lock = got(&a, "half", LockType::Fair);
    got(&b, "half", LockType::Fair);
    assert_eq!(status(a.trylock(lock, X, 600)), Success);
    site.stop();
    site.start();
    eventually(60, "it is back", || a.reinit(&at.ip().to_string()) == Success);
    eventually(60, "b is served", || status(b.trylock(lock, X, 600)) == Again);
    assert_eq!(status(a.unlock(lock)), Success);
    assert_eq!(status(b.lock(lock, X, 600)), Success);
    assert_eq!([a.deinit(), b.deinit()], [Success; 2]);
}

/// A client leaves a primary that recovers. The primary refuses the call, but does not wait for the
/// client. Nor does the next primary, even if the first one ends before the client has unmapped its
/// memory.
#[test]
fn a_client_that_leaves_a_primary_that_recovers_is_not_waited_for_by_the_next() {
    for fabric in fabrics() {
        let mut site = Site::new(&format!("leaver-{}", fabric.name()));
        let ip = site.address().ip().to_string();
        let late = Instance::init(&config(site.address(), fabric), &ip).unwrap();
        let leaver = site.client(fabric);
        for client in [&late, &*leaver] {
            let lock = got(client, "leaver", LockType::Atomic);
            let _ = client.trylock(lock, X, 600);
        }
        site.stop();
        let left = std::thread::spawn(move || leaver.deinit());
        site.start();
        left.join().unwrap(); // the call may have any answer
        site.stop();
        site.start();
        assert_eq!(late.reinit(&ip), Success);
        assert_eq!((late.update_all_locks(), late.reinit_done()), (Success, Success));
        let why = format!("nobody else is waited for, over {}", fabric.name());
        eventually(60, &why, || late.heartbeat(5) == Success);
        assert_eq!(late.deinit(), Success);
    }
}
