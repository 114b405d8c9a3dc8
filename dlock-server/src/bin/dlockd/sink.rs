// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages on standard error, one line each, written by the thread of [`dlock_fabric::os::sink`].
//!
//! ```text
//!   text      [     1.234] WARN  message        seconds since the start
//!   journal   <4>message                        for systemd's journal, which has the time
//!   json      {"time":1732557600.123456,"level":"warn","target":"dlock_server::…","message":"…"}
//! ```

use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use dlock_fabric::os::sink::{self, Line};
use log::{Level, LevelFilter, Log, Metadata, Record};
use serde_json::json;

use crate::format::Format;

struct Sink {
    started: Instant,
    format: Format,
}

impl Sink {
    fn new(format: Format) -> Self {
        let format = match format {
            Format::Auto if is_journal() => Format::Journal,
            format => format,
        };
        Self { started: Instant::now(), format }
    }

    fn line(&self, record: &Record<'_>) -> String {
        let level = record.level();
        match self.format {
            Format::Auto | Format::Text => {
                let time_s = self.started.elapsed().as_secs_f64();
                format!("[{time_s:10.3}] {:5} {}\n", level.as_str(), record.args())
            }
            // In the journal a line is a message, so each line of a message gets the level.
            Format::Journal => {
                let text = record.args().to_string();
                text.lines().map(|line| format!("<{}>{line}\n", syslog(level))).collect()
            }
            Format::Json => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let line = json!({
                    "time": since.as_micros() as f64 / 1e6,
                    "level": level.as_str().to_lowercase(),
                    "target": record.target(),
                    "message": record.args().to_string(),
                });
                format!("{line}\n")
            }
        }
    }
}

impl Log for Sink {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            sink::put(Line { level: record.level(), text: self.line(record) });
        }
    }

    fn flush(&self) {}
}

/// Sends the messages of this process to standard error.
pub(crate) fn install(level: LevelFilter, format: Format) {
    static SINK: OnceLock<Sink> = OnceLock::new();
    // Fails only if there is a logger already, and nothing else in this program installs one.
    let _ = log::set_logger(SINK.get_or_init(|| Sink::new(format)));
    log::set_max_level(level);
}

/// Prints why this process ends, at every log level: as text like other programs, else as an error
/// in the format of the log.
pub(crate) fn say_why_it_ends(format: Format, message: &str) {
    let own = Sink::new(format);
    let text = match own.format {
        Format::Auto | Format::Text => format!("dlockd: {message}\n"),
        Format::Journal | Format::Json => {
            let mut record = Record::builder();
            let record = record.level(Level::Error).target("dlockd");
            own.line(&record.args(format_args!("{message}")).build())
        }
    };
    sink::put(Line { level: Level::Error, text });
}

/// Whether standard error goes to the journal: systemd names its file in `JOURNAL_STREAM`, and a
/// redirection makes it another file.
fn is_journal() -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else { return false };
    let found = std::fs::metadata("/proc/self/fd/2");
    found.is_ok_and(|file| named == format!("{}:{}", file.dev(), file.ino()))
}

/// The priority of a level in syslog(3).
fn syslog(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(format: Format, text: &str) -> String {
        let sink = Sink { started: Instant::now(), format };
        let args = format_args!("{text}");
        sink.line(&Record::builder().level(Level::Warn).target("here").args(args).build())
    }

    #[test]
    fn each_format_has_the_level_and_the_text() {
        assert!(line(Format::Text, "a message").ends_with("] WARN  a message\n"));
        assert_eq!(line(Format::Journal, "one\ntwo"), "<4>one\n<4>two\n");
        let json = line(Format::Json, "one\n\"two\"");
        assert_eq!(json.matches('\n').count(), 1, "{json}");
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["message"], "one\n\"two\"");
        assert_eq!((&value["level"], &value["target"]), (&json!("warn"), &json!("here")));
        assert!(value["time"].as_f64().unwrap() > 1e9);
    }
}
