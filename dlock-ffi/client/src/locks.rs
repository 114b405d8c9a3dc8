// SPDX-License-Identifier: MIT OR Apache-2.0
//! The life cycle of locks, and operations on one lock.

use std::os::raw::{c_int, c_void};

use dlock_client::raw::AsyncOp;
use dlock_core::ids::LockId;
use dlock_core::wire::control::LockDesc;
use dlock_core::wire::message::{LockType, Mode};
use dlock_ffi_abi::types::{self, LockRequest};
use dlock_ffi_abi::{args, code, guard};

use crate::library;

/// `lock_ops` of the header.
pub(crate) mod op {
    use std::os::raw::c_int;

    pub(crate) const LOCK_EXCLUSIVE: c_int = 0;
    pub(crate) const LOCK_SHARED: c_int = 1;
    pub(crate) const UNLOCK: c_int = 2;
    pub(crate) const EXTEND_EXCLUSIVE: c_int = 3;
    pub(crate) const EXTEND_SHARED: c_int = 4;
}

/// The mode of a `LOCK_…` operation.
#[inline]
pub(crate) fn lock_mode(lock_op: c_int) -> Option<Mode> {
    match lock_op {
        op::LOCK_EXCLUSIVE => Some(Mode::Exclusive),
        op::LOCK_SHARED => Some(Mode::Shared),
        _ => None,
    }
}

/// The mode of an `EXTEND_LOCK_…` operation.
#[inline]
pub(crate) fn extend_mode(lock_op: c_int) -> Option<Mode> {
    match lock_op {
        op::EXTEND_EXCLUSIVE => Some(Mode::Exclusive),
        op::EXTEND_SHARED => Some(Mode::Shared),
        _ => None,
    }
}

/// A copy of a lock's description; `None` if a field is invalid.
///
/// # Safety
/// `desc` points to a `lock_desc` whose `p_desc` is null or points to `len` bytes.
pub(crate) unsafe fn description(desc: *const types::LockDesc) -> Option<LockDesc> {
    // SAFETY: the caller vouches for the struct.
    let desc = unsafe { desc.read_unaligned() };
    let lock_type = LockType::from_code(desc.lock_type)?;
    // SAFETY: the caller vouches for the bytes.
    let name = unsafe { args::description(desc.p_desc, desc.len) }?;
    Some(LockDesc { name, lock_type, lease_s: desc.lease_time, tokens: false })
}

/// `int get_lock(int client_id, const struct lock_desc *desc, int *lock_id)`
#[no_mangle]
pub unsafe extern "C" fn get_lock(
    client_id: c_int,
    desc: *const types::LockDesc,
    lock_id: *mut c_int,
) -> c_int {
    guard::call("get_lock", code::ERROR, || {
        if desc.is_null() || lock_id.is_null() {
            return code::EINVAL;
        }
        // SAFETY: not null, so it points to a lock_desc.
        let Some(desc) = (unsafe { description(desc) }) else {
            return code::EINVAL;
        };
        // SAFETY: not null, so it points to an int. The description was copied before, because the
        // two may share memory.
        unsafe { args::store(lock_id, args::preferred_id(&desc.name)) };
        let client = match library::find(client_id) {
            Err(_) => return code::ERROR,
            Ok(client) => client,
        };
        let (status, id) = client.get_lock(desc);
        if let Some(id) = id {
            // SAFETY: as above.
            unsafe { args::store(lock_id, id.0) };
        }
        code::of(status)
    })
}

/// `int release_lock(int client_id, int lock_id)`
#[no_mangle]
pub extern "C" fn release_lock(client_id: c_int, lock_id: c_int) -> c_int {
    guard::call("release_lock", code::ERROR, || match library::find(client_id) {
        Err(_) => code::ERROR,
        Ok(client) => code::of(client.release_lock(LockId(lock_id))),
    })
}

/// `int trylock(int client_id, const struct lock_request *req, void *result)`
#[no_mangle]
pub unsafe extern "C" fn trylock(
    client_id: c_int,
    req: *const LockRequest,
    result: *mut c_void,
) -> c_int {
    guard::catch("trylock", code::BAD_RESPONSE, || {
        // SAFETY: the pointers are the caller's.
        unsafe {
            on_request(client_id, req, result, lock_mode, |client, lock, mode, expire_s| {
                client.trylock(lock, mode, expire_s)
            })
        }
    })
}

/// `int lock(int client_id, const struct lock_request *req, void *result)`
#[no_mangle]
pub unsafe extern "C" fn lock(
    client_id: c_int,
    req: *const LockRequest,
    result: *mut c_void,
) -> c_int {
    guard::catch("lock", code::BAD_RESPONSE, || {
        // SAFETY: the pointers are the caller's.
        unsafe {
            on_request(client_id, req, result, lock_mode, |client, lock, mode, expire_s| {
                client.lock(lock, mode, expire_s)
            })
        }
    })
}

/// `int lock_extend(int client_id, const struct lock_request *req, void *result)`
#[no_mangle]
pub unsafe extern "C" fn lock_extend(
    client_id: c_int,
    req: *const LockRequest,
    result: *mut c_void,
) -> c_int {
    guard::catch("lock_extend", code::BAD_RESPONSE, || {
        // SAFETY: the pointers are the caller's.
        unsafe {
            on_request(client_id, req, result, extend_mode, |client, lock, mode, expire_s| {
                client.extend(lock, mode, expire_s)
            })
        }
    })
}

/// The common part of operations that a `lock_request` describes.
///
/// # Safety
/// `req` is null or points to a `lock_request`, `result` is null or points to the state struct
/// of the lock's type.
#[inline]
unsafe fn on_request(
    client_id: c_int,
    req: *const LockRequest,
    result: *mut c_void,
    mode_of: impl FnOnce(c_int) -> Option<Mode>,
    act: impl FnOnce(&dlock_client::raw::Instance, LockId, Mode, u32) -> dlock_core::lock::OpResult,
) -> c_int {
    if req.is_null() || result.is_null() {
        return code::EINVAL;
    }
    // SAFETY: not null, so it points to a lock_request.
    let req = unsafe { req.read_unaligned() };
    let Some(mode) = mode_of(req.lock_op) else {
        return code::EINVAL;
    };
    match library::find(client_id) {
        Err(missing) => missing.code(),
        Ok(client) => {
            let done = act(&client, LockId(req.lock_id), mode, req.expire_time);
            // SAFETY: not null, so it points to the struct of the lock's type.
            unsafe { args::finish(done, result) }
        }
    }
}

/// `int unlock(int client_id, int lock_id, void *result)`
#[no_mangle]
pub unsafe extern "C" fn unlock(client_id: c_int, lock_id: c_int, result: *mut c_void) -> c_int {
    guard::catch("unlock", code::BAD_RESPONSE, || {
        if result.is_null() {
            return code::EINVAL;
        }
        match library::find(client_id) {
            Err(missing) => missing.code(),
            // SAFETY: not null, so it points to the struct of the lock's type.
            Ok(client) => unsafe { args::finish(client.unlock(LockId(lock_id)), result) },
        }
    })
}

/// `int lock_request_async(int client_id, const struct lock_request *req)`
#[no_mangle]
pub unsafe extern "C" fn lock_request_async(client_id: c_int, req: *const LockRequest) -> c_int {
    guard::call("lock_request_async", code::BAD_RESPONSE, || {
        if req.is_null() {
            return code::EINVAL;
        }
        // SAFETY: not null, so it points to a lock_request.
        let req = unsafe { req.read_unaligned() };
        let Some(op) = async_op(&req) else {
            return code::EINVAL;
        };
        match library::find(client_id) {
            Err(missing) => missing.code(),
            Ok(client) => code::on_data_path(client.request_async(LockId(req.lock_id), op)),
        }
    })
}

fn async_op(req: &LockRequest) -> Option<AsyncOp> {
    let expire_s = req.expire_time;
    if let Some(mode) = lock_mode(req.lock_op) {
        return (expire_s != 0).then_some(AsyncOp::TryLock { mode, expire_s });
    }
    if let Some(mode) = extend_mode(req.lock_op) {
        return Some(AsyncOp::Extend { mode, expire_s });
    }
    (req.lock_op == op::UNLOCK).then_some(AsyncOp::Unlock)
}

/// `int lock_result_check(int client_id, void *result)`
#[no_mangle]
pub unsafe extern "C" fn lock_result_check(client_id: c_int, result: *mut c_void) -> c_int {
    guard::call("lock_result_check", code::BAD_RESPONSE, || {
        if result.is_null() {
            return code::EINVAL;
        }
        match library::find(client_id) {
            Err(missing) => missing.code(),
            // SAFETY: not null, so it points to the struct of the lock's type.
            Ok(client) => unsafe { args::finish(client.result_check(), result) },
        }
    })
}
