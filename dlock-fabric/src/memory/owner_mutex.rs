// SPDX-License-Identifier: MIT OR Apache-2.0
//! How shm clients notice that the primary died, without a message.
//!
//! ```text
//!   command thread ── locks ──▶ robust mutex in the header, which clients cannot write
//!   kernel, when that thread or its process ends ──▶ FUTEX_OWNER_DIED in the mutex's word
//!   client, before each chain ── reads the word it reads the gate beside
//! ```
//! Without this, clients that have mapped the memory would go on after `kill -9` of the primary,
//! and agree with each other on locks that a successor gives to others.
//!
//! The C library links the mutexes that a thread has locked into a list, by pointers in the mutexes
//! themselves. Both it and the kernel follow these pointers in the primary, so clients must not be
//! able to write them: the header is a file of its own, and sealed (see
//! [`memory`](crate::memory::mapped)).

use std::io;
use std::mem::MaybeUninit;
use std::thread::{self, ThreadId};

use dlock_core::wire::status::Status;

use crate::memory::mapped::SlotMemory;

/// The mutex lies behind the other words of the header, and its futex word in their cache line.
pub(crate) const OWNER_WORD: usize = 4;
/// Set by the kernel in the futex word (the first four bytes of glibc's mutex).
const FUTEX_OWNER_DIED: u64 = 0x4000_0000;

/// Held by the thread that serves a memory, for as long as it does.
#[derive(Debug)]
pub(crate) struct OwnerMutex {
    mutex: *mut libc::pthread_mutex_t,
    keeper: ThreadId,
}

// SAFETY: only the thread `keeper` uses the pointer; every use checks that.
unsafe impl Send for OwnerMutex {}

impl OwnerMutex {
    /// Locks the mutex: this thread serves the memory from now on. Must be dropped before the
    /// memory.
    ///
    /// # Errors
    /// An error of the system, if it refuses robust mutexes.
    pub(crate) fn lock(memory: &SlotMemory) -> io::Result<Self> {
        let mutex: *mut libc::pthread_mutex_t = memory.owner_place().cast();
        let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        let attr = attributes.as_mut_ptr();
        let check = |rc: libc::c_int| match rc {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        };
        // SAFETY: `attr` is a place for attributes, initialised first and destroyed last.
        // `mutex` is aligned, writable memory of the header that no other process writes, large
        // enough (asserted below), and stays mapped while it is locked.
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

impl Drop for OwnerMutex {
    /// Unlocks the mutex. A primary that stops serving closes the gate first.
    fn drop(&mut self) {
        // On another thread the keeper has ended: the kernel has set `FUTEX_OWNER_DIED`, and
        // released the mutex.
        if thread::current().id() == self.keeper {
            // SAFETY: this thread has locked it in `lock`, and the memory is still mapped.
            unsafe { libc::pthread_mutex_unlock(self.mutex) };
        }
    }
}

/// The status with which chains are refused if the thread that served the memory has ended without
/// closing the gate.
#[inline]
pub(crate) fn refusal(word: u64) -> Option<Status> {
    let tells = cfg!(all(target_env = "gnu", target_endian = "little"));
    (tells && word & FUTEX_OWNER_DIED != 0).then_some(Status::BadResponse)
}

const _: () = assert!(size_of::<libc::pthread_mutex_t>() <= 128);

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    fn files(memory: &SlotMemory) -> [OwnedFd; 2] {
        memory.fds().unwrap().map(|fd| fd.try_clone_to_owned().unwrap())
    }

    fn opened(memory: &SlotMemory) -> SlotMemory {
        let [header, slots] = files(memory);
        SlotMemory::open(header, slots, memory.slots()).unwrap()
    }

    #[test]
    fn a_client_that_scribbles_over_every_file_it_has_does_not_reach_the_mutex() {
        let memory = SlotMemory::create(4).unwrap();
        let client = opened(&memory);
        thread::scope(|scope| {
            let owner = scope.spawn(|| {
                let mutex = OwnerMutex::lock(&memory).unwrap();
                for file in files(&memory).map(File::from) {
                    let bytes = vec![0xff; file.metadata().unwrap().len() as usize];
                    // the write fails if the kernel protects the header, as it should
                    let _ = file.write_all_at(&bytes, 0);
                }
                assert_eq!(client.gate(), None, "the gate and the mutex are as they were");
                // follows the list that contains the mutex
                drop(mutex);
                std::mem::forget(OwnerMutex::lock(&memory).unwrap());
            });
            owner.join().unwrap();
        });
        assert_eq!(client.gate(), Some(Status::BadResponse));
    }

    #[test]
    fn clients_notice_a_thread_that_ends_without_a_word() {
        let memory = SlotMemory::create(4).unwrap();
        let client = opened(&memory);
        assert_eq!(client.gate(), None, "before anybody serves");
        thread::scope(|scope| {
            let keeper = scope.spawn(|| {
                let mutex = OwnerMutex::lock(&memory).unwrap();
                assert_eq!(client.gate(), None);
                std::mem::forget(mutex);
            });
            // The scope waits for the closure only, and not for the end of the thread.
            keeper.join().unwrap();
        });
        assert_eq!(client.gate(), Some(Status::BadResponse));
    }

    #[test]
    fn an_orderly_end_says_nothing_of_a_death() {
        let memory = SlotMemory::create(4).unwrap();
        drop(OwnerMutex::lock(&memory).unwrap());
        assert_eq!(memory.gate(), None);
    }
}
