// SPDX-License-Identifier: MIT OR Apache-2.0
//! The futures that a program polls: for a guard, and for its release.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use dlock_core::clock::Now;

use crate::driver::futures::{OwnedHold, Tasks};
use crate::driver::heartbeat::Pulse;
use crate::driver::slot::{Slot, SlotState};
use crate::error::Error;

/// A hold that its future has not returned yet.
pub(super) struct Granted {
    pub(super) hold: OwnedHold,
    /// The clock at the grant, and the pulse of the session that has granted the lock. If another
    /// session has replaced that one, the lock may be another client's.
    pub(super) read: Now,
    pub(super) pulse: Arc<Pulse>,
    pub(super) is_renewed: bool,
}

/// The future of a guard. If the program drops it before its end, nothing stays held or queued.
pub(crate) struct Acquiring {
    pub(super) slot: Arc<Slot<Result<Granted, Error>>>,
    pub(super) tasks: Arc<Tasks>,
}

impl std::fmt::Debug for Acquiring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acquiring").finish_non_exhaustive()
    }
}

impl Future for Acquiring {
    type Output = Result<OwnedHold, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.slot.poll(context).map(|result| {
            let Granted { hold, read, pulse, is_renewed } = result?;
            let is_held = match is_renewed {
                true => hold.is_surely_held(),
                false => hold.may_be_told(read, &pulse),
            };
            match is_held {
                true => Ok(hold),
                false => {
                    self.tasks.release_unwanted(hold);
                    Err(Error::Lost)
                }
            }
        })
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        match self.slot.close() {
            SlotState::Awaited(_) if self.tasks.is_here() => self.tasks.nudge(),
            SlotState::Filled(Ok(granted)) => self.tasks.release_unwanted(granted.hold),
            SlotState::Awaited(_) | SlotState::Filled(Err(_)) | SlotState::Closed => {}
        }
    }
}

/// The future of a release. If the program drops it, the release takes place all the same.
pub(super) struct Reply {
    pub(super) slot: Arc<Slot<Result<(), Error>>>,
}

impl Future for Reply {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.slot.poll(context)
    }
}
