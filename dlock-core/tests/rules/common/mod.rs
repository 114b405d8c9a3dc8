// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers that the tests of the rules share.

pub mod entry;
pub mod lock;
pub mod site;
pub mod world;

use dlock_core::counters::COUNTERS;
use dlock_core::locks::Locks;
pub use dlock_test_support::Memory;

/// The counters up to now, with what clients have counted in their ledgers.
pub fn stats(locks: &mut Locks, memory: &mut Memory) -> [u64; COUNTERS] {
    locks.collect_all(memory);
    locks.counters().read()
}
