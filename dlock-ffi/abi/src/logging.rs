// SPDX-License-Identifier: MIT OR Apache-2.0
//! The log sink of a C library.
//!
//! ```text
//!   log::error!(…) ──level──▶ queue and thread of dlock_fabric::os::sink ──▶ deliver
//!     deliver: dlock_log_get_callback of libdlockm, if it is in the process
//!                      │ a callback is set        │ none
//!                      ▼                          ▼
//!               callback(ctx, level, line)   one line on stderr
//! ```
//! Levels are those of syslog. Each library has one level: that of the last configuration whose
//! level is valid.

use std::ffi::CString;
use std::os::raw::{c_char, c_int, c_void};
use std::sync::Once;

use dlock_fabric::os::fds;
use dlock_fabric::os::sink::{self as lines, Line};
use log::{Level, LevelFilter, Log, Metadata, Record};

/// The level before the first configuration: warnings.
const LEVEL_DEFAULT: c_int = 4;

type Callback = unsafe extern "C" fn(ctx: *mut c_void, level: c_int, message: *const c_char);
type CallbackGetter = unsafe extern "C" fn(ctx: *mut *mut c_void) -> Option<Callback>;

struct Sink;

static SINK: Sink = Sink;

/// Directs the log lines of this library to the sink. Only the first call has an effect.
pub fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        fds::occupy_standard();
        lines::deliver_by(deliver);
        if log::set_logger(&SINK).is_ok() {
            set_level(LEVEL_DEFAULT);
        }
        // the hook belongs to this library's own copy of the standard library
        std::panic::set_hook(Box::new(|info| log::error!("{info}")));
    });
}

/// Sets the most detailed level that is logged; an invalid number changes nothing.
pub fn set_level(level: c_int) {
    let filter = match level {
        0..=2 => LevelFilter::Off,
        3 => LevelFilter::Error,
        4 | 5 => LevelFilter::Warn,
        6 => LevelFilter::Info,
        7 => LevelFilter::Trace,
        _ => return,
    };
    log::set_max_level(filter);
}

impl Log for Sink {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let (level, text) = (record.level(), one_line(&record.args().to_string()));
            lines::put(Line { level, text });
        }
    }

    fn flush(&self) {}
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r', '\0'], " ")
}

/// Waits, a second at most, until all earlier lines are delivered.
pub fn flush() {
    lines::flush();
}

/// Delivers a line. A callback may block, so only the sink's thread calls it.
fn deliver(line: &Line, may_wait: bool) -> bool {
    let Line { level, text } = line;
    if let (Some((callback, ctx)), Ok(message)) = (callback(), CString::new(text.as_str())) {
        if may_wait {
            // SAFETY: the program vouches for its callback and context (dlock_log.h).
            unsafe { callback(ctx, syslog_level(*level), message.as_ptr()) };
        }
        return may_wait;
    }
    let text = format!("dlock: {}: {text}\n", level.as_str().to_ascii_lowercase());
    lines::to_stderr(&Line { level: *level, text }, may_wait)
}

fn syslog_level(level: Level) -> c_int {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    }
}

/// The callback that the program has set in libdlockm. It is looked up for each line, because the
/// program may load libdlockm at any time.
fn callback() -> Option<(Callback, *mut c_void)> {
    // SAFETY: the name is a terminated string.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"dlock_log_get_callback".as_ptr()) };
    if symbol.is_null() {
        return None;
    }
    // SAFETY: only libdlockm has this name, and there it has this type (dlock_log.h).
    let getter: CallbackGetter = unsafe { std::mem::transmute(symbol) };
    let mut ctx = std::ptr::null_mut();
    // SAFETY: `ctx` outlives the call.
    unsafe { getter(&mut ctx) }.map(|callback| (callback, ctx))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_stays_one_line_and_loses_no_text() {
        assert_eq!(one_line("a\nb\0c\r\n"), "a b c  ");
    }

    #[test]
    fn a_number_that_is_no_level_changes_nothing() {
        set_level(6);
        for wrong in [-1, 8, c_int::MAX, c_int::MIN] {
            set_level(wrong);
            assert_eq!(log::max_level(), LevelFilter::Info);
        }
        set_level(0);
        assert_eq!(log::max_level(), LevelFilter::Off);
    }
}
