// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread that looks after a connection: it sleeps until another thread wakes it, the peer has
//! closed the connection, or its time has come.
//!
//! ```text
//!   wake ── eventfd ──┐
//!   peer ── socket ───┴─▶ ppoll in sleep
//! ```

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Instant;

use crate::sys::{check, poll_pair};

/// What a thread sleeps on. A forked child has a copy, by which it would wake its parent's thread.
#[derive(Debug)]
pub struct Wake {
    event: OwnedFd,
}

/// Why it sleeps no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Another thread wants it to look, at least once since it slept last.
    Called,
    /// The peer has closed the connection, or it has failed.
    Ended,
    /// Its time has come.
    Late,
}

impl Wake {
    /// One descriptor.
    ///
    /// # Errors
    /// There are too many of them.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let raw = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: a descriptor just made, with no other owner.
        Ok(Self { event: unsafe { OwnedFd::from_raw_fd(raw) } })
    }

    /// The thread does not sleep on, or does not begin to.
    pub fn wake(&self) {
        let one = 1_u64;
        // A counter that is full has woken it already.
        // SAFETY: eight bytes of a local.
        unsafe { libc::write(self.event.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Sleeps. What has come of `connection` and was not read does not end it.
    pub fn sleep(&self, connection: Option<BorrowedFd<'_>>, deadline: Instant) -> Woken {
        let watched = connection.map(|connection| (connection, libc::POLLRDHUP));
        match poll_pair((self.event.as_fd(), libc::POLLIN), watched, deadline) {
            Ok((called, _)) if called != 0 => {
                let mut count = 0_u64;
                // SAFETY: eight bytes of a local.
                unsafe { libc::read(self.event.as_raw_fd(), (&raw mut count).cast(), 8) };
                Woken::Called
            }
            Ok((_, ended)) if ended != 0 => Woken::Ended,
            // No memory in the kernel: as if the time had come.
            Ok(_) | Err(_) => Woken::Late,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn a_sleeper_wakes_by_a_call_and_by_the_end_of_its_connection_and_not_by_what_comes() {
        let wake = Wake::new().unwrap();
        let (mine, mut peers) = UnixStream::pair().unwrap();
        let mine = Some(mine.as_fd());
        peers.write_all(b"an answer").unwrap();
        assert_eq!(wake.sleep(mine, Instant::now() + Duration::from_millis(10)), Woken::Late);
        wake.wake();
        wake.wake();
        assert_eq!(wake.sleep(mine, Instant::now() + SOON), Woken::Called);
        assert_eq!(wake.sleep(mine, Instant::now()), Woken::Late, "both calls were one");
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| wake.sleep(mine, Instant::now() + SOON));
            peers.shutdown(Shutdown::Write).unwrap();
            assert_eq!(sleeper.join().unwrap(), Woken::Ended);
            let sleeper = scope.spawn(|| wake.sleep(None, Instant::now() + SOON));
            wake.wake();
            assert_eq!(sleeper.join().unwrap(), Woken::Called);
        });
    }
}
