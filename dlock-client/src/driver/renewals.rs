// SPDX-License-Identifier: MIT OR Apache-2.0
//! The holds whose leases the library renews, and when it looks at each of them next.
//!
//! ```text
//!   acquire ─ put ─▶ timers, by time ─ take_due ─▶ Instance::look_after_hold
//!                       ▲                             ├ At ──────────────────┐
//!                       │                             ├ Renew ─▶ GuardWait ──┤
//!                       └─────────────────────────────┼──────────────────────┘
//!                                                     └ Over, Lost: forgotten
//! ```
//! The entry of the lock decides what is to be done, and when (`dlock_core::lock::Due`).

use dlock_core::clock::Lease;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use dlock_core::ids::LockId;
use dlock_core::wire::status::Status;

use crate::error::Error;
use crate::guard::{Hold, Keep};
use crate::instance::Instance;
use crate::reference::Reference;

/// How a program wants its lease renewed, apart from the lease itself.
#[derive(Clone, Default)]
pub struct Renew {
    max: Option<Duration>,
    alive: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

impl std::fmt::Debug for Renew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Renew");
        out.field("max", &self.max).field("alive", &self.alive.is_some()).finish()
    }
}

impl Renew {
    /// Renews the lease until the lock is released.
    pub fn new() -> Self {
        Self::default()
    }

    /// No renewal begins later than `max` after the acquire, so that a program that hangs for ever
    /// does not keep the lock for ever.
    #[must_use]
    pub fn at_most(self, max: Duration) -> Self {
        Self { max: Some(max), ..self }
    }

    /// Asks the program before each renewal whether it is well. While `alive` returns false, the
    /// library does not renew the lease, which then ends in time. The library calls `alive` on its
    /// only thread: `alive` must not block, and must not call this library.
    #[must_use]
    pub fn while_alive(self, alive: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { alive: Some(Arc::new(alive)), ..self }
    }

    /// For how long renewals may begin, in nanoseconds.
    pub(crate) fn max_ns(&self) -> u64 {
        self.max.map_or(u64::MAX, |max| u64::try_from(max.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// A hold that the library renews, or whose loss it reports in time. This keeps neither the
/// reference to the lock nor the client alive.
pub(crate) struct Renewed {
    pub(crate) instance: Weak<Instance>,
    pub(crate) lock: LockId,
    /// The number of the hold.
    pub(crate) hold: u64,
    pub(crate) terms: Renew,
}

impl Renewed {
    /// Whether the program wants the lease renewed.
    pub(crate) fn is_alive(&self) -> bool {
        self.terms.alive.as_ref().is_none_or(|alive| alive())
    }
}

/// Has the library renew a hold that was just granted.
///
/// # Errors
/// The hold is over already, or the driver's thread cannot be started.
pub(crate) fn begin<K: Keep>(
    reference: &Arc<Reference>,
    hold: &Hold<K>,
    lease: Lease,
    terms: Renew,
) -> Result<(), Error> {
    let (lock, number) = (hold.lock(), hold.number());
    match reference.instance().renew_guard(lock, number, lease, &terms) {
        Status::Success => {}
        status => return Err(Error::of_holder(status)),
    }
    let instance = Arc::downgrade(reference.shared());
    let renewed = Renewed { instance, lock, hold: number, terms };
    reference.tasks().renew(renewed)
}

/// The timers of one client's holds; one for each lock.
#[derive(Default)]
pub(super) struct Timers {
    by_time: BTreeSet<(u64, LockId)>,
    of: HashMap<LockId, (u64, Renewed)>,
}

impl Timers {
    /// Sets the time to look at the hold, `at_ns`; an earlier hold of the same lock is forgotten.
    pub(super) fn put(&mut self, at_ns: u64, renewed: Renewed) {
        let lock = renewed.lock;
        if let Some((before_ns, _)) = self.of.insert(lock, (at_ns, renewed)) {
            self.by_time.remove(&(before_ns, lock));
        }
        self.by_time.insert((at_ns, lock));
    }

    /// Has a hold that was taken looked at again now, unless a later hold of the same lock has
    /// replaced it meanwhile.
    pub(super) fn put_back(&mut self, renewed: Renewed) {
        if !self.of.contains_key(&renewed.lock) {
            self.put(0, renewed);
        }
    }

    /// Takes a hold that is to be looked at now.
    pub(super) fn take_due(&mut self, now_ns: u64) -> Option<Renewed> {
        let &(at_ns, lock) = self.by_time.first().filter(|&&(at_ns, _)| at_ns <= now_ns)?;
        self.by_time.remove(&(at_ns, lock));
        self.of.remove(&lock).map(|(_, renewed)| renewed)
    }

    /// Has the hold of this lock looked at by `at_ns`, if not earlier.
    pub(super) fn sooner(&mut self, lock: LockId, at_ns: u64) {
        if self.of.get(&lock).is_some_and(|&(before_ns, _)| at_ns < before_ns) {
            if let Some((before_ns, renewed)) = self.of.remove(&lock) {
                self.by_time.remove(&(before_ns, lock));
                self.put(at_ns, renewed);
            }
        }
    }

    /// When the next hold is to be looked at.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.by_time.first().map(|&(at_ns, _)| at_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renewed(lock: i32, hold: u64) -> Renewed {
        Renewed { instance: Weak::new(), lock: LockId(lock), hold, terms: Renew::new() }
    }

    #[test]
    fn timers_come_in_order_and_a_lock_has_one() {
        let mut timers = Timers::default();
        timers.put(5, renewed(1, 1));
        timers.put(3, renewed(2, 1));
        timers.put(9, renewed(1, 2));
        assert_eq!(timers.next_ns(), Some(3));
        assert!(timers.take_due(2).is_none());
        assert_eq!(timers.take_due(8).map(|due| due.lock), Some(LockId(2)));
        assert!(timers.take_due(8).is_none(), "the earlier hold is forgotten");
        assert_eq!(timers.take_due(9).map(|due| due.hold), Some(2));
        assert_eq!(timers.next_ns(), None);
    }

    #[test]
    fn a_hold_that_is_over_does_not_take_the_place_of_the_next_one() {
        let mut timers = Timers::default();
        timers.put(0, renewed(1, 1));
        let first = timers.take_due(1).unwrap();
        timers.put(0, renewed(1, 2)); // the next hold has begun while the first was renewed
        timers.put_back(first);
        assert_eq!(timers.take_due(1).map(|due| due.hold), Some(2));
        timers.put_back(renewed(1, 2));
        assert_eq!(timers.take_due(1).map(|due| due.hold), Some(2));
    }
}
