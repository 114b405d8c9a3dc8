// SPDX-License-Identifier: MIT OR Apache-2.0
//! For how long a client has kept others waiting: after [`HINDRANCE_S`] it is to be fenced.
//!
//! ```text
//!   begins ─ look ─ look ─ … ─ look, is_over
//!     since ├──────────────────── seen: HINDRANCE_S, without the time in which nobody looked
//! ```

use crate::clock::{ServerTime, NS};
use crate::limits::{HINDRANCE_S, LOOK_S};

pub(super) const HINDRANCE_NS: u64 = HINDRANCE_S as u64 * NS;
/// The most of the time between two looks at a client that counts as time for which it was waited
/// for.
const UNSEEN_NS_MAX: u64 = 2 * LOOK_S as u64 * NS;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Hindrance {
    /// Since when others wait for the client, and when the arbiter last saw that.
    since: ServerTime,
    seen: ServerTime,
}

impl Hindrance {
    pub(super) fn begins(now: ServerTime) -> Self {
        Self { since: now, seen: now }
    }

    /// Others still wait. If the primary, and perhaps the client, stood still between two looks,
    /// the time in between does not count.
    #[must_use]
    pub(super) fn goes_on(self, now: ServerTime) -> Self {
        let unseen_ns = now.0.saturating_sub(self.seen.plus_ns(UNSEEN_NS_MAX).0);
        Self { since: self.since.plus_ns(unseen_ns), seen: now }
    }

    /// Whether it had lasted too long at the last look; the client may have gone on since.
    pub(super) fn is_over(&self) -> bool {
        self.seen >= self.ends()
    }

    pub(super) fn ends(&self) -> ServerTime {
        self.since.plus_ns(HINDRANCE_NS)
    }

    pub(super) fn waited_ns(&self, now: ServerTime) -> u64 {
        now.0.saturating_sub(self.since.0)
    }
}
