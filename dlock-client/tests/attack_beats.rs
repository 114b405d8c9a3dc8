// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads whose control calls fail all the time do not keep the library's heartbeats from going out.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::{config, fabrics, got, server, status, X};
use dlock_client::{Instance, LockType, Status};

#[test]
fn failing_control_calls_do_not_let_the_horizon_pass() {
    for fabric in fabrics() {
        let server = server();
        let addr = server.local_addr();
        let config = dlock_client::ClientConfig { horizon_s: std::env::var("H").ok().map_or(Some(1), |h| h.parse().ok()), ..config(addr, fabric) };
        let a = Instance::init(&config, "127.0.0.1").unwrap();
        let lock = got(&a, "one", LockType::Atomic);
        let (stop, calls) = (AtomicBool::new(false), AtomicU64::new(0));
        let mut bad = Vec::new();
        let mut tries = 0u64;
        std::thread::scope(|scope| {
            for _ in 0..std::env::var("T").map_or(16, |t| t.parse().unwrap()) {
                scope.spawn(|| {
                    while !stop.load(Relaxed) {
                        assert!(a.object_get(b"missing", 10).is_err());
                        calls.fetch_add(1, Relaxed);
                    }
                });
            }
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(std::env::var("SECS").map_or(20, |s| s.parse().unwrap())) {
                let s = status(a.trylock(lock, X, 60));
                tries += 1;
                if s == Status::Success {
                    a.unlock(lock);
                } else {
                    bad.push((start.elapsed().as_millis(), s));
                    std::thread::sleep(Duration::from_millis(10));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            stop.store(true, Relaxed);
        });
        let (first, n) = (bad.first(), bad.len());
        println!("{fabric:?}: {} calls, {tries} tries, {n} bad, first {first:?}", calls.into_inner());
        assert!(bad.is_empty(), "{fabric:?}");
    }
}
