// SPDX-License-Identifier: MIT OR Apache-2.0
//! Command channels: the messages of one client arrive in order, those of different clients in any.
//!
//! ```text
//!   client ──Batch, Ledger, Request──▶ up ──▶ tcp: the primary's inbox, a whole chain at a time
//!                                      └──▶ verbs: the card, one by one; messages to the inbox
//!          ◀──Outcome, Reply──── down
//! ```
//! A channel has a number. Messages with the number of a closed channel are dropped, at the primary
//! and at the client.

use dlock_core::ids::Seq;
use dlock_core::memory::word_op::{Outcome, WordOp};
use dlock_core::primary::Sent;
use dlock_core::wire::status::Status;

use super::plan::{Fabric, Fault};
use super::state::{Arrived, Ev, Frame, Life, Session, Sys, Unit};

impl Sys {
    pub(super) fn send_up(&mut self, c: usize, unit: Unit) {
        if !matches!(self.clients[c].life, Life::Up | Life::Leaving) {
            return;
        }
        let ns = self.takes(2_000);
        let spread = self.takes(100);
        let twice = matches!(unit, Unit::Request { .. })
            && !self.calm
            && self.plan.faults.contains(&Fault::Duplicate)
            && self.rng.chance(60);
        let client = &mut self.clients[c];
        let verbs = match unit {
            Unit::Batch { chain, .. } if client.fabric == Fabric::Verbs => chain.ops().len(),
            _ => 1,
        };
        let first = (self.now + ns).max(client.up_last + 1).max(client.blocked_up);
        let last = first + spread * (verbs as u64 - 1);
        client.up_last = last;
        client.up.push_back((client.inc, client.gen, unit));
        for i in 0..verbs as u64 {
            self.up_at(c, first + spread * i);
        }
        if twice {
            self.struck(Fault::Duplicate, c);
            let client = &mut self.clients[c];
            client.up.push_back((client.inc, client.gen, unit));
            self.up_at(c, last);
        }
    }

    pub(super) fn up_at(&mut self, c: usize, at: u64) {
        self.clients[c].up_events += 1;
        self.at(at, Ev::Up(c as u8));
    }

    /// Sends the chains of one doorbell: one frame, or one list of work requests.
    pub(super) fn send_all_up(&mut self, c: usize, units: &[Unit]) {
        if !matches!(self.clients[c].life, Life::Up | Life::Leaving) {
            return;
        }
        let (ns, spread) = (self.takes(2_000), self.takes(100));
        let client = &mut self.clients[c];
        let verbs: usize = match client.fabric {
            Fabric::Verbs => units.iter().map(Unit::verbs).sum(),
            _ => 1,
        };
        let first = (self.now + ns).max(client.up_last + 1).max(client.blocked_up);
        client.up_last = first + spread * (verbs as u64 - 1);
        client.up.extend(units.iter().map(|&unit| (client.inc, client.gen, unit)));
        for i in 0..verbs as u64 {
            self.up_at(c, first + spread * i);
        }
    }

    /// The sessions that the primary keeps for one process of a client.
    pub(super) fn sessions_of(&self, c: usize, inc: u16) -> impl Iterator<Item = &Session> {
        self.sessions.iter().filter(move |s| usize::from(s.client) == c && s.inc == inc)
    }

    /// Handles the arrival of the next unit of a client's channel. If events are left over for a
    /// unit that took none, or units for which no event is left, the next arrival makes up for it.
    pub(super) fn arrive(&mut self, c: usize) {
        let events = &mut self.clients[c].up_events;
        *events = events.saturating_sub(1);
        self.arrive_now(c);
        if self.clients[c].up_events == 0 && !self.clients[c].up.is_empty() {
            let ns = self.takes(100);
            self.up_at(c, self.now + ns);
        }
    }

    fn arrive_now(&mut self, c: usize) {
        let Some((inc, gen, unit)) = self.clients[c].up.pop_front() else { return };
        let open = self.sessions_of(c, inc).find(|s| s.gen == gen && gen != 0);
        let open = open.map(|s| (s.id, s.fabric)).filter(|_| self.alive);
        let is_closed = open.is_none();
        let acts = || self.acts_unfenced((c, inc, gen), &unit).map(|id| (id, Fabric::Verbs));
        let Some((id, fabric)) = open.or_else(acts) else { return };
        if fabric != Fabric::Verbs {
            self.queue(Arrived::Unit { client: c as u8, inc, gen, unit });
            let rest = matches!(unit, Unit::Batch { more: true, .. })
                && self.clients[c].up.front().is_some_and(|u| (u.0, u.1) == (inc, gen));
            return if rest {
                self.arrive_now(c)
            }; // the frame has more chains
        }
        match unit {
            Unit::Batch { lock, tok, chain, mut values, more } => {
                let word_op = chain.ops()[values.as_slice().len()];
                self.executes(self.epoch, id, &word_op, &mut values);
                if values.as_slice().len() < chain.values_len() {
                    let rest = Unit::Batch { lock, tok, chain, values, more };
                    return self.clients[c].up.push_front((inc, gen, rest));
                }
                if is_closed {
                    return; // the client receives no outcome
                }
                let outcome = Outcome::Done(values);
                // only the last work request of a list is signalled
                self.clients[c].completions.push(Frame::Outcome { lock, tok, outcome });
                if !more {
                    for frame in std::mem::take(&mut self.clients[c].completions) {
                        self.send_down(c, inc, gen, frame);
                    }
                }
            }
            Unit::Note { lock, tok, handle, entry } => {
                self.word_op(
                    self.epoch,
                    id,
                    &WordOp::WriteLedger { handle, value: entry.into_bits() },
                );
                self.send_down(c, inc, gen, Frame::Noted { lock, tok });
            }
            Unit::Request { .. } | Unit::End => {
                self.queue(Arrived::Unit { client: c as u8, inc, gen, unit });
            }
        }
    }

    /// Queues an arrival; the primary handles it when it comes to it.
    pub(super) fn queue(&mut self, arrived: Arrived) {
        self.inbox.push_back(arrived);
        if !self.serve_pending {
            self.serve_pending = true;
            let ns = self.takes(300);
            let at = (self.now + ns).max(self.frozen_until);
            self.at(at, Ev::Serve);
        }
    }

    pub(super) fn send_down(&mut self, c: usize, inc: u16, gen: u32, frame: Frame) {
        let ns = self.takes(2_000);
        let client = &mut self.clients[c];
        let at = (self.now + ns).max(client.down_last + 1).max(client.blocked_down);
        client.down_last = at;
        client.down.push_back((inc, gen, frame));
        self.at(at, Ev::Down(c as u8));
    }

    /// Handles the arrival of the next frame at a client.
    pub(super) fn receive(&mut self, c: usize) {
        let client = &mut self.clients[c];
        let Some((inc, gen, frame)) = client.down.pop_front() else { return };
        if client.inc == inc && client.gen == gen && matches!(client.life, Life::Up | Life::Leaving)
        {
            self.frame(c, frame);
        }
    }

    /// Sends replies of the arbiter to the clients that have a channel.
    pub(super) fn deliver(&mut self, out: &mut Vec<Sent>) {
        for sent in out.drain(..) {
            let Some(s) = self.session(sent.client).copied().filter(|s| s.gen != 0) else {
                continue;
            };
            if sent.seq.0 >> 32 != u64::from(s.gen) {
                continue; // the request came on a channel that is closed now
            }
            let seq = Seq(sent.seq.0 & 0xffff_ffff);
            let frame = Frame::Reply { seq, reply: sent.reply };
            self.send_down(s.client.into(), s.inc, s.gen, frame);
        }
    }

    /// Breaks the client's side of its command channel. Messages under way may still arrive, or
    /// not.
    pub(super) fn break_command(&mut self, c: usize) {
        let keep = match self.rng.chance(500) {
            true => usize::MAX,
            false => self.rng.below(self.clients[c].up.len() as u64 + 1) as usize,
        };
        self.is_cut_from(c, self.clients[c].inc);
        let client = &mut self.clients[c];
        client.up.truncate(keep);
        client.completions.clear();
        self.hang_up(c);
        let client = &mut self.clients[c];
        if client.life == Life::Up {
            client.life = Life::Broken;
        }
        client.gen = 0;
        let is_asked_for = client.renewal.goes_on_alone();
        self.flush(c);
        if !is_asked_for {
            self.control_soon(c, true);
        }
    }

    /// Lets the primary notice, after the messages under way, that a client's channel has ended.
    pub(super) fn hang_up(&mut self, c: usize) {
        let ns = self.takes(20_000);
        let client = &mut self.clients[c];
        if client.gen == 0 {
            return;
        }
        client.up.push_back((client.inc, client.gen, Unit::End));
        let at = (self.now + ns).max(client.up_last + 1).max(client.blocked_up);
        client.up_last = at;
        self.up_at(c, at);
    }

    /// The outcome of a chain on this lock if the client's side refuses to execute it; `None`: it
    /// is executed.
    pub(super) fn refuses_lock(&self, c: usize, l: usize) -> Option<Outcome> {
        let refused = self.refuses(c, self.clients[c].threads[l].epoch);
        let over = || Some(Outcome::Refused(Status::BadResponse));
        match refused {
            None if !self.is_connected(c, l) => over(),
            Some(Outcome::Unknown) => over(), // the channel is gone, so the chain was not sent
            refused => refused,
        }
    }

    /// The outcome of a chain on a lock whose slot belongs to this epoch, if the chain is refused;
    /// `None`: it is executed.
    pub(super) fn refuses(&self, c: usize, epoch: u32) -> Option<Outcome> {
        let client = &self.clients[c];
        let connected = matches!(client.life, Life::Up | Life::Leaving);
        let mapped = client.epoch == self.epoch && self.alive;
        match client.fabric {
            _ if epoch != client.epoch => Some(Outcome::Refused(Status::NotReady)),
            _ if !connected => Some(Outcome::Unknown),
            Fabric::Shm if !mapped => Some(Outcome::Unknown),
            Fabric::Shm if self.revoked(c).is_some() => self.revoked(c).map(Outcome::Refused),
            // during a recovery the primary lets no client at the memory: mapped memory refuses all
            // chains, and a queue pair is connected only afterwards
            Fabric::Shm | Fabric::Verbs if self.recovering && !self.bugs.open_gate => {
                Some(Outcome::Refused(Status::NotReady))
            }
            _ => None,
        }
    }

    /// The status with which the primary refuses this client's chains at the memory.
    fn revoked(&self, c: usize) -> Option<Status> {
        let client = &self.clients[c];
        let open = self.sessions.iter().find(|s| Some(s.id) == client.id && s.gen == 0);
        open.and_then(|s| s.revoked)
    }
}
