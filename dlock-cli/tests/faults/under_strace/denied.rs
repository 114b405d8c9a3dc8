// SPDX-License-Identifier: MIT OR Apache-2.0
//! Denies each call of `dlockd` from its start to its end, and while it serves; and each call of
//! `dlock exec` from its start to its end.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use super::refusal::{cells_of, Cell, Refusal};
use super::scene::{dlockd, serves, start, Program, Scene, SERVE};
use super::{
    calls_after, calls_of_each_thread, has_strace, judge, run, serves_and_ends, Calls, HANG,
};
use crate::common::DLOCK;

/// The first call of the program itself, after those of the loader.
const DLOCKD_BEGINS: &str = "RLIMIT_NOFILE";
const EXEC_BEGINS: &str = "PR_SET_CHILD_SUBREAPER";

/// strace writes its last lines after the program has ended.
const LAST_LINES: Duration = Duration::from_millis(500);

/// The calls of a `dlockd` from its start to its end.
pub fn calls_of_a_primary(scene: &Scene) -> Calls {
    whole_life(scene, None).expect("nothing is denied");
    thread::sleep(LAST_LINES);
    calls_after(&scene.at("trace"), DLOCKD_BEGINS)
}

/// The calls of a `dlock exec` that was traced from its start to its end.
pub fn calls_of_exec(scene: &Scene) -> Calls {
    thread::sleep(LAST_LINES);
    calls_after(&scene.at("trace"), EXEC_BEGINS)
}

fn whole_life(scene: &Scene, cell: Option<&Cell>) -> Result<(), String> {
    let before = Calls::new();
    let mut refusal = Refusal::new(cell, scene, &before);
    let mut dlockd = Command::new(dlockd());
    let mut program = refusal.spawn_refused(dlockd.args(SERVE), &scene.at("said"));
    let address = serves(&program);
    serves_and_ends(scene, &mut program, address, refusal.call())
}

#[test]
fn each_call_of_a_primary_from_its_start_to_its_end_is_denied_once() {
    if !has_strace() {
        return;
    }
    let cells = cells_of("dlockd, start to end", &calls_of_a_primary(&Scene::new("start")));
    run("dlockd, start to end", &cells, |scene, cell| whole_life(scene, Some(cell)));
}

#[test]
fn each_call_of_a_primary_that_serves_is_denied_once() {
    if !has_strace() {
        return;
    }
    let one = |scene: &Scene, cell: Option<&Cell>| {
        let (mut program, address) = start(Command::new(dlockd()).args(SERVE), &scene.at("said"));
        let before = Calls::new();
        let mut refusal = Refusal::new(cell, scene, &before);
        refusal.begin(&[program.child.id()]);
        let result = serves_and_ends(scene, &mut program, address, refusal.call());
        drop(program);
        refusal.ended();
        result
    };
    let scene = Scene::new("serve");
    one(&scene, None).expect("nothing is denied");
    let cells = cells_of("dlockd, serving to end", &calls_of_each_thread(&scene.at("trace")));
    run("dlockd, serving to end", &cells, |scene, cell| one(scene, Some(cell)));
}

#[test]
fn each_call_of_dlock_exec_is_denied_once() {
    if !has_strace() {
        return;
    }
    for fabric in ["tcp", "shm"] {
        let scene = Scene::new(&format!("exec-{fabric}"));
        let (_primary, address) = start(Command::new(dlockd()).args(SERVE), &scene.at("dlockd"));
        let address = address.expect("it serves");
        let mut exec = Command::new(DLOCK);
        exec.args(["exec", "--address", &address, "--fabric", fabric, "--lease", "4"]);
        let one = |scene: &Scene, cell: Option<&Cell>| {
            runs_alone(scene, cell, &Calls::new(), &exec, &format!("fault of {}", scene.file("")))
        };
        one(&scene, None).expect("nothing is denied");
        let name = format!("dlock exec, {fabric}");
        let cells = cells_of(&name, &calls_of_exec(&scene));
        run(&name, &cells, |scene, cell| one(scene, Some(cell)));
    }
}

/// Starts a `dlock exec` with something refused from its start; checks that COMMAND runs alone, or
/// not at all.
pub fn runs_alone(
    scene: &Scene,
    cell: Option<&Cell>,
    before: &Calls,
    exec: &Command,
    lock: &str,
) -> Result<(), String> {
    let mut dlock = Command::new(exec.get_program());
    dlock.args(exec.get_args()).args(["--wait", "8", lock, "--"]);
    dlock.args(["flock", "-n", "-E", "99"]).arg(scene.at("alone"));
    dlock.args(["sh", "-c", ": >\"$0\""]).arg(scene.at("ran"));
    let _ = fs::remove_file(scene.at("ran")); // the file may not exist
    let mut refusal = Refusal::new(cell, scene, before);
    let mut program: Program = refusal.spawn_refused(&dlock, &scene.at("said"));
    program.close_input();
    let ended = program.ended(HANG);
    let words = program.said();
    match refusal.has_stderr() {
        true => judge(refusal.call(), ended, &words),
        false => judge(refusal.call(), ended, "its words are lost"),
    }
    .map_err(|why| format!("{why}: {words}"))?;
    match ended.and_then(|status| status.code()) {
        Some(0) if !scene.at("ran").exists() => Err("0, and COMMAND did not run".into()),
        Some(99) => Err("COMMAND ran beside another".into()),
        _ => Ok(()),
    }
}
