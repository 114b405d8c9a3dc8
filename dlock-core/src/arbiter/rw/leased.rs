// SPDX-License-Identifier: MIT OR Apache-2.0
//! Holds of a read-write lock with a lease.
//!
//! The arbiter alone keeps such a hold: its client posts no word operation on it and writes nothing
//! into its ledger, but asks (`Request::Steal`, `Wait`, `Extend`, `Release`). So the arbiter can
//! end the hold at the end of its lease, without the help of its client, and does so whether or not
//! another client waits.

use super::super::{Caller, Ctx, LockState, Waiter};
use super::{end_exclusive, enter, grant, take_readers_off, RwState};
use crate::clock::{Deadline, Lease, ServerTime};
use crate::ids::ClientId;
use crate::planted::{self, Bug};
use crate::wire::message::Mode;
use crate::wire::status::Status;

/// A hold with a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::arbiter) struct Leased {
    pub(in crate::arbiter) mode: Mode,
    pub(in crate::arbiter) until: Deadline,
}

impl Leased {
    fn is_over(&self, now: ServerTime) -> bool {
        match planted::is(Bug::RwLeaseCutShort) {
            true => now.tick() >= self.until,
            false => now >= self.until.expiry(),
        }
    }
}

impl RwState {
    /// The client's hold with a lease.
    pub(in crate::arbiter) fn leased(&self, client: ClientId) -> Option<Leased> {
        self.leased.get(&client).copied()
    }

    /// How many holds have a lease.
    pub(in crate::arbiter) fn leased_len(&self) -> usize {
        self.leased.len()
    }

    /// Takes over a hold with a lease from the predecessor. Returns when the hold ends.
    pub(in crate::arbiter) fn goes_on_leased(
        &mut self,
        client: ClientId,
        hold: Leased,
    ) -> ServerTime {
        self.leased.insert(client, hold);
        hold.until.expiry()
    }

    /// When the next hold with a lease ends.
    pub(super) fn next_end(&self) -> Option<ServerTime> {
        self.leased.values().map(|hold| hold.until.expiry()).min()
    }
}

/// Ends the holds whose leases are over. The shares among them leave the count by one change of the
/// word, so the word operations of one look have a bound.
pub(super) fn end_leases(ctx: &mut Ctx<'_>, state: &mut LockState) {
    let (now, leased) = (ctx.now, &mut state.rw.leased);
    ctx.worked(leased.len());
    let is_over = |(_, hold): &(&ClientId, &Leased)| hold.is_over(now);
    let over: Vec<_> =
        leased.iter().filter(is_over).map(|(&client, &hold)| (client, hold)).collect();
    let mut shares = 0;
    for (client, hold) in over {
        leased.remove(&client);
        match hold.mode {
            Mode::Exclusive => _ = end_exclusive(ctx, client),
            Mode::Shared => shares += 1,
        }
    }
    take_readers_off(ctx, shares);
}

pub(super) fn wakes_at_the_next_end(ctx: &mut Ctx<'_>, state: &LockState) {
    if let Some(end) = state.rw.next_end() {
        ctx.wake_at(end);
    }
}

/// Grants the lock to a client that wants it with a lease, now or not at all.
pub(super) fn take_now(ctx: &mut Ctx<'_>, state: &mut LockState, client: Waiter) {
    let is_open = state.queue.is_empty() && !state.rw.suspect;
    let may = is_open && !state.rw.has_share(client.caller.client);
    match may.then(|| grant(ctx, &client)).flatten() {
        Some(word) => enter(ctx, state, &client, word),
        None => ctx.denied(client.caller, Status::Fail),
    }
}

/// Moves the end of a hold with a lease, never back; without a lease: only tells the end.
pub(super) fn extend(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    from: Caller,
    mode: Mode,
    lease: Lease,
) {
    let now = ctx.now;
    if planted::is(Bug::RwExtendRevives) && !lease.is_none() {
        let word = ctx.read();
        return ctx.granted(from, mode, word, now.deadline(lease), None);
    }
    let hold = state.rw.leased.get_mut(&from.client).filter(|hold| hold.mode == mode);
    let Some(hold) = hold else { return ctx.denied(from, Status::Fail) };
    if !lease.is_none() {
        hold.until = hold.until.max(now.deadline(lease));
    }
    let (until, word) = (hold.until, ctx.read());
    ctx.granted(from, mode, word, until, None);
}
