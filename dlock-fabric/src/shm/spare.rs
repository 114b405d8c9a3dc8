// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors that a process with shared memory keeps free for its next attach.
//!
//! A session has two connections, but an attach receives three more descriptors, which are closed
//! once the memory is mapped. Without spare ones a process at its limit of open files could have
//! attached to a primary, but not to its successor.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Descriptors that an attach receives: of the header, the slots and the ledger.
const SPARE: usize = 3;

/// Spare descriptors; kept while any session of this process uses shared memory.
#[derive(Debug, Default)]
pub(crate) struct Spare(Mutex<Vec<OwnedFd>>);

/// The spare descriptors of this process.
static OF_PROCESS: Mutex<Weak<Spare>> = Mutex::new(Weak::new());

impl Spare {
    /// The spare descriptors of this process; filled when an attach has succeeded.
    pub(crate) fn of_process() -> Arc<Self> {
        let mut known = OF_PROCESS.lock();
        known.upgrade().unwrap_or_else(|| {
            let spare = Arc::new(Self::default());
            *known = Arc::downgrade(&spare);
            spare
        })
    }

    /// Frees the descriptors for an attach that begins.
    pub(crate) fn release(&self) {
        self.0.lock().clear();
    }

    /// Takes the descriptors again after an attach; fewer if the limit is reached.
    pub(crate) fn keep(&self) {
        let mut kept = self.0.lock();
        while kept.len() < SPARE {
            let Ok(file) = File::open("/dev/null") else { return };
            kept.push(file.into());
        }
    }
}
