// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which clients' messages may be lost, wake-ups among them.
//!
//! ```text
//!   fenced, or gives its channel up ─▶ cut ─▶ has another channel, or has ended
//!                                        │
//!                                        └ each lock that it has got may lose a wake-up now
//! ```
//! A missing message is a violation if it is another client's, or about a lock for which the client
//! has no handle.

use dlock_core::lock::Op;
use dlock_core::memory::word_op::{Chain, Outcome, Values, WordOp};
use dlock_core::wire::message::LockType;

use super::state::Sys;

/// Which processes and locks may lose messages without a violation.
#[derive(Debug, Default)]
pub struct Losses {
    /// Processes that were fenced: a client and its incarnation.
    fenced: Vec<(usize, u16)>,
    /// Processes whose channel has ended, and that have no other channel yet.
    cut: Vec<(usize, u16)>,
    /// For each lock, the last time at which a message about it may have been lost.
    at: Vec<u64>,
}

impl Losses {
    /// No losses, for this many locks.
    pub fn new(locks: usize) -> Self {
        Self { at: vec![0; locks], ..Self::default() }
    }

    /// Whether a message about this lock may have been lost since `since`.
    pub fn may_be_lost(&self, lock: usize, since: u64) -> bool {
        self.at[lock] >= since && self.at[lock] > 0
    }
}

impl Sys {
    /// Records that the primary fences this process.
    pub(super) fn is_fenced(&mut self, c: usize, inc: u16) {
        self.losses.fenced.push((c, inc));
        self.is_cut_from(c, inc);
    }

    /// Records that the channel of this process has ended.
    pub(super) fn is_cut_from(&mut self, c: usize, inc: u16) {
        self.losses.cut.push((c, inc));
        if self.clients[c].inc != inc {
            self.losses.at.fill(self.now); // the locks it had got are unknown
        }
        self.notes_losses();
    }

    /// Records that the client has a new channel: its messages arrive from now on.
    pub(super) fn has_channel(&mut self, c: usize) {
        self.notes_losses();
        self.losses.cut.retain(|cut| cut.0 != c);
    }

    /// Whether this client's process was fenced.
    pub(super) fn was_fenced(&self, c: usize) -> bool {
        self.losses.fenced.contains(&(c, self.clients[c].inc))
    }

    /// A planted bug: the outcome of a chain that releases a fair lock, if it is not executed
    /// because another client was fenced.
    pub(super) fn lost_beside_fenced(&self, c: usize, l: usize, chain: &Chain) -> Option<Outcome> {
        let is_release = self.clients[c].threads[l].op == Op::Unlock;
        let others = self.losses.fenced.iter().any(|one| one.0 != c);
        let [WordOp::Cas { expect, .. }, rest @ ..] = chain.ops() else { return None };
        let is_fair = self.plan.locks[l] == LockType::Fair;
        if !self.bugs.lost_beside_fenced || !is_release || !others || !is_fair {
            return None;
        }
        let mut values = Values::new();
        values.push(*expect);
        rest.iter().for_each(|_| values.push(0));
        Some(Outcome::Done(values))
    }

    /// Records that a message about each lock of a client without a channel may be lost now.
    pub(super) fn notes_losses(&mut self) {
        let (now, clients, losses) = (self.now, &self.clients, &mut self.losses);
        losses.cut.retain(|&(c, inc)| clients[c].inc == inc);
        for &(c, _) in &losses.cut {
            let got = clients[c].threads.iter().map(|t| t.entry.is_some());
            for (at, _) in losses.at.iter_mut().zip(got).filter(|(_, got)| *got) {
                *at = now;
            }
        }
    }
}
