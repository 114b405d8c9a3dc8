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
use std::time::Duration;

use dlock_fabric::os::clock::boot_ns;
use dlock_fabric::os::threads::cpus_of_process;

/// A pause before another try.
#[derive(Clone, Copy)]
pub(crate) struct Pause {
    /// The length of the pause in nanoseconds.
    pub(crate) pause_ns: u64,
    /// The number of turns of other waiters before this one's; 0: the lock has no turns.
    pub(crate) ahead: u16,
    /// Whether the lock word is in memory of this host.
    pub(crate) is_local: bool,
}

/// How long an operation has waited for its turn, or tried to win the lock.
#[derive(Clone, Copy)]
pub(crate) struct Trying {
    /// When the operation began to try, or when it woke up last.
    pub(crate) since_ns: u64,
    /// The number of pauses of the operation.
    pub(crate) pauses: u32,
}

impl Trying {
    /// An operation that begins to try now.
    pub(crate) fn now() -> Self {
        Self { since_ns: boot_ns(), pauses: 0 }
    }
}

/// Up to this length, a thread spends a pause spinning, because yielding the processor and getting
/// it back takes longer.
const SPIN_NS_MAX: u64 = 2_000;
/// How long a waiter whose turn is next polls without a pause, on memory of this host. With more
/// waiters than processors the others sleep.
pub(crate) const SPIN_TURN_NS_MAX: u64 = 10_000;
/// How often a thread tries a lock in memory of this host, [`SPIN_NS_MAX`] apart, before it sleeps
/// between two tries: the hold is long, or its owner needs a processor. Tries are counted and not
/// time, because time also passes for threads without a processor.
const SPUN_MAX: u32 = 256;
/// The shortest sleep: the timers of a system are late by about as much.
const SHORT_SLEEP_NS: u64 = 50_000;
/// If a thread has yielded its processor and has it back sooner than this, no other thread wanted
/// the processor.
const QUIET_NS_MAX: u64 = 5_000;
/// Up to this time a pause is not slept through, because a timer is not exact enough.
const YIELD_NS_MAX: u64 = 100_000;
/// The longest pause without a sleep for a waiter with other turns before its own: waking up on a
/// busy host may take as long, while the others have their turns.
const FAR_YIELD_NS_MAX: u64 = 500_000;
/// An operation that has waited for longer sleeps in its pauses: most holds are shorter.
pub(crate) const AWAKE_NS_MAX: u64 = 2_000_000;
/// A thread that may win the lock at any moment yields its processor this often. If other threads
/// wait for the processor, the system lets a thread run for about as long. Each yield costs as much
/// as several tries.
const RUN_NS_MAX: u64 = 1_000_000;

thread_local! {
    /// When this thread last yielded its processor; 0: never.
    static GAVE_AWAY_NS: Cell<u64> = const { Cell::new(0) };
}

/// Lets this time pass; a little more if other threads want the processor. If an operation has
/// other turns before its own, and the thread would come back too late for its turn, this returns
/// earlier. If the operation has tried for long, the thread sleeps; with other turns before its
/// own, it sleeps only if no other thread wants the processor.
pub(crate) fn pass(Pause { pause_ns, ahead, is_local }: Pause, trying: Trying) {
    let start_ns = boot_ns();
    let tried_ns = start_ns.saturating_sub(trying.since_ns);
    let may_spin = !is_local || processors() > 1;
    if is_local && ahead == 1 && tried_ns < SPIN_TURN_NS_MAX && may_spin {
        return std::hint::spin_loop();
    }
    if is_local && ahead == 0 && trying.pauses > SPUN_MAX {
        return sleep_ns(pause_ns.max(SHORT_SLEEP_NS));
    }
    let is_far = ahead > 1;
    let is_long = pause_ns > YIELD_NS_MAX && tried_ns >= AWAKE_NS_MAX;
    if is_long && !is_far {
        return sleep_ns(pause_ns);
    }
    if pause_ns <= SPIN_NS_MAX && ahead == 0 && may_spin && !has_run_long(start_ns) {
        return spin(start_ns + if is_local { SPIN_NS_MAX } else { pause_ns });
    }
    let mut now_ns = start_ns;
    loop {
        let before_ns = now_ns;
        std::thread::yield_now();
        now_ns = boot_ns();
        GAVE_AWAY_NS.set(now_ns);
        let left_ns = pause_ns.saturating_sub(now_ns - start_ns);
        let away_ns = now_ns - before_ns;
        // to yield again would bring the thread back too late for its turn
        if left_ns == 0 || is_far && away_ns >= left_ns {
            return;
        }
        if is_far && left_ns > FAR_YIELD_NS_MAX && away_ns < QUIET_NS_MAX {
            return sleep_ns(left_ns);
        }
    }
}

/// How many processors this process may use.
pub(crate) fn processors() -> u16 {
    static PROCESSORS: OnceLock<u16> = OnceLock::new();
    *PROCESSORS.get_or_init(|| u16::try_from(cpus_of_process()).unwrap_or(u16::MAX))
}

fn sleep_ns(pause_ns: u64) {
    std::thread::sleep(Duration::from_nanos(pause_ns));
}

fn spin(until_ns: u64) {
    loop {
        std::hint::spin_loop();
        if boot_ns() >= until_ns {
            return;
        }
    }
}

/// Whether this thread has run for [`RUN_NS_MAX`] without yielding its processor.
fn has_run_long(now_ns: u64) -> bool {
    now_ns - GAVE_AWAY_NS.get() >= RUN_NS_MAX
}

#[cfg(test)]
mod tests {
    use dlock_fabric::os::clock::deadline_in;

    use super::*;

    fn since(since_ns: u64) -> Trying {
        Trying { since_ns, pauses: 1 }
    }

    #[test]
    fn who_may_win_at_any_moment_gives_the_processor_away_once_in_a_while() {
        let now_ns = boot_ns();
        assert!(has_run_long(now_ns), "it has not yet");
        pass(Pause { pause_ns: 0, ahead: 0, is_local: false }, since(now_ns));
        let gave_ns = GAVE_AWAY_NS.get();
        assert!(gave_ns >= now_ns && !has_run_long(gave_ns));
        assert!(!has_run_long(gave_ns + RUN_NS_MAX / 2) && has_run_long(gave_ns + RUN_NS_MAX));
    }

    #[test]
    fn who_has_others_before_it_gives_the_processor_away_each_time() {
        for ahead in [1, 2] {
            let before_ns = boot_ns();
            let pause = Pause { pause_ns: 0, ahead, is_local: false };
            pass(pause, since(before_ns));
            pass(pause, since(before_ns));
            let first_ns = GAVE_AWAY_NS.get();
            pass(pause, since(before_ns));
            assert!(GAVE_AWAY_NS.get() > first_ns);
        }
    }

    #[test]
    fn who_is_next_in_memory_of_this_host_looks_all_the_time_but_not_for_long() {
        let pause = Pause { pause_ns: 0, ahead: 1, is_local: true };
        let start_ns = boot_ns();
        pass(pause, since(deadline_in(Duration::from_secs(60))));
        assert_eq!(GAVE_AWAY_NS.take() > 0, processors() == 1, "it has just begun");
        pass(pause, since(start_ns - SPIN_TURN_NS_MAX));
        assert!(GAVE_AWAY_NS.get() >= start_ns);
    }

    #[test]
    fn tries_in_memory_of_this_host_are_no_closer_than_a_hold_takes() {
        let pause = Pause { pause_ns: 0, ahead: 0, is_local: true };
        let start_ns = boot_ns();
        pass(pause, since(start_ns)); // the first pause of this thread yields the processor
        let second_ns = boot_ns();
        pass(pause, since(start_ns));
        pass(pause, since(start_ns));
        let end_ns = boot_ns();
        let is_preempted = end_ns - start_ns >= RUN_NS_MAX || processors() == 1;
        assert!(is_preempted || end_ns - second_ns >= 2 * SPIN_NS_MAX);
    }

    #[test]
    fn who_has_tried_often_in_memory_of_this_host_sleeps() {
        let pause = Pause { pause_ns: 0, ahead: 0, is_local: true };
        let often = |pauses| Trying { since_ns: boot_ns(), pauses };
        pass(pause, often(SPUN_MAX)); // the first pause of this thread yields the processor
        let gave_ns = GAVE_AWAY_NS.take();
        let start_ns = boot_ns();
        pass(pause, often(SPUN_MAX + 1));
        assert!(gave_ns > 0 && GAVE_AWAY_NS.take() == 0, "it sleeps, and does not yield");
        assert!(boot_ns() - start_ns >= SHORT_SLEEP_NS);
    }

    #[test]
    fn a_pause_lasts_as_long_as_it_is_said_to_where_nobody_has_a_turn_before() {
        for pause_ns in [1_000, 50_000, 1_000_000] {
            let start_ns = boot_ns();
            pass(Pause { pause_ns, ahead: 0, is_local: false }, since(start_ns));
            pass(Pause { pause_ns, ahead: 0, is_local: false }, since(start_ns));
            assert!(boot_ns() - start_ns >= pause_ns, "{pause_ns} ns");
        }
    }
}
