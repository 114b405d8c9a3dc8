// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors that a process on shared memory keeps free for its next attach.
//!
//! A session has two connections, but an attach brings three descriptors more, which are closed
//! when the memory is mapped. A process at its limit of open files could come to a primary, and
//! not to its successor.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// What an attach receives: the header, the slots and the ledger.
const SPARE: usize = 3;

/// Kept for as long as any session of this process is on shared memory.
#[derive(Debug, Default)]
pub(crate) struct Spare(Mutex<Vec<OwnedFd>>);

/// Of this process.
static OF_PROCESS: Mutex<Weak<Spare>> = Mutex::new(Weak::new());

impl Spare {
    /// That of this process; it is filled when an attach has succeeded.
    pub(crate) fn of_process() -> Arc<Self> {
        let mut known = OF_PROCESS.lock();
        known.upgrade().unwrap_or_else(|| {
            let spare = Arc::new(Self::default());
            *known = Arc::downgrade(&spare);
            spare
        })
    }

    /// An attach begins, and may use them.
    pub(crate) fn release(&self) {
        self.0.lock().clear();
    }

    /// It has ended. Where there are no descriptors, fewer are kept.
    pub(crate) fn keep(&self) {
        let mut kept = self.0.lock();
        while kept.len() < SPARE {
            let Ok(file) = File::open("/dev/null") else { return };
            kept.push(file.into());
        }
    }
}
