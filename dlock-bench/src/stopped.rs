// SPDX-License-Identifier: MIT OR Apache-2.0
//! Verbs while the primary's process is stopped: only its device serves the memory.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use dlock_core::wire::fabric::FabricKind;
use dlock_core::wire::message::{LockType, Mode};

use crate::sample::Samples;
use crate::{lock_of, must, name, Run};
use dlock_cli_common::failure::Failure;
use dlock_cli_common::process::Primary;

/// How many operations a full run measures: acquires and releases.
const OPERATIONS: u32 = 1_000_000;
/// The lease: no deadline passes during the measurement.
const LEASE_S: u32 = 3_600;
/// How long a process may take to stop.
const STOP_WAIT: Duration = Duration::from_secs(30);

/// Measures the cycles of a client whose primary is stopped, and how much CPU time they cost the
/// primary.
pub fn run(run: &mut Run<'_>, primary: &Primary) -> Result<(), Failure> {
    let case = "atomic acquire+release, primary stopped";
    if !run.wants(case, FabricKind::Verbs) {
        return Ok(());
    }
    let instance = run.client(FabricKind::Verbs)?;
    let lock = lock_of(&instance, "bench stopped", LockType::Atomic)?;
    let mut samples = Samples::new(case, name(FabricKind::Verbs), 1);
    primary.process.freeze(true);
    await_stop(primary.process.id())?;
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

/// Waits until every thread of a process has stopped, which takes a while if others want the CPU.
fn await_stop(pid: u32) -> Result<(), Failure> {
    let is_stopped = |task: PathBuf| -> std::io::Result<bool> {
        let stat = std::fs::read_to_string(task.join("stat"))?;
        Ok(stat.rsplit(')').next().is_some_and(|fields| fields.trim_start().starts_with('T')))
    };
    let until = Instant::now() + STOP_WAIT;
    loop {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).map_err(Failure::plain)?;
        let all = tasks.map(|task| task.and_then(|task| is_stopped(task.path())));
        if all.collect::<Result<Vec<_>, _>>().map_err(Failure::plain)?.iter().all(|&is| is) {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(Failure::plain(format!("the process {pid} does not stop")));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// User and system time of a process, in ticks of the kernel (100 a second).
fn cpu_ticks(pid: u32) -> Result<u64, Failure> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).map_err(Failure::plain)?;
    // the name, in parentheses, may contain any character
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
    fn a_stop_is_awaited_and_a_process_that_is_gone_is_an_error() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let pid = child.id();
        let stop = std::process::Command::new("kill").args(["-STOP", &pid.to_string()]).status();
        assert!(stop.unwrap().success());
        await_stop(pid).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(await_stop(pid).is_err());
    }

    #[test]
    fn the_cpu_time_of_a_process_grows_when_it_works() {
        let before = cpu_ticks(std::process::id()).unwrap();
        while cpu_ticks(std::process::id()).unwrap() == before {}
        assert!(cpu_ticks(u32::MAX).is_err());
    }
}
