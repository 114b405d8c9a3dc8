// SPDX-License-Identifier: MIT OR Apache-2.0
//! The read-write lock, client side.
//!
//! ```text
//!   shared     [Ledger(Intent), Faa(+1)] ─ free ─▶ Ledger(HeldShared)
//!                                      └ owner, waiters ─▶ [Faa(−1), Ledger(None)]
//!                                                            ─▶ Fail, or Read again, or Wait
//!   exclusive  Cas(0 → me) ─ held ─▶ Fail, or again, or Wait
//!   release    shared     [Ledger(Leaving), Faa(−1), Ledger(None)]
//!              exclusive  Cas(me|r → 0|r) or Release
//! ```
//! `Intent` and `Leaving` say the same: the share may be in the count, or not.
//! Whoever leaves {waiters, no owner, no reader} behind sends `Wake`; exactly one client can.
//! A read-write lock has no lease: it ends by a release, or when its client is fenced.

use super::machine::Phase;
use super::{LockEntry, Machine, Op, OpResult, Step, View};
use crate::clock::Now;
use crate::limits::CAS_ROUNDS_MAX;
use crate::memory::word_op::{Chain, Values, WordOp};
use crate::memory::words::{LedgerEntry, LedgerState, RwWord, DETAIL_MAX};
use crate::planted::{self, Bug};
use crate::wire::message::{Mode, Reply, Request};
use crate::wire::status::Status;

const MINUS_ONE: u64 = u64::MAX;

pub(super) fn start(m: &mut Machine, e: &mut LockEntry) -> Step {
    match m.op {
        Op::TryLock { mode: Mode::Exclusive, .. } | Op::Lock { mode: Mode::Exclusive, .. } => {
            cas(e, 0, RwWord::new().with_client(e.me.get()))
        }
        Op::TryLock { .. } | Op::Lock { .. } => {
            let more = WordOp::Faa { addr: e.w0(), add: 1 };
            next_stamp(e);
            m.target = 1;
            Step::Chain(Chain::one(ledger_op(e, LedgerState::Intent)).then(more))
        }
        Op::Unlock if e.state == super::EntryState::SharedLocked => {
            let less = WordOp::Faa { addr: e.w0(), add: MINUS_ONE };
            next_stamp(e);
            m.target = 1;
            let leaving = Chain::one(ledger_op(e, LedgerState::Leaving));
            Step::Chain(leaving.then(less).then(ledger_op(e, LedgerState::None)))
        }
        Op::Unlock => release_exclusive(m, e),
        Op::Extend { .. } => m.done(Status::Invalid), // `begin` has refused it
    }
}

fn release_exclusive(m: &mut Machine, e: &LockEntry) -> Step {
    let word = RwWord::from_bits(e.word);
    let has_bit = word.waiters() && !planted::is(Bug::ReleaseIgnoresBit);
    if has_bit || e.asks_at_once() || m.rounds >= CAS_ROUNDS_MAX {
        return m.ask(Request::Release { handle: e.handle, mode: Mode::Exclusive, ticket: None });
    }
    cas(e, e.word, word.with_client(0)) // readers may be stepping back just now
}

fn cas(e: &LockEntry, expect: u64, swap: RwWord) -> Step {
    Step::Chain(Chain::one(WordOp::Cas { addr: e.w0(), expect, swap: swap.into_bits() }))
}

fn next_stamp(e: &mut LockEntry) {
    if planted::is(Bug::RecountUnstamped) {
        return;
    }
    e.stamp = if e.stamp >= DETAIL_MAX { 1 } else { e.stamp + 1 };
}

fn stamped(e: &LockEntry, state: LedgerState) -> LedgerEntry {
    LedgerEntry::new().with_state(state).with_detail(e.stamp)
}

fn ledger_op(e: &LockEntry, state: LedgerState) -> WordOp {
    WordOp::WriteLedger { handle: e.handle, value: stamped(e, state).into_bits() }
}

pub(super) fn outcome(m: &mut Machine, e: &mut LockEntry, values: Values, now: Now) -> Step {
    let counted = values.as_slice().get(m.target as usize).copied();
    match m.op {
        Op::TryLock { mode, .. } | Op::Lock { mode, .. } => match (mode, m.phase) {
            (Mode::Exclusive, _) => exclusive_or(m, e, values[0], now),
            (Mode::Shared, Phase::StepBack) => stepped_back(m, e, values[0]),
            (Mode::Shared, Phase::Look) => looked(m, e, values[0], now),
            (Mode::Shared, _) => match counted {
                Some(old) => shared_or_step_back(m, e, old, now),
                None => m.lose_track(e),
            },
        },
        Op::Unlock if matches!(m.phase, Phase::StepBack) => e.lost(),
        Op::Unlock if e.state == super::EntryState::SharedLocked => match counted {
            Some(old) => shared_released(m, e, old),
            None => m.lose_track(e),
        },
        Op::Unlock => exclusive_released_or(m, e, values[0]),
        Op::Extend { .. } => m.done(Status::Invalid),
    }
}

fn exclusive_or(m: &mut Machine, e: &mut LockEntry, old: u64, now: Now) -> Step {
    if old == 0 {
        e.word = RwWord::new().with_client(e.me.get()).into_bits();
        return granted(e, Mode::Exclusive, 0, now.time.seconds(), now);
    }
    held_by_another(m, e, old)
}

fn held_by_another(m: &mut Machine, e: &mut LockEntry, found: u64) -> Step {
    if m.waits() {
        m.again_or_wait(e, found)
    } else {
        m.done(Status::Fail)
    }
}

fn shared_or_step_back(m: &mut Machine, e: &mut LockEntry, old: u64, now: Now) -> Step {
    let word = RwWord::from_bits(old);
    let passes_owner = word.client() != 0 && planted::is(Bug::RwSharedIgnoresOwner);
    let passes_bit = word.waiters() && planted::is(Bug::RwSharedIgnoresBit);
    if word.admits_reader() || passes_owner || passes_bit {
        if !e.by_primary {
            e.write(stamped(e, LedgerState::HeldShared));
        }
        return granted(e, Mode::Shared, word.rcount() + 1, now.time.seconds(), now);
    }
    m.phase = Phase::StepBack;
    Step::Chain(
        Chain::one(WordOp::Faa { addr: e.w0(), add: MINUS_ONE })
            .then(ledger_op(e, LedgerState::None)),
    )
}

/// Whether a reader that found `old` and took one off has left a free lock with waiters.
fn left_free_with_waiters(old: RwWord) -> bool {
    old.waiters() && old.client() == 0 && old.rcount() == 1
}

fn stepped_back(m: &mut Machine, e: &mut LockEntry, old: u64) -> Step {
    let wake = left_free_with_waiters(RwWord::from_bits(old));
    if m.waits() {
        return match wake && !planted::is(Bug::NoStepBackWake) {
            // the arbiter looks at the word when the wait arrives, so this is a wake-up, too
            true => m.queues(e),
            false => m.again_or_wait(e, without_readers(old)),
        };
    }
    if wake && !planted::is(Bug::NoStepBackWake) {
        return m.tell(Request::Wake { handle: e.handle }, OpResult::of(Status::Fail));
    }
    m.done(Status::Fail)
}

/// Readers come and go without being in each other's way.
fn without_readers(word: u64) -> u64 {
    RwWord::from_bits(word).with_rcount(0).into_bits()
}

/// A reader looks again before it adds itself.
fn looked(m: &mut Machine, e: &mut LockEntry, found: u64, now: Now) -> Step {
    let word = RwWord::from_bits(found);
    match word.client() == 0 && !word.waiters() {
        true => m.start(e, now),
        false => m.again_or_wait(e, without_readers(found)),
    }
}

fn granted(e: &mut LockEntry, mode: Mode, rcount: u32, time_s: u32, now: Now) -> Step {
    e.time_s = time_s;
    e.is_judged_by(now);
    let client_id = if mode == Mode::Exclusive { e.me.get() } else { 0 };
    e.grant(mode, View::Rw { time_out: time_s, client_id, rcount }, false)
}

fn shared_released(m: &mut Machine, e: &mut LockEntry, old: u64) -> Step {
    let word = RwWord::from_bits(old);
    if word.rcount() == 0 {
        // somebody has taken my share off already: put back what I took too much
        m.phase = Phase::StepBack;
        return Step::Chain(Chain::one(WordOp::Faa { addr: e.w0(), add: 1 }));
    }
    let rcount = word.rcount() - 1;
    let time_out = if rcount == 0 { 0 } else { e.time_s };
    let view = View::Rw { time_out, client_id: 0, rcount };
    let done = e.released(view);
    match done {
        Step::Done(result) if left_free_with_waiters(word) && !planted::is(Bug::NoReleaseWake) => {
            m.tell(Request::Wake { handle: e.handle }, result)
        }
        done => done,
    }
}

fn exclusive_released_or(m: &mut Machine, e: &mut LockEntry, old: u64) -> Step {
    let word = RwWord::from_bits(old);
    if old == e.word {
        return exclusive_released(e, word.rcount());
    }
    if word.client() != e.me.get() {
        return e.lost();
    }
    m.rounds += 1;
    e.pace.followed(word.waiters());
    e.word = old;
    release_exclusive(m, e)
}

fn exclusive_released(e: &mut LockEntry, rcount: u32) -> Step {
    e.released(View::Rw { time_out: 0, client_id: 0, rcount })
}

pub(super) fn reply(m: &mut Machine, e: &mut LockEntry, reply: Reply, now: Now) -> Step {
    match (m.op, reply) {
        (Op::Unlock, Reply::Done { word }) => {
            e.pace.followed(word != 0);
            exclusive_released(e, 0)
        }
        (Op::Unlock, Reply::Denied { .. }) => e.lost(),
        (Op::Lock { mode, .. }, Reply::Granted { word, deadline_s, .. }) => {
            let state = match mode {
                Mode::Exclusive => LedgerState::None, // the word names me
                Mode::Shared => LedgerState::HeldShared,
            };
            e.write(stamped(e, state));
            e.word = word;
            granted(e, mode, RwWord::from_bits(word).rcount(), deadline_s, now)
        }
        (Op::Lock { .. }, Reply::Cancelled { .. } | Reply::Denied { .. }) => {
            e.clear_ledger_entry();
            Step::Done(OpResult::of(Status::Fail))
        }
        _ => m.lose_track(e),
    }
}
