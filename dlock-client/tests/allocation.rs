// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fast path of a one-sided executor allocates no memory.

mod common;

use std::time::Duration;

use common::{client, fabrics, got, join, server, status, X};
use dlock_client::{LockType, Mode, Status, Wait};

#[test]
fn the_fast_path_of_a_one_sided_executor_allocates_nothing() {
    let server = server();
    let instance = join(&server, fabrics()[0]);
    let id = got(&instance, "free of charge", LockType::Atomic);
    let client = client(&server, fabrics()[0]);
    let lock = client.atomic_lock("guarded free of charge").unwrap();
    let count = allocation_counter::measure(|| {
        for _ in 0..1_000 {
            assert_eq!(status(instance.trylock(id, X, 60)), Status::Success);
            assert_eq!(status(instance.extend(id, X, 60)), Status::Success);
            assert_eq!(status(instance.unlock(id)), Status::Success);
            lock.acquire(Mode::Exclusive)
                .lease(Duration::from_secs(60))
                .wait(Wait::No)
                .guard()
                .unwrap()
                .unlock()
                .unwrap();
        }
    });
    assert_eq!(count.count_total, 0);
}

#[test]
fn counting_allocations_works() {
    let count = allocation_counter::measure(|| drop(std::hint::black_box(Box::new(1_u8))));
    assert_eq!(count.count_total, 1);
}
