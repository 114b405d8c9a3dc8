// SPDX-License-Identifier: MIT OR Apache-2.0
//! A reinit that fails, at whichever message, leaves the session as it was.

mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::{fabrics, got, status, ChildPrimary, X};
use dlock_client::raw::Instance;
use dlock_client::{FabricChoice, LockId, LockType, Mode, Status, Wait};
use Status::*;

/// More messages than a reinit exchanges.
const MESSAGES_MAX: usize = 12;

/// Not a test by itself: the primary, in a child process that is stopped.
#[test]
fn child_that_serves_until_its_input_ends() {
    common::serve_as_child();
}

fn primary() -> Arc<ChildPrimary> {
    Arc::new(ChildPrimary::start("child_that_serves_until_its_input_ends"))
}

/// The number of messages of a reinit: `Reinit`, `Attach`, a heartbeat, and their answers.
const REINIT_MESSAGES: usize = 6;

/// The act of a [`Proxy`] at one of the messages.
enum At {
    /// The message is lost, and its connection ends.
    Cut,
    /// This is called; then the message is passed on.
    Act(Box<dyn Fn() + Send + Sync>),
}

/// A proxy before a primary, which passes messages on, and acts at the message with one number.
struct Proxy {
    ip: IpAddr,
    shared: Arc<Shared>,
}

struct Shared {
    /// The number of the message at which the proxy acts; `usize::MAX`: at none.
    at: AtomicUsize,
    what: At,
    messages: AtomicUsize,
    was_there: AtomicBool,
    ends: AtomicBool,
}

impl Proxy {
    fn start(port: u16, at: usize, what: At) -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        // a loopback address for this process and this proxy alone
        let [_, a, b, c] = std::process::id().to_be_bytes();
        let number = STARTED.fetch_add(1, Ordering::Relaxed) as u8;
        let ip = Ipv4Addr::new(127, a << 4 | 0x80 | number, b, c);
        let listener = TcpListener::bind((ip, port)).unwrap();
        let shared = Arc::new(Shared {
            at: AtomicUsize::new(at),
            what,
            messages: AtomicUsize::new(0),
            was_there: AtomicBool::new(false),
            ends: AtomicBool::new(false),
        });
        let ours = Arc::clone(&shared);
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if ours.ends.load(Ordering::Relaxed) {
                    return;
                }
                let far = TcpStream::connect(("127.0.0.1", port)).unwrap();
                for (from, to) in [(&near, &far), (&far, &near)] {
                    from.set_nodelay(true).unwrap();
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let ours = Arc::clone(&ours);
                    thread::spawn(move || ours.pass(from, to));
                }
            }
        });
        Self { ip: ip.into(), shared }
    }

    /// Whether the message has come. From now on, all messages pass.
    fn was_there(&self) -> bool {
        self.shared.at.store(usize::MAX, Ordering::Relaxed);
        self.shared.was_there.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn pass(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = [0; 4_096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let number = self.messages.fetch_add(1, Ordering::Relaxed);
            if number == self.at.load(Ordering::Relaxed) {
                self.was_there.store(true, Ordering::Relaxed);
                match &self.what {
                    At::Cut => break,
                    At::Act(act) => act(),
                }
            }
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        for stream in [from, to] {
            // a connection that has ended already is fine, too
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// A client `a` with holds, with and without a lease, and with a lock that it does not hold; and
/// another client, which wants one of the holds.
struct Old {
    a: Instance,
    held: LockId,
    leased: LockId,
    free: LockId,
    other: Instance,
}

impl Old {
    fn new(primary: &ChildPrimary, fabric: FabricChoice) -> Self {
        let join = || Instance::init(&primary.config(fabric), "127.0.0.1").unwrap();
        let (a, other) = (join(), join());
        // a hold without a lease lasts only as long as the session
        let held = got(&a, "held", LockType::Rw);
        let free = got(&a, "free", LockType::Fair);
        let leased = got(&a, "leased", LockType::Atomic);
        got(&other, "held", LockType::Rw);
        for id in [held, leased] {
            assert_eq!(status(a.trylock(id, X, 600)), Success);
        }
        Self { a, held, leased, free, other }
    }

    /// Checks that the session is served, and still has its holds.
    fn works(&self, when: &str) {
        let Self { a, held, leased, free, other } = self;
        for _ in 0..20 {
            assert_eq!(a.heartbeat(60), Success, "{when}");
            assert_eq!(status(a.trylock(*free, X, 600)), Success, "{when}");
            assert_eq!(status(a.unlock(*free)), Success, "{when}");
            assert_eq!(status(other.trylock(*held, X, 600)), Fail, "{when}");
        }
        assert_eq!(status(a.extend(*leased, X, 600)), Success, "{when}");
        let another = got(a, "another", LockType::Atomic);
        assert_eq!(a.release_lock(another), Success, "{when}");
    }

    /// Checks that the client still has its holds, and ends both clients.
    fn ends(self) {
        assert_eq!(status(self.a.unlock(self.held)), Success);
        assert_eq!(status(self.other.trylock(self.held, X, 600)), Success);
        assert_eq!([self.a.deinit(), self.other.deinit()], [Success; 2]);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_connection_that_is_lost_during_a_reinit_leaves_the_session_as_it_was() {
    for fabric in fabrics() {
        let primary = primary();
        let old = Old::new(&primary, fabric);
        let mut failed = 0;
        for at in 0..MESSAGES_MAX {
            let proxy = Proxy::start(primary.port, at, At::Cut);
            let result = old.a.reinit(&proxy.ip.to_string());
            let when = format!("{fabric:?}, message {at}: {result}");
            let was_there = proxy.was_there();
            // the new session repeats its ledger writes after the last message of the reinit
            let is_after = result == Success && at >= REINIT_MESSAGES;
            if is_after && was_there {
                assert_eq!(old.a.reinit("127.0.0.1"), Success, "{when}");
            }
            old.works(&when);
            if is_after || !was_there {
                assert_eq!(result, Success, "{when}");
                assert!(failed >= 2, "what was it that could be lost?");
                break;
            }
            failed += usize::from(result != Success);
        }
        assert_eq!(old.a.reinit("127.0.0.1"), Success);
        old.works("after it");
        old.ends();
    }
}

#[test]
fn a_primary_that_stops_during_a_reinit_goes_on_with_the_session_as_it_was() {
    for fabric in fabrics() {
        let points: Vec<_> = (0..if fabric == FabricChoice::Tcp { 6 } else { 4 }).collect();
        thread::scope(|scope| {
            for at in points {
                scope.spawn(move || {
                    let primary = primary();
                    let old = Old::new(&primary, fabric);
                    let frozen = Arc::clone(&primary);
                    let freeze = At::Act(Box::new(move || frozen.freeze()));
                    let proxy = Proxy::start(primary.port, at, freeze);
                    let start = Instant::now();
                    let result = old.a.reinit(&proxy.ip.to_string());
                    assert!(start.elapsed() < Duration::from_secs(100));
                    assert!(proxy.was_there());
                    let when = format!("{fabric:?}, message {at}: {result}");
                    // a reinit waits for its first four messages
                    assert!(result != Success || at + 1 >= 4, "{when}");
                    primary.thaw();
                    old.works(&when);
                    assert_eq!(old.a.reinit("127.0.0.1"), Success, "{when}");
                    old.works(&when);
                    old.ends();
                });
            }
        });
    }
}

#[test]
fn a_wait_goes_on_through_a_reinit_that_fails() {
    const LEASE: Duration = Duration::from_secs(600);
    for fabric in fabrics() {
        let primary = primary();
        let join = || primary.client(fabric);
        let (holder, waiter) = (join(), join());
        let held = holder.atomic_lock("waited for").unwrap();
        let wanted = waiter.atomic_lock("waited for").unwrap();
        let guard = held.acquire(Mode::Exclusive).lease(LEASE).wait(Wait::No).guard().unwrap();
        thread::scope(|scope| {
            let wait = scope.spawn(|| {
                wanted.acquire(Mode::Exclusive).lease(LEASE).wait(LEASE).guard().map(drop)
            });
            // gives the waiter time to queue; the test is right without that, too
            thread::sleep(Duration::from_millis(200));
            for at in [0, 1] {
                let proxy = Proxy::start(primary.port, at, At::Cut);
                let _ = waiter.reconnect(&proxy.ip.to_string());
                assert!(proxy.was_there() && !wait.is_finished());
            }
            guard.unlock().unwrap();
            assert!(wait.join().unwrap().is_ok(), "{fabric:?}");
        });
    }
}
