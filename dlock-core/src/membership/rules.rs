// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules of one primary for its members.

use super::{HORIZON_S_DEFAULT, HORIZON_S_MAX};
use crate::budget::work::QUANTUM;
use crate::locks::PrimaryConfig;
use crate::wire::control::HORIZON_FOREVER;
use crate::wire::fabric::FabricSet;

/// When holds with a lease end if their client has closed its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Orphans {
    /// A hold ends when its lease ends.
    #[default]
    Lease,
    /// A hold ends when the client's grace ends.
    Grace,
}

/// The rules of one primary.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// `trans_mode_t` of the C API; clients must have the same value.
    pub tp_mode: u8,
    /// How long a client whose host has closed its connection keeps what it has without a lease, in
    /// nanoseconds; `None`: for ever.
    pub grace_ns: Option<u64>,
    /// When the holds with a lease of such a client end.
    pub orphans: Orphans,
    /// The fabrics that the primary offers.
    pub offered: FabricSet,
    /// How many command channels one client may have in its life.
    pub channels_max: u64,
    /// How many descriptors all members may take together.
    pub files_max: u64,
    /// Whether a successor knows the clients without an operator, and waits for each of them. It
    /// would wait for ever for a dead client without a horizon, so a client that asks for no
    /// horizon gets [`HORIZON_S_DEFAULT`].
    pub recovers_by_itself: bool,
    /// Whether device memory refuses chains in recovery, as CPU memory does.
    pub device_refuses: bool,
    /// How many work units of undoing are done in the same step as fencing a client: a client with
    /// few locks is forgotten before the next request of any client.
    pub undone_at_once: u32,
}

impl Rules {
    /// The rules of a primary with this configuration that offers every fabric.
    pub fn of(config: &PrimaryConfig) -> Self {
        Self {
            tp_mode: config.tp_mode,
            grace_ns: config.absent_grace_ns,
            orphans: Orphans::Lease,
            offered: FabricSet::all(),
            channels_max: u64::MAX,
            files_max: u64::MAX,
            recovers_by_itself: false,
            device_refuses: false,
            undone_at_once: 4 * QUANTUM,
        }
    }

    /// The session horizon, in seconds, of a client that asks for `asked`; 0: unlimited.
    pub(super) fn horizon_s(&self, asked: u32) -> u32 {
        match asked {
            HORIZON_FOREVER => 0,
            0 if self.recovers_by_itself => HORIZON_S_DEFAULT,
            horizon_s => horizon_s.min(HORIZON_S_MAX),
        }
    }
}
