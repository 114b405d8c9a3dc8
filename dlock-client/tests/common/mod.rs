// SPDX-License-Identifier: MIT OR Apache-2.0
//! A primary in this process, and clients on each executor.

#![allow(dead_code, reason = "every test binary uses a part of it")]

pub mod line;
pub mod site;

use std::io::{self, BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_client::raw::Instance;
use dlock_client::raw::OpResult;
use dlock_client::Status;
use dlock_client::{
    Client, ClientConfig, Config, FabricChoice, FabricKind, Lock, LockDesc, LockId, LockType, Mode,
    NoPassword, Tls, TlsFiles,
};
use dlock_core::wire::fabric::Executes;
use dlock_fabric::VerbsHost;
use dlock_server::{Server, ServerConfig, VerbsUse};

pub const X: Mode = Mode::Exclusive;
pub const S: Mode = Mode::Shared;

/// The lock of this type and name.
pub fn lock(client: &Client, name: &str, lock_type: LockType) -> Lock {
    match lock_type {
        LockType::Atomic => client.atomic_lock(name),
        LockType::Rw => client.rw_lock(name),
        LockType::Fair => client.fair_lock(name),
    }
    .unwrap()
}
/// With `DLOCK_FABRIC=verbs` in the environment the primaries here are on an RDMA device.
pub fn on_verbs() -> bool {
    std::env::var(dlock_client::FABRIC_VARIABLE).is_ok_and(|fabric| fabric == "verbs")
}

/// With `DLOCK_FABRIC=sealed` and certificates in the environment they seal frames to one.
pub fn on_sealed() -> bool {
    std::env::var(dlock_client::FABRIC_VARIABLE).is_ok_and(|fabric| fabric == "sealed")
}

/// Whether this host has an RDMA device; if not, prints that.
pub fn has_device() -> bool {
    let Err(error) = VerbsHost::choose(None, &[0; 16]) else { return true };
    let required = std::env::var_os("DLOCK_RXE_REQUIRED").is_some_and(|value| value == "1");
    assert!(!required, "{error}");
    eprintln!("SKIP: {error}");
    false
}

/// The executors that the primary of these tests offers, in the order in which `auto` tries them.
/// The first one lets clients operate on the memory by themselves.
pub fn fabrics() -> Vec<FabricChoice> {
    let offered = |kind: &FabricKind| match kind.executes() {
        Executes::Primary if kind.needs_device() => on_sealed(),
        Executes::Device => on_verbs(),
        Executes::Client => !on_verbs(),
        Executes::Primary => true,
    };
    FabricKind::ALL.into_iter().filter(offered).map(FabricChoice::from).collect()
}

/// The name of an executor, for a child process.
pub fn name(fabric: FabricChoice) -> &'static str {
    fabric.name()
}

/// The executor that a parent process named in `DLOCK_TEST_FABRIC`.
pub fn named() -> FabricChoice {
    let wanted = std::env::var("DLOCK_TEST_FABRIC").expect("the parent names a fabric");
    wanted.parse().expect("a fabric")
}

pub fn server() -> Server {
    server_with(ServerConfig::default())
}

/// Starts a primary on a free port of the loopback interface.
pub fn server_with(config: ServerConfig) -> Server {
    server_at(0, config)
}

/// Starts a primary on this port of the loopback interface.
pub fn server_at(port: u16, config: ServerConfig) -> Server {
    let verbs = if on_verbs() || on_sealed() { VerbsUse::On } else { VerbsUse::Off };
    let tls = config.tls.or_else(tls_of_environment);
    Server::start(ServerConfig { port, verbs, tls, ..config }).expect("the primary starts")
}

/// The certificate of the primaries here, which is that of the clients: with `DLOCK_TLS_CA` and the
/// related variables in the environment both speak TLS. `None`: without TLS.
fn tls_of_environment() -> Option<Tls> {
    let path = |name: &str| std::env::var_os(name).map(Into::into);
    let files = TlsFiles {
        ca: path(dlock_client::TLS_CA_VARIABLE)?,
        crl: path(dlock_client::TLS_CRL_VARIABLE),
        cert: path(dlock_client::TLS_CERT_VARIABLE)?,
        key: path(dlock_client::TLS_KEY_VARIABLE)?,
    };
    Some(Tls::load(files, Arc::new(NoPassword)).expect("the files of the environment"))
}

/// The hash of a lock's name: the id of the lock, if the hash is positive and no other lock has
/// this id.
pub fn hash(name: &str) -> i32 {
    let add = |h: u32, b: u8| h.wrapping_mul(33).wrapping_add(u32::from(b));
    name.bytes().fold(5381, add) as i32
}

/// A loopback address for the tests of this process alone. A test may free a port of this address
/// and bind it again later: no test of another process takes the port in between.
pub fn own_address() -> IpAddr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, a | 0x80, b, c).into()
}

/// A loopback address for this thread alone: no other test of this process takes its ports either.
pub fn address_of_thread() -> IpAddr {
    static THREADS: AtomicU8 = AtomicU8::new(0);
    thread_local!(static NUMBER: u8 = THREADS.fetch_add(1, Ordering::Relaxed));
    let [_, _, b, c] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, NUMBER.with(|number| number & 0x3f | 0x40), b, c).into()
}

pub fn config(addr: SocketAddr, fabric: FabricChoice) -> ClientConfig {
    ClientConfig { port: addr.port(), fabric, ..Default::default() }
}

pub fn join(server: &Server, fabric: FabricChoice) -> Instance {
    let addr = server.local_addr();
    let instance = Instance::init(&config(addr, fabric), &addr.ip().to_string());
    let instance = instance.expect("the primary admits a client");
    assert_eq!(instance.fabric(), name(fabric));
    instance
}

pub fn client(server: &Server, fabric: FabricChoice) -> Client {
    let addr = server.local_addr();
    let config = Config::new().port(addr.port()).fabric(fabric);
    Client::with_config(&config, &addr.ip().to_string()).expect("a client")
}

pub fn desc(name: &str, lock_type: LockType) -> LockDesc {
    LockDesc { name: name.into(), lock_type, lease_s: 0, tokens: false }
}

pub fn got(instance: &Instance, name: &str, lock_type: LockType) -> LockId {
    let (status, id) = instance.get_lock(desc(name, lock_type));
    assert_eq!(status, Status::Success, "{name}");
    id.expect("a success has an id")
}

pub fn status(result: OpResult) -> Status {
    result.status
}

/// Sends a process a signal: every shell has it, not every system as a program.
pub fn signal(child: &Child, name: &str) {
    let kill = format!("kill -{name} {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}

/// Repeats a question until its answer is yes, for at most `seconds`.
pub fn eventually(seconds: u64, what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while !holds() {
        assert!(Instant::now() < deadline, "not within {seconds} s: {what}");
        std::thread::sleep(Duration::from_millis(1)); // leaves the CPU to other threads
    }
}

/// Set in a child process that is to serve as a [`ChildPrimary`].
const SERVES: &str = "DLOCK_TEST_SERVES_FOR_PARENT";

/// A primary in a process of its own: this very program, in a test that calls
/// [`serve_as_child`]. It is killed when this is dropped.
pub struct ChildPrimary {
    pub child: Child,
    pub port: u16,
}

impl ChildPrimary {
    /// Starts the primary; `test` is the name of the test that calls [`serve_as_child`].
    pub fn start(test: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(SERVES, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let port_of = |line: io::Result<String>| line.unwrap().strip_prefix("port ")?.parse().ok();
        let port = lines.by_ref().find_map(port_of).unwrap();
        // the test framework prints a line about a test that takes more than a minute: the child
        // would end if that was not read
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, port }
    }

    pub fn config(&self, fabric: FabricChoice) -> ClientConfig {
        ClientConfig { port: self.port, fabric, ..Default::default() }
    }

    /// Stops the process, and waits until each of its threads has stopped.
    pub fn freeze(&self) {
        let pid = self.child.id().to_string();
        signal(&self.child, "STOP");
        let is_stopped = |stat: String| {
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            state == Some('T')
        };
        eventually(60, "it is stopped", || {
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
            let stats = tasks.flatten().map(|task| task.path().join("stat"));
            { stats }.all(|stat| std::fs::read_to_string(stat).is_ok_and(is_stopped))
        });
    }

    /// Lets the stopped process go on.
    pub fn thaw(&self) {
        signal(&self.child, "CONT");
    }

    pub fn client(&self, fabric: FabricChoice) -> Client {
        let config = Config::new().port(self.port).fabric(fabric);
        Client::with_config(&config, "127.0.0.1").expect("a client")
    }

    /// Kills the process, and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().unwrap(); // this kills a stopped process, too
        self.child.wait().unwrap();
    }
}

impl Drop for ChildPrimary {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a process started by [`ChildPrimary::start`]: serves until the parent ends, or kills this
/// process. In any other process: does nothing.
pub fn serve_as_child() {
    if std::env::var(SERVES).is_ok() {
        let server = server();
        println!("\nport {}", server.local_addr().port());
        let _ = std::io::stdin().read(&mut [0]);
    }
}

/// `threads` threads of one client each take and release a lock of their own `rounds` times.
pub fn threads_lock(instance: &Arc<Instance>, threads: usize, rounds: usize) {
    let threads: Vec<_> = (0..threads)
        .map(|n| {
            let instance = Arc::clone(instance);
            std::thread::spawn(move || {
                let id = got(&instance, &format!("of thread {n}"), LockType::Fair);
                for _ in 0..rounds {
                    assert_eq!(status(instance.lock(id, X, 100)), Status::Success);
                    assert_eq!(status(instance.unlock(id)), Status::Success);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
