// SPDX-License-Identifier: MIT OR Apache-2.0
//! Standard output. What cannot be written is remembered: the program fails then. It may be a pipe
//! into `head`, which is no reason to crash or to say something.

use std::io::{self, stdout, ErrorKind, IsTerminal, Write};
use std::sync::Mutex;

use rustix::termios::tcgetwinsize;
use serde_json::Value;

use crate::text;

/// Why something was not written, the first time.
static LOST: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints text that ends with its own newline, at once.
pub fn print(text: &str) {
    let mut out = stdout().lock();
    let written = out.write_all(text::visible(text).as_bytes()).and_then(|()| out.flush());
    if let (Err(error), Ok(mut lost)) = (written, LOST.lock()) {
        lost.get_or_insert(error);
    }
}

/// How wide the terminal is that is printed to; `None`: it is none, as a pipe or a file.
pub fn columns() -> Option<usize> {
    let out = stdout();
    let size = out.is_terminal().then(|| tcgetwinsize(&out).ok()).flatten()?;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

/// Where nothing tells how wide the output may be.
const WIDTH: usize = 80;

/// How wide help and reports may be.
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

/// Whether something that was to be printed was lost, and what is to be said about it.
pub fn lost() -> Option<String> {
    let lost = LOST.lock().ok()?.take()?;
    Some(match lost.kind() {
        ErrorKind::BrokenPipe => String::new(), // the reader has seen what it wanted
        _ => format!("standard output: {lost}: what was printed is not complete"),
    })
}
