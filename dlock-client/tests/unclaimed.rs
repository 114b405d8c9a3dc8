// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks that were not claimed at a successor.

mod common;

use common::{address_of_thread, desc, fabrics, got, server_at, status, S, X};
use dlock_client::raw::Instance;
use dlock_client::{ClientConfig, LockType, Status::*};
use dlock_server::{Server, ServerConfig};

/// On this port (0: a free one) of an address of this process's own.
fn primary(port: u16, recovery_clients: u32) -> Server {
    server_at(
        port,
        ServerConfig { bind: address_of_thread(), recovery_clients, ..Default::default() },
    )
}

/// Without a horizon, as C programs are by default.
fn join(port: u16, fabric: dlock_client::FabricChoice) -> Instance {
    let config = ClientConfig { port, fabric, horizon_s: Some(0), ..Default::default() };
    Instance::init(&config, &address_of_thread().to_string()).unwrap()
}

/// Its program leaves `update_all_locks` out, or was not answered in time.
#[test]
fn a_lock_that_was_not_claimed_can_be_got_anew() {
    for fabric in fabrics() {
        for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
            let why = format!("{fabric:?} {lock_type:?}");
            let first = primary(0, 0);
            let port = first.local_addr().port();
            let a = join(port, fabric);
            let [held, free] = ["held", "free"].map(|name| got(&a, name, lock_type));
            assert_eq!(status(a.trylock(held, X, 60)), Success, "{why}");
            drop(first);
            let _second = primary(port, 1);
            assert_eq!(a.reinit(&address_of_thread().to_string()), Success);
            assert_eq!(a.reinit_done(), Success);
            assert_eq!(status(a.trylock(free, X, 60)), NotReady, "{why}");
            for (name, id) in [("held", held), ("free", free)] {
                assert_eq!(a.get_lock(desc(name, lock_type)), (Success, Some(id)), "{why}");
                assert_eq!(a.get_lock(desc(name, lock_type)), (Error, Some(id)), "{why}: twice");
            }
            let told = match lock_type {
                LockType::Rw => a.trylock(held, X, 60), // a hold of it cannot be extended
                LockType::Atomic | LockType::Fair => a.extend(held, X, 60),
            };
            assert_eq!(status(told), Fail, "{why}: the hold is lost");
            for id in [held, free] {
                assert_eq!(status(a.trylock(id, X, 60)), Success, "{why}");
                assert_eq!(status(a.unlock(id)), Success, "{why}");
                assert_eq!(a.release_lock(id), Success, "{why}");
            }
        }
    }
}

#[test]
fn a_read_write_lock_that_refuses_everything_is_not_entered_again() {
    for fabric in fabrics() {
        for successor_ends in [false, true] {
            for mode in [X, S] {
                let first = primary(0, 0);
                let port = first.local_addr().port();
                let a = join(port, fabric);
                let one = got(&a, "one", LockType::Rw);
                assert_eq!(status(a.trylock(one, mode, 600)), Success);
                drop(first);
                let second = primary(port, 1);
                assert_eq!(a.reinit(&address_of_thread().to_string()), Success);
                let _serves = match successor_ends {
                    // before the lock was claimed
                    true => {
                        drop(second);
                        primary(port, 0)
                    }
                    // the lock is not claimed at all
                    false => {
                        assert_eq!(a.reinit_done(), Success);
                        second
                    }
                };
                let b = join(port, fabric);
                let of_b = got(&b, "one", LockType::Rw);
                assert_eq!(status(b.trylock(of_b, X, 600)), Success);
                let why = format!("{fabric:?} {mode:?} successor ends {successor_ends}");
                assert_eq!(status(a.trylock(one, mode, 600)), NotReady, "{why}");
                let mut out = [dlock_client::raw::OpResult { status: Done, view: None }];
                assert_eq!(a.batch_trylock(&[(one, mode, 600)], &mut out), Success);
                assert_eq!(out[0].status, NotReady, "{why}: in a batch");
            }
        }
    }
}
