// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lock words and the ledger entry, bit by bit (high to low).
//!
//! | word | bits |
//! |---|---|
//! | atomic `w0` | waiters:1, client_id:31, timeout:32 (seconds since 1970, server clock) |
//! | rw `w0` | waiters:1, client_id:31 (exclusive owner), rcount:32 |
//! | fair `w0` | nx:16 ([`RELAYED`](FairWord::RELAYED): see `w1`), ns:16, mx:16, ms:16 |
//! | fair `w1` | told:1, ended:1, 0:46, nx:16 |
//! | object `w0` | value:64 |
//! | ledger entry | state:4, tx:16, ts:16, detail:28 |

use bitfield_struct::bitfield;

use crate::lane;
use crate::limits::FAIR_READERS_MAX;
use crate::message::Mode;

/// The word of an atomic lock. Zero: free.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct AtomicWord {
    /// Deadline of the hold, seconds since 1970 on the server clock.
    #[bits(32)]
    pub timeout: u32,
    /// The owner, 0 for none.
    #[bits(31)]
    pub client: u32,
    /// Somebody is queued at the arbiter.
    pub waiters: bool,
}

/// The word of a read-write lock. Zero: free.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct RwWord {
    /// Readers, those included that are about to step back.
    #[bits(32)]
    pub rcount: u32,
    /// The exclusive owner, 0 for none.
    #[bits(31)]
    pub client: u32,
    /// Somebody is queued at the arbiter, or the count is suspect: step back and ask there.
    pub waiters: bool,
}

impl RwWord {
    /// Whether a reader that found this word, and has added itself, is inside. A full count is no
    /// count: only a forged word has it.
    pub fn admits_reader(self) -> bool {
        self.client() == 0 && !self.waiters() && self.rcount() < u32::MAX
    }
}

/// The word of a fair lock. Each lane counts modulo 2^16 and never carries into the next.
///
/// No number is compared over more than a lap, although lanes start again:
///
/// * An exclusive ticket `tx` is *open* iff it lies in `nx .. mx`; a shared one waits iff its `tx`
///   lies in `nx+1 ..= mx`, and is served otherwise. Both are exact, since no number is given out
///   while a ledger names it, or may come to name it, from before (the lap rule, see
///   [`lane`]).
/// * A release by compare-and-swap may take effect arbitrarily late: its client may have been
///   stopped before it. Until it has taken effect, that client's ledger names its ticket. An
///   exclusive release expects `nx` to be its own number, and a shared one the number that was
///   `nx` all the time it was held; the arbiter ends a share only for an exclusive ticket, which
///   moves `nx` on. So the word cannot become again what such a release expects, until the lane
///   starts again, and that the lap rule forbids.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct FairWord {
    /// Next shared ticket.
    #[bits(16)]
    pub ms: u16,
    /// Next exclusive ticket.
    #[bits(16)]
    pub mx: u16,
    /// Shared tickets done.
    #[bits(16)]
    pub ns: u16,
    /// Exclusive tickets done: the one being served, or the next free one.
    #[bits(16)]
    pub nx: u16,
}

impl FairWord {
    /// What `nx` is while the lock is *relayed*: `nx` is in the [companion word](TurnWord) then. No
    /// number of a lane comes here.
    pub const RELAYED: u16 = u16::MAX;
    /// Addend that takes an exclusive ticket.
    pub const TAKE_EXCLUSIVE: u64 = 1 << 16;
    /// Addend that takes a shared ticket.
    pub const TAKE_SHARED: u64 = 1;

    /// Whether the companion word has `nx`: then nothing that is computed from it here is so.
    #[inline]
    pub fn is_relayed(self) -> bool {
        self.nx() == Self::RELAYED
    }
    /// The word as it is while it is relayed.
    #[must_use]
    pub fn relayed(self) -> Self {
        self.with_nx(Self::RELAYED)
    }
    /// The word with the `nx` that counts, given the companion word.
    #[must_use]
    pub fn told_by(self, turn: TurnWord) -> Self {
        match self.is_relayed() {
            true => self.with_nx(turn.nx()),
            false => self,
        }
    }
    /// Exclusive tickets that are not done.
    #[inline]
    pub fn open_exclusive(self) -> u16 {
        lane::distance(self.nx(), self.mx())
    }
    /// Shared tickets that are not done.
    #[inline]
    pub fn open_shared(self) -> u16 {
        lane::distance(self.ns(), self.ms())
    }
    /// Whether the exclusive ticket of this number is not done.
    #[inline]
    pub fn is_open(self, tx: u16) -> bool {
        lane::distance(self.nx(), tx) < self.open_exclusive()
    }
    /// Whether this exclusive ticket has its turn: every ticket before it is done.
    #[inline]
    pub fn is_turn_of(self, ticket: Ticket) -> bool {
        self.is_open(ticket.tx) && (self.nx(), self.ns()) == (ticket.tx, ticket.ts)
    }
    /// Whether a shared ticket with this `tx` has its turn: no exclusive ticket before it is open.
    #[inline]
    pub fn is_served(self, tx: u16) -> bool {
        let after = lane::distance(self.nx(), tx);
        after == 0 || after > self.open_exclusive()
    }
    /// The ticket that is taken next.
    #[must_use]
    pub fn next(self) -> Ticket {
        Ticket { tx: self.mx(), ts: self.ms() }
    }
    /// Whether that ticket would have its turn at once.
    #[must_use]
    pub fn serves_next(self, mode: Mode) -> bool {
        let (exclusive, shared) = (self.open_exclusive(), self.open_shared());
        match mode {
            Mode::Exclusive => exclusive == 0 && shared == 0,
            Mode::Shared => exclusive == 0 && shared < FAIR_READERS_MAX,
        }
    }
    /// The word with one exclusive ticket more.
    #[must_use]
    pub fn exclusive_taken(self) -> Self {
        self.with_mx(lane::plus(self.mx(), 1))
    }
    /// The word with one shared ticket more.
    #[must_use]
    pub fn shared_taken(self) -> Self {
        self.with_ms(lane::plus(self.ms(), 1))
    }
    /// The word with the exclusive ticket that is served done.
    #[must_use]
    pub fn exclusive_done(self) -> Self {
        self.serving(lane::plus(self.nx(), 1))
    }
    /// The word with this exclusive ticket served; a number that no lane comes to is not set.
    #[must_use]
    pub fn serving(self, nx: u16) -> Self {
        self.with_nx(if nx == Self::RELAYED { 0 } else { nx })
    }
    /// The word with `n` shared tickets more done.
    #[must_use]
    pub fn shared_done(self, n: u16) -> Self {
        self.with_ns(lane::plus(self.ns(), n))
    }
}

/// The companion word of a fair lock.
///
/// While the lock is relayed it has the exclusive number that is served, and its holder hands the
/// lock on by one compare-and-swap of this word alone, whoever has come meanwhile. Otherwise the
/// number is one that was served some time ago in this lap, or 0.
#[bitfield(u64)]
#[derive(PartialEq, Eq, Hash)]
pub struct TurnWord {
    /// Exclusive tickets done.
    #[bits(16)]
    pub nx: u16,
    #[bits(46)]
    __: u64,
    /// The lock may be relayed no more: the word tells.
    pub ended: bool,
    /// A release is to be told to the arbiter. While this is set, it alone changes the word.
    pub told: bool,
}

/// A place in the queue of a fair lock: both "next ticket" lanes as they were when it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    /// Exclusive lane. The ticket's own number if it is exclusive.
    pub tx: u16,
    /// Shared lane. The ticket's own number if it is shared.
    pub ts: u16,
}

/// What a client's ledger says of one of its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LedgerState {
    /// Nothing, or an atomic or exclusive hold that the word itself names.
    None = 0,
    /// A shared fetch-and-add may or may not have been executed (read-write lock); a ticket may
    /// or may not have been taken (fair).
    Intent = 1,
    /// One reader of the count is mine (read-write), or a served shared ticket (fair).
    HeldShared = 2,
    /// My ticket is being served exclusively (fair).
    HeldExclusive = 3,
    /// A shared release may or may not have been executed.
    Leaving = 4,
    /// Queued at the arbiter under the wait number in `detail` (read-write).
    Waiting = 5,
    /// A shared ticket, not yet served (fair).
    TicketShared = 6,
    /// An exclusive ticket (fair). With a deadline it is claimed: its owner looks for its turn by
    /// itself, and holds the lock from the moment at which it reads that it is served.
    TicketExclusive = 7,
    /// A shared ticket that is given up (fair).
    GivenUpShared = 8,
    /// An exclusive ticket that is given up (fair).
    GivenUpExclusive = 9,
}

impl LedgerState {
    /// Values a correct client never writes count as `None`.
    pub const fn from_bits(raw: u8) -> Self {
        match raw {
            1 => Self::Intent,
            2 => Self::HeldShared,
            3 => Self::HeldExclusive,
            4 => Self::Leaving,
            5 => Self::Waiting,
            6 => Self::TicketShared,
            7 => Self::TicketExclusive,
            8 => Self::GivenUpShared,
            9 => Self::GivenUpExclusive,
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
    /// Fair, held or claimed: deadline in seconds after the epoch's anchor ([`DETAIL_MAX`]: never
    /// expires).
    /// Waiting: the wait number. Read-write otherwise: a stamp, new for every chain.
    #[bits(28)]
    pub detail: u32,
    /// Shared lane of the ticket.
    #[bits(16)]
    pub ts: u16,
    /// Exclusive lane of the ticket.
    #[bits(16)]
    pub tx: u16,
    /// What the entry says.
    #[bits(4, from = LedgerState::from_bits, into = LedgerState::into_bits)]
    pub state: LedgerState,
}

/// The largest value of a ledger entry's `detail`; as a deadline it means "never".
pub const DETAIL_MAX: u32 = (1 << 28) - 1;

impl LedgerEntry {
    /// The ticket the entry names.
    pub fn ticket(self) -> Ticket {
        Ticket { tx: self.tx(), ts: self.ts() }
    }
    /// An entry with a ticket.
    pub fn of_ticket(state: LedgerState, ticket: Ticket) -> Self {
        Self::new().with_state(state).with_tx(ticket.tx).with_ts(ticket.ts)
    }
    /// Of a client that is about to take a ticket. Two entries with different stamps, below 2^30,
    /// are not the same. `claims`: if the ticket has its turn at once, then its client holds the
    /// lock without a word more, until the deadline that is put in.
    pub fn intent(mode: Mode, claims: bool, stamp: u32) -> Self {
        let kind = u16::from(mode == Mode::Shared) << 15 | u16::from(claims) << 14;
        let stamp = Ticket { tx: kind | (stamp >> 16) as u16 & 0x3fff, ts: stamp as u16 };
        Self::of_ticket(LedgerState::Intent, stamp)
    }
    /// Of a ticket of a fair lock that was just taken, with the end of its hold if it has its turn.
    pub fn of_taken(mode: Mode, ticket: Ticket, held_until_s: Option<u32>, anchor_s: u32) -> Self {
        let state = match (held_until_s, mode) {
            (Some(_), Mode::Exclusive) => LedgerState::HeldExclusive,
            (Some(_), Mode::Shared) => LedgerState::HeldShared,
            (None, Mode::Exclusive) => LedgerState::TicketExclusive,
            (None, Mode::Shared) => LedgerState::TicketShared,
        };
        let entry = Self::of_ticket(state, ticket);
        held_until_s.map_or(entry, |until_s| entry.with_deadline_s(until_s, anchor_s))
    }
    /// Whether it is an [intent](Self::intent) of this mode.
    pub fn is_intent_of(self, mode: Mode) -> bool {
        self.state() == LedgerState::Intent && (self.tx() >> 15 == 1) == (mode == Mode::Shared)
    }
    /// The mode in which it claims a turn, if it is an [intent](Self::intent) that claims one.
    pub fn claims_by_intent(self) -> Option<Mode> {
        match (self.state(), self.tx() >> 14) {
            (LedgerState::Intent, 0b01) => Some(Mode::Exclusive),
            (LedgerState::Intent, 0b11) => Some(Mode::Shared),
            _ => None,
        }
    }
    /// Whether it claims an exclusive ticket ahead of its turn.
    pub fn is_claim(self) -> bool {
        self.state() == LedgerState::TicketExclusive && self.detail() != 0
    }
    /// The deadline as seconds since 1970, given the epoch's anchor in the same unit.
    pub fn deadline_s(self, anchor_s: u32) -> u32 {
        if self.detail() == DETAIL_MAX {
            u32::MAX
        } else {
            anchor_s.saturating_add(self.detail())
        }
    }
    /// The entry with this deadline (seconds since 1970); saturates to "never".
    #[must_use]
    pub fn with_deadline_s(self, deadline_s: u32, anchor_s: u32) -> Self {
        self.with_detail(deadline_s.saturating_sub(anchor_s).min(DETAIL_MAX))
    }
}

/// Whether ticket number `a` comes before `b` if they are less than half a lap apart: for tests
/// that know they are.
#[inline]
pub fn before(a: u16, b: u16) -> bool {
    a != b && lane::distance(a, b) <= lane::mask() / 2
}

const _: () = {
    assert!(size_of::<AtomicWord>() == 8);
    assert!(size_of::<RwWord>() == 8);
    assert!(size_of::<FairWord>() == 8);
    assert!(size_of::<LedgerEntry>() == 8);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_where_the_table_says() {
        let w = AtomicWord::new().with_waiters(true).with_client(1).with_timeout(2);
        assert_eq!(w.into_bits(), 1 << 63 | 1 << 32 | 2);
        let w = RwWord::new().with_client(3).with_rcount(4);
        assert_eq!(w.into_bits(), 3 << 32 | 4);
        let w = FairWord::new().with_nx(1).with_ns(2).with_mx(3).with_ms(4);
        assert_eq!(w.into_bits(), 0x0001_0002_0003_0004);
        assert_eq!(FairWord::from_bits(FairWord::TAKE_EXCLUSIVE).mx(), 1);
        let e = LedgerEntry::of_ticket(LedgerState::HeldShared, Ticket { tx: 5, ts: 6 });
        assert_eq!(e.into_bits(), 2 << 60 | 5 << 44 | 6 << 28);
    }

    #[test]
    fn a_ledger_deadline_saturates() {
        let e = LedgerEntry::new().with_deadline_s(u32::MAX, 1_000);
        assert_eq!(e.deadline_s(1_000), u32::MAX);
        assert_eq!(LedgerEntry::new().with_deadline_s(1_234, 1_000).deadline_s(1_000), 1_234);
    }

    #[test]
    fn a_ticket_is_open_from_the_one_that_is_served_to_the_next() {
        for nx in [5, u16::MAX - 1] {
            let w = FairWord::new().with_nx(nx).with_mx(nx.wrapping_add(3)).with_ns(9).with_ms(11);
            assert_eq!((w.open_exclusive(), w.open_shared()), (3, 2));
            for (after, is_open, is_served) in
                [(u16::MAX, false, true), (0, true, true), (2, true, false), (3, false, false)]
            {
                let tx = nx.wrapping_add(after);
                assert_eq!(w.is_open(tx), is_open, "{after} after {nx}");
                assert_eq!(w.is_served(tx), is_served, "{after} after {nx}");
            }
            assert!(w.is_served(nx.wrapping_add(4)));
        }
    }

    #[test]
    fn lanes_compare_modulo_2_to_the_16() {
        assert!(before(0xffff, 0));
        assert!(!before(0, 0xffff));
        assert!(!before(7, 7));
        assert!(before(0, 0x7fff) && !before(0, 0x8000));
    }
}
