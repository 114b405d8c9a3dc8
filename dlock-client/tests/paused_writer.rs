// SPDX-License-Identifier: MIT OR Apache-2.0
//! A writer whose process is stopped for three times its lease, and then goes on writing: the store
//! of `examples/fenced_store.rs` refuses it by its token, and its unlock says that the lock was
//! lost. Real processes, on each fabric and with each type of lock.
//!
//! `DLOCK_PAUSES=N` makes N trials of each.

mod common;
#[path = "../examples/fenced_store.rs"]
mod fenced_store;

use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use common::{fabrics, name, on_verbs, server, signal};
use dlock_client::{Error, FabricChoice};

const TYPES: [&str; 4] = ["atomic", "rw", "rw_leased", "fair"];
/// The lease, or the horizon, of the second writer: long enough for its whole part of the test,
/// also on a slow machine.
const LEASE_NEXT_S: &str = "60";
/// How often a writer that does not get the lock is started: on an emulated device, a session may
/// take longer to begin than its horizon.
const STARTS_MAX: usize = 5;

/// The seconds of the lease, or of the horizon, of the first writer, which is stopped for three
/// times as long; and the number of trials at the same time. A device is usually emulated, and
/// slow.
fn pace() -> (u64, usize) {
    match on_verbs() {
        true => (3, 4),
        false => (1, 12),
    }
}

const ARGS_VARIABLE: &str = "DLOCK_TEST_STORE_ARGS";

/// Not a test by itself: the example, in a process of its own.
#[test]
fn child_that_is_the_example() {
    let Ok(args) = std::env::var(ARGS_VARIABLE) else { return };
    println!("\nstarts");
    fenced_store::run(&args.split('\n').collect::<Vec<_>>()).unwrap();
}

/// A process of the example. It is killed when this is dropped.
struct Process {
    child: Child,
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(args: &[&str], fabric: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_is_the_example", "--nocapture"])
            .env(ARGS_VARIABLE, args.join("\n"))
            .env("DLOCK_FABRIC", fabric)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut process = Self { input: child.stdin.take(), child, lines };
        while process.hears() != "starts" {}
        process
    }

    fn hears(&mut self) -> String {
        let said = self.lines.by_ref().map(|line| line.expect("it says something"));
        // skips the lines of the test harness about tests that take long
        let mut said = said.filter(|line| !line.starts_with("test "));
        said.next().expect("it says something")
    }

    fn writes(&mut self, value: &str) -> String {
        writeln!(self.input.as_ref().unwrap(), "{value}").unwrap();
        self.hears()
    }

    /// Ends the input of the process, so that it unlocks; returns its line about that.
    fn ends(&mut self) -> String {
        self.input = None;
        self.hears()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn trial(socket: &str, folder: &Path, port: u16, fabric: FabricChoice, lock: &str, number: usize) {
    let key = format!("{lock}_{}_{number}", name(fabric));
    let port = port.to_string();
    let writer = |lease_s: &str| {
        let args = ["write", socket, "127.0.0.1", &port, lock, &key, lease_s];
        let holds = || {
            let mut writer = Process::start(&args, name(fabric));
            let said = writer.hears();
            let token = said.strip_prefix("holds ").and_then(|token| token.parse().ok());
            token.map(|token: u64| (writer, token))
        };
        let held = (0..STARTS_MAX).find_map(|_| holds());
        held.unwrap_or_else(|| panic!("{key}: its writer does not get the lock"))
    };
    let (lease_s, _) = pace();
    let (mut late, old) = writer(&lease_s.to_string());
    assert_eq!(late.writes("first"), "stored", "{key}");
    signal(&late.child, "STOP");
    thread::sleep(Duration::from_secs(3 * lease_s));
    let (mut next, new) = writer(LEASE_NEXT_S);
    assert!(new > old, "{key}: {new} after {old}");
    assert_eq!(next.writes("second"), "stored", "{key}");
    signal(&late.child, "CONT");
    assert_eq!(late.writes("late"), format!("refused: {old} is older than {new}"), "{key}");
    let told = late.ends();
    match lock {
        // this lock has no lease, so the hold is over with the session
        "rw" => assert_ne!(told, "unlocked", "{key}"),
        _ => assert_eq!(told, Error::Lost.to_string(), "{key}"),
    }
    assert_eq!(next.ends(), "unlocked", "{key}");
    assert_eq!(fs::read_to_string(folder.join(&key)).unwrap(), format!("{new}\nsecond\n"));
}

#[test]
fn a_late_write_is_refused_by_its_token() {
    let trials = match std::env::var("DLOCK_PAUSES") {
        Ok(trials) => trials.parse().expect("DLOCK_PAUSES is a number"),
        Err(_) => 2,
    };
    let folder = std::env::temp_dir().join(format!("dlock-paused-{}", std::process::id()));
    let values = folder.join("values");
    fs::create_dir_all(&values).unwrap();
    let socket = folder.join("store").to_string_lossy().into_owned();
    let mut store = Process::start(&["serve", &socket, &values.to_string_lossy()], "auto");
    assert_eq!(store.hears(), "serves");
    let server = server();
    let port = server.local_addr().port();
    // a client that can write to the memory keeps a lock without a lease as long as its process
    // lives
    let ends = |(fabric, lock): &(FabricChoice, &str)| *lock != "rw" || name(*fabric) != "shm";
    // with a device, only its own fabric is tried: the others are tried without one
    let is_meant = |fabric: &FabricChoice| !on_verbs() || name(*fabric) == "verbs";
    let mut todo: Vec<_> = fabrics()
        .into_iter()
        .filter(is_meant)
        .flat_map(|fabric| TYPES.map(|lock| (fabric, lock)))
        .filter(ends)
        .flat_map(|what| (0..trials).map(move |number| (what, number)))
        .collect();
    while !todo.is_empty() {
        println!("progress: {} trials to come", todo.len());
        let batch = todo.split_off(todo.len().saturating_sub(pace().1));
        thread::scope(|scope| {
            for ((fabric, lock), number) in batch {
                let (socket, values) = (&socket, &values);
                scope.spawn(move || trial(socket, values, port, fabric, lock, number));
            }
        });
    }
    fs::remove_dir_all(folder).unwrap();
}

/// A write that has failed may still have replaced the value, so its token counts.
#[test]
fn a_write_that_fails_keeps_older_ones_out() {
    let folder = std::env::temp_dir().join(format!("dlock-fails-{}", std::process::id()));
    let values = folder.join("values");
    fs::create_dir_all(&values).unwrap();
    let socket = folder.join("store").to_string_lossy().into_owned();
    let mut store = Process::start(&["serve", &socket, &values.to_string_lossy()], "auto");
    assert_eq!(store.hears(), "serves");
    let stream = UnixStream::connect(&socket).unwrap();
    let mut answers = BufReader::new(&stream).lines();
    let mut put = |line: &str| {
        writeln!(&stream, "{line}").unwrap();
        answers.next().unwrap().unwrap()
    };
    assert_eq!(put("key 4 first"), "stored");
    fs::remove_file(values.join("key")).unwrap();
    // no file can replace a folder, so the next write fails
    fs::create_dir(values.join("key")).unwrap();
    assert!(put("key 6 second").starts_with("failed: "));
    fs::remove_dir(values.join("key")).unwrap();
    assert_eq!(put("key 5 late"), "refused: 5 is older than 6");
    assert_eq!(put("key 6 again"), "stored");
    fs::remove_dir_all(folder).unwrap();
}
