// SPDX-License-Identifier: MIT OR Apache-2.0
//! The claims of a client at a recovering primary, for up to 31 locks at a time.
//!
//! ```text
//!   request ─▶ answered ─▶ a place for each lock ─▶ over
//!                       └─ some holds are refused: these locks are claimed again, without the hold
//! ```
//! A refusal stands for as long as the primary recovers: another client holds the lock, a rule does
//! not allow the claim, or the table of locks is full. So the client does not repeat a refused
//! claim.

use crate::wire::control::{Claim, ControlReply, ControlRequest, LockGrant};
use crate::wire::status::Status;

/// How many requests one set of locks takes: one with the holds, and one without them for the locks
/// whose holds the primary refused.
pub const ROUNDS_MAX: u32 = 2;

/// The primary's answer to the claim of one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The lock's new place.
    Place {
        /// The place.
        grant: LockGrant,
        /// Whether the claimed hold was refused.
        is_lost: bool,
    },
    /// The primary has refused the claimed hold, for this reason; `Fail`: another client holds the
    /// lock. The client claims the lock again without the hold.
    Lost(Status),
    /// The primary has refused the lock itself, for this reason: the client has no reference to it
    /// any more.
    Refused(Status),
}

/// One set of claims under way. `K` is the caller's name for a lock.
#[derive(Clone, Debug)]
pub struct Claims<K> {
    claims: Vec<(K, Claim, bool)>,
    rounds: u32,
    result: Status,
}

impl<K: Copy> Claims<K> {
    /// A new set. `is_partial`: of some locks the client could not find out what it holds.
    pub fn new(claims: Vec<(K, Claim)>, is_partial: bool) -> Self {
        let claims = claims.into_iter().map(|(key, claim)| (key, claim, false)).collect();
        let result = if is_partial { Status::Again } else { Status::Success };
        Self { claims, rounds: 0, result }
    }

    /// The next request; `None`: the set is done.
    pub fn request(&mut self) -> Option<ControlRequest> {
        if self.claims.is_empty() || self.rounds >= ROUNDS_MAX {
            return None;
        }
        self.rounds += 1;
        let told = self.claims.iter().map(|(_, claim, _)| claim.clone()).collect();
        Some(ControlRequest::UpdateLocks(told))
    }

    /// Handles the answer to the last request.
    ///
    /// # Errors
    /// The primary's refusal of the whole set, or `BadResponse`: the set is done.
    pub fn answered(
        &mut self,
        reply: Result<ControlReply, Status>,
    ) -> Result<Vec<(K, Verdict)>, Status> {
        let told = std::mem::take(&mut self.claims);
        let grants = match reply? {
            ControlReply::Locks(grants) if grants.len() == told.len() => grants,
            _ => return Err(Status::BadResponse),
        };
        let mut verdicts = Vec::with_capacity(told.len());
        for ((key, mut claim, is_lost), grant) in told.into_iter().zip(grants) {
            let verdict = match grant {
                Ok(grant) => Verdict::Place { grant, is_lost },
                Err(status) if claim.held.is_some() => {
                    claim.held = None;
                    self.claims.push((key, claim, true));
                    Verdict::Lost(status)
                }
                Err(status) => Verdict::Refused(status),
            };
            verdicts.push((key, verdict));
        }
        Ok(verdicts)
    }

    /// Records that a lock could not take over its new place yet, because an operation on the lock
    /// has not ended.
    pub fn not_adopted(&mut self) {
        self.result = Status::Again;
    }

    /// `Success`, or `Again`: claims are left, and the caller repeats them.
    pub fn result(&self) -> Status {
        self.result
    }
}
