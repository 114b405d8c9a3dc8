// SPDX-License-Identifier: MIT OR Apache-2.0
//! Primaries and workers in processes of their own, and the programs that use them.
//!
//! Every process is this very program with a job in its environment ([`obey`]). Its standard input
//! is a pipe: at its end a worker finishes its turn and leaves, so that none survives its parent.

#![allow(dead_code, reason = "every program uses a part of it")]

#[path = "../../../../dlock-server/tests/common/certs.rs"]
mod certs;
pub mod job;
pub mod programs;
pub mod renewed;
pub mod secured;
pub mod silent;
pub mod successor;
pub mod worker;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use dlock_client::FabricChoice;
use dlock_fabric::os::clock::boot_ns;
use dlock_server::{Server, ServerConfig, VerbsUse};
use rustix::process::{kill_process, Pid, Signal};

/// The environment variable with the job of a child process.
const JOB: &str = "DLOCK_CHAOS_JOB";
/// The test that a child process runs.
pub const CHILD: &str = "child_that_obeys_its_parent";
/// How long the primary waits for a killed client before it gives that client's locks away.
const GRACE: Duration = Duration::from_secs(2);
/// How long a child may take to start, or to leave.
const CHILD_MAX: Duration = Duration::from_secs(120);

/// Does the job that the parent process has given; `false`: this process is not such a child.
pub fn obey() -> bool {
    let Ok(job) = std::env::var(JOB) else { return false };
    say_what_is_logged();
    match job.split_once(' ') {
        Some(("primary", job)) => serve(job),
        Some(("standby", job)) => successor::stand_by(job),
        Some(("hold", job)) => silent::hold(job),
        Some(("worker", job)) => worker::work(&job.parse().expect("the parent's job")),
        _ => panic!("no job: {job}"),
    }
    true
}

/// With `DLOCK_CHAOS_LOG` set, writes the libraries' log to standard error, with time and process
/// id.
fn say_what_is_logged() {
    struct Lines;
    impl log::Log for Lines {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &log::Record<'_>) {
            let (ms, process) = (boot_ns() / 1_000_000, std::process::id());
            eprintln!("{ms} {process} {}: {}", record.level(), record.args());
        }
        fn flush(&self) {}
    }
    if std::env::var_os("DLOCK_CHAOS_LOG").is_some() && log::set_logger(&Lines).is_ok() {
        log::set_max_level(log::LevelFilter::Debug);
    }
}

/// Whether the primaries of these tests are on an RDMA device: `DLOCK_FABRIC=verbs` says so.
fn on_verbs() -> bool {
    std::env::var(dlock_client::FABRIC_VARIABLE).is_ok_and(|fabric| fabric == "verbs")
}

/// The fabrics that the primaries of these tests offer.
pub fn fabrics() -> [FabricChoice; 2] {
    let one_host = match (on_verbs(), secured::is_on()) {
        (true, true) => FabricChoice::Sealed,
        (true, false) => FabricChoice::Verbs,
        (false, _) => FabricChoice::Shm,
    };
    [one_host, FabricChoice::Tcp]
}

/// Starts a primary on the loopback interface (port 0: a free one). Also returns its clock minus
/// CLOCK_BOOTTIME, at least and at most.
fn start_server(verbs: bool, port: u16, state_file: Option<PathBuf>) -> (Server, (u64, u64)) {
    let config = configured(verbs, port, state_file);
    let before = offset_ns();
    let server = Server::start(config).expect("the primary starts");
    let after = offset_ns();
    (server, (before.min(after), before.max(after)))
}

fn configured(verbs: bool, port: u16, state_file: Option<PathBuf>) -> ServerConfig {
    let tls = secured::tls();
    let verbs = match (verbs, &tls) {
        (true, None) => VerbsUse::On,
        (true, Some(_)) => VerbsUse::Sealed,
        (false, _) => VerbsUse::Off,
    };
    let absent_grace = Some(GRACE);
    ServerConfig { port, verbs, absent_grace, state_file, tls, ..Default::default() }
}

/// The wall clock minus CLOCK_BOOTTIME. A primary's clock starts with this.
fn offset_ns() -> u64 {
    let wall = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    // read several times, and use the reading that took the shortest time
    let read = || {
        let (before, wall, after) = (boot_ns(), wall(), boot_ns());
        let wall_ns = u64::try_from(wall.as_nanos()).expect("before 2500");
        (after - before, wall_ns - before.midpoint(after))
    };
    (0..5).map(|_| read()).min().expect("five readings").1
}

/// In a child process: runs a primary until the parent has ended. `job`: `VERBS PORT [STATE-FILE]`.
fn serve(job: &str) {
    let mut words = job.splitn(3, ' ');
    let verbs = words.next() == Some("on");
    let port = words.next().and_then(|port| port.parse().ok()).expect("a port");
    let (server, offset) = start_server(verbs, port, words.next().map(PathBuf::from));
    println!("\nport {} {} {}", server.local_addr().port(), offset.0, offset.1);
    successor::serve_on(&server);
}

/// A primary, in this process or in a separate one.
pub struct Primary {
    /// The port on 127.0.0.1 where it listens.
    pub port: u16,
    /// The bounds of the primary's clock minus CLOCK_BOOTTIME: the least and the most.
    pub offset_ns: (u64, u64),
    server: Option<Server>,
    process: Option<Process>,
}

impl Primary {
    /// A primary in this process.
    pub fn here() -> Self {
        let (server, offset_ns) = start_server(on_verbs(), 0, None);
        let port = server.local_addr().port();
        Self { port, offset_ns, server: Some(server), process: None }
    }

    /// A primary in a separate process.
    pub fn apart() -> Self {
        Self::at(0, "")
    }

    /// A primary in a separate process, which recovers from the state file.
    pub fn with_state(port: u16, state_file: &Path) -> Self {
        Self::at(port, &format!(" {}", state_file.display()))
    }

    fn at(port: u16, state_file: &str) -> Self {
        let verbs = if on_verbs() { "on" } else { "off" };
        let job = format!("primary {verbs} {port}{state_file}");
        let (process, line) = Process::start(&job, "port ");
        let numbers: Vec<u64> = line.split(' ').map(|n| n.parse().expect("a number")).collect();
        let port = u16::try_from(numbers[0]).expect("a port");
        let offset_ns = (numbers[1], numbers[2]);
        Self { port, offset_ns, server: None, process: Some(process) }
    }

    /// Kills the primary.
    pub fn kill(&mut self) {
        self.process.take().expect("a process of its own").kill();
    }

    /// Hands out the process of the primary.
    pub fn take_process(&mut self) -> Process {
        self.process.take().expect("a process of its own")
    }

    /// Stops the primary for this time.
    pub fn pause(&self, time: Duration) {
        self.process.as_ref().expect("a process of its own").pause(time);
    }
}

/// A child process; it is killed when this is dropped.
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
}

impl Process {
    /// Starts a child with a job, and waits for the line that begins with `ready`. Also returns the
    /// rest of that line.
    pub fn start(job: &str, ready: &str) -> (Self, String) {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", CHILD, "--nocapture"])
            .env(JOB, job)
            .envs(secured::environment())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program can be started again");
        let input = child.stdin.take();
        let output = child.stdout.take().expect("a pipe");
        let mut process = Self { child, input };
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        match { &mut lines }.find_map(|line| line.strip_prefix(ready).map(str::to_owned)) {
            Some(rest) => {
                // the further output is not needed, but must not fill the pipe
                std::thread::spawn(move || lines.for_each(drop));
                (process, rest)
            }
            None => panic!("{job}: ended before it was ready: {:?}", process.child.wait()),
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal)
            .expect("a child that was not waited for");
    }

    /// Stops the process for this time.
    pub fn pause(&self, time: Duration) {
        self.stop();
        std::thread::sleep(time);
        self.resume();
    }

    /// Stops the process.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues the stopped process.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the process, and waits until it has ended.
    pub fn kill(mut self) {
        let _ = self.child.kill(); // SIGKILL ends a stopped process as well
        let _ = self.child.wait();
    }

    /// Tells the process to leave.
    pub fn dismiss(&mut self) {
        self.input = None;
    }

    /// Waits until the process has left; `None`: it does not leave in time.
    pub fn left(&mut self) -> Option<ExitStatus> {
        let deadline = Instant::now() + CHILD_MAX;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder for logs, which is kept if a rule was broken.
pub struct Folder(pub PathBuf);

impl Folder {
    /// A new folder below the temporary folder.
    pub fn new(name: &str) -> Self {
        let name = format!("dlock-chaos-{}-{name}-{}", std::process::id(), boot_ns());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Self(path)
    }

    /// The text of all logs in the folder.
    pub fn read(&self) -> String {
        // the last line of a log may be torn, so it needs a line end before the next log
        self.logs().map(|path| std::fs::read_to_string(path).expect("a log") + "\n").collect()
    }

    /// The lengths of all logs.
    pub fn lens(&self) -> BTreeMap<PathBuf, u64> {
        let len = |path: PathBuf| Some((path.clone(), std::fs::metadata(path).ok()?.len()));
        self.logs().filter_map(len).collect()
    }

    fn logs(&self) -> impl Iterator<Item = PathBuf> {
        let files = std::fs::read_dir(&self.0).expect("the folder");
        let is_log = |path: &PathBuf| path.extension().is_some_and(|e| e == "log");
        files.flatten().map(|file| file.path()).filter(is_log)
    }

    /// Removes the folder, whose logs are of no further interest.
    pub fn remove(self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
