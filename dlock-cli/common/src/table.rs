// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables for a terminal: columns as wide as they need, numbers to the right. Where the terminal is
//! narrower, the widest columns of words are cut, and a cut cell ends with `…`.

use crate::out;

/// A column is cut to this width, but not further.
const CUT_MIN: usize = 8;
/// Spaces between two columns.
const GAP: usize = 2;

/// Renders rows of the same length, of which the first is the heading; on a terminal, in its width.
pub fn render(rows: &[Vec<String>]) -> String {
    render_within(rows, out::columns())
}

/// As [`render`], in at most this width; `None`: as wide as the rows need.
pub fn render_within(rows: &[Vec<String>], width_max: Option<usize>) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |row: &Vec<String>, i: usize| row.get(i).cloned().unwrap_or_default();
    let mut out = String::new();
    let mut widths: Vec<usize> = (0..columns)
        .map(|i| rows.iter().map(|r| cell(r, i).chars().count()).max().unwrap_or(0))
        .collect();
    let numeric: Vec<bool> = (0..columns)
        .map(|i| rows.len() > 1 && rows[1..].iter().all(|r| is_number(&cell(r, i))))
        .collect();
    if let Some(width_max) = width_max {
        cut(&mut widths, &numeric, width_max);
    }
    for row in rows {
        let mut line = String::new();
        for i in 0..columns {
            let text = fitted(cell(row, i), widths[i]);
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

/// Makes the widest columns of words narrower until the table fits, or none can be cut further.
fn cut(widths: &mut [usize], numeric: &[bool], width_max: usize) {
    let gaps = GAP * widths.len().saturating_sub(1);
    let over = |widths: &[usize]| (widths.iter().sum::<usize>() + gaps).saturating_sub(width_max);
    for _ in 0..over(widths) {
        let words = widths.iter_mut().zip(numeric).filter(|(_, is_number)| !**is_number);
        let widest = words.map(|(width, _)| width).max_by_key(|width| **width);
        match widest {
            Some(width) if *width > CUT_MIN => *width -= 1,
            _ => return,
        }
    }
}

fn fitted(text: String, width: usize) -> String {
    if text.chars().count() <= width {
        return text;
    }
    let kept = text.chars().take(width.saturating_sub(1));
    kept.chain(['…']).collect()
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
        let text =
            render_within(&[row("name", "count"), row("a", "7"), row("longer", "1234")], None);
        assert_eq!(text, "name    count\na           7\nlonger   1234\n");
    }

    #[test]
    fn on_a_narrow_terminal_the_widest_words_are_cut_and_numbers_are_not() {
        let row = |cells: [&str; 3]| cells.map(str::to_string).to_vec();
        let long = "x".repeat(60);
        let rows = [row(["name", "count", "held by"]), row([&long, "1234567", "client 7"])];
        let text = render_within(&rows, Some(40));
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        assert!(text.contains("xxx…") && text.contains("1234567  client 7"), "{text}");
        let uncut = render_within(&rows, None);
        assert_eq!(render_within(&rows, Some(200)), uncut);
        let least = render_within(&rows, Some(1));
        assert!(least.contains("xxxxxxx…  1234567  client 7"), "{least}");
    }
}
