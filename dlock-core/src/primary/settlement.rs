// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a successor makes of all claims to one lock: decided once, whatever their order.
//!
//! ```text
//!   claims of one lock ─▶ settle ─▶ the word, and for each claim: Granted · Queued · Lost
//! ```
//! *Atomic*: of two holds the one with more time left is the later one, and true. *Read-write*: an
//! owner against readers, who acquired later. *Fair*: tickets have their order; of holds that
//! exclude each other the later ticket's is the true one, and what was before it had been passed
//! over. The rest is numbered anew, from 0.
//!
//! A fair ticket is open as long as its number lies at or after the served one. So the distance
//! from the served number orders all tickets, over the numbers that the arbiter has left out and
//! over the end of the lane. Each client tells the word that it saw last; its own ticket was open
//! in it. The served number that lies between another one and the ticket of its client is the later
//! one of both.

use std::cmp::Ordering;

use crate::clock::ServerTime;
use crate::ids::ClientId;
use crate::lane;
use crate::message::{LockType, Mode};
use crate::words::{AtomicWord, FairWord, RwWord, Ticket};

/// What a client says of a lock of its former primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claimed {
    pub(super) client: ClientId,
    pub(super) mode: Mode,
    /// It holds the lock; else it is queued for it (fair locks).
    pub(super) is_held: bool,
    /// Of a hold: the lease that is left, seconds; `u32::MAX`: no end.
    pub(super) remaining_s: u32,
    /// Of a hold: how long ago it was acquired, seconds.
    pub(super) age_s: u32,
    /// Fair: its ticket, and the word as its client saw it last.
    pub(super) fair: Option<(Ticket, FairWord)>,
}

/// What becomes of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It holds the lock (fair: with this ticket).
    Granted(Option<Ticket>),
    /// It is queued with this ticket.
    Queued(Ticket),
    /// Another client holds the lock, or its ticket had been passed over.
    Lost,
}

/// The word of a lock, and a verdict for each of its claims, in their order.
pub(super) fn settle(
    lock_type: LockType,
    claims: &[Claimed],
    now: ServerTime,
) -> (u64, Vec<Verdict>) {
    match lock_type {
        LockType::Atomic => atomic(claims, now),
        LockType::Rw => rw(claims),
        LockType::Fair => fair(claims),
    }
}

fn verdicts(claims: &[Claimed], is_granted: impl Fn(&Claimed) -> bool) -> Vec<Verdict> {
    let verdict = |claim| if is_granted(claim) { Verdict::Granted(None) } else { Verdict::Lost };
    claims.iter().map(verdict).collect()
}

fn holds(claims: &[Claimed], mode: Mode) -> impl Iterator<Item = &Claimed> {
    claims.iter().filter(move |claim| claim.is_held && claim.mode == mode)
}

fn atomic(claims: &[Claimed], now: ServerTime) -> (u64, Vec<Verdict>) {
    let latest = holds(claims, Mode::Exclusive)
        .max_by_key(|claim| (claim.remaining_s, std::cmp::Reverse(claim.client)));
    let Some(&owner) = latest else { return (0, verdicts(claims, |_| false)) };
    let word = AtomicWord::new()
        .with_client(owner.client.get())
        .with_timeout(now.deadline(owner.remaining_s));
    (word.into_bits(), verdicts(claims, |claim| *claim == owner))
}

fn rw(claims: &[Claimed]) -> (u64, Vec<Verdict>) {
    let newest = |mode| {
        holds(claims, mode).min_by_key(|claim| (claim.age_s, claim.client)).copied()
    };
    let (owner, reader) = (newest(Mode::Exclusive), newest(Mode::Shared));
    match (owner, reader) {
        (Some(owner), reader) if reader.is_none_or(|reader| owner.age_s <= reader.age_s) => {
            let word = RwWord::new().with_client(owner.client.get());
            (word.into_bits(), verdicts(claims, |claim| *claim == owner))
        }
        _ => {
            let is_reader = |claim: &Claimed| claim.is_held && claim.mode == Mode::Shared;
            let readers = claims.iter().filter(|claim| is_reader(claim)).count();
            (RwWord::new().with_rcount(readers as u32).into_bits(), verdicts(claims, is_reader))
        }
    }
}

/// A fair claim: its place among the claims, whose it is, and what it says.
#[derive(Clone, Copy, Debug)]
struct Fair {
    at: usize,
    client: ClientId,
    mode: Mode,
    is_held: bool,
    remaining_s: u32,
    ticket: Ticket,
    seen: FairWord,
}

fn fair(claims: &[Claimed]) -> (u64, Vec<Verdict>) {
    let mut verdicts = vec![Verdict::Lost; claims.len()];
    let of = |(at, claim): (usize, &Claimed)| {
        let Claimed { client, mode, is_held, remaining_s, fair, .. } = *claim;
        let (ticket, seen) = fair?;
        Some(Fair { at, client, mode, is_held, remaining_s, ticket, seen })
    };
    let mut all: Vec<Fair> = claims.iter().enumerate().filter_map(of).collect();
    all.sort_unstable_by_key(|f| f.client);
    // a hold is at its turn: the served number is its own
    let held = all.iter().filter(|f| f.is_held).copied().reduce(later_hold);
    let Some(base) = held.map(|f| (f.ticket.tx, f.seen.ns())).or_else(|| latest_served(&all))
    else {
        return (0, verdicts);
    };
    let is_true = |f: &Fair| {
        let shares = |h: &Fair| (f.mode, h.mode) == (Mode::Shared, Mode::Shared);
        let held = held.filter(|_| f.is_held);
        held.is_some_and(|h| f.at == h.at || shares(&h) && f.ticket.tx == h.ticket.tx)
    };
    all.retain(|f| is_true(f) || !f.is_held && !f.is_passed_over(base.0));
    all.sort_unstable_by_key(|f| {
        let after = lane::distance(base.0, f.ticket.tx);
        let is_exclusive = f.mode == Mode::Exclusive;
        // nobody is before an exclusive hold, whoever claims its number
        let is_behind = !(is_true(f) && is_exclusive);
        (is_behind, after, is_exclusive, lane::distance(base.1, f.ticket.ts), f.client)
    });
    let mut word = FairWord::new();
    for f in all {
        let ticket = word.next();
        word = match f.mode {
            Mode::Exclusive => word.exclusive_taken(),
            Mode::Shared => word.shared_taken(),
        };
        verdicts[f.at] = match is_true(&f) {
            true => Verdict::Granted(Some(ticket)),
            false => Verdict::Queued(ticket),
        };
    }
    (word.into_bits(), verdicts)
}

/// Of two holds the one that was granted later. Where they exclude each other the other one is as
/// good as over: less of it is left.
fn later_hold(a: Fair, b: Fair) -> Fair {
    let is_later = |a: &Fair, b: &Fair| match a.remaining_s.cmp(&b.remaining_s) {
        Ordering::Equal if a.ticket.tx == b.ticket.tx => a.client < b.client,
        Ordering::Equal => lane::is_before(b.ticket.tx, a.ticket.tx),
        order => order == Ordering::Greater,
    };
    if is_later(&b, &a) { b } else { a }
}

/// The latest served numbers that anybody has seen.
fn latest_served(all: &[Fair]) -> Option<(u16, u16)> {
    let is_later = |a: &Fair, b: &Fair| {
        let (from, to) = (b.seen.nx(), a.seen.nx());
        let within = |f: &Fair, number| {
            let window = lane::distance(f.seen.nx(), f.ticket.tx);
            (1..=window).contains(&lane::distance(f.seen.nx(), number))
        };
        match (within(b, to), within(a, from)) {
            (is_later, is_earlier) if is_later != is_earlier => is_later,
            _ => lane::is_before(from, to),
        }
    };
    let later = |a: Fair, b: Fair| if is_later(&b, &a) { b } else { a };
    all.iter().copied().reduce(later).map(|f| (f.seen.nx(), f.seen.ns()))
}

impl Fair {
    /// Its turn had come before the one of this number.
    fn is_passed_over(&self, served: u16) -> bool {
        let from = self.seen.nx();
        lane::distance(from, self.ticket.tx) < lane::distance(from, served)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mode::{Exclusive as X, Shared as S};

    fn id(n: u32) -> ClientId {
        ClientId::new(n).unwrap()
    }

    fn hold(n: u32, mode: Mode, remaining_s: u32, age_s: u32) -> Claimed {
        Claimed { client: id(n), mode, is_held: true, remaining_s, age_s, fair: None }
    }

    /// The ticket, and the word as `(nx, ns, mx, ms)`.
    fn fair_claim(n: u32, mode: Mode, is_held: bool, t: (u16, u16), w: [u16; 4]) -> Claimed {
        let ticket = Ticket { tx: t.0, ts: t.1 };
        let word = FairWord::new().with_nx(w[0]).with_ns(w[1]).with_mx(w[2]).with_ms(w[3]);
        let fair = Some((ticket, word));
        Claimed { client: id(n), mode, is_held, remaining_s: 9, age_s: 0, fair }
    }

    fn granted(tx: u16, ts: u16) -> Verdict {
        Verdict::Granted(Some(Ticket { tx, ts }))
    }

    fn queued(tx: u16, ts: u16) -> Verdict {
        Verdict::Queued(Ticket { tx, ts })
    }

    /// The same in every order of arrival.
    fn settled(lock_type: LockType, claims: &[Claimed]) -> (u64, Vec<Verdict>) {
        let first = settle(lock_type, claims, ServerTime(0));
        let mut order: Vec<usize> = (0..claims.len()).collect();
        for round in 0..50 {
            let (a, b) = (round * 7 % claims.len(), round * 3 % claims.len());
            order.swap(a, b);
            let other: Vec<_> = order.iter().map(|&i| claims[i]).collect();
            let (word, verdicts) = settle(lock_type, &other, ServerTime(0));
            assert_eq!(word, first.0);
            for (at, &i) in order.iter().enumerate() {
                assert_eq!(verdicts[at], first.1[i], "{claims:?}");
            }
        }
        first
    }

    #[test]
    fn of_two_owners_of_an_atomic_lock_the_later_one_wins() {
        let claims = [hold(1, X, 5, 0), hold(2, X, 7, 0), hold(3, X, 7, 0)];
        let (word, verdicts) = settled(LockType::Atomic, &claims);
        assert_eq!(AtomicWord::from_bits(word).client(), 2);
        assert_eq!(verdicts, [Verdict::Lost, Verdict::Granted(None), Verdict::Lost]);
        assert_eq!(settle(LockType::Atomic, &[], ServerTime(0)), (0, vec![]));
    }

    #[test]
    fn shares_are_added_up_and_an_owner_that_came_later_wins() {
        let (word, verdicts) = settled(LockType::Rw, &[hold(1, S, 9, 5), hold(2, S, 9, 3)]);
        assert_eq!(RwWord::from_bits(word).rcount(), 2);
        assert_eq!(verdicts, [Verdict::Granted(None); 2]);
        let claims = [hold(1, S, 9, 5), hold(2, X, 9, 4), hold(3, X, 9, 8)];
        let (word, verdicts) = settled(LockType::Rw, &claims);
        assert_eq!(RwWord::from_bits(word).client(), 2);
        assert_eq!(verdicts, [Verdict::Lost, Verdict::Granted(None), Verdict::Lost]);
        let (word, _) = settled(LockType::Rw, &[hold(1, S, 9, 3), hold(2, X, 9, 4)]);
        assert_eq!(RwWord::from_bits(word).rcount(), 1);
    }

    #[test]
    fn a_queue_keeps_its_order_and_has_new_numbers() {
        let claims = [
            fair_claim(4, X, false, (9, 3), [7, 2, 10, 3]),
            fair_claim(1, X, true, (7, 2), [7, 2, 8, 2]),
            fair_claim(3, S, false, (9, 2), [7, 2, 9, 3]),
            fair_claim(2, X, false, (8, 2), [7, 2, 9, 2]),
        ];
        let (word, verdicts) = settled(LockType::Fair, &claims);
        assert_eq!(verdicts, [queued(2, 1), granted(0, 0), queued(2, 0), queued(1, 0)]);
        let w = FairWord::from_bits(word);
        assert_eq!([w.nx(), w.ns(), w.mx(), w.ms()], [0, 0, 3, 1]);
    }

    #[test]
    fn tickets_of_clients_that_do_not_come_back_leave_no_gap() {
        let claims = [
            fair_claim(1, X, false, (12, 0), [7, 0, 13, 0]),
            fair_claim(2, X, false, (9, 0), [7, 0, 10, 0]),
        ];
        let (word, verdicts) = settled(LockType::Fair, &claims);
        assert_eq!(verdicts, [queued(1, 0), queued(0, 0)]);
        assert_eq!(FairWord::from_bits(word).mx(), 2);
    }

    #[test]
    fn of_holds_that_exclude_each_other_the_later_ticket_is_the_true_one() {
        let claims = [
            fair_claim(1, X, true, (7, 0), [7, 0, 9, 0]),
            fair_claim(2, X, true, (9, 0), [9, 0, 10, 0]),
            fair_claim(3, X, false, (8, 0), [7, 0, 9, 0]), // passed over
            fair_claim(4, X, false, (11, 0), [9, 0, 12, 0]),
        ];
        let (_, verdicts) = settled(LockType::Fair, &claims);
        assert_eq!(verdicts, [Verdict::Lost, granted(0, 0), Verdict::Lost, queued(1, 0)]);
    }

    #[test]
    fn shares_of_one_turn_are_granted_together_and_their_neighbours_wait_there() {
        let claims = [
            fair_claim(1, S, true, (7, 1), [7, 1, 7, 2]),
            fair_claim(2, S, true, (7, 3), [7, 1, 7, 4]),
            fair_claim(3, S, false, (7, 2), [7, 1, 7, 3]),
            fair_claim(4, X, false, (7, 4), [7, 1, 8, 4]),
            fair_claim(5, S, true, (6, 0), [6, 0, 6, 1]), // over, and an exclusive ticket since
        ];
        let (word, verdicts) = settled(LockType::Fair, &claims);
        let want = [granted(0, 0), granted(0, 2), queued(0, 1), queued(0, 3), Verdict::Lost];
        assert_eq!(verdicts, want);
        assert_eq!(FairWord::from_bits(word).open_shared(), 3);
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
            let mut at = start;
            let mut claims: Vec<Claimed> = Vec::new();
            let mut served = start;
            let mut open = Vec::new();
            for n in 1..=1 + below(6) {
                at += 1 + below(2) * below(9_000); // numbers that were left out
                open.push(at);
                // the head may move on before the next one comes
                let word = [served as u16, 0, (at + 1) as u16, 0];
                claims.push(fair_claim(n as u32, X, false, (at as u16, 0), word));
                if below(3) == 0 {
                    served = served.max(open[below(open.len() as u64) as usize]);
                }
            }
            let first = open.iter().position(|&number| number >= served).unwrap();
            let (_, verdicts) = settled(LockType::Fair, &claims);
            for (i, verdict) in verdicts.iter().enumerate() {
                let is_open = i >= first;
                let told = claims[i..].iter().any(|c| c.fair.unwrap().1.nx() == served as u16);
                match verdict {
                    Verdict::Queued(t) if is_open => assert!(usize::from(t.tx) >= i - first),
                    Verdict::Queued(_) => assert!(!told || i >= first, "{claims:?}"),
                    Verdict::Lost => assert!(!is_open, "{i} {claims:?}"),
                    Verdict::Granted(_) => panic!("nobody holds it"),
                }
            }
            let numbers: Vec<_> = verdicts
                .iter()
                .filter_map(|v| if let Verdict::Queued(t) = v { Some(t.tx) } else { None })
                .collect();
            assert!(numbers.is_sorted(), "{claims:?} {verdicts:?}");
        }
    }
}
