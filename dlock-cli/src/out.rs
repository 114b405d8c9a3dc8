// SPDX-License-Identifier: MIT OR Apache-2.0
//! Standard output that may be a pipe into `head`: nobody reading is no reason to crash.

use std::io::{stdout, Write};

/// Prints text that ends with its own newline, at once.
pub fn print(text: &str) {
    let mut out = stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush()); // nobody reads: say no more
}

/// Prints one line, at once.
pub fn line(text: &str) {
    print(&format!("{text}\n"));
}
