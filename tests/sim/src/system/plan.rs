// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plan of a schedule: everything that is drawn before it begins.

use dlock_core::clock::NS;
use dlock_core::limits::FAIR_DIVERT;
use dlock_core::wire::message::LockType;

use super::apart::APART;
use super::rng::Rng;
use super::scenarios::SCENARIOS;

/// The way in which a client's chains are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// At once, by the client's CPU, word operation by word operation.
    Shm,
    /// By the primary, from a frame, one chain after the other.
    Tcp,
    /// By the primary's network card, word operation by word operation, in the order of one queue
    /// pair.
    Verbs,
}

/// The faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// A client's process ends between any two word operations; a new client comes later.
    Crash,
    /// The primary ends; a successor recovers.
    CrashPrimary,
    /// A client's process stands still, perhaps for longer than its leases.
    Pause,
    /// The primary's process stands still; clients that reach its memory still operate on it.
    Freeze,
    /// No message of a client arrives at the primary for a while.
    PartitionUp,
    /// No message of the primary arrives at a client for a while.
    PartitionDown,
    /// No message between a client and the primary arrives for a while.
    PartitionBoth,
    /// The control connection breaks.
    BreakControl,
    /// The command channel breaks: work in flight is flushed, completions are lost.
    BreakCommand,
    /// A request arrives twice.
    Duplicate,
    /// A wall clock steps by up to ten seconds.
    WallStep,
    /// A client's certificate is revoked: the primary fences it.
    Revoke,
    /// A client does not read its replies until the primary drops its channel.
    SlowReader,
    /// A client leaves in good order, and a new one comes.
    Leave,
    /// A single chain of a client takes seconds (retries of the transport).
    Slow,
    /// Clocks drift apart (the whole schedule).
    Drift,
    /// Tables are full (the whole schedule).
    Limits,
    /// A client's process stands still for longer than any of its leases.
    Standstill,
    /// A client's machine is suspended: its process stands still, and goes on at a later time.
    Suspend,
    /// Most numbers of a fair lock's tickets are used up (only in the scenario `laps`).
    Lap,
    /// A client sends many requests at once (only in the scenario `flood`).
    Flood,
    /// The standby does not reach the primary for a while (only in the scenario `standby`).
    Apart,
    /// An operator says that the primary is gone while it serves (only in the scenario `standby`).
    Promote,
    /// A client's guest is paused, and its clock does not count that (only in the scenario
    /// `jumps`).
    Jump,
    /// The primary reads other rules (only in the scenario `rules`).
    Rules,
    /// An operator takes something away, or drains (only in the scenario `taken`).
    Operate,
    /// The ledger write of a shared hold is lost with its channel; or a client is stopped, or ends,
    /// before it takes the ticket that its ledger announces (only in the scenario `strays`).
    Stray,
}

/// Every fault, in the order of the report.
pub const FAULTS: [(Fault, &str); 19] = [
    (Fault::Crash, "crash"),
    (Fault::CrashPrimary, "crash-primary"),
    (Fault::Pause, "pause"),
    (Fault::Freeze, "freeze"),
    (Fault::PartitionUp, "partition-up"),
    (Fault::PartitionDown, "partition-down"),
    (Fault::PartitionBoth, "partition-both"),
    (Fault::BreakControl, "break-control"),
    (Fault::BreakCommand, "break-command"),
    (Fault::Duplicate, "duplicate"),
    (Fault::WallStep, "wall-step"),
    (Fault::SlowReader, "slow-reader"),
    (Fault::Leave, "leave"),
    (Fault::Slow, "slow"),
    (Fault::Drift, "drift"),
    (Fault::Limits, "limits"),
    (Fault::Standstill, "standstill"),
    (Fault::Suspend, "suspend"),
    (Fault::Revoke, "revoke"),
];

/// Everything that is drawn before a schedule begins.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The scenario's name.
    pub scenario: &'static str,
    /// The kinds of the locks.
    pub locks: Vec<LockType>,
    /// The fabric of each client.
    pub fabrics: Vec<Fabric>,
    /// Events of the fault phase, at least.
    pub events: u64,
    /// How long the fault phase lasts at least, nanoseconds.
    pub lasts_ns: u64,
    /// The faults that can happen.
    pub faults: &'static [Fault],
    /// A fault happens in one of so many events; 0: none does.
    pub fault_every: u64,
    /// The longest lease that clients request, seconds.
    pub lease_max_s: u32,
    /// Of a thousand acquires, those in shared mode.
    pub shared: u32,
    /// Of a thousand acquires, those by `Lock` instead of `TryLock`.
    pub wait: u32,
    /// Of a thousand actions on a hold, those that extend it or ask about it.
    pub extend: u32,
    /// Of a thousand actions on a hold, those that enter it again.
    pub reentry: u32,
    /// Of a thousand holds, those that last about as long as their leases, or longer.
    pub overstay: u32,
    /// Of a thousand waits, those that are short, or give their ticket up.
    pub impatience: u32,
    /// Of a thousand moments without a ticket, those in which the program rests for seconds.
    pub rests: u32,
    /// Of a thousand leases, those without an end.
    pub endless: u32,
    /// Whether the leases that clients request of read-write locks count.
    pub rw_leases: bool,
    /// Of a thousand clients that lost their session, those that come back late.
    pub late: u32,
    /// Of a thousand idle moments, those in which the client releases the handle of a lock.
    pub churn: u32,
    /// Of a thousand messages, those that take milliseconds to seconds.
    pub tail: u32,
    /// Of a thousand word operations of the primary, those before which other clients run.
    pub interleave: u32,
    /// How long an absent client keeps what it holds.
    pub grace_ns: u64,
    /// The session horizon that clients request, seconds; 0: none.
    pub horizon_s: u32,
    /// Whether each session requests another horizon.
    pub horizons_vary: bool,
    /// Time between requests for the time, without a horizon.
    pub heartbeat_ns: u64,
    /// The most clients.
    pub clients_max: usize,
    /// The most locks.
    pub locks_max: usize,
    /// Of a thousand operations that do not wait, those that belong to a batch.
    pub batches: u32,
    /// Of a thousand other operations, those that are asynchronous.
    pub asynchronous: u32,
    /// The number of names of objects.
    pub objects: usize,
    /// The most objects; the slots that they do not use are spare.
    pub objects_max: usize,
    /// Whether clocks drift.
    pub drift: bool,
    /// Whether tables are as small as they can be.
    pub limits: bool,
    /// Of a thousand sessions, those that are requested over another fabric.
    pub roams: u32,
    /// Of a thousand attempts to fence queue pairs, those that fail.
    pub unfenced: u32,
    /// Whether the primary serves its clients in turns, and channels have a rate.
    pub shares: bool,
    /// Whether a standby takes the place of the primary.
    pub standby: bool,
    /// Whether clients have certificates, and the primary has rules.
    pub rules: bool,
    /// Whether clients attach to a prepared session before they show that they have it.
    pub prepares: bool,
    /// Of a thousand idle moments of a client's control thread, those in which it requests another
    /// session.
    pub renews: u32,
    /// Whether the memory belongs to a network card, so that no client has it mapped.
    pub is_of_card: bool,
    /// Whether clients find the successor of their primary by themselves.
    pub by_itself: bool,
    /// Whether most clients want tokens of most locks.
    pub tokens: bool,
    /// Of a thousand grants, those that the library renews.
    pub renewed: u32,
    /// Whether programs listen to events of their holds.
    pub listens: bool,
    /// How many of a thousand actions on an exclusive hold are downgrades.
    pub downgrades: u32,
    /// How many of a thousand locks that a client gets it caches.
    pub caches: u32,
    /// The numbers with which the lanes of fair locks begin.
    pub lanes: (u32, u32),
    /// The server clock at the beginning, nanoseconds.
    pub start_ns: u64,
}

impl Plan {
    /// Draws a plan. `scenario` is a name, or `all`.
    pub fn draw(scenario: &str, rng: &mut Rng) -> Option<Plan> {
        let s = match scenario {
            "all" => &SCENARIOS[rng.below(SCENARIOS.len() as u64) as usize],
            name => SCENARIOS.iter().chain(APART).find(|s| s.name == name)?,
        };
        let (clients, locks) = match s.few {
            _ if s.many => (rng.pick(&[2, 2, 3]), rng.pick(&[3, 4, 6, 8, 31])),
            true => (rng.pick(&[2, 2, 3]), rng.pick(&[1, 1, 2])),
            false => (rng.pick(&[2, 2, 3, 3, 4, 5, 6]), rng.pick(&[1, 1, 1, 2, 3])),
        };
        let mix = rng.pick(s.fabrics);
        let rates = [0, 100, 300, 500, 900];
        let near = |back: u32| FAIR_DIVERT - back;
        let lanes = [0, 1, 0xfffe, 0xffff, 0x1_0000, near(9), near(3), near(2), near(1), near(0)];
        let lane = |rng: &mut Rng| match s.high_lanes && rng.chance(500) {
            true => rng.pick(&lanes),
            false => 0,
        };
        let objects = rng.pick(s.objects);
        let room = match s.limits {
            true => rng.range(objects.min(1) as u64, objects as u64) as usize,
            false => objects.max(2),
        };
        let grace_ns = rng.range(2, 12) * NS;
        let horizon_s = match rng.below(4) {
            _ if !s.horizons.is_empty() => rng.pick(s.horizons),
            0 => 0,
            1 => (grace_ns / NS) as u32,
            _ => rng.range(1, 12) as u32,
        };
        let mut plan = Plan {
            scenario: s.name,
            locks: (0..locks).map(|_| rng.pick(s.types)).collect(),
            fabrics: (0..clients).map(|_| rng.pick(mix)).collect(),
            events: rng.range(800, 1_050)
                + 40 * locks as u64 * u64::from(s.many)
                + 800 * u64::from(s.shares),
            lasts_ns: 0,
            faults: s.faults,
            fault_every: s.fault_every,
            lease_max_s: rng.pick(&[1, 2, 3, 5, 9]),
            shared: rng.pick(if s.reads { &[700, 900] } else { &[0, 300, 500, 700, 950] }),
            wait: rng.pick(&[100, 500, 800, 1000]),
            extend: rng.pick(&rates[..3]),
            reentry: rng.pick(&rates[..3]),
            overstay: s.overstay,
            impatience: rng.pick(&rates[..4]),
            rests: rng.pick(if s.quiet { &[100, 300, 300, 500] } else { &[0, 0, 50, 300] }),
            endless: rng.pick(s.endless),
            rw_leases: false,
            late: if s.quiet { 800 } else { 250 },
            churn: s.churn,
            tail: rng.pick(&[0, 5, 30, 100]),
            interleave: rng.pick(&[20, 100, 300, 600]),
            grace_ns,
            horizon_s,
            horizons_vary: horizon_s > 0 && rng.chance(s.horizons_vary),
            heartbeat_ns: grace_ns / rng.range(3, 6),
            clients_max: if s.limits { clients } else { 64 },
            locks_max: if s.limits { locks } else { locks.max(8) },
            objects,
            objects_max: room,
            batches: match (s.many, locks) {
                (true, _) => 500,
                (_, 1) => 0,
                _ => rng.pick(&[0, 0, 200]),
            },
            asynchronous: rng.pick(s.asynchronous),
            drift: s.drift,
            limits: s.limits,
            roams: rng.pick(&[0, s.roams]),
            unfenced: s.unfenced,
            shares: s.shares,
            standby: s.standby,
            rules: s.rules,
            prepares: s.renews > 0,
            renews: s.renews,
            is_of_card: mix.contains(&Fabric::Verbs),
            by_itself: rng.chance(500),
            tokens: s.tokens,
            renewed: s.renewed,
            listens: s.listens,
            downgrades: s.downgrades,
            caches: s.caches,
            lanes: (lane(rng), lane(rng)),
            start_ns: 1_000_000 * NS + rng.below(NS),
        };
        plan.prepares |= plan.start_ns % 2 == 1; // `prepares` is set in half of the plans
        plan.rw_leases = plan.start_ns % 3 == 1; // `rw_leases` is set in a third of the plans
        if plan.renewed > 0 && !plan.listens {
            plan.tail = 0; // the checker assumes bounded answers
        }
        Some(plan)
    }
}
