// SPDX-License-Identifier: MIT OR Apache-2.0
//! Log lines that peers cause: limited per cause, with a count of what was left out.
//!
//! ```text
//!   limited!(Cause, Level, "…") ── of this cause, in this window:
//!        up to LINES_MAX ─▶ logged (the first also tells what the windows before left out)
//!        beyond          ─▶ counted ─▶ report(): one line per cause at the end of the window
//! ```
//! So the log grows by at most [`LINES_MAX`] + 1 lines per cause and [`WINDOW`], however much peers
//! send. The limits are of the process: several primaries in one share them.

use std::fmt;
use std::time::Duration;

use dlock_core::clock::NS;
use dlock_fabric::os::clock::boot_ns;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Lines of one cause in one window.
pub(crate) const LINES_MAX: u32 = 10;
/// How long a window lasts.
pub(crate) const WINDOW: Duration = Duration::from_secs(WINDOW_S);
const WINDOW_S: u64 = 10;

macro_rules! causes {
    ($($cause:ident = $what:literal,)*) => {
        /// Why a line is logged.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Cause { $(#[doc = $what] $cause,)* }

        /// Every cause, and its text in the log.
        const CAUSES: &[(Cause, &str)] = &[$((Cause::$cause, $what),)*];

        /// The names of all causes.
        const NAMES: [&str; CAUSES.len()] = [$(stringify!($cause),)*];
    };
}

causes! {
    TableFull = "connections beyond the most that are served",
    NotAccepted = "connections that could not be accepted",
    Stranger = "processes of other users, or that could not be identified",
    Handshake = "connections whose TLS handshake failed",
    HandshakeRate = "handshakes beyond the rate of one address",
    FrameRate = "clients that sent more frames than their rate",
    ChannelLost = "command channels that were lost while they were made",
    WrongFrame = "clients that sent frames out of place, or no frames",
    BrokenSeal = "sealed channels with a record that was not the one due",
    AttachRefused = "command channels that were refused",
    NoResource = "clients that did not fit",
    NoThread = "work for which the system refused a thread",
    LocksFull = "requests for locks that did not fit",
    Rules = "requests that the rules do not allow",
    NotTaken = "clients that did not take what they were sent",
    Removed = "clients that were removed",
    Lapsed = "clients whose leases alone were kept",
    Roster = "clients that could not be written down",
    Name = "looks at a name that another user has",
    Admin = "admin connections that could not be accepted",
    Http = "HTTP connections that could not be accepted, or whose TLS handshake failed",
}

/// How many lines of one cause were logged and left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Limit {
    /// When the window began (boot clock).
    since_ns: u64,
    /// Lines that were logged in this window.
    lines: u32,
    /// Lines that were left out, and not reported yet.
    left_out: u64,
    /// Lines that were left out so far.
    left_out_total: u64,
}

/// What to do with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Log it, with the number of lines like it that were left out before.
    Log(u64),
    /// Leave it out; `first`: it is the first one left out since the last report.
    LeaveOut { first: bool },
}

impl Limit {
    const NEW: Self = Self { since_ns: 0, lines: 0, left_out: 0, left_out_total: 0 };

    fn admit(&mut self, now_ns: u64) -> Verdict {
        // only the clock of a test can be earlier than the beginning of the window
        if self.lines == 0 || now_ns.wrapping_sub(self.since_ns) >= WINDOW_S * NS {
            (self.since_ns, self.lines) = (now_ns, 0);
        }
        if self.lines < LINES_MAX {
            self.lines += 1;
            return Verdict::Log(std::mem::take(&mut self.left_out));
        }
        self.left_out = self.left_out.saturating_add(1);
        self.left_out_total = self.left_out_total.saturating_add(1);
        Verdict::LeaveOut { first: self.left_out == 1 }
    }
}

/// The limits of all causes.
pub(crate) struct LogLimits {
    limits: Mutex<[Limit; CAUSES.len()]>,
    /// Notified when a line is left out.
    overflowed: Notify,
}

/// The limits of this process.
pub(crate) static LIMITS: LogLimits = LogLimits::new();

impl LogLimits {
    const fn new() -> Self {
        let limits = Mutex::new([Limit::NEW; CAUSES.len()]);
        Self { limits, overflowed: Notify::const_new() }
    }

    /// Whether a line of this cause may be logged now.
    pub(crate) fn admit(&self, cause: Cause) -> Verdict {
        self.admit_at(cause, boot_ns())
    }

    fn admit_at(&self, cause: Cause, now_ns: u64) -> Verdict {
        let verdict = self.limits.lock()[cause as usize].admit(now_ns);
        if verdict == (Verdict::LeaveOut { first: true }) {
            self.overflowed.notify_one();
        }
        verdict
    }

    /// The number of lines left out since the last report, by cause; resets the counts.
    fn take_left_out(&self) -> Vec<(&'static str, u64)> {
        let mut limits = self.limits.lock();
        let taken = CAUSES.iter().zip(limits.iter_mut());
        taken
            .map(|((_, what), limit)| (*what, std::mem::take(&mut limit.left_out)))
            .filter(|&(_, left_out)| left_out > 0)
            .collect()
    }

    /// How many lines of each cause were left out so far, by the cause's name: `TableFull`.
    pub(crate) fn left_out_totals(&self) -> [(&'static str, u64); CAUSES.len()] {
        let limits = self.limits.lock();
        std::array::from_fn(|cause| (NAMES[cause], limits[cause].left_out_total))
    }

    /// Reports what was left out, one window after the first such line. Never returns; idle while
    /// there is nothing to report.
    pub(crate) async fn report(&self) {
        loop {
            self.overflowed.notified().await;
            tokio::time::sleep(WINDOW).await;
            for (what, left_out) in self.take_left_out() {
                log::warn!("{left_out} more lines were left out: {what}");
            }
        }
    }
}

/// The end of a line: how many like it were left out before.
pub(crate) struct LeftOut(pub(crate) u64);

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            count => write!(f, " ({count} lines like this were left out before)"),
        }
    }
}

/// Logs a line that a peer causes, unless its cause has used up its lines: `limited!(Cause::X,
/// Level::Warn, "…")`.
macro_rules! limited {
    ($cause:expr, $level:expr, $($line:tt)+) => {
        if log::log_enabled!($level) {
            use $crate::observe::log_limit::{LeftOut, Verdict, LIMITS};
            if let Verdict::Log(left_out) = LIMITS.admit($cause) {
                log::log!($level, "{}{}", format_args!($($line)+), LeftOut(left_out));
            }
        }
    };
}
pub(crate) use limited;

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of lines that a flood at these times logs, and the number that it reports as left
    /// out.
    fn flood(times_ns: impl Iterator<Item = u64>) -> (u64, u64) {
        let limits = LogLimits::new();
        let (mut lines, mut told) = (0, 0);
        for now_ns in times_ns {
            if let Verdict::Log(left_out) = limits.admit_at(Cause::AttachRefused, now_ns) {
                lines += 1;
                told += left_out;
            }
        }
        told += limits.take_left_out().iter().map(|(_, left_out)| left_out).sum::<u64>();
        (lines, told)
    }

    #[test]
    fn a_flood_logs_a_bounded_number_of_lines_and_every_line_is_counted() {
        for per_second in [1, 5, 3_278, 100_000] {
            let total = 60 * per_second;
            let (lines, told) = flood((0..total).map(|n| 7 * NS + n * NS / per_second));
            assert!(lines <= 6 * u64::from(LINES_MAX), "{lines} at {per_second}/s");
            assert_eq!(lines + told, total);
            assert!(per_second > 1 || told == 0, "what is rare is logged");
        }
    }

    #[test]
    fn causes_do_not_take_each_others_lines() {
        let limits = LogLimits::new();
        for _ in 0..1_000 {
            limits.admit_at(Cause::TableFull, NS);
        }
        assert_eq!(limits.admit_at(Cause::Removed, NS), Verdict::Log(0));
        assert_eq!(limits.admit_at(Cause::TableFull, 12 * NS), Verdict::Log(990));
        for (index, (cause, _)) in CAUSES.iter().enumerate() {
            assert_eq!(*cause as usize, index);
        }
    }

    #[test]
    fn what_was_left_out_is_told_although_no_further_line_comes() {
        let limits = LogLimits::new();
        let verdicts: Vec<_> = (0..13).map(|_| limits.admit_at(Cause::Admin, NS)).collect();
        let first = |first| Verdict::LeaveOut { first };
        assert_eq!(verdicts[10..], [first(true), first(false), first(false)]);
        let what = CAUSES[Cause::Admin as usize].1;
        assert_eq!(limits.take_left_out(), [(what, 3)]);
        assert_eq!(limits.take_left_out(), []);
        assert_eq!(
            limits.left_out_totals()[Cause::Admin as usize],
            ("Admin", 3),
            "no report ends it"
        );
    }

    #[test]
    fn a_clock_at_the_end_of_its_range_stops_nothing() {
        let mut limit = Limit::NEW;
        for now_ns in [u64::MAX, 0, u64::MAX, 1, u64::MAX - 1] {
            assert!(matches!(limit.admit(now_ns), Verdict::Log(_)));
        }
    }
}
