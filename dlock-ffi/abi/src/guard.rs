// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guard around every exported C function: no panic leaves the function, and no thread is
//! cancelled inside it.
//!
//! `catch_unwind` aborts the process when it meets the cancellation of a thread. So a call that may
//! block holds cancellation back ([`uncancelled`]): the cancellation takes place after the call. An
//! operation on one lock begins without that, because up to the point where it may block it has no
//! cancellation point.

use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};

use dlock_fabric::os::threads::uncancelled;

/// Runs `body`, uncancelled; if it panics, logs one line and returns `failure`.
#[inline]
pub fn call<R>(name: &str, failure: R, body: impl FnOnce() -> R) -> R {
    uncancelled(|| catch(name, failure, body))
}

/// Runs `body`, which has no cancellation point; if it panics, logs one line and returns `failure`.
#[inline]
pub fn catch<R>(name: &str, failure: R, body: impl FnOnce() -> R) -> R {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(payload) => {
            uncancelled(|| report(name, payload));
            failure
        }
    }
}

#[cold]
fn report(name: &str, payload: Box<dyn Any + Send>) {
    let told = catch_unwind(AssertUnwindSafe(|| {
        let text = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        log::error!("{name}: internal error: {text}; please report it");
    }));
    // Dropping the payload might panic again.
    std::mem::forget(payload);
    if let Err(second) = told {
        std::mem::forget(second);
    }
}

#[cfg(test)]
mod tests {
    use std::os::raw::c_int;

    use super::*;

    extern "C" {
        fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    }

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }

    #[test]
    fn a_panic_becomes_the_failure_code() {
        assert_eq!(call("f", -1, || 5), 5);
        assert_eq!(call("f", -1, || panic!("oh")), -1);
        assert_eq!(call("f", -1, || std::panic::panic_any(Bomb)), -1);
    }

    /// Both pipes of the test: the thread reports on one that it is in the call, and waits on the
    /// other.
    struct Pipes {
        says: [c_int; 2],
        hears: [c_int; 2],
        result: c_int,
    }

    fn pipe() -> [c_int; 2] {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        ends
    }

    extern "C" fn thread_that_calls(pipes: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: the test's own pipes, which it does not look at before this thread has ended.
        let pipes = unsafe { &mut *pipes.cast::<Pipes>() };
        pipes.result = call("f", -1, || {
            let mut byte = 0_u8;
            // SAFETY: one byte, which outlives both; reading is a cancellation point.
            unsafe {
                libc::write(pipes.says[1], (&raw const byte).cast(), 1);
                libc::read(pipes.hears[0], (&raw mut byte).cast(), 1) as c_int
            }
        });
        // the caller's setting, 0, is restored; this thread must end by itself
        let mut before = -1;
        // SAFETY: 1 disables, and `before` is a valid place for the answer.
        unsafe { pthread_setcancelstate(1, &mut before) };
        assert_eq!(before, 0);
        std::ptr::null_mut()
    }

    #[test]
    fn a_thread_is_not_cancelled_in_a_call() {
        let mut pipes = Pipes { says: pipe(), hears: pipe(), result: 0 };
        let mut byte = 0_u8;
        // SAFETY: the thread gets the pipes, is waited for, and ends before they do.
        unsafe {
            let mut thread = std::mem::zeroed();
            let at = (&raw mut pipes).cast();
            let made = libc::pthread_create(&mut thread, std::ptr::null(), thread_that_calls, at);
            assert_eq!(made, 0);
            assert_eq!(libc::read((*at.cast::<Pipes>()).says[0], (&raw mut byte).cast(), 1), 1);
            assert_eq!(libc::pthread_cancel(thread), 0);
            assert_eq!(libc::write((*at.cast::<Pipes>()).hears[1], (&raw const byte).cast(), 1), 1);
            let mut ended = std::ptr::null_mut();
            assert_eq!(libc::pthread_join(thread, &mut ended), 0);
            assert!(ended.is_null(), "it was cancelled");
        }
        assert_eq!(pipes.result, 1, "the call has read its byte");
        for fd in pipes.says.into_iter().chain(pipes.hears) {
            // SAFETY: descriptors of this test, which nothing else uses.
            unsafe { libc::close(fd) };
        }
    }
}
