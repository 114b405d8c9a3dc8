// SPDX-License-Identifier: MIT OR Apache-2.0
//! A turn that is told by the holder before, client side.
//!
//! ```text
//!   holder   Cas(w1: one more), posted ─▶ hands on ┈┈┈┈┐   between two clients of one host
//!   waiter   Faa, or looks ─▶ pause ─ is it handed? ◀┈┈┘─▶ held, with no look
//!   release  Cas(w1: one more) ─ not my number yet ─▶ again ─▶ Abandon
//! ```
//! The word is late then: it still says that it is the turn of the holder before. The release of
//! that one is on its way, may fail, and may be lost. Nevertheless no other client has the lock:
//!
//! * Who hands the lock on had it under the ticket before at the moment that it tells, that of its
//!   grant, and uses it no more. That was [`HAND_ON_NS_MAX`] ago at most, by the same clock: in
//!   that time no lane comes to the same number once more, even if the primary has ended that hold
//!   meanwhile. So it is the same lap, and the ticket, whenever it was taken in that lap, is the
//!   next. The waiter had the lock's place before that, so that it is the same lock, too.
//! * The ticket is not skipped before the end of the lease that begins now: an intent claims it
//!   until then, also when its client's session has ended. What is written with a ticket would not
//!   do: of that the primary knows that it has not its turn.
//! * No share is open before the ticket, as the word said when that was taken.
//!
//! Until the turn was seen in a word, the hold's own release may come too early. It is tried again,
//! and then the ticket is given up, as that of a waiter: the arbiter skips it at its turn. An
//! extension needs the ledger alone as long as the number served is not after the ticket.

use super::super::{EntryState, LockEntry, Machine, Op, Phase, Step};
use super::{ask_extend, ask_release, extended, granted, held, later_deadline};
use super::{name_given_up, relay, released, turn};
use crate::clock::Now;
use crate::lane;
use crate::limits::{CAS_ROUNDS_MAX, HAND_ON_NS_MAX, NOTE_LATE_NS};
use crate::message::{LockType, Mode, Request};
use crate::planted::{self, Bug};
use crate::word_op::{Chain, Values, WordOp};
use crate::words::{FairWord, TurnWord};

impl LockEntry {
    /// It has its place since a moment that was before `now_ns`, on this host's clock. What was
    /// handed on earlier may be of a lock that had its place, and its name, before.
    pub fn is_got_at(&mut self, now_ns: u64) {
        self.got_ns = now_ns;
    }
}

impl Machine {
    /// The number of the exclusive ticket to which the chain under way hands the lock on, if it
    /// does, and when its holder was granted the lock, or had its lease confirmed, last.
    #[inline]
    pub(crate) fn hands_on_to(&self, e: &LockEntry) -> Option<(u16, u64)> {
        let next = || (lane::plus(e.ticket.tx, 1), e.since_ns);
        matches!(self.phase, Phase::Pass).then(next)
    }

    /// The number of the exclusive ticket to which the lock may be handed on in a pause.
    pub(crate) fn listens(&self, e: &LockEntry) -> Option<u16> {
        let is_fair = matches!(e.lock_type, LockType::Fair) && e.may_relay;
        let may = is_fair && e.state == EntryState::ExclusiveTicketed;
        let is_by_intent = self.target == turn::NOT_NOTED;
        (may && is_by_intent && is_first_of_shares(e)).then_some(e.ticket.tx)
    }

    /// In place of [`paused`](Self::paused): the holder of the ticket before, which had the lock at
    /// `since_ns`, has handed it on.
    pub(crate) fn handed(&mut self, e: &mut LockEntry, since_ns: u64, now: Now) -> Step {
        let is_fresh = (since_ns..=since_ns.saturating_add(HAND_ON_NS_MAX)).contains(&now.local_ns);
        let is_soon = now.local_ns.saturating_sub(self.taken_ns) < NOTE_LATE_NS;
        let is_stale = since_ns < e.got_ns || !is_fresh || !is_soon;
        let until_s = now.deadline(self.expire_s());
        let is_claimed = e.notes.claims_until(Mode::Exclusive, until_s);
        if self.listens(e).is_none() || is_stale || !is_claimed {
            return self.paused(e, now);
        }
        e.turn = relay::turn_of(e.ticket.tx);
        e.word = relay::at_turn(FairWord::from_bits(e.word), e.turn).into_bits();
        (e.is_relayed, e.is_handed) = (true, true);
        e.time_s = until_s;
        e.is_judged_by(if planted::is(Bug::HandedOnOtherClock) { self.started } else { now });
        e.notes.write_late(held(Mode::Exclusive, e.ticket, e.time_s, e.anchor_s));
        granted(self, e)
    }
}

/// Whether no share was open before the ticket when that was taken.
fn is_first_of_shares(e: &LockEntry) -> bool {
    FairWord::from_bits(e.word).ns() == e.ticket.ts || planted::is(Bug::HandedPastShares)
}

/// The holder releases the lock; its turn was not seen in a word.
pub(super) fn release(m: &mut Machine, e: &mut LockEntry, now: Now) -> Step {
    let may_pass = m.phase != Phase::See && !e.maybe_over(now);
    if m.rounds >= CAS_ROUNDS_MAX {
        return gives_up(m, e, now);
    }
    match may_pass && relay::passes(e, FairWord::from_bits(e.word)) {
        true => relay::pass(m, e),
        false => see(m, e),
    }
}

/// The release came too early, again and again: the arbiter skips the ticket at its turn.
fn gives_up(m: &mut Machine, e: &mut LockEntry, now: Now) -> Step {
    let (mode, ticket) = (Mode::Exclusive, e.ticket);
    e.word = FairWord::from_bits(e.word).with_nx(m.target as u16).into_bits();
    let Step::Done(result) = released(e, mode, now) else { return m.lose_track(e) };
    name_given_up(e, mode);
    m.tell(Request::Abandon { handle: e.handle, mode, ticket }, result)
}

/// Both words, the companion first: the number that it has is not too high then.
fn see(m: &mut Machine, e: &LockEntry) -> Step {
    let [turn, word] = words(m, e);
    Step::Chain(Chain::one(turn).then(word))
}

fn words(m: &mut Machine, e: &LockEntry) -> [WordOp; 2] {
    m.phase = Phase::See;
    [relay::companion(e), e.w0()].map(|addr| WordOp::Read { addr })
}

/// The holder extends its lease until `later_s`: that is noted before the words are read.
pub(super) fn extend(m: &mut Machine, e: &LockEntry, mode: Mode, later_s: u32) -> Step {
    let value = held(mode, e.ticket, later_s, e.anchor_s).into_bits();
    let note = WordOp::WriteLedger { handle: e.handle, value };
    let [turn, word] = words(m, e);
    Step::Chain(Chain::one(note).then(turn).then(word))
}

/// `found` is the companion word, which has not the number of the hold.
pub(super) fn refused(m: &mut Machine, e: &mut LockEntry, found: TurnWord, now: Now) -> Step {
    m.rounds += 1;
    m.target = u64::from(found.nx());
    if found != relay::turn_of(found.nx()) {
        m.phase = Phase::See; // the number may be in the word
    }
    super::release(m, e, Mode::Exclusive, now)
}

/// Both words were read.
pub(super) fn seen(m: &mut Machine, e: &mut LockEntry, values: Values, now: Now) -> Step {
    let &[.., turn, word] = values.as_slice() else { return m.lose_track(e) };
    let (turn, word) = (TurnWord::from_bits(turn), FairWord::from_bits(word));
    let w = word.told_by(turn);
    if w.nx() == e.ticket.tx {
        // an extension goes on with what it knows: the arbiter may be about to end the relay
        if matches!(m.op, Op::Unlock) {
            e.is_handed = false;
            (e.word, e.turn, e.is_relayed) = (w.into_bits(), turn, word.is_relayed());
        }
    } else if !w.is_open(e.ticket.tx) {
        e.clear_ledger_entry();
        return e.lost();
    }
    m.rounds += 1;
    m.target = u64::from(w.nx());
    let is_told = e.is_relayed && turn != relay::turn_of(turn.nx());
    match m.op {
        Op::Unlock if is_told && !e.is_handed => ask_release(m, e, Mode::Exclusive),
        Op::Unlock => super::release(m, e, Mode::Exclusive, now),
        _ if e.maybe_over(now) => ask_extend(m, e, Mode::Exclusive, m.expire_s()),
        _ => {
            let deadline_s = later_deadline(e, m.expire_s(), m.started);
            e.goes_on(deadline_s, m.expire_s(), m.started);
            extended(m, e, e.word, Mode::Exclusive)
        }
    }
}
