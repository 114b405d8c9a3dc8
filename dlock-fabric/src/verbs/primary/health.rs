// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of the primary's device, for the other threads.
//!
//! ```text
//!   command thread   a list takes longer than SLOW, or fails ──▶ out ──it works again──▶ works
//!   other threads    ask is_out; call give_up: the operation under way fails now
//! ```
//! While the device is out, the thread that operates on the memory cannot answer clients, so other
//! threads answer for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The longest time for an operation of the primary on a device that works: five orders of
/// magnitude more than usual, so that a host that stands still for a moment does not count as an
/// outage.
pub(super) const SLOW: Duration = Duration::from_secs(1);

/// Whether the device answers, as seen by the thread that operates on the memory; the other threads
/// read it, too.
#[derive(Debug, Default)]
pub(super) struct Health {
    out: AtomicBool,
    was_out: AtomicBool,
    given_up: AtomicBool,
}

impl Health {
    /// Records that the device does not answer.
    pub(super) fn fails(&self) {
        self.was_out.store(true, Ordering::Relaxed);
        self.out.store(true, Ordering::Release);
    }

    /// Records that the device answers.
    pub(super) fn works(&self) {
        self.out.store(false, Ordering::Release);
    }

    pub(super) fn is_out(&self) -> bool {
        self.out.load(Ordering::Acquire)
    }

    /// Whether the device did not answer for a while, since this function was called last.
    pub(super) fn take_was_out(&self) -> bool {
        self.was_out.load(Ordering::Relaxed) && self.was_out.swap(false, Ordering::Relaxed)
    }

    /// Gives the device up: no operation waits for it any longer.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_seen_while_it_lasts_and_told_of_once() {
        let health = Health::default();
        assert!(!health.is_out() && !health.take_was_out());
        health.fails();
        assert!(health.is_out());
        health.works();
        assert!(!health.is_out() && health.take_was_out() && !health.take_was_out());
        assert!(!health.is_given_up());
        health.give_up();
        assert!(health.is_given_up());
    }
}
