// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scenarios that `all` does not draw.

use dlock_core::wire::message::LockType;

use super::plan::{Fabric, Fault};
use super::scenarios::{Scenario, ANYTHING, CALM, EVERY, REMOTE};
use Fabric::{Shm, Tcp, Verbs};
use Fault as F;
use LockType::{Atomic, Fair, Rw};

/// The scenarios that `all` does not draw; each is run by itself, for the states that only it
/// reaches.
pub const APART: &[Scenario] = &[
    // clients that keep locks after their release, among others that do not
    Scenario {
        name: "caches",
        faults: &[
            F::Crash,
            F::CrashPrimary,
            F::Pause,
            F::Freeze,
            F::PartitionUp,
            F::PartitionDown,
            F::BreakControl,
            F::BreakCommand,
            F::Leave,
            F::Slow,
        ],
        fault_every: 90,
        overstay: 50,
        churn: 30,
        caches: 700,
        ..CALM
    },
    // the same with operators
    Scenario {
        name: "caches-taken",
        fabrics: &[&[Tcp], &[Shm, Tcp], &[Verbs, Tcp]],
        faults: &[F::Operate, F::Operate, F::Crash, F::CrashPrimary, F::BreakCommand, F::Leave],
        fault_every: 60,
        overstay: 50,
        objects: &[0], // programs do not expect that a removed client's objects go
        horizons: &[1, 2, 6],
        caches: 700,
        ..CALM
    },
    // the same with tokens
    Scenario {
        name: "caches-tokens",
        faults: &[F::Crash, F::CrashPrimary, F::Pause, F::BreakCommand, F::Leave],
        fault_every: 90,
        overstay: 50,
        churn: 30,
        tokens: true,
        caches: 700,
        ..CALM
    },
    // the same under all faults
    Scenario {
        name: "caches-any",
        faults: ANYTHING,
        fault_every: 60,
        overstay: 200,
        churn: 50,
        roams: 300,
        drift: true,
        quiet: true,
        caches: 700,
        ..CALM
    },
    // operators that take away what clients hold, and drain the primary
    // scenario: operators remove clients, break locks, and drain the primary
    Scenario {
        name: "taken",
        roams: 500,
        fabrics: &[&[Tcp], &[Shm, Tcp], &[Verbs, Tcp]],
        faults: &[
            F::Operate,
            F::Operate,
            F::Operate,
            F::Operate,
            F::Crash,
            F::CrashPrimary,
            F::Pause,
            F::Freeze,
            F::PartitionUp,
            F::BreakControl,
            F::BreakCommand,
            F::Leave,
            F::Slow,
        ],
        fault_every: 40,
        overstay: 200,
        churn: 50,
        objects: &[0], // no objects: programs do not expect that objects go with a removed client
        horizons: &[1, 2, 6],
        ..CALM
    },
    // scenario: the library renews leases for its programs
    Scenario {
        name: "renewals",
        types: &[Atomic, Fair],
        faults: &[
            F::Crash,
            F::CrashPrimary,
            F::CrashPrimary,
            F::Pause,
            F::Standstill,
            F::Suspend,
            F::Freeze,
            F::PartitionUp,
            F::PartitionDown,
            F::PartitionBoth,
            F::BreakControl,
            F::BreakCommand,
            F::Leave,
            F::WallStep,
        ],
        fault_every: 60,
        overstay: 100,
        churn: 50,
        drift: true,
        quiet: true,
        endless: &[0, 100],
        horizons: &[1, 2, 6],
        renewed: 700,
        ..CALM
    },
    // scenario: the library renews leases, under all faults
    Scenario {
        name: "renewals-any",
        types: &[Atomic, Fair],
        faults: ANYTHING,
        fault_every: 60,
        overstay: 100,
        churn: 50,
        drift: true,
        quiet: true,
        endless: &[0, 100],
        horizons: &[1, 2, 6],
        renewed: 700,
        ..CALM
    },
    // scenario: programs listen to events of their holds
    Scenario {
        name: "events",
        faults: ANYTHING,
        fault_every: 60,
        overstay: 300,
        churn: 50,
        drift: true,
        endless: &[0, 100],
        renewed: 300,
        listens: true,
        ..CALM
    },
    // scenario: the library renews leases, and there are no faults, so no hold may be lost
    Scenario {
        name: "renewals-calm",
        types: &[Atomic, Fair],
        drift: true,
        quiet: true,
        endless: &[0],
        renewed: 900,
        ..CALM
    },
    Scenario {
        name: "tokens",
        faults: ANYTHING,
        fault_every: 90,
        overstay: 200,
        churn: 200,
        tokens: true,
        ..CALM
    },
    Scenario {
        name: "tokens-few",
        faults: &[F::CrashPrimary, F::Crash, F::Leave, F::BreakCommand, F::WallStep],
        fault_every: 60,
        churn: 300,
        few: true,
        reads: true,
        tokens: true,
        ..CALM
    },
    Scenario {
        name: "tokens-laps",
        types: &[Fair],
        faults: &[F::Lap, F::Lap, F::Crash, F::BreakCommand],
        fault_every: 60,
        high_lanes: true,
        tokens: true,
        ..CALM
    },
    // scenario: clients downgrade exclusive holds to shares
    Scenario {
        name: "downgrades",
        types: &[Rw, Fair],
        faults: ANYTHING,
        fault_every: 60,
        overstay: 200,
        churn: 50,
        tokens: true,
        downgrades: 500,
        ..CALM
    },
    // scenario: downgrades at primaries that end, or whose answers are lost
    Scenario {
        name: "downgrades-lost",
        types: &[Rw, Fair],
        faults: &[F::CrashPrimary, F::BreakCommand, F::BreakCommand, F::Crash, F::Crash],
        fault_every: 30,
        few: true,
        tokens: true,
        downgrades: 700,
        ..CALM
    },
    // scenario: clients move to another channel while their ledgers name tickets that have ended
    Scenario {
        name: "stale",
        roams: 1_000,
        types: &[Fair],
        fabrics: &[&[Shm, Tcp], &[Verbs, Tcp]],
        faults: &[F::BreakCommand, F::Slow, F::Pause],
        fault_every: 15,
        overstay: 600,
        high_lanes: true,
        ..CALM
    },
    // scenario: clients hand a fair lock on by themselves, while some of them sleep
    Scenario {
        name: "looks",
        types: &[Fair],
        fabrics: &[&[Shm], &[Verbs], &[Verbs, Shm]],
        faults: &[
            F::Pause,
            F::Pause,
            F::Standstill,
            F::Slow,
            F::Crash,
            F::BreakCommand,
            F::CrashPrimary,
        ],
        fault_every: 60,
        overstay: 100,
        high_lanes: true,
        ..CALM
    },
    // scenario: readers are away for longer than their holds last, and come back
    Scenario {
        name: "away",
        types: &[Fair],
        fabrics: &[&[Verbs]],
        faults: &[F::Freeze, F::Freeze, F::PartitionBoth],
        fault_every: 50,
        overstay: 600,
        reads: true,
        quiet: true,
        horizons: &[1, 1, 2],
        endless: &[0],
        ..CALM
    },
    // scenario: clients come back after their holds have lapsed, and have lost ledger writes and
    // answers
    Scenario {
        name: "lapses",
        types: &[Rw, Fair],
        fabrics: &[&[Verbs], &[Verbs, Tcp]],
        faults: &[F::Pause, F::Suspend, F::BreakControl],
        fault_every: 30,
        many: true,
        horizons: &[1, 2],
        ..CALM
    },
    // scenario: a primary took shared holds for clients, which have released them by themselves
    // since then
    Scenario {
        name: "strays",
        roams: 1_000,
        types: &[Fair],
        fabrics: &[&[Shm, Tcp], &[Tcp], &[Verbs, Tcp]],
        faults: &[F::Stray],
        fault_every: 2,
        overstay: 300,
        reads: true,
        horizons: &[1, 1, 2, 6],
        ..CALM
    },
    // scenario: queue pairs cannot be fenced for a while, so that chains under way go on
    Scenario {
        name: "unfenced",
        roams: 300,
        fabrics: &[&[Verbs], &[Verbs, Tcp]],
        faults: &[F::Slow, F::Slow, F::Pause, F::BreakCommand, F::BreakControl, F::Revoke],
        fault_every: 40,
        overstay: 150,
        horizons: &[1, 2, 6],
        unfenced: 700,
        ..CALM
    },
    // scenario: clients have another session prepared beside their own, which takes its place or
    // does not
    Scenario {
        name: "prepared",
        roams: 500,
        fabrics: EVERY,
        faults: &[
            F::Crash,
            F::CrashPrimary,
            F::Pause,
            F::Freeze,
            F::PartitionUp,
            F::PartitionDown,
            F::PartitionBoth,
            F::BreakControl,
            F::BreakCommand,
            F::Revoke,
            F::Leave,
            F::Slow,
        ],
        fault_every: 50,
        overstay: 150,
        renews: 200,
        ..CALM
    },
    // scenario: clients had a long horizon at the predecessor, come to the successor with a short
    // one, and are not heard there
    Scenario {
        name: "heirs",
        types: &[Rw, Atomic],
        fabrics: REMOTE,
        faults: &[
            F::CrashPrimary,
            F::CrashPrimary,
            F::PartitionDown,
            F::PartitionDown,
            F::PartitionDown,
            F::PartitionBoth,
            F::Pause,
        ],
        fault_every: 40,
        overstay: 600,
        few: true,
        horizons: &[9, 12],
        horizons_vary: 1_000,
        endless: &[900],
        renews: 200,
        ..CALM
    },
    // scenario: rules that change set the rights and quotas of clients
    Scenario {
        name: "rules",
        roams: 300,
        fabrics: &[&[Tcp], &[Shm, Tcp], &[Verbs, Tcp]],
        faults: &[
            F::Rules,
            F::Rules,
            F::Rules,
            F::Crash,
            F::CrashPrimary,
            F::Pause,
            F::BreakCommand,
            F::BreakControl,
            F::Leave,
            F::Slow,
        ],
        fault_every: 40,
        overstay: 100,
        churn: 150,
        objects: &[0, 1, 2],
        horizons: &[1, 2, 6],
        rules: true,
        ..CALM
    },
    // scenario: the clocks of clients stand still, and the clients do not know it
    Scenario {
        name: "jumps",
        types: &[Atomic, Fair],
        fabrics: &[&[Tcp], &[Verbs], &[Verbs, Tcp]],
        faults: &[F::Jump, F::Jump, F::WallStep, F::Suspend, F::Pause, F::BreakCommand, F::Slow],
        fault_every: 40,
        overstay: 500,
        drift: true,
        endless: &[0],
        ..CALM
    },
    // scenario: a standby decides when it takes the place of the primary
    Scenario {
        name: "standby",
        fabrics: &[&[Shm], &[Tcp], &[Verbs, Tcp]],
        faults: &[
            F::CrashPrimary,
            F::Freeze,
            F::Freeze,
            F::Apart,
            F::Promote,
            F::Promote,
            F::Pause,
            F::Crash,
        ],
        fault_every: 60,
        overstay: 200,
        few: true,
        horizons: &[1, 2, 6],
        standby: true,
        ..CALM
    },
    // scenario: clients send more than their share to a primary that serves in turns
    Scenario {
        name: "flood",
        fabrics: &[&[Tcp], &[Tcp], &[Shm, Tcp], &[Verbs, Tcp]],
        faults: &[F::Flood, F::Flood, F::Flood, F::Pause, F::BreakCommand, F::Crash, F::Freeze],
        fault_every: 120,
        overstay: 100,
        churn: 50,
        objects: &[0, 1],
        shares: true,
        ..CALM
    },
];
