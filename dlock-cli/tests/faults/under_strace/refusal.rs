// SPDX-License-Identifier: MIT OR Apache-2.0
//! One cell of the table: the fault, its begin, and its end.
//!
//! ```text
//!   spawn ─▶ the phase is prepared ─▶ begin ─▶ the phase ─▶ end ─▶ is all as before?
//!   spawn_refused ───────────────────────────▶ the phase ─────────▶ is all as before?
//! ```
//! Standard error is closed from the start; it becomes full, or a dead pipe, at `begin`.

use std::fmt;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::pipe::{pipe_with, PipeFlags};
use rustix::process::{kill_process_group, Pid, Signal};

use super::scene::{Program, Scene};
use super::{is_long, Calls, ERRORS, HANG};

/// The most cells for one call and one error in the long run.
const TIMES_MAX: usize = 6;
/// The number of system calls of each part that `make test` denies.
const SAMPLE: usize = 2;

/// Cells that have found a defect, by part: `make test` always runs them.
const FOUND: [(&str, &str); 7] = [
    ("dlockd, failover", "unlink 1 EMFILE"),
    ("dlockd, start to end", "newfstatat 5 ENOMEM"),
    ("dlockd, failover", "ftruncate 3 EPERM"),
    ("dlock exec, failover", "ppoll 1 EPERM"),
    ("dlockd, serving to end", "write 2 EMFILE"),
    ("c client over shm, serving", "setsockopt 2 ENOSYS"),
    ("c client over tcp, handshake", "recvfrom 2 EMFILE"),
];
/// The time in which strace attaches to all threads; otherwise it has missed one.
const ATTACHES: Duration = Duration::from_secs(5);
/// The time that strace may take to end.
const LETS_GO: Duration = Duration::from_secs(20);

/// A denied system call: the Nth of each thread, with this error.
#[derive(Clone, Debug)]
pub struct Denied {
    pub call: String,
    pub number: usize,
    pub error: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stderr {
    Full,
    Closed,
    Dead,
}

/// A resource that has run out.
#[derive(Clone, Copy, Debug)]
pub enum Resource {
    Threads,
    Descriptors,
    Maps,
}

impl Resource {
    fn calls(self) -> (&'static [&'static str], &'static str) {
        match self {
            Self::Threads => (&["clone3", "clone"], "EAGAIN"),
            Self::Descriptors => (&DESCRIPTORS, "EMFILE"),
            // Not `brk`: it extends a map. A program without any memory aborts, as Rust does.
            Self::Maps => (&["mmap", "mremap"], "ENOMEM"),
        }
    }
}

/// The calls that create a descriptor.
const DESCRIPTORS: [&str; 13] = [
    "accept",
    "accept4",
    "dup",
    "epoll_create1",
    "eventfd2",
    "memfd_create",
    "openat",
    "pidfd_open",
    "pipe2",
    "signalfd4",
    "socket",
    "socketpair",
    "timerfd_create",
];

#[derive(Clone, Debug)]
pub enum Cell {
    Stderr(Stderr),
    NoMore(Resource),
    Denied(Denied),
}

impl Cell {
    /// The call that is denied, if this cell denies one.
    pub fn call(&self) -> &str {
        match self {
            Self::Denied(denied) => &denied.call,
            Self::NoMore(Resource::Maps) => "mmap",
            Self::Stderr(_) | Self::NoMore(_) => "",
        }
    }

    pub fn has_stderr(&self) -> bool {
        !matches!(self, Self::Stderr(_))
    }

    /// The options of strace, after the calls `before` the part; `None`: strace is not needed.
    fn options(&self, before: &Calls) -> Option<Vec<String>> {
        let inject = |calls: Vec<(&str, String)>, error: &str| {
            let names: Vec<&str> = calls.iter().map(|&(call, _)| call).collect();
            let mut options = vec!["-e".into(), format!("trace={}", names.join(","))];
            for (call, when) in calls {
                options.extend(["-e".into(), format!("inject={call}:error={error}:when={when}")]);
            }
            Some(options)
        };
        match self {
            Self::Stderr(_) => None,
            Self::NoMore(resource) => {
                let (calls, error) = resource.calls();
                let from = |call: &str| before.get(call).map_or(0, |&(before, _)| before) + 1;
                inject(
                    calls.iter().map(|&call| (call, format!("{}+", from(call)))).collect(),
                    error,
                )
            }
            Self::Denied(Denied { call, number, error }) => {
                inject(vec![(call, number.to_string())], error)
            }
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stderr(Stderr::Full) => write!(f, "stderr full"),
            Self::Stderr(Stderr::Closed) => write!(f, "stderr closed"),
            Self::Stderr(Stderr::Dead) => write!(f, "stderr a dead pipe"),
            Self::NoMore(resource) => {
                write!(f, "no more {}", format!("{resource:?}").to_lowercase())
            }
            Self::Denied(Denied { call, number, error }) => write!(f, "{call} {number} {error}"),
        }
    }
}

/// The six cells of standard error and of resources; `make test` takes two, others in each place.
pub fn cells_of_resources(place: usize) -> Vec<Cell> {
    let stderr = [Stderr::Full, Stderr::Closed, Stderr::Dead].map(Cell::Stderr);
    let no_more = [Resource::Threads, Resource::Descriptors, Resource::Maps].map(Cell::NoMore);
    let all: Vec<Cell> = stderr.into_iter().chain(no_more).collect();
    chosen(all, |all| all.into_iter().skip(place % 3).step_by(3).collect())
}

/// The cells of these calls: each call denied once with each error, the first few times.
pub fn cells_of(part: &str, calls: &Calls) -> Vec<Cell> {
    let mut all = Vec::new();
    for (call, &(before, after)) in calls {
        for number in before + 1..=before + after.min(TIMES_MAX) {
            all.extend(
                ERRORS.map(|error| Cell::Denied(Denied { call: call.clone(), number, error })),
            );
        }
    }
    chosen(all, |all| {
        // The sample has every `step`-th cell, from one that the process id chooses. The step is
        // odd, so that the sample has all errors.
        let step = (all.len() / SAMPLE).max(1) | 1;
        let skipped = std::process::id() as usize % step;
        let is_found = |cell: &Cell| FOUND.contains(&(part, cell.to_string().as_str()));
        let found: Vec<Cell> = all.iter().filter(|cell| is_found(cell)).cloned().collect();
        all.into_iter().skip(skipped).step_by(step).chain(found).collect()
    })
}

fn chosen(mut all: Vec<Cell>, sample: impl Fn(Vec<Cell>) -> Vec<Cell>) -> Vec<Cell> {
    if let Ok(wanted) = std::env::var("DLOCK_FAULTS") {
        all.retain(|cell| cell.to_string().contains(&wanted));
        all
    } else if is_long() {
        all
    } else {
        sample(all)
    }
}

/// A cell that is carried out on one program. Without a cell no call is refused, and all calls are
/// traced.
pub struct Refusal<'a> {
    cell: Option<&'a Cell>,
    before: &'a Calls,
    trace: PathBuf,
    /// Both ends of the program's standard error, which is never read.
    pipe: Option<(Option<OwnedFd>, OwnedFd)>,
    tracer: Option<Program>,
}

impl<'a> Refusal<'a> {
    pub fn new(cell: Option<&'a Cell>, scene: &Scene, before: &'a Calls) -> Self {
        Self { cell, before, trace: scene.at("trace"), pipe: None, tracer: None }
    }

    pub fn call(&self) -> &str {
        self.cell.map_or("", Cell::call)
    }

    pub fn has_stderr(&self) -> bool {
        self.cell.is_none_or(Cell::has_stderr)
    }

    /// Starts the program; the refusal begins later.
    pub fn spawn(&mut self, command: &Command, said: &std::path::Path) -> Program {
        let Some(Cell::Stderr(kind)) = self.cell else {
            return Program::spawn_piped(&mut prefixed(&[], command), said);
        };
        if *kind == Stderr::Closed {
            let closed = ["sh", "-c", r#"exec "$@" 2>&-"#, "sh"].map(String::from);
            return Program::spawn_piped(&mut prefixed(&closed, command), said);
        }
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let stderr = writer.try_clone().unwrap();
        self.pipe = Some((Some(reader), writer));
        Program::spawn_with(&mut prefixed(&[], command), stderr.into(), said)
    }

    /// Starts the program with the refusal in force.
    pub fn spawn_refused(&mut self, command: &Command, said: &std::path::Path) -> Program {
        if !self.has_stderr() {
            let program = self.spawn(command, said);
            self.begin(&[]);
            return program;
        }
        let mut strace = vec!["strace".into(), "-D".into()];
        strace.extend(self.strace());
        Program::spawn_piped(&mut prefixed(&strace, command), said)
    }

    fn strace(&self) -> Vec<String> {
        let trace = self.trace.to_string_lossy().into_owned();
        let mut strace: Vec<String> = ["-f", "-qq", "-o"].map(String::from).into();
        strace.push(trace);
        strace.extend(self.cell.and_then(|cell| cell.options(self.before)).unwrap_or_default());
        strace
    }

    /// Begins the refusal for these processes.
    pub fn begin(&mut self, pids: &[u32]) {
        match (self.cell, &mut self.pipe) {
            (Some(Cell::Stderr(Stderr::Dead)), Some((reader, _))) => drop(reader.take()),
            (Some(Cell::Stderr(Stderr::Full)), Some((_, writer))) => fill(writer),
            (Some(Cell::Stderr(_)), _) => {}
            _ => self.attach(pids),
        }
    }

    fn attach(&mut self, pids: &[u32]) {
        let said = self.trace.with_extension("strace");
        let until = Instant::now() + HANG;
        let mut since = Instant::now();
        while !pids.iter().all(|&pid| is_traced(pid)) {
            // strace is started again if it missed a thread that began meanwhile, or lost a race
            // with a thread that ended.
            if since.elapsed() > ATTACHES {
                self.end();
                since = Instant::now();
            }
            if !self.tracer.as_mut().is_some_and(Program::is_there) {
                let mut strace = Command::new("strace");
                strace.args(self.strace());
                strace.args(pids.iter().map(|pid| format!("--attach={pid}"))).process_group(0);
                self.tracer = Some(Program::spawn(&mut strace, &said));
            }
            let words = || fs::read_to_string(&said).unwrap_or_default();
            assert!(Instant::now() < until, "strace does not attach to {pids:?}: {}", words());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the refusal; a standard error stays as it is.
    pub fn end(&mut self) {
        if let Some(tracer) = self.tracer.take() {
            tracer.terminate(); // strace then detaches
            has_let_go(tracer);
        }
    }

    /// Waits for the end of strace, after the program has ended.
    pub fn ended(&mut self) {
        if let Some(tracer) = self.tracer.take() {
            has_let_go(tracer);
        }
    }
}

/// Waits for the end of strace; if it does not end, kills it, and the kernel lets the program go. A
/// strace that is ended while it starts leaves a child behind, with which it tries ptrace.
fn has_let_go(mut tracer: Program) {
    tracer.ended(LETS_GO);
    let group = Pid::from_child(&tracer.child);
    let _ = kill_process_group(group, Signal::KILL); // the group may be empty
}

/// The same command, with these words before it.
fn prefixed(words: &[String], command: &Command) -> Command {
    let mut all: Vec<std::ffi::OsString> = words.iter().map(Into::into).collect();
    all.push(command.get_program().into());
    all.extend(command.get_args().map(Into::into));
    let mut prefixed = Command::new(&all[0]);
    prefixed.args(&all[1..]);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => prefixed.env(name, value),
            None => prefixed.env_remove(name),
        };
    }
    prefixed
}

/// Whether each thread has a tracer, or the process is gone or not yet waited for.
fn is_traced(pid: u32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    tasks.flatten().all(|task| {
        let status = fs::read_to_string(task.path().join("status"));
        let says = |status: &str, what: &str| status.lines().any(|line| line.starts_with(what));
        !status.is_ok_and(|s| says(&s, "TracerPid:\t0") && !says(&s, "State:\tZ"))
    })
}

/// Fills a pipe through a second, nonblocking descriptor; the program's own still blocks.
fn fill(writer: &OwnedFd) {
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let own = rustix::fs::open(path, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
    for size in [4096, 1] {
        while rustix::io::write(&own, &vec![b'x'; size]).is_ok() {}
    }
}
