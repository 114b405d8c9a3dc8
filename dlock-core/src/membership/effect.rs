// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the machine asks its driver to do.

use crate::control::FabricKind;
use crate::ids::ClientId;
use crate::roster::Change;

/// Something to be done outside, in the order in which it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Hand in everything that has come by now on any connection, and report by
    /// [`listened`](super::Membership::listened). Requests that wait for their turn are told by
    /// [`heard`](super::Membership::heard).
    Listen,
    /// Close this control connection.
    CloseControl {
        /// Whose.
        client: ClientId,
        /// Its number.
        control: u64,
    },
    /// Close the command channel of this number, if there is one, fence its queue pairs, and try
    /// again to fence those that could not be. If it is that of the session, and not of a prepared
    /// one, tell the primary ([`Locks::detached`](crate::locks::Locks::detached)). Report by
    /// [`channel_closed`](super::Membership::channel_closed).
    CloseChannel {
        /// Whose.
        client: ClientId,
        /// Its number.
        channel: Option<u64>,
    },
    /// The connections of the prepared session are those of the client from now on. `fabric`: what
    /// it has attached by, to be told to the primary
    /// ([`Locks::attached`](crate::locks::Locks::attached)).
    Switch {
        /// Whose.
        client: ClientId,
        /// `None`: it has no command channel yet.
        fabric: Option<FabricKind>,
    },
    /// Close the client's command channels as `CloseChannel`, and ask the memory whether the
    /// client has unmapped it. Report by [`fence_tried`](super::Membership::fence_tried).
    Fence {
        /// Whom.
        client: ClientId,
    },
    /// Keep this for a successor of this primary, before the answer is sent to the request that is
    /// being served.
    Keep(Change),
    /// Refuse the client's chains at mapped memory with `ClientRemoved`.
    Revoke {
        /// Whose.
        client: ClientId,
    },
    /// The client is fenced: look whether it has something
    /// ([`Locks::has_something`](crate::locks::Locks::has_something)), and report by
    /// [`looked`](super::Membership::looked).
    Look {
        /// At whom.
        client: ClientId,
    },
    /// The client is fenced: end what it has without a lease
    /// ([`Locks::lapse`](crate::locks::Locks::lapse)), and report by
    /// [`lapsed`](super::Membership::lapsed) when that is done.
    Lapse {
        /// Whose.
        client: ClientId,
    },
    /// The client is fenced: undo everything it has
    /// ([`Locks::fenced`](crate::locks::Locks::fenced)), and report by
    /// [`undone`](super::Membership::undone) when that is done.
    Undo {
        /// Whose.
        client: ClientId,
        /// Why, for the log.
        exit: Exit,
    },
    /// The client is not known any more: remove its memory, and watch its processes no longer.
    Forget {
        /// Whom.
        client: ClientId,
    },
}

/// Why a client is removed, or what it has without a lease is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    /// It was absent, and its place was needed. It had nothing.
    Evicted,
    /// Its host closed its connections, and it did not come back within the grace.
    Grace,
    /// It was silent past the horizon that it knows.
    Horizon,
    /// It stood still in the middle of an operation for which others waited.
    Hindered,
    /// It has not told the recovering primary everything in time.
    Laggard,
    /// The leases that were kept for it are over.
    LeasesOver,
    /// It could not be given memory.
    NoMemory,
    /// It said so.
    Left,
    /// An operator has removed it.
    Operator,
    /// Its processes have ended.
    Died,
    /// Its certificate was revoked.
    Revoked,
    /// New rules do not give it everything in the memory that it reaches.
    Restricted,
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Exit::Evicted => "it is absent and has nothing, and its place is needed",
            Exit::Grace => "it closed its connections and did not come back in time",
            Exit::Horizon => "it was silent past its session horizon",
            Exit::Hindered => "it kept others waiting in the middle of an operation",
            Exit::Laggard => "it did not say in time that it has told everything",
            Exit::LeasesOver => "it is absent, and its last lease has ended",
            Exit::NoMemory => "there is no memory for it",
            Exit::Left => "it has left",
            Exit::Operator => "an operator has removed it",
            Exit::Died => "its process has ended",
            Exit::Revoked => "its certificate was revoked",
            Exit::Restricted => "the new rules do not allow it all of the memory that it reaches",
        })
    }
}
