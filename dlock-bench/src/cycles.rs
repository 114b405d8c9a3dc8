// SPDX-License-Identifier: MIT OR Apache-2.0
//! One client alone: acquire and release, batches, objects.

use dlock_core::clock::Lease;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use dlock_client::raw::Instance;
use dlock_core::ids::{ClientId, LockId, Seq, Slot};
use dlock_core::limits::{BATCH_MAX, LOCKS_MAX};
use dlock_core::memory::word_op::{Chain, Word, WordAddr, WordOp};
use dlock_core::wire::control::LockDesc;
use dlock_core::wire::fabric::{Executes, FabricKind};
use dlock_core::wire::message::{LockType, Mode};
use dlock_core::wire::status::Status;
use dlock_fabric::baseline::{two_cas_ns, Echo};
use dlock_fabric::os::clock::boot_ns;
use dlock_fabric::verbs::BareFaa;

use crate::sample::{in_long_turns, in_turns, Baseline, Measure, Samples};
use crate::{client, lock_of, must, name, Run};
use dlock_cli_common::failure::Failure;

/// The lease of every acquire: no deadline passes during a measurement.
const LEASE_S: u32 = 30;
/// How many cycles belong to one sample if the client executes its chains itself: such a cycle
/// takes about as long as a reading of the clock.
const BLOCK: u32 = 256;
/// How many samples a full run takes: of blocks, and of single cycles.
const SAMPLES_IN_BLOCKS: u32 = 4_000;
const SAMPLES_ONE_BY_ONE: u32 = 20_000;

/// How long a primary and the end of an echo have no work before a turn, so that both sleep. Before
/// that they look for work for a millisecond.
const REST: Duration = Duration::from_millis(3);

/// The kinds of hold that are measured.
const HOLDS: [(&str, LockType, Mode); 5] = [
    ("atomic", LockType::Atomic, Mode::Exclusive),
    ("rw exclusive", LockType::Rw, Mode::Exclusive),
    ("rw shared", LockType::Rw, Mode::Shared),
    ("fair exclusive", LockType::Fair, Mode::Exclusive),
    ("fair shared", LockType::Fair, Mode::Shared),
];

/// Measures all cases on one fabric.
pub fn run(run: &mut Run<'_>, fabric: FabricKind) -> Result<(), Failure> {
    let instance = run.client(fabric)?;
    for (kind, lock_type, mode) in HOLDS {
        let case = format!("{kind} acquire+release");
        if run.wants(&case, fabric) {
            let lock = lock_of(&instance, &format!("bench {kind}"), lock_type)?;
            let rows = match fabric.executes() {
                Executes::Primary | Executes::Device => {
                    one_by_one(run, fabric, &instance, kind, lock, mode)?
                }
                Executes::Client => vec![in_blocks(run, fabric, &instance, kind, lock, mode)?],
            };
            run.rows.extend(rows);
            instance.release_lock(lock);
        }
    }
    if run.wants("batch of 31 acquire", fabric) {
        let row = batch(run, &instance, fabric)?;
        run.rows.push(row);
    }
    if run.wants("object faa", fabric) {
        let row = object(run, &instance, fabric)?;
        run.rows.push(row);
    }
    instance.deinit();
    Ok(())
}

/// Measures a fabric over which the client executes its chains itself.
fn in_blocks(
    run: &Run<'_>,
    fabric: FabricKind,
    instance: &Instance,
    kind: &str,
    lock: LockId,
    mode: Mode,
) -> Result<Samples, Failure> {
    let mut samples = Samples::new(&format!("{kind} acquire+release"), name(fabric), BLOCK);
    let mut case = || {
        let start = Instant::now();
        for _ in 0..BLOCK {
            must("trylock", instance.trylock(lock, mode, LEASE_S).status)?;
            must("unlock", instance.unlock(lock).status)?;
        }
        Ok(start.elapsed().as_nanos() as f64 / f64::from(BLOCK))
    };
    let mut baseline = || Ok(two_cas_ns(BLOCK));
    in_turns(
        &mut samples,
        run.samples(SAMPLES_IN_BLOCKS),
        "two raw CAS",
        &mut case,
        &mut baseline,
    )?;
    Ok(samples.rate_from_mean())
}

/// The length of a frame that carries so many compare-and-swaps.
pub fn chain_bytes(chains: usize) -> usize {
    let addr = WordAddr::new(Slot(0), Word::W0);
    let chain = Chain::one(WordOp::Cas { addr, expect: 0, swap: u64::from(ClientId::MAX) });
    let mut frame = Vec::new();
    dlock_core::wire::codec::encode_batch(Seq(1), &vec![chain; chains], &mut frame);
    frame.len()
}

/// A raw TCP connection that echoes frames of this length.
pub fn echo(bytes: usize) -> Result<Echo, Failure> {
    Echo::tcp(bytes).map_err(|e| Failure::plain(format!("bench: the raw round trip: {e}")))
}

pub fn round_trip(echo: &mut Echo) -> Result<f64, Failure> {
    let ns = echo.round_trip_ns();
    ns.map(|ns| ns as f64).map_err(|e| Failure::plain(format!("bench: raw round trip: {e}")))
}

/// Measures a fabric over which the primary or a device executes the chains: an operation takes
/// much longer than a reading of the clock.
fn one_by_one(
    run: &Run<'_>,
    fabric: FabricKind,
    instance: &Instance,
    kind: &str,
    lock: LockId,
    mode: Mode,
) -> Result<Vec<Samples>, Failure> {
    let mut acquire = Samples::new(&format!("{kind} acquire"), name(fabric), 1);
    let mut cycle = Samples::new(&format!("{kind} acquire+release"), name(fabric), 1);
    let once = || {
        let start_ns = boot_ns();
        let got = instance.trylock(lock, mode, LEASE_S).status;
        let acquired_ns = boot_ns();
        let gone = instance.unlock(lock).status;
        let released_ns = boot_ns();
        must("trylock", got)?;
        must("unlock", gone)?;
        Ok::<_, Failure>(((acquired_ns - start_ns) as f64, (released_ns - start_ns) as f64))
    };
    let count = run.samples(SAMPLES_ONE_BY_ONE);
    one_with_its_baseline(&mut acquire, count, fabric, &mut || Ok(once()?.0))?;
    for _ in 0..count {
        cycle.times.record(once()?.1);
    }
    if let (Executes::Device, Some(baseline)) = (fabric.executes(), &acquire.baseline) {
        cycle.baseline = Some(Baseline { name: baseline.name, times: baseline.times.clone() });
    }
    Ok(vec![acquire.rate_from_mean(), cycle.rate_from_mean()])
}

/// Measures a case beside its baseline: a fetch-and-add as perftest posts it, or a TCP round trip.
fn one_with_its_baseline(
    samples: &mut Samples,
    count: u32,
    fabric: FabricKind,
    case: Measure<'_>,
) -> Result<(), Failure> {
    if fabric.executes() == Executes::Device {
        let failed = |e| Failure::plain(format!("bench: a raw fetch-and-add: {e}"));
        let mut raw = BareFaa::new(None).map_err(failed)?;
        let mut baseline = || {
            let start_ns = boot_ns();
            raw.once().map_err(failed)?;
            Ok((boot_ns() - start_ns) as f64)
        };
        let times = in_long_turns(samples, count, Duration::ZERO, case, &mut baseline)?;
        samples.baseline = Some(Baseline { name: "a raw fetch-and-add", times });
        return Ok(());
    }
    let mut echo = echo(chain_bytes(1))?;
    let mut baseline = || round_trip(&mut echo);
    let times = in_long_turns(samples, count, REST, case, &mut baseline)?;
    samples.baseline = Some(Baseline { name: "raw TCP round trip", times });
    Ok(())
}

/// Acquires 31 locks in one call; the baseline is an acquire of one lock.
fn batch(run: &Run<'_>, instance: &Instance, fabric: FabricKind) -> Result<Samples, Failure> {
    let locks = (0..=BATCH_MAX)
        .map(|i| lock_of(instance, &format!("bench batch {i}"), LockType::Atomic))
        .collect::<Result<Vec<_>, _>>()?;
    let (one, many) = locks.split_last().expect("there are 32");
    let wanted: Vec<_> = many.iter().map(|l| (*l, Mode::Exclusive, LEASE_S)).collect();
    let mut results = vec![dlock_client::raw::OpResult::of(Status::Success); BATCH_MAX];
    let mut samples = Samples::new("batch of 31 acquire", name(fabric), 1);
    let mut case = || {
        let start = Instant::now();
        must("batch_trylock", instance.batch_trylock(&wanted, &mut results))?;
        let took = start.elapsed().as_nanos() as f64;
        results.iter().try_for_each(|r| must("batch_trylock", r.status))?;
        must("batch_unlock", instance.batch_unlock(many, &mut results))?;
        results.iter().try_for_each(|r| must("batch_unlock", r.status))?;
        Ok(took)
    };
    let mut baseline = || {
        let start = Instant::now();
        must("trylock", instance.trylock(*one, Mode::Exclusive, LEASE_S).status)?;
        let took = start.elapsed().as_nanos() as f64;
        must("unlock", instance.unlock(*one).status)?;
        Ok(took)
    };
    in_turns(
        &mut samples,
        run.samples(SAMPLES_ONE_BY_ONE),
        "acquire of one",
        &mut case,
        &mut baseline,
    )?;
    for lock in &locks {
        instance.release_lock(*lock);
    }
    Ok(samples.rate_from_mean())
}

fn object(run: &Run<'_>, instance: &Instance, fabric: FabricKind) -> Result<Samples, Failure> {
    let refused = |status| Failure::refused("bench: the object", status);
    instance.object_create(b"bench object", Lease::secs(LEASE_S), 0).map_err(refused)?;
    let object = instance.object_get(b"bench object", Lease::secs(LEASE_S)).map_err(refused)?;
    let in_blocks = fabric.executes() == Executes::Client;
    let per_sample = if in_blocks { BLOCK } else { 1 };
    let mut samples = Samples::new("object faa", name(fabric), per_sample);
    let mut case = || {
        let start_ns = boot_ns();
        for _ in 0..per_sample {
            instance.faa(object, 1).map_err(refused)?;
        }
        Ok((boot_ns() - start_ns) as f64 / f64::from(per_sample))
    };
    let count = run.samples(SAMPLES_ONE_BY_ONE);
    if in_blocks {
        let mut baseline = || Ok(two_cas_ns(BLOCK) / 2.0);
        in_turns(&mut samples, count, "one raw CAS", &mut case, &mut baseline)?;
    } else {
        one_with_its_baseline(&mut samples, count, fabric, &mut case)?;
    }
    let mut samples = samples.rate_from_mean();
    if fabric.executes() == Executes::Device {
        // One after the other without a pause, as perftest counts.
        let start = Instant::now();
        for _ in 0..count {
            instance.faa(object, 1).map_err(refused)?;
        }
        samples.per_second = f64::from(count) / start.elapsed().as_secs_f64();
    }
    must("object destroy", instance.object_destroy(object))?;
    instance.object_release(object);
    Ok(samples)
}

/// One client gets as many locks as a primary can have, in batches; one sample per batch.
pub fn get_all_locks(primary: SocketAddr, fabric: FabricKind) -> Result<Samples, Failure> {
    let instance = client(primary, fabric)?;
    let mut samples = Samples::new("get locks, batches of 31", name(fabric), 1);
    let start = Instant::now();
    let mut got = 0;
    while got < LOCKS_MAX {
        let some = BATCH_MAX.min(LOCKS_MAX - got);
        let descs = (got..got + some)
            .map(|i| LockDesc {
                name: format!("bench lock {i}").into_bytes(),
                lock_type: LockType::Atomic,
                lease_s: 0,
                tokens: false,
            })
            .collect();
        let before = Instant::now();
        let results = instance.batch_get_lock(descs);
        samples.times.record(before.elapsed().as_nanos() as f64);
        for result in results.map_err(|s| Failure::refused("batch_get_lock", s))? {
            result.map_err(|s| Failure::refused("batch_get_lock", s))?;
        }
        got += some;
    }
    let seconds = start.elapsed().as_secs_f64();
    samples.per_second = got as f64 / seconds;
    samples.note = format!("{got} locks in {seconds:.2} s");
    instance.deinit();
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bare_round_trip_carries_as_many_bytes_as_an_acquire() {
        assert!(chain_bytes(1) > 24);
        assert!(chain_bytes(31) > 31 * 16);
    }
}
