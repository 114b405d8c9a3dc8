// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlock exec`: a command runs while this process holds a lock for it.
//!
//! ```text
//!   acquire ──▶ start the command ──▶ events ──▶ release
//!                 waiter thread: the command ended     ┐
//!                 signal thread: SIGINT, TERM, HUP     ├─▶ one channel ─▶ watch()
//!                 keeper thread: extends, or: lost     ┘
//! ```

use std::io::{ErrorKind, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use dlock_client::{AtomicLock, Client, Error, FairLock, Guard, Mode, RwGuard, RwLock};
use dlock_core::limits::DESC_LEN_MAX;
use rustix::process::{kill_process, Pid, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::{Exec, Hold, OnLost, Type};
use crate::connect;
use crate::failure::{self, Failure};

/// From when on a wait is told to the person.
const QUIET: Duration = Duration::from_secs(2);
/// One wait where no end was given; another follows.
const LONG: Duration = Duration::from_secs(3_600);
/// How long the primary may take to answer that it is there.
const ALIVE: Duration = Duration::from_secs(5);
/// From SIGTERM to SIGKILL for a command whose lock was lost.
const KILL_AFTER: Duration = Duration::from_secs(5);
/// Extensions are sent this many times per lease.
const EXTENDS_PER_LEASE: u32 = 3;
/// Pause between attempts to reach a primary that went away.
const RECONNECT_EVERY: Duration = Duration::from_secs(1);

enum Event {
    Ended(std::io::Result<ExitStatus>),
    Signal(i32),
    Lost(Error),
}

/// A lock of any kind.
enum Lock {
    Atomic(AtomicLock),
    Rw(RwLock),
    Fair(FairLock),
}

/// A hold on it: with a lease, or for as long as the session lives.
enum Held<'a> {
    Lease(Guard<'a>),
    Session(RwGuard<'a>),
}

/// Runs `dlock exec`; the exit code.
pub fn run(exec: &Exec) -> Result<u8, Failure> {
    check(exec)?;
    let ip = exec.place.address.resolve()?.ip().to_string();
    let client = connect::client(&exec.place)?;
    let lock = find(&client, exec)?;
    let result = acquire(&lock, exec).and_then(|held| run_command(&client, &ip, held, exec));
    drop(lock);
    if let Err(error) = client.leave() {
        log::info!("the primary was not told that this client leaves: {error}");
    }
    result
}

fn check(exec: &Exec) -> Result<(), Failure> {
    let length = exec.name.len();
    if length == 0 || length > DESC_LEN_MAX {
        let cause = format!("the name of the lock has {length} bytes");
        return Err(Failure::new(failure::USAGE, cause, format!("1 to {DESC_LEN_MAX} bytes")));
    }
    if exec.kind == Type::Atomic && exec.mode == Hold::Shared {
        let cause = "an atomic lock has no readers";
        return Err(Failure::new(failure::USAGE, cause, "--type rw or --type fair"));
    }
    Ok(())
}

fn find(client: &Client, exec: &Exec) -> Result<Lock, Failure> {
    let name = exec.name.as_bytes();
    let lock = match exec.kind {
        Type::Atomic => client.atomic_lock(name).map(Lock::Atomic),
        Type::Rw => client.rw_lock(name).map(Lock::Rw),
        Type::Fair => client.fair_lock(name).map(Lock::Fair),
    };
    lock.map_err(|error| {
        let cause = format!("lock '{}': {error}", exec.name.to_string_lossy());
        let remedy = match error {
            Error::Other(_) => "a lock of this name and another type exists: say its --type",
            _ => "dlock locks and dlock clients tell how the primary is",
        };
        Failure::new(failure::UNAVAILABLE, cause, remedy)
    })
}

fn acquire<'a>(lock: &'a Lock, exec: &Exec) -> Result<Held<'a>, Failure> {
    let name = exec.name.to_string_lossy();
    let result = thread::scope(|scope| {
        let (done, waiting) = mpsc::channel::<()>();
        let name = &name;
        scope.spawn(move || {
            if waiting.recv_timeout(QUIET) == Err(RecvTimeoutError::Timeout) {
                eprintln!("dlock: waiting for the lock '{name}', which somebody else holds");
            }
        });
        let result = wait_for(lock, exec);
        drop(done);
        result
    });
    result.map_err(|error| match error {
        Error::Held | Error::TimedOut => {
            let cause = format!("lock '{name}': {error}");
            let remedy = "wait longer (--wait), or see who holds it: dlock locks";
            Failure::new(failure::NOT_GOT, cause, remedy)
        }
        error => {
            let cause = format!("lock '{name}': {error}");
            Failure::new(failure::UNAVAILABLE, cause, "look whether the primary runs: dlock status")
        }
    })
}

/// Waits in the primary's queue, once, or again and again if no end was given.
fn wait_for<'a>(lock: &'a Lock, exec: &Exec) -> Result<Held<'a>, Error> {
    let limit = exec.wait.map(|s| Duration::from_secs(u64::from(s)));
    loop {
        match lock.acquire(exec.mode.into(), lease(exec), limit.unwrap_or(LONG)) {
            Err(Error::TimedOut) if limit.is_none() => {}
            result => return result,
        }
    }
}

fn lease(exec: &Exec) -> Duration {
    Duration::from_secs(u64::from(exec.lease))
}

impl Lock {
    fn acquire(&self, mode: Mode, lease: Duration, wait: Duration) -> Result<Held<'_>, Error> {
        let once = wait.is_zero();
        match (self, mode) {
            (Lock::Atomic(lock), _) if once => lock.try_lock(lease).map(Held::Lease),
            (Lock::Atomic(lock), _) => lock.lock_timeout(lease, wait).map(Held::Lease),
            (Lock::Fair(lock), _) if once => lock.try_lock(mode, lease).map(Held::Lease),
            (Lock::Fair(lock), _) => lock.lock_timeout(mode, lease, wait).map(Held::Lease),
            (Lock::Rw(lock), Mode::Shared) if once => lock.try_read().map(Held::Session),
            (Lock::Rw(lock), Mode::Shared) => lock.read_timeout(wait).map(Held::Session),
            (Lock::Rw(lock), Mode::Exclusive) if once => lock.try_write().map(Held::Session),
            (Lock::Rw(lock), Mode::Exclusive) => lock.write_timeout(wait).map(Held::Session),
        }
    }
}

impl Held<'_> {
    /// Extends the lease, after making sure that the primary is still there: the words in
    /// shared memory can be changed without it, but a successor would not know of it.
    fn extend(&mut self, client: &Client, lease: Duration) -> Result<(), Error> {
        client.heartbeat(ALIVE)?;
        match self {
            Held::Lease(guard) => guard.extend(lease),
            Held::Session(_) => Ok(()),
        }
    }

    fn release(self) -> Result<(), Error> {
        match self {
            Held::Lease(guard) => guard.unlock(),
            Held::Session(guard) => guard.unlock(),
        }
    }
}

fn run_command(client: &Client, ip: &str, held: Held<'_>, exec: &Exec) -> Result<u8, Failure> {
    // Before the start: a signal that comes right after it must not end this process.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(Failure::plain)?;
    let child = start(exec)?;
    let pid = Pid::from_child(&child);
    let (events, inbox) = mpsc::channel();
    let (stop, stopped) = mpsc::channel();
    let handle = signals.handle();
    thread::scope(|scope| {
        let (ended, signal, lost) = (events.clone(), events.clone(), events);
        scope.spawn(move || wait_for_end(child, &ended));
        scope.spawn(move || {
            for number in signals.forever() {
                let _ = signal.send(Event::Signal(number)); // fails only after the end
            }
        });
        scope.spawn(move || keep(client, ip, held, lease(exec), &stopped, &lost));
        let result = watch(&inbox, pid, exec.on_lost);
        drop(stop);
        handle.close();
        result
    })
}

fn start(exec: &Exec) -> Result<Child, Failure> {
    let (program, arguments) = exec.command.split_first().expect("clap demands a command");
    Command::new(program).args(arguments).spawn().map_err(|error| {
        let code = match error.kind() {
            ErrorKind::NotFound => failure::NOT_FOUND,
            _ => failure::NOT_EXECUTABLE,
        };
        let cause = format!("{}: {error}", program.to_string_lossy());
        Failure::new(code, cause, "check the command after `--`, its path and permissions")
    })
}

fn wait_for_end(mut child: Child, events: &Sender<Event>) {
    let _ = events.send(Event::Ended(child.wait())); // the receiver outlives this thread
}

/// Comes back to the primary, or to its successor, and tells it of the lock if it wants to know.
fn come_back(client: &Client, ip: &str) -> Result<(), Error> {
    client.reconnect(ip)?;
    // A primary that is not in recovery refuses these two, and knows the lock.
    let claimed = client.instance().update_all_locks();
    let done = client.instance().reinit_done();
    log::debug!("back at the primary: claims: {claimed}; done: {done}");
    Ok(())
}

/// Extends the lock until told to stop, then releases it; reports when it is lost.
fn keep(
    client: &Client,
    ip: &str,
    mut held: Held<'_>,
    lease: Duration,
    stop: &Receiver<()>,
    events: &Sender<Event>,
) {
    let mut good_until = Instant::now() + lease;
    let mut pause = lease / EXTENDS_PER_LEASE;
    while stop.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let asked = Instant::now();
        match held.extend(client, lease) {
            Ok(()) => {
                good_until = asked + lease;
                pause = lease / EXTENDS_PER_LEASE;
            }
            // The primary is away: it may come back before the lease is over.
            Err(Error::NotReady | Error::Disconnected) if Instant::now() < good_until => {
                match come_back(client, ip) {
                    Ok(()) => log::info!("the primary is back"),
                    Err(error) => log::info!("the primary is away: {error}"),
                }
                let left = good_until.saturating_duration_since(Instant::now());
                pause = RECONNECT_EVERY.min(left);
            }
            Err(error) => {
                let _ = events.send(Event::Lost(error)); // the receiver outlives this thread
                let _ = stop.recv(); // the command is still there: its end is waited for
                break;
            }
        }
    }
    if let Err(error) = held.release() {
        log::warn!("the lock could not be released: {error}");
    }
}

/// Passes signals on until the command has ended; the exit code.
fn watch(events: &Receiver<Event>, pid: Pid, on_lost: OnLost) -> Result<u8, Failure> {
    let mut lost = false;
    let mut kill_at: Option<Instant> = None;
    loop {
        let wait = kill_at.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
        match events.recv_timeout(wait) {
            Ok(Event::Ended(status)) => {
                let code = exit_code(status.map_err(Failure::plain)?);
                // A warning is no failure of the command, but it must not look like success.
                let killed = lost && on_lost == OnLost::Kill;
                return Ok(if killed || (lost && code == 0) { failure::LOST } else { code });
            }
            Ok(Event::Signal(number)) => pass_on(pid, number),
            Ok(Event::Lost(error)) => {
                lost = true;
                eprintln!("dlock: the lock is lost while the command runs: {error}");
                if on_lost == OnLost::Kill {
                    signal(pid, Signal::TERM);
                    kill_at = Some(Instant::now() + KILL_AFTER);
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                signal(pid, Signal::KILL);
                kill_at = None;
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::plain("the command cannot be watched any more"));
            }
        }
    }
}

fn pass_on(pid: Pid, number: i32) {
    match number {
        // The terminal has sent it to the command already.
        SIGINT if std::io::stdin().is_terminal() => {}
        SIGINT => signal(pid, Signal::INT),
        SIGHUP => signal(pid, Signal::HUP),
        _ => signal(pid, Signal::TERM),
    }
}

fn signal(pid: Pid, signal: Signal) {
    let _ = kill_process(pid, signal); // it may have ended in the meantime
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
