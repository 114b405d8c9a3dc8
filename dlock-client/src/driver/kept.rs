// SPDX-License-Identifier: MIT OR Apache-2.0
//! The locks that a client keeps after their release: one question to the primary about each, until
//! it is answered.
//!
//! ```text
//!   ClientLock: Keep granted ─ Keeper::keeps ─▶ Kept ─ Instance::asks_for_others ─▶ Listen
//!   others want the lock, or the channel has ended ─▶ Instance::others_want ─ idle ─▶ GuardWait
//! ```
//! `dlock_core::lock` decides what the client keeps, and what it does when others want it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock, Weak};

use dlock_core::ids::{LockId, Seq};
use dlock_core::memory::exec::Executor;

use crate::driver::futures::Tasks;
use crate::instance::Instance;

/// What the driver does for one client.
pub(crate) struct Driven {
    /// Its futures and renewals, and what it keeps.
    pub(crate) tasks: Arc<Tasks>,
    /// What its locks need to be kept; set for a client made by `init_shared`.
    pub(crate) keeper: OnceLock<Arc<Keeper>>,
}

impl Default for Driven {
    fn default() -> Self {
        Self { tasks: Arc::new(Tasks::new()), keeper: OnceLock::new() }
    }
}

/// What the locks of a client need to be kept: the client, and its work of the driver.
pub(crate) struct Keeper {
    instance: Weak<Instance>,
    tasks: Arc<Tasks>,
}

impl Keeper {
    pub(crate) fn new(instance: &Arc<Instance>, tasks: &Arc<Tasks>) -> Self {
        Self { instance: Arc::downgrade(instance), tasks: Arc::clone(tasks) }
    }

    /// Has the driver look after a lock that the client keeps from now on. Returns whether it does.
    pub(crate) fn keeps(&self, lock: LockId) -> bool {
        let kept = Kept { instance: self.instance.clone(), lock, asked: None, is_answered: false };
        self.tasks.keep(kept).is_ok()
    }
}

/// A lock that the client keeps.
pub(crate) struct Kept {
    pub(crate) instance: Weak<Instance>,
    pub(crate) lock: LockId,
    /// The question under way, and the session in which the client has asked.
    asked: Option<(Arc<dyn Executor>, Seq)>,
    /// Whether the question was answered while the lock was in use.
    is_answered: bool,
}

impl Kept {
    fn is_answered(&mut self) -> bool {
        if let (false, Some((exec, seq))) = (self.is_answered, &self.asked) {
            self.is_answered = !matches!(exec.reply(*seq, 0), Ok(None));
        }
        self.is_answered
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some((exec, seq)) = &self.asked {
            exec.forget(*seq);
        }
    }
}

/// What the driver does next for a kept lock.
pub(crate) enum Next {
    /// Nothing: the client does not keep it any more.
    Over,
    /// The lock is in use just now.
    Later,
    /// The client has asked.
    Asked(Arc<dyn Executor>, Seq),
    /// The client gives the lock back.
    GiveBack(Arc<Instance>),
}

/// The locks that one client keeps, in the order in which it came to keep them.
#[derive(Default)]
pub(super) struct Keeping {
    of: BTreeMap<u64, Kept>,
    numbers: HashMap<LockId, u64>,
    last: u64,
}

impl Keeping {
    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    pub(super) fn put(&mut self, kept: Kept) {
        self.last += 1;
        if let Some(before) = self.numbers.insert(kept.lock, self.last) {
            self.of.remove(&before);
        }
        self.of.insert(self.last, kept);
    }

    /// Asks about what the client has come to keep, and takes the locks out that it is to give
    /// back: those that others want, and the oldest beyond `max`.
    pub(super) fn turn(&mut self, max: usize) -> Vec<(Arc<Instance>, LockId)> {
        let (mut back, mut over) = (Vec::new(), Vec::new());
        let beyond = self.of.len().saturating_sub(max);
        for (at, (&number, kept)) in self.of.iter_mut().enumerate() {
            let Some(instance) = kept.instance.upgrade() else {
                over.push(number);
                continue;
            };
            let next = match kept.asked.is_some() {
                false => instance.asks_for_others(kept.lock),
                true if at < beyond || kept.is_answered() => instance.others_want(kept.lock),
                true => continue,
            };
            match next {
                Next::Over => over.push(number),
                Next::Later => {}
                Next::Asked(exec, seq) => kept.asked = Some((exec, seq)),
                Next::GiveBack(instance) => {
                    back.push((instance, kept.lock));
                    over.push(number);
                }
            }
        }
        for number in over {
            if let Some(kept) = self.of.remove(&number) {
                self.numbers.remove(&kept.lock);
            }
        }
        back
    }

    /// The sessions whose answers are awaited, each with whether its lock is to be looked at again
    /// soon.
    pub(super) fn sessions(&self) -> impl Iterator<Item = (bool, Option<&Arc<dyn Executor>>)> {
        let soon = |kept: &Kept| kept.asked.is_none() || kept.is_answered;
        self.of.values().map(move |kept| (soon(kept), kept.asked.as_ref().map(|one| &one.0)))
    }
}
