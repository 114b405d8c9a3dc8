// SPDX-License-Identifier: MIT OR Apache-2.0
//! Primaries that are stopped, lose their place to another, and go on afterwards.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use dlock_server::{stand_by as wait_for, Server, StandbyConfig};

use super::{configured, on_verbs, Process, CHILD_MAX};

/// How long a standby waits for a silent primary before it takes the place.
const SILENCE: Duration = Duration::from_millis(150);
/// The exit code of a primary that has ended by itself.
const REPLACED: i32 = 4;

/// Serves until the parent has ended. If another primary takes the place, this process ends by
/// itself.
pub(super) fn serve_on(server: &Server) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    runtime.block_on(server.ended());
    std::process::exit(REPLACED);
}

/// In a child process: runs a standby. `job`: `VERBS PORT OF SOCKET STATE-FILE`, where `OF` is the
/// port of the primary.
pub(super) fn stand_by(job: &str) {
    let words: Vec<&str> = job.splitn(5, ' ').collect();
    let port = |n: usize| words[n].parse().expect("a port");
    let admin_socket = Some(PathBuf::from(words[3]));
    let state_file = Some(PathBuf::from(words[4]));
    let config = configured(words[0] == "on", port(1), state_file);
    let config = dlock_server::ServerConfig { admin_socket, ..config };
    let of = SocketAddr::from((Ipv4Addr::LOCALHOST, port(2)));
    let standby = StandbyConfig { silence: SILENCE, ..StandbyConfig::of(of) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    println!("\nstanding");
    let server = runtime.expect("a runtime").block_on(wait_for(config, standby));
    serve_on(&server.expect("it takes over"));
}

/// A primary in a separate process, and a standby that waits for its end.
pub struct Pair {
    primary: Process,
    standby: Process,
    /// The ports of the two, that of the primary first.
    pub ports: [u16; 2],
    socket: PathBuf,
    state_file: PathBuf,
}

impl Pair {
    /// The pair of a primary at the first of these ports, and a new standby at the second.
    pub fn new(primary: Process, ports: [u16; 2], state_file: &Path) -> Self {
        let socket = state_file.with_file_name(format!("admin-{}", ports[1]));
        let standby = start(ports, &socket, state_file);
        Self { primary, standby, ports, socket, state_file: state_file.to_path_buf() }
    }

    /// Stops the primary, has the standby take its place, and continues the old primary after this
    /// time. The old primary then ends, and another standby is started.
    pub fn depose(&mut self, stopped: Duration) {
        self.primary.stop();
        eventually("it is promoted", || answers(&self.socket, "promote"));
        thread::sleep(stopped);
        self.primary.resume();
        let code = self.primary.left().and_then(|status| status.code());
        assert_eq!(code, Some(REPLACED), "a primary ends whose place was taken");
        self.ports.reverse();
        self.socket.set_file_name(format!("admin-{}", self.ports[1]));
        let standby = start(self.ports, &self.socket, &self.state_file);
        self.primary = std::mem::replace(&mut self.standby, standby);
    }
}

/// A port of the loopback interface without a listener.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}

fn start([of, port]: [u16; 2], socket: &Path, state_file: &Path) -> Process {
    let verbs = if on_verbs() { "on" } else { "off" };
    let (socket, state_file) = (socket.display(), state_file.display());
    Process::start(&format!("standby {verbs} {port} {of} {socket} {state_file}"), "standing").0
}

/// Whether the primary or standby at this admin socket answers the command with success.
fn answers(socket: &Path, command: &str) -> bool {
    let Ok(mut stream) = UnixStream::connect(socket) else { return false };
    let asked = writeln!(stream, "{{\"cmd\":\"{command}\"}}");
    let mut answer = String::new();
    let heard = asked.and_then(|()| BufReader::new(stream).read_line(&mut answer));
    heard.is_ok() && answer.contains("\"ok\":true")
}

fn eventually(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + CHILD_MAX;
    while !is() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}
