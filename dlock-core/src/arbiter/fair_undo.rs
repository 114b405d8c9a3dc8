// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fair lock, arbiter side: what becomes of what a client has that is gone, was away, or does
//! not know what it has.

use super::super::{drop_waits, Ctx, LockState};
use super::{advance, given_up, gives_up_by_ledger, is_given_up, named, one_more_done};
use super::{FairState, RecordStatus};
use crate::exec::LockMemory;
use crate::ids::{ClientId, Handle};
use crate::message::Mode;
use crate::planted::{self, Bug};
use crate::words::{FairWord, LedgerState, Ticket};

/// Undoes everything the client has of this lock, as far as it is known for sure. A share of
/// which it is not known whether it was released is left to the count of those that are.
pub(super) fn undo(ctx: &mut Ctx<'_>, state: &mut LockState, client: ClientId, handle: Handle) {
    drop_waits(state, client);
    let fair = &mut state.fair;
    if ctx.is_proxied(client) {
        gives_up_live(ctx.mem, fair, client, handle);
        return fair.forget(client);
    }
    let word = FairWord::from_bits(ctx.read());
    let entry = ctx.ledger(client, handle);
    fair.told(client, entry);
    let is_over = |m: Mode, t: Ticket| m == Mode::Exclusive && !word.is_open(t.tx);
    let is_kept = |fair: &FairState, m, t| {
        (fair.is_revoked(client, m, t) || fair.is_suspect(client, m))
            && !planted::is(Bug::FairUndoTwice)
    };
    let by_ledger = named(entry).filter(|&(m, t)| !is_over(m, t) && !is_kept(fair, m, t));
    let by_record = fair.records.get(&client).copied().filter(|r| !is_over(r.mode, r.ticket));
    let ledger = fair.counts(client, entry, word);
    let is_current = by_record.is_some_and(|r| fair.is_current(client, &r, ledger));
    if let Some((mode, ticket)) = by_ledger {
        let is_granted = by_record.is_some_and(|r| {
            (r.mode, r.ticket) == (mode, ticket) && matches!(r.status, RecordStatus::Granted { .. })
        });
        match entry.state() {
            LedgerState::Leaving => {}
            LedgerState::HeldExclusive if is_anothers(ctx, fair, client, ticket) => {}
            // it was handed on, and the release before it has not come
            LedgerState::HeldExclusive if word.nx() != ticket.tx => {
                given_up(fair, client, mode, ticket);
            }
            LedgerState::HeldExclusive | LedgerState::HeldShared => {
                one_more_done(ctx, mode, ticket);
            }
            _ if is_granted => {
                one_more_done(ctx, mode, ticket);
            }
            _ if is_given_up(entry) => gives_up_by_ledger(ctx, fair, client, entry),
            _ => given_up(fair, client, mode, ticket),
        }
    }
    fair.forget(client);
    let Some(r) = by_record.filter(|r| is_current && Some((r.mode, r.ticket)) != named(entry))
    else {
        return;
    };
    match r.status {
        // an exclusive grant the ledger does not show yet; one that it has dropped has passed
        RecordStatus::Granted { .. } if r.mode == Mode::Exclusive => {
            one_more_done(ctx, r.mode, r.ticket);
        }
        RecordStatus::Granted { .. } => {} // a share the ledger has dropped is released
        _ => fair.give_up(client, r.mode, r.ticket),
    }
}

/// What a proxied client has it has no more, and its ledger does not name it: there it would count
/// once the client is on another fabric, and by then the number may be another's.
pub(in crate::arbiter) fn has_no_more(
    mem: &mut dyn LockMemory,
    fair: &mut FairState,
    client: ClientId,
    handle: Handle,
) -> Option<(Mode, Ticket)> {
    let had = fair.has_no_more(client)?;
    if named(mem.ledger(client, handle)) == Some(had) && !planted::is(Bug::EndedNamed) {
        mem.clear_ledger(client, handle);
    }
    Some(had)
}

/// What a proxied client has is skipped at its turn.
pub(in crate::arbiter) fn gives_up_live(
    mem: &mut dyn LockMemory,
    fair: &mut FairState,
    client: ClientId,
    handle: Handle,
) {
    if let Some((mode, ticket)) = has_no_more(mem, fair, client, handle) {
        fair.give_up(client, mode, ticket);
    }
}

/// The arbiter ends this ticket, and its client does not know: it may name the ticket once more.
pub(super) fn revoke(
    ctx: &mut Ctx<'_>,
    fair: &mut FairState,
    (client, handle): (ClientId, Handle),
    (mode, ticket): (Mode, Ticket),
) {
    if ctx.is_proxied(client) && fair.live.get(&client) == Some(&(mode, ticket)) {
        has_no_more(ctx.mem, fair, client, handle);
        if planted::is(Bug::EndedProxiedForgotten) {
            return;
        }
    }
    fair.revoke(client, mode, ticket);
}

/// Whether another client's ledger names this exclusive ticket, too: then none of the two claims
/// ends it before its time.
fn is_anothers(ctx: &mut Ctx<'_>, fair: &FairState, client: ClientId, ticket: Ticket) -> bool {
    let is_same = |of: Option<(Mode, Ticket)>| {
        of.is_some_and(|(mode, its)| mode == Mode::Exclusive && its.tx == ticket.tx)
    };
    if fair.live.iter().any(|(&c, &of)| c != client && is_same(Some(of))) {
        return true;
    }
    let refs = ctx.lock.refs;
    refs.iter().any(|&(c, handle)| {
        c != client && !ctx.is_proxied(c) && {
            let entry = ctx.ledger(c, handle);
            let revoked = named(entry).is_some_and(|(mode, its)| fair.is_revoked(c, mode, its));
            !revoked && is_same(named(entry))
        }
    })
}

pub(in crate::arbiter) fn forget(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    client: ClientId,
    handle: Handle,
) {
    undo(ctx, state, client, handle);
    advance(ctx, state);
}

/// The client was away, and what it has of this lock is ended; it may come back. What it has named
/// in its ledger, or has not come to write there, or what was ended before, it may name again: that
/// is not believed.
///
/// Where its ledger says `Intent`, the client may have a share that the ledger does not name. It is
/// not ended here, but passed over as an unclaimed one. The client may name it when it comes back,
/// and is not believed: it is a *suspect* from here on.
pub(in crate::arbiter) fn lapse(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    client: ClientId,
    handle: Handle,
) {
    let is_proxied = ctx.is_proxied(client);
    let had = match is_proxied {
        true => state.fair.live.get(&client).copied(),
        false => named(ctx.mem.ledger(client, handle)),
    };
    let record = state.fair.records.get(&client).map(|r| (r.mode, r.ticket));
    let ended = state.fair.revoked.get(&client).cloned();
    let (entry, suspect) =
        (ctx.mem.ledger(client, handle), state.fair.suspects.get(&client).copied());
    undo(ctx, state, client, handle);
    if had.is_none() && !is_proxied {
        state.fair.suspect_lapsed(client, entry, suspect);
    }
    state.fair.revoked.extend(ended.map(|ended| (client, ended)));
    for (mode, ticket) in had.into_iter().chain(record) {
        state.fair.revoke(client, mode, ticket);
    }
    advance(ctx, state);
}
