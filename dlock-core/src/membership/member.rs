// SPDX-License-Identifier: MIT OR Apache-2.0
//! One member: its state, its session, and the session that is to replace it.

use super::{Asked, Exit};
use crate::clock::ServerTime;
use crate::ids::Identity;
use crate::planted::{self, Bug};
use crate::wire::about::About;
use crate::wire::control::{Secret, UNLIMITED};
use crate::wire::fabric::{Executes, FabricKind};

/// The state of a member; see the [module](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The member has a control connection.
    Present,
    /// The control connection has ended, and everything that the member has is kept.
    Absent {
        /// When the connection ended.
        since: ServerTime,
        /// Whether the client's host closed the connection; otherwise the host does not answer.
        is_closed: bool,
    },
    /// The member must be fenced before anything of it ends.
    Ending(Ending),
    /// The member is fenced, and keeps everything until the horizon that the primary promised has
    /// passed.
    Fenced(Exit),
    /// The member is fenced, and its holds without a lease are being ended.
    Lapsing(Exit),
    /// The member is fenced, and has nothing but leases.
    Lingering {
        /// The end of the last lease.
        until: ServerTime,
    },
    /// The member is fenced, and everything that it has is being undone.
    Undoing,
}

/// What of a member ends once it is fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Everything, if the member has nothing; otherwise the member is absent as before.
    Evict {
        /// See [`State::Absent`].
        since: ServerTime,
        /// See [`State::Absent`].
        is_closed: bool,
    },
    /// Nothing yet: what has no lease ends once the horizon has passed.
    Fence(Exit),
    /// Everything that has no lease.
    Lapse(Exit),
    /// Everything.
    All(Exit),
}

/// A process that has mapped the memory for a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) number: u64,
    pub(super) pid: Option<i32>,
    pub(super) has_ended: bool,
}

/// A further session of a client that already has one. It becomes the client's session when the
/// client shows that it has received the answer; see [`prepared`](super::prepared).
#[derive(Clone, Copy, Debug)]
pub(super) struct Prepared {
    /// The number of the prepared session's control connection.
    pub(super) control: u64,
    /// The secret of an `Attach` for this session; an `Attach` for the present session has another
    /// one.
    pub(super) secret: Secret,
    /// The proof that the client gave. It stays valid, in case the client does not learn that it
    /// has moved to this session.
    pub(super) proof: Secret,
    /// The horizon of the prepared session, seconds; 0: unlimited.
    pub(super) horizon_s: u32,
    /// The end of the horizon that the primary promised the client for this session.
    pub(super) until: ServerTime,
    /// When the primary gives this session up.
    pub(super) ends: ServerTime,
    /// The number of the prepared session's command channel; `None`: not attached yet.
    pub(super) channel: Option<u64>,
    pub(super) fabric: Option<FabricKind>,
}

#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) secret: Secret,
    /// The identity of the certificate that registered the client: the client can come back and
    /// attach only with this certificate.
    pub(super) identity: Option<Identity>,
    /// What the client tells of itself; no decision depends on it.
    pub(super) about: About,
    /// The secret before `secret`: the client may not have received the present one.
    pub(super) previous: Option<Secret>,
    /// The session that is to replace the present one.
    pub(super) prepared: Option<Prepared>,
    pub(super) state: State,
    /// The number of the control connection.
    pub(super) control: Option<u64>,
    /// The number of the command channel.
    pub(super) channel: Option<u64>,
    /// How many command channels the client has had so far.
    pub(super) channels: u64,
    /// The fabric of the last command channel.
    pub(super) fabric: Option<FabricKind>,
    /// Whether the client comes back by itself if the primary closes its channel.
    pub(super) returns: bool,
    /// Processes that have mapped the lock memory for this client.
    pub(super) processes: Vec<Process>,
    /// Whether some queue pairs of the client could not be fenced yet.
    pub(super) unfenced: bool,
    /// The horizon of the session, seconds; 0: unlimited.
    pub(super) horizon_s: u32,
    /// Until when the primary does not act on the client's silence.
    pub(super) until: ServerTime,
    /// The latest such time that a session with a horizon was promised. Threads of the client may
    /// rely on it even if a later session has no horizon. 0: no session had one.
    pub(super) bounded: ServerTime,
    /// How often the primary has ended what the client had without a lease.
    pub(super) lapses: u32,
    /// Whether the client got a lock, or may have got one: a successor must wait for it.
    pub(super) has_locks: bool,
    /// Whether the client is at a recovering primary, and has not claimed everything yet.
    pub(super) owes_claims: bool,
    /// Whether the client has not claimed everything in time at this recovering primary, and may
    /// not come back.
    pub(super) lags: bool,
    /// The reason to remove the client as soon as the lapse under way is done.
    pub(super) condemned: Option<Exit>,
    /// What an operator has asked the client to give back.
    pub(super) asked: Option<Asked>,
    /// Whether an operator has removed the client: it may not come back.
    pub(super) is_barred: bool,
    /// Whether the grace after the end of the connection is over, and the command channel was
    /// closed.
    pub(super) is_quiet: bool,
    /// The member's deadline in the list of deadlines.
    pub(super) due: Option<ServerTime>,
}

impl Member {
    pub(super) fn new(secret: Secret, control: u64) -> Self {
        Self {
            secret,
            identity: None,
            about: About::NOTHING,
            previous: None,
            prepared: None,
            state: State::Present,
            control: Some(control),
            channel: None,
            channels: 0,
            fabric: None,
            returns: false,
            processes: Vec::new(),
            unfenced: false,
            horizon_s: 0,
            until: UNLIMITED,
            bounded: ServerTime(0),
            lapses: 0,
            has_locks: false,
            owes_claims: false,
            lags: false,
            condemned: None,
            asked: None,
            is_barred: false,
            is_quiet: false,
            due: None,
        }
    }

    /// Whether this secret proves that a caller is this client.
    pub(super) fn proves(&self, secret: Secret) -> bool {
        let is_previous = self.previous.is_some_and(|previous| is_same(previous, secret));
        is_same(self.secret, secret) | is_previous
    }

    /// Whether a connection with this certificate may speak for the client. If the client was
    /// registered without a certificate, only a connection without one may.
    pub(super) fn is_of(&self, identity: Option<Identity>) -> bool {
        self.identity == identity
    }

    /// Records that this command channel has ended.
    pub(super) fn forget_channel(&mut self, channel: Option<u64>) {
        if channel.is_none() {
            return;
        }
        if self.channel == channel {
            self.channel = None;
        }
        if let Some(prepared) = self.prepared.as_mut().filter(|p| p.channel == channel) {
            prepared.channel = None;
        }
    }

    /// Whether the member has connections that its client may still use.
    pub(super) fn has_session(&self) -> bool {
        let may_act = matches!(self.state, State::Present | State::Absent { .. });
        may_act && (self.control.is_some() || self.channel.is_some())
    }

    /// Whether a session of the client reaches the memory itself.
    pub(super) fn reaches_memory(&self) -> bool {
        let prepared = self.prepared.and_then(|prepared| prepared.fabric);
        let mut fabrics = self.fabric.into_iter().chain(prepared);
        fabrics.any(|fabric| fabric.executes() != Executes::Primary)
    }

    /// Whether the client reaches the memory itself and was not fenced.
    pub(super) fn may_act_on_memory(&self) -> bool {
        use State as S;
        let is_fenced =
            matches!(self.state, S::Fenced(_) | S::Lapsing(_) | S::Lingering { .. } | S::Undoing);
        self.reaches_memory() && !is_fenced
    }

    /// Whether every process that has mapped the memory for this client has ended (`false` if none
    /// has mapped it).
    pub(super) fn all_processes_ended(&self) -> bool {
        !self.processes.is_empty() && self.processes.iter().all(|p| p.has_ended)
    }

    /// Whether the client is proved dead: its last fabric maps the memory, and all its processes
    /// have ended. The primary does not know the processes of a client that has moved to another
    /// fabric.
    pub(super) fn is_dead(&self) -> bool {
        let maps = |fabric: FabricKind| fabric.executes() == Executes::Client;
        self.fabric.is_some_and(maps) && self.all_processes_ended()
    }

    /// Whether the client may come back: the primary has ended none of its holds, or the answer to
    /// `Reinit` tells the client which it has ended.
    pub(super) fn may_return(&self) -> bool {
        match self.state {
            State::Present | State::Absent { .. } => true,
            State::Fenced(_) | State::Lingering { .. } => true,
            State::Ending(Ending::Evict { .. } | Ending::Fence(_) | Ending::Lapse(_)) => true,
            State::Ending(Ending::All(_)) | State::Lapsing(_) | State::Undoing => false,
        }
    }

    /// Records that the primary promises the client not to act on its silence until this time.
    pub(super) fn is_promised(&mut self, until: ServerTime) {
        if until != UNLIMITED {
            self.bounded = match planted::is(Bug::PromiseShortened) {
                true => until,
                false => self.bounded.max(until),
            };
        }
    }

    /// Records a sign of life: extends the promise by a horizon from now on.
    pub(super) fn heard(&mut self, now: ServerTime) {
        let horizon = u64::from(self.horizon_s) * crate::clock::NS;
        let until = match self.horizon_s {
            0 => UNLIMITED,
            _ => now.plus_ns(horizon),
        };
        self.is_promised(until);
        self.until = match self.until {
            // A client that asks for a bounded horizon obeys it from then on, and also an earlier
            // bound that it was promised before a session without a horizon.
            UNLIMITED => until.max(self.bounded),
            before => before.max(until),
        };
    }
}

/// Whether two secrets are the same. Takes the same time in both cases.
pub(super) fn is_same(a: Secret, b: Secret) -> bool {
    a.0.iter().zip(b.0).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_that_has_ended_is_forgotten_by_the_session_whose_it_is_alone() {
        let secret = Secret([7; 16]);
        let mut member = Member::new(secret, 1);
        let (until, ends) = (UNLIMITED, UNLIMITED);
        member.channel = Some(1);
        member.prepared = Some(Prepared {
            control: 2,
            secret,
            proof: secret,
            horizon_s: 0,
            until,
            ends,
            channel: Some(2),
            fabric: None,
        });
        let channels = |m: &Member| (m.channel, m.prepared.and_then(|p| p.channel));
        for ended in [None, Some(3)] {
            member.forget_channel(ended);
            assert_eq!(channels(&member), (Some(1), Some(2)));
        }
        member.forget_channel(Some(1));
        assert_eq!(channels(&member), (None, Some(2)));
        member.forget_channel(Some(2));
        assert_eq!(channels(&member), (None, None));
    }
}
