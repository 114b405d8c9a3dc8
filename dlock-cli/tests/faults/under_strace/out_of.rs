// SPDX-License-Identifier: MIT OR Apache-2.0
//! The messages, and the later acts, of a primary that gets no more threads.

use std::fs;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use super::refusal::{Cell, Refusal, Resource};
use super::scene::{dlockd, eventually, serves, start, Scene, SERVE};
use super::{has_strace, Calls, HANG};

const NO_THREADS: Cell = Cell::NoMore(Resource::Threads);

#[test]
fn a_primary_that_gets_no_thread_at_its_start_says_so_in_one_line() {
    if !has_strace() {
        return;
    }
    let scene = Scene::new("no-thread");
    let before = Calls::new();
    let mut refusal = Refusal::new(Some(&NO_THREADS), &scene, &before);
    let mut command = Command::new(dlockd());
    let mut program = refusal.spawn_refused(command.args(SERVE), &scene.at("said"));
    assert_eq!(serves(&program), None);
    let ended = program.ended(HANG).expect("it ends");
    let words = program.said();
    assert_eq!(ended.code(), Some(1), "{words}");
    assert!(words.contains("thread") && words.contains("TasksMax"), "{words}");
    let lines = words.lines().filter(|line| line.contains("cannot start")).count();
    assert_eq!(lines, 1, "{words}");
}

#[test]
fn a_tls_primary_that_gets_no_threads_serves_on_and_looks_at_its_files_later() {
    if !has_strace() {
        return;
    }
    let scene = Scene::new("no-tls-thread");
    let file = |name: &str| format!("{}/{name}", scene.pki());
    let mut command = Command::new(dlockd());
    command.args(SERVE).args(scene.tls("node"));
    let (mut program, address) = start(&mut command, &scene.at("said"));
    address.unwrap_or_else(|| panic!("it serves: {}", program.said()));
    let before = Calls::new();
    let mut refusal = Refusal::new(Some(&NO_THREADS), &scene, &before);
    refusal.begin(&[program.child.id()]);
    eventually("a look is left out", || program.said().contains("it is tried again in"));
    assert_eq!(program.ended(Duration::ZERO), None, "{}", program.said());
    refusal.end();
    fs::copy(file("node.crt"), file("copy")).unwrap();
    fs::rename(file("copy"), file("node.crt")).unwrap();
    eventually("it looks again", || program.said().contains("were loaded again"));
    program.signal(Signal::TERM);
    assert_eq!(program.ended(HANG).expect("it ends").code(), Some(0), "{}", program.said());
}
