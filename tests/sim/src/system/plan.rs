// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one schedule is made of: everything that is drawn before it begins.

use dlock_core::clock::NS;
use dlock_core::limits::FAIR_DIVERT;
use dlock_core::wire::message::LockType;

use super::apart::APART;
use super::rng::Rng;
use super::scenarios::SCENARIOS;

/// How a client's chains are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// At once, by its own CPU, word operation by word operation.
    Shm,
    /// As a frame, by the primary, one chain after the other.
    Tcp,
    /// By the primary's network card, word operation by word operation, in the order of one queue
    /// pair.
    Verbs,
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// A client's process ends between any two verbs; a new client comes later.
    Crash,
    /// The primary ends; a successor recovers.
    CrashPrimary,
    /// A client's process stands still, perhaps for longer than its leases.
    Pause,
    /// The primary's process stands still; its memory still answers one-sided verbs.
    Freeze,
    /// Nothing of a client arrives at the primary for a while.
    PartitionUp,
    /// Nothing of the primary arrives at a client for a while.
    PartitionDown,
    /// Neither way.
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
    /// A client's one chain takes seconds (retries of the transport).
    Slow,
    /// Clocks drift apart (the whole schedule).
    Drift,
    /// Tables are full (the whole schedule).
    Limits,
    /// A client's process stands still for longer than any of its leases.
    Standstill,
    /// A client's machine is suspended: its process stands still, and goes on in another time.
    Suspend,
    /// Most numbers of a fair lock's tickets are used up (only in the scenario `laps`).
    Lap,
    /// A client sends many requests at once (only in the scenario `flood`).
    Flood,
    /// The standby does not reach the primary for a while (only in the scenario `standby`).
    Apart,
    /// An operator says that the primary is gone, which serves (only in the scenario `standby`).
    Promote,
    /// A client's guest is paused, and its clock does not count that (only in the scenario
    /// `jumps`).
    Jump,
    /// The primary reads other rules (only in the scenario `rules`).
    Rules,
    /// An operator does something (only in the scenario `taken`).
    Operate,
    /// The note of a share is lost with its channel; or a client is stopped, or ends, before the
    /// ticket that its ledger announces (only in the scenario `strays`).
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
    /// One client each.
    pub fabrics: Vec<Fabric>,
    /// Events of the fault phase.
    pub events: u64,
    /// What can go wrong, and in one of how many events it does.
    pub faults: &'static [Fault],
    /// One fault in so many events; 0: none.
    pub fault_every: u64,
    /// The longest lease asked for, seconds.
    pub lease_max_s: u32,
    /// Of a thousand acquires, so many are shared, wait, and so on.
    pub shared: u32,
    /// `Lock` instead of `TryLock`.
    pub wait: u32,
    /// A hold is extended, or asked about.
    pub extend: u32,
    /// A hold is entered again.
    pub reentry: u32,
    /// A hold lasts about as long as its lease, or longer.
    pub overstay: u32,
    /// A ticket is given up, a wait is short.
    pub impatience: u32,
    /// Of a thousand moments without a ticket, so many last seconds: the program rests.
    pub rests: u32,
    /// Of a thousand leases, so many have no end.
    pub endless: u32,
    /// Of a thousand clients that lost their session, so many come back late.
    pub late: u32,
    /// A reference is given back while nothing is held.
    pub churn: u32,
    /// Of a thousand messages, so many take milliseconds to seconds.
    pub tail: u32,
    /// Of a thousand verbs of the primary, so many let others run before them.
    pub interleave: u32,
    /// How long an absent client keeps what it holds.
    pub grace_ns: u64,
    /// The session horizon that clients ask for, seconds; 0: none.
    pub horizon_s: u32,
    /// Each session asks for another horizon.
    pub horizons_vary: bool,
    /// Time between exchanges that tell the time, without a horizon.
    pub heartbeat_ns: u64,
    /// Room for clients and locks.
    pub clients_max: usize,
    /// Room for locks.
    pub locks_max: usize,
    /// Of a thousand operations that do not wait, so many are of a batch.
    pub batches: u32,
    /// Of a thousand others, so many are asynchronous.
    pub asynchronous: u32,
    /// Names of objects.
    pub objects: usize,
    /// Room for objects; the slots that they do not use are spare ones.
    pub objects_max: usize,
    /// Clocks drift.
    pub drift: bool,
    /// Tables are as small as they can be.
    pub limits: bool,
    /// Of a thousand sessions, so many are asked for over another fabric.
    pub roams: u32,
    /// Of a thousand attempts to fence queue pairs, so many fail.
    pub unfenced: u32,
    /// The primary serves its clients in turns, and channels have a rate.
    pub shares: bool,
    /// A standby takes the place of the primary.
    pub standby: bool,
    /// Clients have certificates, and the primary has rules.
    pub rules: bool,
    /// Clients attach to a session that was prepared before they show that they have it.
    pub prepares: bool,
    /// Of a thousand idle moments of a client's control thread, so many ask for another session.
    pub renews: u32,
    /// The memory is a card's: no client has it mapped.
    pub is_of_card: bool,
    /// Clients find the successor of their primary by themselves.
    pub by_itself: bool,
    /// Most clients want tokens of most locks.
    pub tokens: bool,
    /// Of a thousand grants, so many are renewed by the library.
    pub renewed: u32,
    /// Programs listen to what becomes of their holds.
    pub listens: bool,
    /// Where the lanes of fair locks begin.
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
            late: if s.quiet { 800 } else { 250 },
            churn: s.churn,
            tail: rng.pick(&[0, 5, 30, 100]),
            interleave: rng.pick(&[20, 100, 300, 600]),
            grace_ns,
            horizon_s,
            horizons_vary: horizon_s > 0 && rng.chance(300),
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
            lanes: (lane(rng), lane(rng)),
            start_ns: 1_000_000 * NS + rng.below(NS),
        };
        plan.prepares |= plan.start_ns % 2 == 1; // half of them
        if plan.renewed > 0 && !plan.listens {
            plan.tail = 0; // the checker knows how long an answer may take
        }
        Some(plan)
    }
}
