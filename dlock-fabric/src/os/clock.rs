// SPDX-License-Identifier: MIT OR Apache-2.0
//! Readings of this host's clocks. [`dlock_core::clock`] decides what they mean for the server
//! clock.
//!
//! The *local clock* is CLOCK_BOOTTIME. It never steps, and unlike CLOCK_MONOTONIC it counts the
//! time for which the machine was suspended, as leases do. Reading it costs as much as reading
//! CLOCK_MONOTONIC (measured: 22 ns; a coarse clock 7 ns). It has no coarse variant, so one is made
//! of two others:
//!
//! ```text
//!   CLOCK_MONOTONIC_COARSE ────────────────────── + suspended ──▶ boot_coarse_ns
//!   CLOCK_REALTIME_COARSE − CLOCK_MONOTONIC_COARSE  as it was when `suspended` was measured?
//!                                                   no ─▶ the exact clock, and measure again
//! ```
//! The kernel adds a suspended time to the wall clock and to CLOCK_BOOTTIME, but not to
//! CLOCK_MONOTONIC, in one update that readers see whole. So wall clock − CLOCK_MONOTONIC changes
//! with every suspend. It also changes when the wall clock is set; then the next reading only takes
//! longer. Only a wall clock that is set back by exactly the suspended nanoseconds, before any
//! reading, would go unnoticed.
//!
//! Most readings fall into the same tick as the one before. CLOCK_REALTIME_COARSE alone shows
//! whether the last reading is still right ([`boot_coarse_again_ns`]): every tick and every suspend
//! changes it, and its distance from CLOCK_BOOTTIME was measured. A leap second sets it back by a
//! second. If a tick then falls on the same nanosecond as one a second before, that second is
//! missed: in this second the end of a lease that is shorter may not be noticed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::clock::NS;
pub use dlock_core::clock::{ClockEstimate, DRIFT_PPM};

use crate::memory::published::Published;

/// Ticks by which the kernel's coarse clocks are late at most: one while ticks arrive in time, five
/// before the kernel lets another CPU advance them (`MAX_STALLED_JIFFIES`), and a margin.
pub const COARSE_TICKS_MAX: u64 = 8;
/// Largest error of the measured suspended time, nanoseconds; a measurement that takes longer is
/// not used.
const SUSPENDED_ERROR_NS_MAX: u64 = 10_000;
/// The longest wait, so that the kernel can represent its end.
const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 3_600);
/// Attempts to read these clocks without being interrupted.
const TRIALS_MAX: usize = 4;

/// The local clock, CLOCK_BOOTTIME, in nanoseconds; no system call where the vDSO serves it.
#[inline]
pub fn boot_ns() -> u64 {
    read(libc::CLOCK_BOOTTIME)
}

/// The local clock in nanoseconds at the end of a wait that begins now.
#[inline]
pub fn deadline_in(wait: Duration) -> u64 {
    boot_ns().saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX))
}

/// The time left until the local clock reads `until_ns`, for a wait in the kernel: a year at most.
#[inline]
pub fn left_until(until_ns: u64) -> Duration {
    Duration::from_nanos(until_ns.saturating_sub(boot_ns())).min(WAIT_MAX)
}

/// Whether the local clock has passed `until_ns`. The exact clock is read only if the coarse one,
/// late by at most `coarse_lag_ns`, does not decide it.
#[inline]
pub(crate) fn is_over(until_ns: u64, coarse_lag_ns: u64) -> bool {
    boot_coarse_ns().saturating_add(coarse_lag_ns) > until_ns && boot_ns() > until_ns
}

/// The local clock as of the last tick: late by up to [`COARSE_TICKS_MAX`] ticks, but twice as
/// quick to read.
#[inline]
pub fn boot_coarse_ns() -> u64 {
    SUSPENDED.boot_coarse_ns(read)
}

/// As [`boot_coarse_ns`], and twice as quick if the result is still `before_ns`.
#[inline]
pub fn boot_coarse_again_ns(before_ns: u64) -> u64 {
    SUSPENDED.boot_coarse_again_ns(before_ns, read)
}

static SUSPENDED: Suspended = Suspended::new();

/// A distance of 292 years, which no two clocks have.
const NEVER: u64 = 1 << 63;

/// How long this machine was suspended, and the reading that shows whether it was suspended since.
struct Suspended {
    /// CLOCK_REALTIME − CLOCK_MONOTONIC when it was measured (0: never), and CLOCK_BOOTTIME −
    /// CLOCK_MONOTONIC; both modulo 2^64.
    known: Published<2>,
    /// CLOCK_REALTIME − CLOCK_BOOTTIME of the same measurement, modulo 2^64; [`NEVER`]: there was
    /// none.
    ahead_ns: AtomicU64,
}

impl Suspended {
    const fn new() -> Self {
        Self { known: Published::zero(), ahead_ns: AtomicU64::new(NEVER) }
    }

    #[inline]
    fn boot_coarse_ns(&self, read: impl Fn(libc::clockid_t) -> u64) -> u64 {
        let monotonic_ns = read(libc::CLOCK_MONOTONIC_COARSE);
        let real_ns = read(libc::CLOCK_REALTIME_COARSE);
        let apart_ns = real_ns.wrapping_sub(monotonic_ns);
        let [known_apart_ns, suspended_ns] = self.known.get();
        if apart_ns != known_apart_ns || apart_ns == 0 {
            return self.measure(read);
        }
        monotonic_ns.wrapping_add(suspended_ns)
    }

    #[inline]
    fn boot_coarse_again_ns(&self, before_ns: u64, read: impl Fn(libc::clockid_t) -> u64) -> u64 {
        let real_ns = read(libc::CLOCK_REALTIME_COARSE);
        let ahead_ns = self.ahead_ns.load(Ordering::Relaxed);
        match real_ns == before_ns.wrapping_add(ahead_ns) {
            true => before_ns,
            false => self.boot_coarse_anew_ns(read),
        }
    }

    /// [`boot_coarse_ns`](Self::boot_coarse_ns) in another tick than the last reading.
    #[cold]
    fn boot_coarse_anew_ns(&self, read: impl Fn(libc::clockid_t) -> u64) -> u64 {
        self.boot_coarse_ns(read)
    }

    #[cold]
    fn measure(&self, read: impl Fn(libc::clockid_t) -> u64) -> u64 {
        let apart_ns = || {
            let monotonic_ns = read(libc::CLOCK_MONOTONIC_COARSE);
            read(libc::CLOCK_REALTIME_COARSE).wrapping_sub(monotonic_ns)
        };
        for _ in 0..TRIALS_MAX {
            let apart_before_ns = apart_ns();
            let before_ns = read(libc::CLOCK_MONOTONIC);
            let boot_ns = read(libc::CLOCK_BOOTTIME);
            let after_ns = read(libc::CLOCK_MONOTONIC);
            let error_ns = after_ns.wrapping_sub(before_ns);
            if apart_before_ns == apart_ns() && error_ns <= SUSPENDED_ERROR_NS_MAX {
                // The lower bound, so that no coarse reading is ahead of the exact clock.
                let suspended_ns = boot_ns.wrapping_sub(after_ns);
                self.known.update(|_| (Some([apart_before_ns, suspended_ns]), ()));
                let ahead_ns = apart_before_ns.wrapping_sub(suspended_ns);
                self.ahead_ns.store(ahead_ns, Ordering::Relaxed);
                break;
            }
        }
        read(libc::CLOCK_BOOTTIME)
    }
}

/// How late [`boot_coarse_ns`] is at most.
pub(crate) fn coarse_lag_ns() -> u64 {
    let mut resolution = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `resolution` is a valid place for the answer.
    let rc = unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &mut resolution) };
    let tick_ns = if rc == 0 { nanoseconds(&resolution) } else { NS / 100 };
    tick_ns.max(1).saturating_mul(COARSE_TICKS_MAX).saturating_add(SUSPENDED_ERROR_NS_MAX)
}

#[inline]
fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer. The clocks asked for exist on every Linux,
    // so the call cannot fail.
    unsafe { libc::clock_gettime(clock, &mut time) };
    nanoseconds(&time)
}

#[inline]
fn nanoseconds(time: &libc::timespec) -> u64 {
    (time.tv_sec as u64).wrapping_mul(NS).wrapping_add(time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_moment_is_over_when_the_exact_clock_says_so() {
        let lag_ns = coarse_lag_ns();
        for wait_ns in [0, 1_000, 1_000_000, 2 * lag_ns] {
            let until_ns = deadline_in(Duration::from_nanos(wait_ns));
            loop {
                let before = boot_ns();
                let is_over = is_over(until_ns, lag_ns);
                let after = boot_ns();
                assert!(is_over || before <= until_ns);
                assert!(!is_over || after > until_ns);
                if is_over {
                    break;
                }
            }
        }
        assert!(!is_over(deadline_in(Duration::MAX), lag_ns));
        assert_eq!((left_until(u64::MAX), left_until(0)), (WAIT_MAX, Duration::ZERO));
    }

    #[test]
    fn the_coarse_clock_is_behind_by_no_more_than_its_bound() {
        for _ in 0..10_000 {
            let before = boot_ns();
            let coarse = boot_coarse_ns();
            let after = boot_ns();
            assert!(coarse <= after);
            assert!(coarse + coarse_lag_ns() >= before);
        }
    }

    /// The clocks of a kernel, for tests of the functions above.
    #[derive(Default)]
    struct Kernel {
        monotonic_ns: Cell<u64>,
        tick_ns: Cell<u64>,
        wall_ns: Cell<u64>,
        suspended_ns: Cell<u64>,
    }

    const TICK_NS: u64 = 4_000_000;

    impl Kernel {
        fn goes_on(&self, ns: u64) {
            self.monotonic_ns.set(self.monotonic_ns.get() + ns);
            self.tick_ns.set(self.monotonic_ns.get() / TICK_NS * TICK_NS);
        }
        fn suspends(&self, ns: u64) {
            self.suspended_ns.set(self.suspended_ns.get() + ns);
            self.wall_ns.set(self.wall_ns.get().wrapping_add(ns));
            self.tick_ns.set(self.monotonic_ns.get());
        }
        fn boot_ns(&self) -> u64 {
            self.monotonic_ns.get() + self.suspended_ns.get()
        }
        fn read(&self, clock: libc::clockid_t) -> u64 {
            self.goes_on(50);
            match clock {
                libc::CLOCK_MONOTONIC => self.monotonic_ns.get(),
                libc::CLOCK_MONOTONIC_COARSE => self.tick_ns.get(),
                libc::CLOCK_REALTIME_COARSE => self.tick_ns.get().wrapping_add(self.wall_ns.get()),
                libc::CLOCK_BOOTTIME => self.boot_ns(),
                other => panic!("clock {other} is not asked for"),
            }
        }
    }

    #[test]
    fn the_coarse_clock_counts_suspended_time_at_once_and_no_step_of_the_wall_clock() {
        let kernel = Kernel::default();
        let suspended = Suspended::new();
        let mut random = 7_u64;
        kernel.goes_on(NS);
        for _ in 0..100_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            match random >> 61 {
                0 => kernel.suspends(1 + (random >> 20) % (3_600 * NS)),
                1 => kernel.suspends(1),
                2 => {
                    let step = (random << 8 >> 20) as i64 % (3_600 * NS as i64);
                    kernel.wall_ns.set(kernel.wall_ns.get().wrapping_add_signed(step));
                }
                _ => kernel.goes_on((random >> 20) % NS),
            }
            let before_ns = kernel.boot_ns();
            let coarse_ns = suspended.boot_coarse_ns(|clock| kernel.read(clock));
            assert!(coarse_ns <= kernel.boot_ns(), "ahead");
            let lag_ns = TICK_NS + SUSPENDED_ERROR_NS_MAX;
            assert!(coarse_ns + lag_ns >= before_ns, "{} ns behind", before_ns - coarse_ns);
            if random >> 33 & 1 == 0 {
                kernel.suspends(1 + (random >> 24) % (3_600 * NS));
            }
            let before_ns = kernel.boot_ns();
            let again_ns = suspended.boot_coarse_again_ns(coarse_ns, |clock| kernel.read(clock));
            assert!(again_ns <= kernel.boot_ns(), "ahead");
            assert!(again_ns + lag_ns >= before_ns, "{} ns behind", before_ns - again_ns);
        }
    }

    #[test]
    fn while_no_clock_is_set_the_exact_one_is_not_read() {
        let kernel = Kernel::default();
        let suspended = Suspended::new();
        kernel.wall_ns.set(1_700_000_000 * NS);
        let exact = Cell::new(0);
        for _ in 0..1_000 {
            kernel.goes_on(NS / 3);
            suspended.boot_coarse_ns(|clock| {
                exact.set(exact.get() + u32::from(clock == libc::CLOCK_BOOTTIME));
                kernel.read(clock)
            });
        }
        assert!(exact.get() <= 2 * TRIALS_MAX as u32, "read {} times", exact.get());
    }

    #[test]
    fn the_second_reading_of_a_tick_asks_for_one_clock() {
        let kernel = Kernel::default();
        let suspended = Suspended::new();
        kernel.wall_ns.set(1_700_000_000 * NS);
        kernel.goes_on(NS);
        suspended.boot_coarse_ns(|clock| kernel.read(clock));
        let first_ns = suspended.boot_coarse_ns(|clock| kernel.read(clock));
        let asked = Cell::new(0);
        let again_ns = suspended.boot_coarse_again_ns(first_ns, |clock| {
            asked.set(asked.get() + 1);
            kernel.read(clock)
        });
        assert_eq!((again_ns, asked.get()), (first_ns, 1));
    }

    #[test]
    fn the_local_clock_is_the_one_that_counts_suspended_time() {
        let before = read(libc::CLOCK_BOOTTIME);
        let local = boot_ns();
        let after = read(libc::CLOCK_BOOTTIME);
        assert!(before <= local && local <= after);
        assert!(is_over(after, coarse_lag_ns()));
    }

    /// A namespace with another CLOCK_BOOTTIME stands for a host that was suspended.
    #[test]
    fn the_local_clock_is_right_on_a_host_that_was_suspended_for_a_day() {
        for test in [
            "the_local_clock_is_the_one_that_counts_suspended_time",
            "the_coarse_clock_is_behind_by_no_more_than_its_bound",
        ] {
            let mut command = std::process::Command::new("unshare");
            command.args(["--time", "--boottime", "86400", "--fork", "--"]);
            command.arg(std::env::current_exe().unwrap());
            command.args(["--exact", &format!("clock::tests::{test}"), "--nocapture"]);
            match command.output() {
                Ok(output) if output.status.success() => {}
                Ok(output) if !String::from_utf8_lossy(&output.stdout).contains("running 1") => {
                    println!("skipped: no time namespace: {output:?}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
