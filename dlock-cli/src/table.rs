// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables for a terminal: columns as wide as they need, numbers to the right.

/// Rows of the same length; the first is the heading.
pub fn render(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |row: &Vec<String>, i: usize| row.get(i).cloned().unwrap_or_default();
    let mut out = String::new();
    let widths: Vec<usize> = (0..columns)
        .map(|i| rows.iter().map(|r| cell(r, i).chars().count()).max().unwrap_or(0))
        .collect();
    let numeric: Vec<bool> = (0..columns)
        .map(|i| rows.len() > 1 && rows[1..].iter().all(|r| is_number(&cell(r, i))))
        .collect();
    for row in rows {
        let mut line = String::new();
        for i in 0..columns {
            let text = cell(row, i);
            let pad = " ".repeat(widths[i] - text.chars().count());
            line.push_str(&if numeric[i] {
                format!("{pad}{text}  ")
            } else {
                format!("{text}{pad}  ")
            });
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

fn is_number(text: &str) -> bool {
    text == "-" || text.parse::<f64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_right_and_words_left() {
        let row = |a: &str, b: &str| vec![a.to_string(), b.to_string()];
        let text = render(&[row("name", "count"), row("a", "7"), row("longer", "1234")]);
        assert_eq!(text, "name    count\na           7\nlonger   1234\n");
    }
}
