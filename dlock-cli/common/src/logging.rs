// SPDX-License-Identifier: MIT OR Apache-2.0
//! Log messages of the libraries go to standard error, one line each, unless they are collected. A
//! reader of standard error that does not read blocks no thread.

use std::fmt;
use std::sync::Mutex;

use dlock_fabric::os::sink::{self, Line};
use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::text;

struct Stderr;

/// The messages that were collected; `None`: messages are printed.
static HEARD: Mutex<Option<Vec<String>>> = Mutex::new(None);

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }
    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let mut heard = HEARD.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(heard) = &mut *heard {
            heard.push(record.args().to_string());
        } else {
            say(format_args!("{}: {}", record.level().as_str().to_lowercase(), record.args()));
        }
    }
    fn flush(&self) {}
}

/// Prints one line on standard error, after the name of the program.
pub fn say(line: impl fmt::Display) {
    let text = format!("dlock: {}\n", text::visible(&line.to_string()));
    sink::put(Line { level: Level::Error, text });
}

/// Logs errors to standard error; each `-v` adds a level.
pub fn to_stderr(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::Error,
        1 => LevelFilter::Info,
        2 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    };
    // `set_logger` fails only if a logger is set already, and nothing else sets one.
    if log::set_logger(&Stderr).is_ok() {
        log::set_max_level(level);
        sink::log_panics(|| {});
    }
}

/// Calls `act`; returns its result and the lines logged meanwhile, which are not printed.
pub fn heard<T>(act: impl FnOnce() -> T) -> (T, Vec<String>) {
    let swap = |with| {
        let mut heard = HEARD.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        std::mem::replace(&mut *heard, with)
    };
    swap(Some(Vec::new()));
    let result = act();
    (result, swap(None).unwrap_or_default())
}
