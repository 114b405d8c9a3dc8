// SPDX-License-Identifier: MIT OR Apache-2.0
//! libdlockm: the destination of the log lines of the dlock libraries (`include/dlock_log.h`).
//!
//! libdlockc and libdlocks look the getter up by name for each log line, so a program need not link
//! this library.

use std::os::raw::{c_char, c_int, c_void};
use std::sync::{PoisonError, RwLock};

/// `dlock_log_callback_t`.
pub type Callback = unsafe extern "C" fn(ctx: *mut c_void, level: c_int, message: *const c_char);

#[derive(Clone, Copy)]
struct Target {
    callback: Option<Callback>,
    ctx: *mut c_void,
}

// SAFETY: the pointer is only handed back to the callback, which must be callable from any
// thread (dlock_log.h).
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

static TARGET: RwLock<Target> = RwLock::new(Target { callback: None, ctx: std::ptr::null_mut() });

/// `void dlock_log_set_callback(dlock_log_callback_t callback, void *ctx)`
#[no_mangle]
pub extern "C" fn dlock_log_set_callback(callback: Option<Callback>, ctx: *mut c_void) {
    *TARGET.write().unwrap_or_else(PoisonError::into_inner) = Target { callback, ctx };
}

/// `dlock_log_callback_t dlock_log_get_callback(void **ctx)`
///
/// # Safety
/// `ctx` is null or points to memory for a pointer.
#[no_mangle]
pub unsafe extern "C" fn dlock_log_get_callback(ctx: *mut *mut c_void) -> Option<Callback> {
    let target = *TARGET.read().unwrap_or_else(PoisonError::into_inner);
    if !ctx.is_null() {
        // SAFETY: the caller vouches for the memory.
        unsafe { ctx.write(target.ctx) };
    }
    target.callback
}
