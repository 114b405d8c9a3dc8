// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lanes of 3 bits: `cargo nextest run -p dlock-models --features planted --target-dir \
//! target/planted`, so that nothing else is built with the rules that can be switched off.
#![cfg(feature = "planted")]

use dlock_core::planted::{Bug, OF_LAPS};
use dlock_models::{exhaust, hunt, laps, planted_laps};

fn passes(name: &str) {
    let setup = laps().into_iter().find(|s| s.name == name).expect("a model of this name");
    let report = exhaust(setup).unwrap_or_else(|what| panic!("{what}"));
    assert!(report.states > 5_000 && report.graph.ends > 0, "{report:?}");
}

#[test]
fn laps_with_an_expiry() {
    passes("laps: expiry");
}

#[test]
fn laps_with_readers() {
    passes("laps: readers");
}

#[test]
fn laps_with_a_crash() {
    passes("laps: crash");
}

#[test]
fn laps_with_a_hand_over() {
    passes("laps: hand-over");
}

#[test]
fn laps_with_a_relay() {
    passes("laps: relay");
}

#[test]
fn laps_of_readers_with_late_notes() {
    passes("laps: readers, late notes");
}

#[test]
fn laps_with_late_notes() {
    passes("laps: late notes");
}

#[test]
fn laps_with_tries() {
    passes("laps: tries");
}

fn is_found(bug: Bug) {
    let setup = planted_laps().into_iter().find(|s| s.core_bug == Some(bug)).expect("a model");
    let (property, trace, states) = hunt(setup).expect("the bug is found");
    println!("{bug:?}: `{property}` after {states} states\n{trace}");
    assert_eq!(property, "exclusion");
}

#[test]
fn a_lap_with_names_is_found() {
    is_found(Bug::LapWithNames);
}

#[test]
fn a_lap_with_intents_is_found() {
    is_found(Bug::LapWithIntents);
}

#[test]
fn tickets_without_intents_are_found() {
    is_found(Bug::FairNoIntent);
}

#[test]
fn every_rule_of_laps_has_a_model() {
    assert!(OF_LAPS.iter().all(|bug| planted_laps().iter().any(|s| s.core_bug == Some(*bug))));
}
