// SPDX-License-Identifier: MIT OR Apache-2.0
//! Verbs while the primary's process is stopped: its device serves the memory, and it does not run.

use std::time::Instant;

use dlock_core::message::{LockType, Mode};

use super::sample::Samples;
use super::{lock_of, must, name, Run};
use crate::args::Fabric;
use crate::demo::Primary;
use crate::failure::Failure;

/// Acquires and releases of a full run, each one an operation.
const OPERATIONS: u32 = 1_000_000;
/// The lease: no deadline passes during the measurement.
const LEASE_S: u32 = 3_600;

/// Measures cycles of a stopped primary's client, and the CPU time that they cost the primary.
pub fn run(run: &mut Run<'_>, primary: &Primary) -> Result<(), Failure> {
    let case = "atomic acquire+release, primary stopped";
    if !run.wants(case, Fabric::Verbs) {
        return Ok(());
    }
    let instance = run.client(Fabric::Verbs)?;
    let lock = lock_of(&instance, "bench stopped", LockType::Atomic)?;
    let mut samples = Samples::new(case, name(Fabric::Verbs), 1);
    primary.process.freeze(true);
    let before = cpu_ticks(primary.process.id())?;
    let cycles = run.samples(OPERATIONS) / 2;
    for _ in 0..cycles {
        let start = Instant::now();
        let got = instance.trylock(lock, Mode::Exclusive, LEASE_S).status;
        let gone = instance.unlock(lock).status;
        samples.times.record(start.elapsed().as_nanos() as f64);
        must("trylock at a stopped primary", got)?;
        must("unlock at a stopped primary", gone)?;
    }
    let ticks = cpu_ticks(primary.process.id())? - before;
    primary.process.freeze(false);
    samples.note = format!("{} operations, {ticks} ticks of the primary's CPU time", 2 * cycles);
    instance.deinit();
    run.rows.push(samples.rate_from_mean());
    Ok(())
}

/// User and system time of a process, in ticks of the kernel (100 a second).
fn cpu_ticks(pid: u32) -> Result<u64, Failure> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).map_err(Failure::plain)?;
    // The name, in parentheses, may hold anything.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let mut times = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    match (times.next(), times.next()) {
        (Some(Ok(user)), Some(Ok(system))) => Ok(user + system),
        _ => Err(Failure::plain(format!("{path} is not as expected"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_time_of_a_process_grows_when_it_works() {
        let before = cpu_ticks(std::process::id()).unwrap();
        while cpu_ticks(std::process::id()).unwrap() == before {}
        assert!(cpu_ticks(u32::MAX).is_err());
    }
}
