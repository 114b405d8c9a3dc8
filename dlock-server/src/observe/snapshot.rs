// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a scrape of the metrics sees of a primary. Both threads publish it once a second; a scrape
//! reads the last one, and asks neither thread.
//!
//! ```text
//!   command thread ── Snapshot ────────▶ Published ◀── a scrape, on the thread of `http.rs`
//!   control thread ── ControlSnapshot ─▶
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use dlock_core::counters::COUNTERS;
use dlock_core::membership::State;
use dlock_core::primary::WaitersSnapshot;
use dlock_core::wire::fabric::FabricKind;

/// The time between two snapshots.
pub(crate) const PUBLISH_EVERY: Duration = Duration::from_secs(1);
/// A thread that has published nothing for so long does not work.
pub(crate) const LATE: Duration = Duration::from_secs(15);

/// The last snapshots; `None`: there is none yet.
#[derive(Debug, Default)]
pub(crate) struct Published {
    pub(crate) command: ArcSwapOption<Snapshot>,
    pub(crate) control: ArcSwapOption<ControlSnapshot>,
}

impl Published {
    pub(crate) fn command_is(&self, snapshot: Snapshot) {
        self.command.store(Some(Arc::new(snapshot)));
    }

    pub(crate) fn control_is(&self, snapshot: ControlSnapshot) {
        self.control.store(Some(Arc::new(snapshot)));
    }
}

/// What the command thread knows.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) at: Instant,
    /// `None`: the primary is not in recovery.
    pub(crate) recovery: Option<RecoveryCounts>,
    pub(crate) is_draining: bool,
    /// Clients in each of [`MEMBER_STATES`].
    pub(crate) clients: [usize; MEMBER_STATES.len()],
    /// Command channels of each fabric, in the order of [`FabricKind::ALL`].
    pub(crate) channels: [usize; FabricKind::ALL.len()],
    pub(crate) locks: usize,
    pub(crate) objects: usize,
    /// The last whole count.
    pub(crate) waiters: WaitersSnapshot,
    pub(crate) counters: [u64; COUNTERS],
    pub(crate) steps: Steps,
    pub(crate) queues: Queues,
    /// Descriptors that clients take, or that are kept for them.
    pub(crate) client_files: u64,
}

/// The progress of a recovery in numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecoveryCounts {
    pub(crate) expected: u32,
    pub(crate) back: u32,
    pub(crate) told: u32,
    pub(crate) claims: usize,
    /// Clients that the recovery waits for without end.
    pub(crate) endless: usize,
    pub(crate) is_unlisted: bool,
}

/// What waits for the command thread, or in it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Queues {
    /// Events of the control thread.
    pub(crate) events: usize,
    /// Clients with work that wait for their turn.
    pub(crate) turns: usize,
    /// Clients that wait to be admitted until there is a place.
    pub(crate) admissions: usize,
    /// Channels over their rate of frames.
    pub(crate) resting: usize,
    /// Channels whose clients leave replies unread.
    pub(crate) blocked: usize,
    /// Clients that could not be fenced so far.
    pub(crate) unfenced: usize,
}

/// What the control thread knows.
#[derive(Clone, Debug)]
pub(crate) struct ControlSnapshot {
    pub(crate) at: Instant,
    /// Connections that are not command channels, and how many of them are clients'.
    pub(crate) connections: usize,
    pub(crate) of_clients: usize,
    pub(crate) handshakes: usize,
    /// Whether the list of clients cannot be written.
    pub(crate) roster_fails: bool,
}

/// The names of [`State`], as labels.
pub(crate) const MEMBER_STATES: [&str; 7] =
    ["present", "absent", "ending", "fenced", "lapsing", "lingering", "undoing"];

/// The index of this state in [`MEMBER_STATES`].
pub(crate) fn place_of(state: State) -> usize {
    match state {
        State::Present => 0,
        State::Absent { .. } => 1,
        State::Ending(_) => 2,
        State::Fenced(_) => 3,
        State::Lapsing(_) => 4,
        State::Lingering { .. } => 5,
        State::Undoing => 6,
    }
}

/// The upper bounds of the buckets of steps, in microseconds: powers of 4.
pub(crate) const STEP_BOUNDS_US: [u64; 11] =
    [1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576];
/// How long the longest step is remembered at least, and half as long as at most.
const LONGEST_KEPT: Duration = Duration::from_secs(60);

/// How long the steps of a thread have taken that had work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    /// Steps by their length; the last bucket has those above all bounds.
    pub(crate) buckets: [u64; STEP_BOUNDS_US.len() + 1],
    pub(crate) busy: Duration,
    /// The longest step of the present window, and of the window before.
    longest: [Duration; 2],
    window_ends: Instant,
}

impl Steps {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            buckets: [0; STEP_BOUNDS_US.len() + 1],
            busy: Duration::ZERO,
            longest: [Duration::ZERO; 2],
            window_ends: now + LONGEST_KEPT,
        }
    }

    /// Records a step that has just ended.
    pub(crate) fn add(&mut self, took: Duration, now: Instant) {
        self.turn(now);
        let is_within = |&bound_us: &u64| took <= Duration::from_micros(bound_us);
        let bucket = STEP_BOUNDS_US.iter().position(is_within).unwrap_or(STEP_BOUNDS_US.len());
        self.buckets[bucket] += 1;
        self.busy += took;
        self.longest[0] = self.longest[0].max(took);
    }

    /// Forgets the longest step of a window that is over for long enough.
    pub(crate) fn turn(&mut self, now: Instant) {
        if now < self.window_ends {
            return;
        }
        let is_long_over = now >= self.window_ends + LONGEST_KEPT;
        let before = if is_long_over { Duration::ZERO } else { self.longest[0] };
        self.longest = [Duration::ZERO, before];
        self.window_ends = now + LONGEST_KEPT;
    }

    /// The longest step of the last one or two windows.
    pub(crate) fn longest(&self) -> Duration {
        self.longest[0].max(self.longest[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_in_the_first_bucket_that_it_fits_in() {
        let now = Instant::now();
        let mut steps = Steps::new(now);
        for us in [0, 1, 2, 4, 5, 1_048_576, 1_048_577, 9_000_000] {
            steps.add(Duration::from_micros(us), now);
        }
        assert_eq!(steps.buckets, [2, 2, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(steps.busy, Duration::from_micros(11_097_165));
    }

    #[test]
    fn the_longest_step_is_known_for_a_window_and_then_forgotten() {
        let begin = Instant::now();
        let (long, short) = (Duration::from_secs(2), Duration::from_millis(1));
        let mut steps = Steps::new(begin);
        steps.add(long, begin);
        steps.add(short, begin + LONGEST_KEPT);
        assert_eq!(steps.longest(), long);
        steps.turn(begin + 2 * LONGEST_KEPT);
        assert_eq!(steps.longest(), short);
        steps.turn(begin + 9 * LONGEST_KEPT);
        assert_eq!(steps.longest(), Duration::ZERO);
    }
}
