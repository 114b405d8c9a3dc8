// SPDX-License-Identifier: MIT OR Apache-2.0
//! Judges mutants of dlock-core: see `scripts/mutants.sh` and the README.
//!
//! ```text
//!   listing ─▶ source: where, and a key ─▶ switch, tree: one build with a switch for each
//!     ─▶ judge: unit tests, models, simulator ─▶ record: results, equivalent ─▶ table
//! ```
#![forbid(unsafe_code)]

mod judge;
mod listing;
mod record;
mod source;
mod switch;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use judge::{Judge, Verdict};
use record::Results;
use source::Mutant;
use tree::Tree;

struct Args {
    listing: PathBuf,
    work: PathBuf,
    results: PathBuf,
    sample: usize,
    seed: u64,
    critical: bool,
    shard: (usize, usize),
    resume: bool,
    again: bool,
    quick: bool,
    minutes: u64,
    jobs: usize,
    only: String,
}

fn parse() -> Option<Args> {
    let here = Path::new("tests/mutants");
    let mut args = Args {
        listing: PathBuf::new(),
        work: PathBuf::new(),
        results: here.join("results.txt"),
        sample: 0,
        seed: 1,
        critical: false,
        shard: (1, 1),
        resume: false,
        again: false,
        quick: false,
        minutes: u64::MAX / 60,
        jobs: 2,
        only: String::new(),
    };
    let mut given = std::env::args().skip(1);
    while let Some(flag) = given.next() {
        match flag.as_str() {
            "--listing" => args.listing = given.next()?.into(),
            "--work" => args.work = given.next()?.into(),
            "--results" => args.results = given.next()?.into(),
            "--sample" => args.sample = given.next()?.parse().ok()?,
            "--seed" => args.seed = given.next()?.parse().ok()?,
            "--critical" => args.critical = true,
            "--resume" => args.resume = true,
            "--again" => (args.again, args.resume) = (true, true),
            "--quick" => args.quick = true,
            "--minutes" => args.minutes = given.next()?.parse().ok()?,
            "--jobs" => args.jobs = given.next()?.parse().ok().filter(|&n| n > 0)?,
            "--only" => args.only = given.next()?,
            "--shard" => {
                let shard = given.next()?;
                let (k, n) = shard.split_once('/')?;
                args.shard = (k.parse().ok()?, n.parse().ok()?);
                (1..=args.shard.1).contains(&args.shard.0).then_some(())?;
            }
            _ => return None,
        }
    }
    Some(args)
}

fn main() -> ExitCode {
    let Some(args) = parse() else {
        eprintln!("usage: see scripts/mutants.sh");
        return ExitCode::from(2);
    };
    match all(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(what) => {
            eprintln!("mutants: {what}");
            ExitCode::from(2)
        }
    }
}

/// The mutants, and which of them are to be judged.
struct Selection {
    mutants: Vec<Mutant>,
    texts: BTreeMap<String, String>,
    critical: BTreeSet<u32>,
    sample: BTreeSet<u32>,
}

fn all(args: &Args) -> Result<bool, String> {
    let selection = select(args)?;
    let equivalent = record::reasons(Path::new("tests/mutants/equivalent.txt"))?;
    let mut results = Results::read(&args.results)?;
    if !args.resume && (args.critical || args.sample > 0) {
        results.all.clear();
    }
    let known: BTreeSet<&str> = selection.mutants.iter().map(|m| m.key.as_str()).collect();
    results.all.retain(|key, _| known.contains(key.as_str()));
    let results = Mutex::new(results);
    let wanted = wanted(args, &selection, &results.lock().expect("not poisoned"));
    if !wanted.is_empty() {
        run(args, &selection, &wanted, &results)?;
    }
    let results = results.into_inner().expect("not poisoned");
    results.write()?;
    Ok(report(args, &selection, &equivalent, &results))
}

/// Finds the listed mutants in their files, and draws a sample of them for testing.
fn select(args: &Args) -> Result<Selection, String> {
    let text = std::fs::read_to_string(&args.listing).map_err(|e| format!("the listing: {e}"))?;
    let mut by_file: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for one in listing::parse(&text)? {
        by_file.entry(one.file.clone()).or_default().push(one);
    }
    let (mut mutants, mut texts) = (Vec::new(), BTreeMap::new());
    by_file.entry(tree::LIB.into()).or_default();
    for (file, listed) in by_file {
        let text = std::fs::read_to_string(&file).map_err(|e| format!("{file}: {e}"))?;
        mutants.extend(source::find(&text, &listed)?);
        texts.insert(file, text);
    }
    let named = record::reasons(Path::new("tests/mutants/critical.txt"))?;
    let name = |m: &Mutant| format!("{}: {}", m.file, m.function);
    let names: BTreeSet<String> = mutants.iter().map(name).collect();
    if let Some(stale) = named.keys().find(|n| !names.contains(*n)) {
        return Err(format!("critical.txt names a function without mutants: {stale}"));
    }
    let ids = || (0u32..).zip(&mutants);
    let critical = ids().filter(|(_, m)| args.critical && named.contains_key(&name(m)));
    let critical = critical.map(|(id, _)| id).collect();
    // drawn by a hash of the key, so that the other mutants of the sample stay the same when the
    // code changes
    let mut drawn: Vec<_> = ids().map(|(id, m)| (hash(args.seed, &m.key), id)).collect();
    drawn.sort_unstable();
    let sample = drawn.iter().take(args.sample).map(|(_, id)| *id).collect();
    Ok(Selection { mutants, texts, critical, sample })
}

/// FNV-1a, and the last steps of splitmix64.
fn hash(seed: u64, key: &str) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for byte in key.bytes() {
        h = (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    h = (h ^ h >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ h >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ h >> 31
}

/// The mutants that are to be judged now, the critical ones first. Each group has the order of the
/// draw, so that its first part is a sample as well.
fn wanted(args: &Args, selection: &Selection, results: &Results) -> Vec<u32> {
    let both = selection.critical.union(&selection.sample);
    let mut wanted: Vec<u32> = both.copied().collect();
    wanted.sort_by_key(|id| {
        let key = &selection.mutants[*id as usize].key;
        (!selection.critical.contains(id), hash(args.seed, key))
    });
    let (k, n) = args.shard;
    let mut i = 0;
    wanted.retain(|_| {
        i += 1;
        i % n == k % n
    });
    wanted.retain(|&id| {
        let key = &selection.mutants[id as usize].key;
        let is_open = match results.all.get(key) {
            Some((Verdict::Survived, _)) => args.again,
            Some(_) => false,
            None => true,
        };
        is_open && key.contains(&args.only)
    });
    wanted
}

fn run(
    args: &Args,
    selection: &Selection,
    wanted: &[u32],
    results: &Mutex<Results>,
) -> Result<(), String> {
    let start = Instant::now();
    let limit = Duration::from_secs(args.minutes.saturating_mul(60));
    let here = std::env::current_dir().map_err(|e| e.to_string())?;
    let tree = |name: &str, except: &BTreeMap<_, _>| {
        let (root, target) = (args.work.join(name), args.work.join(format!("{name}-target")));
        Tree::copy(&here, root, target, except)
    };
    eprintln!("{} mutants to judge; building all with switches", wanted.len());
    let switches = tree("switches", &selection.texts)?;
    let tree::Switches { on, unviable } = switches.switch(&selection.texts, &selection.mutants)?;
    eprintln!("{} of {} have switches; {:?}", on.len(), selection.mutants.len(), start.elapsed());
    let programs = switches.build()?;
    eprintln!("built; {:?}", start.elapsed());
    let judge = Judge::new(&programs, &args.work, args.quick)?;
    eprintln!("measured without a mutant; {:?}", start.elapsed());
    let (with, without): (Vec<u32>, Vec<u32>) = wanted.iter().partition(|id| on.contains(*id));
    let tell = |id: u32, (verdict, note): (Verdict, String)| {
        let key = &selection.mutants[id as usize].key;
        eprintln!("{:8} {key} ({note})", verdict.name());
        results.lock().expect("not poisoned").add(key, verdict, note)
    };
    let (wrong, without): (Vec<u32>, Vec<u32>) =
        without.iter().partition(|id| unviable.contains(*id));
    for id in wrong {
        tell(id, (Verdict::Unviable, "of a wrong type".into()))?;
    }
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Ok(())));
    std::thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(|| {
                while start.elapsed() < limit {
                    let Some(&id) = with.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                    if let Err(what) = tell(id, judge.judge(Some(id))) {
                        *failed.lock().expect("not poisoned") = Err(what);
                        break;
                    }
                }
            });
        }
    });
    failed.into_inner().expect("not poisoned")?;
    let single = tree("single", &BTreeMap::new())?;
    let edited = |id: u32| {
        let mutant = &selection.mutants[id as usize];
        let text = &selection.texts[&mutant.file];
        let (range, new) = &mutant.edit;
        let mutated = format!("{}{new}{}", &text[..range.start], &text[range.end..]);
        (mutant.file.as_str(), text, mutated)
    };
    let mut viable = Vec::new();
    for &id in without.iter().take_while(|_| start.elapsed() < limit) {
        let (file, text, mutated) = edited(id);
        match single.compiles(file, &mutated)? {
            true => viable.push(id),
            false => tell(id, (Verdict::Unviable, String::new()))?,
        }
        single.write(file, text)?;
    }
    eprintln!("{} mutants are to be built one by one; {:?}", viable.len(), start.elapsed());
    if args.quick {
        return Ok(());
    }
    for &id in viable.iter().take_while(|_| start.elapsed() < limit) {
        let (file, text, mutated) = edited(id);
        single.write(file, &mutated)?;
        tell(id, judge.with(&single.build()?).judge(None))?;
        single.write(file, text)?;
    }
    Ok(())
}

/// Prints the table. Returns whether the surviving mutants are those that equivalent.txt names.
fn report(
    args: &Args,
    selection: &Selection,
    equivalent: &BTreeMap<String, String>,
    results: &Results,
) -> bool {
    let both: BTreeSet<u32> = selection.critical.union(&selection.sample).copied().collect();
    println!(
        "{:24} {:>7} {:>6} {:>6} {:>6} {:>7} {:>8} {:>10} {:>9} {:>10}",
        "",
        "mutants",
        "unit",
        "models",
        "sim",
        "timeout",
        "unviable",
        "equivalent",
        "survivors",
        "not judged"
    );
    let sample = format!("{} of {}, seed {}", args.sample, selection.mutants.len(), args.seed);
    let sets = [("critical", &selection.critical), (&sample, &selection.sample), ("both", &both)];
    for (name, set) in sets {
        let mut counts: BTreeMap<Option<Verdict>, usize> = BTreeMap::new();
        let mut reasoned = 0;
        for &id in set {
            let key = &selection.mutants[id as usize].key;
            let verdict = results.all.get(key).map(|(verdict, _)| *verdict);
            if verdict == Some(Verdict::Survived) && equivalent.contains_key(key) {
                reasoned += 1;
            } else {
                *counts.entry(verdict).or_default() += 1;
            }
        }
        let of = |v: Verdict| counts.get(&Some(v)).copied().unwrap_or(0);
        println!(
            "{name:24} {:>7} {:>6} {:>6} {:>6} {:>7} {:>8} {reasoned:>10} {:>9} {:>10}",
            set.len(),
            of(Verdict::Unit),
            of(Verdict::Models),
            of(Verdict::Sim),
            of(Verdict::Timeout),
            of(Verdict::Unviable),
            of(Verdict::Survived),
            counts.get(&None).copied().unwrap_or(0)
        );
    }
    let mut offences = Vec::new();
    for id in both {
        let key = &selection.mutants[id as usize].key;
        if let Some((Verdict::Survived, note)) = results.all.get(key) {
            if !equivalent.contains_key(key) {
                offences.push(format!("survives, and is not in equivalent.txt: {key} ({note})"));
            }
        }
    }
    let known: BTreeSet<&str> = selection.mutants.iter().map(|m| m.key.as_str()).collect();
    for key in equivalent.keys() {
        match results.all.get(key) {
            _ if !known.contains(key.as_str()) => {
                offences.push(format!("equivalent.txt names no mutant: {key}"));
            }
            Some((Verdict::Survived, _)) | None => {}
            Some((verdict, note)) => {
                let by = verdict.name();
                offences.push(format!("in equivalent.txt, but found by {by}: {key} ({note})"));
            }
        }
    }
    println!("{}", offences.join("\n"));
    offences.is_empty()
}
