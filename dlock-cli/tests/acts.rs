// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlock remove`, `break`, `reset` and `drain` at primaries that are processes of their own, and
//! over TLS.

mod common;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{code, dlock, eventually, first_line, text, Primary, DLOCK};
use dlock_core::rights::{Quotas, Right, Rule};
use dlock_fabric::tls::{NoPassword, Tls, TlsFiles};
use dlock_server::{Server, ServerConfig};
use serde_json::Value;

/// Starts a `dlock exec` whose command says that it runs, and then sleeps.
fn holder(address: &str, options: &[&str]) -> Child {
    let mut child = Command::new(DLOCK)
        .args(["-v", "exec", "--address", address, "lock"])
        .args(options)
        .args(["--", "sh", "-c", "echo running; exec sleep 600"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    assert_eq!(first_line(child.stdout.take().unwrap()), "running");
    child
}

/// Waits for the end of a `dlock exec`; returns its exit code, and what it has printed.
fn ended(mut child: Child) -> (Option<i32>, String) {
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (child.wait().unwrap().code(), said)
}

fn at(primary: &Primary, words: &[&str]) -> Output {
    dlock(&[words, &["--socket", &primary.socket()]].concat())
}

fn good(primary: &Primary, words: &[&str]) -> Value {
    let output = at(primary, &[words, &["--json"]].concat());
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The number of the client that holds the lock.
fn holder_of(primary: &Primary) -> String {
    let locks = good(primary, &["locks"]);
    locks["locks"][0]["holder"].as_u64().expect("it is held").to_string()
}

fn try_lock(primary: &Primary) -> i32 {
    code(&primary.exec(&["lock", "--wait", "0", "--", "true"]))
}

/// The listener takes connections and never answers, like a stopped primary.
#[test]
fn a_primary_that_is_silent_is_said_to_be_so() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let output = dlock(&["reset", "--all", "--address", &address]);
    assert_eq!(code(&output), 69);
    let said = text(&output.stderr);
    assert!(said.contains("no answer") && said.contains("look whether it runs"), "{said}");
}

#[test]
fn a_client_that_is_removed_at_once_loses_its_lock_and_is_told_by_whom() {
    for fabric in ["shm", "tcp"] {
        let primary = Primary::start_exactly(&format!("remove-{fabric}"), &[]);
        let child = holder(&primary.address, &["--lease=600", "--fabric", fabric]);
        let client = holder_of(&primary);
        let removed = good(&primary, &["remove", &client, "--now"]);
        assert_eq!(removed["clients"][0].as_u64().map(|id| id.to_string()), Some(client.clone()));
        let (code_of, said) = ended(child);
        assert_eq!(code_of, Some(76), "{said}");
        assert!(said.contains("was removed by an operator") && said.contains("uid "), "{said}");
        eventually("the lock is free", || try_lock(&primary) == 0);
        let again = at(&primary, &["remove", &client]);
        assert_eq!(code(&again), 75, "{}", text(&again.stderr));
        assert!(text(&again.stderr).contains("knows no client"), "{}", text(&again.stderr));
    }
}

/// What was taken away at once is another client's at once.
#[test]
fn a_command_is_told_of_what_is_taken_away_and_is_killed_if_that_is_at_once() {
    for (fabric, word, is_now) in
        ["shm", "tcp"].into_iter().flat_map(|f| [(f, "break", true), (f, "remove", false)])
    {
        let primary = Primary::start_exactly(&format!("killed-{fabric}-{word}"), &[]);
        let mut child = Command::new(DLOCK)
            .args(["exec", "--address", &primary.address, "--fabric", fabric, "--lease=600"])
            .args(["lock", "--", "sh", "-c"])
            .arg("trap 'echo asked >&2; exit' TERM; echo running; while :; do sleep 0.05; done")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(first_line(child.stdout.take().unwrap()), "running");
        let client = holder_of(&primary);
        let whose = if word == "break" { "lock" } else { &client };
        let words = [word, whose, "--now"];
        good(&primary, if is_now { &words } else { &words[..2] });
        let (code_of, said) = ended(child);
        assert_eq!(code_of, Some(76), "{said}");
        assert_eq!(said.lines().any(|line| line == "asked"), !is_now, "{said}");
        let why = "the lock is lost (an operator has taken it away, uid ";
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn a_lease_of_a_removed_client_lasts_and_it_is_asked_first() {
    let primary = Primary::start_exactly("break", &[]);
    let child = holder(&primary.address, &["--lease=6", "--fabric", "tcp"]);
    let start = Instant::now();
    let broken = good(&primary, &["break", "lock", "--grace=2"]);
    assert_eq!(broken["clients"].as_array().map(Vec::len), Some(1));
    let (code_of, said) = ended(child);
    assert_eq!(code_of, Some(76), "{said}");
    assert!(start.elapsed() >= Duration::from_secs(2), "it had its time");
    eventually("the lock is free", || try_lock(&primary) == 0);
    // over tcp the end of the holder's process proves nothing; the lease may be a second old
    assert!(start.elapsed() > Duration::from_secs(4), "its lease lasted");
    let none = at(&primary, &["break", "lock"]);
    assert_eq!(code(&none), 75, "nobody holds it");
}

#[test]
fn who_is_not_the_named_holder_keeps_the_lock() {
    let primary = Primary::start_exactly("named", &[]);
    let child = holder(&primary.address, &["--lease=600"]);
    let client = holder_of(&primary);
    let other = if client == "1" { "2" } else { "1" };
    assert_eq!(code(&at(&primary, &["break", "lock", "--client", other, "--now"])), 75);
    assert_eq!(try_lock(&primary), 75, "it is held");
    good(&primary, &["break", "lock", "--client", &client, "--now"]);
    assert_eq!(ended(child).0, Some(76));
    eventually("the lock is free", || try_lock(&primary) == 0);
}

#[test]
fn a_reset_removes_all_or_those_that_have_departed() {
    let primary = Primary::start_exactly("reset", &[]);
    let child = holder(&primary.address, &["--lease=600"]);
    let departed = good(&primary, &["reset", "--departed", "--now"]);
    assert_eq!(departed["clients"].as_array().map(Vec::len), Some(0));
    let all = good(&primary, &["reset", "--all", "--now"]);
    assert_eq!(all["clients"].as_array().map(Vec::len), Some(1));
    assert_eq!(ended(child).0, Some(76));
}

#[test]
fn a_drained_primary_gives_no_lock_until_the_drain_is_undone() {
    for fabric in ["shm", "tcp"] {
        let primary = Primary::start_exactly(&format!("drain-{fabric}"), &[]);
        let mut child = holder(&primary.address, &["--lease=600", "--fabric", "auto"]);
        good(&primary, &["drain"]);
        let free = ["free", "--wait", "0", "--fabric", "tcp", "--", "true"];
        eventually("no lock is given", || code(&primary.exec(&free)) != 0);
        let status = good(&primary, &["status"]);
        assert_eq!(status["drain"]["idle"], false, "{status}");
        eventually("what is held is told", || {
            good(&primary, &["status"])["drain"]["held"] == "lock"
        });
        let status = text(&at(&primary, &["status"]).stdout);
        assert!(status.contains("draining"), "{status}");
        // the holder releases the lock, over the fabric that its session now has
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        child.wait().unwrap();
        eventually("nothing is held", || good(&primary, &["status"])["drain"]["idle"] == true);
        good(&primary, &["drain", "--undo"]);
        assert!(good(&primary, &["status"])["drain"].is_null());
        eventually("locks are given", || code(&primary.exec(&free)) == 0);
    }
}

/// A CA, and a primary with rules, in a folder that is removed at the end.
struct Secure {
    folder: PathBuf,
    primary: Option<Server>,
}

impl Secure {
    fn start() -> Self {
        let folder = std::env::temp_dir().join(format!("dlock-acts-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder); // a run that was killed may have left the folder
        std::fs::create_dir_all(&folder).unwrap();
        let mut secure = Self { folder, primary: None };
        secure.certs(&["init"]);
        secure.certs(&["server", "node", "--host", "127.0.0.1"]);
        for name in ["boss", "worker"] {
            secure.certs(&["client", name]);
        }
        let rule = |name: &str, prefix: &str, rights: &[Right]| Rule {
            names: vec![format!("CN={name}")],
            prefixes: vec![prefix.into()],
            rights: rights.iter().copied().collect(),
            quotas: Quotas::default(),
        };
        let rules = vec![
            rule("boss", "", &[Right::Admin]),
            rule("worker", "", &[Right::LockExclusive]),
            rule("worker", "own/", &[Right::Admin]),
        ];
        let tls = Some(secure.tls("node"));
        let config = ServerConfig { tls, rules, port: 0, ..ServerConfig::default() };
        secure.primary = Some(Server::start(config).unwrap());
        secure
    }

    fn certs(&self, words: &[&str]) {
        let dir = self.folder.to_string_lossy().into_owned();
        let output = dlock(&[&["certs"], words, &["--dir", &dir]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    fn tls(&self, name: &str) -> Tls {
        let file = |name: String| Path::new(&self.folder).join(name);
        let (cert, key) = (file(format!("{name}.crt")), file(format!("{name}.key")));
        let files = TlsFiles { ca: file("ca.crt".into()), crl: None, cert, key };
        Tls::load(files, Arc::new(NoPassword)).unwrap()
    }

    fn address(&self) -> String {
        self.primary.as_ref().unwrap().local_addr().to_string()
    }

    /// A `dlock` command with the certificate of this name.
    fn run(&self, name: &str, words: &[&str]) -> Command {
        let file = |name: &str| self.folder.join(name);
        let mut command = Command::new(DLOCK);
        command.stdin(Stdio::null()).env("DLOCK_TLS_CA", file("ca.crt"));
        command.env("DLOCK_TLS_CERT", file(&format!("{name}.crt")));
        command.env("DLOCK_TLS_KEY", file(&format!("{name}.key")));
        command.args(words).args(["--address", &self.address()]);
        command
    }
}

impl Drop for Secure {
    fn drop(&mut self) {
        // a file or folder that is left over does no harm
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn over_tls_the_right_admin_is_needed() {
    let secure = Secure::start();
    let run = |name: &str, words: &[&str]| secure.run(name, words).output().unwrap();
    let take =
        ["exec", "own/lock", "--lease=600", "--", "sh", "-c", "echo running; exec sleep 600"];
    let mut child = {
        let mut command = secure.run("worker", &take[..3]);
        command.args(&take[3..]).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    assert_eq!(first_line(child.stdout.take().unwrap()), "running");

    let refused = run("worker", &["drain"]);
    let said = text(&refused.stderr);
    assert_eq!(code(&refused), 69, "{said}");
    assert!(said.contains("the rules of the primary do not allow it"), "{said}");
    let refused = run("worker", &["break", "other/lock", "--now"]);
    assert_eq!(code(&refused), 69, "{}", text(&refused.stderr));
    let done = run("worker", &["break", "own/lock", "--now"]);
    assert_eq!(code(&done), 0, "its rule has the prefix: {}", text(&done.stderr));
    let (code_of, said) = ended(child);
    assert_eq!(code_of, Some(76), "{said}");

    let done = run("boss", &["drain"]);
    assert_eq!(code(&done), 0, "{}", text(&done.stderr));
    let mut exec = secure.run("worker", &["exec", "own/lock", "--wait", "0"]);
    let refused = exec.args(["--", "true"]).output().unwrap();
    assert_ne!(code(&refused), 0);
    let done = run("boss", &["drain", "--undo"]);
    assert_eq!(code(&done), 0, "{}", text(&done.stderr));
    let mut exec = secure.run("worker", &["exec", "own/lock", "--wait", "0"]);
    let got = exec.args(["--", "true"]).output().unwrap();
    assert_eq!(code(&got), 0, "{}", text(&got.stderr));
}
