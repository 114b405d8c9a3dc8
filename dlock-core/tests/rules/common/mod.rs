// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the rules share.

pub mod entry;
pub mod lock;
pub mod site;
pub mod world;

use dlock_core::counters::COUNTERS;
use dlock_core::locks::Locks;
pub use dlock_test_support::Memory;

/// What has counted until now.
pub fn stats(locks: &mut Locks, memory: &mut Memory) -> [u64; COUNTERS] {
    locks.collect_all(memory);
    locks.counters().read()
}
