// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pause before another try of a lock that another client holds.
//!
//! If there are more clients than processors, the holder of a lock needs a processor as much as its
//! waiters do. If the system stops the holder because its time slice is used up, all waiters wait
//! for milliseconds. So a waiting thread yields its processor: between all tries if others have
//! their turns before it; once in a millisecond if it may win the lock at any moment, so that its
//! time slice does not end while it holds the lock.
//!
//! Over shared memory, reading the lock word takes less time than yielding. If its turn is next, a
//! waiter at first polls without a pause, except on a host with a single processor. If it may win
//! at any moment, it pauses between two tries for longer than an undisturbed holder needs to
//! release the lock, because each try takes the word away from the cache of the holder's processor.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use dlock_fabric::os::threads::cpus_of_process;

/// A pause before another try.
#[derive(Clone, Copy)]
pub(crate) struct Pause {
    pub(crate) time: Duration,
    /// The number of turns of other waiters before this one's; 0: the lock has no turns.
    pub(crate) ahead: u16,
    /// Whether the lock word is in memory of this host.
    pub(crate) is_local: bool,
}

/// How long an operation has waited for its turn, or tried to win the lock.
#[derive(Clone, Copy)]
pub(crate) struct Trying {
    /// When the operation began to try, or when it woke up last.
    pub(crate) since: Instant,
    /// The number of pauses of the operation.
    pub(crate) pauses: u32,
}

impl Trying {
    /// An operation that begins to try now.
    pub(crate) fn now() -> Self {
        Self { since: Instant::now(), pauses: 0 }
    }
}

/// Up to this length, a thread spends a pause spinning, because yielding the processor and getting
/// it back takes longer.
const SPIN_MAX: Duration = Duration::from_micros(2);
/// How long a waiter whose turn is next polls without a pause, on memory of this host. With more
/// waiters than processors the others sleep.
pub(crate) const SPIN_TURN_MAX: Duration = Duration::from_micros(10);
/// How often a thread tries a lock in memory of this host, [`SPIN_MAX`] apart, before it sleeps
/// between two tries: the hold is long, or its owner needs a processor. Tries are counted and not
/// time, because time also passes for threads without a processor.
const SPUN_MAX: u32 = 256;
/// The shortest sleep: the timers of a system are late by about as much.
const SHORT_SLEEP: Duration = Duration::from_micros(50);
/// If a thread has yielded its processor and has it back sooner than this, no other thread wanted
/// the processor.
const QUIET_MAX: Duration = Duration::from_micros(5);
/// Up to this time a pause is not slept through, because a timer is not exact enough.
const YIELD_MAX: Duration = Duration::from_micros(100);
/// The longest pause without a sleep for a waiter with other turns before its own: waking up on a
/// busy host may take as long, while the others have their turns.
const FAR_YIELD_MAX: Duration = Duration::from_micros(500);
/// An operation that has waited for longer sleeps in its pauses: most holds are shorter.
pub(crate) const AWAKE_MAX: Duration = Duration::from_millis(2);
/// A thread that may win the lock at any moment yields its processor this often. If other threads
/// wait for the processor, the system lets a thread run for about as long. Each yield costs as much
/// as several tries.
const RUN_MAX: Duration = Duration::from_millis(1);

thread_local! {
    /// When this thread last yielded its processor.
    static GAVE_AWAY: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Lets this time pass; a little more if other threads want the processor. If an operation has
/// other turns before its own, and the thread would come back too late for its turn, this returns
/// earlier. If the operation has tried for long, the thread sleeps; with other turns before its
/// own, it sleeps only if no other thread wants the processor.
pub(crate) fn pass(Pause { time, ahead, is_local }: Pause, trying: Trying) {
    let start = Instant::now();
    let tried = start.duration_since(trying.since);
    let may_spin = !is_local || processors() > 1;
    if is_local && ahead == 1 && tried < SPIN_TURN_MAX && may_spin {
        return std::hint::spin_loop();
    }
    if is_local && ahead == 0 && trying.pauses > SPUN_MAX {
        return std::thread::sleep(time.max(SHORT_SLEEP));
    }
    let is_far = ahead > 1;
    let is_long = time > YIELD_MAX && tried >= AWAKE_MAX;
    if is_long && !is_far {
        return std::thread::sleep(time);
    }
    if time <= SPIN_MAX && ahead == 0 && may_spin && !has_run_long(start) {
        return spin(start, if is_local { SPIN_MAX } else { time });
    }
    let mut now = start;
    loop {
        let before = now;
        std::thread::yield_now();
        now = Instant::now();
        GAVE_AWAY.set(Some(now));
        let (left, away) = (time.saturating_sub(now - start), now - before);
        // to yield again would bring the thread back too late for its turn
        if left.is_zero() || is_far && away >= left {
            return;
        }
        if is_far && left > FAR_YIELD_MAX && away < QUIET_MAX {
            return std::thread::sleep(left);
        }
    }
}

/// How many processors this process may use.
pub(crate) fn processors() -> u16 {
    static PROCESSORS: OnceLock<u16> = OnceLock::new();
    *PROCESSORS.get_or_init(|| u16::try_from(cpus_of_process()).unwrap_or(u16::MAX))
}

fn spin(start: Instant, time: Duration) {
    loop {
        std::hint::spin_loop();
        if start.elapsed() >= time {
            return;
        }
    }
}

/// Whether this thread has run for [`RUN_MAX`] without yielding its processor.
fn has_run_long(now: Instant) -> bool {
    GAVE_AWAY.get().is_none_or(|gave| now.duration_since(gave) >= RUN_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn since(since: Instant) -> Trying {
        Trying { since, pauses: 1 }
    }

    #[test]
    fn who_may_win_at_any_moment_gives_the_processor_away_once_in_a_while() {
        let now = Instant::now();
        assert!(has_run_long(now), "it has not yet");
        pass(Pause { time: Duration::ZERO, ahead: 0, is_local: false }, since(now));
        let gave = GAVE_AWAY.get().unwrap();
        assert!(gave >= now && !has_run_long(gave));
        assert!(!has_run_long(gave + RUN_MAX / 2) && has_run_long(gave + RUN_MAX));
    }

    #[test]
    fn who_has_others_before_it_gives_the_processor_away_each_time() {
        for ahead in [1, 2] {
            let before = Instant::now();
            let pause = Pause { time: Duration::ZERO, ahead, is_local: false };
            pass(pause, since(before));
            pass(pause, since(before));
            let first = GAVE_AWAY.get().unwrap();
            pass(pause, since(before));
            assert!(GAVE_AWAY.get().unwrap() > first);
        }
    }

    #[test]
    fn who_is_next_in_memory_of_this_host_looks_all_the_time_but_not_for_long() {
        let pause = Pause { time: Duration::ZERO, ahead: 1, is_local: true };
        let start = Instant::now();
        pass(pause, since(start + Duration::from_secs(60)));
        assert_eq!(GAVE_AWAY.take().is_some(), processors() == 1, "it has just begun");
        pass(pause, since(start.checked_sub(SPIN_TURN_MAX).unwrap()));
        assert!(GAVE_AWAY.get().unwrap() >= start);
    }

    #[test]
    fn tries_in_memory_of_this_host_are_no_closer_than_a_hold_takes() {
        let pause = Pause { time: Duration::ZERO, ahead: 0, is_local: true };
        let start = Instant::now();
        pass(pause, since(start)); // gives the processor away, as it has not yet
        let second = Instant::now();
        pass(pause, since(start));
        pass(pause, since(start));
        let is_preempted = start.elapsed() >= RUN_MAX || processors() == 1;
        assert!(is_preempted || second.elapsed() >= 2 * SPIN_MAX);
    }

    #[test]
    fn who_has_tried_often_in_memory_of_this_host_sleeps() {
        let pause = Pause { time: Duration::ZERO, ahead: 0, is_local: true };
        let often = |pauses| Trying { since: Instant::now(), pauses };
        pass(pause, often(SPUN_MAX)); // gives the processor away, as it has not yet
        let gave = GAVE_AWAY.take();
        let start = Instant::now();
        pass(pause, often(SPUN_MAX + 1));
        assert!(gave.is_some() && GAVE_AWAY.take().is_none(), "it sleeps, and does not yield");
        assert!(start.elapsed() >= SHORT_SLEEP);
    }

    #[test]
    fn a_pause_lasts_as_long_as_it_is_said_to_where_nobody_has_a_turn_before() {
        for time in [1, 50, 1_000].map(Duration::from_micros) {
            let start = Instant::now();
            pass(Pause { time, ahead: 0, is_local: false }, since(start));
            pass(Pause { time, ahead: 0, is_local: false }, since(start));
            assert!(start.elapsed() >= time, "{time:?}");
        }
    }
}
