// SPDX-License-Identifier: MIT OR Apache-2.0
//! The environment, as the libraries read it.
//!
//! ```text
//!   variable ─▶ AT_SECURE (set-user-id, set-group-id, file capabilities)? ─▶ not set, for us
//!            ─▶ empty? ─▶ not set
//! ```
//! A program that has more rights than its caller does not let the caller say which primary it
//! believes, whose memory it maps, or which files its certificates are in. All reading of the
//! environment by the libraries is here; a test of `tests/tidy` checks that.

use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};

/// The value of an environment variable. `None`: it is not set, or empty, or the environment is
/// that of a caller with fewer rights.
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

/// [`variable`], where it is UTF-8.
pub fn text(name: &str) -> Option<String> {
    variable(name)?.into_string().ok()
}

/// Whether the process runs with more rights than those of the one who has started it, as the
/// kernel says since its execve.
pub fn is_of_a_stranger() -> bool {
    // SAFETY: a number, and nothing else; 0 where the kernel does not know it.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
