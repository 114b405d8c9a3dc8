// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lock words and the ledger entry, bit by bit (high to low).
//!
//! | word | bits |
//! |---|---|
//! | atomic `w0` | waiters:1, kept:1, client_id:30, timeout:32 (a tick of the server clock) |
//! | rw `w0` | waiters:1, kept:1, client_id:30 (exclusive owner), rcount:32 |
//! | fair `w0` ([taken](TakenWord)) | 0:1, mx:31, 0:1, ms:31 |
//! | fair `w1` ([turn](TurnWord)) | told:1, nx:31, parked:1, ns:31 |
//! | fair `fence` | the lap |
//! | object `w0` | value:64 |
//! | ledger entry | state:3, stamp:29, detail:32 |

use bitfield_struct::bitfield;

use crate::clock::Deadline;
#[cfg(not(feature = "planted-bugs"))]
use crate::limits::FAIR_DIVERT;
use crate::limits::FAIR_READERS_MAX;
use crate::planted::{self, Bug};
use crate::wire::message::Mode;

/// The word of an atomic lock. Zero: free.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct AtomicWord {
    /// The deadline of the hold.
    #[bits(32)]
    pub timeout: Deadline,
    /// The owner's client id; 0: none.
    #[bits(30)]
    pub client: u32,
    /// Whether the owner may keep the lock without using it: who wants the lock asks the arbiter.
    pub kept: bool,
    /// Whether a client is queued at the arbiter.
    pub waiters: bool,
}

/// The word of a read-write lock. Zero: free.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct RwWord {
    /// The number of readers, including those that are about to step back.
    #[bits(32)]
    pub rcount: u32,
    /// The exclusive owner's client id; 0: none.
    #[bits(30)]
    pub client: u32,
    /// Whether the owner, or a reader, may keep the lock without using it: who wants the lock asks
    /// the arbiter. It may be set although no client keeps the lock any more.
    pub kept: bool,
    /// Whether a client is queued at the arbiter, or the count is suspect: then a new reader steps
    /// back and asks the arbiter.
    pub waiters: bool,
}

impl RwWord {
    /// The word after the end of the exclusive hold.
    #[must_use]
    #[inline(always)]
    pub fn without_owner(self) -> Self {
        self.with_client(0).with_kept(false)
    }
    /// Whether a reader that found this word when it added itself holds the lock. A full count
    /// admits no reader: only a forged word has one.
    pub fn admits_reader(self) -> bool {
        self.client() == 0 && !self.waiters() && self.rcount() < u32::MAX
    }
}

/// `w0` of a fair lock: two counters of tickets taken. Clients only add to it.
///
/// Within a *lap* (between two resets) the counters only grow. A carry out of a counter falls into
/// the spare bit above it.
#[bitfield(u64)]
#[derive(PartialEq, Eq, Hash)]
pub struct TakenWord {
    /// The number of shared tickets taken, which is the number of the next one.
    #[bits(31)]
    pub ms: u32,
    #[bits(1)]
    __: u8,
    /// The number of exclusive tickets taken, which is the number of the next one.
    #[bits(31)]
    pub mx: u32,
    #[bits(1)]
    __: u8,
}

impl TakenWord {
    /// The word of a lap of which no ticket is taken. Shared numbers start at 1, so that each
    /// exclusive ticket can be [made a share](Ticket::downgraded).
    pub const START: Self = Self::new().with_ms(1);
    /// The addend that takes an exclusive ticket.
    pub const TAKE_EXCLUSIVE: u64 = 1 << 32;
    /// The addend that takes a shared ticket.
    pub const TAKE_SHARED: u64 = 1;

    /// The addend that takes a ticket of this mode.
    #[inline]
    pub fn addend(mode: Mode) -> u64 {
        match mode {
            Mode::Exclusive => Self::TAKE_EXCLUSIVE,
            Mode::Shared => Self::TAKE_SHARED,
        }
    }
    /// Whether a fetch-and-add takes no valid ticket any more: only the arbiter gives tickets,
    /// until the counters are reset for the next lap.
    #[inline]
    pub fn is_high(self) -> bool {
        self.mx() >= divert() || self.ms() >= divert()
    }
    /// The ticket that the next fetch-and-add in this lap takes.
    #[inline]
    #[must_use]
    pub fn next(self, lap: u64) -> Ticket {
        Ticket { lap, tx: self.mx(), ts: self.ms() }
    }
    /// The word after one more ticket of this mode was taken.
    #[inline]
    #[must_use]
    pub fn taken(self, mode: Mode) -> Self {
        Self::from_bits(self.into_bits().wrapping_add(Self::addend(mode)))
    }
}

/// `w1` of a fair lock: two counters of tickets done. Changed by compare-and-swap only.
#[bitfield(u64)]
#[derive(PartialEq, Eq, Hash)]
pub struct TurnWord {
    /// The number of shared tickets done.
    #[bits(31)]
    pub ns: u32,
    /// Whether a client of shared memory sleeps in the kernel on a half of this word.
    pub parked: bool,
    /// The number of exclusive tickets done, which is the number of the exclusive ticket at the
    /// head.
    #[bits(31)]
    pub nx: u32,
    /// Whether a client waits at the arbiter. While this is set, only the arbiter changes the word.
    pub told: bool,
}

impl TurnWord {
    /// The word of a lap of which no ticket is taken.
    pub const START: Self = Self::new().with_ns(1);
    /// Whether it is the turn of this ticket, which must be of this word's lap.
    #[inline]
    pub fn serves(self, mode: Mode, ticket: Ticket) -> bool {
        self.nx() == ticket.tx
            && match mode {
                Mode::Exclusive => self.ns() == ticket.ts,
                Mode::Shared => ticket.ts < self.ns() + u32::from(FAIR_READERS_MAX),
            }
    }
    /// Whether the ticket with this exclusive number is done, or was passed over.
    #[inline]
    pub fn is_past(self, ticket: Ticket) -> bool {
        self.nx() > ticket.tx
    }
    /// The word after the exclusive ticket at the head was [made a share](Ticket::downgraded): it
    /// is done, and one share is open before the next exclusive ticket. `None`: a forged ticket.
    #[must_use]
    pub fn downgraded(self) -> Option<Self> {
        let ns = match planted::is(Bug::DowngradedUnopened) {
            true => self.ns(),
            false => self.ns().checked_sub(1)?,
        };
        Some(self.done(Mode::Exclusive).with_ns(ns))
    }
    /// The word after the end of one more hold of this mode. The end of an exclusive hold wakes all
    /// clients that sleep on the word.
    #[inline]
    #[must_use]
    pub fn done(self, mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => self.with_nx(LANE_MAX.min(self.nx() + 1)).with_parked(false),
            Mode::Shared => self.with_ns(LANE_MAX.min(self.ns() + 1)),
        }
    }
}

/// The largest number in a ticket counter; a word that no client forged does not come near it.
const LANE_MAX: u32 = (1 << 31) - 1;

#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
const fn divert() -> u32 {
    FAIR_DIVERT
}

#[cfg(feature = "planted-bugs")]
mod narrow {
    use crate::limits::FAIR_DIVERT;
    use std::cell::Cell;

    thread_local! {
        static DIVERT: Cell<u32> = const { Cell::new(FAIR_DIVERT) };
    }

    pub(crate) fn divert() -> u32 {
        DIVERT.get()
    }

    /// Sets, for this thread, the number from which only the arbiter gives tickets; models use it
    /// to reach a new lap.
    pub fn set_divert(number: u32) {
        DIVERT.set(number);
    }
}

#[cfg(feature = "planted-bugs")]
use narrow::divert;
#[cfg(feature = "planted-bugs")]
pub use narrow::set_divert;

/// The number, in either counter, from which a fetch-and-add takes no ticket.
#[inline]
pub fn diverts_from() -> u32 {
    divert()
}

/// The four counters of a fair lock as the C API has them: the low 16 bits of each. Shared numbers
/// start at 0 here.
#[bitfield(u64)]
#[derive(PartialEq, Eq, Hash)]
pub struct FairView {
    /// Next shared ticket.
    #[bits(16)]
    pub ms: u16,
    /// Next exclusive ticket.
    #[bits(16)]
    pub mx: u16,
    /// Shared tickets done.
    #[bits(16)]
    pub ns: u16,
    /// Exclusive tickets done.
    #[bits(16)]
    pub nx: u16,
}

impl FairView {
    /// The view of these two words.
    pub fn of(taken: TakenWord, turn: TurnWord) -> Self {
        let exclusive = |lane: u32| lane as u16;
        let shared = |lane: u32| lane.wrapping_sub(TakenWord::START.ms()) as u16;
        let view = Self::new().with_mx(exclusive(taken.mx())).with_ms(shared(taken.ms()));
        view.with_nx(exclusive(turn.nx())).with_ns(shared(turn.ns()))
    }
}

/// A place in the queue of a fair lock: the lap, and both counters of `w0` when the ticket was
/// taken. Within a lap the sum of both counters grows with every ticket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    /// The value of the `fence` word during the lap.
    pub lap: u64,
    /// The exclusive counter: the ticket's own number if it is exclusive.
    pub tx: u32,
    /// The shared counter: the ticket's own number if it is shared.
    pub ts: u32,
}

impl Ticket {
    /// The share that an exclusive ticket is made: the last one before all that are open. No other
    /// ticket of the lap has the same numbers. `None`: no client has taken such a ticket.
    pub fn downgraded(self) -> Option<Self> {
        Some(Self { tx: self.tx.checked_add(1)?, ts: self.ts.checked_sub(1)?, ..self })
    }
    /// The position of the ticket among those of its lap.
    pub fn order(self) -> u64 {
        u64::from(self.tx) + u64::from(self.ts)
    }
}

/// What an entry of a client's ledger says about the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LedgerState {
    /// Nothing, or an atomic or exclusive hold, which the lock word itself names.
    None = 0,
    /// Read-write: the client is adding itself to the count; the fetch-and-add may or may not be
    /// executed.
    Intent = 1,
    /// Read-write: the client is one of the readers in the count.
    HeldShared = 2,
    /// Read-write: the client is taking itself off; the fetch-and-add may or may not be executed.
    Leaving = 4,
    /// Read-write: the client is queued at the arbiter under the wait number in `detail`.
    Waiting = 5,
    /// Fair: a shared ticket, which may not have been taken yet. It may have its turn, and the
    /// client may rely on that until the deadline.
    ClaimShared = 6,
    /// Like `ClaimShared`, for an exclusive ticket.
    ClaimExclusive = 7,
}

impl LedgerState {
    /// The state with these bits; bits that a correct client never writes count as `None`.
    pub const fn from_bits(raw: u8) -> Self {
        match raw {
            1 => Self::Intent,
            2 => Self::HeldShared,
            4 => Self::Leaving,
            5 => Self::Waiting,
            6 => Self::ClaimShared,
            7 => Self::ClaimExclusive,
            _ => Self::None,
        }
    }
    /// The bits of the state.
    pub const fn into_bits(self) -> u8 {
        self as u8
    }
}

/// One 8-byte entry of a client's ledger; zero means nothing is held.
#[bitfield(u64)]
#[derive(PartialEq, Eq, Hash)]
pub struct LedgerEntry {
    /// Fair: the deadline of the claim. Read-write, state `Waiting`: the wait number. Read-write
    /// otherwise: a stamp, new for every chain.
    #[bits(32)]
    pub detail: u32,
    /// Fair: a stamp, new for each ticket that the client takes.
    #[bits(29)]
    pub stamp: u32,
    /// The state.
    #[bits(3, from = LedgerState::from_bits, into = LedgerState::into_bits)]
    pub state: LedgerState,
}

/// The largest stamp of a ticket.
pub const STAMP_MAX: u32 = (1 << 29) - 1;

impl LedgerEntry {
    /// Fair: a claim of the turn of one ticket. No other entry of the client has this `stamp`.
    pub fn claim(mode: Mode, stamp: u32) -> Self {
        let state = match mode {
            Mode::Exclusive => LedgerState::ClaimExclusive,
            Mode::Shared => LedgerState::ClaimShared,
        };
        Self::new().with_state(state).with_stamp(stamp)
    }
    /// Fair: the mode of the claim; `None`: the entry is no claim.
    #[inline]
    pub fn claims(self) -> Option<Mode> {
        match self.state() {
            LedgerState::ClaimExclusive => Some(Mode::Exclusive),
            LedgerState::ClaimShared => Some(Mode::Shared),
            _ => None,
        }
    }
    /// Fair: the deadline of the claim.
    #[inline]
    pub fn deadline(self) -> Deadline {
        Deadline(self.detail())
    }
    /// The entry with this deadline.
    #[must_use]
    #[inline]
    pub fn with_deadline(self, deadline: Deadline) -> Self {
        self.with_detail(deadline.0)
    }
}

const _: () = {
    assert!(size_of::<AtomicWord>() == 8);
    assert!(size_of::<RwWord>() == 8);
    assert!(size_of::<TakenWord>() == 8);
    assert!(size_of::<TurnWord>() == 8);
    assert!(size_of::<LedgerEntry>() == 8);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_where_the_table_says() {
        let w = AtomicWord::new().with_waiters(true).with_client(1).with_timeout(Deadline(2));
        assert_eq!(w.into_bits(), 1 << 63 | 1 << 32 | 2);
        assert_eq!(AtomicWord::new().with_kept(true).into_bits(), 1 << 62);
        assert_eq!(RwWord::new().with_kept(true).into_bits(), 1 << 62);
        let w = RwWord::new().with_client(3).with_rcount(4);
        assert_eq!(w.into_bits(), 3 << 32 | 4);
        let w = TakenWord::new().with_mx(3).with_ms(4);
        assert_eq!(w.into_bits(), 3 << 32 | 4);
        let w = TurnWord::new().with_told(true).with_nx(1).with_parked(true).with_ns(2);
        assert_eq!(w.into_bits(), 1 << 63 | 1 << 32 | 1 << 31 | 2);
        let e = LedgerEntry::claim(Mode::Exclusive, 5).with_detail(6);
        assert_eq!(e.into_bits(), 7 << 61 | 5 << 32 | 6);
    }

    #[test]
    fn a_carry_out_of_a_lane_does_not_reach_the_other() {
        let last = (1 << 31) - 1;
        for (mode, mx, ms) in [(Mode::Exclusive, last, 7), (Mode::Shared, 7, last)] {
            let full = TakenWord::new().with_mx(mx).with_ms(ms);
            let more = full.taken(mode);
            let (left_mx, left_ms) = match mode {
                Mode::Exclusive => (0, 7),
                Mode::Shared => (7, 0),
            };
            assert_eq!((more.mx(), more.ms()), (left_mx, left_ms));
        }
    }

    #[test]
    fn an_exclusive_ticket_has_its_turn_when_all_before_it_are_done() {
        let ticket = Ticket { lap: 0, tx: 5, ts: 9 };
        let turn = |nx, ns| TurnWord::new().with_nx(nx).with_ns(ns);
        for (nx, ns, serves) in [(5, 9, true), (4, 9, false), (5, 8, false), (6, 9, false)] {
            assert_eq!(turn(nx, ns).serves(Mode::Exclusive, ticket), serves, "{nx} {ns}");
            let told = turn(nx, ns).with_told(true).with_parked(true);
            assert_eq!(told.serves(Mode::Exclusive, ticket), serves);
        }
        assert!(turn(6, 0).is_past(ticket) && !turn(5, 9).is_past(ticket));
    }

    #[test]
    fn so_many_shares_have_their_turn_together() {
        let max = u32::from(FAIR_READERS_MAX);
        let turn = TurnWord::new().with_nx(5).with_ns(10);
        let share = |ts| Ticket { lap: 0, tx: 5, ts };
        assert!(turn.serves(Mode::Shared, share(10 + max - 1)));
        assert!(!turn.serves(Mode::Shared, share(10 + max)));
        assert!(turn.serves(Mode::Shared, share(0)), "in whatever order others have left");
        assert!(!turn.with_nx(4).serves(Mode::Shared, share(10)));
    }

    #[test]
    fn a_hold_that_is_done_leaves_the_flags_that_are_not_its_own() {
        let turn = TurnWord::new().with_nx(5).with_ns(9).with_parked(true);
        let exclusive = turn.done(Mode::Exclusive);
        assert_eq!((exclusive.nx(), exclusive.ns(), exclusive.parked()), (6, 9, false));
        let full = turn.with_nx(LANE_MAX).with_ns(LANE_MAX);
        assert_eq!(
            (full.done(Mode::Exclusive).nx(), full.done(Mode::Shared).ns()),
            (LANE_MAX, LANE_MAX)
        );
        let shared = turn.done(Mode::Shared);
        assert_eq!((shared.nx(), shared.ns(), shared.parked()), (5, 10, true));
    }

    #[test]
    fn a_view_has_the_low_bits_of_each_lane() {
        let taken = TakenWord::new().with_mx(0x1_0003).with_ms(0x2_0005);
        let turn = TurnWord::new().with_told(true).with_nx(0x1_0001).with_ns(0x2_0003);
        assert_eq!(FairView::of(taken, turn).into_bits(), 0x0001_0002_0003_0004);
        assert_eq!(FairView::of(TakenWord::START, TurnWord::START), FairView::new());
    }
}
