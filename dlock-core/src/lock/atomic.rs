// SPDX-License-Identifier: MIT OR Apache-2.0
//! The atomic lock, client side.
//!
//! ```text
//!   acquire   Cas(0 → me|deadline) ─ held ─▶ Fail, or again, or Wait ─ granted ─▶ held
//!                                  └ expired for sure ─▶ Cas(seen → me|deadline)
//!                                  └ expired perhaps  ─▶ Steal
//!   extend    Cas(mine → mine with a later deadline)
//!   release   Cas(mine → 0) ─ waiters ─▶ Release; at once if the primary would execute the Cas,
//!             and others waited at the last release
//! ```
//! If the client wants a token, `Faa(fence, 1)` follows each `Cas` that takes the lock. A word with
//! the waiters bit is changed by the arbiter alone; only the holder's own extend may still write
//! it.

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

/// The step that an operation on an atomic lock has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum At {
    /// The client takes the lock: it expects `found`, which is free or a hold that is surely over.
    Taking { found: u64, mine: u64 },
    /// The client moves the deadline of its own hold.
    Extending { later: u64 },
    /// The client releases its own hold.
    Releasing,
    /// The client has asked the arbiter to take over a hold that may be over (`Request::Steal`),
    /// and waits for the reply.
    Steals,
    /// The client has asked the arbiter to release its own hold (`Request::Release`), and waits for
    /// the reply.
    AsksRelease,
}

impl At {
    /// The deadline of the lease that begins if the word is as expected; `None`: no lease begins.
    #[inline(always)]
    pub(super) fn begins_until(self) -> Option<Deadline> {
        match self {
            At::Taking { mine, .. } => Some(AtomicWord::from_bits(mine).timeout()),
            _ => None,
        }
    }
}

/// The first effect of an acquire or a release; `None`: the arbiter has to execute the release.
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
        Op::Downgrade => return None, // never: `begin` refuses a downgrade of an atomic lock
        Op::Unlock => (At::Releasing, e.word, 0),
    };
    Some((at, WordOp::Cas { addr: e.w0(), expect, swap }))
}

/// The result, if the first effect decides the operation; `None`: the word was not as expected.
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
        // the hold is still this client's
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

/// Whether the arbiter has to release: the word has the waiters bit, or others are likely to wait.
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

/// The chain of a first effect.
#[inline(never)]
pub(super) fn chain_of(e: &LockEntry, at: At) -> Chain {
    let (expect, swap) = match at {
        At::Taking { found, mine } => (found, mine),
        At::Extending { later } => (e.word, later),
        _ => (e.word, 0),
    };
    with_token(e, at, WordOp::Cas { addr: e.w0(), expect, swap })
}

/// The chain of `cas`. If it takes the lock, it takes the token after the word names this client,
/// so that no later holder has a smaller token.
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

/// The word that the compare-and-swap has found. A token that the chain took goes to the entry.
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

/// The word of the hold with a later deadline. If the deadline does not change, the word stays the
/// same, and the compare-and-swap only asks whether the client still holds the lock.
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

/// The first effect has found another word than it expected.
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
        // another client has released the lock in the meantime, or its hold is over
        if old == 0 || now.surely_expired(word.timeout()) {
            return cas(m, e, At::Taking { found: old, mine }, old, mine);
        }
        if now.maybe_expired(word.timeout()) {
            m.phase = Phase::Atomic(At::Steals);
            let (handle, mode, lease) = (e.handle, Mode::Exclusive, m.op.lease());
            return Step::Request(Request::Steal { handle, mode, lease });
        }
    }
    match m.waits() {
        true => m.again_or_wait(e, old),
        false if word.kept() => m.tries_kept(e),
        false => m.done(Status::Fail),
    }
}

/// Begins the hold. `clock`: the clock by which the lease counts.
#[inline(always)]
fn granted(e: &mut LockEntry, word: u64, clock: &Now) -> OpResult {
    e.word = word;
    e.is_judged_by(clock);
    let view = view(e);
    e.grant(Mode::Exclusive, view)
}

#[inline(always)]
pub(super) fn view(e: &mut LockEntry) -> View {
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
        return e.grant(Mode::Exclusive, view); // the client enters its own hold again
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
        // so many changes are impossible: only this client and the arbiter's bit change the word
        return m.done(Status::BadResponse);
    }
    // the arbiter has set or cleared the waiters bit, or an extend without an answer took effect
    e.word = old;
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
