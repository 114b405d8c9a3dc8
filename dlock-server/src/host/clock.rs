// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server clock.

use std::time::{SystemTime, UNIX_EPOCH};

use dlock_core::clock::{ServerTime, NS, START_S};
use dlock_fabric::os::clock::boot_ns;

/// The server clock: this host's CLOCK_BOOTTIME from an anchor that the wall clock gives once. Like
/// leases, it counts the time for which the machine is suspended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerClock {
    offset_ns: u64,
    /// Seconds since 1970.
    anchor_s: u32,
}

/// Pairs of readings of the two clocks; the pair that took the shortest is used.
const READINGS: u32 = 32;

impl ServerClock {
    /// A clock that starts at the wall clock's time.
    pub(crate) fn start() -> Self {
        // a thread may be interrupted between two readings, and then the anchor would be wrong: it
        // would differ from that of the predecessor
        let pairs = (0..READINGS).map(|_| {
            let before = boot_ns();
            let wall = wall_ns();
            let took = boot_ns().saturating_sub(before);
            (took, wall.wrapping_sub(before.wrapping_add(took / 2)))
        });
        let (_, ahead_ns) = pairs.min_by_key(|(took, _)| *took).unwrap_or_default();
        let wall_s = boot_ns().wrapping_add(ahead_ns) / NS;
        let anchor_s = u32::try_from(wall_s.saturating_sub(START_S)).unwrap_or(u32::MAX);
        Self { offset_ns: ahead_ns.wrapping_sub(u64::from(anchor_s) * NS), anchor_s }
    }

    /// The present time of the server clock.
    pub(crate) fn now(self) -> ServerTime {
        ServerTime(boot_ns().wrapping_add(self.offset_ns))
    }

    /// The anchor of the clock, in seconds since 1970.
    pub(crate) fn anchor_s(self) -> u32 {
        self.anchor_s
    }

    /// The time of this clock in seconds since 1970.
    pub(crate) fn wall_s(self) -> u64 {
        u64::from(self.anchor_s) + self.now().0 / NS
    }

    /// Server clock minus CLOCK_BOOTTIME, nanoseconds.
    pub(crate) fn offset_ns(self) -> u64 {
        self.offset_ns
    }
}

/// Nanoseconds since 1970; 0 if the wall clock shows an earlier time.
pub(crate) fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_clock_is_the_clock_that_counts_suspended_time_and_an_offset() {
        let clock = ServerClock::start();
        let before = boot_ns().wrapping_add(clock.offset_ns());
        let now = clock.now();
        assert!(now.0 >= before);
        assert!(now.0 <= boot_ns().wrapping_add(clock.offset_ns()));
        assert!((START_S..START_S + 5).contains(&(now.0 / NS)));
        assert!((wall_ns() / NS).abs_diff(clock.wall_s()) < 5);
    }

    /// A namespace with another CLOCK_BOOTTIME stands for a host that was suspended.
    #[test]
    fn the_server_clock_is_right_on_a_host_that_was_suspended_for_a_day() {
        let test = "the_server_clock_is_the_clock_that_counts_suspended_time_and_an_offset";
        let mut command = std::process::Command::new("unshare");
        command.args(["--time", "--boottime", "86400", "--fork", "--"]);
        command.arg(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("host::clock::tests::{test}")]);
        match command.output() {
            Ok(output) if output.status.success() => {}
            Ok(output) if !String::from_utf8_lossy(&output.stdout).contains("running 1") => {
                println!("skipped: no time namespace: {output:?}");
            }
            other => panic!("{other:?}"),
        }
    }
}
