// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tells a process from its forked children without a system call.
//!
//! Lock memory is not inherited by a forked child (`MADV_DONTFORK`): the child must neither
//! touch it nor speak on the inherited sockets. One private page that the kernel wipes in every
//! child (`MADV_WIPEONFORK`) tells which side of a fork one is on.

use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::atomic::{self, SharedWord};

/// The process that made something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    page: &'static SharedWord,
    mark: u64,
}

impl Owner {
    /// The process that calls this.
    pub(crate) fn current() -> Self {
        static PAGE: OnceLock<&'static SharedWord> = OnceLock::new();
        static NO_PAGE: SharedWord = SharedWord::new(0);
        let page = *PAGE.get_or_init(|| wiped_page().unwrap_or(&NO_PAGE));
        let mark = u64::from(std::process::id());
        if page.load() != mark {
            page.store(mark);
        }
        Self { page, mark }
    }

    /// Whether the calling process is the owner, not a forked child of it. Where the kernel
    /// cannot wipe pages (before Linux 4.14) every process counts as the owner.
    #[inline]
    pub(crate) fn is_here(self) -> bool {
        self.page.load() == self.mark
    }
}

fn wiped_page() -> Option<&'static SharedWord> {
    let len = crate::sys::page_size();
    // SAFETY: a new anonymous mapping at an address the kernel chooses; nothing is replaced.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return None;
    }
    let base = NonNull::new(base)?;
    // SAFETY: exactly the mapping made above.
    if unsafe { libc::madvise(base.as_ptr(), len, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: exactly the mapping made above, to which no reference exists yet.
        unsafe { libc::munmap(base.as_ptr(), len) };
        return None;
    }
    // SAFETY: page-aligned, one word of a page that is never unmapped from here on; only this
    // module has its address, and uses SharedWord alone.
    unsafe { atomic::words(base.as_ptr().cast(), 1) }.first()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_is_not_the_owner() {
        let owner = Owner::current();
        assert!(owner.is_here());
        // SAFETY: the child calls only `_exit`, which is async-signal-safe, after reading memory.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child at once, without running anything of the test harness.
            unsafe { libc::_exit(i32::from(owner.is_here())) };
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: waits for the child made above; `status` is a valid place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status));
        assert_eq!(libc::WEXITSTATUS(status), 0);
        assert!(owner.is_here());
    }
}
