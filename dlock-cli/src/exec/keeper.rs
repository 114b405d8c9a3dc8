// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlock role keeper`: the process that has the session and holds the lock for `dlock exec`.
//!
//! ```text
//!   main thread:  connect ─▶ acquire ─▶ extend ─▶ "until …" ─▶ extend … ─▶ release, when told
//!                    ▲                     │                     └ "lost …" ─▶ ─┘
//!                    └─ the lease was over ┘
//! ```
//! All of these may wait for the primary. What must not, is in `keeper_watch.rs`.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use dlock_client::{AtomicLock, Client, Error, FairLock, Guard, Mode, RwGuard, RwLock};

use super::keeper_watch::Watch;
use super::times;
use super::{lease, LOST, UNTIL};
use crate::args::{Exec, Keeper, Type};
use crate::connect;
use crate::failure::{self, Failure};

/// From when on a wait is told to the person.
const QUIET: Duration = Duration::from_secs(2);
/// One wait where no end was given; another follows.
const LONG: Duration = Duration::from_secs(3_600);
/// How long the primary may take to answer that it is there.
const ALIVE: Duration = Duration::from_secs(5);
/// Pause between attempts to reach a primary that went away.
const RECONNECT_EVERY: Duration = Duration::from_secs(1);

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

/// Runs the keeper; the exit code, which says why there is no lock.
pub fn run(keeper: &Keeper) -> Result<u8, Failure> {
    let exec = &keeper.exec;
    let (watch, stop) = Watch::start(keeper).map_err(Failure::plain)?;
    let ip = exec.place.address.resolve()?.ip().to_string();
    let client = connect::client(&exec.place)?;
    let lock = find(&client, exec)?;
    let result = acquire(&lock, &client, exec).map(|(held, end_ns)| {
        watch.until(end_ns);
        keep(&client, &ip, held, exec, end_ns, &stop, &watch);
        failure::OK
    });
    drop(lock);
    if let Err(error) = client.leave() {
        log::info!("the primary was not told that this client leaves: {error}");
    }
    result
}

fn find(client: &Client, exec: &Exec) -> Result<Lock, Failure> {
    let name = OsStr::as_bytes(&exec.name);
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

/// The lock, and until when it is surely held.
fn acquire<'a>(lock: &'a Lock, client: &Client, exec: &Exec) -> Result<(Held<'a>, u64), Failure> {
    let name = exec.name.to_string_lossy();
    let result = thread::scope(|scope| {
        let (done, waiting) = mpsc::channel::<()>();
        let name = &name;
        scope.spawn(move || {
            if waiting.recv_timeout(QUIET) == Err(RecvTimeoutError::Timeout) {
                eprintln!("dlock: waiting for the lock '{name}', which another client holds");
            }
        });
        let result = wait_for(lock, client, exec);
        drop(done);
        result
    });
    result.map_err(|error| match error {
        Error::Held | Error::TimedOut | Error::Lost => {
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

/// Waits in the primary's queue, once, or again and again if no end was given. The answer may
/// have been on its way for longer than the lease: only an extension tells how long it lasts.
fn wait_for<'a>(lock: &'a Lock, client: &Client, exec: &Exec) -> Result<(Held<'a>, u64), Error> {
    let end = exec.wait.map(|s| Instant::now() + Duration::from_secs(u64::from(s)));
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let may_go_on = left.is_none_or(|left| !left.is_zero());
        match lock.acquire(exec.mode.into(), lease(exec), left.unwrap_or(LONG)) {
            Ok(mut held) => match held.extend(client, lease(exec)) {
                Ok(end_ns) => return Ok((held, end_ns)),
                Err(Error::Lost) if may_go_on => {}
                Err(error) => return Err(error),
            },
            Err(Error::TimedOut) if end.is_none() => {}
            Err(error) => return Err(error),
        }
    }
}

impl Lock {
    fn acquire(&self, mode: Mode, lease: Duration, wait: Duration) -> Result<Held<'_>, Error> {
        let once = wait.is_zero();
        match (self, mode) {
            (Lock::Atomic(lock), _) if once => lock.try_lock(lease).map(Held::Lease),
            (Lock::Atomic(lock), _) => lock.lock_timeout(lease, wait).map(Held::Lease),
            (Lock::Fair(lock), Mode::Shared) if once => lock.try_read(lease).map(Held::Lease),
            (Lock::Fair(lock), Mode::Shared) => lock.read_timeout(lease, wait).map(Held::Lease),
            (Lock::Fair(lock), Mode::Exclusive) if once => lock.try_write(lease).map(Held::Lease),
            (Lock::Fair(lock), Mode::Exclusive) => lock.write_timeout(lease, wait).map(Held::Lease),
            (Lock::Rw(lock), Mode::Shared) if once => lock.try_read().map(Held::Session),
            (Lock::Rw(lock), Mode::Shared) => lock.read_timeout(wait).map(Held::Session),
            (Lock::Rw(lock), Mode::Exclusive) if once => lock.try_write().map(Held::Session),
            (Lock::Rw(lock), Mode::Exclusive) => lock.write_timeout(wait).map(Held::Session),
        }
    }
}

impl Held<'_> {
    /// Extends the lease, after making sure that the primary is still there: the words in
    /// shared memory can be changed without it, but a successor would not know of it. Until when
    /// the lock is surely held, counted from before the request.
    ///
    /// A read-write lock has no lease. It is held as long as the primary hears of this client,
    /// and for its grace (`absent_grace_s`) after that.
    fn extend(&mut self, client: &Client, lease: Duration) -> Result<u64, Error> {
        let mut asked_ns = times::now_ns();
        client.heartbeat(ALIVE)?;
        if let Held::Lease(guard) = self {
            asked_ns = times::now_ns();
            guard.extend(lease)?;
        }
        Ok(times::lease_end_ns(asked_ns, lease))
    }

    fn release(self) -> Result<(), Error> {
        match self {
            Held::Lease(guard) => guard.unlock(),
            Held::Session(guard) => guard.unlock(),
        }
    }
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

/// Extends the lock until told to stop, then releases it; tells when it is lost.
fn keep(
    client: &Client,
    ip: &str,
    mut held: Held<'_>,
    exec: &Exec,
    mut end_ns: u64,
    stop: &Receiver<()>,
    watch: &Watch,
) {
    tell(UNTIL, end_ns);
    let mut pause = times::extend_every(lease(exec));
    while stop.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        match held.extend(client, lease(exec)) {
            Ok(later_ns) => {
                end_ns = later_ns;
                watch.until(end_ns);
                tell(UNTIL, end_ns);
                pause = times::extend_every(lease(exec));
            }
            // The primary is away: it may come back before the lease is over.
            Err(Error::NotReady | Error::Disconnected) if times::now_ns() < end_ns => {
                match come_back(client, ip) {
                    Ok(()) => log::info!("the primary is back"),
                    Err(error) => log::info!("the primary is away: {error}"),
                }
                pause = RECONNECT_EVERY.min(times::extend_every(lease(exec)));
            }
            Err(error) => {
                watch.lost();
                tell(LOST, error);
                let _ = stop.recv(); // COMMAND is still there: its end is waited for
                break;
            }
        }
    }
    if let Err(error) = held.release() {
        log::warn!("the lock could not be released: {error}");
    }
}

/// Tells the supervisor; one that is gone does not hear it.
fn tell(word: &str, what: impl std::fmt::Display) {
    let mut output = io::stdout().lock();
    let _ = writeln!(output, "{word} {what}").and_then(|()| output.flush());
}
