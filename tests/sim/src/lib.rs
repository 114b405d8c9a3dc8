// SPDX-License-Identifier: MIT OR Apache-2.0
//! The core's lock algorithms under a scheduler that decides every step.
//!
//! ```text
//!   Tape ──which step next?──▶ World: clients (one word operation per step) · arbiter · clock
//!                                       └─▶ checker: what each client believes to hold
//! ```
//! [`explore`] runs a scenario under *every* schedule, [`sample`] under schedules drawn from a
//! seed. Each word operation of the arbiter is a step, too: clients run in between.
#![forbid(unsafe_code)]

use std::collections::HashSet;

mod clients;
#[cfg(feature = "planted")]
pub mod planted;
pub mod system;
mod tape;
mod world;

pub use tape::Tape;
pub use world::{Action, Scenario, World};

/// The result of an exploration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explored {
    /// The number of schedules that were run.
    pub schedules: u64,
    /// Whether these are all schedules.
    pub complete: bool,
}

/// Runs every schedule, at most `schedules_max`. A schedule ends when it reaches a state that was
/// explored before: what can follow from it is explored there.
///
/// # Panics
/// If a schedule violates a property; the message has the schedule.
pub fn explore(scenario: &Scenario, schedules_max: u64) -> Explored {
    let mut tape = Tape::new();
    let mut schedules = 0;
    let mut seen = HashSet::new();
    loop {
        run(scenario, &mut tape, Some(&mut seen));
        schedules += 1;
        if !tape.advance() {
            return Explored { schedules, complete: true };
        }
        if schedules >= schedules_max {
            return Explored { schedules, complete: false };
        }
    }
}

/// Runs `schedules` schedules drawn from `seed`.
///
/// # Panics
/// If a schedule violates a property; the message has the schedule.
pub fn sample(scenario: &Scenario, seed: u64, schedules: u64) {
    for i in 0..schedules {
        let mut tape = Tape::random(seed.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        run(scenario, &mut tape, None);
    }
}

fn run(scenario: &Scenario, tape: &mut Tape, seen: Option<&mut HashSet<u64>>) {
    let mut world = World::new(scenario);
    if let Err(violation) = world.run(tape, seen) {
        panic!(
            "{violation}\nscenario {scenario:?}\nschedule {:?}\ntrace:\n{}",
            tape.picked(),
            world.trace()
        );
    }
}
