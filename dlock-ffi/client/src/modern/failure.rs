// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of `dlock.h`: the codes, their texts, and the detail of each thread's last one.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::os::raw::c_char;
use std::sync::atomic::Ordering;

use ::dlock_client::Error;
use dlock_ffi_abi::guard;

use super::abi::*;
use super::VERSION;

/// Why a call failed: its code, and the detail for which its thread may ask.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: dlock_error,
    detail: Cow<'static, str>,
}

impl Failure {
    pub(crate) fn new(code: dlock_error, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { code, detail: detail.into() }
    }

    /// The failure with this code, whose text needs no further detail.
    pub(crate) fn of(code: dlock_error) -> Self {
        Self::new(code, text(code).to_string_lossy())
    }

    /// This failure, as that of one item of many.
    pub(crate) fn of_item(self, index: usize) -> Self {
        Self::new(self.code, format!("items[{index}]: {}", self.detail))
    }
}

/// The failure for an invalid argument.
pub(crate) fn invalid(detail: impl Into<Cow<'static, str>>) -> Failure {
    Failure::new(DLOCK_E_INVALID, detail)
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error {
            Error::Held => DLOCK_E_HELD,
            Error::TimedOut => DLOCK_E_TIMED_OUT,
            Error::Lost => DLOCK_E_LOST,
            Error::NotReady => DLOCK_E_NOT_READY,
            Error::Recovering => DLOCK_E_RECOVERING,
            Error::Disconnected => DLOCK_E_DISCONNECTED,
            Error::Removed => DLOCK_E_REMOVED,
            Error::Left => DLOCK_E_LEFT,
            Error::NoResource => DLOCK_E_NO_RESOURCE,
            Error::VersionMismatch => DLOCK_E_PROTOCOL,
            Error::Invalid(_) => DLOCK_E_INVALID,
            Error::TooManyFutures => DLOCK_E_TOO_MANY,
            Error::NoObject => DLOCK_E_NO_OBJECT,
            Error::NotOwner => DLOCK_E_NOT_OWNER,
            Error::Destroyed => DLOCK_E_DESTROYED,
            Error::Changed => DLOCK_E_CHANGED,
            Error::Denied => DLOCK_E_DENIED,
            Error::Busy => DLOCK_E_BUSY,
            _ => DLOCK_E_FAILED,
        };
        Self::new(code, error.to_string())
    }
}

fn text(code: dlock_error) -> &'static CStr {
    match code {
        DLOCK_OK => c"success",
        DLOCK_E_HELD => c"the lock is held already",
        DLOCK_E_TIMED_OUT => c"the time of the call is over",
        DLOCK_E_CANCELLED => c"the call was cancelled",
        DLOCK_E_LOST => c"the hold was lost before it was released",
        DLOCK_E_NOT_READY => c"the primary is not running, or not ready",
        DLOCK_E_RECOVERING => c"the primary recovers what clients held before it started",
        DLOCK_E_DISCONNECTED => c"no answer from the primary",
        DLOCK_E_REMOVED => c"the primary has removed this client",
        DLOCK_E_LEFT => c"the client has left its primary",
        DLOCK_E_NO_RESOURCE => c"no room for more at the primary, or no descriptor or thread here",
        DLOCK_E_PROTOCOL => c"client and primary have no protocol version in common",
        DLOCK_E_TOO_MANY => c"too many requests are in flight",
        DLOCK_E_NO_OBJECT => c"there is no object of this name",
        DLOCK_E_NOT_OWNER => c"another client owns the object",
        DLOCK_E_DESTROYED => c"the object was destroyed",
        DLOCK_E_CHANGED => c"the object has another value",
        DLOCK_E_DENIED => c"the rules of the primary do not allow it to this client's certificate",
        DLOCK_E_FAILED => c"the operation failed; the reason is in the log",
        DLOCK_E_BUSY => c"another call with the same hold is under way",
        DLOCK_E_INVALID => c"an argument is out of its bounds",
        DLOCK_E_SIZE => c"a struct has a wrong size, or unknown fields that are not 0",
        DLOCK_E_HANDLE => c"no such handle: it was closed, or never made",
        DLOCK_E_KIND => c"a handle of another kind",
        DLOCK_E_FORKED => c"a handle of this process's parent",
        DLOCK_E_API_VERSION => c"call dlock_select_version(DLOCK_API_VERSION) first, and once",
        DLOCK_E_INTERNAL => c"an error of the library; the log has it",
        _ => c"no code of dlock",
    }
}

thread_local! {
    /// The detail of this thread's last failure; `None`: no call has failed yet.
    static DETAIL: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Runs the body of a function of the header and returns its code, if the program has selected a
/// version.
#[inline]
pub(crate) fn run(name: &'static str, body: impl FnOnce() -> Result<(), Failure>) -> dlock_error {
    let run = || match VERSION.load(Ordering::Relaxed) {
        0 => Err(Failure::of(DLOCK_E_API_VERSION)),
        _ => body(),
    };
    guard::call(name, DLOCK_E_INTERNAL, || told(name, run()))
}

/// The code of a result; keeps a failure's detail for the thread.
#[inline]
pub(crate) fn told(name: &'static str, result: Result<(), Failure>) -> dlock_error {
    match result {
        Ok(()) => DLOCK_OK,
        Err(failure) => keep(name, &failure),
    }
}

#[cold]
fn keep(name: &'static str, failure: &Failure) -> dlock_error {
    let detail = format!("{name}: {}", failure.detail).replace('\0', " ");
    // at the end of a thread its memory is gone
    let _ = DETAIL.try_with(|last| *last.borrow_mut() = CString::new(detail).ok());
    failure.code
}

/// `const char *dlock_strerror(dlock_error error)`
#[no_mangle]
pub extern "C" fn dlock_strerror(error: dlock_error) -> *const c_char {
    text(error).as_ptr()
}

/// `const char *dlock_last_detail(void)`
#[no_mangle]
pub extern "C" fn dlock_last_detail() -> *const c_char {
    let detail = DETAIL.try_with(|last| last.borrow().as_ref().map(|detail| detail.as_ptr()));
    detail.ok().flatten().unwrap_or(c"".as_ptr())
}
