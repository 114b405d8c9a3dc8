// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlockd` under a service manager: what it says at the notification socket, and how it logs.

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::PATIENCE;
use dlock_server::{Server, ServerConfig};
use rustix::process::{kill_process, Pid, Signal};

/// After this long without a ping the manager of these tests would restart it.
const WATCHDOG: Duration = Duration::from_millis(800);

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("dlock-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A service manager and its one service.
struct Service {
    socket: UnixDatagram,
    process: Child,
    _folder: Folder,
}

impl Service {
    fn start(name: &str, arguments: &[&str]) -> Self {
        let folder = Folder::new(name);
        let path = folder.0.join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_dlockd"));
        command.args(["--port=0", "--verbs=off"]).args(arguments);
        command.env("NOTIFY_SOCKET", &path);
        command.env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
        command.env_remove("WATCHDOG_PID").env_remove("JOURNAL_STREAM");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { socket, process: command.spawn().unwrap(), _folder: folder }
    }

    /// The next message, if there is one in time.
    fn told(&self) -> Option<String> {
        let mut message = [0; 4096];
        let len = self.socket.recv(&mut message).ok()?;
        Some(String::from_utf8(message[..len].to_vec()).unwrap())
    }

    /// The next message that is no ping.
    fn told_but_pings(&self) -> String {
        loop {
            let message = self.told().expect("a message");
            if message != "WATCHDOG=1\n" {
                return message;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_service_is_ready_alive_reloading_and_stopping() {
    let mut service = Service::start("service", &[]);
    let ready = service.told_but_pings();
    assert!(ready.starts_with("READY=1\nSTATUS=serves on 127.0.0.1:"), "{ready}");
    assert_eq!(service.told().as_deref(), Some("WATCHDOG=1\n"));
    // Without TLS, too: a service manager means by SIGHUP that it shall read again.
    service.signal(Signal::HUP);
    let reloading = service.told_but_pings();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert!(service.told_but_pings().starts_with("READY=1\n"));
    service.signal(Signal::TERM);
    assert_eq!(service.told_but_pings(), "STOPPING=1\n");
    assert!(service.process.wait().unwrap().success());
}

#[test]
fn a_stopped_service_does_not_ping_and_one_that_goes_on_does() {
    let service = Service::start("watchdog", &[]);
    assert!(service.told_but_pings().starts_with("READY=1\n"));
    service.signal(Signal::STOP);
    service.socket.set_read_timeout(Some(WATCHDOG)).unwrap();
    let pings = std::iter::from_fn(|| service.told()).take(100).count();
    assert!(pings < 100, "pings do not end");
    assert_eq!(service.told(), None, "a stopped process has pinged");
    service.signal(Signal::CONT);
    service.socket.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(service.told().as_deref(), Some("WATCHDOG=1\n"));
}

#[test]
fn a_standby_that_waits_is_ready_and_alive() {
    let folder = Folder::new("standby-state");
    let state = folder.0.join("epoch");
    let nobody = "127.0.0.1:9";
    let state = state.to_str().unwrap();
    let service =
        Service::start("standby", &["--standby-of", nobody, "--state-file", state, "--no-shm"]);
    let ready = service.told_but_pings();
    assert!(ready.contains("STATUS=waits for the place of the primary at 127.0.0.1:9"), "{ready}");
    assert_eq!(service.told().as_deref(), Some("WATCHDOG=1\n"));
}

/// The first line on standard error of a `dlockd` with these arguments; of none if that is a file.
fn first_line(arguments: &[&str], journal: Option<&File>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlockd"));
    command.args(["--port=0", "--verbs=off"]).args(arguments).env_remove("NOTIFY_SOCKET");
    command.env_remove("JOURNAL_STREAM").stdin(Stdio::null()).stdout(Stdio::piped());
    match journal {
        Some(file) => {
            let found = file.metadata().unwrap();
            command.env("JOURNAL_STREAM", format!("{}:{}", found.dev(), found.ino()));
            command.stderr(file.try_clone().unwrap())
        }
        None => command.stderr(Stdio::piped()),
    };
    let mut process = command.spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    let mut text = String::new();
    if let Some(mut errors) = process.stderr.take() {
        errors.read_to_string(&mut text).unwrap();
    }
    text.lines().next().unwrap_or_default().to_string()
}

#[test]
fn the_log_is_text_json_or_lines_for_the_journal() {
    assert!(first_line(&[], None).starts_with("[ "));
    let json = first_line(&["--log-format", "json"], None);
    let value: serde_json::Value = serde_json::from_str(&json).expect(&json);
    assert_eq!(value["level"], "info");
    let folder = Folder::new("journal");
    let path = folder.0.join("stderr");
    first_line(&[], Some(&File::create(&path).unwrap()));
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.is_empty() && text.lines().all(|line| line.starts_with('<')), "{text}");
}

#[test]
fn the_admin_socket_is_for_the_group_if_that_is_wanted() {
    let folder = Folder::new("group");
    let socket = folder.0.join("admin");
    let config = ServerConfig {
        port: 0,
        admin_socket: Some(socket.clone()),
        admin_for_group: true,
        ..ServerConfig::default()
    };
    let server = Server::start(config).unwrap();
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    server.stop();
    assert!(!socket.exists());
}
