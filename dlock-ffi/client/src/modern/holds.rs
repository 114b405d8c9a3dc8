// SPDX-License-Identifier: MIT OR Apache-2.0
//! Holds of `dlock.h`: acquiring, extending and releasing one or many.

use std::future::{Future, IntoFuture};
use std::mem::offset_of;
use std::pin::{pin, Pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use ::dlock_client::{
    Acquire, AcquireFuture, Error, Lock, Mode, OwnedGuard, Renew, Wait, LEASE_MAX,
};
use dlock_core::limits::LOCK_WAIT_S;
use parking_lot::{Mutex, RwLock};

use super::abi::*;
use super::failure::{invalid, run, Failure};
use super::handles;
use super::waiting::{block_on, deliver, in_time, Until};

/// The longest time of an operation on a hold or an object, with the wait for other threads; also
/// the longest that an acquire takes beyond its own time.
pub(crate) const OPERATION_WAIT: Duration = Duration::from_secs(4 * LOCK_WAIT_S);
/// How long a call without a time limit waits for another call with the same hold.
pub(crate) const BUSY_WAIT_NS: u64 = LOCK_WAIT_S * 1_000_000_000;

/// The value of a hold's handle; `None`: the hold is being released.
pub(crate) type Held = RwLock<Option<OwnedGuard>>;

/// The options of an acquire.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    mode: Mode,
    lease: Option<Duration>,
    waits: bool,
    is_renewed: bool,
}

impl Wanted {
    pub(crate) fn of(options: &dlock_acquire_options, name: &str) -> Result<Self, Failure> {
        known_flags(options.flags, DLOCK_TRY | DLOCK_RENEW, name)?;
        unused(options.reserved, name)?;
        let mode = match options.mode {
            DLOCK_EXCLUSIVE => Mode::Exclusive,
            DLOCK_SHARED => Mode::Shared,
            other => return Err(invalid(format!("{name}->mode: {other} is none"))),
        };
        let lease = match options.lease_ms {
            0 => None,
            ms => Some(lease(ms)),
        };
        let (waits, is_renewed) =
            (options.flags & DLOCK_TRY == 0, options.flags & DLOCK_RENEW != 0);
        Ok(Self { mode, lease, waits, is_renewed })
    }

    /// The acquire of this lock, as a future that has not begun.
    pub(crate) fn of_lock(self, lock: &Lock, until: &Until) -> AcquireFuture {
        self.within(lock, until.left()).into_future()
    }

    fn within(self, lock: &Lock, left: Option<Duration>) -> Acquire<'_> {
        let wait = match (self.waits, left) {
            (false, _) => Wait::No,
            (true, Some(left)) => Wait::For(left),
            (true, None) => Wait::Forever,
        };
        let mut acquire = lock.acquire(self.mode).wait(wait);
        if self.is_renewed {
            acquire = acquire.renew(Renew::new());
        }
        match self.lease {
            Some(lease) => acquire.lease(lease),
            None => acquire,
        }
    }

    /// Acquires the lock. If the end of the time is far away and the call cannot be cancelled, it
    /// waits in this thread; otherwise as a future, which can be dropped at any moment.
    fn hold(self, lock: &Lock, until: &Until) -> Result<OwnedGuard, Failure> {
        if until.suffices_for(2 * OPERATION_WAIT) {
            let left = until.left().map(|left| left.saturating_sub(OPERATION_WAIT));
            match self.within(lock, left).owned() {
                Err(Error::TimedOut) => {}
                result => return Ok(result?),
            }
        }
        Ok(block_on(self.of_lock(lock, until), until)??)
    }
}

/// A lease as `dlock.h` has it.
fn lease(ms: u64) -> Duration {
    match ms {
        DLOCK_FOREVER => LEASE_MAX,
        ms => Duration::from_millis(ms),
    }
}

/// The token of a hold as `dlock.h` has it; 0: none.
pub(crate) fn token(guard: &OwnedGuard) -> u64 {
    guard.token().map_or(0, |token| token.0)
}

pub(crate) fn insert(guard: OwnedGuard) -> dlock_hold {
    dlock_hold { id: handles::insert(Arc::new(Held::new(Some(guard)))) }
}

/// Ends a hold's handle once no other call uses it, and returns the guard.
///
/// # Errors
/// `DLOCK_E_BUSY`: another call goes on, and the handle stays; also those of `handles::find`.
pub(crate) fn take(hold: dlock_hold, until: &Until) -> Result<OwnedGuard, Failure> {
    let held = handles::find::<Arc<Held>>(hold.id)?;
    let guard = until.write(&held).map_err(|_| Failure::of(DLOCK_E_BUSY))?.take();
    let _gone = handles::remove::<Arc<Held>>(hold.id);
    guard.ok_or_else(|| Failure::of(DLOCK_E_HANDLE)) // another thread has just released it
}

/// Begins to release a hold that no caller wants. The release goes on by itself.
pub(crate) fn abandon(guard: OwnedGuard) {
    let mut release = pin!(guard.unlock_async());
    let mut context = Context::from_waker(Waker::noop());
    if let Poll::Ready(Err(error)) = release.as_mut().poll(&mut context) {
        log::warn!("a hold that is not wanted: {error}");
    }
}

/// Returns a hold that was granted before; `Lost` if it is over, as far as the client knows.
pub(crate) fn still_held(guard: OwnedGuard) -> Result<OwnedGuard, Failure> {
    if guard.is_known_lost() {
        abandon(guard);
        return Err(Error::Lost.into());
    }
    Ok(guard)
}

/// `dlock_error dlock_acquire(dlock_lock lock, const dlock_acquire_options *options,
/// uint64_t timeout_ns, dlock_cancel cancel, dlock_hold *hold, uint64_t *token)`
#[no_mangle]
pub unsafe extern "C" fn dlock_acquire(
    lock: dlock_lock,
    options: *const dlock_acquire_options,
    timeout_ns: u64,
    cancel: dlock_cancel,
    hold: *mut dlock_hold,
    token: *mut u64,
) -> dlock_error {
    run("dlock_acquire", || {
        // SAFETY: the pointers are the caller's.
        unsafe {
            deliver(hold, "hold", || {
                let until = Until::new(timeout_ns, cancel)?;
                let lock = handles::find::<Lock>(lock.id)?;
                let options = super::abi::options(options, "options")?;
                let guard = Wanted::of(&options, "options")?.hold(&lock, &until)?;
                if !token.is_null() {
                    token.write_unaligned(self::token(&guard));
                }
                Ok(insert(guard))
            })
        }
    })
}

/// `dlock_error dlock_hold_get_info(dlock_hold hold, dlock_hold_info *info)`
#[no_mangle]
pub unsafe extern "C" fn dlock_hold_get_info(
    hold: dlock_hold,
    info: *mut dlock_hold_info,
) -> dlock_error {
    run("dlock_hold_get_info", || {
        // SAFETY: the pointer is the caller's.
        let size = unsafe { size_of_caller(info, "info") }?;
        let held = handles::find::<Arc<Held>>(hold.id)?;
        let guard = held.try_read_for(Duration::from_nanos(BUSY_WAIT_NS));
        let guard = guard.ok_or_else(|| Failure::of(DLOCK_E_BUSY))?;
        let guard = guard.as_ref().ok_or_else(|| Failure::of(DLOCK_E_HANDLE))?;
        if guard.is_known_lost() {
            return Err(Error::Lost.into());
        }
        let lease_end_unix_ms = guard.lease_end_ms().unwrap_or(0);
        let found = dlock_hold_info {
            mode: match guard.mode() {
                Mode::Exclusive => DLOCK_EXCLUSIVE,
                Mode::Shared => DLOCK_SHARED,
            },
            token: token(guard),
            generation: guard.generation(),
            lease_end_unix_ms,
            ..Plain::zeroed()
        };
        // SAFETY: a struct of this size.
        unsafe { write(info, size, &found) };
        Ok(())
    })
}

/// Runs an operation that does not end the hold. One that has not begun when the call ends never
/// begins, so what the program then learns of the hold stays true.
fn on(
    hold: dlock_hold,
    timeout_ns: u64,
    cancel: dlock_cancel,
    act: impl FnOnce(&mut OwnedGuard) -> Result<(), Error> + Send + 'static,
) -> Result<(), Failure> {
    let until = Until::new(timeout_ns, cancel)?;
    let held = handles::find::<Arc<Held>>(hold.id)?;
    let for_thread = until.clone();
    let work = move || match for_thread.write(&held)?.as_mut() {
        Some(guard) => for_thread.goes_on().and_then(|()| Ok(act(guard)?)),
        None => Err(Failure::of(DLOCK_E_HANDLE)),
    };
    in_time(&until, OPERATION_WAIT, work, drop)
}

/// `dlock_error dlock_hold_extend(dlock_hold hold, uint64_t lease_ms, uint64_t timeout_ns,
/// dlock_cancel cancel)`
#[no_mangle]
pub extern "C" fn dlock_hold_extend(
    hold: dlock_hold,
    lease_ms: u64,
    timeout_ns: u64,
    cancel: dlock_cancel,
) -> dlock_error {
    run("dlock_hold_extend", || {
        let lease = match lease_ms {
            0 => ::dlock_client::LEASE_DEFAULT,
            ms => lease(ms),
        };
        on(hold, timeout_ns, cancel, move |guard| guard.extend(lease))
    })
}

/// `dlock_error dlock_hold_downgrade(dlock_hold hold, uint64_t timeout_ns, dlock_cancel cancel)`
#[no_mangle]
pub extern "C" fn dlock_hold_downgrade(
    hold: dlock_hold,
    timeout_ns: u64,
    cancel: dlock_cancel,
) -> dlock_error {
    run("dlock_hold_downgrade", || on(hold, timeout_ns, cancel, OwnedGuard::downgrade))
}

/// `dlock_error dlock_hold_check(dlock_hold hold, uint64_t timeout_ns, dlock_cancel cancel)`
#[no_mangle]
pub extern "C" fn dlock_hold_check(
    hold: dlock_hold,
    timeout_ns: u64,
    cancel: dlock_cancel,
) -> dlock_error {
    run("dlock_hold_check", || on(hold, timeout_ns, cancel, OwnedGuard::check))
}

/// `dlock_error dlock_release(dlock_hold hold, uint64_t timeout_ns, dlock_cancel cancel)`
#[no_mangle]
pub extern "C" fn dlock_release(
    hold: dlock_hold,
    timeout_ns: u64,
    cancel: dlock_cancel,
) -> dlock_error {
    run("dlock_release", || {
        let until = Until::new(timeout_ns, cancel)?;
        let guard = take(hold, &until)?;
        match until.suffices_for(2 * OPERATION_WAIT) {
            true => guard.unlock().map_err(Failure::from),
            false => finish(guard.unlock_async(), &until),
        }
    })
}

/// Waits for a release, which begins even if there is no time.
fn finish(release: impl Future<Output = Result<(), Error>>, until: &Until) -> Result<(), Failure> {
    let mut release = pin!(release);
    let mut context = Context::from_waker(Waker::noop());
    match release.as_mut().poll(&mut context) {
        Poll::Ready(result) => result.map_err(Failure::from),
        Poll::Pending => block_on(release, until)?.map_err(Failure::from),
    }
}

/// The items of the caller.
struct Items {
    at: *mut dlock_item,
    stride: usize,
    count: usize,
}

impl Items {
    /// # Safety
    /// `at` is null or points to `count` items of the same size, which stands at their beginning.
    unsafe fn new(at: *mut dlock_item, count: usize) -> Result<Self, Failure> {
        if count == 0 {
            return Ok(Self { at, stride: 0, count });
        }
        // SAFETY: as the caller vouches.
        let stride = unsafe { size_of_caller(at, "items") }?;
        has_hold(stride, offset_of!(dlock_item, token), "items")?;
        Ok(Self { at, stride, count })
    }

    fn nth(&self, index: usize) -> *mut dlock_item {
        self.at.cast::<u8>().wrapping_add(index * self.stride).cast()
    }

    /// Copies of the items. If one of them is invalid, no item is changed.
    fn read(&self) -> Result<Vec<dlock_item>, Failure> {
        let read = |index| {
            // SAFETY: one of the caller's items.
            let item = unsafe { read(self.nth(index), &format!("items[{index}]")) }?;
            match item.size as usize == self.stride {
                true => Ok(item),
                false => Err(Failure::new(
                    DLOCK_E_SIZE,
                    format!("items[{index}].size is {}, not {}", item.size, self.stride),
                )),
            }
        };
        (0..self.count).map(read).collect()
    }

    /// Writes that no item was begun, each with its code.
    fn not_begun(&self, items: &[dlock_item], code: impl Fn(usize) -> dlock_error) {
        for (index, item) in items.iter().enumerate() {
            let (hold, status) = (Plain::zeroed(), code(index));
            self.write(index, &dlock_item { hold, token: 0, status, ..*item });
        }
    }

    fn write(&self, index: usize, item: &dlock_item) {
        // SAFETY: one of the caller's items, whose size `read` has seen.
        unsafe { write(self.nth(index), self.stride, item) };
    }
}

/// One operation of many.
enum Many<T> {
    Under(Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>, Arc<Woken>),
    Over(Result<T, Failure>),
}

impl<T> Many<T> {
    /// Polls the operation for the first time, so that it begins.
    fn begun(future: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        let mut future: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(future);
        let woken = Arc::<Woken>::default();
        let waker = Waker::from(Arc::clone(&woken));
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => Self::Over(result.map_err(Failure::from)),
            Poll::Pending => Self::Under(future, woken),
        }
    }

    /// Waits until the operation is over; the result stays in it.
    fn wait(&self, until: &Until) -> Result<(), Failure> {
        match self {
            Self::Over(_) => Ok(()),
            Self::Under(_, woken) => block_on(woken.as_ref(), until),
        }
    }

    /// The result; waits for it if the operation is not over.
    fn result(self, until: &Until) -> Result<T, Failure> {
        match self {
            Self::Over(result) => result,
            Self::Under(mut future, _) => {
                let mut context = Context::from_waker(Waker::noop());
                match future.as_mut().poll(&mut context) {
                    Poll::Ready(result) => result.map_err(Failure::from),
                    Poll::Pending => block_on(future, until)?.map_err(Failure::from),
                }
            }
        }
    }
}

/// Whether the operation has been woken, as it is once it is over.
#[derive(Default)]
struct Woken {
    is_woken: AtomicBool,
    waiter: Mutex<Option<Waker>>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        if let Some(waiter) = self.waiter.lock().take() {
            waiter.wake();
        }
    }
}

impl Future for &Woken {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        *self.waiter.lock() = Some(context.waker().clone());
        match self.is_woken.load(Ordering::SeqCst) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

/// The first failure of many, with its index.
fn first(failures: impl IntoIterator<Item = (usize, Failure)>) -> Result<(), Failure> {
    match failures.into_iter().next() {
        None => Ok(()),
        Some((index, failure)) => Err(failure.of_item(index)),
    }
}

/// The lock of an item, and how it is to be acquired.
fn asked(item: &dlock_item) -> Result<(Lock, Wanted), Failure> {
    let dlock_item { flags, mode, lease_ms, .. } = *item;
    let options = dlock_acquire_options { flags, mode, lease_ms, ..Plain::zeroed() };
    Ok((handles::find::<Lock>(item.lock.id)?, Wanted::of(&options, "item")?))
}

/// `dlock_error dlock_acquire_many(dlock_item *items, size_t count, uint64_t timeout_ns,
/// dlock_cancel cancel)`
#[no_mangle]
pub unsafe extern "C" fn dlock_acquire_many(
    items: *mut dlock_item,
    count: usize,
    timeout_ns: u64,
    cancel: dlock_cancel,
) -> dlock_error {
    run("dlock_acquire_many", || {
        // SAFETY: the items are the caller's.
        let items = unsafe { Items::new(items, count) }?;
        let wanted = items.read()?;
        let until = Until::new(timeout_ns, cancel).and_then(|until| {
            until.is_uncancelled()?;
            Ok(until)
        });
        let until = until.inspect_err(|failure| items.not_begun(&wanted, |_| failure.code))?;
        let all: Vec<_> = wanted.iter().map(asked).collect();
        if all.iter().any(Result::is_err) {
            let codes =
                |index: usize| all[index].as_ref().err().map_or(DLOCK_E_CANCELLED, |f| f.code);
            items.not_begun(&wanted, codes);
        }
        let nth = |(index, one): (usize, Result<_, Failure>)| one.map_err(|f| f.of_item(index));
        let begun = all.into_iter().enumerate().map(nth).collect::<Result<Vec<_>, _>>()?;
        let begin = |(lock, wanted): (Lock, Wanted)| Many::begun(wanted.of_lock(&lock, &until));
        let begun: Vec<_> = begun.into_iter().map(begin).collect();
        // the results are taken when all are over: a lease may end while another acquire waits
        let _is_late = begun.iter().try_for_each(|acquire| acquire.wait(&until));
        let mut failures = Vec::new();
        for (index, (acquire, mut item)) in begun.into_iter().zip(wanted).enumerate() {
            (item.hold, item.token) = (Plain::zeroed(), 0);
            let result = match acquire {
                Many::Over(Ok(guard)) => still_held(guard),
                acquire => acquire.result(&until),
            };
            match result {
                Ok(guard) => {
                    (item.status, item.token) = (DLOCK_OK, token(&guard));
                    item.hold = insert(guard);
                }
                Err(failure) => {
                    item.status = failure.code;
                    failures.push((index, failure));
                }
            }
            items.write(index, &item);
        }
        first(failures)
    })
}

/// `dlock_error dlock_release_many(dlock_item *items, size_t count, uint64_t timeout_ns,
/// dlock_cancel cancel)`
#[no_mangle]
pub unsafe extern "C" fn dlock_release_many(
    items: *mut dlock_item,
    count: usize,
    timeout_ns: u64,
    cancel: dlock_cancel,
) -> dlock_error {
    run("dlock_release_many", || {
        let until = Until::new(timeout_ns, cancel)?;
        // SAFETY: the items are the caller's.
        let items = unsafe { Items::new(items, count) }?;
        let given = items.read()?;
        let begin = |item: &dlock_item| match item.hold.id {
            0 => Many::Over(Ok(())),
            _ => match take(item.hold, &until) {
                Ok(guard) => Many::begun(guard.unlock_async()),
                Err(failure) => Many::Over(Err(failure)),
            },
        };
        let begun: Vec<_> = given.iter().map(begin).collect();
        let mut failures = Vec::new();
        for (index, (release, mut item)) in begun.into_iter().zip(given).enumerate() {
            let (result, is_closed) = match release {
                Many::Over(Err(failure)) if failure.code == DLOCK_E_BUSY => (Err(failure), false),
                release => (release.result(&until), true),
            };
            item.status = result.as_ref().map_or_else(|failure| failure.code, |()| DLOCK_OK);
            if is_closed {
                item.hold = Plain::zeroed();
            }
            items.write(index, &item);
            failures.extend(result.err().map(|failure| (index, failure)));
        }
        first(failures)
    })
}
