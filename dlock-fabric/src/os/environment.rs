// SPDX-License-Identifier: MIT OR Apache-2.0
//! Environment variables as the libraries read them.
//!
//! ```text
//!   variable ─▶ AT_SECURE (set-user-id, set-group-id, file capabilities)? ─▶ counts as not set
//!            ─▶ empty? ─▶ not set
//! ```
//! A program with more rights than its caller must not let the caller choose which primary it
//! believes, whose memory it maps, or which files its certificates are in. The libraries read the
//! environment only here; a test of `tests/tidy` checks that.

use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};

/// The value of an environment variable. `None`: it is not set, or empty, or the caller of this
/// program has fewer rights.
pub fn variable(name: &str) -> Option<OsString> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
    if is_of_a_stranger() {
        static TOLD: AtomicBool = AtomicBool::new(false);
        if !TOLD.swap(true, Ordering::Relaxed) {
            log::warn!(
                "{name} and other variables of the environment are ignored: this program has more \
                 rights than its caller (set-user-id, set-group-id or file capabilities); say it \
                 in its configuration"
            );
        }
        return None;
    }
    Some(value)
}

/// As [`variable`], if the value is UTF-8.
pub fn text(name: &str) -> Option<String> {
    variable(name)?.into_string().ok()
}

/// Whether the process runs with more rights than its caller, as the kernel says since execve.
pub fn is_of_a_stranger() -> bool {
    // SAFETY: only returns a number; 0 where the kernel does not know it.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
