// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules, revocation and rotation of certificates, with real clients at a real primary.

#[path = "../../dlock-server/tests/common/certs.rs"]
mod certs;
mod common;

use dlock_core::clock::Lease;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;
use std::thread;

use certs::Ca;
use common::{desc, eventually, got, server_at, status, S, X};
use dlock_client::raw::Instance;
use dlock_client::{ClientConfig, FabricChoice, LockType, Status, Tls, TlsUse};
use dlock_core::rights::{Quotas, Right, Rule};
use dlock_server::{Server, ServerConfig};
use Status::*;

const ALL: [Right; 3] = [Right::LockShared, Right::LockExclusive, Right::Objects];

fn rule(name: &str, prefix: &str, rights: &[Right]) -> Rule {
    let (names, prefixes) = (vec![format!("DNS:{name}")], vec![prefix.into()]);
    Rule { names, prefixes, rights: rights.iter().copied().collect(), quotas: Quotas::default() }
}

fn ruled(ca: &Ca, rules: Vec<Rule>) -> Server {
    let tls = Some(ca.tls("primary"));
    server_at(0, ServerConfig { tls, rules, ..ServerConfig::default() })
}

fn init(addr: SocketAddr, tls: Tls, fabric: FabricChoice) -> Result<Instance, Status> {
    let config = ClientConfig { tls: TlsUse::With(tls), ..common::config(addr, fabric) };
    Instance::init(&config, &addr.ip().to_string())
}

fn join(server: &Server, tls: Tls) -> Instance {
    init(server.local_addr(), tls, FabricChoice::Tcp).expect("it is let in")
}

#[test]
fn each_client_does_what_its_rules_give_and_is_denied_the_rest() {
    let ca = Ca::new("ours");
    let rules = vec![
        rule("reader", "orders/", &[Right::LockShared]),
        rule("writer", "orders/", &[Right::LockExclusive]),
        rule("writer", "counts/", &[Right::Objects]),
    ];
    let server = ruled(&ca, rules);
    let addr = server.local_addr();
    let stranger = init(addr, ca.tls("stranger"), FabricChoice::Tcp);
    assert_eq!(stranger.map(drop), Err(Denied));
    let (reader, writer) = (join(&server, ca.tls("reader")), join(&server, ca.tls("writer")));
    for lock_type in [LockType::Rw, LockType::Fair] {
        let name = format!("orders/{lock_type:?}");
        let (of_reader, of_writer) =
            (got(&reader, &name, lock_type), got(&writer, &name, lock_type));
        assert_eq!(status(reader.trylock(of_reader, X, 100)), Denied, "{name}");
        assert_eq!(status(reader.lock(of_reader, X, 100)), Denied, "{name}");
        assert_eq!(status(writer.lock(of_writer, S, 100)), Denied, "{name}");
        assert_eq!(status(reader.lock(of_reader, S, 100)), Success, "{name}");
        assert_eq!(status(reader.unlock(of_reader)), Success, "{name}");
        assert_eq!(status(writer.lock(of_writer, X, 100)), Success, "{name}");
        assert_eq!(status(writer.unlock(of_writer)), Success, "{name}");
    }
    let atomic = got(&reader, "orders/atomic", LockType::Atomic);
    assert_eq!(status(reader.trylock(atomic, X, 100)), Denied);
    assert_eq!(status(reader.lock(atomic, X, 100)), Denied);
    let of_writer = got(&writer, "orders/atomic", LockType::Atomic);
    assert_eq!(status(writer.trylock(of_writer, X, 100)), Success);
    assert_eq!(reader.get_lock(desc("counts/1", LockType::Rw)).0, Denied);
    assert_eq!(reader.object_create(b"counts/1", Lease::secs(100), 7), Err(Denied));
    let object = writer.object_create(b"counts/1", Lease::secs(100), 7).unwrap();
    assert_eq!(writer.object_get(b"counts/1", Lease::secs(100)), Ok(object));
    assert_eq!(writer.faa(object, 1), Ok(7));
    assert_eq!(writer.object_create(b"orders/1", Lease::secs(100), 7), Err(Denied));
    // without its rule, a client may give its holds back, but not take or extend them
    server.set_rules(vec![rule("reader", "", &ALL)]).unwrap();
    assert_eq!(status(writer.extend(of_writer, X, 200)), Denied);
    assert_eq!(writer.faa(object, 1), Err(Denied));
    assert_eq!(status(writer.unlock(of_writer)), Success);
    assert_eq!(status(writer.trylock(of_writer, X, 100)), Denied);
    assert_eq!(status(reader.trylock(atomic, X, 100)), Success);
}

#[test]
fn shared_memory_is_offered_to_who_may_do_everything_alone() {
    if common::on_verbs() {
        return; // a primary on a device offers no shared memory
    }
    let ca = Ca::new("ours");
    let server = ruled(&ca, vec![rule("some", "s/", &ALL), rule("all", "", &ALL)]);
    let addr = server.local_addr();
    let fabric = |name: &str| init(addr, ca.tls(name), FabricChoice::Auto).unwrap();
    let (some, all) = (fabric("some"), fabric("all"));
    assert_eq!((some.fabric(), all.fabric()), ("tcp", "shm"));
    assert!(init(addr, ca.tls("some"), FabricChoice::from(dlock_client::FabricKind::Shm)).is_err());
    let lock = got(&all, "s/1", LockType::Rw);
    assert_eq!(status(all.trylock(lock, X, 100)), Success);
    // a client that maps the memory is removed when it may no longer do everything
    server.set_rules(vec![rule("some", "s/", &ALL), rule("all", "s/", &ALL)]).unwrap();
    eventually(60, "its chains are refused", || status(all.unlock(lock)) != Success);
}

#[test]
fn a_revoked_client_is_removed_with_its_locks_and_the_others_go_on() {
    let ca = Ca::new("ours");
    let tls = Some(ca.tls_with_list("primary"));
    let server = server_at(0, ServerConfig { tls, ..ServerConfig::default() });
    let good = join(&server, ca.tls("good"));
    let bad_tls = ca.tls("bad");
    let serial = ca.last_serial();
    let bad = join(&server, bad_tls.clone());
    let (of_bad, of_good) = (got(&bad, "l", LockType::Rw), got(&good, "l", LockType::Rw));
    assert_eq!(status(bad.trylock(of_bad, X, 100)), Success);
    assert_eq!(status(good.trylock(of_good, X, 100)), Fail);
    ca.revokes(&[]);
    server.reload_tls();
    assert_eq!(bad.heartbeat(10), Success, "a new list that does not name it");
    ca.revokes(&[serial]);
    server.reload_tls();
    eventually(60, "its lock is free", || status(good.trylock(of_good, X, 100)) == Success);
    assert_ne!(status(bad.unlock(of_bad)), Success);
    assert_eq!(init(server.local_addr(), bad_tls, FabricChoice::Tcp).map(drop), Err(Error));
    assert_eq!(status(good.unlock(of_good)), Success);
    // a new certificate of the same name is let in
    assert_eq!(join(&server, ca.tls("bad")).heartbeat(10), Success);
}

#[test]
fn a_certificate_that_is_rotated_under_load_loses_no_lock() {
    let ca = Ca::new("ours");
    let primary = ca.tls_with_list("primary");
    let rules = vec![rule("worker", "", &ALL), rule("other", "", &ALL)];
    let config = ServerConfig { tls: Some(primary), rules, ..ServerConfig::default() };
    let server = server_at(0, config);
    let worker_tls = ca.tls("worker");
    let mut serials = vec![ca.last_serial()];
    let worker = Arc::new(join(&server, worker_tls.clone()));
    let other = join(&server, ca.tls("other"));
    let held = got(&worker, "held", LockType::Rw);
    assert_eq!(status(worker.lock(held, X, 1_000)), Success);
    let others = got(&other, "held", LockType::Rw);
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let threads: Vec<_> = (0..4)
        .map(|n| {
            let (worker, stop, done) = (worker.clone(), stop.clone(), done.clone());
            thread::spawn(move || {
                let id = got(&worker, &format!("of {n}"), LockType::Fair);
                while !stop.load(Ordering::Relaxed) {
                    // a call whose answer a reinit has cut off is repeated
                    let until = |act: &dyn Fn() -> Status, ends: [Status; 2]| loop {
                        match act() {
                            BadResponse => {}
                            end => return assert!(ends.contains(&end), "{end:?}"),
                        }
                    };
                    until(&|| status(worker.lock(id, X, 100)), [Success, AlreadyLocked]);
                    until(&|| status(worker.unlock(id)), [Success, AlreadyUnlocked]);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for _ in 0..5 {
        // client and primary get new certificates, and the old ones of the client are revoked
        ca.issue("worker");
        let fresh = ca.last_serial();
        worker_tls.reload().unwrap();
        assert_eq!(worker.reinit(&server.local_addr().ip().to_string()), Success);
        ca.issue("primary");
        ca.revokes(&serials);
        server.reload_tls();
        serials.push(fresh);
        let before = done.load(Ordering::Relaxed);
        eventually(60, "it works on", || done.load(Ordering::Relaxed) > before + 20);
        assert_ne!(status(other.trylock(others, X, 100)), Success, "it is held");
    }
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(status(worker.unlock(held)), Success);
    assert_eq!(status(other.trylock(others, X, 100)), Success);
}
