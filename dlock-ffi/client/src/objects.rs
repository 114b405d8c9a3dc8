// SPDX-License-Identifier: MIT OR Apache-2.0
//! State objects.

use dlock_core::clock::Lease;
use std::os::raw::c_int;

use dlock_client::raw::Instance;
use dlock_core::ids::ObjectId;
use dlock_core::wire::status::Status;
use dlock_ffi_abi::types::ObjectDesc;
use dlock_ffi_abi::{args, code, guard};

use crate::library;

/// A copy of an object's description: its name and its lease.
///
/// # Safety
/// `desc` is null or points to a `umo_atomic64_desc` whose `p_desc` is null or points to `len`
/// bytes.
unsafe fn description(desc: *const ObjectDesc) -> Option<(Vec<u8>, u32)> {
    if desc.is_null() {
        return None;
    }
    // SAFETY: not null, so it points to a umo_atomic64_desc.
    let desc = unsafe { desc.read_unaligned() };
    // SAFETY: the caller vouches for the bytes.
    let name = unsafe { args::description(desc.p_desc, desc.len) }?;
    (desc.lease_time != 0).then_some((name, desc.lease_time))
}

/// Runs `act` on the client; returns the code of its status.
fn on_client(client_id: c_int, act: impl FnOnce(&Instance) -> Status) -> c_int {
    match library::find(client_id) {
        Err(missing) => missing.code(),
        Ok(client) => code::on_data_path(act(&client)),
    }
}

/// Stores the value of a success for the caller.
///
/// # Safety
/// `out` points to memory for a `T`.
unsafe fn deliver<T: Copy>(result: Result<T, Status>, out: *mut T) -> Status {
    match result {
        Ok(value) => {
            // SAFETY: the caller vouches for the memory.
            unsafe { args::store(out, value) };
            Status::Success
        }
        Err(status) => status,
    }
}

/// `int umo_atomic64_create(int client_id, const struct umo_atomic64_desc *desc,
/// uint64_t init_val, int *obj_id)`
#[no_mangle]
pub unsafe extern "C" fn umo_atomic64_create(
    client_id: c_int,
    desc: *const ObjectDesc,
    init_val: u64,
    obj_id: *mut c_int,
) -> c_int {
    guard::call("umo_atomic64_create", code::ERROR, || {
        // SAFETY: the pointer is the caller's.
        match unsafe { description(desc) } {
            Some((name, lease_s)) if !obj_id.is_null() => on_client(client_id, |client| {
                let id = client.object_create(&name, Lease::secs(lease_s), init_val).map(|id| id.0);
                // SAFETY: not null, so it points to an int.
                unsafe { deliver(id, obj_id) }
            }),
            _ => code::EINVAL,
        }
    })
}

/// `int umo_atomic64_destroy(int client_id, int obj_id)`
#[no_mangle]
pub extern "C" fn umo_atomic64_destroy(client_id: c_int, obj_id: c_int) -> c_int {
    guard::call("umo_atomic64_destroy", code::ERROR, || {
        on_client(client_id, |client| client.object_destroy(ObjectId(obj_id)))
    })
}

/// `int umo_atomic64_get(int client_id, const struct umo_atomic64_desc *desc, int *obj_id)`
#[no_mangle]
pub unsafe extern "C" fn umo_atomic64_get(
    client_id: c_int,
    desc: *const ObjectDesc,
    obj_id: *mut c_int,
) -> c_int {
    guard::call("umo_atomic64_get", code::ERROR, || {
        // SAFETY: the pointer is the caller's.
        match unsafe { description(desc) } {
            Some((name, lease_s)) if !obj_id.is_null() => on_client(client_id, |client| {
                let id = client.object_get(&name, Lease::secs(lease_s)).map(|id| id.0);
                // SAFETY: not null, so it points to an int.
                unsafe { deliver(id, obj_id) }
            }),
            _ => code::EINVAL,
        }
    })
}

/// `int umo_atomic64_release(int client_id, int obj_id)`
#[no_mangle]
pub extern "C" fn umo_atomic64_release(client_id: c_int, obj_id: c_int) -> c_int {
    guard::call("umo_atomic64_release", code::ERROR, || {
        on_client(client_id, |client| client.object_release(ObjectId(obj_id)))
    })
}

/// `int umo_atomic64_faa(int client_id, int obj_id, uint64_t add_val, uint64_t *res_val)`
#[no_mangle]
pub unsafe extern "C" fn umo_atomic64_faa(
    client_id: c_int,
    obj_id: c_int,
    add_val: u64,
    res_val: *mut u64,
) -> c_int {
    guard::call("umo_atomic64_faa", code::BAD_RESPONSE, || {
        if res_val.is_null() {
            return code::EINVAL;
        }
        on_client(client_id, |client| {
            // SAFETY: not null, so it points to a uint64_t.
            unsafe { deliver(client.faa(ObjectId(obj_id), add_val), res_val) }
        })
    })
}

/// `int umo_atomic64_cas(int client_id, int obj_id, uint64_t cmp_val, uint64_t swap_val)`
#[no_mangle]
pub extern "C" fn umo_atomic64_cas(
    client_id: c_int,
    obj_id: c_int,
    cmp_val: u64,
    swap_val: u64,
) -> c_int {
    guard::call("umo_atomic64_cas", code::BAD_RESPONSE, || {
        on_client(client_id, |client| client.cas(ObjectId(obj_id), cmp_val, swap_val))
    })
}

/// `int umo_atomic64_get_snapshot(int client_id, int obj_id, uint64_t *res_val)`
#[no_mangle]
pub unsafe extern "C" fn umo_atomic64_get_snapshot(
    client_id: c_int,
    obj_id: c_int,
    res_val: *mut u64,
) -> c_int {
    guard::call("umo_atomic64_get_snapshot", code::BAD_RESPONSE, || {
        if res_val.is_null() {
            return code::EINVAL;
        }
        on_client(client_id, |client| {
            // SAFETY: not null, so it points to a uint64_t.
            unsafe { deliver(client.snapshot(ObjectId(obj_id)), res_val) }
        })
    })
}
