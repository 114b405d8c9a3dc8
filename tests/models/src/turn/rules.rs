// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules of the fair lock, each of which can be switched off to see that the model needs it.

/// A rule that is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A client relies on a turn only while the claim runs that its ledger held before.
    ClaimRuns,
    /// A later end counts only if its write is known complete while the earlier one runs.
    ExtendWhileItRuns,
    /// A release whose lease may be over is the arbiter's.
    LateRelease,
    /// The ledger has the intent before the ticket is taken.
    IntentFirst,
    /// A word that says that a client sleeps is changed by the arbiter alone.
    ToldIsTheArbiters,
    /// An exclusive head is passed only when all intents that may own it are over.
    HeadMayBeClaimed,
    /// ... and no live share can be before it.
    HeadAfterShares,
    /// Shares of clients that may rely on one are not counted as done.
    LiveSharesStay,
    /// A share that was counted as done is refused.
    PassedIsRefused,
    /// The clock is read before the ledgers.
    ClockBeforeLedgers,
    /// A number from the divert point on is no ticket.
    HighIsNoTicket,
    /// The lanes start again only when no ledger has an entry, also none that is over.
    LapAfterEntries,
    /// The arbiter changes the word by one compare-and-swap from what it has read.
    OneCas,
}
