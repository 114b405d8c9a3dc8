// SPDX-License-Identifier: MIT OR Apache-2.0
//! TLS on the connections of the port, on either thread.
//!
//! ```text
//!   control thread   TcpStream ─▶ shake_hands ─▶ SealedConn ── frames ──▶ session
//!   command thread                 SealedConn ── into_line ─▶ SealedLine ─▶ StreamPump
//! ```
//! The connection moves between the threads with everything that TLS has read from it already.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{ready, Context, Poll};

use dlock_core::ids::ClientId;
use dlock_fabric::tls::sealing::SealSecrets;
use dlock_fabric::tls::session::{Shake, TlsSession};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::{Conn, Line, Shown};

/// A connection of the control thread whose peer is known.
#[derive(Debug)]
pub(crate) struct SealedConn {
    stream: TcpStream,
    session: TlsSession,
    shown: Arc<Shown>,
}

/// Does the handshake on a connection. The caller keeps `stream`: it closes it if this fails, and
/// may drop the future at any moment. `by`: which loading of the TLS files judges the peer.
///
/// # Errors
/// The peer is refused, or refuses, and was told so; or it has closed.
pub(crate) async fn shake_hands(
    stream: &TcpStream,
    mut session: TlsSession,
    by: u64,
) -> io::Result<Shaken> {
    loop {
        match session.shake(&mut Now(stream)) {
            Ok(Shake::Done) => break,
            Ok(Shake::Reads) => stream.readable().await?,
            Ok(Shake::Writes) => stream.writable().await?,
            Err(error) => {
                // a stream that was never written to does not know yet that it has room, so wait
                // for that and send the alert
                if session.has_backlog() && stream.writable().await.is_ok() {
                    // the error of the handshake is returned, not that of sending the alert
                    let _ = session.flush(&mut Now(stream));
                }
                return Err(error);
            }
        }
    }
    let peer = session.peer().map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
    let shown = Arc::new(Shown::of(peer, session.chain(), by));
    Ok(Shaken { session, shown })
}

/// The result of a handshake.
#[derive(Debug)]
pub(crate) struct Shaken {
    session: TlsSession,
    shown: Arc<Shown>,
}

impl Shaken {
    /// The connection, made of this result and its stream.
    pub(crate) fn on(self, stream: TcpStream) -> SealedConn {
        let Self { session, shown } = self;
        SealedConn { stream, session, shown }
    }
}

impl SealedConn {
    /// The identity of the peer.
    pub(crate) fn peer(&self) -> &dlock_fabric::tls::PeerIdentity {
        &self.shown.peer
    }
}

/// The stream, without waiting: `WouldBlock` where it is not ready.
struct Now<'a>(&'a TcpStream);

impl Read for Now<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(into)
    }
}

impl Write for Now<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncRead for SealedConn {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, session, .. } = self.get_mut();
        loop {
            match session.read(&mut Now(stream), buffer.initialize_unfilled()) {
                Ok(len) => {
                    buffer.advance(len);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ready!(stream.poll_read_ready(cx))?;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for SealedConn {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Self { stream, session, .. } = self.get_mut();
        loop {
            match session.write(&mut Now(stream), bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ready!(stream.poll_write_ready(cx))?;
                }
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, session, .. } = self.get_mut();
        loop {
            match session.flush(&mut Now(stream)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ready!(stream.poll_write_ready(cx))?;
                }
                flushed => return Poll::Ready(flushed),
            }
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().poll_flush(cx))?;
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

impl Conn for SealedConn {
    fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn shown(&self) -> Option<&Arc<Shown>> {
        Some(&self.shown)
    }

    fn seal_secrets(&self, client: ClientId) -> Option<SealSecrets> {
        // the keys can be derived once the handshake is done, so this cannot fail
        self.session.seal_secrets(client).ok()
    }

    fn into_line(self: Box<Self>) -> io::Result<Box<dyn Line>> {
        let Self { stream, session, .. } = *self;
        Ok(Box::new(SealedLine { stream: stream.into_std()?, session }))
    }
}

/// A connection of the command thread.
#[derive(Debug)]
struct SealedLine {
    stream: std::net::TcpStream,
    session: TlsSession,
}

impl Read for SealedLine {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.session.read(&mut &self.stream, into)
    }
}

impl Write for SealedLine {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.session.write(&mut &self.stream, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.session.flush(&mut &self.stream)
    }
}

impl AsFd for SealedLine {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Line for SealedLine {
    fn is_emptied(&self) -> bool {
        !self.session.may_have_more()
    }
}
