// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events that a program hears without asking, on real fabrics: those of one lock come in order; a
//! loss is told while the lease still runs, and before the next success.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::site::Site;
use common::{client, fabrics, lock, name, named, server, signal, S, X};
use dlock_client::{
    Client, Config, Error, Event, Events, HoldEvent, Lock, LockType, Loss, Mode, Renew, Wait,
};
use HoldEvent::{Contended, Granted, Lost, RenewalFailing};

const LEASE: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(30);
const KINDS: [(LockType, Mode); 3] =
    [(LockType::Atomic, X), (LockType::Fair, X), (LockType::Fair, S)];

/// The next event, which must be about this hold.
fn next(events: &Events, of: (&Lock, u64)) -> HoldEvent {
    match events.wait_for(SOON) {
        Some(Event::Hold { lock, generation, what, .. })
            if (lock, generation) == (of.0.id(), of.1) =>
        {
            what
        }
        other => panic!("{other:?} is not about {of:?}"),
    }
}

fn try_it(other: &Client, name: &str, lock_type: LockType) -> Result<(), Error> {
    let lock = lock(other, name, lock_type);
    let guard = lock.acquire(X).lease(LEASE).wait(Wait::No).guard()?;
    guard.unlock()
}

#[test]
fn a_loss_is_told_while_the_lease_runs_and_a_release_is_none() {
    let server = server();
    for fabric in fabrics() {
        for (lock_type, mode) in KINDS {
            let [mine, other] = [0, 1].map(|_| client(&server, fabric));
            let name = format!("told {fabric:?} {lock_type:?} {mode:?}");
            let held = lock(&mine, &name, lock_type);
            let (all, its) = (mine.events(100), held.events(100));
            held.acquire(mode).lease(LEASE).guard().unwrap().unlock().unwrap();
            let guard = held.acquire(mode).lease(LEASE).guard().unwrap();
            let hold = guard.generation();
            assert_eq!(next(&all, (&held, hold - 1)), Granted, "the first one, which was released");
            assert_eq!(next(&all, (&held, hold)), Granted);
            assert_eq!(next(&all, (&held, hold)), Lost(Loss::Expired));
            let is_taken = try_it(&other, &name, lock_type);
            assert_eq!(is_taken, Err(Error::Held), "{name}: its lease runs still");
            assert_eq!(guard.unlock(), Err(Error::Lost), "{name}");
            let again = held.acquire(mode).lease(LEASE).wait(SOON).guard().unwrap();
            assert!(again.generation() > hold);
            assert_eq!(next(&all, (&held, again.generation())), Granted);
            let heard: Vec<_> = std::iter::from_fn(|| its.try_next()).collect();
            assert_eq!(heard.len(), 4, "{name}: {heard:?}");
            again.unlock().unwrap();
            assert_eq!(all.try_next(), None, "{name}");
        }
    }
}

#[test]
fn a_read_write_lock_tells_its_grants_and_nothing_else_while_its_session_lasts() {
    let server = server();
    for fabric in fabrics() {
        let mine = client(&server, fabric);
        let held = lock(&mine, &format!("rw {fabric:?}"), LockType::Rw);
        let events = held.events(10);
        let guard = held.acquire(S).guard().unwrap();
        assert_eq!(next(&events, (&held, guard.generation())), Granted);
        assert_eq!(events.wait_for(2 * LEASE), None);
        guard.unlock().unwrap();
        assert_eq!(events.try_next(), None);
    }
}

/// A holder hears that another client waits, and releases the lock; then the other client has it.
#[test]
fn a_holder_that_listens_hears_that_others_wait_and_one_that_does_not_is_sent_nothing() {
    let server = server();
    for fabric in fabrics() {
        for (lock_type, mode) in
            [KINDS[0], KINDS[1], KINDS[2], (LockType::Rw, X), (LockType::Rw, S)]
        {
            let [mine, other] = [0, 1].map(|_| client(&server, fabric));
            let name = format!("contended {fabric:?} {lock_type:?} {mode:?}");
            let held = lock(&mine, &name, lock_type);
            let events = held.events(100);
            for begins_late in [false, true] {
                let guard = held.acquire(mode).guard().unwrap();
                let of = (&held, guard.generation());
                assert_eq!(next(&events, of), Granted);
                // the question may come before the waiter, or after it
                let all = begins_late.then(|| mine.events(100));
                thread::scope(|threads| {
                    let its = threads.spawn(|| {
                        let lock = lock(&other, &name, lock_type);
                        lock.acquire(X).wait(SOON).guard().map(|guard| guard.unlock())
                    });
                    assert_eq!(next(&events, of), Contended { waiters: 1, until: None }, "{name}");
                    guard.unlock().unwrap();
                    assert_eq!(its.join().unwrap(), Ok(Ok(())));
                });
                assert_eq!(events.try_next(), None, "{name}");
                drop(all);
            }
        }
    }
}

/// A resource may refuse the token of a hold from then on that was lost.
#[test]
fn a_grant_and_a_loss_tell_the_token_of_the_hold() {
    for fabric in fabrics() {
        for (lock_type, mode) in KINDS {
            let site = Site::new(&format!("token-{}", fabric.name()));
            let at = site.address();
            let config = Config::new().port(at.port()).fabric(fabric);
            let mine = Client::with_config(&config, &at.ip().to_string()).unwrap();
            let lock = mine.lock_with_tokens("lock", lock_type).unwrap();
            let events = lock.events(100);
            let guard = lock.acquire(mode).lease(LEASE).guard().unwrap();
            let token = guard.token();
            assert!(token.is_some());
            for expected in [Granted, Lost(Loss::Expired)] {
                match events.wait_for(SOON) {
                    Some(Event::Hold { what, token: told, .. }) => {
                        assert_eq!((what, told), (expected, token), "{lock_type:?}");
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

/// The primary ends twice: once a successor comes, once none does.
#[test]
fn a_failover_is_told_and_a_renewal_that_fails_before_the_hold_is_lost() {
    const LEASE: Duration = Duration::from_secs(4);
    for fabric in fabrics() {
        let mut site = Site::new(&format!("events-{}", fabric.name()));
        let at = site.address();
        let config = Config::new().port(at.port()).fabric(fabric).primaries([at]);
        let config = config.silence(Duration::from_millis(200)).horizon(Duration::from_secs(60));
        let mine = Client::with_config(&config, &at.ip().to_string()).unwrap();
        let held = lock(&mine, "held", LockType::Fair);
        let guard = held.acquire(X).lease(LEASE).renew(Renew::new()).guard().unwrap();
        let (events, its) = (mine.events(100), held.events(100));
        site.stop();
        let of = (&held, guard.generation());
        assert_eq!(next(&its, of), Granted);
        assert!(matches!(next(&its, of), RenewalFailing { .. }));
        site.start();
        let mut heard: Vec<_> = std::iter::from_fn(|| match events.wait_for(SOON) {
            Some(Event::Serving) | None => None,
            event => event,
        })
        .collect();
        heard.retain(|event| !matches!(event, Event::Hold { .. }));
        let is_recovering = |event: &Event| matches!(event, Event::Recovering { .. });
        assert!(heard.iter().all(is_recovering), "over {}: {heard:?}", fabric.name());
        assert_eq!(heard.first(), Some(&Event::Recovering { told: 0, of: 0 }));
        assert_eq!(its.wait_for(2 * LEASE), None, "it is renewed again");
        site.stop();
        let failing = |what: &HoldEvent| matches!(what, RenewalFailing { .. });
        let end = std::iter::repeat_with(|| next(&its, of)).find(|what| !failing(what));
        assert_eq!(end, Some(Lost(Loss::Expired)));
        assert!(guard.is_known_lost());
    }
}

/// A holder that gives the lock back in time keeps its session. A holder that keeps the lock is
/// told of its loss.
#[test]
fn an_operator_who_wants_a_lock_back_is_heard_and_so_is_what_was_taken_away() {
    const GRACE: Duration = Duration::from_secs(2);
    for fabric in fabrics() {
        let site = Site::new(&format!("taken-{}", fabric.name()));
        let at = site.address();
        let config = Config::new().port(at.port()).fabric(fabric).primaries([at]);
        let mine = Client::with_config(&config, &at.ip().to_string()).unwrap();
        for lock_type in [LockType::Atomic, LockType::Rw, LockType::Fair] {
            let name = format!("{lock_type:?}");
            let held = lock(&mine, &name, lock_type);
            let events = held.events(100);
            let guard = held.acquire(X).guard().unwrap();
            let of = (&held, guard.generation());
            assert_eq!(next(&events, of), Granted);
            let name: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
            let wanted = |more| format!(r#"{{"cmd":"break","name_hex":"{name}",{more}}}"#);
            let answer = site.operate(&wanted(r#""grace_s":2"#));
            let asked = Instant::now();
            match next(&events, of) {
                Contended { waiters: 0, until: Some(left) } if left <= GRACE => {}
                other => panic!("{other:?}, after {answer}"),
            }
            assert!(asked.elapsed() < GRACE);
            guard.unlock().unwrap();
            thread::sleep((GRACE + GRACE / 4).saturating_sub(asked.elapsed()));
            let guard = held.acquire(X).guard().expect("its client stays");
            let of = (&held, guard.generation());
            assert_eq!(next(&events, of), Granted);
            site.operate(&wanted(r#""now":true"#));
            assert_eq!(next(&events, of), Lost(Loss::TakenAway), "over {}", fabric.name());
            assert_eq!(guard.unlock(), Err(Error::Lost));
            let again = held.acquire(X).wait(SOON).guard().unwrap();
            assert_eq!(next(&events, (&held, again.generation())), Granted, "it has begun anew");
            again.unlock().unwrap();
        }
    }
}

/// Of two clients, one has told the successor what it holds; the other does not come back by
/// itself.
#[test]
fn who_waits_for_a_recovery_hears_how_far_it_is() {
    for fabric in fabrics() {
        let mut site = Site::new(&format!("far-{}", fabric.name()));
        let at = site.address();
        let config = Config::new().port(at.port()).fabric(fabric).primaries([at]);
        let config = config.silence(Duration::from_millis(200)).horizon(Duration::from_secs(60));
        let mine = Client::with_config(&config, &at.ip().to_string()).unwrap();
        let held = lock(&mine, "held", LockType::Fair);
        let _guard = held.acquire(X).guard().unwrap();
        let horizon = Duration::from_secs(60);
        let stays_away = Config::new().port(at.port()).fabric(fabric).horizon(horizon);
        let other = Client::with_config(&stays_away, &at.ip().to_string()).unwrap();
        let its = lock(&other, "its", LockType::Fair);
        let _its_guard = its.acquire(X).guard().unwrap();
        let events = mine.events(100);
        site.stop();
        site.start();
        let heard: Vec<_> = std::iter::from_fn(|| events.wait_for(SOON))
            .filter(|event| matches!(event, Event::Recovering { .. }))
            .take(2)
            .collect();
        let far = [(0, 0), (1, 2)].map(|(told, of)| Event::Recovering { told, of });
        assert_eq!(heard, far, "over {}", fabric.name());
        assert_eq!(events.wait_for(LEASE), None, "it is told when it changes");
    }
}

const PORT: &str = "DLOCK_TEST_EVENTS_PORT";

/// Not a test by itself: the child process that the test below stops.
#[test]
fn a_client_that_is_stopped() {
    let Ok(port) = std::env::var(PORT) else { return };
    let config = Config::new().port(port.parse().unwrap()).fabric(named());
    let mine = Client::with_config(&config, "127.0.0.1").unwrap();
    let locks =
        KINDS.map(|(lock_type, mode)| (lock(&mine, &kind(lock_type, mode), lock_type), mode));
    let events = locks.each_ref().map(|(lock, _)| lock.events(100));
    let guards = locks
        .each_ref()
        .map(|(lock, mode)| lock.acquire(*mode).lease(LEASE).renew(Renew::new()).guard().unwrap());
    println!("\nheld");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    for ((mut guard, (lock, mode)), events) in guards.into_iter().zip(&locks).zip(&events) {
        assert!(guard.check().is_err(), "another has had it");
        let hold = guard.generation();
        drop(guard);
        let again = lock.acquire(*mode).lease(LEASE).wait(SOON).guard().unwrap();
        // all events that have come so far
        let heard = std::iter::from_fn(|| events.try_next()).filter_map(|event| match event {
            Event::Hold { generation, what, .. } => Some((generation, what)),
            _ => None,
        });
        let heard: Vec<_> = heard.filter(|one| !matches!(one.1, RenewalFailing { .. })).collect();
        let lost = heard.iter().position(|one| one.0 == hold && matches!(one.1, Lost(_)));
        let granted = heard.iter().position(|one| *one == (again.generation(), Granted));
        assert!(lost.is_some() && lost < granted, "{heard:?}");
        again.unlock().unwrap();
    }
    println!("\ndone");
}

fn kind(lock_type: LockType, mode: Mode) -> String {
    format!("stopped {lock_type:?} {mode:?}")
}

/// A client is stopped (SIGSTOP) for three times its lease, while another client gets its locks,
/// and then goes on.
#[test]
fn a_client_that_was_stopped_for_longer_than_its_lease_is_told_before_its_next_success() {
    let server = server();
    for fabric in fabrics() {
        let other = client(&server, fabric);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_client_that_is_stopped", "--nocapture"])
            .env(PORT, server.local_addr().port().to_string())
            .env("DLOCK_TEST_FABRIC", name(fabric))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut says = |what: &str| lines.by_ref().map_while(Result::ok).any(|line| line == what);
        assert!(says("held"));
        signal(&child, "STOP");
        let begun = Instant::now();
        for (lock_type, mode) in KINDS {
            let lock = lock(&other, &kind(lock_type, mode), lock_type);
            let guard = lock.acquire(X).lease(LEASE).wait(SOON).guard().unwrap();
            guard.unlock().unwrap();
        }
        thread::sleep((3 * LEASE).saturating_sub(begun.elapsed()));
        child.stdin.take().unwrap().write_all(b"go on\n").unwrap();
        signal(&child, "CONT");
        assert!(says("done"), "over {}", fabric.name());
        assert!(child.wait().unwrap().success());
    }
}

/// Also one whose wait began in an earlier session.
#[test]
fn who_waits_when_its_client_leaves_is_told_so() {
    for fabric in fabrics() {
        for (lock_type, is_new) in [LockType::Atomic, LockType::Fair]
            .into_iter()
            .flat_map(|kind| [(kind, false), (kind, true)])
        {
            let mut site = Site::new(&format!("leaves-{}", fabric.name()));
            let at = site.address();
            let config = Config::new().port(at.port()).fabric(fabric).primaries([at]);
            let config = config.silence(Duration::from_millis(200));
            let [mine, its] =
                [0, 1].map(|_| Client::with_config(&config, &at.ip().to_string()).unwrap());
            let [held, waited] = [&mine, &its].map(|client| lock(client, "lock", lock_type));
            let _guard = held.acquire(X).lease(10 * SOON).guard().unwrap();
            let other = lock(&its, "other", lock_type);
            let _second = lock(&mine, "other", lock_type).acquire(X).lease(10 * SOON).owned();
            let blocks = thread::spawn(move || waited.acquire(X).wait(10 * SOON).owned().map(drop));
            let future = thread::spawn(move || {
                pollster(async move { other.acquire(X).wait(10 * SOON).await.map(drop) })
            });
            thread::sleep(Duration::from_millis(300));
            if is_new {
                site.stop();
                site.start();
                thread::sleep(Duration::from_millis(1_000));
            }
            its.leave().unwrap();
            for result in [blocks.join().unwrap(), future.join().unwrap()] {
                assert_eq!(result, Err(Error::Left), "{} {lock_type:?} {is_new}", fabric.name());
            }
        }
    }
}

/// It asks the primary nothing, and the hold that keeps it waiting may last for long.
#[test]
fn who_waits_behind_a_hold_of_its_own_client_is_told_of_the_end_of_the_session() {
    for fabric in fabrics() {
        let site = Site::new(&format!("behind-{}", fabric.name()));
        let at = site.address();
        let config = Config::new().port(at.port()).fabric(fabric).horizon(10 * SOON);
        let client = Client::with_config(&config, &at.ip().to_string()).unwrap();
        let locks = [0, 1].map(|n| lock(&client, &format!("lock {n}"), LockType::Fair));
        let _guards = locks.each_ref().map(|one| one.acquire(X).lease(10 * SOON).guard().unwrap());
        let [blocks, awaits] = locks.clone();
        let (tells, told) = std::sync::mpsc::channel();
        let tells_too = tells.clone();
        thread::spawn(move || tells.send(blocks.acquire(X).wait(10 * SOON).owned().map(drop)));
        thread::spawn(move || {
            let result = pollster(async move { awaits.acquire(X).wait(10 * SOON).await.map(drop) });
            tells_too.send(result)
        });
        thread::sleep(Duration::from_millis(200)); // they wait, most likely
        let id = client.instance().id();
        site.operate(&format!(r#"{{"cmd":"remove","client":{id}}}"#));
        for _ in 0..2 {
            let result = told.recv_timeout(SOON).expect("it is told before the lease ends");
            let is_told = matches!(result, Err(Error::Removed | Error::Disconnected));
            assert!(is_told, "over {}: {result:?}", fabric.name());
        }
    }
}

fn pollster<T>(future: impl std::future::Future<Output = T>) -> T {
    struct Thread(thread::Thread);
    impl std::task::Wake for Thread {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Thread(thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(result) = future.as_mut().poll(&mut context) {
            return result;
        }
        thread::park();
    }
}
