// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long an operation may take, on the client's own clock.

use crate::clock::NS;
use crate::limits::{FAIR_GRACE, LOCK_WAIT_S};

/// Nanoseconds a chain or a reply may take, and a call that does not wait for a grant (5 s).
pub const CHAIN_WAIT_NS: u64 = LOCK_WAIT_S * NS;
/// Nanoseconds the flush of ledger writes may take that come before no decision: when a lock is
/// given back. Where one is decided, it may take as long as the call.
pub const FLUSH_WAIT_NS: u64 = FAIR_GRACE.ns() / 2;
/// Nanoseconds a cancelled wait may take to be answered.
pub const CANCEL_WAIT_NS: u64 = NS;
/// Nanoseconds before the end of a wait at which the primary is asked whether it is there.
pub const PROBE_NS: u64 = NS;
/// Steps of one operation. The machines bound themselves; this bounds a primary that misleads
/// them.
pub const STEPS_MAX: u32 = 64;
/// Grants of one operation that came after their lease: then it fails instead of waiting on.
pub const LATE_GRANTS_MAX: u32 = 3;

/// Until when one call may wait for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Until when a grant is waited for.
    pub grant_until_ns: u64,
    /// Until when anything else is.
    pub until_ns: u64,
}

impl Bounds {
    /// Of a call that began at `start_ns`.
    pub fn since(start_ns: u64) -> Self {
        Self::waiting(start_ns, CHAIN_WAIT_NS)
    }

    /// Of a call that began at `start_ns` and waits `grant_ns` for a grant.
    pub fn waiting(start_ns: u64, grant_ns: u64) -> Self {
        let data_ns = grant_ns.max(CHAIN_WAIT_NS);
        Self {
            grant_until_ns: start_ns.saturating_add(grant_ns),
            until_ns: start_ns.saturating_add(data_ns),
        }
    }

    /// When a primary that has not granted a wait, which begins at `now_ns`, is asked whether it
    /// is there: at its end if it is short.
    pub fn probe_ns(&self, now_ns: u64) -> u64 {
        let probe_ns = self.grant_until_ns.saturating_sub(PROBE_NS);
        if probe_ns > now_ns {
            probe_ns
        } else {
            self.grant_until_ns
        }
    }

    /// Until when a chain, or a request that is no wait, may take if it is sent at `now_ns`.
    pub fn chain_until_ns(&self, now_ns: u64) -> u64 {
        self.until_ns.min(now_ns.saturating_add(CHAIN_WAIT_NS))
    }
}
