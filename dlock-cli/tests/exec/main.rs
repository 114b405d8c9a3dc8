// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlock exec` runs one COMMAND at a time, with every fault of the network and of the processes.
//!
//! The COMMANDs give the evidence: each locks a file of the operating system for as long as one of
//! its processes lives, and notes if another COMMAND has it. They ignore SIGTERM.

#[path = "../common/mod.rs"]
mod common;
mod ends;
mod failover;
mod horizon;
mod proxy;
mod unread;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use common::{code, dlock, eventually, text, Primary, DLOCK};
use dlock_core::wire::fabric::FabricKind;
use proxy::{Proxy, Stall};
use rustix::process::{kill_process, Pid, Signal};

/// $1 is the folder, $2 the name, $3 the file that ends COMMAND; COMMAND also ends if the folder is
/// removed. `sleep` has the lock of the file, too.
const COMMAND: &str = r#"
trap "" TERM
exec 9>>"$1/file"
flock -n 9 || echo "$2" >>"$1/overlaps"
: >"$1/begin.$2"
while [ -d "$1" ] && [ ! -e "$1/$3" ]; do sleep 0.05; done
: >"$1/end.$2"
"#;

struct Scene {
    folder: PathBuf,
}

impl Scene {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("dlock-exec-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self { folder }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn touch(&self, name: &str) {
        fs::write(self.at(name), "").unwrap();
    }

    fn has(&self, name: &str) -> bool {
        self.at(name).exists()
    }

    /// Starts a `dlock exec` of the COMMAND above, which ends when the file `until` exists.
    fn exec(&self, address: &str, options: &[&str], name: &str, until: &str) -> Exec {
        let child = Command::new(DLOCK)
            .args(["exec", "--address", address])
            .args(options)
            .args(["--", "sh", "-c", COMMAND, "sh"])
            .arg(&self.folder)
            .args([name, until])
            .stdin(Stdio::null())
            .stderr(fs::File::create(self.at(&format!("stderr.{name}"))).unwrap())
            .spawn()
            .unwrap();
        Exec(child)
    }

    fn assert_no_overlap(&self, what: &str) {
        let overlaps = fs::read_to_string(self.at("overlaps")).unwrap_or_default();
        assert_eq!(overlaps, "", "{what}: these began while another ran");
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if thread::panicking() {
            for file in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
                let content = fs::read_to_string(file.path()).unwrap_or_default();
                eprintln!("{}: {content}", file.path().display());
            }
        }
        let _ = fs::remove_dir_all(&self.folder); // a folder that is left over harms no other test
    }
}

/// A process that does not outlive its test.
struct Exec(Child);

impl Exec {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    fn code(&mut self, what: &str) -> Option<i32> {
        eventually(&format!("{what}: it ends"), || self.has_ended());
        self.0.wait().unwrap().code()
    }

    /// The keeper: the child with `keeper` in its command line.
    fn keeper(&self) -> Pid {
        let task = format!("/proc/{0}/task/{0}/children", self.0.id());
        let children = fs::read_to_string(task).unwrap();
        let is_keeper = |pid: &&str| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains("keeper")
        };
        let pid = children.split_whitespace().find(is_keeper).expect("it has a keeper");
        Pid::from_raw(pid.parse().unwrap()).unwrap()
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        let _ = self.0.kill(); // a process that has ended already is fine
        let _ = self.0.wait();
    }
}

/// Whether a process of a COMMAND has locked the file.
fn is_file_locked(scene: &Scene) -> bool {
    let status = Command::new("flock").arg("-n").arg(scene.at("file")).arg("true").status();
    !status.unwrap().success()
}

#[test]
fn the_evidence_of_two_commands_at_once_is_found() {
    let scene = Scene::new("evidence");
    let run = |name: &str| {
        let mut sh = Command::new("sh");
        sh.args(["-c", COMMAND, "sh"]).arg(&scene.folder).args([name, "stop"]).spawn().unwrap()
    };
    let mut first = run("a");
    eventually("the first begins", || scene.has("begin.a"));
    let mut second = run("b");
    eventually("the second begins", || scene.has("begin.b"));
    scene.touch("stop");
    first.wait().unwrap();
    second.wait().unwrap();
    assert_eq!(fs::read_to_string(scene.at("overlaps")).unwrap(), "b\n");
}

/// A network that fails at one moment.
#[derive(Clone, Copy, Debug)]
struct Trial {
    kind: &'static str,
    stall: Stall,
    /// Whether the network fails only after COMMAND has ended, when the lock is to be released.
    at_end: bool,
    /// Whether the bytes held up arrive while the other COMMAND runs.
    late: bool,
}

fn try_stall(primary: &str, number: usize, trial: Trial) {
    let what = format!("{number}: {trial:?}");
    let scene = Scene::new(&format!("stall-{number}"));
    let name = format!("stalled {number}");
    let options = [&name, "--type", trial.kind, "--fabric", "tcp", "--lease", "4", "--wait", "60"];
    let proxy = Proxy::start(primary, (!trial.at_end).then_some(trial.stall));
    let mut first = scene.exec(&proxy.address.to_string(), &options, "a", "end-a");
    if trial.at_end {
        eventually(&what, || scene.has("begin.a"));
        proxy.arm(trial.stall);
        scene.touch("end-a");
    }
    let stopped = || scene.has("begin.a") || proxy.has_stalled(Duration::ZERO);
    eventually(&what, || stopped() || first.has_ended());
    let mut second = scene.exec(primary, &options, "b", "end-b");
    eventually(&format!("{what}: the other gets the lock"), || scene.has("begin.b"));
    scene.assert_no_overlap(&what);
    if trial.late {
        proxy.lift();
        // Time for the late bytes to do harm; nothing else depends on this wait.
        thread::sleep(Duration::from_millis(500));
    }
    scene.touch("end-b");
    assert_eq!(second.code(&what), Some(0), "{what}");
    scene.touch("end-a");
    let code = first.code(&what);
    assert!(matches!(code, Some(0 | 69 | 75 | 76)), "{what}: {code:?}");
    scene.assert_no_overlap(&what);
}

/// The number of chunks that pass until COMMAND runs.
fn chunks_until_start(primary: &str, kind: &str) -> usize {
    let scene = Scene::new(&format!("count-{kind}"));
    let proxy = Proxy::start(primary, None);
    let name = format!("counted {kind}");
    let options = [&name, "--type", kind, "--fabric", "tcp", "--lease", "60"];
    let mut exec = scene.exec(&proxy.address.to_string(), &options, "a", "end-a");
    eventually("COMMAND runs", || scene.has("begin.a"));
    let chunks = proxy.chunks();
    scene.touch("end-a");
    assert_eq!(exec.code("without a stall"), Some(0));
    chunks
}

/// The network stops at every stage: connecting, init, attach, get_lock, lock, the first three
/// extensions, unlock and leaving. It stops before a frame or in the middle of one, in one
/// direction or in both.
#[test]
fn a_network_that_stops_at_any_stage_never_lets_two_commands_run() {
    const EXTENSION_CHUNKS: usize = 8;
    const RELEASE_CHUNKS: usize = 6;
    const AT_ONCE: usize = 16;
    let primary = Primary::start("stalls");
    let mut trials = Vec::new();
    for kind in ["atomic", "fair", "rw"] {
        let start = chunks_until_start(&primary.address, kind);
        assert!(start >= 8, "{kind}: at least init, attach, get_lock and lock: {start}");
        let early = (0..start + EXTENSION_CHUNKS).map(|chunk| (chunk, false));
        let late = (0..RELEASE_CHUNKS).map(|chunk| (chunk, true));
        for (chunk, at_end) in early.chain(late) {
            for half in [false, true] {
                for (one_way, late) in [(false, false), (true, true), (false, true), (true, false)]
                {
                    let stall = Stall { chunk, half, one_way };
                    trials.push(Trial { kind, stall, at_end, late });
                }
            }
        }
    }
    // All trials take minutes (`make soak`); a quarter of them has every stage and every direction.
    if std::env::var_os("DLOCK_SOAK").is_none() {
        let mut number = 0;
        trials.retain(|_| {
            number += 1;
            number % 4 == (number / 4) % 4
        });
    }
    let queue = Mutex::new(trials.into_iter().enumerate());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| loop {
                let next = queue.lock().unwrap().next();
                let Some((number, trial)) = next else { return };
                try_stall(&primary.address, number, trial);
            });
        }
    });
}

#[test]
fn a_lease_too_short_to_stop_command_is_refused_with_the_reason() {
    let output = dlock(&["exec", "x", "--lease", "3", "--", "true"]);
    assert_eq!(code(&output), 2);
    let said = text(&output.stderr);
    let reason = "--lease must be at least 4s: stopping COMMAND takes up to 2s";
    assert!(said.contains(reason) && said.contains("remedy:"), "{said}");
}

/// All fabrics of a host without a device: only with shared memory the primary has proof that a
/// process has ended.
fn fabrics() -> impl Iterator<Item = &'static str> {
    FabricKind::without_device().map(FabricKind::name)
}

#[test]
fn command_and_its_children_do_not_outlive_an_exec_that_is_killed() {
    for fabric in fabrics() {
        let primary = Primary::start(&format!("killed-{fabric}"));
        let scene = Scene::new(&format!("killed-{fabric}"));
        let options = ["killed", "--fabric", fabric, "--lease", "60", "--wait", "60"];
        let mut first = scene.exec(&primary.address, &options, "a", "never");
        eventually("it runs", || scene.has("begin.a"));
        let mut second = scene.exec(&primary.address, &options, "b", "end-b");
        first.signal(Signal::KILL);
        assert_eq!(first.code("killed"), None);
        // The lease has 60 s left, but the keeper releases the lock once COMMAND is dead.
        eventually("the other runs", || scene.has("begin.b"));
        scene.touch("end-b");
        assert_eq!(second.code("the other"), Some(0));
        scene.assert_no_overlap(fabric);
    }
}

#[test]
fn command_ends_when_the_keeper_of_its_lock_is_killed() {
    for fabric in fabrics() {
        let primary = Primary::start(&format!("keeper-{fabric}"));
        let scene = Scene::new(&format!("keeper-{fabric}"));
        let options = ["keeper", "--fabric", fabric, "--lease", "60"];
        let mut exec = scene.exec(&primary.address, &options, "a", "never");
        eventually("it runs", || scene.has("begin.a"));
        kill_process(exec.keeper(), Signal::KILL).unwrap();
        assert_eq!(exec.code("without a keeper"), Some(76));
        assert!(!is_file_locked(&scene), "all its processes are dead");
    }
}

/// Locks the file $1 in a thread, makes the file $2 when the first thread has ended, and goes on.
const WITHOUT_FIRST_THREAD: &str = r#"
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <unistd.h>
static char **paths;
static pthread_t first;
static void *goes_on(void *unused)
{
    flock(open(paths[1], O_RDWR | O_CREAT, 0600), LOCK_EX);
    pthread_join(first, NULL);
    close(open(paths[2], O_RDWR | O_CREAT, 0600));
    for (;;) pause();
    return unused;
}
int main(int count, char **words)
{
    pthread_t thread;
    paths = words;
    first = pthread_self();
    alarm(300); /* it may outlive a test that fails */
    if (count == 3) pthread_create(&thread, NULL, goes_on, NULL);
    pthread_exit(NULL);
}
"#;

/// The kernel shows such a process as a zombie.
#[test]
fn a_process_of_command_whose_first_thread_has_ended_is_killed_as_the_others_are() {
    let scene = Scene::new("first-thread");
    let [source, program] = ["program.c", "program"].map(|name| scene.at(name));
    fs::write(&source, WITHOUT_FIRST_THREAD).unwrap();
    let made = Command::new("cc").arg("-pthread").arg(&source).arg("-o").arg(&program).status();
    let Ok(made) = made else { return println!("skipped: there is no C compiler") };
    assert!(made.success());
    let primary = Primary::start("first-thread");
    let (file, begin) = (scene.at("file"), scene.at("begin"));
    let child = Command::new(DLOCK)
        .args(["exec", "--address", &primary.address, "first-thread", "--", "sh", "-c"])
        .args(["\"$@\"; true", "sh"])
        .args([&program, &file, &begin])
        .stdin(Stdio::null())
        .spawn();
    let mut exec = Exec(child.unwrap());
    eventually("it runs", || scene.has("begin"));
    kill_process(exec.keeper(), Signal::KILL).unwrap();
    assert_eq!(exec.code("without a keeper"), Some(76));
    assert!(!is_file_locked(&scene), "all its processes are dead");
}

#[test]
fn a_keeper_that_is_stopped_costs_the_lock_and_command_is_dead_in_time() {
    let primary = Primary::start("frozen-keeper");
    let scene = Scene::new("frozen-keeper");
    let options = ["frozen", "--fabric", "tcp", "--lease", "4", "--wait", "60"];
    let mut first = scene.exec(&primary.address, &options, "a", "never");
    eventually("it runs", || scene.has("begin.a"));
    kill_process(first.keeper(), Signal::STOP).unwrap();
    let mut second = scene.exec(&primary.address, &options, "b", "end-b");
    eventually("the other runs", || scene.has("begin.b"));
    scene.touch("end-b");
    assert_eq!(second.code("the other"), Some(0));
    assert_eq!(first.code("without its keeper"), Some(76));
    let said = fs::read_to_string(scene.at("stderr.a")).unwrap();
    assert!(said.contains("was stopped by a signal") && !said.contains("primary"), "{said}");
    scene.assert_no_overlap("a stopped keeper");
}

#[test]
fn an_exec_that_is_stopped_keeps_its_lock_as_long_as_the_primary_answers() {
    let primary = Primary::start("frozen");
    let scene = Scene::new("frozen");
    let options = ["frozen", "--fabric", "tcp", "--lease", "4"];
    let mut exec = scene.exec(&primary.address, &options, "a", "end-a");
    eventually("it runs", || scene.has("begin.a"));
    exec.signal(Signal::STOP);
    let wait = [&options[..], &["--wait", "6", "--", "true"]].concat();
    assert_eq!(code(&primary.exec(&wait)), 75, "longer than the lease");
    exec.signal(Signal::CONT);
    scene.touch("end-a");
    assert_eq!(exec.code("when it goes on"), Some(0));
}

#[test]
fn command_is_dead_in_time_though_its_exec_is_stopped_and_the_network_is_away() {
    let primary = Primary::start("frozen-away");
    let scene = Scene::new("frozen-away");
    let proxy = Proxy::start(&primary.address, None);
    let options = ["frozen", "--fabric", "tcp", "--lease", "4", "--wait", "60"];
    let mut first = scene.exec(&proxy.address.to_string(), &options, "a", "never");
    eventually("it runs", || scene.has("begin.a"));
    first.signal(Signal::STOP);
    proxy.arm(Stall { chunk: 0, half: false, one_way: false });
    let mut second = scene.exec(&primary.address, &options, "b", "end-b");
    eventually("the other runs", || scene.has("begin.b"));
    first.signal(Signal::CONT);
    scene.touch("end-b");
    assert_eq!(second.code("the other"), Some(0));
    assert_eq!(first.code("when it goes on"), Some(76));
    scene.assert_no_overlap("a stopped exec");
}

#[test]
fn an_exec_that_was_stopped_past_the_lease_does_not_start_command() {
    let primary = Primary::start("late");
    let scene = Scene::new("late");
    let proxy = Proxy::start(&primary.address, None);
    let (direct, proxied) = (primary.address.clone(), proxy.address.to_string());
    let options = ["late", "--fabric", "tcp", "--lease", "4", "--wait", "60", "-v"];
    let mut other = scene.exec(&direct, &options, "a", "end-a");
    eventually("another has the lock", || scene.has("begin.a"));
    let mut exec = scene.exec(&proxied, &options, "b", "end-b");
    let said = || fs::read_to_string(scene.at("stderr.b")).unwrap();
    eventually("it waits for the lock", || said().contains("waiting for the lock"));
    exec.signal(Signal::STOP);
    scene.touch("end-a");
    assert_eq!(other.code("the other"), Some(0));
    eventually("its keeper has the lock", || said().contains("the lock is held"));
    proxy.arm(Stall { chunk: 0, half: false, one_way: false });
    let mut third = scene.exec(&direct, &options, "c", "end-c");
    eventually("a third gets it", || scene.has("begin.c"));
    exec.signal(Signal::CONT);
    // This `dlock exec` was stopped before it heard of its lock, and has lost the lock meanwhile.
    let code = exec.code("when it goes on");
    assert!(matches!(code, Some(69 | 75)), "{code:?}");
    assert!(!scene.has("begin.b"), "COMMAND was not started");
    scene.touch("end-c");
    assert_eq!(third.code("the third"), Some(0));
    scene.assert_no_overlap("a late start");
}

/// COMMAND gets a number that grows with each hold, the lock's name, and the end of the lease.
#[test]
fn command_has_the_token_the_name_and_the_end_of_its_lease() {
    let primary = Primary::start("told");
    let mut last = 0;
    for kind in ["atomic", "rw", "fair", "fair"] {
        let name = format!("told {kind}");
        let show = "echo \"$DLOCK_TOKEN/$DLOCK_NAME/$DLOCK_UNTIL/$(date +%s)\"";
        let output = primary.exec(&[&name, "--type", kind, "--", "sh", "-c", show]);
        assert_eq!(code(&output), 0, "{}", text(&output.stderr));
        let said = text(&output.stdout);
        let parts: Vec<_> = said.trim().split('/').collect();
        let [token, told, until, now] = parts[..] else { panic!("{said}") };
        let number = |part: &str| part.parse::<u64>().expect("a number");
        assert_eq!(told, name);
        assert!(number(until) > number(now), "{said}");
        assert!(number(until) < number(now) + 3_600, "{said}");
        if name == "told fair" {
            assert!(number(token) > last, "{said}, after {last}");
            last = number(token);
        }
        assert!(number(token) > 0);
    }
}

#[test]
fn signals_reach_command_and_its_end_releases_the_lock() {
    let primary = Primary::start("signals");
    for (signal, number) in [(Signal::TERM, 15), (Signal::INT, 2), (Signal::HUP, 1)] {
        let scene = Scene::new(&format!("signals-{number}"));
        let begun: &Path = &scene.at("begin");
        let command =
            format!("trap 'exit {number}' {number}; : >\"$0\"; while :; do sleep 0.05; done");
        let child = Command::new(DLOCK)
            .args(["exec", "--address", &primary.address, "signals", "--", "sh", "-c", &command])
            .arg(begun)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut exec = Exec(child);
        eventually("it runs", || begun.exists());
        exec.signal(signal);
        assert_eq!(exec.code("after a signal"), Some(number));
        let free = primary.exec(&["signals", "--wait", "0", "--", "true"]);
        assert_eq!(code(&free), 0, "{}", text(&free.stderr));
    }
}

#[test]
fn a_warning_lets_command_end_by_itself_and_is_no_success() {
    let mut primary = Primary::start("warned");
    let scene = Scene::new("warned");
    let options = ["warned", "--fabric", "tcp", "--lease", "2", "--on-lost", "warn"];
    let mut exec = scene.exec(&primary.address, &options, "a", "end-a");
    eventually("it runs", || scene.has("begin.a"));
    primary.child.kill().unwrap();
    primary.child.wait().unwrap();
    let said = || fs::read_to_string(scene.at("stderr.a")).unwrap();
    eventually("it warns", || said().contains("COMMAND runs on without it"));
    assert!(!exec.has_ended() && is_file_locked(&scene));
    scene.touch("end-a");
    assert_eq!(exec.code("after the warning"), Some(76));
}

/// The program that starts `dlock exec` may be a Java program, or have a thread for its signals.
/// Its other threads block signals then, and a child inherits that.
#[test]
fn a_signal_that_the_starter_has_blocked_is_heard_nevertheless() {
    let primary = Primary::start("blocked");
    let scene = Scene::new("blocked");
    let exec = |script: &str| {
        let mut command = Command::new("env");
        command.args(["--block-signal=CHLD,TERM", DLOCK, "exec", "--address", &primary.address]);
        // the keeper reports only every 18 s
        command.args(["blocked", "--lease", "60", "--", "sh", "-c", script, "sh"]);
        command.arg(scene.at("begun")).stdin(Stdio::null()).spawn().unwrap()
    };
    let begun = Instant::now();
    match exec("").wait().unwrap().code() {
        Some(0) => assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed()),
        code => return println!("skipped: env cannot block signals ({code:?})"),
    }
    let mut stopped = Exec(exec(": >$1; exec sleep 100"));
    eventually("it runs", || scene.has("begun"));
    stopped.signal(Signal::TERM);
    assert_eq!(stopped.code("stopped"), Some(128 + 15));
}

/// `nohup` ignores a signal in this way, and a shell for commands in the background.
#[test]
fn a_signal_that_is_ignored_at_the_start_stays_ignored_also_for_command() {
    let primary = Primary::start("ignored");
    let scene = Scene::new("ignored");
    let line = r#"trap "" HUP INT; exec "$@""#;
    let command = r#": >"$0/begin"; while [ ! -e "$0/end" ]; do sleep 0.05; done; exit 7"#;
    let child = Command::new("sh")
        .args(["-c", line, "sh", DLOCK, "exec", "--address", &primary.address, "ignored"])
        .args(["--", "sh", "-c", command])
        .arg(&scene.folder)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut exec = Exec(child);
    eventually("it runs", || scene.has("begin"));
    let task = format!("/proc/{0}/task/{0}/children", exec.0.id());
    let children = fs::read_to_string(task).unwrap();
    let all = children.split_whitespace().map(|pid| pid.parse().unwrap()).chain([exec.0.id()]);
    for pid in all {
        let pid = Pid::from_raw(pid as i32).unwrap();
        for signal in [Signal::HUP, Signal::INT] {
            kill_process(pid, signal).unwrap();
        }
    }
    scene.touch("end");
    assert_eq!(exec.code("after signals that it ignores"), Some(7));
}
