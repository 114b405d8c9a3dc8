// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a lock that an operation returns to its caller.

use super::LockEntry;
use crate::clock::{Deadline, TICK_NS};
use crate::wire::message::LockType;

/// A time that an operation returns to its caller, by the clock of the incarnation with this
/// anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimeOut {
    /// The tick of the server clock.
    pub at: Deadline,
    /// When tick 0 began, in seconds since 1970.
    pub anchor_s: u32,
}

impl TimeOut {
    /// No time.
    pub const NONE: Self = Self { at: Deadline::NONE, anchor_s: 0 };

    /// Seconds since 1970, as the C API shows the time.
    #[inline]
    pub fn seconds(self) -> u32 {
        self.at.shown_s(self.anchor_s)
    }

    /// When the tick begins, in milliseconds since 1970, rounded down; `u64::MAX`: never.
    pub fn millis(self) -> u64 {
        match self.at {
            Deadline::NEVER => u64::MAX,
            Deadline(tick) => {
                u64::from(self.anchor_s) * 1_000 + u64::from(tick) * TICK_NS / 1_000_000
            }
        }
    }
}

/// The public state of a lock (`atomic_state`, `rw_state`, `fairlock_state` of the C API).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum View {
    /// `atomic_state`, 8 bytes.
    Atomic {
        /// The owner's client id, or 0.
        client_id: u32,
        /// The deadline of the hold.
        time_out: TimeOut,
    },
    /// The first 12 bytes of `rw_state`.
    Rw {
        /// The deadline of a hold with a lease (`is_leased`); else the time of the acquire.
        time_out: TimeOut,
        /// Whether this client holds the lock with a lease.
        is_leased: bool,
        /// The exclusive owner's client id, or 0.
        client_id: u32,
        /// The number of readers.
        rcount: u32,
    },
    /// `fairlock_state`: 12 bytes, or 16 with `t_value`.
    Fair {
        /// The number of exclusive tickets done.
        nx: u16,
        /// The number of shared tickets done.
        ns: u16,
        /// The next exclusive ticket, or this client's.
        mx: u16,
        /// The next shared ticket, or this client's.
        ms: u16,
        /// The deadline of the hold, or the time of queuing.
        time_out: TimeOut,
        /// `rms`, `rflag`, `rcnt`; `None`: the caller's memory for them is not written.
        t_value: Option<u32>,
    },
}

impl LockEntry {
    /// This time on the clock of the lock's incarnation.
    #[inline]
    pub(super) fn shown(&self, at: Deadline) -> TimeOut {
        TimeOut { at, anchor_s: self.anchor_s }
    }

    /// The end of the hold's lease, as this client knows it now.
    pub fn lease_end(&self) -> TimeOut {
        self.shown(self.deadline())
    }
}

impl View {
    /// The time in this view.
    pub(super) fn time_out(&self) -> TimeOut {
        match *self {
            View::Atomic { time_out, .. }
            | View::Rw { time_out, .. }
            | View::Fair { time_out, .. } => time_out,
        }
    }

    pub(super) fn zero(lock_type: LockType) -> Self {
        match lock_type {
            LockType::Atomic => View::Atomic { client_id: 0, time_out: TimeOut::NONE },
            LockType::Rw => {
                View::Rw { time_out: TimeOut::NONE, is_leased: false, client_id: 0, rcount: 0 }
            }
            LockType::Fair => {
                View::Fair { nx: 0, ns: 0, mx: 0, ms: 0, time_out: TimeOut::NONE, t_value: Some(0) }
            }
        }
    }

    /// The view as a query of the cached state returns it: without the last 4 bytes of a fair
    /// lock's.
    pub(super) fn without_t(self) -> Self {
        match self {
            View::Fair { nx, ns, mx, ms, time_out, .. } => {
                View::Fair { nx, ns, mx, ms, time_out, t_value: None }
            }
            other => other,
        }
    }
}
