// SPDX-License-Identifier: MIT OR Apache-2.0
//! How soon the simulator finds a planted bug.

use crate::system;

/// A bug must be found within so many schedules.
pub const SCHEDULES_MAX: u64 = 100_000;
/// Schedules whose digests with and without a bug are compared.
pub const SEEN_SCHEDULES: u64 = 300;
/// Searches from different seeds that a median is taken of. More make the table truer and take so
/// much longer.
pub const RUNS: u64 = 1;

/// The first seed at or after `from` whose schedule finds the bug, and what it violates.
pub fn search(name: &str, from: u64, schedules_max: u64) -> Option<(u64, String)> {
    let (bugs, scenario) = (system::plant(name)?, system::scenario_of(name));
    let found = (from..from + schedules_max).find_map(|seed| {
        let run = system::run(scenario, seed, bugs, false)?;
        run.violation.map(|violation| (seed, violation))
    });
    system::plant("");
    found
}

/// The first seed at or after `from` whose schedule is another one with the bug: its digest
/// differs.
/// `None`: the scenario cannot see the rule.
pub fn seen(name: &str, from: u64, schedules_max: u64) -> Option<u64> {
    let scenario = system::scenario_of(name);
    let found = (from..from + schedules_max).find(|&seed| {
        let digest = |name| {
            let run = system::run(scenario, seed, system::plant(name)?, false);
            run.map(|run| run.hash)
        };
        digest(name) != digest("")
    });
    system::plant("");
    found
}

/// The schedule of the seed that finds this bug, with all rules on; what it violates.
pub fn with_all_rules(name: &str, seed: u64) -> Option<String> {
    let bugs = system::plant("")?;
    system::run(system::scenario_of(name), seed, bugs, false)?.violation
}

/// Where the searches begin that a median is taken of.
fn starts() -> impl Iterator<Item = u64> {
    (0..RUNS).map(|run| 1 + run * 10_000_000)
}

/// The first seed that finds the bug, of the searches that the table is made of.
pub fn find(name: &str) -> Option<(u64, String)> {
    starts().find_map(|from| search(name, from, SCHEDULES_MAX))
}

/// A row of the table. A search that finds nothing counts as one that never ends.
pub fn row(name: &str, rule: &str) -> String {
    let mut took = Vec::new();
    let mut first = None;
    for from in starts() {
        let found = search(name, from, SCHEDULES_MAX);
        took.push(found.as_ref().map_or(u64::MAX, |(seed, _)| seed - from + 1));
        first = first.or(found);
    }
    took.sort_unstable();
    let median = took[took.len() / 2];
    let Some((seed, violation)) = first.filter(|_| median != u64::MAX) else {
        return match seen(name, 1, SEEN_SCHEDULES) {
            Some(seed) => format!("{name}, never, never, seen first by seed {seed}, {rule}"),
            None => format!("{name}, never, never, seen by no schedule, {rule}"),
        };
    };
    let kind = violation.split([':', ',']).next().unwrap_or("");
    match system::scenario_of(name) {
        "all" => format!("{name}, {seed}, {median}, {kind}, {rule}"),
        scenario => format!("{name}, {seed}, {median}, {kind}, {rule} (of `{scenario}`)"),
    }
}
