// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every planted bug is found: `cargo test -p dlock-sim --release --features planted`.
//!
//! `planted.csv` is the output of `sim --planted-table`. A change of the core moves the seeds; then
//! each bug is searched for again, and the table should be made again, too.
#![cfg(feature = "planted")]

use std::sync::atomic::{AtomicUsize, Ordering};

use dlock_sim::{planted, system};

/// The least number of bugs in the table.
const BUGS_MIN: usize = 20;

/// Half of the limit for one search: a median near the limit means that a bug is easily missed. A
/// single search is one draw itself.
const MEDIAN_MAX: u64 = match planted::RUNS {
    1 => planted::SCHEDULES_MAX,
    _ => planted::SCHEDULES_MAX / 2,
};

/// Name, seed and median of every row.
fn rows() -> Vec<(String, u64, u64)> {
    let table = include_str!("../planted.csv").lines().filter(|line| !line.starts_with('#'));
    table
        .map(|line| {
            let mut columns = line.split(", ");
            let name = columns.next().expect("a name").to_string();
            let mut number = || columns.next().and_then(|text| text.parse().ok());
            let (seed, median) = (number(), number());
            let seed = seed.unwrap_or_else(|| panic!("no seed finds {line}"));
            (name, seed, median.unwrap_or_else(|| panic!("no median in {line}")))
        })
        .collect()
}

#[test]
fn every_planted_bug_is_found_and_its_seed_passes_with_all_rules() {
    // a panic counts as a finding, so its text is not needed
    std::panic::set_hook(Box::new(|_| {}));
    let rows = rows();
    let next = AtomicUsize::new(0);
    let lost = std::sync::Mutex::new(Vec::new());
    // for scripts/lib.sh, with --nocapture
    let progress = std::env::var_os("DLOCK_PROGRESS").is_some();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((name, seed, _)) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = planted::search(name, *seed, 1).or_else(|| planted::find(name));
                    let verdict = match found {
                        None => Some(format!("{name} is not found any more")),
                        Some((seed, _)) => planted::with_all_rules(name, seed)
                            .map(|why| format!("{name}: seed {seed} fails with all rules: {why}")),
                    };
                    lost.lock().expect("no panic holds it").extend(verdict);
                    if progress {
                        println!("progress: {name}");
                    }
                }
            });
        }
    });
    let _ = std::panic::take_hook();
    assert_eq!(lost.into_inner().expect("no panic holds it"), Vec::<String>::new());
}

/// If a scenario finds one of these bugs by now, the bug belongs into the table.
/// `planted-units.csv` names its unit test, and the reason why no schedule finds it.
#[test]
fn what_unit_tests_alone_find_changes_no_schedule() {
    for &bug in dlock_core::planted::OF_UNITS {
        let (_, name, _) = dlock_core::planted::BUGS.iter().find(|b| b.0 == bug).expect("a name");
        let seen = planted::seen(name, 1, planted::SEEN_SCHEDULES);
        assert_eq!(seen, None, "schedules see {name}");
    }
}

#[test]
fn the_table_has_every_planted_bug_and_each_is_found_soon() {
    let rows = rows();
    let missing: Vec<_> = system::plantable()
        .into_iter()
        .filter(|(name, _)| !rows.iter().any(|row| row.0 == *name))
        .collect();
    assert_eq!(missing, []);
    let late: Vec<_> = rows.iter().filter(|row| row.2 > MEDIAN_MAX).collect();
    assert!(late.is_empty(), "{late:?} take too many schedules");
    assert!(rows.len() >= BUGS_MIN, "{} bugs", rows.len());
}
