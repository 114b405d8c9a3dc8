// SPDX-License-Identifier: MIT OR Apache-2.0
//! The results, for a person and for a program.

use serde_json::{json, Value};

use super::sample::{Baseline, Samples, Times};
use crate::table;

/// The columns, named as perftest names its own; times are in microseconds.
const COLUMNS: [&str; 14] = [
    "#case",
    "fabric",
    "#samples",
    "t_min",
    "t_max",
    "t_typical",
    "t_avg",
    "t_stdev",
    "99%",
    "99.9%",
    "ops/s",
    "baseline",
    "ratio",
    "baseline is / note",
];

fn micros(ns: f64) -> String {
    format!("{:.3}", ns / 1_000.0)
}

/// The table.
pub fn table(rows: &[Samples], skipped: &[(String, String)]) -> String {
    let mut cells = vec![COLUMNS.map(String::from).to_vec()];
    cells.extend(rows.iter().map(line));
    let body = table::render(&cells);
    let rule = "-".repeat(body.lines().map(str::len).max().unwrap_or(0));
    let mut out = format!(
        "{rule}\n dlock bench {}: closed loop, primary in a process of its own, \
         times in us\n{rule}\n",
        dlock_server::VERSION
    );
    out.push_str(&body);
    out.push_str(&format!("{rule}\n"));
    for (case, reason) in skipped {
        out.push_str(&format!(" skipped: {case}: {reason}\n"));
    }
    out.push_str(
        " t_typical is the median; ratio = t_typical / baseline, of samples taken in turns.\n",
    );
    let longest = rows.iter().max_by_key(|row| row.per_sample);
    if let Some(Samples { fabric, per_sample: blocks @ 2.., .. }) = longest {
        out.push_str(&format!(
            " On {fabric} a sample is the mean of {blocks} operations: \
             its percentiles are of means.\n"
        ));
    }
    out
}

fn line(row: &Samples) -> Vec<String> {
    let times = &row.times;
    let baseline = row.baseline.as_ref();
    let note = match (baseline, row.note.is_empty()) {
        (Some(baseline), true) => baseline.name.to_string(),
        (Some(baseline), false) => format!("{}; {}", baseline.name, row.note),
        (None, _) => row.note.clone(),
    };
    vec![
        row.case.clone(),
        row.fabric.into(),
        times.count().to_string(),
        micros(times.min_ns()),
        micros(times.max_ns()),
        micros(times.quantile_ns(0.5)),
        micros(times.mean_ns()),
        micros(times.deviation_ns()),
        micros(times.quantile_ns(0.99)),
        micros(times.quantile_ns(0.999)),
        format!("{:.0}", row.per_second),
        baseline.map_or("-".into(), |f| micros(f.times.quantile_ns(0.5))),
        row.ratio().map_or("-".into(), |r| format!("{r:.2}")),
        note,
    ]
}

/// One document: every time in nanoseconds.
pub fn json(rows: &[Samples], skipped: &[(String, String)]) -> Value {
    let results: Vec<Value> = rows.iter().map(result).collect();
    let skipped: Vec<Value> =
        skipped.iter().map(|(case, reason)| json!({ "case": case, "reason": reason })).collect();
    let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    json!({
        "version": dlock_server::VERSION,
        "loop": "closed",
        "cpus": cpus,
        "results": results,
        "skipped": skipped,
    })
}

fn result(row: &Samples) -> Value {
    json!({
        "case": row.case,
        "fabric": row.fabric,
        "operations_per_sample": row.per_sample,
        "operations_per_second": row.per_second,
        "times": times(&row.times),
        "baseline": row.baseline.as_ref().map(baseline),
        "ratio": row.ratio(),
        "note": row.note,
    })
}

fn baseline(baseline: &Baseline) -> Value {
    json!({ "name": baseline.name, "times": times(&baseline.times) })
}

fn times(times: &Times) -> Value {
    json!({
        "samples": times.count(),
        "min_ns": times.min_ns(),
        "p50_ns": times.quantile_ns(0.5),
        "p90_ns": times.quantile_ns(0.9),
        "p99_ns": times.quantile_ns(0.99),
        "p999_ns": times.quantile_ns(0.999),
        "max_ns": times.max_ns(),
        "mean_ns": times.mean_ns(),
        "stdev_ns": times.deviation_ns(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Samples> {
        let mut row = Samples::new("atomic", "shm", 256);
        row.times.record(50.0);
        let mut baseline = Baseline { name: "raw", times: Times::new() };
        baseline.times.record(10.0);
        row.baseline = Some(baseline);
        vec![row.rate_from_mean()]
    }

    #[test]
    fn the_table_shows_median_baseline_and_ratio() {
        let text = table(&rows(), &[("other".into(), "no time".into())]);
        for part in ["0.050", "0.010", "5.00", "raw", "skipped: other: no time"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn the_json_can_be_read_back() {
        let value: Value = json(&rows(), &[]);
        assert_eq!(value["results"][0]["case"], "atomic");
        assert_eq!(value["results"][0]["times"]["samples"], 1);
    }
}
