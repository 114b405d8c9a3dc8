// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fair shares of one thread: which client is served next, and for how much work (deficit round
//! robin).
//!
//! ```text
//!   add ──▶ ring ──next_turn──▶ a turn of at most a quantum ──done──▶ back into the ring, or idle
//!                  each round: + quantum, up to one quantum; minus the work that was done
//! ```
//! A turn may do more work than its budget, because its last item is not divided. The excess is a
//! debt: until it is paid off, round by round, the turns of other clients come first. A debt stays
//! while its client is idle, less the rounds that pass meanwhile. A client without debt waits for
//! at most one turn of each of the others.

use std::collections::{BTreeMap, VecDeque};

use crate::planted::{self, Bug};

/// The turn of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn<K> {
    /// The client.
    pub who: K,
    /// How many work units the client may do before the next client's turn.
    pub budget: u32,
}

/// The balance of one client in work units.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// The balance in round `round`; below zero: a debt.
    credit: i64,
    round: u64,
    /// Whether the client is in the ring.
    waits: bool,
}

impl Account {
    fn credit_in(&self, round: u64, quantum: i64) -> i64 {
        let rounds = i64::try_from(round - self.round).unwrap_or(i64::MAX);
        rounds.saturating_mul(quantum).saturating_add(self.credit).min(quantum)
    }
}

/// The clients that have work, and the balance of each.
#[derive(Debug)]
pub struct Shares<K> {
    quantum: i64,
    /// The clients that have work, in the order of their turns.
    ring: VecDeque<K>,
    /// Accounts of the clients in the ring, and of those that were in it before.
    accounts: BTreeMap<K, Account>,
    round: u64,
    /// How many turns are left in this round.
    left: usize,
}

impl<K: Ord + Copy> Shares<K> {
    /// Shares with an empty ring.
    ///
    /// # Panics
    /// If the quantum is 0.
    pub fn new(quantum: u32) -> Self {
        assert!(quantum > 0, "turns of no work");
        let (ring, accounts) = (VecDeque::new(), BTreeMap::new());
        Self { quantum: quantum.into(), ring, accounts, round: 0, left: 0 }
    }

    /// Adds a client that has work to the ring, if it is not in the ring.
    pub fn add(&mut self, who: K) {
        let (credit, round) = (self.quantum, self.round);
        let fresh = Account { credit, round, waits: false };
        let account = self.accounts.entry(who).or_insert(fresh);
        if !std::mem::replace(&mut account.waits, true) {
            match planted::is(Bug::TurnKept) {
                true => self.ring.push_front(who),
                false => self.ring.push_back(who),
            }
        }
    }

    /// Takes the next client out of the ring; [`done`](Self::done) ends its turn. `None`: no client
    /// has work.
    pub fn next_turn(&mut self) -> Option<Turn<K>> {
        if let Some(turn) = self.next_in_credit() {
            return Some(turn);
        }
        // Every client in the ring has a debt: skip the rounds that pay the smallest one off.
        let waiting = self.ring.iter().filter_map(|who| self.accounts.get(who));
        let most = waiting.map(|a| a.credit_in(self.round, self.quantum)).max()?;
        if most <= 0 {
            self.round += most.unsigned_abs() / self.quantum.unsigned_abs() + 1;
        }
        self.left = self.ring.len();
        self.next_in_credit()
    }

    fn next_in_credit(&mut self) -> Option<Turn<K>> {
        for _ in 0..self.ring.len() {
            let who = self.ring.pop_front()?;
            if self.left == 0 {
                self.round += 1;
                self.left = self.ring.len() + 1;
            }
            self.left -= 1;
            let Some(account) = self.accounts.get_mut(&who) else { continue };
            let credit = account.credit_in(self.round, self.quantum);
            if credit > 0 {
                (account.credit, account.round, account.waits) = (credit, self.round, false);
                return Some(Turn { who, budget: u32::try_from(credit).unwrap_or(u32::MAX) });
            }
            self.ring.push_back(who);
        }
        None
    }

    /// Ends a client's turn, in which it did `work` units; `more`: whether it has more to do.
    pub fn done(&mut self, who: K, work: u32, more: bool) {
        self.charge(who, work);
        if more {
            self.add(who);
        }
    }

    /// Charges a client for work that it has caused, in its turn or at another time.
    pub fn charge(&mut self, who: K, work: u32) {
        let (quantum, round) = (self.quantum, self.round);
        let fresh = Account { credit: quantum, round, waits: false };
        let account = self.accounts.entry(who).or_insert(fresh);
        let credit = account.credit_in(round, quantum);
        account.credit = credit.saturating_sub(work.into());
        if !planted::is(Bug::DebtPaidTwice) {
            account.round = round;
        }
    }

    /// Removes a client that has left.
    pub fn remove(&mut self, who: K) {
        if self.accounts.remove(&who).is_some_and(|account| account.waits) {
            self.ring.retain(|other| *other != who);
            self.left = self.left.min(self.ring.len());
        }
    }

    /// How many clients have work.
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Whether no client has work.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::tests::Dice;

    const QUANTUM: u32 = 64;
    /// The most work by which a turn of these tests exceeds its budget.
    const ITEM_MAX: usize = 500;
    const TURN_MAX: u64 = QUANTUM as u64 + ITEM_MAX as u64;

    /// The work of a turn: mostly its budget, sometimes less, sometimes an item more.
    fn work_of(dice: &mut Dice, budget: u32) -> u32 {
        match dice.below(4) {
            0 => dice.below(budget as usize + 1) as u32,
            1 => budget - 1 + dice.below(ITEM_MAX + 1) as u32,
            _ => budget,
        }
    }

    #[test]
    fn who_has_no_debt_waits_for_one_turn_of_each_of_the_others_at_most() {
        for seed in 0..300 {
            let (mut dice, mut shares) = (Dice(seed), Shares::new(QUANTUM));
            let clients = 2 + dice.below(30);
            // for each waiting client: the work of other clients since it came, and how many waited
            // before it
            let mut waiting: BTreeMap<usize, (u64, usize)> = BTreeMap::new();
            let mut credit = vec![i64::from(QUANTUM); clients];
            for _ in 0..3_000 {
                let who = dice.below(clients);
                if dice.below(3) > 0 {
                    shares.add(who);
                    let before = waiting.len();
                    waiting.entry(who).or_insert((0, before));
                    continue;
                }
                let Some(turn) = shares.next_turn() else {
                    assert!(waiting.is_empty(), "somebody waits, and it is nobody's turn");
                    continue;
                };
                let (waited, before) = waiting.remove(&turn.who).expect("it has something to do");
                assert!(turn.budget > 0 && turn.budget <= QUANTUM);
                if credit[turn.who] > 0 {
                    assert!(waited <= before as u64 * TURN_MAX, "{waited} behind {before}");
                }
                let work = work_of(&mut dice, turn.budget);
                waiting.values_mut().for_each(|(sum, _)| *sum += u64::from(work));
                credit[turn.who] = i64::from(turn.budget) - i64::from(work);
                let more = dice.below(2) > 0;
                if more {
                    let before = waiting.len();
                    waiting.insert(turn.who, (0, before));
                }
                shares.done(turn.who, work, more);
                assert_eq!(shares.len(), waiting.len());
            }
        }
    }

    #[test]
    fn who_always_has_something_to_do_gets_the_same_as_the_others() {
        for seed in 0..200 {
            let (mut dice, mut shares) = (Dice(seed), Shares::new(QUANTUM));
            let clients = 2 + dice.below(10);
            (0..clients).for_each(|who| shares.add(who));
            let mut done = vec![0_u64; clients];
            // clients with even numbers do exactly their budgets, the others exceed them
            for _ in 0..5_000 {
                let turn = shares.next_turn().expect("everybody has something to do");
                let work = match turn.who % 2 {
                    0 => turn.budget,
                    _ => turn.budget + dice.below(ITEM_MAX) as u32,
                };
                done[turn.who] += u64::from(work);
                shares.done(turn.who, work, true);
                let (least, most) = (done.iter().min(), done.iter().max());
                let apart = most.unwrap() - least.unwrap();
                assert!(apart <= 2 * TURN_MAX, "{done:?}");
            }
        }
    }

    #[test]
    fn a_debt_stays_while_its_debtor_is_idle_and_others_are_served() {
        let mut shares = Shares::new(QUANTUM);
        shares.add('a');
        assert_eq!(shares.next_turn(), Some(Turn { who: 'a', budget: QUANTUM }));
        shares.done('a', 4 * QUANTUM, false);
        shares.add('b');
        shares.add('a');
        for _ in 0..3 {
            assert_eq!(shares.next_turn().unwrap().who, 'b');
            shares.done('b', QUANTUM, true);
        }
        let turns: Vec<char> = (0..4)
            .map(|_| {
                let who = shares.next_turn().unwrap().who;
                shares.done(who, QUANTUM, true);
                who
            })
            .collect();
        assert!(turns.contains(&'a'), "its debt is paid off: {turns:?}");
    }

    /// Rounds that end before the debt is made do not pay it off.
    #[test]
    fn a_debt_is_paid_by_the_rounds_that_follow_it() {
        let mut shares = Shares::new(QUANTUM);
        shares.add('a');
        assert_eq!(shares.next_turn().unwrap().who, 'a');
        shares.done('a', 1, false);
        shares.add('b');
        for _ in 0..10 {
            assert_eq!(shares.next_turn().unwrap().who, 'b');
            shares.done('b', QUANTUM, true);
        }
        shares.charge('a', 5 * QUANTUM);
        shares.add('a');
        for turn in 0..4 {
            assert_eq!(shares.next_turn().unwrap().who, 'b', "turn {turn}");
            shares.done('b', QUANTUM, true);
        }
    }

    #[test]
    fn who_is_alone_is_served_whatever_its_debt() {
        let mut shares = Shares::new(QUANTUM);
        shares.add(1);
        for _ in 0..10 {
            assert_eq!(shares.next_turn().unwrap().who, 1);
            shares.done(1, 1_000_000, true);
        }
    }

    #[test]
    fn who_is_removed_has_no_turn_and_no_debt() {
        let mut shares = Shares::new(QUANTUM);
        (1..=3).for_each(|who| shares.add(who));
        shares.charge(2, 1_000);
        shares.remove(2);
        shares.remove(9);
        assert_eq!(shares.next_turn().unwrap().who, 1);
        assert_eq!(shares.next_turn().unwrap().who, 3);
        assert_eq!(shares.next_turn(), None);
        shares.add(2);
        assert_eq!(shares.next_turn(), Some(Turn { who: 2, budget: QUANTUM }));
        assert!(shares.is_empty());
    }
}
