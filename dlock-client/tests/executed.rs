// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client whose process executes another program: its connections and its memory are gone, and
//! the process lives.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{fabrics, got, join, name, named, server_with, status, X};
use dlock_client::raw::Instance;
use dlock_client::{ClientConfig, FabricChoice, LockType, Status};
use dlock_server::{Server, ServerConfig};
use Status::*;

const PORT: &str = "DLOCK_TEST_PORT_OF_PARENT";
const TYPES: [LockType; 3] = [LockType::Atomic, LockType::Rw, LockType::Fair];
/// For how long an absent client keeps holds that have no lease.
const GRACE: Duration = Duration::from_secs(1);
const FOR_EVER: u32 = u32::MAX;

fn lock_of(fabric: FabricChoice, lock_type: LockType) -> String {
    format!("{} {lock_type:?}", name(fabric))
}

/// Not a test by itself: the client process. It takes a lock of each type for ever, and executes
/// `cat`, which ends with its input.
#[test]
fn child_that_executes_another_program() {
    let Ok(port) = std::env::var(PORT) else { return };
    let (port, fabric) = (port.parse().unwrap(), named());
    let config = ClientConfig { port, fabric, ..Default::default() };
    let client = Instance::init(&config, "127.0.0.1").expect("the primary admits a client");
    for lock_type in TYPES {
        let id = got(&client, &lock_of(fabric, lock_type), lock_type);
        assert_eq!(status(client.trylock(id, X, FOR_EVER)), Success, "{lock_type:?}");
    }
    println!("\nholds");
    panic!("cat was not executed: {}", Command::new("cat").exec());
}

/// Starts the client process; returns when it holds its locks, and is about to execute `cat`.
fn start(server: &Server, fabric: FabricChoice) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_executes_another_program", "--nocapture"])
        .env(PORT, server.local_addr().port().to_string())
        .env("DLOCK_TEST_FABRIC", name(fabric))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "holds"), "it did not get its locks");
    child
}

#[test]
fn what_a_process_held_before_it_executed_another_program_ends_with_the_grace() {
    let server = server_with(ServerConfig { absent_grace: Some(GRACE), ..Default::default() });
    for fabric in fabrics() {
        let mut child = start(&server, fabric);
        let next = join(&server, fabric);
        for lock_type in TYPES {
            let lock = lock_of(fabric, lock_type);
            let id = got(&next, &lock, lock_type);
            common::eventually(60, &format!("{lock} is free"), || {
                match next.lock(id, X, FOR_EVER).status {
                    Success => true,
                    Fail | Again | TimedOut => false,
                    other => panic!("{lock}: {other}"),
                }
            });
            assert_eq!(status(next.unlock(id)), Success, "{lock}");
        }
        assert_eq!(child.try_wait().unwrap(), None, "{}: the process has ended", name(fabric));
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
