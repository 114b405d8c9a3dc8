// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bugs that can be planted around the core, one at a time, to show that a model notices them.

/// A rule of the protocol that a model breaks. The core stays as it is: the bug is in the parts
/// that carry its messages and word operations, or in what they tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A release writes the word without comparing it (rule 1).
    BlindRelease,
    /// A clock claims to be exact while it is not (rule 2).
    ClockTooSure,
    /// The arbiter's clock runs ahead, so that graces and leases end early (rules 2 and 4).
    ArbiterAhead,
    /// A recount gets the first reading of each ledger a second time (rule 5).
    LedgersReadOnce,
    /// A reader is added to the count before its intent is in the ledger (rule 5).
    NoteAfterAdd,
    /// What a gone client held is undone while its last chain may still arrive (rule 6).
    ForgottenBeforeFenced,
    /// A request that arrives twice is served twice (rule 7).
    ServedTwice,
    /// A grant that crosses the cancel of its wait is dropped (rule 8).
    GrantDropped,
    /// The waiters bit never reaches the word.
    WaitersBitLost,
    /// `Wake` never arrives.
    WakeLost,
    /// A reader that finds an owner does not step back.
    NoStepBack,
    /// The arbiter never learns that a time it asked for has come.
    TimersLost,
    /// A client leaves its hold out of the claims at a successor.
    HoldUntold,
    /// A client's place in a queue is claimed as if its ticket had been taken when it came to the
    /// successor.
    PlacesByArrival,
    /// A client claims a lock at the successor while a chain on that lock goes on at the
    /// predecessor.
    ToldInChain,
}
