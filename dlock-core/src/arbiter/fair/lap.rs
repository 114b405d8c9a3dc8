// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lap of a fair lock: when its lanes (the two ticket counters) start again.
//!
//! ```text
//!   a lane is high ─▶ TakeTicket ─▶ held back ─ the lock is idle, no entry ─▶ w1 := START,
//!                                       │           fence raised, w0 := START ─▶ Done
//!                                       └ for too long ─▶ a ticket from the arbiter
//! ```
//! A release that takes effect late expects a word that cannot come again within a lap. So a new
//! lap begins only when no client can post such a release: every ledger entry is none (one whose
//! deadline is over does not count as none). The entries of clients that are held back do not
//! matter, because those have no ticket. A client that adds to `w0` while the lap begins has found
//! a high number, which is no ticket either.

use super::super::{end_earlier_wait, Caller, Ctx, LockState, ROUNDS_MAX};
use super::state::{addr_of, HeldBack, Status as Known, View};
use super::{reached, swap, FairState};
use crate::clock::NS;
use crate::limits::FAIR_LANE_END;
use crate::memory::word_op::Word;
use crate::memory::words::{TakenWord, TurnWord};
use crate::planted::{self, Bug};
use crate::wire::message::{Mode, Reply};
use crate::wire::status::Status;

/// How long a client is held back, so that the lock drains.
const HOLD_BACK_NS: u64 = NS;

/// Holds back a client that asks for a ticket because it has found the ticket counters high.
pub(super) fn take_ticket(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller, mode: Mode) {
    end_earlier_wait(ctx, state, from.client);
    let since = ctx.now;
    // the client has no ticket now, so a record is of an earlier one
    state.fair.records.remove(&from.client);
    let held_back = HeldBack { from, mode, since };
    if let Some(earlier) = state.fair.held_back.insert(from.client, held_back) {
        let word = ctx.read();
        ctx.answer(earlier.from, Reply::Cancelled { word });
    }
}

fn is_high(ctx: &mut Ctx<'_>) -> (TakenWord, bool) {
    let w0 = addr_of(ctx, Word::W0);
    let taken = TakenWord::from_bits(ctx.mem.read(w0));
    (taken, taken.is_high())
}

/// Answers clients that were held back for long enough, and all if the lanes are low.
pub(super) fn give_tickets(ctx: &mut Ctx<'_>, state: &mut LockState) {
    if state.fair.held_back.is_empty() {
        return;
    }
    let (taken, is_high) = is_high(ctx);
    let all: Vec<HeldBack> = state.fair.held_back.values().copied().collect();
    for HeldBack { from, mode, since } in all {
        if is_high && !reached(ctx, since.plus_ns(HOLD_BACK_NS)) {
            continue;
        }
        state.fair.held_back.remove(&from.client);
        let word = ctx.read();
        if !is_high {
            ctx.answer(from, Reply::Done { word }); // the client takes a ticket itself
        } else if taken.mx().max(taken.ms()) >= FAIR_LANE_END {
            ctx.answer(from, Reply::Denied { status: Status::Fail, word });
        } else {
            let (w0, lap) = (addr_of(ctx, Word::W0), super::state::lap(ctx));
            let old = TakenWord::from_bits(ctx.mem.faa(w0, TakenWord::addend(mode)));
            let (ticket, stamp) = (old.next(lap), ctx.ledger(from.client, from.handle).stamp());
            state.fair.knows(from.client, (mode, ticket), stamp, Known::Kept);
            ctx.answer(from, Reply::Queued { word, ticket });
        }
    }
}

/// After a look: starts the lanes again if nothing is in the way.
pub(super) fn ends(ctx: &mut Ctx<'_>, state: &mut LockState, view: &View, turn: TurnWord) {
    if !view.taken.is_high() {
        state.fair.in_the_way.clear();
        return;
    }
    let held_back = &state.fair.held_back;
    if held_back.is_empty() && state.fair.in_the_way.is_empty() {
        return;
    }
    let is_in_the_way = |e: &super::state::Entry| {
        e.entry.claims().is_some() && (e.runs || !planted::is(Bug::LapOverEntries))
    };
    let entries =
        view.clients.iter().filter(|(c, e)| is_in_the_way(e) && !held_back.contains_key(c));
    let over: Vec<_> = entries
        .clone()
        .filter(|(client, e)| !e.runs && !state.fair.records.contains_key(client))
        .map(|(&client, e)| (client, e.entry.stamp()))
        .collect();
    let is_free = entries.count() == 0;
    let fenced_at = state.fair.are_in_the_way(ctx.now, over.into_iter());
    if let Some(at) = fenced_at {
        ctx.wake_at(at);
    }
    if state.fair.held_back.is_empty() {
        return;
    }
    if !view.is_idle(turn) || !state.queue.is_empty() || !is_free {
        return state.fair.next_look(ctx.now).into_iter().for_each(|at| ctx.wake_at(at));
    }
    if !swap(ctx, turn, TurnWord::START) {
        let soon = ctx.now.plus_ns(1);
        return ctx.wake_at(soon);
    }
    // the fence must be above every token of the lap before
    let fence = ctx.fence();
    let above = match planted::is(Bug::LapKeepsFence) {
        true => 2, // only differs from the number of the lap before
        false => 2 * u64::from(turn.nx()) + 2,
    };
    ctx.mem.faa(fence, above);
    state.fair.restarts = true;
    has_restarted(ctx, state);
}

/// Whether the lanes are not between two laps; if they are, sets `w0`. Clients that add to `w0`
/// meanwhile have no ticket.
pub(super) fn has_restarted(ctx: &mut Ctx<'_>, state: &mut LockState) -> bool {
    if !state.fair.restarts {
        return true;
    }
    let w0 = addr_of(ctx, Word::W0);
    for _ in 0..ROUNDS_MAX {
        let seen = ctx.mem.read(w0);
        if ctx.mem.cas(w0, seen, TakenWord::START.into_bits()) == seen {
            let held_back = std::mem::take(&mut state.fair.held_back);
            state.fair = FairState { held_back, ..FairState::default() };
            return true;
        }
    }
    let soon = ctx.now.plus_ns(1);
    ctx.wake_at(soon);
    false
}
