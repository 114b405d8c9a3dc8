// SPDX-License-Identifier: MIT OR Apache-2.0
//! A session that a client requests while the primary still has its last one. The new session is
//! prepared, and takes the place of the last when the client shows that it has all answers
//! (`dlock_core::membership`).
//!
//! ```text
//!   Up ─renews─▶ Join ─▶ Attach, with a version ─▶ a heartbeat shows it ─answer─▶ Up, the new one
//!    ▲                 operations go on in the old session             │
//!    └── the old one goes on ◀── refused, lost, not answered in time ──┘
//! ```

use dlock_core::clock::NS;
use dlock_core::membership::SHOW_WAIT_NS;

use super::control::{Answer, Stage};
use super::plan::Fabric;
use super::server::World;
use super::state::{Ask, Client, Ev, Life, Session, Sys};

/// Of a thousand failed attempts, those whose end the primary does not notice.
const SILENT: u32 = 300;
/// Of a thousand requests that show the new session to the primary, those that come too late.
const LATE: u32 = 15;
/// Of a thousand answers of an attempt, those that are lost with its connection.
const LOST: u32 = 60;
/// The longest time for which a session is prepared: the core's limit, and the time until the
/// primary has listened.
const PREPARED_NS_MAX: u64 = SHOW_WAIT_NS + 8 * NS;

/// An attempt to get another session.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Renewal {
    /// The control connection of the present session, which goes on beside the attempt.
    beside: Option<u32>,
    /// Whether the client has shown the new session to the primary, and awaits the answer.
    is_shown: bool,
    /// When the client got the first answer of the attempt.
    answered: u64,
    /// Until when the client requests no other session.
    rests_until: u64,
    /// The connection of an attempt that the client gave up because it was not answered in time.
    given_up: Option<u32>,
}

impl Renewal {
    /// Whether the client goes on with its present session beside this attempt.
    pub(super) fn is_beside(&self) -> bool {
        self.beside.is_some()
    }

    /// The client's present session has ended. Returns whether an attempt is under way, which is
    /// then all that is left.
    pub(super) fn goes_on_alone(&mut self) -> bool {
        self.beside.take().is_some()
    }

    /// Whether the client has shown the new session to the primary, and awaits the answer.
    pub(super) fn is_shown(&self) -> bool {
        self.is_shown
    }
}

impl Client {
    /// The client makes a new control connection.
    pub(super) fn connects(&mut self) {
        self.conns += 1;
        self.conn = self.conns;
    }
}

impl Sys {
    /// Requests another session for a client now and then; returns whether it does.
    pub(super) fn renews(&mut self, c: usize) -> bool {
        let chance = if self.calm { 0 } else { self.plan.renews };
        let client = &self.clients[c];
        let is_settled = client.failover.is_none() && !client.claims_open && self.alive;
        let is_bound = client.threads.iter().all(|t| t.entry.is_none() || t.epoch == client.epoch);
        let rests = client.renewal.rests_until > self.now;
        if chance == 0 || !is_settled || !is_bound || rests || !self.rng.chance(chance) {
            return false;
        }
        if self.is_busy_on_cpu(c) {
            return false;
        }
        let client = &mut self.clients[c];
        client.renewal = Renewal {
            beside: Some(client.conn),
            given_up: client.renewal.given_up,
            ..Renewal::default()
        };
        self.log(|| format!("client {c} asks for another session beside its own"));
        self.join(c);
        true
    }

    /// Whether the connection of an attempt ends before this answer.
    pub(super) fn renewal_is_cut(&mut self, c: usize, answer: &Answer) -> bool {
        let is_of_it = matches!(answer, Answer::Joined { .. } | Answer::Attached);
        let is_of_it = is_of_it || self.clients[c].renewal.is_shown;
        self.plan.renews > 0 && is_of_it && !self.calm && self.rng.chance(LOST)
    }

    /// Records when the first answer of the attempt came.
    pub(super) fn renewal_answered(&mut self, c: usize) {
        let now = self.now;
        self.clients[c].renewal.answered = now;
    }

    /// Shows the primary that this client has got all answers of its new session.
    pub(super) fn shows(&mut self, c: usize) {
        let passed_ns = self.now - self.clients[c].renewal.answered;
        self.clients[c].renewal.is_shown = true;
        if self.plan.renews > 0 && !self.calm && self.rng.chance(LATE) {
            let at = self.now + SHOW_WAIT_NS + self.rng.below(3 * NS);
            match self.rng.chance(500) {
                true => self.clients[c].control_up_last = self.clients[c].control_up_last.max(at),
                // the request comes late because the primary stands still, instead of the message
                // being slow
                false => {
                    self.frozen_until = self.frozen_until.max(at);
                    self.put_off_until = self.put_off_until.max(at);
                }
            }
        }
        self.ask_for(c, Ask::Heartbeat, SHOW_WAIT_NS.saturating_sub(passed_ns).max(1));
    }

    /// Handles the answer to the request that shows the session.
    pub(super) fn show_answered(&mut self, c: usize, sent: u64, answer: Answer) {
        let (at, until) = match answer {
            Answer::Alive(at, until, _) => (at, until),
            _ => return self.connection_lost(c),
        };
        if self.is_cut(c) {
            return self.connection_lost(c);
        }
        let client = &mut self.clients[c];
        client.renewal = Renewal::default();
        let Some((asked, session)) = client.session.take() else { return };
        if client.life == Life::Up {
            // the old session is over: what is under way on it stays without an answer
            self.flush(c);
        }
        self.joined(c, asked, session);
        if self.clients[c].life == Life::Up {
            let sent_ns = self.clients[c].clock.local(sent).max(0) as u64;
            self.clients[c].beats.answered(sent_ns);
            self.horizon_moves(c);
            self.learn(c, sent, at);
            if sent >= self.clients[c].clock.jumped {
                self.gives_up_first(c, until);
            }
        }
    }

    /// Handles a failed attempt: its connection ended, or no answer came. Returns whether the
    /// client goes on with its present session.
    pub(super) fn renewal_fails(&mut self, c: usize, is_late: bool) -> bool {
        let client = &mut self.clients[c];
        let (inc, conn, id) = (client.inc, client.conn, client.id);
        let renewal = std::mem::take(&mut client.renewal);
        let is_pending = client.session.take().is_some();
        if is_late && renewal.is_shown {
            client.renewal.given_up = Some(conn);
        }
        // memory that was mapped for the attempt is unmapped
        if is_pending && client.fabric != Fabric::Shm {
            let mut sessions = self.sessions.iter_mut();
            if let Some(s) = sessions.find(|s| Some(s.id) == id) {
                s.mapped = false;
            }
        }
        let Some(old) = renewal.beside else { return false };
        if self.rng.chance(SILENT) {
            self.clients[c].renewal.rests_until = self.now + 2 * PREPARED_NS_MAX;
        } else {
            let at = self.ends_for_the_primary(c);
            self.at(at, Ev::Lost(c as u8, inc, conn));
        }
        self.log(|| format!("client {c} goes on with the session that it has"));
        let client = &mut self.clients[c];
        (client.conn, client.control) = (old, Stage::Sleep);
        self.control_soon(c, true);
        true
    }
}

impl World {
    /// Checks that the client of a prepared session, which takes the place of the one before, has
    /// asked for that, and has not given up the prepared session meanwhile.
    pub(super) fn takes_place(&mut self, prepared: &Session) {
        let client = &self.sys.clients[usize::from(prepared.client)];
        let is_its = client.inc == prepared.inc;
        if is_its && client.renewal.given_up == Some(prepared.conn) {
            let c = prepared.client;
            self.sys.fail(format!(
                "prepared: client {c} has given a session up, which ends the one that it has"
            ));
        }
        let client = &self.sys.clients[usize::from(prepared.client)];
        let is_current = is_its && client.conn == prepared.conn && self.sys.plan.prepares;
        if is_current && client.session.is_some() && !client.renewal.is_shown {
            let c = prepared.client;
            self.sys.fail(format!(
                "prepared: the session of client {c} ends, and it has not shown the next one"
            ));
        }
    }

    /// Checks that a prepared session is used, or given up, within its time.
    pub(super) fn nothing_stays_prepared(&mut self) {
        let (now, is_put_off) = (self.sys.now, self.sys.now < self.sys.put_off_until + NS);
        let late = |s: &&Session| now.saturating_sub(s.since) > PREPARED_NS_MAX;
        let listens = self.unheard > 0;
        if let Some(s) = self.prepared.iter().find(late).filter(|_| !is_put_off && !listens) {
            let (c, since) = (s.client, s.since);
            self.sys.fail(format!("prepared: a session of client {c} is prepared since {since}"));
        }
    }

    /// Closes the channel of a prepared session, as membership says.
    pub(super) fn close_prepared_channel(&mut self, id: dlock_core::ids::ClientId, channel: u64) {
        let mut prepared = self.prepared.iter_mut();
        if let Some(s) = prepared.find(|s| s.id == id && s.channel == channel && channel != 0) {
            (s.gen, s.channel) = (0, 0);
        }
    }
}
