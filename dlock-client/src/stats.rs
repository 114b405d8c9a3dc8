// SPDX-License-Identifier: MIT OR Apache-2.0
//! The 45 debug counters of the C API, as a client counts them. Index 45 and above: none.

use std::sync::atomic::{AtomicU64, Ordering};

use dlock_core::lock::{Op, OpResult};
use dlock_core::message::LockType;
use dlock_core::status::Status;

/// Counters of one instance.
pub const STATS: usize = 45;

/// The counters a client uses, by their index (`debug_stats_code` of the C API).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Stat {
    TimedOut = 3,
    InvalidOp = 4,
    InvalidReturn = 7,
    Ticket = 8,
    Async = 9,
    LockNotGet = 11,
    AlreadyLocked = 12,
    AlreadyUnlocked = 13,
    NetworkFail = 28,
    BadResponse = 30,
    NotReady = 34,
    NoAsync = 35,
    ObjectNotGet = 43,
    ObjectCasFailed = 44,
}

/// One instance's counters.
#[derive(Debug)]
pub(crate) struct Stats([AtomicU64; STATS]);

impl Stats {
    pub(crate) fn new() -> Self {
        Self([const { AtomicU64::new(0) }; STATS])
    }

    pub(crate) fn add(&self, stat: Stat) {
        self.0[stat as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> [u64; STATS] {
        std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed))
    }

    pub(crate) fn clear(&self) {
        for counter in &self.0 {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// Counts what a synchronous operation on a got lock came to.
    pub(crate) fn count(&self, lock_type: LockType, op: Op, result: &OpResult) {
        if result.status != Status::Success {
            self.count_failure(lock_type, op, result.status, false);
        }
    }

    /// Counts what an asynchronous operation on a got lock came to.
    pub(crate) fn count_async(&self, lock_type: LockType, op: Op, result: &OpResult) {
        if result.status != Status::Success {
            self.count_failure(lock_type, op, result.status, true);
        }
    }

    #[cold]
    fn count_failure(&self, lock_type: LockType, op: Op, status: Status, asynchronous: bool) {
        let is_acquire = matches!(op, Op::TryLock { .. } | Op::Lock { .. });
        let is_extend = matches!(op, Op::Extend { .. });
        let is_fair = lock_type == LockType::Fair;
        match status {
            Status::Invalid => self.add(Stat::InvalidOp),
            Status::Ticket => self.add(Stat::Ticket),
            Status::AlreadyUnlocked => self.add(Stat::AlreadyUnlocked),
            Status::AlreadyLocked => {
                let is_atomic_reentry = lock_type == LockType::Atomic && is_acquire;
                let is_uncounted_async = asynchronous && !is_acquire && lock_type != LockType::Rw;
                if !is_atomic_reentry && !is_uncounted_async {
                    self.add(Stat::AlreadyLocked);
                }
            }
            Status::BadResponse if asynchronous => self.add(Stat::BadResponse),
            Status::BadResponse => self.add(Stat::NetworkFail),
            Status::NotReady if !is_acquire && !asynchronous => self.add(Stat::NotReady),
            Status::Again => {}
            Status::Fail if is_fair => {}
            _ if asynchronous || is_extend => {}
            _ => self.add(Stat::InvalidReturn),
        }
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::message::Mode;

    use super::*;

    fn counted(lock_type: LockType, op: Op, status: Status) -> Vec<usize> {
        let stats = Stats::new();
        stats.count(lock_type, op, &OpResult::of(status));
        (0..STATS).filter(|&i| stats.read()[i] > 0).collect()
    }

    #[test]
    fn contention_counts_for_atomic_and_read_write_locks_only() {
        let op = Op::TryLock { mode: Mode::Exclusive, expire_s: 1 };
        assert_eq!(counted(LockType::Atomic, op, Status::Fail), [7]);
        assert_eq!(counted(LockType::Rw, op, Status::Fail), [7]);
        assert!(counted(LockType::Fair, op, Status::Fail).is_empty());
        assert!(counted(LockType::Fair, op, Status::Again).is_empty());
        assert!(counted(LockType::Atomic, op, Status::Success).is_empty());
    }

    #[test]
    fn a_partial_unlock_counts_and_an_atomic_reentry_does_not() {
        let op = Op::TryLock { mode: Mode::Exclusive, expire_s: 1 };
        assert!(counted(LockType::Atomic, op, Status::AlreadyLocked).is_empty());
        assert_eq!(counted(LockType::Fair, op, Status::AlreadyLocked), [12]);
        assert_eq!(counted(LockType::Atomic, Op::Unlock, Status::AlreadyLocked), [12]);
    }

    #[test]
    fn clearing_resets_every_counter() {
        let stats = Stats::new();
        stats.add(Stat::Async);
        assert_eq!(stats.read()[9], 1);
        stats.clear();
        assert_eq!(stats.read(), [0; STATS]);
    }
}
