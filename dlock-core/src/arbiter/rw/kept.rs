// SPDX-License-Identifier: MIT OR Apache-2.0
//! Read-write locks that clients keep after their release ([`super::super::kept`]).

use super::super::kept::{self, try_until};
use super::super::{Caller, Ctx, LockState, Waiter};
use super::{advance, request, resolve, set_bit, take_now};
use crate::clock::{Deadline, Lease};
use crate::ids::{ClientId, Handle};
use crate::memory::words::{LedgerState, RwWord};
use crate::planted::{self, Bug};
use crate::wire::message::{Mode, Request, WaitNumber};
use crate::wire::status::Status;

/// Grants the lock now, or soon if another client keeps it without using it, or refuses it.
pub(super) fn try_now(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    from: Caller,
    (mode, lease, wait): (Mode, Lease, WaitNumber),
) {
    advance(ctx, state);
    let owns = RwWord::from_bits(ctx.read()).client() == from.client.get();
    let may_wait = state.kept.may_give_back() && !owns && !state.rw.has_share(from.client);
    let until = try_until(ctx).filter(|_| may_wait);
    let waiter = Waiter { caller: from, wait, mode, lease, until };
    match may_wait {
        true => {
            set_bit(ctx);
            state.queue.push_back(waiter);
        }
        false => take_now(ctx, state, waiter),
    }
}

/// Lets the client keep its hold, or releases it if another client waits.
pub(super) fn keep(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    from: Caller,
    mode: Mode,
    lease: Lease,
) {
    let is_wanted = !state.queue.is_empty() && !planted::is(Bug::KeptPastQueue);
    let is_open = !is_wanted && !state.rw.suspect && !lease.is_none();
    if !is_held_in(ctx, state, from.client, from.handle, mode) {
        ctx.denied(from, Status::Fail);
        return advance(ctx, state);
    }
    if !is_open {
        return match (mode, state.rw.leased(from.client)) {
            (Mode::Shared, None) => {
                resolve(ctx, state, from);
                advance(ctx, state);
            }
            _ => {
                let handle = from.handle;
                request(ctx, state, from, Request::Release { handle, mode, ticket: None });
            }
        };
    }
    let now = ctx.now;
    let deadline = match state.rw.leased.get_mut(&from.client) {
        Some(hold) => {
            hold.until = hold.until.max(now.deadline(lease));
            hold.until
        }
        None => Deadline::NEVER,
    };
    let word = ctx.update(|seen| Some(RwWord::from_bits(seen).with_kept(true).into_bits()));
    let word = word.unwrap_or_else(|| ctx.read());
    kept::granted(ctx, state, from, (word, deadline));
    advance(ctx, state);
}

/// Whether the client holds the lock in this mode.
fn is_held_in(
    ctx: &mut Ctx<'_>,
    state: &LockState,
    client: ClientId,
    handle: Handle,
    mode: Mode,
) -> bool {
    match mode {
        Mode::Exclusive => RwWord::from_bits(ctx.read()).client() == client.get(),
        Mode::Shared if state.rw.has_share(client) => {
            state.rw.leased(client).is_none_or(|hold| hold.mode == Mode::Shared)
        }
        Mode::Shared if ctx.is_proxied(client) => false,
        Mode::Shared => {
            let entry = ctx.ledger(client, handle);
            let granted = state.rw.granted.get(&client);
            match entry.state() {
                LedgerState::HeldShared => true,
                LedgerState::Waiting => granted == Some(&WaitNumber(entry.detail())),
                _ => state.rw.is_untold(client, entry),
            }
        }
    }
}

/// Whether the client holds the lock.
pub(in crate::arbiter) fn is_held_by(
    ctx: &mut Ctx<'_>,
    state: &LockState,
    client: ClientId,
    handle: Handle,
) -> bool {
    [Mode::Exclusive, Mode::Shared]
        .into_iter()
        .any(|mode| is_held_in(ctx, state, client, handle, mode))
}

/// No client keeps the lock any more.
pub(in crate::arbiter) fn clear_kept(ctx: &mut Ctx<'_>) {
    ctx.update(|seen| {
        let word = RwWord::from_bits(seen);
        word.kept().then(|| word.with_kept(false).into_bits())
    });
}
