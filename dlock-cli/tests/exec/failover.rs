// SPDX-License-Identifier: MIT OR Apache-2.0
//! A primary has ended: COMMAND runs on at the successor, which waits only for the keeper.

use std::net::TcpListener;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;

use super::common::{code, dlock, own_address, text, Primary};
use super::proxy::{Proxy, Stall};
use super::{eventually, fabrics, Exec, Scene};

/// The limit for a failover in which the keeper returns, on a loaded machine, too. If no client
/// returned, the failover would take as long as the lease ([`LEASE`]).
const FAILOVER_MAX: Duration = Duration::from_secs(30);
const LEASE: &str = "120";
/// The limit for `--wait 2` on a loaded machine; otherwise it takes 3 s at most. Without `--wait`,
/// each phase of a connection could take 10 s, and to undo a grant 5 s more.
const WAIT_MAX: Duration = Duration::from_secs(7);

/// A port that is free at the loopback address of this process.
fn free_port() -> u16 {
    TcpListener::bind((own_address(), 0)).unwrap().local_addr().unwrap().port()
}

fn start(scene: &Scene, name: &str, port: u16, options: &[&str]) -> Primary {
    let (address, port) = (own_address().to_string(), port.to_string());
    let state = scene.at("state");
    let place = ["--listen", &address, "--port", &port, "--state-file", state.to_str().unwrap()];
    Primary::start_exactly(name, &[&place[..], options].concat())
}

fn is_ready(primary: &Primary) -> bool {
    let output = dlock(&["recover", "--json", "--socket", &primary.socket()]);
    let answer: Option<Value> = serde_json::from_slice(&output.stdout).ok();
    answer.is_some_and(|answer| answer["recovery"].is_null())
}

fn fail_over(fabric: &str, kind: &str) {
    let what = format!("{fabric} {kind}");
    let scene = Scene::new(&format!("over-{fabric}-{kind}"));
    let mut first = start(&scene, &format!("over-1-{fabric}-{kind}"), 0, &[]);
    let port = free_port();
    let both = format!("{},{}:{port}", first.address, own_address());
    let options = ["lock", "--type", kind, "--fabric", fabric, "--lease", LEASE, "--wait", "300"];
    let mut holder = scene.exec(&both, &options, "a", "end-a");
    eventually(&format!("{what}: it runs"), || scene.has("begin.a"));
    let mut waiter = scene.exec(&both, &options, "b", "end-b");
    let said = || std::fs::read_to_string(scene.at("stderr.b")).unwrap_or_default();
    eventually(&format!("{what}: the other waits"), || said().contains("waiting for the lock"));
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    let began = Instant::now();
    let successor = start(&scene, &format!("over-2-{fabric}-{kind}"), port, &[]);
    eventually(&format!("{what}: the successor serves"), || is_ready(&successor));
    let took = began.elapsed();
    assert!(took < FAILOVER_MAX, "{what}: the failover took {took:?}");
    assert!(!holder.has_ended() && !scene.has("begin.b"), "{what}: it runs on, alone");
    // the keeper extends the hold at the successor: another client without a wait is refused
    let third = ["lock", "--type", kind, "--fabric", fabric, "--wait", "0", "--", "true"];
    let third = successor.exec(&third);
    assert_eq!(code(&third), 75, "{what}: it is held: {}", text(&third.stderr));
    scene.touch("end-a");
    assert_eq!(holder.code(&what), Some(0), "{what}: it has run to its end");
    eventually(&format!("{what}: the other runs"), || scene.has("begin.b"));
    scene.touch("end-b");
    assert_eq!(waiter.code(&what), Some(0), "{what}");
    scene.assert_no_overlap(&what);
}

#[test]
fn command_runs_on_at_a_successor_that_waits_for_nothing_but_its_keeper() {
    thread::scope(|scope| {
        for fabric in fabrics() {
            scope.spawn(move || {
                for kind in ["atomic", "rw", "fair"] {
                    fail_over(fabric, kind);
                }
            });
        }
    });
}

#[test]
fn command_runs_on_at_a_standby() {
    let scene = Scene::new("standby");
    let first = start(&scene, "standby-1", 0, &[]);
    let port = free_port();
    let standby = {
        let (of, scene) = (first.address.clone(), scene.at("state"));
        thread::spawn(move || {
            let (address, port) = (own_address().to_string(), port.to_string());
            let place = ["--listen", &address, "--port", &port, "--standby-of", &of];
            let state = ["--state-file", scene.to_str().unwrap()];
            Primary::start_as_standby("standby-2", &[place.as_slice(), &state].concat())
        })
    };
    let both = format!("{},{}:{port}", first.address, own_address());
    let options = ["lock", "--fabric", "tcp", "--lease", LEASE];
    let mut holder = scene.exec(&both, &options, "a", "end-a");
    eventually("it runs", || scene.has("begin.a"));
    let pid = Pid::from_child(&first.child);
    kill_process(pid, Signal::KILL).unwrap();
    let successor = standby.join().unwrap();
    eventually("the standby serves", || is_ready(&successor));
    assert!(!holder.has_ended());
    let third = successor.exec(&["lock", "--fabric", "tcp", "--wait", "0", "--", "true"]);
    assert_eq!(code(&third), 75, "{}", text(&third.stderr));
    scene.touch("end-a");
    assert_eq!(holder.code("at the standby"), Some(0));
}

/// Kills a `dlock exec` and its keeper, as if their host had lost its power.
fn vanish(mut exec: Exec) {
    kill_process(exec.keeper(), Signal::KILL).unwrap();
    exec.signal(Signal::KILL);
    exec.code("killed");
}

/// As if a host had lost its power on which the primary and a client ran: the successor waits for
/// that client for longer than any lease, and extends none meanwhile.
#[test]
fn command_runs_on_while_a_successor_waits_for_a_client_that_died_with_the_primary() {
    let scene = Scene::new("died-with");
    let kinds = ["atomic", "rw", "fair"].map(|kind| (kind, Scene::new(&format!("runs-{kind}"))));
    let mut first = start(&scene, "died-with-1", 0, &[]);
    let port = free_port();
    let both = format!("{},{}:{port}", first.address, own_address());
    let hold = |(kind, scene): &(&'static str, Scene)| {
        let options =
            [*kind, "-v", "--type", kind, "--fabric", "tcp", "--lease", "30", "--wait", "300"];
        scene.exec(&both, &options, "a", "end")
    };
    let mut holders: Vec<Exec> = kinds.iter().map(hold).collect();
    let lost = scene.exec(&first.address, &["lost", "--fabric", "tcp"], "lost", "never");
    eventually("all run", || {
        scene.has("begin.lost") && kinds.iter().all(|(_, scene)| scene.has("begin.a"))
    });
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    vanish(lost);
    let began = Instant::now();
    let successor = start(&scene, "died-with-2", port, &["--deadline", "40"]);
    eventually("the successor serves", || is_ready(&successor));
    assert!(began.elapsed() > Duration::from_secs(35), "it has waited for the dead client");
    for ((kind, _), holder) in kinds.iter().zip(&mut holders) {
        assert!(!holder.has_ended(), "{kind}: it runs on");
        let third = [kind, "--type", kind, "--fabric", "tcp", "--wait", "0", "--", "true"];
        let third = successor.exec(&third);
        assert_eq!(code(&third), 75, "{kind}: it is held: {}", text(&third.stderr));
    }
    for ((kind, scene), holder) in kinds.iter().zip(&mut holders) {
        let said = std::fs::read_to_string(scene.at("stderr.a")).unwrap();
        assert!(said.contains("3 of 4 clients have told it what they hold"), "{said}");
        scene.touch("end");
        assert_eq!(holder.code(kind), Some(0), "{kind}: it has run to its end");
    }
}

#[test]
fn a_primary_that_recovers_is_waited_for_as_for_a_held_lock() {
    let scene = Scene::new("recovers");
    let port = free_port();
    let mut first = start(&scene, "recovers-1", port, &[]);
    let options = ["lock", "--fabric", "tcp", "--lease", LEASE];
    let lost = scene.exec(&first.address, &options, "lost", "never");
    eventually("it runs", || scene.has("begin.lost"));
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    vanish(lost);
    let successor = start(&scene, "recovers-2", port, &["--deadline", "100000"]);
    let short = successor.exec(&["lock", "--fabric", "tcp", "--wait", "5", "--", "true"]);
    assert_eq!(code(&short), 75, "it waits in vain: {}", text(&short.stderr));
    let why = text(&short.stderr);
    assert!(why.contains("recovers") && why.contains("dlock recover"), "{why}");
    let mut patient = scene.exec(&successor.address, &options, "b", "end-b");
    let said = || std::fs::read_to_string(scene.at("stderr.b")).unwrap_or_default();
    eventually("it waits", || said().contains("waiting for the primary"));
    let output = dlock(&["recover", "--now", "--socket", &successor.socket()]);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    eventually("it has the lock", || scene.has("begin.b"));
    scene.touch("end-b");
    assert_eq!(patient.code("after the recovery"), Some(0));
}

/// The faults: a stopped primary; a network that passes nothing on, from each of the first chunks
/// on; a host that does not answer a connect.
#[test]
fn a_wait_that_has_an_end_ends_whatever_phase_does_not() {
    let primary = Primary::start("bounded");
    let try_at = |address: &str, what: &str| {
        let began = Instant::now();
        let wait = ["--fabric", "tcp", "--wait", "2", "--", "true"];
        let output = dlock(&[&["exec", "--address", address, "bounded"][..], &wait].concat());
        let took = began.elapsed();
        let code = code(&output);
        assert!(matches!(code, 69 | 75), "{what}: {code} {}", text(&output.stderr));
        assert!(took < WAIT_MAX, "{what}: it took {took:?}");
        assert!(text(&output.stderr).contains("remedy:"), "{what}: {}", text(&output.stderr));
    };
    thread::scope(|scope| {
        for chunk in 0..8 {
            let (primary, try_at) = (&primary, &try_at);
            scope.spawn(move || {
                let stall = Stall { chunk, half: false, one_way: false };
                let proxy = Proxy::start(&primary.address, Some(stall));
                try_at(&proxy.address.to_string(), &format!("stalled at {chunk}"));
            });
        }
        scope.spawn(|| {
            // the queue of this listener is full, so it answers no further connect
            let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
            rustix::net::listen(deaf.as_fd(), 0).unwrap();
            let at = deaf.local_addr().unwrap();
            let soon = Duration::from_millis(500);
            let connect = |_| std::net::TcpStream::connect_timeout(&at, soon).ok();
            let _full: Vec<_> = (0..4).map(connect).collect();
            try_at(&at.to_string(), "no connect");
        });
    });
    let pid = Pid::from_child(&primary.child);
    kill_process(pid, Signal::STOP).unwrap();
    try_at(&primary.address, "stopped");
    try_at(&format!("{0},{0}", primary.address), "two that are stopped");
    kill_process(pid, Signal::CONT).unwrap();
}

/// The process that has the session looks the name up, within `--wait`.
#[test]
fn a_host_that_is_not_found_is_named_and_keeps_exec_from_no_other_primary() {
    let primary = Primary::start("names");
    let (wait, name) = (["--wait", "20", "--", "true"], "no-such-host.invalid:5");
    let try_at = |address: &str| {
        dlock(&[&["exec", "--address", address, "--fabric", "tcp", "names"][..], &wait].concat())
    };
    let found = try_at(&format!("{name},{}", primary.address));
    assert_eq!(code(&found), 0, "{}", text(&found.stderr));
    let lost = try_at(name);
    let said = text(&lost.stderr);
    assert_eq!(code(&lost), 69, "{said}");
    assert!(said.contains("host 'no-such-host.invalid'") && said.contains("remedy:"), "{said}");
}
