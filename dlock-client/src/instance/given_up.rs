// SPDX-License-Identifier: MIT OR Apache-2.0
//! Closes a session whose connections have ended before the client makes another one. So a process
//! at its limit of open files comes back with the descriptors that it had.
//!
//! ```text
//!   control connection and data path have ended ─▶ closed; `Ended` answers in their place
//!   either may go on ─▶ kept until the new session replaces it
//! ```
//! Closing changes no result: calls and operations fail as since the connections ended, holds
//! rest on the same horizon, and the client looks for a primary as before.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use dlock_core::memory::exec::Executor;
use dlock_fabric::os::clock::deadline_in;
use dlock_fabric::Ended;

use super::membership::LIFECYCLE_WAIT;
use super::{Instance, SessionState, LEFT};
use crate::control::{ShutdownHandle, CONTROL_WAIT};

impl Instance {
    /// As [`give_up_ended`](Self::give_up_ended). Does nothing while a call has `lifecycle` locked.
    pub(crate) fn try_give_up_ended(&self) {
        let Some(_alone) = self.lifecycle.try_write() else { return };
        if self.gate.load(Ordering::Relaxed) != LEFT {
            self.give_up_ended();
        }
    }

    /// Closes the connections of the session if all of them have ended. The caller has the write
    /// lock of `lifecycle`.
    pub(super) fn give_up_ended(&self) {
        let old = self.link.load_full();
        let is_ended = self.line.lock().as_ref().is_some_and(ShutdownHandle::has_ended);
        if !is_ended || !old.exec.is_over() {
            return;
        }
        self.close_control();
        let exec: Arc<dyn Executor> = Arc::new(Ended::after(&*old.exec));
        let (ended, pulse) = (Arc::clone(&exec), Arc::clone(&old.pulse));
        self.link.store(Arc::new(SessionState { exec, verbs: None, pulse, ..*old }));
        old.exec.end(); // no answer can come any more
        self.end_async(&old.exec, &ended);
        for (_, index) in self.table.indices() {
            let lock_slot = self.table.lock_slot(index);
            // an operation that takes longer keeps the descriptors open until it is over
            if let Some(mut guard) = lock_slot.lock_until(|| deadline_in(LIFECYCLE_WAIT)) {
                if let Some(held) = guard.as_mut() {
                    held.ends_with(&old.exec, &ended);
                }
            }
            lock_slot.changed.notify_all();
        }
    }

    /// Closes the control connection if the primary, or its host, has ended it.
    pub(super) fn close_ended_control(&self) {
        if self.line.lock().as_ref().is_none_or(ShutdownHandle::has_ended) {
            self.close_control();
        }
    }

    fn close_control(&self) {
        if let Some(line) = self.line.lock().take() {
            line.end();
        }
        // a call under way on the connection ends with it
        if let Some(mut control) = self.control.try_lock_for(CONTROL_WAIT) {
            *control = None;
        }
    }
}
