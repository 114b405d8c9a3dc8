// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client has of a lock after a recovery, which has settled what it claimed.

use super::{fair, Caller, Ctx, LockState};
use crate::message::{LockType, Mode, Reply};
use crate::status::Status;
use crate::words::{AtomicWord, FairWord, LedgerState, RwWord, Ticket};

/// Answers a [`Request::Confirm`](crate::message::Request::Confirm). The word is read once: others
/// may change it at any time, and the answer is about what was found.
pub(super) fn confirm(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller, mode: Mode) {
    let word = ctx.read();
    match had(ctx, state, from, mode, word) {
        Some(Confirmed::Held(deadline_s, ticket)) => ctx.granted(from, word, deadline_s, ticket),
        Some(Confirmed::Queued(ticket)) => ctx.answer(from, Reply::Queued { word, ticket }),
        None => ctx.answer(from, Reply::Denied { status: Status::Fail, word }),
    }
}

enum Confirmed {
    /// Until this deadline, in seconds since 1970.
    Held(u32, Option<Ticket>),
    Queued(Ticket),
}

fn had(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    from: Caller,
    mode: Mode,
    word: u64,
) -> Option<Confirmed> {
    let is_mine = |client: u32| client == from.client.get() && mode == Mode::Exclusive;
    match ctx.lock.lock_type {
        LockType::Atomic => {
            let word = AtomicWord::from_bits(word);
            is_mine(word.client()).then(|| Confirmed::Held(word.timeout(), None))
        }
        LockType::Rw => {
            let has_share = match ctx.is_proxied(from.client) {
                true => state.rw.shares.contains(&from.client),
                false => ctx.ledger(from.client, from.handle).state() == LedgerState::HeldShared,
            };
            let is_reader = mode == Mode::Shared && has_share;
            let is_held = is_mine(RwWord::from_bits(word).client()) || is_reader;
            is_held.then(|| Confirmed::Held(ctx.now.seconds(), None))
        }
        LockType::Fair => {
            let entry = fair::told(ctx, &state.fair, from.client, from.handle);
            let counts = state.fair.counts(from.client, entry, FairWord::from_bits(word));
            let (_, ticket) = counts.filter(|&(its, _)| its == mode)?;
            match entry.state() {
                LedgerState::HeldExclusive | LedgerState::HeldShared => {
                    Some(Confirmed::Held(entry.deadline_s(ctx.anchor_s), Some(ticket)))
                }
                _ => Some(Confirmed::Queued(ticket)),
            }
        }
    }
}
