// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a caller is told of a lock.

use crate::wire::message::LockType;

/// The public state of a lock (`atomic_state`, `rw_state`, `fairlock_state` of the C API).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum View {
    /// `atomic_state`, 8 bytes.
    Atomic {
        /// Owner or 0.
        client_id: u32,
        /// Deadline, seconds since 1970.
        time_out: u32,
    },
    /// The first 12 bytes of `rw_state`.
    Rw {
        /// Time of the acquire, seconds since 1970.
        time_out: u32,
        /// Exclusive owner or 0.
        client_id: u32,
        /// Readers.
        rcount: u32,
    },
    /// `fairlock_state`: 12 bytes, or 16 with `t_value`.
    Fair {
        /// Exclusive tickets done.
        nx: u16,
        /// Shared tickets done.
        ns: u16,
        /// Next exclusive ticket, or mine.
        mx: u16,
        /// Next shared ticket, or mine.
        ms: u16,
        /// Deadline, or the time of queuing.
        time_out: u32,
        /// `rms`, `rflag`, `rcnt`; `None`: not written.
        t_value: Option<u32>,
    },
}

impl View {
    pub(super) fn zero(lock_type: LockType) -> Self {
        match lock_type {
            LockType::Atomic => View::Atomic { client_id: 0, time_out: 0 },
            LockType::Rw => View::Rw { time_out: 0, client_id: 0, rcount: 0 },
            LockType::Fair => {
                View::Fair { nx: 0, ns: 0, mx: 0, ms: 0, time_out: 0, t_value: Some(0) }
            }
        }
    }

    /// The view as it is read from the cache: a fair lock's last 4 bytes are not written.
    pub(super) fn without_t(self) -> Self {
        match self {
            View::Fair { nx, ns, mx, ms, time_out, .. } => {
                View::Fair { nx, ns, mx, ms, time_out, t_value: None }
            }
            other => other,
        }
    }
}
