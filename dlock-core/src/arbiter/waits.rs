// SPDX-License-Identifier: MIT OR Apache-2.0
//! How waits leave a lock's queue: one by one, or all of one client.

use std::collections::{BTreeMap, BTreeSet};

use super::{Caller, Ctx, LockState};
use crate::ids::{ClientId, Slot};
use crate::planted::{self, Bug};
use crate::wire::message::{Reply, WaitNumber};

/// Records that a client has no wait for this lock any more.
pub(super) fn no_wait(
    waits: &mut BTreeMap<ClientId, BTreeSet<Slot>>,
    client: ClientId,
    slot: Slot,
) {
    if let Some(slots) = waits.get_mut(&client) {
        slots.remove(&slot);
        if slots.is_empty() {
            waits.remove(&client);
        }
    }
}

/// Takes a wait out of the queue and answers it with `Cancelled`.
pub(super) fn cancel_wait(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    from: Caller,
    wait: WaitNumber,
) -> bool {
    let at = state.queue.iter().position(|w| w.caller.client == from.client && w.wait == wait);
    let Some(waiter) = at.and_then(|at| state.queue.remove(at)) else { return false };
    let word = ctx.read();
    ctx.answer(waiter.caller, Reply::Cancelled { word });
    true
}

/// Ends an earlier wait of the client for this lock: a client is queued for a lock only once.
pub(super) fn end_earlier_wait(ctx: &mut Ctx<'_>, state: &mut LockState, client: ClientId) {
    let at = state.queue.iter().position(|w| w.caller.client == client);
    if let Some(waiter) = at.and_then(|at| state.queue.remove(at)) {
        let word = ctx.read();
        ctx.answer(waiter.caller, Reply::Cancelled { word });
    }
}

pub(super) fn drop_waits(state: &mut LockState, client: ClientId) {
    if !planted::is(Bug::ForgetKeepsWaits) {
        state.queue.retain(|w| w.caller.client != client);
    }
}
