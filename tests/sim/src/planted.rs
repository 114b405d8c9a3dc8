// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many schedules the simulator needs to find a planted bug.

use crate::system;

/// A bug must be found within this many schedules.
pub const SCHEDULES_MAX: u64 = 100_000;
/// How many schedules are compared, with and without a bug, by the digests of their traces.
pub const SEEN_SCHEDULES: u64 = 300;
/// How many searches from different seeds are made for a row of the table, which has their median.
/// More searches make the table more exact, and take longer in proportion.
pub const RUNS: u64 = 1;

/// The first seed from `from` on whose schedule finds the bug, and the violated property.
pub fn search(name: &str, from: u64, schedules_max: u64) -> Option<(u64, String)> {
    let (bugs, scenario) = (system::plant(name)?, system::scenario_of(name));
    let found = (from..from + schedules_max).find_map(|seed| {
        let run = system::run(scenario, seed, bugs, false)?;
        run.violation.map(|violation| (seed, violation))
    });
    system::plant("");
    found
}

/// The first seed from `from` on whose schedule takes another course with the bug, as the digests
/// of its traces show. `None`: the scenario does not use the rule.
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

/// Runs the schedule that finds this bug, without the bug: no rule is taken out. Returns what the
/// schedule violates.
pub fn with_all_rules(name: &str, seed: u64) -> Option<String> {
    let bugs = system::plant("")?;
    system::run(system::scenario_of(name), seed, bugs, false)?.violation
}

/// The seeds at which the searches for the table of planted bugs begin.
fn starts() -> impl Iterator<Item = u64> {
    (0..RUNS).map(|run| 1 + run * 10_000_000)
}

/// The first seed that finds the bug in the searches of the table, and the violated property.
pub fn find(name: &str) -> Option<(u64, String)> {
    starts().find_map(|from| search(name, from, SCHEDULES_MAX))
}

/// A row of the table. A search that finds nothing counts as endless.
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
