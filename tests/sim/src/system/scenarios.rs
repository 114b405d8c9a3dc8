// SPDX-License-Identifier: MIT OR Apache-2.0
//! The named scenarios: which faults come to which clients, and how often.

use dlock_core::wire::message::LockType;

use super::plan::{Fabric, Fault};

/// A named set of weights; the seed draws the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// The name of the scenario on the command line.
    pub name: &'static str,
    pub(super) types: &'static [LockType],
    pub(super) fabrics: &'static [&'static [Fabric]],
    pub(super) faults: &'static [Fault],
    /// A fault happens in one of so many events; 0: none does.
    pub(super) fault_every: u64,
    /// Of a thousand holds, those that last about as long as their leases.
    pub(super) overstay: u32,
    /// Of a thousand idle moments, those in which the client releases the handle of a lock.
    pub(super) churn: u32,
    pub(super) limits: bool,
    pub(super) drift: bool,
    pub(super) high_lanes: bool,
    /// Whether most acquires are shared.
    pub(super) reads: bool,
    /// Whether there are only two clients and one or two locks: a lock is destroyed, and its slot
    /// reused, all the time.
    pub(super) few: bool,
    /// The possible numbers of objects' names.
    pub(super) objects: &'static [usize],
    /// Whether there are up to 31 locks, most of them used in batches.
    pub(super) many: bool,
    /// Of a thousand sessions, the most that are requested over another fabric.
    pub(super) roams: u32,
    /// Whether programs rest, and clients that have lost their sessions come back late.
    pub(super) quiet: bool,
    /// The possible session horizons; empty: any, or none.
    pub(super) horizons: &'static [u32],
    /// Of a thousand plans, those in which each session requests another horizon.
    pub(super) horizons_vary: u32,
    /// Of a thousand leases, the possible numbers of those without an end.
    pub(super) endless: &'static [u32],
    /// Of a thousand operations that do not wait, the possible numbers of asynchronous ones.
    pub(super) asynchronous: &'static [u32],
    /// Of a thousand attempts to fence queue pairs, those that fail.
    pub(super) unfenced: u32,
    /// Of a thousand idle moments of control threads, those in which they request another session;
    /// all sessions are prepared then.
    pub(super) renews: u32,
    /// Whether clients have certificates, and the primary has rules.
    pub(super) rules: bool,
    /// Whether a standby takes the place of the primary.
    pub(super) standby: bool,
    /// Whether the primary serves its clients in turns, and channels have a rate.
    pub(super) shares: bool,
    /// Whether most clients want tokens of most locks.
    pub(super) tokens: bool,
    /// Of a thousand grants, those that the library renews.
    pub(super) renewed: u32,
    /// Whether programs listen to events of their holds.
    pub(super) listens: bool,
    /// How many of a thousand actions on an exclusive hold are downgrades.
    pub(super) downgrades: u32,
    /// Of a thousand locks that a client gets, those that it caches.
    pub(super) caches: u32,
}

use Fabric::{Shm, Tcp, Verbs};
use Fault as F;
use LockType::{Atomic, Fair, Rw};

const ALL_TYPES: &[LockType] = &[Atomic, Rw, Fair];
const LOCAL: &[&[Fabric]] = &[&[Shm], &[Tcp], &[Shm, Tcp]];
pub(super) const EVERY: &[&[Fabric]] = &[&[Shm], &[Tcp], &[Shm, Tcp], &[Verbs], &[Verbs, Tcp]];
pub(super) const REMOTE: &[&[Fabric]] = &[&[Tcp], &[Verbs], &[Verbs, Tcp]];
pub(super) const CALM: Scenario = Scenario {
    name: "calm",
    types: ALL_TYPES,
    fabrics: EVERY,
    faults: &[],
    fault_every: 0,
    overstay: 0,
    churn: 0,
    limits: false,
    drift: false,
    high_lanes: false,
    reads: false,
    few: false,
    objects: &[0, 0, 0, 1],
    many: false,
    roams: 0,
    quiet: false,
    horizons: &[],
    horizons_vary: 300,
    endless: &[10, 10, 10, 500],
    asynchronous: &[0, 0, 0, 100],
    unfenced: 0,
    renews: 0,
    rules: false,
    standby: false,
    shares: false,
    tokens: false,
    renewed: 0,
    listens: false,
    downgrades: 0,
    caches: 0,
};
pub(super) const ANYTHING: &[Fault] = &[
    F::Crash,
    F::CrashPrimary,
    F::Pause,
    F::Freeze,
    F::PartitionUp,
    F::PartitionDown,
    F::PartitionBoth,
    F::BreakControl,
    F::BreakCommand,
    F::Duplicate,
    F::WallStep,
    F::Revoke,
    F::SlowReader,
    F::Leave,
    F::Slow,
    F::Standstill,
    F::Suspend,
];

/// The named scenarios; `all` draws one of them for each seed.
pub const SCENARIOS: &[Scenario] = &[
    CALM,
    Scenario {
        name: "atomic",
        types: &[Atomic],
        faults: &[F::Crash, F::Pause, F::Standstill, F::Freeze, F::BreakCommand, F::Slow],
        fault_every: 90,
        overstay: 300,
        ..CALM
    },
    Scenario {
        name: "rw",
        roams: 300,
        types: &[Rw],
        faults: &[F::Crash, F::Crash, F::Pause, F::Freeze, F::BreakCommand, F::Slow],
        fault_every: 70,
        ..CALM
    },
    Scenario {
        name: "fair",
        types: &[Fair],
        faults: &[F::Crash, F::Pause, F::Standstill, F::Freeze, F::BreakCommand, F::Slow],
        fault_every: 90,
        overstay: 200,
        high_lanes: true,
        ..CALM
    },
    Scenario {
        name: "expiry",
        fabrics: LOCAL,
        faults: &[F::Pause, F::Freeze, F::WallStep, F::Standstill],
        fault_every: 60,
        overstay: 600,
        drift: true,
        ..CALM
    },
    Scenario {
        name: "drift",
        fabrics: REMOTE,
        types: &[Atomic, Fair],
        faults: &[F::Pause, F::WallStep, F::PartitionUp, F::Suspend, F::Suspend],
        fault_every: 150,
        overstay: 800,
        drift: true,
        ..CALM
    },
    Scenario {
        name: "verbs",
        roams: 300,
        fabrics: &[&[Verbs], &[Verbs, Tcp]],
        faults: &[F::Slow, F::BreakCommand, F::Freeze, F::Crash, F::Pause],
        fault_every: 60,
        overstay: 150,
        high_lanes: true,
        ..CALM
    },
    Scenario {
        name: "partition",
        fabrics: REMOTE,
        faults: &[
            F::PartitionUp,
            F::PartitionDown,
            F::PartitionBoth,
            F::BreakControl,
            F::BreakCommand,
            F::Duplicate,
            F::SlowReader,
        ],
        fault_every: 70,
        overstay: 200,
        drift: true,
        ..CALM
    },
    Scenario {
        name: "recovery",
        faults: &[F::CrashPrimary, F::CrashPrimary, F::Crash, F::BreakControl, F::WallStep],
        fault_every: 100,
        overstay: 400,
        drift: true,
        ..CALM
    },
    Scenario {
        name: "churn",
        faults: &[F::Leave, F::Crash, F::Duplicate, F::Slow, F::BreakCommand],
        fault_every: 70,
        churn: 120,
        limits: true,
        ..CALM
    },
    Scenario {
        name: "reconnect",
        roams: 300,
        high_lanes: true,
        types: &[Rw, Fair, Fair],
        fabrics: REMOTE,
        faults: &[F::PartitionUp, F::BreakCommand, F::Slow, F::BreakCommand],
        fault_every: 25,
        overstay: 600,
        ..CALM
    },
    Scenario {
        name: "absent",
        roams: 300,
        fabrics: &[&[Shm], &[Shm, Tcp]],
        faults: &[F::BreakControl, F::BreakControl, F::Pause, F::Crash],
        fault_every: 40,
        overstay: 300,
        ..CALM
    },
    Scenario {
        name: "turnover",
        fabrics: REMOTE,
        faults: &[F::Slow, F::Slow, F::BreakCommand, F::Duplicate, F::Leave],
        fault_every: 50,
        churn: 500,
        limits: true,
        few: true,
        objects: &[0, 1, 2],
        ..CALM
    },
    Scenario {
        name: "batch",
        high_lanes: true,
        faults: &[
            F::BreakCommand,
            F::Duplicate,
            F::Slow,
            F::Pause,
            F::Freeze,
            F::Crash,
            F::BreakControl,
            F::Standstill,
            F::Suspend,
        ],
        fault_every: 90,
        overstay: 100,
        many: true,
        ..CALM
    },
    Scenario {
        name: "objects",
        types: &[Atomic],
        faults: ANYTHING,
        fault_every: 50,
        churn: 100,
        limits: true,
        few: true,
        objects: &[1, 2, 3],
        ..CALM
    },
    Scenario {
        name: "storm",
        roams: 300,
        objects: &[0, 1, 2],
        faults: ANYTHING,
        fault_every: 45,
        overstay: 250,
        churn: 30,
        limits: true,
        drift: true,
        high_lanes: true,
        ..CALM
    },
    // scenario: holds end while their clients are away, and the clients cannot know it
    Scenario {
        name: "quiet",
        types: &[Rw],
        fabrics: REMOTE,
        faults: &[F::BreakControl, F::BreakControl, F::CrashPrimary],
        fault_every: 25,
        quiet: true,
        few: true,
        horizons: &[0],
        ..CALM
    },
    // scenario: holds without a lease end with the session's horizon, and late answers move a
    // horizon that has just passed
    Scenario {
        name: "horizon",
        types: &[Atomic, Fair],
        fabrics: REMOTE,
        faults: &[F::Freeze, F::PartitionBoth, F::PartitionUp, F::Pause, F::Revoke],
        fault_every: 40,
        few: true,
        horizons: &[1, 1, 2, 3],
        endless: &[900],
        asynchronous: &[300, 700],
        ..CALM
    },
    // scenario: tickets are given up and taken again, while clients write ledger entries again on
    // new channels
    Scenario {
        name: "roaming",
        roams: 700,
        types: &[Fair],
        fabrics: &[&[Shm, Tcp], &[Tcp], &[Verbs, Tcp]],
        faults: &[F::BreakCommand, F::BreakCommand, F::BreakControl, F::Slow],
        fault_every: 25,
        overstay: 200,
        ..CALM
    },
    // scenario: clients hand a fair lock on by themselves, and lose answers and ledger writes
    // half-way
    Scenario {
        name: "handover",
        types: &[Fair],
        fabrics: &[&[Shm], &[Verbs], &[Verbs, Shm], &[Shm, Tcp], &[Verbs, Tcp]],
        faults: &[
            F::Pause,
            F::Standstill,
            F::BreakCommand,
            F::BreakControl,
            F::Slow,
            F::Crash,
            F::Freeze,
        ],
        fault_every: 40,
        overstay: 200,
        few: true,
        endless: &[0, 100, 900],
        ..CALM
    },
    // scenario: a ledger write is delayed for longer than the claim lasts that it replaces
    Scenario {
        name: "notes",
        types: &[Fair],
        fabrics: &[&[Verbs]],
        faults: &[F::BreakCommand],
        fault_every: 30,
        overstay: 600,
        quiet: true,
        endless: &[0],
        horizons: &[1, 1, 2],
        few: true,
        ..CALM
    },
    // scenario: ledgers and clients have ticket numbers that are a lap old
    Scenario {
        name: "laps",
        types: &[Fair],
        faults: &[F::Lap, F::Lap, F::Standstill, F::Pause, F::BreakCommand, F::Slow, F::Crash],
        fault_every: 40,
        overstay: 300,
        high_lanes: true,
        ..CALM
    },
];
