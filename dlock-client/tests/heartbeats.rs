// SPDX-License-Identifier: MIT OR Apache-2.0
//! Heartbeats of the library keep a session alive while the primary stands still, or the
//! program's control calls fail.

mod common;

use dlock_core::clock::Lease;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use common::{desc, eventually, fabrics, got, server, status, ChildPrimary, X};
use dlock_client::raw::Instance;
use dlock_client::{ClientConfig, FabricChoice, LockType, Status};

const HORIZON_S: u32 = 2;

/// Not a test by itself: the primary, in a child process that is stopped.
#[test]
fn child_that_serves_until_its_input_ends() {
    common::serve_as_child();
}

/// When the primary goes on, its sockets contain the heartbeats that its clients sent meanwhile.
#[test]
fn a_primary_that_stood_still_beyond_the_horizon_ends_no_session() {
    let primary = ChildPrimary::start("child_that_serves_until_its_input_ends");
    let all = [FabricChoice::Tcp, FabricChoice::Shm].map(|fabric| {
        let config = ClientConfig { horizon_s: Some(HORIZON_S), ..primary.config(fabric) };
        let a = Instance::init(&config, "127.0.0.1").unwrap();
        let [leased, rw] = [LockType::Atomic, LockType::Rw]
            .map(|lock_type| got(&a, &format!("{fabric:?} {lock_type:?}"), lock_type));
        for lock in [leased, rw] {
            assert_eq!(status(a.trylock(lock, X, 600)), Status::Success, "{fabric:?}");
        }
        (fabric, a, leased, rw)
    });
    primary.freeze();
    thread::sleep(Duration::from_secs(2 * u64::from(HORIZON_S)));
    primary.thaw();
    let b = Instance::init(&primary.config(FabricChoice::Tcp), "127.0.0.1").unwrap();
    for (fabric, a, leased, rw) in &all {
        eventually(60, "it goes on without a reinit", || a.heartbeat(2) == Status::Success);
        eventually(60, "its lease is extended", || {
            status(a.extend(*leased, X, 600)) == Status::Success
        });
        assert_eq!(a.get_lock(desc(&format!("{fabric:?}"), LockType::Fair)).0, Status::Success);
        let theirs = got(&b, &format!("{fabric:?} {:?}", LockType::Rw), LockType::Rw);
        assert_eq!(status(b.trylock(theirs, X, 600)), Status::Fail, "{fabric:?}: it is held");
        assert_eq!(status(a.unlock(*rw)), Status::Success, "{fabric:?}");
        assert_eq!(status(b.trylock(theirs, X, 600)), Status::Success, "{fabric:?}");
    }
}

/// The failing calls are answered, too, and keep the control connection busy all the time.
#[test]
fn control_calls_that_fail_all_the_time_do_not_let_the_horizon_pass() {
    const THREADS: usize = 8;
    let server = server();
    let run = |fabric| {
        let config = common::config(server.local_addr(), fabric);
        let config = ClientConfig { horizon_s: Some(HORIZON_S), ..config };
        let a = Instance::init(&config, "127.0.0.1").unwrap();
        let lock = got(&a, &format!("{fabric:?}"), LockType::Atomic);
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    while !ends.load(Relaxed) {
                        assert!(a.object_get(b"missing", Lease::secs(10)).is_err());
                    }
                });
            }
            let start = Instant::now();
            let mut wrong = None;
            while wrong.is_none() && start.elapsed().as_secs() < 3 * u64::from(HORIZON_S) {
                let both = [status(a.trylock(lock, X, 60)), status(a.unlock(lock))];
                wrong = Some((start.elapsed(), both)).filter(|_| both != [Status::Success; 2]);
                thread::sleep(Duration::from_millis(1));
            }
            ends.store(true, Relaxed);
            assert_eq!(wrong, None, "{fabric:?}");
        });
    };
    thread::scope(|scope| {
        for fabric in fabrics() {
            scope.spawn(move || run(fabric));
        }
    });
}
