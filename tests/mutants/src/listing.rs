// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mutants that `cargo mutants --list --json` names.

use std::ops::Range;

use serde_json::Value;

/// A mutant, as cargo-mutants lists it.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The file, from the root of the repository.
    pub file: String,
    /// The function in which it is; empty: it is in a constant.
    pub function: String,
    /// The kind of change: `BinaryOperator`, `FnValue`, ...
    pub genre: String,
    /// The part of the text that is replaced, as lines and columns from 1.
    pub span: Range<(usize, usize)>,
    /// The text that replaces it.
    pub replacement: String,
}

/// Reads the listing.
///
/// # Errors
/// If an entry is not as expected; the text says which.
pub fn parse(text: &str) -> Result<Vec<Listed>, String> {
    let all: Value = serde_json::from_str(text).map_err(|e| format!("the listing: {e}"))?;
    let all = all.as_array().ok_or("the listing is not an array")?;
    all.iter().map(|m| one(m).ok_or_else(|| format!("a listed mutant: {m}"))).collect()
}

fn one(m: &Value) -> Option<Listed> {
    let text = |v: &Value| v.as_str().map(str::to_string);
    Some(Listed {
        file: text(&m["file"])?,
        function: text(&m["function"]["function_name"]).unwrap_or_default(),
        genre: text(&m["genre"])?,
        span: point(&m["span"]["start"])?..point(&m["span"]["end"])?,
        replacement: text(&m["replacement"])?,
    })
}

fn point(v: &Value) -> Option<(usize, usize)> {
    let number = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok());
    Some((number(&v["line"])?, number(&v["column"])?))
}

/// The byte at which each line of a text begins, to find lines and columns.
pub struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    /// The lines of this text.
    pub fn new(text: &'a str) -> Self {
        let ends = text.match_indices('\n').map(|(i, _)| i + 1);
        Self { text, starts: std::iter::once(0).chain(ends).collect() }
    }

    /// The byte at this line and column, both from 1.
    pub fn byte(&self, (line, column): (usize, usize)) -> Option<usize> {
        let start = *self.starts.get(line.checked_sub(1)?)?;
        let rest = &self.text[start..];
        let ends = std::iter::once(rest.len());
        let mut bytes = rest.char_indices().map(|(i, _)| i).chain(ends);
        Some(start + bytes.nth(column.checked_sub(1)?)?)
    }
}
