// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients that find the successor of their primary by themselves: nothing here calls `reinit`.

mod common;

use dlock_core::clock::Lease;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::site::{by_itself, Site};
use common::{config, eventually, fabrics, got, own_address, server, status, S, X};
use dlock_client::raw::Instance;
use dlock_client::{ClientConfig, FabricChoice, FabricKind, LockId, LockType, Status};
use dlock_core::limits::BATCH_MAX;
use dlock_server::{Orphans, ServerConfig};
use Status::*;

#[test]
fn without_a_primary_a_try_is_refused_a_release_is_one_and_a_lock_waits() {
    for fabric in fabrics() {
        let mut site = Site::new(&format!("refused-{}", fabric.name()));
        let (a, b) = (site.client(fabric), site.client(fabric));
        for (name, lock_type) in
            [("atomic", LockType::Atomic), ("rw", LockType::Rw), ("fair", LockType::Fair)]
        {
            let [kept, released, shared] = ["kept", "released", "shared"].map(|which| {
                let name = format!("{name} {which}");
                got(&b, &name, lock_type);
                got(&a, &name, lock_type)
            });
            assert_eq!(status(a.trylock(kept, X, 600)), Success);
            assert_eq!(status(a.trylock(released, X, 600)), Success);
            let mode = if lock_type == LockType::Atomic { X } else { S };
            assert_eq!(status(a.trylock(shared, mode, 600)), Success);
            site.stop();
            let refused = status(b.trylock(kept, X, 600));
            assert!(matches!(refused, NotReady | BadResponse), "{refused}");
            assert_eq!(status(a.unlock(released)), Success);
            assert_eq!(status(a.unlock(shared)), Success);
            assert_eq!(status(a.unlock(shared)), AlreadyUnlocked);
            let waiter = Arc::clone(&b);
            let waits = thread::spawn(move || status(waiter.lock(released, X, 600)));
            thread::sleep(Duration::from_millis(50));
            site.start();
            assert_eq!(waits.join().unwrap(), Success, "{name} over {}", fabric.name());
            // after a failover, too, a released lock is free, whether the release came before or
            // during it
            let held = status(b.trylock(kept, X, 600));
            assert!(matches!(held, Fail | Again), "{held}");
            assert_eq!(status(b.lock(shared, X, 600)), Success);
            for lock in [released, shared] {
                assert_eq!(status(b.unlock(lock)), Success);
            }
            assert_eq!(status(a.unlock(kept)), Success);
            assert_eq!(status(b.lock(kept, X, 600)), Success);
            assert_eq!(status(b.unlock(kept)), Success);
        }
        assert_eq!([a.deinit(), b.deinit()], [Success; 2]);
    }
}

#[test]
fn who_holds_a_lock_twice_releases_it_twice_whether_there_is_a_primary_or_not() {
    for fabric in fabrics() {
        let mut site = Site::new(&format!("twice-{}", fabric.name()));
        let (a, b) = (site.client(fabric), site.client(fabric));
        let lock = got(&a, "twice", LockType::Fair);
        got(&b, "twice", LockType::Fair);
        assert_eq!(status(a.trylock(lock, X, 600)), Success);
        assert_eq!(status(a.trylock(lock, X, 600)), AlreadyLocked);
        site.stop();
        assert_eq!(status(a.unlock(lock)), AlreadyLocked);
        site.start();
        eventually(60, "it is served", || status(a.extend(lock, X, 600)) == Success);
        assert_eq!(status(b.trylock(lock, X, 600)), Again, "it is held once still");
        assert_eq!(status(a.unlock(lock)), Success);
        assert_eq!(status(b.lock(lock, X, 600)), Success);
        assert_eq!([a.deinit(), b.deinit()], [Success; 2]);
    }
}

#[test]
fn a_client_that_leaves_without_a_primary_is_not_waited_for() {
    for fabric in fabrics() {
        let mut site = Site::new(&format!("leaves-{}", fabric.name()));
        let (a, b) = (site.client(fabric), site.client(fabric));
        let lock = got(&a, "left", LockType::Rw);
        got(&b, "left", LockType::Rw);
        assert_eq!(status(a.trylock(lock, X, 0)), Success);
        assert_eq!(status(a.trylock(lock, X, 600)), Success);
        site.stop();
        let leaves = thread::spawn(move || a.deinit());
        thread::sleep(Duration::from_millis(50));
        site.start();
        assert_eq!(leaves.join().unwrap(), Success);
        assert_eq!(status(b.lock(lock, X, 600)), Success);
        assert_eq!(b.deinit(), Success);
    }
}

/// The client notices by the end of its connections that its primary has ended. Its next heartbeat
/// would be a minute later.
#[test]
fn a_client_that_does_nothing_is_back_as_soon_as_there_is_a_primary() {
    for fabric in fabrics() {
        let mut site = Site::new(&format!("idle-{}", fabric.name()));
        let at = site.address();
        let idle = ClientConfig {
            primaries: Some(vec![at.into()]),
            silence: Some(Duration::from_secs(240)),
            ..config(at, fabric)
        };
        let idle = Instance::init_shared(&idle, &at.ip().to_string()).unwrap();
        let held = got(&idle, "held", LockType::Atomic);
        assert_eq!(status(idle.trylock(held, X, 600)), Success);
        let b = site.client(fabric);
        let other = got(&b, "other", LockType::Atomic);
        site.stop();
        site.start();
        let since = Instant::now();
        // the successor gives no lock to a client before all clients are back
        assert_eq!(status(b.lock(other, X, 600)), Success, "{}", fabric.name());
        let took = since.elapsed();
        assert!(took < Duration::from_secs(20), "{took:?} over {}", fabric.name());
        assert_eq!(status(idle.unlock(held)), Success);
        assert_eq!([idle.deinit(), b.deinit()], [Success; 2]);
    }
}

/// A proxy that passes everything on, and can end single connections.
struct Line {
    at: SocketAddr,
    ends: Arc<Mutex<Vec<End>>>,
    faults: Arc<Faults>,
}

struct End {
    near: TcpStream,
    /// The thread of the direction from the client to the primary; it ends with the connection.
    passes: JoinHandle<()>,
}

#[derive(Default)]
struct Faults {
    /// Whether new connections end at once.
    is_down: AtomicBool,
    /// The number of answers that are passed on for each new connection; 0: all. Once one answer
    /// was lost, on any connection, no further one is passed on.
    answers_max: AtomicUsize,
    /// The number of messages that were not passed on.
    lost: AtomicUsize,
}

impl Line {
    fn to(port: u16) -> Self {
        Self::beside(port, 0)
    }

    /// A proxy at an address of its own for each number.
    fn beside(port: u16, number: u8) -> Self {
        let [_, a, b, c] = std::process::id().to_be_bytes();
        let ip: IpAddr = Ipv4Addr::new(127, a | 0x40 | number << 7, b, c).into();
        let listener = TcpListener::bind((ip, port)).unwrap();
        let ends: Arc<Mutex<Vec<End>>> = Arc::default();
        let faults = Arc::new(Faults::default());
        let (all, at_work) = (Arc::clone(&ends), Arc::clone(&faults));
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if at_work.is_down.load(Ordering::SeqCst) {
                    continue;
                }
                let answers_max = match at_work.answers_max.load(Ordering::SeqCst) {
                    0 => usize::MAX,
                    max => max,
                };
                let Ok(far) = TcpStream::connect((own_address(), port)) else { continue };
                let passes = |from: &TcpStream, to: &TcpStream, max| {
                    from.set_nodelay(true).unwrap();
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let faults = Arc::clone(&at_work);
                    thread::spawn(move || pass(from, to, max, &faults))
                };
                passes(&far, &near, answers_max);
                let passes = passes(&near, &far, usize::MAX);
                all.lock().unwrap().push(End { near, passes });
            }
        });
        Self { at: (ip, port).into(), ends, faults }
    }

    /// Ends all connections, and ends new ones at once until [`up`](Self::up).
    fn down(&self) {
        self.faults.is_down.store(true, Ordering::SeqCst);
        (0..self.count()).for_each(|number| self.cut(number));
    }

    fn up(&self) {
        self.faults.is_down.store(false, Ordering::SeqCst);
    }

    fn cut(&self, number: usize) {
        let _ = self.ends.lock().unwrap()[number].near.shutdown(Shutdown::Both);
        // a connection that has ended already is fine, too
    }

    /// The numbers of the connections that have not ended.
    fn there(&self) -> Vec<usize> {
        let ends = self.ends.lock().unwrap();
        (0..ends.len()).filter(|&number| !ends[number].passes.is_finished()).collect()
    }

    fn count(&self) -> usize {
        self.ends.lock().unwrap().len()
    }
}

/// Passes `messages_max` messages on, and drops further ones.
fn pass(mut from: TcpStream, mut to: TcpStream, messages_max: usize, faults: &Faults) {
    let mut bytes = [0; 4_096];
    let mut messages = 0;
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        messages += 1;
        let is_frozen = messages_max < usize::MAX && faults.lost.load(Ordering::SeqCst) > 0;
        if messages > messages_max || is_frozen {
            faults.lost.fetch_add(1, Ordering::SeqCst);
            continue;
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both); // a connection that has ended already is fine, too
    }
}

/// Only the control connection, or only the data path, ends; the client then makes both anew.
#[test]
fn a_connection_that_breaks_alone_is_made_anew() {
    let fabric = FabricChoice::Only(FabricKind::Tcp);
    let site = Site::new("line");
    let line = Line::to(site.port);
    let (a, b) = (by_itself(line.at, fabric), site.client(fabric));
    let lock = got(&a, "line", LockType::Fair);
    got(&b, "line", LockType::Fair);
    assert_eq!(status(a.trylock(lock, X, 600)), Success);
    for n in 0..6 {
        // a session has two connections, control and data path; on a further one, which ends, the
        // client asks whether the primary is there
        eventually(60, "it has its session alone", || line.there().len() == 2);
        let (count, cut) = (line.count(), line.there()[n % 2]);
        line.cut(cut);
        eventually(60, "it is back", || {
            line.count() >= count + 3 && status(a.extend(lock, X, 600)) == Success
        });
        assert_eq!(status(b.trylock(lock, X, 600)), Again, "it is held as before");
        assert_eq!(status(b.unlock(lock)), Success);
    }
    assert_eq!(status(a.unlock(lock)), Success);
    assert_eq!(status(b.lock(lock, X, 600)), Success, "a may have been on its way still");
    assert_eq!([a.deinit(), b.deinit()], [Success; 2]);
}

/// A new primary without the list of clients knows no client.
#[test]
fn a_client_that_no_primary_knows_any_more_begins_anew_and_is_told_what_it_lost() {
    for fabric in fabrics() {
        let mut site = Site::new(&format!("anew-{}", fabric.name()));
        let (a, b) = (site.client(fabric), site.client(fabric));
        for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
            let why = format!("{lock_type:?} over {}", fabric.name());
            let lock = |which: &str| {
                let name = format!("{which} {lock_type:?}");
                got(&b, &name, lock_type);
                got(&a, &name, lock_type)
            };
            let [held, free, waited] = ["held", "free", "waited"].map(lock);
            assert_eq!(status(a.trylock(held, X, 600)), Success, "{why}");
            assert_eq!(status(b.trylock(waited, X, 600)), Success, "{why}");
            site.stop();
            std::fs::remove_dir_all(&site.folder).unwrap();
            std::fs::create_dir_all(&site.folder).unwrap();
            let waiter = Arc::clone(&a);
            let waits = thread::spawn(move || status(waiter.lock(waited, X, 600)));
            site.start();
            assert_eq!(waits.join().unwrap(), Success, "{why}: nobody holds it any more");
            assert_eq!(status(a.unlock(held)), Fail, "{why}: it is told");
            eventually(60, "b is served", || status(b.lock(held, X, 600)) == Success);
            assert_ne!(status(a.trylock(held, X, 600)), Success, "{why}");
            assert_eq!(status(b.unlock(waited)), Fail, "{why}: it was b's");
            assert_eq!(status(b.unlock(held)), Success, "{why}");
            for lock in [held, free] {
                assert_eq!(status(a.lock(lock, X, 600)), Success, "{why}");
                assert_eq!(status(a.unlock(lock)), Success, "{why}");
            }
            assert_eq!(status(a.unlock(waited)), Success, "{why}");
        }
        assert_eq!([a.deinit(), b.deinit()], [Success; 2]);
    }
}

/// The successor has fewer places for locks than its clients hold.
#[test]
fn what_a_successor_has_no_room_for_is_lost_and_keeps_nobody_waiting() {
    const LOCKS: usize = 6;
    for fabric in fabrics() {
        for by_hand in [false, true] {
            let mut site = Site::new(&format!("fewer-{}-{by_hand}", fabric.name()));
            let a = match by_hand {
                false => site.client(fabric),
                true => {
                    let config = config(site.address(), fabric);
                    Instance::init_shared(&config, &own_address().to_string()).unwrap()
                }
            };
            let b = site.client(fabric);
            let of_b = got(&b, "b", LockType::Atomic);
            assert_eq!(status(b.trylock(of_b, X, 600)), Success);
            let lock =
                |n: usize| got(&a, &format!("a {n}"), [LockType::Atomic, LockType::Fair][n % 2]);
            let locks: Vec<LockId> = (0..LOCKS).map(lock).collect();
            for &lock in &locks {
                assert_eq!(status(a.trylock(lock, X, 600)), Success);
            }
            site.stop();
            site.config.locks_max = 4;
            site.start();
            if by_hand {
                assert_eq!(a.reinit(&own_address().to_string()), Success);
                assert_eq!(a.update_all_locks(), Success, "a program repeats it while it is Again");
                assert_eq!(a.reinit_done(), Success);
            }
            let all = || locks.iter().map(|&lock| (&a, lock)).chain([(&b, of_b)]);
            let extend = |(who, lock): (&Arc<Instance>, LockId)| status(who.extend(lock, X, 600));
            let is_told = |status: Status| matches!(status, Success | LockNotGet);
            eventually(60, "all are told", || all().all(|one| is_told(extend(one))));
            assert_eq!(all().filter(|&one| extend(one) == Success).count(), 4);
            assert_eq!([a.deinit(), b.deinit()], [Success; 2]);
        }
    }
}

/// A client gives back more locks than one request can name. The primary lives on, so each release
/// must reach it.
#[test]
fn many_releases_without_a_connection_are_ones_for_others_as_soon_as_the_client_is_back() {
    let fabric = FabricChoice::Only(FabricKind::Tcp);
    let site = Site::new("many");
    let line = Line::to(site.port);
    let (a, b) = (by_itself(line.at, fabric), site.client(fabric));
    let types = [LockType::Atomic, LockType::Rw, LockType::Fair];
    let locks: Vec<LockId> = (0..3 * BATCH_MAX)
        .map(|n| {
            let (name, lock_type) = (format!("many {n}"), types[n % 3]);
            got(&b, &name, lock_type);
            let lock = got(&a, &name, lock_type);
            assert_eq!(status(a.trylock(lock, X, 600)), Success);
            lock
        })
        .collect();
    line.down();
    for &lock in &locks[1..] {
        assert_eq!(status(a.unlock(lock)), Success);
    }
    line.up();
    for &lock in &locks[1..] {
        assert_eq!(status(b.lock(lock, X, 600)), Success);
    }
    assert_eq!(status(b.trylock(locks[0], X, 600)), Fail, "it is held as before");
    assert_eq!(status(a.unlock(locks[0])), Success);
    assert_eq!([a.deinit(), b.deinit()], [Success; 2]);
}

/// The client comes back to the same primary, in a new session, where nothing of the earlier
/// session is valid.
#[test]
fn a_client_that_its_living_primary_has_forgotten_begins_anew_there() {
    let fabric = FabricChoice::Only(FabricKind::Tcp);
    let absent_grace = Some(Duration::from_millis(50));
    let orphans = Orphans::Grace; // holds without a lease end with the grace
    let config = ServerConfig { absent_grace, orphans, ..Default::default() };
    let site = Site::with("forgotten", config);
    let line = Line::to(site.port);
    let a = by_itself(line.at, fabric);
    let b = site.client(fabric);
    let lock = got(&a, "forgotten", LockType::Rw);
    let free = got(&a, "free", LockType::Atomic);
    assert_eq!(
        (got(&b, "forgotten", LockType::Rw), got(&b, "free", LockType::Atomic)),
        (lock, free)
    );
    a.object_create(b"object", Lease::secs(1), 7).unwrap();
    let object = a.object_get(b"object", Lease::secs(1)).unwrap();
    assert_eq!(a.faa(object, 1), Ok(7));
    assert_eq!(status(a.trylock(lock, X, 600)), Success);
    line.down();
    assert_eq!(status(b.lock(lock, X, 600)), Success, "it had no lease");
    eventually(60, "a is forgotten", || site.clients() == 1);
    line.up();
    eventually(60, "a is back", || status(a.trylock(free, X, 600)) == Success);
    assert_eq!(status(a.unlock(lock)), Fail, "it is told");
    assert_eq!(status(a.trylock(lock, X, 600)), Fail, "it is b's");
    assert_eq!(a.faa(object, 1), Err(ObjectNotGet), "the handle was of the client before");
    assert_eq!(status(b.unlock(lock)), Success);
    assert_eq!(status(a.lock(lock, X, 600)), Success);
    assert_eq!(status(b.trylock(free, X, 600)), Fail, "it is a's");
    assert_eq!([a.deinit(), b.deinit()], [Success; 2]);
}

/// The successor at the first address answers until the client sends its claims, and never after
/// that.
#[test]
fn a_successor_that_freezes_while_it_is_told_everything_is_left_soon() {
    let fabric = FabricChoice::Only(FabricKind::Tcp);
    let mut site = Site::new("freezes");
    let (line, other) = (Line::to(site.port), Line::beside(site.port, 1));
    let primaries = Some(vec![other.at.into()]);
    let silence = Some(Duration::from_millis(200));
    let config = ClientConfig { primaries, silence, ..config(line.at, fabric) };
    let a = Instance::init_shared(&config, &line.at.ip().to_string()).unwrap();
    let lock = got(&a, "freezes", LockType::Atomic);
    assert_eq!(status(a.trylock(lock, X, 600)), Success);
    // the answers for the session and for a heartbeat
    line.faults.answers_max.store(2, Ordering::SeqCst);
    line.down();
    other.down();
    site.stop();
    site.start();
    line.up();
    eventually(60, "it freezes", || line.faults.lost.load(Ordering::SeqCst) > 0);
    let frozen = Instant::now();
    other.up();
    eventually(60, "it is served", || status(a.extend(lock, X, 600)) == Success);
    assert!(frozen.elapsed() < Duration::from_secs(8), "as for any answer: 10 s");
    assert_eq!((status(a.unlock(lock)), a.deinit()), (Success, Success));
}

/// No recovery waits for a client that never had a lock. Such a client may still come back, however
/// late.
#[test]
fn a_client_without_locks_may_come_after_several_recoveries() {
    for fabric in fabrics() {
        let mut site = Site::new(&format!("idle-{}", fabric.name()));
        let ip = site.address().ip().to_string();
        let init = || Instance::init(&config(site.address(), fabric), &ip).unwrap();
        let (holder, idle) = (init(), init());
        let lock = got(&holder, "idle", LockType::Rw);
        assert_eq!(status(holder.trylock(lock, X, 600)), Success);
        for _ in 0..3 {
            site.stop();
            site.start();
            assert_eq!(holder.reinit(&ip), Success);
            assert_eq!((holder.update_all_locks(), holder.reinit_done()), (Success, Success));
            eventually(60, "it is recovered", || holder.heartbeat(5) == Success);
        }
        assert_eq!(idle.reinit(&ip), Success);
        got(&idle, "idle", LockType::Rw);
        assert_eq!(status(idle.trylock(lock, X, 600)), Fail);
        assert_eq!([holder.deinit(), idle.deinit()], [Success; 2]);
    }
}

/// The lease is 1 s and the outage 3 s: the client tells the successor that no time of its lease is
/// left.
#[test]
fn a_lease_that_ended_while_there_was_no_primary_is_over_after_the_recovery() {
    const OUTAGE: Duration = Duration::from_secs(3);
    for fabric in fabrics() {
        let mut site = Site::new(&format!("over-{}", fabric.name()));
        let (a, b) = (site.client(fabric), site.client(fabric));
        let locks = [LockType::Atomic, LockType::Fair].map(|lock_type| {
            let name = format!("over {lock_type:?}");
            got(&b, &name, lock_type);
            let lock = got(&a, &name, lock_type);
            assert_eq!(status(a.trylock(lock, X, 1)), Success);
            lock
        });
        site.stop();
        thread::sleep(OUTAGE);
        site.start();
        let has_primary = |status| !matches!(status, NotReady | BadResponse);
        for lock in locks {
            let why = format!("{lock:?} over {}", fabric.name());
            let mut extended = NotReady;
            eventually(60, "the holder is told", || {
                extended = status(a.extend(lock, X, 0));
                has_primary(extended)
            });
            assert_ne!(extended, Success, "{why}: its lease was over");
            eventually(60, "the other is served", || has_primary(status(b.extend(lock, X, 0))));
            // a fair lock must first pass the dead ticket at the head of its queue
            let tries = if lock == locks[0] { 1 } else { 20 };
            let is_got = (0..tries).any(|_| {
                let got = status(b.trylock(lock, X, 600));
                assert!(matches!(got, Success | Again), "{why}: {got}");
                thread::sleep(Duration::from_millis(10));
                got == Success
            });
            assert!(is_got, "{why}: it is free at once");
            assert_ne!(status(a.extend(lock, X, 0)), Success, "{why}");
            assert_eq!(status(b.unlock(lock)), Success, "{why}");
        }
        assert_eq!([a.deinit(), b.deinit()], [Success; 2]);
    }
}

/// A client leaves that knows two primaries. One has never known the client. The other is away for
/// a moment, and its successor would wait for the client.
#[test]
fn a_primary_that_never_knew_a_client_does_not_end_its_departure() {
    for fabric in fabrics() {
        let other = server();
        let mut site = Site::new(&format!("never-knew-{}", fabric.name()));
        let at = site.address();
        let primaries = Some(vec![at.into(), other.local_addr().into()]);
        let silence = Some(Duration::from_millis(200));
        let config = ClientConfig { primaries, silence, ..config(at, fabric) };
        let a = Instance::init_shared(&config, &at.ip().to_string()).unwrap();
        site.stop();
        let leaves = thread::spawn(move || a.deinit());
        thread::sleep(Duration::from_millis(300));
        assert!(!leaves.is_finished(), "no primary that knows it was told");
        site.start();
        assert_eq!(leaves.join().unwrap(), Success);
        eventually(60, "it is forgotten", || site.clients() == 0);
    }
}
