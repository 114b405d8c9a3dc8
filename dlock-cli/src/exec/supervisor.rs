// SPDX-License-Identifier: MIT OR Apache-2.0
//! The visible process of `dlock exec`: starts the keeper, then COMMAND; passes signals on; stops
//! COMMAND before the end of the lease that the keeper reported last, also if the keeper has ended.
//!
//! ```text
//!   wait for the lock ─▶ start COMMAND ─▶ watch ─ COMMAND ended ─▶ let the keeper release ─▶ exit
//!     keeper ended: its code     │          └ term_ns ─▶ SIGTERM ─ kill_ns, lost ─▶ SIGKILL ──┘
//!     lost, or too late: 75 ◀────┘
//! ```
//! It sleeps in one `poll`: on the keeper's standard output, on signals and on the timer.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dlock_fabric::os::fds::process_stat;
use dlock_fabric::os::signals::{is_ignored, let_through};
use rustix::event::{poll, PollFd, PollFlags};
use rustix::io::{ioctl_fionbio, Errno};
use rustix::process::{getpid, kill_process, set_child_subreaper, wait, Pid, Signal, WaitOptions};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use super::processes::Processes;
use super::start::too_late;
use super::times::{self, StopTimes, Timer};
use super::{lease, ENDED, GIVEN_UP, LOST, RELEASE_MAX, STARTED, TOKEN, UNTIL};
use crate::args::{Exec, OnLost};
use crate::failure::{self, Failure};
use crate::logging;

/// The time between two checks of processes that got SIGKILL.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How long after the lease the processes that COMMAND left behind are still killed.
const SWEEP_MAX: Duration = Duration::from_secs(5);
/// How long all answers of a primary to one attempt may take (`--wait 0`).
const ATTEMPT_MAX: Duration = Duration::from_secs(5);
/// How much longer than `--wait` the keeper may take to report that it has not got the lock. After
/// that it is left alone: it undoes a grant under way within [`RELEASE_MAX`].
const WAIT_LEEWAY: Duration = Duration::from_secs(1);
/// The keeper's lines are shorter than this.
const LINE_MAX: usize = 4_096;
/// The signals that are passed on to COMMAND.
const PASSED_ON: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Runs `dlock exec`; returns the exit code.
pub fn run(exec: &Exec) -> Result<u8, Failure> {
    set_child_subreaper(Some(getpid()))
        .map_err(|error| Failure::of_call("prctl", "COMMAND cannot be watched", error))?;
    let mut wakes = Wakes::new()?;
    wakes.watch(SIGCHLD)?;
    let mut supervisor = Supervisor::new(exec, wakes)?;
    if let Some(code) = supervisor.await_lock()? {
        return Ok(code);
    }
    let code = supervisor.start().and_then(|()| supervisor.watch());
    supervisor.dismiss_keeper(None);
    if let OnLost::Run(command) = &exec.on_lost {
        supervisor.run_on_lost(command);
    }
    code
}

fn no_signals(call: &str) -> impl FnOnce(io::Error) -> Failure + '_ {
    move |error| Failure::of_call(call, "cannot wait for signals", error)
}

/// The signals that came, and a socket by which they wake the poll.
struct Wakes {
    inner: UnixStream,
    outer: UnixStream,
    came: Vec<(i32, Arc<AtomicBool>)>,
}

impl Wakes {
    fn new() -> Result<Self, Failure> {
        let (inner, outer) = UnixStream::pair().map_err(no_signals("socketpair"))?;
        inner.set_nonblocking(true).map_err(no_signals("ioctl"))?;
        Ok(Self { inner, outer, came: Vec::new() })
    }

    fn watch(&mut self, number: i32) -> Result<(), Failure> {
        let came = Arc::new(AtomicBool::new(false));
        // the flag is registered before the wake-up, so that it is set when the poll wakes up
        flag::register(number, Arc::clone(&came)).map_err(no_signals("sigaction"))?;
        let outer = self.outer.try_clone().map_err(no_signals("fcntl"))?;
        low_level::pipe::register(number, outer).map_err(no_signals("sigaction or fcntl"))?;
        let_through(number);
        self.came.push((number, came));
        Ok(())
    }

    /// The signals that came since the last call.
    fn take(&mut self) -> Vec<i32> {
        let mut bytes = [0; 64];
        while matches!(self.inner.read(&mut bytes), Ok(count) if count > 0) {}
        let came = self.came.iter().filter(|(_, came)| came.swap(false, Ordering::SeqCst));
        came.map(|(number, _)| *number).collect()
    }
}

/// The keeper's process, and the state that it has reported.
struct Keeper {
    pid: Pid,
    input: Option<ChildStdin>,
    output: ChildStdout,
    /// The beginning of a line that has not come completely.
    partial: Vec<u8>,
    /// Whether the keeper has closed its output: it has ended, or is about to.
    is_silent: bool,
    status: Option<ExitStatus>,
}

struct Supervisor<'a> {
    exec: &'a Exec,
    keeper: Keeper,
    wakes: Wakes,
    timer: Timer,
    /// When to stop COMMAND, by the last lease that the keeper reported.
    times: Option<StopTimes>,
    /// The fencing token of the hold.
    token: Option<u64>,
    /// Why the lock is lost; `None`: it is not.
    lost: Option<String>,
    /// The reason of the loss, as it was printed.
    reason: Option<String>,
    /// Why the keeper has given the lock up, which lasts until the end of COMMAND or the time that
    /// the keeper has said; `None`: it has not.
    given_up: Option<String>,
    command: Option<Pid>,
    status: Option<ExitStatus>,
    /// Whether the keeper, the process that holds the lock for this one, has ended or is about to.
    /// Then the primary may free the lock at once, before the lease is over.
    is_alone: bool,
    /// Whether COMMAND has its own process group. On a terminal it has none, to keep the job
    /// control.
    has_group: bool,
    /// Signals that came and are to be passed on.
    signals: Vec<i32>,
    /// Whether the system has refused to wait, which was logged, so that the supervisor polls.
    is_looking: bool,
}

impl<'a> Supervisor<'a> {
    fn new(exec: &'a Exec, wakes: Wakes) -> Result<Self, Failure> {
        let no_timer = |error| Failure::of_call("timerfd_create", "cannot watch the lease", error);
        let timer = Timer::new().map_err(no_timer)?;
        Ok(Self {
            exec,
            keeper: Keeper::start()?,
            wakes,
            timer,
            times: None,
            token: None,
            lost: None,
            reason: None,
            given_up: None,
            is_alone: false,
            command: None,
            status: None,
            has_group: File::open("/dev/tty").is_err(),
            signals: Vec::new(),
            is_looking: false,
        })
    }

    /// Waits until the lock is held for long enough to start COMMAND, or will not be; then returns
    /// an exit code or a failure. Waits at most `--wait` and [`WAIT_LEEWAY`], even while the keeper
    /// waits for a host name, a connection, a handshake or an answer.
    fn await_lock(&mut self) -> Result<Option<u8>, Failure> {
        let until_ns = self.exec.wait.map(|seconds| {
            let wait = match seconds {
                0 => ATTEMPT_MAX,
                seconds => Duration::from_secs(u64::from(seconds)),
            };
            times::now_ns() + times::ns(wait + WAIT_LEEWAY)
        });
        loop {
            if let Some(status) = self.keeper.status {
                return match exit_code(status) {
                    failure::OK => Err(too_late()),
                    // the keeper has printed why, so only its exit code is passed on
                    code => Ok(Some(code)),
                };
            }
            if (self.lost.is_some() || self.given_up.is_some()) && !self.is_alone {
                self.dismiss_keeper(until_ns);
                return Err(too_late());
            }
            // with `warn` COMMAND is not stopped, so no time has to be left for that
            let latest = |times: StopTimes| match self.exec.on_lost.stops() {
                true => times.term_ns,
                false => times.end_ns,
            };
            let has_time = self.times.is_some_and(|times| times::now_ns() < latest(times));
            if has_time && !self.is_alone {
                return Ok(None);
            }
            if until_ns.is_some_and(|until_ns| times::now_ns() >= until_ns) {
                let stopped = self.stopped_keeper();
                self.dismiss_keeper(until_ns);
                let name = self.exec.name.to_string_lossy();
                let (cause, remedy) = match &stopped {
                    Some(stopped) => (stopped.as_str(), "leave that process alone"),
                    None => ("the primary has not answered in time", failure::SILENT),
                };
                let cause = format!("lock '{name}': {cause}");
                return Err(Failure::new(failure::NOT_GOT, cause, remedy));
            }
            self.next_event(until_ns);
        }
    }

    fn start(&mut self) -> Result<(), Failure> {
        // A signal that this process ignores (nohup, in the background) stays ignored in COMMAND,
        // too.
        for number in PASSED_ON.into_iter().filter(|number| !is_ignored(*number)) {
            // Before the start: a signal that comes right after it must not end this process.
            self.wakes.watch(number)?;
        }
        let before_ns = match (self.times, self.exec.on_lost.stops()) {
            (Some(times), true) => times.term_ns,
            (Some(times), false) => times.end_ns,
            (None, _) => return Err(too_late()),
        };
        let mut command = own_program()?;
        command.args(["role", "start"]);
        command.arg(format!("--parent={}", getpid().as_raw_nonzero()));
        command.arg(format!("--before={before_ns}"));
        command.arg("--").args(&self.exec.command);
        self.tells_command(&mut command);
        if self.has_group {
            command.process_group(0);
        }
        let child = command
            .spawn()
            .map_err(|error| Failure::not_started("COMMAND (pipe2, fork)", &error))?;
        // the child is reaped in `next_event`, like all processes, and not by the handle
        let pid = Pid::from_child(&child);
        self.command = Some(pid);
        let group = if self.has_group { pid.as_raw_nonzero().get() } else { 0 };
        self.keeper.tell(&format!("{STARTED} {} {group}", pid.as_raw_nonzero()));
        Ok(())
    }

    /// Sets the environment variables that tell COMMAND about the lock.
    fn tells_command(&self, command: &mut Command) {
        command.env("DLOCK_NAME", &self.exec.name);
        if let Some(token) = self.token {
            command.env("DLOCK_TOKEN", token.to_string());
        }
        if let Some(times) = self.times {
            command.env("DLOCK_UNTIL", times::on_wall_clock_s(times.end_ns).to_string());
        }
    }

    /// Watches COMMAND until it has ended; returns the exit code.
    fn watch(&mut self) -> Result<u8, Failure> {
        loop {
            self.pass_on();
            let now_ns = times::now_ns();
            let times = self.times.ok_or_else(too_late)?;
            if let (Some(status), None) = (self.status, &self.lost) {
                if now_ns < times.end_ns {
                    return Ok(exit_code(status));
                }
            }
            let until_ns = match self.exec.on_lost.stops() {
                true => times.term_ns,
                false => times.end_ns,
            };
            if self.lost.is_some() || now_ns >= until_ns {
                return match self.exec.on_lost.stops() {
                    true => self.stop(times.brought_forward(now_ns, lease(self.exec))),
                    false => self.run_on(),
                };
            }
            self.next_event(Some(until_ns));
        }
    }

    /// Stops COMMAND, even if the primary answers meanwhile. Prints that only when COMMAND is dead:
    /// until then nothing here may block.
    fn stop(&mut self, times: StopTimes) -> Result<u8, Failure> {
        if self.lost.is_none() {
            self.processes().signal(Signal::TERM);
            // a stopped process handles SIGTERM only once it is continued
            self.processes().signal(Signal::CONT);
        }
        loop {
            let now_ns = times::now_ns();
            // another client may have a lock that is lost, so there is no time to lose
            let has_ended = self.lost.is_some() || self.status.is_some();
            let is_due = has_ended || now_ns >= times.kill_ns;
            if is_due && self.kill(times) {
                self.tell_loss("COMMAND was stopped");
                return Ok(failure::LOST);
            }
            let again_ns = now_ns + times::ns(LOOK_AGAIN);
            self.next_event(Some(if is_due { again_ns } else { times.kill_ns }));
            self.pass_on();
        }
    }

    /// Lets COMMAND run without the lock.
    fn run_on(&mut self) -> Result<u8, Failure> {
        self.tell_loss("COMMAND runs on without it");
        loop {
            if let Some(status) = self.status {
                // the loss is no failure of COMMAND, but its exit code must not look like success
                let code = exit_code(status);
                return Ok(if code == failure::OK { failure::LOST } else { code });
            }
            self.next_event(None);
            self.pass_on();
        }
    }

    fn tell_loss(&mut self, result: &str) {
        let stopped = self.stopped_keeper();
        let told = self.given_up.as_deref().or(self.lost.as_deref());
        let cause = told.or(stopped.as_deref());
        let cause = cause.unwrap_or("the primary did not extend its lease in time");
        logging::say(format_args!("the lock is lost ({cause}): {result}"));
        self.reason = Some(cause.to_string());
    }

    /// Runs the command of `--on-lost` in place of this process, so that it gets the signals as any
    /// program does. Returns only if that fails.
    fn run_on_lost(&self, command: &str) {
        let Some(reason) = &self.reason else { return };
        let script = format!("sh -c \"$DLOCK_ON_LOST\"; exit {}", failure::LOST);
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).env("DLOCK_ON_LOST", command).env("DLOCK_REASON", reason);
        self.tells_command(&mut shell);
        logging::say(format_args!("--on-lost: sh: {}", shell.exec()));
    }

    /// A message that the keeper, which holds the lock, is stopped, if it is. Then the primary is
    /// not the cause of the missing answers.
    fn stopped_keeper(&self) -> Option<String> {
        let pid = self.keeper.pid.as_raw_nonzero().get();
        let is_stopped = process_stat(pid).is_some_and(|stat| stat.stopped);
        is_stopped.then(|| format!("its keeper, process {pid} of `dlock`, was stopped by a signal"))
    }

    /// Kills COMMAND and what it has started; returns whether all of it has ended, or cannot be
    /// ended.
    fn kill(&self, times: StopTimes) -> bool {
        if let (Some(pid), None) = (self.command, self.status) {
            // the process was not waited for, so the number is still its own
            let _ = kill_process(pid, Signal::KILL);
        }
        let is_dead = self.processes().kill();
        let gives_up = times::now_ns() >= times.end_ns.saturating_add(times::ns(SWEEP_MAX));
        self.status.is_some() && (is_dead || gives_up)
    }

    fn processes(&self) -> Processes {
        Processes { root: getpid(), keeper: self.keeper.pid }
    }

    /// Passes the signals that came on to COMMAND.
    fn pass_on(&mut self) {
        for number in std::mem::take(&mut self.signals) {
            let (Some(pid), None) = (self.command, self.status) else { continue };
            let signal = match number {
                // The terminal has sent the signal to COMMAND already.
                SIGINT if !self.has_group && io::stdin().is_terminal() => continue,
                SIGINT => Signal::INT,
                SIGHUP => Signal::HUP,
                _ => Signal::TERM,
            };
            // the process was not waited for, so the number is still its own
            let _ = kill_process(pid, signal);
        }
    }

    /// Waits for an event, or until `until_ns`, and handles everything that has come. If the system
    /// refuses to wait, looks again and again: a COMMAND that runs with a lock must be watched.
    fn next_event(&mut self, until_ns: Option<u64>) {
        if let Err((call, error)) = self.sleep(until_ns) {
            if !std::mem::replace(&mut self.is_looking, true) {
                log::warn!("{call}: {error}: what happens is looked for every {LOOK_AGAIN:?}");
            }
            thread::sleep(LOOK_AGAIN);
        }
        for line in self.keeper.lines() {
            self.heard(&line);
        }
        if self.keeper.is_silent && self.command.is_none() {
            // the keeper has closed its output; if it still runs, it ends at the end of its input
            self.keeper.input = None;
        }
        let came = self.wakes.take();
        self.signals.extend(came.into_iter().filter(|number| *number != SIGCHLD));
        self.reap();
        self.is_alone = self.keeper.is_silent || self.keeper.status.is_some();
        if self.is_alone && self.lost.is_none() {
            self.lost = Some("the process that held it has ended".into());
        }
    }

    /// Sleeps until an event or `until_ns`; an error names the refused call.
    fn sleep(&self, until_ns: Option<u64>) -> Result<(), (&'static str, io::Error)> {
        let timer = self.timer.set(until_ns.unwrap_or(u64::MAX));
        timer.map_err(|error| ("timerfd_settime", error))?;
        let mut fds = vec![
            PollFd::new(&self.timer, PollFlags::IN),
            PollFd::new(&self.wakes.inner, PollFlags::IN),
        ];
        if !self.keeper.is_silent {
            fds.push(PollFd::new(&self.keeper.output, PollFlags::IN));
        }
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(("poll", error.into())),
        }
    }

    fn heard(&mut self, line: &str) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (number, why) = rest.split_once(' ').unwrap_or((rest, ""));
        match (word, number.parse::<u64>()) {
            (TOKEN, Ok(token)) => self.token = Some(token),
            (UNTIL, Ok(end_ns)) => self.times = Some(StopTimes::of(end_ns, lease(self.exec))),
            (GIVEN_UP, Ok(end_ns)) => {
                self.times = Some(StopTimes::of(end_ns, lease(self.exec)));
                self.given_up = Some(why.into());
            }
            (LOST, _) => self.lost = Some(rest.into()),
            _ => log::warn!("not understood: {line}"),
        }
    }

    /// Collects the processes that ended: COMMAND, the keeper, and what COMMAND left behind.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let status = ExitStatus::from_raw(status.as_raw());
            if Some(pid) == self.command {
                self.status = Some(status);
            } else if pid == self.keeper.pid {
                self.keeper.status = Some(status);
            }
        }
    }

    /// Has the keeper release the lock, and waits for its end. From `left_ns` on the supervisor
    /// leaves it alone: it may have a grant under way, which would stay if it were killed, and it
    /// ends by itself.
    fn dismiss_keeper(&mut self, left_ns: Option<u64>) {
        self.keeper.tell(ENDED);
        let until_ns = times::now_ns() + times::ns(RELEASE_MAX);
        while self.keeper.status.is_none() {
            if left_ns.is_some_and(|left_ns| times::now_ns() >= left_ns) {
                // The keeper may be stopped. Its process id is still its own, because it was not
                // waited for.
                let _ = kill_process(self.keeper.pid, Signal::CONT);
                return;
            }
            if times::now_ns() >= until_ns {
                log::warn!("the primary does not answer: the lock is free when its lease is over");
                // the keeper was not waited for, so the number is still its own
                let _ = kill_process(self.keeper.pid, Signal::KILL);
                let wait_ns = times::now_ns() + times::ns(LOOK_AGAIN);
                // sleeps until the keeper ends, or the time is over; the loop looks at its status
                // again
                self.next_event(Some(wait_ns));
            } else {
                self.next_event(Some(left_ns.map_or(until_ns, |left_ns| left_ns.min(until_ns))));
            }
        }
    }
}

impl Keeper {
    /// Starts the keeper with the command line of this process, in which its role replaces `exec`.
    /// Its process group keeps the signals of a terminal from it.
    fn start() -> Result<Self, Failure> {
        let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
        let at = arguments.iter().position(|word| word == "exec").unwrap_or(0);
        let own = getpid().as_raw_nonzero();
        let role = ["role", "keeper", &format!("--supervisor={own}")].map(OsString::from);
        arguments.splice(at..=at, role);
        let mut child: Child = own_program()?
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| {
                Failure::not_started("the keeper of the lock (pipe2, fork)", &error)
            })?;
        let output = child.stdout.take().expect("it is a pipe");
        let not_heard = |error| Failure::of_call("ioctl", "the keeper cannot be heard", error);
        ioctl_fionbio(&output, true).map_err(not_heard)?;
        Ok(Self {
            pid: Pid::from_child(&child),
            input: child.stdin.take(),
            output,
            partial: Vec::new(),
            is_silent: false,
            status: None,
        })
    }

    /// Sends a line to the keeper; without effect if that has ended.
    fn tell(&mut self, line: &str) {
        if let Some(input) = &mut self.input {
            // an error means that the keeper has ended, which the supervisor sees at its output
            let _ = writeln!(input, "{line}");
        }
    }

    /// The complete lines that the keeper has sent.
    fn lines(&mut self) -> Vec<String> {
        let mut bytes = [0; LINE_MAX];
        while !self.is_silent {
            match self.output.read(&mut bytes) {
                Ok(0) => self.is_silent = true,
                Ok(count) => self.partial.extend(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => {
                    log::error!("the process that holds the lock cannot be heard (read): {error}");
                    self.is_silent = true;
                }
            }
        }
        let Some(end) = self.partial.iter().rposition(|&byte| byte == b'\n') else {
            return Vec::new();
        };
        let whole: Vec<u8> = self.partial.drain(..=end).collect();
        String::from_utf8_lossy(&whole).lines().map(Into::into).collect()
    }
}

/// This program, by its path if that still exists.
pub fn own_program() -> Result<Command, Failure> {
    const LINK: &str = "/proc/self/exe";
    let path = std::env::current_exe().map_err(|error| {
        let cause =
            format!("this program is not found, to be started again (readlink of {LINK}): {error}");
        Failure::new(failure::FAILED, cause, "mount /proc, which `dlock exec` needs")
    })?;
    let mut command = Command::new(if path.exists() { path } else { LINK.into() });
    command.arg0("dlock");
    Ok(command)
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|s| i32::from(failure::SIGNALLED) + s));
    code.and_then(|c| u8::try_from(c).ok()).unwrap_or(failure::FAILED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_the_commands_and_signals_count_from_128() {
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
    }
}
