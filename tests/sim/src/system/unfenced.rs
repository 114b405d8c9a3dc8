// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queue pairs that cannot be fenced for a while: the channel is closed, but operations that its
//! client has posted before are still executed.

use std::collections::VecDeque;

use dlock_core::clock::NS;
use dlock_core::ids::ClientId;
use dlock_core::memory::word_op::WordOp;

use super::plan::Fabric;
use super::state::{Ev, Sys, Unit};

/// The longest time for which queue pairs cannot be fenced.
const UNFENCED_NS_MAX: u64 = 8 * NS;
/// Operations that were posted on an earlier channel are executed within this time.
const STRAGGLE_NS_MAX: u64 = 2 * NS;

/// The queue pairs of a closed channel.
#[derive(Clone, Copy, Debug)]
pub struct Unfenced {
    id: ClientId,
    /// The client, its incarnation and its channel.
    channel: (usize, u16, u32),
    until: u64,
}

impl Sys {
    /// Tries to fence all queue pairs of a client; `closes`: also those of its open channel, which
    /// is about to be closed. Returns whether some can still act.
    pub(super) fn cannot_be_fenced(&mut self, client: ClientId, closes: bool) -> bool {
        let (now, is_calm) = (self.now, self.calm);
        self.unfenced.retain(|one| one.id != client || one.until > now && !is_calm);
        let (rate, session) = (self.plan.unfenced, self.session(client).copied());
        let session = session.filter(|s| closes && s.gen != 0 && s.fabric == Fabric::Verbs);
        if let Some(s) = session.filter(|_| rate > 0 && !is_calm) {
            if self.rng.chance(rate) {
                let until = now + self.rng.below(UNFENCED_NS_MAX);
                let channel = (usize::from(s.client), s.inc, s.gen);
                self.unfenced.push(Unfenced { id: client, channel, until });
            }
        }
        let acts = self.unfenced.iter().any(|one| one.id == client);
        if acts {
            self.log(|| format!("primary: {} cannot be fenced", client.get()));
        }
        acts
    }

    /// The client has another channel: operations posted on its earlier ones are executed some
    /// time.
    pub(super) fn leaves_stragglers(&mut self, c: usize) {
        if self.plan.unfenced == 0 || self.calm {
            return;
        }
        let client = &mut self.clients[c];
        let (inc, gen) = (client.inc, client.gen);
        let is_old = |unit: &(u16, u32, Unit)| {
            let is_posted = matches!(unit.2, Unit::Batch { .. } | Unit::Note { .. });
            is_posted && unit.0 == inc && unit.1 != gen
        };
        let (old, rest): (VecDeque<_>, _) = client.up.drain(..).partition(is_old);
        client.up = rest;
        if client.stragglers.is_empty() && !old.is_empty() {
            let ns = self.rng.below(STRAGGLE_NS_MAX);
            self.after(ns, Ev::Straggle(c as u8));
        }
        self.clients[c].stragglers.extend(old);
    }

    /// The next word operation of earlier channels is executed, unless its queue pair was fenced.
    pub(super) fn straggles(&mut self, c: usize) {
        let client = &mut self.clients[c];
        let Some((inc, gen, unit)) = client.stragglers.pop_front() else { return };
        let acts = self.acts_unfenced((c, inc, gen), &unit).filter(|_| self.clients[c].inc == inc);
        match (acts, unit) {
            (Some(id), Unit::Batch { lock, tok, chain, mut values, more }) => {
                let word_op = chain.ops()[values.as_slice().len()];
                values.push(self.word_op(self.epoch, id, &word_op));
                if values.as_slice().len() < chain.ops().len() {
                    let rest = Unit::Batch { lock, tok, chain, values, more };
                    self.clients[c].stragglers.push_front((inc, gen, rest));
                }
            }
            (Some(id), Unit::Note { handle, entry, .. }) => {
                let word_op = WordOp::WriteLedger { handle, value: entry.into_bits() };
                self.word_op(self.epoch, id, &word_op);
            }
            _ => {}
        }
        if !self.clients[c].stragglers.is_empty() {
            let ns = self.takes(100);
            self.after(ns, Ev::Straggle(c as u8));
        }
    }

    /// The client of this word operation on a closed channel that could not be fenced; `None`: it
    /// is not executed.
    pub(super) fn acts_unfenced(
        &self,
        channel: (usize, u16, u32),
        unit: &Unit,
    ) -> Option<ClientId> {
        let is_posted = matches!(unit, Unit::Batch { .. } | Unit::Note { .. });
        let one = self.unfenced.iter().find(|one| one.channel == channel && is_posted)?;
        self.alive.then_some(one.id)
    }
}
