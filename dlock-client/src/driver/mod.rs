// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library's own thread: one for each process, for all of its clients.
//!
//! ```text
//!   register(work) ─▶ driver ─ called, due, or its connection has an event ─▶ Work::turn
//!   Handle::call ─ eventfd ──┘   └─▶ Next: until when the work sleeps, what it watches, or Over
//! ```
//! The thread starts with the first work, and ends with the last. It blocks all signals. Neither a
//! call of the data path nor the exit of the process waits for it. A turn must not block: a work
//! that may take long goes to a thread that ends with that work ([`aside`]). A forked child has no
//! driver, and makes its own with its first work.

pub(crate) mod acquiring;
pub(crate) mod asked;
pub(crate) mod failover;
pub(crate) mod futures;
pub(crate) mod heartbeat;
pub(crate) mod kept;
pub(crate) mod renewals;
mod slot;

use std::io;
use std::mem;
use std::os::fd::BorrowedFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use dlock_core::memory::exec::Executor;
use dlock_fabric::os::clock::boot_ns;
use dlock_fabric::os::fork::{self, Owner};
use dlock_fabric::os::threads::spawn_without_signals;
use dlock_fabric::os::wake::{Wake, Watched};
use parking_lot::Mutex;

use crate::control::ShutdownHandle;

/// A piece of work that gets turns of the driver until it is over.
pub(crate) trait Work: Send {
    /// Does what there is to do now, without blocking. `has_event`: whether the connection that the
    /// work watches has an event. `is_called`: whether the work's handle was called.
    fn turn(&mut self, has_event: bool, is_called: bool) -> Next;
}

/// When a work has its next turn, if its handle is not called before.
pub(crate) enum Next {
    /// At this time of the client's own clock, or earlier if the source has an event.
    Until(u64, Source),
    /// Never: the driver drops the work.
    Over,
}

/// What the driver's thread watches for a [`Work`] that sleeps: an event there gives the work its
/// turn early.
pub(crate) enum Source {
    None,
    Control(ShutdownHandle, Watched),
    /// The inputs of a session.
    Session(Arc<dyn Executor>),
}

impl Source {
    fn descriptors(&self) -> [Option<(BorrowedFd<'_>, Watched)>; 2] {
        match self {
            Self::None => [None; 2],
            Self::Control(line, what) => [Some((line.fd(), *what)), None],
            Self::Session(exec) => exec.inputs().map(|fd| fd.map(|fd| (fd, Watched::Input))),
        }
    }
}

/// The handle that calls one work of the driver.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    owner: Owner,
    is_called: Arc<AtomicBool>,
    wake: Arc<Wake>,
}

impl Handle {
    /// Gives the work a turn soon. A forked child must not wake its parent's driver.
    pub(crate) fn call(&self) {
        if self.owner.is_here() && !self.is_called.swap(true, Ordering::SeqCst) {
            self.wake.wake();
        }
    }
}

struct Driver {
    process: u64,
    inbox: Mutex<Inbox>,
}

#[derive(Default)]
struct Inbox {
    added: Vec<Entry>,
    /// The eventfd that the thread sleeps on; `None`: there is no thread.
    wake: Option<Arc<Wake>>,
}

struct Entry {
    work: Box<dyn Work>,
    is_called: Arc<AtomicBool>,
    until_ns: u64,
    source: Source,
    has_event: bool,
}

/// Adds a work to the driver; `make` makes the work.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn register(make: impl FnOnce(&Handle) -> Box<dyn Work>) -> io::Result<()> {
    let driver = Driver::of_this_process();
    let mut inbox = driver.inbox.lock();
    let wake = match &inbox.wake {
        Some(wake) => Arc::clone(wake),
        None => {
            let wake = Arc::new(Wake::new());
            let (driver, of_thread) = (Arc::clone(&driver), Arc::clone(&wake));
            spawn_without_signals("dlock-client", move || driver.run(&of_thread))?;
            inbox.wake = Some(Arc::clone(&wake));
            wake
        }
    };
    let is_called = Arc::new(AtomicBool::new(true));
    let handle = Handle { owner: Owner::current(), is_called: Arc::clone(&is_called), wake };
    let work = make(&handle);
    inbox.added.push(Entry {
        work,
        is_called,
        until_ns: 0,
        source: Source::None,
        has_event: false,
    });
    drop(inbox);
    handle.wake.wake();
    Ok(())
}

/// Starts a thread for a piece of work that may block; the thread ends with the work.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn aside(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    spawn_without_signals(name, work)
}

impl Driver {
    fn of_this_process() -> Arc<Self> {
        static DRIVER: ArcSwapOption<Driver> = ArcSwapOption::const_empty();
        let process = fork::process();
        let is_mine = |driver: &Arc<Self>| driver.process == process;
        let before = DRIVER.rcu(|driver| match driver {
            Some(mine) if is_mine(mine) => Some(Arc::clone(mine)),
            _ => Some(Arc::new(Self { process, inbox: Mutex::default() })),
        });
        // in a forked child the work of the parent's driver is not dropped
        mem::forget(before.filter(|driver| !is_mine(driver)));
        // the driver was stored just now, and is never taken out
        DRIVER.load_full().expect("the driver of this process")
    }

    fn run(&self, wake: &Wake) {
        let mut all: Vec<Entry> = Vec::new();
        loop {
            let mut inbox = self.inbox.lock();
            all.append(&mut inbox.added);
            if all.is_empty() {
                inbox.wake = None;
                return;
            }
            drop(inbox);
            let now_ns = boot_ns();
            all.retain_mut(|entry| !entry.is_due(now_ns) || entry.turn());
            let until_ns = all.iter().map(|entry| entry.until_ns).min().unwrap_or(0);
            let (mut watched, mut owners) = (Vec::new(), Vec::new());
            for (owner, entry) in all.iter().enumerate() {
                for descriptor in entry.source.descriptors().into_iter().flatten() {
                    watched.push(descriptor);
                    owners.push(owner);
                }
            }
            let events = wake.sleep(&watched, until_ns);
            for (owner, has_event) in owners.into_iter().zip(events) {
                all[owner].has_event |= has_event;
            }
        }
    }
}

impl Entry {
    fn is_due(&self, now_ns: u64) -> bool {
        self.has_event || self.until_ns <= now_ns || self.is_called.load(Ordering::SeqCst)
    }

    /// Gives the work its turn; returns whether it has another one. If a work panics, for example
    /// in a waker of the program, only this work ends.
    fn turn(&mut self) -> bool {
        let is_called = self.is_called.swap(false, Ordering::SeqCst);
        let has_event = mem::take(&mut self.has_event);
        match catch_unwind(AssertUnwindSafe(|| self.work.turn(has_event, is_called))) {
            Ok(Next::Until(until_ns, source)) => {
                (self.until_ns, self.source) = (until_ns, source);
                true
            }
            Ok(Next::Over) => false,
            Err(_) => {
                log::error!(
                    "a client is not looked after any more: its work has ended by a panic; start \
                     the program again"
                );
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{channel, Sender};
    use std::time::Duration;

    use super::*;

    /// Reports each of its turns, and is over after a number of turns.
    struct Tells(Sender<bool>, u32, u64);

    impl Work for Tells {
        fn turn(&mut self, has_event: bool, _: bool) -> Next {
            let _ = self.0.send(has_event); // the test may not receive any more
            self.1 -= 1;
            match self.1 {
                0 => Next::Over,
                _ => Next::Until(boot_ns().saturating_add(self.2), Source::None),
            }
        }
    }

    /// A work that panics in its first turn.
    struct Panics;

    impl Work for Panics {
        fn turn(&mut self, _: bool, _: bool) -> Next {
            panic!("as the waker of a program")
        }
    }

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn a_work_that_panics_ends_alone() {
        let (tells, told) = channel();
        register(|_| Box::new(Panics)).unwrap();
        register(|_| Box::new(Tells(tells, 3, 1_000_000))).unwrap();
        assert_eq!(told.iter().count(), 3);
    }

    #[test]
    fn a_work_has_a_turn_at_first_when_it_is_called_and_at_its_time_until_it_is_over() {
        let (tells, told) = channel();
        let mut handle = None;
        register(|of_work| {
            handle = Some(of_work.clone());
            Box::new(Tells(tells, 2, u64::MAX / 2))
        })
        .unwrap();
        assert_eq!(told.recv_timeout(SOON), Ok(false));
        handle.unwrap().call();
        assert_eq!(told.recv_timeout(SOON), Ok(false));
        assert!(told.recv_timeout(SOON).is_err(), "it is dropped");
        let (tells, told) = channel();
        register(|_| Box::new(Tells(tells, 3, 1_000_000))).unwrap();
        assert_eq!(told.iter().count(), 3);
    }
}
