// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server clock, and lease arithmetic on it.
//!
//! The server clock is the primary's CLOCK_BOOTTIME plus a constant: it never steps, and does not
//! stand still while the machine is suspended. A client has an [estimate](ClockEstimate) of it,
//! with an uncertainty ε. The server clock counts from the *anchor* of the incarnation, which is a
//! while before the primary's start ([`START_S`]). Deadlines and leases are in *ticks* of a
//! sixteenth of a second: a hold with deadline `d` is valid through the whole tick `d`, so it
//! *expires* at `d + 1` ticks.
//!
//! ```text
//!   holder believes until   posted + lease − ε         (never later than the deadline in the word)
//!   stealer waits until     (d + 1) ticks + ε
//! ```
//! 32 bits of ticks last for 8 years of one incarnation. After that, deadlines saturate: holds that
//! begin then have no end.

mod estimate;

pub use estimate::{ClockEstimate, Refresh, TrackedClock};

use std::time::Duration;

use crate::planted::{self, Bug};

/// Nanoseconds since the incarnation's anchor on the server clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ServerTime(pub u64);

/// Nanoseconds in a second.
pub const NS: u64 = 1_000_000_000;
/// Ticks in a second: the unit of deadlines and leases, in words, ledgers and messages.
pub const TICKS_PER_S: u32 = 16;
/// Nanoseconds in a tick (62.5 ms).
pub const TICK_NS: u64 = NS / TICKS_PER_S as u64;
/// The server clock when a primary starts, in seconds (50 days). Any age that a client can send (32
/// bits of milliseconds) is shorter; and the start is later than tick 0, which is the deadline of
/// a hold that is over.
pub const START_S: u64 = 50 * 86_400;

/// How long a hold is to last, in ticks; 0: the operation only asks for the present state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lease(pub u32);

impl Lease {
    /// No lease: the operation only asks.
    pub const NONE: Self = Self(0);
    /// A lease without an end.
    pub const ENDLESS: Self = Self(u32::MAX);

    /// A lease of this many seconds; too many for the type: endless.
    #[inline]
    pub const fn secs(seconds: u32) -> Self {
        Self(seconds.saturating_mul(TICKS_PER_S))
    }
    /// A lease of at least this time; too long for the type: endless.
    pub fn at_least(time: Duration) -> Self {
        let ticks = time.as_nanos().div_ceil(u128::from(TICK_NS));
        Self(u32::try_from(ticks).unwrap_or(u32::MAX))
    }
    /// A lease of at least this many nanoseconds; too long for the type: endless.
    pub const fn at_least_ns(ns: u64) -> Self {
        let ticks = ns.div_ceil(TICK_NS);
        Self(if ticks > u32::MAX as u64 { u32::MAX } else { ticks as u32 })
    }
    /// Whether this is no lease, so that the operation only asks.
    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
    /// Whether the lease has no end.
    #[inline]
    pub const fn is_endless(self) -> bool {
        self.0 == u32::MAX
    }
    /// The lease in nanoseconds.
    pub const fn ns(self) -> u64 {
        self.0 as u64 * TICK_NS
    }
}

/// The last tick through which a hold is valid, counted from the anchor of the incarnation that
/// granted the hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Deadline(pub u32);

impl Deadline {
    /// The deadline of a hold that is over.
    pub const NONE: Self = Self(0);
    /// The deadline of a hold without an end.
    pub const NEVER: Self = Self(u32::MAX);

    /// The first tick of this second of the server clock.
    #[inline]
    pub const fn at_s(seconds: u32) -> Self {
        Self(seconds.saturating_mul(TICKS_PER_S))
    }
    /// Whether the hold never ends.
    #[inline]
    pub const fn is_never(self) -> bool {
        self.0 == u32::MAX
    }
    /// The first moment at which the hold has expired.
    #[inline]
    pub fn expiry(self) -> ServerTime {
        match self {
            Self::NEVER => ServerTime(u64::MAX),
            Self(tick) => ServerTime((u64::from(tick) + 1) * TICK_NS),
        }
    }
    /// The second of the deadline, in seconds since 1970, as the C API shows it; `anchor_s`: the
    /// anchor in seconds since 1970. 0: what is over; `u32::MAX`: what never ends.
    #[inline]
    pub fn shown_s(self, anchor_s: u32) -> u32 {
        match self {
            Self::NONE | Self::NEVER => self.0,
            Self(tick) => anchor_s.saturating_add(tick / TICKS_PER_S),
        }
    }
    /// The deadline as a word has it.
    #[inline]
    pub const fn into_bits(self) -> u32 {
        self.0
    }
    /// The deadline from the bits of a word.
    #[inline]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}

/// The fastest drift between two clocks for which the protocol allows, in parts per million: 500 of
/// the faster clock's time are 500.25 of the slower one's.
pub const DRIFT_PPM: u64 = 501;
/// A coarse reading of a client's own clock is late by at most this many nanoseconds: ten ticks
/// of a kernel at 100 Hz.
pub const COARSE_NS_MAX: u64 = 100_000_000;

impl ServerTime {
    /// The tick of this time, as a deadline; saturates.
    #[inline]
    pub fn tick(self) -> Deadline {
        Deadline(u32::try_from(self.0 / TICK_NS).unwrap_or(u32::MAX))
    }
    /// The deadline of a hold that starts at this time; saturates, never wraps.
    #[inline]
    pub fn deadline(self, lease: Lease) -> Deadline {
        let is_short = planted::is(Bug::LeaseShortened) && !lease.is_endless();
        let ticks = lease.0 - u32::from(is_short && lease.0 > 0);
        Deadline(self.tick().0.saturating_add(ticks))
    }
    /// The deadline of a hold that has `left_ns` nanoseconds left at this time; `u64::MAX`: no end.
    /// The hold lasts at least as long as before, and less than a tick longer. A hold that is over
    /// (0) stays over.
    pub fn deadline_of_rest(self, left_ns: u64) -> Deadline {
        let end = match left_ns {
            0 if !planted::is(Bug::ClaimRevived) => self.0 / TICK_NS,
            _ => self.0.saturating_add(left_ns).div_ceil(TICK_NS),
        };
        match left_ns {
            u64::MAX => Deadline::NEVER,
            _ => {
                Deadline(u32::try_from(end.saturating_sub(1)).unwrap_or(u32::MAX).min(u32::MAX - 1))
            }
        }
    }
    /// This time plus `ns` nanoseconds.
    pub fn plus_ns(self, ns: u64) -> ServerTime {
        ServerTime(self.0.saturating_add(ns))
    }
}

/// A client's knowledge of the server clock at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Now {
    /// The estimate of the server clock.
    pub time: ServerTime,
    /// ε: the true server clock differs from `time` by at most this many nanoseconds.
    pub uncertainty_ns: u64,
    /// The reader's own clock (CLOCK_BOOTTIME). A better estimate does not move it, so it measures
    /// the time between two readings.
    pub local_ns: u64,
    /// The session's horizon on the reader's own clock: from then on the client neither posts nor
    /// relies on what it holds ([`session`](crate::session)). `u64::MAX`: none.
    pub horizon_ns: u64,
    /// How often the server clock has turned out to differ from the estimate ([`TrackedClock`]).
    /// Readings with the same number belong to one clock. A hold whose lease was judged by another
    /// clock is possibly over.
    pub discontinuities: u64,
}

impl Now {
    /// An exact reading: that of the primary itself, and of the simulator.
    pub fn exact(time: ServerTime) -> Self {
        let (local_ns, horizon_ns) = (time.0, u64::MAX);
        Self { time, uncertainty_ns: 0, local_ns, horizon_ns, discontinuities: 0 }
    }
    /// Like [`exact`](Self::exact), with this ε.
    pub fn within(time: ServerTime, uncertainty_ns: u64) -> Self {
        Self { uncertainty_ns, ..Self::exact(time) }
    }
    /// This estimate of the server clock, carried forward to `local_ns`, a later time on the
    /// client's own clock. The uncertainty ε grows by how far the two clocks may drift apart.
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
    /// The deadline to write for a hold that starts now. It is never earlier than by the true time,
    /// so no client takes the lock over before the lease is over.
    #[inline]
    pub fn deadline(self, lease: Lease) -> Deadline {
        ServerTime(self.time.0.saturating_add(self.uncertainty_ns)).deadline(lease)
    }
    /// Whether a hold with this deadline has surely expired.
    #[inline]
    pub fn surely_expired(self, deadline: Deadline) -> bool {
        let uncertainty_ns = match planted::is(Bug::ThiefWithoutEpsilon) {
            true => 0,
            false => self.uncertainty_ns,
        };
        self.time.0.saturating_sub(uncertainty_ns) >= deadline.expiry().0
    }
    /// Whether a hold with this deadline may have expired.
    #[inline]
    pub fn maybe_expired(self, deadline: Deadline) -> bool {
        let end_ns = match planted::is(Bug::EndInSeconds) {
            true => deadline.expiry().0.div_ceil(NS).saturating_mul(NS),
            false => deadline.expiry().0,
        };
        self.time.0.saturating_add(self.uncertainty_ns) >= end_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_saturates_and_the_last_one_never_expires() {
        let now = ServerTime(1_000 * NS);
        assert_eq!(now.deadline(Lease::ENDLESS), Deadline::NEVER);
        assert!(!Now::exact(ServerTime(u64::MAX - 1)).surely_expired(Deadline::NEVER));
        let late = ServerTime(u64::from(u32::MAX) * TICK_NS);
        assert_eq!(late.deadline(Lease::secs(1)), Deadline::NEVER, "nothing wraps");
        assert!(ServerTime(START_S * NS).deadline(Lease::secs(8 * 365 * 86_400)) < Deadline::NEVER);
    }

    #[test]
    fn a_lease_is_rounded_up_to_ticks_and_seconds_are_exact() {
        let of = |ms| Lease::at_least(Duration::from_millis(ms));
        assert_eq!((of(0), of(1), of(62), of(63)), (Lease(0), Lease(1), Lease(1), Lease(2)));
        assert_eq!((of(250), of(300), of(7_000)), (Lease(4), Lease(5), Lease::secs(7)));
        assert_eq!((Lease::secs(7).ns(), of(250).ns()), (7 * NS, NS / 4));
        assert_eq!(Lease::at_least(Duration::from_nanos(TICK_NS + 1)), Lease(2));
        assert_eq!(Lease::at_least(Duration::MAX), Lease::ENDLESS);
        assert_eq!((Lease::secs(u32::MAX), Lease::secs(1 << 28)), (Lease::ENDLESS, Lease::ENDLESS));
    }

    #[test]
    fn a_deadline_is_shown_as_the_second_it_falls_into() {
        let now = ServerTime(START_S * NS + NS / 2);
        let shown_s = |lease| now.deadline(lease).shown_s(1_000) - START_S as u32;
        assert_eq!(
            (shown_s(Lease::secs(5)), shown_s(Lease(7)), shown_s(Lease(8))),
            (1_005, 1_000, 1_001)
        );
        assert_eq!((Deadline::NONE.shown_s(9), Deadline::NEVER.shown_s(9)), (0, u32::MAX));
        assert_eq!(Deadline(u32::MAX - 1).shown_s(u32::MAX), u32::MAX);
    }

    #[test]
    fn what_is_left_of_a_lease_is_not_cut_and_what_is_over_stays_over() {
        for now_ns in [1_000 * NS, 1_000 * NS + 1, 1_000 * NS + TICK_NS - 1, 1_001 * NS - 1] {
            let now = ServerTime(now_ns);
            let end_ns = |left_ns| now.deadline_of_rest(left_ns).expiry().0;
            assert!(end_ns(0) <= now_ns);
            for left_ns in [1, TICK_NS - 1, TICK_NS, TICK_NS + 1, NS, 600 * NS] {
                assert!((now_ns + left_ns..now_ns + left_ns + TICK_NS).contains(&end_ns(left_ns)));
            }
            assert_eq!(now.deadline_of_rest(u64::MAX), Deadline::NEVER);
        }
    }

    #[test]
    fn a_deadline_is_not_earlier_than_the_true_time_asks_for() {
        let now = Now::within(ServerTime(11 * TICK_NS - 5), 5);
        assert_eq!(now.deadline(Lease(3)), Deadline(14));
        assert_eq!(Now::exact(ServerTime(11 * TICK_NS - 5)).deadline(Lease(3)), Deadline(13));
        for ns in [11 * TICK_NS - 5, 11 * TICK_NS, 11 * TICK_NS + 1] {
            let lasts_ns = ServerTime(ns).deadline(Lease(3)).expiry().0 - ns;
            assert!((3 * TICK_NS + 1..=4 * TICK_NS).contains(&lasts_ns), "{lasts_ns}");
        }
    }

    #[test]
    fn a_hold_is_valid_through_the_whole_tick_of_its_deadline() {
        let at = |ns| Now::within(ServerTime(ns), 5);
        let end_ns = 11 * TICK_NS;
        assert!(!at(end_ns + 4).surely_expired(Deadline(10)));
        assert!(at(end_ns + 5).surely_expired(Deadline(10)));
        assert!(!at(end_ns - 6).maybe_expired(Deadline(10)));
        assert!(at(end_ns - 5).maybe_expired(Deadline(10)));
    }
}
