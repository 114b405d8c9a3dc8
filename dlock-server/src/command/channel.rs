// SPDX-License-Identifier: MIT OR Apache-2.0
//! A command channel: a pump that carries its frames, with a bounded buffer on either side.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use dlock_core::budget::rate::{Pace, Rate};
use dlock_core::ids::{ClientId, Seq};
use dlock_core::memory::word_op::{Chain, Outcome};
use dlock_core::wire::codec::{self, Frame};
use dlock_core::wire::control::{Attached, FabricKind};
use dlock_fabric::stream::frames::FrameBuffer;
use dlock_fabric::verbs::{Arrival, PeerId};
use mio::Registry;

use crate::host::memory::Memory;
use crate::transport::{Fence, Output, Pump, Shown};

/// How many low bits of a request's number the client sets; the bits above them are the number of
/// its channel.
const SEQ_BITS: u32 = 40;
/// The most channels that one client may have, one after the other: their numbers have the other
/// bits of a request's number.
pub(crate) const CHANNELS_MAX: u64 = 1 << (64 - SEQ_BITS);

/// A client's command channel.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) client: ClientId,
    pub(crate) fabric: FabricKind,
    /// The number of this channel among the channels of its client.
    pub(crate) number: u64,
    pub(crate) input: FrameBuffer,
    pub(crate) output: Output,
    pump: Box<dyn Pump>,
    /// Measures how often the client sends frames.
    pub(crate) pace: Pace,
    /// What the peer has shown in its TLS handshake; `None`: the channel has no TLS.
    pub(crate) shown: Option<Arc<Shown>>,
    /// The batch frame that is being executed.
    pub(crate) batch: Batch,
}

/// A batch frame that is executed chain by chain, in one turn or in several.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// The number of the frame, until it is answered.
    pub(crate) open: Option<Seq>,
    /// All chains of the frame.
    pub(crate) chains: Vec<Chain>,
    /// The outcomes of the chains executed so far.
    pub(crate) outcomes: Vec<Outcome>,
}

impl Channel {
    /// A channel whose frames `pump` carries, at the given rate; the poll knows the pump already.
    pub(crate) fn new(
        (client, number): (ClientId, u64),
        fabric: FabricKind,
        pump: Box<dyn Pump>,
        rate: Rate,
    ) -> Self {
        let (input, output, batch) = (FrameBuffer::new(), Output::default(), Batch::default());
        let (pace, shown) = (Pace::new(rate), None);
        Self { client, fabric, number, input, output, pump, pace, shown, batch }
    }

    /// Closes the channel. Returns the fence for what can still act on the memory, if there is any.
    pub(crate) fn close(self, registry: &Registry) -> Option<Box<dyn Fence>> {
        self.pump.close(registry)
    }

    /// Tells the client that it has this channel.
    ///
    /// # Errors
    /// The client did not take the answer.
    pub(crate) fn answer(&mut self, attached: &Attached, memory: &mut Memory) -> io::Result<()> {
        self.pump.answer(attached, self.client, memory)
    }

    /// See [`Pump::device_ids`].
    pub(crate) fn device_ids(&self) -> Vec<PeerId> {
        self.pump.device_ids()
    }

    /// See [`Pump::arrived`].
    pub(crate) fn arrived(&mut self, arrival: &Arrival) -> io::Result<()> {
        self.pump.arrived(arrival)
    }

    /// Handles an event of the poll.
    pub(crate) fn event(&mut self, event: &mio::event::Event) {
        self.pump.event(event);
    }

    /// The number under which the primary knows a request of this channel. Each channel counts from
    /// 1; the channel's number in it tells late replies to requests of former channels apart.
    /// `None`: no channel can have sent so many requests.
    pub(crate) fn inner(&self, seq: Seq) -> Option<Seq> {
        (seq.0 >> SEQ_BITS == 0).then_some(Seq(self.number << SEQ_BITS | seq.0))
    }

    /// The number that the client gave the request; `None`: the request came on another channel.
    pub(crate) fn outer(&self, seq: Seq) -> Option<Seq> {
        (seq.0 >> SEQ_BITS == self.number).then_some(Seq(seq.0 & ((1 << SEQ_BITS) - 1)))
    }

    /// Whether so many replies are unread that no further requests are taken.
    pub(crate) fn is_full(&self) -> bool {
        self.output.is_full()
    }

    /// Bytes of replies that the client has not taken.
    pub(crate) fn unsent(&self) -> usize {
        self.output.unsent()
    }

    /// Whether received bytes, or a batch, are not fully handled yet.
    pub(crate) fn has_input(&self) -> bool {
        self.batch.open.is_some() || !self.input.is_empty()
    }

    /// Receives once; `false`: there is nothing to receive now.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn receive(&mut self) -> io::Result<bool> {
        self.pump.receive(&mut self.input)
    }

    /// See [`Pump::peek`].
    pub(crate) fn peek(&mut self) -> bool {
        self.pump.peek(&mut self.input)
    }

    /// Appends a frame to what is to be sent.
    pub(crate) fn push(&mut self, frame: &Frame) {
        codec::encode(frame, &mut self.output.bytes);
    }

    /// Sends as much as the client takes.
    ///
    /// # Errors
    /// The connection has ended, or the client leaves too much unread.
    pub(crate) fn send(&mut self, registry: &Registry) -> io::Result<()> {
        self.pump.send(&mut self.output, registry)
    }

    /// When the client is disconnected if it goes on reading nothing; `None`: nothing is unread.
    pub(crate) fn stalls_at(&self) -> Option<Instant> {
        self.output.stalls_at()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::StreamPump;
    use dlock_core::clock::ServerTime;
    use dlock_core::wire::message::Reply;
    use std::io::{ErrorKind, Read, Write};
    use std::os::unix::net::UnixStream;

    fn pair() -> (mio::Poll, Channel, UnixStream) {
        let poll = mio::Poll::new().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let client = (ClientId::new(1).unwrap(), 3);
        let mut pump = Box::new(StreamPump::new(Box::new(ours)));
        pump.open(mio::Token(1), poll.registry()).unwrap();
        let channel = Channel::new(client, FabricKind::Tcp, pump, Rate { per_second: 1, burst: 1 });
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
        assert!(channel.peek() && channel.receive().is_err());
    }
}
