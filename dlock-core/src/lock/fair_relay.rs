// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fair lock that is handed on by its companion word, client side.
//!
//! ```text
//!   held ─▶ Cas(w1: my number) ─▶ [Cas(w0: relayed), Cas(one ticket more)] ─┐ where others follow
//!                                                                           ▼
//!   Faa ─ relayed ─▶ look at w1 ─ my number ─▶ held ─▶ Cas(w1: one more) ─▶ released
//!                     └ told ─▶ look at w0         └─▶ [Cas(w0: done), Cas(w1: one more)]
//! ```
//! The word changes with each ticket that is taken, so that a release which expects one fails while
//! others come. While a lock is *relayed* the number that is served is in the companion word, which
//! only the holder changes, and the arbiter. So a release is one compare-and-swap, which names the
//! holder's own number and fails only if the arbiter wants to be told.
//!
//! * The companion word has the holder's number, known from a compare-and-swap, before the word
//!   says that it counts. So the number never goes back within a lap: whoever finds its own there
//!   has had its turn come, whatever the word says by now.
//! * That a ticket has *not* its turn is known only from both words, the companion read first: the
//!   lock may not be relayed any more.
//! * Shares before a ticket are counted in the word alone.
//! * The arbiter works on the word: it ends a relay before it looks (`arbiter/fair_relay.rs`).
//!
//! A holder that nobody seems to follow releases the lock and ends the relay, so that the next
//! ticket is served at once.

use super::super::machine::LEDGER_FLUSH_NS_MAX;
use super::super::{LockEntry, Machine, Phase, Step};
use super::turn;
use super::{ask_release, asks_place, clear, done, handed, place, released, released_otherwise};
use crate::clock::Now;
use crate::lane;
use crate::limits::CLIENTS_MAX;
use crate::message::Mode;
use crate::planted::{self, Bug};
use crate::word_op::{Chain, Values, Word, WordAddr, WordOp};
use crate::words::{FairWord, TurnWord};

/// How long looks at the companion word alone may go on: a quarter of what the arbiter is asked
/// after.
const LOOK_TURN_NS_MAX: u64 = LEDGER_FLUSH_NS_MAX / 4;

impl LockEntry {
    /// Fair: whether others are likely to have come before its last release, of which it does not
    /// know.
    #[inline]
    pub fn is_followed(&self) -> bool {
        self.pace.is_followed()
    }

    /// Fair: whether others wait for the lock that it holds, as far as it knows, or are likely to.
    #[inline]
    pub fn has_followers(&self) -> bool {
        self.is_followed() || FairWord::from_bits(self.word).open_exclusive() > 1
    }

    /// Fair: whether the lock may be handed on by its companion word; not at a primary that speaks
    /// an older version than [`VERSION_RELAYS`](crate::control::VERSION_RELAYS).
    pub fn may_relay(&mut self, may: bool) {
        self.may_relay = may;
    }
}

/// The word in which a ticket was taken, with a number that is likely to have been served by then,
/// and not after the ticket. It is not known before the companion word was looked at: it tells how
/// soon to look there, and a successor, which needs a number less than half a lane away, where the
/// ticket's place is.
pub(super) fn guessed(e: &LockEntry, w: FairWord) -> FairWord {
    let next = lane::plus(e.ticket.tx, 1);
    let ahead = lane::distance(next, w.mx());
    match usize::from(ahead) < CLIENTS_MAX && ahead <= lane::mask() / 2 {
        true => w.with_nx(next),
        false => w.with_nx(w.mx()),
    }
}

/// A ticket was taken while the lock was relayed, by one that does not look for its turn.
pub(super) fn look_once(m: &mut Machine, e: &mut LockEntry) -> Step {
    if !e.may_try {
        return asks_place(m, e);
    }
    m.phase = Phase::Placed;
    Step::Chain(Chain::one(WordOp::Read { addr: companion(e) }))
}

/// The companion word as it was after the ticket was taken.
pub(super) fn placed(m: &mut Machine, e: &mut LockEntry, turn: u64, now: Now) -> Step {
    e.turn = TurnWord::from_bits(turn);
    let w = at_turn(FairWord::from_bits(e.word), e.turn);
    let mode = m.mode();
    if tells_nothing(e.turn) || mode == Mode::Exclusive && !w.is_open(e.ticket.tx) {
        return asks_place(m, e);
    }
    e.word = w.into_bits();
    let served = match mode {
        Mode::Exclusive => w.is_turn_of(e.ticket),
        Mode::Shared => w.with_ms(e.ticket.ts).serves_next(mode),
    };
    place(m, e, served, now)
}

/// Whether a look needs the word, too.
pub(super) fn needs_word(m: &Machine, e: &LockEntry, now: Now) -> bool {
    let is_behind_shares = FairWord::from_bits(e.word).ns() != e.ticket.ts;
    is_behind_shares && !planted::is(Bug::RelaySharesPassed)
        || now.local_ns.saturating_sub(m.unserved_ns) >= LOOK_TURN_NS_MAX
}

/// The word alone was looked at: it does not tell if the lock is relayed.
pub(super) fn seen_word(e: &mut LockEntry, word: u64) -> Option<FairWord> {
    let w = FairWord::from_bits(word);
    e.is_relayed = w.is_relayed();
    (!e.is_relayed).then_some(w)
}

/// The companion word was looked at, and then the word if that is there.
pub(super) fn seen(e: &mut LockEntry, turn: u64, word: Option<u64>) -> Option<FairWord> {
    e.turn = TurnWord::from_bits(turn);
    let w = FairWord::from_bits(word.unwrap_or(e.word));
    e.is_relayed = word.is_none() || w.is_relayed();
    if e.is_relayed && tells_nothing(e.turn) {
        e.is_relayed = false;
        return None;
    }
    let is_shared_before = planted::is(Bug::RelaySharesPassed) && e.is_relayed;
    let w = if is_shared_before { w.with_ns(e.ticket.ts) } else { w };
    Some(if e.is_relayed { at_turn(w, e.turn) } else { w })
}

/// Whether the lock may be relayed no more.
fn tells_nothing(turn: TurnWord) -> bool {
    turn.told() || turn.ended()
}

/// The word, of which more tickets may be taken than it says, with this number served.
pub(super) fn at_turn(w: FairWord, turn: TurnWord) -> FairWord {
    let nx = turn.nx();
    let mx = if lane::is_before(w.mx(), nx) { nx } else { w.mx() };
    w.with_nx(nx).with_mx(mx)
}

pub(super) fn companion(e: &LockEntry) -> WordAddr {
    WordAddr::new(e.slot, Word::W1)
}

/// Whether the holder may have the lock relayed from now on: not where the arbiter may be about to
/// start the lane again, which clears the companion word.
pub(super) fn may_begin(e: &LockEntry, word: FairWord) -> bool {
    let is_far = |number: u16| lane::plus(number, 1) >= lane::divert();
    e.may_relay && !e.turn.told() && !is_far(word.mx()) && !is_far(e.ticket.tx)
}

pub(super) fn turn_of(number: u16) -> TurnWord {
    TurnWord::new().with_nx(number)
}

/// The companion word is to have the number that is served.
pub(super) fn announce(m: &mut Machine, e: &mut LockEntry) -> Step {
    if planted::is(Bug::RelayUnchecked) {
        return begin(m, e);
    }
    m.phase = Phase::Announce;
    let (expect, swap) = (e.turn.into_bits(), turn_of(e.ticket.tx).into_bits());
    Step::Chain(Chain::one(WordOp::Cas { addr: companion(e), expect, swap }))
}

/// It has the number that is served: from now on it counts.
fn begin(m: &mut Machine, e: &mut LockEntry) -> Step {
    m.phase = Phase::BeginRelay;
    let addr = e.w0();
    let relayed = |w: FairWord| {
        let (expect, swap) = (w.into_bits(), w.relayed().into_bits());
        WordOp::Cas { addr, expect, swap }
    };
    let word = FairWord::from_bits(e.word);
    Step::Chain(Chain::one(relayed(word)).then(relayed(word.exclusive_taken())))
}

/// The holder of a relayed lock hands it on.
pub(super) fn release(m: &mut Machine, e: &LockEntry, mode: Mode, word: FairWord) -> Step {
    if mode == Mode::Shared || !may_pass(e) {
        return ask_release(m, e, mode);
    }
    if passes(e, word) {
        return pass(m, e);
    }
    m.phase = Phase::EndRelay;
    let (expect, swap) = (word.relayed().into_bits(), done(word, mode).into_bits());
    let end = WordOp::Cas { addr: e.w0(), expect, swap };
    Step::Chain(Chain::one(end).then(one_more(e)))
}

fn may_pass(e: &LockEntry) -> bool {
    e.may_try && lane::plus(e.ticket.tx, 1) < lane::ring()
}

/// Whether the exclusive holder of a relayed lock hands it on by the companion word alone.
pub(super) fn passes(e: &LockEntry, word: FairWord) -> bool {
    may_pass(e) && (word.open_exclusive() > 1 || turn::is_followed(e, Mode::Exclusive))
}

pub(super) fn pass(m: &mut Machine, e: &LockEntry) -> Step {
    m.phase = Phase::Pass;
    Step::Chain(Chain::one(one_more(e)))
}

/// The companion word from the holder's number to the next.
fn one_more(e: &LockEntry) -> WordOp {
    let (expect, next) = (e.turn.into_bits(), lane::plus(e.ticket.tx, 1));
    WordOp::Cas { addr: companion(e), expect, swap: turn_of(next).into_bits() }
}

pub(super) fn outcome(m: &mut Machine, e: &mut LockEntry, values: Values, now: Now) -> Step {
    match (m.phase, values.as_slice()) {
        (Phase::Announce, &[found]) => announced(m, e, found, now),
        (Phase::BeginRelay, &[first, second]) => begun(m, e, first, second, now),
        (Phase::Pass, &[found]) => passed(m, e, found, now),
        (Phase::EndRelay, &[word, found]) => {
            let is_ended = word == FairWord::from_bits(e.word).relayed().into_bits();
            e.pace.followed(!is_ended);
            if is_ended {
                e.is_relayed = false;
                // the relay may have begun when the arbiter was to be told already
                let is_told = TurnWord::from_bits(found).told() && !planted::is(Bug::NoFairWake);
                return match has_passed(e, now) {
                    Step::Done(result) if is_told => turn::wake(m, e, result),
                    step => step,
                };
            }
            passed(m, e, found, now)
        }
        _ => m.lose_track(e),
    }
}

fn announced(m: &mut Machine, e: &mut LockEntry, found: u64, now: Now) -> Step {
    let mine = turn_of(e.ticket.tx);
    let is_mine = found == e.turn.into_bits() || found == mine.into_bits();
    if is_mine && !e.maybe_over(now) {
        e.turn = mine;
        return begin(m, e);
    }
    e.turn = TurnWord::from_bits(found);
    m.rounds += 1;
    super::release(m, e, Mode::Exclusive, now)
}

fn begun(m: &mut Machine, e: &mut LockEntry, first: u64, second: u64, now: Now) -> Step {
    let word = FairWord::from_bits(e.word);
    let more = word.exclusive_taken();
    let before = match (first == e.word, second == more.into_bits()) {
        (true, _) => word,
        (_, true) => more,
        _ => return released_otherwise(m, e, second, now),
    };
    e.word = before.into_bits();
    e.is_relayed = true;
    super::release(m, e, Mode::Exclusive, now)
}

fn passed(m: &mut Machine, e: &mut LockEntry, found: u64, now: Now) -> Step {
    if found == e.turn.into_bits() {
        return has_passed(e, now);
    }
    if e.is_handed {
        return handed::refused(m, e, TurnWord::from_bits(found), now);
    }
    e.turn = TurnWord::from_bits(found);
    let own = turn_of(e.ticket.tx).with_told(true);
    if planted::is(Bug::RelayToldIgnored) && e.turn == own {
        return super::release(m, e, Mode::Exclusive, now);
    }
    ask_release(m, e, Mode::Exclusive)
}

fn has_passed(e: &mut LockEntry, now: Now) -> Step {
    let word = FairWord::from_bits(e.word);
    e.turn = turn_of(lane::plus(e.ticket.tx, 1));
    e.word = done(word, Mode::Exclusive).into_bits();
    clear(e, Mode::Exclusive);
    released(e, Mode::Exclusive, now)
}
