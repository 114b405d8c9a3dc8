// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two clients and the arbiter, at every interleaving; three clients, at many.

use dlock_core::clock::Lease;
use dlock_core::lock::Op;
use dlock_core::wire::message::{LockType, Mode};
use dlock_sim::{explore, sample, Action, Scenario};

const EX: Mode = Mode::Exclusive;
const SH: Mode = Mode::Shared;

fn lock(mode: Mode) -> Action {
    Action::Op(Op::Lock { mode, lease: Lease::secs(60) })
}
fn lock_for(mode: Mode, lease: Lease) -> Action {
    Action::Op(Op::Lock { mode, lease })
}
fn try_lock(mode: Mode) -> Action {
    Action::Op(Op::TryLock { mode, lease: Lease::secs(60) })
}
const UNLOCK: Action = Action::Op(Op::Unlock);

fn scenario(lock_type: LockType, scripts: Vec<Vec<Action>>) -> Scenario {
    Scenario {
        lock_type,
        scripts,
        start_word: 0,
        impatient: false,
        by_primary: false,
        time_passes: false,
        without_timers: true,
        mortal: None,
    }
}

/// Checks every schedule if there are at most `MAX`; otherwise the first `MAX`, and as many random
/// ones.
fn check(name: &str, scenario: Scenario) {
    const MAX: u64 = 10_000;
    let seen = explore(&scenario, MAX);
    println!("{name}: {} schedules, complete: {}", seen.schedules, seen.complete);
    if !seen.complete {
        sample(&scenario, 42, MAX);
    }
}

fn kinds() -> Vec<(LockType, Vec<Mode>)> {
    vec![(LockType::Atomic, vec![EX]), (LockType::Rw, vec![EX, SH]), (LockType::Fair, vec![EX, SH])]
}

#[test]
fn two_clients_that_lock_and_unlock_exclude_each_other_and_both_finish() {
    for (lock_type, modes) in kinds() {
        for &a in &modes {
            for &b in &modes {
                for by_primary in [false, true] {
                    let scripts = vec![vec![lock(a), UNLOCK], vec![lock(b), UNLOCK]];
                    let s = Scenario { by_primary, ..scenario(lock_type, scripts) };
                    check(&format!("{lock_type:?} {a:?} {b:?} {by_primary}"), s);
                }
            }
        }
    }
}

#[test]
fn a_waiter_that_gives_up_at_any_moment_leaves_nothing_behind() {
    for (lock_type, modes) in kinds() {
        for &a in &modes {
            for &b in &modes {
                let scripts = vec![vec![lock(a), UNLOCK], vec![lock(b), UNLOCK]];
                let s = Scenario { impatient: true, ..scenario(lock_type, scripts) };
                check(&format!("impatient {lock_type:?} {a:?} {b:?}"), s);
            }
        }
    }
}

#[test]
fn tries_exclude_each_other() {
    for (lock_type, modes) in kinds() {
        for &a in &modes {
            for &b in &modes {
                let scripts =
                    vec![vec![try_lock(a), UNLOCK, try_lock(a), UNLOCK], vec![try_lock(b), UNLOCK]];
                check(&format!("try {lock_type:?} {a:?} {b:?}"), scenario(lock_type, scripts));
            }
        }
    }
}

#[test]
fn a_client_that_dies_anywhere_does_not_stop_the_others() {
    for (lock_type, modes) in kinds() {
        for &a in &modes {
            for &b in &modes {
                for by_primary in [false, true] {
                    let mortal = vec![lock(a), UNLOCK, try_lock(b), UNLOCK];
                    let scripts = vec![mortal, vec![lock(b), UNLOCK], vec![try_lock(a), UNLOCK]];
                    let s = Scenario {
                        by_primary,
                        without_timers: false,
                        mortal: Some(0),
                        ..scenario(lock_type, scripts)
                    };
                    check(&format!("crash {lock_type:?} {a:?} {b:?}"), s);
                }
            }
        }
    }
}

#[test]
fn an_expired_hold_is_taken_over_and_its_late_release_changes_nothing() {
    for (lock_type, modes) in [(LockType::Atomic, vec![EX]), (LockType::Fair, vec![EX, SH])] {
        for &a in &modes {
            for &b in &modes {
                let scripts = vec![
                    vec![lock_for(a, Lease::secs(1)), UNLOCK],
                    vec![lock(b), UNLOCK],
                    vec![lock(EX), UNLOCK],
                ];
                let s = Scenario {
                    time_passes: true,
                    without_timers: false,
                    ..scenario(lock_type, scripts)
                };
                check(&format!("expiry {lock_type:?} {a:?} {b:?}"), s);
            }
        }
    }
}

#[test]
fn three_clients_of_any_mode_exclude_each_other() {
    for (lock_type, modes) in kinds() {
        for &a in &modes {
            for &b in &modes {
                let scripts = vec![
                    vec![lock(a), UNLOCK, try_lock(b), UNLOCK],
                    vec![lock(b), UNLOCK, lock(a), UNLOCK],
                    vec![
                        lock(EX),
                        Action::Op(Op::Extend { mode: EX, lease: Lease::secs(90) }),
                        UNLOCK,
                    ],
                ];
                let s = Scenario { impatient: true, ..scenario(lock_type, scripts) };
                check(&format!("three {lock_type:?} {a:?} {b:?}"), s);
            }
        }
    }
}

#[test]
fn a_reader_that_steps_back_wakes_whoever_it_kept_waiting() {
    for third in [vec![try_lock(SH), UNLOCK], vec![try_lock(EX), UNLOCK]] {
        let scripts = vec![vec![lock(SH), UNLOCK], vec![lock(EX), UNLOCK], third];
        check("step back", scenario(LockType::Rw, scripts));
    }
}

#[test]
fn ticket_holders_that_keep_asking_are_served() {
    for a in [EX, SH] {
        for b in [EX, SH] {
            let ask = |mode| Action::Op(Op::TryLock { mode, lease: Lease::secs(60) });
            let scripts = vec![
                vec![ask(a), ask(a), ask(a), UNLOCK],
                vec![ask(b), ask(b), UNLOCK],
                vec![lock(EX), UNLOCK],
            ];
            let s = Scenario {
                time_passes: true,
                without_timers: false,
                ..scenario(LockType::Fair, scripts)
            };
            check(&format!("ask {a:?} {b:?}"), s);
        }
    }
}
