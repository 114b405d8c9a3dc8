// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fair lock.

use std::time::Duration;

use dlock_core::ids::LockId;
use dlock_core::message::Mode;

use super::{Named, WAIT};
use crate::client::lease_s;
use crate::error::Error;
use crate::guard::{Guard, OwnedGuard};

/// A lock with readers or one writer, served in the order of their arrival, with a lease. Clones
/// are the same lock.
///
/// Readers of one client share its place: a second reader of the same client does not queue.
///
/// ```
/// # use std::time::Duration;
/// # fn main() -> Result<(), dlock_client::Error> {
/// # use dlock_server::{Server, ServerConfig, VerbsUse};
/// # let free = ServerConfig { port: 0, verbs: VerbsUse::Off, ..Default::default() };
/// # let server = Server::start(free).unwrap();
/// # let config = dlock_client::Config::new().port(server.local_addr().port());
/// # let client = dlock_client::Client::with_config(&config, "127.0.0.1")?;
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// let lock = client.fair_lock("table 7")?;
/// # runtime.block_on(async {
/// let guard = lock.write_async(Duration::from_secs(10)).await?;
/// // … no other client reads or writes …
/// guard.unlock_async().await?;
/// # Ok::<(), dlock_client::Error>(())
/// # })?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FairLock(pub(crate) Named);

impl FairLock {
    /// The lock's id, the same for all clients while it exists.
    pub fn id(&self) -> LockId {
        self.0.id
    }

    /// Takes the lock for reading, if no writer has it or is queued; leaves the queue again if it
    /// cannot. The lease is rounded up to whole seconds and is over 0, at most
    /// [`LEASE_MAX`](crate::LEASE_MAX).
    ///
    /// # Errors
    /// `Held`, `Invalid`, `NotReady`, `Disconnected`, `Left`.
    ///
    /// # Latency
    /// One round trip; 5 s at most.
    #[inline]
    pub fn try_read(&self, lease: Duration) -> Result<Guard<'_>, Error> {
        self.0.try_hold(Mode::Shared, lease_s(lease)?).map(Guard)
    }

    /// Takes the lock for reading, waiting up to 5 s for its turn; leaves the queue if it does not
    /// come.
    ///
    /// # Errors
    /// As [`try_read`](Self::try_read), but `TimedOut` for `Held`.
    ///
    /// # Latency
    /// A hand-over is one message in each direction.
    pub fn read(&self, lease: Duration) -> Result<Guard<'_>, Error> {
        self.read_timeout(lease, WAIT)
    }

    /// As [`read`](Self::read), waiting up to `timeout` (at most [`WAIT_MAX`](crate::WAIT_MAX)).
    ///
    /// # Errors
    /// As `read`.
    ///
    /// # Latency
    /// As `read`.
    pub fn read_timeout(&self, lease: Duration, timeout: Duration) -> Result<Guard<'_>, Error> {
        self.0.hold(Mode::Shared, lease_s(lease)?, timeout).map(Guard)
    }

    /// As [`try_read`](Self::try_read), with a guard that can be moved.
    ///
    /// # Errors
    /// As `try_read`.
    ///
    /// # Latency
    /// As `try_read`.
    pub fn try_read_owned(&self, lease: Duration) -> Result<OwnedGuard, Error> {
        self.0.try_hold_owned(Mode::Shared, lease_s(lease)?).map(OwnedGuard)
    }

    /// As [`read`](Self::read), with a guard that can be moved.
    ///
    /// # Errors
    /// As `read`.
    ///
    /// # Latency
    /// As `read`.
    pub fn read_owned(&self, lease: Duration) -> Result<OwnedGuard, Error> {
        self.read_timeout_owned(lease, WAIT)
    }

    /// As [`read_timeout`](Self::read_timeout), with a guard that can be moved.
    ///
    /// # Errors
    /// As `read`.
    ///
    /// # Latency
    /// As `read`.
    pub fn read_timeout_owned(
        &self,
        lease: Duration,
        timeout: Duration,
    ) -> Result<OwnedGuard, Error> {
        self.0.hold_owned(Mode::Shared, lease_s(lease)?, timeout).map(OwnedGuard)
    }

    /// Takes the lock for writing if it is free; leaves the queue again if it is not. The lease is
    /// as
    /// for [`try_read`](Self::try_read).
    ///
    /// # Errors
    /// As [`try_read`](Self::try_read).
    ///
    /// # Latency
    /// One round trip; 5 s at most.
    #[inline]
    pub fn try_write(&self, lease: Duration) -> Result<Guard<'_>, Error> {
        self.0.try_hold(Mode::Exclusive, lease_s(lease)?).map(Guard)
    }

    /// Takes the lock for writing, waiting up to 5 s for its turn; leaves the queue if it does not
    /// come.
    ///
    /// # Errors
    /// As [`try_write`](Self::try_write), but `TimedOut` for `Held`.
    ///
    /// # Latency
    /// A hand-over is one message in each direction.
    pub fn write(&self, lease: Duration) -> Result<Guard<'_>, Error> {
        self.write_timeout(lease, WAIT)
    }

    /// As [`write`](Self::write), waiting up to `timeout` (at most [`WAIT_MAX`](crate::WAIT_MAX)).
    ///
    /// # Errors
    /// As `write`.
    ///
    /// # Latency
    /// As `write`.
    pub fn write_timeout(&self, lease: Duration, timeout: Duration) -> Result<Guard<'_>, Error> {
        self.0.hold(Mode::Exclusive, lease_s(lease)?, timeout).map(Guard)
    }

    /// As [`try_write`](Self::try_write), with a guard that can be moved.
    ///
    /// # Errors
    /// As `try_write`.
    ///
    /// # Latency
    /// As `try_write`.
    pub fn try_write_owned(&self, lease: Duration) -> Result<OwnedGuard, Error> {
        self.0.try_hold_owned(Mode::Exclusive, lease_s(lease)?).map(OwnedGuard)
    }

    /// As [`write`](Self::write), with a guard that can be moved.
    ///
    /// # Errors
    /// As `write`.
    ///
    /// # Latency
    /// As `write`.
    pub fn write_owned(&self, lease: Duration) -> Result<OwnedGuard, Error> {
        self.write_timeout_owned(lease, WAIT)
    }

    /// As [`write_timeout`](Self::write_timeout), with a guard that can be moved.
    ///
    /// # Errors
    /// As `write`.
    ///
    /// # Latency
    /// As `write`.
    pub fn write_timeout_owned(
        &self,
        lease: Duration,
        timeout: Duration,
    ) -> Result<OwnedGuard, Error> {
        self.0.hold_owned(Mode::Exclusive, lease_s(lease)?, timeout).map(OwnedGuard)
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
    pub async fn read_async(&self, lease: Duration) -> Result<OwnedGuard, Error> {
        self.0.hold_async(Mode::Shared, lease_s(lease)?, WAIT).await.map(OwnedGuard)
    }

    /// As [`read_async`](Self::read_async), waiting up to `timeout` (at most
    /// [`WAIT_MAX`](crate::WAIT_MAX)).
    ///
    /// # Errors
    /// As `read_async`.
    ///
    /// # Cancellation
    /// As `read_async`.
    ///
    /// # Latency
    /// As `read_async`.
    pub async fn read_timeout_async(
        &self,
        lease: Duration,
        timeout: Duration,
    ) -> Result<OwnedGuard, Error> {
        self.0.hold_async(Mode::Shared, lease_s(lease)?, timeout).await.map(OwnedGuard)
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
    pub async fn write_async(&self, lease: Duration) -> Result<OwnedGuard, Error> {
        self.0.hold_async(Mode::Exclusive, lease_s(lease)?, WAIT).await.map(OwnedGuard)
    }

    /// As [`write_async`](Self::write_async), waiting up to `timeout` (at most
    /// [`WAIT_MAX`](crate::WAIT_MAX)).
    ///
    /// # Errors
    /// As `write_async`.
    ///
    /// # Cancellation
    /// As `write_async`.
    ///
    /// # Latency
    /// As `write_async`.
    pub async fn write_timeout_async(
        &self,
        lease: Duration,
        timeout: Duration,
    ) -> Result<OwnedGuard, Error> {
        self.0.hold_async(Mode::Exclusive, lease_s(lease)?, timeout).await.map(OwnedGuard)
    }
}
