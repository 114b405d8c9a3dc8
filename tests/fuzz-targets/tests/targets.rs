// SPDX-License-Identifier: MIT OR Apache-2.0
//! Without libFuzzer: the committed corpora, and as much noise as fits into a few seconds.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{fs, panic};

use dlock_fuzz_targets::{Target, TARGETS};
use dlock_test_support::Dice;

/// For how long each target gets noise, seconds, unless `DLOCK_FUZZ_SECONDS` is set.
const NOISE_SECONDS: u64 = 3;

/// An input and its name.
type Input = (String, Vec<u8>);

/// The inputs of a target's archive, with their names.
fn corpus(target: &Target) -> Vec<Input> {
    let name = format!("{}.tar.xz", target.name);
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(name);
    static UNPACKED: AtomicU32 = AtomicU32::new(0);
    let turn = UNPACKED.fetch_add(1, Ordering::Relaxed); // tests may be threads of one process
    let name = format!("dlock-corpus-{}-{}-{turn}", target.name, std::process::id());
    let folder = std::env::temp_dir().join(name);
    fs::create_dir_all(&folder).unwrap();
    let tar = Command::new("tar").arg("-xJf").arg(&archive).arg("-C").arg(&folder).status();
    let inputs = fs::read_dir(&folder).unwrap().map(|entry| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
    });
    let mut inputs: Vec<Input> = inputs.collect();
    fs::remove_dir_all(&folder).unwrap();
    assert!(tar.is_ok_and(|status| status.success()), "tar and xz unpack {}", archive.display());
    inputs.sort();
    inputs
}

fn random_bytes(dice: &mut Dice, len_max: usize) -> Vec<u8> {
    (0..dice.below(len_max)).map(|_| dice.throw() as u8).collect()
}

/// Runs a target on an input, and names the input if that fails.
fn try_input(target: &Target, what: &str, data: &[u8]) {
    let result = panic::catch_unwind(|| (target.run)(data));
    if result.is_err() {
        let hex: String = data.iter().map(|b| format!("{b:02x}")).collect();
        panic!("{} fails on {what}: {hex}", target.name);
    }
}

fn named(name: &str) -> &'static Target {
    TARGETS.iter().find(|target| target.name == name).expect("a target of this name")
}

fn replay(name: &str) {
    let target = named(name);
    let inputs = corpus(target);
    assert!(inputs.len() > 5, "{} inputs of {name}", inputs.len());
    for (file, input) in inputs {
        try_input(target, &file, &input);
    }
}

/// Runs a target on noise, and on committed inputs in which a few bytes are changed, repeated or
/// cut off.
fn noise(name: &str) {
    let target = named(name);
    let seconds = std::env::var("DLOCK_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(NOISE_SECONDS));
    let inputs: Vec<Vec<u8>> = corpus(target).into_iter().map(|(_, input)| input).collect();
    let mut dice = Dice(1);
    for round in 0_u64.. {
        if round % 16 == 0 && Instant::now() >= end {
            break;
        }
        let mut data = match (dice.below(4), inputs.is_empty()) {
            (0, _) | (_, true) => random_bytes(&mut dice, 600),
            _ => inputs[dice.below(inputs.len())].clone(),
        };
        for _ in 0..dice.below(6) {
            let at = dice.below(data.len() + 1);
            match dice.below(4) {
                0 if at < data.len() => data[at] = dice.throw() as u8,
                1 if at < data.len() => data[at] ^= 1 << dice.below(8),
                2 => data.truncate(at),
                _ if !inputs.is_empty() => {
                    let other = &inputs[dice.below(inputs.len())];
                    data.truncate(at);
                    data.extend_from_slice(&other[dice.below(other.len() + 1)..]);
                }
                _ => {}
            }
        }
        data.truncate(4_096);
        try_input(target, &format!("round {round}"), &data);
    }
}

macro_rules! targets {
    ($($name:ident),*) => {$(
        mod $name {
            #[test]
            fn the_committed_corpus_passes() {
                super::replay(stringify!($name));
            }
            #[test]
            fn noise_and_changed_corpora_pass() {
                super::noise(stringify!($name));
            }
        }
    )*};
}
targets!(frames, config, handshake, arbiter, client, calls, sealed, tls_bytes);

#[test]
fn every_target_has_a_corpus_a_fuzzer_and_a_test() {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    let all =
        ["frames", "config", "handshake", "arbiter", "client", "calls", "sealed", "tls_bytes"];
    assert_eq!(names, all);
    for name in names {
        let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
        assert!(fuzz.join(format!("fuzz_targets/{name}.rs")).is_file(), "{name}");
        let manifest = fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
    }
}

#[test]
fn every_prefix_and_every_flipped_bit_of_sample_frames_passes() {
    let target = named("frames");
    let samples = dlock_fuzz_targets::samples::frames();
    assert!(samples.len() > 30);
    for (number, sample) in samples.iter().enumerate() {
        for len in 0..=sample.len() {
            try_input(target, &format!("a prefix of sample {number}"), &sample[..len]);
        }
        for bit in 0..sample.len() * 8 {
            let mut flipped = sample.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            try_input(target, &format!("bit {bit} of sample {number}"), &flipped);
        }
    }
}
