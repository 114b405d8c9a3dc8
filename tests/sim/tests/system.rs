// SPDX-License-Identifier: MIT OR Apache-2.0
//! The whole system under one seed: no violation, the same trace on every build, and every
//! action under every fault.

use dlock_sim::system::{self, Bugs, Coverage};

/// The schedules of the plain test; `scripts/sim.sh` runs 100,000.
const SCHEDULES: u64 = 3_000;

#[test]
fn no_schedule_violates_a_property_and_every_action_meets_every_fault() {
    let mut coverage = Coverage::new();
    let (mut grants, mut objects) = (0, 0);
    // the last seeds: a batch extends leases while its primary crashes, and while the certificate
    // of its client is revoked
    for seed in (1..=SCHEDULES).chain([6_184, 17_195]) {
        let run = system::run("all", seed, Bugs::default(), false).expect("the scenario");
        assert_eq!(run.violation, None, "sim --seed {seed} --schedules 1 --trace");
        coverage.add(&run.coverage);
        grants += run.grants;
        objects += run.objects as u64;
    }
    // a claim meets every fault only while a successor recovers
    for seed in 1..=SCHEDULES * 2 {
        let run = system::run("storm", seed, Bugs::default(), false).expect("the scenario");
        assert_eq!(run.violation, None, "sim --scenario storm --seed {seed} --schedules 1");
        coverage.add(&run.coverage);
    }
    // a batch that extends leases, and requests one from the primary, is rare in other scenarios
    for seed in 1..=SCHEDULES / 2 {
        let run = system::run("batch", seed, Bugs::default(), false).expect("the scenario");
        assert_eq!(run.violation, None, "sim --scenario batch --seed {seed} --schedules 1");
        coverage.add(&run.coverage);
    }
    assert!(grants > 20 * SCHEDULES, "{grants} grants: the clients did not do much");
    assert!(objects > 5 * SCHEDULES, "{objects} operations on objects");
    assert_eq!(coverage.missing(), [], "{}", coverage.report());
}

/// `scripts/sim.sh` runs 10,000 schedules of each scenario.
#[test]
fn no_schedule_of_a_scenario_that_is_run_by_itself_violates_a_property() {
    for scenario in system::APART {
        let mut grants = 0;
        for seed in 1..=SCHEDULES / 2 {
            let name = scenario.name;
            let run = system::run(name, seed, Bugs::default(), false).expect("the scenario");
            assert_eq!(run.violation, None, "sim --scenario {name} --seed {seed} --schedules 1");
            grants += run.grants;
        }
        assert!(grants > 10 * SCHEDULES / 2, "{}: {grants} grants", scenario.name);
    }
}

/// Counters and ledgers of one schedule grow as they do in an hour of a real primary.
#[test]
fn no_renewed_hold_is_lost_in_an_hour_of_faults_while_its_client_is_well() {
    for scenario in ["renewals", "renewals-any"] {
        for seed in 1..=4 {
            let run = system::run_for(scenario, seed, Bugs::default(), false, 3_600);
            let run = run.expect("the scenario");
            assert_eq!(
                run.violation, None,
                "sim --scenario {scenario} --seed {seed} --seconds 3600"
            );
            assert!(run.lasted_ns >= 3_600_000_000_000 && run.grants > 500, "{}", run.grants);
        }
    }
}

/// Seeds that once led to a violation in the core; the bug of each was fixed.
const REGRESSIONS: [(&str, u64); 18] = [
    ("atomic", 2513),    // an extend while a release is still on its way
    ("fair", 3789),      // a passed-over shared ticket is published late
    ("fair", 602),       // a shared ticket is ended, then given up
    ("drift", 3598),     // readers at the limit behind lost ones
    ("recovery", 8),     // a share claimed in recovery is resolved
    ("recovery", 3373),  // a claim's lease is rounded down
    ("churn", 277),      // a share is granted whose ledger write was lost
    ("all", 29911),      // a revoked ticket is forgotten by an older one's request
    ("all", 2445214),    // a revoked share is forgotten when an earlier ticket is ended
    ("all", 1031502),    // a revoked share is forgotten in another way
    ("all", 1160843),    // a client fenced in a recovery is adopted without its claims
    ("all", 1217436),    // a client fenced in a recovery believes that it has locks
    ("all", 37147),      // a claimed share that was released is undone
    ("roaming", 24510),  // a share taken over tcp is released by the card
    ("roaming", 23012),  // a share taken over tcp is released by the card, too
    ("prepared", 12009), // a horizon promised by the predecessor is forgotten
    ("rules", 954),      // a partial release is denied after new rules
    ("recovery", 2444),  // a lease outlives two primaries whose clocks differ
];

#[test]
fn seeds_that_found_a_bug_once_find_none() {
    for (scenario, seed) in REGRESSIONS {
        let run = system::run(scenario, seed, Bugs::default(), false).expect("the scenario");
        assert_eq!(run.violation, None, "sim --scenario {scenario} --seed {seed} --schedules 1");
    }
}

#[test]
fn the_same_seed_gives_the_same_trace_on_every_build() {
    let committed = include_str!("../hashes.txt").trim();
    let digest = format!("{:016x}", system::digest());
    assert_eq!(digest, committed, "scripts/sim-remake.sh makes tests/sim/hashes.txt anew");
}

/// A replicated primary depends on this. The test finds an iterated `HashMap`, or a randomly drawn
/// key.
#[test]
fn two_primaries_that_are_told_the_same_do_the_same() {
    for scenario in ["all", "recovery", "prepared", "rules", "lapses", "unfenced", "churn"] {
        for seed in 1..=12 {
            let run = system::run_twice(scenario, seed).expect("the scenario");
            assert_eq!(run.violation, None, "scenario {scenario}, seed {seed}");
        }
    }
}
