// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client has of a lock after a recovery, as the recovery has settled its claim.

use super::rw::Leased;
use super::{fair, Arbiter, Caller, Ctx, LockRef, LockState};
use crate::clock::Deadline;
use crate::ids::ClientId;
use crate::memory::words::{AtomicWord, LedgerEntry, LedgerState, RwWord, Ticket};
use crate::wire::message::{LockType, Mode, Reply};
use crate::wire::status::Status;

impl Arbiter {
    /// Takes over what the recovery has settled for this client; the client's ledger says `entry`.
    /// `claim`: of a fair lock the client's ticket, and, if it holds the lock, the end of the hold;
    /// of a read-write lock a hold with a lease.
    pub(crate) fn claimed(
        &mut self,
        lock: LockRef<'_>,
        client: ClientId,
        entry: LedgerEntry,
        claim: Option<(Mode, Ticket, Option<Deadline>)>,
    ) {
        let is_proxied = self.proxied.contains(client);
        let state = self.state(lock.slot);
        let mut ends = None;
        match (lock.lock_type, claim) {
            (LockType::Rw, Some((mode, _, Some(until)))) => {
                ends = Some(state.rw.goes_on_leased(client, Leased { mode, until }));
            }
            (LockType::Rw, _) if is_proxied => _ = state.rw.shares.insert(client),
            (LockType::Fair, Some((mode, ticket, until))) => {
                fair::claimed(&mut state.fair, client, (mode, ticket), entry, until);
            }
            _ => {}
        }
        if let Some(end) = ends {
            self.looks_at(lock.slot, end);
        }
        self.drop_if_empty(lock.slot);
    }
}

/// Answers a [`Request::Confirm`](crate::wire::message::Request::Confirm). The arbiter reads the
/// word once: other clients may change it at any time, and the answer is about the word that was
/// read.
pub(super) fn confirm(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller, mode: Mode) {
    let word = ctx.read();
    match had(ctx, state, from, mode, word) {
        Some(Confirmed::Held(deadline, ticket)) => {
            ctx.granted(from, mode, word, deadline, ticket);
        }
        Some(Confirmed::Queued(ticket)) => ctx.answer(from, Reply::Queued { word, ticket }),
        None => ctx.answer(from, Reply::Denied { status: Status::Fail, word }),
    }
}

enum Confirmed {
    /// Held until this deadline.
    Held(Deadline, Option<Ticket>),
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
            if let Some(hold) = state.rw.leased(from.client) {
                return (hold.mode == mode).then_some(Confirmed::Held(hold.until, None));
            }
            let has_share = match ctx.is_proxied(from.client) {
                true => state.rw.shares.contains(&from.client),
                false => ctx.ledger(from.client, from.handle).state() == LedgerState::HeldShared,
            };
            let is_reader = mode == Mode::Shared && has_share;
            let is_held = is_mine(RwWord::from_bits(word).client()) || is_reader;
            is_held.then_some(Confirmed::Held(Deadline::NEVER, None))
        }
        LockType::Fair => {
            let (ticket, until) = fair::has(ctx, &state.fair, from, mode)?;
            match until {
                Some(until) => Some(Confirmed::Held(until, Some(ticket))),
                None => Some(Confirmed::Queued(ticket)),
            }
        }
    }
}
