// SPDX-License-Identifier: MIT OR Apache-2.0
//! Members while the primary recovers: clients that do not claim everything in time, clients whose
//! processes end before they have claimed everything, and the roster that is kept when the recovery
//! is over.

use super::{Ending, Exit, Gone, Membership, State};
use crate::clock::ServerTime;
use crate::ids::ClientId;
use crate::locks::{Laggard, Locks, Recovered};
use crate::planted::{self, Bug};
use crate::roster::Change;
use crate::wire::control::UNLIMITED;

impl Membership {
    /// Handles that the processes which a client of the predecessor had on this host have ended. If
    /// the client has come back but not attached, no other event would report that. Once it has
    /// attached, the primary watches its processes or its connections.
    pub(crate) fn predecessors_process_ended(&mut self, locks: &mut Locks, client: ClientId) {
        match self.members.get(&client) {
            None => locks.is_dead(client),
            Some(member) if member.fabric.is_none() => {
                self.end(client, Ending::All(Exit::Died));
            }
            Some(_) => {}
        }
    }

    /// Handles that a client has not claimed everything in time at a recovering primary, while
    /// others wait for it: the primary closes the client's connection, and the client may not come
    /// back. Everything that it has ends when its horizon has passed, because the client does not
    /// rely on its claims after that. The recovery waits for a client without a horizon, unless an
    /// operator ends the wait (`is_hurried`).
    pub(crate) fn lags(&mut self, now: ServerTime, laggard: Laggard) {
        let Laggard { client, is_hurried } = laggard;
        let Some(member) = self.members.get(&client) else { return };
        let is_unlimited = member.until == UNLIMITED;
        let is_over = member.until <= now; // the client is being fenced
        match member.state {
            _ if planted::is(Bug::LaggardAwaited) => return,
            State::Fenced(_) | State::Ending(Ending::Fence(_)) => {
                self.with(client, |member| member.lags = true);
                return;
            }
            _ if is_unlimited && !is_hurried => return,
            State::Present | State::Absent { .. } if is_unlimited => {
                return self.end(client, Ending::Lapse(Exit::Laggard));
            }
            State::Present | State::Absent { .. } => {}
            State::Ending(_) if is_over => return self.end(client, Ending::All(Exit::Laggard)),
            _ => return,
        }
        self.give_up_prepared(client);
        self.with(client, |member| member.lags = true);
        self.hang_up(now, client, Gone::Silent);
    }

    /// Takes the result of the recovery, once, with the change of the roster that the driver must
    /// keep with it.
    pub(crate) fn take_recovered(&mut self, locks: &mut Locks) -> Option<(Recovered, Change)> {
        let recovered = locks.take_recovered()?;
        let clients: Vec<ClientId> = self.members.keys().copied().collect();
        let given_up = locks.take_given_up();
        for &client in &clients {
            let has_lost = given_up.contains(&client) && !planted::is(Bug::GivenUpUntold);
            self.with(client, |member| {
                member.owes_claims = false;
                member.lapses = member.lapses.saturating_add(u32::from(has_lost));
            });
        }
        let clients = clients.into_iter().chain(locks.idle()).collect();
        Some((recovered, Change::Only { clients }))
    }
}
