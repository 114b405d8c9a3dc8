// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checker: reads what all clients were told, in the order of time.
//!
//! ```text
//!   told to hold ─────────── the client relies on the lock ──────────┐ the first of: its release
//!   (the return of the call)                                         │ began; the end of the lease
//!                                                                    ┘ as told; told of the loss
//! ```
//! * exclusion, and fair tickets in their order: by the simulator's own checker;
//! * success means a lease that runs at the reading right after the call. A process may be
//!   stopped between the library's last reading and the caller's: that is known from what the
//!   library has read after its last answer, and counted (`overtaken`);
//! * a lease ends no earlier than what was asked for after the call began;
//! * a client is not told of a loss while its lease runs;
//! * a call ends within its bound.

use std::collections::{HashMap, HashSet};

use crate::oracle::Oracle;
use crate::record::{Granted, Record};

/// A client may report the end of a lease early by twice its uncertainty of the server clock, plus
/// this time, because the uncertainty grows a little while no answer comes.
const LOSS_EARLY_NS: u64 = 100_000_000;
/// The most violations that a verdict names.
const VIOLATIONS_MAX: usize = 20;

/// The facts about a run on which its rules depend.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The server clock minus CLOCK_BOOTTIME, at least and at most.
    pub offset_ns: (u64, u64),
    /// The number of locks.
    pub locks: usize,
    /// The most time that a call may take, including the delays by the faults.
    pub call_max_ns: u64,
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// The first broken rules.
    pub violations: Vec<String>,
    /// How often clients were told that they hold a lock: grants, re-entries and extensions.
    pub grants: u64,
    /// Successes that came too late to be relied on, because the process was stopped between the
    /// library's last reading of the clock and the caller's.
    pub overtaken: u64,
    /// How often clients were told that they have lost a lock.
    pub losses: u64,
    /// The longest call, nanoseconds.
    pub longest_ns: u64,
}

/// When a lease ends on CLOCK_BOOTTIME, at least and at most.
fn end_of(until_ns: Option<u64>, rules: &Rules) -> (u64, u64) {
    match until_ns {
        None | Some(u64::MAX) => (u64::MAX, u64::MAX),
        Some(end) => (end.saturating_sub(rules.offset_ns.1), end.saturating_sub(rules.offset_ns.0)),
    }
}

/// Checks the merged logs of all clients of one primary.
pub fn check(records: &mut [Record], rules: &Rules) -> Verdict {
    // of two records with the same time, the end of a hold comes before the beginning of another
    records.sort_by_key(|record| (record.at(), matches!(record, Record::Granted(_))));
    let mut checker = Checker {
        rules,
        oracle: Oracle::new(rules.locks),
        leases: HashMap::new(),
        present: HashSet::new(),
        lives: 0,
        numbers: HashMap::new(),
        verdict: Verdict::default(),
    };
    for record in records.iter() {
        checker.see(record);
    }
    checker.verdict
}

struct Checker<'a> {
    rules: &'a Rules,
    oracle: Oracle,
    /// The end of the lease for each client (`who`) and lock that it holds.
    leases: HashMap<(u64, usize), u64>,
    /// Clients that have not left.
    present: HashSet<u64>,
    /// How often locks may have been made anew. If the only client of a lock releases the lock id
    /// and gets one for the same name again, that is a new lock, whose tickets count from 0.
    lives: u32,
    /// For each lock: in which making its tickets count (`lives` and the primary's epoch), and the
    /// largest ticket number that was seen in it.
    numbers: HashMap<usize, ((u32, u64), u32)>,
    verdict: Verdict,
}

impl Checker<'_> {
    fn violated(&mut self, what: impl FnOnce() -> String) {
        if self.verdict.violations.len() < VIOLATIONS_MAX {
            self.verdict.violations.push(what());
        }
    }

    fn see(&mut self, record: &Record) {
        match *record {
            Record::Gone { who, .. } => self.present.remove(&who),
            _ => self.present.insert(record.who()),
        };
        match *record {
            Record::Granted(granted) => {
                self.took(record, granted.before, granted.after);
                self.granted(&granted);
            }
            Record::Ended { who, lock, .. } => {
                self.leases.remove(&(who, lock));
                self.oracle.ended(lock, who);
            }
            Record::Lost { who, lock, at, unsure_ns } => {
                self.verdict.losses += 1;
                self.oracle.ended(lock, who);
                let end = self.leases.remove(&(who, lock));
                let early_ns = unsure_ns.saturating_mul(2).saturating_add(LOSS_EARLY_NS);
                if end.is_some_and(|end| end > at.saturating_add(early_ns)) {
                    self.violated(|| format!("a lease was cut short: {record:?}, end {end:?}"));
                }
            }
            Record::Long { before, after, .. } => self.took(record, before, after),
            Record::Waited { .. } => {}
            Record::Gone { who, .. } => {
                self.leases.retain(|&(owner, _), _| owner != who);
                self.oracle.gone(who);
            }
        }
    }

    fn took(&mut self, record: &Record, before: u64, after: u64) {
        let took = after.saturating_sub(before);
        self.verdict.longest_ns = self.verdict.longest_ns.max(took);
        if took > self.rules.call_max_ns {
            self.violated(|| format!("a call took {} ms: {record:?}", took / 1_000_000));
        }
    }

    fn granted(&mut self, granted: &Granted) {
        let Granted { who, lock, mode, after, .. } = *granted;
        self.verdict.grants += 1;
        let (until, latest) = end_of(granted.until_ns, self.rules);
        if latest <= after {
            // the library has read its clock after its last answer, while the lease still ran
            match granted.checked != 0 && granted.checked < until {
                true => self.verdict.overtaken += 1,
                false => self.violated(|| {
                    let late = (after - latest) / 1_000;
                    format!("success for a lease that was over {late} us before: {granted:?}")
                }),
            }
        }
        let asked = u64::from(granted.asked_s) * dlock_core::clock::NS;
        if latest < granted.before.saturating_add(asked) {
            self.violated(|| format!("a lease is shorter than what was asked for: {granted:?}"));
        }
        self.leases.insert((who, lock), until);
        if let Err(why) = self.oracle.granted(lock, who, mode, after, until, true) {
            self.violated(|| format!("{why}; told last: {granted:?}"));
        }
        if self.present.len() == 1 {
            self.lives += 1;
        }
        if let Some(ticket) = granted.ticket.filter(|_| self.oracle.relies(lock, who, after)) {
            let occupant = (self.lives, granted.epoch);
            let ticket = self.unwrapped(lock, occupant, ticket);
            if let Err(why) = self.oracle.served(lock, occupant, mode, (0, ticket)) {
                self.violated(|| format!("{why}; told last: {granted:?}"));
            }
        }
    }

    /// The full number of a ticket of which the low 16 bits are known: the number that is nearest
    /// to the largest one of the lock.
    fn unwrapped(&mut self, lock: usize, occupant: (u32, u64), low: u16) -> u32 {
        let first = (occupant, 1 << 16 | u32::from(low));
        let last = self.numbers.entry(lock).or_insert(first);
        if last.0 != occupant {
            *last = first;
        }
        let step = low.wrapping_sub(last.1 as u16) as i16;
        let number = last.1.wrapping_add_signed(step.into());
        last.1 = last.1.max(number);
        number
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::wire::message::Mode::{self, Exclusive as X, Shared as S};

    use super::*;

    const NS: u64 = 1_000_000_000;
    /// The server clock is CLOCK_BOOTTIME here.
    const RULES: Rules = Rules { offset_ns: (0, 0), locks: 2, call_max_ns: 10 * NS };

    fn granted(who: u64, mode: Mode, after: u64, time_out: u64) -> Granted {
        let before = after - 1;
        let (lock, asked_s, ticket, checked, epoch) = (0, 1, None, 0, 1);
        let until_ns = Some((time_out + 1) * NS);
        Granted { who, lock, mode, before, after, until_ns, asked_s, ticket, checked, epoch }
    }

    fn found(records: &[Record]) -> String {
        check(&mut records.to_vec(), &RULES).violations.join("; ")
    }

    fn ended(who: u64, at: u64) -> Record {
        Record::Ended { who, lock: 0, at }
    }

    #[test]
    fn two_holders_are_found_and_the_end_of_reliance_is_heeded() {
        let a = Record::Granted(granted(1, X, NS, 10));
        let b = |after, mode| Record::Granted(granted(2, mode, after, 20));
        for mode in [X, S] {
            assert!(found(&[a, b(2 * NS, mode)]).contains("exclusion"));
            assert!(found(&[b(11 * NS - 1, mode), a]).contains("exclusion"));
            assert_eq!(found(&[b(11 * NS, mode), a]), "", "the lease is over");
            assert_eq!(found(&[a, ended(1, 2 * NS), b(2 * NS, mode)]), "");
            assert_eq!(found(&[a, Record::Gone { who: 1, at: 2 * NS }, b(3 * NS, mode)]), "");
        }
        let reader = Record::Granted(granted(1, S, NS, 10));
        assert_eq!(found(&[reader, b(2 * NS, S)]), "");
        assert!(found(&[reader, b(2 * NS, X)]).contains("exclusion"));
    }

    #[test]
    fn success_for_a_lease_that_is_over_is_found_unless_a_stop_came_after_the_last_look() {
        let late = granted(1, X, 11 * NS, 10);
        let late = Granted { before: NS, ..late };
        let over = "over";
        assert!(found(&[Record::Granted(late)]).contains(over));
        let looked = |checked| Record::Granted(Granted { checked, ..late });
        assert!(found(&[looked(11 * NS)]).contains(over), "it has seen that it is over");
        let verdict = check(&mut [looked(11 * NS - 1)], &RULES);
        assert_eq!((verdict.violations.len(), verdict.overtaken), (0, 1));
    }

    #[test]
    fn a_lease_that_is_shorter_than_asked_for_or_cut_short_is_found() {
        let hold = granted(1, X, NS, 10);
        let asked = |asked_s| Record::Granted(Granted { asked_s, before: NS, after: NS, ..hold });
        assert_eq!(found(&[asked(10)]), "");
        assert!(found(&[asked(11)]).contains("shorter"));
        let unsure = |at, unsure_ns| Record::Lost { who: 1, lock: 0, at, unsure_ns };
        let lost = |at| unsure(at, 0);
        assert!(found(&[Record::Granted(hold), lost(5 * NS)]).contains("cut short"));
        assert_eq!(found(&[Record::Granted(hold), lost(11 * NS)]), "");
        assert_eq!(found(&[Record::Granted(hold), ended(1, 2 * NS), lost(5 * NS)]), "");
        assert_eq!(found(&[Record::Granted(hold), unsure(10 * NS, NS / 2)]), "");
        assert!(found(&[Record::Granted(hold), unsure(9 * NS, NS / 2)]).contains("cut short"));
    }

    #[test]
    fn at_a_successor_tickets_have_other_numbers() {
        let served = |who, at, ticket, epoch| {
            Record::Granted(Granted { ticket: Some(ticket), epoch, ..granted(who, X, at, 100) })
        };
        let over = [served(1, NS, 5, 1), ended(1, 2 * NS), served(2, 3 * NS, 0, 2)];
        assert_eq!(found(&over), "");
    }

    #[test]
    fn tickets_out_of_order_and_calls_without_end_are_found() {
        let served = |who, at, ticket| {
            Record::Granted(Granted { ticket: Some(ticket), ..granted(who, X, at, 100) })
        };
        let in_order = [served(1, NS, 0xffff), ended(1, 2 * NS), served(2, 3 * NS, 0)];
        assert_eq!(found(&in_order), "");
        let passed = [served(1, NS, 5), ended(1, 2 * NS), served(2, 3 * NS, 4)];
        assert!(found(&passed).contains("order"));
        let gone = Record::Gone { who: 1, at: 2 * NS };
        let left_alone = [served(1, NS, 5), gone, served(2, 3 * NS, 0), served(2, 4 * NS, 1)];
        assert_eq!(found(&left_alone), "", "it may have got a new lock of the name");
        let long = |after| [Record::Long { who: 1, lock: 0, before: 0, after }];
        assert_eq!(found(&long(10 * NS)), "");
        assert!(found(&long(10 * NS + 1)).contains("took"));
    }
}
