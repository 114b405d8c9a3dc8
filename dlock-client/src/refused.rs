// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a control connection is refused, and by which call: what is an end, what is tried again.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Instant;

use dlock_fabric::os::net::is_end;
use dlock_fabric::tls::session::TlsSession;
use dlock_fabric::tls::Tls;

use crate::control::CallError;

/// The system refuses a call. The end of a connection is no refusal, and is told elsewhere.
pub(crate) fn refused(peer: SocketAddr, call: &str, error: &std::io::Error) -> CallError {
    if !is_end(error.kind()) {
        log::error!("the primary at {peer} cannot be asked: {call}: {error}");
    }
    CallError::Transport
}

/// A connection with TLS, once hands are shaken.
pub(crate) fn sealed(
    stream: &TcpStream,
    peer: SocketAddr,
    deadline: Instant,
    tls: &Tls,
) -> std::io::Result<TlsSession> {
    let mut session = TlsSession::connect(tls, peer.ip()).map_err(std::io::Error::other)?;
    session.shake_until(stream.as_fd(), deadline)?;
    Ok(session)
}

/// How loudly a failure to shake hands is told: a call that the system refuses always.
pub(crate) fn level_of(error: &std::io::Error, level: log::Level) -> log::Level {
    match error.kind() {
        ErrorKind::InvalidData | ErrorKind::Other => level, // of TLS, and told by its other end
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

/// Signals and expired socket timeouts: the deadline decides.
pub(crate) fn is_retry(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
