// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread that looks after a connection: it sleeps until another thread wakes it, the peer has
//! closed the connection, or its time has come.
//!
//! ```text
//!   wake ── eventfd ──┐
//!   peer ── socket ───┴─▶ ppoll in sleep
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{eventfd, EventfdFlags, PollFlags};

use crate::sys::poll_all;

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
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event })
    }

    /// The thread does not sleep on, or does not begin to.
    pub fn wake(&self) {
        // A counter that is full has woken it already.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Sleeps. What has come of `connection` and was not read does not end it.
    pub fn sleep(&self, connection: Option<BorrowedFd<'_>>, deadline: Instant) -> Woken {
        let event = (self.event.as_fd(), PollFlags::IN);
        let seen = match connection {
            Some(connection) => poll_all([event, (connection, PollFlags::RDHUP)], deadline),
            None => poll_all([event], deadline).map(|[called]| [called, PollFlags::empty()]),
        };
        match seen {
            Ok([called, _]) if !called.is_empty() => {
                let _ = rustix::io::read(&self.event, &mut [0_u8; 8]);
                Woken::Called
            }
            Ok([_, ended]) if !ended.is_empty() => Woken::Ended,
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
