// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages on standard error: seconds since the start, level, text.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::time::Instant;

use log::{LevelFilter, Log, Metadata, Record};

struct Sink {
    started: Instant,
}

impl Log for Sink {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let time_s = self.started.elapsed().as_secs_f64();
            let level = record.level().as_str();
            // One write per line, so that lines of two threads do not mix; nobody to tell if
            // standard error is closed.
            let line = format!("[{time_s:10.3}] {level:5} {}\n", record.args());
            let _ = io::stderr().write_all(line.as_bytes());
        }
    }

    fn flush(&self) {}
}

/// Sends the messages of this process to standard error.
pub(crate) fn install(level: LevelFilter) {
    static SINK: OnceLock<Sink> = OnceLock::new();
    // Fails only if there is a sink already, and this program installs one.
    let _ = log::set_logger(SINK.get_or_init(|| Sink { started: Instant::now() }));
    log::set_max_level(level);
}
