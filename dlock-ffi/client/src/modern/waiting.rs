// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits of calls, for a future or for a thread: until the deadline, or until the call is
//! cancelled.
//!
//! ```text
//!   Until { deadline, cancel } ── block_on(future)   polls, sleeps; drops the future at its end
//!                              └─ in_time(work)      the caller runs it if it surely ends in time;
//!                                                    otherwise a thread, even after the call's end
//!   dlock_cancel_fire ─▶ Cancel ─▶ wakes all calls that wait with it
//! ```

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use dlock_fabric::os::threads::spawn_without_signals;
use parking_lot::{Condvar, Mutex, RwLock, RwLockWriteGuard};

use super::abi::*;
use super::failure::{invalid, run, Failure};
use super::handles;

/// The most calls of a process that threads carry out at the same time.
const THREADS_MAX: usize = 256;
/// How often a call that waits for another call with the same hold checks whether it is cancelled.
const LOOK: Duration = Duration::from_millis(2);

/// What a cancel handle stands for.
#[derive(Default)]
pub(crate) struct Cancel {
    state: Mutex<CancelState>,
}

#[derive(Default)]
struct CancelState {
    is_fired: bool,
    next: u64,
    wakers: HashMap<u64, Waker>,
}

impl Cancel {
    fn fire(&self) {
        let wakers = {
            let mut state = self.state.lock();
            state.is_fired = true;
            std::mem::take(&mut state.wakers)
        };
        wakers.into_values().for_each(Waker::wake);
    }

    fn is_fired(&self) -> bool {
        self.state.lock().is_fired
    }
}

/// A waker that is woken when a cancel handle is fired, until this object is dropped.
pub(crate) struct Registered(Option<(Arc<Cancel>, u64)>);

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some((cancel, number)) = self.0.take() {
            let _waker = cancel.state.lock().wakers.remove(&number);
        }
    }
}

/// Until when a call may wait.
#[derive(Clone)]
pub(crate) struct Until {
    deadline: Option<Instant>,
    cancel: Option<Arc<Cancel>>,
}

impl Until {
    /// The limit of a call that begins now.
    ///
    /// # Errors
    /// There is no such cancel handle.
    pub(crate) fn new(timeout_ns: u64, cancel: dlock_cancel) -> Result<Self, Failure> {
        let deadline = match timeout_ns {
            DLOCK_FOREVER => None,
            ns => Instant::now().checked_add(Duration::from_nanos(ns)),
        };
        let cancel = match cancel.id {
            0 => None,
            id => Some(handles::find::<Arc<Cancel>>(id)?),
        };
        Ok(Self { deadline, cancel })
    }

    /// The time that is left; `None`: no limit.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Checks that the call may still wait.
    ///
    /// # Errors
    /// `DLOCK_E_CANCELLED`, `DLOCK_E_TIMED_OUT`.
    pub(crate) fn goes_on(&self) -> Result<(), Failure> {
        self.is_uncancelled()?;
        match self.left() {
            Some(Duration::ZERO) => Err(Failure::of(DLOCK_E_TIMED_OUT)),
            _ => Ok(()),
        }
    }

    /// # Errors
    /// `DLOCK_E_CANCELLED`.
    pub(crate) fn is_uncancelled(&self) -> Result<(), Failure> {
        match &self.cancel {
            Some(cancel) if cancel.is_fired() => Err(Failure::of(DLOCK_E_CANCELLED)),
            _ => Ok(()),
        }
    }

    /// A cancel will wake `waker`; if the handle was fired already, it is woken at once.
    pub(crate) fn wakes(&self, waker: &Waker) -> Registered {
        let Some(cancel) = &self.cancel else { return Registered(None) };
        let mut state = cancel.state.lock();
        if state.is_fired {
            drop(state);
            waker.wake_by_ref();
            return Registered(None);
        }
        state.next += 1;
        let number = state.next;
        state.wakers.insert(number, waker.clone());
        Registered(Some((Arc::clone(cancel), number)))
    }

    /// Sleeps on a condition variable, until the deadline at most.
    pub(crate) fn sleep<T>(&self, on: &Condvar, guard: &mut parking_lot::MutexGuard<'_, T>) {
        match self.deadline {
            Some(deadline) => drop(on.wait_until(guard, deadline)),
            None => on.wait(guard),
        }
    }

    /// Whether the call surely has time for an operation that takes `longest`, and cannot be
    /// cancelled.
    pub(crate) fn suffices_for(&self, longest: Duration) -> bool {
        self.cancel.is_none() && self.left().is_none_or(|left| left >= longest)
    }

    /// Locks for writing; another call with the same handle may have the lock.
    pub(crate) fn write<'a, T>(
        &self,
        lock: &'a RwLock<T>,
    ) -> Result<RwLockWriteGuard<'a, T>, Failure> {
        loop {
            let wait = self.left().map_or(LOOK, |left| left.min(LOOK));
            match lock.try_write_for(wait) {
                Some(guard) => return Ok(guard),
                None => self.goes_on()?,
            }
        }
    }
}

/// The sleep of one thread, until it is woken.
#[derive(Default)]
struct Sleep {
    is_woken: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Sleep {
    fn wake(self: Arc<Self>) {
        *self.is_woken.lock() = true;
        self.changed.notify_one();
    }
}

/// Waits for the result of a future. At the end of the time the future is dropped.
///
/// # Errors
/// `DLOCK_E_CANCELLED`, `DLOCK_E_TIMED_OUT`.
pub(crate) fn block_on<F: Future>(future: F, until: &Until) -> Result<F::Output, Failure> {
    until.is_uncancelled()?;
    let mut future = pin!(future);
    let mut at_once = Context::from_waker(Waker::noop());
    if let Poll::Ready(result) = future.as_mut().poll(&mut at_once) {
        return Ok(result);
    }
    until.goes_on()?;
    let sleep = Arc::new(Sleep::default());
    let waker = Waker::from(Arc::clone(&sleep));
    let mut context = Context::from_waker(&waker);
    if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
        return Ok(result);
    }
    let _registered = until.wakes(&waker);
    loop {
        until.goes_on()?;
        let mut is_woken = sleep.is_woken.lock();
        if !*is_woken {
            until.sleep(&sleep.changed, &mut is_woken);
        }
        let was_woken = std::mem::take(&mut *is_woken);
        drop(is_woken);
        if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
            return Ok(result);
        }
        if !was_woken {
            until.goes_on()?;
        }
    }
}

/// Runs a work that takes no longer than `longest`, and returns its result. If the call's time may
/// not suffice, a thread runs the work, and goes on after the call has ended; then `undo` gets the
/// result, because no call wants it any more.
///
/// # Errors
/// Those of the work; `DLOCK_E_CANCELLED`, `DLOCK_E_TIMED_OUT`; `DLOCK_E_TOO_MANY`.
pub(crate) fn in_time<T: Send + 'static>(
    until: &Until,
    longest: Duration,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    undo: impl FnOnce(T) + Send + 'static,
) -> Result<T, Failure> {
    if until.suffices_for(longest) {
        return work();
    }
    until.goes_on()?;
    by_a_thread(until, Full::Refuses, work, undo)
}

/// As [`in_time`], for a work that begins even if there is no time for it: the caller must not drop
/// what the work owns, because the drop may block.
///
/// # Errors
/// As `in_time`. After `DLOCK_E_TOO_MANY` the work begins when one of the threads is free.
pub(crate) fn in_any_case<T: Send + 'static>(
    until: &Until,
    longest: Duration,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    undo: impl FnOnce(T) + Send + 'static,
) -> Result<T, Failure> {
    if until.suffices_for(longest) {
        return work();
    }
    by_a_thread(until, Full::Keeps, work, undo)
}

fn by_a_thread<T: Send + 'static>(
    until: &Until,
    full: Full,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    undo: impl FnOnce(T) + Send + 'static,
) -> Result<T, Failure> {
    let answer = Arc::new(Answer { state: Mutex::new(None), sleep: Arc::default() });
    let told = Arc::clone(&answer);
    let run = move || {
        let panicked = |_| Err(Failure::of(DLOCK_E_INTERNAL));
        let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked);
        if let Some(Ok(unwanted)) = told.tell(result) {
            undo(unwanted);
        }
    };
    begin(Box::new(run), full)?;
    match block_on(Answered(&answer), until) {
        Ok(result) => result,
        Err(late) => match answer.close() {
            // the result came at the same moment as the cancel or the deadline
            Some(result) => result,
            None => Err(late),
        },
    }
}

/// The calls that threads of a process carry out.
#[derive(Default)]
pub(crate) struct Calls {
    threads: usize,
    /// Calls that must be carried out in any case, and that wait for a free thread.
    kept: VecDeque<Call>,
}

type Call = Box<dyn FnOnce() + Send>;

/// What becomes of a call if no thread is free.
enum Full {
    Refuses,
    Keeps,
}

/// A thread carries the call out.
///
/// # Errors
/// `DLOCK_E_TOO_MANY`, `DLOCK_E_NO_RESOURCE`.
fn begin(call: Call, full: Full) -> Result<(), Failure> {
    let calls = handles::calls();
    let mut state = calls.lock();
    if state.threads >= THREADS_MAX {
        match full {
            Full::Keeps => state.kept.push_back(call),
            Full::Refuses => {
                drop(state);
                drop(call); // not under the mutex: it may own the last reference to a lock
            }
        }
        return Err(Failure::of(DLOCK_E_TOO_MANY));
    }
    state.threads += 1;
    drop(state);
    let run = move || {
        let mut next = Some(call);
        while let Some(call) = next.take() {
            let _ = catch_unwind(AssertUnwindSafe(call));
            let mut state = calls.lock();
            next = state.kept.pop_front();
            if next.is_none() {
                state.threads -= 1;
            }
        }
    };
    spawn_without_signals("dlock-call", run).map_err(|error| {
        calls.lock().threads -= 1;
        Failure::new(DLOCK_E_NO_RESOURCE, format!("no thread: {error}"))
    })
}

/// The answer of a thread: its result, or `Closed` if no call wants it any more.
struct Answer<T> {
    state: Mutex<Option<Told<T>>>,
    sleep: Arc<Mutex<Option<Waker>>>,
}

enum Told<T> {
    Result(Result<T, Failure>),
    Closed,
}

impl<T> Answer<T> {
    /// Leaves the result for the caller; returns it if no call wants it any more.
    fn tell(&self, result: Result<T, Failure>) -> Option<Result<T, Failure>> {
        let mut state = self.state.lock();
        if let Some(Told::Closed) = &*state {
            return Some(result);
        }
        *state = Some(Told::Result(result));
        drop(state);
        if let Some(waker) = self.sleep.lock().take() {
            waker.wake();
        }
        None
    }

    fn close(&self) -> Option<Result<T, Failure>> {
        match self.state.lock().replace(Told::Closed) {
            Some(Told::Result(result)) => Some(result),
            _ => None,
        }
    }
}

struct Answered<'a, T>(&'a Answer<T>);

impl<T> Future for Answered<'_, T> {
    type Output = Result<T, Failure>;

    fn poll(self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        *self.0.sleep.lock() = Some(context.waker().clone());
        let mut state = self.0.state.lock();
        match &*state {
            None => Poll::Pending,
            Some(_) => match state.replace(Told::Closed) {
                Some(Told::Result(result)) => Poll::Ready(result),
                _ => Poll::Pending,
            },
        }
    }
}

/// `dlock_error dlock_cancel_new(dlock_cancel *cancel)`
#[no_mangle]
pub unsafe extern "C" fn dlock_cancel_new(cancel: *mut dlock_cancel) -> dlock_error {
    run("dlock_cancel_new", || {
        // SAFETY: the pointer is the caller's.
        unsafe { deliver(cancel, "cancel", || Ok(dlock_cancel { id: insert_cancel() })) }
    })
}

fn insert_cancel() -> u64 {
    handles::insert(Arc::new(Cancel::default()))
}

/// `dlock_error dlock_cancel_fire(dlock_cancel cancel)`
#[no_mangle]
pub extern "C" fn dlock_cancel_fire(cancel: dlock_cancel) -> dlock_error {
    run("dlock_cancel_fire", || {
        handles::find::<Arc<Cancel>>(cancel.id)?.fire();
        Ok(())
    })
}

/// `dlock_error dlock_cancel_close(dlock_cancel cancel)`
#[no_mangle]
pub extern "C" fn dlock_cancel_close(cancel: dlock_cancel) -> dlock_error {
    run("dlock_cancel_close", || handles::remove::<Arc<Cancel>>(cancel.id).map(drop))
}

/// Writes the value that `make` returns to `at`. A null `at` is refused before `make` is called.
///
/// # Safety
/// `at` is null or points to memory for a `T`.
pub(crate) unsafe fn deliver<T: Copy>(
    at: *mut T,
    name: &str,
    make: impl FnOnce() -> Result<T, Failure>,
) -> Result<(), Failure> {
    if at.is_null() {
        return Err(invalid(format!("{name} is NULL")));
    }
    let value = make()?;
    // SAFETY: not null, so there is memory for it.
    unsafe { at.write_unaligned(value) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);

    fn until(timeout: Duration, cancel: Option<&Arc<Cancel>>) -> Until {
        Until { deadline: Some(Instant::now() + timeout), cancel: cancel.cloned() }
    }

    #[test]
    fn a_work_that_is_late_goes_on_and_is_undone() {
        let (tell, told) = std::sync::mpsc::channel();
        let (go, goes) = std::sync::mpsc::channel();
        let work = move || {
            goes.recv().unwrap();
            Ok(7)
        };
        let undo = move |value| tell.send(value).unwrap();
        let late = in_time(&until(Duration::from_millis(1), None), LONG, work, undo);
        assert_eq!(late.unwrap_err().code, DLOCK_E_TIMED_OUT);
        go.send(()).unwrap();
        assert_eq!(told.recv().unwrap(), 7);
        let there = in_time(&until(LONG / 2, None), LONG, || Ok(8), |_| ());
        assert_eq!(there.unwrap(), 8);
    }

    #[test]
    fn a_cancel_ends_what_waits_and_what_begins_later() {
        let cancel = Arc::new(Cancel::default());
        let waits = until(LONG, Some(&cancel));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| block_on(std::future::pending::<()>(), &waits));
            while cancel.state.lock().wakers.is_empty() {
                std::thread::yield_now();
            }
            cancel.fire();
            assert_eq!(waiter.join().unwrap().unwrap_err().code, DLOCK_E_CANCELLED);
        });
        assert!(cancel.state.lock().wakers.is_empty());
        let later = block_on(std::future::ready(()), &waits);
        assert_eq!(later.unwrap_err().code, DLOCK_E_CANCELLED);
    }

    #[test]
    fn a_work_for_which_there_is_no_time_begins_in_any_case_if_it_has_to() {
        let caller = std::thread::current().id();
        for (must_begin, cancel) in [(false, false), (false, true), (true, false), (true, true)] {
            let (tell, told) = std::sync::mpsc::channel();
            let handle = Arc::new(Cancel::default());
            handle.fire();
            let until = until(Duration::ZERO, cancel.then_some(&handle));
            let work = move || {
                tell.send(std::thread::current().id()).unwrap();
                Err::<(), _>(Failure::of(DLOCK_E_FAILED))
            };
            let result = match must_begin {
                true => in_any_case(&until, LONG, work, drop),
                false => in_time(&until, LONG, work, drop),
            };
            let late = if cancel { DLOCK_E_CANCELLED } else { DLOCK_E_TIMED_OUT };
            let code = result.unwrap_err().code;
            assert!(code == late || must_begin && code == DLOCK_E_FAILED, "{code}");
            assert_eq!(told.recv().is_ok_and(|thread| thread != caller), must_begin);
        }
    }

    #[test]
    fn a_work_that_has_to_begin_waits_for_one_of_the_threads() {
        let (tell, told) = std::sync::mpsc::channel();
        let work = |name: &'static str| {
            let tell = tell.clone();
            move || tell.send((name, std::thread::current().id())).map_err(|_| Failure::of(0))
        };
        let soon = until(LONG / 2, None);
        handles::calls().lock().threads = THREADS_MAX;
        let refused = in_time(&soon, LONG, work("refused"), drop);
        let kept = in_any_case(&soon, LONG, work("kept"), drop);
        for result in [refused, kept] {
            assert_eq!(result.unwrap_err().code, DLOCK_E_TOO_MANY);
        }
        assert!(told.try_recv().is_err());
        handles::calls().lock().threads = 0;
        in_time(&soon, LONG, work("next"), drop).unwrap();
        let ran = [(); 2].map(|()| told.recv_timeout(Duration::from_secs(20)).expect("it runs"));
        assert_eq!(ran.map(|(name, _)| name), ["next", "kept"]);
        assert_eq!(ran[0].1, ran[1].1, "the same thread");
    }

    #[test]
    fn a_work_that_panics_is_an_error_of_the_library() {
        let panics = || -> Result<(), Failure> { panic!("as a bug does") };
        let result = in_time(&until(LONG / 2, None), LONG, panics, |()| ());
        assert_eq!(result.unwrap_err().code, DLOCK_E_INTERNAL);
    }
}
