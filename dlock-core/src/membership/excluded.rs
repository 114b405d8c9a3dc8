// SPDX-License-Identifier: MIT OR Apache-2.0
//! Members that may not stay: their certificate was revoked, or new rules do not allow them the
//! memory that they reach. Such a client may not know yet that its session is over. It relies on
//! its leases until they end, and on everything else until its horizon. So the primary fences the
//! client, and keeps what it has for that long.

use super::member::Member;
use super::{Exit, Membership};
use crate::clock::ServerTime;
use crate::ids::ClientId;
use crate::locks::Locks;
use crate::planted::{self, Bug};
use crate::wire::fabric::{Executes, FabricKind};

/// A connection of a member, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// A control connection.
    Control(u64),
    /// A command channel.
    Channel(u64),
}

impl Membership {
    /// Handles that the certificate of this connection is revoked: its client is fenced, and what
    /// the client has without a lease ends with its horizon. Does nothing if the client no longer
    /// uses the connection.
    pub(crate) fn revoked(&mut self, client: ClientId, connection: Connection) {
        let Some(member) = self.members.get(&client) else { return };
        let prepared = member.prepared;
        let is_its = match connection {
            Connection::Control(number) => {
                let prepared = prepared.map(|prepared| prepared.control);
                [member.control, prepared].contains(&Some(number))
            }
            Connection::Channel(number) => {
                let prepared = prepared.and_then(|prepared| prepared.channel);
                [member.channel, prepared].contains(&Some(number))
            }
        };
        if is_its {
            self.cut_off(client, Exit::Revoked);
        }
    }

    /// Applies changed rules: cuts off clients that reach the memory themselves, but no longer have
    /// rights to all of it.
    pub(crate) fn rules_changed(&mut self, locks: &Locks) {
        let is_out = |(client, member): (&ClientId, &Member)| {
            (member.reaches_memory() && !locks.may_map(*client)).then_some(*client)
        };
        let out: Vec<ClientId> = self.members.iter().filter_map(is_out).collect();
        for client in out {
            self.cut_off(client, Exit::Restricted);
        }
    }

    /// Makes clients that reach the memory themselves come back over a fabric whose chains the
    /// primary executes, because in a drain the primary refuses some chains. A client that does not
    /// come back by itself stays, and so does one without a horizon: it would lose what it has. All
    /// stay where there is no such fabric.
    pub(crate) fn drains(&mut self) {
        let is_checked = |fabric: &FabricKind| fabric.executes() == Executes::Primary;
        let mut others = FabricKind::ALL.into_iter().filter(is_checked);
        if !others.any(|fabric| self.rules.offered.has(fabric)) {
            return;
        }
        let is_out = |(client, member): (&ClientId, &Member)| {
            let keeps_all =
                member.returns && member.bounded > ServerTime(0) || planted::is(Bug::DrainLapses);
            (member.reaches_memory() && keeps_all).then_some(*client)
        };
        let out: Vec<ClientId> = self.members.iter().filter_map(is_out).collect();
        for client in out {
            self.cut_off(client, Exit::Drained);
        }
    }

    /// How many clients may take locks without the primary.
    pub fn reaching_memory(&self) -> usize {
        self.members.values().filter(|member| member.may_act_on_memory()).count()
    }
}
