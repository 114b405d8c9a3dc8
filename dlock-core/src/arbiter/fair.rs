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
//!
//! A *relayed* client, whose verbs this primary executes, has one live ticket at a time, known
//! here from when it was taken until it is done or given up: nothing its ledger or its requests
//! say of any other ticket counts.

#[path = "fair_queue.rs"]
mod queue;
#[path = "fair_state.rs"]
mod state;

use super::{cancel_wait, drop_waits, end_earlier_wait, Caller, Ctx, LockState, Waiter};
use crate::ids::{ClientId, Handle};
use crate::limits::{FAIR_LANE_MAX, FAIR_QUEUE_MAX, FAIR_READERS_MAX};
use crate::message::{Mode, Reply, Request, WaitNumber};
use crate::planted::{self, Bug};
use crate::status::Status;
use crate::words::{before, FairWord, LedgerEntry, LedgerState, Ticket};

pub(super) use queue::advance;
pub(super) use state::FairState;
use state::{PassedOver, Record, RecordStatus, PASSED_OVER_MAX};

/// Whether a client may add this to a lock's word. `state`: of a relayed client.
pub(super) fn may_take(
    state: Option<&FairState>,
    client: ClientId,
    seen: u64,
    add: u64,
) -> Result<(), Status> {
    let w = FairWord::from_bits(seen);
    // a lane must never carry into the next, nor count more tickets than can be told apart
    let has_room =
        |next: u16, done: u16| next < FAIR_LANE_MAX && next.wrapping_sub(done) <= FAIR_QUEUE_MAX;
    let room = match add {
        FairWord::TAKE_EXCLUSIVE => has_room(w.mx(), w.nx()),
        FairWord::TAKE_SHARED => has_room(w.ms(), w.ns()),
        _ => return Err(Status::Invalid),
    };
    let is_greedy = state.is_some_and(|state| state.has_given_up_too_many(client));
    (room && !is_greedy).then_some(()).ok_or(Status::Fail)
}

/// Whether a client may change the word so: one ticket is done, and nobody is behind it. `live`:
/// what a relayed client has.
pub(super) fn may_finish(
    expect: u64,
    swap: u64,
    live: Option<Option<(Mode, Ticket)>>,
) -> Result<(), Status> {
    let (old, new) = (FairWord::from_bits(expect), FairWord::from_bits(swap));
    let mode = match (old.mx().wrapping_sub(old.nx()), old.ms().wrapping_sub(old.ns())) {
        (1, 0) if new == old.with_nx(old.nx().wrapping_add(1)) => Mode::Exclusive,
        (0, 1..=FAIR_READERS_MAX) if new == old.with_ns(old.ns().wrapping_add(1)) => Mode::Shared,
        _ => return Err(Status::Invalid),
    };
    let is_its_own = live.is_none_or(|live| {
        live.is_some_and(|(its, ticket)| {
            its == mode && (mode == Mode::Shared || ticket.tx == old.nx())
        })
    });
    is_its_own.then_some(()).ok_or(Status::Invalid)
}

/// What a client's ledger says, as far as it counts: of a relayed client the ticket it has.
fn told(ctx: &mut Ctx<'_>, fair: &FairState, client: ClientId, handle: Handle) -> LedgerEntry {
    let entry = ctx.ledger(client, handle);
    if !ctx.is_relayed(client) {
        return entry;
    }
    match (named(entry), fair.live.get(&client)) {
        // it has not left: that would be known
        (Some(named), Some(live)) if named == *live => match entry.state() {
            LedgerState::Leaving => entry.with_state(LedgerState::HeldShared),
            _ => entry,
        },
        _ => LedgerEntry::new(),
    }
}

/// Whether this ticket is the client's, as far as can be known: a client that operates on the
/// words itself may have taken one that no ledger names yet, or any more.
fn owns(ctx: &mut Ctx<'_>, fair: &mut FairState, from: Caller, mode: Mode, ticket: Ticket) -> bool {
    if ctx.is_relayed(from.client) {
        return fair.live.get(&from.client) == Some(&(mode, ticket));
    }
    if fair.is_revoked(from.client, mode, ticket) {
        return false;
    }
    named(ctx.ledger(from.client, from.handle)) == Some((mode, ticket))
        || fair.record(from.client, mode, ticket).is_some()
        || !is_anothers(ctx, fair, from.client, mode, ticket)
}

/// Whether it is known that another client has, or has given up, the ticket of this number.
fn is_anothers(
    ctx: &mut Ctx<'_>,
    fair: &FairState,
    client: ClientId,
    mode: Mode,
    ticket: Ticket,
) -> bool {
    let is_same = |its: Mode, other: Ticket| match mode {
        Mode::Exclusive => its == mode && other.tx == ticket.tx,
        Mode::Shared => its == mode && other.ts == ticket.ts,
    };
    let is_given_up = |r: &Record| r.status == RecordStatus::Cancelled;
    if fair
        .records
        .iter()
        .any(|r| (r.client != client || is_given_up(r)) && is_same(r.mode, r.ticket))
        || fair.live.iter().any(|(&c, &(its, other))| c != client && is_same(its, other))
    {
        return true;
    }
    for &(other, handle) in ctx.lock.refs {
        if other != client && !ctx.is_relayed(other) {
            let named = named(ctx.ledger(other, handle));
            let is_over = |(its, t)| fair.is_revoked(other, its, t);
            if named.is_some_and(|(its, t)| is_same(its, t) && !is_over((its, t))) {
                return true;
            }
        }
    }
    false
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
                state.fair.waits_no_more(from.client);
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
    end_earlier_wait(ctx, state, a.from.client);
    if passed || !issued || !owns(ctx, &mut state.fair, a.from, a.mode, a.ticket) {
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
        // asked again: its answer was lost, and the lease asked for may be a longer one by now
        let deadline_s = match planted::is(Bug::AskedAgainShort) {
            true => deadline_s,
            false => deadline_s.max(ctx.now.deadline(a.expire_s)),
        };
        record.status = RecordStatus::Granted { deadline_s };
        ctx.granted(a.from, word.into_bits(), deadline_s, Some(a.ticket));
        return;
    }
    record.status = RecordStatus::Waiting;
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
    end_earlier_wait(ctx, state, from.client);
    if state.fair.has_given_up_too_many(from.client) {
        return ctx.denied(from, Status::Fail);
    }
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
    if ctx.is_relayed(from.client) {
        state.fair.has_taken(from.client, mode, ticket);
    }
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
    let word = FairWord::from_bits(ctx.read());
    if before(word.nx(), ticket.tx) || !owns(ctx, &mut state.fair, from, Mode::Shared, ticket) {
        return false;
    }
    if ctx.is_relayed(from.client) {
        return true;
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
        Mode::Exclusive => owns(ctx, &mut state.fair, from, mode, ticket),
        Mode::Shared => holds_share(ctx, state, from, ticket),
    };
    let mine = mine || planted::is(Bug::FairReleaseUnchecked);
    match mine.then(|| one_more_done(ctx, mode, ticket)).flatten() {
        Some(_) => {
            state.fair.revoke(from.client, mode, ticket, ctx.is_relayed(from.client));
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
    let entry = told(ctx, &state.fair, from.client, from.handle);
    let by_record = match state.fair.record(from.client, mode, ticket).map(|r| r.status) {
        Some(RecordStatus::Granted { deadline_s }) => Some(deadline_s),
        _ => None,
    };
    let held = matches!(entry.state(), LedgerState::HeldExclusive | LedgerState::HeldShared);
    let by_ledger =
        (held && named(entry) == Some((mode, ticket))).then(|| entry.deadline_s(ctx.anchor_s));
    let w = FairWord::from_bits(word);
    let served = match mode {
        Mode::Exclusive => (w.nx(), w.ns()) == (ticket.tx, ticket.ts),
        Mode::Shared => !before(w.nx(), ticket.tx),
    };
    let old = by_record.max(by_ledger);
    let mine = owns(ctx, &mut state.fair, from, mode, ticket);
    let (Some(old), true, true) = (old, served, mine) else {
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
    let word = FairWord::from_bits(ctx.read());
    let is_out = match mode {
        Mode::Exclusive => before(ticket.tx, word.mx()) && !before(ticket.tx, word.nx()),
        Mode::Shared => before(ticket.ts, word.ms()),
    };
    if !is_out || !owns(ctx, &mut state.fair, from, mode, ticket) {
        return;
    }
    end_earlier_wait(ctx, state, from.client);
    if ctx.is_relayed(from.client) {
        state.fair.live.remove(&from.client);
    } else if state.fair.has_given_up_too_many(from.client) {
        return; // it is skipped all the same, after the grace
    }
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
    drop_waits(state, client);
    if ctx.is_relayed(client) {
        state.fair.drop_records(client);
        if let Some((mode, ticket)) = state.fair.live.remove(&client) {
            state.fair.cancelled(client, mode, ticket); // `advance` ends it at its turn, or now
        }
        return;
    }
    let entry = ctx.ledger(client, handle);
    let revoked = state.fair.revoked.remove(&client).unwrap_or_default();
    let void = |mode, ticket| mode == Mode::Shared && state.fair.is_passed_over(client, ticket);
    let by_ledger = named(entry).filter(|&(m, t)| {
        let is_revoked = revoked.iter().any(|r| (r.mode, r.ticket) == (m, t));
        !is_revoked && !void(m, t) || planted::is(Bug::FairUndoTwice)
    });
    let record = state
        .fair
        .records
        .iter()
        .find(|r| r.client == client && r.status != RecordStatus::Cancelled)
        .copied();
    state.fair.drop_records(client);
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
            _ => state.fair.cancelled(client, mode, ticket),
        }
    }
    let Some(r) = record.filter(|r| Some((r.mode, r.ticket)) != named(entry)) else { return };
    match r.status {
        // an exclusive grant the ledger does not show yet; one that it has dropped has passed
        RecordStatus::Granted { .. } if r.mode == Mode::Exclusive => {
            one_more_done(ctx, r.mode, r.ticket);
        }
        RecordStatus::Granted { .. } => {} // a share the ledger has dropped is released
        _ => state.fair.cancelled(client, r.mode, r.ticket),
    }
}

/// The client's wait was dropped, its ticket stays.
pub(super) fn waits_dropped(ctx: &mut Ctx<'_>, state: &mut LockState, client: ClientId) {
    state.fair.waits_no_more(client);
    advance(ctx, state);
}

pub(super) fn forget(ctx: &mut Ctx<'_>, state: &mut LockState, client: ClientId, handle: Handle) {
    undo(ctx, state, client, handle);
    advance(ctx, state);
}

/// A note of a tcp client arrived: its ledger says now what the record had to say before.
pub(super) fn noted(state: &mut FairState, client: ClientId) {
    state.records.retain(|r| r.client != client || r.status != RecordStatus::Issued);
}
