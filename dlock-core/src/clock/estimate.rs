// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client's estimate of the server clock, and how the client notices that a clock stood still or
//! jumped.
//!
//! ```text
//!   client   sent ──────────┐        ┌────────▶ received
//!   primary                 └─ at ───┘  error ≤ (received − sent)/2
//!
//!   an estimate: at local time L the server clock is in  [L + offset − ε, L + offset + ε]
//!
//!   [────old────]                overlap   ▶ the more exact one is kept
//!      [─new─]                               (Accepted or Rejected)
//!   [────old────]   [──new──]    disjoint  ▶ clocks that only drift do not do this:
//!                                            the old one is wrong, the new one is taken
//! ```
//! *Local* is the clock of this host that counts suspended time (CLOCK_BOOTTIME). That clock may
//! still stand still: a guest that is paused, or saved and restored, does not know for how long.
//! The same is true of the primary's clock. A discontinuity of `d` goes unnoticed while `d` is at
//! most the sum of the ε of the old and of the new estimate; the error of an estimate is then at
//! most ε + d. The first exchange after a larger discontinuity notices it.
//!
//! Two processes of one host read the same clock of their kernel, shifted by a constant that
//! depends on their time namespaces; it is 0 only within one namespace. So a client on the
//! primary's host estimates the server clock as others do, but its estimate [does not
//! age](ClockEstimate::on_one_host).

use super::{Now, ServerTime, DRIFT_PPM};
use crate::planted::{self, Bug};

/// How much drift may add to ε before the client asks for the server clock again, nanoseconds: the
/// drift of 1 s.
const DRIFT_TOLERATED_NS: u64 = DRIFT_PPM * 1_000;
/// The upper limit of that addition for peers that are far away: the drift of 20 s.
const DRIFT_TOLERATED_NS_MAX: u64 = 20 * DRIFT_TOLERATED_NS;

/// A client's estimate of the server clock, from one exchange of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockEstimate {
    /// Server clock minus this host's local clock, nanoseconds, modulo 2^64.
    pub offset_ns: u64,
    /// Half the round trip of the exchange, nanoseconds.
    pub half_trip_ns: u64,
    /// When the answer was received, on this host's local clock, nanoseconds.
    pub taken_at_ns: u64,
    /// How fast the two clocks may drift apart, parts per million: [`DRIFT_PPM`], or 0 on one host.
    pub drift_ppm: u64,
}

impl ClockEstimate {
    /// The estimate from one exchange: the local clock before sending and after receiving, and the
    /// server clock in the answer.
    pub fn from_exchange(sent_ns: u64, received_ns: u64, at: ServerTime) -> Self {
        // Rounded up: the estimate never claims more than it knows.
        let half_trip_ns = received_ns.saturating_sub(sent_ns).div_ceil(2);
        let middle_ns = sent_ns.wrapping_add(half_trip_ns);
        Self {
            offset_ns: at.0.wrapping_sub(middle_ns),
            half_trip_ns,
            taken_at_ns: received_ns,
            drift_ppm: DRIFT_PPM,
        }
    }

    /// The estimate of a client on the primary's host, where the two local clocks do not drift
    /// apart. `told_offset_ns` is the server clock minus the primary's local clock. The client's
    /// local clock may be that of another time namespace, so the estimate does not use it.
    pub fn on_one_host(self, told_offset_ns: u64) -> Self {
        if planted::is(Bug::HostClockTrusted) {
            return Self { offset_ns: told_offset_ns, half_trip_ns: 0, drift_ppm: 0, ..self };
        }
        Self { drift_ppm: 0, ..self }
    }

    /// Whether this estimate allows the server clock to be the local clock plus `offset_ns`.
    pub fn allows(&self, offset_ns: u64) -> bool {
        let apart_ns = (self.offset_ns.wrapping_sub(offset_ns) as i64).unsigned_abs();
        apart_ns <= self.uncertainty_ns(self.taken_at_ns)
    }

    /// The server clock at the time `local_ns` of the local clock.
    pub fn at(&self, local_ns: u64) -> Now {
        Now {
            time: ServerTime(local_ns.wrapping_add(self.offset_ns)),
            uncertainty_ns: self.uncertainty_ns(local_ns),
            local_ns,
            horizon_ns: u64::MAX,
            discontinuities: 0,
        }
    }

    /// Whether the age of the estimate adds more to ε than a new exchange would cost: half a
    /// millisecond (1 s of drift), or half the round trip. Half a round trip counts up to 20 s of
    /// drift only, because it may have taken long on a busy machine.
    ///
    /// On one host estimates do not age: an estimate is stale if its exchange took long.
    pub fn is_stale(&self, local_ns: u64) -> bool {
        if self.drift_ppm == 0 {
            return self.took_long();
        }
        let drift_ns = self.uncertainty_ns(local_ns).saturating_sub(self.half_trip_ns);
        drift_ns > self.half_trip_ns.clamp(DRIFT_TOLERATED_NS, DRIFT_TOLERATED_NS_MAX)
    }

    /// Whether the exchange took long; on the primary's host the client then asks for the time
    /// again.
    pub fn took_long(&self) -> bool {
        self.half_trip_ns > DRIFT_TOLERATED_NS
    }

    /// ε at the time `local_ns` of the local clock. It grows with the age of the estimate, counted
    /// from when the request was sent: the answer may have been under way for all of the round
    /// trip.
    pub fn uncertainty_ns(&self, local_ns: u64) -> u64 {
        let trip_ns = self.half_trip_ns.saturating_mul(2);
        let age_ns = local_ns.saturating_sub(self.taken_at_ns).saturating_add(trip_ns);
        let drift_ns = u128::from(age_ns) * u128::from(self.drift_ppm) / 1_000_000;
        let drift_ns = u64::try_from(drift_ns).unwrap_or(u64::MAX);
        self.half_trip_ns.saturating_add(drift_ns).saturating_add(1)
    }

    /// Whether no server clock can be within the bounds of both estimates: a clock stood still, or
    /// jumped, between the two exchanges.
    pub fn is_disjoint(&self, other: &ClockEstimate) -> bool {
        // When the later of the two was taken: the ε of that one has not grown yet.
        let local_ns = self.taken_at_ns.max(other.taken_at_ns);
        let apart_ns = (self.offset_ns.wrapping_sub(other.offset_ns) as i64).unsigned_abs();
        let allowed_ns = self.uncertainty_ns(local_ns);
        apart_ns > allowed_ns.saturating_add(other.uncertainty_ns(local_ns))
    }
}

/// The result of a new estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refresh {
    /// The new estimate is more exact, and is in use.
    Accepted,
    /// The new estimate is older, or no better; the one in use stays.
    Rejected,
    /// The new estimate is in use, and the one before was wrong: a deadline that was judged by that
    /// one may have passed earlier or later than believed. Holds that were granted before are
    /// possibly over, and count as such until the client has asked the primary.
    Disjoint,
}

/// The estimate in use, and how often one turned out to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrackedClock {
    /// The estimate.
    pub estimate: ClockEstimate,
    /// How often a new estimate was [disjoint](Refresh::Disjoint) from the one in use. A lock entry
    /// keeps this number with its hold ([`lease`](crate::operation::lease)). A later reading with
    /// another number belongs to a different clock.
    pub discontinuities: u64,
}

impl TrackedClock {
    /// The first estimate.
    pub fn new(estimate: ClockEstimate) -> Self {
        Self { estimate, discontinuities: 0 }
    }

    /// The server clock at the time `local_ns` of the local clock.
    #[inline]
    pub fn at(&self, local_ns: u64) -> Now {
        Now { discontinuities: self.discontinuities, ..self.estimate.at(local_ns) }
    }

    /// Takes the new estimate `candidate` if it is now more exact than the one in use, or proves
    /// the one in use wrong. `local_ns`: the local clock now.
    pub fn refresh(&mut self, candidate: ClockEstimate, local_ns: u64) -> Refresh {
        let current = self.estimate;
        if current.is_disjoint(&candidate) && !planted::is(Bug::DisjointKept) {
            // One of the two is wrong: the older one. A late answer must not undo a correction.
            if candidate.taken_at_ns < current.taken_at_ns {
                return Refresh::Rejected;
            }
            self.estimate = candidate;
            self.discontinuities = self.discontinuities.saturating_add(1);
            return Refresh::Disjoint;
        }
        let local_ns = local_ns.max(candidate.taken_at_ns);
        if candidate.uncertainty_ns(local_ns) >= current.uncertainty_ns(local_ns) {
            return Refresh::Rejected;
        }
        self.estimate = candidate;
        Refresh::Accepted
    }
}

#[cfg(test)]
mod tests {
    use super::super::NS;
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
    fn uncertainty_grows_by_the_drift_of_the_age() {
        let estimate = ClockEstimate::from_exchange(0, 2_000, ServerTime(NS));
        let fresh = estimate.uncertainty_ns(2_000);
        assert_eq!(estimate.uncertainty_ns(2_000 + 1_000_000) - fresh, DRIFT_PPM);
    }

    #[test]
    fn a_clock_that_is_slow_or_fast_by_500_ppm_of_the_other_one_stays_within_the_uncertainty() {
        let slow = |at_ns: u64| at_ns - at_ns / 2_000;
        let fast = |at_ns: u64| at_ns + at_ns / 2_000;
        for local in [slow, fast] {
            let estimate = ClockEstimate::from_exchange(0, local(2_000), ServerTime(1_000));
            for at in [NS, 66 * NS, 3_600 * NS, 86_400 * NS] {
                let now = estimate.at(local(at));
                let error_ns = now.time.0.abs_diff(at);
                assert!(error_ns <= now.uncertainty_ns, "{error_ns} {now:?}");
            }
        }
    }

    #[test]
    fn a_client_on_the_primarys_host_relies_on_the_exchange_and_not_on_the_primarys_clock() {
        // the client's time namespace is ahead by 100,000 s
        let (told_ns, ahead_ns) = (7_000 * NS, 100_000 * NS);
        let local = |primary_ns: u64| primary_ns + ahead_ns;
        let (sent, at, received) = (50 * NS, 50 * NS + 30_000, 50 * NS + 90_000);
        let exchange =
            ClockEstimate::from_exchange(local(sent), local(received), ServerTime(at + told_ns));
        let estimate = exchange.on_one_host(told_ns);
        assert!(!estimate.allows(told_ns) && estimate.allows(told_ns.wrapping_sub(ahead_ns)));
        for age in [0, NS, 86_400 * NS] {
            let now = estimate.at(local(received + age));
            let truth = received + age + told_ns;
            assert!(now.time.0.abs_diff(truth) <= now.uncertainty_ns);
            assert!(now.uncertainty_ns <= 45_001, "it does not age");
        }
        assert!(!estimate.is_stale(u64::MAX));
        let slow = ClockEstimate::from_exchange(0, 3_000_000, ServerTime(0)).on_one_host(0);
        assert!(slow.is_stale(3_000_000));
    }

    /// An estimate from an exchange that ended at `at_ns` and took `trip_ns`, with a server clock
    /// that is `ahead_ns` ahead of the local one.
    fn taken(at_ns: u64, trip_ns: u64, ahead_ns: u64) -> ClockEstimate {
        let middle_ns = at_ns - trip_ns / 2;
        ClockEstimate::from_exchange(at_ns - trip_ns, at_ns, ServerTime(middle_ns + ahead_ns))
    }

    #[test]
    fn a_wider_estimate_that_is_disjoint_replaces_a_narrow_one() {
        for ahead in [0, 1_000 * NS] {
            let mut clock = TrackedClock::new(taken(100 * NS, 2_000, 500 * NS));
            // This host stood still for 10 s (the server is ahead of what was known), or the
            // primary's did; the exchange that shows it takes 3 s.
            let wide = taken(104 * NS, 3 * NS, 490 * NS + ahead);
            assert_eq!(clock.refresh(wide, 104 * NS), Refresh::Disjoint);
            assert_eq!(clock.estimate, wide);
            assert_eq!(clock.discontinuities, 1);
            // An estimate that agrees with the one in use improves it, and is no further
            // discontinuity.
            let narrow = taken(105 * NS, 2_000, 490 * NS + ahead + NS);
            assert_eq!(clock.refresh(narrow, 105 * NS), Refresh::Accepted);
            assert_eq!(clock.discontinuities, 1);
        }
    }

    #[test]
    fn an_answer_that_is_looked_at_late_does_not_bring_a_wrong_clock_back() {
        let before = taken(100 * NS, 2_000, 500 * NS);
        let late = taken(101 * NS, 1_000, 500 * NS);
        let after = taken(102 * NS, 4_000, 560 * NS);
        let mut clock = TrackedClock::new(before);
        assert_eq!(clock.refresh(after, 102 * NS), Refresh::Disjoint);
        assert_eq!(clock.refresh(late, 103 * NS), Refresh::Rejected);
        assert_eq!((clock.estimate, clock.discontinuities), (after, 1));
    }

    #[test]
    fn an_estimate_that_overlaps_is_taken_only_if_it_is_more_exact() {
        let mut clock = TrackedClock::new(taken(100 * NS, 2_000, 500 * NS));
        let wider = taken(100 * NS + 1, 4_000, 500 * NS + 3_000);
        assert_eq!(clock.refresh(wider, 100 * NS + 1), Refresh::Rejected);
        // After an hour of drift, an estimate with the same round trip is better than the one in
        // use.
        let later = taken(3_700 * NS, 4_000, 500 * NS + 3_000);
        assert_eq!(clock.refresh(later, 3_700 * NS), Refresh::Accepted);
        assert_eq!(clock.discontinuities, 0);
    }

    #[test]
    fn estimates_at_the_ends_of_the_range_do_not_overflow() {
        let all = [(u64::MAX, u64::MAX, u64::MAX), (0, 0, 0), (1 << 63, 0, u64::MAX)];
        let all = all.map(|(offset_ns, half_trip_ns, taken_at_ns)| ClockEstimate {
            offset_ns,
            half_trip_ns,
            taken_at_ns,
            drift_ppm: DRIFT_PPM,
        });
        for a in all {
            for b in all {
                assert_eq!(a.is_disjoint(&b), b.is_disjoint(&a));
                let mut clock = TrackedClock { estimate: a, discontinuities: u64::MAX };
                clock.refresh(b, u64::MAX);
                clock.refresh(b, 0);
            }
        }
    }

    /// splitmix64.
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) % limit
        }
    }

    /// A client's and a primary's clock: they drift, and may stand still or jump.
    struct Clocks {
        random: Random,
        local_ns: u64,
        server_ns: u64,
        /// The rate of the server clock, in parts per million of the local clock's.
        ppm: u64,
    }

    impl Clocks {
        fn new(seed: u64) -> Self {
            let mut random = Random(seed);
            let local_ns = random.below(1_000_000 * NS);
            let server_ns = (1 << 60) + random.below(1 << 40);
            // between −DRIFT_PPM and +DRIFT_PPM around the local clock's rate, which the bound
            // allows
            let ppm = 1_000_000 - DRIFT_PPM + random.below(2 * DRIFT_PPM);
            Self { random, local_ns, server_ns, ppm }
        }

        fn goes_on(&mut self, ns: u64) {
            self.local_ns += ns;
            self.server_ns += (u128::from(ns) * u128::from(self.ppm) / 1_000_000) as u64;
        }

        /// One exchange; how long it takes is up to chance.
        fn exchange(&mut self) -> ClockEstimate {
            let scale = [1_000, 1_000_000, 5 * NS][self.random.below(3) as usize];
            let sent_ns = self.local_ns;
            let there = self.random.below(scale);
            self.goes_on(there);
            let at = ServerTime(self.server_ns);
            let back = self.random.below(scale);
            self.goes_on(back);
            ClockEstimate::from_exchange(sent_ns, self.local_ns, at)
        }

        fn error_ns(&self, clock: &TrackedClock) -> u64 {
            clock.estimate.at(self.local_ns).time.0.abs_diff(self.server_ns)
        }

        fn bound_ns(&self, clock: &TrackedClock) -> u64 {
            // a nanosecond for each rounding in this model
            clock.estimate.uncertainty_ns(self.local_ns) + 4
        }
    }

    #[test]
    fn clocks_that_only_drift_are_never_disjoint_and_never_out_of_bounds() {
        for seed in 0..2_000 {
            let mut clocks = Clocks::new(seed);
            let mut clock = TrackedClock::new(clocks.exchange());
            for _ in 0..50 {
                let pause = clocks.random.below(30 * NS);
                clocks.goes_on(pause);
                assert!(clocks.error_ns(&clock) <= clocks.bound_ns(&clock), "seed {seed}");
                let candidate = clocks.exchange();
                assert_ne!(clock.refresh(candidate, clocks.local_ns), Refresh::Disjoint);
                assert!(clocks.error_ns(&clock) <= clocks.bound_ns(&clock), "seed {seed}");
            }
        }
    }

    /// A wrong behaviour of a clock.
    enum Fault {
        LocalStandsStill,
        ServerStandsStill,
        ServerJumpsBack,
    }

    #[test]
    fn a_clock_that_stands_still_or_jumps_is_noticed_by_the_next_exchange() {
        let mut noticed = 0;
        for seed in 0..20_000 {
            let mut clocks = Clocks::new(seed);
            let mut clock = TrackedClock::new(clocks.exchange());
            let before = clocks.random.below(10 * NS);
            clocks.goes_on(before);
            let by_ns = 1 + clocks.random.below([1_000, 1_000_000, 1_000 * NS][seed as usize % 3]);
            match [Fault::LocalStandsStill, Fault::ServerStandsStill, Fault::ServerJumpsBack]
                [clocks.random.below(3) as usize]
            {
                Fault::LocalStandsStill => clocks.server_ns += by_ns,
                Fault::ServerStandsStill => clocks.local_ns += by_ns,
                Fault::ServerJumpsBack => clocks.server_ns -= by_ns,
            }
            let old_bound_ns = clocks.bound_ns(&clock);
            let candidate = clocks.exchange();
            let new_bound_ns = candidate.uncertainty_ns(clocks.local_ns);
            match clock.refresh(candidate, clocks.local_ns) {
                Refresh::Disjoint => {
                    noticed += 1;
                    assert_eq!(clock.discontinuities, 1);
                    assert!(clocks.error_ns(&clock) <= clocks.bound_ns(&clock), "seed {seed}");
                }
                // The jump was smaller than the errors of both exchanges, so it could not be
                // noticed.
                Refresh::Accepted => {
                    assert!(clocks.error_ns(&clock) <= clocks.bound_ns(&clock), "seed {seed}");
                }
                Refresh::Rejected => {
                    let drift_ns = clocks.bound_ns(&clock);
                    let unnoticed_ns = old_bound_ns.max(drift_ns) + 2 * new_bound_ns + 4;
                    assert!(clocks.error_ns(&clock) <= unnoticed_ns, "seed {seed}");
                }
            }
        }
        assert!(noticed > 5_000, "{noticed}");
    }
}
