// SPDX-License-Identifier: MIT OR Apache-2.0
//! A try that lost is repeated at once, on an executor whose chains take long.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::clock::{Deadline, Lease, NS};
use dlock_core::lock::Op;
use dlock_core::memory::words::AtomicWord;
use dlock_core::wire::message::{LockType, Mode};
use dlock_fabric::os::clock::boot_ns;

use super::tests::instance_on;
use super::*;
use crate::driver::heartbeat::Pulse;
use dlock_test_support::fake::Fake;

const TRY_NS: u64 = 300_000_000;

/// How often a client tries a lock that another client holds, if its session's horizon is so many
/// nanoseconds away.
fn tries(horizon_in_ns: u64) -> u64 {
    let fake = Fake::new();
    fake.one_sided.store(true, SeqCst);
    let (instance, fake) = instance_on(fake, &[LockType::Atomic]);
    let other = AtomicWord::new().with_client(8).with_timeout(Deadline(u32::MAX - 1)).into_bits();
    fake.words.lock().insert(0, other);
    fake.delay(Duration::from_nanos(TRY_NS));
    let lasts_ns = Pulse::new(10 * NS, 0).horizon_ns();
    let lock_slot = instance.table.lock_slot(0);
    let mut guard = lock_slot.lock_until(|| 0).expect("it is free");
    let pulse = Pulse::new(10 * NS, boot_ns() + horizon_in_ns - lasts_ns);
    guard.as_mut().unwrap().pulse = Arc::new(pulse);
    let op = Op::Lock { mode: Mode::Exclusive, lease: Lease::secs(30) };
    let result = instance.run(lock_slot, &mut guard, op, None);
    assert_ne!(result.status, Status::Success);
    fake.executes.load(SeqCst)
}

#[test]
fn a_lost_try_is_not_repeated_past_the_horizon() {
    assert!(tries(60 * NS) >= 2);
    assert_eq!(tries(TRY_NS / 3), 1, "the horizon passed in the midst of the first");
}
