// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the listeners of a client are told; what there is to tell is decided by
//! [`Listening`](dlock_core::lock::Listening).

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::ids::LockId;
use dlock_core::lock::Heard;
use dlock_fabric::os::clock::boot_ns;
use dlock_fabric::os::threads::uncancelled;

use super::Instance;
use crate::driver::futures::Tasks;
use crate::events::{Event, Events, FeedNumber, HoldEvent};
use crate::execute::DATA_WAIT;
use crate::table::{Busy, ClientLock, LockSlotGuard};

impl Instance {
    /// The events of this client from now on, or of one of its locks. A hold that there is already
    /// is told as one that has begun.
    pub(crate) fn events(
        self: &Arc<Self>,
        lock: Option<LockId>,
        bound: usize,
        tasks: &Arc<Tasks>,
    ) -> Events {
        let keeper = (Arc::downgrade(self), Arc::clone(tasks));
        let (events, feed) = self.feeds.add(lock, bound, keeper);
        self.tells_all(Some(feed));
        events
    }

    /// Tells what has become of a lock, if there are listeners. Called under the mutex of its slot,
    /// after a change that it may tell of.
    #[inline]
    pub(super) fn tells(&self, guard: &mut LockSlotGuard<'_>) {
        if self.feeds.is_any() {
            if let Some(held) = guard.as_mut() {
                uncancelled(|| self.tells_of(held));
            }
        }
    }

    /// The same of a lock that is there.
    #[cold]
    #[inline(never)]
    pub(super) fn tells_of(&self, held: &mut ClientLock) {
        let now = held.clock_of_deadline();
        while let Some((hold, heard)) = held.listening.next(&held.entry, now) {
            let what = match heard {
                Heard::Granted => HoldEvent::Granted,
                Heard::Lost(why) => HoldEvent::Lost(why),
                Heard::RenewalFailing { until_ns } => {
                    let left_ns = until_ns.saturating_sub(boot_ns());
                    HoldEvent::RenewalFailing { left: Duration::from_nanos(left_ns) }
                }
            };
            self.feeds.tell(Event::Hold { lock: held.id, generation: hold, what });
            if heard == Heard::Granted {
                self.looks_after(held, hold);
            }
        }
    }

    /// Tells the listeners what has become of each lock: called after an event that may have
    /// changed any of them. `new`: a listener that has just begun, and knows of no hold yet.
    pub(crate) fn tells_all(&self, new: Option<FeedNumber>) {
        if !self.feeds.is_any() {
            return;
        }
        for (_, index) in self.table.indices() {
            let lock_slot = self.table.lock_slot(index);
            let Some(mut guard) = lock_slot.lock_until(|| Instant::now() + DATA_WAIT) else {
                continue; // it is told of by the operation that has it in use
            };
            let Some(held) = guard.as_mut().filter(|held| held.busy == Busy::No) else { continue };
            let known = held.listening.hold();
            self.tells_of(held);
            let Some(hold) = held.listening.hold().filter(|&hold| Some(hold) == known) else {
                continue;
            };
            if let Some(new) = new {
                let event =
                    Event::Hold { lock: held.id, generation: hold, what: HoldEvent::Granted };
                self.feeds.tell_one(new, event);
                self.looks_after(held, hold);
            }
        }
    }

    /// Has the driver look after a hold that it does not renew.
    fn looks_after(&self, held: &ClientLock, hold: u64) {
        if !held.entry.is_renewed() {
            self.feeds.look_after(held.id, hold);
        }
    }

    /// Tells something of the primary, if there are listeners.
    pub(crate) fn tells_of_primary(&self, event: Event) {
        if self.feeds.is_any() {
            self.feeds.tell(event);
        }
    }
}
