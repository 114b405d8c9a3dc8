// SPDX-License-Identifier: MIT OR Apache-2.0
//! The messages of `dlock` and the libraries are those of `docs/messages.md`: every row is
//! provoked.

mod common;

use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use common::{dlock, own_address, text, DLOCK};
use dlock_core::rights::{Quotas, Right, Rule};
use dlock_fabric::tls::{NoPassword, Tls, TlsFiles};
use dlock_manuals::Messages;
use dlock_server::{Server, ServerConfig};

/// The folder of one test; removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("dlock-says-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path); // a run that was killed may have left the folder
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn at(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }

    fn certs(&self, arguments: &[&str]) {
        let output = dlock(&[&["certs"], arguments, &["--dir", &self.at("ca")]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    fn tls(&self, name: &str) -> Tls {
        let file = |name: String| Path::new(&self.at("ca")).join(name);
        let (cert, key) = (file(format!("{name}.crt")), file(format!("{name}.key")));
        let crl = Some(file("ca.crl".into()));
        let files = TlsFiles { ca: file("ca.crt".into()), crl, cert, key };
        Tls::load(files, Arc::new(NoPassword)).unwrap()
    }

    /// A `dlock` command with the certificate of this name.
    fn dlock_as(&self, name: &str) -> Command {
        let file = |name: &str| format!("{}/{name}", self.at("ca"));
        let mut command = Command::new(DLOCK);
        command.stdin(Stdio::null()).env("DLOCK_TLS_CA", file("ca.crt"));
        command.env("DLOCK_TLS_CERT", file(&format!("{name}.crt")));
        command.env("DLOCK_TLS_KEY", file(&format!("{name}.key")));
        command
    }

    fn exec_as(&self, name: &str, primary: &Server, lock: &str) -> Output {
        let mut command = self.dlock_as(name);
        command.args(["exec", "--wait", "20", "--address", &primary.local_addr().to_string()]);
        command.args([lock, "--", "true"]).output().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // a file or folder that is left over does no harm
    }
}

/// Runs a process that ends with its standard input; returns everything on its standard error.
fn said_by(mut command: Command, then: impl FnOnce(&str)) -> String {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    then(&common::first_line(child.stdout.take().unwrap()));
    drop(child.stdin.take());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    said
}

/// A `dlock` command to which the system gives no more processes and threads.
fn without_threads() -> Command {
    let mut command = Command::new("strace");
    let calls = "clone,clone3,fork,vfork";
    command.args(["-f", "-q", "-o", "/dev/null", "-e", &format!("trace={calls}")]);
    command.args(["-e", &format!("inject={calls}:error=EAGAIN"), DLOCK]);
    command
}

fn role_primary(folder: &Folder, socket: &str, options: &[&str]) -> Command {
    let mut command = Command::new(DLOCK);
    command.args(["-v", "role", "primary", "--listen", &own_address().to_string()]);
    command.args(["--admin-socket", &folder.at(socket)]).args(options);
    command
}

fn of_certificates(folder: &Folder, messages: &mut Messages) {
    folder.certs(&["init"]);
    folder.certs(&["server", "node", "--host", "127.0.0.1"]);
    for name in ["reader", "stranger", "revoked"] {
        folder.certs(&["client", name]);
    }
    folder.certs(&["revoke", "revoked"]);
    let rule = |name: &str| Rule {
        names: vec![format!("CN={name}")],
        prefixes: vec!["mine/".into()],
        rights: [Right::LockExclusive].into_iter().collect(),
        quotas: Quotas::default(),
    };
    let rules = vec![rule("reader"), rule("revoked")];
    let config = ServerConfig { tls: Some(folder.tls("node")), rules, ..ServerConfig::default() };
    let primary = Server::start(ServerConfig { port: 0, ..config }).unwrap();
    for (cause, name) in [
        ("no right", "reader"),
        ("certificate without a rule", "stranger"),
        ("certificate revoked", "revoked"),
    ] {
        let output = folder.exec_as(name, &primary, "others/lock");
        messages.compare(cause, &text(&output.stderr));
    }
    primary.stop();
}

#[test]
fn dlock_and_the_logs_say_what_the_table_of_messages_has() {
    let folder = Folder::new("dlock");
    let mut messages = Messages::of(&["`dlock`", "Logs"]);

    let free = TcpListener::bind((own_address(), 0)).unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let output = dlock(&["exec", "--address", &address, "x", "--", "true"]);
    messages.compare("no primary", &text(&output.stderr));

    of_certificates(&folder, &mut messages);

    let state = folder.at("state");
    let full = ["--locks-max=1", "--state-file", &state];
    let log = said_by(role_primary(&folder, "full", &full), |line| {
        let address = line.strip_prefix("listening ").expect("it says where it listens");
        let inner = ["exec", "--wait", "20", "--address", address, "b", "--", "true"];
        let outer = ["exec", "--wait", "20", "--address", address, "a", "--", DLOCK];
        let output = dlock(&[&outer[..], &inner[..]].concat());
        messages.compare("lock table full", &text(&output.stderr));
        let output = dlock(&["promote", "--socket", &folder.at("full")]);
        messages.compare("promote at a primary", &text(&output.stderr));
        let standby = ["--standby-of", address, "--state-file", &state];
        said_by(role_primary(&folder, "standby", &standby), |_| {
            for query in ["locks", "clients"] {
                let output = dlock(&[query, "--socket", &folder.at("standby")]);
                messages.compare("locks of a standby", &text(&output.stderr));
            }
        });
    });
    messages.compare("lock table full, the log", &log);

    said_by(role_primary(&folder, "removing", &[]), |line| {
        let address = line.strip_prefix("listening ").expect("it says where it listens");
        let all = format!("--socket '{}'; exec sleep 60", folder.at("removing"));
        let reset = format!("\"$0\" reset --all --now {all}");
        let exec = ["exec", "--lease=600", "--wait", "20", "--address", address, "x", "--"];
        let output = dlock(&[&exec[..], &["sh", "-c", &reset, DLOCK]].concat());
        messages.compare("removed by an operator", &text(&output.stderr));
    });

    if Command::new("strace").arg("-V").output().is_err() {
        eprintln!("skipped: strace, which refuses threads to a program, is not installed");
        return messages.finish(&["no more processes", "no failover thread"]);
    }
    let mut command = without_threads();
    let output = command.args(["exec", "x", "--", "true"]).stdin(Stdio::null()).output().unwrap();
    messages.compare("no more processes", &text(&output.stderr));
    said_by(role_primary(&folder, "followed", &[]), |line| {
        let address = line.strip_prefix("listening ").expect("it says where it listens");
        let mut client = without_threads();
        client.args(["role", "client", "--address", address, "--primaries", "127.0.0.9:1"]);
        let said = said_by(client, |line| assert!(line.starts_with("client "), "{line}"));
        messages.compare("no failover thread", &said);
    });
    messages.finish(&[]);
}

/// A client that a primary refuses pauses between its attempts to find another primary, and to
/// leave. It reports the reason at the first refusal, and from time to time.
#[test]
fn a_client_whose_certificate_is_revoked_while_it_holds_a_lock_does_not_flood_the_log() {
    let folder = Folder::new("revoked-holder");
    folder.certs(&["init"]);
    folder.certs(&["server", "node", "--host", "127.0.0.1"]);
    folder.certs(&["client", "holder"]);
    let tls = Some(folder.tls("node"));
    let primary = Server::start(ServerConfig { port: 0, tls, ..ServerConfig::default() }).unwrap();
    let revoke = format!("\"$0\" certs revoke holder --dir '{}'; exec sleep 60", folder.at("ca"));
    let mut holder = folder.dlock_as("holder");
    holder.args(["-vv", "exec", "--lease", "10", "--wait", "20", "--address"]);
    holder.args([&primary.local_addr().to_string(), "x", "--", "sh", "-c", &revoke, DLOCK]);
    let output = holder.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(76), "{said}");
    let lines = |level: &str| {
        let is_so = |line: &&str| line.contains("CertificateRevoked") && line.contains(level);
        said.lines().filter(is_so).count()
    };
    // a line for each attempt: with pauses of 20 ms there are 50 a second
    let tried = lines("debug");
    assert!((3..=70).contains(&tried), "{tried} attempts: {said}");
    assert!(lines("error") <= 2 && lines("warn") <= 5, "{said}");
    assert!(said.contains("no primary answers at"), "{said}");
    primary.stop();
}
