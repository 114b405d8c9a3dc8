// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects of `dlock.h`.

use std::os::raw::c_void;
use std::time::Duration;

use ::dlock_client::{Client, Error, Object};

use super::abi::*;
use super::failure::{run, Failure};
use super::handles;
use super::holds::OPERATION_WAIT;
use super::locks::{close, name, OPEN_WAIT};
use super::waiting::{deliver, in_time, Until};

/// The lease of an object whose options have none.
const LEASE_DEFAULT: Duration = Duration::from_secs(30);

/// `dlock_error dlock_object_open(dlock_client client, const void *name, size_t name_len,
/// const dlock_object_options *options, uint64_t timeout_ns, dlock_cancel cancel,
/// dlock_object *object)`
#[no_mangle]
pub unsafe extern "C" fn dlock_object_open(
    client: dlock_client,
    name: *const c_void,
    name_len: usize,
    options: *const dlock_object_options,
    timeout_ns: u64,
    cancel: dlock_cancel,
    object: *mut dlock_object,
) -> dlock_error {
    run("dlock_object_open", || {
        // SAFETY: the pointers are the caller's.
        unsafe {
            deliver(object, "object", || {
                let until = Until::new(timeout_ns, cancel)?;
                let client = handles::find::<Client>(client.id)?;
                let name = self::name(name, name_len)?;
                let options = super::abi::options(options, "options")?;
                Ok(dlock_object { id: handles::insert(open(client, name, &options, &until)?) })
            })
        }
    })
}

fn open(
    client: Client,
    name: Vec<u8>,
    options: &dlock_object_options,
    until: &Until,
) -> Result<Object, Failure> {
    known_flags(options.flags, DLOCK_CREATE, "options")?;
    let lease = match options.lease_ms {
        0 => LEASE_DEFAULT,
        DLOCK_FOREVER => ::dlock_client::LEASE_MAX,
        ms => Duration::from_millis(ms),
    };
    let (is_created, initial) = (options.flags & DLOCK_CREATE != 0, options.initial);
    let work = move || {
        let object = match is_created {
            true => client.create_object(name, lease, initial),
            false => client.object(name, lease),
        };
        object.map_err(Failure::from)
    };
    in_time(until, OPEN_WAIT, work, drop)
}

/// An operation on an object.
fn on<T: Send + 'static>(
    object: dlock_object,
    timeout_ns: u64,
    cancel: dlock_cancel,
    act: impl FnOnce(&Object) -> Result<T, Error> + Send + 'static,
) -> Result<T, Failure> {
    let until = Until::new(timeout_ns, cancel)?;
    let object = handles::find::<Object>(object.id)?;
    in_time(&until, OPERATION_WAIT, move || act(&object).map_err(Failure::from), drop)
}

/// `dlock_error dlock_object_add(dlock_object object, uint64_t add, uint64_t timeout_ns,
/// dlock_cancel cancel, uint64_t *before)`
#[no_mangle]
pub unsafe extern "C" fn dlock_object_add(
    object: dlock_object,
    add: u64,
    timeout_ns: u64,
    cancel: dlock_cancel,
    before: *mut u64,
) -> dlock_error {
    run("dlock_object_add", || {
        let value = on(object, timeout_ns, cancel, move |object| object.fetch_add(add))?;
        if !before.is_null() {
            // SAFETY: not null, so the caller has room for it.
            unsafe { before.write_unaligned(value) };
        }
        Ok(())
    })
}

/// `dlock_error dlock_object_exchange(dlock_object object, uint64_t expected, uint64_t desired,
/// uint64_t timeout_ns, dlock_cancel cancel)`
#[no_mangle]
pub extern "C" fn dlock_object_exchange(
    object: dlock_object,
    expected: u64,
    desired: u64,
    timeout_ns: u64,
    cancel: dlock_cancel,
) -> dlock_error {
    run("dlock_object_exchange", || {
        on(object, timeout_ns, cancel, move |object| object.compare_exchange(expected, desired))
    })
}

/// `dlock_error dlock_object_load(dlock_object object, uint64_t timeout_ns, dlock_cancel cancel,
/// uint64_t *value)`
#[no_mangle]
pub unsafe extern "C" fn dlock_object_load(
    object: dlock_object,
    timeout_ns: u64,
    cancel: dlock_cancel,
    value: *mut u64,
) -> dlock_error {
    run("dlock_object_load", || {
        // SAFETY: the pointer is the caller's.
        unsafe { deliver(value, "value", || on(object, timeout_ns, cancel, Object::load)) }
    })
}

/// `dlock_error dlock_object_destroy(dlock_object object, uint64_t timeout_ns,
/// dlock_cancel cancel)`
#[no_mangle]
pub extern "C" fn dlock_object_destroy(
    object: dlock_object,
    timeout_ns: u64,
    cancel: dlock_cancel,
) -> dlock_error {
    run("dlock_object_destroy", || {
        let until = Until::new(timeout_ns, cancel)?;
        let object = handles::find::<Object>(object.id)?;
        in_time(&until, OPEN_WAIT, move || object.destroy().map_err(Failure::from), drop)
    })
}

/// `dlock_error dlock_object_close(dlock_object object, uint64_t timeout_ns, dlock_cancel cancel)`
#[no_mangle]
pub extern "C" fn dlock_object_close(
    object: dlock_object,
    timeout_ns: u64,
    cancel: dlock_cancel,
) -> dlock_error {
    run("dlock_object_close", || {
        let until = Until::new(timeout_ns, cancel)?;
        close(handles::remove::<Object>(object.id)?, &until)
    })
}
