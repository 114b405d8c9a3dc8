// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fair lock, client side.
//!
//! ```text
//!   acquire  Faa(take a ticket) ─ served ─▶ Note(Held) ─ in time ─▶ held
//!                               └ not served ─▶ Note(Ticket) ─▶ Again, or Wait{ticket}
//!   ask      Poll{ticket} ─▶ Granted · Queued · Denied (place lost)
//!   extend   [Note(Held, later), Read] while surely unexpired, else Extend
//!   release  Cas(nx+1) or [Note(Leaving), Cas(ns+1)] if nobody is behind, else Release{ticket}
//! ```
//! A ticket that nobody claims at the head of the queue is skipped by the arbiter after a grace.
//! So a ticket whose note was not published within half of that grace is dropped by its owner.
//! Only a first acquire is decided by the client; once queued, the arbiter decides.

use super::machine::{Phase, PUBLISH_NS_MAX};
use super::{EntryState, LockEntry, Machine, Op, OpResult, Step, View};
use crate::clock::Now;
use crate::limits::{CAS_ROUNDS_MAX, FAIR_GRACE_S, FAIR_QUEUE_MAX, FAIR_READERS_MAX};
use crate::message::{Mode, Reply, Request};
use crate::status::Status;
use crate::verb::{Chain, Values, Verb};
use crate::words::{FairWord, LedgerEntry, LedgerState, Ticket};

pub(super) fn start(m: &mut Machine, e: &mut LockEntry, now: Now) -> Step {
    use EntryState as S;
    match m.op {
        Op::Extend { mode, expire_s } => extend(m, e, mode, expire_s, now),
        Op::Unlock => match e.state {
            S::ExclusiveTicketed => give_ticket_up(m, e, Mode::Exclusive),
            S::SharedTicketed => give_ticket_up(m, e, Mode::Shared),
            S::SharedLocked => release(m, e, Mode::Shared),
            _ => release(m, e, Mode::Exclusive),
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

fn take_ticket(m: &mut Machine, e: &LockEntry, mode: Mode, expire_s: u32) -> Step {
    if e.diverted {
        return m.ask(Request::TakeTicket { handle: e.handle, mode, expire_s });
    }
    m.phase = Phase::Try;
    let add = match mode {
        Mode::Exclusive => FairWord::TAKE_EXCLUSIVE,
        Mode::Shared => FairWord::TAKE_SHARED,
    };
    Step::Chain(Chain::one(Verb::Faa { addr: e.w0(), add }))
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
    if mode == Mode::Exclusive {
        e.clear_note();
    }
    // a shared ticket stays in the ledger, so that the arbiter remembers if it has ended it
    m.tell(request, OpResult::of(Status::Success))
}

fn extend(m: &mut Machine, e: &mut LockEntry, mode: Mode, expire_s: u32, now: Now) -> Step {
    if now.maybe_expired(e.time_s) {
        return ask_extend(m, e, mode, expire_s);
    }
    m.phase = Phase::Try;
    let later = later_deadline(e, expire_s, m.started);
    let chain = Chain::one(Verb::Note {
        handle: e.handle,
        value: held(mode, e.ticket, later, e.anchor_s).into_bits(),
    });
    Step::Chain(chain.then(Verb::Read { addr: e.w0() }))
}

fn later_deadline(e: &LockEntry, expire_s: u32, now: Now) -> u32 {
    match expire_s {
        0 => e.time_s,
        _ => e.time_s.max(now.deadline(expire_s)),
    }
}

fn ask_extend(m: &mut Machine, e: &LockEntry, mode: Mode, expire_s: u32) -> Step {
    m.ask(Request::Extend { handle: e.handle, mode, ticket: e.ticket, expire_s })
}

fn held(mode: Mode, ticket: Ticket, deadline_s: u32, anchor_s: u32) -> LedgerEntry {
    let state = match mode {
        Mode::Exclusive => LedgerState::HeldExclusive,
        Mode::Shared => LedgerState::HeldShared,
    };
    LedgerEntry::of_ticket(state, ticket).with_deadline_s(deadline_s, anchor_s)
}

fn release(m: &mut Machine, e: &LockEntry, mode: Mode) -> Step {
    let word = FairWord::from_bits(e.word);
    let nobody_behind = match mode {
        Mode::Exclusive => {
            word.nx() == e.ticket.tx
                && word.mx() == e.ticket.tx.wrapping_add(1)
                && word.ms() == word.ns()
        }
        Mode::Shared => {
            word.mx() == word.nx() && word.ms().wrapping_sub(word.ns()) <= FAIR_READERS_MAX
        }
    };
    if !nobody_behind || m.rounds >= CAS_ROUNDS_MAX {
        return m.ask(Request::Release { handle: e.handle, mode, ticket: Some(e.ticket) });
    }
    m.phase = Phase::Try;
    let cas = Verb::Cas { addr: e.w0(), expect: e.word, swap: done(word, mode).into_bits() };
    Step::Chain(match mode {
        Mode::Exclusive => Chain::one(cas),
        Mode::Shared => {
            let leaving = LedgerEntry::of_ticket(LedgerState::Leaving, e.ticket)
                .with_deadline_s(e.time_s, e.anchor_s);
            Chain::one(Verb::Note { handle: e.handle, value: leaving.into_bits() }).then(cas)
        }
    })
}

/// The word after one ticket more is done.
fn done(word: FairWord, mode: Mode) -> FairWord {
    match mode {
        Mode::Exclusive => word.with_nx(word.nx().wrapping_add(1)),
        Mode::Shared => word.with_ns(word.ns().wrapping_add(1)),
    }
}

pub(super) fn outcome(m: &mut Machine, e: &mut LockEntry, values: Values, now: Now) -> Step {
    let last = values.as_slice().last().copied();
    match (m.op, m.phase) {
        (Op::TryLock { .. } | Op::Lock { .. }, Phase::Publish) => published(m, e, now),
        (Op::Unlock, _) => released_or(m, e, last, now),
        (Op::Extend { mode, expire_s }, _) => extended_or(m, e, last, mode, expire_s, now),
        (Op::TryLock { mode, expire_s } | Op::Lock { mode, expire_s }, _) => {
            if m.reentry {
                return extended_or(m, e, last, mode, expire_s, now);
            }
            ticket_taken(m, e, values[0], mode, expire_s)
        }
    }
}

/// `old` is the word before my ticket was added.
fn ticket_taken(m: &mut Machine, e: &mut LockEntry, old: u64, mode: Mode, expire_s: u32) -> Step {
    let w = FairWord::from_bits(old);
    e.ticket = Ticket { tx: w.mx(), ts: w.ms() };
    e.word = match mode {
        Mode::Exclusive => w.with_mx(w.mx().wrapping_add(1)),
        Mode::Shared => w.with_ms(w.ms().wrapping_add(1)),
    }
    .into_bits();
    e.see_lanes(e.word);
    let (exclusive, shared) = (w.mx().wrapping_sub(w.nx()), w.ms().wrapping_sub(w.ns()));
    if exclusive >= FAIR_QUEUE_MAX || shared >= FAIR_QUEUE_MAX {
        let request = Request::Abandon { handle: e.handle, mode, ticket: e.ticket };
        e.word = 0;
        return m.tell(request, OpResult::of(Status::Fail));
    }
    let served = match mode {
        Mode::Exclusive => exclusive == 0 && shared == 0,
        Mode::Shared => exclusive == 0 && shared < FAIR_READERS_MAX,
    };
    let deadline = m.started.deadline(expire_s);
    m.target = u64::from(served);
    e.time_s = if served { deadline } else { m.started.time.seconds() };
    e.note = Some(match (served, mode) {
        (true, mode) => held(mode, e.ticket, deadline, e.anchor_s),
        (false, Mode::Exclusive) => LedgerEntry::of_ticket(LedgerState::TicketExclusive, e.ticket),
        (false, Mode::Shared) => LedgerEntry::of_ticket(LedgerState::TicketShared, e.ticket),
    });
    m.phase = Phase::Publish;
    Step::Confirm
}

/// The note is out. Was it in time?
fn published(m: &mut Machine, e: &mut LockEntry, now: Now) -> Step {
    let took = now.time.0.saturating_sub(m.started.time.0);
    let slack = now.uncertainty_ns.saturating_add(m.started.uncertainty_ns);
    if took.saturating_add(slack) >= PUBLISH_NS_MAX {
        e.end(EntryState::Initialized); // the arbiter may have skipped the ticket
        e.clear_note();
        return m.done(Status::Fail);
    }
    if m.target == 1 {
        return granted(m, e);
    }
    queued(m, e)
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
        Mode::Shared => e.ticket.ts.wrapping_sub(w.ns()).wrapping_add(1).clamp(1, FAIR_READERS_MAX),
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

/// The word with my ticket in place of the next ones, and the time of queuing.
fn ticket_view(e: &LockEntry) -> View {
    let w = FairWord::from_bits(e.word);
    let Ticket { tx, ts } = e.ticket;
    View::Fair { nx: w.nx(), ns: w.ns(), mx: tx, ms: ts, time_out: e.time_s, t_value: Some(0) }
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
    if now.maybe_expired(e.time_s) {
        // the note may have come too late: the arbiter decides
        return ask_extend(m, e, mode, expire_s);
    }
    let served = FairWord::from_bits(word).nx();
    if mode == Mode::Exclusive && served != e.ticket.tx {
        e.clear_note();
        return e.lost();
    }
    e.see_lanes(word);
    let deadline = later_deadline(e, expire_s, m.started);
    extended(m, e, word, deadline, mode)
}

fn extended(m: &mut Machine, e: &mut LockEntry, word: u64, deadline_s: u32, mode: Mode) -> Step {
    e.word = word;
    e.time_s = deadline_s;
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
    if old == e.word {
        e.word = done(FairWord::from_bits(old), mode).into_bits();
        return released(e, mode, now);
    }
    if mode == Mode::Exclusive && FairWord::from_bits(old).nx() != e.ticket.tx {
        e.clear_note();
        return e.lost();
    }
    m.rounds += 1;
    if mode == Mode::Shared && now.maybe_expired(e.time_s) {
        m.rounds = CAS_ROUNDS_MAX; // the arbiter may have ended my share: it knows
    }
    e.word = old;
    release(m, e, mode)
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
            let readers = if mx == nx { ms.wrapping_sub(ns).min(FAIR_READERS_MAX) } else { 0 };
            View::Fair { nx, ns, mx, ms, time_out, t_value: Some(u32::from(readers) << 26) }
        }
        other => other,
    };
    e.clear_note();
    e.released(view)
}

pub(super) fn reply(m: &mut Machine, e: &mut LockEntry, reply: Reply, now: Now) -> Step {
    match (m.op, reply) {
        (Op::Unlock, Reply::Done { word }) => {
            let mode = held_mode(e);
            e.word = word;
            released(e, mode, now)
        }
        (Op::Unlock, Reply::Denied { .. }) => {
            e.clear_note();
            e.lost()
        }
        (Op::Extend { mode, .. }, Reply::Granted { word, deadline_s, .. }) => {
            e.note = Some(held(mode, e.ticket, deadline_s, e.anchor_s));
            extended(m, e, word, deadline_s, mode)
        }
        (Op::Extend { .. }, Reply::Denied { .. }) => {
            e.clear_note();
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
            e.note = Some(held(mode, e.ticket, deadline_s, e.anchor_s));
            e.see_lanes(word);
            if m.reentry {
                return extended(m, e, word, deadline_s, mode);
            }
            e.word = word;
            e.time_s = deadline_s;
            granted(m, e)
        }
        Reply::Queued { .. } | Reply::Cancelled { .. } if m.reentry => m.lose_track(e),
        Reply::Queued { word, ticket } => {
            e.see_lanes(word);
            e.word = word;
            if e.state != EntryState::ExclusiveTicketed && e.state != EntryState::SharedTicketed {
                e.ticket = ticket; // the arbiter took it for me
                e.time_s = now.time.seconds();
                let state = match mode {
                    Mode::Exclusive => LedgerState::TicketExclusive,
                    Mode::Shared => LedgerState::TicketShared,
                };
                e.note = Some(LedgerEntry::of_ticket(state, ticket));
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
            m.requeued = true;
            e.end(EntryState::Initialized);
            e.clear_note();
            m.started = now;
            let (mode, expire_s) = (m.mode(), m.expire_s());
            take_ticket(m, e, mode, expire_s)
        }
        Reply::Denied { .. } => {
            e.clear_note();
            e.lost()
        }
        _ => m.lose_track(e),
    }
}
