// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs of `scripts/chaos.sh`.
//!
//! ```text
//!   chaos --seconds N     faults between real clients and a real primary   (the default, 60 s)
//!   chaos stops N         N stops of waiting processes past their leases
//!   chaos kills N         N kills of clients in the midst of it
//!   chaos frozen N        N stops of the primary
//!   chaos failovers N     N kills of the primary, each with a successor
//!   chaos itself N        the same; the library finds the successor
//!   chaos deposed N       N stops of the primary; another takes its place, and it goes on
//!   chaos fair SECONDS    eight clients on fair locks without a fault: no stall
//!   chaos silent SECONDS  clients that are silent in the midst of a lease, beside 999 strangers
//!   chaos dead N          deaths of clients on this host: when is what they held free?
//!   chaos renewed SECONDS leases that are renewed under load; the primary is killed every 20 s
//!   options: --seed S (1), --fabric shm | tcp | verbs | sealed (those that a primary here offers)
//!            --tls: everything speaks TLS
//!            --stopped N (42): processes that are stopped at the same time, most of the time
//! ```

#[path = "../tests/harness/mod.rs"]
mod harness;

use std::process::ExitCode;
use std::time::Duration;

use dlock_client::FabricChoice;
use harness::programs::{self, Plan};
use harness::{renewed, silent};

const STOPPED: u64 = 42;
/// The time between two kills of the primary in the program `renewed`.
const KILL_EVERY: Duration = Duration::from_secs(20);

struct Arguments {
    program: String,
    number: u64,
    seed: u64,
    stopped: u64,
    fabrics: Vec<FabricChoice>,
}

fn arguments() -> Result<Arguments, String> {
    let mut all = Arguments {
        program: "chaos".into(),
        number: 0,
        seed: 1,
        stopped: STOPPED,
        fabrics: harness::fabrics().to_vec(),
    };
    let mut args = std::env::args().skip(1);
    let number = |text: Option<String>| {
        let text = text.ok_or("a number is missing")?;
        text.parse().map_err(|_| format!("{text} is no number"))
    };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seed" => all.seed = number(args.next())?,
            "--stopped" => all.stopped = number(args.next())?,
            "--seconds" => all.number = number(args.next())?,
            "--fabric" => {
                all.fabrics = vec![match args.next().as_deref() {
                    Some("shm") => FabricChoice::Shm,
                    Some("tcp") => FabricChoice::Tcp,
                    Some("verbs") => FabricChoice::Verbs,
                    Some("sealed") => FabricChoice::Sealed,
                    other => return Err(format!("{other:?} is no fabric")),
                }];
            }
            "--tls" => {}
            "stops" | "kills" | "frozen" | "failovers" | "itself" | "deposed" | "fair"
            | "silent" | "dead" | "renewed" => {
                (all.program, all.number) = (arg, number(args.next())?);
            }
            _ => return Err(format!("{arg}: see the top of {}", file!())),
        }
    }
    Ok(all)
}

/// Runs one plan; returns whether no rule was broken.
fn passes(program: &str, plan: &Plan) -> bool {
    let outcome = programs::run(plan);
    println!("{program} {:?} seed {}: {}", plan.fabric, plan.seed, outcome.summary());
    if outcome.verdict.grants == 0 {
        println!("  nothing was granted: there was nothing to see");
        return false;
    }
    if program == "fair" {
        let waits = &outcome.waits;
        println!(
            "  {} waits, the longest {} ms, {} longer than three times the longest hold in \
             front, {} stalls",
            waits.count,
            waits.longest_ns / 1_000_000,
            waits.over_one_hold,
            waits.stalls.len()
        );
        waits.stalls.iter().take(20).for_each(|stall| println!("  {stall}"));
    }
    outcome.verdict.violations.iter().for_each(|violation| println!("  {violation}"));
    outcome.verdict.violations.is_empty() && (program != "fair" || outcome.waits.stalls.is_empty())
}

/// Runs the programs with silent or dead clients.
fn silence(program: &str, number: u64, fabrics: &[FabricChoice]) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for &fabric in fabrics {
        let outcome = match program {
            "silent" => silent::silent(fabric, Duration::from_secs(number)),
            // over tcp the primary cannot know that a process has ended
            _ if fabric == FabricChoice::Tcp => continue,
            _ => silent::dead(fabric, number),
        };
        let silent::Outcome { wrong, trials, strangers, mut freed } = outcome;
        freed.sort();
        match (freed.last(), freed.get(freed.len() / 2)) {
            (Some(longest), Some(median)) => {
                let over = freed.iter().filter(|time| time.as_millis() > 50).count();
                let count = freed.len();
                println!(
                    "dead {fabric:?}: {count} deaths; all free after {median:?}, at the longest \
                     {longest:?}; {over} took more than 50 ms"
                );
            }
            _ => println!(
                "silent {fabric:?}: {trials} trials beside {strangers} strangers, {} wrong",
                wrong.len()
            ),
        }
        if !wrong.is_empty() {
            wrong.iter().take(20).for_each(|wrong| println!("  {wrong}"));
            code = ExitCode::FAILURE;
        }
    }
    code
}

/// Runs the program with leases that are renewed.
fn renewals(seconds: u64, seed: u64, fabrics: &[FabricChoice]) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for &fabric in fabrics {
        let time = Duration::from_secs(seconds);
        let outcome = renewed::renewed(fabric, seed, time, KILL_EVERY);
        println!(
            "renewed {fabric:?}: {} wrong in {seconds} s with {} kills; {} holds, {} beyond their \
             first lease, {} beyond a primary; {} locks and unlocks beside them, {} trials \
             refused; free {:.1?} after the release at the longest; a thread waited {:.1?} to \
             run at the longest, {} losses by that",
            outcome.wrong.len(),
            outcome.kills,
            outcome.holds,
            outcome.renewed,
            outcome.outlasted,
            outcome.load,
            outcome.refused,
            outcome.freed,
            outcome.gap,
            outcome.excused
        );
        outcome.wrong.iter().take(20).for_each(|wrong| println!("  {wrong}"));
        if !outcome.wrong.is_empty() || outcome.outlasted == 0 {
            code = ExitCode::FAILURE;
        }
    }
    code
}

fn main() -> ExitCode {
    if harness::obey() {
        return ExitCode::SUCCESS;
    }
    // this comes first, because it decides which fabrics a primary offers
    let _ca = std::env::args().any(|arg| arg == "--tls").then(harness::secured::begin);
    let Arguments { program, number, seed, stopped, fabrics } = match arguments() {
        Ok(arguments) => arguments,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    if matches!(program.as_str(), "silent" | "dead") {
        return silence(&program, number, &fabrics);
    }
    if program == "renewed" {
        return renewals(number, seed, &fabrics);
    }
    let mut plans: Vec<(FabricChoice, Plan)> = Vec::new();
    let count = fabrics.len() as u64;
    for &fabric in &fabrics {
        let share = number.div_ceil(count);
        let time = Duration::from_secs(number);
        match program.as_str() {
            "stops" => plans.push((fabric, programs::stops(fabric, seed, stopped, share))),
            "kills" => plans.push((fabric, programs::kills(fabric, seed, share))),
            "frozen" => plans.push((fabric, programs::frozen(fabric, seed, share))),
            "failovers" => plans.push((fabric, programs::failovers(fabric, seed, share))),
            "itself" => plans.push((fabric, programs::by_itself(fabric, seed, share))),
            "deposed" => plans.push((fabric, programs::deposed(fabric, seed, share))),
            "fair" => plans.push((fabric, programs::fair(fabric, seed, time))),
            _ => {
                let time = Duration::from_secs(if number == 0 { 30 } else { share });
                plans.extend(programs::rounds(fabric, seed, time).into_iter().map(|p| (fabric, p)));
            }
        }
    }
    let mut code = ExitCode::SUCCESS;
    for (fabric, plan) in plans {
        if !passes(&program, &plan) {
            let fabric = format!("{fabric:?}").to_lowercase();
            let what = match program.as_str() {
                "chaos" => format!("--seconds {}", plan.time.as_secs()),
                _ => format!("{program} {number}"),
            };
            println!("again: scripts/chaos.sh {what} --seed {} --fabric {fabric}", plan.seed);
            code = ExitCode::FAILURE;
        }
    }
    code
}
