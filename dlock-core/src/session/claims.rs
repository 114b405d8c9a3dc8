// SPDX-License-Identifier: MIT OR Apache-2.0
//! Telling a recovering primary of up to 31 locks.
//!
//! ```text
//!   request ─▶ answered ─▶ a place for each lock ─▶ over
//!                       └─ what was held of some is refused: those are told again, without it
//! ```
//! What the primary refuses it refuses for as long as it recovers: another client holds the lock, a
//! rule does not allow the claim, the table of locks is full. A claim that was refused counts as
//! told, and is not repeated.

use crate::wire::control::{Claim, ControlReply, ControlRequest, LockGrant};
use crate::wire::status::Status;

/// Requests for one set of locks: with what is held, and for those refused without.
pub const ROUNDS_MAX: u32 = 2;

/// What the primary says of one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its new place.
    Place {
        /// Where it is.
        grant: LockGrant,
        /// What was held of it was refused.
        is_lost: bool,
    },
    /// What was held of it is lost: `Fail`, another client holds it; else why it is refused. It is
    /// told again, without.
    Lost(Status),
    /// The lock itself is refused, for this reason: the client has not got it any more.
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
    /// Begins. `is_partial`: of some locks it could not be found out what is held.
    pub fn new(claims: Vec<(K, Claim)>, is_partial: bool) -> Self {
        let claims = claims.into_iter().map(|(key, claim)| (key, claim, false)).collect();
        let result = if is_partial { Status::Again } else { Status::Success };
        Self { claims, rounds: 0, result }
    }

    /// The next request; `None`: it is over.
    pub fn request(&mut self) -> Option<ControlRequest> {
        if self.claims.is_empty() || self.rounds >= ROUNDS_MAX {
            return None;
        }
        self.rounds += 1;
        let told = self.claims.iter().map(|(_, claim, _)| claim.clone()).collect();
        Some(ControlRequest::UpdateLocks(told))
    }

    /// Takes the answer.
    ///
    /// # Errors
    /// The primary's refusal of all of them, or `BadResponse`: then it is over.
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

    /// A place could not be adopted now: an operation on the lock does not end.
    pub fn not_adopted(&mut self) {
        self.result = Status::Again;
    }

    /// `Success`, or `Again`: repeat for what is left.
    pub fn result(&self) -> Status {
        self.result
    }
}
