// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long an operation may take, on the client's own clock.

use crate::clock::NS;
use crate::limits::{FAIR_GRACE, LOCK_WAIT_S};

/// How long a chain, a reply, or a call that does not wait for a grant may take, nanoseconds (5 s).
pub const CHAIN_WAIT_NS: u64 = LOCK_WAIT_S * NS;
/// How long a flush of ledger writes may take when a client gives a lock back, nanoseconds. A flush
/// on which a decision depends may take as long as the call.
pub const FLUSH_WAIT_NS: u64 = FAIR_GRACE.ns() / 2;
/// How long the answer to a cancelled wait may take, nanoseconds.
pub const CANCEL_WAIT_NS: u64 = NS;
/// How long before the end of a wait the client asks whether the primary is there, nanoseconds.
pub const PROBE_NS: u64 = NS;
/// The most steps of one operation. The machines have limits of their own; this one holds if a
/// primary misleads them.
pub const STEPS_MAX: u32 = 64;
/// How many grants of one operation may come after their lease; after that it fails instead of
/// waiting.
pub const LATE_GRANTS_MAX: u32 = 3;

/// Until when one call may wait, on the client's own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Until when the call waits for a grant.
    pub grant_until_ns: u64,
    /// Until when the call waits for anything else.
    pub until_ns: u64,
}

impl Bounds {
    /// The bounds of a call that began at `start_ns`.
    #[inline]
    pub fn since(start_ns: u64) -> Self {
        Self::waiting(start_ns, CHAIN_WAIT_NS)
    }

    /// The bounds of a call that began at `start_ns` and waits `grant_ns` for a grant.
    pub fn waiting(start_ns: u64, grant_ns: u64) -> Self {
        let data_ns = grant_ns.max(CHAIN_WAIT_NS);
        Self {
            grant_until_ns: start_ns.saturating_add(grant_ns),
            until_ns: start_ns.saturating_add(data_ns),
        }
    }

    /// The bounds of a call that began at `start_ns` and waits until `until_ns` for a grant.
    pub fn granted_by(start_ns: u64, until_ns: u64) -> Self {
        Self::waiting(start_ns, until_ns.saturating_sub(start_ns))
    }

    /// When the client asks whether the primary is there, in a wait that begins at `now_ns`: for a
    /// short wait, at its end.
    pub fn probe_ns(&self, now_ns: u64) -> u64 {
        let probe_ns = self.grant_until_ns.saturating_sub(PROBE_NS);
        if probe_ns > now_ns {
            probe_ns
        } else {
            self.grant_until_ns
        }
    }

    /// Until when a chain, or a request that is no wait, may take if the client sends it at
    /// `now_ns`.
    pub fn chain_until_ns(&self, now_ns: u64) -> u64 {
        self.until_ns.min(now_ns.saturating_add(CHAIN_WAIT_NS))
    }
}
