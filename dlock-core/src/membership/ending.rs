// SPDX-License-Identifier: MIT OR Apache-2.0
//! How something of a member ends: first the decision, then fencing, then undoing.

use super::{Ending, Exit, Gone, Membership, State, Task};
use crate::clock::ServerTime;
use crate::ids::ClientId;
use crate::locks::{Lapsed, Locks};
use crate::planted::{self, Bug};
use crate::roster::Change;
use crate::wire::status::Status;

/// The result of an attempt to fence a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fencing {
    /// Whether some queue pairs of the client could not be fenced.
    pub(crate) unfenced: bool,
    /// Whether a process of the client may have the memory mapped ([`MemberMemory::is_mapped`]).
    ///
    /// [`MemberMemory::is_mapped`]: super::MemberMemory::is_mapped
    pub(crate) mapped: bool,
}

impl Membership {
    /// Decides that something of a member ends as soon as the member is fenced. An earlier decision
    /// stands if it ends as much or more.
    pub(super) fn end(&mut self, client: ClientId, ending: Ending) {
        let Some(member) = self.members.get_mut(&client) else { return };
        let goes_further = match (member.state, ending) {
            (State::Undoing | State::Ending(Ending::All(_)), _) => false,
            (State::Lapsing(_), Ending::All(exit)) => {
                member.condemned = Some(exit);
                false
            }
            (State::Fenced(_) | State::Lingering { .. }, Ending::All(exit)) => {
                return self.undo(client, exit);
            }
            (State::Fenced(_) | State::Lapsing(_) | State::Lingering { .. }, _) => false,
            (State::Ending(Ending::Fence(_) | Ending::Lapse(_)), ending) => {
                matches!(ending, Ending::All(_))
            }
            (State::Ending(Ending::Evict { .. }) | State::Present | State::Absent { .. }, _) => {
                true
            }
        };
        if !goes_further {
            return;
        }
        if let Some(control) = member.control.take() {
            self.tasks.push_back(Task::CloseControl { client, control });
        }
        self.give_up_prepared(client);
        self.with(client, |member| member.state = State::Ending(ending));
        if let (true, Ending::All(exit) | Ending::Lapse(exit)) =
            (planted::is(Bug::UndoBeforeFence), ending)
        {
            return self.undo(client, exit);
        }
        self.tasks.push_back(Task::Fence { client });
    }

    /// Cuts off a member that has not been silent. Threads of the client may not know that yet, and
    /// rely on the horizon that the primary promised. So the client's holds without a lease end at
    /// the horizon, or at once if there is none.
    pub(super) fn cut_off(&mut self, client: ClientId, exit: Exit) {
        let Some(member) = self.members.get(&client) else { return };
        let may_rely = member.bounded > ServerTime(0) && !planted::is(Bug::FencedBeforeHorizon);
        self.end(client, if may_rely { Ending::Fence(exit) } else { Ending::Lapse(exit) });
    }

    /// Handles that the horizon of a member that was cut off has passed.
    pub(super) fn cut_off_is_over(&mut self, client: ClientId) {
        if self.members.get(&client).is_some_and(|member| member.lags) {
            return self.end(client, Ending::All(Exit::Laggard));
        }
        match self.state(client) {
            Some(State::Fenced(exit)) => self.lapse(client, exit),
            Some(State::Ending(Ending::Fence(exit))) => {
                self.with(client, |member| member.state = State::Ending(Ending::Lapse(exit)));
                self.tasks.push_back(Task::Fence { client });
            }
            _ => {}
        }
    }

    /// Closes a member's control connection. The member is then absent, as if its host had closed
    /// the connection, or were silent.
    pub(super) fn hang_up(&mut self, now: ServerTime, client: ClientId, why: Gone) {
        let is_closed = why == Gone::Closed;
        let control = self.with(client, |member| {
            if member.state == State::Present {
                member.state = State::Absent { since: now, is_closed };
            }
            member.control.take()
        });
        let control = control.flatten();
        self.tasks.extend(control.map(|control| Task::CloseControl { client, control }));
    }

    /// Handles the result of [`Task::Fence`]: `fencing` says whether the client can still act.
    pub(crate) fn fence_tried(&mut self, locks: &mut Locks, client: ClientId, fencing: Fencing) {
        let Some(member) = self.members.get_mut(&client) else { return };
        member.channel = None;
        member.unfenced = fencing.unfenced && !planted::is(Bug::UnfencedForgotten);
        let State::Ending(ending) = member.state else { return };
        let lives = fencing.mapped && !member.all_processes_ended();
        let unfenced = fencing.unfenced && !planted::is(Bug::UnfencedUndone);
        if unfenced || lives && !planted::is(Bug::FenceLivingShm) {
            match ending {
                Ending::Evict { .. } => self.kept(client),
                Ending::Fence(_) => self.tasks.push_back(Task::Revoke { client }),
                Ending::Lapse(_) | Ending::All(_) => {
                    self.tasks.push_back(Task::Revoke { client });
                    locks.gives_up(client);
                }
            }
            return;
        }
        match ending {
            Ending::Evict { .. } => self.tasks.push_back(Task::Look { client }),
            Ending::Fence(exit) => {
                self.with(client, |member| member.state = State::Fenced(exit));
            }
            Ending::Lapse(exit) => self.lapse(client, exit),
            Ending::All(exit) => self.undo(client, exit),
        }
    }

    /// The status with which chains of this client are refused at the memory that it has mapped.
    pub(crate) fn revoked_with(&self, client: ClientId) -> Status {
        let is_over = matches!(self.state(client), None | Some(State::Ending(Ending::All(_))));
        match is_over || self.remover(client).is_some() {
            true => Status::ClientRemoved,
            false => Status::BadResponse,
        }
    }

    /// Ends what this member has without a lease: it is fenced, and does not rely on that any
    /// longer.
    fn lapse(&mut self, client: ClientId, exit: Exit) {
        self.with(client, |member| member.state = State::Lapsing(exit));
        self.tasks.push_back(Task::Lapse { client });
    }

    /// Handles the result of [`Task::Look`]: whether the client whose place is needed has
    /// something.
    #[doc(hidden)] // public for tests of single rules
    pub fn looked(&mut self, client: ClientId, has_something: bool) {
        let state = self.state(client);
        if !matches!(state, Some(State::Ending(Ending::Evict { .. }))) {
            return; // the client came back, or goes for another reason
        }
        match has_something && !planted::is(Bug::EvictsHolder) {
            true => self.kept(client),
            false => self.undo(client, Exit::Evicted),
        }
    }

    /// Keeps a client that was about to be evicted: it is absent again.
    fn kept(&mut self, client: ClientId) {
        self.with(client, |member| {
            if let State::Ending(Ending::Evict { since, is_closed }) = member.state {
                member.state = State::Absent { since, is_closed };
            }
        });
    }

    /// Handles the result of [`Task::Lapse`].
    #[doc(hidden)] // public for tests of single rules
    pub fn lapsed(&mut self, now: ServerTime, client: ClientId, lapsed: Lapsed) {
        let Some(State::Lapsing(exit)) = self.state(client) else { return };
        let condemned = self.with(client, |member| {
            if lapsed.ended && !planted::is(Bug::LapseUntold) {
                member.lapses = member.lapses.saturating_add(1);
            }
            member.condemned.take()
        });
        match (condemned.flatten(), lapsed.until.filter(|&until| until > now)) {
            (Some(exit), _) => self.undo(client, exit),
            (None, None) => self.undo(client, exit),
            (None, Some(until)) => {
                self.with(client, |member| member.state = State::Lingering { until });
            }
        }
    }

    /// Undoes everything that this member has; the member is fenced.
    pub(super) fn undo(&mut self, client: ClientId, exit: Exit) {
        self.with(client, |member| {
            member.state = State::Undoing;
            member.asked = None;
            assert!(member.control.is_none(), "a member is removed whose connection is served");
        });
        self.tasks.push_back(Task::Undo { client, exit });
    }

    /// Handles that [`Task::Undo`] is done: forgets the member.
    pub(crate) fn undone(&mut self, client: ClientId) {
        if self.state(client) != Some(State::Undoing) {
            return;
        }
        if planted::is(Bug::UndoBeforeFence) {
            self.tasks.push_back(Task::Fence { client });
        }
        // A member in state `Undoing` has no deadline in the list.
        let member = self.members.remove(&client);
        self.mapping_files -= member.map_or(0, |member| member.mapping_files());
        self.tasks.extend([Task::Keep(Change::Left { client }), Task::Forget { client }]);
    }
}
