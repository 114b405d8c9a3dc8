// SPDX-License-Identifier: MIT OR Apache-2.0
//! The systems that are explored: small ones in CI, large ones by command, and one for each bug.

use dlock_core::lock::Op;
use dlock_core::message::{LockType, Mode};
use dlock_core::words::FairWord;

use crate::bug::Bug;
use crate::state::Event as E;
use crate::state::Setup;

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;
/// Longer than any pause.
const LONG_S: u32 = 200;
/// The same, and short enough to be claimed ahead of a turn.
const CLAIMED_S: u32 = 60;
/// Ends within the pauses of a model.
const SHORT_S: u32 = 1;

pub(crate) fn lock(mode: Mode) -> Op {
    Op::Lock { mode, expire_s: LONG_S }
}
pub(crate) fn lock_shortly(mode: Mode) -> Op {
    Op::Lock { mode, expire_s: SHORT_S }
}
pub(crate) fn try_lock(mode: Mode) -> Op {
    Op::TryLock { mode, expire_s: LONG_S }
}
pub(crate) fn cycle(mode: Mode) -> Vec<Op> {
    vec![lock(mode), Op::Unlock]
}
pub(crate) fn claimed(mode: Mode) -> Vec<Op> {
    vec![Op::Lock { mode, expire_s: CLAIMED_S }, Op::Unlock]
}
pub(crate) fn claimed_twice(mode: Mode) -> Vec<Op> {
    [claimed(mode), claimed(mode)].concat()
}
/// For another short time.
const EXTEND: Op = Op::Extend { mode: X, expire_s: 2 * SHORT_S };
/// Locks, asks for a longer lease and releases.
fn extended(mode: Mode) -> Vec<Op> {
    let [lock, unlock] = claimed(mode)[..] else { unreachable!("two operations") };
    vec![lock, Op::Extend { mode, expire_s: CLAIMED_S }, unlock]
}
/// Locks for ever and releases.
fn endless(mode: Mode) -> Vec<Op> {
    vec![Op::Lock { mode, expire_s: u32::MAX }, Op::Unlock]
}
/// Locks for ever, and asks once more, which tells it who has come.
fn endless_extended(mode: Mode) -> Vec<Op> {
    let expire_s = u32::MAX;
    vec![Op::Lock { mode, expire_s }, Op::Extend { mode, expire_s }, Op::Unlock]
}
/// Locks and releases, and tries once more.
fn claimed_and_try(mode: Mode) -> Vec<Op> {
    [claimed(Mode::Exclusive), try_cycle(mode)].concat()
}
/// Locks and releases, and once more.
pub(crate) fn twice(mode: Mode) -> Vec<Op> {
    [cycle(mode), cycle(mode)].concat()
}
pub(crate) fn try_cycle(mode: Mode) -> Vec<Op> {
    vec![try_lock(mode), Op::Unlock]
}

/// Locks for a short time and releases.
pub(crate) fn shortly(mode: Mode) -> Vec<Op> {
    vec![lock_shortly(mode), Op::Unlock]
}
/// Locks for a short time and lets the lease end.
fn stay(mode: Mode) -> Vec<Op> {
    vec![lock_shortly(mode)]
}

pub(crate) fn setup(name: &'static str, lock_type: LockType, scripts: [Vec<Op>; 3]) -> Setup {
    Setup {
        name,
        lock_type,
        scripts,
        start_word: 0,
        mortal: Some(0),
        pauses: 0,
        losses: 0,
        impatient: false,
        tries: 0,
        late: false,
        neighbours: false,
        by_primary: false,
        is_old: false,
        deaths: 0,
        successor: None,
        unheard: false,
        sometimes: Vec::new(),
        bug: None,
        lane_bits: 16,
        #[cfg(feature = "planted")]
        core_bug: None,
    }
}

/// Those of CI: each lock type with three clients, one crash and one expiry.
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
            late: true,
            sometimes: vec![E::SharedTogether, E::DiedHolding, E::Recounted, E::RecountPutOff],
            ..setup("read-write: crash, late notes", Rw, [twice(S), twice(S), vec![]])
        },
        Setup {
            sometimes: vec![E::GrantAfterWait, E::DiedHolding, E::TicketSkipped],
            ..setup("fair: crash", Fair, [cycle(X), cycle(X), cycle(X)])
        },
        Setup {
            tries: 2,
            pauses: 1,
            sometimes: vec![
                E::SawTurn,
                E::HandedOn,
                E::RelayEnded,
                E::GrantAfterWait,
                E::DiedHolding,
                E::Woken,
            ],
            ..setup("fair: crash, hand-over", Fair, [claimed(X), claimed(X), vec![]])
        },
        Setup {
            tries: 1,
            late: true,
            sometimes: vec![E::SawTurn, E::DiedHolding],
            ..setup("fair: crash, late notes", Fair, [twice(X), claimed(X), vec![]])
        },
        Setup {
            late: true,
            losses: 1,
            sometimes: vec![E::GrantAfterWait, E::DiedHolding, E::Resolved],
            ..setup(
                "fair: crash, readers, late notes",
                Fair,
                [claimed_twice(S), claimed(X), vec![]],
            )
        },
        Setup {
            mortal: None,
            pauses: 1,
            tries: 2,
            sometimes: vec![E::SawTurn, E::HandedOn, E::RelayEnded, E::Expired, E::LateRelease],
            ..setup("fair: expiry, hand-over", Fair, [shortly(X), shortly(X), vec![]])
        },
        // no lease ends, so that no timer wakes who sleeps
        Setup {
            mortal: None,
            tries: 1,
            sometimes: vec![E::HandedOn, E::GrantAfterWait, E::Woken],
            ..setup(
                "fair: endless, relay",
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
            sometimes: vec![E::SawTurn, E::HandedOn, E::RelayEnded, E::DiedHolding],
            ..setup("fair: crash, relay", Fair, [claimed_twice(X), claimed(X), vec![]])
        },
        Setup {
            neighbours: true,
            late: true,
            tries: 1,
            sometimes: vec![E::Handed, E::HandedAhead, E::RelayEnded, E::DiedHolding],
            ..setup("fair: crash, neighbours", Fair, [claimed_twice(X), claimed(X), vec![]])
        },
        Setup {
            neighbours: true,
            late: true,
            mortal: None,
            pauses: 1,
            tries: 2,
            sometimes: vec![E::Handed, E::Expired, E::LateRelease],
            ..setup(
                "fair: expiry, neighbours",
                Fair,
                [[lock_shortly(X), EXTEND, Op::Unlock].to_vec(), shortly(X), vec![]],
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
        Setup {
            by_primary: true,
            is_old: true,
            pauses: 1,
            sometimes: vec![E::GrantAfterWait, E::DiedHolding, E::Expired],
            ..setup("fair: crash, expiry, old tcp", Fair, [shortly(X), cycle(S), cycle(X)])
        },
    ]
}

/// Those that take longer: lost answers, waiters that give up, more expiries, lanes that wrap.
pub fn large() -> Vec<Setup> {
    use LockType::{Atomic, Fair, Rw};
    let lanes = FairWord::new().with_nx(0xffe0).with_mx(0xffe0).with_ns(0xffff).with_ms(0xffff);
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
            late: true,
            losses: 1,
            sometimes: vec![E::SharedTogether, E::DiedHolding, E::Recounted, E::Resolved],
            ..setup("read-write: loss, late notes", Rw, [twice(S), cycle(S), vec![]])
        },
        Setup {
            late: true,
            sometimes: vec![E::DiedHolding, E::Suspect, E::Recounted, E::SteppedBack],
            ..setup("read-write: three, late notes", Rw, [twice(S), cycle(S), cycle(X)])
        },
        Setup {
            sometimes: vec![E::SharedTogether, E::GrantAfterWait, E::DiedHolding],
            ..setup("fair: crash, readers", Fair, [cycle(S), cycle(S), cycle(X)])
        },
        Setup {
            mortal: None,
            late: true,
            pauses: 1,
            sometimes: vec![E::GrantAfterWait, E::Expired],
            ..setup(
                "fair: expiry, readers, late notes",
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
            start_word: lanes.into_bits(),
            sometimes: vec![E::TicketByArbiter],
            ..setup("fair: crash, lanes that wrap", Fair, [cycle(X), cycle(S), vec![]])
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
            sometimes: vec![E::SawTurn, E::HandedOn, E::RelayEnded],
            ..setup("fair: relay, tries", Fair, [claimed_twice(X), claimed_and_try(S), vec![]])
        },
        Setup {
            mortal: None,
            tries: 1,
            sometimes: vec![E::HandedOn, E::GrantAfterWait, E::Woken],
            ..setup(
                "fair: endless, relay of three",
                Fair,
                [endless_extended(X), endless(S), endless(X)],
            )
        },
        Setup {
            tries: 1,
            sometimes: vec![E::SawTurn, E::GrantAfterWait, E::DiedHolding, E::Woken],
            ..setup("fair: crash, hand-over to three", Fair, [claimed(X), claimed(X), cycle(X)])
        },
        Setup {
            tries: 1,
            sometimes: vec![E::SawTurn, E::GrantAfterWait, E::Expired, E::DiedHolding, E::Woken],
            ..setup("fair: crash, expiry of three", Fair, [cycle(X), stay(X), cycle(X)])
        },
        Setup {
            mortal: None,
            tries: 1,
            pauses: 1,
            sometimes: vec![E::SawTurn, E::GrantAfterWait, E::Expired, E::LateRelease, E::Woken],
            ..setup("fair: expiry, hand-over to three", Fair, [stay(X), shortly(X), cycle(X)])
        },
        Setup {
            neighbours: true,
            late: true,
            mortal: None,
            tries: 1,
            losses: 1,
            sometimes: vec![E::Handed, E::HandedAhead, E::ReleasedAhead, E::Resolved],
            ..setup("fair: loss, neighbours", Fair, [claimed_twice(X), claimed(X), vec![]])
        },
        Setup {
            neighbours: true,
            late: true,
            mortal: None,
            tries: 1,
            sometimes: vec![E::Handed, E::HandedAhead, E::ReleasedAhead],
            ..setup("fair: three neighbours", Fair, [claimed(X), extended(X), claimed(X)])
        },
        Setup {
            neighbours: true,
            late: true,
            mortal: None,
            tries: 1,
            sometimes: vec![E::Handed, E::GrantAfterWait],
            ..setup("fair: neighbours, readers", Fair, [claimed(X), claimed(X), claimed(S)])
        },
        Setup {
            mortal: None,
            tries: 1,
            sometimes: vec![E::SawTurn, E::GrantAfterWait, E::Woken, E::SharedTogether],
            ..setup("fair: hand-over, readers", Fair, [claimed(X), cycle(S), cycle(S)])
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

/// Lanes of three bits: numbers 0 and 1 are taken by clients, 5 and 6 by the arbiter, and every run
/// has laps.
#[cfg(feature = "planted")]
pub fn laps() -> Vec<Setup> {
    let narrow = |name, scripts| Setup {
        mortal: None,
        pauses: 1,
        lane_bits: 3,
        start_word: FairWord::new().with_nx(1).with_mx(1).into_bits(),
        ..setup(name, LockType::Fair, scripts)
    };
    let claimed_twice = || claimed_twice(X);
    let claimed_thrice = || [claimed(X), claimed(X), cycle(X)].concat();
    let thrice = |mode| [cycle(mode), cycle(mode), cycle(mode)].concat();
    vec![
        Setup {
            sometimes: vec![E::TicketByArbiter, E::Expired, E::LateRelease],
            ..narrow("laps: expiry", [[shortly(X), cycle(X)].concat(), thrice(X), vec![]])
        },
        Setup {
            sometimes: vec![E::TicketByArbiter],
            ..narrow("laps: readers", [[shortly(S), cycle(S)].concat(), twice(X), vec![]])
        },
        Setup {
            mortal: Some(0),
            pauses: 0,
            sometimes: vec![E::TicketByArbiter, E::DiedHolding],
            ..narrow("laps: crash", [twice(X), thrice(X), vec![]])
        },
        Setup {
            tries: 1,
            pauses: 0,
            sometimes: vec![E::TicketByArbiter, E::SawTurn],
            ..narrow("laps: hand-over", [claimed_twice(), claimed_thrice(), vec![]])
        },
        // with room for a relay before the lane ends
        Setup {
            tries: 1,
            pauses: 0,
            lane_bits: 4,
            start_word: FairWord::new().with_nx(6).with_mx(6).into_bits(),
            sometimes: vec![E::TicketByArbiter, E::SawTurn, E::HandedOn, E::RelayEnded],
            ..narrow("laps: relay", [claimed_twice(), claimed_thrice(), vec![]])
        },
        Setup {
            late: true,
            sometimes: vec![E::TicketByArbiter, E::Expired],
            ..narrow("laps: late notes", [[shortly(X), cycle(X)].concat(), thrice(X), vec![]])
        },
        Setup {
            late: true,
            sometimes: vec![E::TicketByArbiter, E::Expired],
            ..narrow(
                "laps: readers, late notes",
                [[shortly(S), claimed(S)].concat(), claimed_twice(), vec![]],
            )
        },
        Setup {
            sometimes: vec![E::TicketByArbiter],
            ..narrow("laps: tries", [[try_cycle(X), try_cycle(S)].concat(), thrice(X), vec![]])
        },
    ]
}

/// What the rules of laps are for: each is switched off.
#[cfg(feature = "planted")]
pub fn planted_laps() -> Vec<Setup> {
    use dlock_core::planted::Bug as Core;
    let lap = |name: &str| laps().into_iter().find(|s| s.name == name).expect("a model of laps");
    let with = |bug, setup: Setup| Setup { core_bug: Some(bug), sometimes: Vec::new(), ..setup };
    vec![
        with(Core::LapWithNames, lap("laps: expiry")),
        with(Core::LapWithIntents, lap("laps: expiry")),
        with(Core::FairNoIntent, lap("laps: expiry")),
    ]
}
