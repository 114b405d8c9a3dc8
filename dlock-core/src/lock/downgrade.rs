// SPDX-License-Identifier: MIT OR Apache-2.0
//! An exclusive hold that becomes a share, without a moment at which the client has neither.
//!
//! ```text
//!   exclusive ─Downgrade─▶ share in doubt ─ Granted ─▶ shared
//!       ▲                    │   ▲   │  └── Denied ──▶ lost
//!       └─ not executed ─────┘   │   └ claimed at a successor: a share, to be confirmed
//!                 no answer: the next operation asks again
//! ```
//! From the request on the client may be one of several readers. So the entry counts as shared from
//! then on, also at a failover, and has no token until the answer brings one. The request names
//! the stamp of the share's ledger entry. If the answer was lost, the same request is sent again,
//! and the arbiter finds by the stamp that it has executed the first one.

use super::machine::Phase;
use super::{claimed, Doubt, EntryState, LockEntry, Machine, Op, OpResult, Step, View};
use crate::clock::{Lease, Now};
use crate::memory::words::{RwWord, STAMP_MAX};
use crate::wire::message::{LockType, Reply, Request};
use crate::wire::status::Status;

/// Begins a downgrade; `None`: the client has a share of a fair lock already, and asks whether its
/// lease runs.
pub(super) fn start(m: &mut Machine, e: &mut LockEntry) -> Option<Step> {
    if e.state == EntryState::SharedLocked {
        return (e.lock_type == LockType::Rw).then(|| done(e));
    }
    (e.state, e.doubt) = (EntryState::SharedLocked, Doubt::Downgrade);
    m.phase = Phase::Downgrading;
    Some(Step::Request(e.downgrades()))
}

/// Handles the answer to a request for a downgrade: that of the operation itself, or the repeated
/// one with which a later operation begins.
pub(super) fn reply(m: &mut Machine, e: &mut LockEntry, reply: Reply, now: Now) -> Step {
    match reply {
        // a claim at a successor has taken the request's place
        _ if e.doubt != Doubt::Downgrade => m.lose_track(e),
        Reply::Granted { .. } => {
            e.is_downgraded(&reply, now);
            match m.op {
                Op::Downgrade => done(e),
                _ if m.is_confirm => m.done(Status::Success),
                _ => claimed::begin(m, e, now),
            }
        }
        Reply::Denied { .. } if m.is_confirm => {
            e.lose();
            m.done(Status::Fail)
        }
        Reply::Denied { .. } => {
            e.clear_ledger_entry();
            Step::Done(e.lost_by(m))
        }
        _ => m.lose_track(e),
    }
}

/// The primary has not executed the request, so the hold is exclusive as before.
pub(super) fn refused(m: &Machine, e: &mut LockEntry, status: Status) -> Step {
    if e.doubt == Doubt::Downgrade {
        (e.state, e.doubt) = (EntryState::ExclusiveLocked, Doubt::None);
    }
    m.done(status)
}

/// The result of a downgrade of this entry, which has a share.
fn done(e: &LockEntry) -> Step {
    Step::Done(OpResult { status: Status::Success, view: Some(e.cache) })
}

impl LockEntry {
    /// The stamp of the share's ledger entry: new in this client's ledger.
    fn share_stamp(&self) -> u32 {
        match self.lock_type {
            LockType::Fair => self.stamp.wrapping_add(1) & STAMP_MAX,
            LockType::Atomic | LockType::Rw => self.stamp.checked_add(1).unwrap_or(1),
        }
    }

    /// The request that makes the exclusive hold a share; while there is no answer, the same one
    /// each time.
    pub(super) fn downgrades(&self) -> Request {
        let ticket = (self.lock_type == LockType::Fair).then_some(self.fair.ticket);
        Request::Downgrade { handle: self.handle, stamp: self.share_stamp(), ticket }
    }

    /// Whether the client has asked for a downgrade, and has no answer.
    pub(super) fn is_downgrading(&self) -> bool {
        self.doubt == Doubt::Downgrade
    }

    /// The arbiter has made the hold a share, and has written the share into the ledger.
    fn is_downgraded(&mut self, granted: &Reply, now: Now) {
        let Reply::Granted { word, deadline, ticket, token, .. } = *granted else { return };
        self.stamp = self.share_stamp();
        self.doubt = Doubt::None;
        match self.lock_type {
            LockType::Fair => self.has_share(ticket, (word, deadline), now),
            LockType::Atomic | LockType::Rw => {
                (self.word, self.token) = (word, token);
                let is_leased = !self.is_on_word();
                match is_leased {
                    true => self.goes_on(deadline, Lease::NONE, &now),
                    false => self.is_judged_by(&now),
                }
                let (time_out, rcount) = (self.shown(deadline), RwWord::from_bits(word).rcount());
                self.cache = View::Rw { time_out, is_leased, client_id: 0, rcount };
            }
        }
    }
}
