// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client's clocks. Its local clock drifts, or, on the primary's host, differs from the primary's
//! by a constant; its wall clock steps; it knows the server clock by an exchange of messages
//! ([`ClockEstimate`]).
//!
//! ```text
//!   true time ──rate, base──▶ local ──estimate──▶ server clock
//!                             the primary's local clock is true time
//! ```

use dlock_core::clock::{ClockEstimate, Now, ServerTime, TrackedClock, DRIFT_PPM};

/// The estimate of the server clock that a client has before it has asked for the time.
const NOTHING: ClockEstimate =
    ClockEstimate { offset_ns: 0, half_trip_ns: 0, taken_at_ns: 0, drift_ppm: DRIFT_PPM };

/// A client's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// How much faster than true time the local clock runs, parts per million.
    pub ppm: i64,
    /// What the local clock shows at true time 0.
    pub base: i64,
    /// The sum of the steps of the wall clock; only a planted bug reads it.
    pub wall_step: i64,
    /// Whether the client runs on its primary's host, where client and primary have clocks of one
    /// rate.
    pub is_here: bool,
    /// The last estimate of the server clock.
    pub tracked: Option<TrackedClock>,
    /// The true time at which the clock last went on after standing still.
    pub jumped: u64,
    /// Whether an exchange that began after `jumped` has told the client the time.
    pub has_learned: bool,
}

impl Clock {
    /// The monotonic clock at a true time.
    pub fn local(&self, at: u64) -> i64 {
        let at = at as i64;
        self.base + at + at / 1_000_000 * self.ppm + at % 1_000_000 * self.ppm / 1_000_000
    }

    /// The true time at which the local clock shows `local_ns`, or shortly before.
    pub fn when(&self, local_ns: u64) -> u64 {
        if local_ns == u64::MAX {
            return u64::MAX;
        }
        let since = i128::from(local_ns) - i128::from(self.base);
        let at = since * 1_000_000 / i128::from(1_000_000 + self.ppm);
        u64::try_from(at.max(0)).unwrap_or(u64::MAX)
    }

    /// Learns from an exchange: readings before sending and after receiving, and the answer.
    /// `told_ns`: server clock minus the primary's local clock. A worse estimate is ignored.
    pub fn learn(&mut self, (sent, received): (i64, i64), server: ServerTime, told_ns: u64) {
        let mut new = ClockEstimate::from_exchange(sent as u64, received as u64, server);
        if self.is_here {
            new = new.on_one_host(told_ns);
        }
        match &mut self.tracked {
            None => self.tracked = Some(TrackedClock::new(new)),
            Some(tracked) => drop(tracked.refresh(new, received as u64)),
        }
    }

    /// The estimate of the server clock that the client uses now.
    pub fn estimate(&self) -> Option<ClockEstimate> {
        self.tracked.map(|tracked| tracked.estimate)
    }

    /// The clock stands still from `from` to `until`, without the client's knowledge.
    pub fn stands_still(&mut self, from: u64, until: u64) {
        self.base -= self.local(until) - self.local(from);
        (self.jumped, self.has_learned) = (until, false);
    }

    /// Ends a standstill that was to last longer: the clock goes on from `now`.
    pub fn goes_on(&mut self, now: u64) {
        if self.jumped > now {
            self.base += self.local(self.jumped) - self.local(now);
            self.jumped = now;
        }
    }

    /// The client's estimate of the server clock at a true time.
    pub fn now(&self, at: u64) -> Now {
        let local_ns = self.local(at).max(0) as u64;
        self.tracked.unwrap_or(TrackedClock::new(NOTHING)).at(local_ns)
    }

    /// The true time from which on this client must assume that `expiry` (server clock) is reached:
    /// its estimate plus the uncertainty has come to it.
    pub fn gives_up_at(&self, expiry: ServerTime) -> u64 {
        if expiry.0 == u64::MAX {
            return u64::MAX;
        }
        let e = self.estimate().unwrap_or(NOTHING);
        let (ppm, half_ns) = (i128::from(e.drift_ppm), i128::from(e.half_trip_ns));
        // the estimate's drift, and so ε, is counted from the moment when the request was sent
        let since = i128::from(e.taken_at_ns) - 2 * half_ns;
        let fixed = i128::from(expiry.0) - i128::from(e.offset_ns as i64) - half_ns - 1;
        let local = (fixed * 1_000_000 + ppm * since) / (1_000_000 + ppm);
        self.when(u64::try_from(local.max(0)).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gives_up_when_its_estimate_says_so_and_never_after_the_true_expiry() {
        for ppm in [-500, -3, 0, 499] {
            let mut clock = Clock { ppm, base: 77_000_000, ..Clock::default() };
            let server = |at: u64| ServerTime(at + 1_000_000_000_000);
            let (sent, at, received) = (5_000_000, 5_400_000, 5_500_000);
            let trip = (clock.local(sent), clock.local(received));
            clock.learn(trip, server(at), 0);
            let expiry = server(20_000_000_000);
            let end = clock.gives_up_at(expiry);
            assert!(end <= 20_000_000_000, "{ppm}: {end}");
            assert!(end + 30_000_000 > 20_000_000_000, "{ppm}: {end}");
            let reached = |at| {
                let now = clock.now(at);
                now.time.0 + now.uncertainty_ns >= expiry.0
            };
            assert!(reached(end + 2_000) && !reached(end - 2_000));
            let now = clock.now(12_345_678);
            assert!(now.time.0.abs_diff(server(12_345_678).0) <= now.uncertainty_ns);
        }
    }
}
