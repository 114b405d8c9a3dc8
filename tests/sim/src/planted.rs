// SPDX-License-Identifier: MIT OR Apache-2.0
//! How soon the simulator finds a planted bug.

use crate::system;

/// A bug must be found within so many schedules.
pub const SCHEDULES_MAX: u64 = 100_000;
/// Searches from different seeds that a median is taken of.
pub const RUNS: u64 = 5;

/// The first seed at or after `from` whose schedule finds the bug, and what it violates.
pub fn search(name: &str, from: u64, schedules_max: u64) -> Option<(u64, String)> {
    let bugs = system::plant(name)?;
    let found = (from..from + schedules_max).find_map(|seed| {
        let run = system::run("all", seed, bugs, false)?;
        run.violation.map(|violation| (seed, violation))
    });
    system::plant("");
    found
}

/// The seed's schedule with all rules on; what it violates.
pub fn with_all_rules(seed: u64) -> Option<String> {
    let bugs = system::plant("")?;
    system::run("all", seed, bugs, false)?.violation
}

/// A row of the table.
pub fn row(name: &str, rule: &str) -> String {
    let mut took = Vec::new();
    let mut first = None;
    for i in 0..RUNS {
        let from = 1 + i * 10_000_000;
        match search(name, from, SCHEDULES_MAX) {
            Some((seed, violation)) => {
                took.push(seed - from + 1);
                first.get_or_insert((seed, violation));
            }
            None => took.push(u64::MAX),
        }
        if i == 0 && first.is_none() {
            return format!("{name}, never, never, {rule}");
        }
    }
    took.sort_unstable();
    let Some((seed, violation)) = first else { return format!("{name}, never, never, {rule}") };
    let kind = violation.split(':').next().unwrap_or("");
    format!("{name}, {seed}, {}, {kind}, {rule}", took[took.len() / 2])
}
