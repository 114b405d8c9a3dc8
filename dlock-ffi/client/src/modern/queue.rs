// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests in flight, and the queue of their events.
//!
//! ```text
//!   start ─▶ Request: a future, polled once ─▶ Under ── driver wakes it ──▶ listed in the queue
//!                                      └ over at once ──────────────────▶ listed    │ eventfd
//!   next  ─▶ takes the first one listed, polls it: its result becomes the event ◀───┘
//!   listen ─▶ Listener (`events.rs`) ── an event has come ──▶ listed
//!   fire  ─▶ drops the future of a request that is Under, lists it: DLOCK_E_CANCELLED
//! ```
//! A request's result stays in the future until the program takes the event: only then the future
//! checks whether the lease still runs. The eventfd is readable as long as a request is listed.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::raw::{c_int, c_void};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use ::dlock_client::{Error, Lock, OwnedGuard};
use parking_lot::{Condvar, Mutex};

use super::abi::*;
use super::events::Listener;
use super::failure::{run, Failure};
use super::handles;
use super::holds::{abandon, insert, still_held, take, token, Wanted, BUSY_WAIT_NS};
use super::waiting::{deliver, Registered, Until};

/// The most requests of a queue whose events the program has not taken.
const REQUESTS_MAX: usize = 65_536;

/// The most listeners of a queue.
const LISTENERS_MAX: usize = 1_024;

/// What a queue's handle stands for.
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    event: OwnedFd,
}

#[derive(Default)]
struct State {
    is_closed: bool,
    next: u64,
    requests: HashMap<u64, Arc<Request>>,
    listeners: Vec<Arc<Listener>>,
    listed: VecDeque<Listed>,
}

/// A request or a listener that may have an event for the program.
#[derive(Clone)]
pub(super) enum Listed {
    Request(Arc<Request>),
    Listener(Arc<Listener>),
}

/// A request from its start until its event is taken.
pub(super) struct Request {
    queue: Arc<Queue>,
    number: u64,
    /// The event without the result.
    event: Event,
    stage: Mutex<Stage>,
    is_listed: AtomicBool,
    cancel: Mutex<Option<Registered>>,
}

/// The part of an event that is known from the start.
#[derive(Clone, Copy)]
struct Event {
    kind: u32,
    user_data: usize,
    lock: dlock_lock,
    hold: dlock_hold,
}

type Outcome = Result<Option<OwnedGuard>, Error>;

enum Stage {
    New,
    Under(Pin<Box<dyn Future<Output = Outcome> + Send>>),
    /// The request is over.
    Over(Result<Option<OwnedGuard>, Failure>),
    Taken,
}

impl Queue {
    fn new() -> Result<Self, Failure> {
        // SAFETY: a system call on numbers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            let error = std::io::Error::last_os_error();
            return Err(Failure::new(DLOCK_E_NO_RESOURCE, format!("eventfd: {error}")));
        }
        // SAFETY: made just now, and owned by nothing else.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { state: Mutex::default(), changed: Condvar::new(), event })
    }

    fn set_readable(&self, is_readable: bool) {
        let mut count = 1_u64;
        let at = (&raw mut count).cast::<c_void>();
        // SAFETY: eight bytes of this function; the descriptor is that of this queue.
        unsafe {
            match is_readable {
                true => libc::write(self.event.as_raw_fd(), at, 8),
                false => libc::read(self.event.as_raw_fd(), at, 8),
            }
        };
    }

    /// Takes the next request or listener that may have an event; waits for one.
    fn listed(self: &Arc<Self>, until: &Until) -> Result<Listed, Failure> {
        let waker = Waker::from(Arc::new(Sleeper(Arc::clone(self))));
        let mut registered = None;
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                return Err(closed());
            }
            if let Some(listed) = state.listed.pop_front() {
                if state.listed.is_empty() {
                    self.set_readable(false);
                }
                return Ok(listed);
            }
            until.goes_on()?;
            if registered.is_none() {
                drop(state);
                registered = Some(until.wakes(&waker));
                state = self.state.lock();
                continue;
            }
            until.sleep(&self.changed, &mut state);
        }
    }

    /// Lists a request or a listener that may have an event.
    pub(super) fn list(&self, listed: Listed) {
        let mut state = self.state.lock();
        if state.is_closed {
            return;
        }
        if state.listed.is_empty() {
            self.set_readable(true);
        }
        state.listed.push_back(listed);
        self.changed.notify_one();
    }

    /// Adds a listener, whose events the queue reports from now on.
    pub(super) fn hears(&self, listener: Arc<Listener>) -> Result<(), Failure> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(closed());
        }
        if state.listeners.len() >= LISTENERS_MAX {
            return Err(Failure::of(DLOCK_E_TOO_MANY));
        }
        state.listeners.push(listener);
        Ok(())
    }

    /// Makes a request that has not begun, and gives it its place in the queue.
    fn enter(self: &Arc<Self>, event: Event) -> Result<Arc<Request>, Failure> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(closed());
        }
        if state.requests.len() >= REQUESTS_MAX {
            return Err(Failure::of(DLOCK_E_TOO_MANY));
        }
        state.next += 1;
        let request = Arc::new(Request {
            queue: Arc::clone(self),
            number: state.next,
            event,
            stage: Mutex::new(Stage::New),
            is_listed: AtomicBool::new(false),
            cancel: Mutex::new(None),
        });
        state.requests.insert(request.number, Arc::clone(&request));
        Ok(request)
    }
}

fn closed() -> Failure {
    Failure::new(DLOCK_E_HANDLE, "the queue was closed meanwhile")
}

impl Request {
    /// Begins the request; its result will be an event. A request that cannot begin is refused at
    /// once.
    fn start(
        self: Arc<Self>,
        until: &Until,
        future: impl Future<Output = Outcome> + Send + 'static,
    ) -> Result<(), Failure> {
        match self.begin(Box::pin(future)) {
            Err(refused) => {
                self.is_taken();
                return Err(refused);
            }
            Ok(true) => self.list(),
            Ok(false) => {
                let waker = Waker::from(Arc::new(Canceller(Arc::clone(&self))));
                let registered = until.wakes(&waker);
                let before = self.cancel.lock().replace(registered);
                drop(before);
                if matches!(*self.stage.lock(), Stage::Taken) {
                    self.is_taken(); // the program took the event before this
                }
            }
        }
        Ok(())
    }

    /// Ends a request that is not to begin; its event says why.
    fn ends(self: Arc<Self>, why: Failure) -> Result<(), Failure> {
        let mut stage = self.stage.lock();
        if matches!(*stage, Stage::Taken) {
            return Err(closed());
        }
        *stage = Stage::Over(Err(why));
        drop(stage);
        self.list();
        Ok(())
    }

    /// Polls the future for the first time; returns whether the request is over.
    fn begin(
        self: &Arc<Self>,
        mut future: Pin<Box<dyn Future<Output = Outcome> + Send>>,
    ) -> Result<bool, Failure> {
        let waker = Waker::from(Arc::clone(self));
        let mut stage = self.stage.lock();
        if matches!(*stage, Stage::Taken) {
            return Err(closed());
        }
        let (over, next) = match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => (false, Stage::Under(future)),
            Poll::Ready(Err(refused @ (Error::TooManyFutures | Error::Invalid(_)))) => {
                return Err(refused.into());
            }
            Poll::Ready(result) => (true, Stage::Over(result.map_err(Failure::from))),
        };
        *stage = next;
        Ok(over)
    }

    /// Puts the request on the queue's list, unless it is there already: it may be over.
    fn list(self: &Arc<Self>) {
        if self.is_listed.swap(true, Ordering::SeqCst) {
            return;
        }
        self.queue.list(Listed::Request(Arc::clone(self)));
    }

    fn cancel(self: &Arc<Self>) {
        let mut stage = self.stage.lock();
        if !matches!(*stage, Stage::Under(_)) {
            return;
        }
        let over = Stage::Over(Err(Failure::of(DLOCK_E_CANCELLED)));
        let dropped = std::mem::replace(&mut *stage, over);
        drop(stage);
        drop(dropped); // the dropped future leaves nothing held or queued
        self.list();
    }

    /// Takes the result. `None`: the request has none yet, or the result was taken before.
    fn take(self: &Arc<Self>) -> Option<Result<Option<OwnedGuard>, Failure>> {
        self.is_listed.store(false, Ordering::SeqCst);
        let mut stage = self.stage.lock();
        let result = match std::mem::replace(&mut *stage, Stage::Taken) {
            Stage::New | Stage::Taken => return None, // a request is listed only after it has begun
            Stage::Over(Ok(Some(guard))) => still_held(guard).map(Some),
            Stage::Over(result) => result,
            Stage::Under(mut future) => {
                let waker = Waker::from(Arc::clone(self));
                match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(result) => result.map_err(Failure::from),
                    Poll::Pending => {
                        *stage = Stage::Under(future);
                        return None;
                    }
                }
            }
        };
        drop(stage);
        self.is_taken();
        Some(result)
    }

    /// Ends the request: removes it from its queue and from its cancel handle.
    fn is_taken(&self) {
        let registered = self.cancel.lock().take();
        drop(registered);
        let known = self.queue.state.lock().requests.remove(&self.number);
        drop(known);
    }
}

impl Wake for Request {
    fn wake(self: Arc<Self>) {
        self.list();
    }
}

/// Wakes the threads that wait for an event, so that they see a cancel.
struct Sleeper(Arc<Queue>);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        let _state = self.0.state.lock();
        self.0.changed.notify_all();
    }
}

/// Cancels one request.
struct Canceller(Arc<Request>);

impl Wake for Canceller {
    fn wake(self: Arc<Self>) {
        self.0.cancel();
    }
}

/// `dlock_error dlock_queue_new(dlock_queue *queue)`
#[no_mangle]
pub unsafe extern "C" fn dlock_queue_new(queue: *mut dlock_queue) -> dlock_error {
    run("dlock_queue_new", || {
        let make = || Ok(dlock_queue { id: handles::insert(Arc::new(Queue::new()?)) });
        // SAFETY: the pointer is the caller's.
        unsafe { deliver(queue, "queue", make) }
    })
}

/// `dlock_error dlock_queue_get_fd(dlock_queue queue, int *fd)`
#[no_mangle]
pub unsafe extern "C" fn dlock_queue_get_fd(queue: dlock_queue, fd: *mut c_int) -> dlock_error {
    run("dlock_queue_get_fd", || {
        let find = || Ok(handles::find::<Arc<Queue>>(queue.id)?.event.as_raw_fd());
        // SAFETY: the pointer is the caller's.
        unsafe { deliver(fd, "fd", find) }
    })
}

/// `dlock_error dlock_acquire_start(dlock_queue queue, dlock_lock lock,
/// const dlock_acquire_options *options, uint64_t timeout_ns, dlock_cancel cancel,
/// void *user_data)`
#[no_mangle]
pub unsafe extern "C" fn dlock_acquire_start(
    queue: dlock_queue,
    lock: dlock_lock,
    options: *const dlock_acquire_options,
    timeout_ns: u64,
    cancel: dlock_cancel,
    user_data: *mut c_void,
) -> dlock_error {
    run("dlock_acquire_start", || {
        let until = Until::new(timeout_ns, cancel)?;
        let queue = handles::find::<Arc<Queue>>(queue.id)?;
        let found = handles::find::<Lock>(lock.id)?;
        // SAFETY: the pointer is the caller's.
        let options = unsafe { super::abi::options(options, "options") }?;
        let wanted = Wanted::of(&options, "options")?;
        let acquire = wanted.of_lock(&found, &until);
        let (kind, user_data) = (DLOCK_EVENT_ACQUIRED, user_data as usize);
        let event = Event { kind, user_data, lock, hold: Plain::zeroed() };
        let request = queue.enter(event)?;
        match until.is_uncancelled() {
            Ok(()) => request.start(&until, async move { acquire.await.map(Some) }),
            Err(cancelled) => request.ends(cancelled),
        }
    })
}

/// `dlock_error dlock_release_start(dlock_queue queue, dlock_hold hold, void *user_data)`
#[no_mangle]
pub extern "C" fn dlock_release_start(
    queue: dlock_queue,
    hold: dlock_hold,
    user_data: *mut c_void,
) -> dlock_error {
    run("dlock_release_start", || {
        let queue = handles::find::<Arc<Queue>>(queue.id)?;
        let until = Until::new(BUSY_WAIT_NS, Plain::zeroed())?;
        let (kind, user_data) = (DLOCK_EVENT_RELEASED, user_data as usize);
        let event = Event { kind, user_data, lock: Plain::zeroed(), hold };
        let request = queue.enter(event)?;
        match take(hold, &until) {
            Ok(guard) => {
                let release = async move { guard.unlock_async().await.map(|()| None) };
                request.start(&until, release)
            }
            Err(failure) => {
                request.is_taken();
                Err(failure)
            }
        }
    })
}

/// `dlock_error dlock_queue_next(dlock_queue queue, uint64_t timeout_ns, dlock_cancel cancel,
/// dlock_event *event)`
#[no_mangle]
pub unsafe extern "C" fn dlock_queue_next(
    queue: dlock_queue,
    timeout_ns: u64,
    cancel: dlock_cancel,
    event: *mut dlock_event,
) -> dlock_error {
    run("dlock_queue_next", || {
        // SAFETY: the pointer is the caller's.
        let size = unsafe { size_of_caller(event, "event") }?;
        has_hold(size, offset_of!(dlock_event, generation), "event")?;
        let until = Until::new(timeout_ns, cancel)?;
        let queue = handles::find::<Arc<Queue>>(queue.id)?;
        let told = loop {
            let told = match queue.listed(&until)? {
                Listed::Request(request) => request.take().map(|result| over(&request, result)),
                Listed::Listener(listener) => listener.take(),
            };
            if let Some(told) = told {
                break told;
            }
        };
        // SAFETY: a struct of this size.
        unsafe { write(event, size, &told) };
        Ok(())
    })
}

/// Makes the event of a request that is over.
fn over(request: &Request, result: Result<Option<OwnedGuard>, Failure>) -> dlock_event {
    let Event { kind, user_data, lock, hold } = request.event;
    let user_data = user_data as *mut c_void;
    let mut told = dlock_event { kind, user_data, lock, hold, ..Plain::zeroed() };
    match result {
        Ok(None) => {}
        Ok(Some(guard)) => {
            (told.token, told.generation) = (token(&guard), guard.generation());
            told.hold = insert(guard);
        }
        Err(failure) => told.status = failure.code,
    }
    told
}

/// `dlock_error dlock_queue_close(dlock_queue queue)`
#[no_mangle]
pub extern "C" fn dlock_queue_close(queue: dlock_queue) -> dlock_error {
    run("dlock_queue_close", || {
        let queue = handles::remove::<Arc<Queue>>(queue.id)?;
        let State { requests, listeners, listed, .. } = {
            let mut state = queue.state.lock();
            queue.changed.notify_all();
            std::mem::replace(&mut *state, State { is_closed: true, ..State::default() })
        };
        drop((listeners, listed)); // the queue has no more events
        for request in requests.into_values() {
            let stage = std::mem::replace(&mut *request.stage.lock(), Stage::Taken);
            match stage {
                Stage::Over(Ok(Some(guard))) => abandon(guard),
                stage => drop(stage), // a release goes on, an acquire is undone
            }
            request.is_taken();
        }
        Ok(())
    })
}
