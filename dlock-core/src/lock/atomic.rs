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
//! A word with the waiters bit is changed by the arbiter alone, but for its holder's own extend.

use super::machine::Phase;
use super::{LockEntry, Machine, Op, Step, View};
use crate::clock::Now;
use crate::limits::CAS_ROUNDS_MAX;
use crate::memory::word_op::{Chain, Values, WordOp};
use crate::memory::words::AtomicWord;
use crate::planted::{self, Bug};
use crate::wire::message::{Mode, Reply, Request};
use crate::wire::status::Status;

pub(super) fn start(m: &mut Machine, e: &mut LockEntry, now: Now) -> Step {
    match m.op {
        Op::TryLock { expire_s, .. } | Op::Lock { expire_s, .. } => {
            if e.refs > 0 {
                m.reentry = true;
                return extend(m, e, expire_s, now);
            }
            let mine =
                AtomicWord::new().with_client(e.me.get()).with_timeout(now.deadline(expire_s));
            cas(m, e, 0, mine.into_bits())
        }
        Op::Extend { expire_s, .. } => extend(m, e, expire_s, now),
        Op::Unlock if is_arbiters(e) => release(m, e),
        Op::Unlock => cas(m, e, e.word, 0),
    }
}

/// Whether the release is the arbiter's: of a word with the waiters bit.
#[inline]
fn is_arbiters(e: &LockEntry) -> bool {
    let has_bit = AtomicWord::from_bits(e.word).waiters() && !planted::is(Bug::ReleaseIgnoresBit);
    has_bit || e.asks_at_once()
}

fn release(m: &mut Machine, e: &LockEntry) -> Step {
    m.ask(Request::Release { handle: e.handle, mode: Mode::Exclusive, ticket: None })
}

fn cas(m: &mut Machine, e: &LockEntry, expect: u64, swap: u64) -> Step {
    m.target = swap;
    Step::Chain(Chain::one(WordOp::Cas { addr: e.w0(), expect, swap }))
}

fn extend(m: &mut Machine, e: &LockEntry, expire_s: u32, now: Now) -> Step {
    let word = AtomicWord::from_bits(e.word);
    let later = later_deadline(word, expire_s, now);
    // with nothing to move this is a compare-and-swap to the same value: a query
    let keep = word.waiters() && !planted::is(Bug::ExtendDropsBit);
    cas(m, e, e.word, word.with_timeout(later).with_waiters(keep).into_bits())
}

fn later_deadline(word: AtomicWord, expire_s: u32, now: Now) -> u32 {
    match expire_s {
        0 => word.timeout(),
        _ if planted::is(Bug::ExtendShortens) => now.deadline(expire_s),
        _ => word.timeout().max(now.deadline(expire_s)),
    }
}

pub(super) fn outcome(m: &mut Machine, e: &mut LockEntry, values: Values, now: Now) -> Step {
    let old = values[0];
    match m.op {
        Op::Unlock => released_or(m, e, old),
        Op::Extend { expire_s, .. } => extended_or(m, e, old, expire_s, now),
        Op::TryLock { expire_s, .. } | Op::Lock { expire_s, .. } if m.reentry => {
            extended_or(m, e, old, expire_s, now)
        }
        Op::TryLock { expire_s, .. } | Op::Lock { expire_s, .. } => {
            acquired_or(m, e, old, expire_s, now)
        }
    }
}

fn acquired_or(m: &mut Machine, e: &mut LockEntry, old: u64, expire_s: u32, now: Now) -> Step {
    let expected = if matches!(m.phase, Phase::Takeover) { e.word } else { 0 };
    if old == expected {
        return granted(m, e, m.target, m.started);
    }
    let word = AtomicWord::from_bits(old);
    m.rounds += 1;
    let queue = word.waiters() && !planted::is(Bug::StealPastQueue);
    if m.rounds < CAS_ROUNDS_MAX && !queue {
        if old == 0 {
            m.phase = Phase::Try; // released in the meantime
            return cas(m, e, 0, m.target);
        }
        if now.surely_expired(word.timeout()) {
            m.phase = Phase::Takeover;
            e.word = old;
            return cas(m, e, old, m.target);
        }
        if now.maybe_expired(word.timeout()) {
            return m.ask(Request::Steal { handle: e.handle, expire_s });
        }
    }
    held_by_another(m, e, old)
}

fn held_by_another(m: &mut Machine, e: &mut LockEntry, found: u64) -> Step {
    e.word = 0;
    if m.waits() {
        m.again_or_wait(e, found)
    } else {
        m.done(Status::Fail)
    }
}

/// `clock`: the one by which the lease counts.
fn granted(m: &Machine, e: &mut LockEntry, word: u64, clock: Now) -> Step {
    e.word = word;
    e.is_judged_by(clock);
    let view = view(e);
    e.grant(Mode::Exclusive, view, m.reentry)
}

fn view(e: &mut LockEntry) -> View {
    let word = AtomicWord::from_bits(e.word);
    e.time_s = word.timeout();
    View::Atomic { client_id: word.client(), time_out: word.timeout() }
}

fn extended_or(m: &mut Machine, e: &mut LockEntry, old: u64, expire_s: u32, now: Now) -> Step {
    let word = AtomicWord::from_bits(old);
    if old == e.word {
        e.word = m.target; // nobody has taken the lock over
        let clock = if planted::is(Bug::ExtendedOnOtherClock) { now } else { m.started };
        e.goes_on(AtomicWord::from_bits(e.word).timeout(), expire_s, clock);
        let view = view(e);
        if m.reentry {
            return e.grant(Mode::Exclusive, view, true);
        }
        e.cache = view;
        return Step::Done(super::OpResult { status: Status::Success, view: Some(view) });
    }
    if word.client() != e.me.get() {
        return e.lost();
    }
    m.rounds += 1;
    if m.rounds >= CAS_ROUNDS_MAX {
        return m.done(Status::BadResponse); // only I and the arbiter's bit can change it
    }
    e.word = old; // the arbiter has set or cleared the waiters bit, or a lost extend came through
    extend(m, e, expire_s, now)
}

fn released_or(m: &mut Machine, e: &mut LockEntry, old: u64) -> Step {
    if old == e.word {
        return e.released(View::Atomic { client_id: 0, time_out: 0 });
    }
    let word = AtomicWord::from_bits(old);
    if word.client() != e.me.get() && !planted::is(Bug::AtomicReleaseUnchecked) {
        return e.lost();
    }
    e.word = old;
    m.rounds += 1;
    e.pace.followed(word.waiters());
    if word.waiters() || m.rounds >= CAS_ROUNDS_MAX {
        return release(m, e);
    }
    cas(m, e, old, 0)
}

pub(super) fn reply(m: &mut Machine, e: &mut LockEntry, reply: Reply, now: Now) -> Step {
    match (m.op, reply) {
        (Op::Unlock, Reply::Done { word }) => {
            e.pace.followed(word != 0);
            e.released(View::Atomic { client_id: 0, time_out: 0 })
        }
        (Op::Unlock, Reply::Denied { .. }) => e.lost(),
        (Op::TryLock { .. } | Op::Lock { .. }, Reply::Granted { word, .. }) => {
            granted(m, e, word, now)
        }
        (Op::TryLock { .. }, Reply::Denied { .. }) => m.done(Status::Fail),
        (Op::Lock { .. }, Reply::Denied { .. }) if matches!(m.phase, Phase::Ask) => {
            e.word = 0;
            m.queues(e)
        }
        (Op::Lock { .. }, Reply::Cancelled { .. } | Reply::Denied { .. }) => m.done(Status::Fail),
        _ => m.lose_track(e),
    }
}
