// SPDX-License-Identifier: MIT OR Apache-2.0
//! A primary whose RDMA device fails: for a while, and for longer than the primary waits. The test
//! takes a network interface down, so it runs in the virtual machine of tests/rxe alone.

mod common;

use std::net::TcpStream;
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use common::{config, eventually, got, status, X};
use dlock_client::raw::{Instance, OpResult};
use dlock_client::{FabricChoice, LockId, LockType, Status};
use dlock_server::{Server, ServerConfig, VerbsUse};
use Status::*;

/// What the primary has logged.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Lines;

impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        LINES.lock().unwrap().push(record.args().to_string());
    }
    fn flush(&self) {}
}

fn lines_with(text: &str) -> Vec<String> {
    LINES.lock().unwrap().iter().filter(|line| line.contains(text)).cloned().collect()
}

/// The network interface of the primary's device; dropping this takes it up.
struct Link;

impl Link {
    fn set(state: &str) {
        let changed = Command::new("rxe-link").args(["r0", state]).status();
        assert!(changed.expect("rxe-link is on the PATH").success());
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        Self::set("up");
    }
}

fn init(server: &Server, fabric: FabricChoice) -> Result<Instance, Status> {
    let addr = server.local_addr();
    Instance::init(&config(addr, fabric), &addr.ip().to_string())
}

fn lock(client: &Instance, id: LockId) -> OpResult {
    client.trylock(id, X, 1_000)
}

#[test]
fn a_primary_without_its_device_refuses_with_a_status_and_goes_on_or_ends() {
    if std::env::var_os("RXE_VM").is_none() {
        return eprintln!("SKIP: it takes an interface down: in the virtual machine alone");
    }
    log::set_logger(&Lines).expect("the only logger");
    log::set_max_level(log::LevelFilter::Info);
    // The control channel is on the loopback interface, which stays up.
    let config = ServerConfig { port: 0, verbs: VerbsUse::On, ..ServerConfig::default() };
    let server = Server::start(config).expect("the primary starts");
    let join = |fabric| init(&server, fabric).expect("the primary admits a client");
    let (tcp, watcher) = (join(FabricChoice::Tcp), join(FabricChoice::Tcp));
    let verbs = join(FabricChoice::Verbs);
    let ids = [&tcp, &watcher, &verbs].map(|client| got(client, "a", LockType::Atomic));
    let held = got(&verbs, "held", LockType::Atomic);
    assert_eq!(status(lock(&verbs, held)), Success);
    let _up = Link;

    // The device fails for a while: calls that need the lock memory wait, all others are answered.
    Link::set("down");
    thread::scope(|scope| {
        let waits = scope.spawn(|| lock(&tcp, ids[0]).status);
        eventually(60, "heartbeats are refused", || watcher.heartbeat(10) == NotReady);
        assert_eq!(init(&server, FabricChoice::Tcp).err(), Some(NotReady));
        assert_eq!(watcher.get_lock(common::desc("b", LockType::Rw)).0, NotReady);
        Link::set("up");
        let waited = waits.join().expect("it does not panic");
        assert!([Success, BadResponse].contains(&waited), "{waited:?}");
    });
    eventually(60, "it answers again", || watcher.heartbeat(10) == Success);
    assert_eq!(lines_with("did not answer for a while").len(), 1);
    eventually(60, "the lock is had", || {
        [Success, AlreadyLocked].contains(&lock(&tcp, ids[0]).status)
    });
    assert_eq!(status(lock(&watcher, ids[1])), Fail, "nothing is lost");
    eventually(60, "it is released as often", || tcp.unlock(ids[0]).status == Success);
    assert_eq!(status(lock(&watcher, ids[1])), Success);
    let held_elsewhere = got(&watcher, "held", LockType::Atomic);
    assert_eq!(status(lock(&watcher, held_elsewhere)), Fail);

    // The device fails for longer than the primary waits: the primary ends, and reports the reason
    // once.
    Link::set("down");
    thread::scope(|scope| {
        scope.spawn(|| watcher.unlock(ids[1]));
        eventually(120, "the primary has closed its port", || {
            let answer = tcp.heartbeat(10);
            assert!([Success, NotReady, BadResponse].contains(&answer), "{answer:?}");
            TcpStream::connect(server.local_addr()).is_err()
        });
    });
    let ends = lines_with("the primary ends");
    assert!(ends.len() == 1 && ends[0].contains("its RDMA device does not work"), "{ends:?}");
    assert_eq!(tcp.heartbeat(10), BadResponse);
    let after = lock(&verbs, ids[2]).status;
    assert!([BadResponse, NotReady].contains(&after), "{after:?}");
    assert_eq!(lines_with("panicked"), Vec::<String>::new());
}
