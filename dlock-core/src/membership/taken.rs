// SPDX-License-Identifier: MIT OR Apache-2.0
//! Taking away: an operator makes clients give back what they hold, and fences those that do not.
//!
//! ```text
//!   asked ──grace over──▶ judged ──has left, or has given the lock back──▶ nothing
//!                            │
//!                            ├─▶ fenced, and may not come back. Its holds without a lease end
//!                            │   with its horizon, its leases at their ends, then its membership
//!                            └─now─▶ fenced, and everything that it has is undone, also leases
//! ```
//! The time given is a deadline like those of silence: the primary has read every request that had
//! come by then. So many clients end in the slices of [`Membership::tick`]. Only this primary knows
//! that a client was asked, or may not come back: a successor knows the client's holds, and not
//! that an operator wanted them back.

use std::sync::Arc;

use super::{Ending, Exit, Membership, State, Task};
use crate::clock::ServerTime;
use crate::ids::{ClientId, LockId};
use crate::planted::{self, Bug};

/// How many removed clients the primary remembers with their operators, for the answer to the next
/// `Reinit`.
pub const REMEMBERED_MAX: usize = 1_000;

/// What an operator has asked a client to give back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// When the primary judges the client.
    pub(crate) until: ServerTime,
    /// The lock that the client is to give back; `None`: the client is to leave.
    pub(crate) lock: Option<LockId>,
    /// Whether the client's leases end with it.
    pub(crate) now: bool,
    /// The name of the operator.
    pub(crate) by: Arc<str>,
}

impl Membership {
    /// Clients that have no control connection.
    pub(crate) fn departed(&self) -> Vec<ClientId> {
        let is_here = |state| matches!(state, State::Present);
        self.iter().filter(|&(_, state)| !is_here(state)).map(|(client, _)| client).collect()
    }

    /// Records that an operator asks a client to give something back. Does nothing if the client is
    /// not known. A later request replaces an earlier one.
    pub(crate) fn asks(&mut self, client: ClientId, asked: Asked) {
        self.with(client, |member| {
            if member.state != State::Undoing {
                member.asked = Some(asked);
            }
        });
    }

    /// Until when an operator gives a client time; `None`: no operator has asked the client for
    /// anything.
    pub fn asked_until(&self, client: ClientId) -> Option<ServerTime> {
        self.members.get(&client)?.asked.as_ref().map(|asked| asked.until)
    }

    /// Makes the primary judge the client if the time that an operator has given it is over;
    /// returns whether it is.
    pub(crate) fn ask_is_over(&mut self, at: ServerTime, client: ClientId) -> bool {
        let is_over = self.asked_until(client).is_some_and(|until| until <= at);
        if is_over {
            let asked = self.with(client, |member| member.asked.take()).flatten();
            self.tasks.extend(asked.map(|asked| Task::Judge { client, asked }));
        }
        is_over
    }

    /// Handles the result of [`Task::Judge`]. `has`: whether the client still has what it was asked
    /// for.
    pub(crate) fn judged(&mut self, client: ClientId, asked: &Asked, has: bool) {
        if !has || !self.members.contains_key(&client) {
            return;
        }
        self.removed_by(client, asked);
        if asked.now {
            return self.end(client, Ending::All(Exit::OperatorNow));
        }
        if planted::is(Bug::RemovedLeaseEnds) {
            return self.end(client, Ending::All(Exit::Operator));
        }
        self.with(client, |member| member.is_barred = true);
        self.cut_off(client, Exit::Operator);
    }

    /// Records which operator has removed a client, and whether its leases ended at once.
    pub(crate) fn removed_by(&mut self, client: ClientId, asked: &Asked) {
        if self.removers.len() >= REMEMBERED_MAX {
            self.removers.pop_first();
        }
        self.removers.insert(client, (Arc::clone(&asked.by), asked.now));
    }

    /// The name of the operator who has removed this client, and whether its leases ended at once.
    /// `None`: no operator has removed it, or so long ago that the primary has forgotten it.
    pub fn remover(&self, client: ClientId) -> Option<(&str, bool)> {
        let is_member = self.members.get(&client);
        let is_removed = is_member.is_none_or(|member| member.is_barred || !member.may_return());
        self.removers.get(&client).filter(|_| is_removed).map(|(by, now)| (&**by, *now))
    }
}
