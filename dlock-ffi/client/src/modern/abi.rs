// SPDX-License-Identifier: MIT OR Apache-2.0
//! The types and numbers of `include/dlock.h`, under its names. `tests/header.rs` compares them
//! with the header, field by field.
#![allow(non_camel_case_types, missing_docs)]

use std::mem::size_of;
use std::os::raw::{c_char, c_void};

use super::failure::{invalid, Failure};

pub type dlock_error = i32;

macro_rules! numbers {
    ($type:ty: $($name:ident = $value:expr;)*) => {
        $(pub(crate) const $name: $type = $value;)*
    };
}

numbers! { u32:
    DLOCK_API_VERSION = 1;
}

numbers! { dlock_error:
    DLOCK_OK = 0;
    DLOCK_E_HELD = 1;
    DLOCK_E_TIMED_OUT = 2;
    DLOCK_E_CANCELLED = 3;
    DLOCK_E_LOST = 4;
    DLOCK_E_NOT_READY = 5;
    DLOCK_E_RECOVERING = 6;
    DLOCK_E_DISCONNECTED = 7;
    DLOCK_E_REMOVED = 8;
    DLOCK_E_LEFT = 9;
    DLOCK_E_NO_RESOURCE = 10;
    DLOCK_E_PROTOCOL = 11;
    DLOCK_E_TOO_MANY = 12;
    DLOCK_E_NO_OBJECT = 13;
    DLOCK_E_NOT_OWNER = 14;
    DLOCK_E_DESTROYED = 15;
    DLOCK_E_CHANGED = 16;
    DLOCK_E_DENIED = 17;
    DLOCK_E_FAILED = 18;
    DLOCK_E_BUSY = 19;
    DLOCK_E_INVALID = 32;
    DLOCK_E_SIZE = 33;
    DLOCK_E_HANDLE = 34;
    DLOCK_E_KIND = 35;
    DLOCK_E_FORKED = 36;
    DLOCK_E_API_VERSION = 37;
    DLOCK_E_INTERNAL = 38;
}

numbers! { u32:
    DLOCK_FABRIC_AUTO = 0;
    DLOCK_FABRIC_VERBS = 1;
    DLOCK_FABRIC_SHM = 2;
    DLOCK_FABRIC_TCP = 3;
    DLOCK_NO_TLS = 1;
    DLOCK_SHARED_QUEUE_PAIR = 2;
    DLOCK_TYPE_FAIR = 0;
    DLOCK_TYPE_ATOMIC = 1;
    DLOCK_TYPE_READ_WRITE = 2;
    DLOCK_NO_TOKENS = 1;
    DLOCK_CACHED = 2;
    DLOCK_EXCLUSIVE = 0;
    DLOCK_SHARED = 1;
    DLOCK_TRY = 1;
    DLOCK_RENEW = 2;
    DLOCK_EVENT_ACQUIRED = 1;
    DLOCK_EVENT_RELEASED = 2;
    DLOCK_EVENT_GRANTED = 64;
    DLOCK_EVENT_LOST = 65;
    DLOCK_EVENT_CONTENDED = 66;
    DLOCK_EVENT_RENEWAL_FAILING = 67;
    DLOCK_EVENT_RECOVERING = 68;
    DLOCK_EVENT_SERVING = 69;
    DLOCK_EVENT_MISSED = 70;
    DLOCK_LOST_EXPIRED = 1;
    DLOCK_LOST_SESSION = 2;
    DLOCK_LOST_TAKEN_AWAY = 3;
    DLOCK_LOST_CONFLICT = 4;
    DLOCK_LOST_UNKNOWN = 5;
    DLOCK_CREATE = 1;
}

/// The value of a time without end.
pub(crate) const DLOCK_FOREVER: u64 = u64::MAX;

/// Declares types of C: each is `#[repr(C)]` and `Copy`, and any bits are valid for it.
macro_rules! structs {
    ($(pub struct $name:ident { $(pub $field:ident: $type:ty,)* })*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy, Debug)]
            pub struct $name { $(pub $field: $type,)* }

            // SAFETY: all fields are integers, handles and raw pointers: any bits are valid.
            unsafe impl Plain for $name {}
        )*
    };
}

/// A type of which any bits are a valid value.
///
/// # Safety
/// The implementer vouches that any bits are valid.
pub(crate) unsafe trait Plain: Copy {
    /// The value whose bytes are all 0.
    fn zeroed() -> Self {
        // SAFETY: any bits are a valid value.
        unsafe { std::mem::zeroed() }
    }
}

structs! {
    pub struct dlock_cancel {
        pub id: u64,
    }
    pub struct dlock_client {
        pub id: u64,
    }
    pub struct dlock_lock {
        pub id: u64,
    }
    pub struct dlock_hold {
        pub id: u64,
    }
    pub struct dlock_queue {
        pub id: u64,
    }
    pub struct dlock_object {
        pub id: u64,
    }
    pub struct dlock_client_options {
        pub size: u32,
        pub flags: u32,
        pub port: u32,
        pub fabric: u32,
        pub horizon_ms: u64,
        pub silence_ms: u64,
        pub primaries: *const c_char,
        pub device: *const c_char,
        pub tls_ca: *const c_char,
        pub tls_cert: *const c_char,
        pub tls_key: *const c_char,
        pub tls_crl: *const c_char,
        pub tls_key_password_file: *const c_char,
        pub label: *const c_char,
    }
    pub struct dlock_client_info {
        pub size: u32,
        pub client_id: u32,
        pub epoch: u64,
        pub horizon_left_ns: u64,
        pub fabric: u32,
        pub reserved: u32,
    }
    pub struct dlock_lock_options {
        pub size: u32,
        pub flags: u32,
        pub r#type: u32,
        pub reserved: u32,
    }
    pub struct dlock_acquire_options {
        pub size: u32,
        pub flags: u32,
        pub mode: u32,
        pub reserved: u32,
        pub lease_ms: u64,
    }
    pub struct dlock_hold_info {
        pub size: u32,
        pub mode: u32,
        pub token: u64,
        pub generation: u64,
        pub lease_end_unix_ms: u64,
    }
    pub struct dlock_item {
        pub size: u32,
        pub flags: u32,
        pub mode: u32,
        pub status: dlock_error,
        pub lease_ms: u64,
        pub lock: dlock_lock,
        pub hold: dlock_hold,
        pub token: u64,
    }
    pub struct dlock_event {
        pub size: u32,
        pub kind: u32,
        pub status: dlock_error,
        pub reserved: u32,
        pub user_data: *mut c_void,
        pub lock: dlock_lock,
        pub hold: dlock_hold,
        pub generation: u64,
        pub token: u64,
        pub lock_id: i32,
        pub reason: u32,
        pub count: u64,
        pub left_ms: u64,
        pub of: u64,
    }
    pub struct dlock_object_options {
        pub size: u32,
        pub flags: u32,
        pub initial: u64,
        pub lease_ms: u64,
    }
}

/// The smallest and the largest size of a struct. Every size is a multiple of the smallest one, so
/// that no size ends within a field.
const SIZE_MIN: usize = 8;
const SIZE_MAX: usize = 4_096;

/// The size of a caller's struct, as the struct's first field says.
///
/// # Safety
/// `at` is null or points to a struct that begins with its size.
pub(crate) unsafe fn size_of_caller<T: Plain>(at: *const T, name: &str) -> Result<usize, Failure> {
    if at.is_null() {
        return Err(invalid(format!("{name} is NULL")));
    }
    // SAFETY: the caller vouches for the size.
    let size = unsafe { at.cast::<u32>().read_unaligned() } as usize;
    match (SIZE_MIN..=SIZE_MAX).contains(&size) && size % SIZE_MIN == 0 {
        true => Ok(size),
        false => Err(Failure::new(
            DLOCK_E_SIZE,
            format!("{name}->size is {size}, not a multiple of 8 from 8 to 4096: use DLOCK_INIT"),
        )),
    }
}

/// A copy of a caller's struct; fields that the caller's struct does not have are 0.
///
/// # Errors
/// It is null, its size is not allowed, or it has fields that this library does not know and that
/// are not 0.
///
/// # Safety
/// `at` is null or points to a struct that begins with its size.
pub(crate) unsafe fn read<T: Plain>(at: *const T, name: &str) -> Result<T, Failure> {
    // SAFETY: as the caller of this function vouches.
    let size = unsafe { size_of_caller(at, name) }?;
    let mut value = T::zeroed();
    let known = size.min(size_of::<T>());
    // SAFETY: `size` bytes are the caller's struct; any bits are a valid `T`.
    unsafe {
        std::ptr::copy_nonoverlapping(at.cast::<u8>(), (&raw mut value).cast::<u8>(), known);
    }
    for offset in known..size {
        // SAFETY: within the caller's struct.
        if unsafe { at.cast::<u8>().add(offset).read() } != 0 {
            return Err(Failure::new(
                DLOCK_E_SIZE,
                format!(
                    "{name}: byte {offset} of {size} is not 0, and this library knows the first \
                     {known} alone: it is older than the program"
                ),
            ));
        }
    }
    Ok(value)
}

/// As [`read`], for options: null stands for the defaults.
///
/// # Errors
/// As `read`, except for null.
///
/// # Safety
/// As `read`.
pub(crate) unsafe fn options<T: Plain>(at: *const T, name: &str) -> Result<T, Failure> {
    match at.is_null() {
        true => Ok(T::zeroed()),
        // SAFETY: as the caller of this function vouches.
        false => unsafe { read(at, name) },
    }
}

/// Writes a result to a caller's struct: as many fields as the struct has, then zeros. The size
/// field is left alone.
///
/// # Safety
/// `at` points to a struct of the size that [`size_of_caller`] has returned.
pub(crate) unsafe fn write<T: Plain>(at: *mut T, size: usize, value: &T) {
    const BEGIN: usize = size_of::<u32>();
    let known = size.min(size_of::<T>());
    // SAFETY: within the caller's struct, and within `value`.
    unsafe {
        let (to, from) = (at.cast::<u8>().add(BEGIN), (&raw const *value).cast::<u8>().add(BEGIN));
        std::ptr::copy_nonoverlapping(from, to, known - BEGIN);
        std::ptr::write_bytes(at.cast::<u8>().add(known), 0, size - known);
    }
}

/// Refuses flags of a struct that this library does not know.
pub(crate) fn known_flags(flags: u32, known: u32, name: &str) -> Result<(), Failure> {
    match flags & !known {
        0 => Ok(()),
        unknown => Err(invalid(format!("{name}->flags: {unknown:#x} is no flag of it"))),
    }
}

/// Refuses a reserved field that is not 0: a later version may give it a meaning.
pub(crate) fn unused(reserved: u32, name: &str) -> Result<(), Failure> {
    match reserved {
        0 => Ok(()),
        value => Err(invalid(format!("{name}->reserved is {value}, not 0"))),
    }
}

/// Refuses a struct that is too small for its hold, which ends at `end`: the hold would be lost.
pub(crate) fn has_hold(size: usize, end: usize, name: &str) -> Result<(), Failure> {
    match size < end {
        false => Ok(()),
        true => Err(Failure::new(
            DLOCK_E_SIZE,
            format!("{name}->size is {size}: its hold needs {end} bytes"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: dlock_object_options =
        dlock_object_options { size: 24, flags: 1, initial: 7, lease_ms: 9 };

    fn read_of(bytes: &[u64]) -> Result<dlock_object_options, dlock_error> {
        // SAFETY: the size in the bytes is not above theirs, but where it is refused before.
        unsafe { read(bytes.as_ptr().cast::<dlock_object_options>(), "o") }.map_err(|f| f.code)
    }

    #[test]
    fn smaller_and_larger_structs_are_taken_and_unknown_values_are_not() {
        let word = |size: u32, flags: u32| u64::from(size) | u64::from(flags) << 32;
        let of = |read: dlock_object_options| (read.flags, read.initial, read.lease_ms);
        assert_eq!(read_of(&[word(24, 1), 7, 9]).map(of), Ok((1, 7, 9)));
        assert_eq!(read_of(&[word(8, 1), 7, 9]).map(of), Ok((1, 0, 0)));
        assert_eq!(read_of(&[word(16, 1), 7, 9]).map(of), Ok((1, 7, 0)));
        assert_eq!(read_of(&[word(40, 1), 7, 9, 0, 0]).map(of), Ok((1, 7, 9)));
        assert_eq!(read_of(&[word(40, 1), 7, 9, 0, 1 << 63]).map(of), Err(DLOCK_E_SIZE));
        for size in [0, 4, 7, 12, 25, 4_104, u32::MAX] {
            assert_eq!(read_of(&[word(size, 1), 7, 9]).map(of), Err(DLOCK_E_SIZE), "{size}");
        }
    }

    #[test]
    fn a_result_fills_what_the_caller_has() {
        for (size, expected) in [
            (8_u64, [8_u64 | 1 << 32, !0, !0, !0]),
            (16, [16 | 1 << 32, 7, !0, !0]),
            (24, [24 | 1 << 32, 7, 9, !0]),
            (32, [32 | 1 << 32, 7, 9, 0]),
        ] {
            let mut bytes = [size, !0, !0, !0];
            // SAFETY: the size is not above that of the bytes.
            unsafe { write(bytes.as_mut_ptr().cast(), size as usize, &OPTIONS) };
            assert_eq!(bytes, expected);
        }
    }
}
