// SPDX-License-Identifier: MIT OR Apache-2.0
//! The API for Rust programs: locks by name, guards, typed errors.
//!
//! ```text
//!   Client ──atomic_lock("a")──▶ Lock ──acquire(mode)…guard()──▶ Guard ──drop──▶ released
//!     (clones share one session)   (clones and equal names share one reference)
//! ```
//! A lock is held by one guard at a time also among the threads of one client, but for shared
//! holds. When the last lock object of a name is dropped, the client gives the lock back to the
//! primary.

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

/// The longest lease. It never ends: deadlines saturate.
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
    /// `Disconnected`, `Other` (the cause is logged).
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

    /// The instance of this client, with the calls of the C API. A release through it ends the
    /// holds of this API's objects: their calls then fail with an error, no more.
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

    /// The read-write lock of this name: readers or one writer, no lease.
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
    /// A resource that the lock protects keeps the largest token that it has seen, and refuses a
    /// smaller one: so it refuses a client that writes after its lease has ended, as one does that
    /// was stopped for that long. Exclusive tokens of a name strictly increase, also over a restart
    /// of the primary and a failover; clients that share the lock have the same one.
    ///
    /// Each user of the lock that takes part should get it so: a client that does not separates no
    /// readers of a read-write lock by its exclusive holds. It costs an atomic lock one more word
    /// operation for each acquire, a read-write lock one for each acquire and one for the end of
    /// an exclusive hold, and a fair lock none.
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

    /// The mutex of this name, for threads: re-entrant, in the order of arrival, with fencing
    /// tokens. It is the fair lock of this name.
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

    /// The events of this client from now on: of all its locks, and of its primary. At most
    /// `bound` of them wait ([`EVENTS_MAX`](crate::EVENTS_MAX) at most); what has no room is
    /// counted ([`Event::Missed`](crate::Event::Missed)).
    ///
    /// While there are listeners, a hold is given up shortly before its lease ends, so that its
    /// loss is told in time; one without a lease, before the horizon of the session. The client
    /// asks its primary once for each hold whether others wait for the lock.
    pub fn events(&self, bound: usize) -> Events {
        self.references.shared().events(None, bound, self.references.tasks())
    }

    /// For a client that finds the successor of its primary by itself ([`Config::primaries`]): the
    /// client's thread calls `act` each time that a successor may have refused a hold of this
    /// client. [`Guard::is_known_lost`](crate::Guard::is_known_lost) says whether a hold is lost; a
    /// call of another thread may have returned the loss before. Until `act` returns, the successor
    /// gives locks to no client: so a program can end what relies on the hold. The successor gives
    /// up a client that takes too long.
    ///
    /// `act` is also called when no primary knows this client any more. Other clients may have its
    /// locks then, and do not wait for `act`.
    ///
    /// `act` must not wait until a call of this client succeeds: until it returns, locks are not
    /// served. A later `act` replaces an earlier one.
    pub fn before_refused(&self, act: impl Fn() + Send + Sync + 'static) {
        self.instance().before_refused(Arc::new(act));
    }

    /// Asks the primary whether it is there and knows this client. `timeout` is rounded up to
    /// whole seconds, from 1 to 300.
    ///
    /// # Errors
    /// `Disconnected`, `NotReady`, `Left`, `Other` (it does not know this client).
    ///
    /// # Latency
    /// One control round trip.
    pub fn heartbeat(&self, timeout: Duration) -> Result<(), Error> {
        let seconds = whole_seconds(timeout).unwrap_or(u32::MAX).clamp(1, HEARTBEAT_S_MAX);
        Error::check(self.instance().heartbeat(seconds))
    }

    /// How long this client may rely on its holds if no further answer of its primary comes: until
    /// the session's horizon. `None`: the session has no horizon.
    pub fn horizon_left(&self) -> Option<Duration> {
        match self.instance().horizon_ns() {
            u64::MAX => None,
            horizon_ns => Some(Duration::from_nanos(horizon_ns.saturating_sub(boot_ns()))),
        }
    }

    /// Comes back to the primary, or to its successor at `ip`. At the same primary all locks are as
    /// they were. At a successor call [`Instance::update_all_locks`], which claims them, and
    /// [`Instance::reinit_done`] once the program does not rely any more on the holds that were
    /// refused; until then locks are `NotReady`.
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

    /// Releases everything that this client and its clones hold; returns how many locks that were.
    /// The guards of these holds fail with an error from then on, no more.
    ///
    /// # Errors
    /// The first release that failed; the others were released all the same.
    ///
    /// # Latency
    /// One release for each lock.
    pub fn unlock_all(&self) -> Result<usize, Error> {
        self.instance().unlock_all().map_err(Error::of)
    }

    /// Leaves: the primary releases all that this client and its clones hold, at once. Dropping
    /// the last clone without leaving is a disconnect: the primary keeps it for a while.
    ///
    /// # Errors
    /// `NotReady`, `Disconnected`, `Other` (it has left before).
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

/// A lease in whole seconds, as the primary counts it.
pub(crate) fn lease_s(lease: Duration) -> Result<u32, Error> {
    match whole_seconds(lease) {
        Some(seconds) if seconds > 0 => Ok(seconds),
        _ => Err(Error::Invalid("a lease lasts longer than nothing and at most 4294967295 s")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_rounded_up_and_bounded() {
        assert_eq!(lease_s(Duration::from_millis(1)), Ok(1));
        assert_eq!(lease_s(Duration::from_secs(7)), Ok(7));
        assert_eq!(lease_s(LEASE_MAX), Ok(u32::MAX));
        assert!(lease_s(Duration::ZERO).is_err());
        assert!(lease_s(LEASE_MAX + Duration::from_nanos(1)).is_err());
        assert!(lease_s(Duration::MAX).is_err());
    }
}
