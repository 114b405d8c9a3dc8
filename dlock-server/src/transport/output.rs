// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replies that a client has not taken yet, and the bounds on them.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use dlock_core::wire::codec::{self, Cut, HEADER_LEN};

/// Bytes of unread replies above which the client's requests are not read.
const OUTPUT_HIGH: usize = 64 * 1024;
/// Bytes of unread replies above which the client is disconnected.
const OUTPUT_MAX: usize = 1024 * 1024;
/// How long a client may leave all of its replies unread before it is disconnected.
pub(crate) const STALL_MAX: Duration = Duration::from_secs(10);
/// Bytes of buffer that a channel keeps when nothing is unread.
const OUTPUT_KEEP: usize = 16 * 1024;

/// Replies that the client has not taken yet.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Frames are appended here.
    pub(crate) bytes: Vec<u8>,
    sent: usize,
    blocked_since: Option<Instant>,
}

impl Output {
    /// The number of these bytes.
    pub(crate) fn unsent(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Whether so many replies are unread that no further requests are taken.
    pub(crate) fn is_full(&self) -> bool {
        self.unsent() > OUTPUT_HIGH
    }

    /// The bytes that are to be sent.
    pub(crate) fn front(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// The first frame of these bytes.
    pub(crate) fn first_frame(&self) -> Option<&[u8]> {
        let front = self.front();
        match codec::cut(front) {
            Ok(Cut::Whole(header)) => Some(&front[..HEADER_LEN + header.len]),
            _ => None,
        }
    }

    /// Records that the client took `len` bytes.
    pub(crate) fn taken(&mut self, len: usize) {
        self.sent += len;
        self.blocked_since = None;
        if self.unsent() == 0 {
            self.bytes.clear();
            self.bytes.shrink_to(OUTPUT_KEEP);
            self.sent = 0;
        }
    }

    /// Records that everything which the socket's writer took has reached the socket.
    pub(crate) fn flushed(&mut self) {
        self.blocked_since = None;
    }

    /// The client takes no more now; it may take as long as it likes.
    ///
    /// # Errors
    /// Too many bytes are unread.
    pub(crate) fn keep(&mut self) -> io::Result<()> {
        if self.unsent() > OUTPUT_MAX {
            return Err(io::Error::new(ErrorKind::TimedOut, "it leaves its replies unread"));
        }
        if self.sent > OUTPUT_HIGH {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// The client takes no more now; it is disconnected if it does so for [`STALL_MAX`].
    ///
    /// # Errors
    /// As [`keep`](Self::keep).
    pub(crate) fn block(&mut self) -> io::Result<()> {
        self.keep()?;
        self.blocked_since.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// When the client is disconnected if it goes on reading nothing; `None`: nothing is unread.
    pub(crate) fn stalls_at(&self) -> Option<Instant> {
        self.blocked_since.map(|since| since + STALL_MAX)
    }
}
