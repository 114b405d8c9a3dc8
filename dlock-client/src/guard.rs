// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guards: the client holds a lock as long as the guard lives, or until the lease ends.
//!
//! ```text
//!   Guard<'a>     Hold<&'a Instance>       borrows its lock object
//!   OwnedGuard    Hold<Arc<Reference>>     keeps the lock and its client, and can be moved
//! ```
//! A hold belongs to the client, not to a thread. Every guard is `Send` and `Sync`; a thread may
//! drop a guard that another thread has acquired.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::clock::{Lease, Now};
use dlock_core::ids::LockId;
use dlock_core::lock::{OpResult, TimeOut, View};
use dlock_core::operation::lease;
use dlock_core::token::Token;
use dlock_core::wire::message::Mode;
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::boot_ns;

use crate::client::ticks;
use crate::driver::heartbeat::Pulse;
use crate::error::Error;
use crate::instance::Instance;
use crate::reference::Reference;

/// The error for a share of an atomic lock.
const ATOMIC_HAS_NO_SHARES: Error = Error::Invalid("an atomic lock has no shares");

/// A reference that keeps an instance for as long as a guard lives.
pub(crate) trait Keep {
    fn instance(&self) -> &Instance;
}

impl Keep for &Instance {
    #[inline]
    fn instance(&self) -> &Instance {
        self
    }
}

impl Keep for Arc<Reference> {
    #[inline]
    fn instance(&self) -> &Instance {
        Reference::instance(self)
    }
}

/// One hold: the common part of all guards.
#[derive(Debug)]
pub(crate) struct Hold<K: Keep> {
    keep: K,
    lock: LockId,
    mode: Mode,
    /// The number of the hold; no other hold of the instance has the same.
    number: u64,
    view: Option<View>,
    is_released: bool,
}

impl<K: Keep> Hold<K> {
    #[inline]
    pub(crate) fn new(keep: K, lock: LockId, mode: Mode, number: u64, view: Option<View>) -> Self {
        Self { keep, lock, mode, number, view, is_released: false }
    }

    #[inline]
    fn release(&mut self) -> Result<(), Error> {
        self.is_released = true;
        released(self.keep.instance().end_guard(self.lock, self.number))
    }

    pub(crate) fn lock(&self) -> LockId {
        self.lock
    }

    /// The number of the hold; no other hold of the instance has the same.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Marks the hold as released: another part of the library releases it.
    pub(crate) fn ends_elsewhere(mut self) {
        self.is_released = true;
    }

    #[inline]
    pub(crate) fn unlock(mut self) -> Result<(), Error> {
        self.release()
    }

    fn lease_end(&self) -> Option<TimeOut> {
        match self.view {
            Some(
                View::Atomic { time_out, .. }
                | View::Fair { time_out, .. }
                | View::Rw { time_out, is_leased: true, .. },
            ) => Some(time_out),
            Some(View::Rw { .. }) | None => None,
        }
    }

    fn lease_end_ms(&self) -> Option<u64> {
        let granted = self.lease_end()?;
        let known = self.keep.instance().lease_end_of_guard(self.lock, self.number);
        Some(known.unwrap_or(granted).millis())
    }

    /// Whether the program may still be given this hold: the primary granted it at the clock
    /// reading `read`, on the session of this pulse.
    pub(crate) fn may_be_told(&self, read: Now, pulse: &Pulse) -> bool {
        let read = Now { horizon_ns: self.keep.instance().horizon_ns_of(pulse), ..read };
        lease::may_be_told(self.lease_end().map(|end| end.at), read, boot_ns())
    }

    fn known(&self) -> Result<(), Error> {
        match self.keep.instance().known_of_guard(self.lock, self.number) {
            Status::Success => Ok(()),
            status => Err(Error::of_holder(status)),
        }
    }

    fn token(&self) -> Option<Token> {
        self.keep.instance().token_of_guard(self.lock, self.number)
    }

    /// Whether this client knows that it holds the lock, and that no other client can have it.
    pub(crate) fn is_surely_held(&self) -> bool {
        self.keep.instance().surely_has_guard(self.lock, self.number)
    }

    /// Checks the hold. A hold without a lease ends only with the session, so the client does not
    /// ask the primary about it.
    fn check(&mut self) -> Result<(), Error> {
        match self.lease_end() {
            Some(end) if !end.at.is_never() => self.extend_by(Lease::NONE),
            _ => self.known(),
        }
    }

    fn extend(&mut self, lease: Duration) -> Result<(), Error> {
        match self.lease_end() {
            Some(_) => self.extend_by(ticks(lease)?),
            None => Err(Error::Invalid("this hold of a read-write lock has no lease")),
        }
    }

    fn extend_by(&mut self, lease: Lease) -> Result<(), Error> {
        let instance = self.keep.instance();
        let result = instance.extend_guard(self.lock, self.number, self.mode, lease);
        self.goes_on(result)
    }

    fn downgrade(&mut self) -> Result<(), Error> {
        if let Some(View::Atomic { .. }) = self.view {
            return Err(ATOMIC_HAS_NO_SHARES);
        }
        let (result, is_shared) = self.keep.instance().downgrade_guard(self.lock, self.number);
        if is_shared {
            self.mode = Mode::Shared;
        }
        self.goes_on(result)
    }

    /// Takes the state of a hold that goes on from the result of an operation on it.
    fn goes_on(&mut self, result: OpResult) -> Result<(), Error> {
        match result.status {
            Status::Success => {
                self.view = result.view;
                Ok(())
            }
            Status::Invalid => Err(Error::Lost), // an earlier call has learnt that the hold is lost
            status => Err(Error::of_holder(status)),
        }
    }
}

impl Hold<Arc<Reference>> {
    pub(crate) fn reference(&self) -> Arc<Reference> {
        Arc::clone(&self.keep)
    }
}

/// The result of a release with this status.
#[inline]
pub(crate) fn released(status: Status) -> Result<(), Error> {
    match status {
        Status::Success | Status::AlreadyLocked => Ok(()),
        status => Err(Error::of_holder(status)),
    }
}

impl<K: Keep> Drop for Hold<K> {
    #[inline]
    fn drop(&mut self) {
        if self.is_released {
            return;
        }
        if let Err(e) = self.release() {
            log::warn!("lock {}: {e}", self.lock);
        }
    }
}

/// A hold. Dropping the guard releases the lock; errors of that release are logged.
///
/// If a program forgets a guard (`std::mem::forget`), other threads of this client can never get
/// the lock. Other clients can get it when the lease ends or, if the lock has no lease, when this
/// client ends.
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard<'a>(pub(crate) Hold<&'a Instance>);

impl Guard<'_> {
    /// The mode in which the lock is held.
    pub fn mode(&self) -> Mode {
        self.0.mode
    }

    /// The end of the lease in milliseconds since 1970 on the server clock, as last granted or
    /// renewed: when its last sixteenth of a second begins. `None`: a hold of a read-write lock
    /// without a lease. `u64::MAX`: it does not end.
    ///
    /// # Latency
    /// As [`token`](Self::token).
    pub fn lease_end_ms(&self) -> Option<u64> {
        self.0.lease_end_ms()
    }

    /// The fencing token of the hold: a number from 1 to 2⁶³ − 1, which the program passes with
    /// each write to the resource that the lock protects ([`Client::lock_with_tokens`]). `None`:
    /// the lock was got without tokens, or this client knows that the hold is over.
    ///
    /// The token stays the same for the whole hold, with one exception: after a failover of which
    /// this client heard late, it may be larger. So ask for it just before it is used.
    ///
    /// [`Client::lock_with_tokens`]: crate::Client::lock_with_tokens
    ///
    /// # Latency
    /// None; 5 s at most while another thread uses the lock.
    pub fn token(&self) -> Option<Token> {
        self.0.token()
    }

    /// The generation of the hold: it distinguishes the hold from earlier and later holds of the
    /// lock by this client, also in [events](crate::Event). Shared holds that overlap have the same
    /// generation.
    pub fn generation(&self) -> u64 {
        self.0.number()
    }

    /// Moves the end of the lease to `lease` from now, never back. The lease is rounded up as that
    /// of the [acquire](crate::Acquire::lease).
    ///
    /// # Errors
    /// `Lost` (the lock has another holder, or none), `Invalid` (a hold without a lease),
    /// `NotReady`, `Disconnected`.
    ///
    /// # Latency
    /// One round trip; 5 s at most.
    pub fn extend(&mut self, lease: Duration) -> Result<(), Error> {
        self.0.extend(lease)
    }

    /// Makes the exclusive hold of a read-write or fair lock a shared one, without a moment at
    /// which another client could get the lock exclusively. Readers come in as the lock's rules let
    /// them; a writer waits on. The hold goes on: its lease, renewal and generation stay as they
    /// are, and its [token](Self::token) becomes that of the readers. A hold that is shared stays
    /// so.
    ///
    /// # Errors
    /// `Lost`, `Invalid` (an atomic lock has no shares), `NotReady`: as for `extend`, and the hold
    /// keeps its [mode](Self::mode). `Disconnected`: the answer was lost, so the hold counts as
    /// shared; the next operation with the guard, this one or another, asks the primary again.
    ///
    /// # Latency
    /// One round trip; 5 s at most.
    pub fn downgrade(&mut self) -> Result<(), Error> {
        self.0.downgrade()
    }

    /// Checks whether the lock is still held.
    ///
    /// For a hold without a lease, or with one without end, the result is what this client knows:
    /// that it lasts until the session's horizon, also while a successor recovers that has taken
    /// the claim of it. The primary ends such a hold when it ends the session, and says so when the
    /// client comes back ([`Client::reconnect`](crate::Client::reconnect)).
    ///
    /// # Errors
    /// `Lost`, `NotReady` (the client has not yet claimed the lock at a successor of the primary),
    /// `Disconnected` (also if the horizon has passed), `Left`.
    ///
    /// # Latency
    /// As `extend`. For a hold without a lease none, and 5 s at most while another thread uses the
    /// lock.
    pub fn check(&mut self) -> Result<(), Error> {
        self.0.check()
    }

    /// Whether this client has learnt that the hold is lost, for example because a successor of its
    /// primary has refused it. The client sends no message.
    ///
    /// # Latency
    /// None; 5 s at most while another thread uses the lock.
    pub fn is_known_lost(&self) -> bool {
        self.0.known() == Err(Error::Lost)
    }

    /// Releases the lock, and returns the result.
    ///
    /// # Errors
    /// `Lost` (the client did not hold the lock any more), `NotReady`, `Disconnected` (the primary
    /// may still regard the lock as held; the next acquire of this client finds out first).
    ///
    /// # Latency
    /// One round trip; 5 s at most, and 10 s more while other threads use the lock.
    #[inline]
    pub fn unlock(self) -> Result<(), Error> {
        self.0.unlock()
    }
}

/// A [`Guard`] that keeps its lock and its client, so that the program can move it into a thread, a
/// task or a struct.
#[derive(Debug)]
#[must_use = "the lock is released when the guard is dropped"]
pub struct OwnedGuard(pub(crate) Hold<Arc<Reference>>);

impl OwnedGuard {
    /// As [`Guard::mode`].
    pub fn mode(&self) -> Mode {
        self.0.mode
    }

    /// As [`Guard::lease_end_ms`].
    pub fn lease_end_ms(&self) -> Option<u64> {
        self.0.lease_end_ms()
    }

    /// As [`Guard::token`].
    ///
    /// # Latency
    /// As `Guard::token`.
    pub fn token(&self) -> Option<Token> {
        self.0.token()
    }

    /// As [`Guard::generation`].
    pub fn generation(&self) -> u64 {
        self.0.number()
    }

    /// As [`Guard::extend`].
    ///
    /// # Errors
    /// As `Guard::extend`.
    ///
    /// # Latency
    /// As `Guard::extend`.
    pub fn extend(&mut self, lease: Duration) -> Result<(), Error> {
        self.0.extend(lease)
    }

    /// As [`Guard::downgrade`].
    ///
    /// # Errors
    /// As `Guard::downgrade`.
    ///
    /// # Latency
    /// As `Guard::downgrade`.
    pub fn downgrade(&mut self) -> Result<(), Error> {
        self.0.downgrade()
    }

    /// As [`Guard::check`].
    ///
    /// # Errors
    /// As `Guard::check`.
    ///
    /// # Latency
    /// As `Guard::check`.
    pub fn check(&mut self) -> Result<(), Error> {
        self.0.check()
    }

    /// As [`Guard::is_known_lost`].
    ///
    /// # Latency
    /// As `Guard::is_known_lost`.
    pub fn is_known_lost(&self) -> bool {
        self.0.known() == Err(Error::Lost)
    }

    /// Releases the lock, and returns the result.
    ///
    /// # Errors
    /// As [`Guard::unlock`].
    ///
    /// # Latency
    /// As `Guard::unlock`. If this was the last reference to the lock, one control round trip more,
    /// 10 s at most.
    pub fn unlock(self) -> Result<(), Error> {
        self.0.unlock()
    }

    /// As [`unlock`](Self::unlock), without blocking the thread. (A drop blocks it.)
    ///
    /// # Errors
    /// As [`Guard::unlock`].
    ///
    /// # Cancellation
    /// Once the future was polled, the lock is released even if the program drops the future. If it
    /// drops the future before, the guard is dropped, which also releases the lock.
    ///
    /// # Latency
    /// As `unlock`, and two switches of threads.
    pub async fn unlock_async(self) -> Result<(), Error> {
        release(self.0).await
    }
}

async fn release(hold: Hold<Arc<Reference>>) -> Result<(), Error> {
    let tasks = Arc::clone(hold.keep.tasks());
    tasks.release(hold).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_can_be_moved_to_and_dropped_by_other_threads() {
        fn is_send_and_sync<T: Send + Sync>() {}
        is_send_and_sync::<Guard<'static>>();
        is_send_and_sync::<OwnedGuard>();
    }
}
