// SPDX-License-Identifier: MIT OR Apache-2.0
//! Readings of this host's monotonic clock, and what they say of the server clock.

use std::time::{Duration, Instant};

use dlock_core::clock::{Now, ServerTime, NS};

use crate::sys::deadline_in;

/// Parts per million by which two hosts' clocks drift apart at most.
pub const DRIFT_PPM: u64 = 500;

/// What drift may add to ε before the server clock is asked again, nanoseconds.
const DRIFT_TOLERATED_NS: u64 = 500_000;
/// The same for a peer that is far away, however far: 20 s of drift.
const DRIFT_TOLERATED_NS_MAX: u64 = 10_000_000;

/// Ticks by which the kernel's coarse clock is behind at most: one while ticks arrive in time,
/// five before the kernel lets another CPU advance it (`MAX_STALLED_JIFFIES`), and a margin.
pub const COARSE_TICKS_MAX: u64 = 8;

/// CLOCK_MONOTONIC in nanoseconds; no system call where the vDSO serves it.
#[inline]
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// CLOCK_MONOTONIC in nanoseconds at the end of a wait that begins now.
pub fn until_ns(wait: Duration) -> u64 {
    Until::after(wait).ns
}

/// CLOCK_MONOTONIC as of the last tick: behind by up to [`COARSE_TICKS_MAX`] ticks, but ten
/// times as quick to read.
#[inline]
pub fn monotonic_coarse_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

/// How far [`monotonic_coarse_ns`] is behind at most.
pub(crate) fn coarse_lag_ns() -> u64 {
    let mut resolution = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `resolution` is a valid place for the answer.
    let rc = unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &mut resolution) };
    let tick_ns = if rc == 0 { nanoseconds(&resolution) } else { NS / 100 };
    tick_ns.max(1).saturating_mul(COARSE_TICKS_MAX)
}

#[inline]
fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer. The clocks asked for exist on every Linux,
    // so the call cannot fail.
    unsafe { libc::clock_gettime(clock, &mut time) };
    nanoseconds(&time)
}

#[inline]
fn nanoseconds(time: &libc::timespec) -> u64 {
    (time.tv_sec as u64).wrapping_mul(NS).wrapping_add(time.tv_nsec as u64)
}

/// A moment of CLOCK_MONOTONIC that something must have ended at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Until {
    ns: u64,
}

impl Until {
    /// When the clock is at this.
    #[inline]
    pub(crate) fn at(ns: u64) -> Self {
        Self { ns }
    }

    /// So long from now.
    pub(crate) fn after(wait: Duration) -> Self {
        let wait_ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        Self { ns: monotonic_ns().saturating_add(wait_ns) }
    }

    /// The same moment for those who sleep, a year from now at most.
    pub(crate) fn instant(self) -> Instant {
        deadline_in(Duration::from_nanos(self.ns.saturating_sub(monotonic_ns())))
    }

    /// Whether it has passed. The clock is read exactly only where the coarse one, behind by so
    /// much at most, leaves it open.
    #[inline]
    pub(crate) fn is_over(self, coarse_lag_ns: u64) -> bool {
        monotonic_coarse_ns().saturating_add(coarse_lag_ns) > self.ns && monotonic_ns() > self.ns
    }
}

/// What a client knows of the server clock from one exchange of messages.
///
/// ```text
///   client   sent ──────────┐        ┌────────▶ received
///   primary                 └─ at ───┘  error ≤ (received − sent)/2
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockEstimate {
    /// Server clock minus this host's CLOCK_MONOTONIC, nanoseconds, modulo 2^64.
    pub offset_ns: u64,
    /// Half the round trip of the exchange, nanoseconds.
    pub half_trip_ns: u64,
    /// When it was made, on this host's CLOCK_MONOTONIC, nanoseconds.
    pub taken_at_ns: u64,
}

impl ClockEstimate {
    /// From an exchange: CLOCK_MONOTONIC before sending and after receiving, and the server
    /// clock in the answer.
    pub fn from_exchange(sent_ns: u64, received_ns: u64, at: ServerTime) -> Self {
        // Rounded up: the estimate never claims more than it knows.
        let half_trip_ns = received_ns.saturating_sub(sent_ns).div_ceil(2);
        let middle_ns = sent_ns.wrapping_add(half_trip_ns);
        Self { offset_ns: at.0.wrapping_sub(middle_ns), half_trip_ns, taken_at_ns: received_ns }
    }

    /// The server clock at a moment of CLOCK_MONOTONIC.
    pub fn at(&self, monotonic_ns: u64) -> Now {
        Now {
            time: ServerTime(monotonic_ns.wrapping_add(self.offset_ns)),
            uncertainty_ns: self.uncertainty_ns(monotonic_ns),
            local_ns: monotonic_ns,
            horizon_ns: u64::MAX,
        }
    }

    /// Whether its age has added more to ε than a new exchange would: half a millisecond (one
    /// second of drift), or as much as the trip itself. An exchange that took long because a
    /// machine was busy is not relied on for long.
    pub fn is_stale(&self, monotonic_ns: u64) -> bool {
        let drift_ns = self.uncertainty_ns(monotonic_ns).saturating_sub(self.half_trip_ns);
        drift_ns > self.half_trip_ns.clamp(DRIFT_TOLERATED_NS, DRIFT_TOLERATED_NS_MAX)
    }

    /// ε at a moment of CLOCK_MONOTONIC: it grows with the estimate's age.
    pub fn uncertainty_ns(&self, monotonic_ns: u64) -> u64 {
        let age_ns = monotonic_ns.saturating_sub(self.taken_at_ns);
        let drift_ns = u128::from(age_ns) * u128::from(DRIFT_PPM) / 1_000_000;
        let drift_ns = u64::try_from(drift_ns).unwrap_or(u64::MAX);
        self.half_trip_ns.saturating_add(drift_ns).saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_true_time_is_always_within_the_uncertainty() {
        const TRUE_OFFSET: u64 = 7_000 * NS;
        for (there, back) in [(0, 0), (0, 1_000), (1_000, 0), (400, 601), (5, 4)] {
            let sent = 50 * NS;
            let at = ServerTime(sent + there + TRUE_OFFSET);
            let estimate = ClockEstimate::from_exchange(sent, sent + there + back, at);
            for age in [0, NS, 3_600 * NS] {
                let now = estimate.at(sent + there + back + age);
                let truth = sent + there + back + age + TRUE_OFFSET;
                assert!(now.time.0.abs_diff(truth) <= now.uncertainty_ns);
            }
        }
    }

    #[test]
    fn an_estimate_is_stale_after_a_second_or_a_trips_worth_of_drift() {
        let near = ClockEstimate::from_exchange(0, 2_000, ServerTime(NS));
        assert!(!near.is_stale(NS - 10_000));
        assert!(near.is_stale(NS + 10_000));
        let far = ClockEstimate::from_exchange(0, 20_000_000, ServerTime(NS));
        assert!(!far.is_stale(15 * NS));
        assert!(far.is_stale(25 * NS));
        let by_a_busy_machine = ClockEstimate::from_exchange(0, 3 * NS, ServerTime(NS));
        assert!(by_a_busy_machine.is_stale(30 * NS));
    }

    #[test]
    fn uncertainty_grows_by_500_ppm_of_the_age() {
        let estimate = ClockEstimate::from_exchange(0, 2_000, ServerTime(NS));
        let fresh = estimate.uncertainty_ns(2_000);
        assert_eq!(estimate.uncertainty_ns(2_000 + 1_000_000) - fresh, 500);
    }

    #[test]
    fn a_moment_is_over_when_the_exact_clock_says_so() {
        let lag_ns = coarse_lag_ns();
        for wait_ns in [0, 1_000, 1_000_000, 2 * lag_ns] {
            let until = Until::after(Duration::from_nanos(wait_ns));
            loop {
                let before = monotonic_ns();
                let is_over = until.is_over(lag_ns);
                let after = monotonic_ns();
                assert!(is_over || before <= until.ns);
                assert!(!is_over || after > until.ns);
                if is_over {
                    break;
                }
            }
        }
        assert!(!Until::after(Duration::MAX).is_over(lag_ns));
        assert!(Until::at(u64::MAX).instant() > Instant::now());
        assert!(Until::at(0).instant() <= Instant::now());
    }

    #[test]
    fn the_coarse_clock_is_behind_by_no_more_than_its_bound() {
        for _ in 0..10_000 {
            let before = monotonic_ns();
            let coarse = monotonic_coarse_ns();
            let after = monotonic_ns();
            assert!(coarse <= after);
            assert!(coarse + coarse_lag_ns() >= before);
        }
    }
}
