// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client's side of its session with a primary, without I/O.
//!
//! ```text
//!   Init ─▶ Session ─▶ attach (which executor: attach) ─▶ Open ◀──▶ Async ─▶ Left
//!   Reinit, beside the old session; the new one replaces it:
//!     same incarnation of the primary ─▶ every lock goes on where it is    (lock)
//!     a recovering successor          ─▶ every lock refuses until claimed  (claims)
//!   heartbeats ─▶ the horizon: past it the client neither posts nor relies on its holds (horizon)
//! ```
//! What a call returns before any other check (`–`: the check passes), by the state of the client:
//!
//! | call | `Open` | `Async` | `Left` |
//! |---|---|---|---|
//! | lock and object operations | – | `Async` | `ClientNotInit` |
//! | get and release locks | – | – | `Error` |
//! | objects, claims, done | – | – | `ClientNotInit` |
//! | reinit, heartbeat | – | – | `Invalid` |

mod arrival;
mod attach;
mod claims;
mod failover;
mod horizon;
mod lock;

pub use arrival::{Arrival, Step};
pub use attach::{Failure, PathChoice, PathSearch, UnknownPath};
pub use claims::{Claims, Verdict, ROUNDS_MAX};
pub use failover::{
    Failover, Heard, Task, ADDRESSES_MAX, ADMISSION_NS, ASK_NS_MIN, CONFIRMS_MAX,
    HEARTBEATS_PER_SILENCE, PAUSE_NS, SILENCE_NS, UNREACHED_NS, WAITS_NS,
};
pub use horizon::{Heartbeats, HEARTBEATS_PER_HORIZON};
pub use lock::{resume, Binding};

use crate::ids::{ClientId, Epoch};
use crate::wire::control::{ControlReply, Session, VERSION, VERSION_MIN};
use crate::wire::status::Status;

/// The calls that a client may make in its present state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Gate {
    /// All calls.
    Open = 0,
    /// An asynchronous operation is under way: no operation on locks or objects.
    Async = 1,
    /// The client has left.
    Left = 2,
}

/// The kinds of calls. In any one state of the client, all calls of one kind pass or get one
/// status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// An operation on a lock or an object, on the data path.
    Operation,
    /// Getting and releasing locks.
    Locks,
    /// The life cycle of objects, claims, the end of claims, results of asynchronous operations.
    Other,
    /// Reinit and heartbeat.
    Session,
}

impl Gate {
    /// The status with which the client refuses a call; `None`: the call goes on.
    pub fn refuses(self, call: Call) -> Option<Status> {
        match (self, call) {
            (Gate::Open, _) => None,
            (Gate::Async, Call::Operation) => Some(Status::Async),
            (Gate::Async, _) => None,
            (Gate::Left, Call::Operation | Call::Other) => Some(Status::ClientNotInit),
            (Gate::Left, Call::Locks) => Some(Status::Error),
            (Gate::Left, Call::Session) => Some(Status::Invalid),
        }
    }
}

/// Checks the answer to `Init`, or to the `Reinit` of the client `expected`.
///
/// # Errors
/// The primary's refusal; `VersionMismatch`; `BadResponse`: no session, or one of another client.
pub fn accept(reply: ControlReply, expected: Option<ClientId>) -> Result<Session, Status> {
    let session = match reply {
        ControlReply::Session(session) => session,
        ControlReply::Error(status) => return Err(refusal(status)),
        ControlReply::Removed { .. } => return Err(Status::ClientRemoved),
        _ => return Err(Status::BadResponse),
    };
    if !(VERSION_MIN..=VERSION).contains(&session.version) {
        return Err(Status::VersionMismatch);
    }
    match expected {
        Some(client) if client != session.client => Err(Status::BadResponse),
        _ => Ok(session),
    }
}

/// The status of a primary's refusal; a refusal with a status of success counts as a bad response.
pub fn refusal(status: Status) -> Status {
    match status {
        Status::Success | Status::Done => Status::BadResponse,
        status => status,
    }
}

/// Whether an answer proves that the primary has received a sign of life of this client, and counts
/// the client's silence from there. All answers prove that, also refusals, except those of a
/// primary that does not know the client, and those that a primary may give before it has read the
/// request.
pub fn was_heard(reply: &ControlReply) -> bool {
    use Status as S;
    let may_be_unheard = |status: &Status| {
        matches!(status, S::Error | S::ClientRemoved | S::NotReady | S::VersionMismatch)
    };
    !matches!(reply, ControlReply::Error(status) if may_be_unheard(status))
}

/// Whether handles of objects survive a reinit. They do not at another incarnation, nor at a
/// recovering one: the objects are lost there.
pub fn objects_survive(old: Epoch, new: Epoch, recovering: bool) -> bool {
    old == new && !recovering
}

/// Whether this answer to the release of a reference decides the release: then the client has no
/// reference any more, even if the status is an error.
pub fn is_decided(status: Status) -> bool {
    !matches!(status, Status::NotReady | Status::BadResponse)
}

/// The result of a release that had the answer `status`. If an earlier release was not answered,
/// `Error` (the client has not got the lock) means that the earlier one took effect: success.
pub fn released(status: Status, was_unanswered: bool) -> Status {
    match status {
        Status::Error if was_unanswered => Status::Success,
        status => status,
    }
}

#[cfg(test)]
mod tests;
