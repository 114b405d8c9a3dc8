// SPDX-License-Identifier: MIT OR Apache-2.0
//! The metrics: one table, from which both the exposition (OpenMetrics) and `docs/metrics.md` are
//! made.
//!
//! ```text
//!   View (roles.rs) ─▶ METRICS: samples of each line ─▶ text ─▶ GET /metrics
//! ```
//! Every label has a bounded number of values: states, fabrics, causes, counters, and the files of
//! `[tls]`. No label names a client, a lock or a peer.

use std::fmt;
use std::sync::Mutex;

use dlock_core::counters::{By, TABLE};
use dlock_core::wire::fabric::FabricKind;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::roles::{PrimaryView, StandbyView, View};
use super::snapshot::{ControlSnapshot, Snapshot, Steps, MEMBER_STATES, STEP_BOUNDS_US};

/// Certificates and lists whose ends are shown: those that end first.
const ENDINGS_MAX: usize = 64;

/// The media type of the exposition.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// One metric, that is all samples with its name.
struct Metric {
    /// The name, without the ends that its kind and unit add.
    name: &'static str,
    kind: MetricType,
    unit: Option<Unit>,
    /// The names of the labels, with `, ` in between.
    label: Option<&'static str>,
    help: &'static str,
    samples: fn(&View) -> Vec<Sample>,
}

/// A value, and its labels.
struct Sample {
    labels: Vec<(&'static str, String)>,
    value: Value,
}

impl Sample {
    /// Whether its labels are those that the metric names.
    fn has_labels_of(&self, metric: &Metric) -> bool {
        let names: Vec<&str> = self.labels.iter().map(|(name, _)| *name).collect();
        names.join(", ") == metric.label.unwrap_or_default()
    }
}

enum Value {
    Whole(u64),
    Real(f64),
    /// The labels are the information.
    Info,
    Steps(Steps),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::Whole(value.into())
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Whole(value as u64)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Whole(value.into())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

const GAUGE: MetricType = MetricType::Gauge;
const COUNTER: MetricType = MetricType::Counter;
const SECONDS: Option<Unit> = Some(Unit::Seconds);

/// A line of [`METRICS`].
macro_rules! metric {
    ($name:literal, $kind:expr, $help:literal, $samples:expr) => {
        metric!($name, $kind, None, None, $help, $samples)
    };
    ($name:literal, $kind:expr, $unit:expr, $label:expr, $help:literal, $samples:expr) => {
        Metric {
            name: $name,
            kind: $kind,
            unit: $unit,
            label: $label,
            help: $help,
            samples: $samples,
        }
    };
}

/// All metrics, in the order in which they are shown.
const METRICS: &[Metric] = &[
    metric!(
        "dlock_build",
        MetricType::Info,
        None,
        Some("version"),
        "The version of dlockd.",
        |_| {
            vec![Sample { labels: vec![("version", crate::VERSION.into())], value: Value::Info }]
        }
    ),
    metric!("dlock_primary", GAUGE, "1: this process is the primary.", |view| {
        one(view.primary().is_some())
    }),
    metric!("dlock_standby", GAUGE, "1: this process waits for the place of a primary.", |view| {
        one(view.standby().is_some())
    }),
    metric!(
        "dlock_incarnation",
        MetricType::Info,
        None,
        Some("address, epoch"),
        "The address of the primary, and its epoch.",
        |view| of_primary(view, |primary| {
            let address = ("address", primary.info.address.to_string());
            let labels = vec![address, ("epoch", primary.info.epoch.0.to_string())];
            vec![Sample { labels, value: Value::Info }]
        })
    ),
    metric!(
        "dlock_uptime",
        GAUGE,
        SECONDS,
        None,
        "For how long the primary has served or recovered.",
        |view| of_primary(view, |primary| one(primary.info.started.elapsed().as_secs_f64()))
    ),
    metric!(
        "dlock_snapshot_age",
        GAUGE,
        SECONDS,
        Some("thread"),
        "The time since this thread (command, control) has last published what the metrics show: \
         once a second. More than a few seconds: it does not work, or waits for its device.",
        |view| of_primary(view, ages)
    ),
    metric!("dlock_device_is_out", GAUGE, "1: the primary waits for its RDMA device.", |view| {
        of_primary(view, |primary| one(primary.mailbox.is_out()))
    }),
    metric!("dlock_recovering", GAUGE, "1: no client gets a lock yet.", |view| {
        of_command(view, |seen| one(seen.recovery.is_some()))
    }),
    metric!(
        "dlock_recovery_clients",
        GAUGE,
        None,
        Some("state"),
        "Clients of the predecessor in a recovery: expected; back; told (have told what they \
         hold); endless (missing, and waited for without end).",
        |view| of_command(view, recovery_clients)
    ),
    metric!("dlock_recovery_claims", GAUGE, "Holds and tickets that clients have told.", |view| {
        of_command(view, |seen| of(seen.recovery, |recovery| one(recovery.claims)))
    }),
    metric!(
        "dlock_recovery_list_lost",
        GAUGE,
        "1: the list of the predecessor's clients was lost, so the recovery waits for \
         `dlock recover --now`.",
        |view| of_command(view, |seen| of(seen.recovery, |recovery| one(recovery.is_unlisted)))
    ),
    metric!("dlock_draining", GAUGE, "1: clients get no lock any more (`dlock drain`).", |view| {
        of_command(view, |seen| one(seen.is_draining))
    }),
    metric!(
        "dlock_clients",
        GAUGE,
        None,
        Some("state"),
        "Clients. present; absent: it has no control connection; ending: it must be fenced first; \
         fenced: it keeps everything until its horizon; lapsing: what has no lease ends; \
         lingering: it has nothing but leases; undoing: what it has ends.",
        |view| of_command(view, |seen| labelled("state", MEMBER_STATES.iter().zip(seen.clients)))
    ),
    metric!("dlock_clients_max", GAUGE, "The most clients at a time.", |view| {
        of_primary(view, |primary| one(primary.capacity.clients))
    }),
    metric!(
        "dlock_channels",
        GAUGE,
        None,
        Some("fabric"),
        "Command channels of clients on this fabric.",
        |view| of_command(view, |seen| {
            labelled("fabric", FabricKind::ALL.map(FabricKind::name).iter().zip(seen.channels))
        })
    ),
    metric!("dlock_locks", GAUGE, "Locks that clients have got.", |view| {
        of_command(view, |seen| one(seen.locks))
    }),
    metric!("dlock_locks_max", GAUGE, "The most locks at a time.", |view| {
        of_primary(view, |primary| one(primary.locks_max))
    }),
    metric!("dlock_objects", GAUGE, "State objects that clients have got.", |view| {
        of_command(view, |seen| one(seen.objects))
    }),
    metric!("dlock_objects_max", GAUGE, "The most state objects at a time.", |view| {
        of_primary(view, |primary| one(primary.objects_max))
    }),
    metric!(
        "dlock_lock_waiters",
        GAUGE,
        "Waits in the queues of all locks. Up to 2,048 locks are counted a second; so with more \
         locks the number is older.",
        |view| of_command(view, |seen| one(seen.waiters.waiters))
    ),
    metric!("dlock_waited_locks", GAUGE, "Locks with waiters, counted at the same time.", |view| {
        of_command(view, |seen| one(seen.waiters.locks))
    }),
    metric!(
        "dlock_events",
        COUNTER,
        None,
        Some("event"),
        "What the primary has counted, and what clients have counted for it: Events, below. \
         Counts of clients over shm and verbs come from 64 clients a second. \
         `clear_server_debug_stats` of the C API sets it to 0.",
        |view| of_command(view, |seen| {
            let counted = events().map(|(at, name)| (name, seen.counters[at]));
            labelled("event", counted)
        })
    ),
    metric!(
        "dlock_command_step",
        MetricType::Histogram,
        SECONDS,
        None,
        "Steps of the command thread that had work, or took 1 ms. Its sum is the time for which \
         the thread was busy: rate(dlock_command_step_seconds_sum[1m]) is its busy share.",
        |view| of_command(view, |seen| one(Value::Steps(seen.steps)))
    ),
    metric!(
        "dlock_command_step_longest",
        GAUGE,
        SECONDS,
        None,
        "The longest step of the command thread in the last one to two minutes.",
        |view| of_command(view, |seen| one(seen.steps.longest().as_secs_f64()))
    ),
    metric!(
        "dlock_queued",
        GAUGE,
        None,
        Some("queue"),
        "What waits. events: from the control thread to the command thread, 1,024 at most; turns: \
         clients with work; admissions: clients for which there is no place yet.",
        |view| of_command(view, |seen| {
            let queues = seen.queues;
            let all = [
                ("events", queues.events),
                ("turns", queues.turns),
                ("admissions", queues.admissions),
            ];
            labelled("queue", all)
        })
    ),
    metric!(
        "dlock_hindered_clients",
        GAUGE,
        None,
        Some("why"),
        "Clients that are held up, or hold up. rate: more frames than frames_per_second_max; \
         unread: leaves replies unread; unfenced: could not be fenced, and keeps what it has.",
        |view| of_command(view, |seen| {
            let queues = seen.queues;
            let all = [
                ("rate", queues.resting),
                ("unread", queues.blocked),
                ("unfenced", queues.unfenced),
            ];
            labelled("why", all)
        })
    ),
    metric!(
        "dlock_connections",
        GAUGE,
        None,
        Some("of"),
        "Connections to the port, without command channels: of clients, and of strangers, which \
         are no clients yet.",
        |view| of_control(view, |seen| {
            let strangers = seen.connections.saturating_sub(seen.of_clients);
            labelled("of", [("clients", seen.of_clients), ("strangers", strangers)])
        })
    ),
    metric!("dlock_connections_max", GAUGE, "The most connections at a time.", |view| {
        of_control(view, |_| one(crate::control::CONNECTIONS_MAX))
    }),
    metric!("dlock_tls_handshakes", GAUGE, "TLS handshakes under way.", |view| {
        of_control(view, |seen| one(seen.handshakes))
    }),
    metric!(
        "dlock_roster_failing",
        GAUGE,
        "1: the list of clients cannot be written beside the state file, so no client is let in.",
        |view| of_control(view, |seen| one(seen.roster_fails))
    ),
    metric!("dlock_client_files", GAUGE, "Descriptors that clients take.", |view| {
        of_command(view, |seen| one(seen.client_files))
    }),
    metric!("dlock_client_files_max", GAUGE, "The most descriptors for clients.", |view| {
        of_primary(view, |primary| one(primary.capacity.files))
    }),
    metric!("dlock_standby_heard", GAUGE, "1: the standby has heard its primary.", |view| {
        of_standby(view, |standby| one(standby.was_heard))
    }),
    metric!(
        "dlock_standby_silence",
        GAUGE,
        SECONDS,
        None,
        "For how long the primary has not answered the standby.",
        |view| of_standby(view, |standby| one(standby.silent_ms as f64 / 1e3))
    ),
    metric!(
        "dlock_standby_has_place",
        GAUGE,
        "1: the standby has taken the place of the primary, and cannot serve yet: see its log.",
        |view| of_standby(view, |standby| one(standby.has_place))
    ),
    metric!(
        "dlock_tls_end_timestamp",
        GAUGE,
        SECONDS,
        Some("what, file"),
        "The end of each certificate and revocation list, the first 64; seconds since 1970.",
        tls_ends
    ),
    metric!(
        "dlock_log_lines_left_out",
        COUNTER,
        None,
        Some("cause"),
        "Lines beyond 10 of one cause in 10 s. The causes are those of `log_limit.rs`.",
        |view| labelled("cause", view.left_out.iter().map(|(name, lines)| (snake(name), *lines)))
    ),
    metric!(
        "dlock_log_lines_lost",
        COUNTER,
        "Lines of the log that were lost, because the reader of standard error did not take them.",
        |view| one(view.lines_lost)
    ),
    metric!("process_open_fds", GAUGE, "Descriptors of this process.", |view| {
        of(view.limits, |limits| one(limits.files_open))
    }),
    metric!("process_max_fds", GAUGE, "The limit of descriptors (ulimit -n).", |view| {
        of(view.limits, |limits| one(limits.files))
    }),
];

fn one(value: impl Into<Value>) -> Vec<Sample> {
    vec![Sample { labels: Vec::new(), value: value.into() }]
}

fn labelled<L: ToString, V: Into<Value>>(
    label: &'static str,
    values: impl IntoIterator<Item = (L, V)>,
) -> Vec<Sample> {
    let sample = |(name, value): (L, V)| Sample {
        labels: vec![(label, name.to_string())],
        value: value.into(),
    };
    values.into_iter().map(sample).collect()
}

/// The samples of something that may be missing.
fn of<T>(seen: Option<T>, samples: impl FnOnce(T) -> Vec<Sample>) -> Vec<Sample> {
    seen.map(samples).unwrap_or_default()
}

fn of_primary(view: &View, samples: fn(&PrimaryView) -> Vec<Sample>) -> Vec<Sample> {
    of(view.primary(), samples)
}

fn of_standby(view: &View, samples: fn(&StandbyView) -> Vec<Sample>) -> Vec<Sample> {
    of(view.standby(), samples)
}

fn of_command(view: &View, samples: fn(&Snapshot) -> Vec<Sample>) -> Vec<Sample> {
    of(view.primary().and_then(|primary| primary.command.as_deref()), samples)
}

fn of_control(view: &View, samples: fn(&ControlSnapshot) -> Vec<Sample>) -> Vec<Sample> {
    of(view.primary().and_then(|primary| primary.control.as_deref()), samples)
}

fn ages(primary: &PrimaryView) -> Vec<Sample> {
    let ages = [
        ("command", primary.command.as_ref().map(|seen| seen.at)),
        ("control", primary.control.as_ref().map(|seen| seen.at)),
    ];
    let ages = ages.into_iter().filter_map(|(thread, at)| Some((thread, at?.elapsed())));
    labelled("thread", ages.map(|(thread, age)| (thread, age.as_secs_f64())))
}

fn recovery_clients(seen: &Snapshot) -> Vec<Sample> {
    of(seen.recovery, |recovery| {
        let all = [
            ("expected", u64::from(recovery.expected)),
            ("back", recovery.back.into()),
            ("told", recovery.told.into()),
            ("endless", recovery.endless as u64),
        ];
        labelled("state", all)
    })
}

fn tls_ends(view: &View) -> Vec<Sample> {
    let mut endings = view.endings.clone();
    endings.sort_by_key(|ending| ending.at_s);
    let sample = |ending: &dlock_fabric::tls::Ending| Sample {
        labels: vec![("what", ending.what.clone()), ("file", ending.path.display().to_string())],
        value: ending.at_s.into(),
    };
    let mut samples: Vec<Sample> = Vec::new();
    for ending in endings.iter().take(ENDINGS_MAX) {
        let sample = sample(ending);
        // a second certificate of the same name in the same file would be the same sample
        if samples.iter().all(|other| other.labels != sample.labels) {
            samples.push(sample);
        }
    }
    samples
}

/// The counters that a primary counts, each with its number.
fn events() -> impl Iterator<Item = (usize, String)> {
    let counted = TABLE.iter().filter(|info| matches!(info.by, By::Primary | By::Both));
    counted.map(|info| (info.counter as usize, info.name.to_lowercase()))
}

/// `TableFull` as `table_full`.
fn snake(name: &str) -> String {
    let mut snake = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(c.to_lowercase());
    }
    snake
}

/// The exposition of this view.
pub(crate) fn text(view: View) -> String {
    let mut registry = Registry::default();
    // a collector must be `Sync`, and a view need not be
    registry.register_collector(Box::new(Shown(Mutex::new(view))));
    let mut text = String::new();
    // writing to a string cannot fail
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Shown(Mutex<View>);

impl Collector for Shown {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Ok(view) = self.0.lock() else { return Err(fmt::Error) };
        for metric in METRICS {
            let samples = (metric.samples)(&view);
            if samples.is_empty() {
                continue; // this process has no such thing now
            }
            let (unit, kind) = (metric.unit.as_ref(), metric.kind);
            debug_assert!(
                samples.iter().all(|sample| sample.has_labels_of(metric)),
                "{}",
                metric.name
            );
            let mut family = encoder.encode_descriptor(metric.name, metric.help, unit, kind)?;
            for Sample { labels, value } in samples {
                match (&value, labels.is_empty()) {
                    (Value::Info, _) => family.encode_info(&labels)?,
                    (_, true) => encode(&mut family, metric.kind, &value)?,
                    (_, false) => {
                        encode(&mut family.encode_family(&labels)?, metric.kind, &value)?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn encode(encoder: &mut MetricEncoder<'_>, kind: MetricType, value: &Value) -> fmt::Result {
    match (kind, value) {
        (MetricType::Counter, Value::Whole(n)) => {
            encoder.encode_counter::<NoLabelSet, _, u64>(n, None)
        }
        (_, Value::Whole(n)) => encoder.encode_gauge(n),
        (_, Value::Real(n)) => encoder.encode_gauge(n),
        (_, Value::Steps(steps)) => {
            let bounds = STEP_BOUNDS_US.map(|us| us as f64 / 1e6).into_iter().chain([f64::MAX]);
            let buckets: Vec<(f64, u64)> = bounds.zip(steps.buckets).collect();
            let count = steps.buckets.iter().sum();
            let sum = steps.busy.as_secs_f64();
            encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        }
        (_, Value::Info) => Ok(()),
    }
}

#[cfg(test)]
mod document;
