// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a client handles the arbiter's replies about a fair lock.

use super::release::{had_turn, held_mode, released};
use super::view::{ticket_view, word_view};
use super::{
    asks, goes_on, granted, has_ticket, lost_place, take_anew, ticketed, LockEntry, Machine, Op,
    OpResult, Step,
};
use crate::clock::{Deadline, Lease, Now};
use crate::limits::CAS_ROUNDS_MAX;
use crate::memory::words::{Ticket, TurnWord};
use crate::token::Token;
use crate::wire::message::{Mode, Reply};
use crate::wire::status::Status;

pub(in crate::lock) fn reply(m: &mut Machine, e: &mut LockEntry, reply: Reply, now: Now) -> Step {
    match (m.op, reply) {
        (Op::Unlock, Reply::Done { word }) => {
            let mode = held_mode(e);
            e.fair.turn = TurnWord::from_bits(word);
            e.pace.followed(e.fair.turn.told());
            Step::Done(released(e, mode, now))
        }
        (Op::Unlock, Reply::Denied { word, .. }) => {
            if had_turn(m.phase) {
                e.fair.turn = TurnWord::from_bits(word);
                return Step::Done(released(e, held_mode(e), now));
            }
            e.claims_nothing();
            Step::Done(e.lost())
        }
        (Op::Extend { .. } | Op::Downgrade, Reply::Granted { word, deadline, .. }) => {
            e.fair.turn = TurnWord::from_bits(word);
            e.goes_on(deadline, m.lease(), &now);
            goes_on(m, e, m.mode())
        }
        (Op::Extend { .. } | Op::Downgrade, Reply::Denied { .. }) => {
            e.claims_nothing();
            Step::Done(e.lost_by(m))
        }
        (Op::TryLock { mode, .. } | Op::Lock { mode, .. }, reply) => {
            acquire_reply(m, e, mode, reply, now)
        }
        _ => m.lose_track(e),
    }
}

fn acquire_reply(m: &mut Machine, e: &mut LockEntry, mode: Mode, reply: Reply, now: Now) -> Step {
    match reply {
        Reply::Granted { word, deadline, ticket, .. } => {
            e.fair.turn = TurnWord::from_bits(word);
            if m.is_reentry(e) {
                e.goes_on(deadline, m.lease(), &now);
                return goes_on(m, e, mode);
            }
            e.fair.ticket = ticket.unwrap_or(e.fair.ticket);
            Step::Done(granted(e, m.mode(), deadline, now))
        }
        Reply::Queued { .. } | Reply::Cancelled { .. } if m.is_reentry(e) => m.lose_track(e),
        Reply::Queued { word, ticket } => {
            e.fair.turn = TurnWord::from_bits(word);
            if e.state != ticketed(mode) {
                has_ticket(e, mode, ticket, now); // the arbiter took the ticket for this client
                e.state = ticketed(mode);
                e.cache = ticket_view(e);
                return asks(m, e);
            }
            has_waited(e)
        }
        Reply::Cancelled { word } => {
            e.fair.turn = TurnWord::from_bits(word);
            has_waited(e)
        }
        // the ticket counters were reset: clients take their tickets themselves
        Reply::Done { .. } if e.state != ticketed(mode) && !m.is_reentry(e) => {
            m.rounds += 1;
            if m.rounds > CAS_ROUNDS_MAX {
                return m.lose_track(e); // the counters are still high
            }
            e.fair.diverted = false;
            take_anew(m, e, now)
        }
        Reply::Denied { .. } if e.state == ticketed(mode) || m.is_reentry(e) => {
            lost_place(m, e, now)
        }
        Reply::Denied { .. } => {
            e.claims_nothing();
            Step::Done(e.lost())
        }
        _ => m.lose_track(e),
    }
}

fn has_waited(e: &mut LockEntry) -> Step {
    e.cache = ticket_view(e);
    Step::Done(OpResult { status: Status::Again, view: Some(e.cache) })
}

impl LockEntry {
    /// The arbiter has made the exclusive ticket a shared one, which the ledger claims until the
    /// same deadline.
    pub(in crate::lock) fn has_share(
        &mut self,
        ticket: Option<Ticket>,
        (word, deadline): (u64, Deadline),
        now: Now,
    ) {
        self.fair.ticket = ticket.unwrap_or(self.fair.ticket);
        self.fair.turn = TurnWord::from_bits(word);
        self.token = Token::of_fair(Mode::Shared, self.fair.ticket);
        self.goes_on(deadline, Lease::NONE, &now);
        self.cache = word_view(self, Mode::Shared);
    }
}
