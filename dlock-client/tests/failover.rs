// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients that find the successor of their primary by themselves: nothing here calls `reinit`.

mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use common::{config, eventually, fabrics, got, own_address, server_at, status, S, X};
use dlock_client::{ClientConfig, FabricChoice, FabricKind, Instance, LockType, Status};
use dlock_server::{Server, ServerConfig};
use Status::*;

/// One primary after the other, at the same address and with the same state file.
struct Site {
    folder: PathBuf,
    port: u16,
    server: Option<Server>,
}

impl Site {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("dlock-at-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut site = Self { folder, port: 0, server: None };
        site.start();
        site
    }

    fn start(&mut self) {
        let state_file = Some(self.folder.join("state"));
        let config = ServerConfig { bind: own_address(), state_file, ..Default::default() };
        let server = server_at(self.port, config);
        self.port = server.local_addr().port();
        self.server = Some(server);
    }

    /// Its clients are not asked.
    fn stop(&mut self) {
        self.server = None;
    }

    fn address(&self) -> SocketAddr {
        (own_address(), self.port).into()
    }

    fn client(&self, fabric: FabricChoice) -> Arc<Instance> {
        by_itself(self.address(), fabric)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder); // a left-over harms nobody
    }
}

fn by_itself(at: SocketAddr, fabric: FabricChoice) -> Arc<Instance> {
    let primaries = Some(vec![at]);
    let silence = Some(Duration::from_millis(200));
    let config = ClientConfig { primaries, silence, ..config(at, fabric) };
    Instance::init_shared(&config, &at.ip().to_string()).expect("the primary admits a client")
}

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
            // a release is one after a failover, too, in whichever state it came
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
        eventually(20, "it is served", || status(a.extend(lock, X, 600)) == Success);
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

/// Passes everything on, and can end the connection that came as this number of all.
struct Line {
    at: SocketAddr,
    ends: Arc<Mutex<Vec<TcpStream>>>,
}

impl Line {
    fn to(port: u16) -> Self {
        let [_, a, b, c] = std::process::id().to_be_bytes();
        let ip: IpAddr = Ipv4Addr::new(127, a | 0x40, b, c).into();
        let listener = TcpListener::bind((ip, port)).unwrap();
        let ends: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let all = Arc::clone(&ends);
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect((own_address(), port)) else { continue };
                all.lock().unwrap().push(near.try_clone().unwrap());
                for (from, to) in [(&near, &far), (&far, &near)] {
                    from.set_nodelay(true).unwrap();
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    thread::spawn(move || pass(from, to));
                }
            }
        });
        Self { at: (ip, port).into(), ends }
    }

    fn cut(&self, number: usize) {
        let _ = self.ends.lock().unwrap()[number].shutdown(Shutdown::Both); // it may have ended
    }

    fn count(&self) -> usize {
        self.ends.lock().unwrap().len()
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = [0; 4_096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both); // it may have ended
    }
}

/// The control connection, or the data path alone, ends: both are made anew.
#[test]
fn a_connection_that_breaks_alone_is_made_anew() {
    let fabric = FabricChoice::Only(FabricKind::Tcp);
    let site = Site::new("line");
    let line = Line::to(site.port);
    let (a, b) = (by_itself(line.at, fabric), site.client(fabric));
    let lock = got(&a, "line", LockType::Fair);
    got(&b, "line", LockType::Fair);
    assert_eq!(status(a.trylock(lock, X, 600)), Success);
    let mut first = 0;
    for n in 0..6 {
        // connections of a session: control and data path
        let count = line.count();
        line.cut(first + n % 2);
        eventually(20, "it is back", || {
            line.count() >= count + 2 && status(a.extend(lock, X, 600)) == Success
        });
        first = line.count() - 2;
        assert_eq!(status(b.trylock(lock, X, 600)), Again, "it is held as before");
        assert_eq!(status(b.unlock(lock)), Success);
    }
    assert_eq!(status(a.unlock(lock)), Success);
    assert_eq!(status(b.trylock(lock, X, 600)), Success);
    assert_eq!([a.deinit(), b.deinit()], [Success; 2]);
}

/// What the primaries knew of their clients is gone: a new one knows nobody.
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
            eventually(20, "b is served", || status(b.lock(held, X, 600)) == Success);
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
