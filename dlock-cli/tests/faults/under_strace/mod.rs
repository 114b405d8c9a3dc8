// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs, the faults, and the run of one part of the table.

mod clients;
mod denied;
mod out_of;
mod phases;
mod refusal;
mod scene;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use crate::common::DLOCK;
use refusal::Cell;
use scene::{Program, Scene};

const ERRORS: [&str; 4] = ["EPERM", "ENOSYS", "EMFILE", "ENOMEM"];
/// The number of the signal of `abort`.
const SIGABRT: i32 = 6;
/// The number of cells of one part that the long run has under way at a time.
const WORKERS: usize = 2;
/// The limit after which a program hangs. A client waits 10 s for an answer, a keeper is killed
/// after 5 s, and a machine may be busy.
const HANG: Duration = Duration::from_secs(60);
/// The time after which a signal is sent again, because its delivery was denied; a primary ends
/// within a second.
const SIGNAL_LOST: Duration = Duration::from_secs(8);
/// The calls that are not denied: those before the program exists and at its end, those that cannot
/// fail, and four whose errors the C library does not handle. It takes the error of `brk` for an
/// address. It aborts on an error of `futex` outside of a wait, and in a new thread that cannot
/// register its `rseq`. It ignores the error of `rt_sigprocmask`, by which a thread that has
/// started another lets signals through again.
const NOT_DENIED: [&str; 15] = [
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
    "brk",
    "futex",
    "rseq",
    "rt_sigprocmask",
];

/// The calls on whose errors a foreign library panics, and the words of the panic. The process ends
/// at once, and its clients notice the end of their connections. The kernel itself never returns
/// these errors, except for maps: a thread that gets a stack, but then no map for its signals, ends
/// the process.
const ENDS_AT_ONCE: [(&str, &str); 8] = [
    ("epoll_wait", "unexpected error when polling the I/O driver"), // tokio
    ("write", "failed to wake I/O driver"),                         // tokio, an eventfd
    ("recvfrom", "Bad read on self-pipe"),                          // tokio, signals
    ("getrandom", "failed to generate random data"),                // std: the seeds of hash tables
    ("close", "unexpected error during closedir"),                  // std
    ("mmap", "failed to allocate an alternative stack"),            // std, a new thread
    ("mprotect", "failed to set up alternative stack guard page"),  // std, a new thread
    ("sigaltstack", "failed to set alternative stack"),             // std, a new thread
];

/// Words that name a call, beside its own name: its name in the C library or a manual page, and its
/// purpose. A new thread, or process, needs a stack.
const NAMES: [(&str, &[&str]); 12] = [
    ("clone3", &["fork", "thread", "threads", "processes"]),
    ("epoll_create1", &["epoll"]),
    ("epoll_ctl", &["epoll"]),
    ("eventfd2", &["eventfd"]),
    ("getrandom", &["random"]),
    ("mmap", &["fork", "thread", "threads", "processes"]),
    ("mprotect", &["fork", "thread", "threads", "processes"]),
    ("openat", &["open", "read"]),
    ("readlink", &["path"]), // the system reads each part of a path
    ("rt_sigaction", &["sigaction"]),
    ("statx", &["read"]), // a read asks for the file's length
    ("wait4", &["waitpid"]),
];

/// Whether this is the long run, which fails without strace.
fn is_long() -> bool {
    std::env::var_os("DLOCK_SOAK").is_some()
}

fn has_strace() -> bool {
    let traced = Command::new("strace").args(["-o", "/dev/null", "true"]).output();
    let has = traced.is_ok_and(|output| output.status.success());
    if !has {
        assert!(!is_long(), "strace is not installed, or may not trace");
        tell("skipped: strace is not installed, or may not trace");
    }
    has
}

/// Prints a line for the log of the run; the test harness does not hold it back.
fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}"); // the reader of the log may be gone
}

/// Judges the end of a program: it must have said why, unless its code is 0.
fn judge(call: &str, ended: Option<ExitStatus>, said: &str) -> Result<(), String> {
    let Some(status) = ended else { return Err("it hangs".into()) };
    if is_of_a_library(call, said) {
        return Ok(());
    }
    if call == "write" && status.signal() == Some(SIGABRT) {
        return Ok(()); // the message was denied, too
    }
    match (status.code(), status.signal()) {
        _ if said.contains("panicked") => Err("a panic".into()),
        (Some(0), _) => Ok(()),
        (Some(_), _) if said.trim().is_empty() => Err(format!("{status} without a word")),
        (Some(_), _) if !is_told(call, said) => Err(format!("{status}, and no line names {call}")),
        (Some(_), _) => Ok(()),
        (None, signal) => Err(format!("it is killed by signal {signal:?}")),
    }
}

/// Whether a line names the refused call; without a call, whether the program has said anything.
fn is_told(call: &str, said: &str) -> bool {
    if call.is_empty() {
        return !said.is_empty();
    }
    let others = NAMES.iter().find(|names| names.0 == call).map_or(&[][..], |names| names.1);
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut words = said.split(|c| !is_word(c));
    words.any(|word| word == call || others.contains(&word))
}

/// Whether a foreign library has panicked in one of the places known for that.
fn is_of_a_library(call: &str, said: &str) -> bool {
    ENDS_AT_ONCE.iter().any(|&(of, words)| of == call && said.contains(words))
}

/// Runs all cells, those of each worker in a scene of its own, and reports those that failed.
fn run(part: &str, cells: &[Cell], case: impl Fn(&Scene, &Cell) -> Result<(), String> + Sync) {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let worker = |number: usize| {
        let scene = Scene::new(&format!("{}-{number}", part.replace([' ', ','], "-")));
        while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
            if std::env::var_os("DLOCK_PROGRESS").is_some() {
                tell(&format!("progress: {part}: {cell}"));
            }
            if let Err(why) = case(&scene, cell) {
                tell(&format!("faults: {part}: {cell}: {}", why.trim_end()));
                failed.lock().unwrap().push(format!("{cell}: {}", why.trim_end()));
            }
        }
    };
    let workers = if is_long() { WORKERS } else { 1 };
    thread::scope(|scope| {
        (0..workers).for_each(|number| drop(scope.spawn(move || worker(number))));
    });
    let failed = failed.into_inner().unwrap();
    let (count, bad) = (cells.len(), failed.len());
    tell(&format!("faults: {part}: {count} cells, {bad} failed"));
    assert!(failed.is_empty(), "{part}: {bad} of {count} cells:\n{}", failed.join("\n"));
}

/// For each call of one part: how often it was made before the part, and in it.
type Calls = BTreeMap<String, (usize, usize)>;

/// The calls of a trace, a line each: the thread, the call, and the line without the thread.
fn lines(text: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    text.lines().filter_map(|line| {
        let (pid, rest) = line.split_once(' ')?;
        let rest = rest.trim_start();
        let (name, _) = rest.split_once('(')?;
        // other lines tell of a resumed call, a signal, or an end
        let is_call = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        is_call.then_some((pid, name, rest))
    })
}

/// The calls of the first thread after its call that contains `mark`, with the number of calls of
/// the same kind before it.
fn calls_after(log: &Path, mark: &str) -> Calls {
    let text = fs::read_to_string(log).unwrap();
    let mut calls = Calls::new();
    let (mut first, mut is_begun) = (None, false);
    for (pid, name, rest) in lines(&text) {
        is_begun |= rest.contains(mark);
        if *first.get_or_insert(pid) == pid && !NOT_DENIED.contains(&name) {
            let (before, after) = calls.entry(name.into()).or_default();
            *(if is_begun { after } else { before }) += 1;
        }
    }
    assert!(is_begun, "{mark} is not there:\n{text}");
    calls
}

/// The calls of a program that was traced for one part: for each, the most that one thread made.
fn calls_of_each_thread(log: &Path) -> Calls {
    let text = fs::read_to_string(log).unwrap();
    let mut counts: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    for (pid, name, _) in lines(&text).filter(|(_, name, _)| !NOT_DENIED.contains(name)) {
        *counts.entry(name).or_default().entry(pid).or_default() += 1;
    }
    let most = |of: BTreeMap<&str, usize>| (0, of.into_values().max().unwrap_or_default());
    counts.into_iter().map(|(name, of)| (name.into(), most(of))).collect()
}

/// Runs a `dlock exec` of a command that must run alone; returns its exit code.
fn visit(scene: &Scene, address: &str, options: &[&str]) -> Result<i32, String> {
    let mut dlock = Command::new(DLOCK);
    dlock.args(["exec", "--address", address, "--lease", "4"]).args(options);
    dlock.args(["fault", "--", "flock", "-n", "-E", "99"]).arg(scene.at("alone")).arg("true");
    let mut program = Program::spawn(&mut dlock, &scene.at("visit"));
    let ended = program.ended(HANG).ok_or("dlock exec hangs")?;
    ended.code().ok_or(format!("dlock exec: {ended}"))
}

/// Runs a visit that may be refused or come too late, but must not get a lock that another client
/// has.
fn visit_is_sound(scene: &Scene, address: &str, options: &[&str]) -> Result<i32, String> {
    let code = visit(scene, address, options)?;
    if [0, 69, 75, 76].contains(&code) {
        return Ok(code);
    }
    let visitor = fs::read_to_string(scene.at("visit")).unwrap_or_default();
    Err(format!("{}: dlock exec ends with {code}: {visitor}", options.join(" ")))
}

/// Checks that a running dlockd lets clients in, or says why not, and ends when it is told to.
fn serves_and_ends(
    scene: &Scene,
    program: &mut Program,
    address: Option<String>,
    call: &str,
) -> Result<(), String> {
    if let Some(address) = address {
        for fabric in ["tcp", "shm"] {
            visit_is_sound(scene, &address, &["--wait", "2", "--fabric", fabric])?;
        }
    }
    ends(program, call)
}

/// Ends the program, if it has not ended, and judges its end.
fn ends(program: &mut Program, call: &str) -> Result<(), String> {
    if program.ended(Duration::ZERO).is_none() {
        program.terminate();
    }
    let mut ended = program.ended(SIGNAL_LOST);
    // each thread may have been denied the delivery of one signal, and the kernel chooses the
    // thread
    for _ in 0..program.threads() {
        ended = ended.or_else(|| {
            program.terminate();
            program.ended(SIGNAL_LOST)
        });
    }
    let ended = ended.or_else(|| program.ended(HANG));
    let said = program.said();
    judge(call, ended, &said).map_err(|why| format!("{why}: {said}"))
}
