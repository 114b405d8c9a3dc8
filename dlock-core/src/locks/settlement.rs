// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a successor settles all claims to one lock: once, and independent of their order.
//!
//! ```text
//!   claims of one lock ─▶ settle ─▶ its word, and the ledger entries of clients with something
//! ```
//! Of two holds that exclude each other, the one that was granted or confirmed last stays: the
//! predecessor had taken the lock away from the other client, after its lease had ended. So of two
//! holds granted by one incarnation, the later one has the later deadline by the clock of that
//! incarnation; both claims contain that deadline. The age of a hold decides only between equal
//! deadlines, because a claim may have been under way for long. Shares of readers are added up.
//!
//! *Fair locks*: holders are at the head of the queue; the others follow in the order of their
//! tickets, and all get the first numbers of a lap. The order of tickets is given by the
//! incarnation at which they were taken, the lap there, and the sum of both numbers, which grows
//! with each ticket of a lap.

use std::cmp::Reverse;

use crate::clock::{Deadline, ServerTime};
use crate::ids::{ClientId, Epoch};
use crate::memory::words::{AtomicWord, LedgerEntry, LedgerState, RwWord, TakenWord, Ticket};
use crate::planted::{self, Bug};
use crate::token::{settled_fence, Token};
use crate::wire::control::Place;
use crate::wire::message::{LockType, Mode};

/// A client's claim to a lock of the predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claimed {
    pub(super) client: ClientId,
    pub(super) mode: Mode,
    /// Whether the client holds the lock; otherwise it is queued for the lock (fair locks).
    pub(super) is_held: bool,
    /// The end of the lease of a hold.
    pub(super) deadline: Deadline,
    /// The incarnation that last granted or confirmed the hold, and the end of its lease by the
    /// clock of that incarnation.
    pub(super) granted_at: (Epoch, Deadline),
    /// When the hold was last granted or confirmed; too late if the claim took long to arrive.
    pub(super) since: ServerTime,
    /// Fair locks: the place of the ticket.
    pub(super) place: Option<Place>,
    /// The fencing token of a hold that its client is sure of.
    pub(super) token: Token,
}

/// A lock after the recovery. A client that has no entry here, and that the word does not name, has
/// nothing of the lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Settled {
    pub(super) word: u64,
    /// The fence of the slot.
    pub(super) fence: u64,
    pub(super) entries: Vec<(ClientId, LedgerEntry, Option<Claim>)>,
}

/// Fair locks: the mode, the ticket, and, for a hold, the end of the lease. Read-write locks: the
/// mode and the end of a hold with a lease; the ticket means nothing.
pub(super) type Claim = (Mode, Ticket, Option<Deadline>);

/// Settles one lock. `fence`: the fence word of the slot, which is above every token that this
/// primary knows of.
pub(super) fn settle(lock_type: LockType, claims: &[Claimed], fence: u64) -> Settled {
    let holder = claims.iter().filter(|claim| claim.is_held).max_by_key(|claim| {
        let ((Epoch(n), Deadline(end)), ServerTime(since)) = (claim.granted_at, claim.since);
        let order = match planted::is(Bug::EarlierClaimCounts) {
            true => (u64::MAX - n, u32::MAX - end, u64::MAX - since),
            false => (n, end, since),
        };
        (order, claim.deadline, Reverse(claim.client))
    });
    let is_true = |claim: &Claimed| {
        let shares = |holder: &Claimed| {
            let is_shared = holder.mode == Mode::Shared || planted::is(Bug::MixedClaimsStay);
            claim.mode == Mode::Shared && is_shared
        };
        claim.is_held && holder.is_some_and(|holder| claim == holder || shares(holder))
    };
    let holds = claims.iter().filter(|claim| is_true(claim));
    let tokens = holds.map(|claim| (claim.mode, claim.token));
    let fence = settled_fence(lock_type, fence, tokens);
    let settled = match lock_type {
        LockType::Atomic => atomic(holder),
        LockType::Rw => rw(holder, claims.iter().filter(|claim| is_true(claim))),
        LockType::Fair => fair(claims, &is_true, fence),
    };
    Settled { fence, ..settled }
}

fn atomic(holder: Option<&Claimed>) -> Settled {
    let owner = |holder: &Claimed| {
        let word = AtomicWord::new().with_client(holder.client.get());
        word.with_timeout(holder.deadline).into_bits()
    };
    Settled { word: holder.map_or(0, owner), ..Settled::default() }
}

fn rw<'a>(holder: Option<&Claimed>, holds: impl Iterator<Item = &'a Claimed>) -> Settled {
    match holder {
        None => Settled::default(),
        Some(owner) if owner.mode == Mode::Exclusive => {
            let word = RwWord::new().with_client(owner.client.get()).into_bits();
            let entries =
                leased(owner).map(|claim| (owner.client, LedgerEntry::new(), Some(claim)));
            Settled { word, entries: entries.into_iter().collect(), ..Settled::default() }
        }
        Some(_) => {
            let share = LedgerEntry::new().with_state(LedgerState::HeldShared);
            let entry = |claim: &Claimed| match leased(claim) {
                None => (claim.client, share, None),
                leased => (claim.client, LedgerEntry::new(), leased),
            };
            let entries: Vec<_> = holds.map(entry).collect();
            let word = RwWord::new().with_rcount(entries.len() as u32).into_bits();
            Settled { word, entries, ..Settled::default() }
        }
    }
}

/// A hold of a read-write lock that has a lease.
fn leased(hold: &Claimed) -> Option<Claim> {
    let has_lease = !hold.deadline.is_never() && !planted::is(Bug::RwLeaseNotClaimed);
    has_lease.then(|| (hold.mode, Ticket::default(), Some(hold.deadline)))
}

/// Settles a fair lock: the claims that stay, in their order.
fn fair(claims: &[Claimed], is_true: &dyn Fn(&Claimed) -> bool, lap: u64) -> Settled {
    let stays = |claim: &&Claimed| !claim.is_held || is_true(claim);
    let placed = |claim: &Claimed| claim.place.map(|place| (*claim, place));
    let mut all: Vec<_> = claims.iter().filter(stays).filter_map(placed).collect();
    all.sort_unstable_by_key(|(claim, Place { epoch, ticket })| {
        (!claim.is_held, *epoch, ticket.lap, ticket.order(), claim.client)
    });
    let mut taken = TakenWord::START;
    let mut entries = Vec::with_capacity(all.len());
    for (claim, _) in all {
        let ticket = taken.next(lap);
        taken = taken.taken(claim.mode);
        let held_until = claim.is_held.then_some(claim.deadline);
        let entry = LedgerEntry::claim(claim.mode, 0);
        let entry = entry.with_deadline(held_until.unwrap_or_default());
        entries.push((claim.client, entry, Some((claim.mode, ticket, held_until))));
    }
    Settled { word: taken.into_bits(), entries, fence: lap }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mode::{Exclusive as X, Shared as S};

    fn id(n: u32) -> ClientId {
        ClientId::new(n).unwrap()
    }

    /// A claimed hold that was granted at `since` and lasts until `deadline`.
    fn hold(n: u32, mode: Mode, deadline: Deadline, since: u64) -> Claimed {
        let (client, since) = (id(n), ServerTime(since));
        let granted_at = (Epoch(1), Deadline::NEVER);
        let (place, token) = (None, Token::NONE);
        Claimed { client, mode, is_held: true, deadline, granted_at, since, place, token }
    }

    /// A claimed place in the queue, with a ticket of this lap of this incarnation.
    fn queued(n: u32, mode: Mode, (epoch, lap): (u64, u64), (tx, ts): (u32, u32)) -> Claimed {
        let place = Some(Place { epoch: Epoch(epoch), ticket: Ticket { lap, tx, ts } });
        Claimed { is_held: false, place, ..hold(n, mode, Deadline::NONE, 0) }
    }

    fn held(since: u64, claim: Claimed) -> Claimed {
        Claimed { is_held: true, deadline: Deadline::at_s(109), since: ServerTime(since), ..claim }
    }

    /// The ledger states of the clients 1 to `n` after the settlement.
    fn had(settled: &Settled, n: u32) -> Vec<Option<LedgerState>> {
        let entry = |c| settled.entries.iter().find(|e| e.0 == id(c)).map(|e| e.1.state());
        (1..=n).map(entry).collect()
    }

    /// The settlement of these claims, which must be the same in every order of arrival.
    fn settled(lock_type: LockType, claims: &[Claimed]) -> Settled {
        let sorted = |mut settled: Settled| {
            settled.entries.sort_unstable_by_key(|(client, ..)| *client);
            settled
        };
        let first = sorted(settle(lock_type, claims, 8));
        let mut order: Vec<usize> = (0..claims.len()).collect();
        for round in 0..50 {
            let (a, b) = (round * 7 % claims.len(), round * 3 % claims.len());
            order.swap(a, b);
            let other: Vec<_> = order.iter().map(|&i| claims[i]).collect();
            assert_eq!(sorted(settle(lock_type, &other, 8)), first, "{other:?}");
        }
        first
    }

    #[test]
    fn of_two_owners_of_an_atomic_lock_the_later_one_wins() {
        let claims = [
            hold(1, X, Deadline::at_s(9), 5),
            hold(2, X, Deadline::at_s(7), 6),
            hold(3, X, Deadline::at_s(6), 6),
            hold(4, X, Deadline::at_s(7), 6),
        ];
        let word = AtomicWord::from_bits(settled(LockType::Atomic, &claims).word);
        assert_eq!((word.client(), word.timeout(), word.waiters()), (2, Deadline::at_s(7), false));
        let nothing = Settled { fence: 8, ..Settled::default() };
        assert_eq!(settle(LockType::Atomic, &[], 8), nothing);
        // of two holds granted at the same time, the later deadline counts, not the lower id
        let word = settled(
            LockType::Atomic,
            &[hold(1, X, Deadline::at_s(6), 6), hold(2, X, Deadline::at_s(7), 6)],
        )
        .word;
        assert_eq!(AtomicWord::from_bits(word).client(), 2, "the longer lease");
    }

    /// A claim whose lease is over may have been under way for as long as the primary stood still.
    /// Its hold then looks younger than it is.
    #[test]
    fn the_later_deadline_at_one_incarnation_and_the_later_incarnation_win_however_old_they_look() {
        let granted_at = |n, since, epoch, deadline| Claimed {
            granted_at: (Epoch(epoch), deadline),
            ..hold(n, X, Deadline::at_s(9), since)
        };
        let owner = |claims: &[Claimed]| {
            AtomicWord::from_bits(settled(LockType::Atomic, claims).word).client()
        };
        let over = granted_at(1, 8, 2, Deadline::at_s(6));
        assert_eq!(owner(&[over, granted_at(2, 3, 2, Deadline::NEVER)]), 2);
        assert_eq!(owner(&[over, granted_at(3, 3, 2, Deadline::at_s(8))]), 3);
        assert_eq!(owner(&[over, granted_at(4, 9, 1, Deadline::NEVER)]), 1);
        assert_eq!(owner(&[over, granted_at(5, 3, 3, Deadline::at_s(4))]), 5);
        let may_be_released = granted_at(6, 0, 0, Deadline::NONE);
        assert_eq!(owner(&[over, may_be_released]), 1);
    }

    #[test]
    fn shares_are_added_up_and_an_owner_that_came_later_wins() {
        let shares = settled(
            LockType::Rw,
            &[hold(1, S, Deadline::NEVER, 5), hold(2, S, Deadline::NEVER, 3)],
        );
        assert_eq!(RwWord::from_bits(shares.word), RwWord::new().with_rcount(2));
        let share = Some(LedgerState::HeldShared);
        assert_eq!(had(&shares, 3), [share, share, None]);
        let [early, late] = [3, 8].map(|since| hold(3, X, Deadline::NEVER, since));
        let others = [hold(1, S, Deadline::NEVER, 5), hold(2, X, Deadline::NEVER, 4)];
        let owner = settled(LockType::Rw, &[others[0], others[1], late]);
        assert_eq!(RwWord::from_bits(owner.word), RwWord::new().with_client(3));
        assert_eq!(owner.entries, []);
        let reader = settled(LockType::Rw, &[others[0], others[1], early]);
        assert_eq!(RwWord::from_bits(reader.word), RwWord::new().with_rcount(1));
        let nothing = Settled { fence: 8, ..Settled::default() };
        assert_eq!(settle(LockType::Rw, &[], 8), nothing);
    }

    fn ticket(fair: &Settled, n: u32) -> Option<(u32, u32)> {
        fair.entries.iter().find(|e| e.0 == id(n)).and_then(|e| e.2).map(|(_, t, _)| (t.tx, t.ts))
    }

    fn taken(fair: &Settled) -> (u32, u32) {
        let taken = TakenWord::from_bits(fair.word);
        (taken.mx(), taken.ms())
    }

    #[test]
    fn a_queue_keeps_its_order_and_has_new_numbers_of_the_lap_that_is_there() {
        let lap = (1, 4);
        let claims = [
            queued(4, X, lap, (9, 3)),
            held(1, queued(1, X, lap, (7, 2))),
            queued(3, S, lap, (9, 2)),
            queued(2, X, lap, (8, 2)), // numbers of clients that do not come back leave no gap
        ];
        let fair = settled(LockType::Fair, &claims);
        let tickets: Vec<_> = (1..5).map(|n| ticket(&fair, n).unwrap()).collect();
        assert_eq!(tickets, [(0, 1), (1, 1), (2, 1), (2, 2)]);
        assert_eq!(taken(&fair), (3, 2));
        assert!(fair.entries.iter().all(|e| e.2.is_some_and(|(_, ticket, _)| ticket.lap == 8)));
        let hold = fair.entries.iter().find(|e| e.0 == id(1)).unwrap().1;
        assert_eq!((hold.claims(), hold.deadline()), (Some(X), Deadline::at_s(109)));
    }

    #[test]
    fn of_holds_that_exclude_each_other_the_later_one_is_at_the_head() {
        let claims = [
            held(1, queued(1, X, (1, 4), (7, 0))),
            held(2, queued(2, X, (1, 4), (9, 0))),
            queued(4, X, (1, 4), (11, 0)),
        ];
        let fair = settled(LockType::Fair, &claims);
        assert_eq!(
            [1, 2, 3, 4].map(|n| ticket(&fair, n)),
            [None, Some((0, 1)), None, Some((1, 1))]
        );
    }

    /// Two clients claim to hold the lock: one exclusively, the other shared.
    #[test]
    fn of_a_shared_and_an_exclusive_hold_the_later_one_stays_alone() {
        let hold = |n, mode, since| held(since, queued(n, mode, (1, 4), (7, 0)));
        for (of_writer, of_reader) in [(9, 3), (3, 9)] {
            let fair = settled(LockType::Fair, &[hold(1, X, of_writer), hold(2, S, of_reader)]);
            let is_writers = of_writer > of_reader;
            let first = Some((0, 1));
            let expected = if is_writers { [first, None] } else { [None, first] };
            assert_eq!([1, 2].map(|n| ticket(&fair, n)), expected);
            assert_eq!(taken(&fair), if is_writers { (1, 1) } else { (0, 2) });
        }
    }

    #[test]
    fn readers_are_inside_together_and_their_neighbours_wait_behind_them() {
        let claims = [
            held(9, queued(1, S, (1, 4), (7, 1))),
            held(3, queued(2, S, (1, 4), (7, 3))),
            queued(3, S, (1, 4), (7, 2)),
            queued(4, X, (1, 4), (7, 4)),
            held(1, queued(5, X, (1, 4), (6, 0))), // the lease of this hold is over
        ];
        let fair = settled(LockType::Fair, &claims);
        let tickets = [1, 2, 3, 4, 5].map(|n| ticket(&fair, n));
        assert_eq!(tickets, [Some((0, 1)), Some((0, 2)), Some((0, 3)), Some((0, 4)), None]);
        assert_eq!(taken(&fair), (1, 4));
    }

    /// A client that had not asked its last primary yet has a ticket number of the primary before
    /// that.
    #[test]
    fn tickets_of_an_earlier_incarnation_and_of_an_earlier_lap_come_first() {
        let claims = [
            queued(1, X, (2, 9), (0, 0)),
            queued(2, X, (2, 4), (60_000, 0)),
            queued(3, X, (1, 12), (70_000, 0)),
            held(5, queued(4, X, (2, 9), (3, 0))),
        ];
        let fair = settled(LockType::Fair, &claims);
        let tickets = [1, 2, 3, 4].map(|n| ticket(&fair, n).unwrap().0);
        assert_eq!(tickets, [3, 2, 1, 0]);
    }
}
