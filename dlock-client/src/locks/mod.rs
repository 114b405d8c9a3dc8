// SPDX-License-Identifier: MIT OR Apache-2.0
//! The three kinds of locks.
//!
//! ```text
//!   AtomicLock   try_lock  lock  lock_timeout               lease ─▶ Guard
//!   RwLock       try_read  read  read_timeout, write …            ─▶ RwGuard
//!   FairLock     try_read  read  read_timeout, write …      lease ─▶ Guard
//!   each of them as …_owned                                       ─▶ OwnedGuard, OwnedRwGuard
//! ```

mod fair;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::ids::LockId;
use dlock_core::limits::LOCK_WAIT_S;
use dlock_core::message::Mode;
use dlock_core::status::Status;

pub use fair::FairLock;

use crate::client::lease_s;
use crate::error::Error;
use crate::guard::{Guard, Hold, Keep, OwnedGuard, OwnedRwGuard, RwGuard};
use crate::instance::{GuardWait, Instance};
use crate::reference::Reference;

/// The longest wait for a lock; longer ones end here.
pub const WAIT_MAX: Duration = Duration::from_secs(24 * 3_600);

/// How long `lock`, `read` and `write` wait.
const WAIT: Duration = Duration::from_secs(LOCK_WAIT_S);

/// Read-write locks have no lease; the operation has, and any will do.
const NO_LEASE: u32 = 1;

/// A lock object of any type.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    reference: Arc<Reference>,
    id: LockId,
}

impl Named {
    pub(crate) fn new(reference: Arc<Reference>, id: LockId) -> Self {
        Self { reference, id }
    }

    #[inline]
    pub(crate) fn try_hold(&self, mode: Mode, expire_s: u32) -> Result<Hold<&Instance>, Error> {
        self.try_kept(self.reference.instance(), mode, expire_s)
    }

    pub(crate) fn hold(
        &self,
        mode: Mode,
        expire_s: u32,
        wait: Duration,
    ) -> Result<Hold<&Instance>, Error> {
        self.kept(self.reference.instance(), mode, expire_s, wait)
    }

    pub(crate) fn try_hold_owned(
        &self,
        mode: Mode,
        expire_s: u32,
    ) -> Result<Hold<Arc<Reference>>, Error> {
        self.try_kept(Arc::clone(&self.reference), mode, expire_s)
    }

    pub(crate) fn hold_owned(
        &self,
        mode: Mode,
        expire_s: u32,
        wait: Duration,
    ) -> Result<Hold<Arc<Reference>>, Error> {
        self.kept(Arc::clone(&self.reference), mode, expire_s, wait)
    }

    pub(crate) async fn hold_async(
        &self,
        mode: Mode,
        expire_s: u32,
        wait: Duration,
    ) -> Result<Hold<Arc<Reference>>, Error> {
        let wait = GuardWait::new(self.id, mode, expire_s, wait.min(WAIT_MAX));
        self.reference.tasks().acquire(Arc::clone(&self.reference), wait)?.await
    }

    #[inline]
    fn try_kept<K: Keep>(&self, keep: K, mode: Mode, expire_s: u32) -> Result<Hold<K>, Error> {
        let (result, number) = keep.instance().try_guard(self.id, mode, expire_s);
        match result.status {
            Status::Success | Status::AlreadyLocked => {
                Ok(Hold::new(keep, self.id, mode, number, result.view))
            }
            status => Err(Error::of(status)),
        }
    }

    fn kept<K: Keep>(
        &self,
        keep: K,
        mode: Mode,
        expire_s: u32,
        wait: Duration,
    ) -> Result<Hold<K>, Error> {
        let deadline = Instant::now() + wait.min(WAIT_MAX);
        let (result, number) = keep.instance().wait_guard(self.id, mode, expire_s, deadline);
        match result.status {
            Status::Success | Status::AlreadyLocked => {
                Ok(Hold::new(keep, self.id, mode, number, result.view))
            }
            Status::Fail | Status::Again => Err(Error::TimedOut),
            status => Err(Error::of(status)),
        }
    }
}

/// A lock with one holder and a lease. Clones are the same lock.
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> Result<(), dlock_client::Error> {
/// # use dlock_server::{Server, ServerConfig, VerbsUse};
/// # let free = ServerConfig { port: 0, verbs: VerbsUse::Off, ..Default::default() };
/// # let server = Server::start(free).unwrap();
/// # let config = dlock_client::Config::new().port(server.local_addr().port());
/// # let client = dlock_client::Client::with_config(&config, "127.0.0.1")?;
/// let lock = client.atomic_lock("table 7")?;
/// let guard = lock.lock_owned(Duration::from_secs(10))?;
/// let thread = std::thread::spawn(move || {
///     // … the thread has the lock, and releases it …
///     guard.unlock()
/// });
/// assert_eq!(thread.join().unwrap(), Ok(()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AtomicLock(pub(crate) Named);

impl AtomicLock {
    /// The lock's id, the same for all clients while it exists.
    pub fn id(&self) -> LockId {
        self.0.id
    }

    /// Takes the lock if it is free. The lease is rounded up to whole seconds and is over 0, at
    /// most [`LEASE_MAX`](crate::LEASE_MAX).
    ///
    /// # Errors
    /// `Held`, `Invalid`, `NotReady`, `Disconnected`, `Left`.
    ///
    /// # Latency
    /// One round trip; 5 s at most.
    #[inline]
    pub fn try_lock(&self, lease: Duration) -> Result<Guard<'_>, Error> {
        self.0.try_hold(Mode::Exclusive, lease_s(lease)?).map(Guard)
    }

    /// Takes the lock, waiting up to 5 s for it.
    ///
    /// # Errors
    /// As [`try_lock`](Self::try_lock), but `TimedOut` for `Held`.
    ///
    /// # Latency
    /// A hand-over is one message in each direction.
    pub fn lock(&self, lease: Duration) -> Result<Guard<'_>, Error> {
        self.lock_timeout(lease, WAIT)
    }

    /// As [`lock`](Self::lock), waiting up to `timeout` (at most [`WAIT_MAX`]).
    ///
    /// # Errors
    /// As `lock`.
    ///
    /// # Latency
    /// As `lock`.
    pub fn lock_timeout(&self, lease: Duration, timeout: Duration) -> Result<Guard<'_>, Error> {
        self.0.hold(Mode::Exclusive, lease_s(lease)?, timeout).map(Guard)
    }

    /// As [`try_lock`](Self::try_lock), with a guard that can be moved.
    ///
    /// # Errors
    /// As `try_lock`.
    ///
    /// # Latency
    /// As `try_lock`.
    pub fn try_lock_owned(&self, lease: Duration) -> Result<OwnedGuard, Error> {
        self.0.try_hold_owned(Mode::Exclusive, lease_s(lease)?).map(OwnedGuard)
    }

    /// As [`lock`](Self::lock), with a guard that can be moved.
    ///
    /// # Errors
    /// As `lock`.
    ///
    /// # Latency
    /// As `lock`.
    pub fn lock_owned(&self, lease: Duration) -> Result<OwnedGuard, Error> {
        self.lock_timeout_owned(lease, WAIT)
    }

    /// As [`lock_timeout`](Self::lock_timeout), with a guard that can be moved.
    ///
    /// # Errors
    /// As `lock`.
    ///
    /// # Latency
    /// As `lock`.
    pub fn lock_timeout_owned(
        &self,
        lease: Duration,
        timeout: Duration,
    ) -> Result<OwnedGuard, Error> {
        self.0.hold_owned(Mode::Exclusive, lease_s(lease)?, timeout).map(OwnedGuard)
    }

    /// As [`lock_owned`](Self::lock_owned), as a future that any runtime can poll.
    ///
    /// # Errors
    /// As [`lock`](Self::lock); `Lost` (the lease was over before the future was polled again),
    /// `TooManyFutures`.
    ///
    /// # Cancellation
    /// A future that is dropped leaves nothing held and nothing queued: its place in the queue is
    /// given up, and a grant that has come meanwhile is released, at once and without blocking.
    ///
    /// # Latency
    /// As `lock`, and two switches of threads. Those of one client begin one after the other, and
    /// wait together; a primary that does not answer keeps the next one from beginning, 5 s at
    /// most.
    pub async fn lock_async(&self, lease: Duration) -> Result<OwnedGuard, Error> {
        self.0.hold_async(Mode::Exclusive, lease_s(lease)?, WAIT).await.map(OwnedGuard)
    }

    /// As [`lock_async`](Self::lock_async), waiting up to `timeout` (at most [`WAIT_MAX`]).
    ///
    /// # Errors
    /// As `lock_async`.
    ///
    /// # Cancellation
    /// As `lock_async`.
    ///
    /// # Latency
    /// As `lock_async`.
    pub async fn lock_timeout_async(
        &self,
        lease: Duration,
        timeout: Duration,
    ) -> Result<OwnedGuard, Error> {
        self.0.hold_async(Mode::Exclusive, lease_s(lease)?, timeout).await.map(OwnedGuard)
    }
}

/// A lock with readers or one writer and no lease. Clones are the same lock.
#[derive(Clone, Debug)]
pub struct RwLock(pub(crate) Named);

impl RwLock {
    /// The lock's id, the same for all clients while it exists.
    pub fn id(&self) -> LockId {
        self.0.id
    }

    /// Takes the lock for reading, if no writer has it or waits for it.
    ///
    /// # Errors
    /// `Held`, `NotReady`, `Disconnected`, `Left`.
    ///
    /// # Latency
    /// One round trip; 5 s at most. None if this client is reading already.
    #[inline]
    pub fn try_read(&self) -> Result<RwGuard<'_>, Error> {
        self.0.try_hold(Mode::Shared, NO_LEASE).map(RwGuard)
    }

    /// Takes the lock for reading, waiting up to 5 s for it.
    ///
    /// # Errors
    /// As [`try_read`](Self::try_read), but `TimedOut` for `Held`.
    ///
    /// # Latency
    /// A hand-over is one message in each direction.
    pub fn read(&self) -> Result<RwGuard<'_>, Error> {
        self.read_timeout(WAIT)
    }

    /// As [`read`](Self::read), waiting up to `timeout` (at most [`WAIT_MAX`]).
    ///
    /// # Errors
    /// As `read`.
    ///
    /// # Latency
    /// As `read`.
    pub fn read_timeout(&self, timeout: Duration) -> Result<RwGuard<'_>, Error> {
        self.0.hold(Mode::Shared, NO_LEASE, timeout).map(RwGuard)
    }

    /// As [`try_read`](Self::try_read), with a guard that can be moved.
    ///
    /// # Errors
    /// As `try_read`.
    ///
    /// # Latency
    /// As `try_read`.
    pub fn try_read_owned(&self) -> Result<OwnedRwGuard, Error> {
        self.0.try_hold_owned(Mode::Shared, NO_LEASE).map(OwnedRwGuard)
    }

    /// As [`read`](Self::read), with a guard that can be moved.
    ///
    /// # Errors
    /// As `read`.
    ///
    /// # Latency
    /// As `read`.
    pub fn read_owned(&self) -> Result<OwnedRwGuard, Error> {
        self.read_timeout_owned(WAIT)
    }

    /// As [`read_timeout`](Self::read_timeout), with a guard that can be moved.
    ///
    /// # Errors
    /// As `read`.
    ///
    /// # Latency
    /// As `read`.
    pub fn read_timeout_owned(&self, timeout: Duration) -> Result<OwnedRwGuard, Error> {
        self.0.hold_owned(Mode::Shared, NO_LEASE, timeout).map(OwnedRwGuard)
    }

    /// Takes the lock for writing, if it is free.
    ///
    /// # Errors
    /// As [`try_read`](Self::try_read).
    ///
    /// # Latency
    /// One round trip; 5 s at most.
    #[inline]
    pub fn try_write(&self) -> Result<RwGuard<'_>, Error> {
        self.0.try_hold(Mode::Exclusive, NO_LEASE).map(RwGuard)
    }

    /// Takes the lock for writing, waiting up to 5 s for it.
    ///
    /// # Errors
    /// As [`try_write`](Self::try_write), but `TimedOut` for `Held`.
    ///
    /// # Latency
    /// A hand-over is one message in each direction.
    pub fn write(&self) -> Result<RwGuard<'_>, Error> {
        self.write_timeout(WAIT)
    }

    /// As [`write`](Self::write), waiting up to `timeout` (at most [`WAIT_MAX`]).
    ///
    /// # Errors
    /// As `write`.
    ///
    /// # Latency
    /// As `write`.
    pub fn write_timeout(&self, timeout: Duration) -> Result<RwGuard<'_>, Error> {
        self.0.hold(Mode::Exclusive, NO_LEASE, timeout).map(RwGuard)
    }

    /// As [`try_write`](Self::try_write), with a guard that can be moved.
    ///
    /// # Errors
    /// As `try_write`.
    ///
    /// # Latency
    /// As `try_write`.
    pub fn try_write_owned(&self) -> Result<OwnedRwGuard, Error> {
        self.0.try_hold_owned(Mode::Exclusive, NO_LEASE).map(OwnedRwGuard)
    }

    /// As [`write`](Self::write), with a guard that can be moved.
    ///
    /// # Errors
    /// As `write`.
    ///
    /// # Latency
    /// As `write`.
    pub fn write_owned(&self) -> Result<OwnedRwGuard, Error> {
        self.write_timeout_owned(WAIT)
    }

    /// As [`write_timeout`](Self::write_timeout), with a guard that can be moved.
    ///
    /// # Errors
    /// As `write`.
    ///
    /// # Latency
    /// As `write`.
    pub fn write_timeout_owned(&self, timeout: Duration) -> Result<OwnedRwGuard, Error> {
        self.0.hold_owned(Mode::Exclusive, NO_LEASE, timeout).map(OwnedRwGuard)
    }

    /// As [`read_owned`](Self::read_owned), as a future that any runtime can poll.
    ///
    /// # Errors
    /// As [`read`](Self::read); `Lost` (the lease was over before the future was polled again),
    /// `TooManyFutures`.
    ///
    /// # Cancellation
    /// A future that is dropped leaves nothing held and nothing queued: its place in the queue is
    /// given up, and a grant that has come meanwhile is released, at once and without blocking.
    ///
    /// # Latency
    /// As `read`, and two switches of threads. Those of one client begin one after the other, and
    /// wait together; a primary that does not answer keeps the next one from beginning, 5 s at
    /// most.
    pub async fn read_async(&self) -> Result<OwnedRwGuard, Error> {
        self.0.hold_async(Mode::Shared, NO_LEASE, WAIT).await.map(OwnedRwGuard)
    }

    /// As [`read_async`](Self::read_async), waiting up to `timeout` (at most [`WAIT_MAX`]).
    ///
    /// # Errors
    /// As `read_async`.
    ///
    /// # Cancellation
    /// As `read_async`.
    ///
    /// # Latency
    /// As `read_async`.
    pub async fn read_timeout_async(&self, timeout: Duration) -> Result<OwnedRwGuard, Error> {
        self.0.hold_async(Mode::Shared, NO_LEASE, timeout).await.map(OwnedRwGuard)
    }

    /// As [`write_owned`](Self::write_owned), as a future that any runtime can poll.
    ///
    /// # Errors
    /// As [`read_async`](Self::read_async).
    ///
    /// # Cancellation
    /// As [`read_async`](Self::read_async).
    ///
    /// # Latency
    /// As `read_async`.
    pub async fn write_async(&self) -> Result<OwnedRwGuard, Error> {
        self.0.hold_async(Mode::Exclusive, NO_LEASE, WAIT).await.map(OwnedRwGuard)
    }

    /// As [`write_async`](Self::write_async), waiting up to `timeout` (at most [`WAIT_MAX`]).
    ///
    /// # Errors
    /// As `write_async`.
    ///
    /// # Cancellation
    /// As `write_async`.
    ///
    /// # Latency
    /// As `write_async`.
    pub async fn write_timeout_async(&self, timeout: Duration) -> Result<OwnedRwGuard, Error> {
        self.0.hold_async(Mode::Exclusive, NO_LEASE, timeout).await.map(OwnedRwGuard)
    }
}
