// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client's clock, on which all deadlines count (CLOCK_BOOTTIME), and the server clock, which
//! leases are compared with.
//!
//! An operation decides by one reading of both, [`Now`]. There are two ways to read:
//!
//! ```text
//!   fresh ──▶ the executor's estimate of the server clock; it may ask the primary for the time
//!   coarse ─▶ the last reading, moved on by the client's own clock as of the last tick of the
//!             kernel: it is quick, and never asks
//! ```
//! [`unasked`](ClientLock::unasked) is `coarse` with the exact clock, where the end of a wait is
//! compared. The other functions choose between these readings, and keep the last one.

use dlock_core::clock::Now;
use dlock_core::lock::Op;
use dlock_core::operation::{needs_clock, Bounds};
use dlock_core::wire::message::LockType;
use dlock_fabric::os::clock::{boot_ns, left_until};
use parking_lot::{Condvar, MutexGuard};

use crate::execute::bounds_of;
use crate::table::ClientLock;

/// Waits for a change, until `until_ns` of the client's own clock at most; returns whether that
/// time has come.
pub(crate) fn wait_until<T>(
    changed: &Condvar,
    guard: &mut MutexGuard<'_, T>,
    until_ns: u64,
) -> bool {
    changed.wait_for(guard, left_until(until_ns)).timed_out() && boot_ns() >= until_ns
}

impl ClientLock {
    /// The server clock as the session's executor knows it. The executor may ask the primary.
    #[inline]
    pub(crate) fn fresh(&self) -> Now {
        self.within_horizon(self.exec.now_again(self.last_now))
    }

    /// The last reading, moved on by the client's own clock as of the last tick.
    #[inline]
    fn coarse(&self) -> Now {
        let before_ns = self.last_now.local_ns;
        let local_ns = self.exec.local_coarse_ns(before_ns);
        self.within_horizon(match local_ns > before_ns {
            true => self.last_now.at_local(local_ns),
            false => self.last_now,
        })
    }

    /// The last reading, moved on by the client's own clock: for an operation without an answer, so
    /// that the client does not also wait for the primary to tell the time.
    pub(crate) fn unasked(&self) -> Now {
        self.within_horizon(self.last_now.at_local(boot_ns()))
    }

    /// [`fresh`](Self::fresh) if the executor need not ask the primary for the time now.
    pub(crate) fn fresh_if_ready(&self) -> Now {
        match self.exec.is_clock_ready() {
            true => self.fresh(),
            false => self.unasked(),
        }
    }

    /// The reading `now`, with the horizon of the session.
    #[inline]
    pub(crate) fn within_horizon(&self, now: Now) -> Now {
        Now { horizon_ns: self.pulse.horizon_ns(), ..now }
    }

    /// The reading with which an operation begins. On memory of this host a fresh reading is used
    /// until the next tick.
    #[inline(always)]
    pub(crate) fn clock(&mut self, op: Op) -> Now {
        if self.entry.is_timeless(op) {
            self.last_now = self.coarse();
            return self.last_now;
        }
        if self.entry.needs_no_server_clock(op) {
            self.last_now = self.unasked();
            return self.last_now;
        }
        let is_read = self.is_local && self.last_now.local_ns == self.read_ns;
        if !is_read || !self.is_same_tick() {
            self.read_clock();
        }
        self.last_now.horizon_ns = self.pulse.horizon_ns();
        self.last_now
    }

    /// As [`clock`](Self::clock), for a first effect on memory of this host. An operation that
    /// decides nothing by the clock does not read it, but gets the current horizon.
    #[inline(always)]
    pub(crate) fn clock_at_first(&mut self, op: Op) {
        if self.is_local && self.entry.is_timeless(op) {
            self.last_now.horizon_ns = self.pulse.horizon_ns();
        }
        if !self.is_unclocked(op) {
            self.clock(op);
        }
    }

    /// The reading from before the first effect, for the operation that goes on, and the call's
    /// bounds.
    pub(crate) fn clock_begun(&mut self, op: Op, bounds: Option<&Bounds>) -> (Now, Bounds) {
        if self.is_unclocked(op) {
            self.last_now = self.unasked();
        }
        (self.last_now, bounds_of(bounds, self.last_now.local_ns))
    }

    /// The reading after an outcome, as exact as the type of the lock needs it. If the operation
    /// needs no new reading, this is the last one with the current horizon.
    #[inline]
    pub(crate) fn clock_after(&mut self, is_needed: bool) -> Now {
        if !is_needed {
            return self.within_horizon(self.last_now);
        }
        if !self.is_clock_as_read(true) {
            self.last_now = match self.entry.lock_type() {
                LockType::Rw => self.coarse(),
                LockType::Atomic | LockType::Fair => self.fresh(),
            };
        }
        self.last_now
    }

    /// Whether the last reading is still good after an outcome: the horizon is the same, and no
    /// tick has passed if a new reading is needed.
    #[inline(always)]
    pub(crate) fn is_clock_as_read(&self, is_needed: bool) -> bool {
        let is_same_tick = || self.is_local && self.is_same_tick();
        self.last_now.horizon_ns == self.pulse.horizon_ns() && (!is_needed || is_same_tick())
    }

    #[inline(always)]
    fn is_same_tick(&self) -> bool {
        let before_ns = self.last_now.local_ns;
        self.exec.local_coarse_ns(before_ns) == before_ns
    }

    #[inline(always)]
    fn is_unclocked(&self, op: Op) -> bool {
        let is_local = self.is_local && self.entry.is_timeless(op);
        is_local && !needs_clock(op, &self.entry, self.last_now)
    }

    #[inline(never)]
    fn read_clock(&mut self) {
        self.last_now = self.fresh();
        self.read_ns = self.last_now.local_ns;
    }
}
