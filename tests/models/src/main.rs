// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlock-models`: explores the models and prints a table.
//!
//!     dlock-models                 those of CI
//!     dlock-models large           those that take longer
//!     dlock-models bugs            the planted bugs, with what finds them
//!     dlock-models laps            the arbiter gives most tickets out (with the feature `planted`)
//!     dlock-models rule-bugs       rules of the fair lock that are switched off
//!     dlock-models recovery-bugs   rules of recoveries that are switched off
//!     dlock-models NAME            those whose name has NAME in it
#![forbid(unsafe_code)]

use std::process::ExitCode;

use dlock_models::{exhaust, hunt, large, large_recoveries, planted, planted_recoveries};
use dlock_models::{
    explore_turns, recoveries, small, turn_bugs, turns, turns_large, Setup, TurnSetup,
};

fn main() -> ExitCode {
    let what = std::env::args().nth(1).unwrap_or_default();
    let all = || {
        let all = [small(), recoveries(), large(), large_recoveries()].concat();
        #[cfg(feature = "planted")]
        let all = [all, dlock_models::laps()].concat();
        all
    };
    let failed = match what.as_str() {
        "" => explore([small(), recoveries()].concat()),
        "large" => explore([large(), large_recoveries()].concat()),
        "bugs" => bugs([planted(), planted_recoveries()].concat()),
        #[cfg(feature = "planted")]
        "laps" => explore(dlock_models::laps()),
        #[cfg(feature = "planted")]
        "rule-bugs" => bugs(dlock_models::planted_rules()),
        #[cfg(feature = "planted")]
        "recovery-bugs" => bugs(dlock_models::core_recoveries()),
        "turns" => explore_all_turns([turns(), turns_large()].concat()),
        "turn-bugs" => turn_bugs_found(),
        name => explore(all().into_iter().filter(|s| s.name.contains(name)).collect()),
    };
    println!("{} passed, {} failed", failed.0, failed.1);
    if failed.1 == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn explore(setups: Vec<Setup>) -> (usize, usize) {
    println!(
        "{:38} {:>9} {:>10} {:>6} {:>5} {:>7} {:>7} {:>8}",
        "model", "states", "edges", "depth", "ends", "cycles", "s", "MB"
    );
    let (mut passed, mut failed) = (0, 0);
    for setup in setups {
        match exhaust(setup) {
            Ok(r) => {
                passed += 1;
                println!(
                    "{:38} {:>9} {:>10} {:>6} {:>5} {:>7} {:>7.1} {:>8}",
                    r.name,
                    r.states,
                    r.graph.edges,
                    r.depth,
                    r.graph.ends,
                    r.graph.cycles,
                    r.took.as_secs_f64(),
                    peak_mb(),
                );
            }
            Err(what) => {
                failed += 1;
                println!("FAILED {what}");
            }
        }
    }
    (passed, failed)
}

fn explore_all_turns(setups: Vec<TurnSetup>) -> (usize, usize) {
    let (mut passed, mut failed) = (0, 0);
    for setup in setups {
        let begin = std::time::Instant::now();
        let report = explore_turns(&setup, 2);
        let took = begin.elapsed().as_secs_f64();
        println!(
            "{:24} {:>9} states, depth {:>3}, {took:.1} s",
            setup.name, report.states, report.depth
        );
        match report.broken {
            None => passed += 1,
            Some((property, trace)) => {
                failed += 1;
                println!("FAILED {property}\n{trace}");
            }
        }
    }
    (passed, failed)
}

fn turn_bugs_found() -> (usize, usize) {
    let (mut passed, mut failed) = (0, 0);
    for setup in turn_bugs() {
        let report = explore_turns(&setup, 2);
        let name = format!("{:?}", setup.without);
        match report.broken {
            Some((property, _)) => {
                passed += 1;
                println!("{name:30} {property}, {} states, {} steps", report.states, report.depth);
            }
            None => {
                failed += 1;
                println!("{name:30} NOT FOUND in {} states", report.states);
            }
        }
    }
    (passed, failed)
}

fn bugs(setups: Vec<Setup>) -> (usize, usize) {
    let (mut passed, mut failed) = (0, 0);
    for setup in setups {
        #[cfg(feature = "planted")]
        let name = setup.core_bug.map_or(setup.name.to_string(), |bug| format!("{bug:?}"));
        #[cfg(not(feature = "planted"))]
        let name = setup.name;
        match hunt(setup) {
            Some((property, trace, states)) => {
                passed += 1;
                let steps = trace.lines().count() / 2 - 1;
                println!("{name:24} {property:24} {steps:>3} steps, {states:>7} states");
                if std::env::var_os("DLOCK_MODELS_TRACE").is_some() {
                    println!("{trace}");
                }
            }
            None => {
                failed += 1;
                println!("{name:24} NOT FOUND");
            }
        }
    }
    (passed, failed)
}

/// The most memory that this process has used so far, MB.
fn peak_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0) / 1024
}
