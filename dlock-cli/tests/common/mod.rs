// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers for the tests of `dlock`. Each test uses some of them.
#![allow(dead_code)]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

pub const DLOCK: &str = env!("CARGO_BIN_EXE_dlock");

/// The limit for everything that must not hang.
pub const HANG: Duration = Duration::from_secs(100);

pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + HANG;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within {HANG:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

pub fn dlock(arguments: &[&str]) -> Output {
    let mut command = Command::new(DLOCK);
    command.args(arguments).stdin(Stdio::null()).env_remove("DLOCK_ADDRESS");
    command.output().expect("the binary was just built")
}

pub fn code(output: &Output) -> i32 {
    output.status.code().expect("dlock is not killed")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A loopback address that only this process uses: no other process takes a port that is free on
/// it.
pub fn own_address() -> std::net::Ipv4Addr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    std::net::Ipv4Addr::new(127, a | 0x80, b, c)
}

/// A primary in its own process; it ends when its standard input closes, at the latest with the
/// test.
pub struct Primary {
    pub child: Child,
    pub address: String,
    folder: PathBuf,
}

impl Primary {
    pub fn start(name: &str) -> Self {
        Self::start_with(name, &[])
    }

    pub fn start_with(name: &str, options: &[&str]) -> Self {
        Self::start_exactly(name, &[&["--grace-ms=200"], options].concat())
    }

    /// Starts a primary with these options only: without a grace, leases end when they are over.
    pub fn start_exactly(name: &str, options: &[&str]) -> Self {
        let (child, folder, mut output) = Self::child(name, options);
        let address = listens_at(&next_line(&mut output));
        Self { child, address, folder }
    }

    /// Starts a standby, and returns once it has taken the place of its primary.
    pub fn start_as_standby(name: &str, options: &[&str]) -> Self {
        let (child, folder, mut output) = Self::child(name, options);
        let waits = next_line(&mut output);
        assert!(waits.starts_with("standby of "), "{waits}");
        let address = listens_at(&next_line(&mut output));
        Self { child, address, folder }
    }

    fn child(name: &str, options: &[&str]) -> (Child, PathBuf, BufReader<ChildStdout>) {
        let folder = std::env::temp_dir().join(format!("dlock-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let socket = folder.join("admin");
        let mut child = Command::new(DLOCK)
            .args(["role", "primary", "--admin-socket"])
            .arg(&socket)
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        (child, folder, output)
    }

    pub fn exec(&self, arguments: &[&str]) -> Output {
        dlock(&[&["exec", "--address", &self.address], arguments].concat())
    }

    pub fn socket(&self) -> String {
        self.folder.join("admin").to_string_lossy().into_owned()
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // the primary may have ended, and a folder that is left over does no harm
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub fn first_line(output: ChildStdout) -> String {
    next_line(&mut BufReader::new(output))
}

fn next_line(output: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line.trim_end().to_string()
}

fn listens_at(line: &str) -> String {
    line.strip_prefix("listening ").expect("it says where it listens").into()
}
