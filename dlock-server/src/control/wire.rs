// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames on sockets of the control thread: one at a time, bounded in size and in time.

use std::io;
use std::time::Duration;

use dlock_core::ids::Seq;
use dlock_core::limits::{CONTROL_WAIT_S, FRAME_LEN_MAX};
use dlock_core::membership::Gone;
use dlock_core::wire::codec::{self, Frame, FrameError, Kind, HEADER_LEN};
use dlock_core::wire::control::{Attached, ControlReply};
use dlock_core::wire::status::Status;
use dlock_fabric::stream::frames::FrameBuffer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Time from the first byte of a frame to its last, and for the client to take a reply.
const FRAME_WAIT: Duration = Duration::from_secs(CONTROL_WAIT_S);
/// The most payload bytes of a connection's first frame, whose sender is not known yet.
pub(super) const FIRST_LEN_MAX: usize = 256;
/// The most payload bytes of any later frame.
pub(crate) const LEN_MAX: usize = FRAME_LEN_MAX - HEADER_LEN;
/// After a refusal at most this many bytes of the peer are read, for at most this long, before the
/// connection is closed: a socket closed with unread bytes resets, and the refusal is lost.
const LINGER_BYTES: usize = 128 * 1024;
const LINGER_WAIT: Duration = Duration::from_millis(500);

/// Why there is no next frame.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// The peer has closed the connection between two frames.
    #[error("the peer has closed the connection")]
    Ended,
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// The frame came too slowly.
    #[error("a frame was not complete in time")]
    Slow,
    /// The bytes are no valid frame. The number is the request's; 0 where it cannot be told.
    #[error("{1}")]
    Frame(Seq, FrameError),
}

/// Reads frames, and nothing beyond them: after the first frame another thread may read the
/// connection.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    buffer: FrameBuffer,
}

impl Reader {
    /// Waits for the next frame of at most `len_max` payload bytes; `heard` is called when its
    /// first byte is here.
    pub(crate) async fn next(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        len_max: usize,
        heard: impl FnOnce(),
    ) -> Result<Frame, WireError> {
        self.buffer.bound(len_max);
        self.buffer.shrink();
        if self.receive(stream).await? == 0 {
            return Err(WireError::Ended);
        }
        heard();
        timeout(FRAME_WAIT, self.rest(stream)).await.unwrap_or(Err(WireError::Slow))
    }

    async fn receive(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> Result<usize, WireError> {
        let received = stream.read(self.buffer.missing().map_err(unknown)?).await?;
        self.buffer.filled(received);
        Ok(received)
    }

    async fn rest(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> Result<Frame, WireError> {
        loop {
            if let Some((kind, payload)) = self.buffer.next().map_err(unknown)? {
                return codec::decode(kind, payload).map_err(|error| match error {
                    FrameError::Version { seq, .. } => WireError::Frame(seq, error),
                    _ => WireError::Frame(number_of(kind, payload), error),
                });
            }
            // a peer that closes within a frame may still read
            if self.receive(stream).await? == 0 {
                return Err(unknown(FrameError::Truncated));
            }
        }
    }
}

/// The error of a frame whose request number is not known.
fn unknown(error: FrameError) -> WireError {
    WireError::Frame(Seq(0), error)
}

impl WireError {
    /// What the error says about the client: it has closed, or it is silent.
    pub(super) fn gone(&self) -> Gone {
        match self {
            Self::Broken(error) => gone_by(error),
            // the client stopped in the middle of a frame
            Self::Slow => Gone::Silent,
            // the client has closed, or is refused and the connection closed
            Self::Ended | Self::Frame(..) => Gone::Closed,
        }
    }
}

/// Whether the peer's host has closed the broken connection, or does not answer.
pub(super) fn gone_by(error: &io::Error) -> Gone {
    use io::ErrorKind as K;
    match error.kind() {
        K::ConnectionReset | K::ConnectionAborted | K::BrokenPipe | K::UnexpectedEof => {
            Gone::Closed
        }
        _ => Gone::Silent,
    }
}

/// The request number of a control frame that is invalid after that number.
fn number_of(kind: Kind, payload: &[u8]) -> Seq {
    match (kind, payload.first_chunk()) {
        (Kind::Control, Some(bytes)) => Seq(u64::from_le_bytes(*bytes)),
        _ => Seq(0),
    }
}

/// Answers a control request.
///
/// # Errors
/// The connection broke, or the client did not take the answer in time.
pub(super) async fn answer(
    stream: &mut (impl AsyncWrite + Unpin),
    seq: Seq,
    reply: ControlReply,
) -> io::Result<()> {
    send(stream, &Frame::ControlReply(seq, reply)).await
}

/// Sends a frame.
///
/// # Errors
/// The connection broke, or the peer did not take it in time.
pub(crate) async fn send(stream: &mut (impl AsyncWrite + Unpin), frame: &Frame) -> io::Result<()> {
    let mut bytes = Vec::new();
    codec::encode(frame, &mut bytes);
    let sent = async {
        stream.write_all(&bytes).await?;
        stream.flush().await // the stream may still hold bytes
    };
    timeout(FRAME_WAIT, sent).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Tells a peer on a TCP connection why it is not served; the caller closes the connection.
pub(super) async fn refuse(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    seq: Seq,
    status: Status,
) {
    refuse_by(stream, seq, ControlReply::Error(status)).await;
}

/// As [`refuse`], by a reply that says more than a status.
pub(super) async fn refuse_by(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    seq: Seq,
    reply: ControlReply,
) {
    part(stream, &Frame::ControlReply(seq, reply)).await;
}

/// Tells a peer on the Unix socket, or one that wants to attach, why it is not served.
pub(crate) async fn refuse_attach(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    status: Status,
) {
    let attached = Attached::bare(status);
    part(stream, &Frame::Attached(attached)).await;
}

/// Sends a last frame, and gives the peer a moment to take it.
async fn part(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), frame: &Frame) {
    // Best effort: a peer that is gone needs no answer.
    if send(stream, frame).await.is_err() || stream.shutdown().await.is_err() {
        return;
    }
    linger(stream).await;
}

/// Reads for a moment what a refused peer still sends.
pub(super) async fn linger(stream: &mut (impl AsyncRead + Unpin)) {
    let drain = async {
        let (mut rest, mut bytes) = (LINGER_BYTES, [0; 1_024]);
        while let Ok(len @ 1..) = stream.read(&mut bytes).await {
            rest = rest.saturating_sub(len);
            if rest == 0 {
                break;
            }
        }
    };
    let _ = timeout(LINGER_WAIT, drain).await;
}

/// The status that answers bytes that are no valid frame.
pub(super) fn status_of(error: FrameError) -> Status {
    match error {
        FrameError::Version { .. } | FrameError::ForeignVersion(_) => Status::VersionMismatch,
        _ => Status::Error,
    }
}
