// SPDX-License-Identifier: MIT OR Apache-2.0
//! Everything at once: releasing all that this client holds, and operating its primary.

use dlock_core::wire::control::{Act, ControlReply, ControlRequest};
use dlock_core::wire::status::Status;

use super::Instance;
use crate::control::Patience;

impl Instance {
    /// Releases everything that this client holds, with all re-entries, and gives up its tickets.
    /// Returns how many locks it released. The client keeps its references to the locks. Locks that
    /// other threads acquire meanwhile may stay held.
    ///
    /// # Errors
    /// The first error of [`unlock`](Self::unlock), apart from those that say that a lock was not
    /// held. All other locks were released.
    ///
    /// # Latency
    /// That of `unlock` for each lock that is held.
    pub fn unlock_all(&self) -> Result<usize, Status> {
        let (mut released, mut failed) = (0, None);
        for (lock, _) in self.table.indices() {
            loop {
                match self.unlock(lock).status {
                    Status::AlreadyLocked => {} // the client had entered the hold several times
                    Status::Success => {
                        released += 1;
                        break;
                    }
                    Status::AlreadyUnlocked | Status::LockNotGet | Status::TicketToUnlock => break,
                    status => {
                        failed.get_or_insert(status);
                        break;
                    }
                }
            }
        }
        failed.map_or(Ok(released), Err)
    }

    /// Has the primary carry out an operator's request, and returns how many clients it concerns.
    ///
    /// # Errors
    /// `Denied` (no rule gives this client's certificate the right `admin`), `NotReady`,
    /// `BadResponse`.
    ///
    /// # Latency
    /// One control round trip; 10 s at most.
    pub fn administer(&self, act: Act) -> Result<u32, Status> {
        match self.call_with(ControlRequest::Operate(act), Patience::OF_CALL)? {
            ControlReply::Operated(clients) => Ok(clients),
            _ => Err(Status::BadResponse),
        }
    }
}
