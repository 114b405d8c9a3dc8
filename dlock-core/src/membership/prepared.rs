// SPDX-License-Identifier: MIT OR Apache-2.0
//! A reinit in two phases: a client's session ends only when the client is sure of the next one.
//!
//! ```text
//!   client ──Reinit──▶ prepared: a secret of its own, one for each member
//!          ◀─Session─                                     the session before goes on as it was:
//!          ──Attach{its secret}─────────────▶ its channel    its connections, waits, horizon
//!          ◀─Attached─        (not served yet)
//!          ──any request on its control connection──▶ it takes the place: the old connections
//!          ◀─answer─                                  are closed and fenced, then comes the answer
//! ```
//! The client uses the new session once it has the answer to that request, and otherwise goes on
//! with the old one. So there is no moment at which the primary serves operations of both:
//!
//! * *The client stops in between, or for ever*: the primary gives a prepared session up, with its
//!   control connection, [`PREPARED_S`] after the `Reinit`, or when anything of the member ends.
//!   Until then an absent client does not lapse by the grace, and is not evicted, because it is
//!   coming back.
//! * *The client's request is late* (the primary stood still, or the network): it changes nothing
//!   once the session is given up, whether the client has noticed that or not. So a client that has
//!   waited for its answer for [`SHOW_WAIT_NS`] knows that the request will not end its old session
//!   any more.
//! * *The client asks again*: its next `Reinit` replaces the prepared session. An `Attach` of an
//!   attempt that was given up has a secret that the primary does not know any more.
//! * *Both sessions send*: the primary serves requests and frames of the old session until the new
//!   one takes its place, and none afterwards; frames on the new channel wait until then.
//! * *The last answer is lost*: the client still shows its old secret, which stays a proof until
//!   the primary knows that the client uses the next one. Its old session has ended then; another
//!   `Reinit` brings the client back with everything that it has.
//! * *The primary dies in between*: both sessions end with it. The later horizon of the two held
//!   until then.
//!
//! A member without connections has nothing to protect: its `Reinit` lets it in at once.

use super::admission::{Admission, Wanted};
use super::member::{is_same, Prepared};
use super::{Membership, State, Task};
use crate::clock::{ServerTime, NS};
use crate::ids::ClientId;
use crate::locks::Locks;
use crate::planted::{self, Bug};
use crate::roster::Change;
use crate::wire::control::{Attach, Secret, Terms, UNLIMITED};

/// How long the primary keeps a prepared session, seconds, on its own clock.
pub const PREPARED_S: u64 = 20;
/// How long the client waits for the end of its old session, from the answer to `Reinit`, on its
/// own clock. Longer than [`PREPARED_S`], so the primary has given up the prepared session by then.
pub const SHOW_WAIT_NS: u64 = (PREPARED_S + 1) * NS;

/// Which session of a member an `Attach` is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The session that the member has.
    Session,
    /// The prepared session, to which the client has not moved yet.
    Prepared,
}

impl Membership {
    /// Prepares a second session for a member that has one.
    pub(super) fn prepare(
        &mut self,
        now: ServerTime,
        locks: &Locks,
        (client, proof): (ClientId, Secret),
        wanted: Wanted,
        fresh: Secret,
    ) -> Option<Admission> {
        let Wanted { version, horizon_s, control, .. } = wanted;
        let until = match horizon_s {
            0 => UNLIMITED,
            _ => now.plus_ns(u64::from(horizon_s) * NS),
        };
        self.with(client, |member| {
            member.prepared = Some(Prepared {
                control,
                secret: fresh,
                proof,
                horizon_s,
                until,
                ends: now.plus_ns(PREPARED_S * NS),
                channel: None,
                fabric: None,
            });
            // The client may go on with either session, and relies on the later of the two
            // horizons.
            member.until = member.until.max(until);
            member.is_promised(until);
            let terms = Terms { horizon_s, until, lapses: member.lapses };
            let (secret, recovering) = (fresh, locks.is_recovering());
            Admission { client, secret, version, recovering, terms, prepared_by: Some(proof) }
        })
    }

    /// Handles the first sign of a request on this control connection of a client. If the
    /// connection is that of a prepared session, the client has received all answers, and that
    /// session takes the place of the present one. Returns whether it did: then the driver executes
    /// the effects before the primary serves the request.
    pub(crate) fn is_shown(
        &mut self,
        now: ServerTime,
        locks: &mut Locks,
        client: ClientId,
        control: u64,
    ) -> bool {
        if !planted::is(Bug::LateShowMoves) {
            self.give_up_late(now, client);
        }
        let prepared = self.members.get(&client).and_then(|member| member.prepared);
        let is_shown = prepared.is_some_and(|prepared| prepared.control == control);
        if is_shown {
            self.take_place(now, locks, client);
        }
        is_shown
    }

    /// Makes the prepared session the member's session, and ends the one before.
    pub(super) fn take_place(&mut self, now: ServerTime, locks: &mut Locks, client: ClientId) {
        let Some(member) = self.members.get_mut(&client) else { return };
        let Some(prepared) = member.prepared.take() else { return };
        if let Some(old) = member.control.replace(prepared.control) {
            self.tasks.push_back(Task::CloseControl { client, control: old });
        }
        let old = std::mem::replace(&mut member.channel, prepared.channel);
        self.tasks.push_back(Task::CloseChannel { client, channel: old, serves: true });
        let fabric = prepared.fabric;
        self.tasks.push_back(Task::Keep(Change::Moved { client }));
        self.tasks.push_back(Task::Switch { client, fabric });
        self.with(client, |member| {
            member.previous = Some(prepared.proof);
            member.secret = prepared.secret;
            member.state = State::Present;
            (member.is_quiet, member.lags) = (false, false);
            member.horizon_s = prepared.horizon_s;
            member.fabric = fabric.or(member.fabric);
            member.heard(now);
        });
        locks.came_back(now, client);
    }

    /// Gives the prepared session up if its time is over; returns whether it did.
    pub(super) fn give_up_late(&mut self, now: ServerTime, client: ClientId) -> bool {
        let prepared = self.members.get(&client).and_then(|member| member.prepared);
        let is_late = prepared.is_some_and(|prepared| prepared.ends <= now);
        let is_late = is_late && !planted::is(Bug::PreparedKept);
        if is_late {
            self.give_up_prepared(client);
        }
        is_late
    }

    /// Gives the prepared session up; the member's session stays.
    pub(super) fn give_up_prepared(&mut self, client: ClientId) {
        let prepared = self.with(client, |member| {
            let prepared = member.prepared.take()?;
            if prepared.horizon_s == 0 && member.horizon_s > 0 {
                member.until = member.bounded; // undoes the promise without a bound
            }
            Some(prepared)
        });
        let Some(prepared) = prepared.flatten() else { return };
        let Prepared { control, channel, .. } = prepared;
        self.tasks.push_back(Task::CloseControl { client, control });
        if channel.is_some() {
            self.tasks.push_back(Task::CloseChannel { client, channel, serves: false });
        }
    }

    /// The session that an `Attach` is for, by its secret; `None`: neither session has that secret.
    pub(super) fn target(&self, attach: &Attach) -> Option<Target> {
        let member = self.members.get(&attach.client)?;
        let is_session = is_same(member.secret, attach.secret);
        let prepared = member.prepared.filter(|prepared| is_same(prepared.secret, attach.secret));
        match prepared {
            Some(_) => Some(Target::Prepared),
            None => is_session.then_some(Target::Session),
        }
    }
}
