// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the system refuses from some moment on: threads, descriptors, memory maps.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{dlockd, has_strace, serves_and_ends, start, strace, Program, Scene, HANG, SERVE};
use crate::common::{code, dlock, text, DLOCK};

/// No thread is started any more: the C library calls one of the two.
const NO_THREADS: [&str; 4] =
    ["-e", "trace=clone3,clone", "-e", "inject=clone3,clone:error=EAGAIN"];

fn options(of: &[&str]) -> Vec<String> {
    of.iter().map(|&option| option.into()).collect()
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + HANG;
    while !is_so() {
        assert!(Instant::now() < until, "{what}: not within {HANG:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_primary_that_gets_no_thread_at_its_start_says_so_in_one_line() {
    if !has_strace() {
        return;
    }
    let scene = Scene::new("no-thread");
    let said = scene.at("said");
    let mut strace = strace(&scene.at("trace"), &options(&NO_THREADS));
    let (mut program, address) = start(strace.arg("-D").arg(dlockd()).args(SERVE), &said);
    assert_eq!(address, None);
    let ended = program.ended(HANG).expect("it ends");
    let words = fs::read_to_string(&said).unwrap();
    assert_eq!(ended.code(), Some(1), "{words}");
    assert!(words.contains("thread") && words.contains("TasksMax"), "{words}");
    let lines = words.lines().filter(|line| line.contains("cannot start")).count();
    assert_eq!(lines, 1, "{words}");
}

#[test]
fn a_client_that_gets_no_thread_says_so_and_has_no_lock() {
    if !has_strace() {
        return;
    }
    let scene = Scene::new("no-client-thread");
    let said = scene.at("said");
    let (_primary, address) = start(Command::new(dlockd()).args(SERVE), &scene.at("dlockd"));
    // Processes are made by clone3, too: by `vfork` first, which stays.
    let threads = "inject=clone3:error=EAGAIN:when=2+";
    let mut dlock = strace(&scene.at("trace"), &options(&["-e", "trace=clone3", "-e", threads]));
    dlock.args(["-D", DLOCK, "exec", "--address", &address.unwrap(), "no-thread", "--", "true"]);
    let stderr = fs::File::create(&said).unwrap();
    let mut program = Program(dlock.stdin(Stdio::null()).stderr(stderr).spawn().unwrap());
    let ended = program.ended(HANG).expect("it ends");
    let words = fs::read_to_string(&said).unwrap();
    assert!(ended.code().is_some() && !words.contains("panicked"), "{ended}: {words}");
}

/// A TLS primary that serves, and its tracer, which refuses it threads.
#[test]
fn a_tls_primary_that_gets_no_threads_serves_on_and_looks_at_its_files_later() {
    if !has_strace() {
        return;
    }
    let scene = Scene::new("no-tls-thread");
    let said = scene.at("said");
    let folder = scene.at("pki");
    let dir = folder.to_str().unwrap();
    for words in [&["init"][..], &["server", "node", "--host", "127.0.0.1"]] {
        let made = dlock(&[&["certs"], words, &["--dir", dir]].concat());
        assert_eq!(code(&made), 0, "{}", text(&made.stderr));
    }
    let file = |name: &str| format!("{dir}/{name}");
    let mut dlockd = Command::new(dlockd());
    dlockd.args(SERVE).args(["--tls-ca", &file("ca.crt"), "--tls-cert", &file("node.crt")]);
    let (mut program, address) = start(dlockd.args(["--tls-key", &file("node.key")]), &said);
    let words = || fs::read_to_string(&said).unwrap();
    address.unwrap_or_else(|| panic!("it serves: {}", words()));
    let mut tracer = strace(&scene.at("trace"), &options(&NO_THREADS));
    let tracer = tracer.args(["-p", &program.0.id().to_string()]).spawn();
    let mut tracer = Program(tracer.unwrap());
    eventually("a look is left out", || words().contains("it is tried again in"));
    assert_eq!(program.ended(Duration::ZERO), None, "{}", words());
    tracer.signal(Signal::TERM); // it lets the program go
    tracer.ended(HANG).expect("strace ends");
    fs::copy(file("node.crt"), file("copy")).unwrap();
    fs::rename(file("copy"), file("node.crt")).unwrap();
    eventually("it looks again", || words().contains("were loaded again"));
    program.signal(Signal::TERM);
    assert_eq!(program.ended(HANG).expect("it ends").code(), Some(0), "{}", words());
}

#[test]
fn a_primary_without_further_descriptors_or_maps_ends_when_it_is_told_to() {
    if !has_strace() {
        return;
    }
    let scene = Scene::new("out-of");
    let said = scene.at("said");
    let refused = [
        "trace=accept4,socket,memfd_create,openat:inject=accept4,socket,memfd_create,openat:EMFILE",
        "trace=mmap,mremap:inject=mmap,mremap:ENOMEM",
    ];
    for refused in refused {
        let parts: Vec<&str> = refused.split(':').collect();
        let inject = format!("{}:error={}", parts[1], parts[2]);
        let (mut program, address) = start(Command::new(dlockd()).args(SERVE), &said);
        let mut tracer =
            strace(&scene.at("trace"), &options(&["-e", parts[0], "-e", inject.as_str()]));
        let tracer = tracer.args(["-p", &program.0.id().to_string()]).spawn();
        let mut tracer = Program(tracer.unwrap());
        serves_and_ends(&scene, &mut program, address, ("", &said)).expect(refused);
        drop(program);
        let _ = tracer.ended(HANG); // with the program
    }
}
