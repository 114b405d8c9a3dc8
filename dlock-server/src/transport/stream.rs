// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames over a stream socket, for tcp and shm.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd};

use dlock_core::ids::ClientId;
use dlock_core::wire::codec::{self, Frame};
use dlock_core::wire::control::Attached;
use dlock_core::wire::status::Status;
use dlock_fabric::os::fds::is_open;
use dlock_fabric::stream::frames::FrameBuffer;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use super::{Fence, Line, Output, Pump};
use crate::host::memory::Memory;

/// Tells the client that it is attached, and hands it the memory that it shares.
pub(super) type Welcome = fn(&mut dyn Line, &Attached, ClientId, &mut Memory) -> io::Result<()>;

/// A connection, and the state of its events.
#[derive(Debug)]
pub(crate) struct StreamPump {
    line: Box<dyn Line>,
    welcome: Welcome,
    token: Token,
    /// Whether there may be bytes to receive.
    readable: bool,
    /// Whether the client has closed its side. Then the pump receives up to the end, although a
    /// short read usually means that nothing is left.
    closing: bool,
    /// Whether the poll also reports room to send.
    wants_room: bool,
}

impl StreamPump {
    /// The pump of a nonblocking connection.
    pub(crate) fn new(line: Box<dyn Line>) -> Self {
        Self::with_welcome(line, |line, attached, _, _| say(line, attached))
    }

    /// As [`new`](Self::new), with another answer to the attach.
    pub(super) fn with_welcome(line: Box<dyn Line>, welcome: Welcome) -> Self {
        let (token, readable, closing, wants_room) = (Token(0), true, false, false);
        Self { line, welcome, token, readable, closing, wants_room }
    }

    /// Looks for the end of a connection on which the client sends nothing.
    ///
    /// # Errors
    /// The connection has ended, or the client has sent bytes.
    pub(super) fn look_for_end(&mut self) -> io::Result<bool> {
        if !self.readable {
            return Ok(false);
        }
        match self.line.read(&mut [0; 1]) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => Err(io::Error::new(ErrorKind::InvalidData, "bytes on the life line")),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.readable = self.closing;
                Ok(false)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn wait_for_room(&mut self, wants_room: bool, registry: &Registry) -> io::Result<()> {
        if self.wants_room == wants_room {
            return Ok(());
        }
        self.wants_room = wants_room;
        let interest = match wants_room {
            true => Interest::READABLE | Interest::WRITABLE,
            false => Interest::READABLE,
        };
        registry.reregister(&mut SourceFd(&self.line.as_fd().as_raw_fd()), self.token, interest)
    }
}

fn say(line: &mut dyn Line, attached: &Attached) -> io::Result<()> {
    let mut bytes = Vec::new();
    codec::encode(&Frame::Attached(*attached), &mut bytes);
    line.write_all(&bytes)
}

impl Pump for StreamPump {
    fn open(&mut self, token: Token, registry: &Registry) -> io::Result<()> {
        self.token = token;
        let fd = self.line.as_fd().as_raw_fd();
        registry.register(&mut SourceFd(&fd), token, Interest::READABLE)
    }

    fn is_open(&self) -> bool {
        is_open(self.line.as_fd())
    }

    fn answer(
        &mut self,
        attached: &Attached,
        client: ClientId,
        memory: &mut Memory,
    ) -> io::Result<()> {
        match attached.status {
            Status::Success => (self.welcome)(&mut *self.line, attached, client, memory),
            _ => say(&mut *self.line, attached),
        }
    }

    fn event(&mut self, event: &mio::event::Event) {
        self.readable = true;
        self.closing |= event.is_read_closed() || event.is_error();
    }

    fn receive(&mut self, input: &mut FrameBuffer) -> io::Result<bool> {
        if !self.readable {
            return Ok(false);
        }
        let space = input.space();
        let room = space.len();
        match self.line.read(space) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => {
                input.filled(len);
                // A short read has emptied the socket: the poll reports when more comes.
                self.readable = len == room || self.closing || !self.line.is_emptied();
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(false)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn peek(&mut self, input: &mut FrameBuffer) -> bool {
        self.readable = true;
        let received = self.receive(input);
        // after an error the next turn receives again, meets the same error, and ends the channel
        self.readable |= received.is_err();
        !matches!(received, Ok(false))
    }

    fn send(&mut self, output: &mut Output, registry: &Registry) -> io::Result<()> {
        while output.unsent() > 0 {
            match self.line.write(output.front()) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(len) => output.taken(len),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    output.block()?;
                    return self.wait_for_room(true, registry);
                }
                Err(error) => return Err(error),
            }
        }
        match self.line.flush() {
            Ok(()) => {
                output.flushed();
                self.wait_for_room(false, registry)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                output.block()?;
                self.wait_for_room(true, registry)
            }
            Err(error) => Err(error),
        }
    }

    fn close(self: Box<Self>, registry: &Registry) -> Option<Box<dyn Fence>> {
        // Fails only if the connection was never registered; closing it has the same effect.
        let _ = registry.deregister(&mut SourceFd(&self.line.as_fd().as_raw_fd()));
        None
    }
}
