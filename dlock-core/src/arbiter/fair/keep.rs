// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fair locks that clients keep after their release ([`super::super::kept`]).

use super::super::{kept, Caller, Ctx, LockState};
use super::may_have;
use super::state::{self, addr_of, Status as Known};
use crate::clock::Lease;
use crate::ids::{ClientId, Handle};
use crate::memory::word_op::Word;
use crate::memory::words::{TakenWord, Ticket};
use crate::planted::{self, Bug};
use crate::wire::message::{Mode, Reply};
use crate::wire::status::Status;

/// A client that has asked once for a kept lock gets its answer.
pub(in crate::arbiter) fn refuse_try(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller) {
    state.fair.waits_no_more(from.client);
    let word = ctx.read();
    match state.fair.records.get(&from.client).map(|record| record.ticket) {
        Some(ticket) => ctx.answer(from, Reply::Queued { word, ticket }),
        None => ctx.denied(from, Status::Fail),
    }
}

/// Lets the client keep its hold; `false`: it does not hold the lock, or others want it.
pub(super) fn keep(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    from: Caller,
    (mode, ticket): (Mode, Ticket),
    lease: Lease,
) -> bool {
    let w0 = addr_of(ctx, Word::W0);
    let (taken, turn) = (TakenWord::from_bits(ctx.mem.read(w0)), state::turn(ctx));
    let entry = ctx.ledger(from.client, from.handle);
    let is_alone = match mode {
        Mode::Exclusive => turn.serves(mode, ticket) && taken.mx() == turn.nx() + 1,
        Mode::Shared => turn.nx() == ticket.tx && taken.mx() == turn.nx(),
    };
    let is_wanted = !state.queue.is_empty()
        || !state.fair.held_back.is_empty()
        || mode == Mode::Exclusive && taken.ms() != turn.ns();
    let is_open = is_alone && (!is_wanted || planted::is(Bug::KeptPastQueue));
    let may_have = may_have(ctx, &state.fair, from, (mode, ticket));
    if !is_open || !may_have || entry.claims() != Some(mode) || lease.is_none() {
        return false;
    }
    let granted = state.fair.granted_until(from.client, entry.stamp());
    let deadline = granted.max(Some(entry.deadline())).max(Some(ctx.now.deadline(lease)));
    let deadline = deadline.unwrap_or_default();
    let status = Known::Granted { deadline };
    state.fair.knows(from.client, (mode, ticket), entry.stamp(), status);
    kept::granted(ctx, state, from, (turn.into_bits(), deadline));
    true
}

/// Whether the arbiter knows of a hold of this client.
pub(in crate::arbiter) fn is_held_by(
    ctx: &mut Ctx<'_>,
    state: &LockState,
    client: ClientId,
    handle: Handle,
) -> bool {
    let entry = ctx.ledger(client, handle);
    let turn = state::turn(ctx);
    state.fair.records.get(&client).is_some_and(|record| {
        let is_of = record.stamp == entry.stamp() && entry.claims() == Some(record.mode);
        let is_turn = record.ticket.tx == turn.nx() && record.status != Known::Over;
        let is_passed = record.mode == Mode::Shared && state.fair.is_passed(client, record.ticket);
        is_of && is_turn && !is_passed
    })
}
