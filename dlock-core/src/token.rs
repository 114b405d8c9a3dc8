// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fencing tokens: numbers by which a resource tells a late writer from the holder of a lock.
//!
//! ```text
//!   lock         fence word holds                    exclusive token    shared token
//!   atomic       the last token                      old value + 1      —
//!   read-write   an even number                      fence + 1          fence
//!   fair         the base of the lap                 base + 2 tx + 1    base + 2 tx
//! ```
//! * The exclusive tokens of one lock name strictly increase: over grants, take-overs, failovers,
//!   restarts of the primary, and also if all clients give the lock back and it is made anew.
//! * Clients that share a lock have equal tokens: above those of earlier exclusive holds, below
//!   those of later ones.
//! * A token counts only if it came while the lease surely ran: until then the lock had no other
//!   holder, so no larger token had been given.
//! * Of a read-write lock the end of an exclusive hold is counted: the fence grows by 2 *before*
//!   the word is freed. Counting at the acquire would give the readers of one phase different
//!   tokens. Clients that want no tokens do not count, because they separate no readers.
//!
//! **Across incarnations.** A new lock starts above the [floor](TokenFloor) of its primary: at
//! least seconds since 1970 · 2³⁰, and above everything that an earlier incarnation with the same
//! roster can have given. No lock is acquired 2³⁰ times a second, so the upper bound of an
//! incarnation's tokens grows only with its clock. The primary writes this bound into its roster
//! ahead of time ([`TokenFloor::reserve`]).

use crate::clock::{ServerTime, NS};
use crate::memory::words::{TakenWord, Ticket};
use crate::planted::{self, Bug};
use crate::wire::message::{LockType, Mode};

/// A fencing token, below 2⁶³. Of two tokens of a lock, the larger one was given later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Token {
    /// No token: the client has asked for none.
    pub const NONE: Self = Self(0);

    /// The sum, limited to valid tokens: a client does not trust the numbers of a primary.
    fn of(fence: u64, more: u64) -> Self {
        Self(fence.saturating_add(more).min(i64::MAX as u64))
    }
    /// The token of an atomic lock whose fence was `fence` before the lock was counted.
    pub fn of_atomic(fence: u64) -> Self {
        Self::of(fence, 1)
    }
    /// The token of a read-write lock whose fence is `fence` while it is held.
    pub fn of_rw(mode: Mode, fence: u64) -> Self {
        Self::of(fence, u64::from(mode == Mode::Exclusive))
    }
    /// The token of a fair lock that is held under this ticket.
    pub fn of_fair(mode: Mode, ticket: Ticket) -> Self {
        let turn = 2 * u64::from(ticket.tx);
        Self::of(ticket.lap, turn + u64::from(mode == Mode::Exclusive))
    }
    /// This token; `None` if it is [`NONE`](Self::NONE).
    pub fn some(self) -> Option<Self> {
        Some(self).filter(|&token| token != Self::NONE)
    }
}

/// How much the end of an exclusive hold adds to the fence of a read-write lock.
pub const RW_END: u64 = 2;

/// The smallest even fence that is above every token of a lock with this fence and this `w0`.
pub fn fence_above(lock_type: LockType, fence: u64, w0: u64) -> u64 {
    let taken = match lock_type {
        LockType::Fair => 2 * u64::from(TakenWord::from_bits(w0).mx()),
        LockType::Atomic | LockType::Rw => 0,
    };
    let last = fence.saturating_add(taken);
    match planted::is(Bug::LastTokenGivenAgain) {
        true => last & !1,
        false => (last & !1).saturating_add(2),
    }
}

/// The fence of a lock after a recovery. `floor`: the fence without any claim. `holds`: the mode
/// and the token of each hold that survived and that its client was sure of.
///
/// Clients that share the lock keep their token, and clients that join them get the same one. An
/// exclusive holder keeps its own token, and the next token is larger. A client that was not sure
/// of its hold gets a token of the successor.
pub fn settled_fence(
    lock_type: LockType,
    floor: u64,
    holds: impl Iterator<Item = (Mode, Token)>,
) -> u64 {
    let (mut fence, mut shared) = (floor, None);
    for (mode, Token(token)) in holds {
        if token == 0 || token.saturating_sub(floor) > LEAP_MAX {
            continue; // the claim has no token, or one that no primary can have given
        }
        match (mode, lock_type) {
            (Mode::Shared, _) => shared = shared.max(Some(token & !1)),
            (Mode::Exclusive, LockType::Atomic) => fence = fence.max(token),
            (Mode::Exclusive, _) => fence = fence.max(token & !1),
        }
    }
    match shared {
        Some(shared) if !planted::is(Bug::SharedTokenForgotten) => shared,
        _ => fence,
    }
}

/// The largest distance from its floor at which a primary believes a token: 12 days of
/// [`PER_SECOND`].
pub const LEAP_MAX: u64 = 1 << 50;
/// The most tokens that one lock gives in a second.
pub const PER_SECOND: u64 = 1 << 30;
/// For how long the roster reserves tokens, seconds.
pub const RESERVE_S: u64 = 600;

/// The numbers between which a primary's tokens are: above `start`, and below the bound that it
/// reserves. The tokens of its successor are above that bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenFloor {
    start: u64,
    since: ServerTime,
    /// The end of the time for which tokens are reserved; `None`: none are.
    reserved_until: Option<ServerTime>,
}

impl TokenFloor {
    /// The floor of a primary that starts now, `wall_s` seconds after 1970. `kept`: the number in
    /// its roster below which all earlier tokens are.
    pub fn new(now: ServerTime, wall_s: u64, kept: u64) -> Self {
        let by_clock = wall_s.saturating_mul(PER_SECOND);
        let start = match planted::is(Bug::ReserveIgnored) {
            true => by_clock,
            false => by_clock.max(kept.saturating_add(kept & 1)),
        };
        Self { start, since: now, reserved_until: None }
    }

    /// The fence with which the primary's first lock starts.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The number above every token that is given until `then`.
    fn below(&self, then: ServerTime) -> u64 {
        let passed_s = then.0.saturating_sub(self.since.0).div_ceil(NS);
        self.start.saturating_add(passed_s.saturating_add(1).saturating_mul(PER_SECOND))
    }

    /// The bound to write into the roster before any token above the last bound is given; `None`:
    /// the last bound still holds for long enough.
    pub fn reserve(&mut self, now: ServerTime) -> Option<u64> {
        if self.reserved_until.is_some_and(|until| now < Self::renews_at(until)) {
            return None;
        }
        let until = now.plus_ns(RESERVE_S * NS);
        self.reserved_until = Some(until);
        Some(self.below(until))
    }

    /// When the primary has to renew the reservation.
    pub fn next_reserve(&self) -> Option<ServerTime> {
        self.reserved_until.map(Self::renews_at)
    }

    fn renews_at(until: ServerTime) -> ServerTime {
        ServerTime(until.0.saturating_sub(RESERVE_S * NS / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> ServerTime {
        ServerTime(s * NS)
    }

    #[test]
    fn a_fence_that_is_out_of_bounds_makes_no_token_that_is() {
        let largest = Token(i64::MAX as u64);
        assert_eq!(Token::of_atomic(u64::MAX), largest);
        assert_eq!(Token::of_rw(Mode::Exclusive, u64::MAX), largest);
        let ticket = Ticket { lap: u64::MAX, tx: u32::MAX, ts: 0 };
        assert_eq!(Token::of_fair(Mode::Exclusive, ticket), largest);
    }

    #[test]
    fn a_primary_starts_above_its_clock_and_above_what_its_record_says() {
        assert_eq!(TokenFloor::new(at(5), 5, 0).start(), 5 * PER_SECOND);
        let kept = 9 * PER_SECOND + 1;
        assert_eq!(TokenFloor::new(at(5), 5, kept).start(), kept + 1, "an even number");
    }

    #[test]
    fn the_record_is_ahead_of_what_can_be_given() {
        let mut floor = TokenFloor::new(at(100), 100, 0);
        assert_eq!(floor.next_reserve(), None, "without tokens nothing is kept");
        let below = floor.reserve(at(100)).unwrap();
        assert!(below >= floor.start() + RESERVE_S * PER_SECOND);
        assert_eq!(floor.reserve(at(399)), None);
        let again = floor.next_reserve().unwrap();
        assert_eq!(again, at(400));
        let more = floor.reserve(again).unwrap();
        assert!(more >= floor.start() + (300 + RESERVE_S) * PER_SECOND);
        // a clock that was set back does not matter
        assert!(TokenFloor::new(at(50), 50, more).start() >= more);
    }

    #[test]
    fn a_lock_that_is_made_anew_starts_above_the_last_token() {
        assert_eq!(fence_above(LockType::Atomic, 7, 0), 8);
        assert_eq!(fence_above(LockType::Atomic, 8, 0), 10);
        assert!(Token::of_rw(Mode::Exclusive, 8).0 < fence_above(LockType::Rw, 8, 0));
        let taken = TakenWord::new().with_mx(4).with_ms(9);
        let last = Ticket { lap: 10, tx: 3, ts: 9 };
        let share = Ticket { tx: 4, ..last };
        let above = fence_above(LockType::Fair, 10, taken.into_bits());
        assert!(Token::of_fair(Mode::Exclusive, last).0 < above);
        assert!(Token::of_fair(Mode::Shared, share).0 < above);
    }

    #[test]
    fn clients_that_share_keep_their_token_and_the_next_exclusive_one_is_larger() {
        use Mode::{Exclusive as X, Shared as S};
        let settled = |holds: &[(Mode, u64)]| {
            let holds = holds.iter().map(|&(mode, token)| (mode, Token(token)));
            settled_fence(LockType::Rw, 1_000, holds)
        };
        assert_eq!(settled(&[]), 1_000);
        assert_eq!(settled(&[(S, 1_400), (S, 1_400)]), 1_400);
        assert_eq!(settled(&[(S, 800)]), 800, "below the floor as well");
        assert_eq!(settled(&[(X, 1_401)]), 1_400, "its end adds 2");
        assert_eq!(settled(&[(X, 901)]), 1_000);
        let atomic = settled_fence(LockType::Atomic, 1_000, [(X, Token(1_401))].into_iter());
        assert_eq!(atomic, 1_401);
        let absurd = [(S, u64::MAX), (X, 1 << 62)];
        assert_eq!(settled(&absurd), 1_000, "a client cannot use the numbers up");
    }
}
