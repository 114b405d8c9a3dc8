// SPDX-License-Identifier: MIT OR Apache-2.0
//! No client of a fair lock waits for long without a fault. Eight clients mix all operations, and
//! often leave just after they gave a ticket up.
//!
//! `DLOCK_STRESS_S`: seconds for each fabric (default 3; 600 for the long run).

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use common::{fabrics, got, join, server, status, S, X};
use dlock_client::raw::Instance;
use dlock_client::{FabricChoice, LockId, LockType, Status};
use Status::*;

const CLIENTS: u64 = 8;
const LOCKS: u64 = 2;
/// The number of holds for which a waiter may have to wait.
const HOLDS_BEFORE: u64 = 3 * CLIENTS;

/// Measurements of the run; times in nanoseconds.
#[derive(Default)]
struct Seen {
    hold_max: AtomicU64,
    wait_max: AtomicU64,
    oversleep_max: AtomicU64,
    granted: AtomicU64,
    left: AtomicU64,
    stop: AtomicBool,
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn ns(since: Instant) -> u64 {
    since.elapsed().as_nanos() as u64
}

fn hold(client: &Instance, id: LockId, mode: dlock_client::Mode, random: &mut Random, seen: &Seen) {
    let start = Instant::now();
    match random.below(4) {
        0 => assert_eq!(status(client.extend(id, mode, 60)), Success),
        1 => {
            assert_eq!(client.trylock(id, mode, 60).status, AlreadyLocked);
            assert_eq!(status(client.unlock(id)), AlreadyLocked);
        }
        2 => thread::sleep(Duration::from_micros(random.below(1_000))),
        _ => {}
    }
    assert_eq!(status(client.unlock(id)), Success);
    seen.hold_max.fetch_max(ns(start), Relaxed);
    seen.granted.fetch_add(1, Relaxed);
}

/// The life of a client, which leaves at a random moment, often right after it gave a ticket up.
fn live(client: &Instance, random: &mut Random, seen: &Seen) {
    let ids: Vec<_> =
        (0..LOCKS).map(|n| got(client, &format!("stall {n}"), LockType::Fair)).collect();
    while !seen.stop.load(Relaxed) {
        let id = ids[random.below(LOCKS) as usize];
        let mode = if random.below(2) == 0 { X } else { S };
        if random.below(2) == 0 {
            let start = Instant::now();
            let result = client.lock(id, mode, 60);
            seen.wait_max.fetch_max(ns(start), Relaxed);
            assert_eq!(result.status, Success, "{mode:?}");
            hold(client, id, mode, random, seen);
            continue;
        }
        match client.trylock(id, mode, 60).status {
            Success => hold(client, id, mode, random, seen),
            Again if random.below(2) == 0 => {
                let start = Instant::now();
                let result = client.lock(id, mode, 60);
                seen.wait_max.fetch_max(ns(start), Relaxed);
                assert_eq!(result.status, Success, "{mode:?}");
                hold(client, id, mode, random, seen);
            }
            Again => {
                assert_eq!(status(client.unlock(id)), Success, "a ticket");
                if random.below(4) == 0 {
                    seen.left.fetch_add(1, Relaxed);
                    return;
                }
            }
            other => panic!("{mode:?}: {other}"),
        }
    }
}

fn mix(fabric: FabricChoice) {
    let seconds = std::env::var("DLOCK_STRESS_S").ok().and_then(|s| s.parse().ok()).unwrap_or(3);
    let (server, seen) = (server(), Seen::default());
    thread::scope(|scope| {
        for n in 0..CLIENTS {
            let (server, seen) = (&server, &seen);
            scope.spawn(move || {
                let mut random = Random(n * 7_919 + 1);
                while !seen.stop.load(Relaxed) {
                    let client = join(server, fabric);
                    live(&client, &mut random, seen);
                    assert_eq!(client.deinit(), Success);
                }
            });
        }
        // measures how late this machine runs a thread that only sleeps
        scope.spawn(|| {
            while !seen.stop.load(Relaxed) {
                let start = Instant::now();
                thread::sleep(Duration::from_millis(1));
                seen.oversleep_max.fetch_max(ns(start), Relaxed);
            }
        });
        thread::sleep(Duration::from_secs(seconds));
        seen.stop.store(true, Relaxed);
    });
    let of = |value: &AtomicU64| value.load(Relaxed);
    let late = of(&seen.oversleep_max) * HOLDS_BEFORE;
    let bound = HOLDS_BEFORE * of(&seen.hold_max) + late + 100_000_000;
    println!(
        "{fabric:?}: {} grants, {} left with a ticket given up, longest wait {} us, bound {} us",
        of(&seen.granted),
        of(&seen.left),
        of(&seen.wait_max) / 1_000,
        bound / 1_000
    );
    assert!(of(&seen.granted) > 100 && of(&seen.left) > 0, "nothing was tried");
    assert!(of(&seen.wait_max) <= bound, "somebody waited {} us", of(&seen.wait_max) / 1_000);
}

#[test]
fn nobody_waits_longer_than_those_before_it_hold() {
    fabrics().into_iter().for_each(mix);
}
