// SPDX-License-Identifier: MIT OR Apache-2.0
//! What heavy clients cost an innocent client beside them.
//!
//! ```text
//!   innocent: one `trylock` at a time, over tcp ─┐
//!   load: idle │ well-behaved │ idle │ heavy │ … ┴▶ primary      in turns of 100 ms
//! ```
//! The well-behaved load is the same kind of work by clients with one request at a time. Both loads
//! run on the CPU time that the primary and the innocent client leave.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dlock_client::raw::Instance;
use dlock_core::ids::LockId;
use dlock_core::wire::fabric::FabricKind;
use dlock_core::wire::message::{LockType, Mode};
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

use crate::loads::{Batches, Connections, Control, Leaver, Load, Waiters};
use crate::sample::{Baseline, Samples, Times};
use crate::{lock_of, must, name, Run};
use dlock_cli_common::failure::Failure;
use dlock_cli_common::process::Primary;

/// A part of the names of these cases, which are measured only if `--only` names it.
const GROUP: &str = "neighbours";
/// How many turns each phase of the load has in a full run.
const TURNS: u32 = 50;
/// How long the innocent client is measured in one turn.
const TURN: Duration = Duration::from_millis(100);
/// The time from the beginning of a load to the first sample.
const SETTLE: Duration = Duration::from_millis(5);
/// The lease of every acquire: no deadline passes during a measurement.
const LEASE_S: u32 = 3_600;
/// How many clients wait for one lock.
const WAITERS: usize = 990;

const IDLE: u8 = 0;
const WELL_BEHAVED: u8 = 1;
const HEAVY: u8 = 2;

/// The phase in which a load is, and the phase to which it is to change.
#[derive(Default)]
struct Stage {
    wanted: AtomicU8,
    now: AtomicU8,
    over: AtomicBool,
    /// How much work was done in each phase.
    done: [AtomicU64; 3],
}

/// Makes the load of one case.
type Make = fn(SocketAddr) -> Result<Vec<Box<dyn Load>>, Failure>;

/// Measures all kinds of neighbours.
pub fn run(run: &mut Run<'_>) -> Result<(), Failure> {
    if !run.bench.only.as_ref().is_some_and(|only| only.contains(GROUP)) {
        return Ok(());
    }
    raise_descriptor_limit();
    let kinds: [(&str, Make); 6] = [
        ("1 pipelines batches of 31", |primary| batches(primary, 1)),
        ("3 pipeline batches of 31", |primary| batches(primary, 3)),
        ("one leaves with all locks", |primary| Ok(vec![Box::new(Leaver::new(primary)?)])),
        ("990 wait for one lock", |primary| Ok(vec![Box::new(Waiters::new(primary, WAITERS)?)])),
        ("3 get and release 31", |primary| Ok(vec![Box::new(Control::new(primary)?)])),
        ("bursts of connections", |primary| Ok(vec![Box::new(Connections::new(primary))])),
    ];
    for (kind, make) in kinds {
        let case = format!("{GROUP}: {kind}");
        if run.wants(&case, FabricKind::Tcp) {
            let primary = Primary::start(crate::ANY_PORT, 0, None, FabricKind::Tcp.into())?;
            let innocent = crate::client(primary.address, FabricKind::Tcp)?;
            let names = (case.as_str(), "beside the same, well-behaved");
            let innocent = Innocent { instance: &innocent, pause: Duration::ZERO };
            let row = beside(run, &innocent, names, make(primary.address)?)?;
            run.rows.push(row);
        }
    }
    Ok(())
}

fn batches(primary: SocketAddr, clients: usize) -> Result<Vec<Box<dyn Load>>, Failure> {
    let one = |i| Ok(Box::new(Batches::new(primary, i)?) as Box<dyn Load>);
    (0..clients).map(one).collect()
}

/// Raises the limit of descriptors: a thousand clients have two thousand connections. If the limit
/// stays too low, the case fails and says so.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// The client whose times are measured.
pub struct Innocent<'a> {
    /// The session of the client.
    pub instance: &'a Instance,
    /// Time between two operations; zero: the client takes CPU time from the loads.
    pub pause: Duration,
}

/// Measures the innocent client beside loads of one kind. `baseline`: the name of what the loads do
/// when they are not heavy.
pub fn beside(
    run: &Run<'_>,
    innocent: &Innocent<'_>,
    (case, baseline): (&str, &'static str),
    loads: Vec<Box<dyn Load>>,
) -> Result<Samples, Failure> {
    let lock = lock_of(innocent.instance, "bench innocent", LockType::Atomic)?;
    let stages: Vec<Stage> = loads.iter().map(|_| Stage::default()).collect();
    let mut times = [Times::new(), Times::new(), Times::new()];
    let turns = run.samples(TURNS);
    let failed = thread::scope(|scope| {
        let played: Vec<_> = loads
            .into_iter()
            .zip(&stages)
            .map(|(load, stage)| scope.spawn(move || play(load, stage)))
            .collect();
        let measured = (0..turns).try_for_each(|_| {
            for phase in [IDLE, WELL_BEHAVED, IDLE, HEAVY] {
                one_turn(&stages, phase, innocent, lock, &mut times[usize::from(phase)])?;
            }
            Ok(())
        });
        stages.iter().for_each(|stage| stage.over.store(true, Ordering::SeqCst));
        let played = played.into_iter().map(|t| t.join().expect("bench threads do not panic"));
        played.chain([measured]).collect::<Result<Vec<()>, Failure>>().err()
    });
    if let Some(failure) = failed {
        return Err(failure);
    }
    let done = |phase: u8| -> f64 {
        let done = stages.iter().map(|s| s.done[usize::from(phase)].load(Ordering::Relaxed));
        done.sum::<u64>() as f64 / (f64::from(turns) * (TURN + SETTLE).as_secs_f64())
    };
    let [alone, well_behaved, heavy] = times;
    let mut samples = Samples::new(case, name(FabricKind::Tcp), 1);
    samples.note = format!(
        "99%: {:.0} us beside {:.0} us; longest {:.0} beside {:.0} us; alone {:.0} us, 99% {:.0}; \
         load {:.0}/s beside {:.0}/s",
        heavy.quantile_ns(0.99) / 1e3,
        well_behaved.quantile_ns(0.99) / 1e3,
        heavy.max_ns() / 1e3,
        well_behaved.max_ns() / 1e3,
        alone.quantile_ns(0.5) / 1e3,
        alone.quantile_ns(0.99) / 1e3,
        done(HEAVY),
        done(WELL_BEHAVED),
    );
    samples.times = heavy;
    samples.baseline = Some(Baseline { name: baseline, times: well_behaved });
    Ok(samples.rate_from_mean())
}

/// Samples the innocent client beside one phase of the loads.
fn one_turn(
    stages: &[Stage],
    phase: u8,
    innocent: &Innocent<'_>,
    lock: LockId,
    times: &mut Times,
) -> Result<(), Failure> {
    let Innocent { instance, pause } = innocent;
    stages.iter().for_each(|stage| stage.wanted.store(phase, Ordering::SeqCst));
    for stage in stages {
        while stage.now.load(Ordering::SeqCst) != phase {
            if stage.over.load(Ordering::SeqCst) {
                return Err(Failure::plain("bench: the load has ended"));
            }
            thread::sleep(Duration::from_micros(100));
        }
    }
    let begin = Instant::now();
    while begin.elapsed() < SETTLE + TURN {
        if !pause.is_zero() {
            thread::sleep(*pause);
        }
        let start = Instant::now();
        let got = instance.trylock(lock, Mode::Exclusive, LEASE_S).status;
        let took = start.elapsed();
        must("trylock beside a neighbour", got)?;
        must("unlock beside a neighbour", instance.unlock(lock).status)?;
        // the cost of a leaver comes at once, so a heavy phase is sampled from its beginning
        if phase == HEAVY || begin.elapsed() > SETTLE {
            times.record(took.as_nanos() as f64);
        }
    }
    Ok(())
}

fn play(mut load: Box<dyn Load>, stage: &Stage) -> Result<(), Failure> {
    // the measurement is about the primary, not about who gets a CPU
    dlock_fabric::os::threads::yield_current_thread_to_all().map_err(|e| {
        Failure::plain(format!("bench: the load cannot step back for the others: {e}"))
    })?;
    let played = play_on(load.as_mut(), stage);
    stage.over.store(true, Ordering::SeqCst); // set also after an error, so that the loads stop
    played
}

fn play_on(load: &mut dyn Load, stage: &Stage) -> Result<(), Failure> {
    let mut now = IDLE;
    while !stage.over.load(Ordering::SeqCst) {
        let wanted = stage.wanted.load(Ordering::SeqCst);
        if wanted != now {
            load.end(now == HEAVY)?;
            if wanted != IDLE {
                load.begin(wanted == HEAVY)?;
            }
            now = wanted;
            stage.now.store(now, Ordering::SeqCst);
        }
        match now {
            IDLE => thread::sleep(Duration::from_micros(200)),
            phase => {
                let done = load.go_on(phase == HEAVY)?;
                stage.done[usize::from(phase)].fetch_add(done, Ordering::Relaxed);
            }
        }
    }
    load.end(now == HEAVY)
}
