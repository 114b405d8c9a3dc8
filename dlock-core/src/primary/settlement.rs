// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a successor makes of all claims to one lock: decided once, whatever their order.
//!
//! ```text
//!   claims of one lock ─▶ settle ─▶ its word, and the ledger entries of those who have something
//! ```
//! Of holds that exclude each other the one that was granted, or confirmed, later is the true one:
//! the predecessor had taken the other away. It did so when the other's lease had ended, so of two
//! that one incarnation has granted the later one has the later deadline, by the clock of that
//! incarnation, which both have told. How long ago a hold was granted decides only where this does
//! not: a claim may have been under way for long. The shares of readers are added up.
//!
//! *Fair*: who holds the lock is at the head, and the rest is queued behind in the order of their
//! tickets, numbered anew from 0. A ticket's place is the incarnation at which it was taken, the lap
//! there, and the sum of both its numbers, which grows with each ticket of a lap.

use std::cmp::Reverse;

use crate::clock::ServerTime;
use crate::control::Place;
use crate::ids::{ClientId, Epoch};
use crate::message::{LockType, Mode};
use crate::planted::{self, Bug};
use crate::words::{AtomicWord, LedgerEntry, LedgerState, RwWord, TakenWord, Ticket};

/// What a client says of a lock of its former primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claimed {
    pub(super) client: ClientId,
    pub(super) mode: Mode,
    /// It holds the lock; else it is queued for it (fair locks).
    pub(super) is_held: bool,
    /// Of a hold: the end of its lease, seconds since 1970; `u32::MAX`: it has none.
    pub(super) deadline_s: u32,
    /// Of a hold: the incarnation that granted or confirmed it last, and the end of its lease by
    /// the clock of that one.
    pub(super) granted_at: (Epoch, u32),
    /// Of a hold: when it was granted or confirmed last; later, if the claim took long to come.
    pub(super) since: ServerTime,
    /// Fair: its ticket.
    pub(super) place: Option<Place>,
}

/// A lock as it is after a recovery. Who has no entry, and is not named by the word, has nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Settled {
    pub(super) word: u64,
    pub(super) entries: Vec<(ClientId, LedgerEntry, Option<Claim>)>,
}

/// Fair: how the lock is held or asked for, the ticket, and the end of the hold if it is one.
pub(super) type Claim = (Mode, Ticket, Option<u32>);


/// Ledger deadlines count from `anchor_s`. Fair: the lap is the one of the slot.
pub(super) fn settle(
    lock_type: LockType,
    claims: &[Claimed],
    anchor_s: u32,
    lap: u64,
) -> Settled {
    let holder = claims.iter().filter(|claim| claim.is_held).max_by_key(|claim| {
        let ((Epoch(n), end_s), ServerTime(since)) = (claim.granted_at, claim.since);
        let order = match planted::is(Bug::EarlierClaimCounts) {
            true => (u64::MAX - n, u32::MAX - end_s, u64::MAX - since),
            false => (n, end_s, since),
        };
        (order, claim.deadline_s, Reverse(claim.client))
    });
    let is_true = |claim: &Claimed| {
        let shares = |holder: &Claimed| {
            let is_shared = holder.mode == Mode::Shared || planted::is(Bug::MixedClaimsStay);
            claim.mode == Mode::Shared && is_shared
        };
        claim.is_held && holder.is_some_and(|holder| claim == holder || shares(holder))
    };
    match lock_type {
        LockType::Atomic => atomic(holder),
        LockType::Rw => rw(holder, claims.iter().filter(|claim| is_true(claim))),
        LockType::Fair => fair(claims, &is_true, anchor_s, lap),
    }
}

fn atomic(holder: Option<&Claimed>) -> Settled {
    let owner = |holder: &Claimed| {
        let word = AtomicWord::new().with_client(holder.client.get());
        word.with_timeout(holder.deadline_s).into_bits()
    };
    Settled { word: holder.map_or(0, owner), entries: Vec::new() }
}

fn rw<'a>(holder: Option<&Claimed>, holds: impl Iterator<Item = &'a Claimed>) -> Settled {
    match holder {
        None => Settled::default(),
        Some(owner) if owner.mode == Mode::Exclusive => {
            let word = RwWord::new().with_client(owner.client.get()).into_bits();
            Settled { word, entries: Vec::new() }
        }
        Some(_) => {
            let share = LedgerEntry::new().with_state(LedgerState::HeldShared);
            let entries: Vec<_> = holds.map(|claim| (claim.client, share, None)).collect();
            let word = RwWord::new().with_rcount(entries.len() as u32).into_bits();
            Settled { word, entries }
        }
    }
}

/// Those that stay, in their order.
fn fair(
    claims: &[Claimed],
    is_true: &dyn Fn(&Claimed) -> bool,
    anchor_s: u32,
    lap: u64,
) -> Settled {
    let stays = |claim: &&Claimed| !claim.is_held || is_true(claim);
    let placed = |claim: &Claimed| claim.place.map(|place| (*claim, place));
    let mut all: Vec<_> = claims.iter().filter(stays).filter_map(placed).collect();
    all.sort_unstable_by_key(|(claim, Place { epoch, ticket })| {
        (!claim.is_held, *epoch, ticket.lap, ticket.order(), claim.client)
    });
    let mut taken = TakenWord::new();
    let mut entries = Vec::with_capacity(all.len());
    for (claim, _) in all {
        let ticket = taken.next(lap);
        taken = taken.taken(claim.mode);
        let held_until_s = claim.is_held.then_some(claim.deadline_s);
        let entry = LedgerEntry::claim(claim.mode, 0);
        let entry = entry.with_deadline_s(held_until_s.unwrap_or(anchor_s), anchor_s);
        entries.push((claim.client, entry, Some((claim.mode, ticket, held_until_s))));
    }
    Settled { word: taken.into_bits(), entries }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mode::{Exclusive as X, Shared as S};

    fn id(n: u32) -> ClientId {
        ClientId::new(n).unwrap()
    }

    /// Granted `since`, until `deadline_s`.
    fn hold(n: u32, mode: Mode, deadline_s: u32, since: u64) -> Claimed {
        let (client, since) = (id(n), ServerTime(since));
        let granted_at = (Epoch(1), u32::MAX);
        Claimed { client, mode, is_held: true, deadline_s, granted_at, since, place: None }
    }

    /// A ticket of this incarnation, and the word as `(nx, ns, mx, ms)`.
    fn queued(n: u32, mode: Mode, epoch: u64, t: (u16, u16), w: [u16; 4]) -> Claimed {
        let ticket = Ticket { tx: t.0, ts: t.1 };
        let word = FairWord::new().with_nx(w[0]).with_ns(w[1]).with_mx(w[2]).with_ms(w[3]);
        let place = Some(Place { epoch: Epoch(epoch), ticket, word: word.into_bits() });
        Claimed { is_held: false, place, ..hold(n, mode, 0, 0) }
    }

    fn held(since: u64, claim: Claimed) -> Claimed {
        Claimed { is_held: true, deadline_s: 109, since: ServerTime(since), ..claim }
    }

    /// The word, and what each of the clients 1 to `n` has: state, ticket.
    fn had(settled: &Settled, n: u32) -> Vec<Option<(LedgerState, u16, u16)>> {
        let entry = |c| settled.entries.iter().find(|e| e.0 == id(c)).map(|e| e.1);
        (1..=n).map(|c| entry(c).map(|e| (e.state(), e.tx(), e.ts()))).collect()
    }

    /// The same in every order of arrival.
    fn settled(lock_type: LockType, claims: &[Claimed]) -> Settled {
        let sorted = |mut settled: Settled| {
            settled.entries.sort_unstable_by_key(|(client, _)| *client);
            settled
        };
        let first = sorted(settle(lock_type, claims, 100));
        let mut order: Vec<usize> = (0..claims.len()).collect();
        for round in 0..50 {
            let (a, b) = (round * 7 % claims.len(), round * 3 % claims.len());
            order.swap(a, b);
            let other: Vec<_> = order.iter().map(|&i| claims[i]).collect();
            assert_eq!(sorted(settle(lock_type, &other, 100)), first, "{other:?}");
        }
        first
    }

    #[test]
    fn of_two_owners_of_an_atomic_lock_the_later_one_wins() {
        let claims = [hold(1, X, 9, 5), hold(2, X, 7, 6), hold(3, X, 6, 6), hold(4, X, 7, 6)];
        let word = AtomicWord::from_bits(settled(LockType::Atomic, &claims).word);
        assert_eq!((word.client(), word.timeout(), word.waiters()), (2, 7, false));
        assert_eq!(settle(LockType::Atomic, &[], 0), Settled::default());
        // granted at the same time, whoever has the lower id
        let word = settled(LockType::Atomic, &[hold(1, X, 6, 6), hold(2, X, 7, 6)]).word;
        assert_eq!(AtomicWord::from_bits(word).client(), 2, "the longer lease");
    }

    /// The claim of one whose lease is over may have been under way for as long as its primary
    /// stood still: it looks younger than it is.
    #[test]
    fn the_later_deadline_at_one_incarnation_and_the_later_incarnation_win_however_old_they_look() {
        let granted_at = |n, since, epoch, deadline_s| Claimed {
            granted_at: (Epoch(epoch), deadline_s),
            ..hold(n, X, 9, since)
        };
        let owner = |claims: &[Claimed]| {
            AtomicWord::from_bits(settled(LockType::Atomic, claims).word).client()
        };
        let over = granted_at(1, 8, 2, 6);
        assert_eq!(owner(&[over, granted_at(2, 3, 2, u32::MAX)]), 2);
        assert_eq!(owner(&[over, granted_at(3, 3, 2, 8)]), 3);
        assert_eq!(owner(&[over, granted_at(4, 9, 1, u32::MAX)]), 1);
        assert_eq!(owner(&[over, granted_at(5, 3, 3, 4)]), 5);
        let may_be_released = granted_at(6, 0, 0, 0);
        assert_eq!(owner(&[over, may_be_released]), 1);
    }

    #[test]
    fn shares_are_added_up_and_an_owner_that_came_later_wins() {
        let shares = settled(LockType::Rw, &[hold(1, S, u32::MAX, 5), hold(2, S, u32::MAX, 3)]);
        assert_eq!(RwWord::from_bits(shares.word), RwWord::new().with_rcount(2));
        let share = Some((LedgerState::HeldShared, 0, 0));
        assert_eq!(had(&shares, 3), [share, share, None]);
        let [early, late] = [3, 8].map(|since| hold(3, X, u32::MAX, since));
        let others = [hold(1, S, u32::MAX, 5), hold(2, X, u32::MAX, 4)];
        let owner = settled(LockType::Rw, &[others[0], others[1], late]);
        assert_eq!(RwWord::from_bits(owner.word), RwWord::new().with_client(3));
        assert_eq!(owner.entries, []);
        let reader = settled(LockType::Rw, &[others[0], others[1], early]);
        assert_eq!(RwWord::from_bits(reader.word), RwWord::new().with_rcount(1));
        assert_eq!(settle(LockType::Rw, &[], 0), Settled::default());
    }

    /// A client that stood still for half a lap of the lane comes first here, by its number.
    #[test]
    fn a_ticket_that_was_passed_long_ago_does_not_disturb_the_order_of_the_others() {
        let now = [32_760, 0, 32_790, 0];
        let queue = [
            queued(1, X, 1, (9, 0), [7, 0, 10, 0]),
            queued(2, X, 1, (32_770, 0), now),
            queued(3, X, 1, (32_780, 0), now),
        ];
        let order = had(&settled(LockType::Fair, &queue), 3);
        let numbers: Vec<_> = order.iter().map(|entry| entry.unwrap().1).collect();
        assert_eq!(numbers, [0, 1, 2]);
    }

    #[test]
    fn a_queue_keeps_its_order_and_has_new_numbers() {
        use LedgerState::{HeldExclusive, TicketExclusive, TicketShared};
        let fair = settled(
            LockType::Fair,
            &[
                queued(4, X, 1, (9, 3), [7, 2, 10, 3]),
                held(1, queued(1, X, 1, (7, 2), [7, 2, 8, 2])),
                queued(3, S, 1, (9, 2), [7, 2, 9, 3]),
                queued(2, X, 1, (8, 2), [7, 2, 9, 2]),
            ],
        );
        let of = [(HeldExclusive, 0, 0), (TicketExclusive, 1, 0), (TicketShared, 2, 0)];
        let last = (TicketExclusive, 2, 1);
        assert_eq!(had(&fair, 4), [Some(of[0]), Some(of[1]), Some(of[2]), Some(last)]);
        let w = FairWord::from_bits(fair.word);
        assert_eq!([w.nx(), w.ns(), w.mx(), w.ms()], [0, 0, 3, 1]);
        let hold = fair.entries.iter().find(|e| e.0 == id(1)).unwrap().1;
        assert_eq!(hold.deadline_s(100), 109);
    }

    #[test]
    fn tickets_of_clients_that_do_not_come_back_leave_no_gap() {
        let claims =
            [queued(1, X, 1, (12, 0), [7, 0, 13, 0]), queued(2, X, 1, (9, 0), [7, 0, 10, 0])];
        let fair = settled(LockType::Fair, &claims);
        let ticket = |tx| Some((LedgerState::TicketExclusive, tx, 0));
        assert_eq!(had(&fair, 2), [ticket(1), ticket(0)]);
        assert_eq!(FairWord::from_bits(fair.word).mx(), 2);
    }

    #[test]
    fn of_holds_that_exclude_each_other_the_later_one_is_at_the_head() {
        let claims = [
            held(1, queued(1, X, 1, (7, 0), [7, 0, 9, 0])),
            held(2, queued(2, X, 1, (9, 0), [9, 0, 10, 0])),
            queued(4, X, 1, (11, 0), [9, 0, 12, 0]),
        ];
        let fair = settled(LockType::Fair, &claims);
        let of = [(LedgerState::HeldExclusive, 0, 0), (LedgerState::TicketExclusive, 1, 0)];
        assert_eq!(had(&fair, 4), [None, Some(of[0]), None, Some(of[1])]);
    }

    /// Two clients that both say to hold the lock, one of them shared.
    #[test]
    fn of_a_shared_and_an_exclusive_hold_the_later_one_stays_alone() {
        let hold = |n, mode, since| held(since, queued(n, mode, 1, (7, 0), [7, 0, 8, 1]));
        let [exclusive, shared] = [LedgerState::HeldExclusive, LedgerState::HeldShared];
        for (of_writer, of_reader) in [(9, 3), (3, 9)] {
            let fair = settled(LockType::Fair, &[hold(1, X, of_writer), hold(2, S, of_reader)]);
            let is_writers = of_writer > of_reader;
            let writers = is_writers.then_some((exclusive, 0, 0));
            let readers = (!is_writers).then_some((shared, 0, 0));
            assert_eq!(had(&fair, 2), [writers, readers]);
            let w = FairWord::from_bits(fair.word);
            let open = (w.open_exclusive(), w.open_shared());
            assert_eq!(open, if is_writers { (1, 0) } else { (0, 1) });
        }
    }

    #[test]
    fn readers_are_inside_together_and_their_neighbours_wait_behind_them() {
        use LedgerState::{HeldShared, TicketExclusive, TicketShared};
        let claims = [
            held(9, queued(1, S, 1, (7, 1), [7, 1, 7, 2])),
            held(3, queued(2, S, 1, (7, 3), [7, 1, 7, 4])),
            queued(3, S, 1, (7, 2), [7, 1, 7, 3]),
            queued(4, X, 1, (7, 4), [7, 1, 8, 4]),
            held(1, queued(5, X, 1, (6, 0), [6, 0, 7, 1])), // over since then
        ];
        let fair = settled(LockType::Fair, &claims);
        let of = [(HeldShared, 0, 0), (HeldShared, 0, 1), (TicketShared, 0, 2)];
        let behind = (TicketExclusive, 0, 3);
        assert_eq!(had(&fair, 5), [Some(of[0]), Some(of[1]), Some(of[2]), Some(behind), None]);
        assert_eq!(FairWord::from_bits(fair.word).open_shared(), 3);
    }

    /// Who had not asked its primary yet has a number of the one before.
    #[test]
    fn tickets_of_an_earlier_incarnation_come_first() {
        let claims = [
            queued(1, X, 2, (0, 0), [0, 0, 1, 0]),
            queued(2, X, 1, (60_000, 0), [59_999, 0, 60_001, 0]),
            held(5, queued(3, X, 2, (3, 0), [3, 0, 4, 0])),
        ];
        let fair = settled(LockType::Fair, &claims);
        let ticket = |tx| Some((LedgerState::TicketExclusive, tx, 0));
        let holder = Some((LedgerState::HeldExclusive, 0, 0));
        assert_eq!(had(&fair, 3), [ticket(2), ticket(1), holder]);
    }

    /// Random queues with laps, gaps and rings between the sightings of the word.
    #[test]
    fn any_queue_keeps_its_order_wherever_its_lane_is() {
        let mut seed = 1_u64;
        let mut below = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % n
        };
        for _ in 0..20_000 {
            // positions on an endless lane; what is seen of them is their lowest 16 bits
            let start = below(200_000);
            let (mut at, mut served) = (start, start);
            let (mut claims, mut open) = (Vec::new(), Vec::new());
            for n in 1..=1 + below(6) {
                at += 1 + below(2) * below(5_000); // numbers that were left out
                open.push(at);
                // the head may move on before the next one comes
                let word = [served as u16, 0, (at + 1) as u16, 0];
                claims.push(queued(n as u32, X, 1, (at as u16, 0), word));
                if below(3) == 0 {
                    served = served.max(open[below(open.len() as u64) as usize]);
                }
            }
            let n = claims.len() as u32;
            let mut shuffled = claims.clone();
            shuffled.rotate_left(below(n.into()) as usize);
            let fair = settle(LockType::Fair, &shuffled, 0);
            let numbers: Vec<_> = had(&fair, n).iter().map(|had| had.unwrap().1).collect();
            assert!(numbers.iter().copied().eq(0..n as u16), "{claims:?} {numbers:?}");
        }
    }
}
