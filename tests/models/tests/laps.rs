// SPDX-License-Identifier: MIT OR Apache-2.0
//! Laps of a few tickets, and the rules of the fair lock, each left out: `cargo nextest run -p \
//! dlock-models --features planted --target-dir target/planted`, so that nothing else is built with
//! the rules that can be switched off.
#![cfg(feature = "planted")]

use dlock_core::planted::{Bug, OF_LAPS};
use dlock_models::{exhaust, hunt, laps, planted_rules};

fn passes(name: &str) {
    let setup = laps().into_iter().find(|s| s.name == name).expect("a model of this name");
    let report = exhaust(setup).unwrap_or_else(|what| panic!("{what}"));
    assert!(report.states > 5_000 && report.graph.ends > 0, "{report:?}");
}

#[test]
fn laps_expiry() {
    passes("laps: expiry");
}

#[test]
fn laps_readers() {
    passes("laps: readers");
}

#[test]
fn laps_crash() {
    passes("laps: crash");
}

#[test]
fn laps_looks() {
    passes("laps: looks");
}

#[test]
fn laps_tries() {
    passes("laps: tries");
}

/// The rule is needed: without it a property is broken.
fn is_needed(bug: Bug) {
    let setup = planted_rules().into_iter().find(|s| s.core_bug == Some(bug)).expect("a model");
    let (property, trace, states) = hunt(setup).expect("the bug is found");
    println!("{bug:?}: `{property}` after {states} states\n{trace}");
}

#[test]
fn the_claim_is_as_long_as_the_lease() {
    is_needed(Bug::ClaimShort);
}

#[test]
fn the_claim_comes_before_the_ticket() {
    is_needed(Bug::ClaimAfterTicket);
}

#[test]
fn an_extend_that_is_late_is_confirmed() {
    is_needed(Bug::LateExtendCounts);
}

#[test]
fn a_release_that_is_late_is_the_arbiters() {
    is_needed(Bug::LateReleaseByClient);
}

#[test]
fn a_told_word_is_the_arbiters() {
    is_needed(Bug::ToldIgnored);
}

#[test]
fn a_release_that_found_its_turn_is_one() {
    is_needed(Bug::ToldReleaseFails);
}

#[test]
fn a_claim_at_the_head_is_waited_for() {
    is_needed(Bug::HeadClaimIgnored);
}

#[test]
fn shares_before_the_head_are_waited_for() {
    is_needed(Bug::HeadBeforeShares);
}

#[test]
fn shares_that_are_relied_on_do_not_count_as_done() {
    is_needed(Bug::LiveSharesPassed);
}

#[test]
fn who_comes_to_a_share_that_was_counted_is_refused() {
    is_needed(Bug::PassedCounts);
}

#[test]
fn a_decision_counts_from_the_word_that_was_read() {
    is_needed(Bug::DecidedFromLater);
}

#[test]
fn a_high_number_is_no_ticket() {
    is_needed(Bug::HighIsTicket);
}

#[test]
fn a_lap_waits_for_entries_that_are_over() {
    is_needed(Bug::LapOverEntries);
}

#[test]
fn every_rule_of_laps_has_a_model() {
    assert!(OF_LAPS.iter().all(|bug| planted_rules().iter().any(|s| s.core_bug == Some(*bug))));
}
