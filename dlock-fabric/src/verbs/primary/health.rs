// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the primary's device works, as the other threads see it.
//!
//! ```text
//!   command thread   a list takes longer than SLOW, or fails ──▶ out ──it works again──▶ works
//!   other threads    ask is_out; say give_up: the operation under way fails now
//! ```
//! The thread that operates on the memory cannot answer meanwhile: other threads answer for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long an operation of the primary's own takes at most on a device that works: five orders of
/// magnitude more than it does, so that a machine that stands still for a moment is no outage.
pub(super) const SLOW: Duration = Duration::from_secs(1);

/// Shared by the thread that operates on the memory and those that do not.
#[derive(Debug, Default)]
pub(super) struct Health {
    out: AtomicBool,
    was_out: AtomicBool,
    given_up: AtomicBool,
}

impl Health {
    /// The device does not answer.
    pub(super) fn fails(&self) {
        self.was_out.store(true, Ordering::Relaxed);
        self.out.store(true, Ordering::Release);
    }

    /// It answers.
    pub(super) fn works(&self) {
        self.out.store(false, Ordering::Release);
    }

    pub(super) fn is_out(&self) -> bool {
        self.out.load(Ordering::Acquire)
    }

    /// Whether it did not answer for a while since this was asked last.
    pub(super) fn take_was_out(&self) -> bool {
        self.was_out.load(Ordering::Relaxed) && self.was_out.swap(false, Ordering::Relaxed)
    }

    /// It is not needed any more: no operation goes on waiting for it.
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
