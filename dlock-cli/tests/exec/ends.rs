// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ends of a `dlock exec` that has not started its COMMAND.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Signal};
use serde_json::Value;

use super::common::{code, dlock, own_address, Primary};
use super::proxy::{Proxy, Stall};
use super::{chunks_until_start, eventually, Scene};

const ALL: Stall = Stall { chunk: 0, half: false, one_way: false };
/// A lease, in seconds, that is longer than any of these tests.
const LEASE: &str = "600";

/// The network stops at one of the last chunks before COMMAND would be started: the grant, the
/// heartbeat, the extension and their answers. If the keeper were killed at the end of the wait,
/// the lock would stay held until its lease ends. `dlock exec` ends before the keeper does.
#[test]
fn a_lock_that_was_granted_before_the_wait_has_ended_is_free_as_soon_as_the_keeper_is_answered() {
    const CHUNKS: usize = 6;
    const WAIT: &str = "2";
    let primary = Primary::start_exactly("under-way", &[]);
    let end_in_time = |kind: &str, chunk: usize| {
        let what = format!("{kind} {chunk}");
        let scene = Scene::new(&format!("under-way-{kind}-{chunk}"));
        let proxy = Proxy::start(&primary.address, Some(Stall { chunk, ..ALL }));
        let options = [&what, "--type", kind, "--fabric", "tcp", "--lease", LEASE, "--wait"];
        let once = [&options[..], &["0", "--", "true"]].concat();
        let options = [&options[..], &[WAIT]].concat();
        let mut late = scene.exec(&proxy.address.to_string(), &options, "b", "end-b");
        let code_of_late = late.code(&what);
        proxy.lift(); // the keeper was told to end, but has not ended
        scene.touch("end-b");
        let said = std::fs::read_to_string(scene.at("stderr.b")).unwrap();
        assert!(matches!(code_of_late, Some(69 | 75)), "{what}: {code_of_late:?} {said}");
        assert!(!scene.has("begin.b"), "{what}: COMMAND was not started");
        eventually(&format!("{what}: it is free"), || code(&primary.exec(&once)) == 0);
    };
    thread::scope(|scope| {
        for kind in ["atomic", "rw", "fair"] {
            let start = chunks_until_start(&primary.address, kind);
            for chunk in start - CHUNKS..start {
                let end_in_time = &end_in_time;
                scope.spawn(move || end_in_time(kind, chunk));
            }
        }
    });
}

/// `dlock exec` is stopped before it hears that the lock is held, and a successor of the primary
/// has no room for the lock.
#[test]
fn an_exec_that_has_not_started_command_ends_as_soon_as_its_lock_is_refused() {
    /// To stop a COMMAND would take 5.5 s, and a wait for its end 5 s more.
    const END_MAX: Duration = Duration::from_secs(8);
    let scene = Scene::new("not-started");
    let (address, state) = (own_address().to_string(), scene.at("state"));
    let start = |name: &str, port: &str, options: &[&str]| {
        let place = ["--listen", &address, "--port", port, "--state-file", state.to_str().unwrap()];
        Primary::start_exactly(name, &[&place[..], options].concat())
    };
    let mut first = start("not-started-1", "0", &[]);
    let port = first.address.rsplit(':').next().unwrap().to_string();
    let options = |name| [name, "--fabric", "tcp", "--lease", LEASE, "-v"];
    let mut other = scene.exec(&first.address, &options("other"), "a", "end-a");
    eventually("the other runs", || scene.has("begin.a"));
    let mut holder = scene.exec(&first.address, &options("lock"), "b", "end-b");
    eventually("it runs", || scene.has("begin.b"));
    let proxy = Proxy::start(&first.address, None);
    let mut exec = scene.exec(&proxy.address.to_string(), &options("lock"), "c", "end-c");
    let said = || std::fs::read_to_string(scene.at("stderr.c")).unwrap_or_default();
    eventually("it waits", || said().contains("waiting for the lock"));
    exec.signal(Signal::STOP);
    scene.touch("end-b");
    assert_eq!(holder.code("before"), Some(0));
    eventually("its keeper has the lock", || said().contains("the lock is held"));
    let keeper = exec.keeper();
    kill_process(keeper, Signal::STOP).unwrap();
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    let successor = start("not-started-2", &port, &["--locks-max", "1"]);
    let waits_for_one = || {
        let output = dlock(&["recover", "--json", "--socket", &successor.socket()]);
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        answer["recovery"]["missing"].as_array().is_some_and(|missing| missing.len() == 1)
    };
    eventually("the other has claimed its lock", waits_for_one);
    kill_process(keeper, Signal::CONT).unwrap();
    eventually("it is refused", || said().contains("has refused the lock"));
    let began = Instant::now();
    exec.signal(Signal::CONT);
    assert_eq!(exec.code("when it goes on"), Some(75), "{}", said());
    let took = began.elapsed();
    assert!(took < END_MAX, "it took {took:?}");
    assert!(!scene.has("begin.c"), "COMMAND was not started");
    scene.touch("end-a");
    assert_eq!(other.code("at the successor"), Some(0));
}

/// A primary is killed, and the next one on its address has an empty state file.
#[test]
fn a_command_ends_as_soon_as_no_primary_knows_of_its_lock() {
    let scene = Scene::new("unknown");
    let address = own_address().to_string();
    let start = |name: &str, port: &str| {
        let state = scene.at(name);
        let place = ["--listen", &address, "--port", port, "--state-file", state.to_str().unwrap()];
        Primary::start_exactly(name, &place)
    };
    for fabric in ["shm", "tcp"] {
        let mut first = start(&format!("unknown-1-{fabric}"), "0");
        let port = first.address.rsplit(':').next().unwrap().to_string();
        let options = ["lock", "--fabric", fabric, "--lease", LEASE];
        let mut exec = scene.exec(&first.address, &options, fabric, "never");
        eventually("it runs", || scene.has(&format!("begin.{fabric}")));
        first.child.kill().unwrap();
        first.child.wait().unwrap();
        let second = start(&format!("unknown-2-{fabric}"), &port);
        assert_eq!(exec.code(fabric), Some(76), "{fabric}: long before its lease");
        let once = [&options[..], &["--wait", "5", "--", "true"]].concat();
        assert_eq!(code(&second.exec(&once)), 0, "{fabric}: it is free");
    }
}
