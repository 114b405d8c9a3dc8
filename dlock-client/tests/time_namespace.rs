// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client in another time namespace, as in a container: its CLOCK_BOOTTIME differs from that of
//! its primary on the same host.

mod common;

use std::fs::{remove_file, File};
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use common::{fabrics, got, join, name, named, server, status, X};
use dlock_client::raw::Instance;
use dlock_client::{ClientConfig, FabricChoice, LockId, LockType, Status};
use dlock_fabric::os::clock::boot_ns;
use dlock_server::Server;
use Status::*;

const PORT: &str = "DLOCK_TEST_PORT_OF_PARENT";
const TYPES: [LockType; 3] = [LockType::Atomic, LockType::Rw, LockType::Fair];
/// Seconds by which the namespace is ahead.
const AHEAD_S: u64 = 100_000;
/// A lease that is longer than every test.
const LONG_S: u32 = 600;
/// A lease that ends during a test.
const SHORT_S: u32 = 2;
/// The turns of each client in [`contend`].
const TURNS: usize = 100;

/// A client in another time namespace; its process ends when this is dropped.
struct Elsewhere {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Elsewhere {
    /// Starts the client; `None`: this system permits no time namespace, and a line of output says
    /// so.
    fn start(server: &Server, fabric: FabricChoice) -> Option<Self> {
        let ahead = AHEAD_S.to_string();
        let mut child = Command::new("unshare")
            .args(["--time", "--boottime", &ahead, "--fork", "--kill-child", "--"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_does_as_its_parent_says", "--nocapture"])
            .env(PORT, server.local_addr().port().to_string())
            .env("DLOCK_TEST_FABRIC", name(fabric))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .inspect_err(|error| eprintln!("SKIP: no unshare: {error}"))
            .ok()?;
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut elsewhere = Self { input: child.stdin.take(), child, output };
        let Some(clock_ns) = elsewhere.answer() else {
            eprintln!("SKIP: no time namespace: {:?}", elsewhere.child.wait());
            return None;
        };
        let ahead_ns = clock_ns.parse::<u64>().unwrap().saturating_sub(boot_ns());
        assert!(ahead_ns / 1_000_000_000 >= AHEAD_S / 2, "it has this process's clock");
        Some(elsewhere)
    }

    /// The next answer of the client; `None`: its process has ended.
    fn answer(&mut self) -> Option<String> {
        let mut lines = self.output.by_ref().map_while(Result::ok);
        lines.find_map(|line| line.strip_prefix("says ").map(str::to_string))
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.input.as_mut().unwrap(), "{what}").unwrap();
    }

    fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        self.answer().unwrap_or_else(|| panic!("no answer to {what}"))
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.wait();
    }
}

/// Not a test by itself: the client in the other time namespace. Each line that it reads is `try`,
/// `hold` or `contend`, and the name of a lock.
#[test]
fn child_that_does_as_its_parent_says() {
    let Ok(port) = std::env::var(PORT) else { return };
    println!("\nsays {}", boot_ns());
    let (port, fabric) = (port.parse().unwrap(), named());
    let config = ClientConfig { port, fabric, ..Default::default() };
    let client = Instance::init(&config, "127.0.0.1").expect("the primary admits a client");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let (what, lock) = line.split_once(' ').unwrap();
        let lock_type = TYPES.into_iter().find(|t| lock.ends_with(&format!("{t:?}"))).unwrap();
        let id = got(&client, lock, lock_type);
        let says = match what {
            "try" => {
                let status = status(client.trylock(id, X, LONG_S));
                client.unlock(id); // gives the hold, or the ticket, up
                status
            }
            "hold" => status(client.trylock(id, X, SHORT_S)),
            _ => contend(&client, id, Path::new(lock)),
        };
        println!("says {says:?}");
    }
}

/// Takes the lock again and again. The file at this path exists while a client holds the lock.
fn contend(client: &Instance, id: LockId, inside: &Path) -> Status {
    for turn in 0..TURNS {
        let taken = match turn % 2 {
            0 => status(client.lock(id, X, LONG_S)),
            _ => status(client.trylock(id, X, LONG_S)),
        };
        match taken {
            Success => {
                File::create_new(inside).expect("nobody else holds it");
                std::thread::yield_now();
                remove_file(inside).unwrap();
                assert_eq!(status(client.unlock(id)), Success);
            }
            Fail | Again if turn % 2 == 1 => {
                client.unlock(id);
            }
            other => return other,
        }
    }
    Done
}

/// Every fabric, and `auto`.
fn all() -> Vec<FabricChoice> {
    fabrics().into_iter().chain([FabricChoice::Auto]).collect()
}

#[test]
fn a_lease_that_runs_is_not_over_in_another_time_namespace() {
    let server = server();
    for fabric in all() {
        let Some(mut elsewhere) = Elsewhere::start(&server, fabric) else { return };
        let here = join(&server, fabrics()[0]);
        for lock_type in TYPES {
            let lock = format!("{} {lock_type:?}", name(fabric));
            let id = got(&here, &lock, lock_type);
            assert_eq!(status(here.trylock(id, X, LONG_S)), Success);
            let says = elsewhere.ask(&format!("try {lock}"));
            assert!(["Fail", "Again"].contains(&&*says), "{lock}: {says}");
            assert_eq!(status(here.unlock(id)), Success, "{lock}");
        }
    }
}

#[test]
fn a_lease_that_was_taken_in_another_time_namespace_ends_in_time() {
    let server = server();
    for fabric in all() {
        let Some(mut elsewhere) = Elsewhere::start(&server, fabric) else { return };
        let here = join(&server, fabrics()[0]);
        for lock_type in [LockType::Atomic, LockType::Fair] {
            let lock = format!("{} {lock_type:?}", name(fabric));
            let id = got(&here, &lock, lock_type);
            let before_ns = boot_ns();
            assert_eq!(elsewhere.ask(&format!("hold {lock}")), "Success");
            common::eventually(60, "the lease is over", || match here.lock(id, X, LONG_S).status {
                Success => true,
                other => {
                    assert!(matches!(other, Fail | Again | TimedOut), "{lock}: {other}");
                    false
                }
            });
            let took_ns = boot_ns() - before_ns;
            assert!(took_ns >= u64::from(SHORT_S) * 1_000_000_000, "{lock}: after {took_ns} ns");
            assert_eq!(status(here.unlock(id)), Success);
        }
    }
}

#[test]
fn clients_in_two_time_namespaces_exclude_each_other() {
    let server = server();
    let folder = std::env::temp_dir().join(format!("dlock-namespaces-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for fabric in all() {
        let Some(mut elsewhere) = Elsewhere::start(&server, fabric) else { break };
        let here = join(&server, fabrics()[0]);
        for lock_type in TYPES {
            let lock = folder.join(format!("{}{lock_type:?}", name(fabric)));
            let id = got(&here, lock.to_str().unwrap(), lock_type);
            elsewhere.tell(&format!("contend {}", lock.display()));
            assert_eq!(contend(&here, id, &lock), Done, "{}", lock.display());
            assert_eq!(elsewhere.answer().as_deref(), Some("Done"), "{}", lock.display());
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
