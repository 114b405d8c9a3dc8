// SPDX-License-Identifier: MIT OR Apache-2.0
//! The turn of an exclusive ticket without the arbiter: its owner sees it in the word, and hands
//! the lock on by one compare-and-swap.
//!
//! ```text
//!   Faa ─ not served ─▶ pause ─▶ [Ledger(Ticket, claimed), Read] ─ my turn ─▶ held
//!                         ▲             └ not yet ─▶ Again, or Ledger(Ticket), Wait
//!                         └─────────────────┘
//!   release  [Cas(nx+1), Cas(one ticket more, nx+1), Read(companion)] ─ somebody sleeps ─▶ Wake
//! ```
//! A *claim* is written before the read that shows the turn, in one chain. So whoever finds the
//! ticket at its turn in the word, and reads the ledger a grace later, knows when the hold ends at
//! the latest. The arbiter ends a claimed ticket after that, and not before the grace: who has last
//! seen [`LEDGER_FLUSH_NS_MAX`] ago that it is not its turn asks the arbiter, instead of believing
//! the word, since an earlier claim of its may have been found over.
//!
//! A lease that is longer than [`CLAIM_LEASE_S_MAX`](crate::limits::CLAIM_LEASE_S_MAX) is not
//! claimed: it is noted at the turn, and the note waited for, as after a fetch-and-add that was
//! served at once.
//!
//! The companion word says whether anybody has to be told of a release: the arbiter sets it before
//! it looks at the word for a sleeper, and the releaser reads it after it has changed the word.

use super::{again, clear, granted, held, relay, released};
use super::{EntryState, LockEntry, Machine, OpResult, Phase, Step, LEDGER_FLUSH_NS_MAX};
use crate::clock::Now;
use crate::lane;
use crate::limits::{NOTE_LATE_NS, TRIES_MAX};
use crate::message::{Mode, Request};
use crate::planted::{self, Bug};
use crate::word_op::{Chain, Values, Word, WordAddr, WordOp};
use crate::words::{FairWord, LedgerEntry, LedgerState, TurnWord};

/// No ledger entry that names a ticket: nothing of this one was written yet.
pub(super) const NOT_NOTED: u64 = 0;

/// Whether the owner of a ticket that was just taken looks for its turn by itself.
pub(super) fn may_look(m: &Machine, e: &LockEntry, mode: Mode) -> bool {
    m.waits() && mode == Mode::Exclusive && e.may_try
}

/// A ticket was taken, and has not its turn.
pub(super) fn look_for(m: &mut Machine, e: &mut LockEntry, now: Now) -> Step {
    e.state = EntryState::ExclusiveTicketed;
    e.doubt = crate::lock::Doubt::None;
    e.cache = super::ticket_view(e);
    m.target = NOT_NOTED;
    let w = FairWord::from_bits(e.word);
    m.tries.queued_at(w, now);
    let ahead = lane::distance(w.nx(), e.ticket.tx);
    Step::Again { pause_ns: e.pace.before_turn_ns(ahead, 0), ahead }
}

/// After the pause: is it my turn?
pub(in crate::lock) fn look(m: &mut Machine, e: &mut LockEntry, now: Now) -> Step {
    m.started = now;
    let word = WordOp::Read { addr: e.w0() };
    let turn = WordOp::Read { addr: WordAddr::new(e.slot, Word::W1) };
    let (phase, first, then) = match (e.is_relayed, relay::needs_word(m, e, now)) {
        (false, _) => (Phase::Look, word, None),
        (true, false) => (Phase::LookTurn, turn, None),
        (true, true) => (Phase::LookBoth, turn, Some(word)),
    };
    m.phase = phase;
    let read = |chain: Chain| then.iter().fold(chain, |chain, &word_op| chain.then(word_op));
    let is_soon = now.local_ns.saturating_sub(m.taken_ns) < NOTE_LATE_NS;
    if is_soon && e.notes.claims_until(Mode::Exclusive, now.deadline(m.expire_s())) {
        return Step::Chain(read(Chain::one(first))); // by the intent
    }
    let mut claim = LedgerEntry::of_ticket(LedgerState::TicketExclusive, e.ticket);
    if super::claims(m.expire_s()) {
        claim = claim.with_deadline_s(now.deadline(m.expire_s()), e.anchor_s);
    }
    if m.target == claim.into_bits() {
        return Step::Chain(read(Chain::one(first)));
    }
    m.target = claim.into_bits();
    e.notes.is_replaced();
    let write = WordOp::WriteLedger { handle: e.handle, value: m.target };
    Step::Chain(read(Chain::one(write).then(first)))
}

/// The word as it was after the claim was written.
pub(super) fn looked(m: &mut Machine, e: &mut LockEntry, values: Values, now: Now) -> Step {
    let seen = match (m.phase, values.as_slice()) {
        (Phase::LookTurn, [.., turn]) => relay::seen(e, *turn, None),
        (Phase::LookBoth, [.., turn, word]) => relay::seen(e, *turn, Some(*word)),
        (Phase::Look, [.., word]) => relay::seen_word(e, *word),
        _ => return m.lose_track(e),
    };
    let Some(w) = seen else { return look_elsewhere(m, e, now) };
    let word = w.into_bits();
    e.see_lanes(word);
    if !w.is_open(e.ticket.tx) {
        e.clear_ledger_entry();
        if m.requeued {
            return e.lost();
        }
        e.end(EntryState::Initialized); // too slow: waiting can cure that
        return again(m, e, now);
    }
    e.word = word;
    let is_late = now.local_ns.saturating_sub(m.unserved_ns) >= LEDGER_FLUSH_NS_MAX;
    if is_late && !planted::is(Bug::PublishLateIgnored) {
        return queues(m, e);
    }
    if !w.is_turn_of(e.ticket) {
        if m.phase != Phase::LookTurn {
            m.unserved_ns = m.started.local_ns;
        }
        return look_again(m, e, w, now);
    }
    m.tries.came_to(e.ticket.tx, &mut e.pace);
    e.time_s = m.started.deadline(m.expire_s());
    e.is_judged_by(m.started);
    if m.target == NOT_NOTED {
        e.notes.write_late(held(Mode::Exclusive, e.ticket, e.time_s, e.anchor_s));
        return granted(m, e);
    }
    if LedgerEntry::from_bits(m.target).is_claim() {
        return granted(m, e);
    }
    e.notes.write(held(Mode::Exclusive, e.ticket, e.time_s, e.anchor_s));
    e.state = EntryState::Initialized; // asked again with the ticket, it would wait for itself
    m.target = 1; // served
    m.phase = Phase::Flush;
    Step::Confirm
}

/// What was looked at does not tell; the other word does.
fn look_elsewhere(m: &mut Machine, e: &mut LockEntry, now: Now) -> Step {
    if now.local_ns.saturating_sub(m.unserved_ns) >= LEDGER_FLUSH_NS_MAX {
        return queues(m, e);
    }
    match m.tries.tells_nothing() < TRIES_MAX {
        true => Step::Again { pause_ns: 0, ahead: 1 },
        false => queues(m, e),
    }
}

fn look_again(m: &mut Machine, e: &mut LockEntry, w: FairWord, now: Now) -> Step {
    let ahead = lane::distance(w.nx(), e.ticket.tx);
    let pause_ns = m.tries.sees_turn(w, ahead, now, &mut e.pace);
    match m.tries.lost() < TRIES_MAX {
        true => Step::Again { pause_ns, ahead },
        false => queues(m, e),
    }
}

/// Sleeps until the arbiter says that it is the ticket's turn. It is claimed no more.
pub(in crate::lock) fn queues(m: &mut Machine, e: &mut LockEntry) -> Step {
    let ticket = e.ticket;
    e.notes.write(LedgerEntry::of_ticket(LedgerState::TicketExclusive, ticket));
    m.wait(e, Some(ticket))
}

/// Whether a release is handed on although others are behind it.
pub(super) fn may_hand_over(e: &LockEntry, mode: Mode) -> bool {
    mode == Mode::Exclusive && e.may_try
}

/// Whether the lock is handed on although the word that the holder knows has no ticket after its
/// own: at its last such release another ticket had been taken meanwhile, which is found out one
/// round trip later if only this one word is expected.
pub(super) fn is_followed(e: &LockEntry, mode: Mode) -> bool {
    e.pace.is_followed() && may_hand_over(e, mode)
}

/// The holder of `word` hands the lock on. Of the tickets that were taken since it is in time for
/// one: whoever has released the lock before takes the next.
pub(super) fn hand_over(m: &mut Machine, e: &LockEntry, word: FairWord) -> Step {
    m.phase = Phase::HandOver;
    let addr = e.w0();
    let done = |w: FairWord| {
        let (expect, swap) = (w.into_bits(), w.exclusive_done().into_bits());
        WordOp::Cas { addr, expect, swap }
    };
    let companion = WordAddr::new(e.slot, Word::W1);
    let chain = Chain::one(done(word)).then(done(word.exclusive_taken()));
    Step::Chain(chain.then(WordOp::Read { addr: companion }))
}

pub(super) fn handed_over(m: &mut Machine, e: &mut LockEntry, values: Values, now: Now) -> Step {
    let &[first, second, told] = values.as_slice() else { return m.lose_track(e) };
    let word = FairWord::from_bits(e.word);
    let more = word.exclusive_taken();
    let before = match (first == e.word, second == more.into_bits()) {
        (true, _) => word,
        (_, true) => more,
        _ => return super::released_otherwise(m, e, second, now),
    };
    if word.open_exclusive() == 1 {
        e.pace.followed(first != e.word);
    }
    e.word = before.exclusive_done().into_bits();
    e.turn = TurnWord::from_bits(told);
    let is_told = e.turn.told() && !planted::is(Bug::NoFairWake);
    clear(e, Mode::Exclusive);
    match released(e, Mode::Exclusive, now) {
        Step::Done(result) if is_told => wake(m, e, result),
        step => step,
    }
}

pub(super) fn wake(m: &mut Machine, e: &LockEntry, result: OpResult) -> Step {
    m.tell(Request::Wake { handle: e.handle }, result)
}
