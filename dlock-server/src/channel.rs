// SPDX-License-Identifier: MIT OR Apache-2.0
//! One command channel: a nonblocking socket with a bounded buffer on either side.
//!
//! With verbs, frames travel over queue pairs, and the socket is the life line: nothing is sent
//! on it, and its end is the end of the channel.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use dlock_core::codec::{self, Cut, Frame, HEADER_LEN};
use dlock_core::control::FabricKind;
use dlock_core::ids::{ClientId, Seq};
use dlock_core::verb::{Chain, Outcome};
use dlock_fabric::frames::FrameBuffer;
use dlock_fabric::verbs::{Arrival, MessageError};
use dlock_fabric::VerbsPeer;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use crate::mailbox::Socket;

/// Bytes of unread replies above which no more is read from the client.
const OUTPUT_HIGH: usize = 64 * 1024;
/// Bytes of unread replies above which the client is disconnected.
const OUTPUT_MAX: usize = 1024 * 1024;
/// Bytes of frames above which a verbs client that leaves its replies unread is disconnected.
const ARRIVED_MAX: usize = 64 * 1024;
/// How long a client may leave all of its replies unread before it is disconnected.
pub(crate) const STALL_MAX: Duration = Duration::from_secs(10);
/// Bytes of buffer that a channel keeps when nothing is unread.
const OUTPUT_KEEP: usize = 16 * 1024;

/// Bits of a request's number that are the client's; the others are the number of the channel.
const SEQ_BITS: u32 = 40;
/// Channels one client may have, one after the other.
pub(crate) const CHANNELS_MAX: u64 = 1 << (64 - SEQ_BITS);

/// A client's command channel.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) client: ClientId,
    pub(crate) fabric: FabricKind,
    /// Which of its client's channels it is.
    pub(crate) number: u64,
    pub(crate) input: FrameBuffer,
    pub(crate) output: Output,
    socket: Socket,
    /// The client's queue pairs, if its frames travel there.
    verbs: Option<Box<VerbsPeer>>,
    /// Frames that came over them.
    arrived: Vec<u8>,
    token: Token,
    /// There may be bytes to receive.
    readable: bool,
    /// The client has closed its side: receive until the end, however short the reads are.
    closing: bool,
    /// The poll also tells when there is room to send.
    wants_room: bool,
    /// The batch frame that is being executed.
    pub(crate) batch: Batch,
}

/// A batch frame that is executed chain by chain, in one turn or in several.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Its number, until it is answered.
    pub(crate) open: Option<Seq>,
    /// All its chains.
    pub(crate) chains: Vec<Chain>,
    /// Of those that were executed.
    pub(crate) outcomes: Vec<Outcome>,
}

/// Bytes the client has not taken yet.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Frames are appended here.
    pub(crate) bytes: Vec<u8>,
    sent: usize,
    blocked_since: Option<Instant>,
}

impl Output {
    fn unsent(&self) -> usize {
        self.bytes.len() - self.sent
    }

    fn emptied(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(OUTPUT_KEEP);
        self.sent = 0;
    }

    /// Sends each frame as one message. A client that takes no more has all the time it wants: it
    /// looks for replies when it waits for one, and its queue pairs tell when it is gone.
    fn send_messages(&mut self, peer: &mut VerbsPeer) -> io::Result<()> {
        while let Some(frame) = first_frame(&self.bytes[self.sent..]) {
            match peer.send(frame) {
                Ok(()) => self.sent += frame.len(),
                Err(MessageError::Busy) if self.unsent() <= OUTPUT_MAX => {
                    if self.sent > OUTPUT_HIGH {
                        self.bytes.drain(..self.sent);
                        self.sent = 0;
                    }
                    return Ok(());
                }
                Err(MessageError::Busy) => {
                    return Err(io::Error::new(ErrorKind::TimedOut, "it leaves its replies unread"))
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        self.emptied();
        Ok(())
    }
}

/// The first of the frames that were encoded here.
fn first_frame(bytes: &[u8]) -> Option<&[u8]> {
    match codec::cut(bytes) {
        Ok(Cut::Whole(header)) => Some(&bytes[..HEADER_LEN + header.len]),
        _ => None,
    }
}

impl Channel {
    /// Takes the connection over and has it polled under this token.
    pub(crate) fn new(
        (client, number): (ClientId, u64),
        fabric: FabricKind,
        socket: Socket,
        token: Token,
        registry: &Registry,
    ) -> io::Result<Self> {
        registry.register(&mut SourceFd(&socket.as_raw_fd()), token, Interest::READABLE)?;
        Ok(Self {
            client,
            fabric,
            number,
            input: FrameBuffer::new(),
            output: Output::default(),
            socket,
            verbs: None,
            arrived: Vec::new(),
            token,
            readable: true,
            closing: false,
            wants_room: false,
            batch: Batch::default(),
        })
    }

    /// Frames travel over these queue pairs.
    pub(crate) fn carried_by(mut self, peer: Box<VerbsPeer>) -> Self {
        self.verbs = Some(peer);
        self
    }

    /// Takes the connection out of the poll and closes it; the queue pairs are still to be fenced.
    pub(crate) fn close(self, registry: &Registry) -> Option<Box<VerbsPeer>> {
        // Fails only if it was never registered; closing removes it anyway.
        let _ = registry.deregister(&mut SourceFd(&self.socket.as_raw_fd()));
        self.verbs
    }

    /// Something has completed on the queue pairs: a frame came, or there is room to send. All
    /// of it is taken at once, since room to send comes with the client's frames.
    ///
    /// # Errors
    /// The client is gone, broke the rules, or sends on without reading its replies.
    pub(crate) fn arrived(&mut self, arrival: &Arrival) -> io::Result<()> {
        let Some(peer) = &mut self.verbs else { return Ok(()) };
        peer.take(arrival, &mut self.arrived).map_err(io::Error::other)?;
        match self.arrived.len() > ARRIVED_MAX {
            true => Err(io::Error::new(ErrorKind::TimedOut, "it leaves its replies unread")),
            false => Ok(()),
        }
    }

    /// The connection, for its first frame.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The poll says that something happened.
    pub(crate) fn event(&mut self, event: &mio::event::Event) {
        self.readable = true;
        self.closing |= event.is_read_closed() || event.is_error();
    }

    /// The number under which the primary knows a request of this channel: late replies to
    /// requests of the client's former channels, which counted from 1 as well, differ from it.
    /// `None`: no channel can have sent so many.
    pub(crate) fn inner(&self, seq: Seq) -> Option<Seq> {
        (seq.0 >> SEQ_BITS == 0).then_some(Seq(self.number << SEQ_BITS | seq.0))
    }

    /// The number the client gave the request; `None`: it was sent on another channel.
    pub(crate) fn outer(&self, seq: Seq) -> Option<Seq> {
        (seq.0 >> SEQ_BITS == self.number).then_some(Seq(seq.0 & ((1 << SEQ_BITS) - 1)))
    }

    /// Whether so many replies are unread that no more requests are taken.
    pub(crate) fn is_full(&self) -> bool {
        self.output.unsent() > OUTPUT_HIGH
    }

    /// Bytes of replies that the client has not taken.
    pub(crate) fn unsent(&self) -> usize {
        self.output.unsent()
    }

    /// Whether something that was received is not handled to its end.
    pub(crate) fn has_input(&self) -> bool {
        self.batch.open.is_some() || !self.input.is_empty()
    }

    /// Receives once; `false`: nothing is there now.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn receive(&mut self) -> io::Result<bool> {
        if !self.arrived.is_empty() {
            let space = self.input.space();
            let len = space.len().min(self.arrived.len());
            space[..len].copy_from_slice(&self.arrived[..len]);
            self.input.filled(len);
            self.arrived.drain(..len);
            return Ok(true);
        }
        if !self.readable {
            return Ok(false);
        }
        if self.verbs.is_some() {
            return self.look_at_life_line();
        }
        let space = self.input.space();
        let room = space.len();
        match self.socket.read(space) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => {
                self.input.filled(len);
                // A short read has emptied the socket: the poll tells when more comes.
                self.readable = len == room || self.closing;
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

    fn look_at_life_line(&mut self) -> io::Result<bool> {
        match self.socket.read(&mut [0; 1]) {
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

    /// Receives without having been told that something is there; whether its turn has come. A
    /// notification that is still to come finds nothing then.
    pub(crate) fn peek(&mut self) -> bool {
        if self.verbs.is_some() {
            return false; // its frames arrive
        }
        self.readable = true;
        let received = self.receive();
        self.readable |= received.is_err(); // its turn finds the same end
        !matches!(received, Ok(false))
    }

    /// Appends a frame to what is to be sent.
    pub(crate) fn push(&mut self, frame: &Frame) {
        codec::encode(frame, &mut self.output.bytes);
    }

    /// Sends what the socket takes, or the client's receive ring; the poll, or an arrival, tells
    /// when it takes more.
    ///
    /// # Errors
    /// The connection has ended, or the client leaves too much unread.
    pub(crate) fn send(&mut self, registry: &Registry) -> io::Result<()> {
        if let Some(peer) = &mut self.verbs {
            return self.output.send_messages(peer);
        }
        let Self { output, socket, .. } = self;
        while output.unsent() > 0 {
            match socket.write(&output.bytes[output.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(len) => {
                    output.sent += len;
                    output.blocked_since = None;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return self.wait_for_room(registry);
                }
                Err(error) => return Err(error),
            }
        }
        output.emptied();
        if self.wants_room {
            self.wants_room = false;
            self.register_again(registry, Interest::READABLE)?;
        }
        Ok(())
    }

    fn wait_for_room(&mut self, registry: &Registry) -> io::Result<()> {
        let output = &mut self.output;
        if output.unsent() > OUTPUT_MAX {
            return Err(io::Error::new(ErrorKind::TimedOut, "it leaves its replies unread"));
        }
        if output.sent > OUTPUT_HIGH {
            output.bytes.drain(..output.sent);
            output.sent = 0;
        }
        output.blocked_since.get_or_insert_with(Instant::now);
        if !self.wants_room {
            self.wants_room = true;
            self.register_again(registry, Interest::READABLE | Interest::WRITABLE)?;
        }
        Ok(())
    }

    fn register_again(&mut self, registry: &Registry, interest: Interest) -> io::Result<()> {
        registry.reregister(&mut SourceFd(&self.socket.as_raw_fd()), self.token, interest)
    }

    /// When the client is disconnected if it goes on reading nothing; `None`: nothing is unread.
    pub(crate) fn stalls_at(&self) -> Option<Instant> {
        self.output.blocked_since.map(|since| since + STALL_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::clock::ServerTime;
    use dlock_core::message::Reply;
    use std::os::unix::net::UnixStream;

    fn pair() -> (mio::Poll, Channel, UnixStream) {
        let poll = mio::Poll::new().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let client = (ClientId::new(1).unwrap(), 3);
        let socket = Socket::Unix(ours);
        let registry = poll.registry();
        let channel = Channel::new(client, FabricKind::Tcp, socket, Token(1), registry).unwrap();
        (poll, channel, theirs)
    }

    fn pong(n: u64) -> Frame {
        Frame::Reply(Seq(n), Reply::Pong { at: ServerTime(n) })
    }

    #[test]
    fn a_client_that_reads_nothing_is_held_back_and_then_disconnected() {
        let (poll, mut channel, theirs) = pair();
        let mut pushed = 0;
        let error = loop {
            for _ in 0..100 {
                pushed += 1;
                channel.push(&pong(pushed));
            }
            if let Err(error) = channel.send(poll.registry()) {
                break error;
            }
            assert!(pushed < 1_000_000, "never disconnected");
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(channel.is_full() && channel.stalls_at().is_some());
        drop(theirs);
    }

    #[test]
    fn replies_arrive_whole_and_in_order_when_the_client_reads_late() {
        let (poll, mut channel, mut theirs) = pair();
        let mut wanted = Vec::new();
        for n in 1..=8_000 {
            channel.push(&pong(n));
            codec::encode(&pong(n), &mut wanted);
            channel.send(poll.registry()).unwrap();
        }
        let reader = std::thread::spawn(move || {
            let mut came = vec![0; wanted.len()];
            theirs.read_exact(&mut came).unwrap();
            assert!(came == wanted);
        });
        while channel.stalls_at().is_some() {
            channel.send(poll.registry()).unwrap();
            std::thread::yield_now();
        }
        reader.join().unwrap();
        assert!(!channel.is_full());
    }

    #[test]
    fn replies_to_requests_of_another_channel_are_told_apart() {
        let (_poll, mut channel, _theirs) = pair();
        let largest = Seq((1 << SEQ_BITS) - 1);
        for seq in [Seq(0), Seq(1), largest] {
            assert_eq!(channel.outer(channel.inner(seq).unwrap()), Some(seq));
        }
        assert_eq!(channel.inner(Seq(largest.0 + 1)), None);
        let inner = channel.inner(Seq(1)).unwrap();
        channel.number = CHANNELS_MAX - 1;
        assert_eq!(channel.outer(inner), None);
        assert_eq!(channel.outer(channel.inner(largest).unwrap()), Some(largest));
    }

    #[test]
    fn a_peek_finds_what_no_notification_has_told_of() {
        let (_poll, mut channel, mut theirs) = pair();
        assert!(!channel.peek());
        let mut bytes = Vec::new();
        codec::encode(&pong(1), &mut bytes);
        theirs.write_all(&bytes).unwrap();
        assert!(channel.peek());
        assert!(channel.input.next().unwrap().is_some());
        assert!(!channel.peek());
        drop(theirs);
        assert!(channel.peek(), "the end is something to see to");
        assert!(channel.receive().is_err());
    }

    #[test]
    fn the_end_of_a_connection_is_an_error() {
        let (_poll, mut channel, theirs) = pair();
        assert!(!channel.receive().unwrap());
        drop(theirs);
        channel.readable = true;
        assert!(channel.receive().is_err());
    }
}
