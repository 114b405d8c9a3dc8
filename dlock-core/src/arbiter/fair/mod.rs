// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fair lock, arbiter side: the requests of clients, and the looks at the lock that follow.
//!
//! ```text
//!   request ─▶ record, queue ─▶ look: w0, w1 and the lap, ledgers ─▶ decision ─ Cas(w1) ─▶ answers
//!                                 ▲                                     └ lost: look again
//!   timer, undo ──────────────────┘          idle, lanes high ─▶ the lanes start again ([`lap`])
//! ```
//! Clients take tickets in `w0`, and turns pass in `w1`. The arbiter changes `w1`, also to set
//! `told`, by one compare-and-swap from the word by which it has decided: if a client releases
//! meanwhile, the arbiter looks again. The arbiter reads its clock before the ledgers.
//!
//! A ledger entry names no ticket. The arbiter knows the ticket of a client from the client's
//! requests, or from a chain that this primary has executed for it ([`state`]). Of all other
//! clients it only knows that they may have one ([`decision`]).

mod decision;
mod hold;
mod keep;
mod lap;
mod state;

use super::confirm::confirm;
use super::kept;
use super::{cancel_wait, drop_waits, end_earlier_wait, Caller, Ctx, LockState, Waiter};
use super::{LedgerEntry, ROUNDS_MAX};
use crate::clock::{Deadline, Lease, ServerTime};
use crate::ids::{ClientId, Slot};
use crate::limits::{CLIENTS_MAX, FAIR_GRACE};
use crate::memory::exec::LockMemory;
use crate::memory::word_op::{Word, WordAddr};
use crate::memory::words::{FairView, TakenWord, Ticket, TurnWord, STAMP_MAX};
use crate::planted::{self, Bug};
use crate::wire::message::{Mode, Reply, Request, WaitNumber};
use crate::wire::status::Status;
use decision::Decision;
pub(super) use hold::{hold, Hold};
pub(super) use keep::{is_held_by, refuse_try};
pub(super) use state::FairState;
use state::{addr_of, Has, Status as Known, View};

/// The most looks of one call. Before each further look a client has overtaken the arbiter, or the
/// look before has passed all that one look may pass.
const LOOKS_MAX: usize = 4;
/// The most work of one call, in units: a word or an entry that is read, or a record that is
/// visited.
pub const WORK_MAX: u64 = (LOOKS_MAX * (decision::STEPS_MAX + 2) * 3 * CLIENTS_MAX) as u64;

pub(super) fn request(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller, request: Request) {
    state.fair.looks = 0;
    match request {
        Request::Wait { mode, lease, wait, ticket: Some(ticket), .. } => {
            ask(ctx, state, (from, lease, wait), (mode, ticket));
        }
        Request::Poll { mode, ticket, lease, .. } => {
            ask(ctx, state, (from, lease, WaitNumber(0)), (mode, ticket));
            return answer_poll(ctx, state, from, ticket);
        }
        Request::Keep { mode, ticket: Some(ticket), lease, .. } => {
            advance(ctx, state);
            if !keep::keep(ctx, state, from, (mode, ticket), lease) {
                let handle = from.handle;
                let release = Request::Release { handle, mode, ticket: Some(ticket) };
                return self::request(ctx, state, from, release);
            }
        }
        Request::Cancel { wait, .. } => {
            advance(ctx, state);
            if cancel_wait(ctx, state, from, wait) {
                state.fair.waits_no_more(from.client);
            }
            let word = ctx.read();
            ctx.answer(from, Reply::Done { word });
        }
        Request::TakeTicket { mode, .. } => lap::take_ticket(ctx, state, from, mode),
        Request::Abandon { mode, ticket, .. } => abandon(ctx, state, from, mode, ticket),
        Request::Release { mode, ticket: Some(ticket), .. } => {
            let is_released = release(ctx, state, from, mode, ticket);
            advance(ctx, state);
            let word = ctx.read();
            return ctx.answer(
                from,
                match is_released {
                    true => Reply::Done { word },
                    false => Reply::Denied { status: Status::Fail, word },
                },
            );
        }
        Request::Extend { mode, ticket: Some(ticket), lease, .. } => {
            advance(ctx, state);
            extend(ctx, state, from, (mode, ticket), lease);
        }
        Request::Downgrade { stamp, ticket: Some(ticket), .. } => {
            advance(ctx, state);
            downgrade(ctx, state, from, stamp, ticket);
        }
        Request::Resolve { .. } => {
            forget_client(state, from.client);
            ctx.mem.clear_ledger(from.client, from.handle);
            let word = ctx.read();
            ctx.answer(from, Reply::Done { word });
        }
        Request::CountReaders { mode, ticket, .. } => {
            ticket.into_iter().for_each(|ticket| is_told(ctx, state, from, (mode, ticket)));
            advance(ctx, state);
            let word = readers_inside(ctx, state);
            return ctx.answer(from, Reply::Done { word });
        }
        Request::Confirm { mode, .. } => confirm(ctx, state, from, mode),
        Request::Wake { .. } => {}
        _ => ctx.denied(from, Status::Invalid),
    }
    advance(ctx, state);
}

/// Whether a ticket may be this client's, and is not done. For a client whose chains this primary
/// executes, the arbiter knows that for sure.
fn may_have(
    ctx: &mut Ctx<'_>,
    fair: &FairState,
    from: Caller,
    (mode, ticket): (Mode, Ticket),
) -> bool {
    let record = fair.record(from.client, mode, ticket);
    let is_its_own = match ctx.is_proxied(from.client) {
        true => record.is_some_and(|r| r.status != Known::Over),
        // the client could have done by itself what it asks for
        false => record.is_none_or(|r| r.status != Known::Over),
    };
    let is_past = state::turn(ctx).is_past(ticket) || ticket.lap != state::lap(ctx);
    let is_passed = mode == Mode::Shared && fair.is_passed(from.client, ticket);
    (is_its_own || planted::is(Bug::FairReleaseUnchecked)) && !is_past && !is_passed
}

/// Asks whether it is this ticket's turn, and queues the client until it is.
fn ask(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    (from, lease, wait): (Caller, Lease, WaitNumber),
    (mode, ticket): (Mode, Ticket),
) {
    end_earlier_wait(ctx, state, from.client);
    let entry = ctx.ledger(from.client, from.handle);
    if entry.claims() != Some(mode) || !may_have(ctx, &state.fair, from, (mode, ticket)) {
        return ctx.denied(from, Status::Fail);
    }
    let record = state.fair.record(from.client, mode, ticket);
    if let Some(Known::Granted { deadline }) = record.map(|r| r.status) {
        // the answer was lost, and the lease of the repeated request may be longer
        let deadline = match planted::is(Bug::AskedAgainShort) {
            true => deadline,
            false => deadline.max(ctx.now.deadline(lease)),
        };
        return grant(ctx, state, from, (mode, ticket), entry, deadline);
    }
    state.fair.knows(from.client, (mode, ticket), entry.stamp(), Known::Waiting);
    state.queue.push_back(Waiter { caller: from, wait, mode, lease, until: None });
}

/// Records the ticket that a client names without asking for the lock.
fn is_told(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller, (mode, ticket): (Mode, Ticket)) {
    let entry = ctx.ledger(from.client, from.handle);
    let is_known = state.fair.record(from.client, mode, ticket).is_some();
    let may = entry.claims() == Some(mode) && may_have(ctx, &state.fair, from, (mode, ticket));
    if may && !is_known {
        state.fair.knows(from.client, (mode, ticket), entry.stamp(), Known::Kept);
    }
}

/// Answers a client that asks once, and takes it out of the queue.
fn answer_poll(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller, ticket: Ticket) {
    advance(ctx, state);
    let queued = state.queue.iter().position(|w| w.caller == from);
    if let Some(at) = queued {
        if state.kept.may_give_back() {
            state.queue[at].until = kept::try_until(ctx);
            return;
        }
        state.queue.remove(at);
        if !planted::is(Bug::PolledStaysWaiting) {
            state.fair.waits_no_more(from.client);
        }
        let word = ctx.read();
        ctx.answer(from, Reply::Queued { word, ticket });
    }
}

fn grant(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    to: Caller,
    (mode, ticket): (Mode, Ticket),
    entry: LedgerEntry,
    deadline: Deadline,
) {
    let status = Known::Granted { deadline };
    state.fair.knows(to.client, (mode, ticket), entry.stamp(), status);
    let word = ctx.read();
    ctx.granted(to, mode, word, deadline, Some(ticket));
}

/// Ends a hold; returns whether it was the client's.
fn release(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    from: Caller,
    mode: Mode,
    ticket: Ticket,
) -> bool {
    // an exclusive release may have written none already; a share is done before its entry says so
    let entry = ctx.ledger(from.client, from.handle);
    let is_named = mode == Mode::Exclusive || entry.claims() == Some(mode);
    if !is_named || !may_have(ctx, &state.fair, from, (mode, ticket)) {
        return false;
    }
    let is_released = change(ctx, |turn| {
        let is_held = match mode {
            Mode::Exclusive => turn.serves(mode, ticket),
            Mode::Shared => turn.nx() == ticket.tx,
        };
        is_held.then(|| turn.done(mode))
    });
    if is_released {
        state.fair.knows(from.client, (mode, ticket), entry.stamp(), Known::Over);
        if let Some(passed) = state.fair.passed.as_mut().filter(|_| mode == Mode::Shared) {
            passed.live.remove(&from.client);
        }
    }
    is_released
}

/// Changes the turn word to what `f` returns, from exactly the word that `f` was given; `false` if
/// `f` wants no change.
fn change(ctx: &mut Ctx<'_>, mut f: impl FnMut(TurnWord) -> Option<TurnWord>) -> bool {
    for _ in 0..ROUNDS_MAX {
        let seen = state::turn(ctx);
        let Some(wanted) = f(seen) else { return false };
        if swap(ctx, seen, wanted) {
            return true;
        }
    }
    false
}

/// One compare-and-swap of the turn word. Any change of the word wakes the clients that sleep on
/// it.
fn swap(ctx: &mut Ctx<'_>, seen: TurnWord, wanted: TurnWord) -> bool {
    let addr = addr_of(ctx, Word::W1);
    let wanted = if wanted.nx() == seen.nx() { wanted } else { wanted.with_parked(false) };
    let found = ctx.mem.cas(addr, seen.into_bits(), wanted.into_bits());
    let is_swapped = found == seen.into_bits();
    if is_swapped && seen.parked() {
        ctx.mem.wake(addr);
    }
    is_swapped
}

fn extend(
    ctx: &mut Ctx<'_>,
    state: &mut LockState,
    from: Caller,
    (mode, ticket): (Mode, Ticket),
    lease: Lease,
) {
    let turn = state::turn(ctx);
    let entry = ctx.ledger(from.client, from.handle);
    let is_held = match mode {
        Mode::Exclusive => turn.serves(mode, ticket),
        Mode::Shared => turn.nx() == ticket.tx,
    };
    let may_have = may_have(ctx, &state.fair, from, (mode, ticket));
    if !is_held || !may_have || entry.claims() != Some(mode) {
        return ctx.denied(from, Status::Fail);
    }
    let granted = state.fair.granted_until(from.client, entry.stamp());
    let old = granted.max(Some(entry.deadline())).unwrap_or_default();
    let deadline = match lease {
        Lease::NONE => old,
        _ => old.max(ctx.now.deadline(lease)),
    };
    grant(ctx, state, from, (mode, ticket), entry, deadline);
}

/// Makes a client's exclusive hold a share, by one change of the word, and writes the claim of the
/// share into its ledger: the client waits for the answer, so no one else writes the entry now.
/// Nothing of this arbiter comes between the word and the ledger.
fn downgrade(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller, stamp: u32, ticket: Ticket) {
    let Some(share) = ticket.downgraded() else { return ctx.denied(from, Status::Fail) };
    let entry = ctx.ledger(from.client, from.handle);
    let of_share = LedgerEntry::claim(Mode::Shared, stamp & STAMP_MAX);
    let of_share = of_share.with_deadline(entry.deadline());
    let may = |ctx: &mut Ctx<'_>, of: (Mode, Ticket)| {
        entry.claims() == Some(of.0) && may_have(ctx, &state.fair, from, of)
    };
    let is_changed = may(ctx, (Mode::Exclusive, ticket))
        && change(ctx, |turn| turn.downgraded().filter(|_| turn.serves(Mode::Exclusive, ticket)));
    // an earlier request has done it, and its answer was lost
    let is_done =
        entry == of_share && may(ctx, (Mode::Shared, share)) && state::turn(ctx).nx() == share.tx;
    if !is_changed && !is_done {
        return ctx.denied(from, Status::Fail);
    }
    let granted = state.fair.granted_until(from.client, entry.stamp());
    let deadline = granted.max(Some(entry.deadline())).unwrap_or_default();
    if is_changed && !planted::is(Bug::DowngradeUnnoted) {
        ctx.mem.set_ledger(from.client, from.handle, of_share);
    }
    if let Some(passed) = &mut state.fair.passed {
        passed.live.insert(from.client); // the number may be below those that were counted as done
    }
    grant(ctx, state, from, (Mode::Shared, share), of_share, deadline);
}

/// The client has given its ticket up; its ledger says so.
fn abandon(ctx: &mut Ctx<'_>, state: &mut LockState, from: Caller, mode: Mode, ticket: Ticket) {
    // the record is of another ticket if the client has taken one since
    let record = state.fair.records.get(&from.client);
    if record.is_some_and(|r| (r.mode, r.ticket) != (mode, ticket)) {
        return;
    }
    end_earlier_wait(ctx, state, from.client);
    state.fair.records.remove(&from.client);
    state.fair.unsettled = true;
}

/// Makes what the client has of this lock count no more: the client is gone, or knows of nothing
/// that it has. Nothing is counted as done: the client's number is passed at the head, or its share
/// is one too many.
fn forget_client(state: &mut LockState, client: ClientId) {
    drop_waits(state, client);
    state.fair.forget(client);
    state.fair.unsettled = true;
}

pub(super) fn forget(ctx: &mut Ctx<'_>, state: &mut LockState, client: ClientId) {
    forget_client(state, client);
    advance(ctx, state);
}

/// The client's wait was dropped, because its channel has ended. Its ticket stays for a grace, in
/// which the client may ask again. The graces of clients whose channels ended together end
/// together.
pub(super) fn waits_dropped(ctx: &mut Ctx<'_>, state: &mut LockState, client: ClientId) {
    state.fair.waits_no_more(client);
    state.fair.begins_grace(client, ctx.now);
    state.fair.held_back.remove(&client);
    if !planted::is(Bug::PlaceOutlasts) {
        cut_claim(ctx, state, client);
    }
    advance(ctx, state);
}

/// The claim of a turn that has not come ends with the grace, if this primary executes the client's
/// looks: the client can see its turn on another channel only, for which it asks anew. The claim of
/// any other client counts, because it may have seen its turn since.
fn cut_claim(ctx: &mut Ctx<'_>, state: &LockState, client: ClientId) {
    let turn = state::turn(ctx);
    if !ctx.is_proxied(client) || !state.fair.is_before_its_turn(client, turn) {
        return;
    }
    let known = ctx.lock.refs.iter().find(|(who, _)| *who == client);
    let Some(&(_, handle)) = known else { return };
    let (entry, until) = (ctx.ledger(client, handle), ctx.now.deadline(FAIR_GRACE));
    if entry.claims().is_some() && entry.deadline() > until {
        ctx.mem.set_ledger(client, handle, entry.with_deadline(until));
    }
}

/// Looks because of the timer: no message has reported a change.
pub(super) fn tick(ctx: &mut Ctx<'_>, state: &mut LockState) {
    state.fair.looks = state.fair.looks.saturating_add(1);
    advance(ctx, state);
}

/// Reads the words and the ledgers, then grants and passes on what they allow.
pub(super) fn advance(ctx: &mut Ctx<'_>, state: &mut LockState) {
    if !lap::has_restarted(ctx, state) {
        return;
    }
    for _ in 0..LOOKS_MAX {
        let view = View::read(ctx);
        ctx.worked((decision::STEPS_MAX + 1) * (view.clients.len() + state.fair.records.len()));
        let is_kept = !state.kept.is_empty();
        let d = Decision::of(&view, state.fair.clone(), state.queue.clone(), is_kept);
        let (decided, is_unfinished) = (d.turn, d.is_unfinished);
        let is_changed = decided != view.turn;
        let is_swapped = match planted::is(Bug::DecidedFromLater) {
            true => {
                let later = state::turn(ctx);
                is_changed && swap(ctx, later, decided)
            }
            false => is_changed && swap(ctx, view.turn, decided),
        };
        if is_changed && !is_swapped {
            continue;
        }
        commit(ctx, state, d);
        if is_unfinished {
            continue;
        }
        lap::ends(ctx, state, &view, decided);
        return lap::give_tickets(ctx, state);
    }
    let soon = ctx.now.plus_ns(1);
    ctx.wake_at(soon);
}

/// Makes a decision count, now that the word has it.
fn commit(ctx: &mut Ctx<'_>, state: &mut LockState, d: Decision<'_>) {
    let Decision { turn, fair, queue, answers, next, .. } = d;
    (state.fair, state.queue) = (fair, queue);
    let word = turn.into_bits();
    for (waiter, grant) in answers {
        match grant {
            Some((deadline, ticket)) => {
                ctx.granted(waiter.caller, waiter.mode, word, deadline, Some(ticket));
            }
            None => ctx.answer(waiter.caller, Reply::Denied { status: Status::Fail, word }),
        }
    }
    if let Some(at) = next {
        ctx.wake_at(at);
    }
}

/// How many readers hold the lock, as far as the arbiter can know.
fn readers_inside(ctx: &mut Ctx<'_>, state: &LockState) -> u64 {
    let view = View::read(ctx);
    let (turn, taken, fair) = (view.turn, view.taken, &state.fair);
    let open = taken.ms().saturating_sub(turn.ns());
    if taken.mx() <= turn.nx() {
        return open.into();
    }
    let at_head = |r: &&state::Record| r.mode == Mode::Exclusive && r.ticket.tx == turn.nx();
    if let Some(head) = fair.records.values().find(at_head) {
        return head.ticket.ts.saturating_sub(turn.ns()).into();
    }
    // no ticket tells how many shares are before the head, so the clients that may hold one count
    let is_inside =
        |(&client, &entry): (&ClientId, &state::Entry)| match view.has(fair, client, entry) {
            Has::Known { mode, ticket, live } => {
                live && mode == Mode::Shared && turn.serves(mode, ticket)
            }
            Has::Unknown(mode) => mode == Mode::Shared,
            Has::Nothing => false,
        };
    let inside = view.clients.iter().filter(|&(c, e)| is_inside((c, e))).count() as u64;
    inside.min(open.into())
}

/// A chain that this primary has executed for a proxied client has taken a ticket.
pub(super) fn issued(
    mem: &mut dyn LockMemory,
    fair: &mut FairState,
    slot: Slot,
    client: ClientId,
    (mode, taken): (Mode, TakenWord),
    entry: LedgerEntry,
) {
    if taken.is_high() {
        return;
    }
    let lap = mem.read(WordAddr::new(slot, Word::Fence));
    fair.knows(client, (mode, taken.next(lap)), entry.stamp(), Known::Issued);
}

/// A chain of a proxied client has passed its turn on.
pub(super) fn passed_on(fair: &mut FairState, client: ClientId) {
    if let Some(record) = fair.records.get_mut(&client) {
        record.status = Known::Over;
    }
}

/// Checks whether a client may add this to the tickets taken, of which `seen` is the word.
pub(super) fn may_take(seen: u64, add: u64) -> Result<(), Status> {
    match add {
        TakenWord::TAKE_EXCLUSIVE | TakenWord::TAKE_SHARED => {
            // if a counter is high, the client sends `TakeTicket` instead
            let is_high = TakenWord::from_bits(seen).is_high();
            (!is_high || planted::is(Bug::HighIsTicket)).then_some(()).ok_or(Status::Fail)
        }
        _ => Err(Status::Invalid),
    }
}

/// Checks whether a client may change the turn word so: to say that its own ticket is done.
/// `proxied`: what the arbiter knows of the lock, if this primary alone executes the client's
/// chains.
pub(super) fn may_pass_on(
    expect: u64,
    swap: u64,
    client: ClientId,
    proxied: Option<Option<&FairState>>,
) -> Result<(), Status> {
    let (old, new) = (TurnWord::from_bits(expect), TurnWord::from_bits(swap));
    let mode = match () {
        () if old.told() => return Err(Status::Invalid),
        () if new == old.done(Mode::Exclusive) => Mode::Exclusive,
        () if new == old.done(Mode::Shared) => Mode::Shared,
        () => return Err(Status::Invalid),
    };
    let is_its_own = |fair: &FairState| {
        fair.records.get(&client).is_some_and(|r| {
            let is_turn = old.serves(mode, r.ticket) && r.status != Known::Over;
            let is_passed = mode == Mode::Shared && fair.is_passed(client, r.ticket);
            r.mode == mode && is_turn && !is_passed
        })
    };
    match proxied {
        Some(fair) if !fair.is_some_and(is_its_own) => Err(Status::Invalid),
        _ => Ok(()),
    }
}

/// Records what a client has claimed in a recovery: a hold until `held_until`, or a place in the
/// queue.
pub(super) fn claimed(
    fair: &mut FairState,
    client: ClientId,
    (mode, ticket): (Mode, Ticket),
    entry: LedgerEntry,
    held_until: Option<Deadline>,
) {
    let status = match held_until {
        Some(deadline) => Known::Granted { deadline },
        None => Known::Kept,
    };
    fair.knows(client, (mode, ticket), entry.stamp(), status);
}

/// What the client has by its record: its ticket, and, if it holds the lock, the end of the hold.
pub(super) fn has(
    ctx: &mut Ctx<'_>,
    fair: &FairState,
    from: Caller,
    mode: Mode,
) -> Option<(Ticket, Option<Deadline>)> {
    let record = fair.records.get(&from.client).filter(|r| r.mode == mode)?;
    may_have(ctx, fair, from, (mode, record.ticket)).then_some(())?;
    match record.status {
        Known::Granted { deadline } => Some((record.ticket, Some(deadline))),
        Known::Over => None,
        Known::Issued | Known::Kept | Known::Waiting => Some((record.ticket, None)),
    }
}

/// The deadline of an exclusive turn that the arbiter granted to this client.
pub(super) fn turn_until(
    fair: &FairState,
    mem: &mut dyn LockMemory,
    slot: Slot,
    client: ClientId,
) -> Option<Deadline> {
    let turn = TurnWord::from_bits(mem.read(WordAddr::new(slot, Word::W1)));
    let record = fair.records.get(&client)?;
    match record.status {
        Known::Granted { deadline } if record.mode == Mode::Exclusive => {
            (!turn.is_past(record.ticket)).then_some(deadline)
        }
        _ => None,
    }
}

/// The numbers of a fair lock, as the C API has them.
pub(crate) fn fair_view(mem: &mut dyn LockMemory, slot: Slot) -> FairView {
    let [taken, turn] = [Word::W0, Word::W1].map(|word| mem.read(WordAddr::new(slot, word)));
    FairView::of(TakenWord::from_bits(taken), TurnWord::from_bits(turn))
}

/// Whether a time has come; if not, the arbiter looks at this lock again at that time.
fn reached(ctx: &mut Ctx<'_>, at: ServerTime) -> bool {
    let is_reached = ctx.now >= at;
    if !is_reached {
        ctx.wake_at(at);
    }
    is_reached
}
