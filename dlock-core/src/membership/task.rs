// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the members want done.

use crate::ids::ClientId;
use crate::roster::Change;
use crate::wire::control::FabricKind;

/// Something to be done, in the order in which it was asked for. What has the name of an
/// [`Effect`](crate::primary::Effect) is for the driver.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    Listen,
    CloseControl {
        client: ClientId,
        control: u64,
    },
    /// `serves`: it is that of the session, and not of a prepared one.
    CloseChannel {
        client: ClientId,
        channel: Option<u64>,
        serves: bool,
    },
    /// `fabric`: what the prepared session has attached by; `None`: it has no command channel yet.
    Switch {
        client: ClientId,
        fabric: Option<FabricKind>,
    },
    Fence {
        client: ClientId,
    },
    Keep(Change),
    Revoke {
        client: ClientId,
    },
    /// The client is fenced: look whether it has something.
    Look {
        client: ClientId,
    },
    /// The client is fenced: end what it has without a lease.
    Lapse {
        client: ClientId,
    },
    /// The client is fenced: undo everything it has.
    Undo {
        client: ClientId,
        exit: Exit,
    },
    Forget {
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
