// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listening and connecting, always with a time limit.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::time::Duration;

use dlock_core::limits::CONTROL_WAIT_S;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::error::FabricError;
use crate::os::clock::{self, deadline_in};
use crate::os::sys::named;

/// How long connecting and attaching may take.
pub const CONNECT_WAIT: Duration = Duration::from_secs(CONTROL_WAIT_S);

/// Length of the accept queue: all clients of a primary may connect at once.
const BACKLOG: i32 = 1_024;

/// Listens on an address of this host, IPv4 or IPv6; port 0: any free one.
///
/// # Errors
/// `Listen`.
pub fn listen(ip: IpAddr, port: u16) -> Result<TcpListener, FabricError> {
    let addr = SocketAddr::new(ip, port);
    let failed = |source| FabricError::Listen { addr: addr.to_string(), source };
    let listener = TcpListener::bind(addr).map_err(failed)?;
    deepen(listener.as_fd()).map_err(failed)?;
    Ok(listener)
}

/// Connects to a primary within [`CONNECT_WAIT`], without delays for small frames.
///
/// # Errors
/// `Connect`.
pub fn connect(addr: SocketAddr) -> Result<TcpStream, FabricError> {
    connect_until(addr, None)
}

/// As [`connect`], but until `until_ns` at most.
pub(crate) fn connect_until(
    addr: SocketAddr,
    until_ns: Option<u64>,
) -> Result<TcpStream, FabricError> {
    let failed = |source| FabricError::connect(addr, source);
    let wait = left(until_ns);
    let stream =
        TcpStream::connect_timeout(&addr, wait).map_err(|error| failed(not_connected(error)))?;
    stream.set_nodelay(true).map_err(|error| failed(named("setsockopt", error)))?;
    Ok(stream)
}

/// The deadline of connecting or attaching: [`CONNECT_WAIT`] from now, or `until_ns` if that is
/// earlier.
pub(crate) fn connect_deadline(until_ns: Option<u64>) -> u64 {
    deadline_in(CONNECT_WAIT).min(until_ns.unwrap_or(u64::MAX))
}

fn left(until_ns: Option<u64>) -> Duration {
    let left = clock::left_until(connect_deadline(until_ns));
    left.max(Duration::from_millis(1)) // a time limit of zero would be refused as an argument
}

/// Lets the kernel detect a dead peer: 60 s idle, then 9 probes, 6 s apart.
///
/// # Errors
/// An error of the socket.
pub fn set_keepalive(socket: BorrowedFd<'_>) -> io::Result<()> {
    let set = || {
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, Duration::from_secs(60))?;
        sockopt::set_tcp_keepcnt(socket, 9)?;
        sockopt::set_tcp_keepintvl(socket, Duration::from_secs(6))
    };
    set().map_err(|error| named("setsockopt", error))
}

/// Listens on an abstract Unix socket, which has a name but no file, and ends with its process.
///
/// # Errors
/// `Listen`.
pub fn listen_abstract(name: &[u8]) -> Result<UnixListener, FabricError> {
    let failed = |source| FabricError::Listen { addr: abstract_text(name), source };
    let addr = UnixAddr::from_abstract_name(name).map_err(failed)?;
    let listener = UnixListener::bind_addr(&addr).map_err(failed)?;
    deepen(listener.as_fd()).map_err(failed)?;
    Ok(listener)
}

/// Connects to an abstract Unix socket within [`CONNECT_WAIT`].
///
/// # Errors
/// `Connect`.
pub fn connect_abstract(name: &[u8]) -> Result<UnixStream, FabricError> {
    connect_abstract_until(name, None)
}

/// As [`connect_abstract`], but until `until_ns` at most.
pub(crate) fn connect_abstract_until(
    name: &[u8],
    until_ns: Option<u64>,
) -> Result<UnixStream, FabricError> {
    let failed = |source| FabricError::Connect { addr: abstract_text(name), source };
    connect_abstract_io(name, left(until_ns)).map_err(failed)
}

fn connect_abstract_io(name: &[u8], wait: Duration) -> io::Result<UnixStream> {
    let addr = SocketAddrUnix::new_abstract_name(name)?;
    let fd = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|error| named("socket", error))?;
    // A full backlog blocks connect for as long as sending may block.
    sockopt::set_socket_timeout(&fd, Timeout::Send, Some(wait))
        .map_err(|error| named("setsockopt", error))?;
    match rustix::io::retry_on_intr(|| rustix::net::connect(&fd, &addr)) {
        Ok(()) => Ok(UnixStream::from(fd)),
        Err(Errno::AGAIN) => Err(io::ErrorKind::TimedOut.into()),
        Err(error) => Err(error.into()),
    }
}

/// Sets the backlog, by listening again.
fn deepen(listener: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::net::listen(listener, BACKLOG)?)
}

fn abstract_text(name: &[u8]) -> String {
    format!("@{}", String::from_utf8_lossy(name))
}

/// The error of a failed TCP connection. Unless the peer or the network refuses, it names the calls
/// that a connection needs.
pub fn not_connected(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::ConnectionRefused
        | ErrorKind::ConnectionReset
        | ErrorKind::TimedOut
        | ErrorKind::HostUnreachable
        | ErrorKind::NetworkUnreachable
        | ErrorKind::AddrNotAvailable => error,
        _ => named("socket, ioctl, connect or poll", error),
    }
}

/// Whether this error means that the other end has closed the connection, or is gone.
pub fn is_end(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
            | ErrorKind::NotConnected
            | ErrorKind::UnexpectedEof
            | ErrorKind::TimedOut
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// The first error of connecting to a closed listener. The child process of another test may
    /// have a copy of the listener for a moment, so the connect is repeated.
    fn first_error<T>(connect: impl Fn() -> Result<T, FabricError>) -> String {
        let until_ns = deadline_in(Duration::from_secs(20));
        loop {
            match connect() {
                Err(error) => return error.to_string(),
                Ok(_) => assert!(clock::boot_ns() < until_ns, "still listening"),
            }
        }
    }

    #[test]
    fn tcp_connects_over_both_families() {
        for ip in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            let listener = match listen(ip, 0) {
                Ok(listener) => listener,
                Err(error) if ip.is_ipv6() => {
                    eprintln!("skipped: no IPv6 on this host: {error}");
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            let mut stream = connect(listener.local_addr().unwrap()).unwrap();
            let (mut other, _) = listener.accept().unwrap();
            set_keepalive(other.as_fd()).unwrap();
            stream.write_all(b"x").unwrap();
            other.read_exact(&mut [0]).unwrap();
            assert!(stream.nodelay().unwrap());
        }
    }

    #[test]
    fn a_port_in_use_and_a_port_without_listener_are_named() {
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let listener = listen(ip, 0).unwrap();
        let addr = listener.local_addr().unwrap();
        let error = listen(ip, addr.port()).unwrap_err().to_string();
        assert!(error.contains(&addr.to_string()), "{error}");
        drop(listener);
        let error = first_error(|| connect(addr));
        assert!(error.contains(&addr.to_string()), "{error}");
    }

    #[test]
    fn an_abstract_name_is_reached_until_its_listener_is_gone() {
        let name = format!("dlock-net-test-{}", std::process::id()).into_bytes();
        let listener = listen_abstract(&name).unwrap();
        assert!(listen_abstract(&name).is_err());
        let mut stream = connect_abstract(&name).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        stream.write_all(b"x").unwrap();
        other.read_exact(&mut [0]).unwrap();
        drop(listener);
        let error = first_error(|| connect_abstract(&name));
        assert!(error.contains("@dlock-net-test-"), "{error}");
        assert!(connect_abstract(&[b'x'; 200]).is_err());
    }
}
