// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fair lock, arbiter side: requests. What happens to the queue is in [`queue`].
//!
//! The word alone says whose turn it is; ledgers and the records here say who has which ticket:
//!
//! | status | known from | ends |
//! |---|---|---|
//! | Issued | a chain this primary executed | with the client's next note |
//! | Queued | ledger, or a request | granted by `Poll`; passed over after a grace at its turn |
//! | Waiting | `Wait` | granted by push |
//! | Granted | this arbiter | released, or taken over after its deadline |
//! | Cancelled | `Abandon`, a gone client | skipped at its turn |
//!
//! A ticket that the arbiter ended is remembered as *revoked* until its client's ledger has
//! dropped it, so that nothing is undone twice and a late request is refused.

#[path = "fair_queue.rs"]
mod queue;

use std::collections::BTreeMap;

use super::{cancel_wait, Caller, Ctx, LockState, Waiter};
use crate::clock::ServerTime;
use crate::ids::{ClientId, Handle};
use crate::limits::FAIR_QUEUE_MAX;
use crate::message::{Mode, Reply, Request, WaitNumber};
use crate::planted::{self, Bug};
use crate::status::Status;
use crate::words::{before, FairWord, LedgerEntry, LedgerState, Ticket};

pub(super) use queue::advance;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordStatus {
    Issued,
    Queued,
    Waiting,
    Granted { deadline_s: u32 },
    Cancelled,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    client: ClientId,
    mode: Mode,
    ticket: Ticket,
    status: RecordStatus,
    /// When it was first seen at its turn (`Queued`), or taken (`Issued`).
    since: Option<ServerTime>,
}

/// A ticket this arbiter ended.
#[derive(Clone, Copy, Debug)]
struct Revoked {
    mode: Mode,
    ticket: Ticket,
    /// The client's ledger was seen to name it: once it does no more, it can be forgotten.
    seen: bool,
}

impl Revoked {
    /// Whether this ticket was taken before that one of the same client.
    fn is_before(&self, other: Ticket) -> bool {
        let Ticket { tx, ts } = self.ticket;
        other != self.ticket && !before(other.tx, tx) && !before(other.ts, ts)
    }

    /// Whether no request can name it that would do harm. A shared ticket may still be given up
    /// by a request that comes behind the note, and the count would not show that it was ended.
    fn is_settled(&self, word: FairWord) -> bool {
        let done_since = word.ns().wrapping_sub(self.ticket.ts);
        self.mode == Mode::Exclusive
            || (PASSED_OVER_MAX..0x8000).contains(&done_since)
            || planted::is(Bug::FairAbandonTwice)
    }
}

/// Shared tickets that were passed over because nobody claimed them.
#[derive(Debug)]
struct PassedOver {
    /// The first shared ticket that was not.
    before: u16,
    /// Who had claimed an earlier one by then. A claim of an earlier ticket that comes later is
    /// void: its share was taken off already.
    claimed: Vec<(ClientId, Ticket)>,
}

/// Shared tickets done after which a passed-over one is forgotten: lanes compare modulo 2^16.
const PASSED_OVER_MAX: u16 = 0x4000;

#[derive(Debug, Default)]
pub(super) struct FairState {
    records: Vec<Record>,
    revoked: BTreeMap<ClientId, Revoked>,
    passed_over: Option<PassedOver>,
    /// Since when readers wait for other readers alone, and the next shared ticket then.
    crowd: Option<(ServerTime, u16)>,
    /// When the exclusive ticket `head` was first seen at the head of the queue. Two fields, so
    /// that no compiler reads a number that is not there (valgrind would report it).
    head_since: Option<ServerTime>,
    head: u16,
}

impl FairState {
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.revoked.is_empty() && self.passed_over.is_none()
    }

    /// A chain of a tcp client took a ticket.
    pub(super) fn issued(&mut self, client: ClientId, mode: Mode, ticket: Ticket) {
        self.revoked.remove(&client);
        self.records.retain(|r| r.client != client || r.status == RecordStatus::Cancelled);
        let status = RecordStatus::Issued;
        self.records.push(Record { client, mode, ticket, status, since: None });
    }

    fn record(&mut self, client: ClientId, mode: Mode, ticket: Ticket) -> Option<&mut Record> {
        self.records.iter_mut().find(|r| {
            r.client == client
                && r.mode == mode
                && r.ticket == ticket
                && r.status != RecordStatus::Cancelled
        })
    }

    /// The record of this ticket; a client has one live ticket at a time.
    fn upsert(&mut self, from: Caller, mode: Mode, ticket: Ticket) -> &mut Record {
        let client = from.client;
        let revoked = self.revoked.get(&client);
        if revoked.is_some_and(|r| r.is_before(ticket)) {
            self.revoked.remove(&client); // its requests come in order: none names that any more
        }
        let same = |r: &Record| r.mode == mode && r.ticket == ticket;
        self.records
            .retain(|r| r.client != client || r.status == RecordStatus::Cancelled || same(r));
        let at = self
            .records
            .iter()
            .position(|r| r.client == client && same(r) && r.status != RecordStatus::Cancelled);
        let at = at.unwrap_or_else(|| {
            let status = RecordStatus::Queued;
            self.records.push(Record { client, mode, ticket, status, since: None });
            self.records.len() - 1
        });
        &mut self.records[at]
    }

    fn is_revoked(&self, client: ClientId, mode: Mode, ticket: Ticket) -> bool {
        let revoked = self.revoked.get(&client);
        revoked.is_some_and(|r| r.mode == mode && r.ticket == ticket)
            || mode == Mode::Shared && self.is_passed_over(client, ticket)
    }

    fn is_passed_over(&self, client: ClientId, ticket: Ticket) -> bool {
        self.passed_over.as_ref().is_some_and(|passed| {
            before(ticket.ts, passed.before)
                && !passed.claimed.contains(&(client, ticket))
                && !planted::is(Bug::PassedOverForgotten)
        })
    }

    fn revoke(&mut self, client: ClientId, mode: Mode, ticket: Ticket) {
        self.records.retain(|r| {
            !(r.client == client
                && r.mode == mode
                && r.ticket == ticket
                && r.status != RecordStatus::Cancelled)
        });
        self.revoked.insert(client, Revoked { mode, ticket, seen: false });
    }
}

/// The mode and ticket a ledger entry of a fair lock names.
fn named(entry: LedgerEntry) -> Option<(Mode, Ticket)> {
    let mode = match entry.state() {
        LedgerState::HeldExclusive | LedgerState::TicketExclusive => Mode::Exclusive,
        LedgerState::HeldShared | LedgerState::TicketShared | LedgerState::Leaving => Mode::Shared,
        LedgerState::None | LedgerState::Intent | LedgerState::Waiting => return None,
    };
    Some((mode, entry.ticket()))
}

pub(super) fn request(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller, request: Request) {
    match request {
        Request::Wait { mode, expire_s, wait, ticket: Some(ticket), .. } => {
            ask(ctx, state, Ask { from, mode, ticket, expire_s, wait: Some(wait) });
        }
        Request::Poll { mode, ticket, expire_s, .. } => {
            ask(ctx, state, Ask { from, mode, ticket, expire_s, wait: None });
        }
        Request::Cancel { wait, .. } => {
            advance(ctx, state);
            if cancel_wait(ctx, state, from, wait) {
                for r in &mut state.fair.records {
                    if r.client == from.client && r.status == RecordStatus::Waiting {
                        r.status = RecordStatus::Queued;
                    }
                }
            }
            let word = ctx.read();
            ctx.answer(from, Reply::Done { word });
        }
        Request::TakeTicket { mode, expire_s, .. } => take_ticket(ctx, state, from, mode, expire_s),
        Request::Abandon { mode, ticket, .. } => abandon(ctx, state, from, mode, ticket),
        Request::Release { mode, ticket: Some(ticket), .. } => {
            release(ctx, state, from, mode, ticket);
        }
        Request::Extend { mode, ticket, expire_s, .. } => {
            advance(ctx, state);
            extend(ctx, state, from, mode, ticket, expire_s);
        }
        Request::Resolve { .. } => {
            undo(ctx, state, from.client, from.handle);
            ctx.mem.clear_ledger(from.client, from.handle);
            let word = ctx.read();
            ctx.answer(from, Reply::Done { word });
        }
        Request::Wake { .. } => {}
        _ => ctx.denied(from, Status::Invalid),
    }
    advance(ctx, state);
}

struct Ask {
    from: Caller,
    mode: Mode,
    ticket: Ticket,
    expire_s: u32,
    wait: Option<WaitNumber>,
}

/// Is it this ticket's turn? Without a wait number the answer comes at once.
fn ask(ctx: &mut Ctx<'_>, state: &mut LockState, a: Ask) {
    let word = FairWord::from_bits(ctx.read());
    let passed = a.mode == Mode::Exclusive && before(a.ticket.tx, word.nx());
    let issued = match a.mode {
        Mode::Exclusive => before(a.ticket.tx, word.mx()),
        Mode::Shared => before(a.ticket.ts, word.ms()),
    };
    if passed || !issued || state.fair.is_revoked(a.from.client, a.mode, a.ticket) {
        ctx.denied(a.from, Status::Fail);
        return;
    }
    // a share that no ledger names would be taken for a released one: its note was lost, or an
    // `Abandon` is on its way
    let entry = ctx.ledger(a.from.client, a.from.handle);
    let is_named = named(entry) == Some((a.mode, a.ticket));
    if a.mode == Mode::Shared && !is_named {
        return ctx.denied(a.from, Status::Fail);
    }
    let record = state.fair.upsert(a.from, a.mode, a.ticket);
    if let RecordStatus::Granted { deadline_s } = record.status {
        ctx.granted(a.from, word.into_bits(), deadline_s, Some(a.ticket)); // asked again
        return;
    }
    record.status = RecordStatus::Waiting;
    state.queue.retain(|w| w.caller.client != a.from.client);
    let wait = a.wait.unwrap_or(WaitNumber(0));
    let waiter = Waiter { caller: a.from, wait, mode: a.mode, expire_s: a.expire_s };
    state.queue.push_back(waiter);
    advance(ctx, state);
    if a.wait.is_some() {
        return;
    }
    let queued = state.queue.iter().position(|w| w.caller == a.from);
    if let Some(at) = queued {
        state.queue.remove(at);
        if let Some(record) = state.fair.record(a.from.client, a.mode, a.ticket) {
            record.status = RecordStatus::Queued;
            record.since = None;
        }
        let word = ctx.read();
        ctx.answer(a.from, Reply::Queued { word, ticket: a.ticket });
    }
}

/// Adds to one lane by compare-and-swap, so that it wraps by itself.
fn take_ticket(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller, mode: Mode, expire_s: u32) {
    let mut old = FairWord::new();
    let new = ctx.update(|seen| {
        let w = FairWord::from_bits(seen);
        old = w;
        let full = w.mx().wrapping_sub(w.nx()) >= FAIR_QUEUE_MAX
            || w.ms().wrapping_sub(w.ns()) >= FAIR_QUEUE_MAX;
        if planted::is(Bug::ArbiterLanesCarry) {
            let add = match mode {
                Mode::Exclusive => FairWord::TAKE_EXCLUSIVE,
                Mode::Shared => FairWord::TAKE_SHARED,
            };
            return Some(seen.wrapping_add(add));
        }
        let taken = match mode {
            Mode::Exclusive => w.with_mx(w.mx().wrapping_add(1)),
            Mode::Shared => w.with_ms(w.ms().wrapping_add(1)),
        };
        (!full).then(|| taken.into_bits())
    });
    let Some(word) = new else { return ctx.denied(from, Status::Fail) };
    let ticket = Ticket { tx: old.mx(), ts: old.ms() };
    state.fair.revoked.remove(&from.client);
    let record = state.fair.upsert(from, mode, ticket);
    record.status = RecordStatus::Queued;
    // a shared grant is only given to a client whose ledger names the ticket already
    if mode == Mode::Exclusive && old.nx() == old.mx() && old.ns() == old.ms() {
        let deadline_s = ctx.now.deadline(expire_s);
        record.status = RecordStatus::Granted { deadline_s };
        return ctx.granted(from, word, deadline_s, Some(ticket));
    }
    ctx.answer(from, Reply::Queued { word, ticket });
}

fn one_more_done(ctx: &mut Ctx<'_>, mode: Mode, ticket: Ticket) -> Option<u64> {
    ctx.update(|seen| {
        let w = FairWord::from_bits(seen);
        match mode {
            Mode::Exclusive if w.nx() == ticket.tx && w.mx() != w.nx() => {
                Some(w.with_nx(w.nx().wrapping_add(1)).into_bits())
            }
            Mode::Shared if w.ms() != w.ns() => Some(w.with_ns(w.ns().wrapping_add(1)).into_bits()),
            _ => None,
        }
    })
}

/// Whether the client's share under this ticket is outstanding for sure.
fn holds_share(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller, ticket: Ticket) -> bool {
    if state.fair.is_revoked(from.client, Mode::Shared, ticket) {
        return false;
    }
    let entry = ctx.ledger(from.client, from.handle);
    let named = named(entry) == Some((Mode::Shared, ticket));
    let record = state.fair.record(from.client, Mode::Shared, ticket).map(|r| r.status);
    match entry.state() {
        LedgerState::HeldShared | LedgerState::Leaving => named,
        LedgerState::TicketShared => named && matches!(record, Some(RecordStatus::Granted { .. })),
        _ => false,
    }
}

fn release(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller, mode: Mode, ticket: Ticket) {
    let mine = match mode {
        Mode::Exclusive => !state.fair.is_revoked(from.client, mode, ticket),
        Mode::Shared => holds_share(ctx, state, from, ticket),
    };
    let mine = mine || planted::is(Bug::FairReleaseUnchecked);
    match mine.then(|| one_more_done(ctx, mode, ticket)).flatten() {
        Some(_) => {
            state.fair.revoke(from.client, mode, ticket);
            advance(ctx, state);
            let word = ctx.read();
            ctx.answer(from, Reply::Done { word });
        }
        None => ctx.denied(from, Status::Fail),
    }
}

fn extend(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    from: Caller,
    mode: Mode,
    ticket: Ticket,
    expire_s: u32,
) {
    let word = ctx.read();
    let entry = ctx.ledger(from.client, from.handle);
    let by_record = match state.fair.record(from.client, mode, ticket).map(|r| r.status) {
        Some(RecordStatus::Granted { deadline_s }) => Some(deadline_s),
        _ => None,
    };
    let held = matches!(entry.state(), LedgerState::HeldExclusive | LedgerState::HeldShared);
    let by_ledger =
        (held && named(entry) == Some((mode, ticket))).then(|| entry.deadline_s(ctx.anchor_s));
    let served = mode == Mode::Shared || FairWord::from_bits(word).nx() == ticket.tx;
    let old = by_record.max(by_ledger);
    let revoked = state.fair.is_revoked(from.client, mode, ticket);
    let (Some(old), true, false) = (old, served, revoked) else {
        return ctx.denied(from, Status::Fail);
    };
    let deadline_s = match expire_s {
        0 => old,
        _ => old.max(ctx.now.deadline(expire_s)),
    };
    state.fair.upsert(from, mode, ticket).status = RecordStatus::Granted { deadline_s };
    ctx.granted(from, word, deadline_s, Some(ticket));
}

/// The client gives its place up. If it was granted meanwhile, the grant is undone at once.
fn abandon(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller, mode: Mode, ticket: Ticket) {
    if state.fair.is_revoked(from.client, mode, ticket) {
        return;
    }
    state.queue.retain(|w| w.caller.client != from.client);
    let record = state.fair.upsert(from, mode, ticket);
    let granted = matches!(record.status, RecordStatus::Granted { .. });
    record.status = RecordStatus::Cancelled;
    if granted {
        state.fair.records.retain(|r| !(r.client == from.client && r.ticket == ticket));
        one_more_done(ctx, mode, ticket);
    }
}

/// Undoes everything the client has of this lock, as far as it is known for sure. A share of
/// which it is not known whether it was released is left to the count of those that are.
fn undo(ctx: &mut Ctx<'_>, state: &mut LockState, client: ClientId, handle: Handle) {
    state.queue.retain(|w| w.caller.client != client);
    let entry = ctx.ledger(client, handle);
    let revoked = state.fair.revoked.remove(&client).map(|r| (r.mode, r.ticket));
    let void = |mode, ticket| mode == Mode::Shared && state.fair.is_passed_over(client, ticket);
    let by_ledger = named(entry).filter(|&(m, t)| {
        revoked != Some((m, t)) && !void(m, t) || planted::is(Bug::FairUndoTwice)
    });
    let record = state
        .fair
        .records
        .iter()
        .find(|r| r.client == client && r.status != RecordStatus::Cancelled)
        .copied();
    state.fair.records.retain(|r| r.client != client || r.status == RecordStatus::Cancelled);
    if let Some((mode, ticket)) = by_ledger {
        let granted = record.is_some_and(|r| {
            r.ticket == ticket && r.mode == mode && matches!(r.status, RecordStatus::Granted { .. })
        });
        match entry.state() {
            LedgerState::HeldExclusive | LedgerState::HeldShared => {
                one_more_done(ctx, mode, ticket);
            }
            LedgerState::Leaving => {}
            _ if granted => {
                one_more_done(ctx, mode, ticket);
            }
            _ => cancelled(state, client, mode, ticket),
        }
    }
    let Some(r) = record.filter(|r| Some((r.mode, r.ticket)) != named(entry)) else { return };
    match r.status {
        // an exclusive grant the ledger does not show yet; one that it has dropped has passed
        RecordStatus::Granted { .. } if r.mode == Mode::Exclusive => {
            one_more_done(ctx, r.mode, r.ticket);
        }
        RecordStatus::Granted { .. } => {} // a share the ledger has dropped is released
        _ => cancelled(state, client, r.mode, r.ticket),
    }
}

fn cancelled(state: &mut LockState, client: ClientId, mode: Mode, ticket: Ticket) {
    let status = RecordStatus::Cancelled;
    state.fair.records.push(Record { client, mode, ticket, status, since: None });
}

pub(super) fn forget(ctx: &mut Ctx<'_>, state: &mut LockState, client: ClientId, handle: Handle) {
    undo(ctx, state, client, handle);
    advance(ctx, state);
}

/// A note of a tcp client arrived: its ledger says now what the record had to say before.
pub(super) fn noted(state: &mut FairState, client: ClientId) {
    state.records.retain(|r| r.client != client || r.status != RecordStatus::Issued);
}
