// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fair locks that are handed on between neighbours: what they tell each other about a lock, as in
//! the memory that the clients of a host share.

use dlock_core::clock::ServerTime;

use super::plan::Fabric;
use super::state::{Doing, Sys};

/// What was told last about each lock.
#[derive(Debug)]
pub(crate) struct Board(Vec<Option<Told>>);

#[derive(Clone, Copy, Debug)]
struct Told {
    /// Of a lock of this incarnation.
    epoch: u32,
    /// The ticket that has its turn.
    tx: u16,
    /// When its holder was granted the lock. Neighbours have one clock, and these clients have not.
    since: ServerTime,
}

impl Board {
    pub fn new(locks: usize) -> Self {
        Self(vec![None; locks])
    }
}

impl Sys {
    /// A chain of this thread is on its way: if it hands the lock on, that is told.
    pub(super) fn hands_on(&mut self, c: usize, l: usize) {
        let t = &self.clients[c].threads[l];
        let Some(entry) = t.entry.as_ref().filter(|_| t.fabric == Fabric::Verbs) else { return };
        let to = match t.doing {
            Doing::First => t.first.as_ref().and_then(|first| first.hands_on_to(entry)),
            Doing::Chain => t.operation.as_ref().and_then(|op| op.hands_on_to(entry)),
            _ => None,
        };
        let Some((tx, since_ns)) = to else { return };
        let (epoch, age_ns) = (t.epoch, self.client_now(c).local_ns.saturating_sub(since_ns));
        let since = ServerTime(self.server_now().0.saturating_sub(age_ns));
        self.board.0[l] = Some(Told { epoch, tx, since });
    }

    /// Since when the lock has been handed on to the ticket that this thread looks for, on its own
    /// clock, if it was, and the thread sees it.
    pub(super) fn handed(&mut self, c: usize, l: usize) -> Option<u64> {
        let t = &self.clients[c].threads[l];
        let (operation, entry) = (t.operation.as_ref()?, t.entry.as_ref()?);
        let tx = operation.listens(entry).filter(|_| t.fabric == Fabric::Verbs)?;
        let told = self.board.0[l].filter(|told| (told.epoch, told.tx) == (t.epoch, tx))?;
        let age_ns = self.server_now().0.saturating_sub(told.since.0);
        let now_ns = self.thread_now(c, l).local_ns;
        self.rng.chance(900).then(|| now_ns.saturating_sub(age_ns))
    }

    /// This thread has a place of its lock from now on.
    pub(super) fn has_its_place(&mut self, c: usize, l: usize) {
        let now_ns = self.client_now(c).local_ns;
        if let Some(entry) = self.thread(c, l).entry.as_mut() {
            entry.is_got_at(now_ns);
        }
    }
}
