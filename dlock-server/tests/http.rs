// SPDX-License-Identifier: MIT OR Apache-2.0
//! The HTTP endpoint: metrics and probes.

#[path = "common/certs.rs"]
mod certs;
mod common;
#[path = "common/program.rs"]
#[allow(dead_code)]
mod program;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use certs::Ca;
use common::{desc, eventually, own_address, server, Peer, PATIENCE};
use dlock_core::wire::control::{ControlReply, ControlRequest};
use dlock_core::wire::message::LockType;
use dlock_fabric::os::threads;
use dlock_fabric::tls::session::{Shake, TlsSession};
use dlock_fabric::tls::Tls;
use dlock_server::{Server, ServerConfig};
use rustix::process::Signal;

fn config() -> ServerConfig {
    ServerConfig { http: Some((Ipv4Addr::LOCALHOST, 0).into()), ..ServerConfig::default() }
}

fn http(server: &Server) -> SocketAddr {
    server.http_addr().expect("it is configured")
}

/// What the endpoint sends until it closes.
fn exchange(mut stream: impl Read + Write, request: &str) -> String {
    let _ = stream.write_all(request.as_bytes()); // it may have been closed already
    let (mut answer, mut part) = (Vec::new(), [0; 4_096]);
    loop {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(len) => answer.extend_from_slice(&part[..len]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break, // the endpoint has reset it
        }
    }
    String::from_utf8(answer).expect("text")
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the endpoint listens");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn raw(address: SocketAddr, request: &str) -> String {
    exchange(connect(address), request)
}

/// The status and the body.
fn get(address: SocketAddr, path: &str) -> (u32, String) {
    split(&raw(address, &format!("GET {path} HTTP/1.1\r\nHost: dlock\r\n\r\n")))
}

fn split(answer: &str) -> (u32, String) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("{head}")), body.to_string())
}

fn status(address: SocketAddr, path: &str) -> u32 {
    get(address, path).0
}

/// The value of this sample.
fn value(address: SocketAddr, sample: &str) -> Option<f64> {
    let (_, text) = get(address, "/metrics");
    let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}

#[test]
fn the_metrics_are_those_of_the_primary() {
    let server = server(config());
    let at = http(&server);
    let (mut peer, session) = Peer::init(server.local_addr());
    peer.get("a", LockType::Atomic);
    peer.get("b", LockType::Fair);
    let _channel = Peer::channel(server.local_addr(), &session);
    eventually("the locks are shown", || value(at, "dlock_locks") == Some(2.0));
    eventually("the channel is shown", || {
        value(at, r#"dlock_channels{fabric="tcp"}"#) == Some(1.0)
    });
    eventually("the connection is shown", || {
        value(at, r#"dlock_connections{of="clients"}"#) == Some(1.0)
    });
    assert_eq!(value(at, r#"dlock_clients{state="present"}"#), Some(1.0));
    assert_eq!(value(at, "dlock_locks_max"), Some(51_200.0));
    assert!(value(at, "dlock_command_step_seconds_count") > Some(0.0));
    assert!(
        value(at, r#"dlock_snapshot_age_seconds{thread="command"}"#) < Some(PATIENCE.as_secs_f64())
    );
    assert!(value(at, "process_open_fds") > Some(3.0));
    let mut stranger = Peer::connect(server.local_addr());
    stranger.write(b"GET / HTTP/1.1\r\n\r\n");
    eventually("what is no frame is counted", || {
        value(at, r#"dlock_events_total{event="bad_request"}"#) == Some(1.0)
    });
    let (_, text) = get(at, "/metrics");
    assert!(text.ends_with("# EOF\n"), "{text}");
    let epoch = format!("epoch=\"{}\"", server.epoch().0);
    assert!(text.contains(&epoch), "{text}");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (_, value) = line.rsplit_once(' ').expect("a sample");
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
}

#[test]
fn a_primary_that_serves_is_alive_and_ready_and_one_that_recovers_is_not_ready() {
    let serving = server(config());
    let at = http(&serving);
    eventually("it is ready", || status(at, "/readyz") == 200);
    assert_eq!(
        (status(at, "/livez"), status(at, "/primary"), status(at, "/standby")),
        (200, 200, 503)
    );

    let recovering = server(ServerConfig { recovery_clients: 1, ..config() });
    let at = http(&recovering);
    eventually("it says that it recovers", || get(at, "/readyz").1.contains("recovering: 0 of 1"));
    assert_eq!(
        (status(at, "/readyz"), status(at, "/livez"), status(at, "/primary")),
        (503, 200, 200)
    );
    assert_eq!(value(at, "dlock_recovering"), Some(1.0));
    assert_eq!(value(at, r#"dlock_recovery_clients{state="expected"}"#), Some(1.0));
}

#[test]
fn a_drained_primary_is_not_ready() {
    let socket = std::env::temp_dir().join(format!("dlock-http-{}", std::process::id()));
    let server = server(ServerConfig { admin_socket: Some(socket.clone()), ..config() });
    let at = http(&server);
    eventually("it is ready", || status(at, "/readyz") == 200);
    let admin = UnixStream::connect(&socket).unwrap();
    admin.set_read_timeout(Some(PATIENCE)).unwrap();
    (&admin).write_all(b"{\"cmd\":\"drain\",\"on\":true}\n").unwrap();
    eventually("it is not ready", || get(at, "/readyz") == (503, "draining\n".into()));
    assert_eq!((status(at, "/livez"), value(at, "dlock_draining")), (200, Some(1.0)));
}

#[test]
fn what_is_no_question_is_refused() {
    let server = server(config());
    let at = http(&server);
    let first = |request: &str| raw(at, request).lines().next().unwrap_or_default().to_string();
    assert_eq!(status(at, "/"), 200);
    for path in ["/metrics/", "/x", "/../etc/passwd", "/livez%00"] {
        assert_eq!(status(at, path), 404, "{path}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "X"] {
        let answer =
            raw(at, &format!("{method} /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"));
        assert!(
            answer.starts_with("HTTP/1.1 405 ") && answer.contains("allow: GET, HEAD"),
            "{answer}"
        );
    }
    let head = raw(at, "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "no body: {head}");
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert_eq!(first("rubbish\r\n\r\n"), "HTTP/1.1 400 Bad Request");
    let wide = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(1_000));
    for request in [&wide, &long, &many] {
        let answer = first(request); // none, if the reset of the unread rest was faster
        assert!(!answer.contains(" 200 "), "{answer}");
    }
    assert_eq!(status(at, "/livez"), 200);
}

#[test]
fn silent_and_slow_peers_take_few_descriptors_keep_no_scrape_out_and_end() {
    let (_dlockd, _, at) = alone();
    let before = value(at, "process_open_fds").unwrap();
    let silent: Vec<_> = (0..200).map(|_| connect(at)).collect();
    assert_eq!(status(at, "/livez"), 200);
    let open = value(at, "process_open_fds").unwrap();
    assert!(open <= before + 20.0, "{before}, then {open}: 16 connections at a time");
    let mut slow = connect(at);
    slow.write_all(b"GET /livez HTTP/1.1\r\n").unwrap();
    let fields = slow.try_clone().unwrap();
    std::thread::spawn(move || {
        while (&fields).write_all(b"X: y\r\n").is_ok() {
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    assert!(is_over(slow), "it has not finished in time");
    assert!(silent.into_iter().all(is_over));
}

/// Whether the endpoint ends this connection, by an end or by a reset.
fn is_over(mut stream: TcpStream) -> bool {
    loop {
        match stream.read(&mut [0; 64]).map_err(|error| error.kind()) {
            Ok(1..) => {}
            Err(ErrorKind::WouldBlock) => return false,
            Ok(0) | Err(_) => return true,
        }
    }
}

/// A dlockd in a process of its own, with the addresses of its port and its endpoint.
fn alone() -> (program::Running, SocketAddr, SocketAddr) {
    let options = ["--state-file=none", "--admin-socket=none", "--verbs=off"];
    let (mut dlockd, primary) =
        program::Running::start(&[&options[..], &["--http=127.0.0.1:0"]].concat());
    let at = told(&mut dlockd.0);
    (dlockd, primary, at)
}

#[test]
fn a_flood_takes_a_bounded_number_of_descriptors_and_disturbs_no_client() {
    let (_dlockd, primary, at) = alone();
    let (mut peer, _) = Peer::init(primary);
    let until = Instant::now() + Duration::from_secs(2);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while Instant::now() < until {
                    let Ok(mut stream) = TcpStream::connect(at) else { continue };
                    // some do not read their answers
                    let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
                }
            });
        }
        while Instant::now() < until {
            assert!(peer.is_alive());
        }
    });
    eventually("a scrape finds a place", || {
        let open = value(at, "process_open_fds");
        open.is_some_and(|open| open < 200.0)
    });
}

#[test]
fn the_size_of_an_answer_does_not_depend_on_the_number_of_clients_and_locks() {
    threads::raise_file_limit().unwrap();
    let server = server(ServerConfig { shm: false, ..config() });
    let at = http(&server);
    let empty = get(at, "/metrics").1.lines().count();
    let clients = server.capacity().clients.min(1_000);
    let mut peers: Vec<Peer> = (0..clients).map(|_| Peer::init(server.local_addr()).0).collect();
    for (number, peer) in peers.iter_mut().enumerate() {
        let desc = |n: usize| desc(&format!("{number} {n}"), LockType::Atomic);
        for batch in [0..31, 31..51] {
            let got = peer.call(ControlRequest::GetLocks(batch.map(desc).collect()));
            assert!(matches!(got, ControlReply::Locks(_)), "{got:?}");
        }
    }
    let locks = clients * 51;
    eventually("all are shown", || value(at, "dlock_locks") == Some(locks as f64));
    assert_eq!(value(at, r#"dlock_clients{state="present"}"#), Some(clients as f64));
    let begun = Instant::now();
    let (_, text) = get(at, "/metrics");
    let took = begun.elapsed();
    assert!(text.lines().count() <= empty + 100, "{text}");
    let longest = value(at, "dlock_command_step_longest_seconds");
    println!("{clients} clients, {locks} locks: {took:?} a scrape, a step took {longest:?} s");
}

/// An HTTPS connection of a scraper with this certificate.
struct Sealed {
    stream: TcpStream,
    session: TlsSession,
}

impl Sealed {
    fn get(address: SocketAddr, tls: &Tls, path: &str) -> std::io::Result<String> {
        let mut stream = connect(address);
        let mut session = TlsSession::connect(tls, address.ip()).unwrap();
        while session.shake(&mut stream)? != Shake::Done {}
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        Ok(exchange(Self { stream, session }, &request))
    }
}

impl Read for Sealed {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.session.read(&mut self.stream, into)
    }
}

impl Write for Sealed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.session.write(&mut self.stream, bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.session.flush(&mut self.stream)
    }
}

#[test]
fn beyond_loopback_scrapers_need_a_certificate_and_the_ends_of_all_are_shown() {
    let ca = Ca::new("metrics");
    let tls = Some(ca.tls("127.0.0.1"));
    let http = Some((Ipv4Addr::UNSPECIFIED, 0).into());
    let server = server(ServerConfig { tls: tls.clone(), http, ..ServerConfig::default() });
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, self::http(&server).port()));
    let silent = connect(at);
    let answer = Sealed::get(at, &ca.tls("scraper"), "/metrics").unwrap();
    let (code, text) = split(&answer);
    assert_eq!(code, 200);
    let ends = text.lines().filter(|line| line.starts_with("dlock_tls_end_timestamp_seconds{"));
    assert_eq!(ends.count(), 2, "{text}");
    let stranger = Sealed::get(at, &Ca::new("another").tls("scraper"), "/metrics");
    assert!(!stranger.is_ok_and(|answer| answer.contains("200")), "it has another CA");
    assert!(!raw(at, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").contains("200"), "no TLS");
    assert!(is_over(silent), "it has begun no handshake");

    // On loopback alone nothing is sealed, and the ends are shown all the same.
    let server = common::server(ServerConfig { tls, ..config() });
    let (_, text) = get(self::http(&server), "/metrics");
    assert!(text.contains("dlock_tls_end_timestamp_seconds{"), "{text}");
}

/// The address of the endpoint, as the log says it.
fn told(child: &mut Child) -> SocketAddr {
    let mut log = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    loop {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut log, &mut line).unwrap() > 0, "no such line");
        if let Some((_, address)) = line.split_once("metrics and probes are at http://") {
            std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
            return address.trim_end().trim_end_matches('/').parse().unwrap();
        }
    }
}

/// A primary and its standby, and a folder for both.
struct Pair {
    folder: PathBuf,
    first: program::Running,
    first_http: SocketAddr,
    standby: program::Running,
    at: SocketAddr,
}

impl Pair {
    fn start(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("dlock-http-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let state = format!("--state-file={}", folder.join("state").display());
        let listen = format!("--listen={}", own_address());
        let common = [&*listen, &*state, "--no-shm", "--verbs=off", "--admin-socket=none"];
        let (mut first, address) =
            program::Running::start(&[&common[..], &["--http=127.0.0.1:0"]].concat());
        let first_http = told(&mut first.0);
        let of = format!("--standby-of={address}");
        let mut standby = program::dlockd();
        standby.args(common).args([&of, "--port=0", "--http=127.0.0.1:0"]);
        let mut standby = program::Running(standby.spawn().unwrap());
        let at = told(&mut standby.0);
        let heard = || value(at, "dlock_standby_heard") == Some(1.0);
        eventually("it has heard the primary", heard);
        Self { folder, first, first_http, standby, at }
    }

    fn end(self) {
        drop((self.first, self.standby));
        std::fs::remove_dir_all(&self.folder).unwrap();
    }
}

#[test]
fn the_endpoint_of_a_standby_becomes_that_of_the_primary() {
    let pair = Pair::start("standby");
    let at = pair.at;
    let all = |of| (status(of, "/standby"), status(of, "/primary"), status(of, "/readyz"));
    assert_eq!(all(at), (200, 503, 200));
    assert_eq!((value(at, "dlock_standby"), value(at, "dlock_locks")), (Some(1.0), None));
    eventually("it serves", || all(pair.first_http) == (503, 200, 200));
    pair.first.signal(Signal::KILL);
    eventually("it is the primary", || status(at, "/primary") == 200);
    eventually("it serves", || all(at) == (503, 200, 200));
    assert_eq!(value(at, "dlock_primary"), Some(1.0));
    pair.end();
}

#[test]
fn a_standby_that_has_the_place_and_cannot_serve_is_not_ready() {
    let pair = Pair::start("damaged");
    std::fs::write(pair.folder.join("state.clients"), "no list").unwrap();
    pair.first.signal(Signal::KILL);
    eventually("it says so", || get(pair.at, "/readyz").1.starts_with("it has taken the place"));
    assert_eq!(value(pair.at, "dlock_standby_has_place"), Some(1.0));
    assert_eq!((status(pair.at, "/primary"), status(pair.at, "/livez")), (503, 200));
    pair.end();
}
