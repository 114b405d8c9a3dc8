// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs schedules of the whole system: `sim --seed N --schedules N --scenario NAME`.
//!
//! Exit status: 0 no violation, 1 a violation (with the command that replays it), 2 bad usage.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::Instant;

use dlock_sim::system::{self, Bugs, Coverage, Run};

const USAGE: &str = "\
usage: sim [--seed N] [--schedules N] [--scenario NAME|all] [--seconds N] [--threads N]
           [--report] [--trace] [--keep-going] [--hashes | --digest]
           with the feature `planted`: [--bug NAME [--seen] | --planted-table]

--seconds      each schedule has faults for so many seconds of its own time at least
--report       how often which action met which fault
--hashes       one line with the hash of each schedule's trace
--digest       the digest of tests/sim/hashes.txt
--bug          plants a bug, and looks for the first schedule that finds it
--seen         with --bug: looks for the first schedule whose digest differs
--planted-table   for every bug: the seed that finds it, the median of the schedules it takes";

struct Args {
    seed: u64,
    schedules: u64,
    scenario: String,
    seconds: u64,
    threads: usize,
    report: bool,
    trace: bool,
    keep_going: bool,
    hashes: bool,
    digest: bool,
    bug: String,
    seen: bool,
    table: bool,
}

fn parse() -> Option<Args> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut args = Args {
        seed: 1,
        schedules: 10_000,
        scenario: "all".to_string(),
        seconds: 0,
        threads,
        report: false,
        trace: false,
        keep_going: false,
        hashes: false,
        digest: false,
        bug: String::new(),
        seen: false,
        table: false,
    };
    let mut given = std::env::args().skip(1);
    while let Some(flag) = given.next() {
        match flag.as_str() {
            "--seed" => args.seed = given.next()?.parse().ok()?,
            "--schedules" => args.schedules = given.next()?.parse().ok()?,
            "--threads" => args.threads = given.next()?.parse().ok().filter(|&n| n > 0)?,
            "--seconds" => args.seconds = given.next()?.parse().ok()?,
            "--scenario" => args.scenario = given.next()?,
            "--report" => args.report = true,
            "--trace" => args.trace = true,
            "--keep-going" => args.keep_going = true,
            "--hashes" => args.hashes = true,
            "--digest" => args.digest = true,
            "--bug" if cfg!(feature = "planted") => args.bug = given.next()?,
            "--seen" if cfg!(feature = "planted") => args.seen = true,
            "--planted-table" if cfg!(feature = "planted") => args.table = true,
            _ => return None,
        }
    }
    let mut all = system::SCENARIOS.iter().chain(system::APART);
    let known = all.any(|s| s.name == args.scenario);
    (known || args.scenario == "all").then_some(args)
}

/// Schedules between two lines of progress, which scripts/lib.sh reads.
const PROGRESS_SCHEDULES: u64 = 1_000;

#[derive(Default)]
struct Total {
    coverage: Coverage,
    events: u64,
    lasted_ns: u64,
    grants: u64,
    shortest: u64,
    violations: u64,
    digest: u64,
}

fn main() -> ExitCode {
    let Some(args) = parse() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if args.table {
        return table();
    }
    if args.seen {
        return seen(&args);
    }
    if args.digest {
        println!("{:016x}", system::digest());
        return ExitCode::SUCCESS;
    }
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let total = Mutex::new(Total { shortest: u64::MAX, ..Total::default() });
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..args.threads {
            scope.spawn(|| work(&args, &next, &stop, &total));
        }
    });
    let total = total.into_inner().expect("no thread panics while it holds the sum");
    let (done, seconds) = (next.into_inner().min(args.schedules), start.elapsed().as_secs_f64());
    println!(
        "{}: {done} schedules from seed {}, {:.1} h of their time, {} events (at least {} each), \
         {} grants, {} violations, digest {:016x}; {seconds:.1} s, {:.0} schedules/s, {:.2} \
         million events/s",
        args.scenario,
        args.seed,
        total.lasted_ns as f64 / 3.6e12,
        total.events,
        total.shortest,
        total.grants,
        total.violations,
        total.digest,
        done as f64 / seconds,
        total.events as f64 / seconds / 1e6
    );
    if args.report {
        println!("{}", total.coverage.report());
        println!("pairs that never occurred: {:?}", total.coverage.missing());
    }
    ExitCode::from(u8::from(total.violations > 0))
}

/// Runs one schedule after the other; the sums do not depend on their order.
fn work(args: &Args, next: &AtomicU64, stop: &AtomicBool, total: &Mutex<Total>) {
    let Some(bugs) = plant(&args.bug) else { return };
    let mut mine = Total { shortest: u64::MAX, ..Total::default() };
    let progress = std::env::var_os("DLOCK_PROGRESS").is_some();
    while !stop.load(Ordering::Relaxed) {
        let i = next.fetch_add(1, Ordering::Relaxed);
        if i >= args.schedules {
            break;
        }
        let seed = args.seed.wrapping_add(i);
        let run = system::run_for(&args.scenario, seed, bugs, args.trace, args.seconds);
        let Some(run) = run else { break };
        mine.coverage.add(&run.coverage);
        mine.events += run.events;
        mine.lasted_ns += run.lasted_ns;
        mine.grants += run.grants;
        mine.shortest = mine.shortest.min(run.events);
        mine.digest = mine.digest.wrapping_add(run.hash.wrapping_mul(seed | 1));
        if i % PROGRESS_SCHEDULES == 0 && progress {
            println!("progress: schedule {i}");
        }
        if args.hashes {
            println!("{seed} {:016x}", run.hash);
        }
        if args.trace {
            println!("{}", run.trace.join("\n"));
        }
        if let Some(violation) = &run.violation {
            mine.violations += 1;
            violated(args, seed, violation, &run);
            stop.store(!args.keep_going, Ordering::Relaxed);
        }
    }
    let mut total = total.lock().expect("no thread panics while it holds the sum");
    total.coverage.add(&mine.coverage);
    total.events += mine.events;
    total.lasted_ns += mine.lasted_ns;
    total.grants += mine.grants;
    total.violations += mine.violations;
    total.shortest = total.shortest.min(mine.shortest);
    total.digest = total.digest.wrapping_add(mine.digest);
}

fn violated(args: &Args, seed: u64, violation: &str, run: &Run) {
    println!(
        "seed {seed} ({} events): {violation}\n  replay: sim --scenario {} --seed {seed} \
         --schedules 1 --seconds {} --trace",
        run.events, args.scenario, args.seconds
    );
}

#[cfg(feature = "planted")]
fn plant(name: &str) -> Option<Bugs> {
    // the report of a violation is printed below; the panic's own message is not
    std::panic::set_hook(Box::new(|_| {}));
    system::plant(name)
}

#[cfg(not(feature = "planted"))]
fn plant(_: &str) -> Option<Bugs> {
    Some(Bugs::default())
}

#[cfg(not(feature = "planted"))]
fn table() -> ExitCode {
    ExitCode::from(2)
}

#[cfg(not(feature = "planted"))]
fn seen(_: &Args) -> ExitCode {
    ExitCode::from(2)
}

/// Prints the first seed whose schedule sees the planted bug.
#[cfg(feature = "planted")]
fn seen(args: &Args) -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    let seed = dlock_sim::planted::seen(&args.bug, args.seed, args.schedules);
    let text = seed.map_or("by no schedule".to_string(), |seed| format!("first by seed {seed}"));
    println!("{}: seen {text}", args.bug);
    ExitCode::from(u8::from(seed.is_none()))
}

/// Prints the table of planted bugs.
#[cfg(feature = "planted")]
fn table() -> ExitCode {
    use dlock_sim::planted;
    println!(
        "# bug, seed that finds it, median schedules to detection ({} runs), rule",
        planted::RUNS
    );
    let bugs = system::plantable();
    let next = AtomicU64::new(0);
    let rows = Mutex::new(vec![String::new(); bugs.len()]);
    std::panic::set_hook(Box::new(|_| {}));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| loop {
                let i = next.fetch_add(1, Ordering::Relaxed) as usize;
                let Some(&(name, rule)) = bugs.get(i) else { break };
                let row = planted::row(name, rule);
                eprintln!("{row}");
                rows.lock().expect("nobody panics here")[i] = row;
            });
        }
    });
    let rows = rows.into_inner().expect("nobody panics here");
    println!("{}", rows.join("\n"));
    ExitCode::from(u8::from(rows.iter().any(|row| row.contains(", never, never, "))))
}
