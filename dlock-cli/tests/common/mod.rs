// SPDX-License-Identifier: MIT OR Apache-2.0
//! What several tests of `dlock` need. Each uses a part of it.
#![allow(dead_code)]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

pub const DLOCK: &str = env!("CARGO_BIN_EXE_dlock");

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

/// A loopback address of this process's own, for a port that is free for a moment: nobody else
/// takes one there.
pub fn own_address() -> std::net::Ipv4Addr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    std::net::Ipv4Addr::new(127, a | 0x80, b, c)
}

/// A primary as a process; it ends with its standard input, at the latest with the test.
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

    /// With these options and no others: what has a lease ends with that, and not with a grace.
    pub fn start_exactly(name: &str, options: &[&str]) -> Self {
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
        let line = first_line(child.stdout.take().unwrap());
        let address = line.strip_prefix("listening ").expect("it says where it listens").into();
        Self { child, address, folder }
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
        let _ = self.child.wait(); // nothing to do if it is gone
        let _ = std::fs::remove_dir_all(&self.folder); // a left-over harms nobody
    }
}

pub fn first_line(output: ChildStdout) -> String {
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).unwrap();
    line.trim_end().to_string()
}
