// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process at its limit of open files comes back to a successor with the descriptors of the
//! session before.

mod common;

use std::fs::File;
use std::io::{stdin, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use common::site::{by_itself, Site};
use common::{config, eventually, fabrics, got, name, named, status, S, X};
use dlock_client::raw::Instance;
use dlock_client::{LockType, Status::*};

const ADDRESS: &str = "DLOCK_TEST_AT_LIMIT";
const BY_HAND: &str = "DLOCK_TEST_BY_HAND";

/// Opens files until the process is at its limit.
fn fill() -> Vec<File> {
    let taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!(taken.len() > 5, "the limit is too low for a client");
    taken
}

/// Tells the parent how far this child is, and waits until the parent lets it go on.
fn waits(at: &str) {
    println!("\nat {at}");
    assert!(stdin().lock().read_line(&mut String::new()).unwrap() > 0, "the parent is there");
}

/// Not a test by itself: the child process that is at its limit.
#[test]
fn child_at_its_limit() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let at: std::net::SocketAddr = address.parse().unwrap();
    let by_hand = std::env::var_os(BY_HAND).is_some();
    let ip = at.ip().to_string();
    let client = match by_hand {
        true => Instance::init(&config(at, named()), &ip).unwrap().into(),
        false => by_itself(at, named()),
    };
    let atomic = got(&client, "atomic", LockType::Atomic);
    let (rw, fair) = (got(&client, "rw", LockType::Rw), got(&client, "fair", LockType::Fair));
    let free = got(&client, "free", LockType::Atomic);
    let holds = [(atomic, X), (rw, X), (fair, S)];
    for (id, mode) in holds {
        assert_eq!(status(client.trylock(id, mode, 600)), Success);
    }
    let filled = fill();
    waits("its limit");
    if by_hand {
        // the primary is gone; failed calls change nothing in the client
        for _ in 0..2 {
            assert_eq!(client.reinit(&ip), NotReady);
            assert_eq!(client.heartbeat(1), BadResponse);
            assert_eq!(status(client.trylock(free, X, 1)), BadResponse);
        }
        waits("nothing");
        assert_eq!(client.reinit(&ip), Success);
        assert_eq!((client.update_all_locks(), client.reinit_done()), (Success, Success));
    }
    eventually(60, "it is back", || status(client.extend(atomic, X, 600)) == Success);
    for (id, _) in holds {
        assert_eq!(status(client.unlock(id)), Success, "the hold is kept");
    }
    assert_eq!(client.heartbeat(10), Success);
    assert_eq!(client.deinit(), Success);
    drop(filled);
    println!("\nat the end");
}

/// The child process, with a limit of open files.
struct Limited {
    child: Child,
    input: ChildStdin,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Limited {
    fn start(site: &Site, fabric: &str, by_hand: bool) -> Self {
        let program = std::env::current_exe().unwrap();
        let run = "ulimit -n 64; exec \"$0\" --exact child_at_its_limit --nocapture";
        let mut command = Command::new("sh");
        command.args(["-c", run]).arg(program).env(ADDRESS, site.address().to_string());
        command.env("DLOCK_TEST_FABRIC", fabric);
        if by_hand {
            command.env(BY_HAND, "1");
        }
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let input = child.stdin.take().unwrap();
        Self { child, input, lines }
    }

    fn comes_to(&mut self, at: &str) {
        let wanted = format!("at {at}");
        let found = self.lines.by_ref().map_while(Result::ok).any(|line| line == wanted);
        assert!(found, "it ends before it is {wanted}");
    }

    fn goes_on(&mut self) {
        writeln!(self.input).unwrap();
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = self.child.kill(); // the child has ended already, unless the test failed
        let _ = self.child.wait();
    }
}

fn comes_to_the_successor(by_hand: bool) {
    for fabric in fabrics() {
        let mut site = Site::new(&format!("limit-{by_hand}-{}", fabric.name()));
        let mut client = Limited::start(&site, name(fabric), by_hand);
        client.comes_to("its limit");
        site.stop();
        if by_hand {
            client.goes_on();
            client.comes_to("nothing");
        }
        site.start();
        client.goes_on();
        client.comes_to("the end");
    }
}

#[test]
fn a_client_at_the_limit_of_open_files_comes_to_the_successor_by_itself() {
    comes_to_the_successor(false);
}

#[test]
fn a_client_at_the_limit_of_open_files_comes_to_the_successor_by_hand_and_fails_without_loss() {
    comes_to_the_successor(true);
}
