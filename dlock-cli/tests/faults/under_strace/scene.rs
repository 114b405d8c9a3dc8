// SPDX-License-Identifier: MIT OR Apache-2.0
//! A folder, and processes that do not outlive their test.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal};

use super::{is_long, HANG};
use crate::common::{code, dlock, text, DLOCK};

/// The time that a line of the log may take to reach its file.
const LOGGED: Duration = Duration::from_secs(5);
/// The options of a primary that needs no others.
pub const SERVE: [&str; 3] = ["--port=0", "--state-file=none", "--log-level=info"];

/// The path of `dlockd`. The tests of this crate do not build it, and the long run must not take an
/// old one.
pub fn dlockd() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let path = Path::new(DLOCK).with_file_name("dlockd");
    let built = || {
        if is_long() || !path.exists() {
            build(&["-p", "dlock-server", "--bin", "dlockd"]);
        }
        path
    };
    BUILT.get_or_init(built).clone()
}

/// Builds programs that the tests of this crate do not build by themselves.
pub fn build(what: &[&str]) {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--locked", "--offline"]).args(what);
    // The variables that cargo sets for this test would make build scripts run again.
    for (name, _) in std::env::vars_os() {
        let own = ["CARGO_MANIFEST_", "CARGO_PKG_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"];
        if name.to_str().is_some_and(|name| own.iter().any(|own| name.starts_with(own))) {
            build.env_remove(&name);
        }
    }
    assert!(build.stdin(Stdio::null()).status().unwrap().success(), "{build:?}");
}

pub struct Scene(PathBuf);

impl Scene {
    pub fn new(name: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("dlock-faults-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn file(&self, name: &str) -> String {
        self.at(name).to_string_lossy().into_owned()
    }

    /// The folder with a CA, and certificates for a primary and for a client.
    pub fn pki(&self) -> String {
        let dir = self.file("pki");
        if !self.at("pki/app.key").exists() {
            for words in
                [&["init"][..], &["server", "node", "--host", "127.0.0.1"], &["client", "app"]]
            {
                let made = dlock(&[&["certs"], words, &["--dir", &dir]].concat());
                assert_eq!(code(&made), 0, "{}", text(&made.stderr));
            }
        }
        dir
    }

    /// The options of a program that speaks TLS.
    pub fn tls(&self, name: &str) -> Vec<String> {
        let dir = self.pki();
        let option = |key: &str, file: String| format!("--tls-{key}={dir}/{file}");
        let of = |end: &str| format!("{name}.{end}");
        vec![option("ca", "ca.crt".into()), option("cert", of("crt")), option("key", of("key"))]
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // a folder that is left over harms no other test
    }
}

/// A process that does not outlive its test, and the file with its standard error.
pub struct Program {
    pub child: Child,
    said: PathBuf,
    lines: Option<Receiver<String>>,
}

impl Program {
    /// Starts a program with its standard error in `said`, and without standard input.
    pub fn spawn(command: &mut Command, said: &Path) -> Self {
        let stderr = fs::File::create(said).unwrap();
        Self::of(command.stdin(Stdio::null()).stderr(stderr), said)
    }

    /// Starts a program with its standard error in `said`, and pipes to its other streams.
    pub fn spawn_piped(command: &mut Command, said: &Path) -> Self {
        Self::spawn_with(command, fs::File::create(said).unwrap().into(), said)
    }

    pub fn spawn_with(command: &mut Command, stderr: Stdio, said: &Path) -> Self {
        Self::of(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr), said)
    }

    fn of(command: &mut Command, said: &Path) -> Self {
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let lines = child.stdout.take().map(lines);
        Self { child, said: said.into(), lines }
    }

    /// Writes a line to the standard input of the program, which may have ended.
    pub fn write(&mut self, line: &str) {
        use std::io::Write;
        let line = format!("{line}\n"); // so that one call writes it
        let _ = self.child.stdin.as_mut().map(|stdin| stdin.write_all(line.as_bytes()));
    }

    pub fn close_input(&mut self) {
        drop(self.child.stdin.take());
    }

    /// The next line of the standard output; `None`: none has come in time, or the program has
    /// ended.
    pub fn line(&self, within: Duration) -> Option<String> {
        self.lines.as_ref()?.recv_timeout(within).ok()
    }

    /// Waits for the end of the program; `None`: it has not ended in time.
    pub fn ended(&mut self, within: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + within;
        loop {
            match self.child.try_wait().unwrap() {
                Some(status) => return Some(status),
                None if Instant::now() >= until => return None,
                None => thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// The number of its threads.
    pub fn threads(&self) -> usize {
        fs::read_dir(format!("/proc/{}/task", self.child.id())).map_or(0, Iterator::count)
    }

    pub fn is_there(&mut self) -> bool {
        self.ended(Duration::ZERO).is_none()
    }

    /// Waits until the program has said this, and returns whether it has. A thread writes the log,
    /// so a line may come a moment late.
    pub fn says(&self, is_so: impl Fn(&str) -> bool) -> bool {
        let until = Instant::now() + LOGGED;
        while !is_so(&self.said()) && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        is_so(&self.said())
    }

    pub fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    pub fn signal(&self, signal: Signal) {
        // a process that has ended already is fine
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill(); // a process that has ended already is fine
        let _ = self.child.wait();
    }
}

fn lines(output: ChildStdout) -> Receiver<String> {
    let (heard, lines) = channel();
    thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        lines.for_each(|line| drop(heard.send(line))); // the test may have ended
    });
    lines
}

/// Starts a dlockd; returns the address on which it listens, unless it has ended or hangs.
pub fn start(command: &mut Command, log: &Path) -> (Program, Option<String>) {
    let program = Program::spawn(command.stdout(Stdio::piped()), log);
    let address = serves(&program);
    (program, address)
}

/// The address on which a dlockd listens, once it has reported it; `None`: it has ended or hangs.
pub fn serves(program: &Program) -> Option<String> {
    serves_within(program, HANG)
}

pub fn serves_within(program: &Program, within: Duration) -> Option<String> {
    let line = program.line(within)?;
    let rest = line.strip_prefix("dlockd ready: listening on ")?;
    rest.split(',').next().map(Into::into)
}

pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + HANG;
    while !is_so() {
        assert!(Instant::now() < until, "{what}: not within {HANG:?}");
        thread::sleep(Duration::from_millis(10));
    }
}
