// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the arguments of C callers, and writes results for them.
//!
//! A function copies all arguments before it writes any result, because callers let inputs and
//! outputs share memory. Results are written unaligned, because some callers pass plain byte
//! buffers.

use std::os::raw::{c_char, c_int, c_void};

use dlock_core::limits::DESC_LEN_MAX;
use dlock_core::lock::{OpResult, View};

use crate::code;
use crate::types::{FairState, LockOpRes, SslCfg};

/// The most bytes of a path, address, cpuset or device name that a caller passes.
pub const TEXT_LEN_MAX: usize = 4096;

/// The port of a configuration: `unset` if the caller gives none (0 or less); `None` if the port is
/// not allowed (1 to 1023, or above 65535).
pub fn port(given: c_int, unset: u16) -> Option<u16> {
    match given {
        ..=0 => Some(unset),
        1..=1023 => None,
        _ => u16::try_from(given).ok(),
    }
}

/// A copy of a terminated string; `None` for null, or without a terminator within [`TEXT_LEN_MAX`]
/// bytes.
///
/// # Safety
/// `text` is null or points to a terminated string.
pub unsafe fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    let mut bytes = Vec::new();
    for i in 0..TEXT_LEN_MAX {
        // SAFETY: no byte before this one was the terminator, so this one is part of the string.
        let byte = unsafe { text.add(i).read() } as u8;
        if byte == 0 {
            return Some(String::from_utf8_lossy(&bytes).into_owned());
        }
        bytes.push(byte);
    }
    None
}

/// A copy of a description; `None` for null, or if its length is not allowed.
///
/// # Safety
/// `desc` is null or points to `len` bytes.
pub unsafe fn description(desc: *const c_char, len: u32) -> Option<Vec<u8>> {
    let len = usize::try_from(len).ok()?;
    if desc.is_null() || len == 0 || len > DESC_LEN_MAX {
        return None;
    }
    // SAFETY: the caller vouches for `len` bytes.
    Some(unsafe { std::slice::from_raw_parts(desc.cast::<u8>(), len) }.to_vec())
}

/// The preferred id of a lock: djb2 of its description.
pub fn preferred_id(desc: &[u8]) -> i32 {
    desc.iter().fold(5381u32, |h, &b| h.wrapping_mul(33).wrapping_add(u32::from(b))) as i32
}

/// Whether TLS is enabled, and whether its configuration is complete.
pub enum Ssl {
    /// TLS is off; the other fields were not read.
    Disabled,
    /// A required path or callback is null.
    Incomplete,
    /// TLS is to be set up.
    Enabled,
}

impl Ssl {
    /// Reads `ssl_enable`, and the other fields only if `ssl_enable` is not 0.
    ///
    /// # Safety
    /// `cfg` points to an `ssl_cfg`.
    pub unsafe fn read(cfg: *const SslCfg) -> Self {
        // SAFETY: the caller vouches for the struct; any byte is a valid u8.
        if unsafe { std::ptr::addr_of!((*cfg).ssl_enable).read() } == 0 {
            return Ssl::Disabled;
        }
        // SAFETY: as above; a raw pointer may have any bits.
        let ssl = unsafe { cfg.read() };
        let missing = ssl.ca_path.is_null()
            || ssl.cert_path.is_null()
            || ssl.prkey_path.is_null()
            || ssl.prkey_pwd_cb.is_null()
            || ssl.erase_prkey_cb.is_null();
        if missing {
            Ssl::Incomplete
        } else {
            Ssl::Enabled
        }
    }
}

/// Stores a value for the caller.
///
/// # Safety
/// `out` points to memory for a `T`, of any alignment.
#[inline]
pub unsafe fn store<T: Copy>(out: *mut T, value: T) {
    // SAFETY: the caller vouches for the memory.
    unsafe { out.write_unaligned(value) }
}

/// Two 16-bit fields that lie in memory one after the other.
#[inline]
fn pair(first: u16, second: u16) -> u32 {
    let (a, b) = (first.to_ne_bytes(), second.to_ne_bytes());
    u32::from_ne_bytes([a[0], a[1], b[0], b[1]])
}

/// Writes the lock state of a result, as many bytes as the struct of the lock's type has, and
/// returns the code of the operation.
///
/// # Safety
/// `result` points to the C struct of the lock's type, of any alignment.
#[inline(always)]
pub unsafe fn finish(op: OpResult, result: *mut c_void) -> c_int {
    // One store of the whole struct, because every lock operation runs this code.
    // SAFETY: the caller's struct is of the lock's type, which is the view's.
    unsafe {
        match op.view {
            None => {}
            Some(View::Atomic { client_id, time_out }) => {
                store(result.cast::<[u32; 2]>(), [client_id, time_out.seconds()]);
            }
            Some(View::Rw { time_out, client_id, rcount, .. }) => {
                store(result.cast::<[u32; 3]>(), [time_out.seconds(), client_id, rcount]);
            }
            Some(View::Fair { nx, ns, mx, ms, time_out, t_value }) => {
                store(result.cast::<[u32; 3]>(), [pair(nx, ns), pair(mx, ms), time_out.seconds()]);
                if let Some(t_value) = t_value {
                    let at = std::mem::offset_of!(FairState, t_value);
                    store(result.cast::<u8>().add(at).cast::<u32>(), t_value);
                }
            }
        }
    }
    code::on_data_path(op.status)
}

/// Writes the result of one item of a batch.
///
/// # Safety
/// `results` points to at least `index + 1` `lock_op_res`, of any alignment.
pub unsafe fn finish_item(op: OpResult, results: *mut c_void, index: usize) {
    // SAFETY: the caller vouches for the item; its state part is its first 16 bytes.
    let item = unsafe { results.cast::<u8>().add(index * std::mem::size_of::<LockOpRes>()) };
    // SAFETY: as above.
    let code = unsafe { finish(op, item.cast()) };
    // SAFETY: `op_ret` lies within the item.
    unsafe { store(item.add(std::mem::offset_of!(LockOpRes, op_ret)).cast::<c_int>(), code) };
}

#[cfg(test)]
mod tests {
    use dlock_core::clock::Deadline;
    use dlock_core::lock::TimeOut;
    use dlock_core::wire::status::Status;

    use super::*;

    #[test]
    fn ports_below_1024_and_above_65535_are_refused_and_not_above_0_means_unset() {
        for (given, want) in [
            (i32::MIN, Some(7)),
            (0, Some(7)),
            (1, None),
            (1023, None),
            (1024, Some(1024)),
            (65535, Some(65535)),
            (65536, None),
            (i32::MAX, None),
        ] {
            assert_eq!(port(given, 7), want, "{given}");
        }
    }

    #[test]
    fn the_preferred_id_is_djb2() {
        assert_eq!(preferred_id(b"lock desc 1"), 1_252_963_582);
        assert_eq!(preferred_id(b""), 5381);
    }

    #[test]
    fn only_the_bytes_of_the_type_are_written() {
        let at = |tick| TimeOut { at: Deadline(tick), anchor_s: 0 };
        let views = [
            (View::Atomic { client_id: 1, time_out: at(2) }, 8),
            (View::Rw { time_out: at(1), is_leased: false, client_id: 2, rcount: 3 }, 12),
            (View::Fair { nx: 1, ns: 2, mx: 3, ms: 4, time_out: at(5), t_value: None }, 12),
            (View::Fair { nx: 1, ns: 2, mx: 3, ms: 4, time_out: at(5), t_value: Some(6) }, 16),
        ];
        for (view, len) in views {
            let mut buffer = [0xEEu8; 20];
            let op = OpResult { status: Status::Success, view: Some(view) };
            // SAFETY: the buffer is longer than every struct.
            assert_eq!(unsafe { finish(op, buffer.as_mut_ptr().cast()) }, 0);
            assert!(buffer[len..].iter().all(|&b| b == 0xEE), "{view:?}");
            assert_eq!(buffer[len - 4..len].iter().filter(|&&b| b == 0xEE).count(), 0);
        }
    }

    #[test]
    fn an_item_without_a_state_gets_its_code_alone() {
        let mut buffer = [0xEEu8; 40];
        // SAFETY: the buffer holds two items.
        unsafe { finish_item(OpResult::of(Status::Fail), buffer.as_mut_ptr().cast(), 1) };
        assert!(buffer[..36].iter().all(|&b| b == 0xEE));
        assert_eq!(buffer[36..], code::FAIL.to_ne_bytes());
    }

    #[test]
    fn a_text_without_an_end_is_none() {
        let endless = vec![b'x'; TEXT_LEN_MAX];
        // SAFETY: as many bytes as `text` reads at most.
        assert_eq!(unsafe { text(endless.as_ptr().cast()) }, None);
        // SAFETY: a terminated string, and null.
        unsafe {
            assert_eq!(text(c"::1".as_ptr()).as_deref(), Some("::1"));
            assert_eq!(text(std::ptr::null()), None);
        }
    }
}
