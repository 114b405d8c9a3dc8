// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logs which right a refused call needs, and on which lock or object.

use std::sync::atomic::{AtomicU64, Ordering};

use dlock_core::clock::NS;
use dlock_core::rights::Right;
use dlock_fabric::os::clock::boot_ns;

/// When the last line was logged; 0: never.
static LAST_NS: AtomicU64 = AtomicU64::new(0);
/// The number of lines that were left out since then.
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// Logs one line a second at most, for all clients of this process.
#[cold]
pub(crate) fn tell(right: Right, name: &[u8]) {
    let (now, last) = (boot_ns().max(1), LAST_NS.load(Ordering::Relaxed));
    let is_due = last == 0 || now.saturating_sub(last) >= NS;
    let swap = |last| LAST_NS.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed);
    if !is_due || swap(last).is_err() {
        LEFT_OUT.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let left_out = match LEFT_OUT.swap(0, Ordering::Relaxed) {
        0 => String::new(),
        count => format!(" ({count} lines like this were left out before)"),
    };
    log::warn!("{}{left_out}", line(right, name));
}

fn line(right: Right, name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    format!(
        "denied: no rule of the primary gives this client's certificate the right {right} on \
         {name:?}; add a rule with a prefix of this name ([[rules]] in dlockd.toml), or use \
         another certificate"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_the_right_and_the_lock_without_control_characters() {
        let line = line(Right::LockShared, b"orders/\n7");
        assert!(line.contains("the right lock-shared on \"orders/\\n7\""), "{line}");
        assert!(!line.contains('\n'));
    }
}
