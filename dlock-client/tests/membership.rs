// SPDX-License-Identifier: MIT OR Apache-2.0
//! How clients join a primary, come back, leave, and vanish.

mod common;

use dlock_core::clock::Lease;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::line::Line;
use common::site::Site;
use common::{config, fabrics, got, join, server, server_with, status, ChildPrimary, S, X};
use dlock_client::raw::{AsyncOp, Instance, OpResult};
use dlock_client::{
    Client, ClientConfig, Config, Error, FabricChoice, FabricKind, LockType, Status, Wait,
};
use dlock_server::{Orphans, ServerConfig};
use Status::*;

#[test]
fn what_cannot_be_reached_has_its_code() {
    let server = server();
    let addr = server.local_addr();
    let good = config(addr, FabricChoice::Auto);
    let own = common::own_address();
    let refused = {
        let listener = TcpListener::bind((own, 0)).unwrap();
        listener.local_addr().unwrap()
    };
    let init =
        |config: &ClientConfig, ip: &str| Instance::init(config, ip).map(|_| ()).unwrap_err();
    assert_eq!(init(&config(refused, FabricChoice::Auto), &own.to_string()), NotReady);
    assert_eq!(init(&good, "no-such-host.invalid"), Error);
    assert_eq!(init(&good, "1.2.3"), Error);
    assert_eq!(init(&ClientConfig { tp_mode: 1, ..good.clone() }, "127.0.0.1"), Error);
    assert_eq!(
        init(&ClientConfig { device: Some("nodev".into()), ..good.clone() }, "127.0.0.1"),
        Error
    );
    // No port of a device has this address. Without a device, the address is ignored.
    let strange = ClientConfig { eid: [9; 16], ..good };
    match common::on_verbs() || common::on_sealed() {
        true => assert_eq!(init(&strange, "127.0.0.1"), Error),
        false => assert_eq!(Instance::init(&strange, "127.0.0.1").unwrap().fabric(), "shm"),
    }
}

/// A peer that answers the first bytes that it gets with `answer`, and closes the connection.
fn answering(answer: &'static [u8]) -> (SocketAddr, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let peer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = [0; 4096];
        assert!(stream.read(&mut asked).unwrap() > 0);
        stream.write_all(answer).unwrap();
    });
    (addr, peer)
}

#[test]
fn a_peer_that_is_no_primary_is_an_error_and_spoils_no_client() {
    let server = server();
    let client = Instance::init(&config(server.local_addr(), FabricChoice::Tcp), "127.0.0.1");
    let client = client.unwrap();
    let answers: [&[u8]; 6] = [
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        &[0; 64],
        &[0xee; 4096],
        b"",
        b"HT",
    ];
    for answer in answers {
        let (addr, peer) = answering(answer);
        let init = Instance::init(&config(addr, FabricChoice::Auto), "127.0.0.1");
        assert_eq!(init.map(|_| ()).unwrap_err(), Error, "{answer:?}");
        peer.join().unwrap();
    }
    assert_eq!(client.heartbeat(5), Status::Success);
}

#[test]
fn a_forced_executor_that_is_not_offered_is_an_error_and_auto_takes_the_other() {
    for off in FabricKind::without_device() {
        let server = server_with(ServerConfig::default().without(off));
        let addr = server.local_addr();
        let init = |fabric| Instance::init(&config(addr, fabric), "127.0.0.1");
        let off = FabricChoice::Only(off);
        assert_eq!(init(off).map(|_| ()).unwrap_err(), Error, "{off}");
        // with sealed primaries, `auto` takes no other fabric
        let is_first = |other: &FabricChoice| {
            *other != off && (!common::on_sealed() || *other == FabricChoice::Sealed)
        };
        let first = fabrics().into_iter().find(is_first);
        let taken = init(FabricChoice::Auto).unwrap().fabric();
        assert_eq!(Some(taken), first.map(FabricChoice::name), "without {off}");
        let verbs = init(FabricChoice::Verbs).map(|instance| instance.fabric());
        assert_eq!(verbs.is_ok(), common::on_verbs());
    }
}

#[test]
fn a_heartbeat_has_its_ladder() {
    let server = server();
    let a = join(&server, fabrics()[0]);
    assert_eq!(a.heartbeat(0), Invalid);
    assert_eq!(a.heartbeat(301), Invalid);
    assert_eq!(a.heartbeat(300), Success);
    assert_eq!(a.deinit(), Success);
    assert_eq!(a.heartbeat(1), Invalid);
}

#[test]
fn a_reinit_carries_everything_over() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (join(&server, fabric), join(&server, fabric));
        let me = a.id();
        let atomic = got(&a, "kept atomic", LockType::Atomic);
        let rw = got(&a, "kept rw", LockType::Rw);
        let fair = got(&a, "kept fair", LockType::Fair);
        got(&b, "kept atomic", LockType::Atomic);
        got(&b, "kept rw", LockType::Rw);
        let object = a.object_create(b"kept", Lease::secs(60), 1).unwrap();
        assert_eq!(a.object_get(b"kept", Lease::secs(60)), Ok(object));
        assert_eq!(status(a.trylock(atomic, X, 60)), Success);
        assert_eq!(status(a.trylock(rw, S, 60)), Success);
        assert_eq!(status(a.trylock(rw, S, 60)), AlreadyLocked);
        assert_eq!(status(a.trylock(fair, X, 60)), Success);
        assert!(a.stats().iter().sum::<u64>() > 0);
        let take = AsyncOp::TryLock { mode: X, expire_s: 60 };
        assert_eq!(a.request_async(atomic, take), Success);

        assert_eq!(a.reinit("127.0.0.2.3"), Error, "the old session stays");
        assert_eq!(a.reinit("127.0.0.1"), Success);
        assert_eq!(a.id(), me);
        assert_eq!(a.stats().iter().sum::<u64>(), 0);
        assert_eq!(status(a.result_check()), NoAsync, "it is forgotten");
        assert_eq!(a.snapshot(object), Ok(1));
        assert_eq!(status(b.trylock(atomic, X, 60)), Fail);
        assert_eq!(status(b.trylock(rw, X, 60)), Fail);
        assert_eq!(a.update_all_locks(), Error, "the primary is not recovering");
        assert_eq!([a.reinit_done(), a.reinit_done()], [Success, Error], "once per reinit");
        assert_eq!([status(a.unlock(rw)), status(a.unlock(rw))], [AlreadyLocked, Success]);
        assert_eq!(status(a.extend(fair, X, 60)), Success);
        assert_eq!(status(a.unlock(fair)), Success);
        while status(a.unlock(atomic)) == AlreadyLocked {}
        assert_eq!(status(b.trylock(atomic, X, 60)), Success);
        assert_eq!(a.object_destroy(object), Success);
        assert_eq!([a.deinit(), b.deinit()], [Success; 2]);
    }
}

#[test]
fn an_unknown_client_is_told_that_it_was_removed() {
    let bind = common::own_address();
    let first = server_with(ServerConfig { bind, ..Default::default() });
    let a = join(&first, FabricChoice::Tcp);
    let (port, ip) = (first.local_addr().port(), bind.to_string());
    first.stop();
    assert_eq!(a.heartbeat(1), BadResponse);
    assert_eq!(a.reinit(&ip), NotReady, "the port is closed");
    let _third = common::server_at(port, ServerConfig { bind, ..Default::default() });
    assert_eq!(a.reinit(&ip), ClientRemoved);
}

#[test]
fn a_clean_leave_releases_what_is_held() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (join(&server, fabric), join(&server, fabric));
        for (name, lock_type, mode) in [
            ("left atomic", LockType::Atomic, X),
            ("left rw", LockType::Rw, S),
            ("left fair", LockType::Fair, X),
        ] {
            let id = got(&a, name, lock_type);
            got(&b, name, lock_type);
            assert_eq!(status(a.trylock(id, mode, 3_600)), Success);
        }
        assert_eq!(a.deinit(), Success);
        for (name, lock_type) in [
            ("left atomic", LockType::Atomic),
            ("left rw", LockType::Rw),
            ("left fair", LockType::Fair),
        ] {
            let (_, id) = b.get_lock(common::desc(name, lock_type));
            let result = b.lock(id.unwrap(), X, 5);
            assert_eq!(result.status, Success, "{name}");
            assert_eq!(status(b.unlock(id.unwrap())), Success);
        }
        assert_eq!(b.deinit(), Success);
    }
}

/// Not a test by itself: the process that `a_killed_process_...` kills.
#[test]
fn child_that_holds_and_waits_to_be_killed() {
    let Ok(port) = std::env::var("DLOCK_TEST_PORT") else { return };
    let fabric = common::named();
    let port = port.parse().unwrap();
    let config = ClientConfig { port, fabric, ..Default::default() };
    let instance = Instance::init(&config, "127.0.0.1").unwrap();
    for (name, lock_type, mode) in HELD_BY_CHILD {
        let id = got(&instance, name, lock_type);
        assert_eq!(status(instance.trylock(id, mode, 3_600)), Success);
    }
    println!("\nholding");
    std::thread::sleep(Duration::from_secs(60)); // the parent kills it long before
}

const HELD_BY_CHILD: [(&str, LockType, dlock_client::Mode); 4] = [
    ("dead atomic", LockType::Atomic, X),
    ("dead shared", LockType::Rw, S),
    ("dead exclusive", LockType::Rw, X),
    ("dead fair", LockType::Fair, X),
];

#[test]
fn a_killed_process_gives_back_what_it_held() {
    for fabric in fabrics() {
        let grace = Some(Duration::from_millis(100));
        // over tcp there is no proof that a process has ended, so without this its leases would
        // last
        let orphans = Orphans::Grace;
        let config = ServerConfig { absent_grace: grace, orphans, ..Default::default() };
        let server = server_with(config);
        let a = join(&server, fabric);
        let ids = HELD_BY_CHILD.map(|(name, lock_type, _)| got(&a, name, lock_type));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_holds_and_waits_to_be_killed", "--nocapture"])
            .env("DLOCK_TEST_PORT", server.local_addr().port().to_string())
            .env("DLOCK_TEST_FABRIC", common::name(fabric))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "holding"));
        for (&id, (_, lock_type, _)) in ids.iter().zip(HELD_BY_CHILD) {
            let result = status(a.trylock(id, X, 5));
            assert_ne!(result, Success, "{lock_type:?} is held by the child");
            if lock_type == LockType::Fair {
                assert_eq!(status(a.unlock(id)), Success); // gives the ticket of the attempt up
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let start = Instant::now();
        for (&id, (name, ..)) in ids.iter().zip(HELD_BY_CHILD) {
            assert_eq!(status(a.lock(id, X, 5)), Success, "{name}");
            assert_eq!(status(a.unlock(id)), Success);
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }
}

/// Not a test by itself: the primary that `a_client_whose_primary_was_killed_...` kills.
#[test]
fn child_that_serves_and_waits_to_be_killed() {
    common::serve_as_child();
}

#[test]
fn a_client_whose_primary_was_killed_notices_at_its_next_operation() {
    for fabric in fabrics() {
        let mut primary = ChildPrimary::start("child_that_serves_and_waits_to_be_killed");
        let config = primary.config(fabric);
        let a = Instance::init(&config, "127.0.0.1").unwrap();
        let id = got(&a, "orphan", LockType::Atomic);
        assert_eq!(status(a.trylock(id, X, 60)), Success);
        assert_eq!(status(a.unlock(id)), Success);
        primary.kill();
        assert_eq!(status(a.trylock(id, X, 60)), BadResponse, "nobody arbitrates any more");
        assert_eq!(status(a.unlock(id)), AlreadyUnlocked);
    }
}

#[test]
fn a_lease_that_ended_can_be_taken_over_and_its_holder_is_told() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (join(&server, fabric), join(&server, fabric));
        let id = got(&a, "short", LockType::Atomic);
        got(&b, "short", LockType::Atomic);
        assert_eq!(status(a.trylock(id, X, 1)), Success);
        common::eventually(60, "the lease ends", || match status(b.lock(id, X, 30)) {
            Success => true,
            Fail => false, // on a busy machine a call may end before it gets the lock
            other => panic!("{other}"),
        });
        assert_eq!(status(a.unlock(id)), Fail, "it was lost");
        assert_eq!(status(a.unlock(id)), AlreadyUnlocked);
        assert_eq!(status(b.unlock(id)), Success);
    }
}

#[test]
fn a_client_whose_primary_stopped_gets_bad_response_and_does_not_hang() {
    for fabric in fabrics() {
        let server = server();
        let a = join(&server, fabric);
        let atomic = got(&a, "orphan", LockType::Atomic);
        let rw = got(&a, "orphan rw", LockType::Rw);
        assert_eq!(status(a.trylock(rw, S, 5)), Success);
        let start = Instant::now();
        server.stop();
        assert_eq!(status(a.trylock(atomic, X, 5)), BadResponse);
        assert_eq!(status(a.unlock(rw)), BadResponse);
        assert_eq!(a.release_lock(atomic), BadResponse);
        assert_eq!(a.heartbeat(1), BadResponse);
        assert_eq!(a.deinit(), BadResponse);
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }
}

#[test]
fn a_reinit_takes_the_session_from_under_running_operations() {
    let server = server();
    for fabric in fabrics() {
        let (a, b) = (join(&server, fabric), join(&server, fabric));
        let names = ["under 0", "under 1", "under 2"];
        let ids = names.map(|name| got(&a, name, LockType::Atomic));
        let contended = got(&a, "under contended", LockType::Fair);
        got(&b, "under contended", LockType::Fair);
        assert_eq!(status(b.trylock(contended, X, 60)), Success);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for id in ids {
                let (a, stop) = (&a, &stop);
                scope.spawn(move || {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        let taken = status(a.trylock(id, X, 60));
                        assert!(matches!(taken, Success | AlreadyLocked | BadResponse), "{taken}");
                        let freed = status(a.unlock(id));
                        assert!(
                            matches!(
                                freed,
                                Success | AlreadyLocked | AlreadyUnlocked | BadResponse
                            ),
                            "{freed}"
                        );
                    }
                });
            }
            let waiter = scope.spawn(|| status(a.lock(contended, X, 60)));
            for _ in 0..5 {
                std::thread::sleep(Duration::from_millis(20));
                assert_eq!(a.reinit("127.0.0.1"), Success);
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            let waited = waiter.join().unwrap();
            assert!(matches!(waited, BadResponse | Again), "{waited}");
        });
        // if the client still has a ticket, this gives it up
        assert!(matches!(status(a.unlock(contended)), Success | AlreadyUnlocked));
        for id in ids {
            while status(a.unlock(id)) != AlreadyUnlocked {}
            assert_eq!(status(a.trylock(id, X, 60)), Success);
            assert_eq!(status(a.unlock(id)), Success);
        }
        assert_eq!(status(b.unlock(contended)), Success);
        assert_eq!(status(b.lock(contended, X, 60)), Success, "no ticket of a's is in the way");
        assert_eq!(status(b.unlock(contended)), Success);
        assert_eq!(status(a.lock(contended, X, 60)), Success);
        assert_eq!([a.deinit(), b.deinit()], [Success; 2]);
    }
}

#[test]
fn a_recovering_primary_learns_what_its_clients_hold() {
    let bind = common::own_address();
    let ip = &bind.to_string();
    for fabric in fabrics() {
        let first = server_with(ServerConfig { bind, ..Default::default() });
        let port = first.local_addr().port();
        let a = join(&first, fabric);
        let atomic = got(&a, "claimed atomic", LockType::Atomic);
        let rw = got(&a, "claimed rw", LockType::Rw);
        let fair = got(&a, "claimed fair", LockType::Fair);
        let free = got(&a, "claimed free", LockType::Rw);
        for (id, mode) in [(atomic, X), (rw, S), (fair, X)] {
            assert_eq!(status(a.trylock(id, mode, 600)), Success);
        }
        first.stop();
        let config = ServerConfig { bind, recovery_clients: 1, ..Default::default() };
        let second = common::server_at(port, config);
        let newcomer = || Instance::init(&common::config(second.local_addr(), fabric), ip);
        assert_eq!(newcomer().map(|_| ()).unwrap_err(), NotReady);
        assert_eq!(a.reinit(ip), Success);
        assert_eq!(a.heartbeat(30), NotReady);
        for id in [atomic, rw, fair] {
            assert_eq!(status(a.unlock(id)), NotReady, "its place is not known yet");
        }
        assert_eq!(status(a.trylock(free, X, 60)), NotReady);
        assert_eq!(a.update_all_locks(), Success);
        assert_eq!(status(a.trylock(free, X, 60)), NotReady, "it recovers still");
        assert_eq!(a.reinit_done(), Success);
        assert_eq!(a.heartbeat(30), Success);
        let b = newcomer().unwrap();
        for (name, lock_type) in
            [("claimed atomic", LockType::Atomic), ("claimed rw", LockType::Rw)]
        {
            let id = got(&b, name, lock_type);
            assert_eq!(status(b.trylock(id, X, 60)), Fail, "{name}");
        }
        got(&b, "claimed fair", LockType::Fair);
        assert_eq!(status(a.extend(atomic, X, 0)), Success);
        for id in [atomic, rw] {
            assert_eq!(status(a.unlock(id)), Success);
        }
        // a primary may refuse to take a fair hold over; then it tells the holder
        let told = status(a.extend(fair, X, 0));
        assert!(matches!(told, Success | Fail), "{told:?}");
        assert_eq!(status(a.unlock(fair)), if told == Fail { AlreadyUnlocked } else { Success });
        assert_eq!(status(a.trylock(free, X, 60)), Success);
        for id in [atomic, rw, fair] {
            assert_eq!(status(b.lock(id, X, 60)), Success);
        }
        assert_eq!([a.deinit(), b.deinit()], [Success; 2]);
    }
}

/// A proxy before `primary`; returns its address, and the sockets of its connections, to cut them
/// at both ends.
fn middlebox(primary: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<TcpStream>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let passed: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
    let ours = Arc::clone(&passed);
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(primary) else { return };
            for (mut from, mut to) in [(&client, &server), (&server, &client)]
                .map(|(a, b)| (a.try_clone().unwrap(), b.try_clone().unwrap()))
            {
                thread::spawn(move || io::copy(&mut from, &mut to));
            }
            ours.lock().unwrap().extend([client, server]);
        }
    });
    (addr, passed)
}

/// Without a horizon, the client does not learn from the primary that its session has ended. It
/// notices the end of its connections by itself.
#[test]
fn a_client_whose_connections_were_cut_does_not_go_on_with_a_lock_without_a_lease() {
    let grace = Some(Duration::from_millis(100));
    let server = server_with(ServerConfig { absent_grace: grace, ..Default::default() });
    let (addr, passed) = middlebox(server.local_addr());
    let cut = Instance::init(&config(addr, FabricChoice::Tcp), &addr.ip().to_string()).unwrap();
    let other = join(&server, FabricChoice::Tcp);
    let id = got(&cut, "without a lease", LockType::Rw);
    got(&other, "without a lease", LockType::Rw);
    assert_eq!(status(cut.trylock(id, X, 5)), Success);
    assert_eq!(status(cut.trylock(id, X, 5)), AlreadyLocked);
    for stream in passed.lock().unwrap().iter() {
        let _ = stream.shutdown(Shutdown::Both);
    }
    common::eventually(60, "it is another's", || status(other.trylock(id, X, 5)) == Success);
    assert_eq!(status(cut.trylock(id, X, 5)), BadResponse);
}

#[test]
fn a_hold_past_its_horizon_is_lost_at_a_successor() {
    let bind = common::own_address();
    let ip = &bind.to_string();
    let first = server_with(ServerConfig { bind, ..Default::default() });
    let port = first.local_addr().port();
    let tcp = config(first.local_addr(), FabricChoice::Tcp);
    let a = Instance::init(&ClientConfig { horizon_s: Some(1), ..tcp }, ip).unwrap();
    let rw = got(&a, "does not outlive its horizon", LockType::Rw);
    assert_eq!(status(a.trylock(rw, X, 60)), Success);
    first.stop();
    let query = || status(a.trylock(rw, X, 0));
    common::eventually(60, "the horizon ends", || query() == BadResponse);
    let config = ServerConfig { bind, recovery_clients: 1, ..Default::default() };
    let second = common::server_at(port, config);
    assert_eq!(a.reinit(ip), Success);
    // the predecessor may have given the lock to another client
    assert_eq!(query(), BadResponse);
    assert_eq!(status(a.trylock(rw, X, 60)), BadResponse, "a re-entry");
    assert_eq!(a.update_all_locks(), Success);
    assert_eq!(a.reinit_done(), Success);
    assert_eq!(status(a.unlock(rw)), Fail, "it is told");
    assert_eq!(status(a.trylock(rw, X, 60)), Success);
    assert_eq!(a.deinit(), Success);
    drop(second);
}

/// Without a horizon, a client does not know that the primary has ended a hold meanwhile. A batch
/// that was under way then, and ends once the client is back, must not report the hold as lasting.
#[test]
fn a_batch_under_way_does_not_tell_a_hold_that_ended_while_its_client_was_away() {
    let grace = Some(Duration::from_millis(50));
    let rules = ServerConfig { absent_grace: grace, orphans: Orphans::Lease, ..Default::default() };
    let server = server_with(rules);
    let line = Line::to(server.local_addr().port());
    let tcp = config(server.local_addr(), FabricChoice::Tcp);
    let a = Instance::init(&tcp, &common::own_address().to_string()).unwrap();
    let b = Instance::init(&tcp, "127.0.0.1").unwrap();
    let [rw, other] =
        [("ends", LockType::Rw), ("other", LockType::Atomic)].map(|l| got(&a, l.0, l.1));
    let of_b = got(&b, "ends", LockType::Rw);
    assert_eq!(status(a.trylock(rw, S, 600)), Success);
    let kept = got(&a, "has a lease", LockType::Atomic);
    assert_eq!(status(a.trylock(kept, X, 600)), Success, "so the client is not forgotten");
    thread::scope(|scope| {
        line.cut_half();
        let batch = scope.spawn(|| {
            let mut results = [OpResult::of(Invalid); 2];
            assert_eq!(a.batch_trylock(&[(rw, S, 600), (other, X, 600)], &mut results), Success);
            results.map(|result| result.status)
        });
        common::eventually(60, "the primary has ended it", || {
            status(b.trylock(of_b, X, 600)) == Success
        });
        assert_eq!(a.reinit("127.0.0.1"), Success);
        assert_eq!(batch.join().unwrap(), [Fail, BadResponse]);
    });
    assert_eq!(status(a.trylock(rw, S, 600)), Fail);
    assert_eq!(status(a.trylock(other, X, 600)), Success);
}

/// A client without primaries would not come back, nor would one that takes this fabric alone.
#[test]
fn a_client_that_would_not_come_back_in_a_drain_stays_and_goes_on_after_it() {
    const TIME: Duration = Duration::from_secs(20);
    for fabric in fabrics() {
        let site = Site::new(&format!("drained-{}", fabric.name()));
        let at = site.address();
        let plain = Config::new().port(at.port());
        let client = |config: &Config| Client::with_config(config, &at.ip().to_string()).unwrap();
        let own = plain.clone().fabric(fabric);
        let stay = [client(&own), client(&own.primaries([at]))];
        let locks = [0, 1].map(|n| stay[n].atomic_lock(format!("lock {n}")).unwrap());
        let guards = locks.each_ref().map(|lock| lock.acquire(X).lease(TIME).guard().unwrap());
        // where the environment names verbs, `Auto` is verbs alone
        let any = match common::on_verbs() {
            true => FabricChoice::Only(FabricKind::Tcp),
            false => FabricChoice::Auto,
        };
        let auto = client(&plain.fabric(any).primaries([at]));
        let free = auto.atomic_lock("free").unwrap();
        site.operate("{\"cmd\":\"drain\",\"on\":true}");
        let refused = || free.acquire(X).wait(Wait::No).guard().map(drop) == Err(Error::NotReady);
        common::eventually(20, "no lock is given", refused);
        for mut guard in guards {
            assert_eq!(guard.extend(TIME), Ok(()), "over {}", fabric.name());
            assert_eq!(guard.unlock(), Ok(()), "over {}", fabric.name());
        }
        site.operate("{\"cmd\":\"drain\",\"on\":false}");
        for lock in locks.iter().chain([&free]) {
            let again = lock.acquire(X).wait(TIME).guard();
            assert!(again.is_ok(), "over {}: {again:?}", fabric.name());
        }
    }
}

/// An operator sees when a lock is free at the latest.
#[test]
fn the_lease_of_a_held_lock_is_told_whatever_its_type() {
    for fabric in fabrics() {
        let site = Site::new(&format!("leases-{}", fabric.name()));
        let at = site.address();
        let config = Config::new().port(at.port()).fabric(fabric);
        let client = Client::with_config(&config, &at.ip().to_string()).unwrap();
        let left_ms = || -> Option<u64> {
            let answer = site.operate("{\"cmd\":\"locks\"}");
            let (_, left) = answer.split_once("\"left_ms\":").unwrap();
            left.split(',').next().unwrap().parse().ok()
        };
        for (kind, mode) in [
            (LockType::Atomic, X),
            (LockType::Rw, X),
            (LockType::Rw, S),
            (LockType::Fair, X),
            (LockType::Fair, S),
        ] {
            let lock = client.lock_with_tokens("lock", kind).unwrap();
            let guard = lock.acquire(mode).lease(Duration::from_secs(50)).guard().unwrap();
            let told = left_ms();
            let is_right = told.is_some_and(|ms| (10_000..51_000).contains(&ms));
            assert!(is_right, "{} {kind:?} {mode:?}: {told:?}", fabric.name());
            guard.unlock().unwrap();
            assert_eq!(left_ms(), None, "{} {kind:?} {mode:?}", fabric.name());
        }
        let lock = client.rw_lock("lock").unwrap();
        let _guard = lock.acquire(X).guard().unwrap();
        assert_eq!(left_ms(), None, "it has no lease");
    }
}
