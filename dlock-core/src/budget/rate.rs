// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rate limits: how often a client may do something in a second, and how often at once.
//!
//! ```text
//!   taken ── each use moves it on by one interval ──▶
//!   now ────────────┬──────────────── taken ahead of now: what is used of the burst
//!                   └── more than `burst` intervals ahead: rest for 5 ms at least
//! ```
//! A client over its rate rests long enough to have few long turns instead of a short one for each
//! use, because a turn costs the other clients more than most of what is done in the turn.

use crate::clock::NS;
use crate::planted::{self, Bug};

/// The most times per second that a client over its rate may resume.
const RESTS_PER_SECOND: u32 = 200;

/// A rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How many uses per second in the long run; not 0.
    pub per_second: u32,
    /// How many uses at once after a pause.
    pub burst: u32,
}

impl Rate {
    /// A rate with a burst of a hundredth of a second's uses, so that a client over its rate delays
    /// other clients by no more than a hundredth of a second. The burst is at least 64, so that a
    /// low rate cuts no batch in two.
    pub fn even(per_second: u32) -> Self {
        Self { per_second, burst: (per_second / 100).max(64) }
    }
}

/// How much of a rate is used.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    rate: Rate,
    /// Until when the rate is used up in the long run, nanoseconds.
    taken_ns: u64,
}

impl Pace {
    /// A pace of which nothing is used.
    pub fn new(rate: Rate) -> Self {
        Self { rate, taken_ns: 0 }
    }

    /// Until when the client must rest; `None`: it may use the rate now.
    pub fn rests_until(&self, now_ns: u64) -> Option<u64> {
        let with_free = |uses: u32| {
            let used = self.rate.burst.saturating_sub(uses);
            self.taken_ns.saturating_sub(self.interval_ns().saturating_mul(used.into()))
        };
        if planted::is(Bug::PaceIgnored) {
            return None;
        }
        let rested = (self.rate.per_second / RESTS_PER_SECOND).min(self.rate.burst / 2).max(1);
        (with_free(1) > now_ns).then(|| with_free(rested))
    }

    /// Counts `times` uses.
    pub fn used(&mut self, now_ns: u64, times: u32) {
        let used_ns = self.interval_ns().saturating_mul(u64::from(times));
        self.taken_ns = self.taken_ns.max(now_ns).saturating_add(used_ns);
    }

    /// Counts one use if the rate allows it now; returns whether it did.
    pub fn take(&mut self, now_ns: u64) -> bool {
        let may = self.rests_until(now_ns).is_none();
        if may {
            self.used(now_ns, 1);
        }
        may
    }

    /// Whether no past use counts any more.
    pub fn is_idle(&self, now_ns: u64) -> bool {
        self.taken_ns <= now_ns
    }

    fn interval_ns(&self) -> u64 {
        NS / u64::from(self.rate.per_second.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_rate_gives_a_hundredth_of_a_second_at_once() {
        assert_eq!(Rate::even(250_000), Rate { per_second: 250_000, burst: 2_500 });
        assert_eq!(Rate::even(1), Rate { per_second: 1, burst: 64 });
        let mut pace = Pace::new(Rate::even(10_000));
        let at_once = (0..1_000).filter(|_| pace.take(NS)).count();
        assert_eq!(at_once, 100);
        assert_eq!(pace.rests_until(NS), Some(NS + 50 * NS / 10_000));
    }

    #[test]
    fn a_burst_is_taken_at_once_and_the_rest_at_the_rate() {
        let mut pace = Pace::new(Rate { per_second: 10, burst: 3 });
        let start = 5 * NS;
        let taken = (0..9).filter(|_| pace.take(start)).count();
        assert_eq!(taken, 3);
        assert_eq!(pace.rests_until(start), Some(start + NS / 10));
        let taken = (0..1_000).filter(|ms| pace.take(start + ms * NS / 1_000)).count();
        assert_eq!(taken, 9, "one each 100 ms, from 100 ms on");
        assert!(!pace.is_idle(start + NS) && pace.is_idle(start + 2 * NS));
        assert_eq!((0..9).filter(|_| pace.take(start + 9 * NS)).count(), 3, "after a pause");
    }

    #[test]
    fn more_than_the_burst_that_was_used_at_once_is_waited_for() {
        let mut pace = Pace::new(Rate { per_second: 1_000, burst: 10 });
        pace.used(NS, 1_010);
        assert_eq!(pace.rests_until(NS), Some(2 * NS + 5 * NS / 1_000));
        pace.used(u64::MAX, u32::MAX); // checks that this does not overflow
        assert!(pace.rests_until(NS).is_some());
    }
}
