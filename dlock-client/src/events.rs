// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events: what a program learns about its locks and its primary without asking.
//!
//! ```text
//!   operation, renewal, failover ─ Listening (dlock_core) ─▶ Feeds ─ bounded channel ─▶ Events
//! ```
//! An event and the change that it reports happen in one turn, under the mutex of the lock's slot.
//! So the events of one lock are in order, and a call that comes after a loss returns only when the
//! loss is in the channel. No thread waits for a full channel: events that have no room are
//! counted. The count stands in their place, behind the events that had room and before the next
//! one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use dlock_core::ids::LockId;
use dlock_core::lock::Loss;
use dlock_core::token::Token;
use dlock_fabric::os::clock::deadline_in;
use parking_lot::{Condvar, Mutex};

use crate::clock::wait_until;
use crate::driver::futures::Tasks;
use crate::driver::renewals::{Renew, Renewed};
use crate::instance::Instance;

/// The most events that may wait in one channel.
pub const EVENTS_MAX: usize = 65_536;

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// What has become of a hold of this lock.
    Hold {
        /// The lock.
        lock: LockId,
        /// The [generation](crate::Guard::generation) of the hold; no other hold of the lock has
        /// the same. An event with an earlier generation is late.
        generation: u64,
        /// The fencing token of the hold, also if the hold is over now; `None`: it had none.
        token: Option<Token>,
        /// What has become of the hold.
        what: HoldEvent,
    },
    /// The client has come to a primary that recovers. The primary grants nothing until all its
    /// clients have told what they hold, or the time for that is over. This event comes again when
    /// the numbers change, a few times a second at most.
    Recovering {
        /// How many clients have told everything. 0 of 0: the client does not know the numbers yet.
        told: u32,
        /// How many clients the primary waits for in all.
        of: u32,
    },
    /// The client again has a primary that serves.
    Serving,
    /// The number of events that had no room in the channel.
    Missed(u64),
}

/// What has become of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldEvent {
    /// The hold has begun.
    Granted,
    /// The hold is over, though the program has not released it. If the lease could not be renewed,
    /// this event comes while the lease still runs.
    Lost(Loss),
    /// The primary has not answered a renewal. If it answers none, the hold is lost within this
    /// time.
    RenewalFailing {
        /// The rest of the lease.
        left: Duration,
    },
    /// The hold keeps other clients waiting. This event comes at most once a second, and if the
    /// number changes; it comes at once if an operator wants the lock back.
    Contended {
        /// How many clients wait for the lock, as the primary has counted them.
        waiters: u32,
        /// After this time an operator has the client removed, unless the program has released the
        /// lock by then; `None`: no operator wants the lock back.
        until: Option<Duration>,
    },
}

/// The events of a client, or of one of its locks; those of one lock are in order.
///
/// Dropping this object ends the listening.
#[derive(Debug)]
pub struct Events(Arc<Channel>);

impl Events {
    /// The next event, if there is one now.
    pub fn try_next(&self) -> Option<Event> {
        self.0.state.lock().take()
    }

    /// From now on wakes `waker` for each event; it replaces an earlier waker. Any thread of this
    /// library or of the program may wake it in the middle of an operation: it must not block, and
    /// must not call this library.
    pub fn wakes(&self, waker: Waker) {
        let before = self.0.state.lock().waker.replace(waker);
        drop(before);
    }

    /// The next event; `None`: the client is gone, and no more events will come.
    ///
    /// # Latency
    /// As long as it takes until an event comes.
    pub fn wait(&self) -> Option<Event> {
        self.wait_until(u64::MAX)
    }

    /// The next event; `None`: none came in this time, or the client is gone.
    ///
    /// # Latency
    /// `timeout` at most.
    pub fn wait_for(&self, timeout: Duration) -> Option<Event> {
        self.wait_until(deadline_in(timeout))
    }

    fn wait_until(&self, until_ns: u64) -> Option<Event> {
        let mut state = self.0.state.lock();
        loop {
            let event = state.take();
            if event.is_some() || state.is_over {
                return event;
            }
            if wait_until(&self.0.changed, &mut state, until_ns) {
                return state.take();
            }
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        let before =
            std::mem::replace(&mut *state, Waiting { is_over: true, ..Waiting::default() });
        drop(state);
        drop(before);
    }
}

/// The events that a listener has not taken yet.
#[derive(Debug, Default)]
struct Channel {
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<Event>,
    /// How many events had no room since the last one that had.
    missed: u64,
    /// The waker to wake for each event that is put into the channel.
    waker: Option<Waker>,
    /// The listener was dropped, or the client is gone.
    is_over: bool,
}

impl Waiting {
    fn take(&mut self) -> Option<Event> {
        self.events.pop_front().or_else(|| self.take_missed())
    }

    fn take_missed(&mut self) -> Option<Event> {
        match std::mem::take(&mut self.missed) {
            0 => None,
            missed => Some(Event::Missed(missed)),
        }
    }
}

struct Feed {
    number: FeedNumber,
    /// `None`: this listener hears of all locks, and of the primary.
    lock: Option<LockId>,
    channel: Arc<Channel>,
    bound: usize,
}

impl Feed {
    /// Whether the program still listens.
    fn is_heard(&self) -> bool {
        !self.channel.state.lock().is_over
    }

    fn hears_of(&self, event: Event) -> bool {
        match event {
            Event::Hold { lock, .. } => self.lock.is_none_or(|its| its == lock),
            _ => self.lock.is_none(),
        }
    }

    /// Puts an event into the channel; returns whether the program still listens.
    fn tell(&self, event: Event) -> bool {
        let mut state = self.channel.state.lock();
        if state.is_over || !self.hears_of(event) {
            return !state.is_over;
        }
        if state.events.len() >= self.bound {
            state.missed += 1;
            return true;
        }
        let missed = state.take_missed();
        state.events.extend(missed);
        state.events.push_back(event);
        let waker = state.waker.clone();
        drop(state);
        self.channel.changed.notify_one();
        waker.into_iter().for_each(Waker::wake);
        true
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.channel.state.lock().is_over = true;
        self.channel.changed.notify_all();
    }
}

/// The number of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FeedNumber(u64);

/// The listeners of one client, each with its channel.
#[derive(Default)]
pub(crate) struct Feeds {
    is_any: AtomicBool,
    all: Mutex<All>,
}

#[derive(Default)]
struct All {
    feeds: Vec<Feed>,
    /// How many listeners there have ever been.
    count: u64,
    /// The instance and its driver, which report the loss of holds in time.
    keeper: Option<(Weak<Instance>, Arc<Tasks>)>,
}

impl Feeds {
    /// Whether there may be a listener: `false` is certain.
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
        let (channel, bound) = (Arc::<Channel>::default(), bound.clamp(1, EVENTS_MAX));
        let mut all = self.all.lock();
        all.count += 1;
        let number = FeedNumber(all.count);
        all.feeds.retain(Feed::is_heard);
        all.feeds.push(Feed { number, lock, channel: Arc::clone(&channel), bound });
        all.keeper = Some(keeper);
        self.is_any.store(true, Ordering::Relaxed);
        (Events(channel), number)
    }

    /// Whether a listener hears of this lock.
    pub(crate) fn hears_of(&self, lock: LockId) -> bool {
        self.is_any()
            && self
                .all
                .lock()
                .feeds
                .iter()
                .any(|feed| feed.lock.is_none_or(|its| its == lock) && feed.is_heard())
    }

    /// Puts an event into the channel of one listener.
    pub(crate) fn tell_one(&self, number: FeedNumber, event: Event) {
        let mut all = self.all.lock();
        all.feeds.retain(|feed| feed.number != number || feed.tell(event));
    }

    pub(crate) fn tell(&self, event: Event) {
        let mut all = self.all.lock();
        all.feeds.retain(|feed| feed.tell(event));
        if all.feeds.is_empty() {
            self.is_any.store(false, Ordering::Relaxed);
        }
    }

    /// Has the driver look again at the hold of this lock.
    pub(crate) fn look_again(&self, lock: LockId) {
        if let Some((_, tasks)) = &self.all.lock().keeper {
            tasks.look_again(lock);
        }
    }

    /// Has the driver look after a hold that was just granted.
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
        Event::Hold { lock: LockId(1), generation: hold, token: None, what: HoldEvent::Granted }
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
        feeds.tell(granted(6));
        assert_eq!(events.try_next(), Some(granted(2)));
        assert_eq!(events.try_next(), Some(Event::Missed(3)));
        assert_eq!(events.try_next(), Some(granted(6)));
        assert_eq!(events.try_next(), None);
        drop(events);
        feeds.tell(granted(7));
        assert!(!feeds.is_any(), "nobody listens");
    }

    #[test]
    fn what_has_no_room_is_told_though_nothing_follows() {
        let feeds = Feeds::default();
        let (events, _) = feeds.add(None, 1, (Weak::new(), Arc::new(Tasks::new())));
        for hold in 1..=3 {
            feeds.tell(granted(hold));
        }
        assert_eq!(events.wait(), Some(granted(1)));
        assert_eq!(events.wait_for(Duration::from_secs(60)), Some(Event::Missed(2)));
        assert_eq!(events.try_next(), None);
        feeds.tell(granted(4));
        assert_eq!(events.wait(), Some(granted(4)));
        drop(feeds);
        assert_eq!(events.wait(), None, "the client is gone");
    }

    #[test]
    fn of_a_listener_that_is_gone_nothing_is_kept() {
        let feeds = Feeds::default();
        let add = |lock| feeds.add(Some(LockId(lock)), 9, (Weak::new(), Arc::new(Tasks::new()))).0;
        for _ in 0..9 {
            drop(add(1));
        }
        assert!(!feeds.hears_of(LockId(1)));
        let its = add(2);
        assert_eq!(feeds.all.lock().feeds.len(), 1);
        drop(add(1));
        feeds.tell(Event::Serving);
        assert_eq!(feeds.all.lock().feeds.len(), 1, "an event of another lock suffices");
        drop(its);
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
