// SPDX-License-Identifier: MIT OR Apache-2.0
//! `docs/metrics.md`, made of the table of metrics; and what the table must be like.

use std::fmt::Write;

use super::*;

/// `docs/metrics.md`.
fn document() -> String {
    let mut text = String::from(INTRODUCTION);
    for metric in METRICS {
        let unit = metric.unit.as_ref().map(|unit| format!("_{}", unit.as_str()));
        let (kind, end) = match metric.kind {
            MetricType::Counter => ("counter", "_total"),
            MetricType::Histogram => ("histogram", ""),
            MetricType::Info => ("info", "_info"),
            _ => ("gauge", ""),
        };
        let name = format!("{}{}{end}", metric.name, unit.unwrap_or_default());
        let label = metric.label.unwrap_or_default();
        // writing to a string cannot fail
        let _ = writeln!(text, "| `{name}` | {kind} | {label} | {} |", metric.help);
    }
    text.push_str("\n## Events\n\nThe values of `event` in `dlock_events_total`.\n\n");
    text.push_str("| event | counts |\n|---|---|\n");
    for (at, name) in events() {
        let _ = writeln!(text, "| `{name}` | {} |", TABLE[at].help);
    }
    text
}

const INTRODUCTION: &str = "\
# Metrics

Made by `make manuals` from `dlock-server/src/observe/metrics.rs`; not edited.

`dlockd --http 127.0.0.1:9616` answers `GET` over HTTP/1.1:

| path | status 200 | else 503 |
|---|---|---|
| `/metrics` | OpenMetrics, below | |
| `/livez` | both threads work, or wait for the RDMA device | one has not for 15 s, or has ended |
| `/readyz` | it serves, or is a standby | it starts, recovers or drains; its device is out |
| `/primary` | this process is the primary, which may recover | it is not |
| `/standby` | this process waits for the place of a primary | it does not |

The key `http` in dlockd.toml is the same; without either there is no endpoint. Every process of a
host can read what is on its loopback address: numbers, and names and paths of certificates. On
another address peers need a certificate of the CAs in `[tls]`, for probes, too; without `[tls]`
`insecure = true` is needed there. At most 16 connections are open, for 10 s and one request each.

The numbers are up to a second old: both threads publish them once a second, and a scrape asks
neither. An idle primary wakes once a second for that. A metric of the primary is not shown by a
standby, and one of a recovery only while it lasts. `deploy/` has alerts and a dashboard.

| metric | type | label | meaning |
|---|---|---|---|
";

#[test]
fn manuals_have_every_metric() {
    dlock_manuals::check("docs/metrics.md", &document());
}

#[test]
fn names_are_those_that_prometheus_wants() {
    let mut names: Vec<&str> = METRICS.iter().map(|metric| metric.name).collect();
    for metric in METRICS {
        let name = metric.name;
        assert!(name.starts_with("dlock_") || name.starts_with("process_"), "{name}");
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
        assert!(!name.ends_with("_total") && !name.ends_with("_seconds"), "{name}");
        assert!(metric.help.ends_with('.'), "{name}");
    }
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
    assert_eq!(snake("TableFull"), "table_full");
}
