// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a client takes a ticket of a fair lock: itself, or by asking the arbiter.

use super::super::Doubt;
use super::{
    ask, claim, claim_for, claim_op, claim_runs, ends, has_turn, not_yet, At, EntryState,
    LockEntry, Machine, Phase, Step,
};
use crate::clock::{Lease, Now};
use crate::limits::FAIR_GRACE;
use crate::memory::word_op::{Chain, Values, WordOp};
use crate::memory::words::{TakenWord, Ticket, TurnWord, STAMP_MAX};
use crate::planted::{self, Bug};
use crate::wire::message::{Mode, Request};

pub(super) fn take(m: &mut Machine, e: &mut LockEntry) -> Step {
    claims_ticket(e, m.lease(), m.started);
    if e.fair.diverted {
        e.write(claim(e, m.mode(), e.fair.claim_until));
        return take_from_arbiter(m, e);
    }
    m.phase = Phase::Fair(At::Taking);
    Step::Chain(taking(e, m.mode()))
}

/// Prepares the claim of a ticket that is about to be taken, for a lease that begins at `started`.
#[inline(always)]
pub(super) fn claims_ticket(e: &mut LockEntry, lease: Lease, started: Now) {
    // so that no two claims look alike
    e.stamp = e.stamp.wrapping_add(1) & STAMP_MAX;
    e.claims(claim_for(lease, started), started);
    e.fair.tried_until = started.deadline(FAIR_GRACE);
}

#[inline(always)]
pub(super) fn taking(e: &LockEntry, mode: Mode) -> Chain {
    let add = WordOp::Faa { addr: e.w0(), add: TakenWord::addend(mode) };
    let look = WordOp::ReadPair { addr: e.turn_addr() };
    let claim = claim_op(e, mode, e.fair.claim_until);
    match planted::is(Bug::ClaimAfterTicket) {
        true => Chain::one(add).then(claim).then(look),
        false => Chain::one(claim).then(add).then(look),
    }
}

/// What [`taking`] has found: the tickets taken before, the turn, and the ticket.
#[inline]
pub(super) fn ticket_in(values: &[u64]) -> Option<(TakenWord, TurnWord, Ticket)> {
    let &[first, second, turn, lap] = values else { return None };
    let taken = if planted::is(Bug::ClaimAfterTicket) { first } else { second };
    let taken = TakenWord::from_bits(taken);
    Some((taken, TurnWord::from_bits(turn), taken.next(lap)))
}

#[inline]
pub(super) fn is_turn_of(turn: TurnWord, mode: Mode, ticket: Ticket) -> bool {
    let barges = mode == Mode::Exclusive && planted::is(Bug::FairBarge);
    turn.serves(mode, ticket) || barges && turn.nx() + 1 == ticket.tx
}

pub(super) fn take_from_arbiter(m: &mut Machine, e: &mut LockEntry) -> Step {
    e.fair.diverted = true;
    let (mode, lease) = (m.mode(), m.lease());
    ask(m, Request::TakeTicket { handle: e.handle, mode, lease })
}

/// Takes a new ticket, because the client has lost its place, or the ticket counters were reset.
pub(super) fn take_anew(m: &mut Machine, e: &mut LockEntry, now: Now) -> Step {
    e.end(EntryState::Initialized);
    m.started = now;
    take(m, e)
}

pub(super) fn taken(m: &mut Machine, e: &mut LockEntry, values: Values, now: Now) -> Step {
    if let Some(result) = ends(m.op, e, At::Taking, values.as_slice(), (&m.started, &now)) {
        m.tries.came_to(e.fair.ticket.tx, &mut e.pace);
        return Step::Done(result);
    }
    let Some((taken, turn, ticket)) = ticket_in(values.as_slice()) else {
        return m.lose_track(e);
    };
    if taken.is_high() && !planted::is(Bug::HighIsTicket) {
        return take_from_arbiter(m, e); // only the arbiter gives such a number out
    }
    let (mode, until) = (m.mode(), e.fair.claim_until);
    has_ticket(e, mode, ticket, m.started);
    e.fair.turn = turn;
    let is_turn = is_turn_of(turn, mode, ticket);
    match is_turn && claim_runs(e, until, now) {
        true => has_turn(m, e, until),
        false => not_yet(m, e, is_turn, now),
    }
}

#[inline(always)]
pub(super) fn has_ticket(e: &mut LockEntry, mode: Mode, ticket: Ticket, started: Now) {
    e.fair.ticket = ticket;
    e.fair.taken = TakenWord::new().with_mx(ticket.tx).with_ms(ticket.ts).taken(mode);
    e.lease.time = started.time.tick();
    e.doubt = Doubt::None;
}

impl LockEntry {
    /// A primary has refused the fetch-and-add: the arbiter gives the numbers from now on.
    pub(in crate::lock) fn is_diverted(&mut self) {
        self.fair.diverted = true;
    }
}
