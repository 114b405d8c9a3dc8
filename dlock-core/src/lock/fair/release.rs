// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a fair hold or a ticket: by the client where that is safe, otherwise by the arbiter.

use super::view::released_view;
use super::{At, EntryState, Half, LockEntry, Machine, OpResult, Phase, Step};
use crate::clock::{Deadline, Now};
use crate::limits::{CAS_ROUNDS_MAX, FAIR_GRACE};
use crate::memory::word_op::{Chain, WordOp};
use crate::memory::words::{LedgerEntry, TakenWord, TurnWord};
use crate::planted::{self, Bug};
use crate::wire::message::{Mode, Request};
use crate::wire::status::Status;

pub(super) fn give_up(m: &mut Machine, e: &mut LockEntry, mode: Mode) -> Step {
    let request = Request::Abandon { handle: e.handle, mode, ticket: e.fair.ticket };
    e.end(EntryState::Initialized);
    e.claims_nothing();
    m.tell(request, OpResult::of(Status::Success))
}

/// Releases a hold. `now` was read after the word that the compare-and-swap expects: either the
/// lease surely ran then, or the arbiter has to release.
pub(super) fn release(
    m: &mut Machine,
    e: &mut LockEntry,
    mode: Mode,
    had_turn: bool,
    now: Now,
) -> Step {
    let had_turn = had_turn && !planted::is(Bug::HadTurnForgotten);
    if m.rounds < CAS_ROUNDS_MAX {
        if let Some(at) = passes(e, mode, had_turn, now) {
            m.phase = Phase::Fair(at);
            return Step::Chain(passing(e, mode));
        }
    }
    m.phase = Phase::Fair(At::AsksRelease { had_turn });
    let ticket = Some(e.fair.ticket);
    Step::Request(Request::Release { handle: e.handle, mode, ticket })
}

/// The step that passes the turn on; `None`: the arbiter has to release.
#[inline(always)]
pub(super) fn passes(e: &LockEntry, mode: Mode, had_turn: bool, now: Now) -> Option<At> {
    let (turn, ticket) = (e.fair.turn, e.fair.ticket);
    let is_late = e.maybe_over(now) && !planted::is(Bug::LateReleaseByClient);
    let is_told = turn.told() && !planted::is(Bug::ToldIgnored);
    if is_late || is_told || turn.nx() != ticket.tx || e.asks_at_once() {
        return None;
    }
    Some(At::Releasing { expect: turn, had_turn: had_turn && says_none(e, mode) })
}

/// The chain that passes the turn on.
#[inline(always)]
pub(super) fn passing(e: &LockEntry, mode: Mode) -> Chain {
    let turn = e.fair.turn;
    let (addr, swap) = (e.turn_addr(), turn.done(mode).into_bits());
    let mut chain = Chain::one(WordOp::Cas { addr, expect: turn.into_bits(), swap });
    if says_none(e, mode) {
        let none = LedgerEntry::new().into_bits();
        chain = chain.then(WordOp::WriteLedger { handle: e.handle, value: none });
    }
    if e.tells_taken() {
        chain = chain.then(WordOp::Read { addr: e.w0() });
    }
    chain
}

/// The result of [`passing`], if there is nothing else to do: no client sleeps on the word, and the
/// word tells how many readers hold the lock.
#[inline(always)]
pub(super) fn ends(
    e: &mut LockEntry,
    expect: TurnWord,
    values: &[u64],
    now: Now,
) -> Option<OpResult> {
    let (found, taken) = found_in(e, values)?;
    let mode = held_mode(e);
    let tells = mode == Mode::Exclusive || !e.means.asks_readers || taken.mx() <= expect.nx();
    let is_all = found == expect && !expect.parked() && tells;
    is_all.then(|| passed(e, mode, (expect, taken), now))
}

/// The turn and the tickets taken that the chain has found. If the chain did not read the tickets
/// taken, they are as the client saw them last.
#[inline]
fn found_in(e: &LockEntry, values: &[u64]) -> Option<(TurnWord, TakenWord)> {
    let (&found, &last) = (values.first()?, values.last()?);
    let taken = if e.tells_taken() { TakenWord::from_bits(last) } else { e.fair.taken };
    Some((TurnWord::from_bits(found), taken))
}

/// Ends the hold: the turn was as expected, and the chain has passed it on.
#[inline(always)]
fn passed(
    e: &mut LockEntry,
    mode: Mode,
    (expect, taken): (TurnWord, TakenWord),
    now: Now,
) -> OpResult {
    (e.fair.turn, e.fair.taken) = (expect.done(mode), taken);
    if expect.parked() && !planted::is(Bug::ParkedUnwoken) {
        e.fair.wakes = Some(match mode {
            Mode::Exclusive => Half::High,
            Mode::Shared => Half::Low,
        });
    }
    if mode == Mode::Exclusive {
        e.pace.followed(e.fair.taken.mx() > e.fair.turn.nx());
    }
    match says_none(e, mode) {
        true => passed_on(e, mode, now),
        false => released(e, mode, now),
    }
}

pub(super) fn releasing(
    m: &mut Machine,
    e: &mut LockEntry,
    (expect, had_turn): (TurnWord, bool),
    values: &[u64],
    now: Now,
) -> Step {
    let mode = held_mode(e);
    let Some((found, taken)) = found_in(e, values) else { return m.lose_track(e) };
    if found == expect {
        return Step::Done(passed(e, mode, (expect, taken), now));
    }
    e.fair.taken = taken;
    m.rounds += 1;
    e.fair.turn = found;
    if found.nx() != e.fair.ticket.tx {
        if had_turn {
            return Step::Done(released(e, mode, now));
        }
        e.claims_nothing();
        return Step::Done(e.lost());
    }
    e.pace.followed(found.told());
    // an exclusive number at its turn was not passed; a share may have been counted as done
    let is_own = mode == Mode::Exclusive || !e.maybe_over(now);
    let has_turn = is_own && !planted::is(Bug::ToldReleaseFails);
    release(m, e, mode, had_turn || has_turn, now)
}

/// Whether this release is a success in any case.
pub(in crate::lock) fn had_turn(phase: Phase) -> bool {
    match phase {
        Phase::Fair(At::Releasing { had_turn, .. } | At::AsksRelease { had_turn }) => had_turn,
        _ => false,
    }
}

#[inline]
pub(in crate::lock) fn held_mode(e: &LockEntry) -> Mode {
    match e.state {
        EntryState::SharedLocked => Mode::Shared,
        _ => Mode::Exclusive,
    }
}

/// Whether the chain of a release writes *none* itself. Of a share, and where no chain takes effect
/// late, the client writes the entry after the last compare-and-swap.
#[inline]
fn says_none(e: &LockEntry, mode: Mode) -> bool {
    mode == Mode::Exclusive && !e.means.parks
}

/// Ends the hold: this client or another one has passed the turn on, and `e.fair.turn` is the word
/// after that.
#[inline]
pub(in crate::lock) fn released(e: &mut LockEntry, mode: Mode, now: Now) -> OpResult {
    e.claims_nothing();
    passed_on(e, mode, now)
}

/// Like [`released`], where the ledger says *none* already.
#[inline(always)]
fn passed_on(e: &mut LockEntry, mode: Mode, now: Now) -> OpResult {
    e.fair.claim_until = Deadline::NONE;
    // the view shows until when the next client in line can claim its turn
    e.lease.time = now.deadline(FAIR_GRACE);
    let view = released_view(e, mode);
    e.released(view)
}
