// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients with TLS whose data path runs over sealed queue pairs. On a machine without an RDMA
//! device these tests say so and do nothing; `DLOCK_RXE_REQUIRED=1` makes that a failure.

#[path = "../../dlock-server/tests/common/certs.rs"]
mod certs;
mod common;

use dlock_core::clock::Lease;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use certs::Ca;
use common::{desc, eventually, got, has_device, own_address, status, threads_lock, S, X};
use dlock_client::raw::{Instance, OpResult};
use dlock_client::{ClientConfig, FabricChoice, FabricKind, LockId, LockType, Status, Tls, TlsUse};
use dlock_core::rights::{Quotas, Right, Rule};
use dlock_server::{Server, ServerConfig, VerbsUse};
use Status::*;

const SEALED: FabricChoice = FabricChoice::Only(FabricKind::Sealed);

/// A primary with TLS on the device; `None`: there is none.
fn primary(ca: &Ca, config: ServerConfig) -> Option<Server> {
    let tls = Some(ca.tls("primary"));
    let verbs = if config.verbs == VerbsUse::Auto { VerbsUse::Sealed } else { config.verbs };
    let config = ServerConfig { port: 0, tls, verbs, ..config };
    has_device().then(|| Server::start(config).expect("the primary starts"))
}

fn init(addr: SocketAddr, tls: Tls, fabric: FabricChoice) -> Result<Instance, Status> {
    let config = ClientConfig { tls: TlsUse::With(tls), ..common::config(addr, fabric) };
    Instance::init(&config, &addr.ip().to_string())
}

fn join(server: &Server, tls: Tls) -> Instance {
    let instance = init(server.local_addr(), tls, SEALED).expect("the primary admits a client");
    assert_eq!(instance.fabric(), "sealed");
    instance
}

fn rule(name: &str, prefix: &str) -> Rule {
    let rights = [Right::LockShared, Right::LockExclusive, Right::Objects];
    let (names, prefixes) = (vec![format!("DNS:{name}")], vec![prefix.into()]);
    Rule { names, prefixes, rights: rights.into_iter().collect(), quotas: Quotas::default() }
}

#[test]
fn locks_of_all_kinds_batches_and_objects_work_and_exclude() {
    let ca = Ca::new("ours");
    let Some(server) = primary(&ca, ServerConfig::default()) else { return };
    let (a, b) = (join(&server, ca.tls("a")), join(&server, ca.tls("b")));
    for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
        let name = format!("{lock_type:?}");
        let (of_a, of_b) = (got(&a, &name, lock_type), got(&b, &name, lock_type));
        assert_eq!(status(a.trylock(of_a, X, 100)), Success, "{name}");
        assert_ne!(status(b.trylock(of_b, X, 100)), Success, "{name}");
        assert_eq!(status(a.unlock(of_a)), Success, "{name}");
        assert_eq!(status(b.lock(of_b, X, 100)), Success, "{name}");
        assert_eq!(status(b.unlock(of_b)), Success, "{name}");
    }
    let shared = got(&a, "shared", LockType::Rw);
    assert_eq!(status(a.lock(shared, S, 100)), Success);
    let object = a.object_create(b"counted", Lease::secs(100), 7).unwrap();
    assert_eq!(a.object_get(b"counted", Lease::secs(100)), Ok(object));
    assert_eq!((a.faa(object, 5), a.faa(object, 1)), (Ok(7), Ok(12)));
    let ids: Vec<LockId> = (0..31).map(|n| got(&a, &format!("n {n}"), LockType::Fair)).collect();
    let requests: Vec<_> = ids.iter().map(|&id| (id, X, 100)).collect();
    for _ in 0..20 {
        let mut results = vec![OpResult::of(Fail); ids.len()];
        assert_eq!(a.batch_trylock(&requests, &mut results), Success);
        assert!(results.iter().all(|result| result.status == Success), "{results:?}");
        results.fill(OpResult::of(Fail));
        assert_eq!(a.batch_unlock(&ids, &mut results), Success);
        assert!(results.iter().all(|result| result.status == Success), "{results:?}");
    }
    assert_eq!(a.reinit(&server.local_addr().ip().to_string()), Success);
    assert_eq!(a.fabric(), "sealed");
    assert_eq!(status(a.trylock(ids[0], X, 100)), Success, "after a reinit");
    assert_eq!((a.deinit(), b.deinit()), (Success, Success));
}

/// A waiter sleeps on the completion channel. It wakes at the grant, when the holder gives the lock
/// back or its session ends.
#[test]
fn a_waiter_is_granted_what_a_holder_gives_back_or_leaves_behind() {
    let ca = Ca::new("ours");
    let grace = Some(Duration::from_millis(200));
    let config = ServerConfig { absent_grace: grace, ..ServerConfig::default() };
    let Some(server) = primary(&ca, config) else { return };
    for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
        let (holder, waiter) = (join(&server, ca.tls("h")), join(&server, ca.tls("w")));
        let name = format!("{lock_type:?}");
        let (held, wanted) = (got(&holder, &name, lock_type), got(&waiter, &name, lock_type));
        for leaves in [false, true] {
            assert_eq!(status(holder.trylock(held, X, 1_000)), Success, "{name}");
            thread::scope(|scope| {
                let waits = scope.spawn(|| status(waiter.lock(wanted, X, 100)));
                // the waiter is queued by then, or still tries
                thread::sleep(Duration::from_millis(300));
                match leaves {
                    true => assert_eq!(holder.deinit(), Success),
                    false => assert_eq!(status(holder.unlock(held)), Success),
                }
                assert_eq!(waits.join().unwrap(), Success, "{name}, leaves: {leaves}");
            });
            assert_eq!(status(waiter.unlock(wanted)), Success, "{name}");
        }
    }
}

/// All threads of a client send on one path, and one of them reads for all. More requests are under
/// way than there is credit for.
#[test]
fn many_threads_share_one_path() {
    let ca = Ca::new("ours");
    let Some(server) = primary(&ca, ServerConfig::default()) else { return };
    let instance = Arc::new(join(&server, ca.tls("a")));
    threads_lock(&instance, 40, 25);
    assert_eq!(instance.fabric(), "sealed");
}

#[test]
fn auto_takes_shared_memory_where_it_may_and_else_the_sealed_path() {
    let ca = Ca::new("ours");
    let Some(server) = primary(&ca, ServerConfig::default()) else { return };
    let fabric = |server: &Server| {
        let client = init(server.local_addr(), ca.tls("a"), FabricChoice::Auto).unwrap();
        client.fabric()
    };
    assert!(server.offers().has(FabricKind::Sealed) && !server.offers().has(FabricKind::Verbs));
    if std::env::var_os("DLOCK_FABRIC").is_none() {
        assert_eq!(fabric(&server), "shm");
        let remote = ServerConfig { shm: false, ..ServerConfig::default() };
        assert_eq!(fabric(&primary(&ca, remote).unwrap()), "sealed");
    }
    let off = ServerConfig { verbs: VerbsUse::Off, shm: false, ..ServerConfig::default() };
    let off = primary(&ca, off).unwrap();
    assert!(!off.offers().has(FabricKind::Sealed));
    assert!(init(off.local_addr(), ca.tls("a"), SEALED).is_err());
}

/// With `VerbsUse::OneSided`, clients that may do everything can use one-sided verbs, and other
/// clients the sealed path.
#[test]
fn one_sided_verbs_are_for_those_who_may_do_everything() {
    let ca = Ca::new("ours");
    let rules = vec![rule("some", "s/"), rule("all", "")];
    let config = ServerConfig { verbs: VerbsUse::OneSided, rules, ..ServerConfig::default() };
    let Some(server) = primary(&ca, config) else { return };
    let addr = server.local_addr();
    let choice = |kind| FabricChoice::Only(kind);
    assert!(init(addr, ca.tls("some"), choice(FabricKind::Verbs)).is_err());
    let some = init(addr, ca.tls("some"), SEALED).unwrap();
    let all = init(addr, ca.tls("all"), choice(FabricKind::Verbs)).unwrap();
    assert_eq!((some.fabric(), all.fabric()), ("sealed", "verbs"));
    let (of_some, of_all) = (got(&some, "s/1", LockType::Fair), got(&all, "s/1", LockType::Fair));
    for _ in 0..50 {
        assert_eq!(status(some.lock(of_some, X, 100)), Success);
        assert_ne!(status(all.trylock(of_all, X, 100)), Success);
        assert_eq!(status(some.unlock(of_some)), Success);
        assert_eq!(status(all.lock(of_all, X, 100)), Success);
        assert_eq!(status(all.unlock(of_all)), Success);
    }
    assert_eq!(some.get_lock(desc("t/1", LockType::Atomic)).0, Denied);
    // a client over one-sided verbs is removed when it may no longer do everything; for one over
    // the sealed path, the primary refuses the calls that it may not make
    server.set_rules(vec![rule("some", "t/"), rule("all", "t/")]).unwrap();
    eventually(60, "it is removed", || status(all.trylock(of_all, X, 100)) != Success);
    assert_eq!(status(some.trylock(of_some, X, 100)), Denied);
    let allowed = got(&some, "t/1", LockType::Atomic);
    assert_eq!(status(some.trylock(allowed, X, 100)), Success);
}

#[test]
fn a_revoked_certificate_ends_the_sealed_session() {
    let ca = Ca::new("ours");
    if !has_device() {
        return;
    }
    let verbs = VerbsUse::Sealed;
    let tls = Some(ca.tls_with_list("primary"));
    let server = Server::start(ServerConfig { port: 0, tls, verbs, ..ServerConfig::default() });
    let server = server.expect("the primary starts");
    let (good, bad) = (join(&server, ca.tls("good")), join(&server, ca.tls("bad")));
    // a lock of this type has no lease that could end by itself
    let (of_good, of_bad) = (got(&good, "l", LockType::Rw), got(&bad, "l", LockType::Rw));
    assert_eq!(status(bad.trylock(of_bad, X, 8)), Success);
    assert_eq!(status(good.trylock(of_good, X, 8)), Fail);
    ca.revokes(&[ca.last_serial()]);
    server.reload_tls();
    eventually(60, "its hold is undone", || status(good.trylock(of_good, X, 100)) == Success);
    assert_ne!(status(bad.unlock(of_bad)), Success);
}

#[test]
fn a_client_finds_the_successor_and_keeps_what_it_holds() {
    let (ca, folder) = (Ca::new("ours"), Ca::new("state"));
    if !has_device() {
        return;
    }
    let start = |port: u16| {
        let state_file = Some(folder.folder().join("epoch"));
        let (bind, tls) = (own_address(), Some(ca.tls("primary")));
        let verbs = VerbsUse::Sealed;
        let config = ServerConfig { bind, port, state_file, tls, verbs, ..Default::default() };
        Server::start(config).expect("the primary starts")
    };
    let first = start(0);
    let addr = first.local_addr();
    let own = ClientConfig {
        primaries: Some(vec![addr.into()]),
        silence: Some(Duration::from_millis(200)),
        tls: TlsUse::With(ca.tls("a")),
        ..common::config(addr, SEALED)
    };
    let client = Instance::init_shared(&own, &addr.ip().to_string()).expect("it is let in");
    let id = client.get_lock(desc("l", LockType::Atomic)).1.unwrap();
    assert_eq!(status(client.trylock(id, X, 1_000)), Success);
    drop(first);
    let second = start(addr.port());
    eventually(60, "it is served by the successor", || {
        client.get_lock(desc("another", LockType::Atomic)).0 == Success
    });
    assert_eq!(client.fabric(), "sealed");
    let other = join(&second, ca.tls("b"));
    let of_other = got(&other, "l", LockType::Atomic);
    assert_eq!(status(other.trylock(of_other, X, 10)), Fail, "the lock was kept");
    assert_eq!(status(client.unlock(id)), Success);
    assert_eq!(status(other.trylock(of_other, X, 10)), Success);
}

/// When the primary ends, calls under way end at once, not at their deadline.
#[test]
fn the_end_of_the_primary_is_noticed_by_who_waits() {
    let ca = Ca::new("ours");
    let Some(server) = primary(&ca, ServerConfig::default()) else { return };
    let (holder, waiter) = (join(&server, ca.tls("h")), join(&server, ca.tls("w")));
    let (held, wanted) = (got(&holder, "l", LockType::Fair), got(&waiter, "l", LockType::Fair));
    assert_eq!(status(holder.trylock(held, X, 1_000)), Success);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_ne!(status(waiter.lock(wanted, X, 100)), Success);
            is_over.store(true, Ordering::SeqCst);
        });
        thread::sleep(Duration::from_millis(300));
        drop(server);
        eventually(60, "the waiter is told", || is_over.load(Ordering::SeqCst));
    });
}
