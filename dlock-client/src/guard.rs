// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guards: a lock is held as long as its guard lives, or until its lease ends.

use std::time::Duration;

use dlock_core::ids::LockId;
use dlock_core::lock::View;
use dlock_core::message::Mode;
use dlock_core::status::Status;

use crate::client::lease_s;
use crate::error::Error;
use crate::instance::Instance;

/// What all guards are made of.
#[derive(Debug)]
pub(crate) struct Hold<'a> {
    instance: &'a Instance,
    lock: LockId,
    mode: Mode,
    /// Which hold of the instance's it is.
    number: u64,
    view: Option<View>,
}

impl<'a> Hold<'a> {
    #[inline]
    pub(crate) fn new(
        instance: &'a Instance,
        lock: LockId,
        mode: Mode,
        number: u64,
        view: Option<View>,
    ) -> Self {
        Self { instance, lock, mode, number, view }
    }

    #[inline]
    fn release(&mut self) -> Result<(), Error> {
        match self.instance.end_guard(self.lock, self.number) {
            Status::Success | Status::AlreadyLocked => Ok(()),
            status => Err(Error::of_holder(status)),
        }
    }

    fn unlock(self) -> Result<(), Error> {
        let mut this = std::mem::ManuallyDrop::new(self); // it owns nothing but the hold
        this.release()
    }
}

impl Drop for Hold<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Err(e) = self.release() {
            log::warn!("lock {}: {e}", self.lock);
        }
    }
}

/// A hold on an atomic or a fair lock. Dropping it releases the lock; errors are logged then.
///
/// Forgetting a guard (`std::mem::forget`) keeps the lock from this client's other threads for
/// good, and from other clients until the lease ends.
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard<'a>(pub(crate) Hold<'a>);

impl Guard<'_> {
    /// How the lock is held.
    pub fn mode(&self) -> Mode {
        self.0.mode
    }

    /// The end of the lease in seconds since 1970 on the server clock, as last granted.
    pub fn deadline_s(&self) -> u32 {
        match self.0.view {
            Some(View::Atomic { time_out, .. } | View::Fair { time_out, .. }) => time_out,
            Some(View::Rw { .. }) | None => 0,
        }
    }

    /// Moves the end of the lease to `lease` from now, never back; rounded up to whole seconds.
    ///
    /// # Errors
    /// `Lost` (the lock has another holder, or none), `Invalid`, `NotReady`, `Disconnected`.
    ///
    /// # Latency
    /// One round trip; 5 s at most.
    pub fn extend(&mut self, lease: Duration) -> Result<(), Error> {
        self.extend_by(lease_s(lease)?)
    }

    /// Asks whether the lock is still held.
    ///
    /// # Errors
    /// As [`extend`](Self::extend).
    ///
    /// # Latency
    /// As `extend`.
    pub fn check(&mut self) -> Result<(), Error> {
        self.extend_by(0)
    }

    fn extend_by(&mut self, expire_s: u32) -> Result<(), Error> {
        let Hold { instance, lock, mode, number, .. } = self.0;
        let result = instance.extend_guard(lock, number, mode, expire_s);
        match result.status {
            Status::Success => {
                self.0.view = result.view;
                Ok(())
            }
            Status::Invalid => Err(Error::Lost), // an earlier call found out
            status => Err(Error::of_holder(status)),
        }
    }

    /// Releases the lock, and tells how it went.
    ///
    /// # Errors
    /// `Lost` (it was not held any more), `NotReady`, `Disconnected` (it may still be held; the
    /// next acquire of this client finds out first).
    ///
    /// # Latency
    /// One round trip; 5 s at most.
    #[inline]
    pub fn unlock(self) -> Result<(), Error> {
        self.0.unlock()
    }
}

/// A hold on a read-write lock. Dropping it releases the lock; errors are logged then.
///
/// Forgetting a guard (`std::mem::forget`) keeps the lock for as long as the client lives.
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct RwGuard<'a>(pub(crate) Hold<'a>);

impl RwGuard<'_> {
    /// How the lock is held.
    pub fn mode(&self) -> Mode {
        self.0.mode
    }

    /// Releases the lock, and tells how it went.
    ///
    /// # Errors
    /// As [`Guard::unlock`].
    ///
    /// # Latency
    /// As `Guard::unlock`.
    pub fn unlock(self) -> Result<(), Error> {
        self.0.unlock()
    }
}
