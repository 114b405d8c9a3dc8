// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lock whose release was not answered, or that was not claimed, may have another id at the
//! primary when the client gets it again. The client still has one lock of each name, under its
//! first id.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::{address_of_thread, desc, fabrics, got, hash, server_at, status, ChildPrimary, X};
use dlock_client::raw::Instance;
use dlock_client::{ClientConfig, FabricChoice, LockId, LockType, Mode, Status::*, Wait};
use dlock_server::{Server, ServerConfig};

/// Not a test by itself: the primary, in a child process that is stopped.
#[test]
fn child_that_serves_until_its_input_ends() {
    common::serve_as_child();
}

/// The beginning of names whose hash is not positive. The primary counts the ids of locks with such
/// names, so a lock that is made anew has another id.
const NAME: &str = "zzzzzzz1";

fn name() -> String {
    (0..).map(|i| format!("{NAME}{i}")).find(|name| hash(name) <= 0).unwrap()
}

fn join(port: u16, fabric: FabricChoice) -> Instance {
    let config = ClientConfig { port, fabric, horizon_s: Some(0), ..Default::default() };
    Instance::init(&config, "127.0.0.1").unwrap()
}

/// A successor of the primary that has died, where the client has claimed its locks.
fn succeeded(port: u16, a: &Instance) -> Server {
    let second = server_at(port, ServerConfig { recovery_clients: 1, ..Default::default() });
    assert_eq!(a.reinit("127.0.0.1"), Success);
    assert_eq!(a.update_all_locks(), Success);
    assert_eq!(a.reinit_done(), Success);
    second
}

/// A client with an unanswered release of its lock, which got the lock again, holds it, and has
/// claimed it at a successor. The ids are those before and after the release.
fn recovered(fabric: FabricChoice, kind: LockType) -> (Server, Instance, LockId, LockId) {
    let first = ChildPrimary::start("child_that_serves_until_its_input_ends");
    let port = first.port;
    let a = join(port, fabric);
    let old = got(&a, &name(), kind);
    first.freeze();
    assert_eq!(a.release_lock(old), BadResponse);
    first.thaw();
    let new = got(&a, &name(), kind);
    assert_eq!(old, new, "it has another id at the primary, and is known by its old one");
    assert_eq!(status(a.trylock(new, X, 600)), Success);
    drop(first);
    (succeeded(port, &a), a, old, new)
}

fn nobody_else_gets_it(port: u16, fabric: FabricChoice, kind: LockType, a: &Instance, new: LockId) {
    let b = join(port, fabric);
    let of_b = b.get_lock(desc(&name(), kind)).1.unwrap();
    let of_b = status(b.trylock(of_b, X, 600));
    let of_a = status(a.unlock(new));
    assert_ne!(of_b, Success, "{fabric:?} {kind:?}: two holders; a's unlock says {of_a:?}");
    assert_eq!(of_a, Success, "{fabric:?} {kind:?}");
}

fn on_all(test: impl Fn(FabricChoice, LockType) + Sync) {
    std::thread::scope(|scope| {
        for fabric in fabrics() {
            for kind in [LockType::Atomic, LockType::Rw] {
                let test = &test;
                scope.spawn(move || test(fabric, kind));
            }
        }
    });
}

#[test]
fn a_hold_survives_the_next_reconnection_whatever_was_released_before_without_an_answer() {
    on_all(|fabric, kind| {
        let (second, a, _old, new) = recovered(fabric, kind);
        // as if the connection had been lost for a moment
        assert_eq!(a.reinit("127.0.0.1"), Success);
        let port = second.local_addr().port();
        nobody_else_gets_it(port, fabric, kind, &a, new);
    });
}

#[test]
fn a_hold_survives_the_repetition_of_a_release_of_its_old_id() {
    on_all(|fabric, kind| {
        let (second, a, old, new) = recovered(fabric, kind);
        assert_eq!(a.release_lock(old), Error, "{fabric:?} {kind:?}: it is held");
        let port = second.local_addr().port();
        nobody_else_gets_it(port, fabric, kind, &a, new);
    });
}

fn own(port: u16, recovery_clients: u32) -> Server {
    let config =
        ServerConfig { bind: common::address_of_thread(), recovery_clients, ..Default::default() };
    server_at(port, config)
}

/// Here each release is answered. A lock that was not claimed at a successor is got anew there,
/// under another id, as `unclaimed.rs` allows. Then the next successor hears of the lock.
#[test]
fn a_lock_that_was_got_anew_is_not_claimed_twice_at_the_next_successor() {
    on_all(|fabric, kind| {
        let ip = common::address_of_thread().to_string();
        let first = own(0, 0);
        let port = first.local_addr().port();
        let config = ClientConfig { port, fabric, horizon_s: Some(0), ..Default::default() };
        let a = Instance::init(&config, &ip).unwrap();
        got(&a, "aaaaaaaaaaa", kind); // so that the ids are counted differently at the successor
        let old = got(&a, &name(), kind);
        assert_eq!(status(a.trylock(old, X, 600)), Success);
        drop(first);
        let second = own(port, 1);
        assert_eq!(a.reinit(&ip), Success);
        assert_eq!(a.reinit_done(), Success); // `update_all_locks` was left out
        let b = Instance::init(&config, &ip).unwrap();
        // locks of another client take the ids that were in use before
        let others = (0..).map(|i| format!("b{NAME}{i}")).filter(|name| hash(name) <= 0);
        for name in others.take(4) {
            got(&b, &name, kind);
        }
        let new = got(&a, &name(), kind);
        assert_eq!(old, new);
        assert_eq!(status(a.extend(new, X, 600)), lost(kind), "the hold was lost");
        if kind == LockType::Rw {
            assert_eq!(status(a.trylock(new, X, 600)), Fail, "the hold was lost");
        }
        assert_eq!(status(a.trylock(new, X, 600)), Success);
        drop(second);
        let _third = own(port, 1);
        assert_eq!(a.reinit(&ip), Success);
        assert_eq!(a.update_all_locks(), Success);
        assert_eq!(a.reinit_done(), Success);
        let c = Instance::init(&config, &ip).unwrap();
        let of_c = got(&c, &name(), kind);
        let of_c = status(c.trylock(of_c, X, 600));
        assert_eq!((of_c, status(a.unlock(new))), (Fail, Success), "{fabric:?} {kind:?}");
    });
}

/// The status of an extend of a hold that was lost. A hold of a read-write lock cannot be extended
/// at all.
fn lost(kind: LockType) -> dlock_client::Status {
    if kind == LockType::Rw {
        Invalid
    } else {
        Fail
    }
}

/// A lock object whose lock was not claimed, and whose id belongs to another lock at the successor.
#[test]
fn a_lock_object_never_stands_for_a_lock_of_another_name() {
    use dlock_client::{Client, Config};
    use std::time::Duration;
    for fabric in fabrics() {
        let ip = common::address_of_thread().to_string();
        let first = own(0, 0);
        let port = first.local_addr().port();
        let config = Config::new().port(port).fabric(fabric).without_horizon();
        let connect = || Client::with_config(&config, &ip).unwrap();
        let lease = Duration::from_secs(60);
        let a = connect();
        let lock_a = a.atomic_lock(name()).unwrap();
        drop(first);
        let _second = own(port, 1);
        a.reconnect(&ip).unwrap();
        assert_eq!(a.instance().reinit_done(), Success); // `update_all_locks` was left out
        let b = connect();
        let other = (0..).map(|i| format!("b{NAME}{i}")).find(|name| hash(name) <= 0).unwrap();
        // this lock has the id that `lock_a` had
        let _of_b = b.atomic_lock(other.as_str()).unwrap();
        let of_b = b.atomic_lock(name()).unwrap();
        let _guard = of_b.acquire(Mode::Exclusive).lease(lease).wait(Wait::No).guard().unwrap();
        assert!(
            lock_a.acquire(Mode::Exclusive).lease(lease).wait(Wait::No).guard().is_err(),
            "{fabric:?}: it was not claimed"
        );
        let _other = a.atomic_lock(other.as_str());
        assert!(
            lock_a.acquire(Mode::Exclusive).lease(lease).wait(Wait::No).guard().is_err(),
            "{fabric:?}: b holds the lock of that name"
        );
    }
}

/// Other threads operate on locks of their own, so the entries of these locks are in use most of
/// the time.
#[test]
fn a_new_lock_is_got_after_a_failover_whatever_threads_do_with_other_locks() {
    for fabric in fabrics() {
        let (ip, bind) = (address_of_thread().to_string(), address_of_thread());
        let first = server_at(0, ServerConfig { bind, ..Default::default() });
        let port = first.local_addr().port();
        let config = ClientConfig { port, fabric, horizon_s: Some(0), ..Default::default() };
        let a = Instance::init(&config, &ip).unwrap();
        let own = ["a", "b", "c", "d"].map(|name| got(&a, name, LockType::Rw));
        drop(first);
        let _second =
            server_at(port, ServerConfig { bind, recovery_clients: 1, ..Default::default() });
        assert_eq!(a.reinit(&ip), Success);
        assert_eq!(a.update_all_locks(), Success);
        assert_eq!(a.reinit_done(), Success);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for lock in own {
                let (a, stop) = (&a, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        assert_eq!(status(a.trylock(lock, X, 600)), Success);
                        assert_eq!(status(a.unlock(lock)), Success);
                    }
                });
            }
            let new = |i| a.get_lock(desc(&format!("new{i}"), LockType::Atomic)).0;
            let refused = (0..20).map(new).find(|&status| status != Success);
            stop.store(true, Ordering::Relaxed);
            assert_eq!(refused, None, "{fabric:?}");
        });
    }
}

/// The names have counted ids, and a successor counts from the start, so another lock may get the
/// id of the first.
#[test]
fn another_lock_with_the_id_of_one_that_was_left_is_got_beside_it() {
    let names: Vec<_> =
        (0..).map(|i| format!("{NAME}{i}")).filter(|name| hash(name) <= 0).take(3).collect();
    on_all(|fabric, kind| {
        let mut first = ChildPrimary::start("child_that_serves_until_its_input_ends");
        let port = first.port;
        let a = join(port, fabric);
        let left = got(&a, &names[0], kind);
        first.kill();
        assert_eq!(a.release_lock(left), BadResponse);
        let _second = succeeded(port, &a);
        let others = [&names[1], &names[2]].map(|name| got(&a, name, kind));
        assert!(!others.contains(&left), "{others:?}");
        for other in others {
            assert_eq!(status(a.trylock(other, X, 600)), Success);
        }
        assert_eq!(status(a.trylock(left, X, 600)), LockNotGet);
        assert_eq!(a.release_lock(left), Success);
        let b = join(port, fabric);
        for (name, other) in [&names[1], &names[2]].into_iter().zip(others) {
            assert_ne!(status(b.trylock(got(&b, name, kind), X, 5)), Success, "it is held");
            assert_eq!(status(a.unlock(other)), Success);
            assert_eq!(a.release_lock(other), Success);
        }
        assert_eq!(a.release_lock(got(&a, &names[0], kind)), Success);
    });
}

/// The primary has carried the release out, and gives the id to a lock with another name of the
/// same hash.
#[test]
fn a_lock_that_has_got_the_id_of_one_that_was_left_is_not_released_with_it() {
    let (one, two) = ("aB", "b!");
    assert_eq!(hash(one), hash(two));
    on_all(|fabric, kind| {
        let primary = ChildPrimary::start("child_that_serves_until_its_input_ends");
        let (a, b) = (join(primary.port, fabric), join(primary.port, fabric));
        let left = got(&a, one, kind);
        primary.freeze();
        assert_eq!(a.release_lock(left), BadResponse);
        primary.thaw();
        let of_b = got(&b, two, kind);
        let other = got(&a, two, kind);
        assert_ne!(other, left);
        assert_eq!(status(a.trylock(other, X, 600)), Success);
        assert_eq!(status(a.trylock(left, X, 600)), LockNotGet);
        assert_eq!(a.release_lock(left), Success);
        assert_ne!(status(b.trylock(of_b, X, 5)), Success, "it is held");
        let again = got(&a, one, kind);
        assert_eq!(status(a.trylock(again, X, 600)), Success);
        for lock in [again, other] {
            assert_eq!(status(a.unlock(lock)), Success);
            assert_eq!(a.release_lock(lock), Success);
        }
    });
}

/// A batch of releases that was not answered is repeated after the failover, and releases all of
/// its locks.
#[test]
fn a_batch_release_after_a_failover_releases_what_was_left_and_the_others() {
    on_all(|fabric, kind| {
        let mut first = ChildPrimary::start("child_that_serves_until_its_input_ends");
        let port = first.port;
        let a = join(port, fabric);
        let [left, other] = ["left", "other"].map(|name| got(&a, name, kind));
        first.kill();
        assert_eq!(a.batch_release_lock(&mut [left.0]), BadResponse);
        let _second = succeeded(port, &a);
        let mut ids = [left.0, other.0];
        assert_eq!(a.batch_release_lock(&mut ids), Success);
        assert_eq!(ids, [left.0, other.0]);
        assert_eq!(status(a.trylock(other, X, 5)), LockNotGet);
    });
}

/// A claim would make the successor keep the lock for a client that has released it.
#[test]
fn a_lock_that_was_left_is_not_claimed() {
    let (one, two) = ("aB", "b!");
    on_all(|fabric, kind| {
        let mut first = ChildPrimary::start("child_that_serves_until_its_input_ends");
        let port = first.port;
        let a = join(port, fabric);
        let left = got(&a, one, kind);
        first.kill();
        assert_eq!(a.release_lock(left), BadResponse);
        let _second = succeeded(port, &a);
        let b = join(port, fabric);
        assert_eq!(got(&b, two, kind).0, hash(two), "its id is free for a name of the same hash");
    });
}
