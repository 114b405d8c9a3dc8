// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every state of the small models in which the primary dies, and every bug that is planted there.
//! Rules of the core are switched off by `cargo nextest run -p dlock-models --features planted \
//! --target-dir target/planted recovery`, so that nothing else is built with them.

use dlock_models::{exhaust, hunt, planted_recoveries, recoveries, Bug, Setup};

fn passes(name: &str) {
    let setup = recoveries().into_iter().find(|s| s.name == name).expect("a model of this name");
    let report = exhaust(setup).unwrap_or_else(|what| panic!("{what}"));
    println!("{report:?}");
    assert!(report.states > 2_000 && report.graph.ends > 0, "{report:?}");
}

macro_rules! models {
    ($($test:ident: $name:literal,)*) => {
        $(#[test] fn $test() { passes($name); })*

        #[test]
        fn every_recovery_has_its_test() {
            let names: Vec<_> = recoveries().iter().map(|s| s.name).collect();
            assert_eq!(names, [$($name),*]);
        }
    };
}
models! {
    fair: "recovery: fair",
    fair_reader: "recovery: fair, reader",
    fair_crash: "recovery: fair, crash",
    fair_again: "recovery: fair, again",
    fair_again_unheard: "recovery: fair, again, unheard",
    fair_held_twice: "recovery: fair, held twice",
    fair_tried: "recovery: fair, tried",
    fair_given_up: "recovery: fair, given up",
    fair_expiry: "recovery: fair, expiry",
    fair_horizon: "recovery: fair, horizon",
    fair_looks: "recovery: fair, looks",
    fair_twice: "recovery: fair, twice",
    fair_tcp: "recovery: fair, tcp",
    fair_again_tcp: "recovery: fair, again, tcp",
    atomic: "recovery: atomic",
    atomic_extended: "recovery: atomic, extended",
    atomic_again: "recovery: atomic, again",
    read_write_again: "recovery: read-write, again",
    read_write_horizon: "recovery: read-write, horizon",
    read_write_held_twice: "recovery: read-write, held twice",
}

const LOST: &str = "a hold that its client believes in is lost";
const PASSED_OVER: &str = "a ticket of a predecessor is passed over by a later one";

/// By one of these properties, or with these words at the end of the trace.
fn is_found(setup: Setup, by: &[&str]) {
    let (property, trace, states) = hunt(setup.clone()).expect("the bug is found");
    println!("{}: `{property}` after {states} states\n{trace}", setup.name);
    assert!(by.iter().any(|by| *by == property || trace.contains(by)), "{property}:\n{trace}");
}

macro_rules! bugs {
    ($($test:ident: $bug:ident by $($by:tt)or+,)*) => {
        $(#[test] fn $test() {
            let mut all = planted_recoveries().into_iter();
            let setup = all.find(|s| s.bug == Some(Bug::$bug)).expect("a model for each bug");
            is_found(setup.clone(), &[$($by),+]);
            exhaust(Setup { bug: None, ..setup }).unwrap_or_else(|what| panic!("without: {what}"));
        })*

        #[test]
        fn every_bug_has_its_test() {
            let bugs: Vec<_> = planted_recoveries().iter().filter_map(|s| s.bug).collect();
            assert_eq!(bugs, [$(Bug::$bug),*]);
        }
    };
}
bugs! {
    a_hold_that_is_not_told_is_lost: HoldUntold by LOST,
    places_in_another_order_are_found: PlacesByArrival by PASSED_OVER,
    a_lock_that_is_told_of_in_a_chain_is_lost: ToldInChain by LOST,
    who_is_never_given_up_is_found: TimersLost by "nobody is left behind",
}

#[cfg(feature = "planted")]
mod core {
    use super::{is_found, LOST};
    use dlock_core::planted::Bug;
    use dlock_models::core_recoveries;

    const GIVEN_UP: &str = "a client is given up while it believes to hold the lock";

    macro_rules! core_bugs {
        ($($test:ident: $bug:ident by $($by:tt)or+,)*) => {
            $(#[test] fn $test() {
                let all = core_recoveries().into_iter();
                for setup in all.filter(|s| s.core_bug == Some(Bug::$bug)) {
                    is_found(setup, &[$($by),+]);
                }
            })*

            #[test]
            fn every_bug_of_the_core_has_its_test() {
                let mut bugs: Vec<_> =
                    core_recoveries().into_iter().filter_map(|s| s.core_bug).collect();
                bugs.dedup();
                assert_eq!(bugs, [$(Bug::$bug),*]);
            }
        };
    }
    core_bugs! {
        claims_that_count_twice_are_found: ClaimsCountedTwice by LOST or "nobody is left behind",
        a_share_that_no_ledger_names_is_found: ClaimedShareForgotten
            by LOST or "nobody is left behind",
        a_recovery_that_ends_early_is_found: RecoveryEarly by GIVEN_UP or "exclusion",
        a_horizon_that_is_not_waited_for_is_found: DeadlineAlone by GIVEN_UP or "exclusion",
        a_lease_on_the_new_clock_is_found: ClaimOnNewClock by LOST or "exclusion",
        a_lease_that_is_rounded_down_is_found: ClaimRoundedDown by LOST or "exclusion",
        the_earlier_of_two_holds_is_found: EarlierClaimCounts by LOST or "exclusion",
    }
}
