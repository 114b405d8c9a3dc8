// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each system call of `dlockd` and of `dlock exec` is denied once, by strace, which must be
//! installed. Nothing aborts, hangs, or says success without the lock.
//!
//! ```text
//!   program      when                             what is denied, with each of ERRORS
//!   dlockd       start, and until its end         the Nth call of its first thread
//!   dlockd       serving, attached to it          the Nth call of each thread
//!   dlock exec   start to end, with its keeper    the Nth call of each process's first thread
//! ```
//! `make test` takes a sample that moves through the table; with `DLOCK_SOAK` all of it is run, and
//! `DLOCK_FAULTS=TEXT` runs the cases whose names contain it.

#[path = "../common/mod.rs"]
mod common;
mod out_of;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::DLOCK;
use rustix::process::{kill_process, Pid, Signal};

const ERRORS: [&str; 4] = ["EPERM", "ENOSYS", "EMFILE", "ENOMEM"];
/// The number of the signal of `abort`.
const SIGABRT: i32 = 6;
/// Of one call no more than so many.
const TIMES_MAX: usize = 6;
/// Cases of each part that `make test` runs.
const SAMPLE: usize = 24;
/// What takes longer hangs. A client waits 10 s for an answer, a keeper is killed after 5 s, and a
/// machine may be busy.
const HANG: Duration = Duration::from_secs(60);
/// A primary ends within a second; a signal whose delivery was denied is sent again.
const SIGNAL_LOST: Duration = Duration::from_secs(8);
/// Not of the program (it does not exist yet, or ends), and what cannot fail.
const NOT_DENIED: [&str; 11] = [
    "execve",
    "exit",
    "exit_group",
    "rt_sigreturn",
    "restart_syscall",
    "getpid",
    "getppid",
    "gettid",
    "getuid",
    "geteuid",
    "getegid",
];

/// The kernel does not deny these so. Where one is denied all the same (by a filter) the process
/// ends at once, and its clients are told by the ends of their connections: the C library
/// (`futex`), the runtime that waits for sockets (`epoll_wait`, `write` to wake it), the seeds of
/// tables (`getrandom`) and the end of a folder's list (`close`) abort.
const ENDS_AT_ONCE: [&str; 5] = ["futex", "epoll_wait", "write", "getrandom", "close"];

fn dlockd() -> PathBuf {
    let path = Path::new(DLOCK).with_file_name("dlockd");
    if !path.exists() {
        // Not built by the tests of this crate alone.
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let build = ["build", "--locked", "--offline", "-p", "dlock-server", "--bin", "dlockd"];
        assert!(Command::new(cargo).args(build).status().unwrap().success());
    }
    path
}

fn has_strace() -> bool {
    let traced = Command::new("strace").args(["-o", "/dev/null", "true"]).output();
    let has = traced.is_ok_and(|output| output.status.success());
    if !has {
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "skipped: strace is not installed, or may not trace");
    }
    has
}

struct Scene(PathBuf);

impl Scene {
    fn new(name: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("dlock-faults-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // a left-over harms no other test
    }
}

/// A process that does not outlive its test.
struct Program(Child);

impl Program {
    /// Its end; `None`: it hangs.
    fn ended(&mut self, within: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + within;
        loop {
            match self.0.try_wait().unwrap() {
                Some(status) => return Some(status),
                None if Instant::now() >= until => return None,
                None => thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.0), signal); // it may have ended
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended
        let _ = self.0.wait();
    }
}

/// What is denied: the Nth call, and how.
#[derive(Clone, Debug)]
struct Denied {
    call: String,
    number: usize,
    error: &'static str,
}

impl Denied {
    fn options(&self) -> [String; 4] {
        let Self { call, number, error } = self;
        let trace = format!("trace={call}");
        let inject = format!("inject={call}:error={error}:when={number}");
        ["-e".into(), trace, "-e".into(), inject]
    }
}

/// strace that leaves the program the child of its parent, and writes what it sees into `log`.
fn strace(log: &Path, options: &[String]) -> Command {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-o"]).arg(log).args(options);
    strace
}

/// The calls of the first thread after the one that contains `mark`, and how many were before it.
fn calls(log: &Path, mark: &str) -> BTreeMap<String, (usize, usize)> {
    let text = fs::read_to_string(log).unwrap();
    let mut calls: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let (mut first, mut is_begun) = (None, false);
    for line in text.lines() {
        let Some((pid, rest)) = line.split_once(' ') else { continue };
        let (rest, Some((name, _))) = (rest.trim_start(), rest.trim_start().split_once('(')) else {
            continue;
        };
        if name.contains(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            continue; // resumed, a signal, an end
        }
        is_begun |= rest.contains(mark);
        if *first.get_or_insert(pid) == pid && !NOT_DENIED.contains(&name) {
            let (before, after) = calls.entry(name.into()).or_default();
            *(if is_begun { after } else { before }) += 1;
        }
    }
    assert!(is_begun, "{mark} is not there:\n{text}");
    calls
}

/// All cases of these calls, or those that are chosen.
fn table(calls: &BTreeMap<String, (usize, usize)>) -> Vec<Denied> {
    let mut all = Vec::new();
    for (call, &(before, after)) in calls {
        for number in before + 1..=before + after.min(TIMES_MAX) {
            all.extend(ERRORS.map(|error| Denied { call: call.clone(), number, error }));
        }
    }
    if let Ok(wanted) = std::env::var("DLOCK_FAULTS") {
        all.retain(|denied| format!("{denied:?}").contains(&wanted));
    } else if std::env::var_os("DLOCK_SOAK").is_none() {
        let step = (all.len() / SAMPLE).max(1) | 1; // odd: all errors come
        all = all.into_iter().step_by(step).collect();
    }
    all
}

/// A started dlockd: where it listens, unless it has ended or hangs.
fn start(command: &mut Command, log: &Path) -> (Program, Option<String>) {
    let stderr = fs::File::create(log).unwrap();
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr).spawn();
    let mut program = Program(child.unwrap());
    let (said, heard) = mpsc::channel();
    let stdout = program.0.stdout.take().unwrap();
    thread::spawn(move || {
        let mut line = String::new();
        let _ = BufReader::new(stdout).read_line(&mut line); // none: seen below
        let _ = said.send(line); // the test may have ended
    });
    let line = heard.recv_timeout(HANG).unwrap_or_default();
    let address = line.strip_prefix("dlockd ready: listening on ");
    (program, address.and_then(|rest| rest.split(',').next()).map(Into::into))
}

const SERVE: [&str; 3] = ["--port=0", "--state-file=none", "--log-level=info"];

/// `dlock exec` of a command that must run alone; its exit code.
fn visit(scene: &Scene, address: &str, fabric: &str) -> Result<i32, String> {
    let mut dlock = Command::new(DLOCK);
    dlock.args(["exec", "--address", address, "--fabric", fabric, "--lease", "4", "--wait", "2"]);
    dlock.args(["fault", "--", "flock", "-n", "-E", "99"]).arg(scene.at("alone")).arg("true");
    let stderr = fs::File::create(scene.at("visit")).unwrap();
    let mut program = Program(dlock.stdin(Stdio::null()).stderr(stderr).spawn().unwrap());
    let ended = program.ended(HANG).ok_or("dlock exec hangs")?;
    ended.code().ok_or(format!("dlock exec: {ended}"))
}

/// What is wrong with an end of `program`; it must have said why, unless its code is 0.
fn judge(call: &str, ended: Option<ExitStatus>, said: &str) -> Result<(), String> {
    let Some(status) = ended else { return Err("it hangs".into()) };
    match (status.code(), status.signal()) {
        (None, Some(SIGABRT)) if ENDS_AT_ONCE.contains(&call) => Ok(()),
        _ if said.contains("panicked") => Err("a panic".into()),
        (Some(0), _) => Ok(()),
        (Some(_), _) if said.trim().is_empty() => Err(format!("{status} without a word")),
        (Some(_), _) => Ok(()),
        (None, signal) => Err(format!("it is killed by signal {signal:?}")),
    }
}

/// Runs all cases, and names those that failed with what was said.
fn run(part: &str, cases: &[Denied], case: impl Fn(&Denied) -> Result<(), String>) {
    let failed: Vec<String> = cases
        .iter()
        .filter_map(|denied| {
            let Denied { call, number, error } = denied;
            let why = case(denied).err()?;
            Some(format!("{call} {number} {error}: {why}"))
        })
        .collect();
    let (count, bad) = (cases.len(), failed.len());
    assert!(failed.is_empty(), "{part}: {bad} of {count} cases:\n{}", failed.join("\n"));
}

/// A dlockd that is there lets clients in, or says why not, and ends when it is told to.
fn serves_and_ends(
    scene: &Scene,
    program: &mut Program,
    address: Option<String>,
    (call, said): (&str, &Path),
) -> Result<(), String> {
    let read = || fs::read_to_string(said).unwrap_or_default();
    if let Some(address) = address {
        for fabric in ["tcp", "shm"] {
            let code = visit(scene, &address, fabric)?;
            if ![0, 69, 75, 76].contains(&code) {
                let visitor = fs::read_to_string(scene.at("visit")).unwrap_or_default();
                return Err(format!("{fabric}: dlock exec ends with {code}: {visitor}"));
            }
        }
        program.signal(Signal::TERM);
    } else if program.ended(Duration::ZERO).is_none() {
        // A start that waits for something ends when it is told to.
        program.signal(Signal::TERM);
    }
    let ended = program.ended(SIGNAL_LOST).or_else(|| {
        program.signal(Signal::TERM); // the first one may have been denied
        program.ended(HANG)
    });
    judge(call, ended, &read()).map_err(|why| format!("{why}: {}", read()))
}

#[test]
fn each_call_of_a_primary_from_its_start_to_its_end_is_denied_once() {
    if !has_strace() {
        return;
    }
    let scene = Scene::new("start");
    let (trace, said) = (scene.at("trace"), scene.at("said"));
    let one = |call: &str, options: &[String]| {
        let mut strace = strace(&trace, options);
        let (mut program, address) = start(strace.arg("-D").arg(dlockd()).args(SERVE), &said);
        serves_and_ends(&scene, &mut program, address, (call, &said))
    };
    one("", &[]).expect("nothing is denied");
    thread::sleep(Duration::from_millis(500)); // strace writes its last lines
    let cases = table(&calls(&trace, "RLIMIT_NOFILE"));
    run("dlockd, start", &cases, |denied| one(&denied.call, &denied.options()));
}

#[test]
fn each_call_of_a_primary_that_serves_is_denied_once() {
    if !has_strace() {
        return;
    }
    let scene = Scene::new("serve");
    let (trace, said) = (scene.at("trace"), scene.at("said"));
    let one = |call: &str, options: &[String]| {
        let (mut program, address) = start(Command::new(dlockd()).args(SERVE), &said);
        let pid = program.0.id();
        let mut tracer = strace(&trace, options);
        let mut tracer = Program(tracer.args(["-p", &pid.to_string()]).spawn().unwrap());
        let is_traced = |task: fs::DirEntry| {
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
        };
        let until = Instant::now() + HANG;
        while !fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().all(is_traced) {
            let tracer = tracer.0.try_wait();
            assert!(Instant::now() < until, "strace attaches: {tracer:?}");
            thread::sleep(Duration::from_millis(5));
        }
        let result = serves_and_ends(&scene, &mut program, address, (call, &said));
        drop(program);
        let _ = tracer.ended(HANG); // with the program
        result
    };
    one("", &[]).expect("nothing is denied");
    let text = fs::read_to_string(&trace).unwrap();
    let mut counts: BTreeMap<String, BTreeMap<&str, usize>> = BTreeMap::new();
    for line in text.lines() {
        let Some((pid, rest)) = line.split_once(' ') else { continue };
        let Some((name, _)) = rest.trim_start().split_once('(') else { continue };
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if is_name && !NOT_DENIED.contains(&name) {
            *counts.entry(name.into()).or_default().entry(pid).or_default() += 1;
        }
    }
    let most = |of: BTreeMap<&str, usize>| (0, of.into_values().max().unwrap_or_default());
    let cases = table(&counts.into_iter().map(|(name, of)| (name, most(of))).collect());
    run("dlockd, serving", &cases, |denied| one(&denied.call, &denied.options()));
}

#[test]
fn each_call_of_dlock_exec_is_denied_once() {
    if !has_strace() {
        return;
    }
    let scene = Scene::new("exec");
    let (trace, said) = (scene.at("trace"), scene.at("said"));
    for fabric in ["tcp", "shm"] {
        let (_primary, address) = start(Command::new(dlockd()).args(SERVE), &scene.at("dlockd"));
        let address = address.expect("it serves");
        let one = |call: &str, options: &[String]| {
            let mut dlock = strace(&trace, options);
            dlock.args(["-D", DLOCK, "exec", "--address", &address, "--fabric", fabric]);
            dlock.args(["--lease", "4", "--wait", "8", "fault", "--"]);
            dlock.args(["flock", "-n", "-E", "99"]).arg(scene.at("alone"));
            dlock.args(["sh", "-c", ": >\"$0\""]).arg(scene.at("ran"));
            dlock.stdin(Stdio::null()).stderr(fs::File::create(&said).unwrap());
            let _ = fs::remove_file(scene.at("ran")); // it may not be there
            let mut program = Program(dlock.spawn().unwrap());
            let ended = program.ended(HANG);
            let words = fs::read_to_string(&said).unwrap_or_default();
            judge(call, ended, &words).map_err(|why| format!("{why}: {words}"))?;
            match ended.and_then(|status| status.code()) {
                Some(0) if !scene.at("ran").exists() => Err("0, and COMMAND did not run".into()),
                Some(99) => Err("COMMAND ran beside another".into()),
                _ => Ok(()),
            }
        };
        one("", &[]).expect("nothing is denied");
        thread::sleep(Duration::from_millis(500)); // strace writes its last lines
        let cases = table(&calls(&trace, "PR_SET_CHILD_SUBREAPER"));
        run(&format!("dlock exec, {fabric}"), &cases, |denied| {
            one(&denied.call, &denied.options())
        });
    }
}
