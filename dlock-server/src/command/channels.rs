// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames of the command channels, and the replies to them.

use dlock_core::budget::work::{self, FRAME_WORK};
use dlock_core::counters::Counter;
use dlock_core::ids::Seq;
use dlock_core::primary::{Effect, Event};
use dlock_core::wire::codec::{self, Frame, FrameError, Kind};
use dlock_core::wire::fabric::Executes;
use dlock_fabric::os::clock::boot_ns;
use mio::Token;

use super::{Core, Worker};
use crate::command::channel::Channel;
use crate::observe::log_limit::{limited, Cause};

/// Work units that one receive from a channel's socket counts as.
const RECEIVE_WORK: u32 = 4;
/// If this many bytes of replies wait, they are sent even though the channel's next turn will add
/// more.
const SEND_FROM: usize = 4 * 1024;

/// The result of a channel's turn.
enum Turn {
    /// Everything that was received is handled.
    Idle,
    /// There is more to handle, or the client must read replies first.
    More,
    /// The channel has failed, for this reason.
    Ended(String),
}

impl Worker {
    /// Handles what a channel has received, up to `budget`. Returns the work, and whether there is
    /// more.
    pub(super) fn serve_channel(&mut self, token: Token, budget: u32) -> (u32, bool) {
        let Some(channel) = self.channels.get_mut(&token) else { return (0, false) };
        let now_ns = boot_ns();
        if self.resting.get(&token).is_some_and(|&until_ns| until_ns > now_ns) {
            // the channel is over its rate: what it has sent waits until the pause is over
            return (0, false);
        }
        if let Some(until_ns) = channel.pace.rests_until(now_ns) {
            let (client, per_second) = (channel.client, self.frames.per_second);
            limited!(
                Cause::FrameRate,
                log::Level::Warn,
                "client {client} sends more than {per_second} frames a second \
                 (frames_per_second_max): the others wait"
            );
            self.resting.insert(token, until_ns);
            self.send(token); // the pause does not hold up answers to earlier requests
            return (0, false);
        }
        self.last_turn = (token, self.last_turn.0 == token);
        let mut frames = 0;
        let (turn, work) = turn(&mut self.core, channel, budget, &mut frames);
        channel.pace.used(now_ns, frames);
        match turn {
            Turn::Idle => {
                self.send(token);
                (work, false)
            }
            Turn::More => {
                if channel.unsent() >= SEND_FROM || !channel.has_input() {
                    self.send(token);
                }
                // If a channel's client must read replies first, the channel gets its next turn
                // once there is room.
                (work, self.channels.get(&token).is_some_and(|channel| !channel.is_full()))
            }
            Turn::Ended(why) => {
                // requests that were executed before the failure are answered, if the client still
                // reads
                self.deliver();
                self.send(token);
                self.end_channel(token, &why);
                (work, false)
            }
        }
    }

    /// Gives turns again to the channels whose pause is over.
    pub(super) fn wake_resting(&mut self) {
        if self.resting.is_empty() {
            return;
        }
        let now_ns = boot_ns();
        let (channels, turns) = (&self.channels, &mut self.turns);
        self.resting.retain(|token, until_ns| {
            let Some(channel) = channels.get(token) else { return false };
            if *until_ns <= now_ns {
                turns.add(channel.client);
            }
            *until_ns > now_ns
        });
    }

    /// Puts replies into their channels, and sends as much as the clients take. A reply to a client
    /// without a channel is dropped: the client asks again when it is back.
    pub(super) fn deliver(&mut self) {
        if self.core.sent.is_empty() {
            return;
        }
        let sent = std::mem::take(&mut self.core.sent);
        let mut touched: Vec<Token> = Vec::new();
        for one in &sent {
            let token = self.sockets.get(&one.client).and_then(|sockets| sockets.channel);
            let Some(token) = token else { continue };
            let Some(channel) = self.channels.get_mut(&token) else { continue };
            let Some(seq) = channel.outer(one.seq) else { continue };
            channel.push(&Frame::Reply(seq, one.reply));
            if touched.last() != Some(&token) {
                touched.push(token);
            }
        }
        for token in touched {
            self.send(token);
        }
        // The list is put back, so that its memory is used again. Ending a channel may have added
        // replies to the list that stood in for it; they are kept.
        let added = std::mem::replace(&mut self.core.sent, sent);
        self.core.sent.clear();
        self.core.sent.extend(added);
    }

    /// Sends the pending replies of a channel; ends the channel if that fails.
    pub(super) fn send(&mut self, token: Token) {
        let Some(channel) = self.channels.get_mut(&token) else { return };
        match channel.send(self.poll.registry()) {
            Ok(()) if channel.stalls_at().is_some() => {
                self.blocked.insert(token);
            }
            Ok(()) => {
                if !self.blocked.is_empty() {
                    self.blocked.remove(&token);
                }
            }
            Err(error) => {
                self.core.primary.locks().count(Counter::SendFail);
                self.end_channel(token, &error.to_string());
            }
        }
    }
}

/// Handles what a channel has received, and receives more, up to `budget`. Returns the result and
/// the work done.
fn turn(core: &mut Core, channel: &mut Channel, budget: u32, frames: &mut u32) -> (Turn, u32) {
    let mut work = 0;
    while work < budget {
        if channel.is_full() {
            return (Turn::More, work);
        }
        let handled = match channel.batch.open {
            Some(seq) => Ok(Some(core.go_on(seq, channel, budget - work))),
            None => {
                let frame = next_frame(core, channel);
                *frames += u32::from(matches!(frame, Ok(Some(_))));
                frame
            }
        };
        match handled {
            Ok(Some(done)) => work += done,
            Ok(None) => match channel.receive() {
                Ok(true) => work += RECEIVE_WORK,
                Ok(false) => return (Turn::Idle, work),
                Err(error) => return (Turn::Ended(error.to_string()), work),
            },
            Err(error) => {
                core.primary.locks().count(Counter::BadRequest);
                return (Turn::Ended(error.to_string()), work);
            }
        }
    }
    (Turn::More, work)
}

/// Handles one frame, or opens a batch. Returns the work; `None`: no frame is complete.
fn next_frame(core: &mut Core, channel: &mut Channel) -> Result<Option<u32>, FrameError> {
    let (client, executes) = (channel.client, channel.fabric.executes());
    let Some((kind, payload)) = channel.input.next()? else { return Ok(None) };
    match (kind, executes) {
        (Kind::Batch, Executes::Primary) => {
            let batch = &mut channel.batch;
            batch.open = Some(codec::decode_batch(payload, &mut batch.chains)?);
            batch.outcomes.clear();
            Ok(Some(FRAME_WORK))
        }
        (Kind::Note, Executes::Primary) => match codec::decode(kind, payload)? {
            Frame::Note(handle, entry) => {
                core.handle(Event::Note { client, handle, entry });
                Ok(Some(FRAME_WORK + 1))
            }
            _ => Err(FrameError::Invalid("kind")),
        },
        (Kind::Request, _) => match codec::decode(kind, payload)? {
            Frame::Request(seq, request) => {
                let seq = channel.inner(seq).ok_or(FrameError::Invalid("request number"))?;
                core.handle(Event::Command { client, seq, request });
                while let Some(effect) = core.primary.poll() {
                    match effect {
                        Effect::Send(sent) => core.sent.push(sent),
                        other => unreachable!("a request on a command channel has {other:?}"),
                    }
                }
                Ok(Some(FRAME_WORK + core.primary.take_work()))
            }
            _ => Err(FrameError::Invalid("kind")),
        },
        // Clients that reach the memory execute chains and ledger writes themselves, so they send
        // no frames with them. Frames of other kinds belong on control connections.
        _ => Err(FrameError::Invalid("kind for a command channel")),
    }
}

impl Core {
    /// Executes chains of the open batch in order, up to `budget`; after the last chain, the
    /// outcomes are the answer. Returns the work.
    fn go_on(&mut self, seq: Seq, channel: &mut Channel, budget: u32) -> u32 {
        let client = channel.client;
        let batch = &mut channel.batch;
        let mut work = 0;
        for chain in &batch.chains[batch.outcomes.len()..] {
            if work >= budget {
                return work;
            }
            work += work::of_chain(chain);
            self.primary.handle(
                self.clock.now(),
                &mut self.memory,
                Event::Chain { client, chain: *chain },
            );
            let Some(Effect::Outcome(outcome)) = self.primary.poll() else {
                unreachable!("every chain has an outcome")
            };
            batch.outcomes.push(outcome);
        }
        batch.open = None;
        codec::encode_outcomes(seq, &batch.outcomes, &mut channel.output.bytes);
        work
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use dlock_core::budget::work::QUANTUM;
    use dlock_core::ids::Epoch;
    use dlock_core::limits::BATCH_MAX;
    use dlock_core::membership::{Opened, Rules};
    use dlock_core::memory::word_op::{Chain, Outcome, Word, WordAddr, WordOp};
    use dlock_core::primary::{Primary, PrimaryConfig};
    use dlock_core::token::TokenFloor;
    use dlock_core::wire::about::About;
    use dlock_core::wire::control::{
        ControlReply, ControlRequest, FabricKind, LockDesc, LockGrant, HORIZON_FOREVER, VERSION,
    };
    use dlock_core::wire::message::{LockType, Request};
    use dlock_fabric::stream::frames::FrameBuffer;
    use dlock_fabric::CpuMemory;

    use crate::host::clock::ServerClock;
    use crate::host::memory::Memory;
    use crate::host::random;
    use crate::transport::{Pump, StreamPump};

    const FRAMES: dlock_core::budget::rate::Rate =
        dlock_core::budget::rate::Rate { per_second: 9, burst: 9 };

    /// The work units of one chain of the test, which is executed in one turn.
    const CHAIN_WORK: u32 = 2;

    /// A channel with a client that has one lock, and the core that serves the channel.
    struct World {
        core: Core,
        channel: Channel,
        peer: UnixStream,
        lock: LockGrant,
        _poll: mio::Poll,
    }

    impl World {
        fn new() -> Self {
            let config = PrimaryConfig {
                epoch: Epoch(1),
                tp_mode: 0,
                recovery_clients: 0,
                clients_max: 4,
                locks_max: 4,
                objects_max: 4,
                absent_grace_ns: None,
                tokens: TokenFloor::default(),
            };
            let primary = Primary::new(config.clone(), Rules::of(&config));
            let memory = Memory::Cpu(CpuMemory::create(8, 8).unwrap());
            let mut core = Core {
                primary: Box::new(primary),
                memory,
                clock: ServerClock::start(),
                sent: Vec::new(),
            };
            let request = ControlRequest::Init {
                version_min: VERSION,
                version_max: VERSION,
                tp_mode: 0,
                horizon_s: HORIZON_FOREVER,
                about: About::NOTHING,
            };
            core.handle(Event::Open { request, caller: 1.into(), draws: random::draws().unwrap() });
            let client = match std::iter::from_fn(|| core.primary.poll()).last() {
                Some(Effect::Opened { opened: Ok(Opened::Admitted(one)), .. }) => one.client,
                other => panic!("{other:?}"),
            };
            core.memory.add_client(client).unwrap();
            let desc = LockDesc {
                name: b"l".to_vec(),
                lock_type: LockType::Atomic,
                lease_s: 0,
                tokens: false,
            };
            let request = ControlRequest::GetLocks(vec![desc]);
            core.handle(Event::Control { client, control: 1, request });
            let locks = match std::iter::from_fn(|| core.primary.poll()).last() {
                Some(Effect::Answer { reply: ControlReply::Locks(locks), .. }) => locks,
                other => panic!("{other:?}"),
            };
            let poll = mio::Poll::new().unwrap();
            let (ours, peer) = UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            let mut pump = Box::new(StreamPump::new(Box::new(ours)));
            pump.open(Token(1), poll.registry()).unwrap();
            let channel = Channel::new((client, 1), FabricKind::Tcp, pump, FRAMES);
            core.primary.take_work();
            let lock = locks[0].unwrap();
            Self { core, channel, peer, lock, _poll: poll }
        }

        fn send(&mut self, frames: &[Frame]) {
            let mut bytes = Vec::new();
            frames.iter().for_each(|frame| codec::encode(frame, &mut bytes));
            self.peer.write_all(&bytes).unwrap();
        }

        fn read(&self) -> Chain {
            let word = WordAddr::new(self.lock.slot, Word::W0);
            Chain::one(WordOp::Read { addr: word })
        }

        /// Serves a turn, and checks that its work is bounded, however many frames have come.
        fn turn(&mut self, budget: u32) -> Turn {
            let (turn, work) = turn(&mut self.core, &mut self.channel, budget, &mut 0);
            assert!(work <= budget + CHAIN_WORK.max(FRAME_WORK), "{work} of {budget}");
            turn
        }

        /// Takes the answers that wait for the client.
        fn answers(&mut self) -> Vec<Frame> {
            let mut buffer = FrameBuffer::new();
            let mut frames = Vec::new();
            let mut bytes = std::mem::take(&mut self.channel.output.bytes);
            while !bytes.is_empty() {
                let space = buffer.space();
                let len = space.len().min(bytes.len());
                space[..len].copy_from_slice(&bytes[..len]);
                buffer.filled(len);
                bytes.drain(..len);
                while let Some((kind, payload)) = buffer.next().unwrap() {
                    frames.push(codec::decode(kind, payload).unwrap());
                }
            }
            frames
        }
    }

    #[test]
    fn a_batch_is_executed_in_parts_and_answered_when_all_its_chains_are_done() {
        let mut w = World::new();
        w.send(&[Frame::Batch(Seq(1), vec![w.read(); BATCH_MAX])]);
        let mut turns = 0;
        while w.channel.output.bytes.is_empty() {
            assert!(matches!(w.turn(10), Turn::More));
            turns += 1;
            let done = w.channel.batch.outcomes.len();
            assert!(done <= turns * 10, "{done} chains in {turns} turns");
        }
        assert!(turns >= BATCH_MAX * CHAIN_WORK as usize / (10 + CHAIN_WORK as usize));
        match &w.answers()[..] {
            [Frame::Outcomes(Seq(1), outcomes)] => {
                assert_eq!(outcomes.len(), BATCH_MAX);
                assert!(outcomes.iter().all(|o| matches!(o, Outcome::Done(_))), "{outcomes:?}");
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(w.turn(10), Turn::Idle));
    }

    #[test]
    fn what_comes_behind_a_batch_in_parts_waits_for_its_end() {
        let mut w = World::new();
        let batch = |w: &World, seq| Frame::Batch(Seq(seq), vec![w.read(); 20]);
        w.send(&[batch(&w, 1), Frame::Request(Seq(2), Request::Ping), batch(&w, 3)]);
        let mut order = Vec::new();
        for _ in 0..1_000 {
            let turn = w.turn(5);
            for frame in w.answers() {
                match frame {
                    Frame::Outcomes(seq, _) => order.push(seq.0),
                    other => panic!("{other:?}"),
                }
            }
            let replies = std::mem::take(&mut w.core.sent);
            order.extend(replies.iter().map(|sent| w.channel.outer(sent.seq).unwrap().0));
            if matches!(turn, Turn::Idle) {
                break;
            }
        }
        assert_eq!(order, [1, 2, 3]);
    }

    #[test]
    fn a_turn_does_its_budget_however_many_batches_have_come() {
        let mut w = World::new();
        let frames: Vec<Frame> =
            (1..=64).map(|n| Frame::Batch(Seq(n), vec![w.read(); BATCH_MAX])).collect();
        w.send(&frames);
        let mut answered = 0;
        let mut turns = 0;
        loop {
            turns += 1;
            let turn = w.turn(QUANTUM);
            for frame in w.answers() {
                answered += 1;
                assert!(matches!(frame, Frame::Outcomes(Seq(n), _) if n == answered));
            }
            assert!(answered <= turns, "at most one batch a turn");
            if matches!(turn, Turn::Idle) {
                break;
            }
        }
        assert_eq!(answered, 64);
    }
}
