// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client tells the primary of itself, for operators: the primary shows it, and decides
//! nothing by it.
//!
//! ```text
//!   label   what the program's operator calls it       64 bytes
//!   host    the name of its host                       64 bytes
//!   user    the name or number of its user             32 bytes
//!   pid     its process there; 0: not told
//! ```
//! Everything is text that a terminal can show: no control characters, and none that change the
//! direction of a line or cannot be seen.

/// The most bytes of a label.
pub const LABEL_LEN_MAX: usize = 64;
/// The most bytes of the name of a host.
pub const HOST_LEN_MAX: usize = 64;
/// The most bytes of the name of a user.
pub const USER_LEN_MAX: usize = 32;

/// What a client tells of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct About {
    label: String,
    host: String,
    user: String,
    /// The process id in the client's own namespace; 0: not told.
    pub pid: u32,
}

impl About {
    /// A client that tells nothing.
    pub const NOTHING: Self =
        Self { label: String::new(), host: String::new(), user: String::new(), pid: 0 };

    /// Made of these texts; `None`: one is too long, or has a character that is not shown.
    pub fn new(label: &str, host: &str, user: &str, pid: u32) -> Option<Self> {
        let bounded = [(label, LABEL_LEN_MAX), (host, HOST_LEN_MAX), (user, USER_LEN_MAX)].map(
            |(text, max)| {
                let is_good = text.len() <= max && text.chars().all(is_shown);
                is_good.then(|| text.to_string())
            },
        );
        let [label, host, user] = bounded;
        Some(Self { label: label?, host: host?, user: user?, pid })
    }

    /// The label; empty: none.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The name of the client's host; empty: not told.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The client's user; empty: not told.
    pub fn user(&self) -> &str {
        &self.user
    }
}

/// Whether a terminal shows this character in its place: no control character, no mark that turns
/// the direction of a line, and none without a width.
fn is_shown(c: char) -> bool {
    let is_hidden = matches!(
        c,
        '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}'
    );
    !c.is_control() && !is_hidden
}

/// The text with everything replaced that [`About::new`] refuses, and cut to so many bytes: for
/// texts of the system.
pub fn shown(text: &str, bytes_max: usize) -> String {
    let mut shown = String::new();
    for c in text.chars().map(|c| if is_shown(c) { c } else { '?' }) {
        if shown.len() + c.len_utf8() > bytes_max {
            break;
        }
        shown.push(c);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_are_too_long_or_not_shown_are_refused() {
        let long = "é".repeat(LABEL_LEN_MAX / 2);
        assert_eq!(About::new(&long, "h", "u", 7).unwrap().label(), long);
        assert_eq!(About::new(&(long + "e"), "", "", 0), None);
        assert_eq!(About::new("", &"h".repeat(HOST_LEN_MAX + 1), "", 0), None);
        assert_eq!(About::new("", "", &"u".repeat(USER_LEN_MAX + 1), 0), None);
        for hidden in ["\n", "\u{1b}[31m", "\0", "\u{7f}", "\u{85}", "a\u{202e}b", "\u{200b}"] {
            assert_eq!(About::new(hidden, "", "", 0), None, "{hidden:?}");
            assert_eq!(About::new("", hidden, "", 0), None, "{hidden:?}");
            assert_eq!(About::new("", "", hidden, 0), None, "{hidden:?}");
            assert!(About::new(&shown(hidden, 9), "", "", 0).is_some(), "{hidden:?}");
        }
        assert_eq!(About::new("", "", "", 0), Some(About::NOTHING));
    }

    #[test]
    fn a_text_of_the_system_is_cut_between_characters() {
        assert_eq!(shown("naïve", 3), "na");
        assert_eq!(shown("naïve", 4), "naï");
        assert_eq!(shown("a\tb", 9), "a?b");
    }
}
