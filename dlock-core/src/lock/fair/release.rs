// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a fair hold, or of a place: by the client where it may, else by the arbiter.

use super::view::released_view;
use super::{At, EntryState, Half, LockEntry, Machine, OpResult, Phase, Step};
use crate::clock::Now;
use crate::limits::{CAS_ROUNDS_MAX, FAIR_GRACE_S};
use crate::memory::word_op::{Chain, Values, WordOp};
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

/// `now` was read after the word that is expected: the lease surely ran then, or it is late.
pub(super) fn release(
    m: &mut Machine,
    e: &mut LockEntry,
    mode: Mode,
    had_turn: bool,
    now: Now,
) -> Step {
    let (turn, ticket) = (e.fair.turn, e.fair.ticket);
    let had_turn = had_turn && !planted::is(Bug::HadTurnForgotten);
    let is_late = e.maybe_over(now) && !planted::is(Bug::LateReleaseByClient);
    let is_told = turn.told() && !planted::is(Bug::ToldIgnored);
    let is_arbiters = is_late || is_told || turn.nx() != ticket.tx || e.asks_at_once();
    if is_arbiters || m.rounds >= CAS_ROUNDS_MAX {
        m.phase = Phase::Fair(At::AsksRelease { had_turn });
        return Step::Request(Request::Release { handle: e.handle, mode, ticket: Some(ticket) });
    }
    let says_none = says_none(e, mode);
    m.phase = Phase::Fair(At::Releasing { expect: turn, had_turn: had_turn && says_none });
    let (addr, swap) = (e.turn_addr(), turn.done(mode).into_bits());
    let mut chain = Chain::one(WordOp::Cas { addr, expect: turn.into_bits(), swap });
    if says_none {
        let none = LedgerEntry::new().into_bits();
        chain = chain.then(WordOp::WriteLedger { handle: e.handle, value: none });
    }
    if e.tells_taken() {
        chain = chain.then(WordOp::Read { addr: e.w0() });
    }
    Step::Chain(chain)
}

pub(super) fn releasing(
    m: &mut Machine,
    e: &mut LockEntry,
    (expect, had_turn): (TurnWord, bool),
    values: Values,
    now: Now,
) -> Step {
    let mode = held_mode(e);
    let found = TurnWord::from_bits(values[0]);
    if e.tells_taken() {
        let Some(&taken) = values.as_slice().last() else { return m.lose_track(e) };
        e.fair.taken = TakenWord::from_bits(taken);
    }
    if found == expect {
        e.fair.turn = expect.done(mode);
        if expect.parked() && !planted::is(Bug::ParkedUnwoken) {
            e.fair.wakes = Some(match mode {
                Mode::Exclusive => Half::High,
                Mode::Shared => Half::Low,
            });
        }
        if mode == Mode::Exclusive {
            e.pace.followed(e.fair.taken.mx() > e.fair.turn.nx());
        }
        return match says_none(e, mode) {
            true => Step::Done(passed_on(e, mode, now)),
            false => Step::Done(released(e, mode, now)),
        };
    }
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
    // an exclusive number that has its turn was not passed; a share may have been counted as done
    let is_own = mode == Mode::Exclusive || !e.maybe_over(now);
    let has_turn = is_own && !planted::is(Bug::ToldReleaseFails);
    release(m, e, mode, had_turn || has_turn, now)
}

/// Whether this is a release that is a success in any case.
pub(in crate::lock) fn had_turn(phase: Phase) -> bool {
    match phase {
        Phase::Fair(At::Releasing { had_turn, .. } | At::AsksRelease { had_turn }) => had_turn,
        _ => false,
    }
}

pub(in crate::lock) fn held_mode(e: &LockEntry) -> Mode {
    match e.state {
        EntryState::SharedLocked => Mode::Shared,
        _ => Mode::Exclusive,
    }
}

/// Whether the chain of a release says *none* itself. Where nothing takes effect late, and of a
/// share, the entry is written after the last compare-and-swap.
fn says_none(e: &LockEntry, mode: Mode) -> bool {
    mode == Mode::Exclusive && !e.means.parks
}

/// The turn has passed on, by this client or by another one; `e.fair.turn` is the word after it.
pub(in crate::lock) fn released(e: &mut LockEntry, mode: Mode, now: Now) -> OpResult {
    e.claims_nothing();
    passed_on(e, mode, now)
}

/// The same if the ledger says *none* already.
fn passed_on(e: &mut LockEntry, mode: Mode, now: Now) -> OpResult {
    e.fair.claim_s = 0;
    // as long as the next in line has to claim its turn
    e.lease.time_s = now.deadline(FAIR_GRACE_S);
    let view = released_view(e, mode);
    e.released(view)
}
