// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a client may go on without an answer of its primary.
//!
//! ```text
//!   sent ──heartbeat──▶ primary: silent from here on?      it acts `horizon_ns` after its arrival
//!     └─ horizon_ns, less drift ─▶ client: neither posts nor relies on what it holds
//! ```
//! The client counts from before it sent the heartbeat, and the primary from its arrival. So the
//! client stops relying on its holds first, however long the network delays the heartbeat. Without
//! a horizon neither side acts on silence.

use crate::clock::{COARSE_NS_MAX, DRIFT_PPM};

/// How many heartbeats a client sends in one horizon: three may be lost.
pub const HEARTBEATS_PER_HORIZON: u64 = 4;

/// The heartbeats of one session. Times are on the client's own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeats {
    /// 0: none.
    horizon_ns: u64,
    heard_ns: u64,
    next_ns: u64,
    has_ended: bool,
}

impl Heartbeats {
    /// The heartbeats of a session that was asked for at `sent_ns`, with this horizon (0: none).
    pub fn new(horizon_ns: u64, sent_ns: u64) -> Self {
        let mut beats = Self { horizon_ns, heard_ns: sent_ns, next_ns: u64::MAX, has_ended: false };
        beats.schedule(sent_ns);
        beats
    }

    fn schedule(&mut self, after_ns: u64) {
        if self.horizon_ns > 0 {
            let interval_ns = (self.horizon_ns / HEARTBEATS_PER_HORIZON).max(1);
            self.next_ns = after_ns.saturating_add(interval_ns);
        }
    }

    /// When the client sends its next heartbeat; `u64::MAX`: never.
    pub fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Records that a heartbeat was sent.
    pub fn sent(&mut self, at_ns: u64) {
        self.schedule(at_ns);
    }

    /// Records the answer to a heartbeat, or to any other request, that was sent at `sent_ns`.
    pub fn answered(&mut self, sent_ns: u64) {
        self.heard_ns = self.heard_ns.max(sent_ns);
    }

    /// Makes the horizon over at once: the primary has ended what this client had without a lease,
    /// and another session has begun. An operation of this session that is still under way must not
    /// report such a hold.
    pub fn end(&mut self) {
        self.has_ended = true;
    }

    /// Until when this client may rely on what it holds, compared with a coarse reading of its
    /// clock ([`COARSE_NS_MAX`]); `u64::MAX`: without end; 0: no longer.
    pub fn horizon_ns(&self) -> u64 {
        if self.has_ended {
            return 0;
        }
        if self.horizon_ns == 0 {
            return u64::MAX;
        }
        let drift_ns = self.horizon_ns / 1_000_000 * DRIFT_PPM + DRIFT_PPM;
        let margin_ns = drift_ns + COARSE_NS_MAX;
        self.heard_ns.saturating_add(self.horizon_ns.saturating_sub(margin_ns))
    }
}
