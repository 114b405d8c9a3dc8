// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pause before another try of a lock that another client holds.
//!
//! Where there are more clients than processors, the holder of a lock needs a processor as much as
//! those that wait for it. If the system stops the holder because its time slice is used up, all
//! others wait for milliseconds. So a thread that waits gives its processor away: each time, if
//! others have their turns before it; once in a millisecond, if it may win the lock at any moment,
//! so that its time slice does not end while it holds the lock.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// A pause before another try.
#[derive(Clone, Copy)]
pub(crate) struct Pause {
    pub(crate) time: Duration,
    /// Turns of others before this one's; 0: there are no turns.
    pub(crate) ahead: u16,
}

/// Shorter than it takes to give the processor away and get it back.
const SPIN_MAX: Duration = Duration::from_micros(2);
/// If a thread that gave its processor away has it back sooner than this, no other thread has run
/// meanwhile: none wants to.
const QUIET_MAX: Duration = Duration::from_micros(5);
/// Shorter than the timer of a sleep is sure of.
const YIELD_MAX: Duration = Duration::from_micros(100);
/// Shorter than it may take to wake on a busy machine, while the others have their turns.
const FAR_YIELD_MAX: Duration = Duration::from_micros(500);
/// A hold is short, or is slept through.
const AWAKE_MAX: Duration = Duration::from_millis(2);
/// Between two times that a thread gives the processor away while it may win at any moment: as
/// long as the system lets it run where others wait. Each time costs as much as several tries.
const RUN_MAX: Duration = Duration::from_millis(1);

thread_local! {
    /// When this thread last gave the processor away.
    static GAVE_AWAY: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Lets so much time pass, a little more at most where other threads want the processor. Less,
/// where there are turns: a thread that would be back too late for its own returns early. The
/// thread sleeps if the operation has tried `since` long ago; with turns of others before its own,
/// it sleeps only if no other thread wants the processor.
pub(crate) fn pass(Pause { time, ahead }: Pause, since: Instant) {
    let start = Instant::now();
    let is_far = ahead > 1;
    let is_long = time > YIELD_MAX && start.duration_since(since) >= AWAKE_MAX;
    if is_long && !is_far {
        return std::thread::sleep(time);
    }
    if time <= SPIN_MAX && ahead == 0 && !has_run_long(start) {
        return spin(start, time);
    }
    let mut now = start;
    loop {
        let before = now;
        std::thread::yield_now();
        now = Instant::now();
        GAVE_AWAY.set(Some(now));
        let (left, away) = (time.saturating_sub(now - start), now - before);
        // if it gave the processor away once more, it would be back too late for its turn
        if left.is_zero() || is_far && away >= left {
            return;
        }
        if is_far && left > FAR_YIELD_MAX && away < QUIET_MAX {
            return std::thread::sleep(left);
        }
    }
}

fn spin(start: Instant, time: Duration) {
    loop {
        std::hint::spin_loop();
        if start.elapsed() >= time {
            return;
        }
    }
}

/// Whether this thread has not given the processor away for long.
fn has_run_long(now: Instant) -> bool {
    GAVE_AWAY.get().is_none_or(|gave| now.duration_since(gave) >= RUN_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_win_at_any_moment_gives_the_processor_away_once_in_a_while() {
        let now = Instant::now();
        assert!(has_run_long(now), "it has not yet");
        pass(Pause { time: Duration::ZERO, ahead: 0 }, now);
        let gave = GAVE_AWAY.get().unwrap();
        assert!(gave >= now && !has_run_long(gave));
        assert!(!has_run_long(gave + RUN_MAX / 2) && has_run_long(gave + RUN_MAX));
    }

    #[test]
    fn who_has_others_before_it_gives_the_processor_away_each_time() {
        for ahead in [1, 2] {
            let before = Instant::now();
            pass(Pause { time: Duration::ZERO, ahead }, before);
            pass(Pause { time: Duration::ZERO, ahead }, before);
            let first = GAVE_AWAY.get().unwrap();
            pass(Pause { time: Duration::ZERO, ahead }, before);
            assert!(GAVE_AWAY.get().unwrap() > first);
        }
    }

    #[test]
    fn a_pause_lasts_as_long_as_it_is_said_to_where_nobody_has_a_turn_before() {
        for time in [1, 50, 1_000].map(Duration::from_micros) {
            let start = Instant::now();
            pass(Pause { time, ahead: 0 }, start);
            pass(Pause { time, ahead: 0 }, start);
            assert!(start.elapsed() >= time, "{time:?}");
        }
    }
}
