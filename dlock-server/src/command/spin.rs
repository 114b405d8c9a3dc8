// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long the command thread looks for work before it sleeps.
//!
//! A wake-up from sleep costs more than a message round trip, so the thread keeps looking for a
//! while after work. That time doubles when work was found in it, and halves when none was.

use std::time::{Duration, Instant};

/// The longest time of looking without `sleep_mode`.
const BUSY_MAX: Duration = Duration::from_millis(1);
/// The longest time of looking with `sleep_mode`.
const SLEEPY_MAX: Duration = Duration::from_micros(50);
/// The shortest time of looking is the longest time divided by this number.
const PARTS: u32 = 16;

/// Measures how long the command thread looks for work before it sleeps.
#[derive(Debug)]
pub(super) struct Spin {
    longest: Duration,
    length: Duration,
    /// When the present look ends; `None`: the thread is not looking.
    until: Option<Instant>,
}

impl Spin {
    pub(super) fn new(sleep_mode: bool) -> Self {
        let longest = if sleep_mode { SLEEPY_MAX } else { BUSY_MAX };
        Self { longest, length: longest, until: None }
    }

    /// Records that there was work: if it was found by looking, the next look lasts longer.
    pub(super) fn worked(&mut self) {
        if self.until.take().is_some() {
            self.length = (self.length * 2).min(self.longest);
        }
    }

    /// Records that there was no work; returns `false` if the thread should sleep.
    pub(super) fn goes_on(&mut self) -> bool {
        self.goes_on_at(Instant::now())
    }

    fn goes_on_at(&mut self, now: Instant) -> bool {
        match self.until {
            None => self.until = Some(now + self.length),
            // Another thread that waits for this CPU may be about to send something.
            Some(until) if now < until => std::thread::yield_now(),
            Some(_) => {
                self.until = None;
                self.length = (self.length / 2).max(self.longest / PARTS);
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_ends_and_becomes_shorter_when_nothing_comes() {
        let mut spin = Spin::new(false);
        let mut now = Instant::now();
        let mut lengths = Vec::new();
        for _ in 0..6 {
            lengths.push(spin.length);
            assert!(spin.goes_on_at(now));
            assert!(spin.goes_on_at(now + spin.length / 2));
            now += spin.length;
            assert!(!spin.goes_on_at(now));
        }
        assert_eq!(lengths[0], BUSY_MAX);
        assert_eq!(lengths[1], BUSY_MAX / 2);
        assert_eq!(lengths[5], BUSY_MAX / PARTS);
    }

    #[test]
    fn looking_becomes_longer_again_when_something_comes() {
        let mut spin = Spin::new(true);
        spin.length = SLEEPY_MAX / PARTS;
        for _ in 0..10 {
            assert!(spin.goes_on_at(Instant::now()));
            spin.worked();
        }
        assert_eq!(spin.length, SLEEPY_MAX);
        spin.worked();
        assert_eq!(spin.length, SLEEPY_MAX);
    }
}
