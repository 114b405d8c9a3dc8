// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server clock, and lease arithmetic on it.
//!
//! The server clock is the primary's CLOCK_BOOTTIME plus the wall-clock time at its start: it
//! never steps, and does not stand still while the machine is suspended. A client knows it by an
//! [estimate](ClockEstimate) with an uncertainty ε. Deadlines in lock words are whole
//! seconds: a hold with deadline `d` is valid while `now_s <= d`, so it *expires* at `d + 1` s.
//!
//! ```text
//!   holder believes until   posted + expire − ε        (never later than the deadline in the word)
//!   stealer waits until     (d + 1) s + ε
//! ```

mod estimate;

pub use estimate::{ClockEstimate, Refresh, TrackedClock};

use crate::planted::{self, Bug};

/// Nanoseconds since 1970 on the server clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ServerTime(pub u64);

/// Nanoseconds in a second.
pub const NS: u64 = 1_000_000_000;

/// The fastest drift between two clocks that is allowed for, in parts per million: 500 of the
/// faster clock's time are 500.25 of the slower one's.
pub const DRIFT_PPM: u64 = 501;
/// A coarse reading of a client's own clock is late by at most this many nanoseconds: ten ticks
/// of a kernel at 100 Hz.
pub const COARSE_NS_MAX: u64 = 100_000_000;

impl ServerTime {
    /// Whole seconds since 1970, as they stand in lock words; saturates.
    #[inline]
    pub fn seconds(self) -> u32 {
        u32::try_from(self.0 / NS).unwrap_or(u32::MAX)
    }
    /// The anchor of an incarnation that begins now: ledgers count deadlines from it, in seconds
    /// since 1970. It is a second in the past, so that a ledger can say of a lease that it was over
    /// before.
    pub fn anchor_s(self) -> u32 {
        self.seconds().saturating_sub(1)
    }
    /// The deadline of a hold that starts now: saturates, never wraps.
    #[inline]
    pub fn deadline(self, expire_s: u32) -> u32 {
        let is_short = planted::is(Bug::LeaseShortened) && expire_s < u32::MAX;
        self.seconds().saturating_add(expire_s - u32::from(is_short && expire_s > 0))
    }
    /// The deadline, from now on, of a hold with a rest of `left_ns` nanoseconds; `u64::MAX`: no
    /// end. The hold lasts at least as long as before, and less than a second longer. A rest of 0
    /// stays over.
    pub fn deadline_of_rest(self, left_ns: u64) -> u32 {
        let end_s = match left_ns {
            0 if !planted::is(Bug::ClaimRevived) => self.0 / NS,
            _ => self.0.saturating_add(left_ns).div_ceil(NS),
        };
        match left_ns {
            u64::MAX => u32::MAX,
            _ => u32::try_from(end_s.saturating_sub(1)).unwrap_or(u32::MAX).min(u32::MAX - 1),
        }
    }
    /// This time and `ns` more.
    pub fn plus_ns(self, ns: u64) -> ServerTime {
        ServerTime(self.0.saturating_add(ns))
    }
    /// The first moment at which a hold with deadline `deadline_s` has expired.
    /// `u32::MAX` never expires.
    pub fn expiry_of(deadline_s: u32) -> ServerTime {
        if deadline_s == u32::MAX {
            ServerTime(u64::MAX)
        } else {
            ServerTime((u64::from(deadline_s) + 1) * NS)
        }
    }
}

/// A client's knowledge of the server clock at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Now {
    /// The estimate.
    pub time: ServerTime,
    /// ε: the true time differs from the estimate by at most this many nanoseconds.
    pub uncertainty_ns: u64,
    /// The reader's own clock (CLOCK_BOOTTIME). Better estimates do not move it, so it measures the
    /// time between two readings.
    pub local_ns: u64,
    /// The horizon of the session on the reader's own clock: from then on the client neither posts
    /// nor believes that it holds anything ([`session`](crate::session)). `u64::MAX`: none.
    pub horizon_ns: u64,
    /// How often the server clock has turned out to differ from the estimate ([`TrackedClock`]).
    /// Readings with the same number are of one clock. A hold whose lease was judged at another
    /// number is possibly over.
    pub discontinuities: u64,
}

impl Now {
    /// Exact knowledge: the primary itself, and the simulator.
    pub fn exact(time: ServerTime) -> Self {
        let (local_ns, horizon_ns) = (time.0, u64::MAX);
        Self { time, uncertainty_ns: 0, local_ns, horizon_ns, discontinuities: 0 }
    }
    /// As [`exact`](Self::exact), with this ε.
    pub fn within(time: ServerTime, uncertainty_ns: u64) -> Self {
        Self { uncertainty_ns, ..Self::exact(time) }
    }
    /// The reading at the later time `local_ns` of the reader's own clock: ε grows by the drift.
    pub fn at_local(self, local_ns: u64) -> Self {
        let passed_ns = local_ns.saturating_sub(self.local_ns);
        let drift_ns = passed_ns / 1_000_000 * DRIFT_PPM + DRIFT_PPM;
        Self {
            time: self.time.plus_ns(passed_ns),
            uncertainty_ns: self.uncertainty_ns.saturating_add(drift_ns),
            local_ns: self.local_ns.saturating_add(passed_ns),
            ..self
        }
    }
    /// Whether the session's horizon has passed.
    #[inline]
    pub fn is_past_horizon(self) -> bool {
        self.local_ns >= self.horizon_ns && !planted::is(Bug::HorizonIgnored)
    }
    /// The deadline to write for a hold that starts now. Never earlier than by the true time, so
    /// that no client takes the lock over before the lease is over.
    #[inline]
    pub fn deadline(self, expire_s: u32) -> u32 {
        ServerTime(self.time.0.saturating_add(self.uncertainty_ns)).deadline(expire_s)
    }
    /// Whether a hold with this deadline has expired for sure.
    #[inline]
    pub fn surely_expired(self, deadline_s: u32) -> bool {
        let uncertainty_ns = match planted::is(Bug::ThiefWithoutEpsilon) {
            true => 0,
            false => self.uncertainty_ns,
        };
        self.time.0.saturating_sub(uncertainty_ns) >= ServerTime::expiry_of(deadline_s).0
    }
    /// Whether a hold with this deadline may have expired.
    #[inline]
    pub fn maybe_expired(self, deadline_s: u32) -> bool {
        self.time.0.saturating_add(self.uncertainty_ns) >= ServerTime::expiry_of(deadline_s).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_saturates_and_the_last_one_never_expires() {
        let now = ServerTime(1_000 * NS);
        assert_eq!(now.deadline(u32::MAX), u32::MAX);
        assert!(!Now::exact(ServerTime(u64::MAX - 1)).surely_expired(u32::MAX));
    }

    #[test]
    fn what_is_left_of_a_lease_is_not_cut_and_what_is_over_stays_over() {
        for now_ns in [1_000 * NS, 1_000 * NS + 1, 1_001 * NS - 1] {
            let now = ServerTime(now_ns);
            let end_ns = |left_ns| ServerTime::expiry_of(now.deadline_of_rest(left_ns)).0;
            assert!(end_ns(0) <= now_ns);
            for left_ns in [1, NS - 1, NS, NS + 1, 600 * NS] {
                assert!((now_ns + left_ns..now_ns + left_ns + NS).contains(&end_ns(left_ns)));
            }
            assert_eq!(now.deadline_of_rest(u64::MAX), u32::MAX);
        }
    }

    #[test]
    fn a_deadline_is_not_earlier_than_the_true_time_asks_for() {
        let now = Now::within(ServerTime(11 * NS - 5), 5);
        assert_eq!(now.deadline(3), 14);
        assert_eq!(Now::exact(ServerTime(11 * NS - 5)).deadline(3), 13);
    }

    #[test]
    fn a_hold_is_valid_through_the_whole_second_of_its_deadline() {
        let at = |ns| Now::within(ServerTime(ns), 5);
        assert!(!at(11 * NS + 4).surely_expired(10));
        assert!(at(11 * NS + 5).surely_expired(10));
        assert!(!at(11 * NS - 6).maybe_expired(10));
        assert!(at(11 * NS - 5).maybe_expired(10));
    }
}
