// SPDX-License-Identifier: MIT OR Apache-2.0
//! Standard output. A failed write is remembered, and the program fails at its end. It may be a
//! pipe into `head`, which is no reason to crash or to print something.

use std::io::{self, stdout, ErrorKind, IsTerminal, Write};
use std::sync::Mutex;

use rustix::termios::tcgetwinsize;
use serde_json::Value;

use crate::text;

/// The first error of a write.
static LOST: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints text that ends with its own newline, at once.
pub fn print(text: &str) {
    let mut out = stdout().lock();
    let written = out.write_all(text::visible(text).as_bytes()).and_then(|()| out.flush());
    if let (Err(error), Ok(mut lost)) = (written, LOST.lock()) {
        lost.get_or_insert(error);
    }
}

/// The width of the terminal on standard output; `None`: it is not a terminal.
pub fn columns() -> Option<usize> {
    let out = stdout();
    let size = out.is_terminal().then(|| tcgetwinsize(&out).ok()).flatten()?;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

/// The width of help and reports if standard output is not a terminal.
const WIDTH: usize = 80;

/// The width of help and reports.
pub fn width() -> usize {
    columns().unwrap_or(WIDTH)
}

/// Prints one line, at once.
pub fn line(text: &str) {
    print(&format!("{text}\n"));
}

/// Prints a JSON document.
pub fn json(document: &Value) {
    line(&text::json(document));
}

/// If some output was lost, the message about that; empty if the reader has gone.
pub fn lost() -> Option<String> {
    let lost = LOST.lock().ok()?.take()?;
    Some(match lost.kind() {
        ErrorKind::BrokenPipe => String::new(), // the reader has seen what it wanted
        _ => format!("standard output: {lost}: what was printed is not complete"),
    })
}
