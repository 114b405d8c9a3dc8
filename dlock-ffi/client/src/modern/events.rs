// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events of holds and of the primary, which a queue reports if the program listens.
//!
//! ```text
//!   listen ─▶ Events of dlock_client ── its waker ──▶ listed in the queue ── next ──▶ one event
//!                                                       ▲                                │
//!                                                       └── listed again if there is more ◀┘
//! ```

use std::os::raw::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use std::time::Duration;

use ::dlock_client::{Client, Event, Events, HoldEvent, Lock, Loss};
use parking_lot::Mutex;

use super::abi::*;
use super::failure::{run, Failure};
use super::handles;
use super::queue::{Listed, Queue};

/// The most events of one listener that may wait.
const WAITING_MAX: usize = 1_024;

/// The listener of one call of `dlock_listen_*`.
pub(super) struct Listener {
    /// The queue; a listener does not keep it alive.
    queue: Weak<Queue>,
    events: Mutex<Coming>,
    user_data: usize,
    lock: dlock_lock,
    is_listed: AtomicBool,
}

/// The next event, if there was one at the last look, and the source of those behind it.
struct Coming(Option<Event>, Events);

impl Coming {
    fn take(&mut self) -> Option<Event> {
        self.0.take().or_else(|| self.1.try_next())
    }

    /// Whether there is an event now.
    fn is_there(&mut self) -> bool {
        self.0 = self.take();
        self.0.is_some()
    }
}

/// The waker of a listener. It does nothing once the queue is gone, though the client goes on.
struct Comes(Weak<Listener>);

impl Wake for Comes {
    fn wake(self: Arc<Self>) {
        if let Some(listener) = self.0.upgrade() {
            listener.list();
        }
    }
}

impl Listener {
    fn begin(
        queue: &Arc<Queue>,
        events: Events,
        lock: dlock_lock,
        user_data: *mut c_void,
    ) -> Result<(), Failure> {
        let listener = Arc::new(Self {
            queue: Arc::downgrade(queue),
            events: Mutex::new(Coming(None, events)),
            user_data: user_data as usize,
            lock,
            is_listed: AtomicBool::new(false),
        });
        queue.hears(Arc::clone(&listener))?;
        let waker = Waker::from(Arc::new(Comes(Arc::downgrade(&listener))));
        let mut events = listener.events.lock();
        events.1.wakes(waker);
        if events.is_there() {
            listener.list(); // a hold that exists already is reported first
        }
        Ok(())
    }

    /// Puts the listener on the queue's list, unless it is there already: it may have an event.
    fn list(self: &Arc<Self>) {
        if self.is_listed.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Some(queue) = self.queue.upgrade() {
            queue.list(Listed::Listener(Arc::clone(self)));
        }
    }

    /// Takes the next event; `None`: there is none now.
    pub(super) fn take(self: &Arc<Self>) -> Option<dlock_event> {
        self.is_listed.store(false, Ordering::SeqCst);
        let mut events = self.events.lock();
        let event = events.take()?;
        if events.is_there() {
            self.list(); // if no event is there, the waker lists the listener later
        }
        drop(events);
        let mut told = dlock_event {
            user_data: self.user_data as *mut c_void,
            lock: self.lock,
            left_ms: DLOCK_FOREVER,
            ..Plain::zeroed()
        };
        told.kind = match event {
            Event::Hold { lock, generation, token, what } => {
                (told.lock_id, told.generation) = (lock.0, generation);
                told.token = token.map_or(0, |token| token.0);
                of_hold(&mut told, what)?
            }
            Event::Recovering { told: clients, of } => {
                (told.count, told.of) = (clients.into(), of.into());
                DLOCK_EVENT_RECOVERING
            }
            Event::Serving => DLOCK_EVENT_SERVING,
            Event::Missed(count) => {
                told.count = count;
                DLOCK_EVENT_MISSED
            }
            _ => return None, // this version of the interface has no such event
        };
        Some(told)
    }
}

/// Fills in what the event says of a hold; returns the kind of the event.
fn of_hold(told: &mut dlock_event, what: HoldEvent) -> Option<u32> {
    let ms = |left: Duration| u64::try_from(left.as_millis()).unwrap_or(DLOCK_FOREVER);
    Some(match what {
        HoldEvent::Granted => DLOCK_EVENT_GRANTED,
        HoldEvent::Lost(loss) => {
            (told.status, told.reason) = (DLOCK_E_LOST, reason(loss));
            DLOCK_EVENT_LOST
        }
        HoldEvent::RenewalFailing { left } => {
            told.left_ms = ms(left);
            DLOCK_EVENT_RENEWAL_FAILING
        }
        HoldEvent::Contended { waiters, until } => {
            told.count = waiters.into();
            told.left_ms = until.map_or(DLOCK_FOREVER, ms);
            DLOCK_EVENT_CONTENDED
        }
        _ => return None,
    })
}

fn reason(loss: Loss) -> u32 {
    match loss {
        Loss::Expired => DLOCK_LOST_EXPIRED,
        Loss::Session => DLOCK_LOST_SESSION,
        Loss::TakenAway => DLOCK_LOST_TAKEN_AWAY,
        Loss::Conflict => DLOCK_LOST_CONFLICT,
        _ => DLOCK_LOST_UNKNOWN,
    }
}

/// `dlock_error dlock_listen_lock(dlock_queue queue, dlock_lock lock, void *user_data)`
#[no_mangle]
pub extern "C" fn dlock_listen_lock(
    queue: dlock_queue,
    lock: dlock_lock,
    user_data: *mut c_void,
) -> dlock_error {
    run("dlock_listen_lock", || {
        let queue = handles::find::<Arc<Queue>>(queue.id)?;
        let events = handles::find::<Lock>(lock.id)?.events(WAITING_MAX);
        Listener::begin(&queue, events, lock, user_data)
    })
}

/// `dlock_error dlock_listen_client(dlock_queue queue, dlock_client client, void *user_data)`
#[no_mangle]
pub extern "C" fn dlock_listen_client(
    queue: dlock_queue,
    client: dlock_client,
    user_data: *mut c_void,
) -> dlock_error {
    run("dlock_listen_client", || {
        let queue = handles::find::<Arc<Queue>>(queue.id)?;
        let events = handles::find::<Client>(client.id)?.events(WAITING_MAX);
        Listener::begin(&queue, events, Plain::zeroed(), user_data)
    })
}
