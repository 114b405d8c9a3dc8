// SPDX-License-Identifier: MIT OR Apache-2.0
//! How shm clients notice that the primary died, without asking anybody.
//!
//! ```text
//!   command thread ── locks ──▶ robust mutex in the header of the slot memory
//!   kernel, when that thread or its process ends ──▶ FUTEX_OWNER_DIED in the mutex's word
//!   client, before each chain ── reads the word it reads the gate beside
//! ```
//! After `kill -9` the memory itself would go on for ever: clients that had mapped it would
//! agree with each other on locks that a successor gives to others.

use std::io;
use std::mem::MaybeUninit;
use std::thread::{self, ThreadId};

use dlock_core::status::Status;

use crate::memory::SlotMemory;

/// The mutex lies behind the header's other words, its futex word in their cache line.
pub(crate) const VIGIL_WORD: usize = 4;
/// Set by the kernel in the futex word (the first four bytes of glibc's mutex).
const FUTEX_OWNER_DIED: u64 = 0x4000_0000;

/// Kept by the thread that serves a memory, for as long as it does.
#[derive(Debug)]
pub(crate) struct Vigil {
    mutex: *mut libc::pthread_mutex_t,
    keeper: ThreadId,
}

// SAFETY: the pointer is used by the thread `keeper` alone, which every use checks.
unsafe impl Send for Vigil {}

impl Vigil {
    /// This thread serves the memory from now on. The vigil must be dropped before the memory.
    ///
    /// # Errors
    /// If the system refuses robust mutexes.
    pub(crate) fn keep(memory: &SlotMemory) -> io::Result<Self> {
        let mutex: *mut libc::pthread_mutex_t = memory.vigil_place().cast();
        let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        let attr = attributes.as_mut_ptr();
        let check = |rc: libc::c_int| match rc {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        };
        // SAFETY: `attr` is a place for attributes, initialised first and destroyed last.
        // `mutex` is aligned, writable memory of the header that nobody else writes, large
        // enough (asserted below), and stays mapped while the vigil is kept.
        unsafe {
            check(libc::pthread_mutexattr_init(attr))?;
            let done =
                check(libc::pthread_mutexattr_setpshared(attr, libc::PTHREAD_PROCESS_SHARED))
                    .and_then(|()| {
                        check(libc::pthread_mutexattr_setrobust(attr, libc::PTHREAD_MUTEX_ROBUST))
                    })
                    .and_then(|()| check(libc::pthread_mutex_init(mutex, attr)))
                    .and_then(|()| check(libc::pthread_mutex_lock(mutex)));
            libc::pthread_mutexattr_destroy(attr);
            done?;
        }
        Ok(Self { mutex, keeper: thread::current().id() })
    }
}

impl Drop for Vigil {
    /// In order: whoever stops to serve closes the gate first.
    fn drop(&mut self) {
        // Dropped elsewhere, its keeper has ended: the kernel has told, and let go of it.
        if thread::current().id() == self.keeper {
            // SAFETY: this thread has locked it in `keep`, and the memory is still mapped.
            unsafe { libc::pthread_mutex_unlock(self.mutex) };
        }
    }
}

/// Why chains are refused, if the thread that served the memory has ended without a word.
#[inline]
pub(crate) fn refusal(word: u64) -> Option<Status> {
    let tells = cfg!(all(target_env = "gnu", target_endian = "little"));
    (tells && word & FUTEX_OWNER_DIED != 0).then_some(Status::BadResponse)
}

const _: () = assert!(size_of::<libc::pthread_mutex_t>() <= 128);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_notice_a_thread_that_ends_without_a_word() {
        let memory = SlotMemory::create(4).unwrap();
        let fd = memory.fd().unwrap().try_clone_to_owned().unwrap();
        let client = SlotMemory::open(fd, 4).unwrap();
        assert_eq!(client.gate(), None, "before anybody serves");
        thread::scope(|scope| {
            let keeper = scope.spawn(|| {
                let vigil = Vigil::keep(&memory).unwrap();
                assert_eq!(client.gate(), None);
                std::mem::forget(vigil);
            });
            // The scope alone waits for the closure, not for the end of the thread.
            keeper.join().unwrap();
        });
        assert_eq!(client.gate(), Some(Status::BadResponse));
    }

    #[test]
    fn an_orderly_end_says_nothing_of_a_death() {
        let memory = SlotMemory::create(4).unwrap();
        drop(Vigil::keep(&memory).unwrap());
        assert_eq!(memory.gate(), None);
    }
}
