// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client that registers for the first time: which address it tries next, and for how long,
//! without I/O.
//!
//! ```text
//!   Try 0 ─ failed ─▶ Try 1 ─ failed ─▶ … the last one failed
//!     ▲                                   ├ a primary recovers, or a successor may be about to
//!     │                                   │ start, and there is time: Wait, a pause that grows
//!     └───────────────────────────────────┘
//!                                         └ else Over
//! ```

use super::{Heard, ADDRESSES_MAX, PAUSE_NS, UNREACHED_NS};
use crate::wire::status::Status;

/// The next step for the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Register with the primary at this address. Report [`Arrival::failed`] if that primary does
    /// not accept this client.
    Try {
        /// Index in the list of addresses.
        address: usize,
    },
    /// Do nothing before `until_ns`.
    Wait {
        /// The end of the pause, on the client's own clock.
        until_ns: u64,
    },
    /// No primary accepts this client.
    Over {
        /// The most informative status of the last round over the addresses; of equal ones the
        /// first.
        status: Status,
        /// Whether a primary has answered that it recovers, or has just recovered; then the client
        /// may try later.
        recovers: bool,
    },
}

/// The search of one new client for a primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    addresses: usize,
    /// When the search ends, on the client's own clock; `None`: every address is tried once.
    until_ns: Option<u64>,
    began_ns: u64,
    at: usize,
    rounds: u32,
    /// The most informative status of this round.
    status: Option<Status>,
    /// Whether a primary has answered in this round that it recovers, or has just recovered.
    recovers: bool,
    step: Step,
}

impl Arrival {
    /// The search of a client that knows `addresses` addresses. Until `until_ns` it waits for a
    /// primary that recovers; with several addresses also for a primary that starts.
    pub fn new(now_ns: u64, addresses: usize, until_ns: Option<u64>) -> Self {
        Self {
            addresses: addresses.clamp(1, ADDRESSES_MAX),
            until_ns,
            began_ns: now_ns,
            at: 0,
            rounds: 0,
            status: None,
            recovers: false,
            step: Step::Try { address: 0 },
        }
    }

    /// The next step.
    pub fn next(&mut self, now_ns: u64) -> Step {
        match self.step {
            Step::Wait { until_ns } if now_ns >= until_ns => {
                (self.at, self.recovers, self.status) = (0, false, None);
                self.step = Step::Try { address: 0 };
            }
            _ => {}
        }
        self.step
    }

    /// Handles that the primary at the last tried address does not accept this client. `heard`: the
    /// answer to the question whether it is there, which the executor asks only after `NotReady`.
    pub fn failed(&mut self, now_ns: u64, status: Status, heard: Heard) {
        if !matches!(self.step, Step::Try { .. }) {
            return;
        }
        if self.status.is_none_or(|before| says(status) > says(before)) {
            self.status = Some(status);
        }
        // A primary that serves by the time of that question has just recovered.
        self.recovers |= matches!(heard, Heard::Recovers | Heard::Serves);
        let is_refused = !matches!(status, Status::NotReady | Status::Error);
        let is_last = self.at + 1 == self.addresses;
        self.step = match () {
            // another primary would refuse in the same way
            () if is_refused && self.at == 0 => self.over(),
            () if !is_last => {
                self.at += 1;
                Step::Try { address: self.at }
            }
            () => self.pauses(now_ns),
        };
    }

    fn over(&self) -> Step {
        let status = match self.recovers {
            // the primary accepts clients later, and no other answer tells more
            true => Status::NotReady,
            false => self.status.unwrap_or(Status::NotReady),
        };
        Step::Over { status, recovers: self.recovers }
    }

    /// The step after the last address: a pause, or the end.
    fn pauses(&mut self, now_ns: u64) -> Step {
        let may_come = self.addresses > 1 && now_ns - self.began_ns.min(now_ns) < UNREACHED_NS;
        let Some(until_ns) = self.until_ns.filter(|_| self.recovers || may_come) else {
            return self.over();
        };
        let pause_ns = PAUSE_NS.0.saturating_mul(1 << self.rounds.min(16)).min(PAUSE_NS.1);
        let again_ns = now_ns.saturating_add(pause_ns);
        self.rounds += 1;
        match again_ns < until_ns {
            true => Step::Wait { until_ns: again_ns },
            false => self.over(),
        }
    }
}

/// How informative a status is. A primary's refusal tells more than an error that the log explains;
/// that tells more than an address without a process.
fn says(status: Status) -> u8 {
    match status {
        Status::NotReady => 0,
        Status::Error => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const AWAY: (Status, Heard) = (Status::NotReady, Heard::Nothing);
    const RECOVERS: (Status, Heard) = (Status::NotReady, Heard::Recovers);

    /// Runs a search in which each address always gives its answer. Returns the time at the end,
    /// the number of tries, and the last step.
    fn run(mut arrival: Arrival, answers: &[(Status, Heard)]) -> (u64, usize, Step) {
        let (mut now_ns, mut tries) = (0, 0);
        loop {
            match arrival.next(now_ns) {
                Step::Try { address } => {
                    let (status, heard) = answers[address];
                    tries += 1;
                    arrival.failed(now_ns, status, heard);
                }
                Step::Wait { until_ns } => now_ns = until_ns,
                over @ Step::Over { .. } => return (now_ns, tries, over),
            }
        }
    }

    #[test]
    fn without_time_every_address_is_tried_once() {
        let over = Step::Over { status: Status::NotReady, recovers: true };
        let arrival = Arrival::new(0, 3, None);
        assert_eq!(run(arrival, &[AWAY, RECOVERS, AWAY]), (0, 3, over));
    }

    #[test]
    fn a_primary_that_recovers_is_waited_for_with_pauses_that_grow_up_to_a_bound() {
        let (now_ns, tries, over) = run(Arrival::new(0, 1, Some(10 * S)), &[RECOVERS]);
        assert_eq!(over, Step::Over { status: Status::NotReady, recovers: true });
        assert!((9 * S..10 * S).contains(&now_ns), "{now_ns}");
        assert!((20..30).contains(&tries), "{tries}: twice a second after the first ones");
    }

    #[test]
    fn a_primary_whose_recovery_has_ended_before_it_was_asked_is_tried_again() {
        let has_recovered = (Status::NotReady, Heard::Serves);
        let (_, tries, _) = run(Arrival::new(0, 1, Some(10 * S)), &[has_recovered]);
        assert!(tries > 1, "{tries}");
    }

    #[test]
    fn a_primary_that_is_not_there_is_waited_for_where_a_successor_may_start() {
        let over = Step::Over { status: Status::NotReady, recovers: false };
        assert_eq!(run(Arrival::new(0, 1, Some(10 * S)), &[AWAY]), (0, 1, over));
        let (now_ns, _, two) = run(Arrival::new(0, 2, Some(10 * S)), &[AWAY, AWAY]);
        assert!((9 * S..10 * S).contains(&now_ns) && two == over, "{now_ns} {two:?}");
        let (now_ns, ..) = run(Arrival::new(0, 2, Some(u64::MAX)), &[AWAY, AWAY]);
        assert!((UNREACHED_NS..UNREACHED_NS + S).contains(&now_ns), "{now_ns}");
    }

    #[test]
    fn a_refusal_by_the_first_primary_counts_at_once_and_that_of_another_does_not() {
        let full = (Status::ServerNoResource, Heard::Nothing);
        let over = Step::Over { status: full.0, recovers: false };
        assert_eq!(run(Arrival::new(0, 2, Some(10 * S)), &[full, AWAY]), (0, 1, over));
        assert_eq!(run(Arrival::new(0, 2, None), &[AWAY, full]), (0, 2, over));
    }

    #[test]
    fn of_several_answers_the_one_that_says_most_is_told() {
        let (full, denied) = (Status::ServerNoResource, Status::Denied);
        let told = |answers: &[(Status, Heard)]| match run(Arrival::new(0, 3, None), answers) {
            (_, 3, Step::Over { status, recovers }) => (status, recovers),
            other => panic!("{other:?}"),
        };
        let of = |status| (status, Heard::Nothing);
        let (away, failed) = (AWAY, of(Status::Error));
        assert_eq!(told(&[away, failed, away]), (Status::Error, false));
        assert_eq!(told(&[failed, of(full), of(denied)]), (full, false));
        assert_eq!(told(&[failed, of(full), RECOVERS]), (Status::NotReady, true));
        assert_eq!(told(&[away, away, away]), (Status::NotReady, false));
    }
}
