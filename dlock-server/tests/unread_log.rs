// SPDX-License-Identifier: MIT OR Apache-2.0
//! A primary whose log is not read serves, and ends when it is told to.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{mpsc, Arc, Mutex};
use std::time::{Duration, Instant};

use common::{eventually, Peer};
use dlock_core::wire::control::ControlRequest;
use dlock_fabric::os::sink::{FLUSH_MAX, LINES_MAX};
use rustix::io::{ioctl_fionbio, write, Errno};
use rustix::process::{kill_process, Pid, Signal};

/// More time than a healthy primary takes to end, without its last lines.
const END_MAX: Duration = Duration::from_secs(20);

/// A full pipe: the end to read, and the end to write.
fn full_pipe() -> (std::fs::File, OwnedFd) {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    ioctl_fionbio(&writer, true).unwrap();
    let filling = [b'x'; 4_096];
    while write(&writer, &filling) != Err(Errno::AGAIN) {}
    ioctl_fionbio(&writer, false).unwrap();
    (reader.into(), writer)
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill(); // the process has ended already, unless the test failed
        let _ = self.0.wait();
    }
}

/// Starts a dlockd that writes its log to `stderr`; returns its address, too.
fn start(stderr: OwnedFd) -> (Running, SocketAddr) {
    let mut dlockd = Command::new(env!("CARGO_BIN_EXE_dlockd"))
        .args(["--port=0", "--state-file=none", "--log-level=debug"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .unwrap();
    let (said, heard) = mpsc::channel();
    let stdout = dlockd.stdout.take().unwrap();
    let dlockd = Running(dlockd);
    std::thread::spawn(move || {
        let mut line = String::new();
        let _ = BufReader::new(stdout).read_line(&mut line); // an empty line is seen below
        let _ = said.send(line); // a failed test does not receive it
    });
    let line = heard.recv_timeout(END_MAX).unwrap_or_default();
    let Some(address) = line.strip_prefix("dlockd ready: listening on ") else {
        panic!("it does not serve: {line:?}");
    };
    let address = address.split(',').next().unwrap().parse().expect("an address");
    (dlockd, address)
}

/// Lets a client come and leave, which is logged.
fn visit(address: SocketAddr) {
    let (mut peer, _) = Peer::init(address);
    peer.call(ControlRequest::Deinit);
}

fn ends_on_sigterm(mut dlockd: Running) -> Duration {
    let asked = Instant::now();
    kill_process(Pid::from_child(&dlockd.0), Signal::TERM).unwrap();
    let mut code = None;
    eventually("it ends", || {
        code = dlockd.0.try_wait().unwrap();
        code.is_some()
    });
    assert_eq!(code.unwrap().code(), Some(0));
    asked.elapsed()
}

#[test]
fn a_log_that_is_not_read_holds_up_neither_clients_nor_the_end() {
    let (reader, writer) = full_pipe();
    let (dlockd, address) = start(writer);
    for _ in 0..20 {
        visit(address);
    }
    let took = ends_on_sigterm(dlockd);
    assert!(took < FLUSH_MAX + END_MAX, "{took:?}");
    drop(reader);
}

#[test]
fn what_a_log_lost_is_counted_in_it_once_it_is_read_again() {
    let (mut reader, writer) = full_pipe();
    let (dlockd, address) = start(writer);
    for _ in 0..LINES_MAX {
        visit(address);
    }
    let log = Arc::new(Mutex::new(Vec::new()));
    let read = Arc::clone(&log);
    let reads = std::thread::spawn(move || {
        let mut bytes = [0; 4_096];
        while let count @ 1.. = reader.read(&mut bytes).unwrap() {
            read.lock().unwrap().extend_from_slice(&bytes[..count]);
        }
    });
    let has = |line: &str| String::from_utf8_lossy(&log.lock().unwrap()).contains(line);
    visit(address);
    eventually("the loss is told of", || has("log lines before this one were lost"));
    ends_on_sigterm(dlockd);
    reads.join().unwrap();
    assert!(has("SIGTERM: stopping"), "later lines are there");
}

#[test]
fn a_log_whose_reader_is_gone_ends_nothing() {
    let (reader, writer) = full_pipe();
    drop(reader);
    let (dlockd, address) = start(writer);
    for _ in 0..20 {
        visit(address);
    }
    ends_on_sigterm(dlockd);
}
