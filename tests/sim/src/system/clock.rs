// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client's clocks: its monotonic clock drifts, its wall clock steps, and it knows the server
//! clock by an exchange of messages (the arithmetic of `dlock_fabric::ClockEstimate`).
//!
//! ```text
//!   true time ──rate, base──▶ local (monotonic) ──offset ± ε──▶ server clock
//! ```

use dlock_core::clock::{Now, ServerTime};

/// Parts per million by which clocks drift apart at most.
pub const DRIFT_PPM: i64 = 500;

/// What a client knows of the server clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Estimate {
    offset: i64,
    half_ns: i64,
    taken: i64,
}

/// A client's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// How much faster than true time it runs, parts per million.
    pub ppm: i64,
    /// What it shows at true time 0.
    pub base: i64,
    /// What its wall clock has been stepped by; nothing reads it but a planted bug.
    pub wall_step: i64,
    /// The drift its ε allows for: none where client and primary share one clock.
    pub bound_ppm: i64,
    /// The server clock as last asked for.
    pub estimate: Estimate,
}

impl Clock {
    /// The monotonic clock at a true time.
    pub fn local(&self, at: u64) -> i64 {
        let at = at as i64;
        self.base + at + at / 1_000_000 * self.ppm + at % 1_000_000 * self.ppm / 1_000_000
    }

    /// The true time at which the monotonic clock shows this, or shortly before.
    pub fn when(&self, local_ns: u64) -> u64 {
        if local_ns == u64::MAX {
            return u64::MAX;
        }
        let since = i128::from(local_ns) - i128::from(self.base);
        let at = since * 1_000_000 / i128::from(1_000_000 + self.ppm);
        u64::try_from(at.max(0)).unwrap_or(u64::MAX)
    }

    /// Learns from an exchange: readings before sending and after receiving, and the answer.
    /// Nothing if it knows better already.
    pub fn learn(&mut self, sent: i64, received: i64, server: ServerTime) {
        let trip_drift = (received - sent) * self.bound_ppm / 1_000_000;
        let half_ns = (received - sent + 1) / 2;
        let (middle, half_ns) = (sent + half_ns, half_ns + trip_drift + 1);
        let known_ns = self.estimate.half_ns + self.drift_ns(received);
        if self.estimate.taken == 0 || half_ns <= known_ns {
            self.estimate = Estimate { offset: server.0 as i64 - middle, half_ns, taken: received };
        }
    }

    /// What drift may have added to the error of the estimate.
    fn drift_ns(&self, local: i64) -> i64 {
        (local - self.estimate.taken).max(0) * self.bound_ppm / 1_000_000
    }

    /// What it knows of the server clock at a true time.
    pub fn now(&self, at: u64) -> Now {
        let local = self.local(at);
        let e = &self.estimate;
        Now {
            time: ServerTime((local + e.offset).max(0) as u64),
            uncertainty_ns: (e.half_ns + self.drift_ns(local) + 1) as u64,
            local_ns: local.max(0) as u64,
            horizon_ns: u64::MAX,
            discontinuities: 0,
        }
    }

    /// The true time from which on this client must take `expiry` (server clock) for reached:
    /// estimate plus uncertainty have come to it.
    pub fn gives_up_at(&self, expiry: ServerTime) -> u64 {
        if expiry.0 == u64::MAX {
            return u64::MAX;
        }
        let e = &self.estimate;
        let scale = i128::from(1_000_000 + self.bound_ppm);
        let fixed = i128::from(expiry.0) - i128::from(e.offset) - i128::from(e.half_ns) - 1;
        let local = (fixed * 1_000_000 + i128::from(self.bound_ppm) * i128::from(e.taken)) / scale;
        self.when(u64::try_from(local.max(0)).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gives_up_when_its_estimate_says_so_and_never_after_the_true_expiry() {
        for ppm in [-500, -3, 0, 499] {
            let mut clock =
                Clock { ppm, base: 77_000_000, bound_ppm: DRIFT_PPM, ..Clock::default() };
            let server = |at: u64| ServerTime(at + 1_000_000_000_000);
            let (sent, at, received) = (5_000_000, 5_400_000, 5_500_000);
            clock.learn(clock.local(sent), clock.local(received), server(at));
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
