// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client's clock that stands still without the client's knowledge: its guest is paused, or saved
//! and restored, and CLOCK_BOOTTIME does not count that time.
//!
//! ```text
//!   the clock stands still ─▶ wrong, and not known ─▶ an exchange that began since ─▶ right again
//! ```
//! Until that exchange the client may rely on a hold that is over: nothing is promised
//! (ARCHITECTURE.md, "Clocks"). After it the clock is within its uncertainty, or off by less than
//! the two estimates could show; and no call that begins then reports a lease that is over.

use dlock_core::clock::Deadline;

use super::plan::Fabric;
use super::state::Sys;

/// The longest time for which a clock stands still.
const STILL_NS_MAX: u64 = 20_000_000_000;

impl Sys {
    /// A client's guest is paused; it does not know for how long.
    pub(super) fn guest_is_paused(&mut self, c: usize) {
        let ns = match self.rng.below(3) {
            0 => self.rng.below(5_000_000),
            _ => self.rng.range(1, STILL_NS_MAX),
        };
        let (now, client) = (self.now, &mut self.clients[c]);
        // a guest on the primary's host would be paused together with the primary, whose clock
        // would stand still as well
        if client.fabric == Fabric::Shm || client.paused_until > now {
            return;
        }
        let until = now + ns;
        client.paused_until = until;
        client.clock.stands_still(now, until);
        let copies = client.threads.iter_mut().filter_map(|t| t.old_clock.as_mut());
        copies.for_each(|clock| clock.stands_still(now, until));
        self.log(|| format!("FAULT the clock of client {c} stands still for {ns} ns"));
    }

    /// Ends the pause of a guest early.
    pub(super) fn guest_goes_on(&mut self, c: usize) {
        let (now, client) = (self.now, &mut self.clients[c]);
        client.clock.goes_on(now);
        let copies = client.threads.iter_mut().filter_map(|t| t.old_clock.as_mut());
        copies.for_each(|clock| clock.goes_on(now));
    }

    /// Whether a result cannot be relied on, because the client's clock had stood still, and was
    /// not right again when the call began.
    pub(super) fn is_by_a_wrong_clock(&self, c: usize, l: usize) -> bool {
        let jumped = self.clients[c].clock.jumped;
        jumped > 0 && self.clients[c].threads[l].is_right != Some(jumped)
    }

    /// Records, when a call begins, whether the client's clock is right as far as it can know.
    pub(super) fn called_by_clock(&mut self, c: usize, l: usize) {
        let (clock, server_now) = (self.clients[c].clock, self.server_now());
        let now = clock.now(self.now);
        let is_within = now.time.0.abs_diff(server_now.0) <= now.uncertainty_ns + 1_000;
        let is_right = clock.jumped > 0 && clock.has_learned && is_within;
        let is_current = self.clients[c].epoch == self.epoch && self.alive;
        let is_there = self.clients[c].threads[l].epoch == self.epoch;
        let is_right = is_right && is_current && is_there;
        self.thread(c, l).is_right = is_right.then_some(clock.jumped);
    }

    /// Checks that a reported lease has not ended on the server's own clock, if the client's clock
    /// had stood still and was right again when the call began.
    pub(super) fn runs_truly(
        &self,
        c: usize,
        l: usize,
        time_out: Option<Deadline>,
    ) -> Result<(), String> {
        let t = &self.clients[c].threads[l];
        let is_right = t.is_right == Some(self.clients[c].clock.jumped);
        let (epoch, _) = t.called;
        let Some(time_out) = time_out.filter(|&time_out| time_out < Deadline::NEVER) else {
            return Ok(());
        };
        let end = time_out.expiry();
        if is_right && epoch == self.epoch && self.server_now() >= end {
            return Err(format!(
                "jump: client {c} is told that it holds lock {l} until {time_out:?}: it is {:?}",
                self.server_now()
            ));
        }
        Ok(())
    }

    /// Checks that an exchange has corrected the clock, if the exchange began after the standstill.
    pub(super) fn is_brought_back(
        &mut self,
        c: usize,
        sent: u64,
        (before_ns, trip_ns): (u64, u64),
    ) {
        let client = &self.clients[c];
        let current = client.epoch == self.epoch && self.alive;
        if !current || client.clock.jumped == 0 || sent < client.clock.jumped {
            return;
        }
        let now = client.clock.now(self.now);
        let error_ns = now.time.0.abs_diff(self.server_now().0);
        // an error smaller than the uncertainties of the two estimates cannot be noticed
        let bound_ns = now.uncertainty_ns.max(before_ns) + trip_ns + now.uncertainty_ns + 10_000;
        if error_ns > bound_ns {
            self.fail(format!(
                "jump: client {c} is off by {error_ns} ns after an exchange: {now:?}"
            ));
        }
    }
}
