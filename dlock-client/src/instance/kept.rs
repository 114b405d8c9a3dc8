// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lock cache: locks that this client keeps after their release. The lock's entry
//! (`dlock_core`) decides what is kept.
//!
//! ```text
//!   cache ─▶ the entry caches ─ Keep granted ─▶ driver ─ asks_for_others ─▶ others_want
//! ```

use std::sync::Arc;

use dlock_core::ids::LockId;
use dlock_core::lock::Wanted;
use dlock_core::operation::Operation;
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::boot_ns;

use super::guards::Attempt;
use super::waits::{is_ready, GuardWait};
use super::{code, Instance};
use crate::driver::kept::{Keeper, Next};
use crate::execute::{bounds_of, tell, DATA_WAIT_NS};
use crate::table::{Busy, ClientLock, LockSlotIndex};

impl Instance {
    /// Makes it possible that the client keeps locks. Each lock that it gets later and whose name
    /// its configuration names is cached.
    pub(super) fn may_keep(self: &Arc<Self>) {
        let keeper = Arc::new(Keeper::new(self, &self.driven.tasks));
        let _ = self.driven.keeper.set(keeper);
    }

    /// Sets whether the client keeps this lock after its release, until other clients want it.
    /// Clients that were not made by `init_shared` keep no lock.
    ///
    /// # Errors
    /// `LockNotGet`, `BadResponse` (another thread uses the lock for 5 s).
    pub fn cache(&self, lock: LockId, does: bool) -> Status {
        let opened = self.opened(lock, boot_ns() + DATA_WAIT_NS);
        let set = opened.map(|(_, mut guard)| {
            if let Some(held) = guard.as_mut() {
                self.caches(held, does);
            }
            Status::Success
        });
        set.unwrap_or_else(|status| status)
    }

    /// Sets whether the client keeps this lock.
    pub(super) fn caches(&self, held: &mut ClientLock, does: bool) {
        let keeper = self.driven.keeper.get().filter(|_| does);
        held.entry.caches(keeper.is_some());
        held.keeper = keeper.cloned();
    }

    /// Caches a lock that the client has just got, if its configuration says so.
    pub(super) fn may_cache(&self, held: &mut ClientLock) {
        let name = &held.entry.desc().name;
        if self.config.cache().iter().any(|prefix| name.starts_with(prefix)) {
            self.caches(held, true);
        }
    }

    /// How many acquires of this lock the client has served since it keeps the lock; `None`: it
    /// does not keep it.
    pub fn cache_hits(&self, lock: LockId) -> Option<u64> {
        let (_, guard) = self.opened(lock, boot_ns() + DATA_WAIT_NS).ok()?;
        guard.as_ref().filter(|held| held.entry.is_kept()).map(|held| held.entry.hits())
    }

    /// Asks the primary whether others want a lock that the client keeps.
    pub(crate) fn asks_for_others(self: &Arc<Self>, lock: LockId) -> Next {
        self.of_kept(lock, |held| {
            let Some(request) = held.entry.asks_for_others() else {
                held.is_looked_after = false;
                return Next::Over;
            };
            if !held.exec.has_room() {
                return Next::Later;
            }
            match held.exec.send(&request) {
                Ok(seq) => Next::Asked(Arc::clone(&held.exec), seq),
                Err(_) => self.is_wanted(held), // nothing would tell that others want it
            }
        })
    }

    /// Other clients want a lock that the client keeps, or it cannot learn whether they do.
    pub(crate) fn others_want(self: &Arc<Self>, lock: LockId) -> Next {
        self.of_kept(lock, |held| self.is_wanted(held))
    }

    fn is_wanted(self: &Arc<Self>, held: &mut ClientLock) -> Next {
        held.is_looked_after = false;
        let now = held.clock_of_deadline();
        match held.entry.is_wanted(now) {
            Wanted::No => Next::Over,
            Wanted::GiveBack => Next::GiveBack(Arc::clone(self)),
            Wanted::InUse(request) => {
                tell(&*held.exec, &request);
                self.feeds.look_again(held.id); // a program that listens hears of those that wait
                Next::Over
            }
        }
    }

    fn of_kept(&self, lock: LockId, of: impl FnOnce(&mut ClientLock) -> Next) -> Next {
        let Some(index) = self.table.find(lock) else { return Next::Over };
        let Some(mut guard) = self.table.lock_slot(index).try_lock() else { return Next::Later };
        match guard.as_mut().filter(|held| held.id == lock) {
            None => Next::Over,
            Some(held) if held.busy != Busy::No => Next::Later,
            Some(held) => of(held),
        }
    }

    /// Begins to give back a lock that the client kept without using it.
    pub(super) fn begin_give_back(
        &self,
        wait: &mut GuardWait,
        index: LockSlotIndex,
    ) -> Option<Attempt> {
        let over = Some((code(Status::Success), 0));
        let slot = self.table.lock_slot(index);
        let Some(mut guard) = slot.try_lock() else { return wait.is_put_off() };
        let lock = wait.lock();
        match guard.as_ref().filter(|held| held.id == lock) {
            Some(held) if held.busy != Busy::No => return wait.is_put_off(),
            // an acquire has given it back meanwhile
            Some(held) if held.entry.is_to_be_undone() => {}
            _ => return over,
        }
        if !is_ready(&mut wait.asked, &guard) {
            return wait.is_put_off();
        }
        let Some(held) = guard.as_mut() else { return over };
        let now = held.fresh();
        held.last_now = now;
        let bounds = bounds_of(None, now.local_ns);
        let Some(operation) = Operation::undo(&mut held.entry, now, bounds) else { return over };
        wait.is_over();
        self.carry_on(wait, (index, &mut guard), operation, None)
    }
}

impl ClientLock {
    /// Ends the keeping, as if others wanted the lock: its next operation takes place at the
    /// primary.
    pub(super) fn keeps_no_longer(&mut self) {
        if !self.entry.is_kept() {
            return;
        }
        let now = self.clock_of_deadline();
        if let Wanted::InUse(request) = self.entry.is_wanted(now) {
            tell(&*self.exec, &request);
        }
        self.is_looked_after = false;
    }

    /// Has the driver look after the lock if the client has just come to keep it. If it cannot, the
    /// client does not keep the lock.
    #[cold]
    #[inline(never)]
    pub(crate) fn is_kept_now(&mut self) {
        let is_looked_after = self.keeper.as_ref().is_some_and(|keeper| keeper.keeps(self.id));
        self.is_looked_after = is_looked_after;
        if !is_looked_after {
            self.entry.leaves_cache();
            self.entry.caches(false);
        }
    }
}
