// SPDX-License-Identifier: MIT OR Apache-2.0
//! Renews the leases of holds. The lock's entry (`dlock_core`) decides when.
//!
//! ```text
//!   renew_guard ─▶ the entry renews the hold from now on
//!   driver ─ look_after_hold ─▶ Due ─ Renew ─▶ advance_wait, as a future ─▶ look_after_hold …
//! ```
//! The driver decides and posts a renewal under the mutex of the lock's slot. Until the answer
//! comes the lock is in use: other operations on it wait.

use dlock_core::clock::{Lease, Now};
use dlock_core::ids::LockId;
use dlock_core::lock::Due;
use dlock_core::operation::Operation;
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::boot_ns;

use super::guards::Attempt;
use super::waits::{is_ready, GuardWait, LOOK_AGAIN_NS};
use super::{code, Instance};
use crate::driver::renewals::{Renew, Renewed};
use crate::execute::DATA_WAIT_NS;
use crate::table::{Busy, ClientLock, LockSlotIndex};

/// Whether the lock slot still has the hold with this number.
pub(super) fn has_hold(held: &ClientLock, lock: LockId, hold: u64) -> bool {
    held.id == lock && held.entry.holds() == hold && held.entry.refs() > 0
}

impl Instance {
    /// From now on renews the hold with this number, each time for this lease. The driver may call
    /// this, so it waits for no operation on the lock: the driver may be the one to end it.
    pub(crate) fn renew_guard(
        &self,
        lock: LockId,
        hold: u64,
        lease: Lease,
        terms: &Renew,
    ) -> Status {
        let opened = self.opened(lock, boot_ns() + DATA_WAIT_NS);
        let renewed = opened.and_then(|(_lock_slot, mut guard)| {
            let held = guard.as_mut().filter(|held| has_hold(held, lock, hold));
            let held = held.ok_or(Status::AlreadyUnlocked)?;
            let now = held.clock_of_deadline();
            held.entry.renews(lease, terms.max_ns(), now);
            Ok(Status::Success)
        });
        renewed.unwrap_or_else(|status| self.left_or(status))
    }

    /// What the driver has to do now for a hold that is renewed, or that has listeners.
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

    /// The program has declined a renewal: sets when to ask it again.
    fn renewal_declined(&self, renewed: &Renewed) -> Due {
        self.with_hold(renewed, |held| {
            let now = held.clock_of_deadline();
            held.entry.renewal_declined(now);
            held.due(self.feeds.is_any())
        })
    }

    /// What `of` says of the hold, if no operation is under way on the lock; otherwise a later
    /// time.
    fn with_hold(&self, renewed: &Renewed, of: impl FnOnce(&mut ClientLock) -> Due) -> Due {
        let later = Due::At(boot_ns().saturating_add(LOOK_AGAIN_NS));
        if self.present().is_err() {
            return Due::Over; // the client has left
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

    /// Begins a renewal that is due. If nothing is left to renew, it ends at once.
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
        if !is_ready(&mut wait.asked, &guard) {
            return wait.is_put_off();
        }
        let Some(held) = guard.as_mut() else { return over };
        let now = held.fresh();
        held.last_now = now;
        let Some(operation) = Operation::renew(&mut held.entry, now) else { return over };
        wait.is_over();
        self.carry_on(wait, (index, &mut guard), operation, None)
    }
}

/// Why the library gives a hold up, for the log.
fn why_lost(is_renewed: bool, is_endless: bool) -> &'static str {
    match (is_endless, is_renewed) {
        (true, _) => "it has no lease, and the horizon of its session ends now without an answer",
        (false, true) => "its lease was not renewed, and ends now",
        (false, false) => "its lease ends now",
    }
}

impl ClientLock {
    /// What is to be done now for the renewal of the hold.
    fn due(&mut self, is_listened_to: bool) -> Due {
        let (is_renewed, is_endless) = (self.entry.is_renewed(), self.entry.deadline().is_never());
        let due = self.entry.due(is_listened_to, self.clock_of_deadline());
        if due == Due::Lost {
            let why = why_lost(is_renewed, is_endless);
            log::warn!("lock {} is lost: {why}; its program is told by its next call", self.id);
        }
        due
    }

    /// The clock by which the hold's deadline counts; this function does not wait for the primary
    /// to tell the time.
    pub(super) fn clock_of_deadline(&self) -> Now {
        self.binding.clock(self.fresh_if_ready())
    }
}

#[cfg(test)]
mod tests {
    use super::why_lost;

    #[test]
    fn a_loss_is_logged_as_one_of_a_renewal_if_there_was_one() {
        for (is_renewed, is_endless) in [(false, false), (false, true), (true, true)] {
            assert!(!why_lost(is_renewed, is_endless).contains("renewed"));
        }
        assert!(!why_lost(false, true).contains("its lease"));
        assert!(why_lost(true, false).contains("renewed"));
    }
}
