// SPDX-License-Identifier: MIT OR Apache-2.0
//! The read-write lock, arbiter side: hand-over in order of arrival, recount of a suspect count.
//!
//! Invariant: the waiters bit is set if and only if the queue is not empty or the count is suspect.
//! While the bit is set, clients only take themselves off the word; if one adds itself, it steps
//! back at once.
//!
//! The count is *suspect* if a client is gone, or in doubt, whose ledger does not tell whether it
//! is among the readers. The recount reads all ledgers, the word, and all ledgers again. If every
//! entry is settled and reads the same twice (each chain on the count brings a new stamp), then no
//! client moved, and what the word counts above the ledgers was left behind. The recount
//! *subtracts* that, so clients that come or go afterwards make no difference. If the word counts
//! no more than the settled readers, then no client between two word operations is in it, and
//! nothing was left behind either.
//!
//! A client that stays between two word operations while others wait for the count is stopped. It
//! must be fenced ([`RwState::hinderer`]), since only that client knows what it has.
//!
//! The share of a *proxied* client, whose word operations this primary executes, is known without
//! the client's ledger. It is never suspect, and there is at most one, because the client cannot
//! take off the share of another client.
//! Holds with a lease: `rw/leased.rs`.

mod kept;
mod leased;

use std::collections::{BTreeMap, BTreeSet};

pub(super) use kept::{clear_kept, is_held_by};
pub(super) use leased::Leased;

use super::confirm::confirm;
use super::hindrance::{Hindrance, HINDRANCE_NS};
use super::{
    cancel_wait, drop_waits, end_earlier_wait, Caller, Ctx, LockState, Waiter, RECOUNT_EVERY_NS,
};
use crate::budget::work::GRANTS_PER_LOOK;
use crate::clock::{ServerTime, NS};
use crate::ids::{ClientId, Handle};
use crate::limits::LOOK_S;
use crate::memory::words::{LedgerEntry, LedgerState, RwWord};
use crate::planted::{self, Bug};
use crate::token::RW_END;
use crate::wire::message::{Mode, Reply, Request, WaitNumber};
use crate::wire::status::Status;
use kept::{keep, try_now};
use leased::{end_leases, extend, take_now, wakes_at_the_next_end};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct RwState {
    /// Clients that got a shared grant, by wait number, and whose ledgers may still say `Waiting`.
    granted: BTreeMap<ClientId, WaitNumber>,
    /// Proxied clients that are among the readers.
    pub(super) shares: BTreeSet<ClientId>,
    /// Clients that were proxied, had a share, and have written nothing into their ledgers since.
    untold: BTreeSet<ClientId>,
    suspect: bool,
    /// Clients in doubt: they count as holding nothing, and get their answer after the recount.
    /// Each has one request at a time.
    resolving: BTreeMap<ClientId, Caller>,
    /// The holds with a lease.
    leased: BTreeMap<ClientId, Leased>,
    /// Clients for which a recount waits.
    between: BTreeMap<ClientId, Between>,
}

/// A client that is between two word operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Between {
    /// What the client's ledger says.
    entry: LedgerEntry,
    /// For how long the ledger has said so.
    hindrance: Hindrance,
}

impl RwState {
    pub(super) fn is_empty(&self) -> bool {
        let nobody = self.granted.is_empty() && self.shares.is_empty() && self.untold.is_empty();
        nobody && !self.suspect && self.resolving.is_empty() && self.leased.is_empty()
    }

    /// A client that has kept the count unknown for too long at the last look; it may have gone on
    /// since.
    pub(super) fn hinderer(&self, skip: &dyn Fn(ClientId) -> bool) -> Option<ClientId> {
        let mut over = self.between.iter().filter(|(_, between)| between.hindrance.is_over());
        over.find(|(&client, _)| !skip(client)).map(|(&client, _)| client)
    }

    /// Whether a recount waits for a client.
    pub(super) fn is_hindered(&self) -> bool {
        !self.between.is_empty()
    }

    /// How long to wait before the next recount, because no message says that a client has gone on:
    /// an eighth of the time for which the recount has waited for it, but not beyond the time at
    /// which the client is to be fenced.
    fn pause_ns(&self, now: ServerTime) -> u64 {
        let waited_ns = |between: &Between| between.hindrance.waited_ns(now);
        let longest_ns = self.between.values().map(waited_ns).max().unwrap_or(0);
        let left_ns = self.between.values().map(|b| HINDRANCE_NS.saturating_sub(waited_ns(b)));
        let left_ns = left_ns.filter(|&left_ns| left_ns > 0).min().unwrap_or(u64::MAX);
        (longest_ns / 8).min(u64::from(LOOK_S) * NS).min(left_ns).max(RECOUNT_EVERY_NS)
    }

    /// See [`Arbiter::goes_on`](super::Arbiter::goes_on).
    pub(super) fn goes_on(&mut self, now: ServerTime, client: ClientId) {
        if let Some(between) = self.between.get_mut(&client) {
            between.hindrance = Hindrance::begins(now);
        }
    }

    /// Records the clients that are between two word operations now.
    fn waits_for(&mut self, now: ServerTime, between: &[(ClientId, LedgerEntry)]) {
        let before = std::mem::take(&mut self.between);
        self.between = between
            .iter()
            .map(|&(client, entry)| {
                let same = before.get(&client).filter(|before| before.entry == entry);
                let hindrance = same.map(|before| before.hindrance.goes_on(now));
                let hindrance = hindrance.unwrap_or(Hindrance::begins(now));
                (client, Between { entry, hindrance })
            })
            .collect();
    }

    /// From now on the client's ledger tells whether it has a share, once the client has written
    /// there.
    pub(super) fn unproxy(&mut self, client: ClientId) {
        if self.shares.remove(&client) {
            self.untold.insert(client);
        }
    }

    /// Whether the client has a share that its ledger does not show.
    pub(super) fn knows(&self, client: ClientId) -> bool {
        self.shares.contains(&client) || self.untold.contains(&client)
    }

    /// Whether the arbiter knows of a share of this client, without regard to the client's ledger.
    fn has_share(&self, client: ClientId) -> bool {
        self.shares.contains(&client) || self.leased.contains_key(&client)
    }

    /// Records that a proxied client has taken its share off.
    pub(super) fn gave_back(&mut self, client: ClientId) {
        self.shares.remove(&client);
        self.granted.remove(&client);
    }

    fn is_untold(&self, client: ClientId, entry: LedgerEntry) -> bool {
        entry == LedgerEntry::new() && self.untold.contains(&client)
    }
}

/// Whether a client may add `add` to the count of this word. `has_share`: for a proxied client,
/// whether it has a share.
pub(super) fn may_add(seen: u64, add: u64, has_share: Option<bool>) -> Result<(), Status> {
    let rcount = RwWord::from_bits(seen).rcount();
    let may = match add {
        1 => has_share != Some(true) && rcount < u32::MAX,
        // a subtraction must not borrow from the owner's bits
        u64::MAX => has_share != Some(false) && rcount > 0,
        _ => false,
    };
    may.then_some(()).ok_or(Status::Invalid)
}

pub(super) fn request(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller, request: Request) {
    end_leases(ctx, state);
    match request {
        Request::Wait { mode, lease, wait, .. } => {
            end_earlier_wait(ctx, state, from.client);
            state.rw.granted.remove(&from.client);
            state.rw.untold.remove(&from.client);
            let waiter = Waiter { caller: from, wait, mode, lease, until: None };
            let owns = RwWord::from_bits(ctx.read()).client() == from.client.get();
            if owns || state.rw.has_share(from.client) {
                ctx.denied(from, Status::Fail);
            } else {
                set_bit(ctx);
                state.queue.push_back(waiter);
            }
        }
        Request::Cancel { wait, .. } => {
            cancel_wait(ctx, state, from, wait);
            advance(ctx, state);
            let word = ctx.read();
            ctx.answer(from, Reply::Done { word });
            return;
        }
        Request::Release { mode: Mode::Shared, .. } => match state.rw.leased(from.client) {
            Some(Leased { mode: Mode::Shared, .. }) => {
                if !planted::is(Bug::RwReleaseKeepsLease) {
                    state.rw.leased.remove(&from.client);
                }
                take_readers_off(ctx, 1);
                advance(ctx, state);
                let word = ctx.read();
                return ctx.answer(from, Reply::Done { word });
            }
            _ => ctx.denied(from, Status::Fail),
        },
        Request::Release { mode: Mode::Exclusive, .. } => {
            state.rw.leased.retain(|&c, hold| c != from.client || hold.mode == Mode::Shared);
            if let Some(word) = hand_over(ctx, state, from.client) {
                ctx.answer(from, Reply::Done { word });
                return wakes_at_the_next_end(ctx, state);
            }
            if end_exclusive(ctx, from.client) {
                advance(ctx, state);
                let word = ctx.read();
                ctx.answer(from, Reply::Done { word });
                return;
            }
            ctx.denied(from, Status::Fail);
        }
        Request::Steal { mode, lease, .. } if !lease.is_endless() => {
            try_now(ctx, state, from, (mode, lease, WaitNumber(0)));
        }
        Request::Try { mode, lease, wait, .. } => {
            end_earlier_wait(ctx, state, from.client);
            state.rw.granted.remove(&from.client);
            state.rw.untold.remove(&from.client);
            try_now(ctx, state, from, (mode, lease, wait));
        }
        Request::Keep { mode, lease, .. } => return keep(ctx, state, from, mode, lease),
        Request::Extend { mode, lease, .. } => extend(ctx, state, from, mode, lease),
        Request::Wake { .. } if state.kept.is_empty() => clear_kept(ctx),
        Request::Wake { .. } | Request::Abandon { .. } => {}
        Request::Downgrade { stamp, .. } => downgrade(ctx, state, from, stamp),
        Request::Resolve { .. } => resolve(ctx, state, from),
        Request::Confirm { mode, .. } => confirm(ctx, state, from, mode),
        _ => ctx.denied(from, Status::Invalid),
    }
    advance(ctx, state);
}

fn set_bit(ctx: &mut Ctx<'_>) {
    ctx.update(|seen| {
        let word = RwWord::from_bits(seen);
        (!word.waiters()).then(|| word.with_waiters(true).into_bits())
    });
}

/// Hands the lock from its owner straight to the next client in the queue, by one change of the
/// word. Returns the word after that. `None`: the client is not the owner, readers are in the
/// count, the count is suspect, the queue is empty, or the next client in it wants a share.
fn hand_over(ctx: &mut Ctx<'_>, state: &mut LockState, owner: ClientId) -> Option<u64> {
    let next = state.queue.front().copied().filter(|next| next.mode == Mode::Exclusive)?;
    if state.rw.suspect {
        return None;
    }
    counts_end(ctx, owner);
    let more = state.queue.len() > 1 && !planted::is(Bug::HandOverDropsBit);
    let word = ctx.update(|seen| {
        let word = RwWord::from_bits(seen);
        let alone = word.rcount() == 0 || planted::is(Bug::RwGrantIgnoresReaders);
        let may = word.client() == owner.get() && alone;
        let next = word.without_owner().with_client(next.caller.client.get());
        let next = next.with_waiters(more);
        may.then(|| next.into_bits())
    })?;
    state.queue.pop_front();
    enter(ctx, state, &next, word);
    if !state.queue.is_empty() {
        ctx.looks_again();
    }
    Some(word)
}

/// Counts the end of an exclusive hold in the fence word, before the lock word shows the end. The
/// owner does not end the hold meanwhile: it has asked for this, or cannot act any more.
fn counts_end(ctx: &mut Ctx<'_>, owner: ClientId) {
    let is_owner = RwWord::from_bits(ctx.read()).client() == owner.get();
    if ctx.lock.tokens && is_owner && !planted::is(Bug::EndUncounted) {
        let fence = ctx.fence();
        ctx.mem.faa(fence, RW_END);
    }
}

fn end_exclusive(ctx: &mut Ctx<'_>, client: ClientId) -> bool {
    counts_end(ctx, client);
    ctx.update(|seen| {
        let word = RwWord::from_bits(seen);
        if planted::is(Bug::RwReleaseUnchecked) {
            return (word.client() != 0).then(|| word.without_owner().into_bits());
        }
        (word.client() == client.get()).then(|| word.without_owner().into_bits())
    })
    .is_some()
}

/// Makes the client's exclusive hold a share, by one change of the word, and writes the share into
/// its ledger: the client waits for the answer, so no one else writes the entry now. Nothing of
/// this arbiter comes between the word and the ledger.
fn downgrade(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller, stamp: u32) {
    let share = LedgerEntry::new().with_state(LedgerState::HeldShared).with_detail(stamp);
    if !planted::is(Bug::DowngradeUncounted) {
        counts_end(ctx, from.client);
    }
    let joins = |word: RwWord| Some(word.with_rcount(word.rcount().checked_add(1)?));
    let word = match planted::is(Bug::DowngradeInTwo) && end_exclusive(ctx, from.client) {
        true => {
            advance(ctx, state);
            ctx.update(|seen| joins(RwWord::from_bits(seen)).map(RwWord::into_bits))
        }
        false => ctx.update(|seen| {
            let word = RwWord::from_bits(seen);
            let owns = word.client() == from.client.get();
            joins(word.without_owner()).filter(|_| owns).map(RwWord::into_bits)
        }),
    };
    let is_proxied = ctx.is_proxied(from.client);
    let mut until = ctx.now.tick();
    match state.rw.leased.get_mut(&from.client) {
        Some(hold) => (hold.mode, until) = (Mode::Shared, hold.until),
        None if word.is_none() => {}
        None => {
            if is_proxied {
                state.rw.shares.insert(from.client);
            }
            if !planted::is(Bug::DowngradeUnnoted) {
                ctx.mem.set_ledger(from.client, from.handle, share);
            }
        }
    }
    // an earlier request may have done it, and its answer was lost
    let has_share = word.is_some()
        || state.rw.leased.contains_key(&from.client)
        || match is_proxied {
            true => state.rw.shares.contains(&from.client),
            false => ctx.ledger(from.client, from.handle) == share,
        };
    if !has_share {
        return ctx.denied(from, Status::Fail);
    }
    let word = word.unwrap_or_else(|| ctx.read());
    ctx.granted(from, Mode::Shared, word, until, None);
}

fn take_one_reader_off(ctx: &mut Ctx<'_>) {
    take_readers_off(ctx, 1);
}

fn take_readers_off(ctx: &mut Ctx<'_>, count: u32) {
    ctx.update(|seen| {
        let word = RwWord::from_bits(seen);
        let rcount = word.rcount().checked_sub(count).filter(|_| count > 0)?;
        Some(word.with_rcount(rcount).into_bits())
    });
}

/// Records the hold that the word now has, and answers its client.
fn enter(ctx: &mut Ctx<'_>, state: &mut LockState, to: &Waiter, word: u64) {
    let client = to.caller.client;
    let until = ctx.now.deadline(to.lease);
    match to.mode {
        mode if !to.lease.is_endless() => {
            _ = state.rw.leased.insert(client, Leased { mode, until })
        }
        Mode::Exclusive => {}
        Mode::Shared => {
            if ctx.is_proxied(client) {
                state.rw.shares.insert(client);
            }
            state.rw.granted.insert(client, to.wait);
        }
    }
    ctx.granted(to.caller, to.mode, word, until, None);
}

/// Ends the holds whose leases are over, recounts the readers if the count is suspect, and grants
/// the lock to the clients at the head of the queue.
pub(super) fn advance(ctx: &mut Ctx<'_>, state: &mut LockState) {
    end_leases(ctx, state);
    recount_and_grant(ctx, state);
    wakes_at_the_next_end(ctx, state);
}

fn recount_and_grant(ctx: &mut Ctx<'_>, state: &mut LockState) {
    if state.rw.suspect && !recount(ctx, state) {
        let again = ctx.now.plus_ns(state.rw.pause_ns(ctx.now));
        ctx.wake_at(again);
        return;
    }
    let mut granted = 0;
    while let Some(waiter) = state.queue.front().copied() {
        if granted == GRANTS_PER_LOOK {
            let at_once = ctx.now;
            return ctx.wake_at(at_once);
        }
        granted += 1;
        let Some(word) = grant(ctx, &waiter) else {
            return ctx.looks_again();
        };
        state.queue.pop_front();
        let word = match state.queue.is_empty() {
            true => clear_bit(ctx).unwrap_or(word),
            false => word,
        };
        enter(ctx, state, &waiter, word);
    }
    clear_bit(ctx);
}

fn grant(ctx: &mut Ctx<'_>, waiter: &Waiter) -> Option<u64> {
    ctx.update(|seen| {
        let word = RwWord::from_bits(seen);
        match waiter.mode {
            Mode::Exclusive
                if word.client() == 0
                    && (word.rcount() == 0 || planted::is(Bug::RwGrantIgnoresReaders)) =>
            {
                Some(word.without_owner().with_client(waiter.caller.client.get()).into_bits())
            }
            Mode::Shared if word.client() == 0 => {
                let rcount = word.rcount().checked_add(1)?; // full only if a client forged it
                Some(word.with_rcount(rcount).into_bits())
            }
            _ => None,
        }
    })
}

fn clear_bit(ctx: &mut Ctx<'_>) -> Option<u64> {
    ctx.update(|seen| {
        let word = RwWord::from_bits(seen);
        word.waiters().then(|| word.with_waiters(false).into_bits())
    })
}

/// One attempt at a recount; `true`: the count is right now.
fn recount(ctx: &mut Ctx<'_>, state: &mut LockState) -> bool {
    let first = entries(ctx, state);
    let word = RwWord::from_bits(ctx.read());
    let again = entries(ctx, state);
    let between: Vec<_> = again.iter().copied().filter(|(_, entry)| is_between(*entry)).collect();
    if again != first && !planted::is(Bug::RecountOnce) {
        if !planted::is(Bug::MovedNotNoted) {
            state.rw.waits_for(ctx.now, &between);
        }
        return false;
    }
    let readers = first.iter().filter(|(client, entry)| match entry.state() {
        LedgerState::HeldShared => true,
        LedgerState::Waiting if planted::is(Bug::OlderGrantCounts) => {
            state.rw.granted.contains_key(client)
        }
        LedgerState::Waiting => state.rw.granted.get(client) == Some(&WaitNumber(entry.detail())),
        _ => state.rw.is_untold(*client, *entry),
    });
    let readers = readers.count() as u32;
    let first_between = first.iter().any(|(_, entry)| is_between(*entry));
    if first_between && word.rcount() != readers && !planted::is(Bug::RecountTrustsIntents) {
        state.rw.waits_for(ctx.now, &between);
        return false;
    }
    if !planted::is(Bug::HindranceKept) {
        state.rw.between.clear();
    }
    let left_behind = word.rcount().saturating_sub(readers);
    ctx.update(|seen| {
        let word = RwWord::from_bits(seen);
        let rcount = word.rcount().saturating_sub(left_behind);
        (left_behind > 0).then(|| word.with_rcount(rcount).into_bits())
    });
    state.rw.suspect = false;
    let word = ctx.read();
    for caller in std::mem::take(&mut state.rw.resolving).into_values() {
        ctx.mem.clear_ledger(caller.client, caller.handle);
        ctx.answer(caller, Reply::Done { word });
    }
    true
}

fn is_between(entry: LedgerEntry) -> bool {
    matches!(entry.state(), LedgerState::Intent | LedgerState::Leaving)
}

/// Every ledger entry that counts for a recount, with its client.
fn entries(ctx: &mut Ctx<'_>, state: &LockState) -> Vec<(ClientId, LedgerEntry)> {
    let mut entries = Vec::with_capacity(ctx.lock.refs.len());
    for &(client, handle) in ctx.lock.refs {
        if state.rw.resolving.contains_key(&client) {
            continue;
        }
        let has_leased = state.rw.leased(client).is_some_and(|hold| hold.mode == Mode::Shared);
        let entry = match ctx.is_proxied(client) {
            _ if has_leased || state.rw.shares.contains(&client) => {
                LedgerEntry::new().with_state(LedgerState::HeldShared)
            }
            true => LedgerEntry::new(),
            false => ctx.ledger(client, handle),
        };
        entries.push((client, entry));
    }
    entries
}

fn suspect(ctx: &mut Ctx<'_>, state: &mut LockState) {
    state.rw.suspect = true;
    set_bit(ctx);
}

fn resolve(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller) {
    if undo(ctx, state, from.client, from.handle) {
        // the client waits for the answer: no one else writes the entry now
        ctx.mem.clear_ledger(from.client, from.handle);
        let word = ctx.read();
        ctx.answer(from, Reply::Done { word });
    } else {
        if let Some(earlier) = state.rw.resolving.insert(from.client, from) {
            let word = ctx.read();
            ctx.answer(earlier, Reply::Cancelled { word });
        }
        suspect(ctx, state);
    }
}

/// Undoes what the client surely has by its ledger and the word; `false`: the count is suspect.
fn undo(ctx: &mut Ctx<'_>, state: &mut LockState, client: ClientId, handle: Handle) -> bool {
    drop_waits(state, client);
    if !planted::is(Bug::RwResolveKeepsHold) {
        end_exclusive(ctx, client);
    }
    let granted = state.rw.granted.remove(&client);
    let has_share = state.rw.shares.remove(&client);
    if let Some(Leased { mode: Mode::Shared, .. }) = state.rw.leased.remove(&client) {
        take_one_reader_off(ctx);
    }
    if ctx.is_proxied(client) {
        if has_share {
            take_one_reader_off(ctx);
        }
        return true;
    }
    let entry = ctx.ledger(client, handle);
    let is_untold = state.rw.is_untold(client, entry);
    // the entry will be cleared, and must not look like one that was never written
    state.rw.untold.remove(&client);
    match entry.state() {
        LedgerState::HeldShared => take_one_reader_off(ctx),
        LedgerState::Waiting if granted == Some(WaitNumber(entry.detail())) => {
            take_one_reader_off(ctx);
        }
        LedgerState::Intent | LedgerState::Leaving => return planted::is(Bug::RecountSkipped),
        _ if is_untold => take_one_reader_off(ctx),
        _ => {}
    }
    true
}

pub(super) fn forget(ctx: &mut Ctx<'_>, state: &mut LockState, client: ClientId, handle: Handle) {
    if !planted::is(Bug::LapseKeepsResolve) {
        state.rw.resolving.remove(&client);
    }
    state.rw.between.remove(&client);
    if !undo(ctx, state, client, handle) {
        suspect(ctx, state);
    }
    advance(ctx, state);
}
