// SPDX-License-Identifier: MIT OR Apache-2.0
//! All access to memory that threads and processes share.
//!
//! All operations on words that CPUs share are sequentially consistent: the word operations of a
//! chain are in order, and the CPU's store buffer must not move a ledger write behind a later read
//! of a lock word. No other module touches shared memory, so that `loom` can stand in here.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::lock::Half;

use crate::os::sys;

/// An 8-byte word on which other threads and processes operate at the same time.
#[derive(Debug)]
#[repr(transparent)]
pub struct SharedWord(AtomicU64);

impl SharedWord {
    /// A word of this process alone, for tests and measurements.
    pub const fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    /// Compare and swap; returns the old word. The swap took effect iff that is `expect`.
    #[inline]
    pub fn cas(&self, expect: u64, swap: u64) -> u64 {
        match self.0.compare_exchange(expect, swap, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(old) | Err(old) => old,
        }
    }

    /// Fetch and add modulo 2^64; returns the old word.
    #[inline]
    pub fn faa(&self, add: u64) -> u64 {
        self.0.fetch_add(add, Ordering::SeqCst)
    }

    /// The present value of the word.
    #[inline]
    pub fn load(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Sets the word. The store is visible before any later access of this thread.
    #[inline]
    pub fn store(&self, value: u64) {
        self.0.store(value, Ordering::SeqCst);
    }
}

impl SharedWord {
    /// Sleeps in the kernel, at most `limit`, until this half of the word differs from `value` or
    /// [`wake_all`](Self::wake_all) wakes it from any process.
    pub fn park(&self, half: Half, value: u32, limit: Duration) {
        sys::futex_wait(self.half(half), value, limit);
    }

    /// Wakes all threads that sleep on the lower half of the word, or on both halves.
    pub fn wake_all(&self, half: Half) {
        sys::futex_wake_all(self.half(Half::Low));
        if half == Half::High {
            sys::futex_wake_all(self.half(Half::High));
        }
    }

    /// The address of a half of the word, for the futex.
    fn half(&self, half: Half) -> *const u32 {
        let is_second = (half == Half::High) != cfg!(target_endian = "big");
        self.0.as_ptr().cast::<u32>().wrapping_add(usize::from(is_second))
    }
}

impl SharedWord {
    /// Sets a word that a device is about to write; the doorbell orders the two.
    #[inline]
    pub(crate) fn store_relaxed(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// The words at `base`.
///
/// # Safety
/// `base` is aligned to 8 bytes and points to `len` words that stay mapped, readable and (where
/// they are written) writable for `'a`, and that are accessed through [`SharedWord`] alone.
#[inline]
pub(crate) unsafe fn words<'a>(base: *const u8, len: usize) -> &'a [SharedWord] {
    // SAFETY: SharedWord is transparent over AtomicU64, which has the size and bit validity of
    // u64; alignment, length, lifetime and exclusive use of atomics are the caller's promise.
    unsafe { std::slice::from_raw_parts(base.cast(), len) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    /// The longest sleep of a thread that is not woken.
    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_parked_thread_is_woken_on_either_half() {
        let begun = Instant::now();
        for (half, value) in [(Half::Low, 2), (Half::High, 1)] {
            let (word, woken) = (SharedWord::new(1 << 32 | 2), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let sleeper = scope.spawn(|| {
                    word.park(half, value, LIMIT);
                    woken.store(true, Ordering::Release);
                });
                while !woken.load(Ordering::Acquire) {
                    // wake again and again: the thread may not have gone to sleep yet
                    word.wake_all(half);
                    std::thread::yield_now();
                }
                sleeper.join().expect("it does not panic");
            });
        }
        assert!(begun.elapsed() < LIMIT);
    }

    #[test]
    fn a_thread_does_not_park_on_a_half_that_has_changed() {
        let (word, begun) = (SharedWord::new(1 << 32 | 2), Instant::now());
        word.park(Half::Low, 1, LIMIT);
        word.park(Half::High, 2, LIMIT);
        assert!(begun.elapsed() < LIMIT);
    }
}
