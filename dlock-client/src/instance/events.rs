// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports events to the listeners of a client. [`Listening`](dlock_core::lock::Listening) decides
//! which.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::ids::LockId;
use dlock_core::lock::{Heard, ASK_AGAIN_NS};
use dlock_core::token::Token;
use dlock_core::wire::control::Told;
use dlock_core::wire::message::Reply;
use dlock_core::wire::status::Status;
use dlock_fabric::os::clock::{boot_ns, deadline_in};
use dlock_fabric::os::threads::uncancelled;

use super::renewals::has_hold;
use super::waits::LOOK_AGAIN_NS;
use super::Instance;
use crate::driver::asked::Asked;
use crate::driver::futures::Tasks;
use crate::driver::renewals::Renewed;
use crate::events::{Event, Events, FeedNumber, HoldEvent};
use crate::execute::DATA_WAIT;
use crate::table::{Busy, ClientLock, LockSlotGuard};

impl Instance {
    /// The events from now on of this client, or of one of its locks. A hold that exists already is
    /// reported as one that was granted.
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

    /// Reports what has become of a lock, if there are listeners. The caller has locked the lock's
    /// slot, after a change that may be an event.
    #[inline]
    pub(super) fn tells(&self, guard: &mut LockSlotGuard<'_>) {
        if self.feeds.is_any() {
            if let Some(held) = guard.as_mut() {
                uncancelled(|| self.tells_of(held));
            }
        }
    }

    /// As [`tells`](Self::tells), for a caller that knows that there are listeners.
    #[cold]
    #[inline(never)]
    pub(super) fn tells_of(&self, held: &mut ClientLock) {
        let now = held.clock_of_deadline();
        while let Some((hold, heard)) = held.listening.next(&held.entry, now) {
            self.tells_heard(held.id, (hold, held.listening.token()), heard);
            if heard == Heard::Granted {
                self.looks_after(held, hold);
            }
        }
    }

    fn tells_heard(&self, lock: LockId, (generation, token): (u64, Option<Token>), heard: Heard) {
        let left = |until_ns: u64| Duration::from_nanos(until_ns.saturating_sub(boot_ns()));
        let what = match heard {
            Heard::Granted => HoldEvent::Granted,
            Heard::Lost(why) => HoldEvent::Lost(why),
            Heard::RenewalFailing { until_ns } => {
                HoldEvent::RenewalFailing { left: left(until_ns) }
            }
            Heard::Contended { waiters, until_ns } => {
                HoldEvent::Contended { waiters, until: until_ns.map(left) }
            }
        };
        self.feeds.tell(Event::Hold { lock, generation, token, what });
    }

    /// Asks the primary whether other clients wait for the lock of a hold, if the program listens
    /// and the question is due. Also returns when the next question is due.
    pub(crate) fn asks_of(&self, renewed: &Renewed) -> (Option<Asked>, u64) {
        let later_ns = boot_ns().saturating_add(LOOK_AGAIN_NS);
        if !self.feeds.hears_of(renewed.lock) {
            return (None, u64::MAX);
        }
        let asked = self.with_slot(renewed.lock, |held| {
            if !held.exec.has_room() {
                return (None, later_ns);
            }
            if held.entry.asks_for_others().is_some() {
                // the client asks about what it keeps, and then hears of those that wait
                return (None, boot_ns().saturating_add(ASK_AGAIN_NS));
            }
            let now = held.clock_of_deadline();
            let Some((hold, request)) = held.listening.asks(&held.entry, now) else {
                return (None, held.listening.asks_at_ns());
            };
            match held.exec.send(&request) {
                Ok(seq) => {
                    let (instance, lock) = (renewed.instance.clone(), renewed.lock);
                    let exec = Arc::clone(&held.exec);
                    let asked = Asked { instance, lock, hold, exec, seq, answer: None };
                    (Some(asked), held.listening.asks_at_ns())
                }
                Err(status) => {
                    held.listening.answered(hold, Err(status), &held.entry, now);
                    (None, held.listening.asks_at_ns())
                }
            }
        });
        asked.unwrap_or((None, later_ns))
    }

    /// Reports to the listeners what the primary has answered about a hold. Returns when the next
    /// question is due, or `None` if the lock is in use just now.
    pub(crate) fn is_answered(&self, asked: &Asked, reply: Result<Reply, Status>) -> Option<u64> {
        if self.table.find(asked.lock).is_none() {
            return Some(u64::MAX); // the client has given the lock back
        }
        self.with_slot(asked.lock, |held| {
            let now = held.clock_of_deadline();
            let heard = held.listening.answered(asked.hold, reply, &held.entry, now);
            if let Some((hold, heard)) = heard {
                self.tells_heard(held.id, (hold, held.listening.token()), heard);
            }
            held.listening.asks_at_ns()
        })
    }

    /// Whether the hold that the question is about is over for sure.
    pub(crate) fn has_ended(&self, asked: &Asked) -> bool {
        let is_over = |held: &mut ClientLock| !has_hold(held, asked.lock, asked.hold);
        self.table.find(asked.lock).is_none() || self.with_slot(asked.lock, is_over) == Some(true)
    }

    /// The value of `of` for a lock whose slot no thread has locked now.
    fn with_slot<T>(&self, lock: LockId, of: impl FnOnce(&mut ClientLock) -> T) -> Option<T> {
        let mut guard = self.table.lock_slot(self.table.find(lock)?).try_lock()?;
        guard.as_mut().filter(|held| held.id == lock).map(of)
    }

    /// Reports what has become of each lock, after an event that may have changed any of them.
    /// `new`: a listener that has just been added, and has not heard of the holds yet.
    pub(crate) fn tells_all(&self, new: Option<FeedNumber>) {
        if !self.feeds.is_any() {
            return;
        }
        for (_, index) in self.table.indices() {
            let lock_slot = self.table.lock_slot(index);
            let Some(mut guard) = lock_slot.lock_until(|| deadline_in(DATA_WAIT)) else {
                continue; // the lock is in use; the operation that uses it reports the change
            };
            let Some(held) = guard.as_mut() else { continue };
            let known = held.listening.hold();
            if held.busy == Busy::No {
                // if an operation is under way on the lock, that operation reports it
                self.tells_of(held);
            }
            let has = held.listening.hold().filter(|&hold| held.entry.hold() == Some(hold));
            let Some(hold) = has.filter(|_| has == known) else { continue };
            if let Some(new) = new {
                let (token, what) = (held.listening.token(), HoldEvent::Granted);
                let event = Event::Hold { lock: held.id, generation: hold, token, what };
                self.feeds.tell_one(new, event);
                self.looks_after(held, hold);
            }
        }
    }

    /// Has the driver look after a hold.
    fn looks_after(&self, held: &ClientLock, hold: u64) {
        match held.entry.is_renewed() {
            true => self.feeds.look_again(held.id), // from now on its driver may ask about it
            false => self.feeds.look_after(held.id, hold),
        }
    }

    /// How far the recovery of the primary is, as the primary has reported last.
    pub(crate) fn recovery(&self) -> Told {
        let control = self.control.try_lock();
        control.and_then(|control| control.as_ref().map(|one| one.recovery)).unwrap_or_default()
    }

    /// Reports an event of the primary, if there are listeners.
    pub(crate) fn tells_of_primary(&self, event: Event) {
        if self.feeds.is_any() {
            self.feeds.tell(event);
        }
    }
}
