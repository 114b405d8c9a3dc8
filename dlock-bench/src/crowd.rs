// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several clients of one lock: contention, and the hand-over between two that wait.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dlock_client::raw::Instance;
use dlock_core::ids::LockId;
use dlock_core::wire::fabric::{Executes, FabricKind};
use dlock_core::wire::message::{LockType, Mode};
use dlock_core::wire::status::Status;
use dlock_fabric::baseline::Echo;

use crate::cycles::{chain_bytes, echo, round_trip};
use crate::sample::{Baseline, Samples, Times};
use crate::{lock_of, must, name, Run};
use dlock_cli_common::failure::Failure;

/// How many clients contend.
const CLIENTS: usize = 4;
/// How many times the lock is handed over in a full run.
const HAND_OVERS: u32 = 5_000;
/// How long a holder keeps the lock, so that the other client surely waits, asleep or nearly so.
const HOLD: Duration = Duration::from_micros(200);
/// The lease of every acquire: no deadline passes during a measurement.
const LEASE_S: u32 = 3_600;

/// Measures contention and the hand-over on one fabric.
pub fn run(run: &mut Run<'_>, fabric: FabricKind) -> Result<(), Failure> {
    for (kind, lock_type) in
        [("atomic", LockType::Atomic), ("rw", LockType::Rw), ("fair", LockType::Fair)]
    {
        let case = format!("{kind} contended, {CLIENTS} clients");
        if run.wants(&case, fabric) {
            let row = contended(run, fabric, &case, lock_type)?;
            run.rows.push(row);
        }
    }
    if run.wants("hand-over to a waiter", fabric) {
        let row = hand_over(run, fabric)?;
        run.rows.push(row);
    }
    Ok(())
}

fn clients(
    run: &Run<'_>,
    fabric: FabricKind,
    count: usize,
    lock: &str,
    lock_type: LockType,
) -> Result<Vec<(Instance, LockId)>, Failure> {
    let one = || {
        let instance = run.client(fabric)?;
        let lock = lock_of(&instance, lock, lock_type)?;
        Ok((instance, lock))
    };
    (0..count).map(|_| one()).collect()
}

/// Acquires as the C `lock` does; 5 s without a turn are no failure.
fn acquire(instance: &Instance, lock: LockId) -> Result<(), Failure> {
    loop {
        match instance.lock(lock, Mode::Exclusive, LEASE_S).status {
            Status::Fail | Status::Again => {}
            status => return must("lock", status),
        }
    }
}

fn contended(
    run: &Run<'_>,
    fabric: FabricKind,
    case: &str,
    lock_type: LockType,
) -> Result<Samples, Failure> {
    let clients = clients(run, fabric, CLIENTS, case, lock_type)?;
    let length = Duration::from_millis(u64::from(run.samples(2_000)));
    let over = AtomicBool::new(false);
    let start = Instant::now();
    let counts = thread::scope(|scope| {
        let cycle = |(instance, lock): &(Instance, LockId)| {
            let mut times = Times::new();
            while !over.load(Ordering::Relaxed) {
                let before = Instant::now();
                acquire(instance, *lock)?;
                must("unlock", instance.unlock(*lock).status)?;
                times.record(before.elapsed().as_nanos() as f64);
            }
            Ok(times)
        };
        let threads: Vec<_> =
            clients.iter().map(|client| scope.spawn(move || cycle(client))).collect();
        thread::sleep(length);
        over.store(true, Ordering::Relaxed);
        let joined = threads.into_iter().map(|t| t.join().expect("bench threads do not panic"));
        joined.collect::<Result<Vec<Times>, Failure>>()
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let mut samples = Samples::new(case, name(fabric), 1);
    counts.iter().for_each(|times| samples.times.merge(times));
    samples.per_second = samples.times.count() as f64 / seconds;
    let most = counts.iter().map(Times::count).max().unwrap_or(0);
    let least = counts.iter().map(Times::count).min().unwrap_or(0);
    samples.note = format!("grants per client: {least} to {most}");
    Ok(samples)
}

/// Two clients pass a lock to and fro. A sample is the time from before the unlock of one until the
/// blocked `lock` of the other returns. The baseline is a raw round trip of a message on this
/// fabric, taken by the new holder each time.
fn hand_over(run: &Run<'_>, fabric: FabricKind) -> Result<Samples, Failure> {
    let clients = clients(run, fabric, 2, "bench hand-over", LockType::Atomic)?;
    let base = Instant::now();
    // nanoseconds after `base`, and in the lowest bit which client released; 0: none has yet
    let released = AtomicU64::new(0);
    let waiting = [AtomicBool::new(false), AtomicBool::new(false)];
    // whether one client has had all its rounds; the other may have some left if it queued too late
    let over = AtomicBool::new(false);
    let rounds = run.samples(HAND_OVERS);
    let play = |me: usize| -> Result<(Times, Times), Failure> {
        let (instance, lock) = &clients[me];
        let mut echo = message_echo(fabric)?;
        let (mut times, mut baseline) = (Times::new(), Times::new());
        for round in 0..rounds {
            waiting[me].store(true, Ordering::SeqCst);
            acquire(instance, *lock)?;
            let now = base.elapsed().as_nanos() as u64;
            waiting[me].store(false, Ordering::SeqCst);
            let before = released.load(Ordering::SeqCst);
            if before != 0 && before & 1 != me as u64 {
                times.record(now.saturating_sub(before >> 1) as f64);
                baseline.record(round_trip(&mut echo)?);
            }
            let ends = || over.load(Ordering::SeqCst);
            while !waiting[1 - me].load(Ordering::SeqCst) && round + 1 < rounds && !ends() {
                std::hint::spin_loop();
            }
            thread::sleep(HOLD);
            let at = base.elapsed().as_nanos() as u64;
            released.store(at << 1 | me as u64, Ordering::SeqCst);
            must("unlock", instance.unlock(*lock).status)?;
            if ends() {
                break;
            }
        }
        Ok((times, baseline))
    };
    let play = |me: usize| {
        let played = play(me);
        // set also after an error, so that the other client stops
        over.store(true, Ordering::SeqCst);
        played
    };
    let (first, second) = thread::scope(|scope| {
        let other = scope.spawn(|| play(1));
        let mine = play(0);
        (mine, other.join().expect("bench threads do not panic"))
    });
    let ((times, baseline), (more_times, more_baseline)) = (first?, second?);
    let mut samples = Samples::new("hand-over to a waiter", name(fabric), 1);
    let mut below = Baseline { name: "raw message round trip", times: baseline };
    samples.times = times;
    samples.times.merge(&more_times);
    below.times.merge(&more_baseline);
    samples.baseline = Some(below);
    Ok(samples.rate_from_mean())
}

/// A peer that echoes raw messages on this fabric.
pub fn message_echo(fabric: FabricKind) -> Result<Echo, Failure> {
    let bytes = chain_bytes(1);
    match fabric.executes() {
        Executes::Primary | Executes::Device => echo(bytes),
        Executes::Client => {
            Echo::unix(bytes).map_err(|e| Failure::plain(format!("bench: echo: {e}")))
        }
    }
}
