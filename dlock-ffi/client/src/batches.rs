// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations on up to 31 locks at once.

use std::os::raw::{c_int, c_uint, c_void};

use dlock_client::raw::Instance;
use dlock_core::ids::LockId;
use dlock_core::limits::BATCH_MAX;
use dlock_core::lock::OpResult;
use dlock_core::wire::message::Mode;
use dlock_core::wire::status::Status;
use dlock_ffi_abi::types::{self, LockRequest};
use dlock_ffi_abi::{args, code, guard};

use crate::library;
use crate::locks::{description, extend_mode, lock_mode};

/// The number of items; `None` if the number is not allowed.
fn items(n: c_uint) -> Option<usize> {
    usize::try_from(n).ok().filter(|&n| (1..=BATCH_MAX).contains(&n))
}

/// The value that `batch_get_lock` stores for an item: the lock's id, or the negative of the code.
fn item_id(item: Result<LockId, Status>) -> c_int {
    match item {
        Ok(id) => id.0,
        Err(Status::Error | Status::Denied) => code::ERROR,
        Err(status) => -code::of(status),
    }
}

/// `int batch_get_lock(int client_id, unsigned int n, const struct lock_desc *descs,
/// int *lock_ids)`
#[no_mangle]
pub unsafe extern "C" fn batch_get_lock(
    client_id: c_int,
    n: c_uint,
    descs: *const types::LockDesc,
    lock_ids: *mut c_int,
) -> c_int {
    guard::call("batch_get_lock", code::ERROR, || {
        let Some(n) = items(n).filter(|_| !descs.is_null() && !lock_ids.is_null()) else {
            return code::EINVAL;
        };
        // SAFETY: not null, so it points to n lock_desc.
        let copies: Option<Vec<_>> = (0..n).map(|i| unsafe { description(descs.add(i)) }).collect();
        let Some(copies) = copies else {
            return code::EINVAL;
        };
        let client = match library::find(client_id) {
            Err(_) => return code::ERROR,
            Ok(client) => client,
        };
        match client.batch_get_lock(copies) {
            Err(status) => code::of(status),
            Ok(ids) => {
                for (i, id) in ids.into_iter().take(n).enumerate() {
                    // SAFETY: not null, so it points to n ints.
                    unsafe { args::store(lock_ids.add(i), item_id(id)) };
                }
                code::SUCCESS
            }
        }
    })
}

/// `int batch_release_lock(int client_id, unsigned int n, int *lock_ids)`
#[no_mangle]
pub unsafe extern "C" fn batch_release_lock(
    client_id: c_int,
    n: c_uint,
    lock_ids: *mut c_int,
) -> c_int {
    guard::call("batch_release_lock", code::ERROR, || {
        let Some(n) = items(n).filter(|_| !lock_ids.is_null()) else {
            return code::EINVAL;
        };
        let client = match library::find(client_id) {
            Err(_) => return code::ERROR,
            Ok(client) => client,
        };
        let mut ids = [0; BATCH_MAX];
        for (i, id) in ids[..n].iter_mut().enumerate() {
            // SAFETY: not null, so it points to n ints.
            *id = unsafe { lock_ids.add(i).read_unaligned() };
        }
        let status = client.batch_release_lock(&mut ids[..n]);
        for (i, &id) in ids[..n].iter().enumerate() {
            // SAFETY: as above.
            unsafe { args::store(lock_ids.add(i), id) };
        }
        code::of(status)
    })
}

/// `int batch_trylock(int client_id, unsigned int n, const struct lock_request *reqs,
/// void *results)`
#[no_mangle]
pub unsafe extern "C" fn batch_trylock(
    client_id: c_int,
    n: c_uint,
    reqs: *const LockRequest,
    results: *mut c_void,
) -> c_int {
    guard::call("batch_trylock", code::BAD_RESPONSE, || {
        // SAFETY: the pointers are the caller's.
        unsafe { on_requests(client_id, n, reqs, results, lock_mode, Instance::batch_trylock) }
    })
}

/// `int batch_lock_extend(int client_id, unsigned int n, const struct lock_request *reqs,
/// void *results)`
#[no_mangle]
pub unsafe extern "C" fn batch_lock_extend(
    client_id: c_int,
    n: c_uint,
    reqs: *const LockRequest,
    results: *mut c_void,
) -> c_int {
    guard::call("batch_lock_extend", code::BAD_RESPONSE, || {
        // SAFETY: the pointers are the caller's.
        unsafe { on_requests(client_id, n, reqs, results, extend_mode, Instance::batch_extend) }
    })
}

type BatchCall = fn(&Instance, &[(LockId, Mode, u32)], &mut [OpResult]) -> Status;

/// # Safety
/// `reqs` is null or points to `n` `lock_request`, `results` is null or points to `n`
/// `lock_op_res`.
unsafe fn on_requests(
    client_id: c_int,
    n: c_uint,
    reqs: *const LockRequest,
    results: *mut c_void,
    mode_of: fn(c_int) -> Option<Mode>,
    act: BatchCall,
) -> c_int {
    let Some(n) = items(n).filter(|_| !reqs.is_null() && !results.is_null()) else {
        return code::EINVAL;
    };
    let mut copies = [(LockId(0), Mode::Exclusive, 0); BATCH_MAX];
    for (i, copy) in copies[..n].iter_mut().enumerate() {
        // SAFETY: not null, so it points to n lock_request.
        let req = unsafe { reqs.add(i).read_unaligned() };
        let Some(mode) = mode_of(req.lock_op) else {
            return code::EINVAL;
        };
        *copy = (LockId(req.lock_id), mode, req.expire_time);
    }
    // SAFETY: not null, so it points to n lock_op_res.
    unsafe { finish(client_id, n, results, |client, out| act(client, &copies[..n], out)) }
}

/// `int batch_unlock(int client_id, unsigned int n, const int *lock_ids, void *results)`
#[no_mangle]
pub unsafe extern "C" fn batch_unlock(
    client_id: c_int,
    n: c_uint,
    lock_ids: *const c_int,
    results: *mut c_void,
) -> c_int {
    guard::call("batch_unlock", code::BAD_RESPONSE, || {
        let Some(n) = items(n).filter(|_| !lock_ids.is_null() && !results.is_null()) else {
            return code::EINVAL;
        };
        let mut ids = [LockId(0); BATCH_MAX];
        for (i, id) in ids[..n].iter_mut().enumerate() {
            // SAFETY: not null, so it points to n ints.
            *id = LockId(unsafe { lock_ids.add(i).read_unaligned() });
        }
        // SAFETY: not null, so it points to n lock_op_res.
        unsafe { finish(client_id, n, results, |client, out| client.batch_unlock(&ids[..n], out)) }
    })
}

/// Runs a batch. Writes the results if the batch ran.
///
/// # Safety
/// `results` points to `n` `lock_op_res`.
unsafe fn finish(
    client_id: c_int,
    n: usize,
    results: *mut c_void,
    act: impl FnOnce(&Instance, &mut [OpResult]) -> Status,
) -> c_int {
    let client = match library::find(client_id) {
        Err(missing) => return missing.code(),
        Ok(client) => client,
    };
    let mut out = [OpResult::of(Status::BadResponse); BATCH_MAX];
    let status = act(&client, &mut out[..n]);
    if status == Status::Success {
        for (i, &item) in out[..n].iter().enumerate() {
            // SAFETY: the caller vouches for n items.
            unsafe { args::finish_item(item, results, i) };
        }
    }
    code::on_data_path(status)
}
