// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fair lock, arbiter side: requests. What happens to the queue is in [`queue`].
//!
//! The word alone says whose turn it is; ledgers and the records here say who has which ticket:
//!
//! | status | known from | ends |
//! |---|---|---|
//! | Issued | a chain this primary executed that noted nothing | with the client's next note |
//! | Queued | ledger, or a request | granted by `Poll`; passed over after a grace at its turn |
//! | Claimed | ledger, at its turn | released, or taken over after its deadline and a grace |
//! | Waiting | `Wait` | granted by push |
//! | Granted | this arbiter | released, or taken over after its deadline |
//! | given up | `Abandon`, its client's ledger, a gone client | skipped at its turn |
//!
//! A ticket is a client's if its ledger names it, or if this arbiter gave it out and remembers it:
//! no request is believed otherwise. A ticket that the arbiter ended is remembered as *revoked*
//! until its client's ledger has dropped it, so that nothing is undone twice and a late request is
//! refused. That no number is two clients' at a time is the lap rule's doing ([`lap`]).
//!
//! A *proxied* client, whose verbs this primary executes, has one live ticket at a time, known
//! here from when it was taken until it is done or given up: nothing its requests say of any other
//! ticket counts, and its ledger names no other ([`has_no_more`], [`as_noted`]). So nothing that is
//! over counts when the client goes over to another fabric, where its ledger tells by itself.

#[path = "fair_lap.rs"]
mod lap;
#[path = "fair_queue.rs"]
mod queue;
#[path = "fair_relay.rs"]
pub(super) mod relay;
#[path = "fair_state.rs"]
mod state;
#[path = "fair_suspects.rs"]
mod suspects;
#[path = "fair_undo.rs"]
mod undo;

use super::confirm::confirm;
use super::{cancel_wait, end_earlier_wait, Caller, Ctx, LockState, Waiter, ROUNDS_MAX};
use crate::ids::{ClientId, Handle};
use crate::lane;
use crate::limits::FAIR_READERS_MAX;
use crate::message::{Mode, Reply, Request, WaitNumber};
use crate::planted::{self, Bug};
use crate::status::Status;
use crate::words::{FairWord, LedgerEntry, LedgerState, Ticket};

pub(super) use queue::advance;
pub use queue::WORK_MAX;
pub(super) use state::FairState;
use state::{Crowd, Record, RecordStatus};
pub(super) use undo::{forget, gives_up_live, has_no_more, lapse};
use undo::{revoke, undo};

/// Clients that were between intent and publication, and what their ledgers said.
type Intents = std::collections::BTreeMap<ClientId, LedgerEntry>;

/// Whether a client may add this to a lock's word. `state`: of a proxied client.
pub(super) fn may_take(
    state: Option<&FairState>,
    client: ClientId,
    seen: u64,
    add: u64,
) -> Result<(), Status> {
    let w = FairWord::from_bits(seen);
    // a lane must never carry into the next, nor count more tickets than can be told apart
    let has_room = |next: u16, open: u16| next < lane::ring() && open <= lane::queue_max();
    let open_exclusive = if w.is_relayed() { 0 } else { w.open_exclusive() };
    let room = match add {
        FairWord::TAKE_EXCLUSIVE => has_room(w.mx(), open_exclusive),
        FairWord::TAKE_SHARED => has_room(w.ms(), w.open_shared()),
        _ => return Err(Status::Invalid),
    };
    let is_greedy = state.is_some_and(|state| state.has_given_up_too_many(client));
    (room && !is_greedy).then_some(()).ok_or(Status::Fail)
}

/// Whether a client may change the word so: one ticket is done, and nobody is behind it. `live`:
/// what a proxied client has.
pub(super) fn may_finish(
    expect: u64,
    swap: u64,
    live: Option<Option<(Mode, Ticket)>>,
) -> Result<(), Status> {
    let (old, new) = (FairWord::from_bits(expect), FairWord::from_bits(swap));
    let mode = match (old.open_exclusive(), old.open_shared()) {
        (1, 0) if new == old.exclusive_done() => Mode::Exclusive,
        (0, 1..=FAIR_READERS_MAX) if new == old.shared_done(1) => Mode::Shared,
        _ => return Err(Status::Invalid),
    };
    let is_its_own = live.is_none_or(|live| {
        live.is_some_and(|(its, ticket)| {
            its == mode && (mode == Mode::Shared || ticket.tx == old.nx())
        })
    });
    is_its_own.then_some(()).ok_or(Status::Invalid)
}

/// Whether the exclusive ticket that is done with this word was ended before.
pub(super) fn is_ended(fair: &FairState, client: ClientId, expect: u64) -> bool {
    let w = FairWord::from_bits(expect);
    w.open_exclusive() > 0 && fair.has_ended(client, w.nx())
}

/// What a client's ledger says, as far as it counts: of a proxied client the ticket it has.
pub(super) fn told(
    ctx: &mut Ctx<'_>,
    fair: &FairState,
    client: ClientId,
    handle: Handle,
) -> LedgerEntry {
    let entry = ctx.ledger(client, handle);
    if !ctx.is_proxied(client) {
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

/// Whether this ticket is the client's: its ledger names it, or it was given out here, and it was
/// not ended. A proxied client has the one that is known.
fn owns(ctx: &mut Ctx<'_>, fair: &mut FairState, from: Caller, mode: Mode, ticket: Ticket) -> bool {
    if ctx.is_proxied(from.client) {
        return fair.live.get(&from.client) == Some(&(mode, ticket));
    }
    !fair.is_revoked(from.client, mode, ticket)
        && (named(ctx.ledger(from.client, from.handle)) == Some((mode, ticket))
            || fair.record(from.client, mode, ticket).is_some())
}

/// Whether this is the ledger entry of the ticket that a compare-and-swap of this word has ended.
pub(super) fn is_done(expected: FairWord, entry: LedgerEntry) -> bool {
    match (expected.open_exclusive(), named(entry)) {
        (0, Some((Mode::Shared, _))) => entry.state() == LedgerState::Leaving,
        (0, _) | (_, None) => false,
        (_, Some((mode, ticket))) => mode == Mode::Exclusive && ticket.tx == expected.nx(),
    }
}

/// The mode and ticket a ledger entry of a fair lock names.
pub(super) fn named(entry: LedgerEntry) -> Option<(Mode, Ticket)> {
    let mode = match entry.state() {
        LedgerState::HeldExclusive
        | LedgerState::TicketExclusive
        | LedgerState::GivenUpExclusive => Mode::Exclusive,
        LedgerState::HeldShared
        | LedgerState::TicketShared
        | LedgerState::Leaving
        | LedgerState::GivenUpShared => Mode::Shared,
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
        Request::CountReaders { .. } => {
            advance(ctx, state);
            let word = queue::readers_inside(ctx, state);
            return ctx.answer(from, Reply::Done { word });
        }
        Request::Confirm { mode, .. } => confirm(ctx, state, from, mode),
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
    let passed = a.mode == Mode::Exclusive && !word.is_open(a.ticket.tx);
    end_earlier_wait(ctx, state, a.from.client);
    if passed || !owns(ctx, &mut state.fair, a.from, a.mode, a.ticket) {
        ctx.denied(a.from, Status::Fail);
        return;
    }
    // a share that no ledger names would be taken for a released one: its note was lost, or an
    // `Abandon` is on its way
    let entry = ctx.ledger(a.from.client, a.from.handle);
    let is_named = named(entry) == Some((a.mode, a.ticket));
    let is_suspect = state.fair.is_suspect(a.from.client, a.mode);
    if is_given_up(entry) || a.mode == Mode::Shared && (!is_named || is_suspect) {
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
            record.status = match planted::is(Bug::PolledStaysWaiting) {
                true => RecordStatus::Waiting,
                false => RecordStatus::Queued,
            };
            record.since = None;
        }
        let word = ctx.read();
        ctx.answer(a.from, Reply::Queued { word, ticket: a.ticket });
    }
}

/// Takes a ticket by compare-and-swap, where the lap rule says.
fn take_ticket(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller, mode: Mode, expire_s: u32) {
    end_earlier_wait(ctx, state, from.client);
    let entry = ctx.ledger(from.client, from.handle);
    if is_given_up(entry) && !ctx.is_proxied(from.client) {
        gives_up_by_ledger(ctx, &mut state.fair, from.client, entry);
        state.fair.settled.insert(from.client, entry.ticket()); // this request came behind
    }
    if state.fair.has_given_up_too_many(from.client) {
        return ctx.denied(from, Status::Fail);
    }
    let Some((old, word, ticket)) = take_number(ctx, state, from.client, mode) else {
        return ctx.denied(from, Status::Fail);
    };
    state.fair.records.remove(&from.client);
    let is_proxied = ctx.is_proxied(from.client);
    if is_proxied {
        gives_up_live(ctx.mem, &mut state.fair, from.client, from.handle);
    }
    state.fair.has_taken(from.client, (mode, ticket), is_proxied);
    let record = state.fair.upsert(from, mode, ticket);
    // a shared grant is only given to a client whose ledger names the ticket already
    if mode == Mode::Exclusive && old.serves_next(mode) {
        let deadline_s = ctx.now.deadline(expire_s);
        record.status = RecordStatus::Granted { deadline_s };
        return ctx.granted(from, word.into_bits(), deadline_s, Some(ticket));
    }
    ctx.answer(from, Reply::Queued { word: word.into_bits(), ticket });
}

/// The word before and after, and the ticket that was taken; `None`: there is no room.
fn take_number(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    client: ClientId,
    mode: Mode,
) -> Option<(FairWord, FairWord, Ticket)> {
    for _ in 0..ROUNDS_MAX {
        let old = FairWord::from_bits(ctx.read());
        let place = lap::place(ctx, state, client, mode, old)?;
        let base = match planted::is(Bug::ArbiterLanesCarry) {
            true => old,
            false => place.base,
        };
        let taken = match mode {
            _ if planted::is(Bug::ArbiterLanesCarry) => {
                let add = match mode {
                    Mode::Exclusive => FairWord::TAKE_EXCLUSIVE,
                    Mode::Shared => FairWord::TAKE_SHARED,
                };
                FairWord::from_bits(old.into_bits().wrapping_add(add))
            }
            Mode::Exclusive => base.exclusive_taken(),
            Mode::Shared => base.shared_taken(),
        };
        if ctx.cas(old.into_bits(), taken.into_bits()) {
            if let Some((start, end)) = place.gap {
                state.fair.gaps.insert(start, end);
            }
            return Some((old, taken, base.next()));
        }
    }
    None
}

pub(super) fn is_given_up(entry: LedgerEntry) -> bool {
    matches!(entry.state(), LedgerState::GivenUpExclusive | LedgerState::GivenUpShared)
}

/// The client's ledger says that it has given its ticket up: it is skipped at its turn.
fn gives_up_by_ledger(
    ctx: &mut Ctx<'_>,
    fair: &mut FairState,
    client: ClientId,
    entry: LedgerEntry,
) {
    let Some((mode, ticket)) = named(entry) else { return };
    let word = FairWord::from_bits(ctx.read());
    if fair.is_revoked(client, mode, ticket)
        || fair.settled.get(&client) == Some(&ticket)
        || mode == Mode::Exclusive && !word.is_open(ticket.tx)
    {
        return;
    }
    if fair.record(client, mode, ticket).is_some() {
        fair.records.remove(&client);
    }
    given_up(fair, client, mode, ticket);
}

/// A ticket of this client, which was not ended, is given up. A share counts once: it is revoked
/// at once, so that nothing that still names it takes it off again.
fn given_up(fair: &mut FairState, client: ClientId, mode: Mode, ticket: Ticket) {
    let is_suspect = fair.is_suspect(client, mode);
    if mode == Mode::Shared {
        fair.revoke(client, mode, ticket);
    }
    if !is_suspect {
        fair.give_up(client, mode, ticket);
    }
}

fn one_more_done(ctx: &mut Ctx<'_>, mode: Mode, ticket: Ticket) -> Option<u64> {
    ctx.update(|seen| {
        let w = FairWord::from_bits(seen);
        match mode {
            Mode::Exclusive if w.nx() == ticket.tx && w.mx() != w.nx() => {
                Some(w.exclusive_done().into_bits())
            }
            Mode::Shared if w.ms() != w.ns() => Some(w.shared_done(1).into_bits()),
            _ => None,
        }
    })
}

/// Whether the client's share under this ticket is outstanding for sure.
fn holds_share(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller, ticket: Ticket) -> bool {
    let word = FairWord::from_bits(ctx.read());
    if !state.fair.is_served(word, from.client, ticket)
        || !owns(ctx, &mut state.fair, from, Mode::Shared, ticket)
        || state.fair.is_suspect(from.client, Mode::Shared)
    {
        return false;
    }
    if ctx.is_proxied(from.client) {
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
            match ctx.is_proxied(from.client) {
                true => _ = has_no_more(ctx.mem, &mut state.fair, from.client, from.handle),
                false => state.fair.revoke(from.client, mode, ticket),
            }
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
    // a claim counts at its turn, which is demanded of any exclusive ticket below
    let held = matches!(entry.state(), LedgerState::HeldExclusive | LedgerState::HeldShared)
        || entry.is_claim() && !ctx.is_proxied(from.client);
    let by_ledger =
        (held && named(entry) == Some((mode, ticket))).then(|| entry.deadline_s(ctx.anchor_s));
    let w = FairWord::from_bits(word);
    let served = match mode {
        Mode::Exclusive => (w.nx(), w.ns()) == (ticket.tx, ticket.ts),
        Mode::Shared => state.fair.is_served(w, from.client, ticket),
    };
    let old = by_record.max(by_ledger);
    // a suspect's lease was over when shares were passed over, and its own may be one of them
    let is_suspect = state.fair.is_suspect(from.client, mode);
    let mine = owns(ctx, &mut state.fair, from, mode, ticket) && !is_suspect;
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
    let fair = &mut state.fair;
    let is_over = fair.is_revoked(from.client, mode, ticket) && !planted::is(Bug::FairAbandonTwice)
        || fair.settled.get(&from.client) == Some(&ticket)
        || mode == Mode::Exclusive && !word.is_open(ticket.tx);
    let is_named = named(ctx.ledger(from.client, from.handle)) == Some((mode, ticket));
    if is_named && !ctx.is_proxied(from.client) {
        fair.settled.insert(from.client, ticket);
    }
    let is_its_own = is_named || fair.record(from.client, mode, ticket).is_some();
    let is_its_own = match ctx.is_proxied(from.client) {
        true => fair.live.get(&from.client) == Some(&(mode, ticket)),
        false => is_its_own && !is_over,
    };
    // one for another ticket, which it took since, has a record that says so
    let waits = fair.records.get(&from.client).is_some_and(|r| r.status == RecordStatus::Waiting);
    if is_its_own || !waits {
        end_earlier_wait(ctx, state, from.client);
    }
    if !is_its_own {
        return;
    }
    let fair = &mut state.fair;
    let status = fair.record(from.client, mode, ticket).map(|r| r.status);
    let is_granted = matches!(status, Some(RecordStatus::Granted { .. }));
    fair.records.remove(&from.client);
    match (is_granted, ctx.is_proxied(from.client)) {
        (true, true) => _ = has_no_more(ctx.mem, fair, from.client, from.handle),
        (true, false) => fair.revoke(from.client, mode, ticket),
        (false, true) => gives_up_live(ctx.mem, fair, from.client, from.handle),
        (false, false) => given_up(fair, from.client, mode, ticket),
    }
    if is_granted {
        one_more_done(ctx, mode, ticket);
    }
}

/// The client's wait was dropped, its ticket stays.
pub(super) fn waits_dropped(ctx: &mut Ctx<'_>, state: &mut LockState, client: ClientId) {
    state.fair.waits_no_more(client);
    advance(ctx, state);
}

/// What the ledger of a proxied client says after a note. It may name a ticket that was ended while
/// the note was on its way, or before: that is not written.
pub(super) fn as_noted(
    fair: Option<&FairState>,
    client: ClientId,
    note: LedgerEntry,
) -> LedgerEntry {
    let live = fair.and_then(|fair| fair.live.get(&client).copied());
    match named(note) {
        Some(named) if live != Some(named) => LedgerEntry::new(),
        _ => note,
    }
}

/// A note of a tcp client arrived: its ledger says now what the record had to say before.
pub(super) fn noted(state: &mut FairState, client: ClientId, entry: LedgerEntry, is_proxied: bool) {
    if is_proxied {
        state.noted(client, entry);
    }
    let is_issued = |r: &Record| r.status == RecordStatus::Issued;
    if state.records.get(&client).is_some_and(is_issued) {
        state.records.remove(&client);
    }
}
