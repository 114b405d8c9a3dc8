// SPDX-License-Identifier: MIT OR Apache-2.0
//! Renewing the leases of holds; when, is decided by the entry of the lock (`dlock_core`).
//!
//! ```text
//!   renew_guard ─▶ the entry renews the hold from now on
//!   driver ─ look_after_hold ─▶ Due ─ Renew ─▶ advance_wait, as a future ─▶ look_after_hold …
//! ```
//! A renewal is decided and posted under the mutex of the lock's slot. While its answer is out the
//! lock is in use, and other operations on it wait for that.

use dlock_core::clock::Now;
use dlock_core::ids::LockId;
use dlock_core::lock::Due;
use dlock_core::operation::Operation;
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::boot_ns;

use super::guards::Attempt;
use super::waits::{is_ready, GuardWait, LOOK_AGAIN};
use super::{code, Instance};
use crate::driver::renewals::{Renew, Renewed};
use crate::table::{Busy, ClientLock, LockSlotIndex};

/// Whether the lock slot has the hold of this number still.
pub(super) fn has_hold(held: &ClientLock, lock: LockId, hold: u64) -> bool {
    held.id == lock && held.entry.holds() == hold && held.entry.refs() > 0
}

impl Instance {
    /// Renews the lease of the hold of this number from now on, for `expire_s` seconds each time.
    pub(crate) fn renew_guard(
        &self,
        lock: LockId,
        hold: u64,
        expire_s: u32,
        terms: &Renew,
    ) -> Status {
        match self.of_guard(lock, hold) {
            Ok((_lock_slot, mut guard, _)) => {
                if let Some(held) = guard.as_mut() {
                    let now = held.clock_of_deadline();
                    held.entry.renews(expire_s, terms.max_ns(), now);
                }
                Status::Success
            }
            Err(status) => self.left_or(status),
        }
    }

    /// What is to be done now for a hold that is renewed, or listened to.
    pub(crate) fn look_after_hold(&self, renewed: &Renewed) -> Due {
        let due = self.renewal_due(renewed);
        if due != Due::Renew || renewed.is_alive() {
            return due;
        }
        self.renewal_declined(renewed)
    }

    fn renewal_due(&self, renewed: &Renewed) -> Due {
        self.with_hold(renewed, |held| held.due(self.feeds.is_any()))
    }

    /// The program is asked again later.
    fn renewal_declined(&self, renewed: &Renewed) -> Due {
        self.with_hold(renewed, |held| {
            let now = held.clock_of_deadline();
            held.entry.renewal_declined(now);
            held.due(self.feeds.is_any())
        })
    }

    /// Of a hold that no operation is under way on; later, if one is.
    fn with_hold(&self, renewed: &Renewed, of: impl FnOnce(&mut ClientLock) -> Due) -> Due {
        let later = Due::At(boot_ns().saturating_add(LOOK_AGAIN.as_nanos() as u64));
        if self.present().is_err() {
            return Due::Over; // it has left
        }
        let Some(index) = self.table.find(renewed.lock) else { return Due::Over };
        let lock_slot = self.table.lock_slot(index);
        let Some(mut guard) = lock_slot.try_lock() else { return later };
        let due = match guard.as_mut().filter(|held| has_hold(held, renewed.lock, renewed.hold)) {
            None => return Due::Over,
            Some(held) if held.busy != Busy::No => return later,
            Some(held) => of(held),
        };
        self.tells(&mut guard);
        drop(guard);
        if due == Due::Lost {
            lock_slot.changed.notify_all();
        }
        due
    }

    /// Begins a renewal that is due. It is over at once if there is nothing to renew any more.
    pub(super) fn begin_renewal(
        &self,
        wait: &mut GuardWait,
        index: LockSlotIndex,
        hold: u64,
    ) -> Option<Attempt> {
        let over = Some((code(Status::Success), 0));
        let slot = self.table.lock_slot(index);
        let Some(mut guard) = slot.try_lock() else { return wait.is_put_off() };
        let lock = wait.lock();
        let held = guard.as_mut().filter(|held| has_hold(held, lock, hold));
        let Some(held) = held.filter(|held| held.busy == Busy::No) else { return over };
        if held.due(self.feeds.is_any()) != Due::Renew {
            self.tells(&mut guard);
            slot.changed.notify_all();
            return over;
        }
        if !is_ready(&guard) {
            return wait.is_put_off();
        }
        let Some(held) = guard.as_mut() else { return over };
        let now = held.now();
        held.last_now = now;
        let Some(operation) = Operation::renew(&mut held.entry, now) else { return over };
        wait.is_over();
        self.carry_on(wait, (index, &mut guard), operation, None)
    }
}

impl ClientLock {
    /// What is to be done for the renewal of the hold now.
    fn due(&mut self, is_listened_to: bool) -> Due {
        let due = self.entry.due(is_listened_to, self.clock_of_deadline());
        if due == Due::Lost {
            log::warn!(
                "lock {} is lost: its lease was not renewed, and ends now; its program is \
                 told by its next call",
                self.id
            );
        }
        due
    }

    /// The clock by which the deadline of the hold counts; it is not waited for.
    pub(super) fn clock_of_deadline(&self) -> Now {
        let now = match self.exec.is_clock_ready() {
            true => self.now(),
            false => self.clock_unanswered(),
        };
        self.binding.clock(now)
    }
}
