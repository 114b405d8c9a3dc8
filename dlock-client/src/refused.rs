// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of the system calls of a control connection: which are final, and which are retried.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;

use dlock_fabric::os::net::is_end;
use dlock_fabric::tls::session::TlsSession;
use dlock_fabric::tls::Tls;

use crate::control::CallError;

/// Logs that the system refused a call. The end of a connection is no refusal; the caller reports
/// it.
pub(crate) fn refused(peer: SocketAddr, call: &str, error: &std::io::Error) -> CallError {
    if !is_end(error.kind()) {
        log::error!("the primary at {peer} cannot be asked: {call}: {error}");
    }
    CallError::Transport
}

/// Does the TLS handshake on a connection.
pub(crate) fn sealed(
    stream: &TcpStream,
    peer: SocketAddr,
    until_ns: u64,
    tls: &Tls,
) -> std::io::Result<TlsSession> {
    let mut session = TlsSession::connect(tls, peer.ip()).map_err(std::io::Error::other)?;
    session.shake_until(stream.as_fd(), until_ns)?;
    Ok(session)
}

/// The level at which a failed handshake is logged: always `Error` if the system refused a call.
pub(crate) fn level_of(error: &std::io::Error, level: log::Level) -> log::Level {
    match error.kind() {
        // an error of TLS, or one that the peer has reported
        ErrorKind::InvalidData | ErrorKind::Other => level,
        kind if is_end(kind) => level,
        _ => log::Level::Error,
    }
}

/// Why there is no connection, and what to do about it.
pub(crate) fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::TimedOut => "it has not shaken hands in time; does it speak TLS?".into(),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => {
            "it has closed within the handshake; its log says why".into()
        }
        _ => error.to_string(),
    }
}

/// Whether the error is a signal or an expired socket timeout: the caller checks its deadline.
pub(crate) fn is_retry(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
