// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a process has once, with a thread of the library that looks after it. A forked child has
//! none of its parent's threads, one of which may have held the mutex when it forked: it makes its
//! own.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use dlock_fabric::threads::spawn_without_signals;
use parking_lot::{Condvar, Mutex, MutexGuard};

/// Where the list of this process is found.
pub(crate) type Cell<T> = ArcSwapOption<PerProcess<T>>;

/// A list of the things that a thread looks after.
pub(crate) struct PerProcess<T> {
    process: u32,
    pub(crate) list: Mutex<List<T>>,
    pub(crate) changed: Condvar,
}

/// The things, and whether the thread runs.
pub(crate) struct List<T> {
    pub(crate) all: Vec<T>,
    pub(crate) has_thread: bool,
}

impl<T: Send + 'static> PerProcess<T> {
    /// That of this process.
    pub(crate) fn mine(cell: &Cell<T>) -> Arc<Self> {
        let process = std::process::id();
        let is_mine =
            |mine: &Option<Arc<Self>>| mine.as_ref().is_some_and(|m| m.process == process);
        cell.rcu(|mine| match is_mine(mine) {
            true => mine.clone(),
            false => Some(Arc::new(Self {
                process,
                list: Mutex::new(List { all: Vec::new(), has_thread: false }),
                changed: Condvar::new(),
            })),
        });
        // it was stored just now, and is never taken out
        cell.load_full().expect("the list of this process")
    }

    /// Adds one, and sees to it that the thread runs; false if it cannot be started.
    pub(crate) fn add(&self, one: T, name: &str, run: fn()) -> bool {
        let mut list = self.list.lock();
        list.all.push(one);
        if !list.has_thread {
            match spawn_without_signals(name, run) {
                Ok(()) => list.has_thread = true,
                Err(error) => {
                    list.all.pop();
                    log::error!("no thread {name}: {error}");
                    return false;
                }
            }
        }
        MutexGuard::unlock_fair(list);
        self.changed.notify_all();
        true
    }
}
