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
//! `Intent` and `Leaving` mean the same: the share may be in the count, or not. A client that
//! leaves behind a word with the waiters bit, no owner and no reader sends `Wake`; exactly one
//! client can do so. A hold without a lease (`Lease::ENDLESS`) ends by a release, or when its
//! client is fenced. A hold with a lease is the arbiter's: the client acquires, extends and
//! releases it by requests (`Steal` or `Wait`, `Extend`, `Release`), and posts no word operation.

use super::machine::Phase;
use super::{EntryState, LockEntry, Machine, Op, OpResult, Step, TimeOut, View};
use crate::clock::{Deadline, Now};
use crate::limits::CAS_ROUNDS_MAX;
use crate::memory::word_op::{Chain, WordOp};
use crate::memory::words::{LedgerEntry, LedgerState, RwWord};
use crate::planted::{self, Bug};
use crate::token::{Token, RW_END};
use crate::wire::message::{Mode, Reply, Request};
use crate::wire::status::Status;

const MINUS_ONE: u64 = u64::MAX;

/// The step that an operation on a read-write lock has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum At {
    /// The client takes a free lock exclusively.
    Taking,
    /// The client adds itself to the reader count.
    Entering,
    /// The client takes itself off the count again, because there is an owner, or others wait.
    SteppingBack,
    /// The client looks whether the lock is free again.
    Looking,
    /// The client takes its share off the reader count.
    Leaving,
    /// The client adds one to the count again: the arbiter had already taken its share off.
    PuttingBack,
    /// The client releases its exclusive hold.
    Releasing,
    /// The client has asked the arbiter to release its own hold (`Request::Release`), or for a hold
    /// with a lease, and waits for the reply.
    Asks,
}

/// The first effect of an exclusive acquire or release: a [compare-and-swap](cas). `None`: the
/// operation is a shared one or an extend, or is the arbiter's.
#[inline(always)]
pub(super) fn first(op: Op, e: &LockEntry) -> Option<At> {
    if e.has_lease(op) {
        return None;
    }
    match op {
        Op::TryLock { mode: Mode::Exclusive, .. } | Op::Lock { mode: Mode::Exclusive, .. } => {
            Some(At::Taking)
        }
        Op::Unlock if e.state == EntryState::ExclusiveLocked && !is_arbiters(e) => {
            Some(At::Releasing)
        }
        _ => None,
    }
}

/// The compare-and-swap of `Taking` or `Releasing`.
#[inline(always)]
pub(super) fn cas(e: &LockEntry, at: At) -> WordOp {
    let (expect, swap) = match at {
        At::Taking => (0, mine(e)),
        // keep the count in the word: readers may be stepping back just now
        _ => (e.word, RwWord::from_bits(e.word).without_owner().into_bits()),
    };
    WordOp::Cas { addr: e.w0(), expect, swap }
}

/// The first effect of an operation that begins with a [chain](chain_of).
#[inline(always)]
pub(super) fn first_of_chain(op: Op, e: &mut LockEntry) -> Option<At> {
    let at = match op {
        _ if e.has_lease(op) => return None,
        Op::TryLock { mode: Mode::Shared, .. } | Op::Lock { mode: Mode::Shared, .. } => {
            At::Entering
        }
        Op::Unlock if e.state == EntryState::SharedLocked => At::Leaving,
        _ => return first(op, e),
    };
    next_stamp(e);
    Some(at)
}

/// The chain of a first effect.
#[inline(always)]
pub(super) fn chain_of(e: &LockEntry, at: At) -> Chain {
    match at {
        At::Entering => {
            let more = WordOp::Faa { addr: e.w0(), add: 1 };
            with_token(e, Chain::one(ledger_op(e, LedgerState::Intent)).then(more))
        }
        At::Leaving => {
            let less = WordOp::Faa { addr: e.w0(), add: MINUS_ONE };
            let leaving = Chain::one(ledger_op(e, LedgerState::Leaving));
            leaving.then(less).then(ledger_op(e, LedgerState::None))
        }
        _ => counted(e, at, cas(e, at)),
    }
}

/// The result, if the first effect decides the operation; `None`: the word was not as expected.
#[inline(always)]
pub(super) fn ends(e: &mut LockEntry, at: At, old: u64, now: &Now) -> Option<OpResult> {
    match at {
        At::Taking if old == 0 => {
            e.word = mine(e);
            Some(granted(e, Mode::Exclusive, 0, now))
        }
        At::Releasing if old == e.word => Some(released(e, RwWord::from_bits(old).rcount())),
        _ => None,
    }
}

/// Like [`ends`], for the chains that add a share to the count, or take it off.
#[inline(always)]
pub(super) fn share_ends(e: &mut LockEntry, at: At, old: u64, now: &Now) -> Option<OpResult> {
    let word = RwWord::from_bits(old);
    match at {
        At::Entering if admits_reader(word) => {
            if !e.means.by_primary {
                e.write(stamped(e, LedgerState::HeldShared));
            }
            Some(granted(e, Mode::Shared, word.rcount() + 1, now))
        }
        At::Leaving if word.rcount() > 0 && !wakes(word) => Some(share_released(e, word)),
        _ => None,
    }
}

pub(super) fn start(m: &mut Machine, e: &mut LockEntry) -> Step {
    let first = first_of_chain(m.op, e);
    if let Some(at) = first.filter(|&at| at != At::Releasing || m.rounds < CAS_ROUNDS_MAX) {
        m.phase = Phase::Rw(at);
        return Step::Chain(chain_of(e, at));
    }
    if e.has_lease(m.op) {
        return start_leased(m, e);
    }
    if !matches!(m.op, Op::Unlock) {
        return m.done(Status::Invalid); // `begin` has refused it, or `downgrade` begins it
    }
    let (handle, mode) = (e.handle, Mode::Exclusive);
    ask(m, Request::Release { handle, mode, ticket: None })
}

/// The first step of an operation on a hold with a lease.
fn start_leased(m: &mut Machine, e: &mut LockEntry) -> Step {
    let handle = e.handle;
    match m.op {
        Op::Unlock => {
            let mode = match e.state {
                EntryState::SharedLocked => Mode::Shared,
                _ => Mode::Exclusive,
            };
            ask(m, Request::Release { handle, mode, ticket: None })
        }
        Op::TryLock { mode, lease } if e.refs == 0 => {
            ask(m, Request::Steal { handle, mode, lease })
        }
        Op::Lock { .. } if e.refs == 0 => m.queues(e),
        Op::TryLock { mode, lease } | Op::Lock { mode, lease } | Op::Extend { mode, lease } => {
            ask(m, Request::Extend { handle, mode, ticket: None, lease })
        }
        Op::Downgrade => m.done(Status::Invalid), // `downgrade` begins it
    }
}

fn ask(m: &mut Machine, request: Request) -> Step {
    m.phase = Phase::Rw(At::Asks);
    Step::Request(request)
}

/// The chain that takes the lock, or ends an exclusive hold. If clients want tokens, the chain
/// counts the end before the word shows it.
fn counted(e: &LockEntry, at: At, cas: WordOp) -> Chain {
    if at == At::Taking {
        return with_token(e, Chain::one(cas));
    }
    let count = WordOp::Faa { addr: e.fence(), add: RW_END };
    match (e.counts_end, planted::is(Bug::EndCountedLate)) {
        (false, _) => Chain::one(cas),
        (true, false) => Chain::one(count).then(cas),
        (true, true) => Chain::one(cas).then(count),
    }
}

/// The chain that takes the lock, with the read of its token if one is wanted.
fn with_token(e: &LockEntry, take: Chain) -> Chain {
    match e.desc.tokens {
        true => take.then(WordOp::Read { addr: e.fence() }),
        false => take,
    }
}

/// What the word operation on the lock word has found. A token that the chain read goes to the
/// entry.
#[inline]
pub(super) fn found(e: &mut LockEntry, at: At, values: &[u64]) -> Option<u64> {
    match (at, values) {
        (At::Taking, &[cas, fence]) => {
            e.token = Token::of_rw(Mode::Exclusive, fence);
            Some(cas)
        }
        (At::Entering, &[_, count, fence]) => {
            e.token = Token::of_rw(Mode::Shared, fence);
            Some(count)
        }
        // the value after that of the ledger write
        (At::Entering | At::Leaving, _) => values.get(1).copied(),
        (At::Releasing, &[count, cas]) => {
            Some(if planted::is(Bug::EndCountedLate) { count } else { cas })
        }
        _ => values.first().copied(),
    }
}

#[inline(always)]
fn mine(e: &LockEntry) -> u64 {
    RwWord::new().with_client(e.me.get()).into_bits()
}

/// Whether the arbiter has to release: the word has the waiters bit, or others are likely to wait.
#[inline(always)]
fn is_arbiters(e: &LockEntry) -> bool {
    let has_bit = RwWord::from_bits(e.word).waiters() && !planted::is(Bug::ReleaseIgnoresBit);
    has_bit || e.asks_at_once()
}

fn next_stamp(e: &mut LockEntry) {
    if planted::is(Bug::RecountUnstamped) {
        return;
    }
    e.stamp = e.stamp.checked_add(1).unwrap_or(1);
}

fn stamped(e: &LockEntry, state: LedgerState) -> LedgerEntry {
    LedgerEntry::new().with_state(state).with_detail(e.stamp)
}

fn ledger_op(e: &LockEntry, state: LedgerState) -> WordOp {
    WordOp::WriteLedger { handle: e.handle, value: stamped(e, state).into_bits() }
}

/// Handles the outcome of a chain, unless that is a [first effect](first) that found what it
/// expected.
pub(super) fn interfered(m: &mut Machine, e: &mut LockEntry, at: At, old: u64, now: Now) -> Step {
    if let Some(result) = share_ends(e, at, old, &now) {
        return Step::Done(result);
    }
    match at {
        At::Taking => held_by_another(m, e, old),
        At::Entering => step_back(m, e),
        At::SteppingBack => stepped_back(m, e, old),
        At::Looking => looked(m, e, old, now),
        At::Leaving => shared_released(m, e, old),
        At::PuttingBack => Step::Done(e.lost()),
        At::Releasing => not_released(m, e, old),
        At::Asks => m.lose_track(e),
    }
}

fn held_by_another(m: &mut Machine, e: &mut LockEntry, found: u64) -> Step {
    match m.waits() {
        true => m.again_or_wait(e, found),
        false if RwWord::from_bits(found).kept() => m.tries_kept(e),
        false => m.done(Status::Fail),
    }
}

/// Whether a reader that found this word when it added itself holds the lock.
#[inline(always)]
fn admits_reader(word: RwWord) -> bool {
    let passes_owner = word.client() != 0 && planted::is(Bug::RwSharedIgnoresOwner);
    let passes_bit = word.waiters() && planted::is(Bug::RwSharedIgnoresBit);
    word.admits_reader() || passes_owner || passes_bit
}

fn step_back(m: &mut Machine, e: &LockEntry) -> Step {
    m.phase = Phase::Rw(At::SteppingBack);
    Step::Chain(
        Chain::one(WordOp::Faa { addr: e.w0(), add: MINUS_ONE })
            .then(ledger_op(e, LedgerState::None)),
    )
}

/// Whether a reader that found `old` and took its share off has left a free lock with waiters, or
/// with a mark of its own that it may keep the lock.
fn left_free_with_waiters(old: RwWord) -> bool {
    (old.waiters() || old.kept()) && old.client() == 0 && old.rcount() == 1
}

fn stepped_back(m: &mut Machine, e: &mut LockEntry, old: u64) -> Step {
    let wake = left_free_with_waiters(RwWord::from_bits(old));
    if m.waits() {
        return match wake && !planted::is(Bug::NoStepBackWake) {
            // the arbiter looks at the word when the wait arrives, so the wait is also a wake-up
            true => m.queues(e),
            false => m.again_or_wait(e, without_readers(old)),
        };
    }
    if wake && !planted::is(Bug::NoStepBackWake) {
        return m.tell(Request::Wake { handle: e.handle }, OpResult::of(Status::Fail));
    }
    if RwWord::from_bits(old).kept() {
        return m.tries_kept(e);
    }
    m.done(Status::Fail)
}

/// The word without its reader count: readers come and go without hindering each other.
fn without_readers(word: u64) -> u64 {
    RwWord::from_bits(word).with_rcount(0).into_bits()
}

/// Handles a read of the word by a reader that waits: adds the reader if the lock is free again.
fn looked(m: &mut Machine, e: &mut LockEntry, found: u64, now: Now) -> Step {
    let word = RwWord::from_bits(found);
    match word.client() == 0 && !word.waiters() {
        true => m.start(e, now),
        false => m.again_or_wait(e, without_readers(found)),
    }
}

/// A hold without a lease begins.
#[inline(always)]
fn granted(e: &mut LockEntry, mode: Mode, rcount: u32, now: &Now) -> OpResult {
    e.is_judged_by(now);
    let view = view(e, mode, rcount, now.time.tick());
    e.grant(mode, view)
}

/// The view of a kept hold that the program acquires.
pub(super) fn view_of_kept(e: &LockEntry, mode: Mode, now: Now) -> View {
    view(e, mode, RwWord::from_bits(e.word).rcount(), now.time.tick())
}

/// `at`: the time of the acquire, which is shown of a hold without a lease.
#[inline(always)]
fn view(e: &LockEntry, mode: Mode, rcount: u32, at: Deadline) -> View {
    let client_id = if mode == Mode::Exclusive { e.me.get() } else { 0 };
    let is_leased = !e.is_on_word();
    let time_out = e.shown(if is_leased { e.lease.time } else { at });
    View::Rw { time_out, is_leased, client_id, rcount }
}

/// The arbiter has granted the lock, or says until when the client holds it.
fn granted_by_arbiter(
    m: &Machine,
    e: &mut LockEntry,
    (word, deadline, at): (u64, Deadline, Deadline),
    now: &Now,
) -> OpResult {
    let mode = m.mode();
    match m.is_reentry(e) || !m.is_acquire() {
        true => e.goes_on(deadline, m.lease(), now),
        false => {
            e.lease.by_arbiter = e.has_lease(m.op);
            e.lasts_until(deadline);
            e.is_judged_by(now);
        }
    }
    e.word = word;
    let view = view(e, mode, RwWord::from_bits(word).rcount(), at);
    match m.is_acquire() {
        true => e.grant(mode, view),
        false => {
            e.cache = view;
            OpResult { status: Status::Success, view: Some(view) }
        }
    }
}

fn shared_released(m: &mut Machine, e: &mut LockEntry, old: u64) -> Step {
    let word = RwWord::from_bits(old);
    if word.rcount() == 0 {
        m.phase = Phase::Rw(At::PuttingBack);
        return Step::Chain(Chain::one(WordOp::Faa { addr: e.w0(), add: 1 }));
    }
    let result = share_released(e, word);
    m.tell(Request::Wake { handle: e.handle }, result)
}

/// Whether a reader that found this word when it took its share off has to wake those that wait.
#[inline(always)]
fn wakes(word: RwWord) -> bool {
    left_free_with_waiters(word) && !planted::is(Bug::NoReleaseWake)
}

#[inline(always)]
fn share_released(e: &mut LockEntry, word: RwWord) -> OpResult {
    let rcount = word.rcount() - 1;
    let time_out = if rcount == 0 { TimeOut::NONE } else { e.cache.time_out() };
    e.released(View::Rw { time_out, is_leased: false, client_id: 0, rcount })
}

fn not_released(m: &mut Machine, e: &mut LockEntry, old: u64) -> Step {
    let word = RwWord::from_bits(old);
    if word.client() != e.me.get() {
        return Step::Done(e.lost());
    }
    m.rounds += 1;
    e.pace.followed(word.waiters());
    e.word = old;
    start(m, e)
}

#[inline(always)]
fn released(e: &mut LockEntry, rcount: u32) -> OpResult {
    e.released(View::Rw { time_out: TimeOut::NONE, is_leased: false, client_id: 0, rcount })
}

pub(super) fn reply(m: &mut Machine, e: &mut LockEntry, reply: Reply, now: Now) -> Step {
    match (m.op, reply) {
        (Op::Unlock, Reply::Done { word }) => {
            e.pace.followed(word != 0);
            Step::Done(released(e, 0))
        }
        (Op::Unlock, Reply::Denied { .. }) => Step::Done(e.lost()),
        (
            Op::TryLock { .. } | Op::Lock { .. } | Op::Extend { .. },
            Reply::Granted { word, deadline, at, token, .. },
        ) => {
            if !m.is_reentry(e) && m.is_acquire() {
                let state = match m.mode() {
                    Mode::Exclusive => LedgerState::None, // the word names this client
                    Mode::Shared => LedgerState::HeldShared,
                };
                if !e.has_lease(m.op) {
                    e.write(stamped(e, state));
                }
                e.token = token;
            }
            Step::Done(granted_by_arbiter(m, e, (word, deadline, at.tick()), &now))
        }
        (Op::Extend { .. }, Reply::Denied { .. }) => Step::Done(e.lost_by(m)),
        (Op::TryLock { .. } | Op::Lock { .. }, Reply::Denied { .. }) if m.is_reentry(e) => {
            Step::Done(e.lost())
        }
        (Op::TryLock { .. }, Reply::Denied { .. }) => {
            if m.phase == Phase::Wait {
                e.clear_ledger_entry();
            }
            m.done(Status::Fail)
        }
        (Op::Lock { .. }, Reply::Cancelled { .. } | Reply::Denied { .. }) => {
            e.clear_ledger_entry();
            Step::Done(OpResult::of(Status::Fail))
        }
        _ => m.lose_track(e),
    }
}
