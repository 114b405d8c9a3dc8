// SPDX-License-Identifier: MIT OR Apache-2.0
//! A test for each row of "What holds without any configuration" (docs/operations.md). `dlockd` and
//! `dlock` run without options, and their user has only folders.
//!
//! ```text
//!   test ─ unshare -n ─▶ the same test in a network of its own: the default port is free there
//! ```

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{code, eventually, text, DLOCK};
use rustix::process::{kill_process, Pid, Signal};

/// Set if the test is in a network of its own.
const INSIDE: &str = "DLOCK_TEST_UNSHARED";
/// The id of a user without rights and files.
const NOBODY: u32 = 65_534;
/// More time than a loaded machine takes.
const PATIENCE: Duration = Duration::from_secs(100);
/// For how long a second COMMAND is tried after the restart.
const TRIES: Duration = Duration::from_secs(9);

/// Runs `body` in a network of its own; if that is not permitted, prints so.
fn unshared(test: &str, body: impl FnOnce(&User)) {
    if std::env::var_os(INSIDE).is_some() {
        body(&User::new(test));
        return;
    }
    let user = if rustix::process::geteuid().is_root() { &["-n"][..] } else { &["-r", "-n"] };
    let mut unshare = Command::new("unshare");
    // an earlier state of root must not be taken for that of a predecessor
    let own = "! test -d /var/lib/dlock || mount -t tmpfs none /var/lib/dlock";
    let inside = format!("{own}; ip link set lo up && echo inside && exec \"$@\"");
    unshare.args(user).args(["-m", "sh", "-c", &inside, "sh"]);
    unshare.arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]);
    let output = unshare.env(INSIDE, "1").stdin(Stdio::null()).output();
    match output {
        Ok(output) if text(&output.stdout).starts_with("inside") => {
            let said = text(&output.stdout) + &text(&output.stderr);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
        }
        other => println!("skipped: no network namespace (unshare -n, ip link): {other:?}"),
    }
}

/// A user with folders of its own.
struct User {
    home: PathBuf,
}

impl User {
    fn new(test: &str) -> Self {
        let name = format!("dlock-unconfigured-{test}-{}", std::process::id());
        let home = std::env::temp_dir().join(name);
        fs::create_dir(&home).unwrap();
        for folder in ["state", "run"] {
            fs::DirBuilder::new().mode(0o700).create(home.join(folder)).unwrap();
        }
        Self { home }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.home.join(name)
    }

    /// A command with this user's folders, and no other configuration.
    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DLOCK_") {
                command.env_remove(name);
            }
        }
        command.env_remove("NOTIFY_SOCKET").env("HOME", &self.home).stdin(Stdio::null());
        command.env("XDG_STATE_HOME", self.at("state")).env("XDG_RUNTIME_DIR", self.at("run"));
        command
    }

    fn dlockd(&self, arguments: &[&str]) -> Command {
        let dlockd = Path::new(DLOCK).with_file_name("dlockd");
        assert!(dlockd.exists(), "build it first: cargo build -p dlock-server --bin dlockd");
        let mut command = self.command(dlockd);
        command.args(arguments);
        command
    }

    fn primary(&self) -> Running {
        let mut child = self.dlockd(&[]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("dlockd ready: listening on 127.0.0.1:21616,"), "{line}");
        Running(child)
    }

    fn dlock(&self, arguments: &[&str]) -> Output {
        self.command(DLOCK).args(arguments).output().unwrap()
    }

    /// Starts a COMMAND that holds the lock; returns its process id, too.
    fn holder(&self) -> (Running, i32) {
        let pid = self.at("command");
        let script = format!("echo $$ >{0}.new; mv {0}.new {0}; exec sleep 300", pid.display());
        let arguments = ["exec", "backup", "--", "sh", "-c", &script];
        let child = self.command(DLOCK).args(arguments).stdout(Stdio::null()).spawn().unwrap();
        eventually("COMMAND runs", || pid.exists());
        (Running(child), fs::read_to_string(pid).unwrap().trim().parse().unwrap())
    }

    /// Tries to run a second COMMAND, which checks whether the first one runs; returns the exit
    /// code.
    fn second(&self, first: i32) -> i32 {
        let look = format!("! kill -0 {first} 2>/dev/null || exit 42");
        code(&self.dlock(&["exec", "backup", "--wait", "0", "--", "sh", "-c", &look]))
    }

    /// Checks exclusion when a primary ends, while COMMAND holds the lock, and is started again.
    fn excludes_over(&self, end: Signal) {
        let primary = self.primary();
        let (holder, command) = self.holder();
        assert_ne!(self.second(command), 0, "it is held");
        primary.end(end);
        let primary = self.primary();
        let until = Instant::now() + TRIES;
        while Instant::now() < until {
            assert_ne!(self.second(command), 42, "two COMMANDs run");
        }
        // afterwards the lock is free again
        holder.end(Signal::TERM);
        eventually("it is free", || self.second(command) == 0);
        primary.end(Signal::TERM);
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.home); // a file or folder that is left over does no harm
    }
}

/// A process that ends with the test.
struct Running(Child);

impl Running {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn end(mut self, signal: Signal) {
        self.signal(signal);
        self.0.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill(); // the process has ended already, unless the test failed
        let _ = self.0.wait();
    }
}

/// A copy of `dlock` that all users may run.
fn for_all(user: &User) -> PathBuf {
    let copy = user.at("dlock");
    fs::copy(DLOCK, &copy).unwrap();
    for path in [&copy, &user.home] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    copy
}

#[test]
fn exclusion_over_a_clean_restart() {
    unshared("exclusion_over_a_clean_restart", |user| user.excludes_over(Signal::TERM));
}

#[test]
fn exclusion_over_a_crash() {
    unshared("exclusion_over_a_crash", |user| user.excludes_over(Signal::KILL));
}

/// A standby without the list of clients would be a second primary.
#[test]
fn exclusion_over_a_failover() {
    unshared("exclusion_over_a_failover", |user| {
        let _primary = user.primary();
        let arguments = ["--port=21617", "--standby-of=127.0.0.1:21616"];
        let output = user.dlockd(&arguments).output().unwrap();
        let errors = text(&output.stderr);
        assert_eq!(code(&output), 2, "{errors}");
        assert!(errors.contains("a standby needs the state file of its primary"), "{errors}");
    });
}

#[test]
fn every_wait_is_bounded() {
    unshared("every_wait_is_bounded", |user| {
        let primary = user.primary();
        let (_holder, _) = user.holder();
        let asked = Instant::now();
        let arguments = ["exec", "backup", "--wait", "1", "--", "true"];
        assert_eq!(code(&user.dlock(&arguments)), 75);
        primary.signal(Signal::STOP);
        let output = user.dlock(&["status"]);
        assert_eq!(code(&output), 69);
        assert!(text(&output.stderr).contains("no answer in 10 s"), "{}", text(&output.stderr));
        let output = user.dlock(&arguments);
        let errors = text(&output.stderr);
        assert_eq!(code(&output), 75, "{errors}");
        assert!(errors.contains("has not answered in time"), "{errors}");
        assert!(asked.elapsed() < PATIENCE, "{:?}", asked.elapsed());
        primary.signal(Signal::CONT);
    });
}

/// Holder and primary are killed at once: the recovery ends without a word of the operator.
#[test]
fn every_recovery_ends() {
    unshared("every_recovery_ends", |user| {
        let primary = user.primary();
        let (holder, command) = user.holder();
        primary.end(Signal::KILL);
        holder.end(Signal::KILL);
        let _primary = user.primary();
        eventually("it is free", || user.second(command) == 0);
    });
}

#[test]
fn who_may_ask() {
    unshared("who_may_ask", |user| {
        let primary = user.primary();
        let output = user.dlock(&["status"]);
        assert_eq!(code(&output), 0, "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains("127.0.0.1:21616"));
        let socket = user.at("run/dlock/21616.sock");
        let mode = |path: &Path| path.symlink_metadata().unwrap().mode() & 0o777;
        assert_eq!((mode(&socket), mode(socket.parent().unwrap())), (0o600, 0o700));
        if !rustix::process::geteuid().is_root() || std::env::var_os("SUDO_UID").is_some() {
            return;
        }
        let dlock = for_all(user);
        let nobodys =
            user.command(dlock).args(["status", "--socket"]).arg(&socket).uid(NOBODY).output();
        if let Ok(output) = nobodys {
            assert_eq!(code(&output), 69, "{}", text(&output.stdout));
            assert!(text(&output.stderr).contains("permission denied"), "{}", text(&output.stderr));
        }
        primary.end(Signal::TERM);
        let output = user.dlock(&["status"]);
        assert_eq!(code(&output), 69);
        assert!(text(&output.stderr).contains("no primary"), "{}", text(&output.stderr));
    });
}

/// Other users of the host must use tcp.
#[test]
fn who_may_map() {
    unshared("who_may_map", |user| {
        let _primary = user.primary();
        let exec = |command: &mut Command, fabric: &str| {
            command.args(["exec", "--fabric", fabric, "theirs", "--wait", "5", "--", "true"]);
            code(&command.output().unwrap())
        };
        assert_eq!(exec(&mut user.command(DLOCK), "shm"), 0);
        let dlock = for_all(user);
        if user.command(&dlock).arg("--version").uid(NOBODY).output().is_err() {
            println!("skipped for another user: only root can run a program as one");
            return;
        }
        assert_eq!(exec(user.command(&dlock).uid(NOBODY), "auto"), 0);
        assert_ne!(exec(user.command(&dlock).uid(NOBODY), "shm"), 0, "a stranger has the memory");
    });
}

#[test]
fn who_may_connect() {
    unshared("who_may_connect", |user| {
        let _primary = user.primary(); // started without an address, so it uses 127.0.0.1
        assert!(TcpStream::connect("127.0.0.1:21616").is_ok());
        assert!(TcpStream::connect("127.0.0.2:21616").is_err());
        let output = user.dlockd(&["--listen=0.0.0.0"]).output().unwrap();
        assert_eq!(code(&output), 2);
        assert!(text(&output.stderr).contains("without TLS"), "{}", text(&output.stderr));
    });
}
