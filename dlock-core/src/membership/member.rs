// SPDX-License-Identifier: MIT OR Apache-2.0
//! One member.

use super::Exit;
use crate::clock::ServerTime;
use crate::ids::Identity;
use crate::planted::{self, Bug};
use crate::wire::control::{Secret, UNLIMITED};
use crate::wire::fabric::{Executes, FabricKind};

/// Where a member is; see the [module](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has a control connection.
    Present,
    /// Its control connection has ended, and everything of it is kept.
    Absent {
        /// Since when.
        since: ServerTime,
        /// Its host closed the connection; `false`: the host is silent.
        is_closed: bool,
    },
    /// It must be fenced before anything of it is ended.
    Ending(Ending),
    /// It is fenced, and keeps everything until the horizon that it knows has passed.
    Fenced(Exit),
    /// It is fenced, and what it has without a lease is being ended.
    Lapsing(Exit),
    /// It is fenced, and has nothing but leases.
    Lingering {
        /// The end of the last one.
        until: ServerTime,
    },
    /// It is fenced, and everything it has is being undone.
    Undoing,
}

/// What is ended once the member is fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All of it, if it has nothing; else it is absent as before.
    Evict {
        /// See [`State::Absent`].
        since: ServerTime,
        /// See [`State::Absent`].
        is_closed: bool,
    },
    /// Nothing yet: what has no lease once its horizon has passed.
    Fence(Exit),
    /// What has no lease.
    Lapse(Exit),
    /// All of it.
    All(Exit),
}

/// A process that has mapped the memory for a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) number: u64,
    pub(super) pid: Option<i32>,
    pub(super) has_ended: bool,
}

/// A session that a client has asked for, beside the one it has, until the client shows that it
/// has the answer; see [`prepared`](super::prepared).
#[derive(Clone, Copy, Debug)]
pub(super) struct Prepared {
    /// Its control connection.
    pub(super) control: u64,
    /// What tells its `Attach` from one of the session before.
    pub(super) secret: Secret,
    /// What the client has shown, and keeps if it does not hear that it has moved.
    pub(super) proof: Secret,
    /// Seconds; 0: unlimited.
    pub(super) horizon_s: u32,
    /// What the client was told of its horizon.
    pub(super) until: ServerTime,
    /// It is given up then.
    pub(super) ends: ServerTime,
    /// The number of its command channel.
    pub(super) channel: Option<u64>,
    pub(super) fabric: Option<FabricKind>,
}

#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) secret: Secret,
    /// Whose certificate registered it: it comes back and attaches with no other.
    pub(super) identity: Option<Identity>,
    /// The secret before, whose owner may not have heard of the one that it has now.
    pub(super) previous: Option<Secret>,
    /// The session that is to replace this one.
    pub(super) prepared: Option<Prepared>,
    pub(super) state: State,
    /// Its control connection.
    pub(super) control: Option<u64>,
    /// The number of its command channel.
    pub(super) channel: Option<u64>,
    /// Command channels it has had.
    pub(super) channels: u64,
    /// The fabric of its last channel.
    pub(super) fabric: Option<FabricKind>,
    /// Processes that have mapped the lock memory for this client.
    pub(super) processes: Vec<Process>,
    /// Queue pairs of it could not be fenced yet.
    pub(super) unfenced: bool,
    /// Seconds; 0: unlimited.
    pub(super) horizon_s: u32,
    /// Until when its silence is nothing to act on.
    pub(super) until: ServerTime,
    /// The latest of those times that it was told by a session with a horizon: threads of it may go
    /// by that although a later session has none. 0: there was none.
    pub(super) bounded: ServerTime,
    /// How often what it had without a lease was ended.
    pub(super) lapses: u32,
    /// It was given a lock, or may have been: its primary's successor must wait for it.
    pub(super) has_locks: bool,
    /// It has come to a recovering primary, which does not know yet what it holds.
    pub(super) owes_claims: bool,
    /// It has not told a recovering primary everything in time, and may not come back.
    pub(super) lags: bool,
    /// It must go altogether as soon as a lapse under way is done.
    pub(super) condemned: Option<Exit>,
    /// The grace of its silence is over: its channel was closed.
    pub(super) is_quiet: bool,
    /// What is in the list of deadlines for it.
    pub(super) due: Option<ServerTime>,
}

impl Member {
    pub(super) fn new(secret: Secret, control: u64) -> Self {
        Self {
            secret,
            identity: None,
            previous: None,
            prepared: None,
            state: State::Present,
            control: Some(control),
            channel: None,
            channels: 0,
            fabric: None,
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
            is_quiet: false,
            due: None,
        }
    }

    /// Whether this proves who a client is that comes back.
    pub(super) fn proves(&self, secret: Secret) -> bool {
        let is_previous = self.previous.is_some_and(|previous| is_same(previous, secret));
        is_same(self.secret, secret) | is_previous
    }

    /// Whether a connection that has shown this certificate, or none, may speak for it. It may have
    /// been registered without one: then one with a certificate is another's.
    pub(super) fn is_of(&self, identity: Option<Identity>) -> bool {
        self.identity == identity
    }

    /// The command channel of this number has ended.
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

    /// Whether it has connections that a client may go on to use.
    pub(super) fn has_session(&self) -> bool {
        let may_act = matches!(self.state, State::Present | State::Absent { .. });
        may_act && (self.control.is_some() || self.channel.is_some())
    }

    /// Every process that has mapped the memory for it has ended.
    pub(super) fn all_processes_ended(&self) -> bool {
        !self.processes.is_empty() && self.processes.iter().all(|p| p.has_ended)
    }

    /// It is proved that it has ended: it runs on this host, and its processes have. Of a client
    /// that has gone over to another fabric the processes are not known.
    pub(super) fn is_dead(&self) -> bool {
        let maps = |fabric: FabricKind| fabric.executes() == Executes::Client;
        self.fabric.is_some_and(maps) && self.all_processes_ended()
    }

    /// It may come back: what it has was not ended, or only what it is told of.
    pub(super) fn may_return(&self) -> bool {
        match self.state {
            State::Present | State::Absent { .. } => true,
            State::Fenced(_) | State::Lingering { .. } => true,
            State::Ending(Ending::Evict { .. } | Ending::Fence(_) | Ending::Lapse(_)) => true,
            State::Ending(Ending::All(_)) | State::Lapsing(_) | State::Undoing => false,
        }
    }

    /// The client is told by a session of it that its silence is nothing to act on until then.
    pub(super) fn is_promised(&mut self, until: ServerTime) {
        if until != UNLIMITED {
            self.bounded = match planted::is(Bug::PromiseShortened) {
                true => until,
                false => self.bounded.max(until),
            };
        }
    }

    /// Extends the promise from now on.
    pub(super) fn heard(&mut self, now: ServerTime) {
        let horizon = u64::from(self.horizon_s) * crate::clock::NS;
        let until = match self.horizon_s {
            0 => UNLIMITED,
            _ => now.plus_ns(horizon),
        };
        self.is_promised(until);
        self.until = match self.until {
            // a client that asks for a bounded horizon obeys it from then on, and an earlier one
            // that it was told before it had none
            UNLIMITED => until.max(self.bounded),
            before => before.max(until),
        };
    }
}

/// Whether two secrets are the same; takes the same time whatever the answer.
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
