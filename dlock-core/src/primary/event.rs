// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens to a primary, and what it wants done.

use std::sync::Arc;

use crate::clock::ServerTime;
use crate::ids::{ClientId, Handle, Seq};
use crate::locks::{Known, Recovered, Sent};
use crate::membership::{Caller, Channel, Connection, Draws, Exit, Gone, Joining, Opened};
use crate::memory::word_op::{Chain, Outcome};
use crate::memory::words::LedgerEntry;
use crate::rights::Rule;
use crate::roster::Change;
use crate::wire::control::{Act, Attach, ControlReply, ControlRequest, Whose};
use crate::wire::message::Request;
use crate::wire::status::Status;

/// Something that has happened.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // `client`, `control`, `channel`: which, by their numbers
pub enum Event {
    /// A recovery begins in which these are waited for, by
    /// [`PrimaryConfig::recovery_clients`](super::PrimaryConfig::recovery_clients) or not. The
    /// predecessor answers nothing any more; none is given up before `deadline_s` has passed since.
    Awaits { known: Vec<Known>, deadline_s: u32 },
    /// The list of the predecessor's clients was lost.
    AwaitsUnlisted,
    /// An operator does not want to wait any longer for clients of the predecessor.
    Hurries,
    /// The processes that a client of the predecessor had on this host have ended.
    PredecessorEnded { client: ClientId },

    /// `Init` or `Reinit` on a control connection: [`Effect::Opened`] is the answer.
    Open { request: ControlRequest, caller: Caller, draws: Draws },
    /// A client that was let in cannot be given memory; whether it is a new one.
    NoMemory { client: ClientId, is_new: bool },
    /// A request has come on this control connection, and waits for its turn.
    Heard { client: ClientId, control: u64 },
    /// A request has come on this control connection. If that is the one of a prepared session, the
    /// session takes the place of the one before; [`Event::Control`] does the same first.
    Shown { client: ClientId, control: u64 },
    /// Any other request on a control connection: [`Effect::Answer`] is the answer.
    Control { client: ClientId, control: u64, request: ControlRequest },
    /// A control connection has ended.
    ControlEnded { client: ClientId, control: u64, why: Gone },
    /// Everything has been given in that had come when [`Effect::Listen`] was executed.
    Listened,
    /// The certificate that this connection has shown is revoked.
    Revoked { client: ClientId, connection: Connection },
    /// These rules from now on; none: everything is allowed.
    Rules(Vec<Rule>),
    /// An operator, whose name for the log is `by`, wants this done on this host.
    Operate { act: Act, by: Arc<str> },

    /// A connection wants to be a client's command channel: [`Effect::Attached`] is the answer.
    Attach { attach: Attach, joining: Joining },
    /// A command channel has ended by itself; whether its queue pairs could not be fenced.
    ChannelEnded { client: ClientId, channel: u64, unfenced: bool },
    /// [`Effect::CloseChannel`], [`Effect::Fence`] or [`Effect::Switch`] was executed; whether
    /// queue pairs of the client could not be fenced.
    Done { unfenced: bool },
    /// A process that was watched ([`Channel::watch`]) has ended.
    ProcessEnded { client: ClientId, process: u64 },

    /// A request on a client's command channel.
    Command { client: ClientId, seq: Seq, request: Request },
    /// A chain of a client that is not one-sided: [`Effect::Outcome`] is the answer.
    Chain { client: ClientId, chain: Chain },
    /// An entry of a client's ledger that is to be written.
    Note { client: ClientId, handle: Handle, entry: LedgerEntry },

    /// Time has passed: [`Primary::next_wakeup`](super::Primary::next_wakeup) says when this has
    /// something to do. At other times it may come as well.
    Tick,
    /// There is time for so much of what the primary has to do by itself
    /// ([`Primary::has_upkeep`](super::Primary::has_upkeep)).
    Upkeep { budget: u32 },
    /// Clients that could not be fenced are to be tried again, as nothing tells of their end.
    Retry,
    /// What clients have counted is collected for
    /// [`Counters::read`](crate::counters::Counters::read).
    Collect,
    /// All counters begin at 0.
    ClearCounters,
}

impl Event {
    #[doc(hidden)] // for tests of other rules
    pub fn removes(client: ClientId) -> Self {
        let whose = Whose::Client(client);
        let act = Act::TakeAway { whose, grace_s: 0, now: true };
        Self::Operate { act, by: Arc::from("an operator") }
    }
}

/// Something to be done outside, in the order in which it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // `client`, `control`, `channel`: which, by their numbers
pub enum Effect {
    /// The answer to [`Event::Open`]. A client that is admitted gets memory, and then its answer.
    Opened { control: u64, opened: Result<Opened, Status> },
    /// The answer to [`Event::Control`].
    Answer { control: u64, reply: ControlReply },
    /// The answer to [`Event::Attach`]: the client has its command channel from now on.
    Attached { client: ClientId, channel: Result<Channel, Status> },
    /// The answer to [`Event::Chain`].
    Outcome(Outcome),
    /// A reply on its way to a client's command channel.
    Send(Sent),

    /// Give in everything that has come by now on any connection, and then [`Event::Listened`].
    /// [`Event::Heard`] tells of requests that wait for their turn.
    Listen,
    /// Close this control connection.
    CloseControl { client: ClientId, control: u64 },
    /// Close the command channel of this number, if there is one, and fence its queue pairs. Queue
    /// pairs of earlier channels that could not be fenced are tried again. Report by
    /// [`Event::Done`].
    CloseChannel { client: ClientId, channel: Option<u64> },
    /// The connections of the prepared session are those of the client from now on. Report by
    /// [`Event::Done`].
    Switch { client: ClientId },
    /// Close all command channels of the client as `CloseChannel`. Report by [`Event::Done`].
    Fence { client: ClientId },
    /// Refuse the client's chains at mapped memory with `ClientRemoved`.
    Revoke { client: ClientId },
    /// Refuse the chains of all clients at mapped memory, or permit them.
    Gate { is_closed: bool },
    /// The client is not known any more: remove its memory, and watch its processes no longer.
    Forget { client: ClientId },
    /// Keep this for a successor of this primary, before any answer that comes later.
    Keep(Change),

    /// For the log: a client keeps others waiting in the middle of an operation; it is fenced.
    Hinders { client: ClientId },
    /// For the log: a client has not told a recovering primary everything in time. `until`: when it
    /// is given up; `None`: it is waited for all the same.
    Lags { client: ClientId, until: Option<ServerTime> },
    /// For the log: this client, which an operator has removed or a recovery does not wait for,
    /// cannot be fenced now.
    Unfenced { client: ClientId },
    /// For the log: what this client has without a lease is ended.
    Lapses { client: ClientId },
    /// For the log: everything that this client has is undone.
    Removes { client: ClientId, exit: Exit },
    /// For the log: an operator has asked for this, which concerns these clients.
    Operated { act: Act, by: Arc<str>, clients: Vec<ClientId> },
    /// Nothing is held, and no client gets a lock: the primary may be stopped.
    Idle,
    /// For the log: the recovery is over.
    Recovered(Recovered),
}

impl Effect {
    /// Whether this is the answer to an event, which its caller waits for.
    pub fn is_answer(&self) -> bool {
        let is_control = matches!(self, Self::Opened { .. } | Self::Answer { .. });
        is_control || matches!(self, Self::Attached { .. } | Self::Outcome(_))
    }

    /// Whether [`Event::Done`] is to follow when it was executed.
    pub fn is_reported(&self) -> bool {
        matches!(self, Self::CloseChannel { .. } | Self::Fence { .. } | Self::Switch { .. })
    }
}
