// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames of the command channels, and the replies to them.

use dlock_core::codec::{self, Frame, FrameError, Kind};
use dlock_core::control::FabricKind;
use dlock_core::ids::{ClientId, Handle, Seq};
use dlock_core::verb::{Chain, Outcome, Verb};
use dlock_core::words::LedgerEntry;
use mio::Token;

use super::{Core, Worker};
use crate::channel::Channel;

/// Frames of one channel handled in one round.
const FRAMES_PER_TURN: usize = 32;
/// Channels served in one round.
const CHANNELS_PER_ROUND: usize = 256;

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
    /// Gives the channels that have something to do one turn each.
    pub(super) fn serve_channels(&mut self) -> bool {
        let turns = self.ready.len().min(CHANNELS_PER_ROUND);
        for _ in 0..turns {
            let Some(token) = self.ready.pop_front() else { break };
            let Some(channel) = self.channels.get_mut(&token) else { continue };
            channel.listed = false;
            self.last_turn = (token, self.last_turn.0 == token);
            match turn(&mut self.core, channel) {
                Turn::Idle => self.send(token),
                Turn::More => {
                    self.send(token);
                    self.list(token);
                }
                Turn::Ended(why) => {
                    // What was executed before is answered, if the client still reads.
                    self.deliver();
                    self.send(token);
                    self.end_channel(token, &why);
                }
            }
        }
        turns > 0
    }

    /// Puts a channel on the list for its next turn, unless it must be read from first: then its
    /// turn comes when there is room for replies.
    fn list(&mut self, token: Token) {
        if let Some(channel) = self.channels.get_mut(&token) {
            if !channel.listed && !channel.is_full() {
                channel.listed = true;
                self.ready.push_back(token);
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

/// Handles what a channel has received, and receives more, within the bounds of one turn.
fn turn(core: &mut Core, channel: &mut Channel) -> Turn {
    for _ in 0..FRAMES_PER_TURN {
        if channel.is_full() {
            return Turn::More;
        }
        match next_frame(core, channel) {
            Ok(true) => {}
            Ok(false) => match channel.receive() {
                Ok(true) => {}
                Ok(false) => return Turn::Idle,
                Err(error) => return Turn::Ended(error.to_string()),
            },
            Err(error) => {
                core.primary.count(BAD_REQUEST);
                return Turn::Ended(error.to_string());
            }
        }
    }
    Turn::More
}

/// Handles one frame; `false`: none is complete.
fn next_frame(core: &mut Core, channel: &mut Channel) -> Result<bool, FrameError> {
    let (client, fabric) = (channel.client, channel.fabric);
    let Some((kind, payload)) = channel.input.next()? else { return Ok(false) };
    match (kind, fabric) {
        (Kind::Batch, FabricKind::Tcp) => {
            let seq = codec::decode_batch(payload, &mut core.chains)?;
            core.batch(client, seq, &mut channel.output.bytes);
        }
        (Kind::Note, FabricKind::Tcp) => match codec::decode(kind, payload)? {
            Frame::Note(handle, entry) => core.note(client, handle, entry)?,
            _ => return Err(FrameError::Invalid("kind")),
        },
        (Kind::Request, _) => match codec::decode(kind, payload)? {
            Frame::Request(seq, request) => {
                let seq = channel.inner(seq).ok_or(FrameError::Invalid("request number"))?;
                let now = core.now();
                let Core { primary, memory, sent, .. } = core;
                primary.command(now, memory, client, seq, request, sent);
            }
            _ => return Err(FrameError::Invalid("kind")),
        },
        // Shm clients execute chains and notes themselves; everything else has no place here.
        _ => return Err(FrameError::Invalid("kind for a command channel")),
    }
    Ok(true)
}

impl Core {
    /// Executes the chains that were just decoded, in order, and appends their outcomes.
    fn batch(&mut self, client: ClientId, seq: Seq, output: &mut Vec<u8>) {
        let now = self.now();
        self.outcomes.clear();
        for chain in &self.chains {
            let checked = self.primary.check_chain(now, &mut self.memory, client, chain);
            let outcome = match checked {
                Ok(_) => self.memory.execute_chain(client, chain),
                Err(status) => Outcome::Refused(status),
            };
            if let (Ok(true), Outcome::Done(values)) = (checked, &outcome) {
                self.primary.executed(client, chain, values);
            }
            self.outcomes.push(outcome);
        }
        codec::encode_outcomes(seq, &self.outcomes, output);
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
