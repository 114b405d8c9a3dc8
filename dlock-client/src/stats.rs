// SPDX-License-Identifier: MIT OR Apache-2.0
//! The counters in which a client counts its own calls; see [`dlock_core::counters`].

use dlock_core::counters::{Counter, Counters, COUNTERS};
use dlock_core::lock::{Op, OpResult};
use dlock_core::wire::message::LockType;
use dlock_core::wire::status::Status;

/// One instance's counters.
#[derive(Debug, Default)]
pub(crate) struct Stats(Counters);

impl Stats {
    pub(crate) fn add(&self, counter: Counter) {
        self.0.count(counter);
    }

    pub(crate) fn read(&self) -> [u64; COUNTERS] {
        self.0.read()
    }

    pub(crate) fn clear(&self) {
        self.0.clear();
    }

    /// Counts the result of a synchronous operation on a lock that the client has got.
    pub(crate) fn count(&self, lock_type: LockType, op: Op, result: &OpResult) {
        if result.status != Status::Success {
            self.count_failure(lock_type, op, result.status, How::Single);
        }
    }

    /// Counts the result of an item of a batch, on a lock that the client has got.
    pub(crate) fn count_batched(&self, lock_type: LockType, op: Op, result: &OpResult) {
        if result.status != Status::Success {
            self.count_failure(lock_type, op, result.status, How::Batched);
        }
    }

    /// Counts the result of an asynchronous operation on a lock that the client has got.
    pub(crate) fn count_async(&self, lock_type: LockType, op: Op, result: &OpResult) {
        if result.status != Status::Success {
            self.count_failure(lock_type, op, result.status, How::Asynchronous);
        }
    }

    #[cold]
    fn count_failure(&self, lock_type: LockType, op: Op, status: Status, how: How) {
        let asynchronous = how == How::Asynchronous;
        let is_acquire = matches!(op, Op::TryLock { .. } | Op::Lock { .. });
        let is_extend = matches!(op, Op::Extend { .. });
        let is_fair = lock_type == LockType::Fair;
        match status {
            Status::Invalid => self.add(Counter::InvalidOp),
            Status::Ticket => self.add(Counter::Ticket),
            Status::AlreadyUnlocked => self.add(Counter::AlreadyUnlocked),
            Status::AlreadyLocked => {
                let is_atomic_reentry = lock_type == LockType::Atomic && is_acquire;
                let is_uncounted_async = asynchronous && !is_acquire && lock_type != LockType::Rw;
                if !is_atomic_reentry && !is_uncounted_async {
                    self.add(Counter::AlreadyLocked);
                }
            }
            Status::BadResponse if asynchronous => self.add(Counter::BadResponse),
            Status::BadResponse => self.add(Counter::NetworkFail),
            Status::NotReady if !is_acquire && !asynchronous => self.add(Counter::NotReady),
            Status::Again => {}
            Status::Fail if is_fair => {}
            _ if how != How::Single || is_extend => {}
            _ => self.add(Counter::InvalidReturn),
        }
    }
}

/// The kind of call that asked for an operation: the original library counts each kind differently.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Single,
    Batched,
    Asynchronous,
}

#[cfg(test)]
mod tests {
    use dlock_core::clock::Lease;
    use dlock_core::wire::message::Mode;

    use super::*;

    fn counted(lock_type: LockType, op: Op, status: Status) -> Vec<usize> {
        let stats = Stats::default();
        stats.count(lock_type, op, &OpResult::of(status));
        (0..COUNTERS).filter(|&i| stats.read()[i] > 0).collect()
    }

    #[test]
    fn contention_counts_for_atomic_and_read_write_locks_only() {
        let op = Op::TryLock { mode: Mode::Exclusive, lease: Lease::secs(1) };
        assert_eq!(counted(LockType::Atomic, op, Status::Fail), [7]);
        assert_eq!(counted(LockType::Rw, op, Status::Fail), [7]);
        assert!(counted(LockType::Fair, op, Status::Fail).is_empty());
        assert!(counted(LockType::Fair, op, Status::Again).is_empty());
        assert!(counted(LockType::Atomic, op, Status::Success).is_empty());
    }

    #[test]
    fn a_refusal_in_a_batch_does_not_count_and_its_partial_unlock_does() {
        let (stats, op) =
            (Stats::default(), Op::TryLock { mode: Mode::Exclusive, lease: Lease::secs(1) });
        stats.count_batched(LockType::Atomic, op, &OpResult::of(Status::Fail));
        assert_eq!(stats.read(), [0; COUNTERS]);
        stats.count_batched(LockType::Atomic, Op::Unlock, &OpResult::of(Status::AlreadyLocked));
        assert_eq!((stats.read()[7], stats.read()[12]), (0, 1));
    }

    #[test]
    fn a_partial_unlock_counts_and_an_atomic_reentry_does_not() {
        let op = Op::TryLock { mode: Mode::Exclusive, lease: Lease::secs(1) };
        assert!(counted(LockType::Atomic, op, Status::AlreadyLocked).is_empty());
        assert_eq!(counted(LockType::Fair, op, Status::AlreadyLocked), [12]);
        assert_eq!(counted(LockType::Atomic, Op::Unlock, Status::AlreadyLocked), [12]);
    }
}
