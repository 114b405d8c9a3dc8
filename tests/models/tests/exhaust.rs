// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every state of the small models, and every planted bug.

use dlock_models::{exhaust, hunt, planted, small, Bug, Setup};

fn passes(name: &str) {
    let setup = small().into_iter().find(|s| s.name == name).expect("a model of this name");
    let report = exhaust(setup).unwrap_or_else(|what| panic!("{what}"));
    println!("{report:?}");
    assert!(report.states > 2_000 && report.graph.ends > 0, "{report:?}");
}

macro_rules! models {
    ($($test:ident: $name:literal,)*) => {
        $(#[test] fn $test() { passes($name); })*

        #[test]
        fn every_small_model_has_its_test() {
            let names: Vec<_> = small().iter().map(|s| s.name).collect();
            assert_eq!(names, [$($name),*]);
        }
    };
}
models! {
    atomic_crash_expiry: "atomic: crash, expiry",
    atomic_crash_expiry_again: "atomic: crash, expiry, again",
    read_write_crash_readers: "read-write: crash, readers",
    read_write_crash_tries: "read-write: crash, tries",
    read_write_crash_again: "read-write: crash, again",
    fair_crash: "fair: crash",
    fair_crash_looks: "fair: crash, looks",
    fair_crash_readers: "fair: crash, readers",
    fair_expiry_looks: "fair: expiry, looks",
    fair_endless: "fair: endless",
    fair_crash_twice: "fair: crash, twice",
    fair_readers_and_a_writer: "fair: readers and a writer",
    fair_expiry_extended: "fair: expiry, extended",
    fair_crash_a_reader: "fair: crash, a reader",
    fair_crash_readers_that_stay: "fair: crash, readers that stay",
    fair_expiry_two_clients: "fair: expiry, two clients",
    fair_crash_tickets_given_up: "fair: crash, tickets given up",
    fair_crash_given_up_tcp: "fair: crash, given up, tcp",
    fair_crash_expiry_tcp: "fair: crash, expiry, tcp",
    fair_crash_readers_tcp: "fair: crash, readers, tcp",
}

/// The bug is found by the property that it breaks; without it the same model passes.
fn is_found(bug: Bug, by: &[&str]) {
    let setup = planted().into_iter().find(|s| s.bug == Some(bug)).expect("a model for each bug");
    let (property, trace, states) = hunt(setup.clone()).expect("the bug is found");
    println!("{bug:?}: `{property}` after {states} states\n{trace}");
    assert!(by.contains(&property), "{property}:\n{trace}");
    exhaust(Setup { bug: None, ..setup }).unwrap_or_else(|what| panic!("without the bug: {what}"));
}

macro_rules! bugs {
    ($($test:ident: $bug:ident by $($by:literal)or+,)*) => {
        $(#[test] fn $test() { is_found(Bug::$bug, &[$($by),+]); })*

        #[test]
        fn every_bug_has_its_test() {
            let bugs: Vec<_> = planted().iter().filter_map(|s| s.bug).collect();
            assert_eq!(bugs, [$(Bug::$bug),*]);
        }
    };
}
bugs! {
    a_blind_release_is_found: BlindRelease by "exclusion" or "who waits is seen",
    a_clock_that_is_too_sure_is_found: ClockTooSure by "exclusion",
    an_arbiter_ahead_of_time_is_found: ArbiterAhead by "exclusion",
    ledgers_that_are_read_once_are_found: LedgersReadOnce
        by "nothing goes wrong" or "nobody is left behind",
    a_note_after_the_add_is_found: NoteAfterAdd by "nobody is left behind",
    forgetting_before_fencing_is_found: ForgottenBeforeFenced by "nobody is left behind",
    a_request_served_twice_is_found: ServedTwice by "nobody is left behind",
    a_dropped_grant_is_found: GrantDropped by "nobody is left behind",
    a_lost_waiters_bit_is_found: WaitersBitLost by "who waits is seen",
    a_lost_wake_is_found: WakeLost by "nobody is left behind",
    a_reader_that_does_not_step_back_is_found: NoStepBack by "nobody is left behind",
    lost_timers_are_found: TimersLost by "nobody is left behind",
}
