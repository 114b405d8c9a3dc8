// SPDX-License-Identifier: MIT OR Apache-2.0
//! Releases of clients that find their primary by themselves, and that no primary answers: another
//! client may have the lock.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use common::line::Line;
use common::site::Site;
use common::{config, eventually, fabrics, got, join, own_address, server_with, status, S, X};
use dlock_client::raw::{AsyncOp, Instance, OpResult};
use dlock_client::{ClientConfig, FabricChoice, LockId, LockType, Status};
use dlock_server::ServerConfig;
use Status::*;

const TYPES: [LockType; 3] = [LockType::Atomic, LockType::Rw, LockType::Fair];

/// A way to release a lock: its name, and the call.
type Way = (&'static str, fn(&Instance, LockId) -> Status);
const WAYS: [Way; 3] =
    [("unlock", single), ("batch_unlock", batch), ("asynchronous unlock", asynchronous)];

const ASYNCHRONOUS: usize = 2;

fn single(of: &Instance, lock: LockId) -> Status {
    of.unlock(lock).status
}

fn batch(of: &Instance, lock: LockId) -> Status {
    let mut out = [OpResult::of(Done)];
    assert_eq!(of.batch_unlock(&[lock], &mut out), Success);
    out[0].status
}

fn asynchronous(of: &Instance, lock: LockId) -> Status {
    let begun = of.request_async(lock, AsyncOp::Unlock);
    if begun != Success {
        return begun;
    }
    let mut result = AsyncAgain;
    eventually(60, "it is over", || {
        result = of.result_check().status;
        result != AsyncAgain
    });
    result
}

/// A client with this horizon, at these addresses alone.
fn client(at: SocketAddr, fabric: FabricChoice, horizon_s: u32) -> Arc<Instance> {
    let config = ClientConfig {
        primaries: Some(vec![at.into()]),
        silence: Some(Duration::from_millis(200)),
        horizon_s: Some(horizon_s),
        ..config(at, fabric)
    };
    Instance::init_shared(&config, &at.ip().to_string()).expect("the primary admits a client")
}

/// A held lock: its type, its way of release (an index into [`WAYS`]), its id, and its name.
type Held = (LockType, usize, LockId, String);

/// Every lock of [`TYPES`] × [`WAYS`], held by `of`.
fn held(of: &Instance, prefix: &str, lease_s: u32) -> Vec<Held> {
    let mut all = Vec::new();
    for lock_type in TYPES {
        for way in 0..WAYS.len() {
            let name = format!("{prefix} {lock_type:?} {way}");
            let lock = got(of, &name, lock_type);
            assert_eq!(status(of.trylock(lock, X, lease_s)), Success);
            all.push((lock_type, way, lock, name));
        }
    }
    all
}

/// The client's network is cut, and the primary, which lives, has given the lock to another client.
#[test]
fn a_client_that_is_cut_off_is_not_told_that_it_has_released_what_another_has() {
    let server = server_with(ServerConfig::default());
    let line = Line::to(server.local_addr().port());
    let at = (own_address(), server.local_addr().port()).into();
    let a = client(at, FabricChoice::Tcp, 4);
    let locks = held(&a, "cut off", 4);
    let b = join(&server, FabricChoice::Tcp);
    line.cut();
    for (lock_type, way, lock, name) in locks {
        let of_b = got(&b, &name, lock_type);
        eventually(60, "the other has it", || status(b.lock(of_b, X, 600)) == Success);
        let (name, release) = WAYS[way];
        let told = release(&a, lock);
        let is_right = match way {
            ASYNCHRONOUS => matches!(told, BadResponse | NotReady),
            _ => told == Fail,
        };
        assert!(is_right, "{name} of a {lock_type:?} lock: {told}");
        assert_eq!(status(b.unlock(of_b)), Success);
    }
}

/// No primary answers a release. It is a success only while the lease and the horizon run for
/// certain, because after that another client could have the lock.
#[test]
fn without_a_primary_a_release_is_one_while_lease_and_horizon_surely_run() {
    for fabric in fabrics() {
        let mut site = Site::new(&format!("surely-{}", fabric.name()));
        let patient = client(site.address(), fabric, 600);
        let hasty = client(site.address(), fabric, 5);
        let running = held(&patient, "running", 600);
        let over = held(&patient, "over", 5);
        let beyond = held(&hasty, "beyond", 600);
        let shared = got(&hasty, "shared", LockType::Rw);
        assert_eq!(status(hasty.trylock(shared, S, 600)), Success);
        let b = site.client(fabric);
        let all = running.iter().chain(&over).chain(&beyond);
        let of_b: Vec<_> = all
            .filter(|(_, way, ..)| *way != ASYNCHRONOUS)
            .map(|(lock_type, _, _, name)| got(&b, name, *lock_type))
            .collect();
        site.stop();
        let releases = |of: &Instance, locks: &[Held], expected: fn(LockType) -> Status| {
            for &(lock_type, way, lock, _) in locks.iter().filter(|(_, way, ..)| *way < 2) {
                let (name, release) = WAYS[way];
                let (told, expected) = (release(of, lock), expected(lock_type));
                assert_eq!(told, expected, "{name}, {lock_type:?}, over {}", fabric.name());
            }
        };
        releases(&patient, &running, |_| Success);
        // a lease of 5 s and a horizon of 5 s are over then
        thread::sleep(Duration::from_millis(6_500));
        releases(&patient, &over, |lock_type| match lock_type {
            LockType::Rw => Success, // a lock of this type has no lease
            LockType::Atomic | LockType::Fair => Fail,
        });
        releases(&hasty, &beyond, |_| Fail);
        assert_eq!(status(hasty.unlock(shared)), Fail);
        site.start();
        // with either answer, the release takes effect as soon as there is a primary
        for lock in of_b {
            eventually(60, "it is free", || status(b.lock(lock, X, 600)) == Success);
        }
        assert_eq!([patient.deinit(), hasty.deinit(), b.deinit()], [Success; 3]);
    }
}
