// SPDX-License-Identifier: MIT OR Apache-2.0
//! The API for Rust programs: locks by name, guards, typed errors.
//!
//! ```text
//!   Client ──atomic_lock("a")──▶ Lock ──acquire(mode)…guard()──▶ Guard ──drop──▶ released
//!     (clones share one session)   (clones and equal names share one reference)
//! ```
//! Only one guard at a time has a lock, also among the threads of one client; guards of shared
//! holds can have it together. When the program drops the last lock object of a name, the client
//! gives the lock back to the primary.

use dlock_core::clock::Lease;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::ids::ClientId;
use dlock_core::limits::HEARTBEAT_S_MAX;
use dlock_core::wire::control::LockDesc;
use dlock_core::wire::message::LockType;
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::boot_ns;

use crate::error::Error;
use crate::events::Events;
use crate::instance::Instance;
use crate::lock::Lock;
use crate::mutex::Mutex;
use crate::options::Config;
use crate::reference::{Key, References};

/// The shortest lease. If the answer to an acquire takes longer than the lease, the grant does not
/// count.
pub const LEASE_MIN: Duration = Duration::from_millis(100);
/// The longest lease: it never ends. Neither does any other lease beyond 8 years, because deadlines
/// saturate.
pub const LEASE_MAX: Duration = Duration::from_secs(u32::MAX as u64);

/// A client of one primary. Clones share its session.
///
/// ```
/// use std::time::Duration;
///
/// use dlock_client::{Client, Config, Mode};
///
/// # fn main() -> Result<(), dlock_client::Error> {
/// # use dlock_server::{Server, ServerConfig, VerbsUse};
/// # let free = ServerConfig { port: 0, verbs: VerbsUse::Off, ..Default::default() };
/// # let server = Server::start(free).unwrap();
/// # let port = server.local_addr().port();
/// let client = Client::with_config(&Config::new().port(port), "127.0.0.1")?;
/// let lock = client.atomic_lock("table 7")?;
/// let guard = lock.acquire(Mode::Exclusive).lease(Duration::from_secs(10)).guard()?;
/// // … no other client is here …
/// guard.unlock()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    references: Arc<References>,
}

impl Client {
    /// Connects to the primary at `ip` (IPv4 or IPv6, in digits), on the default port.
    ///
    /// # Errors
    /// `NotReady` (no process listens there), `Recovering`, `NoResource`, `VersionMismatch`,
    /// `Disconnected`, `Other` (the client logs the cause).
    ///
    /// # Latency
    /// Two connections and two round trips; at most 10 s each, or [`Config::wait`] in all.
    pub fn connect(ip: &str) -> Result<Self, Error> {
        Self::with_config(&Config::new(), ip)
    }

    /// As [`connect`](Self::connect), with a configuration.
    ///
    /// # Errors
    /// As `connect`; `Invalid` (a value of the configuration is out of its bounds).
    ///
    /// # Latency
    /// As `connect`.
    pub fn with_config(config: &Config, ip: &str) -> Result<Self, Error> {
        let instance = Instance::meet(&config.checked()?, ip, None);
        let instance = instance.map_err(|unmet| match unmet.recovers {
            true => Error::Recovering,
            false => Error::of(unmet.status),
        })?;
        Ok(Self { references: Arc::new(References::new(instance)) })
    }

    /// The client's id.
    pub fn id(&self) -> ClientId {
        self.instance().id()
    }

    /// The instance of this client, with the calls of the C API. If the program releases a lock
    /// through the instance, the guard of that hold fails with an error at its next call, and does
    /// nothing else.
    pub fn instance(&self) -> &Instance {
        self.references.instance()
    }

    pub(crate) fn references(&self) -> &Arc<References> {
        &self.references
    }

    /// The atomic lock of this name: one holder, a lease, no order among the waiters.
    ///
    /// # Errors
    /// `Invalid` (the name is empty or longer than 512 bytes), `NotReady`, `NoResource`,
    /// `Disconnected`, `Left`, `Other` (there is a lock of another type with this name).
    ///
    /// # Latency
    /// One control round trip; 10 s at most, and another 10 s while other threads give the same
    /// lock back.
    pub fn atomic_lock(&self, name: impl AsRef<[u8]>) -> Result<Lock, Error> {
        self.lock_of(name.as_ref(), LockType::Atomic, false)
    }

    /// The read-write lock of this name: readers or one writer; a lease if an acquire asks for one.
    ///
    /// # Errors
    /// As [`atomic_lock`](Self::atomic_lock).
    ///
    /// # Latency
    /// As `atomic_lock`.
    pub fn rw_lock(&self, name: impl AsRef<[u8]>) -> Result<Lock, Error> {
        self.lock_of(name.as_ref(), LockType::Rw, false)
    }

    /// The fair lock of this name: readers or one writer in the order of their arrival, a lease.
    ///
    /// # Errors
    /// As [`atomic_lock`](Self::atomic_lock).
    ///
    /// # Latency
    /// As `atomic_lock`.
    pub fn fair_lock(&self, name: impl AsRef<[u8]>) -> Result<Lock, Error> {
        self.lock_of(name.as_ref(), LockType::Fair, false)
    }

    /// The lock of this name and type, whose holds have fencing tokens ([`Guard::token`]).
    ///
    /// A resource that the lock protects keeps the largest token that it has seen, and refuses
    /// smaller ones. So it refuses a client that was stopped until its lease had ended, and then
    /// writes. Exclusive tokens of a name strictly increase, also over a restart of the primary and
    /// a failover; clients that share the lock have the same token.
    ///
    /// All users of the lock should get it with tokens. Exclusive holds of a client that gets a
    /// read-write lock without tokens do not raise the token, so readers before and after have the
    /// same one. Tokens cost an atomic lock one more word operation for each acquire; a read-write
    /// lock one for each acquire and one for the end of an exclusive hold; a fair lock none.
    ///
    /// [`Guard::token`]: crate::Guard::token
    ///
    /// # Errors
    /// As [`atomic_lock`](Self::atomic_lock).
    ///
    /// # Latency
    /// As `atomic_lock`.
    pub fn lock_with_tokens(
        &self,
        name: impl AsRef<[u8]>,
        lock_type: LockType,
    ) -> Result<Lock, Error> {
        self.lock_of(name.as_ref(), lock_type, true)
    }

    /// The mutex of this name, for threads: re-entrant, granted in the order of arrival, with
    /// fencing tokens. It is the fair lock of this name.
    ///
    /// # Errors
    /// As [`atomic_lock`](Self::atomic_lock).
    ///
    /// # Latency
    /// As `atomic_lock`.
    pub fn mutex(&self, name: impl AsRef<[u8]>) -> Result<Mutex, Error> {
        self.lock_with_tokens(name, LockType::Fair).map(Mutex::new)
    }

    fn lock_of(&self, name: &[u8], lock_type: LockType, tokens: bool) -> Result<Lock, Error> {
        let desc = LockDesc { name: name.to_vec(), lock_type, lease_s: 0, tokens };
        let reference =
            self.references.obtain(|instance| match instance.get_lock(desc.clone()) {
                (Status::Success | Status::Error, Some(id)) => Ok(Key::Lock(id)),
                (Status::Invalid, _) => Err(Error::Invalid("a lock's name has 1 to 512 bytes")),
                (status, _) => Err(Error::of(status)),
            })?;
        let Key::Lock(id) = reference.key() else { return Err(Error::Other(Status::Error)) };
        Ok(Lock::new(reference, id, lock_type))
    }

    /// The events of this client from now on: those of all its locks, and those of its primary. At
    /// most `bound` events wait to be read ([`EVENTS_MAX`](crate::EVENTS_MAX) at most); the client
    /// counts the events for which there was no room ([`Event::Missed`](crate::Event::Missed)).
    ///
    /// While there are listeners, the client gives a hold up shortly before its lease ends, so that
    /// they learn of the loss in time; a hold without a lease, shortly before the session's
    /// horizon. For each hold the client asks its primary once whether other clients wait for the
    /// lock.
    pub fn events(&self, bound: usize) -> Events {
        self.references.shared().events(None, bound, self.references.tasks())
    }

    /// For a client that finds the successor of its primary by itself ([`Config::primaries`]): the
    /// client's thread calls `act` each time that a successor may have refused a hold of this
    /// client. [`Guard::is_known_lost`](crate::Guard::is_known_lost) says whether a hold is lost; a
    /// call in another thread may have returned the loss before `act` runs. Until `act` returns,
    /// the successor grants locks to no client, so that the program can end the work that relies on
    /// the hold. If `act` takes too long, the successor gives this client up.
    ///
    /// The thread also calls `act` when no primary knows this client any more. Other clients may
    /// have its locks by then, and do not wait for `act`.
    ///
    /// `act` must not wait until a call of this client succeeds, because locks are not served
    /// before `act` returns. A later `act` replaces an earlier one.
    pub fn before_refused(&self, act: impl Fn() + Send + Sync + 'static) {
        self.instance().before_refused(Arc::new(act));
    }

    /// Asks the primary whether it runs and knows this client. `timeout` is rounded up to whole
    /// seconds, from 1 to 300.
    ///
    /// # Errors
    /// `Disconnected`, `NotReady`, `Left`, `Other` (the primary does not know this client).
    ///
    /// # Latency
    /// One control round trip.
    pub fn heartbeat(&self, timeout: Duration) -> Result<(), Error> {
        let seconds = whole_seconds(timeout).unwrap_or(u32::MAX).clamp(1, HEARTBEAT_S_MAX);
        Error::check(self.instance().heartbeat(seconds))
    }

    /// How long this client may rely on its holds if no further answer of its primary comes, that
    /// is until the session's horizon. `None`: the session has no horizon.
    pub fn horizon_left(&self) -> Option<Duration> {
        match self.instance().horizon_ns() {
            u64::MAX => None,
            horizon_ns => Some(Duration::from_nanos(horizon_ns.saturating_sub(boot_ns()))),
        }
    }

    /// Comes back to the primary, or to its successor at `ip`. At the same primary all locks are as
    /// they were. At a successor, call [`Instance::update_all_locks`], which claims the locks, and
    /// then [`Instance::reinit_done`] as soon as the program no longer relies on holds that the
    /// successor refused. Until then operations on locks fail with `NotReady`.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); `Removed` (the primary does not know this client).
    ///
    /// # Latency
    /// As `connect`.
    pub fn reconnect(&self, ip: &str) -> Result<(), Error> {
        let status = self.instance().reinit(ip);
        self.instance().tells_all(None);
        Error::check(status)
    }

    /// Releases everything that this client and its clones hold, and returns the number of locks
    /// that it released. From then on, the guards of these holds fail with an error, and do nothing
    /// else.
    ///
    /// # Errors
    /// The error of the first release that failed; all other locks were released.
    ///
    /// # Latency
    /// One release for each lock.
    pub fn unlock_all(&self) -> Result<usize, Error> {
        self.instance().unlock_all().map_err(Error::of)
    }

    /// Leaves: the primary at once releases all that this client and its clones hold. If the
    /// program drops the last clone without leaving, the primary sees a disconnect and keeps the
    /// holds for a while.
    ///
    /// # Errors
    /// `NotReady`, `Disconnected`, `Other` (the client has left before).
    ///
    /// # Latency
    /// One control round trip; 10 s at most.
    pub fn leave(self) -> Result<(), Error> {
        Error::check(self.instance().deinit())
    }
}

/// A duration in whole seconds, rounded up.
fn whole_seconds(duration: Duration) -> Option<u32> {
    let up = u64::from(duration.subsec_nanos() > 0);
    duration.as_secs().checked_add(up).and_then(|s| u32::try_from(s).ok())
}

/// Rounds a lease up to the ticks (sixteenths of a second) that the primary counts.
pub(crate) fn ticks(lease: Duration) -> Result<Lease, Error> {
    match (LEASE_MIN..=LEASE_MAX).contains(&lease) {
        true => Ok(Lease::at_least(lease)),
        false => Err(Error::Invalid("a lease lasts at least 100 ms and at most 4294967295 s")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_rounded_up_and_bounded() {
        assert_eq!(ticks(LEASE_MIN).map(Lease::ns), Ok(125_000_000));
        assert_eq!(ticks(Duration::from_millis(250)).map(Lease::ns), Ok(250_000_000));
        assert_eq!(ticks(Duration::from_secs(7)), Ok(Lease::secs(7)));
        assert_eq!(ticks(LEASE_MAX), Ok(Lease::ENDLESS));
        assert!(ticks(Duration::ZERO).is_err());
        assert!(ticks(LEASE_MIN - Duration::from_nanos(1)).is_err());
        assert!(ticks(LEASE_MAX + Duration::from_nanos(1)).is_err());
        assert!(ticks(Duration::MAX).is_err());
    }
}
