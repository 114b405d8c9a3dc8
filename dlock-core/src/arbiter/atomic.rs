// SPDX-License-Identifier: MIT OR Apache-2.0
//! The atomic lock, arbiter side: hand-over in order of arrival, take-over after expiry.
//!
//! A word with `kept` is its owner's, which may not use the lock ([`super::kept`]).
//!
//! Invariant: the waiters bit is set if and only if the queue is not empty, and never on a word
//! without an owner. While the bit is set, this module alone writes the word; only the holder's own
//! extend may still do so, too.

use super::confirm::confirm;
use super::kept::{self, try_until};
use super::{cancel_wait, drop_waits, end_earlier_wait, Caller, Ctx, LockState, Waiter};
use crate::clock::{Lease, ServerTime};
use crate::ids::ClientId;
use crate::memory::words::AtomicWord;
use crate::planted::{self, Bug};
use crate::wire::message::{Mode, Reply, Request};
use crate::wire::status::Status;

pub(super) fn request(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller, request: Request) {
    match request {
        Request::Wait { mode: Mode::Exclusive, lease, wait, .. } => {
            end_earlier_wait(ctx, state, from.client);
            clear_bit_if_nobody_waits(ctx, state);
            let (mode, until) = (Mode::Exclusive, None);
            queue(ctx, state, Waiter { caller: from, wait, mode, lease, until });
        }
        Request::Try { mode: Mode::Exclusive, lease, wait, .. } => {
            end_earlier_wait(ctx, state, from.client);
            clear_bit_if_nobody_waits(ctx, state);
            match state.kept.may_give_back() {
                true => {
                    let (mode, until) = (Mode::Exclusive, try_until(ctx));
                    queue(ctx, state, Waiter { caller: from, wait, mode, lease, until });
                }
                false => steal(ctx, state, from, lease),
            }
        }
        Request::Keep { lease, .. } => keep(ctx, state, from, lease),
        Request::Cancel { wait, .. } => {
            cancel_wait(ctx, state, from, wait);
            clear_bit_if_nobody_waits(ctx, state);
            let word = ctx.read();
            ctx.answer(from, Reply::Done { word });
        }
        Request::Release { .. } => release(ctx, state, from),
        Request::Steal { mode: Mode::Exclusive, lease, .. } => steal(ctx, state, from, lease),
        Request::Resolve { .. } => {
            forget_only(ctx, state, from.client);
            let word = ctx.read();
            ctx.answer(from, Reply::Done { word });
        }
        Request::Confirm { mode, .. } => confirm(ctx, state, from, mode),
        Request::Wake { .. } | Request::Abandon { .. } => {}
        _ => ctx.denied(from, Status::Invalid),
    }
    advance(ctx, state);
}

fn expired(now: ServerTime, word: AtomicWord) -> bool {
    now >= word.timeout().expiry()
}

fn grant_word(ctx: &Ctx<'_>, waiter: &Waiter, waiters: bool) -> AtomicWord {
    AtomicWord::new()
        .with_client(waiter.caller.client.get())
        .with_timeout(ctx.now.deadline(waiter.lease))
        .with_waiters(waiters)
}

fn granted(ctx: &mut Ctx<'_>, to: Caller, word: AtomicWord) {
    ctx.granted(to, Mode::Exclusive, word.into_bits(), word.timeout(), None);
}

/// Grants at once if the lock is free or its hold has expired; otherwise queues, and sets the
/// waiters bit.
fn queue(ctx: &mut Ctx<'_>, state: &mut LockState, waiter: Waiter) {
    let now = ctx.now;
    let grant = grant_word(ctx, &waiter, false);
    let me = waiter.caller.client.get();
    let nobody_queued = state.queue.is_empty();
    let new = ctx.update(|seen| {
        let word = AtomicWord::from_bits(seen);
        if nobody_queued && (seen == 0 || expired(now, word)) {
            Some(grant.into_bits())
        } else if word.client() == me {
            None
        } else {
            Some(word.with_waiters(true).into_bits())
        }
    });
    match new {
        None => ctx.denied(waiter.caller, Status::Fail),
        Some(word) if word == grant.into_bits() => {
            granted(ctx, waiter.caller, grant);
        }
        Some(_) => state.queue.push_back(waiter),
    }
}

/// Hands the lock to the first client in the queue, or frees it, if `may_end` accepts the present
/// word.
fn hand_over(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    may_end: impl Fn(AtomicWord) -> bool,
) -> bool {
    let next = state.queue.front().copied();
    let new = match &next {
        Some(waiter) => {
            let more = state.queue.len() > 1 && !planted::is(Bug::HandOverDropsBit);
            grant_word(ctx, waiter, more)
        }
        None => AtomicWord::new(),
    };
    let done = ctx.update(|seen| may_end(AtomicWord::from_bits(seen)).then(|| new.into_bits()));
    if done.is_none() {
        return false;
    }
    if let Some(waiter) = next {
        state.queue.pop_front();
        granted(ctx, waiter.caller, new);
    }
    true
}

/// Lets the owner keep the lock, or releases it if another client waits, or the hold is over.
fn keep(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller, lease: Lease) {
    let (now, is_wanted) = (ctx.now, !state.queue.is_empty() && !planted::is(Bug::KeptPastQueue));
    let may = !is_wanted && !lease.is_none();
    let new = ctx.update(|seen| {
        let word = AtomicWord::from_bits(seen);
        let is_mine = word.client() == from.client.get() && !expired(now, word);
        let until = word.timeout().max(now.deadline(lease));
        (may && is_mine).then(|| word.with_kept(true).with_timeout(until).into_bits())
    });
    match new {
        Some(word) => {
            let deadline = AtomicWord::from_bits(word).timeout();
            kept::granted(ctx, state, from, (word, deadline));
        }
        None => release(ctx, state, from),
    }
}

/// Whether the client has the lock and may keep it.
pub(super) fn is_kept_by(ctx: &mut Ctx<'_>, client: ClientId) -> bool {
    let word = AtomicWord::from_bits(ctx.read());
    word.client() == client.get() && word.kept()
}

fn release(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller) {
    let me = from.client.get();
    if hand_over(ctx, state, |word| word.client() == me) {
        let word = ctx.read();
        ctx.answer(from, Reply::Done { word });
    } else {
        ctx.denied(from, Status::Fail);
    }
}

fn steal(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller, lease: Lease) {
    let now = ctx.now;
    let wanted = AtomicWord::new().with_client(from.client.get()).with_timeout(now.deadline(lease));
    let nobody_queued = state.queue.is_empty();
    let new = ctx.update(|seen| {
        let free = seen == 0 || expired(now, AtomicWord::from_bits(seen));
        (nobody_queued && free).then(|| wanted.into_bits())
    });
    match new {
        Some(_) => granted(ctx, from, wanted),
        None => ctx.denied(from, Status::Fail),
    }
}

pub(super) fn clear_bit_if_nobody_waits(ctx: &mut Ctx<'_>, state: &LockState) {
    if state.queue.is_empty() && !planted::is(Bug::AtomicCancelKeepsBit) {
        ctx.update(|seen| {
            let word = AtomicWord::from_bits(seen);
            word.waiters().then(|| word.with_waiters(false).into_bits())
        });
    }
}

/// Takes over an expired hold while a client is queued, and sets when to look again.
pub(super) fn advance(ctx: &mut Ctx<'_>, state: &mut LockState) {
    let now = ctx.now;
    if state.queue.is_empty() {
        return;
    }
    let over = |word: AtomicWord| word.client() == 0 || expired(now, word);
    hand_over(ctx, state, over);
    if !state.queue.is_empty() {
        let word = AtomicWord::from_bits(ctx.read());
        ctx.wake_at(word.timeout().expiry().max(now.plus_ns(1)));
    }
}

fn forget_only(ctx: &mut Ctx<'_>, state: &mut LockState, client: ClientId) {
    drop_waits(state, client);
    let held = hand_over(ctx, state, |word| word.client() == client.get());
    if !held {
        clear_bit_if_nobody_waits(ctx, state);
    }
}

pub(super) fn waits_dropped(ctx: &mut Ctx<'_>, state: &mut LockState) {
    clear_bit_if_nobody_waits(ctx, state);
    advance(ctx, state);
}

pub(super) fn forget(ctx: &mut Ctx<'_>, state: &mut LockState, client: ClientId) {
    forget_only(ctx, state, client);
    advance(ctx, state);
}
