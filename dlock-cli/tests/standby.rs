// SPDX-License-Identifier: MIT OR Apache-2.0
//! A standby takes the place of a primary that has ended, and not before.

mod common;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::time::{Duration, Instant};

use common::{code, dlock, own_address, text, DLOCK};
use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;

/// The limit for everything that must not hang.
const HANG: Duration = Duration::from_secs(100);
/// More than twice the silence that a standby tolerates.
const SILENCE: Duration = Duration::from_millis(2_500);

struct Primary {
    child: Child,
    lines: Receiver<String>,
    socket: String,
}

impl Primary {
    fn start(folder: &Folder, name: &str, options: &[&str]) -> Self {
        let socket = folder.at(name);
        let mut child = Command::new(DLOCK)
            .args(["role", "primary", "--listen", &own_address().to_string()])
            .args(["--admin-socket", &socket, "--state-file", &folder.at("state")])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (heard, lines) = channel();
        let output = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.for_each(|line| drop(heard.send(line)));
        });
        Self { child, lines, socket }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(HANG).expect("it says something")
    }

    /// The address at which the primary serves, once it has reported it.
    fn serves(&self) -> String {
        let line = self.line();
        line.strip_prefix("listening ").expect("it says where it listens").to_string()
    }

    /// Starts a standby of the primary at this address.
    fn stand_by(folder: &Folder, of: &str, options: &[&str]) -> Self {
        let standby = Self::start(folder, "standby", &[&["--standby-of", of], options].concat());
        assert_eq!(standby.line(), format!("standby of {of}"));
        standby
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn status(&self) -> Value {
        let output = dlock(&["status", "--json", "--socket", &self.socket]);
        assert_eq!(code(&output), 0, "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn promote(&self) -> (i32, String) {
        let output = dlock(&["promote", "--socket", &self.socket]);
        (code(&output), text(&output.stderr))
    }

    /// Checks that the standby reports nothing for so long.
    fn waits_on(&self, time: Duration) {
        let heard = self.lines.recv_timeout(time);
        assert!(heard.is_err(), "it says {heard:?}");
    }

    fn eventually(&self, what: &str, is: impl Fn(&Value) -> bool) {
        let end = Instant::now() + HANG;
        loop {
            // the socket of the standby may not exist yet
            let output = dlock(&["status", "--json", "--socket", &self.socket]);
            match serde_json::from_slice(&output.stdout) {
                Ok(status) if code(&output) == 0 && is(&status) => return,
                _ => assert!(Instant::now() < end, "{what}: {output:?}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn was_heard(&self) {
        self.eventually("the primary is heard", |status| status["was_heard"] == true);
    }

    fn is_silent(&self) {
        let is_long = |status: &Value| status["silent_ms"].as_u64() > Some(1_500);
        self.eventually("the primary is silent", is_long);
    }

    /// Waits until the process has ended by itself; returns its exit code.
    fn ended(&mut self) -> Option<i32> {
        let end = Instant::now() + HANG;
        loop {
            match self.child.try_wait().unwrap() {
                Some(status) => return status.code(),
                None => assert!(Instant::now() < end, "it ends"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        let _ = self.child.kill(); // a process that has ended already is fine
        let _ = self.child.wait();
    }
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("dlock-by-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn at(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // a file or folder that is left over does no harm
    }
}

/// The exit code of an attempt to get the lock at this primary without waiting for it.
fn try_lock(address: &str) -> i32 {
    code(&dlock(&["exec", "--address", address, "lock", "--wait", "0", "--", "true"]))
}

#[test]
fn a_primary_that_ends_is_replaced_however_it_ends() {
    for signal in [Signal::KILL, Signal::TERM] {
        let folder = Folder::new(&format!("ends-{}", signal.as_raw()));
        let primary = Primary::start(&folder, "primary", &[]);
        let at = primary.serves();
        let standby = Primary::stand_by(&folder, &at, &[]);
        standby.was_heard();
        let (code, why) = standby.promote();
        assert_eq!(code, 69);
        assert!(why.contains("answered just now"), "{why}");
        standby.waits_on(SILENCE);
        assert_eq!(try_lock(&at), 0);
        primary.signal(signal);
        let now_at = standby.serves();
        assert_ne!(now_at, at);
        assert_eq!(try_lock(&now_at), 0);
        assert!(standby.status()["epoch"].as_str() > Some("0"), "it is a primary like any other");
    }
}

#[test]
fn a_primary_that_is_only_stopped_is_replaced_when_an_operator_says_so_and_then_ends() {
    let folder = Folder::new("stopped");
    let mut primary = Primary::start(&folder, "primary", &[]);
    let at = primary.serves();
    let standby = Primary::stand_by(&folder, &at, &[]);
    standby.was_heard();
    primary.signal(Signal::STOP);
    standby.is_silent();
    standby.waits_on(Duration::from_millis(300));
    let (code, why) = standby.promote();
    assert_eq!(code, 0, "{why}");
    let now_at = standby.serves();
    assert_eq!(try_lock(&now_at), 0);
    primary.signal(Signal::CONT);
    assert_eq!(primary.ended(), Some(1), "it finds that another has its place");
    assert_eq!(try_lock(&at), 69);
    assert_eq!(try_lock(&now_at), 0);
    // the list of clients belongs to the primary in office, as the third one finds
    let third = Primary::start(&folder, "third", &[]);
    assert!(third.lines.recv_timeout(HANG).is_err(), "the state file is in use");
}

#[test]
fn a_silent_primary_is_fenced_first_and_a_command_that_lies_is_not_believed() {
    let folder = Folder::new("fenced");
    let (runs, key) = (folder.at("runs"), folder.at("key"));
    let primary = Primary::start(&folder, "primary", &[]);
    let at = primary.serves();
    // the command fails; then it reports success without a deed; then it kills the primary
    let command = format!(
        "echo $DLOCK_PRIMARY >>{runs}; n=$(wc -l <{runs}); [ $n -gt 2 ] || exit $((n % 2)); \
         [ -e {key} ] && kill -9 {}",
        primary.child.id()
    );
    let standby = Primary::stand_by(&folder, &at, &["--fence", &command]);
    standby.was_heard();
    standby.waits_on(SILENCE);
    assert!(!PathBuf::from(&runs).exists(), "one that answers is not fenced");
    primary.signal(Signal::STOP);
    let count = || std::fs::read_to_string(&runs).unwrap_or_default().lines().count();
    let end = Instant::now() + HANG;
    while count() < 4 {
        assert!(Instant::now() < end, "it is run again");
        std::thread::sleep(Duration::from_millis(20));
    }
    standby.waits_on(Duration::from_millis(100));
    std::fs::write(&key, "").unwrap();
    assert_eq!(try_lock(&standby.serves()), 0);
    assert!(std::fs::read_to_string(&runs).unwrap().lines().all(|line| line == at));
}

/// Two standbys wait for the end of one primary. Once one of them has taken over, the other waits
/// for the end of that one.
#[test]
fn a_place_that_was_taken_is_not_taken_once_more() {
    let folder = Folder::new("two");
    let primary = Primary::start(&folder, "primary", &[]);
    let at = primary.serves();
    let standby = Primary::stand_by(&folder, &at, &[]);
    let runs = folder.at("runs");
    let command = format!("echo >>{runs}; true");
    let of = ["--standby-of", &at, "--fence", &command];
    let second = Primary::start(&folder, "second", &of);
    assert_eq!(second.line(), format!("standby of {at}"));
    standby.was_heard();
    second.was_heard();
    primary.signal(Signal::STOP);
    standby.is_silent();
    assert_eq!(standby.promote().0, 0);
    let now_at = standby.serves();
    primary.signal(Signal::CONT);
    second.is_silent();
    assert_eq!(second.promote().0, 0, "it was silent");
    second.waits_on(SILENCE);
    assert_eq!(try_lock(&now_at), 0, "it serves on");
    standby.signal(Signal::KILL);
    assert_eq!(try_lock(&second.serves()), 0);
}

#[test]
fn one_that_was_never_there_is_waited_for() {
    let folder = Folder::new("never");
    let runs = folder.at("runs");
    let at = format!("{}:{}", own_address(), 1_025);
    let standby = Primary::stand_by(&folder, &at, &["--fence", &format!("touch {runs}")]);
    standby.is_silent();
    standby.waits_on(SILENCE);
    assert!(!PathBuf::from(&runs).exists());
    assert_eq!(standby.promote().0, 0);
    assert_eq!(try_lock(&standby.serves()), 0);
}
