// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules of the fair lock. Each can be switched off, to show that the model needs it.

/// A rule that is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A client relies on a turn only while the claim runs that was in its ledger before.
    ClaimRuns,
    /// An extended claim counts only if its client knows that it was written while the earlier
    /// claim ran.
    ExtendWhileItRuns,
    /// A release whose lease may be over is left to the arbiter.
    LateRelease,
    /// The claim is in the ledger before the ticket is taken.
    IntentFirst,
    /// Only the arbiter changes a word that says that a client waits at the arbiter.
    ToldIsTheArbiters,
    /// The arbiter passes an exclusive ticket at the head only when all claims that may belong to
    /// it are over.
    HeadMayBeClaimed,
    /// The arbiter passes an exclusive ticket at the head only when no live shared ticket can be
    /// before it.
    HeadAfterShares,
    /// The arbiter does not count shared tickets as done while their clients may rely on them.
    LiveSharesStay,
    /// The arbiter refuses a shared ticket that it has counted as done.
    PassedIsRefused,
    /// The arbiter reads its clock before the ledgers.
    ClockBeforeLedgers,
    /// A number from the divert point on is no valid ticket.
    HighIsNoTicket,
    /// The ticket counters start again only when no ledger has an entry, not even one that is over.
    LapAfterEntries,
    /// The arbiter changes the word by one compare-and-swap from the value that it has read.
    OneCas,
}
