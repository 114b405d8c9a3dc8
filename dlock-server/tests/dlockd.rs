// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program: its ready line, its end, its exit codes.

#[path = "common/certs.rs"]
mod certs;
mod common;
#[path = "common/program.rs"]
mod program;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use common::{eventually, Peer};
use dlock_core::wire::codec;
use dlock_core::wire::control::{Attach, ControlReply, ControlRequest, FabricKind, Secret};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::deadline_in;
use dlock_fabric::{ClockEstimate, FabricError, ShmExecutor};
use program::{dlockd, output, Running};
use rcgen::CertificateParams;
use rustix::process::Signal;

struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let name = format!("dlockd-{name}-{}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0); // a file or folder that is left over does no harm
    }
}

/// The source of a library whose `open` of the lock file of a list of clients never returns.
const HANGS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>
int open64(const char *path, int flags, int mode)
{
    static int (*real)(const char *, int, int);
    while (strstr(path, ".clients.lock"))
        pause();
    if (!real)
        real = (int (*)(const char *, int, int))dlsym(RTLD_NEXT, "open64");
    return real(path, flags, mode);
}
"#;

/// `nohup` ignores a signal in this way, and a shell for commands in the background.
#[test]
fn a_signal_that_is_ignored_at_the_start_does_not_end_it() {
    let mut shell = Command::new("sh");
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell.args(["-c", r#"trap "" HUP INT; exec "$0" --port=0"#, env!("CARGO_BIN_EXE_dlockd")]);
    shell.env("XDG_STATE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/state"));
    let (running, _, _) = Running::by(&mut shell);
    running.signal(Signal::HUP);
    running.signal(Signal::INT);
    running.signal(Signal::TERM);
    let (code, errors) = running.end();
    assert_eq!(code, Some(0));
    assert!(errors.contains("SIGTERM: stopping"), "the first that it obeys: {errors}");
}

#[test]
fn a_signal_that_the_starter_has_blocked_ends_it() {
    let mut env = Command::new("env");
    env.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    env.args(["--block-signal=TERM", env!("CARGO_BIN_EXE_dlockd"), "--port=0"]);
    env.env("XDG_STATE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/state"));
    let can = Command::new("env").args(["--block-signal=TERM", "true"]).status();
    if !can.is_ok_and(|status| status.success()) {
        return println!("skipped: env cannot block signals");
    }
    let (mut running, _, _) = Running::by(&mut env);
    running.signal(Signal::TERM);
    eventually("it ends", || running.0.try_wait().unwrap().is_some());
    let (code, errors) = running.end();
    assert_eq!(code, Some(0), "{errors}");
}

#[test]
fn a_limit_of_open_files_that_leaves_room_for_no_client_ends_the_start() {
    let state = File::new("no-room", "epoch 1\n");
    let standby = format!("--standby-of=127.0.0.1:9 --state-file={}", state.path());
    for (limit, role) in (4..=50).step_by(2).flat_map(|n| [(n, ""), (n, &*standby)]) {
        let mut shell = Command::new("sh");
        let program = env!("CARGO_BIN_EXE_dlockd");
        let script = format!(
            "ulimit -n {limit}; exec timeout 60 {program} --port=0 \
             --verbs=off {role}"
        );
        shell.args(["-c", &script]).stdin(Stdio::null());
        let output = shell.output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{limit}: {errors}");
        let last = errors.lines().last().unwrap();
        let told = format!("it could serve no client: the limit of {limit} open files");
        assert!(last.starts_with("dlockd: ") && last.contains(&told), "{limit}: {errors}");
        assert!(last.contains("ulimit -n"), "{limit}: {errors}");
    }
}

#[test]
fn a_start_that_hangs_on_its_storage_ends_on_sigterm() {
    // a library whose `open` never returns stands for storage that does not answer
    let library = File::new("hangs", "").0.with_extension("so");
    let mut cc = Command::new("cc")
        .args(["-shared", "-fPIC", "-x", "c", "-o"])
        .arg(&library)
        .arg("-")
        .stdin(Stdio::piped())
        .spawn()
        .expect("there is a C compiler");
    cc.stdin.take().unwrap().write_all(HANGS.as_bytes()).unwrap();
    assert!(cc.wait().unwrap().success());
    let library = File(library);
    let state = library.0.with_extension("state");
    let mut starting = dlockd();
    starting.env("LD_PRELOAD", library.path());
    starting.args(["--port=0", "--state-file"]).arg(&state);
    let mut starting = Running(starting.spawn().unwrap());
    let handled = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() >> (Signal::TERM.as_raw() - 1) & 1 == 1
    };
    eventually("it waits for signals", || handled(starting.0.id()));
    std::thread::sleep(Duration::from_millis(200)); // the start has begun
    assert_eq!(starting.0.try_wait().unwrap(), None);
    starting.signal(Signal::TERM);
    let (code, errors) = starting.end();
    assert_eq!(code, Some(0), "{errors}");
}

#[test]
fn it_serves_when_it_says_so_and_stops_cleanly_on_sigterm_and_sigint() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let (running, address) = Running::start(&[]);
        let (mut peer, _) = Peer::init(address);
        assert!(peer.is_alive());
        let asked = Instant::now();
        running.signal(signal);
        let (code, errors) = running.end();
        assert_eq!(code, Some(0), "{errors}");
        assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
        assert_eq!(peer.receive(), None);
    }
}

#[test]
fn interrupted_system_calls_do_not_end_it() {
    let (running, address) = Running::start(&[]);
    let (mut peer, session) = Peer::init(address);
    let mut channel = Peer::channel(address, &session);
    for _ in 0..20 {
        assert!(peer.is_alive() && channel.pings());
        // Going on after a stop interrupts a sleeping epoll_wait.
        running.all_threads_are('S');
        running.signal(Signal::STOP);
        running.all_threads_are('T');
        running.signal(Signal::CONT);
    }
    assert!(peer.is_alive() && channel.pings());
    assert!(Peer::init(address).0.is_alive());
    running.signal(Signal::TERM);
    assert_eq!(running.end().0, Some(0));
}

#[test]
fn a_configuration_is_read_and_the_command_line_overrides_it() {
    let file = File::new("read", "listen = \"127.0.0.2\"\nport = 1024\ntcp = false\n");
    let (running, address) = Running::start(&["--config", file.path(), "--log-level=off"]);
    assert_eq!(address.ip().to_string(), "127.0.0.2");
    assert_ne!(address.port(), 1024);
    assert!(!Peer::init(address).1.offers.has(FabricKind::Tcp));
    running.signal(Signal::TERM);
    assert_eq!(running.end(), (Some(0), String::new()));
}

#[test]
fn ports_that_c_clients_cannot_have_are_refused() {
    for port in ["1", "80", "1023"] {
        let (code, out, errors) = output(&["--check-config", "--port", port]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{errors}");
        assert!(errors.contains("C clients") && errors.contains("1024 to 65535"), "{errors}");
    }
    for port in ["0", "1024", "21616", "65535"] {
        let (code, out, _) = output(&["--check-config", "--port", port]);
        assert_eq!(code, Some(0), "{out}");
    }
}

#[test]
fn check_config_tells_good_from_bad_with_file_and_line() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/dlockd.toml");
    let (code, out, errors) = output(&["--check-config", "--config", example]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(out.contains("valid"));
    for (name, text, place) in [
        ("unknown", "port = 0\nnosuchkey = 1\n", ":2:1: "),
        ("type", "port = \"x\"\n", ":1:8: "),
        ("port", "port = 80\n", ":1:8: "),
        ("range", "\n\nlocks_max = 51201\n", ":3:13: "),
        ("cpus", "cmd_cpuset = \"-1\"\n", ":1:14: "),
    ] {
        let file = File::new(name, text);
        for check in [&["--check-config"][..], &[]] {
            let (code, out, errors) = output(&[check, &["--config", file.path()]].concat());
            assert_eq!((code, out.as_str()), (Some(2), ""), "{errors}");
            assert!(errors.contains(&format!("{}{place}", file.path())), "{errors}");
            assert_eq!(errors.lines().count(), 1, "{errors}");
        }
    }
    let (code, _, errors) = output(&["--check-config", "--config", "/no/such/file"]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("/no/such/file"));
}

#[test]
fn beyond_loopback_it_takes_tls_or_a_word_and_tls_takes_files_that_fit() {
    let ca = certs::Ca::new("ours");
    let (files, other) = (ca.issue("primary"), ca.issue("other"));
    let [tls_ca, cert, key] = [&files.ca, &files.cert, &files.key].map(|f| f.to_str().unwrap());
    let everywhere = ["--check-config", "--listen=0.0.0.0"];
    let (code, _, errors) = output(&everywhere);
    assert_eq!(code, Some(2));
    assert!(errors.contains("insecure = true (--insecure)"), "{errors}");
    assert_eq!(output(&[&everywhere[..], &["--insecure"]].concat()).0, Some(0));
    let secured = ["--tls-ca", tls_ca, "--tls-cert", cert, "--tls-key", key];
    let (code, _, errors) = output(&[&everywhere[..], &secured].concat());
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let (code, _, errors) = output(&[&everywhere[..], &secured[..4]].concat());
    assert!(code == Some(2) && errors.contains("set key in [tls]"), "{errors}");
    let wrong = ["--tls-key", other.key.to_str().unwrap()];
    let (code, _, errors) = output(&[&everywhere[..], &secured[..4], &wrong].concat());
    assert!(code == Some(2) && errors.contains("does not belong to"), "{errors}");
    for verbs in ["--verbs=on", "--verbs=sealed", "--verbs=one-sided"] {
        let (code, _, errors) = output(&[&everywhere[..], &secured, &[verbs]].concat());
        assert_eq!((code, errors.as_str()), (Some(0), ""), "{verbs}");
    }
    let (code, _, errors) = output(&["--check-config", "--verbs=sealed"]);
    assert!(code == Some(2) && errors.contains("sealed without TLS"), "{errors}");
    let text = format!("[tls]\nca = {tls_ca:?}\ncert = {cert:?}\nkey = \"/no/key\"\n");
    let file = File::new("tls", &text);
    let (code, _, errors) = output(&["--check-config", "--config", file.path()]);
    assert!(code == Some(2) && errors.contains("/no/key does not exist"), "{errors}");
    let (code, _, errors) = output(&["--check-config", "--config", file.path(), "--tls-key", key]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
}

#[test]
fn a_certificate_that_ends_soon_is_said_by_the_check_the_log_and_the_status() {
    let ca = certs::Ca::new("ours");
    let mut soon = CertificateParams::new(vec!["primary".to_string()]).unwrap();
    let five_days = Duration::from_secs(5 * 86_400 + 3600);
    soon.not_after = (SystemTime::now() + five_days).into();
    let files = ca.issue_with("primary", soon);
    let [tls_ca, cert, key] = [&files.ca, &files.cert, &files.key].map(|f| f.to_str().unwrap());
    let secured = ["--tls-ca", tls_ca, "--tls-cert", cert, "--tls-key", key, "--verbs=off"];
    let expected = format!("the certificate of CN=primary in {cert} ends in 5 days (");
    let (code, out, errors) = output(&[&["--check-config"][..], &secured].concat());
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(out.contains(&expected) && out.contains("; renew it"), "{out}");
    let admin = ca.folder().join("admin");
    let admin_socket = format!("--admin-socket={}", admin.display());
    let (running, _) = Running::start(&[&secured[..], &[&admin_socket]].concat());
    let mut socket = UnixStream::connect(&admin).unwrap();
    socket.write_all(b"{\"cmd\":\"status\"}\n").unwrap();
    let mut answer = String::new();
    BufReader::new(socket).read_line(&mut answer).unwrap();
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    let first = &answer["tls_ends"][0];
    assert_eq!((&first["days_left"], &first["is_near"]), (&5.into(), &true.into()), "{answer}");
    assert_eq!(first["what"], "the certificate of CN=primary", "{answer}");
    assert_eq!(answer["tls_ends"][1]["is_near"], false, "{answer}");
    running.signal(Signal::TERM);
    let (code, log) = running.end();
    assert_eq!((code, log.matches(&expected).count()), (Some(0), 1), "{log}");
}

#[test]
fn a_hangup_loads_the_files_of_tls_again_and_ends_nothing() {
    let ca = certs::Ca::new("ours");
    let (files, client) = (ca.issue("primary"), ca.tls("client"));
    let [tls_ca, cert, key] = [&files.ca, &files.cert, &files.key].map(|f| f.to_str().unwrap());
    let secured = ["--tls-ca", tls_ca, "--tls-cert", cert, "--tls-key", key, "--verbs=off"];
    let (mut running, address) = Running::start(&secured);
    let shakes_hands = |tls: &dlock_fabric::tls::Tls| {
        let stream = std::net::TcpStream::connect(address).unwrap();
        let mut session =
            dlock_fabric::tls::session::TlsSession::connect(tls, address.ip()).unwrap();
        let deadline = deadline_in(common::PATIENCE);
        session.shake_until(std::os::fd::AsFd::as_fd(&stream), deadline).is_ok()
    };
    assert!(shakes_hands(&client));
    let next = certs::Ca::new("next");
    next.issue("primary");
    for file in ["ca.pem", "primary.pem", "primary.key"] {
        std::fs::copy(next.folder().join(file), ca.folder().join(file)).unwrap();
    }
    let renewed = next.tls("client");
    running.signal(Signal::HUP);
    eventually("the next certificate is used", || shakes_hands(&renewed));
    assert!(running.0.try_wait().unwrap().is_none(), "it serves on");
}

#[test]
fn rules_are_read_again_at_a_hangup_and_wrong_ones_change_nothing() {
    use dlock_fabric::tls::session::TlsSession;
    let ca = certs::Ca::new("ours");
    let (files, client) = (ca.issue("primary"), ca.tls("client"));
    let config = |rules: &str| {
        let [tls_ca, cert, key] = [&files.ca, &files.cert, &files.key].map(|f| f.to_str().unwrap());
        format!(
            "port = 0\nverbs = \"off\"\n[tls]\nca = \"{tls_ca}\"\n\
             cert = \"{cert}\"\nkey = \"{key}\"\n{rules}"
        )
    };
    let rule = |name: &str| format!("[[rules]]\nnames = [\"{name}\"]\nrights = [\"get\"]\n");
    let file = File::new("rules", &config(&rule("DNS:another")));
    let (mut running, address) = Running::start(&["--config", file.path()]);
    let answer = || {
        let stream = std::net::TcpStream::connect(address).unwrap();
        let socket = std::os::fd::AsFd::as_fd(&stream);
        let deadline = deadline_in(common::PATIENCE);
        let mut session = TlsSession::connect(&client, address.ip()).unwrap();
        session.shake_until(socket, deadline).unwrap();
        let mut bytes = Vec::new();
        let init = codec::Frame::Control(dlock_core::ids::Seq(1), common::INIT);
        codec::encode(&init, &mut bytes);
        session.write_until(socket, &bytes, deadline).unwrap();
        let mut buffer = dlock_fabric::stream::frames::FrameBuffer::new();
        loop {
            if let Some((kind, payload)) = buffer.next().unwrap() {
                match codec::decode(kind, payload).unwrap() {
                    codec::Frame::ControlReply(_, ControlReply::Error(status)) => return status,
                    codec::Frame::ControlReply(_, ControlReply::Session(_)) => {
                        return Status::Success
                    }
                    other => panic!("{other:?}"),
                }
            }
            let len = session.read_until(socket, buffer.space(), deadline).unwrap();
            assert!(len > 0, "no answer");
            buffer.filled(len);
        }
    };
    assert_eq!(answer(), Status::Denied);
    std::fs::write(file.path(), config(&rule("DNS:client"))).unwrap();
    running.signal(Signal::HUP);
    eventually("the rule counts", || answer() == Status::Success);
    let mut log = BufReader::new(running.0.stderr.take().unwrap());
    let whole = config(&rule("DNS:client"));
    let half_of_tls = whole.find("cert =").unwrap();
    std::fs::write(file.path(), config(&rule("DNS:another"))).unwrap();
    running.signal(Signal::HUP);
    eventually("the rule counts", || answer() == Status::Denied);
    // without rules every client would be let in
    for (text, why) in [
        (config(&rule("client")), "begins with one of"),
        (config("[[rules]]\nnames = [\"DNS:client\"]\n"), "neither rights nor a quota"),
        (config(""), "only a restart"),
        (String::new(), "only a restart"),
        (whole[..half_of_tls].to_string(), "cert"),
        (whole[..whole.find("rights").unwrap()].to_string(), "neither rights nor a quota"),
    ] {
        std::fs::write(file.path(), &text).unwrap();
        running.signal(Signal::HUP);
        let mut line = String::new();
        while !line.contains("the rules stay as they were") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "it says why: {text}");
        }
        assert!(line.contains(why), "{line}");
        assert_eq!(answer(), Status::Denied, "{text}");
    }
    // the log names settings that have no effect yet: a list of revoked certificates must be there
    // at the start
    let more = |tls: &str| config(&rule("DNS:another")).replace("[tls]", &format!("{tls}[tls]"));
    let told = "before it is started again";
    for (text, counts, what) in [
        (more(""), true, "are in force"),
        (more("clients_max = 5\n"), false, "was started with: they"),
        (more("").replace("[tls]\n", "[tls]\ncrl = \"CRL\"\n"), false, "[tls]: they"),
        (more(""), true, "are in force"),
    ] {
        std::fs::write(file.path(), text.replace("CRL", ca.revokes(&[]).to_str().unwrap()))
            .unwrap();
        running.signal(Signal::HUP);
        let mut lines = String::new();
        while !lines.contains("are in force") {
            assert!(log.read_line(&mut lines).unwrap() > 0, "{lines}");
        }
        assert!(lines.contains(what) && lines.contains(told) != counts, "{text}: {lines}");
    }
    assert!(running.0.try_wait().unwrap().is_none(), "it serves on");
    // rules without TLS
    let alone = File::new("rules-alone", &rule("*"));
    let (code, _, errors) = output(&["--check-config", "--config", alone.path()]);
    assert!(code == Some(2) && errors.contains("rules are given without TLS"), "{errors}");
}

#[test]
fn exit_codes_are_as_the_help_says() {
    let (code, help, _) = output(&["--help"]);
    assert_eq!(code, Some(0));
    for part in ["Exit codes", "--config", "--check-config", "--listen", "--port"] {
        assert!(help.contains(part), "{part} is missing in the help");
    }
    let widest = help.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(80), "where there is no terminal:\n{help}");
    assert_eq!(output(&["--no-such-option"]).0, Some(2));
    let off = FabricKind::without_device()
        .map(|kind| format!("--no-{kind}"))
        .chain(["--verbs=off".to_string()]);
    let off: Vec<String> = off.collect();
    let (code, _, errors) = output(&off.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(code == Some(2) && errors.contains("are all off"), "{code:?} {errors}");
    assert_eq!(output(&["--cmd-cpuset=-1"]).0, Some(2));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (code, out, errors) = output(&["--port", &port, "--log-level=off"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(errors.contains("in use") && errors.lines().count() == 1, "{errors}");
}

/// A session with the lock memory mapped.
fn mapped(address: SocketAddr) -> Result<(Peer, ShmExecutor), Status> {
    let (peer, session) = Peer::try_init(address)?;
    let socket = session.offers.place(FabricKind::Shm).expect("shm is offered");
    let attach = Attach { fabric: FabricKind::Shm, ..common::attach(&session) };
    let clock = ClockEstimate::from_exchange(0, 0, session.now);
    match ShmExecutor::attach(socket, &attach, clock) {
        Ok(exec) => Ok((peer, exec)),
        Err(FabricError::Refused(status)) => Err(status),
        Err(error) => panic!("the memory is not handed over: {error}"),
    }
}

/// A session over tcp.
fn over_tcp(address: SocketAddr) -> Result<(Peer, Peer), Status> {
    let (peer, session) = Peer::try_init(address)?;
    let (channel, attached) = Peer::attach(address, common::attach(&session));
    assert_eq!(attached.status, Status::Success, "who is let in may attach over tcp");
    Ok((peer, channel))
}

#[test]
fn a_primary_admits_as_many_clients_as_the_manual_says_of_each_fabric() {
    let limit = 120;
    for over_shm in [0, 1, 2] {
        let (running, address, room) = Running::start_limited(&format!("-n {limit}"), "");
        let open = std::fs::read_dir(format!("/proc/{}/fd", running.0.id())).unwrap().count();
        // the open files, 48 that are kept free, and 2 for each client, or 4 over shared memory
        assert!(open + 48 + 2 * (room.clients + 1) > limit, "{room:?}, {open} open");
        assert!(open + 48 + 4 * (room.over_shm + 1) > limit, "{room:?}, {open} open");
        let over_shm = over_shm * room.over_shm / 2;
        let shm: Vec<_> = (0..over_shm).map(|_| mapped(address).unwrap()).collect();
        let rest = room.clients - 2 * over_shm;
        let mut tcp: Vec<_> = (0..rest).map(|_| over_tcp(address).unwrap()).collect();
        for _ in 0..3 {
            assert_eq!(over_tcp(address).err(), Some(Status::ServerNoResource));
            assert_eq!(mapped(address).err(), Some(Status::ServerNoResource));
        }
        assert!(shm.iter().all(|(_, exec)| exec.probe()));
        assert!(tcp.iter_mut().all(|(peer, _)| peer.is_alive()));
        running.signal(Signal::TERM);
        let (code, errors) = running.end();
        assert_eq!(code, Some(0), "{errors}");
        assert!(!errors.contains("Too many open files"), "{errors}");
    }
}

#[test]
fn a_client_that_does_not_fit_is_told_so_and_the_log_names_the_limit_and_the_remedy() {
    let (running, address, room) = Running::start_limited("-n 120", "");
    assert!((5..100).contains(&room.over_shm), "room for {room:?}");
    let mut clients: Vec<_> =
        (0..room.over_shm).map(|_| mapped(address).expect("it says that it has room")).collect();
    // Strangers take the remaining places, and try to take more; no client is disturbed.
    let strangers: Vec<_> = (0..200).map(|_| Peer::connect(address)).collect();
    for _ in 0..3 {
        assert_eq!(mapped(address).err(), Some(Status::ServerNoResource));
    }
    for (peer, exec) in &mut clients {
        assert!(peer.is_alive() && exec.probe());
    }
    // One client leaves, and another one gets its place.
    let (mut leaving, exec) = clients.pop().unwrap();
    drop(exec);
    assert_eq!(leaving.call(ControlRequest::Deinit), ControlReply::Done);
    eventually("there is room again", || match mapped(address) {
        Ok(client) => {
            clients.push(client);
            true
        }
        Err(status) => {
            assert_eq!(status, Status::ServerNoResource);
            false
        }
    });
    drop(strangers);
    running.signal(Signal::TERM);
    let (code, errors) = running.end();
    assert_eq!(code, Some(0), "{errors}");
    let told = "the limit of 120 open files allows";
    let is_told = |line: &&str| line.contains("is refused: ") && line.contains(told);
    let line = errors.lines().find(is_told);
    assert!(line.is_some_and(|line| line.contains("LimitNOFILE=")), "{errors}");
}

#[test]
fn the_soft_limit_of_open_files_is_raised_to_the_hard_one() {
    let (running, _, room) = Running::start_limited("-S -n 120", "");
    let (_hard, _, few) = Running::start_limited("-n 120", "");
    let (room, few) = (room.clients, few.clients);
    assert!(room > few, "room for {room}, and for {few} where the hard limit is as low");
    running.signal(Signal::TERM);
    assert_eq!(running.end().0, Some(0));
}

#[test]
fn strangers_add_no_more_lines_to_the_log_than_its_limit() {
    let (running, address) = Running::start(&[]);
    let (mut peer, session) = Peer::init(address);
    let stranger = Attach { secret: Secret([0x5a; 16]), ..common::attach(&session) };
    for _ in 0..300 {
        let (_, attached) = Peer::attach(address, stranger);
        assert_ne!(attached.status, Status::Success);
    }
    assert!(peer.is_alive());
    running.signal(Signal::TERM);
    let (_, errors) = running.end();
    let lines = errors.lines().filter(|line| line.contains("is refused")).count();
    // The limit is 10 lines every 10 s, and a busy machine takes some of these intervals.
    assert!((1..=100).contains(&lines), "{lines} lines:\n{errors}");
}

#[test]
fn clients_of_one_process_share_the_descriptor_that_tells_of_its_end() {
    let (running, address) = Running::start(&[]);
    let open = || {
        let files = std::fs::read_dir(format!("/proc/{}/fd", running.0.id())).unwrap();
        let links = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
        let links: Vec<_> = links.map(|link| link.to_string_lossy().into_owned()).collect();
        (links.len(), links.iter().filter(|link| link.contains("pidfd")).count())
    };
    let (before, _) = open();
    let mut clients: Vec<_> = (0..10).map(|_| mapped(address).unwrap()).collect();
    // While the list of clients is written, one more file is open.
    let (mut files, mut pidfds) = open();
    for _ in 0..500 {
        if files <= before + 10 * 3 + pidfds {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
        (files, pidfds) = open();
    }
    assert!(pidfds <= 1, "{pidfds}");
    assert!(files <= before + 10 * 3 + pidfds, "{before}, then {files}");
    let leave = |(mut peer, exec): (Peer, ShmExecutor)| {
        drop(exec);
        assert_eq!(peer.call(ControlRequest::Deinit), ControlReply::Done);
    };
    let last = clients.pop().unwrap();
    clients.into_iter().for_each(leave);
    eventually("nothing is left of those who left", || open().0 <= before + 3 + pidfds);
    assert_eq!(open().1, pidfds, "the process is watched for the last");
    leave(last);
    eventually("nothing is left", || open().0 <= before);
    running.signal(Signal::TERM);
    assert_eq!(running.end().0, Some(0));
}
