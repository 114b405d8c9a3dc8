// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlockd` under a service manager: its messages at the notification socket, and its log.

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Peer, PATIENCE};
use dlock_core::wire::about::About;
use dlock_core::wire::control::{ControlReply, ControlRequest, VERSION};
use dlock_core::wire::message::LockType;
use dlock_server::{Server, ServerConfig};
use rustix::process::{kill_process, Pid, Signal};

/// The time without a ping after which the manager of these tests would restart the service.
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
        Self::start_at(socket, path.to_str().unwrap(), folder, arguments)
    }

    fn start_at(socket: UnixDatagram, name: &str, folder: Folder, arguments: &[&str]) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_dlockd"));
        command.args(["--port=0", "--verbs=off"]).args(arguments);
        command.env("NOTIFY_SOCKET", name);
        command.env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
        command.env_remove("WATCHDOG_PID").env_remove("JOURNAL_STREAM");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { socket, process: command.spawn().unwrap(), _folder: folder }
    }

    /// The next message; `None`: none has come in time.
    fn told(&self) -> Option<String> {
        let mut message = [0; 4096];
        let len = self.socket.recv(&mut message).ok()?;
        Some(String::from_utf8(message[..len].to_vec()).unwrap())
    }

    /// The next message other than a ping.
    fn told_but_pings(&self) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let message = self.told().expect("a message");
            if message != "WATCHDOG=1\n" {
                return message;
            }
            assert!(Instant::now() < end, "it does nothing but ping");
        }
    }

    /// Waits for a message of this kind. No earlier message may say that the primary serves.
    fn told_until(&self, is_so: impl Fn(&str) -> bool) {
        loop {
            let message = self.told_but_pings();
            if is_so(&message) {
                return;
            }
            assert!(!message.contains("STATUS=serves"), "{message}");
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
    // This holds without TLS, too: with SIGHUP a service manager asks for a reload.
    service.signal(Signal::HUP);
    let reloading = service.told_but_pings();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert!(service.told_but_pings().starts_with("READY=1\n"));
    service.signal(Signal::TERM);
    assert_eq!(service.told_but_pings(), "STOPPING=1\n");
    assert!(service.process.wait().unwrap().success());
}

/// The configuration is a pipe to which no process writes.
#[test]
fn a_configuration_that_cannot_be_read_holds_up_no_end() {
    let folder = Folder::new("unread");
    let config = folder.0.join("dlockd.toml");
    std::fs::write(&config, "").unwrap();
    let mut service = Service::start("unread-service", &["--config", config.to_str().unwrap()]);
    assert!(service.told_but_pings().starts_with("READY=1\n"));
    std::fs::remove_file(&config).unwrap();
    let made = Command::new("mkfifo").arg(&config).status().unwrap();
    assert!(made.success());
    for _ in 0..2 {
        service.signal(Signal::HUP);
        assert!(service.told_but_pings().starts_with("RELOADING=1\n"));
    }
    service.signal(Signal::TERM);
    assert_eq!(service.told_but_pings(), "STOPPING=1\n");
    assert!(service.process.wait().unwrap().success());
}

#[test]
fn a_primary_that_is_drained_stops_by_itself_and_well() {
    let folder = Folder::new("drained");
    let socket = folder.0.join("admin");
    let option = format!("--admin-socket={}", socket.display());
    let mut service = Service::start("drained-service", &[&option]);
    assert!(service.told_but_pings().starts_with("READY=1\n"));
    let mut admin = UnixStream::connect(&socket).unwrap();
    admin.write_all(b"{\"cmd\":\"drain\",\"on\":true}\n").unwrap();
    let mut answer = String::new();
    BufReader::new(admin).read_line(&mut answer).unwrap();
    assert!(answer.contains("\"ok\":true"), "the one who drains it is answered: {answer:?}");
    assert_eq!(service.told_but_pings(), "STOPPING=1\n");
    assert!(service.process.wait().unwrap().success());
}

#[test]
fn a_notification_socket_without_a_file_is_told() {
    let name = format!("dlock-abstract-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let socket = UnixDatagram::bind_addr(&address).unwrap();
    let service = Service::start_at(socket, &format!("@{name}"), Folder::new("abstract"), &[]);
    assert!(service.told_but_pings().starts_with("READY=1\n"));
}

#[test]
fn a_manager_that_does_not_read_does_not_keep_a_service_from_ending() {
    let folder = Folder::new("silent");
    let path = folder.0.join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let fills = UnixDatagram::unbound().unwrap();
    fills.set_nonblocking(true).unwrap();
    while fills.send_to(b"full", &path).is_ok() {}
    let admin = folder.0.join("admin");
    let arguments = ["--admin-socket", admin.to_str().unwrap()];
    let mut service = Service::start_at(socket, path.to_str().unwrap(), folder, &arguments);
    let end = Instant::now() + PATIENCE;
    while !admin.exists() {
        assert!(Instant::now() < end, "it does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    service.signal(Signal::TERM);
    loop {
        if let Some(status) = service.process.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            return;
        }
        assert!(Instant::now() < end, "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
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

#[test]
fn a_primary_that_recovers_does_not_say_that_it_serves() {
    let folder = Folder::new("recovers");
    let [state, admin] = ["epoch", "admin"].map(|name| folder.0.join(name));
    let server = common::server(ServerConfig {
        state_file: Some(state.clone()),
        shm: false,
        ..ServerConfig::default()
    });
    let mut client = Peer::connect(server.local_addr());
    let horizon_s = 300;
    let (version_min, version_max, tp_mode) = (1, VERSION, 0);
    let init = ControlRequest::Init {
        version_min,
        version_max,
        tp_mode,
        horizon_s,
        about: About::NOTHING,
    };
    let ControlReply::Session(session) = client.call(init) else { panic!("it is let in") };
    client.get("held", LockType::Atomic);
    server.stop();

    let service = Service::start(
        "recovers-notify",
        &[
            "--no-shm",
            "--state-file",
            state.to_str().unwrap(),
            "--admin-socket",
            admin.to_str().unwrap(),
        ],
    );
    let alone = "STATUS=recovers: of 1 client 0 are back; waits at most ";
    let ready = service.told_but_pings();
    let left_s = ready.trim_end().strip_prefix(&format!("READY=1\n{alone}"));
    let left_s = left_s.and_then(|rest| rest.split_once(" s for ")).expect(&ready).0;
    assert!((270..=300).contains(&left_s.parse().unwrap()), "{ready}");
    // The time left counts down, and a reload does not end the recovery.
    service.told_until(|message| message.starts_with(alone) && !ready.ends_with(message));
    service.signal(Signal::HUP);
    service.told_until(|message| message.starts_with(&format!("READY=1\n{alone}")));

    let mut asks = UnixStream::connect(&admin).unwrap();
    asks.write_all(b"{\"cmd\":\"status\"}\n").unwrap();
    let mut answer = String::new();
    BufReader::new(asks).read_line(&mut answer).unwrap();
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    let mut client = Peer::connect(answer["address"].as_str().unwrap().parse().unwrap());
    let (client_id, secret) = (session.client, session.secret);
    let back = ControlRequest::Reinit {
        version_min,
        version_max,
        tp_mode,
        horizon_s,
        client: client_id,
        secret,
        about: About::NOTHING,
    };
    assert!(matches!(client.call(back), ControlReply::Session(_)));
    let here = "STATUS=recovers: of 1 client 1 is back; they tell what they hold\n";
    service.told_until(|message| message == here);
    assert_eq!(client.call(ControlRequest::ReinitDone), ControlReply::Done);
    service.told_until(|message| message.starts_with("STATUS=serves on 127.0.0.1:"));
}

/// The first line on standard error of a `dlockd` with these arguments; if that is a file, an empty
/// line.
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
    // a thread of its own writes the lines, so the first one may come after the ready line
    let mut first = String::new();
    match process.stderr.take() {
        Some(errors) => _ = BufReader::new(errors).read_line(&mut first).unwrap(),
        None => wait_for_line(journal.expect("a pipe, or a file")),
    }
    process.kill().unwrap();
    process.wait().unwrap();
    first.trim_end().to_string()
}

/// Waits until the file has a complete line.
fn wait_for_line(file: &File) {
    let end = Instant::now() + PATIENCE;
    let ends_line = |len| {
        let mut last = [0];
        file.read_exact_at(&mut last, len - 1).is_ok() && last == *b"\n"
    };
    while !matches!(file.metadata().unwrap().len(), len @ 1.. if ends_line(len)) {
        assert!(Instant::now() < end, "no line in its log");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_log_is_text_json_or_lines_for_the_journal() {
    assert!(first_line(&[], None).starts_with("[ "));
    let json = first_line(&["--log-format", "json"], None);
    let value: serde_json::Value = serde_json::from_str(&json).expect(&json);
    assert_eq!(value["level"], "info");
    let folder = Folder::new("journal");
    let path = folder.0.join("stderr");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    first_line(&[], Some(&file));
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.is_empty() && text.lines().all(|line| line.starts_with('<')), "{text}");
}

#[test]
fn why_it_does_not_start_is_an_error_in_the_format_of_the_log() {
    let why = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dlockd"));
        command.args(arguments).env_remove("NOTIFY_SOCKET").env_remove("JOURNAL_STREAM");
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    // Not an address of this host, and a file that does not exist.
    for wrong in [["--insecure", "--listen=203.0.113.1"], ["--sleep-mode", "--config=/no/such"]] {
        let with = |format| why(&[wrong[0], wrong[1], "--log-level=off", "--log-format", format]);
        assert!(with("text").starts_with("dlockd: "));
        let journal = with("journal");
        assert!(journal.starts_with("<3>") && journal.ends_with('\n'), "{journal}");
        let json = with("json");
        let value: serde_json::Value = serde_json::from_str(&json).expect(&json);
        assert_eq!((&value["level"], &value["target"]), (&"error".into(), &"dlockd".into()));
    }
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
