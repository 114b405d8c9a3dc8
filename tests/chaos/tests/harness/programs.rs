// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs: each runs workers against a primary, disturbs them, and judges their logs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use dlock_chaos::check::{check, Rules, Verdict};
use dlock_chaos::record::Record;
use dlock_chaos::rng::Rng;
use dlock_chaos::waits::{judge, Waits};
use dlock_client::FabricChoice;
use dlock_core::session::UNREACHED_NS;
use dlock_fabric::os::clock::boot_ns;

use super::job::{Failover, Job, Style};
use super::successor::{free_port, Pair};
use super::{Folder, Primary, Process};

/// How long a process is stopped, milliseconds: longer than its leases of a second.
const STOP_MS: (u64, u64) = (1_200, 3_200);
/// The most time that a call may take: 5 s, 1 s for a cancel, the stops and delays of these
/// programs, and time for a machine that has other work as well.
const CALL_MAX: Duration = Duration::from_secs(30);
/// How much longer a `lock` may take if the client's library finds the successor. On a slow machine
/// the client may come back too late: the primary has removed it, and the standby does not answer.
/// Then it begins anew after this time (`UNREACHED_NS`; see DLOCK_PRIMARIES in docs/dlock.md).
const AWAY_MAX: Duration = Duration::from_nanos(UNREACHED_NS);
/// So many primaries are killed without waiting for their clients to come back. Before the next
/// kill, every client is served: otherwise a slow machine would never serve any client, and the
/// bound of a call would mean nothing.
const HASTY_KILLS: u64 = 2;

/// The disturbances of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disturbances {
    /// The executors of all clients inject faults.
    pub faulty: bool,
    /// Worker processes are stopped and continued.
    pub stops: bool,
    /// Worker processes are killed and replaced.
    pub kills: bool,
    /// The primary is stopped and continued.
    pub primary_stops: bool,
    /// The primary is killed, and started again.
    pub primary_kills: bool,
    /// The primary is stopped; another primary takes its place; then the first one is continued.
    pub primary_deposed: bool,
    /// The library finds the successor, not the program.
    pub by_itself: bool,
}

/// The description of one run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub fabric: FabricChoice,
    pub seed: u64,
    pub style: Style,
    pub workers: u64,
    pub threads: u64,
    /// How many workers share the same locks.
    pub group: u64,
    /// The number of locks of such a group.
    pub locks: usize,
    pub disturbances: Disturbances,
    /// The time after which the run ends, unless `count` ends it before.
    pub time: Duration,
    /// The number of disturbances after which the run ends; 0: only `time` ends it.
    pub count: u64,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub verdict: Verdict,
    pub waits: Waits,
    pub disturbed: u64,
    pub took: Duration,
}

impl Outcome {
    /// A line for a human reader.
    pub fn summary(&self) -> String {
        let Verdict { grants, overtaken, losses, longest_ns, .. } = self.verdict;
        format!(
            "{} disturbances in {:.1} s; {grants} grants, {losses} losses told, {overtaken} \
             overtaken by a stop, longest call {} ms, {} violations",
            self.disturbed,
            self.took.as_secs_f64(),
            longest_ns / 1_000_000,
            self.verdict.violations.len()
        )
    }
}

/// How long a run with one seed lasts. The next one has a new primary, new clients and other
/// faults.
const ROUND: Duration = Duration::from_secs(20);

/// The runs of [`chaos`] with one seed after the other.
pub fn rounds(fabric: FabricChoice, seed: u64, time: Duration) -> Vec<Plan> {
    let count = time.as_secs().div_ceil(ROUND.as_secs());
    let plan = |n| {
        let before = ROUND.saturating_mul(u32::try_from(n).unwrap_or(u32::MAX));
        chaos(fabric, seed.wrapping_add(n), time.saturating_sub(before).min(ROUND))
    };
    (0..count).map(plan).collect()
}

/// A run of all operations with faults, in processes with two clients each.
pub fn chaos(fabric: FabricChoice, seed: u64, time: Duration) -> Plan {
    let disturbances = Disturbances { faulty: true, ..Default::default() };
    let (style, workers, threads) = (Style::Mix, 4, 2);
    Plan { fabric, seed, style, workers, threads, group: 4, locks: 6, disturbances, time, count: 0 }
}

/// A run of processes that wait for locks, and are stopped for longer than their leases.
pub fn stops(fabric: FabricChoice, seed: u64, workers: u64, count: u64) -> Plan {
    let disturbances = Disturbances { stops: true, ..Default::default() };
    let plan = chaos(fabric, seed, Duration::from_secs(3_600));
    let (style, threads, group, locks) = (Style::One, 1, 6, 3);
    Plan { style, workers, threads, group, locks, disturbances, count, ..plan }
}

/// A run of processes that are killed during their operations; with faults if the seed is odd.
pub fn kills(fabric: FabricChoice, seed: u64, count: u64) -> Plan {
    let faulty = seed % 2 == 1;
    let disturbances = Disturbances { kills: true, faulty, ..Default::default() };
    Plan { disturbances, count, ..chaos(fabric, seed, Duration::from_secs(3_600)) }
}

/// A run in which the primary is stopped again and again, for longer than the leases.
pub fn frozen(fabric: FabricChoice, seed: u64, count: u64) -> Plan {
    let disturbances = Disturbances { primary_stops: true, ..Default::default() };
    Plan { disturbances, count, ..stops(fabric, seed, 18, count) }
}

/// A run in which the primary is killed again and again, and its clients come to its successor.
pub fn failovers(fabric: FabricChoice, seed: u64, count: u64) -> Plan {
    let disturbances = Disturbances { primary_kills: true, ..Default::default() };
    Plan { disturbances, count, ..stops(fabric, seed, 12, count) }
}

/// As [`failovers`], with clients whose library finds the successor.
pub fn by_itself(fabric: FabricChoice, seed: u64, count: u64) -> Plan {
    let plan = failovers(fabric, seed, count);
    Plan { disturbances: Disturbances { by_itself: true, ..plan.disturbances }, ..plan }
}

/// A run in which, again and again, the primary is stopped, another takes its place, and the first
/// one is continued.
pub fn deposed(fabric: FabricChoice, seed: u64, count: u64) -> Plan {
    let plan = stops(fabric, seed, 12, count);
    let disturbances = Disturbances { primary_deposed: true, by_itself: true, ..<_>::default() };
    Plan { disturbances, ..plan }
}

/// A run of eight clients on fair locks without faults.
pub fn fair(fabric: FabricChoice, seed: u64, time: Duration) -> Plan {
    let disturbances = Disturbances::default();
    let (style, workers, threads, group) = (Style::Fair, 8, 1, 8);
    Plan { fabric, seed, style, workers, threads, group, locks: 2, disturbances, time, count: 0 }
}

/// A run in progress: its workers, and how far it has come.
struct Run<'a> {
    plan: &'a Plan,
    port: u16,
    /// The port of the primary that waits to take the place of the other; 0: there is none.
    second_port: u16,
    folder: &'a Folder,
    /// How many workers have joined.
    started: AtomicU64,
    disturbed: AtomicU64,
    until: Instant,
}

/// Executes a run. Its logs are kept if they contain a violation.
pub fn run(plan: &Plan) -> Outcome {
    let folder = Folder::new(&format!("{:?}-{}", plan.fabric, plan.seed));
    let state_file = folder.0.join("state");
    let mut primary = match plan.disturbances {
        Disturbances { primary_kills: true, .. } | Disturbances { primary_deposed: true, .. } => {
            Primary::with_state(0, &state_file)
        }
        Disturbances { primary_stops: true, .. } => Primary::apart(),
        _ => Primary::here(),
    };
    let begun = Instant::now();
    let mut pair = plan.disturbances.primary_deposed.then(|| {
        let ports = [primary.port, free_port()];
        Pair::new(primary.take_process(), ports, &state_file)
    });
    let run = Run {
        plan,
        port: primary.port,
        second_port: pair.as_ref().map_or(0, |pair| pair.ports[1]),
        folder: &folder,
        started: AtomicU64::new(0),
        disturbed: AtomicU64::new(0),
        until: begun + plan.time,
    };
    let gone = thread::scope(|scope| {
        let run = &run;
        let (stops, kills) = (plan.disturbances.primary_stops, plan.disturbances.primary_kills);
        let disturbed = &mut primary;
        let state_file = &state_file;
        if let Some(pair) = &mut pair {
            scope.spawn(move || run.depose_primaries(pair));
        } else if stops || kills {
            scope.spawn(move || match kills {
                true => run.kill_primaries(disturbed, state_file),
                false => run.disturb_primary(disturbed),
            });
        }
        let workers: Vec<_> =
            (0..plan.workers).map(|n| scope.spawn(move || run.look_after(n))).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker")).collect::<Vec<_>>()
    });
    let log = folder.read();
    let mut records = Record::parse_all(&log);
    let who = |record: &Record| match *record {
        Record::Granted(granted) => Some(granted.who),
        Record::Ended { who, .. } => Some(who),
        _ => None,
    };
    // what a process was told after the moment at which its kill began does not count
    for &(number, at) in &gone {
        let numbers = number..number + plan.threads;
        let mut mine: Vec<u64> =
            records.iter().filter_map(who).filter(|who| numbers.contains(&(who >> 32))).collect();
        mine.sort_unstable();
        mine.dedup();
        records.retain(|r| r.at() <= at || who(r).is_none_or(|w| mine.binary_search(&w).is_err()));
        records.extend(mine.into_iter().map(|who| Record::Gone { who, at }));
    }
    let groups = plan.workers.div_ceil(plan.group) as usize;
    let away_max = if plan.disturbances.by_itself { AWAY_MAX } else { Duration::ZERO };
    let call_max_ns = u64::try_from((CALL_MAX + away_max).as_nanos()).unwrap_or(u64::MAX);
    let rules = Rules { offset_ns: primary.offset_ns, locks: groups * plan.locks, call_max_ns };
    let verdict = check(&mut records, &rules);
    let waits = judge(&records);
    let took = begun.elapsed();
    let outcome = Outcome { verdict, waits, disturbed: run.disturbed.load(SeqCst), took };
    if outcome.verdict.violations.is_empty() && outcome.waits.stalls.is_empty() {
        folder.remove();
    } else {
        eprintln!(
            "logs: {}, server clock - CLOCK_MONOTONIC {:?}",
            folder.0.display(),
            primary.offset_ns
        );
    }
    outcome
}

/// A process that was killed: the number of its first client, and the time.
type Killed = (u64, u64);

impl Run<'_> {
    fn is_over(&self) -> bool {
        let count = self.plan.count;
        Instant::now() >= self.until || (count > 0 && self.disturbed.load(SeqCst) >= count)
    }

    /// Counts a disturbance, and prints the count: the tool that ends hung tests sees from it that
    /// this run makes progress.
    fn has_disturbed(&self) {
        let count = self.disturbed.fetch_add(1, SeqCst) + 1;
        if std::env::var_os("DLOCK_PROGRESS").is_some() {
            println!("progress: {count} disturbances");
        }
    }

    /// Sleeps for a random time within these bounds, milliseconds, or until the run is over.
    fn sleep(&self, rng: &mut Rng, (low, high): (u64, u64)) {
        let end = Instant::now() + Duration::from_millis(rng.range(low, high));
        while Instant::now() < end && !self.is_over() {
            let left = end.saturating_duration_since(Instant::now());
            thread::sleep(left.min(Duration::from_millis(20)));
        }
    }

    fn disturb_primary(&self, primary: &Primary) {
        let mut rng = Rng::new(self.plan.seed ^ 0xf0f0);
        loop {
            self.sleep(&mut rng, (50, 1_500));
            if self.is_over() {
                return;
            }
            primary.pause(Duration::from_millis(rng.range(STOP_MS.0, STOP_MS.1)));
            self.has_disturbed();
        }
    }

    /// Waits until all workers have joined.
    fn all_have_joined(&self) {
        while self.started.load(SeqCst) < self.plan.workers && !self.is_over() {
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until every worker has logged something more, for no longer than a call may take.
    fn all_are_served(&self) {
        let (begun, before) = (Instant::now(), self.folder.lens());
        let is_served = |now: &BTreeMap<PathBuf, u64>| {
            before.iter().all(|(path, len)| now.get(path).is_some_and(|now| now > len))
        };
        while begun.elapsed() < CALL_MAX && !self.is_over() && !is_served(&self.folder.lens()) {
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// How many times longer it takes to join than over tcp: over verbs each client makes several
    /// queue pairs.
    fn joins(&self) -> u64 {
        match self.plan.fabric {
            FabricChoice::Verbs | FabricChoice::Sealed => 8,
            _ => 1,
        }
    }

    /// Kills primaries one after the other, and starts each successor at the same port, until the
    /// run is over.
    fn kill_primaries(&self, primary: &mut Primary, state_file: &Path) {
        let mut rng = Rng::new(self.plan.seed ^ 0x0f0f);
        self.all_have_joined();
        let joins = self.joins();
        for kill in 1.. {
            if kill % (HASTY_KILLS + 1) == 0 {
                self.all_are_served();
            }
            self.sleep(&mut rng, (20 * joins, 1_500 * joins));
            if self.is_over() {
                return;
            }
            primary.kill();
            thread::sleep(Duration::from_millis(rng.range(0, 300)));
            *primary = Primary::with_state(self.port, state_file);
            self.has_disturbed();
        }
    }

    /// Deposes primaries one after the other; they use two ports in turns.
    fn depose_primaries(&self, pair: &mut Pair) {
        let mut rng = Rng::new(self.plan.seed ^ 0x0ff0);
        self.all_have_joined();
        let joins = self.joins();
        loop {
            self.sleep(&mut rng, (20 * joins, 1_000 * joins));
            if self.is_over() {
                return;
            }
            pair.depose(Duration::from_millis(rng.range(0, 500)));
            self.has_disturbed();
        }
    }

    fn start(&self, n: u64, life: u64) -> Process {
        let plan = self.plan;
        let group = (n / plan.group) as usize;
        let log = self.folder.0.join(format!("{n}-{life}.log"));
        let job = Job {
            style: plan.style,
            fabric: plan.fabric,
            port: self.port,
            second_port: self.second_port,
            seed: plan.seed.wrapping_add(life.wrapping_mul(0x1_0001)),
            // each life of each worker has a number of its own
            number: life * 10_000 + n * plan.threads,
            threads: plan.threads,
            locks: (group * plan.locks, plan.locks),
            faulty: plan.disturbances.faulty,
            failover: match plan.disturbances {
                Disturbances { by_itself: true, .. } => Failover::ByItself,
                Disturbances { primary_kills: true, .. } => Failover::ByHand,
                _ => Failover::None,
            },
            log: log.display().to_string(),
        };
        Process::start(&job.to_string(), "ready").0
    }

    /// Runs a worker to the end of the run; if it is killed, starts another in its place.
    fn look_after(&self, n: u64) -> Vec<Killed> {
        let Disturbances { stops, kills, .. } = self.plan.disturbances;
        let mut rng = Rng::new(self.plan.seed ^ (n + 1) << 20);
        let joins = self.joins();
        let mut killed = Vec::new();
        let mut life = 0;
        let mut process = self.start(n, life);
        self.started.fetch_add(1, SeqCst);
        while !self.is_over() {
            match (stops, kills) {
                (true, _) => {
                    self.sleep(&mut rng, (20, 1_200));
                    if !self.is_over() {
                        process.pause(Duration::from_millis(rng.range(STOP_MS.0, STOP_MS.1)));
                        self.has_disturbed();
                    }
                }
                (false, true) => {
                    self.sleep(&mut rng, (50, 1_500 * joins));
                    if !self.is_over() {
                        killed.push((life * 10_000 + n * self.plan.threads, boot_ns()));
                        process.kill();
                        self.has_disturbed();
                        life += 1;
                        process = self.start(n, life);
                    }
                }
                (false, false) => self.sleep(&mut rng, (100, 100)),
            }
        }
        process.dismiss();
        let status = process.left().expect("a worker comes to an end");
        assert!(status.success(), "worker {n}: {status}");
        killed
    }
}
