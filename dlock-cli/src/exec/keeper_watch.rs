// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keeper's watch over COMMAND. It makes no call that waits for the primary.
//!
//! ```text
//!   reader:  standard input ─ "ended" ─▶ release
//!                           └ its end: the supervisor is dead ─▶ kill COMMAND ─▶ release
//!   timer:   kill_ns of the last lease ─▶ kill COMMAND: the supervisor should have done it, but
//!                                         may be stopped
//! ```

use std::fs::File;
use std::io::{self, BufRead};
use std::os::fd::OwnedFd;
use std::process;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::process::{getpid, pidfd_open, pidfd_send_signal, Pid, PidfdFlags, Signal};
use rustix::stdio::{dup2_stderr, dup2_stdout};
use rustix::time::Timespec;

use super::keeper::Event;
use super::processes::{self, Processes};
use super::times::{self, StopTimes, Timer};
use super::{lease, ENDED, RELEASE_MAX, STARTED};
use crate::args::Keeper;
use crate::failure;

/// The time between two checks of processes that got SIGKILL.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// The most such checks of a COMMAND whose supervisor is dead.
const LOOKS_MAX: usize = 1_000;

/// A supervisor that waits for the keeper kills it at [`RELEASE_MAX`], and says so. If the
/// supervisor does not wait, the keeper ends itself this much later.
const BOUND_LEEWAY: Duration = Duration::from_millis(500);

/// The state of the lease, for the threads of the keeper.
pub struct Watch {
    lease: Duration,
    /// When to stop COMMAND; `None`: COMMAND cannot have been started.
    times: Mutex<Option<StopTimes>>,
    timer: Timer,
}

impl Watch {
    /// A watch without threads.
    pub fn new(lease: Duration) -> io::Result<Self> {
        Ok(Self { lease, times: Mutex::new(None), timer: Timer::new()? })
    }

    /// Starts the threads. The receiver gets an event when the lock is to be released.
    pub fn start(keeper: &Keeper) -> io::Result<(Arc<Self>, Sender<Event>, Receiver<Event>)> {
        let exec = &keeper.exec;
        let watch = Arc::new(Self::new(lease(exec))?);
        let root = Pid::from_raw(keeper.supervisor);
        let root = root.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let processes = Processes { root, keeper: getpid() };
        let (tells, events) = mpsc::channel();
        let release = tells.clone();
        let reader = Arc::clone(&watch);
        thread::Builder::new().name("supervisor".into()).spawn(move || reader.read(&release))?;
        if exec.on_lost.stops() {
            let timer = Arc::clone(&watch);
            thread::Builder::new().name("timer".into()).spawn(move || timer.run(processes))?;
        }
        Ok((watch, tells, events))
    }

    /// Sets the end of the lease.
    pub fn until(&self, end_ns: u64) {
        self.set(&mut self.times.lock(), StopTimes::of(end_ns, self.lease));
    }

    /// Whether COMMAND may have been started, and may run.
    pub fn may_run(&self) -> bool {
        self.times.lock().is_some()
    }

    /// Records that COMMAND is not started for the present hold.
    pub fn is_not_started(&self) {
        *self.times.lock() = None;
    }

    /// Records that the lock may be another client's.
    pub fn lost(&self) {
        self.until(times::now_ns());
    }

    fn set(&self, times: &mut Option<StopTimes>, new: StopTimes) {
        *times = Some(new);
        if let Err(error) = self.timer.set(new.kill_ns) {
            // without the timer there is still the supervisor, which watches the lease, too
            log::error!("the lease cannot be watched: {error}");
        }
    }

    /// Kills COMMAND when it is time, and repeats that until it is gone: it may be just starting.
    fn run(&self, processes: Processes) {
        loop {
            let mut fds = [PollFd::new(&self.timer, PollFlags::IN)];
            // a wait that a signal interrupts is handled like the others: the clock is read below
            let _ = poll(&mut fds, None);
            let times = self.times.lock();
            let now_ns = times::now_ns();
            let known = *times;
            let is_due = known.is_some_and(|known| now_ns >= known.kill_ns);
            let next_ns = match known {
                None => u64::MAX, // no time is set: sleeps until one is
                Some(_) if is_due => now_ns + times::ns(LOOK_AGAIN),
                Some(known) => known.kill_ns, // the lease was extended, so COMMAND has more time
            };
            if let Err(error) = self.timer.set(next_ns) {
                log::error!("COMMAND cannot be watched: {error}");
            }
            drop(times);
            if is_due {
                let _ = processes.kill(); // a failure is tried again in the next round
            }
        }
    }

    fn read(&self, release: &Sender<Event>) {
        let mut command: Option<(OwnedFd, Option<Pid>)> = None;
        let mut lines = io::stdin().lock().lines();
        while let Some(Ok(line)) = lines.next() {
            let mut words = line.split(' ');
            match words.next() {
                Some(ENDED) => {
                    *self.times.lock() = None; // all processes of COMMAND have ended
                    let _ = release.send(Event::Ended); // without a receiver the hold is gone
                    return end_in_time(lines);
                }
                Some(STARTED) => {
                    let mut pid = || Pid::from_raw(words.next()?.parse().ok()?);
                    let (pid, group) = (pid(), pid());
                    let opened = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty()));
                    command = opened.and_then(Result::ok).map(|pidfd| (pidfd, group));
                }
                _ => log::warn!("not understood: {line}"),
            }
        }
        // The supervisor is dead. COMMAND is dead, too, or will be in a moment.
        let Some((pidfd, group)) = command else { process::exit(failure::FAILED.into()) };
        if !kill_orphans(&pidfd, group) {
            log::error!("COMMAND cannot be ended: its lock is left to its lease");
            process::exit(failure::FAILED.into());
        }
        *self.times.lock() = None;
        let _ = release.send(Event::Ended); // without a receiver the hold is gone
    }
}

/// Ends this process within a limit, after it was told to end. Once the supervisor has gone nothing
/// more is printed: a reader of the output waits for every process that may write there.
fn end_in_time(rest: impl Iterator) {
    let bound = || {
        thread::sleep(RELEASE_MAX + BOUND_LEEWAY);
        process::exit(failure::NOT_GOT.into());
    };
    if thread::Builder::new().name("bound".into()).spawn(bound).is_ok() {
        rest.for_each(drop);
    }
    match File::options().write(true).open("/dev/null") {
        Ok(null) => {
            // two open descriptors are duplicated, which cannot fail
            let _ = dup2_stdout(&null).and_then(|()| dup2_stderr(&null));
        }
        Err(error) => log::info!("the output stays open: /dev/null: {error}"),
    }
}

/// Kills COMMAND and its process group; returns whether they are dead.
fn kill_orphans(pidfd: &OwnedFd, group: Option<Pid>) -> bool {
    let pause = Timespec { tv_sec: 0, tv_nsec: LOOK_AGAIN.subsec_nanos().into() };
    for _ in 0..LOOKS_MAX {
        // the process may have ended, which is what is wanted
        let _ = pidfd_send_signal(pidfd, Signal::KILL);
        let is_empty = group.is_none_or(processes::kill_group);
        let is_dead = matches!(
            poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&pause)),
            Ok(count) if count > 0
        );
        if is_dead && is_empty {
            return true;
        }
        if is_dead {
            thread::sleep(LOOK_AGAIN); // `poll` returned at once, because COMMAND is dead
        }
    }
    false
}
