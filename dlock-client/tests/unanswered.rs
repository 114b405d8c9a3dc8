// SPDX-License-Identifier: MIT OR Apache-2.0
//! A release that was not answered: the primary may carry it out later, and give the lock's place
//! to another lock.

mod common;

use std::time::Duration;

use common::line::Line;
use common::{desc, eventually, fabrics, got, hash, own_address, status, ChildPrimary, X};
use dlock_client::raw::Instance;
use dlock_client::{Client, Config, Error, FabricChoice, LockType, Mode, Status::*, Wait};

/// Not a test by itself: the primary, in a child process that is stopped.
#[test]
fn child_that_serves_until_its_input_ends() {
    common::serve_as_child();
}

const TYPES: [LockType; 3] = [LockType::Atomic, LockType::Rw, LockType::Fair];

fn on_every_fabric(test: impl Fn(FabricChoice) + Sync) {
    std::thread::scope(|scope| {
        for fabric in fabrics() {
            let test = &test;
            scope.spawn(move || test(fabric));
        }
    });
}

#[test]
fn a_lock_whose_release_was_not_answered_is_got_again_before_it_is_used() {
    on_every_fabric(|fabric| {
        let primary = ChildPrimary::start("child_that_serves_until_its_input_ends");
        let join = || Instance::init(&primary.config(fabric), "127.0.0.1").unwrap();
        let (a, b) = (join(), join());
        let of_a = TYPES.map(|kind| got(&a, &format!("{kind:?}"), kind));
        primary.freeze();
        let mut ids = of_a.map(|id| id.0);
        assert_eq!(a.batch_release_lock(&mut ids), BadResponse);
        primary.thaw();
        assert_eq!(ids, of_a.map(|id| id.0), "they can be released again");
        // the primary has carried a's release out before it answers a's next request
        let new = got(&a, "new", LockType::Fair);
        for (kind, old) in TYPES.into_iter().zip(of_a) {
            let why = format!("{fabric:?} {kind:?}");
            let of_b = got(&b, &format!("{kind:?}"), kind);
            assert_eq!(status(b.trylock(of_b, X, 600)), Success, "{why}");
            assert_eq!(status(a.trylock(old, X, 600)), LockNotGet, "{why}");
            assert_eq!(status(a.unlock(old)), LockNotGet, "{why}");
            let (said, again) = a.get_lock(desc(&format!("{kind:?}"), kind));
            assert_eq!(said, Success, "{why}");
            let again = again.expect("its id");
            assert!(matches!(status(a.trylock(again, X, 600)), Fail | Again), "{why}");
            assert_eq!(status(b.unlock(of_b)), Success, "{why}");
        }
        assert_eq!(status(a.trylock(new, X, 600)), Success, "{fabric:?}: nobody else has taken it");
    });
}

#[test]
fn a_lock_whose_release_was_not_answered_can_be_released_again() {
    on_every_fabric(|fabric| {
        let primary = ChildPrimary::start("child_that_serves_until_its_input_ends");
        let a = Instance::init(&primary.config(fabric), "127.0.0.1").unwrap();
        let id = got(&a, "lock", LockType::Fair);
        assert_eq!(status(a.trylock(id, X, 600)), Success);
        assert_eq!(status(a.unlock(id)), Success);
        primary.freeze();
        assert_eq!(a.release_lock(id), BadResponse);
        primary.thaw();
        assert_eq!(a.release_lock(id), Success, "{fabric:?}");
        assert_eq!(status(a.trylock(id, X, 600)), LockNotGet);
        let id = got(&a, "lock", LockType::Fair);
        assert_eq!(status(a.trylock(id, X, 600)), Success, "{fabric:?}");
    });
}

#[test]
fn a_lock_object_that_was_dropped_without_an_answer_and_made_anew_guards_the_same_lock() {
    on_every_fabric(|fabric| {
        let primary = ChildPrimary::start("child_that_serves_until_its_input_ends");
        // without a horizon, the session lasts while the primary stands still
        let config = Config::new().port(primary.port).fabric(fabric).without_horizon();
        let connect = || Client::with_config(&config, "127.0.0.1").unwrap();
        let (a, b) = (connect(), connect());
        let lock = a.atomic_lock("lock").unwrap();
        drop(
            lock.acquire(Mode::Exclusive)
                .lease(Duration::from_secs(60))
                .wait(Wait::No)
                .guard()
                .unwrap(),
        );
        primary.freeze();
        drop(lock); // the release is not answered, which is logged
        primary.thaw();
        let mut of_b = None;
        eventually(60, "got", || {
            of_b = b.atomic_lock("lock").ok();
            of_b.is_some()
        });
        let of_b = of_b.expect("it was got");
        let guard = of_b
            .acquire(Mode::Exclusive)
            .lease(Duration::from_secs(60))
            .wait(Wait::No)
            .guard()
            .unwrap();
        let of_a = a.atomic_lock("lock").unwrap();
        assert!(
            matches!(
                of_a.acquire(Mode::Exclusive).lease(Duration::from_secs(60)).wait(Wait::No).guard(),
                Err(Error::Held)
            ),
            "{fabric:?}"
        );
        drop(guard);
        assert!(
            of_a.acquire(Mode::Exclusive)
                .lease(Duration::from_secs(60))
                .wait(Wait::No)
                .guard()
                .is_ok(),
            "{fabric:?}"
        );
    });
}

/// The primary keeps the lock until it gets the repeated release. Until then, a lock with another
/// name of the same hash does not get its id.
#[test]
fn a_release_that_the_primary_never_saw_is_sent_when_it_is_repeated() {
    let (one, two) = ("aB", "b!");
    assert_eq!(hash(one), hash(two));
    for fabric in fabrics() {
        let primary = ChildPrimary::start("child_that_serves_until_its_input_ends");
        let line = Line::to(primary.port);
        let a = Instance::init(&primary.config(fabric), &own_address().to_string()).unwrap();
        let lock = got(&a, one, LockType::Atomic);
        line.cut();
        assert_eq!(a.release_lock(lock), BadResponse, "{fabric:?}");
        assert_eq!(a.reinit("127.0.0.1"), Success, "{fabric:?}");
        assert_eq!(status(a.trylock(lock, X, 5)), LockNotGet);
        assert_eq!(a.release_lock(lock), Success, "{fabric:?}");
        let b = Instance::init(&primary.config(fabric), "127.0.0.1").unwrap();
        assert_eq!(got(&b, two, LockType::Atomic).0, hash(two), "{fabric:?}: the id is free");
    }
}
