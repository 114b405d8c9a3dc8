// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every type of lock, with leases below and above the default horizon of a session (10 s). A hold
//! without a lease ends at the horizon; a hold with a lease must not end before its lease.

use std::thread;
use std::time::Duration;

use rustix::process::{kill_process, Pid, Signal};

use super::common::{code, text, Primary};
use super::proxy::{Proxy, Stall};
use super::{eventually, is_file_locked, Exec, Scene};

const ALL: Stall = Stall { chunk: 0, half: false, one_way: false };

/// A lease, in seconds, that is shorter than the default horizon.
const SHORT: &str = "4";
/// A lease, in seconds, that is longer than the default horizon.
const LONG: &str = "15";
/// Longer than the default horizon, and shorter than any lease here.
const AWAY: Duration = Duration::from_secs(12);

/// The reason why primary and holder do not hear each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Network,
    /// The network closes the connections, and then passes nothing on.
    Reset,
    Keeper,
    /// `dlock exec` is stopped, and the network passes nothing on.
    Exec,
}

type Trial = (&'static str, &'static str, &'static str, Fault);

const TRIALS: [Trial; 17] = [
    ("rw", "exclusive", LONG, Fault::Network),
    ("rw", "exclusive", LONG, Fault::Reset),
    ("rw", "exclusive", LONG, Fault::Keeper),
    ("rw", "exclusive", LONG, Fault::Exec),
    ("rw", "shared", LONG, Fault::Network),
    ("rw", "shared", LONG, Fault::Keeper),
    ("atomic", "exclusive", LONG, Fault::Network),
    ("fair", "exclusive", LONG, Fault::Network),
    ("fair", "shared", LONG, Fault::Reset),
    ("rw", "exclusive", SHORT, Fault::Network),
    ("rw", "exclusive", SHORT, Fault::Reset),
    ("rw", "exclusive", SHORT, Fault::Keeper),
    ("rw", "exclusive", SHORT, Fault::Exec),
    ("rw", "shared", SHORT, Fault::Network),
    ("atomic", "exclusive", SHORT, Fault::Reset),
    ("fair", "exclusive", SHORT, Fault::Reset),
    ("fair", "shared", SHORT, Fault::Keeper),
];

fn outlast(primary: &str, number: usize, trial: Trial) {
    let (kind, mode, lease, fault) = trial;
    let what = format!("{number}: {trial:?}");
    let scene = Scene::new(&format!("outlast-{number}"));
    let name = format!("lost {number}");
    let options = [&name, "--type", kind, "--fabric", "tcp", "--lease", lease, "--wait", "60"];
    let proxy = Proxy::start(primary, None);
    let shared = [&options[..], &["--mode", mode]].concat();
    let mut first = scene.exec(&proxy.address.to_string(), &shared, "a", "never");
    eventually(&what, || scene.has("begin.a"));
    match fault {
        Fault::Network => proxy.arm(ALL),
        Fault::Reset => proxy.reset(),
        Fault::Keeper => kill_process(first.keeper(), Signal::STOP).unwrap(),
        Fault::Exec => {
            first.signal(Signal::STOP);
            proxy.arm(ALL);
        }
    }
    let mut second = scene.exec(primary, &options, "b", "end-b");
    eventually(&format!("{what}: the other gets the lock"), || scene.has("begin.b"));
    scene.assert_no_overlap(&what);
    proxy.lift();
    if fault == Fault::Exec {
        first.signal(Signal::CONT);
    }
    assert_eq!(first.code(&what), Some(76), "{what}");
    scene.touch("end-b");
    assert_eq!(second.code(&what), Some(0), "{what}");
    scene.assert_no_overlap(&what);
}

#[test]
fn command_is_dead_before_its_lock_is_anothers_whatever_its_type_and_lease() {
    let primary = Primary::start_exactly("outlast", &[]);
    thread::scope(|scope| {
        for (number, trial) in TRIALS.into_iter().enumerate() {
            let address = &primary.address;
            scope.spawn(move || outlast(address, number, trial));
        }
    });
}

#[test]
fn a_lock_without_a_lease_outlasts_a_network_that_is_away_for_less_than_the_lease() {
    let primary = Primary::start_exactly("back", &[]);
    thread::scope(|scope| {
        for mode in ["exclusive", "shared"] {
            let primary = &primary;
            scope.spawn(move || {
                let scene = Scene::new(&format!("back-{mode}"));
                let proxy = Proxy::start(&primary.address, None);
                let options = [mode, "--type", "rw", "--fabric", "tcp", "--lease", "60"];
                let shared = [&options[..], &["--mode", mode]].concat();
                let mut first = scene.exec(&proxy.address.to_string(), &shared, "a", "end-a");
                eventually("it runs", || scene.has("begin.a"));
                proxy.arm(ALL);
                let wait = AWAY.as_secs().to_string();
                let other =
                    primary.exec(&[&options[..], &["--wait", &wait, "--", "true"]].concat());
                assert_eq!(code(&other), 75, "{mode}: it is held: {}", text(&other.stderr));
                proxy.lift();
                scene.touch("end-a");
                assert_eq!(first.code(mode), Some(0), "{mode}");
            });
        }
    });
}

#[test]
fn a_lock_without_a_lease_outlasts_a_primary_that_is_stopped_for_less_than_the_lease() {
    let primary = Primary::start_exactly("stopped", &[]);
    let scenes = ["exclusive", "shared"].map(|mode| (mode, Scene::new(&format!("stopped-{mode}"))));
    let mut execs: Vec<(Exec, Exec)> = Vec::new();
    for (mode, scene) in &scenes {
        let options = [mode, "--type", "rw", "--fabric", "tcp", "--lease", "60"];
        let shared = [&options[..], &["--mode", mode]].concat();
        let first = scene.exec(&primary.address, &shared, "a", "end-a");
        eventually("it runs", || scene.has("begin.a"));
        let second = scene.exec(&primary.address, &options, "b", "end-b");
        let said = || std::fs::read_to_string(scene.at("stderr.b")).unwrap_or_default();
        eventually("the other waits", || said().contains("waiting for the lock"));
        execs.push((first, second));
    }
    let pid = Pid::from_child(&primary.child);
    kill_process(pid, Signal::STOP).unwrap();
    thread::sleep(AWAY);
    kill_process(pid, Signal::CONT).unwrap();
    for ((mode, scene), (first, second)) in scenes.iter().zip(&mut execs) {
        let third = [mode, "--type", "rw", "--fabric", "tcp", "--wait", "0", "--", "true"];
        let third = primary.exec(&third);
        assert_eq!(code(&third), 75, "{mode}: it is held: {}", text(&third.stderr));
        scene.touch("end-a");
        assert_eq!(first.code(mode), Some(0), "{mode}: it has not lost its lock");
        eventually("the other runs", || scene.has("begin.b"));
        scene.touch("end-b");
        assert_eq!(second.code(mode), Some(0), "{mode}");
        scene.assert_no_overlap(mode);
    }
}

/// The operator has started the primary without recovery, so it gives the lock to the first client
/// that asks.
#[test]
fn command_ends_when_a_primary_says_that_it_knows_of_no_lock() {
    let scene = Scene::new("unknown");
    let mut primary = Primary::start_exactly("unknown-1", &[]);
    let proxy = Proxy::start(&primary.address, None);
    let options = ["lock", "--type", "rw", "--fabric", "tcp", "--lease", "30"];
    let mut exec = scene.exec(&proxy.address.to_string(), &options, "a", "never");
    eventually("it runs", || scene.has("begin.a"));
    let other = Primary::start_exactly("unknown-2", &[]);
    proxy.lead_to(&other.address);
    primary.child.kill().unwrap();
    primary.child.wait().unwrap();
    assert_eq!(exec.code("without its primary"), Some(76));
    let said = std::fs::read_to_string(scene.at("stderr.a")).unwrap();
    assert!(said.contains("known to no primary any more"), "{said}");
    assert!(!is_file_locked(&scene), "all its processes are dead");
}

#[test]
fn at_a_successor_command_keeps_its_lock() {
    let kinds = [
        ("atomic", "exclusive"),
        ("rw", "exclusive"),
        ("rw", "shared"),
        ("fair", "exclusive"),
        ("fair", "shared"),
    ];
    thread::scope(|scope| {
        for (kind, mode) in kinds {
            scope.spawn(move || succeed(kind, mode));
        }
    });
}

fn succeed(kind: &str, mode: &str) {
    let what = format!("{kind} {mode}");
    let scene = Scene::new(&format!("succeed-{kind}-{mode}"));
    let mut primary = Primary::start_exactly(&format!("first-{kind}-{mode}"), &[]);
    let proxy = Proxy::start(&primary.address, None);
    let options = ["lock", "--type", kind, "--fabric", "tcp", "--lease", "30"];
    let shared = [&options[..], &["--mode", mode]].concat();
    let mut first = scene.exec(&proxy.address.to_string(), &shared, "a", "end-a");
    eventually(&what, || scene.has("begin.a"));
    primary.child.kill().unwrap();
    primary.child.wait().unwrap();
    let successor = Primary::start_exactly(&format!("second-{kind}-{mode}"), &["--recover=1"]);
    proxy.lead_to(&successor.address);
    // The second `dlock exec` is refused until the recovery is over.
    let mut second = None;
    eventually(&format!("{what}: the successor serves"), || {
        let mut exec = scene.exec(&successor.address, &options, "b", "end-b");
        let said = || std::fs::read_to_string(scene.at("stderr.b")).unwrap_or_default();
        let waits = || scene.has("begin.b") || said().contains("waiting for the lock");
        eventually(&what, || waits() || exec.has_ended());
        let serves = waits();
        second = serves.then_some(exec);
        serves
    });
    let mut second = second.unwrap();
    assert!(!scene.has("begin.b"), "{what}: the successor knows of the hold");
    scene.touch("end-a");
    assert_eq!(first.code(&what), Some(0), "{what}");
    eventually(&format!("{what}: the other runs"), || scene.has("begin.b"));
    scene.touch("end-b");
    assert_eq!(second.code(&what), Some(0), "{what}");
    scene.assert_no_overlap(&what);
}
