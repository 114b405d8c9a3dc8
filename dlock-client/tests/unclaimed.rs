// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks that were not claimed at a successor.

mod common;

use common::{address_of_thread, desc, fabrics, got, server_at, status, S, X};
use dlock_client::raw::Instance;
use dlock_client::{ClientConfig, LockType, Status::*};
use dlock_server::{Server, ServerConfig};

/// Starts a primary on this port (0: a free one) of a loopback address that only this thread uses.
fn primary(port: u16, recovery_clients: u32) -> Server {
    server_at(
        port,
        ServerConfig { bind: address_of_thread(), recovery_clients, ..Default::default() },
    )
}

/// A client without a horizon, which is the default of the C API.
fn join(port: u16, fabric: dlock_client::FabricChoice) -> Instance {
    let config = ClientConfig { port, fabric, horizon_s: Some(0), ..Default::default() };
    Instance::init(&config, &address_of_thread().to_string()).unwrap()
}

/// The program did not call `update_all_locks`, or got no answer in time.
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
                // a hold of a read-write lock cannot be extended
                LockType::Rw => a.trylock(held, X, 60),
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
                    // the successor ends before the lock was claimed
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
