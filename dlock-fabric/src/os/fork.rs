// SPDX-License-Identifier: MIT OR Apache-2.0
//! Distinguishes a process from its forked children without a system call, and keeps its sockets
//! from them.
//!
//! A forked child does not inherit lock memory (`MADV_DONTFORK`), and must neither touch it nor use
//! the inherited sockets. A private page that the kernel wipes in every child (`MADV_WIPEONFORK`)
//! shows whether the caller is such a child. A connection lasts as long as any process has its
//! socket open, so the primary would not learn of its client's death while a child lives. So in
//! every child `/dev/null` takes the places of a session's sockets ([`NotInherited`]).

use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Once, OnceLock};

use crate::memory::atomic::{self, SharedWord};

/// The process that made a value.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    page: &'static SharedWord,
    mark: u64,
}

impl Owner {
    /// The calling process.
    pub fn current() -> Self {
        Self { page: page(), mark: process() }
    }

    /// Whether the calling process is the owner, not a forked child of it.
    #[inline]
    pub fn is_here(self) -> bool {
        self.page.load() == self.mark
    }
}

/// The number of the calling process, which none of its ancestors has. A process id would not do: a
/// child in a PID namespace of its own may have the id of its parent.
pub fn process() -> u64 {
    /// The next number. A forked child goes on from its parent's value.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let page = page();
    match page.load() {
        0 => {
            let new = NEXT.fetch_add(1, Ordering::Relaxed);
            match page.cas(0, new) {
                0 => new,
                of_another_thread => of_another_thread,
            }
        }
        mark => mark,
    }
}

/// The word that is 0 in a forked child that has not asked for its number yet.
fn page() -> &'static SharedWord {
    static PAGE: OnceLock<&'static SharedWord> = OnceLock::new();
    PAGE.get_or_init(|| {
        wiped_page().unwrap_or_else(|| {
            watch_forks();
            &UNWIPED
        })
    })
}

/// Used where the kernel cannot wipe a page (before Linux 4.14). There `in_child` sets this word to
/// 0, but only in children that the C library's `fork` has made.
static UNWIPED: SharedWord = SharedWord::new(0);

/// Sockets of one process that its children do not inherit. A session has two or three. Further
/// sockets are inherited.
const SOCKETS_MAX: usize = 8_192;

/// The descriptors of the sockets, each plus 1; 0: a free place.
static SOCKETS: [AtomicI32; SOCKETS_MAX] = [const { AtomicI32::new(0) }; SOCKETS_MAX];

/// A socket that forked children do not keep open.
#[derive(Debug)]
pub struct NotInherited<T: AsFd> {
    place: Option<usize>,
    socket: T,
}

impl<T: AsFd> NotInherited<T> {
    /// Keeps the socket from forked children.
    pub fn new(socket: T) -> Self {
        watch_forks();
        let mark = socket.as_fd().as_raw_fd() + 1;
        let is_taken = |place: &&AtomicI32| {
            place.compare_exchange(0, mark, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        let free = SOCKETS.iter().enumerate().find(|(_, place)| is_taken(place));
        Self { place: free.map(|(index, _)| index), socket }
    }
}

impl<T: AsFd> Deref for NotInherited<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.socket
    }
}

impl<T: AsFd> Drop for NotInherited<T> {
    /// Frees the place before the descriptor's number can become that of another file.
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let mark = self.socket.as_fd().as_raw_fd() + 1;
            let (from, to) = (Ordering::SeqCst, Ordering::Relaxed);
            // a failed exchange means that `in_child` has freed the place
            let _ = SOCKETS[place].compare_exchange(mark, 0, from, to);
        }
    }
}

/// Has [`in_child`] run in every child that the C library's `fork` makes from here on.
fn watch_forks() {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        // If this fails for want of memory, children inherit the sockets.
        // SAFETY: `in_child` does nothing but async-signal-safe system calls and stores.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Runs in every forked child before any other code.
extern "C" fn in_child() {
    UNWIPED.store(0);
    let mut null: RawFd = -1;
    for place in &SOCKETS {
        let mark = place.swap(0, Ordering::SeqCst);
        if mark == 0 {
            continue;
        }
        // SAFETY: system calls on numbers. The number is that of a socket of this library, because
        // the place is freed before the socket is closed; other processes keep the connection.
        unsafe {
            if null < 0 {
                null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            }
            if null >= 0 {
                libc::dup3(null, mark - 1, libc::O_CLOEXEC);
            }
        }
    }
    if null >= 0 {
        // SAFETY: opened above.
        unsafe { libc::close(null) };
    }
}

fn wiped_page() -> Option<&'static SharedWord> {
    let len = crate::os::sys::page_size();
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
    // SAFETY: the word is at the beginning of a page, so it is aligned, and the page is never
    // unmapped from here on. Only this module has its address, and uses it through SharedWord
    // alone.
    unsafe { atomic::words(base.as_ptr().cast(), 1) }.first()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_forked_child_keeps_no_connection_open() {
        let (near, far) = UnixStream::pair().unwrap();
        let (mut stop, wait) = UnixStream::pair().unwrap();
        let near = NotInherited::new(near);
        // SAFETY: the child calls only `read` and `_exit`, which are async-signal-safe.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut byte = 0_u8;
            // SAFETY: the call reads one byte into a byte; then the child ends, without the test
            // harness.
            unsafe {
                libc::read(wait.as_raw_fd(), (&raw mut byte).cast(), 1);
                libc::_exit(0);
            }
        }
        assert!(child > 0);
        (&*near).write_all(b"x").unwrap();
        drop(near);
        far.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        let mut all = Vec::new();
        (&far).read_to_end(&mut all).expect("the end comes while the child lives");
        assert_eq!(all, b"x");
        stop.write_all(b"x").unwrap();
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    }

    #[test]
    fn a_place_is_free_again() {
        let (one, two) = UnixStream::pair().unwrap();
        let one = NotInherited::new(one);
        let place = one.place.unwrap();
        assert_eq!(SOCKETS[place].load(Ordering::SeqCst), one.as_raw_fd() + 1);
        let mark = one.as_raw_fd() + 1;
        drop(one);
        assert_ne!(SOCKETS[place].load(Ordering::SeqCst), mark, "the peer {two:?} still open");
    }

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

    /// In a PID namespace of its own a child may have its parent's process id.
    #[test]
    fn a_forked_child_has_another_number_than_all_its_ancestors() {
        let mine = process();
        assert_eq!(process(), mine);
        // SAFETY: the children call only `fork`, `waitpid` and `_exit` beside atomics of memory
        // that is there.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                let childs = process();
                let grandchild = libc::fork();
                if grandchild == 0 {
                    libc::_exit(i32::from([mine, childs].contains(&process())));
                }
                let mut status = 1;
                libc::waitpid(grandchild, &mut status, 0);
                libc::_exit(i32::from(childs == mine || status != 0));
            }
            let mut status = 1;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status
        };
        assert_eq!(status, 0);
        assert_eq!(process(), mine);
    }
}
