// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queue pairs that cannot be fenced for a while: the channel is closed, and what its client has
//! posted before is executed all the same.

use dlock_core::clock::NS;
use dlock_core::ids::ClientId;

use super::plan::Fabric;
use super::state::{Sys, Unit};

/// So long at most they cannot be fenced.
const UNFENCED_NS_MAX: u64 = 8 * NS;

/// The queue pairs of a channel that is closed.
#[derive(Clone, Copy, Debug)]
pub struct Unfenced {
    id: ClientId,
    /// The client, its incarnation and its channel.
    channel: (usize, u16, u32),
    until: u64,
}

impl Sys {
    /// Tries to fence all queue pairs of a client, those of its open channel too if that is about
    /// to be closed. Whether some can still act.
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

    /// Whose word operation this is, on a channel that is closed and could not be fenced.
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
