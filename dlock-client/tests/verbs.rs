// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients of a primary on an RDMA device, over verbs and over tcp. On a machine without a device
//! these tests say so and do nothing; `DLOCK_RXE_REQUIRED=1` makes that a failure.

mod common;

use dlock_core::clock::Lease;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use common::{config, desc, got, has_device, status, S, X};
use dlock_client::raw::{Instance, OpResult};
use dlock_client::{FabricChoice, LockId, LockType, Status, WordOpCounts};
use dlock_server::{Orphans, Server, ServerConfig, VerbsUse};
use Status::*;

const TYPES: [LockType; 3] = [LockType::Atomic, LockType::Rw, LockType::Fair];
/// Clients of each executor in the mixed tests.
const CLIENTS: usize = 4;
/// How long verbs and tcp clients contend, in seconds, if `DLOCK_TEST_MIXED_S` does not say it.
const MIXED_S: u64 = 3;
/// Acquires and releases at a stopped primary, if `DLOCK_TEST_STOPPED_OPS` does not say it.
const STOPPED_OPS: u64 = 4_000;

/// A primary on the device; `None`: there is none.
fn primary(config: ServerConfig) -> Option<Server> {
    let config = ServerConfig { port: 0, verbs: VerbsUse::On, ..config };
    has_device().then(|| Server::start(config).expect("the primary starts"))
}

fn client(server: &Server, fabric: FabricChoice) -> Instance {
    let addr = server.local_addr();
    let client = Instance::init(&config(addr, fabric), &addr.ip().to_string());
    let client = client.expect("the primary admits a client");
    assert_eq!(client.fabric(), common::name(fabric));
    client
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

fn counts(client: &Instance) -> WordOpCounts {
    client.word_op_counts().expect("a client over verbs")
}

/// The result of an operation, and the numbers of work requests that it has posted.
fn cost<T>(client: &Instance, operation: impl FnOnce() -> T) -> (T, WordOpCounts) {
    let before = counts(client);
    let result = operation();
    let after = counts(client);
    let cost = WordOpCounts {
        atomics: after.atomics - before.atomics,
        reads: after.reads - before.reads,
        notes: after.notes - before.notes,
        doorbells: after.doorbells - before.doorbells,
        sends: after.sends - before.sends,
    };
    (result, cost)
}

/// The last ledger write of a shared hold has a doorbell of its own, and the client does not wait
/// for it.
#[test]
fn an_uncontended_acquire_and_release_is_two_atomics_and_no_message() {
    let Some(server) = primary(ServerConfig::default()) else { return };
    let a = client(&server, FabricChoice::Verbs);
    for (name, lock_type, mode, notes, reads, doorbells) in [
        ("counted atomic", LockType::Atomic, X, 0, 0, 2),
        ("counted rw exclusive", LockType::Rw, X, 0, 0, 2),
        ("counted rw shared", LockType::Rw, S, 4, 0, 3),
        ("counted fair exclusive", LockType::Fair, X, 2, 1, 2),
        ("counted fair shared", LockType::Fair, S, 2, 1, 3),
    ] {
        let id = got(&a, name, lock_type);
        for _ in 0..50 {
            let (results, cost) = cost(&a, || [a.trylock(id, mode, 30), a.unlock(id)]);
            assert_eq!(results.map(status), [Success; 2], "{name}");
            let expected = WordOpCounts { atomics: 2, reads, notes, doorbells, sends: 0 };
            assert_eq!(cost, expected, "{name}");
        }
    }
    assert_eq!(a.deinit(), Success);
}

#[test]
fn a_batch_of_31_is_one_doorbell() {
    let Some(server) = primary(ServerConfig::default()) else { return };
    let a = client(&server, FabricChoice::Verbs);
    let ids: Vec<LockId> =
        (0..31).map(|n| got(&a, &format!("batched {n}"), LockType::Atomic)).collect();
    let wanted: Vec<_> = ids.iter().map(|&id| (id, X, 60)).collect();
    let mut results = vec![OpResult::of(Error); 31];
    let (called, taken) = cost(&a, || a.batch_trylock(&wanted, &mut results));
    assert_eq!(called, Success);
    assert!(results.iter().all(|result| result.status == Success), "{results:?}");
    assert_eq!((taken.atomics, taken.doorbells, taken.sends), (31, 1, 0));
    let (called, given) = cost(&a, || a.batch_unlock(&ids, &mut results));
    assert_eq!(called, Success);
    assert!(results.iter().all(|result| result.status == Success), "{results:?}");
    assert_eq!((given.atomics, given.doorbells, given.sends), (31, 1, 0));
}

#[test]
fn an_operation_on_an_object_is_one_verb() {
    let Some(server) = primary(ServerConfig::default()) else { return };
    let a = client(&server, FabricChoice::Verbs);
    a.object_create(b"counted", Lease::secs(60), 5).unwrap();
    let object = a.object_get(b"counted", Lease::secs(60)).unwrap();
    let (value, added) = cost(&a, || a.faa(object, 2));
    assert_eq!(value, Ok(5));
    assert_eq!((added.atomics, added.reads, added.doorbells, added.sends), (1, 0, 1, 0));
    let (swapped, swap) = cost(&a, || a.cas(object, 7, 9));
    assert_eq!(swapped, Success);
    assert_eq!((swap.atomics, swap.reads, swap.doorbells, swap.sends), (1, 0, 1, 0));
    let (value, read) = cost(&a, || a.snapshot(object));
    assert_eq!(value, Ok(9));
    assert_eq!((read.atomics, read.reads, read.doorbells, read.sends), (0, 1, 1, 0));
}

/// The number of threads that have a lock, by mode.
#[derive(Default)]
struct Inside {
    writers: AtomicU64,
    readers: AtomicU64,
    rounds: AtomicU64,
}

impl Inside {
    fn writes(&self) {
        assert_eq!(self.writers.fetch_add(1, SeqCst), 0, "two writers");
        assert_eq!(self.readers.load(SeqCst), 0, "a writer beside a reader");
        assert_eq!(self.writers.fetch_sub(1, SeqCst), 1);
    }

    fn reads(&self) {
        self.readers.fetch_add(1, SeqCst);
        assert_eq!(self.writers.load(SeqCst), 0, "a reader beside a writer");
        self.readers.fetch_sub(1, SeqCst);
    }
}

/// Takes locks of every type, by `lock` and `trylock`, until `stop` is set.
fn contend(client: &Instance, ids: [LockId; 3], inside: &[Inside; 3], n: usize, stop: &AtomicBool) {
    let mut turn = n;
    while !stop.load(SeqCst) {
        turn += 1;
        let kind = turn % 3;
        let (id, inside, lock_type) = (ids[kind], &inside[kind], TYPES[kind]);
        let shared = lock_type != LockType::Atomic && turn % 5 < 3;
        let mode = if shared { S } else { X };
        let result =
            if turn % 7 < 3 { client.trylock(id, mode, 60) } else { client.lock(id, mode, 60) };
        match result.status {
            Success if shared => inside.reads(),
            Success => inside.writes(),
            Fail => continue,
            // the client gives its ticket up
            Again => {
                assert_eq!(status(client.unlock(id)), Success);
                continue;
            }
            other => panic!("{lock_type:?} {mode:?}: {other}"),
        }
        inside.rounds.fetch_add(1, SeqCst);
        assert_eq!(status(client.unlock(id)), Success, "{lock_type:?} {mode:?}");
    }
}

#[test]
fn verbs_and_tcp_clients_of_one_primary_exclude_each_other() {
    let Some(server) = primary(ServerConfig::default()) else { return };
    let fabrics = [FabricChoice::Verbs, FabricChoice::Tcp];
    let clients: Vec<Instance> =
        (0..2 * CLIENTS).map(|n| client(&server, fabrics[n % 2])).collect();
    let (inside, stop) = (<[Inside; 3]>::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        for (n, client) in clients.iter().enumerate() {
            let (inside, stop) = (&inside, &stop);
            let ids =
                TYPES.map(|lock_type| got(client, &format!("mixed {lock_type:?}"), lock_type));
            scope.spawn(move || contend(client, ids, inside, n, stop));
        }
        thread::sleep(Duration::from_secs(number("DLOCK_TEST_MIXED_S", MIXED_S)));
        stop.store(true, SeqCst);
    });
    let rounds = inside.each_ref().map(|inside| inside.rounds.load(SeqCst));
    println!("  rounds of atomic, read-write and fair locks: {rounds:?}");
    assert!(rounds.iter().all(|&rounds| rounds > 0), "{rounds:?}");
    for client in &clients {
        assert_eq!(client.deinit(), Success);
    }
}

#[test]
fn additions_of_verbs_and_tcp_clients_sum_up_exactly() {
    const EACH: u64 = 300;
    let Some(server) = primary(ServerConfig::default()) else { return };
    let first = client(&server, FabricChoice::Tcp);
    let id = first.object_create(b"mixed sum", Lease::secs(60), 0).unwrap();
    thread::scope(|scope| {
        for n in 0..2 * CLIENTS {
            let fabric = [FabricChoice::Verbs, FabricChoice::Tcp][n % 2];
            let server = &server;
            scope.spawn(move || {
                let client = client(server, fabric);
                assert_eq!(client.object_get(b"mixed sum", Lease::secs(60)), Ok(id));
                for _ in 0..EACH {
                    client.faa(id, 1).unwrap();
                }
            });
        }
    });
    assert_eq!(first.object_get(b"mixed sum", Lease::secs(60)), Ok(id));
    assert_eq!(first.snapshot(id), Ok(2 * CLIENTS as u64 * EACH));
}

#[test]
fn both_connection_modes_are_served() {
    for tp_mode in [0, 1] {
        let Some(server) = primary(ServerConfig { tp_mode, ..Default::default() }) else { return };
        let addr = server.local_addr();
        let with = |tp_mode| {
            let config =
                dlock_client::ClientConfig { tp_mode, ..config(addr, FabricChoice::Verbs) };
            Instance::init(&config, "127.0.0.1")
        };
        let (a, b) = (with(tp_mode).unwrap(), with(tp_mode).unwrap());
        assert_eq!(with(1 - tp_mode).map(|_| ()).unwrap_err(), Error);
        for lock_type in TYPES {
            let id = got(&a, "either mode", lock_type);
            got(&b, "either mode", lock_type);
            assert_eq!(status(a.trylock(id, X, 60)), Success);
            thread::scope(|scope| {
                let waiter = scope.spawn(|| status(b.lock(id, X, 60)));
                thread::sleep(Duration::from_millis(50)); // gives b time to queue
                assert_eq!(status(a.unlock(id)), Success);
                assert_eq!(waiter.join().unwrap(), Success);
            });
            assert_eq!(status(b.unlock(id)), Success);
            assert_eq!([a.release_lock(id), b.release_lock(id)], [Success; 2]);
        }
    }
}

/// A process that is killed when it goes out of scope.
struct Reaped(Child);

impl Reaped {
    /// Starts this test program as a child that runs one test; also returns the rest of its first
    /// line that begins with `word`.
    fn start(test: &str, variable: &str, value: &str, word: &str) -> (Self, String) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(variable, value)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut found = lines
            .map_while(Result::ok)
            .filter_map(|line| line.strip_prefix(word).map(|rest| rest.trim().to_string()));
        let found = found.next().expect("the child says what it is to say");
        (Self(child), found)
    }

    fn signal(&self, signal: &str) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// The user and system time of the process, in ticks.
    fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let fields = stat.rsplit(')').next().unwrap();
        fields.split_whitespace().skip(11).take(2).map(|t| t.parse::<u64>().unwrap()).sum()
    }
}

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill(); // a process that has ended already is fine, too
        let _ = self.0.wait();
    }
}

/// Not a test by itself: holds one lock, and waits for another until it is killed.
#[test]
fn child_that_holds_and_waits() {
    let Ok(port) = std::env::var("DLOCK_TEST_VICTIM") else { return };
    let addr = ([127, 0, 0, 1], port.parse().unwrap()).into();
    let client = Instance::init(&config(addr, FabricChoice::Verbs), "127.0.0.1").unwrap();
    for lock_type in TYPES {
        let id = got(&client, &format!("victim's {lock_type:?}"), lock_type);
        assert_eq!(status(client.trylock(id, X, 3_600)), Success);
    }
    let shared = got(&client, "victim's share", LockType::Rw);
    assert_eq!(status(client.trylock(shared, S, 0x7fff_ffff)), Success);
    thread::scope(|scope| {
        for lock_type in TYPES {
            let id = got(&client, &format!("waited for {lock_type:?}"), lock_type);
            let client = &client;
            scope.spawn(move || loop {
                client.lock(id, X, 3_600);
            });
        }
        thread::sleep(Duration::from_millis(500)); // gives the waits time to begin
        println!("\nwaiting now");
    });
}

#[test]
fn a_verbs_client_that_is_killed_while_it_holds_and_waits_is_undone() {
    let grace = Some(Duration::from_millis(100));
    // over a network there is no proof that a process has ended, so without this its leases would
    // last
    let orphans = Orphans::Grace;
    let config = ServerConfig { absent_grace: grace, orphans, ..Default::default() };
    let Some(server) = primary(config) else { return };
    let a = client(&server, FabricChoice::Verbs);
    let mine = TYPES.map(|lock_type| got(&a, &format!("waited for {lock_type:?}"), lock_type));
    for id in mine {
        assert_eq!(status(a.trylock(id, X, 3_600)), Success);
    }
    let port = server.local_addr().port().to_string();
    let (victim, _) =
        Reaped::start("child_that_holds_and_waits", "DLOCK_TEST_VICTIM", &port, "waiting");
    drop(victim);
    // neither the hold of the dead client nor its place in a queue is left
    for lock_type in TYPES {
        let id = got(&a, &format!("victim's {lock_type:?}"), lock_type);
        common::eventually(60, "what the dead held is free", || {
            status(a.lock(id, X, 60)) == Success
        });
    }
    let shared = got(&a, "victim's share", LockType::Rw);
    common::eventually(60, "its share is undone", || status(a.lock(shared, X, 60)) == Success);
    let b = client(&server, FabricChoice::Tcp);
    for (id, lock_type) in mine.into_iter().zip(TYPES) {
        let (_, same) = b.get_lock(desc(&format!("waited for {lock_type:?}"), lock_type));
        assert_eq!(same, Some(id));
        assert_eq!(status(a.unlock(id)), Success, "{lock_type:?}");
        common::eventually(60, "it is not granted to the dead", || {
            status(b.lock(id, X, 60)) == Success
        });
    }
}

/// Not a test by itself: a primary in a process of its own.
#[test]
fn child_that_serves() {
    if std::env::var("DLOCK_TEST_SERVE").is_err() {
        return;
    }
    let server = primary(ServerConfig::default()).expect("there is a device");
    println!("\nport {}", server.local_addr().port());
    thread::sleep(Duration::from_secs(3_600)); // the parent kills it long before
}

#[test]
fn uncontended_operations_go_on_while_the_primary_is_stopped() {
    if !has_device() {
        return;
    }
    let (primary, port) = Reaped::start("child_that_serves", "DLOCK_TEST_SERVE", "1", "port");
    let addr = ([127, 0, 0, 1], port.parse().unwrap()).into();
    let a = Instance::init(&config(addr, FabricChoice::Verbs), "127.0.0.1").unwrap();
    // Without fair locks: a client gives a ticket up that took a second to publish, as on a stalled
    // machine.
    let steady = [LockType::Atomic, LockType::Rw];
    let ids = steady.map(|lock_type| got(&a, &format!("frozen {lock_type:?}"), lock_type));
    let object = a.object_create(b"frozen", Lease::secs(3_600), 0).unwrap();
    assert_eq!(a.object_get(b"frozen", Lease::secs(3_600)), Ok(object));
    primary.signal("-STOP");
    let before = primary.cpu_ticks();
    let operations = number("DLOCK_TEST_STOPPED_OPS", STOPPED_OPS);
    let start = Instant::now();
    for turn in 0..operations / 2 {
        let (id, mode) = (ids[turn as usize % 2], if turn % 4 == 1 { S } else { X });
        assert_eq!(status(a.trylock(id, mode, 3_600)), Success, "turn {turn}");
        assert_eq!(status(a.unlock(id)), Success, "turn {turn}");
        assert_eq!(a.faa(object, 1), Ok(turn));
    }
    println!("  {operations} operations at a stopped primary in {:?}", start.elapsed());
    assert_eq!(primary.cpu_ticks(), before, "the primary has worked");
    primary.signal("-CONT");
    // requests to the primary work again
    let b = Instance::init(&config(addr, FabricChoice::Tcp), "127.0.0.1").unwrap();
    for lock_type in TYPES {
        let id = got(&b, &format!("frozen {lock_type:?}"), lock_type);
        assert_eq!(status(b.lock(id, X, 60)), Success);
    }
}

#[test]
fn a_session_whose_life_line_ends_answers_bad_response_and_comes_back_by_reinit() {
    let Some(server) = primary(ServerConfig::default()) else { return };
    let a = client(&server, FabricChoice::Verbs);
    let id = got(&a, "kept", LockType::Atomic);
    let free = got(&a, "free", LockType::Fair);
    assert_eq!(status(a.trylock(id, X, 3_600)), Success);
    // the reinit begins a second session, and the primary ends the first one
    assert_eq!(a.reinit("127.0.0.1"), Success);
    assert_eq!(status(a.extend(id, X, 0)), Success, "the hold is kept");
    assert_eq!(status(a.trylock(free, X, 60)), Success);
    let port = server.local_addr().port();
    server.stop();
    assert_eq!(status(a.extend(id, X, 0)), BadResponse);
    assert_eq!(status(a.unlock(free)), BadResponse);
    assert_eq!(a.reinit("127.0.0.1"), NotReady, "the port is closed");
    let _next = common::server_at(port, ServerConfig::default());
    assert_eq!(a.reinit("127.0.0.1"), ClientRemoved);
}
