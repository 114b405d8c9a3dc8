// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules of one primary for its members.

use super::{HORIZON_S_DEFAULT, HORIZON_S_MAX};
use crate::budget::work::QUANTUM;
use crate::locks::PrimaryConfig;
use crate::wire::control::HORIZON_FOREVER;
use crate::wire::fabric::FabricSet;

/// What becomes of holds with a lease whose client has closed its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Orphans {
    /// They last until their leases end.
    #[default]
    Lease,
    /// They end with the grace.
    Grace,
}

/// The rules of one primary.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// `trans_mode_t` of the C API; clients must have the same.
    pub tp_mode: u8,
    /// How long a client whose host has closed its connection keeps what it has without a lease;
    /// `None`: for ever.
    pub grace_ns: Option<u64>,
    /// What becomes of its leases.
    pub orphans: Orphans,
    /// The fabrics that are offered.
    pub offered: FabricSet,
    /// Command channels that one client may have in its life.
    pub channels_max: u64,
    /// Descriptors that all members may take together.
    pub files_max: u64,
    /// A successor finds out by itself who the clients are, and waits for each of them. Without a
    /// horizon one that has died would be waited for without end: a client that names none has
    /// [`HORIZON_S_DEFAULT`].
    pub recovers_by_itself: bool,
    /// Memory of a device refuses chains in recovery, as that of the CPU does.
    pub device_refuses: bool,
    /// Work units of undoing that are done at once when a client is fenced: a client that has
    /// little is gone before the next request of any client.
    pub undone_at_once: u32,
}

impl Rules {
    /// The rules of a primary that is set up in this way, and offers every fabric.
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

    /// The session horizon of a client that asks for this one; 0: unlimited.
    pub(super) fn horizon_s(&self, asked: u32) -> u32 {
        match asked {
            HORIZON_FOREVER => 0,
            0 if self.recovers_by_itself => HORIZON_S_DEFAULT,
            horizon_s => horizon_s.min(HORIZON_S_MAX),
        }
    }
}
