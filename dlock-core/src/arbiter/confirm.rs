// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client has of a lock after a recovery, which has settled what it claimed.

use super::{fair, Arbiter, Caller, Ctx, LockRef, LockState};
use crate::ids::ClientId;
use crate::message::{LockType, Mode, Reply};
use crate::status::Status;
use crate::words::{AtomicWord, FairWord, LedgerEntry, LedgerState, RwWord, Ticket};

impl Arbiter {
    /// What this client has of the lock was settled in a recovery: its ledger says so. Of a proxied
    /// client it is known without.
    pub(crate) fn claimed(&mut self, lock: LockRef<'_>, client: ClientId, entry: LedgerEntry) {
        if !self.proxied.contains(client) {
            return;
        }
        let state = self.state(lock.slot);
        match (lock.lock_type, fair::named(entry)) {
            (LockType::Atomic, _) => {}
            (LockType::Rw, _) => _ = state.rw.shares.insert(client),
            (LockType::Fair, Some(ticket)) => _ = state.fair.live.insert(client, ticket),
            (LockType::Fair, None) => {}
        }
        self.drop_if_empty(lock.slot);
    }
}

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
