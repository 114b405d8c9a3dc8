// SPDX-License-Identifier: MIT OR Apache-2.0
//! A primary is killed, and a new one is started with its state file: it recovers by itself.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use common::{code, dlock, eventually, first_line, own_address, text, DLOCK};
use serde_json::Value;

/// The primaries of one host, one after the other, at the same address.
struct Host {
    folder: PathBuf,
    port: u16,
    primary: Option<Child>,
}

impl Host {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("dlock-back-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self { folder, port: 0, primary: None }
    }

    fn at(&self, name: &str) -> String {
        self.folder.join(name).to_string_lossy().into_owned()
    }

    fn start(&mut self, options: &[&str]) {
        let (address, port) = (own_address().to_string(), self.port.to_string());
        let mut child = Command::new(DLOCK)
            .args(["role", "primary", "--listen", &address, "--port", &port])
            .args(["--admin-socket", &self.at("admin"), "--state-file", &self.at("state")])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let line = first_line(child.stdout.take().unwrap());
        let address = line.strip_prefix("listening ").expect("it says where it listens");
        self.port = address.rsplit_once(':').unwrap().1.parse().unwrap();
        self.primary = Some(child);
    }

    fn kill(&mut self) {
        let mut primary = self.primary.take().unwrap();
        primary.kill().unwrap();
        primary.wait().unwrap();
    }

    fn address(&self) -> String {
        format!("{}:{}", own_address(), self.port)
    }

    /// Starts a `dlock exec` whose command says that it runs, and then waits for its input to end.
    fn holder(&self, options: &[&str]) -> (Child, ChildStdin) {
        let mut child = Command::new(DLOCK)
            .args(["exec", "--address", &self.address(), "lock"])
            .args(options)
            .args(["--", "sh", "-c", "echo running; cat >/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(first_line(child.stdout.take().unwrap()), "running");
        let input = child.stdin.take().unwrap();
        (child, input)
    }

    /// The exit code of an attempt to get the lock without waiting for it.
    fn try_lock(&self) -> i32 {
        let address = self.address();
        let options = ["--type", "fair", "--fabric", "tcp", "--wait", "0", "--", "true"];
        code(&dlock(&[&["exec", "--address", &address, "lock"][..], &options].concat()))
    }

    fn recover(&self, options: &[&str]) -> Value {
        let socket = self.at("admin");
        let output = dlock(&[&["recover", "--json", "--socket", &socket][..], options].concat());
        assert_eq!(code(&output), 0, "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn is_ready(&self) -> bool {
        self.recover(&[])["recovery"].is_null()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(mut primary) = self.primary.take() {
            drop(primary.stdin.take());
            let _ = primary.wait(); // the primary may have ended
        }
        // a file or folder that is left over does no harm
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Kills a `dlock exec` with its keeper and its COMMAND, as if their host had lost its power.
fn kill_exec(mut exec: Child) {
    let children = format!("/proc/{0}/task/{0}/children", exec.id());
    let mut all = vec![exec.id()];
    let mut next = 0;
    while next < all.len() {
        let children = match next {
            0 => children.clone(),
            _ => format!("/proc/{0}/task/{0}/children", all[next]),
        };
        let text = std::fs::read_to_string(Path::new(&children)).unwrap_or_default();
        all.extend(text.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        next += 1;
    }
    for pid in all {
        let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    exec.wait().unwrap();
}

#[test]
fn a_primary_that_is_started_again_waits_for_its_clients_and_they_keep_what_they_hold() {
    let mut host = Host::new("again");
    host.start(&[]);
    let (mut exec, input) = host.holder(&["--type", "fair", "--fabric", "tcp", "--lease", "60"]);
    assert_eq!(host.try_lock(), 75, "it is held");
    host.kill();
    host.start(&[]);
    eventually("it recovers by itself", || host.is_ready());
    assert_eq!(host.try_lock(), 75, "it is still held");
    drop(input);
    assert_eq!(exec.wait().unwrap().code(), Some(0), "it has not lost its lock");
    assert_eq!(host.try_lock(), 0);
    // all clients have left, so the primary waits for none
    host.kill();
    host.start(&[]);
    assert!(host.is_ready());
}

#[test]
fn a_client_whose_process_has_ended_with_the_primary_is_not_waited_for() {
    let mut host = Host::new("dead");
    host.start(&[]);
    let (exec, input) = host.holder(&["--type", "fair", "--fabric", "shm", "--lease", "600"]);
    host.kill();
    kill_exec(exec);
    drop(input);
    host.start(&["--deadline", "100000"]);
    eventually("it recovers", || host.is_ready());
    assert_eq!(host.try_lock(), 0);
}

#[test]
fn who_does_not_come_back_is_given_up_after_the_deadline_or_by_an_operator() {
    for (deadline, is_removed) in [("1", false), ("100000", false), ("100000", true)] {
        let mut host = Host::new(&format!("given-up-{deadline}-{is_removed}"));
        host.start(&[]);
        let (exec, input) = host.holder(&["--type", "fair", "--fabric", "tcp", "--lease", "5"]);
        host.kill();
        kill_exec(exec);
        drop(input);
        host.start(&["--deadline", deadline]);
        if deadline != "1" {
            let recovery = &host.recover(&[])["recovery"];
            assert_eq!(recovery["expected"], 1);
            assert!(recovery["missing"][0]["seconds_left"].as_u64().unwrap() > 90_000);
            assert_eq!(host.try_lock(), 75, "nobody is served");
            let missing = &recovery["missing"][0]["client"];
            if is_removed {
                let words = ["remove", &missing.to_string(), "--now", "--socket"];
                let output = dlock(&[&words[..], &[&host.at("admin")]].concat());
                assert_eq!(code(&output), 0, "{}", text(&output.stderr));
            } else {
                assert_eq!(host.recover(&["--now"])["given_up"][0], *missing);
            }
        }
        eventually("it recovers", || host.is_ready());
        assert_eq!(host.try_lock(), 0);
        let output = dlock(&["recover", "--now", "--socket", &host.at("admin")]);
        assert_eq!(code(&output), 69, "there is no recovery: {}", text(&output.stderr));
    }
}

/// A client process that takes commands, a line each.
struct Told {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Told {
    fn start(host: &Host, horizon_s: u32) -> Self {
        let mut child = Command::new(DLOCK)
            .env("DLOCK_HORIZON_S", horizon_s.to_string())
            .args(["role", "client", "--fabric", "shm", "--address", &host.address()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut told = Self { child, input, output: BufReader::new(output) };
        assert!(told.line().starts_with("client "));
        told
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_string()
    }

    /// Has the client carry out this command, which must succeed.
    fn does(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
        assert_eq!(self.line(), "0", "{command}");
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.child.kill(); // the process may be stopped, or may have ended
        let _ = self.child.wait();
    }
}

/// The memory of the stopped process is mapped, so that it cannot be fenced; the hold it claimed
/// does not count.
#[test]
fn a_process_that_is_stopped_in_the_middle_of_a_recovery_keeps_nobody_waiting_for_ever() {
    let mut host = Host::new("stopped");
    host.start(&["--deadline", "1"]);
    let [mut stopped, mut other] = [Told::start(&host, 3), Told::start(&host, 3)];
    for (client, lock) in [(&mut stopped, "one"), (&mut other, "two")] {
        client.does(&format!("get {lock} atomic"));
        client.does("try exclusive 600");
    }
    host.kill();
    host.start(&["--deadline", "1"]);
    let reinit = format!("reinit {}", host.address());
    stopped.does(&reinit);
    let pid = rustix::process::Pid::from_child(&stopped.child);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    for command in [&reinit, "update", "reinit-done"] {
        other.does(command);
    }
    eventually("the recovery ends", || host.is_ready());
    other.does("extend exclusive 600");
    drop(stopped);
    let mut new = Told::start(&host, 3);
    new.does("get one atomic");
    eventually("what it had is free", || {
        writeln!(new.input, "try exclusive 600").unwrap();
        new.line() == "0"
    });
}
