// SPDX-License-Identifier: MIT OR Apache-2.0
//! `docs/messages.md`: its rows, and whether programs say what they say.
//!
//! ```text
//!   | cause | `what is said` `and then` | what it means | what to do |
//! ```
//! `…` stands for any text. Line breaks and runs of blanks count as one blank.

use std::collections::{BTreeMap, BTreeSet};

/// The rows of some sections, and which of them were compared.
#[derive(Debug)]
pub struct Messages {
    rows: BTreeMap<String, Vec<String>>,
    compared: BTreeSet<String>,
}

impl Messages {
    /// The rows of the sections whose headings begin with one of these.
    ///
    /// # Panics
    /// If there is no such row, or if a row has not four columns.
    pub fn of(sections: &[&str]) -> Self {
        let mut rows = BTreeMap::new();
        let mut is_in = false;
        for line in crate::read("docs/messages.md").lines() {
            if let Some(heading) = line.strip_prefix("## ") {
                is_in = sections.iter().any(|section| heading.starts_with(section));
            }
            if !is_in || !line.starts_with("| ") || line.starts_with("| cause |") {
                continue;
            }
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            assert_eq!(cells.len(), 4, "{line}");
            assert!(cells.iter().all(|cell| !cell.is_empty()), "{line}");
            let said = cells[1].trim_matches('`').split("` `").map(plain).collect();
            assert_eq!(rows.insert(cells[0].to_string(), said), None, "{line}: it is there twice");
        }
        assert!(!rows.is_empty(), "docs/messages.md has no section {sections:?}");
        Self { rows, compared: BTreeSet::new() }
    }

    /// Compares what a program has said with the row of this cause.
    ///
    /// # Panics
    /// If the program has said something else, or if there is no such row.
    pub fn compare(&mut self, cause: &str, said: &str) {
        let row = self.rows.get(cause).unwrap_or_else(|| panic!("no row {cause:?}"));
        let mut rest = &plain(said)[..];
        for part in row.iter().flat_map(|text| text.split('…')) {
            let at = rest.find(part).unwrap_or_else(|| {
                panic!("{cause}: docs/messages.md has {part:?}, the program said {said:?}")
            });
            rest = &rest[at + part.len()..];
        }
        self.compared.insert(cause.to_string());
    }

    /// Checks that every row was compared with a message of a program, except the rows in
    /// `but_for`.
    ///
    /// # Panics
    /// If another row was not compared.
    pub fn finish(self, but_for: &[&str]) {
        let rows = self.rows.into_keys().filter(|row| !but_for.contains(&row.as_str()));
        let left: Vec<String> = rows.filter(|row| !self.compared.contains(row)).collect();
        assert!(left.is_empty(), "nothing provokes {left:?}");
    }
}

fn plain(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
