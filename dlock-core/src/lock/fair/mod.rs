// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fair lock, client side. `[…]`: one chain; d: the deadline in the ledger entry, until which
//! the client may use its turn; `fence`: the word with the lap's number; ask: the arbiter is asked.
//!
//! ```text
//!   take     [Ledger(d), Faa(w0), Read(w1, fence)] ─ my turn, before d ─▶ held
//!                         │                       └ not yet ─▶ look, ask Wait, or EAGAIN
//!                         └ a high number: no ticket ─▶ ask TakeTicket
//!   look     [Ledger(later d)?, Read(w1, fence)] ─ my turn, before the old d ─▶ held
//!                  ▲                            └ not yet ─▶ pause, sleep on w1, or ask Wait
//!                  └──────────────────────────────────┘
//!   extend   [Ledger(later d), Read(w1, fence)] while the lease surely runs, else ask Extend
//!   release  exclusive  [Cas(w1: nx + 1), Ledger(none)]
//!            shared     Cas(w1: ns + 1), again from what was found; then Ledger(none)
//!            told, late, or too many failed Cas ─▶ ask Release
//!   give up  Ledger(none), ask Abandon
//! ```
//! * A client relies on a turn that one of its own operations has shown, until the deadline that
//!   its ledger had before that operation was posted. A later deadline counts if its write is known
//!   to be complete while the earlier deadline surely runs. Otherwise the arbiter decides.
//! * Each ticket has a new stamp in its ledger entry. The entry is not *none* while an operation of
//!   the ticket can still take effect: a new lap (ticket counters reset) needs all entries *none*.
//! * While `told` is set in `w1` (a client waits at the arbiter), only the arbiter changes `w1`.
//! * If the compare-and-swap of a release fails, but finds its own turn (a shared one: while the
//!   lease surely runs), a refusal by the arbiter counts as success. So does a turn that a second
//!   compare-and-swap finds passed on, if the first chain has written *none*.

mod kept;
mod release;
mod reply;
mod take;
mod view;

use super::machine::Phase;
use super::{EntryState, LockEntry, Machine, Op, OpResult, Step, View};
use crate::clock::{Deadline, Lease, Now};
use crate::limits::{CLAIM_LEASE_MAX, PARK_AFTER_NS, TRIES_MAX, TRY_SAME_HOLD_NS_MAX};
use crate::memory::word_op::{Chain, Values, Word, WordAddr, WordOp};
use crate::memory::words::{LedgerEntry, TakenWord, Ticket, TurnWord};
use crate::planted::{self, Bug};
use crate::token::Token;
use crate::wire::control::Place;
use crate::wire::message::{Mode, Request};
use crate::wire::status::Status;
pub(super) use kept::{sees_turn, view_of_kept};
use release::{give_up, release, releasing};
pub(super) use release::{had_turn, held_mode, released};
pub(super) use reply::reply;
use take::{claims_ticket, has_ticket, is_turn_of, take, take_anew, taken, taking, ticket_in};
use view::{ticket_view, word_view};

/// What a client knows of a fair lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Fair {
    pub(super) ticket: Ticket,
    /// Both words as the client saw them last.
    pub(super) taken: TakenWord,
    pub(super) turn: TurnWord,
    /// The least that the ledger claims: until when, and by which clock.
    claim_until: Deadline,
    pub(super) claim_clock: u64,
    /// Whether the arbiter gives the tickets; its answer says when clients take them again.
    diverted: bool,
    /// Until when a ticket of a single try (`TryLock`) is claimed.
    tried_until: Deadline,
    /// The place of the ticket, if the ticket was taken at an earlier incarnation.
    pub(super) place: Option<Place>,
    /// The half of the turn word on which clients sleep that have to be woken.
    pub(super) wakes: Option<Half>,
}

/// A half of the turn word; clients sleep on one half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Half {
    /// The half that counts the shared tickets done.
    Low,
    /// The half that counts the exclusive tickets done; as the target of a wake: both halves.
    High,
}

/// The step that an operation on a fair lock has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum At {
    /// The client takes a ticket.
    Taking,
    /// The client looks whether it is its turn. The ledger claimed the turn until `held_until`
    /// before the chain, and claims it until `claim_until` after the chain.
    Looking { held_until: Deadline, claim_until: Deadline },
    /// It is the ticket's turn, and the client lengthens its claim to the whole lease.
    Lengthening { until: Deadline },
    /// The client sets `parked` in the word before it sleeps on the word.
    Parking { expect: TurnWord },
    /// The client sleeps on the word.
    Parked,
    /// The client moves the end of its lease.
    Extending { until: Deadline },
    /// The client passes its turn on. `had_turn`: an earlier compare-and-swap found the turn while
    /// the lease ran, and its chain has written *none*.
    Releasing { expect: TurnWord, had_turn: bool },
    /// The client has asked the arbiter to pass its turn on.
    AsksRelease { had_turn: bool },
    /// The client has sent another request to the arbiter.
    Asks,
}

/// The first effect of an acquire by a client that has no ticket, or of a release; `None`: the
/// operation begins otherwise, or the arbiter has to execute it.
#[inline(always)]
pub(super) fn first(op: Op, e: &mut LockEntry, now: &Now) -> Option<At> {
    match op {
        Op::TryLock { lease, .. } | Op::Lock { lease, .. } => {
            let is_new = matches!(e.state, EntryState::Initialized | EntryState::Unlocked);
            if !is_new || e.fair.diverted {
                return None;
            }
            claims_ticket(e, lease, *now);
            Some(At::Taking)
        }
        Op::Unlock if e.state.is_held() => release::passes(e, held_mode(e), false, *now),
        Op::Unlock | Op::Extend { .. } | Op::Downgrade => None,
    }
}

/// The chain of the [first](first) effect.
#[inline(always)]
pub(super) fn first_chain(op: Op, e: &LockEntry) -> Chain {
    match op {
        Op::TryLock { mode, .. } | Op::Lock { mode, .. } => taking(e, mode),
        Op::Unlock | Op::Extend { .. } | Op::Downgrade => release::passing(e, held_mode(e)),
    }
}

/// The result, if the first effect decides the operation; `None`: nothing has changed yet.
#[inline(always)]
pub(super) fn ends(
    op: Op,
    e: &mut LockEntry,
    at: At,
    values: &[u64],
    (begun, now): (&Now, &Now),
) -> Option<OpResult> {
    match (at, op) {
        (At::Taking, Op::TryLock { mode, lease } | Op::Lock { mode, lease }) => {
            let (taken, turn, ticket) = ticket_in(values)?;
            let until = e.fair.claim_until;
            let is_ticket = !taken.is_high() || planted::is(Bug::HighIsTicket);
            let is_turn = is_ticket && is_turn_of(turn, mode, ticket);
            if !is_turn || lease > CLAIM_LEASE_MAX || !claim_runs(e, until, *now) {
                return None;
            }
            has_ticket(e, mode, ticket, *begun);
            e.fair.turn = turn;
            Some(granted(e, mode, until, *begun))
        }
        (At::Releasing { expect, .. }, Op::Unlock) => release::ends(e, expect, values, *now),
        _ => None,
    }
}

pub(super) fn start(m: &mut Machine, e: &mut LockEntry, now: Now) -> Step {
    use EntryState as S;
    match m.op {
        Op::Extend { mode, lease } => extend(m, e, mode, lease, now),
        Op::Downgrade => extend(m, e, Mode::Shared, Lease::NONE, now),
        Op::Unlock => match e.state {
            S::ExclusiveTicketed => give_up(m, e, Mode::Exclusive),
            S::SharedTicketed => give_up(m, e, Mode::Shared),
            S::SharedLocked => release(m, e, Mode::Shared, false, now),
            _ => release(m, e, Mode::Exclusive, false, now),
        },
        Op::TryLock { mode, lease } | Op::Lock { mode, lease } => match e.state {
            S::ExclusiveLocked | S::SharedLocked => extend(m, e, mode, lease, now),
            S::ExclusiveTicketed | S::SharedTicketed => go_on(m, e, now),
            _ => take(m, e),
        },
    }
}

/// Goes on with the ticket that the client has.
fn go_on(m: &mut Machine, e: &mut LockEntry, now: Now) -> Step {
    // look, because the arbiter's answers do not tell the tickets taken
    let may_look = e.means.may_try || e.means.asks_readers && !m.waits();
    let is_running = may_look && claim_runs(e, e.fair.claim_until, now);
    let is_new = m.waits() || !now.maybe_expired(e.fair.tried_until);
    match is_running && is_new {
        true => look(m, e, now),
        false => asks(m, e),
    }
}

/// Asks the arbiter to decide.
fn asks(m: &mut Machine, e: &mut LockEntry) -> Step {
    let (mode, lease, ticket) = (m.mode(), m.lease(), e.fair.ticket);
    e.state = ticketed(mode);
    match m.waits() {
        true => m.wait(e, Some(ticket)),
        false => ask(m, Request::Poll { handle: e.handle, mode, ticket, lease }),
    }
}

fn ask(m: &mut Machine, request: Request) -> Step {
    m.phase = Phase::Fair(At::Asks);
    Step::Request(request)
}

fn ticketed(mode: Mode) -> EntryState {
    match mode {
        Mode::Exclusive => EntryState::ExclusiveTicketed,
        Mode::Shared => EntryState::SharedTicketed,
    }
}

/// The end of the claim for a lease that begins now.
#[inline]
fn claim_for(lease: Lease, now: Now) -> Deadline {
    match planted::is(Bug::ClaimShort) {
        true => now.time.tick(),
        false => now.deadline(lease.min(CLAIM_LEASE_MAX)),
    }
}

#[inline]
fn claim(e: &LockEntry, mode: Mode, until: Deadline) -> LedgerEntry {
    LedgerEntry::claim(mode, e.stamp).with_deadline(until)
}

#[inline]
fn claim_op(e: &LockEntry, mode: Mode, until: Deadline) -> WordOp {
    WordOp::WriteLedger { handle: e.handle, value: claim(e, mode, until).into_bits() }
}

/// Whether the ledger's claim until `until` surely runs.
#[inline]
fn claim_runs(e: &LockEntry, until: Deadline, now: Now) -> bool {
    let is_same_clock = e.fair.claim_clock == now.discontinuities;
    is_same_clock && !now.maybe_expired(until) || planted::is(Bug::ClaimOverTrusted)
}

impl LockEntry {
    fn turn_addr(&self) -> WordAddr {
        WordAddr::new(self.slot, Word::W1)
    }

    /// The ledger now claims the ticket until `until`, by the clock of `now`.
    fn claims(&mut self, until: Deadline, now: Now) {
        (self.fair.claim_until, self.fair.claim_clock) = (until, now.discontinuities);
    }

    /// Writes that this client claims nothing.
    pub(super) fn claims_nothing(&mut self) {
        self.fair.claim_until = Deadline::NONE;
        self.clear_ledger_entry();
    }

    /// The claim to write on a new channel; it claims no more than the old channel did.
    pub(super) fn claimed_entry(&self, mode: Mode) -> LedgerEntry {
        let held_until = if self.state.is_held() { self.lease.time } else { Deadline::NONE };
        claim(self, mode, self.fair.claim_until.max(held_until))
    }

    /// Whether the client reads the tickets taken together with the turn: where a read is free, or
    /// where views have to be exact.
    fn tells_taken(&self) -> bool {
        self.means.reads_free || self.means.asks_readers
    }

    /// Adds the read of the turn to a chain, with the tickets taken if the client wants them.
    fn then_look(&self, chain: Option<Chain>) -> Chain {
        let turn = WordOp::ReadPair { addr: self.turn_addr() };
        let taken = self.tells_taken().then_some(WordOp::Read { addr: self.w0() });
        let ops = taken.into_iter().chain([turn]);
        let chain = ops.fold(chain, |chain, op| match chain {
            Some(chain) => Some(chain.then(op)),
            None => Some(Chain::one(op)),
        });
        chain.unwrap_or(Chain::one(turn))
    }

    /// Takes over what a look has found; returns whether the lap is the ticket's.
    fn has_looked(&mut self, values: Values) -> Option<bool> {
        let &[.., turn, lap] = values.as_slice() else { return None };
        if self.tells_taken() {
            let taken = values.as_slice().len().checked_sub(3)?;
            self.fair.taken = TakenWord::from_bits(values[taken]);
        }
        self.fair.turn = TurnWord::from_bits(turn);
        Some(lap == self.fair.ticket.lap)
    }
}

/// It is the ticket's turn: an operation has shown so that was posted while the claim ran. The
/// claim lasts until `until`.
fn has_turn(m: &mut Machine, e: &mut LockEntry, until: Deadline) -> Step {
    m.tries.came_to(e.fair.ticket.tx, &mut e.pace);
    if m.lease() <= CLAIM_LEASE_MAX {
        return Step::Done(granted(e, m.mode(), until, m.started));
    }
    let until = m.started.deadline(m.lease());
    m.phase = Phase::Fair(At::Lengthening { until });
    Step::Chain(e.then_look(Some(Chain::one(claim_op(e, m.mode(), until)))))
}

fn lengthened(
    m: &mut Machine,
    e: &mut LockEntry,
    values: Values,
    until: Deadline,
    now: Now,
) -> Step {
    let Some(is_of_lap) = e.has_looked(values) else { return m.lose_track(e) };
    let is_in_time = claim_runs(e, e.fair.claim_until, now);
    e.claims(until, m.started);
    match is_of_lap && is_in_time && e.fair.turn.nx() == e.fair.ticket.tx {
        true => Step::Done(granted(e, m.mode(), until, m.started)),
        false => asks(m, e),
    }
}

/// Begins the hold. `clock`: the clock by which the lease counts.
#[inline(always)]
fn granted(e: &mut LockEntry, mode: Mode, until: Deadline, clock: Now) -> OpResult {
    e.lease.time = until;
    if e.desc.tokens && !e.state.is_held() {
        e.token = Token::of_fair(mode, e.fair.ticket); // the token is set when the hold begins
    }
    e.is_judged_by(&clock);
    let view = word_view(e, mode);
    e.grant(mode, view)
}

/// The look has granted no lock. `is_turn`: the word shows the turn, but the claim may be over.
fn not_yet(m: &mut Machine, e: &mut LockEntry, is_turn: bool, now: Now) -> Step {
    let mode = m.mode();
    let is_new = e.state != ticketed(mode);
    e.state = ticketed(mode);
    e.cache = ticket_view(e);
    if is_turn {
        return asks(m, e);
    }
    if m.waits() {
        return look_again(m, e, now);
    }
    if !is_new {
        return asks(m, e); // asks, because the arbiter can pass other tickets whose claim is over
    }
    if e.fair.tried_until < e.fair.claim_until {
        // if the program does not come back, the turn is kept for a grace at most
        e.fair.claim_until = e.fair.tried_until;
        e.write(claim(e, mode, e.fair.claim_until));
    }
    Step::Done(OpResult { status: Status::Again, view: Some(e.cache) })
}

/// Looks whether it is this client's turn. The client does not renew a claim that is over, because
/// the arbiter may be about to pass the turn by what it has read before.
fn look(m: &mut Machine, e: &mut LockEntry, now: Now) -> Step {
    if !claim_runs(e, e.fair.claim_until, now) && !planted::is(Bug::LapsedClaimRenewed) {
        return asks(m, e);
    }
    m.started = now;
    let (held_until, claim_until) = (e.fair.claim_until, claim_for(m.lease(), now));
    m.phase = Phase::Fair(At::Looking { held_until, claim_until });
    let note = (claim_until != held_until).then(|| claim_op(e, m.mode(), claim_until));
    // if the outcome is lost, the ledger may have either deadline
    e.fair.claim_until = held_until.min(claim_until);
    Step::Chain(e.then_look(note.map(Chain::one)))
}

fn looked(
    m: &mut Machine,
    e: &mut LockEntry,
    values: Values,
    (held_until, claim_until): (Deadline, Deadline),
    now: Now,
) -> Step {
    let Some(is_of_lap) = e.has_looked(values) else { return m.lose_track(e) };
    let is_in_time = claim_runs(e, held_until, now) && claim_runs(e, claim_until, now);
    if is_in_time || planted::is(Bug::LapsedClaimRenewed) {
        e.claims(claim_until, m.started);
    }
    let (turn, ticket) = (e.fair.turn, e.fair.ticket);
    if !is_of_lap || turn.is_past(ticket) {
        return lost_place(m, e, now);
    }
    let is_turn = turn.serves(m.mode(), ticket);
    match is_turn && is_in_time {
        true => has_turn(m, e, claim_until),
        false => not_yet(m, e, is_turn, now),
    }
}

/// The ticket was passed, or is of another lap: an operation that waits takes one new ticket.
fn lost_place(m: &mut Machine, e: &mut LockEntry, now: Now) -> Step {
    match m.waits() && !m.is_reentry(e) && !std::mem::replace(&mut m.requeued, true) {
        true => take_anew(m, e, now),
        false => {
            e.claims_nothing();
            Step::Done(e.lost())
        }
    }
}

/// The number of turns of other clients before this one's, as far as the word tells.
fn ahead(e: &LockEntry) -> u16 {
    let (turn, ticket) = (e.fair.turn, e.fair.ticket);
    let turns = ticket.tx.saturating_sub(turn.nx());
    u16::try_from(turns).unwrap_or(u16::MAX).max(1)
}

/// Goes on after a look that has not shown the turn: pauses, or queues at the arbiter.
fn look_again(m: &mut Machine, e: &mut LockEntry, now: Now) -> Step {
    if !e.means.may_try {
        return asks(m, e);
    }
    let ahead = ahead(e);
    let pause_ns = m.tries.sees_turn(e.fair.turn, ahead, now, &mut e.pace);
    m.phase = Phase::Idle;
    match m.tries.lost() < TRIES_MAX {
        true => Step::Again { pause_ns, ahead },
        false => asks(m, e),
    }
}

/// Goes on after the pause: looks again, sleeps on the word, or queues.
pub(super) fn paused(m: &mut Machine, e: &mut LockEntry, now: Now) -> Step {
    let seen_ns = m.tries.seen_ns(now);
    if seen_ns >= TRY_SAME_HOLD_NS_MAX {
        return asks(m, e);
    }
    let is_parked = m.phase == Phase::Fair(At::Parked);
    match e.means.parks && seen_ns >= PARK_AFTER_NS && !is_parked {
        true => park(m, e, now),
        false => look(m, e, now),
    }
}

/// Queues at the arbiter instead of looking again.
pub(super) fn queues(m: &mut Machine, e: &mut LockEntry) -> Step {
    asks(m, e)
}

/// The half of the word that changes before this client's turn comes.
fn awaited_half(e: &LockEntry) -> Half {
    match e.fair.turn.nx() == e.fair.ticket.tx {
        true => Half::Low,
        false => Half::High,
    }
}

/// Sets `parked` in the word, so that a release wakes this client, which then sleeps on the word.
fn park(m: &mut Machine, e: &mut LockEntry, now: Now) -> Step {
    let expect = e.fair.turn;
    if expect.told() {
        return asks(m, e);
    }
    if expect.parked() || planted::is(Bug::ParksUnsaid) {
        return sleep(m, e, now);
    }
    m.phase = Phase::Fair(At::Parking { expect });
    let (addr, swap) = (e.turn_addr(), expect.with_parked(true).into_bits());
    Step::Chain(Chain::one(WordOp::Cas { addr, expect: expect.into_bits(), swap }))
}

fn parking(m: &mut Machine, e: &mut LockEntry, expect: TurnWord, values: Values, now: Now) -> Step {
    let found = TurnWord::from_bits(values[0]);
    let is_same = |turn: TurnWord| turn.with_parked(true) == expect.with_parked(true);
    if !is_same(found) {
        return look(m, e, now);
    }
    e.fair.turn = found.with_parked(true);
    sleep(m, e, now)
}

fn sleep(m: &mut Machine, e: &LockEntry, now: Now) -> Step {
    m.phase = Phase::Fair(At::Parked);
    let (half, word) = (awaited_half(e), e.fair.turn.into_bits());
    let value = match half {
        Half::Low => word as u32,
        Half::High => (word >> 32) as u32,
    };
    let limit_ns = TRY_SAME_HOLD_NS_MAX.saturating_sub(m.tries.seen_ns(now));
    Step::Park { addr: e.turn_addr(), half, value, limit_ns }
}

fn extend(m: &mut Machine, e: &mut LockEntry, mode: Mode, lease: Lease, now: Now) -> Step {
    // a lease that the arbiter granted beyond the claim is extended by the arbiter
    let is_arbiters = !lease.is_none() && e.fair.claim_until < e.lease.time;
    if e.maybe_over(now) || is_arbiters {
        return ask_extend(m, e, mode, lease);
    }
    let until = later_deadline(e, lease, m.started);
    m.phase = Phase::Fair(At::Extending { until });
    let note = (!lease.is_none()).then(|| claim_op(e, mode, until));
    Step::Chain(e.then_look(note.map(Chain::one)))
}

fn later_deadline(e: &LockEntry, lease: Lease, now: Now) -> Deadline {
    match lease {
        Lease::NONE => e.lease.time,
        _ if planted::is(Bug::ExtendShortens) => now.deadline(lease),
        _ => e.lease.time.max(now.deadline(lease)),
    }
}

fn ask_extend(m: &mut Machine, e: &LockEntry, mode: Mode, lease: Lease) -> Step {
    ask(m, Request::Extend { handle: e.handle, mode, ticket: Some(e.fair.ticket), lease })
}

fn extended(m: &mut Machine, e: &mut LockEntry, values: Values, until: Deadline, now: Now) -> Step {
    let Some(is_of_lap) = e.has_looked(values) else { return m.lose_track(e) };
    let (mode, lease) = (m.mode(), m.lease());
    if e.maybe_over(now) && !planted::is(Bug::LateExtendCounts) {
        return ask_extend(m, e, mode, lease); // the claim may be written too late
    }
    if !is_of_lap || e.fair.turn.nx() != e.fair.ticket.tx {
        e.claims_nothing();
        return Step::Done(e.lost_by(m));
    }
    if !lease.is_none() {
        e.claims(until, m.started);
    }
    e.goes_on(until, lease, &m.started);
    goes_on(m, e, mode)
}

fn goes_on(m: &mut Machine, e: &mut LockEntry, mode: Mode) -> Step {
    let view = word_view(e, mode);
    if m.is_acquire() {
        return Step::Done(e.grant(mode, view)); // the client enters its own hold again
    }
    e.cache = view;
    Step::Done(OpResult { status: Status::Success, view: Some(view) })
}

pub(super) fn outcome(
    m: &mut Machine,
    e: &mut LockEntry,
    at: At,
    values: Values,
    now: Now,
) -> Step {
    match at {
        At::Taking => taken(m, e, values, now),
        At::Looking { held_until, claim_until } => {
            looked(m, e, values, (held_until, claim_until), now)
        }
        At::Lengthening { until } => lengthened(m, e, values, until, now),
        At::Parking { expect } => parking(m, e, expect, values, now),
        At::Extending { until } => extended(m, e, values, until, now),
        At::Releasing { expect, had_turn } => {
            releasing(m, e, (expect, had_turn), values.as_slice(), now)
        }
        At::Parked | At::AsksRelease { .. } | At::Asks => m.lose_track(e),
    }
}

impl LockEntry {
    /// Takes out the word and the half on which clients sleep that have to be woken now.
    pub fn take_wake(&mut self) -> Option<(WordAddr, Half)> {
        let half = self.fair.wakes.take()?;
        Some((self.turn_addr(), half))
    }

    /// Whether clients that sleep on the word have to be woken.
    #[inline]
    pub fn has_wake(&self) -> bool {
        self.fair.wakes.is_some()
    }

    /// Says whether reads are free on the fabric that executes this lock's chains.
    pub fn reads_are_free(&mut self, are: bool) {
        self.means.reads_free = are;
    }

    /// Says whether a client that waits may sleep in the kernel, on the word itself; it may where
    /// its chains take effect at once. Fair locks only.
    pub fn may_park(&mut self, may: bool) {
        self.means.parks = may;
    }

    /// Takes over the tickets taken of a lock that the client has just got.
    pub(super) fn see_lanes(&mut self, taken: u64) {
        if self.lock_type == crate::wire::message::LockType::Fair {
            self.fair.taken = TakenWord::from_bits(taken);
            self.fair.diverted = self.fair.taken.is_high();
        }
    }

    /// Takes over the place that a successor has given to the ticket, with a reset ledger entry.
    pub(super) fn has_place(&mut self, ticket: Ticket, turn: u64, mode: Mode) {
        self.fair.ticket = ticket;
        self.fair.taken = TakenWord::new().with_mx(ticket.tx).with_ms(ticket.ts).taken(mode);
        self.fair.turn = TurnWord::from_bits(turn);
        // the values that the recovery has given to the ledger entry
        (self.fair.claim_until, self.stamp) = (Deadline::NONE, 0);
    }
}
