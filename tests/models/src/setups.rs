// SPDX-License-Identifier: MIT OR Apache-2.0
//! The systems that are explored: small ones in CI, large ones by command, and one for each bug.

use dlock_core::clock::Lease;
use dlock_core::limits::FAIR_DIVERT;
use dlock_core::lock::Op;
use dlock_core::memory::words::{TakenWord, TurnWord};
use dlock_core::wire::message::{LockType, Mode};

use crate::bug::Bug;
use crate::state::Event as E;
use crate::state::Setup;

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;
/// A lease that is longer than any pause.
const LONG_S: u32 = 200;
/// A lease that is longer than any pause, and short enough to be claimed ahead of a turn.
const CLAIMED_S: u32 = 60;
/// A lease that ends within the pauses of a model.
const SHORT_S: u32 = 1;

pub(crate) fn lock(mode: Mode) -> Op {
    Op::Lock { mode, lease: Lease::secs(LONG_S) }
}
pub(crate) fn lock_shortly(mode: Mode) -> Op {
    Op::Lock { mode, lease: Lease::secs(SHORT_S) }
}
pub(crate) fn try_lock(mode: Mode) -> Op {
    Op::TryLock { mode, lease: Lease::secs(LONG_S) }
}
pub(crate) fn cycle(mode: Mode) -> Vec<Op> {
    vec![lock(mode), Op::Unlock]
}
pub(crate) fn claimed(mode: Mode) -> Vec<Op> {
    vec![Op::Lock { mode, lease: Lease::secs(CLAIMED_S) }, Op::Unlock]
}
pub(crate) fn claimed_twice(mode: Mode) -> Vec<Op> {
    [claimed(mode), claimed(mode)].concat()
}
/// Extends the lease, for a short time again.
const EXTEND: Op = Op::Extend { mode: X, lease: Lease::secs(2 * SHORT_S) };
/// A script: takes the lock for ever, and releases it.
fn endless(mode: Mode) -> Vec<Op> {
    vec![Op::Lock { mode, lease: Lease::ENDLESS }, Op::Unlock]
}
/// A script: takes the lock for ever, and extends the hold once, which tells the client who waits.
fn endless_extended(mode: Mode) -> Vec<Op> {
    let lease = Lease::ENDLESS;
    vec![Op::Lock { mode, lease }, Op::Extend { mode, lease }, Op::Unlock]
}
/// A script: takes and releases the lock, then tries once more.
fn claimed_and_try(mode: Mode) -> Vec<Op> {
    [claimed(Mode::Exclusive), try_cycle(mode)].concat()
}
/// A script: takes and releases the lock twice.
pub(crate) fn twice(mode: Mode) -> Vec<Op> {
    [cycle(mode), cycle(mode)].concat()
}
pub(crate) fn try_cycle(mode: Mode) -> Vec<Op> {
    vec![try_lock(mode), Op::Unlock]
}

/// A script: takes the lock for a short time, and releases it.
pub(crate) fn shortly(mode: Mode) -> Vec<Op> {
    vec![lock_shortly(mode), Op::Unlock]
}
/// A script: takes the lock for a short time, and lets the lease end.
fn stay(mode: Mode) -> Vec<Op> {
    vec![lock_shortly(mode)]
}

pub(crate) fn setup(name: &'static str, lock_type: LockType, scripts: [Vec<Op>; 3]) -> Setup {
    Setup {
        name,
        lock_type,
        scripts,
        start_word: 0,
        start_turn: 0,
        mortal: Some(0),
        pauses: 0,
        losses: 0,
        impatient: false,
        tries: 0,
        parks: false,
        by_primary: false,
        deaths: 0,
        successor: None,
        unheard: false,
        sometimes: Vec::new(),
        bug: None,
        divert: None,
        #[cfg(feature = "planted")]
        core_bug: None,
    }
}

/// The setups of CI: each type of lock with three clients, one crash and one expiry.
pub fn small() -> Vec<Setup> {
    use LockType::{Atomic, Fair, Rw};
    vec![
        Setup {
            pauses: 2,
            sometimes: vec![
                E::GrantAfterWait,
                E::DiedHolding,
                E::TakenOver,
                E::Stolen,
                E::LateRelease,
                E::Expired,
                E::ArbiterRaced,
            ],
            ..setup("atomic: crash, expiry", Atomic, [shortly(X), cycle(X), try_cycle(X)])
        },
        Setup {
            pauses: 1,
            tries: 2,
            sometimes: vec![E::GrantAfterWait, E::DiedHolding, E::TakenOver, E::Expired],
            ..setup("atomic: crash, expiry, again", Atomic, [shortly(X), cycle(X), cycle(X)])
        },
        Setup {
            sometimes: vec![
                E::SharedTogether,
                E::GrantAfterWait,
                E::DiedHolding,
                E::DiedInChain,
                E::Suspect,
                E::Recounted,
                E::RecountPutOff,
                E::SteppedBack,
            ],
            ..setup("read-write: crash, readers", Rw, [cycle(S), cycle(S), cycle(X)])
        },
        Setup {
            sometimes: vec![E::GrantAfterWait, E::DiedHolding, E::SteppedBack, E::Woken],
            ..setup("read-write: crash, tries", Rw, [cycle(X), try_cycle(S), cycle(X)])
        },
        Setup {
            tries: 2,
            sometimes: vec![E::GrantAfterWait, E::DiedHolding, E::SteppedBack],
            ..setup("read-write: crash, again", Rw, [cycle(X), cycle(S), cycle(X)])
        },
        Setup {
            sometimes: vec![E::GrantAfterWait, E::DiedHolding, E::TicketSkipped],
            ..setup("fair: crash", Fair, [cycle(X), cycle(X), cycle(X)])
        },
        Setup {
            tries: 2,
            pauses: 1,
            sometimes: vec![E::SawTurn, E::GrantAfterWait, E::DiedHolding, E::ReleaseRaced],
            ..setup("fair: crash, looks", Fair, [claimed(X), claimed(X), vec![]])
        },
        Setup {
            losses: 1,
            sometimes: vec![E::GrantAfterWait, E::DiedHolding, E::Resolved],
            ..setup("fair: crash, readers", Fair, [claimed_twice(S), claimed(X), vec![]])
        },
        Setup {
            mortal: None,
            pauses: 1,
            tries: 2,
            sometimes: vec![E::SawTurn, E::Expired, E::LateRelease],
            ..setup("fair: expiry, looks", Fair, [shortly(X), shortly(X), vec![]])
        },
        // no lease ends, so no timer wakes a client that sleeps
        Setup {
            mortal: None,
            tries: 1,
            sometimes: vec![E::SawTurn, E::GrantAfterWait],
            ..setup(
                "fair: endless",
                Fair,
                [
                    [endless_extended(X), endless(X)].concat(),
                    [endless(S), endless(X)].concat(),
                    vec![],
                ],
            )
        },
        Setup {
            tries: 1,
            parks: true,
            sometimes: vec![E::SawTurn, E::DiedHolding, E::ReleaseRaced],
            ..setup("fair: crash, twice", Fair, [claimed_twice(X), claimed(X), vec![]])
        },
        Setup {
            tries: 1,
            parks: true,
            mortal: None,
            sometimes: vec![E::SharedTogether, E::ReleaseRaced],
            ..setup("fair: readers and a writer", Fair, [claimed(S), claimed(S), claimed(X)])
        },
        Setup {
            mortal: None,
            pauses: 1,
            tries: 2,
            sometimes: vec![E::Expired, E::LateRelease],
            ..setup(
                "fair: expiry, extended",
                Fair,
                [[lock_shortly(X), EXTEND, Op::Unlock].to_vec(), shortly(X), vec![]],
            )
        },
        Setup {
            sometimes: vec![E::GrantAfterWait, E::DiedHolding],
            ..setup("fair: crash, a reader", Fair, [claimed(X), claimed(S), claimed(X)])
        },
        // no claim of a living client ends, so a client that stays silent is found only by further
        // looks
        Setup {
            sometimes: vec![E::GrantAfterWait, E::DiedHolding],
            ..setup(
                "fair: crash, readers that stay",
                Fair,
                [claimed(S), endless_extended(S), endless(X)],
            )
        },
        Setup {
            mortal: None,
            pauses: 2,
            sometimes: vec![E::GrantAfterWait, E::Expired, E::LateRelease, E::TicketSkipped],
            ..setup("fair: expiry, two clients", Fair, [shortly(X), cycle(X), vec![]])
        },
        Setup {
            pauses: 1,
            sometimes: vec![E::TicketSkipped, E::GrantAfterWait],
            ..setup("fair: crash, tickets given up", Fair, [cycle(X), try_cycle(S), vec![]])
        },
        Setup {
            by_primary: true,
            pauses: 1,
            sometimes: vec![E::TicketSkipped, E::GrantAfterWait],
            ..setup("fair: crash, given up, tcp", Fair, [cycle(X), try_cycle(S), cycle(X)])
        },
        Setup {
            by_primary: true,
            pauses: 1,
            sometimes: vec![E::GrantAfterWait, E::DiedHolding, E::Expired, E::TicketSkipped],
            ..setup("fair: crash, expiry, tcp", Fair, [shortly(X), cycle(X), cycle(X)])
        },
        Setup {
            by_primary: true,
            pauses: 1,
            sometimes: vec![E::SharedTogether, E::GrantAfterWait, E::DiedHolding],
            ..setup("fair: crash, readers, tcp", Fair, [cycle(S), cycle(S), cycle(X)])
        },
    ]
}

/// The setups that take longer: with lost answers, waiters that give up, more expiries, and ticket
/// counters that start again.
pub fn large() -> Vec<Setup> {
    use LockType::{Atomic, Fair, Rw};
    let high = (FAIR_DIVERT - 1, 7);
    let taken = TakenWord::new().with_mx(high.0).with_ms(high.1);
    let turn = TurnWord::new().with_nx(high.0).with_ns(high.1);
    vec![
        Setup {
            losses: 1,
            sometimes: vec![E::Resolved, E::DiedHolding],
            ..setup("atomic: crash, loss", Atomic, [cycle(X), cycle(X), try_cycle(X)])
        },
        Setup {
            impatient: true,
            sometimes: vec![E::Cancelled, E::GrantCrossedCancel],
            ..setup("atomic: crash, cancel", Atomic, [cycle(X), cycle(X), cycle(X)])
        },
        Setup {
            losses: 1,
            sometimes: vec![E::Resolved, E::Recounted],
            ..setup("read-write: crash, loss", Rw, [cycle(S), cycle(X), try_cycle(S)])
        },
        Setup {
            impatient: true,
            sometimes: vec![E::Cancelled, E::GrantCrossedCancel, E::Recounted],
            ..setup("read-write: crash, cancel", Rw, [cycle(S), cycle(S), cycle(X)])
        },
        Setup {
            sometimes: vec![E::SharedTogether, E::GrantAfterWait, E::DiedHolding],
            ..setup("fair: crash, readers of three", Fair, [cycle(S), cycle(S), cycle(X)])
        },
        Setup {
            mortal: None,
            pauses: 1,
            sometimes: vec![E::GrantAfterWait, E::Expired],
            ..setup(
                "fair: expiry, readers",
                Fair,
                [[shortly(S), claimed(S)].concat(), claimed(X), vec![]],
            )
        },
        Setup {
            losses: 1,
            sometimes: vec![E::Resolved],
            ..setup("fair: crash, loss", Fair, [cycle(X), cycle(S), vec![]])
        },
        Setup {
            by_primary: true,
            losses: 1,
            pauses: 1,
            sometimes: vec![E::Resolved, E::Expired],
            ..setup("fair: crash, expiry, loss, tcp", Fair, [shortly(X), cycle(S), cycle(X)])
        },
        Setup {
            start_word: taken.into_bits(),
            start_turn: turn.into_bits(),
            sometimes: vec![E::TicketByArbiter, E::LapBegun],
            ..setup("fair: crash, a lap", Fair, [cycle(X), cycle(S), vec![]])
        },
        Setup {
            by_primary: true,
            impatient: true,
            sometimes: vec![E::Cancelled, E::GrantCrossedCancel],
            ..setup("fair: crash, cancel, tcp", Fair, [cycle(X), cycle(S), cycle(X)])
        },
        Setup {
            mortal: None,
            tries: 1,
            sometimes: vec![E::SawTurn],
            ..setup("fair: tries", Fair, [claimed_twice(X), claimed_and_try(S), vec![]])
        },
        Setup {
            mortal: None,
            tries: 1,
            sometimes: vec![E::GrantAfterWait],
            ..setup("fair: endless of three", Fair, [endless_extended(X), endless(S), endless(X)])
        },
        Setup {
            tries: 1,
            sometimes: vec![E::SawTurn, E::GrantAfterWait, E::DiedHolding],
            ..setup("fair: crash, looks of three", Fair, [claimed(X), claimed(X), cycle(X)])
        },
        Setup {
            tries: 1,
            sometimes: vec![E::SawTurn, E::GrantAfterWait, E::Expired, E::DiedHolding],
            ..setup("fair: crash, expiry of three", Fair, [cycle(X), stay(X), cycle(X)])
        },
        Setup {
            mortal: None,
            tries: 1,
            pauses: 1,
            sometimes: vec![E::SawTurn, E::GrantAfterWait, E::Expired, E::LateRelease],
            ..setup("fair: expiry, looks of three", Fair, [stay(X), shortly(X), cycle(X)])
        },
        Setup {
            mortal: None,
            tries: 1,
            losses: 1,
            sometimes: vec![E::SawTurn, E::Resolved],
            ..setup("fair: loss, looks", Fair, [claimed_twice(X), claimed(X), vec![]])
        },
        Setup {
            mortal: None,
            tries: 1,
            sometimes: vec![E::SawTurn, E::GrantAfterWait, E::SharedTogether],
            ..setup("fair: looks, readers", Fair, [claimed(X), cycle(S), cycle(S)])
        },
        Setup {
            mortal: None,
            pauses: 1,
            sometimes: vec![E::GrantAfterWait, E::Expired, E::LateRelease, E::TicketSkipped],
            ..setup("fair: expiry, three clients", Fair, [shortly(X), cycle(X), stay(X)])
        },
        Setup {
            pauses: 1,
            sometimes: vec![E::GrantAfterWait, E::DiedHolding, E::Expired, E::TicketSkipped],
            ..setup("fair: crash, expiry", Fair, [shortly(X), cycle(X), cycle(X)])
        },
        Setup {
            pauses: 2,
            sometimes: vec![E::GrantAfterWait, E::DiedHolding, E::Expired, E::TicketSkipped],
            ..setup("fair: crash, two expiries", Fair, [shortly(X), cycle(X), cycle(X)])
        },
    ]
}

/// A small model for each bug that must notice it.
pub fn planted() -> Vec<Setup> {
    use LockType::{Atomic, Fair, Rw};
    let with = |bug, setup: Setup| Setup { bug: Some(bug), ..setup };
    vec![
        with(
            Bug::BlindRelease,
            Setup { pauses: 2, ..setup("blind release", Atomic, [shortly(X), cycle(X), cycle(X)]) },
        ),
        with(
            Bug::ClockTooSure,
            Setup {
                pauses: 2,
                ..setup("clock too sure", Atomic, [shortly(X), try_cycle(X), vec![]])
            },
        ),
        with(
            Bug::ArbiterAhead,
            Setup { pauses: 1, ..setup("arbiter ahead", Fair, [shortly(X), cycle(X), vec![]]) },
        ),
        with(Bug::LedgersReadOnce, setup("ledgers read once", Rw, [cycle(S), cycle(S), vec![]])),
        with(Bug::NoteAfterAdd, setup("note after add", Rw, [cycle(S), cycle(S), vec![]])),
        with(
            Bug::ForgottenBeforeFenced,
            setup("forgotten before fenced", Rw, [cycle(S), cycle(X), vec![]]),
        ),
        with(Bug::ServedTwice, setup("served twice", Rw, [cycle(X), cycle(X), cycle(X)])),
        with(
            Bug::GrantDropped,
            Setup {
                impatient: true,
                mortal: None,
                ..setup("grant dropped", Rw, [cycle(X), cycle(X), cycle(X)])
            },
        ),
        with(Bug::WaitersBitLost, setup("waiters bit lost", Atomic, [cycle(X), cycle(X), vec![]])),
        with(Bug::WakeLost, setup("wake lost", Rw, [cycle(X), try_cycle(S), cycle(X)])),
        with(Bug::NoStepBack, setup("no step back", Rw, [cycle(X), cycle(S), vec![]])),
        with(
            Bug::TimersLost,
            Setup { mortal: None, ..setup("timers lost", Fair, [stay(X), cycle(X), vec![]]) },
        ),
    ]
}

/// Setups in which the arbiter gives all tickets from number 1 on, so that every run has laps.
#[cfg(feature = "planted")]
pub fn laps() -> Vec<Setup> {
    let low = |name, scripts| Setup {
        mortal: None,
        pauses: 1,
        divert: Some(1),
        ..setup(name, LockType::Fair, scripts)
    };
    let thrice = |mode| [cycle(mode), cycle(mode), cycle(mode)].concat();
    vec![
        Setup {
            sometimes: vec![E::TicketByArbiter, E::LapBegun, E::LateRelease],
            ..low("laps: expiry", [[shortly(X), cycle(X)].concat(), twice(X), vec![]])
        },
        Setup {
            sometimes: vec![E::TicketByArbiter, E::LapBegun],
            ..low("laps: readers", [[shortly(S), cycle(S)].concat(), twice(X), vec![]])
        },
        Setup {
            mortal: Some(0),
            pauses: 0,
            sometimes: vec![E::TicketByArbiter, E::LapBegun, E::DiedHolding],
            ..low("laps: crash", [twice(X), thrice(X), vec![]])
        },
        Setup {
            tries: 1,
            pauses: 0,
            divert: Some(2),
            sometimes: vec![E::TicketByArbiter, E::LapBegun, E::SawTurn],
            ..low("laps: looks", [claimed_twice(X), claimed_twice(X), vec![]])
        },
        Setup {
            sometimes: vec![E::TicketByArbiter],
            ..low("laps: tries", [[try_cycle(X), try_cycle(S)].concat(), twice(X), vec![]])
        },
    ]
}

/// A setup for each rule of the core that can be switched off, in which the rule is needed.
#[cfg(feature = "planted")]
pub fn planted_rules() -> Vec<Setup> {
    use dlock_core::planted::Bug as Core;
    let of = |name: &str| {
        let all = [small(), large(), laps()].concat();
        all.into_iter().find(|s| s.name == name).expect("a model of this name")
    };
    let with = |bug, name: &str| Setup { core_bug: Some(bug), sometimes: Vec::new(), ..of(name) };
    vec![
        with(Core::ClaimShort, "fair: expiry, looks"),
        with(Core::ClaimAfterTicket, "fair: expiry, two clients"),
        with(Core::LateExtendCounts, "fair: expiry, extended"),
        with(Core::LateReleaseByClient, "fair: expiry, readers"),
        with(Core::ToldIgnored, "fair: endless of three"),
        with(Core::ToldReleaseFails, "fair: crash, looks"),
        with(Core::HeadClaimIgnored, "fair: crash, looks"),
        with(Core::HeadBeforeShares, "fair: crash, a reader"),
        with(Core::LiveSharesPassed, "fair: crash, readers"),
        with(Core::PassedCounts, "fair: expiry, readers"),
        with(Core::DecidedFromLater, "fair: crash, looks of three"),
        with(Core::HighIsTicket, "laps: expiry"),
        with(Core::LapOverEntries, "laps: expiry"),
    ]
}
