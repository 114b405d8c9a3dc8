// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pause before another try of a lock that another client holds.

use std::time::{Duration, Instant};

/// A pause before another try.
#[derive(Clone, Copy)]
pub(crate) struct Pause {
    pub(crate) time: Duration,
    /// Others are sure to have the lock before.
    pub(crate) is_far: bool,
}

/// Lets so much time pass, a little more at most where others want the processor. Who has tried
/// `since` long ago, or has others before it, lets the processor sleep.
pub(crate) fn pass(Pause { time, is_far }: Pause, since: Instant) {
    /// Shorter than it takes to give the processor away and get it back.
    const SPIN_MAX: Duration = Duration::from_micros(2);
    /// Shorter than the timer of a sleep is sure of.
    const YIELD_MAX: Duration = Duration::from_micros(100);
    /// Shorter than it may take to wake on a busy machine, while the others have their turns.
    const FAR_YIELD_MAX: Duration = Duration::from_micros(500);
    /// A hold is short, or is slept through.
    const AWAKE_MAX: Duration = Duration::from_millis(2);
    let start = Instant::now();
    let is_long = time > YIELD_MAX && start.duration_since(since) >= AWAKE_MAX;
    if is_long || is_far && time > FAR_YIELD_MAX {
        return std::thread::sleep(time);
    }
    loop {
        match time > SPIN_MAX {
            true => std::thread::yield_now(),
            false => std::hint::spin_loop(),
        }
        if start.elapsed() >= time {
            return;
        }
    }
}
