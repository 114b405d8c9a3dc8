// SPDX-License-Identifier: MIT OR Apache-2.0
//! Defects that can be planted around the core, one at a time, to see that a model notices.

/// A rule of the protocol that is broken. The core itself stays as it is: what is broken is what
/// carries it, or what it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A release writes the word without comparing it (rule 1).
    BlindRelease,
    /// A clock claims to be exact while it is not (rule 2).
    ClockTooSure,
    /// The arbiter's clock runs ahead, so that graces and leases end early (rules 2 and 4).
    ArbiterAhead,
    /// A recount sees its first reading of the ledgers twice (rule 5).
    LedgersReadOnce,
    /// A reader is added before the intent is noted (rule 5).
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
    /// The arbiter is never told that a time it asked for has come.
    TimersLost,
    /// What a client holds is left out of what it tells a successor.
    HoldUntold,
    /// Places in a queue are told in the order in which their clients come to the successor.
    PlacesByArrival,
    /// A successor is told of a lock while a chain on it goes on at the predecessor.
    ToldInChain,
}
