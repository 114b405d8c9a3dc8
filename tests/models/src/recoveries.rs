// SPDX-License-Identifier: MIT OR Apache-2.0
//! The systems whose primary dies: small ones in CI, large ones by command, and one for each bug.

use dlock_core::clock::Lease;
use dlock_core::lock::Op;
use dlock_core::wire::message::LockType::{self, Atomic, Fair, Rw};
use dlock_core::wire::message::Mode::{self, Exclusive as X, Shared as S};

use crate::bug::Bug;
use crate::failover::Awaits;
use crate::setups::{
    claimed, claimed_twice, cycle, lock, lock_shortly, setup, shortly, try_cycle, try_lock, twice,
};
use crate::state::Event as E;
use crate::state::Setup;

/// A script: takes the lock for ever, and releases it.
fn endless(mode: Mode) -> Vec<Op> {
    vec![Op::Lock { mode, lease: Lease::ENDLESS }, Op::Unlock]
}
/// A script that extends its lease once.
fn extended(mode: Mode) -> Vec<Op> {
    vec![lock_shortly(mode), Op::Extend { mode, lease: Lease::secs(2) }, Op::Unlock]
}
/// A script that enters its hold a second time.
fn reentered(mode: Mode) -> Vec<Op> {
    vec![lock(mode), lock(mode), Op::Unlock, Op::Unlock]
}
/// A script for locks with tickets: takes a ticket, and then waits with it. For other locks: enters
/// its hold a second time.
fn tried(mode: Mode) -> Vec<Op> {
    vec![try_lock(mode), lock(mode), Op::Unlock, Op::Unlock]
}

/// A setup in which only the primary dies, and its successor waits for as many clients as there
/// are.
fn counted(name: &'static str, lock_type: LockType, scripts: [Vec<Op>; 3]) -> Setup {
    let (deaths, successor) = (1, Some(Awaits::Counted));
    Setup { mortal: None, deaths, successor, ..setup(name, lock_type, scripts) }
}

/// A setup in which the first client may die, too, or come late; the successor gives up the clients
/// that do not come.
fn known(name: &'static str, lock_type: LockType, scripts: [Vec<Op>; 3]) -> Setup {
    let (deaths, successor) = (1, Some(Awaits::Known));
    Setup { deaths, successor, ..setup(name, lock_type, scripts) }
}

/// The setups of CI.
pub fn recoveries() -> Vec<Setup> {
    let mut list = small_fair();
    list.extend([
        Setup {
            sometimes: vec![E::HoldClaimed, E::LeftBehind, E::GrantLost],
            ..counted("recovery: atomic", Atomic, [cycle(X), cycle(X), cycle(X)])
        },
        Setup {
            pauses: 1,
            sometimes: vec![E::HoldClaimed, E::LateRelease],
            ..counted("recovery: atomic, extended", Atomic, [extended(X), shortly(X), vec![]])
        },
        Setup {
            deaths: 2,
            pauses: 1,
            sometimes: vec![E::HoldClaimed, E::TakenOver, E::GivenUp, E::DiedInRecovery],
            ..known("recovery: atomic, again", Atomic, [shortly(X), cycle(X), vec![]])
        },
        Setup {
            deaths: 2,
            sometimes: vec![E::HoldClaimed, E::CutInChain, E::GivenUp, E::DiedInRecovery],
            ..known("recovery: read-write, again", Rw, [cycle(S), cycle(X), vec![]])
        },
        Setup {
            pauses: 1,
            sometimes: vec![E::HoldClaimed, E::GivenUp],
            ..known("recovery: read-write, horizon", Rw, [cycle(S), cycle(X), vec![]])
        },
        Setup {
            unheard: true,
            sometimes: vec![E::HoldClaimed, E::Resolved],
            ..counted("recovery: read-write, held twice", Rw, [reentered(S), cycle(X), vec![]])
        },
    ]);
    list
}

fn small_fair() -> Vec<Setup> {
    let counted = |name, scripts| counted(name, Fair, scripts);
    let known = |name, scripts| known(name, Fair, scripts);
    let all = || vec![E::HoldClaimed, E::PlaceServed, E::CutInChain, E::LeftBehind, E::GrantLost];
    let claims = || vec![E::HoldClaimed, E::PlaceServed];
    vec![
        Setup { sometimes: all(), ..counted("recovery: fair", [cycle(X), cycle(X), vec![]]) },
        Setup {
            sometimes: all(),
            ..counted("recovery: fair, reader", [twice(X), cycle(S), vec![]])
        },
        Setup {
            sometimes: [claims(), vec![E::GivenUp, E::DiedInRecovery, E::DiedHolding]].concat(),
            ..known("recovery: fair, crash", [cycle(X), cycle(X), vec![]])
        },
        Setup {
            deaths: 2,
            sometimes: all(),
            ..counted("recovery: fair, again", [cycle(X), cycle(X), vec![]])
        },
        Setup {
            deaths: 2,
            unheard: true,
            sometimes: [claims(), vec![E::GivenUp, E::Resolved]].concat(),
            ..known("recovery: fair, again, unheard", [cycle(S), cycle(X), vec![]])
        },
        Setup {
            sometimes: claims(),
            ..counted("recovery: fair, held twice", [reentered(X), cycle(S), vec![]])
        },
        Setup {
            sometimes: claims(),
            ..counted("recovery: fair, tried", [tried(X), tried(S), vec![]])
        },
        Setup {
            sometimes: vec![E::HoldClaimed, E::TicketSkipped],
            ..counted("recovery: fair, given up", [try_cycle(S), cycle(X), vec![]])
        },
        Setup {
            pauses: 1,
            sometimes: [claims(), vec![E::Expired, E::LateRelease]].concat(),
            ..counted("recovery: fair, expiry", [shortly(X), cycle(X), vec![]])
        },
        Setup {
            pauses: 1,
            sometimes: [claims(), vec![E::GivenUp]].concat(),
            ..known("recovery: fair, horizon", [endless(X), cycle(X), vec![]])
        },
        Setup {
            tries: 2,
            sometimes: [claims(), vec![E::SawTurn]].concat(),
            ..known("recovery: fair, looks", [claimed(X), claimed(X), vec![]])
        },
        Setup {
            tries: 1,
            sometimes: [claims(), vec![E::SawTurn]].concat(),
            ..counted("recovery: fair, twice", [claimed_twice(X), claimed(X), vec![]])
        },
        Setup {
            by_primary: true,
            sometimes: claims(),
            ..counted("recovery: fair, tcp", [cycle(X), cycle(X), cycle(X)])
        },
        Setup {
            by_primary: true,
            deaths: 2,
            sometimes: [claims(), vec![E::GivenUp, E::DiedInRecovery]].concat(),
            ..known("recovery: fair, again, tcp", [cycle(X), cycle(S), vec![]])
        },
    ]
}

/// The setups that take longer: with three clients that execute their own chains.
pub fn large_recoveries() -> Vec<Setup> {
    let readers = vec![E::HoldClaimed, E::PlaceServed, E::SharedTogether];
    vec![
        counted("recovery: fair, three", Fair, [cycle(X), cycle(X), cycle(X)]),
        Setup {
            sometimes: readers.clone(),
            ..counted("recovery: fair, readers", Fair, [cycle(S), cycle(S), cycle(X)])
        },
        Setup {
            pauses: 1,
            ..counted("recovery: fair, extended", Fair, [extended(X), cycle(X), vec![]])
        },
        Setup {
            pauses: 1,
            ..known("recovery: fair, horizon, shared", Fair, [cycle(S), cycle(X), vec![]])
        },
        Setup {
            pauses: 2,
            ..known("recovery: fair, two pauses", Fair, [cycle(X), cycle(X), vec![]])
        },
        Setup {
            pauses: 2,
            ..counted("recovery: fair, two expiries", Fair, [shortly(X), cycle(X), vec![]])
        },
        Setup {
            pauses: 1,
            tries: 2,
            ..known("recovery: fair, looks, horizon", Fair, [claimed(X), claimed(X), vec![]])
        },
        Setup {
            tries: 1,
            sometimes: vec![E::HoldClaimed, E::PlaceServed],
            ..counted("recovery: fair, looks of three", Fair, [claimed(X), claimed(X), claimed(X)])
        },
        Setup {
            deaths: 2,
            ..counted("recovery: fair, again, twice", Fair, [twice(X), cycle(X), vec![]])
        },
        Setup {
            deaths: 2,
            pauses: 1,
            ..known("recovery: fair, again, horizon", Fair, [cycle(X), cycle(X), vec![]])
        },
        Setup {
            by_primary: true,
            ..known("recovery: fair, crash, tcp", Fair, [cycle(X), cycle(S), cycle(X)])
        },
        Setup {
            by_primary: true,
            deaths: 2,
            ..counted("recovery: fair, again, three, tcp", Fair, [cycle(X), cycle(X), cycle(X)])
        },
        Setup {
            tries: 2,
            unheard: true,
            ..counted("recovery: atomic, unheard", Atomic, [cycle(X), cycle(X), cycle(X)])
        },
        Setup {
            sometimes: vec![E::HoldClaimed, E::SharedTogether],
            ..counted("recovery: read-write, readers", Rw, [cycle(S), cycle(S), cycle(X)])
        },
    ]
}

/// A setup for each rule of a recovery. Each rule is broken in the parts around the core.
pub fn planted_recoveries() -> Vec<Setup> {
    let with = |bug, setup: Setup| Setup { bug: Some(bug), ..setup };
    vec![
        with(Bug::HoldUntold, counted("hold untold", Fair, [cycle(X), cycle(X), vec![]])),
        with(
            Bug::PlacesByArrival,
            Setup {
                by_primary: true,
                ..counted("places by arrival", Fair, [cycle(X), cycle(X), cycle(X)])
            },
        ),
        with(Bug::ToldInChain, counted("told in a chain", Fair, [cycle(X), cycle(X), vec![]])),
        with(Bug::TimersLost, known("never given up", Fair, [cycle(X), cycle(X), vec![]])),
    ]
}

/// A setup for each rule of a recovery that is switched off in the core.
#[cfg(feature = "planted")]
pub fn core_recoveries() -> Vec<Setup> {
    use dlock_core::planted::Bug as Core;
    let of = |name: &str| recoveries().into_iter().find(|s| s.name == name).expect("a recovery");
    let with = |bug, name| Setup { core_bug: Some(bug), sometimes: Vec::new(), ..of(name) };
    vec![
        with(Core::ClaimsCountedTwice, "recovery: fair"),
        with(Core::ClaimsCountedTwice, "recovery: read-write, again"),
        with(Core::ClaimedShareForgotten, "recovery: fair"),
        with(Core::ClaimedShareForgotten, "recovery: read-write, again"),
        with(Core::RecoveryEarly, "recovery: fair"),
        with(Core::DeadlineAlone, "recovery: fair, horizon"),
        with(Core::ClaimOnNewClock, "recovery: fair, expiry"),
        with(Core::ClaimOnNewClock, "recovery: atomic, again"),
        with(Core::ClaimRoundedDown, "recovery: fair, expiry"),
        with(Core::ClaimRoundedDown, "recovery: atomic, again"),
        with(Core::EarlierClaimCounts, "recovery: fair, expiry"),
        with(Core::EarlierClaimCounts, "recovery: atomic, again"),
    ]
}
