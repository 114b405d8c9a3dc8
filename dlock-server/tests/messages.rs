// SPDX-License-Identifier: MIT OR Apache-2.0
//! The messages of a `dlockd` that does not start are those of `docs/messages.md`: every row is
//! provoked.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};

use dlock_manuals::Messages;

const DLOCKD: &str = env!("CARGO_BIN_EXE_dlockd");

/// The message of `dlockd` with these options, started by the command `under`.
fn said(under: &[&str], options: &[&str]) -> String {
    let words = [under, &[DLOCKD], options].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("XDG_STATE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/messages"));
    let mut child = command.spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    if !ready.is_empty() {
        child.kill().unwrap();
        panic!("{words:?} starts: {ready}");
    }
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stderr).unwrap()
}

/// The message of `dlockd` when this system call is denied.
fn denied(calls: &str, error: &str) -> String {
    let (trace, inject) = (format!("trace={calls}"), format!("inject={calls}:error={error}"));
    said(&["strace", "-f", "-q", "-o", "/dev/null", "-e", &trace, "-e", &inject], &["--port=0"])
}

#[test]
fn dlockd_says_what_the_table_of_messages_has() {
    let mut messages = Messages::of(&["`dlockd`"]);
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let own = IpAddr::from(Ipv4Addr::new(127, a | 0x80, b, c));
    let taken = TcpListener::bind((own, 0)).unwrap();
    let port = format!("--port={}", taken.local_addr().unwrap().port());
    messages.compare("port in use", &said(&[], &["--listen", &own.to_string(), &port]));
    let far = said(&[], &["--insecure", "--port=0", "--listen", "192.0.2.1"]);
    messages.compare("address of another host", &far);
    if Command::new("strace").arg("-V").output().is_err() {
        eprintln!("skipped: strace, which denies system calls to a program, is not installed");
        return messages.finish(&["setsockopt denied", "prlimit denied", "no more threads"]);
    }
    messages.compare("setsockopt denied", &denied("setsockopt", "EPERM"));
    messages.compare("prlimit denied", &denied("prlimit64", "EPERM"));
    messages.compare("no more threads", &denied("clone,clone3", "EAGAIN"));
    messages.finish(&[]);
}
