// SPDX-License-Identifier: MIT OR Apache-2.0
//! The questions to the primary about holds whose programs listen, until they are answered.
//!
//! ```text
//!   look_after_hold ─▶ Instance::asks_of ─ Listen ─▶ Questions ─ answered ─▶ is_answered ─▶ Events
//!                                                        └ a new question replaces the earlier
//! ```
//! `dlock_core::lock::Listening` decides when the client asks about a hold, and what the program
//! hears.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use dlock_core::ids::{LockId, Seq};
use dlock_core::memory::exec::Executor;
use dlock_core::wire::message::Reply;
use dlock_core::wire::status::Status;

use crate::instance::Instance;

/// One question about one hold.
pub(crate) struct Asked {
    pub(crate) instance: Weak<Instance>,
    pub(crate) lock: LockId,
    /// The number of the hold.
    pub(crate) hold: u64,
    /// The executor of the session in which the client asked.
    pub(crate) exec: Arc<dyn Executor>,
    pub(crate) seq: Seq,
    /// The answer, kept while the lock is in use.
    pub(crate) answer: Option<Result<Reply, Status>>,
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.exec.forget(self.seq);
    }
}

/// The questions of one client, at most one for each lock.
#[derive(Default)]
pub(super) struct Questions(HashMap<LockId, Asked>);

impl Questions {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps a question that was sent; it replaces an earlier one about the same lock.
    pub(super) fn put(&mut self, asked: Asked) {
        self.0.insert(asked.lock, asked);
    }

    /// Gives up the question about this lock.
    pub(super) fn forget(&mut self, lock: LockId) {
        self.0.remove(&lock);
    }

    /// Hands on the answers that have come; returns the locks about which the client asks again,
    /// and when.
    pub(super) fn take_answers(&mut self) -> Vec<(LockId, u64)> {
        let mut again = Vec::new();
        self.0.retain(|&lock, asked| {
            let Some(instance) = asked.instance.upgrade() else { return false };
            let answer = asked.answer.take();
            let answer = answer.or_else(|| asked.exec.reply(asked.seq, 0).transpose());
            let Some(reply) = answer else { return !instance.has_ended(asked) };
            match instance.is_answered(asked, reply) {
                Some(at_ns) => again.push((lock, at_ns)),
                None => asked.answer = Some(reply),
            }
            asked.answer.is_some()
        });
        again
    }

    /// The executors whose answers are awaited, each with whether an answer has come that waits for
    /// the lock: that one is to be looked at again soon.
    pub(super) fn sessions(&self) -> impl Iterator<Item = (bool, &Arc<dyn Executor>)> {
        self.0.values().map(|asked| (asked.answer.is_some(), &asked.exec))
    }
}
