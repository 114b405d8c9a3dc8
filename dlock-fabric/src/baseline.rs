// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of the machine itself, against which executors are measured: the same atomics and the
//! same waiting, without dlock.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use crate::error::FabricError;
use crate::memory::atomic::SharedWord;
use crate::os::clock::{boot_ns, deadline_in};
use crate::os::net;
use crate::os::sys;

/// How long the two ends of an echo wait for each other.
const WAIT: Duration = Duration::from_secs(5);
/// How long the echoing end polls before it sleeps, as a primary does.
const ECHO_SPIN: Duration = Duration::from_millis(1);

/// Nanoseconds of two CPU compare-and-swaps on a shared word (take it, give it back), the mean
/// of this many rounds.
pub fn two_cas_ns(rounds: u32) -> f64 {
    let word = std::hint::black_box(Box::new(SharedWord::new(0)));
    let started = Instant::now();
    for round in 1..=u64::from(rounds) {
        let round = std::hint::black_box(round);
        word.cas(0, round);
        word.cas(round, 0);
    }
    started.elapsed().as_nanos() as f64 / f64::from(rounds.max(1))
}

/// A raw byte stream to a thread that echoes.
#[derive(Debug)]
pub struct Echo {
    near: Option<OwnedFd>,
    bytes: Vec<u8>,
    far: Option<JoinHandle<()>>,
}

impl Echo {
    /// An echo over a Unix stream socket, with `bytes` (at least 1) in each direction.
    ///
    /// # Errors
    /// An error of the system.
    pub fn unix(bytes: usize) -> io::Result<Self> {
        let (near, far) = UnixStream::pair()?;
        Self::start(near.into(), far.into(), bytes)
    }

    /// An echo over TCP on the loopback interface, with `bytes` (at least 1) in each direction.
    ///
    /// # Errors
    /// An error of the system.
    pub fn tcp(bytes: usize) -> Result<Self, FabricError> {
        let listener = net::listen(IpAddr::V4(Ipv4Addr::LOCALHOST), 0)?;
        let near = net::connect(listener.local_addr().map_err(FabricError::Handshake)?)?;
        let (far, _) = listener.accept().map_err(FabricError::Handshake)?;
        far.set_nodelay(true).map_err(FabricError::Handshake)?;
        Self::start(near.into(), far.into(), bytes).map_err(FabricError::Handshake)
    }

    fn start(near: OwnedFd, far: OwnedFd, bytes: usize) -> io::Result<Self> {
        let bytes = vec![0; bytes.max(1)];
        let mut buffer = bytes.clone();
        let far = std::thread::Builder::new()
            .name("dlock-echo".into())
            .spawn(move || while echo_once(&far, &mut buffer).is_ok() {})?;
        Ok(Self { near: Some(near), bytes, far: Some(far) })
    }

    /// Makes one round trip; returns its nanoseconds.
    ///
    /// # Errors
    /// An error of the socket.
    pub fn round_trip_ns(&mut self) -> io::Result<u64> {
        let Some(near) = &self.near else { return Err(io::ErrorKind::NotConnected.into()) };
        let started = Instant::now();
        let until_ns = deadline_in(WAIT);
        sys::send_all(near.as_fd(), &self.bytes, until_ns)?;
        sys::receive_all(near.as_fd(), &mut self.bytes, until_ns)?;
        Ok(u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.near = None;
        if let Some(far) = self.far.take() {
            // The thread ends when its peer is closed; it cannot panic.
            let _ = far.join();
        }
    }
}

fn echo_once(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<()> {
    let fd = socket.as_fd();
    let spin_until_ns = deadline_in(ECHO_SPIN);
    let mut filled = 0;
    while filled < buffer.len() {
        match sys::receive_now(fd, &mut buffer[filled..])? {
            Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Some(len) => filled += len,
            None if boot_ns() < spin_until_ns => std::thread::yield_now(),
            None => {
                sys::poll_until(fd, PollFlags::IN, deadline_in(WAIT))?;
            }
        }
    }
    sys::send_all(fd, buffer, deadline_in(WAIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn baselines_are_measured_and_leave_no_thread_behind() {
        assert!(two_cas_ns(1_000) > 0.0);
        for mut echo in [Echo::unix(64).unwrap(), Echo::tcp(64).unwrap()] {
            for _ in 0..100 {
                assert!(echo.round_trip_ns().unwrap() > 0);
            }
        }
    }
}
