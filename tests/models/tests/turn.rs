// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fair lock of two words: every state of the small systems, and every rule switched off.

use dlock_models::{explore_turns, turn_bugs, turns};

#[test]
fn every_small_system_keeps_its_promises() {
    for setup in turns() {
        let report = explore_turns(&setup, 2);
        println!("{}: {} states, depth {}", setup.name, report.states, report.depth);
        if let Some((property, trace)) = report.broken {
            panic!("{}: `{property}` does not hold:\n{trace}", setup.name);
        }
        assert!(report.states > 100, "{}", setup.name);
    }
}

#[test]
fn a_rule_that_is_switched_off_is_found() {
    for setup in turn_bugs() {
        let report = explore_turns(&setup, 2);
        let found = report.broken.map(|broken| broken.0);
        println!("without {:?}: {found:?}, {} states", setup.without, report.states);
        assert!(found.is_some(), "without {:?}, {}", setup.without, setup.name);
    }
}
