// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lock for the threads of all programs. It is re-entrant within a thread; the threads of one
//! program get it in the order of arrival; among programs it is a fair lock.
//!
//! ```text
//!   thread ──lock()──▶ queue of this program's threads ──the first──▶ fair lock at the primary
//!     │ is the owner: depth + 1, no message                                │
//!     └──────────── the last guard of the owner is dropped ◀───────────────┘
//! ```
//! The hold belongs to the owner, a thread, and not to one guard: it ends with the last guard of
//! that thread, which need not be the first one. Until then the library renews its lease. Each hold
//! is acquired at the primary: when a thread unlocks, the client that has waited longest gets the
//! lock, which may be another program's.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::thread::{self, ThreadId};
use std::time::Instant;

use dlock_core::token::Token;
use dlock_core::wire::message::Mode;
use parking_lot::Condvar;

use crate::driver::renewals::Renew;
use crate::error::Error;
use crate::guard::OwnedGuard;
use crate::lock::{Lock, Wait};

/// The threads of this program that use one mutex.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    state: parking_lot::Mutex<State>,
    /// Signalled when the owner has ended, or a thread has stopped waiting.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    owner: Option<Owner>,
    /// The threads that wait, by number, in the order of arrival.
    queue: VecDeque<u64>,
    next: u64,
}

#[derive(Debug)]
struct Owner {
    thread: ThreadId,
    /// The number of the owner's guards.
    depth: u32,
    /// `None` while the owner acquires, checks or releases the hold.
    hold: Option<OwnedGuard>,
}

/// A lock for threads. Clones, and mutexes of the same client and name, are one mutex. It is also
/// the fair lock of this name ([`Client::mutex`](crate::Client::mutex)).
#[derive(Clone, Debug)]
pub struct Mutex {
    lock: Lock,
}

/// A guard of a thread's hold. The hold ends with the thread's last guard of this mutex. Errors of
/// the release are logged; [`unlock`](Self::unlock) returns them.
///
/// A guard stays with its thread. If a program forgets a guard (`std::mem::forget`), no other
/// thread or program gets the mutex until this program ends.
#[derive(Debug)]
#[must_use = "the mutex is unlocked when the guard is dropped"]
pub struct MutexGuard<'a> {
    mutex: &'a Mutex,
    is_over: bool,
    /// Keeps the guard from being sent to another thread.
    thread: PhantomData<*const ()>,
}

impl Mutex {
    pub(crate) fn new(lock: Lock) -> Self {
        Self { lock }
    }

    /// Locks the mutex for this thread, and waits without limit. A thread that has the mutex
    /// already gets another guard, without a message.
    ///
    /// # Errors
    /// `Lost`: this thread has guards of a hold that was lost. It must drop them first: nothing
    /// that it does meanwhile is protected. `NotReady`, `Disconnected` (also in a forked child),
    /// `Left`, `Removed`, `Denied`.
    ///
    /// # Latency
    /// One round trip if the mutex is free, none over shared memory or for the owner; otherwise as
    /// long as the thread waits.
    pub fn lock(&self) -> Result<MutexGuard<'_>, Error> {
        self.lock_for(Wait::Forever)
    }

    /// As [`lock`](Self::lock), without waiting for other threads or programs.
    ///
    /// # Errors
    /// As `lock`; `Held`.
    ///
    /// # Latency
    /// As `lock`; 5 s at most.
    pub fn try_lock(&self) -> Result<MutexGuard<'_>, Error> {
        self.lock_for(Wait::No)
    }

    /// As [`lock`](Self::lock), with a limit on the wait for other threads and programs.
    ///
    /// # Errors
    /// As `lock`; `TimedOut`, or `Held` for [`Wait::No`].
    ///
    /// # Latency
    /// As `lock`; 5 s at most beyond the limit.
    pub fn lock_for(&self, wait: impl Into<Wait>) -> Result<MutexGuard<'_>, Error> {
        let wait = wait.into();
        if !self.lock.is_here() {
            return Err(Error::Disconnected); // a forked child has none of its parent's guards
        }
        let end = match wait {
            Wait::For(time) => Instant::now().checked_add(time),
            Wait::No | Wait::Forever => None,
        };
        if !self.goes_deeper()? {
            self.becomes_owner(wait, end)?;
            let wait = match (wait, end) {
                (Wait::For(_), Some(end)) => {
                    Wait::For(end.saturating_duration_since(Instant::now()))
                }
                (wait, _) => wait,
            };
            let hold = self.lock.acquire(Mode::Exclusive).wait(wait).renew(Renew::new()).owned();
            match hold {
                Ok(hold) => self.with_owner(|owner| owner.hold = Some(hold)),
                Err(error) => {
                    self.owner_ends();
                    return Err(error);
                }
            }
        }
        Ok(MutexGuard { mutex: self, is_over: false, thread: PhantomData })
    }

    /// Whether this thread has guards of the mutex. The client sends no message.
    pub fn is_owner(&self) -> bool {
        let state = self.threads().state.lock();
        state.owner.as_ref().is_some_and(|owner| owner.thread == thread::current().id())
    }

    fn threads(&self) -> &Threads {
        self.lock.threads()
    }

    /// Gives this thread one more guard, if it is the owner and its hold is not known to be lost.
    fn goes_deeper(&self) -> Result<bool, Error> {
        if !self.is_owner() {
            return Ok(false);
        }
        self.is_known()?;
        self.with_owner(|owner| match owner.depth.checked_add(1) {
            Some(depth) => {
                owner.depth = depth;
                Ok(true)
            }
            None => Err(Error::Invalid("a thread has at most 4294967295 guards of a mutex")),
        })
    }

    /// Waits until no thread of this program owns the mutex and this thread is the first in the
    /// queue; then makes this thread the owner.
    fn becomes_owner(&self, wait: Wait, end: Option<Instant>) -> Result<(), Error> {
        let threads = self.threads();
        let mut state = threads.state.lock();
        let is_free = |state: &State| state.owner.is_none();
        if wait == Wait::No && !(is_free(&state) && state.queue.is_empty()) {
            return Err(Error::Held);
        }
        let number = state.next;
        state.next += 1;
        state.queue.push_back(number);
        while !(is_free(&state) && state.queue.front() == Some(&number)) {
            let is_over = match end {
                Some(end) => threads.changed.wait_until(&mut state, end).timed_out(),
                None => {
                    threads.changed.wait(&mut state);
                    false
                }
            };
            if is_over {
                state.queue.retain(|&other| other != number);
                threads.changed.notify_all(); // another thread may be the first in the queue now
                return Err(Error::TimedOut);
            }
        }
        state.queue.pop_front();
        state.owner = Some(Owner { thread: thread::current().id(), depth: 1, hold: None });
        drop(state);
        Ok(())
    }

    /// Calls `f` with the owner, which is this thread.
    fn with_owner<T>(&self, f: impl FnOnce(&mut Owner) -> T) -> T {
        let mut state = self.threads().state.lock();
        f(state.owner.as_mut().expect("this thread is the owner"))
    }

    fn owner_ends(&self) {
        self.threads().state.lock().owner = None;
        self.threads().changed.notify_all();
    }

    /// Takes the hold out for the call of `f`, so that the mutex of the state is free while `f`
    /// asks the primary.
    fn with_hold<T>(&self, f: impl FnOnce(&mut OwnedGuard) -> T) -> Option<T> {
        let mut hold = self.with_owner(|owner| owner.hold.take())?;
        let result = f(&mut hold);
        self.with_owner(|owner| owner.hold = Some(hold));
        Some(result)
    }

    /// Fails if the owner's hold is known to be lost.
    fn is_known(&self) -> Result<(), Error> {
        match self.with_hold(|hold| hold.is_known_lost()) {
            Some(false) => Ok(()),
            _ => Err(Error::Lost),
        }
    }

    /// Ends a guard of this thread; the last one also ends the hold.
    fn unlock(&self) -> Result<(), Error> {
        let depth = self.with_owner(|owner| {
            owner.depth -= 1;
            owner.depth
        });
        if depth > 0 {
            return self.is_known();
        }
        let hold = self.with_owner(|owner| owner.hold.take());
        let result = hold.map_or(Err(Error::Lost), OwnedGuard::unlock);
        self.owner_ends();
        result
    }
}

impl MutexGuard<'_> {
    /// The fencing token of the hold, as [`Guard::token`](crate::Guard::token).
    pub fn token(&self) -> Option<Token> {
        self.mutex.with_hold(|hold| hold.token()).flatten()
    }

    /// Checks at the primary whether the lock is still held, as
    /// [`Guard::check`](crate::Guard::check).
    ///
    /// # Errors
    /// `Lost`, `NotReady`, `Disconnected`, `Left`.
    ///
    /// # Latency
    /// One round trip; 5 s at most.
    pub fn check(&self) -> Result<(), Error> {
        self.mutex.with_hold(OwnedGuard::check).unwrap_or(Err(Error::Lost))
    }

    /// Ends this guard. The thread's last guard also releases the lock.
    ///
    /// # Errors
    /// `Lost`: the lock was lost before, and another client may have held it in between. Every
    /// guard of the hold that ends after this client has learnt of the loss reports it. `NotReady`,
    /// `Disconnected`: from the last guard only; see [`Guard::unlock`](crate::Guard::unlock).
    ///
    /// # Latency
    /// The last guard: as `Guard::unlock`. Any other: none; 5 s at most while another thread uses
    /// the lock.
    pub fn unlock(mut self) -> Result<(), Error> {
        self.is_over = true;
        self.mutex.unlock()
    }
}

impl Drop for MutexGuard<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        if let Err(error) = self.mutex.unlock() {
            log::warn!("lock {}: {error}", self.mutex.lock.id());
        }
    }
}
