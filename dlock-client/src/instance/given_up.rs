// SPDX-License-Identifier: MIT OR Apache-2.0
//! A session whose connections have ended is closed before another one is made: a process at its
//! limit of open files comes back with the descriptors that it had.
//!
//! ```text
//!   control connection ended, and the data path, too ─▶ closed; Ended answers in their place
//!   either may go on ─▶ kept until the new session takes its place
//! ```
//! Nothing is decided here: calls and operations end as they have since the connections ended,
//! holds rest on the same horizon, and the client looks for a primary as before.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

use dlock_core::exec::Executor;
use dlock_fabric::Ended;

use super::membership::LIFECYCLE_WAIT;
use super::{Instance, SessionState, LEFT};
use crate::control::CONTROL_WAIT;

impl Instance {
    /// As [`give_up_ended`](Self::give_up_ended), unless a call that needs the session as it is
    /// runs just now.
    pub(crate) fn gives_up_ended(&self) {
        let Some(_alone) = self.lifecycle.try_write() else { return };
        if self.gate.load(Ordering::Relaxed) != LEFT {
            self.give_up_ended();
        }
    }

    /// Closes the connections of the session if all of them have ended. For who has the write lock
    /// of `lifecycle`.
    pub(super) fn give_up_ended(&self) {
        let is_given_up = self.line.lock().is_none();
        let old = self.link.load_full();
        if is_given_up || !self.is_control_ended() || !old.exec.is_over() {
            return;
        }
        self.close_ended_control();
        let exec: Arc<dyn Executor> = Arc::new(Ended::after(&*old.exec));
        let (ended, pulse) = (Arc::clone(&exec), Arc::clone(&old.pulse));
        self.link.store(Arc::new(SessionState { exec, verbs: None, pulse, ..*old }));
        old.exec.end(); // who waits there waits in vain
        self.end_async(&old.exec, &ended);
        for (_, index) in self.table.indices() {
            let lock_slot = self.table.lock_slot(index);
            // one that is in use for longer keeps the descriptors for as long
            if let Some(mut guard) = lock_slot.lock_until(|| Instant::now() + LIFECYCLE_WAIT) {
                if let Some(held) = guard.as_mut() {
                    held.ends_with(&old.exec, &ended);
                }
            }
            lock_slot.changed.notify_all();
        }
    }

    /// Closes the control connection if it has ended.
    pub(super) fn close_ended_control(&self) {
        if !self.is_control_ended() {
            return;
        }
        if let Some(line) = self.line.lock().take() {
            line.end();
        }
        // a call under way there ends with it
        if let Some(mut control) = self.control.try_lock_for(CONTROL_WAIT) {
            *control = None;
        }
    }

    /// Whether the primary, or its host, has ended it; one that was closed here has ended, too.
    fn is_control_ended(&self) -> bool {
        self.line.lock().as_ref().is_none_or(|line| line.has_ended())
    }
}
