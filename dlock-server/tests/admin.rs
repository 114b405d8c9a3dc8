// SPDX-License-Identifier: MIT OR Apache-2.0
//! The admin endpoint.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::{eventually, server, Peer, PATIENCE};
use dlock_core::wire::message::LockType;
use dlock_server::{Server, ServerConfig, StartError};
use serde_json::Value;

struct Socket(PathBuf);

impl Socket {
    fn new(name: &str) -> Self {
        let name = format!("dlock-admin-{name}-{}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn config(&self) -> ServerConfig {
        ServerConfig { port: 0, admin_socket: Some(self.0.clone()), ..ServerConfig::default() }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0); // the primary has removed it, unless a test failed
    }
}

fn ask(path: &Path, line: &str) -> Value {
    let mut stream = UnixStream::connect(path).expect("the endpoint listens");
    stream.set_read_timeout(Some(common::PATIENCE)).unwrap();
    stream.write_all(line.as_bytes()).unwrap();
    stream.write_all(b"\n").unwrap();
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply).unwrap();
    serde_json::from_str(&reply).expect("one line of JSON")
}

#[test]
fn status_locks_and_clients_are_told() {
    let socket = Socket::new("told");
    let server = server(socket.config());
    let (mut peer, session) = Peer::init(server.local_addr());
    let lock = peer.get("a \"lock\"", LockType::Atomic);
    peer.get("\u{7f}", LockType::Fair);

    let status = ask(&socket.0, r#"{"cmd":"status"}"#);
    assert_eq!(status["ok"], true);
    assert_eq!(status["address"], server.local_addr().to_string());
    assert_eq!(status["epoch"], server.epoch().0.to_string(), "no number: it has 64 bits");
    assert_eq!((&status["clients"], &status["locks"]), (&1.into(), &2.into()));
    let stats = status["stats"].as_object().unwrap();
    assert_eq!(stats.len(), 45);
    assert_eq!(stats["BAD_REQUEST"], "0", "each counter has its name");

    let clients = ask(&socket.0, r#"{"cmd":"clients"}"#);
    assert_eq!(clients["clients"][0]["client"], session.client.get());
    assert_eq!(clients["clients"][0]["present"], true);
    assert_eq!(clients["clients"][0]["handles"], 2);

    let locks = ask(&socket.0, r#"{"cmd":"locks"}"#);
    let locks = locks["locks"].as_array().unwrap();
    let shown = locks.iter().find(|l| l["lock"] == lock.lock.0).expect("the lock is listed");
    assert_eq!((&shown["name"], &shown["type"]), (&"a \"lock\"".into(), &"atomic".into()));
    assert_eq!((&shown["holder"], &shown["refs"]), (&Value::Null, &1.into()));
    assert_eq!(locks.len(), 2);
}

#[test]
fn locks_come_in_pages_each_once() {
    let socket = Socket::new("pages");
    let server = server(socket.config());
    let (mut peer, _) = Peer::init(server.local_addr());
    let mut ids: Vec<i64> =
        (0..25).map(|n| peer.get(&format!("lock {n}"), LockType::Rw).lock.0.into()).collect();
    let (mut seen, mut after) = (Vec::new(), 0);
    loop {
        let page = ask(&socket.0, &format!(r#"{{"cmd":"locks","after":{after},"max":10}}"#));
        let locks = page["locks"].as_array().unwrap();
        assert!(locks.len() <= 10);
        seen.extend(locks.iter().map(|lock| lock["lock"].as_i64().unwrap()));
        after = *seen.last().unwrap();
        if page["more"] == false {
            break;
        }
    }
    ids.sort_unstable();
    assert_eq!(seen, ids);
}

#[test]
fn rubbish_is_answered_with_an_error() {
    let socket = Socket::new("rubbish");
    let _server = server(socket.config());
    for line in
        ["", "{}", "status", r#"{"cmd":"stop"}"#, r#"{"cmd":"locks","x":1}"#, "[1]", "\u{0}"]
    {
        let reply = ask(&socket.0, line);
        assert_eq!(reply["ok"], false, "{line:?}");
        assert!(reply["error"].as_str().is_some_and(|e| !e.is_empty()));
    }
    // The client may write its line to the end, in two pieces, though the first one is refused.
    let long = format!(r#"{{"cmd":"{}"}}"#, "x".repeat(10_000));
    assert_eq!(ask(&socket.0, &long)["ok"], false);
    let mut stream = UnixStream::connect(&socket.0).unwrap();
    stream.set_read_timeout(Some(common::PATIENCE)).unwrap();
    stream.write_all(&[b'x'; 5_000]).unwrap();
    let mut refused = BufReader::new(stream.try_clone().unwrap());
    let mut reply = String::new();
    refused.read_line(&mut reply).unwrap();
    assert!(reply.contains("longer than 4096 bytes"), "{reply}");
    stream.write_all(b"the rest of it\n").unwrap();
    assert_eq!(refused.read(&mut [0]).unwrap(), 0, "closed, nothing else said");
    assert_eq!(ask(&socket.0, r#"{"cmd":"status"}"#)["ok"], true);
}

#[test]
fn the_socket_is_this_users_and_ends_with_the_primary() {
    let socket = Socket::new("file");
    let first = server(socket.config());
    let mode = std::fs::metadata(&socket.0).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // A socket at which a primary answers is not taken away.
    let second = Server::start(socket.config());
    assert!(matches!(second, Err(StartError::AdminSocket { .. })));
    assert_eq!(ask(&socket.0, r#"{"cmd":"status"}"#)["ok"], true);
    first.stop();
    assert!(!socket.0.exists());
    // A socket that a killed primary left behind is replaced; a file is not.
    drop(UnixListener::bind(&socket.0).unwrap());
    drop(server(socket.config()));
    std::fs::write(&socket.0, "mine").unwrap();
    assert!(matches!(Server::start(socket.config()), Err(StartError::AdminSocket { .. })));
    assert_eq!(std::fs::read_to_string(&socket.0).unwrap(), "mine");
}

/// The first primary was stopped for so long that another one has taken its place.
#[test]
fn an_admin_socket_that_another_has_put_there_outlives_the_primary() {
    let socket = Socket::new("replaced");
    let first = server(socket.config());
    std::fs::remove_file(&socket.0).unwrap();
    let _another = UnixListener::bind(&socket.0).unwrap();
    first.stop();
    let connected = UnixStream::connect(&socket.0);
    assert!(connected.is_ok(), "{connected:?}");
}

/// The folder is removed, as `/run/user/UID` is when its user logs out.
#[test]
fn an_admin_socket_that_was_removed_with_its_folder_is_made_again() {
    let above = Socket::new("removed");
    std::fs::create_dir(&above.0).unwrap();
    let folder = above.0.join("dlock");
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("s");
    let first = server(ServerConfig { admin_socket: Some(path.clone()), ..above.config() });
    std::fs::remove_dir_all(&folder).unwrap();
    eventually("it is made again", || path.exists());
    let mode = |path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&path)), (0o700, 0o600));
    assert_eq!(ask(&path, r#"{"cmd":"status"}"#)["ok"], true);
    first.stop();
    assert!(!path.exists());
    std::fs::remove_dir_all(&above.0).unwrap();
}

#[test]
fn silent_connections_keep_no_operator_out() {
    let socket = Socket::new("silent");
    let _server = server(socket.config());
    let silent: Vec<_> = (0..100).map(|_| UnixStream::connect(&socket.0).unwrap()).collect();
    let asked = Instant::now();
    assert_eq!(ask(&socket.0, "{\"cmd\":\"status\"}")["ok"], true);
    assert!(asked.elapsed() < PATIENCE, "no place was given to it");
    // the oldest connections are closed, and the newest are not
    let mut ends = 0;
    for mut stream in silent {
        stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        ends += usize::from(matches!(stream.read(&mut [0]), Ok(0)));
    }
    assert!(ends >= 100 - 16, "{ends}");
}

#[test]
fn a_socket_that_nobody_accepts_at_is_somebodys_and_is_not_waited_for() {
    let path = Socket::new("backlog");
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    socket.bind(&socket2::SockAddr::unix(&path.0).unwrap()).unwrap();
    socket.listen(0).unwrap();
    let mut waiting = Vec::new();
    let full = loop {
        match dlock_server::connect_admin(&path.0, Duration::from_millis(50)) {
            Ok(stream) => waiting.push(stream),
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), std::io::ErrorKind::TimedOut);
    let error = Server::start(path.config()).unwrap_err();
    assert!(matches!(error, StartError::AdminSocket { .. }), "{error}");
}
