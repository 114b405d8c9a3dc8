// SPDX-License-Identifier: MIT OR Apache-2.0
//! The formats of log messages (`sink.rs` writes them).

use std::str::FromStr;

/// The format of log messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    /// `Journal` where standard error is the journal, else `Text`.
    #[default]
    Auto,
    /// Plain text for people, with the seconds since the start.
    Text,
    /// For systemd's journal: the level as syslog(3) numbers it.
    Journal,
    /// For programs: a JSON object for each message.
    Json,
}

impl FromStr for Format {
    type Err = &'static str;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "auto" => Ok(Self::Auto),
            "text" => Ok(Self::Text),
            "journal" => Ok(Self::Journal),
            "json" => Ok(Self::Json),
            _ => Err("this is none of auto, text, journal, json"),
        }
    }
}
