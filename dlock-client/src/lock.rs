// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lock object of a program, and the ways to acquire it.
//!
//! ```text
//!   Lock ──acquire(mode)──▶ Acquire ──lease, wait──▶ guard()   Guard, borrows the lock
//!                                                    owned()   OwnedGuard, keeps it
//!                                                    .await    OwnedGuard, on any runtime
//! ```

use dlock_core::clock::Lease;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use dlock_core::ids::LockId;
use dlock_core::limits::LOCK_WAIT_S;
use dlock_core::wire::message::{LockType, Mode};
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::deadline_in;

use crate::client::ticks;
use crate::driver::acquiring::Acquiring;
use crate::driver::renewals::{begin, Renew};
use crate::error::Error;
use crate::events::Events;
use crate::guard::{Guard, Hold, Keep, OwnedGuard};
use crate::instance::GuardWait;
use crate::mutex::Threads;
use crate::reference::Reference;

/// The lease of an acquire that sets none.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(30);
/// How long an acquire waits that sets no time.
pub const WAIT_DEFAULT: Duration = Duration::from_secs(LOCK_WAIT_S);

/// The time for which [`Wait::Forever`] waits: a century.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

/// How long an acquire may wait for other holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: the client tries once.
    No,
    /// For this long at most.
    For(Duration),
    /// Until the client is granted the lock, or can no longer get it.
    Forever,
}

impl From<Duration> for Wait {
    fn from(wait: Duration) -> Self {
        Self::For(wait)
    }
}

/// A lock of the primary. Clones of this object, and other lock objects of the same client and
/// name, are one lock. When the program drops the last of them, the client gives the lock back to
/// the primary.
#[derive(Clone, Debug)]
pub struct Lock {
    reference: Arc<Reference>,
    id: LockId,
    lock_type: LockType,
}

impl Lock {
    pub(crate) fn new(reference: Arc<Reference>, id: LockId, lock_type: LockType) -> Self {
        Self { reference, id, lock_type }
    }

    /// The lock's number at the primary.
    pub fn id(&self) -> LockId {
        self.id
    }

    /// The type of the lock.
    pub fn lock_type(&self) -> LockType {
        self.lock_type
    }

    /// Whether this process got the lock: a forked child did not.
    pub(crate) fn is_here(&self) -> bool {
        self.reference.is_here()
    }

    /// The threads of this program that use the lock as a [`Mutex`](crate::Mutex).
    pub(crate) fn threads(&self) -> &Threads {
        self.reference.threads()
    }

    /// The events of this lock alone; see [`Client::events`](crate::Client::events).
    pub fn events(&self, bound: usize) -> Events {
        self.reference.shared().events(Some(self.id), bound, self.reference.tasks())
    }

    /// Sets whether this client keeps the lock after its release, until another client wants it.
    ///
    /// While the client keeps the lock, acquires and releases by its program take no message and no
    /// word operation. The first release that keeps the lock is a request to the primary, which
    /// makes the lease twice as long. When another client wants the lock, the primary asks for it:
    /// a lock that is not in use is given back at once, by the thread of the library, and one in
    /// use by its next release. A lock that others have wanted is not kept again for 10 ms, and for
    /// up to 10 s if the client keeps giving it back unused. A client keeps up to 1,024 locks.
    ///
    /// Keeping ends with the session: after a failover or a new connection the client keeps only
    /// what its program holds. An exclusive hold with a [token](crate::Guard::token) is not kept,
    /// because each hold has a token of its own.
    ///
    /// # Errors
    /// `Disconnected` (another thread uses the lock for 5 s), `Left`.
    ///
    /// # Latency
    /// None; 5 s at most while another thread uses the lock.
    pub fn cache(&self, does: bool) -> Result<(), Error> {
        Error::check(self.reference.instance().cache(self.id, does))
    }

    /// How many acquires this client has served by itself since it keeps the lock; `None`: it does
    /// not keep the lock at present.
    ///
    /// # Latency
    /// As [`cache`](Self::cache).
    pub fn cache_hits(&self) -> Option<u64> {
        self.reference.instance().cache_hits(self.id)
    }

    /// Makes an acquire of the lock; [`Acquire::guard`], [`Acquire::owned`] or `.await` carries it
    /// out. An atomic lock has no shared mode: carrying out a shared acquire fails with `Invalid`.
    #[inline]
    pub fn acquire(&self, mode: Mode) -> Acquire<'_> {
        Acquire { lock: self, mode, lease: None, wait: Wait::For(WAIT_DEFAULT), renew: None }
    }
}

/// An acquire that has not begun.
///
/// ```
/// # use std::time::Duration;
/// # use dlock_client::{Client, Config, Mode, Wait};
/// # async fn acquires(client: Client) -> Result<(), dlock_client::Error> {
/// let table = client.fair_lock("table 7")?;
/// let reader = table.acquire(Mode::Shared).guard()?;
/// drop(reader);
/// let lease = Duration::from_secs(10);
/// let writer = table.acquire(Mode::Exclusive).lease(lease).wait(Wait::No).owned()?;
/// drop(writer);
/// let writer = table.acquire(Mode::Exclusive).wait(Duration::from_secs(5)).await?;
/// writer.unlock_async().await
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is acquired before `guard`, `owned` or `await`"]
pub struct Acquire<'a> {
    lock: &'a Lock,
    mode: Mode,
    lease: Option<Duration>,
    wait: Wait,
    renew: Option<Renew>,
}

impl<'a> Acquire<'a> {
    /// Sets the lease. When the lease ends, counted from the grant, other clients may get the lock
    /// though the program did not release it. The lease is rounded up to sixteenths of a second. It
    /// is at least [`LEASE_MIN`](crate::LEASE_MIN) and at most [`LEASE_MAX`](crate::LEASE_MAX),
    /// which never ends; without this call it is [`LEASE_DEFAULT`], and a hold of a read-write lock
    /// has no lease. The primary itself grants and ends the holds of a read-write lock that have
    /// one: an acquire and a release are a request each, also over shared memory.
    #[inline]
    pub fn lease(self, lease: Duration) -> Self {
        Self { lease: Some(lease), ..self }
    }

    /// Sets how long to wait for other holders; without this call [`WAIT_DEFAULT`].
    #[inline]
    pub fn wait(self, wait: impl Into<Wait>) -> Self {
        Self { wait: wait.into(), ..self }
    }

    /// Has the library renew the lease until the lock is released, also over a failover.
    ///
    /// The library renews the lease after a third of it, and tries again until the lease ends. If
    /// the library cannot renew the lease, it gives the hold up shortly before the lease ends, and
    /// the next call of the guard returns the loss. A renewal belongs to the hold: guards that
    /// share the hold share the renewal, until the last of them ends. For a read-write lock it is
    /// `Invalid` without a lease.
    #[inline]
    pub fn renew(self, renew: Renew) -> Self {
        Self { renew: Some(renew), ..self }
    }

    /// Acquires the lock; the guard borrows it.
    ///
    /// # Errors
    /// `Held` ([`Wait::No`]), `TimedOut`, `Invalid` (the lease, or a shared mode of an atomic
    /// lock), `NotReady`, `Disconnected`, `Left`, `Removed`, `Denied`.
    ///
    /// # Latency
    /// One round trip for a free lock, none over shared memory. For a lock that is held, as long as
    /// the acquire waits, and 5 s at most beyond that.
    #[inline]
    pub fn guard(self) -> Result<Guard<'a>, Error> {
        let keep = self.lock.reference.instance();
        self.hold(keep).map(Guard)
    }

    /// Acquires the lock. The guard keeps the lock and its client alive, and can be moved.
    ///
    /// # Errors
    /// As [`guard`](Self::guard).
    ///
    /// # Latency
    /// As `guard`.
    pub fn owned(self) -> Result<OwnedGuard, Error> {
        let keep = Arc::clone(&self.lock.reference);
        self.hold(keep).map(OwnedGuard)
    }

    #[inline]
    fn hold<K: Keep>(self, keep: K) -> Result<Hold<K>, Error> {
        let lease = self.term()?;
        let (id, mode) = (self.lock.id, self.mode);
        let (result, number) = match self.until() {
            None => keep.instance().try_guard(id, mode, lease),
            Some(wait) => keep.instance().wait_guard(id, mode, lease, deadline_in(wait)),
        };
        match result.status {
            Status::Success | Status::AlreadyLocked => {
                let hold = Hold::new(keep, id, mode, number, result.view);
                if let Some(terms) = self.renew {
                    begin(&self.lock.reference, &hold, lease, terms)?;
                }
                Ok(hold)
            }
            Status::Fail | Status::Again if self.wait != Wait::No => Err(Error::TimedOut),
            status => Err(Error::of(status)),
        }
    }

    #[inline]
    fn term(&self) -> Result<Lease, Error> {
        match (self.lock.lock_type, self.lease) {
            (LockType::Atomic, _) if self.mode == Mode::Shared => {
                Err(Error::Invalid("an atomic lock has no shared mode"))
            }
            (LockType::Rw, None) if self.renew.is_none() => Ok(Lease::ENDLESS),
            (LockType::Rw, None) => Err(Error::Invalid("a renewal without a lease")),
            (_, lease) => ticks(lease.unwrap_or(LEASE_DEFAULT)),
        }
    }

    /// The longest time that the acquire waits; `None`: it tries once.
    #[inline]
    fn until(&self) -> Option<Duration> {
        match self.wait {
            Wait::No => None,
            Wait::For(wait) => Some(wait.min(FOREVER)),
            Wait::Forever => Some(FOREVER),
        }
    }
}

#[cfg(test)]
impl Lock {
    pub(crate) fn reference(&self) -> Arc<Reference> {
        Arc::clone(&self.reference)
    }
}

impl IntoFuture for Acquire<'_> {
    type Output = Result<OwnedGuard, Error>;
    type IntoFuture = AcquireFuture;

    fn into_future(self) -> AcquireFuture {
        AcquireFuture {
            wait: self.wait,
            renew: self.renew.clone(),
            stage: match self.term() {
                Ok(lease) => Stage::New {
                    reference: Arc::clone(&self.lock.reference),
                    id: self.lock.id,
                    mode: self.mode,
                    lease,
                    wait: self.until().unwrap_or(Duration::ZERO),
                },
                Err(error) => Stage::Refused(error),
            },
        }
    }
}

/// An acquire as a future, for any runtime; `.await` of an [`Acquire`] makes it. The first poll
/// begins the acquire, in the thread that polls; the time to wait counts from then on. A free lock
/// in shared memory is granted by the first poll. If the program drops the future before its end,
/// nothing stays held or queued.
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub struct AcquireFuture {
    wait: Wait,
    renew: Option<Renew>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    New { reference: Arc<Reference>, id: LockId, mode: Mode, lease: Lease, wait: Duration },
    Refused(Error),
    Waiting(Acquiring),
    Over,
}

impl Future for AcquireFuture {
    type Output = Result<OwnedGuard, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut acquiring = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::New { reference, id, mode, lease, wait } => {
                let wait = GuardWait::new(id, mode, lease, wait);
                let renewal = self.renew.take().map(|terms| (lease, terms));
                reference.tasks().acquire(Arc::clone(&reference), wait, renewal)?
            }
            Stage::Waiting(acquiring) => acquiring,
            Stage::Refused(error) => return Poll::Ready(Err(error)),
            Stage::Over => return Poll::Pending, // the future was polled after its end
        };
        let polled = Pin::new(&mut acquiring).poll(context);
        if polled.is_pending() {
            self.stage = Stage::Waiting(acquiring);
        }
        polled.map(|result| match result {
            Ok(hold) => Ok(OwnedGuard(hold)),
            Err(Error::TimedOut) if self.wait == Wait::No => Err(Error::Held),
            Err(error) => Err(error),
        })
    }
}
