// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens to a primary, and what the primary wants the driver to do.

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
#[allow(missing_docs)] // `client`, `control` and `channel` are the numbers of what they name
pub enum Event {
    /// A recovery begins that waits for these clients, even if `recovery_clients` of
    /// [`PrimaryConfig`](super::PrimaryConfig) is 0. The predecessor answers nothing any more; the
    /// recovery gives up no client before `deadline_s` has passed since then.
    Awaits { known: Vec<Known>, deadline_s: u32 },
    /// The roster of the predecessor was lost.
    AwaitsUnlisted,
    /// An operator ends the wait for clients of the predecessor.
    Hurries,
    /// The processes that a client of the predecessor had on this host have ended.
    PredecessorEnded { client: ClientId },

    /// `Init` or `Reinit` on a control connection: [`Effect::Opened`] is the answer.
    Open { request: ControlRequest, caller: Caller, draws: Draws },
    /// The driver cannot give memory to a client that was let in. `is_new`: whether it is a new
    /// client.
    NoMemory { client: ClientId, is_new: bool },
    /// A request has come on this control connection, and waits for its turn.
    Heard { client: ClientId, control: u64 },
    /// A request has come on this control connection. If that is the connection of a prepared
    /// session, that session takes the place of the present one; [`Event::Control`] first does the
    /// same.
    Shown { client: ClientId, control: u64 },
    /// Any other request on a control connection: [`Effect::Answer`] is the answer.
    Control { client: ClientId, control: u64, request: ControlRequest },
    /// A control connection has ended.
    ControlEnded { client: ClientId, control: u64, why: Gone },
    /// The driver has passed on everything that had come when it executed [`Effect::Listen`].
    Listened,
    /// The certificate that this connection has shown is revoked.
    Revoked { client: ClientId, connection: Connection },
    /// These rules hold from now on; an empty list: everything is allowed.
    Rules(Vec<Rule>),
    /// An operator of this host, whose name for the log is `by`, asks for this act.
    Operate { act: Act, by: Arc<str> },

    /// A connection asks to become a client's command channel: [`Effect::Attached`] is the answer.
    Attach { attach: Attach, joining: Joining },
    /// A command channel has ended by itself. `unfenced`: whether its queue pairs could not be
    /// fenced.
    ChannelEnded { client: ClientId, channel: u64, unfenced: bool },
    /// The driver has executed [`Effect::CloseChannel`], [`Effect::Fence`] or [`Effect::Switch`].
    /// `unfenced`: whether queue pairs of the client could not be fenced.
    Done { unfenced: bool },
    /// A process that was watched ([`Channel::watch`]) has ended.
    ProcessEnded { client: ClientId, process: u64 },

    /// A request on a client's command channel.
    Command { client: ClientId, seq: Seq, request: Request },
    /// A chain of a client that is not one-sided: [`Effect::Outcome`] is the answer.
    Chain { client: ClientId, chain: Chain },
    /// An entry of a client's ledger that the primary is to write.
    Note { client: ClientId, handle: Handle, entry: LedgerEntry },

    /// Time has passed. [`Primary::next_wakeup`](super::Primary::next_wakeup) says when this event
    /// has something to do; it may come at other times, too.
    Tick,
    /// There is time for upkeep of `budget` work units
    /// ([`Primary::has_upkeep`](super::Primary::has_upkeep)).
    Upkeep { budget: u32 },
    /// Try again to fence the clients that could not be fenced, because no event reports their end.
    Retry,
    /// Collect what clients have counted, for [`Counters::read`](crate::counters::Counters::read).
    Collect,
    /// The same, for the next `clients` clients.
    CollectSome { clients: usize },
    /// Set all counters to 0.
    ClearCounters,
}

impl Event {
    #[doc(hidden)] // public for tests of other rules
    pub fn removes(client: ClientId) -> Self {
        let whose = Whose::Client(client);
        let act = Act::TakeAway { whose, grace_s: 0, now: true };
        Self::Operate { act, by: Arc::from("an operator") }
    }
}

/// Something for the driver to do. The driver executes effects in the order in which they come.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // `client`, `control` and `channel` are the numbers of what they name
pub enum Effect {
    /// The answer to [`Event::Open`]. The driver gives an admitted client its memory before its
    /// answer.
    Opened { control: u64, opened: Result<Opened, Status> },
    /// The answer to [`Event::Control`].
    Answer { control: u64, reply: ControlReply },
    /// The answer to [`Event::Attach`]: the client has its command channel from now on.
    Attached { client: ClientId, channel: Result<Channel, Status> },
    /// The answer to [`Event::Chain`].
    Outcome(Outcome),
    /// A reply to a client, for its command channel.
    Send(Sent),

    /// Pass on everything that has come by now on any connection, and then [`Event::Listened`].
    /// Pass [`Event::Heard`] for each request that waits for its turn.
    Listen,
    /// Close this control connection.
    CloseControl { client: ClientId, control: u64 },
    /// Close the command channel with this number, if there is one, and fence its queue pairs. Try
    /// again to fence those of earlier channels that could not be fenced. Report by
    /// [`Event::Done`].
    CloseChannel { client: ClientId, channel: Option<u64> },
    /// From now on the connections of the prepared session are those of the client. Report by
    /// [`Event::Done`].
    Switch { client: ClientId },
    /// Close all command channels of the client, like `CloseChannel`. Report by [`Event::Done`].
    Fence { client: ClientId },
    /// Refuse the client's chains at mapped memory, with this status: `ClientRemoved`; or
    /// `BadResponse` to a client that is fenced, and may come back.
    Revoke { client: ClientId, status: Status },
    /// Refuse the chains of all clients at mapped memory, or permit them.
    Gate { is_closed: bool },
    /// Forget the client: remove its memory, and watch its processes no longer.
    Forget { client: ClientId },
    /// Keep this change for a successor of this primary; it must be kept before any later answer is
    /// sent.
    Keep(Change),

    /// For the log: a client keeps others waiting in the middle of an operation, and is being
    /// fenced.
    Hinders { client: ClientId },
    /// For the log: a client has not claimed everything in time at this recovering primary.
    /// `until`: when the recovery gives it up; `None`: the recovery waits for it all the same.
    Lags { client: ClientId, until: Option<ServerTime> },
    /// For the log: this client cannot be fenced now, although an operator has removed it or a
    /// recovery does not wait for it.
    Unfenced { client: ClientId },
    /// For the log: what this client has without a lease is being ended.
    Lapses { client: ClientId },
    /// For the log: everything that this client has is being undone.
    Removes { client: ClientId, exit: Exit },
    /// For the log: an operator has asked for this act, which concerns these clients.
    Operated { act: Act, by: Arc<str>, clients: Vec<ClientId> },
    /// In a drain: no lock is held any more, so the primary may be stopped.
    Idle,
    /// For the log: the recovery is over.
    Recovered(Recovered),
}

impl Effect {
    /// Whether this is the answer to an event, for which the caller of the event waits.
    pub fn is_answer(&self) -> bool {
        let is_control = matches!(self, Self::Opened { .. } | Self::Answer { .. });
        is_control || matches!(self, Self::Attached { .. } | Self::Outcome(_))
    }

    /// Whether the driver must report the end of this effect by [`Event::Done`].
    pub fn is_reported(&self) -> bool {
        matches!(self, Self::CloseChannel { .. } | Self::Fence { .. } | Self::Switch { .. })
    }
}
