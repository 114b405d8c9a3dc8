// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlock exec` and a client in C: calls are refused during one phase of the client. Afterwards the
//! client gets its lock, still has it, or has said why not; and the primary gives the lock to other
//! clients.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::denied::{calls_of_exec, runs_alone};
use super::phases::{holder, holds, Pair};
use super::refusal::{cells_of, cells_of_resources, Cell, Refusal};
use super::scene::{build, dlockd, start, Program, Scene, SERVE};
use super::{
    calls_of_each_thread, has_strace, is_of_a_library, is_told, judge, run, tell, visit,
    visit_is_sound, Calls, HANG,
};
use crate::common::DLOCK;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Start,
    Serving,
    Handshake,
    Failover,
    Exit,
}

/// The limit for a step, which may wait half a minute for a primary that recovers.
const STEP: Duration = Duration::from_secs(90);

/// Checks that another client gets the lock, at the latest when the lease is over.
fn others_get_it(scene: &Scene, address: &str, tls: &[String]) -> Result<(), String> {
    let mut options = vec!["--wait", "25", "--fabric", "tcp"];
    options.extend(tls.iter().map(String::as_str));
    match visit(scene, address, &options)? {
        0 => Ok(()),
        code => {
            let visitor = fs::read_to_string(scene.at("visit")).unwrap_or_default();
            Err(format!("the lock is lost: {code}: {visitor}"))
        }
    }
}

/// Checks that the program ends properly, and has not held the lock beside another client.
fn is_sound_at_its_end(program: &mut Program, refusal: &Refusal<'_>) -> Result<(), String> {
    program.close_input();
    let ended = program.ended(HANG);
    let said = program.said();
    let words = if refusal.has_stderr() { said.as_str() } else { "its words are lost" };
    judge(refusal.call(), ended, words).map_err(|why| format!("{why}: {said}"))?;
    match ended.and_then(|status| status.code()) {
        // 99 is the exit code of `flock` if the file is locked
        Some(99) => Err("it held the lock beside another client".into()),
        _ => Ok(()),
    }
}

/// The primaries of one cell.
enum Primaries {
    One { _primary: Program, address: String },
    Two(Box<(Pair, Program)>),
}

impl Primaries {
    fn new(scene: &Scene, phase: Phase) -> Self {
        if phase == Phase::Failover {
            let pair = Pair::new(scene);
            let second = pair.stand_by(scene);
            return Self::Two(Box::new((pair, second)));
        }
        let mut dlockd = Command::new(dlockd());
        dlockd.args(SERVE);
        if phase == Phase::Handshake {
            dlockd.args(scene.tls("node"));
        }
        let (program, address) = start(&mut dlockd, &scene.at("dlockd"));
        let address = address.unwrap_or_else(|| panic!("it serves: {}", program.said()));
        Self::One { _primary: program, address }
    }

    /// The addresses of all primaries.
    fn addresses(&self) -> String {
        match self {
            Self::One { address, .. } => address.clone(),
            Self::Two(of) => of.0.both(),
        }
    }

    fn first(&self) -> &str {
        match self {
            Self::One { address, .. } => address,
            Self::Two(of) => &of.0.first_address,
        }
    }

    /// The address of the primary that serves at the end.
    fn last(&self) -> &str {
        match self {
            Self::One { address, .. } => address,
            Self::Two(of) => &of.0.second_address,
        }
    }

    /// Kills the first primary, and waits until the second one serves.
    fn fail_over(&self) {
        let Self::Two(of) = self else { unreachable!("of a failover") };
        let (pair, second) = &**of;
        pair.first.signal(Signal::KILL);
        let address = super::scene::serves(second);
        assert_eq!(address.as_ref(), Some(&pair.second_address), "{}", second.said());
    }
}

// ---- dlock exec ---------------------------------------------------------------------------------

/// The processes of a `dlock exec`, except those of COMMAND.
fn of_exec(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let mut all = vec![pid];
    for child in children.unwrap_or_default().split_whitespace() {
        let is_dlock = fs::read_link(format!("/proc/{child}/exe"))
            .is_ok_and(|exe| exe.file_name() == Path::new(DLOCK).file_name());
        if is_dlock {
            all.extend(of_exec(child.parse().expect("a process id")));
        }
    }
    all
}

fn exec(scene: &Scene, phase: Phase, cell: Option<&Cell>, before: &Calls) -> Result<(), String> {
    let primaries = Primaries::new(scene, phase);
    let tls = if phase == Phase::Handshake { scene.tls("app") } else { Vec::new() };
    if matches!(phase, Phase::Start | Phase::Handshake) {
        let mut exec = Command::new(DLOCK);
        exec.args(["exec", "--address", primaries.first(), "--lease", "4"]).args(&tls);
        runs_alone(scene, cell, before, &exec, "fault")?;
        return others_get_it(scene, primaries.last(), &tls);
    }
    let mut refusal = Refusal::new(cell, scene, before);
    let mut program = refusal.spawn(&holder(scene, &primaries.addresses()), &scene.at("said"));
    holds(&program);
    refusal.begin(&of_exec(program.child.id()));
    if phase == Phase::Failover {
        primaries.fail_over();
        let code = visit_is_sound(scene, primaries.last(), &["--wait", "1", "--fabric", "tcp"])
            .map_err(|why| format!("{why}: {}", program.said()))?;
        // The first client has released the lock, after it stopped COMMAND, and must end.
        if code == 0 && program.ended(HANG).is_none() {
            return Err(format!("another one had the lock: {}", program.said()));
        }
        refusal.end();
    }
    is_sound_at_its_end(&mut program, &refusal)?;
    refusal.ended();
    others_get_it(scene, primaries.last(), &tls)
}

fn exec_in(phase: Phase) {
    if !has_strace() {
        return;
    }
    let name = format!("dlock exec, {phase:?}").to_lowercase();
    let scene = Scene::new(&name.replace(", ", "-"));
    let mut cells = cells_of_resources(phase as usize);
    exec(&scene, phase, None, &Calls::new()).expect("nothing is refused");
    let is_alone = matches!(phase, Phase::Start | Phase::Handshake);
    let calls = match is_alone {
        true => calls_of_exec(&scene),
        false => calls_of_each_thread(&scene.at("trace")),
    };
    if phase != Phase::Start {
        cells.extend(cells_of(&name, &calls)); // the calls of a start are denied in denied.rs
    }
    let before = if is_alone { calls } else { Calls::new() };
    run(&name, &cells, |scene, cell| exec(scene, phase, Some(cell), &before));
}

#[test]
fn dlock_exec_that_starts_is_refused_things() {
    exec_in(Phase::Start);
}

#[test]
fn dlock_exec_in_a_handshake_is_refused_things() {
    exec_in(Phase::Handshake);
}

#[test]
fn dlock_exec_in_a_failover_is_refused_things() {
    exec_in(Phase::Failover);
}

#[test]
fn dlock_exec_that_ends_is_refused_things() {
    exec_in(Phase::Exit);
}

// ---- a client in C ------------------------------------------------------------------------------

/// The C library: the one installed below `DLOCK_PREFIX`, otherwise one built by cargo.
fn library() -> PathBuf {
    if let Some(prefix) = std::env::var_os("DLOCK_PREFIX") {
        return Path::new(&prefix).join("lib64/libdlockc.so");
    }
    build(&["-p", "dlock-ffi-client"]);
    Path::new(DLOCK).with_file_name("libdlockc.so")
}

/// The program of client.c, compiled into this folder; `None`: there is no C compiler.
fn compiled(scene: &Scene) -> Option<PathBuf> {
    if !Command::new("cc").arg("--version").output().is_ok_and(|of| of.status.success()) {
        tell("skipped: there is no C compiler");
        return None;
    }
    let (root, library) = (Path::new(env!("CARGO_MANIFEST_DIR")), library());
    for name in ["libdlockc.so", "libdlockc.so.0"] {
        std::os::unix::fs::symlink(&library, scene.at(name)).unwrap();
    }
    let program = scene.at("client");
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-I"]).arg(root.join("../include"));
    cc.arg(root.join("tests/faults/client.c")).arg("-o").arg(&program);
    cc.arg("-L").arg(scene.at("")).arg("-ldlockc");
    cc.arg(format!("-Wl,-rpath,{}", scene.file("")));
    let made = cc.stdin(Stdio::null()).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Some(program)
}

/// A client in C that takes steps on command.
struct Steps(Program);

impl Steps {
    /// Has the client take a step; returns its status, or `None` if the program has ended.
    fn step(&mut self, name: &str) -> Result<Option<i32>, String> {
        self.0.write(name);
        let Some(line) = self.0.line(STEP) else {
            return match self.0.ended(Duration::from_secs(1)) {
                Some(_) => Ok(None),
                None => Err(format!("{name} hangs: {}", self.0.said())),
            };
        };
        let status = line.strip_prefix(name).and_then(|rest| rest.trim().parse().ok());
        status.map(Some).ok_or(format!("{name}: {line}"))
    }

    /// Has the client take these steps while a call is refused. A step that fails must name that
    /// call in its log. Returns whether the client has joined the primary.
    fn is_refused(&mut self, steps: &[&str], refusal: &Refusal<'_>) -> Result<bool, String> {
        let mut is_begun = true;
        for &step in steps {
            let status = self.step(step)?;
            is_begun &= step != "init" || status == Some(0);
            let has_failed = status.is_some_and(|status| status != 0) && step != "drop";
            if !has_failed || !refusal.has_stderr() {
                continue;
            }
            if !self.0.says(|said| is_told(refusal.call(), said)) {
                let said = self.0.said();
                return Err(format!(
                    "{step} is {status:?}, and what was refused is not told: {said}"
                ));
            }
        }
        Ok(is_begun)
    }

    /// Repeats a step until it succeeds; an error if it still fails after 25 s.
    fn succeeds(&mut self, name: &str) -> Result<(), String> {
        let until = Instant::now() + Duration::from_secs(25);
        loop {
            match self.step(name)? {
                Some(0) | None => return Ok(()), // the end of the program is judged later
                // at the end of the program, any status is right
                Some(_) if name == "end" => return Ok(()),
                Some(_) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Some(status) => {
                    let said = self.0.said();
                    return Err(format!("{name} is {status:#x} without a refusal: {said}"));
                }
            }
        }
    }
}

/// The steps before each phase, in it, and after it, when no call is refused any more.
fn steps_of(phase: Phase) -> [&'static [&'static str]; 3] {
    match phase {
        Phase::Start | Phase::Handshake => [&[], &["init"], &["take", "keep", "drop", "end"]],
        Phase::Serving => [&["init"], &["take", "keep", "drop"], &["take", "keep", "drop", "end"]],
        Phase::Failover => [&["init", "take"], &["keep"], &["keep", "drop", "end"]],
        Phase::Exit => [&["init", "take"], &["drop", "end"], &[]],
    }
}

/// The command line of the client in this phase.
fn command_of(
    scene: &Scene,
    (phase, fabric): (Phase, &str),
    program: &Path,
    primaries: &Primaries,
) -> Command {
    let (ip, port) = primaries.first().rsplit_once(':').expect("an address");
    let mut command = Command::new(program);
    command.args([ip, port, &scene.file("alone")]);
    if phase == Phase::Handshake {
        command.arg(scene.pki());
    }
    command.env("DLOCK_FABRIC", fabric).env("DLOCK_PRIMARIES", primaries.addresses());
    command
}

fn c(
    scene: &Scene,
    (phase, fabric): (Phase, &str),
    cell: Option<&Cell>,
    program: &Path,
) -> Result<(), String> {
    let primaries = Primaries::new(scene, phase);
    let before = Calls::new();
    let mut refusal = Refusal::new(cell, scene, &before);
    let command = command_of(scene, (phase, fabric), program, &primaries);
    let mut client = Steps(refusal.spawn(&command, &scene.at("said")));
    let [prepared, refused, after] = steps_of(phase);
    for step in prepared {
        assert_eq!(client.step(step)?, Some(0), "{step}: {}", client.0.said());
    }
    refusal.begin(&[client.0.child.id()]);
    if phase == Phase::Failover {
        primaries.fail_over();
    }
    let is_begun = client.is_refused(refused, &refusal)?;
    refusal.end();
    if !is_begun {
        client.succeeds("init")?;
    }
    for step in after {
        let result = client.succeeds(step);
        // A thread of a foreign library has panicked, and the program goes on without that thread.
        if result.is_err() && is_of_a_library(refusal.call(), &client.0.said()) {
            return Ok(());
        }
        result?;
    }
    is_sound_at_its_end(&mut client.0, &refusal)?;
    let tls = if phase == Phase::Handshake { scene.tls("app") } else { Vec::new() };
    others_get_it(scene, primaries.last(), &tls)
}

fn c_in(phase: Phase, fabric: &str) {
    if !has_strace() {
        return;
    }
    let name = format!("C client over {fabric}, {phase:?}").to_lowercase();
    let scene = Scene::new(&name.replace([',', ' '], "-"));
    let Some(program) = compiled(&scene) else { return };
    c(&scene, (phase, fabric), None, &program).expect("nothing is refused");
    let mut cells = cells_of_resources(phase as usize + usize::from(fabric == "shm"));
    cells.extend(cells_of(&name, &calls_of_each_thread(&scene.at("trace"))));
    // The client's own check for another holder, which must work.
    cells.retain(|cell| cell.call() != "flock");
    run(&name, &cells, |scene, cell| c(scene, (phase, fabric), Some(cell), &program));
}

#[test]
fn a_c_client_that_starts_is_refused_things() {
    c_in(Phase::Start, "tcp");
    c_in(Phase::Start, "shm");
}

#[test]
fn a_c_client_at_work_is_refused_things() {
    c_in(Phase::Serving, "tcp");
    c_in(Phase::Serving, "shm");
}

#[test]
fn a_c_client_in_a_handshake_is_refused_things() {
    c_in(Phase::Handshake, "tcp");
}

#[test]
fn a_c_client_in_a_failover_is_refused_things() {
    c_in(Phase::Failover, "tcp");
    c_in(Phase::Failover, "shm");
}

#[test]
fn a_c_client_that_ends_is_refused_things() {
    c_in(Phase::Exit, "tcp");
    c_in(Phase::Exit, "shm");
}
