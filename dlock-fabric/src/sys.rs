// SPDX-License-Identifier: MIT OR Apache-2.0
//! Socket calls that never block longer than they are told, survive signals, and raise none.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

/// How long a waiting thread looks again and again before it sleeps: longer than a message round
/// trip between two running threads, much shorter than a time slice. Between two looks it yields:
/// the thread it waits for may need this very CPU.
pub(crate) const SPIN: Duration = Duration::from_micros(30);

/// Longest wait that can be asked for: deadlines stay representable.
const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 3_600);

/// The moment `wait` from now.
pub(crate) fn deadline_in(wait: Duration) -> Instant {
    Instant::now() + wait.min(WAIT_MAX)
}

/// Bytes of a page.
pub(crate) fn page_size() -> usize {
    // SAFETY: no arguments that could be wrong.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4_096)
}

/// Sleeps until `word`, which other processes may have mapped, has another value, or
/// [`futex_wake_all`] is called for it; `limit` at most. A signal wakes, too.
pub(crate) fn futex_wait(word: *const u32, value: u32, limit: Duration) {
    let limit = libc::timespec {
        tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    };
    // SAFETY: the kernel checks the address, and the timespec outlives the call.
    let _ = unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, value, &limit) };
}

/// Wakes all threads, of any process, that sleep on `word`.
pub(crate) fn futex_wake_all(word: *const u32) {
    // SAFETY: the kernel checks the address, and nothing is written.
    let _ = unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, libc::c_int::MAX) };
}

/// The result of a call that returns −1 on failure.
pub(crate) fn check(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(rc)
    }
}

fn check_len(rc: isize) -> io::Result<Option<usize>> {
    if let Ok(len) = usize::try_from(rc) {
        return Ok(Some(len));
    }
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::WouldBlock => Ok(None),
        _ => Err(error),
    }
}

/// Receives what is there; `None`: nothing yet, `Some(0)`: the peer has closed.
pub(crate) fn receive_now(fd: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        // SAFETY: `into` is valid for writes of its length.
        let rc = unsafe {
            libc::recv(fd.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), libc::MSG_DONTWAIT)
        };
        match check_len(rc) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Sends what fits; `None`: nothing fits now.
pub(crate) fn send_now(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<Option<usize>> {
    loop {
        // SAFETY: `bytes` is valid for reads of its length.
        let rc = unsafe {
            libc::send(
                fd.as_raw_fd(),
                bytes.as_ptr().cast(),
                bytes.len(),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        match check_len(rc) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Waits until one of `events` (or an error) is there; 0 if the deadline came first.
pub(crate) fn poll_until(
    fd: BorrowedFd<'_>,
    events: libc::c_short,
    deadline: Instant,
) -> io::Result<libc::c_short> {
    poll_raw(fd.as_raw_fd(), events, deadline)
}

pub(crate) fn poll_raw(
    fd: RawFd,
    events: libc::c_short,
    deadline: Instant,
) -> io::Result<libc::c_short> {
    loop {
        let time = timespec_until(deadline);
        let mut entry = libc::pollfd { fd, events, revents: 0 };
        // SAFETY: one valid pollfd; the null mask leaves the signal mask as it is.
        let rc = unsafe { libc::ppoll(&mut entry, 1, &time, std::ptr::null()) };
        match check(rc) {
            Ok(0) => return Ok(0),
            Ok(_) => return Ok(entry.revents),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits until one of two descriptors is readable, or has failed; neither: the deadline came
/// first.
pub(crate) fn readable_until(fds: [BorrowedFd<'_>; 2], deadline: Instant) -> io::Result<[bool; 2]> {
    let [first, second] = fds.map(|fd| (fd, libc::POLLIN));
    let (first, second) = poll_pair(first, Some(second), deadline)?;
    Ok([first != 0, second != 0])
}

/// Waits until one of two descriptors, or of one, has an event that is wanted of it, or has
/// failed. What each has; both 0: the deadline came first.
pub(crate) fn poll_pair(
    (first, wanted): (BorrowedFd<'_>, libc::c_short),
    second: Option<(BorrowedFd<'_>, libc::c_short)>,
    deadline: Instant,
) -> io::Result<(libc::c_short, libc::c_short)> {
    loop {
        let time = timespec_until(deadline);
        // The kernel passes over an entry with a negative number.
        let (fd, events) = second.map_or((-1, 0), |(fd, wanted)| (fd.as_raw_fd(), wanted));
        let mut entries = [
            libc::pollfd { fd: first.as_raw_fd(), events: wanted, revents: 0 },
            libc::pollfd { fd, events, revents: 0 },
        ];
        // SAFETY: two valid pollfds; the null mask leaves the signal mask as it is.
        let rc = unsafe { libc::ppoll(entries.as_mut_ptr(), 2, &time, std::ptr::null()) };
        match check(rc) {
            Ok(_) => return Ok((entries[0].revents, entries[1].revents)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn timespec_until(deadline: Instant) -> libc::timespec {
    let left = deadline.saturating_duration_since(Instant::now());
    libc::timespec {
        tv_sec: left.as_secs() as libc::time_t,
        tv_nsec: left.subsec_nanos() as libc::c_long,
    }
}

/// Receives at least one byte, spinning briefly before it sleeps; `None`: the deadline came
/// first, `Some(0)`: the peer has closed. A deadline that has passed still looks once.
pub(crate) fn receive_until(
    fd: BorrowedFd<'_>,
    into: &mut [u8],
    deadline: Instant,
) -> io::Result<Option<usize>> {
    let spin_until = (Instant::now() + SPIN).min(deadline);
    loop {
        if let Some(len) = receive_now(fd, into)? {
            return Ok(Some(len));
        }
        if Instant::now() >= spin_until {
            break;
        }
        std::thread::yield_now();
    }
    while Instant::now() < deadline {
        poll_until(fd, libc::POLLIN, deadline)?;
        if let Some(len) = receive_now(fd, into)? {
            return Ok(Some(len));
        }
    }
    Ok(None)
}

/// Sends everything, or fails: `TimedOut` if the peer did not take it by the deadline.
pub(crate) fn send_all(fd: BorrowedFd<'_>, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        match send_now(fd, bytes)? {
            Some(len) => bytes = &bytes[len..],
            None if Instant::now() >= deadline => return Err(io::ErrorKind::TimedOut.into()),
            None => {
                poll_until(fd, libc::POLLOUT, deadline)?;
            }
        }
    }
    Ok(())
}

/// Receives exactly this many bytes, or fails: `TimedOut`, or `UnexpectedEof`.
pub(crate) fn receive_all(
    fd: BorrowedFd<'_>,
    mut into: &mut [u8],
    deadline: Instant,
) -> io::Result<()> {
    while !into.is_empty() {
        match receive_until(fd, into, deadline)? {
            None => return Err(io::ErrorKind::TimedOut.into()),
            Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Some(len) => into = &mut into[len..],
        }
    }
    Ok(())
}

/// Sets an integer socket option.
pub(crate) fn set_option(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: `value` is valid for reads of the length given.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(&value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    })?;
    Ok(())
}
