// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which actions were under way, or began, during which fault.

use super::plan::{Fault, FAULTS};

/// An action of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    /// `TryLock`, exclusive.
    TryExclusive,
    /// `TryLock`, shared.
    TryShared,
    /// `Lock`, exclusive.
    LockExclusive,
    /// `Lock`, shared.
    LockShared,
    /// `Unlock` of a hold.
    Unlock,
    /// `Extend`.
    Extend,
    /// A hold is entered again.
    Reentry,
    /// A wait is cancelled.
    Cancel,
    /// A ticket is asked about again.
    Ask,
    /// A ticket is given up.
    Abandon,
    /// A lock is held.
    Hold,
    /// A lost answer is cleared up.
    Resolve,
    /// Handles of locks are got.
    Get,
    /// A handle of a lock is released.
    Release,
    /// A client joins.
    Join,
    /// A client joins again.
    Rejoin,
    /// A client claims its holds at a successor.
    Claim,
    /// `TryLock` of many locks.
    BatchTry,
    /// `Unlock` of many locks.
    BatchUnlock,
    /// `Extend` of many locks.
    BatchExtend,
    /// An asynchronous operation.
    Async,
    /// An object is created.
    ObjectCreate,
    /// An object is got.
    ObjectGet,
    /// An object is released.
    ObjectRelease,
    /// An object is destroyed.
    ObjectDestroy,
    /// Fetch and add on an object.
    ObjectFaa,
    /// Compare and swap on an object.
    ObjectCas,
    /// An object is read.
    ObjectSnapshot,
}

/// Every action, in the order of the report.
pub const ACTIONS: [(Action, &str); 28] = [
    (Action::TryExclusive, "try-exclusive"),
    (Action::TryShared, "try-shared"),
    (Action::LockExclusive, "lock-exclusive"),
    (Action::LockShared, "lock-shared"),
    (Action::Unlock, "unlock"),
    (Action::Extend, "extend"),
    (Action::Reentry, "reentry"),
    (Action::Cancel, "cancel"),
    (Action::Ask, "ask-again"),
    (Action::Abandon, "abandon"),
    (Action::Hold, "hold"),
    (Action::Resolve, "resolve"),
    (Action::Get, "get"),
    (Action::Release, "release"),
    (Action::Join, "join"),
    (Action::Rejoin, "rejoin"),
    (Action::Claim, "claim"),
    (Action::BatchTry, "batch-try"),
    (Action::BatchUnlock, "batch-unlock"),
    (Action::BatchExtend, "batch-extend"),
    (Action::Async, "async"),
    (Action::ObjectCreate, "object-create"),
    (Action::ObjectGet, "object-get"),
    (Action::ObjectRelease, "object-release"),
    (Action::ObjectDestroy, "object-destroy"),
    (Action::ObjectFaa, "object-faa"),
    (Action::ObjectCas, "object-cas"),
    (Action::ObjectSnapshot, "object-read"),
];

/// How often each pair of action and fault occurred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage {
    counts: [[u64; FAULTS.len()]; ACTIONS.len()],
}

impl Default for Coverage {
    fn default() -> Self {
        Self::new()
    }
}

impl Coverage {
    /// A report without occurrences.
    pub fn new() -> Self {
        Self { counts: [[0; FAULTS.len()]; ACTIONS.len()] }
    }

    /// Counts an occurrence.
    pub fn count(&mut self, action: Action, fault: Fault) {
        self.counts[action as usize][fault as usize] += 1;
    }

    /// How often the pair occurred.
    pub fn of(&self, action: Action, fault: Fault) -> u64 {
        self.counts[action as usize][fault as usize]
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Coverage) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            for (a, b) in mine.iter_mut().zip(theirs) {
                *a += b;
            }
        }
    }

    /// Pairs that never occurred.
    pub fn missing(&self) -> Vec<(&'static str, &'static str)> {
        let pairs = ACTIONS.iter().flat_map(|a| FAULTS.iter().map(move |f| (a, f)));
        pairs.filter(|(a, f)| self.of(a.0, f.0) == 0).map(|(a, f)| (a.1, f.1)).collect()
    }

    /// A table for people.
    pub fn report(&self) -> String {
        let mut out = format!("{:15}", "");
        for (_, name) in FAULTS {
            out += &format!(" {name:>14}");
        }
        for (action, name) in ACTIONS {
            out += &format!("\n{name:15}");
            for (fault, _) in FAULTS {
                out += &format!(" {:>14}", self.of(action, fault));
            }
        }
        out
    }
}
