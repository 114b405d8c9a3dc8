// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients with TLS over tcp: all their calls, and the clients that are refused.

#[path = "../../dlock-server/tests/common/certs.rs"]
mod certs;
mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use certs::Ca;
use common::{desc, eventually, got, own_address, server_at, status, threads_lock, X};
use dlock_client::raw::{Instance, OpResult};
use dlock_client::{Client, ClientConfig, Config, FabricChoice, LockType, Status, Tls, TlsUse};
use dlock_server::{Server, ServerConfig};
use Status::*;

fn secured(ca: &Ca) -> Server {
    server_at(0, ServerConfig { tls: Some(ca.tls("primary")), ..ServerConfig::default() })
}

fn config(addr: SocketAddr, tls: TlsUse) -> ClientConfig {
    ClientConfig { tls, ..common::config(addr, FabricChoice::Tcp) }
}

fn join(server: &Server, tls: Tls) -> Instance {
    let addr = server.local_addr();
    let instance = Instance::init(&config(addr, TlsUse::With(tls)), &addr.ip().to_string());
    let instance = instance.expect("the primary admits a client");
    assert_eq!(instance.fabric(), "tcp");
    instance
}

#[test]
fn locks_of_all_kinds_batches_and_objects_work_and_exclude() {
    let ca = Ca::new("ours");
    let server = secured(&ca);
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
    let ids: Vec<_> = (0..31).map(|n| got(&a, &format!("n {n}"), LockType::Atomic)).collect();
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
    assert_eq!(status(a.trylock(ids[0], X, 100)), Success, "after a reinit");
    assert_eq!((a.deinit(), b.deinit()), (Success, Success));
}

/// All threads of a client send on one connection, and one of them reads for all.
#[test]
fn many_threads_share_one_connection() {
    let ca = Ca::new("ours");
    let server = secured(&ca);
    let instance = Arc::new(join(&server, ca.tls("a")));
    threads_lock(&instance, 8, 200);
}

#[test]
fn who_has_no_or_another_certificate_is_refused_and_the_primary_serves_on() {
    let (ca, other) = (Ca::new("ours"), Ca::new("theirs"));
    let server = secured(&ca);
    let addr = server.local_addr();
    let mut of_another_ca = other.issue("stranger");
    of_another_ca.ca = ca.folder().join("ca.pem");
    for tls in [
        TlsUse::Off,
        TlsUse::With(certs::load(of_another_ca)),
        TlsUse::With(other.tls("distrustful")),
    ] {
        let refused = Instance::init(&config(addr, tls), &addr.ip().to_string());
        assert_eq!(refused.map(drop), Err(Status::Error));
    }
    // a client with TLS at a primary without TLS
    let plain = server_at(0, ServerConfig::default());
    let at = plain.local_addr();
    let refused = Instance::init(&config(at, TlsUse::With(ca.tls("a"))), &at.ip().to_string());
    assert_eq!(refused.map(drop), Err(Status::Error));
    let good = Config::new().port(addr.port()).fabric(FabricChoice::Tcp).tls(ca.tls("good"));
    let good = Client::with_config(&good, &addr.ip().to_string()).expect("the CA is right");
    drop(good);
    let without = Config::new().port(addr.port()).without_tls();
    assert!(Client::with_config(&without, &addr.ip().to_string()).is_err());
}

#[test]
fn a_client_finds_the_successor_and_keeps_what_it_holds() {
    let (ca, folder) = (Ca::new("ours"), Ca::new("state"));
    let start = |port: u16| {
        let state_file = Some(folder.folder().join("epoch"));
        let (bind, tls) = (own_address(), Some(ca.tls("primary")));
        server_at(port, ServerConfig { bind, state_file, tls, ..ServerConfig::default() })
    };
    let first = start(0);
    let addr = first.local_addr();
    let own = ClientConfig {
        primaries: Some(vec![addr.into()]),
        silence: Some(Duration::from_millis(200)),
        ..config(addr, TlsUse::With(ca.tls("a")))
    };
    let client = Instance::init_shared(&own, &addr.ip().to_string()).expect("it is let in");
    let (got_it, id) = client.get_lock(desc("l", LockType::Atomic));
    assert_eq!(got_it, Success);
    let id = id.unwrap();
    assert_eq!(status(client.trylock(id, X, 1_000)), Success);
    drop(first);
    let second = start(addr.port());
    eventually(60, "it is served by the successor", || {
        client.get_lock(desc("another", LockType::Atomic)).0 == Success
    });
    let other = join(&second, ca.tls("b"));
    let of_other = got(&other, "l", LockType::Atomic);
    assert_eq!(status(other.trylock(of_other, X, 10)), Fail, "the lock was kept");
    assert_eq!(status(client.unlock(id)), Success);
    assert_eq!(status(other.trylock(of_other, X, 10)), Success);
}

/// A client's certificate and key are replaced while it runs, and its next connection uses the new
/// files.
#[test]
fn a_client_uses_renewed_files_for_its_next_connection() {
    let ca = Ca::new("ours");
    let server = secured(&ca);
    let client = join(&server, ca.tls("a"));
    ca.issue("a"); // a certificate of the same name with another key
    assert_eq!(client.reinit(&server.local_addr().ip().to_string()), Success);
}
