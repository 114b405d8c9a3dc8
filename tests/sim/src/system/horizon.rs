// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client learns from an answer on its control connection: the server clock, and until when
//! it may rely on a hold without a lease.

use dlock_core::clock::ServerTime;
use dlock_core::wire::control::UNLIMITED;

use super::state::Sys;

impl Sys {
    /// Learns the server clock from an exchange.
    pub(super) fn learn(&mut self, c: usize, sent: u64, at: ServerTime) {
        let now = self.now;
        let client = &mut self.clients[c];
        let trip = (client.clock.local(sent), client.clock.local(now));
        // the clock offset of the primary to which the client belongs; that primary may have ended
        // by now
        let of_dead = self.dead_offsets.iter().find(|(epoch, _)| *epoch == client.epoch);
        let told_ns = of_dead.map_or(self.offset, |(_, offset)| *offset) as u64;
        let before_ns = client.clock.now(now).uncertainty_ns;
        client.clock.learn(trip, at, told_ns);
        client.clock.has_learned |= sent >= client.clock.jumped;
        self.is_brought_back(c, sent, (before_ns, (now - sent) + 2));
        let client = &mut self.clients[c];
        client.clock_at = now + self.plan.heartbeat_ns;
    }

    /// Moves the horizon of each lock whose operations the session carries.
    pub(super) fn horizon_moves(&mut self, c: usize) {
        let gen = self.clients[c].gen;
        for l in 0..self.clients[c].threads.len() {
            let t = &self.clients[c].threads[l];
            if gen != 0 && t.gen == gen && t.entry.is_some() {
                self.takes_horizon(c, l);
            }
        }
    }

    /// Sets the horizon of this lock to that of the client's session.
    pub(super) fn takes_horizon(&mut self, c: usize, l: usize) {
        let (now, who, client) = (self.now, self.who(c), &mut self.clients[c]);
        let horizon_ns = client.beats.horizon_ns();
        client.threads[l].horizon_ns = horizon_ns;
        // a client without a horizon relies on its hold only until its primary ends holds without
        // leases, which a lost answer may hide from the client
        let until = match client.cut {
            (conn, until) if conn >= client.session_conn && horizon_ns == u64::MAX => until,
            _ => client.clock.when(horizon_ns),
        };
        if let Err(why) = self.oracle.horizon(l, who, now, until) {
            self.fail(why);
        }
    }

    /// Checks that the client is past its horizon by its own clock before the primary acts.
    pub(super) fn gives_up_first(&mut self, c: usize, acts_at: ServerTime) {
        let client = &self.clients[c];
        if client.epoch != self.epoch || acts_at == UNLIMITED {
            return;
        }
        let (until, acts_at) =
            (client.clock.when(client.beats.horizon_ns()), self.true_time(acts_at));
        if until > acts_at {
            self.fail(format!("horizon: client {c} goes on until {until}, the primary {acts_at}"));
        }
    }
}
