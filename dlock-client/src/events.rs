// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a program hears of its locks and of its primary without asking.
//!
//! ```text
//!   operation, renewal, failover ─ Listening (dlock_core) ─▶ Feeds ─ bounded channel ─▶ Events
//! ```
//! An event is put into the channel in one turn with what it tells of, under the mutex of the
//! lock's slot: so the events of one lock are in order, and a call that comes after a loss does not
//! return before that is in the channel. Nothing waits for a channel that is full: what has no room
//! is counted, and the count is the next event that has.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use dlock_core::ids::LockId;
use dlock_core::lock::Loss;
use parking_lot::Mutex;

use crate::driver::futures::Tasks;
use crate::driver::renewals::{Renew, Renewed};
use crate::instance::Instance;

/// The most events that may wait in one channel.
pub const EVENTS_MAX: usize = 65_536;

/// Something that a program hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A hold of this lock is told of.
    Hold {
        /// The lock.
        lock: LockId,
        /// The [generation](crate::Guard::generation) of the hold, which no other hold of the lock
        /// has. An event of an earlier one is late.
        generation: u64,
        /// What has become of it.
        what: HoldEvent,
    },
    /// The client has come to a primary that recovers: nothing is granted until all its clients
    /// have told what they hold, or its time for that is over. Told again, a few times a second at
    /// most, when the numbers change.
    Recovering {
        /// So many clients have told everything; 0 of 0: the client has not heard of that yet.
        told: u32,
        /// Of so many.
        of: u32,
    },
    /// The client has a primary that serves again.
    Serving,
    /// So many events had no room in the channel.
    Missed(u64),
}

/// What has become of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldEvent {
    /// It has begun.
    Granted,
    /// It is over, and its program has not released it. Told while the lease still runs, if it ends
    /// because it could not be renewed.
    Lost(Loss),
    /// A renewal was not answered. If none is, the hold is lost within this time.
    RenewalFailing {
        /// The rest of the lease.
        left: Duration,
    },
    /// It keeps others waiting. Told at most once a second, and when the number changes; and at
    /// once when an operator wants the lock back.
    Contended {
        /// How many wait for the lock, as the primary has counted them.
        waiters: u32,
        /// An operator has the client removed after this time, if it has not released the lock by
        /// then; `None`: no operator wants it back.
        until: Option<Duration>,
    },
}

/// The events of a client, or of one of its locks, in order for each lock.
///
/// Dropping it ends them.
#[derive(Debug)]
pub struct Events(Receiver<Event>, Wakes);

/// What is woken for each event that is put into the channel.
type Wakes = Arc<Mutex<Option<Waker>>>;

impl Events {
    /// The next event, if there is one now.
    pub fn try_next(&self) -> Option<Event> {
        self.0.try_recv().ok()
    }

    /// Has the waker woken for each event that comes from now on, in place of an earlier one. It is
    /// woken on any thread of this library or of the program, in the middle of an operation: it
    /// must not block, and must not call this library.
    pub fn wakes(&self, waker: Waker) {
        let before = self.1.lock().replace(waker);
        drop(before);
    }

    /// The next event; `None`: the client is gone, and no more will come.
    ///
    /// # Latency
    /// As long as it takes.
    pub fn wait(&self) -> Option<Event> {
        self.0.recv().ok()
    }

    /// The next event; `None`: there was none in this time.
    ///
    /// # Latency
    /// `timeout` at most.
    pub fn wait_for(&self, timeout: Duration) -> Option<Event> {
        self.0.recv_timeout(timeout).ok()
    }
}

struct Feed {
    number: FeedNumber,
    /// `None`: all locks, and the primary.
    lock: Option<LockId>,
    sender: SyncSender<Event>,
    wakes: Wakes,
    missed: u64,
}

impl Feed {
    /// Whether its program still listens.
    fn tell(&mut self, event: Event) -> bool {
        let is_its = match event {
            Event::Hold { lock, .. } => self.lock.is_none_or(|its| its == lock),
            _ => self.lock.is_none(),
        };
        if !is_its {
            return true;
        }
        if self.missed > 0 {
            match self.sender.try_send(Event::Missed(self.missed)) {
                Ok(()) => self.missed = 0,
                Err(TrySendError::Full(_)) => {
                    self.missed += 1;
                    return true;
                }
                Err(TrySendError::Disconnected(_)) => return false,
            }
        }
        match self.sender.try_send(event) {
            Ok(()) => {
                let waker = self.wakes.lock().clone();
                waker.into_iter().for_each(Waker::wake);
                true
            }
            Err(TrySendError::Full(_)) => {
                self.missed += 1;
                true
            }
            Err(TrySendError::Disconnected(_)) => false,
        }
    }
}

/// The number of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FeedNumber(u64);

/// The listeners of one client: a channel for each.
#[derive(Default)]
pub(crate) struct Feeds {
    is_any: AtomicBool,
    all: Mutex<All>,
}

#[derive(Default)]
struct All {
    feeds: Vec<Feed>,
    /// How many there were.
    count: u64,
    /// What looks after holds whose loss is to be told in time.
    keeper: Option<(Weak<Instance>, Arc<Tasks>)>,
}

impl Feeds {
    /// Whether there may be any.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Relaxed)
    }

    pub(crate) fn add(
        &self,
        lock: Option<LockId>,
        bound: usize,
        keeper: (Weak<Instance>, Arc<Tasks>),
    ) -> (Events, FeedNumber) {
        let (sender, receiver) = sync_channel(bound.clamp(1, EVENTS_MAX));
        let mut all = self.all.lock();
        all.count += 1;
        let number = FeedNumber(all.count);
        let wakes = Wakes::default();
        all.feeds.push(Feed { number, lock, sender, wakes: Arc::clone(&wakes), missed: 0 });
        all.keeper = Some(keeper);
        self.is_any.store(true, Ordering::Relaxed);
        (Events(receiver, wakes), number)
    }

    /// Whether any of them hears of this lock.
    pub(crate) fn hears_of(&self, lock: LockId) -> bool {
        self.is_any()
            && self.all.lock().feeds.iter().any(|feed| feed.lock.is_none_or(|its| its == lock))
    }

    /// Tells one listener.
    pub(crate) fn tell_one(&self, number: FeedNumber, event: Event) {
        let mut all = self.all.lock();
        all.feeds.retain_mut(|feed| feed.number != number || feed.tell(event));
    }

    pub(crate) fn tell(&self, event: Event) {
        let mut all = self.all.lock();
        all.feeds.retain_mut(|feed| feed.tell(event));
        if all.feeds.is_empty() {
            self.is_any.store(false, Ordering::Relaxed);
        }
    }

    /// Has the driver look again at a hold that it looks after.
    pub(crate) fn look_again(&self, lock: LockId) {
        if let Some((_, tasks)) = &self.all.lock().keeper {
            tasks.look_again(lock);
        }
    }

    /// Has the driver look after a hold that has begun.
    pub(crate) fn look_after(&self, lock: LockId, hold: u64) {
        let keeper = self.all.lock().keeper.clone();
        let Some((instance, tasks)) = keeper else { return };
        let renewed = Renewed { instance, lock, hold, terms: Renew::new() };
        if let Err(error) = tasks.renew(renewed) {
            log::error!("the loss of lock {lock} may be told late: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    fn granted(hold: u64) -> Event {
        Event::Hold { lock: LockId(1), generation: hold, what: HoldEvent::Granted }
    }

    #[test]
    fn what_has_no_room_is_counted_and_the_count_comes_before_what_follows() {
        let feeds = Feeds::default();
        let keeper = (Weak::new(), Arc::new(Tasks::new()));
        let (events, _) = feeds.add(None, 2, keeper);
        for hold in 1..=5 {
            feeds.tell(granted(hold));
        }
        assert_eq!(events.try_next(), Some(granted(1)));
        assert_eq!(events.try_next(), Some(granted(2)));
        assert_eq!(events.try_next(), None);
        feeds.tell(granted(6));
        assert_eq!(events.try_next(), Some(Event::Missed(3)));
        assert_eq!(events.try_next(), Some(granted(6)));
        drop(events);
        feeds.tell(granted(7));
        assert!(!feeds.is_any(), "nobody listens");
    }

    struct Counts(AtomicUsize);

    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_waker_is_woken_for_each_event_that_is_put_into_the_channel() {
        let feeds = Feeds::default();
        let (events, _) = feeds.add(None, 2, (Weak::new(), Arc::new(Tasks::new())));
        let woken = Arc::new(Counts(AtomicUsize::new(0)));
        feeds.tell(granted(1));
        events.wakes(Arc::clone(&woken).into());
        for hold in 2..=5 {
            feeds.tell(granted(hold));
        }
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "the others had no room");
    }

    #[test]
    fn who_listens_to_a_lock_hears_of_no_other() {
        let feeds = Feeds::default();
        let keeper = || (Weak::new(), Arc::new(Tasks::new()));
        let [its, others] = [1, 2].map(|lock| feeds.add(Some(LockId(lock)), 9, keeper()).0);
        feeds.tell(granted(1));
        feeds.tell(Event::Serving);
        assert_eq!(its.try_next(), Some(granted(1)));
        assert_eq!((its.try_next(), others.try_next()), (None, None));
    }
}
