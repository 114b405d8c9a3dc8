// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames of the command channels, and the replies to them.

use dlock_core::codec::{self, Frame, FrameError, Kind};
use dlock_core::control::FabricKind;
use dlock_core::ids::{ClientId, Handle, Seq};
use dlock_core::verb::{Chain, Outcome, Verb};
use dlock_core::words::LedgerEntry;
use dlock_core::work::{self, FRAME_WORK};
use mio::Token;

use super::{Core, Worker};
use crate::channel::Channel;

/// Work of receiving bytes.
const RECEIVE_WORK: u32 = 4;
/// Bytes of replies from which on they are sent although the channel's next turn adds some.
const SEND_FROM: usize = 4 * 1024;

/// Counters of the C API's `debug_stats_code`.
const SEND_FAIL: usize = 29;
const BAD_REQUEST: usize = 42;

/// What became of a channel's turn.
enum Turn {
    /// Everything that was there is done.
    Idle,
    /// There is more, or its replies must be read first.
    More,
    /// It cannot be used any further.
    Ended(String),
}

impl Worker {
    /// Handles what a channel has received, as far as its turn goes; the work, and whether there
    /// is more.
    pub(super) fn serve_channel(&mut self, token: Token, budget: u32) -> (u32, bool) {
        let Some(channel) = self.channels.get_mut(&token) else { return (0, false) };
        self.last_turn = (token, self.last_turn.0 == token);
        let (turn, work) = turn(&mut self.core, channel, budget);
        match turn {
            Turn::Idle => {
                self.send(token);
                (work, false)
            }
            Turn::More => {
                if channel.unsent() >= SEND_FROM || !channel.has_input() {
                    self.send(token);
                }
                // One that must be read from first has its turn when there is room for replies.
                (work, self.channels.get(&token).is_some_and(|channel| !channel.is_full()))
            }
            Turn::Ended(why) => {
                // What was executed before is answered, if the client still reads.
                self.deliver();
                self.send(token);
                self.end_channel(token, &why);
                (work, false)
            }
        }
    }

    /// Brings replies to their channels, and as far as possible to their clients. Whoever has no
    /// channel now asks again when it has come back.
    pub(super) fn deliver(&mut self) {
        if self.core.sent.is_empty() {
            return;
        }
        let sent = std::mem::take(&mut self.core.sent);
        let mut touched: Vec<Token> = Vec::new();
        for one in &sent {
            let token = self.members.get(&one.client).and_then(|member| member.channel);
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
        // Its memory is used again; ending a channel may have added to the new list.
        let added = std::mem::replace(&mut self.core.sent, sent);
        self.core.sent.clear();
        self.core.sent.extend(added);
    }

    /// Sends what a channel has to send, and ends the channel if that cannot be.
    fn send(&mut self, token: Token) {
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
                self.core.primary.count(SEND_FAIL);
                self.end_channel(token, &error.to_string());
            }
        }
    }
}

/// Handles what a channel has received, and receives more, as far as the budget goes; and the
/// work that was done.
fn turn(core: &mut Core, channel: &mut Channel, budget: u32) -> (Turn, u32) {
    let mut work = 0;
    while work < budget {
        if channel.is_full() {
            return (Turn::More, work);
        }
        let handled = match channel.batch.open {
            Some(seq) => Ok(Some(core.go_on(seq, channel, budget - work))),
            None => next_frame(core, channel),
        };
        match handled {
            Ok(Some(done)) => work += done,
            Ok(None) => match channel.receive() {
                Ok(true) => work += RECEIVE_WORK,
                Ok(false) => return (Turn::Idle, work),
                Err(error) => return (Turn::Ended(error.to_string()), work),
            },
            Err(error) => {
                core.primary.count(BAD_REQUEST);
                return (Turn::Ended(error.to_string()), work);
            }
        }
    }
    (Turn::More, work)
}

/// Handles one frame, or begins with it; the work, `None`: none is complete.
fn next_frame(core: &mut Core, channel: &mut Channel) -> Result<Option<u32>, FrameError> {
    let (client, fabric) = (channel.client, channel.fabric);
    let Some((kind, payload)) = channel.input.next()? else { return Ok(None) };
    match (kind, fabric) {
        (Kind::Batch, FabricKind::Tcp) => {
            let batch = &mut channel.batch;
            batch.open = Some(codec::decode_batch(payload, &mut batch.chains)?);
            batch.outcomes.clear();
            Ok(Some(FRAME_WORK))
        }
        (Kind::Note, FabricKind::Tcp) => match codec::decode(kind, payload)? {
            Frame::Note(handle, entry) => {
                core.note(client, handle, entry)?;
                Ok(Some(FRAME_WORK + 1))
            }
            _ => Err(FrameError::Invalid("kind")),
        },
        (Kind::Request, _) => match codec::decode(kind, payload)? {
            Frame::Request(seq, request) => {
                let seq = channel.inner(seq).ok_or(FrameError::Invalid("request number"))?;
                let now = core.now();
                let Core { primary, memory, sent, .. } = core;
                primary.command(now, memory, client, seq, request, sent);
                Ok(Some(FRAME_WORK + primary.take_work()))
            }
            _ => Err(FrameError::Invalid("kind")),
        },
        // Shm clients execute chains and notes themselves; everything else has no place here.
        _ => Err(FrameError::Invalid("kind for a command channel")),
    }
}

impl Core {
    /// Executes chains of the batch that was begun, in order, as far as the budget goes; after
    /// the last one their outcomes are the answer. Returns the work.
    fn go_on(&mut self, seq: Seq, channel: &mut Channel, budget: u32) -> u32 {
        let (now, client) = (self.now(), channel.client);
        let batch = &mut channel.batch;
        let mut work = 0;
        for chain in &batch.chains[batch.outcomes.len()..] {
            if work >= budget {
                return work;
            }
            work += work::of_chain(chain);
            let checked = self.primary.check_chain(now, &mut self.memory, client, chain);
            let outcome = match checked {
                Ok(_) => self.memory.execute_chain(client, chain),
                Err(status) => Outcome::Refused(status),
            };
            if let (Ok(true), Outcome::Done(values)) = (checked, &outcome) {
                self.primary.executed(client, chain, values);
            }
            batch.outcomes.push(outcome);
        }
        batch.open = None;
        codec::encode_outcomes(seq, &batch.outcomes, &mut channel.output.bytes);
        work
    }

    /// Writes an entry of a client's ledger for it. An entry of a lock that it has given back
    /// meanwhile is nobody's.
    fn note(
        &mut self,
        client: ClientId,
        handle: Handle,
        entry: LedgerEntry,
    ) -> Result<(), FrameError> {
        if self.primary.check_note(client, handle).is_err() {
            return Ok(());
        }
        let chain = Chain::one(Verb::Note { handle, value: entry.into_bits() });
        match self.memory.execute_chain(client, &chain) {
            Outcome::Done(values) => {
                self.primary.executed(client, &chain, &values);
                Ok(())
            }
            _ => Err(FrameError::Invalid("ledger entry")),
        }
    }
}
