// SPDX-License-Identifier: MIT OR Apache-2.0
//! The setups that are explored.

use super::client::Call::{self, Extend, Lock, Try, Unlock};
use super::words::Mode::{S, X};
use super::{Rule, TurnSetup};

const BASE: TurnSetup = TurnSetup {
    name: "",
    scripts: [Vec::new(), Vec::new(), Vec::new()],
    is_proxied: [false; 3],
    mortal: None,
    losses: 0,
    ticks: 2,
    divert: 100,
    timer: true,
    without: None,
};

fn once(mode: super::Mode) -> Vec<Call> {
    vec![Lock(mode), Unlock]
}

fn twice(mode: super::Mode) -> Vec<Call> {
    [once(mode), once(mode)].concat()
}

/// The small setups.
pub fn turns() -> Vec<TurnSetup> {
    vec![
        TurnSetup { name: "x, x", scripts: [once(X), once(X), vec![]], ticks: 3, ..BASE },
        TurnSetup { name: "x, s", scripts: [once(X), once(S), vec![]], ticks: 3, ..BASE },
        TurnSetup { name: "x, s: loss", scripts: [once(X), once(S), vec![]], losses: 1, ..BASE },
        TurnSetup {
            name: "x, x: crash",
            scripts: [once(X), once(X), vec![]],
            mortal: Some(0),
            ..BASE
        },
        TurnSetup {
            name: "s, x: crash",
            scripts: [once(S), once(X), vec![]],
            mortal: Some(0),
            ..BASE
        },
        TurnSetup {
            name: "x, x: extend",
            scripts: [vec![Lock(X), Extend, Unlock], once(X), vec![]],
            ..BASE
        },
        TurnSetup {
            name: "s, x: extend",
            scripts: [vec![Lock(S), Extend, Unlock], once(X), vec![]],
            ..BASE
        },
        TurnSetup {
            name: "x, x: no timer",
            scripts: [once(X), once(X), vec![]],
            ticks: 0,
            timer: false,
            ..BASE
        },
        TurnSetup {
            name: "x, s: no timer",
            scripts: [once(X), once(S), vec![]],
            ticks: 0,
            timer: false,
            ..BASE
        },
        TurnSetup { name: "s, x", scripts: [once(S), once(X), vec![]], ticks: 4, ..BASE },
        TurnSetup {
            name: "x, x: lap",
            scripts: [twice(X), once(X), vec![]],
            divert: 1,
            ticks: 0,
            ..BASE
        },
        TurnSetup {
            name: "x, s: lap",
            scripts: [twice(S), once(X), vec![]],
            divert: 1,
            ticks: 0,
            ..BASE
        },
        TurnSetup {
            name: "x, s: tcp beside one-sided",
            scripts: [once(X), once(S), vec![]],
            is_proxied: [true, false, false],
            ticks: 3,
            ..BASE
        },
        TurnSetup { name: "x, s: tries", scripts: [once(X), vec![Try(S), Unlock], vec![]], ..BASE },
    ]
}

/// The setups that take longer.
pub fn turns_large() -> Vec<TurnSetup> {
    vec![
        TurnSetup {
            name: "x, x: two laps",
            scripts: [twice(X), twice(X), vec![]],
            divert: 1,
            ticks: 0,
            ..BASE
        },
        TurnSetup {
            name: "x, s: two laps",
            scripts: [twice(X), twice(S), vec![]],
            divert: 1,
            ticks: 0,
            ..BASE
        },
        TurnSetup {
            name: "x, x: lap, time",
            scripts: [twice(X), once(X), vec![]],
            divert: 1,
            ticks: 2,
            ..BASE
        },
        TurnSetup { name: "x, x, x", scripts: [once(X), once(X), once(X)], ticks: 0, ..BASE },
        TurnSetup { name: "s, s, x", scripts: [once(S), once(S), once(X)], ticks: 0, ..BASE },
        TurnSetup { name: "s, s, x: time", scripts: [once(S), once(S), once(X)], ticks: 2, ..BASE },
        TurnSetup { name: "x, x, s: time", scripts: [once(X), once(X), once(S)], ticks: 2, ..BASE },
    ]
}

/// For each rule, a setup that needs it.
pub fn turn_bugs() -> Vec<TurnSetup> {
    let with = |name: &str, rule| {
        let all = [turns(), turns_large()].concat();
        let setup = all.into_iter().find(|s| s.name == name).expect("a setup of this name");
        TurnSetup { without: Some(rule), ..setup }
    };
    vec![
        with("x, x", Rule::ClaimRuns),
        with("x, x: extend", Rule::ExtendWhileItRuns),
        with("s, x", Rule::LateRelease),
        with("x, x", Rule::IntentFirst),
        with("x, s: no timer", Rule::ToldIsTheArbiters),
        with("x, x", Rule::HeadMayBeClaimed),
        with("x, s", Rule::HeadAfterShares),
        with("x, s", Rule::LiveSharesStay),
        with("x, s", Rule::PassedIsRefused),
        with("x, x: extend", Rule::ClockBeforeLedgers),
        with("x, x: no timer", Rule::OneCas),
        with("x, x: lap", Rule::HighIsNoTicket),
        with("x, x: lap, time", Rule::LapAfterEntries),
    ]
}
