// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the programs that judge a mutant, in stages: unit tests, models, simulator.
//!
//! A run without a mutant tells how long each check takes and which switches it evaluates. A
//! mutant is judged by the checks that evaluate its switch; the others cannot tell it from the
//! code as it is.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::tree::Programs;

/// The models that take seconds, each with its stage: they judge first, or only what all else has
/// not found.
const MODELS: [(Stage, &str); 4] = [
    (Stage::Models, "read-write: crash, tries"),
    (Stage::Models, "fair: crash, tickets given up"),
    (Stage::MoreModels, "atomic: crash, expiry"),
    (Stage::MoreModels, "fair: expiry, two clients"),
];
/// The schedules of the simulator: the stage, the first seed and their number.
const SCHEDULES: [(Stage, u32, u32); 2] =
    [(Stage::Schedules, 1, 20_000), (Stage::MoreSchedules, 20_001, 80_000)];
/// A quick run has one of so many schedules.
const QUICK_PART: u32 = 20;
/// A unit test that takes this long runs alone, after the others.
const SLOW_S: f64 = 0.3;
/// A check hangs if it takes more than `TIMES_MAX` times its processor time without a mutant, and
/// `MORE_S` seconds in addition.
const TIMES_MAX: f64 = 8.0;
/// The seconds that a check may take beyond [`TIMES_MAX`].
const MORE_S: u64 = 15;
/// A check may take so many seconds by the clock for each second of the processor that it may use:
/// other programs run as well.
const CLOCK_TIMES: u64 = 12;
/// The most memory that a program may have, kilobytes.
const MEMORY_KB_MAX: u64 = 6_000_000;

/// The result for a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Killed by a unit test.
    Unit,
    /// Killed by a model.
    Models,
    /// Killed by the simulator.
    Sim,
    /// A unit test or the simulator did not end.
    Timeout,
    /// The mutant does not compile.
    Unviable,
    /// No check has found the mutant.
    Survived,
}

/// The stages of judging, cheap checks first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Tests,
    Models,
    Schedules,
    MoreModels,
    MoreSchedules,
}

const STAGES: [Stage; 5] =
    [Stage::Tests, Stage::Models, Stage::Schedules, Stage::MoreModels, Stage::MoreSchedules];

impl Stage {
    /// The verdict if this stage kills a mutant.
    fn verdict(self) -> Verdict {
        match self {
            Stage::Tests => Verdict::Unit,
            Stage::Models | Stage::MoreModels => Verdict::Models,
            Stage::Schedules | Stage::MoreSchedules => Verdict::Sim,
        }
    }
}

/// A program that judges, with its arguments.
#[derive(Clone)]
struct Check {
    stage: Stage,
    name: String,
    program: PathBuf,
    args: Vec<String>,
    /// How many seconds the program runs without a mutant.
    seconds: f64,
    /// The switches that it evaluates.
    reached: BTreeSet<u32>,
    /// What it prints without a mutant that does not differ from run to run.
    printed: String,
}

/// All checks, in the order in which they judge.
pub struct Judge {
    checks: Vec<Check>,
    scratch: PathBuf,
}

enum End {
    Passed(String),
    Failed(String),
    Hung,
}

impl Judge {
    /// Runs every check without a mutant. `quick`: with fewer schedules, and without the last
    /// stages.
    ///
    /// # Errors
    /// If a check does not pass.
    pub fn new(programs: &Programs, scratch: &Path, quick: bool) -> Result<Self, String> {
        let mut checks = Vec::new();
        for (name, program) in &programs.tests {
            for test in tests_of(program)? {
                let args = vec![test.clone(), "--exact".into(), "--test-threads=1".into()];
                checks.push(Check::new(Stage::Tests, &format!("{name} {test}"), program, args));
            }
        }
        for (stage, model) in MODELS {
            let args = vec![model.to_string()];
            checks.push(Check::new(stage, model, &programs.models, args));
        }
        for (stage, seed, count) in SCHEDULES {
            let count = if quick { count / QUICK_PART } else { count };
            let args = format!("--seed {seed} --schedules {count} --threads 1");
            let args = args.split(' ').map(Into::into).collect();
            let name = format!("{count} schedules");
            checks.push(Check::new(stage, &name, &programs.sim, args));
        }
        checks.retain(|c| !quick || c.stage < Stage::MoreModels);
        let judge = Self { checks: Vec::new(), scratch: scratch.to_path_buf() };
        for check in &mut checks {
            judge.measure(check)?;
        }
        checks.sort_by(|a, b| (a.stage, a.seconds).partial_cmp(&(b.stage, b.seconds)).expect("s"));
        Ok(Self { checks, ..judge })
    }

    fn measure(&self, check: &mut Check) -> Result<(), String> {
        let reached = self.scratch.join("reached");
        let _ = fs::remove_file(&reached);
        let start = Instant::now();
        let switch = ("DLOCK_MUTANT_REACHED", reached.to_string_lossy().into_owned());
        match run(&check.program, &check.args, &[switch], 3600) {
            End::Passed(printed) => check.printed = lasting(&printed),
            End::Failed(printed) => {
                return Err(format!("{} fails without a mutant:\n{printed}", check.name))
            }
            End::Hung => return Err(format!("{} does not end", check.name)),
        }
        check.seconds = start.elapsed().as_secs_f64();
        let lines = fs::read_to_string(&reached).unwrap_or_default();
        check.reached = lines.lines().filter_map(|line| line.parse().ok()).collect();
        Ok(())
    }

    /// The same checks, with programs that are built with a mutant.
    pub fn with(&self, programs: &Programs) -> Self {
        let mut checks = self.checks.clone();
        for check in &mut checks {
            check.program = match check.stage {
                Stage::Models | Stage::MoreModels => programs.models.clone(),
                Stage::Schedules | Stage::MoreSchedules => programs.sim.clone(),
                Stage::Tests => {
                    let of = check.name.split(' ').next().unwrap_or_default();
                    let mut tests = programs.tests.iter();
                    let test = tests.find(|(name, _)| name == of);
                    test.map(|(_, path)| path.clone()).expect("the same programs are built")
                }
            };
        }
        Self { checks, scratch: self.scratch.clone() }
    }

    /// Judges the mutant behind this switch. `None`: the programs are built with the mutant. The
    /// text says which check has found it, or how a survivor was checked.
    pub fn judge(&self, switch: Option<u32>) -> (Verdict, String) {
        let reaches = |c: &&Check| switch.is_none_or(|id| c.reached.contains(&id));
        let reaching: Vec<&Check> = self.checks.iter().filter(reaches).collect();
        let count = |v| reaching.iter().filter(|c| c.stage.verdict() == v).count();
        let (tests, models) = (count(Verdict::Unit), count(Verdict::Models));
        let mut note = format!("{tests} tests, {models} models");
        let mut traces = "never in a schedule";
        for stage in STAGES {
            let checks = reaching.iter().filter(|c| c.stage == stage);
            for group in grouped(&checks.copied().collect::<Vec<_>>()) {
                match group.run(switch) {
                    End::Passed(printed) if stage.verdict() == Verdict::Sim => {
                        traces = match lasting(&printed) == group.printed {
                            true if traces != "other traces" => "same traces",
                            _ => "other traces",
                        };
                    }
                    End::Passed(_) => {}
                    End::Failed(printed) => return (stage.verdict(), group.name_of(&printed)),
                    // the mutant may have made the model too large, so a hang proves nothing
                    End::Hung if stage.verdict() == Verdict::Models => note += ", one hung",
                    End::Hung => return (Verdict::Timeout, group.name),
                }
            }
        }
        (Verdict::Survived, format!("{note}, {traces}"))
    }
}

/// Checks that are executed as one run of a program.
struct Group {
    name: String,
    program: PathBuf,
    args: Vec<String>,
    seconds: f64,
    printed: String,
    is_slow: bool,
}

/// Groups checks: the fast unit tests of a program run together. The fastest groups come first.
fn grouped(checks: &[&Check]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for check in checks {
        let is_joined = check.stage == Stage::Tests && check.seconds < SLOW_S;
        let fits = |g: &&mut Group| g.program == check.program && !g.is_slow;
        match groups.iter_mut().find(fits).filter(|_| is_joined) {
            Some(group) => {
                group.args.insert(0, check.args[0].clone());
                group.seconds += check.seconds;
            }
            None => groups.push(Group {
                name: check.name.clone(),
                program: check.program.clone(),
                args: check.args.clone(),
                seconds: check.seconds,
                printed: check.printed.clone(),
                is_slow: check.seconds >= SLOW_S,
            }),
        }
    }
    groups.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    groups
}

impl Group {
    fn run(&self, switch: Option<u32>) -> End {
        let limit_s = (self.seconds * TIMES_MAX).ceil() as u64 + MORE_S;
        let switch = switch.map(|id| ("DLOCK_MUTANT", id.to_string()));
        run(&self.program, &self.args, &Vec::from_iter(switch), limit_s)
    }

    /// The name of what has failed: a unit test, a model, or a rule of the simulator.
    fn name_of(&self, printed: &str) -> String {
        let failed = |l: &str| {
            let test = l.strip_prefix("test ").and_then(|l| l.strip_suffix(" ... FAILED"));
            let seed = l.strip_prefix("seed ").and_then(|l| l.split_once(": "));
            test.or(seed.map(|(_, what)| what)).map(str::to_string)
        };
        let name = printed.lines().find_map(failed).unwrap_or_else(|| self.name.clone());
        name.chars().take(70).collect()
    }
}

impl Check {
    fn new(stage: Stage, name: &str, program: &Path, args: Vec<String>) -> Self {
        Self {
            stage,
            name: name.into(),
            program: program.into(),
            args,
            seconds: 0.0,
            reached: BTreeSet::new(),
            printed: String::new(),
        }
    }
}

impl Verdict {
    /// All verdicts with their names.
    pub const NAMES: [(Verdict, &'static str); 6] = [
        (Verdict::Unit, "unit"),
        (Verdict::Models, "models"),
        (Verdict::Sim, "sim"),
        (Verdict::Timeout, "timeout"),
        (Verdict::Unviable, "unviable"),
        (Verdict::Survived, "survived"),
    ];

    /// The name of the verdict.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(v, _)| *v == self).map_or("", |(_, name)| name)
    }
}

fn tests_of(program: &Path) -> Result<Vec<String>, String> {
    let listed = Command::new(program).args(["--list", "--format=terse"]).output();
    let listed = listed.map_err(|e| format!("{}: {e}", program.display()))?;
    let text = String::from_utf8_lossy(&listed.stdout);
    Ok(text.lines().filter_map(|l| l.strip_suffix(": test")).map(Into::into).collect())
}

/// The digest in the output of the simulator; the other parts contain times.
fn lasting(printed: &str) -> String {
    let digest = printed.split("digest ").nth(1).unwrap_or_default();
    digest.split(';').next().unwrap_or_default().into()
}

/// Runs a program with limits of its processor time, of its time by the clock, and of its memory.
fn run(program: &Path, args: &[String], env: &[(&str, String)], limit_s: u64) -> End {
    const LIMITS: &str = "ulimit -c 0; ulimit -t \"$1\"; ulimit -v \"$2\"; shift 2; exec \"$@\"";
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", &(limit_s * CLOCK_TIMES).to_string(), "sh", "-c", LIMITS, "sh"]);
    command.args([limit_s.to_string(), MEMORY_KB_MAX.to_string()]).arg(program).args(args);
    command.envs(env.iter().map(|(name, value)| (*name, value)));
    command.env("RUST_BACKTRACE", "0").stdin(Stdio::null());
    let output = command.output().expect("`timeout` of coreutils can be run");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    match (output.status.success(), output.status.code()) {
        (true, _) => End::Passed(printed),
        // the program was killed at the limit of processor time, or of time by the clock
        (_, None | Some(124 | 137 | 152)) => End::Hung,
        _ => End::Failed(printed),
    }
}
