// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samples of one case and of its baseline, taken in turns so that both see the same machine.

use std::time::Duration;

use hdrhistogram::Histogram;

use dlock_cli_common::failure::Failure;

/// Histograms count tenths of a nanosecond, because a shared-memory cycle takes a few tens of ns.
const PER_NS: f64 = 10.0;
/// How many significant digits the histograms keep: with three, percentiles are exact to 0.1 %.
const DIGITS: u8 = 3;

/// The longest time that is recorded as it is: 100 s.
const LONGEST: u64 = 1_000_000_000_000;

/// The distribution of a time.
#[derive(Clone)]
pub struct Times(Histogram<u64>);

impl Times {
    pub fn new() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST, DIGITS).expect("the bounds are valid"))
    }
    pub fn record(&mut self, ns: f64) {
        self.0.saturating_record((ns * PER_NS).round().max(1.0) as u64);
    }
    pub fn merge(&mut self, other: &Times) {
        self.0.add(&other.0).expect("both have the same bounds");
    }
    pub fn count(&self) -> u64 {
        self.0.len()
    }
    /// Nanoseconds that this share (0 to 1) of the samples did not exceed.
    pub fn quantile_ns(&self, share: f64) -> f64 {
        self.0.value_at_quantile(share) as f64 / PER_NS
    }
    pub fn mean_ns(&self) -> f64 {
        self.0.mean() / PER_NS
    }
    pub fn deviation_ns(&self) -> f64 {
        self.0.stdev() / PER_NS
    }
    pub fn min_ns(&self) -> f64 {
        self.0.min() as f64 / PER_NS
    }
    pub fn max_ns(&self) -> f64 {
        self.0.max() as f64 / PER_NS
    }
}

/// The baseline of a case.
pub struct Baseline {
    /// The name of what was measured.
    pub name: &'static str,
    /// The times of the baseline.
    pub times: Times,
}

/// A measured case.
pub struct Samples {
    /// The name of the case.
    pub case: String,
    /// The name of the fabric that was measured.
    pub fabric: &'static str,
    /// How long one operation took.
    pub times: Times,
    /// How many operations belong to one sample: more than 1 where a reading of the clock takes as
    /// long as an operation.
    pub per_sample: u32,
    /// The raw baseline, if there is one.
    pub baseline: Option<Baseline>,
    /// Operations per second, of all clients together.
    pub per_second: f64,
    /// A remark for the report.
    pub note: String,
}

impl Samples {
    /// A case without samples.
    pub fn new(case: &str, fabric: &'static str, per_sample: u32) -> Self {
        Self {
            case: case.into(),
            fabric,
            times: Times::new(),
            per_sample,
            baseline: None,
            per_second: 0.0,
            note: String::new(),
        }
    }

    /// The median divided by the baseline's; `None`: there is no baseline.
    pub fn ratio(&self) -> Option<f64> {
        let baseline = self.baseline.as_ref()?.times.quantile_ns(0.5);
        (baseline > 0.0).then(|| self.times.quantile_ns(0.5) / baseline)
    }

    /// Sets the rate of one client, from the mean.
    pub fn rate_from_mean(mut self) -> Self {
        let mean = self.times.mean_ns();
        self.per_second = if mean > 0.0 { 1e9 / mean } else { 0.0 };
        self
    }
}

/// A function that executes one operation, and returns its nanoseconds.
pub type Measure<'a> = &'a mut dyn FnMut() -> Result<f64, Failure>;

/// Takes samples of a case and of its baseline in turns, after a tenth of them as a warm-up.
pub fn in_turns(
    samples: &mut Samples,
    count: u32,
    baseline_name: &'static str,
    case: Measure<'_>,
    baseline: Measure<'_>,
) -> Result<(), Failure> {
    let mut below = Baseline { name: baseline_name, times: Times::new() };
    for _ in 0..count / 10 {
        case()?;
        baseline()?;
    }
    for _ in 0..count {
        samples.times.record(case()?);
        below.times.record(baseline()?);
    }
    samples.baseline = Some(below);
    Ok(())
}

/// How many operations of the case are measured in one turn, and then of its baseline. So only the
/// first of each meets caches that the other has filled.
const TURN: u32 = 50;

/// How many operations come before each turn, without being counted, if both sides rest between
/// turns. They wake the side that answers.
const WAKING: u32 = 10;

/// As [`in_turns`], with many operations of one kind in each turn. Returns the times of the
/// baseline. `rest`: the time without operations before each turn, in which the side that answers
/// stops looking for work, because that takes a processor.
pub fn in_long_turns(
    samples: &mut Samples,
    count: u32,
    rest: Duration,
    case: Measure<'_>,
    baseline: Measure<'_>,
) -> Result<Times, Failure> {
    let mut below = Times::new();
    let one = |of: Measure<'_>, times: &mut Times| {
        if !rest.is_zero() {
            std::thread::sleep(rest);
            (0..WAKING).try_for_each(|_| of().map(drop))?;
        }
        (0..TURN).try_for_each(|_| of().map(|ns| times.record(ns)))
    };
    let mut turn = |case_times: &mut Times, baseline_times: &mut Times| {
        one(case, case_times)?;
        one(baseline, baseline_times)
    };
    for _ in 0..(count / 10).div_ceil(TURN) {
        turn(&mut Times::new(), &mut Times::new())?;
    }
    for _ in 0..count.div_ceil(TURN) {
        turn(&mut samples.times, &mut below)?;
    }
    Ok(below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_of_the_medians() {
        let mut samples = Samples::new("x", "shm", 1);
        let (mut a, mut b) = (0.0, 0.0);
        let mut case = || {
            a += 1.0;
            Ok(200.0 + a % 3.0)
        };
        let mut baseline = || {
            b += 1.0;
            Ok(100.0 + b % 3.0)
        };
        in_turns(&mut samples, 300, "y", &mut case, &mut baseline).unwrap();
        assert_eq!(samples.times.count(), 300);
        let ratio = samples.ratio().unwrap();
        assert!((ratio - 201.0 / 101.0).abs() < 0.01, "{ratio}");
    }

    #[test]
    fn a_fraction_of_a_nanosecond_is_kept() {
        let mut times = Times::new();
        times.record(10.4);
        times.record(1e9);
        assert!((times.max_ns() / 1e9 - 1.0).abs() < 0.01);
        assert!((times.quantile_ns(0.5) - 10.4).abs() < 0.05);
    }
}
