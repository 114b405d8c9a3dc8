// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queue of a fair lock: one pass decides one thing and starts anew, until nothing is due.
//!
//! ```text
//!   word (read first) ─▶ claims (ledgers + records) ─▶ one change, Cas from that very word
//! ```
//! The word is read before the ledgers, and changed only from that value: whoever released or
//! took a ticket in between has changed it, and the pass is repeated.
//!
//! Shared tickets are served once every exclusive ticket before them is done; the exclusive
//! ticket `nx` is served once every shared ticket before it is done (`ns` is its `ts`).

use std::collections::BTreeSet;

use super::super::{Ctx, LockState};
use super::{named, told, FairState, PassedOver, Record, RecordStatus, PASSED_OVER_MAX};
use crate::clock::{ServerTime, NS};
use crate::ids::ClientId;
use crate::limits::{FAIR_GRACE_S, FAIR_READERS_MAX};
use crate::message::Mode;
use crate::planted::{self, Bug};
use crate::words::{before, FairWord, LedgerState, Ticket};

/// Passes of one call: every pass but the last ends a ticket or grants one.
const PASSES_MAX: u32 = 1 << 17;
const GRACE_NS: u64 = FAIR_GRACE_S as u64 * NS;
/// A ticket that this primary handed to a tcp client itself, and whose note does not come.
const ISSUED_GRACE_NS: u64 = 10 * NS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Issued,
    Queued,
    Waiting,
    Held { deadline_s: u32 },
    Leaving { deadline_s: u32 },
    Cancelled,
}

#[derive(Clone, Copy, Debug)]
struct Claim {
    client: ClientId,
    mode: Mode,
    ticket: Ticket,
    kind: Kind,
}

pub(in super::super) fn advance(ctx: &mut Ctx<'_>, state: &mut LockState) {
    for _ in 0..PASSES_MAX {
        if !pass(ctx, state) {
            return;
        }
    }
}

/// One pass; true if something was changed, so that there may be more to do.
fn pass(ctx: &mut Ctx<'_>, state: &mut LockState) -> bool {
    let word = FairWord::from_bits(ctx.read());
    let claims = claims(ctx, &mut state.fair, word);
    if serve_shared(ctx, state, word, &claims) {
        return true;
    }
    if word.nx() == word.mx() {
        state.fair.head_since = None;
        return over_the_reader_limit(ctx, state, word, &claims);
    }
    let since = match state.fair.head_since {
        Some(since) if state.fair.head == word.nx() => since,
        _ => ctx.now,
    };
    state.fair.head = word.nx();
    state.fair.head_since = Some(since);
    let head = claims.iter().find(|c| c.mode == Mode::Exclusive && c.ticket.tx == word.nx());
    // a turn ends when somebody asks for the next one: a slow client has it until then
    let wanted = claims.iter().any(|c| c.kind == Kind::Waiting);
    let Some(head) = head.copied() else {
        return wanted && unclaimed_head(ctx, state, word, &claims, since);
    };
    let need = head.ticket.ts.wrapping_sub(word.ns());
    if head.kind == Kind::Cancelled {
        return end(ctx, state, word, head);
    }
    if need == 0 {
        return served_head(ctx, state, word, head, wanted);
    }
    wanted && blocked_head(ctx, state, word, &claims, head.ticket.ts, since)
}

/// Every live ticket of the lock, as ledgers and records together tell it.
fn claims(ctx: &mut Ctx<'_>, fair: &mut FairState, word: FairWord) -> Vec<Claim> {
    let is_done =
        |mode: Mode, ticket: Ticket| mode == Mode::Exclusive && before(ticket.tx, word.nx());
    fair.records.retain(|r| !is_done(r.mode, r.ticket));
    fair.live.retain(|_, &mut (mode, ticket)| !is_done(mode, ticket));
    let passed = fair.passed_over.as_ref().map(|passed| word.ns().wrapping_sub(passed.before));
    if passed.is_some_and(|n| (PASSED_OVER_MAX..0x8000).contains(&n)) {
        fair.passed_over = None;
    }
    for &(client, handle) in ctx.lock.refs {
        let entry = told(ctx, fair, client, handle);
        let ledger = named(entry);
        let live = fair.live.get(&client).copied();
        if let Some(revoked) = fair.revoked.get_mut(&client) {
            revoked.retain_mut(|r| {
                let is_named = ledger == Some((r.mode, r.ticket));
                r.seen |= is_named;
                is_named || !(r.seen && r.is_settled(word))
            });
            if revoked.is_empty() {
                fair.revoked.remove(&client);
            }
        }
        // a share that was granted, and that the ledger has dropped, is released
        fair.records.retain(|r| {
            !(r.client == client
                && r.mode == Mode::Shared
                && matches!(r.status, RecordStatus::Granted { .. })
                && ledger != Some((r.mode, r.ticket))
                && live != Some((r.mode, r.ticket)))
        });
        let Some((mode, ticket)) = ledger.or(live) else { continue };
        if is_done(mode, ticket) || fair.is_revoked(client, mode, ticket) {
            continue;
        }
        let is_held = matches!(
            entry.state(),
            LedgerState::HeldShared | LedgerState::HeldExclusive | LedgerState::Leaving
        );
        let is_record = |r: &Record| r.client == client && r.status != RecordStatus::Cancelled;
        if !is_held && !fair.records.iter().any(is_record) {
            let status = RecordStatus::Queued;
            fair.records.push(Record { client, mode, ticket, status, since: None });
        }
    }
    let mut claims: Vec<Claim> = Vec::with_capacity(fair.records.len() + 8);
    for r in &fair.records {
        let kind = match r.status {
            RecordStatus::Issued => Kind::Issued,
            RecordStatus::Queued => Kind::Queued,
            RecordStatus::Waiting => Kind::Waiting,
            RecordStatus::Granted { deadline_s } => Kind::Held { deadline_s },
            RecordStatus::Cancelled => Kind::Cancelled,
        };
        claims.push(Claim { client: r.client, mode: r.mode, ticket: r.ticket, kind });
    }
    add_ledger_holds(ctx, fair, word, &mut claims);
    claims
}

/// What ledgers say of holds overrides or extends what the records say.
fn add_ledger_holds(ctx: &mut Ctx<'_>, fair: &FairState, word: FairWord, claims: &mut Vec<Claim>) {
    for &(client, handle) in ctx.lock.refs {
        let entry = told(ctx, fair, client, handle);
        let deadline_s = entry.deadline_s(ctx.anchor_s);
        let kind = match entry.state() {
            LedgerState::HeldExclusive | LedgerState::HeldShared => Kind::Held { deadline_s },
            LedgerState::Leaving => Kind::Leaving { deadline_s },
            _ => continue,
        };
        let Some((mode, ticket)) = named(entry) else { continue };
        let passed = mode == Mode::Exclusive && before(ticket.tx, word.nx());
        if passed || fair.is_revoked(client, mode, ticket) {
            continue;
        }
        let known = claims.iter_mut().find(|c| {
            c.client == client && c.mode == mode && c.ticket == ticket && c.kind != Kind::Cancelled
        });
        match known {
            None => claims.push(Claim { client, mode, ticket, kind }),
            Some(claim) => {
                claim.kind = match (claim.kind, kind) {
                    (Kind::Held { deadline_s: a }, Kind::Held { deadline_s: b }) => {
                        Kind::Held { deadline_s: a.max(b) }
                    }
                    (_, kind) => kind,
                }
            }
        }
    }
}

fn served_shared(word: FairWord, ticket: Ticket) -> bool {
    !before(word.nx(), ticket.tx)
}

fn below_reader_limit(word: FairWord, ticket: Ticket) -> bool {
    let ahead = ticket.ts.wrapping_sub(word.ns());
    !(FAIR_READERS_MAX..=0x7fff).contains(&ahead)
}

/// Grants to waiting readers whose turn it is, and skips those that have gone.
fn serve_shared(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    word: FairWord,
    claims: &[Claim],
) -> bool {
    for claim in claims.iter().filter(|c| c.mode == Mode::Shared) {
        if !served_shared(word, claim.ticket) {
            continue;
        }
        match claim.kind {
            Kind::Cancelled => return end(ctx, state, word, *claim),
            Kind::Waiting if below_reader_limit(word, claim.ticket) => {
                return grant(ctx, state, word, *claim)
            }
            _ => {}
        }
    }
    false
}

/// Ends one ticket, from this very word; its client may not know. Always worth another pass.
fn end(ctx: &mut Ctx<'_>, state: &mut LockState, word: FairWord, claim: Claim) -> bool {
    if claim.kind == Kind::Cancelled {
        return skip_cancelled(ctx, state, word, claim.mode);
    }
    let new = match claim.mode {
        Mode::Exclusive => word.with_nx(word.nx().wrapping_add(1)),
        Mode::Shared => word.with_ns(word.ns().wrapping_add(1)),
    };
    if !ctx.cas(word.into_bits(), new.into_bits()) {
        return true;
    }
    state.fair.revoke(claim.client, claim.mode, claim.ticket, ctx.is_relayed(claim.client));
    true
}

/// Ends all tickets at once that were given up and are next: there may be thousands.
fn skip_cancelled(ctx: &mut Ctx<'_>, state: &mut LockState, word: FairWord, mode: Mode) -> bool {
    let cancelled =
        state.fair.records.iter().filter(|r| r.status == RecordStatus::Cancelled && r.mode == mode);
    let new = match mode {
        Mode::Exclusive => {
            let tickets: BTreeSet<u16> = cancelled.map(|r| r.ticket.tx).collect();
            let mut nx = word.nx();
            while nx != word.mx() && tickets.contains(&nx) {
                nx = nx.wrapping_add(1);
            }
            word.with_nx(nx)
        }
        Mode::Shared => {
            let served = cancelled.filter(|r| served_shared(word, r.ticket));
            let tickets: BTreeSet<u16> = served.map(|r| r.ticket.ts).collect();
            word.with_ns(word.ns().wrapping_add(tickets.len() as u16)) // less than 2^16 are out
        }
    };
    if ctx.cas(word.into_bits(), new.into_bits()) {
        state.fair.records.retain(|r| {
            let is_skipped = match mode {
                Mode::Exclusive => before(r.ticket.tx, new.nx()),
                Mode::Shared => served_shared(word, r.ticket),
            };
            !(r.status == RecordStatus::Cancelled && r.mode == mode && is_skipped)
        });
    }
    true
}

fn grant(ctx: &mut Ctx<'_>, state: &mut LockState, word: FairWord, claim: Claim) -> bool {
    let at = state.queue.iter().position(|w| w.caller.client == claim.client);
    let waiter = at.and_then(|at| state.queue.remove(at));
    let Some(record) = state.fair.record(claim.client, claim.mode, claim.ticket) else {
        return true;
    };
    let Some(waiter) = waiter else {
        record.status = RecordStatus::Queued;
        return true;
    };
    let deadline_s = ctx.now.deadline(waiter.expire_s);
    record.status = RecordStatus::Granted { deadline_s };
    ctx.granted(waiter.caller, word.into_bits(), deadline_s, Some(claim.ticket));
    true
}

/// Whether a time has come; if not, this lock wants to be looked at again then.
fn reached(ctx: &mut Ctx<'_>, at: ServerTime) -> bool {
    let reached = ctx.now >= at;
    if !reached {
        ctx.wake_at(at);
    }
    reached
}

/// A ticket at its turn whose client does nothing keeps the turn for a grace.
fn outstayed(ctx: &mut Ctx<'_>, state: &mut LockState, claim: Claim) -> bool {
    let now = ctx.now;
    let Some(record) = state.fair.record(claim.client, claim.mode, claim.ticket) else {
        return false;
    };
    let grace = match record.status {
        RecordStatus::Issued => ISSUED_GRACE_NS,
        _ => GRACE_NS,
    };
    let since = *record.since.get_or_insert(now);
    reached(ctx, since.plus_ns(grace))
}

fn unclaimed_head(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    word: FairWord,
    claims: &[Claim],
    since: ServerTime,
) -> bool {
    let behind = word.mx().wrapping_sub(word.nx()) > 1
        || claims.iter().any(|c| c.mode == Mode::Shared && before(word.nx(), c.ticket.tx));
    let grace = if planted::is(Bug::FairNoGrace) { 0 } else { GRACE_NS };
    if !behind || !reached(ctx, since.plus_ns(grace)) {
        return false;
    }
    let skipped = word.with_nx(word.nx().wrapping_add(1));
    if ctx.cas(word.into_bits(), skipped.into_bits()) {
        state.fair.head_since = None;
    }
    true
}

/// Every ticket before the exclusive head is done.
fn served_head(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    word: FairWord,
    head: Claim,
    wanted: bool,
) -> bool {
    let behind = word.mx().wrapping_sub(word.nx()) > 1 || word.ms() != head.ticket.ts;
    match head.kind {
        Kind::Waiting => grant(ctx, state, word, head),
        _ if !behind => false,
        Kind::Held { deadline_s } | Kind::Leaving { deadline_s } => {
            let early = u32::from(planted::is(Bug::FairTakeoverEarly));
            let expiry = ServerTime::expiry_of(deadline_s - early);
            reached(ctx, expiry) && wanted && end(ctx, state, word, head)
        }
        Kind::Queued | Kind::Issued => {
            outstayed(ctx, state, head) && wanted && end(ctx, state, word, head)
        }
        Kind::Cancelled => end(ctx, state, word, head),
    }
}

/// Shared tickets before the exclusive head (its `ts`) are not done.
fn blocked_head(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    word: FairWord,
    claims: &[Claim],
    ts: u16,
    since: ServerTime,
) -> bool {
    let need = ts.wrapping_sub(word.ns());
    if need > 0x7fff {
        // more shared tickets done than taken before the head: a client forged the word
        return ctx.cas(word.into_bits(), word.with_ns(ts).into_bits());
    }
    let mut known: u16 = 0;
    for claim in claims.iter().filter(|c| c.mode == Mode::Shared && before(c.ticket.ts, ts)) {
        if claim_is_over(ctx, state, word, *claim) {
            return true;
        }
        known = known.saturating_add(1);
    }
    let unknown = need.saturating_sub(known);
    if unknown > 0 && reached(ctx, since.plus_ns(GRACE_NS)) {
        pass_over(ctx, state, word, claims, ts, unknown);
        return true;
    }
    let again = ctx.now.plus_ns(GRACE_NS);
    ctx.wake_at(again);
    false
}

/// Takes off the shares before the shared ticket `ts` that nobody has claimed for a grace.
fn pass_over(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    word: FairWord,
    claims: &[Claim],
    ts: u16,
    unknown: u16,
) {
    let ns = word.ns().wrapping_add(unknown);
    if ctx.cas(word.into_bits(), word.with_ns(ns).into_bits()) {
        let shared = claims.iter().filter(|c| c.mode == Mode::Shared);
        let claimed = shared.map(|c| (c.client, c.ticket)).collect();
        state.fair.passed_over = Some(PassedOver { before: ts, claimed });
    }
}

/// Ends a share that has outstayed its time; true if something was changed.
fn claim_is_over(ctx: &mut Ctx<'_>, state: &mut LockState, word: FairWord, claim: Claim) -> bool {
    match claim.kind {
        Kind::Held { deadline_s } => {
            reached(ctx, ServerTime::expiry_of(deadline_s)) && end(ctx, state, word, claim)
        }
        Kind::Leaving { deadline_s } => {
            if !reached(ctx, ServerTime::expiry_of(deadline_s)) {
                return false;
            }
            // released or not: the count of the known ones tells after the grace
            state.fair.revoke(claim.client, claim.mode, claim.ticket, ctx.is_relayed(claim.client));
            true
        }
        Kind::Queued | Kind::Issued => outstayed(ctx, state, claim) && end(ctx, state, word, claim),
        Kind::Waiting | Kind::Cancelled => false,
    }
}

/// Readers beyond the limit wait for other readers alone: those whose lease is over make room,
/// and those that nobody has claimed for a grace.
fn over_the_reader_limit(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    word: FairWord,
    claims: &[Claim],
) -> bool {
    let waiting = claims.iter().any(|c| c.mode == Mode::Shared && c.kind == Kind::Waiting);
    if !waiting {
        state.fair.crowd = None;
        return false;
    }
    for claim in claims.iter().filter(|c| c.mode == Mode::Shared) {
        if matches!(claim.kind, Kind::Held { .. }) && claim_is_over(ctx, state, word, *claim) {
            return true;
        }
    }
    let (since, ts) = *state.fair.crowd.get_or_insert((ctx.now, word.ms()));
    if !reached(ctx, since.plus_ns(GRACE_NS)) {
        return false;
    }
    state.fair.crowd = None;
    let known = claims.iter().filter(|c| c.mode == Mode::Shared && before(c.ticket.ts, ts));
    let unknown = ts.wrapping_sub(word.ns()).saturating_sub(known.count() as u16);
    if (1..=0x7fff).contains(&unknown) {
        pass_over(ctx, state, word, claims, ts, unknown);
    }
    true
}
