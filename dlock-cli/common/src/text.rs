// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text for a terminal. The names of locks, files and hosts come from other people: a control
//! character in a name is a command to the terminal, and one that reverses the direction of writing
//! makes a line say something else.

use serde_json::Value;

/// The text with every character escaped (`\u{202e}`) that a terminal does not show as it is,
/// except line ends. All that this program prints goes through this, or through [`json`].
pub fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match is_visible(c) || c == '\n' {
            true => out.push(c),
            false => out.extend(c.escape_debug()),
        }
    }
    out
}

/// A JSON document, in lines; characters that a terminal does not show are escaped as in JSON.
pub fn json(document: &Value) -> String {
    let mut out = String::new();
    for c in format!("{document:#}").chars() {
        match is_visible(c) || c == '\n' {
            true => out.push(c),
            false => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}")); // JSON permits it in strings only
                }
            }
        }
    }
    out
}

fn is_visible(c: char) -> bool {
    match c {
        ' '..='~' => true,
        c if c.is_ascii() => false,
        // a combining character is tested after a letter, with which it is shown
        c => {
            let after_a_letter = String::from_iter(['x', c]);
            after_a_letter.escape_debug().eq(after_a_letter.chars())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A terminal's commands, in 7 and 8 bits; line ends; changes of direction; invisible
    /// characters.
    const HOSTILE: &str =
        "a\x1b[2J\u{9b}2J\u{80}\x7f\r\t\u{202e}\u{2066}\u{200b}\u{e0001}\"é日e\u{301}";

    #[test]
    fn what_a_terminal_obeys_is_escaped_and_letters_are_not() {
        let shown = visible(HOSTILE);
        assert!(shown.chars().all(is_visible), "{shown:?}");
        let expected =
            r#"a\u{1b}[2J\u{9b}2J\u{80}\u{7f}\r\t\u{202e}\u{2066}\u{200b}\u{e0001}"é日e"#;
        assert_eq!(shown, format!("{expected}\u{301}"));
        assert_eq!(visible("two\nlines"), "two\nlines");
    }

    #[test]
    fn json_with_any_name_is_visible_and_says_the_same() {
        let document = serde_json::json!({ "name": HOSTILE, "other": [1, "\n"] });
        let shown = json(&document);
        assert!(shown.chars().all(|c| is_visible(c) || c == '\n'), "{shown:?}");
        assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), document);
    }
}
