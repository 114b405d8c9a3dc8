// SPDX-License-Identifier: MIT OR Apache-2.0
//! A log of the reasons why repeated attempts fail: each reason is logged once.

use log::Level;
use parking_lot::Mutex;

/// The most reasons that are remembered; any further reason is logged each time.
const REASONS_MAX: usize = 16;

/// The reasons logged since the last attempt that succeeded.
#[derive(Debug, Default)]
pub(crate) struct LoggedOnce(Mutex<Vec<String>>);

impl LoggedOnce {
    /// Logs the reason at this level the first time, and at the level `Debug` after that.
    pub(crate) fn log(&self, level: Level, reason: String) {
        log::log!(self.level_of(level, &reason), "{reason}");
    }

    fn level_of(&self, level: Level, reason: &str) -> Level {
        let mut said = self.0.lock();
        if said.iter().any(|known| known == reason) {
            return level.max(Level::Debug);
        }
        if said.len() < REASONS_MAX {
            said.push(reason.into());
        }
        level
    }

    /// Forgets the reasons, after an attempt has succeeded.
    pub(crate) fn forget(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_loud_once_until_an_attempt_succeeds() {
        let said = LoggedOnce::default();
        for _ in 0..2 {
            assert_eq!(said.level_of(Level::Error, "no shm"), Level::Error);
            assert_eq!(said.level_of(Level::Warn, "no verbs"), Level::Warn);
            assert_eq!(said.level_of(Level::Error, "no shm"), Level::Debug);
            assert_eq!(said.level_of(Level::Trace, "no verbs"), Level::Trace, "no louder");
            said.forget();
        }
        for reason in 0..2 * REASONS_MAX {
            said.level_of(Level::Error, &reason.to_string());
        }
        assert_eq!(said.0.lock().len(), REASONS_MAX);
    }
}
