// SPDX-License-Identifier: MIT OR Apache-2.0
//! Failovers between real processes of dlockd, with clients that are cut off or slow at the worst
//! moment. An attack on the service found these cases.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::{desc, Peer, INIT};
use dlock_core::ids::{ClientId, Seq};
use dlock_core::wire::about::About;
use dlock_core::wire::codec::Frame;
use dlock_core::wire::control::{
    Claim, ControlReply, ControlRequest, HeldClaim, Session, HORIZON_FOREVER, VERSION,
};
use dlock_core::wire::message::{LockType, Mode};
use dlock_core::wire::status::Status;
use rustix::process::{kill_process, Pid, Resource, Rlimit, Signal};

fn ip() -> IpAddr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, a | 0x80, b, c).into()
}

fn free_port() -> u16 {
    TcpListener::bind((ip(), 0)).unwrap().local_addr().unwrap().port()
}

struct Folder(PathBuf);
impl Folder {
    fn new() -> Self {
        static N: AtomicU32 = AtomicU32::new(0);
        let n = N.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("dlock-failovers-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
    fn state(&self) -> String {
        format!("--state-file={}", self.0.join("state").display())
    }
    fn admin(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    fn list(&self) -> String {
        std::fs::read_to_string(self.0.join("state.clients")).unwrap_or_default()
    }
}
impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Daemon {
    child: Child,
    at: SocketAddr,
    log: PathBuf,
}

impl Daemon {
    /// Starts a primary; does not wait until it is ready.
    fn spawn(folder: &Folder, port: u16, arguments: &[String]) -> Self {
        static N: AtomicU32 = AtomicU32::new(0);
        let n = N.fetch_add(1, Ordering::Relaxed);
        let log = folder.0.join(format!("log-{n}"));
        let child = Command::new(env!("CARGO_BIN_EXE_dlockd"))
            // keeps the admin socket away from the user's own folder
            .env("XDG_RUNTIME_DIR", &folder.0)
            .args([
                format!("--listen={}", ip()),
                format!("--port={port}"),
                folder.state(),
                "--sleep-mode".into(),
                "--verbs=off".into(),
                "--log-level=debug".into(),
            ])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(&log).unwrap())
            .stderr(std::fs::File::create(log.with_extension("err")).unwrap())
            .spawn()
            .unwrap();
        Self { child, at: (ip(), port).into(), log }
    }
    /// Starts a standby of the primary at this address; also returns its admin socket.
    fn stands_by(folder: &Folder, of: SocketAddr, more: &[&str]) -> (Self, PathBuf) {
        let admin = folder.admin("s");
        let own = [
            format!("--standby-of={of}"),
            format!("--admin-socket={}", admin.display()),
            "--standby-silence=200".into(),
        ];
        let more = more.iter().map(|option| option.to_string());
        let all: Vec<String> = own.into_iter().chain(more).collect();
        let standby = Self::spawn(folder, free_port(), &all);
        standby.says("dlockd standby", 10);
        (standby, admin)
    }
    fn ready(self) -> Self {
        self.says("dlockd ready", 20);
        self
    }
    fn said(&self, what: &str) -> bool {
        std::fs::read_to_string(&self.log).unwrap_or_default().contains(what)
    }
    fn errors(&self) -> String {
        std::fs::read_to_string(self.log.with_extension("err")).unwrap_or_default()
    }
    fn says(&self, what: &str, seconds: u64) {
        let end = Instant::now() + Duration::from_secs(seconds);
        while !self.said(what) {
            assert!(Instant::now() < end, "never says {what}: {}", self.errors());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        if signal == Signal::STOP {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Promotes the standby, again and again until it takes over, which may cut off the answer.
fn promote(socket: &PathBuf, standby: &Daemon) {
    let end = Instant::now() + Duration::from_secs(20);
    let takes = || standby.errors().contains("takes the place");
    while !takes() {
        assert!(Instant::now() < end, "it does not take over: {}", standby.errors());
        if let Ok(mut admin) = UnixStream::connect(socket) {
            let _ = admin.write_all(b"{\"cmd\":\"promote\"}\n");
            let _ = BufReader::new(admin).read_line(&mut String::new());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn ask(socket: &PathBuf, question: &str) -> Option<String> {
    let mut admin = UnixStream::connect(socket).ok()?;
    admin.write_all(format!("{{\"cmd\":\"{question}\"}}\n").as_bytes()).ok()?;
    let mut answer = String::new();
    let _ = BufReader::new(admin).read_line(&mut answer);
    Some(answer)
}

/// The horizon as a client requests it; 0: none.
fn asked(horizon_s: u32) -> u32 {
    if horizon_s == 0 {
        HORIZON_FOREVER
    } else {
        horizon_s
    }
}

fn init(at: SocketAddr, horizon_s: u32) -> (Peer, Session) {
    let mut peer = Peer::connect(at);
    let request = ControlRequest::Init {
        version_min: 1,
        version_max: VERSION,
        tp_mode: 0,
        horizon_s: asked(horizon_s),
        about: About::NOTHING,
    };
    match peer.call(request) {
        ControlReply::Session(session) => (peer, session),
        other => panic!("{other:?}"),
    }
}

fn back(session: &Session, horizon_s: u32) -> ControlRequest {
    ControlRequest::Reinit {
        version_min: 1,
        version_max: VERSION,
        tp_mode: 0,
        horizon_s: asked(horizon_s),
        client: session.client,
        secret: session.secret,
        about: About::NOTHING,
    }
}

fn comes(at: SocketAddr, session: &Session, horizon_s: u32) -> Result<(Peer, Session), Status> {
    let mut peer = Peer::connect(at);
    match peer.call(back(session, horizon_s)) {
        ControlReply::Session(session) => Ok((peer, session)),
        ControlReply::Error(status) => Err(status),
        other => panic!("{other:?}"),
    }
}

fn recovers(peer: &mut Peer) -> bool {
    match peer.call(ControlRequest::Heartbeat) {
        ControlReply::Alive { recovering, .. } => recovering,
        other => panic!("{other:?}"),
    }
}

/// Whether the primary recovers, as an unknown client sees it.
fn recovers_for_all(at: SocketAddr) -> bool {
    recovers(&mut Peer::connect(at))
}

fn recovered_within(at: SocketAddr, seconds: f64) -> Option<f64> {
    let from = Instant::now();
    while from.elapsed().as_secs_f64() < seconds {
        if !recovers_for_all(at) {
            return Some(from.elapsed().as_secs_f64());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}

/// If a stopped primary, whose place was taken, answered heartbeats that were sent after its
/// successor began to count horizons, the client would rely on its locks longer than the successor
/// waits.
#[test]
fn a_stopped_primary_whose_place_was_taken_extends_no_horizon() {
    const HORIZON_S: u32 = 4;
    let folder = Folder::new();
    let p = Daemon::spawn(&folder, free_port(), &[]).ready();
    let (mut x, _session) = init(p.at, HORIZON_S);
    x.get("lock", LockType::Atomic);
    p.signal(Signal::STOP);
    let (s, admin) = Daemon::stands_by(&folder, p.at, &["--recovery-deadline=1"]);
    std::thread::sleep(Duration::from_millis(600));
    promote(&admin, &s);
    s.says("dlockd ready", 10);
    let began = Instant::now();
    // the client is still within its horizon
    std::thread::sleep(Duration::from_millis(1500));
    let sent = Instant::now();
    x.send(&Frame::Control(Seq(77), ControlRequest::Heartbeat));
    std::thread::sleep(Duration::from_millis(500));
    p.signal(Signal::CONT);
    let answer = x.receive();
    let given_up = recovered_within(s.at, 20.0).unwrap();
    let given_up = began.elapsed().as_secs_f64().max(given_up);
    let relies = (sent - began).as_secs_f64() + f64::from(HORIZON_S);
    println!("answer {answer:?}; given up {given_up:.2} s after, relied on until {relies:.2} s");
    if let Some(Frame::ControlReply(_, ControlReply::Alive { .. })) = answer {
        assert!(given_up >= relies, "its locks are given away {:.2} s early", relies - given_up);
    }
}

/// A stopped primary whose place was taken must not tell a client that it is removed: the successor
/// may know the client, and wait for it.
#[test]
fn a_stopped_primary_whose_place_was_taken_refuses_no_client() {
    // in some rounds it may first notice that its place was taken
    for _ in 0..6 {
        let folder = Folder::new();
        let p = Daemon::spawn(&folder, free_port(), &[]).ready();
        let (mut peer, session) = init(p.at, 0);
        peer.get("lock", LockType::Atomic);
        let mut knocks = Peer::connect(p.at);
        p.signal(Signal::STOP);
        let (s, admin) = Daemon::stands_by(&folder, p.at, &[]);
        promote(&admin, &s);
        s.says("dlockd ready", 20);
        let client = ClientId::new(session.client.get() ^ 1).unwrap();
        let unknown = Session { client, ..session };
        knocks.send(&Frame::Control(Seq(7), back(&unknown, 0)));
        p.signal(Signal::CONT);
        assert_eq!(knocks.receive(), None, "its connection is closed instead");
    }
}

/// The list of clients is unreadable at the moment when the standby has made it its own. The list
/// is still its own when an operator has restored it.
#[test]
fn a_standby_whose_start_fails_in_its_place_serves_when_the_cause_is_mended() {
    for is_promoted in [false, true] {
        let folder = Folder::new();
        let mut p = Daemon::spawn(&folder, free_port(), &[]).ready();
        let (mut peer, session) = init(p.at, 0);
        peer.get("lock", LockType::Atomic);
        let (s, admin) = Daemon::stands_by(&folder, p.at, &[]);
        let list = folder.list();
        assert!(list.contains("joined"), "{list}");
        std::fs::write(folder.0.join("state.clients"), "").unwrap();
        match is_promoted {
            true => {
                p.signal(Signal::STOP);
                promote(&admin, &s);
            }
            false => p.kill(),
        }
        let until = Instant::now() + Duration::from_secs(20);
        while s.errors().matches("who has locks is not known").count() < 3 {
            assert!(Instant::now() < until, "it does not try again: {}", s.errors());
            std::thread::sleep(Duration::from_millis(20));
        }
        let until = Instant::now() + Duration::from_secs(20);
        let has_place = || {
            // there is no socket while the standby tries to start
            ask(&admin, "status").is_some_and(|status| status.contains("\"has_place\":true"))
        };
        while !has_place() {
            assert!(Instant::now() < until, "it does not say that it has the place");
            std::thread::sleep(Duration::from_millis(20));
        }
        std::fs::write(folder.0.join("state.clients"), &list).unwrap();
        s.says("dlockd ready", 60);
        drop(peer);
        let (mut back, _) = comes(s.at, &session, 0).expect("it is known");
        assert!(recovers(&mut back));
    }
}

/// The primary loses its path to the storage. Another primary takes its place there by another
/// path.
#[test]
fn a_primary_that_has_lost_its_storage_extends_no_horizon() {
    let folder = Folder::new();
    let storage = folder.0.join("storage");
    std::fs::create_dir(&storage).unwrap();
    let [mine, other] = ["mine", "other"].map(|name| {
        std::os::unix::fs::symlink(&storage, folder.0.join(name)).unwrap();
        Folder(folder.0.join(name))
    });
    let p = Daemon::spawn(&mine, free_port(), &[]).ready();
    let (mut peer, _session) = init(p.at, 5);
    peer.get("lock", LockType::Atomic);
    p.signal(Signal::STOP);
    let (s, admin) = Daemon::stands_by(&other, p.at, &[]);
    promote(&admin, &s);
    s.says("dlockd ready", 20);
    std::fs::remove_file(&mine.0).unwrap();
    peer.send(&Frame::Control(Seq(77), ControlRequest::Heartbeat));
    p.signal(Signal::CONT);
    assert_eq!(peer.receive(), None, "its connection is closed instead");
}

/// The list can no longer be written, as on a full disk.
#[test]
fn a_limit_of_the_size_of_files_ends_no_primary() {
    let folder = Folder::new();
    let mut p = Daemon::spawn(&folder, free_port(), &["--no-shm".into()]).ready();
    let (mut peer, _session) = init(p.at, 0);
    let lock = peer.get("lock", LockType::Atomic);
    let (pid, limit) = (Pid::from_child(&p.child), Some(300));
    let limit = Rlimit { current: limit, maximum: limit };
    rustix::process::prlimit(Some(pid), Resource::Fsize, limit).unwrap();
    let refused = (0..8).any(|_| {
        let answer = Peer::connect(p.at).call(INIT);
        matches!(answer, ControlReply::Error(_))
    });
    assert!(refused, "{}", folder.list());
    assert!(p.child.try_wait().unwrap().is_none(), "it serves on");
    assert_eq!(peer.get("lock", LockType::Atomic).lock, lock.lock);
    p.kill();
}

/// The clients are those in the list of the file to which the link leads.
#[test]
fn a_state_file_may_be_a_link() {
    let (folder, other) = (Folder::new(), Folder::new());
    let mut p = Daemon::spawn(&folder, free_port(), &[]).ready();
    let (mut peer, _session) = init(p.at, 0);
    peer.get("lock", LockType::Atomic);
    std::os::unix::fs::symlink(folder.0.join("state"), other.0.join("state")).unwrap();
    let (s, _) = Daemon::stands_by(&other, p.at, &[]);
    p.kill();
    s.says("dlockd ready", 20);
    assert!(recovers_for_all(s.at), "the client is waited for");
    let is_link = other.0.join("state").symlink_metadata().unwrap().is_symlink();
    assert!(is_link && !other.0.join("state.clients").exists());
}

/// A standby's own state file does not name the clients of the primary.
#[test]
fn a_standby_with_another_state_file_takes_no_place() {
    let (folder, other) = (Folder::new(), Folder::new());
    let mut p = Daemon::spawn(&folder, free_port(), &[]).ready();
    let (s, admin) = Daemon::stands_by(&other, p.at, &["--fence-command=true"]);
    let says = |what: &str| {
        let end = Instant::now() + Duration::from_secs(20);
        while !s.errors().contains(what) {
            assert!(Instant::now() < end, "never says {what}: {}", s.errors());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    says("answers, but no primary has ");
    p.kill();
    says("is not taken: no primary has ");
    let refused = ask(&admin, "promote").expect("the standby answers");
    assert!(refused.contains("\"ok\":false") && refused.contains("no primary has "), "{refused}");
    std::thread::sleep(Duration::from_millis(500));
    assert!(!s.said("dlockd ready") && !other.0.join("state.clients").exists());
}

/// The answer to a `Reinit` that requests a shorter horizon is lost with the primary, so the client
/// still relies on the longer horizon that it has.
#[test]
fn a_shorter_horizon_that_was_not_heard_of_counts_for_nobody() {
    let folder = Folder::new();
    let mut p = Daemon::spawn(&folder, free_port(), &[]).ready();
    let (mut x, session) = init(p.at, 600);
    x.get("lock", LockType::Atomic);
    drop(x); // the client's connection is reset; the client relies on its session for 600 s
    std::thread::sleep(Duration::from_millis(300));
    let mut y = Peer::connect(p.at);
    y.send(&Frame::Control(Seq(1), back(&session, 2)));
    std::thread::sleep(Duration::from_millis(300)); // the answer is lost
    p.kill();
    println!("{}", folder.list());
    let s = Daemon::spawn(&folder, free_port(), &["--recovery-deadline=1".into()]).ready();
    assert_eq!(recovered_within(s.at, 6.0), None, "it relies on its locks for 600 s");
}

/// At a recovering successor, too, a client relies on the longer horizon if the answer to its
/// request for a shorter one is lost.
#[test]
fn a_shorter_horizon_asked_of_a_successor_and_not_heard_of_counts_for_nobody() {
    let folder = Folder::new();
    let mut p = Daemon::spawn(&folder, free_port(), &[]).ready();
    let (mut x, session) = init(p.at, 600);
    x.get("lock", LockType::Atomic);
    p.kill();
    let mut p = Daemon::spawn(&folder, free_port(), &[]).ready();
    let mut y = Peer::connect(p.at);
    y.send(&Frame::Control(Seq(1), back(&session, 2)));
    std::thread::sleep(Duration::from_millis(300)); // the answer is lost
    p.kill();
    let s = Daemon::spawn(&folder, free_port(), &["--recovery-deadline=1".into()]).ready();
    assert_eq!(recovered_within(s.at, 6.0), None, "it relies on its locks for 600 s");
}

/// A client without a horizon comes to a successor. Its connection is reset before it has claimed
/// its hold with a lease, on which it still relies. (The client may be stopped meanwhile.)
#[test]
fn a_client_that_is_cut_off_between_reinit_and_claims_keeps_its_leases() {
    let folder = Folder::new();
    let toml = folder.0.join("toml");
    std::fs::write(&toml, "absent_grace_s = 1\n").unwrap();
    let config = format!("--config={}", toml.display());
    let mut p = Daemon::spawn(&folder, free_port(), std::slice::from_ref(&config)).ready();
    let (mut x, session) = init(p.at, 0);
    let lock = x.get("lock", LockType::Atomic).lock;
    let (mut y, of_y) = init(p.at, 0);
    y.get("lock", LockType::Atomic);
    p.kill();
    let s = Daemon::spawn(&folder, free_port(), &[config]).ready();
    let (mut y, _) = comes(s.at, &of_y, 0).unwrap();
    assert_eq!(y.call(ControlRequest::ReinitDone), ControlReply::Done);
    assert_eq!(recovered_within(s.at, 2.5), None, "who has not come is waited for without end");
    let x = comes(s.at, &session, 0).unwrap();
    drop(x); // the connection is reset
    let waited = recovered_within(s.at, 8.0);
    println!("recovered {waited:?} s after the connection was lost");
    // the client goes on, and its lease of 600 s runs
    let again = comes(s.at, &session, 0);
    let claimed = again.map(|(mut x, _)| {
        let left_ns = 500_000_000_000;
        let held = Some(HeldClaim::hold(Mode::Exclusive, left_ns));
        let desc = desc("lock", LockType::Atomic);
        x.call(ControlRequest::UpdateLocks(vec![Claim { lock, desc, held }]))
    });
    println!("{claimed:?}; {}", s.errors());
    assert_eq!(waited, None, "its hold with a lease is not waited for");
}
