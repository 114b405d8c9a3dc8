// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cycle of acquire and release through the C libraries, measured by a C program
//! (benches/c/cycle.c). This crate starts that program, because loading a C library is unsafe code.

use std::process::Command;

use dlock_core::wire::fabric::{Executes, FabricKind};

use crate::sample::{Baseline, Samples, Times};
use crate::{name, Run};
use dlock_cli_common::failure::Failure;

/// How many cycles belong to one sample; the C program is told this number.
const BLOCK: u32 = 256;
/// How many samples a full run takes.
const SAMPLES: u32 = 10_000;

/// Measures the cycle on one fabric, or records why that is skipped.
pub fn run(run: &mut Run<'_>, fabric: FabricKind) -> Result<(), Failure> {
    let case = "atomic acquire+release, C API";
    if !run.wants(case, fabric) {
        return Ok(());
    }
    let Some(program) = &run.bench.c_program else {
        let reason = "no --c-program was given (make bench builds and gives it)";
        run.skipped.push((format!("{case} on {}", name(fabric)), reason.into()));
        return Ok(());
    };
    let block = match fabric.executes() {
        Executes::Client => BLOCK,
        Executes::Primary | Executes::Device => 1,
    };
    let samples = run.samples(SAMPLES);
    let output = Command::new(program)
        .args([run.primary.ip().to_string(), run.primary.port().to_string()])
        .args([block.to_string(), samples.to_string()])
        .env("DLOCK_FABRIC", name(fabric))
        .output()
        .map_err(|e| Failure::plain(format!("{}: {e}", program.display())))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().last().unwrap_or("nothing").to_string();
        let cause = format!("{} ended with {}: {said}", program.display(), output.status);
        return Err(Failure::plain(cause));
    }
    let row = read(case, fabric, block, &String::from_utf8_lossy(&output.stdout))?;
    run.rows.push(row);
    Ok(())
}

/// Parses lines of two numbers: the nanoseconds of a cycle, and of two raw compare-and-swaps.
fn read(case: &str, fabric: FabricKind, block: u32, lines: &str) -> Result<Samples, Failure> {
    let mut samples = Samples::new(case, name(fabric), block);
    let mut baseline = Times::new();
    for line in lines.lines() {
        let mut numbers = line.split_whitespace().map(str::parse::<f64>);
        let (Some(Ok(cycle)), Some(Ok(raw))) = (numbers.next(), numbers.next()) else {
            return Err(Failure::plain(format!("the C program says '{line}'")));
        };
        samples.times.record(cycle);
        baseline.record(raw);
    }
    if fabric.executes() == Executes::Client {
        samples.baseline = Some(Baseline { name: "two raw CAS", times: baseline });
    }
    Ok(samples.rate_from_mean())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_c_program_are_read_and_others_refused() {
        let samples = read("x", FabricKind::Shm, 2, "100.0 10.0\n100.0 10.0\n").unwrap();
        assert!((samples.ratio().unwrap() - 10.0).abs() < 0.1);
        assert!(read("x", FabricKind::Shm, 2, "hello\n").is_err());
    }
}
