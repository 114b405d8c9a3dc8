// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the libraries log goes to standard error, one line each.

use log::{LevelFilter, Log, Metadata, Record};

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }
    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            eprintln!("dlock: {}: {}", record.level().as_str().to_lowercase(), record.args());
        }
    }
    fn flush(&self) {}
}

/// Errors only; each `-v` adds a level.
pub fn to_stderr(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::Error,
        1 => LevelFilter::Info,
        2 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    };
    // It fails only if a logger is set already, and nobody else sets one.
    if log::set_logger(&Stderr).is_ok() {
        log::set_max_level(level);
    }
}
