// SPDX-License-Identifier: MIT OR Apache-2.0
//! Both checkers agree on hand-made histories, good and bad.

use dlock_sim_linear::{history, is_exclusive, is_linearizable};

const GOOD: &[&str] = &[
    "1X 1+ 1U 1+",
    "1S 1+ 1U 1+",
    "1X 1+ 1U 1+ 2X 2+ 2U 2+",
    "1X 1+ 2X 2- 1U 1+",
    "1X 1+ 2S 2- 1U 1+",
    "1S 1+ 2S 2+ 1U 1+ 2U 2+",
    "1S 1+ 2S 2+ 2U 2+ 1U 1+",
    "1S 1+ 2X 2- 1U 1+ 2X 2+",
    "1X 2X 1+ 2- 1U 1+",
    "1X 2X 2+ 1- 2U 2+",
    "1X 2X 1+ 1U 1+ 2+ 2U 2+",
    "1X 1+ 2X 1U 2+ 1+ 2U 2+",
    "1X 1+ 1U 2X 2+ 1+ 2U 2+",
    "1X 1+ 2S 1U 2+ 1+ 2U 2+",
    "1S 1+ 2X 1U 2+ 1+ 2U 2+",
    "1S 2S 3S 1+ 2+ 3+ 1U 2U 3U 1+ 2+ 3+",
    "1S 1+ 2S 2+ 3X 3- 1U 1+ 2U 2+ 3X 3+",
    "1X 1+ 2X 3X 2- 3- 1U 1+",
    "1X 1+ 2X 1U 1+ 2+ 3X 3- 2U 2+",
    "1X 1+ 1U 1+ 1S 1+ 2S 2+ 1U 1+ 2U 2+",
    "1S 1+ 1U 1+ 1X 1+ 2S 2- 1U 1+",
    "1X 2S 2+ 1- 2U 2+",
    "1X 2S 1+ 2- 1U 1+",
    "1X 2S 3S 2+ 3+ 1- 2U 2+ 3U 3+",
    "1X 1+ 2S 3S 1U 2+ 3+ 1+ 2U 3U 2+ 3+",
    "1U 1-",
    "1X 1+ 2U 2- 1U 1+",
];

const BAD: &[&str] = &[
    "1X 1+ 2X 2+",
    "1X 1+ 2S 2+",
    "1S 1+ 2X 2+",
    "1X 2X 1+ 2+",
    "1X 2X 2+ 1+",
    "1X 2S 1+ 2+",
    "1X 2S 2+ 1+",
    "1S 2X 1+ 2+",
    "1S 1+ 2S 2+ 3X 3+",
    "1S 1+ 2S 2+ 1U 1+ 3X 3+",
    "1S 2S 3X 1+ 2+ 3+",
    "1X 1+ 1U 1+ 2X 2+ 3X 3+",
    "1X 1+ 2X 2- 3X 3+",
    "1X 1+ 2X 2+ 1U 1+ 2U 2+",
    "1X 1+ 2S 2+ 1U 1+ 2U 2+",
    "1S 1+ 2X 2+ 1U 1+ 2U 2+",
    "1X 1+ 1U 1+ 2S 2+ 3X 3+ 2U 2+",
    "1X 1+ 2X 3X 2+ 3- 1U 1+",
    "1X 1+ 2X 3X 3+ 2- 1U 1+",
    "1S 1+ 2S 2- 3X 3+",
    "1X 1+ 2X 1U 1+ 2+ 3S 3+",
    "1X 1+ 2S 1U 1+ 2+ 3X 3+",
    "1X 2X 3X 1+ 2- 3+",
    "1X 1+ 1U 1+ 1X 1+ 2X 2+",
    "1S 1+ 1U 1+ 1X 1+ 2S 2+",
    "1S 1+ 1U 1+ 1S 1+ 2X 2+",
    "1X 2X 1+ 2+ 1U 2U 1+ 2+",
];

#[test]
fn both_checkers_accept_the_good_histories() {
    for text in GOOD {
        assert!(is_linearizable(&history(text)), "stateright refuses {text}");
        assert!(is_exclusive(&history(text)), "the oracle refuses {text}");
    }
}

#[test]
fn both_checkers_refuse_the_bad_histories() {
    for text in BAD {
        assert!(!is_linearizable(&history(text)), "stateright accepts {text}");
        assert!(!is_exclusive(&history(text)), "the oracle accepts {text}");
    }
}

#[test]
fn there_are_fifty_histories() {
    assert!(GOOD.len() + BAD.len() >= 50);
}
