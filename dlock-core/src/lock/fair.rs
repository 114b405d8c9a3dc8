// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fair lock, client side.
//!
//! ```text
//!   acquire  [Ledger(Intent), Faa(take a ticket)] ─ served, in time ─▶ Ledger(Held), held
//!                               │              └ not served ─▶ Ledger(Ticket) ─▶ Again, or Wait
//!                               │                  └ exclusive, one-sided ─▶ look for it: [`turn`]
//!                               └ a number of the ring: no ticket ─▶ TakeTicket
//!                               under an intent that stands: Faa alone ([`super::notes`]), and a
//!                               share that was taken under it is released by Cas alone
//!   ask      Poll{ticket} ─▶ Granted · Queued · Denied (place lost)
//!   extend   [Ledger(Held, later), Read] while surely unexpired, else Extend
//!   release  Cas(nx+1) or [Ledger(Leaving), Cas(ns+1)] if nobody is behind and the lease surely
//!            runs; handed on to the next exclusive ticket ([`turn`]), also where one is likely to
//!            have come; else Release{ticket}
//!   give up  Ledger(GivenUp), Abandon{ticket}; the next ticket comes from the arbiter
//! ```
//! A ticket that no ledger names at the head of the queue is skipped by the arbiter: at once if no
//! client is between its intent and its publication, else after a grace, and not before the
//! deadlines of the intents that claim the turn. So a hold needs no publication before it is used;
//! one with a lease above [`CLAIM_LEASE_S_MAX`] does, so that a client that is stopped half-way
//! does not hold up the others for long. The owner of a ticket that was not published, or seen to
//! have its turn, within half of the grace asks the arbiter whether it has its place.
//! Only a first acquire is decided by the client; once queued at the arbiter, that decides.
//!
//! From its intent until nothing of a ticket can take effect any more, the ledger names the ticket,
//! or says that there may be one: this is what the arbiter's lap rule rests on. So a ticket that is
//! given up stays named until the request that says so was served, and a hold until its release
//! has taken effect.

#[path = "fair_handed.rs"]
mod handed;
#[path = "fair_readers.rs"]
mod readers;
#[path = "fair_relay.rs"]
mod relay;
#[path = "fair_turn.rs"]
pub(super) mod turn;

use super::machine::{Phase, LEDGER_FLUSH_NS_MAX};
use super::{EntryState, LockEntry, Machine, Op, OpResult, Step, View};
use crate::clock::Now;
use crate::lane;
use crate::limits::{CAS_ROUNDS_MAX, CLAIM_LEASE_S_MAX, FAIR_GRACE_S, FAIR_READERS_MAX};
use crate::message::{Mode, Reply, Request};
use crate::planted::{self, Bug};
use crate::status::Status;
use crate::word_op::{Chain, Values, WordOp};
use crate::words::{FairWord, LedgerEntry, LedgerState, Ticket};

pub(super) fn start(m: &mut Machine, e: &mut LockEntry, now: Now) -> Step {
    use EntryState as S;
    match m.op {
        Op::Extend { mode, expire_s } => extend(m, e, mode, expire_s, now),
        Op::Unlock => match e.state {
            S::ExclusiveTicketed => give_ticket_up(m, e, Mode::Exclusive),
            S::SharedTicketed => give_ticket_up(m, e, Mode::Shared),
            S::SharedLocked => release(m, e, Mode::Shared, now),
            _ => release(m, e, Mode::Exclusive, now),
        },
        Op::TryLock { mode, expire_s } | Op::Lock { mode, expire_s } => match e.state {
            S::ExclusiveLocked | S::SharedLocked => {
                m.reentry = true;
                extend(m, e, mode, expire_s, now)
            }
            S::ExclusiveTicketed | S::SharedTicketed => ask_again(m, e, mode, expire_s),
            _ => take_ticket(m, e, mode, expire_s),
        },
    }
}

fn take_ticket(m: &mut Machine, e: &mut LockEntry, mode: Mode, expire_s: u32) -> Step {
    if e.diverted && !planted::is(Bug::LanesCarry) {
        return m.ask(Request::TakeTicket { handle: e.handle, mode, expire_s });
    }
    m.phase = Phase::Try;
    m.unserved_ns = m.started.local_ns;
    let add = match mode {
        Mode::Exclusive => FairWord::TAKE_EXCLUSIVE,
        Mode::Shared => FairWord::TAKE_SHARED,
    };
    m.taken_ns = m.started.local_ns;
    let until_s = m.started.deadline(expire_s);
    let add = WordOp::Faa { addr: e.w0(), add };
    let stands = claims(expire_s) && e.notes.intends_again(mode, until_s);
    if stands || planted::is(Bug::FairNoIntent) {
        return Step::Chain(Chain::one(add));
    }
    // no two intents look the same
    e.stamp = e.stamp.wrapping_add(1);
    let deadline_s = e.notes.claimed_s(until_s);
    let intent = LedgerEntry::intent(mode, claims(expire_s), e.stamp);
    let noted_s = match planted::is(Bug::IntentShort) {
        true => m.started.time.seconds(),
        false => deadline_s,
    };
    let intent = intent.with_deadline_s(noted_s, e.anchor_s);
    match claims(expire_s) {
        true => e.notes.intends(mode, deadline_s),
        false => e.notes.is_replaced(),
    }
    let intent = WordOp::WriteLedger { handle: e.handle, value: intent.into_bits() };
    Step::Chain(Chain::one(intent).then(add))
}

/// Whether a lease is claimed ahead of the turn. Of an intent that claims it the client need not
/// wait for the note which follows: the arbiter skips no unnamed ticket before its deadline.
fn claims(expire_s: u32) -> bool {
    expire_s <= CLAIM_LEASE_S_MAX
}

/// After a ticket was lost.
fn again(m: &mut Machine, e: &mut LockEntry, now: Now) -> Step {
    m.requeued = true;
    m.started = now;
    let (mode, expire_s) = (m.mode(), m.expire_s());
    take_ticket(m, e, mode, expire_s)
}

fn ask_again(m: &mut Machine, e: &mut LockEntry, mode: Mode, expire_s: u32) -> Step {
    if m.waits() {
        let ticket = e.ticket;
        return m.wait(e, Some(ticket));
    }
    m.ask(Request::Poll { handle: e.handle, mode, ticket: e.ticket, expire_s })
}

fn give_ticket_up(m: &mut Machine, e: &mut LockEntry, mode: Mode) -> Step {
    let request = Request::Abandon { handle: e.handle, mode, ticket: e.ticket };
    e.end(EntryState::Initialized);
    name_given_up(e, mode);
    m.tell(request, OpResult::of(Status::Success))
}

/// The ledger goes on naming a ticket that is given up, for the case that the request which says so
/// is overtaken, or never sent. The next ticket comes from the arbiter, behind that request.
fn name_given_up(e: &mut LockEntry, mode: Mode) {
    let state = match mode {
        Mode::Exclusive => LedgerState::GivenUpExclusive,
        Mode::Shared => LedgerState::GivenUpShared,
    };
    e.notes.write(LedgerEntry::of_ticket(state, e.ticket));
    e.diverted = true;
    e.doubt = super::Doubt::GivenUp;
}

fn extend(m: &mut Machine, e: &mut LockEntry, mode: Mode, expire_s: u32, now: Now) -> Step {
    if e.maybe_over(now) {
        return ask_extend(m, e, mode, expire_s);
    }
    m.phase = Phase::Try;
    e.notes.hurry();
    let later = later_deadline(e, expire_s, m.started);
    if e.is_handed {
        return handed::extend(m, e, mode, later);
    }
    let chain = Chain::one(WordOp::WriteLedger {
        handle: e.handle,
        value: held(mode, e.ticket, later, e.anchor_s).into_bits(),
    });
    Step::Chain(chain.then(WordOp::Read { addr: e.w0() }))
}

fn later_deadline(e: &LockEntry, expire_s: u32, now: Now) -> u32 {
    match expire_s {
        0 => e.time_s,
        _ if planted::is(Bug::ExtendShortens) => now.deadline(expire_s),
        _ => e.time_s.max(now.deadline(expire_s)),
    }
}

fn ask_extend(m: &mut Machine, e: &LockEntry, mode: Mode, expire_s: u32) -> Step {
    m.ask(Request::Extend { handle: e.handle, mode, ticket: e.ticket, expire_s })
}

fn held(mode: Mode, ticket: Ticket, deadline_s: u32, anchor_s: u32) -> LedgerEntry {
    let is_short = planted::is(Bug::LedgerLeaseShort) && deadline_s < u32::MAX;
    let deadline_s = deadline_s - u32::from(is_short);
    let state = match mode {
        Mode::Exclusive => LedgerState::HeldExclusive,
        Mode::Shared => LedgerState::HeldShared,
    };
    LedgerEntry::of_ticket(state, ticket).with_deadline_s(deadline_s, anchor_s)
}

/// `now` was read after the word that is expected: the hold was not over then.
fn release(m: &mut Machine, e: &mut LockEntry, mode: Mode, now: Now) -> Step {
    let word = FairWord::from_bits(e.word);
    let is_at_its_turn = word.nx() == e.ticket.tx;
    let nobody_behind = match mode {
        Mode::Exclusive => word.open_exclusive() == 1 && word.open_shared() == 0,
        Mode::Shared => word.open_exclusive() == 0 && word.open_shared() <= FAIR_READERS_MAX,
    };
    let nobody_behind = nobody_behind || planted::is(Bug::FairReleaseStale) && m.rounds > 0;
    let is_late = e.maybe_over(now);
    if e.is_handed {
        return handed::release(m, e, now);
    }
    let is_handed_on = nobody_behind && !e.asks_at_once() || turn::may_hand_over(e, mode);
    if !is_at_its_turn || !is_handed_on || is_late || m.rounds >= CAS_ROUNDS_MAX {
        return ask_release(m, e, mode);
    }
    if e.is_relayed {
        return relay::release(m, e, mode, word);
    }
    if !nobody_behind || turn::is_followed(e, mode) {
        return match relay::may_begin(e, word) {
            true => relay::announce(m, e),
            false => turn::hand_over(m, e, word),
        };
    }
    m.phase = Phase::Try;
    let cas = WordOp::Cas { addr: e.w0(), expect: e.word, swap: done(word, mode).into_bits() };
    Step::Chain(match mode {
        Mode::Exclusive => Chain::one(cas),
        Mode::Shared if e.notes.stands_for(mode) => Chain::one(cas),
        Mode::Shared => {
            e.notes.is_replaced();
            let leaving = LedgerEntry::of_ticket(LedgerState::Leaving, e.ticket)
                .with_deadline_s(e.time_s, e.anchor_s);
            Chain::one(WordOp::WriteLedger { handle: e.handle, value: leaving.into_bits() })
                .then(cas)
        }
    })
}

fn ask_release(m: &mut Machine, e: &LockEntry, mode: Mode) -> Step {
    m.ask(Request::Release { handle: e.handle, mode, ticket: Some(e.ticket) })
}

/// The word after one ticket more is done.
fn done(word: FairWord, mode: Mode) -> FairWord {
    match mode {
        Mode::Exclusive => word.exclusive_done(),
        Mode::Shared => word.shared_done(1),
    }
}

#[inline]
pub(super) fn outcome(m: &mut Machine, e: &mut LockEntry, values: Values, now: Now) -> Step {
    let last = values.as_slice().last().copied();
    match (m.op, m.phase) {
        (_, Phase::See) => handed::seen(m, e, values, now),
        (Op::TryLock { .. } | Op::Lock { .. }, Phase::Flush) => published(m, e, now),
        (Op::TryLock { .. } | Op::Lock { .. }, Phase::Look | Phase::LookTurn | Phase::LookBoth) => {
            turn::looked(m, e, values, now)
        }
        (Op::TryLock { .. } | Op::Lock { .. }, Phase::Placed) => match last {
            Some(turn) => relay::placed(m, e, turn, now),
            None => m.lose_track(e),
        },
        (Op::Unlock, Phase::HandOver) => turn::handed_over(m, e, values, now),
        (Op::Unlock, Phase::Announce | Phase::BeginRelay | Phase::Pass | Phase::EndRelay) => {
            relay::outcome(m, e, values, now)
        }
        (Op::Unlock, _) => released_or(m, e, last, now),
        (Op::Extend { mode, expire_s }, _) => extended_or(m, e, last, mode, expire_s, now),
        (Op::TryLock { mode, expire_s } | Op::Lock { mode, expire_s }, _) => {
            if m.reentry {
                return extended_or(m, e, last, mode, expire_s, now);
            }
            match last {
                Some(old) => ticket_taken(m, e, old, now),
                None => m.lose_track(e),
            }
        }
    }
}

/// `old` is the word before my ticket was added.
fn ticket_taken(m: &mut Machine, e: &mut LockEntry, old: u64, now: Now) -> Step {
    let (mode, expire_s) = (m.mode(), m.expire_s());
    let w = FairWord::from_bits(old);
    let is_relayed = w.is_relayed();
    let w = if is_relayed { relay::guessed(e, w) } else { w };
    let taken = match mode {
        Mode::Exclusive => w.exclusive_taken(),
        Mode::Shared => w.shared_taken(),
    };
    e.see_lanes(taken.into_bits());
    if mode == Mode::Exclusive && w.mx() >= lane::ring() {
        // the arbiter alone gives this number out: it skips it
        e.clear_ledger_entry();
        e.diverted = true;
        return take_ticket(m, e, mode, expire_s);
    }
    if is_relayed {
        e.pace.followed(w.mx() != lane::plus(e.ticket.tx, 1));
    }
    e.is_relayed = is_relayed;
    e.ticket = w.next();
    e.word = taken.into_bits();
    let barges = w.open_exclusive() == 0 && planted::is(Bug::FairBarge);
    let served = !is_relayed && (w.serves_next(mode) || mode == Mode::Exclusive && barges);
    if !served && turn::may_look(m, e, mode) {
        e.time_s = m.started.time.seconds();
        return turn::look_for(m, e, now);
    }
    match is_relayed {
        true => relay::look_once(m, e),
        false => place(m, e, served, now),
    }
}

/// The word says whether the ticket is served.
fn place(m: &mut Machine, e: &mut LockEntry, served: bool, now: Now) -> Step {
    let (mode, expire_s) = (m.mode(), m.expire_s());
    let deadline = m.started.deadline(expire_s);
    m.target = u64::from(served);
    e.time_s = if served { deadline } else { m.started.time.seconds() };
    e.is_judged_by(m.started);
    let note = match served {
        true => held(mode, e.ticket, deadline, e.anchor_s),
        false => LedgerEntry::of_taken(mode, e.ticket, None, e.anchor_s),
    };
    let is_noted = e.notes.are_in_effect() && !e.is_relayed;
    if is_noted || served && claims(expire_s) {
        match is_noted {
            true => e.notes.is_replaced(),
            false => e.notes.write_late(note),
        }
        return published(m, e, now);
    }
    e.notes.write(note);
    m.phase = Phase::Flush;
    Step::Confirm
}

/// The note is out. Was it in time?
fn published(m: &mut Machine, e: &mut LockEntry, now: Now) -> Step {
    let took = now.local_ns.saturating_sub(m.unserved_ns);
    if took >= LEDGER_FLUSH_NS_MAX && !planted::is(Bug::PublishLateIgnored) {
        return asks_place(m, e); // the arbiter may have skipped the ticket
    }
    if m.target == 1 {
        if planted::is(Bug::LeaseFromAfter) {
            e.time_s = e.time_s.max(now.deadline(m.expire_s()));
        }
        return granted(m, e);
    }
    queued(m, e)
}

/// Whether the ticket is served the arbiter knows, and decides.
fn asks_place(m: &mut Machine, e: &mut LockEntry) -> Step {
    let (mode, expire_s) = (m.mode(), m.expire_s());
    let (state, ledger) = match mode {
        Mode::Exclusive => (EntryState::ExclusiveTicketed, LedgerState::TicketExclusive),
        Mode::Shared => (EntryState::SharedTicketed, LedgerState::TicketShared),
    };
    e.is_relayed = false;
    e.state = state;
    e.time_s = m.started.time.seconds();
    e.notes.write(LedgerEntry::of_ticket(ledger, e.ticket));
    ask_again(m, e, mode, expire_s)
}

fn granted(m: &mut Machine, e: &mut LockEntry) -> Step {
    let mode = m.mode();
    let view = word_view(e, mode);
    e.grant(mode, view, m.reentry)
}

fn queued(m: &mut Machine, e: &mut LockEntry) -> Step {
    e.state = match m.mode() {
        Mode::Exclusive => EntryState::ExclusiveTicketed,
        Mode::Shared => EntryState::SharedTicketed,
    };
    e.doubt = super::Doubt::None;
    e.cache = ticket_view(e);
    if m.waits() {
        let ticket = e.ticket;
        return m.wait(e, Some(ticket));
    }
    Step::Done(OpResult { status: Status::Again, view: Some(e.cache) })
}

/// The full word after the operation.
fn word_view(e: &LockEntry, mode: Mode) -> View {
    let w = FairWord::from_bits(e.word);
    let readers = match mode {
        Mode::Exclusive => 0,
        Mode::Shared => readers_inside(e, w),
    };
    View::Fair {
        nx: w.nx(),
        ns: w.ns(),
        mx: w.mx(),
        ms: w.ms(),
        time_out: e.time_s,
        t_value: Some(u32::from(readers) << 26),
    }
}

/// Readers inside, me among them: everybody who has a shared ticket that is served.
fn readers_inside(e: &LockEntry, w: FairWord) -> u16 {
    let open = match w.open_exclusive() {
        0 => w.open_shared(),
        // readers behind the exclusive ticket are not inside: those before it are, up to me
        _ => lane::plus(lane::distance(w.ns(), e.ticket.ts), 1).min(w.open_shared()),
    };
    open.clamp(1, FAIR_READERS_MAX)
}

/// The word with my ticket in place of the next ones, and the time of queuing.
fn ticket_view(e: &LockEntry) -> View {
    let w = FairWord::from_bits(e.word);
    let Ticket { tx, ts } = e.ticket;
    // the readers inside, as far as the word tells: those before me if I am next
    let inside = match lane::distance(w.nx(), tx) {
        0 => lane::distance(w.ns(), ts).min(w.open_shared()).min(FAIR_READERS_MAX),
        _ => 0,
    };
    let (nx, ns, time_out) = (w.nx(), w.ns(), e.time_s);
    View::Fair { nx, ns, mx: tx, ms: ts, time_out, t_value: Some(u32::from(inside) << 26) }
}

fn extended_or(
    m: &mut Machine,
    e: &mut LockEntry,
    word: Option<u64>,
    mode: Mode,
    expire_s: u32,
    now: Now,
) -> Step {
    let Some(word) = word else { return m.lose_track(e) };
    if e.maybe_over(now) || FairWord::from_bits(word).is_relayed() {
        // the note may have come too late, or the word does not tell: the arbiter decides
        return ask_extend(m, e, mode, expire_s);
    }
    e.is_relayed = false;
    let served = FairWord::from_bits(word).nx();
    if mode == Mode::Exclusive && served != e.ticket.tx {
        e.clear_ledger_entry();
        return e.lost();
    }
    e.see_lanes(word);
    let deadline = later_deadline(e, expire_s, m.started);
    e.goes_on(deadline, expire_s, m.started);
    extended(m, e, word, mode)
}

fn extended(m: &mut Machine, e: &mut LockEntry, word: u64, mode: Mode) -> Step {
    e.word = word;
    let view = word_view(e, mode);
    if m.reentry {
        return e.grant(mode, view, true);
    }
    e.cache = view;
    Step::Done(OpResult { status: Status::Success, view: Some(view) })
}

fn released_or(m: &mut Machine, e: &mut LockEntry, old: Option<u64>, now: Now) -> Step {
    let Some(old) = old else { return m.lose_track(e) };
    let mode = held_mode(e);
    if mode == Mode::Exclusive {
        e.pace.followed(old != e.word);
    }
    if old == e.word {
        e.word = done(FairWord::from_bits(old), mode).into_bits();
        match e.notes.are_in_effect() {
            true => e.notes.is_replaced(),
            false => clear(e, mode),
        }
        return released(e, mode, now);
    }
    released_otherwise(m, e, old, now)
}

/// The word was not as expected, but `found`.
fn released_otherwise(m: &mut Machine, e: &mut LockEntry, found: u64, now: Now) -> Step {
    let mode = held_mode(e);
    if FairWord::from_bits(found).is_relayed() {
        return ask_release(m, e, mode); // the word does not tell
    }
    if mode == Mode::Exclusive && FairWord::from_bits(found).nx() != e.ticket.tx {
        e.clear_ledger_entry();
        return e.lost();
    }
    m.rounds += 1;
    e.word = found;
    release(m, e, mode, now)
}

fn held_mode(e: &LockEntry) -> Mode {
    match e.state {
        EntryState::SharedLocked => Mode::Shared,
        _ => Mode::Exclusive,
    }
}

/// `e.word` is the word after the release.
fn released(e: &mut LockEntry, mode: Mode, now: Now) -> Step {
    // as long as the next in line has to claim its turn
    e.time_s = now.deadline(FAIR_GRACE_S);
    e.see_lanes(e.word);
    let view = match word_view(e, mode) {
        View::Fair { nx, ns, mx, ms, time_out, .. } => {
            let open = if mx == nx { lane::distance(ns, ms) } else { 0 };
            let readers = if mode == Mode::Shared { open.min(FAIR_READERS_MAX) } else { 0 };
            View::Fair { nx, ns, mx, ms, time_out, t_value: Some(u32::from(readers) << 26) }
        }
        other => other,
    };
    e.released(view)
}

fn clear(e: &mut LockEntry, mode: Mode) {
    match mode == Mode::Exclusive || e.notes.stands_for(mode) {
        true => e.clear_ledger_entry_late(),
        false => e.clear_ledger_entry(),
    }
}

pub(super) fn reply(m: &mut Machine, e: &mut LockEntry, reply: Reply, now: Now) -> Step {
    (e.is_relayed, e.is_handed) = (false, false); // the arbiter has ended it
    match (m.op, reply) {
        (Op::Unlock, Reply::Done { word }) => {
            let mode = held_mode(e);
            e.word = word;
            let word = FairWord::from_bits(word);
            let waits_for_me = mode == Mode::Exclusive && word.open_shared() > 0;
            e.pace.followed(word.open_exclusive() > 0 || waits_for_me);
            clear(e, mode);
            released(e, mode, now)
        }
        (Op::Unlock, Reply::Denied { .. }) => {
            e.clear_ledger_entry();
            e.lost()
        }
        (Op::Extend { mode, expire_s }, Reply::Granted { word, deadline_s, .. }) => {
            e.notes.write(held(mode, e.ticket, deadline_s, e.anchor_s));
            e.goes_on(deadline_s, expire_s, now);
            extended(m, e, word, mode)
        }
        (Op::Extend { .. }, Reply::Denied { .. }) => {
            e.clear_ledger_entry();
            e.lost()
        }
        (Op::TryLock { mode, .. } | Op::Lock { mode, .. }, reply) => {
            acquire_reply(m, e, mode, reply, now)
        }
        _ => m.lose_track(e),
    }
}

fn acquire_reply(m: &mut Machine, e: &mut LockEntry, mode: Mode, reply: Reply, now: Now) -> Step {
    match reply {
        Reply::Granted { word, deadline_s, ticket, .. } => {
            e.ticket = ticket.unwrap_or(e.ticket);
            e.is_judged_by(now);
            e.notes.write(held(mode, e.ticket, deadline_s, e.anchor_s));
            e.see_lanes(word);
            e.time_s = deadline_s;
            if m.reentry {
                return extended(m, e, word, mode);
            }
            e.word = word;
            granted(m, e)
        }
        Reply::Queued { .. } | Reply::Cancelled { .. } if m.reentry => m.lose_track(e),
        Reply::Queued { word, ticket } => {
            e.see_lanes(word);
            e.word = word;
            if e.state != EntryState::ExclusiveTicketed && e.state != EntryState::SharedTicketed {
                (e.ticket, e.doubt) = (ticket, super::Doubt::None); // the arbiter took it for me
                e.time_s = now.time.seconds();
                let state = match mode {
                    Mode::Exclusive => LedgerState::TicketExclusive,
                    Mode::Shared => LedgerState::TicketShared,
                };
                e.notes.write(LedgerEntry::of_ticket(state, ticket));
                if mode == Mode::Shared && FairWord::from_bits(word).nx() == ticket.tx {
                    e.state = EntryState::SharedTicketed; // served: ask for the grant
                    let (mode, expire_s) = (m.mode(), m.expire_s());
                    return ask_again(m, e, mode, expire_s);
                }
            }
            queued(m, e)
        }
        Reply::Cancelled { word } => {
            e.word = word;
            e.cache = ticket_view(e);
            Step::Done(OpResult { status: Status::Again, view: Some(e.cache) })
        }
        Reply::Denied { .. } if m.waits() && !m.reentry && !m.requeued => {
            // too slow in asking: the place is lost, and waiting can cure that
            e.end(EntryState::Initialized);
            e.clear_ledger_entry();
            again(m, e, now)
        }
        Reply::Denied { .. } => {
            e.clear_ledger_entry();
            e.lost()
        }
        _ => m.lose_track(e),
    }
}
