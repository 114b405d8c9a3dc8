// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks of `dlock.h`.

use std::os::raw::c_void;
use std::time::Duration;

use ::dlock_client::{Client, Lock, LockType};
use dlock_core::limits::DESC_LEN_MAX;

use super::abi::*;
use super::clients::CONTROL_WAIT;
use super::failure::{invalid, run, Failure};
use super::handles;
use super::waiting::{deliver, in_any_case, in_time, Until};

/// The longest time for getting a lock or an object, or giving it back: besides this call, other
/// threads may be giving the same one back.
pub(crate) const OPEN_WAIT: Duration = Duration::from_secs(4 * CONTROL_WAIT.as_secs());

/// A copy of a name.
///
/// # Safety
/// `name` is null or points to `len` bytes.
pub(crate) unsafe fn name(name: *const c_void, len: usize) -> Result<Vec<u8>, Failure> {
    if name.is_null() {
        return Err(invalid("name is NULL"));
    }
    if !(1..=DESC_LEN_MAX).contains(&len) {
        return Err(invalid(format!("name_len is {len}, not from 1 to {DESC_LEN_MAX}")));
    }
    // SAFETY: the caller vouches for the bytes.
    Ok(unsafe { std::slice::from_raw_parts(name.cast::<u8>(), len) }.to_vec())
}

/// `dlock_error dlock_lock_open(dlock_client client, const void *name, size_t name_len,
/// const dlock_lock_options *options, uint64_t timeout_ns, dlock_cancel cancel, dlock_lock *lock)`
#[no_mangle]
pub unsafe extern "C" fn dlock_lock_open(
    client: dlock_client,
    name: *const c_void,
    name_len: usize,
    options: *const dlock_lock_options,
    timeout_ns: u64,
    cancel: dlock_cancel,
    lock: *mut dlock_lock,
) -> dlock_error {
    run("dlock_lock_open", || {
        // SAFETY: the pointers are the caller's.
        unsafe {
            deliver(lock, "lock", || {
                let until = Until::new(timeout_ns, cancel)?;
                let client = handles::find::<Client>(client.id)?;
                let name = self::name(name, name_len)?;
                let lock = open(client, name, &super::abi::options(options, "options")?, &until)?;
                Ok(dlock_lock { id: handles::insert(lock) })
            })
        }
    })
}

fn open(
    client: Client,
    name: Vec<u8>,
    options: &dlock_lock_options,
    until: &Until,
) -> Result<Lock, Failure> {
    known_flags(options.flags, DLOCK_NO_TOKENS | DLOCK_CACHED, "options")?;
    unused(options.reserved, "options")?;
    let lock_type = match options.r#type {
        DLOCK_TYPE_FAIR => LockType::Fair,
        DLOCK_TYPE_ATOMIC => LockType::Atomic,
        DLOCK_TYPE_READ_WRITE => LockType::Rw,
        other => return Err(invalid(format!("options->type: {other} is none"))),
    };
    let has_tokens = options.flags & DLOCK_NO_TOKENS == 0;
    let is_cached = options.flags & DLOCK_CACHED != 0;
    let work = move || {
        let lock = match (has_tokens, lock_type) {
            (true, _) => client.lock_with_tokens(name, lock_type),
            (false, LockType::Fair) => client.fair_lock(name),
            (false, LockType::Atomic) => client.atomic_lock(name),
            (false, LockType::Rw) => client.rw_lock(name),
        };
        let lock = lock.map_err(Failure::from)?;
        if is_cached {
            lock.cache(true).map_err(Failure::from)?;
        }
        Ok(lock)
    };
    in_time(until, OPEN_WAIT, work, drop)
}

/// `dlock_error dlock_lock_close(dlock_lock lock, uint64_t timeout_ns, dlock_cancel cancel)`
#[no_mangle]
pub extern "C" fn dlock_lock_close(
    lock: dlock_lock,
    timeout_ns: u64,
    cancel: dlock_cancel,
) -> dlock_error {
    run("dlock_lock_close", || {
        let until = Until::new(timeout_ns, cancel)?;
        close(handles::remove::<Lock>(lock.id)?, &until)
    })
}

/// Drops a lock or an object. If this was the last reference, the client gives it back.
pub(crate) fn close<T: Send + 'static>(last: T, until: &Until) -> Result<(), Failure> {
    let work = move || {
        drop(last);
        Ok(())
    };
    in_any_case(until, OPEN_WAIT, work, drop)
}
