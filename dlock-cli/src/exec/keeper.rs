// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlock role keeper`: the process that has the session and holds the lock for `dlock exec`.
//!
//! ```text
//!   main thread:  connect ─▶ acquire ─▶ extend ─▶ "until …" ─▶ extend … ─▶ release, when told
//!                    ▲                     │                     └ "lost …" ─▶ ─┘
//!                    └─ the lease was over ┘
//! ```
//! No answer: it comes back to the primary or to its successor, tells that of the lock, and asks
//! whether it has survived, before it lets the successor go on without it.
//! All of these may wait for the primary. What must not, is in `keeper_watch.rs`.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use dlock_client::{AtomicLock, Client, Error, FairLock, Guard, Mode, RwGuard, RwLock};
use dlock_core::status::Status;

use super::keeper_watch::Watch;
use super::times;
use super::{lease, LOST, UNTIL};
use crate::args::{Exec, Keeper, OnLost, Type};
use crate::connect;
use crate::failure::{self, Failure};
use crate::logging;

/// From when on a wait is told to the person.
const QUIET: Duration = Duration::from_secs(2);
/// One wait where no end was given; another follows.
const LONG: Duration = Duration::from_secs(3_600);
/// How long the primary may take to answer that it is there.
const ALIVE: Duration = Duration::from_secs(5);
/// Pause between attempts to reach a primary that went away.
const RECONNECT_EVERY: Duration = Duration::from_secs(1);
/// How much longer than it may take to stop a COMMAND whose hold a recovery refused that waits.
const LATE_MAX: Duration = Duration::from_secs(5);

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

/// What became of the lock while the primary was away.
enum Back {
    /// It is as it was, as far as is known: extending it tells.
    Here,
    /// A successor has refused the claim. It gives the lock to no client before this one has sent
    /// `ReinitDone`.
    Refused,
}

/// Runs the keeper; the exit code, which says why there is no lock.
pub fn run(keeper: &Keeper) -> Result<u8, Failure> {
    let exec = &keeper.exec;
    let (watch, stop) = Watch::start(keeper).map_err(Failure::plain)?;
    let ip = exec.place.address.resolve()?.ip().to_string();
    let client = connect::client(&exec.place, times::horizon(lease(exec)))?;
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
        let tell = move || {
            if waiting.recv_timeout(QUIET) == Err(RecvTimeoutError::Timeout) {
                logging::say(format_args!(
                    "waiting for the lock '{name}': another client holds it, or the primary is \
                     silent"
                ));
            }
        };
        if let Err(error) = thread::Builder::new().name("waiting".into()).spawn_scoped(scope, tell)
        {
            log::info!("a long wait is not told: no thread for it: {error}");
        }
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
    /// A read-write lock has no lease: it is held until the session's horizon, unless it was lost
    /// while this client was away. Past the horizon no lease counts either: a successor of the
    /// primary does not know of it.
    fn extend(&mut self, client: &Client, lease: Duration) -> Result<u64, Error> {
        let mut asked_ns = times::now_ns();
        client.heartbeat(ALIVE)?;
        if let Held::Lease(guard) = self {
            asked_ns = times::now_ns();
            guard.extend(lease)?;
        }
        let now_ns = times::now_ns(); // before it is asked how much is left
        let horizon_ns = match (client.horizon_left(), &*self) {
            (Some(left), _) => now_ns.saturating_add(times::ns(left)),
            (None, Held::Lease(_)) => u64::MAX,
            // the primary may end it whenever it likes, and could not tell
            (None, Held::Session(_)) => return Err(Error::VersionMismatch),
        };
        if let Held::Session(guard) = self {
            guard.check()?; // last: it was held until now, and so it is until that horizon
        }
        Ok(times::held_until_ns(asked_ns, lease, horizon_ns))
    }

    fn is_known_lost(&self) -> bool {
        match self {
            Held::Lease(guard) => guard.is_known_lost(),
            Held::Session(guard) => guard.check() == Err(Error::Lost),
        }
    }

    fn release(self) -> Result<(), Error> {
        match self {
            Held::Lease(guard) => guard.unlock(),
            Held::Session(guard) => guard.unlock(),
        }
    }
}

/// Comes back to the primary, or to its successor, and tells it of the lock if it wants to know.
fn come_back(client: &Client, ip: &str, held: &Held<'_>) -> Result<Back, Error> {
    // not `reconnect`: a successor that refuses the lock would go on before COMMAND is dead
    match client.instance().reinit(ip) {
        Status::Success => {}
        Status::ClientRemoved => return Err(Error::Removed),
        status => return Err(Error::Other(status)),
    }
    match client.instance().update_all_locks() {
        Status::Success if held.is_known_lost() => return Ok(Back::Refused),
        Status::Success => {}
        // it is not in recovery, and knows the lock or has ended it
        Status::Error if held.is_known_lost() => return Err(Error::Lost),
        Status::Error => return Ok(Back::Here),
        // not all was told: others must not be served yet
        status => return Err(Error::Other(status)),
    }
    let done = client.instance().reinit_done();
    log::debug!("back at a successor of the primary, which has taken the lock: {done}");
    Ok(Back::Here)
}

/// A recovering successor has refused the lock, or the session's horizon had passed. COMMAND is
/// stopped as at the end of a lease. After that the recovery goes on, and the lock is free. Whether
/// COMMAND has ended.
fn give_up(client: &Client, exec: &Exec, end_ns: u64, stop: &Receiver<()>, watch: &Watch) -> bool {
    let stop_time = times::stop_time(lease(exec));
    let mut has_ended = false;
    if exec.on_lost == OnLost::Kill {
        let end_ns = end_ns.min(times::now_ns() + times::ns(stop_time));
        watch.until(end_ns);
        tell(UNTIL, end_ns);
        // COMMAND may not be killable
        has_ended = stop.recv_timeout(stop_time + LATE_MAX) != Err(RecvTimeoutError::Timeout);
    }
    let done = client.instance().reinit_done();
    log::info!("the primary's successor has refused the lock; done: {done}");
    has_ended
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
                match come_back(client, ip, &held) {
                    Ok(Back::Here) => log::info!("the primary is back"),
                    Ok(Back::Refused) => {
                        if !give_up(client, exec, end_ns, stop, watch) {
                            lost(Error::Lost, stop, watch);
                        }
                        break;
                    }
                    Err(error @ (Error::Lost | Error::Removed)) => {
                        lost(error, stop, watch);
                        break;
                    }
                    Err(error) => log::info!("the primary is away: {error}"),
                }
                pause = RECONNECT_EVERY.min(times::extend_every(lease(exec)));
            }
            Err(error) => {
                lost(error, stop, watch);
                break;
            }
        }
    }
    if let Err(error) = held.release() {
        log::warn!("the lock could not be released: {error}");
    }
}

/// Has COMMAND stopped at once, and waits for its end.
fn lost(error: Error, stop: &Receiver<()>, watch: &Watch) {
    watch.lost();
    tell(LOST, error);
    let _ = stop.recv(); // COMMAND is still there
}

/// Tells the supervisor; one that is gone does not hear it.
fn tell(word: &str, what: impl std::fmt::Display) {
    let mut output = io::stdout().lock();
    let _ = writeln!(output, "{word} {what}").and_then(|()| output.flush());
}
