// SPDX-License-Identifier: MIT OR Apache-2.0
//! When COMMAND must be stopped, and the clock and timer for it.
//!
//! Both count the time for which the machine is suspended: a timer that expires meanwhile fires
//! when the machine resumes; one on CLOCK_MONOTONIC would be late by that time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use dlock_client::HORIZON_MAX;
use rustix::time::{
    clock_gettime, timerfd_create, timerfd_settime, ClockId, Itimerspec, TimerfdClockId,
    TimerfdFlags, TimerfdTimerFlags, Timespec,
};

/// The shortest lease that leaves time to stop COMMAND, and to extend the lease before.
pub const LEASE_MIN: Duration = Duration::from_secs(4);
/// From SIGTERM to SIGKILL: a sixth of the lease, at least this and at most [`GRACE_MAX`].
const GRACE_MIN: Duration = Duration::from_millis(1_500);
/// The longest time from SIGTERM to SIGKILL, however long the lease is.
const GRACE_MAX: Duration = Duration::from_secs(5);
/// From SIGKILL to the end of the lease: for the kernel to end every process of COMMAND.
const RESERVE: Duration = Duration::from_millis(500);
/// Attempts to extend that fit between an extension and SIGTERM.
const EXTENDS_PER_LEASE: u32 = 3;
/// The part of a lease that is not used, since this host's clock may be slower than the primary's:
/// a thousandth, twice the 500 ppm that the client library allows for.
const DRIFT: u32 = 1_000;

/// How much longer than the lease the session's horizon is, so that it cuts no lease short: the
/// client library subtracts a margin, and counts from an earlier request.
const HORIZON_RESERVE: Duration = Duration::from_secs(1);

/// Nanoseconds of CLOCK_BOOTTIME.
pub fn now_ns() -> u64 {
    // CLOCK_BOOTTIME counts from the boot, so it is not negative
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// A time of CLOCK_BOOTTIME in seconds since 1970, by this host's wall clock as it is now.
pub fn on_wall_clock_s(at_ns: u64) -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    let left_s = at_ns.saturating_sub(now_ns()) / 1_000_000_000;
    now.tv_sec.unsigned_abs().saturating_add(left_s)
}

/// A duration in nanoseconds.
pub fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn grace(lease: Duration) -> Duration {
    (lease / 6).clamp(GRACE_MIN, GRACE_MAX)
}

/// How long before the end of a lease COMMAND gets SIGTERM.
pub fn stop_time(lease: Duration) -> Duration {
    grace(lease) + RESERVE
}

/// The pause between two extensions.
pub fn extend_every(lease: Duration) -> Duration {
    lease.saturating_sub(stop_time(lease)).max(lease / 2) / EXTENDS_PER_LEASE
}

/// The end of a lease that was requested at `asked_ns`, by a clock that may be slow.
pub fn lease_end_ns(asked_ns: u64, lease: Duration) -> u64 {
    asked_ns.saturating_add(ns(lease - lease / DRIFT))
}

/// The horizon of a session in which a lock with this lease is held. It is no shorter: at the
/// horizon the primary may end a hold without a lease, and a successor a lease of which it does not
/// know.
pub fn horizon(lease: Duration) -> Duration {
    (lease + HORIZON_RESERVE).min(HORIZON_MAX)
}

/// Until when a lock is surely held, if its lease, or an answer that counts as one, was requested
/// at `asked_ns`. `horizon_ns`: the end of the session's horizon (`u64::MAX`: none).
pub fn held_until_ns(asked_ns: u64, lease: Duration, horizon_ns: u64) -> u64 {
    lease_end_ns(asked_ns, lease).min(horizon_ns)
}

/// When a COMMAND whose lease ends at `end_ns` gets each signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopTimes {
    /// When COMMAND gets SIGTERM. From then on it is not started any more.
    pub term_ns: u64,
    /// When COMMAND gets SIGKILL.
    pub kill_ns: u64,
    /// The end of the lease: from then on another client may hold the lock.
    pub end_ns: u64,
}

impl StopTimes {
    /// The times for a lease of this length that ends at `end_ns`.
    pub fn of(end_ns: u64, lease: Duration) -> Self {
        Self {
            term_ns: end_ns.saturating_sub(ns(stop_time(lease))),
            kill_ns: end_ns.saturating_sub(ns(RESERVE)),
            end_ns,
        }
    }

    /// The times for a COMMAND that gets SIGTERM now. No time becomes later.
    pub fn brought_forward(self, now_ns: u64, lease: Duration) -> Self {
        let kill_ns = self.kill_ns.min(now_ns.saturating_add(ns(grace(lease))));
        Self { term_ns: self.term_ns.min(now_ns), kill_ns, ..self }
    }
}

/// A timer on CLOCK_BOOTTIME that can be polled.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// A timer that is not set.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Boottime, flags)?))
    }

    /// Makes the timer readable from `at_ns` on, until it is set again.
    pub fn set(&self, at_ns: u64) -> io::Result<()> {
        let at = Duration::from_nanos(at_ns.max(1)); // a time of 0 would disarm the timer
        let value = Timespec {
            tv_sec: i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: at.subsec_nanos().into(),
        };
        let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &spec)?;
        Ok(())
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::session::Heartbeats;

    use super::*;

    #[test]
    fn command_is_killed_before_every_lease_ends_and_the_lease_is_extended_before_it_is_stopped() {
        for seconds in [4, 5, 9, 30, 3_600, 86_400] {
            let lease = Duration::from_secs(seconds);
            let times = StopTimes::of(lease_end_ns(1_000, lease), lease);
            assert!(times.term_ns < times.kill_ns && times.kill_ns < times.end_ns, "{seconds}");
            assert!(times.end_ns - times.kill_ns >= ns(RESERVE), "{seconds}");
            assert!(times.end_ns <= 1_000 + ns(lease), "{seconds}");
            assert!(1_000 + 2 * ns(extend_every(lease)) < times.term_ns, "{seconds}");
        }
        assert_eq!(stop_time(LEASE_MIN), Duration::from_secs(2));
    }

    #[test]
    fn a_lock_is_relied_on_up_to_the_horizon_which_cuts_no_lease_short() {
        for seconds in [2, 4, 5, 9, 30, 1_800, 3_600, 86_400] {
            let lease = Duration::from_secs(seconds);
            let beats = Heartbeats::new(ns(horizon(lease)), 1_000);
            let lease_ns = lease_end_ns(1_000, lease);
            assert_eq!(held_until_ns(1_000, lease, beats.horizon_ns()), lease_ns, "{seconds}");
            assert_eq!(held_until_ns(1_000, lease, lease_ns - 1), lease_ns - 1, "{seconds}");
            assert_eq!(held_until_ns(1_000, lease, u64::MAX), lease_ns, "{seconds}");
        }
    }

    #[test]
    fn a_lost_lock_stops_command_at_once_and_never_later_than_its_lease() {
        let lease = Duration::from_secs(30);
        let times = StopTimes::of(100 * ns(Duration::from_secs(1)), lease);
        let early = times.brought_forward(1, lease);
        assert_eq!((early.term_ns, early.kill_ns), (1, 1 + ns(grace(lease))));
        let late = times.brought_forward(times.kill_ns - 1, lease);
        assert_eq!((late.term_ns, late.kill_ns), (times.term_ns, times.kill_ns));
    }
}
