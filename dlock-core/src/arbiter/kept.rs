// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients that keep a lock after its release, until another client wants it.
//!
//! ```text
//!   Keep ─ others wait ─▶ released: Done
//!        └ none wait ───▶ keeper: Granted ─ others wait ─▶ Contended ─ idle ───▶ Resolve
//!                                                                   └ in use ─▶ Listen(knows)
//!   Try  ─▶ queued for TRY_KEPT_NS_MAX ─ given back ───▶ Granted
//!                                      └ in use, late ─▶ Denied
//! ```
//! A kept lock is held: its word, ledger entry and lease are those of a hold, and so are its
//! expiry, its undoing and its claim at a successor. The arbiter only remembers in addition which
//! clients may have no use for their hold. A client whose hold is over is no keeper any more.
//!
//! The primary tells a keeper that others wait as it tells any listener ([`crate::locks`]). A
//! keeper that neither gives the lock back nor says that its program uses it is fenced after
//! [`HINDRANCE_S`](crate::limits::HINDRANCE_S).

use std::collections::BTreeMap;

use super::hindrance::Hindrance;
use super::{atomic, fair, rw, Arbiter, Caller, Ctx, LockRef, LockState, Sent, Waiter};
use crate::clock::{ServerTime, NS};
use crate::ids::ClientId;
use crate::limits::{LOOK_S, TRY_KEPT_NS_MAX};
use crate::memory::exec::LockMemory;
use crate::wire::message::{LockType, Reply};
use crate::wire::status::Status;

/// The keepers of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Keepers(BTreeMap<ClientId, Keeper>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Keeper {
    /// Whether the client has said that its program uses the lock.
    is_in_use: bool,
    /// For how long others have waited for what the client keeps.
    awaited: Option<Hindrance>,
}

impl Keepers {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn contains(&self, client: ClientId) -> bool {
        self.0.contains_key(&client)
    }

    /// The client may keep the lock from now on.
    pub(super) fn begin(&mut self, client: ClientId) {
        self.0.insert(client, Keeper::default());
    }

    pub(super) fn end(&mut self, client: ClientId) {
        self.0.remove(&client);
    }

    /// Whether a client that wants the lock may get it soon: no program is known to use it.
    pub(super) fn may_give_back(&self) -> bool {
        !self.0.is_empty() && !self.0.values().any(|keeper| keeper.is_in_use)
    }

    /// A client that has not answered for too long at the last look.
    pub(super) fn hinderer(&self, skip: &dyn Fn(ClientId) -> bool) -> Option<ClientId> {
        let is_over = |keeper: &Keeper| keeper.awaited.is_some_and(|awaited| awaited.is_over());
        let mut over = self.0.iter().filter(|(_, keeper)| is_over(keeper));
        over.find(|(&client, _)| !skip(client)).map(|(&client, _)| client)
    }

    /// Whether others wait for a keeper's answer.
    pub(super) fn is_hindered(&self) -> bool {
        self.0.values().any(|keeper| keeper.awaited.is_some())
    }

    /// See [`Arbiter::goes_on`](super::Arbiter::goes_on).
    pub(super) fn goes_on(&mut self, now: ServerTime, client: ClientId) {
        if let Some(awaited) = self.0.get_mut(&client).and_then(|k| k.awaited.as_mut()) {
            *awaited = Hindrance::begins(now);
        }
    }
}

/// Until when a try waits that begins now.
pub(super) fn try_until(ctx: &Ctx<'_>) -> Option<ServerTime> {
    Some(ctx.now.plus_ns(TRY_KEPT_NS_MAX))
}

/// Before a request or a look: forgets keepers whose holds are over, and answers tries that are
/// late.
pub(super) fn look(ctx: &mut Ctx<'_>, state: &mut LockState) {
    if state.kept.is_empty() && !state.queue.iter().any(|w| w.until.is_some()) {
        return;
    }
    ctx.worked(state.kept.len() + ctx.lock.refs.len());
    let keepers: Vec<ClientId> = state.kept.0.keys().copied().collect();
    for client in keepers {
        let handle = ctx.lock.refs.iter().find(|r| r.0 == client).map(|r| r.1);
        let is_held = handle.is_some_and(|handle| match ctx.lock.lock_type {
            LockType::Atomic => atomic::is_kept_by(ctx, client),
            LockType::Rw => rw::is_held_by(ctx, state, client, handle),
            LockType::Fair => fair::is_held_by(ctx, state, client, handle),
        });
        if !is_held {
            state.kept.end(client);
        }
    }
    let now = ctx.now;
    let is_late = |w: &Waiter| w.until.is_some_and(|until| now >= until);
    refuse(ctx, state, is_late);
}

/// After a request or a look: notes for whom others wait, and sets when to look again.
pub(super) fn schedule(ctx: &mut Ctx<'_>, state: &mut LockState) {
    let tries = state.queue.iter().filter_map(|waiter| waiter.until).min();
    tries.into_iter().for_each(|until| ctx.wake_at(until));
    let (now, is_wanted) = (ctx.now, !state.queue.is_empty());
    for keeper in state.kept.0.values_mut() {
        keeper.awaited = match keeper.awaited {
            _ if !is_wanted || keeper.is_in_use => None,
            None => Some(Hindrance::begins(now)),
            Some(awaited) => Some(awaited.goes_on(now)),
        };
        if let Some(awaited) = keeper.awaited {
            let (fenced_at, next) = (awaited.ends(), now.plus_ns(LOOK_S as u64 * NS));
            ctx.wake_at(if fenced_at > now { fenced_at.min(next) } else { next });
        }
    }
}

/// Refuses the tries among these waiters, and takes them out of the queue.
fn refuse(ctx: &mut Ctx<'_>, state: &mut LockState, which: impl Fn(&Waiter) -> bool) {
    let (refused, queue): (Vec<Waiter>, _) =
        std::mem::take(&mut state.queue).into_iter().partition(which);
    state.queue = queue.into();
    if refused.is_empty() {
        return;
    }
    for waiter in refused {
        match ctx.lock.lock_type {
            LockType::Fair => fair::refuse_try(ctx, state, waiter.caller),
            LockType::Atomic | LockType::Rw => ctx.denied(waiter.caller, Status::Fail),
        }
    }
    if ctx.lock.lock_type == LockType::Atomic {
        atomic::clear_bit_if_nobody_waits(ctx, state);
    }
}

impl Arbiter {
    /// A client that keeps this lock has heard that others wait, and its program uses the lock:
    /// tries of others fail. Does nothing for a client that keeps nothing.
    pub(crate) fn in_use(
        &mut self,
        now: ServerTime,
        mem: &mut dyn LockMemory,
        lock: LockRef<'_>,
        client: ClientId,
        out: &mut Vec<Sent>,
    ) {
        let state = self.locks.get(&lock.slot);
        if !state.is_some_and(|state| state.kept.contains(client)) {
            return;
        }
        self.with(now, mem, lock, out, |ctx, state| {
            if let Some(keeper) = state.kept.0.get_mut(&client) {
                keeper.is_in_use = true;
            }
            refuse(ctx, state, |waiter| waiter.until.is_some());
            match lock.lock_type {
                LockType::Atomic => atomic::advance(ctx, state),
                LockType::Rw => rw::advance(ctx, state),
                LockType::Fair => fair::tick(ctx, state),
            }
        });
    }

    /// See [`Locks::keeps_no_more`](crate::locks::Locks).
    pub(crate) fn keeps_no_more(&mut self, client: ClientId) {
        for slot in &self.hindered {
            if let Some(state) = self.locks.get_mut(slot) {
                state.kept.end(client);
            }
        }
    }

    /// The clients that may keep this lock without using it.
    pub(crate) fn keepers(&self, lock: LockRef<'_>) -> Vec<ClientId> {
        let state = self.locks.get(&lock.slot);
        state.map_or_else(Vec::new, |state| state.kept.0.keys().copied().collect())
    }
}

/// Answers a client that may keep the lock, until `deadline`.
pub(super) fn granted(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    to: Caller,
    (word, deadline): (u64, crate::clock::Deadline),
) {
    state.kept.begin(to.client);
    let at = ctx.now;
    let token = crate::token::Token::NONE; // no hold begins
    ctx.answer(to, Reply::Granted { word, deadline, at, ticket: None, token });
}
