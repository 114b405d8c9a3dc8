// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chains that a thread posts without waiting, and polls later.
//!
//! ```text
//!   lists   | taken | done | under way | under way |   slots are free again from the front on,
//!             ▲ front                       ▲ posted   once a list is done and taken
//! ```
//! A list whose outcome is not polled does not block the lists behind it: when room is needed, its
//! outcome is copied to `aside`.

use std::collections::{HashMap, VecDeque};

use dlock_core::memory::word_op::{Outcome, Values};

use super::completion_pump::CompletionPump;
use crate::stream::inbox::PENDING_MAX;
use crate::verbs::device::poster::{Notify, PostError, Poster, RemoteOp};

/// One chain that was posted.
#[derive(Clone, Copy, Debug)]
struct List {
    /// The poster's count after this list.
    seq: u32,
    verbs: u8,
    /// Bit i: operation i is a ledger write, whose value is 0.
    notes: u8,
    /// Bit i: operation i has two values.
    pairs: u8,
    taken: bool,
}

/// The poster of chains that are posted without waiting, and their outcomes.
#[derive(Debug)]
pub(super) struct Ring {
    poster: Poster,
    lists: VecDeque<List>,
    /// The number of the first list in `lists`.
    first: u64,
    aside: HashMap<u64, Outcome>,
    /// The poster's count after the last list with a read.
    last_read: Option<u32>,
}

/// Why a chain was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// Earlier chains that take up the room are under way.
    Busy,
    /// Too many outcomes were not polled yet.
    TooMany,
    /// The queue pair is in error. A part of the chain may have taken effect.
    Broken,
}

impl Ring {
    pub(super) fn new(poster: Poster) -> Self {
        Self { poster, lists: VecDeque::new(), first: 1, aside: HashMap::new(), last_read: None }
    }

    /// Posts one chain; returns its number.
    pub(super) fn post(
        &mut self,
        pump: &CompletionPump,
        verbs: &[RemoteOp],
    ) -> Result<u64, NoRoom> {
        self.make_room(pump, verbs.len())?;
        let mut batch = self.poster.batch();
        let reads = self.last_read.is_some_and(|seq| !pump.is_ring_done(seq));
        batch.behind(reads || pump.is_strict(), pump.is_ring_busy() || pump.is_strict());
        let (mut notes, mut pairs) = (0, 0);
        for (i, word_op) in verbs.iter().enumerate() {
            batch.push(word_op).map_err(|error| match error {
                PostError::Full => NoRoom::Busy,
                _ => NoRoom::Broken,
            })?;
            notes |= u8::from(matches!(word_op, RemoteOp::Write { .. })) << i;
            pairs |= u8::from(matches!(word_op, RemoteOp::ReadPair { .. })) << i;
        }
        let posted = batch.ring(Notify::Yes).map_err(|_| NoRoom::Broken)?;
        pump.ring_posted(posted.seq);
        let reads = |word_op: &RemoteOp| {
            matches!(word_op, RemoteOp::Read { .. } | RemoteOp::ReadPair { .. })
        };
        if verbs.iter().any(reads) {
            self.last_read = Some(posted.seq);
        }
        // a chain has at most CHAIN_OPS_MAX verbs
        let verbs = verbs.len() as u8;
        self.lists.push_back(List { seq: posted.seq, verbs, notes, pairs, taken: false });
        Ok(self.first + self.lists.len() as u64 - 1)
    }

    /// The count up to which requests must complete before there can be room.
    pub(super) fn front(&self) -> Option<u32> {
        self.lists.front().map(|list| list.seq)
    }

    /// Takes the outcome of a chain, once; `None`: the chain is under way.
    pub(super) fn take(&mut self, pump: &CompletionPump, number: u64) -> Option<Outcome> {
        if let Some(outcome) = self.aside.remove(&number) {
            return Some(outcome);
        }
        // in this order, so that a completion before the end of the session counts
        let broken = pump.is_broken();
        let index = number.checked_sub(self.first).and_then(|i| usize::try_from(i).ok());
        let Some(list) = index.and_then(|i| self.lists.get(i)).filter(|list| !list.taken) else {
            // not posted in this session, or taken already
            return Some(Outcome::Unknown);
        };
        let outcome = match pump.is_ring_done(list.seq) {
            true => self.outcome(list),
            false if broken => Outcome::Unknown,
            false => return None,
        };
        if let Some(list) = index.and_then(|i| self.lists.get_mut(i)) {
            list.taken = true;
        }
        self.drop_front(pump);
        Some(outcome)
    }

    fn make_room(&mut self, pump: &CompletionPump, verbs: usize) -> Result<(), NoRoom> {
        self.drop_front(pump);
        while self.poster.free() < verbs {
            match self.lists.front().copied().filter(|list| pump.is_ring_done(list.seq)) {
                None => return Err(NoRoom::Busy),
                Some(_) if self.aside.len() >= PENDING_MAX => return Err(NoRoom::TooMany),
                Some(list) => {
                    self.aside.insert(self.first, self.outcome(&list));
                    self.pop(list.seq);
                }
            }
        }
        Ok(())
    }

    /// Frees the slots of the first lists that are done and taken.
    fn drop_front(&mut self, pump: &CompletionPump) {
        while let Some(&list) = self.lists.front() {
            if !list.taken || !pump.is_ring_done(list.seq) {
                return;
            }
            self.pop(list.seq);
        }
    }

    fn pop(&mut self, seq: u32) {
        self.lists.pop_front();
        self.first += 1;
        self.poster.settle_to(seq);
    }

    fn outcome(&self, list: &List) -> Outcome {
        let mut values = Values::new();
        let first = list.seq.wrapping_sub(u32::from(list.verbs));
        for i in 0..list.verbs {
            let seq = first.wrapping_add(u32::from(i) + 1);
            let value = match list.notes >> i & 1 {
                1 => Some(0),
                _ => self.poster.value(seq),
            };
            let second = (list.pairs >> i & 1 == 1).then(|| self.poster.second_value(seq));
            match (value, second) {
                (Some(value), None) => values.push(value),
                (Some(value), Some(Some(second))) => {
                    values.push(value);
                    values.push(second);
                }
                _ => return Outcome::Unknown,
            }
        }
        Outcome::Done(values)
    }
}
