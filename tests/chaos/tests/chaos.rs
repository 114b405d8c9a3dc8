// SPDX-License-Identifier: MIT OR Apache-2.0
//! Short runs of all programs; `scripts/chaos.sh` has the long ones. `CHAOS_SECONDS` is the time
//! of a run with faults, on each fabric; `CHAOS_SEED` its first seed.

mod harness;

use std::time::Duration;

use dlock_client::FabricChoice;
use harness::programs::{self, Plan};
use harness::{fabrics, obey};
use harness::{renewed, silent};

/// The time of a run with faults, unless `CHAOS_SECONDS` is set.
const SECONDS: u64 = 20;
/// How often waiting processes are stopped on each fabric; and the number of these processes.
const STOPS: (u64, u64) = (30, 12);
/// How often clients are killed, and the primary is stopped, on each fabric.
const KILLS: u64 = 10;
const FROZEN: u64 = 4;
/// How often the primary is killed on each fabric; each time a successor follows.
const FAILOVERS: u64 = 6;
/// How often a primary is stopped and loses its place to another one, on each fabric.
const DEPOSED: u64 = 4;

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Not a real test: the child processes of the other tests run this.
#[test]
fn child_that_obeys_its_parent() {
    obey();
}

fn hold(plan: &Plan) -> programs::Outcome {
    let outcome = programs::run(plan);
    println!("{:?} seed {}: {}", plan.fabric, plan.seed, outcome.summary());
    let violations = &outcome.verdict.violations;
    assert!(violations.is_empty(), "{plan:?}\n{}", violations.join("\n"));
    assert!(outcome.verdict.grants > 0, "nothing was granted");
    outcome
}

fn faults_on(fabric: FabricChoice) {
    let (seconds, seed) = (variable("CHAOS_SECONDS", SECONDS), variable("CHAOS_SEED", 1));
    for plan in programs::rounds(fabric, seed, Duration::from_secs(seconds)) {
        hold(&plan);
    }
}

#[test]
fn what_is_told_holds_whatever_is_lost_late_or_broken_on_one_sided_memory() {
    faults_on(fabrics()[0]);
}

#[test]
fn what_is_told_holds_whatever_is_lost_late_or_broken_on_tcp() {
    faults_on(fabrics()[1]);
}

#[test]
fn a_process_that_stood_still_past_its_lease_is_told_no_success() {
    let (stops, workers) = STOPS;
    for fabric in fabrics() {
        let outcome = hold(&programs::stops(fabric, 1, workers, stops));
        assert!(outcome.disturbed >= stops, "{outcome:?}");
    }
}

#[test]
fn clients_that_are_killed_leave_nothing_that_two_rely_on() {
    for fabric in fabrics() {
        for seed in [1, 2] {
            hold(&programs::kills(fabric, seed, KILLS / 2));
        }
    }
}

#[test]
fn a_primary_that_stood_still_tells_no_success_for_a_lease_that_is_over() {
    for fabric in fabrics() {
        hold(&programs::frozen(fabric, 1, FROZEN));
    }
}

#[test]
fn a_primary_that_is_killed_takes_nothing_with_it() {
    for fabric in fabrics() {
        hold(&programs::failovers(fabric, 1, FAILOVERS));
    }
}

#[test]
fn a_primary_that_is_killed_takes_nothing_with_it_and_the_library_finds_its_successor() {
    for fabric in fabrics() {
        hold(&programs::by_itself(fabric, 1, FAILOVERS));
    }
}

#[test]
fn a_primary_that_was_stopped_and_replaced_grants_nothing_and_changes_nothing() {
    for fabric in fabrics() {
        hold(&programs::deposed(fabric, 1, DEPOSED));
    }
}

#[test]
fn a_client_that_is_silent_in_the_midst_of_its_lease_keeps_it_whoever_connects() {
    for fabric in fabrics() {
        let outcome = silent::silent(fabric, Duration::from_secs(6));
        assert!(outcome.wrong.is_empty(), "{outcome:?}");
        assert!(outcome.trials > 0 && outcome.strangers > 0, "{outcome:?}");
    }
}

#[test]
fn nothing_of_a_client_that_died_on_this_host_stays_held() {
    let outcome = silent::dead(fabrics()[0], 5);
    assert!(outcome.wrong.is_empty(), "{outcome:?}");
}

#[test]
fn no_wait_for_a_fair_lock_is_longer_than_what_is_in_front_of_it() {
    for fabric in fabrics() {
        let outcome = hold(&programs::fair(fabric, 1, Duration::from_secs(10)));
        assert!(outcome.waits.stalls.is_empty(), "{}", outcome.waits.stalls.join("\n"));
        assert!(outcome.waits.count > 0);
    }
}

#[test]
fn no_renewed_hold_is_lost_with_a_primary_and_none_outlives_its_release() {
    for fabric in fabrics() {
        let (time, every) = (Duration::from_secs(24), Duration::from_secs(6));
        let outcome = renewed::renewed(fabric, 1, time, every);
        println!("{fabric:?}: {outcome:?}");
        assert!(outcome.wrong.is_empty(), "{fabric:?}: {outcome:?}");
        assert!(outcome.outlasted > 0 && outcome.refused > 0 && outcome.load > 0, "{outcome:?}");
    }
}
