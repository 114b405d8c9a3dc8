// SPDX-License-Identifier: MIT OR Apache-2.0
//! Socket calls that never block longer than their deadline, survive signals, and raise none.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{recv, send, RecvFlags, SendFlags};

use crate::os::clock::{boot_ns, deadline_in, left_until};

/// How long a waiting thread polls before it sleeps: longer than a message round trip between two
/// running threads, much shorter than a time slice. Between polls it yields, because the thread it
/// waits for may need this CPU.
pub(crate) const SPIN: Duration = Duration::from_micros(30);

/// The page size. Not from `rustix`, which looks for the vDSO: valgrind hides it, and a library
/// must work under valgrind.
pub(crate) fn page_size() -> usize {
    // SAFETY: no arguments that could be wrong.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4_096)
}

/// Sleeps, at most `limit`, until `word`, which other processes may have mapped, differs from
/// `value`, or [`futex_wake_all`] is called for it, or a signal comes.
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

/// What to do about a system call that is denied although it needs no privilege; `None`: the reason
/// is another one.
pub fn denied(error: &io::Error) -> Option<&'static str> {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported).then_some(
        "a seccomp filter, a container or a security module denies it: permit it for this program",
    )
}

/// The error with the name of the call for the log; if several calls may have failed, with all of
/// their names.
pub fn named(call: &str, error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    io::Error::new(error.kind(), format!("{call}: {error}"))
}

/// Makes a call that does not wait, and repeats it if a signal interrupts it. `None`: the call
/// would have to wait.
pub(crate) fn now<T>(
    name: &str,
    call: impl FnMut() -> rustix::io::Result<T>,
) -> io::Result<Option<T>> {
    match rustix::io::retry_on_intr(call) {
        Ok(done) => Ok(Some(done)),
        Err(Errno::AGAIN) => Ok(None),
        Err(error) => Err(named(name, error)),
    }
}

/// Receives the bytes that are there; `None`: nothing yet, `Some(0)`: the peer has closed.
pub(crate) fn receive_now(fd: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<Option<usize>> {
    now("recvfrom", || recv(fd, &mut *into, RecvFlags::DONTWAIT).map(|(len, _)| len))
}

/// Sends as many bytes as fit; `None`: none fit now.
pub(crate) fn send_now(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<Option<usize>> {
    now("sendto", || send(fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL))
}

/// Waits until one of `events` (or an error) is there; returns no event if the deadline came first.
pub(crate) fn poll_until(
    fd: BorrowedFd<'_>,
    events: PollFlags,
    until_ns: u64,
) -> io::Result<PollFlags> {
    let [events] = poll_all([(fd, events)], until_ns)?;
    Ok(events)
}

/// Waits until one of two descriptors is readable, or has failed; returns which. Neither: the
/// deadline came first.
pub(crate) fn readable_until(fds: [BorrowedFd<'_>; 2], until_ns: u64) -> io::Result<[bool; 2]> {
    let events = poll_all(fds.map(|fd| (fd, PollFlags::IN)), until_ns)?;
    Ok(events.map(|events| !events.is_empty()))
}

/// Waits until one of these descriptors has a wanted event, or has failed; returns the events of
/// each. None: the deadline came first.
pub(crate) fn poll_all<const N: usize>(
    fds: [(BorrowedFd<'_>, PollFlags); N],
    until_ns: u64,
) -> io::Result<[PollFlags; N]> {
    let mut entries = fds.map(|(fd, wanted)| PollFd::from_borrowed_fd(fd, wanted));
    poll_entries(&mut entries, until_ns)?;
    Ok(entries.map(|entry| entry.revents()))
}

/// As [`poll_all`] for any number of descriptors; returns whether each has an event.
pub(crate) fn poll_some<'a>(
    fds: impl Iterator<Item = (BorrowedFd<'a>, PollFlags)>,
    until_ns: u64,
) -> io::Result<Vec<bool>> {
    let mut entries: Vec<PollFd<'_>> =
        fds.map(|(fd, wanted)| PollFd::from_borrowed_fd(fd, wanted)).collect();
    poll_entries(&mut entries, until_ns)?;
    Ok(entries.iter().map(|entry| !entry.revents().is_empty()).collect())
}

fn poll_entries(entries: &mut [PollFd<'_>], until_ns: u64) -> io::Result<()> {
    loop {
        match poll(entries, Some(&timespec(left_until(until_ns)))) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(named("ppoll", error)),
        }
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}

/// Receives at least one byte, polling briefly before it sleeps; `None`: the deadline came first;
/// `Some(0)`: the peer has closed. Tries once even if the deadline has passed.
pub(crate) fn receive_until(
    fd: BorrowedFd<'_>,
    into: &mut [u8],
    until_ns: u64,
) -> io::Result<Option<usize>> {
    let spin_until_ns = deadline_in(SPIN).min(until_ns);
    loop {
        if let Some(len) = receive_now(fd, into)? {
            return Ok(Some(len));
        }
        if boot_ns() >= spin_until_ns {
            break;
        }
        std::thread::yield_now();
    }
    while boot_ns() < until_ns {
        poll_until(fd, PollFlags::IN, until_ns)?;
        if let Some(len) = receive_now(fd, into)? {
            return Ok(Some(len));
        }
    }
    Ok(None)
}

/// Sends everything, or fails: `TimedOut` if the peer did not take it by the deadline.
pub(crate) fn send_all(fd: BorrowedFd<'_>, mut bytes: &[u8], until_ns: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match send_now(fd, bytes)? {
            Some(len) => bytes = &bytes[len..],
            None if boot_ns() >= until_ns => return Err(io::ErrorKind::TimedOut.into()),
            None => {
                poll_until(fd, PollFlags::OUT, until_ns)?;
            }
        }
    }
    Ok(())
}

/// Receives exactly this many bytes, or fails: `TimedOut`, or `UnexpectedEof`.
pub(crate) fn receive_all(
    fd: BorrowedFd<'_>,
    mut into: &mut [u8],
    until_ns: u64,
) -> io::Result<()> {
    while !into.is_empty() {
        match receive_until(fd, into, until_ns)? {
            None => return Err(io::ErrorKind::TimedOut.into()),
            Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Some(len) => into = &mut into[len..],
        }
    }
    Ok(())
}
