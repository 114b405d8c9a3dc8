// SPDX-License-Identifier: MIT OR Apache-2.0
//! A primary that stood still for longer than the horizon: what becomes of clients whose
//! heartbeats lie in its sockets.

mod common;

use std::time::{Duration, Instant};

use common::{desc, got, status, ChildPrimary, X};
use dlock_client::{ClientConfig, FabricChoice, Instance, LockType};

/// Not a test by itself: the primary that is stopped.
#[test]
fn child_that_serves_until_its_input_ends() {
    common::serve_as_child();
}

#[test]
fn who_has_sent_heartbeats_all_the_time_is_not_silent() {
    for fabric in [FabricChoice::Tcp, FabricChoice::Shm] {
        let primary = ChildPrimary::start("child_that_serves_until_its_input_ends");
        let config = ClientConfig { horizon_s: Some(3), ..primary.config(fabric) };
        let a = Instance::init(&config, "127.0.0.1").unwrap();
        let one = got(&a, "one", LockType::Atomic);
        assert_eq!(status(a.trylock(one, X, 600)), dlock_client::Status::Success);
        primary.freeze();
        std::thread::sleep(Duration::from_secs(6));
        primary.thaw();
        let start = Instant::now();
        let mut seen = Vec::new();
        while start.elapsed() < Duration::from_secs(5) {
            let now = (
                a.heartbeat(2),
                status(a.extend(one, X, 600)),
                a.get_lock(desc("two", LockType::Atomic)).0,
            );
            if seen.last() != Some(&now) {
                println!("{fabric:?} {:?}: {now:?}", start.elapsed());
                seen.push(now);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let is_back = seen.iter().any(|now| now.0 == dlock_client::Status::Success);
        let re = a.reinit("127.0.0.1");
        println!("{fabric:?}: reinit {re:?}, then extend {:?}", status(a.extend(one, X, 600)));
        assert!(is_back, "{fabric:?}: its heartbeats were there when the primary went on");
    }
}
