// SPDX-License-Identifier: MIT OR Apache-2.0
//! The atomic lock, client side.
//!
//! ```text
//!   acquire   Cas(0 → me|deadline) ─ held ─▶ Fail, or again, or Wait ─ granted ─▶ held
//!                                  └ expired for sure ─▶ Cas(seen → me|deadline)
//!                                  └ expired perhaps  ─▶ Steal
//!   extend    Cas(mine → mine with a later deadline)
//!   release   Cas(mine → 0) ─ waiters ─▶ Release; at once where the primary would execute the Cas,
//!             and others waited at the last release
//! ```
//! Where a token is wanted, `Faa(fence, 1)` follows each `Cas` that takes the lock.
//! A word with the waiters bit is changed by the arbiter alone, but for its holder's own extend.

use super::machine::Phase;
use super::{LockEntry, Machine, Op, OpResult, Step, TimeOut, View};
use crate::clock::{Deadline, Lease, Now};
use crate::limits::CAS_ROUNDS_MAX;
use crate::memory::word_op::{Chain, WordOp};
use crate::memory::words::AtomicWord;
use crate::planted::{self, Bug};
use crate::token::Token;
use crate::wire::message::{Mode, Reply, Request};
use crate::wire::status::Status;

/// Where an operation on an atomic lock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum At {
    /// It takes a word that was found so: free, or of a hold that is over for sure.
    Taking { found: u64, mine: u64 },
    /// It moves the deadline of its own hold.
    Extending { later: u64 },
    /// It gives its own hold up.
    Releasing,
    /// The arbiter is asked to take over a hold that may be over.
    Steals,
    /// The arbiter is asked to release.
    AsksRelease,
}

impl At {
    /// The deadline of the lease that begins if the word is as expected.
    #[inline(always)]
    pub(super) fn begins_until(self) -> Option<Deadline> {
        match self {
            At::Taking { mine, .. } => Some(AtomicWord::from_bits(mine).timeout()),
            _ => None,
        }
    }
}

/// The first effect of an acquire or a release; `None`: the release is the arbiter's.
#[inline(always)]
pub(super) fn first(op: Op, e: &LockEntry, now: &Now) -> Option<(At, WordOp)> {
    let (at, expect, swap) = match op {
        Op::TryLock { lease, .. } | Op::Lock { lease, .. } if e.refs == 0 => {
            let deadline = now.deadline(lease);
            let mine = AtomicWord::new().with_client(e.me.get()).with_timeout(deadline);
            let mine = mine.into_bits();
            (At::Taking { found: 0, mine }, 0, mine)
        }
        Op::TryLock { lease, .. } | Op::Lock { lease, .. } | Op::Extend { lease, .. } => {
            let later = later_word(e, lease, now);
            (At::Extending { later }, e.word, later)
        }
        Op::Unlock if is_arbiters(e) => return None,
        Op::Unlock => (At::Releasing, e.word, 0),
    };
    Some((at, WordOp::Cas { addr: e.w0(), expect, swap }))
}

/// What the first effect has decided; `None`: the word was not as expected.
#[inline(always)]
pub(super) fn ends(
    op: Op,
    e: &mut LockEntry,
    at: At,
    old: u64,
    (begun, now): (&Now, &Now),
) -> Option<OpResult> {
    match at {
        At::Taking { found, mine } if old == found => Some(granted(e, mine, begun)),
        // the hold is still its own
        At::Extending { later } if old == e.word => Some(extended(op, e, later, (begun, now))),
        At::Releasing if old == e.word => Some(released(e)),
        _ => None,
    }
}

pub(super) fn start(m: &mut Machine, e: &LockEntry) -> Step {
    match first(m.op, e, &m.started) {
        Some((at, word_op)) => {
            m.phase = Phase::Atomic(at);
            Step::Chain(with_token(e, at, word_op))
        }
        None => release(m, e),
    }
}

/// Whether the release is the arbiter's: of a word with the waiters bit.
#[inline(always)]
fn is_arbiters(e: &LockEntry) -> bool {
    let has_bit = AtomicWord::from_bits(e.word).waiters() && !planted::is(Bug::ReleaseIgnoresBit);
    has_bit || e.asks_at_once()
}

fn release(m: &mut Machine, e: &LockEntry) -> Step {
    m.phase = Phase::Atomic(At::AsksRelease);
    let (handle, mode) = (e.handle, Mode::Exclusive);
    Step::Request(Request::Release { handle, mode, ticket: None })
}

fn cas(m: &mut Machine, e: &LockEntry, at: At, expect: u64, swap: u64) -> Step {
    m.phase = Phase::Atomic(at);
    Step::Chain(with_token(e, at, WordOp::Cas { addr: e.w0(), expect, swap }))
}

/// A chain that takes the lock takes its token after the word names this client: no later holder
/// has a smaller one.
fn with_token(e: &LockEntry, at: At, cas: WordOp) -> Chain {
    if !matches!(at, At::Taking { .. }) || !e.desc.tokens {
        return Chain::one(cas);
    }
    let count = WordOp::Faa { addr: e.fence(), add: 1 };
    match planted::is(Bug::TokenBeforeCas) {
        true => Chain::one(count).then(cas),
        false => Chain::one(cas).then(count),
    }
}

/// The word that the compare-and-swap has found. If the chain took a token, the entry has it.
#[inline]
pub(super) fn found(e: &mut LockEntry, at: At, values: &[u64]) -> Option<u64> {
    match (at, values) {
        (At::Taking { .. }, &[count, cas]) if planted::is(Bug::TokenBeforeCas) => {
            e.token = Token::of_atomic(count);
            Some(cas)
        }
        (At::Taking { .. }, &[cas, count]) => {
            e.token = Token::of_atomic(count);
            Some(cas)
        }
        _ => values.first().copied(),
    }
}

/// The word of the hold with a later deadline. With nothing to move it is the same, and a
/// compare-and-swap a query.
fn later_word(e: &LockEntry, lease: Lease, now: &Now) -> u64 {
    let word = AtomicWord::from_bits(e.word);
    let later = match lease {
        Lease::NONE => word.timeout(),
        _ if planted::is(Bug::ExtendShortens) => now.deadline(lease),
        _ => word.timeout().max(now.deadline(lease)),
    };
    let keep = word.waiters() && !planted::is(Bug::ExtendDropsBit);
    word.with_timeout(later).with_waiters(keep).into_bits()
}

/// The first effect has found the word to be another than expected.
pub(super) fn interfered(m: &mut Machine, e: &mut LockEntry, at: At, old: u64, now: Now) -> Step {
    match at {
        At::Taking { mine, .. } => not_acquired(m, e, mine, old, now),
        At::Extending { .. } => not_extended(m, e, old, now),
        At::Releasing => not_released(m, e, old),
        At::Steals | At::AsksRelease => m.lose_track(e),
    }
}

fn not_acquired(m: &mut Machine, e: &mut LockEntry, mine: u64, old: u64, now: Now) -> Step {
    let word = AtomicWord::from_bits(old);
    m.rounds += 1;
    let queue = word.waiters() && !planted::is(Bug::StealPastQueue);
    if m.rounds < CAS_ROUNDS_MAX && !queue {
        // released in the meantime, or over
        if old == 0 || now.surely_expired(word.timeout()) {
            return cas(m, e, At::Taking { found: old, mine }, old, mine);
        }
        if now.maybe_expired(word.timeout()) {
            m.phase = Phase::Atomic(At::Steals);
            let (handle, lease) = (e.handle, m.op.lease());
            return Step::Request(Request::Steal { handle, lease });
        }
    }
    match m.waits() {
        true => m.again_or_wait(e, old),
        false => m.done(Status::Fail),
    }
}

/// `clock`: the one by which the lease counts.
#[inline(always)]
fn granted(e: &mut LockEntry, word: u64, clock: &Now) -> OpResult {
    e.word = word;
    e.is_judged_by(clock);
    let view = view(e);
    e.grant(Mode::Exclusive, view)
}

#[inline(always)]
fn view(e: &mut LockEntry) -> View {
    let word = AtomicWord::from_bits(e.word);
    e.lease.time = word.timeout();
    View::Atomic { client_id: word.client(), time_out: e.shown(word.timeout()) }
}

fn extended(op: Op, e: &mut LockEntry, later: u64, (begun, now): (&Now, &Now)) -> OpResult {
    e.word = later;
    let clock = if planted::is(Bug::ExtendedOnOtherClock) { now } else { begun };
    e.goes_on(AtomicWord::from_bits(later).timeout(), op.lease(), clock);
    let view = view(e);
    if op.is_acquire() {
        return e.grant(Mode::Exclusive, view); // once more
    }
    e.cache = view;
    OpResult { status: Status::Success, view: Some(view) }
}

fn not_extended(m: &mut Machine, e: &mut LockEntry, old: u64, now: Now) -> Step {
    if AtomicWord::from_bits(old).client() != e.me.get() {
        return Step::Done(e.lost_by(m));
    }
    m.rounds += 1;
    if m.rounds >= CAS_ROUNDS_MAX {
        return m.done(Status::BadResponse); // only I and the arbiter's bit can change it
    }
    e.word = old; // the arbiter has set or cleared the waiters bit, or a lost extend came through
    let later = later_word(e, m.op.lease(), &now);
    cas(m, e, At::Extending { later }, old, later)
}

#[inline(always)]
fn released(e: &mut LockEntry) -> OpResult {
    e.released(View::Atomic { client_id: 0, time_out: TimeOut::NONE })
}

fn not_released(m: &mut Machine, e: &mut LockEntry, old: u64) -> Step {
    let word = AtomicWord::from_bits(old);
    if word.client() != e.me.get() && !planted::is(Bug::AtomicReleaseUnchecked) {
        return Step::Done(e.lost());
    }
    e.word = old;
    m.rounds += 1;
    e.pace.followed(word.waiters());
    if word.waiters() || m.rounds >= CAS_ROUNDS_MAX {
        return release(m, e);
    }
    cas(m, e, At::Releasing, old, 0)
}

pub(super) fn reply(m: &mut Machine, e: &mut LockEntry, reply: Reply, now: Now) -> Step {
    match (m.op, reply) {
        (Op::Unlock, Reply::Done { word }) => {
            e.pace.followed(word != 0);
            Step::Done(released(e))
        }
        (Op::Unlock, Reply::Denied { .. }) => Step::Done(e.lost()),
        (Op::TryLock { .. } | Op::Lock { .. }, Reply::Granted { word, token, .. }) => {
            e.token = token;
            Step::Done(granted(e, word, &now))
        }
        (Op::TryLock { .. }, Reply::Denied { .. }) => m.done(Status::Fail),
        (Op::Lock { .. }, Reply::Denied { .. }) if m.phase == Phase::Atomic(At::Steals) => {
            m.queues(e)
        }
        (Op::Lock { .. }, Reply::Cancelled { .. } | Reply::Denied { .. }) => m.done(Status::Fail),
        _ => m.lose_track(e),
    }
}
