// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlockd` as a process of its own.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{kill_process, Pid, Signal};

use super::common::eventually;

pub fn dlockd() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlockd"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // not the folders of the user who runs the tests
    let own = [("XDG_STATE_HOME", "state"), ("TMPDIR", ""), ("XDG_RUNTIME_DIR", "")];
    command.envs(own.map(|(name, end)| (name, format!("{}/{end}", env!("CARGO_TARGET_TMPDIR")))));
    command
}

pub fn output(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = dlockd().args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// The number of clients that fit.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub clients: usize,
    /// The number that fit if all of them come over shared memory.
    pub over_shm: usize,
}

/// A running dlockd, killed if a test fails.
pub struct Running(pub Child);

impl Running {
    pub fn start(arguments: &[&str]) -> (Self, SocketAddr) {
        let (running, address, _) = Self::by(dlockd().args(["--port=0"]).args(arguments));
        (running, address)
    }

    /// Starts with this limit of `ulimit`; also returns the number of clients that fit, as it
    /// reports it.
    pub fn start_limited(limit: &str, arguments: &str) -> (Self, SocketAddr, Room) {
        let mut shell = Command::new("sh");
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let program = env!("CARGO_BIN_EXE_dlockd");
        shell.args(["-c", &format!("ulimit {limit}; exec {program} --port=0 {arguments}")]);
        let (running, address, line) = Self::by(&mut shell);
        let (_, room) = line.rsplit_once("room for ").expect("how many clients fit");
        let (clients, over_shm) = room.trim_end().split_once(" clients").expect("the word");
        let clients = clients.parse().expect("a number");
        let over_shm = over_shm.strip_prefix(", ").and_then(|rest| rest.strip_suffix(" over shm"));
        let over_shm = over_shm.map_or(clients, |over_shm| over_shm.parse().expect("a number"));
        (running, address, Room { clients, over_shm })
    }

    pub fn by(command: &mut Command) -> (Self, SocketAddr, String) {
        let mut running = Self(command.spawn().unwrap());
        let mut line = String::new();
        let stdout = running.0.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let address = line.strip_prefix("dlockd ready: listening on ").expect("the ready line");
        let address = address.split(',').next().unwrap().parse().expect("an address");
        (running, address, line)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Waits until every thread is in this state (`/proc/PID/task/TID/stat`).
    pub fn all_threads_are(&self, wanted: char) {
        let tasks = format!("/proc/{}/task", self.0.id());
        eventually("all threads are in this state", || {
            std::fs::read_dir(&tasks).unwrap().flatten().all(|task| {
                let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
                state == Some(wanted)
            })
        });
    }

    pub fn end(mut self) -> (Option<i32>, String) {
        let code = self.0.wait().unwrap().code();
        let mut errors = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (code, errors)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill(); // the process has ended already, unless the test failed
        let _ = self.0.wait();
    }
}
