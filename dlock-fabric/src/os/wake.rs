// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sleep of a thread that serves connections: until another thread wakes it, a connection has
//! an event, or its time has come.
//!
//! ```text
//!   wake ── eventfd ───┐
//!   peers ── sockets ──┴─▶ ppoll in sleep
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{eventfd, EventfdFlags, PollFlags};

use crate::os::clock::{deadline_in, left_until};
use crate::os::sys::poll_some;

/// How long a thread sleeps at a time if it cannot be woken.
const UNWAKEABLE: Duration = Duration::from_millis(5);

/// The object on which a thread sleeps. A forked child has a copy, by which it would wake its
/// parent's thread.
#[derive(Debug)]
pub struct Wake {
    /// `None` if there are too many descriptors: the thread polls.
    event: Option<OwnedFd>,
    is_woken: AtomicBool,
}

/// Which events of a connection end a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// The peer has closed the connection, or it has failed; unread input does not count.
    End,
    /// Input has come, or the connection has ended.
    Input,
}

impl Wake {
    /// Takes one descriptor, if one is available.
    #[allow(clippy::new_without_default)] // no `Default`: making a value takes a system call
    pub fn new() -> Self {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        if let Err(error) = &event {
            log::warn!(
                "a thread looks every {UNWAKEABLE:?} for what it has to do: eventfd: {error}"
            );
        }
        Self { event: event.ok(), is_woken: AtomicBool::new(false) }
    }

    /// Ends the thread's sleep, or its next one.
    pub fn wake(&self) {
        match &self.event {
            // A full counter has woken the thread already.
            Some(event) => drop(rustix::io::write(event, &1_u64.to_ne_bytes())),
            None => self.is_woken.store(true, Ordering::SeqCst),
        }
    }

    /// Sleeps until that time of the local clock at most; returns which connections have an event.
    pub fn sleep(&self, connections: &[(BorrowedFd<'_>, Watched)], until_ns: u64) -> Vec<bool> {
        let until_ns = match &self.event {
            Some(_) => until_ns,
            None if self.is_woken.swap(false, Ordering::SeqCst) => 0,
            None => until_ns.min(deadline_in(UNWAKEABLE)),
        };
        let flags = |what| match what {
            Watched::End => PollFlags::RDHUP,
            Watched::Input => PollFlags::IN | PollFlags::RDHUP,
        };
        let connections = connections.iter().map(|&(fd, what)| (fd, flags(what)));
        let event = self.event.iter().map(|event| (event.as_fd(), PollFlags::IN));
        let Ok(mut events) = poll_some(connections.chain(event), until_ns) else {
            // the kernel has no memory for the poll
            std::thread::sleep(left_until(until_ns).min(UNWAKEABLE));
            return Vec::new();
        };
        if let Some(event) = &self.event {
            if events.pop() == Some(true) {
                let _ = rustix::io::read(event, &mut [0_u8; 8]);
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::os::clock::boot_ns;

    const LONG_NS: u64 = 60_000_000_000;

    fn soon() -> u64 {
        boot_ns() + LONG_NS
    }

    #[test]
    fn a_sleeper_wakes_by_a_call_by_what_comes_if_it_wants_to_and_by_the_end_of_a_connection() {
        let wake = Wake::new();
        let (mine, mut peers) = UnixStream::pair().unwrap();
        let (ends, input) = ([(mine.as_fd(), Watched::End)], [(mine.as_fd(), Watched::Input)]);
        peers.write_all(b"an answer").unwrap();
        assert_eq!(wake.sleep(&ends, boot_ns() + 10_000_000), [false], "its time has come");
        assert_eq!(wake.sleep(&input, soon()), [true]);
        wake.wake();
        wake.wake();
        let start_ns = boot_ns();
        assert_eq!(wake.sleep(&ends, soon()), [false]);
        assert!(boot_ns() < start_ns + LONG_NS, "it was called");
        assert_eq!(wake.sleep(&ends, boot_ns() + 10_000_000), [false]);
        assert!(boot_ns() >= start_ns + 10_000_000, "both calls were one");
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| wake.sleep(&ends, soon()));
            peers.shutdown(Shutdown::Write).unwrap();
            assert_eq!(sleeper.join().unwrap(), [true]);
            let sleeper = scope.spawn(|| wake.sleep(&[], soon()));
            wake.wake();
            assert!(sleeper.join().unwrap().is_empty());
        });
    }

    #[test]
    fn a_sleeper_without_a_descriptor_of_its_own_wakes_all_the_same() {
        let wake = Wake { event: None, is_woken: AtomicBool::new(false) };
        let start_ns = boot_ns();
        assert!(wake.sleep(&[], soon()).is_empty());
        wake.wake();
        assert!(wake.sleep(&[], soon()).is_empty());
        assert!(boot_ns() < start_ns + LONG_NS);
    }
}
