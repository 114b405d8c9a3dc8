// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dlock role keeper`: the process that has the session and holds the lock for `dlock exec`.
//!
//! ```text
//!   main thread:  connect ─▶ acquire ─▶ extend ─▶ "until …" ─▶ extend … ─▶ release, when told
//!                    ▲                     │                     └ "lost …" ─▶ ─┘
//!                    └─ the lease was over ┘
//! ```
//! If the primary does not answer, the client library finds it or its successor, and claims the
//! lock there. If the claim is refused, the library waits until COMMAND is dead before it lets the
//! successor go on. All calls here may wait for the primary; `keeper_watch.rs` has those that must
//! not.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dlock_client::raw::Removal;
use dlock_client::{Client, Error, Guard, Lock, LockType, Mode, Wait, LEASE_MAX};

use super::keeper_watch::Watch;
use super::times;
use super::{lease, GIVEN_UP, LOST, RELEASE_MAX, TOKEN, UNTIL};
use crate::args::{Exec, Keeper};
use crate::connect;
use crate::failure::{self, Failure};
use crate::logging;

/// A wait that is longer than this is reported to the user.
const QUIET: Duration = Duration::from_secs(2);
/// One wait for the lock if the user set no limit; another follows.
const LONG: Duration = Duration::from_secs(3_600);
/// How long to wait for a recovering primary if the user set no limit.
const RECOVERY_MAX: Duration = Duration::from_secs(365 * 86_400);
/// The fabric of clients on the host of the primary.
const SHARED_MEMORY: &str = "shm";
/// How long the primary may take to answer a heartbeat.
const ALIVE: Duration = Duration::from_secs(5);
/// Pause between attempts to extend the lock while there is no primary.
const AGAIN_EVERY: Duration = Duration::from_secs(1);
/// A recovery that has refused the hold waits this much longer than the stop of COMMAND may take.
const LATE_MAX: Duration = Duration::from_secs(5);

/// Why the lock is lost if a successor has refused the claim of it.
const REFUSED: &str = "the primary's successor has refused the lock";

/// The events of the main thread.
pub enum Event {
    /// COMMAND is dead, and the lock can be released.
    Ended,
    /// A successor may have refused the claim of the lock. It gives the lock to no client before
    /// this sender is dropped.
    Refused(SyncSender<()>),
}

/// The resources that the keeper needs to start, for an error message.
const KEEPER: &str = "the keeper's threads and its timer (timerfd_create)";

/// Runs the keeper; returns the exit code, which says why there is no lock.
pub fn run(keeper: &Keeper) -> Result<u8, Failure> {
    let exec = &keeper.exec;
    let end = exec.wait.map(|s| Instant::now() + Duration::from_secs(u64::from(s)));
    let (watch, tells, events) =
        Watch::start(keeper).map_err(|error| Failure::not_started(KEEPER, &error))?;
    let client = client(exec)?;
    let held_up = Arc::clone(&watch);
    // the callback is set before the first acquire, so that no refusal of a claim is missed
    client.before_refused(move || hold_up(&held_up, &tells));
    let lock = find(&client, exec)?;
    let result = acquire(&lock, &client, exec, (end, &watch))
        .map(|(held, end_ns)| keep(&client, held, exec, end_ns, events, &watch));
    // this also has to happen after an error, because a grant may be under way
    drop(lock);
    leave(client);
    result.map(|()| failure::OK).map_err(|error| not_got(exec, error))
}

/// Tells a primary that this client leaves, for at most [`RELEASE_MAX`]. Without this limit the
/// library would look longer for a primary that is gone.
fn leave(client: Client) {
    let (done, left) = mpsc::channel();
    // the result is dropped if the keeper no longer waits for it
    let leaves = move || done.send(client.leave()).unwrap_or_default();
    let why = match thread::Builder::new().name("leaving".into()).spawn(leaves) {
        Ok(_) => match left.recv_timeout(RELEASE_MAX) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("none has answered in {RELEASE_MAX:?}"),
        },
        Err(error) => format!("no thread for it: {error}"),
    };
    log::info!("the primary was not told that this client leaves: {why}");
}

/// Called before a successor that may have refused the lock goes on. Returns when COMMAND, which
/// relies on the lock, has ended; at once if COMMAND cannot have been started, because
/// [`may_start`] prevents its start then.
fn hold_up(watch: &Watch, tells: &Sender<Event>) {
    if !watch.may_run() {
        return;
    }
    let (goes_on, waits) = mpsc::sync_channel(0);
    if tells.send(Event::Refused(goes_on)).is_ok() {
        // waits until the main thread drops the sender, when COMMAND has ended
        let _ = waits.recv();
    }
}

/// Whether COMMAND may be started for a hold that lasts until `end_ns`: not if the hold is already
/// lost.
///
/// The end is set before `is_lost` is called, so that no loss is missed. If a successor refuses the
/// hold before that call, `is_lost` says so and COMMAND is not started. If a successor refuses it
/// later, [`hold_up`] keeps the successor waiting until COMMAND has ended.
fn may_start(watch: &Watch, end_ns: u64, is_lost: impl FnOnce() -> bool) -> bool {
    watch.until(end_ns);
    let may_start = !is_lost();
    if !may_start {
        watch.is_not_started();
    }
    may_start
}

fn client(exec: &Exec) -> Result<Client, Failure> {
    // with `--wait 0`, each phase of connecting has its own limit, and the keeper waits for no
    // recovery
    let wait = exec
        .wait
        .map_or(Some(RECOVERY_MAX), |s| (s > 0).then_some(Duration::from_secs(u64::from(s))));
    told_of_a_wait("the primary: it recovers what clients held, or is silent", || {
        connect::client(&exec.place, times::horizon(lease(exec)), wait)
    })
}

/// Calls `wait`, and tells the user what it waits for if that takes long.
fn told_of_a_wait<T: Send>(what: &str, wait: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        let (done, waiting) = mpsc::channel::<()>();
        let tell = move || {
            if waiting.recv_timeout(QUIET) == Err(RecvTimeoutError::Timeout) {
                logging::say(format_args!("waiting for {what}"));
            }
        };
        if let Err(error) = thread::Builder::new().name("waiting".into()).spawn_scoped(scope, tell)
        {
            log::info!("a long wait is not told: no thread for it: {error}");
        }
        let result = wait();
        drop(done);
        result
    })
}

fn find(client: &Client, exec: &Exec) -> Result<Lock, Failure> {
    let name = OsStr::as_bytes(&exec.name);
    client.lock_with_tokens(name, exec.kind.into()).map_err(|error| {
        let cause = format!("lock '{}': {error}", exec.name.to_string_lossy());
        let remedy = match error {
            Error::Other(_) => "a lock of this name and another type exists: say its --type",
            Error::Denied => failure::DENIED,
            Error::NoResource => failure::NO_ROOM,
            Error::Removed | Error::Disconnected | Error::NotReady if connect::speaks_tls() => {
                "the primary has ended this session: its log says why (a certificate that is \
                 revoked or over, a reload, its end)"
            }
            Error::Removed | Error::Disconnected | Error::NotReady => {
                "the primary has ended this session, or gives no lock (dlock drain): its log says \
                 why"
            }
            _ => "dlock -v tells more; so does the primary's log",
        };
        Failure::new(failure::UNAVAILABLE, cause, remedy)
    })
}

/// Acquires the lock; returns it, and until when it is surely held.
fn acquire<'a>(
    lock: &'a Lock,
    client: &Client,
    exec: &Exec,
    until: (Option<Instant>, &Watch),
) -> Result<(Guard<'a>, u64), Error> {
    let name = exec.name.to_string_lossy();
    let what = format!("the lock '{name}': another client holds it, or the primary is silent");
    told_of_a_wait(&what, || wait_for(lock, client, exec, until))
}

fn not_got(exec: &Exec, error: Error) -> Failure {
    let cause = format!("lock '{}': {error}", exec.name.to_string_lossy());
    match error {
        Error::Held | Error::TimedOut | Error::Lost => {
            let remedy = "wait longer (--wait), or see who holds it: dlock locks";
            Failure::new(failure::NOT_GOT, cause, remedy)
        }
        Error::NotReady => {
            let remedy = "the primary gives no lock now, or is away: dlock status says which \
                          (a recovery, a drain)";
            Failure::new(failure::UNAVAILABLE, cause, remedy)
        }
        _ => {
            Failure::new(failure::UNAVAILABLE, cause, "look whether the primary runs: dlock status")
        }
    }
}

/// Waits in the primary's queue, once, or repeatedly if the user set no limit. The answer may have
/// been under way for longer than the lease, so an extension must tell how long the hold lasts.
fn wait_for<'a>(
    lock: &'a Lock,
    client: &Client,
    exec: &Exec,
    (end, watch): (Option<Instant>, &Watch),
) -> Result<(Guard<'a>, u64), Error> {
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let may_go_on = left.is_none_or(|left| !left.is_zero());
        match try_for(lock, exec, left.unwrap_or(LONG)) {
            Ok(mut held) => match extend(&mut held, client, lease(exec)) {
                Ok(end_ns) if may_start(watch, end_ns, || held.is_known_lost()) => {
                    log::info!("the lock is held");
                    return Ok((held, end_ns));
                }
                Ok(_) if may_go_on => {}
                Ok(_) => return Err(Error::Lost),
                Err(Error::Lost) if may_go_on => {}
                Err(error) => return Err(error),
            },
            Err(Error::TimedOut) if end.is_none() => {}
            Err(error) => return Err(error),
        }
    }
}

fn try_for<'a>(lock: &'a Lock, exec: &Exec, wait: Duration) -> Result<Guard<'a>, Error> {
    let wait = if wait.is_zero() { Wait::No } else { Wait::For(wait) };
    match lock.lock_type() {
        LockType::Atomic => lock.acquire(Mode::Exclusive).lease(lease(exec)),
        LockType::Fair => lock.acquire(exec.mode.into()).lease(lease(exec)),
        LockType::Rw => lock.acquire(exec.mode.into()),
    }
    .wait(wait)
    .guard()
}

/// The lease from the first extension on. It ends only over shared memory, where the primary cannot
/// end the hold of a stopped process that has the memory mapped. Over a network the primary can do
/// that at the session's horizon, so the lease need not end. And such a hold outlasts a long
/// recovery, in which no lease can be extended.
fn later_lease(client: &Client, lease: Duration) -> Duration {
    if client.instance().fabric() == SHARED_MEMORY {
        lease
    } else {
        LEASE_MAX
    }
}

fn has_lease_that_ends(held: &Guard<'_>) -> bool {
    held.lease_end_ms().is_some_and(|end_ms| end_ms != u64::MAX)
}

/// Extends the lease, after a heartbeat that shows that the primary is there: shared memory can be
/// changed without it, but a successor would not know of the change. Returns until when the lock is
/// surely held, counted from before the request.
///
/// A hold without a lease lasts until the session's horizon, unless it was lost while this client
/// was away. A lease does not count beyond the horizon either, because a successor may not know of
/// it.
fn extend(held: &mut Guard<'_>, client: &Client, lease: Duration) -> Result<u64, Error> {
    let has_lease = has_lease_that_ends(held);
    let mut asked_ns = times::now_ns();
    match client.heartbeat(ALIVE) {
        // The primary recovers. Its answers extend the horizon. Once it has taken the claim of a
        // hold without a lease, `check` below shows that the hold lasts until this horizon.
        Err(Error::NotReady) if !has_lease => {}
        answer => answer?,
    }
    if has_lease {
        asked_ns = times::now_ns();
        held.extend(later_lease(client, lease))?;
    }
    let has_lease = has_lease_that_ends(held);
    // the clock is read before the time that is left of the horizon, which counts from this reading
    let now_ns = times::now_ns();
    let horizon_ns = match client.horizon_left() {
        Some(left) => now_ns.saturating_add(times::ns(left)),
        None if has_lease => u64::MAX,
        // without a horizon the primary may end the hold at any time, and could not tell the client
        None => return Err(Error::VersionMismatch),
    };
    if !has_lease {
        // checked last: if the hold is there now, it lasts until the horizon that was read before
        held.check()?;
    }
    Ok(times::held_until_ns(asked_ns, lease, horizon_ns))
}

/// Why the lock is lost that an operator has taken away.
fn taken_away(removal: &Removal) -> String {
    format!("an operator has taken it away, {}", removal.by)
}

/// Stops COMMAND as at the end of a lease, because a recovering successor has refused the lock, the
/// session's horizon has passed, or an operator has removed this client. After that the recovery
/// goes on, and the lock is free. Returns whether COMMAND has ended.
fn give_up(
    why: &str,
    exec: &Exec,
    end_ns: u64,
    (events, watch): (&Receiver<Event>, &Watch),
) -> bool {
    log::info!("the lock is given up: {why}");
    if !exec.on_lost.stops() {
        return false;
    }
    let stop_time = times::stop_time(lease(exec));
    let end_ns = end_ns.min(times::now_ns() + times::ns(stop_time));
    watch.until(end_ns);
    tell(GIVEN_UP, format_args!("{end_ns} {why}"));
    // if COMMAND cannot be killed, this wait ends without its end
    ends_within(stop_time + LATE_MAX, events)
}

/// Waits for the end of COMMAND, at most for `wait`. Until this returns no successor goes on.
fn ends_within(wait: Duration, events: &Receiver<Event>) -> bool {
    let end = Instant::now() + wait;
    let mut refused = Vec::new();
    loop {
        match events.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Event::Ended) | Err(RecvTimeoutError::Disconnected) => return true,
            Ok(Event::Refused(goes_on)) => refused.push(goes_on),
            Err(RecvTimeoutError::Timeout) => return false,
        }
    }
}

/// Extends the lock until told to stop, then releases it; reports when it is lost.
fn keep(
    client: &Client,
    mut held: Guard<'_>,
    exec: &Exec,
    mut end_ns: u64,
    events: Receiver<Event>,
    watch: &Watch,
) {
    if let Some(token) = held.token() {
        tell(TOKEN, token); // the supervisor has the token before it starts COMMAND
    }
    tell(UNTIL, end_ns);
    // an operator may have removed this client while it waited for the lock
    let before = client.instance().removal();
    let removal = || client.instance().removal().filter(|last| Some(last) != before.as_ref());
    let mut pause = times::extend_every(lease(exec));
    loop {
        match events.recv_timeout(pause) {
            Ok(Event::Ended) | Err(RecvTimeoutError::Disconnected) => break,
            Ok(Event::Refused(goes_on)) if held.is_known_lost() => {
                // if the lock was taken away at once, another client may hold it already
                let removal = removal();
                let is_over = removal.as_ref().is_some_and(|removal| removal.now);
                let why = removal.map_or_else(|| REFUSED.to_string(), |by| taken_away(&by));
                let has_ended = !is_over && give_up(&why, exec, end_ns, (&events, watch));
                drop(goes_on);
                if !has_ended {
                    lost(&why, exec, &events, watch);
                }
                break;
            }
            // a claim of another lock was refused, or there was no refusal: the next extension
            // shows what became of this lock
            Ok(Event::Refused(_)) | Err(RecvTimeoutError::Timeout) => {}
        }
        match extend(&mut held, client, lease(exec)) {
            Ok(later_ns) => {
                end_ns = later_ns;
                watch.until(end_ns);
                tell(UNTIL, end_ns);
                pause = times::extend_every(lease(exec));
            }
            // The client library looks for a primary, and may find one before the lease is over.
            Err(error @ (Error::NotReady | Error::Disconnected)) if times::now_ns() < end_ns => {
                log::debug!("the hold is not extended yet: {error}");
                pause = AGAIN_EVERY.min(times::extend_every(lease(exec)));
            }
            Err(error) => {
                let why = removal().map_or_else(|| error.to_string(), |by| taken_away(&by));
                lost(&why, exec, &events, watch);
                break;
            }
        }
    }
    drop(events); // a successor goes on: COMMAND has ended, or runs on
    if let Err(error) = held.unlock() {
        log::warn!("the lock could not be released: {error}");
    }
}

/// Has the supervisor stop COMMAND at once, and waits for its end.
fn lost(why: &str, exec: &Exec, events: &Receiver<Event>, watch: &Watch) {
    watch.lost();
    tell(LOST, why);
    // the recovery of a successor does not wait for a COMMAND that cannot be killed, or runs on
    let wait = match exec.on_lost.stops() {
        true => times::stop_time(lease(exec)) + LATE_MAX,
        false => Duration::ZERO,
    };
    if !ends_within(wait, events) {
        // COMMAND has not ended: wait for that, and handle nothing but refusals meanwhile
        while let Ok(Event::Refused(_)) = events.recv() {}
    }
}

/// Sends a line to the supervisor; without effect if the supervisor has ended.
fn tell(word: &str, what: impl std::fmt::Display) {
    let mut output = io::stdout().lock();
    let _ = writeln!(output, "{word} {what}").and_then(|()| output.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_before_command_is_started_keeps_no_successor_waiting_and_starts_no_command() {
        let watch = Watch::new(Duration::from_secs(60)).unwrap();
        let (tells, events) = mpsc::channel();
        hold_up(&watch, &tells);
        let later_ns = times::now_ns() + times::ns(Duration::from_secs(60));
        assert!(!may_start(&watch, later_ns, || true));
        hold_up(&watch, &tells);
        assert!(events.try_recv().is_err(), "nothing is waited for");
    }

    #[test]
    fn a_loss_that_is_not_seen_at_the_start_of_command_is_told_and_waited_for() {
        let watch = Watch::new(Duration::from_secs(60)).unwrap();
        let (tells, events) = mpsc::channel();
        let later_ns = times::now_ns() + times::ns(Duration::from_secs(60));
        thread::scope(|scope| {
            let refused = || {
                // the loss comes right after `may_start` has looked for one
                scope.spawn(|| hold_up(&watch, &tells));
                false
            };
            assert!(may_start(&watch, later_ns, refused));
            let event = events.recv_timeout(Duration::from_secs(60));
            assert!(matches!(event, Ok(Event::Refused(_))), "it waits for the end of COMMAND");
        });
    }
}
