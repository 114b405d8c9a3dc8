// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tasks that the membership gives to the primary, and the reasons why a member ends.

use super::Asked;
use crate::ids::ClientId;
use crate::roster::Change;
use crate::wire::control::FabricKind;

/// A task. The primary does tasks in the order in which they were given. It passes those that have
/// the name of an [`Effect`](crate::primary::Effect) to the driver.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    Listen,
    CloseControl {
        client: ClientId,
        control: u64,
    },
    /// `serves`: whether the channel is that of the session, and not that of a prepared one.
    CloseChannel {
        client: ClientId,
        channel: Option<u64>,
        serves: bool,
    },
    /// Make the connections of the prepared session those of the client. `fabric`: the fabric of
    /// its command channel; `None`: it has no command channel yet.
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
    /// The time that an operator has given the client is over: check whether it still has what it
    /// was asked for.
    Judge {
        client: ClientId,
        asked: Asked,
    },
    /// The client is fenced: check whether it has something.
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

/// Why the primary removes a client, or ends what it has without a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    /// The client had no connection and no locks, and a new client needed its place.
    Evicted,
    /// The client's host closed its connections, and it did not come back within the grace.
    Grace,
    /// The client was silent past its horizon.
    Horizon,
    /// The client stood still in the middle of an operation for which others waited.
    Hindered,
    /// The client has not claimed everything in time at the recovering primary.
    Laggard,
    /// The last lease that was kept for the client is over.
    LeasesOver,
    /// The primary could not give memory to the client.
    NoMemory,
    /// The client left.
    Left,
    /// An operator removed the client; its leases last until their ends.
    Operator,
    /// An operator removed the client, and its leases with it.
    OperatorNow,
    /// The client's processes have ended.
    Died,
    /// The client's certificate was revoked.
    Revoked,
    /// The client reaches the memory itself, and has to come back over another fabric for a drain.
    Drained,
    /// New rules no longer allow the client all of the memory that it reaches.
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
            Exit::OperatorNow => "an operator has removed it, and its leases",
            Exit::Died => "its process has ended",
            Exit::Revoked => "its certificate was revoked",
            Exit::Drained => "locks are not given any more, and it reached the memory itself",
            Exit::Restricted => "the new rules do not allow it all of the memory that it reaches",
        })
    }
}
