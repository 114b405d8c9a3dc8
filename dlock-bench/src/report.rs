// SPDX-License-Identifier: MIT OR Apache-2.0
//! The results, for a person and for a program.

use serde_json::{json, Value};

use crate::sample::{Baseline, Samples, Times};
use dlock_cli_common::{out, table};

/// A column: its heading, named as perftest names its own, and its cell. Times are in microseconds.
type Column = (&'static str, fn(&Samples) -> String);

const CASE: Column = ("#case", |row| row.case.clone());
const FABRIC: Column = ("fabric", |row| row.fabric.into());
const SAMPLES: Column = ("#samples", |row| row.times.count().to_string());
const MIN: Column = ("t_min", |row| micros(row.times.min_ns()));
const MAX: Column = ("t_max", |row| micros(row.times.max_ns()));
const TYPICAL: Column = ("t_typical", |row| micros(row.times.quantile_ns(0.5)));
const AVERAGE: Column = ("t_avg", |row| micros(row.times.mean_ns()));
const DEVIATION: Column = ("t_stdev", |row| micros(row.times.deviation_ns()));
const P99: Column = ("99%", |row| micros(row.times.quantile_ns(0.99)));
const P999: Column = ("99.9%", |row| micros(row.times.quantile_ns(0.999)));
const RATE: Column = ("ops/s", |row| format!("{:.0}", row.per_second));
const BASELINE: Column = ("baseline", |row| {
    row.baseline.as_ref().map_or("-".into(), |f| micros(f.times.quantile_ns(0.5)))
});
const RATIO: Column = ("ratio", |row| row.ratio().map_or("-".into(), |r| format!("{r:.2}")));
const NOTE: Column = ("baseline is / note", note);

/// The columns on a terminal that is wide enough for them.
const WIDE: &[Column] = &[
    CASE, FABRIC, SAMPLES, MIN, MAX, TYPICAL, AVERAGE, DEVIATION, P99, P999, RATE, BASELINE, RATIO,
    NOTE,
];
/// The columns of several tables for narrower output; the first table has what most users want.
const NARROW: &[&[Column]] = &[
    &[CASE, FABRIC, TYPICAL, P99, RATE, RATIO],
    &[CASE, FABRIC, SAMPLES, MIN, AVERAGE, MAX],
    &[CASE, FABRIC, DEVIATION, P999, BASELINE],
];
/// The indentation of the further lines of a note.
const NOTE_INDENT: &str = "   ";

fn micros(ns: f64) -> String {
    format!("{:.3}", ns / 1_000.0)
}

fn note(row: &Samples) -> String {
    match (&row.baseline, row.note.is_empty()) {
        (Some(baseline), true) => baseline.name.to_string(),
        (Some(baseline), false) => format!("{}; {}", baseline.name, row.note),
        (None, _) => row.note.clone(),
    }
}

fn cells(rows: &[Samples], columns: &[Column]) -> Vec<Vec<String>> {
    let heading = columns.iter().map(|(name, _)| name.to_string()).collect();
    let line = |row: &Samples| columns.iter().map(|(_, cell)| cell(row)).collect();
    std::iter::once(heading).chain(rows.iter().map(line)).collect()
}

/// The table: one as wide as it needs, or narrow ones.
pub fn table(rows: &[Samples], skipped: &[(String, String)]) -> String {
    table_within(rows, skipped, out::width())
}

fn table_within(rows: &[Samples], skipped: &[(String, String)], width_max: usize) -> String {
    let wide = table::render_within(&cells(rows, WIDE), None);
    let width_of = |text: &str| text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    let (tables, rule) = match width_of(&wide) {
        width if width <= width_max => (vec![wide], width),
        _ => {
            let narrow =
                |columns: &&[Column]| table::render_within(&cells(rows, columns), Some(width_max));
            (NARROW.iter().map(narrow).collect(), width_max)
        }
    };
    let is_narrow = tables.len() > 1;
    let rule = "-".repeat(rule);
    let version = dlock_server::VERSION;
    let title = format!(
        " dlock bench {version}: closed loop, primary in a process of its own, times in us"
    );
    let mut out = format!("{rule}\n{}", wrapped(&title, width_max));
    for table in tables {
        out.push_str(&format!("{rule}\n{table}"));
    }
    out.push_str(&format!("{rule}\n"));
    let mut says = |text: &str| out.push_str(&wrapped(text, width_max));
    if is_narrow {
        for row in rows.iter().filter(|row| !note(row).is_empty()) {
            let what = if row.baseline.is_some() { "baseline: " } else { "" };
            says(&format!(" {} ({}): {what}{}", row.case, row.fabric, note(row)));
        }
    }
    for (case, reason) in skipped {
        says(&format!(" skipped: {case}: {reason}"));
    }
    says(" t_typical is the median; ratio = t_typical / baseline, of samples taken in turns.");
    let longest = rows.iter().max_by_key(|row| row.per_sample);
    if let Some(Samples { fabric, per_sample: blocks @ 2.., .. }) = longest {
        says(&format!(
            " On {fabric} a sample is the mean of {blocks} operations: its percentiles are of \
             means."
        ));
    }
    out
}

/// The text, broken between words; a longer word has a line of its own.
fn wrapped(text: &str, width_max: usize) -> String {
    let (mut out, mut line) = (String::new(), " ".to_string());
    for word in text.split_whitespace() {
        let is_first = line.trim().is_empty();
        if !is_first && line.chars().count() + 1 + word.chars().count() > width_max {
            out.push_str(&format!("{line}\n"));
            line = format!("{NOTE_INDENT}{word}");
        } else {
            line.push_str(if is_first { "" } else { " " });
            line.push_str(word);
        }
    }
    out + &line + "\n"
}

/// The results as one document; every time is in nanoseconds.
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
        let text = table_within(&rows(), &[("other".into(), "no time".into())], 400);
        for part in ["0.050", "0.010", "5.00", "raw", "skipped: other: no time"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn every_line_fits_and_nothing_is_left_out_where_it_is_narrow() {
        let mut rows = rows();
        rows[0].case = "neighbours: one leaves while the others go on and on".into();
        rows[0].note = "a note of more words than there is room for in one line ".repeat(3);
        for seconds in [1.0, 1_000.0] {
            rows[0].times.record(seconds * 1e9);
        }
        let skipped = [("other".into(), "a reason that is long, too, ".repeat(5))];
        let wide = table_within(&rows, &skipped, 400);
        let narrow = table_within(&rows, &skipped, 80);
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        assert!(wide.lines().any(|line| line.chars().count() > 80), "{wide}");
        let is_whole = |name: &&str| wide.contains(name) && narrow.contains(name);
        assert!(WIDE[..13].iter().all(|(name, _)| is_whole(name)), "{narrow}");
        for cell in WIDE[1..13].iter().map(|(_, cell)| cell(&rows[0])) {
            assert!(narrow.contains(&cell), "{cell} in\n{narrow}");
        }
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words(&narrow).contains(&words(&rows[0].note)), "{narrow}");
    }

    #[test]
    fn the_json_can_be_read_back() {
        let value: Value = json(&rows(), &[]);
        assert_eq!(value["results"][0]["case"], "atomic");
        assert_eq!(value["results"][0]["times"]["samples"], 1);
    }
}
